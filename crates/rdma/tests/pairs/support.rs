//! A target that has a disk in memory, a host that knows what must be on it, and the network between them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::{CommandId, Cqe, QueueId, Sqe, Status};
use raceline_proto::rdma::{CapsuleLimits, GrantLimits, HostData, KeyedBlock, QueueRequest};
use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig};
use raceline_rdma::verbs::{Access, ConnectionId, DomainId, Provider, Region};
use raceline_rdma::{
    CommandToken, ConnectConfig, ConnectError, HostEvent, HostPort, HostPortEvent, HostTransfer,
    Loss, PortConfig, Refusal, SubmitError, TargetEvent, TargetPort, TargetPortEvent,
};

pub(crate) const BLOCK: u32 = 512;
pub(crate) const BLOCKS: u32 = 256;
pub(crate) const MAX_BLOCKS: u32 = 8;
pub(crate) const WRITE: u8 = 1;
pub(crate) const READ: u8 = 2;

pub(crate) const IO: CapsuleLimits =
    CapsuleLimits { in_capsule_bytes: 1024, descriptors: 16, transfer_bytes: MAX_BLOCKS * BLOCK };

pub(crate) fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4420))
}

pub(crate) fn port_config() -> PortConfig {
    PortConfig {
        grant: GrantLimits { admin_entries: 32, io_entries: 16, io_queues: 8, reads: 4 },
        io: IO,
        shared_receives: 64,
        connections: 16,
        stuck_after: Duration::from_secs(30),
        establish_within: Duration::from_secs(10),
        drain_within: Duration::from_secs(1),
    }
}

/// Choices that follow from a seed.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 33) % u64::from(limit)).unwrap()
    }
}

pub(crate) fn io(opc: u8, slba: u32, blocks: u32) -> Sqe {
    Sqe { opc, nsid: 1.into(), cdw10: slba.into(), cdw12: (blocks - 1).into(), ..Sqe::default() }
}

fn usize_of(value: u32) -> usize {
    usize::try_from(value).unwrap()
}

// -------------------------------------------------------------------------- target

/// What a command of the target waits for.
struct Job {
    connection: ConnectionId,
    token: CommandToken,
    sqe: Sqe,
    data: Result<HostData, Status>,
    /// Its data are in this buffer.
    buffer: Option<u32>,
}

/// A command whose data are fetched, and into which buffer.
type Fetched = (Sqe, Result<HostData, Status>, u32);

/// A target with a disk, executing commands in any order.
pub(crate) struct Target {
    pub(crate) port: TargetPort<FakeDevice>,
    pub(crate) disk: Vec<u8>,
    buffers: Region,
    free: Vec<u32>,
    jobs: Vec<Job>,
    reading: HashMap<(ConnectionId, u16), Fetched>,
    pub(crate) losses: Vec<(ConnectionId, Loss)>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) executed: u64,
    pub(crate) accepted: Vec<ConnectionId>,
}

const BUFFERS: u32 = 512;

impl Target {
    pub(crate) fn new(mut device: FakeDevice, config: PortConfig) -> Self {
        let is_iwarp = device.capabilities().is_iwarp;
        let access = if is_iwarp { Access::HOST_DATA } else { Access::LOCAL };
        let buffers = device.register(DomainId::OWN, BUFFERS * IO.transfer_bytes, access).unwrap();
        device.listen(address()).unwrap();
        Self {
            port: TargetPort::new(device, config),
            disk: vec![0; usize_of(BLOCKS * BLOCK)],
            buffers,
            free: (0..BUFFERS).collect(),
            jobs: Vec::new(),
            reading: HashMap::new(),
            losses: Vec::new(),
            refusals: Vec::new(),
            executed: 0,
            accepted: Vec::new(),
        }
    }

    pub(crate) fn poll(&mut self, now: Instant) {
        self.port.poll(now);
        while let Some((connection, event)) = self.port.poll_event() {
            match event {
                TargetPortEvent::Accepted { .. } => self.accepted.push(connection),
                TargetPortEvent::Asked(asked) => match self.port.admit(connection, &asked, now) {
                    Ok(_) => self.accepted.push(connection),
                    Err(refusal) => self.refusals.push(refusal),
                },
                TargetPortEvent::Refused { refusal, .. } => self.refusals.push(refusal),
                TargetPortEvent::Queue(event) => self.handle(connection, event),
                TargetPortEvent::Closed => {
                    let left = self.jobs.iter().any(|job| job.connection == connection);
                    assert!(!left, "a connection has closed while its commands are executed");
                }
            }
        }
    }

