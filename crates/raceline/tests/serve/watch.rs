//! The verbs that watch a daemon: events, top, support.

use std::io::Read as _;
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Scratch, Served, call, configure, run, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:watched";

/// What is planted wherever somebody may put a secret.
const PLANTED: [&str; 6] = [
    "PlantedChapSecret1",
    "PlantedMutualSecret2",
    "PlantedUrlPassword3",
    "PlantedLogToken4",
    "PlantedCommandLine5",
    "AAAAPlantedPskKey6",
];

/// A follower whose output goes into two files.
struct Follower(Child);

impl Follower {
    fn start(folder: &Scratch, socket: &str) -> Self {
        let file = |name: &str| std::fs::File::create(folder.path(name)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
        command.args(["events", "-s", socket, "--json", "--since", "start"]);
        Self(command.stdout(file("out")).stderr(file("err")).spawn().unwrap())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn address(socket: &std::path::Path) -> (String, String) {
    let listed = call(socket, "nvmf_get_subsystems", Value::Null).unwrap();
    let ours = listed.as_array().unwrap().iter().find(|it| it["nqn"] == NQN).unwrap();
    let at = &ours["listen_addresses"][0];
    let text = |member: &str| at[member].as_str().unwrap().to_owned();
    (text("traddr"), text("trsvcid"))
}

#[test]
fn events_are_followed_over_a_restart() {
    let folder = Scratch::new();
    let socket = folder.path("rpc.sock");
    let path = std::path::Path::new(&socket);
    let daemon = Served::start(path, &[]);
    configure(path, NQN, 2048);
    let _follower = Follower::start(&folder, &socket);
    let (host, port) = address(path);
    assert_eq!(run(&["identify", "-a", &host, "-s", &port, "-n", NQN]).code, Some(0));
    let once = ["events", "-s", &socket, "--json", "--since", "start", "--once"];
    // The end of a connection is reported when the daemon sees it.
    let mut seen = Vec::new();
    wait_for("a disconnect", || {
        let output = run(&once);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        seen = lines(&output.stdout);
        seen.iter().any(|event| event["kind"] == "disconnect")
    });
    let numbers: Vec<u64> = seen.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=u64::try_from(numbers.len()).unwrap()), "{numbers:?}");
    let of = |kind: &str| seen.iter().find(|event| event["kind"] == kind).unwrap();
    assert_eq!(of("connect")["fields"]["subsystem"], NQN);
    assert_eq!(of("device")["fields"]["name"], "M");
    assert_eq!(of("change")["message"], "nvmf_create_transport: ok");
    let output = run(&["events", "-s", &socket, "--since", "start", "--once", "--kind", "device"]);
    assert_eq!(output.stdout.lines().count(), 1, "{}", output.stdout);
    assert!(output.stdout.contains("a device has come  name=M"), "{}", output.stdout);

    assert_eq!(daemon.end(Signal::TERM).code, Some(0));
    let daemon = Served::start(path, &[]);
    configure(path, NQN, 2048);
    let read = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    let made = "nvmf_subsystem_add_listener: ok";
    wait_for("the second daemon", || read("out").matches(made).count() == 2);
    assert_eq!(daemon.end(Signal::TERM).code, Some(0));
    let errors = read("err");
    assert!(errors.contains("the daemon has ended"), "{errors}");
    assert!(errors.contains("counted from 1 again"), "{errors}");
    let all = lines(&read("out"));
    let made = all.iter().filter(|event| event["message"] == "nvmf_create_subsystem: ok");
    assert_eq!(made.count(), 2, "{all:?}");
    assert!(all.iter().all(|event| event["missed"].is_null()), "{all:?}");
}

/// A reset that somebody wants is said, and is no trouble. Quotes of parameters stand as they are among events, and in the audit
/// they are escaped once, by its JSON.
#[test]
fn a_wanted_reset_is_no_trouble_and_parameters_keep_their_quotes() {
    let folder = Scratch::new();
    let (target, socket) = (folder.path("target.sock"), folder.path("rpc.sock"));
    let (target, path) = (std::path::Path::new(&target), std::path::Path::new(&socket));
    let _target = Served::start(target, &[]);
    configure(target, NQN, 2048);
    let daemon = Served::start(path, &["-v"]);
    let (host, port) = address(target);
    let params = json!({
        "name": "N", "trtype": "TCP", "adrfam": "IPv4", "traddr": host, "trsvcid": port, "subnqn": NQN,
    });
    call(path, "bdev_nvme_attach_controller", params.clone()).unwrap();
    call(path, "bdev_nvme_reset_controller", json!({ "name": "N" })).unwrap();
    let events = |kind: &str| {
        let output = run(&["events", "-s", &socket, "--since", "start", "--once", "--kind", kind]);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stdout
    };
    let paths = events("path");
    assert!(paths.contains("is reset, and is being connected again"), "{paths}");
    assert!(!paths.contains("WARNING"), "{paths}");
    let changes = events("change");
    assert!(changes.contains("params={\"name\":\"N\"}"), "{changes}");
    let log = daemon.end(Signal::TERM).stderr;
    let audit = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut attached = audit.filter(|line| line["method"] == "bdev_nvme_attach_controller");
    let shown = attached.next().unwrap_or_else(|| panic!("{log}"));
    let shown: Value = serde_json::from_str(shown["params"].as_str().unwrap()).unwrap();
    assert_eq!(shown, params);
}

#[test]
fn top_prints_once_what_programs_read() {
    let folder = Scratch::new();
    let socket = folder.path("rpc.sock");
    let path = std::path::Path::new(&socket);
    let _daemon = Served::start(path, &[]);
    configure(path, NQN, 2048);
    let output = run(&["top", "-s", &socket]);
    assert_eq!(output.code, Some(2), "{}", output.stdout);
    assert!(output.stderr.contains("--once"), "{}", output.stderr);
    let output =
        run(&["top", "-s", &socket, "--once", "-o", "json", "--interval", "0.2", "--latencies"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let shown: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(shown["namespaces"][0]["subsystem"], NQN);
    assert_eq!(shown["namespaces"][0]["size"], 2048 * 512);
    assert_eq!(shown["devices"][0]["iops"], 0.0);
    // The histograms that it has turned on are off again.
    assert!(call(path, "bdev_get_histogram", json!({ "name": "M" })).is_err());
    let output = run(&["top", "-s", &socket, "--once", "-i", "0.1"]);
    assert!(output.stdout.contains("\nsubsystems\n"), "{}", output.stdout);
}

#[test]
fn an_archive_for_support_has_no_secret() {
    let folder = Scratch::new();
    let socket = folder.path("rpc.sock");
    let path = std::path::Path::new(&socket);
    let state = folder.path("state");
    let daemon = Served::start(path, &["--state-dir", &state]);
    configure(path, NQN, 2048);
    let secret = json!({ "user": "u", "secret": PLANTED[0], "muser": "m", "msecret": PLANTED[1] });
    call(path, "iscsi_create_auth_group", json!({ "tag": 1, "secrets": [secret] })).unwrap();
    let url = format!("iscsi://user%{}@127.0.0.1:1/iqn.2026-01.io.raceline:x/0", PLANTED[2]);
    // It cannot be made; what was tried stands in the audit.
    let params = json!({ "name": "L", "initiator_iqn": "iqn.2026-01.io.raceline:y", "url": url });
    assert!(call(path, "bdev_iscsi_create", params).is_err());
    // A name that looks like a key is somebody's mistake.
    let key = format!("NVMeTLSkey-1:01:{}:", PLANTED[5]);
    let params = json!({ "nqn": NQN, "host": "nqn.2026-01.io.raceline:h", "psk": key });
    assert!(call(path, "nvmf_subsystem_add_host", params).is_err());
    // So is one that gives a device such a name, which is then in the list of changes.
    let params = json!({ "name": key, "num_blocks": 8, "block_size": 512 });
    call(path, "bdev_null_create", params).unwrap();
    let log = folder.file(
        "daemon.log",
        format!(
            "begin\nAuthorization: Bearer {}\nrun --dhchap-secret {}\nend\n",
            PLANTED[3], PLANTED[4]
        )
        .as_bytes(),
    );
    let archive = folder.path("report.tar.gz");
    let output = run(&["support", "-s", &socket, "-f", &archive, "--log", &log]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let mut all = String::new();
    let file = std::fs::File::open(&archive).unwrap();
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut names = Vec::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        names.push(entry.path().unwrap().display().to_string());
        entry.read_to_string(&mut all).unwrap();
    }
    for planted in PLANTED {
        assert!(!all.contains(planted), "{planted} is in the archive");
    }
    assert!(all.contains("[removed]") && all.contains(NQN));
    for part in [
        "doctor.json",
        "config.json",
        "events.txt",
        "log/0.txt",
        "rpc/nvmf_get_subsystems.json",
        "rpc/vhost_get_controllers.json",
        "rpc/ublk_get_disks.json",
        "rpc/nbd_get_disks.json",
        "rpc/raceline_get_loop_times.json",
        "rpc/raceline_get_changes.json",
    ] {
        assert!(names.contains(&format!("raceline-support/{part}")), "{part}: {names:?}");
    }
    let changes = call(path, "raceline_get_changes", Value::Null).unwrap();
    assert!(changes.to_string().contains(PLANTED[5]), "{changes}");
    // What was planted was there: the daemon's own configuration has it.
    let config = call(path, "framework_get_config", json!({ "name": "iscsi" })).unwrap();
    assert!(config.to_string().contains(PLANTED[0]), "{config}");
    // A file that is there is not replaced.
    let again = run(&["support", "-s", &socket, "-f", &archive, "--log", &log]);
    assert_eq!(again.code, Some(1), "{}", again.stdout);
    assert_eq!(daemon.end(Signal::TERM).code, Some(0));
    // Without a daemon there is an archive all the same.
    let without = folder.path("without.tar.gz");
    let output = run(&["support", "-s", &socket, "-f", &without, "--log", &log]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("MISSING.txt"), "{}", output.stdout);
}

#[test]
fn the_journal_of_all_units_is_taken() {
    let folder = Scratch::new();
    let bin = folder.path("bin");
    std::fs::create_dir(&bin).unwrap();
    let program = format!("{bin}/journalctl");
    let says = |script: &str, more: &[&str]| {
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let archive = folder.path("journal.tar.gz");
        let _ = std::fs::remove_file(&archive);
        let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
        command.args(["support", "-s", &folder.path("no.sock"), "-f", &archive]).args(more);
        let ended = command.env("PATH", format!("{bin}:/usr/bin:/bin")).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let file = std::fs::File::open(&archive).unwrap();
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let mut parts = std::collections::BTreeMap::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
            entry.read_to_string(&mut text).unwrap();
            parts.insert(name.trim_start_matches("raceline-support/").to_owned(), text);
        }
        parts
    };
    let taken = says("echo \"asked: $*\"; echo \"token=$0-PlantedJournalToken\"", &[]);
    let journal = &taken["log/journal.txt"];
    assert!(journal.contains("-u raceline*\n"), "{journal}");
    assert!(!journal.contains("PlantedJournalToken"), "{journal}");
    let taken = says("echo \"asked: $*\"", &["--unit", "raceline-ublk@a.service"]);
    assert!(taken["log/journal.txt"].contains("-u raceline-ublk@a.service\n"));
    // A failure has journalctl's own words, without what is secret in them.
    let failed = says("echo 'No journal files, password=PlantedWord were found.' >&2; exit 3", &[]);
    let missing = &failed["MISSING.txt"];
    assert!(missing.contains("exit status: 3: No journal files, password=[removed]"), "{missing}");
    assert!(!failed.contains_key("log/journal.txt"));
    let nothing = says("true", &[]);
    assert!(nothing["MISSING.txt"].contains("the journal has nothing of raceline*: --log FILE"));
}
