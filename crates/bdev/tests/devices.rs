//! Real devices over the real back ends: contents, zeroes, holes, space, and what goes wrong.
#![allow(clippy::unwrap_used, reason = "a test program")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::slice::from_ref;
use std::time::Duration;

use common::{Loop, Mount, Rig, Script, bytes_of, each_backend, open, read, write};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use raceline_bdev::{BdevError, Op, PartBdev, Sought, found_parts};
use raceline_reactor::core::Backend;
use raceline_reactor::{IoBuf, Payload};

const MIB: u64 = 1 << 20;

/// A pattern in which every 8 bytes differ.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| (seed.wrapping_mul(0x9E37_79B9) ^ i).to_le_bytes()).collect()
}

/// A directory on a file system with direct I/O.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn file_spec(directory: &Path, options: &str) -> String {
    format!("file:{}/disk{options}", directory.display())
}

#[derive(Clone, Debug)]
enum Step {
    Read,
    Write {
        seed: u64,
        fua: bool,
    },
    Zero {
        deallocate: bool,
        fua: bool,
    },
    Deallocate,
    /// To there from here.
    Copy {
        to: u64,
        fua: bool,
    },
    Flush,
}

fn any_steps(blocks: u64) -> impl Strategy<Value = Vec<(Step, u64, u64)>> {
    let step = prop_oneof![
        3 => Just(Step::Read),
        4 => (any::<u64>(), any::<bool>()).prop_map(|(seed, fua)| Step::Write { seed, fua }),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(deallocate, fua)| Step::Zero { deallocate, fua }),
        1 => Just(Step::Deallocate),
        2 => (0..blocks, any::<bool>()).prop_map(|(to, fua)| Step::Copy { to, fua }),
        1 => Just(Step::Flush),
    ];
    let range = (0..blocks, 1..=32_u64).prop_map(move |(at, count)| (at, count.min(blocks - at)));
    let steps = (step, range).prop_map(|(step, (at, count))| (step, at, count));
    proptest::collection::vec(steps, 1..40)
}

/// Applies steps to a device and to a vector of bytes, which must agree throughout.
fn run_model(
    rig: &mut Rig,
    model: &mut [u8],
    block: usize,
    in_place: bool,
    steps: &[(Step, u64, u64)],
) -> Result<(), TestCaseError> {
    for (index, (step, at, count)) in steps.iter().enumerate() {
        let (offset, len) = (*at * block as u64, usize::try_from(*count).unwrap() * block);
        let start = usize::try_from(offset).unwrap();
        let range = &mut model[start..start + len];
        match *step {
            Step::Read if in_place && index % 2 == 0 => {
                let done = rig.ok(Op::Read { offset, len, buf: None });
                prop_assert!(bytes_of(&done) == range, "step {}", index);
            }
            Step::Read => prop_assert!(rig.read(offset, len) == range, "step {}", index),
            Step::Write { seed, fua } => {
                range.copy_from_slice(&pattern(seed, len));
                rig.ok(Op::Write { offset, data: common::shared(range), fua });
            }
            Step::Zero { deallocate, fua } => {
                range.fill(0);
                rig.ok(Op::WriteZeroes { offset, len: len as u64, deallocate, fua });
            }
            Step::Deallocate => {
                range.fill(0);
                rig.ok(Op::Deallocate { offset, len: len as u64 });
            }
            Step::Copy { to, fua } => {
                let free = (model.len() as u64 / block as u64).min(to + *count) - to;
                let count = (*count).min(free).min(at.abs_diff(to));
                let (to, len) = (to * block as u64, count * block as u64);
                let source = start..start + usize::try_from(len).unwrap();
                let target = usize::try_from(to).unwrap();
                model.copy_within(source.clone(), target);
                let done = rig.run(Op::Copy { from: offset, to, len, fua });
                if done.result == Err(BdevError::NotSupported) {
                    // Nothing says what the target range holds.
                    rig.write(to, &model[source]);
                } else {
                    prop_assert_eq!(done.result, Ok(()), "step {}", index);
                }
            }
            Step::Flush => drop(rig.ok(Op::Flush)),
        }
    }
    let mut whole = Vec::with_capacity(model.len());
    for piece in model.chunks(64 * block) {
        whole.extend(rig.read(whole.len() as u64, piece.len()));
    }
    prop_assert!(whole == model, "the contents at the end");
    Ok(())
}

