//! Several paths to one namespace: two listeners of a daemon, and two daemons over one file, while `raceline perf
//! --verify` checks every block.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Running, Scratch, Served, call, start};

const NQN: &str = "nqn.2026-01.io.raceline:paths";
const UUID: &str = "6e0ff3a5-93cd-4f5f-8c1c-6f5c3c4f3c01";
/// Bytes of the namespace: each block is written and read several times in a run.
const BYTES: u64 = 8 << 20;
/// How long the work goes on.
const RUNTIME: Duration = Duration::from_secs(6);

/// A daemon that exports the file by one or two listeners.
struct Daemon {
    served: Option<Served>,
    socket: PathBuf,
    ports: Vec<String>,
}

impl Daemon {
    fn start(scratch: &Scratch, number: u16, listeners: usize) -> Self {
        let socket = PathBuf::from(scratch.path(&format!("{number}.sock")));
        let served = Served::start(&socket, &[]);
        let file = scratch.path("data");
        let range = (1000 * number + 1, 1000 * number + 999);
        let ask = |method: &str, params: Value| call(&socket, method, params).unwrap();
        ask("nvmf_create_transport", json!({ "trtype": "TCP" }));
        ask(
            "bdev_aio_create",
            json!({ "name": "D", "filename": file, "block_size": 4096, "buffered": true }),
        );
        ask(
            "nvmf_create_subsystem",
            json!({
                "nqn": NQN, "allow_any_host": true, "ana_reporting": true, "serial_number": "PATHS",
                "min_cntlid": range.0, "max_cntlid": range.1,
            }),
        );
        let namespace = json!({ "bdev_name": "D", "uuid": UUID, "nguid": UUID.replace('-', "") });
        ask("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": namespace }));
        let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
        for _ in 0..listeners {
            let params = json!({ "nqn": NQN, "listen_address": address });
            ask("nvmf_subsystem_add_listener", params);
        }
        let found = ask("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
        let port = |it: &Value| it["address"]["trsvcid"].as_str().unwrap().to_owned();
        let ports = found.as_array().unwrap().iter().map(port).collect();
        Self { served: Some(served), socket, ports }
    }

    /// Sets the state of a listener for all groups.
    fn set_state(&self, port: &str, state: &str) {
        let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": port });
        let params = json!({ "nqn": NQN, "listen_address": address, "ana_state": state });
        call(&self.socket, "nvmf_subsystem_listener_set_ana_state", params).unwrap();
    }

    fn kill(&mut self) {
        drop(self.served.take().unwrap().end(Signal::KILL));
    }

    /// Requests that it has answered, by bytes of reads and writes.
    fn bytes(&self) -> u64 {
        let stats = call(&self.socket, "bdev_get_iostat", json!({ "name": "D" })).unwrap();
        let bdev = &stats["bdevs"][0];
        let count = |name: &str| bdev[name].as_u64().unwrap();
        count("bytes_read") + count("bytes_written")
    }
}

fn scratch() -> Scratch {
    let scratch = Scratch::new();
    scratch.file("data", &vec![0; usize::try_from(BYTES).unwrap()]);
    scratch
}

/// Starts the work over these ports; the first is the first path. Keep alive is short, so that writes are held back for
/// seconds only.
fn work(ports: &[&str], more: &[&str]) -> Running {
    let runtime = RUNTIME.as_secs().to_string();
    let mut arguments = vec![
        "perf",
        "-a",
        "127.0.0.1",
        "-s",
        ports[0],
        "-n",
        NQN,
        "--rw",
        "randrw",
        "--bs",
        "4k",
        "--iodepth",
        "8",
        "-i",
        "2",
        "--ramp_time",
        "0",
        "--runtime",
        &runtime,
        "--verify",
        "-k",
        "0.5",
        "--quiesce",
        "0.2",
        "-o",
        "json",
    ];
    let paths: Vec<String> = ports[1..].iter().map(|port| format!("127.0.0.1:{port}")).collect();
    for path in &paths {
        arguments.extend(["--path", path]);
    }
    arguments.extend(more);
    start(&arguments)
}

/// The work has ended without an error, and moved data.
fn check(work: Running) -> Value {
    let output = work.finish();
    assert_eq!(output.code, Some(0), "{}\n{}", output.stderr, output.stdout);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let job = &report["jobs"][0];
    for side in ["read", "write"] {
        assert!(job[side]["total_ios"].as_u64().unwrap() > 100, "{side}: {report:#}");
    }
    report
}

