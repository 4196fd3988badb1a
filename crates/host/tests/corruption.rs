//! One bit is flipped on the way, at every offset of the data and of the digest. The command fails, or
//! is sent again until no bit is flipped; no spoiled data reach the device or the program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::core::Core;
use common::proxy::{C2H_DATA, CAPSULE_CMD, DATA_BYTES, H2C_DATA, PROTECTED_BYTES, Proxy};
use common::{BLOCK, Target as ScriptedTarget, config};
use raceline_accel::{ChannelConfig, Framework, OpCode};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_host::{CommandDone, CommandError, HostConfig};
use raceline_proto::nvme::Status;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{Accelerator, Mode};
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};

/// Commands outstanding.
const DEPTH: u64 = 128;
/// Places of 4 KiB, one for each command outstanding.
const PLACES: u64 = DEPTH;
const BLOCKS: u32 = 8;

/// A framework; with `engines`, an emulated device computes the digests.
fn framework(engines: bool) -> Framework {
    if !engines {
        return Framework::software();
    }
    let device = EmulatedConfig { reorder: 8, ..EmulatedConfig::default() };
    let engine = EmulatedEngine::start(device, 1).unwrap();
    let framework = Framework::new(vec![Arc::new(engine)]).unwrap();
    for operation in [OpCode::Crc32c, OpCode::CopyCrc32c] {
        framework.assign(operation, "dsa_emulated").unwrap();
    }
    framework
}

fn accelerator(framework: &Framework) -> Accelerator {
    Accelerator::new(framework.open_channel(&ChannelConfig::default()).unwrap())
}

/// A target of ours over memory, where writes travel in capsules or not.
fn target(in_capsule: bool, framework: Framework) -> (Target, SocketAddr) {
    let target = Target::start(TargetConfig {
        mode: Mode::Interrupt,
        in_capsule_bytes: if in_capsule { 8192 } else { 0 },
        accel: Some(framework),
        ..TargetConfig::default()
    })
    .unwrap();
    let nqn = config().subnqn;
    target.add_subsystem(SubsystemConfig::new(nqn.clone())).unwrap();
    let identity = raceline_bdev::Identity::of_this_machine();
    let bdev = raceline_bdev::open(&"ram:4M".parse().unwrap(), &identity).unwrap();
    target.add_namespace(&nqn, NamespaceConfig::new(bdev)).unwrap();
    let address = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    (target, address)
}

fn host(proxy: &Proxy, digest_retries: u8) -> HostConfig {
    HostConfig {
        address: proxy.address,
        header_digest: true,
        data_digest: true,
        digest_retries,
        io_entries: 129,
        ..config()
    }
}

/// What a place holds in a round.
fn contents(place: u64, round: u64) -> Vec<u8> {
    (0..DATA_BYTES as u64)
        .map(|at| (at * 7 + place * 131 + round * 31).to_le_bytes()[usize::from(at % 5 == 0)])
        .collect()
}

/// Writes or reads places until `count` commands have ended; gives each its end.
fn run(
    core: &mut Core,
    write: bool,
    count: u64,
    round: u64,
    mut ended: impl FnMut(u64, CommandDone),
) {
    let mut next = 0;
    let mut left = count;
    while left > 0 {
        while next < count && next - (count - left) < DEPTH && core.queues.room(0) > 0 {
            let place = next % PLACES;
            if write {
                core.write(place * u64::from(BLOCKS), &contents(place, round), place);
            } else {
                core.read(place * u64::from(BLOCKS), BLOCKS, place);
            }
            next += 1;
        }
        core.until("an end", |core| !core.done.is_empty());
        for done in std::mem::take(&mut core.done) {
            left -= 1;
            ended(done.user, done);
        }
    }
}

fn fill(core: &mut Core, round: u64) {
    run(core, true, PLACES, round, |_, done| assert!(done.result.is_ok(), "{:?}", done.failure()));
}

/// All places hold what they held after `round`.
fn check(core: &mut Core, round: u64) {
    run(core, false, PLACES, round, |place, done| {
        assert!(done.result.is_ok(), "{:?}", done.failure());
        let data = done.data.into_read().unwrap();
        assert!(data[..] == contents(place, round)[..], "place {place} after round {round}");
    });
}

/// Every PDU of a kind is spoiled, each elsewhere: all commands fail, and have no effect.
fn all_fail(proxy: &Proxy, core: &mut Core, pdu_type: u8) {
    let write = pdu_type != C2H_DATA;
    let expected = if write {
        CommandError::Status(Status::TRANSIENT_TRANSPORT_ERROR)
    } else {
        CommandError::Digest
    };
    proxy.spoil(pdu_type);
    let mut offsets = 0;
    run(core, write, PROTECTED_BYTES as u64, 2, |_, done| {
        let error = done.result.expect_err("a flipped bit went unnoticed");
        assert_eq!(error, expected);
        assert_eq!(done.data.len(), DATA_BYTES, "the buffer comes back");
        offsets += 1;
    });
    assert_eq!(offsets, PROTECTED_BYTES);
    assert!(proxy.is_through(), "each had a bit flipped");
}

/// Every PDU of a kind is spoiled until every offset has been: all commands succeed in the end.
fn all_succeed(proxy: &Proxy, core: &mut Core, pdu_type: u8) {
    let before = core.queues.counters().totals().retries;
    proxy.spoil(pdu_type);
    if pdu_type == C2H_DATA {
        check(core, 1);
    } else {
        fill(core, 3);
    }
    assert!(proxy.is_through());
    let retries = core.queues.counters().totals().retries - before;
    assert_eq!(retries, PROTECTED_BYTES as u64, "each flipped bit was noticed");
}

fn between_our_ends(pdu_type: u8, engines: bool) {
    let (target, address) = target(pdu_type != H2C_DATA, framework(engines));
    let proxy = Proxy::start(address);
    let host_framework = framework(engines);
    let mut core = Core::new(host(&proxy, 0), accelerator(&host_framework), None);
    fill(&mut core, 1);
    all_fail(&proxy, &mut core, pdu_type);
    check(&mut core, 1);
    core.ends_clean();
    let mut core = Core::new(host(&proxy, u8::MAX), accelerator(&host_framework), None);
    all_succeed(&proxy, &mut core, pdu_type);
    check(&mut core, if pdu_type == C2H_DATA { 1 } else { 3 });
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn in_capsules() {
    between_our_ends(CAPSULE_CMD, false);
}

#[test]
fn in_h2c_data() {
    between_our_ends(H2C_DATA, false);
}

#[test]
fn in_c2h_data() {
    between_our_ends(C2H_DATA, false);
}

#[test]
fn where_engines_compute_digests() {
    for pdu_type in [CAPSULE_CMD, H2C_DATA, C2H_DATA] {
        between_our_ends(pdu_type, true);
    }
}

/// Between our host and a target that is not ours.
#[test]
fn from_another_target() {
    let (io, _) = open_io(Backend::Auto).unwrap();
    let mut target = ScriptedTarget::new(io, "127.0.0.1:0".parse().unwrap());
    target.script.whole_reads = true;
    for place in 0..PLACES {
        let begin = usize::try_from(place).unwrap() * BLOCKS as usize * BLOCK;
        target.storage[begin..][..DATA_BYTES].copy_from_slice(&contents(place, 1));
    }
    let proxy = Proxy::start(target.address);
    let mut core = Core::new(host(&proxy, 0), Accelerator::default(), Some(target));
    all_fail(&proxy, &mut core, C2H_DATA);
    check(&mut core, 1);
    core.ends_clean();
}
