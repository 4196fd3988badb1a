//! A network of simulated devices in virtual time, deterministic by its seed.
//!
//! A device checks what real devices check: the state of queue pairs, domains, keys, ranges and permissions of both ends, the
//! capacities of queues, RDMA READs at a time, receives that are missing or too short. Bytes are copied at some instant
//! between a post and its completion, so that a buffer that is used too early or given back too early is found. What a
//! correct user of verbs never does is noted in [`Network::misuses`].
//!
//! Delays come from the seed: completions of different queue pairs and events of the connection manager come in any
//! order that a real network allows. [`Faults`] has requests fail, ends connections and removes devices.

mod connecting;
mod engine;
mod memory;
mod random;
mod state;

use std::io::PipeReader;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::foreign::Foreign;
use crate::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event, PairConfig, PostError,
    Provider, ProviderError, RecvWork, Region, SendWork, Slice,
};
use crate::waiting::{Given, Kin, WaitingDevice};
use state::{Node, State, id, index};

/// Bytes of the longest inline request.
const MOST_INLINE: u32 = 64;

/// What kind of devices the network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// RoCE: private data are padded, a message without a receive waits.
    Roce,
    /// iWARP: private data are exact, a message without a receive ends the connection, the host sends first, and memory
    /// for RDMA READs is open to the peer's writes.
    Iwarp,
}

/// How likely it is that things go wrong: one in so many, 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A request that fails because the peer does not answer.
    pub lost_peer: u32,
    /// A batch of requests that is posted in part.
    pub refused_post: u32,
    /// A connection that is refused as stale.
    pub stale: u32,
    /// An accept that does not reach the host.
    pub lost_accept: u32,
    /// A target that is not told that its connection is established.
    pub lost_word: u32,
    /// A step of the network after which a connection is cut.
    pub cut: u32,
    /// A message amid which its connection is cut: it has taken a receive.
    pub cut_message: u32,
    /// A step of the network after which a device is removed.
    pub removal: u32,
}

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub struct NetworkConfig {
    /// All choices follow from it.
    pub seed: u64,
    /// The kind of devices.
    pub profile: Profile,
    /// The longest delay of a step; zero has everything happen in order and at once.
    pub delay: Duration,
    /// How long a message without a receive waits before it is sent again.
    pub not_ready: Duration,
    /// Entries of each device's completion queue.
    pub completions: u32,
    /// Receives that the queue pairs of a device can share; 0: none.
    pub shared_receives: u32,
    /// Devices end the receives of queue pairs that fail, and tell of the last one. Otherwise the receive of a message that
    /// has come in part is lost, as soft RoCE loses it.
    pub tells_last_receive: bool,
    /// Devices say that they tell of the last receive, and never do.
    pub promises_to_tell: bool,
    /// The next queue pair gets the number of the one that was destroyed last.
    pub reuses_numbers: bool,
    /// Requests in one queue of a pair.
    pub work_requests: u32,
    /// RDMA READs at a time that a queue pair begins.
    pub reads_begun: u8,
    /// RDMA READs of the peer at a time that a queue pair answers.
    pub reads_answered: u8,
    /// Devices invalidate keys of the peer with a SEND. Otherwise such a SEND fails, as that of an operation that the device
    /// does not have.
    pub invalidates: bool,
    /// Bytes of inline requests, 64 at most.
    pub inline_bytes: u32,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            profile: Profile::Roce,
            delay: Duration::ZERO,
            not_ready: Duration::from_millis(1),
            completions: 1 << 16,
            shared_receives: 1 << 12,
            tells_last_receive: true,
            promises_to_tell: false,
            reuses_numbers: false,
            work_requests: 1 << 14,
            reads_begun: 16,
            reads_answered: 16,
            invalidates: true,
            inline_bytes: 64,
            faults: Faults::default(),
        }
    }
}

/// What one core has of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreUse {
    /// Queue pairs whose completions come here.
    pub pairs: usize,
    /// Those among them that take receives from the core's shared queue.
    pub sharing: usize,
    /// Room in the core's shared receive queue; 0: there is none.
    pub shared_receives: u32,
    /// Receives in it that no message has taken.
    pub posted: usize,
    /// Requests of other cores that were taken over.
    pub taken: usize,
    /// Bytes of memory that it has registered.
    pub registered: usize,
    /// Protection domains that it has opened, and not closed.
    pub domains: usize,
}

