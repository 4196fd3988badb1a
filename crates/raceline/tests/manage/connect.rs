//! Disks of `raceline connect` on a namespace of a daemon.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{Daemon, NQN};

/// A daemon that exports 16 MiB, and its port.
fn target() -> (Daemon, String) {
    target_of(NQN)
}

/// The same by another name.
pub(super) fn target_of(nqn: &str) -> (Daemon, String) {
    let daemon = Daemon::start();
    daemon.ok(&["bdev", "add", "ram:16M", "-n", "m0"]);
    daemon.ok(&["subsys", "add", nqn, "--allow-any-host"]);
    daemon.ok(&["ns", "add", nqn, "m0"]);
    daemon.ok(&["port", "add", nqn, "127.0.0.1:0"]);
    let port = daemon.json(&["port", "ls"])[0]["trsvcid"].as_str().unwrap().to_owned();
    (daemon, port)
}

/// A running disk, which is ended with its test.
struct Disk {
    child: Child,
    ready: Value,
}

impl Disk {
    fn start(daemon: &Daemon, words: &[&str]) -> Self {
        let socket = daemon.file("disk.sock");
        let mut command = daemon.command();
        command.args(["connect", "--as", "nbd", "--socket", &socket]).args(words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line);
        if ready.is_err() {
            let _ = child.kill();
        }
        Self { child, ready: ready.unwrap() }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of the queues that the target has.
fn queues(daemon: &Daemon) -> Vec<u64> {
    queues_of(daemon, NQN)
}

fn queues_of(daemon: &Daemon, nqn: &str) -> Vec<u64> {
    let shown = daemon.ok(&["rpc", "nvmf_subsystem_get_qpairs", nqn]);
    let shown: Vec<Value> = serde_json::from_str(&shown).unwrap();
    let mut found: Vec<u64> = shown.iter().map(|queue| queue["qid"].as_u64().unwrap()).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_line_of_nvme_cli_makes_a_disk() {
    let (daemon, port) = target();
    let line =
        ["-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-n", NQN, "-w", "127.0.0.1", "-f", "lo"];
    let more = ["-T", "8", "-Q", "16", "-k", "30", "-l", "600", "-c", "2", "-d", "-D", "-g", "-G"];
    let disk = Disk::start(&daemon, &[&line[..], &more].concat());
    assert_eq!(disk.ready["bytes"], 16 << 20);
    assert_eq!(queues(&daemon), [0, 1]);
    drop(disk);

    // What -O prints is a file by which the same disk is found without its address.
    let file = daemon.file("config.json");
    let dumped = daemon.ok(&[&["connect", "--as", "nbd", "-O"][..], &line, &more].concat());
    std::fs::write(&file, &dumped).unwrap();
    let disk = Disk::start(&daemon, &["-n", NQN, "-J", &file]);
    assert_eq!(disk.ready["bytes"], 16 << 20);
    let dumped_again = daemon.ok(&["connect", "--as", "nbd", "-O", "-n", NQN, "-J", &file]);
    assert_eq!(dumped_again, dumped);
}

#[test]
fn a_disk_has_a_core_for_each_queue_and_writes_have_their_own() {
    let (daemon, port) = target();
    let line = ["-a", "127.0.0.1", "-s", &port, "-n", NQN];
    // A disk is ready before the last of its queues.
    let has = |wanted: &[u64]| super::wait_for(|| queues(&daemon) == wanted);
    let disk = Disk::start(&daemon, &[&line[..], &["-i", "2", "-W", "2"]].concat());
    has(&[0, 1, 2, 3, 4]);
    drop(disk);
    // The queues are in a file, which a line can change.
    let file = daemon.file("config.json");
    let dump = ["connect", "--as", "nbd", "-O", "-i", "2", "-W", "1"];
    std::fs::write(&file, daemon.ok(&[&dump[..], &line].concat())).unwrap();
    let wait = || super::wait_for(|| queues(&daemon).is_empty());
    wait();
    let disk = Disk::start(&daemon, &["-n", NQN, "-J", &file]);
    has(&[0, 1, 2, 3]);
    drop(disk);
    wait();
    let disk = Disk::start(&daemon, &["-n", NQN, "-J", &file, "-i", "1"]);
    has(&[0, 1, 2]);
    drop(disk);
    wait();
    // With queues for polling, on the line and in a file.
    let disk = Disk::start(&daemon, &[&line[..], &["-i", "2", "-P", "1"]].concat());
    has(&[0, 1, 2, 3]);
    drop(disk);
    let dump = ["connect", "--as", "nbd", "-O", "-i", "2", "-W", "2", "-P", "2"];
    let dumped = daemon.ok(&[&dump[..], &line].concat());
    assert!(dumped.contains("\"nr_poll_queues\": 2"), "{dumped}");
    std::fs::write(&file, dumped).unwrap();
    wait();
    let disk = Disk::start(&daemon, &["-n", NQN, "-J", &file]);
    has(&[0, 1, 2, 3, 4, 5, 6]);
    drop(disk);
    for (more, says) in [
        (&["-i", "2", "--cores", "0"][..], "--cores has 1 of them"),
        (&["-P", "2"], "for polling beside that of -i, so there are 1 at most"),
        (&["-W", "2"], "there are 1 at most"),
    ] {
        let words = [&["connect", "--as", "nbd"][..], &line, more].concat();
        let output = daemon.output(&words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(says), "{more:?}: {error}");
    }
    let words = ["connect", "--as", "nbd", "--bdev", "ram:1M", "-i", "2"];
    let output = daemon.output(&words);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_daemon_connects_with_the_options_that_it_has() {
    let (target, port) = target();
    let daemon = Daemon::start();
    let all = ["connect-all", "-a", "127.0.0.1", "-s", &port];
    for (more, says) in [
        (&["-W", "2"][..], "--nr-write-queues"),
        (&["-P", "2"], "--nr-poll-queues"),
        (&["-Q", "64"], "--queue-size"),
        (&["-T", "8"], "--tos: "),
        (&["-k", "9"], "keep_alive_timeout_ms"),
        (&["-i", "2", "--persistent"], "--persistent cannot have --nr-io-queues"),
        (&["-F", "0"], "the least is 1 second"),
        (&["--ktls", "auto"], "--ktls: "),
        (&["--tls-identity", "0"], "--tls-identity: "),
        (&["--tls-compat"], "--tls-compat: "),
        (&["--dhchap-digests", "sha384"], "--dhchap-digests: "),
        (&["--dhchap-dhgroups", "null", "--persistent"], "bdev_nvme_set_options"),
        (&["--policy", "numa"], "--policy: every address"),
        (&["--quiesce", "1"], "--quiesce: "),
        (&["-I", OTHER_ID], "-I: a daemon takes the UUID in the name of the host"),
        (&["-I", OTHER_ID, "--persistent"], "reservations would be another host's"),
    ] {
        let output = daemon.output(&[&all[..], more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(says), "{more:?}: {error}");
    }
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{OTHER_ID}");
    let more =
        ["-i", "3", "-f", "lo", "--sock-priority", "4", "-F", "7", "-q", &host, "-I", OTHER_ID];
    let output = daemon.output(&[&all[..], &more].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let saved = daemon.ok(&["config", "save", "-"]);
    for part in [
        "\"num_io_queues\": 3",
        "\"priority\": \"4\"",
        "\"hostaddr\": \"127.0.0.1\"",
        "\"fast_io_fail_timeout_sec\": 7",
    ] {
        assert!(saved.contains(part), "{part}: {saved}");
    }
    drop(daemon);
    drop(target);
}

/// An identifier of a host, which no name here has.
const OTHER_ID: &str = "8a1b2c3d-0000-4000-8000-0000000000ff";

/// What `connect-all` says on standard error.
fn notes(daemon: &Daemon, words: &[&str]) -> String {
    let output = daemon.output(&[&["connect-all"], words].concat());
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    notes
}

#[test]
fn what_a_daemon_cannot_have_of_a_file_is_named() {
    let (target, port) = target();
    let daemon = Daemon::start();
    let file = daemon.file("config.json");
    let text = serde_json::json!([{
        "hostnqn": "nqn.2014-08.org.example:h", "hostid": OTHER_ID,
        "subsystems": [{ "nqn": NQN, "ports": [{
            "transport": "tcp", "traddr": "127.0.0.1", "trsvcid": port, "keep_alive_tmo": 7, "tos": 8,
            "queue_size": 64, "nr_write_queues": 0, "nr_io_queues": 2, "ctrl_loss_tmo": 60,
        }]}],
    }]);
    std::fs::write(&file, text.to_string()).unwrap();
    let said = notes(&daemon, &["--config", &file]);
    for member in ["keep_alive_tmo", "tos", "queue_size", "hostid"] {
        let says = format!("127.0.0.1:{port}: {member} is passed over: ");
        assert!(said.contains(&says), "{member}: {said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");

    // The same of lines, and for a service that the daemon follows.
    let lines = daemon.file("discovery.conf");
    let line = format!(
        "-t tcp -a 127.0.0.1 -s {port} -k 9 -T 8 -Q 64 -W 2 --ktls=auto --tls-compat --quiesce 1"
    );
    std::fs::write(&lines, format!("{line} -l 60 --fast-io-fail-tmo 5\n")).unwrap();
    let follower = Daemon::start();
    let followed = notes(&follower, &["--config", &lines, "--persistent"]);
    let once = notes(&daemon, &["--config", &lines]);
    for said in [&followed, &once] {
        for member in [
            "keep_alive_tmo",
            "tos",
            "queue_size",
            "nr_write_queues",
            "ktls",
            "tls_compat",
            "quiesce",
        ] {
            let says = format!("127.0.0.1:{port}: {member} is passed over: ");
            assert!(said.contains(&says), "{member}: {said}");
        }
        assert_eq!(said.lines().count(), 7, "{said}");
    }
    let services = follower.ok(&["rpc", "framework_get_config", "bdev"]);
    let start = services.split("bdev_nvme_start_discovery").nth(1).unwrap();
    assert!(start.contains("\"fast_io_fail_timeout_sec\": 5"), "{services}");
    // Subsystems of a file are no services that could be followed.
    let output = follower.output(&["connect-all", "--config", &file, "--persistent"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("{NQN} at 127.0.0.1:{port} is passed over")), "{error}");
    // A service of a file that has the time for what it offers.
    let text = text.to_string().replace("\"tos\":8", "\"fast_io_fail_tmo\":6");
    let text = text.replace(NQN, "nqn.2014-08.org.nvmexpress.discovery");
    std::fs::write(&file, text).unwrap();
    let other = Daemon::start();
    let said = notes(&other, &["--config", &file]);
    assert!(said.contains("keep_alive_tmo") && !said.contains("fast_io_fail_tmo"), "{said}");
    let saved = other.ok(&["config", "save", "-"]);
    assert!(saved.contains("\"fast_io_fail_timeout_sec\": 6"), "{saved}");
    drop(target);
}

/// A host that its daemon cannot be does not end the verb between two connections.
#[test]
fn a_connection_that_a_daemon_cannot_have_is_a_failure_among_others() {
    let nqns = ["a", "b", "c"].map(|name| format!("nqn.2026-01.io.raceline:among-{name}"));
    let targets = nqns.map(|nqn| target_of(&nqn));
    let [port, other_port, third_port] = targets.each_ref().map(|(_, port)| port);
    let daemon = Daemon::start();
    let file = daemon.file("discovery.conf");
    let named = format!("nqn.2014-08.org.nvmexpress:uuid:{OTHER_ID}");
    let line = |port: &str, host: &str| format!("-t tcp -a 127.0.0.1 -s {port} --hostnqn={host}\n");
    let text = [
        line(port, &named),
        line(other_port, "nqn.2014-08.org.example:h"),
        line(third_port, &named),
    ];
    std::fs::write(&file, text.concat()).unwrap();
    let output = daemon.output(&["connect-all", "--config", &file, "-I", OTHER_ID]);
    let (said, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{error}");
    for (port, is_connected) in [(port, true), (other_port, false), (third_port, true)] {
        let place = format!(" at 127.0.0.1:{port}\n");
        assert_eq!(said.contains(&place), is_connected, "{place}: {said}{error}");
    }
    assert!(error.contains(&format!("127.0.0.1:{other_port}: -I: a daemon takes")), "{error}");
}

#[test]
fn what_a_file_of_nvme_cli_has_is_taken_or_said_to_be_passed_over() {
    let (target, port) = target();
    let daemon = Daemon::start();
    let file = daemon.file("config.json");
    let text = serde_json::json!([{
        "hostnqn": "nqn.2014-08.org.example:h", "hostsymname": "h", "persistent_discovery_ctrl": true,
        "subsystems": [{ "nqn": NQN, "application": "a", "ports": [{
            "transport": "tcp", "traddr": "127.0.0.1", "trsvcid": port, "name": "nvme7",
            "fast_io_fail_tmo": 5, "keyring": "%:mine",
        }]}],
    }]);
    std::fs::write(&file, text.to_string()).unwrap();
    let output = daemon.output(&["connect", "--as", "nbd", "-O", "-n", NQN, "-J", &file]);
    let (text, notes) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    assert!(text.unwrap().contains("\"fast_io_fail_tmo\": 5"));
    let notes = notes.unwrap();
    for says in [
        "hosts[0].hostsymname is passed over: there is nothing like it here",
        "hosts[0].persistent_discovery_ctrl is passed over",
        "hosts[0].subsystems[0].application is passed over",
        "ports[0].name is passed over",
        "ports[0].keyring is passed over: keys are looked for in all keyrings",
    ] {
        assert!(notes.contains(says), "{says}: {notes}");
    }
    assert_eq!(notes.lines().count(), 5, "{notes}");
    daemon.ok(&["connect-all", "--config", &file]);
    let saved = daemon.ok(&["config", "save", "-"]);
    assert!(saved.contains("\"fast_io_fail_timeout_sec\": 5"), "{saved}");
    drop(daemon);
    drop(target);
}

/// A daemon that is connected to the subsystem of another one.
fn connected(port: &str) -> Daemon {
    let daemon = Daemon::start();
    daemon.ok(&["connect-all", "-a", "127.0.0.1", "-s", port]);
    daemon
}

#[test]
fn a_subsystem_is_disconnected_from_disks_and_daemons() {
    // All disks of this user that have the name are ended, those of other tests too.
    let nqn = format!("nqn.2026-01.io.raceline:gone-{}", std::process::id());
    let (target, port) = target_of(&nqn);
    let daemon = connected(&port);
    let disk = Disk::start(&daemon, &["-a", "127.0.0.1", "-s", &port, "-n", &nqn]);
    let place = disk.ready["device"].as_str().unwrap().to_owned();
    let said = daemon.ok(&["disconnect", "-n", &nqn]);
    let of_daemon = format!("disconnected Nvme0 from {nqn} at 127.0.0.1:{port}\n");
    assert!(
        said.contains(&format!("disconnected {place}\n")) && said.contains(&of_daemon),
        "{said}"
    );
    assert!(said.ends_with(&format!("\nNQN:{nqn} disconnected 2 controller(s)\n")), "{said}");
    assert_eq!(daemon.ok(&["rpc", "bdev_nvme_get_controllers"]).trim(), "[]");
    super::wait_for(|| queues_of(&target, &nqn).is_empty());
    let refused = daemon.refused(&["disconnect", "-n", &nqn]);
    assert!(refused.contains("there is no such disk of this user, and no such"), "{refused}");
}

#[test]
fn a_controller_is_disconnected_by_its_name_unless_it_is_in_use() {
    let (_target, port) = target();
    let daemon = connected(&port);
    daemon.ok(&["subsys", "add", "nqn.2014-08.org.example:again", "--allow-any-host"]);
    daemon.ok(&["ns", "add", "nqn.2014-08.org.example:again", "Nvme0n1"]);
    let refused = daemon.refused(&["disconnect", "-d", "Nvme0"]);
    assert!(refused.contains("Nvme0n1 of the daemon is in use"), "{refused}");
    assert!(daemon.refused(&["disconnect", "-d", "Nvme7"]).contains("those that run: "));
    // Only those of the other transport: there are none, which is no error.
    daemon.ok(&["disconnect-all", "-r", "rdma"]);
    assert!(daemon.ok(&["rpc", "bdev_nvme_get_controllers"]).contains("Nvme0"));
    let said = daemon.ok(&["disconnect", "-d", "Nvme0", "--force"]);
    assert_eq!(said, format!("disconnected Nvme0 from {NQN} at 127.0.0.1:{port}\n"));
    assert_eq!(daemon.ok(&["rpc", "bdev_nvme_get_controllers"]).trim(), "[]");
    // A socket that is named has to be there.
    let words = ["disconnect", "-n", NQN, "-s", "/nowhere/rpc.sock"];
    let output = daemon.output(&words);
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/rpc.sock"), "{output:?}");
}
