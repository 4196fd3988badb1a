//! The host-cuts step: our host over two daemons with one file, while `raceline perf --verify` works and one path is cut
//! by RST, by a link that loses everything, by kill -9 of the daemon, or by a change of its ANA state.
//!
//! The daemons are in one network namespace and the host is in another; each path has a link of its own. `perf` reports
//! the longest read and the longest write, which tell after which time each went on.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::child::{Ended, Running, Task};
use crate::netns::{Namespaces, ip};
use crate::node::Node;
use crate::raceline::Tree;
use crate::setup;
use crate::step::{Checks, Outcome};

const NQN: &str = "nqn.2026-01.io.raceline:cuts";
/// Bytes of the namespace, in MiB: each run writes and reads each block many times.
const NAMESPACE_MIB: u64 = 4;

/// Indices of the namespaces.
const TARGET_END: usize = 0;
const HOST_END: usize = 1;
/// The links, with the addresses of the daemon and the host; the networks are reserved for documentation.
const LINKS: [Link; 2] = [
    Link { name: "path0", daemon: "192.0.2.1", host: "192.0.2.2" },
    Link { name: "path1", daemon: "198.51.100.1", host: "198.51.100.2" },
];
const PORT: &str = "4420";

/// Keep alive timeout of the host, the shortest that a daemon keeps; see `KAS_100_MS` for its granularity.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
const KAS_100_MS: &str = "1";
/// Quiesce time of the daemons (CQT).
const QUIESCE: Duration = Duration::from_secs(1);
/// How long writes of a lost controller are held back when nobody can reset it: a daemon counts traffic as keep alive.
const HOLD: Duration = Duration::from_secs(4);
/// What a loaded machine may take besides; a person judges the figures that are printed.
const LATE: Duration = Duration::from_secs(10);
/// How long the run before a cut writes, so that each block is written.
const FILL_S: &str = "0.3";
/// How long each path alone is read by; a second time if the machine was too busy for all blocks.
const READ_S: [&str; 2] = ["0.5", "10"];
/// Time for one run, in seconds.
const RUN_LIMIT_S: u64 = 120;
/// Time for a path to be used, or to be back.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often each kind of cut comes within `cargo xtask test`.
const ROUNDS: u32 = 1;
/// The policies that the rounds have in turn.
const POLICIES: [&str; 3] = ["active-passive", "round-robin", "queue-depth"];

/// How many cuts to make.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Rounds: each makes one cut of each of the four kinds.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
}

struct Link {
    name: &'static str,
    daemon: &'static str,
    host: &'static str,
}

/// A kind of cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rst,
    Silence,
    Kill,
    Ana,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Rst, Self::Silence, Self::Kill, Self::Ana];

    fn name(self) -> &'static str {
        match self {
            Self::Rst => "rst",
            Self::Silence => "silence",
            Self::Kill => "kill",
            Self::Ana => "ana",
        }
    }

    /// How long a run goes on. `perf` reports no latency of what is outstanding at its end, so a run is longer than what a
    /// cut may take.
    fn runtime(self) -> Duration {
        match self {
            Self::Ana => Duration::from_secs(3),
            // A reset that does not come leaves writes to time, as silence does.
            Self::Rst | Self::Silence | Self::Kill => KEEP_ALIVE + HOLD + Duration::from_secs(3),
        }
    }

    /// After which time reads and writes have to go on even on a loaded machine.
    fn limits(self) -> [Duration; 2] {
        match self {
            Self::Rst | Self::Ana => [LATE, LATE],
            Self::Silence | Self::Kill => [KEEP_ALIVE + LATE, KEEP_ALIVE + HOLD + LATE],
        }
    }
}

/// The longest read and write of a run in which a path was cut.
struct Cut {
    kind: Kind,
    stalls: [Duration; 2],
}

/// The step of `cargo xtask test`.
pub(crate) fn run_default(tree: &Tree) -> Result<Outcome> {
    run(tree, &Options { rounds: ROUNDS })
}

