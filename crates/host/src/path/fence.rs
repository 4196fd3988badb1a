//! When the commands of a lost association can execute no more, so that its writes may be sent again elsewhere.
//!
//! The controller of a lost association may still have writes that it has not executed, or that are on their way to
//! it. A write that is sent again before these are gone can be overtaken by its own earlier copy, and so undo a later
//! write. Every association has a [`Fence`]. It is sealed when the association is lost: from then on, nothing is
//! sent on it. It opens when the last connection has been given up and then the hold time has passed (TP4129), or
//! when another controller has reset this one (TP8028).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The fence of one association, which all its connections and all cores share.
#[derive(Debug)]
pub struct Fence {
    hold: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections that may still send.
    leases: u32,
    sealed: bool,
    /// When the last connection was given up, of a sealed association.
    quiet_at: Option<Instant>,
    /// The controller was reset.
    reset: bool,
}

/// The right of one connection to send on an association.
#[derive(Debug)]
pub(crate) struct Lease {
    fence: Arc<Fence>,
    released: bool,
}

impl Fence {
    /// The fence of an association whose commands may execute for `hold` after its last connection is gone.
    pub(crate) fn new(hold: Duration) -> Arc<Self> {
        Arc::new(Self { hold, state: Mutex::default() })
    }

    /// How long commands may execute after the last connection is gone.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.hold
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection send; `None` when the association is lost already.
    pub(crate) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let mut state = self.state();
        if state.sealed {
            return None;
        }
        state.leases += 1;
        Some(Lease { fence: Arc::clone(self), released: false })
    }

    /// The association is lost: no new connection may use it.
    pub(crate) fn seal(&self, now: Instant) {
        let mut state = self.state();
        state.sealed = true;
        if state.leases == 0 && state.quiet_at.is_none() {
            state.quiet_at = Some(now);
        }
    }

    /// The controller was reset, and executes none of the commands any more.
    pub(crate) fn mark_reset(&self) {
        self.state().reset = true;
    }

    /// Whether none of the association's commands can execute any more.
    #[must_use]
    pub fn is_open(&self, now: Instant) -> bool {
        let state = self.state();
        state.reset || state.quiet_at.is_some_and(|at| now >= at + self.hold)
    }

    /// When it opens without a reset, if that is known.
    #[must_use]
    pub fn opens_at(&self) -> Option<Instant> {
        self.state().quiet_at.map(|at| at + self.hold)
    }
}

impl Lease {
    /// The fence of the association.
    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// The connection is gone: nothing is sent on it any more. The first connection that is lost seals the
    /// association, since the others end with it (Fabrics 1.1, 2.3).
    pub(crate) fn release(mut self, now: Instant) {
        self.end(now);
    }

    fn end(&mut self, now: Instant) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let mut state = self.fence.state();
        state.leases -= 1;
        if state.leases == 0 && state.sealed && state.quiet_at.is_none() {
            state.quiet_at = Some(now);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A queue that is dropped with its socket, at the end of its thread: the time is that of the machine.
        self.end(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(3);

    #[test]
    fn it_opens_a_hold_time_after_the_last_connection() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let fence = Fence::new(HOLD);
        let [one, two] = [(); 2].map(|()| fence.lease().unwrap());
        one.release(at(1));
        assert!(!fence.is_open(at(100)), "a living association has commands");
        fence.seal(at(2));
        assert!(fence.lease().is_none());
        assert_eq!((fence.opens_at(), fence.is_open(at(100))), (None, false));
        two.release(at(5));
        assert_eq!(fence.opens_at(), Some(at(8)));
        assert!(!fence.is_open(at(7)) && fence.is_open(at(8)));
        fence.seal(at(20));
        assert_eq!(fence.opens_at(), Some(at(8)), "a second loss changes nothing");
    }

    #[test]
    fn a_reset_opens_it_at_once() {
        let now = Instant::now();
        let fence = Fence::new(HOLD);
        let lease = fence.lease().unwrap();
        fence.seal(now);
        fence.mark_reset();
        assert!(fence.is_open(now));
        drop(lease);
        assert!(fence.is_open(now));
    }

    #[test]
    fn an_association_without_connections_is_quiet_when_it_is_lost() {
        let now = Instant::now();
        let fence = Fence::new(HOLD);
        fence.seal(now);
        assert_eq!(fence.opens_at(), Some(now + HOLD));
    }
}
