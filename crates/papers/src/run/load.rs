//! The procedure `load`: a generator on the host's cores drives each series in turn, block by block.

mod column;
mod connected;
mod offload;
mod stage;

use std::collections::BTreeSet;

use raceline_bdev::SharedBdev;
use raceline_bench::gap::filled_ram;
use raceline_reactor::HugePages;

pub(super) use self::stage::neighbour_load;

use self::column::ColumnRun;
use super::{
    Journal, LoadSettings, Options, RunError, columns, merged, read,
    settings::Digest,
    settings::{Protocol, SubjectKind},
};
use crate::bed;
use crate::experiment::{Column, Experiment, Series};
use crate::subject::{self, Rdma};

/// A point that this machine can measure.
#[derive(Clone, Debug)]
struct Point<'a> {
    series: &'a Series,
    settings: LoadSettings,
}

/// Measures all columns.
pub(super) fn measure(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    bed_as_wanted(experiment, options, journal)?;
    let needs = missing_series(experiment, options, journal);
    let work = || {
        let mut memory = Memory::default();
        for column in columns(experiment, options) {
            let points = points(experiment, column, options, &needs, journal)?;
            let ids: Vec<&str> = points.iter().map(|point| point.series.id.as_str()).collect();
            if points.is_empty() || journal.next_block(&ids, &column.id) >= options.until {
                continue;
            }
            let device = memory.device(&points, options.seed)?;
            ColumnRun { column, points: &points, options, device: &device }.measure(journal)?;
            offload::add(experiment, column, options, journal)?;
        }
        Ok(())
    };
    bed::in_host_ns(options.bed, work)
        .map_err(|error| RunError::Failed(format!("the test bed: {error}")))?
}

/// Notes that another bed than the best one is in use.
pub(super) fn bed_as_wanted(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    let settings: LoadSettings = read(experiment.procedure.settings.clone())?;
    let bed = options.bed.describe();
    if settings.bed != "loopback" && bed.kind == "loopback" {
        let what = match settings.bed.as_str() {
            "veth" => "receive queues with NAPI ids",
            _ => "a link with a queue and a rate",
        };
        let effect = if settings.bed == "veth" {
            "Placement by receive queue and busy polling find no receive queue: these ways do the same as without them."
        } else {
            "No queue of the network delays a command behind another."
        };
        journal.stand_in(what, &bed.description, effect);
    }
    Ok(())
}

/// Notes the series that need something that the machine lacks, and what stands in; gives those series.
fn missing_series(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> BTreeSet<String> {
    let runs = columns(experiment, options).count() * options.timing.blocks as usize;
    let mut missing = BTreeSet::new();
    for series in experiment.series.iter().filter(|series| series.model.is_none()) {
        let why = series.needs.iter().find_map(|need| subject::missing::why(need, options));
        if let Some(why) = why {
            journal.missing(&format!("series {}: {}", series.id, series.label), &why, runs);
            missing.insert(series.id.clone());
            continue;
        }
        let Some(column) = experiment.axis.columns.first() else { continue };
        let Ok(settings) = read::<LoadSettings>(merged(experiment, series, column)) else {
            continue;
        };
        if settings.subject == SubjectKind::Handoff {
            journal.record_stand_in(subject::handoff_stand_in());
        }
        if settings.protocol == Protocol::NvmeRdma
            && let Ok(rdma) = options.rdma.find()
        {
            note_link(series, &settings, &rdma, options, journal);
        }
        if settings.digest == Digest::Engine
            && options.engine.as_ref().is_some_and(|engine| engine.is_emulated)
        {
            journal.record_stand_in(subject::engine_stand_in());
        }
    }
    missing
}

/// Notes over what a series over RDMA runs, and what that stands in for.
fn note_link(
    series: &Series,
    settings: &LoadSettings,
    rdma: &Rdma,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) {
    let mut link = rdma.describe();
    if settings.subject == SubjectKind::Nvmet
        && let Some((address, _)) = &options.nvmet_rdma
    {
        link = format!("{link}; the kernel's target is at {address}");
    }
    journal.setting(&format!("link/{}", series.id), link);
    let published = series.rdma_link.as_deref();
    if let Some(stand_in) = published.and_then(|link| rdma.stand_in(link, &series.id)) {
        journal.record_stand_in(stand_in);
    }
}

/// The points of a column that can be measured; notes the others.
fn points<'a>(
    experiment: &'a Experiment,
    column: &Column,
    options: &Options<'_>,
    missing: &BTreeSet<String>,
    journal: &mut Journal<'_>,
) -> Result<Vec<Point<'a>>, RunError> {
    let mut points = Vec::new();
    let mut lacking = 0;
    let mut why = String::new();
    let measured = |series: &&Series| series.model.is_none() && !missing.contains(&series.id);
    for series in experiment.series.iter().filter(measured) {
        let settings: LoadSettings = read(merged(experiment, series, column))?;
        let cores = settings.target_cores + settings.host_cores;
        if cores > options.cpus.len() {
            lacking += 1;
            why = format!(
                "{} cores of the target and {} of the host: this run may use {} CPUs",
                settings.target_cores,
                settings.host_cores,
                options.cpus.len()
            );
            continue;
        }
        points.push(Point { series, settings });
    }
    if lacking > 0 {
        let what = format!("column {}", column.id);
        journal.missing(&what, &why, lacking * options.timing.blocks as usize);
    }
    Ok(points)
}

/// The namespace's memory, which all columns of one size share.
#[derive(Default)]
struct Memory {
    device: Option<(u32, SharedBdev)>,
}

impl Memory {
    fn device(&mut self, points: &[Point<'_>], seed: u64) -> Result<SharedBdev, RunError> {
        let mib = points.iter().map(|point| point.settings.memory_mib).max().unwrap_or(16);
        if let Some((size, device)) = &self.device
            && *size == mib
        {
            return Ok(device.clone());
        }
        self.device = None;
        let bytes = mib as usize * (1 << 20);
        let device = filled_ram(bytes, HugePages::Transparent, seed).map_err(|error| {
            RunError::Failed(format!("cannot map {mib} MiB for the namespace: {error}"))
        })?;
        self.device = Some((mib, device.clone()));
        Ok(device)
    }
}
