//! Two runs of the same experiments, point by point.

use crate::environment;
use crate::record::{Point, Record};
use crate::statistics::{Estimate, median_estimate, values};

/// One metric of one point in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The experiment.
    pub experiment: String,
    /// The series.
    pub series: String,
    /// The column.
    pub x: String,
    /// The metric.
    pub metric: String,
    /// The median of the first run.
    pub a: Estimate,
    /// The median of the second run.
    pub b: Estimate,
}

impl Row {
    /// The second over the first.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.b.value / self.a.value
    }

    /// Whether the intervals of both have a value in common; `None` if one has no interval.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        Some(self.a.interval?.meets(&self.b.interval?))
    }

    /// The least and the greatest ratio that both intervals permit.
    #[must_use]
    pub fn ratio_range(&self) -> Option<(f64, f64)> {
        let (a, b) = (self.a.interval?, self.b.interval?);
        (a.low > 0.0).then(|| (b.low / a.high, b.high / a.low))
    }
}

/// The share of rows that agree, in percent, and the number of rows that have intervals.
#[must_use]
pub fn agreement(rows: &[Row]) -> (f64, usize) {
    let known: Vec<bool> = rows.iter().filter_map(Row::agrees).collect();
    let agree = known.iter().filter(|&&agrees| agrees).count();
    (100.0 * agree as f64 / known.len().max(1) as f64, known.len())
}

/// Two rates of one column differ by at most this part: what was measured at them can be compared.
const SAME_RATE: f64 = 0.05;

/// Parts of a rate are compared in steps of one over this: a run counts one command more or less at its edges.
const PART_STEPS: f64 = 200.0;

/// The rate at which commands came in a column, if the run has derived it from a ceiling that it had found out.
fn derived_rate(record: &Record, x: &str) -> Option<f64> {
    let rate = record.settings.get(&format!("rate_iops/{x}"))?.parse::<f64>().ok()?;
    (rate > 0.0).then_some(rate)
}

/// How values of a metric of one column are compared, by what each run has derived as its rate.
enum Scale {
    /// As they are.
    Plain,
    /// As a part of the rate of their run: commands that came were completed, or not.
    OfRate(f64, f64),
    /// Not at all: the load was another one.
    Different,
}

fn scale(a: &Record, b: &Record, x: &str, metric: &str) -> Scale {
    let (Some(rate_a), Some(rate_b)) = (derived_rate(a, x), derived_rate(b, x)) else {
        return Scale::Plain;
    };
    match metric {
        "iops" => Scale::OfRate(rate_a, rate_b),
        _ if (rate_a / rate_b - 1.0).abs() <= SAME_RATE => Scale::Plain,
        _ => Scale::Different,
    }
}

/// Values of the first run that [`rows`] leaves out, because commands came at another rate in the second.
#[must_use]
pub fn left_out(a: &Record, b: &Record, metrics: &[&str]) -> usize {
    let differs = |x: &str, metric: &str| matches!(scale(a, b, x, metric), Scale::Different);
    let of_point = |point: &Point| {
        let has = |metric: &&&str| !values(point, metric).is_empty() && differs(&point.x, metric);
        metrics.iter().filter(has).count()
    };
    a.points.iter().map(of_point).sum()
}

/// The rows of two runs of an experiment, over these metrics. What came at a rate that each run has derived by itself
/// is compared as a part of that rate, or not at all if the rates differ: see [`left_out`].
#[must_use]
pub fn rows(a: &Record, b: &Record, metrics: &[&str]) -> Vec<Row> {
    let mut rows = Vec::new();
    for point in &a.points {
        let is_it = |other: &&Point| (&other.series, &other.x) == (&point.series, &point.x);
        let Some(other) = b.points.iter().find(is_it) else { continue };
        for metric in metrics {
            let (over_a, over_b) = match scale(a, b, &point.x, metric) {
                Scale::Plain => (None, None),
                Scale::OfRate(rate_a, rate_b) => (Some(rate_a), Some(rate_b)),
                Scale::Different => continue,
            };
            let estimate = |point, rate: Option<f64>| {
                let part = |value: f64| {
                    rate.map_or(value, |rate| (value / rate * PART_STEPS).round() / PART_STEPS)
                };
                let parts: Vec<f64> = values(point, metric).into_iter().map(part).collect();
                median_estimate(&parts)
            };
            if let (Some(a_value), Some(b_value)) =
                (estimate(point, over_a), estimate(other, over_b))
            {
                rows.push(Row {
                    experiment: a.experiment.clone(),
                    series: point.series.clone(),
                    x: point.x.clone(),
                    metric: (*metric).to_owned(),
                    a: a_value,
                    b: b_value,
                });
            }
        }
    }
    rows
}

