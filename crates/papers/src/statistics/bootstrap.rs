//! The bootstrap: the interval of a mean from resampled blocks, by percentiles or, for few blocks, corrected for
//! bias and skewness (BCa; Efron 1987).

use raceline_bench::random::Random;

use super::{CONFIDENCE, Estimate, Interval, RUNS_MIN};

/// Number of resamples.
pub const RESAMPLES: usize = 10_000;
/// The seed of the resampling.
const SEED: u64 = 20_260_729;
/// From this number of values on, percentiles need no correction.
const PLAIN_MIN: usize = 20;

/// The mean of these values with its interval. No value gives a mean of 0 without an interval.
#[must_use]
pub fn bootstrap_mean(values: &[f64]) -> Estimate {
    let count = values.len();
    let value = mean(values);
    if count < RUNS_MIN || values.iter().any(|value| !value.is_finite()) {
        return Estimate { value, interval: None, runs: count };
    }
    let mut means = resampled(values);
    means.sort_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (low, high) =
        if count >= PLAIN_MIN { (tail, 1.0 - tail) } else { corrected(values, &means, tail) };
    let interval = Interval { low: quantile(&means, low), high: quantile(&means, high) };
    Estimate { value, interval: Some(interval), runs: count }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn resampled(values: &[f64]) -> Vec<f64> {
    let mut random = Random::new(SEED);
    let count = values.len() as u64;
    let mut pick = || usize::try_from(random.below(count)).map_or(0.0, |index| values[index]);
    (0..RESAMPLES)
        .map(|_| (0..values.len()).map(|_| pick()).sum::<f64>() / values.len() as f64)
        .collect()
}

/// The probabilities at which the corrected interval ends.
fn corrected(values: &[f64], means: &[f64], tail: f64) -> (f64, f64) {
    let at = mean(values);
    let below = means.iter().filter(|&&mean| mean < at).count() as f64;
    let same = means.iter().filter(|&&mean| mean.to_bits() == at.to_bits()).count() as f64;
    let share = (below + same / 2.0) / means.len() as f64;
    if share <= 0.0 || share >= 1.0 {
        return (tail, 1.0 - tail);
    }
    let bias = normal_quantile(share);
    let acceleration = acceleration(values);
    let end = |probability: f64| {
        let z = bias + normal_quantile(probability);
        normal_share(bias + z / (1.0 - acceleration * z))
    };
    (end(tail), end(1.0 - tail))
}

/// The skewness of the means that leave one value out.
fn acceleration(values: &[f64]) -> f64 {
    let (sum, count) = (values.iter().sum::<f64>(), values.len() as f64);
    let left_out: Vec<f64> = values.iter().map(|value| (sum - value) / (count - 1.0)).collect();
    let middle = mean(&left_out);
    let power =
        |exponent| left_out.iter().map(|value| (middle - value).powi(exponent)).sum::<f64>();
    let squares: f64 = power(2);
    if squares > 0.0 { power(3) / (6.0 * squares.powf(1.5)) } else { 0.0 }
}

/// The value below which this share of the sorted values is.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let index = (0..sorted.len()).take_while(|&index| index as f64 <= position).last().unwrap_or(0);
    let next = sorted[(index + 1).min(sorted.len() - 1)];
    sorted[index] + (next - sorted[index]) * (position - index as f64)
}

/// The share of the standard normal distribution below `z` (Abramowitz and Stegun 7.1.26, to 1.5e-7).
pub(super) fn normal_share(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = series.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    let half = 0.5 * (1.0 - sum * (-x * x).exp());
    if z < 0.0 { 0.5 - half } else { 0.5 + half }
}

/// The inverse of [`normal_share`], by bisection.
pub(super) fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if normal_share(middle) < share { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}
