//! A real device: verbs of libibverbs and the connection manager of librdmacm.
//!
//! One value is what one core has of one device: a completion queue, protection domains, an event channel. All file
//! descriptors are non-blocking, and nothing here waits. Memory is allocated here and freed here, after its registration
//! has ended; everybody else has only its address for work requests.
#![allow(unsafe_code)]

mod alarms;
mod connections;
mod layout;
mod library;
mod link;
mod memory;
mod news;
mod quirks;
mod removal;
mod sharing;
#[cfg(test)]
mod stub;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::RawFd;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use raceline_proto::rdma::WorkStatus;

use crate::foreign::Foreign;
use crate::invalidation::Invalidation;
use crate::numbers::Numbers;
use crate::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event, Operation, POLL_BATCH,
    PairConfig, PostError, Provider, ProviderError, RecvWork, Region, SendWork, Slice,
};
use alarms::Mailbox;
use connections::Connections;
use layout::{
    CmId, CompletionChannel, CompletionQueue, DEVICE_MEM_MGT_EXTENSIONS, DeviceAttributes, Element,
    QueuePair, RecvRequest, SEND_INLINE, SEND_SIGNALED, SendRequest, SharedAttributes, SharedQueue,
    TRANSPORT_IWARP, VerbsContext, WC_WITH_INV, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND,
    WR_SEND_WITH_INV, WorkCompletion,
};
use library::Functions;
use memory::Memory;
use sharing::Channel;

pub use library::{load_libraries, seal};
pub use link::{Carrier, Link};
pub use news::{NewsSet, Ticks};

/// Events of the connection manager that are looked at when a device is given up.
const LAST_EVENTS: u32 = 1024;

/// What the last call of a library says.
fn last_error(what: &'static str) -> ProviderError {
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)",
        Some(libc::ENODEV) => "; is there an RDMA device at the address (rdma link, ibv_devices)?",
        Some(libc::EACCES | libc::EPERM) => "; may this process open /dev/infiniband?",
        _ => "",
    };
    ProviderError::new(what, format!("{error}{hint}")).of_kind(error.kind())
}

/// What one core has of one device.
#[derive(Debug)]
pub struct RdmaDevice {
    functions: &'static Functions,
    context: *mut VerbsContext,
    completions: *mut CompletionQueue,
    /// Receives that queue pairs share, if they do.
    shared: *mut SharedQueue,
    /// Tells of completions, when asked.
    notices: *mut CompletionChannel,
    /// The interrupt that tells of completions. Each user of the device has the next one, so that those of all cores do not
    /// come to one processor.
    vector: c_int,
    channel: Arc<Channel>,
    /// With which it was opened.
    address: SocketAddr,
    wanted_completions: u32,
    /// An epoll instance that waits for both channels; `None` until it is made.
    news: Option<NewsSet>,
    /// Bound to the address: holds the device.
    anchor: *mut CmId,
    capabilities: Capabilities,
    /// Whether the device invalidates keys as it says, as all its users find out.
    invalidation: Arc<Invalidation>,
    name: String,
    memory: Memory,
    connections: Connections,
    /// Copies of what the kernel says of the device unasked.
    mailbox: Option<Arc<Mailbox>>,
    /// The kernel has nothing more to say of it.
    is_deaf: bool,
    /// The next completion puts a notice into the channel, or one has come since and nobody has taken it.
    is_armed: bool,
    /// The manager had nothing to say when [`WaitingDevice::arm`] asked: the next call of [`Provider::next_event`] need not ask.
    is_quiet: bool,
    /// Events that follow from that.
    pending: VecDeque<Event>,
    polled: Vec<WorkCompletion>,
    elements: Vec<Element>,
    sends: Vec<SendRequest>,
    receives: Vec<RecvRequest>,
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Functions")
    }
}

