//! Both ends of queues over a device that does anything: [`wild`](super::wild). Each command ends once, each buffer comes back
//! once, and at the end nothing is left. The fuzz target `rdma_queues` runs the same with inputs of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::{CommandId, Cqe, QueueId, Sqe, Status};
use raceline_proto::rdma::{CapsuleLimits, GrantLimits, HostData, KeyedBlock, QueueRequest};
use raceline_rdma::verbs::{Access, ConnectionId, DomainId, Provider, Region};
use raceline_rdma::{
    CommandToken, ConnectConfig, HostEvent, HostPort, HostPortEvent, HostTransfer, PortConfig,
    TargetEvent, TargetPort, TargetPortEvent,
};
use zerocopy::{FromZeros, IntoBytes};

use super::wild::{Input, Wild};

const TRANSFER: u32 = 8192;
const BUFFERS: u32 = 64;

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4420))
}

/// A device of iWARP by the lowest bit, and otherwise as [`Wild::vary`] says.
fn wild_of(kind: u8) -> Wild {
    Wild::new(address(), kind & 1 != 0).vary(kind)
}

fn limits() -> CapsuleLimits {
    CapsuleLimits { in_capsule_bytes: 256, descriptors: 4, transfer_bytes: TRANSFER }
}

/// Bytes of a capsule: mostly a command whose descriptor means something.
fn capsule(input: &mut Input<'_>) -> Vec<u8> {
    let mut sqe = Sqe::new_zeroed();
    let kind = input.below(8);
    (sqe.opc, sqe.flags) = (1 + input.byte() % 2, Sqe::PSDT_SGL);
    sqe.cid = u16::from(input.byte() % 8).into();
    let len = u32::from(input.byte()) * 16;
    let block = KeyedBlock { address: 0x1000, len, key: u32::from(input.byte()) };
    let mut behind = Vec::new();
    match kind {
        0 => return (0..input.below(80)).map(|_| input.byte()).collect(),
        1 | 2 => {
            sqe.sgl1 = raceline_proto::nvme::SglDescriptor::in_capsule(len);
            behind.resize(input.below(200), 0xa5);
        }
        3 => {
            let count = 1 + input.below(5);
            sqe.sgl1 = KeyedBlock::list_descriptor(count);
            for _ in 0..count {
                let block = KeyedBlock { len: u32::from(input.byte()), ..block };
                behind.extend_from_slice(block.descriptor(false).as_bytes());
            }
        }
        4 => sqe.sgl1 = block.descriptor(true),
        _ => sqe.sgl1 = block.descriptor(false),
    }
    let mut bytes = sqe.as_bytes().to_vec();
    bytes.extend(behind);
    bytes
}

// -------------------------------------------------------------------------- target

/// A command, and where its data are.
type Asked = (Sqe, Result<HostData, Status>);

/// A target's driver that answers in any order.
struct Target {
    port: TargetPort<Wild>,
    buffers: Region,
    free: Vec<u32>,
    jobs: Vec<(ConnectionId, CommandToken, Asked, Option<u32>)>,
    reading: BTreeMap<(ConnectionId, u16), (Asked, u32)>,
    lent: BTreeSet<u32>,
    seen: Seen,
}

/// What a sequence has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Commands that came to the target, or that the host has sent.
    pub(crate) commands: u32,
    /// Commands whose data came, or that were answered.
    pub(crate) successes: u32,
    /// Commands whose data did not come, or that were lost with their queue.
    pub(crate) losses: u32,
}

