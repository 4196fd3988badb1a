//! When a host sends Keep Alive, and when it gives the controller up (Base 2.0, 3.9).

use std::time::{Duration, Instant};

/// What to do when the timer of a [`KeepAlive`] has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAliveAction {
    /// Send a Keep Alive command, then call [`KeepAlive::handle_response`] for its completion.
    Send,
    /// The last command was not answered for a whole KATO: the association is lost.
    Expired,
}

/// The schedule of one association: a command every KATO/2; the host gives up after KATO without answer.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    kato: Duration,
    /// When to send the next command, or, with one in flight, when to give up.
    deadline: Instant,
    waiting: bool,
}

impl KeepAlive {
    /// Starts the schedule; `None` when `kato_ms` is 0: no keep alive (Base 2.0, 3.9).
    #[must_use]
    pub fn new(kato_ms: u32, now: Instant) -> Option<Self> {
        let kato = Duration::from_millis(u64::from(kato_ms));
        (kato_ms > 0).then(|| Self { kato, deadline: now + kato / 2, waiting: false })
    }

    /// When to call [`Self::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// The deadline has passed, or the wake-up was spurious (`None`).
    pub fn handle_timeout(&mut self, now: Instant) -> Option<KeepAliveAction> {
        if now < self.deadline {
            return None;
        }
        if self.waiting {
            return Some(KeepAliveAction::Expired);
        }
        self.waiting = true;
        self.deadline = now + self.kato;
        Some(KeepAliveAction::Send)
    }

    /// The controller has answered.
    pub fn handle_response(&mut self, now: Instant) {
        self.waiting = false;
        self.deadline = now + self.kato / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_at_half_and_gives_up_after_a_whole() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut keep_alive = KeepAlive::new(5000, start).unwrap();
        assert_eq!(keep_alive.poll_timeout(), at(2500));
        assert_eq!(keep_alive.handle_timeout(at(2499)), None);
        assert_eq!(keep_alive.handle_timeout(at(2500)), Some(KeepAliveAction::Send));
        keep_alive.handle_response(at(2600));
        assert_eq!(keep_alive.poll_timeout(), at(5100));
        assert_eq!(keep_alive.handle_timeout(at(5100)), Some(KeepAliveAction::Send));
        assert_eq!(keep_alive.handle_timeout(at(10_099)), None);
        assert_eq!(keep_alive.handle_timeout(at(10_100)), Some(KeepAliveAction::Expired));
    }

    #[test]
    fn zero_is_off() {
        assert!(KeepAlive::new(0, Instant::now()).is_none());
    }
}
