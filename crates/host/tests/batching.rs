//! Queue maps and gathered commands, against a scripted target, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{BLOCK, Script, World, config};
use raceline_host::{BlockRange, Command, Hints, HostConfig, I10Config, RejectedReason};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::sim::Random;
use raceline_reactor::{IoBuf, SimConfig};

const NS: NamespaceId = NamespaceId(1);
const DELAY: Duration = Duration::from_micros(50);

fn read(slba: u64) -> Command {
    Command::read(NS, BlockRange::new(slba, 1).unwrap(), IoBuf::heap(BLOCK))
}

fn write(slba: u64) -> Command {
    let buf = IoBuf::from_slice(&[7; BLOCK]).share();
    Command::write(NS, BlockRange::new(slba, 1).unwrap(), buf, false)
}

fn ready(config: &HostConfig, script: Script) -> World {
    let mut world = World::new(1, SimConfig::default(), config, script);
    world.run_until_ready();
    world
}

/// A queue that gathers as i10 does, with one command in flight that is never answered.
fn gathering(i10: Option<I10Config>) -> World {
    let script = Script { hold_io: true, ..Script::default() };
    let mut world = ready(&HostConfig { i10, ..config() }, script);
    world.submit(read(1000), 1000);
    assert_eq!(world.queues.counters().totals().pdus_sent, 3, "ICReq, Connect, and at depth 1");
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 1);
    settle(&mut world);
    world
}

/// Until its send has come back, too.
fn settle(world: &mut World) {
    let end = world.world.elapsed() + 10 * SimConfig::default().max_delay;
    world.run(Duration::from_secs(10), |world| world.world.elapsed() >= end);
}

/// I/O commands given to sends since [`gathering`], and sends.
fn sent(world: &World) -> (u64, u64) {
    let totals = world.queues.counters().totals();
    (totals.pdus_sent - 3, totals.sends - 3)
}

#[test]
fn commands_take_the_queue_of_their_map() {
    let config = HostConfig { io_queues: 1, write_queues: 1, poll_queues: 1, ..config() };
    for (granted, [read_qid, write_qid, poll_qid]) in [(3, [2, 1, 3]), (2, [2, 1, 2]), (1, [1; 3])]
    {
        let script = Script { queues_granted: Some(granted), ..Script::default() };
        let mut world = ready(&config, script);
        assert_eq!(world.queues.len(), usize::from(granted));
        let commands =
            [(read(0), false, read_qid), (write(1), false, write_qid), (read(2), true, poll_qid)];
        for (user, (command, polled, qid)) in (0..).zip(commands) {
            let position = world
                .with(|_, queues, cx| queues.submit_mapped(cx, (polled, 0), command, user))
                .unwrap();
            assert_eq!(position, qid - 1);
            assert!(world.take_done(user).result.is_ok());
            let place = (u16::try_from(qid).unwrap(), user);
            assert_eq!(world.target.received.places.last(), Some(&place), "of {granted} queues");
        }
    }
}

#[test]
fn a_batch_leaves_together_and_not_late() {
    let mut world = gathering(Some(I10Config::default()));
    for user in 0..15 {
        world.submit(read(user), user);
    }
    assert_eq!(sent(&world), (0, 0), "15 wait for a 16th");
    world.submit(read(15), 15);
    assert_eq!(sent(&world), (16, 1));
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 17);

    let mut world = gathering(Some(I10Config::default()));
    world.submit(read(0), 0);
    let begun = world.world.elapsed();
    world.run(DELAY, |world| sent(world) == (1, 1));
    assert!(world.world.elapsed() - begun == DELAY, "neither early nor late");
}

#[test]
fn a_command_of_high_priority_takes_all_with_it() {
    let mut world = gathering(Some(I10Config::default()));
    world.submit(read(0), 0);
    world.submit(read(1), 1);
    assert_eq!(sent(&world), (0, 0));
    let urgent = Hints { high_priority: true, more: false };
    world.submit(read(2).with_hints(urgent), 2);
    assert_eq!(sent(&world), (3, 1));
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 4);
    let slbas: Vec<u64> = world.target.received.places.iter().map(|place| place.1).collect();
    assert_eq!(slbas, [1000, 0, 1, 2]);
}

#[test]
fn gathering_is_changed_while_commands_wait() {
    let mut world = gathering(None);
    world.submit(read(0), 0);
    assert_eq!(sent(&world), (1, 1), "it is off unless asked for");
    settle(&mut world);
    world.with(|_, queues, _| queues.set_i10(Some(I10Config::default())));
    world.submit(read(1), 1);
    assert_eq!(sent(&world), (1, 1));
    let two = I10Config { requests: 2, ..I10Config::default() };
    world.with(|_, queues, _| queues.set_i10(Some(two)));
    assert_eq!(sent(&world), (1, 1));
    world.submit(read(2), 2);
    assert_eq!(sent(&world), (3, 2));
    settle(&mut world);
    world.submit(read(3), 3);
    assert_eq!(sent(&world), (3, 2));
    world.with(|_, queues, _| queues.set_i10(None));
    assert_eq!(sent(&world), (4, 3), "those that wait are let go");
}

