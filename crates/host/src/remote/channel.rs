//! One core's way to a remote namespace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{BdevError, Channel, Done, Op, Request};
use raceline_proto::host::command;
use raceline_proto::nvme::Status;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_reactor::{
    Completion, Context, IoBuf, Outcome, PartPool, PartedBuf, Payload, SharedBuf, Token,
};

use super::{InjectedKind, Remote, Scope, Slot};
use crate::command::{CommandDone, Data};
use crate::error::CommandError;
use crate::follower::AssociationFollower;
use crate::maps::QueueKind;
use crate::multipath::{PathSet, PathSetEvent};
use crate::split::{Kind, Part, Plan, SplitMemory, SplitOperation};

/// Token indices: the queue, and the timer that looks at the association.
const QUEUE_INDEX: u32 = 0;
const FOLLOW_INDEX: u32 = u32::MAX;
/// A core stops polling for commands of which none has begun or ended for so long: longer than a drive takes for one.
const POLLED_FOR: Duration = Duration::from_millis(20);
/// The timer for requests that wait for an injected error.
const INJECT_INDEX: u32 = u32::MAX - 1;

/// The I/O queues of the association on one core, and the requests on them.
#[derive(Debug)]
pub(super) struct RemoteChannel {
    remote: Arc<Remote>,
    scope: Scope,
    slot: Slot,
    token: Token,
    queues: PathSet,
    follower: AssociationFollower,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// By the positions of their queues. None waits for room on another one.
    lanes: Vec<Lane>,
    routes: Routes,
    /// Commands of the queue for polling that are under way, and whether the core knows that there are some.
    polled: usize,
    is_polling: bool,
    /// When the last of them began or ended.
    polled_at: Instant,
    /// Operations that wait for the error that was injected, and until when.
    delayed: Vec<(Instant, usize)>,
    closed: bool,
}

/// The positions of the queues by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Routes {
    /// The queue for reads; 0, that for everything, if they have none of their own.
    read: usize,
    /// The queue for reads and writes, for which the core polls.
    poll: Option<usize>,
}

/// What waits for one of the queues.
#[derive(Debug)]
struct Lane {
    /// Operations that found no room for all their commands. Only the first has commands on their way.
    backlog: VecDeque<usize>,
    /// For the parts of requests that are more than one command may move.
    parts: PartPool,
}

/// A request and its commands.
#[derive(Debug)]
struct Operation {
    tag: u64,
    /// The position of its queue.
    lane: usize,
    commands: SplitOperation<RequestMemory>,
    /// What it ends with, whatever its commands end with.
    injected: Option<Status>,
}

/// The buffer of a request. A command that moves all of it gets the buffer itself, and others get parts.
///
/// A part is no copy. It shares the memory of the buffer and keeps it alive, because the core's
/// acceleration engines may hold a part for longer than its command lasts.
#[derive(Debug)]
enum RequestMemory {
    None,
    Write(SharedBuf),
    Read(IoBuf),
    /// A read whose buffer is with its only command.
    Given,
    Parted(PartedBuf),
}

/// Why a request cannot be executed, and its memory.
type Refused = (BdevError, RequestMemory);

impl RemoteChannel {
    pub(super) fn open(
        cx: &mut Context<'_>,
        (remote, scope): (Arc<Remote>, Scope),
        slot: Slot,
        owner: u16,
    ) -> Self {
        let token = Token { owner, generation: 0, index: QUEUE_INDEX };
        let state = Arc::clone(remote.admin.state());
        let follower = AssociationFollower::new(state, Token { index: FOLLOW_INDEX, ..token });
        let qids: Vec<u16> =
            std::iter::once(slot.default).chain(slot.read).chain(slot.poll).collect();
        // A command that has ended holds its part until its end is taken.
        let places = 2 * usize::from(remote.config.io_entries);
        let lane = |_: &u16| Lane { backlog: VecDeque::new(), parts: PartPool::new(places) };
        let lanes = qids.iter().map(lane).collect();
        let queues = PathSet::new(cx, &remote.config, qids, token);
        remote.count(queues.counters());
        let mut channel = Self {
            scope,
            slot,
            token,
            queues,
            follower,
            operations: Vec::new(),
            free: Vec::new(),
            lanes,
            routes: Routes::of(slot),
            polled: 0,
            is_polling: false,
            polled_at: cx.now,
            delayed: Vec::new(),
            closed: false,
            remote,
        };
        channel.follower.follow(cx, &mut channel.queues);
        channel
    }

