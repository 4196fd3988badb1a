//! A network of simulated devices in virtual time, deterministic by its seed.
//!
//! A device checks what real devices check: the state of queue pairs, keys, ranges and permissions of both ends, the
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::foreign::Foreign;
use crate::verbs::{
    Access, Capabilities, Completion, ConnectionId, Event, PairConfig, PostError, Provider,
    ProviderError, RecvWork, Region, SendWork, Slice,
};
use crate::waiting::WaitingDevice;
use state::{Node, State, index};

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
    /// A step of the network after which a connection is cut.
    pub cut: u32,
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
    /// RDMA READs at a time on a queue pair.
    pub reads: u8,
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
            reads: 16,
            faults: Faults::default(),
        }
    }
}

/// The network. Its devices may be on different threads; whoever calls [`Network::step`] drives all of them.
#[derive(Clone, Debug)]
pub struct Network(Shared);

/// The state that the network and its devices have in common. Each call holds it for one operation only.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// A thread that has panicked while it held the state ends the test anyway.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let node = self.0.lock().add_node(ringer);
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

    /// Registrations and connections that are left.
    #[must_use]
    pub fn leftovers(&self) -> (usize, usize) {
        self.0.lock().leftovers()
    }

    /// The registered memory of the device that listens at an address, and what is in it.
    #[must_use]
    pub fn memory_of(&self, address: SocketAddr) -> Vec<(Region, Vec<u8>)> {
        let state = self.0.lock();
        let listens = |node: &&Node| !node.is_removed && node.listeners.contains(&address);
        state.nodes.iter().find(listens).map_or(Vec::new(), |node| node.memory.all())
    }

    /// Whether devices refuse to register memory of their own from now on.
    pub fn refuse_memory(&self, refuses: bool) {
        self.0.lock().refuses_memory = refuses;
    }

    /// How often they have refused it.
    #[must_use]
    pub fn memory_refusals(&self) -> u64 {
        self.0.lock().memory_refusals
    }

    /// Nothing goes wrong by itself from now on.
    pub fn stop_faults(&self) {
        self.0.lock().config.faults = Faults::default();
    }

    /// Cuts all connections.
    pub fn cut_all(&self) {
        self.0.lock().cut_all();
    }

    /// Removes the device that listens at an address, and is there.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove_listening(&self, address: SocketAddr) {
        let mut state = self.0.lock();
        let listens = |node: &Node| !node.is_removed && node.listeners.contains(&address);
        let node = state.nodes.iter().position(listens);
        state.remove_node(node.expect("a device listens there"));
    }

    /// Removes a device.
    pub fn remove(&self, device: &FakeDevice) {
        self.0.lock().remove_node(device.node);
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

    /// Others learn this address of the device. Without one, they learn none.
    pub fn set_address(&mut self, address: IpAddr) {
        self.network.lock().nodes[self.node].address = Some(address);
    }

    /// Whether nothing arrives that is sent to the device: the senders try again and again, as they do when a host posts no
    /// receives.
    pub fn take_nothing(&mut self, takes_nothing: bool) {
        self.network.lock().nodes[self.node].takes_nothing = takes_nothing;
    }

    /// Posts a request as it is, of a user that does not keep to rules.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn post_raw(&mut self, connection: ConnectionId, work: SendWork) -> Result<(), PostError> {
        self.network.lock().post_send(self.node, connection, &[work], true)
    }
}

impl Provider for FakeDevice {
    fn name(&self) -> &str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        let state = self.network.lock();
        Capabilities {
            completions: state.config.completions,
            work_requests: 1 << 14,
            shared_receives: state.config.shared_receives,
            reads_answered: state.config.reads,
            reads_begun: state.config.reads,
            inline_bytes: 64,
            send_with_invalidate: true,
            is_iwarp: state.config.profile == Profile::Iwarp,
        }
    }

    fn register(&mut self, len: u32, access: Access) -> Result<Region, ProviderError> {
        let mut state = self.network.lock();
        if state.nodes[self.node].is_removed {
            return Err(gone("registering memory"));
        }
        if state.refuses_memory {
            state.memory_refusals += 1;
            let why = "there is no memory".to_owned();
            return Err(ProviderError { what: "registering memory", why });
        }
        Ok(state.nodes[self.node].memory.register(len, access))
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

    fn resolve(&mut self, address: SocketAddr) -> Result<ConnectionId, ProviderError> {
        self.network.lock().resolve(self.node, address)
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
        self.network.lock().nodes[self.node].events.pop_front()
    }

    fn peer(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let state = self.network.lock();
        let peer = state.pairs[index(connection)].peer?;
        let address = state.nodes[state.pairs[peer].node].address?;
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
        if std::mem::take(&mut state.nodes[self.node].has_rung) {
            // One byte is in the pipe, so this does not wait.
            let mut byte = [0];
            if std::io::Read::read_exact(&mut self.bell, &mut byte).is_err() {
                state.misuse("a device's bell is gone");
            }
        }
    }
}

fn gone(what: &'static str) -> ProviderError {
    ProviderError { what, why: "the device is gone".to_owned() }
}
