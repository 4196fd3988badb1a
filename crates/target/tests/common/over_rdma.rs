//! The same host as `mod.rs` has, over RDMA: one queue pair of a simulated network, and memory of its own for each command.
//!
//! The network is one for the whole program. What a device does not allow fails the test that sees it.
#![allow(dead_code, unreachable_pub, missing_docs, unused_macros)] // each test uses a part of it
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod basics;
pub mod chap;
mod commands;
#[path = "../rdma/host.rs"]
mod fabric;
pub mod hosts;
mod profile;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use raceline_proto::nvme::opcode::fabrics;
use raceline_proto::nvme::{CommandId, Direction, QueueId, Sqe};
use raceline_proto::rdma::{KeyedBlock, QueueRequest};
use raceline_proto::tcp::R2tGrant;
use raceline_rdma::fake::{FakeDevice, NetworkConfig};
use raceline_rdma::verbs::{Access, ConnectionId, DomainId, Provider, Region};
use raceline_rdma::{
    ConnectConfig, ConnectError, HostEvent, HostPort, HostPortEvent, HostTransfer, SubmitError,
};
use raceline_target::{Entrance, RdmaConfig, RdmaStreams, TargetConfig};

pub use basics::*;
use fabric::Fabric;

/// What has no meaning over RDMA: R2Ts, digests, bytes and sockets of TCP.
macro_rules! tcp_only {
    ($($item:item)*) => {};
}

/// Bytes of data in a capsule of an I/O queue, as the target has them.
const IN_CAPSULE: usize = 4096;
/// Entries that a queue pair can have; a target may want fewer.
const MOST_ENTRIES: u16 = 512;

static FABRIC: LazyLock<Fabric> = LazyLock::new(|| {
    let profile = profile::of_environment();
    Fabric::new(NetworkConfig { profile, ..NetworkConfig::default() })
});
static STREAMS: LazyLock<Arc<RdmaStreams>> = LazyLock::new(|| {
    let config = TargetConfig { max_queue_entries: MOST_ENTRIES, ..config(1) };
    // Who withholds its data takes nothing until the test goes on.
    FABRIC.streams_of(RdmaConfig { stuck_after: 4 * PATIENCE, ..RdmaConfig::of(&config) })
});
static PORTS: AtomicU16 = AtomicU16::new(20_000);

/// What a host without a limit does at least: over TCP, and over this network, which an unoptimised program simulates.
pub fn unlimited(_over_tcp: u64, here: u64) -> u64 {
    here
}

/// PDUs that answer a read: its data and its response, because RDMA has no response in the header of data.
pub const ANSWERS_OF_A_READ: u64 = 2;

/// Commands that a test of rates keeps under way for each that it keeps over TCP: every step of this network waits until a
/// thread has its turn, several for each command.
pub const DEEPER: usize = 4;

/// Where a new listener goes: nobody else of this program is there.
pub fn any_address() -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1].into(), PORTS.fetch_add(1, Ordering::Relaxed))
}

/// Waits until the target has before it what was sent.
pub fn settle() {
    FABRIC.settle();
}

/// How its hosts come in.
pub fn entrance() -> Entrance {
    Entrance { streams: Some(Arc::clone(&*STREAMS) as _), ..Entrance::default() }
}

/// Whether somebody listens there.
pub fn is_reachable(address: SocketAddr) -> bool {
    let mut host = RawHost::open(address, Wants::default());
    host.dial(QueueId::ADMIN, 32).is_ok()
}

/// Hosts that begin to connect and go no further. They are fewer than over TCP, because the network is simulated.
pub struct Crowd {
    address: SocketAddr,
}

impl Crowd {
    /// How many come.
    pub const SIZE: usize = 500;
    /// How many stay at the same time: as many as the target has early ones, and as many again.
    pub const STAY: usize = 128;
    /// Early connections that the target has.
    pub const EARLY: usize = 64;

    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// The host of this number: some ask for a queue pair and do not look at the answer, some stop when they have it, most
    /// after Connect, with the name of the real host. `None`: it was sent away.
    pub fn come(&self, number: usize) -> Option<RawHost> {
        let mut host = RawHost::open_from(source_of(number), self.address, Wants::default());
        let id = host.ask(QueueId::ADMIN, 32).ok()?;
        let step = number % 4;
        if step == 0 {
            return Some(host);
        }
        host.dialed(id).ok()?;
        host.connection = Some((id, QueueId::ADMIN));
        if step > 1 {
            let (words, data) = connect_words();
            host.submit_write(words, zerocopy::IntoBytes::as_bytes(&data));
        }
        Some(host)
    }
}

/// The memory of a command, and whether data come into it.
struct Memory {
    region: Region,
    reads: bool,
}

