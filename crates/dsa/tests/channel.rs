//! Channels over the emulated DSA device: whatever the device does, operations end, with the
//! right bytes or with an error, and their memory comes back or is set aside.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use raceline_accel::{
    AccelError, Channel, ChannelConfig, Done, Framework, OpCode, Output, Part, Statistics,
    Submitted, Work, crc32c,
};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::emulated::EmulatedConfig;

type Bytes = Vec<u8>;

/// No test waits longer than this.
const LIMIT: Duration = Duration::from_secs(30);

struct Rig {
    channel: Channel<Bytes, Bytes>,
    framework: Framework,
    engine: Arc<EmulatedEngine>,
    done: Vec<Done<Bytes, Bytes>>,
}

impl Rig {
    fn new(config: EmulatedConfig, timeout: Duration) -> Self {
        let engine = Arc::new(EmulatedEngine::start(config, 1).expect("a thread"));
        let framework = Framework::new(vec![engine.clone()]).expect("one engine");
        for code in raceline_dsa::queue::DSA_OPERATIONS.iter() {
            framework.assign(code, "dsa_emulated").expect("it can do that");
        }
        let config = ChannelConfig { timeout, ..ChannelConfig::default() };
        let channel = framework.open_channel(&config).expect("a channel");
        Self { channel, framework, engine, done: Vec::new() }
    }

    fn submit(&mut self, token: u64, mut work: Work<Bytes, Bytes>) {
        let end = Instant::now() + LIMIT;
        loop {
            match self.channel.submit(token, work) {
                Submitted::Done(done) => return self.done.push(done),
                Submitted::Pending => return,
                Submitted::Full(back) => work = back,
            }
            assert!(Instant::now() < end, "no slot becomes free");
            self.channel.kick();
            self.channel.poll(Instant::now(), &mut self.done);
        }
    }

    fn finish(&mut self) {
        let end = Instant::now() + LIMIT;
        self.channel.kick();
        while self.channel.in_flight() > 0 {
            assert!(Instant::now() < end, "{} operations in flight", self.channel.in_flight());
            self.channel.poll(Instant::now(), &mut self.done);
            thread::yield_now();
        }
    }

    fn statistics(&self) -> Statistics {
        self.framework.statistics()
    }
}

fn every(count: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(count)
}

fn patterned(length: usize, salt: u64) -> Bytes {
    let byte = |at: u64| (at * 31 + salt * 17 + at / 251).to_le_bytes()[0];
    (0..length as u64).map(byte).collect()
}

/// Copies with a digest; each token has its own data.
fn copy_crc32c(token: u64, length: usize) -> Work<Bytes, Bytes> {
    Work::copy_crc32c(0, patterned(length, token), vec![0; length])
}

/// Checks that an operation of [`copy_crc32c`] has succeeded with the right result.
fn check(done: Done<Bytes, Bytes>, length: usize) {
    let data = patterned(length, done.token);
    assert_eq!(done.result, Ok(Output::Crc32c(crc32c(&data))), "token {}", done.token);
    let (_, [target, _]) = done.work.expect("the memory").into_memory();
    assert!(target.expect("a target") == data, "token {}: the copy differs", done.token);
}

#[test]
fn a_device_that_behaves() {
    let mut rig = Rig::new(EmulatedConfig::default(), LIMIT);
    assert!(!rig.channel.is_immediate(OpCode::CopyCrc32c));
    assert!(rig.channel.is_immediate(OpCode::Compress));
    for token in 0..1000 {
        rig.submit(token, copy_crc32c(token, 4096));
    }
    rig.finish();
    assert_eq!(rig.done.len(), 1000);
    rig.done.drain(..).for_each(|done| check(done, 4096));
    assert_eq!(rig.engine.device().counts().completed, 1000);
    // The table refuses what DSA cannot do, and says so.
    let error = rig.framework.assign(OpCode::Compress, "dsa_emulated").expect_err("it cannot");
    assert!(error.to_string().contains("cannot do compress"), "{error}");
}

