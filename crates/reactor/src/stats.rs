//! What a core's loop does with its time, readable from other threads while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets of the loop-time histogram. Bucket `n` counts busy turns that took from
/// 2^n up to 2^(n+1) nanoseconds; the last one also counts all longer ones (from 2.1 s).
pub const LOOP_TIME_BUCKETS: usize = 32;

/// Counters of one core's loop. Written by that core alone, with plain loads and stores; on
/// cache lines of their own (two, since the prefetcher fetches pairs), so that nobody else's
/// data slows the core down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopStats {
    turns: AtomicU64,
    busy_turns: AtomicU64,
    waits: AtomicU64,
    longest_ns: AtomicU64,
    buckets: [AtomicU64; LOOP_TIME_BUCKETS],
}

/// The values of [`LoopStats`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopSnapshot {
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that had a completion or a message.
    pub busy_turns: u64,
    /// Turns that were allowed to wait in the kernel.
    pub waits: u64,
    /// The longest time that a busy turn took, without its wait: for so long nobody else on
    /// the core was served.
    pub longest: Duration,
    /// The times of busy turns, by powers of two: see [`LOOP_TIME_BUCKETS`].
    pub buckets: [u64; LOOP_TIME_BUCKETS],
}

impl LoopStats {
    /// Reads all counters, each by itself.
    pub fn snapshot(&self) -> LoopSnapshot {
        LoopSnapshot {
            turns: self.turns.load(Ordering::Relaxed),
            busy_turns: self.busy_turns.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            longest: Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed)),
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn record_turn(&self, may_wait: bool) {
        increment(&self.turns);
        if may_wait {
            increment(&self.waits);
        }
    }

    pub(crate) fn record_busy(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        increment(&self.busy_turns);
        increment(&self.buckets[bucket(ns)]);
        if ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.store(ns, Ordering::Relaxed);
        }
    }
}

fn bucket(ns: u64) -> usize {
    let log2 = ns.max(1).ilog2();
    usize::try_from(log2).map_or(LOOP_TIME_BUCKETS - 1, |log2| log2.min(LOOP_TIME_BUCKETS - 1))
}

/// There is one writer, so this needs no locked instruction.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_land_in_their_power_of_two() {
        let stats = LoopStats::default();
        for ns in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            stats.record_turn(ns == 0);
            stats.record_busy(Duration::from_nanos(ns));
        }
        let snapshot = stats.snapshot();
        assert_eq!((snapshot.turns, snapshot.busy_turns, snapshot.waits), (8, 8, 1));
        let expected = [(0, 2), (1, 2), (2, 1), (9, 1), (10, 1), (31, 1)];
        for (bucket, count) in expected {
            assert_eq!(snapshot.buckets[bucket], count, "bucket {bucket}");
        }
        assert_eq!(snapshot.longest, Duration::from_nanos(u64::MAX));
        assert_eq!(align_of::<LoopStats>(), 128);
    }
}