/// What happens to one queue pair, and to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The network ends its connection.
    Cut,
    /// The peer's next RDMA READ or WRITE has a key that is not valid.
    BadKey,
    /// Messages of the peer find no receive any longer.
    NoReceives,
}

/// The network. Its devices may be on different threads; whoever calls [`Network::step`] drives all of them.
#[derive(Clone, Debug)]
pub struct Network(Shared);

/// The state that the network and its devices have in common. Each call holds it for one operation only.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// A thread that has panicked while it held the state ends the test anyway.
    ///
    /// No call of an adapter puts its caller to sleep, so none does here: a thread that counts its sleeps would count
    /// those for a lock that no real adapter has.
    fn lock(&self) -> MutexGuard<'_, State> {
        loop {
            match self.0.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(state)) => return state.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }
}

impl Network {
    /// A network without devices.
    #[must_use]
    pub fn new(config: NetworkConfig) -> Self {
        Self(Shared(Arc::new(Mutex::new(State::new(config)))))
    }

    /// Adds a device.
    ///
    /// # Panics
    /// When this process can open no more files: each device has a pipe for those who wait for it.
    #[must_use]
    pub fn add_device(&self) -> FakeDevice {
        let (bell, ringer) = std::io::pipe().expect("a pipe");
        let node = self.0.lock().add_node(ringer, None);
        FakeDevice { network: self.0.clone(), node, bell }
    }

    /// Does the next step; gives whether there was one. Time goes on to the step's time.
    pub fn step(&self) -> bool {
        self.0.lock().step()
    }

