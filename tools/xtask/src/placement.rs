//! The placement step: connections over a link with receive queues, and their cores: those that a target
//! assigns, and those of the connections that a host keeps.
//!
//! Loopback has no receive queues. Two network namespaces joined by a veth pair have them: with GRO on,
//! each of its queues is polled as a network device's is and has a NAPI id. Segmentation offload
//! is off at both ends, since large segments bypass GRO.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::child::{Ended, Running, Task, has_program, tail};
use crate::netns::{Namespaces, ip};
use crate::raceline::Tree;
use crate::setup;
use crate::step::{Checks, Outcome};

mod host;
mod send;

/// Queues of the link.
const QUEUES: &str = "4";
/// I/O queues of the host. The chance that they all hash to one queue of the link is at most
/// one in a billion.
const IO_QUEUES: usize = 15;
/// The target's address, from a network that is reserved for documentation.
const TARGET: &str = "192.0.2.1";
/// The host's address.
const HOST: &str = "192.0.2.2";
/// The interface in either namespace.
const LINK: &str = "link0";
/// Microseconds of busy polling.
const BUSY_POLL_US: &str = "50";
/// Time for a target to be ready, in seconds.
const READY_LIMIT_S: u64 = 20;
/// Time until the target has logged the cores of its connections.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// Runs all checks of the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("placement") {
        return setup::cannot(&why);
    }
    if !setup::is_root() {
        return setup::cannot("not root, and network namespaces have to be made");
    }
    let [first, second] = match allowed_cpus()?[..] {
        [first, second, ..] => [first, second],
        _ => return Ok(Outcome::Skipped("one CPU only".to_owned())),
    };
    tree.binary()?;
    let bed = match TestBed::make()? {
        Ok(bed) => bed,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let cpus = [first, second];
    let mut checks = Checks::default();
    for io in ["uring", "epoll"] {
        checks.run(&format!("napi-{io}"), || by_queue(tree, &bed, &cpus, &["--io", io]));
    }
    checks.run("napi-busy-poll", || {
        by_queue(tree, &bed, &cpus, &["--busy-poll", BUSY_POLL_US, "--mode", "interrupt"])
    });
    for io in ["uring", "epoll"] {
        checks.run(&format!("busy-poll-waits-{io}"), || busy_poll_waits(tree, io));
    }
    checks.run("cpu", || by_cpu(tree, &bed, &cpus));
    send::check(&mut checks, tree, &bed, &cpus);
    host::check(&mut checks, tree, &bed, &cpus);
    if has_program("setpriv") {
        checks.run("busy-poll-unprivileged", || unprivileged_busy_poll(tree));
    } else {
        checks.skip("busy-poll-unprivileged", "no setpriv");
    }
    checks.outcome()
}

/// Connections of one receive queue share a core, and the queues are spread over the cores.
fn by_queue(tree: &Tree, bed: &TestBed, cpus: &[usize], options: &[&str]) -> Result<()> {
    let arrivals = arrivals(tree, bed, cpus, "napi", options)?;
    let mut cores_of_queue: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for arrival in &arrivals {
        let queue = arrival.napi_id.context("a connection without a NAPI id")?;
        cores_of_queue.entry(queue).or_default().insert(arrival.core);
    }
    println!("# cores of each receive queue: {cores_of_queue:?}");
    ensure!(cores_of_queue.len() > 1, "all packets came through one queue: {cores_of_queue:?}");
    let mut queues_of_core = vec![0_usize; cpus.len()];
    for (queue, cores) in &cores_of_queue {
        ensure!(cores.len() == 1, "queue {queue} is on cores {cores:?}");
        cores.iter().for_each(|&core| queues_of_core[core] += 1);
    }
    // A new queue goes where the fewest are, and here none goes away.
    let (most, fewest) = (queues_of_core.iter().max(), queues_of_core.iter().min());
    let difference = most.zip(fewest).map_or(0, |(most, fewest)| most - fewest);
    ensure!(difference <= 1, "queues on each core: {queues_of_core:?}");
    Ok(())
}

/// Each connection is on the core bound to the CPU that processes its packets.
fn by_cpu(tree: &Tree, bed: &TestBed, cpus: &[usize]) -> Result<()> {
    for arrival in arrivals(tree, bed, cpus, "cpu", &[])? {
        let cpu = arrival.cpu.context("a connection without a CPU")?;
        if let Some(own) = cpus.iter().position(|&own| own == cpu) {
            ensure!(arrival.core == own, "packets on CPU {cpu}, connection on {}", arrival.core);
        }
    }
    Ok(())
}

