//! Extended Copy over iSCSI: within a LUN, between LUNs, and what refuses a copy.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{config, pattern, ram};
use initiator_end::{Answer, Heard, Initiator, TARGET};
use raceline_bdev::{DelayBdev, Delays, ErrorBdev, SharedBdev};
use raceline_target::{
    InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, Target, TargetNodeConfig,
};

const BLOCK: usize = 512;
const COPY_ABORTED: u8 = 0x0a;
const ILLEGAL_REQUEST: u8 = 0x05;

/// A target node with these LUNs, and where it listens.
fn start(devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    let target = Target::start(config(1)).unwrap();
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let group = PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, vec![address]) };
    iscsi.add_portal_group(group).unwrap();
    let maps = vec![PortalMap { portal_group: 1, initiator_group: 1 }];
    let luns = (1..).zip(devices);
    let luns = luns.map(|(id, bdev)| LunConfig { uuid: Some([id; 16]), ..LunConfig::new(bdev) });
    let luns = luns.collect();
    iscsi
        .add_target_node(TargetNodeConfig { maps, luns, ..TargetNodeConfig::new(TARGET) })
        .unwrap();
    let address = iscsi.start_portal_group(1).unwrap()[0];
    (target, address)
}

/// The descriptor of a LUN by its first designator.
fn descriptor(initiator: &mut Initiator, lun: u16) -> [u8; 32] {
    let page = initiator.execute(lun, &[0x12, 1, 0x83, 0, 255, 0], 255, &[]).good();
    let designator = &page[4..];
    let len = usize::from(designator[3]);
    let mut descriptor = [0; 32];
    descriptor[0] = 0xe4;
    descriptor[4..8 + len].copy_from_slice(&designator[..4 + len]);
    descriptor[30..32].copy_from_slice(&u16::try_from(BLOCK).unwrap().to_be_bytes());
    descriptor
}

/// Blocks from one of the targets to another.
#[derive(Clone, Copy)]
struct Part {
    targets: (u8, u8),
    blocks: u16,
    from: u32,
    to: u32,
}

impl Part {
    fn encode(self) -> [u8; 28] {
        let mut segment = [0; 28];
        (segment[0], segment[3]) = (0x02, 0x18);
        (segment[5], segment[7]) = self.targets;
        segment[10..12].copy_from_slice(&self.blocks.to_be_bytes());
        segment[16..20].copy_from_slice(&self.from.to_be_bytes());
        segment[24..28].copy_from_slice(&self.to.to_be_bytes());
        segment
    }
}

/// EXTENDED COPY at a LUN, with a list identifier.
fn copy(
    initiator: &mut Initiator,
    lun: u16,
    id: u8,
    targets: &[[u8; 32]],
    parts: &[Part],
) -> Answer {
    let slot = start_copy(initiator, lun, id, targets, parts);
    initiator.finish(slot)
}

fn start_copy(
    initiator: &mut Initiator,
    lun: u16,
    id: u8,
    targets: &[[u8; 32]],
    parts: &[Part],
) -> u16 {
    let segments: Vec<u8> = parts.iter().flat_map(|part| part.encode()).collect();
    let mut list = vec![id, 0];
    list.extend(u16::try_from(targets.len() * 32).unwrap().to_be_bytes());
    list.extend([0; 4]);
    list.extend(u32::try_from(segments.len()).unwrap().to_be_bytes());
    list.extend([0; 4]);
    list.extend(targets.concat());
    list.extend(segments);
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&u32::try_from(list.len()).unwrap().to_be_bytes());
    initiator.start(lun, &cdb, 0, &list)
}

/// RECEIVE COPY STATUS.
fn status(initiator: &mut Initiator, lun: u16, id: u8) -> Answer {
    let mut cdb = [0; 16];
    (cdb[0], cdb[2], cdb[13]) = (0x84, id, 64);
    initiator.execute(lun, &cdb, 64, &[])
}

