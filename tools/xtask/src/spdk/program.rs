//! The programs on either side: targets that are started, stopped and continued, hosts that run.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::config::configuration;
use super::huge::Leftovers;
use super::point::{Host, Ours, Point, Target};
use crate::child::{Running, Task, at_interrupt};
use crate::raceline::{Tree, iops};

/// Both targets export two namespaces of this size: the first in memory, the second without storage.
pub(super) const NAMESPACE_MIB: u32 = 512;
pub(super) const BLOCK_BYTES: u32 = 4096;
/// Name of the subsystem, on every target.
pub(super) const NQN: &str = "nqn.2014-08.org.example:side-by-side";
/// SPDK's host sends an empty name unless it is given one.
pub(super) const HOST_NQN: &str = "nqn.2014-08.org.example:side-by-side:host";
/// One core for the target and one for the host, as lists and as masks.
const TARGET_CORE: (&str, &str) = ("0", "0x1");
const HOST_CORE: (&str, &str) = ("1", "0x2");
/// Memory of SPDK's host, in MiB.
const HOST_MIB: u64 = 256;
/// Memory that SPDK's target takes, in MiB: the namespace, its pools and the buffers of its
/// connections, with a reserve.
const TARGET_MIB: u64 = 1024;
const HUGE_PAGE_MIB: u64 = 2;

/// Time from the start of a target until it can be reached, in seconds.
const READY_LIMIT_S: u64 = 30;
/// Time for filling a namespace, in seconds.
const FILL_LIMIT_S: u64 = 60;
/// Time that a host may take beyond ramp and measurement, in seconds.
const HOST_LIMIT_S: u64 = 30;
/// How long a target gets to see the end of its connections before it is stopped.
const SETTLE: Duration = Duration::from_millis(30);

/// The key of all connections over TLS. It protects nothing: the data are made up.
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// Huge pages that these targets and one host need together.
pub(crate) fn huge_pages(targets: &[Target]) -> u64 {
    let of_targets = targets.iter().map(|target| match target {
        Target::Spdk | Target::SpdkTuned => TARGET_MIB,
        Target::RacelineHuge => u64::from(NAMESPACE_MIB),
        Target::Raceline => 0,
    });
    (of_targets.sum::<u64>() + HOST_MIB) / HUGE_PAGE_MIB
}

/// Where SPDK is, and how both run.
pub(crate) struct Place<'a> {
    /// The folder in which SPDK was built.
    pub(crate) build: &'a Path,
    /// SPDK runs without huge pages.
    pub(crate) no_huge: bool,
    /// All connections are TLS.
    pub(crate) tls: bool,
}

/// The paths of the programs.
pub(crate) struct Programs<'a> {
    tree: &'a Tree,
    /// How Raceline's target runs.
    ours: Ours,
    target: PathBuf,
    host: PathBuf,
    /// SPDK runs without huge pages.
    no_huge: bool,
    /// The file of the key; `None`: nothing is encrypted.
    key: Option<String>,
    scratch: Scratch,
    leftovers: Leftovers,
}

/// The results of one run of a host.
pub(crate) struct Measured {
    pub(crate) iops: f64,
    pub(crate) mean_us: f64,
}

/// Latencies of commands, from when they were due.
#[derive(serde::Serialize)]
pub(crate) struct Tail {
    pub(crate) p50_us: f64,
    pub(crate) p999_us: f64,
}

impl<'a> Programs<'a> {
    /// Builds Raceline; SPDK must be in `build`.
    pub(crate) fn find(
        tree: &'a Tree,
        ours: Ours,
        Place { build, no_huge, tls }: Place<'_>,
        leftovers: Leftovers,
    ) -> Result<Self> {
        let target = spdk_program(build, "nvmf_tgt")?;
        let host = spdk_program(build, "spdk_nvme_perf")?;
        tree.binary()?;
        let scratch = Scratch::new()?;
        let key = tls.then(|| scratch.private("tls.key", TLS_KEY)).transpose()?;
        Ok(Self { tree, ours, target, host, no_huge, key, scratch, leftovers })
    }

    /// How Raceline's target runs.
    pub(crate) fn ours(&self) -> Ours {
        self.ours
    }

    /// The version that SPDK reports.
    pub(crate) fn spdk_version(&self) -> Result<String> {
        let ended = Task::new(&self.target).args(["--version"]).check()?;
        Ok(ended.output.lines().next_back().unwrap_or("SPDK").trim().to_owned())
    }

