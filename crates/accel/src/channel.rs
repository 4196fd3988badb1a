//! One core's way to all engines: submit, kick, poll.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::copier::Copier;
use crate::engine::EngineQueue;
use crate::flights::{Flight, Flights};
use crate::inject::InjectionKind;
use crate::memory::{Piece, PieceMut, Source, Target, Upcoming};
use crate::operation::{AccelError, OpCode, Output};
use crate::queued::Queue;
use crate::software::Software;
use crate::stats::Counters;
use crate::table::Shared;
use crate::work::{Done, Pieces, Progress, Work};

/// How a channel is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Most operations that engines have at a time. The software engine needs no slot.
    pub slots: usize,
    /// How long an engine may take for one operation before that is given up. [`Channel::poll`] notices
    /// it up to an eighth of this later.
    pub timeout: Duration,
    /// The CPU that will use it, if it is known: engines near to it are preferred.
    pub cpu: Option<usize>,
}

impl Default for ChannelConfig {
    fn default() -> ChannelConfig {
        ChannelConfig { slots: 1024, timeout: Duration::from_secs(2), cpu: None }
    }
}

/// What became of an operation that was submitted.
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation per operation")]
pub enum Submitted<S, T> {
    /// It is complete: the software engine does everything at once.
    Done(Done<S, T>),
    /// An engine has it; [`Channel::poll`] will give it back.
    Pending,
    /// There is no slot for it: to be submitted again after [`Channel::poll`] gave something.
    Full(Work<S, T>),
}

/// One core's way to all engines.
///
/// Operations come back in any order. Dropping a channel waits, at most for its timeout, for the
/// operations in flight; they are not reported. Memory that an engine then still owns and will
/// not give back is never freed.
pub struct Channel<S: Source, T: Target> {
    /// By [`OpCode::index`]: which queue, or software.
    routes: [Option<usize>; OpCode::COUNT],
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) software: Software,
    pub(crate) pieces: Pieces,
    pub(crate) queues: Vec<Queue>,
    pub(crate) flights: Flights<S, T>,
    pub(crate) timeout: Duration,
    /// When [`Channel::poll`] looks at deadlines next.
    pub(crate) next_check: Option<Instant>,
}

