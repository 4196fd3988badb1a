//! What the calls of one request share: how long they may wait together, and how much their answer may hold.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The most calls of one batch. About as many fit into a request of SPDK, which has 8,192 values at most.
pub const MOST_CALLS: usize = 1024;

/// Once the answer to a batch has as many bytes, no further call of the batch is made. All places of the servers together
/// can so hold 2 GiB of answers, and what the last call of each adds.
pub const MOST_ANSWER_BYTES: usize = 16 << 20;

/// How long the calls of one request wait. Together they wait no longer than the longest of them would alone, as if they
/// waited at the same time, which they do in SPDK.
#[derive(Debug, Default)]
pub struct Allowance {
    /// The longest wait that a call has wanted.
    longest: Cell<Duration>,
    /// How long all calls have waited.
    waited: Cell<Duration>,
}

impl Allowance {
    /// Waits for as long as a call wants to and its request still may.
    pub fn wait<T>(&self, wanted: Duration, wait: impl FnOnce(Duration) -> T) -> T {
        self.longest.set(self.longest.get().max(wanted));
        let left = self.longest.get().saturating_sub(self.waited.get());
        let began = Instant::now();
        let waited = wait(wanted.min(left));
        self.waited.set(self.waited.get().saturating_add(began.elapsed()));
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_waits_together_take_no_longer_than_the_longest_alone() {
        let allowance = Allowance::default();
        let ms = Duration::from_millis;
        allowance.wait(ms(20), |limit| {
            assert_eq!(limit, ms(20));
            std::thread::sleep(limit);
        });
        allowance.wait(ms(20), |limit| assert_eq!(limit, Duration::ZERO));
        allowance.wait(ms(50), |limit| {
            assert!(limit <= ms(30), "{limit:?}");
            std::thread::sleep(limit);
        });
        allowance.wait(ms(50), |limit| assert_eq!(limit, Duration::ZERO));
    }
}
