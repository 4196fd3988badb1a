//! One core's way to a remote namespace.

use std::collections::VecDeque;
use std::sync::Arc;

use raceline_bdev::{BdevError, Channel, Done, Op, Request};
use raceline_proto::host::{BlockRange, command};
use raceline_proto::nvme::Status;
use raceline_reactor::{Completion, Context, IoBuf, Outcome, Payload, SharedBuf, Token};

use super::{Remote, Scope};
use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::error::CommandError;
use crate::follower::AssociationFollower;
use crate::queue_set::{IoQueueEvent, IoQueueSet};

/// Token indices: the queue, and the timer that looks at the association.
const QUEUE_INDEX: u32 = 0;
const FOLLOW_INDEX: u32 = 1;

/// An I/O queue of the association, and the requests on it.
#[derive(Debug)]
pub(super) struct RemoteChannel {
    remote: Arc<Remote>,
    scope: Scope,
    qid: u16,
    queues: IoQueueSet,
    follower: AssociationFollower,
    operations: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Commands that found no room.
    backlog: VecDeque<(Command, u64)>,
    closed: bool,
}

/// A request and its commands.
#[derive(Debug)]
struct Operation {
    tag: u64,
    commands_left: u32,
    error: Option<BdevError>,
    /// What a request in several commands is about; one command has it itself.
    whole: Data,
}

impl RemoteChannel {
    pub(super) fn open(
        cx: &mut Context<'_>,
        (remote, scope): (Arc<Remote>, Scope),
        qid: u16,
        owner: u16,
    ) -> Self {
        let token = Token { owner, generation: 0, index: QUEUE_INDEX };
        let state = Arc::clone(remote.admin.state());
        let follower = AssociationFollower::new(state, Token { index: FOLLOW_INDEX, ..token });
        let queues = IoQueueSet::new(&remote.config, [qid], token);
        let mut channel = Self {
            remote,
            scope,
            qid,
            queues,
            follower,
            operations: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            closed: false,
        };
        channel.follower.follow(cx, &mut channel.queues);
        channel
    }

