//! The memory of a failed flush: set by the first failure, on all cores, until an operator resets it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Set or not, and how often it was reset: even while data is safe, odd while it is not.
#[derive(Debug, Default)]
pub(crate) struct FaultLatch(AtomicU32);

/// A time between two changes of the latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era(u32);

impl FaultLatch {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) & 1 == 1
    }

    /// What began in one era and ends in another has met a failure.
    pub(crate) fn era(&self) -> Era {
        Era(self.0.load(Ordering::Acquire))
    }

    /// Gives true if it was not set before.
    pub(crate) fn set(&self) -> bool {
        self.0.fetch_or(1, Ordering::AcqRel) & 1 == 0
    }

    /// Gives true if it was set before.
    pub(crate) fn reset(&self) -> bool {
        let next = |state: u32| (state & 1 == 1).then(|| state.wrapping_add(1));
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_a_new_era() {
        let latch = FaultLatch::default();
        let calm = latch.era();
        assert!(!latch.reset() && !latch.is_set() && latch.era() == calm);
        assert!(latch.set() && latch.is_set());
        let failed = latch.era();
        assert!(!latch.set() && latch.era() == failed);
        assert!(latch.reset() && !latch.is_set());
        assert!(latch.era() != calm && latch.era() != failed);
    }
}
