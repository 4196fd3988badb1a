//! A controller and its I/O queues against a scripted target, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{BLOCK, BLOCKS, Script, Step, World, Wrong, config};
use raceline_host::{
    BackoffConfig, BlockRange, Command, CommandError, ControllerEvent, Data, HostConfig, HostError,
    IoQueueEvent, RejectedReason,
};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_reactor::flow::Load;
use raceline_reactor::sim::Random;
use raceline_reactor::{IoBuf, SimConfig};

const NS: NamespaceId = NamespaceId(1);

fn read(slba: u64, blocks: u32) -> Command {
    let buf = IoBuf::heap(blocks as usize * BLOCK);
    Command::read(NS, BlockRange::new(slba, blocks).unwrap(), buf)
}

fn write(slba: u64, data: &[u8]) -> Command {
    let blocks = u32::try_from(data.len() / BLOCK).unwrap();
    let range = BlockRange::new(slba, blocks).unwrap();
    Command::write(NS, range, IoBuf::from_slice(data).share(), false)
}

fn ready(config: &HostConfig, script: Script) -> World {
    let mut world = World::new(1, SimConfig::default(), config, script);
    world.run_until_ready();
    world
}

fn read_data(data: Data) -> Vec<u8> {
    data.into_read().expect("a read gives its buffer back").to_vec()
}

#[test]
fn data_survive_every_digest_size_and_split() {
    for seed in 0..64u64 {
        let mut random = Random::new(seed);
        let mut config = config();
        config.header_digest = seed & 1 != 0;
        config.data_digest = seed & 2 != 0;
        config.disable_sq_flow = seed & 4 == 0;
        config.io_entries = if seed & 8 == 0 { 128 } else { 4 };
        let sim = SimConfig {
            max_chunk: if seed & 16 == 0 { 100_000 } else { 37 },
            engines: seed & 32 != 0,
            ..SimConfig::default()
        };
        let mut world = World::new(seed, sim, &config, Script::default());
        world.run_until_ready();
        let mut model = vec![0u8; BLOCK * BLOCKS];
        for round in 0..12u64 {
            let blocks = random.size(200);
            let slba = random.below(u64::try_from(BLOCKS - blocks).unwrap());
            let start = usize::try_from(slba).unwrap() * BLOCK;
            let range = start..start + blocks * BLOCK;
            let data: Vec<u8> = range.clone().map(|_| random.next_u64().to_le_bytes()[0]).collect();
            model[range.clone()].copy_from_slice(&data);
            world.submit(write(slba, &data), round);
            let done = world.take_done(round);
            assert!(done.result.is_ok(), "seed {seed}: {:?}", done.failure());
            assert_eq!(done.data.into_write().unwrap().try_unique().unwrap().len(), data.len());
            world.submit(read(slba, u32::try_from(blocks).unwrap()), round);
            let done = world.take_done(round);
            assert!(done.result.is_ok(), "seed {seed}: {:?}", done.failure());
            assert_eq!(read_data(done.data), &model[range], "seed {seed} round {round}");
        }
        assert_eq!(world.target.storage, model, "seed {seed}");
        assert_eq!(world.queues.outstanding(), 0);
    }
}

#[test]
fn a_full_queue_works_off_everything_and_refuses_the_rest() {
    for disable_sq_flow in [true, false] {
        let config = HostConfig { io_entries: 8, disable_sq_flow, ..config() };
        let mut world = ready(&config, Script::default());
        for user in 0..7 {
            world.submit(read(user, 1), user);
        }
        let rejected = world.with(|_, queues, cx| queues.submit(cx, 0, read(0, 1), 9)).unwrap_err();
        assert_eq!(rejected.reason, RejectedReason::Full);
        assert_eq!(rejected.command.data.len(), BLOCK);
        for user in 0..7 {
            assert!(world.take_done(user).result.is_ok());
        }
        assert_eq!(world.queues.room(0), 7);
    }
}

