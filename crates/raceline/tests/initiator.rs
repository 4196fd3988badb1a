//! The verbs with `--iscsi`, against an export of this program.

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Export, Scratch, run};

const IQN: &str = "iqn.2026-01.io.raceline:disk";
const SECRET: &str = "a-secret-of-some-length";

/// An export by iSCSI, and the options by which initiators reach it.
fn export(more: &[&str]) -> (Export, Vec<String>) {
    let name = format!("--iscsi={IQN}");
    let fixed = ["ram:16M", "-l", "127.0.0.1:0", &name, "--iscsi-listen", "127.0.0.1:0"];
    let arguments: Vec<&str> = fixed.into_iter().chain(more.iter().copied()).collect();
    let export = Export::start(&arguments);
    let portal = export.ready["iscsi"]["portals"][0].as_str().expect("a portal").to_owned();
    let (host, port) = portal.rsplit_once(':').expect("a port");
    let place = ["--iscsi", "-a", host, "-s", port].map(str::to_owned).to_vec();
    (export, place)
}

fn words<'a>(verb: &'a str, place: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let place = place.iter().map(String::as_str);
    [verb].into_iter().chain(place).chain(more.iter().copied()).collect()
}

#[track_caller]
fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout
}

#[track_caller]
fn fails(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.stderr);
    output.stderr
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_disk_is_found_described_written_and_read() {
    let (export, place) = export(&[]);
    let found = json(&ok(&words("discover", &place, &["-o", "json"])));
    assert_eq!(found["targets"][0]["target"], IQN, "{found}");
    assert!(ok(&words("discover", &place, &[])).contains(IQN));
    let known = json(&ok(&words("identify", &place, &["-n", IQN, "-o", "json"])));
    let unit = &known["units"][0];
    assert_eq!((&unit["lun"], &unit["size_bytes"]), (&0.into(), &(16 << 20).into()), "{known}");
    assert!(ok(&words("identify", &place, &["-n", IQN])).contains("read/write"));
    let scratch = Scratch::new();
    let (from, to) = (scratch.path("from"), scratch.path("to"));
    let data: Vec<u8> = (0..3 << 20).map(|at: u32| at.to_le_bytes()[(at % 3) as usize]).collect();
    std::fs::write(&from, &data).expect("a file");
    ok(&words("write", &place, &["-n", IQN, "--slba", "5", &from]));
    ok(&words("read", &place, &["-n", IQN, "--slba", "5", "--blocks", "6144", &to]));
    assert!(std::fs::read(&to).expect("a file") == data);
    let beyond = words("read", &place, &["-n", IQN, "--slba", "32768", "--blocks", "1", &to]);
    assert!(fails(&beyond, 2).contains("logical unit 0 has 32768 blocks"));
    let missing = words("identify", &place, &["-n", IQN, "--lun", "9"]);
    assert!(fails(&missing, 2).contains("no logical unit 9"));
    let other = "iqn.2026-01.io.raceline:other";
    assert!(fails(&words("identify", &place, &["-n", other]), 3).contains("ask the target"));
    export.terminate();
}

#[test]
fn workloads_run_and_are_verified() {
    let (export, place) = export(&[]);
    for more in [
        &["--rw", "randrw", "--verify", "-i", "2", "--iodepth", "8"][..],
        &["--rw", "randrw", "--verify", "-g", "-G", "--bs", "256k", "--iodepth", "4"],
        &["--rw", "randread", "--bs", "4k", "--iodepth", "32"],
    ] {
        let common = ["-n", IQN, "--runtime", "300ms", "--ramp_time", "0", "-o", "json"];
        let all: Vec<&str> = common.iter().chain(more).copied().collect();
        let report = json(&ok(&words("perf", &place, &all)));
        let text = report.to_string();
        assert!(text.contains("\"iscsi\":\"1\""), "{text}");
    }
    let maps = words("perf", &place, &["-n", IQN, "--namespace", "2"]);
    assert!(fails(&maps, 2).contains("--namespace is for NVMe/TCP: --lun N"));
    export.terminate();
}

