//! `raceline perf`: measures the work of namespaces, and with `--verify` checks it.

mod maps;
mod plan;
mod renewal;
mod targets;
mod units;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use raceline_accel::Framework;
use raceline_bench::acceleration::Acceleration;
use raceline_bench::job::JobError;
use raceline_bench::report::{JobReport, Precondition, Report, Side, StageReport, Verified};
use raceline_bench::runner::iscsi::IscsiUnit;
use raceline_bench::runner::stage::{FileSpec, StageConfig};
use raceline_bench::runner::{self, CloneOutcome, Progress, RunError, StageOutcome};
use raceline_host::HostConfig;
use raceline_host::blocking::Host;

use self::plan::Stage;
use self::renewal::Renewal;
use self::targets::Targets;
use self::units::Units;
use crate::cli::perf::PerfArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{initiator, limits, remote, shell};

/// Runs the workload and prints the report.
pub(crate) fn run(args: &PerfArgs) -> Result<(), Failure> {
    if args.accel.is_some() && !args.connect.data_digest {
        return Err(Failure::usage("--accel has nothing to do without -G (--data-digest)"));
    }
    if let Some(time) = args.busy_poll {
        raceline_reactor::socket::check_busy_poll(time).map_err(Failure::runtime)?;
    }
    let units = Units::new(args)?;
    let mut targets = Targets::new(args)?;
    let mut stages = plan::stages(args, &mut targets)?;
    let cores = args.cores.clone().unwrap_or_default().0;
    if args.maps.show_maps {
        let host = stages[0].config.hosts[0].clone();
        return maps::show(host, &cores, args.connect.address.output);
    }
    let framework = args.accel.clone().unwrap_or_default().framework(cores.len())?;
    plan::set_framework(&mut stages, &framework);
    limits::raise_file_descriptors();
    let mut runner = Runner {
        interrupt: Interrupt::catch().map_err(Failure::runtime)?,
        bar: Bar::new(),
        framework,
        renewal: Renewal::new(args)?,
        units,
    };
    let mut report = Report { precondition: Vec::new(), stages: Vec::new() };
    let mut failure = None;
    if args.precondition {
        let mut limits = |config: &StageConfig, file| match &mut runner.units {
            None => limits_of(config, file),
            Some(units) => Ok(units_limits(&units.of(config)?[file.host])),
        };
        for pass in plan::precondition(args, &stages, &mut limits)? {
            let outcome = runner.run(&pass)?;
            failure = failure.or_else(|| failed(&pass, &outcome));
            report.precondition.push(precondition(&pass, &outcome));
        }
    }
    for stage in &stages {
        if failure.is_some() || runner.interrupt.requested().is_some() {
            break;
        }
        let before = runner.framework.statistics();
        let outcome = runner.run(stage)?;
        let acceleration = Acceleration::since(&runner.framework, &before);
        failure = failed(stage, &outcome);
        report.stages.push(stage_report(stage, outcome, acceleration));
    }
    runner.bar.clear();
    let text = match args.connect.address.output {
        OutputFormat::Table => report.to_table(),
        OutputFormat::Json => report.to_json(),
    };
    shell::print(text.as_bytes())?;
    match (failure, runner.interrupt.requested()) {
        (Some(failure), _) => Err(failure),
        (None, Some(signal)) => Err(Failure::signal(signal)),
        (None, None) => Ok(()),
    }
}

/// An error of a run as a failure of the verb.
pub(crate) fn failure(error: RunError) -> Failure {
    match error {
        RunError::Host(error) => remote::failure(&error),
        RunError::Session(error) => initiator::failure(&error),
        RunError::Invalid(message) => Failure::usage(message),
        error @ (RunError::Misfit(_) | RunError::Grant { .. }) => Failure::usage(error),
        other => Failure::runtime(other),
    }
}

/// Runs stages, and shows their progress.
struct Runner {
    interrupt: Interrupt,
    bar: Bar,
    framework: Framework,
    renewal: Option<Renewal>,
    /// The logical units, of a run over iSCSI.
    units: Option<Units>,
}

impl Runner {
    fn run(&mut self, stage: &Stage) -> Result<StageOutcome, Failure> {
        let units = match &mut self.units {
            Some(units) => Some(units.of(&stage.config)?),
            None => None,
        };
        let mut watch = |progress| {
            self.bar.show(progress);
            if let Some(renewal) = &mut self.renewal {
                renewal.tick(&stage.config.hosts);
            }
            self.interrupt.requested().is_none()
        };
        let outcome = match &units {
            Some(units) => runner::iscsi::run_stage(&stage.config, units, &mut watch),
            None => runner::run_stage(&stage.config, &mut watch),
        };
        outcome.map_err(|error| {
            self.bar.clear();
            match error {
                RunError::Stopped => Failure::signal(self.interrupt.requested().unwrap_or(0)),
                error => located(stage, error),
            }
        })
    }
}

/// The same for a stage, whose jobs may come from a file: the failure then names the wrong line.
fn located(stage: &Stage, error: RunError) -> Failure {
    let origin = |job: usize| stage.jobs.get(job).and_then(|job| job.origin.as_ref());
    match error {
        RunError::Misfit(misfit) => match origin(misfit.job) {
            Some(origin) => Failure::usage(origin.describe(&misfit)),
            None => failure(RunError::Misfit(misfit)),
        },
        RunError::Grant { granted, asked } if origin(0).is_some() => {
            let file = origin(0).map_or("", |origin| &origin.file);
            Failure::usage(format!(
                "{file}: the controller grants {granted} I/O queues, and the jobs that run at the same \
                 time use {asked}, one for each of numjobs: use fewer, or let some wait (stonewall)"
            ))
        }
        error => failure(error),
    }
}

