//! A blocking NVMe/TCP host for tests: one socket, PDUs by hand where a test wants them broken.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod chap;
pub mod hosts;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{
    CommandId, ControllerId, Cqe, Direction, HostId, NamespaceId, Nqn, QueueId, Sqe, Status,
};
use raceline_proto::tcp::{HostEvent, HostQueue, HostQueueConfig, R2tGrant, TermReq};
use raceline_target::{HostAccess, NamespaceConfig, SubsystemConfig, Target, TargetConfig};
use zerocopy::IntoBytes;

/// How long a test waits for the target before it fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn nqn() -> Nqn {
    Nqn::new("nqn.2026-01.io.raceline:test").unwrap()
}

pub fn host_nqn() -> Nqn {
    Nqn::new("nqn.2026-01.io.raceline:host").unwrap()
}

pub fn ram(size: &str) -> SharedBdev {
    let identity = raceline_bdev::Identity::of_this_machine();
    raceline_bdev::open(&format!("ram:{size}").parse().unwrap(), &identity).unwrap()
}

pub fn subsystem() -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn(),
        serial: "TEST0001".into(),
        model: "Raceline".into(),
        hosts: HostAccess::Any,
        ..SubsystemConfig::new(nqn())
    }
}

pub fn namespace(bdev: SharedBdev) -> NamespaceConfig {
    NamespaceConfig::new(bdev)
}

/// A target with one subsystem over these devices, and where it listens.
pub fn start(config: TargetConfig, devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    let target = Target::start(config).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    for device in devices {
        target.add_namespace(&nqn(), namespace(device)).unwrap();
    }
    let address = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    (target, address)
}

/// Small pools, unpinned cores that sleep when idle.
pub fn config(cores: usize) -> TargetConfig {
    TargetConfig {
        cores: (0..cores).map(|core| core % allowed_cores()).collect(),
        mode: raceline_reactor::Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    }
}

fn allowed_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Waits until `what` holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connection from a chosen loopback address.
pub fn dial_from(source: [u8; 4], address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(IpAddr::from(source), 0).into())?;
    socket.connect_timeout(&address.into(), PATIENCE)?;
    Ok(socket.into())
}

/// An event of the queue that owns its data.
#[derive(Debug)]
pub enum Heard {
    Connected,
    Response(Cqe),
    Data { cid: CommandId, offset: u32, bytes: Vec<u8> },
    DataEnd { cid: CommandId, bytes: Range<usize>, ddgst: Option<u32>, success: bool },
    SendData(R2tGrant),
    Terminated(TermReq),
    Closed,
}

/// The data and the end of a command.
#[derive(Debug)]
pub struct Answer {
    pub cqe: Cqe,
    pub data: Vec<u8>,
}

/// One queue's connection.
pub struct RawHost {
    pub stream: TcpStream,
    pub queue: HostQueue,
    input: Vec<u8>,
    next_cid: u16,
    pub heard: Vec<Heard>,
}

/// What a connection asks for.
#[derive(Clone, Copy, Default)]
pub struct Wants {
    pub hdgst: bool,
    pub ddgst: bool,
    pub hpda: u8,
}