/// More than caches hold is asked for in steps; a target that takes its time gets it all none the less.
#[test]
fn much_is_asked_for_in_steps() {
    const COMMANDS: u64 = 127;
    const READ_BLOCKS: u32 = 200;
    for hold_io in [false, true] {
        let config = HostConfig { disable_sq_flow: true, ..config() };
        let mut world = ready(&config, Script { hold_io, ..Script::default() });
        world.target.storage.iter_mut().zip(0u32..).for_each(|(byte, i)| *byte = (i % 251) as u8);
        let before = world.queues.counters().totals().pdus_sent;
        world.with(|_, queues, cx| {
            for user in 0..COMMANDS {
                queues.submit(cx, 0, read(user, READ_BLOCKS), user).unwrap();
            }
        });
        // Of 100 KiB each; the sixth reaches 512 KiB.
        assert_eq!(world.queues.counters().totals().pdus_sent - before, 6);
        if hold_io {
            let all = usize::try_from(COMMANDS).unwrap();
            world.run(Duration::from_secs(1), |world| world.target.received.io.len() == all);
            continue;
        }
        for user in 0..COMMANDS {
            let done = world.take_done(user);
            assert!(done.result.is_ok(), "{:?}", done.failure());
            let start = usize::try_from(user).unwrap() * BLOCK;
            let end = start + READ_BLOCKS as usize * BLOCK;
            assert!(read_data(done.data) == world.target.storage[start..end], "command {user}");
        }
    }
}

/// A target that does not answer is asked for 32 MiB.
#[test]
fn what_is_on_its_way_is_bounded() {
    const COMMANDS: u64 = 100;
    const READ_BLOCKS: u32 = 1024;
    const ON_ITS_WAY: usize = (32 << 20) / (READ_BLOCKS as usize * BLOCK);
    let config = HostConfig { disable_sq_flow: true, ..config() };
    let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
    world.with(|_, queues, cx| {
        for user in 0..COMMANDS {
            queues.submit(cx, 0, read(user, READ_BLOCKS), user).unwrap();
        }
    });
    let end = world.world.elapsed() + Duration::from_millis(100);
    world.run(Duration::from_secs(1), |world| world.world.elapsed() >= end);
    assert_eq!(world.target.received.io.len(), ON_ITS_WAY);
}

/// The core's sum is exact also when queues go whose commands are not answered.
#[test]
fn a_queue_that_closes_has_nothing_under_way() {
    let config = HostConfig { disable_sq_flow: true, ..config() };
    let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
    world.with(|_, queues, cx| {
        for user in 0..8 {
            queues.submit(cx, 0, read(user, 256), user).unwrap();
        }
        queues.flush(cx);
        let flight = cx.io.flight();
        assert_eq!((flight.load().reading, flight.readers()), (8 * 256 * BLOCK, 1));
        queues.close(cx);
        let flight = cx.io.flight();
        assert_eq!((flight.load(), flight.readers()), (Load::default(), 0));
        // Though its commands have not come back, it says nothing more.
        queues.flush(cx);
        assert_eq!(cx.io.flight().load(), Load::default());
    });
}

/// Connect is a command, too: it leaves the sum when it ends, also when its connection breaks.
#[test]
fn connecting_again_leaves_nothing_under_way() {
    let config = HostConfig { disable_sq_flow: true, ..config() };
    let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
    for _ in 0..12 {
        world.world.reset_connections(common::address());
        world.run(Duration::from_secs(60), |world| !world.queues.is_ready());
        // Delays grow.
        world.run(Duration::from_secs(300), |world| world.queues.is_ready());
    }
    world.with(|_, queues, cx| {
        queues.submit(cx, 0, read(0, 256), 1).unwrap();
        queues.flush(cx);
        assert_eq!(cx.io.flight().load(), Load { reading: 256 * BLOCK, writing: 0 });
    });
}

