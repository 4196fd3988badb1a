//! What happened to the operations of each kind: counted per core, summed when asked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::operation::OpCode;

/// Counts of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStatistics {
    /// Operations that succeeded.
    pub executed: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Bytes of the operations that succeeded.
    pub bytes: u64,
    /// Operations, or rests of them, that were done in software though an engine is assigned.
    pub fallbacks: u64,
    /// Operations submitted and not complete.
    pub in_flight: u64,
}

/// Counts of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// By [`OpCode::index`].
    pub operations: [OpStatistics; OpCode::COUNT],
    /// Submissions that found no slot free.
    pub full: u64,
    /// Operations that an engine did not complete in time.
    pub timed_out: u64,
    /// Of these, operations whose memory an engine still owns, in channels that are open.
    pub quarantined: u64,
    /// Operations whose memory was given up because an engine could not be stopped.
    pub leaked: u64,
    /// Completions of no operation in flight: an engine reported nonsense.
    pub bogus: u64,
}

impl Statistics {
    /// Counts of one operation.
    #[must_use]
    pub const fn of(&self, code: OpCode) -> &OpStatistics {
        &self.operations[code.index()]
    }
}

/// A count that one core writes and any thread reads: no read-modify-write, no shared line.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn subtract(&self, less: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(less), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One core's counts of one operation.
#[derive(Debug, Default)]
pub(crate) struct OpCounters {
    pub(crate) executed: Counter,
    pub(crate) failed: Counter,
    pub(crate) bytes: Counter,
    pub(crate) fallbacks: Counter,
    pub(crate) in_flight: Counter,
}

impl OpCounters {
    /// Counts an operation that succeeded.
    #[inline(always)]
    pub(crate) fn succeeded(&self, bytes: usize) {
        self.executed.add(1);
        self.bytes.add(bytes as u64);
    }
}

/// One channel's counts; aligned so that no two cores write one line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) operations: [OpCounters; OpCode::COUNT],
    pub(crate) full: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) quarantined: Counter,
    pub(crate) leaked: Counter,
    pub(crate) bogus: Counter,
}

impl Counters {
    /// Adds these counts to a sum.
    pub(crate) fn add_to(&self, sum: &mut Statistics) {
        for (sum, counters) in sum.operations.iter_mut().zip(&self.operations) {
            sum.executed += counters.executed.get();
            sum.failed += counters.failed.get();
            sum.bytes += counters.bytes.get();
            sum.fallbacks += counters.fallbacks.get();
            sum.in_flight += counters.in_flight.get();
        }
        sum.full += self.full.get();
        sum.timed_out += self.timed_out.get();
        sum.quarantined += self.quarantined.get();
        sum.leaked += self.leaked.get();
        sum.bogus += self.bogus.get();
    }
}
