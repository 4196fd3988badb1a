//! A real Prometheus and its tool: they take what is served and what is packaged.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use raceline_host::HostConfig;
use raceline_host::blocking::Host;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use serde_json::{Value, json};

use crate::filled::Filled;
use crate::metrics::{RULES, expressions};
use crate::support::{LIMIT, Served};

const TOOL: &str = "promtool";
/// Tests of the alerts, for promtool.
const RULE_TESTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus/raceline.rules.test.yml");
const SERVER: &str = "prometheus";
const NQN: &str = "nqn.2016-06.io.spdk:cnode1";

/// Whether a program is there; says what is skipped otherwise.
fn is_there(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("SKIPPED: there is no {program}; Debian has it in the package prometheus");
    }
    found.is_ok()
}

fn tool(arguments: &[&str], input: &str) {
    let (is_well, said) = run(arguments, input);
    assert!(is_well, "{arguments:?}: {said}");
}

/// What the tool has against metrics.
fn complaints(text: &str) -> String {
    run(&["check", "metrics"], text).1
}

/// Whether the tool ended well, and what it said.
fn run(arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(TOOL)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = [ended.stdout, ended.stderr].concat();
    (ended.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn promtool_finds_no_fault() {
    if !is_there(TOOL) {
        return;
    }
    let filled = Filled::start();
    tool(&["check", "metrics"], &filled.served.get("/metrics").body);
    tool(&["check", "rules", RULES], "");
    // Three names of the other exporter end as those of histograms do; the tool finds nothing else.
    let complaints = complaints(&filled.served.get("/metrics?names=ceph-nvmeof").body);
    let suffix = "non-histogram and non-summary metrics should not have \"_count\" suffix";
    let expected = ["host", "listener", "namespace"]
        .map(|what| format!("ceph_nvmeof_subsystem_{what}_count {suffix}"));
    assert_eq!(complaints.lines().collect::<Vec<_>>(), expected);
}

/// The packaged tests of the alerts have each of them fire, and not fire.
#[test]
fn every_alert_fires_and_does_not() {
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let (rules, tests) = (read(RULES), read(RULE_TESTS));
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 25, "{alerts:?}");
    for alert in alerts {
        for what in ["fires", "does not fire"] {
            assert!(
                tests.contains(&format!("- name: {alert} {what}\n")),
                "{alert} {what}: no test"
            );
        }
    }
    if is_there(TOOL) {
        tool(&["test", "rules", RULE_TESTS], "");
    }
}

/// A process that ends with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What Prometheus answers; `None` while it does not.
fn ask(address: SocketAddr, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

fn query(address: SocketAddr, expression: &str) -> Option<Value> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    ask(address, &format!("/api/v1/query?query={encoded}"))
}

/// Waits for something that Prometheus says.
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn start(served: &Served, folder: &Path, more: &[&str]) -> (Ends, SocketAddr) {
    let config = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
         rule_files: [ \"{RULES}\" ]\n\
         scrape_configs:\n\
         - {{ job_name: raceline, static_configs: [ {{ targets: [ \"{0}\" ] }} ] }}\n\
         - {{ job_name: ceph, params: {{ names: [ ceph-nvmeof ] }}, static_configs: [ {{ targets: [ \"{0}\" ] }} ] }}\n",
        served.address
    );
    let file = folder.join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    // The number of a port that is free now, at an address that nobody else uses.
    let [low, high, ..] = std::process::id().to_le_bytes();
    let own = Ipv4Addr::new(127, 98, high, low.max(1));
    let address = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap();
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let child = Command::new(SERVER)
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .args(more)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    (Ends(child), address)
}

#[test]
fn a_prometheus_scrapes_and_evaluates() {
    if !is_there(SERVER) {
        return;
    }
    let served = Served::start();
    served.export("nqn.2016-06.io.spdk:cnode1");
    let folder = tempfile::tempdir().unwrap();
    let (_running, address) = start(&served, folder.path(), &[]);
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    for (job, metric) in [("raceline", "raceline_ready"), ("ceph", "ceph_nvmeof_gateway_info")] {
        wait(&format!("job {job} is not up: {}", log()), || {
            let up = query(address, &format!("up{{job=\"{job}\"}} == 1 and on () {metric} == 1"))?;
            up["data"]["result"].as_array()?.first().cloned()
        });
    }
    // What it has taken is what was served, in the form that it prefers.
    let scraped = query(address, "raceline_bdev_capacity_bytes{bdev_name=\"M0\"}").unwrap();
    assert_eq!(scraped["data"]["result"][0]["value"][1], "1048576", "{scraped}");
    for expression in expressions() {
        let answer = query(address, &expression).unwrap();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
    }
    let rules = wait("the rules are not evaluated", || {
        let rules = ask(address, "/api/v1/rules")?;
        let all = rules["data"]["groups"][0]["rules"].as_array()?.clone();
        all.iter().all(|rule| rule["health"] == "ok").then_some(all)
    });
    assert!(rules.len() > 12, "{rules:?}");
}

/// Reads of a device that takes 20 ms for each.
fn read_slowly(served: &Served, count: u64) {
    served.change(
        "bdev_malloc_create",
        json!({ "name": "M1", "num_blocks": 2048, "block_size": 512 }),
    );
    let micros = 20_000;
    served.change(
        "bdev_delay_create",
        json!({
            "name": "D0", "base_bdev_name": "M1", "avg_read_latency": micros, "p99_read_latency": micros,
            "avg_write_latency": micros, "p99_write_latency": micros,
        }),
    );
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "D0", "nsid": 2 } });
    served.change("nvmf_subsystem_add_ns", namespace);
    let listeners = served.change("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    let port: u16 = listeners[0]["address"]["trsvcid"].as_str().unwrap().parse().unwrap();
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let host = Nqn::new("nqn.2014-08.org.example:reader").unwrap();
    let config = HostConfig::new(address, Nqn::new(NQN).unwrap(), host, HostId([7; 16]));
    let host = Host::connect(config).unwrap();
    let mut block = [0; 512];
    (0..count).for_each(|lba| host.read(NamespaceId(2), lba, &mut block).unwrap());
    // One that the target refuses.
    assert!(host.read(NamespaceId(2), 1 << 20, &mut block).is_err());
}

