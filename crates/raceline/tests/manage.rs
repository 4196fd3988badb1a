//! The management verbs against a daemon's socket: what they make, show, refuse and restore.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "manage/connect.rs"]
mod connect;
#[path = "manage/disks.rs"]
mod disks;
#[path = "manage/nvme.rs"]
mod nvme;
#[path = "manage/nvmet.rs"]
mod nvmet;

use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use raceline_control::manager::{Manager, ManagerConfig};
use raceline_control::method::Registry;
use raceline_control::role::Roles;
use raceline_control::server::{Server, ServerConfig};
use serde_json::Value;
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.raceline:one";
const HOST: &str = "nqn.2014-08.org.nvmexpress:host";

/// Waits for a condition.
#[track_caller]
fn wait_for(mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "it does not come");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A daemon in this process, for the program in a process of its own.
struct Daemon {
    manager: Arc<Manager>,
    server: Option<Server>,
    directory: TempDir,
}

impl Daemon {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manager = Arc::new(Manager::new(ManagerConfig::default(), Arc::new(Registry::new())));
        let path = directory.path().join("run/rpc.sock");
        let config = ServerConfig { path, roles: Roles::default() };
        let server = Server::start(config, Arc::clone(&manager)).unwrap();
        manager.start();
        Self { manager, server: Some(server), directory }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
        command.env("RACELINE_RPC_SOCKET", self.server.as_ref().unwrap().path());
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command().args(words).output().unwrap()
    }

    /// Standard output of a verb that has to succeed.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a verb that has to fail.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["-o", "json"]].concat())).unwrap()
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Two devices, one of them exported to one host.
    fn export(&self) {
        self.ok(&["bdev", "add", "ram:8M", "--name", "m0"]);
        self.ok(&["bdev", "add", "ram:1M,bs=4096", "-n", "m1"]);
        self.ok(&["subsys", "add", NQN, "--serial", "RL1"]);
        self.ok(&["ns", "add", NQN, "m0", "--nsid", "7"]);
        self.ok(&["port", "add", NQN, "127.0.0.1:0"]);
        self.ok(&["host", "add", NQN, HOST]);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.server.take());
        self.manager.shut_down().unwrap();
    }
}

#[test]
fn an_address_that_the_machine_lacks_is_named_as_such() {
    let daemon = Daemon::start();
    daemon.export();
    let error = daemon.refused(&["port", "add", NQN, "192.0.2.1:0"]);
    assert!(error.contains("it is not an address of this machine: choose one of `ip "), "{error}");
}