#[test]
fn what_is_longer_than_a_transfer_goes_in_parts() {
    let config = EmulatedConfig { transfer_bytes_max: 1000, ..EmulatedConfig::default() };
    let mut rig = Rig::new(config, LIMIT);
    for token in 0..20 {
        rig.submit(token, copy_crc32c(token, 9999));
    }
    rig.finish();
    rig.done.drain(..).for_each(|done| check(done, 9999));
    assert_eq!(rig.engine.device().counts().completed, 200);
}

#[test]
fn page_faults_are_finished_in_software() {
    for after in [None, Some(0), Some(1), Some(4095)] {
        let config = EmulatedConfig {
            fault_every: every(2),
            fault_after: after,
            seed: 9,
            ..EmulatedConfig::default()
        };
        let mut rig = Rig::new(config, LIMIT);
        for token in 0..300 {
            rig.submit(token, copy_crc32c(token, 4096));
        }
        rig.finish();
        rig.done.drain(..).for_each(|done| check(done, 4096));
        let statistics = rig.statistics();
        assert_eq!(statistics.operations[OpCode::CopyCrc32c.index()].fallbacks, 150);
    }
}

#[test]
fn an_error_is_reported_with_its_status() {
    let mut rig =
        Rig::new(EmulatedConfig { error_every: every(4), ..EmulatedConfig::default() }, LIMIT);
    for token in 0..100 {
        rig.submit(token, copy_crc32c(token, 512));
    }
    rig.finish();
    let error = Err(AccelError::Engine { engine: "dsa_emulated", status: 0x20 });
    let (failed, fine): (Vec<_>, Vec<_>) =
        rig.done.drain(..).partition(|done| done.result == error);
    assert_eq!((failed.len(), fine.len()), (25, 75));
    assert!(failed.iter().all(|done| done.work.is_some()));
    fine.into_iter().for_each(|done| check(done, 512));
}

/// An operation that hangs is given up; when the device is done with it at last, its memory is freed.
#[test]
fn a_device_that_hangs() {
    let config = EmulatedConfig { hang_every: every(10), ..EmulatedConfig::default() };
    let mut rig = Rig::new(config, Duration::from_millis(100));
    for token in 0..100 {
        rig.submit(token, copy_crc32c(token, 512));
    }
    rig.finish();
    let timed_out = Err(AccelError::TimedOut { engine: "dsa_emulated" });
    let (hung, fine): (Vec<_>, Vec<_>) =
        rig.done.drain(..).partition(|done| done.result == timed_out);
    assert_eq!((hung.len(), fine.len()), (10, 90));
    assert!(hung.iter().all(|done| done.work.is_none()), "the device still owns it");
    fine.into_iter().for_each(|done| check(done, 512));
    assert_eq!(rig.statistics().quarantined, 10);
    // From now on: software.
    rig.submit(100, copy_crc32c(100, 512));
    check(rig.done.pop().expect("it is complete at once"), 512);
    // Late, the device writes into the memory that was set aside, and lets go of it.
    rig.engine.device().release_hung();
    let end = Instant::now() + LIMIT;
    while rig.statistics().quarantined > 0 {
        assert!(Instant::now() < end, "the device gives nothing back");
        rig.channel.poll(Instant::now(), &mut rig.done);
        thread::yield_now();
    }
    assert!(rig.done.is_empty(), "an operation ends once");
}

/// Nothing is freed under a device that never answers; that costs the memory.
#[test]
fn a_channel_that_is_dropped_over_a_hung_device_leaks_on_purpose() {
    let config = EmulatedConfig { hang_every: every(3), ..EmulatedConfig::default() };
    let mut rig = Rig::new(config, Duration::from_millis(50));
    for token in 0..9 {
        rig.submit(token, copy_crc32c(token, 512));
    }
    let Rig { channel, framework, engine, .. } = rig;
    drop(channel);
    assert_eq!(framework.statistics().leaked, 3);
    // Only now does it write into that memory.
    engine.device().release_hung();
    let end = Instant::now() + LIMIT;
    while engine.device().counts().completed < 9 {
        assert!(Instant::now() < end, "the device does not go on");
        thread::yield_now();
    }
}

