//! One core's way to a file or block device: requests become operations, completions answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raceline_reactor::io::{AllocateMode, FileCall, FileId};
use raceline_reactor::send::Payload;
use raceline_reactor::ublk::UblkMove;
use raceline_reactor::{Completion, Context, IoBuf, Outcome, SharedBuf, Token};

use crate::disk::Shared;
use crate::extent::{Sought, encode};
use crate::fault::Era;
use crate::slots::{Key, Slots};
use crate::{BdevError, Channel, Done, Op, Request};

/// How many operations a channel can have in flight before it allocates.
const EXPECTED_DEPTH: usize = 1024;

/// How many flushes can wait before a channel allocates.
const EXPECTED_FLUSHES: usize = 64;

/// How often an operation is started again when the kernel was short of something for a moment.
const RETRY_LIMIT: u8 = 4;

/// The largest range given to one fallocate(2): a longer one is a chain, so that no system call
/// takes minutes on a device that must write zeroes itself.
const ALLOCATE_PIECE_BYTES: u64 = 1 << 30;

/// The largest piece of zeroes written where fallocate(2) cannot zero.
const ZERO_PIECE_BYTES: usize = 128 << 10;

/// One core's operations on one open file.
pub(crate) struct DiskChannel {
    shared: Arc<Shared>,
    file: FileId,
    /// When `file` was opened.
    era: Era,
    owner: u16,
    operations: Slots<Operation>,
    syncs: Syncs,
    /// Written where zeroes must be written; made when first needed.
    zeroes: Option<SharedBuf>,
}

/// An operation in flight, and what to do when it completes.
#[derive(Debug)]
enum Operation {
    Read { tag: u64, offset: u64, retries: u8 },
    Write(Writing),
    Move(Moving),
    Sync(Era),
    Zero(Zeroing),
    Copy { tag: u64, durable: bool },
    Find { tag: u64 },
}

/// A write in flight.
#[derive(Clone, Copy, Debug)]
struct Writing {
    tag: u64,
    offset: u64,
    /// When a durable write was started.
    durable: Option<Era>,
    retries: u8,
}

/// A read or write whose data are in pages of the kernel.
#[derive(Clone, Copy, Debug)]
struct Moving {
    tag: u64,
    what: UblkMove,
    /// When a durable write was started.
    durable: Option<Era>,
    retries: u8,
}

/// A range being zeroed or released, piece by piece.
#[derive(Debug)]
struct Zeroing {
    tag: u64,
    /// The part not yet done, with the piece in flight at its front.
    offset: u64,
    len: u64,
    /// Length of the piece in flight.
    piece: u64,
    method: Method,
    goal: Goal,
}

/// How a range is zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Allocate(AllocateMode),
    WriteZeroes,
}

/// What the request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Zero { durable: bool },
    Release,
}

/// Requests that wait for fdatasync: those that the running one covers, and those that it may not cover.
#[derive(Debug)]
struct Syncs {
    running: Vec<u64>,
    waiting: Vec<u64>,
}

impl DiskChannel {
    pub(crate) fn open(shared: Arc<Shared>, cx: &mut Context<'_>, owner: u16) -> io::Result<Self> {
        let era = shared.fault.era();
        let file = shared.register(cx)?;
        Ok(Self {
            shared,
            file,
            era,
            owner,
            operations: Slots::with_capacity(EXPECTED_DEPTH),
            syncs: Syncs {
                running: Vec::with_capacity(EXPECTED_FLUSHES),
                waiting: Vec::with_capacity(EXPECTED_FLUSHES),
            },
            zeroes: None,
        })
    }

    /// Makes sure that a success from now on is one: no failure is remembered, and none from
    /// before the last reset will be reported. Opening takes microseconds, once per reset.
    fn prepare_durable(&mut self, cx: &mut Context<'_>) -> Result<Era, BdevError> {
        if self.shared.fault.is_set() {
            return Err(BdevError::WriteFault);
        }
        let era = self.shared.fault.era();
        if era != self.era {
            let file = self.shared.register(cx).map_err(|error| {
                tracing::error!("{}: cannot be opened again: {error}", self.shared.info.name);
                BdevError::WriteFault
            })?;
            cx.io.close_file(self.file); // once what is in flight has completed
            self.file = file;
            self.era = era;
        }
        Ok(era)
    }

