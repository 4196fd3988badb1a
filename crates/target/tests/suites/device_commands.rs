//! Over sockets: Copy between namespaces and by the device itself, Get LBA Status, Write Uncorrectable.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;

use crate::common::{
    RawHost, Wants, block_sqe, config, namespace, nqn, pattern, ram, start, status, subsystem,
};
use raceline_bdev::{InjectBdev, Injected, Injection, OpKind, SharedBdev};
use raceline_proto::nvme::ana::AnaState;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::rw::{CopyRange, SOURCE_FAST_COPY_ONLY};
use raceline_proto::nvme::{Nqn, Sqe, Status};
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, Visibility};
use zerocopy::IntoBytes;

const BS: u32 = 512;
/// DESFMT of ranges that name their namespaces.
const ACROSS: u32 = 2 << 8;

fn device(spec: &str) -> SharedBdev {
    let identity = raceline_bdev::Identity::of_this_machine();
    raceline_bdev::open(&spec.parse().unwrap(), &identity).unwrap()
}

/// A sparse file with direct I/O if its file system has that.
fn file(name: &str, bytes: u64) -> SharedBdev {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::remove_file(&path).ok();
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    device(&format!("file:{},bs=512,buffered", path.display()))
}

/// Admin queue and I/O queue.
fn host(address: SocketAddr) -> (RawHost, RawHost) {
    let (admin, cntlid) = RawHost::admin(address, Wants::default());
    (admin, RawHost::io(address, cntlid, 1, Wants::default()))
}

/// A source range: namespace, first block, blocks.
type Source = (u32, u64, u32);

fn range(&(snsid, slba, blocks): &Source) -> CopyRange {
    CopyRange {
        snsid: snsid.into(),
        slba: slba.into(),
        nlb: u16::try_from(blocks - 1).unwrap().into(),
        ..CopyRange::default()
    }
}

fn copy_with(queue: &mut RawHost, sdlba: u64, ranges: &[CopyRange], word: u32) -> (Status, u32) {
    let sqe = block_sqe(io::COPY, 1, sdlba, u32::try_from(ranges.len()).unwrap());
    let sqe = Sqe { cdw12: (sqe.cdw12.get() | word).into(), ..sqe };
    let answer = queue.write_command(sqe, ranges.as_bytes(), true);
    (status(&answer), answer.cqe.dw0)
}

/// Copies to namespace 1.
fn copy(queue: &mut RawHost, sdlba: u64, ranges: &[Source]) -> (Status, u32) {
    let ranges: Vec<CopyRange> = ranges.iter().map(range).collect();
    copy_with(queue, sdlba, &ranges, ACROSS)
}

/// Host Behavior Support: enables these formats of source ranges.
fn enable(admin: &mut RawHost, formats: u16) -> Status {
    let mut page = [0; 512];
    page[4..6].copy_from_slice(&formats.to_le_bytes());
    let sqe = Sqe { opc: admin::SET_FEATURES, cdw10: 0x16.into(), ..Sqe::default() };
    status(&admin.write_command(sqe, &page, true))
}

fn enabled(admin: &mut RawHost) -> u16 {
    let sqe = Sqe { opc: admin::GET_FEATURES, cdw10: 0x16.into(), ..Sqe::default() };
    let page = admin.read_command(sqe, 512).data;
    u16::from_le_bytes([page[4], page[5]])
}

fn succeeded(answer: (Status, u32)) {
    assert_eq!(answer, (Status::SUCCESS, 0));
}

// ----------------------------------------------------------------------------- copy by the device

/// Held requests of a kind show that the device got them, and as what.
#[test]
fn the_device_copies_within_a_namespace_and_the_target_between_two() {
    let (held, control) = InjectBdev::new(ram("4M"));
    let (target, address) = start(config(1), vec![std::sync::Arc::new(held), ram("4M")]);
    let (mut admin, mut queue) = host(address);
    assert_eq!(enable(&mut admin, 1 << 2), Status::SUCCESS);
    let refuse = Injection { what: Injected::Status { sct: 2, sc: 0x86 }, count: 1, depth: 0 };
    let denied = Status::new(2, 0x86);
    control.inject(OpKind::Copy, refuse);
    assert_eq!(copy(&mut queue, 4000, &[(1, 0, 300), (1, 8, 8)]), (denied, 0));
    // Its second range is the one that fails.
    control.inject(OpKind::Read, refuse);
    succeeded(copy(&mut queue, 4000, &[(1, 0, 300), (2, 8, 8)]));
    control.clear();
    control.inject(OpKind::Write, refuse);
    assert_eq!(copy(&mut queue, 4000, &[(1, 0, 300), (2, 8, 8)]), (denied, 1));
    target.shutdown().unwrap();
}

