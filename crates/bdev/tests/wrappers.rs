//! The delay and error wrappers, with a clock that the test moves.
#![allow(clippy::unwrap_used, reason = "a test program")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Script, bytes_of, open, read, write};
use raceline_bdev::{BdevError, DelayBdev, Delays, DeviceSpec, ErrorBdev, ErrorRule, Op, OpKind};

fn rules(text: &str) -> Vec<ErrorRule> {
    format!("ram:1M,error={text}").parse::<DeviceSpec>().unwrap().errors
}

fn in_place(offset: u64, len: usize) -> Op {
    Op::Read { offset, len, buf: None }
}

#[test]
fn a_delayed_request_takes_effect_after_its_time() {
    let ms = Duration::from_millis;
    let delays = Delays::all(ms(0)).with(OpKind::Write, ms(3)).with(OpKind::Flush, ms(1));
    let device = DelayBdev::new(open("ram:64k").unwrap(), delays);
    let mut script = Script::new(&device);
    script.submit(1, write(512, &[7; 512]));
    script.submit(2, Op::Flush);
    script.submit(3, read(512, 512));
    assert_eq!(bytes_of(&script.done[0]), [0; 512], "the write has not happened");
    assert_eq!(script.results(), [(3, Ok(()))], "reads are not delayed");
    assert_eq!(script.complete(None), "timer 3ms");
    assert_eq!(script.complete(None), "timer 1ms");
    assert_eq!(script.results(), [(1, Ok(())), (2, Ok(()))]);
    script.submit(4, read(512, 512));
    assert_eq!(bytes_of(&script.done[0]), [7; 512]);
    script.close();
}

/// Both the wrapper and the RAM device under it use timers: neither takes the other's.
#[test]
fn timers_of_wrapper_and_device_do_not_mix() {
    let device = open("ram:16M,delay=1000").unwrap();
    let mut script = Script::new(&*device);
    script.submit(1, Op::Deallocate { offset: 0, len: 16 << 20 });
    assert_eq!(script.complete(None), "timer 1ms");
    script.submit(2, in_place(0, 512));
    assert_eq!(script.io.started.len(), 2, "the device's and the wrapper's");
    let mut order = Vec::new();
    while !script.io.started.is_empty() {
        order.push(script.complete(None));
        order.extend(script.results().iter().map(|(tag, _)| format!("done {tag}")));
        if order.last().is_some_and(|last| last == "timer 0ns") {
            script.io.advance(Duration::from_nanos(1)); // the next turn
        }
    }
    assert_eq!(order[..3], ["timer 0ns", "timer 999.999µs", "done 2"]);
    let (last, turns) = order[3..].split_last().unwrap();
    assert_eq!(last, "done 1");
    assert!(turns.iter().all(|turn| turn == "timer 0ns"), "{turns:?}");
    script.close();
}

#[test]
fn errors_follow_the_rules() {
    let (device, control) = ErrorBdev::new(open("ram:64k").unwrap(), rules("write/3+read@4-7"));
    let device = Arc::new(device);
    let mut script = Script::new(&*device);
    for tag in 1..=6 {
        script.submit(tag, write(0, &[1; 512]));
    }
    assert!(script.done.iter().all(|done| done.payload.is_some()), "buffers come back");
    let failed: Vec<_> = script
        .results()
        .into_iter()
        .filter_map(|(tag, result)| Some((tag, result.err()?)))
        .collect();
    assert_eq!(failed, [(3, BdevError::WriteFault), (6, BdevError::WriteFault)]);

    // Blocks 4 to 7 are bytes 2048 to 4095.
    for (tag, offset, len) in [(1, 0, 2048), (2, 1536, 1024), (3, 3584, 512), (4, 4096, 512)] {
        script.submit(tag, in_place(offset, len));
    }
    script.submit(5, Op::Flush);
    let fault = Err(BdevError::ReadFault);
    assert_eq!(script.results(), [(1, Ok(())), (2, fault), (3, fault), (4, Ok(())), (5, Ok(()))]);
    assert_eq!(control.failed(), 4);

    // Switched while it runs, seen by other channels too.
    let mut other = Script::new(&*device);
    control.set(rules("all:transient"));
    for script in [&mut script, &mut other] {
        script.submit(1, Op::Flush);
        script.submit(2, read(0, 512));
        assert!(script.done[1].payload.is_some(), "the buffer of a failed read comes back");
        let failed = Err(BdevError::Transient);
        assert_eq!(script.results(), [(1, failed), (2, failed)]);
    }
    control.set(Vec::new());
    script.submit(3, read(2048, 512));
    assert_eq!(script.results(), [(3, Ok(()))]);
    script.close();
    other.close();
}

#[test]
fn a_failed_request_has_no_effect() {
    let device = open("ram:64k,error=write@2-2:nospace").unwrap();
    let mut script = Script::new(&*device);
    script.submit(1, write(0, &[9; 2048]));
    script.submit(2, in_place(0, 2048));
    assert_eq!(bytes_of(&script.done[1]), [0; 2048]);
    assert_eq!(script.results(), [(1, Err(BdevError::NoSpace)), (2, Ok(()))]);
    script.close();
}
