//! Every way to handle digests has its runs, and its lines in the report.

use std::sync::Arc;
use std::time::Duration;

use raceline_accel::CrcPath;
use raceline_bench::accel::Device;
use raceline_bench::digest::report::Report;
use raceline_bench::digest::{Case, DigestBench, DigestConfig, DigestError, Who};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_reactor::{Backend, HugePages, Mode};

const CASES: [Case; 3] = [
    Case::read(4096, 128),
    Case::read(16 << 10, 4),
    Case { io_bytes: 16 << 10, depth: 4, write: true },
];

/// How long runs are. A busy machine may leave a side no time for a single command in a short one, and longer ones follow.
const TIMES: [Duration; 4] = [
    Duration::from_millis(120),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(20),
];

fn config() -> DigestConfig {
    let engine = EmulatedEngine::start(EmulatedConfig::default(), 1).expect("a thread");
    DigestConfig {
        memory_bytes: 8 << 20,
        pages: HugePages::None,
        paths: vec![CrcPath::Table, CrcPath::Auto],
        device: Some(Device { engine: Arc::new(engine), is_emulated: true }),
        // The machine of a test may have one core for both sides.
        mode: Mode::Interrupt,
        backend: Backend::Auto,
        target_core: None,
        host_core: None,
        rounds: 2,
        ramp: Duration::from_millis(5),
        time: TIMES[0],
        seed: 1,
    }
}

/// The report of the first runs in all of which commands ended.
fn measured(config: &DigestConfig) -> Report {
    let mut found = None;
    for time in TIMES {
        let report = measured_once(DigestConfig { time, ..config.clone() });
        let mut runs = report.points.iter().flat_map(|point| &point.rounds).flat_map(|it| &it.runs);
        let ends = runs.all(|run| run.iops > 0.0);
        found = Some(report);
        if ends {
            break;
        }
    }
    found.expect("there are times")
}

fn measured_once(config: DigestConfig) -> Report {
    let mut bench = DigestBench::start(config.clone(), &CASES).expect("targets");
    let ways = bench.ways();
    assert_eq!(
        ways[..3],
        [Who::Nobody, Who::Software(CrcPath::Table), Who::Software(CrcPath::Auto)]
    );
    assert!(matches!(ways[3], Who::Offload { name: "dsa_emulated", is_emulated: true }));
    let mut report = Report { config, pages: "plain".to_owned(), ways, points: Vec::new() };
    for case in CASES {
        let point =
            bench.measure(case, &|| false).unwrap_or_else(|error| panic!("{case}: {error}"));
        report.points.push(point);
    }
    bench.stop().expect("the targets end");
    report
}

#[test]
fn all_ways_take_turns() {
    let report = measured(&config());
    for point in &report.points {
        assert_eq!(point.rounds.len(), 2);
        for run in point.rounds.iter().flat_map(|round| &round.runs) {
            assert!(run.iops > 0.0 && run.core_ns > 0.0, "{run:?}");
        }
    }
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    let measured = |case: Case| {
        let case = case.to_string();
        let lines = json.as_array().into_iter().flatten();
        lines.filter(move |line| line["source"] == "measured" && line["case"] == case.as_str())
    };
    for case in CASES {
        assert_eq!(measured(case).count(), 4, "{case}");
    }
    // 16 KiB at depth 4 was not published; 4 KiB at depth 128 was.
    let published = json.as_array().into_iter().flatten();
    assert_eq!(published.filter(|line| line["source"] == "published").count(), 1);
}

#[test]
fn asked_to_stop_it_stops() {
    let mut bench =
        DigestBench::start(DigestConfig { device: None, ..config() }, &CASES).expect("targets");
    let stopped = bench.measure(CASES[1], &|| true);
    assert!(matches!(stopped, Err(DigestError::Stopped | DigestError::Host(_))));
    bench.stop().expect("the targets end");
}