impl<S: Source, T: Target> Channel<S, T> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        counters: Arc<Counters>,
        software: Software,
        routes: [Option<usize>; OpCode::COUNT],
        queues: Vec<(&'static str, Box<dyn EngineQueue>)>,
        config: &ChannelConfig,
    ) -> Channel<S, T> {
        // Without engines nothing waits, and no slot is needed.
        let slots = if queues.is_empty() { 0 } else { config.slots };
        let queues = queues.into_iter().map(|(name, queue)| Queue::new(name, queue, slots));
        Channel {
            routes,
            shared,
            counters,
            software,
            pieces: Pieces::default(),
            queues: queues.collect(),
            flights: Flights::new(slots),
            timeout: config.timeout,
            next_check: None,
        }
    }

    /// Starts an operation. `token` comes back with it.
    ///
    /// Errors of the operation, also wrong operands, are its completion.
    #[inline(always)]
    pub fn submit(&mut self, token: u64, mut work: Work<S, T>) -> Submitted<S, T> {
        let code = work.operation().code();
        if self.routes[code.index()].is_none()
            && !self.shared.injections.is_active(code)
            && let Some((output, bytes)) = self.software.execute_simple(&mut work)
        {
            self.counters.operations[code.index()].succeeded(bytes);
            return Submitted::Done(Done { token, result: Ok(output), work: Some(work) });
        }
        self.submit_any(token, work)
    }

    /// Starts an operation that [`Self::submit`] does not do by itself.
    #[inline(never)]
    fn submit_any(&mut self, token: u64, work: Work<S, T>) -> Submitted<S, T> {
        match self.routes[work.operation().code().index()] {
            None => Submitted::Done(self.run(token, work, Progress::default(), false)),
            Some(queue) => self.submit_to(queue, token, work),
        }
    }

    /// Does an operation now, in software, whatever the table says.
    pub fn submit_now(&mut self, token: u64, work: Work<S, T>) -> Done<S, T> {
        self.run(token, work, Progress::default(), true)
    }

    /// The CRC32C of bytes that need no owner, because it is computed now, in software. Counted, and
    /// subject to error injection, like any other crc32c.
    ///
    /// # Errors
    /// [`AccelError::Injected`].
    #[inline]
    pub fn crc32c_now(&mut self, bytes: &[u8]) -> Result<u32, AccelError> {
        let crc = self.software.crc32c_of(bytes);
        self.count_now(OpCode::Crc32c, crc, bytes.len())
    }

    /// Copies `source` to `target`, which is of the same length, now and in software, and gives the
    /// CRC32C of the bytes in `target`, whatever happens to those of `source` meanwhile. As
    /// [`Self::submit`] of a copy_crc32c, but the operands stay where they are: moving them there and
    /// back costs more than the digest of a few hundred bytes. Lines of `upcoming` are on their way to
    /// the cache afterwards.
    ///
    /// # Errors
    /// [`AccelError::Lengths`], [`AccelError::Injected`].
    #[inline]
    pub fn copy_crc32c_now(
        &mut self,
        source: &S,
        target: &mut T,
        upcoming: Option<Upcoming>,
    ) -> Result<u32, AccelError> {
        let code = OpCode::CopyCrc32c;
        let copied = self.pieces.of_copy(code, source, target).map(|(source, target, len)| {
            (self.software.copier.copy_crc32c(0, source, target, upcoming), len)
        });
        match copied {
            Ok((crc, len)) => self.count_now(code, crc, len),
            Err(error) => {
                self.counters.operations[code.index()].failed.add(1);
                Err(error)
            }
        }
    }

    /// As [`Self::copy_crc32c_now`], for bytes that nothing else writes.
    ///
    /// # Errors
    /// As [`Self::copy_crc32c_now`].
    #[inline]
    pub fn copy_bytes_crc32c_now(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        upcoming: Option<Upcoming>,
    ) -> Result<u32, AccelError> {
        let (code, len) = (OpCode::CopyCrc32c, from.len());
        if len != to.len() {
            self.counters.operations[code.index()].failed.add(1);
            return Err(AccelError::Lengths { operation: code, first: len, second: to.len() });
        }
        let (from, to) = (Piece::new(from.as_ptr(), len), PieceMut::new(to.as_mut_ptr(), len));
        let crc = self.software.copier.copy_crc32c(0, &[from], &[to], upcoming);
        self.count_now(code, crc, len)
    }

    /// How to copy and digest part by part, if only the CPU does that here, and no errors are injected.
    #[inline]
    #[must_use]
    pub fn copier(&self) -> Option<Copier> {
        let code = OpCode::CopyCrc32c;
        let free = self.is_immediate(code) && !self.shared.injections.is_active(code);
        free.then_some(self.software.copier)
    }

    /// Counts a copy_crc32c of `bytes` bytes that [`Self::copier`] does.
    #[inline]
    pub fn count_copied(&self, bytes: usize) {
        self.counters.operations[OpCode::CopyCrc32c.index()].succeeded(bytes);
    }

    /// Counts a digest that was computed at once, and applies error injection.
    #[inline]
    fn count_now(&self, code: OpCode, crc: u32, bytes: usize) -> Result<u32, AccelError> {
        let injection = self.shared.injections.next(code);
        let counters = &self.counters.operations[code.index()];
        if injection == Some(InjectionKind::Fail) {
            counters.failed.add(1);
            return Err(AccelError::Injected);
        }
        counters.succeeded(bytes);
        Ok(if injection == Some(InjectionKind::Corrupt) { !crc } else { crc })
    }

    /// Tells devices about what was submitted: once after a batch of submissions.
    #[inline]
    pub fn kick(&mut self) {
        self.queues.iter_mut().for_each(Queue::kick);
    }

    /// Collects what is complete, in any order, and gives up on what takes too long.
    ///
    /// It appends at most one entry for each operation in flight.
    #[inline]
    pub fn poll(&mut self, now: Instant, done: &mut Vec<Done<S, T>>) {
        if self.is_busy() {
            self.poll_queues(done);
            self.check_deadlines(now, done);
        }
    }

    /// True if [`Channel::poll`] has something to look after: operations in flight, or memory that
    /// an engine owns although its operation was given up.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.queues.iter().any(Queue::is_busy)
    }

    /// How many operations are to come back from [`Channel::poll`].
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(Queue::outstanding).sum()
    }

    /// True if operations of this kind complete when they are submitted.
    #[inline]
    #[must_use]
    pub fn is_immediate(&self, code: OpCode) -> bool {
        self.routes[code.index()].is_none()
    }

    /// Does an operation, or what is left of it, now and in software.
    pub(crate) fn run(
        &mut self,
        token: u64,
        mut work: Work<S, T>,
        progress: Progress,
        is_fallback: bool,
    ) -> Done<S, T> {
        let software = &mut self.software;
        let (mut bytes, rest) = (0, progress.bytes > 0);
        let request = if rest {
            work.step(&mut self.pieces, progress, usize::MAX)
        } else {
            work.request(&mut self.pieces)
        };
        let result = request.and_then(|request| {
            bytes = progress.bytes + request.bytes();
            software.execute(&request)
        });
        if is_fallback {
            let code = work.operation().code();
            self.counters.operations[code.index()].fallbacks.add(1);
        }
        self.complete(token, work, bytes, result)
    }

    /// Counts an operation that ended, and applies error injection.
    pub(crate) fn complete(
        &mut self,
        token: u64,
        mut work: Work<S, T>,
        bytes: usize,
        result: Result<Output, AccelError>,
    ) -> Done<S, T> {
        let code = work.operation().code();
        let result = match self.shared.injections.next(code) {
            None => result,
            Some(kind) => self.inject(kind, &mut work, result),
        };
        let counters = &self.counters.operations[code.index()];
        if result.is_ok() {
            counters.succeeded(bytes);
        } else {
            counters.failed.add(1);
        }
        Done { token, result, work: Some(work) }
    }

    /// What error injection makes of a result.
    #[cold]
    fn inject(
        &mut self,
        kind: InjectionKind,
        work: &mut Work<S, T>,
        result: Result<Output, AccelError>,
    ) -> Result<Output, AccelError> {
        match (kind, result) {
            (_, Err(error)) => Err(error),
            (InjectionKind::Fail, Ok(_)) => Err(AccelError::Injected),
            (InjectionKind::Corrupt, Ok(Output::Crc32c(crc))) => Ok(Output::Crc32c(!crc)),
            (InjectionKind::Corrupt, Ok(Output::Equal(equal))) => Ok(Output::Equal(!equal)),
            (InjectionKind::Corrupt, Ok(output)) => {
                work.corrupt_target(&mut self.pieces);
                Ok(output)
            }
        }
    }

    /// Gives an operation to a queue, or does it in software if that is not possible.
    fn submit_to(&mut self, queue: usize, token: u64, mut work: Work<S, T>) -> Submitted<S, T> {
        if !self.queues[queue].is_usable() {
            return Submitted::Done(self.run(token, work, Progress::default(), true));
        }
        if !self.flights.has_room() {
            self.counters.full.add(1);
            return Submitted::Full(work);
        }
        let (code, seed) = (work.operation().code(), work.operation().seed());
        let total = match work.request(&mut self.pieces) {
            Ok(request) => request.bytes(),
            Err(error) => return Submitted::Done(self.complete(token, work, 0, Err(error))),
        };
        let progress = Progress { bytes: 0, crc32c: seed };
        let flight = Flight { token, queue, total, progress, step: 0, checks: 0, work };
        let index = self.flights.insert(flight);
        self.counters.operations[code.index()].in_flight.add(1);
        match self.start(queue, index) {
            None => Submitted::Pending,
            Some(done) => Submitted::Done(done),
        }
    }
}

impl<S: Source, T: Target> fmt::Debug for Channel<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl<S: Source, T: Target> Drop for Channel<S, T> {
    fn drop(&mut self) {
        self.shut_down();
    }
}
