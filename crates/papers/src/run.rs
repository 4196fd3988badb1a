//! Runs experiments: a procedure measures all points of an experiment, block by block, and leaves a record.
//!
//! The runs of a block are made one after the other, forward in one block and backward in the next. The record
//! is written after each block, so that a run that breaks off goes on where it was.

mod converged;
mod cpu;
mod fleet;
mod library;
mod load;
mod pair;
mod settings;
mod store;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use raceline_bench::accel::Device;
use raceline_bench::distance::Distances;
use raceline_proto::nvme::Nqn;

use crate::bed::Bed;
use crate::experiment::{Column, Experiment, Series};
use crate::record::{Effort, Missing, Point, Record, Run, StandIn};
use crate::subject::RdmaSource;

pub use settings::{
    AccelSettings, AffinitySettings, ConvergedSettings, CoreMode, Digest, LoadSettings, Maps, Mix,
    Neighbour, PairSettings, PlacementKind, Protocol, SettingsError, ShareSettings, SubjectKind,
    SubmitSettings, Wire,
};
pub use store::{StoreError, load_folder, load_record, record_path};

/// The procedures, with the metrics that each can measure.
pub const PROCEDURES: [(&str, &[&str]); 9] = [
    ("load", &values::METRICS),
    ("affinity", &library::METRICS),
    ("share", &library::METRICS),
    ("submit", &library::SUBMIT_METRICS),
    ("fleet", &fleet::METRICS),
    ("converged", &converged::METRICS),
    ("limit", &["iops", "gbit_per_s"]),
    ("gap", &["iops", "gbit_per_s"]),
    ("accel", &["ns_per_op", "gbyte_per_s"]),
];

/// The metrics of a procedure; `None`: there is no such procedure.
#[must_use]
pub fn metrics_of(procedure: &str) -> Option<&'static [&'static str]> {
    PROCEDURES.iter().find(|(name, _)| *name == procedure).map(|&(_, metrics)| metrics)
}

