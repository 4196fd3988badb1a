//! `cargo xtask bench`: figures of docs/PERFORMANCE.md and docs/lab, target on core 0 and host on core 1.

mod control;
mod disks;
mod figures;
mod gap;
mod idle;
mod memory;
mod modes;
mod process;
mod scrape;
mod sessions;
mod simple;
mod start;
mod tail;
mod workloads;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::origin::Origin;
use crate::raceline::{Export, Tree, host};

pub(crate) use self::idle::answer_blocking;

/// The namespace of most sections.
const NAMESPACE: &str = "ram:512m";

/// The options.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Sections to measure.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION,...")]
    #[arg(default_value = "workloads")]
    only: Vec<Section>,
    /// Accepted runs of each figure.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Of the workloads, only those whose name holds this text.
    #[arg(long, value_name = "TEXT")]
    workload: Option<String>,
    /// How the target's reactor waits under the workloads.
    #[arg(long, default_value = "adaptive")]
    mode: String,
    /// Measure the tail of this target, too.
    #[arg(long, value_name = "ADDR:PORT,NQN")]
    peer: Option<tail::Peer>,
    /// Its process, if it is on this machine: its CPU time does not count as a disturbance.
    #[arg(long, value_name = "PID", requires = "peer")]
    peer_pid: Option<u32>,
    /// Also write everything to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep runs during which other processes used the CPU (for a look, not for reporting).
    #[arg(long)]
    noisy: bool,
}

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Throughput and latency of plain workloads.
    Workloads,
    /// CPU and memory of a target with 1,000 idle connections, and the first command after.
    Idle,
    /// CPU and memory of a target with 1,000 idle iSCSI sessions, which it pings.
    Sessions,
    /// Memory of a target whose 128 connections are full of 128 KiB commands.
    Memory,
    /// Time from the start of a target to the first read.
    Start,
    /// Latency at depth 1 when the cores poll, adapt or sleep.
    Modes,
    /// The gap between a daemon and the limit at the points of `raceline bench gap --quick`.
    Gap,
    /// A daemon beside `raceline export`, in pairs.
    Daemon,
    /// The gap to the limit when the same load comes over 16 to 1,024 connections.
    Scale,
    /// Latencies in an open loop at 70 % of the highest rate.
    Tail,
    /// The control plane: 1,000 subsystems, and calls and changes under I/O.
    Control,
    /// Disks by NBD beside nbdkit, and by vhost-user beside `raceline perf`.
    Disks,
    /// The time of a scrape of metrics, and I/O beside scrapes.
    Scrape,
}

/// Measures and prints the sections.
pub(crate) fn run(tree: &Tree, options: &Options) -> Result<()> {
    ensure!(std::thread::available_parallelism()?.get() >= 2, "two cores are needed");
    ensure!(options.runs > 0, "--runs 0 measures nothing");
    let mut report = Map::new();
    report.insert("setting".to_owned(), serde_json::to_value(Origin::here(tree)?)?);
    for section in &options.only {
        let name = section.to_possible_value().context("a section without a name")?;
        println!("\n## {}\n", name.get_name());
        let found = match section {
            Section::Workloads => workloads::run(tree, options),
            Section::Idle => idle::run(tree, options),
            Section::Sessions => sessions::run(tree, options),
            Section::Memory => memory::run(tree),
            Section::Start => start::run(tree, options),
            Section::Modes => modes::run(tree, options),
            Section::Gap => gap::quick(tree),
            Section::Daemon => gap::daemon(tree),
            Section::Scale => gap::scale(tree),
            Section::Tail => tail::run(tree, options),
            Section::Control => control::run(tree, options),
            Section::Disks => disks::run(tree, options),
            Section::Scrape => scrape::run(tree, options),
        };
        report.insert(name.get_name().to_owned(), found?);
        // Measured values are kept even if a later section fails.
        if let Some(file) = &options.json {
            let text = serde_json::to_string_pretty(&Value::Object(report.clone()))?;
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            folder.map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(file, text + "\n")
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Writes to all of a target's namespace, so that its memory is allocated.
fn fill(tree: &Tree, target: &Export) -> Result<()> {
    let words =
        ["--rw", "write", "--bs", "128k", "--iodepth", "8", "--runtime", "2", "--ramp_time", "0"];
    host(tree, "perf", &target.address(), &words)?;
    Ok(())
}
