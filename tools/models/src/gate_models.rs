//! Models of the gate and of the wake-up: no request is stranded, and a version with a bug fails.

use std::sync::Arc as StdArc;

use loom::sync::Notify;
use loom::thread;

use crate::gate::Gate;
use crate::submission::{Receiver, Submitter, submission_list};
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, check};
use crate::wake_state::WakeState;

/// One turn: answers everything.
fn turn(receiver: &mut Receiver<u32, u32>) {
    receiver.collect();
    while let Some((id, request)) = receiver.take() {
        receiver.complete(id, request);
    }
}

/// Two threads submit, each followed by `drive`; then both requests must have their results,
/// because no other thread drives the gate afterwards.
fn two_submit(
    drive: impl Fn(&Submitter<u32, u32>, &SharedReceiver) + Clone + Send + Sync + 'static,
) {
    check(move || {
        let (submitter, receiver) = submission_list::<u32, u32>(2);
        let shared =
            Arc::new(SharedReceiver { gate: Gate::new(Inside(receiver)), bare: Mutex::new(()) });
        let (other, other_shared, other_drive) =
            (submitter.clone(), Arc::clone(&shared), drive.clone());
        let thread = thread::spawn(move || {
            let operation = other.submit(1).unwrap();
            other_drive(&other, &other_shared);
            operation
        });
        let mut mine = submitter.submit(2).unwrap();
        drive(&submitter, &shared);
        let mut other = thread.join().unwrap();
        assert_eq!((mine.try_take(), other.try_take()), (Some(Ok(2)), Some(Ok(1))), "stranded");
    });
}

struct SharedReceiver {
    gate: Gate<Inside>,
    /// The lock of a gate without the second look.
    bare: Mutex<()>,
}

struct Inside(Receiver<u32, u32>);

#[test]
fn whoever_holds_the_gate_does_the_work_of_all() {
    two_submit(|submitter, shared| {
        shared.gate.drive(|| submitter.has_waiting(), |inside| turn(&mut inside.0));
    });
}

#[test]
#[should_panic(expected = "stranded")]
fn without_looking_again_a_request_is_stranded() {
    two_submit(|_, shared| {
        // The gate as it would be without the second look: one turn, if the lock is free.
        if let Ok(_held) = shared.bare.try_lock() {
            shared.gate.drive(|| false, |inside| turn(&mut inside.0));
        }
    });
}

/// A worker that sleeps when it finds no work, and a thread that hands it work.
fn hand_off(start_wait: impl Fn(&WakeState) -> bool + Send + Sync + Clone + 'static) {
    check(move || {
        // Not loom's `Arc`: dropping that after a deadlock would panic again.
        let shared = StdArc::new((AtomicU32::new(0), WakeState::new(), Notify::new()));
        let (theirs, start_wait) = (StdArc::clone(&shared), start_wait.clone());
        let worker = thread::spawn(move || {
            let (work, state, event) = &*theirs;
            while work.load(Ordering::Relaxed) == 0 {
                if start_wait(state) {
                    event.wait();
                }
                state.end_wait();
            }
        });
        let (work, state, event) = &*shared;
        work.store(1, Ordering::Relaxed);
        if state.notify() {
            event.notify();
        }
        // loom reports a worker that never wakes as a deadlock.
        worker.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    hand_off(WakeState::start_wait);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_worker_that_does_not_see_that_it_was_woken_sleeps_for_ever() {
    hand_off(|state| {
        state.start_wait();
        true
    });
}
