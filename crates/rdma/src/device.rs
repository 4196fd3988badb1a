//! A real device: verbs of libibverbs and the connection manager of librdmacm.
//!
//! One value is what one core has of one device: a completion queue, a protection domain, an event channel. All file
//! descriptors are non-blocking, and nothing here waits. Memory is allocated here and freed here, after its registration
//! has ended; everybody else has only its address for work requests.
#![allow(unsafe_code)]

mod connections;
mod layout;
mod library;
mod memory;
mod news;
mod removal;

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use raceline_proto::rdma::WorkStatus;

use crate::foreign::Foreign;
use crate::verbs::{
    Access, Capabilities, Completion, ConnectionId, Event, Operation, PairConfig, PostError,
    Provider, ProviderError, RecvWork, Region, SendWork, Slice,
};
use connections::Connections;
use layout::{
    CmId, CompletionChannel, CompletionQueue, DEVICE_MEM_MGT_EXTENSIONS, DeviceAttributes, Element,
    EventChannel, QueuePair, RecvRequest, SEND_INLINE, SEND_SIGNALED, SendRequest,
    SharedAttributes, SharedQueue, TRANSPORT_IWARP, VerbsContext, WC_WITH_INV, WR_RDMA_READ,
    WR_RDMA_WRITE, WR_SEND, WR_SEND_WITH_INV, WorkCompletion,
};
use library::Functions;
use memory::Memory;

pub use library::{load_libraries, seal};
pub use news::{NewsSet, Ticks};

/// Completions that one call takes from the device.
const POLL: usize = 32;

/// What the last call of a library says.
fn last_error(what: &'static str) -> ProviderError {
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)",
        Some(libc::ENODEV) => "; is there an RDMA device at the address (rdma link, ibv_devices)?",
        Some(libc::EACCES | libc::EPERM) => "; may this process open /dev/infiniband?",
        _ => "",
    };
    ProviderError { what, why: format!("{error}{hint}") }
}

/// What one core has of one device.
#[derive(Debug)]
pub struct RdmaDevice {
    functions: &'static Functions,
    context: *mut VerbsContext,
    domain: *mut c_void,
    completions: *mut CompletionQueue,
    /// Receives that queue pairs share, if they do.
    shared: *mut SharedQueue,
    /// Tells of completions, when asked.
    notices: *mut CompletionChannel,
    channel: *mut EventChannel,
    /// An epoll instance that waits for both channels; `None` until it is made.
    news: Option<NewsSet>,
    /// Bound to the address: holds the device.
    anchor: *mut CmId,
    capabilities: Capabilities,
    name: String,
    memory: Memory,
    connections: Connections,
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
    /// Opens the device that has this address, with a completion queue of up to so many entries.
    ///
    /// # Errors
    /// When the libraries are missing, no device has the address, or the device refuses.
    pub fn open(address: IpAddr, completions: u32) -> Result<Self, ProviderError> {
        let functions = library::functions()?;
        // SAFETY: no arguments.
        let channel = unsafe { (functions.rdma_create_event_channel)() };
        if channel.is_null() {
            return Err(last_error("opening the RDMA connection manager (module rdma_ucm)"));
        }
        let mut device = Self {
            functions,
            context: null_mut(),
            domain: null_mut(),
            completions: null_mut(),
            shared: null_mut(),
            notices: null_mut(),
            channel,
            news: None,
            anchor: null_mut(),
            capabilities: Capabilities {
                completions: 0,
                work_requests: 0,
                shared_receives: 0,
                reads_answered: 0,
                reads_begun: 0,
                inline_bytes: 64,
                send_with_invalidate: false,
                is_iwarp: false,
            },
            name: String::new(),
            memory: Memory::new(functions),
            connections: Connections::default(),
            polled: vec![WorkCompletion::default(); POLL],
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
        let local = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let route = UdpSocket::bind(local).and_then(|socket| {
            socket.connect(peer)?;
            socket.local_addr()
        });
        let what = "finding the route to the target";
        let route = route.map_err(|error| ProviderError { what, why: error.to_string() })?;
        Self::open(route.ip(), completions)
    }

    /// The descriptor that is readable when there are events of the connection manager.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as this value.
        unsafe { (*self.channel).fd }
    }

