//! Disks by NBD and vhost-user: our NBD server beside nbdkit's memory plugin with the same client, and a guest's disk on
//! a remote namespace beside `raceline perf` on it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::figures::{Figure, Perf, at_least};
use super::{NAMESPACE, Options, fill};
use crate::child::{Running, Task, has_program};
use crate::distance::Cores;
use crate::nbd::Disk;
use crate::quiet::watched_near;
use crate::raceline::{Export, Tree};

/// Time for a build of the guest with empty caches, and for one run of a client, in seconds.
const BUILD_LIMIT_S: u64 = 1200;
const RUN_LIMIT_S: u64 = 60;
/// The longest that nbdkit runs, in seconds.
const NBDKIT_LIFE_S: u64 = 3600;
const RUNTIME_S: &str = "1.5";
const RAMP_S: &str = "0.3";
/// Bars, of the median of pairs.
const NBD_MIN: f64 = 1.2;
const GUEST_SMALL_MIN: f64 = 0.7;
const GUEST_LARGE_MIN: f64 = 0.85;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
struct Point {
    write: bool,
    bytes: u32,
    depth: u16,
}

const POINTS: [Point; 4] = [
    Point { write: false, bytes: 4096, depth: 32 },
    Point { write: true, bytes: 4096, depth: 32 },
    Point { write: false, bytes: 128 << 10, depth: 32 },
    Point { write: true, bytes: 128 << 10, depth: 32 },
];

impl Point {
    fn name(self) -> String {
        let Self { bytes, depth, .. } = self;
        format!("{} KiB {} {depth}x1", bytes >> 10, self.rw())
    }

    fn rw(self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
}

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let dir = tree.scratch("bench-disks")?;
    let cores = Cores::new(tree, options.noisy);
    println!("client on core 1, disk or target on core 0; {} pairs of each point", options.runs);
    let mut rows = nbd(tree, options, &cores, &dir)?;
    rows.extend(guests(tree, options, &cores, &dir)?);
    Ok(Value::Array(rows))
}

/// Pairs of runs, one of each side, which begin in turn; `one` runs the side of this number.
fn pairs(
    name: &str,
    bar: Option<f64>,
    options: &Options,
    cores: &Cores<'_>,
    running: &[u32],
    one: impl Fn(usize) -> Result<f64>,
) -> Result<Value> {
    let (mut ours, mut theirs, mut ratios, mut rejected) = (vec![], vec![], vec![], 0);
    for round in 0..options.runs {
        let run = || -> Result<[f64; 2]> {
            let mut iops = [0.0; 2];
            for side in [round % 2, 1 - round % 2] {
                iops[side] = one(side)?;
            }
            Ok(iops)
        };
        let ([first, second], disturbed) = watched_near(name, cores, options.noisy, running, run)?;
        ensure!(second > 0.0, "{name}: nothing was done");
        rejected += disturbed;
        ours.push(first);
        theirs.push(second);
        ratios.push(first / second);
    }
    let (ours, theirs, ratio) = (Figure::of(ours)?, Figure::of(theirs)?, Figure::of(ratios)?);
    println!(
        "{name}: {ours:.0} IOPS, {theirs:.0} IOPS, ratio {ratio:.3}; {rejected} pairs rejected"
    );
    let judged = bar.map(|bar| at_least(name, ratio.median, bar, "x"));
    Ok(json!({
        "name": name, "ours": ours.json(), "theirs": theirs.json(), "ratio": ratio.json(),
        "rejected": rejected, "bar": judged,
    }))
}

/// Our NBD server beside nbdkit, with fio's engine of libnbd as the client of both.
fn nbd(tree: &Tree, options: &Options, cores: &Cores<'_>, dir: &Path) -> Result<Vec<Value>> {
    for (program, package) in [("nbdkit", "nbdkit"), ("fio", "fio"), ("nbdinfo", "libnbd-bin")] {
        ensure!(has_program(program), "missing: {program} (apt-get install {package})");
    }
    let size = NAMESPACE.strip_prefix("ram:").context("the namespace is memory")?;
    let socket = dir.join("ours.sock").display().to_string();
    let words = ["--bdev", NAMESPACE, "--socket", &socket, "--cores", "0"];
    let ours = Disk::start(tree, &words)?;
    let theirs = Nbdkit::start(&dir.join("nbdkit.sock"), size)?;
    let uris = [ours.uri().to_owned(), theirs.uri.clone()];
    for uri in &uris {
        // Memory that was never written is not there, and costs less.
        fio(uri, Point { write: true, bytes: 1 << 20, depth: 8 }, &["--rw=write", "--size=100%"])?;
    }
    let running = [ours.pid(), theirs.running.pid()];
    let mut rows = Vec::new();
    for point in POINTS {
        let name = format!("NBD, {}, over nbdkit's memory", point.name());
        rows.push(pairs(&name, Some(NBD_MIN), options, cores, &running, |side| {
            let rw = format!("--rw=rand{}", point.rw());
            let time = format!("--runtime={RUNTIME_S}");
            let ramp = format!("--ramp_time={RAMP_S}");
            fio(&uris[side], point, &[&rw, "--time_based", &time, &ramp, "--norandommap"])
        })?);
    }
    ours.disconnect(tree)?;
    theirs.stop();
    Ok(rows)
}

/// nbdkit with its memory plugin, on core 0.
struct Nbdkit {
    running: Running,
    uri: String,
}

