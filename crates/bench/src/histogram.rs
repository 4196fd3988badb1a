//! Latencies: an HDR histogram with exact minimum, maximum and mean.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer latencies are not told apart.
const HIGHEST_NS: u64 = 100_000_000_000;
/// Percentiles are right to this many decimal digits.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The percentiles in reports: those that fio prints by default.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// Recorded latencies. All memory is allocated at creation; recording never allocates.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
}

impl Latencies {
    /// An empty record.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("constant bounds are valid");
        Self { histogram, min_ns: u64::MAX, max_ns: 0, sum_ns: 0 }
    }

    /// Records one latency.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    /// Records the same latency in nanoseconds `count` times.
    pub fn record_ns(&mut self, ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.histogram.saturating_record_n(ns, count);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += u128::from(ns) * u128::from(count);
    }

    /// Adds everything that `other` recorded.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all records have the same bounds");
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
    }

    /// Number of recorded latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The shortest, exact; 0 if there is none.
    #[must_use]
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min_ns }
    }

    /// The longest, exact; 0 if there is none.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean, exact; 0 if there is none.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 }
    }

    /// The standard deviation, to the precision of the histogram.
    #[must_use]
    pub fn stddev_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.histogram.stdev() }
    }

    /// All records: pairs of upper bound in nanoseconds and number, ascending, without empty ones.
    #[must_use]
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let bucket = |value: hdrhistogram::iterators::IterationValue<u64>| {
            (value.value_iterated_to(), value.count_at_value())
        };
        self.histogram.iter_recorded().map(bucket).collect()
    }

    /// The latency that `percentile` percent of the records do not exceed; 0 if there is none.
    #[must_use]
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        // A histogram gives the upper end of a bucket, which may be beyond the true maximum.
        self.histogram.value_at_percentile(percentile).clamp(self.min_ns, self.max_ns)
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(values_ns: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        values_ns.into_iter().for_each(|ns| latencies.record(Duration::from_nanos(ns)));
        latencies
    }

    fn close(value: u64, expected: u64) {
        assert!(value.abs_diff(expected) * 1000 <= expected, "{value} is not about {expected}");
    }

    #[test]
    fn nothing_recorded_is_all_zeroes() {
        let none = record([]);
        assert_eq!(
            (none.count(), none.min_ns(), none.max_ns(), none.percentile_ns(99.0)),
            (0, 0, 0, 0)
        );
        assert!(none.mean_ns() == 0.0 && none.stddev_ns() == 0.0);
    }

    #[test]
    fn percentiles_of_a_ramp() {
        let ramp = record((1..=100_000).map(|us| us * 1000));
        assert_eq!((ramp.count(), ramp.min_ns(), ramp.max_ns()), (100_000, 1000, 100_000_000));
        assert!((ramp.mean_ns() - 50_000_500.0).abs() < 1.0);
        close(ramp.percentile_ns(50.0), 50_000_000);
        close(ramp.percentile_ns(99.0), 99_000_000);
        close(ramp.percentile_ns(99.99), 99_990_000);
        // A uniform distribution deviates by its width over the square root of 12.
        assert!((ramp.stddev_ns() / 28_867_513.0 - 1.0).abs() < 0.001);
    }

    #[test]
    fn one_outlier_is_the_last_percentile_only() {
        let mut latencies = record(std::iter::repeat_n(10_000, 9_999));
        latencies.record(Duration::from_millis(5));
        close(latencies.percentile_ns(99.9), 10_000);
        close(latencies.percentile_ns(99.995), 5_000_000);
        assert_eq!(latencies.max_ns(), 5_000_000);
    }

    #[test]
    fn buckets_hold_all_records() {
        let latencies = record([100, 100, 5_000_000]);
        let buckets = latencies.buckets();
        assert_eq!(buckets[0], (100, 2));
        assert_eq!((buckets.len(), buckets[1].1), (2, 1));
        close(buckets[1].0, 5_000_000);
    }

    #[test]
    fn a_single_value_is_every_percentile() {
        let one = record([1_234_567]);
        assert!(PERCENTILES.iter().all(|&percentile| one.percentile_ns(percentile) == 1_234_567));
    }

    #[test]
    fn too_long_is_counted_and_its_maximum_exact() {
        let latencies = record([HIGHEST_NS * 3]);
        assert_eq!((latencies.count(), latencies.max_ns()), (1, HIGHEST_NS * 3));
    }

    #[test]
    fn merging_is_as_recording_together() {
        let (even, odd): (Vec<u64>, Vec<u64>) = (1..10_000).partition(|ns| ns % 2 == 0);
        let mut merged = record(even);
        merged.merge(&record(odd));
        merged.merge(&record([]));
        let together = record(1..10_000);
        assert_eq!(merged.count(), together.count());
        assert_eq!((merged.min_ns(), merged.max_ns()), (1, 9_999));
        assert!(merged.mean_ns() == together.mean_ns());
        for percentile in PERCENTILES {
            assert_eq!(merged.percentile_ns(percentile), together.percentile_ns(percentile));
        }
    }
}
