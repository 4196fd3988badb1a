//! Operations that are split into commands, because one command may not move as much.

mod plan;

use raceline_proto::nvme::Cqe;
use raceline_reactor::Context;

use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::error::{CommandError, CommandFailure};
use crate::queue_set::IoQueueSet;
pub(crate) use plan::{Kind, Limits, Part, Plan, max_transfer_bytes};

/// The memory of an operation, of which each command gets a part.
pub(crate) trait SplitMemory {
    /// What limits how many parts there are at a time.
    type Room;

    /// The memory of this part, which is asked for in order; `None` when there is no room for it now.
    fn give(&mut self, room: &Self::Room, part: &Part) -> Option<Data>;

    /// The command of a part has ended, or was never taken.
    fn take_back(&mut self, data: Data);
}

/// An operation on its way as one or several commands.
#[derive(Debug)]
pub(crate) struct SplitOperation<M> {
    /// What has not been submitted.
    plan: Plan,
    memory: M,
    /// Commands whose end has not come.
    outstanding: u32,
    failure: Option<CommandFailure>,
    cqe: Cqe,
}

impl<M: SplitMemory> SplitOperation<M> {
    /// Nothing of it is submitted yet.
    pub(crate) fn new(plan: Plan, memory: M) -> Self {
        Self { plan, memory, outstanding: 0, failure: None, cqe: Cqe::default() }
    }

    /// Submits its commands with this name, as far as there is room for them.
    pub(crate) fn submit(
        &mut self,
        cx: &mut Context<'_>,
        room: &M::Room,
        (queues, queue): (&mut IoQueueSet, usize),
        user: u64,
    ) {
        loop {
            let closed = queues.is_closed();
            if !closed && queues.room(queue) == 0 {
                return;
            }
            let mut rest = self.plan.clone();
            let Some(part) = rest.next() else { return };
            if closed {
                return self.fail(CommandSummary::new(&part.sqe, false), CommandError::NotSent);
            }
            let data = match part.len {
                0 => Data::None,
                _ => match self.memory.give(room, &part) {
                    Some(data) => data,
                    None => return,
                },
            };
            self.plan = rest;
            match queues.submit(cx, queue, Command::new(part.sqe, data), user) {
                Ok(()) => self.outstanding += 1,
                Err(rejected) => {
                    // The queue was closed a moment ago.
                    self.memory.take_back(rejected.command.data);
                    self.fail(CommandSummary::new(&part.sqe, false), CommandError::NotSent);
                }
            }
        }
    }

    /// Takes the end of one of its commands.
    pub(crate) fn handle_done(&mut self, done: CommandDone) {
        self.memory.take_back(done.data);
        self.outstanding -= 1;
        match done.result {
            Ok(cqe) => self.cqe = cqe,
            Err(error) => self.fail(done.summary, error),
        }
    }

    /// The first error is the operation's, and no further command is sent.
    fn fail(&mut self, summary: CommandSummary, error: CommandError) {
        self.failure = self.failure.or(Some(CommandFailure { summary, error }));
        self.plan.give_up();
    }

    /// Whether no command is left to be submitted.
    pub(crate) fn is_submitted(&self) -> bool {
        self.plan.is_done()
    }

    /// Whether it is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_submitted() && self.outstanding == 0
    }

    /// Of one that has ended: the completion of its last command or its first error, and its memory.
    pub(crate) fn finish(self) -> (Result<Cqe, CommandFailure>, M) {
        debug_assert!(self.has_ended());
        (self.failure.map_or(Ok(self.cqe), Err), self.memory)
    }
}