/// A device that cannot copy after all: what it was asked to copy is read and written.
#[test]
fn what_a_device_cannot_copy_is_read_and_written() {
    let (target, address) = start(config(1), vec![device("ram:4M,error=copy/2:unsupported")]);
    let (_admin, mut queue) = host(address);
    let data = pattern(3, 1 << 20);
    for (place, part) in data.chunks(128 << 10).enumerate() {
        assert!(status(&queue.write(1, place as u64 * 256, part, BS)).is_success());
    }
    let ranges: Vec<CopyRange> = [(0, 0, 1024), (0, 1024, 1024)].iter().map(range).collect();
    for sdlba in [2048, 4096, 6144] {
        succeeded(copy_with(&mut queue, sdlba, &ranges, 1 << 30));
        for (place, part) in data.chunks(128 << 10).enumerate() {
            let read = queue.read(1, sdlba + place as u64 * 256, 256, BS);
            assert!(read.data == part, "to {sdlba}, part {place}");
        }
    }
    target.shutdown().unwrap();
}

// -------------------------------------------------------------------------- copy between namespaces

#[test]
fn copies_between_namespaces_are_those_of_a_model() {
    for own in [ram("4M"), file("own.img", 4 << 20)] {
        let (target, address) = start(config(2), vec![own, file("other.img", 2 << 20), ram("1M")]);
        let (mut admin, mut queue) = host(address);
        assert_eq!(
            u16::from_le_bytes(admin.identify_controller()[534..536].try_into().unwrap()),
            5
        );
        // Not before the host has enabled it.
        assert_eq!(copy(&mut queue, 0, &[(2, 0, 1)]), (Status::INVALID_FIELD.dnr(), 0));
        assert_eq!((enable(&mut admin, 1 << 2), enabled(&mut admin)), (Status::SUCCESS, 1 << 2));
        let models =
            [4 << 20, 2 << 20, 1 << 20].map(|len| pattern(len, usize::try_from(len).unwrap()));
        for (nsid, model) in (1..).zip(&models) {
            for (place, part) in model.chunks(128 << 10).enumerate() {
                assert!(status(&queue.write(nsid, place as u64 * 256, part, BS)).is_success());
            }
        }
        let mut own = models[0].clone();
        let wanted: [(u64, &[Source]); 3] = [
            (100, &[(2, 3, 1)]),
            (1000, &[(3, 0, 2048), (1, 5000, 257), (2, 10, 259), (3, 2047, 1)]),
            // The same blocks of another namespace do not overlap.
            (0, &[(2, 0, 8)]),
        ];
        for (sdlba, ranges) in wanted {
            succeeded(copy(&mut queue, sdlba, ranges));
            let byte = |block: u64| usize::try_from(block * 512).unwrap();
            let mut at = byte(sdlba);
            for &(nsid, slba, blocks) in ranges {
                let (from, len) = (byte(slba), byte(blocks.into()));
                let source =
                    if nsid == 1 { own.clone() } else { models[nsid as usize - 1].clone() };
                own[at..at + len].copy_from_slice(&source[from..from + len]);
                at += len;
            }
        }
        for (place, part) in own.chunks(128 << 10).enumerate() {
            assert!(queue.read(1, place as u64 * 256, 256, BS).data == part, "part {place}");
        }
        target.shutdown().unwrap();
    }
}

