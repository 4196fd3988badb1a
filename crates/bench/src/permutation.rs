//! A random order of many numbers, without remembering which have been visited.

use crate::random::mix;

/// Rounds of the network: four make it a good pseudorandom permutation (Luby, Rackoff: "How to
/// Construct Pseudorandom Permutations from Pseudorandom Functions", 1988).
const ROUNDS: u64 = 4;

/// A permutation of the numbers below a bound, chosen by a key: a Feistel network over the next
/// even number of bits, walked along until the result is below the bound (Black, Rogaway:
/// "Ciphers with Arbitrary Finite Domains", 2002). The domain is less than four times the bound,
/// so a number takes less than four walks in the mean.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    key: u64,
}

impl Permutation {
    /// The permutation of `0..count` that this key names.
    #[must_use]
    pub fn new(count: u64, key: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), key }
    }

    /// Where `number` goes.
    ///
    /// # Panics
    /// If it is not below the bound.
    #[must_use]
    pub fn get(&self, number: u64) -> u64 {
        assert!(number < self.count, "{number} is not below {}", self.count);
        let mut value = self.step(number);
        // The cycle that `number` is on comes back to it, so it leaves the outside again.
        while value >= self.count {
            value = self.step(value);
        }
        value
    }

    fn step(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let next = left ^ (mix(right ^ mix(self.key.wrapping_add(round))) & mask);
            (left, right) = (right, next);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for count in (1..70).chain([127, 128, 129, 1000, 4096, 4097]) {
            let order = Permutation::new(count, count ^ 7);
            let mut seen = vec![false; usize::try_from(count).unwrap()];
            for number in 0..count {
                let at = usize::try_from(order.get(number)).unwrap();
                assert!(!std::mem::replace(&mut seen[at], true), "{at} of {count} came twice");
            }
        }
    }

    #[test]
    fn the_largest_bounds_stay_in_range() {
        for count in [u64::MAX, 1 << 63, (1 << 63) + 1, (1 << 62) + 1] {
            let order = Permutation::new(count, 3);
            for number in [0, 1, count / 2, count - 1] {
                assert!(order.get(number) < count);
            }
        }
    }

    #[test]
    fn keys_give_other_orders_and_neighbours_part() {
        let order = |key| {
            let order = Permutation::new(1000, key);
            (0..1000).map(|number| order.get(number)).collect::<Vec<u64>>()
        };
        assert_ne!(order(1), order(2));
        assert_eq!(order(1), order(1));
        // In a random order, 2 of 999 pairs follow each other by one, in either direction.
        let steps = order(1).windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(steps < 10, "{steps}");
        // And the first tenth is spread over everything.
        let low = order(1)[..100].iter().filter(|&&number| number < 500).count();
        assert!((30..=70).contains(&low), "{low}");
    }
}