    /// Cuts a request into commands. Most are one.
    fn start(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let Request { tag, op } = request;
        let index = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            u32::try_from(self.operations.len() - 1).expect("fewer than 2^32 requests")
        });
        let before = self.backlog.len();
        let whole = match self.commands(index, op) {
            Ok(whole) => whole,
            Err((error, whole)) => {
                self.backlog.truncate(before);
                self.free.push(index);
                done.push(Done { tag, result: Err(error), payload: payload_of(whole) });
                return;
            }
        };
        let commands = u32::try_from(self.backlog.len() - before).unwrap_or(u32::MAX);
        if commands == 0 {
            self.free.push(index);
            done.push(Done { tag, result: Ok(()), payload: payload_of(whole) });
            return;
        }
        let operation = Operation { tag, commands_left: commands, error: None, whole };
        self.operations[slot(index)] = Some(operation);
        self.submit_backlog(cx, done);
    }

    /// Appends the commands of a request to the backlog.
    fn commands(&mut self, index: u32, op: Op) -> Result<Data, (BdevError, Data)> {
        let nsid = self.scope.nsid;
        let block = u64::from(self.scope.block_size);
        let limit = self.scope.max_transfer_bytes;
        let user = |chunk: usize| u64::from(index) << 32 | u64::try_from(chunk).unwrap_or(0);
        match op {
            Op::Read { offset, len, buf } => {
                let Some(buf) = buf else { return Err((BdevError::Internal, Data::None)) };
                let Some(range) = range_of(offset, len, block) else {
                    return Err((BdevError::Internal, Data::Read(buf)));
                };
                if len <= limit {
                    self.backlog.push_back((Command::read(nsid, range, buf), user(0)));
                    return Ok(Data::None);
                }
                for (chunk, start) in (0..len).step_by(limit).enumerate() {
                    let part = IoBuf::heap(limit.min(len - start));
                    let Some(range) = part_of(offset, start, part.len(), block) else {
                        return Err((BdevError::Internal, Data::Read(buf)));
                    };
                    self.backlog.push_back((Command::read(nsid, range, part), user(chunk)));
                }
                Ok(Data::Read(buf))
            }
            Op::Write { offset, data, fua } => {
                let Some(range) = range_of(offset, data.len(), block) else {
                    return Err((BdevError::Internal, Data::Write(data)));
                };
                if data.len() <= limit {
                    self.backlog.push_back((Command::write(nsid, range, data, fua), user(0)));
                    return Ok(Data::None);
                }
                for (chunk, start) in (0..data.len()).step_by(limit).enumerate() {
                    let bytes = &data[start..data.len().min(start + limit)];
                    let Some(range) = part_of(offset, start, bytes.len(), block) else {
                        return Err((BdevError::Internal, Data::Write(data)));
                    };
                    let part = IoBuf::from_slice(bytes).share();
                    self.backlog.push_back((Command::write(nsid, range, part, fua), user(chunk)));
                }
                Ok(Data::Write(data))
            }
            Op::Flush => {
                self.backlog.push_back((Command::flush(nsid), user(0)));
                Ok(Data::None)
            }
            Op::WriteZeroes { .. } if !self.scope.write_zeroes => {
                Err((BdevError::NotSupported, Data::None))
            }
            Op::WriteZeroes { offset, len, deallocate, fua } => {
                let most = u64::from(BlockRange::MAX_BLOCKS);
                let mut slba = offset / block;
                let mut left = len / block;
                while left > 0 {
                    let count = u32::try_from(left.min(most)).unwrap_or(BlockRange::MAX_BLOCKS);
                    let Some(range) = BlockRange::new(slba, count) else {
                        return Err((BdevError::Internal, Data::None));
                    };
                    let command = Command::write_zeroes(nsid, range, deallocate, fua);
                    self.backlog.push_back((command, user(0)));
                    slba += u64::from(count);
                    left -= u64::from(count);
                }
                Ok(Data::None)
            }
            Op::Deallocate { offset, len } => {
                let mut ranges = Vec::new();
                let mut slba = offset / block;
                let mut left = len / block;
                while left > 0
                    && ranges.len() < command::MAX_DEALLOCATE_RANGES * command::DEALLOCATE_RANGE_LEN
                {
                    let count = u32::try_from(left).unwrap_or(u32::MAX);
                    ranges.extend(command::deallocate_range(slba, count));
                    slba += u64::from(count);
                    left -= u64::from(count);
                }
                match Command::deallocate(nsid, IoBuf::from_slice(&ranges).share()) {
                    Some(command) => self.backlog.push_back((command, user(0))),
                    None => return Err((BdevError::Internal, Data::None)),
                }
                Ok(Data::None)
            }
        }
    }

    fn submit_backlog(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        while let Some((command, user)) = self.backlog.pop_front() {
            if self.queues.is_closed() {
                let summary = CommandSummary::new(&command.sqe, false);
                let result = Err(CommandError::NotSent);
                self.handle_done(CommandDone { user, summary, result, data: command.data }, done);
                continue;
            }
            if self.queues.room(0) == 0 {
                self.backlog.push_front((command, user));
                return;
            }
            if let Err(rejected) = self.queues.submit(cx, 0, command, user) {
                let summary = CommandSummary::new(&rejected.command.sqe, false);
                let (result, data) = (Err(CommandError::NotSent), rejected.command.data);
                self.handle_done(CommandDone { user, summary, result, data }, done);
            }
        }
    }

    fn collect(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        while let Some((_, finished)) = self.queues.poll_done() {
            self.handle_done(finished, done);
        }
        while let Some(event) = self.queues.poll_event() {
            if let IoQueueEvent::Lost { cntlid, error, .. } = event {
                self.remote.admin.queue_lost(cntlid, error);
                self.follower.look_soon(cx);
            }
        }
    }

    fn handle_done(&mut self, finished: CommandDone, done: &mut Vec<Done>) {
        let [i0, i1, i2, i3, c0, c1, c2, c3] = finished.user.to_be_bytes();
        let (index, chunk) =
            (u32::from_be_bytes([i0, i1, i2, i3]), u32::from_be_bytes([c0, c1, c2, c3]));
        let place = &mut self.operations[slot(index)];
        let Some(operation) = place else { return };
        if let Err(error) = finished.result {
            operation.error = operation.error.or(Some(bdev_error(error)));
        }
        match (&mut operation.whole, finished.data) {
            (Data::Read(whole), Data::Read(part)) if operation.error.is_none() => {
                let start = slot(chunk) * self.scope.max_transfer_bytes;
                whole[start..start + part.len()].copy_from_slice(&part);
            }
            (whole @ Data::None, data) => *whole = data,
            _ => {}
        }
        operation.commands_left -= 1;
        if operation.commands_left == 0
            && let Some(operation) = place.take()
        {
            self.free.push(index);
            let result = operation.error.map_or(Ok(()), Err);
            done.push(Done { tag: operation.tag, result, payload: payload_of(operation.whole) });
        }
    }
}

