//! Runs of `raceline perf` and their results: medians, spreads, bars.

use std::fmt;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::raceline::{Tree, iops, perf_job};

/// Median, least and greatest value of some runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Figure {
    /// Sums values up; there must be at least one.
    pub(super) fn of(mut values: Vec<f64>) -> Result<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (values.first().copied(), values.last().copied());
        let (least, most) = least.zip(most).context("nothing was measured")?;
        Ok(Self { median: values[values.len() / 2], least, most })
    }

    /// For `--json`.
    pub(super) fn json(&self) -> Value {
        json!({ "median": self.median, "least": self.least, "most": self.most })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        write!(f, "{:.digits$} ({:.digits$} - {:.digits$})", self.median, self.least, self.most)
    }
}

/// A value and its upper bar, as text and for `--json`.
pub(super) fn at_most(name: &str, value: f64, bar: f64, unit: &str) -> Value {
    let reached = value <= bar;
    let verdict = if reached { "ok" } else { "ABOVE THE BAR" };
    println!("{name}: {value:.2} {unit} (bar: {bar} {unit}): {verdict}");
    json!({ "name": name, "value": value, "bar": bar, "unit": unit, "reached": reached })
}

/// The same with a lower bar.
pub(super) fn at_least(name: &str, value: f64, bar: f64, unit: &str) -> Value {
    let reached = value >= bar;
    let verdict = if reached { "ok" } else { "BELOW THE BAR" };
    println!("{name}: {value:.2} {unit} (bar: {bar} {unit}): {verdict}");
    json!({ "name": name, "value": value, "bar": bar, "unit": unit, "reached": reached })
}

/// The results of a run of `raceline perf`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Perf {
    pub(super) iops: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) p9999_us: f64,
}

impl Perf {
    /// Runs `raceline perf` with these further arguments.
    pub(super) fn run(tree: &Tree, address: &[String], rest: &[&str]) -> Result<Self> {
        Self::parse(&perf_job(tree, address, rest)?)
    }

    /// Reads a job of its report; the direction with more commands gives the latencies.
    pub(super) fn parse(job: &Value) -> Result<Self> {
        let of = |kind: &str| job[kind]["iops"].as_f64().unwrap_or(0.0);
        let kind = if of("write") > of("read") { "write" } else { "read" };
        let percentile = |which: &str| {
            let ns = job[kind]["clat_ns"]["percentile"][which].as_f64();
            ns.map(|ns| ns / 1000.0).with_context(|| format!("no percentile {which}"))
        };
        Ok(Self {
            iops: iops(job),
            p50_us: percentile("50.000000")?,
            p99_us: percentile("99.000000")?,
            p999_us: percentile("99.900000")?,
            p9999_us: percentile("99.990000")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_median_and_its_ends() {
        let figure = Figure::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(figure, Figure { median: 2.0, least: 1.0, most: 3.0 });
        assert_eq!(format!("{figure:.0}"), "2 (1 - 3)");
        assert!(Figure::of(Vec::new()).is_err());
    }

    #[test]
    fn percentiles_are_those_of_the_busier_direction() {
        let percentiles = |ns: u32| {
            json!({"clat_ns": {"percentile": {"50.000000": ns,
            "99.000000": ns, "99.900000": ns, "99.990000": ns}}, "iops": ns})
        };
        let perf = Perf::parse(&json!({"read": {"iops": 0.0}, "write": percentiles(2000)}));
        assert!((perf.unwrap().p999_us - 2.0).abs() < 1e-9);
        assert!(Perf::parse(&json!({"read": {"iops": 1.0}})).is_err());
    }
}