/// A target that is killed under a verified run, and comes back a second later: twice.
#[test]
fn a_verified_run_outlives_lost_sessions() {
    const BYTES: usize = 4 << 20;
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    std::fs::write(&disk, vec![0; BYTES]).expect("a file");
    let name = format!("--iscsi={IQN}");
    let start = |portal: &str| {
        Export::start(&[&disk, "-l", "127.0.0.1:0", &name, "--iscsi-listen", portal])
    };
    let mut export = start(&support::own_address().to_string());
    let portal = export.ready["iscsi"]["portals"][0].as_str().expect("a portal").to_owned();
    let (host, port) = portal.rsplit_once(':').expect("a port");
    let work = support::start(&[
        "perf",
        "--iscsi",
        "-a",
        host,
        "-s",
        port,
        "-n",
        IQN,
        "--rw",
        "randrw",
        "--verify",
        "--bs",
        "4k",
        "--iodepth",
        "16",
        "-i",
        "2",
        "--runtime",
        "5s",
        "--ramp_time",
        "0",
        "-o",
        "json",
    ]);
    for _ in 0..2 {
        // What is on the disk shows that the run is under way.
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::read(&disk).expect("a file").iter().all(|&byte| byte == 0) {
            assert!(Instant::now() < deadline, "nothing is written");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(export); // killed
        std::thread::sleep(Duration::from_secs(1));
        export = start(&portal);
    }
    let output = work.finish();
    assert_eq!(output.code, Some(0), "{} {}", output.stdout, output.stderr);
    let job = &json(&output.stdout)["jobs"][0];
    assert_eq!(job["error"], 0, "{job}");
    assert!(job["reconnects"].as_u64() >= Some(2), "{job}");
    assert!(job["verified_ios"].as_u64() > Some(0), "{job}");
    export.terminate();
}

#[test]
fn a_logical_unit_is_exported_again() {
    let scratch = Scratch::new();
    let secret = scratch.path("secret");
    private_file(&secret, SECRET);
    let (first, place) = export(&["--chap-user", "me", "--chap-secret", &secret]);
    let portal = format!("{}:{}", place[2], place[4]);
    let url = format!("iscsi://me@{portal}/{IQN}/0");
    let second = Export::start(&[&url, "--lun-secret", &secret]);
    let namespace = &second.ready["namespaces"][0];
    assert_eq!(
        (&namespace["block_count"], &namespace["device"]),
        (&32_768.into(), &url.replace("me@", "").into())
    );
    assert_eq!(namespace["uuid"], first.ready["namespaces"][0]["uuid"]);
    let work = ["perf", "--rw", "randrw", "--verify", "--runtime", "300ms", "--ramp_time", "0"];
    ok(&second.host(&work));
    second.terminate();
    let usage =
        |arguments: &[&str]| fails(&[&["export", "-l", "127.0.0.1:0"], arguments].concat(), 2);
    assert!(usage(&[&url]).contains("give --lun-secret"));
    assert!(usage(&["ram:1M", "--lun-secret", &secret]).contains("no device has one"));
    let typed = usage(&[&format!("iscsi://me%{SECRET}@{portal}/{IQN}/0")]);
    assert!(typed.contains("every user can read") && !typed.contains(SECRET), "{typed}");
    first.terminate();
    // No target any more.
    let gone = fails(&["export", "-l", "127.0.0.1:0", &url, "--lun-secret", &secret], 3);
    assert!(gone.contains(&url) && gone.contains("is an iSCSI target listening"), "{gone}");
}

/// A file that only its owner can read.
fn private_file(path: &str, text: &str) {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let made = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    std::io::Write::write_all(&mut made.expect("a file"), text.as_bytes()).expect("a file");
}

#[test]
fn initiators_prove_who_they_are() {
    let scratch = Scratch::new();
    let file = |name: &str, text: &str| {
        let path = scratch.path(name);
        private_file(&path, text);
        path
    };
    let (secret, wrong) = (file("secret", &format!("{SECRET}\n")), file("wrong", "another-secret"));
    let (export, place) = export(&["--chap-user", "me", "--chap-secret", &secret]);
    let login = |secret: &str| {
        let chap = ["-n", IQN, "--chap-user", "me", "--chap-secret", secret];
        run(&words("identify", &place, &chap))
    };
    assert_eq!(login(&secret).code, Some(0), "{}", login(&secret).stderr);
    assert_eq!(login(&wrong).code, Some(3));
    let without = fails(&words("identify", &place, &["-n", IQN]), 3);
    assert!(!without.contains(SECRET), "{without}");
    export.terminate();
}
