//! Devices on top of devices, their live controls, sizes that change, and what is counted.
#![allow(clippy::unwrap_used, reason = "a test program")]

mod common;

use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;

use common::{Rig, Script, bytes_of, each_backend, open, read, write};
use raceline_bdev::{
    Bdev, BdevError, DelayBdev, Delays, HistogramShape, InjectBdev, Injected, Injection, Latency,
    MAX_WRAPPER_LEVELS, NamedBdev, Op, OpKind, PartBdev, SharedBdev,
};

const MS: Duration = Duration::from_millis(1);

fn named(device: SharedBdev, name: &str) -> Arc<NamedBdev> {
    Arc::new(NamedBdev::new(device, name.to_owned(), Some([9; 16])))
}

#[test]
fn parts_are_where_they_should_be() {
    let base = open("ram:1M,bs=4096").unwrap();
    let (mut whole, none) = (Script::new(&*base), PartBdev::new(base.clone(), 200, 57));
    assert!(none.is_none() && PartBdev::new(base.clone(), u64::MAX, 2).is_none());
    let part = PartBdev::new(base.clone(), 200, 56).unwrap();
    assert_eq!((part.info().block_count, part.info().block_size), (56, 4096));
    let mut script = Script::new(&part);
    assert!(script.channel.writes_now() && script.channel.reads_now());
    script.channel.write_now(4096, &[3; 4096]).unwrap();
    let mut found = [0; 4096];
    script.channel.read_now(4096, 4096).unwrap().copy_to(&mut found);
    assert_eq!(found, [3; 4096]);
    // A hint may be about anything.
    for offset in [0, 55 * 4096, 56 * 4096, 1 << 20, u64::MAX - 4095, u64::MAX] {
        script.channel.prefetch(offset, 4096);
        whole.channel.prefetch(offset, 8192);
    }
    script.submit(1, write(55 * 4096, &[5; 4096]));
    script.submit(2, Op::WriteZeroes { offset: 0, len: 4096, deallocate: false, fua: false });
    script.submit(3, read(4096, 4096));
    assert_eq!(bytes_of(&script.done[2]), [3; 4096]);
    assert!(script.results().iter().all(|(_, result)| result.is_ok()));
    whole.submit(1, read(201 * 4096, 4096));
    whole.submit(2, read(255 * 4096, 4096));
    assert_eq!(bytes_of(&whole.done[0]), [3; 4096]);
    assert_eq!(bytes_of(&whole.done[1]), [5; 4096]);
    script.close();
    whole.close();
}

#[test]
fn the_device_below_counts_what_passes_through() {
    let base = named(open("ram:1M").unwrap(), "base");
    let top = named(Arc::new(PartBdev::whole(base.clone())), "top");
    assert_eq!((top.info().name, top.info().uuid), ("top".to_owned(), [9; 16]));
    let mut script = Script::new(&*top);
    let stats = base.stats().unwrap();
    stats.start_histogram(HistogramShape::default(), None);
    script.submit(7, write(0, &[1; 1024]));
    script.submit(8, read(0, 512));
    script.submit(9, Op::Deallocate { offset: 0, len: 1 << 20 });
    script.submit(10, Op::Flush);
    script.channel.write_now(0, &[2; 512]).unwrap();
    assert_eq!(script.channel.read_now(0, 512).unwrap().len(), 512);
    let tags: Vec<u64> = script.results().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [7, 8, 9, 10], "every request keeps its tag");
    let totals = stats.totals();
    let count = |kind| (totals.of(kind).operations, totals.of(kind).bytes);
    assert_eq!(count(OpKind::Write), (2, 1536));
    assert_eq!(count(OpKind::Read), (2, 1024));
    assert_eq!(count(OpKind::Deallocate), (1, 1 << 20));
    assert_eq!(stats.histogram().unwrap().counts.iter().sum::<u64>(), 6);
    assert_eq!(top.stats().unwrap().totals(), Default::default(), "whoever opens it counts");
    script.close();
}

