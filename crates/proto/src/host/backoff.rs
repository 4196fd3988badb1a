//! When a host tries to connect again: after delays that double, until it gives the controller up.

use std::time::{Duration, Instant};

/// How long a host tries to reach a controller that it has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// Delay before the first new attempt.
    pub first: Duration,
    /// The delay doubles up to this.
    pub longest: Duration,
    /// Give up this long after the loss (the ctrl_loss_tmo of Linux), with a last attempt at that moment;
    /// `None` never gives up, zero makes no attempt. A controller that comes back but whose I/O queues cannot
    /// be connected, because it does not answer or grants fewer queues than are in use, is still lost.
    pub give_up_after: Option<Duration>,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            give_up_after: Some(Duration::from_secs(600)),
        }
    }
}

impl BackoffConfig {
    /// Does not try again.
    pub const NEVER: Self = Self {
        first: Duration::ZERO,
        longest: Duration::ZERO,
        give_up_after: Some(Duration::ZERO),
    };
}

/// The attempts after one loss.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    config: BackoffConfig,
    lost_at: Instant,
    delay: Duration,
}

impl Backoff {
    /// The controller was lost just now.
    #[must_use]
    pub fn new(config: BackoffConfig, now: Instant) -> Self {
        Self { config, lost_at: now, delay: config.first }
    }

    /// When to try next, after the loss or a failed attempt; `None` to give up.
    pub fn next_attempt(&mut self, now: Instant) -> Option<Instant> {
        let at = now + self.delay;
        self.delay = self.delay.saturating_mul(2).min(self.config.longest);
        // A limit that is too far away for the clock is none.
        let Some(end) = self.config.give_up_after.and_then(|limit| self.lost_at.checked_add(limit))
        else {
            return Some(at);
        };
        (now < end).then(|| at.min(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_and_gives_up() {
        let start = Instant::now();
        let config = BackoffConfig {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(4),
            give_up_after: Some(Duration::from_secs(12)),
        };
        let mut backoff = Backoff::new(config, start);
        let mut now = start;
        let mut delays = Vec::new();
        while let Some(at) = backoff.next_attempt(now) {
            delays.push((at - now).as_secs());
            now = at;
        }
        // Not given up 11 s after the loss, because the next delay would end too late.
        assert_eq!(delays, [1, 2, 4, 4, 1]);
    }

    #[test]
    fn never_and_for_ever() {
        let now = Instant::now();
        assert_eq!(Backoff::new(BackoffConfig::NEVER, now).next_attempt(now), None);
        let config = BackoffConfig { give_up_after: None, ..BackoffConfig::default() };
        let late = now + Duration::from_secs(1_000_000);
        assert!(Backoff::new(config, now).next_attempt(late).is_some());
    }
}