#[test]
fn counts_are_exact() {
    let mut world = ready(&HostConfig { disable_sq_flow: true, ..config() }, Script::default());
    let before = world.queues.counters().totals();
    for user in 0..5 {
        world.submit(read(user, 8), user);
        assert!(world.take_done(user).result.is_ok());
    }
    let after = world.queues.counters().totals();
    assert_eq!(after.pdus_sent - before.pdus_sent, 5);
    assert_eq!(after.sends - before.sends, 5);
    // The target of the script answers in two C2HData, the second with SUCCESS.
    assert_eq!(after.pdus_received - before.pdus_received, 10);
    let copied = after.copied_bytes - before.copied_bytes;
    assert!(copied > 0 && copied <= 5 * 8 * 512, "{copied}");
}

#[test]
fn errors_name_the_culprit() {
    let mut world = ready(&config(), Script::default());
    world.submit(read(u64::try_from(BLOCKS).unwrap(), 8), 1);
    let failure = world.take_done(1).failure().unwrap();
    assert_eq!(failure.error, CommandError::Status(Status::LBA_OUT_OF_RANGE.dnr()));
    let text = "Read of namespace 1, LBA 4096 (8 blocks): LBA Out of Range (SCT 0h SC 80h, DNR)";
    assert_eq!(failure.to_string(), text);
    let bad = Command::new(raceline_proto::host::command::flush(NS), Data::Read(IoBuf::heap(4)));
    let rejected = world.with(|_, queues, cx| queues.submit(cx, 0, bad, 2)).unwrap_err();
    assert_eq!(rejected.reason, RejectedReason::BadData);
}

#[test]
fn flow_control_stays_on_where_the_target_wants_it() {
    let mut world = ready(&config(), Script { refuse_cattr: true, ..Script::default() });
    assert!(world.target.received.flow_off_connects >= 2 && world.target.received.connects >= 4);
    world.submit(read(0, 8), 1);
    assert!(world.take_done(1).result.is_ok());

    let mut world = ready(&config(), Script { ignore_cattr: true, ..Script::default() });
    for user in 0..300 {
        world.submit(read(0, 8), user);
        assert!(world.take_done(user).result.is_ok());
    }
}

#[test]
fn success_in_place_of_responses_ends_flow_control() {
    let config = HostConfig { io_entries: 4, ..config() };
    let script = Script { ignore_cattr: true, success_always: true, ..Script::default() };
    let mut world = ready(&config, script);
    // Without it the queue would be idle between the reads, and room is never asked for then.
    world.target.script.hold_io = true;
    world.submit(write(0, &[5; BLOCK]), 0);
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 1);
    world.target.script.hold_io = false;
    for user in 1..20 {
        world.submit(read(0, 8), user);
        let done = world.take_done(user);
        assert!(done.result.is_ok(), "read {user}: {:?}", done.failure());
    }
    assert_eq!(world.queues.room(0), 2, "the write is outstanding, one entry stays empty");
    let lost = world.queue_events.iter().any(|event| matches!(event, IoQueueEvent::Lost { .. }));
    assert!(!lost, "{:?}", world.queue_events);
}

#[test]
fn a_wrong_data_digest_costs_the_command_only() {
    let config = HostConfig { data_digest: true, digest_retries: 0, ..config() };
    let mut world = ready(&config, Script { wrong: Some(Wrong::BadDigest), ..Script::default() });
    world.submit(read(0, 8), 1);
    assert_eq!(world.take_done(1).result, Err(CommandError::Digest));
    world.submit(read(0, 8), 2);
    assert!(world.take_done(2).result.is_ok());
    assert_eq!(world.events.len(), 1, "no reconnect: {:?}", world.events);
}

