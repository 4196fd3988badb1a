//! Libraries for tests: one device, which does as the test says. Each thread has its own.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::io::{PipeWriter, Write};
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;

use super::RdmaDevice;
use super::connections::address_of;
use super::layout::{
    AsyncEvent, CHANGE_MIN_RNR_TIMER, CmEvent, CmId, CompletionChannel, CompletionQueue,
    ConnectionParameters, DEVICE_MEM_MGT_EXTENSIONS, Device, DeviceAttributes, EventChannel,
    MemoryRegion, PairAttributes, PairAttributesToChange, QueuePair, VerbsContext, WorkCompletion,
};
use super::library::Functions;

/// What the device does, and what was done with it.
#[derive(Default)]
pub(super) struct Stub {
    pub(super) vendor: u32,
    pub(super) name: &'static str,
    /// Inline bytes that a queue pair may have, at most.
    pub(super) inline: u32,
    /// Interrupts that can tell of completions, and those that completion queues have.
    pub(super) interrupts: c_int,
    pub(super) vectors: Vec<c_int>,
    /// Addresses that identifiers were bound to.
    pub(super) bound: Vec<SocketAddr>,
    /// The inline bytes of each try to make a queue pair.
    pub(super) tries: Vec<u32>,
    /// Where connections were to come from, and go to.
    pub(super) resolved: Vec<(Option<SocketAddr>, SocketAddr)>,
    /// What the end of a registration answers.
    pub(super) dereg: c_int,
    /// Domains that the device makes, at most; 0: any number.
    pub(super) domains: usize,
    /// What is in each domain, queue pairs and registrations. The kernel ends no domain that something is in.
    pub(super) contents: BTreeMap<usize, usize>,
    /// In which domain they are, by their addresses.
    places: BTreeMap<usize, usize>,
    /// Keys that were given.
    keys: u32,
    /// How often packets and messages are sent again, of each connection that was asked for.
    pub(super) retries: Vec<(u8, u8)>,
    /// The codes of times of retries that queue pairs were given.
    pub(super) timers: Vec<u8>,
    /// What the manager was told.
    pub(super) notified: Vec<u32>,
    /// What is in the completion queue.
    pub(super) completions: VecDeque<WorkCompletion>,
    /// News of the device that nobody has read, and how often some was acknowledged.
    alarms: VecDeque<AsyncEvent>,
    pub(super) acknowledged: usize,
    /// What the search for a route answers.
    pub(super) route: c_int,
    /// How often one was searched for.
    pub(super) routes: usize,
    events: VecDeque<*mut CmEvent>,
    /// How often each function was called that costs a system call, or a word to the device.
    pub(super) calls: BTreeMap<&'static str, usize>,
    /// The other ends of the descriptors, by their numbers: what is written there, nobody has read yet.
    ends: BTreeMap<c_int, PipeWriter>,
    /// The channels of completion queues, by their addresses.
    channels: BTreeMap<usize, c_int>,
    /// The channel whose completion queue tells of its next completion; `None`: it was not asked to.
    armed: Option<c_int>,
    context: Option<*mut VerbsContext>,
}

thread_local! {
    static STUB: RefCell<Stub> = RefCell::default();
}

/// The device of this thread.
pub(super) fn stub<T>(look: impl FnOnce(&mut Stub) -> T) -> T {
    STUB.with_borrow_mut(look)
}

/// Opens it.
pub(super) fn open() -> RdmaDevice {
    let address = "192.0.2.1:0".parse().unwrap();
    RdmaDevice::open_by(library(), address, 16).unwrap()
}

/// The kernel says something of the device.
pub(super) fn alarm(kind: u32, element: usize) {
    // SAFETY: the context is alive for ever.
    let descriptor = unsafe { (*context()).async_fd };
    stub(|stub| {
        stub.alarms.push_back(AsyncEvent { element, kind });
        stub.write_to(descriptor);
    });
}

/// The device has done something.
pub(super) fn complete(done: WorkCompletion) {
    stub(|stub| {
        stub.completions.push_back(done);
        if let Some(channel) = stub.armed.take() {
            stub.write_to(channel);
        }
    });
}

impl Stub {
    fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    /// Makes a descriptor readable, with one byte.
    fn write_to(&mut self, descriptor: c_int) {
        self.ends.get_mut(&descriptor).unwrap().write_all(&[1]).unwrap();
    }
}

