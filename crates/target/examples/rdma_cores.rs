//! How many reads of 4 KiB per second the cores of a target answer over RDMA, when the device costs next to nothing.
//!
//! `cargo run --release -p raceline-target --example rdma_cores -- [CORES] [SECONDS] [QUEUES]`
//!
//! The device has no network and shares nothing between cores: it takes a response for received at once, and the host's next
//! command is there at once. So what is counted is the target, and what its cores wait for.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{fabrics, io};
use raceline_proto::nvme::{ControllerId, Cqe, HostId, Nqn, QueueId, Sqe};
use raceline_proto::rdma::{KeyedBlock, QueueRequest, WorkStatus};
use raceline_rdma::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event, Operation, PairConfig,
    PostError, Provider, ProviderError, RecvWork, Region, SendWork, Slice,
};
use raceline_rdma::waiting::{Given, Kin};
use raceline_rdma::{Foreign, WaitingDevice};
use raceline_reactor::Mode;
use raceline_target::{
    NamespaceConfig, RdmaConfig, RdmaStreams, SubsystemConfig, Target, TargetConfig,
};
use zerocopy::{FromBytes, IntoBytes};

const SUBNQN: &str = "nqn.2026-01.io.raceline:cores";
/// Commands of an I/O queue at a time.
const DEPTH: u16 = 32;
/// Answers that a queue counts for itself before it tells the others.
const UNTOLD: u64 = 64;

/// What all devices know.
#[derive(Debug)]
struct Plan {
    address: SocketAddr,
    /// I/O queues.
    queues: u32,
    is_enabled: AtomicBool,
    cntlid: AtomicU16,
    asked: AtomicU32,
    answered: AtomicU64,
}

/// A host's queue.
#[derive(Debug, Default)]
struct Queue {
    is_connected: bool,
    answered: u64,
}

/// What one core has of the device, with the hosts of its queues.
#[derive(Debug)]
struct Device {
    plan: Arc<Plan>,
    listens: bool,
    memory: HashMap<u32, Box<[u8]>>,
    foreign: Vec<Foreign>,
    next_key: u32,
    receives: VecDeque<RecvWork>,
    queues: HashMap<u32, Queue>,
    completions: VecDeque<Completion>,
    events: VecDeque<Event>,
    bell: (PipeReader, PipeWriter),
    has_rung: bool,
}

