//! A controller and its I/O queues on one core, driven by the test: queue maps, full queues, gathered commands, lost and given
//! up controllers. What needs a scripted target is in `queue.rs` and `batching.rs`, in virtual time over TCP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use raceline_host::{
    BackoffConfig, BlockRange, Command, CommandError, ControllerEvent, Data, Hints, HostConfig,
    I10Config, RejectedReason,
};
use raceline_proto::nvme::Status;
use raceline_reactor::IoBuf;
use raceline_reactor::flow::Load;
use raceline_reactor::sim::Random;
use raceline_target::{NamespaceConfig, TargetConfig};

use crate::common::core::Core;
use crate::served::{
    BLOCK, NS, any_port, config, listen, memory, nqn, serve, serve_device, serve_with, small,
};

/// Commands of the largest size that are read at once.
const LARGE: u64 = 8;
const LARGE_BLOCKS: u32 = 256;

fn read(slba: u64, blocks: u32) -> Command {
    let buf = IoBuf::heap(usize::try_from(blocks).unwrap() * BLOCK);
    Command::read(NS, BlockRange::new(slba, blocks).unwrap(), buf)
}

fn write(slba: u64, byte: u8) -> Command {
    let buf = IoBuf::from_slice(&[byte; BLOCK]).share();
    Command::write(NS, BlockRange::new(slba, 1).unwrap(), buf, false)
}

#[track_caller]
fn ends_well(core: &mut Core, user: u64) {
    let done = core.take_done(user);
    assert!(done.result.is_ok(), "{user}: {:?}", done.failure());
}

/// Gathers by this rule, with one command in flight whose answer waits to be looked at.
fn gathering(address: SocketAddr, i10: Option<I10Config>) -> Core {
    let mut core = Core::mapped(HostConfig { io_queues: 1, i10, ..config(address) });
    core.with(|_, queues, cx| queues.submit(cx, 0, read(1000, 1), 1000)).unwrap();
    core.until_answered();
    core
}

/// I/O commands given to sends, and sends.
fn sent(core: &Core) -> (u64, u64) {
    let totals = core.queues.counters().totals();
    (totals.pdus_sent, totals.sends)
}

/// The same, since.
fn sent_since(core: &Core, (pdus, sends): (u64, u64)) -> (u64, u64) {
    let now = sent(core);
    (now.0 - pdus, now.1 - sends)
}

/// Submits reads of these users, in one moment; gives what has left.
fn submit(core: &mut Core, users: std::ops::Range<u64>, hints: Hints) -> (u64, u64) {
    let before = sent(core);
    core.with(|_, queues, cx| {
        for user in users {
            queues.submit(cx, 0, read(user, 1).with_hints(hints), user).unwrap();
            queues.flush(cx);
        }
    });
    sent_since(core, before)
}

/// As slow as may be.
fn patient(requests: u16) -> Option<I10Config> {
    Some(I10Config { requests, delay: Duration::from_millis(100), ..I10Config::default() })
}

#[test]
fn commands_take_the_queue_of_their_map() {
    for (granted, positions) in [(3, [1, 0, 2]), (2, [1, 0, 1]), (1, [0; 3])] {
        let target = serve_with(TargetConfig { max_io_queues: granted, ..small() }, memory());
        let address = listen(&target, any_port());
        let queues =
            HostConfig { io_queues: 1, write_queues: 1, poll_queues: 1, ..config(address) };
        let mut core = Core::mapped(queues);
        assert_eq!(core.queues.len(), usize::from(granted));
        let commands = [(read(0, 1), false), (write(1, 1), false), (read(2, 1), true)];
        for (user, (command, polled)) in (0..).zip(commands) {
            let position = core
                .with(|_, queues, cx| queues.submit_mapped(cx, (polled, 0), command, user))
                .unwrap();
            assert_eq!(position, positions[usize::try_from(user).unwrap()], "of {granted} queues");
            ends_well(&mut core, user);
        }
        core.ends_clean();
        target.shutdown().unwrap();
    }
}

