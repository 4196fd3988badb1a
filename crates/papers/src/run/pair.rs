//! The procedures `limit`, `gap` and `accel`: experiments of `raceline bench` as records.

use std::collections::BTreeMap;
use std::time::Duration;

use raceline_accel::{CrcPath, OpCode};
use raceline_bench::accel::{AccelBench, AccelConfig, Case as AccelCase, HOT, Row, Way};
use raceline_bench::gap::{Case, Gap, GapConfig, Subject};
use raceline_bench::limit::{self, Fixed, Limit, LimitConfig, fill_region};
use raceline_bench::quiet::{Disturbance, Machine};
use raceline_reactor::{Backend, HugePages, Mode};

use super::{AccelSettings, Journal, Options, PairSettings, RunError, columns, merged, read};
use crate::experiment::{Column, Experiment};
use crate::record::Run;

/// Operations in flight on an engine.
const ENGINE_DEPTH: usize = 64;
/// A run of `accel` takes this part of a usual run.
const ACCEL_PART: u32 = 4;

/// The limit of all series of each column.
pub(super) fn limit(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    let Some((target_core, host_core)) = two_cores(experiment, options, journal) else {
        return Ok(());
    };
    for column in columns(experiment, options) {
        let ids: Vec<&str> = experiment.series.iter().map(|series| series.id.as_str()).collect();
        let first = journal.next_block(&ids, &column.id);
        if first >= options.until {
            continue;
        }
        let mut limits = Vec::new();
        for series in &experiment.series {
            check_stop(options)?;
            let settings: PairSettings = read(merged(experiment, series, column))?;
            let config = limit_config(&settings, options, target_core, host_core);
            let start = || {
                let region = fill_region(config.memory_bytes, config.pages, config.seed)?;
                let mut limit = Limit::start(&config, region)?;
                limit.calibrate()?;
                Ok(limit)
            };
            let limit = start().map_err(|error: limit::LimitError| failed(column, &error))?;
            limits.push((series.id.clone(), settings, limit));
        }
        for block in first..options.until {
            let mut runs = Vec::new();
            for (series, settings, limit) in &mut limits {
                check_stop(options)?;
                let machine = Machine::now();
                let run = limit.run(options.timing.ramp, options.timing.time);
                let run = run.map_err(|error| failed(column, &error))?;
                let iops = run.commands as f64 / run.time.as_secs_f64();
                let disturbance = Machine::now().since(&machine);
                runs.push((series.clone(), with_iops(block, iops, settings.io_bytes, disturbance)));
            }
            journal.add_block(&column.id, runs)?;
        }
        for (_, _, limit) in limits {
            limit.stop();
        }
    }
    Ok(())
}

/// Raceline beside the limit, in pairs.
pub(super) fn gap(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    let Some((target_core, host_core)) = two_cores(experiment, options, journal) else {
        return Ok(());
    };
    let [reference, product, ..] = &experiment.series[..] else {
        return Err(RunError::Failed("gap needs two series: the limit and Raceline".to_owned()));
    };
    for column in columns(experiment, options) {
        check_stop(options)?;
        let ids = [reference.id.as_str(), product.id.as_str()];
        if journal.next_block(&ids, &column.id) >= options.timing.blocks {
            continue;
        }
        let settings: PairSettings = read(merged(experiment, product, column))?;
        let case = Case {
            io_bytes: settings.io_bytes,
            write: settings.write,
            depth: settings.depth,
            connections: settings.connections,
        };
        let config = gap_config(&settings, options, target_core, host_core);
        let measure = || {
            let mut gap = Gap::start(&config, &[case])?;
            let point = gap.measure(case, options.stop);
            let stopped = gap.stop();
            let point = point?;
            stopped.map(|()| point)
        };
        let point = measure().map_err(|error: raceline_bench::gap::GapError| {
            if (options.stop)() { RunError::Stopped } else { failed(column, &error) }
        })?;
        journal.record.discarded_blocks += u32::try_from(point.repeated).unwrap_or(u32::MAX);
        for (block, pair) in (0..).zip(&point.pairs) {
            let run = |iops| with_iops(block, iops, settings.io_bytes, pair.disturbance);
            let runs = vec![
                (reference.id.clone(), run(pair.reference_iops)),
                (product.id.clone(), run(pair.iops)),
            ];
            journal.add_block(&column.id, runs)?;
        }
    }
    Ok(())
}

