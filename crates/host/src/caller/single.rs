//! Operations of one command, which almost all are: as little as possible is between it and its queue.

#![allow(unsafe_code)]

use raceline_proto::nvme::{Direction, Sqe};

use super::{CallerQueues, Finished, Memory};
use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::error::{CommandError, CommandFailure};

/// An operation on its way that is one command: almost all are.
#[derive(Default)]
pub(super) struct Single {
    user: u64,
    memory: Option<Memory>,
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
        let Some(index) = self.free.pop() else {
            unreachable!("room was looked at");
        };
        let single = &mut self.singles[index];
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
    pub(super) fn refuse_single(&mut self, queue: usize, command: Command, name: u64) {
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
        let Single { user, memory } = std::mem::take(&mut self.singles[index]);
        self.free.push(index);
        let result = result.map_err(|error| CommandFailure { summary, error });
        Finished { user, queue, result, memory }
    }
}