impl RdmaDevice {
    /// Opens the device that has this address, with a completion queue of up to so many entries. The port does not matter; the
    /// scope of an address that is of a link only does.
    ///
    /// # Errors
    /// When the libraries are missing, no device has the address, or the device refuses.
    pub fn open(address: SocketAddr, completions: u32) -> Result<Self, ProviderError> {
        Self::open_by(library::functions()?, address, completions)
    }

    fn open_by(
        functions: &'static Functions,
        address: SocketAddr,
        completions: u32,
    ) -> Result<Self, ProviderError> {
        let channel = Channel::new(functions)?;
        let mut device = Self {
            functions,
            context: null_mut(),
            completions: null_mut(),
            shared: null_mut(),
            notices: null_mut(),
            vector: 0,
            channel,
            address,
            wanted_completions: completions,
            news: None,
            anchor: null_mut(),
            capabilities: Capabilities {
                completions: 0,
                work_requests: 0,
                shared_receives: 0,
                tells_last_receive: false,
                reads_answered: 0,
                reads_begun: 0,
                inline_bytes: 64,
                send_with_invalidate: false,
                is_iwarp: false,
            },
            invalidation: Arc::default(),
            name: String::new(),
            memory: Memory::new(functions),
            connections: Connections::default(),
            mailbox: None,
            is_deaf: false,
            is_armed: false,
            is_quiet: false,
            pending: VecDeque::new(),
            polled: vec![WorkCompletion::default(); POLL_BATCH],
            elements: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
        };
        device.open_context(address)?;
        device.open_notices()?;
        device.open_queues(completions)?;
        device.open_news()?;
        Ok(device)
    }

    /// Opens the device by which this address is reached.
    ///
    /// # Errors
    /// Like [`Self::open`].
    pub fn open_towards(peer: SocketAddr, completions: u32) -> Result<Self, ProviderError> {
        Self::open(Self::address_towards(peer)?, completions)
    }

    /// The address of this machine from which this address is reached.
    ///
    /// # Errors
    /// When there is no route.
    pub fn address_towards(peer: SocketAddr) -> Result<SocketAddr, ProviderError> {
        let local = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let route = UdpSocket::bind(local).and_then(|socket| {
            socket.connect(peer)?;
            socket.local_addr()
        });
        let what = "finding the route to the target";
        let mut route = route.map_err(|error| ProviderError::new(what, error.to_string()))?;
        route.set_port(0);
        Ok(route)
    }