fn sense(answer: &Answer) -> (u8, u16) {
    let (key, code, qualifier) = answer.sense.expect("sense");
    (key, u16::from_be_bytes([code, qualifier]))
}

/// A RAM disk whose every request takes a moment.
fn slow(size: &str) -> SharedBdev {
    Arc::new(DelayBdev::new(ram(size), Delays::all(Duration::from_micros(200))))
}

/// A RAM disk that never copies by itself, though it says that it may.
fn by_hand(size: &str) -> SharedBdev {
    let rules = vec!["copy:unsupported".parse().unwrap()];
    Arc::new(ErrorBdev::new(ram(size), rules).0)
}

/// Whether nothing has come for an initiator yet.
fn hears_nothing(initiator: &Initiator) -> bool {
    initiator.stream.set_nonblocking(true).unwrap();
    let heard = initiator.stream.peek(&mut [0]);
    initiator.stream.set_nonblocking(false).unwrap();
    heard.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Both read and write between devices that answer at once: without a rest they would end in the turn that they began in.
#[test]
fn long_commands_between_luns_in_memory_let_others_work() {
    let (target, address) = start(vec![ram("32M"), ram("32M")]);
    let mut busy = Initiator::login(address, 1);
    let mut other = Initiator::login(address, 2);
    let targets: Vec<[u8; 32]> = (0..2).map(|lun| descriptor(&mut busy, lun)).collect();
    let part = Part { targets: (0, 1), blocks: 65_535, from: 0, to: 0 };
    let mut same = [0; 16];
    same[0] = 0x93;
    same[10..14].copy_from_slice(&32_768_u32.to_be_bytes());
    // One command of the other may be answered in the same turn, and a machine may let the whole of it pass before this
    // thread goes on.
    let mut seen = [false; 2];
    for _ in 0..50 {
        let slot = start_copy(&mut busy, 0, 9, &targets, &[part; 16]);
        (0..3).for_each(|_| _ = other.test_unit_ready(0).good());
        seen[0] |= hears_nothing(&busy);
        busy.finish(slot).good();

        let slots = [0; 8].map(|_| busy.start(0, &same, 0, &pattern(3, BLOCK)));
        (0..3).for_each(|_| _ = other.test_unit_ready(0).good());
        seen[1] |= hears_nothing(&busy);
        slots.into_iter().for_each(|slot| _ = busy.finish(slot).good());
        if seen == [true; 2] {
            break;
        }
    }
    assert_eq!(seen, [true; 2]);
    assert!(busy.read(0, 32_767, 1).good() == pattern(3, BLOCK));
    target.shutdown().unwrap();
}

/// The core goes on when the LUN of a command of many steps goes away between two of them.
#[test]
fn luns_go_away_between_the_steps_of_a_command() {
    let moment = Delays::all(Duration::from_millis(2));
    for device in [ram("32M"), Arc::new(DelayBdev::new(ram("32M"), moment)) as SharedBdev] {
        let (target, address) = start(vec![ram("1M")]);
        let iscsi = target.iscsi();
        let mut initiator = Initiator::login(address, 1);
        let mut same = [0; 16];
        same[0] = 0x93;
        same[10..14].copy_from_slice(&32_768_u32.to_be_bytes());
        let mut both = [0; 10];
        (both[0], both[8]) = (0x2e, 8); // WRITE AND VERIFY
        for _ in 0..10 {
            let lun = iscsi.add_lun(TARGET, LunConfig::new(Arc::clone(&device))).unwrap();
            initiator.test_unit_ready(lun);
            let block = pattern(3, BLOCK);
            let slots = [0; 8].map(|_| initiator.start(lun, &same, 0, &block));
            let other = initiator.start(lun, &both, 0, &pattern(4, 8 * BLOCK));
            iscsi.remove_lun(TARGET, lun).unwrap();
            // Each is done, or its LUN is not there.
            let answers = slots.into_iter().chain([other]).map(|_| initiator.listen());
            assert!(answers.into_iter().all(|heard| matches!(heard, Heard::Response { .. })));
            initiator.test_unit_ready(0);
            initiator.read(0, 0, 1).good();
        }
        target.shutdown().unwrap();
    }
}

/// A lock over the last blocks waits for all pieces, not for the first.
#[test]
fn compare_and_write_waits_for_the_whole_of_write_same() {
    let delays = Delays::all(Duration::from_millis(20));
    let (target, address) = start(vec![Arc::new(DelayBdev::new(ram("1M"), delays))]);
    let mut initiator = Initiator::login(address, 1);
    let mut cdb = [0; 16];
    cdb[0] = 0x93;
    cdb[10..14].copy_from_slice(&1024_u32.to_be_bytes());
    let same = initiator.start(0, &cdb, 0, &pattern(1, BLOCK));
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    cdb[6..10].copy_from_slice(&1023_u32.to_be_bytes());
    let swap = initiator.start(0, &cdb, 0, &[vec![0; BLOCK], pattern(2, BLOCK)].concat());
    initiator.finish(same).good();
    assert_eq!(initiator.finish(swap).sense, Some((0xe, 0x1d, 0)), "MISCOMPARE");
    assert!(initiator.read(0, 1023, 1).good() == pattern(1, BLOCK));
    target.shutdown().unwrap();
}

#[test]
fn blocks_are_copied_within_a_lun_and_to_others() {
    let (target, address) = start(vec![ram("4M"), slow("4M"), by_hand("4M")]);
    let mut initiator = Initiator::login(address, 1);
    let targets: Vec<[u8; 32]> = (0..3).map(|lun| descriptor(&mut initiator, lun)).collect();
    let data = pattern(1, 1000 * BLOCK);
    initiator.write(0, 7, &data).good();
    // Within the first LUN, to the second, back to the first, and from there to the third and within it.
    let parts = [
        Part { targets: (0, 0), blocks: 1000, from: 7, to: 2000 },
        Part { targets: (0, 1), blocks: 1000, from: 2000, to: 3 },
        Part { targets: (1, 0), blocks: 999, from: 4, to: 4000 },
        Part { targets: (0, 2), blocks: 1000, from: 7, to: 0 },
        Part { targets: (2, 2), blocks: 1000, from: 0, to: 1001 },
        Part { targets: (2, 2), blocks: 0, from: 0, to: 0 },
    ];
    copy(&mut initiator, 1, 5, &targets, &parts).good();
    for (lun, lba, blocks, skip) in [
        (0, 2000, 1000, 0),
        (1, 3, 1000, 0),
        (0, 4000, 999, 1),
        (2, 0, 1000, 0),
        (2, 1001, 1000, 0),
    ] {
        assert!(initiator.read(lun, lba, blocks).good() == data[skip * BLOCK..], "LUN {lun} {lba}");
    }
    let told = status(&mut initiator, 1, 5).good();
    let bytes = u32::try_from(4999 * BLOCK).unwrap().to_be_bytes();
    assert_eq!(told, [&[0, 0, 0, 8, 1, 0, 6, 0][..], &bytes].concat());
    assert_eq!(sense(&status(&mut initiator, 1, 5)), (ILLEGAL_REQUEST, 0x2400), "told once");
    target.shutdown().unwrap();
}

#[test]
fn ranges_that_overlap_are_copied_as_if_read_first() {
    let (target, address) = start(vec![ram("4M"), slow("4M")]);
    let mut initiator = Initiator::login(address, 1);
    for lun in [0, 1] {
        let targets = [descriptor(&mut initiator, lun)];
        for (from, to) in [(100_u32, 103_u32), (103, 100), (50, 50)] {
            let data = pattern(u64::from(from), 1500 * BLOCK);
            initiator.write(lun, from, &data).good();
            let part = Part { targets: (0, 0), blocks: 1500, from, to };
            copy(&mut initiator, lun, 1, &targets, &[part]).good();
            assert!(initiator.read(lun, to, 1500).good() == data, "LUN {lun}: {from} to {to}");
        }
    }
    target.shutdown().unwrap();
}

#[test]
fn what_refuses_a_segment_is_told_with_its_number() {
    let rules = vec!["write@900-900".parse().unwrap()];
    let faulty: SharedBdev = Arc::new(ErrorBdev::new(ram("1M"), rules).0);
    let protected: raceline_bdev::DeviceSpec = "ram:2M,readonly".parse().unwrap();
    let identity = raceline_bdev::Identity::from_seed(b"copy");
    let protected = raceline_bdev::open(&protected, &identity).unwrap();
    let (target, address) = start(vec![ram("4M"), protected, faulty]);
    let mut initiator = Initiator::login(address, 1);
    let mut targets: Vec<[u8; 32]> = (0..3).map(|lun| descriptor(&mut initiator, lun)).collect();
    targets.push(targets[0]);
    targets[3][8] ^= 0xff; // nobody
    let data = pattern(3, 8 * BLOCK);
    initiator.write(0, 0, &data).good();
    let good = Part { targets: (0, 0), blocks: 8, from: 0, to: 16 };
    let mut refused = |part: Part| {
        initiator.write(0, 16, &vec![0; 8 * BLOCK]).good();
        let answer = copy(&mut initiator, 0, 9, &targets, &[good, part]);
        assert_eq!(answer.status, 2, "{answer:?}");
        assert!(initiator.read(0, 16, 8).good() == data, "the first segment is copied");
        let told = status(&mut initiator, 0, 9).good();
        assert_eq!((told[4], told[6]), (2, 1), "one segment is copied: {told:?}");
        sense(&answer)
    };
    let to = |number: u8| Part { targets: (0, number), ..good };
    assert_eq!(refused(to(1)), (COPY_ABORTED, 0x2700));
    assert_eq!(refused(to(3)), (COPY_ABORTED, 0x0804));
    assert_eq!(refused(to(4)), (COPY_ABORTED, 0x0804));
    assert_eq!(refused(Part { to: 8191, ..good }), (COPY_ABORTED, 0x0000));
    assert_eq!(refused(Part { to: 896, ..to(2) }), (COPY_ABORTED, 0x0c00));
    // What is protected can be read.
    copy(&mut initiator, 0, 1, &targets, &[Part { targets: (1, 0), ..good }]).good();
    let short =
        initiator.execute(0, &[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0], 0, &[0; 15]);
    assert_eq!(sense(&short), (ILLEGAL_REQUEST, 0x1a00));
    target.shutdown().unwrap();
}

#[test]
fn reservations_of_source_and_destination_are_kept() {
    const WRITE_EXCLUSIVE: u8 = 1;
    const EXCLUSIVE_ACCESS: u8 = 3;
    let (target, address) = start(vec![ram("1M"), ram("1M")]);
    let (mut one, mut other) = (Initiator::login(address, 1), Initiator::login(address, 2));
    let targets = [descriptor(&mut other, 0), descriptor(&mut other, 1)];
    let away = Part { targets: (0, 1), blocks: 8, from: 0, to: 0 };
    let here = Part { targets: (1, 0), ..away };
    one.reserve_out(0, 0, 0, 7).good();
    one.reserve_out(1, WRITE_EXCLUSIVE, 7, 0).good();
    // At the LUN that is not reserved; from the reserved one blocks may be read.
    copy(&mut other, 1, 1, &targets, &[away]).good();
    assert_eq!(sense(&copy(&mut other, 1, 1, &targets, &[here])), (COPY_ABORTED, 0x0d01));
    one.reserve_out(2, WRITE_EXCLUSIVE, 7, 0).good();
    one.reserve_out(1, EXCLUSIVE_ACCESS, 7, 0).good();
    assert_eq!(sense(&copy(&mut other, 1, 1, &targets, &[away])), (COPY_ABORTED, 0x0d01));
    assert_eq!(copy(&mut other, 0, 1, &targets, &[away]).status, 0x18, "the command itself");
    copy(&mut one, 1, 1, &targets, &[away, here]).good();
    target.shutdown().unwrap();
}