#[test]
fn a_source_that_is_refused_is_named_and_nothing_is_written() {
    let target = Target::start(config(2)).unwrap();
    target.add_subsystem(SubsystemConfig { ana_reporting: true, ..subsystem() }).unwrap();
    let other = Nqn::new("nqn.2026-01.io.raceline:other").unwrap();
    let hidden =
        NamespaceConfig { visibility: Visibility::Hosts([other].into()), ..namespace(ram("1M")) };
    for exported in [
        namespace(ram("1M")),
        namespace(ram("1M")),
        namespace(device("ram:1M,bs=4096")),
        hidden,
        namespace(ram("1M")),
    ] {
        target.add_namespace(&nqn(), exported).unwrap();
    }
    let address = crate::common::listen_for(&target, &nqn());
    let (mut admin, mut queue) = host(address);
    assert_eq!(enable(&mut admin, 1 << 2), Status::SUCCESS);
    assert!(status(&queue.write(2, 0, &pattern(1, 4096), BS)).is_success());
    target.set_ana_state(&nqn(), address, Some(5), AnaState::Inaccessible).unwrap();
    let invalid = Status::INVALID_NAMESPACE.dnr();
    for (sources, expected) in [
        (vec![(2, 0, 8), (6, 0, 8)], (invalid, 1)),
        (vec![(0, 0, 8)], (invalid, 0)),
        (vec![(u32::MAX, 0, 8)], (invalid, 0)),
        // masked from this host
        (vec![(2, 0, 8), (2, 8, 8), (4, 0, 8)], (invalid, 2)),
        // blocks of another size
        (vec![(2, 0, 8), (3, 0, 8)], (Status::INCOMPATIBLE_NAMESPACE.dnr(), 1)),
        (vec![(2, 0, 8), (5, 0, 8)], (Status::ANA_INACCESSIBLE, 1)),
        (vec![(2, 0, 8), (2, 2044, 5)], (Status::LBA_OUT_OF_RANGE.dnr(), 1)),
        (vec![(2, 0, 8), (1, 104, 8)], (Status::OVERLAPPING_IO_RANGE.dnr(), 1)),
        (vec![(2, 0, 2049)], (Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr(), 0)),
    ] {
        assert_eq!(copy(&mut queue, 100, &sources), expected, "{sources:?}");
    }
    let fast = CopyRange { sopt: SOURCE_FAST_COPY_ONLY.into(), ..range(&(2, 0, 8)) };
    let not_possible = (Status::FAST_COPY_NOT_POSSIBLE.dnr(), 0);
    assert_eq!(copy_with(&mut queue, 100, &[fast], ACROSS), not_possible);
    assert!(queue.read(1, 100, 16, BS).data.iter().all(|byte| *byte == 0));
    // A reset takes back what the host has enabled.
    assert_eq!(enable(&mut admin, 0), Status::SUCCESS);
    assert_eq!(copy(&mut queue, 100, &[(2, 0, 8)]), (Status::INVALID_FIELD.dnr(), 0));
    target.shutdown().unwrap();
}

// ------------------------------------------------------------------------------------- LBA status

/// Get LBA Status of a namespace: its status, why the list ends, and the ranges of blocks.
fn lba_status(
    admin: &mut RawHost,
    nsid: u32,
    (action, slba, blocks): (u8, u64, u16),
    dwords: u32,
) -> (Status, u8, Vec<Range<u64>>) {
    let sqe = block_sqe(admin::GET_LBA_STATUS, nsid, slba, 1);
    let sqe = Sqe {
        cdw12: (dwords - 1).into(),
        cdw13: (u32::from(action) << 24 | u32::from(blocks)).into(),
        ..sqe
    };
    let answer = admin.read_command(sqe, dwords * 4);
    if !status(&answer).is_success() {
        return (status(&answer), 0, vec![]);
    }
    let (head, list) = answer.data.split_at(8);
    let count = u32::from_le_bytes(head[..4].try_into().unwrap());
    let ranges = list.chunks_exact(16).take(usize::try_from(count).unwrap()).map(|part| {
        let slba = u64::from_le_bytes(part[..8].try_into().unwrap());
        slba..slba + u64::from(u32::from_le_bytes(part[8..12].try_into().unwrap()))
    });
    (Status::SUCCESS, head[4], ranges.collect())
}

#[test]
fn a_file_knows_which_blocks_are_allocated() {
    const FULL: u8 = 1;
    const ALL: u8 = 2;
    let (target, address) = start(config(1), vec![file("sparse.img", 8 << 20), ram("1M")]);
    let (mut admin, mut queue) = host(address);
    let oacs = admin.identify_controller()[256..258].to_vec();
    assert_eq!(oacs, (1_u16 << 9).to_le_bytes());
    // 64 KiB are whole blocks of every file system.
    for slba in [1024, 4096, 8192] {
        assert!(status(&queue.write(1, slba, &pattern(1, 65536), BS)).is_success());
    }
    let all = [1024..1152, 4096..4224, 8192..8320];
    let ask = |admin: &mut RawHost, slba, blocks, dwords| {
        let (status, why, ranges) = lba_status(admin, 1, (2, slba, blocks), dwords);
        assert_eq!(status, Status::SUCCESS);
        (why, ranges)
    };
    assert_eq!(ask(&mut admin, 0, 0, 1024), (ALL, all.to_vec()));
    assert_eq!(ask(&mut admin, 1030, 3070, 1024), (ALL, vec![1030..1152, 4096..4100]));
    assert_eq!(ask(&mut admin, 2000, 100, 1024), (ALL, vec![]));
    // Room for the head and two ranges, for one, for none.
    assert_eq!(ask(&mut admin, 0, 0, 10), (FULL, all[..2].to_vec()));
    assert_eq!(ask(&mut admin, 1152, 0, 6), (FULL, all[1..2].to_vec()));
    assert_eq!(ask(&mut admin, 0, 0, 2), (FULL, vec![]));
    // Nothing is unreadable, and a device in memory does not know what it has allocated.
    assert_eq!(lba_status(&mut admin, 1, (0x10, 0, 0), 64), (Status::SUCCESS, ALL, vec![]));
    for (nsid, asked, expected) in [
        (2, (2, 0, 0), Status::INVALID_FIELD),
        (1, (3, 0, 0), Status::INVALID_FIELD),
        (1, (2, 16384, 0), Status::LBA_OUT_OF_RANGE),
        (1, (2, 16383, 2), Status::LBA_OUT_OF_RANGE),
        (3, (2, 0, 0), Status::INVALID_NAMESPACE),
    ] {
        let answer = lba_status(&mut admin, nsid, asked, 64).0;
        assert_eq!(answer, expected.dnr(), "{nsid} {asked:?}");
    }
    target.shutdown().unwrap();
}

