//! The cost of sleeping at depth 1: the modes in turn, and interrupt mode against the limit.

use anyhow::Result;
use serde_json::{Value, json};

use super::figures::{Figure, Perf, at_most};
use super::gap;
use super::{NAMESPACE, Options, fill};
use crate::distance::Cores;
use crate::quiet::watched_near;
use crate::raceline::{Export, Tree};

/// The modes of both sides; the others are compared with the first.
const MODES: [&str; 3] = ["poll", "adaptive", "interrupt"];
const RUN: [&str; 12] = [
    "--rw",
    "randread",
    "--bs",
    "4k",
    "--iodepth",
    "1",
    "--runtime",
    "2",
    "--ramp_time",
    "1",
    "--cores",
    "1",
];
/// Bars: adaptive to poll, and interrupt to the blocking limit.
const ADAPTIVE_TO_POLL_MAX: f64 = 1.05;
const INTERRUPT_TO_LIMIT_MAX: f64 = 1.15;

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let mut p50s_us = [const { Vec::new() }; MODES.len()];
    let mut rejected = 0;
    let cores = Cores::new(tree, options.noisy);
    // The modes take turns, so that changes of the machine affect all of them.
    for _ in 0..options.runs {
        for (mode, p50_us) in MODES.into_iter().zip(&mut p50s_us) {
            let (perf, disturbed) = one_run(&cores, tree, options, mode)?;
            rejected += disturbed;
            p50_us.push(perf.p50_us);
        }
    }
    let adaptive_ratios = ratios(&p50s_us[1], &p50s_us[0]);
    let interrupt_ratios = ratios(&p50s_us[2], &p50s_us[0]);
    println!("4 KiB random read, depth 1, P50 us; {rejected} runs rejected");
    let mut rows = Vec::new();
    for (mode, values) in MODES.into_iter().zip(p50s_us) {
        let figure = Figure::of(values)?;
        println!("{mode}: {figure:.2}");
        rows.push(json!({ "mode": mode, "p50_us": figure.json() }));
    }
    let adaptive = Figure::of(adaptive_ratios)?;
    let interrupt = Figure::of(interrupt_ratios)?;
    println!("interrupt / poll: {interrupt:.2}");
    // At depth 1 the commands per second are the inverse of the latency.
    let points = "io=4k,rw=read,depth=1,connections=1";
    let found = gap::points(tree, points, &["--mode", "interrupt"])?;
    let blocking = gap::one(&found)?;
    let bars = [
        at_most("adaptive / poll", adaptive.median, ADAPTIVE_TO_POLL_MAX, "x"),
        at_most("interrupt / blocking limit", 1.0 / blocking.ratio, INTERRUPT_TO_LIMIT_MAX, "x"),
    ];
    Ok(json!({
        "modes": rows, "adaptive_to_poll": adaptive.json(), "interrupt_to_poll": interrupt.json(),
        "interrupt_gap": found, "rejected": rejected, "bars": bars,
    }))
}

/// Runs with a target of its own: an idle target that polls would take the core from the others.
fn one_run(cores: &Cores<'_>, tree: &Tree, options: &Options, mode: &str) -> Result<(Perf, u32)> {
    let target = Export::start(tree, &[NAMESPACE, "--cores", "0", "--mode", mode])?;
    fill(tree, &target)?;
    let mut words = RUN.to_vec();
    words.extend(["--mode", mode]);
    let (address, pid) = (target.address(), target.pid());
    let run = || Perf::run(tree, &address, &words);
    let measured = watched_near(mode, cores, options.noisy, &[pid], run)?;
    target.stop("TERM")?;
    Ok(measured)
}

/// Ratios of values measured next to each other.
fn ratios(values: &[f64], to: &[f64]) -> Vec<f64> {
    values.iter().zip(to).map(|(value, to)| value / to).collect()
}
