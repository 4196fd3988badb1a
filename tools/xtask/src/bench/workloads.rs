//! Throughput and latency of plain workloads, with the CPU use of either side.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::figures::{Figure, Perf};
use super::{NAMESPACE, Options, fill};
use crate::cli::cpu_ticks;
use crate::distance::Cores;
use crate::quiet::{Disturbance, Machine, percent, undisturbed};
use crate::raceline::{Export, Tree};

/// When the CPU time is read, counted from the start of a run: after the ramp, before the end.
const CPU_FROM: Duration = Duration::from_millis(3000);
const CPU_UNTIL: Duration = Duration::from_millis(9000);

/// Name, pattern, block size, depth.
const WORKLOADS: [(&str, &str, &str, &str); 5] = [
    ("4 KiB random read, depth 1", "randread", "4k", "1"),
    ("4 KiB random read, depth 32", "randread", "4k", "32"),
    ("4 KiB random write, depth 1", "randwrite", "4k", "1"),
    ("4 KiB random write, depth 32", "randwrite", "4k", "32"),
    ("128 KiB read, depth 8", "read", "128k", "8"),
];

/// The results of one run.
struct Sample {
    perf: Perf,
    target_percent: f64,
    host_percent: f64,
}

/// CPU time of the two processes and of the machine at one moment.
struct Cpu {
    at: Instant,
    target_ticks: u64,
    host_ticks: u64,
    machine: Machine,
}

impl Cpu {
    fn now(target: u32, host: u32) -> Result<Self> {
        let (target_ticks, host_ticks) = (cpu_ticks(target)?, cpu_ticks(host)?);
        let machine = Machine::now(&[target, host])?;
        Ok(Self { at: Instant::now(), target_ticks, host_ticks, machine })
    }
}

/// Measures and prints the table.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let mode = options.mode.as_str();
    let mut target = Export::start(tree, &[NAMESPACE, "--cores", "0", "--mode", mode])?;
    fill(tree, &target)?;
    println!(
        "Target on core 0 ({NAMESPACE}, mode {mode}), host on core 1, one queue; median of {} runs (lowest - highest).\n",
        options.runs
    );
    println!(
        "| workload | IOPS | P50 us | P99 us | P99.99 us | target CPU % | host CPU % | rejected |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let cores = Cores::new(tree, options.noisy);
    let mut rows = Vec::new();
    for workload in WORKLOADS {
        if options.workload.as_ref().is_none_or(|text| workload.0.contains(text.as_str())) {
            rows.push(measure(&cores, tree, &target, options, workload)?);
        }
    }
    target.healthy()?;
    target.stop("TERM")?;
    Ok(Value::Array(rows))
}

fn measure(
    cores: &Cores<'_>,
    tree: &Tree,
    target: &Export,
    options: &Options,
    (name, pattern, size, depth): (&str, &str, &str, &str),
) -> Result<Value> {
    let mut samples = Vec::new();
    let mut rejected = 0;
    for _ in 0..options.runs {
        let run = || cores.around(|| one_run(tree, target, [pattern, size, depth]));
        let (sample, disturbed) = undisturbed(name, options.noisy, run)?;
        rejected += disturbed;
        samples.push(sample);
    }
    let figure = |of: &dyn Fn(&Sample) -> f64| Figure::of(samples.iter().map(of).collect());
    let iops = figure(&|sample| sample.perf.iops)?;
    let p50_us = figure(&|sample| sample.perf.p50_us)?;
    let p99_us = figure(&|sample| sample.perf.p99_us)?;
    let p9999_us = figure(&|sample| sample.perf.p9999_us)?;
    let target_cpu = figure(&|sample| sample.target_percent)?;
    let host_cpu = figure(&|sample| sample.host_percent)?;
    println!(
        "| {name} | {iops:.0} | {p50_us} | {p99_us} | {p9999_us} | {target_cpu:.0} | {host_cpu:.0} | {rejected} |"
    );
    Ok(json!({
        "workload": name, "iops": iops.json(), "p50_us": p50_us.json(), "p99_us": p99_us.json(),
        "p9999_us": p9999_us.json(), "target_cpu_percent": target_cpu.json(),
        "host_cpu_percent": host_cpu.json(), "rejected": rejected,
    }))
}

/// One run, and what disturbed it.
fn one_run(
    tree: &Tree,
    target: &Export,
    [pattern, size, depth]: [&str; 3],
) -> Result<(Sample, Disturbance)> {
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
    let after = Cpu::now(target.pid(), perf.pid())?;
    let ended = perf.wait()?;
    ensure!(ended.success(), "perf: {}\n{}", ended.why(), ended.tail(10));
    let report: Value = serde_json::from_str(&ended.stdout).context("perf's output")?;
    let time = after.at.duration_since(before.at);
    let sample = Sample {
        perf: Perf::parse(&report["jobs"][0])?,
        target_percent: percent(after.target_ticks.saturating_sub(before.target_ticks), time)?,
        host_percent: percent(after.host_ticks.saturating_sub(before.host_ticks), time)?,
    };
    Ok((sample, after.machine.since(&before.machine)?))
}