impl Nbdkit {
    fn start(socket: &Path, size: &str) -> Result<Self> {
        let at = socket.display().to_string();
        let words = ["-c", "0", "nbdkit", "-f", "-U", &at, "memory", &size.to_uppercase()];
        let running = Task::new("taskset").args(words).limit(NBDKIT_LIFE_S).start()?;
        let uri = format!("nbd+unix:///?socket={at}");
        for _ in 0..200 {
            if socket.exists() {
                return Ok(Self { running, uri });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        anyhow::bail!("nbdkit has made no socket {at}")
    }

    fn stop(mut self) {
        self.running.kill();
    }
}

/// A run of fio on core 1; gives its IOPS.
fn fio(uri: &str, point: Point, more: &[&str]) -> Result<f64> {
    let (uri, bytes, depth) = (
        format!("--uri={uri}"),
        format!("--bs={}", point.bytes),
        format!("--iodepth={}", point.depth),
    );
    let words = ["-c", "1", "fio", "--name=x", "--ioengine=nbd", &uri, &bytes, &depth];
    let task = Task::new("taskset").args(words).args(["--output-format=json"]).args(more);
    let ended = task.limit(RUN_LIMIT_S).check()?;
    // Notes may come before the report.
    let at = ended.stdout.find('{').context("fio has made no report")?;
    let report: Value = serde_json::from_str(&ended.stdout[at..]).context("fio's report")?;
    let of = |kind: &str| report["jobs"][0][kind]["iops"].as_f64().unwrap_or(0.0);
    Ok(of("read") + of("write"))
}

/// A guest's disk beside `raceline perf`: on a namespace of the same target, and on a device of its own.
fn guests(tree: &Tree, options: &Options, cores: &Cores<'_>, dir: &Path) -> Result<Vec<Value>> {
    let guest = guest_program(tree)?;
    let target = Export::start(tree, &[NAMESPACE, "--cores", "0", "--mode", "adaptive"])?;
    fill(tree, &target)?;
    let address = target.address();
    let [far, other, near] = ["far.sock", "other.sock", "near.sock"].map(|name| dir.join(name));
    let [far_socket, other_socket, near_socket] =
        [&far, &other, &near].map(|path| path.display().to_string());
    let remote = |socket: &str, cores: &[&str]| {
        let words = address.iter().map(String::as_str).chain(["--socket", socket, "--cores"]);
        let words: Vec<&str> = words.chain(cores.iter().copied()).collect();
        Disk::start_as(tree, "vhost-user", &words)
    };
    // With the guest on core 1, as the host of `raceline perf` is there with its load; and with the target on core 0.
    let beside_guest = remote(&far_socket, &["1", "--mode", "interrupt"])?;
    let beside_target = remote(&other_socket, &["0", "--mode", "interrupt"])?;
    let words = ["--bdev", NAMESPACE, "--socket", &near_socket, "--cores", "0"];
    let local = Disk::start_as(tree, "vhost-user", &words)?;
    let fill = Point { write: true, bytes: 128 << 10, depth: 32 };
    load(&guest, &near, fill, "poll")?;
    let running = [target.pid(), beside_guest.pid(), beside_target.pid(), local.pid()];
    let mut rows = Vec::new();
    for (what, socket, wait, is_judged) in [
        ("of a remote namespace, beside the guest", &far, "sleep", true),
        ("of a remote namespace, beside the target, polled by the guest", &other, "poll", true),
        ("of its own memory, polled by the guest", &near, "poll", false),
    ] {
        for point in POINTS {
            let bar = if point.bytes > 4096 { GUEST_LARGE_MIN } else { GUEST_SMALL_MIN };
            let name = format!("vhost-user {what}, {}, over perf", point.name());
            let bar = is_judged.then_some(bar);
            rows.push(pairs(&name, bar, options, cores, &running, |side| match side {
                0 => load(&guest, socket, point, wait),
                _ => perf(tree, &address, point),
            })?);
        }
    }
    beside_guest.disconnect(tree)?;
    beside_target.disconnect(tree)?;
    local.disconnect(tree)?;
    target.stop("TERM")?;
    Ok(rows)
}

/// The guest, built for measurements.
fn guest_program(tree: &Tree) -> Result<PathBuf> {
    let words = ["build", "--quiet", "--release", "--package", "raceline-vhost"];
    let build = Task::new("cargo").args(words).args(["--example", "guest_load"]);
    build.dir(&tree.root).limit(BUILD_LIMIT_S).echo().check()?;
    Ok(tree.target.join("release/examples/guest_load"))
}

/// A run of the guest on core 1; gives its IOPS.
fn load(program: &Path, socket: &Path, point: Point, wait: &str) -> Result<f64> {
    let (bytes, depth) = (point.bytes.to_string(), point.depth.to_string());
    let task = Task::new("taskset").args(["-c", "1"]).args([program, socket]);
    let task = task.args([point.rw(), &bytes, &depth, RUNTIME_S, wait]);
    let ended = task.limit(RUN_LIMIT_S).check()?;
    let report: Value = serde_json::from_str(ended.stdout.trim()).context("the guest's report")?;
    report["iops"].as_f64().context("the guest's report has no IOPS")
}

/// A run of our host on core 1; gives its IOPS.
fn perf(tree: &Tree, address: &[String], point: Point) -> Result<f64> {
    let (bytes, depth) = (point.bytes.to_string(), point.depth.to_string());
    let rw = format!("rand{}", point.rw());
    let words = ["--rw", &rw, "--bs", &bytes, "--iodepth", &depth, "--cores", "1"];
    let times = ["--mode", "poll", "--runtime", RUNTIME_S, "--ramp_time", RAMP_S];
    let words: Vec<&str> = words.into_iter().chain(times).collect();
    Ok(Perf::run(tree, address, &words)?.iops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_named_as_in_the_pages() {
        let names: Vec<String> = POINTS.iter().map(|point| point.name()).collect();
        assert_eq!(names[0], "4 KiB read 32x1");
        assert_eq!(names[3], "128 KiB write 32x1");
    }
}