/// Operations on data, by all ways.
pub(super) fn accel(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    if options.engine.as_ref().is_some_and(|engine| engine.is_emulated) {
        journal.record_stand_in(crate::subject::engine_stand_in());
    }
    for column in columns(experiment, options) {
        check_stop(options)?;
        let ids: Vec<&str> = experiment.series.iter().map(|series| series.id.as_str()).collect();
        if journal.next_block(&ids, &column.id) >= options.timing.blocks {
            continue;
        }
        let Some(series) = experiment.series.first() else { continue };
        let settings: AccelSettings = read(merged(experiment, series, column))?;
        let operation: OpCode = settings
            .operation
            .parse()
            .map_err(|_| RunError::Failed(format!("`{}` is no operation", settings.operation)))?;
        let size = settings.io_bytes as usize;
        let config = AccelConfig {
            operations: vec![operation],
            paths: vec![CrcPath::Auto],
            devices: options.engine.iter().cloned().collect(),
            sizes: vec![size],
            depths: vec![ENGINE_DEPTH],
            working_sets: vec![HOT],
            runs: options.timing.blocks as usize,
            time: options.timing.time / ACCEL_PART,
            seed: options.seed,
        };
        let machine = Machine::now();
        let measure = || {
            let mut bench = AccelBench::open(config)?;
            bench.measure(AccelCase { operation, size, working_set: HOT })
        };
        let rows = measure()
            .map_err(|error: raceline_bench::accel::AccelBenchError| failed(column, &error))?;
        let disturbance = Machine::now().since(&machine);
        for block in 0..options.timing.blocks {
            let run = |(series, row): &(&str, &Row)| {
                let ns = *row.runs_ns.get(block as usize)?;
                let mut run = empty(block, disturbance);
                run.values.insert("ns_per_op".to_owned(), ns);
                run.values.insert("gbyte_per_s".to_owned(), size as f64 / ns);
                Some(((*series).to_owned(), run))
            };
            let found: Vec<(&str, &Row)> =
                ids.iter().filter_map(|id| Some((*id, row_of(&rows, id)?))).collect();
            journal.add_block(&column.id, found.iter().filter_map(run).collect())?;
        }
        for id in ids.iter().filter(|id| row_of(&rows, id).is_none()) {
            let what = format!("series {id}, column {}", column.id);
            let why = "this way of the operation does not exist on this machine";
            journal.missing(&what, why, options.timing.blocks as usize);
        }
    }
    Ok(())
}

fn row_of<'a>(rows: &'a [Row], series: &str) -> Option<&'a Row> {
    rows.iter().find(|row| match row.way {
        Way::Direct(_) => series == "direct",
        Way::Software(_) => series == "software",
        Way::Device { .. } => series == "engine",
    })
}

fn two_cores(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Option<(usize, usize)> {
    if let [target, host, ..] = options.cpus[..] {
        return Some((target, host));
    }
    let total = experiment.series.len() * options.timing.blocks as usize;
    journal.missing("all series", "a second CPU for the host", total);
    None
}

fn limit_config(
    settings: &PairSettings,
    options: &Options<'_>,
    target_core: usize,
    host_core: usize,
) -> LimitConfig {
    LimitConfig {
        io_bytes: settings.io_bytes as usize,
        write: settings.write,
        depth: settings.depth.into(),
        connections: settings.connections.into(),
        memory_bytes: settings.memory_mib as usize * (1 << 20),
        pages: HugePages::Transparent,
        mode: limit::Mode::Polled,
        target_core: Some(target_core),
        host_core: Some(host_core),
        fixed: Fixed { buffer_each: true, ..Fixed::default() },
        tls: None,
        seed: options.seed,
    }
}

fn gap_config(
    settings: &PairSettings,
    options: &Options<'_>,
    target_core: usize,
    host_core: usize,
) -> GapConfig {
    GapConfig {
        subject: Subject::Export,
        memory_bytes: settings.memory_mib as usize * (1 << 20),
        pages: HugePages::Transparent,
        null: false,
        buffer_each: true,
        staged: false,
        work: Duration::ZERO,
        tls: None,
        mode: Mode::Poll,
        backend: Backend::default(),
        target_core: Some(target_core),
        host_core: Some(host_core),
        pairs: options.timing.blocks as usize,
        ramp: options.timing.ramp,
        time: options.timing.time,
        seed: options.seed,
        distances: options.distances.clone(),
    }
}

fn with_iops(block: u32, iops: f64, io_bytes: u32, disturbance: Disturbance) -> Run {
    let mut run = empty(block, disturbance);
    run.values.insert("iops".to_owned(), iops);
    run.values.insert("gbit_per_s".to_owned(), iops * f64::from(io_bytes) * 8.0 / 1e9);
    run
}

fn empty(block: u32, disturbance: Disturbance) -> Run {
    Run {
        block,
        values: BTreeMap::new(),
        latencies: Vec::new(),
        target_bound: None,
        foreign_percent: disturbance.foreign_percent,
        stolen_percent: disturbance.stolen_percent,
    }
}

fn check_stop(options: &Options<'_>) -> Result<(), RunError> {
    if (options.stop)() { Err(RunError::Stopped) } else { Ok(()) }
}

fn failed(column: &Column, error: &dyn std::fmt::Display) -> RunError {
    RunError::Failed(format!("column {}: {error}", column.id))
}