#[test]
fn a_full_queue_works_off_everything_and_refuses_the_rest() {
    let (target, address) = serve(any_port());
    let mut core = Core::mapped(HostConfig { io_queues: 1, io_entries: 8, ..config(address) });
    for round in 0..3 {
        for user in 0..7 {
            core.submit(write(user, 1 + round), user);
        }
        let rejected = core.with(|_, queues, cx| queues.submit(cx, 0, read(0, 1), 9)).unwrap_err();
        assert_eq!(rejected.reason, RejectedReason::Full);
        assert_eq!(rejected.command.data.len(), BLOCK);
        (0..7).for_each(|user| ends_well(&mut core, user));
        assert_eq!(core.queues.room(0), 7);
    }
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn a_batch_of_submissions_keeps_what_is_refused() {
    let (target, address) = serve(any_port());
    let mut core = Core::mapped(HostConfig { io_queues: 1, io_entries: 4, ..config(address) });
    let mut batch: VecDeque<(Command, u64)> = (0..5).map(|user| (read(user, 1), user)).collect();
    let before = sent(&core);
    let refused = core.with(|_, queues, cx| queues.submit_batch(cx, 0, &mut batch));
    assert_eq!(refused.unwrap_err(), RejectedReason::Full);
    assert_eq!(batch.iter().map(|(_, user)| *user).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(sent_since(&core, before), (3, 1), "three in one send");
    (0..3).for_each(|user| ends_well(&mut core, user));
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn a_batch_leaves_together_and_in_time() {
    let (target, address) = serve(any_port());
    let mut core = gathering(address, patient(16));
    assert_eq!(submit(&mut core, 0..16, Hints::default()), (16, 1), "the 16th takes all with it");
    (0..16).for_each(|user| ends_well(&mut core, user));
    ends_well(&mut core, 1000);
    core.ends_clean();
    // One alone waits no longer than it may.
    let mut core = gathering(address, patient(16));
    let before = sent(&core);
    assert_eq!(submit(&mut core, 0..1, Hints::default()), (0, 0));
    core.until("the delay is over", |core| sent_since(core, before) == (1, 1));
    ends_well(&mut core, 0);
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn a_command_of_high_priority_takes_all_with_it() {
    let (target, address) = serve(any_port());
    let mut core = gathering(address, patient(16));
    let urgent = Hints { high_priority: true, more: false };
    let before = sent(&core);
    core.with(|_, queues, cx| {
        for user in 0..2 {
            queues.submit(cx, 0, read(user, 1), user).unwrap();
            queues.flush(cx);
        }
        assert_eq!(queues.counters().totals().pdus_sent, before.0);
        queues.submit(cx, 0, read(2, 1).with_hints(urgent), 2).unwrap();
        queues.flush(cx);
    });
    assert_eq!(sent_since(&core, before), (3, 1));
    (0..3).for_each(|user| ends_well(&mut core, user));
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn gathering_is_changed_while_commands_wait() {
    let (target, address) = serve(any_port());
    for (last, users) in [(patient(2), 2), (None, 1)] {
        let mut core = gathering(address, patient(16));
        let before = sent(&core);
        core.with(|_, queues, cx| {
            queues.submit(cx, 0, read(0, 1), 0).unwrap();
            queues.flush(cx);
            assert_eq!(queues.counters().totals().pdus_sent, before.0, "it waits for others");
            queues.set_i10(last);
            for user in 1..users {
                queues.submit(cx, 0, read(user, 1), user).unwrap();
            }
            queues.flush(cx);
        });
        assert_eq!(sent_since(&core, before), (users, 1), "{last:?}");
        (0..users).for_each(|user| ends_well(&mut core, user));
        core.ends_clean();
    }
    target.shutdown().unwrap();
}

/// Random commands, gathered by random rules that change: each ends, and with its own data.
#[test]
fn nothing_is_forgotten() {
    let (target, address) = serve(any_port());
    for seed in 0..6u64 {
        let mut random = Random::new(seed);
        let rule = |random: &mut Random| {
            (random.below(4) > 0).then(|| I10Config {
                requests: u16::try_from(random.size(20)).unwrap(),
                bytes: u32::try_from(random.size(20_000)).unwrap(),
                delay: Duration::from_micros(random.below(2000)),
            })
        };
        let i10 = rule(&mut random);
        let entries = if seed % 2 == 0 { 33 } else { 5 };
        let wanted = HostConfig { io_queues: 1, io_entries: entries, i10, ..config(address) };
        let mut core = Core::mapped(wanted);
        let mut next = 0u64;
        while next < 200 {
            for _ in 0..random.size(24) {
                if core.queues.room(0) == 0 {
                    break;
                }
                let hints =
                    Hints { high_priority: random.below(20) == 0, more: random.below(3) == 0 };
                let command = write(next, (next + seed).to_le_bytes()[0]).with_hints(hints);
                core.with(|_, queues, cx| queues.submit(cx, 0, command, next)).unwrap();
                next += 1;
            }
            if random.below(8) == 0 {
                let i10 = rule(&mut random);
                core.with(|_, queues, _| queues.set_i10(i10));
            }
            (0..random.below(4)).for_each(|_| core.turn());
        }
        core.until("all have ended", |core| core.queues.outstanding() == 0);
        (0..next).for_each(|user| ends_well(&mut core, user));
        for user in 0..next {
            core.with(|_, queues, cx| queues.submit(cx, 0, read(user, 1), user)).unwrap();
            let done = core.take_done(user);
            let bytes = done.data.into_read().unwrap();
            assert!(bytes.iter().all(|&byte| byte == (user + seed).to_le_bytes()[0]), "{user}");
        }
        core.ends_clean();
    }
    target.shutdown().unwrap();
}

#[test]
fn errors_name_the_culprit() {
    let (target, address) = serve(any_port());
    let mut core = Core::mapped(config(address));
    core.submit(read(32_768, 8), 1);
    let failure = core.take_done(1).failure().unwrap();
    assert_eq!(failure.error, CommandError::Status(Status::LBA_OUT_OF_RANGE.dnr()));
    let text = "Read of namespace 1, LBA 32768 (8 blocks): LBA Out of Range (SCT 0h SC 80h, DNR)";
    assert_eq!(failure.to_string(), text);
    let bad = Command::new(raceline_proto::host::command::flush(NS), Data::Read(IoBuf::heap(4)));
    let rejected = core.with(|_, queues, cx| queues.submit(cx, 0, bad, 2)).unwrap_err();
    assert_eq!(rejected.reason, RejectedReason::BadData);
    core.ends_clean();
    target.shutdown().unwrap();
}

/// The core's sum of what is on its way is exact also when queues go whose commands are not answered.
#[test]
fn a_queue_that_closes_has_nothing_under_way() {
    let (target, address) = serve(any_port());
    let wanted = HostConfig { io_queues: 1, disable_sq_flow: true, ..config(address) };
    let mut core = Core::mapped(wanted);
    core.with(|_, queues, cx| {
        for user in 0..LARGE {
            queues.submit(cx, 0, read(user, LARGE_BLOCKS), user).unwrap();
        }
        queues.flush(cx);
        assert!(queues.outstanding() > 0);
        queues.close(cx);
        let flight = cx.io.flight();
        assert_eq!((flight.load(), flight.readers()), (Load::default(), 0));
        // Though its commands have not come back, it says nothing more.
        queues.flush(cx);
        assert_eq!(cx.io.flight().load(), Load::default());
    });
    core.until("all commands come back", |core| core.done.len() as u64 == LARGE);
    assert!(core.done.iter().all(|done| done.result.is_err()), "{:?}", core.done);
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn namespace_changes_are_seen() {
    let (target, address) = serve(any_port());
    let mut core = Core::mapped(config(address));
    for count in 2..4 {
        target.add_namespace(&nqn(), NamespaceConfig::new(memory())).unwrap();
        core.until("it is seen", |core| {
            let last = core.events.iter().rev().find_map(|event| match event {
                ControllerEvent::Namespaces(list) => Some(list.len()),
                _ => None,
            });
            last == Some(count)
        });
    }
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn disconnecting_shuts_the_controller_down() {
    let (target, address) = serve(any_port());
    let core = Core::mapped(config(address));
    assert_eq!(target.stats().controllers, 1);
    core.ends_clean();
    let start = std::time::Instant::now();
    while target.stats().controllers > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "the controller stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    target.shutdown().unwrap();
}

/// A target that goes and comes: reads that are submitted meanwhile wait for it, and the association is a new one.
#[test]
fn a_target_that_comes_back_is_found() {
    let device = memory();
    let (mut target, address) = serve_device(any_port(), device.clone());
    let mut core = Core::mapped(config(address));
    core.submit(write(3, 9), 1);
    ends_well(&mut core, 1);
    for round in 2..5 {
        target.shutdown().unwrap();
        core.until("the loss is noticed", |core| !core.queues.is_ready());
        core.submit(read(3, 1), round);
        (target, _) = serve_device(address, device.clone());
        let done = core.take_done(round);
        assert!(done.result.is_ok(), "{:?}", done.failure());
        assert_eq!(done.data.into_read().unwrap()[..], [9; BLOCK]);
        core.until("both queues are back", |core| core.queues.is_ready());
    }
    let ups = core.events.iter().filter(|event| matches!(event, ControllerEvent::Up(_))).count();
    assert!(ups >= 4, "{:?}", core.events);
    core.ends_clean();
    target.shutdown().unwrap();
}

#[test]
fn a_controller_that_stays_away_is_given_up() {
    let backoff =
        BackoffConfig { give_up_after: Some(Duration::from_secs(1)), ..config(any_port()).backoff };
    let (target, address) = serve(any_port());
    let mut core = Core::mapped(HostConfig { backoff, ..config(address) });
    target.shutdown().unwrap();
    core.until("the loss is noticed", |core| !core.queues.is_ready());
    core.submit(write(0, 1), 1);
    core.submit(read(0, 1), 2);
    assert_eq!(core.take_done(1).result, Err(CommandError::NotSent));
    let result = core.take_done(2).result;
    assert!(
        matches!(result, Err(CommandError::NotSent | CommandError::Disconnected)),
        "{result:?}"
    );
    assert!(matches!(core.events.last(), Some(ControllerEvent::Failed(_))), "{:?}", core.events);
    let rejected = core.with(|_, queues, cx| queues.submit(cx, 0, read(0, 1), 3)).unwrap_err();
    assert_eq!(rejected.reason, RejectedReason::Closed);
}
