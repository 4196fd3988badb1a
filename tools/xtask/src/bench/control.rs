//! The control plane: how fast it makes many objects, restores them, and answers under load.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Options;
use super::figures::{Perf, at_most};
use crate::child::Running;
use crate::quiet::watched;
use crate::raceline::Tree;
use crate::serve::Serve;

/// Subsystems, and namespaces in each.
const SUBSYSTEMS: usize = 1000;
const NAMESPACES: usize = 8;
/// Calls whose times are measured while a core is saturated.
const CALLS: usize = 2000;
/// Times that a namespace, a listener and a host come and go under I/O.
const CHANGES: usize = 1000;
/// Devices that are added and removed are small.
const DEVICE_BLOCKS: u64 = 2048;
/// No call takes this long.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// Bars.
const CREATE_S_MAX: f64 = 20.0;
const RESTART_S_MAX: f64 = 5.0;
const LIST_S_MAX: f64 = 1.0;
const CALL_MS_MAX: f64 = 5.0;
const P99_RATIO_MAX: f64 = 2.0;
/// Most that a daemon may have grown by after all changes: a leak of one page per change is more.
const GROWTH_MIB_MAX: f64 = 2.0;
/// Threads that waited for calls end after ten seconds without any.
const IDLE_THREAD_LIMIT: Duration = Duration::from_secs(12);
/// Changes before the first measurement of the daemon's resources: caches and pools fill once.
const WARM_UP_CHANGES: usize = 50;

const NQN: &str = "nqn.2016-06.io.spdk:load";

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let mut bars = many(tree)?;
    bars.push(answers_under_load(tree, options)?);
    bars.extend(changes_under_load(tree, options)?);
    Ok(Value::Array(bars))
}

/// 1,000 subsystems of 8 namespaces, each with a listener: made, listed, and there after a restart.
fn many(tree: &Tree) -> Result<Vec<Value>> {
    let dir = tree.scratch("bench-control")?;
    let state = dir.join("state").to_string_lossy().into_owned();
    let daemon = Serve::start(tree, &dir, &["--state-dir", &state])?;
    let mut rpc = Rpc::open(&daemon.socket)?;
    rpc.call("nvmf_create_transport", json!({"trtype": "TCP"}))?;
    let started = Instant::now();
    for index in 0..SUBSYSTEMS {
        subsystem(&mut rpc, index)?;
    }
    let created = started.elapsed();
    let started = Instant::now();
    let listed = rpc.call("nvmf_get_subsystems", Value::Null)?;
    let listing = started.elapsed();
    let count = listed.as_array().map_or(0, Vec::len);
    ensure!(count == SUBSYSTEMS + 1, "{count} subsystems are listed");
    // Killed without a request to end: acknowledged changes must come back.
    daemon.kill();
    let daemon = Serve::start(tree, &dir, &["--state-dir", &state])?;
    let restart = daemon.start_time;
    let again = Rpc::open(&daemon.socket)?.call("nvmf_get_subsystems", Value::Null)?;
    ensure!(again == listed, "a restart changed what is there");
    daemon.stop()?;
    let changes = SUBSYSTEMS * (2 + 2 * NAMESPACES);
    println!("{SUBSYSTEMS} subsystems with {NAMESPACES} namespaces each, {changes} changes:");
    Ok(vec![
        at_most("created", created.as_secs_f64(), CREATE_S_MAX, "s"),
        at_most("listed", listing.as_secs_f64(), LIST_S_MAX, "s"),
        at_most("restart to ready", restart.as_secs_f64(), RESTART_S_MAX, "s"),
    ])
}

