//! Operations are measured in every way, and each row names its reference.

use std::time::Duration;

use raceline_accel::{CrcPath, OpCode};
use raceline_bench::accel::report::Report;
use raceline_bench::accel::{AccelBench, AccelConfig, HOT, Way};

fn config() -> AccelConfig {
    AccelConfig {
        operations: vec![OpCode::Crc32c, OpCode::CopyCrc32c, OpCode::Copy],
        paths: vec![CrcPath::Auto, CrcPath::Table],
        devices: Vec::new(),
        sizes: vec![512, 4096],
        depths: vec![1, 8],
        working_sets: vec![HOT, 256 << 10],
        runs: 3,
        time: Duration::from_micros(200),
        seed: 1,
    }
}

fn report(config: AccelConfig) -> Report {
    let mut bench = AccelBench::open(config).expect("a channel");
    let mut report = Report::default();
    for case in bench.cases() {
        report.rows.extend(bench.measure(case).unwrap_or_else(|error| panic!("{case:?}: {error}")));
    }
    report
}

#[test]
fn software_stands_beside_the_same_done_directly() {
    let report = report(config());
    // Two sizes and two working sets: three ways for operations with a digest, two for copies.
    assert_eq!(report.rows.len(), 4 * (3 + 3 + 2));
    let mut direct = &report.rows[0];
    for row in &report.rows {
        match row.way {
            Way::Direct(_) => {
                assert!(row.against.is_none());
                direct = row;
            }
            Way::Software(path) => {
                assert_eq!(path.is_none(), row.case.operation == OpCode::Copy);
                assert_eq!(row.case, direct.case);
                let against = row.against.as_ref().unwrap();
                assert_eq!(against, &(direct.way.clone(), direct.runs_ns.clone()));
            }
            Way::Device { .. } => unreachable!("there is none"),
        }
        assert_eq!(row.runs_ns.len(), 3);
        assert!(row.runs_ns.iter().all(|&ns| ns > 0.0));
        let least = if row.case.working_set == HOT { row.case.size } else { 256 << 10 };
        assert!(row.touched_bytes >= least && row.touched_bytes < 2 * least + 8192);
    }
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let software = &json[1];
    assert_eq!(software["operation"], "crc32c");
    assert_eq!(software["engine"], "software");
    assert_eq!(software["against"], "crc-fast called directly");
    assert_eq!((&software["path"], &json[2]["path"]), (&"auto".into(), &"table".into()));
    assert!(software["ratio"].as_f64().unwrap() > 0.0);
    assert!(software["overhead_ns"].is_number() && software["gb_per_s"].as_f64().unwrap() > 0.0);
}
