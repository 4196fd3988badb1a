//! How long reads and writes take, by powers of two: one more addition for each request that takes time at all.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::OpKind;

/// Number of buckets. Bucket 0 counts requests below 2^[`FIRST_BORDER`] ns, bucket `n` those from 2^(`FIRST_BORDER` +
/// n - 1) up to 2^(`FIRST_BORDER` + n), and the last one also all that took longer (from 1.07 s).
pub const LATENCY_BUCKETS: usize = 19;

/// The power of two that ends the first bucket: 8.2 us.
pub const FIRST_BORDER: u32 = 13;

/// How long the requests of one kind have taken since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Requests by their time: see [`LATENCY_BUCKETS`].
    pub buckets: [u64; LATENCY_BUCKETS],
    /// The sum of their times.
    pub sum_ns: u64,
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
        let above = (latency_ns >> (FIRST_BORDER - 1)).max(1).ilog2() as usize;
        let counter = &counters[above.min(LATENCY_BUCKETS - 1)];
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
        let mut buckets = match kind {
            OpKind::Read => self.reads,
            OpKind::Write => self.writes,
            _ => [0; LATENCY_BUCKETS],
        };
        let slow: u64 = buckets[1..].iter().sum();
        buckets[0] = operations.saturating_sub(slow);
        Latencies { buckets, sum_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_below_the_power_of_two_that_is_above_its_time() {
        let core = LatencyCounters::default();
        for latency in [1, 8191, 8192, 16383, 16384, 1 << 29, (1 << 30) - 1, 1 << 30, u64::MAX] {
            core.record(OpKind::Read, latency);
        }
        core.record(OpKind::Write, 8192);
        core.record(OpKind::Flush, 8192);
        let mut sum = SlowOnes::default();
        core.add_to(&mut sum);
        // Three more took no time.
        let reads = sum.latencies(OpKind::Read, 12, 7);
        let mut expected = [0; LATENCY_BUCKETS];
        (expected[0], expected[1], expected[2]) = (5, 2, 1);
        (expected[17], expected[18]) = (2, 2);
        assert_eq!(reads, Latencies { buckets: expected, sum_ns: 7 });
        assert_eq!(sum.latencies(OpKind::Write, 1, 0).buckets[..2], [0, 1]);
        assert_eq!(sum.latencies(OpKind::Flush, 3, 0).buckets[..2], [3, 0]);
    }
}
