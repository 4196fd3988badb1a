//! Reports of one job and of several.

use std::time::Duration;

use super::*;
use crate::cost::Counts;
use crate::histogram::PERCENTILES;

fn job(name: &str, read: Latencies) -> JobReport {
    JobReport {
        name: name.to_owned(),
        title: format!("{name}: random reads"),
        group: 0,
        options: BTreeMap::from([("bs".to_owned(), "4k".to_owned())]),
        percentiles: None,
        measured: Duration::from_secs(2),
        read: Side::new(read, 4096),
        write: Side::default(),
        missed: 0,
        beyond_end: Duration::ZERO,
        verified: None,
        error: None,
    }
}

fn stage(jobs: Vec<JobReport>) -> StageReport {
    StageReport {
        jobs,
        window: Duration::from_secs(2),
        cpu: CpuTime { user: Duration::from_secs(1), system: Duration::from_millis(500) },
        loops: LoopCounters::default(),
        cost: Cost::default(),
        acceleration: Acceleration::default(),
        reconnects: 0,
    }
}

fn of(stages: Vec<StageReport>) -> Report {
    Report { precondition: Vec::new(), stages }
}

fn ramp() -> Latencies {
    let mut read = Latencies::new();
    (1..=1000u64).for_each(|us| read.record(Duration::from_micros(us)));
    read
}

/// A report with one job, changed by `change`.
fn report(change: impl FnOnce(&mut StageReport)) -> Report {
    let mut stage = stage(vec![job("randread", ramp())]);
    change(&mut stage);
    of(vec![stage])
}

fn plain() -> Report {
    report(|_| ())
}

fn json(report: &Report) -> serde_json::Value {
    serde_json::from_str(&report.to_json()).unwrap()
}

#[test]
fn json_has_the_fields_that_fio_readers_look_for() {
    let document = json(&plain());
    let job = &document["jobs"][0];
    assert_eq!(job["jobname"], "randread");
    assert_eq!(job["error"], 0);
    assert_eq!(job["job options"]["bs"], "4k");
    assert_eq!(job["usr_cpu"], 50.0);
    assert_eq!(job["sys_cpu"], 25.0);
    let read = &job["read"];
    assert_eq!(read["total_ios"], 1000);
    assert_eq!(read["iops"], 500.0);
    assert_eq!(read["bw_bytes"], 2_048_000);
    assert_eq!(read["bw"], 2000);
    assert_eq!(read["io_bytes"], 4_096_000);
    assert_eq!(read["runtime"], 2000);
    assert_eq!(read["lat_ns"]["min"], 1000);
    assert_eq!(read["lat_ns"]["max"], 1_000_000);
    assert_eq!(read["lat_ns"]["mean"], 500_500.0);
    assert!(read["lat_ns"]["stddev"].as_f64().unwrap() > 288_000.0);
    let percentile = &read["clat_ns"]["percentile"];
    assert!(percentile["50.000000"].as_u64().unwrap().abs_diff(500_000) < 1000);
    assert_eq!(percentile["99.990000"], 1_000_000);
    assert_eq!(percentile.as_object().unwrap().len(), PERCENTILES.len());
}

#[test]
fn the_cost_is_in_both_forms() {
    assert!(!plain().to_table().contains("cost per I/O"), "nothing was counted");
    let counts = Counts { system_calls: 250, ..Counts::default() };
    let costly = report(|stage| stage.cost = Cost { ios: 1000, counts, ..Cost::default() });
    assert_eq!(json(&costly)["jobs"][0]["cost"]["system_calls"], 0.25);
    let table = costly.to_table();
    assert!(table.contains("\ncost per I/O, this side\n"), "{table}");
    assert!(table.contains("0.250 system calls"), "{table}");
}

#[test]
fn reconnects_are_in_both_forms() {
    assert_eq!(json(&plain())["jobs"][0]["reconnects"], 0);
    assert!(!plain().to_table().contains("reconnects"));
    let lost = report(|stage| stage.reconnects = 1234);
    assert_eq!(json(&lost)["stages"][0]["reconnects"], 1234);
    let table = lost.to_table();
    assert!(table.contains("\nlost   1,234 reconnects: "), "{table}");
}

#[test]
fn the_idle_side_is_there_and_zero() {
    let document = json(&plain());
    let write = &document["jobs"][0]["write"];
    assert_eq!(write["total_ios"], 0);
    assert_eq!(write["iops"], 0.0);
    assert_eq!(write["lat_ns"]["min"], 0);
    assert!(write["clat_ns"].get("percentile").is_none());
}

#[test]
fn a_run_that_measured_nothing_divides_by_nothing() {
    let nothing = report(|stage| {
        stage.jobs[0].measured = Duration::ZERO;
        stage.jobs[0].read = Side::default();
    });
    assert_eq!(json(&nothing)["jobs"][0]["read"]["iops"], 0.0);
    assert!(nothing.to_table().contains("nothing completed"));
}

#[test]
fn failures_are_in_the_json() {
    let failed = report(|stage| stage.jobs[0].error = Some("LBA 7: lost".to_owned()));
    let job = &json(&failed)["jobs"][0];
    assert_eq!((&job["error"], &job["error_text"]), (&1.into(), &"LBA 7: lost".into()));
}

