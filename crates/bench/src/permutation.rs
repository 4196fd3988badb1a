//! A random order of many numbers, without a memory of visited ones.

use crate::random::mix;

/// Odd factors whose products depend on all bits below (those of SplitMix64's finalizer).
const FACTORS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// A permutation of the numbers below a bound, chosen by a key. Adding, multiplying by an odd number, and
/// folding the upper bits into the lower ones are bijections of the numbers of some bits. They use the
/// least number of bits that holds the bound, and are repeated until the result is below the bound (Black,
/// Rogaway: "Ciphers with Arbitrary Finite Domains", 2002). The domain is less than twice the bound, so a
/// number takes less than two steps in the mean.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    mask: u64,
    /// Number of bits by which the upper bits are shifted down to the lower ones.
    fold: u32,
    keys: [u64; 2],
}

impl Permutation {
    /// The permutation of `0..count` for this key.
    #[must_use]
    pub fn new(count: u64, key: u64) -> Self {
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(1);
        let keys = [mix(key), mix(key.wrapping_add(1))];
        Self { count, mask: u64::MAX >> (u64::BITS - bits), fold: bits.div_ceil(2), keys }
    }

    /// The image of `number`.
    ///
    /// # Panics
    /// If it is not below the bound.
    #[must_use]
    #[inline]
    pub fn get(&self, number: u64) -> u64 {
        assert!(number < self.count, "{number} is not below {}", self.count);
        let mut value = self.step(number);
        // `number` is below the bound, and its cycle returns to it, so the loop ends.
        while value >= self.count {
            value = self.step(value);
        }
        value
    }

    fn step(&self, value: u64) -> u64 {
        let mut value = value;
        for (key, factor) in self.keys.into_iter().zip(FACTORS) {
            value = value.wrapping_add(key) & self.mask;
            value ^= value >> self.fold;
            value = value.wrapping_mul(factor) & self.mask;
            value ^= value >> self.fold;
        }
        value
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
        // In a random order, 2 of 999 neighbouring pairs differ by one, in either direction.
        let steps = order(1).windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(steps < 10, "{steps}");
        // The first tenth is spread over the whole range.
        let low = order(1)[..100].iter().filter(|&&number| number < 500).count();
        assert!((30..=70).contains(&low), "{low}");
    }
}
