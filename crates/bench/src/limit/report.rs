//! What was measured: for people as a table, for programs as a JSON list.

use std::fmt::Write as _;

use serde::Serialize;

use super::{LimitConfig, Measured, Mode, Tuning};
use crate::report::{binary_bytes, grouped};

/// All points of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The pages of the region, by name.
    pub pages: String,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}

/// One point.
#[derive(Clone, Debug)]
pub struct Point {
    /// What was exchanged.
    pub config: LimitConfig,
    /// How.
    pub tuning: Tuning,
    /// The repetitions.
    pub windows: Vec<Measured>,
}

impl Point {
    /// Commands per second of each repetition, slowest first.
    fn sorted(&self) -> Vec<f64> {
        let mut iops: Vec<f64> = self.windows.iter().map(Measured::iops).collect();
        iops.sort_by(f64::total_cmp);
        iops
    }

    /// The median of the repetitions.
    #[must_use]
    pub fn iops(&self) -> f64 {
        median(&self.sorted())
    }
}

/// The middle of sorted values, 0 of none.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Names a point: `4k read depth 32 x 1`.
#[must_use]
pub fn case_name(io_bytes: usize, write: bool, depth: usize, connections: usize) -> String {
    let rw = if write { "write" } else { "read" };
    format!("{} {rw} depth {depth} x {connections}", size_name(io_bytes))
}

fn case(config: &LimitConfig) -> String {
    case_name(config.io_bytes, config.write, config.depth, config.connections)
}

/// A size as options take it: `4k`.
pub(crate) fn size_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{}m", bytes >> 20)
    } else if bytes.is_multiple_of(1 << 10) {
        format!("{}k", bytes >> 10)
    } else {
        bytes.to_string()
    }
}

/// A size as [`case_name`] writes it.
pub(crate) fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.split_at_checked(text.len().saturating_sub(1))? {
        (digits, "k") => (digits, 1 << 10),
        (digits, "m") => (digits, 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

impl Report {
    /// The first lines of the table.
    #[must_use]
    pub fn heading(&self) -> String {
        format!(
            "{:<28}{:>12}{:>14}{:>10}{:>16}  tuning ({} pages)\n",
            "case", "IOPS", "bandwidth", "mean", "spread", self.pages
        )
    }

    /// One line of the table.
    #[must_use]
    pub fn row(&self, point: &Point) -> String {
        let iops = point.iops();
        let sorted = point.sorted();
        let (least, most) = (sorted.first().unwrap_or(&0.0), sorted.last().unwrap_or(&0.0));
        let mut row = String::new();
        let _ = writeln!(
            row,
            "{:<28}{:>12}{:>14}{:>10}{:>16}  {}",
            case(&point.config),
            grouped(whole(iops)),
            format!("{}/s", binary_bytes(whole(iops * point.config.io_bytes as f64))),
            crate::report::latency_text(mean_ns(point)),
            format!("{:+.1} {:+.1} %", percent(*least, iops), percent(*most, iops)),
            point.tuning
        );
        row
    }

    /// A list of objects, one per point, ended by a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let points: Vec<PointJson> =
            self.points.iter().map(|point| PointJson::new(point, &self.pages)).collect();
        let mut text = serde_json::to_string_pretty(&points).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// By Little's law: the requester records no latency of single commands.
fn mean_ns(point: &Point) -> f64 {
    let in_flight = point.config.depth * point.config.connections;
    if point.iops() > 0.0 { in_flight as f64 * 1e9 / point.iops() } else { 0.0 }
}

fn percent(value: f64, of: f64) -> f64 {
    if of > 0.0 { 100.0 * (value / of - 1.0) } else { 0.0 }
}

/// A rate without its fraction.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; never < 0")]
pub(crate) fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

#[derive(Serialize)]
struct PointJson<'a> {
    case: String,
    rw: &'static str,
    io_bytes: usize,
    depth: usize,
    connections: usize,
    memory_bytes: usize,
    pages: &'a str,
    mode: &'static str,
    limit_iops: f64,
    mean_us: f64,
    runs: Vec<f64>,
    tuning: String,
}

impl<'a> PointJson<'a> {
    fn new(point: &Point, pages: &'a str) -> Self {
        let config = &point.config;
        Self {
            case: case(config),
            rw: if config.write { "write" } else { "read" },
            io_bytes: config.io_bytes,
            depth: config.depth,
            connections: config.connections,
            memory_bytes: config.memory_bytes,
            pages,
            mode: match config.mode {
                Mode::Polled => "polled",
                Mode::Blocking => "blocking",
            },
            limit_iops: point.iops(),
            mean_us: mean_ns(point) / 1000.0,
            runs: point.windows.iter().map(Measured::iops).collect(),
            tuning: point.tuning.to_string(),
        }
    }
}
