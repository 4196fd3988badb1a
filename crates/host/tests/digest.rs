//! Data digests computed by an engine that is slow, disorderly, wrong or dead: buffers come back,
//! queues close, and nothing wrong is called right.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::core::{BUFFERS, Core};
use common::{BLOCK, BLOCKS, Target, config};
use raceline_accel::{ChannelConfig, Framework, OpCode};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_host::{CommandError, Data, HostConfig};
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{Accelerator, Context};

/// When an engine that hangs is given up.
const ENGINE_LIMIT: Duration = Duration::from_millis(300);
/// When any other is: a busy machine may take its time for what it computes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host core whose digests an emulated device computes.
fn offloaded(device: EmulatedConfig, digest_retries: u8) -> (Core, EmulatedEngine, Framework) {
    let (io, _) = open_io(Backend::Auto).unwrap();
    let mut target = Target::new(io, "127.0.0.1:0".parse().unwrap());
    // As our target does it; an engine checks data that come whole.
    target.script.whole_reads = true;
    let timeout = if device.hang_every.is_some() { ENGINE_LIMIT } else { PATIENCE };
    let engine = EmulatedEngine::start(device, 1).unwrap();
    let framework = Framework::new(vec![Arc::new(engine.clone())]).unwrap();
    framework.assign(OpCode::Crc32c, "dsa_emulated").unwrap();
    let channel = ChannelConfig { timeout, ..ChannelConfig::default() };
    let accelerator = Accelerator::new(framework.open_channel(&channel).unwrap());
    let config =
        HostConfig { address: target.address, data_digest: true, digest_retries, ..config() };
    (Core::new(config, accelerator, Some(target)), engine, framework)
}

fn every(count: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(count)
}

/// What block `slba` and those after it hold in round `round`.
fn contents(slba: u64, blocks: usize, round: u64) -> Vec<u8> {
    (0..blocks * BLOCK)
        .map(|at| (at as u64 / 8 + slba * 977 + round * 31).to_le_bytes()[at % 2])
        .collect()
}

/// Writes and reads of many sizes, several at a time, each in its own place; all must succeed.
fn exercise(core: &mut Core, rounds: u64) {
    // In the capsule, by R2T, by R2T in several H2CData, and by two R2Ts.
    const BLOCKS_OF: [u32; 5] = [1, 8, 16, 64, 200];
    for round in 0..rounds {
        for (place, blocks) in (0..).zip(BLOCKS_OF) {
            core.write(place * 256, &contents(place * 256, blocks as usize, round), place);
        }
        for place in 0..5 {
            let done = core.take_done(place);
            assert!(done.result.is_ok(), "round {round}: {}", done.failure().unwrap());
            assert!(matches!(done.data, Data::Write(_)), "the buffer comes back");
        }
        for (place, blocks) in (0..).zip(BLOCKS_OF) {
            core.read(place * 256, blocks, place);
        }
        for (place, blocks) in (0..).zip(BLOCKS_OF) {
            let done = core.take_done(place);
            assert!(done.result.is_ok(), "round {round}: {}", done.failure().unwrap());
            let data = done.data.into_read().expect("the buffer comes back");
            let expected = contents(place * 256, blocks as usize, round);
            assert!(data[..] == expected[..], "round {round}, {blocks} blocks");
        }
    }
}

#[test]
fn an_engine_computes_what_is_sent_and_what_has_come() {
    let device = EmulatedConfig {
        reorder: 8,
        fault_every: every(3),
        latency: Duration::from_micros(100),
        ..EmulatedConfig::default()
    };
    let (mut core, engine, framework) = offloaded(device, 0);
    exercise(&mut core, 4);
    // Data that come in several C2HData: the CPU checks those.
    core.script().whole_reads = false;
    exercise(&mut core, 4);
    let statistics = framework.statistics();
    let crc32c = statistics.of(OpCode::Crc32c);
    assert!(crc32c.executed >= 60 && crc32c.failed == 0, "{statistics:?}");
    assert!(engine.device().counts().completed >= 60, "{:?}", engine.device().counts());
    core.ends_clean();
}