#[test]
fn one_of_several_data_digests_is_enough() {
    for (part, engines) in [(0, false), (1, false), (0, true), (1, true)] {
        let config = HostConfig { data_digest: true, digest_retries: 0, ..config() };
        let script = Script { wrong: Some(Wrong::BadDigestOf(part)), ..Script::default() };
        let sim = SimConfig { engines, ..SimConfig::default() };
        let mut world = World::new(1, sim, &config, script);
        world.run_until_ready();
        world.submit(read(0, 8), 1);
        assert_eq!(world.take_done(1).result, Err(CommandError::Digest), "part {part}");
        assert_eq!(world.queues.counters().totals().digest_errors, 1);
    }
}

#[test]
fn a_read_is_sent_again_after_a_wrong_data_digest() {
    let config = HostConfig { data_digest: true, digest_retries: 1, ..config() };
    let mut world = ready(&config, Script { wrong: Some(Wrong::BadDigest), ..Script::default() });
    world.submit(read(0, 8), 1);
    assert!(world.take_done(1).result.is_ok());
    let totals = world.queues.counters().totals();
    // The script answers in two C2HData, both wrong.
    assert_eq!((totals.digest_errors, totals.retries), (2, 1));
}

/// The target must not do so; if it does, the digest, which is not needed any more, is still being computed.
#[test]
fn a_write_may_end_while_an_engine_has_its_data() {
    for seed in 0..16 {
        let config = HostConfig { data_digest: true, ..config() };
        let script = Script { wrong: Some(Wrong::EarlyRefusal), ..Script::default() };
        let sim = SimConfig { engines: true, ..SimConfig::default() };
        let mut world = World::new(seed, sim, &config, script);
        world.run_until_ready();
        // Engines are slow, the network is fast.
        world.world.set_config(SimConfig {
            min_delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(20),
            engines: true,
            ..SimConfig::default()
        });
        world.submit(write(0, &[5; 16 * BLOCK]), 1);
        world.world.set_config(SimConfig { engines: true, ..SimConfig::default() });
        let done = world.take_done(1);
        assert!(done.result.is_ok(), "seed {seed}: {:?}", done.failure());
        assert_eq!(world.target.storage[..16 * BLOCK], [5; 16 * BLOCK]);
        assert_eq!(world.queues.counters().totals().retries, 1);
        assert_eq!(world.queues.outstanding(), 0);
    }
}

#[test]
fn a_short_read_is_no_success() {
    let mut world =
        ready(&config(), Script { wrong: Some(Wrong::ShortSuccess), ..Script::default() });
    world.submit(read(0, 8), 1);
    let error = world.take_done(1).result.unwrap_err();
    assert!(error.status().same_code(Status::DATA_TRANSFER_ERROR), "{error}");
}

#[test]
fn a_target_that_breaks_the_protocol_loses_its_connection() {
    for wrong in [
        Wrong::R2tForRead,
        Wrong::DataForWrite,
        Wrong::UnknownResponse,
        Wrong::ResponseTwice,
        Wrong::DataBeyondEnd,
        Wrong::Garbage,
    ] {
        let script = Script { wrong: Some(wrong), ..Script::default() };
        let mut world = ready(&config(), script);
        if wrong == Wrong::DataForWrite {
            world.submit(write(0, &[5; 16 * BLOCK]), 1);
            assert_eq!(world.take_done(1).result, Err(CommandError::UnknownFate), "{wrong:?}");
        } else {
            // A read is sent again on the next connection.
            world.submit(read(0, 8), 1);
            let result = world.take_done(1).result;
            assert!(result.is_ok() || wrong == Wrong::ResponseTwice, "{wrong:?}: {result:?}");
        }
        world.run(Duration::from_secs(60), |world| {
            world.events.iter().filter(|event| matches!(event, ControllerEvent::Up(_))).count() == 2
        });
        let lost = world.queue_events.iter().find_map(|event| match event {
            IoQueueEvent::Lost { error, .. } => Some(error.clone()),
            IoQueueEvent::Ready { .. } => None,
        });
        assert!(matches!(lost, Some(HostError::Protocol(..))), "{wrong:?}: {lost:?}");
    }
}

