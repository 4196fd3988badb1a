//! `raceline bench run`: measures experiments, shows the progress, and prints the table of each.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use raceline_bench::accel::Device;
use raceline_bench::distance::Distances;
use raceline_bench::machine::Origin;
use raceline_papers::bed::Bed;
use raceline_papers::environment;
use raceline_papers::experiment::Experiment;
use raceline_papers::record::Effort;
use raceline_papers::run::{self, Options, RunError, Timing};
use raceline_papers::subject::RdmaSource;
use raceline_papers::table;
use raceline_reactor::affinity::allowed_cores;

use super::super::engines;
use super::bed::Beds;
use super::catalogue;
use crate::cli::bench::OffloadChoice;
use crate::cli::bench::papers::RunArgs;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, shell};

/// A quick run waits for near cores no longer than this.
const QUICK_PATIENCE: Duration = Duration::from_secs(3);
/// All experiments of a quick run together look and wait for near cores no longer than this.
const QUICK_BUDGET: Duration = Duration::from_secs(90);

/// How often `run all` goes over the experiments, each time for a part of the blocks: a machine that is slower for a
/// minute then shows in the intervals.
const PASSES: u32 = 2;

/// Runs the experiments one after the other.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let (catalogue, added) = catalogue(&args.file)?;
    let all = args.ids.iter().any(|id| id.eq_ignore_ascii_case("all"));
    let mut experiments: Vec<&Experiment> = Vec::new();
    if all {
        experiments.extend(catalogue.all());
    } else {
        let named = if args.ids.is_empty() { &added } else { &args.ids };
        for id in named {
            let found = catalogue.find(id).map_err(Failure::usage)?;
            if !experiments.iter().any(|it| it.id == found.id) {
                experiments.push(found);
            }
        }
    }
    check_families(args)?;
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let distances = match effort(args) {
        Effort::Quick => Distances::with_patience(QUICK_PATIENCE).with_budget(QUICK_BUDGET),
        _ => Distances::default(),
    };
    let shared = Shared { args, cpus: cpus(args)?, distances, interrupt: &Mutex::new(interrupt) };
    let mut beds = Beds::default();
    let bar = Bar::new(&experiments, &shared);
    let mut failures = Vec::new();
    let passes = if all { PASSES } else { 1 };
    for pass in 1..=passes {
        for (number, experiment) in experiments.iter().enumerate() {
            bar.begin(number, experiment);
            let bed = bar.bar.suspend(|| beds.of(args, experiment))?;
            let part = (pass, passes);
            match shared.run(experiment, bed, part, &mut |progress| bar.show(number, &progress)) {
                Ok(record) if record.complete => {
                    let text = table::text(experiment, &record);
                    bar.bar.suspend(|| shell::print(format!("{text}\n").as_bytes()))?;
                }
                Ok(_) => {}
                Err(error) => {
                    bar.bar.suspend(|| shared.stopped(&error))?;
                    failures.push(format!("{}: {error}", experiment.id));
                }
            }
        }
    }
    bar.bar.finish_and_clear();
    match &failures[..] {
        [] => Ok(()),
        failures => Err(Failure::runtime(failures.join("; "))),
    }
}

/// A device is reached from an address of the same kind as the target's.
fn check_families(args: &RunArgs) -> Result<(), Failure> {
    let (Some(here), Some((target, _))) = (args.rdma, &args.nvmet_rdma) else { return Ok(()) };
    if here.is_ipv4() == target.is_ipv4() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--nvmet-rdma: {target} cannot be reached from {here}, which --rdma names: one is an IPv4 address and the other an \
         IPv6 address; name two of one kind"
    )))
}

/// The CPUs to use.
fn cpus(args: &RunArgs) -> Result<Vec<usize>, Failure> {
    let allowed = allowed_cores().map_err(Failure::runtime)?;
    if args.cpus.is_empty() {
        return Ok(allowed);
    }
    for (index, cpu) in args.cpus.iter().enumerate() {
        if !allowed.contains(cpu) {
            let message = format!("--cpus: this process may not use CPU {cpu}, only {allowed:?}");
            return Err(Failure::usage(message));
        }
        if args.cpus[..index].contains(cpu) {
            return Err(Failure::usage(format!("--cpus: CPU {cpu} is there twice")));
        }
    }
    Ok(args.cpus.clone())
}

fn effort(args: &RunArgs) -> Effort {
    match (args.quick, args.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => Effort::Normal,
    }
}

fn timing(args: &RunArgs, experiment: &Experiment) -> Timing {
    let usual = Timing::of_experiment(effort(args), experiment);
    Timing {
        blocks: args.blocks.unwrap_or(usual.blocks),
        ramp: args.ramp_time.unwrap_or(usual.ramp),
        time: args.runtime.unwrap_or(usual.time),
        is_stated: usual.is_stated && args.runtime.is_none(),
    }
}

