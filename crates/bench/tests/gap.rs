//! The gap measures both sides, over connections that it makes once per point.

use std::time::Duration;

use raceline_bench::congestion::CongestionControl;
use raceline_bench::distance::Distances;
use raceline_bench::gap::report::Report;
use raceline_bench::gap::{Case, Gap, GapConfig, GapError, Subject};
use raceline_bench::machine::Origin;
use raceline_reactor::affinity::allowed_cores;
use raceline_reactor::{Backend, HugePages, Mode};
use raceline_tls::Suite;

const CASES: [Case; 3] = [
    Case { io_bytes: 4096, write: false, depth: 8, connections: 2 },
    // Deeper than a usual queue.
    Case { io_bytes: 4096, write: true, depth: 128, connections: 1 },
    Case { io_bytes: 128 << 10, write: true, depth: 2, connections: 1 },
];

/// How long runs are. A busy machine may leave a side no time for a single command in a short one, and longer ones follow.
const TIMES: [Duration; 4] = [
    Duration::from_millis(120),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(20),
];

fn config() -> GapConfig {
    GapConfig {
        subject: Subject::Export,
        memory_bytes: 8 << 20,
        pages: HugePages::None,
        null: false,
        buffer_each: false,
        staged: false,
        work: Duration::ZERO,
        tls: None,
        // The machine of a test may have one core for both sides; the limit then blocks as well.
        mode: Mode::Interrupt,
        backend: Backend::Auto,
        target_core: None,
        host_core: None,
        pairs: 2,
        ramp: Duration::from_millis(5),
        time: TIMES[0],
        seed: 1,
        distances: Distances::default(),
    }
}

fn report(config: GapConfig) -> Report {
    report_of(config, &CASES)
}

/// The report of the first runs in all of which commands ended.
fn report_of(config: GapConfig, cases: &[Case]) -> Report {
    let mut found = None;
    for time in TIMES {
        let report = report_once(GapConfig { time, ..config.clone() }, cases);
        let mut pairs = report.points.iter().flat_map(|point| &point.pairs);
        let ends = pairs.all(|pair| {
            let plain = pair.plain_iops.is_none_or(|iops| iops > 0.0);
            pair.reference_iops > 0.0 && pair.iops > 0.0 && plain
        });
        found = Some(report);
        if ends {
            break;
        }
    }
    found.expect("there are times")
}

fn report_once(config: GapConfig, cases: &[Case]) -> Report {
    let mut gap = Gap::start(&config, cases).expect("a target");
    let mut report = Report {
        config,
        pages: "plain".to_owned(),
        congestion_control: CongestionControl::of_system(),
        origin: Origin::here(),
        points: Vec::new(),
    };
    for &case in cases {
        let point = gap.measure(case, &|| false);
        report.points.push(point.unwrap_or_else(|error| panic!("{case}: {error}")));
    }
    gap.stop().expect("the target ends");
    report
}

#[test]
fn each_point_has_its_pairs_and_they_are_in_the_json() {
    let report = report(config());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), CASES.len());
    for (point, case) in json.as_array().unwrap().iter().zip(CASES) {
        let number = |name: &str| point[name].as_f64().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(point["case"], case.to_string());
        assert_eq!((&point["target"], &point["reference"]), (&"export".into(), &"limit".into()));
        assert_eq!(point["version"], env!("CARGO_PKG_VERSION"));
        assert!(point["unix_s"].as_u64() >= Some(1_700_000_000) && point["processor"].is_string());
        assert!(number("limit_iops") > 0.0 && number("iops") > 0.0);
        assert!(number("ratio_min") <= number("ratio") && number("ratio") <= number("ratio_max"));
        assert!((number("spread") - (number("ratio_max") - number("ratio_min"))).abs() < 1e-9);
        assert_eq!(point["reached"], number("ratio") >= 0.85);
        assert!(number("p50_us") > 0.0 && number("p50_us") <= number("p99_us"));
        assert_eq!(point["pairs"].as_array().unwrap().len(), 2);
        assert!(point["pairs"][0]["ratio"].as_f64().unwrap() > 0.0);
        // Floating sides have no distance.
        assert!(point.get("core_round_trip_ns").is_none());
        assert_eq!(
            (&point["pairs"][0]["apart"], &point["repeated_apart"]),
            (&false.into(), &0.into())
        );
        assert!(
            report
                .congestion_control
                .to_string()
                .contains(point["congestion_control"].as_str().unwrap())
        );
        assert_eq!((&point["pages"], &point["memory"]), (&"plain".into(), &"ram".into()));
    }
}

#[test]
fn over_tls_each_pair_has_a_run_without_it() {
    let tls = Some(Suite::Aes256GcmSha384);
    let report = report_of(GapConfig { tls, ..config() }, &CASES[..2]);
    assert!(report.row(&report.points[0]).contains(" of plain ("));
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    for point in json.as_array().unwrap() {
        let number = |name: &str| point[name].as_f64().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(point["tls"], "TLS_AES_256_GCM_SHA384");
        assert!(number("limit_iops") > 0.0 && number("iops") > 0.0);
        assert_eq!(point["reached"], number("ratio") >= 0.9);
        assert!(number("plain_ratio_min") <= number("plain_ratio"));
        assert!(number("plain_ratio") <= number("plain_ratio_max"));
        assert!(point["pairs"][0]["plain_iops"].as_f64() > Some(0.0));
    }
    let daemon = GapConfig { tls, ..serve(Subject::Serve) };
    let error = Gap::start(&daemon, &CASES[..1]).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("--target export"), "{error}");
}