    fn start(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let Request { tag, op } = request;
        let opc = opcode(&op);
        let (plan, memory) = match self.scope.plan(op) {
            Ok(planned) => planned,
            Err((error, memory)) => {
                let payload = memory.into_payload().ok().flatten();
                done.push(Done { tag, result: Err(error), payload });
                return;
            }
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        let injection = self.remote.injections.take(InjectedKind::Io, opc);
        let mut commands = SplitOperation::new(plan, memory);
        let instead = injection.and_then(|it| it.instead);
        if instead.is_some() {
            commands.give_up();
        }
        let injected = injection.map(|it| it.status);
        let lane = self.routes.lane(opc);
        if self.routes.poll == Some(lane) {
            self.polled += 1;
            self.polled_at = cx.now;
        }
        self.operations[index] = Some(Operation { tag, lane, commands, injected });
        match instead {
            None => self.lanes[lane].backlog.push_back(index),
            Some(delay) => self.delay(cx, index, delay),
        }
        self.submit_lane(cx, lane, done);
    }

    /// Lets an operation end after this time.
    #[cold]
    fn delay(&mut self, cx: &mut Context<'_>, index: usize, delay: Duration) {
        let end = cx.now + delay;
        self.delayed.push((end, index));
        cx.io.timer(end, Token { index: INJECT_INDEX, ..self.token });
    }

    /// Ends the operations that have waited for long enough.
    #[cold]
    fn end_delayed(&mut self, now: Instant, done: &mut Vec<Done>) {
        let mut over = Vec::new();
        self.delayed.retain(|&(end, index)| {
            let is_over = end <= now;
            over.extend(is_over.then_some(index));
            !is_over
        });
        over.into_iter().for_each(|index| self.end(index, done));
    }

    /// Submits the commands of the operations that wait, as far as there is room.
    fn submit_backlog(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        for lane in 0..self.lanes.len() {
            self.submit_lane(cx, lane, done);
        }
    }

    /// The same for one of the queues.
    fn submit_lane(&mut self, cx: &mut Context<'_>, lane: usize, done: &mut Vec<Done>) {
        while let Some(&index) = self.lanes[lane].backlog.front() {
            if let Some(Operation { commands, .. }) = &mut self.operations[index] {
                let name = u64::try_from(index).expect("fewer operations than 2^64");
                let queue = (&mut self.queues, lane);
                commands.submit(cx, &self.lanes[lane].parts, queue, name);
                if !commands.is_submitted() {
                    return;
                }
            }
            self.lanes[lane].backlog.pop_front();
            self.end(index, done);
        }
    }

    fn collect(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        while let Some((_, finished)) = self.queues.poll_done() {
            self.handle_done(finished, done);
        }
        while let Some(event) = self.queues.poll_event() {
            if matches!(event, PathSetEvent::Lost { .. }) {
                self.follower.look_soon(cx);
            }
            self.remote.admin.handle_event(event);
        }
    }

    fn handle_done(&mut self, finished: CommandDone, done: &mut Vec<Done>) {
        let Ok(index) = usize::try_from(finished.user) else { return };
        let Some(Some(operation)) = self.operations.get_mut(index) else { return };
        operation.commands.handle_done(finished);
        let backlog = &mut self.lanes[operation.lane].backlog;
        if operation.commands.is_submitted() && backlog.front() == Some(&index) {
            backlog.pop_front(); // a command has failed
        }
        self.end(index, done);
    }

    /// Gives a request back if it is over.
    fn end(&mut self, index: usize, done: &mut Vec<Done>) {
        let place = &mut self.operations[index];
        let Some(over) = place.take_if(|operation| operation.commands.has_ended()) else { return };
        self.free.push(index);
        self.polled -= usize::from(self.routes.poll == Some(over.lane));
        let (result, memory) = over.commands.finish();
        let result = match over.injected {
            None => result.map(drop).map_err(|failure| bdev_error(failure.error)),
            Some(Status::SUCCESS) => Ok(()),
            Some(status) => Err(bdev_error(CommandError::Status(status))),
        };
        let (result, payload) = match memory.into_payload() {
            Ok(payload) => (result, payload),
            Err(error) => (result.and(Err(error)), None),
        };
        done.push(Done { tag: over.tag, result, payload });
    }
}

impl Routes {
    fn of(slot: Slot) -> Self {
        let read = usize::from(slot.read.is_some());
        Self { read, poll: slot.poll.map(|_| read + 1) }
    }