    fn handle(&mut self, connection: ConnectionId, event: TargetEvent) {
        match event {
            TargetEvent::Command { token, sqe, data } => {
                let job = Job { connection, token, sqe, data, buffer: None };
                match data {
                    Ok(data @ (HostData::Keyed { .. } | HostData::List { .. }))
                        if sqe.opc == WRITE =>
                    {
                        self.fetch(job, &data);
                    }
                    _ => self.jobs.push(job),
                }
            }
            TargetEvent::DataHere(token) => {
                let key = (connection, token.slot());
                let (sqe, data, buffer) = self.reading.remove(&key).unwrap();
                self.jobs.push(Job { connection, token, sqe, data, buffer: Some(buffer) });
            }
            TargetEvent::DataLost(slot) => {
                let (.., buffer) = self.reading.remove(&(connection, slot)).unwrap();
                self.release(buffer);
            }
            TargetEvent::Responded(tag) if tag != u32::MAX => self.release(tag),
            TargetEvent::Responded(_) => {}
            TargetEvent::Lost(loss) => self.losses.push((connection, loss)),
        }
    }

    fn fetch(&mut self, job: Job, data: &HostData) {
        let buffer = self.free.pop().expect("buffers are bounded by queues");
        let place = self.buffers.slice(buffer * IO.transfer_bytes, data.len());
        let key = (job.connection, job.token.slot());
        assert!(self.reading.insert(key, (job.sqe, job.data, buffer)).is_none());
        self.port.queue(job.connection).unwrap().read_host_data(job.token, place);
    }

    /// A buffer is poisoned when it comes back, so that one that comes back too early is noticed.
    fn release(&mut self, buffer: u32) {
        let poison = vec![0xdb; usize_of(IO.transfer_bytes)];
        let at = buffer * IO.transfer_bytes;
        self.port.provider().write(&self.buffers, at, &poison);
        assert!(!self.free.contains(&buffer), "a buffer has come back twice");
        self.free.push(buffer);
    }

    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Executes a command.
    pub(crate) fn execute(&mut self, dice: &mut Dice) {
        if self.jobs.is_empty() {
            return;
        }
        let choice = dice.below(u32::try_from(self.jobs.len()).unwrap());
        let job = self.jobs.swap_remove(usize_of(choice));
        self.executed += 1;
        let (at, len) = (usize_of(job.sqe.cdw10.get() * BLOCK), job.sqe.sgl1.length.get());
        let end = at + usize_of(len);
        let status = match job.data {
            Err(status) => status,
            Ok(_) if end > self.disk.len() => Status::LBA_OUT_OF_RANGE.dnr(),
            Ok(_) => Status::SUCCESS,
        };
        let cqe = Cqe { status, cid: job.sqe.command_id(), ..Cqe::default() };
        let mut tag = job.buffer.unwrap_or(u32::MAX);
        let mut data = None;
        if status.is_success() && job.sqe.opc == WRITE {
            self.write(&job, at..end);
        } else if status.is_success() && job.sqe.opc == READ && len != 0 {
            tag = self.free.pop().expect("buffers are bounded by queues");
            let place = tag * IO.transfer_bytes;
            self.port.provider().write(&self.buffers, place, &self.disk[at..end]);
            data = Some(self.buffers.slice(place, len));
        }
        let queue = self.port.queue(job.connection).unwrap();
        queue.respond(job.token, cqe, data, tag);
    }

    fn write(&mut self, job: &Job, range: std::ops::Range<usize>) {
        let place = &mut self.disk[range];
        if let Some(buffer) = job.buffer {
            self.port.provider().read(&self.buffers, buffer * IO.transfer_bytes, place);
        } else if let Ok(data @ HostData::InCapsule { .. }) = &job.data {
            let (queue, provider) = self.port.queue_and_provider(job.connection).unwrap();
            let (capsules, at, _) = queue.in_capsule(&job.token, data);
            provider.read(&capsules, at, place);
        }
    }

    /// At the end everything is free.
    pub(crate) fn assert_idle(&self) {
        assert_eq!(self.jobs.len(), 0, "commands are left");
        assert_eq!(self.reading.len(), 0, "data are awaited");
        assert_eq!(self.free.len(), usize_of(BUFFERS), "buffers are missing");
        assert_eq!(self.port.connections(), 0, "connections are left");
    }
}

