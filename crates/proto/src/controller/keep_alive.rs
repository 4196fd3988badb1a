//! When an association ends because its host is silent (Base 2.0, 3.9; Fabrics 1.1, 4.5).

use std::time::{Duration, Instant};

use super::AbandonReason;
use super::subsystem::Limits;

/// How often the cores of I/O queues report traffic. Added to the timeout, so that a report that is
/// still on its way cannot end the association.
pub const TRAFFIC_REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// How long a discovery controller without keep alive may be idle.
pub const DISCOVERY_IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a controller may exist without being enabled, or after its shutdown.
pub const ASSOCIATION_TIMEOUT: Duration = Duration::from_secs(120);

/// The unit of KAS.
const KAS_UNIT_MS: u32 = 100;

/// What KATO is rounded to.
#[derive(Clone, Copy, Debug)]
struct Rounding {
    granularity_ms: u32,
    min_ms: u32,
}

impl Rounding {
    fn new(limits: &Limits) -> Self {
        let granularity_ms = u32::from(limits.keep_alive_granularity.max(1)) * KAS_UNIT_MS;
        Self { granularity_ms, min_ms: limits.min_keep_alive_ms }
    }

    /// KATO is rounded up to the granularity (Base 2.0, 5.27.1.12), and raised to the minimum. The greatest
    /// multiple that 32 bits hold is the limit. 0 stays 0.
    fn granted(self, kato_ms: u32) -> u32 {
        if kato_ms == 0 {
            return 0;
        }
        let most = u32::MAX / self.granularity_ms;
        kato_ms.max(self.min_ms).div_ceil(self.granularity_ms).min(most) * self.granularity_ms
    }
}

/// The timers of one association.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    is_discovery: bool,
    rounding: Rounding,
    pub(super) kato_ms: u32,
    pub(super) last_command: Instant,
    /// Set while the controller is not enabled, or is shut down.
    pub(super) disabled_since: Option<Instant>,
    /// No keep alive after a shutdown, until the next enable.
    pub(super) shut_down: bool,
}

impl KeepAlive {
    pub(crate) fn new(kato_ms: u32, limits: &Limits, is_discovery: bool, now: Instant) -> Self {
        let rounding = Rounding::new(limits);
        Self {
            is_discovery,
            rounding,
            kato_ms: rounding.granted(kato_ms),
            last_command: now,
            disabled_since: Some(now),
            shut_down: false,
        }
    }

    /// KATO in milliseconds, 0 for none.
    pub(crate) fn kato_ms(&self) -> u32 {
        self.kato_ms
    }

    /// Sets a new KATO, which counts from now on.
    pub(crate) fn set_kato_ms(&mut self, kato_ms: u32) {
        self.kato_ms = self.rounding.granted(kato_ms);
    }

    /// Whether the host asked for a timeout: a discovery association is then persistent, and
    /// gets events.
    pub(crate) fn has_timeout(&self) -> bool {
        self.kato_ms != 0
    }

    pub(crate) fn command_seen(&mut self, at: Instant) {
        self.last_command = self.last_command.max(at);
    }

    pub(crate) fn enabled(&mut self) {
        self.disabled_since = None;
        self.shut_down = false;
    }

    pub(crate) fn disabled(&mut self, now: Instant, shut_down: bool) {
        self.command_seen(now);
        self.disabled_since = Some(now);
        self.shut_down = shut_down;
    }

    /// The earliest deadline, and the reason to abandon the association when it is missed.
    pub(crate) fn deadline(&self) -> Option<(Instant, AbandonReason)> {
        let association = self
            .disabled_since
            .map(|since| (since + ASSOCIATION_TIMEOUT, AbandonReason::NotEnabled));
        let silence = match (self.kato_ms, self.is_discovery) {
            _ if self.shut_down => None,
            (0, false) => None,
            (0, true) => {
                Some((self.last_command + DISCOVERY_IDLE_TIMEOUT, AbandonReason::DiscoveryIdle))
            }
            (kato_ms, _) => {
                let timeout = Duration::from_millis(kato_ms.into()) + TRAFFIC_REPORT_INTERVAL;
                Some((self.last_command + timeout, AbandonReason::KeepAliveExpired))
            }
        };
        [association, silence].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kato_is_rounded_up_to_kas_and_to_the_least() {
        let granted = |keep_alive_granularity, min_keep_alive_ms, kato_ms| {
            let limits = Limits { keep_alive_granularity, min_keep_alive_ms, ..Limits::DEFAULT };
            Rounding::new(&limits).granted(kato_ms)
        };
        for (asked, expected) in
            [(0, 0), (1, 1000), (1000, 1000), (1001, 2000), (5000, 5000), (u32::MAX, 4_294_967_000)]
        {
            assert_eq!(granted(10, 1000, asked), expected, "{asked}");
        }
        for (asked, expected) in [(0, 0), (1, 10_000), (10_000, 10_000), (10_001, 20_000)] {
            assert_eq!(granted(100, 10_000, asked), expected, "{asked}");
        }
        for (asked, expected) in [(0, 0), (1, 3000), (2500, 3000), (3001, 4000)] {
            assert_eq!(granted(10, 2500, asked), expected, "{asked}");
        }
        assert_eq!(granted(u16::MAX, 1, 1), 6_553_500);
        assert_eq!(granted(1, u32::MAX, 1), 4_294_967_200);
    }
}
