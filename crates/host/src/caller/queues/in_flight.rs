//! Operations on their way: where they are kept, how they become commands, and how they end.
//!
//! Almost all operations are one command. As little as possible is between such an operation and its queue.
//! The others are split ([`crate::split`]).

#![allow(unsafe_code)]

use raceline_proto::nvme::{Direction, Sqe};

use super::CallerQueues;
use crate::caller::memory::LentMemory;
use crate::caller::{Finished, Memory, Operation, Refused};
use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::error::{CommandError, CommandFailure};
use crate::split::{Limits, SplitOperation};

/// Marks the commands of split operations in their `user`; below it is the position in either list.
const SPLIT: u64 = 1 << 63;

/// The operations of a group that have not ended.
pub(super) struct InFlight {
    /// Operations of one command. At each position, at most one of this list and the next has an operation.
    singles: Vec<Single>,
    /// Operations of several commands.
    splits: Vec<Option<Split>>,
    free: Vec<usize>,
    split_count: usize,
    /// For each queue, the operation that has not been submitted whole.
    partial: Vec<Option<usize>>,
}

/// An operation that is one command.
#[derive(Default)]
struct Single {
    user: u64,
    memory: Option<Memory>,
}

/// An operation that is split into commands.
struct Split {
    user: u64,
    queue: usize,
    operation: SplitOperation<LentMemory>,
}

impl InFlight {
    /// Room for `slots` operations on `queues` queues.
    pub(super) fn new(slots: usize, queues: usize) -> Self {
        Self {
            singles: std::iter::repeat_with(Single::default).take(slots).collect(),
            splits: std::iter::repeat_with(|| None).take(slots).collect(),
            free: (0..slots).rev().collect(),
            split_count: 0,
            partial: vec![None; queues],
        }
    }

    /// How many more operations there may be on a queue; none while one has not been submitted whole.
    #[inline]
    pub(super) fn room(&self, queue: usize) -> usize {
        match self.partial.get(queue) {
            Some(None) => self.free.len(),
            _ => 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.splits.len() - self.free.len()
    }

    #[inline]
    pub(super) fn has_splits(&self) -> bool {
        self.split_count > 0
    }
}

/// Whether a command is one of a split operation.
#[inline]
pub(super) fn is_of_split(done: &CommandDone) -> bool {
    done.user & SPLIT != 0
}

impl CallerQueues {
    /// Submits an operation of one command, for which there is room.
    #[inline(always)]
    pub(super) fn submit_single(
        &mut self,
        queue: usize,
        sqe: Sqe,
        direction: Direction,
        memory: Option<Memory>,
        user: u64,
    ) {
        let Some(index) = self.in_flight.free.pop() else {
            unreachable!("room was looked at");
        };
        let single = &mut self.in_flight.singles[index];
        *single = Single { user, memory };
        // SAFETY: `singles` keeps the memory, and nobody uses it, until the buffer has come back with
        // its command and was dropped in `finish_single`.
        let buf = single.memory.as_mut().and_then(|memory| unsafe {
            let len = memory.len();
            self.driver.pool.lend(memory.start(), len)
        });
        let data = match (buf, direction) {
            (None, _) | (_, Direction::None) => Data::None,
            (Some(buf), Direction::ControllerToHost) => Data::Read(buf),
            (Some(buf), Direction::HostToController) => Data::Write(buf.share()),
        };
        let name = u64::try_from(index).expect("fewer operations than 2^63");
        let mut cx = self.driver.cx();
        if let Err(rejected) = self.queues.submit(&mut cx, queue, Command::new(sqe, data), name) {
            self.refuse_single(queue, rejected.command, name);
        }
    }

    /// The queue was closed a moment ago.
    #[cold]
    fn refuse_single(&mut self, queue: usize, command: Command, name: u64) {
        let finished = self.finish_single(
            queue,
            CommandDone {
                user: name,
                summary: CommandSummary::new(&command.sqe, false),
                result: Err(CommandError::NotSent),
                data: command.data,
            },
        );
        self.finished.push_back(finished);
    }

    /// Takes the end of an operation of one command.
    #[inline]
    pub(super) fn finish_single(&mut self, queue: usize, done: CommandDone) -> Finished {
        let CommandDone { user, summary, result, data } = done;
        drop(data); // before its memory can be given back
        let index = usize::try_from(user).unwrap_or(usize::MAX);
        let Single { user, memory } = std::mem::take(&mut self.in_flight.singles[index]);
        self.in_flight.free.push(index);
        let result = result.map_err(|error| CommandFailure { summary, error });
        Finished { user, queue, result, memory }
    }

    /// Submits an operation of several commands, or says what is wrong with it.
    #[inline(never)]
    pub(super) fn submit_split(
        &mut self,
        queue: usize,
        operation: Operation,
        limits: Limits,
        user: u64,
    ) -> Result<(), Refused> {
        let (plan, memory) = operation.plan(limits)?;
        let Some(index) = self.in_flight.free.pop() else {
            unreachable!("room was looked at");
        };
        // SAFETY: `splits` keeps it until the operation has ended, with all buffers come back, or the
        // group is dropped, and then `queues` and `driver` drop all buffers before it.
        let memory = unsafe { LentMemory::new(memory) };
        let operation = SplitOperation::new(plan, memory);
        self.in_flight.split_count += 1;
        self.in_flight.splits[index] = Some(Split { user, queue, operation });
        self.continue_split(index);
        Ok(())
    }

    /// Goes on with the operations that have not been submitted whole.
    pub(super) fn continue_splits(&mut self) {
        for queue in 0..self.in_flight.partial.len() {
            if let Some(index) = self.in_flight.partial[queue] {
                self.continue_split(index);
            }
        }
    }

    /// Submits the commands of an operation, as far as there is room.
    fn continue_split(&mut self, index: usize) {
        let Some(split) = &mut self.in_flight.splits[index] else { return };
        let name = SPLIT | u64::try_from(index).expect("fewer operations than 2^63");
        let mut cx = self.driver.cx();
        let pool = cx.pool;
        split.operation.submit(&mut cx, pool, (&mut self.queues, split.queue), name);
        let is_partial = !split.operation.is_submitted();
        self.in_flight.partial[split.queue] = is_partial.then_some(index);
        self.end_split(index);
    }

    /// Takes the end of a command of a split operation.
    pub(super) fn finish_command(&mut self, done: CommandDone) {
        let Ok(index) = usize::try_from(done.user & !SPLIT) else { return };
        let InFlight { splits, partial, .. } = &mut self.in_flight;
        let Some(split) = splits.get_mut(index).and_then(Option::as_mut) else { return };
        split.operation.handle_done(done);
        let partial = &mut partial[split.queue];
        if split.operation.is_submitted() && *partial == Some(index) {
            *partial = None; // a command has failed
        }
        self.end_split(index);
    }

    /// Gives an operation back if it is over.
    fn end_split(&mut self, index: usize) {
        let place = &mut self.in_flight.splits[index];
        let Some(split) = place.take_if(|split| split.operation.has_ended()) else { return };
        let Split { user, queue, operation } = split;
        let (result, memory) = operation.finish();
        self.finished.push_back(Finished { user, queue, result, memory: memory.into_memory() });
        self.in_flight.split_count -= 1;
        self.in_flight.free.push(index);
    }
}