/// What differs between the conditions of two records: `path: first | second`, one for each difference.
/// Points, times and seeds are results or chosen freely, and do not count.
#[must_use]
pub fn differences(a: &Record, b: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |path: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
        let (a, b) = (format!("{a:?}"), format!("{b:?}"));
        if a != b {
            found.push(format!("{path}: {a} | {b}"));
        }
    };
    differ("bed", &a.bed.kind, &b.bed.kind);
    differ("effort", &a.effort, &b.effort);
    for key in a.settings.keys().chain(b.settings.keys()) {
        // What the run found out by itself.
        if key.starts_with("ceiling_iops")
            || key.starts_with("rate_iops/")
            || key.starts_with("link/")
        {
            continue;
        }
        let of = |record: &Record| record.settings.get(key).cloned().unwrap_or_default();
        differ(&format!("settings.{key}"), &of(a), &of(b));
    }
    for difference in environment::differences_of_versions(&a.environment, &b.environment) {
        let shown = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
        let (left, right) = (shown(difference.left), shown(difference.right));
        found.push(format!("environment.{}: {left} | {right}", difference.field));
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::record::{Bed, Effort, Run, SCHEMA};

    fn record(values: &[f64], environment: Value) -> Record {
        let run = |(block, &value): (u32, &f64)| Run {
            block,
            values: BTreeMap::from([("iops".to_owned(), value)]),
            latencies: Vec::new(),
            target_bound: None,
            foreign_percent: 0.0,
            stolen_percent: 0.0,
        };
        let runs = (0..).zip(values).map(run).collect();
        Record {
            schema: SCHEMA,
            experiment: "X".to_owned(),
            version: String::new(),
            started_unix_s: 0,
            took_s: 0.0,
            seed: 1,
            effort: Effort::Quick,
            bed: Bed { kind: "loopback".to_owned(), description: String::new() },
            stand_ins: Vec::new(),
            settings: BTreeMap::new(),
            environment,
            points: vec![Point { series: "s".to_owned(), x: "1".to_owned(), runs }],
            missing: Vec::new(),
            discarded_blocks: 0,
            complete: true,
        }
    }

    #[test]
    fn rows_agree_when_their_intervals_meet() {
        let a = record(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], Value::Null);
        let near = record(&[6.0, 7.0, 8.0, 9.0, 10.0, 11.0], Value::Null);
        let far = record(&[7.0, 7.0, 8.0, 9.0, 10.0, 11.0], Value::Null);
        let agree = |b: &Record| rows(&a, b, &["iops", "none"])[0].agrees();
        assert_eq!((agree(&near), agree(&far)), (Some(true), Some(false)));
        let row = &rows(&a, &near, &["iops"])[0];
        assert!((row.ratio() - 8.5 / 3.5).abs() < 1e-12);
        assert_eq!(row.ratio_range(), Some((1.0, 11.0)));
        assert_eq!(agreement(&rows(&a, &near, &["iops"])), (100.0, 1));
        let few = record(&[1.0], Value::Null);
        assert_eq!(rows(&a, &few, &["iops"])[0].agrees(), None);
    }

    #[test]
    fn what_came_at_another_rate_is_compared_as_part_of_it_or_not_at_all() {
        let paced = |rate: &str, iops: f64| {
            let mut record = record(&[iops; 6], Value::Null);
            record.settings.insert("rate_iops/1".to_owned(), rate.to_owned());
            for run in &mut record.points[0].runs {
                run.values.insert("p99_us".to_owned(), 7.0);
            }
            record
        };
        let metrics = ["iops", "p99_us"];
        let names = |rows: &[Row]| rows.iter().map(|row| row.metric.clone()).collect::<Vec<_>>();
        // Both have completed all that came; latencies at twice the rate say nothing.
        let (a, b) = (paced("1000", 1000.0), paced("2000", 2000.0));
        assert_eq!(names(&rows(&a, &b, &metrics)), ["iops"]);
        assert_eq!(rows(&a, &b, &metrics)[0].agrees(), Some(true));
        assert_eq!(left_out(&a, &b, &metrics), 1);
        assert_eq!(rows(&a, &paced("2000", 1000.0), &metrics)[0].agrees(), Some(false));
        // All but one of a thousand; all but ten.
        let agrees = |iops| rows(&a, &paced("2000", iops), &metrics)[0].agrees();
        assert_eq!((agrees(1998.0), agrees(1980.0)), (Some(true), Some(false)));
        // Nearly the same rate.
        let b = paced("1040", 1040.0);
        assert_eq!(names(&rows(&a, &b, &metrics)), metrics);
        assert_eq!(left_out(&a, &b, &metrics), 0);
    }

    #[test]
    fn conditions_differ_by_value_and_not_by_time() {
        let environment = |model: &str, load: f64| json!({"schema": 1, "cpu": {"model": model}, "now": {"load": load}, "read_unix_s": load});
        let a = record(&[1.0], environment("A", 0.1));
        let b = record(&[1.0], environment("B", 9.0));
        assert_eq!(differences(&a, &b), ["environment.cpu.model: A | B"]);
        let earlier = record(&[1.0], json!({"processor": "2 cores of A", "kernel": "6"}));
        let found = differences(&a, &earlier);
        assert_eq!(
            found,
            [
                "environment.kernel: nothing | 6",
                "environment.schema: read whole | processor and kernel only",
            ]
        );
        assert_eq!(differences(&a, &a), Vec::<String>::new());
    }
}