    /// The queue of a command. What may take long, as a flush, or moves no data, is not polled for.
    fn lane(self, opc: u8) -> usize {
        let is_polled = self.poll.is_some() && matches!(opc, io::READ | io::WRITE);
        match (QueueKind::of(opc, is_polled), self.poll) {
            (QueueKind::Poll, Some(poll)) => poll,
            (QueueKind::Read, _) => self.read,
            (QueueKind::Default | QueueKind::Poll, _) => 0,
        }
    }
}

/// The opcode of the commands that a request becomes.
fn opcode(op: &Op) -> u8 {
    match op {
        Op::Read { .. } | Op::ReadPages { .. } => io::READ,
        Op::Write { .. } | Op::WritePages { .. } => io::WRITE,
        Op::Flush => io::FLUSH,
        Op::WriteZeroes { .. } => io::WRITE_ZEROES,
        Op::Deallocate { .. } => io::DATASET_MANAGEMENT,
        // Refused by the plan: they become no commands.
        Op::Copy { .. } => io::COPY,
        Op::Find { .. } => admin::GET_LBA_STATUS,
        Op::WriteUncorrectable { .. } => io::WRITE_UNCORRECTABLE,
    }
}

impl Scope {
    /// The commands that a request is, and the memory that they move.
    fn plan(&self, op: Op) -> Result<(Plan, RequestMemory), Refused> {
        let block_bytes = u64::from(self.limits.block_size);
        let blocks_of =
            |memory: &RequestMemory| self.limits.blocks_of(memory.len()).ok_or(BdevError::Internal);
        let (kind, offset, blocks, memory) = match op {
            // The buffer is as long as the read.
            Op::Read { offset, len: _, buf } => {
                let memory = buf.map_or(RequestMemory::None, RequestMemory::Read);
                (Kind::Read, offset, blocks_of(&memory), memory)
            }
            Op::Write { offset, data, fua } => {
                let memory = RequestMemory::Write(data);
                (Kind::Write { fua }, offset, blocks_of(&memory), memory)
            }
            Op::Flush => (Kind::Flush, 0, Ok(0), RequestMemory::None),
            Op::WriteZeroes { offset, len, deallocate, fua } => {
                let blocks = if self.write_zeroes {
                    Ok(len / block_bytes)
                } else {
                    Err(BdevError::NotSupported)
                };
                (Kind::WriteZeroes { deallocate, fua }, offset, blocks, RequestMemory::None)
            }
            Op::Deallocate { offset, len } => {
                let (ranges, last_range) = ranges(offset / block_bytes, len / block_bytes);
                let last_range = last_range.ok_or((BdevError::Internal, RequestMemory::None))?;
                let memory = RequestMemory::Write(IoBuf::from_slice(&ranges).share());
                (Kind::Deallocate { last_range }, 0, Ok(0), memory)
            }
            Op::ReadPages { .. }
            | Op::WritePages { .. }
            | Op::Copy { .. }
            | Op::Find { .. }
            | Op::WriteUncorrectable { .. } => {
                return Err((BdevError::NotSupported, RequestMemory::None));
            }
        };
        let plan = blocks.and_then(|blocks| {
            let blocks = (offset / block_bytes, blocks);
            Plan::new(kind, self.nsid, blocks, self.limits).ok_or(BdevError::Internal)
        });
        match plan {
            Ok(plan) => Ok((plan, memory)),
            Err(error) => Err((error, memory)),
        }
    }
}

/// The ranges of a Deallocate, and the index of the last. Blocks beyond 256 ranges, 2^40 blocks, are not
/// freed: a Deallocate is a hint.
fn ranges(slba: u64, block_count: u64) -> (Vec<u8>, Option<u8>) {
    let mut ranges = Vec::new();
    let mut last_range = None;
    let (mut slba, mut left) = (slba, block_count);
    for index in 0..=u8::MAX {
        if left == 0 {
            break;
        }
        let count = u32::try_from(left).unwrap_or(u32::MAX);
        ranges.extend(command::deallocate_range(slba, count));
        last_range = Some(index);
        slba += u64::from(count);
        left -= u64::from(count);
    }
    (ranges, last_range)
}

impl SplitMemory for RequestMemory {
    type Room = PartPool;