    /// Starts a target and waits until it can be reached. `mode` is what `raceline export` does
    /// when it is idle; Raceline's daemon is always adaptive.
    pub(crate) fn start(&self, kind: Target, mode: &str) -> Result<RunningTarget> {
        let port = free_port()?;
        let task = if kind.is_spdk() {
            self.spdk_target(kind, port)?
        } else if self.ours == Ours::Serve {
            self.daemon(kind, port)?
        } else {
            let huge = if kind == Target::RacelineHuge { ",hugepages" } else { "" };
            let memory = format!("ram:{NAMESPACE_MIB}M,bs={BLOCK_BYTES}{huge}");
            let null = format!("null:{NAMESPACE_MIB}M,bs={BLOCK_BYTES}");
            let listen = format!("127.0.0.1:{port}");
            let words = ["export", &memory, &null, "-l", &listen, "-n", NQN];
            let cores = ["--cores", TARGET_CORE.0, "--mode", mode];
            let task = self.tree.raceline(words.into_iter().chain(cores))?;
            match &self.key {
                Some(key) => task.args(["--host", HOST_NQN, "--tls-psk", key]),
                None => task,
            }
        };
        let mut running = RunningTarget { kind, port, running: task.start()? };
        if kind.is_spdk() {
            self.leftovers.add(running.pid());
        }
        running.wait_until_ready()?;
        Ok(running)
    }

    /// Writes the first namespace from end to end.
    pub(crate) fn fill(&self, target: &RunningTarget) -> Result<()> {
        if self.key.is_some() {
            // SPDK's host takes minutes for it over TLS (lab 0061).
            let words =
                ["--precondition", "--namespace", "1", "--rw", "randread", "--iodepth", "1"];
            let times = ["--ramp_time", "0", "--runtime", "1", "-o", "json"];
            let task = self.raceline_host(target)?.args(words.into_iter().chain(times));
            perf_job(task, FILL_LIMIT_S).context("filling the namespace")?;
            return Ok(());
        }
        let rest = ["-q", "32", "-o", "131072", "-w", "write", "-d", "100%"];
        let limit = FILL_LIMIT_S.to_string();
        let task = self.spdk_host(target, 1).args(rest).args(["-t", &limit]);
        total(&self.run_spdk_host(task, FILL_LIMIT_S)?).context("filling the namespace")?;
        Ok(())
    }

    /// Runs a host against a target.
    pub(crate) fn run(
        &self,
        host: Host,
        target: &RunningTarget,
        point: Point,
        seconds: u32,
    ) -> Result<Measured> {
        let limit_s = u64::from(2 * seconds) + HOST_LIMIT_S;
        let time = Duration::from_secs(seconds.into());
        let task = self.host(host, target, point, (time, time))?;
        if host == Host::Spdk {
            return total(&self.run_spdk_host(task, limit_s)?);
        }
        let job = perf_job(task, limit_s)?;
        let kind = if point.write { "write" } else { "read" };
        let mean = job[kind]["clat_ns"]["mean"].as_f64().context("no mean latency")?;
        Ok(Measured { iops: iops(&job), mean_us: mean / 1000.0 })
    }

    /// Runs Raceline's host with `commands_per_s` commands falling due, however long earlier ones take.
    pub(crate) fn run_paced(
        &self,
        target: &RunningTarget,
        point: Point,
        (ramp, time): (Duration, Duration),
        commands_per_s: u32,
    ) -> Result<Tail> {
        let limit_s = ramp.as_secs() + time.as_secs() + HOST_LIMIT_S;
        let rate = commands_per_s.to_string();
        let task = self.host(Host::Raceline, target, point, (ramp, time))?;
        let job = perf_job(task.args(["--rate_iops", &rate]), limit_s)?;
        let kind = if point.write { "write" } else { "read" };
        if job[kind]["total_ios"] == 0 {
            // All commands that fell due in that time were still waiting at its end.
            return Ok(Tail { p50_us: f64::INFINITY, p999_us: f64::INFINITY });
        }
        let percentile = |name: &str| {
            let nanoseconds = job[kind]["clat_ns"]["percentile"][name].as_f64();
            nanoseconds.map(|value| value / 1000.0).with_context(|| format!("no percentile {name}"))
        };
        Ok(Tail { p50_us: percentile("50.000000")?, p999_us: percentile("99.900000")? })
    }

    /// Starts a host that is measured while it runs, for `seconds`.
    pub(crate) fn start_host(
        &self,
        host: Host,
        target: &RunningTarget,
        point: Point,
        seconds: u32,
    ) -> Result<Running> {
        let time = Duration::from_secs(seconds.into());
        let task = self.host(host, target, point, (Duration::ZERO, time))?;
        let running = task.limit(u64::from(seconds) + HOST_LIMIT_S).start()?;
        if host == Host::Spdk {
            self.leftovers.add(running.pid());
        }
        Ok(running)
    }