impl RawHost {
    /// A socket without ICReq.
    pub fn dial(address: SocketAddr, wants: Wants) -> Self {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE).unwrap(), wants)
    }

    /// The same over a socket that is connected.
    pub fn over(stream: TcpStream, wants: Wants) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let Wants { hdgst, ddgst, hpda } = wants;
        let queue = HostQueue::new(HostQueueConfig { hpda, hdgst, ddgst, maxr2t: 0, slots: 1024 });
        Self { stream, queue, input: Vec::new(), next_cid: 1, heard: Vec::new() }
    }

    /// A socket with ICReq and ICResp exchanged.
    pub fn open(address: SocketAddr, wants: Wants) -> Self {
        let mut host = Self::dial(address, wants);
        host.greet();
        host
    }

    /// Exchanges ICReq and ICResp.
    pub fn greet(&mut self) {
        let mut out = Vec::new();
        self.queue.ic_req(&mut out);
        self.stream.write_all(&out).unwrap();
        assert!(matches!(self.listen(), Heard::Connected));
    }

    /// An admin queue whose controller is enabled; gives its number.
    pub fn admin(address: SocketAddr, wants: Wants) -> (Self, ControllerId) {
        let mut host = Self::open(address, wants);
        let cqe = host.connect(QueueId::ADMIN, 32, ControllerId::DYNAMIC);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        let cntlid = ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap());
        assert!(host.set_property(0x14, 0x0046_0001).status.is_success());
        assert_eq!(host.get_property(0x1c) & 1, 1, "CSTS.RDY");
        (host, cntlid)
    }

    /// An I/O queue of a controller.
    pub fn io(address: SocketAddr, cntlid: ControllerId, qid: u16, wants: Wants) -> Self {
        let mut host = Self::open(address, wants);
        let cqe = host.connect(QueueId(qid), 128, cntlid);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        host
    }

    pub fn connect(&mut self, qid: QueueId, entries: u16, cntlid: ControllerId) -> Cqe {
        self.connect_as(qid, entries, cntlid, &nqn(), &host_nqn(), 0)
    }

    pub fn connect_as(
        &mut self,
        qid: QueueId,
        entries: u16,
        cntlid: ControllerId,
        subnqn: &Nqn,
        hostnqn: &Nqn,
        kato: u32,
    ) -> Cqe {
        let words = ConnectWords { recfmt: 0, qid, sqsize: entries - 1, cattr: 4, kato };
        let data = ConnectData::new(HostId([7; 16]), cntlid, subnqn, hostnqn);
        self.connect_with(words, &data)
    }

    pub fn connect_with(&mut self, words: ConnectWords, data: &ConnectData) -> Cqe {
        self.write_command(words.to_sqe(), data.as_bytes(), true).cqe
    }

    pub fn set_property(&mut self, offset: u32, value: u64) -> Cqe {
        let sqe = Sqe {
            opc: fabrics::OPCODE,
            nsid: u32::from(fabrics::PROPERTY_SET).into(),
            cdw11: offset.into(),
            cdw12: u32::try_from(value & 0xffff_ffff).unwrap().into(),
            ..Sqe::default()
        };
        self.plain_command(sqe).cqe
    }

    pub fn get_property(&mut self, offset: u32) -> u32 {
        let sqe = Sqe {
            opc: fabrics::OPCODE,
            nsid: u32::from(fabrics::PROPERTY_GET).into(),
            cdw11: offset.into(),
            ..Sqe::default()
        };
        let answer = self.plain_command(sqe);
        assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
        answer.cqe.dw0
    }

    // ------------------------------------------------------------------ commands

    fn tag(&mut self, mut sqe: Sqe) -> Sqe {
        sqe.cid = self.next_cid.into();
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe
    }

    /// Sends a command; gives its identifier.
    pub fn submit(&mut self, sqe: Sqe, direction: Direction, len: u32) -> CommandId {
        let sqe = self.tag(sqe);
        let mut out = Vec::new();
        self.queue.command(&sqe, direction, len, false, &mut out);
        self.stream.write_all(&out).unwrap();
        sqe.command_id()
    }

    /// Sends a command whose bytes `patch` changes first, and waits for its end.
    pub fn patched_command(
        &mut self,
        sqe: Sqe,
        direction: Direction,
        len: u32,
        patch: impl FnOnce(&mut [u8]),
    ) -> Answer {
        let sqe = self.tag(sqe);
        let mut out = Vec::new();
        self.queue.command(&sqe, direction, len, false, &mut out);
        patch(&mut out);
        self.stream.write_all(&out).unwrap();
        self.wait(sqe.command_id(), &[])
    }

    /// Sends a command with its data in the capsule.
    pub fn submit_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> CommandId {
        let (cid, capsule) = self.capsule(sqe, data);
        self.stream.write_all(&capsule).unwrap();
        cid
    }

    /// The bytes of a command with its data in the capsule.
    pub fn capsule(&mut self, sqe: Sqe, data: &[u8]) -> (CommandId, Vec<u8>) {
        let sqe = self.tag(sqe);
        let mut out = Vec::new();
        let len = u32::try_from(data.len()).unwrap();
        self.queue.command(&sqe, Direction::HostToController, len, true, &mut out);
        out.extend_from_slice(data);
        self.push_digest(data, &mut out);
        (sqe.command_id(), out)
    }

    /// Sends these bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn push_digest(&self, data: &[u8], out: &mut Vec<u8>) {
        if self.queue.data_digest() {
            out.extend_from_slice(&raceline_accel::crc32c(data).to_le_bytes());
        }
    }

    pub fn plain_command(&mut self, sqe: Sqe) -> Answer {
        let cid = self.submit(sqe, Direction::None, 0);
        self.wait(cid, &[])
    }

    pub fn read_command(&mut self, sqe: Sqe, len: u32) -> Answer {
        let cid = self.submit(sqe, Direction::ControllerToHost, len);
        self.wait(cid, &[])
    }

    pub fn write_command(&mut self, sqe: Sqe, data: &[u8], in_capsule: bool) -> Answer {
        let cid = if in_capsule {
            self.submit_in_capsule(sqe, data)
        } else {
            self.submit(sqe, Direction::HostToController, u32::try_from(data.len()).unwrap())
        };
        self.wait(cid, data)
    }

    pub fn read(&mut self, nsid: u32, slba: u64, blocks: u32, block_size: u32) -> Answer {
        self.read_command(block_sqe(io::READ, nsid, slba, blocks), blocks * block_size)
    }

    pub fn write(&mut self, nsid: u32, slba: u64, data: &[u8], block_size: u32) -> Answer {
        let blocks = u32::try_from(data.len()).unwrap() / block_size;
        let in_capsule = data.len() <= 8192;
        self.write_command(block_sqe(io::WRITE, nsid, slba, blocks), data, in_capsule)
    }

    pub fn identify_controller(&mut self) -> Vec<u8> {
        let sqe = Sqe { opc: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
        let answer = self.read_command(sqe, 4096);
        assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
        answer.data
    }

    /// Waits for the end of a command; sends `data` when the target asks for it.
    pub fn wait(&mut self, cid: CommandId, data: &[u8]) -> Answer {
        let mut received = Vec::new();
        // What has come while others were waited for.
        let is_own = |heard: &mut Heard| match heard {
            Heard::Response(cqe) => cqe.cid == cid,
            Heard::Data { cid: of, .. } | Heard::DataEnd { cid: of, .. } => *of == cid,
            Heard::SendData(grant) => grant.cid == cid && !data.is_empty(),
            _ => false,
        };
        let mut early = self.heard.extract_if(.., is_own).collect::<Vec<_>>().into_iter();
        loop {
            match early.next().unwrap_or_else(|| self.listen()) {
                Heard::Response(cqe) if cqe.cid == cid => return Answer { cqe, data: received },
                Heard::Data { cid: of, offset, bytes } if of == cid => {
                    let end = offset as usize + bytes.len();
                    received.resize(received.len().max(end), 0);
                    received[offset as usize..end].copy_from_slice(&bytes);
                }
                Heard::DataEnd { cid: of, bytes, ddgst, success } if of == cid => {
                    if let Some(ddgst) = ddgst {
                        assert_eq!(ddgst, raceline_accel::crc32c(&received[bytes]), "data digest");
                    }
                    if success {
                        let cqe = Cqe { cid, ..Cqe::default() };
                        return Answer { cqe, data: received };
                    }
                }
                Heard::SendData(grant) if grant.cid == cid => self.send_data(&grant, data),
                other => self.heard.push(other),
            }
            if let Some(Heard::Closed | Heard::Terminated(_)) = self.heard.last() {
                panic!("the connection ended while {cid} was outstanding: {:?}", self.heard);
            }
        }
    }

    pub fn send_data(&mut self, grant: &R2tGrant, data: &[u8]) {
        let mut offset = grant.offset;
        let end = grant.offset + grant.len;
        while offset < end {
            let len = (end - offset).min(self.queue.max_h2c_data()).min(48 << 10);
            let mut out = Vec::new();
            self.queue.h2c_data(grant, offset, len, offset + len == end, &mut out);
            let part = &data[offset as usize..(offset + len) as usize];
            out.extend_from_slice(part);
            self.push_digest(part, &mut out);
            self.stream.write_all(&out).unwrap();
            offset += len;
        }
    }

    /// The next event.
    pub fn listen(&mut self) -> Heard {
        loop {
            let mut rest = &self.input[..];
            let heard = self.queue.receive(&mut rest).unwrap().map(own);
            let used = self.input.len() - rest.len();
            self.input.drain(..used);
            if let Some(heard) = heard {
                return heard;
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Heard::Closed,
                Ok(len) => self.input.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Heard::Closed;
                }
                Err(error) => panic!("nothing from the target: {error}"),
            }
        }
    }

    /// Reads until the target closes; gives the TermReq that came before, if any.
    pub fn until_closed(&mut self) -> Option<TermReq> {
        let mut term = None;
        loop {
            match self.listen() {
                Heard::Closed => return term,
                Heard::Terminated(info) => term = Some(info),
                _ => {}
            }
        }
    }

    /// The TermReq that comes next.
    pub fn expect_term_req(&mut self) -> TermReq {
        loop {
            match self.listen() {
                Heard::Terminated(info) => return info,
                Heard::Closed => panic!("closed without C2HTermReq"),
                _ => {}
            }
        }
    }
}

