//! Several paths to one namespace: two listeners of a daemon, and two daemons over a third one's device, while
//! `raceline perf --verify` checks every block.

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
/// Three keep alive timeouts: how long writes of a lost daemon are held back at least. Daemons round the timeout up to
/// 10 s.
const HOLD: Duration = Duration::from_secs(30);
/// For how long states change under the work.
const CHANGES: Duration = Duration::from_secs(4);
/// How long a test waits for what must come.
const LIMIT: Duration = Duration::from_secs(60);
/// What the work moves after the last step of a test: reads and writes, more than 100 of each.
const WORTH: u64 = 2 << 20;

const BACKEND_NQN: &str = "nqn.2026-01.io.raceline:paths-backend";
/// The name of the device in a daemon that has memory, and in one that has it from a backend.
const MEMORY: &str = "M";
const REMOTE: &str = "Nvme0n1";

/// A daemon that exports a device by one or two listeners.
struct Daemon {
    served: Option<Served>,
    socket: PathBuf,
    device: &'static str,
    ports: Vec<String>,
}

impl Daemon {
    /// One with memory of its own.
    fn with_memory(scratch: &Scratch, listeners: usize) -> Self {
        Self::start(scratch, 1, MEMORY, listeners, |ask| {
            let params = json!({ "name": MEMORY, "num_blocks": BYTES / 4096, "block_size": 4096 });
            ask("bdev_malloc_create", params);
        })
    }

    /// One of several over the device of a backend, each with its number.
    fn over(scratch: &Scratch, number: u16, backend: &Backend) -> Self {
        Self::start(scratch, number, REMOTE, 1, |ask| {
            let params = json!({
                "name": "Nvme0", "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": backend.port,
                "subnqn": BACKEND_NQN, "multipath": "disable",
            });
            ask("bdev_nvme_attach_controller", params);
        })
    }

    fn start(
        scratch: &Scratch,
        number: u16,
        device: &'static str,
        listeners: usize,
        make: impl FnOnce(&dyn Fn(&str, Value) -> Value),
    ) -> Self {
        let socket = PathBuf::from(scratch.path(&format!("{number}.sock")));
        let served = Served::start(&socket, &[]);
        let range = (1000 * number + 1, 1000 * number + 999);
        let ask = |method: &str, params: Value| call(&socket, method, params).unwrap();
        ask("nvmf_create_transport", json!({ "trtype": "TCP" }));
        make(&ask);
        ask(
            "nvmf_create_subsystem",
            json!({
                "nqn": NQN, "allow_any_host": true, "ana_reporting": true, "serial_number": "PATHS",
                "min_cntlid": range.0, "max_cntlid": range.1,
            }),
        );
        let namespace =
            json!({ "bdev_name": device, "uuid": UUID, "nguid": UUID.replace('-', "") });
        ask("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": namespace }));
        let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
        for _ in 0..listeners {
            let params = json!({ "nqn": NQN, "listen_address": address });
            ask("nvmf_subsystem_add_listener", params);
        }
        let found = ask("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
        let port = |it: &Value| it["address"]["trsvcid"].as_str().unwrap().to_owned();
        let ports = found.as_array().unwrap().iter().map(port).collect();
        Self { served: Some(served), socket, device, ports }
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
        let stats = call(&self.socket, "bdev_get_iostat", json!({ "name": self.device })).unwrap();
        let bdev = &stats["bdevs"][0];
        let count = |name: &str| bdev[name].as_u64().unwrap();
        count("bytes_read") + count("bytes_written")
    }
}

/// A daemon with the device that others export.
struct Backend {
    _served: Served,
    port: String,
}

impl Backend {
    fn start(scratch: &Scratch) -> Self {
        let socket = PathBuf::from(scratch.path("backend.sock"));
        let served = Served::start(&socket, &[]);
        support::configure(&socket, BACKEND_NQN, BYTES / 512);
        let params = json!({ "nqn": BACKEND_NQN });
        let found = call(&socket, "nvmf_subsystem_get_listeners", params).unwrap();
        let port = found[0]["address"]["trsvcid"].as_str().unwrap().to_owned();
        Self { _served: served, port }
    }
}