    /// The time of the last step.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.lock().now)
    }

    /// Lets time pass without steps before it.
    pub fn advance_to(&self, now: Duration) {
        let mut state = self.0.lock();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        state.now = state.now.max(now);
    }

    /// What was done that no correct user of verbs does.
    #[must_use]
    pub fn misuses(&self) -> Vec<String> {
        self.0.lock().misuses.clone()
    }

    /// Times that a message has found no receive, those that were sent again included.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.0.lock().waits
    }

    /// Registrations and protection domains that are left, and connections.
    #[must_use]
    pub fn leftovers(&self) -> (usize, usize) {
        self.0.lock().leftovers()
    }

    /// The registered memory of the device that listens at an address, and what is in it.
    #[must_use]
    pub fn memory_of(&self, address: SocketAddr) -> Vec<(Region, Vec<u8>)> {
        let state = self.0.lock();
        let nodes = state.nodes_at(address);
        nodes.into_iter().flat_map(|node| state.nodes[node].memory.all()).collect()
    }

    /// The registered memory of the device with this number, as one core uses it, and what is in it.
    #[must_use]
    pub fn memory_numbered(&self, number: usize) -> Vec<(Region, Vec<u8>)> {
        self.0.lock().nodes[number].memory.all()
    }

    /// What each core has of the device that listens at an address, in the order in which they have opened it.
    #[must_use]
    pub fn cores_of(&self, address: SocketAddr) -> Vec<CoreUse> {
        let state = self.0.lock();
        let nodes = state.nodes_at(address);
        nodes.into_iter().map(|node| state.core_use(node)).collect()
    }

    /// Whether devices refuse to register memory of their own from now on.
    pub fn refuse_memory(&self, refuses: bool) {
        self.0.lock().refuses_memory = refuses;
    }

    /// Whether devices refuse to make protection domains from now on.
    pub fn refuse_domains(&self, refuses: bool) {
        self.0.lock().refuses_domains = refuses;
    }

    /// How often they have refused memory.
    #[must_use]
    pub fn memory_refusals(&self) -> u64 {
        self.0.lock().memory_refusals
    }

    /// Where the connections of hosts were told to come from, in the order in which they began.
    #[must_use]
    pub fn sources(&self) -> Vec<Option<SocketAddr>> {
        let state = self.0.lock();
        state.pairs.iter().filter(|pair| pair.is_active).map(|pair| pair.source).collect()
    }

    /// Nothing goes wrong by itself from now on.
    pub fn stop_faults(&self) {
        self.0.lock().config.faults = Faults::default();
    }

    /// What the device with this number has, as one core uses it.
    #[must_use]
    pub fn core_numbered(&self, number: usize) -> CoreUse {
        self.0.lock().core_use(number)
    }

    /// Whether the device with this number tells of no news from now on: who wants to know of completions polls.
    pub fn mute_numbered(&self, number: usize, is_mute: bool) {
        self.0.lock().nodes[number].is_mute = is_mute;
    }

    /// Times that the user of the device with this number has asked for more than completions: for events, or to be told of
    /// news. A real device needs system calls for that.
    #[must_use]
    pub fn looks_numbered(&self, number: usize) -> u64 {
        self.0.lock().nodes[number].looks
    }

    /// Makes trouble for a queue pair of the device with this number: the first that there is, or a later one.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn make_trouble(&self, number: usize, nth: usize, trouble: Trouble) {
        self.0.lock().make_trouble(number, nth, trouble);
    }

    /// Cuts all connections.
    pub fn cut_all(&self) {
        self.0.lock().cut_all_of(|_| true);
    }

    /// Cuts the connections of the device with this number.
    pub fn cut_numbered(&self, number: usize) {
        self.0.lock().cut_all_of(|pair| pair.node == number);
    }

    /// Removes the device that listens at an address, and is there.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove_listening(&self, address: SocketAddr) {
        let mut state = self.0.lock();
        let listens = |node: &Node| !node.is_removed && node.listeners.contains(&address);
        let node = state.nodes.iter().position(listens);
        state.remove_device(node.expect("a device listens there"));
    }

    /// Whether SENDs that invalidate keys fail from now on, although devices say that they can.
    pub fn fail_invalidation(&self, fails: bool) {
        self.0.lock().fails_invalidation = fails;
    }

    /// Another device has an address from now on, as after a failover of a bond. The one that listens there, and is there, hears
    /// of it, and nobody reaches it any more. Its connections stay.
    ///
    /// # Panics
    /// When there is none.
    pub fn move_address(&self, address: SocketAddr) {
        let mut state = self.0.lock();
        let listens = |node: &Node| !node.is_removed && node.listeners.contains(&address);
        let node = state.nodes.iter().position(listens).expect("a device listens there");
        let device = state.nodes[node].device;
        for node in state.nodes.iter_mut().filter(|node| node.device == device) {
            node.listeners.clear();
            node.events.push_back(Event::AddressMoved);
            node.ring();
        }
    }

    /// Removes a device.
    pub fn remove(&self, device: &FakeDevice) {
        self.remove_numbered(device.number());
    }

    /// Takes the device with this number away, as [`Self::remove`] does.
    pub fn remove_numbered(&self, number: usize) {
        self.0.lock().remove_device(number);
    }
}

/// One simulated device.
#[derive(Debug)]
pub struct FakeDevice {
    network: Shared,
    node: usize,
    /// Has one byte in it while there are news.
    bell: PipeReader,
}

impl FakeDevice {
    /// The device's number in its network.
    #[must_use]
    pub fn number(&self) -> usize {
        self.node
    }

    /// A key for a part of a registration, which a peer may invalidate: what a kernel's fast registration makes.
    ///
    /// # Panics
    /// When the part is not within the registration.
    #[must_use]
    pub fn bind(&mut self, region: &Region, offset: u32, len: u32, access: Access) -> u32 {
        self.network.lock().nodes[self.node].memory.bind(region, offset, len, access)
    }

    /// Ends a key of [`Self::bind`] from this end.
    pub fn unbind(&mut self, key: u32) {
        self.network.lock().nodes[self.node].memory.unbind(key);
    }

    /// Where the data of the peer's RDMA READs went, the last one first: the requests of iWARP say it (RFC 5040, 4.4).
    #[must_use]
    pub fn sinks(&self, connection: ConnectionId) -> Vec<Slice> {
        let state = self.network.lock();
        state.pairs[index(connection)].sinks.iter().copied().collect()
    }

    /// Its completion queue has so many entries, instead of those of the network's configuration.
    pub fn set_completions(&mut self, entries: u32) {
        self.network.lock().nodes[self.node].capacity = entries;
    }

    /// Others learn this address of the device. Without one, they learn none.
    pub fn set_address(&mut self, address: IpAddr) {
        self.network.lock().nodes[self.node].address = Some(address);
    }

