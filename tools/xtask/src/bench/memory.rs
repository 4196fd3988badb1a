//! What a target needs in memory beside its namespace when all of its commands are large and full.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::figures::at_most;
use super::fill;
use super::process::Resident;
use crate::raceline::{Export, Tree, iops};

/// A queue of 128 entries holds 127 commands.
const CONNECTIONS: &str = "128";
const DEPTH: &str = "127";
/// The namespace, all of it in memory before it is measured.
const NAMESPACE_BYTES: u64 = 64 << 20;
/// How long each workload runs; memory is looked at this long after its start.
const RUNTIME: &str = "6";
const LOOK_AFTER: Duration = Duration::from_secs(5);
/// Bar.
const MIB_MAX: f64 = 96.0;

/// Measures and prints.
pub(super) fn run(tree: &Tree) -> Result<Value> {
    println!(
        "{CONNECTIONS} connections x {DEPTH} commands of 128 KiB; resident (VmRSS, and its peak VmHWM) without the namespace, MiB"
    );
    let ram = format!("ram:{NAMESPACE_BYTES}");
    let file = tree.scratch("bench-memory")?.join("namespace");
    let file_spec = format!("file:{},size={NAMESPACE_BYTES}", file.display());
    // A RAM namespace is sent from where it lies, a file's blocks go through I/O buffers.
    let mut found = Vec::new();
    for (name, device, namespace_bytes) in [("ram", ram, NAMESPACE_BYTES), ("file", file_spec, 0)] {
        found.push(of_device(tree, name, &device, namespace_bytes)?);
    }
    std::fs::remove_file(&file)?;
    Ok(Value::Array(found))
}

fn of_device(tree: &Tree, name: &str, device: &str, namespace_bytes: u64) -> Result<Value> {
    let target = Export::start(tree, &[device, "--cores", "0", "--mode", "adaptive"])?;
    fill(tree, &target)?;
    let mib = |bytes: u64| anyhow::Ok(f64::from(u32::try_from(bytes >> 10)?) / 1024.0);
    let beside = |bytes: u64| mib(bytes.saturating_sub(namespace_bytes));
    let alone = Resident::of(target.pid())?;
    println!("{name}, one connection before: {:.1}", beside(alone.now_bytes)?);
    let mut loaded = Vec::new();
    for pattern in ["randread", "randwrite"] {
        let (resident, iops) = under_load(tree, &target, pattern)?;
        let (now, peak) = (beside(resident.now_bytes)?, beside(resident.peak_bytes)?);
        println!("{name}, {pattern}: {now:.1} (peak {peak:.1}), {iops:.0} IOPS");
        loaded.push(json!({ "rw": pattern, "mib": now, "peak_mib": peak, "iops": iops }));
    }
    let peak = beside(Resident::of(target.pid())?.peak_bytes)?;
    let bar = at_most(&format!("{name}, memory beside the namespace"), peak, MIB_MAX, "MiB");
    target.stop("TERM")?;
    Ok(json!({ "device": name, "loaded": loaded, "bar": bar }))
}

/// Memory while all queues are full, and the I/Os per second of that run.
fn under_load(tree: &Tree, target: &Export, pattern: &str) -> Result<(Resident, f64)> {
    let mut words = vec!["perf".to_owned()];
    words.extend(target.address());
    let rest = ["-i", CONNECTIONS, "--iodepth", DEPTH, "--bs", "128k", "--rw", pattern];
    let rest = rest.into_iter().chain(["--runtime", RUNTIME, "--ramp_time", "0"]);
    words.extend(rest.chain(["--cores", "1", "-o", "json"]).map(str::to_owned));
    let perf = tree.raceline(words.iter().map(String::as_str))?.limit(90).start()?;
    thread::sleep(LOOK_AFTER);
    let resident = Resident::of(target.pid())?;
    let ended = perf.wait()?;
    ensure!(ended.success(), "perf: {}\n{}", ended.why(), ended.tail(10));
    let report: Value = serde_json::from_str(&ended.stdout)?;
    Ok((resident, iops(&report["jobs"][0])))
}
