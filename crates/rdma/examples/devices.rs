//! Both ends of NVMe/RDMA over a real device of this machine: writes, reads and compares, then ends in order.
//!
//! `cargo run -p raceline-rdma --example devices ADDRESS [COMMANDS]`, where an RDMA device has the address.

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use raceline_proto::nvme::{CommandId, Cqe, QueueId, Sqe};
use raceline_proto::rdma::{CapsuleLimits, GrantLimits, HostData, KeyedBlock, QueueRequest};
use raceline_rdma::device::RdmaDevice;
use raceline_rdma::verbs::{Access, ConnectionId, DomainId, Provider, Region};
use raceline_rdma::{
    CommandToken, ConnectConfig, HostEvent, HostPort, HostPortEvent, HostTransfer, PortConfig,
    TargetEvent, TargetPort, TargetPortEvent,
};

/// Bytes of a command's data, commands at a time, and places on the disk.
const BYTES: u32 = 4096;
const DEPTH: u16 = 31;
const PLACES: u32 = 256;
const READ: u8 = 2;
const WRITE: u8 = 1;
const PORT: u16 = 4420;

type Failure = Box<dyn Error>;

fn port_config() -> PortConfig {
    PortConfig {
        grant: GrantLimits { admin_entries: 32, io_entries: 32, io_queues: 4, reads: 8 },
        io: CapsuleLimits { in_capsule_bytes: 4096, descriptors: 16, transfer_bytes: BYTES },
        shared_receives: 256,
        connections: 4,
        stuck_after: Duration::from_secs(30),
        establish_within: Duration::from_secs(10),
        drain_within: Duration::from_secs(1),
    }
}

/// A target whose disk is registered memory: data go to and from it without a copy.
struct Target {
    port: TargetPort<RdmaDevice>,
    disk: Region,
    reading: HashMap<u16, CommandId>,
    closed: bool,
}

impl Target {
    fn turn(&mut self, now: Instant) -> Result<(), Failure> {
        self.port.poll(now);
        while let Some((id, event)) = self.port.poll_event() {
            match event {
                TargetPortEvent::Accepted { grant, .. } => println!("target: {grant:?}"),
                TargetPortEvent::Refused { refusal, .. } => println!("target: refused: {refusal}"),
                TargetPortEvent::Closed => self.closed = true,
                TargetPortEvent::Queue(TargetEvent::Command { token, sqe, data }) => {
                    self.begin(id, token, &sqe, data.map_err(|status| status.to_string())?)?;
                }
                TargetPortEvent::Queue(TargetEvent::DataHere(token)) => {
                    let cid = self.reading.remove(&token.slot()).ok_or("data of no command")?;
                    self.answer(id, token, cid, None)?;
                }
                TargetPortEvent::Queue(TargetEvent::Lost(loss)) => println!("target: {loss}"),
                TargetPortEvent::Queue(_) | TargetPortEvent::Asked(_) => {}
            }
        }
        self.port.settle(now);
        Ok(())
    }

    fn begin(
        &mut self,
        id: ConnectionId,
        token: CommandToken,
        sqe: &Sqe,
        data: HostData,
    ) -> Result<(), Failure> {
        let place = self.disk.slice(sqe.cdw10.get() % PLACES * BYTES, data.len());
        let cid = sqe.command_id();
        match (sqe.opc, data) {
            (READ, _) => return self.answer(id, token, cid, Some(place)),
            (_, HostData::InCapsule { .. }) => {
                let (queue, provider) = self.port.queue_and_provider(id).ok_or("no queue")?;
                let (capsules, at, len) = queue.in_capsule(&token, &data);
                let mut bytes = vec![0; usize::try_from(len)?];
                provider.read(&capsules, at, &mut bytes);
                provider.write(&self.disk, sqe.cdw10.get() % PLACES * BYTES, &bytes);
                return self.answer(id, token, cid, None);
            }
            _ => {}
        }
        self.reading.insert(token.slot(), cid);
        self.port.queue(id).ok_or("no queue")?.read_host_data(token, place);
        Ok(())
    }

    fn answer(
        &mut self,
        id: ConnectionId,
        token: CommandToken,
        cid: CommandId,
        data: Option<raceline_rdma::verbs::Slice>,
    ) -> Result<(), Failure> {
        let cqe = Cqe { cid, ..Cqe::default() };
        self.port.queue(id).ok_or("no queue")?.respond(token, cqe, data, 0);
        Ok(())
    }
}

/// A host that writes every place, reads it and compares.
struct Host {
    port: HostPort<RdmaDevice>,
    memory: Region,
    free: Vec<u32>,
    flights: HashMap<CommandId, (u32, u32, u8)>,
    next: u32,
    live: Option<ConnectionId>,
    done: u32,
    closed: bool,
}

/// What a place holds.
fn content(place: u32) -> [u8; 4096] {
    let [a, b, ..] = place.wrapping_mul(0x9e37_79b9).to_be_bytes();
    let mut bytes = [a; 4096];
    bytes[..2048].fill(b);
    bytes
}

