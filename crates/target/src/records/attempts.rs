//! Authentications that failed, by source: how many a source may have before its hosts have to wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::records::early::Source;

/// The time after which one failure is forgiven.
const FORGIVE: Duration = Duration::from_secs(3);
/// Sources whose failures are remembered.
const MAX_SOURCES: usize = 4096;

/// The failures of each source that has any which are not forgiven.
pub(crate) struct Attempts {
    /// How many a source may have at once.
    burst: u32,
    /// When the last failure of each source will be forgiven.
    clear_at: HashMap<Source, Instant>,
}

impl Attempts {
    pub(crate) fn new(burst: u32) -> Self {
        Self { burst, clear_at: HashMap::new() }
    }

    /// Whether a host of this source may try to authenticate.
    pub(crate) fn may_try(&self, address: IpAddr, now: Instant) -> bool {
        let clear_at = self.clear_at.get(&Source::of(address)).copied();
        let wait = clear_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        wait + FORGIVE <= FORGIVE.saturating_mul(self.burst)
    }

    /// An authentication has failed, or was begun and left.
    pub(crate) fn failed(&mut self, address: IpAddr, now: Instant) {
        let source = Source::of(address);
        if self.clear_at.len() >= MAX_SOURCES && !self.clear_at.contains_key(&source) {
            self.clear_at.retain(|_, clear_at| *clear_at > now);
            // All of them have failed lately: the one with the fewest failures is forgotten.
            if self.clear_at.len() >= MAX_SOURCES {
                let best = self.clear_at.iter().min_by_key(|(_, clear_at)| **clear_at);
                if let Some(best) = best.map(|(source, _)| *source) {
                    self.clear_at.remove(&best);
                }
            }
        }
        let clear_at = self.clear_at.entry(source).or_insert(now);
        *clear_at = (*clear_at).max(now) + FORGIVE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u32 = 20;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_source_has_its_burst_and_is_forgiven_in_time() {
        let (mut attempts, now) = (Attempts::new(BURST), Instant::now());
        for _ in 0..BURST {
            assert!(attempts.may_try(address(1), now));
            attempts.failed(address(1), now);
        }
        assert!(!attempts.may_try(address(1), now));
        assert!(attempts.may_try(address(2), now), "another source has nothing to do with it");
        let later = now + FORGIVE;
        assert!(attempts.may_try(address(1), later));
        attempts.failed(address(1), later);
        assert!(!attempts.may_try(address(1), later));
        assert!(attempts.may_try(address(1), later + FORGIVE));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_worst() {
        let (mut attempts, now) = (Attempts::new(BURST), Instant::now());
        for _ in 0..BURST {
            attempts.failed(address(0), now);
        }
        for number in 1..=3 * u32::try_from(MAX_SOURCES).unwrap() {
            attempts.failed(address(number), now);
        }
        assert_eq!(attempts.clear_at.len(), MAX_SOURCES);
        assert!(!attempts.may_try(address(0), now));
        // What is forgiven makes room.
        attempts.failed(address(u32::MAX), now + 2 * FORGIVE);
        assert_eq!(attempts.clear_at.len(), 2);
    }
}
