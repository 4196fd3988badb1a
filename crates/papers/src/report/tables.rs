//! The same tables as Markdown, JSON and CSV.

use raceline_plot::number::{plain, ratio as number};
use serde::Serialize;

use super::judge::{self, Grade};
use super::model::{Entry, Ratio, Report};
use super::page::{headline, stand_in};
use crate::record::{Missing, StandIn};
use crate::statistics::Estimate;

/// The key by which a report in JSON is told from a record.
pub(super) const MARK: &str = "raceline_report";

/// An experiment in JSON.
#[derive(Serialize)]
struct One<'a> {
    id: &'a str,
    title: &'a str,
    source: &'a str,
    grade: Grade,
    verdict: &'a str,
    command: String,
    record: &'a str,
    stand_ins: &'a [StandIn],
    missing: &'a [Missing],
    discarded_blocks: u32,
    ratios: Vec<RatioRow<'a>>,
    values: Vec<ValueRow<'a>>,
}

#[derive(Serialize)]
struct RatioRow<'a> {
    comparison: &'a str,
    column: &'a str,
    published: Option<f64>,
    ours: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    blocks: usize,
    grade: Grade,
    target_bound: Option<bool>,
    why_not: &'a str,
}

#[derive(Serialize)]
struct ValueRow<'a> {
    series: &'a str,
    column: &'a str,
    metric: &'a str,
    median: f64,
    low: Option<f64>,
    high: Option<f64>,
    lowest: f64,
    highest: f64,
    runs: usize,
}

fn ratio_row(ratio: &Ratio) -> RatioRow<'_> {
    let interval = ratio.ours.as_ref().and_then(|ours| ours.interval);
    RatioRow {
        comparison: &ratio.label,
        column: &ratio.column,
        published: ratio.published,
        ours: ratio.ours.as_ref().map(|ours| ours.value),
        low: interval.map(|interval| interval.low),
        high: interval.map(|interval| interval.high),
        blocks: ratio.ours.as_ref().map_or(0, |ours| ours.runs),
        grade: ratio.grade,
        target_bound: ratio.target_bound,
        why_not: &ratio.why_not,
    }
}

fn value_rows(entry: &Entry) -> impl Iterator<Item = ValueRow<'_>> {
    entry.values.iter().map(|value| {
        let Estimate { value: median, interval, runs } = value.estimate;
        ValueRow {
            series: &value.series,
            column: &value.column,
            metric: &value.metric,
            median,
            low: interval.map(|interval| interval.low),
            high: interval.map(|interval| interval.high),
            lowest: value.range.0,
            highest: value.range.1,
            runs,
        }
    })
}

/// The report for programs.
pub(super) fn json(report: &Report) -> String {
    let one = |entry: &'_ Entry| {
        let record = entry.record.as_ref();
        serde_json::to_value(One {
            id: &entry.experiment.id,
            title: &entry.experiment.title,
            source: &entry.experiment.source,
            grade: entry.grade,
            verdict: &entry.verdict,
            command: entry.command(),
            record: &entry.file,
            stand_ins: record.map_or(&[], |record| &record.stand_ins),
            missing: record.map_or(&[], |record| &record.missing),
            discarded_blocks: record.map_or(0, |record| record.discarded_blocks),
            ratios: entry.ratios.iter().map(ratio_row).collect(),
            values: value_rows(entry).collect(),
        })
    };
    // Maps of texts and numbers can always be written.
    let experiments: Vec<_> = report.entries.iter().filter_map(|entry| one(entry).ok()).collect();
    let whole = serde_json::json!({
        MARK: 1,
        "experiments": experiments,
        "problems": report.problems,
        "environments": report.contrasts,
    });
    format!("{whole:#}\n")
}

/// The tables as CSV: name and text of each.
pub(super) fn csv(report: &Report) -> Vec<(&'static str, String)> {
    let table = |head: &[&str], rows: fn(&Entry, &mut String)| {
        let mut text = line(head);
        report.entries.iter().for_each(|entry| rows(entry, &mut text));
        text
    };
    vec![
        ("summary", table(&SUMMARY_HEAD, summary_csv)),
        ("ratios", table(&RATIO_HEAD, ratios_csv)),
        ("values", table(&VALUE_HEAD, values_csv)),
        ("runs", table(&RUN_HEAD, runs_csv)),
    ]
}

const SUMMARY_HEAD: [&str; 7] =
    ["experiment", "title", "published", "ours", "stand_in", "grade", "verdict"];
const RATIO_HEAD: [&str; 10] = [
    "experiment",
    "comparison",
    "column",
    "published",
    "ours",
    "low",
    "high",
    "blocks",
    "result",
    "why_not",
];
const VALUE_HEAD: [&str; 10] = [
    "experiment",
    "series",
    "column",
    "metric",
    "median",
    "low",
    "high",
    "lowest",
    "highest",
    "runs",
];
const RUN_HEAD: [&str; 9] = [
    "experiment",
    "series",
    "column",
    "block",
    "metric",
    "value",
    "foreign_percent",
    "stolen_percent",
    "target_bound",
];

fn summary_csv(entry: &Entry, text: &mut String) {
    let best = judge::headline(&entry.ratios);
    let published = some(best.and_then(|ratio| ratio.published));
    let ours = some(best.and_then(|ratio| ratio.ours.as_ref()).map(|ours| ours.value));
    let (id, title) = (entry.experiment.id.as_str(), entry.experiment.title.as_str());
    let stand_in = stand_in(entry);
    *text += &line(&[id, title, &published, &ours, &stand_in, entry.grade.words(), &entry.verdict]);
}