    /// The descriptor that is readable when there are events of the connection manager.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn open_context(&mut self, mut address: SocketAddr) -> Result<(), ProviderError> {
        news::set_nonblocking(self.event_fd())?;
        self.anchor = self.create_id()?;
        address.set_port(0);
        self.bind(self.anchor, address)?;
        // SAFETY: `anchor` is alive; binding has filled in its device.
        self.context = unsafe { (*self.anchor).verbs };
        if self.context.is_null() {
            let address = address.ip();
            let why =
                format!("{address} is not the address of an RDMA device (rdma link shows them)");
            return Err(ProviderError::new("finding the RDMA device", why));
        }
        self.memory.set_context(self.context);
        let number = removal::enter(self.context);
        // SAFETY: the context is alive while the anchor is.
        let vectors = unsafe { (*self.context).num_comp_vectors };
        let vectors = u32::try_from(vectors).unwrap_or(0).max(1);
        self.vector = c_int::try_from(number % vectors).unwrap_or(0);
        Ok(())
    }

    fn open_queues(&mut self, completions: u32) -> Result<(), ProviderError> {
        // SAFETY: a structure of numbers and bytes, for which zeroes are valid.
        let mut attributes: DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is alive, and the structure has the size that the library fills in.
        let failed =
            unsafe { (self.functions.ibv_query_device)(self.context, &raw mut attributes) };
        if failed != 0 {
            return Err(last_error("asking the RDMA device what it can do"));
        }
        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let byte = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        let completions = completions.min(number(attributes.max_cqe));
        // SAFETY: context and device are alive while the anchor is.
        let (is_iwarp, name) = unsafe {
            let device = (*self.context).device;
            ((*device).transport_type == TRANSPORT_IWARP, (*device).name)
        };
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        self.name = String::from_utf8_lossy(&name[..end]).into_owned();
        let fails =
            quirks::fails_to_invalidate(attributes.vendor_id, &self.name, Path::new(quirks::SYSFS));
        let loses =
            quirks::loses_receives(attributes.vendor_id, &self.name, Path::new(quirks::SYSFS));
        let can_invalidate = attributes.device_cap_flags & DEVICE_MEM_MGT_EXTENSIONS != 0;
        self.capabilities = Capabilities {
            completions,
            work_requests: number(attributes.max_qp_wr),
            shared_receives: if attributes.max_srq > 0 { number(attributes.max_srq_wr) } else { 0 },
            tells_last_receive: !is_iwarp && !loses,
            reads_answered: byte(attributes.max_qp_rd_atom),
            reads_begun: byte(attributes.max_qp_init_rd_atom),
            inline_bytes: 64,
            send_with_invalidate: can_invalidate && !fails,
            is_iwarp,
        };
        self.invalidation = removal::invalidation(self.context);
        self.memory.set_most_domains(number(attributes.max_pd));
        self.memory.open_domain()?;
        let entries = c_int::try_from(completions).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are alive.
        self.completions = unsafe {
            (self.functions.ibv_create_cq)(
                self.context,
                entries,
                null_mut(),
                self.notices,
                self.vector,
            )
        };
        if self.completions.is_null() {
            return Err(last_error("making a completion queue"));
        }
        Ok(())
    }

    /// The queue pair of a connection, for posts.
    fn pair(&self, connection: ConnectionId) -> Option<*mut QueuePair> {
        self.connections.pair(connection)
    }

    /// Has `post` take a chain of receives.
    fn post_receives(
        &mut self,
        work: &[RecvWork],
        post: impl FnOnce(*mut RecvRequest, *mut *mut RecvRequest) -> c_int,
    ) -> Result<(), PostError> {
        if work.is_empty() {
            return Ok(());
        }
        self.elements.clear();
        self.elements.extend(work.iter().map(|work| element(work.local)));
        self.receives.clear();
        let request = |work: &RecvWork| RecvRequest {
            wr_id: work.id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 1,
        };
        self.receives.extend(work.iter().map(request));
        let (elements, requests) = (self.elements.as_mut_ptr(), self.receives.as_mut_ptr());
        for n in 0..work.len() {
            // SAFETY: both arrays have `work.len()` entries, and are not moved before they are posted.
            unsafe {
                (*requests.add(n)).sg_list = elements.add(n);
                if n + 1 < work.len() {
                    (*requests.add(n)).next = requests.add(n + 1);
                }
            }
        }
        let mut bad: *mut RecvRequest = null_mut();
        if post(requests, &raw mut bad) == 0 {
            return Ok(());
        }
        Err(PostError { posted: posted_before(&self.receives, bad) })
    }

    /// Takes up to so many completions from the device; gives how many.
    #[inline]
    fn take_completions(&mut self, room: usize) -> usize {
        let count = c_int::try_from(room).unwrap_or(0);
        // SAFETY: the completion queue and its context are alive.
        let Some(poll) = (unsafe { (*(*self.completions).context).ops.poll_cq }) else { return 0 };
        // SAFETY: there is room for `count` completions.
        let taken = unsafe { poll(self.completions, count, self.polled.as_mut_ptr()) };
        usize::try_from(taken).unwrap_or(0).min(room)
    }

    /// Takes all completions that are there, for the next calls of `poll`.
    fn keep_completions(&mut self) {
        // Others may come all the time. Those that are there now are among so many.
        let entries = usize::try_from(self.capabilities.completions).unwrap_or(usize::MAX);
        for _ in 0..=entries / POLL_BATCH {
            let taken = self.take_completions(POLL_BATCH);
            for n in 0..taken {
                let done = translate(&self.connections.numbers, &self.polled[n]);
                self.connections.numbers.keep(done);
            }
            if taken < POLL_BATCH {
                break;
            }
        }
    }

    fn send_request(work: &SendWork) -> SendRequest {
        let mut request = SendRequest::new();
        request.wr_id = work.id;
        match work.operation {
            Operation::Send { invalidate: None } => request.opcode = WR_SEND,
            Operation::Send { invalidate: Some(key) } => {
                request.opcode = WR_SEND_WITH_INV;
                request.invalidate_rkey = key;
            }
            Operation::Write { remote, key } => {
                request.opcode = WR_RDMA_WRITE;
                (request.remote_addr, request.rkey) = (remote, key);
            }
            Operation::Read { remote, key } => {
                request.opcode = WR_RDMA_READ;
                (request.remote_addr, request.rkey) = (remote, key);
            }
        }
        request.send_flags = if work.signalled { SEND_SIGNALED } else { 0 };
        request.send_flags |= if work.inline { SEND_INLINE } else { 0 };
        request
    }
}