    /// Whether nothing arrives that is sent to the device: the senders try again and again, as they do when a host posts no
    /// receives.
    pub fn take_nothing(&mut self, takes_nothing: bool) {
        self.network.lock().nodes[self.node].takes_nothing = takes_nothing;
    }

    /// The next message of a connection stops when a part of it has come: it has a receive of the peer, and the rest is never
    /// sent.
    pub fn stop_amid_message(&mut self, connection: ConnectionId) {
        self.network.lock().pairs[index(connection)].stops_amid = true;
    }

    /// Cuts one connection.
    pub fn cut(&mut self, connection: ConnectionId) {
        self.network.lock().cut(index(connection));
    }

    /// Posts a request as it is, of a user that does not keep to rules.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn post_raw(&mut self, connection: ConnectionId, work: SendWork) -> Result<(), PostError> {
        self.network.lock().post_send(self.node, connection, &[work], true)
    }
}

impl Drop for FakeDevice {
    /// Nobody listens any longer where it did.
    fn drop(&mut self) {
        self.network.lock().nodes[self.node].listeners.clear();
    }
}

impl Provider for FakeDevice {
    fn name(&self) -> &str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        let state = self.network.lock();
        Capabilities {
            completions: state.nodes[self.node].capacity,
            work_requests: state.config.work_requests,
            shared_receives: state.config.shared_receives,
            tells_last_receive: state.config.tells_last_receive || state.config.promises_to_tell,
            reads_answered: state.config.reads_answered,
            reads_begun: state.config.reads_begun,
            inline_bytes: state.config.inline_bytes.min(MOST_INLINE),
            send_with_invalidate: state.config.invalidates
                && !state.nodes[self.node].invalidation.fails(),
            is_iwarp: state.config.profile == Profile::Iwarp,
        }
    }

    fn open_domain(&mut self) -> Result<DomainId, ProviderError> {
        let what = "allocating a protection domain";
        let mut state = self.network.lock();
        if state.nodes[self.node].is_removed {
            return Err(gone(what));
        }
        if state.refuses_domains {
            return Err(ProviderError::new(what, "the device has no more"));
        }
        Ok(state.nodes[self.node].memory.open_domain())
    }

    fn close_domain(&mut self, domain: DomainId) {
        self.network.lock().close_domain(self.node, domain);
    }

    fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError> {
        let mut state = self.network.lock();
        if state.nodes[self.node].is_removed {
            return Err(gone("registering memory"));
        }
        if state.refuses_memory {
            state.memory_refusals += 1;
            return Err(ProviderError::new("registering memory", "there is no memory"));
        }
        if !state.nodes[self.node].memory.has_domain(domain) {
            state.misuse("memory is registered in a domain that is closed");
            return Err(ProviderError::new("registering memory", "there is no such domain"));
        }
        Ok(state.nodes[self.node].memory.register(domain, len, access))
    }

    fn deregister(&mut self, region: Region) {
        let mut state = self.network.lock();
        state.check_unused(self.node, region.lkey);
        if !state.nodes[self.node].memory.deregister(&region) {
            state.misuse("a registration was ended twice");
        }
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        let mut state = self.network.lock();
        if state.nodes[self.node].is_removed {
            return Err(gone("registering memory of others"));
        }
        Ok(state.nodes[self.node].memory.register_foreign(memory))
    }

    fn deregister_foreign(&mut self, lkey: u32) {
        let mut state = self.network.lock();
        state.check_unused(self.node, lkey);
        if !state.nodes[self.node].memory.deregister_foreign(lkey) {
            state.misuse("a registration of memory of others was ended twice");
        }
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        self.network.lock().nodes[self.node].memory.copy_out(region, offset, into);
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        fill(self.network.lock().nodes[self.node].memory.lend(region, offset, len));
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        self.network.lock().nodes[self.node].memory.copy_in(region, offset, bytes);
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(), ProviderError> {
        self.network.lock().listen(self.node, address)
    }

    fn stop_listening(&mut self) {
        self.network.lock().nodes[self.node].listeners.clear();
    }

    fn resolve(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        self.network.lock().resolve(self.node, address, source)
    }

    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        self.network.lock().create_pair(self.node, connection, config)
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.network.lock().connect(self.node, connection, private, reads)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.network.lock().accept(self.node, connection, private, reads)
    }

    fn reject(&mut self, connection: ConnectionId, private: &[u8]) {
        self.network.lock().reject(self.node, connection, private);
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.network.lock().disconnect(self.node, connection);
    }

    fn destroy(&mut self, connection: ConnectionId) {
        self.network.lock().destroy(self.node, connection);
    }

    fn next_event(&mut self) -> Option<Event> {
        let mut state = self.network.lock();
        let node = &mut state.nodes[self.node];
        node.looks += 1;
        node.events.pop_front()
    }

    fn note_invalidation(&self) {
        self.network.lock().nodes[self.node].invalidation.note_success();
    }

    fn note_failed_invalidation(&self) {
        self.network.lock().nodes[self.node].invalidation.note_failure();
    }

    fn peer(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let state = self.network.lock();
        let peer = state.pairs[index(connection)].peer?;
        let source = state.pairs[peer].source.map(|source| source.ip());
        let address = source.or(state.nodes[state.pairs[peer].node].address)?;
        // Ports begin above those of services; each connection has one.
        let port = 1024 + u16::try_from(peer % 60_000).unwrap_or(0);
        Some(SocketAddr::new(address, port))
    }

    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        self.network.lock().post_send(self.node, connection, work, false)
    }

    fn post_recv(&mut self, connection: ConnectionId, work: &[RecvWork]) -> Result<(), PostError> {
        self.network.lock().post_recv(self.node, connection, work)
    }

    fn share_receives(&mut self, entries: u32) -> Result<(), ProviderError> {
        self.network.lock().share_receives(self.node, entries)
    }

    fn unshare_receives(&mut self) {
        self.network.lock().unshare_receives(self.node);
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        self.network.lock().post_shared(self.node, work)
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        self.network.lock().poll(self.node, into);
    }
}