/// Random requests against a vector of bytes; the device lives on from case to case.
fn check_against_model(spec: &str, backend: Backend, cases: u32) {
    let device = open(spec).unwrap();
    let info = device.info();
    assert!(info.deallocate && info.deallocate_zeroes, "{spec}");
    let block = info.block_size as usize;
    let bytes = usize::try_from(info.block_count).unwrap() * block;
    let state = std::cell::RefCell::new((Rig::new(&*device, backend), vec![0; bytes]));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let result = TestRunner::new(config).run(&any_steps(info.block_count), |steps| {
        let (rig, model) = &mut *state.borrow_mut();
        run_model(rig, model, block, info.reads_in_place, &steps)
    });
    result.unwrap_or_else(|error| panic!("{spec} over {backend:?}: {error}"));
}

#[test]
fn ram_behaves_like_memory() {
    each_backend(|backend| check_against_model("ram:256k", backend, 100));
    check_against_model("ram:4M,bs=4096", Backend::Epoll, 50);
}

#[test]
fn files_behave_like_memory() {
    each_backend(|backend| {
        for options in [",size=1M", ",size=1M,bs=4096", ",size=1M,buffered"] {
            let directory = directory();
            check_against_model(&file_spec(directory.path(), options), backend, 12);
        }
    });
}

#[test]
fn block_devices_behave_like_memory() {
    let directory = directory();
    let image = directory.path().join("image");
    fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    each_backend(|backend| {
        for options in [&["--direct-io=on"][..], &["--sector-size=4096"]] {
            let Some(disk) = Loop::new(&image, options) else { return };
            common::command("blkdiscard", &["-z", disk.path()]).unwrap();
            let device = open(disk.path()).unwrap();
            let info = device.info();
            drop(device);
            assert_eq!(u64::from(info.block_size) * info.block_count, MIB);
            assert!(info.volatile_write_cache, "a loop device holds data back");
            if options == ["--sector-size=4096"] {
                assert_eq!(info.block_size, 4096);
                let message = common::refused(&format!("{},bs=512", disk.path()));
                assert!(
                    message.contains("the smallest possible block size is bs=4096"),
                    "{message}"
                );
            }
            check_against_model(disk.path(), backend, 10);
        }
    });
}

/// A file system copies a range within a file, over direct I/O and over the page cache.
#[test]
fn files_copy_within_themselves() {
    each_backend(|backend| {
        for options in [",size=8M,bs=4096", ",size=8M,buffered"] {
            let directory = directory();
            let device = open(&file_spec(directory.path(), options)).unwrap();
            let mut rig = Rig::new(&*device, backend);
            let data = pattern(1, 1 << 20);
            rig.write(0, &data);
            for (to, fua) in [(3 * MIB, false), (5 * MIB, true)] {
                let done = rig.run(Op::Copy { from: 0, to, len: MIB, fua });
                if done.result == Err(BdevError::NotSupported) {
                    eprintln!("SKIPPED: no copies within a file here ({options})");
                    continue;
                }
                assert_eq!(done.result, Ok(()));
                assert!(rig.read(to, 1 << 20) == data, "{options} to {to}");
                // Ranges that overlap are refused, and only they.
                let overlapping = Op::Copy { from: 0, to: MIB / 2, len: MIB, fua: false };
                assert_eq!(rig.run(overlapping).result, Err(BdevError::NotSupported));
                let again = Op::Copy { from: to, to: to + MIB, len: MIB, fua: false };
                assert_eq!(rig.run(again).result, Ok(()), "{options} from {to}");
                assert!(rig.read(to + MIB, 1 << 20) == data, "{options} from {to}");
            }
        }
    });
}

