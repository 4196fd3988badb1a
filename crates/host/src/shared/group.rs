//! What is behind the gate: a group of queues and the list of operations, for one thread at a time.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use raceline_reactor::Sleeper;
use raceline_reactor::stats::Counter;

use super::submission::{Receiver, RequestId};
use super::{Outcome, Request};
use crate::caller::{CallerQueues, Operation, Refusal, Refused};

/// Polls of one turn at most. What a send or receive has brought about is done in the same turn, but the
/// turn has to end.
const POLLS_PER_TURN: usize = 4;

/// Which thread takes a turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// A thread that has just submitted `count` operations.
    Submitter { count: usize },
    /// The owner of the `Poller`, which has submitted one operation and will receive later.
    Owner,
    /// A thread of the program that receives.
    Poller,
    /// The worker, which may sleep when there is nothing to do.
    Worker { may_sleep: bool, stopping: bool },
}

/// What a turn has found, and what has to follow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct After {
    /// Operations that ended.
    pub(super) ended: usize,
    /// An operation was submitted, or has ended.
    pub(super) has_worked: bool,
    /// There is more to do, which no event will announce.
    pub(super) again: bool,
    /// When there will be something to do, at the latest.
    pub(super) until: Option<Instant>,
    /// The worker has to be woken: it would sleep past `until`, or there is more to do.
    pub(super) wake_worker: bool,
    /// The queues are closed, and every operation has ended.
    pub(super) closed: bool,
}

/// Counts of what shared queues have done; written by the thread that drives them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SharedCounters {
    direct: Counter,
    handed_off: Counter,
    ended: Counter,
    dropped: Counter,
    worker_turns: Counter,
    worker_sleeps: Counter,
}

/// The values of [`SharedCounters`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTotals {
    /// Operations sent by the thread that submitted them.
    pub direct: u64,
    /// Operations sent by another thread than the one that submitted them.
    pub handed_off: u64,
    /// Operations that ended.
    pub ended: u64,
    /// Of these, operations whose [`super::Pending`] had been dropped.
    pub dropped: u64,
    /// Turns of the worker.
    pub worker_turns: u64,
    /// Of these, turns after which the worker was about to sleep.
    pub worker_sleeps: u64,
}

impl SharedCounters {
    /// The counts as of now.
    #[must_use]
    pub fn totals(&self) -> SharedTotals {
        SharedTotals {
            direct: self.direct.get(),
            handed_off: self.handed_off.get(),
            ended: self.ended.get(),
            dropped: self.dropped.get(),
            worker_turns: self.worker_turns.get(),
            worker_sleeps: self.worker_sleeps.get(),
        }
    }
}

/// The queues and the operations for them.
#[derive(Debug)]
pub(super) struct Group {
    /// `None` once the queues are closed. Dropping it gives the queue numbers back, and ends every
    /// operation that was submitted.
    open: Option<Open>,
    /// A turn has begun and not ended. If this thread did not begin it, the thread that did has panicked.
    in_turn: bool,
    /// Until when the worker may be asleep.
    worker_until: Option<Instant>,
    counters: Arc<SharedCounters>,
}

#[derive(Debug)]
struct Open {
    queues: CallerQueues,
    receiver: Receiver<Request, Outcome>,
    /// An operation taken from the list, for which no queue had room.
    held: Option<(RequestId, Operation)>,
}

impl Group {
    pub(super) fn new(queues: CallerQueues, receiver: Receiver<Request, Outcome>) -> Self {
        let open = Some(Open { queues, receiver, held: None });
        Self { open, in_turn: false, worker_until: None, counters: Arc::default() }
    }

