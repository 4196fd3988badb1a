//! Which sockets of this core make small sends: a socket with a long batch lets them go first.

use std::time::{Duration, Instant};

use crate::flow::{SocketClass, Traffic};
use crate::io::{SocketId, slab};
use crate::send::SendBatch;

/// How long after its last small send a socket still counts as a small sender, and after its last long
/// send as none (lab 0042).
const ACTIVE: Duration = Duration::from_millis(100);

/// A send of at most this part of a share is a small one.
const SMALL_PARTS: usize = 4;

/// The last small sends of a core, and the last long ones.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// The socket of the last small send and its time, and those of the last small send of another socket.
    small: [Option<(SocketId, Instant)>; 2],
    /// By the place of a socket that carries commands: when it last had more than its share to send.
    long_at: Vec<Option<Instant>>,
    /// Batches that left in shares.
    in_shares: u64,
}

impl Neighbours {
    /// Decides whether a batch leaves at once or in shares. Those of admin queues always leave at once.
    ///
    /// In shares a long batch costs its socket up to a third of the throughput. So that happens only
    /// while another socket counts as a small sender. A socket that carries commands
    /// ([`Traffic::Commands`]) counts as one only if it has made no long send within [`ACTIVE`].
    #[inline]
    pub(crate) fn plan(
        &mut self,
        socket: SocketId,
        class: &SocketClass,
        now: Instant,
        batch: &mut SendBatch,
    ) {
        if !class.takes_turns() {
            return batch.take_turns(None);
        }
        let share = class.share;
        let pending = batch.len();
        let long = pending > share;
        let in_shares = long && self.is_other_active(socket, now);
        self.in_shares += u64::from(in_shares);
        batch.take_turns(in_shares.then_some(share));
        if long && class.traffic == Traffic::Commands {
            self.note_long(socket, now);
        } else if pending <= share / SMALL_PARTS && !self.is_long(socket, now) {
            if self.small[0].is_some_and(|(latest, _)| latest != socket) {
                self.small[1] = self.small[0];
            }
            self.small[0] = Some((socket, now));
        }
    }

    /// How many batches left in shares.
    pub(crate) fn in_shares(&self) -> u64 {
        self.in_shares
    }

    fn is_other_active(&self, socket: SocketId, now: Instant) -> bool {
        let others = self.small.iter().flatten().filter(|(other, _)| *other != socket);
        others.into_iter().any(|&(_, at)| now.saturating_duration_since(at) < ACTIVE)
    }

    fn is_long(&self, socket: SocketId, now: Instant) -> bool {
        let at = self.long_at.get(place(socket)).copied().flatten();
        at.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
    }

    /// Grows with the number of sockets, once.
    fn note_long(&mut self, socket: SocketId, now: Instant) {
        let index = place(socket);
        if self.long_at.len() <= index {
            self.long_at.resize(index + 1, None);
        }
        self.long_at[index] = Some(now);
        for small in &mut self.small {
            small.take_if(|(other, _)| *other == socket);
        }
    }
}

/// A small number that no other open socket of the core has. The id itself is not small: it grows with
/// each use of a place, and its topmost bit tells a provider's socket from one of the kernel.
fn place(socket: SocketId) -> usize {
    slab::index(socket.0) * 2 + usize::from(socket.0 > u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send::Payload;

    const SHARE: usize = 256 * 1024;
    const LONG: SocketId = SocketId(1);
    const SHORT: SocketId = SocketId(2);

    fn class(traffic: Traffic) -> SocketClass {
        SocketClass { traffic, share: SHARE, ..SocketClass::ADMIN }
    }

    /// Whether this many bytes of a target's socket leave in shares.
    fn in_shares(plan: &mut Neighbours, socket: SocketId, now: Instant, len: usize) -> bool {
        shares(plan, socket, Traffic::Responses, now, len)
    }

    /// The same of a host's socket.
    fn mixed_in_shares(plan: &mut Neighbours, socket: SocketId, now: Instant, len: usize) -> bool {
        shares(plan, socket, Traffic::Commands, now, len)
    }

    fn shares(
        plan: &mut Neighbours,
        socket: SocketId,
        traffic: Traffic,
        now: Instant,
        len: usize,
    ) -> bool {
        let mut batch = SendBatch::new(0, 1);
        batch.push_payload(Payload::Zeroes(len));
        plan.plan(socket, &class(traffic), now, &mut batch);
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

    /// What a writer over several connections does: capsules, then their data.
    #[test]
    fn who_mixes_small_and_long_sends_does_not_cut_others() {
        let mut plan = Neighbours::default();
        let start = Instant::now();
        let other = SocketId(3);
        // Nothing is known yet: their first capsules look like small senders'.
        for socket in [LONG, other] {
            assert!(!mixed_in_shares(&mut plan, socket, start, 72));
        }
        assert!(mixed_in_shares(&mut plan, LONG, start, 8 * SHARE));
        assert!(!mixed_in_shares(&mut plan, other, start, 8 * SHARE));
        let soon = start + ACTIVE / 2;
        for socket in [LONG, other] {
            assert!(!mixed_in_shares(&mut plan, socket, soon, 72));
            assert!(!mixed_in_shares(&mut plan, socket, soon, 8 * SHARE));
        }
        // But they let a socket go first that makes only small sends.
        assert!(!in_shares(&mut plan, SHORT, soon, 72));
        assert!(mixed_in_shares(&mut plan, LONG, soon, 8 * SHARE));
        assert!(mixed_in_shares(&mut plan, other, soon, 8 * SHARE));
        // A socket that has made no long send within `ACTIVE` counts as a small sender again.
        let later = soon + ACTIVE;
        assert!(!mixed_in_shares(&mut plan, other, later, 72));
        assert!(mixed_in_shares(&mut plan, LONG, later, 8 * SHARE));
    }

    #[test]
    fn what_is_kept_grows_with_sockets_and_not_with_their_ids() {
        let mut plan = Neighbours::default();
        let now = Instant::now();
        for id in [3, 3 | 7 << 20, 3 | 1 << 31, u32::MAX] {
            mixed_in_shares(&mut plan, SocketId(id), now, 8 * SHARE);
            assert!(plan.is_long(SocketId(id), now), "{id:x}");
        }
        assert!(!plan.is_long(SocketId(2), now));
        assert!(plan.long_at.len() <= 2 << 20, "{} places", plan.long_at.len());
    }

    #[test]
    fn admin_queues_neither_wait_nor_are_waited_for() {
        let mut plan = Neighbours::default();
        let now = Instant::now();
        assert!(!shares(&mut plan, SHORT, Traffic::Admin, now, 72));
        assert!(!in_shares(&mut plan, LONG, now, 4 * SHARE));
        assert!(!in_shares(&mut plan, SHORT, now, 72));
        assert!(!shares(&mut plan, LONG, Traffic::Admin, now, 4 * SHARE));
    }
}