/// Cuts paths for that many rounds, and prints after which times reads and writes went on.
pub(crate) fn run(tree: &Tree, options: &Options) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("placement") {
        return setup::cannot(&why);
    }
    if !setup::is_root() {
        return setup::cannot("not root, and network namespaces have to be made");
    }
    tree.binary()?;
    let dir = tree.scratch("host-cuts")?;
    let mut bed = match Bed::make(tree, &dir)? {
        Ok(bed) => bed,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let mut checks = Checks::default();
    let mut cuts = Vec::new();
    for round in 0..options.rounds {
        for kind in Kind::ALL {
            checks.run(&format!("{}-{round}", kind.name()), || {
                cuts.push(bed.cut_under_work(round, kind)?);
                Ok(())
            });
            // One failure makes others of no interest.
            if !checks.all_passed() {
                return checks.outcome();
            }
        }
    }
    Kind::ALL.iter().for_each(|&kind| println!("{}", figures(kind, &cuts)));
    bed.end()?;
    std::fs::remove_dir_all(&dir)?;
    checks.outcome()
}

/// Medians and the longest of one kind.
fn figures(kind: Kind, cuts: &[Cut]) -> String {
    let cuts: Vec<&Cut> = cuts.iter().filter(|cut| cut.kind == kind).collect();
    let of = |side: usize| {
        let mut stalls: Vec<u128> = cuts.iter().map(|cut| cut.stalls[side].as_millis()).collect();
        stalls.sort_unstable();
        let median = stalls.get(stalls.len().saturating_sub(1) / 2).copied().unwrap_or_default();
        format!("{median} ms (median), {} ms (worst)", stalls.last().copied().unwrap_or_default())
    };
    format!("# {}: {} cuts; reads after {}; writes after {}", kind.name(), cuts.len(), of(0), of(1))
}

/// The namespaces, the links between them, and the daemons; gone with this value.
struct Bed<'a> {
    tree: &'a Tree,
    nodes: [Node; 2],
    ends: Namespaces,
    runs: u32,
}

impl<'a> Bed<'a> {
    /// Makes everything; the inner error says why this machine does not allow it.
    fn make(tree: &'a Tree, dir: &Path) -> Result<Result<Self, String>> {
        let ends = match Namespaces::make(&["cuts-target", "cuts-host"])? {
            Ok(made) => made,
            Err(why) => return Ok(Err(why)),
        };
        let (target, host) = (ends.name(TARGET_END), ends.name(HOST_END));
        for link in &LINKS {
            let ended = ip(&["link", "add", link.name, "netns", target, "type", "veth"])
                .args(["peer", "name", link.name, "netns", host])
                .run()?;
            if !ended.success() {
                return Ok(Err(format!("no veth link: {}", ended.output.trim())));
            }
            for (end, address) in [(target, link.daemon), (host, link.host)] {
                let address = format!("{address}/24");
                ip(&["-n", end, "address", "add", &address, "dev", link.name]).check()?;
                ip(&["-n", end, "link", "set", link.name, "up"]).check()?;
            }
        }
        let nodes = Node::pair(dir)?;
        let mut bed = Self { tree, nodes, ends, runs: 0 };
        let file = dir.join("shared.img");
        std::fs::File::create(&file)?.set_len(NAMESPACE_MIB << 20)?;
        for index in 0..LINKS.len() {
            bed.start(index)?;
            bed.set_up(index, &file)?;
        }
        Ok(Ok(bed))
    }

    /// Starts a daemon, with what it had before.
    fn start(&mut self, index: usize) -> Result<()> {
        let quiesce = QUIESCE.as_secs().to_string();
        let prefix = ip(&["netns", "exec", self.ends.name(TARGET_END)]);
        self.nodes[index].start(self.tree, Some(prefix), &["--quiesce-time", &quiesce])
    }