fn subsystem(rpc: &mut Rpc, index: usize) -> Result<()> {
    let nqn = format!("nqn.2016-06.io.spdk:cnode{index}");
    rpc.call("nvmf_create_subsystem", json!({"nqn": nqn, "allow_any_host": true}))?;
    for namespace in 0..NAMESPACES {
        let name = format!("Null{index}x{namespace}");
        let device = json!({"name": name, "num_blocks": DEVICE_BLOCKS, "block_size": 512});
        rpc.call("bdev_null_create", device)?;
        let namespace = json!({"nqn": nqn, "namespace": {"bdev_name": name}});
        rpc.call("nvmf_subsystem_add_ns", namespace)?;
    }
    // All listeners at one address, as on a storage box.
    rpc.call("nvmf_subsystem_add_listener", json!({"nqn": nqn, "listen_address": at("44421")}))?;
    Ok(())
}

pub(super) fn at(port: &str) -> Value {
    json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port})
}

/// A daemon on core 0 with one namespace in memory, and the address of its listener.
fn exporting(tree: &Tree) -> Result<(Serve, Rpc, Vec<String>)> {
    let dir = tree.scratch("bench-control")?;
    let daemon = Serve::start(tree, &dir, &["-m", "[0]"])?;
    let mut rpc = Rpc::open(&daemon.socket)?;
    rpc.call("nvmf_create_transport", json!({"trtype": "TCP"}))?;
    let device = json!({"name": "Load", "num_blocks": 1 << 17, "block_size": 4096});
    rpc.call("bdev_malloc_create", device)?;
    rpc.call("nvmf_create_subsystem", json!({"nqn": NQN, "allow_any_host": true}))?;
    let namespace = json!({"nqn": NQN, "namespace": {"bdev_name": "Load", "nsid": 1}});
    rpc.call("nvmf_subsystem_add_ns", namespace)?;
    rpc.call("nvmf_subsystem_add_listener", json!({"nqn": NQN, "listen_address": at("0")}))?;
    let listed = rpc.call("nvmf_subsystem_get_listeners", json!({"nqn": NQN}))?;
    let port = listed[0]["address"]["trsvcid"].as_str().context("no port")?;
    let address = ["-a", "127.0.0.1", "-s", port, "-n", NQN].map(str::to_owned).to_vec();
    Ok((daemon, rpc, address))
}

/// Times of calls while the target's core does as much I/O as it can. The host that loads the target is
/// on the same core, so that another core is free.
fn answers_under_load(tree: &Tree, options: &Options) -> Result<Value> {
    let (daemon, mut rpc, address) = exporting(tree)?;
    let measure = || {
        let mut load =
            perf(tree, &address, "--cores 0 --rw randread --bs 4k --iodepth 32 --runtime 600")?;
        std::thread::sleep(Duration::from_secs(2));
        let mut times_ms = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let started = Instant::now();
            rpc.call("nvmf_get_subsystems", json!({"nqn": NQN}))?;
            times_ms.push(started.elapsed().as_secs_f64() * 1e3);
        }
        ensure!(load.alive(), "the load has ended");
        load.end();
        times_ms.sort_by(f64::total_cmp);
        Ok(times_ms)
    };
    let pids = [daemon.pid()];
    let (times_ms, rejected) = watched("control", options.noisy, &pids, measure)?;
    println!("{CALLS} calls with a core saturated ({rejected} rejected):");
    let p99 = times_ms[CALLS * 99 / 100];
    daemon.stop()?;
    Ok(at_most("P99 of a call", p99, CALL_MS_MAX, "ms"))
}