fn element(slice: Slice) -> Element {
    Element { addr: slice.address, length: slice.len, lkey: slice.lkey }
}

/// How many requests of an array come before the bad one.
fn posted_before<T>(array: &[T], bad: *const T) -> usize {
    array.iter().position(|request| std::ptr::eq(request, bad)).unwrap_or(0)
}

impl Provider for RdmaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let can = self.capabilities.send_with_invalidate;
        let send_with_invalidate = can && !self.invalidation.fails();
        Capabilities { send_with_invalidate, ..self.capabilities }
    }

    fn open_domain(&mut self) -> Result<DomainId, ProviderError> {
        self.memory.open_domain()
    }

    fn close_domain(&mut self, domain: DomainId) {
        self.memory.close_domain(domain);
    }

    fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError> {
        self.memory.register(domain, len, access)
    }

    fn deregister(&mut self, region: Region) {
        self.memory.deregister(&region);
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        self.memory.register_foreign(memory)
    }

    fn deregister_foreign(&mut self, lkey: u32) {
        self.memory.deregister_foreign(lkey);
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        self.memory.read(region, offset, into);
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        self.memory.fill(region, offset, len, fill);
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        self.memory.write(region, offset, bytes);
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(), ProviderError> {
        self.begin_listening(address)
    }

    fn stop_listening(&mut self) {
        self.end_listening();
    }

    fn resolve(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        self.begin_resolving(address, source)
    }

    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        self.make_pair(connection, config)
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.ask(connection, private, reads)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.agree(connection, private, reads)
    }

    fn reject(&mut self, connection: ConnectionId, private: &[u8]) {
        self.refuse(connection, private);
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.part(connection);
    }

    fn destroy(&mut self, connection: ConnectionId) {
        self.forget(connection);
    }

    fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.pending.pop_front() {
            return Some(event);
        }
        if std::mem::take(&mut self.is_quiet) { None } else { self.take_event() }
    }

    #[inline]
    fn note_invalidation(&self) {
        self.invalidation.note_success();
    }

    fn note_failed_invalidation(&self) {
        if self.invalidation.note_failure() {
            let device = &self.name;
            tracing::warn!(
                device,
                "the RDMA device fails to send with invalidation, although it says that it can: its connections do without while somebody uses it"
            );
        }
    }

    fn peer(&self, connection: ConnectionId) -> Option<SocketAddr> {
        self.peer_of(connection)
    }

    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        let Some(pair) = self.pair(connection) else { return Err(PostError { posted: 0 }) };
        self.elements.clear();
        self.elements.extend(work.iter().map(|work| element(work.local)));
        self.sends.clear();
        self.sends.extend(work.iter().map(Self::send_request));
        let (elements, requests) = (self.elements.as_mut_ptr(), self.sends.as_mut_ptr());
        for n in 0..work.len() {
            // SAFETY: both arrays have `work.len()` entries, and are not moved before they are posted.
            unsafe {
                (*requests.add(n)).sg_list = elements.add(n);
                if n + 1 < work.len() {
                    (*requests.add(n)).next = requests.add(n + 1);
                }
            }
        }
        if work.is_empty() {
            return Ok(());
        }
        let mut bad: *mut SendRequest = null_mut();
        // SAFETY: the queue pair is alive, and so is its context, whose table has the function.
        let post = unsafe { (*(*pair).context).ops.post_send };
        let Some(post) = post else { return Err(PostError { posted: 0 }) };
        // SAFETY: a chain of requests that live until the call returns; the memory that they name is registered, and
        // its owner frees it only after their completions.
        if unsafe { post(pair, requests, &raw mut bad) } == 0 {
            return Ok(());
        }
        Err(PostError { posted: posted_before(&self.sends, bad) })
    }

    fn post_recv(&mut self, connection: ConnectionId, work: &[RecvWork]) -> Result<(), PostError> {
        let Some(pair) = self.pair(connection) else { return Err(PostError { posted: 0 }) };
        // SAFETY: the queue pair is alive, and so is its context, whose table has the function.
        let post = unsafe { (*(*pair).context).ops.post_recv };
        let Some(post) = post else { return Err(PostError { posted: 0 }) };
        // SAFETY: `post_receives` gives a chain of requests that live until the call returns; the memory that they name is
        // registered, and its owner frees it only after their completions.
        self.post_receives(work, |requests, bad| unsafe { post(pair, requests, bad) })
    }

    fn share_receives(&mut self, entries: u32) -> Result<(), ProviderError> {
        let what = "making a shared receive queue";
        if !self.shared.is_null() {
            return Err(ProviderError::new(what, "there is one already"));
        }
        let domain = self.memory.domain(DomainId::OWN)?;
        let mut attributes =
            SharedAttributes { context: null_mut(), max_wr: entries, max_sge: 1, srq_limit: 0 };
        // SAFETY: the domain is alive, and the attributes are until the call returns.
        self.shared = unsafe { (self.functions.ibv_create_srq)(domain, &raw mut attributes) };
        if self.shared.is_null() { Err(last_error(what)) } else { Ok(()) }
    }

    fn unshare_receives(&mut self) {
        let shared = std::mem::replace(&mut self.shared, null_mut());
        if !shared.is_null() {
            // SAFETY: made by `share_receives`, and destroyed once: the field is empty now.
            unsafe { (self.functions.ibv_destroy_srq)(shared) };
        }
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        let shared = self.shared;
        if shared.is_null() {
            return Err(PostError { posted: 0 });
        }
        // SAFETY: the context is alive, and its table has the function.
        let post = unsafe { (*self.context).ops.post_shared };
        let Some(post) = post else { return Err(PostError { posted: 0 }) };
        // SAFETY: as in `post_recv`.
        self.post_receives(work, |requests, bad| unsafe { post(shared, requests, bad) })
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        self.connections.numbers.give_kept(into);
        let room = (into.capacity() - into.len()).min(POLL_BATCH);
        let taken = self.take_completions(room);
        let numbers = &self.connections.numbers;
        into.extend(self.polled[..taken].iter().map(|done| translate(numbers, done)));
    }
}