    fn set_up(&self, index: usize, file: &Path) -> Result<()> {
        let node = &self.nodes[index];
        let transport = ["nvmf_create_transport", "-t", "tcp", "--kas", KAS_100_MS];
        node.daemon()?.rpc(self.tree, &transport)?.limit(60).check()?;
        node.export(self.tree, file, NQN, &format!("{}:{PORT}", LINKS[index].daemon))
    }

    /// Bytes that a daemon has read and written.
    fn bytes(&self, index: usize) -> Result<u64> {
        let daemon = self.nodes[index].daemon()?;
        let answer = daemon.call(self.tree, &["bdev_get_iostat", "-b", "disk"])?;
        let count = |name: &str| answer["bdevs"][0][name].as_u64().context("no statistics");
        Ok(count("bytes_read")? + count("bytes_written")?)
    }

    /// `raceline perf --verify` over these paths, the first of them first.
    fn perf(&self, paths: &[usize], more: &[&str]) -> Result<Task> {
        let address = |index: &usize| LINKS[*index].daemon;
        let first = paths.first().map(address).context("no path")?;
        let keep_alive = KEEP_ALIVE.as_secs().to_string();
        let mut task = ip(&["netns", "exec", self.ends.name(HOST_END)])
            .args([self.tree.binary()?])
            .args(["perf", "-a", first, "-s", PORT, "-n", NQN, "-k", &keep_alive])
            .args(["--bs", "4k", "--iodepth", "16", "-i", "2", "--ramp_time", "0"])
            .args(["--verify", "--seed", &self.runs.to_string(), "-o", "json"])
            .args(more);
        for path in paths.iter().skip(1).map(address) {
            task = task.args(["--path", &format!("{path}:{PORT}")]);
        }
        Ok(task.limit(RUN_LIMIT_S))
    }

    /// Cuts a path while a run uses it, and mends it; what the run wrote is then there by each path alone.
    fn cut_under_work(&mut self, round: u32, kind: Kind) -> Result<Cut> {
        let policy = POLICIES[round as usize % POLICIES.len()];
        let index = round as usize % LINKS.len();
        self.runs += 1;
        let fill = ["--rw", "write", "--runtime", FILL_S];
        finished(self.perf(&[index], &fill)?.start()?).context("filling")?;
        let runtime = kind.runtime().as_secs().to_string();
        let more = ["--rw", "randrw", "--runtime", &runtime, "--policy", policy];
        let run = self.perf(&[index, 1 - index], &more)?.start()?;
        self.wait_for_work(index)?;
        self.cut(index, kind)?;
        let cut_at = Instant::now();
        let ended = finished(run).with_context(|| format!("after {}", kind.name()))?;
        let outstanding = cut_at.elapsed();
        let stalls = stalls(&ended)?;
        self.mend(index, kind)?;
        for path in [index, 1 - index] {
            self.verify_by(path)?;
        }
        for (what, (stall, limit)) in
            ["reads", "writes"].iter().zip(stalls.iter().zip(kind.limits()))
        {
            ensure!(*stall <= limit, "{what} stood still for {stall:?}, more than {limit:?}");
            ensure!(
                outstanding <= kind.runtime() + limit,
                "the run ended {outstanding:?} after the cut"
            );
        }
        Ok(Cut { kind, stalls })
    }

