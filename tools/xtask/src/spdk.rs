//! `cargo xtask spdk`: Raceline's target and host beside SPDK's, every pair of them, in turn.
//!
//! The pairs take turns within a repetition, so that a disturbance that lasts longer than a
//! run affects all of them, and ratios are taken within a repetition. All targets live for the
//! whole measurement on the same core. A target that spins takes that core even when it has no
//! requests, so all but one are stopped by SIGSTOP.

mod config;
mod huge;
mod instructions;
mod interop;
mod point;
mod program;
mod report;
mod steps;
mod tail;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::huge::{Leftovers, Reserved};
use self::point::{OVER_TLS, Ours, PLAIN, Pair, Plan, Point, Target, grid, grid_over_tls};
use self::program::{Place, Programs, RunningTarget, huge_pages};
pub(crate) use self::report::Spread;
use self::report::{Idle, PointReport, Report, Run, Setting};
use crate::cli::cpu_ticks;
use crate::distance::Cores;
use crate::origin::Origin;
use crate::quiet::{Disturbance, Machine};
use crate::raceline::Tree;

/// Repetitions of a point, also with --quick.
const REPETITIONS: usize = 5;
const QUICK_REPETITIONS: usize = 3;
/// Most attempts of a run that is disturbed.
const ATTEMPTS: usize = 4;
/// Further attempts of a run that finds the cores apart: on some machines that is every third run.
const APART_MAX: usize = 10;
/// How long an idle target is measured, in seconds, and how long its host gets to connect before.
const IDLE_S: u64 = 10;
const IDLE_RAMP_S: u64 = 2;
/// Longest measured time of one run, in seconds.
const SECONDS_MAX: i64 = 600;

/// The options.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder where SPDK has been configured and built; it holds build/bin/nvmf_tgt.
    #[arg(long, value_name = "DIR")]
    build: PathBuf,
    /// Few points, and few repetitions.
    #[arg(long)]
    quick: bool,
    /// Which of Raceline's targets is measured.
    #[arg(long, value_enum, default_value_t)]
    target: Ours,
    /// Only points whose name holds this text, e.g. "4k read 32x1"; and no idle targets.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Repetitions of each point [default: 5, with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// How long each run is measured, after a ramp of the same length.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    seconds: u32,
    /// Reserve the huge pages that are missing, and give them back at the end.
    #[arg(long)]
    reserve: bool,
    /// Keep runs during which other processes used the CPU (for a look, not for reporting).
    #[arg(long)]
    noisy: bool,
    /// Count instructions per command in user space instead, each time for this many seconds; the value must
    /// be below the keep alive timeouts of the hosts, 10 s with SPDK's.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    instructions: Option<u32>,
    /// Compare the slowest commands instead: Raceline's host sends both targets as many commands per
    /// second as 70 % of what the slower target can do.
    #[arg(long, conflicts_with = "instructions")]
    tail: bool,
    /// Measure over TLS: reads and writes of 4 and 128 KiB at three depths, both ours against both SPDK's.
    #[arg(long, conflicts_with_all = ["instructions", "tail"])]
    tls: bool,
    /// Check that each host works with each target over TLS and with DH-HMAC-CHAP instead; nothing is measured.
    #[arg(long, conflicts_with_all = ["instructions", "tail", "tls", "only", "quick"])]
    interop: bool,
    /// Run SPDK without huge pages.
    #[arg(long, conflicts_with = "reserve")]
    no_huge: bool,
    /// The format of the report: for docs/lab or for programs.
    #[arg(short, long, value_enum, default_value = "markdown")]
    output_format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Markdown,
    Json,
}

