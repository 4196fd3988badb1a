//! Medians, ratios and their intervals, and percentiles, computed from the runs of a record.
//!
//! The unit is the run, not the command: commands of one run depend on each other. Ratios are taken within a
//! block, whose runs were made one after the other. Intervals are of 95 %. The same runs always give the same
//! intervals: the seed of the resampling is fixed.

mod bootstrap;
mod histogram;
mod wall;

use crate::record::{Point, Run};

pub use bootstrap::{RESAMPLES, bootstrap_mean};
pub use histogram::{Histogram, SAMPLES_BEYOND_MIN};
pub use wall::{WALL, at_place, places};

/// Probability that an interval holds the true value.
pub const CONFIDENCE: f64 = 0.95;
/// Ratios whose interval is within this distance of 1 are equal for practical purposes.
pub const EQUIVALENCE_BAND: f64 = 0.03;
/// Fewest runs for an interval: with five, the extremes hold the median in 93.75 % of cases.
pub const RUNS_MIN: usize = 6;
/// Largest error of [`little_percent`] in a closed loop, in percent.
pub const LITTLE_PERCENT_MAX: f64 = 3.0;

/// A range that holds the true value with [`CONFIDENCE`] or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Interval {
    /// Whether it has this value.
    #[must_use]
    pub fn has(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether both have a value in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// A value over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Its interval; `None` if the runs are too few ([`RUNS_MIN`]).
    pub interval: Option<Interval>,
    /// Number of runs or blocks.
    pub runs: usize,
}

/// What a ratio says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is above 1.
    Higher,
    /// It is below 1.
    Lower,
    /// It is 1 for practical purposes ([`EQUIVALENCE_BAND`]).
    Same,
    /// The runs do not tell.
    Undecided,
}

impl Verdict {
    /// What the interval of a ratio says.
    #[must_use]
    pub fn of(interval: Option<Interval>) -> Self {
        let Some(Interval { low, high }) = interval else { return Self::Undecided };
        if low >= 1.0 - EQUIVALENCE_BAND && high <= 1.0 + EQUIVALENCE_BAND {
            Self::Same
        } else if low > 1.0 {
            Self::Higher
        } else if high < 1.0 {
            Self::Lower
        } else {
            Self::Undecided
        }
    }
}

/// The median; `None` of nothing, or if a value is not finite.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).map(|sorted| middle(&sorted))
}

/// The median of some runs with its interval, by order statistics: no distribution is assumed.
#[must_use]
pub fn median_estimate(values: &[f64]) -> Option<Estimate> {
    let sorted = sorted(values)?;
    let interval = order_rank(sorted.len())
        .map(|rank| Interval { low: sorted[rank - 1], high: sorted[sorted.len() - rank] });
    Some(Estimate { value: middle(&sorted), interval, runs: sorted.len() })
}

fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[half - 1], sorted[half])
    } else {
        sorted[half]
    }
}

/// The greatest rank (from 1) such that the values of this rank from below and from above hold the median
/// with [`CONFIDENCE`]; `None` if not even the extremes do.
#[must_use]
pub fn order_rank(runs: usize) -> Option<usize> {
    // The probability that at most rank - 1 of the runs are below the median.
    let mut term = 0.5_f64.powi(i32::try_from(runs).ok()?);
    let mut below = term;
    let mut rank = None;
    for at in 1..=runs.div_ceil(2) {
        if 2.0 * below > 1.0 - CONFIDENCE {
            break;
        }
        rank = Some(at);
        term *= (runs - at + 1) as f64 / at as f64;
        below += term;
    }
    rank
}

/// The values of a metric by block, over those blocks in which both points have it: pairs of both.
#[must_use]
pub fn pairs(of: &Point, over: &Point, metric: &str) -> Vec<(f64, f64)> {
    let value = |run: &Run| run.values.get(metric).copied().filter(|value| value.is_finite());
    let pair = |run: &Run| {
        let other = over.runs.iter().find(|other| other.block == run.block)?;
        Some((value(run)?, value(other)?))
    };
    of.runs.iter().filter_map(pair).collect()
}

/// The ratio of two points: the geometric mean of the ratios of their blocks. `None` if no block has both,
/// or a value is not above 0.
#[must_use]
pub fn ratio(of: &Point, over: &Point, metric: &str) -> Option<Estimate> {
    ratio_of(&pairs(of, over, metric))
}

/// The ratio of pairs of values, see [`ratio`].
#[must_use]
pub fn ratio_of(pairs: &[(f64, f64)]) -> Option<Estimate> {
    if pairs.is_empty() || pairs.iter().any(|&(of, over)| of <= 0.0 || over <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|&(of, over)| (of / over).ln()).collect();
    let estimate = bootstrap_mean(&logs);
    Some(Estimate {
        value: estimate.value.exp(),
        interval: estimate
            .interval
            .map(|interval| Interval { low: interval.low.exp(), high: interval.high.exp() }),
        runs: logs.len(),
    })
}

/// The difference of two points: the mean of the differences of their blocks.
#[must_use]
pub fn difference(of: &Point, less: &Point, metric: &str) -> Option<Estimate> {
    let differences: Vec<f64> =
        pairs(of, less, metric).into_iter().map(|(of, less)| of - less).collect();
    (!differences.is_empty()).then(|| bootstrap_mean(&differences))
}

/// The values of a metric over all runs of a point.
#[must_use]
pub fn values(point: &Point, metric: &str) -> Vec<f64> {
    point.runs.iter().filter_map(|run| run.values.get(metric).copied()).collect()
}

/// The mean number of commands in flight by Little's law, in percent of the depth that was set. In a closed
/// loop it is 100 unless commands were lost or the depth was another one.
#[must_use]
pub fn little_percent(iops: f64, mean_us: f64, depth: f64) -> f64 {
    if depth > 0.0 { 100.0 * iops * mean_us / 1e6 / depth } else { 0.0 }
}

/// Blocks that are needed to see a ratio that differs by `difference` (0.03 is 3 %) in four of five cases,
/// when the logarithms of the blocks' ratios deviate by `deviation`.
#[must_use]
pub fn blocks_needed(deviation: f64, difference: f64) -> usize {
    if deviation <= 0.0 || difference <= 0.0 {
        return RUNS_MIN;
    }
    let needed = ((1.96 + 0.84) * deviation / difference).powi(2).ceil().min(10_000.0);
    (1..10_000_usize).find(|&count| count as f64 >= needed).unwrap_or(10_000).max(RUNS_MIN)
}

#[cfg(test)]
mod tests;