/// A completion with the name of its connection. One of a queue pair that was destroyed may still come.
#[inline]
fn translate(numbers: &Numbers, done: &WorkCompletion) -> Completion {
    let is_invalidated = done.status == 0 && done.wc_flags & WC_WITH_INV != 0;
    Completion {
        connection: numbers.of(done.qp_num),
        id: done.wr_id,
        status: WorkStatus(done.status),
        bytes: done.byte_len,
        invalidated: is_invalidated.then_some(done.invalidated_rkey),
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        // The manager may have said that the device is gone, and nobody has asked since.
        for _ in 0..LAST_EVENTS {
            if self.context.is_null() || self.take_event().is_none() {
                break;
            }
        }
        self.forget_all();
        self.unshare_receives();
        self.memory.clear();
        // SAFETY: nothing uses these any longer: connections and registrations are gone. Each is destroyed once.
        unsafe {
            if !self.completions.is_null() {
                (self.functions.ibv_destroy_cq)(self.completions);
            }
            if !self.notices.is_null() {
                (self.functions.ibv_destroy_comp_channel)(self.notices);
            }
        }
        self.memory.close_domains();
        if !self.context.is_null() {
            removal::leave(self.context);
        }
        // SAFETY: as above.
        unsafe {
            if !self.anchor.is_null() {
                (self.functions.rdma_destroy_id)(self.anchor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stub::{open, stub};
    use super::*;

    #[test]
    fn a_completion_is_not_that_of_the_next_queue_pair_with_the_number() {
        stub(|stub| stub.inline = 64);
        let address = "192.0.2.1:0".parse().unwrap();
        let mut device = RdmaDevice::open_by(super::stub::library(), address, 200).unwrap();
        let config = PairConfig {
            domain: DomainId::OWN,
            sends: 8,
            receives: 8,
            shares_receives: false,
            inline_bytes: 0,
        };
        let connect = |device: &mut RdmaDevice| {
            let id = device.create_id().unwrap();
            let connection = device.connections.add(id);
            device.make_pair(connection, &config).unwrap();
            connection
        };
        // All queue pairs of this library have the same number.
        let first = connect(&mut device);
        let done = |wr_id| {
            let mut done = WorkCompletion::default();
            done.wr_id = wr_id;
            done
        };
        let most = 2 * u64::try_from(POLL_BATCH).unwrap() + 3;
        stub(|stub| stub.completions.extend((0..most).map(done)));
        device.destroy(first);
        let next = connect(&mut device);
        stub(|stub| stub.completions.push_back(done(most)));
        let mut all = Vec::new();
        loop {
            let mut some = Vec::with_capacity(10);
            device.poll(&mut some);
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        let ids: Vec<u64> = all.iter().map(|done| done.id).collect();
        assert_eq!(ids, (0..=most).collect::<Vec<_>>(), "each comes once, in order");
        let of_next: Vec<u64> =
            all.iter().filter(|done| done.connection == next).map(|done| done.id).collect();
        assert_eq!(of_next, [most]);
    }

    #[test]
    fn a_device_that_fails_to_invalidate_is_not_asked_to_by_any_user() {
        stub(|stub| (stub.vendor, stub.name) = (0x02c9, "storage0"));
        let (one, other) = (open(), open());
        assert!(
            one.capabilities().send_with_invalidate && other.capabilities().send_with_invalidate
        );
        one.note_failed_invalidation();
        for device in [&one, &other, &open()] {
            assert!(!device.capabilities().send_with_invalidate);
        }
    }

    #[test]
    fn a_device_that_has_invalidated_goes_on_after_a_failure() {
        stub(|stub| (stub.vendor, stub.name) = (0x02c9, "storage0"));
        let (one, other) = (open(), open());
        one.note_invalidation();
        other.note_failed_invalidation();
        for device in [&one, &other, &open()] {
            assert!(device.capabilities().send_with_invalidate);
        }
    }

    #[test]
    fn completions_of_users_are_told_by_different_interrupts() {
        for (interrupts, expected) in [(3, [0, 1, 2, 0, 1]), (1, [0; 5]), (0, [0; 5])] {
            // Each thread has a device of its own.
            std::thread::spawn(move || {
                stub(|stub| stub.interrupts = interrupts);
                let devices = [(); 5].map(|()| open());
                assert_eq!(stub(|stub| stub.vectors.clone()), expected, "of {interrupts}");
                drop(devices);
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn whether_a_device_can_invalidate_is_not_a_matter_of_its_name() {
        for (vendor, can) in [(0x14e4, false), (0x02c9, true)] {
            stub(|stub| (stub.vendor, stub.name) = (vendor, "storage0"));
            let device = open();
            assert_eq!(device.capabilities.send_with_invalidate, can, "{vendor:x}");
            assert_eq!(device.name(), "storage0");
        }
    }
}
