//! `raceline serve --take-over`: a new process goes on with the connections of a daemon, or the daemon goes on itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../target/tests/common/mod.rs"]
mod common;
#[path = "take_over/ends.rs"]
mod ends;
#[path = "take_over/forms.rs"]
mod forms;
#[path = "take_over/kept.rs"]
mod kept;
#[path = "take_over/state.rs"]
mod state;
mod support;

use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kept::Silent;
use raceline_control::hand_over::{FromDaemon, FromSuccessor, Hello, Wire, socket_of};
use raceline_initiator::{BlockingSession, Name, SessionConfig, TaskError};
use rustix::process::{Pid, Signal, getuid, kill_process};
use serde_json::{Value, json};
use support::{Running, call};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const IQN: &str = "iqn.2026-01.org.example:disk";
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n";
/// A user with no rights.
const NOBODY: u32 = 65534;

/// A daemon and the processes that have taken its place, in a directory of their own.
struct Place {
    directory: tempfile::TempDir,
    daemon: Child,
    port: String,
}

impl Place {
    /// A namespace in memory and one in a file, both of 4 MiB.
    fn new(more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let daemon = start(directory.path(), more);
        let mut place = Self { directory, daemon, port: String::new() };
        assert_eq!(place.wait_for_ready().unwrap(), place.daemon.id());
        let file = place.path("data.img");
        File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
        let memory = json!({ "name": "M", "num_blocks": 8192, "block_size": 512 });
        let aio = json!({ "name": "F", "filename": file, "block_size": 512 });
        for (method, params) in [
            ("nvmf_create_transport", json!({ "trtype": "TCP", "max_io_qpairs_per_ctrlr": 127 })),
            ("bdev_malloc_create", memory),
            ("bdev_aio_create", aio),
            ("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
            ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "M" } })),
            ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "F" } })),
            ("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": address })),
        ] {
            place.call(method, params);
        }
        let listeners = place.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
        place.port = listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("rpc.sock")
    }

    fn call(&self, method: &str, params: Value) -> Value {
        call(&self.socket(), method, params).unwrap()
    }

    /// The numbers and queues of its controllers: those of hosts that had to connect anew would be others.
    fn controllers(&self) -> Value {
        let mut all = self.call("nvmf_subsystem_get_controllers", json!({ "nqn": NQN }));
        let all = all.as_array_mut().unwrap();
        all.sort_by_key(|controller| controller["cntlid"].as_u64());
        Value::Array(std::mem::take(all))
    }

    /// Waits for the line of the process that was started last; gives its number.
    fn wait_for_ready(&mut self) -> Result<u32, String> {
        ready_line(&mut self.daemon)
    }

    /// A new process takes the place of the present one.
    fn take_over(&mut self, more: &[&str]) {
        let arguments: Vec<&str> = [&["--take-over"], more].concat();
        let successor = start(self.directory.path(), &arguments);
        let mut before = std::mem::replace(&mut self.daemon, successor);
        if let Err(why) = self.wait_for_ready() {
            panic!("{why}\nthe daemon said: {}", self.said());
        }
        assert_eq!(wait(&mut before), Some(0), "{}", self.said());
    }

    /// A new process fails to do so: what it says.
    fn refused(&self, command: &mut Command) -> String {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let code = wait(&mut child);
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert_eq!(code, Some(1), "{said}");
        said
    }

    /// What all daemons here have logged.
    fn said(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// A host whose queues read and write both namespaces, and check what they read, until [`end_load`].
    fn load(&self, queues: u16) -> Running {
        let queues = queues.to_string();
        let place = ["-a", "127.0.0.1", "-s", &self.port, "-n", NQN, "--namespace", "1,2"];
        let work = ["--rw", "randrw", "--bs", "4k", "--iodepth", "4", "--verify", "-i", &queues];
        let time = ["--ramp_time", "0", "--runtime", "3600", "-o", "json"];
        let load = support::start(&[&["perf"], &place[..], &work[..], &time[..]].concat());
        let deadline = Instant::now() + LIMIT;
        while !self.has_queues(&queues) {
            assert!(Instant::now() < deadline, "the load has not begun");
            std::thread::sleep(Duration::from_millis(10));
        }
        load
    }

    fn has_queues(&self, queues: &str) -> bool {
        let all = self.controllers();
        let connected =
            |controller: &Value| controller["num_io_qpairs"].as_u64() == queues.parse().ok();
        all.as_array().unwrap().iter().any(connected)
    }

    /// Reads that the namespaces have served.
    fn reads(&self) -> u64 {
        let stats = self.call("bdev_get_iostat", json!({}));
        let bdevs = stats["bdevs"].as_array().unwrap().iter();
        bdevs.map(|bdev| bdev["num_read_ops"].as_u64().unwrap()).sum()
    }

    /// Whether the daemon is there, and has done with all attempts before.
    fn still_serves(&self) -> bool {
        let Ok(wire) = Wire::connect(&socket_of(&self.socket())) else { return false };
        wire.limit(LIMIT).unwrap();
        let mut hello = Hello::of_this_program(None);
        hello.form += 1;
        wire.send(&FromSuccessor::Hello(hello)).is_ok()
            && matches!(wire.receive(), Ok(FromDaemon::Refused(_)))
    }

    /// Waits until a host has written that often, since the daemon has begun.
    fn wait_for_writes_of(&self, host: &str, count: u64) {
        let deadline = Instant::now() + LIMIT;
        let writes = || {
            let all = self.call("nvmf_get_stats", json!({}));
            let mut own = all["hosts"].as_array().unwrap().iter().filter(|h| h["hostnqn"] == host);
            own.next().map_or(0, |host| host["statistics"]["num_write_ops"].as_u64().unwrap())
        };
        while writes() < count {
            assert!(Instant::now() < deadline, "{host} does not write: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the load has read that much more.
    fn wait_for_reads(&self, count: u64) {
        let (before, deadline) = (self.reads(), Instant::now() + LIMIT);
        while self.reads() < before + count {
            assert!(Instant::now() < deadline, "the load stands still: {}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The program, whose log goes on in the file of its directory.
fn command(directory: &Path, more: &[&str]) -> Command {
    command_for(&directory.join("rpc.sock"), &directory.join("state"), more)
}

/// The program with another socket, or another state.
fn command_for(socket: &Path, state: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(support::program());
    command.arg("-v").arg("serve").arg("-r").arg(socket).arg("--state-dir").arg(state).args(more);
    command.stdin(Stdio::null()).env_remove("RACELINE_LOG").env("NO_COLOR", "1");
    command
}

fn start(directory: &Path, more: &[&str]) -> Child {
    let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
    let mut command = command(directory, more);
    command.stdout(Stdio::piped()).stderr(log).spawn().unwrap()
}

fn ready_line(child: &mut Child) -> Result<u32, String> {
    let stdout = child.stdout.take().unwrap();
    let (sender, line) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut first = String::new();
        let _ = BufReader::new(stdout).read_line(&mut first);
        let _ = sender.send(first);
    });
    let line = line.recv_timeout(LIMIT).map_err(|_| "it is not ready in time".to_owned())?;
    let ready: Value =
        serde_json::from_str(&line).map_err(|_| format!("it is not ready: {line:?}"))?;
    Ok(u32::try_from(ready["pid"].as_u64().unwrap()).unwrap())
}

fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < deadline, "it has not ended");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ends a load, which must have seen no error. Gives the longest time that a command has taken.
fn end_load(load: Running) -> Duration {
    let output = load.interrupt();
    let said = &output.stderr;
    assert_eq!(output.code, Some(130), "{said}");
    assert!(!said.contains("error") && !said.contains("reconnect"), "{said}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{job}");
    let longest = ["read", "write"].map(|kind| job[kind]["clat_ns"]["max"].as_f64().unwrap());
    Duration::from_secs_f64(longest[0].max(longest[1]) / 1e9)
}

/// The pauses that daemons have logged, the shortest first.
fn pauses(log: &str) -> Vec<Duration> {
    let values = log.lines().filter_map(|line| line.split("pause_us=").nth(1));
    let number = |text: &str| text.split_whitespace().next().unwrap().parse().unwrap();
    let mut all: Vec<Duration> = values.map(|v| Duration::from_micros(number(v))).collect();
    all.sort();
    all
}

fn run_under_load(times: usize, queues: u16) {
    let mut place = Place::new(&["--keep-ram"]);
    let load = place.load(queues);
    let before = place.controllers();
    for _ in 0..times {
        place.wait_for_reads(50);
        place.take_over(&["--keep-ram"]);
        assert_eq!(place.controllers(), before, "{}", place.said());
    }
    place.wait_for_reads(50);
    let longest = end_load(load);
    // A daemon logs its pause when hosts are served again.
    support::wait_for("the last line", || pauses(&place.said()).len() >= times);
    let said = place.said();
    assert!(!said.contains("not handed over"), "{said}");
    let pauses = pauses(&said);
    assert_eq!(pauses.len(), times, "{said}");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    // The nearest rank.
    let at = |percent: usize| ms(pauses[(times * percent).div_ceil(100).max(1) - 1]);
    println!(
        "{times} take-overs of {queues} queues: pause P50 {:.1} ms, P99 {:.1} ms, longest {:.1} ms; the slowest command took \
         {:.1} ms",
        at(50),
        at(99),
        at(100),
        ms(longest)
    );
    kill_process(Pid::from_child(&place.daemon), Signal::TERM).unwrap();
    assert_eq!(wait(&mut place.daemon), Some(0), "{}", place.said());
    assert!(!place.socket().exists() && !socket_of(&place.socket()).exists());
}

#[test]
fn hosts_see_a_pause_and_no_error() {
    run_under_load(3, 8);
}

#[test]
#[ignore = "takes minutes: what docs/lab says of pauses"]
fn hosts_see_a_hundred_pauses_and_no_error() {
    run_under_load(100, 63);
}

/// Plays a successor up to a step, and is gone then.
fn die_at(place: &Place, step: usize) {
    let wire = Wire::connect(&socket_of(&place.socket())).unwrap();
    wire.limit(LIMIT).unwrap();
    if step == 0 {
        return;
    }
    let state_dir = Some(place.path("state"));
    wire.send(&FromSuccessor::Hello(Hello::of_this_program(state_dir))).unwrap();
    if step == 1 {
        return;
    }
    let FromDaemon::Offer(offered) = wire.receive().unwrap() else { panic!("no offer") };
    if step == 2 {
        return;
    }
    let descriptors = wire.receive_descriptors(offered.descriptors()).unwrap();
    wire.send(&FromSuccessor::Ready).unwrap();
    if step == 3 {
        return;
    }
    let FromDaemon::State(state) = wire.receive().unwrap() else { panic!("no state") };
    assert!(state.sockets() > 1);
    if step == 4 {
        return;
    }
    let sockets = wire.receive_descriptors(state.sockets()).unwrap();
    if step == 5 {
        // Gone with all that it has got.
        drop((descriptors, sockets));
        return;
    }
    wire.send(&FromSuccessor::Failed("it only plays".to_owned())).unwrap();
}

#[test]
fn a_daemon_goes_on_when_its_successor_dies() {
    let mut place = Place::new(&["--keep-ram"]);
    let load = place.load(4);
    let before = place.controllers();
    for step in 0..=6 {
        die_at(&place, step);
        place.wait_for_reads(50);
        assert_eq!(place.controllers(), before, "step {step}");
        // A change waits until the daemon has noticed, and is then made.
        place.call("bdev_null_create", json!({ "name": "N", "num_blocks": 8, "block_size": 512 }));
        place.call("bdev_null_delete", json!({ "name": "N" }));
    }
    // Killed at any moment, it leaves no trace either. Its start takes two seconds, so that it is never faster.
    let silent = Silent::new(&place);
    for delay_ms in [0, 5, 20, 60, 120] {
        let mut successor = start(place.directory.path(), &["--take-over", "--keep-ram"]);
        std::thread::sleep(Duration::from_millis(delay_ms));
        successor.kill().unwrap();
        successor.wait().unwrap();
        assert!(place.still_serves(), "{delay_ms} ms: {}", place.said());
        place.wait_for_reads(50);
        assert_eq!(place.controllers(), before, "{delay_ms} ms");
    }
    let mut successor = silent.start_successor(&place);
    successor.kill().unwrap();
    successor.wait().unwrap();
    assert!(place.still_serves(), "{}", place.said());
    place.wait_for_reads(50);
    assert_eq!(place.controllers(), before);
    place.call("bdev_nvme_detach_controller", json!({ "name": "R" }));
    place.take_over(&["--keep-ram"]);
    assert_eq!(place.controllers(), before);
    place.wait_for_reads(50);
    end_load(load);
}

#[test]
fn a_successor_that_cannot_be_one_is_told_why() {
    let place = Place::new(&[]);
    let directory = place.directory.path();
    let load = place.load(2);
    let refused = |words: &[&str], said: String| {
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        place.wait_for_reads(20);
    };
    // The contents of memory would be lost.
    let said = place.refused(&mut command(directory, &["--take-over"]));
    refused(&["goes on", "--keep-ram"], said);
    // Another state.
    let other = directory.join("other");
    let said = place.refused(&mut command_for(&place.socket(), &other, &["--take-over"]));
    refused(&["goes on", "--state-dir", "give it the same"], said);
    // No daemon.
    let (nowhere, state) = (directory.join("nowhere.sock"), directory.join("state"));
    let said = place.refused(&mut command_for(&nowhere, &state, &["--take-over"]));
    refused(&["no daemon can be met", "-r"], said);
    // Another version.
    let wire = Wire::connect(&socket_of(&place.socket())).unwrap();
    wire.limit(LIMIT).unwrap();
    let mut hello = Hello::of_this_program(Some(place.path("state")));
    hello.connections += 1;
    hello.version = "9.9.9".to_owned();
    wire.send(&FromSuccessor::Hello(hello)).unwrap();
    let FromDaemon::Refused(said) = wire.receive().unwrap() else { panic!("not refused") };
    drop(wire);
    refused(&["version 9.9.9", "end the daemon and start"], said);
    // Something else altogether.
    let wire = Wire::connect(&socket_of(&place.socket())).unwrap();
    wire.limit(LIMIT).unwrap();
    wire.send(&json!({ "a": ["later", "form"] })).unwrap();
    let FromDaemon::Refused(said) = wire.receive().unwrap() else { panic!("not refused") };
    drop(wire);
    refused(&["unknown version"], said);
    end_load(load);
}

#[test]
fn another_user_takes_nothing_over() {
    if !getuid().is_root() {
        return eprintln!("SKIPPED: only root can be another user");
    }
    let place = Place::new(&["--keep-ram"]);
    let mut command = command(place.directory.path(), &["--take-over", "--keep-ram"]);
    let said = place.refused(command.uid(NOBODY));
    assert!(said.contains("run this as the same user"), "{said}");
    assert!(place.controllers().as_array().unwrap().is_empty());
}

/// Exports devices as the LUNs of a target node; gives the port.
fn export_by_iscsi(place: &Place, devices: &[&str]) -> String {
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    place.call("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals }));
    let any = json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["127.0.0.0/8"] });
    place.call("iscsi_create_initiator_group", any);
    let maps = json!([{ "pg_tag": 1, "ig_tag": 1 }]);
    let lun = |(number, device)| json!({ "bdev_name": device, "lun_id": number });
    let luns: Vec<Value> = devices.iter().enumerate().map(lun).collect();
    let node = json!({ "name": IQN, "alias_name": "", "pg_ig_maps": maps, "luns": luns,
        "queue_depth": 64, "disable_chap": true });
    place.call("iscsi_create_target_node", node);
    let groups = place.call("iscsi_get_portal_groups", Value::Null);
    groups[0]["portals"][0]["port"].as_str().unwrap().to_owned()
}

#[test]
fn initiators_of_iscsi_log_in_anew() {
    let mut place = Place::new(&["--keep-ram"]);
    let port = export_by_iscsi(&place, &["M"]);
    let load = support::start(&[
        "perf",
        "--iscsi",
        "-a",
        "127.0.0.1",
        "-s",
        &port,
        "-n",
        IQN,
        "--rw",
        "randrw",
        "--iodepth",
        "4",
        "--verify",
        "-i",
        "2",
        "--ramp_time",
        "0",
        "--runtime",
        "3600",
        "-o",
        "json",
    ]);
    for _ in 0..2 {
        place.wait_for_reads(50);
        place.take_over(&["--keep-ram"]);
    }
    place.wait_for_reads(50);
    let output = load.interrupt();
    assert_eq!(output.code, Some(130), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report["jobs"][0]["error"], 0, "{report}");
    // Two sessions, two times, each after a logout that they were asked for.
    assert_eq!(report["jobs"][0]["reconnects"], 4, "{report}");
    let words = "not handed over, as iSCSI sessions are not";
    support::wait_for(words, || place.said().matches(words).count() >= 2);
}

/// A session of an initiator, for commands about reservations.
struct Initiator(BlockingSession);

impl Initiator {
    fn login(port: &str, name: &str, lun: u16) -> Self {
        let address = format!("127.0.0.1:{port}").parse().unwrap();
        let name = Name::new(&format!("iqn.2026-01.org.example:{name}")).unwrap();
        let config = SessionConfig::new(address, name, Some(Name::new(IQN).unwrap()));
        Self(BlockingSession::connect(SessionConfig { lun, ..config }).unwrap())
    }

    /// Unit attentions, and sessions that end while a command is under way, are no answer.
    fn until_answered<T>(
        &self,
        mut command: impl FnMut() -> Result<T, TaskError>,
    ) -> Result<T, u8> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match command() {
                Ok(answer) => return Ok(answer),
                Err(TaskError::Status { status: 0x08 }) => {}
                Err(TaskError::Status { status }) => return Err(status),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// PERSISTENT RESERVE OUT.
    fn reserve_out(&self, action: u8, kind: u8, keys: [u64; 2]) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
        let mut list = vec![0; 24];
        list[..8].copy_from_slice(&keys[0].to_be_bytes());
        list[8..16].copy_from_slice(&keys[1].to_be_bytes());
        self.until_answered(|| self.0.send(cdb, list.clone())).unwrap();
    }

    /// PERSISTENT RESERVE IN: the generation, and all keys with ports, or the reservation.
    fn reserve_in(&self, action: u8) -> Vec<u8> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[7]) = (0x5e, action, 4);
        self.until_answered(|| self.0.inquire(cdb, 1024)).unwrap()
    }

    fn write(&self) -> Result<(), u8> {
        let cdb = raceline_initiator::cdb::write(0, 1, false);
        self.until_answered(|| self.0.send(cdb, vec![1; 512]))
    }
}

/// Initiators find their registrations and reservations after they have logged in anew: on a LUN of its own, and on one
/// over a namespace, which keeps hosts out as before.
#[test]
fn reservations_of_initiators_go_over() {
    const CONFLICT: u8 = 0x18;
    const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
    let mut place = Place::new(&["--keep-ram"]);
    let alone = json!({ "name": "L", "num_blocks": 8192, "block_size": 512 });
    place.call("bdev_malloc_create", alone);
    let port = export_by_iscsi(&place, &["M", "L"]);
    let pairs = [0, 1].map(|lun| {
        let [holder, stranger] =
            ["holder", "stranger"].map(|name| Initiator::login(&port, name, lun));
        holder.reserve_out(0, 0, [0, 0x11]);
        stranger.reserve_out(0, 0, [0, 0x22]);
        stranger.reserve_out(0, 0, [0x22, 0]);
        holder.reserve_out(1, WRITE_EXCLUSIVE_REGISTRANTS, [0x11, 0]);
        (holder, stranger)
    });
    let at = place.port.clone();
    let host_writes = || {
        let arguments = ["write", "-a", "127.0.0.1", "-s", &at, "-n", NQN];
        support::run_with_input(&arguments, &[1; 512])
    };
    let state = |initiator: &Initiator| [1, 3].map(|action| initiator.reserve_in(action));
    let before: Vec<_> = pairs.iter().map(|(holder, _)| state(holder)).collect();
    assert!(before.iter().flatten().all(|answer| answer[..4] == [0, 0, 0, 3]), "{before:?}");
    let refused = host_writes();
    assert_ne!(refused.code, Some(0), "the reservation binds hosts");
    for _ in 0..2 {
        place.take_over(&["--keep-ram"]);
        for ((holder, stranger), before) in pairs.iter().zip(&before) {
            assert_eq!(state(holder), *before);
            assert_eq!(stranger.write(), Err(CONFLICT));
            holder.write().unwrap();
        }
    }
    let still = host_writes();
    assert_eq!((still.code, still.stderr), (refused.code, refused.stderr));
    // What comes next is made of what has gone over.
    for (holder, stranger) in &pairs {
        holder.reserve_out(3, 0, [0x11, 0]);
        assert_eq!(holder.reserve_in(0), [0, 0, 0, 4, 0, 0, 0, 0]);
        stranger.write().unwrap();
    }
    let output = host_writes();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
}

/// A host over TLS, whose keys stay in the process: it makes its connections anew, and no command of its fails.
#[test]
fn hosts_over_tls_connect_anew() {
    let mut place = Place::new(&["--keep-ram"]);
    let host = "nqn.2014-08.org.example:friend";
    let key = place.path("key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let nqn = "nqn.2016-06.io.spdk:cnode2";
    let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
    let listener = json!({ "nqn": nqn, "listen_address": address, "secure_channel": true });
    let memory = json!({ "name": "T", "num_blocks": 8192, "block_size": 512 });
    for (method, params) in [
        ("bdev_malloc_create", memory),
        ("nvmf_create_subsystem", json!({ "nqn": nqn, "ana_reporting": true })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": { "bdev_name": "T" } })),
        ("keyring_file_add_key", json!({ "name": "key", "path": key })),
        ("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": host, "psk": "key" })),
        ("nvmf_subsystem_add_listener", listener),
    ] {
        place.call(method, params);
    }
    let listeners = place.call("nvmf_subsystem_get_listeners", json!({ "nqn": nqn }));
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    let key = key.to_str().unwrap();
    let to =
        ["-a", "127.0.0.1", "-s", port, "-n", nqn, "-q", host, "--tls-psk", key, "--multipath"];
    let work = ["--rw", "randrw", "--bs", "4k", "--iodepth", "4", "--verify", "-i", "2"];
    let time = ["--ramp_time", "0", "--runtime", "3600", "-o", "json"];
    let plain = place.load(2);
    let load = support::start(&[&["perf"], &to[..], &work[..], &time[..]].concat());
    for _ in 0..2 {
        place.wait_for_writes_of(host, 20);
        place.take_over(&["--keep-ram"]);
    }
    place.wait_for_writes_of(host, 20);
    let output = load.interrupt();
    assert_eq!(output.code, Some(130), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{report}");
    assert!(job["reconnects"].as_u64().unwrap() >= 2, "{report}");
    // Those without TLS noticed nothing.
    end_load(plain);
    let said = place.said();
    assert_eq!(said.matches("not handed over, as the keys of TLS").count(), 2, "{said}");
}

#[test]
fn a_signal_starts_the_successor() {
    let mut place = Place::new(&["--keep-ram", "--sandbox", "off"]);
    let load = place.load(2);
    let before = place.controllers();
    place.wait_for_reads(20);
    kill_process(Pid::from_child(&place.daemon), Signal::USR2).unwrap();
    assert_eq!(wait(&mut place.daemon), Some(0), "{}", place.said());
    place.wait_for_reads(20);
    assert_eq!(place.controllers(), before);
    end_load(load);
    // It is no child of this test: it ends by a call.
    place.call("spdk_kill_instance", json!({ "sig_name": "SIGTERM" }));
    let deadline = Instant::now() + LIMIT;
    while place.socket().exists() {
        assert!(Instant::now() < deadline, "it has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_detached_successor_comes_back_when_it_is_ready() {
    let mut place = Place::new(&["--keep-ram"]);
    let output = command(place.directory.path(), &["--take-over", "--keep-ram", "--detach"])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    let ready: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(wait(&mut place.daemon), Some(0), "{}", place.said());
    assert!(ready["pid"].as_u64().is_some());
    // One that has nothing to take over gives back why.
    let (nowhere, state) = (place.path("nowhere.sock"), place.path("state"));
    let said = place.refused(&mut command_for(&nowhere, &state, &["--take-over", "--detach"]));
    assert!(said.contains("no daemon can be met"), "{said}");
    place.call("spdk_kill_instance", json!({ "sig_name": "SIGTERM" }));
}
