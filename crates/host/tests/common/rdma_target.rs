//! A small target over a simulated RDMA network: one subsystem with one namespace in memory, and a thread that serves it.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_host::RdmaDevices;
use raceline_proto::host::command;
use raceline_proto::nvme::fabrics::ConnectWords;
use raceline_proto::nvme::identify::CMIC_MULTI_CONTROLLER;
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::property::{CAP, CC, CSTS, Capabilities, VS};
use raceline_proto::nvme::rw::BlockRange;
use raceline_proto::nvme::{CommandId, Cqe, Direction, Sqe, Status};
use raceline_proto::rdma::{CapsuleLimits, GrantLimits, HostData, KeyedBlock};
use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig};
use raceline_rdma::verbs::{
    Access, ConnectionId, DomainId, Operation, Provider, ProviderError, Region, SendWork,
};
use raceline_rdma::{
    CommandToken, PortConfig, TargetEvent, TargetPort, TargetPortEvent, WaitingDevice,
};
use zerocopy::IntoBytes;

pub const BLOCK: usize = 512;
pub const BLOCKS: usize = 4096;
const IN_CAPSULE: u32 = 4096;

/// Each core of a host gets a new device of the network for each target.
#[derive(Debug)]
pub struct Devices(pub Network);

impl RdmaDevices for Devices {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        Ok(Box::new(self.0.add_device()))
    }
}

/// Something that a host waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Connect,
    PropertySet,
    PropertyGet,
    Identify,
    SetFeatures,
    IoConnect,
    Io,
}

/// How a command is answered wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Not at all.
    Silence,
    /// By a message of so many bytes.
    Len(u8),
    /// By a response to a command that was not sent.
    UnknownCommand,
    /// Twice.
    Twice,
    /// By a response that invalidates a key of the host.
    Key,
    /// Not at all: junk is written to memory of the host of which the target has got hold otherwise.
    Write(KeyedBlock),
    /// Not at all: such memory is read.
    Read(KeyedBlock),
}

/// What [`Wrong::Write`] writes.
pub const JUNK: u8 = 0xee;

/// What a test sees of the target and says to it.
#[derive(Debug, Default)]
pub struct Shared {
    pub ends: AtomicBool,
    /// I/O commands are kept, never answered.
    pub holds_io: AtomicBool,
    /// Writes whose data the target has to fetch wait, and their data are fetched when this is false again.
    pub keeps_writes: AtomicBool,
    /// New connections are ended at once.
    pub is_away: AtomicBool,
    /// Bits of SGLS that Identify leaves out.
    pub lacks_sgls: AtomicU32,
    /// Identify of the namespace and its descriptors, for a namespace that other controllers have, too.
    pub namespace: Mutex<Option<[Vec<u8>; 2]>>,
    /// What becomes of the next command of a kind.
    pub wrong: Mutex<Option<(Step, Wrong)>>,
    pub seen: Mutex<Seen>,
}

#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Associations.
    pub connects: u32,
    pub keep_alives: u32,
    /// I/O commands, by whether their data came in the capsule.
    pub io: Vec<(u8, bool)>,
    /// Where the data of writes are that wait.
    pub kept: Vec<KeyedBlock>,
    /// Connections that are left.
    pub connections: usize,
}

/// A running target.
pub struct Served {
    pub network: Network,
    pub shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(config: NetworkConfig) -> Self {
        Self::start_at(&Network::new(config), "10.0.0.1:4420".parse().unwrap())
    }

    /// One more target of a network.
    pub fn start_at(network: &Network, address: SocketAddr) -> Self {
        let network = network.clone();
        let shared = Arc::new(Shared::default());
        let mut target = Target::new(&network, address, Arc::clone(&shared));
        let thread = std::thread::spawn(move || target.run());
        Self { network, shared, thread: Some(thread) }
    }