    fn token(&mut self, operation: Operation) -> Token {
        let Key { index, generation } = self.operations.insert(operation);
        Token { owner: self.owner, generation, index }
    }

    fn start_read(&mut self, cx: &mut Context<'_>, tag: u64, offset: u64, buf: IoBuf, retries: u8) {
        let token = self.token(Operation::Read { tag, offset, retries });
        cx.io.read(self.file, buf, offset, token);
    }

    fn start_write(&mut self, cx: &mut Context<'_>, data: SharedBuf, writing: Writing) {
        let token = self.token(Operation::Write(writing));
        cx.io.write(self.file, data, writing.offset, writing.durable.is_some(), token);
    }

    fn start_durable_write(
        &mut self,
        cx: &mut Context<'_>,
        data: SharedBuf,
        (tag, offset): (u64, u64),
        done: &mut Vec<Done>,
    ) {
        match self.prepare_durable(cx) {
            Ok(era) => {
                self.start_write(cx, data, Writing { tag, offset, durable: Some(era), retries: 0 });
            }
            Err(error) => done.push(returned(tag, Err(error), data)),
        }
    }

    fn start_move(&mut self, cx: &mut Context<'_>, moving: Moving) {
        let token = self.token(Operation::Move(moving));
        cx.io.move_ublk(self.file, moving.what, token);
    }

    /// Starts a request whose data are in pages of the kernel.
    fn submit_pages(&mut self, cx: &mut Context<'_>, tag: u64, op: &Op, done: &mut Vec<Done>) {
        let (what, refused) = match *op {
            Op::ReadPages { offset, len, tag } => (pages(tag, (offset, len), false, false), None),
            Op::WritePages { offset, len, tag, fua } => {
                let refused = self.shared.info.read_only.then_some(BdevError::ReadOnly);
                (pages(tag, (offset, len), true, fua), refused)
            }
            _ => (None, None),
        };
        let Some(what) = what.filter(|_| self.shared.generic.is_none()) else {
            return done.push(finished(tag, Err(BdevError::NotSupported)));
        };
        if let Some(error) = refused {
            return done.push(finished(tag, Err(error)));
        }
        let durable = match what.durable.then(|| self.prepare_durable(cx)).transpose() {
            Ok(durable) => durable,
            Err(error) => return done.push(finished(tag, Err(error))),
        };
        self.start_move(cx, Moving { tag, what, durable, retries: 0 });
    }

    fn handle_moved(
        &mut self,
        cx: &mut Context<'_>,
        moving: Moving,
        result: io::Result<()>,
        done: &mut Vec<Done>,
    ) {
        let Moving { tag, what, durable, retries } = moving;
        let result = match result {
            // No fault of the medium: nothing durable was promised, and the caller does the whole again.
            Err(error) if refuses_pages(&error) => {
                tracing::debug!("{}: {what:?}: {error}", self.shared.info.name);
                return done.push(finished(tag, Err(BdevError::NotSupported)));
            }
            result => {
                let fault = if what.writes { BdevError::WriteFault } else { BdevError::ReadFault };
                result.map_err(|error| self.shared.device_error(&error, fault))
            }
        };
        if result == Err(BdevError::Transient) && retries < RETRY_LIMIT {
            return self.start_move(cx, Moving { retries: retries + 1, ..moving });
        }
        let result = match durable {
            Some(era) => self.shared.durable_result(result, false, era),
            None => result,
        };
        done.push(finished(tag, result));
    }

    /// Completes `tag` after an fdatasync that starts from now on.
    fn join_sync(&mut self, cx: &mut Context<'_>, tag: u64, done: &mut Vec<Done>) {
        match self.prepare_durable(cx) {
            Err(error) => done.push(finished(tag, Err(error))),
            Ok(_) if !self.syncs.running.is_empty() => self.syncs.waiting.push(tag),
            Ok(_) => {
                self.syncs.running.push(tag);
                self.start_sync(cx);
            }
        }
    }

    fn start_sync(&mut self, cx: &mut Context<'_>) {
        let token = self.token(Operation::Sync(self.era));
        cx.io.sync(self.file, token);
    }