impl Target {
    fn new(kind: u8) -> Self {
        let (mut device, shares) = (wild_of(kind), kind & 2 != 0);
        let buffers =
            device.register(DomainId::OWN, BUFFERS * TRANSFER, Access::HOST_DATA).expect("memory");
        let config = PortConfig {
            grant: GrantLimits { admin_entries: 8, io_entries: 8, io_queues: 2, reads: 4 },
            io: limits(),
            shared_receives: if shares { 20 } else { 0 },
            connections: 4,
            stuck_after: Duration::from_secs(30),
            establish_within: Duration::from_secs(10),
            drain_within: Duration::from_secs(1),
        };
        Self {
            port: TargetPort::new(device, config),
            buffers,
            free: (0..BUFFERS).collect(),
            jobs: Vec::new(),
            reading: BTreeMap::new(),
            lent: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    fn release(&mut self, buffer: u32) {
        assert!(!self.free.contains(&buffer), "a buffer comes back twice");
        self.free.push(buffer);
    }

    fn turn(&mut self, now: Instant) {
        self.port.poll(now);
        while let Some((connection, event)) = self.port.poll_event() {
            match event {
                TargetPortEvent::Queue(TargetEvent::Command { token, sqe, data }) => {
                    self.seen.commands += 1;
                    self.jobs.push((connection, token, (sqe, data), None));
                }
                TargetPortEvent::Queue(TargetEvent::DataHere(token)) => {
                    self.seen.successes += 1;
                    let known = self.reading.remove(&(connection, token.slot()));
                    let (asked, buffer) = known.expect("data that were asked for");
                    self.jobs.push((connection, token, asked, Some(buffer)));
                }
                TargetPortEvent::Queue(TargetEvent::DataLost(slot)) => {
                    self.seen.losses += 1;
                    let known = self.reading.remove(&(connection, slot));
                    self.release(known.expect("data that were asked for").1);
                }
                TargetPortEvent::Queue(TargetEvent::Responded(u32::MAX)) => {}
                TargetPortEvent::Queue(TargetEvent::Responded(tag)) => {
                    assert!(self.lent.remove(&tag), "a buffer that was not lent");
                    self.release(tag);
                }
                TargetPortEvent::Closed => {
                    let has_any = self.jobs.iter().any(|job| job.0 == connection);
                    assert!(!has_any, "a connection has closed while commands are executed");
                }
                _ => {}
            }
        }
    }

    /// Something becomes of a command: its data are fetched, or it is answered.
    fn execute(&mut self, input: &mut Input<'_>, may_fetch: bool) {
        if self.jobs.is_empty() {
            return;
        }
        let (connection, token, (sqe, data), buffer) = {
            let at = input.below(self.jobs.len());
            self.jobs.swap_remove(at)
        };
        let cid = sqe.command_id();
        let here = data.as_ref().ok().filter(|data| !data.is_empty());
        let len = match here {
            Some(HostData::InCapsule { .. }) | None => 0,
            Some(data) => data.len(),
        };
        if let Some(HostData::InCapsule { .. }) = here {
            let (queue, provider) = self.port.queue_and_provider(connection).expect("it is there");
            let (capsules, at, len) = queue.in_capsule(&token, here.expect("it is there"));
            let mut bytes = vec![0; usize::try_from(len).expect("it fits")];
            provider.read(&capsules, at, &mut bytes);
        }
        let wants_data = len > 0 && buffer.is_none() && input.below(4) > 0;
        if wants_data
            && may_fetch
            && sqe.opc == 1
            && let Some(buffer) = self.free.pop()
        {
            let place = self.buffers.slice(buffer * TRANSFER, len);
            let key = (connection, token.slot());
            assert!(self.reading.insert(key, ((sqe, data), buffer)).is_none(), "a slot twice");
            return self.port.queue(connection).expect("it is there").read_host_data(token, place);
        }
        let (mut tag, mut place) = (u32::MAX, None);
        if let Some(buffer) = buffer {
            tag = buffer;
        } else if wants_data
            && sqe.opc == 2
            && let Some(buffer) = self.free.pop()
        {
            tag = buffer;
            place = Some(self.buffers.slice(buffer * TRANSFER, len));
        }
        if tag != u32::MAX {
            assert!(self.lent.insert(tag), "a buffer is lent twice");
        }
        let cqe = Cqe { cid, ..Cqe::default() };
        self.port.queue(connection).expect("it is there").respond(token, cqe, place, tag);
    }
}

/// The target's end. The first byte is what the device is, then come steps.
pub(crate) fn run_target(data: &[u8]) -> Seen {
    let mut input = Input(data);
    let kind = input.byte();
    let mut target = Target::new(kind);
    let mut now = Instant::now();
    for _ in 0..2 {
        target.port.provider().ask_well();
    }
    target.turn(now);
    target.port.provider().go_on_with_all();
    while !input.0.is_empty() {
        match input.below(16) {
            0 => target.port.provider().ask(&mut input),
            1 if input.below(16) == 0 => target.port.provider().say(&mut input),
            1 | 2 => target.port.provider().go_on(&mut input),
            3 if input.below(16) == 0 => target.port.provider().takes = Some(input.below(6)),
            3 => target.port.provider().end_send(&mut input),
            4 => target.port.provider().refuses_memory = input.below(4) == 0,
            5 => {
                now += Duration::from_millis(u64::from(input.byte()) * 4);
                target.port.check_deadlines(now);
            }
            6 if input.below(64) == 0 => target.port.provider().remove(),
            6..8 => target.port.provider().end_send(&mut input),
            8..11 => {
                let message = capsule(&mut input);
                target.port.provider().end_receive(None, &message, &mut input);
            }
            11..14 => target.execute(&mut input, true),
            14 => target.port.settle(now),
            _ => target.turn(now),
        }
    }
    finish_target(target, now)
}

/// Everything ends, whatever has happened.
fn finish_target(mut target: Target, mut now: Instant) -> Seen {
    target.port.provider().takes = None;
    for _ in 0..8 {
        target.turn(now);
        while !target.jobs.is_empty() {
            target.execute(&mut Input(&[]), false);
        }
        target.port.provider().flush_all();
        target.turn(now);
        // Who was not established, and who does not drain, is given up.
        now += Duration::from_secs(40);
        target.port.check_deadlines(now);
        let mut none = Input(&[]);
        for _ in 0..target.port.connections() {
            target.port.provider().say(&mut none);
            target.turn(now);
        }
    }
    assert_eq!(target.port.connections(), 0, "connections are left");
    assert!(target.lent.is_empty() && target.reading.is_empty(), "buffers are left");
    assert_eq!(target.free.len(), usize::try_from(BUFFERS).expect("it fits"));
    target.port.end();
    assert_eq!(target.port.provider().leftovers(), (1, 0), "registrations and connections");
    target.seen
}

// -------------------------------------------------------------------------- host

/// The host's end. The first byte is what the device is, then come steps.
pub(crate) fn run_host(data: &[u8]) -> Seen {
    let mut input = Input(data);
    let mut device = wild_of(input.byte());
    let memory = device.register(DomainId::OWN, TRANSFER, Access::HOST_DATA).expect("memory");
    let mut port = HostPort::new(device);
    let mut now = Instant::now();
    let mut outstanding = Outstanding::default();
    for _ in 0..2 {
        connect(&mut port, &mut outstanding, now, &mut Input(&[4, 1]));
        turn_host(&mut port, &mut outstanding, now);
        port.provider().go_on_with_all();
        turn_host(&mut port, &mut outstanding, now);
        port.provider().go_on_with_all();
        turn_host(&mut port, &mut outstanding, now);
    }
    while !input.0.is_empty() {
        match input.below(12) {
            0 => connect(&mut port, &mut outstanding, now, &mut input),
            1 if input.below(16) == 0 => port.provider().say(&mut input),
            1 | 2 => port.provider().go_on(&mut input),
            3 if input.below(16) == 0 => port.provider().takes = Some(input.below(6)),
            4 if input.below(64) == 0 => port.provider().remove(),
            4 => {
                now += Duration::from_millis(u64::from(input.byte()) * 2);
                port.check_deadlines(now);
            }
            5 | 6 => submit(&mut port, &memory, &mut outstanding, &mut input),
            7 => port.provider().end_send(&mut input),
            8 | 9 => answer(&mut port, &outstanding, &mut input),
            10 => drop(port.post()),
            _ => turn_host(&mut port, &mut outstanding, now),
        }
    }
    port.provider().takes = None;
    for _ in 0..8 {
        turn_host(&mut port, &mut outstanding, now);
        port.provider().flush_all();
        now += Duration::from_secs(40);
        port.check_deadlines(now);
        let mut none = Input(&[]);
        for _ in 0..port.connections() {
            port.provider().say(&mut none);
            turn_host(&mut port, &mut outstanding, now);
        }
    }
    assert_eq!(port.connections(), 0, "connections are left");
    assert!(outstanding.commands.is_empty(), "commands have not ended");
    assert_eq!(port.provider().leftovers(), (1, 0), "registrations and connections");
    outstanding.seen
}

fn connect(
    port: &mut HostPort<Wild>,
    outstanding: &mut Outstanding,
    now: Instant,
    input: &mut Input<'_>,
) {
    let entries = 2 + u16::from(input.byte() % 6);
    let qid = QueueId(u16::from(input.byte() % 2));
    let request = QueueRequest { qid, receives: entries, entries: entries.into(), cntlid: None };
    let capsule_len = if qid.is_admin() { 64 } else { 128 };
    let config = ConnectConfig {
        address: address(),
        source: None,
        domain: DomainId::OWN,
        request,
        capsule_len,
    };
    outstanding.connections.extend(port.connect(config, now));
}

/// A response comes: mostly of a command that waits for it.
fn answer(port: &mut HostPort<Wild>, outstanding: &Outstanding, input: &mut Input<'_>) {
    let waiting = outstanding.commands.len();
    let known = outstanding.commands.iter().nth(input.below(waiting.max(1)));
    let known = known.filter(|_| input.below(32) > 0).copied();
    let cid = known.map_or(CommandId(3), |(_, cid)| cid);
    let mut message = Cqe { cid, ..Cqe::default() }.to_bytes().to_vec();
    if input.below(64) == 0 {
        message.truncate(input.below(17));
    }
    port.provider().end_receive(known.map(|(connection, _)| connection), &message, input);
}

/// Commands of the host that have not ended.
#[derive(Default)]
struct Outstanding {
    connections: Vec<ConnectionId>,
    commands: BTreeSet<(ConnectionId, CommandId)>,
    seen: Seen,
}

fn submit(
    port: &mut HostPort<Wild>,
    memory: &Region,
    outstanding: &mut Outstanding,
    input: &mut Input<'_>,
) {
    let known = outstanding.connections.len();
    let id = outstanding.connections[input.below(known)];
    let Some((queue, provider)) = port.queue(id) else { return };
    let block = KeyedBlock { address: memory.address, len: TRANSFER, key: memory.rkey };
    let list = [block; 3];
    let bytes = [0x5a; 80];
    let transfer = match input.below(6) {
        0 => HostTransfer::None,
        // The memory has room for some of these lengths.
        5 => {
            let more = u32::try_from(input.below(33)).unwrap_or(0);
            HostTransfer::CapsuleIn { memory: *memory, len: TRANSFER - 80 + more }
        }
        1 => HostTransfer::InCapsule(&bytes[..input.below(81)]),
        2 => HostTransfer::List(&list),
        kind => HostTransfer::Keyed { block, invalidate: kind == 3 },
    };
    if let Ok(cid) = queue.submit(provider, &Sqe::default(), transfer) {
        outstanding.seen.commands += 1;
        assert!(outstanding.commands.insert((id, cid)), "an identifier twice");
    }
}

fn turn_host(port: &mut HostPort<Wild>, outstanding: &mut Outstanding, now: Instant) {
    port.poll(now);
    while let Some((id, event)) = port.poll_event() {
        match event {
            HostPortEvent::Queue(HostEvent::Completed { cid, .. }) => {
                outstanding.seen.successes += 1;
                assert!(outstanding.commands.remove(&(id, cid)), "a command ends twice");
            }
            HostPortEvent::Queue(HostEvent::Ended(cid)) => {
                outstanding.seen.losses += 1;
                assert!(outstanding.commands.remove(&(id, cid)), "a command ends twice");
            }
            HostPortEvent::Closed => {
                assert!(
                    outstanding.commands.iter().all(|(of, _)| *of != id),
                    "commands have not ended"
                );
            }
            _ => {}
        }
    }
}