    pub fn seen(&self) -> Seen {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Waits until the target has no connection any more, ends it, and looks whether anything is left or was misused.
    pub fn finish(self) {
        Self::finish_all([self]);
    }

    /// The same for all targets of a network.
    pub fn finish_all<const N: usize>(mut all: [Self; N]) {
        let end = Instant::now() + Duration::from_secs(30);
        while all.iter().any(|one| one.seen().connections > 0) {
            let seen: Vec<Seen> = all.iter().map(Self::seen).collect();
            assert!(Instant::now() < end, "connections are left: {seen:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        for one in &mut all {
            one.shared.ends.store(true, Ordering::Relaxed);
            one.thread.take().unwrap().join().unwrap();
        }
        for one in all {
            assert_eq!(one.network.misuses(), Vec::<String>::new());
            assert_eq!(one.network.leftovers(), (0, 0), "memory and connections");
        }
    }
}

#[derive(Default)]
struct Queue {
    qid: Option<u16>,
    /// Writes whose data are on their way.
    writes: BTreeMap<u16, (Sqe, u32)>,
    /// Commands that are never answered.
    held: Vec<CommandToken>,
    /// Writes that wait.
    kept: Vec<(CommandToken, Sqe, HostData)>,
}

struct Target {
    network: Network,
    port: TargetPort<FakeDevice>,
    shared: Arc<Shared>,
    queues: BTreeMap<ConnectionId, Queue>,
    storage: Vec<u8>,
    buffers: BTreeMap<u32, Region>,
    next_buffer: u32,
    /// Buffers of messages that no queue knows of.
    raw: Vec<u32>,
    cc: u32,
    cntlid: u16,
}

impl Target {
    fn new(network: &Network, address: SocketAddr, shared: Arc<Shared>) -> Self {
        let mut device = network.add_device();
        device.listen(address).unwrap();
        let transfer_bytes = 128 << 10;
        let config = PortConfig {
            grant: GrantLimits { admin_entries: 32, io_entries: 128, io_queues: 4, reads: 4 },
            io: CapsuleLimits { in_capsule_bytes: IN_CAPSULE, descriptors: 1, transfer_bytes },
            shared_receives: 256,
            connections: 64,
            stuck_after: Duration::from_secs(30),
            establish_within: Duration::from_secs(10),
            drain_within: Duration::from_secs(1),
        };
        Self {
            network: network.clone(),
            port: TargetPort::new(device, config),
            shared,
            queues: BTreeMap::new(),
            storage: vec![0; BLOCK * BLOCKS],
            buffers: BTreeMap::new(),
            next_buffer: 1,
            raw: Vec::new(),
            cc: 0,
            cntlid: 0,
        }
    }

    fn run(&mut self) {
        let mut checked = Instant::now();
        while !self.shared.ends.load(Ordering::Relaxed) {
            let mut is_busy = false;
            // Bounded, so that a network that retries for ever does not keep the target from its work.
            for _ in 0..1000 {
                if !self.network.step() {
                    break;
                }
                is_busy = true;
            }
            let now = Instant::now();
            self.port.poll(now);
            while let Some((id, event)) = self.port.poll_event() {
                is_busy = true;
                self.handle(id, event);
            }
            self.go_on_with_writes();
            self.port.settle(now);
            if now > checked + Duration::from_millis(100) {
                checked = now;
                self.port.check_deadlines(now);
            }
            if !is_busy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        assert_eq!(self.network.leftovers().1, 0, "connections");
        std::mem::take(&mut self.raw).into_iter().for_each(|buffer| self.free(buffer));
        // Shared receives are kept for the next queues.
        self.port.end();
    }

    fn handle(&mut self, id: ConnectionId, event: TargetPortEvent) {
        match event {
            TargetPortEvent::Accepted { .. } => {
                self.queues.insert(id, Queue::default());
                if self.shared.is_away.load(Ordering::Relaxed) {
                    self.port.close(id, Instant::now());
                }
            }
            TargetPortEvent::Closed => {
                self.queues.remove(&id);
            }
            TargetPortEvent::Refused { .. } | TargetPortEvent::Asked(_) => {}
            TargetPortEvent::Queue(event) => self.handle_queue(id, event),
        }
        self.shared.seen.lock().unwrap().connections = self.port.connections();
    }

    fn handle_queue(&mut self, id: ConnectionId, event: TargetEvent) {
        match event {
            TargetEvent::Command { token, sqe, data } => self.begin(id, token, &sqe, data),
            TargetEvent::DataHere(token) => {
                let queue = self.queues.get_mut(&id).unwrap();
                let (sqe, buffer) = queue.writes.remove(&token.slot()).unwrap();
                let region = self.buffers[&buffer];
                let mut bytes = vec![0; region.len as usize];
                self.port.provider().read(&region, 0, &mut bytes);
                self.free(buffer);
                self.execute(id, token, &sqe, &bytes);
            }
            TargetEvent::DataLost(slot) => {
                let (_, buffer) = self.queues.get_mut(&id).unwrap().writes.remove(&slot).unwrap();
                self.free(buffer);
            }
            TargetEvent::Responded(buffer) => self.free(buffer),
            TargetEvent::Lost(_) => {
                let queue = self.queues.get_mut(&id).unwrap();
                let held = std::mem::take(&mut queue.held);
                let kept = std::mem::take(&mut queue.kept).into_iter().map(|(token, ..)| token);
                for token in held.into_iter().chain(kept) {
                    self.port.queue(id).unwrap().respond(token, Cqe::default(), None, 0);
                }
            }
        }
    }

    fn go_on_with_writes(&mut self) {
        if self.shared.keeps_writes.load(Ordering::Relaxed) {
            return;
        }
        let mut all = Vec::new();
        for (&id, queue) in &mut self.queues {
            all.extend(queue.kept.drain(..).map(|kept| (id, kept)));
        }
        for (id, (token, sqe, data)) in all {
            self.begin(id, token, &sqe, Ok(data));
        }
    }

    fn allocate(&mut self, len: usize) -> (u32, Region) {
        let len = u32::try_from(len).unwrap();
        let device = self.port.provider();
        // An RDMA READ of iWARP is answered by writes.
        let access = match device.capabilities().is_iwarp {
            true => Access::HOST_DATA,
            false => Access::LOCAL,
        };
        let region = device.register(DomainId::OWN, len, access).unwrap();
        self.next_buffer += 1;
        self.buffers.insert(self.next_buffer, region);
        (self.next_buffer, region)
    }

    fn free(&mut self, buffer: u32) {
        if let Some(region) = self.buffers.remove(&buffer) {
            self.port.provider().deregister(region);
        }
    }

    fn begin(
        &mut self,
        id: ConnectionId,
        token: CommandToken,
        sqe: &Sqe,
        data: Result<HostData, Status>,
    ) {
        let data = match data {
            Ok(data) => data,
            Err(status) => return self.respond(id, token, sqe, status, 0),
        };
        let step = step(self.queues[&id].qid, sqe);
        let wrong = self.shared.wrong.lock().unwrap().take_if(|(at, _)| Some(*at) == step);
        if let Some((_, wrong)) = wrong {
            return self.answer_wrongly(id, token, sqe, wrong);
        }
        if let HostData::Keyed { block, .. } = data
            && sqe.opc == io::WRITE
            && self.shared.keeps_writes.load(Ordering::Relaxed)
        {
            self.shared.seen.lock().unwrap().kept.push(block);
            self.queues.get_mut(&id).unwrap().kept.push((token, *sqe, data));
            return;
        }
        let in_capsule = matches!(data, HostData::InCapsule { .. });
        let queue = self.queues.get_mut(&id).unwrap();
        if queue.qid.is_some_and(|qid| qid > 0) {
            self.shared.seen.lock().unwrap().io.push((sqe.opc, in_capsule));
            if self.shared.holds_io.load(Ordering::Relaxed) {
                queue.held.push(token);
                return;
            }
        }
        if in_capsule {
            let (queue, device) = self.port.queue_and_provider(id).unwrap();
            let (capsules, at, len) = queue.in_capsule(&token, &data);
            let mut bytes = vec![0; len as usize];
            device.read(&capsules, at, &mut bytes);
            return self.execute(id, token, sqe, &bytes);
        }
        if !data.is_empty() && command::direction(sqe) == Direction::HostToController {
            let (buffer, region) = self.allocate(data.len() as usize);
            let queue = self.queues.get_mut(&id).unwrap();
            queue.writes.insert(token.slot(), (*sqe, buffer));
            let place = region.slice(0, data.len());
            return self.port.queue(id).unwrap().read_host_data(token, place);
        }
        self.execute(id, token, sqe, &[]);
    }

    fn answer_wrongly(&mut self, id: ConnectionId, token: CommandToken, sqe: &Sqe, wrong: Wrong) {
        self.queues.get_mut(&id).unwrap().held.push(token);
        let mut cqe = Cqe { cid: sqe.command_id(), ..Cqe::default() };
        let (mut len, mut times, mut invalidate) = (16, 1, None);
        match wrong {
            Wrong::Silence => return,
            Wrong::Write(block) | Wrong::Read(block) => {
                return self.reach_for(id, block, matches!(wrong, Wrong::Write(_)));
            }
            Wrong::Len(bytes) => len = usize::from(bytes),
            Wrong::UnknownCommand => cqe.cid = CommandId(cqe.cid.0 ^ 0x55),
            Wrong::Twice => times = 2,
            Wrong::Key => invalidate = Some(sqe.sgl1.as_bytes()[11].into()),
        }
        let (buffer, region) = self.allocate(64);
        self.raw.push(buffer);
        self.port.provider().write(&region, 0, &cqe.to_bytes());
        let local = region.slice(0, u32::try_from(len).unwrap());
        let operation = Operation::Send { invalidate };
        for number in 0..times {
            // Numbers that the queue has not given.
            let id_of_work = (1 << 40) + number;
            let work =
                SendWork { id: id_of_work, operation, local, signalled: true, inline: false };
            self.port.provider().post_raw(id, work).unwrap();
        }
    }

    /// Tries to get at memory of the host by a key that belongs to no command of this target.
    fn reach_for(&mut self, id: ConnectionId, block: KeyedBlock, writes: bool) {
        let (buffer, region) = self.allocate(block.len as usize);
        self.raw.push(buffer);
        let (remote, key) = (block.address, block.key);
        let operation = match writes {
            true => Operation::Write { remote, key },
            false => Operation::Read { remote, key },
        };
        let device = self.port.provider();
        if writes {
            device.write(&region, 0, &vec![JUNK; block.len as usize]);
        }
        let local = region.slice(0, block.len);
        let work = SendWork { id: 1 << 40, operation, local, signalled: true, inline: false };
        device.post_raw(id, work).unwrap();
    }

    fn respond(
        &mut self,
        id: ConnectionId,
        token: CommandToken,
        sqe: &Sqe,
        status: Status,
        value: u64,
    ) {
        let word = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
        let (dw0, dw1) = (word(value), word(value >> 32));
        let cqe = Cqe { dw0, dw1, cid: sqe.command_id(), status, ..Cqe::default() };
        self.port.queue(id).unwrap().respond(token, cqe, None, 0);
    }

    fn send(&mut self, id: ConnectionId, token: CommandToken, sqe: &Sqe, bytes: &[u8]) {
        let (buffer, region) = self.allocate(bytes.len());
        self.port.provider().write(&region, 0, bytes);
        let cqe = Cqe { cid: sqe.command_id(), ..Cqe::default() };
        let place = region.slice(0, region.len);
        self.port.queue(id).unwrap().respond(token, cqe, Some(place), buffer);
    }

    fn execute(&mut self, id: ConnectionId, token: CommandToken, sqe: &Sqe, data: &[u8]) {
        match self.queues[&id].qid {
            None => self.connect(id, token, sqe, data),
            Some(0) => self.admin(id, token, sqe),
            Some(_) => self.io(id, token, sqe, data),
        }
    }

    fn connect(&mut self, id: ConnectionId, token: CommandToken, sqe: &Sqe, data: &[u8]) {
        let words = ConnectWords::parse(sqe);
        assert_eq!(data.len(), 1024, "the data of Connect");
        if words.qid.is_admin() {
            self.cntlid += 1;
            self.cc = 0;
            self.shared.seen.lock().unwrap().connects += 1;
        } else {
            assert_eq!(data[16..18], self.cntlid.to_le_bytes());
        }
        self.queues.get_mut(&id).unwrap().qid = Some(words.qid.0);
        self.port.queue(id).unwrap().set_sq_entries(words.sqsize + 1);
        self.respond(id, token, sqe, Status::SUCCESS, self.cntlid.into());
    }

    fn admin(&mut self, id: ConnectionId, token: CommandToken, sqe: &Sqe) {
        match (sqe.opc, sqe.fctype()) {
            (fabrics::OPCODE, fabrics::PROPERTY_SET) => {
                assert_eq!(sqe.cdw11.get(), CC);
                self.cc = sqe.cdw12.get();
                self.respond(id, token, sqe, Status::SUCCESS, 0);
            }
            (fabrics::OPCODE, _) => {
                let is_shut_down = self.cc >> 14 & 3 != 0;
                let value = match sqe.cdw11.get() {
                    CAP => Capabilities::fabrics(127, 15).0,
                    VS => 0x0001_0400,
                    CSTS => u64::from(self.cc & 1) | if is_shut_down { 2 << 2 } else { 0 },
                    other => panic!("property {other:x}h"),
                };
                self.respond(id, token, sqe, Status::SUCCESS, value);
            }
            (admin::IDENTIFY, _) => {
                let page = self.identify(sqe.cdw10.get() & 0xff);
                self.send(id, token, sqe, &page);
            }
            (admin::SET_FEATURES, _) => {
                self.respond(id, token, sqe, Status::SUCCESS, 3 << 16 | 3);
            }
            (admin::KEEP_ALIVE, _) => {
                self.shared.seen.lock().unwrap().keep_alives += 1;
                self.respond(id, token, sqe, Status::SUCCESS, 0);
            }
            (admin::ASYNC_EVENT_REQUEST, _) => {
                self.queues.get_mut(&id).unwrap().held.push(token);
            }
            (admin::GET_LOG_PAGE, _) => {
                let words = u64::from(sqe.cdw10.get() >> 16) + 1;
                let len = usize::try_from(words * 4).unwrap();
                let start = usize::try_from(sqe.cdw12.get()).unwrap();
                let log = discovery_log();
                self.send(id, token, sqe, &log[start..start + len]);
            }
            other => panic!("admin command {other:?}"),
        }
    }

    fn identify(&self, cns: u32) -> Vec<u8> {
        let mut page = vec![0; 4096];
        let shared = self.shared.namespace.lock().unwrap();
        match (cns, &*shared) {
            (0, Some([namespace, _])) => page.clone_from(namespace),
            (3, Some([_, descriptors])) => page.clone_from(descriptors),
            (0, None) => {
                page[..8].copy_from_slice(&(BLOCKS as u64).to_le_bytes());
                page[8..16].copy_from_slice(&(BLOCKS as u64).to_le_bytes());
                page[130] = 9;
            }
            (1, shared) => {
                page[76] = if shared.is_some() { CMIC_MULTI_CONTROLLER } else { 0 };
                page[77] = 5;
                page[78..80].copy_from_slice(&self.cntlid.to_le_bytes());
                page[320] = 10;
                page[516] = 1;
                page[520] = 0xd;
                // SGLs, keyed, with an offset.
                let lacks = self.shared.lacks_sgls.load(Ordering::Relaxed);
                let sgls = (1u32 | 1 << 2 | 1 << 20) & !lacks;
                page[536..540].copy_from_slice(&sgls.to_le_bytes());
                page[1792..1796].copy_from_slice(&((IN_CAPSULE + 64) / 16).to_le_bytes());
                page[1796] = 1;
            }
            (2, _) => page[0] = 1,
            _ => {}
        }
        page
    }

    fn io(&mut self, id: ConnectionId, token: CommandToken, sqe: &Sqe, data: &[u8]) {
        if sqe.opc == io::FLUSH {
            return self.respond(id, token, sqe, Status::SUCCESS, 0);
        }
        let range = BlockRange::parse(sqe);
        let start = usize::try_from(range.slba).unwrap().saturating_mul(BLOCK);
        let end = start.saturating_add(range.block_count as usize * BLOCK);
        if end > self.storage.len() {
            return self.respond(id, token, sqe, Status::LBA_OUT_OF_RANGE.dnr(), 0);
        }
        match sqe.opc {
            io::READ => {
                let data = self.storage[start..end].to_vec();
                self.send(id, token, sqe, &data);
            }
            io::WRITE => {
                self.storage[start..end].copy_from_slice(data);
                self.respond(id, token, sqe, Status::SUCCESS, 0);
            }
            io::COMPARE => {
                let is_same = self.storage[start..end] == *data;
                let status = if is_same { Status::SUCCESS } else { Status::COMPARE_FAILURE };
                self.respond(id, token, sqe, status, 0);
            }
            other => panic!("I/O command {other:x}h"),
        }
    }
}

/// What a command is for a host.
fn step(qid: Option<u16>, sqe: &Sqe) -> Option<Step> {
    match (qid, sqe.opc, sqe.fctype()) {
        (None, ..) if ConnectWords::parse(sqe).qid.is_admin() => Some(Step::Connect),
        (None, ..) => Some(Step::IoConnect),
        (Some(0), fabrics::OPCODE, fabrics::PROPERTY_SET) => Some(Step::PropertySet),
        (Some(0), fabrics::OPCODE, _) => Some(Step::PropertyGet),
        (Some(0), admin::IDENTIFY, _) => Some(Step::Identify),
        (Some(0), admin::SET_FEATURES, _) => Some(Step::SetFeatures),
        (Some(0), ..) => None,
        (Some(_), ..) => Some(Step::Io),
    }
}

/// A log with one entry, of a subsystem over RDMA.
fn discovery_log() -> Vec<u8> {
    let mut log = vec![0; 4096];
    log[0] = 7;
    log[8] = 1;
    let entry = &mut log[1024..2048];
    (entry[0], entry[1], entry[2]) = (1, 1, 2);
    entry[32..36].copy_from_slice(b"4420");
    entry[32 + 4..64].fill(b' ');
    let nqn = b"nqn.2024-01.test:subsystem";
    entry[256..256 + nqn.len()].copy_from_slice(nqn);
    entry[512..768].fill(b' ');
    entry[512..520].copy_from_slice(b"10.0.0.1");
    log
}
