//! Operations that are split into commands, because one command may not move as much.

mod plan;

use raceline_proto::nvme::Cqe;
use raceline_reactor::Context;

use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::error::{CommandError, CommandFailure};
use crate::multipath::PathSet;
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
        (queues, queue): (&mut PathSet, usize),
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

    /// Sends none of its commands.
    pub(crate) fn give_up(&mut self) {
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

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
    use raceline_reactor::{BufferPool, EpollIo, Io, IoBuf, PoolConfig, Token};

    use super::*;
    use crate::config::HostConfig;

    const LIMITS: Limits = Limits { block_size: 512, max_transfer_bytes: 512 };

    /// Gives a new buffer for each part, and counts those that it has not got back.
    #[derive(Debug, Default)]
    struct Counted(u32);

    impl SplitMemory for Counted {
        type Room = ();

        fn give(&mut self, (): &(), part: &Part) -> Option<Data> {
            self.0 += 1;
            Some(Data::Read(IoBuf::heap(part.len)))
        }

        fn take_back(&mut self, data: Data) {
            assert_eq!(data.len(), 512);
            self.0 -= 1;
        }
    }

    fn three_reads() -> SplitOperation<Counted> {
        let plan = Plan::new(Kind::Read, NamespaceId(1), (8, 3), LIMITS).unwrap();
        SplitOperation::new(plan, Counted::default())
    }

    /// As if one more command had been submitted.
    fn submit_one(operation: &mut SplitOperation<Counted>) -> CommandDone {
        let part = operation.plan.next().unwrap();
        let data = operation.memory.give(&(), &part).unwrap();
        operation.outstanding += 1;
        let summary = CommandSummary::new(&part.sqe, false);
        CommandDone { user: 0, summary, result: Ok(Cqe::default()), data }
    }

    #[test]
    fn the_first_error_is_the_operations_and_ends_it() {
        let mut operation = three_reads();
        let mut ends = [(); 2].map(|()| submit_one(&mut operation));
        ends[0].result = Err(CommandError::Timeout);
        ends[1].result = Err(CommandError::Disconnected);
        let [first, second] = ends;
        assert!(!operation.is_submitted());
        operation.handle_done(second);
        assert!(operation.is_submitted(), "the third is not sent");
        assert!(!operation.has_ended());
        operation.handle_done(first);
        assert!(operation.has_ended());
        let (result, memory) = operation.finish();
        let failure = result.unwrap_err();
        assert_eq!(
            failure.to_string(),
            "Read of namespace 1, LBA 9 (1 blocks): the connection was lost"
        );
        assert_eq!(memory.0, 0);
    }

    #[test]
    fn an_operation_ends_with_its_last_command() {
        let mut operation = three_reads();
        for left in (0..3).rev() {
            let done = submit_one(&mut operation);
            operation.handle_done(done);
            assert_eq!(operation.has_ended(), left == 0);
        }
        assert!(operation.finish().0.is_ok());
    }

    #[test]
    fn closed_queues_take_nothing_and_queues_without_room_let_it_wait() {
        let address = "127.0.0.1:4420".parse().unwrap();
        let nqn = Nqn::new("nqn.2026-01.io.raceline:split").unwrap();
        let config = HostConfig::new(address, nqn.clone(), nqn, HostId([3; 16]));
        let mut io = EpollIo::new().unwrap();
        let pool = BufferPool::new(&PoolConfig::default()).unwrap();
        let now = io.now();
        let mut cx = Context { io: &mut io, pool: &pool, now };
        // No association is up, so there is no queue.
        let token = Token { owner: 0, generation: 0, index: 0 };
        let mut queues = PathSet::new(&cx, &config, [1], token);
        let mut operation = three_reads();
        operation.submit(&mut cx, &(), (&mut queues, 0), 7);
        assert!(!operation.is_submitted());
        queues.close(&mut cx);
        operation.submit(&mut cx, &(), (&mut queues, 0), 7);
        assert!(operation.has_ended());
        let (result, memory) = operation.finish();
        assert_eq!((result.unwrap_err().error, memory.0), (CommandError::NotSent, 0));
    }
}
