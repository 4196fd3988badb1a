//! The catalogue of experiments as users run it: listed, shown, run, broken off, gone on with, and compared.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Scratch, run};

/// Two ways at one depth.
const MINE: &str = r#"id = "MINE"
title = "Two modes"
question = "Which mode is faster?"
source = "this test"

[procedure]
name = "load"
settings = { memory_mib = 16, depth = 4 }

[axis]
label = "Depth"

[[axis.columns]]
id = "4"

[[series]]
id = "poll"
label = "polling"

[[series]]
id = "interrupt"
label = "interrupts"
settings = { target_mode = "interrupt" }

[[metrics]]
id = "iops"
label = "IOPS"
unit = "1/s"
better = "higher"

[[comparisons]]
label = "IOPS, polling over interrupts"
metric = "iops"
of = "poll"
over = "interrupt"

[[figures]]
title = "IOPS"
kind = "dots"
metrics = ["iops"]
"#;

fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout
}

fn fails(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.stderr);
    output.stderr
}

fn record(folder: &str) -> Value {
    let text = std::fs::read_to_string(Path::new(folder).join("MINE.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Whether this machine has a core for each side; says what is skipped otherwise.
fn has_two_cores() -> bool {
    let has = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    if !has {
        println!("SKIPPED: a run takes two cores");
    }
    has
}

/// Whether other programs left a run no time for a single command: such runs are not in the record.
fn is_overloaded(record: &Value) -> bool {
    record["missing"].to_string().contains("no command ended")
}

#[test]
fn experiments_are_listed_and_shown() {
    let list = ok(&["bench", "list"]);
    assert!(list.contains("ADQ-F6") && list.contains("DSA-128K-LAT"), "{list}");
    let all: Value = serde_json::from_str(&ok(&["bench", "list", "-o", "json"])).unwrap();
    assert!(all.as_array().unwrap().len() >= 20);
    let shown = ok(&["bench", "show", "ch-t1"]);
    assert!(
        shown.contains("CH-F1:") && shown.contains("NVMe/TCP, 8K: bandwidth 90.7 Gbit/s"),
        "{shown}"
    );
}

#[test]
fn faults_of_users_are_named() {
    let error = fails(&["bench", "run", "ADQ-F9"], 2);
    assert!(error.contains("no experiment `ADQ-F9`: is it ADQ-F"), "{error}");
    let scratch = Scratch::new();
    let file = scratch.path("mine.toml");
    std::fs::write(&file, MINE.replace("depth = 4 }", "deep = 4 }")).unwrap();
    let error = fails(&["bench", "run", "--file", &file], 2);
    assert!(error.contains("mine.toml, line 8, `deep`: unknown field"), "{error}");
    let error = fails(&["bench", "run", "GAP", "--cpus", "0,0"], 2);
    assert!(error.contains("CPU 0 is there twice"), "{error}");
    let error = fails(&["bench", "compare", &scratch.path("a"), &scratch.path("b")], 1);
    assert!(error.contains("cannot read"), "{error}");
    let error = fails(&["bench", "report", &scratch.path("a")], 1);
    assert!(error.contains("cannot read the folder") && error.contains("bench run"), "{error}");
}

#[test]
fn faults_in_the_names_of_targets_over_rdma_are_named() {
    const NQN: &str = "nqn.2014-08.org.example:one";
    let line = |rdma: &[&str], target: &str| {
        let target = ["--nvmet-rdma", target];
        fails(&[&["bench", "run", "CH-F1"], rdma, &target].concat(), 2)
    };
    let here = ["--rdma", "192.0.2.1"];
    for wrong in ["192.0.2.2", "192.0.2.2:4420", "192.0.2.2,nqn.x:y", "host:4420,nqn.x:y"] {
        let error = line(&here, wrong);
        assert!(error.contains("--nvmet-rdma <ADDR:PORT,NQN>"), "{error}");
        assert!(error.contains("a target is written ADDR:PORT,NQN, as in"), "{error}");
    }
    let error = line(&here, "192.0.2.2:4420,");
    assert!(error.contains("--nvmet-rdma <ADDR:PORT,NQN>"), "{error}");
    for nowhere in ["0.0.0.0:4420", "[::]:4420", "192.0.2.2:0"] {
        let error = line(&here, &format!("{nowhere},{NQN}"));
        assert!(error.contains("nobody can connect to") && error.contains(nowhere), "{error}");
        assert!(error.contains("name the address and port at which the target listens"), "{error}");
    }
    let error = line(&[], &format!("192.0.2.2:4420,{NQN}"));
    assert!(error.contains("--rdma <ADDR>"), "{error}");
    let error = line(&here, &format!("[2001:db8::1]:4420,{NQN}"));
    assert!(error.contains("[2001:db8::1]:4420 cannot be reached from 192.0.2.1"), "{error}");
    assert!(error.contains("name two of one kind"), "{error}");
    let error = line(&["--rdma", "rxe0"], &format!("192.0.2.2:4420,{NQN}"));
    assert!(error.contains("--rdma <ADDR>") && error.contains("rxe0"), "{error}");
}

#[test]
fn hosts_are_agents_in_the_experiment_of_neighbours() {
    if !has_two_cores() {
        return;
    }
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let short = ["--quick", "--blocks", "1", "--runtime", "200ms", "--ramp_time", "50ms"];
    let usual = ["bench", "run", "FLEET", "--bed", "loopback", "--out", &out];
    let found = run(&[&usual[..], &short].concat());
    if found.code != Some(0) {
        assert!(found.stderr.contains("common window"), "{}", found.stderr);
        return println!("SKIPPED: other programs have delayed every run of an agent");
    }
    let text = std::fs::read_to_string(Path::new(&out).join("FLEET.json")).unwrap();
    let record: Value = serde_json::from_str(&text).unwrap();
    let points = record["points"].as_array().unwrap();
    if is_overloaded(&record) {
        return println!("SKIPPED: nothing to test here: {}", record["missing"]);
    }
    assert_eq!(points.len(), 4, "{record}");
    for point in points {
        let values = &point["runs"][0]["values"];
        assert!(values["iops"].as_f64().unwrap() > 0.0, "{point}");
        let neighbours = values["neighbour_gbit_per_s"].as_f64().unwrap();
        assert_eq!(neighbours > 0.0, point["x"] == "1", "{point}");
    }
    assert!(text.contains("processes on one machine"), "what stands in is named");
}

#[test]
fn devices_are_measured_without_a_network() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let line = |words: &[&str], time: &str| {
        let usual = ["--runtime", time, "--ramp_time", "5ms", "-o", "json"];
        run(&[&["bench", "local"], words, &usual[..]].concat())
    };
    // Other programs may leave a short run no time for a single command: a longer one follows it.
    let measured = |words: &[&str], kinds: &[&str]| {
        let mut last = None;
        for time in ["50ms", "500ms", "5s", "30s"] {
            let found = line(words, time);
            if found.code != Some(0) {
                return Err(found.stderr);
            }
            let value: Value = serde_json::from_str(&found.stdout).unwrap();
            if kinds.iter().all(|kind| value[kind]["count"].as_u64() > Some(0)) {
                return Ok(value);
            }
            last = Some(value);
        }
        panic!("no command ended: {last:?}");
    };
    let value = measured(&["ram:16m", "--rw", "randrw"], &["read", "write"]).unwrap();
    assert!(
        value["read"]["iops"].as_f64().unwrap() > 0.0 && value["engine"] == "reactor",
        "{value}"
    );
    assert!(value["write"]["p99_ns"].as_u64().unwrap() > 0, "{value}");
    for words in [&["--file", &file][..], &["--file", &file, "--iopoll"]] {
        if let Err(error) = measured(words, &["read"]) {
            // A file system without O_DIRECT or IOPOLL, or a container without io_uring, says so.
            let known = ["O_DIRECT", "IOPOLL", "io_uring"];
            assert!(known.iter().any(|word| error.contains(word)), "{error}");
        }
    }
    let none = line(&["--iopoll"], "50ms");
    assert!(none.code == Some(2) && none.stderr.contains("--file"), "{}", none.stderr);
    let large = line(&["ram:16m", "--bs", "1m", "--iodepth", "64", "--file", &file], "50ms");
    assert_eq!(large.code, Some(2), "{}", large.stderr);
}

/// Starts a run, and kills it between its first block and its end.
fn kill_midway(words: &[&str], out: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut child = Command::new(env!("CARGO_BIN_EXE_raceline"))
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !Path::new(out).join("MINE.json").exists() {
            assert!(Instant::now() < deadline, "no block within a minute");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if record(out)["complete"] == false {
            break;
        }
        // This program had no time to kill the other one before its end.
        assert!(Instant::now() < deadline, "each run was killed too late");
        std::fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn a_run_that_is_killed_goes_on_and_is_compared() {
    if !has_two_cores() {
        return;
    }
    let scratch = Scratch::new();
    let (file, out) = (scratch.path("mine.toml"), scratch.path("out"));
    std::fs::write(&file, MINE).unwrap();
    let words = [
        "bench",
        "run",
        "--file",
        &file,
        "--out",
        &out,
        "--blocks",
        "6",
        "--runtime",
        "100ms",
        "--ramp_time",
        "10ms",
    ];
    kill_midway(&words, &out);
    let kept = record(&out);
    assert_eq!(kept["complete"], false);
    let table = ok(&words);
    assert!(table.contains("Which mode is faster?"), "{table}");
    assert!(table.contains("| IOPS, polling over interrupts | 4 | "), "{table}");
    let whole = record(&out);
    assert_eq!(
        (&whole["complete"], &whole["started_unix_s"]),
        (&true.into(), &kept["started_unix_s"])
    );
    if is_overloaded(&whole) {
        return println!("SKIPPED: nothing to test here: {}", whole["missing"]);
    }
    for point in 0..2 {
        let runs = |record: &Value| record["points"][point]["runs"].as_array().unwrap().clone();
        assert_eq!(runs(&whole).len(), 6);
        let (kept, whole) = (runs(&kept), runs(&whole));
        assert_eq!(kept[0]["latencies"], whole[0]["latencies"], "the first block is kept");
    }
    let same = ok(&["bench", "compare", &out, &out]);
    assert!(same.contains("100.0 % of 4 values agree"), "{same}");
    let said = ok(&["bench", "report", &out, "--file", &file]);
    assert!(said.contains("report.html: 1 of "), "{said}");
    let page = std::fs::read_to_string(Path::new(&out).join("report/report.html")).unwrap();
    assert!(page.contains("Which mode is faster?") && page.contains("<svg"), "no plot on the page");
    // Without its file the experiment is unknown: nothing is left to report.
    let error = fails(&["bench", "report", &out], 1);
    assert!(error.contains("MINE.json: its experiment \"MINE\" is not one"), "{error}");
    let other = scratch.path("other");
    std::fs::create_dir(&other).unwrap();
    let mut changed = whole;
    let environment = &mut changed["environment"];
    assert_eq!(environment["interface"]["name"], "lo", "the whole environment is stored");
    environment["kernel"]["release"] = "2.6.32".into();
    std::fs::write(Path::new(&other).join("MINE.json"), changed.to_string()).unwrap();
    let error = fails(&["bench", "compare", &out, &other], 1);
    assert!(
        error.contains("environment.kernel.release: ") && error.contains("--anyway"),
        "{error}"
    );
    ok(&["bench", "compare", &out, &other, "--anyway"]);
}
