//! The procedure `converged`: one target serves one file over NVMe/TCP, NVMe/TCP with TLS, iSCSI and NVMe/RDMA.
//!
//! Each series is a protocol, with a host and a part of the file of its own. All hosts write and read back what they
//! wrote. A column says who works at the same time and what bounds it: nothing, weights, or limits of rates.

mod hosts;
mod target;

use std::collections::BTreeMap;
use std::time::Duration;

use raceline_bench::Latencies;
use raceline_bench::quiet::{Disturbance, Machine};
use raceline_reactor::Mode;

use self::hosts::{Host, Measured};
use self::target::Served;
use super::settings::{ConvergedSettings, Mix, Wire};
use super::{Journal, Options, RunError, columns, merged, read, values};
use crate::experiment::{Column, Experiment, Series};
use crate::record::Run;
use crate::statistics::SAMPLES_BEYOND_MIN;

/// What this procedure measures.
pub(super) const METRICS: [&str; 9] = [
    "iops",
    "gbit_per_s",
    "share_percent",
    "limit_percent",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "checked",
];

/// Of this many blocks, one more may be thrown away because something disturbed it; at least so many.
const DISCARD_PART: u32 = 3;
const DISCARDS_MIN: u32 = 1;

/// Measures all columns, with RDMA where this machine has a device for it.
pub(super) fn measure(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    let total = experiment.series.len() * options.timing.blocks as usize;
    if options.cpus.len() < 2 {
        journal.missing("all series", "a second CPU for the hosts", total);
        return Ok(());
    }
    let rdma = options.rdma.find();
    let rdma = rdma.map_err(|why| leave_out_rdma(experiment, options, journal, &why)).ok();
    if let Some(rdma) = &rdma {
        journal.setting("link/rdma", rdma.describe());
    }
    for column in columns(experiment, options) {
        let lanes = lanes(experiment, column, rdma.is_some())?;
        let ids: Vec<&str> = lanes.iter().map(|lane| lane.series.id.as_str()).collect();
        let first = journal.next_block(&ids, &column.id);
        if lanes.is_empty() || first >= options.until {
            continue;
        }
        let all: Vec<&ConvergedSettings> = lanes.iter().map(|lane| &lane.settings).collect();
        let served = Served::start(&all, options, rdma.as_ref())
            .map_err(|why| RunError::Failed(format!("column {}: {why}", column.id)))?;
        let work = ColumnRun { column, lanes: &lanes, options, served: &served };
        let measured = work.blocks(first, journal);
        let stopped = served.stop().map_err(RunError::Failed);
        // A failure of the measurement says more than one of the end.
        measured.and(stopped)?;
    }
    Ok(())
}

/// Notes that the series over RDMA is not measured.
fn leave_out_rdma(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
    why: &str,
) {
    let runs = columns(experiment, options).count() * options.timing.blocks as usize;
    for series in &experiment.series {
        if series.settings.get("protocol").and_then(toml::Value::as_str) == Some("nvme-rdma") {
            journal.missing(&format!("series {}: {}", series.id, series.label), why, runs);
        }
    }
}

/// A series that takes part in a column.
struct Lane<'a> {
    series: &'a Series,
    settings: ConvergedSettings,
}

fn lanes<'a>(
    experiment: &'a Experiment,
    column: &Column,
    has_rdma: bool,
) -> Result<Vec<Lane<'a>>, RunError> {
    let mut lanes = Vec::new();
    for series in &experiment.series {
        let settings: ConvergedSettings = read(merged(experiment, series, column))?;
        if settings.protocol != Wire::NvmeRdma || has_rdma {
            lanes.push(Lane { series, settings });
        }
    }
    Ok(lanes)
}

/// All blocks of one column, with its target.
struct ColumnRun<'a> {
    column: &'a Column,
    lanes: &'a [Lane<'a>],
    options: &'a Options<'a>,
    served: &'a Served,
}

