//! Job files of fio as users bring them: their names, numbers, depth and mistakes.

use std::path::Path;

use serde_json::Value;

use crate::support::counting::Counting;
use crate::support::{Export, Output, run};

/// One of the files beside this test.
fn input(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field/inputs");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Runs a job file against an export.
fn perf(export: &Export, file: &str) -> Output {
    run(&export.host(&["perf", "--job", file, "-o", "json"]))
}

/// For each job of a report, its name and its number of commands.
fn counts(report: &str) -> Vec<(String, u64)> {
    let report: Value = serde_json::from_str(report).unwrap();
    let of = |job: &Value| {
        let ios = |side: &str| job[side]["total_ios"].as_u64().unwrap();
        (job["jobname"].as_str().unwrap().to_owned(), ios("read") + ios("write"))
    };
    report["jobs"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn six_lines_of_filename_are_six_namespaces() {
    let target = Counting::start(6);
    let output = target.perf(&input("six-lines.fio"));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(counts(&output.stdout), [("lines".to_owned(), 1536)]);
    assert_eq!(target.reads(), [256; 6], "in turn");
    target.end();
}

#[test]
fn what_global_names_is_added_to_what_a_job_names() {
    let target = Counting::start(5);
    let output = target.perf(&input("global-and-own.fio"));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    // 2 MiB in 64 KiB commands is 32 for each namespace of each job: 1 and 2, 1 and 3 and 4, 1 and 5.
    let jobs = [("first", 64), ("second", 96), ("third", 64)];
    assert_eq!(counts(&output.stdout), jobs.map(|(name, count)| (name.to_owned(), count)));
    assert_eq!(target.reads(), [96, 32, 32, 32, 32]);
    target.end();
}

#[test]
fn every_suffix_is_what_fio_makes_of_it() {
    let export = Export::start(&["ram:4M"]);
    let output = perf(&export, &input("suffixes.fio"));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let expected = [
        ("binary-k", 256),
        ("binary-ki", 256),
        ("binary-kib", 250),
        ("decimal-k", 250),
        ("decimal-ki", 250),
        ("decimal-kib", 256),
    ];
    assert_eq!(counts(&output.stdout), expected.map(|(name, count)| (name.to_owned(), count)));
    export.terminate();
}

#[test]
fn files_of_other_systems_are_read() {
    let export = Export::start(&["ram:4M"]);
    let output = perf(&export, &input("other-system.fio"));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let expected = [("named by a key", 128), ("twice", 128), ("twice", 16)];
    assert_eq!(counts(&output.stdout), expected.map(|(name, count)| (name.to_owned(), count)));
    export.terminate();
}

#[test]
fn depth_128_runs_on_both_targets_as_they_come() {
    let file = input("deep.fio");
    let expected = [("deep".to_owned(), 1024)];
    let export = Export::start(&["ram:4M"]);
    let output = perf(&export, &file);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(counts(&output.stdout), expected);
    let words = ["perf", "--iodepth", "128", "--runtime", "200ms", "--ramp_time", "0"];
    let output = run(&export.host(&words));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    export.terminate();
    let target = Counting::start(1);
    let output = target.perf(&file);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(counts(&output.stdout), expected);
    target.end();
}

/// If a controller's limit is the reason, the error names it, the line, and a remedy.
#[test]
fn the_controllers_limit_is_named_where_it_is_the_reason() {
    let export = Export::start(&["ram:4M", "--max-queue-depth", "127"]);
    let output = perf(&export, &input("deep.fio"));
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    let expected = "deep.fio:11: iodepth 128 needs a queue of 129 entries and the controller allows 128 \
                    (CAP.MQES): use iodepth 127, or let the target allow more";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    let change = "raceline export --max-queue-depth, max_queue_depth of nvmf_create_transport";
    assert!(output.stderr.contains(change), "{}", output.stderr);
    // The value of -Q is not a limit of the controller.
    let file = input("deep.fio");
    let output = run(&export.host(&["perf", "--job", &file, "-Q", "64"]));
    let expected = "deep.fio:11: iodepth 128 needs -Q 129 or more";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    export.terminate();
}

#[test]
fn errors_name_the_line_that_is_wrong() {
    let export = Export::start(&["ram:4M"]);
    for (file, message) in [
        ("combination.fio", ":3: time_based needs a runtime"),
        ("missing-target.fio", ":7: filename `/dev/nvme3n1` names no target: write Nvme0n1 for"),
        ("missing-namespace.fio", ":7: there is no namespace 9; the subsystem has 1"),
        ("too-large.fio", ":7: bs 16777216 is more than the controller's largest transfer"),
        ("refused-forms.fio", ":3: bs: 4096 bytes for reads and 8192 for writes"),
    ] {
        let output = perf(&export, &input(file));
        assert_eq!(output.code, Some(2), "{}", output.stderr);
        assert!(output.stderr.contains(&format!("{file}{message}")), "{}", output.stderr);
        assert_eq!(output.stdout, "", "{file}");
    }
    export.terminate();
}

/// One document on standard output, the text for users on standard error.
#[test]
fn the_demo_has_a_document() {
    let output = run(&["demo", "--seconds", "2", "-o", "json"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    let verified = document["demo"]["verified_bytes"].as_u64().unwrap();
    assert!(verified > 0 && verified.is_multiple_of(4096), "{verified}");
    assert!(document["demo"]["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    let jobs = document["jobs"].as_array().unwrap();
    let of = |job: &Value| {
        let option = |name: &str| job["job options"][name].as_str().unwrap().to_owned();
        (option("rw"), option("iodepth"))
    };
    let expected = [("randread", "1"), ("randread", "32"), ("randwrite", "1"), ("randwrite", "32")];
    let expected = expected.map(|(rw, depth)| (rw.to_owned(), depth.to_owned()));
    assert_eq!(jobs.iter().map(of).collect::<Vec<_>>(), expected);
    for job in jobs {
        let side = if job["job options"]["rw"] == "randread" { "read" } else { "write" };
        assert!(job[side]["iops"].as_f64().unwrap() > 0.0, "{job}");
        assert!(job[side]["clat_ns"]["percentile"]["99.000000"].as_u64().unwrap() > 0, "{job}");
    }
    assert!(output.stderr.contains("every block is as written"), "{}", output.stderr);
}

#[test]
fn host_verbs_take_the_transport_as_nvme_cli_has_it() {
    let export = Export::start(&["ram:4M"]);
    for verb in [&["identify", "-t", "tcp"][..], &["read", "--transport", "tcp", "--blocks", "1"]] {
        let output = run(&export.host(verb));
        assert_eq!(output.code, Some(0), "{verb:?}: {}", output.stderr);
    }
    let found = run(&["discover", "-t", "tcp", "-a", &export.address, "-s", &export.port]);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let other = run(&export.host(&["identify", "-t", "fc"]));
    assert_eq!(other.code, Some(2));
    assert!(
        other.stderr.contains("Raceline does not: write -t tcp or -t rdma"),
        "{}",
        other.stderr
    );
    export.terminate();
}
