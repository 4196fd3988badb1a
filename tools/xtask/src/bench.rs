//! `cargo xtask bench`: the figures of docs/PERFORMANCE.md, target on core 0 and host on core 1.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cli::cpu_ticks;
use crate::raceline::{Export, Tree, host, iops};

/// Size of the namespace.
const NAMESPACE: &str = "ram:512m";
/// Where the CPU is looked at, counted from the start of a run: after the ramp, before the end.
const CPU_FROM: Duration = Duration::from_millis(3000);
const CPU_UNTIL: Duration = Duration::from_millis(9000);
/// Most that other processes may use, in percent of one core, for a run to count.
const OTHERS_PERCENT: f64 = 5.0;
/// How many runs may be rejected before a workload is given up.
const MAX_REJECTED: usize = 10;
/// Clock ticks per second in /proc.
const TICKS_PER_S: f64 = 100.0;

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Accepted runs of each workload.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only workloads whose name holds this text.
    #[arg(long)]
    only: Option<String>,
    /// How the target's reactor waits.
    #[arg(long, default_value = "adaptive")]
    mode: String,
    /// Keep runs during which other processes used the CPU (for a look, not for reporting).
    #[arg(long)]
    noisy: bool,
}

/// Name, pattern, block size, depth.
const WORKLOADS: [(&str, &str, &str, &str); 5] = [
    ("4 KiB random read, depth 1", "randread", "4k", "1"),
    ("4 KiB random read, depth 32", "randread", "4k", "32"),
    ("4 KiB random write, depth 1", "randwrite", "4k", "1"),
    ("4 KiB random write, depth 32", "randwrite", "4k", "32"),
    ("128 KiB read, depth 8", "read", "128k", "8"),
];

/// What one run gave.
struct Sample {
    iops: f64,
    percentiles_us: [f64; 3],
    target_percent: f64,
    host_percent: f64,
}

/// CPU time at one moment, in ticks: target, host, all processes of the machine.
struct Cpu {
    at: Instant,
    target: u64,
    host: u64,
    everyone: u64,
}

impl Cpu {
    fn now(target: u32, host: u32) -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().unwrap_or("");
        // user, nice, system; interrupts are nobody's, and the two processes' own traffic.
        let everyone = line
            .split_whitespace()
            .skip(1)
            .take(3)
            .map(|field| field.parse::<u64>().context("/proc/stat"))
            .sum::<Result<u64>>()?;
        let (target, host) = (cpu_ticks(target)?, cpu_ticks(host)?);
        Ok(Self { at: Instant::now(), target, host, everyone })
    }

    /// Percent of one core that target, host, and all others used since `before`.
    fn percent_since(&self, before: &Self) -> Result<[f64; 3]> {
        let ticks = self.at.duration_since(before.at).as_secs_f64() * TICKS_PER_S;
        let [target, host, everyone] = [
            (self.target, before.target),
            (self.host, before.host),
            (self.everyone, before.everyone),
        ]
        .map(|(now, then)| now.saturating_sub(then));
        let others = everyone.saturating_sub(target + host);
        let percent = |used: u64| anyhow::Ok(f64::from(u32::try_from(used)?) * 100.0 / ticks);
        Ok([percent(target)?, percent(host)?, percent(others)?])
    }
}

/// Measures and prints the table.
pub(crate) fn run(tree: &Tree, options: &Options) -> Result<()> {
    ensure!(std::thread::available_parallelism()?.get() >= 2, "two cores are needed");
    let mode = options.mode.as_str();
    let mut target = Export::start(tree, &[NAMESPACE, "--cores", "0", "--mode", mode])?;
    println!("filling the namespace");
    let fill =
        ["--rw", "write", "--bs", "128k", "--iodepth", "8", "--runtime", "5", "--ramp_time", "0"];
    host(tree, "perf", &target.address(), &fill)?;
    println!(
        "\nTarget on core 0 ({NAMESPACE}, mode {mode}), host on core 1, one queue; median of {} runs (lowest - highest).\n",
        options.runs
    );
    println!(
        "| workload | IOPS | P50 us | P99 us | P99.99 us | target CPU % | host CPU % | rejected |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for workload in WORKLOADS {
        if options.only.as_ref().is_some_and(|only| !workload.0.contains(only.as_str())) {
            continue;
        }
        measure(tree, &target, options, workload)?;
    }
    target.healthy()?;
    target.stop("TERM")
}

fn measure(
    tree: &Tree,
    target: &Export,
    options: &Options,
    (name, pattern, size, depth): (&str, &str, &str, &str),
) -> Result<()> {
    let mut samples = Vec::new();
    let mut rejected = 0;
    while samples.len() < options.runs {
        let (sample, others) = one_run(tree, target, [pattern, size, depth])?;
        if others > OTHERS_PERCENT && !options.noisy {
            rejected += 1;
            eprintln!("rejected: other processes used {others:.1} % of a core");
            if rejected > MAX_REJECTED {
                bail!("{name}: this machine is too busy to measure");
            }
            continue;
        }
        samples.push(sample);
    }
    let column = |of: &dyn Fn(&Sample) -> f64, digits: usize| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[0], values[values.len() - 1]);
        format!("{:.digits$} ({low:.digits$} - {high:.digits$})", values[values.len() / 2])
    };
    println!(
        "| {name} | {} | {} | {} | {} | {} | {} | {rejected} |",
        column(&|sample| sample.iops, 0),
        column(&|sample| sample.percentiles_us[0], 1),
        column(&|sample| sample.percentiles_us[1], 1),
        column(&|sample| sample.percentiles_us[2], 1),
        column(&|sample| sample.target_percent, 0),
        column(&|sample| sample.host_percent, 0),
    );
    Ok(())
}

/// One run; also what other processes used meanwhile, in percent of one core.
fn one_run(
    tree: &Tree,
    target: &Export,
    [pattern, size, depth]: [&str; 3],
) -> Result<(Sample, f64)> {
    let mut words = vec!["perf".to_owned()];
    words.extend(target.address());
    let rest = ["--cores", "1", "--rw", pattern, "--bs", size, "--iodepth", depth];
    words.extend(rest.map(str::to_owned));
    words.extend(["--runtime", "8", "--ramp_time", "2", "-o", "json"].map(str::to_owned));
    let started = Instant::now();
    let perf = tree.raceline(words.iter().map(String::as_str))?.limit(60).start()?;
    let pause = |until: Duration| std::thread::sleep(until.saturating_sub(started.elapsed()));
    pause(CPU_FROM);
    let before = Cpu::now(target.pid(), perf.pid())?;
    pause(CPU_UNTIL);
    let [target_percent, host_percent, others] =
        Cpu::now(target.pid(), perf.pid())?.percent_since(&before)?;
    let ended = perf.wait()?;
    ensure!(ended.success(), "perf: {}\n{}", ended.why(), ended.tail(10));
    let report: Value = serde_json::from_str(&ended.stdout).context("perf's output")?;
    let job = &report["jobs"][0];
    let kind = if pattern.ends_with("write") { "write" } else { "read" };
    let percentile = |which: &str| {
        let value = job[kind]["clat_ns"]["percentile"][which].as_f64();
        value.map(|ns| ns / 1000.0).with_context(|| format!("no percentile {which}"))
    };
    let percentiles_us =
        [percentile("50.000000")?, percentile("99.000000")?, percentile("99.990000")?];
    Ok((Sample { iops: iops(job), percentiles_us, target_percent, host_percent }, others))
}
