//! Latencies of runs, merged, with their percentiles.

use std::collections::BTreeMap;

use crate::record::Run;

/// A percentile is shown when at least this number of latencies is beyond it: P99.99 needs 100 000.
pub const SAMPLES_BEYOND_MIN: f64 = 10.0;

/// Latencies by upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

impl Histogram {
    /// The latencies of these runs together. Percentiles of runs are never averaged.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Self {
        let mut all = Self::default();
        for run in runs {
            all.add(&run.latencies);
        }
        all
    }

    /// Adds latencies: pairs of upper bound in nanoseconds and number of commands.
    pub fn add(&mut self, latencies: &[(u64, u64)]) {
        for &(bound_ns, count) in latencies {
            let slot = self.counts.entry(bound_ns).or_default();
            *slot = slot.saturating_add(count);
            self.total = self.total.saturating_add(count);
        }
    }

    /// Number of commands.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The mean of the upper bounds in nanoseconds: at most 0.1 % above the mean of the latencies.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        let sum: f64 = self.counts.iter().map(|(&ns, &count)| ns as f64 * count as f64).sum();
        (self.total > 0).then(|| sum / self.total as f64)
    }

    /// The latency in nanoseconds that this percentage does not exceed. `None` if fewer than
    /// [`SAMPLES_BEYOND_MIN`] commands are beyond it: they would be a handful of accidents.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let total = self.total as f64;
        let beyond = total * (100.0 - percent) / 100.0;
        // 100 000 x 0.01 % is slightly less than 10 in floating point.
        (beyond >= SAMPLES_BEYOND_MIN - 1e-6).then(|| self.at_share(percent / 100.0))?
    }

    /// Shares of commands with latencies in nanoseconds, ascending: the distribution for a plot.
    #[must_use]
    pub fn distribution(&self) -> Vec<(f64, u64)> {
        let mut seen = 0;
        let share = |(&ns, &count): (&u64, &u64)| {
            seen = count.saturating_add(seen);
            (seen as f64 / self.total.max(1) as f64, ns)
        };
        self.counts.iter().map(share).collect()
    }

    fn at_share(&self, share: f64) -> Option<u64> {
        let wanted = share * self.total as f64;
        let mut seen = 0;
        for (&ns, &count) in &self.counts {
            seen = count.saturating_add(seen);
            if seen as f64 >= wanted - 1e-6 {
                return Some(ns);
            }
        }
        None
    }
}