/// The parts of a range that hold data, by a device on its own and by a part of it.
#[test]
fn files_know_their_holes() {
    each_backend(|backend| {
        let directory = directory();
        let device = open(&file_spec(directory.path(), ",size=8M,bs=4096")).unwrap();
        assert!(device.info().knows_holes && !device.info().uncorrectable);
        let find = |rig: &mut Rig, offset, len, most| {
            let done = rig.ok(Op::Find { sought: Sought::Data, offset, len, most });
            found_parts(done.payload.as_ref())
        };
        let mut rig = Rig::new(&*device, backend);
        assert_eq!(find(&mut rig, 0, 8 * MIB, 9), []);
        rig.write(MIB, &pattern(1, 64 << 10));
        rig.write(5 * MIB, &pattern(1, 64 << 10));
        rig.ok(Op::Flush);
        let (first, second) = (MIB..MIB + 65536, 5 * MIB..5 * MIB + 65536);
        assert_eq!(find(&mut rig, 0, 8 * MIB, 9), [first.clone(), second.clone()]);
        assert_eq!(find(&mut rig, 0, 8 * MIB, 1), [first]);
        assert_eq!(
            find(&mut rig, 5 * MIB + 4096, 8192, 9),
            from_ref(&(5 * MIB + 4096..5 * MIB + 12288))
        );
        rig.ok(Op::Deallocate { offset: MIB, len: 65536 });
        assert_eq!(find(&mut rig, 0, 8 * MIB, 9), [second]);
        drop(rig);
        let part = PartBdev::new(device, MIB / 1024, MIB / 1024).unwrap();
        let mut rig = Rig::new(&part, backend);
        assert_eq!(find(&mut rig, 0, 4 * MIB, 9), from_ref(&(MIB..MIB + 65536)));
        assert_eq!(find(&mut rig, 2 * MIB, MIB, 9), []);
    });
}

#[test]
fn memory_has_no_holes_and_no_marks() {
    for spec in ["ram:1M", "null:1M"] {
        let device = open(spec).unwrap();
        let mut rig = Rig::new(&*device, Backend::Epoll);
        for op in [
            Op::Find { sought: Sought::Data, offset: 0, len: MIB, most: 9 },
            Op::Find { sought: Sought::Uncorrectable, offset: 0, len: MIB, most: 9 },
            Op::WriteUncorrectable { offset: 0, len: 512 },
        ] {
            assert_eq!(rig.run(op).result, Err(BdevError::NotSupported), "{spec}");
        }
    }
}

#[test]
fn marks_are_bounded_and_only_where_they_are_asked_for() {
    let device = open("ram:8M,uncorrectable").unwrap();
    assert!(device.info().uncorrectable);
    let mut rig = Rig::new(&*device, Backend::Epoll);
    for block in 0..4096 {
        rig.ok(Op::WriteUncorrectable { offset: block * 1024, len: 512 });
    }
    let more = Op::WriteUncorrectable { offset: 7 * MIB, len: 512 };
    assert_eq!(rig.run(more).result, Err(BdevError::NoSpace));
    assert_eq!(rig.run(read(1024, 512)).result, Err(BdevError::ReadFault));
    assert_eq!(rig.read(512, 512), [0; 512]);
    rig.ok(Op::Deallocate { offset: 0, len: 8 * MIB });
    assert_eq!(rig.read(0, 8 << 20), vec![0; 8 << 20]);
    let only = open("ram:1M,uncorrectable,readonly").unwrap();
    assert!(!only.info().uncorrectable);
    let refused =
        Rig::new(&*only, Backend::Epoll).run(Op::WriteUncorrectable { offset: 0, len: 512 });
    assert_eq!(refused.result, Err(BdevError::ReadOnly));
}

#[test]
fn null_gives_zeroes_and_takes_everything() {
    each_backend(|backend| {
        let device = open("null:1T").unwrap();
        assert_eq!(device.info().block_count, 1 << 31);
        let mut rig = Rig::new(&*device, backend);
        rig.write((1 << 40) - 512, &[1; 512]);
        assert_eq!(rig.read((1 << 40) - 512, 512), [0; 512]);
        let done = rig.ok(Op::Read { offset: 0, len: 4096, buf: None });
        assert!(matches!(done.payload, Some(Payload::Zeroes(4096))));
        rig.ok(Op::Flush);
        rig.ok(Op::Deallocate { offset: 0, len: 1 << 40 });
    });
}

#[test]
fn ram_is_read_in_place() {
    let device = open("ram:1M").unwrap();
    assert!(device.info().reads_in_place && !device.info().volatile_write_cache);
    let mut rig = Rig::new(&*device, Backend::Epoll);
    rig.write(4096, &pattern(1, 4096));
    let done = rig.ok(Op::Read { offset: 4096, len: 4096, buf: None });
    assert!(matches!(done.payload, Some(Payload::Region(_, ref range)) if *range == (4096..8192)));
    assert_eq!(bytes_of(&done), pattern(1, 4096));
}