#[test]
fn limits_are_set_shown_and_taken_away() {
    let daemon = Daemon::start();
    daemon.export();
    daemon.ok(&["qos", "set", "bdev", "m0", "--iops", "500", "--write", "20", "--burst", "100"]);
    daemon.ok(&["qos", "set", "subsys", NQN, "--bandwidth", "300"]);
    daemon.ok(&["qos", "set", "hosts", "tenants", "--host", HOST, "--read", "7"]);
    daemon.ok(&["qos", "weight", NQN, HOST, "250"]);
    let shown = daemon.ok(&["qos", "ls"]);
    for row in [
        ["bdev", "m0", "500", "-", "-", "20", "100"],
        ["subsystem", NQN, "-", "300", "-", "-", "10"],
        ["hosts", "tenants", "-", "-", "7", "-", "10"],
    ] {
        let line = shown.lines().find(|line| line.contains(row[1])).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..7], row, "{shown}");
    }
    let of_weight = shown.lines().find(|line| line.starts_with("weight")).unwrap();
    let words: Vec<&str> = of_weight.split_whitespace().collect();
    assert_eq!(words, ["weight", HOST, "-", "-", "-", "-", "-", "250", NQN], "{shown}");
    let refused = daemon.output(&["qos", "weight", NQN, HOST, "0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let refused = daemon.output(&["qos", "set", "bdev", "m0", "--iops", "1", "--host", HOST]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(daemon.refused(&["qos", "set", "bdev", "nobody", "--iops", "1"]).contains("nobody"));
    // A configuration has them, and its restoring brings them back.
    let saved = daemon.file("with-limits.json");
    daemon.ok(&["config", "save", &saved]);
    for (kind, name) in [("bdev", "m0"), ("subsys", NQN), ("hosts", "tenants")] {
        daemon.ok(&["qos", "rm", kind, name]);
    }
    daemon.ok(&["qos", "weight", NQN, HOST, "none"]);
    assert_eq!(daemon.json(&["qos", "ls"]), Value::Array(vec![]));
    daemon.ok(&["config", "restore", &saved]);
    assert_eq!(daemon.ok(&["qos", "ls"]), shown);
    daemon.ok(&["qos", "set", "bdev", "m0", "--iops", "9"]);
    daemon.ok(&["config", "restore", &saved]);
    assert_eq!(daemon.ok(&["qos", "ls"]), shown);
}

#[test]
fn what_is_added_is_listed_and_what_is_removed_is_not() {
    let daemon = Daemon::start();
    daemon.export();
    let bdevs = daemon.ok(&["bdev", "ls"]);
    let row = bdevs.lines().find(|line| line.starts_with("m0")).unwrap();
    assert!(row.contains("8 MiB") && row.contains(&format!("{NQN} 7")), "{bdevs}");
    let namespaces = daemon.json(&["ns", "ls"]);
    assert_eq!(namespaces[0]["subsystem"], NQN);
    assert_eq!((&namespaces[0]["nsid"], &namespaces[0]["bdev_name"]), (&7.into(), &"m0".into()));
    let ports = daemon.ok(&["port", "ls", NQN]);
    assert!(ports.contains("127.0.0.1:") && !ports.contains("127.0.0.1:0"), "{ports}");
    assert_eq!(daemon.json(&["host", "ls"])[0]["nqn"], HOST);
    let subsystems = daemon.ok(&["subsys", "ls"]);
    assert!(subsystems.contains("RL1") && !subsystems.contains("discovery"), "{subsystems}");

    daemon.ok(&["host", "add", NQN, "any"]);
    assert!(daemon.ok(&["host", "ls"]).contains("any"));
    daemon.ok(&["subsys", "set", NQN, "--allow-any-host", "false"]);
    assert!(!daemon.ok(&["host", "ls"]).contains("any"));
    let port = ports.split_whitespace().find(|word| word.starts_with("127.")).unwrap();
    daemon.ok(&["port", "rm", NQN, port]);
    daemon.ok(&["host", "rm", NQN, HOST]);
    daemon.ok(&["ns", "rm", NQN, "7"]);
    daemon.ok(&["subsys", "rm", NQN]);
    daemon.ok(&["bdev", "rm", "m0", "m1"]);
    for verb in ["bdev", "subsys", "ns", "port", "host"] {
        assert_eq!(daemon.json(&[verb, "ls"]), Value::Array(Vec::new()), "{verb}");
    }
}

/// Where there is no RDMA device, an address for RDMA is refused as one; what listens for TCP there is another thing.
#[test]
fn an_address_for_rdma_is_no_address_for_tcp() {
    let daemon = Daemon::start();
    daemon.ok(&["subsys", "add", NQN, "--ana"]);
    daemon.ok(&["port", "add", NQN, "127.0.0.1:0"]);
    let port = daemon.json(&["port", "ls"])[0]["trsvcid"].as_str().unwrap().to_owned();
    let (tcp, rdma) = (format!("127.0.0.1:{port}"), format!("rdma://127.0.0.1:{port}"));
    for words in [
        &["port", "add", NQN, "rdma://127.0.0.1:4420"][..],
        &["port", "rm", NQN, &rdma],
        &["port", "set", NQN, &rdma, "--ana", "inaccessible"],
    ] {
        let error = daemon.refused(words).to_ascii_lowercase();
        assert!(error.contains("rdma") || words[1] != "add", "{words:?}: {error}");
    }
    let listed = daemon.json(&["port", "ls"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["trtype"]), (1, &"TCP".into()));
    daemon.ok(&["port", "set", NQN, &tcp, "--ana", "non-optimized"]);
    daemon.ok(&["port", "rm", NQN, &tcp]);
    assert_eq!(daemon.json(&["port", "ls"]), Value::Array(Vec::new()));
}

#[test]
fn levels_of_security_are_given_changed_and_listed() {
    let daemon = Daemon::start();
    daemon.ok(&["subsys", "add", NQN, "--security", "authenticated"]);
    daemon.ok(&["host", "add", NQN, HOST, "--security", "tls"]);
    for words in [&["--tls"][..], &["--security", "both"], &["--security", "concat"], &[]] {
        daemon.ok(&[&["port", "add", NQN, "127.0.0.1:0"], words].concat());
    }
    let ports = daemon.json(&["port", "ls"]);
    let levels: Vec<&Value> = ports.as_array().unwrap().iter().map(|it| &it["security"]).collect();
    assert_eq!(levels, [&Value::from("tls"), &"both".into(), &"concat".into(), &Value::Null]);
    assert!(daemon.ok(&["port", "ls"]).contains("concat"));
    assert_eq!(daemon.json(&["host", "ls"])[0]["security"], "tls");
    let subsystem = || daemon.json(&["subsys", "ls"])[0].clone();
    assert_eq!(subsystem()["security"], "authenticated");
    daemon.ok(&["subsys", "set", NQN, "--security", "plain", "--psk-optional", "true"]);
    let changed = subsystem();
    assert_eq!((&changed["security"], &changed["psk_optional"]), (&Value::Null, &true.into()));
    daemon.ok(&["subsys", "set", NQN, "--allow-any-host", "true"]);
    assert_eq!(subsystem()["allow_any_host"], true);
    for wrong in [
        &["subsys", "set", NQN][..],
        &["subsys", "set", NQN, "--security", "half"],
        &["port", "add", NQN, "127.0.0.1:0", "--tls", "--security", "both"],
        &["host", "add", NQN, "any", "--security", "tls"],
    ] {
        assert_eq!(daemon.output(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_is_wrong_is_said_with_what_would_be_right() {
    let daemon = Daemon::start();
    daemon.export();
    let error = daemon.refused(&["bdev", "rm", "m0"]);
    assert!(error.contains(&format!("used by {NQN} 7")) && error.contains("--force"), "{error}");
    let error = daemon.refused(&["ns", "rm", NQN, "8"]);
    assert!(error.contains("has no namespace 8: it has 7"), "{error}");
    let error = daemon.refused(&["ns", "add", "nqn.2026-01.io.raceline:two", "m1"]);
    assert!(error.contains(&format!("there is only {NQN}")), "{error}");
    let error = daemon.refused(&["bdev", "ls", "m2"]);
    assert!(error.contains("did you mean m"), "{error}");
    let error = daemon.refused(&["ns", "add", NQN, "nothing"]);
    assert!(error.lines().count() == 1 && error.contains("nvmf_subsystem_add_ns"), "{error}");
    let error = daemon.refused(&["ns", "set", NQN, "7", "--show", HOST]);
    assert!(error.contains("every host sees namespace 7") && error.contains("--hidden"), "{error}");
    daemon.ok(&["ns", "add", NQN, "m1", "--hidden"]);
    let visible_to = |nsid: &str| {
        let table = daemon.ok(&["ns", "ls"]);
        let mut rows = table.lines().filter(|row| row.contains(&format!("{NQN}  {nsid} ")));
        rows.next().and_then(|row| row.split_whitespace().last()).unwrap().to_owned()
    };
    assert_eq!((&*visible_to("7"), &*visible_to("1")), ("all", "none"));
    daemon.ok(&["ns", "set", NQN, "1", "--show", HOST]);
    assert_eq!(visible_to("1"), HOST);
    daemon.ok(&["ns", "rm", NQN, "1"]);
    let error = daemon.refused(&["bdev", "set", "m0", "--size", "16M"]);
    assert!(error.contains("keeps its size"), "{error}");
    daemon.ok(&["bdev", "rm", "m0", "--force"]);
    assert_eq!(daemon.json(&["ns", "ls"]), Value::Array(Vec::new()));
    let none = daemon.output(&["config", "diff", &daemon.file("none.json")]);
    assert_eq!(none.status.code(), Some(2), "not that of a difference: {none:?}");

    for words in [
        &["bdev", "ls", "-s"][..],
        &["bdev", "ls", "--socket"],
        &["list", "--socket"],
        &["smart-log", "Nvme0", "--socket"],
    ] {
        let nobody = daemon.output(&[words, &["/nonexistent/socket"]].concat());
        assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
        assert!(String::from_utf8_lossy(&nobody.stderr).contains("/nonexistent/socket"));
    }
    let nobody = daemon.output(&["rpc", "--socket", "/nonexistent/socket", "spdk_get_version"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
}

#[test]
fn a_star_is_every_host_and_other_words_are_no_host() {
    let daemon = Daemon::start();
    daemon.export();
    let hosts = || daemon.json(&["host", "ls"]);
    let before = hosts();
    for wrong in ["hostA", "HOSTNQN", "nqn.", "any*"] {
        let output = daemon.output(&["host", "add", NQN, wrong]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("an NQN begins with") && error.contains("`any` stands"), "{error}");
    }
    assert_eq!(hosts(), before);
    assert!(daemon.ok(&["host", "add", NQN, "*"]).contains("every host may connect"));
    let any = |list: &Value| {
        let names = list.as_array().unwrap().iter().map(|host| host["nqn"].as_str().unwrap());
        names.filter(|name| *name == "any" || *name == "*").map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(any(&hosts()), ["any"]);
    let keyed = daemon.output(&["host", "add", NQN, "*", "--security", "tls"]);
    assert_eq!(keyed.status.code(), Some(2), "{keyed:?}");
    daemon.ok(&["host", "rm", NQN, "*"]);
    assert_eq!(hosts(), before);
    // What has come by another client can be taken away by its name.
    daemon.ok(&["rpc", "nvmf_subsystem_add_host", NQN, "*"]);
    assert_eq!(any(&hosts()), ["*"]);
    daemon.ok(&["host", "rm", NQN, "*"]);
    assert_eq!(hosts(), before);
}

#[test]
fn a_device_that_is_not_there_is_not_to_be_made() {
    let daemon = Daemon::start();
    for device in ["/dev/nosuch", "block:/dev/nosuch", "file:/dev/nosuch"] {
        let error = daemon.refused(&["bdev", "add", device]);
        assert!(error.contains("there is no such device: `lsblk` lists them"), "{error}");
        assert!(!error.contains("truncate") && !error.contains("make it"), "{error}");
    }
    for (device, expected) in [
        ("file:/dev/nosuch,size=1M", "there is no such device: `lsblk` lists them"),
        ("1G", "write ram:1G"),
    ] {
        let output = daemon.output(&["bdev", "add", device]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected) && !error.contains("truncate"), "{error}");
    }
    for (device, expected) in [
        ("/dev/nosuch", "there is no such device: `lsblk` lists them"),
        ("file:/dev/nosuch,size=1M", "not created among device files"),
        ("1G", "write ram:1G"),
    ] {
        for words in [&["export", "-l", "127.0.0.1:0"][..], &["connect", "--as", "nbd", "--bdev"]] {
            let output = daemon.output(&[words, &[device]].concat());
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains(expected) && !error.contains("create it"), "{error}");
        }
    }
    assert!(!std::path::Path::new("/dev/nosuch").exists());
}

#[test]
fn a_configuration_is_saved_compared_cleared_and_restored_with_its_identities() {
    let daemon = Daemon::start();
    daemon.export();
    let file = daemon.file("saved.json");
    daemon.ok(&["config", "save", &file]);
    assert_eq!(daemon.ok(&["config", "diff", &file]), "");
    let before = daemon.json(&["bdev", "ls"]);

    daemon.ok(&["host", "rm", NQN, HOST]);
    daemon.ok(&["bdev", "add", "null:1G", "-n", "more"]);
    let output = daemon.output(&["config", "diff", &file]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("- bdev more\n+ subsystem {NQN} host {HOST}\n"));
    let plan = daemon.ok(&["config", "restore", &file, "--dry-run"]);
    assert_eq!(plan.lines().count(), 2, "{plan}");
    daemon.ok(&["config", "restore", &file]);
    assert_eq!(daemon.ok(&["config", "diff", &file]), "");

    let refused = daemon.output(&["config", "clear"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    daemon.ok(&["config", "clear", "--yes"]);
    assert_eq!(daemon.json(&["bdev", "ls"]), Value::Array(Vec::new()));
    daemon.ok(&["config", "restore", &file]);
    assert_eq!(daemon.json(&["bdev", "ls"]), before);
    assert_eq!(daemon.ok(&["config", "diff", &file]), "");
}

#[test]
fn a_configuration_that_cannot_be_restored_changes_nothing() {
    let daemon = Daemon::start();
    daemon.export();
    let (saved, wrong) = (daemon.file("saved.json"), daemon.file("wrong.json"));
    daemon.ok(&["config", "save", &saved]);
    // m1 is removed, m0 stays, and one more device is wrong.
    let mut config: Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    for section in config["subsystems"].as_array_mut().unwrap() {
        if section["subsystem"] == "bdev" {
            for call in section["config"].as_array_mut().unwrap() {
                if call["params"]["name"] == "m1" {
                    call["params"]["name"] = "bad".into();
                    call["params"]["block_size"] = 77.into();
                    call["params"]["uuid"] = Value::Null;
                }
            }
        }
    }
    std::fs::write(&wrong, config.to_string()).unwrap();
    let error = daemon.refused(&["config", "restore", &wrong]);
    assert!(error.contains("nothing was changed") && error.contains("77"), "{error}");
    assert_eq!(daemon.ok(&["config", "diff", &saved]), "");

    for (text, complaint) in [
        ("{", "no configuration"),
        (
            r#"{"subsystems":[{"subsystem":"x","config":[{"method":"no_such_method"}]}]}"#,
            "no_such_method",
        ),
    ] {
        std::fs::write(&wrong, text).unwrap();
        let error = daemon.refused(&["config", "restore", &wrong]);
        assert!(error.contains(complaint), "{error}");
    }
    assert_eq!(daemon.ok(&["config", "diff", &saved]), "");
}

#[test]
fn a_pool_is_given_shown_and_taken_away() {
    let daemon = Daemon::start();
    daemon.export();
    assert_eq!(daemon.json(&["pool", "ls"]), Value::Array(Vec::new()));
    let said = daemon.ok(&["pool", "add", NQN, "m1", "--unit", "64k", "--manager", HOST]);
    assert_eq!(said, format!("hosts of {NQN} may make namespaces of m1\n"));
    let table = daemon.ok(&["pool", "ls", NQN]);
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, [NQN, "m1", "1", "MiB", "1", "MiB", "64", "KiB", "0", HOST], "{table}");
    let user = format!("the pool of {NQN}");
    assert!(daemon.ok(&["bdev", "ls", "m1"]).contains(&user));
    let error = daemon.refused(&["pool", "add", NQN, "m0"]);
    assert!(error.contains("there is a pool of subsystem"), "{error}");
    let error = daemon.refused(&["bdev", "rm", "m1"]);
    assert!(error.contains(&format!("is used by {user}")), "{error}");
    // The pool is a part of the configuration.
    let file = daemon.file("pool.json");
    daemon.ok(&["config", "save", &file]);
    daemon.ok(&["pool", "rm", NQN]);
    let error = daemon.refused(&["pool", "rm", NQN]);
    assert!(error.contains("has no pool"), "{error}");
    let differs = daemon.output(&["config", "diff", &file]);
    assert_eq!(String::from_utf8_lossy(&differs.stdout), format!("+ subsystem {NQN} pool\n"));
    daemon.ok(&["config", "restore", &file]);
    assert_eq!(daemon.json(&["pool", "ls"])[0]["unit_bytes"], 65536);
    daemon.ok(&["bdev", "rm", "m1", "--force"]);
    assert_eq!(daemon.json(&["pool", "ls"]), Value::Array(Vec::new()));
}

#[test]
fn shells_complete_the_names_that_exist() {
    let daemon = Daemon::start();
    daemon.export();
    let complete = |words: &[&str]| {
        let mut command = daemon.command();
        command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len()).to_string());
        command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_IFS", "\n");
        command.args(["--", "raceline"]).args(words);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let names = complete(&["bdev", "rm", ""]);
    assert!(names.lines().any(|line| line == "m0") && names.contains("m1"), "{names}");
    assert!(complete(&["subsys", "set", ""]).contains(NQN));
    assert!(complete(&["host", "rm", NQN, ""]).contains(HOST));
    let verbs = complete(&["n"]);
    let mut verbs: Vec<&str> = verbs.lines().collect();
    verbs.sort_unstable();
    assert_eq!(verbs, ["ns", "ns-rescan", "nvmet"]);
}

#[test]
fn changes_are_listed_and_undone() {
    let daemon = Daemon::start();
    daemon.export();
    let saved = daemon.file("before.json");
    daemon.ok(&["config", "save", &saved]);
    let log = daemon.json(&["config", "log"]);
    let newest = &log[0];
    assert_eq!(newest["caller"]["method"], "nvmf_subsystem_add_host", "{newest}");
    assert_eq!(newest["caller"]["via"], "socket");
    let number = newest["number"].as_u64().unwrap();
    assert_eq!(log.as_array().unwrap().len() as u64, number, "{log:#}");
    // Several changes, undone at once.
    daemon.ok(&["bdev", "rm", "m0", "--force"]);
    daemon.ok(&["subsys", "rm", NQN]);
    daemon.ok(&["bdev", "add", "ram:1M", "-n", "m2"]);
    let first = (number + 1).to_string();
    let plan = daemon.ok(&["config", "undo", &first, "--dry-run"]);
    assert!(
        plan.contains("bdev_malloc_delete") && plan.contains("nvmf_subsystem_add_ns"),
        "{plan}"
    );
    // Several changes are not undone without a question, for which there is no terminal.
    let asked = daemon.output(&["config", "undo", &first]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(2), "{said}");
    assert!(said.contains("undo would take back 3 changes: use --yes"), "{said}");
    assert!(said.contains("bdev_malloc_delete") && daemon.ok(&["bdev", "ls"]).contains("m2"));
    daemon.ok(&["config", "undo", &first, "--yes"]);
    daemon.ok(&["config", "diff", &saved]);
    // The last one alone.
    daemon.ok(&["bdev", "add", "ram:1M", "-n", "m3"]);
    let shown = daemon.ok(&["config", "log", "--last", "1"]);
    assert!(shown.contains("+ bdev / m3") && shown.contains("bdev_malloc_create"), "{shown}");
    daemon.ok(&["config", "undo"]);
    daemon.ok(&["config", "diff", &saved]);
    assert!(daemon.refused(&["config", "undo", "9999"]).contains("change 9999 is not kept"));
}

/// A process that ends with its owner.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_connected_host_uses_is_not_undone_without_a_question() {
    let daemon = Daemon::start();
    daemon.export();
    daemon.ok(&["host", "add", NQN, "any"]);
    let port = daemon.json(&["port", "ls"])[0]["trsvcid"].as_str().unwrap().to_owned();
    let ends = ["-a", "127.0.0.1", "-s", &port, "-n", NQN, "-q", "nqn.2026-01.io.raceline:guest"];
    let load = ["perf", "--namespace", "7", "--rw", "randread", "--runtime", "120"];
    let mut guest = daemon.command();
    let guest = guest.args(load).args(ends).stdout(Stdio::null()).stderr(Stdio::null());
    let guest = Ended(guest.spawn().unwrap());
    let controllers = || daemon.ok(&["rpc", "nvmf_subsystem_get_controllers", NQN]);
    wait_for(|| controllers().contains("raceline:guest"));
    // The last change alone, of a subsystem with a host.
    let number = daemon.json(&["config", "log"])[0]["number"].to_string();
    let asked = daemon.output(&["config", "undo"]);
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    let shown = daemon.ok(&["host", "ls"]);
    // Another one, which concerns no host, is undone at once.
    daemon.ok(&["bdev", "add", "ram:1M", "-n", "unused"]);
    let other = daemon.output(&["config", "undo"]);
    let agreed = daemon.output(&["config", "undo", &number, "--yes"]);
    let closed = daemon.ok(&["host", "ls"]);
    drop(guest);
    assert_eq!(asked.status.code(), Some(2), "{said}");
    let who = format!(
        "undo would take back 1 change (connected to {NQN}: nqn.2026-01.io.raceline:guest)"
    );
    assert!(said.contains(&who) && said.contains("use --yes"), "{said}");
    assert!(said.contains("nvmf_subsystem_allow_any_host"), "{said}");
    assert!(shown.contains("any") && !closed.contains("any"), "{shown} {closed}");
    assert!(other.status.success() && agreed.status.success(), "{other:?} {agreed:?}");
}

#[test]
fn a_core_that_sleeps_turns_when_it_is_asked_to() {
    let daemon = Daemon::start();
    daemon.export();
    let target = daemon.manager.cores().remove(0);
    let before = target.turns();
    target.nudge();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while target.turns().iter().zip(&before).any(|(now, before)| now <= before) {
        assert!(std::time::Instant::now() < end, "a core does not turn");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let times = daemon.ok(&["rpc", "--raw", "raceline_get_loop_times"]);
    let times: Value = serde_json::from_str(&times).unwrap();
    assert!(times[0]["turns"].as_u64().unwrap() > 0, "{times}");
}
