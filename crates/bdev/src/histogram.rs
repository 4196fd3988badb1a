//! A latency histogram that grows no further once it is made: logarithmic ranges of equal buckets.
//!
//! The shape is the one that SPDK's tools decode: range 0 and 1 hold one value per bucket, each
//! later range covers twice as many values as the one before it with as many buckets.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per range, as a power of two, unless asked otherwise: values within 0.8 %.
pub const DEFAULT_GRANULARITY: u8 = 7;
/// More buckets than that per range are refused: 58 ranges of them would be 4 MiB per core.
const MAX_GRANULARITY: u8 = 13;
/// Ends of the default shape: a value outside is counted in the first or last bucket.
const DEFAULT_MIN_NS: u64 = 1_000;
const DEFAULT_MAX_NS: u64 = 120_000_000_000;

/// Which values a histogram tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramShape {
    granularity: u8,
    min_range: u32,
    max_range: u32,
}

impl HistogramShape {
    /// Values from `min_ns` to below `max_ns`, with 2^`granularity` buckets for each power of two;
    /// `None` if `min_ns` is not below `max_ns`, or `granularity` is above 13.
    #[must_use]
    pub fn new(granularity: u8, min_ns: u64, max_ns: u64) -> Option<Self> {
        if granularity > MAX_GRANULARITY || min_ns >= max_ns {
            return None;
        }
        let range = |value| range_of(granularity, value);
        Some(Self { granularity, min_range: range(min_ns), max_range: range(max_ns - 1) })
    }

    /// Buckets per range, as a power of two.
    #[must_use]
    pub const fn granularity(self) -> u8 {
        self.granularity
    }

    /// The first and the last range that have buckets.
    #[must_use]
    pub const fn ranges(self) -> (u32, u32) {
        (self.min_range, self.max_range)
    }

    fn bucket_count(self) -> usize {
        ((self.max_range - self.min_range + 1) as usize) << self.granularity
    }

    /// Where a value is counted.
    fn bucket_of(self, value: u64) -> usize {
        let range = range_of(self.granularity, value);
        let last = (1_usize << self.granularity) - 1;
        if range < self.min_range {
            return 0;
        }
        if range > self.max_range {
            return self.bucket_count() - 1;
        }
        let within = value >> range.saturating_sub(1);
        let index = usize::try_from(within & last as u64).unwrap_or(last);
        ((range - self.min_range) as usize) << self.granularity | index
    }

    /// The first value that is above a bucket.
    #[must_use]
    pub fn bucket_end(self, bucket: usize) -> u64 {
        let range = self.min_range + u32::try_from(bucket >> self.granularity).unwrap_or(0);
        let index = (bucket & ((1 << self.granularity) - 1)) as u64 + 1;
        match range {
            0 => index,
            _ => (1_u64 << (range + u32::from(self.granularity) - 1))
                .saturating_add(index << (range - 1)),
        }
    }
}

impl Default for HistogramShape {
    fn default() -> Self {
        let (granularity, min, max) = (DEFAULT_GRANULARITY, DEFAULT_MIN_NS, DEFAULT_MAX_NS);
        let range = |value| range_of(granularity, value);
        Self { granularity, min_range: range(min), max_range: range(max - 1) }
    }
}

/// The range of a value: 0 for those that fit a range's buckets one by one, then one per bit.
const fn range_of(granularity: u8, value: u64) -> u32 {
    (u64::BITS - value.leading_zeros()).saturating_sub(granularity as u32)
}

/// Counts of one core, which any thread may read.
#[derive(Debug)]
pub(crate) struct CoreHistogram {
    shape: HistogramShape,
    buckets: Box<[AtomicU64]>,
}

impl CoreHistogram {
    pub(crate) fn new(shape: HistogramShape) -> Self {
        let buckets = std::iter::repeat_with(AtomicU64::default).take(shape.bucket_count());
        Self { shape, buckets: buckets.collect() }
    }

    /// Counts a value; only the core that owns it does.
    pub(crate) fn record(&self, value: u64) {
        let bucket = &self.buckets[self.shape.bucket_of(value)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Adds the counts to those of other cores, if they are of one shape.
    pub(crate) fn add_to(&self, sum: &mut Histogram) {
        if self.shape == sum.shape {
            for (sum, bucket) in sum.counts.iter_mut().zip(&self.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
        }
    }
}

/// Counts of all cores together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// What its buckets mean.
    pub shape: HistogramShape,
    /// One count per bucket.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// No values at all.
    #[must_use]
    pub fn empty(shape: HistogramShape) -> Self {
        Self { shape, counts: vec![0; shape.bucket_count()] }
    }

    /// How many values are up to each of the ascending `borders`, and then how many there are:
    /// a bucket counts for the first border that is not below its start.
    #[must_use]
    pub fn up_to(&self, borders: &[u64]) -> Vec<u64> {
        let mut sums = vec![0; borders.len() + 1];
        let mut start = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            let at = borders.iter().position(|border| start <= *border).unwrap_or(borders.len());
            sums[at] += count;
            start = self.shape.bucket_end(bucket);
        }
        for i in 1..sums.len() {
            sums[i] += sums[i - 1];
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_bucket_that_ends_above_it() {
        let whole = HistogramShape::new(DEFAULT_GRANULARITY, 0, u64::MAX).unwrap();
        assert_eq!(whole.ranges(), (0, 57));
        let mut last = 0;
        for value in (0..1000).chain((10..63).map(|bit| (1 << bit) + (1 << (bit - 3)))) {
            let bucket = whole.bucket_of(value);
            assert!(bucket >= last, "{value}");
            last = bucket;
            let end = whole.bucket_end(bucket);
            assert!(value < end && end - value <= (value >> 6).max(1), "{value} ends at {end}");
        }
    }

    #[test]
    fn values_outside_go_to_the_ends() {
        let shape = HistogramShape::default();
        let core = CoreHistogram::new(shape);
        [0, 5_000, u64::MAX].into_iter().for_each(|value| core.record(value));
        let mut sum = Histogram::empty(shape);
        core.add_to(&mut sum);
        core.add_to(&mut sum);
        assert_eq!((sum.counts[0], sum.counts.last()), (2, Some(&2)));
        assert_eq!(sum.counts.iter().sum::<u64>(), 6);
        assert_eq!(sum.up_to(&[4_000, 6_000]), [2, 4, 6]);
        assert_eq!(HistogramShape::new(7, 10, 10), None);
        assert_eq!(HistogramShape::new(40, 0, 10), None);
    }
}
