//! Any CDBs with any data on a live LUN, by two sessions over sockets: each command is answered with a status and sense
//! data that exist, what a neighbour has on its LUN stays, and the target goes on.
//! Input: which device it is, then steps of 24 bytes and the data that they name.
#![no_main]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use raceline_bdev::{DelayBdev, Delays, Identity, SharedBdev};
use raceline_iscsi::names::Name;
use raceline_iscsi::pdu::{TmfFunction, TmfResponseCode};
use raceline_scsi::cdb::COMMANDS;
use raceline_target::{
    InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, Target, TargetConfig,
    TargetNodeConfig,
};

#[path = "../../crates/target/tests/common/iscsi.rs"]
mod initiator_end;

/// What the sessions of the target's own tests use.
mod common {
    use std::time::Duration;

    /// A command that takes longer is lost.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
}

use initiator_end::{Answer, Heard, Initiator, config};

/// Blocks of 512 bytes of the neighbour's LUN, and of the LUN under test.
const BLOCKS: u16 = 512;
/// Commands of one input, and of those that are not awaited at once.
const MAX_STEPS: usize = 48;
const MAX_WAITING: usize = 6;
/// Bytes of data at most: more than comes unasked.
const MAX_BYTES: usize = 300 << 10;
/// The LUN under test; the neighbour's is the next.
const LUN: u16 = 0;
/// Statuses that a disk gives: GOOD, CHECK CONDITION, CONDITION MET, BUSY, RESERVATION CONFLICT, TASK SET FULL.
const STATUSES: [u8; 6] = [0x00, 0x02, 0x04, 0x08, 0x18, 0x28];
const CHECK_CONDITION: u8 = 0x02;

struct World {
    target: Target,
    address: SocketAddr,
}

/// One target for all inputs; each has a target node and devices of its own.
static WORLD: LazyLock<World> = LazyLock::new(|| {
    let config = TargetConfig {
        cores: vec![0],
        mode: raceline_reactor::Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    };
    let target = Target::start(config).expect("a target");
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).expect("a group");
    let portals = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let address = iscsi.add_portal_group(PortalGroupConfig::new(1, portals)).expect("a portal")[0];
    World { target, address }
});

fn ram(size: &str) -> SharedBdev {
    let spec = format!("ram:{size}").parse().expect("a device");
    raceline_bdev::open(&spec, &Identity::from_seed(b"fuzz")).expect("memory")
}

/// The device under test: it answers at once, or later.
fn device(kind: u8) -> SharedBdev {
    match kind % 4 {
        0 => ram("256K"),
        1 => ram("256K,bs=4096"),
        2 => Arc::new(DelayBdev::new(ram("256K"), Delays::all(Duration::from_micros(20)))),
        _ => ram("256K,readonly"),
    }
}

/// What the neighbour has written.
fn precious() -> Vec<u8> {
    (0..usize::from(BLOCKS) * 512).map(|at| (at % 251).to_le_bytes()[0] | 1).collect()
}

/// What one step does.
struct Step<'a> {
    session: usize,
    waits: bool,
    cdb: [u8; 16],
    read: u32,
    data: &'a [u8],
    bytes: usize,
}

impl<'a> Step<'a> {
    fn parse(input: &mut &'a [u8]) -> Option<Self> {
        let (step, rest) = input.split_first_chunk::<24>()?;
        let [how, row, len, _, b0, b1, b2, _, cdb @ ..] = *step;
        let (data, rest) = rest.split_at(usize::from(len).min(rest.len()));
        *input = rest;
        let mut cdb: [u8; 16] = cdb;
        // Mostly commands that there are.
        if how & 0x08 == 0 {
            let known = &COMMANDS[usize::from(row) % COMMANDS.len()];
            cdb[0] = known.opcode;
            if let Some(action) = known.service_action {
                cdb[1] = cdb[1] & 0xe0 | action & 0x1f;
            }
        }
        let exact = usize::from(u16::from_be_bytes([b1, b2]));
        let bytes = match how & 0x30 {
            0x00 => exact % 16 * 512,
            0x10 => data.len(),
            0x20 => exact,
            _ => usize::from(b0) << 10 | exact,
        };
        let bytes = bytes.min(MAX_BYTES);
        let writes = how & 0x40 != 0;
        let read = if writes { 0 } else { u32::try_from(bytes).expect("bounded") };
        Some(Self {
            session: usize::from(how & 1),
            waits: how & 0x02 == 0,
            cdb,
            read,
            data,
            bytes: if writes { bytes } else { 0 },
        })
    }