impl ColumnRun<'_> {
    fn blocks(&self, first: u32, journal: &mut Journal<'_>) -> Result<(), RunError> {
        let mut discards = (self.options.timing.blocks / DISCARD_PART).max(DISCARDS_MIN);
        for block in first..self.options.until {
            let runs = loop {
                let (runs, disturbed) = self.block(block)?;
                if !disturbed || discards == 0 {
                    break runs;
                }
                discards -= 1;
                journal.record.discarded_blocks += 1;
            };
            journal.add_block(&self.column.id, runs)?;
        }
        Ok(())
    }

    /// One run of each series, and whether something disturbed one of them.
    fn block(&self, block: u32) -> Result<(Vec<(String, Run)>, bool), RunError> {
        let apart = self.lanes.iter().all(|lane| lane.settings.mix == Mix::Alone);
        let groups: Vec<&[Lane<'_>]> =
            if apart { self.lanes.chunks(1).collect() } else { vec![self.lanes] };
        let (mut runs, mut disturbed) = (Vec::new(), false);
        for group in groups {
            let (measured, disturbance) = self.together(group, block)?;
            disturbed |= disturbance.is_too_much();
            let all = measured.iter().map(Measured::iops).sum();
            for (lane, measured) in group.iter().zip(&measured) {
                let mut values = values_of(&lane.settings, measured);
                if !apart {
                    values.insert("share_percent".to_owned(), percent(measured.iops(), all));
                }
                let run = Run {
                    block,
                    values,
                    latencies: values::buckets(&measured.latencies()),
                    target_bound: None,
                    foreign_percent: disturbance.foreign_percent,
                    stolen_percent: disturbance.stolen_percent,
                };
                runs.push((lane.series.id.clone(), run));
            }
        }
        Ok((runs, disturbed))
    }

    /// Runs the hosts of these series at the same time.
    fn together(
        &self,
        lanes: &[Lane<'_>],
        block: u32,
    ) -> Result<(Vec<Measured>, Disturbance), RunError> {
        let options = self.options;
        if (options.stop)() {
            return Err(RunError::Stopped);
        }
        let hosts: Vec<Host> = lanes
            .iter()
            .map(|lane| {
                let seed = options.seed.wrapping_add(block.into());
                let core = options.cpus[1];
                Host::new(self.served, &lane.settings, &options.timing, core, seed)
            })
            .collect::<Result<_, String>>()
            .map_err(|why| self.failed(&why))?;
        self.served.set_mode(Mode::Poll);
        let machine = Machine::now();
        let found = hosts::run(options.bed, &hosts, options.stop);
        let disturbance = Machine::now().since(&machine);
        self.served.set_mode(Mode::Interrupt);
        match found {
            Ok(measured) => Ok((measured, disturbance)),
            Err(_) if (options.stop)() => Err(RunError::Stopped),
            Err(why) => Err(self.failed(&why)),
        }
    }

    fn failed(&self, why: &str) -> RunError {
        RunError::Failed(format!("column {}: {why}", self.column.id))
    }
}

/// The metrics of one run of a series, but for its share.
fn values_of(settings: &ConvergedSettings, measured: &Measured) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let latencies: Latencies = measured.latencies();
    let iops = measured.iops();
    found.insert("iops".to_owned(), iops);
    found.insert("gbit_per_s".to_owned(), iops * f64::from(settings.io_bytes) * 8.0 / 1e9);
    if let Some(limit) = settings.limit() {
        found.insert("limit_percent".to_owned(), percent(iops, limit as f64));
    }
    if latencies.count() > 0 {
        found.insert("mean_us".to_owned(), latencies.mean_ns() / 1000.0);
    }
    for (name, percentile) in [("p50_us", 50.0), ("p99_us", 99.0), ("p999_us", 99.9)] {
        let beyond = latencies.count() as f64 * (100.0 - percentile) / 100.0;
        if beyond >= SAMPLES_BEYOND_MIN - 1e-6 {
            found.insert(name.to_owned(), latencies.percentile_ns(percentile) as f64 / 1000.0);
        }
    }
    found.insert("checked".to_owned(), measured.checked as f64);
    found
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// The ramp of a run: hosts that share a CPU connect one after the other.
fn ramp(timing: &super::Timing) -> Duration {
    timing.ramp.max(Duration::from_millis(20))
}

#[cfg(test)]
mod tests;