fn index(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Entries of a queue: one more than the commands at a time.
fn entries(qid: QueueId) -> u16 {
    if qid.is_admin() { 32 } else { DEPTH + 1 }
}

impl Device {
    fn open(plan: &Arc<Plan>) -> std::io::Result<Self> {
        Ok(Self {
            plan: Arc::clone(plan),
            listens: false,
            memory: HashMap::new(),
            foreign: Vec::new(),
            next_key: 0,
            receives: VecDeque::new(),
            queues: HashMap::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            bell: std::io::pipe()?,
            has_rung: false,
        })
    }

    fn ring(&mut self) {
        if !std::mem::replace(&mut self.has_rung, true) {
            let _ = self.bell.1.write(&[1]);
        }
    }

    fn place(&mut self, slice: Slice) -> &mut [u8] {
        let at = index(slice.address & u64::from(u32::MAX));
        let Some(memory) = self.memory.get_mut(&slice.lkey) else { return &mut [] };
        &mut memory[at..at + index(slice.len)]
    }

    fn done(&mut self, connection: ConnectionId, id: u64, bytes: u32) {
        let status = WorkStatus(0);
        self.completions.push_back(Completion { connection, id, status, bytes, invalidated: None });
        self.ring();
    }

    /// The host sends a command.
    fn send(&mut self, connection: ConnectionId, (cid, len): (u16, u32), sqe: &Sqe) {
        let Some(receive) = self.receives.pop_front() else { return };
        let block = KeyedBlock { address: 1 << 40, len, key: 1 };
        let flags = sqe.flags | Sqe::PSDT_SGL;
        let sqe = Sqe { cid: cid.into(), flags, sgl1: block.descriptor(false), ..*sqe };
        self.place(receive.local)[..64].copy_from_slice(sqe.as_bytes());
        self.done(connection, receive.id, 64);
    }

    fn connect(&mut self, connection: ConnectionId) {
        let qid = QueueId(u16::try_from(connection.0).unwrap_or(u16::MAX));
        let words = ConnectWords { qid, sqsize: entries(qid) - 1, ..ConnectWords::default() };
        self.send(connection, (0, 1024), &words.to_sqe());
    }

    fn read(&mut self, connection: ConnectionId, cid: u16) {
        let sqe = Sqe {
            opc: io::READ,
            nsid: 1.into(),
            cdw10: (u32::from(cid) * 8).into(),
            cdw12: 7.into(),
            ..Sqe::default()
        };
        self.send(connection, (cid, 4096), &sqe);
    }

    /// The host has a response.
    fn respond(&mut self, connection: ConnectionId, cqe: &Cqe) {
        assert!(cqe.status.is_success(), "queue {}: {}", connection.0, cqe.status);
        let Some(queue) = self.queues.get_mut(&connection.0) else { return };
        let is_first = !std::mem::replace(&mut queue.is_connected, true);
        match (connection.0, is_first) {
            (0, true) => {
                let cntlid = u16::try_from(cqe.dw0 & 0xffff).unwrap_or(0);
                self.plan.cntlid.store(cntlid, Ordering::Relaxed);
                let enable = Sqe {
                    opc: fabrics::OPCODE,
                    nsid: u32::from(fabrics::PROPERTY_SET).into(),
                    cdw11: 0x14.into(),
                    cdw12: 0x0046_0001.into(),
                    ..Sqe::default()
                };
                self.send(connection, (1, 0), &enable);
            }
            (0, false) => {
                self.plan.is_enabled.store(true, Ordering::Release);
                self.ring();
            }
            (_, true) => (1..=DEPTH).for_each(|cid| self.read(connection, cid)),
            (_, false) => {
                queue.answered += 1;
                if queue.answered.is_multiple_of(UNTOLD) {
                    self.plan.answered.fetch_add(UNTOLD, Ordering::Relaxed);
                }
                self.read(connection, cqe.cid.0);
            }
        }
    }
}

impl Provider for Device {
    fn name(&self) -> &str {
        "at-once"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            completions: 1 << 16,
            work_requests: 1 << 14,
            tells_last_receive: false,
            shared_receives: 1 << 12,
            reads_answered: 16,
            reads_begun: 16,
            inline_bytes: 64,
            send_with_invalidate: true,
            is_iwarp: false,
        }
    }

    fn register(&mut self, _: DomainId, len: u32, _: Access) -> Result<Region, ProviderError> {
        self.next_key += 1;
        let key = self.next_key;
        self.memory.insert(key, vec![0; index(len)].into());
        Ok(Region { address: u64::from(key) << 32, len, lkey: key, rkey: key })
    }

    fn deregister(&mut self, region: Region) {
        self.memory.remove(&region.lkey);
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        self.foreign.push(memory);
        self.next_key += 1;
        Ok(self.next_key)
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        if let Some(memory) = self.memory.get(&region.lkey) {
            into.copy_from_slice(&memory[index(offset)..][..into.len()]);
        }
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        fill(self.place(region.slice(offset, len)));
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        self.place(region.slice(offset, len)).copy_from_slice(bytes);
    }

    fn listen(&mut self, _: SocketAddr) -> Result<(), ProviderError> {
        self.listens = true;
        self.ring();
        Ok(())
    }

    fn stop_listening(&mut self) {
        self.listens = false;
    }

    fn resolve(
        &mut self,
        _: SocketAddr,
        _: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        Err(ProviderError::new("resolving", "this end listens"))
    }

    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        self.queues.insert(connection.0, Queue::default());
        Ok(*config)
    }

    fn connect(&mut self, _: ConnectionId, _: &[u8], _: u8) -> Result<(), ProviderError> {
        Ok(())
    }

    fn accept(&mut self, connection: ConnectionId, _: &[u8], _: u8) -> Result<(), ProviderError> {
        self.events.push_back(Event::Established { connection, private: Vec::new() });
        self.connect(connection);
        Ok(())
    }

    fn reject(&mut self, connection: ConnectionId, _: &[u8]) {
        println!("queue {} was refused", connection.0);
    }

    fn disconnect(&mut self, _: ConnectionId) {}

    fn destroy(&mut self, connection: ConnectionId) {
        self.queues.remove(&connection.0);
    }

    fn next_event(&mut self) -> Option<Event> {
        let asked = self.plan.asked.load(Ordering::Relaxed);
        let may_ask =
            asked == 0 || asked <= self.plan.queues && self.plan.is_enabled.load(Ordering::Acquire);
        if self.listens && may_ask {
            self.plan.asked.store(asked + 1, Ordering::Relaxed);
            let qid = QueueId(u16::try_from(asked).unwrap_or(u16::MAX));
            let receives = entries(qid);
            let request = QueueRequest { qid, receives, entries: receives.into(), cntlid: None };
            return Some(Event::Request {
                connection: ConnectionId(asked),
                listener: self.plan.address,
                private: request.to_bytes().to_vec(),
                host_reads: 16,
            });
        }
        self.events.pop_front()
    }

    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        for work in work {
            if work.signalled {
                self.done(connection, work.id, 0);
            }
            match work.operation {
                Operation::Send { .. } => {
                    let bytes = self.place(work.local);
                    if let Ok((cqe, _)) = <[u8; 16]>::read_from_prefix(bytes) {
                        self.respond(connection, &Cqe::from_bytes(&cqe));
                    }
                }
                Operation::Read { .. } => {
                    let cntlid = match connection.0 {
                        0 => ControllerId::DYNAMIC,
                        _ => ControllerId(self.plan.cntlid.load(Ordering::Relaxed)),
                    };
                    let Ok(nqn) = Nqn::new(SUBNQN) else {
                        continue;
                    };
                    let data = ConnectData::new(HostId([7; 16]), cntlid, &nqn, &nqn);
                    let bytes = data.as_bytes();
                    let place = self.place(work.local);
                    let len = place.len().min(bytes.len());
                    place[..len].copy_from_slice(&bytes[..len]);
                }
                Operation::Write { .. } => {}
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, _: ConnectionId, _: &[RecvWork]) -> Result<(), PostError> {
        Err(PostError { posted: 0 })
    }

    fn share_receives(&mut self, _: u32) -> Result<(), ProviderError> {
        Ok(())
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        self.receives.extend(work);
        Ok(())
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        let count = self.completions.len().min(into.capacity() - into.len());
        into.extend(self.completions.drain(..count));
    }
}

