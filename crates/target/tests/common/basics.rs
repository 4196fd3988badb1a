//! What tests of the target need whatever the transport of their hosts.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::{
    CommandId, ControllerId, Cqe, HostId, NamespaceId, Nqn, QueueId, Sqe, Status,
};
use raceline_proto::tcp::{R2tGrant, TermReq};
use raceline_target::{HostAccess, NamespaceConfig, SubsystemConfig, Target, TargetConfig};

use super::{any_address, entrance};

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

/// Where the host of this number of a crowd comes from.
pub fn source_of(number: usize) -> [u8; 4] {
    [127, 0, 1, u8::try_from(number % 200).unwrap() + 1]
}

/// Connect of an admin queue, with the names of the tests' host and subsystem.
pub fn connect_words() -> (Sqe, ConnectData) {
    let words = ConnectWords { recfmt: 0, qid: QueueId::ADMIN, sqsize: 31, cattr: 4, kato: 0 };
    let data = ConnectData::new(HostId([9; 16]), ControllerId::DYNAMIC, &nqn(), &host_nqn());
    (words.to_sqe(), data)
}

/// A target with one subsystem over these devices, and where it listens.
pub fn start(config: TargetConfig, devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    let target = Target::start(config).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    for device in devices {
        target.add_namespace(&nqn(), namespace(device)).unwrap();
    }
    let address = listen(&target);
    (target, address)
}

/// A listener of all subsystems, by the transport of this program.
pub fn listen(target: &Target) -> SocketAddr {
    target.add_listener_with(any_address(), entrance()).unwrap()
}

/// A listener of one subsystem, by the transport of this program.
pub fn listen_for(target: &Target, nqn: &Nqn) -> SocketAddr {
    target.add_subsystem_listener_with(nqn, any_address(), entrance()).unwrap()
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

/// What a connection asks for.
#[derive(Clone, Copy, Default)]
pub struct Wants {
    pub hdgst: bool,
    pub ddgst: bool,
    pub hpda: u8,
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
