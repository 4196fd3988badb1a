//! Random numbers that are the same for the same seed, on every machine and in every version.

/// The SplitMix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014): small, quick, and good enough to choose test inputs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let value = Random::mix(self.state);
        self.state = self.state.wrapping_add(INCREMENT);
        value
    }

    /// A number below `bound`, or 0 if that is 0. (Not perfectly even, which tests do not mind.)
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// A size from 1 to `max`, small and large ones equally often; 1 if `max` is 0.
    pub fn size(&mut self, max: usize) -> usize {
        let max = max.max(1) as u64;
        // First the magnitude, then the value, so that single bytes are not rare.
        let bits = self.below(u64::from(max.ilog2()) + 1);
        let size = (1 << bits) + self.below(1 << bits);
        usize::try_from(size.min(max)).unwrap_or(usize::MAX)
    }

    /// Scrambles a word.
    pub(crate) fn mix(word: u64) -> u64 {
        let mut word = word.wrapping_add(INCREMENT);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Scrambles bytes into a word.
    pub(crate) fn hash(bytes: &[u8]) -> u64 {
        let start = Random::mix(bytes.len() as u64);
        bytes
            .iter()
            .fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper() {
        // The published first outputs for seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn sizes_cover_their_range() {
        let mut random = Random::new(1);
        let sizes: Vec<usize> = (0..10_000).map(|_| random.size(100)).collect();
        assert!((1..=100).all(|size| sizes.contains(&size)));
        assert!(sizes.iter().all(|size| (1..=100).contains(size)));
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!((random.below(0), random.size(0)), (0, 1));
    }
}