    /// A host with times of ramp and of measurement; SPDK's knows whole seconds only.
    fn host(
        &self,
        host: Host,
        target: &RunningTarget,
        point: Point,
        (ramp, time): (Duration, Duration),
    ) -> Result<Task> {
        let pattern = if point.write { "randwrite" } else { "randread" };
        let size = point.io_bytes.to_string();
        let namespace = if point.null { 2 } else { 1 };
        let connections = point.connections.to_string();
        if host == Host::Spdk {
            // SPDK's depth is the sum over all connections.
            let depth = (point.depth * point.connections).to_string();
            let words = ["-w", pattern, "-o", &size, "-q", &depth, "-P", &connections];
            let digests: &[&str] = if point.digests { &["-H", "-I"] } else { &[] };
            let task = self.spdk_host(target, namespace).args(words).args(digests);
            let [ramp, time] = [ramp, time].map(|time| time.as_secs().to_string());
            return Ok(task.args(["-a", &ramp, "-t", &time]));
        }
        let depth = point.depth.to_string();
        let namespace = namespace.to_string();
        let words = ["--rw", pattern, "--bs", &size, "--iodepth", &depth];
        let queues = ["--nr-io-queues", &connections, "--namespace", &namespace];
        let [ramp, time] = [ramp, time].map(|time| format!("{}ms", time.as_millis()));
        let times = ["--ramp_time", &ramp, "--runtime", &time];
        let core = ["--cores", HOST_CORE.0, "--mode", "poll", "-o", "json"];
        let digests: &[&str] = if point.digests { &["--hdr-digest", "--data-digest"] } else { &[] };
        let words = words.into_iter().chain(queues).chain(times).chain(core);
        let words = words.chain(digests.iter().copied());
        Ok(self.raceline_host(target)?.args(words))
    }

    /// A host that is connected and does one read per second.
    pub(crate) fn idle_host(&self, target: &RunningTarget, seconds: u64) -> Result<Running> {
        let time = seconds.to_string();
        let words = ["--rate_iops", "1", "--iodepth", "1", "--ramp_time", "0", "--runtime", &time];
        let core = ["--cores", HOST_CORE.0, "--mode", "interrupt", "-o", "json"];
        let task = self.raceline_host(target)?.args(words.into_iter().chain(core));
        task.limit(seconds + HOST_LIMIT_S).start()
    }

    fn raceline_host(&self, target: &RunningTarget) -> Result<Task> {
        let port = target.port.to_string();
        let task = self.tree.raceline(["perf", "-a", "127.0.0.1", "-s", &port, "-n", NQN])?;
        Ok(match &self.key {
            // SPDK knows identities of version 0 only.
            Some(key) => task.args(["-q", HOST_NQN, "--tls-psk", key, "--tls-identity", "0"]),
            None => task,
        })
    }

    fn spdk_host(&self, target: &RunningTarget, namespace: u32) -> Task {
        let port = target.port;
        let transport = format!(
            "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{NQN} hostnqn:{HOST_NQN} ns:{namespace}"
        );
        let memory = HOST_MIB.to_string();
        let task = Task::new(&self.host).args(["-c", HOST_CORE.1, "-s", &memory, "-r", &transport]);
        let task = if self.no_huge { task.args(["--no-huge"]) } else { task };
        match &self.key {
            Some(key) => task.args(["-S", "ssl", "--psk-path", key]),
            None => task,
        }
    }

    fn run_spdk_host(&self, task: Task, limit_s: u64) -> Result<String> {
        let running = task.limit(limit_s).start()?;
        self.leftovers.add(running.pid());
        let ended = running.wait()?;
        ensure!(ended.success(), "spdk_nvme_perf: {}\n{}", ended.why(), ended.tail(10));
        Ok(ended.stdout)
    }

    fn spdk_target(&self, kind: Target, port: u16) -> Result<Task> {
        let (config, socket) = self.configured(kind, port)?;
        let task = Task::new(&self.target).args(["-m", TARGET_CORE.1, "--no-pci"]);
        // Both targets have the same core; the one that does not run is stopped.
        let task = task.args(["--disable-cpumask-locks", "-c"]).args([config]);
        let memory = TARGET_MIB.to_string();
        let task = if self.no_huge { task.args(["--no-huge", "-s", &memory]) } else { task };
        Ok(task.args(["-r"]).args([socket]))
    }

    fn daemon(&self, kind: Target, port: u16) -> Result<Task> {
        let (config, socket) = self.configured(kind, port)?;
        let task = self.tree.raceline(["serve", "-m", TARGET_CORE.1, "-c"])?;
        Ok(task.args([config]).args(["-r"]).args([socket]))
    }