#[test]
fn after_a_loss_reads_go_again_and_writes_do_not() {
    let mut world = ready(&config(), Script { hold_io: true, ..Script::default() });
    world.target.storage[..BLOCK].fill(9);
    world.submit(read(0, 1), 1);
    world.submit(write(1, &[3; BLOCK]), 2);
    world.submit(write(64, &[3; 32 * BLOCK]), 3);
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 3);
    world.world.reset_connections(common::address());
    // Submitted while there is no connection: neither lost nor in doubt.
    world.run(Duration::from_secs(1), |world| !world.queues.is_ready());
    world.target.script.hold_io = false;
    world.submit(write(2, &[4; BLOCK]), 4);
    assert_eq!(world.take_done(2).result, Err(CommandError::UnknownFate));
    assert_eq!(world.take_done(3).result, Err(CommandError::UnknownFate));
    let done = world.take_done(1);
    assert!(done.result.is_ok());
    assert_eq!(read_data(done.data), [9; BLOCK]);
    assert!(world.take_done(4).result.is_ok());
    assert_eq!(world.target.storage[BLOCK..3 * BLOCK], [[0; BLOCK], [4; BLOCK]].concat());
    let writes = world.target.received.io.iter().filter(|&&opcode| opcode == io::WRITE).count();
    assert_eq!(writes, 3, "no write was sent twice");
}

#[test]
fn waiting_for_a_connection_does_not_count_as_taking_long() {
    let mut world = ready(&config(), Script { hold_io: true, ..Script::default() });
    world.submit(read(0, 1), 1);
    world.run(Duration::from_secs(1), |world| !world.target.received.io.is_empty());
    world.target.script.away = true;
    world.world.reset_connections(common::address());
    let end = world.world.elapsed() + Duration::from_secs(90);
    world.run(Duration::from_secs(99), |world| world.world.elapsed() > end);
    world.target.script.away = false;
    world.run(Duration::from_secs(20), |world| world.queues.is_ready());
    // Less than the limit after the connection, more after the command.
    let end = world.world.elapsed() + Duration::from_secs(20);
    world.run(Duration::from_secs(99), |world| world.world.elapsed() > end);
    assert!(world.done.is_empty(), "{:?}", world.done);
    let ups = world.events.iter().filter(|event| matches!(event, ControllerEvent::Up(_))).count();
    assert_eq!(ups, 2, "{:?}", world.events);
}

#[test]
fn a_command_that_takes_too_long_costs_the_connection() {
    let config = HostConfig { command_timeout: Some(Duration::from_secs(8)), ..config() };
    let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
    world.submit(read(0, 1), 1);
    world.submit(write(1, &[3; BLOCK]), 2);
    let before = world.world.elapsed();
    assert_eq!(world.take_done(1).result, Err(CommandError::Timeout));
    assert_eq!(world.take_done(2).result, Err(CommandError::UnknownFate));
    let took = world.world.elapsed() - before;
    assert!((8..=11).contains(&took.as_secs()), "{took:?}");
    world.target.script.hold_io = false;
    world.submit(read(0, 1), 3);
    assert!(world.take_done(3).result.is_ok());
}

#[test]
fn a_silent_peer_is_given_up_after_ten_seconds() {
    let script = Script { silent: true, ..Script::default() };
    let mut world = World::new(1, SimConfig::default(), &config(), script);
    world.run(Duration::from_secs(11), |world| world.controller.is_finished());
    assert!(world.world.elapsed() >= Duration::from_secs(10));
    assert!(matches!(world.events[..], [ControllerEvent::Failed(HostError::NoAnswer(..))]));
}