// ----------------------------------------------------------------------------- Write Uncorrectable

const UNREADABLE: Status = Status::UNRECOVERED_READ_ERROR;

#[test]
fn blocks_are_unreadable_until_they_are_written() {
    let devices = vec![device("ram:1M,uncorrectable"), ram("1M")];
    let (target, address) = start(config(2), devices);
    let (mut admin, mut queue) = host(address);
    let oncs = u16::from_le_bytes(admin.identify_controller()[520..522].try_into().unwrap());
    assert_eq!(oncs & 2, 2, "ONCS bit 1");
    let data = pattern(5, 16 * 512);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());
    let spoil = |queue: &mut RawHost, nsid, slba, blocks| {
        status(&queue.plain_command(block_sqe(io::WRITE_UNCORRECTABLE, nsid, slba, blocks)))
    };
    assert_eq!(spoil(&mut queue, 2, 0, 1), Status::INVALID_OPCODE.dnr(), "not a test namespace");
    assert_eq!(spoil(&mut queue, 1, 2047, 2), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(spoil(&mut queue, 1, 4, 8), Status::SUCCESS);
    // Another controller sees the same.
    let (_admin, mut other) = host(address);
    for queue in [&mut queue, &mut other] {
        assert_eq!(status(&queue.read(1, 0, 8, BS)), UNREADABLE);
        assert_eq!(status(&queue.read(1, 11, 1, BS)), UNREADABLE);
        assert_eq!(queue.read(1, 0, 4, BS).data, data[..4 * 512]);
        assert_eq!(queue.read(1, 12, 4, BS).data, data[12 * 512..]);
        assert_eq!(status(&queue.plain_command(block_sqe(io::VERIFY, 1, 0, 5))), UNREADABLE);
        let compare = block_sqe(io::COMPARE, 1, 4, 1);
        assert_eq!(
            status(&queue.write_command(compare, &data[4 * 512..5 * 512], true)),
            UNREADABLE
        );
        let ranges = [range(&(0, 0, 4)), range(&(0, 4, 1))];
        assert_eq!(copy_with(queue, 100, &ranges, 0), (UNREADABLE, 1));
    }
    let unreadable = |admin: &mut RawHost| lba_status(admin, 1, (0x11, 0, 0), 64).2;
    assert_eq!(unreadable(&mut admin), [Range { start: 4, end: 12 }]);
    // Writing, zeroing and copying make blocks readable again.
    assert!(status(&queue.write(1, 5, &data[..512], BS)).is_success());
    assert!(status(&queue.plain_command(block_sqe(io::WRITE_ZEROES, 1, 7, 2))).is_success());
    succeeded(copy_with(&mut queue, 10, &[range(&(0, 0, 1))], 0));
    assert_eq!(unreadable(&mut admin), [4..5, 6..7, 9..10, 11..12]);
    assert_eq!(queue.read(1, 5, 1, BS).data, data[..512]);
    assert_eq!(queue.read(1, 7, 2, BS).data, [0; 1024]);
    assert_eq!(queue.read(1, 10, 1, BS).data, data[..512]);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());
    assert_eq!(unreadable(&mut admin), []);
    assert_eq!(queue.read(1, 0, 16, BS).data, data);
    target.shutdown().unwrap();
}

#[test]
fn neither_is_there_unless_a_device_has_it() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let (mut admin, _queue) = host(address);
    let identify = admin.identify_controller();
    assert_eq!((identify[257] & 2, identify[520] & 2), (0, 0), "OACS bit 9, ONCS bit 1");
    assert_eq!(lba_status(&mut admin, 1, (0x10, 0, 0), 64).0, Status::INVALID_OPCODE.dnr());
    target.shutdown().unwrap();
}