/// Reads a byte that was written to a descriptor's other end. False if there is none.
fn read_from(descriptor: c_int) -> bool {
    let mut byte = 0u8;
    // SAFETY: a descriptor of `silent`, which does not block; one byte that lives until the call returns.
    unsafe { libc::read(descriptor, (&raw mut byte).cast(), 1) == 1 }
}

/// The manager says something of an identifier.
pub(super) fn tell(id: *mut CmId, event: u32, status: c_int) {
    let said = zeroed::<CmEvent>();
    // SAFETY: it is alive until it is acknowledged, which frees nothing.
    unsafe { ((*said).id, (*said).event, (*said).status) = (id, event, status) };
    stub(|stub| stub.events.push_back(said));
}

/// The same, with private data.
pub(super) fn tell_with(id: *mut CmId, event: u32, status: c_int, private: &'static [u8]) {
    tell(id, event, status);
    stub(|stub| {
        let said = *stub.events.back().unwrap();
        // SAFETY: `tell` has made it, and nobody has taken it.
        let parameters = unsafe { &mut (*said).parameters };
        parameters.private_data = private.as_ptr().cast();
        parameters.private_data_len = u8::try_from(private.len()).unwrap();
    });
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Zeroes are valid for what a test makes here.
fn zeroed<T>() -> *mut T {
    // SAFETY: structures of numbers, pointers and optional functions.
    leak(unsafe { std::mem::zeroed() })
}

/// A descriptor on which nothing comes before somebody writes to its other end.
fn silent() -> c_int {
    let (reader, writer) = std::io::pipe().unwrap();
    let descriptor = reader.into_raw_fd();
    stub(|stub| stub.ends.insert(descriptor, writer));
    descriptor
}

pub(super) fn library() -> &'static Functions {
    Box::leak(Box::new(Functions {
        rdma_create_event_channel,
        rdma_destroy_event_channel,
        rdma_create_id,
        rdma_destroy_id,
        rdma_bind_addr,
        rdma_create_qp,
        rdma_destroy_qp,
        rdma_get_cm_event,
        rdma_ack_cm_event,
        rdma_resolve_addr,
        rdma_connect,
        rdma_resolve_route,
        rdma_accept,
        rdma_notify,
        ibv_modify_qp,
        ibv_reg_mr,
        ibv_dereg_mr,
        ibv_get_cq_event,
        ibv_ack_cq_events,
        ibv_get_async_event,
        ibv_ack_async_event,
        ibv_query_device,
        ibv_alloc_pd,
        ibv_dealloc_pd,
        ibv_create_comp_channel,
        ibv_destroy_comp_channel,
        ibv_create_cq,
        ibv_destroy_cq,
        ..Functions::none()
    }))
}

unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    leak(EventChannel { fd: silent() })
}

unsafe extern "C" fn rdma_destroy_event_channel(_: *mut EventChannel) {}

unsafe extern "C" fn rdma_create_id(
    _: *mut EventChannel,
    id: *mut *mut CmId,
    _: *mut c_void,
    _: c_int,
) -> c_int {
    // SAFETY: the caller has room for an identifier.
    unsafe { *id = zeroed() };
    0
}

unsafe extern "C" fn rdma_destroy_id(_: *mut CmId) -> c_int {
    0
}

/// The device's context, the same for all who ask.
fn context() -> *mut VerbsContext {
    if let Some(known) = stub(|stub| stub.context) {
        return known;
    }
    let (context, device) = (zeroed::<VerbsContext>(), zeroed::<Device>());
    let (given, interrupts) = stub(|stub| (stub.name, stub.interrupts));
    // SAFETY: both are alive for ever.
    unsafe {
        let name = &mut (*device).name;
        name[..given.len()].copy_from_slice(given.as_bytes());
        (*context).device = device;
        (*context).num_comp_vectors = interrupts;
        (*context).ops.poll_cq = Some(poll_cq);
        (*context).ops.req_notify_cq = Some(req_notify_cq);
        ((*context).async_fd, (*context).cmd_fd) = (silent(), silent());
    }
    stub(|stub| stub.context = Some(context));
    context
}

unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, address: *mut libc::sockaddr) -> c_int {
    // SAFETY: the callers here give a whole storage.
    let address = address_of(unsafe { &*address.cast::<libc::sockaddr_storage>() }).unwrap();
    stub(|stub| stub.bound.push(address));
    // SAFETY: the identifier is one of `rdma_create_id`.
    unsafe { (*id).verbs = context() };
    0
}

unsafe extern "C" fn ibv_query_device(
    _: *mut VerbsContext,
    attributes: *mut DeviceAttributes,
) -> c_int {
    // SAFETY: the caller has room for them.
    let attributes = unsafe { &mut *attributes };
    attributes.max_cqe = 1024;
    attributes.max_pd = 4;
    attributes.max_qp_wr = 1024;
    attributes.device_cap_flags = DEVICE_MEM_MGT_EXTENSIONS;
    attributes.vendor_id = stub(|stub| stub.vendor);
    0
}

unsafe extern "C" fn ibv_alloc_pd(_: *mut VerbsContext) -> *mut c_void {
    if stub(|stub| stub.domains > 0 && stub.contents.len() >= stub.domains) {
        fail(libc::ENOMEM);
        return std::ptr::null_mut();
    }
    let domain = zeroed::<u64>();
    stub(|stub| stub.contents.insert(domain.addr(), 0));
    domain.cast()
}

unsafe extern "C" fn ibv_dealloc_pd(domain: *mut c_void) -> c_int {
    stub(|stub| match stub.contents.remove(&domain.addr()) {
        Some(0) => 0,
        Some(contents) => {
            stub.contents.insert(domain.addr(), contents);
            libc::EBUSY
        }
        None => libc::EINVAL,
    })
}

/// Something is in a domain from now on.
fn put_into(domain: *mut c_void, what: usize) {
    stub(|stub| {
        *stub.contents.get_mut(&domain.addr()).expect("a domain that is there") += 1;
        stub.places.insert(what, domain.addr());
    });
}

/// It is no more.
fn take_out(what: usize) {
    stub(|stub| {
        let domain = stub.places.remove(&what).expect("something that is there");
        *stub.contents.get_mut(&domain).expect("a domain that is there") -= 1;
    });
}

unsafe extern "C" fn ibv_create_comp_channel(_: *mut VerbsContext) -> *mut CompletionChannel {
    let channel = zeroed::<CompletionChannel>();
    // SAFETY: it is alive for ever.
    unsafe { (*channel).fd = silent() };
    channel
}

unsafe extern "C" fn ibv_destroy_comp_channel(_: *mut CompletionChannel) -> c_int {
    0
}

unsafe extern "C" fn ibv_create_cq(
    context: *mut VerbsContext,
    _: c_int,
    _: *mut c_void,
    channel: *mut CompletionChannel,
    vector: c_int,
) -> *mut CompletionQueue {
    let queue = leak(CompletionQueue { context });
    // SAFETY: the caller's, and alive.
    let channel = unsafe { (*channel).fd };
    stub(|stub| {
        stub.channels.insert(queue.addr(), channel);
        stub.vectors.push(vector);
    });
    queue
}

unsafe extern "C" fn ibv_destroy_cq(_: *mut CompletionQueue) -> c_int {
    0
}

unsafe extern "C" fn rdma_create_qp(
    id: *mut CmId,
    domain: *mut c_void,
    attributes: *mut PairAttributes,
) -> c_int {
    // SAFETY: the caller's, and alive.
    let asked = unsafe { (*attributes).cap.max_inline_data };
    let most = stub(|stub| {
        stub.tries.push(asked);
        stub.inline
    });
    if asked > most {
        return fail(libc::EINVAL);
    }
    // SAFETY: the identifier is alive.
    unsafe { (*id).qp = zeroed::<QueuePair>() };
    put_into(domain, id.addr());
    0
}

unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    take_out(id.addr());
}

unsafe extern "C" fn rdma_get_cm_event(_: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
    stub(|stub| stub.count("rdma_get_cm_event"));
    let Some(said) = stub(|stub| stub.events.pop_front()) else { return fail(libc::EAGAIN) };
    // SAFETY: the caller has room for it.
    unsafe { *event = said };
    0
}

unsafe extern "C" fn rdma_ack_cm_event(_: *mut CmEvent) -> c_int {
    0
}

