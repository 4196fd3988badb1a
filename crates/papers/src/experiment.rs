//! An experiment, as its file describes it.
//!
//! The files are TOML, one for each experiment, in `experiments/`. They are part of the program.

use serde::{Deserialize, Serialize};

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name for commands, e.g. `ADQ-F6`.
    pub id: String,
    /// Other names of it, e.g. of the table beside a figure.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// One line.
    pub title: String,
    /// The question that it answers.
    pub question: String,
    /// The paper or talk, with year; `Raceline` for our own.
    pub source: String,
    /// The procedure that measures it, with the settings that the procedure takes.
    pub procedure: Procedure,
    /// How long each run of the source took, if the source says so: `bench run --full` takes as long.
    #[serde(default)]
    pub full: Option<FullTimes>,
    /// What varies along the horizontal axis.
    pub axis: Axis,
    /// The ways that are compared.
    pub series: Vec<Series>,
    /// What is measured or derived.
    pub metrics: Vec<Metric>,
    /// The ratios that give the verdict; the first is the primary one.
    pub comparisons: Vec<Comparison>,
    /// How it is drawn.
    pub figures: Vec<Figure>,
    /// Every number that the source prints.
    #[serde(default)]
    pub published: Vec<Published>,
    /// The set-up of the source: hardware, software, workload; one sentence each.
    #[serde(default)]
    pub setup: Vec<String>,
    /// What the reader has to know about the numbers.
    #[serde(default)]
    pub caveats: Vec<String>,
    /// What this experiment cannot show on a small machine.
    #[serde(default)]
    pub limits: Vec<String>,
}

impl Experiment {
    /// All its names, the first of which is its ID.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.id.as_str()).chain(self.aliases.iter().map(String::as_str))
    }

    /// The metric of this name.
    #[must_use]
    pub fn metric(&self, id: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.id == id)
    }
}

/// The code that measures, and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Procedure {
    /// Its name, e.g. `load`.
    pub name: String,
    /// Settings of all series and columns; a series or a column may override them.
    #[serde(default)]
    pub settings: toml::Table,
}

/// The times of a run of the source, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullTimes {
    /// How long a run goes before it is measured.
    pub ramp_s: u32,
    /// How long it is measured.
    pub runtime_s: u32,
}

/// The horizontal axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What varies, e.g. `Target cores`.
    pub label: String,
    /// Its unit; empty if it has none.
    #[serde(default)]
    pub unit: String,
    /// Its values.
    pub columns: Vec<Column>,
}

/// One value of what varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name in records and labels.
    pub id: String,
    /// Its place on a numeric axis; without it, columns are equally spaced.
    #[serde(default)]
    pub value: Option<f64>,
    /// Left out of quick runs.
    #[serde(default)]
    pub full_only: bool,
    /// Settings of this column.
    #[serde(default)]
    pub settings: toml::Table,
}

/// One of the compared ways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Its name in records.
    pub id: String,
    /// Its name for readers.
    pub label: String,
    /// What the machine must have for it, e.g. `nvmet`, `spdk`, `rdma`; without it the series is missing.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Settings of this series.
    #[serde(default)]
    pub settings: toml::Table,
    /// What carried RDMA in the source, e.g. `iWARP`. A record says what stands in for it, if the machine's device has
    /// something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_link: Option<String>,
    /// It is not measured, but computed from another series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
}

/// How a series is computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The measured series.
    pub of: String,
    /// The work that is taken away from it.
    pub without: Vec<Work>,
}

/// Work that an adapter can take from a target's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// TCP: segments, acknowledgements, retransmission, buffers.
    Stack,
    /// The copy of data between the device's memory and the network's.
    Copy,
    /// Digests of PDUs.
    Digest,
}

/// A quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name in records, e.g. `iops`, `mean_us`, `p9999_us`, `cpu_ns_per_io`, `gbit_per_s`.
    pub id: String,
    /// Its name for readers.
    pub label: String,
    /// Its unit.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// More.
    Higher,
    /// Less.
    Lower,
}

/// A ratio of two series, taken within each block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What it shows, e.g. `IOPS with placement and busy polling`.
    pub label: String,
    /// The metric.
    pub metric: String,
    /// The series above the line.
    pub of: String,
    /// The series below the line.
    pub over: String,
    /// The columns; all of them if empty.
    #[serde(default)]
    pub columns: Vec<String>,
    /// The walls of both series are compared, found in the columns, which are rising rates.
    #[serde(default)]
    pub wall: Option<Wall>,
    /// The published ratios, by column; `*` stands for any.
    #[serde(default)]
    pub published: std::collections::BTreeMap<String, f64>,
}

/// Where a latency curve has its wall: in the last column, from the lowest rate on, in which the latency has not risen
/// and commands are not missed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wall {
    /// The metric of the latency.
    pub latency: String,
    /// It has risen above this many times that of the first column.
    pub times: f64,
    /// The metric of commands that were not issued in time, in percent.
    pub missed: String,
    /// More than this percentage is missed.
    pub missed_percent_max: f64,
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its caption.
    pub title: String,
    /// How it is drawn.
    pub kind: FigureKind,
    /// The metrics that it shows; for `forest` and `heat` the ratios of all comparisons are shown.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// A logarithmic vertical axis.
    #[serde(default)]
    pub log: bool,
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// A line for each series, over the axis, with intervals.
    Lines,
    /// A dot and interval for each series and column.
    Dots,
    /// One metric over another, a curve for each series (latency over throughput).
    Curve,
    /// Latency distribution of each series, on an axis of 90, 99, 99.9 ... percent.
    Distribution,
    /// Ratios with intervals, a rule at 1, and the published values.
    Forest,
    /// Ratios by two variables.
    Heat,
    /// Local and added latency on top of each other.
    Stack,
}

/// A number that the source prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The series, as the source names it.
    pub series: String,
    /// The place on the axis, as the source names it.
    pub x: String,
    /// What was measured.
    pub metric: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// What the source says about it, e.g. `up to`.
    #[serde(default)]
    pub note: String,
}