/// A command over a large range is done in steps, between which other commands get their turn.
#[test]
fn releasing_a_large_range_of_ram_does_not_hold_up_others() {
    each_backend(|backend| {
        let device = open("ram:64M").unwrap();
        let mut rig = Rig::new(&*device, backend);
        rig.write(63 * MIB, &[1; 4096]);
        let ops = vec![
            Op::WriteZeroes { offset: 0, len: 64 * MIB, deallocate: false, fua: true },
            Op::Deallocate { offset: 32 * MIB, len: 32 * MIB },
            Op::Read { offset: 63 * MIB, len: 4096, buf: None },
        ];
        let done = rig.run_all(ops);
        assert!(done.iter().all(|done| done.result.is_ok()));
        assert_eq!(rig.read(63 * MIB, 4096), [0; 4096]);
    });
}

/// What one turn of a core does at once is bounded, with however many commands, ranges and devices it comes.
#[test]
fn many_long_commands_at_devices_in_memory_share_a_turn() {
    const MOST: u64 = 8 * MIB;
    let device = open("ram:64M").unwrap();
    let ops: [fn(u64) -> Op; 3] = [
        |at| Op::WriteZeroes { offset: at * MIB, len: MIB, deallocate: false, fua: false },
        |at| Op::Deallocate { offset: at * MIB, len: MIB },
        |at| Op::Copy { from: 0, to: at * MIB, len: 64 << 10, fua: false },
    ];
    for op in ops {
        let mut script = Script::new(&*device);
        let bytes = op(1).bytes();
        // 64 MiB in any case.
        let count = 64 * MIB / bytes;
        for tag in 0..count {
            script.submit(tag, op(1 + tag % 63));
        }
        let (mut ended, mut turns) = (script.results().len() as u64, 0);
        assert!(ended > 0 && ended * bytes <= MOST, "{ended} in the first turn");
        while ended < count {
            script.io.advance(Duration::from_micros(1));
            script.complete(None);
            let results = script.results();
            assert!(results.iter().all(|(_, result)| result.is_ok()));
            assert!(!results.is_empty() && results.len() as u64 * bytes <= MOST);
            (ended, turns) = (ended + results.len() as u64, turns + 1);
        }
        assert!((7..=20).contains(&turns), "{turns} turns for {:?}", op(1));
        script.close();
    }
}

/// Steps end between huge pages, so that a range which begins within one is given back all the same.
#[test]
fn a_range_that_begins_within_a_huge_page_is_given_back() {
    const SIZE: u64 = 272 * MIB;
    // No other test has a mapping of this size.
    let resident = || {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of = |name: &str| {
            let lines = maps.lines().filter_map(|line| line.strip_prefix(name));
            let kib = lines.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap());
            kib.map(|kib| kib << 10).collect::<Vec<_>>()
        };
        let pairs = of("Size:").into_iter().zip(of("Rss:"));
        pairs
            .filter(|(size, _)| (SIZE..SIZE + 4 * MIB).contains(size))
            .map(|(_, rss)| rss)
            .sum::<u64>()
    };
    let device = open("ram:272M").unwrap();
    let mut rig = Rig::new(&*device, Backend::Epoll);
    for at in 0..272 {
        rig.write(at * MIB, &[7; 1 << 20]);
    }
    assert!(resident() >= SIZE, "{}", resident());
    rig.ok(Op::Deallocate { offset: MIB, len: 270 * MIB });
    assert!(resident() <= 8 * MIB, "{} of {SIZE} are left", resident());
    assert_eq!(rig.read(MIB, 4096), [0; 4096]);
}

/// Data do not wait for what takes long, on either device.
#[test]
fn data_in_memory_wait_for_no_long_command() {
    let device = open("ram:64M").unwrap();
    let mut script = Script::new(&*device);
    script.submit(1, Op::WriteZeroes { offset: 0, len: 64 * MIB, deallocate: false, fua: false });
    for tag in 2..100 {
        script.submit(tag, if tag % 2 == 0 { read(0, 1 << 20) } else { write(0, &[7; 1 << 20]) });
        assert_eq!(script.results(), [(tag, Ok(()))]);
    }
    while script.results().is_empty() {
        script.io.advance(Duration::from_micros(1));
        script.complete(None);
    }
    script.close();
}

