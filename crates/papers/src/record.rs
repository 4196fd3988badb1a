//! What a run of an experiment leaves: every run of every point, and the conditions under which it was made.
//!
//! A record holds measured values only. Medians, intervals and ratios are computed from it when they are
//! shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of this layout. A reader refuses others.
pub const SCHEMA: u32 = 1;

/// One experiment, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The experiment's ID, e.g. `ADQ-F6`.
    pub experiment: String,
    /// Version of this program, with its commit where it is known.
    pub version: String,
    /// When it began, in seconds since 1970, UTC.
    pub started_unix_s: u64,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Same seed, same addresses and data.
    pub seed: u64,
    /// How long and how often was measured.
    pub effort: Effort,
    /// The test bed.
    pub bed: Bed,
    /// What stood in for which piece of the published set-up.
    pub stand_ins: Vec<StandIn>,
    /// The settings that were in force, by name, e.g. `io_bytes`, `depth`, `runtime_s`.
    pub settings: BTreeMap<String, String>,
    /// The machine and its system, as [`crate::environment::read`] gives them; records of earlier versions have
    /// `processor` and `kernel` only.
    pub environment: serde_json::Value,
    /// The points, in the order in which the report shows them.
    pub points: Vec<Point>,
    /// What was not measured, and why.
    pub missing: Vec<Missing>,
    /// Blocks that were thrown away because the machine was not quiet.
    pub discarded_blocks: u32,
    /// Whether the run broke off: a later run with the same settings goes on with it.
    pub complete: bool,
}

/// How long and how often is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    /// All experiments within 15 minutes on two cores.
    Quick,
    /// Enough blocks for intervals.
    Normal,
    /// The durations of the papers.
    Full,
}

/// The network between host and target, and where both run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bed {
    /// Its kind: `loopback`, `veth`, `shaped`, `remote`.
    pub kind: String,
    /// One sentence that describes it.
    pub description: String,
}

/// A piece of the published set-up that the machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandIn {
    /// The piece, e.g. `100 Gbit/s NIC with ADQ`.
    pub of: String,
    /// What was used, e.g. `veth pair with 4 queues`.
    pub by: String,
    /// What that changes for the reader.
    pub effect: String,
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Missing {
    /// The series or point.
    pub what: String,
    /// The piece that the machine lacks, or what went wrong.
    pub why: String,
}

/// One way of doing the work at one value of what varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The way: the ID of one of the experiment's series.
    pub series: String,
    /// The value of what varies; the ID of one of the experiment's columns.
    pub x: String,
    /// Its runs, one for each block.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Runs of one block were made one after the other: ratios are taken within a block.
    pub block: u32,
    /// What was measured, by the name of the metric ([`crate::experiment::Metric`]).
    pub values: BTreeMap<String, f64>,
    /// Latencies as pairs of upper bound in nanoseconds and number of I/Os, ascending, without empty ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<(u64, u64)>,
    /// The program under test worked so much that it was the bottleneck; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bound: Option<bool>,
    /// Use by other processes during the run, in percent of all cores.
    pub foreign_percent: f64,
    /// Time that the hypervisor gave to others during the run, in percent of all cores.
    pub stolen_percent: f64,
}
