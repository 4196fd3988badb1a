//! An experiment's record as text: medians with intervals, ratios beside published ones, and what is missing.

use std::fmt::Write as _;

use crate::experiment::{Comparison, Experiment};
use crate::record::{Point, Record};
use crate::statistics::{self, Estimate, Verdict};

/// Metrics in the table of values.
const METRICS_SHOWN: usize = 4;

/// The record as Markdown.
#[must_use]
pub fn text(experiment: &Experiment, record: &Record) -> String {
    let mut out = format!("{}: {}\n{}\n", experiment.id, experiment.title, experiment.question);
    values(&mut out, experiment, record);
    ratios(&mut out, experiment, record);
    for stand_in in &record.stand_ins {
        let _ =
            writeln!(out, "\nStand-in for {}: {}. {}", stand_in.of, stand_in.by, stand_in.effect);
    }
    for missing in &record.missing {
        let _ = writeln!(out, "\nNot measured: {}: {}.", missing.what, missing.why);
    }
    out
}

fn values(out: &mut String, experiment: &Experiment, record: &Record) {
    let metrics = &experiment.metrics[..experiment.metrics.len().min(METRICS_SHOWN)];
    let names: Vec<String> =
        metrics.iter().map(|metric| format!("{} ({})", metric.label, metric.unit)).collect();
    let _ = writeln!(out, "\n| {} | way | {} |", experiment.axis.label, names.join(" | "));
    let _ = writeln!(out, "|{}", "---|".repeat(metrics.len() + 2));
    for column in &experiment.axis.columns {
        for series in &experiment.series {
            let Some(point) = find(record, &series.id, &column.id) else { continue };
            let cell = |metric: &crate::experiment::Metric| {
                let found = statistics::median_estimate(&statistics::values(point, &metric.id));
                found.map_or_else(|| "-".to_owned(), |estimate| estimate_text(&estimate))
            };
            let cells: Vec<String> = metrics.iter().map(cell).collect();
            let _ = writeln!(out, "| {} | {} | {} |", column.id, series.label, cells.join(" | "));
        }
    }
}

fn ratios(out: &mut String, experiment: &Experiment, record: &Record) {
    if experiment.comparisons.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n| ratio | {} | ours | published | verdict |", experiment.axis.label);
    let _ = writeln!(out, "|{}", "---|".repeat(5));
    for comparison in &experiment.comparisons {
        for place in statistics::places(experiment, comparison) {
            let point = |series| statistics::at_place(record, comparison, series, place);
            let (Some(of), Some(over)) = (point(&comparison.of), point(&comparison.over)) else {
                continue;
            };
            let Some(ratio) = statistics::ratio(&of, &over, &comparison.metric) else { continue };
            let published = published(comparison, place);
            let published = published.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {published} | {} |",
                comparison.label,
                place,
                estimate_text(&ratio),
                verdict_text(Verdict::of(ratio.interval)),
            );
        }
    }
}

/// The published ratio of a column.
#[must_use]
pub fn published(comparison: &Comparison, column: &str) -> Option<f64> {
    comparison.published.get(column).or_else(|| comparison.published.get("*")).copied()
}

fn find<'a>(record: &'a Record, series: &str, x: &str) -> Option<&'a Point> {
    record.points.iter().find(|point| point.series == series && point.x == x)
}

fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Higher => "higher",
        Verdict::Lower => "lower",
        Verdict::Same => "the same",
        Verdict::Undecided => "undecided",
    }
}

fn estimate_text(estimate: &Estimate) -> String {
    let value = number(estimate.value);
    match estimate.interval {
        Some(interval) => format!("{value} ({} - {})", number(interval.low), number(interval.high)),
        None => value,
    }
}

/// A number with three or more digits that count.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-').unwrap_or(&text) {
        whole if digits == 0 && whole.len() > 4 => {
            let sign = &text[..text.len() - whole.len()];
            let mut grouped = String::new();
            for (index, digit) in whole.chars().enumerate() {
                if index > 0 && (whole.len() - index).is_multiple_of(3) {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            format!("{sign}{grouped}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        for (value, text) in [
            (2_800_000.0, "2,800,000"),
            (-12_345.4, "-12,345"),
            (171.4, "171"),
            (17.72, "17.7"),
            (1.364, "1.36"),
            (0.4567, "0.457"),
            (1000.0, "1000"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn stars_stand_for_any_column() {
        let published =
            std::collections::BTreeMap::from([("*".to_owned(), 0.67), ("5".to_owned(), 0.78)]);
        let comparison = Comparison {
            label: String::new(),
            metric: String::new(),
            of: String::new(),
            over: String::new(),
            columns: Vec::new(),
            wall: None,
            published,
        };
        let of = |column| super::published(&comparison, column);
        assert_eq!((of("5"), of("1")), (Some(0.78), Some(0.67)));
    }
}