#[test]
fn a_target_that_closes_at_any_byte_does_no_harm() {
    let mut limit = 0;
    loop {
        let script = Script { close_after: Some(limit), ..Script::default() };
        let config = HostConfig { backoff: BackoffConfig::NEVER, ..config() };
        let mut world = World::new(limit as u64, SimConfig::default(), &config, script);
        world.run(Duration::from_secs(20), |world| {
            world.queues.is_ready() || world.controller.is_finished()
        });
        if world.queues.is_ready() {
            world.submit(read(0, 4), 1);
            let done = world.take_done(1);
            if done.result.is_ok() {
                break;
            }
            assert_eq!(done.result, Err(CommandError::Disconnected));
            assert_eq!(read_data(done.data).len(), 4 * BLOCK);
        }
        // Large strides through the pages of bring-up, every byte elsewhere.
        limit += if (600..20_000).contains(&limit) { 97 } else { 1 };
    }
    assert!(limit > 2000, "{limit}");
}

#[test]
fn keep_alive_is_sent_and_its_absence_noticed() {
    let mut world = ready(&config(), Script::default());
    let end = world.world.elapsed() + Duration::from_secs(60);
    world.run(Duration::from_secs(70), |world| world.world.elapsed() > end);
    assert!(
        (23..=25).contains(&world.target.received.keep_alives),
        "{}",
        world.target.received.keep_alives
    );
    assert_eq!(world.events.len(), 1);
    world.target.script.ignore_keep_alive = true;
    world.run(Duration::from_secs(9), |world| world.events.len() > 1);
    assert!(matches!(world.events[1], ControllerEvent::Down(HostError::KeepAliveExpired(_))));
    world.target.script.ignore_keep_alive = false;
    world.run_until_ready();
    world.submit(read(0, 1), 1);
    assert!(world.take_done(1).result.is_ok());
}

#[test]
fn namespace_changes_are_seen() {
    let mut world = ready(&config(), Script::default());
    for blocks in [100, 200] {
        let pause = world.world.elapsed() + Duration::from_millis(500);
        world.run(Duration::from_secs(9), |world| world.world.elapsed() > pause);
        world.target.announce(blocks);
        world.run(Duration::from_secs(9), |world| {
            matches!(world.events.last(), Some(ControllerEvent::Namespaces(list)) if list[0].block_count == blocks)
        });
    }
}

#[test]
fn disconnecting_shuts_the_controller_down() {
    let mut world = ready(&config(), Script::default());
    world.with(|controller, queues, cx| {
        queues.close(cx);
        controller.disconnect(cx);
    });
    world.run(Duration::from_secs(5), |world| {
        world.controller.is_finished() && world.queues.is_closed()
    });
    assert_eq!(world.target.received.shutdowns, 1);
    assert!(matches!(world.events.last(), Some(ControllerEvent::Closed)));
}

/// After a loss everything comes back but what `script` changes; what is submitted then ends when the
/// controller is given up.
fn given_up_after_a_loss(change: impl FnOnce(&mut Script)) -> ControllerEvent {
    let backoff =
        BackoffConfig { give_up_after: Some(Duration::from_secs(30)), ..BackoffConfig::default() };
    let config = HostConfig { io_queues: 4, backoff, ..config() };
    let mut world = ready(&config, Script::default());
    assert_eq!(world.queues.len(), 4);
    change(&mut world.target.script);
    world.world.reset_connections(common::address());
    world.run(Duration::from_secs(1), |world| !world.queues.is_ready());
    let command = write(0, &[1; BLOCK]);
    world.with(|_, queues, cx| queues.submit(cx, 3, command, 1)).unwrap();
    assert_eq!(world.take_done(1).result, Err(CommandError::NotSent));
    // The last attempt may begin just before the end.
    assert!(world.world.elapsed() < Duration::from_secs(45), "{:?}", world.world.elapsed());
    world.events.pop().unwrap()
}