/// Without the capability, busy polling is refused (older kernels) or restricted. The
/// target says in either case which capability it needs.
fn unprivileged_busy_poll(tree: &Tree) -> Result<()> {
    let limits = ["--inh-caps=-net_admin", "--bounding-set=-net_admin"];
    let mut target = Task::new("setpriv")
        .args(limits)
        .args([tree.binary()?])
        .args(["export", "ram:1M", "-l", "127.0.0.1:0", "--busy-poll", BUSY_POLL_US])
        .start()?;
    target.wait_for("CAP_NET_ADMIN", READY_LIMIT_S).map(drop)
}

/// A target says at -v what the waits of its core do: busy poll where the kernel has that (Linux 6.9).
fn busy_poll_waits(tree: &Tree, io: &str) -> Result<()> {
    let options = ["export", "ram:1M", "-l", "127.0.0.1:0", "-v", "--busy-poll", BUSY_POLL_US];
    let mut target = Task::new(tree.binary()?).args(options).args(["--io", io]).start()?;
    let told = target.wait_for("waits ", READY_LIMIT_S)?;
    println!("# {told}");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) >= (Some(6), Some(9)) {
        let wanted = format!("waits busy poll: {BUSY_POLL_US} us");
        ensure!(told.contains(&wanted), "not `{wanted}`: {told}");
    }
    stop(target).map(drop)
}

/// The target's log entry about a connection.
#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    core: usize,
    napi_id: Option<u64>,
    cpu: Option<usize>,
}

impl Arrival {
    /// Reads a line such as `DEBUG ...: accepted peer=... core=1 napi_id=8195 cpu=0`.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.split_once(" accepted ")?;
        Some(Self {
            core: field(fields, "core")?.parse().ok()?,
            napi_id: field(fields, "napi_id").and_then(|id| id.parse().ok()),
            cpu: field(fields, "cpu").and_then(|cpu| cpu.parse().ok()),
        })
    }
}

/// The value of a field of a line of the log.
fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Runs a target on two cores and a verifying job against it; gives where its connections went.
fn arrivals(
    tree: &Tree,
    bed: &TestBed,
    cpus: &[usize],
    placement: &str,
    options: &[&str],
) -> Result<Vec<Arrival>> {
    let placed = [&["-vv", "--placement", placement], options].concat();
    let (mut target, _) = bed.run_job(tree, cpus, &placed, IO_QUEUES, options)?;
    let arrivals = wait_for_arrivals(&mut target, IO_QUEUES + 1)?;
    stop(target)?;
    Ok(arrivals)
}

/// A list of cores for `--cores`.
fn core_list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Ends a target by SIGTERM; exit code 0 is required. Gives what it has printed.
fn stop(target: Running) -> Result<String> {
    target.signal("TERM");
    let ended = target.wait()?;
    ensure!(ended.success(), "the target: {}\n{}", ended.why(), ended.tail(10));
    Ok(ended.output)
}

