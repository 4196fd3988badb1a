//! I/O queues that many threads share: any thread submits, and the one that finds them free sends and
//! receives.
//!
//! A group of [`CallerQueues`](crate::CallerQueues) is behind a gate (`Gate`). A thread puts its operation
//! into a lock-free list, then tries the gate. If no thread drives the group, this one does, and so sends
//! the operation at once, in its own context. If another thread drives the group, that thread takes the
//! operation from the list before it leaves. No submitter ever waits for a lock or for another thread.
//!
//! While there is a [`Poller`], its owner receives, by [`Poller::poll`], in its own context and without a
//! wake-up; it also sends what other threads have submitted. Without a [`Poller`], a worker thread
//! receives, which sleeps in the kernel or spins first, as its [`Mode`] says. The end of an operation is
//! taken from a [`Pending`]: by looking, as a future on any executor, or by a thread that waits.
//!
//! An operation owns its memory until the controller has answered or the connection is gone. Dropping the
//! [`Pending`] drops only the interest in the end: the memory is freed when it can neither be written to
//! nor be read any more.

mod execute;
mod gate;
mod group;
mod submission;
mod wait;
mod worker;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Instant;

use raceline_reactor::{Mode, Waker};

use crate::caller::{CallerHost, CallerOptions, Finished, Operation, Refusal, Refused};
use crate::error::HostError;
use execute::Executing;
use gate::Gate;
use group::{After, Group, Turn};
pub use group::{SharedCounters, SharedTotals};
use submission::{SubmitError, Submitter, submission_list};

/// Operations of all threads together, by default.
pub const DEFAULT_OPERATIONS: u32 = 1024;

/// How queues are shared.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// How many queues.
    pub queues: u16,
    /// Operations at a time, of all threads together; one more is refused. Operations that find no room on
    /// a queue wait for it in order.
    pub operations: u32,
    /// How eagerly the worker looks for work while there is no [`Poller`].
    pub mode: Mode,
    /// Whether a thread that submits sends at once if no other thread drives the group. Without it, the
    /// operation is handed to the worker, which may have to be woken.
    pub direct_send: bool,
}

impl Default for SharedOptions {
    fn default() -> Self {
        let mode = Mode::default();
        Self { queues: 1, operations: DEFAULT_OPERATIONS, mode, direct_send: true }
    }
}

/// Why an operation has no end of its own.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The operation could not be executed; it comes back with its memory.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The queues ended before the operation did.
    #[error("the queues were closed")]
    Closed,
}

/// What is asked of a group, and what comes of it.
type Request = Operation;
type Outcome = Result<Finished, Refused>;

/// I/O queues of a controller, for many threads. A clone for each thread is faster than one that they
/// share. With the last clone and [`Poller`], the queues are closed.
#[derive(Clone, Debug)]
pub struct SharedQueues {
    submitter: Submitter<Request, Outcome>,
    owner: Arc<Owner>,
}

/// Ends the worker when the last handle goes.
#[derive(Debug)]
struct Owner {
    core: Arc<Core>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// What all handles and the worker share.
#[derive(Debug)]
struct Core {
    gate: Gate<Group>,
    /// The core's own, so that submitters do not pass its counter around.
    submitter: Submitter<Request, Outcome>,
    waker: Waker,
    mode: Mode,
    direct_send: bool,
    /// Pollers that exist.
    pollers: AtomicU32,
    /// Polls by threads of the program: the worker looks whether they go on.
    polls: AtomicU64,
    stopping: AtomicBool,
    executing: Executing,
    counters: Arc<SharedCounters>,
}

impl SharedQueues {
    /// Opens queues of a connected controller, and waits until commands flow.
    ///
    /// # Errors
    /// When fewer queues are left, or they cannot be connected.
    pub fn open(host: &CallerHost, options: &SharedOptions) -> Result<Self, HostError> {
        let queues = CallerOptions { queues: options.queues, ..CallerOptions::default() };
        let queues = host.open(&queues)?;
        let (submitter, receiver) = submission_list(options.operations);
        let group = Group::new(queues, receiver);
        let reactor = |error| HostError::Reactor(Arc::new(error));
        let sleeper = group.sleeper().map_err(reactor)?;
        let core = Arc::new(Core {
            counters: Arc::clone(group.counters()),
            gate: Gate::new(group),
            submitter: submitter.clone(),
            waker: sleeper.waker().clone(),
            mode: options.mode,
            direct_send: options.direct_send,
            pollers: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            executing: Executing::default(),
        });
        let worker = worker::spawn(Arc::clone(&core), sleeper).map_err(reactor)?;
        let owner = Owner { core, worker: Mutex::new(Some(worker)) };
        Ok(Self { submitter, owner: Arc::new(owner) })
    }

    /// Submits an operation. Never blocks and takes no lock: if no other thread drives the queues, this one
    /// sends the operation now, otherwise the thread that drives them does.
    ///
    /// # Errors
    /// Gives the operation back when [`SharedOptions::operations`] are outstanding, or the queues are
    /// closed. An operation that no command can express is taken, and ends with an error.
    pub fn submit(&self, operation: Operation) -> Result<Pending, Refused> {
        let pending = push(&self.submitter, operation)?;
        self.owner.core.go(1);
        Ok(pending)
    }

    /// Submits operations that leave together, and appends them to `pending`.
    ///
    /// # Errors
    /// At the first operation that is not taken, as [`Self::submit`]; those before it are on their way.
    pub fn submit_batch(
        &self,
        operations: impl IntoIterator<Item = Operation>,
        pending: &mut Vec<Pending>,
    ) -> Result<(), Refused> {
        let before = pending.len();
        let pushed = operations.into_iter().try_for_each(|operation| {
            pending.push(push(&self.submitter, operation)?);
            Ok(())
        });
        if pending.len() > before {
            self.owner.core.go(pending.len() - before);
        }
        pushed
    }