#[test]
fn a_controller_whose_queues_are_silent_is_given_up() {
    let last = given_up_after_a_loss(|script| script.at = Some((Step::IoConnect, Vec::new())));
    let ControllerEvent::Failed(HostError::NoAnswer(..)) = last else {
        panic!("{last:?}");
    };
}

#[test]
fn a_controller_that_grants_fewer_queues_than_are_in_use_is_given_up() {
    let last = given_up_after_a_loss(|script| script.queues_granted = Some(3));
    let ControllerEvent::Failed(HostError::QueueNotGranted { qid: 4, granted: 3, .. }) = last
    else {
        panic!("{last:?}");
    };
}

#[test]
fn a_controller_that_stays_away_is_given_up() {
    let backoff =
        BackoffConfig { give_up_after: Some(Duration::from_secs(30)), ..BackoffConfig::default() };
    let config = HostConfig { backoff, ..config() };
    let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
    world.submit(read(0, 1), 1);
    world.run(Duration::from_secs(1), |world| !world.target.received.io.is_empty());
    world.target.script.away = true;
    world.world.reset_connections(common::address());
    world.run(Duration::from_secs(1), |world| !world.queues.is_ready());
    world.submit(write(0, &[1; BLOCK]), 2);
    assert_eq!(world.take_done(1).result, Err(CommandError::Disconnected));
    assert_eq!(world.take_done(2).result, Err(CommandError::NotSent));
    assert!(world.world.elapsed() < Duration::from_secs(32));
    assert!(matches!(world.events.last(), Some(ControllerEvent::Failed(_))));
    let rejected = world.with(|_, queues, cx| queues.submit(cx, 0, read(0, 1), 3)).unwrap_err();
    assert_eq!(rejected.reason, RejectedReason::Closed);
}

/// What the host warns of, in this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Warnings {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    fn collect() -> (Self, tracing::subscriber::DefaultGuard) {
        let warnings = Self::default();
        let all = warnings.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .with_writer(move || all.clone())
            .finish();
        (warnings, tracing::subscriber::set_default(subscriber))
    }
}

const NO_LIMIT: BackoffConfig = BackoffConfig {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(10),
    give_up_after: None,
};

/// A target that has begun again, and does not know this host yet.
fn refused_after_a_loss(config: &HostConfig, of_io: bool) -> World {
    let mut world = ready(config, Script::default());
    let useful = world.world.elapsed() + Duration::from_secs(2);
    world.run(Duration::from_secs(3), |world| world.world.elapsed() > useful);
    world.target.script.refuse_connect = Some((of_io, Status::CONNECT_INVALID_HOST.dnr()));
    world.world.reset_connections(common::address());
    world.run(Duration::from_secs(1), |world| !world.queues.is_ready());
    world
}

#[test]
fn without_a_limit_a_controller_that_refuses_for_good_is_tried_again_and_waited_for() {
    for of_io in [false, true] {
        let (warnings, _guard) = Warnings::collect();
        let config = HostConfig { backoff: NO_LIMIT, command_timeout: None, ..config() };
        let mut world = refused_after_a_loss(&config, of_io);
        world.submit(read(0, 1), 1);
        let (before, start) = (world.target.received.connects, world.world.elapsed());
        let end = start + Duration::from_secs(200);
        world.run(Duration::from_secs(210), |world| world.world.elapsed() > end);
        // Each try makes as many connections as there are queues until the one that is refused.
        let tries = (world.target.received.connects - before) / if of_io { 2 } else { 1 };
        assert!((6..=8).contains(&tries), "{tries} tries in 200 s, and {of_io}");
        assert!(world.done.is_empty(), "it waits: {:?}", world.done);
        assert_eq!(warnings.count("does not take this host back"), 1, "{}", warnings.text());
        assert_eq!(warnings.count("the next try is after 30s"), 1, "{}", warnings.text());
        assert_eq!(
            warnings.count("refused Connect: Connect Invalid Host"),
            1,
            "{}",
            warnings.text()
        );
        world.target.script.refuse_connect = None;
        let before = world.world.elapsed();
        world.run(Duration::from_secs(35), |world| !world.done.is_empty());
        assert!(world.take_done(1).result.is_ok());
        assert!(world.world.elapsed() - before <= Duration::from_secs(31));
        // A later one is news again.
        let useful = world.world.elapsed() + Duration::from_secs(2);
        world.run(Duration::from_secs(3), |world| world.world.elapsed() > useful);
        world.target.script.refuse_connect = Some((of_io, Status::CONNECT_INVALID_HOST.dnr()));
        world.world.reset_connections(common::address());
        let end = world.world.elapsed() + Duration::from_secs(100);
        world.run(Duration::from_secs(110), |world| world.world.elapsed() > end);
        assert_eq!(warnings.count("does not take this host back"), 2, "{}", warnings.text());
        assert!(!world.events.iter().any(|event| matches!(event, ControllerEvent::Failed(_))));
    }
}

