//! Statistics against answers that are known from elsewhere.

use std::collections::BTreeMap;

use super::bootstrap::{normal_quantile, normal_share};
use super::*;

fn near(value: f64, expected: f64, within: f64) {
    assert!((value - expected).abs() <= within, "{value} is not about {expected}");
}

fn point(values: &[f64]) -> Point {
    let run = |(block, &value): (u32, &f64)| Run {
        block,
        values: BTreeMap::from([("iops".to_owned(), value)]),
        latencies: Vec::new(),
        target_bound: None,
        foreign_percent: 0.0,
        stolen_percent: 0.0,
    };
    let runs = (0..).zip(values).map(run).collect();
    Point { series: "s".to_owned(), x: "1".to_owned(), runs }
}

/// A record with nothing but points.
pub(super) fn record(points: Vec<Point>) -> crate::record::Record {
    crate::record::Record {
        schema: crate::record::SCHEMA,
        experiment: "X".to_owned(),
        version: String::new(),
        started_unix_s: 0,
        took_s: 0.0,
        seed: 1,
        effort: crate::record::Effort::Quick,
        bed: crate::record::Bed { kind: "loopback".to_owned(), description: String::new() },
        stand_ins: Vec::new(),
        settings: BTreeMap::new(),
        environment: serde_json::Value::Null,
        points,
        missing: Vec::new(),
        discarded_blocks: 0,
        complete: true,
    }
}

#[test]
fn ranks_of_the_medians_interval() {
    // From the binomial distribution; the ranks are from below and from above.
    let ranks: [(usize, Option<usize>); 9] = [
        (5, None),
        (6, Some(1)),
        (8, Some(1)),
        (10, Some(2)),
        (12, Some(3)),
        (15, Some(4)),
        (20, Some(6)),
        (30, Some(10)),
        (0, None),
    ];
    for (runs, rank) in ranks {
        assert_eq!(order_rank(runs), rank, "{runs} runs");
    }
}

#[test]
fn medians() {
    assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0])), (None, Some(2.0)));
    assert_eq!((median(&[4.0, 1.0, 2.0, 3.0]), median(&[1.0, f64::NAN])), (Some(2.5), None));
    let values: Vec<f64> = (1..=10).map(f64::from).collect();
    let estimate = median_estimate(&values).unwrap();
    assert_eq!((estimate.value, estimate.runs), (5.5, 10));
    assert_eq!(estimate.interval, Some(Interval { low: 2.0, high: 9.0 }));
    assert_eq!(median_estimate(&[1.0; 5]).unwrap().interval, None);
}

#[test]
fn the_normal_distribution() {
    near(normal_share(0.0), 0.5, 1e-7);
    near(normal_share(1.96), 0.975_002, 1e-6);
    near(normal_share(-1.0), 0.158_655, 1e-6);
    near(normal_quantile(0.975), 1.959_964, 1e-4);
    near(normal_quantile(0.5), 0.0, 1e-6);
}

#[test]
fn a_constant_ratio_has_no_spread() {
    let over = point(&[100.0, 130.0, 80.0, 90.0, 110.0, 120.0]);
    let of = point(&[150.0, 195.0, 120.0, 135.0, 165.0, 180.0]);
    let ratio = ratio(&of, &over, "iops").unwrap();
    near(ratio.value, 1.5, 1e-12);
    let interval = ratio.interval.unwrap();
    near(interval.low, 1.5, 1e-9);
    near(interval.high, 1.5, 1e-9);
    assert_eq!(Verdict::of(ratio.interval), Verdict::Higher);
}

#[test]
fn blocks_that_one_side_lacks_do_not_count() {
    let mut of = point(&[2.0, 2.0, 2.0]);
    of.runs.remove(1);
    let found = pairs(&of, &point(&[1.0, 1.0, 1.0, 1.0]), "iops");
    assert_eq!(found, [(2.0, 1.0), (2.0, 1.0)]);
    assert_eq!(ratio(&of, &point(&[1.0]), "none"), None);
    assert_eq!(ratio_of(&[(1.0, 0.0)]), None);
}

#[test]
fn intervals_of_the_mean_are_those_of_theory() {
    // The mean of n values deviates by s / sqrt(n): for a wide sample both ends are 1.96 of that away.
    let values: Vec<f64> = (0..100).map(|index| f64::from(index % 10)).collect();
    let estimate = bootstrap_mean(&values);
    near(estimate.value, 4.5, 1e-12);
    let half = 1.96 * (8.25_f64 / 100.0).sqrt();
    let interval = estimate.interval.unwrap();
    near(interval.low, 4.5 - half, 0.03);
    near(interval.high, 4.5 + half, 0.03);
    assert_eq!(bootstrap_mean(&values), estimate, "the same values give the same interval");
    // Few values: corrected, and not symmetric where the values are not.
    let skewed = bootstrap_mean(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0]);
    let interval = skewed.interval.unwrap();
    assert!(interval.high - skewed.value > skewed.value - interval.low, "{interval:?}");
    assert_eq!(bootstrap_mean(&[1.0; 5]).interval, None);
}

#[test]
fn verdicts_need_an_interval_beside_one() {
    let of = |low, high| Verdict::of(Some(Interval { low, high }));
    assert_eq!((of(1.1, 1.3), of(0.7, 0.9)), (Verdict::Higher, Verdict::Lower));
    assert_eq!((of(0.98, 1.02), of(0.9, 1.1)), (Verdict::Same, Verdict::Undecided));
    assert_eq!((of(1.01, 1.02), Verdict::of(None)), (Verdict::Same, Verdict::Undecided));
}

#[test]
fn percentiles_need_enough_commands() {
    let mut all = Histogram::default();
    all.add(&[(1000, 90_000), (2000, 9_000)]);
    all.add(&[(2000, 990), (5000, 10)]);
    assert_eq!(all.count(), 100_000);
    assert_eq!((all.percentile_ns(50.0), all.percentile_ns(90.0)), (Some(1000), Some(1000)));
    assert_eq!((all.percentile_ns(99.0), all.percentile_ns(99.99)), (Some(2000), Some(2000)));
    assert_eq!(all.percentile_ns(99.999), None);
    near(all.mean_ns().unwrap(), (90_000.0 * 1000.0 + 9_990.0 * 2000.0 + 50_000.0) / 1e5, 1e-6);
    let mut few = Histogram::default();
    few.add(&[(1000, 99_999)]);
    assert_eq!(few.percentile_ns(99.99), None);
    assert_eq!(Histogram::default().mean_ns(), None);
    assert_eq!(all.distribution().first(), Some(&(0.9, 1000)));
}

#[test]
fn littles_law() {
    // 480 commands in flight at 2.8 M IOPS last 171.4 us.
    near(little_percent(2.8e6, 171.43, 480.0), 100.0, 0.01);
    near(little_percent(80e3, 396.0, 16.0), 198.0, 0.01);
}

#[test]
fn numbers_of_blocks() {
    assert_eq!((blocks_needed(0.05, 0.03), blocks_needed(0.02, 0.03)), (22, 6));
    assert_eq!(blocks_needed(0.0, 0.03), 6);
}

#[test]
fn differences_of_blocks() {
    let estimate = difference(&point(&[5.0; 6]), &point(&[3.0; 6]), "iops").unwrap();
    assert_eq!(estimate.value, 2.0);
    assert_eq!(difference(&point(&[]), &point(&[]), "iops"), None);
}