unsafe extern "C" fn rdma_resolve_addr(
    _: *mut CmId,
    source: *mut libc::sockaddr,
    address: *mut libc::sockaddr,
    _: c_int,
) -> c_int {
    // SAFETY: the callers here give whole storages, or nothing.
    let of = |address: *mut libc::sockaddr| unsafe {
        address.cast::<libc::sockaddr_storage>().as_ref().map(|it| address_of(it).unwrap())
    };
    let asked = (of(source), of(address).unwrap());
    stub(|stub| stub.resolved.push(asked));
    0
}

unsafe extern "C" fn rdma_connect(_: *mut CmId, parameters: *mut ConnectionParameters) -> c_int {
    // SAFETY: the caller's, and alive.
    let retries = unsafe { ((*parameters).retry_count, (*parameters).rnr_retry_count) };
    stub(|stub| stub.retries.push(retries));
    0
}

unsafe extern "C" fn rdma_resolve_route(_: *mut CmId, _: c_int) -> c_int {
    stub(|stub| {
        stub.routes += 1;
        stub.route
    })
}

unsafe extern "C" fn rdma_accept(_: *mut CmId, _: *mut ConnectionParameters) -> c_int {
    0
}

unsafe extern "C" fn rdma_notify(_: *mut CmId, event: c_uint) -> c_int {
    stub(|stub| stub.notified.push(event));
    0
}

unsafe extern "C" fn ibv_modify_qp(
    _: *mut QueuePair,
    attributes: *mut PairAttributesToChange,
    mask: c_int,
) -> c_int {
    assert_eq!(mask, CHANGE_MIN_RNR_TIMER);
    // SAFETY: the caller's, and alive.
    let timer = unsafe { (*attributes).min_rnr_timer };
    stub(|stub| stub.timers.push(timer));
    0
}

unsafe extern "C" fn ibv_reg_mr(
    domain: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> *mut MemoryRegion {
    let region = zeroed::<MemoryRegion>();
    let key = stub(|stub| {
        stub.keys += 1;
        stub.keys
    });
    // SAFETY: it is alive for ever.
    unsafe { ((*region).lkey, (*region).rkey) = (key, key) };
    put_into(domain, region.addr());
    region
}

unsafe extern "C" fn ibv_dereg_mr(region: *mut MemoryRegion) -> c_int {
    let answer = stub(|stub| stub.dereg);
    if answer == 0 {
        take_out(region.addr());
    }
    answer
}

unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompletionChannel,
    _: *mut *mut CompletionQueue,
    _: *mut *mut c_void,
) -> c_int {
    stub(|stub| stub.count("ibv_get_cq_event"));
    // SAFETY: the caller's, and alive.
    if read_from(unsafe { (*channel).fd }) { 0 } else { fail(libc::EAGAIN) }
}

unsafe extern "C" fn ibv_ack_cq_events(_: *mut CompletionQueue, _: c_uint) {}

/// The next completion is told, once.
unsafe extern "C" fn req_notify_cq(queue: *mut CompletionQueue, _: c_int) -> c_int {
    stub(|stub| {
        stub.count("req_notify_cq");
        stub.armed = stub.channels.get(&queue.addr()).copied();
    });
    0
}

unsafe extern "C" fn poll_cq(
    _: *mut CompletionQueue,
    count: c_int,
    into: *mut WorkCompletion,
) -> c_int {
    let count = usize::try_from(count).unwrap();
    let taken: Vec<WorkCompletion> = stub(|stub| {
        let count = count.min(stub.completions.len());
        stub.completions.drain(..count).collect()
    });
    for (n, done) in taken.iter().enumerate() {
        // SAFETY: the caller has room for `count` of them.
        unsafe { *into.add(n) = *done };
    }
    c_int::try_from(taken.len()).unwrap()
}

unsafe extern "C" fn ibv_get_async_event(
    context: *mut VerbsContext,
    event: *mut AsyncEvent,
) -> c_int {
    stub(|stub| stub.count("ibv_get_async_event"));
    // SAFETY: the context is alive for ever.
    read_from(unsafe { (*context).async_fd });
    let Some(said) = stub(|stub| stub.alarms.pop_front()) else { return fail(libc::EAGAIN) };
    // SAFETY: the caller has room for it.
    unsafe { *event = said };
    0
}

unsafe extern "C" fn ibv_ack_async_event(_: *mut AsyncEvent) {
    stub(|stub| stub.acknowledged += 1);
}