    fn open_context(&mut self, address: IpAddr) -> Result<(), ProviderError> {
        news::set_nonblocking(self.event_fd())?;
        self.anchor = self.create_id()?;
        self.bind(self.anchor, SocketAddr::new(address, 0))?;
        // SAFETY: `anchor` is alive; binding has filled in its device.
        self.context = unsafe { (*self.anchor).verbs };
        if self.context.is_null() {
            let why =
                format!("{address} is not the address of an RDMA device (rdma link shows them)");
            return Err(ProviderError { what: "finding the RDMA device", why });
        }
        removal::enter(self.context);
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
        // Devices that say they can, and fail or confuse hosts when they do.
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        self.name = String::from_utf8_lossy(&name[..end]).into_owned();
        let is_unsafe = name.starts_with(b"bnxt_re") || name.starts_with(b"rxe");
        let can_invalidate = attributes.device_cap_flags & DEVICE_MEM_MGT_EXTENSIONS != 0;
        self.capabilities = Capabilities {
            completions,
            work_requests: number(attributes.max_qp_wr),
            shared_receives: if attributes.max_srq > 0 { number(attributes.max_srq_wr) } else { 0 },
            reads_answered: byte(attributes.max_qp_rd_atom),
            reads_begun: byte(attributes.max_qp_init_rd_atom),
            inline_bytes: 64,
            send_with_invalidate: can_invalidate && !is_unsafe,
            is_iwarp,
        };
        // SAFETY: the context is alive.
        self.domain = unsafe { (self.functions.ibv_alloc_pd)(self.context) };
        if self.domain.is_null() {
            return Err(last_error("allocating a protection domain"));
        }
        let entries = c_int::try_from(completions).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are alive.
        self.completions = unsafe {
            (self.functions.ibv_create_cq)(self.context, entries, null_mut(), self.notices, 0)
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
        self.capabilities
    }

    fn register(&mut self, len: u32, access: Access) -> Result<Region, ProviderError> {
        self.memory.register(self.domain, len, access)
    }

    fn deregister(&mut self, region: Region) {
        self.memory.deregister(&region);
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        self.memory.register_foreign(self.domain, memory)
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

    fn resolve(&mut self, address: SocketAddr) -> Result<ConnectionId, ProviderError> {
        self.begin_resolving(address)
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
        self.take_event()
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
            return Err(ProviderError { what, why: "there is one already".to_owned() });
        }
        let mut attributes =
            SharedAttributes { context: null_mut(), max_wr: entries, max_sge: 1, srq_limit: 0 };
        // SAFETY: the domain is alive, and the attributes are until the call returns.
        self.shared = unsafe { (self.functions.ibv_create_srq)(self.domain, &raw mut attributes) };
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
        let room = (into.capacity() - into.len()).min(POLL);
        let count = c_int::try_from(room).unwrap_or(0);
        // SAFETY: the completion queue and its context are alive.
        let Some(poll) = (unsafe { (*(*self.completions).context).ops.poll_cq }) else { return };
        // SAFETY: there is room for `count` completions.
        let taken = unsafe { poll(self.completions, count, self.polled.as_mut_ptr()) };
        let taken = usize::try_from(taken).unwrap_or(0).min(room);
        for done in &self.polled[..taken] {
            // Completions of a queue pair that was destroyed may still come.
            let connection =
                self.connections.by_number(done.qp_num).unwrap_or(ConnectionId::NOBODY);
            let is_invalidated = done.status == 0 && done.wc_flags & WC_WITH_INV != 0;
            into.push(Completion {
                connection,
                id: done.wr_id,
                status: WorkStatus(done.status),
                bytes: done.byte_len,
                invalidated: is_invalidated.then_some(done.invalidated_rkey),
            });
        }
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
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
            if !self.domain.is_null() {
                (self.functions.ibv_dealloc_pd)(self.domain);
            }
        }
        if !self.context.is_null() {
            removal::leave(self.context);
        }
        // SAFETY: as above.
        unsafe {
            if !self.anchor.is_null() {
                (self.functions.rdma_destroy_id)(self.anchor);
            }
            (self.functions.rdma_destroy_event_channel)(self.channel);
        }
    }
}
