//! Metrics: what they say, in which form, and that what is packaged asks only for those that exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::Served;

pub(crate) const DASHBOARD: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/raceline.json");
pub(crate) const RULES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus/raceline.rules.yml");
const OPEN: &str = "Accept: application/openmetrics-text;version=1.0.0";
const NQN: &str = "nqn.2016-06.io.spdk:cnode1";

/// The expressions of the dashboard, with its variables replaced.
pub(crate) fn expressions() -> Vec<String> {
    let text = std::fs::read_to_string(DASHBOARD).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let found: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|text| text.replace("$__rate_interval", "1m").replace("$instance", ".*"))
        .collect();
    assert!(found.len() > 40, "{}", found.len());
    found
}

/// The names in a text that begin as ours do.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("raceline_")).collect()
}

/// The names of all samples that can be, by what the text declares.
fn declared(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in text.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        assert!(all.insert(name.to_owned()), "{name} is declared twice");
        if kind == "histogram" {
            all.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
    }
    all
}

#[test]
fn what_is_packaged_asks_for_metrics_that_exist() {
    let served = Served::start();
    let known = declared(&served.get("/metrics").body);
    let rules = std::fs::read_to_string(RULES).unwrap();
    let wanted = expressions().join("\n");
    assert!(names(&rules).len() > 12 && names(&wanted).len() > 40);
    let unknown: Vec<&str> = names(&rules)
        .into_iter()
        .chain(names(&wanted))
        .filter(|name| !known.contains(*name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // The manual lists them all.
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/METRICS.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let is_derived =
        |name: &str| ["_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end));
    let missing: Vec<&String> = known
        .iter()
        .filter(|name| !is_derived(name))
        .filter(|name| !manual.contains(&format!("`{}`", name.trim_start_matches("raceline_"))))
        .collect();
    assert!(missing.is_empty(), "docs/METRICS.md lacks {missing:?}");
}

#[test]
fn what_was_exported_is_shown() {
    let served = Served::start();
    let port = served.export(NQN);
    served.change(
        "bdev_set_qos_limit",
        json!({ "name": "M0", "rw_ios_per_sec": 1000, "w_mbytes_per_sec": 1 }),
    );
    served.change("bdev_set_qd_sampling_period", json!({ "name": "M0", "period": 1000 }));
    let answer = served.ask("GET", "/metrics", &[OPEN], "");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.header("content-type"), Some(kind));
    let lines: BTreeSet<&str> = answer.body.lines().collect();
    for expected in [
        "raceline_ready 1",
        "raceline_bdev_capacity_bytes{bdev_name=\"M0\"} 1048576",
        "raceline_bdev_reads_completed_total{bdev_name=\"M0\"} 0",
        "raceline_bdev_iops_limit{bdev_name=\"M0\"} 1000",
        "raceline_bdev_bandwidth_limit_bytes{bdev_name=\"M0\",direction=\"write\"} 1048576",
        "raceline_bdev_queue_depth{bdev_name=\"M0\"} 0",
        &format!("raceline_subsystem_namespaces{{target=\"nvmf_tgt\",nqn=\"{NQN}\"}} 1"),
        &format!(
            "raceline_listener_connections{{target=\"nvmf_tgt\",address=\"127.0.0.1:{port}\",security=\"plain\",transport=\"tcp\"}} 0"
        ),
        &format!("raceline_subsystem_commands_total{{target=\"nvmf_tgt\",nqn=\"{NQN}\"}} 0"),
        "raceline_core_connections{target=\"nvmf_tgt\",core=\"0\",name=\"nvmf_tgt_poll_group_000\",serves=\"target\"} 0",
        "raceline_metrics_left_out{kind=\"bdevs\"} 0",
        "# EOF",
    ] {
        assert!(lines.contains(expected), "{expected}\n{}", answer.body);
    }
    assert!(
        answer.body.contains(&format!("nqn=\"{NQN}\",nsid=\"1\",bdev_name=\"M0\",anagrpid=\"1\""))
    );
    // The names of ceph-nvmeof's exporter, without ours.
    let theirs = served.get("/metrics?names=ceph-nvmeof").body;
    for expected in [
        "ceph_nvmeof_bdev_reads_completed_total{bdev_name=\"M0\"} 0\n",
        "# TYPE ceph_nvmeof_reactor_seconds_total counter\n",
        "ceph_nvmeof_subsystem_namespace_count{",
        "ceph_nvmeof_gateway_info{",
    ] {
        assert!(theirs.contains(expected), "{expected}\n{theirs}");
    }
    assert!(!theirs.contains("raceline_"));
}