// -------------------------------------------------------------------------- host

/// A command under way.
struct Flight {
    opc: u8,
    slba: u32,
    blocks: u32,
    slot: u32,
    /// What a write carries.
    content: Vec<u8>,
    keys: Vec<u32>,
}

/// A host that knows what its part of the disk must hold: one content, or after a lost write either of two or more.
pub(crate) struct Host {
    pub(crate) port: HostPort<FakeDevice>,
    pub(crate) memory: Region,
    flights: BTreeMap<(ConnectionId, CommandId), Flight>,
    slots: Vec<u32>,
    busy: Vec<bool>,
    known: Vec<Vec<u8>>,
    pub(crate) live: Vec<ConnectionId>,
    pub(crate) completed: u64,
    pub(crate) ended: u64,
    pub(crate) losses: Vec<Loss>,
    pub(crate) failures: Vec<ConnectError>,
    pub(crate) connecting: usize,
    /// Keys are offered for invalidation, by windows.
    pub(crate) offers: bool,
}

const SLOTS: u32 = 64;

impl Host {
    pub(crate) fn new(mut device: FakeDevice) -> Self {
        let memory =
            device.register(DomainId::OWN, SLOTS * IO.transfer_bytes, Access::HOST_DATA).unwrap();
        Self {
            port: HostPort::new(device),
            memory,
            flights: BTreeMap::new(),
            slots: (0..SLOTS).collect(),
            busy: vec![false; usize_of(BLOCKS)],
            known: vec![vec![0]; usize_of(BLOCKS)],
            live: Vec::new(),
            completed: 0,
            ended: 0,
            losses: Vec::new(),
            failures: Vec::new(),
            connecting: 0,
            offers: true,
        }
    }

    pub(crate) fn connect(&mut self, qid: u16, now: Instant) -> Option<ConnectionId> {
        let request = QueueRequest { qid: QueueId(qid), receives: 16, entries: 16, cntlid: None };
        let capsule_len = if qid == 0 { 64 } else { 64 + IO.in_capsule_bytes };
        let config = ConnectConfig {
            address: address(),
            source: None,
            domain: DomainId::OWN,
            request,
            capsule_len,
        };
        let id = self.port.connect(config, now).ok()?;
        self.connecting += 1;
        Some(id)
    }

    pub(crate) fn poll(&mut self, now: Instant) {
        self.port.poll(now);
        while let Some((connection, event)) = self.port.poll_event() {
            match event {
                HostPortEvent::Connected => {
                    self.connecting -= 1;
                    self.live.push(connection);
                }
                HostPortEvent::Failed(error) => {
                    self.connecting -= 1;
                    self.failures.push(error);
                }
                HostPortEvent::Closed => self.live.retain(|&id| id != connection),
                HostPortEvent::Queue(HostEvent::Lost(loss)) => {
                    self.losses.push(loss);
                    self.live.retain(|&id| id != connection);
                }
                HostPortEvent::Queue(HostEvent::Ended(cid)) => self.end(connection, cid),
                HostPortEvent::Queue(HostEvent::Completed { cid, cqe, invalidated }) => {
                    self.complete(connection, cid, &cqe, invalidated);
                }
            }
        }
    }

    /// A command that the model does not know will be lost.
    pub(crate) fn expect_end(&mut self, connection: ConnectionId, cid: CommandId) {
        let slot = self.slots.pop().unwrap();
        let flight =
            Flight { opc: 0, slba: 0, blocks: 0, slot, content: Vec::new(), keys: Vec::new() };
        self.flights.insert((connection, cid), flight);
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.flights.len()
    }

