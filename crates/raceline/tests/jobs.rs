//! The job files of the papers, run by `raceline perf --job` against a target of this program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::Value;
use support::counting::Counting;
use support::{Export, Scratch, run};

/// Values that suit a test better than the large drives and processors of a laboratory.
const HERE: [(&str, &str); 2] = [("size", "2m"), ("cpus_allowed", "0")];
/// Keys that set times: without them, a job ends when it has been over its blocks once.
const TIMES: [&str; 3] = ["time_based", "runtime", "ramp_time"];

/// The file with other values for these keys, and otherwise unchanged.
fn shortened(text: &str) -> String {
    let line = |line: &str| {
        let key = line.split('=').next().unwrap_or(line);
        let here = HERE.iter().find(|(name, _)| *name == key);
        let here = here.map_or_else(|| line.to_owned(), |(key, value)| format!("{key}={value}"));
        (!TIMES.contains(&key)).then_some(here)
    };
    // The value that the environment would give.
    text.replace("${JOBS}", "3").lines().filter_map(line).collect::<Vec<String>>().join("\n")
}

/// Runs a file; gives, for each job of the report, its name and its numbers of reads and writes.
#[track_caller]
fn jobs(export: &Export, text: &str) -> Vec<(String, u64, u64)> {
    let scratch = Scratch::new();
    let file = scratch.file("paper.fio", shortened(text).as_bytes());
    let output = run(&export.host(&["perf", "--job", &file, "-o", "json"]));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let of = |job: &Value| {
        let ios = |side: &str| job[side]["total_ios"].as_u64().unwrap_or(0);
        (job["jobname"].as_str().unwrap().to_owned(), ios("read"), ios("write"))
    };
    report["jobs"].as_array().unwrap().iter().map(of).collect()
}

/// Checks that these jobs, and no others, have only read (`r`) or only written (`w`).
#[track_caller]
fn expect(jobs: &[(String, u64, u64)], expected: &[(&str, char)]) {
    let did = |&(ref name, read, write): &(String, u64, u64)| match (read > 0, write > 0) {
        (true, false) => (name.clone(), 'r'),
        (false, true) => (name.clone(), 'w'),
        _ => panic!("{jobs:?}"),
    };
    let did: Vec<(String, char)> = jobs.iter().map(did).collect();
    let expected: Vec<(String, char)> =
        expected.iter().map(|&(name, side)| (name.to_owned(), side)).collect();
    assert_eq!(did, expected);
}

/// On all six namespaces, which the file's six lines name.
#[test]
fn the_job_of_the_adq_paper_runs() {
    let target = Counting::start(6);
    let scratch = Scratch::new();
    // Each of the three jobs reads 6 MiB, in turn from each namespace.
    let text =
        format!("{}\nio_size=6m\n", shortened(include_str!("../../bench/tests/fio/adq.fio")));
    let output = target.perf(&scratch.file("adq.fio", text.as_bytes()));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(target.reads(), [3 * 256; 6]);
    target.end();
}

#[test]
fn the_jobs_of_the_jbof_paper_run() {
    let export = Export::start(&["ram:4M", "--max-io-size", "1m"]);
    let fill = jobs(&export, include_str!("../../bench/tests/fio/jbof-precondition.fio"));
    // 2 MiB in pieces of 512 KiB.
    assert_eq!(fill, [("fill".to_owned(), 0, 4)]);
    let jobs = |text| jobs(&export, text);
    let bandwidth = jobs(include_str!("../../bench/tests/fio/jbof-bandwidth.fio"));
    expect(&bandwidth, &[("read-8k", 'r'), ("read-64k", 'r'), ("read-256k", 'r')]);
    let latency = jobs(include_str!("../../bench/tests/fio/jbof-latency.fio"));
    expect(&latency, &[("read", 'r'), ("write", 'w')]);
    export.terminate();
}

#[test]
fn the_jobs_of_the_talk_run() {
    let export = Export::start(&["ram:4M", "--max-io-size", "1m"]);
    let jobs = |text| jobs(&export, text);
    let depth = jobs(include_str!("../../bench/tests/fio/talk-depth.fio"));
    expect(&depth, &[("depth-1", 'r'), ("depth-32", 'r'), ("depth-32-batch-8", 'r')]);
    let mix = jobs(include_str!("../../bench/tests/fio/talk-mix.fio"));
    expect(&mix, &[("readers", 'r'), ("writer", 'w')]);
    export.terminate();
}