    fn handle_synced(
        &mut self,
        cx: &mut Context<'_>,
        era: Era,
        result: io::Result<()>,
        done: &mut Vec<Done>,
    ) {
        let result = result.map_err(|e| self.shared.device_error(&e, BdevError::WriteFault));
        let result = self.shared.durable_result(result, true, era);
        done.extend(self.syncs.running.drain(..).map(|tag| finished(tag, result)));
        if self.syncs.waiting.is_empty() {
            return;
        }
        match self.prepare_durable(cx) {
            Ok(_) => {
                std::mem::swap(&mut self.syncs.running, &mut self.syncs.waiting);
                self.start_sync(cx);
            }
            Err(error) => {
                done.extend(self.syncs.waiting.drain(..).map(|tag| finished(tag, Err(error))));
            }
        }
    }

    /// The best way to zero or release that is not known to fail; `None` to leave a range that
    /// is only to be released as it is.
    fn method(&self, goal: Goal, may_release: bool) -> Option<Method> {
        let works = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if goal == Goal::Release {
            self.shared.release_mode().map(Method::Allocate)
        } else if may_release && works(&self.shared.punch_hole) {
            Some(Method::Allocate(AllocateMode::PunchHole))
        } else if works(&self.shared.zero_range) {
            Some(Method::Allocate(AllocateMode::ZeroRange))
        } else {
            Some(Method::WriteZeroes)
        }
    }

    /// Starts the next piece, or finishes.
    fn continue_zeroing(
        &mut self,
        cx: &mut Context<'_>,
        mut zeroing: Zeroing,
        done: &mut Vec<Done>,
    ) {
        if zeroing.len == 0 {
            return match zeroing.goal {
                Goal::Zero { durable: true } => self.join_sync(cx, zeroing.tag, done),
                _ => done.push(finished(zeroing.tag, Ok(()))),
            };
        }
        let offset = zeroing.offset;
        match zeroing.method {
            Method::Allocate(mode) => {
                let piece = zeroing.len.min(ALLOCATE_PIECE_BYTES);
                zeroing.piece = piece;
                let token = self.token(Operation::Zero(zeroing));
                cx.io.allocate(self.file, mode, offset, piece, token);
            }
            Method::WriteZeroes => {
                let data = self.zeroes(zeroing.len);
                zeroing.piece = data.len() as u64;
                let token = self.token(Operation::Zero(zeroing));
                cx.io.write(self.file, data, offset, false, token);
            }
        }
    }

    /// Zeroes for at most one piece. They are outside the pool, whose buffers commands wait for.
    fn zeroes(&mut self, len: u64) -> SharedBuf {
        match usize::try_from(len) {
            Ok(len) if len < ZERO_PIECE_BYTES => IoBuf::heap(len).share(),
            _ => self.zeroes.get_or_insert_with(|| IoBuf::heap(ZERO_PIECE_BYTES).share()).clone(),
        }
    }

    fn handle_zeroed(
        &mut self,
        cx: &mut Context<'_>,
        mut zeroing: Zeroing,
        result: io::Result<()>,
        done: &mut Vec<Done>,
    ) {
        let error = match result {
            Ok(()) => {
                zeroing.offset += zeroing.piece;
                zeroing.len -= zeroing.piece;
                return self.continue_zeroing(cx, zeroing, done);
            }
            Err(error) => self.shared.device_error(&error, BdevError::WriteFault),
        };
        // A file system or device says only when asked what it cannot do.
        if let (Method::Allocate(mode), BdevError::NotSupported) = (zeroing.method, error) {
            match mode {
                AllocateMode::PunchHole => self.shared.punch_hole.store(false, Ordering::Relaxed),
                AllocateMode::Release => self.shared.release.store(false, Ordering::Relaxed),
                AllocateMode::ZeroRange => self.shared.zero_range.store(false, Ordering::Relaxed),
            }
            match self.method(zeroing.goal, false) {
                Some(method) => zeroing.method = method,
                // Releasing is advice: what cannot be released keeps its data.
                None => zeroing.len = 0,
            }
            return self.continue_zeroing(cx, zeroing, done);
        }
        done.push(finished(zeroing.tag, Err(error)));
    }

    fn start_copy(
        &mut self,
        cx: &mut Context<'_>,
        tag: u64,
        (from, to, len): (u64, u64, u64),
        durable: bool,
    ) {
        let token = self.token(Operation::Copy { tag, durable });
        cx.io.call_file(self.file, Box::new(FileCall::Copy { from, to, len }), token);
    }