#[test]
fn a_channel_that_is_dropped_waits_for_the_device() {
    let config = EmulatedConfig { latency: Duration::from_millis(20), ..EmulatedConfig::default() };
    let mut rig = Rig::new(config, LIMIT);
    for token in 0..50 {
        rig.submit(token, copy_crc32c(token, 4096));
    }
    let Rig { channel, framework, engine, .. } = rig;
    drop(channel);
    assert_eq!(framework.statistics().leaked, 0);
    assert_eq!(engine.device().counts().completed, 50);
}

#[test]
fn a_device_that_is_stopped_under_operations() {
    let config = EmulatedConfig { latency: Duration::from_millis(5), ..EmulatedConfig::default() };
    let mut rig = Rig::new(config, LIMIT);
    for token in 0..200 {
        rig.submit(token, copy_crc32c(token, 4096));
    }
    rig.channel.kick();
    rig.engine.device().stop();
    for token in 200..210 {
        rig.submit(token, copy_crc32c(token, 4096));
    }
    rig.finish();
    assert_eq!(rig.done.len(), 210);
    rig.done.drain(..).for_each(|done| check(done, 4096));
    assert_eq!(rig.statistics().leaked, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The engine and software agree on everything, whatever the device does.
    #[test]
    fn the_device_and_software_agree(
        seed in any::<u64>(),
        faults in prop_oneof![Just(None), (1..6_u64).prop_map(NonZeroU64::new)],
        shape in (1..9_usize, prop_oneof![Just(0_usize), 2..33_usize], 0..9_usize),
        transfer in 64..5000_u64,
        operations in prop::collection::vec((0..6_usize, 1..9000_usize, any::<u32>()), 1..60),
    ) {
        let (depth, batch_max, reorder) = shape;
        let config = EmulatedConfig {
            depth,
            batch_max,
            reorder,
            seed,
            fault_every: faults,
            transfer_bytes_max: transfer,
            ..EmulatedConfig::default()
        };
        let mut rig = Rig::new(config, LIMIT);
        let software = Framework::software();
        let config = ChannelConfig::default();
        let mut reference = software.open_channel::<Bytes, Bytes>(&config).expect("a channel");
        let mut expected = Vec::new();
        for (token, &(code, length, variety)) in operations.iter().enumerate() {
            let token = token as u64;
            let make = || make(OpCode::ALL[code], length, variety);
            rig.submit(token, make());
            let Submitted::Done(done) = reference.submit(token, make()) else {
                panic!("software is immediate");
            };
            expected.push(done);
        }
        rig.finish();
        rig.done.sort_by_key(|done| done.token);
        prop_assert_eq!(rig.done.len(), expected.len());
        for (done, expected) in rig.done.drain(..).zip(expected) {
            prop_assert_eq!(done.token, expected.token);
            prop_assert_eq!(done.result, expected.result);
            let memory = done.work.map(Work::into_memory);
            prop_assert!(memory == expected.work.map(Work::into_memory));
        }
    }
}

fn make(code: OpCode, length: usize, variety: u32) -> Work<Bytes, Bytes> {
    let skip = variety as usize % 70;
    let source = || Part::range(patterned(length + 70, 3), skip..skip + length);
    let target = || Part::range(vec![0xEE; length + 70], 70 - skip..70 - skip + length);
    let [byte, ..] = variety.to_le_bytes();
    match code {
        OpCode::Copy => Work::copy(source(), target()),
        OpCode::Fill => Work::fill(byte, target()),
        OpCode::DualCast => Work::dual_cast(source(), target(), target()),
        OpCode::Compare if variety.is_multiple_of(3) => {
            let mut other = patterned(length + 70, 3);
            other[skip + variety as usize % length] ^= 1;
            Work::compare(source(), Part::range(other, skip..skip + length))
        }
        OpCode::Compare => Work::compare(source(), source()),
        OpCode::Crc32c => Work::crc32c(variety, source()),
        _ => Work::copy_crc32c(variety, source(), target()),
    }
}
