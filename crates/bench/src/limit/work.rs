//! Work for each command: stands for looking it up and checking it (lab 0005).

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Rounds that are timed to find the duration of one, and number of timings: the fastest counts.
const TIMED_ROUNDS: u32 = 20_000;
const TIMINGS: u32 = 9;
/// An odd factor (of SplitMix64's finalizer).
const FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;

/// Work per command, done by one side. It touches no memory, so it leaves the caches unchanged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    rounds: u32,
}

impl Work {
    /// Work of this duration on this core at its present speed.
    pub(super) fn new(time: Duration) -> Self {
        if time.is_zero() {
            return Self { rounds: 0 };
        }
        let timed = || {
            let begun = Instant::now();
            Self { rounds: TIMED_ROUNDS }.run();
            begun.elapsed()
        };
        let all = (0..TIMINGS).map(|_| timed()).min().unwrap_or_default();
        let rounds = time.as_nanos() * u128::from(TIMED_ROUNDS) / all.as_nanos().max(1);
        Self { rounds: u32::try_from(rounds).unwrap_or(u32::MAX) }
    }

    /// Does the work once.
    #[inline]
    pub(super) fn run(self) {
        let mut value = u64::from(self.rounds);
        for _ in 0..self.rounds {
            // Each factor needs the result before it, so the multiplications do not overlap.
            value = black_box(value.wrapping_mul(FACTOR));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_no_work_and_more_time_is_more_work() {
        assert_eq!(Work::new(Duration::ZERO).rounds, 0);
        let [short, long] = [1, 100].map(|micros| Work::new(Duration::from_micros(micros)).rounds);
        assert!(short > 0 && long > short, "{short} {long}");
    }
}