/// The settings of a point: those of the procedure, then of the column, then of the series.
#[must_use]
pub fn merged(experiment: &Experiment, series: &Series, column: &Column) -> toml::Table {
    let mut all = experiment.procedure.settings.clone();
    for part in [&column.settings, &series.settings] {
        all.extend(part.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    all
}

/// Checks the settings of a point.
///
/// # Errors
/// When a key is unknown, or its value has another type or is out of range.
pub fn check_settings(
    experiment: &Experiment,
    series: &Series,
    column: &Column,
) -> Result<(), SettingsError> {
    let table = merged(experiment, series, column);
    match experiment.procedure.name.as_str() {
        "load" => read::<LoadSettings>(table)?.check(),
        "fleet" => {
            let settings: LoadSettings = read(table)?;
            settings.check()?;
            settings.check_agents()
        }
        "submit" => read::<SubmitSettings>(table)?.check(),
        "converged" => read::<ConvergedSettings>(table)?.check(),
        "limit" | "gap" => read::<PairSettings>(table)?.check(),
        "affinity" => read::<AffinitySettings>(table)?.check(),
        "share" => read::<ShareSettings>(table)?.check(),
        "accel" => read::<AccelSettings>(table)?.check(),
        other => Err(SettingsError {
            key: "name".to_owned(),
            value: other.to_owned(),
            why: format!("there is no procedure `{other}`"),
        }),
    }
}

/// Reads settings from a table.
fn read<T: serde::de::DeserializeOwned>(table: toml::Table) -> Result<T, SettingsError> {
    // One key at a time would be enough for the settings that are right: the fault is in one key.
    let whole: Result<T, _> = table.clone().try_into();
    let error = match whole {
        Ok(settings) => return Ok(settings),
        Err(error) => error,
    };
    for (key, value) in table {
        let text = store::text_of(&value);
        let one = toml::Table::from_iter([(key.clone(), value)]);
        let read: Result<T, _> = one.try_into();
        if let Err(error) = read {
            let why = error.message().trim().to_owned();
            return Err(SettingsError { key, value: text, why });
        }
    }
    let why = error.message().trim().to_owned();
    Err(SettingsError { key: String::new(), value: String::new(), why })
}

/// Whether an engine computes something in an experiment.
#[must_use]
pub fn uses_engine(experiment: &Experiment) -> bool {
    let engine = |settings: &toml::Table| {
        settings.get("digest").and_then(toml::Value::as_str) == Some("engine")
    };
    experiment.procedure.name == "accel"
        || engine(&experiment.procedure.settings)
        || experiment.series.iter().any(|series| engine(&series.settings))
        || experiment.axis.columns.iter().any(|column| engine(&column.settings))
}

/// How long and how often is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Blocks of each column.
    pub blocks: u32,
    /// How long a run goes before it is measured.
    pub ramp: Duration,
    /// How long a run is measured, times the experiment's factor.
    pub time: Duration,
    /// Whether this is the time that the source states: no factor applies then.
    pub is_stated: bool,
}

impl Timing {
    /// The usual times of an effort.
    #[must_use]
    pub fn of(effort: Effort) -> Self {
        let ms = Duration::from_millis;
        match effort {
            Effort::Quick => Self { blocks: 6, ramp: ms(40), time: ms(200), is_stated: false },
            Effort::Normal => Self { blocks: 12, ramp: ms(200), time: ms(2000), is_stated: false },
            Effort::Full => {
                Self { blocks: 6, ramp: ms(10_000), time: ms(60_000), is_stated: false }
            }
        }
    }

    /// The times of an experiment: with [`Effort::Full`] those of its source, if the source states them.
    #[must_use]
    pub fn of_experiment(effort: Effort, experiment: &Experiment) -> Self {
        let usual = Self::of(effort);
        match &experiment.full {
            Some(full) if effort == Effort::Full => Self {
                ramp: Duration::from_secs(full.ramp_s.into()),
                time: Duration::from_secs(full.runtime_s.into()),
                is_stated: true,
                ..usual
            },
            _ => usual,
        }
    }
}

/// What a run needs besides the experiment.
pub struct Options<'a> {
    /// How long and how often is measured.
    pub effort: Effort,
    /// The times, if they are not the usual ones of the effort.
    pub timing: Timing,
    /// Blocks that each column has when the call ends. With fewer than those of `timing`, the record stays open, and
    /// another call goes on: so the blocks of one experiment are spread over a longer time.
    pub until: u32,
    /// Same seed, same addresses and data.
    pub seed: u64,
    /// The folder of the records; `None`: nothing is written.
    pub out: Option<PathBuf>,
    /// The test bed.
    pub bed: &'a dyn Bed,
    /// The folder in which SPDK was built.
    pub spdk: Option<PathBuf>,
    /// A target that runs already and stands for `raceline`.
    pub target: Option<(SocketAddr, Nqn)>,
    /// A namespace that the kernel's target exports.
    pub nvmet: Option<(SocketAddr, Nqn)>,
    /// A namespace that the kernel's target exports over RDMA.
    pub nvmet_rdma: Option<(SocketAddr, Nqn)>,
    /// What carries NVMe/RDMA.
    pub rdma: RdmaSource,
    /// The program that runs as an agent, with `bench agent --stdio`.
    pub agent: Option<PathBuf>,
    /// The engine that computes digests.
    pub engine: Option<Device>,
    /// The CPUs that may be used: those of the target first.
    pub cpus: Vec<usize>,
    /// What earlier experiments have learnt of the distance of cores.
    pub distances: Distances,
    /// The machine and its system.
    pub environment: serde_json::Value,
    /// Version of this program.
    pub version: String,
    /// Whether to end.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

/// The progress of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Runs that are done.
    pub done: usize,
    /// Runs in total.
    pub total: usize,
    /// The last run, e.g. `poll, 4 cores: 312,000 IOPS`.
    pub last: String,
}

/// Why an experiment did not end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The caller asked to stop. What was measured is in the record.
    #[error("stopped")]
    Stopped,
    /// A record cannot be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The settings are wrong.
    #[error("{}: {}", .0.key, .0.why)]
    Settings(SettingsError),
    /// Something failed that all points need.
    #[error("{0}")]
    Failed(String),
}

impl From<SettingsError> for RunError {
    fn from(error: SettingsError) -> Self {
        Self::Settings(error)
    }
}

/// Runs an experiment, or goes on with one that broke off; `report` receives the progress.
///
/// # Errors
/// When the run was stopped, or nothing can be measured or written. Points that the machine cannot measure
/// are in the record's list of missing ones.
pub fn run(
    experiment: &Experiment,
    options: &Options<'_>,
    report: &mut (dyn FnMut(Progress) + Send),
) -> Result<Record, RunError> {
    let began = Instant::now();
    let mut journal = Journal::open(experiment, options, report)?;
    let measured = match experiment.procedure.name.as_str() {
        "load" => load::measure(experiment, options, &mut journal),
        "limit" => pair::limit(experiment, options, &mut journal),
        "gap" => pair::gap(experiment, options, &mut journal),
        "accel" => pair::accel(experiment, options, &mut journal),
        "fleet" => fleet::measure(experiment, options, &mut journal),
        "converged" => converged::measure(experiment, options, &mut journal),
        "affinity" | "share" | "submit" => library::measure(experiment, options, &mut journal),
        other => Err(RunError::Failed(format!("there is no procedure `{other}`"))),
    };
    journal.record.took_s += began.elapsed().as_secs_f64();
    match measured {
        Ok(()) => journal.record.complete = options.until >= options.timing.blocks,
        Err(RunError::Stopped) => {
            journal.save()?;
            return Err(RunError::Stopped);
        }
        Err(error) => return Err(error),
    }
    journal.save()?;
    Ok(journal.record)
}