/// What all experiments share.
struct Shared<'a> {
    args: &'a RunArgs,
    cpus: Vec<usize>,
    /// Columns and experiments that follow each other wait for near cores once.
    distances: Distances,
    /// Threads of a measurement ask it, too.
    interrupt: &'a Mutex<Interrupt>,
}

impl Shared<'_> {
    fn run(
        &self,
        experiment: &Experiment,
        bed: &dyn Bed,
        (pass, passes): (u32, u32),
        report: &mut (dyn FnMut(run::Progress) + Send),
    ) -> Result<raceline_papers::record::Record, RunError> {
        let engine = if run::uses_engine(experiment) {
            self.engine().map_err(|failure| RunError::Failed(failure.message))?
        } else {
            None
        };
        let origin = Origin::here();
        let stop = || self.signal().is_some();
        let timing = timing(self.args, experiment);
        let options = Options {
            effort: effort(self.args),
            timing,
            until: (timing.blocks * pass).div_ceil(passes),
            seed: self.args.seed,
            out: Some(self.args.out.clone()),
            bed,
            spdk: self.args.spdk.clone(),
            target: self.args.target.clone(),
            nvmet: self.args.nvmet.clone(),
            nvmet_rdma: self.args.nvmet_rdma.clone(),
            rdma: RdmaSource::at(self.args.rdma),
            agent: std::env::current_exe().ok(),
            engine,
            cpus: self.cpus.clone(),
            distances: self.distances.clone(),
            environment: environment::read(bed),
            version: origin.version.to_owned(),
            stop: &stop,
        };
        run::run(experiment, &options, report)
    }

    /// The engine that computes digests.
    fn engine(&self) -> Result<Option<Device>, Failure> {
        let host_core = self.cpus.get(1).copied();
        match self.args.offload {
            Some(OffloadChoice::None) => Ok(None),
            Some(OffloadChoice::Dsa) => engines::dsa().map(Some),
            Some(OffloadChoice::DsaEmulated) => engines::emulated_dsa(host_core).map(Some),
            None => match engines::dsa() {
                Ok(device) => Ok(Some(device)),
                Err(_) => engines::emulated_dsa(host_core).map(Some),
            },
        }
    }

    fn signal(&self) -> Option<i32> {
        self.interrupt.lock().unwrap_or_else(PoisonError::into_inner).requested()
    }

    /// Ends the command after a signal, or when no record can be written; other failures are of one
    /// experiment only.
    fn stopped(&self, error: &RunError) -> Result<(), Failure> {
        if let Some(signal) = self.signal() {
            eprintln!(
                "raceline: what was measured is in {}; the same command goes on from there",
                self.args.out.display()
            );
            return Err(Failure::signal(signal));
        }
        match error {
            RunError::Store(error) => Err(Failure::runtime(error)),
            error => {
                eprintln!("raceline: {error}");
                Ok(())
            }
        }
    }
}

/// One bar over the runs of all experiments.
struct Bar {
    bar: ProgressBar,
    /// Runs of each experiment, as far as they are known, and those that are done.
    runs: Mutex<Vec<(u64, u64)>>,
    names: Vec<String>,
}

impl Bar {
    fn new(experiments: &[&Experiment], shared: &Shared<'_>) -> Self {
        let quick = effort(shared.args) == Effort::Quick;
        let runs = |experiment: &&Experiment| {
            let shown = experiment.axis.columns.iter().filter(|it| !(quick && it.full_only));
            let blocks = timing(shared.args, experiment).blocks;
            (shown.count() * experiment.series.len()) as u64 * u64::from(blocks)
        };
        let runs: Vec<(u64, u64)> = experiments.iter().map(|it| (runs(it), 0)).collect();
        let total = runs.iter().map(|(total, _)| total).sum();
        let target = ProgressDrawTarget::stderr();
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let template = "{msg} {wide_bar} {pos} of {len} runs, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let names = experiments.iter().map(|experiment| experiment.id.clone()).collect();
        Self { bar, runs: Mutex::new(runs), names }
    }

    fn begin(&self, number: usize, experiment: &Experiment) {
        self.bar.set_message(format!("[{}/{}] {}", number + 1, self.names.len(), experiment.id));
    }

    fn show(&self, number: usize, progress: &run::Progress) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs[number] = (progress.total as u64, progress.done as u64);
        self.bar.set_length(runs.iter().map(|(total, _)| total).sum());
        self.bar.set_position(runs.iter().map(|(_, done)| done).sum());
        let (at, of, id) = (number + 1, self.names.len(), &self.names[number]);
        self.bar.set_message(format!("[{at}/{of}] {id}  {}", progress.last));
    }
}