/// One queue, which connects with its first command.
pub struct RawHost {
    port: HostPort<FakeDevice>,
    address: SocketAddr,
    connection: Option<(ConnectionId, QueueId)>,
    memory: BTreeMap<CommandId, Memory>,
    fresh: VecDeque<Heard>,
    is_closed: bool,
    checked: Instant,
    pub heard: Vec<Heard>,
}

impl RawHost {
    /// The digests and paddings of TCP are not there.
    pub fn open(address: SocketAddr, _: Wants) -> Self {
        LazyLock::force(&FABRIC);
        Self {
            port: HostPort::new(FABRIC.network.add_device()),
            address,
            connection: None,
            memory: BTreeMap::new(),
            fresh: VecDeque::new(),
            is_closed: false,
            checked: Instant::now(),
            heard: Vec::new(),
        }
    }

    /// The same with this address.
    pub fn open_from(source: [u8; 4], address: SocketAddr, wants: Wants) -> Self {
        let mut host = Self::open(address, wants);
        host.port.provider().set_address(source.into());
        host
    }

    /// Asks for a queue pair for this queue.
    fn ask(&mut self, qid: QueueId, entries: u16) -> Result<ConnectionId, ConnectError> {
        // What is wrong with the queue itself is for Connect to find.
        let entries = entries.clamp(2, if qid.is_admin() { 32 } else { MOST_ENTRIES });
        let request =
            QueueRequest { qid, receives: entries, entries: entries.into(), cntlid: None };
        let in_capsule = if qid.is_admin() { 0 } else { u32::try_from(IN_CAPSULE).unwrap() };
        let config = ConnectConfig {
            address: self.address,
            source: None,
            domain: DomainId::OWN,
            request,
            capsule_len: 64 + in_capsule,
        };
        self.port.connect(config, Instant::now())
    }