    /// Sends a command of any kind to blocks that no other command has.
    pub(crate) fn submit(&mut self, dice: &mut Dice) -> bool {
        if self.live.is_empty() || self.slots.is_empty() {
            return false;
        }
        let choice = dice.below(u32::try_from(self.live.len()).unwrap());
        let connection = self.live[usize_of(choice)];
        let blocks = 1 + dice.below(MAX_BLOCKS);
        let slba = dice.below(BLOCKS - blocks + 1);
        let range = usize_of(slba)..usize_of(slba + blocks);
        if self.busy[range.clone()].contains(&true) {
            return false;
        }
        let opc = if dice.below(2) == 0 { READ } else { WRITE };
        let fill = u8::try_from(1 + dice.below(250)).unwrap();
        let content = if opc == WRITE { vec![fill; usize_of(blocks * BLOCK)] } else { Vec::new() };
        let slot = self.slots.pop().unwrap();
        let start = slot * IO.transfer_bytes;
        self.port.provider().write(&self.memory, start, &vec![0xee; usize_of(IO.transfer_bytes)]);
        if opc == WRITE {
            self.port.provider().write(&self.memory, start, &content);
        }
        let mut keys = Vec::new();
        let kind = dice.below(4);
        let len = blocks * BLOCK;
        let sent = if opc == WRITE && len <= IO.in_capsule_bytes && kind == 0 {
            let sqe = io(opc, slba, blocks);
            if dice.below(2) == 0 {
                self.send(connection, &sqe, HostTransfer::InCapsule(&content))
            } else {
                // The data are behind the entry, in memory of the command.
                let memory = Region {
                    address: self.memory.address + u64::from(start),
                    len: IO.transfer_bytes,
                    ..self.memory
                };
                self.port.provider().write(&self.memory, start + 64, &content);
                self.send(connection, &sqe, HostTransfer::CapsuleIn { memory, len })
            }
        } else if kind == 1 {
            // In blocks of odd sizes, as pages of a program's memory are.
            let list = split(self.memory.address + u64::from(start), len, self.memory.rkey, dice);
            self.send(connection, &io(opc, slba, blocks), HostTransfer::List(&list))
        } else {
            let invalidate = self.offers && kind == 2;
            let mut block = KeyedBlock {
                address: self.memory.address + u64::from(start),
                len,
                key: self.memory.rkey,
            };
            if invalidate {
                let access = Access {
                    remote_read: opc == WRITE,
                    remote_write: opc == READ,
                    ..Access::default()
                };
                block.key = self.port.provider().bind(&self.memory, start, len, access);
                keys.push(block.key);
            }
            self.send(connection, &io(opc, slba, blocks), HostTransfer::Keyed { block, invalidate })
        };
        let Ok(cid) = sent else {
            keys.into_iter().for_each(|key| self.port.provider().unbind(key));
            self.slots.push(slot);
            return false;
        };
        self.busy[range].fill(true);
        let flight = Flight { opc, slba, blocks, slot, content, keys };
        assert!(self.flights.insert((connection, cid), flight).is_none(), "an identifier twice");
        true
    }

    pub(crate) fn send(
        &mut self,
        connection: ConnectionId,
        sqe: &Sqe,
        transfer: HostTransfer<'_>,
    ) -> Result<CommandId, SubmitError> {
        let (queue, provider) = self.port.queue(connection).ok_or(SubmitError::Lost)?;
        queue.submit(provider, sqe, transfer)
    }

    fn complete(&mut self, connection: ConnectionId, cid: CommandId, cqe: &Cqe, invalidated: bool) {
        let Some(flight) = self.flights.remove(&(connection, cid)) else {
            panic!("a command has completed twice")
        };
        self.completed += 1;
        assert!(cqe.status.is_success(), "{}", cqe.status);
        assert!(!invalidated || !flight.keys.is_empty(), "a key that was not offered");
        let range = usize_of(flight.slba)..usize_of(flight.slba + flight.blocks);
        if flight.opc == WRITE {
            self.known[range].fill(vec![flight.content[0]]);
        } else {
            let mut bytes = vec![0; usize_of(flight.blocks * BLOCK)];
            let at = flight.slot * IO.transfer_bytes;
            self.port.provider().read(&self.memory, at, &mut bytes);
            for (block, bytes) in range.zip(bytes.chunks(usize_of(BLOCK))) {
                assert!(bytes.iter().all(|byte| byte == &bytes[0]), "block {block} is torn");
                assert!(
                    self.known[block].contains(&bytes[0]),
                    "block {block} holds {:#x}, not one of {:x?}",
                    bytes[0],
                    self.known[block]
                );
            }
        }
        self.finish(flight);
    }

    /// A lost write may have been executed.
    fn end(&mut self, connection: ConnectionId, cid: CommandId) {
        let flight = self.flights.remove(&(connection, cid)).expect("a command has ended twice");
        self.ended += 1;
        if flight.opc == WRITE {
            for block in flight.slba..flight.slba + flight.blocks {
                self.known[usize_of(block)].push(flight.content[0]);
            }
        }
        self.finish(flight);
    }