#[test]
fn native_histograms_are_stored() {
    if !is_there(SERVER) {
        return;
    }
    let served = Served::start();
    served.export(NQN);
    read_slowly(&served, 8);
    let folder = tempfile::tempdir().unwrap();
    let native = ["--enable-feature=native-histograms"];
    let (_running, address) = start(&served, folder.path(), &native);
    let series = "raceline_bdev_duration_seconds{bdev_name=\"D0\",operation=\"read\"}";
    let value = |expression: &str| {
        let answer = query(address, expression)?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse::<f64>().ok()
    };
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    let count = wait(&format!("nothing is stored: {}", log()), || {
        value(&format!("histogram_count({series})"))
    });
    assert_eq!(count, 8.0);
    let sum = value(&format!("histogram_sum({series})")).unwrap();
    assert!(sum >= 0.16, "{sum}");
    // It took 20 ms at least, which is above 2^-6 s: the quantile lies in that bucket, or in one above on a busy machine.
    let median = value(&format!("histogram_quantile(0.5, {series})")).unwrap();
    assert!(median > 1.0 / 64.0 && median < 1.0, "{median}");
    // Counters and gauges come as in the text, whatever their labels hold.
    for (expression, expected) in [
        ("raceline_bdev_reads_completed_total{bdev_name=\"D0\"}", 8.0),
        ("raceline_bdev_capacity_bytes{bdev_name=\"M0\"}", 1_048_576.0),
        ("raceline_command_errors_total{status=\"0/80\",name=\"LBA Out of Range\"}", 1.0),
        ("sum(raceline_tls_handshakes_total)", 0.0),
        ("ceph_nvmeof_bdev_reads_completed_total{bdev_name=\"D0\"}", 8.0),
    ] {
        let got = wait(expression, || value(expression));
        assert_eq!(got, expected, "{expression}");
    }
    for expression in expressions() {
        let answer = query(address, &expression).unwrap();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
    }
}
