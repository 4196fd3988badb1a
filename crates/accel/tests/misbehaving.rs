//! Engines that fail, hang, report nonsense, or come late: every operation gets its status, nothing
//! leaks, and nothing is freed that an engine may still touch.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use raceline_accel::{AccelError, Injection, InjectionKind, OpCode, Output, Submitted, Work};
use support::drive::{Driver, channel_of, framework_of, totals};
use support::engine::{Manners, STATUS, TestEngine};
use support::memory::Counted;
use support::model::{Sizes, crc32c_by_bits};
use support::random::Random;

const TIMEOUT: Duration = Duration::from_secs(1);
const SMALL: Sizes = Sizes { bytes: 2000, pieces: 4 };

fn failures_allowed(error: AccelError) -> bool {
    matches!(
        error,
        AccelError::Engine { engine: "test", status: STATUS } | AccelError::TimedOut { .. }
    )
}

fn none_allowed(_: AccelError) -> bool {
    false
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The whole zoo at once.
    #[test]
    fn every_operation_gets_its_status(
        seed in any::<u64>(),
        (busy, unsuitable, fail) in (0..100_usize, 0..20_usize, 0..30_usize),
        (partial, nonsense, twice) in (0..50_usize, 0..50_usize, 0..50_usize),
        (bogus, hang) in (0..50_usize, prop_oneof![Just(0_usize), 0..10_usize]),
        limits in (64..3000_usize, 1..6_usize, 1..40_usize),
        slots in 1..40_usize,
    ) {
        let manners = Manners {
            busy, unsuitable, fail, partial, nonsense, twice, bogus, hang, limits,
            ..Manners::default()
        };
        let (engine, control) = TestEngine::new(manners, seed);
        let framework = framework_of(engine);
        let channel = channel_of(&framework, slots, TIMEOUT);
        let mut driver = Driver::new(channel, seed, failures_allowed);
        prop_assert_eq!(driver.submit(80, SMALL), Ok(()));
        prop_assert_eq!(driver.drain(), Ok(()));
        let [executed, failed, _, in_flight] = totals(&framework);
        prop_assert_eq!((executed + failed, in_flight), (80, 0));
        let statistics = framework.statistics();
        prop_assert_eq!(statistics.timed_out, statistics.quarantined);
        prop_assert!(driver.alive() > 0 || statistics.quarantined == 0);

        // The operation that hung comes back at last: its memory is free again, and its owner is not told.
        control.lock().unwrap().let_go();
        for _ in 0..200 {
            prop_assert_eq!(driver.poll(), Ok(()));
        }
        prop_assert_eq!(framework.statistics().quarantined, 0);
        prop_assert_eq!(driver.alive(), 0);
    }

    /// Channels die with operations in flight, in any state.
    #[test]
    fn a_channel_that_is_dropped_leaves_nothing(
        seed in any::<u64>(),
        (busy, hang, twice) in (0..50_usize, prop_oneof![Just(0_usize), Just(50)], 0..30_usize),
        slots in 1..40_usize,
    ) {
        let manners = Manners { busy, hang, twice, ..Manners::default() };
        let (engine, _control) = TestEngine::new(manners, seed);
        let framework = framework_of(engine);
        // Not every case can wait for as long as a channel would.
        let channel = channel_of(&framework, slots, Duration::from_millis(3));
        let mut driver = Driver::new(channel, seed, failures_allowed);
        driver.submit(slots.min(20), SMALL).unwrap();
        let alive = Arc::clone(&driver.alive);
        drop(driver);
        prop_assert_eq!(Arc::strong_count(&alive), 1);
        prop_assert_eq!(framework.statistics().leaked, 0);
        prop_assert_eq!(totals(&framework)[3], 0);
    }
}

/// Submits copies until the engine has `count` of them.
fn submit_copies(driver: &mut Driver, count: u64) {
    for token in 0..count {
        let bytes = Random(token).bytes(4096);
        let mut random = Random(token);
        let source = Counted::new(&bytes, 1, &mut random, &driver.alive);
        let target = Counted::new(&[0; 4096], 1, &mut random, &driver.alive);
        let submitted = driver.channel.submit(token, Work::copy(source, target));
        assert!(matches!(submitted, Submitted::Pending));
    }
}

#[test]
fn a_hanging_engine_costs_a_timeout_and_gets_nothing_more() {
    let (engine, control) = TestEngine::new(Manners { hang: 100, ..Manners::default() }, 1);
    let framework = framework_of(engine);
    let mut driver = Driver::new(channel_of(&framework, 8, TIMEOUT), 1, none_allowed);
    submit_copies(&mut driver, 3);
    let (start, mut done) = (Instant::now(), Vec::new());
    let mut elapsed = Duration::ZERO;
    while done.is_empty() {
        assert!(elapsed <= TIMEOUT * 5 / 4, "no timeout");
        elapsed += Duration::from_millis(10);
        driver.channel.poll(start + elapsed, &mut done);
    }
    assert!(elapsed >= TIMEOUT, "given up after {elapsed:?}");
    assert_eq!(done.len(), 3);
    for one in &done {
        assert_eq!(one.result, Err(AccelError::TimedOut { engine: "test" }));
        assert!(one.work.is_none(), "an engine owns it");
    }
    assert_eq!((driver.channel.in_flight(), driver.alive()), (0, 6));
    assert_eq!(framework.statistics().quarantined, 3);

    // From now on everything is done in software, at once.
    driver.submit(50, SMALL).unwrap();
    assert!(driver.expected.is_empty());
    assert_eq!(control.lock().unwrap().taken, 3);
    assert_eq!(totals(&framework)[2], 50);

    // The engine comes late: it may still touch the memory, which is then free.
    control.lock().unwrap().touch_everything();
    control.lock().unwrap().let_go();
    driver.poll_until(|driver| driver.alive() == 0).unwrap();
    assert_eq!(framework.statistics().quarantined, 0);
    assert_eq!(framework.statistics().timed_out, 3);
}

