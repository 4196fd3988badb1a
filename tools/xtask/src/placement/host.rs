//! The connections that a host keeps on a link with receive queues, and their cores.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::{BUSY_POLL_US, TestBed, core_list, field, stop};
use crate::raceline::Tree;
use crate::step::Checks;

/// I/O queues. The chance that all queues of a core hash to one queue of the link is at most
/// one in ten thousand.
const IO_QUEUES: usize = 16;
/// Connections that a queue makes at most to find a good one (crates/host/src/placement.rs).
const ATTEMPTS_MAX: u32 = 16;
/// Searches that may end without a good connection: with 4 receive queues one in a hundred does.
const UNLUCKY_MAX: usize = 2;

/// All checks of the host.
pub(super) fn check(checks: &mut Checks, tree: &Tree, bed: &TestBed, cpus: &[usize; 2]) {
    for io in ["uring", "epoll"] {
        checks.run(&format!("host-napi-{io}"), || by_queue(tree, bed, cpus, &["--io", io]));
    }
    checks.run("host-napi-busy-poll", || {
        by_queue(tree, bed, cpus, &["--busy-poll", BUSY_POLL_US, "--mode", "interrupt"])
    });
    checks.run("host-any", || by_chance(tree, bed, cpus));
    match bed.steer(cpus) {
        Ok(()) => checks.run("host-cpu", || by_cpu(tree, bed, cpus)),
        Err(error) => checks.skip("host-cpu", &format!("no steering of receive queues: {error:#}")),
    }
}

/// The connections of a core have one receive queue, so that one poller finds the packets of all.
fn by_queue(tree: &Tree, bed: &TestBed, cpus: &[usize], options: &[&str]) -> Result<()> {
    let tries = connections(tree, bed, cpus, "napi", options)?;
    let queues = kept_queues(&tries)?;
    println!("# receive queues of each core's connections: {queues:?}");
    for (core, queues) in queues {
        let most = queues.values().max().copied().unwrap_or(0);
        let others = queues.values().sum::<usize>() - most;
        ensure!(others <= UNLUCKY_MAX, "core {core} has connections of several queues: {queues:?}");
    }
    ensure!(tries.iter().any(|tried| !tried.kept), "no queue had to connect again");
    Ok(())
}

/// Without placement a core's connections have several queues: `by_queue` does not hold on its own.
fn by_chance(tree: &Tree, bed: &TestBed, cpus: &[usize]) -> Result<()> {
    let tries = connections(tree, bed, cpus, "any", &[])?;
    ensure!(tries.iter().all(|tried| tried.kept && tried.attempt == 1), "a queue searched");
    for (core, queues) in kept_queues(&tries)? {
        ensure!(queues.len() > 1, "core {core} has one receive queue by chance: {queues:?}");
    }
    Ok(())
}

/// A core keeps the connections whose packets the kernel processes on its CPU.
fn by_cpu(tree: &Tree, bed: &TestBed, cpus: &[usize]) -> Result<()> {
    let tries = connections(tree, bed, cpus, "cpu", &[])?;
    let mut unlucky = 0;
    for tried in &tries {
        let (core, cpu) = (tried.core()?, tried.cpu.context("a connection without a CPU")?);
        if tried.kept && core != cpu {
            ensure!(tried.attempt >= ATTEMPTS_MAX, "kept on core {core}: packets are on CPU {cpu}");
            unlucky += 1;
        }
        ensure!(tried.kept || core != cpu, "refused on core {core}, where its packets are");
    }
    ensure!(unlucky <= UNLUCKY_MAX, "{unlucky} queues found no connection of their CPU");
    ensure!(tries.iter().any(|tried| !tried.kept), "no queue had to connect again");
    Ok(())
}

/// A connection of an I/O queue that the host has judged.
#[derive(Debug, PartialEq, Eq)]
struct Tried {
    core: Option<usize>,
    napi_id: Option<u64>,
    cpu: Option<usize>,
    attempt: u32,
    kept: bool,
}

impl Tried {
    /// Reads a line such as `DEBUG ...: connected qid=3 core=1 napi_id=8195 cpu=0 attempt=2 kept=true`;
    /// `None` for other lines and for admin queues.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.split_once(" connected ")?;
        if field(fields, "qid")? == "0" {
            return None;
        }
        Some(Self {
            core: field(fields, "core").and_then(|core| core.parse().ok()),
            napi_id: field(fields, "napi_id").and_then(|id| id.parse().ok()),
            cpu: field(fields, "cpu").and_then(|cpu| cpu.parse().ok()),
            attempt: field(fields, "attempt")?.parse().ok()?,
            kept: field(fields, "kept")? == "true",
        })
    }

    fn core(&self) -> Result<usize> {
        self.core.context("a connection on a thread that is not bound to a core")
    }
}

/// How many connections of each receive queue were kept, by core.
fn kept_queues(tries: &[Tried]) -> Result<BTreeMap<usize, BTreeMap<u64, usize>>> {
    let mut queues: BTreeMap<usize, BTreeMap<u64, usize>> = BTreeMap::new();
    for tried in tries.iter().filter(|tried| tried.kept) {
        let queue = tried.napi_id.context("a connection without a NAPI id")?;
        *queues.entry(tried.core()?).or_default().entry(queue).or_default() += 1;
    }
    Ok(queues)
}

/// Runs a verifying job on both cores; gives the connections that it tried.
fn connections(
    tree: &Tree,
    bed: &TestBed,
    cpus: &[usize],
    placement: &str,
    options: &[&str],
) -> Result<Vec<Tried>> {
    let cores = core_list(cpus);
    let placed = [&["-vv", "--cores", &cores, "--placement", placement], options].concat();
    let (target, ended) = bed.run_job(tree, cpus, &[], IO_QUEUES, &placed)?;
    stop(target)?;
    let tries: Vec<Tried> = ended.output.lines().filter_map(Tried::parse).collect();
    let kept: Vec<&Tried> = tries.iter().filter(|tried| tried.kept).collect();
    ensure!(kept.len() == IO_QUEUES, "{} queues connected\n{}", kept.len(), ended.tail(20));
    let cores: BTreeSet<usize> = kept.iter().filter_map(|tried| tried.core).collect();
    ensure!(cores.len() == cpus.len(), "queues on cores {cores:?} of {cpus:?}");
    Ok(tries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_connections_are_read() {
        let line = "DEBUG x::queue: connected qid=3 core=1 napi_id=8195 cpu=0 attempt=2 kept=true";
        let tried =
            Tried { core: Some(1), napi_id: Some(8195), cpu: Some(0), attempt: 2, kept: true };
        assert_eq!(Tried::parse(line), Some(tried));
        assert_eq!(Tried::parse("DEBUG x: connected qid=0 attempt=1 kept=true"), None);
        let bare = Tried::parse("DEBUG x: connected qid=1 attempt=1 kept=false").unwrap();
        assert_eq!((bare.core, bare.napi_id, bare.kept), (None, None, false));
    }
}