/// Waits until a daemon has moved this many bytes more.
fn wait_for_bytes(daemon: &Daemon, more: u64) {
    let (before, deadline) = (daemon.bytes(), Instant::now() + Duration::from_secs(20));
    while daemon.bytes() < before + more {
        assert!(Instant::now() < deadline, "no work comes by this path");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn states_of_two_listeners_change_under_work() {
    let scratch = scratch();
    let daemon = Daemon::start(&scratch, 1, 2);
    let [one, two] = &daemon.ports[..] else { panic!("two listeners") };
    let work = work(&[one, two], &["--policy", "round-robin"]);
    wait_for_bytes(&daemon, 1 << 20);
    let end = Instant::now() + RUNTIME - Duration::from_secs(2);
    while Instant::now() < end {
        for (port, state) in [
            (one, "inaccessible"),
            (one, "non_optimized"),
            (two, "inaccessible"),
            (one, "optimized"),
            (two, "optimized"),
        ] {
            daemon.set_state(port, state);
            wait_for_bytes(&daemon, 64 << 10);
        }
    }
    check(work);
}

#[test]
fn all_paths_inaccessible_is_waited_for() {
    let scratch = scratch();
    let daemon = Daemon::start(&scratch, 1, 2);
    let [one, two] = &daemon.ports[..] else { panic!("two listeners") };
    let work = work(&[one, two], &[]);
    wait_for_bytes(&daemon, 1 << 20);
    daemon.set_state(one, "inaccessible");
    daemon.set_state(two, "inaccessible");
    let still = daemon.bytes();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(daemon.bytes(), still, "a closed path does nothing");
    daemon.set_state(two, "non_optimized");
    wait_for_bytes(&daemon, 256 << 10);
    check(work);
}

#[test]
fn the_other_daemon_goes_on_when_one_is_killed() {
    let scratch = scratch();
    let (mut one, two) = (Daemon::start(&scratch, 1, 1), Daemon::start(&scratch, 2, 1));
    let work = work(&[&one.ports[0], &two.ports[0]], &[]);
    wait_for_bytes(&one, 1 << 20);
    assert_eq!(two.bytes(), 0, "the first path is the active one");
    one.kill();
    wait_for_bytes(&two, 1 << 20);
    check(work);
}

#[test]
fn a_restarted_daemon_is_used_again() {
    let scratch = scratch();
    let (one, two) = (Daemon::start(&scratch, 1, 1), Daemon::start(&scratch, 2, 1));
    let work = work(&[&one.ports[0], &two.ports[0]], &["--policy", "queue-depth"]);
    wait_for_bytes(&one, 256 << 10);
    wait_for_bytes(&two, 256 << 10);
    // All connections of one path are cut, and made again by the host.
    cut(&one);
    wait_for_bytes(&two, 64 << 10);
    wait_for_bytes(&one, 64 << 10);
    check(work);
}

/// Ends all connections of a daemon's subsystem, as a reset of them by the network does.
fn cut(daemon: &Daemon) {
    let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": daemon.ports[0] });
    let params = json!({ "nqn": NQN, "listen_address": address });
    call(&daemon.socket, "nvmf_subsystem_remove_listener", params.clone()).unwrap();
    call(&daemon.socket, "nvmf_subsystem_add_listener", params).unwrap();
}

#[test]
fn a_path_to_other_data_is_refused() {
    let (scratch, other) = (scratch(), scratch());
    let one = Daemon::start(&scratch, 1, 1);
    let two = Daemon::start(&other, 2, 1);
    let params = json!({ "nqn": NQN, "nsid": 1 });
    call(&two.socket, "nvmf_subsystem_remove_ns", params).unwrap();
    let namespace = json!({ "bdev_name": "D", "nguid": "11".repeat(16) });
    let params = json!({ "nqn": NQN, "namespace": namespace });
    call(&two.socket, "nvmf_subsystem_add_ns", params).unwrap();
    let path = format!("127.0.0.1:{}", two.ports[0]);
    let output = support::run(&[
        "perf",
        "-a",
        "127.0.0.1",
        "-s",
        &one.ports[0],
        "-n",
        NQN,
        "--path",
        &path,
        "--runtime",
        "2",
        "--ramp_time",
        "0",
    ]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("is no path to the same namespaces"), "{}", output.stderr);
    assert_eq!((one.bytes() > 0, two.bytes()), (true, 0));
}