/// A device gets on in a turn whose share another has taken, so that nobody waits for ever.
#[test]
fn a_device_in_memory_gets_on_beside_another() {
    let device = open("ram:64M").unwrap();
    let mut script = Script::new(&*device);
    let zeroes = Op::WriteZeroes { offset: 0, len: MIB, deallocate: false, fua: false };
    script.submit(1, Op::WriteZeroes { offset: 0, len: 64 * MIB, deallocate: false, fua: false });
    script.submit(2, zeroes);
    let (mut turns, mut ended) = (0, Vec::new());
    while ended.len() < 2 {
        // The time stands still: all of these are one turn.
        script.complete(None);
        ended.extend(script.results());
        turns += 1;
        assert!(turns <= 500, "{ended:?}");
    }
    assert_eq!(ended, [(1, Ok(())), (2, Ok(()))]);
    script.close();
}

#[test]
fn many_requests_at_once() {
    each_backend(|backend| {
        let directory = directory();
        let device = open(&file_spec(directory.path(), ",size=4M")).unwrap();
        let mut rig = Rig::new(&*device, backend);
        let blocks = 0..256_u64;
        let done = rig.run_all(
            blocks
                .clone()
                .map(|i| write(i * 16384, &pattern(i, 16384)))
                .chain([Op::Flush])
                .collect(),
        );
        assert!(done.iter().all(|done| done.result.is_ok()));
        let done = rig.run_all(blocks.clone().map(|i| read(i * 16384, 16384)).collect());
        for (i, done) in blocks.zip(&done) {
            assert_eq!(bytes_of(done), pattern(i, 16384), "block {i}");
        }
    });
}

#[test]
fn holes_give_space_back() {
    each_backend(|backend| {
        let directory = directory();
        let device = open(&file_spec(directory.path(), ",size=4M,bs=4096")).unwrap();
        let blocks = || fs::metadata(directory.path().join("disk")).unwrap().blocks();
        let mut rig = Rig::new(&*device, backend);
        assert!(blocks() < 64, "a new file is sparse");
        rig.write(0, &pattern(1, 1 << 20));
        rig.ok(Op::Flush);
        let full = blocks();
        assert!(full >= 2048, "1 MiB is at least 2048 units of 512 bytes, not {full}");
        rig.ok(Op::Deallocate { offset: 0, len: MIB / 2 });
        rig.ok(Op::Flush);
        assert!(blocks() <= full - 1024, "half is free again");
        rig.ok(Op::WriteZeroes { offset: MIB / 2, len: MIB / 4, deallocate: true, fua: false });
        rig.ok(Op::Flush);
        let quarter = blocks();
        assert!(quarter <= full - 1536, "zeroes that may deallocate do");
        rig.ok(Op::WriteZeroes { offset: 3 * MIB / 4, len: MIB / 4, deallocate: false, fua: true });
        assert_eq!(blocks(), quarter, "zeroes that may not deallocate stay allocated");
        assert_eq!(rig.read(0, 1 << 20), vec![0; 1 << 20]);
        assert_eq!(fs::metadata(directory.path().join("disk")).unwrap().len(), 4 * MIB);
    });
}

#[test]
fn new_files_are_private_and_sized() {
    let directory = directory();
    let device = open(&file_spec(directory.path(), ",size=3M")).unwrap();
    let metadata = fs::metadata(directory.path().join("disk")).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (3 * MIB, 0o600));
    assert_eq!(device.info().block_count, 3 * MIB / u64::from(device.info().block_size));
    assert!(device.info().volatile_write_cache);
    let uuid = device.info().uuid;
    drop(device);
    // Used as it is the next time, with the same identity and contents.
    let again = open(&format!("{}/./disk", directory.path().display())).unwrap();
    assert_eq!(again.info().uuid, uuid);
    drop(again);
    let given = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";
    let other = open(&file_spec(directory.path(), &format!(",uuid={given}"))).unwrap();
    assert_eq!(uuid::Uuid::from_bytes(other.info().uuid).to_string(), given);
}