/// A core that sleeps long does not take its engine for hung.
#[test]
fn a_late_poll_is_no_timeout() {
    let (engine, control) = TestEngine::new(Manners { hang: 100, ..Manners::default() }, 1);
    let framework = framework_of(engine);
    let mut driver = Driver::new(channel_of(&framework, 8, TIMEOUT), 1, none_allowed);
    submit_copies(&mut driver, 1);
    let mut done = Vec::new();
    for _ in 0..4 {
        driver.now += 100 * TIMEOUT;
        driver.channel.poll(driver.now, &mut done);
    }
    assert!(done.is_empty());
    control.lock().unwrap().let_go();
    for _ in 0..1000 {
        driver.channel.poll(driver.now, &mut done);
    }
    assert_eq!(done[0].result, Ok(Output::Nothing));
}

#[test]
fn an_engine_that_cannot_be_stopped_leaks_on_purpose() {
    let manners = Manners { hang: 100, stops: false, ..Manners::default() };
    let (engine, control) = TestEngine::new(manners, 1);
    let framework = framework_of(engine);
    let channel = channel_of(&framework, 8, Duration::from_millis(5));
    let mut driver = Driver::new(channel, 1, none_allowed);
    submit_copies(&mut driver, 2);
    let alive = Arc::clone(&driver.alive);
    drop(driver);
    assert_eq!(framework.statistics().leaked, 2);
    assert_eq!(Arc::strong_count(&alive), 1 + 4, "freed under a device");
    control.lock().unwrap().touch_everything();
}

#[test]
fn an_engine_that_is_always_busy_is_helped_out() {
    let (engine, control) = TestEngine::new(Manners { busy: 100, ..Manners::default() }, 1);
    let framework = framework_of(engine);
    let mut driver = Driver::new(channel_of(&framework, 4, TIMEOUT), 1, none_allowed);
    submit_copies(&mut driver, 4);
    let source = Counted::new(&[1; 512], 1, &mut Random(1), &driver.alive);
    let full = driver.channel.submit(9, Work::crc32c(0, source));
    let Submitted::Full(work) = full else { panic!("a fifth of four slots") };
    drop(work);
    assert_eq!(framework.statistics().full, 1);
    let mut done = Vec::new();
    for _ in 0..2000 {
        driver.channel.poll(driver.now, &mut done);
    }
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|one| one.result == Ok(Output::Nothing)));
    assert_eq!((totals(&framework)[2], control.lock().unwrap().taken), (4, 0));
}

#[test]
fn an_unhealthy_engine_gets_nothing() {
    let (engine, control) = TestEngine::new(Manners { healthy: false, ..Manners::default() }, 1);
    let framework = framework_of(engine);
    let mut driver = Driver::new(channel_of(&framework, 4, TIMEOUT), 1, none_allowed);
    driver.submit(20, SMALL).unwrap();
    assert!(driver.expected.is_empty());
    control.lock().unwrap().manners.healthy = true;
    submit_copies(&mut driver, 1);
}

#[test]
fn injected_errors_hit_every_nth_operation() {
    let (engine, _control) = TestEngine::new(Manners::default(), 1);
    for framework in [raceline_accel::Framework::software(), framework_of(engine)] {
        let mut driver = Driver::new(channel_of(&framework, 4, TIMEOUT), 1, none_allowed);
        let mut run = |work: Work<Counted, Counted>| {
            let mut done = Vec::new();
            match driver.channel.submit(0, work) {
                Submitted::Done(one) => return one,
                Submitted::Pending => {}
                Submitted::Full(_) => panic!("one at a time"),
            }
            for _ in 0..1000 {
                driver.channel.poll(driver.now, &mut done);
            }
            done.pop().expect("it completes")
        };
        let (mut random, alive) = (Random(1), Arc::new(()));
        let mut memory = |bytes: &[u8]| Counted::new(bytes, 3, &mut random, &alive);
        let text = b"some bytes that are digested";
        let right = Ok(Output::Crc32c(crc32c_by_bits(0, text)));

        let rule = Injection { kind: InjectionKind::Corrupt, interval: 3, count: 2 };
        framework.inject(OpCode::Crc32c, Some(rule));
        let mut is_wrong = |_: &usize| {
            let done = run(Work::crc32c(0, memory(text)));
            assert!(done.result.is_ok());
            done.result != right
        };
        let wrong: Vec<usize> = (1..12).filter(&mut is_wrong).collect();
        assert_eq!(wrong, [3, 6]);

        let rule = Injection { kind: InjectionKind::Fail, interval: 1, count: 1 };
        framework.inject(OpCode::Crc32c, Some(rule));
        let done = run(Work::crc32c(0, memory(text)));
        assert_eq!(done.result, Err(AccelError::Injected));
        drop(done.work.expect("the memory comes back"));
        assert_eq!(run(Work::crc32c(0, memory(text))).result, right);

        let rule = Injection { kind: InjectionKind::Corrupt, interval: 1, count: u64::MAX };
        framework.inject(OpCode::Copy, Some(rule));
        let done = run(Work::copy(memory(text), memory(&[0; 28])));
        let work = done.work.unwrap();
        let copied = work.targets().next().unwrap().bytes();
        assert_eq!((copied[0] ^ text[0], &copied[1..]), (1, &text[1..]));
        framework.inject(OpCode::Copy, None);
        let done = run(Work::copy(memory(text), memory(&[0; 28])));
        let right = done.work.unwrap();
        assert_eq!(right.targets().next().unwrap().bytes(), text);
        drop((work, right));
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
