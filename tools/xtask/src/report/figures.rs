//! The figures of a report, as docs/plots/figures.json keeps them: rows with spread, each with its source.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spdk::Spread;

/// All data from which page and plots are made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// By the names that rows give.
    pub(super) sources: BTreeMap<String, Source>,
    pub(super) points: Vec<Row>,
    pub(super) tails: Vec<Tail>,
    pub(super) facts: Vec<Fact>,
}

/// One measurement: its command, build, date and machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    /// The command that measured.
    pub(super) command: String,
    /// By `git describe`, or a version.
    pub(super) build: String,
    /// Year-month-day.
    pub(super) date: String,
    /// The measured target of Raceline: `serve` or `export`; empty where each figure says it.
    pub(super) target: String,
    pub(super) processor: String,
    pub(super) congestion_control: String,
    /// Further words, such as the number of pairs.
    pub(super) details: String,
}

/// A workload at random addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) io_bytes: u32,
    pub(super) write: bool,
    pub(super) depth: u32,
    pub(super) connections: u32,
}

/// What is measured beside Raceline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Beside {
    /// The bare pair.
    Limit,
    /// SPDK's tuned target under SPDK's host.
    SpdkTuned,
    /// `raceline export`, when Raceline's target is a daemon.
    Export,
}

/// IOPS of Raceline and of what is measured beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) point: Point,
    pub(super) beside: Beside,
    pub(super) ours: Spread,
    pub(super) theirs: Spread,
    /// Ratios of runs that were made next to each other.
    pub(super) ratio: Spread,
    /// Runs that count although they were disturbed.
    pub(super) disturbed: u64,
    pub(super) source: String,
}

/// Latencies in an open loop at 70 % of the highest rate, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Tail {
    #[serde(flatten)]
    pub(super) point: Point,
    pub(super) ours_p50_us: Spread,
    pub(super) spdk_p50_us: Spread,
    /// Medians of short windows.
    pub(super) ours_p999_us: Spread,
    pub(super) spdk_p999_us: Spread,
    pub(super) source: String,
}

/// One figure of `cargo xtask bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Fact {
    pub(super) name: String,
    pub(super) value: Spread,
    pub(super) unit: String,
    pub(super) source: String,
}

impl Point {
    pub(super) const fn new(kib: u32, write: bool, depth: u32, connections: u32) -> Self {
        Self { io_bytes: kib << 10, write, depth, connections }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.write { "write" } else { "read" };
        let Self { io_bytes, depth, connections, .. } = self;
        write!(f, "{} KiB {kind} {depth}x{connections}", io_bytes >> 10)
    }
}

impl Source {
    /// The name under which rows find it.
    pub(super) fn name(&self) -> String {
        let Self { command, target, build, date, details, .. } = self;
        let target = if target.is_empty() { "" } else { &format!(" {target}") };
        let details = if details.is_empty() { "" } else { &format!(", {details}") };
        format!("{command},{target} of {build}, {date}{details}")
    }
}

impl Figures {
    /// Adds a measurement, and gives its name.
    pub(super) fn source(&mut self, source: Source) -> String {
        let name = source.name();
        self.sources.insert(name.clone(), source);
        name
    }

    /// Replaces the rows of the same points by the newer rows, and sorts.
    pub(super) fn take(&mut self, newer: Self) {
        self.sources.extend(newer.sources);
        let known = |row: &Row| newer.points.iter().any(|new| key(new) == key(row));
        self.points.retain(|row| !known(row));
        self.points.extend(newer.points);
        self.points.sort_by_key(key);
        self.tails.retain(|row| !newer.tails.iter().any(|new| new.point == row.point));
        self.tails.extend(newer.tails);
        self.tails.sort_by_key(|row| row.point);
        self.facts.retain(|row| !newer.facts.iter().any(|new| new.name == row.name));
        self.facts.extend(newer.facts);
        let points = self.points.iter().map(|row| &row.source);
        let tails = self.tails.iter().map(|row| &row.source);
        let facts = self.facts.iter().map(|row| &row.source);
        let used: Vec<String> = points.chain(tails).chain(facts).cloned().collect();
        self.sources.retain(|name, _| used.contains(name));
    }

    /// The row of a point, beside this.
    pub(super) fn row(&self, point: Point, beside: Beside) -> Option<&Row> {
        self.points.iter().find(|row| row.point == point && row.beside == beside)
    }

    /// The build of a row's source.
    pub(super) fn build(&self, source: &str) -> &str {
        self.sources.get(source).map_or("unknown build", |source| source.build.as_str())
    }

    /// The same, and the congestion control: `abc1234 over cubic`.
    pub(super) fn build_and_tcp(&self, source: &str) -> String {
        let tcp = self.sources.get(source).map(|source| source.congestion_control.as_str());
        format!("{} over {}", self.build(source), tcp.unwrap_or("unknown TCP"))
    }
}

fn key(row: &Row) -> (Point, Beside) {
    (row.point, row.beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(depth: u32, beside: Beside, source: &str) -> Row {
        let ours = Spread::of([1.0].into_iter());
        let point = Point::new(4, false, depth, 1);
        let source = source.to_owned();
        Row { point, beside, ours, theirs: ours, ratio: ours, disturbed: 0, source }
    }

    fn source(build: &str) -> Source {
        let text = |text: &str| text.to_owned();
        Source {
            command: text("raceline bench gap"),
            build: text(build),
            date: text("2026-11-25"),
            target: text("serve"),
            processor: text("2 cores"),
            congestion_control: text("cubic"),
            details: String::new(),
        }
    }

    #[test]
    fn runs_of_one_build_with_other_pairs_are_other_sources() {
        let mut figures = Figures::default();
        let first = figures.source(Source { details: "5 pairs".to_owned(), ..source("new") });
        let second = figures.source(Source { details: "30 pairs".to_owned(), ..source("new") });
        assert_eq!(figures.sources[&first].details, "5 pairs");
        assert_eq!(figures.sources[&second].details, "30 pairs");
    }

    #[test]
    fn newer_rows_replace_their_points_only() {
        let mut figures = Figures::default();
        let old = figures.source(source("old"));
        figures.points = vec![row(1, Beside::Limit, &old), row(1, Beside::SpdkTuned, &old)];
        let mut newer = Figures::default();
        let new = newer.source(source("new"));
        newer.points = vec![row(8, Beside::Limit, &new), row(1, Beside::Limit, &new)];
        figures.take(newer.clone());
        assert_eq!(figures.points.len(), 3);
        let point = Point::new(4, false, 1, 1);
        assert_eq!(figures.build(&figures.row(point, Beside::Limit).unwrap().source), "new");
        assert_eq!(figures.build(&figures.row(point, Beside::SpdkTuned).unwrap().source), "old");
        assert_eq!(point.to_string(), "4 KiB read 1x1");
        // No row names a source whose rows are all gone.
        newer.points = vec![row(1, Beside::SpdkTuned, &new)];
        figures.take(newer);
        assert_eq!(figures.sources.len(), 1);
    }
}
