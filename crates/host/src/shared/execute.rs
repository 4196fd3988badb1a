//! A thread that executes an operation: it sends the operation, and receives its end if that comes soon.
//!
//! If so, the operation costs no wake-up and no hand-over. One thread at a time goes on looking. The other
//! threads sleep, as does a thread whose operation takes longer, and as long as a thread sleeps the worker
//! receives.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use raceline_proto::nvme::NamespaceId;
use raceline_reactor::core::DEFAULT_SPIN;

use super::group::Turn;
use super::{Core, Pending, SharedError, SharedQueues, push, wait};
use crate::caller::{Finished, Memory, Operation, Refusal, Refused};
use crate::error::HostError;

/// How long a thread looks for the end of its operation before it sleeps (lab 0028).
const SPIN: Duration = DEFAULT_SPIN;
/// After this many operations in a row that did not end while their thread looked, threads sleep at once...
const PATIENCE: u32 = 4;
/// ...except for one operation in this many, whose thread looks, to find out whether looking pays again.
const RETRY_OF: u32 = 16;

/// What the threads that execute operations know of each other.
#[derive(Debug, Default)]
pub(super) struct Executing {
    /// Threads that look for the end of their operation. At most one of them looks more than once.
    looking: AtomicU32,
    /// Threads that sleep until their operation has ended.
    asleep: AtomicU32,
    /// Operations since the last one that ended while its thread looked.
    missed: AtomicU32,
}

impl Executing {
    /// Whether a thread sleeps, which relies on the worker to receive.
    pub(super) fn has_sleepers(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0
    }

    fn is_worth_looking(&self) -> bool {
        let missed = self.missed.load(Ordering::Relaxed);
        missed < PATIENCE || missed.is_multiple_of(RETRY_OF)
    }
}

impl SharedQueues {
    /// Reads blocks into `buf`. When this returns, `buf` is the caller's alone again.
    pub(crate) fn read(
        &self,
        nsid: NamespaceId,
        slba: u64,
        buf: &mut [u8],
    ) -> Result<(), HostError> {
        // SAFETY: `finish` returns when the operation has ended, and the buffer is ours until then.
        let memory = unsafe { Memory::foreign(NonNull::from(&mut *buf).cast(), buf.len()) };
        finish(|| self.execute(Operation::Read { nsid, slba, memory }))
    }

    /// Writes blocks from `data`.
    pub(crate) fn write(
        &self,
        nsid: NamespaceId,
        slba: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<(), HostError> {
        // SAFETY: as in `read`; the memory of a write is only read, and nobody borrows it mutably.
        let memory = unsafe { Memory::foreign(NonNull::from(data).cast(), data.len()) };
        finish(|| self.execute(Operation::Write { nsid, slba, memory, fua }))
    }

    /// Compares blocks with `data`.
    pub(crate) fn compare(
        &self,
        nsid: NamespaceId,
        slba: u64,
        data: &[u8],
    ) -> Result<(), HostError> {
        // SAFETY: as in `write`.
        let memory = unsafe { Memory::foreign(NonNull::from(data).cast(), data.len()) };
        finish(|| self.execute(Operation::Compare { nsid, slba, memory }))
    }

    /// Executes an operation that moves no data, or data of its own.
    pub(crate) fn run(&self, operation: Operation) -> Result<(), HostError> {
        outcome(self.execute(operation))
    }

    /// Executes an operation and waits for its end.
    ///
    /// Needs a [`super::Poller`] that is kept and never polled: its existence says that threads receive by
    /// themselves, so that the worker does not.
    fn execute(&self, mut operation: Operation) -> Result<Finished, SharedError> {
        let pending = loop {
            match push(&self.submitter, operation) {
                Ok(pending) => break pending,
                // Many threads at a time have used up the slots: one of their operations ends soon.
                Err(Refused { reason: Refusal::Full, operation: back }) => operation = back,
                Err(refused) => return Err(refused.into()),
            }
            std::thread::yield_now();
        };
        let core = &*self.owner.core;
        let executing = &core.executing;
        let is_first = executing.looking.fetch_add(1, Ordering::Relaxed) == 0;
        let looks = is_first && executing.is_worth_looking();
        let looked = core.look(pending, looks);
        executing.looking.fetch_sub(1, Ordering::Relaxed);
        match looked {
            Ok(end) => {
                executing.missed.store(0, Ordering::Relaxed);
                end
            }
            Err(pending) => {
                executing.missed.fetch_add(1, Ordering::Relaxed);
                core.sleep(pending)
            }
        }
    }
}

impl Core {
    /// Sends an operation and looks for its end: once, or with `spins` for [`SPIN`].
    fn look(
        &self,
        mut pending: Pending,
        spins: bool,
    ) -> Result<Result<Finished, SharedError>, Pending> {
        let start = Instant::now();
        let mut turn = Turn::Submitter { count: 1 };
        loop {
            self.polls.fetch_add(1, Ordering::Relaxed);
            self.drive(turn);
            if let Some(end) = pending.try_take() {
                return Ok(end);
            }
            if !spins || start.elapsed() >= SPIN {
                return Err(pending);
            }
            turn = Turn::Poller;
            std::hint::spin_loop();
        }
    }

    /// Leaves receiving to the worker, and sleeps until the operation has ended.
    fn sleep(&self, pending: Pending) -> Result<Finished, SharedError> {
        let asleep = &self.executing.asleep;
        // The worker sees that a thread sleeps before it looks away from the sockets, or this wakes it. The
        // worker never sleeps past the next look at the association, so time limits hold.
        if asleep.fetch_add(1, Ordering::SeqCst) == 0 {
            fence(Ordering::SeqCst);
            self.waker.wake();
        }
        let end = wait::block_on(pending);
        asleep.fetch_sub(1, Ordering::SeqCst);
        end
    }
}

/// Ends the process when it is dropped.
struct NeverUnwind;

impl Drop for NeverUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Runs an operation over borrowed memory. The memory goes back to its owner only after the operation has
/// ended. A panic before that, which would be a fault of ours, ends the process.
fn finish(execute: impl FnOnce() -> Result<Finished, SharedError>) -> Result<(), HostError> {
    let guard = NeverUnwind;
    let end = execute();
    std::mem::forget(guard);
    outcome(end)
}

fn outcome(end: Result<Finished, SharedError>) -> Result<(), HostError> {
    match end {
        Ok(finished) => finished.result.map(drop).map_err(HostError::Command),
        Err(
            SharedError::Refused(Refused { reason: Refusal::Closed, .. }) | SharedError::Closed,
        ) => Err(HostError::Closed),
        Err(SharedError::Refused(Refused { reason, .. })) => {
            Err(HostError::Invalid(reason.to_string()))
        }
    }
}