    fn finish(&mut self, flight: Flight) {
        for key in flight.keys {
            self.port.provider().unbind(key);
        }
        // Whatever the target still did to this memory would now be seen.
        let at = flight.slot * IO.transfer_bytes;
        self.port.provider().write(&self.memory, at, &vec![0xdb; usize_of(IO.transfer_bytes)]);
        self.slots.push(flight.slot);
        let range = usize_of(flight.slba)..usize_of(flight.slba + flight.blocks);
        self.busy[range].fill(false);
    }
}

/// Up to 16 blocks that make up a range.
fn split(mut address: u64, mut len: u32, key: u32, dice: &mut Dice) -> Vec<KeyedBlock> {
    let mut list = Vec::new();
    while len > 0 {
        let part = if list.len() == 15 { len } else { 1 + dice.below(len) };
        list.push(KeyedBlock { address, len: part, key });
        address += u64::from(part);
        len -= part;
    }
    list
}

// -------------------------------------------------------------------------- both

/// Both, and the network.
pub(crate) struct Pair {
    pub(crate) network: Network,
    pub(crate) target: Target,
    pub(crate) host: Host,
    pub(crate) dice: Dice,
    start: Instant,
    checked: Duration,
}

impl Pair {
    pub(crate) fn new(config: NetworkConfig, port: PortConfig) -> Self {
        let network = Network::new(config);
        let mut target = Target::new(network.add_device(), port);
        if config.seed % 2 == 1 {
            // The driver answers requests, as one does that gives them to other cores.
            target.port.hold_requests();
        }
        Self {
            target,
            host: Host::new(network.add_device()),
            network,
            dice: Dice::new(config.seed),
            start: Instant::now(),
            checked: Duration::ZERO,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.start + self.network.now()
    }

    /// A step of somebody. Gives whether there was something to do.
    pub(crate) fn step(&mut self) -> bool {
        let stepped = self.network.step();
        let now = self.now();
        if !stepped || self.dice.below(2) == 0 {
            self.host.poll(now);
        }
        if !stepped || self.dice.below(2) == 0 {
            self.target.poll(now);
        }
        let had_jobs = self.target.jobs() > 0;
        if !stepped || self.dice.below(2) == 0 {
            self.target.execute(&mut self.dice);
        }
        if self.network.now() > self.checked + Duration::from_secs(1) {
            self.check_deadlines();
        }
        stepped || had_jobs || self.network.step()
    }

    pub(crate) fn check_deadlines(&mut self) {
        self.checked = self.network.now();
        let now = self.now();
        self.host.port.check_deadlines(now);
        self.target.port.check_deadlines(now);
    }

    /// Lets this much time pass.
    pub(crate) fn settle(&mut self, time: Duration) {
        let end = self.network.now() + time;
        let mut steps = 0;
        while self.network.now() < end {
            steps += 1;
            assert!(steps < 2_000_000, "it does not come to rest");
            if !self.step() {
                self.network.advance_to(self.network.now() + Duration::from_millis(250));
                self.check_deadlines();
            }
        }
    }

    /// Connects queues and waits for them.
    pub(crate) fn connect(&mut self, qids: &[u16]) -> Vec<ConnectionId> {
        let now = self.now();
        let ids = qids.iter().map(|&qid| self.host.connect(qid, now).unwrap()).collect();
        while self.host.connecting > 0 {
            assert!(self.step() || self.host.connecting == 0, "connecting stands still");
        }
        ids
    }

    /// Ends all connections, and checks that nothing is left.
    pub(crate) fn end(mut self) -> (Target, Host) {
        self.network.stop_faults();
        // What is connecting is connected, or has given up.
        self.settle(Duration::from_secs(4));
        let now = self.now();
        for connection in self.host.live.clone() {
            self.host.port.close(connection, now);
        }
        self.settle(Duration::from_secs(15));
        assert_eq!(self.network.misuses(), Vec::<String>::new());
        assert_eq!(self.host.outstanding(), 0, "commands of the host are left");
        assert_eq!(self.host.port.connections(), 0, "connections of the host are left");
        self.target.assert_idle();
        self.target.port.end();
        // The buffers of both.
        assert_eq!(self.network.leftovers(), (2, 0), "registrations and connections");
        (self.target, self.host)
    }
}