/// The target's output comes through a thread, maybe after the job has ended.
fn wait_for_arrivals(target: &mut Running, count: usize) -> Result<Vec<Arrival>> {
    let end = Instant::now() + LOG_PATIENCE;
    loop {
        target.drain();
        let arrivals: Vec<Arrival> = target.output().lines().filter_map(Arrival::parse).collect();
        if arrivals.len() >= count {
            return Ok(arrivals);
        }
        let output = target.output();
        ensure!(Instant::now() < end, "{} connections\n{}", arrivals.len(), tail(output, 10));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where a target is.
struct Place {
    nqn: String,
    port: String,
}

/// The ends of the link among the namespaces.
const TARGET_END: usize = 0;
const HOST_END: usize = 1;

/// Two network namespaces and the link between them; gone with this value.
struct TestBed(Namespaces);

impl TestBed {
    /// Makes the namespaces and the link; the inner error says why this machine does not allow it.
    fn make() -> Result<Result<Self, String>> {
        let bed = match Namespaces::make(&["target", "host"])? {
            Ok(made) => Self(made),
            Err(why) => return Ok(Err(why)),
        };
        let (target, host) = (bed.0.name(TARGET_END), bed.0.name(HOST_END));
        let queues = ["numtxqueues", QUEUES, "numrxqueues", QUEUES];
        let near = [&["link", "add", LINK, "netns", target], &queues[..]].concat();
        let far = [&["type", "veth", "peer", "name", LINK, "netns", host], &queues[..]];
        let ended = ip(&[&near[..], &far.concat()].concat()).run()?;
        if !ended.success() {
            return Ok(Err(format!("no veth link: {}", ended.output.trim())));
        }
        for (namespace, address) in [(target, TARGET), (host, HOST)] {
            let address = format!("{address}/24");
            ip(&["-n", namespace, "address", "add", &address, "dev", LINK]).check()?;
            ip(&["netns", "exec", namespace, "ethtool", "-K", LINK])
                .args(["gro", "on", "tso", "off"])
                .check()?;
            ip(&["-n", namespace, "link", "set", LINK, "up"]).check()?;
        }
        Ok(Ok(bed))
    }

    /// Sets the kernel to process the packets of the host's first receive queues on one CPU, and the packets
    /// of the other queues on another, as the interrupts of a device with queues are spread.
    fn steer(&self, cpus: &[usize; 2]) -> Result<()> {
        let mask = |cpu: usize| -> Result<String> {
            ensure!(cpu < 32, "CPU {cpu} needs a longer mask");
            Ok(format!("{:x}", 1u32 << cpu))
        };
        for (queue, cpu) in [(0, cpus[0]), (1, cpus[0]), (2, cpus[1]), (3, cpus[1])] {
            let file = format!("/sys/class/net/{LINK}/queues/rx-{queue}/rps_cpus");
            let write = format!("echo {} > {file}", mask(cpu)?);
            ip(&["netns", "exec", self.0.name(HOST_END), "sh", "-c", &write]).check()?;
        }
        Ok(())
    }

    /// Runs a target on these cores and, to its end, a verifying job with the given number of queues. The
    /// target goes on, for [`stop`].
    fn run_job(
        &self,
        tree: &Tree,
        cpus: &[usize],
        target_options: &[&str],
        queues: usize,
        job_options: &[&str],
    ) -> Result<(Running, Ended)> {
        let (target, place) = self.target(tree, cpus, target_options)?;
        let ended = self.job(tree, &place, queues, "1")?.args(job_options).run()?;
        ensure!(ended.success(), "perf: {}\n{}", ended.why(), ended.tail(10));
        Ok((target, ended))
    }

    /// A target on these cores, and where it is.
    fn target(&self, tree: &Tree, cpus: &[usize], options: &[&str]) -> Result<(Running, Place)> {
        let mut target = self
            .raceline(tree, TARGET_END)?
            .args(["export", "ram:64M", "-l", &format!("{TARGET}:0"), "--insecure"])
            .args(["--allow-any-host", "--cores", &core_list(cpus)])
            .args(options)
            .limit(120)
            .start()?;
        let ready: Value = serde_json::from_str(&target.wait_for("\"ready\"", READY_LIMIT_S)?)?;
        let nqn = ready["nqn"].as_str().context("no nqn in the ready line")?;
        let listener = ready["listeners"][0].as_str().context("no listener in the ready line")?;
        let port = listener.rsplit(':').next().unwrap_or_default();
        Ok((target, Place { nqn: nqn.to_owned(), port: port.to_owned() }))
    }

    /// A verifying job of so many seconds with this number of queues.
    fn job(&self, tree: &Tree, place: &Place, queues: usize, seconds: &str) -> Result<Task> {
        let Place { nqn, port } = place;
        let task = self.raceline(tree, HOST_END)?;
        Ok(task
            .args(["perf", "-a", TARGET, "-s", port, "-n", nqn, "-i", &queues.to_string()])
            .args(["--rw", "randrw", "--iodepth", "4", "--runtime", seconds, "--ramp_time", "0"])
            .args(["--verify"])
            .limit(90))
    }

    /// The program, in one of the namespaces.
    fn raceline(&self, tree: &Tree, end: usize) -> Result<Task> {
        Ok(ip(&["netns", "exec", self.0.name(end)]).args([tree.binary()?]))
    }
}

/// CPUs that this process may use.
fn allowed_cpus() -> Result<Vec<usize>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_cpus(list.context("no Cpus_allowed_list in /proc/self/status")?.trim())
}

/// Reads `0-2,5`.
fn parse_cpus(list: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for run in list.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        cpus.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_and_lists_of_cpus_are_read() {
        let line = "DEBUG raceline_target::poll_group: accepted peer=192.0.2.2:1 core=1 napi_id=8195 cpu=0";
        let arrival = Arrival { core: 1, napi_id: Some(8195), cpu: Some(0) };
        assert_eq!(Arrival::parse(line), Some(arrival));
        let arrival = Arrival { core: 0, napi_id: None, cpu: None };
        assert_eq!(Arrival::parse("DEBUG x: accepted peer=1 core=0"), Some(arrival));
        assert_eq!(Arrival::parse("DEBUG x: refused peer=1"), None);
        assert_eq!(parse_cpus("0-2,5").unwrap(), [0, 1, 2, 5]);
        assert!(parse_cpus("").is_err());
    }
}
