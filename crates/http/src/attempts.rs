//! Attempts with wrong tokens, by address: whoever has shown a few is told how long to wait.
//!
//! The right token counts at any time: all clients behind a proxy have one address, and one of them must not lock out the
//! others. That guesses are slow is the work of the guard, which delays each answer and bounds how many are delayed at a time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Wrong tokens that an address may show at once.
const BURST: u32 = 8;
/// How long it takes until it may show another one.
const REFILL: Duration = Duration::from_secs(4);
/// Addresses that are known. Beyond that, the one that waits least is forgotten.
const MAX_ADDRESSES: usize = 1024;

/// When each address will have all of its attempts again.
#[derive(Debug, Default)]
pub(crate) struct Attempts(HashMap<IpAddr, Instant>);

/// What counts as one address: whoever has one of IPv6 has 2^64 of them.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

impl Attempts {
    /// How long the address has to wait before its next attempt; `None`: it need not.
    pub(crate) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let full = self.0.get(&network(address))?;
        // One attempt is there when all but `BURST - 1` refills are over.
        let missing = full.saturating_duration_since(now);
        missing.checked_sub(REFILL * (BURST - 1)).filter(|wait| !wait.is_zero())
    }

    /// The address has shown a wrong token.
    pub(crate) fn note(&mut self, address: IpAddr, now: Instant) {
        self.0.retain(|_, full| *full > now);
        let address = network(address);
        if self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&address) {
            let least = self.0.iter().min_by_key(|(_, full)| **full).map(|(address, _)| *address);
            least.and_then(|address| self.0.remove(&address));
        }
        let full = self.0.entry(address).or_insert(now);
        *full = (*full).max(now) + REFILL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn an_address_waits_after_a_few_attempts_and_others_do_not() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(attempts.wait(v4(1), now), None);
            attempts.note(v4(1), now);
        }
        assert_eq!(attempts.wait(v4(1), now), Some(REFILL));
        assert_eq!(attempts.wait(v4(2), now), None);
        // The mapped form is the same address.
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0201]);
        assert_eq!(attempts.wait(mapped, now), Some(REFILL));
        let later = now + REFILL;
        assert_eq!(attempts.wait(v4(1), later), None);
        attempts.note(v4(1), later);
        assert_eq!(attempts.wait(v4(1), later), Some(REFILL));
        // It is forgotten when all of its attempts are there again.
        attempts.note(v4(2), later + REFILL * BURST);
        assert_eq!(attempts.0.len(), 1);
    }

    #[test]
    fn one_network_of_ipv6_is_one_address() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for host in 0..BURST {
            let low = u16::try_from(host).unwrap();
            attempts.note(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, low]), now);
        }
        assert!(attempts.wait(IpAddr::from([0x2001, 0xdb8, 0, 1, 9, 9, 9, 9]), now).is_some());
        assert_eq!(attempts.wait(IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1]), now), None);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for _ in 0..BURST {
            attempts.note(v4(1), now);
        }
        for number in 0..2 * u32::try_from(MAX_ADDRESSES).unwrap() {
            let address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            attempts.note(address, now);
        }
        assert_eq!(attempts.0.len(), MAX_ADDRESSES);
        assert!(attempts.wait(v4(1), now).is_some(), "those who wait are kept");
    }
}