fn own(event: HostEvent<'_>) -> Heard {
    match event {
        HostEvent::Connected(_) => Heard::Connected,
        HostEvent::Response(cqe) => Heard::Response(cqe),
        HostEvent::Data { cid, offset, bytes } => {
            Heard::Data { cid, offset, bytes: bytes.to_vec() }
        }
        HostEvent::DataEnd { cid, offset, len, ddgst, success, .. } => {
            let bytes = offset as usize..(offset + len) as usize;
            Heard::DataEnd { cid, bytes, ddgst, success }
        }
        HostEvent::SendData(grant) => Heard::SendData(grant),
        HostEvent::Terminated(info) => Heard::Terminated(info),
    }
}

pub fn block_sqe(opc: u8, nsid: u32, slba: u64, blocks: u32) -> Sqe {
    let [a, b, c, d, e, f, g, h] = slba.to_le_bytes();
    Sqe {
        opc,
        nsid: nsid.into(),
        cdw10: u32::from_le_bytes([a, b, c, d]).into(),
        cdw11: u32::from_le_bytes([e, f, g, h]).into(),
        cdw12: (blocks - 1).into(),
        ..Sqe::default()
    }
}

/// Bytes that encode their place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

pub fn status(answer: &Answer) -> Status {
    answer.cqe.status
}

pub const NSID1: NamespaceId = NamespaceId(1);