/// Measures and prints; false when a run was disturbed and all its repetitions were, too.
pub(crate) fn run(tree: &Tree, options: &Options) -> Result<bool> {
    if options.interop {
        let leftovers = Leftovers::new();
        let _clean_up = CleanUp(leftovers.clone());
        return interop::run(tree, &options.build, &leftovers);
    }
    ensure!(std::thread::available_parallelism()?.get() >= 2, "two cores are needed");
    let (plan, points) = chosen(options)?;
    let leftovers = Leftovers::new();
    // The first declared is dropped last: pages go back when the processes have ended.
    let pages = if options.no_huge { 0 } else { huge_pages(plan.targets) };
    let _reserved = (pages > 0).then(|| Reserved::ensure(pages, options.reserve)).transpose()?;
    let _clean_up = CleanUp(leftovers.clone());
    let place = Place { build: &options.build, no_huge: options.no_huge, tls: options.tls };
    let programs = Programs::find(tree, options.target, place, leftovers)?;
    if let Some(seconds) = options.instructions {
        instructions::run(&programs, &points, seconds)?;
        return Ok(true);
    }
    let cores = Cores::new(tree, options.noisy);
    cores.wait();
    let mut setting = setting(tree, &programs, options)?;
    setting.core_round_trip_ns = cores.least_ns();
    let mut bench = Bench {
        targets: start_all(&programs, plan)?,
        plan,
        programs,
        cores,
        seconds: options.seconds,
        attempts: if options.noisy { 1 } else { ATTEMPTS },
        apart_max: if options.noisy { 0 } else { APART_MAX },
    };
    if options.tail {
        return tail::run(&mut bench, setting, &points, options.output_format);
    }
    let mut reports = Vec::new();
    for (at, point) in points.iter().enumerate() {
        let report = bench.measure(*point, setting.repetitions)?;
        let ratio = report.ratios[1].spread.median;
        let (all, name) = (points.len(), &report.name);
        eprintln!("{} of {all}: {name}: both / both SPDK tuned {ratio:.2}", at + 1);
        reports.push(report);
    }
    // A selection of points leaves out the idle targets, which take a minute and hardly change.
    let idle = if options.only.is_none() && !options.tls { bench.idle()? } else { Vec::new() };
    // The cores may have been nearer than at the beginning.
    setting.core_round_trip_ns = bench.cores.least_ns();
    let report = Report { setting, plan, points: reports, idle };
    match options.output_format {
        Format::Markdown => print!("{}", report.markdown()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    let disturbed = report.disturbed();
    if disturbed > 0 {
        eprintln!(
            "{disturbed} runs were disturbed by other processes or while the cores were apart, and so were their repetitions: measure again on a quieter machine"
        );
    }
    Ok(disturbed == 0 || options.noisy)
}

/// All targets, filled and stopped.
fn start_all(programs: &Programs<'_>, plan: &Plan) -> Result<Vec<RunningTarget>> {
    let mut targets = Vec::new();
    for &kind in plan.targets {
        eprintln!("starting and filling {}", kind.name());
        let target = programs.start(kind, "poll")?;
        programs.fill(&target).with_context(|| format!("target {}", kind.name()))?;
        target.pause();
        targets.push(target);
    }
    Ok(targets)
}

/// Removes what SPDK's processes left behind.
struct CleanUp(Leftovers);

impl Drop for CleanUp {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// What is measured, and where.
fn chosen(options: &Options) -> Result<(&'static Plan, Vec<Point>)> {
    let (plan, grid) = match options.tls {
        true => (&OVER_TLS, grid_over_tls(options.quick)),
        false => (&PLAIN, grid(options.quick)),
    };
    let example = grid[0];
    let has_name = |point: &Point| {
        options.only.as_ref().is_none_or(|text| point.to_string().contains(text.as_str()))
    };
    let points: Vec<Point> = grid.into_iter().filter(has_name).collect();
    ensure!(!points.is_empty(), "no point has that name: they read like \"{example}\"");
    Ok((plan, points))
}

fn setting(tree: &Tree, programs: &Programs<'_>, options: &Options) -> Result<Setting> {
    let default = if options.quick { QUICK_REPETITIONS } else { REPETITIONS };
    Ok(Setting {
        origin: Origin::here(tree)?,
        target: options.target,
        spdk: programs.spdk_version()?,
        repetitions: options.repetitions.map_or(Ok(default), usize::try_from)?,
        ramp_seconds: options.seconds,
        measured_seconds: options.seconds,
        tls: options.tls,
        core_round_trip_ns: None,
    })
}

/// Running targets, each stopped unless it is its turn.
struct Bench<'a> {
    programs: Programs<'a>,
    targets: Vec<RunningTarget>,
    plan: &'static Plan,
    cores: Cores<'a>,
    seconds: u32,
    attempts: usize,
    apart_max: usize,
}

impl Bench<'_> {
    fn measure(&mut self, point: Point, count: usize) -> Result<PointReport> {
        let mut repetitions = Vec::new();
        let mut repeated = 0;
        for _ in 0..count {
            let mut runs = Vec::new();
            for &pair in self.plan.pairs {
                let (run, attempts) =
                    self.quiet_run(pair, point).with_context(|| format!("{point}, {pair}"))?;
                repeated += attempts - 1;
                runs.push(run);
            }
            repetitions.push(runs);
        }
        Ok(PointReport::new(self.plan, point, repetitions, repeated))
    }

    /// The first undisturbed run of a pair, else the least disturbed one; and the number of
    /// attempts.
    fn quiet_run(&mut self, pair: Pair, point: Point) -> Result<(Run, usize)> {
        let run = |programs: &Programs<'_>, target: &RunningTarget, seconds| {
            programs.run(pair.host, target, point, seconds)
        };
        let (measured, disturbance, attempts) = self.quiet(pair.target, run)?;
        let run = Run { pair, iops: measured.iops, mean_us: measured.mean_us, disturbance };
        Ok((run, attempts))
    }

    /// The same for any run against one of the targets.
    fn quiet<T>(
        &mut self,
        kind: Target,
        run: impl Fn(&Programs<'_>, &RunningTarget, u32) -> Result<T>,
    ) -> Result<(T, Disturbance, usize)> {
        let mut best = self.with_target(kind, &run)?;
        let (mut attempts, mut apart) = (1, usize::from(best.1.apart));
        while best.1.is_too_much() && attempts - apart.min(self.apart_max) < self.attempts {
            let next = self.with_target(kind, &run)?;
            attempts += 1;
            apart += usize::from(next.1.apart);
            if next.1.compare(&best.1).is_lt() {
                best = next;
            }
        }
        Ok((best.0, best.1, attempts))
    }

    /// Continues one of the targets while `run` runs against it. Before and after that all targets are
    /// stopped, so that the cores are free for a look at their distance.
    fn with_target<T>(
        &mut self,
        kind: Target,
        run: impl Fn(&Programs<'_>, &RunningTarget, u32) -> Result<T>,
    ) -> Result<(T, Disturbance)> {
        let pids: Vec<u32> = self.targets.iter().map(RunningTarget::pid).collect();
        let target = self.targets.iter_mut().find(|target| target.kind == kind);
        let target = target.context("that target does not run")?;
        target.healthy()?;
        self.cores.around(|| {
            target.resume();
            let before = Machine::now(&pids)?;
            let measured = run(&self.programs, target, self.seconds);
            let disturbance = Machine::now(&pids)?.since(&before)?;
            target.pause();
            Ok((measured?, disturbance))
        })
    }

    /// Memory and CPU of every target while one host is connected and reads once per second.
    fn idle(&mut self) -> Result<Vec<Idle>> {
        let mut found = Vec::new();
        for target in &self.targets {
            eprintln!("watching {} idle", target.kind.name());
            target.resume();
            found.push(watch(&self.programs, target, target.kind.name())?);
            target.pause();
        }
        if self.programs.ours() == Ours::Serve {
            return Ok(found);
        }
        // The mode that Raceline's target has by default.
        let adaptive = self.programs.start(Target::Raceline, "adaptive")?;
        self.programs.fill(&adaptive)?;
        found.push(watch(&self.programs, &adaptive, "raceline, adaptive mode (the default)")?);
        Ok(found)
    }
}

fn watch(programs: &Programs<'_>, target: &RunningTarget, name: &str) -> Result<Idle> {
    let host = programs.idle_host(target, IDLE_RAMP_S + IDLE_S + 1)?;
    std::thread::sleep(Duration::from_secs(IDLE_RAMP_S));
    let before = cpu_ticks(target.pid())?;
    std::thread::sleep(Duration::from_secs(IDLE_S));
    // A tick is a hundredth of a second.
    let ticks = u32::try_from(cpu_ticks(target.pid())?.saturating_sub(before))?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid()))?;
    let ended = host.wait()?;
    ensure!(ended.success(), "the idle host: {}\n{}", ended.why(), ended.tail(10));
    Ok(Idle {
        target: name.to_owned(),
        cpu_percent: f64::from(ticks) / f64::from(u32::try_from(IDLE_S)?),
        resident_kib: status_kib(&status, "VmRSS")?,
        huge_kib: status_kib(&status, "HugetlbPages")?,
    })
}

/// A line of /proc/PID/status.
fn status_kib(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.with_context(|| format!("no {name} in /proc/PID/status"))?.parse().context("KiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_by_its_whole_name() {
        let status = "VmRSSx:\t1 kB\nVmRSS:\t   22 kB\nHugetlbPages:\t 4096 kB\n";
        assert_eq!(status_kib(status, "VmRSS").unwrap(), 22);
        assert_eq!(status_kib(status, "HugetlbPages").unwrap(), 4096);
        assert!(status_kib(status, "VmHWM").is_err());
    }
}