    fn handle_copied(
        &mut self,
        cx: &mut Context<'_>,
        (tag, durable): (u64, bool),
        result: io::Result<()>,
        done: &mut Vec<Done>,
    ) {
        let error = match result {
            Ok(()) if durable => return self.join_sync(cx, tag, done),
            Ok(()) => return done.push(finished(tag, Ok(()))),
            Err(error) => error,
        };
        if never_copies(&error) && self.shared.copies.swap(false, Ordering::Relaxed) {
            let name = &self.shared.info.name;
            tracing::info!(
                %error,
                "{name}: its file system does not copy within a file; Copy reads and writes"
            );
        }
        // What reads and writes instead learns which of the two fails.
        let error = match self.shared.device_error(&error, BdevError::NotSupported) {
            error @ (BdevError::NoSpace | BdevError::Gone | BdevError::ReadOnly) => error,
            _ => BdevError::NotSupported,
        };
        done.push(finished(tag, Err(error)));
    }

    fn handle_found(
        &mut self,
        tag: u64,
        result: io::Result<()>,
        call: FileCall,
        done: &mut Vec<Done>,
    ) {
        let result = result.map_err(|error| self.shared.device_error(&error, BdevError::ReadFault));
        let payload = match call {
            FileCall::FindData { found, .. } => Some(encode(&found)),
            FileCall::Copy { .. } => None,
        };
        done.push(Done { tag, result, payload });
    }

    fn handle_read(
        &mut self,
        cx: &mut Context<'_>,
        (tag, offset, retries): (u64, u64, u8),
        result: io::Result<()>,
        buf: IoBuf,
        done: &mut Vec<Done>,
    ) {
        let result = result.map_err(|error| self.shared.device_error(&error, BdevError::ReadFault));
        if result == Err(BdevError::Transient) && retries < RETRY_LIMIT {
            return self.start_read(cx, tag, offset, buf, retries + 1);
        }
        let len = buf.len();
        done.push(Done { tag, result, payload: Some(Payload::Buf(buf, 0..len)) });
    }

    fn handle_written(
        &mut self,
        cx: &mut Context<'_>,
        writing: Writing,
        result: io::Result<()>,
        data: SharedBuf,
        done: &mut Vec<Done>,
    ) {
        let result =
            result.map_err(|error| self.shared.device_error(&error, BdevError::WriteFault));
        if result == Err(BdevError::Transient) && writing.retries < RETRY_LIMIT {
            let retries = writing.retries + 1;
            return self.start_write(cx, data, Writing { retries, ..writing });
        }
        let result = match writing.durable {
            Some(era) => self.shared.durable_result(result, false, era),
            None => result,
        };
        done.push(returned(writing.tag, result, data));
    }
}

/// A move between the file and the pages of a request; `None` for a length that no request has.
fn pages(tag: u16, (offset, len): (u64, usize), writes: bool, durable: bool) -> Option<UblkMove> {
    let len = u32::try_from(len).ok().filter(|len| *len > 0)?;
    Some(UblkMove { tag, writes, durable, offset, len })
}

/// Whether an error says that the kernel does not move data between this file and these pages: how they lie, or the
/// file system, forbids it (EINVAL, EOPNOTSUPP), or they are not registered (EFAULT). EINVAL is said before anything is
/// written; of a move that is cut short, the rest is.
fn refuses_pages(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(errno) => matches!(errno, libc::EINVAL | libc::EFAULT | libc::EOPNOTSUPP),
        None => matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported),
    }
}

/// Whether an error of copy_file_range(2) says that the file system copies no ranges within this file. Other errors are
/// those of one request: as of ranges that overlap or that the file system cannot share or copy (EINVAL).
fn never_copies(error: &io::Error) -> bool {
    // EOPNOTSUPP and ENOSYS; EXDEV.
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::CrossesDevices)
}

