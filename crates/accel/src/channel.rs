//! One core's way to all engines: submit, kick, poll.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::inject::InjectionKind;
use crate::memory::{Source, Target};
use crate::operation::{AccelError, OpCode, Output};
use crate::software::Software;
use crate::stats::Counters;
use crate::table::Shared;
use crate::work::{Done, Pieces, Work};

/// How a channel is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Most operations that engines have at a time. The software engine needs no slot.
    pub slots: usize,
    /// How long an engine may take for one operation before it is given up.
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
/// Operations come back in any order. Dropping a channel waits a bounded time for the operations
/// in flight.
#[derive(Debug)]
pub struct Channel<S: Source, T: Target> {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    software: Software,
    pieces: Pieces,
    operands: std::marker::PhantomData<(S, T)>,
}

impl<S: Source, T: Target> Channel<S, T> {
    pub(crate) fn new(shared: Arc<Shared>, counters: Arc<Counters>) -> Channel<S, T> {
        let (software, pieces) = (Software::default(), Pieces::default());
        Channel { shared, counters, software, pieces, operands: std::marker::PhantomData }
    }

    /// Starts an operation. `token` comes back with it.
    ///
    /// Errors of the operation, also wrong operands, are its completion.
    #[inline]
    pub fn submit(&mut self, token: u64, work: Work<S, T>) -> Submitted<S, T> {
        Submitted::Done(self.run(token, work))
    }

    /// Tells devices about what was submitted: once after a batch of submissions.
    pub fn kick(&mut self) {}

    /// Collects what is complete, and gives up on what takes too long.
    pub fn poll(&mut self, _now: Instant, _done: &mut Vec<Done<S, T>>) {}

    /// How many operations engines have.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        0
    }

    /// True if operations of this kind complete when they are submitted.
    #[inline]
    #[must_use]
    pub fn is_immediate(&self, _code: OpCode) -> bool {
        true
    }

    /// Does an operation now, in software.
    #[inline]
    fn run(&mut self, token: u64, mut work: Work<S, T>) -> Done<S, T> {
        let code = work.operation().code();
        let (mut bytes, software) = (0, &mut self.software);
        let result = work.request(&mut self.pieces).and_then(|request| {
            bytes = request.bytes();
            software.execute(&request)
        });
        let result = match self.shared.injections.next(code) {
            None => result,
            Some(kind) => inject(kind, result),
        };
        let counters = &self.counters.operations[code.index()];
        if result.is_ok() {
            counters.executed.add(1);
            counters.bytes.add(bytes as u64);
        } else {
            counters.failed.add(1);
        }
        Done { token, result, work: Some(work) }
    }
}

/// What error injection makes of a result.
#[cold]
fn inject(kind: InjectionKind, result: Result<Output, AccelError>) -> Result<Output, AccelError> {
    match (kind, result) {
        (InjectionKind::Fail, _) => Err(AccelError::Injected),
        (InjectionKind::Corrupt, Ok(Output::Crc32c(crc))) => Ok(Output::Crc32c(!crc)),
        (InjectionKind::Corrupt, Ok(Output::Equal(equal))) => Ok(Output::Equal(!equal)),
        (InjectionKind::Corrupt, result) => result,
    }
}