fn ratios_csv(entry: &Entry, text: &mut String) {
    for row in entry.ratios.iter().map(ratio_row) {
        let blocks = row.blocks.to_string();
        let [published, ours, low, high] = [row.published, row.ours, row.low, row.high].map(some);
        let names = [entry.experiment.id.as_str(), row.comparison, row.column];
        let numbers = [published.as_str(), &ours, &low, &high, &blocks];
        *text += &line(&[&names[..], &numbers[..], &[row.grade.words(), row.why_not]].concat());
    }
}

fn values_csv(entry: &Entry, text: &mut String) {
    for row in value_rows(entry) {
        let [low, high] = [row.low, row.high].map(some);
        let [median, lowest, highest] =
            [row.median, row.lowest, row.highest].map(|value| value.to_string());
        let count = row.runs.to_string();
        let names = [entry.experiment.id.as_str(), row.series, row.column, row.metric];
        let numbers = [median.as_str(), &low, &high, &lowest, &highest, &count];
        *text += &line(&[&names[..], &numbers[..]].concat());
    }
}

/// Every value of every run.
fn runs_csv(entry: &Entry, text: &mut String) {
    for point in entry.record.iter().flat_map(|record| &record.points) {
        for run in &point.runs {
            let bound = run.target_bound.map_or(String::new(), |bound| bound.to_string());
            for (metric, value) in &run.values {
                *text += &line(&[
                    &entry.experiment.id,
                    &point.series,
                    &point.x,
                    &run.block.to_string(),
                    metric,
                    &value.to_string(),
                    &run.foreign_percent.to_string(),
                    &run.stolen_percent.to_string(),
                    &bound,
                ]);
            }
        }
    }
}

fn some(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn line(cells: &[&str]) -> String {
    cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\r\n"
}

/// A cell. What a spreadsheet would take for a formula begins with an apostrophe.
fn quoted(cell: &str) -> String {
    let is_formula =
        cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err();
    let cell = if is_formula { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell
    }
}

/// The report in Markdown.
pub(super) fn markdown(report: &Report) -> String {
    let mut text = String::from("# Published experiments, measured again\n\n");
    row(&mut text, &["experiment", "published", "ours", "stand-in", "verdict"].map(str::to_owned));
    text.push_str("|---|---|---|---|---|\n");
    for entry in &report.entries {
        let (published, ours) = headline(entry);
        let ours = ours.map_or("\u{2013}".to_owned(), |(value, ends)| format!("{value} ({ends})"));
        let verdict = format!("{}: {}", entry.grade.words(), entry.verdict);
        row(&mut text, &[entry.experiment.id.clone(), published, ours, stand_in(entry), verdict]);
    }
    if !report.problems.is_empty() {
        text.push_str("\nWhat could not be used:\n\n");
        for problem in &report.problems {
            text.push_str(&format!("- {}\n", plain_words(problem)));
        }
    }
    if !report.contrasts.is_empty() {
        text.push_str("\nWhat differs between the records' environments:\n\n");
        for contrast in &report.contrasts {
            text.push_str(&format!("- {}\n", plain_words(&contrast.sentence())));
        }
    }
    for entry in &report.entries {
        section(&mut text, entry);
    }
    text
}

fn section(text: &mut String, entry: &Entry) {
    let experiment = &entry.experiment;
    text.push_str(&format!(
        "\n## {}: {}\n\n",
        plain_words(&experiment.id),
        plain_words(&experiment.title)
    ));
    text.push_str(&format!(
        "{}\n\n{}\n\n",
        plain_words(&experiment.question),
        plain_words(&entry.verdict)
    ));
    if !entry.ratios.is_empty() {
        row(
            text,
            &["comparison", &experiment.axis.label, "published", "ours (95 % interval)", "result"]
                .map(str::to_owned),
        );
        text.push_str("|---|---|---:|---:|---|\n");
        for ratio in &entry.ratios {
            let ours = ratio.ours.as_ref().map_or(ratio.why_not.clone(), judge::estimate);
            let published = ratio.published.map_or("\u{2013}".to_owned(), number);
            let cells = [
                ratio.label.clone(),
                ratio.column.clone(),
                published,
                ours,
                ratio.grade.words().to_owned(),
            ];
            row(text, &cells);
        }
        text.push('\n');
    }
    if !entry.values.is_empty() {
        row(
            text,
            &["series", &experiment.axis.label, "metric", "median", "95 % interval", "runs"]
                .map(str::to_owned),
        );
        text.push_str("|---|---|---|---:|---:|---:|\n");
        for value in value_rows(entry) {
            let interval = match (value.low, value.high) {
                (Some(low), Some(high)) => format!("{} to {}", plain(low), plain(high)),
                _ => format!("[{} to {}]", plain(value.lowest), plain(value.highest)),
            };
            let cells = [value.series, value.column, value.metric].map(str::to_owned);
            let numbers = [plain(value.median), interval, value.runs.to_string()];
            row(text, &[&cells[..], &numbers[..]].concat());
        }
    }
}

fn row(text: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| plain_words(cell)).collect();
    text.push_str(&format!("| {} |\n", cells.join(" | ")));
}

/// Text without what Markdown or HTML would take for markup.
fn plain_words(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' => safe.extend(['\\', c]),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_out_of_their_table() {
        assert_eq!(quoted("a,\"b\"\nc"), "\"a,\"\"b\"\"\nc\"");
        assert_eq!(quoted("=cmd()"), "'=cmd()");
        assert_eq!(quoted("-0.5"), "-0.5");
        assert_eq!(plain_words("a|b <i>`c`\n"), "a\\|b &lt;i&gt;\\`c\\` ");
    }
}