impl Channel for DiskChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let Request { tag, op } = request;
        let read_only = self.shared.info.read_only;
        match op {
            Op::Read { offset, len, buf: Some(mut buf) } => {
                buf.set_len(len);
                self.start_read(cx, tag, offset, buf, 0);
            }
            Op::Read { buf: None, .. } => {
                done.push(finished(tag, Err(BdevError::Internal))); // not `reads_in_place`
            }
            Op::Write { data, .. } if read_only => {
                done.push(returned(tag, Err(BdevError::ReadOnly), data));
            }
            Op::Write { offset, data, fua: true } => {
                self.start_durable_write(cx, data, (tag, offset), done);
            }
            Op::Write { offset, data, fua: false } => {
                self.start_write(cx, data, Writing { tag, offset, durable: None, retries: 0 });
            }
            Op::ReadPages { .. } | Op::WritePages { .. } => self.submit_pages(cx, tag, &op, done),
            Op::Flush if read_only => done.push(finished(tag, Ok(()))),
            Op::Flush => self.join_sync(cx, tag, done),
            Op::WriteZeroes { .. } | Op::Deallocate { .. } | Op::Copy { .. } if read_only => {
                done.push(finished(tag, Err(BdevError::ReadOnly)));
            }
            Op::WriteZeroes { fua: true, .. } | Op::Copy { fua: true, .. }
                if self.shared.fault.is_set() =>
            {
                done.push(finished(tag, Err(BdevError::WriteFault)));
            }
            Op::WriteZeroes { offset, len, deallocate, fua } => {
                let goal = Goal::Zero { durable: fua };
                let method = self.method(goal, deallocate).unwrap_or(Method::WriteZeroes);
                let zeroing = Zeroing { tag, offset, len, piece: 0, method, goal };
                self.continue_zeroing(cx, zeroing, done);
            }
            Op::Deallocate { offset, len } => match self.method(Goal::Release, true) {
                None => done.push(finished(tag, Err(BdevError::NotSupported))),
                Some(method) => {
                    let goal = Goal::Release;
                    let zeroing = Zeroing { tag, offset, len, piece: 0, method, goal };
                    self.continue_zeroing(cx, zeroing, done);
                }
            },
            Op::Copy { from, to, len, fua } if self.shared.copies.load(Ordering::Relaxed) => {
                self.start_copy(cx, tag, (from, to, len), fua);
            }
            Op::Find { sought: Sought::Data, offset, len, most }
                if self.shared.info.knows_holes =>
            {
                let token = self.token(Operation::Find { tag });
                let call =
                    FileCall::FindData { range: offset..offset + len, most, found: Vec::new() };
                cx.io.call_file(self.file, Box::new(call), token);
            }
            Op::Copy { .. } | Op::Find { .. } | Op::WriteUncorrectable { .. } => {
                done.push(finished(tag, Err(BdevError::NotSupported)));
            }
        }
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let Token { index, generation, .. } = completion.token;
        let Some(operation) = self.operations.remove(Key { index, generation }) else {
            debug_assert!(false, "a completion for no operation: {completion:?}");
            return;
        };
        match (operation, completion.outcome) {
            (Operation::Read { tag, offset, retries }, Outcome::Read(result, buf)) => {
                self.handle_read(cx, (tag, offset, retries), result, buf, done);
            }
            (Operation::Write(writing), Outcome::Written(result, data)) => {
                self.handle_written(cx, writing, result, data, done);
            }
            (Operation::Move(moving), Outcome::Synced(result)) => {
                self.handle_moved(cx, moving, result, done);
            }
            (Operation::Sync(era), Outcome::Synced(result)) => {
                self.handle_synced(cx, era, result, done);
            }
            (Operation::Zero(zeroing), Outcome::Synced(result) | Outcome::Written(result, _)) => {
                self.handle_zeroed(cx, zeroing, result, done);
            }
            (Operation::Copy { tag, durable }, Outcome::Called(result, _)) => {
                self.handle_copied(cx, (tag, durable), result, done);
            }
            (Operation::Find { tag }, Outcome::Called(result, call)) => {
                self.handle_found(tag, result, *call, done);
            }
            (operation, outcome) => unreachable!("{operation:?} completed as {outcome:?}"),
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        debug_assert!(self.operations.is_empty(), "closed with operations in flight");
        cx.io.close_file(self.file);
    }
}

/// The end of a request without data.
const fn finished(tag: u64, result: Result<(), BdevError>) -> Done {
    Done { tag, result, payload: None }
}

/// The end of a write, whose buffer goes back.
fn returned(tag: u64, result: Result<(), BdevError>, data: SharedBuf) -> Done {
    let len = data.len();
    Done { tag, result, payload: Some(Payload::Shared(data, 0..len)) }
}
