//! What the calls of one request share: their client, how long they may wait together, and how much their answer may
//! hold.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The most calls of one batch. About as many fit into a request of SPDK, which has 8,192 values at most.
pub const MOST_CALLS: usize = 1024;

/// Once the answer to a batch has as many bytes, no further call of the batch is made. All places of the servers together
/// can so hold 2 GiB of answers, and what the last call of each adds.
pub const MOST_ANSWER_BYTES: usize = 16 << 20;

/// How often a call that waits looks whether its client is gone.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How long the calls of one request wait. Those that only read wait together no longer than the longest of them would
/// alone, as if they waited at the same time, which they do in SPDK: for their answer alone, it does not matter if one of
/// them waits for less than it wanted. A change waits for as long as it would alone, as it may be undone at the end of its
/// wait. No call waits for nobody: a wait ends soon after the client has gone.
pub struct Allowance<'a> {
    /// Whether the client is gone.
    is_gone: &'a dyn Fn() -> bool,
    /// The longest wait that a call that only reads has wanted.
    longest: Cell<Duration>,
    /// How long all such calls have waited.
    waited: Cell<Duration>,
}

impl Default for Allowance<'_> {
    /// For a caller that stays.
    fn default() -> Self {
        Self::new(&|| false)
    }
}

impl<'a> Allowance<'a> {
    /// For a client of which `is_gone` says whether it is gone.
    #[must_use]
    pub fn new(is_gone: &'a dyn Fn() -> bool) -> Self {
        Self { is_gone, longest: Cell::default(), waited: Cell::default() }
    }

    /// Whether nobody waits for the answer any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        (self.is_gone)()
    }

    /// Waits for as long as a call that only reads wants to and its request still may, but no longer than for what `look`
    /// finds. It is called at least once, and is to look for no longer than it is told to.
    pub fn wait<T>(&self, wanted: Duration, look: impl FnMut(Duration) -> Option<T>) -> Option<T> {
        self.longest.set(self.longest.get().max(wanted));
        let limit = wanted.min(self.longest.get().saturating_sub(self.waited.get()));
        let began = Instant::now();
        let found = self.wait_alone(limit, look);
        self.waited.set(self.waited.get().saturating_add(began.elapsed()));
        found
    }

    /// The same for a call that changes something, however long others have waited.
    pub fn wait_alone<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(Duration) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        loop {
            let left = limit.saturating_sub(began.elapsed());
            let found = look(left.min(LOOK_INTERVAL));
            if found.is_some() || left <= LOOK_INTERVAL || self.is_gone() {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_waits_together_take_no_longer_than_the_longest_alone() {
        let allowance = Allowance::default();
        let ms = Duration::from_millis;
        // Gives how long it may wait, and waits for so long.
        let wait = |wanted| {
            let wait = |limit| {
                std::thread::sleep(limit);
                Some(limit)
            };
            allowance.wait(wanted, wait).unwrap()
        };
        // The clock goes on between the start of a wait and the first look.
        assert!(wait(ms(20)) <= ms(20));
        assert_eq!(wait(ms(20)), Duration::ZERO);
        assert!(wait(ms(50)) <= ms(30));
        assert!(allowance.waited.get() >= ms(50));
        assert_eq!(wait(ms(50)), Duration::ZERO);
    }

    #[test]
    fn a_change_has_time_of_its_own() {
        let allowance = Allowance::default();
        let hour = Duration::from_secs(3600);
        allowance.longest.set(hour);
        allowance.waited.set(hour);
        assert_eq!(allowance.wait(hour, Some), Some(Duration::ZERO));
        assert_eq!(allowance.wait_alone(hour, Some), Some(LOOK_INTERVAL));
        let waited = allowance.waited.get();
        allowance.wait_alone(Duration::from_millis(20), |limit| {
            std::thread::sleep(limit);
            Some(())
        });
        assert_eq!(allowance.waited.get(), waited, "it takes none from others either");
    }

    #[test]
    fn a_wait_lasts_to_its_end_in_pieces_and_ends_when_the_client_goes() {
        let looks = Cell::new(0);
        let look = |limit| {
            assert!(limit <= LOOK_INTERVAL, "{limit:?}");
            looks.set(looks.get() + 1);
            std::thread::sleep(limit);
            (looks.get() == 20).then_some(())
        };
        let began = Instant::now();
        assert_eq!(Allowance::default().wait(LOOK_INTERVAL * 2, look), None);
        assert!(began.elapsed() >= LOOK_INTERVAL * 2);
        looks.set(0);
        let is_gone = || looks.get() >= 2;
        assert_eq!(Allowance::new(&is_gone).wait(Duration::from_secs(3600), look), None);
        assert_eq!(looks.get(), 2);
        // What is there is found for a client that is gone, too.
        looks.set(19);
        assert_eq!(Allowance::new(&is_gone).wait(Duration::ZERO, look), Some(()));
    }
}
