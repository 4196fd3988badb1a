//! The procedures `affinity`, `share` and `submit`: threads of a program that submit to queues of a worker.

use std::time::Duration;

use raceline_bench::host::report::Row;
use raceline_bench::host::{self, Case, HostBenchConfig, HostBenchError, affinity};
use raceline_bench::quiet::Machine;
use raceline_host::I10Config;
use raceline_reactor::{Backend, Mode};

use super::{
    AffinitySettings, Journal, Options, RunError, ShareSettings, columns, merged, read, values,
};
use crate::bed;
use crate::experiment::{Column, Experiment};
use crate::record::Run;

/// What these procedures measure.
pub(super) const METRICS: [&str; 6] =
    ["iops", "mean_us", "p99_us", "p999_us", "switches_per_io", "handoffs_per_io"];

/// What the procedure `submit` measures.
pub(super) const SUBMIT_METRICS: [&str; 3] = ["submit_p50_us", "submit_mean_us", "submit_cpu_us"];

const MEMORY_BYTES: usize = 64 << 20;

/// Measures all blocks.
pub(super) fn measure(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    let [target_core, host_core, ..] = options.cpus[..] else {
        let total = experiment.series.len() * options.timing.blocks as usize;
        journal.missing("all series", "a second CPU for the host", total);
        return Ok(());
    };
    if options.bed.describe().kind != "loopback" {
        journal.stand_in(
            "the bed of this run",
            "the loopback",
            "This procedure always uses the loopback.",
        );
    }
    let config = HostBenchConfig {
        target: options.target.clone(),
        memory_bytes: MEMORY_BYTES,
        mode: Mode::Poll,
        backend: Backend::default(),
        target_core,
        host_core,
        rounds: 1,
        ramp: options.timing.ramp,
        time: options.timing.time,
        seed: options.seed,
        writer_bytes: 0,
        i10: I10Config::default(),
        depth: 1,
        distances: options.distances.clone(),
    };
    for column in columns(experiment, options) {
        let ids = ids(experiment, column, options, journal)?;
        for block in journal.next_block(&ids, &column.id)..options.until {
            let point = Block { experiment, column, options, config: &config, block };
            let runs = match experiment.procedure.name.as_str() {
                "share" => point.share()?,
                "submit" => point.submit()?,
                _ => point.affinity()?,
            };
            journal.add_block(&column.id, runs)?;
        }
    }
    Ok(())
}

/// The series that a column can have; the others are noted.
fn ids<'a>(
    experiment: &'a Experiment,
    column: &Column,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<Vec<&'a str>, RunError> {
    let mut ids = Vec::new();
    for series in &experiment.series {
        if experiment.procedure.name == "share"
            && read::<ShareSettings>(merged(experiment, series, column))?.has_no_depth()
        {
            let what = format!("series {}, column {}", series.id, column.id);
            let why = "this path has one command in flight";
            journal.missing(&what, why, options.timing.blocks as usize);
            continue;
        }
        ids.push(series.id.as_str());
    }
    Ok(ids)
}

struct Block<'a> {
    experiment: &'a Experiment,
    column: &'a Column,
    options: &'a Options<'a>,
    config: &'a HostBenchConfig,
    block: u32,
}

