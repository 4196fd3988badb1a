//! How much memory connections may hold for data.
//!
//! Each connection may hold [`OWN_BYTES`]. All of a core share [`SHARED_BYTES`] beyond that. So a core holds at most
//! that much and `OWN_BYTES` for each connection, and clients whose requests are small never wait for clients that
//! hold all that is shared.

/// What a connection may hold by itself.
const OWN_BYTES: usize = 1 << 20;

/// What the connections of a core may hold beyond that: four of the largest requests.
const SHARED_BYTES: usize = 128 << 20;

/// What is left to share.
#[derive(Debug)]
pub(super) struct Budget {
    shared: usize,
    /// Others wait for a connection that waits for memory: what is shared is for such connections alone.
    pub(super) is_reserved: bool,
}

/// What one connection holds.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: usize,
}

impl Held {
    /// Whether it is more than a connection may hold by itself.
    pub(super) fn is_shared(&self) -> bool {
        beyond_own(self.bytes) > 0
    }
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { shared: SHARED_BYTES, is_reserved: false }
    }

    /// Takes `len` bytes for a connection; false if it has to wait. `is_first`: others wait for the connection.
    pub(super) fn take(&mut self, held: &mut Held, len: usize, is_first: bool) -> bool {
        let more = beyond_own(held.bytes + len) - beyond_own(held.bytes);
        if more > self.shared || (more > 0 && self.is_reserved && !is_first) {
            return false;
        }
        self.shared -= more;
        held.bytes += len;
        true
    }

    /// Gives all that a connection holds back.
    pub(super) fn give_back_all(&mut self, held: &mut Held) {
        self.give_back(held, held.bytes);
    }

    /// Gives `len` bytes of a connection back.
    pub(super) fn give_back(&mut self, held: &mut Held, len: usize) {
        debug_assert!(len <= held.bytes, "more is given back than was taken");
        let less = held.bytes.saturating_sub(len);
        self.shared += beyond_own(held.bytes) - beyond_own(less);
        held.bytes = less;
    }
}

fn beyond_own(bytes: usize) -> usize {
    bytes.saturating_sub(OWN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_little_never_waits() {
        const LARGE: usize = 32 << 20;
        let mut budget = Budget::new();
        let mut greedy: Vec<Held> = (0..8).map(|_| Held::default()).collect();
        let taken =
            greedy.iter_mut().filter_map(|held| budget.take(held, LARGE, false).then_some(()));
        assert_eq!(taken.count(), 4);
        let mut small = Held::default();
        for _ in 0..8 {
            assert!(budget.take(&mut small, 128 << 10, false));
        }
        assert!(!budget.take(&mut small, LARGE, true));
        budget.give_back(&mut greedy[0], LARGE);
        // It goes to a connection that others wait for, and what is a connection's own to anybody.
        budget.is_reserved = true;
        let mut other = Held::default();
        assert!(!budget.take(&mut other, LARGE, false) && budget.take(&mut other, 1 << 20, false));
        assert!(!other.is_shared());
        budget.give_back_all(&mut other);
        assert!(budget.take(&mut small, 16 << 20, true) && small.is_shared());
        budget.give_back(&mut small, 17 << 20);
        for held in &mut greedy[1..4] {
            budget.give_back(held, LARGE);
        }
        assert_eq!((budget.shared, small.bytes), (SHARED_BYTES, 0));
    }
}