#[test]
fn the_table_shows_used_sides_only() {
    let loops = LoopCounters { busy_turns: 250, waits: 100 };
    let verified = Some(Verified { ios: 1000, bytes: 1000 * 4096 });
    let table = report(|stage| {
        stage.loops = loops;
        stage.jobs[0].missed = 3;
        stage.jobs[0].verified = verified;
    });
    let table = table.to_table();
    let row = table.lines().find(|line| line.starts_with("read")).unwrap();
    let cells: Vec<&str> = row.split_ascii_whitespace().collect();
    assert_eq!(cells[1..5], ["500", "1.95", "MiB/s", "500us"]);
    assert!(!table.contains("write  "), "{table}");
    assert!(table.contains("4.00 commands per turn, 0.10 sleeps per command"), "{table}");
    assert!(table.contains("3 commands were due"), "{table}");
    assert!(table.contains("3.91 MiB in 1,000 reads"), "{table}");
    let width = table.lines().nth(2).unwrap().chars().count();
    assert_eq!(row.chars().count(), width);
}

#[test]
fn a_command_that_outlasts_the_run_is_named_if_it_is_the_longest() {
    let table = |beyond| report(|stage| stage.jobs[0].beyond_end = beyond).to_table();
    let longest = Duration::from_nanos(ramp().max_ns());
    assert!(!table(longest).contains("stuck"), "{}", table(longest));
    let stuck = table(Duration::from_secs(31));
    assert!(stuck.contains("stuck  a command that was under way at the end took 31.0s"), "{stuck}");
    let report = report(|stage| stage.jobs[0].beyond_end = Duration::from_secs(31));
    assert_eq!(json(&report)["jobs"][0]["beyond_end_ns"], 31_000_000_000_u64);
}

#[test]
fn numbers_for_people() {
    assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    let bytes = [0, 1023, 1024, 1536, 1 << 20, (1 << 30) - 1, u64::MAX];
    let texts = ["0 B", "1023 B", "1 KiB", "1.50 KiB", "1 MiB", "1.00 GiB", "16 EiB"];
    assert_eq!(bytes.map(binary_bytes), texts);
    let times = [7.0, 999.4, 1000.0, 12_345.0, 999_600.0, 2_500_000.0, 3e9, 1e13];
    let texts = ["7ns", "999ns", "1.00us", "12.3us", "1.00ms", "2.50ms", "3.00s", "10000s"];
    assert_eq!(times.map(latency_text), texts);
}

#[test]
fn several_jobs_have_a_line_each_and_a_sum() {
    let both = of(vec![stage(vec![job("a", ramp()), job("longer-name", ramp())])]);
    let table = both.to_table();
    assert!(table.starts_with("a: random reads\nlonger-name: random reads\n"), "{table}");
    let cells = |start: &str| {
        let row = table.lines().find(|line| line.starts_with(start)).unwrap();
        row[start.len()..].split_ascii_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(["a read", "longer-name read", "all read"].map(cells), ["500", "500", "1,000"]);
    let document = json(&both);
    assert_eq!(document["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(document["jobs"][1]["jobname"], "longer-name");
    assert_eq!(document["jobs"][1]["read"]["total_ios"], 1000);
    // The process's CPU time belongs to both jobs.
    assert!(document["jobs"][0].get("usr_cpu").is_none());
    assert_eq!(document["stages"][0]["usr_cpu"], 50.0);
}

#[test]
fn stages_follow_each_other() {
    let two = Report {
        precondition: vec![Precondition {
            rw: "write",
            io_bytes: 131_072,
            bytes: 1 << 20,
            millis: 1500,
        }],
        ..of(vec![stage(vec![job("one", ramp())]), stage(vec![job("two", ramp())])])
    };
    let table = two.to_table();
    let expected = "precondition  write 128 KiB: 1 MiB written in 1.5 s\n\none: random reads\n";
    assert!(table.starts_with(expected), "{table}");
    assert!(table.find("two: random reads") > table.find("CPU "), "{table}");
    let document = json(&two);
    assert_eq!(document["precondition"][0]["bytes"], 1 << 20);
    assert_eq!(document["jobs"][1]["usr_cpu"], 50.0);
    assert!(json(&plain()).get("precondition").is_none());
}

#[test]
fn percentiles_that_were_asked_for_are_shown() {
    let listed = report(|stage| stage.jobs[0].percentiles = Some(vec![90.0, 99.5]));
    let header = listed.to_table().lines().nth(2).unwrap().to_owned();
    let columns: Vec<&str> = header.split_ascii_whitespace().collect();
    assert_eq!(columns, ["IOPS", "bandwidth", "mean", "p90", "p99.5", "max"]);
    let percentile = &json(&listed)["jobs"][0]["read"]["clat_ns"]["percentile"];
    let keys: Vec<&String> = percentile.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["90.000000", "99.500000"]);
}

#[test]
fn a_group_adds_up() {
    let mut group = job("x", ramp());
    let verified = Some(Verified { ios: 5, bytes: 20_480 });
    group.merge(&JobReport {
        missed: 2,
        verified,
        error: Some("e".to_owned()),
        ..job("x", ramp())
    });
    assert_eq!((group.read.latencies.count(), group.read.bytes), (2000, 2000 * 4096));
    assert_eq!((group.missed, group.verified, group.error), (2, verified, Some("e".to_owned())));
    assert_eq!(group.measured, Duration::from_secs(2));
}
