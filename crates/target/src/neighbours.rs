//! Who on this core sends little and often: a connection with a lot to send lets it go first.

use std::time::{Duration, Instant};

use crate::message::ConnKey;

/// How long after its last send a connection still counts as one that others wait for.
const ACTIVE: Duration = Duration::from_millis(100);

/// A send of at most this part of a share is a small one.
const SMALL_PARTS: usize = 4;

/// The small sends of late, of one core.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Who sent little last, and when.
    latest: Option<(ConnKey, Instant)>,
    /// When somebody else than the latest did.
    other: Option<Instant>,
}

impl Neighbours {
    /// The bytes that `key` may hand to the kernel in one turn, with `pending` to be sent now.
    ///
    /// Cutting a long send costs a connection up to a third of its throughput, so it happens only
    /// for the sake of somebody: a connection whose own sends are small.
    pub(crate) fn share(
        &mut self,
        key: ConnKey,
        now: Instant,
        pending: usize,
        pass_bytes: usize,
    ) -> usize {
        if pending > pass_bytes {
            return if self.is_other_active(key, now) { pass_bytes } else { usize::MAX };
        }
        if pending <= pass_bytes / SMALL_PARTS {
            if let Some((latest, at)) = self.latest
                && latest != key
            {
                self.other = Some(at);
            }
            self.latest = Some((key, now));
        }
        usize::MAX
    }

    fn is_other_active(&self, key: ConnKey, now: Instant) -> bool {
        let other = match self.latest {
            Some((latest, at)) if latest != key => Some(at),
            _ => self.other,
        };
        other.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: usize = 256 * 1024;
    const BIG: ConnKey = ConnKey { index: 1, generation: 0 };
    const SMALL: ConnKey = ConnKey { index: 2, generation: 0 };

    #[test]
    fn alone_a_connection_sends_all_at_once() {
        let mut neighbours = Neighbours::default();
        let now = Instant::now();
        for pending in [24, PASS, PASS + 1, 1 << 30] {
            assert_eq!(neighbours.share(BIG, now, pending, PASS), usize::MAX, "{pending}");
        }
    }

    #[test]
    fn beside_a_small_sender_it_has_a_share_until_that_is_quiet() {
        let mut neighbours = Neighbours::default();
        let start = Instant::now();
        assert_eq!(neighbours.share(SMALL, start, 4120, PASS), usize::MAX);
        // Its own small sends do not hide the other's.
        assert_eq!(neighbours.share(BIG, start, 24, PASS), usize::MAX);
        assert_eq!(neighbours.share(BIG, start, 24, PASS), usize::MAX);
        let soon = start + ACTIVE - Duration::from_millis(1);
        assert_eq!(neighbours.share(BIG, soon, PASS + 1, PASS), PASS);
        assert_eq!(neighbours.share(BIG, start + ACTIVE, PASS + 1, PASS), usize::MAX);
    }

    #[test]
    fn large_senders_do_not_cut_each_other() {
        let mut neighbours = Neighbours::default();
        let now = Instant::now();
        assert_eq!(neighbours.share(SMALL, now, PASS, PASS), usize::MAX);
        assert_eq!(neighbours.share(BIG, now, 4 * PASS, PASS), usize::MAX);
    }
}
