//! Any CDBs on a live LUN, beside the session of a neighbour on another one: each is answered, and the neighbour finds
//! what it has written.
//!
//! Input: commands of 20 bytes each: direction and remainder of the length, blocks, LUN or not, a byte of data, the CDB.
//! The LUN and the session are new for each input.
#![no_main]

#[path = "../../crates/target/tests/common/mod.rs"]
mod common;
#[path = "../../crates/target/tests/common/iscsi.rs"]
mod initiator_end;

use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock};

use libfuzzer_sys::fuzz_target;
use raceline_target::{
    InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, Target, TargetNodeConfig,
};

use initiator_end::{Initiator, TARGET};

/// Bytes of a command in the input.
const COMMAND: usize = 20;
/// Most commands of an input.
const MAX_COMMANDS: usize = 64;
/// Blocks that the neighbour has written.
const BLOCKS: u16 = 64;

struct Bed {
    target: Target,
    address: SocketAddr,
    neighbour: Initiator,
}

fn start() -> Mutex<Bed> {
    let target = Target::start(common::config(1)).expect("a target");
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).expect("a group");
    let portals = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let portals = iscsi.add_portal_group(PortalGroupConfig::new(1, portals)).expect("a portal");
    let map = PortalMap { portal_group: 1, initiator_group: 1 };
    let luns = vec![LunConfig::new(common::ram("1M"))];
    let node = TargetNodeConfig { maps: vec![map], luns, ..TargetNodeConfig::new(TARGET) };
    iscsi.add_target_node(node).expect("a node");
    let address = portals[0];
    let mut neighbour = Initiator::login(address, 50);
    neighbour.write(0, 0, &written()).good();
    Mutex::new(Bed { target, address, neighbour })
}

fn written() -> Vec<u8> {
    common::pattern(99, usize::from(BLOCKS) * 512)
}

fuzz_target!(|input: &[u8]| {
    static BED: OnceLock<Mutex<Bed>> = OnceLock::new();
    let mut bed = BED.get_or_init(start).lock().expect("no input has panicked");
    let lun = LunConfig { lun: Some(1), ..LunConfig::new(common::ram("64K")) };
    bed.target.iscsi().add_lun(TARGET, lun).expect("a new LUN");
    let mut host = Initiator::login(bed.address, 1);
    for command in input.chunks_exact(COMMAND).take(MAX_COMMANDS) {
        let Some((&[how, blocks, place, byte], cdb)) = command.split_first_chunk() else { return };
        let len = usize::from(blocks % 17) * 512 + usize::from(how >> 2) % 3;
        let (read, data) = match how & 3 {
            0 => (0, Vec::new()),
            1 => (u32::try_from(len).unwrap_or(0), Vec::new()),
            _ => (0, vec![byte; len]),
        };
        // LUN 2 is not there; LUN 0 is the neighbour's.
        let lun = if place == u8::MAX { 2 } else { 1 };
        host.execute(lun, cdb, read, &data);
    }
    host.ping();
    drop(host);
    bed.target.iscsi().remove_lun(TARGET, 1).expect("the LUN is there");
    // LUNs have come and gone, of which the neighbour is told.
    bed.neighbour.test_unit_ready(0);
    let found = bed.neighbour.read(0, 0, BLOCKS);
    assert!(found.good() == written(), "the neighbour's data are others");
});