    /// The data of the command: those of the input again and again.
    fn filled(&self) -> Vec<u8> {
        let pattern = if self.data.is_empty() { &[0][..] } else { self.data };
        pattern.iter().copied().cycle().take(self.bytes).collect()
    }
}

fn check(answer: &Answer, read: u32) {
    assert!(STATUSES.contains(&answer.status), "{answer:?}");
    assert!(answer.data.len() <= read as usize, "{} bytes for {read}", answer.data.len());
    let key = answer.sense.map(|(key, ..)| key);
    if answer.status == CHECK_CONDITION {
        assert!(key.is_some_and(|key| (1..=0x0e).contains(&key)), "{answer:?}");
    } else {
        assert_eq!(key, None, "{answer:?}");
    }
}

/// A session, and the commands whose answers it has yet to get: slot, and the bytes that they read.
struct Session {
    initiator: Initiator,
    waiting: Vec<(u16, u32)>,
}

impl Session {
    fn take_answers(&mut self) {
        while !self.waiting.is_empty() {
            match self.initiator.listen() {
                Heard::Response { slot, answer } => {
                    let at = self.waiting.iter().position(|(waiting, _)| *waiting == slot);
                    let (_, read) = self.waiting.remove(at.expect("an answer to a command"));
                    check(&answer, read);
                }
                Heard::Async(_) => {}
                other => panic!("{other:?} instead of answers to {:?}", self.waiting),
            }
        }
    }

    fn run(&mut self, step: &Step<'_>) {
        let slot = self.initiator.start(LUN, &step.cdb, step.read, &step.filled());
        self.waiting.push((slot, step.read));
        if step.waits || self.waiting.len() == MAX_WAITING {
            self.take_answers();
        }
    }
}

fuzz_target!(|data: &[u8]| {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Some((kind, mut input)) = data.split_first() else { return };
    let World { target, address } = &*WORLD;
    let name = format!("iqn.2026-01.io.raceline:{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let luns = vec![LunConfig::new(device(*kind)), LunConfig::new(ram("256K"))];
    let map = PortalMap { portal_group: 1, initiator_group: 1 };
    let node = TargetNodeConfig { maps: vec![map], luns, ..TargetNodeConfig::new(&name) };
    target.iscsi().add_target_node(node).expect("a node");
    let session = |number| {
        let mut wanted = config(Some(&name), number);
        wanted.initiator_name = Name::new("iqn.2026-01.io.raceline:fuzz").expect("a name");
        Initiator::try_login(*address, wanted).expect("a session")
    };
    let mut neighbour = session(9);
    neighbour.write(LUN + 1, 0, &precious()).good();
    let mut sessions = [1, 2].map(|number| Session {
        initiator: session(number),
        waiting: Vec::new(),
    });
    for _ in 0..MAX_STEPS {
        let Some(step) = Step::parse(&mut input) else { break };
        sessions[step.session].run(&step);
    }
    for session in &mut sessions {
        session.take_answers();
        session.initiator.ping();
    }
    assert!(neighbour.read(LUN + 1, 0, BLOCKS).good() == precious(), "the neighbour's data");
    let reset = neighbour.manage(TmfFunction::LogicalUnitReset, None);
    assert_eq!(reset, Some(TmfResponseCode::Complete), "{reset:?}");
    drop((sessions, neighbour));
    target.iscsi().remove_target_node(&name).expect("the node goes");
});