    pub(super) fn sleeper(&self) -> io::Result<Sleeper> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        self.open.as_ref().ok_or_else(closed)?.queues.sleeper()
    }

    pub(super) fn counters(&self) -> &Arc<SharedCounters> {
        &self.counters
    }

    /// Sends what was submitted, receives what has come, ends what has ended.
    pub(super) fn turn(&mut self, turn: Turn) -> After {
        if std::mem::replace(&mut self.in_turn, true) {
            tracing::error!("a thread panicked while it drove shared queues: they are closed");
            self.open = None;
        }
        let after = self.take_turn(turn);
        self.in_turn = false;
        after
    }

    fn take_turn(&mut self, turn: Turn) -> After {
        let Some(open) = &mut self.open else {
            return After { closed: true, ..After::default() };
        };
        let counters = &*self.counters;
        let before = counters.ended.get();
        let own = match turn {
            Turn::Submitter { count } => count,
            Turn::Owner => 1,
            Turn::Poller | Turn::Worker { .. } => 0,
        };
        let mut submitted = open.submit(own, counters);
        open.queues.flush();
        if matches!(turn, Turn::Owner) {
            return After::default();
        }
        if matches!(turn, Turn::Worker { may_sleep: true, .. }) {
            open.queues.prepare_sleep();
        }
        let mut broken = false;
        for _ in 0..POLLS_PER_TURN {
            if let Err(error) = open.queues.poll() {
                tracing::error!(%error, "shared queues are closed");
                broken = true;
                break;
            }
            open.give_ends(counters);
            submitted += open.submit(0, counters);
            open.queues.flush();
            if !open.queues.wants_poll() {
                break;
            }
        }
        if broken || matches!(turn, Turn::Worker { stopping: true, .. }) {
            open.close(counters);
            self.open = None;
            return After { closed: true, ..After::default() };
        }
        let ended = usize::try_from(counters.ended.get() - before).unwrap_or(usize::MAX);
        let mut after = After {
            ended,
            has_worked: submitted + ended > 0,
            again: open.queues.wants_poll(),
            until: open.queues.next_timer(),
            ..After::default()
        };
        self.account(turn, &mut after);
        after
    }

    /// Notes whether the worker is about to sleep or, after another thread's turn, whether it has to be
    /// woken.
    fn account(&mut self, turn: Turn, after: &mut After) {
        if let Turn::Worker { may_sleep, .. } = turn {
            let sleeps = may_sleep && !after.again && !after.has_worked;
            self.counters.worker_turns.add(1);
            self.counters.worker_sleeps.add(u64::from(sleeps));
            self.worker_until = if sleeps { after.until } else { None };
            return;
        }
        let oversleeps = match (self.worker_until, after.until) {
            (Some(worker), Some(until)) => until < worker,
            _ => false,
        };
        after.wake_worker = after.again || oversleeps;
    }
}

impl Open {
    /// Gives waiting operations to queues, as far as they have room, and returns how many; this thread
    /// submitted the first `own` of them.
    fn submit(&mut self, own: usize, counters: &SharedCounters) -> usize {
        self.receiver.collect();
        let mut count = 0;
        while let Some(queue) = self.queues.roomiest() {
            let Some((id, operation)) = self.held.take().or_else(|| self.receiver.take()) else {
                break;
            };
            match self.queues.submit(queue, operation, u64::from(id.number())) {
                Ok(()) => {}
                Err(Refused { reason: Refusal::Full, operation }) => {
                    self.held = Some((id, operation));
                    break;
                }
                Err(refused) => end(&mut self.receiver, id, Err(refused), counters),
            }
            count += 1;
        }
        if self.queues.is_closed() {
            self.refuse_waiting(counters);
        }
        let direct = own.min(count);
        counters.direct.add(u64::try_from(direct).unwrap_or(u64::MAX));
        counters.handed_off.add(u64::try_from(count - direct).unwrap_or(u64::MAX));
        count
    }

    fn give_ends(&mut self, counters: &SharedCounters) {
        while let Some(finished) = self.queues.next_finished() {
            if let Ok(number) = u32::try_from(finished.user) {
                end(&mut self.receiver, RequestId::from(number), Ok(finished), counters);
            }
        }
    }

    /// Ends all operations; those that have not been submitted are refused.
    fn close(&mut self, counters: &SharedCounters) {
        self.queues.close();
        self.give_ends(counters);
        self.receiver.close();
        self.refuse_waiting(counters);
    }

    fn refuse_waiting(&mut self, counters: &SharedCounters) {
        while let Some((id, operation)) = self.held.take().or_else(|| self.receiver.take()) {
            let refused = Refused { reason: Refusal::Closed, operation };
            end(&mut self.receiver, id, Err(refused), counters);
        }
    }
}

fn end(
    receiver: &mut Receiver<Request, Outcome>,
    id: RequestId,
    outcome: Outcome,
    counters: &SharedCounters,
) {
    counters.ended.add(1);
    let wanted = receiver.complete(id, outcome);
    counters.dropped.add(u64::from(!wanted));
}