impl WaitingDevice for Device {
    fn news(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }

    fn arm(&mut self) {
        if std::mem::take(&mut self.has_rung) {
            let _ = self.bell.0.read(&mut [0]);
        }
    }

    fn kin(&self) -> Option<Kin> {
        let plan = Arc::clone(&self.plan);
        Some(Box::new(move || {
            let failed =
                |error: std::io::Error| ProviderError::new("opening the device", error.to_string());
            Ok(Box::new(Device::open(&plan).map_err(failed)?) as _)
        }))
    }

    fn give(&mut self, request: ConnectionId) -> Option<Given> {
        Some(Given::new(request))
    }

    fn take(&mut self, request: Given) -> Result<ConnectionId, ProviderError> {
        let unknown = ProviderError::new("taking a request over", "unknown");
        request.into_kind().ok_or(unknown)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|text| text.parse());
    let cores: usize = args.next().transpose()?.unwrap_or(1);
    let seconds = args.next().transpose()?.unwrap_or(3);
    let queues = args.next().transpose()?.unwrap_or(8);
    let address: SocketAddr = "127.0.0.1:4420".parse()?;
    let plan = Arc::new(Plan {
        address,
        queues: u32::try_from(queues)?,
        is_enabled: AtomicBool::new(false),
        cntlid: AtomicU16::new(0),
        asked: AtomicU32::new(0),
        answered: AtomicU64::new(0),
    });
    let config = TargetConfig {
        cores: (0..cores).collect(),
        mode: Mode::Poll,
        max_io_queues: 64,
        ..TargetConfig::default()
    };
    let rdma = RdmaConfig { reads_regions: true, ..RdmaConfig::of(&config) };
    let made = Arc::clone(&plan);
    let streams = RdmaStreams::over(rdma, move |_| {
        let failed =
            |error: std::io::Error| ProviderError::new("opening the device", error.to_string());
        Ok(Box::new(Device::open(&made).map_err(failed)?) as _)
    });
    let target = Target::start(config)?;
    let nqn = Nqn::new(SUBNQN)?;
    let serial = "CORES".into();
    target.add_subsystem(SubsystemConfig { serial, ..SubsystemConfig::new(nqn.clone()) })?;
    let identity = raceline_bdev::Identity::of_this_machine();
    let device = raceline_bdev::open(&"ram:16M".parse()?, &identity)?;
    target.add_namespace(&nqn, NamespaceConfig::new(device))?;
    target.add_listener_with(address, Some(Arc::new(streams) as _))?;

    std::thread::sleep(Duration::from_secs(1));
    let connections = target.stats().connections;
    let (start, before) = (Instant::now(), plan.answered.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs(u64::try_from(seconds)?));
    let answered = plan.answered.load(Ordering::Relaxed) - before;
    let rate = answered * 1000 / u64::try_from(start.elapsed().as_millis())?.max(1);
    println!("{rate} reads per second; connections of the cores: {connections:?}");
    // The device does not end connections.
    std::process::exit(i32::from(answered == 0));
}