#[test]
fn delays_change_while_requests_come() {
    let device = DelayBdev::new(open("ram:64k").unwrap(), Delays::all(Duration::ZERO));
    let control = device.control();
    let mut script = Script::new(&device);
    script.submit(1, read(0, 512));
    assert_eq!(script.results(), [(1, Ok(()))]);
    control.set(OpKind::Read, Latency { average: MS, p99: 50 * MS });
    assert_eq!(control.get(OpKind::Read).p99, 50 * MS);
    for tag in 0..1000 {
        script.submit(tag, read(0, 512));
    }
    let mut rare = 0;
    for _ in 0..1000 {
        match script.complete(None).as_str() {
            "timer 1ms" => {}
            "timer 50ms" => rare += 1,
            other => panic!("{other}"),
        }
    }
    assert!((2..=30).contains(&rare), "one in a hundred, not {rare} in a thousand");
    control.set(OpKind::Read, Latency::default());
    script.done.clear();
    script.submit(1, read(0, 512));
    assert_eq!(script.results(), [(1, Ok(()))]);
    script.close();
}

/// Each layer has timers of its own, down to a device that has some too.
#[test]
fn delays_lie_on_top_of_each_other() {
    let mut device = open("ram:16M").unwrap();
    for _ in 0..MAX_WRAPPER_LEVELS {
        device = Arc::new(DelayBdev::new(device, Delays::all(MS)));
    }
    let mut script = Script::new(&*device);
    script.submit(1, Op::Deallocate { offset: 0, len: 16 << 20 });
    for _ in 0..MAX_WRAPPER_LEVELS {
        assert_eq!(script.complete(None), "timer 1ms");
    }
    while !script.io.started.is_empty() {
        // The device's own, for its next turn.
        assert!(["timer 0ns", "timer 1ns"].contains(&script.complete(None).as_str()));
    }
    assert_eq!(script.results(), [(1, Ok(()))]);
    let too_many = DelayBdev::new(device, Delays::all(MS));
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Script::new(&too_many)));
    assert!(refused.is_err(), "the timers of one more could not be told apart");
    script.close();
}

fn next(what: Injected, count: u32) -> Injection {
    Injection { what, count, depth: 0 }
}

#[test]
fn orders_are_counted_down() {
    let (device, control) = InjectBdev::new(open("ram:64k").unwrap());
    let (mut one, mut two) = (Script::new(&device), Script::new(&device));
    control.inject(OpKind::Read, next(Injected::Failure, 2));
    control.inject(OpKind::Write, next(Injected::Status { sct: 2, sc: 0x81 }, 1));
    for script in [&mut one, &mut two] {
        script.submit(1, read(0, 512));
    }
    one.submit(2, read(0, 512));
    one.submit(3, write(0, &[1; 512]));
    one.submit(4, write(0, &[1; 512]));
    assert_eq!(two.results(), [(1, Err(BdevError::Internal))], "all cores count together");
    let status = BdevError::Status { sct: 2, sc: 0x81 };
    assert!(one.done[2].payload.is_some(), "the buffer comes back");
    assert_eq!(
        one.results(),
        [(1, Err(BdevError::Internal)), (2, Ok(())), (3, Err(status)), (4, Ok(()))]
    );
    control.inject(OpKind::Read, next(Injected::Failure, 9));
    control.clear();
    one.submit(1, read(0, 512));
    assert_eq!(one.results(), [(1, Ok(()))]);
    one.close();
    two.close();
}

#[test]
fn held_requests_go_when_told_and_not_before() {
    let (device, control) = InjectBdev::new(open("ram:64k").unwrap());
    let mut script = Script::new(&device);
    control.inject(OpKind::Write, next(Injected::Held, 2));
    for tag in 1..=3 {
        script.submit(tag, write(0, &[7; 512]));
    }
    assert_eq!(script.results(), [(3, Ok(()))]);
    script.complete(None);
    assert_eq!(script.results(), []);
    control.resume();
    script.complete(None);
    assert_eq!(script.results(), [(1, Ok(())), (2, Ok(()))]);
    assert!(script.io.started.is_empty(), "nobody looks any more");
    control.inject(OpKind::Write, next(Injected::NoMemory, 2));
    script.submit(1, write(0, &[8; 512]));
    assert_eq!(script.complete(None), "timer 1ms");
    assert_eq!(script.results(), [], "two orders: it is tried twice more");
    script.complete(None);
    assert_eq!(script.results(), [(1, Ok(()))]);
    script.close();
}

