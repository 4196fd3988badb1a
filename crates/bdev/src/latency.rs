//! How long reads and writes take, by powers of two: one more addition for each request that takes time at all.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::OpKind;

/// Borders are powers of two of a unit, of which a second has 2 to the power of this: so they are the ones that native
/// histograms of Prometheus have.
pub const UNITS_PER_SECOND: u32 = 30;

/// Number of buckets. Bucket 0 counts requests below 2^[`FIRST_BORDER`] units, bucket `n` those from 2^(`FIRST_BORDER` +
/// n - 1) up to 2^(`FIRST_BORDER` + n), and the last one also all that took longer (from 32 s).
pub const LATENCY_BUCKETS: usize = 24;

/// The power of two that ends the first bucket: 7.6 us.
pub const FIRST_BORDER: u32 = 13;

/// A time in units, to about one in 2^20. What is longer than the last border by far may be anything above it.
#[inline]
fn units(ns: u64) -> u64 {
    /// What a second has more than 10^9, times 2^20.
    const MORE: u64 = ((1 << 50) / 1_000_000_000) - (1 << 20);
    let ns = ns.min(1 << 46);
    ns + ((ns * MORE) >> 20)
}

/// The bucket of a time.
#[inline]
#[must_use]
pub fn latency_bucket(ns: u64) -> usize {
    let above = (units(ns) >> (FIRST_BORDER - 1)).max(1).ilog2() as usize;
    above.min(LATENCY_BUCKETS - 1)
}

/// How long the requests of one kind have taken since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Requests by their time: see [`LATENCY_BUCKETS`].
    pub buckets: [u64; LATENCY_BUCKETS],
    /// The sum of their times.
    pub sum_ns: u64,
}

impl Latencies {
    /// Of so many `operations`, of which `slow` has those that took time: its first bucket is not looked at, since what took
    /// none is found by subtraction.
    #[must_use]
    pub fn new(mut slow: [u64; LATENCY_BUCKETS], operations: u64, sum_ns: u64) -> Self {
        let later: u64 = slow[1..].iter().sum();
        slow[0] = operations.saturating_sub(later);
        Self { buckets: slow, sum_ns }
    }
}

/// The buckets of one core, from the second one on: what takes no time is found by subtraction.
#[derive(Debug, Default)]
pub(crate) struct LatencyCounters {
    reads: [AtomicU64; LATENCY_BUCKETS],
    writes: [AtomicU64; LATENCY_BUCKETS],
}

/// The counts of several cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowOnes {
    reads: [u64; LATENCY_BUCKETS],
    writes: [u64; LATENCY_BUCKETS],
}

impl LatencyCounters {
    /// Counts a request; only the core that owns it does.
    #[inline]
    pub(crate) fn record(&self, kind: OpKind, latency_ns: u64) {
        let counters = match kind {
            OpKind::Read => &self.reads,
            OpKind::Write => &self.writes,
            _ => return,
        };
        let counter = &counters[latency_bucket(latency_ns)];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, sum: &mut SlowOnes) {
        let of = |sums: &mut [u64; LATENCY_BUCKETS], counters: &[AtomicU64; LATENCY_BUCKETS]| {
            for (sum, counter) in sums.iter_mut().zip(counters) {
                *sum += counter.load(Ordering::Relaxed);
            }
        };
        of(&mut sum.reads, &self.reads);
        of(&mut sum.writes, &self.writes);
    }
}

impl SlowOnes {
    /// Together with how many there were and how long they took.
    pub(crate) fn latencies(&self, kind: OpKind, operations: u64, sum_ns: u64) -> Latencies {
        let slow = match kind {
            OpKind::Read => self.reads,
            OpKind::Write => self.writes,
            _ => [0; LATENCY_BUCKETS],
        };
        Latencies::new(slow, operations, sum_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_below_the_power_of_two_that_is_above_its_time() {
        let core = LatencyCounters::default();
        // 2^-17 s and 2^-16 s are 7,629.4 ns and 15,258.8 ns.
        for latency in [1, 7600, 7640, 15_200, 15_300, 999_990_000, 1_000_010_000, u64::MAX] {
            core.record(OpKind::Read, latency);
        }
        core.record(OpKind::Write, 8192);
        core.record(OpKind::Flush, 8192);
        let mut sum = SlowOnes::default();
        core.add_to(&mut sum);
        // Four more took no time.
        let reads = sum.latencies(OpKind::Read, 12, 7);
        let mut expected = [0; LATENCY_BUCKETS];
        (expected[0], expected[1], expected[2]) = (6, 2, 1);
        (expected[17], expected[18], expected[23]) = (1, 1, 1);
        assert_eq!(reads, Latencies { buckets: expected, sum_ns: 7 });
        assert_eq!(sum.latencies(OpKind::Write, 1, 0).buckets[..2], [0, 1]);
        assert_eq!(sum.latencies(OpKind::Flush, 3, 0).buckets[..2], [3, 0]);
    }
}
