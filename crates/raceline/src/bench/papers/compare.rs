//! `raceline bench compare`: two folders of records, point by point.

use std::fmt::Write as _;

use raceline_papers::catalogue::Catalogue;
use raceline_papers::compare::{self, Row};
use raceline_papers::record::Record;
use raceline_papers::run::load_folder;
use raceline_papers::statistics::Estimate;
use raceline_papers::table::number;

use crate::cli::bench::papers::CompareArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;

/// Differences that are listed at most.
const DIFFERENCES_SHOWN: usize = 20;

/// Compares the primary metrics of all experiments that both folders have.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let first = load_folder(&args.a).map_err(Failure::runtime)?;
    let second = load_folder(&args.b).map_err(Failure::runtime)?;
    let pairs: Vec<(&Record, &Record)> = first
        .iter()
        .filter_map(|a| Some((a, second.iter().find(|b| b.experiment == a.experiment)?)))
        .collect();
    if pairs.is_empty() {
        return Err(Failure::runtime("the folders have no experiment in common"));
    }
    let mut differences: Vec<String> =
        pairs.iter().flat_map(|(a, b)| compare::differences(a, b)).collect();
    differences.sort();
    differences.dedup();
    if !differences.is_empty() {
        for line in differences.iter().take(DIFFERENCES_SHOWN) {
            eprintln!("{line}");
        }
        if !args.anyway {
            let count = differences.len();
            return Err(Failure::runtime(format!(
                "the conditions of the two runs differ in {count} values: results of different machines or settings say nothing about each other; give --anyway to compare them nevertheless"
            )));
        }
    }
    let catalogue = Catalogue::builtin().map_err(Failure::runtime)?;
    let (mut rows, mut left_out) = (Vec::new(), 0);
    for (a, b) in &pairs {
        // Of an experiment of the user's own, everything is compared that all programs know.
        let metrics: Vec<&str> = match catalogue.find(&a.experiment) {
            Ok(experiment) => primary(experiment),
            Err(_) => vec!["iops", "mean_us"],
        };
        rows.extend(compare::rows(a, b, &metrics));
        left_out += compare::left_out(a, b, &metrics);
    }
    match args.output {
        OutputFormat::Table => shell::print(table(&rows, left_out).as_bytes()),
        OutputFormat::Json => shell::print(json(&rows, left_out)?.as_bytes()),
    }
}

/// The metrics that an experiment compares.
fn primary(experiment: &raceline_papers::experiment::Experiment) -> Vec<&str> {
    let mut metrics: Vec<&str> =
        experiment.comparisons.iter().map(|comparison| comparison.metric.as_str()).collect();
    metrics.sort_unstable();
    metrics.dedup();
    metrics
}

fn table(rows: &[Row], left_out: usize) -> String {
    let mut text = String::from("| experiment | way | x | metric | A | B | B / A | agree |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    for row in rows {
        let range = row.ratio_range().map_or_else(String::new, |(low, high)| {
            format!(" ({} - {})", number(low), number(high))
        });
        let agrees = match row.agrees() {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {}{range} | {agrees} |",
            row.experiment,
            row.series,
            row.x,
            row.metric,
            estimate(&row.a),
            estimate(&row.b),
            number(row.ratio()),
        );
    }
    let (percent, known) = compare::agreement(rows);
    let _ = writeln!(
        text,
        "\n{percent:.1} % of {known} values agree within their intervals; {} values have too few runs for an interval.",
        rows.len() - known
    );
    if left_out > 0 {
        let _ = writeln!(
            text,
            "{left_out} values are not compared: commands came at another rate, which each run had derived from its own ceiling."
        );
    }
    text
}

fn estimate(estimate: &Estimate) -> String {
    match estimate.interval {
        Some(interval) => {
            let (low, high) = (number(interval.low), number(interval.high));
            format!("{} ({low} - {high})", number(estimate.value))
        }
        None => number(estimate.value),
    }
}

fn json(rows: &[Row], left_out: usize) -> Result<String, Failure> {
    let value = |estimate: &Estimate| {
        serde_json::json!({
            "median": estimate.value,
            "low": estimate.interval.map(|interval| interval.low),
            "high": estimate.interval.map(|interval| interval.high),
            "runs": estimate.runs,
        })
    };
    let row = |row: &Row| {
        serde_json::json!({
            "experiment": row.experiment,
            "series": row.series,
            "x": row.x,
            "metric": row.metric,
            "a": value(&row.a),
            "b": value(&row.b),
            "ratio": row.ratio(),
            "agrees": row.agrees(),
        })
    };
    let (agree_percent, compared) = compare::agreement(rows);
    super::json(&serde_json::json!({
        "agree_percent": agree_percent,
        "compared": compared,
        "left_out": left_out,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    }))
}
