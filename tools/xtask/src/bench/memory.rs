//! A target's memory without its namespace when all of its queues are full of large commands.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::figures::at_most;
use super::fill;
use super::process::Resident;
use crate::raceline::{Export, Tree, iops};

/// The load that a host keeps in flight.
struct Load {
    pattern: &'static str,
    connections: &'static str,
    depth: &'static str,
    io_size: &'static str,
}

/// A queue of 128 entries holds 127 commands. The largest commands are fewer, as the host needs
/// memory for each of them; there are still 32 for each of their I/O buffers.
const LOADS: [Load; 4] = [
    Load { pattern: "randread", connections: "128", depth: "127", io_size: "128k" },
    Load { pattern: "randwrite", connections: "128", depth: "127", io_size: "128k" },
    Load { pattern: "randread", connections: "16", depth: "16", io_size: "1m" },
    Load { pattern: "randwrite", connections: "16", depth: "16", io_size: "1m" },
];
/// The namespace, all of it in memory before it is measured.
const NAMESPACE_BYTES: u64 = 64 << 20;
/// How long each workload runs; memory is measured this long after its start.
const RUNTIME: &str = "6";
const LOOK_AFTER: Duration = Duration::from_secs(5);
/// Bar.
const MIB_MAX: f64 = 96.0;

/// Measures and prints.
pub(super) fn run(tree: &Tree) -> Result<Value> {
    println!("resident (VmRSS, and its peak VmHWM) without the namespace, MiB");
    let ram = format!("ram:{NAMESPACE_BYTES}");
    let file = tree.scratch("bench-memory")?.join("namespace");
    let file_spec = format!("file:{},size={NAMESPACE_BYTES}", file.display());
    // A RAM namespace is sent in place, a file's blocks go through I/O buffers.
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
    for load in &LOADS {
        let (resident, iops) = under_load(tree, &target, load)?;
        let (now, peak) = (beside(resident.now_bytes)?, beside(resident.peak_bytes)?);
        let Load { pattern, connections, depth, io_size } = load;
        println!(
            "{name}, {connections} connections x {depth} {pattern} of {io_size}: {now:.1} (peak {peak:.1}), {iops:.0} IOPS"
        );
        loaded.push(json!({
            "rw": pattern, "connections": connections, "iodepth": depth, "bs": io_size,
            "mib": now, "peak_mib": peak, "iops": iops,
        }));
    }
    let peak = beside(Resident::of(target.pid())?.peak_bytes)?;
    let bar = at_most(&format!("{name}, memory beside the namespace"), peak, MIB_MAX, "MiB");
    target.stop("TERM")?;
    Ok(json!({ "device": name, "loaded": loaded, "bar": bar }))
}

/// Memory while all queues are full, and the I/Os per second of that run.
fn under_load(tree: &Tree, target: &Export, load: &Load) -> Result<(Resident, f64)> {
    let Load { pattern, connections, depth, io_size } = *load;
    let mut words = vec!["perf".to_owned()];
    words.extend(target.address());
    let rest = ["-i", connections, "--iodepth", depth, "--bs", io_size, "--rw", pattern];
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