/// Starts the work over these ports, which [`check`] ends; the first is the first path. Keep alive is short, so that writes
/// are held back for seconds only.
fn work(ports: &[&str], more: &[&str]) -> Running {
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
        "3600",
        "--verify",
        "--quiesce",
        "0.2",
        "-o",
        "json",
    ];
    let paths: Vec<String> = ports[1..].iter().map(|port| format!("127.0.0.1:{port}")).collect();
    for path in &paths {
        arguments.extend(["--path", path]);
    }
    if !more.contains(&"-k") {
        arguments.extend(["-k", "0.5"]);
    }
    arguments.extend(more);
    start(&arguments)
}

/// Ends the work, as if its time were over: what is in flight still has to succeed. It has seen no error, and moved data.
fn check(work: Running) -> Value {
    let output = work.interrupt();
    assert_eq!(output.code, Some(130), "{}\n{}", output.stderr, output.stdout);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{report:#}");
    for side in ["read", "write"] {
        assert!(job[side]["total_ios"].as_u64().unwrap() > 100, "{side}: {report:#}");
    }
    report
}

/// Waits until a daemon has moved this many bytes more.
fn wait_for_bytes(daemon: &Daemon, more: u64) {
    let (before, deadline) = (daemon.bytes(), Instant::now() + LIMIT);
    while daemon.bytes() < before + more {
        assert!(Instant::now() < deadline, "no work comes by this path");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn states_of_two_listeners_change_under_work() {
    let scratch = Scratch::new();
    let daemon = Daemon::with_memory(&scratch, 2);
    let [one, two] = &daemon.ports[..] else { panic!("two listeners") };
    let work = work(&[one, two], &["--policy", "round-robin"]);
    wait_for_bytes(&daemon, 1 << 20);
    let end = Instant::now() + CHANGES;
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
    wait_for_bytes(&daemon, WORTH);
    check(work);
}

#[test]
fn all_paths_inaccessible_is_waited_for() {
    let scratch = Scratch::new();
    let daemon = Daemon::with_memory(&scratch, 2);
    let [one, two] = &daemon.ports[..] else { panic!("two listeners") };
    let work = work(&[one, two], &[]);
    wait_for_bytes(&daemon, 1 << 20);
    daemon.set_state(one, "inaccessible");
    daemon.set_state(two, "inaccessible");
    let still = daemon.bytes();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(daemon.bytes(), still, "a closed path does nothing");
    daemon.set_state(two, "non_optimized");
    wait_for_bytes(&daemon, WORTH);
    check(work);
}

#[test]
fn the_other_daemon_goes_on_when_one_is_killed() {
    let scratch = Scratch::new();
    let backend = Backend::start(&scratch);
    let mut one = Daemon::over(&scratch, 1, &backend);
    let two = Daemon::over(&scratch, 2, &backend);
    let work = work(&[&one.ports[0], &two.ports[0]], &[]);
    wait_for_bytes(&one, 1 << 20);
    // While the first path was not connected yet, the other one may have had some of it, and may still be at it.
    eventually("the first path is the active one", || {
        let before = two.bytes();
        wait_for_bytes(&one, 256 << 10);
        two.bytes() == before
    });
    let killed = Instant::now();
    one.kill();
    wait_for_bytes(&two, WORTH);
    assert!(killed.elapsed() < HOLD, "reads go on at once");
    check(work);
    // Writes were in flight, and nobody could say that the daemon was dead.
    assert!(killed.elapsed() > HOLD, "they were sent again after {:?}", killed.elapsed());
}

#[test]
fn a_path_that_was_cut_is_used_again() {
    let scratch = Scratch::new();
    let backend = Backend::start(&scratch);
    let one = Daemon::over(&scratch, 1, &backend);
    let two = Daemon::over(&scratch, 2, &backend);
    let work = work(&[&one.ports[0], &two.ports[0]], &["--policy", "queue-depth"]);
    wait_for_bytes(&one, 256 << 10);
    wait_for_bytes(&two, 256 << 10);
    // All connections of one path are cut, and made again by the host.
    cut(&one);
    wait_for_bytes(&two, 64 << 10);
    wait_for_bytes(&one, WORTH);
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
fn writes_of_a_cut_path_wait_for_a_reset_only() {
    let scratch = Scratch::new();
    let daemon = Daemon::with_memory(&scratch, 2);
    let [one, two] = &daemon.ports[..] else { panic!("two listeners") };
    let work = work(&[one, two], &["-k", "5", "--policy", "round-robin"]);
    wait_for_bytes(&daemon, 1 << 20);
    let began = Instant::now();
    cut(&daemon);
    wait_for_bytes(&daemon, WORTH);
    check(work);
    assert!(began.elapsed() < HOLD / 2, "it took {:?}", began.elapsed());
}

#[test]
fn writes_of_a_path_that_another_daemon_does_not_know_wait_for_its_return_only() {
    let scratch = Scratch::new();
    let backend = Backend::start(&scratch);
    let one = Daemon::over(&scratch, 1, &backend);
    let two = Daemon::over(&scratch, 2, &backend);
    let work = work(&[&one.ports[0], &two.ports[0]], &["-k", "5", "--policy", "round-robin"]);
    wait_for_bytes(&one, 1 << 20);
    let began = Instant::now();
    cut(&one);
    wait_for_bytes(&two, WORTH);
    check(work);
    assert!(began.elapsed() < HOLD / 2, "it took {:?}", began.elapsed());
}

#[test]
fn a_path_to_other_data_is_refused() {
    let (scratch, other) = (Scratch::new(), Scratch::new());
    let one = Daemon::with_memory(&scratch, 1);
    let two = Daemon::with_memory(&other, 1);
    let params = json!({ "nqn": NQN, "nsid": 1 });
    call(&two.socket, "nvmf_subsystem_remove_ns", params).unwrap();
    let namespace = json!({ "bdev_name": MEMORY, "nguid": "11".repeat(16) });
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
    // The path that is up first counts.
    assert!((one.bytes() > 0) != (two.bytes() > 0), "{} {}", one.bytes(), two.bytes());
}

/// The paths of a device as a daemon shows them: controller number, and whether the path is current.
fn io_paths(socket: &std::path::Path) -> Vec<(u64, bool)> {
    let answer = call(socket, "bdev_nvme_get_io_paths", json!({ "name": REMOTE })).unwrap();
    let paths = answer["poll_groups"][0]["io_paths"].as_array().unwrap().clone();
    let path = |path: &Value| {
        assert_eq!(path["bdev_name"], REMOTE);
        (path["cntlid"].as_u64().unwrap_or(0), path["current"] == true)
    };
    paths.iter().map(path).collect()
}

/// Waits until a condition holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_daemon_has_two_paths_to_a_device() {
    let scratch = Scratch::new();
    let storage = Daemon::with_memory(&scratch, 2);
    let socket = PathBuf::from(scratch.path("front.sock"));
    let state = scratch.path("state");
    let front = Served::start(&socket, &["--state-dir", &state]);
    let ask = |method: &str, params: Value| call(&socket, method, params);
    let attach = |port: &str, more: Value| {
        let mut params = json!({
            "name": "Nvme0", "trtype": "TCP", "traddr": "127.0.0.1", "adrfam": "ipv4", "trsvcid": port,
            "subnqn": NQN,
        });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask("bdev_nvme_attach_controller", params)
    };
    let [one, two] = &storage.ports[..] else { panic!("two listeners") };
    let limits = json!({ "ctrlr_loss_timeout_sec": 30, "reconnect_delay_sec": 1 });
    assert_eq!(attach(one, limits).unwrap(), json!([REMOTE]));
    let again = attach(one, json!({})).unwrap_err().to_string();
    assert!(again.contains("with the specified network path"), "{again}");
    let disabled = attach(two, json!({ "multipath": "disable" })).unwrap_err().to_string();
    assert!(disabled.contains("multipath is disabled"), "{disabled}");
    let other = attach(two, json!({ "hdgst": true })).unwrap_err().to_string();
    assert!(other.contains("hdgst must be that of the first path"), "{other}");
    assert_eq!(attach(two, json!({ "multipath": "multipath" })).unwrap(), json!([REMOTE]));

    let paths = io_paths(&socket);
    assert_eq!((paths.len(), paths[0].1, paths[1].1), (2, true, false), "{paths:?}");
    let second = paths[1].0;
    let prefer = json!({ "name": REMOTE, "cntlid": second });
    ask("bdev_nvme_set_preferred_path", prefer).unwrap();
    assert_eq!(io_paths(&socket)[1], (second, true));
    storage.set_state(two, "non_optimized");
    eventually("the ANA state has no effect", || io_paths(&socket)[0].1);
    let policy = json!({ "name": REMOTE, "policy": "active_active", "selector": "queue_depth" });
    ask("bdev_nvme_set_multipath_policy", policy).unwrap();
    storage.set_state(two, "optimized");
    eventually("both are current", || io_paths(&socket).iter().all(|path| path.1));
    let found = ask("bdev_get_bdevs", json!({ "name": REMOTE })).unwrap();
    let specific = &found[0]["driver_specific"];
    assert_eq!(
        (&specific["mp_policy"], &specific["selector"]),
        (&json!("active_active"), &json!("queue_depth"))
    );
    assert_eq!(specific["nvme"].as_array().unwrap().len(), 2);
    let saved = ask("framework_get_config", json!({ "name": "bdev" })).unwrap().to_string();
    assert_eq!(saved.matches("bdev_nvme_attach_controller").count(), 2, "{saved}");
    assert!(!saved.contains("more_paths") && saved.contains("queue_depth"), "{saved}");
    drop(front.end(Signal::KILL));

    // One of the paths is enough for a start.
    let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": one });
    let listener = json!({ "nqn": NQN, "listen_address": address });
    call(&storage.socket, "nvmf_subsystem_remove_listener", listener.clone()).unwrap();
    let front = Served::start(&socket, &["--state-dir", &state]);
    eventually("the device is back", || ask("bdev_get_bdevs", json!({ "name": REMOTE })).is_ok());
    call(&storage.socket, "nvmf_subsystem_add_listener", listener).unwrap();
    eventually("the first path is back", || io_paths(&socket).iter().all(|path| path.1));

    let cntlid = io_paths(&socket)[0].0;
    let path = json!({ "name": "Nvme0", "cntlid": cntlid });
    ask("bdev_nvme_disable_controller", path.clone()).unwrap();
    eventually("the path is disabled", || io_paths(&socket).len() == 1);
    let states = ask("bdev_nvme_get_controllers", json!({ "name": "Nvme0" })).unwrap();
    assert_eq!(states[0]["ctrlrs"][1]["state"], "disabled");
    ask("bdev_nvme_enable_controller", path).unwrap();
    eventually("the path is enabled", || io_paths(&socket).iter().filter(|it| it.1).count() == 2);
    let first = json!({ "name": "Nvme0", "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": one });
    ask("bdev_nvme_detach_controller", first).unwrap();
    eventually("the path is detached", || io_paths(&socket).len() == 1);
    let saved = ask("framework_get_config", json!({ "name": "bdev" })).unwrap().to_string();
    assert_eq!(saved.matches("bdev_nvme_attach_controller").count(), 1, "{saved}");
    assert!(saved.contains(&format!("\"trsvcid\":\"{two}\"")), "{saved}");
    ask("bdev_nvme_detach_controller", json!({ "name": "Nvme0" })).unwrap();
    assert!(ask("bdev_get_bdevs", json!({ "name": REMOTE })).is_err());
    assert_eq!(front.end(Signal::TERM).code, Some(0));
}
