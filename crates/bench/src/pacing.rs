//! When commands are due: at once (closed loop), or at a given rate (open loop).

use std::time::{Duration, Instant};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The arrivals of an open loop: command `n` is due at `start + n / rate`, whether or not earlier ones have
/// finished. A command that has to wait for a free slot is late, and its latency counts from its due time;
/// otherwise a slow target would get fewer requests just when it is slow.
///
/// Several queues share a rate by taking turns: of `stride` queues, this one takes the arrivals
/// `first`, `first + stride`, and so on.
#[derive(Clone, Debug)]
pub struct Pacer {
    start: Instant,
    per_second: u64,
    stride: u64,
    next: u64,
}

impl Pacer {
    /// This queue's share of `per_second` arrivals from `start` on.
    ///
    /// # Panics
    /// If `per_second` or `stride` is 0.
    #[must_use]
    pub fn new(start: Instant, per_second: u64, first: u64, stride: u64) -> Self {
        assert!(per_second > 0, "a rate of 0 never arrives");
        assert!(stride > 0, "at least one queue takes arrivals");
        Self { start, per_second, stride, next: first }
    }

    /// When the next arrival is due. Computed from the count, so that errors do not add up.
    #[must_use]
    pub fn next_due(&self) -> Instant {
        let nanos = u128::from(self.next) * NANOS_PER_SECOND / u128::from(self.per_second);
        self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Takes the next arrival if it is due at `now`, and gives the time it was due.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next_due();
        if due > now {
            return None;
        }
        self.next += self.stride;
        Some(due)
    }

    /// Number of this queue's arrivals that are due before `end` and have not been taken.
    #[must_use]
    pub fn missed_before(&self, end: Instant) -> u64 {
        let elapsed = end.saturating_duration_since(self.start);
        let due = (elapsed.as_nanos() * u128::from(self.per_second)).div_ceil(NANOS_PER_SECOND);
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        due.saturating_sub(self.next).div_ceil(self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, us: u64) -> Instant {
        start + Duration::from_micros(us)
    }

    #[test]
    fn arrivals_are_evenly_spaced() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start, 1000, 0, 1);
        assert_eq!(pacer.take(start), Some(start));
        assert_eq!(pacer.take(at(start, 999)), None);
        assert_eq!(pacer.next_due(), at(start, 1000));
        assert_eq!(pacer.take(at(start, 1000)), Some(at(start, 1000)));
    }

    #[test]
    fn late_arrivals_keep_the_time_they_were_due() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start, 1000, 0, 1);
        let late = at(start, 5_500);
        let due: Vec<Instant> = std::iter::from_fn(|| pacer.take(late)).collect();
        assert_eq!(due, (0..6).map(|n| at(start, n * 1000)).collect::<Vec<_>>());
    }

    #[test]
    fn odd_rates_do_not_drift() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start, 7, 0, 1);
        let hour = start + Duration::from_secs(3600);
        let mut count = 0u64;
        while pacer.take(hour).is_some() {
            count += 1;
        }
        assert_eq!(count, 7 * 3600 + 1); // both ends
        assert_eq!(pacer.missed_before(hour), 0);
    }

    #[test]
    fn missed_counts_what_was_due_and_not_taken() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start, 1000, 0, 1);
        let end = at(start, 10_000);
        assert_eq!(pacer.missed_before(end), 10);
        pacer.take(end);
        assert_eq!(pacer.missed_before(end), 9);
        assert_eq!(pacer.missed_before(start), 0);
    }

    #[test]
    fn queues_take_turns() {
        let start = Instant::now();
        let end = at(start, 3_000);
        let mut due: Vec<Instant> = Vec::new();
        for first in 0..3 {
            let mut pacer = Pacer::new(start, 2000, first, 3);
            assert_eq!(pacer.missed_before(end), 2);
            due.extend(std::iter::from_fn(|| pacer.take(at(start, 2_999))));
            assert_eq!(pacer.missed_before(end), 0);
        }
        due.sort_unstable();
        assert_eq!(due, (0..6).map(|n| at(start, n * 500)).collect::<Vec<_>>());
    }
}
