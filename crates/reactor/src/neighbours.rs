//! Which sockets of this core send little at a time: one with a lot to send lets them go first.

use std::time::{Duration, Instant};

use crate::io::SocketId;
use crate::send::SendBatch;

/// How long after its last small send a socket still counts as one that waits for its turn.
const ACTIVE: Duration = Duration::from_millis(100);

/// A send of at most this part of a share is a small one.
const SMALL_PARTS: usize = 4;

/// The small sends of late.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Who sent little last, and when.
    latest: Option<(SocketId, Instant)>,
    /// When somebody else than the latest did.
    other: Option<Instant>,
}

impl Neighbours {
    /// Decides whether a batch leaves at once or in shares; batches without a share do not count.
    ///
    /// In shares a long batch costs its socket up to a third of the throughput, so that happens
    /// only for the sake of somebody: a socket whose own sends are small.
    #[inline]
    pub(crate) fn plan(&mut self, socket: SocketId, now: Instant, batch: &mut SendBatch) {
        let Some(share) = batch.share() else { return };
        let pending = batch.len();
        batch.take_turns(pending > share && self.is_other_active(socket, now));
        if pending <= share / SMALL_PARTS {
            if let Some((latest, at)) = self.latest
                && latest != socket
            {
                self.other = Some(at);
            }
            self.latest = Some((socket, now));
        }
    }

    fn is_other_active(&self, socket: SocketId, now: Instant) -> bool {
        let other = match self.latest {
            Some((latest, at)) if latest != socket => Some(at),
            _ => self.other,
        };
        other.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send::Payload;

    const SHARE: usize = 256 * 1024;
    const LONG: SocketId = SocketId(1);
    const SHORT: SocketId = SocketId(2);

    /// Whether so many bytes of this socket leave in shares.
    fn in_shares(plan: &mut Neighbours, socket: SocketId, now: Instant, len: usize) -> bool {
        let mut batch = SendBatch::new(0, 1);
        batch.set_share(SHARE);
        batch.push_payload(Payload::Zeroes(len));
        plan.plan(socket, now, &mut batch);
        batch.takes_turns()
    }

    #[test]
    fn alone_a_socket_sends_all_at_once() {
        let mut plan = Neighbours::default();
        let now = Instant::now();
        for len in [24, SHARE, SHARE + 1, 1 << 30] {
            assert!(!in_shares(&mut plan, LONG, now, len), "{len}");
        }
    }

    #[test]
    fn beside_a_small_sender_it_has_a_share_until_that_is_quiet() {
        let mut plan = Neighbours::default();
        let start = Instant::now();
        assert!(!in_shares(&mut plan, SHORT, start, 4120));
        // Its own small sends do not hide the other's.
        assert!(!in_shares(&mut plan, LONG, start, 24));
        assert!(!in_shares(&mut plan, LONG, start, 24));
        let soon = start + ACTIVE - Duration::from_millis(1);
        assert!(in_shares(&mut plan, LONG, soon, SHARE + 1));
        assert!(!in_shares(&mut plan, LONG, start + ACTIVE, SHARE + 1));
    }

    #[test]
    fn large_senders_do_not_cut_each_other() {
        let mut plan = Neighbours::default();
        let now = Instant::now();
        assert!(!in_shares(&mut plan, SHORT, now, SHARE));
        assert!(!in_shares(&mut plan, LONG, now, 4 * SHARE));
    }

    #[test]
    fn batches_without_a_share_do_not_count() {
        let mut plan = Neighbours::default();
        let now = Instant::now();
        let mut batch = SendBatch::new(0, 1);
        batch.push_payload(Payload::Zeroes(72));
        plan.plan(SHORT, now, &mut batch);
        assert!(!batch.takes_turns());
        assert!(!in_shares(&mut plan, LONG, now, 4 * SHARE));
    }
}