/// Adds and removes namespaces, listeners and hosts while another namespace is written and verified.
fn changes_under_load(tree: &Tree, options: &Options) -> Result<Vec<Value>> {
    let (daemon, mut rpc, address) = exporting(tree)?;
    let words = "--rw randrw --bs 4k --iodepth 16 --ramp_time 1 --verify --runtime 15";
    let quiet = || Perf::run(tree, &address, &words.split(' ').collect::<Vec<_>>());
    let (quiet, _) = watched("control", options.noisy, &[daemon.pid()], quiet)?;
    let device = json!({"name": "Guest", "num_blocks": DEVICE_BLOCKS, "block_size": 512});
    rpc.call("bdev_malloc_create", device)?;
    let mut load = perf(tree, &address, &format!("{words} -o json"))?;
    let mut before = Footprint::of(daemon.pid())?;
    for round in 0..CHANGES {
        if round == WARM_UP_CHANGES {
            before = Footprint::of(daemon.pid())?;
        }
        change(&mut rpc).with_context(|| format!("change {round}"))?;
    }
    let still_runs = load.alive();
    let ended = load.wait()?;
    std::thread::sleep(IDLE_THREAD_LIMIT);
    let after = Footprint::of(daemon.pid())?;
    ensure!(ended.success(), "I/O failed under changes: {}\n{}", ended.why(), ended.tail(10));
    ensure!(still_runs, "the load ended before the changes: they are too slow");
    let report: Value = serde_json::from_str(&ended.stdout)?;
    let busy = Perf::parse(&report["jobs"][0])?;
    daemon.stop()?;
    println!(
        "{CHANGES} times a namespace, a listener and a host: P99 {:.1} us, without {:.1} us",
        busy.p99_us, quiet.p99_us
    );
    println!("the daemon before and after: {before:?}, {after:?}");
    ensure!(
        after.descriptors <= before.descriptors && after.threads <= before.threads,
        "file descriptors or threads leak"
    );
    Ok(vec![
        at_most("P99 under changes", busy.p99_us / quiet.p99_us, P99_RATIO_MAX, "times"),
        at_most("growth", after.resident_mib - before.resident_mib, GROWTH_MIB_MAX, "MiB"),
    ])
}

/// The resources that a process holds.
#[derive(Debug)]
struct Footprint {
    descriptors: usize,
    threads: usize,
    resident_mib: f64,
}

impl Footprint {
    fn of(pid: u32) -> Result<Self> {
        let count = |what: &str| -> Result<usize> {
            Ok(std::fs::read_dir(format!("/proc/{pid}/{what}"))?.count())
        };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.trim().strip_suffix(" kB"));
        let kib: f64 = kib.context("no VmRSS")?.parse()?;
        Ok(Self { descriptors: count("fd")?, threads: count("task")?, resident_mib: kib / 1024.0 })
    }
}

fn change(rpc: &mut Rpc) -> Result<()> {
    let host = json!({"nqn": NQN, "host": "nqn.2014-08.org.nvmexpress:guest"});
    rpc.call(
        "nvmf_subsystem_add_ns",
        json!({"nqn": NQN, "namespace": {"bdev_name": "Guest", "nsid": 2}}),
    )?;
    rpc.call("nvmf_subsystem_add_host", host.clone())?;
    rpc.call("nvmf_subsystem_add_listener", json!({"nqn": NQN, "listen_address": at("44422")}))?;
    rpc.call("nvmf_subsystem_remove_listener", json!({"nqn": NQN, "listen_address": at("44422")}))?;
    rpc.call("nvmf_subsystem_remove_host", host)?;
    rpc.call("nvmf_subsystem_remove_ns", json!({"nqn": NQN, "nsid": 2}))?;
    Ok(())
}

fn perf(tree: &Tree, address: &[String], words: &str) -> Result<Running> {
    let words = address.iter().map(String::as_str).chain(words.split(' '));
    tree.raceline(std::iter::once("perf").chain(words))?.limit(900).start()
}

/// A connection for calls, which then start no process each.
pub(super) struct Rpc {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Rpc {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(CALL_LIMIT))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), stream })
    }

    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        let mut request = json!({"jsonrpc": "2.0", "id": 1, "method": method});
        if !params.is_null() {
            request["params"] = params;
        }
        self.stream.write_all(request.to_string().as_bytes())?;
        let mut values = serde_json::Deserializer::from_reader(&mut self.reader).into_iter();
        let mut reply: Value = values.next().context("the daemon closed the connection")??;
        ensure!(reply.get("error").is_none(), "{method}: {}", reply["error"]);
        Ok(reply["result"].take())
    }
}