    /// Waits until a daemon has moved 1 MiB more.
    fn wait_for_work(&self, index: usize) -> Result<()> {
        let wanted = self.bytes(index)? + (1 << 20);
        let end = Instant::now() + PATIENCE;
        while self.bytes(index)? < wanted {
            ensure!(Instant::now() < end, "no work comes by {}", LINKS[index].name);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn cut(&mut self, index: usize, kind: Kind) -> Result<()> {
        let (link, target) = (&LINKS[index], self.ends.name(TARGET_END));
        match kind {
            Kind::Rst => {
                let ended = ip(&["netns", "exec", target, "ss", "-HKtn", "state", "established"])
                    .args(["src", &format!("{}:{PORT}", link.daemon)])
                    .check()?;
                ensure!(!ended.stdout.trim().is_empty(), "no connection was reset");
                Ok(())
            }
            // A link that one end has shut loses what the other end sends.
            Kind::Silence => self.link(index, "down"),
            Kind::Kill => self.nodes[index].kill(),
            Kind::Ana => self.ana(index, "inaccessible"),
        }
    }

    fn mend(&mut self, index: usize, kind: Kind) -> Result<()> {
        match kind {
            Kind::Rst => Ok(()),
            Kind::Silence => self.link(index, "up"),
            Kind::Kill => self.start(index),
            Kind::Ana => self.ana(index, "optimized"),
        }
    }

    fn link(&self, index: usize, state: &str) -> Result<()> {
        let words = ["-n", self.ends.name(TARGET_END), "link", "set", LINKS[index].name, state];
        ip(&words).check().map(drop)
    }

    fn ana(&self, index: usize, state: &str) -> Result<()> {
        let address = LINKS[index].daemon;
        self.nodes[index].verb(self.tree, &format!("port set {NQN} {address}:{PORT} --ana {state}"))
    }

    /// What the last run wrote is there by this path alone.
    fn verify_by(&self, index: usize) -> Result<()> {
        let mut bytes = 0;
        for seconds in READ_S {
            let run = self.perf(&[index], &["--rw", "read", "--runtime", seconds])?.start()?;
            let ended =
                finished(run).with_context(|| format!("reading by {} alone", LINKS[index].name))?;
            bytes = report(&ended)?["read"]["io_bytes"].as_u64().unwrap_or(0);
            if bytes >= NAMESPACE_MIB << 20 {
                return Ok(());
            }
        }
        bail!("{bytes} bytes were verified, which is not all")
    }

    /// Ends the daemons.
    fn end(self) -> Result<()> {
        let Self { nodes, ends, .. } = self;
        for node in nodes {
            node.stop()?;
        }
        drop(ends);
        Ok(())
    }
}

/// The end of a run without an error.
fn finished(run: Running) -> Result<Ended> {
    let ended = run.wait()?;
    // (What it says for people stands among the lines of JSON.)
    let said: Vec<&str> =
        ended.output.lines().filter(|line| !line.starts_with([' ', '{', '}'])).collect();
    ensure!(ended.success(), "perf: {}\n{}", ended.why(), said.join("\n"));
    Ok(ended)
}

/// The only job of a run.
fn report(ended: &Ended) -> Result<Value> {
    let report: Value = serde_json::from_str(&ended.stdout)
        .with_context(|| format!("perf's output is not JSON:\n{}", ended.tail(10)))?;
    report["jobs"].get(0).cloned().context("no jobs in perf's output")
}

/// The longest read and the longest write.
fn stalls(ended: &Ended) -> Result<[Duration; 2]> {
    let job = report(ended)?;
    let of = |side: &str| -> Result<Duration> {
        let most = job[side]["lat_ns"]["max"].as_u64().context("no latency in perf's output")?;
        ensure!(most > 0, "the run had no {side}");
        Ok(Duration::from_nanos(most))
    };
    Ok([of("read")?, of("write")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_one_kind() {
        let cut = |kind, read, write| Cut {
            kind,
            stalls: [Duration::from_millis(read), Duration::from_millis(write)],
        };
        let cuts = [
            cut(Kind::Rst, 30, 400),
            cut(Kind::Ana, 1, 2),
            cut(Kind::Rst, 10, 500),
            cut(Kind::Rst, 20, 100),
        ];
        assert_eq!(
            figures(Kind::Rst, &cuts),
            "# rst: 3 cuts; reads after 20 ms (median), 30 ms (worst); \
             writes after 400 ms (median), 500 ms (worst)"
        );
        assert!(figures(Kind::Kill, &cuts).starts_with("# kill: 0 cuts; reads after 0 ms"));
    }
}
