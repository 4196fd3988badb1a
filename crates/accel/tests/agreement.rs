//! All engines agree with a naive model, whatever the operands' pieces, lengths and alignment.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use raceline_accel::{
    AccelError, ChannelConfig, CrcPath, Framework, Injection, InjectionKind, OpCode, Output, Part,
    Submitted, Upcoming, Work, crc32c,
};
use support::drive::{Driver, channel_of, framework_of, totals};
use support::engine::{Manners, TestEngine};
use support::memory::Changing;
use support::model::{Sizes, check, work_of};
use support::random::Random;

const TIMEOUT: Duration = Duration::from_secs(10);

fn none_allowed(_: AccelError) -> bool {
    false
}

/// Runs operations through a table; nothing may fail, and nothing may stay behind.
fn run(framework: &Framework, seed: u64, slots: usize, sizes: Sizes) -> Result<(), String> {
    let mut driver = Driver::new(channel_of(framework, slots, TIMEOUT), seed, none_allowed);
    driver.submit(60, sizes)?;
    driver.drain()?;
    if driver.alive() != 0 {
        return Err(format!("{} operands left", driver.alive()));
    }
    let [executed, failed, _, in_flight] = totals(framework);
    if [executed, failed, in_flight] != [60, 0, 0] {
        return Err(format!("{executed} executed, {failed} failed, {in_flight} in flight"));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn copies_that_own_nothing_agree(
        seed in any::<u64>(),
        path in 0..CrcPath::ALL.len(),
        bytes in 0..20_000_usize,
        next in any::<bool>(),
    ) {
        let framework = Framework::software();
        prop_assume!(framework.force_crc_path(CrcPath::ALL[path]).is_ok());
        let mut channel =
            framework.open_channel::<Vec<u8>, Vec<u8>>(&ChannelConfig::default()).unwrap();
        let source = Random(seed).bytes(bytes);
        let upcoming = next.then(|| Upcoming::at(std::ptr::without_provenance(bytes)));
        let (mut one, mut other) = (vec![0; bytes], vec![0; bytes]);
        let digest = crc32c(&source);
        prop_assert_eq!(channel.copy_crc32c_now(&source, &mut one, upcoming), Ok(digest));
        prop_assert_eq!(channel.copy_bytes_crc32c_now(&source, &mut other, None), Ok(digest));
        prop_assert!(one == source && other == source);
        one.push(0);
        let code = OpCode::CopyCrc32c;
        let lengths = Err(AccelError::Lengths { operation: code, first: bytes, second: bytes + 1 });
        prop_assert_eq!(channel.copy_crc32c_now(&source, &mut one, None), lengths);
        prop_assert_eq!(channel.copy_bytes_crc32c_now(&source, &mut one, None), lengths);
        let statistics = framework.statistics();
        let counts = statistics.of(code);
        prop_assert_eq!((counts.executed, counts.failed), (2, 2));
        for (kind, result) in [
            (InjectionKind::Corrupt, Ok(!digest)),
            (InjectionKind::Fail, Err(AccelError::Injected)),
        ] {
            framework.inject(code, Some(Injection { kind, interval: 1, count: 1 }));
            prop_assert_eq!(channel.copy_crc32c_now(&source, &mut other, None), result);
        }
        prop_assert_eq!(channel.copy_crc32c_now(&source, &mut other, None), Ok(digest));
    }

    #[test]
    fn software_agrees(
        seed in any::<u64>(),
        path in 0..CrcPath::ALL.len(),
        bytes in prop_oneof![Just(100_usize), Just(5_000), Just(40_000)],
        pieces in 1..70_usize,
    ) {
        let framework = Framework::software();
        let path = CrcPath::ALL[path];
        if framework.force_crc_path(path).is_err() {
            prop_assert!(!path.is_available());
            static ONCE: Once = Once::new();
            ONCE.call_once(|| eprintln!("SKIPPED: kernels of CRC32C that this CPU lacks: {path:?}"));
            return Ok(());
        }
        prop_assert_eq!(run(&framework, seed, 0, Sizes { bytes, pieces }), Ok(()));
        prop_assert_eq!(totals(&framework)[2], 0);
    }

    #[test]
    fn a_late_engine_agrees_in_steps_and_with_fallback(
        seed in any::<u64>(),
        bytes in prop_oneof![Just(100_usize), Just(5_000)],
        pieces in 1..20_usize,
        limits in (prop_oneof![Just(1_usize << 20), 64..3000_usize], 1..20_usize, 1..40_usize),
        slots in 1..40_usize,
        (busy, unsuitable, partial) in (0..50_usize, 0..20_usize, 0..50_usize),
    ) {
        let manners = Manners { busy, unsuitable, partial, limits, ..Manners::default() };
        let (engine, control) = TestEngine::new(manners, seed);
        let framework = framework_of(engine);
        prop_assert_eq!(run(&framework, seed, slots, Sizes { bytes, pieces }), Ok(()));
        prop_assert!(control.lock().unwrap().taken > 0 || totals(&framework)[2] > 0);
    }
}

#[test]
fn a_long_operation_with_many_segments_and_none_at_all() {
    let (engine, control) =
        TestEngine::new(Manners { limits: (100_000, 4096, 8), ..Manners::default() }, 1);
    for framework in [Framework::software(), framework_of(engine)] {
        let alive = Arc::new(());
        let mut random = Random(5);
        let mut driver = Driver::new(channel_of(&framework, 16, TIMEOUT), 5, none_allowed);
        for code in OpCode::ALL {
            for sizes in [
                Sizes { bytes: 1 << 20, pieces: 1 },
                Sizes { bytes: 300_000, pieces: 3000 },
                Sizes { bytes: 0, pieces: 5 },
            ] {
                let (work, expected) = work_of(code, &mut random, sizes, &alive);
                match driver.channel.submit(7, work) {
                    Submitted::Done(done) => check(&done, &expected, none_allowed).unwrap(),
                    Submitted::Pending => {
                        driver.expected.insert(7, expected);
                        driver.drain().unwrap();
                    }
                    Submitted::Full(_) => panic!("there is one operation at a time"),
                }
            }
        }
        assert_eq!(Arc::strong_count(&alive), 1);
    }
    assert!(control.lock().unwrap().taken > 30, "long operations go in steps");
}

#[test]
fn operands_that_do_not_fit_fail_and_come_back() {
    let (engine, _control) = TestEngine::new(Manners::default(), 1);
    for framework in [Framework::software(), framework_of(engine)] {
        let mut channel =
            framework.open_channel::<Vec<u8>, Vec<u8>>(&ChannelConfig::default()).unwrap();
        let range = |offset, len| AccelError::Range { offset, len, available: 10 };
        let lengths = |operation, first, second| AccelError::Lengths { operation, first, second };
        let ten = || vec![1; 10];
        let cases: Vec<(Work<_, _>, _)> = vec![
            (Work::crc32c(0, Part::range(ten(), 5..11)), range(5, 6)),
            (Work::crc32c(0, Part::range(ten(), 11..11)), range(11, 0)),
            (Work::crc32c(0, Part::range(ten(), 1..usize::MAX)), range(1, usize::MAX - 1)),
            (Work::fill(0, Part::range(ten(), usize::MAX..usize::MAX)), range(usize::MAX, 0)),
            (Work::copy(ten(), vec![0; 9]), lengths(OpCode::Copy, 10, 9)),
            (Work::copy_crc32c(0, ten(), vec![0; 11]), lengths(OpCode::CopyCrc32c, 10, 11)),
            (Work::compare(ten(), vec![0; 11]), lengths(OpCode::Compare, 10, 11)),
            (Work::dual_cast(ten(), ten(), vec![]), lengths(OpCode::DualCast, 10, 0)),
            (Work::dual_cast(ten(), vec![], ten()), lengths(OpCode::DualCast, 10, 0)),
            (Work::copy(vec![], ten()), lengths(OpCode::Copy, 0, 10)),
        ];
        for (work, expected) in cases {
            let Submitted::Done(done) = channel.submit(3, work) else { panic!("not at once") };
            assert_eq!((done.token, done.result), (3, Err(expected)));
            assert!(done.work.is_some());
        }
        assert_eq!(channel.in_flight(), 0);
        assert_eq!(totals(&framework), [0, 10, 0, 0]);
    }
}

#[test]
fn streams_that_are_wrong_or_too_long_fail() {
    let framework = Framework::software();
    let mut channel =
        framework.open_channel::<Vec<Vec<u8>>, Vec<Vec<u8>>>(&ChannelConfig::default()).unwrap();
    let mut run = |work| {
        let Submitted::Done(done) = channel.submit(0, work) else { panic!("not at once") };
        done
    };
    let text: Vec<u8> = Random(3).bytes(10_000);
    let exact = Work::compress(6, vec![text.clone()], vec![vec![0; 20_000]]);
    let done = run(exact);
    let Ok(Output::Written(len)) = done.result else { panic!("{:?}", done.result) };
    let (_, [target, _]) = done.work.unwrap().into_memory();
    let stream = target.unwrap()[0][..len].to_vec();

    // Exactly as long as needed, in pieces; and one byte less.
    let pieces = |len: usize| vec![vec![0; len / 3], vec![], vec![0; len - len / 3]];
    let done = run(Work::compress(6, vec![text.clone()], pieces(len)));
    assert_eq!(done.result, Ok(Output::Written(len)));
    let done = run(Work::compress(6, vec![text.clone()], pieces(len - 1)));
    assert_eq!(done.result, Err(AccelError::TargetTooSmall { available: len - 1 }));
    let done = run(Work::decompress(vec![stream.clone()], pieces(10_000)));
    assert_eq!(done.result, Ok(Output::Written(10_000)));
    let done = run(Work::decompress(vec![stream.clone()], pieces(9_999)));
    assert_eq!(done.result, Err(AccelError::TargetTooSmall { available: 9_999 }));

    let cut = vec![stream[..len - 1].to_vec()];
    let done = run(Work::decompress(cut, pieces(10_000)));
    assert_eq!(done.result, Err(AccelError::NotDeflate));
    for wrong in [vec![], vec![0xff; 100], vec![6, 6, 6]] {
        let done = run(Work::decompress(vec![wrong], pieces(10_000)));
        assert_eq!(done.result, Err(AccelError::NotDeflate));
    }
}

/// Nothing of an operation depends on the operation before it.
#[test]
fn a_compressor_forgets_what_failed() {
    let framework = Framework::software();
    let mut channel =
        framework.open_channel::<Vec<u8>, Vec<u8>>(&ChannelConfig::default()).unwrap();
    let text = vec![9; 1000];
    for room in [1, 1000, 2, 1000] {
        let work = Work::compress(9, text.clone(), vec![0; room]);
        let Submitted::Done(done) = channel.submit(0, work) else { panic!("not at once") };
        match done.result {
            Ok(Output::Written(len)) if room == 1000 => {
                let (_, [target, _]) = done.work.unwrap().into_memory();
                assert_eq!(support::model::inflate(&target.unwrap()[..len]), text);
            }
            Err(AccelError::TargetTooSmall { .. }) if room < 1000 => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A source that changes while it is copied: the digest is of what arrived.
#[test]
fn the_digest_of_a_copy_is_of_the_copy() {
    /// Copies during which the source changed that are enough, and how long to try for them: on a
    /// machine with one core there may be none.
    const ENOUGH: usize = 100;
    const LIMIT: Duration = Duration::from_secs(5);

    let source = Arc::new((0..16_384).map(AtomicU64::new).collect::<Vec<_>>());
    let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = std::thread::spawn({
        let (source, stop, writes) = (Arc::clone(&source), Arc::clone(&stop), Arc::clone(&writes));
        move || {
            let mut random = Random(1);
            while !stop.load(Ordering::Relaxed) {
                source[random.below(source.len())].store(random.next(), Ordering::Relaxed);
                writes.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for path in [CrcPath::Auto, CrcPath::Table] {
        let framework = Framework::software();
        framework.force_crc_path(path).unwrap();
        let mut channel =
            framework.open_channel::<Changing, Vec<u8>>(&ChannelConfig::default()).unwrap();
        let (start, mut lively) = (Instant::now(), 0);
        while lively < ENOUGH && start.elapsed() < LIMIT {
            let work =
                Work::copy_crc32c(0, Changing(Arc::clone(&source)), vec![0; 8 * source.len()]);
            let before = writes.load(Ordering::Relaxed);
            let Submitted::Done(done) = channel.submit(0, work) else { panic!("not at once") };
            lively += usize::from(writes.load(Ordering::Relaxed) - before > 100);
            let (_, [target, _]) = done.work.unwrap().into_memory();
            let digest = raceline_accel::crc32c(&target.unwrap());
            assert_eq!(done.result, Ok(Output::Crc32c(digest)), "{path}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[test]
fn the_table_says_what_it_cannot_do() {
    let (engine, _control) = TestEngine::new(Manners::default(), 1);
    let framework = Framework::new(vec![engine.clone()]).unwrap();
    let refusal = |code, name| framework.assign(code, name).unwrap_err().to_string();
    assert!(refusal(OpCode::Copy, "gpu").contains("software, test, ioat, qat"));
    assert!(refusal(OpCode::Crc32c, "ioat").contains("it can do: copy, fill"));
    assert!(refusal(OpCode::Copy, "ioat").contains("no driver"));
    assert!(refusal(OpCode::Compress, "qat").contains("no driver"));
    framework.assign(OpCode::Crc32c, "test").unwrap();
    framework.assign(OpCode::Copy, "test").unwrap();
    framework.assign(OpCode::Copy, "software").unwrap();
    let assigned: Vec<_> =
        framework.assignments().into_iter().filter(|&(_, name)| name == "test").collect();
    assert_eq!(assigned, [(OpCode::Crc32c, "test")]);
    let channel = framework.open_channel::<Vec<u8>, ()>(&ChannelConfig::default()).unwrap();
    assert!(channel.is_immediate(OpCode::Copy) && !channel.is_immediate(OpCode::Crc32c));
    assert!(refusal(OpCode::Fill, "test").contains("in use"));
    assert!(Framework::new(vec![engine.clone(), engine]).is_err());
    assert_eq!(framework.modules().iter().filter(|module| module.available).count(), 2);
    assert!(CrcPath::ALL.iter().any(|path| match framework.force_crc_path(*path) {
        Ok(()) => false,
        Err(error) => error.to_string().contains(&format!("by {path}")),
    }));
}