#[test]
fn the_longer_of_both_delays_counts_after_a_refusal() {
    let delay = Duration::from_secs(70);
    let backoff = BackoffConfig { first: delay, longest: delay, give_up_after: None };
    let config = HostConfig { backoff, ..config() };
    let mut world = refused_after_a_loss(&config, false);
    let (before, start) = (world.target.received.connects, world.world.elapsed());
    let end = start + Duration::from_secs(300);
    world.run(Duration::from_secs(310), |world| world.world.elapsed() > end);
    assert_eq!(world.target.received.connects - before, 4);
}

#[test]
fn with_a_limit_or_at_the_first_connection_a_refusal_for_good_ends_all_at_once() {
    let config = HostConfig { backoff: NO_LIMIT, ..config() };
    let refuse_connect = Some((false, Status::CONNECT_INVALID_HOST.dnr()));
    let script = Script { refuse_connect, ..Script::default() };
    let mut world = World::new(1, SimConfig::default(), &config, script);
    world.run(Duration::from_secs(5), |world| world.controller.is_finished());
    assert!(matches!(
        world.events[..],
        [ControllerEvent::Failed(HostError::ConnectRefused { .. })]
    ));

    let backoff = BackoffConfig { give_up_after: Some(Duration::from_secs(3600)), ..NO_LIMIT };
    let mut world = refused_after_a_loss(&HostConfig { backoff, ..config }, false);
    world.run(Duration::from_secs(5), |world| world.controller.is_finished());
    let last = world.events.last();
    assert!(
        matches!(last, Some(ControllerEvent::Failed(HostError::ConnectRefused { .. }))),
        "{last:?}"
    );
}

#[test]
fn broken_connections_lose_nothing_that_was_acknowledged() {
    for seed in 0..40 {
        let sim =
            SimConfig { broken_per_thousand: 300, break_within: 60_000, ..SimConfig::default() };
        let mut world =
            World::new(seed, sim, &HostConfig { io_queues: 2, ..config() }, Script::default());
        let mut random = Random::new(seed);
        for round in 0..20u64 {
            let byte = random.next_u64().to_le_bytes()[0];
            if world.controller.is_finished() {
                break; // the first connection broke: told at once
            }
            if world.queues.is_empty() {
                world.run(Duration::from_secs(9), |w| {
                    !w.queues.is_empty() || w.controller.is_finished()
                });
                continue;
            }
            world.submit(write(round, &[byte; BLOCK]), 1);
            let written = world.take_done(1).result;
            world.submit(read(round, 1), 2);
            let done = world.take_done(2);
            assert!(done.result.is_ok(), "seed {seed}: {:?}", done.failure());
            let data = read_data(done.data);
            match written {
                Ok(_) => assert_eq!(data, [byte; BLOCK], "seed {seed}"),
                Err(error) => assert_eq!(error, CommandError::UnknownFate, "seed {seed}"),
            }
        }
    }
}