/// Columns of this effort.
fn columns<'a>(
    experiment: &'a Experiment,
    options: &Options<'_>,
) -> impl Iterator<Item = &'a Column> + use<'a> {
    let quick = options.effort == Effort::Quick;
    experiment.axis.columns.iter().filter(move |column| !(quick && column.full_only))
}

/// A record while it grows.
struct Journal<'a> {
    record: Record,
    out: Option<PathBuf>,
    done: usize,
    total: usize,
    report: &'a mut (dyn FnMut(Progress) + Send),
}

impl<'a> Journal<'a> {
    /// The record of a run that broke off with the same settings, or a new one.
    fn open(
        experiment: &Experiment,
        options: &Options<'_>,
        report: &'a mut (dyn FnMut(Progress) + Send),
    ) -> Result<Self, RunError> {
        let fresh = store::fresh(experiment, options);
        let record = match &options.out {
            Some(out) => store::resume(out, fresh)?,
            None => fresh,
        };
        let points = columns(experiment, options).count() * experiment.series.len();
        let total = points * options.timing.blocks as usize;
        let done = record.points.iter().map(|point| point.runs.len()).sum();
        Ok(Self { record, out: options.out.clone(), done, total, report })
    }

    /// The first block of a column that some of these series lack.
    fn next_block(&self, series: &[&str], column: &str) -> u32 {
        let blocks = |id: &&str| {
            let point = self.record.points.iter().find(|p| p.series == **id && p.x == column);
            point.map_or(0, |point| point.runs.iter().map(|run| run.block + 1).max().unwrap_or(0))
        };
        series.iter().map(blocks).min().unwrap_or(0)
    }

    /// Adds the runs of a block, by series, and saves the record.
    fn add_block(&mut self, column: &str, runs: Vec<(String, Run)>) -> Result<(), RunError> {
        for (series, run) in runs {
            self.done += 1;
            let iops = run.values.get("iops").or_else(|| run.values.get("mean_us"));
            let last = match iops {
                Some(value) => format!("{series}, {column}: {value:.0}"),
                None => format!("{series}, {column}"),
            };
            // A series that was missing when the run broke off begins with blocks that the others have.
            let runs = self.point(&series, column);
            if runs.iter().all(|known| known.block != run.block) {
                runs.push(run);
            }
            let (done, total) = (self.done, self.total.max(self.done));
            (self.report)(Progress { done, total, last });
        }
        self.save()
    }

    fn point(&mut self, series: &str, column: &str) -> &mut Vec<Run> {
        let is_it = |point: &Point| point.series == series && point.x == column;
        let at = match self.record.points.iter().position(is_it) {
            Some(at) => at,
            None => {
                self.record.points.push(Point {
                    series: series.to_owned(),
                    x: column.to_owned(),
                    runs: Vec::new(),
                });
                self.record.points.len() - 1
            }
        };
        &mut self.record.points[at].runs
    }

    /// Notes what is not measured, once.
    fn missing(&mut self, what: &str, why: &str, runs: usize) {
        self.total = self.total.saturating_sub(runs);
        let missing = Missing { what: what.to_owned(), why: why.to_owned() };
        if !self.record.missing.contains(&missing) {
            self.record.missing.push(missing);
        }
    }

    /// Notes what stands in for a piece, once.
    fn stand_in(&mut self, of: &str, by: &str, effect: &str) {
        self.record_stand_in(StandIn {
            of: of.to_owned(),
            by: by.to_owned(),
            effect: effect.to_owned(),
        });
    }

    fn record_stand_in(&mut self, stand_in: StandIn) {
        if !self.record.stand_ins.contains(&stand_in) {
            self.record.stand_ins.push(stand_in);
        }
    }

    fn setting(&mut self, name: &str, value: impl ToString) {
        self.record.settings.insert(name.to_owned(), value.to_string());
    }

    fn save(&self) -> Result<(), RunError> {
        match &self.out {
            Some(out) => Ok(store::save(out, &self.record)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