    fn give(&mut self, parts: &PartPool, part: &Part) -> Option<Data> {
        let all = 0..self.len();
        let range = part.offset..part.offset + part.len;
        match std::mem::replace(self, Self::None) {
            Self::Write(buf) => {
                let given = if range == all { Some(buf.clone()) } else { parts.share(&buf, range) };
                *self = Self::Write(buf);
                given.map(Data::Write)
            }
            Self::Read(buf) if range == all => {
                *self = Self::Given;
                Some(Data::Read(buf))
            }
            Self::Read(buf) => self.give_part(PartedBuf::new(buf), parts, part.len),
            Self::Parted(buf) => self.give_part(buf, parts, part.len),
            Self::None | Self::Given => unreachable!("a command moves what the request has"),
        }
    }

    fn take_back(&mut self, data: Data) {
        if let (Self::Given, Data::Read(buf)) = (&*self, data) {
            *self = Self::Read(buf);
        }
    }
}

impl RequestMemory {
    fn len(&self) -> usize {
        match self {
            Self::None | Self::Given => 0,
            Self::Write(buf) => buf.len(),
            Self::Read(buf) => buf.len(),
            Self::Parted(buf) => buf.len(),
        }
    }

    fn give_part(&mut self, mut buf: PartedBuf, parts: &PartPool, len: usize) -> Option<Data> {
        let given = buf.give(parts, len);
        *self = Self::Parted(buf);
        given.map(Data::Read)
    }