/// A daemon's memory has pages of the kernel's choice.
fn serve(subject: Subject) -> GapConfig {
    GapConfig { subject, pages: HugePages::Transparent, ..config() }
}

#[test]
fn a_daemon_is_measured_beside_the_limit() {
    let report = report(serve(Subject::Serve));
    assert!(report.heading().contains("       limit       serve   ratio"), "{}", report.heading());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    for point in json.as_array().unwrap() {
        assert_eq!((&point["target"], &point["reference"]), (&"serve".into(), &"limit".into()));
        assert!(point["limit_iops"].as_f64() > Some(0.0) && point["iops"].as_f64() > Some(0.0));
        assert!(point["limit_tuning"].is_string() && point.get("export_iops").is_none());
    }
}

#[test]
fn a_daemon_is_measured_beside_export() {
    let report = report_of(GapConfig { pairs: 3, ..serve(Subject::Both) }, &CASES[..2]);
    assert!(report.heading().contains("      export       serve   ratio"), "{}", report.heading());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    for point in json.as_array().unwrap() {
        let number = |name: &str| point[name].as_f64().unwrap_or_else(|| panic!("{name}"));
        assert_eq!((&point["target"], &point["reference"]), (&"serve".into(), &"export".into()));
        assert!(number("export_iops") > 0.0 && number("iops") > 0.0);
        assert_eq!(point["reached"], number("ratio") >= 0.97);
        assert_eq!(point["pairs"].as_array().unwrap().len(), 3);
        assert!(point["pairs"][0]["export_iops"].as_f64() > Some(0.0));
        assert!(point.get("limit_iops").is_none() && point.get("limit_tuning").is_none());
    }
}

#[test]
fn what_a_daemon_cannot_do_is_refused() {
    let plain = GapConfig { pages: HugePages::None, ..serve(Subject::Serve) };
    let epoll = GapConfig { backend: Backend::Epoll, ..serve(Subject::Both) };
    let many = Case { connections: 200, ..CASES[0] };
    let wrong = [(plain, CASES[0], "plain pages"), (epoll, CASES[0], "epoll")];
    for (config, case, what) in
        wrong.into_iter().chain([(serve(Subject::Serve), many, "128 sockets")])
    {
        let Err(GapError::Invalid(why)) = Gap::start(&config, &[case]) else { panic!("{what}") };
        assert!(why.contains(what) && why.contains("--target export"), "{why}");
    }
}

#[test]
fn the_table_has_a_line_per_point_and_a_summary() {
    let report = report(GapConfig { null: true, pairs: 1, ..config() });
    let heading = report.heading();
    let (tcp, columns) = heading.split_once('\n').unwrap();
    assert_eq!(tcp, report.congestion_control.to_string());
    let width = columns.find("notes").unwrap();
    for point in &report.points {
        let row = report.row(point);
        assert!(row.starts_with(&point.case.to_string()) && row.len() >= width - 3, "{row}");
        assert!(row.contains(" ok ") || row.contains(" BELOW "), "{row}");
    }
    let summary = report.summary();
    assert!(summary.contains("3 points") && summary.contains("below 0.8;"), "{summary}");
    assert!(!summary.contains("apart"), "{summary}");
}

#[test]
fn the_distance_of_two_cores_is_reported() {
    let cores = allowed_cores().unwrap();
    let [target, host, ..] = cores[..] else {
        return eprintln!("SKIPPED: a distance takes two cores");
    };
    let cores = GapConfig { target_core: Some(target), host_core: Some(host), ..config() };
    let mut report = report_of(GapConfig { pairs: 3, ..cores }, &CASES[..1]);
    let Some(measured) = report.points[0].pairs[0].round_trip else {
        return eprintln!("SKIPPED: this machine is too busy for a look at the distance");
    };
    // One pair was taken while the cores were apart, and one of the others was repeated for that reason.
    let ns = Duration::from_nanos;
    for (pair, found) in report.points[0].pairs.iter_mut().zip([57, 320, 60]) {
        (pair.round_trip, pair.disturbance.apart) = (Some(ns(found)), found == 320);
    }
    (report.points[0].repeated, report.points[0].repeated_apart) = (2, 1);
    assert!(measured > Duration::ZERO && report.points[0].pairs[1].disturbance.is_too_much());
    let summary = report.summary();
    let line = format!(
        "\ncores {target} and {host} are 60 ns apart (a cache line there and back); 1 pair was repeated \
         because they were not; 1 pair was taken though they were further apart\n"
    );
    assert!(summary.ends_with(&line), "{summary}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json[0]["core_round_trip_ns"], 60);
    assert_eq!((&json[0]["repeated"], &json[0]["repeated_apart"]), (&2.into(), &1.into()));
    let pair = &json[0]["pairs"][1];
    assert_eq!((&pair["core_round_trip_ns"], &pair["apart"]), (&320.into(), &true.into()));
    assert!(json[0]["disturbed"].as_u64().unwrap() >= 1);
}

#[test]
fn asked_to_stop_it_stops() {
    let config = config();
    let mut gap = Gap::start(&config, &CASES).unwrap();
    let stopped = gap.measure(CASES[0], &|| true);
    assert!(matches!(stopped, Err(GapError::Stopped | GapError::Host(_))));
    gap.stop().unwrap();
}