impl Channel for RemoteChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        self.start(cx, request, done);
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        if self.closed {
            return; // of a queue that is being closed
        }
        if completion.token.index == FOLLOW_INDEX {
            if self.follower.is_due(cx.now) && matches!(completion.outcome, Outcome::Timer) {
                self.follower.follow(cx, &mut self.queues);
            }
        } else {
            self.queues.handle_completion(cx, completion);
        }
        self.collect(cx, done);
        self.submit_backlog(cx, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.queues.flush(cx);
        self.collect(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.closed = true;
        self.queues.close(cx);
        self.remote.give_back(self.qid);
    }
}

fn slot(index: u32) -> usize {
    usize::try_from(index).expect("32 bits fit a usize")
}

/// The blocks of bytes that the caller has aligned; `None` for more than a command can name.
fn range_of(offset: u64, len: usize, block: u64) -> Option<BlockRange> {
    let blocks = u32::try_from(u64::try_from(len).ok()? / block).ok()?;
    BlockRange::new(offset / block, blocks)
}

fn part_of(offset: u64, start: usize, len: usize, block: u64) -> Option<BlockRange> {
    range_of(offset.checked_add(u64::try_from(start).ok()?)?, len, block)
}

fn payload_of(data: Data) -> Option<Payload> {
    match data {
        Data::None => None,
        Data::Read(buf) => {
            let len = buf.len();
            Some(Payload::Buf(buf, 0..len))
        }
        Data::Write(buf) => Some(whole_of(buf)),
    }
}

fn whole_of(buf: SharedBuf) -> Payload {
    let len = buf.len();
    Payload::Shared(buf, 0..len)
}

fn bdev_error(error: CommandError) -> BdevError {
    let CommandError::Status(status) = error else {
        return match error {
            CommandError::UnknownFate => BdevError::Unknown,
            CommandError::NotSent | CommandError::Digest => BdevError::Transient,
            _ => BdevError::Gone,
        };
    };
    let is = |code: Status| status.same_code(code);
    if is(Status::UNRECOVERED_READ_ERROR) {
        BdevError::ReadFault
    } else if is(Status::WRITE_FAULT) {
        BdevError::WriteFault
    } else if is(Status::CAPACITY_EXCEEDED) {
        BdevError::NoSpace
    } else if is(Status::NAMESPACE_WRITE_PROTECTED) {
        BdevError::ReadOnly
    } else if is(Status::INVALID_NAMESPACE) {
        BdevError::Gone
    } else if is(Status::INVALID_OPCODE) {
        BdevError::NotSupported
    } else if is(Status::TRANSIENT_TRANSPORT_ERROR) || is(Status::NAMESPACE_NOT_READY) {
        BdevError::Transient
    } else {
        BdevError::Internal
    }
}