    /// Gets a queue pair for this queue.
    fn dial(&mut self, qid: QueueId, entries: u16) -> Result<ConnectionId, ConnectError> {
        let start = Instant::now();
        loop {
            let id = self.ask(qid, entries)?;
            match self.dialed(id) {
                Ok(()) => {
                    self.connection = Some((id, qid));
                    return Ok(id);
                }
                Err(error) if error.is_transient() && start.elapsed() < PATIENCE => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn dialed(&mut self, id: ConnectionId) -> Result<(), ConnectError> {
        loop {
            self.turn();
            if let Some((of, event)) = self.port.poll_event() {
                match event {
                    HostPortEvent::Connected if of == id => return Ok(()),
                    HostPortEvent::Failed(error) if of == id => return Err(error),
                    other => panic!("{other:?} while connecting"),
                }
            }
        }
    }

    /// What there is to do, or a moment of rest.
    fn turn(&mut self) {
        let now = Instant::now();
        if !self.port.poll(now) {
            std::thread::sleep(Duration::from_micros(50));
        }
        if now > self.checked + Duration::from_secs(1) {
            self.checked = now;
            self.port.check_deadlines(now);
            let misuses = FABRIC.network.misuses();
            assert!(misuses.is_empty(), "{misuses:?}");
        }
    }

    /// Memory for the data of a command, with these bytes in it, and as the controller is told of it.
    fn register(&mut self, data: &[u8]) -> (Region, KeyedBlock) {
        let len = u32::try_from(data.len()).unwrap();
        let region = self.port.provider().register(DomainId::OWN, len, Access::HOST_DATA).unwrap();
        self.port.provider().write(&region, 0, data);
        (region, KeyedBlock { address: region.address, len, key: region.rkey })
    }

    /// The queue pair: for the words of Connect that come first, or of an admin queue.
    fn connection_for(&mut self, sqe: &Sqe) -> (ConnectionId, QueueId) {
        if let Some(connection) = self.connection {
            return connection;
        }
        let is_connect = sqe.opc == fabrics::OPCODE && sqe.fctype() == fabrics::CONNECT;
        let words = raceline_proto::nvme::fabrics::ConnectWords::parse(sqe);
        let (qid, entries) = match is_connect {
            true => (words.qid, words.sqsize.saturating_add(1)),
            false => (QueueId::ADMIN, 32),
        };
        let id = self.dial(qid, entries).unwrap();
        (id, qid)
    }

    fn queue(&mut self, sqe: &Sqe, transfer: HostTransfer<'_>) -> CommandId {
        let (id, _) = self.connection_for(sqe);
        let start = Instant::now();
        while let Some((queue, provider)) = self.port.queue(id) {
            match queue.submit(provider, sqe, transfer) {
                Ok(cid) => return cid,
                // The last capsule may still be on its way, although its response is here.
                Err(SubmitError::Full) if start.elapsed() < PATIENCE => self.hear(),
                Err(SubmitError::Lost) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        // As a socket takes what nobody will read: the end of the connection is the next that is heard.
        CommandId(u16::MAX)
    }

    fn submit_keyed(&mut self, sqe: Sqe, data: &[u8], reads: bool) -> CommandId {
        let (region, block) = self.register(data);
        let cid = self.queue(&sqe, HostTransfer::Keyed { block, invalidate: false });
        self.memory.insert(cid, Memory { region, reads });
        self.port.post();
        cid
    }

    /// Sends a command; gives its identifier. Data that the controller reads are zeroes.
    pub fn submit(&mut self, sqe: Sqe, direction: Direction, len: u32) -> CommandId {
        if direction == Direction::None || len == 0 {
            let cid = self.queue(&sqe, HostTransfer::None);
            self.port.post();
            return cid;
        }
        let reads = direction == Direction::ControllerToHost;
        self.submit_keyed(sqe, &vec![0; usize::try_from(len).unwrap()], reads)
    }

    /// Sends a command whose data the controller reads from memory.
    pub fn submit_write(&mut self, sqe: Sqe, data: &[u8]) -> CommandId {
        self.submit_keyed(sqe, data, false)
    }

    fn submit_later(&mut self, sqe: Sqe, data: &[u8]) -> CommandId {
        let (_, qid) = self.connection_for(&sqe);
        if qid.is_admin() || sqe.opc == fabrics::OPCODE || data.len() > IN_CAPSULE {
            let (region, block) = self.register(data);
            let cid = self.queue(&sqe, HostTransfer::Keyed { block, invalidate: false });
            self.memory.insert(cid, Memory { region, reads: false });
            return cid;
        }
        self.queue(&sqe, HostTransfer::InCapsule(data))
    }

    /// Sends a command with its data in the capsule, if a capsule has them.
    pub fn submit_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> CommandId {
        let cid = self.submit_later(sqe, data);
        self.port.post();
        cid
    }

    /// Sends these commands at once, with their data in their capsules.
    pub fn submit_all(&mut self, commands: &[(Sqe, &[u8])]) -> Vec<CommandId> {
        let cids = commands.iter().map(|(sqe, data)| self.submit_later(*sqe, data)).collect();
        self.port.post();
        cids
    }

    /// The controller reads the data of writes for itself. From now on nothing of that reaches the host, or all does again.
    pub fn keep_data(&mut self, keeps: bool) {
        self.port.provider().take_nothing(keeps);
    }

    /// RDMA grants nothing. Hosts that submit later come later, so this one has its buffers first.
    pub fn grants(&mut self, _writes: usize) -> Vec<Heard> {
        Vec::new()
    }

    /// RDMA grants nothing: the controller reads for itself.
    pub fn send_data(&mut self, grant: &R2tGrant, _: &[u8]) {
        unreachable!("{grant:?} over RDMA");
    }

    /// The controller reads the data for itself: they come in the pieces of its RDMA READs.
    pub fn write_in_pieces(&mut self, sqe: Sqe, data: &[u8], _pdu: u32, _piece: usize) -> Answer {
        self.write_command(sqe, data, false)
    }

    /// The network knows its hosts by no address.
    pub fn own_address(&self) -> Option<SocketAddr> {
        None
    }

    /// The next event.
    pub fn listen(&mut self) -> Heard {
        let start = Instant::now();
        loop {
            if let Some(heard) = self.fresh.pop_front() {
                return heard;
            }
            if self.is_closed {
                return Heard::Closed;
            }
            assert!(start.elapsed() < PATIENCE, "nothing from the target");
            self.hear();
        }
    }

    /// Takes what has come.
    fn hear(&mut self) {
        self.turn();
        while let Some((_, event)) = self.port.poll_event() {
            match event {
                HostPortEvent::Queue(HostEvent::Completed { cid, cqe, .. }) => {
                    if let Some(Memory { region, reads }) = self.memory.remove(&cid) {
                        if reads && cqe.status.is_success() {
                            let mut bytes = vec![0; usize::try_from(region.len).unwrap()];
                            self.port.provider().read(&region, 0, &mut bytes);
                            self.fresh.push_back(Heard::Data { cid, offset: 0, bytes });
                        }
                        self.port.provider().deregister(region);
                    }
                    self.fresh.push_back(Heard::Response(cqe));
                }
                HostPortEvent::Closed => self.is_closed = true,
                HostPortEvent::Queue(HostEvent::Lost(_) | HostEvent::Ended(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A host that is gone: the target hears of it, and nothing reaches memory any more.
impl Drop for RawHost {
    fn drop(&mut self) {
        self.port.abandon();
        for (_, memory) in std::mem::take(&mut self.memory) {
            self.port.provider().deregister(memory.region);
        }
    }
}