#[test]
fn a_file_that_shrinks_under_us_fails_its_reads_only() {
    each_backend(|backend| {
        let directory = directory();
        let device = open(&file_spec(directory.path(), ",size=1M,bs=4096")).unwrap();
        let mut rig = Rig::new(&*device, backend);
        rig.write(0, &[3; 8192]);
        let path = directory.path().join("disk");
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(rig.read(0, 4096), [3; 4096]);
        let done = rig.run(read(4096, 4096));
        assert_eq!(done.result, Err(BdevError::ReadFault));
        assert!(matches!(done.payload, Some(Payload::Buf(..))), "the buffer comes back");
        assert_eq!(rig.run(read(0, 8192)).result, Err(BdevError::ReadFault), "across the end");
        rig.ok(Op::Flush);

        // A name that vanishes takes nothing away.
        fs::remove_file(&path).unwrap();
        rig.write(0, &[4; 4096]);
        rig.ok(Op::Flush);
        assert_eq!(rig.read(0, 4096), [4; 4096]);
        drop(Rig::new(&*device, backend));
    });
}

#[test]
fn a_full_file_system_says_so() {
    let directory = directory();
    let Some(_mount) = Mount::new("tmpfs", "size=256k", "none", directory.path()) else { return };
    each_backend(|backend| {
        let _ = fs::remove_file(directory.path().join("disk"));
        // tmpfs has neither ZERO_RANGE nor, before Linux 6.6, direct I/O.
        let device = open(&file_spec(directory.path(), ",size=1M,buffered")).unwrap();
        let mut rig = Rig::new(&*device, backend);
        let written = |done: &raceline_bdev::Done| done.result;
        rig.write(0, &pattern(1, 128 << 10));
        let full = rig.run(write(128 << 10, &pattern(2, 256 << 10)));
        assert_eq!(written(&full), Err(BdevError::NoSpace));
        let zero = Op::WriteZeroes { offset: 0, len: MIB, deallocate: false, fua: false };
        assert_eq!(rig.run(zero).result, Err(BdevError::NoSpace));
        // Space comes back, and with it the writes.
        rig.ok(Op::Deallocate { offset: 0, len: MIB });
        rig.write(128 << 10, &pattern(3, 128 << 10));
        assert_eq!(rig.read(128 << 10, 128 << 10), pattern(3, 128 << 10));
        let zero =
            |deallocate| Op::WriteZeroes { offset: 128 << 10, len: 4096, deallocate, fua: true };
        rig.ok(zero(false));
        rig.ok(zero(true));
        assert_eq!(rig.read(128 << 10, 4096), [0; 4096]);
    });
}

/// The kernel's own failure of fdatasync: a buffered file whose disk has no room for it.
#[test]
fn data_that_cannot_be_written_back_fails_the_flush_on_every_channel() {
    let directory = directory();
    let (thin, mounted) = (directory.path().join("thin"), directory.path().join("mounted"));
    fs::create_dir(&thin).unwrap();
    fs::create_dir(&mounted).unwrap();
    let Some(_space) = Mount::new("tmpfs", "size=1M", "none", &thin) else { return };
    let image = thin.join("image");
    fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let Some(disk) = Loop::new(&image, &[]) else { return };
    common::command("mkfs.ext4", &["-q", "-O", "^has_journal", "-E", "nodiscard", disk.path()])
        .unwrap();
    let Some(_mount) = Mount::new("ext4", "rw", disk.path(), &mounted) else { return };
    let device = open(&file_spec(&mounted, ",size=8M,buffered")).unwrap();
    let mut one = Rig::new(&*device, Backend::Epoll);
    let mut two = Rig::new(&*device, Backend::Epoll);
    for i in 0..6 {
        one.write(i * MIB, &pattern(i, 1 << 20)); // into the page cache, acknowledged
    }
    let fault = Err(BdevError::WriteFault);
    assert_eq!(one.run(Op::Flush).result, fault);
    assert!(device.write_fault());
    assert_eq!(one.run(Op::Flush).result, fault, "not retried to success");
    assert_eq!(two.run(Op::Flush).result, fault, "on every core");
    let durable = || Op::Write { offset: 0, data: IoBuf::heap(512).share(), fua: true };
    assert_eq!(two.run(durable()).result, fault);

    // The operator makes room and resets: the old failure is not reported a second time.
    common::command("mount", &["-o", "remount,size=32M", thin.to_str().unwrap()]).unwrap();
    device.reset_write_fault();
    two.ok(Op::Flush);
    two.ok(durable());
    one.write(0, &pattern(9, 1 << 20));
    one.ok(Op::Flush);
    assert!(!device.write_fault());
}