#[test]
fn a_byte_is_turned_over() {
    let (device, control) = InjectBdev::new(open("ram:64k").unwrap());
    let mut script = Script::new(&device);
    let bits = NonZeroU8::new(0x0F).unwrap();
    script.submit(1, write(0, &[0xF0; 512]));
    control.inject(OpKind::Read, next(Injected::Corrupt { offset: 511, bits }, 1));
    script.submit(2, Op::Read { offset: 0, len: 512, buf: None });
    script.submit(3, Op::Read { offset: 0, len: 512, buf: None });
    let mut expected = vec![0xF0; 512];
    assert_eq!(bytes_of(&script.done[2]), expected);
    expected[511] = 0xFF;
    assert_eq!(bytes_of(&script.done[1]), expected);
    control.inject(OpKind::Write, next(Injected::Corrupt { offset: 0, bits }, 1));
    script.submit(4, write(512, &[0; 512]));
    script.submit(5, read(512, 512));
    assert_eq!(bytes_of(&script.done[4])[..2], [0x0F, 0]);
    control.inject(OpKind::Read, next(Injected::Corrupt { offset: 512, bits }, 1));
    script.submit(6, read(0, 512));
    assert_eq!(bytes_of(&script.done[5]), [0xF0; 512], "the byte is not in this request");
    script.close();
}

#[test]
fn a_depth_can_be_waited_for() {
    let slow = DelayBdev::new(open("ram:64k").unwrap(), Delays::all(MS));
    let (device, control) = InjectBdev::new(Arc::new(slow));
    let mut script = Script::new(&device);
    let order = Injection { what: Injected::Failure, count: 1, depth: 2 };
    control.inject(OpKind::Read, order);
    for tag in 1..=4 {
        script.submit(tag, read(0, 512));
    }
    assert_eq!(script.results(), [(3, Err(BdevError::Internal))]);
    (0..3).for_each(|_| drop(script.complete(None)));
    assert_eq!(script.results(), [(1, Ok(())), (2, Ok(())), (4, Ok(()))]);
    script.close();
}

#[test]
fn devices_grow() {
    let null = named(open("null:1M").unwrap(), "n");
    null.resize(4096).unwrap();
    assert_eq!(null.info().block_count, 4096);
    assert_eq!(open("ram:1M").unwrap().resize(1), Err(BdevError::NotSupported));

    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    let file = named(open(&format!("file:{},size=1M", path.display())).unwrap(), "f");
    let top = PartBdev::whole(file.clone());
    let truncate = |len| std::fs::File::options().write(true).open(&path).unwrap().set_len(len);
    truncate(2 << 20).unwrap();
    assert_eq!(file.info().block_count, 2048, "nobody has looked");
    top.rescan().unwrap();
    assert_eq!((file.info().block_count, top.info().block_count), (4096, 4096));
    each_backend(|backend| {
        let mut rig = Rig::new(&top, backend);
        rig.write(3 << 19, &[5; 4096]);
        assert_eq!(rig.read(3 << 19, 4096), [5; 4096]);
    });
    truncate(1 << 20).unwrap();
    let error = top.rescan().unwrap_err().to_string();
    assert!(error.contains("has 2048 blocks, 4096 are in use"), "{error}");
    assert_eq!(file.info().block_count, 4096);
}

/// Parts and names pass on data in pages of the kernel; what has to look at data, and memory, does not take them.
#[test]
fn pages_pass_through_what_does_not_look_at_data() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    let base = named(open(&format!("file:{},size=1M,buffered", file.display())).unwrap(), "base");
    let part = named(Arc::new(PartBdev::new(base.clone(), 100, 50).unwrap()), "part");
    assert!(base.takes_pages() && part.takes_pages());
    let mut script = Script::new(&*part);
    script.submit(1, Op::ReadPages { offset: 512, len: 1024, tag: 4 });
    script.submit(2, Op::WritePages { offset: 1024, len: 512, tag: 5, fua: false });
    assert_eq!(script.complete(None), "read of 4 51712+1024");
    assert_eq!(script.complete(None), "write of 5 52224+512");
    assert_eq!(script.results(), [(1, Ok(())), (2, Ok(()))]);
    let totals = base.stats().unwrap().totals();
    assert_eq!((totals.of(OpKind::Read).bytes, totals.of(OpKind::Write).bytes), (1024, 512));
    script.close();
    let ram = open("ram:1M").unwrap();
    let injected: SharedBdev = Arc::new(InjectBdev::new(base).0);
    for other in [ram, open("null:1M").unwrap(), injected] {
        assert!(!other.takes_pages(), "{}", other.info().name);
    }
    let mut script = Script::new(&*open("ram:1M").unwrap());
    script.submit(1, Op::ReadPages { offset: 0, len: 512, tag: 0 });
    assert_eq!(script.results(), [(1, Err(BdevError::NotSupported))]);
    script.close();
}