    /// Writes the configuration of a target, and names its socket beside it. Several targets of one
    /// kind may be started.
    fn configured(&self, kind: Target, port: u16) -> Result<(PathBuf, PathBuf)> {
        let path = |end: &str| self.scratch.dir.join(format!("{port}.{end}"));
        let config = path("json");
        std::fs::write(
            &config,
            serde_json::to_string_pretty(&configuration(kind, port, self.key.as_deref()))?,
        )?;
        Ok((config, path("sock")))
    }
}

/// A target that runs, or is stopped by [`Self::pause`]; dropping ends it.
pub(crate) struct RunningTarget {
    pub(crate) kind: Target,
    port: u16,
    running: Running,
}

impl RunningTarget {
    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Takes its core away. No host may be connected.
    pub(crate) fn pause(&self) {
        std::thread::sleep(SETTLE);
        self.running.signal("STOP");
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.running.signal("CONT");
    }

    /// An error if it has ended.
    pub(crate) fn healthy(&mut self) -> Result<()> {
        self.running.drain();
        if !self.running.alive() {
            let tail = crate::child::tail(self.running.output(), 15);
            bail!("the target {} has ended:\n{tail}", self.kind.name());
        }
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        if !self.kind.is_spdk() {
            self.running.wait_for("\"ready\"", READY_LIMIT_S)?;
            return Ok(());
        }
        let end = Instant::now() + Duration::from_secs(READY_LIMIT_S);
        // The listener is the last part of the configuration.
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            self.healthy()?;
            ensure!(Instant::now() < end, "nvmf_tgt does not listen after {READY_LIMIT_S} s");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for RunningTarget {
    fn drop(&mut self) {
        self.resume();
        self.running.end();
    }
}

/// A folder for configurations and sockets; dropping removes it.
pub(crate) struct Scratch {
    pub(crate) dir: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        // A socket's path has few bytes: the system's folder for temporary files has a short one.
        let dir = std::env::temp_dir().join(format!("raceline-spdk-{}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let copy = Self { dir: dir.clone() };
        at_interrupt(move || drop(copy));
        Ok(Self { dir })
    }

    /// A file that only this user can read; gives its path.
    pub(crate) fn private(&self, name: &str, text: &str) -> Result<String> {
        let path = self.dir.join(name);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        path.into_os_string()
            .into_string()
            .ok()
            .context("the folder for temporary files is no text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The folder is gone already when this process was interrupted.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A program of SPDK's.
pub(super) fn spdk_program(build: &Path, name: &str) -> Result<PathBuf> {
    let path = build.join("build/bin").join(name);
    ensure!(
        path.is_file(),
        "there is no {}: give --build the folder in which SPDK was configured and built",
        path.display()
    );
    path.canonicalize().context("SPDK's programs")
}

/// Runs `raceline perf` and gives its report on the job.
fn perf_job(task: Task, limit_s: u64) -> Result<Value> {
    let ended = task.limit(limit_s).check()?;
    let mut report: Value = serde_json::from_str(&ended.stdout)
        .with_context(|| format!("perf's output:\n{}", ended.tail(10)))?;
    Ok(report["jobs"][0].take())
}

/// The line of all namespaces and cores in the output of SPDK's host: IOPS, MiB/s, and mean,
/// lowest and highest latency in microseconds.
pub(super) fn total(output: &str) -> Result<Measured> {
    let line = output.lines().rfind(|line| line.starts_with("Total"));
    let figures = line.and_then(|line| line.rsplit_once(':')).map(|(_, figures)| {
        let words = figures.split_whitespace();
        words.map(str::parse).collect::<Result<Vec<f64>, _>>().unwrap_or_default()
    });
    match figures.as_deref() {
        Some([iops, _, mean_us, ..]) if *iops > 0.0 => {
            Ok(Measured { iops: *iops, mean_us: *mean_us })
        }
        _ => {
            bail!("spdk_nvme_perf's output has no line Total:\n{}", crate::child::tail(output, 10))
        }
    }
}

/// A port of 127.0.0.1 on which nothing listens now.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_in_the_output_of_the_host() {
        let output = "TCP (addr:127.0.0.1) NSID 1 from core  1:  1.00  1.00  1.00  1.00  1.00\n\
                      ====\nTotal       :  243841.88     952.51     131.39      30.97   16188.81\n";
        let found = total(output).unwrap();
        assert!(found.iops == 243_841.88 && found.mean_us == 131.39);
        assert!(total("Total : nan-sense\n").is_err());
        assert!(total("Total : 0.00 0.00 0.00 0.00 0.00\n").is_err());
        assert!(total("").is_err());
    }
}