impl WaitingDevice for FakeDevice {
    fn news(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn arm(&mut self) {
        let mut state = self.network.lock();
        state.nodes[self.node].looks += 1;
        if std::mem::take(&mut state.nodes[self.node].has_rung) {
            // One byte is in the pipe, so this does not wait.
            let mut byte = [0];
            if std::io::Read::read_exact(&mut self.bell, &mut byte).is_err() {
                state.misuse("a device's bell is gone");
            }
        }
    }

    fn kin(&self) -> Option<Kin> {
        let (network, device) = (self.network.clone(), self.node);
        Some(Box::new(move || {
            let failed = |error: std::io::Error| {
                ProviderError::new("opening the device for another core", error.to_string())
            };
            let (bell, ringer) = std::io::pipe().map_err(failed)?;
            let mut state = network.lock();
            if state.nodes[device].is_removed {
                return Err(gone("opening the device for another core"));
            }
            let device = state.nodes[device].device;
            let node = state.add_node(ringer, Some(device));
            drop(state);
            Ok(Box::new(FakeDevice { network: network.clone(), node, bell }) as _)
        }))
    }

    fn give(&mut self, request: ConnectionId) -> Option<Given> {
        let state = self.network.lock();
        let pair = state.pairs.get(index(request))?;
        let is_request = pair.node == self.node && pair.config.is_none() && !pair.is_active;
        drop(state);
        let pair = is_request.then_some(index(request))?;
        Some(Given::new(Request { network: self.network.clone(), pair: Some(pair) }))
    }

    fn take(&mut self, request: Given) -> Result<ConnectionId, ProviderError> {
        let Some(mut request) = request.into_kind::<Request>() else {
            let why = "it is no simulated device's";
            return Err(ProviderError::new("taking a request over", why));
        };
        let Some(pair) = request.pair else { return Err(gone("taking a request over")) };
        let given = self.network.lock().give_to(pair, self.node);
        // An error drops the request, which takes the lock.
        given?;
        request.pair = None;
        Ok(id(pair))
    }
}

/// A request that nobody has answered, between two cores.
struct Request {
    network: Shared,
    /// `None`: somebody has taken it over.
    pair: Option<usize>,
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(pair) = self.pair else { return };
        let mut state = self.network.lock();
        let node = state.pairs[pair].node;
        state.reject(node, id(pair), Given::last_words().as_bytes());
        state.destroy(node, id(pair));
    }
}

fn gone(what: &'static str) -> ProviderError {
    ProviderError::new(what, "the device is gone")
}