    /// Makes the caller the receiver: until the poller is dropped, no other thread receives, and
    /// submissions wake no thread.
    #[must_use]
    pub fn poller(&self) -> Poller {
        self.owner.core.pollers.fetch_add(1, Ordering::SeqCst);
        Poller { queues: self.clone() }
    }

    /// What has been done so far.
    #[must_use]
    pub fn totals(&self) -> SharedTotals {
        self.owner.core.counters.totals()
    }

    /// Closes the queues and waits until they are closed. Outstanding operations end with an error;
    /// operations that other handles submit from then on are refused.
    pub fn close(self) {
        self.owner.core.stop();
        let worker = self.owner.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker
            && worker.join().is_err()
        {
            tracing::warn!("the worker of shared queues has panicked");
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.stop();
    }
}

impl Core {
    /// Whether threads of the program receive, so that the worker need not.
    fn is_attended(&self) -> bool {
        self.pollers.load(Ordering::SeqCst) > 0 && !self.executing.has_sleepers()
    }

    /// After `count` operations were put in the list: sends them, or makes sure that another thread does.
    fn go(&self, count: usize) {
        // Either the thread that stops polling sees our operation, or we see that no thread polls.
        fence(Ordering::SeqCst);
        if self.pollers.load(Ordering::Relaxed) > 0 {
            return;
        }
        if !self.direct_send {
            self.waker.wake();
            return;
        }
        let after = self.drive(Turn::Submitter { count });
        if after.is_some_and(|after| after.wake_worker) {
            self.waker.wake();
        }
    }

    /// Drives the group, unless another thread does; that one looks at the list before it leaves.
    fn drive(&self, turn: Turn) -> Option<After> {
        let mut after = None;
        self.gate.drive(|| self.submitter.has_waiting(), |group| after = Some(group.turn(turn)));
        after
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

fn push(submitter: &Submitter<Request, Outcome>, operation: Operation) -> Result<Pending, Refused> {
    let (reason, operation) = match submitter.submit(operation) {
        Ok(operation) => return Ok(Pending { inner: operation }),
        Err(SubmitError::Full(operation)) => (Refusal::Full, operation),
        Err(SubmitError::Closed(operation)) => (Refusal::Closed, operation),
    };
    Err(Refused { reason, operation })
}

/// The right and the duty to receive: as long as there is a poller, operations end only when its owner
/// polls. (If the owner has not polled for 100 ms, the worker receives, so that time limits hold.)
#[derive(Debug)]
pub struct Poller {
    queues: SharedQueues,
}

impl Poller {
    /// Submits an operation and sends it at once, in the caller's context, with all others submitted
    /// before.
    ///
    /// # Errors
    /// As [`SharedQueues::submit`].
    pub fn submit(&mut self, operation: Operation) -> Result<Pending, Refused> {
        let pending = push(&self.queues.submitter, operation)?;
        // If the worker drives at this moment, which is rare, it sends the operation.
        self.queues.owner.core.drive(Turn::Owner);
        Ok(pending)
    }

    /// Submits without sending: the next [`Self::poll`] sends it, together with others.
    ///
    /// # Errors
    /// As [`SharedQueues::submit`].
    pub fn submit_later(&mut self, operation: Operation) -> Result<Pending, Refused> {
        push(&self.queues.submitter, operation)
    }

    /// Sends what any thread has submitted, receives, and completes operations. Returns how many ended.
    /// Never blocks.
    pub fn poll(&mut self) -> usize {
        let core = &*self.queues.owner.core;
        core.polls.fetch_add(1, Ordering::Relaxed);
        core.drive(Turn::Poller).map_or(0, |after| after.ended)
    }

    /// Polls until the operation has ended.
    ///
    /// # Errors
    /// When it could not be executed, or the queues were closed.
    pub fn wait(&mut self, mut pending: Pending) -> Result<Finished, SharedError> {
        loop {
            if let Some(end) = pending.try_take() {
                return end;
            }
            if self.poll() == 0 {
                std::hint::spin_loop();
            }
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let core = &*self.queues.owner.core;
        core.pollers.fetch_sub(1, Ordering::SeqCst);
        // The worker takes over what was submitted and not polled for.
        fence(Ordering::SeqCst);
        core.waker.wake();
    }
}

/// An operation on its way: a future of its end, for any executor. If it is dropped, the operation is
/// executed all the same, and its memory is freed after that.
#[derive(Debug)]
pub struct Pending {
    inner: submission::Operation<Request, Outcome>,
}

impl Pending {
    /// Takes its end, if that has come. The end can be taken once.
    pub fn try_take(&mut self) -> Option<Result<Finished, SharedError>> {
        self.inner.try_take().map(flatten)
    }

    /// Waits for its end. Not for the thread that has the [`Poller`]: no thread would receive.
    ///
    /// # Errors
    /// When it could not be executed, or the queues were closed.
    pub fn wait(self) -> Result<Finished, SharedError> {
        wait::block_on(self)
    }

    /// Waits for its end until the time is over.
    ///
    /// # Errors
    /// Gives itself back when the time is over.
    pub fn wait_until(self, until: Instant) -> Result<Result<Finished, SharedError>, Self> {
        wait::block_on_until(self, until)
    }
}

impl Future for Pending {
    type Output = Result<Finished, SharedError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(cx).map(flatten)
    }
}

fn flatten(end: Result<Outcome, submission::Closed>) -> Result<Finished, SharedError> {
    end.map_err(|_| SharedError::Closed)?.map_err(SharedError::Refused)
}