#[test]
fn a_batch_of_submissions_keeps_what_is_refused() {
    let config = HostConfig { io_entries: 4, ..config() };
    let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
    let mut batch: VecDeque<(Command, u64)> = (0..5).map(|user| (read(user), user)).collect();
    let before = world.queues.counters().totals().sends;
    let refused = world.with(|_, queues, cx| queues.submit_batch(cx, 0, &mut batch));
    assert_eq!(refused.unwrap_err(), RejectedReason::Full);
    let users: Vec<u64> = batch.iter().map(|(_, user)| *user).collect();
    assert_eq!(users, [3, 4]);
    assert!(batch.iter().all(|(command, _)| command.hints == Hints::default()));
    assert_eq!(world.queues.counters().totals().sends - before, 1, "three in one send");
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 3);
}

#[test]
fn more_that_never_comes_is_not_waited_for() {
    let mut world = gathering(None);
    world.submit(read(0).with_hints(Hints { high_priority: false, more: true }), 0);
    assert_eq!(sent(&world), (0, 0));
    world.run(DELAY, |world| sent(world) == (1, 1));
}

#[test]
fn one_pdu_per_send_is_what_it_says() {
    let mut world = ready(
        &HostConfig { send_pdus: 1, ..config() },
        Script { hold_io: true, ..Script::default() },
    );
    let mut batch: VecDeque<(Command, u64)> = (0..9).map(|user| (write(user), user)).collect();
    world.with(|_, queues, cx| queues.submit_batch(cx, 0, &mut batch)).unwrap();
    world.run(Duration::from_secs(1), |world| world.target.received.io.len() == 9);
    let totals = world.queues.counters().totals();
    assert_eq!(totals.sends, totals.pdus_sent);
}

/// A write waits for its R2T, and 20 commands for others; all go when the R2T comes.
#[test]
fn commands_go_before_data_and_leave_them_room() {
    // The data are four PDUs: two leave in each send of four, with two commands before them.
    for (send_pdus, commands_before) in [(128, 20), (4, 4), (1, 0)] {
        let i10 =
            I10Config { requests: 100, delay: Duration::from_secs(1), ..I10Config::default() };
        let config = HostConfig { i10: Some(i10), send_pdus, ..config() };
        let mut world = ready(&config, Script { hold_io: true, ..Script::default() });
        let data = IoBuf::from_slice(&[7; 64 * BLOCK]).share();
        let large = Command::write(NS, BlockRange::new(500, 64).unwrap(), data, false);
        world.submit(large, 500);
        for user in 0..20 {
            world.submit(read(user), user);
        }
        world.run(Duration::from_millis(500), |world| world.target.received.io.len() == 21);
        let slbas: Vec<u64> = world.target.received.places.iter().map(|place| place.1).collect();
        let mut expected: Vec<u64> = (0..20).collect();
        expected.insert(commands_before, 500);
        assert_eq!(slbas, expected, "{send_pdus} PDUs per send");
    }
}

/// Random commands, gathered by random rules that change, over connections that break: each ends, on
/// the wire they keep their order, and none waits longer than the delay allows.
#[test]
fn nothing_is_forgotten_or_overtaken() {
    for seed in 0..200u64 {
        let mut random = Random::new(seed);
        let i10 = |random: &mut Random| {
            (random.below(4) > 0).then(|| I10Config {
                requests: u16::try_from(random.size(20)).unwrap(),
                bytes: u32::try_from(random.size(20_000)).unwrap(),
                delay: Duration::from_micros(random.below(100)),
            })
        };
        let config = HostConfig {
            i10: i10(&mut random),
            disable_sq_flow: seed & 1 == 0,
            data_digest: seed & 2 != 0,
            io_entries: 33,
            ..config()
        };
        let sim = SimConfig { engines: seed & 4 != 0, ..SimConfig::default() };
        let mut world = World::new(seed, sim, &config, Script::default());
        world.run_until_ready();
        let mut next = 0;
        while next < 120 {
            for _ in 0..random.size(24) {
                if world.queues.room(0) == 0 {
                    break;
                }
                let hints =
                    Hints { high_priority: random.below(20) == 0, more: random.below(3) == 0 };
                // Only data whose digest an engine computes may come later.
                let command =
                    if seed & 6 == 6 || random.below(2) == 0 { read(next) } else { write(next) };
                world.submit(command.with_hints(hints), next);
                next += 1;
            }
            if random.below(8) == 0 {
                let i10 = i10(&mut random);
                world.with(|_, queues, _| queues.set_i10(i10));
            }
            for _ in 0..random.below(12) {
                world.step();
            }
        }
        // A turn of both ends takes less than 2 ms: commands wait for nothing else.
        world.run(Duration::from_millis(20), |world| world.queues.outstanding() == 0);
        assert_eq!(world.done.len() as u64, next, "seed {seed}");
        let slbas: Vec<u64> = world.target.received.places.iter().map(|place| place.1).collect();
        assert_eq!(slbas, (0..next).collect::<Vec<u64>>(), "seed {seed}");
    }
}
