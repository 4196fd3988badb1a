//! `raceline bench gap` at chosen points, and the scale of connections at a constant load.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::raceline::Tree;

/// Time for one call, in seconds: points take a few seconds each, most of them to tune the limit.
const LIMIT_S: u64 = 600;
/// Commands in flight over all connections.
const TOTAL_DEPTH: u16 = 1024;
/// A thousand connections take long to get going.
const TIMES: [&str; 4] = ["--ramp_time", "1", "--runtime", "1"];
const CONNECTIONS: [u16; 4] = [16, 64, 256, 1024];

/// What this program needs of a point in the report.
#[derive(Debug, Deserialize)]
pub(super) struct Point {
    case: String,
    limit_iops: f64,
    iops: f64,
    pub(super) ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    bar: f64,
    reached: bool,
    disturbed: u32,
}

/// Measures a selection; gives the report's list of points.
pub(super) fn points(tree: &Tree, selection: &str, rest: &[&str]) -> Result<Value> {
    let words = ["bench", "gap", "-o", "json", "--points", selection];
    let ended = tree.raceline(words.into_iter().chain(rest.iter().copied()))?;
    let ended = ended.limit(LIMIT_S).check().context("raceline bench gap")?;
    serde_json::from_str(&ended.stdout).context("the report of raceline bench gap")
}

/// The only point of a report.
pub(super) fn one(found: &Value) -> Result<Point> {
    serde_json::from_value(found[0].clone()).context("a point of raceline bench gap")
}

/// Measures and prints how the gap behaves as the same load comes over more connections.
pub(super) fn scale(tree: &Tree) -> Result<Value> {
    println!("4 KiB random read, {TOTAL_DEPTH} commands in flight over all connections\n");
    println!("| point | limit IOPS | Raceline IOPS | ratio | bar | disturbed pairs |");
    println!("|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        let depth = TOTAL_DEPTH / connections;
        let selection = format!("io=4k,rw=read,depth={depth},connections={connections}");
        let found = points(tree, &selection, &TIMES)?;
        let point = one(&found)?;
        println!(
            "| {} | {:.0} | {:.0} | {:.3} ({:.3} - {:.3}) | {}{} | {} |",
            point.case,
            point.limit_iops,
            point.iops,
            point.ratio,
            point.ratio_min,
            point.ratio_max,
            point.bar,
            if point.reached { "" } else { " (below)" },
            point.disturbed,
        );
        rows.push(found[0].clone());
    }
    Ok(json!({ "total_depth": TOTAL_DEPTH, "points": rows }))
}
