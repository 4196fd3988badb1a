//! `raceline bench gap`: a daemon beside the limit and beside export, and the number of connections.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::raceline::Tree;

/// Time for one call, in seconds: points take a few seconds each, most of them to tune the limit.
const LIMIT_S: u64 = 600;
/// Time for the points of --quick, which may be repeated and wait for near cores.
const QUICK_LIMIT_S: u64 = 3600;
/// The points where a daemon is compared with export: one connection and many, small and large commands.
const DAEMON_POINTS: [&str; 3] = [
    "io=4k,rw=read,depth=32,connections=1|16",
    "io=4k,rw=write,depth=32,connections=1|16",
    "io=128k,rw=read|write,depth=8,connections=1",
];
/// Commands in flight over all connections.
const TOTAL_DEPTH: u16 = 1024;
/// A ramp of 1 s, as a thousand connections take long to start.
const TIMES: [&str; 4] = ["--ramp_time", "1", "--runtime", "1"];
/// A daemon lets one address connect 128 sockets at once.
const SCALE_TARGET: [&str; 2] = ["--target", "export"];
const CONNECTIONS: [u16; 4] = [16, 64, 256, 1024];

/// The part of a point in the report that this program reads.
#[derive(Debug, Deserialize)]
pub(super) struct Point {
    case: String,
    /// IOPS of the limit, or of `raceline export`.
    #[serde(alias = "export_iops")]
    limit_iops: f64,
    iops: f64,
    pub(super) ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    bar: f64,
    reached: bool,
    disturbed: u32,
}

impl Point {
    fn print(&self) {
        println!(
            "| {} | {:.0} | {:.0} | {:.3} ({:.3} - {:.3}) | {}{} | {} |",
            self.case,
            self.limit_iops,
            self.iops,
            self.ratio,
            self.ratio_min,
            self.ratio_max,
            self.bar,
            if self.reached { "" } else { " (below)" },
            self.disturbed,
        );
    }
}

/// Measures a selection; gives the report's list of points.
pub(super) fn points(tree: &Tree, selection: &str, rest: &[&str]) -> Result<Value> {
    gap(tree, &[&["--points", selection], rest].concat(), LIMIT_S)
}

fn gap(tree: &Tree, rest: &[&str], limit_s: u64) -> Result<Value> {
    let words = ["bench", "gap", "-o", "json"];
    let ended = tree.raceline(words.into_iter().chain(rest.iter().copied()))?;
    let ended = ended.limit(limit_s).check().context("raceline bench gap")?;
    serde_json::from_str(&ended.stdout).context("the report of raceline bench gap")
}

/// Measures and prints a daemon beside the limit, whose host has a buffer for each command as the
/// host of Raceline has (lab 0006).
pub(super) fn quick(tree: &Tree) -> Result<Value> {
    let found = gap(tree, &["--quick", "--buffer-each"], QUICK_LIMIT_S)?;
    print(&found, ["limit", "serve"])?;
    Ok(found)
}

/// Measures and prints a daemon beside export.
pub(super) fn daemon(tree: &Tree) -> Result<Value> {
    let mut all = Vec::new();
    for selection in DAEMON_POINTS {
        let words = ["--target", "both", "--points", selection];
        let found = gap(tree, &words, QUICK_LIMIT_S)?;
        all.extend(found.as_array().cloned().unwrap_or_default());
    }
    let found = Value::Array(all);
    print(&found, ["export", "serve"])?;
    Ok(found)
}

fn print(found: &Value, [reference, target]: [&str; 2]) -> Result<()> {
    println!("| point | {reference} IOPS | {target} IOPS | ratio | bar | disturbed pairs |");
    println!("|---|---|---|---|---|---|");
    let points: Vec<Point> = serde_json::from_value(found.clone())?;
    points.iter().for_each(Point::print);
    Ok(())
}

/// The only point of a report.
pub(super) fn one(found: &Value) -> Result<Point> {
    serde_json::from_value(found[0].clone()).context("a point of raceline bench gap")
}

/// Measures and prints the gap for the same load over more and more connections.
pub(super) fn scale(tree: &Tree) -> Result<Value> {
    println!("4 KiB random read, {TOTAL_DEPTH} commands in flight over all connections\n");
    println!("| point | limit IOPS | Raceline IOPS | ratio | bar | disturbed pairs |");
    println!("|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        let depth = TOTAL_DEPTH / connections;
        let selection = format!("io=4k,rw=read,depth={depth},connections={connections}");
        let found = points(tree, &selection, &[&TIMES[..], &SCALE_TARGET].concat())?;
        let point = one(&found)?;
        point.print();
        rows.push(found[0].clone());
    }
    Ok(json!({ "total_depth": TOTAL_DEPTH, "points": rows }))
}