impl Host {
    fn turn(&mut self, now: Instant) -> Result<(), Failure> {
        self.port.poll(now);
        while let Some((id, event)) = self.port.poll_event() {
            match event {
                HostPortEvent::Connected => self.live = Some(id),
                HostPortEvent::Failed(error) => return Err(error.into()),
                HostPortEvent::Closed => self.closed = true,
                HostPortEvent::Queue(HostEvent::Completed { cid, cqe, .. }) => {
                    self.complete(cid, &cqe)?;
                }
                HostPortEvent::Queue(event) => println!("host: {event:?}"),
            }
        }
        Ok(())
    }

    /// Writes all places in turns with reads of what is written.
    fn submit(&mut self, commands: u32) -> Result<(), Failure> {
        while self.next < commands
            && let (Some(id), Some(&slot)) = (self.live, self.free.last())
        {
            let (place, round) = (self.next % PLACES, self.next / PLACES % 2);
            // A read may not overtake the write of its place.
            if self.flights.values().any(|&(_, busy, _)| busy == place) {
                return Ok(());
            }
            let opc = if round == 0 { WRITE } else { READ };
            let at = slot * BYTES;
            let start = if opc == WRITE { content(place) } else { [0xee; 4096] };
            self.port.provider().write(&self.memory, at, &start);
            let block = KeyedBlock {
                address: self.memory.address + u64::from(at),
                len: BYTES,
                key: self.memory.rkey,
            };
            let sqe = Sqe { opc, cdw10: place.into(), ..Sqe::default() };
            let transfer = match place % 3 {
                0 if opc == WRITE => HostTransfer::InCapsule(&start),
                1 => HostTransfer::List(&[
                    KeyedBlock { len: 100, ..block },
                    KeyedBlock { address: block.address + 100, len: BYTES - 100, ..block },
                ]),
                _ => HostTransfer::Keyed { block, invalidate: false },
            };
            let (queue, provider) = self.port.queue(id).ok_or("no queue")?;
            let Ok(cid) = queue.submit(provider, &sqe, transfer) else { return Ok(()) };
            self.free.pop();
            self.flights.insert(cid, (slot, place, opc));
            self.next += 1;
        }
        Ok(())
    }

    fn complete(&mut self, cid: CommandId, cqe: &Cqe) -> Result<(), Failure> {
        let (slot, place, opc) = self.flights.remove(&cid).ok_or("an unknown command")?;
        if !cqe.status.is_success() {
            return Err(cqe.status.to_string().into());
        }
        if opc == READ {
            let mut bytes = [0; 4096];
            self.port.provider().read(&self.memory, slot * BYTES, &mut bytes);
            if bytes != content(place) {
                return Err(format!("place {place} does not hold what was written").into());
            }
        }
        self.free.push(slot);
        self.done += 1;
        Ok(())
    }
}

fn run(address: IpAddr, commands: u32) -> Result<(), Failure> {
    let (mut device, mut host_device) = (
        RdmaDevice::open((address, PORT).into(), 1024)?,
        RdmaDevice::open_towards((address, PORT).into(), 1024)?,
    );
    println!("{:?}", device.capabilities());
    let is_iwarp = device.capabilities().is_iwarp;
    let access = if is_iwarp { Access::HOST_DATA } else { Access::LOCAL };
    let disk = device.register(DomainId::OWN, PLACES * BYTES, access)?;
    let memory =
        host_device.register(DomainId::OWN, u32::from(DEPTH) * BYTES, Access::HOST_DATA)?;
    device.listen(SocketAddr::new(address, PORT))?;
    let port = TargetPort::new(device, port_config());
    let mut target = Target { port, disk, reading: HashMap::new(), closed: false };
    let mut host = Host {
        port: HostPort::new(host_device),
        memory,
        free: (0..DEPTH.into()).collect(),
        flights: HashMap::new(),
        next: 0,
        live: None,
        done: 0,
        closed: false,
    };
    let request = QueueRequest { qid: QueueId(1), receives: 32, entries: 32, cntlid: None };
    let address = SocketAddr::new(address, PORT);
    let start = Instant::now();
    host.port.connect(
        ConnectConfig {
            address,
            source: None,
            domain: DomainId::OWN,
            request,
            capsule_len: 64 + 4096,
        },
        start,
    )?;
    let mut checked = start;
    while !(host.closed && target.closed) {
        let now = Instant::now();
        host.turn(now)?;
        host.submit(commands)?;
        target.turn(now)?;
        if host.done == commands
            && let Some(id) = host.live.take()
        {
            println!("{commands} commands in {:?}, compared", start.elapsed());
            host.port.close(id, now);
        }
        if now > checked + Duration::from_millis(500) {
            checked = now;
            host.port.check_deadlines(now);
            target.port.check_deadlines(now);
        }
        if now > start + Duration::from_secs(300) {
            return Err(format!("{} of {commands} commands after 300 s", host.done).into());
        }
    }
    println!("both ends have ended");
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let address = words.next().ok_or("usage: devices ADDRESS [COMMANDS]")?.parse()?;
    let commands = words.next().map_or(Ok(2048), |text| text.parse())?;
    run(address, commands)
}