#[test]
fn an_engine_that_fails_costs_a_command_sent_again() {
    let device = EmulatedConfig { error_every: every(5), ..EmulatedConfig::default() };
    let (mut core, ..) = offloaded(device, 5);
    exercise(&mut core, 8);
    assert!(core.queues.counters().totals().retries > 4);
    core.ends_clean();
}

#[test]
fn without_retries_the_command_fails_and_its_buffer_comes_back() {
    let device = EmulatedConfig { error_every: every(1), ..EmulatedConfig::default() };
    let (mut core, ..) = offloaded(device, 0);
    core.write(0, &contents(0, 64, 1), 1);
    assert!(core.take_done(1).result.is_ok(), "the CPU computes the digest");
    core.read(0, 64, 2);
    let done = core.take_done(2);
    assert_eq!(done.result, Err(CommandError::Digest));
    assert_eq!(done.data.into_read().unwrap().len(), 64 * BLOCK);
    core.ends_clean();
}

#[test]
fn an_engine_that_hangs_keeps_its_memory_and_nothing_else() {
    let device = EmulatedConfig { hang_every: every(2), ..EmulatedConfig::default() };
    let (mut core, engine, framework) = offloaded(device, 5);
    exercise(&mut core, 4);
    let statistics = framework.statistics();
    assert!(statistics.timed_out > 0 && statistics.quarantined > 0, "{statistics:?}");
    assert!(statistics.of(OpCode::Crc32c).fallbacks > 10, "the CPU does the rest");
    core.turn();
    assert!(core.pool.available_total() < BUFFERS, "some are with the device");
    engine.device().release_hung();
    core.ends_clean();
}

/// A read without retries whose buffer an engine keeps fails, and still gives a buffer.
#[test]
fn a_read_whose_memory_is_lost_fails() {
    let device = EmulatedConfig { hang_every: every(1), ..EmulatedConfig::default() };
    let (mut core, engine, _) = offloaded(device, 0);
    core.read(0, 8, 1);
    let done = core.take_done(1);
    assert_eq!(done.result, Err(CommandError::Digest));
    assert_eq!(done.data.into_read().unwrap().len(), 8 * BLOCK);
    engine.device().release_hung();
    core.ends_clean();
}

#[test]
fn connections_may_die_while_an_engine_has_their_data() {
    let latency = Duration::from_millis(20);
    let device = EmulatedConfig { latency, reorder: 8, ..EmulatedConfig::default() };
    let (mut core, ..) = offloaded(device, 5);
    let last = u64::try_from(BLOCKS).unwrap() - 64;
    for round in 0..10u64 {
        let mut writes = Vec::new();
        for place in 0..8u64 {
            let blocks = if place % 2 == 0 { 4 } else { 40 };
            core.write(place * 64, &contents(place * 64, blocks, round), place);
            core.read(last, 40, 100 + place);
            writes.push(place);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(round * 4) {
            core.turn();
        }
        core.target.as_mut().unwrap().drop_connections();
        for place in writes {
            let result = core.take_done(place).result;
            assert!(matches!(result, Ok(_) | Err(CommandError::UnknownFate)), "{result:?}");
            // Reads are sent again when there is a connection.
            let done = core.take_done(100 + place);
            assert!(done.result.is_ok(), "{:?}", done.failure());
            assert!(done.data.into_read().unwrap().iter().all(|&byte| byte == 0));
        }
        core.until("ready again", |core| core.queues.is_ready());
    }
    exercise(&mut core, 1);
    core.ends_clean();
}

#[test]
fn a_queue_closes_while_an_engine_has_its_data() {
    for hang in [false, true] {
        let device = EmulatedConfig {
            latency: Duration::from_millis(50),
            hang_every: if hang { every(1) } else { None },
            ..EmulatedConfig::default()
        };
        let (mut core, engine, _) = offloaded(device, 5);
        for user in 0..8 {
            core.write(user * 64, &contents(0, 40, user), user);
            core.read(user * 64, 8, 100 + user);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(10) {
            core.turn();
        }
        let now = core.io.now();
        let mut cx = Context { io: &mut *core.io, pool: &core.pool, now };
        core.queues.close(&mut cx);
        core.until("all have ended", |core| core.done.len() == 16 && core.queues.is_closed());
        engine.device().release_hung();
        core.ends_clean();
    }
}