/// The largest transfer and the block size of a namespace.
fn limits_of(config: &StageConfig, file: FileSpec) -> Result<(u32, u32), Failure> {
    let host = HostConfig { io_queues: 0, ..config.hosts[file.host].clone() };
    let host = Host::connect(host).map_err(|error| remote::failure(&error))?;
    let largest = host.controller().max_transfer_bytes.unwrap_or(plan::FILL_BYTES);
    let block = host.namespace(file.nsid).map(|namespace| namespace.block_size);
    host.disconnect();
    // The run itself reports a namespace that does not exist.
    Ok((largest, block.unwrap_or(0)))
}

/// The same of a logical unit.
fn units_limits(known: &IscsiUnit) -> (u32, u32) {
    let (block, most) = (known.unit.block_size, known.unit.max_transfer_blocks);
    let largest = if most == 0 { plan::FILL_BYTES } else { most.saturating_mul(block) };
    (largest, block)
}

/// The first failure.
fn failed(stage: &Stage, outcome: &StageOutcome) -> Option<Failure> {
    let found = |clone: &CloneOutcome| Some((clone.job, clone.error.clone()?));
    let (job, error) = outcome.clones.iter().find_map(found)?;
    let files = &stage.config.jobs[job].files;
    Some(match (error, &files[..]) {
        (JobError::Io(why), _) => Failure::runtime(why),
        (JobError::Mismatch(mismatch), [file]) if !stage.is_iscsi => {
            Failure::mismatch(format!("namespace {}, {mismatch}", file.nsid))
        }
        (JobError::Mismatch(mismatch), _) => Failure::mismatch(mismatch),
    })
}

fn precondition(pass: &Stage, outcome: &StageOutcome) -> Precondition {
    let (mut bytes, mut time) = (0, Duration::ZERO);
    for clone in &outcome.clones {
        let io_bytes = pass.config.jobs[clone.job].io_bytes;
        bytes += clone.write.count().saturating_mul(u64::from(io_bytes));
        time = time.max(clone.measured);
    }
    let first = &pass.config.jobs[0];
    Precondition {
        rw: first.mode.name(),
        io_bytes: first.io_bytes,
        bytes,
        millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    }
}

fn stage_report(stage: &Stage, outcome: StageOutcome, acceleration: Acceleration) -> StageReport {
    let mut jobs: Vec<JobReport> = Vec::new();
    // The group that the last report adds up.
    let mut open: Option<u32> = None;
    for clone in outcome.clones {
        let described = &stage.jobs[clone.job];
        let group = described.grouped.then_some(described.group);
        let report = job_report(stage, clone);
        match jobs.last_mut() {
            Some(last) if group.is_some() && open == group => last.merge(&report),
            _ => jobs.push(report),
        }
        open = group;
    }
    StageReport {
        jobs,
        window: outcome.window,
        cpu: outcome.cpu,
        loops: outcome.loops,
        cost: outcome.cost,
        acceleration,
        reconnects: outcome.reconnects,
    }
}

fn job_report(stage: &Stage, clone: CloneOutcome) -> JobReport {
    let (spec, described) = (&stage.config.jobs[clone.job], &stage.jobs[clone.job]);
    let error = clone.error.as_ref().map(|error| match error {
        JobError::Io(why) => why.clone(),
        JobError::Mismatch(mismatch) => mismatch.to_string(),
    });
    let verified = Verified {
        ios: clone.verified,
        bytes: clone.verified.saturating_mul(u64::from(spec.io_bytes)),
    };
    JobReport {
        name: described.name.clone(),
        title: described.title.clone(),
        group: described.group,
        options: described.options.clone(),
        percentiles: described.percentiles.clone(),
        measured: clone.measured,
        read: Side::new(clone.read, spec.io_bytes),
        write: Side::new(clone.write, spec.io_bytes),
        missed: clone.missed,
        beyond_end: clone.beyond_end,
        verified: (spec.verify && error.is_none()).then_some(verified),
        error,
    }
}

/// A line on standard error that shows the progress of the run, if that is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    fn show(&mut self, progress: Progress) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match progress {
            Progress::Connecting => self.0.set_message("connecting"),
            Progress::Running(done, total) => {
                self.0.set_position(millis(done));
                if let Some(total) = total {
                    self.0.set_length(millis(total));
                    self.0.set_message(format!("{} of {} s", done.as_secs(), total.as_secs()));
                } else {
                    self.0.set_message(format!("{} s", done.as_secs()));
                }
            }
            Progress::Finishing => self.0.set_message("finishing"),
        }
        self.0.tick();
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    #[test]
    fn engines_need_digests() {
        let line = "raceline perf -a h -n nqn.2014-08.org.example:1 --accel crc32c=software";
        let Verb::Perf(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().verb else {
            unreachable!()
        };
        let message = "--accel has nothing to do without -G (--data-digest)";
        assert_eq!(run(&args).unwrap_err().message, message);
    }
}