    /// What the request gets back; an error when an engine that hangs has kept a part of what was read.
    fn into_payload(self) -> Result<Option<Payload>, BdevError> {
        let buf = match self {
            Self::None | Self::Given => return Ok(None),
            Self::Write(buf) => {
                let len = buf.len();
                return Ok(Some(Payload::Shared(buf, 0..len)));
            }
            Self::Read(buf) => buf,
            Self::Parted(buf) => buf.try_join().map_err(|_| BdevError::Transient)?,
        };
        let len = buf.len();
        Ok(Some(Payload::Buf(buf, 0..len)))
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
        } else if completion.token.index == INJECT_INDEX {
            self.end_delayed(cx.now, done);
        } else {
            self.queues.handle_completion(cx, completion);
        }
        self.collect(cx, done);
        self.submit_backlog(cx, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.queues.flush(cx);
        let before = (self.polled, done.len());
        self.collect(cx, done);
        if before != (self.polled, done.len()) {
            self.polled_at = cx.now;
        }
        // A controller that is lost, or that has no path, may answer nothing for long, and timers go on.
        let is_polled = self.polled > 0 && cx.now.duration_since(self.polled_at) < POLLED_FOR;
        cx.io.flight().poll_for(&mut self.is_polling, is_polled);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.closed = true;
        cx.io.flight().poll_for(&mut self.is_polling, false);
        self.queues.close(cx);
        self.remote.count_closed(self.queues.counters());
        self.remote.give_back(self.slot);
    }
}

fn bdev_error(error: CommandError) -> BdevError {
    let CommandError::Status(status) = error else {
        return match error {
            CommandError::UnknownFate => BdevError::Unknown,
            CommandError::NotSent | CommandError::Digest | CommandError::NoPath => {
                BdevError::Transient
            }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use raceline_proto::nvme::NamespaceId;

    use super::*;
    use crate::split::Limits;

    const SCOPE: Scope = Scope {
        nsid: NamespaceId(1),
        limits: Limits { block_size: 512, max_transfer_bytes: 2048 },
        write_zeroes: true,
    };

    #[test]
    fn commands_find_their_queue_among_those_that_the_channel_has() {
        let lanes = |read: bool, poll: bool| {
            let slot = Slot { default: 1, read: read.then_some(7), poll: poll.then_some(9) };
            let routes = Routes::of(slot);
            [io::READ, io::WRITE, io::FLUSH, io::WRITE_ZEROES].map(|opc| routes.lane(opc))
        };
        assert_eq!(lanes(false, false), [0, 0, 0, 0]);
        assert_eq!(lanes(true, false), [1, 0, 0, 0]);
        assert_eq!(lanes(false, true), [1, 1, 0, 0]);
        assert_eq!(lanes(true, true), [2, 2, 0, 0]);
    }

    fn read(offset: u64, len: usize) -> Op {
        Op::Read { offset, len, buf: Some(IoBuf::heap(len)) }
    }

    #[test]
    fn one_command_gets_the_buffer_itself_and_several_get_parts() {
        let pool = PartPool::new(3);
        let (mut plan, mut memory) = SCOPE.plan(read(512, 2048)).unwrap();
        let part = plan.next().unwrap();
        let Some(Data::Read(buf)) = memory.give(&pool, &part) else { panic!("no buffer") };
        assert!(plan.is_done() && buf.capacity() > 2048 && pool.available() == 3);
        memory.take_back(Data::Read(buf));
        assert!(
            matches!(memory.into_payload(), Ok(Some(Payload::Buf(_, range))) if range == (0..2048))
        );

        let (plan, mut memory) = SCOPE.plan(read(512, 5120)).unwrap();
        let given: Vec<Data> = plan.map(|part| memory.give(&pool, &part).unwrap()).collect();
        let lens: Vec<usize> = given.iter().map(Data::len).collect();
        assert_eq!((lens, pool.available()), (vec![2048, 2048, 1024], 0));
        for (fill, data) in (1u8..).zip(given) {
            let Data::Read(mut buf) = data else { panic!("no read") };
            buf.fill(fill);
            memory.take_back(Data::Read(buf));
        }
        let Ok(Some(Payload::Buf(buf, range))) = memory.into_payload() else { panic!("no data") };
        assert_eq!((range, pool.available()), (0..5120, 3));
        let last_of_each = [2047, 4095, 5119].map(|index| buf[index]);
        assert_eq!(last_of_each, [1, 2, 3]);
    }

    #[test]
    fn parts_wait_for_places_and_a_part_that_stays_away_is_an_error() {
        let pool = PartPool::new(1);
        let (mut plan, mut memory) = SCOPE.plan(read(0, 4096)).unwrap();
        let kept = memory.give(&pool, &plan.next().unwrap()).unwrap();
        assert!(memory.give(&pool, &plan.next().unwrap()).is_none());
        assert_eq!(memory.into_payload().unwrap_err(), BdevError::Transient);
        assert_eq!((kept.len(), pool.available()), (2048, 0));
        drop(kept);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn what_is_written_comes_back() {
        let pool = PartPool::new(2);
        let data = IoBuf::heap(4096).share();
        let op = Op::Write { offset: 0, data: data.clone(), fua: true };
        let (plan, mut memory) = SCOPE.plan(op).unwrap();
        for part in plan {
            let data = memory.give(&pool, &part).unwrap();
            assert!(matches!(&data, Data::Write(buf) if buf.len() == 2048));
            memory.take_back(data);
        }
        let Ok(Some(Payload::Shared(back, _))) = memory.into_payload() else { panic!("no data") };
        assert_eq!((back.as_ptr(), pool.available()), (data.as_ptr(), 2));
    }

    #[test]
    fn what_no_command_can_carry_is_refused_with_its_memory() {
        for (op, len) in [
            (read(0, 100), Some(100)),
            (Op::Read { offset: 0, len: 512, buf: None }, None),
            (Op::Write { offset: 0, data: IoBuf::heap(0).share(), fua: false }, Some(0)),
            (Op::Deallocate { offset: 0, len: 0 }, None),
        ] {
            let (error, memory) = SCOPE.plan(op).unwrap_err();
            assert_eq!(error, BdevError::Internal);
            assert_eq!(memory.into_payload().unwrap().map(|payload| payload.len()), len);
        }
        let scope = Scope { write_zeroes: false, ..SCOPE };
        let zero = Op::WriteZeroes { offset: 0, len: 512, deallocate: true, fua: false };
        assert_eq!(scope.plan(zero).unwrap_err().0, BdevError::NotSupported);
    }

    proptest! {
        #[test]
        fn ranges_cover_the_blocks_once_and_in_order(
            slba in 0..1u64 << 50,
            block_count in prop_oneof![0..10u64, 0..1u64 << 45],
        ) {
            let (bytes, last_range) = ranges(slba, block_count);
            let mut next = slba;
            for range in bytes.chunks(command::DEALLOCATE_RANGE_LEN) {
                let count = u32::from_le_bytes(range[4..8].try_into().unwrap());
                prop_assert!(count > 0);
                prop_assert_eq!(range, command::deallocate_range(next, count));
                next += u64::from(count);
            }
            let most = 256 * u64::from(u32::MAX);
            prop_assert_eq!(next - slba, block_count.min(most));
            let count = bytes.len() / command::DEALLOCATE_RANGE_LEN;
            prop_assert_eq!(last_range.map_or(0, |last| usize::from(last) + 1), count);
        }
    }
}