impl Block<'_> {
    /// All paths of `raceline bench host --case share`.
    fn share(&self) -> Result<Vec<(String, Run)>, RunError> {
        let machine = Machine::now();
        let Some(first) = self.experiment.series.first() else { return Ok(Vec::new()) };
        let common: ShareSettings = read(merged(self.experiment, first, self.column))?;
        let config = HostBenchConfig { depth: common.depth, ..self.config.clone() };
        let section = host::run(Case::Share, &config, self.options.stop);
        let section = section.map_err(|error| self.failed(&error))?;
        let mut runs = Vec::new();
        for series in &self.experiment.series {
            let settings: ShareSettings = read(merged(self.experiment, series, self.column))?;
            if settings.has_no_depth() {
                continue;
            }
            let row = section.rows.iter().find(|row| row.label == settings.path);
            let row = row.ok_or_else(|| {
                RunError::Failed(format!("bench host has no path `{}`", settings.path))
            })?;
            let mut run = self.empty(&machine);
            put(&mut run, row, "IOPS", "iops", 1.0);
            put(&mut run, row, "mean us", "mean_us", 1e-3);
            put(&mut run, row, "P99 us", "p99_us", 1e-3);
            put(&mut run, row, "hand-offs per I/O", "handoffs_per_io", 1.0);
            put(&mut run, row, "context switches per I/O", "switches_per_io", 1.0);
            runs.push((series.id.clone(), run));
        }
        Ok(runs)
    }

    /// The case `submit` of `raceline bench host`, for each series.
    fn submit(&self) -> Result<Vec<(String, Run)>, RunError> {
        let mut runs = Vec::new();
        for series in &self.experiment.series {
            let machine = Machine::now();
            let section = host::run(Case::Submit, self.config, self.options.stop);
            let section = section.map_err(|error| self.failed(&error))?;
            let mut run = self.empty(&machine);
            for row in &section.rows {
                put(&mut run, row, "median us per submission", "submit_p50_us", 1e-3);
                put(&mut run, row, "mean us per submission", "submit_mean_us", 1e-3);
                put(&mut run, row, "mean us of CPU time", "submit_cpu_us", 1e-3);
            }
            runs.push((series.id.clone(), run));
        }
        Ok(runs)
    }

    /// The worker on the CPU of the program's thread, and on another one: a third if there is one.
    fn affinity(&self) -> Result<Vec<(String, Run)>, RunError> {
        let mut runs = Vec::new();
        let mut all: Vec<_> = self.experiment.series.iter().collect();
        if self.block % 2 == 1 {
            all.reverse();
        }
        for series in all {
            let settings: AffinitySettings = read(merged(self.experiment, series, self.column))?;
            // A target that polls would not let a worker on its CPU run.
            let config = HostBenchConfig { mode: Mode::Interrupt, ..self.config.clone() };
            let other = self.options.cpus.get(2).copied().unwrap_or(config.target_core);
            let worker = if settings.same_cpu { config.host_core } else { other };
            let machine = Machine::now();
            let found = bed::in_host_ns(self.options.bed, || {
                affinity::run(&config, worker, settings.depth, self.options.stop)
            });
            let found = found.map_err(|error| RunError::Failed(error.to_string()))?;
            let found = found.map_err(|error| self.failed(&error))?;
            let mut run = self.empty(&machine);
            let seconds = found.measured.max(Duration::from_nanos(1)).as_secs_f64();
            let us = |ns: f64| ns / 1000.0;
            for (name, value) in [
                ("iops", found.latencies.count() as f64 / seconds),
                ("mean_us", us(found.latencies.mean_ns())),
                ("p99_us", us(found.latencies.percentile_ns(99.0) as f64)),
                ("switches_per_io", found.switches_per_io),
                ("handoffs_per_io", found.handed_off_per_io),
            ] {
                run.values.insert(name.to_owned(), value);
            }
            run.latencies = values::buckets(&found.latencies);
            runs.push((series.id.clone(), run));
        }
        Ok(runs)
    }

    fn empty(&self, since: &Machine) -> Run {
        let disturbance = Machine::now().since(since);
        Run {
            block: self.block,
            values: std::collections::BTreeMap::new(),
            latencies: Vec::new(),
            target_bound: None,
            foreign_percent: disturbance.foreign_percent,
            stolen_percent: disturbance.stolen_percent,
        }
    }

    fn failed(&self, error: &HostBenchError) -> RunError {
        if (self.options.stop)() {
            return RunError::Stopped;
        }
        RunError::Failed(format!("column {}: {error}", self.column.id))
    }
}

/// Takes a figure of a row, if it has a value.
fn put(run: &mut Run, row: &Row, cell: &str, metric: &str, factor: f64) {
    let found = row.cells.iter().find(|found| found.column == cell);
    if let Some(spread) = found.and_then(|cell| cell.spread) {
        run.values.insert(metric.to_owned(), spread.median * factor);
    }
}
