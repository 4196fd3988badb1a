//! A daemon that has one of everything that metrics tell of; and the documents beside what it serves.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use raceline_host::blocking::Host;
use raceline_proto::nvme::NamespaceId;
use serde_json::{Value, json};

use crate::counts::connect;
use crate::support::Served;

pub(crate) const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const FAR: &str = "nqn.2016-06.io.spdk:far";
const TLS: &str = "nqn.2016-06.io.spdk:tls";
const HOST: &str = "nqn.2014-08.org.example:h";
const NODE: &str = "iqn.2026-01.io.raceline:disk";
const METRICS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");

/// Metrics that the daemon of these tests has no samples of, and why.
const WITHOUT: [(&str, &str); 16] = [
    ("memory_limit_bytes", "the test may run where no control group limits memory"),
    ("memory_limit_used_bytes", "the same"),
    ("rdma_refused_queues_total", "there is no RDMA device here"),
    ("rdma_lost_receives_total", "the same"),
    ("rdma_polls_total", "the same"),
    ("rdma_idle_polls_total", "the same"),
    ("rdma_completions_total", "the same"),
    ("rdma_requests_total", "the same"),
    ("rdma_sends_total", "the same"),
    ("rdma_send_posts_total", "the same"),
    ("rdma_receives_total", "the same"),
    ("rdma_receive_posts_total", "the same"),
    ("rdma_responses_in_place_total", "the same"),
    ("state_writable", "the daemon has no state directory"),
    ("subsystem_namespaces_registered", "nobody has registered for reservations"),
    ("subsystem_namespaces_reserved", "nobody has reserved a namespace"),
];

/// Metrics and their labels.
type Asks = &'static [(&'static str, &'static [&'static str])];

/// Panels of ceph's dashboards that docs/METRICS.md names, and by which labels they choose, group and join, besides those
/// of Prometheus: a metric without the prefix, and its labels.
const PANELS: [(&str, Asks); 12] = [
    (
        "Gateway Groups, Gateways per group, Gateways, Active gateways count",
        &[("gateway_info", &["group", "hostname"])],
    ),
    (
        "Subsystems, Subsystem Security",
        &[("subsystem_metadata", &["group", "nqn", "allow_any_host"])],
    ),
    ("Namespaces", &[("bdev_metadata", &["bdev_name"]), ("gateway_info", &["group"])]),
    ("Capacity Exported", &[("bdev_capacity_bytes", &["bdev_name"]), ("gateway_info", &["group"])]),
    (
        "Connected Clients, Top 5 Subsystems with Most Connected Clients",
        &[("host_connection_state", &["nqn"]), ("gateway_info", &["group"])],
    ),
    (
        "Top 5 Subsystems by Namespace",
        &[("subsystem_namespace_count", &["nqn"]), ("gateway_info", &["group"])],
    ),
    (
        "Top 5 Busiest Gateway CPU, AVG Reactor CPU Usage by Gateway, Reactor Threads CPU Usage",
        &[("reactor_seconds_total", &["mode", "name"])],
    ),
    (
        "IOPS, IOPS by Gateway",
        &[
            ("bdev_reads_completed_total", &["bdev_name"]),
            ("bdev_writes_completed_total", &["bdev_name"]),
        ],
    ),
    (
        "Throughput, Throughput by Gateway",
        &[("bdev_read_bytes_total", &["bdev_name"]), ("bdev_written_bytes_total", &["bdev_name"])],
    ),
    (
        "AVG I/O Latency",
        &[
            ("bdev_read_seconds_total", &["bdev_name"]),
            ("bdev_reads_completed_total", &["bdev_name"]),
            ("bdev_write_seconds_total", &["bdev_name"]),
            ("bdev_writes_completed_total", &["bdev_name"]),
        ],
    ),
    (
        "IOPS by NVMe-oF Subsystem",
        &[
            ("bdev_reads_completed_total", &["bdev_name"]),
            ("bdev_writes_completed_total", &["bdev_name"]),
            ("subsystem_namespace_metadata", &["bdev_name", "nqn"]),
        ],
    ),
    (
        "Throughput by NVMe-oF Subsystem",
        &[
            ("bdev_read_bytes_total", &["bdev_name"]),
            ("bdev_written_bytes_total", &["bdev_name"]),
            ("subsystem_namespace_metadata", &["bdev_name", "nqn"]),
        ],
    ),
];

/// The daemon, and those that use it and that it uses.
pub(crate) struct Filled {
    pub(crate) served: Served,
    _host: Host,
    _far: Served,
    _folder: tempfile::TempDir,
}

impl Filled {
    /// A device with limits, a host that has read and got an error, a listener with TLS that has refused somebody, a disk,
    /// a controller in use, and a session of iSCSI.
    pub(crate) fn start() -> Self {
        let (served, far) = (Served::start(), Served::start());
        let folder = tempfile::tempdir().unwrap();
        let far_port = far.export(FAR);
        let port = served.export(NQN);
        let attached = json!({
            "name": "far", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": far_port, "subnqn": FAR,
        });
        served.change("bdev_nvme_attach_controller", attached);
        let disk = json!({ "name": "M1", "num_blocks": 2048, "block_size": 512 });
        served.change("bdev_malloc_create", disk);
        let disk = json!({ "ctrlr": folder.path().join("disk.sock"), "dev_name": "M1" });
        served.change("vhost_create_blk_controller", disk);
        limit(&served);
        refuse_tls(&served);
        use_iscsi(&served, &far);
        let host = connect(&port, NQN, HOST);
        let mut block = [0; 512];
        host.write(NamespaceId(1), 0, &block, false).unwrap();
        host.read(NamespaceId(1), 0, &mut block).unwrap();
        assert!(host.read(NamespaceId(1), 1 << 20, &mut block).is_err());
        Self { served, _host: host, _far: far, _folder: folder }
    }
}

fn limit(served: &Served) {
    let limits = |more: Value| {
        let mut all =
            json!({ "rw_ios_per_sec": 100_000, "r_mbytes_per_sec": 100, "w_mbytes_per_sec": 100 });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    served.change("bdev_set_qos_limit", limits(json!({ "name": "M0" })));
    served.change("nvmf_subsystem_set_qos_limit", limits(json!({ "nqn": NQN })));
    served.change("nvmf_host_set_qos_limit", limits(json!({ "name": "all", "hosts": [HOST] })));
    served.change("bdev_enable_histogram", json!({ "name": "M0", "enable": true }));
    served.change("bdev_set_qd_sampling_period", json!({ "name": "M0", "period": 1000 }));
}

/// A listener with TLS, to which somebody speaks something else.
fn refuse_tls(served: &Served) {
    served.change("nvmf_create_subsystem", json!({ "nqn": TLS }));
    let address =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "0" });
    let listen = json!({ "nqn": TLS, "listen_address": address, "secure_channel": true });
    served.change("nvmf_subsystem_add_listener", listen);
    let listeners = served.change("nvmf_subsystem_get_listeners", json!({ "nqn": TLS }));
    let port: u16 = listeners[0]["address"]["trsvcid"].as_str().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(&[1; 200]).unwrap();
    // An alert, or a reset.
    let _ = stream.read(&mut [0; 64]);
}

/// A target node, of which another daemon makes a device.
fn use_iscsi(served: &Served, far: &Served) {
    served.change(
        "bdev_malloc_create",
        json!({ "name": "M2", "num_blocks": 2048, "block_size": 512 }),
    );
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    served.change("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals }));
    let any = json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] });
    served.change("iscsi_create_initiator_group", any);
    let node = json!({
        "name": NODE, "alias_name": "one", "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }],
        "luns": [{ "bdev_name": "M2", "lun_id": 0 }], "queue_depth": 32, "disable_chap": true,
    });
    served.change("iscsi_create_target_node", node);
    let groups = served.change("iscsi_get_portal_groups", Value::Null);
    let port = groups[0]["portals"][0]["port"].as_str().unwrap();
    let url = format!("iscsi://127.0.0.1:{port}/{NODE}/0");
    let device = json!({ "name": "I0", "url": url, "initiator_iqn": "iqn.2026-01.io.raceline:i" });
    far.change("bdev_iscsi_create", device);
}

/// The samples of a scrape, without values.
fn series(text: &str) -> Vec<&str> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series)).collect()
}

/// Whether there is a sample of a metric with these labels.
fn has(text: &str, metric: &str, labels: &[&str]) -> bool {
    series(text).iter().any(|series| {
        let (name, rest) = series.split_once('{').unwrap_or((series, ""));
        let is_it = name == metric
            || ["_bucket", "_sum", "_count"]
                .iter()
                .any(|end| name.strip_suffix(end) == Some(metric));
        is_it && labels.iter().all(|label| format!(",{rest}").contains(&format!(",{label}=\"")))
    })
}

/// The cells of the rows of the table below a heading.
fn table(heading: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(METRICS).unwrap();
    let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("no table {heading}"));
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// The words of a cell that stand between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_documented_metric_has_samples_or_a_reason() {
    let filled = Filled::start();
    let text = filled.served.get("/metrics").body;
    let rows = table("| metric | kind | what it is |");
    assert!(rows.len() > 150, "{}", rows.len());
    let known: BTreeSet<&str> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
    for name in &known {
        let has_samples = has(&text, &format!("raceline_{name}"), &[]);
        let reason = WITHOUT.iter().find(|(known, _)| known == name);
        assert!(has_samples || reason.is_some(), "{name} has no samples, and no reason\n{text}");
    }
    for (name, _) in WITHOUT {
        assert!(known.contains(name), "{name} is not documented");
    }
    for (row, declared) in
        rows.iter().flat_map(|row| quoted(&row[0]).into_iter().map(move |name| (row, name)))
    {
        let line = format!("# TYPE raceline_{declared} {}", row[1]);
        assert!(text.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn the_core_of_a_disk_is_among_the_cores() {
    let filled = Filled::start();
    let text = filled.served.get("/metrics").body;
    for metric in ["reactor_seconds_total", "core_turns_total", "core_turn_seconds"] {
        let (ours, labels) = (format!("raceline_{metric}"), ["name", "core", "serves"]);
        assert!(has(&text, &ours, &[&labels[..], &["target"]].concat()), "{metric}\n{text}");
        assert!(has(&text, &ours, &[&labels[..], &["disk"]].concat()), "{metric}\n{text}");
    }
    let of_disks: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("raceline_core_turns_total{") && line.contains("disk=\""))
        .collect();
    let [line] = of_disks[..] else { panic!("{of_disks:?}") };
    let (labels, turns) = line.rsplit_once(' ').unwrap();
    assert!(labels.ends_with("core=\"any\",name=\"vhost-0\",serves=\"vhost_blk\"}"), "{labels}");
    // It has turned at least once to build what it serves.
    assert!(turns.parse::<u64>().unwrap() > 0, "{line}");
    assert!(text.contains("raceline_metrics_left_out{kind=\"disk_cores\"} 0\n"), "{text}");
}

/// What stands in the right columns of the tables of other exporters is served, under our names and under theirs.
#[test]
fn names_of_other_exporters_are_as_documented() {
    let filled = Filled::start();
    let (ours, theirs) =
        (filled.served.get("/metrics").body, filled.served.get("/metrics?names=ceph-nvmeof").body);
    let mut named = BTreeSet::new();
    for row in table("| ceph-nvmeof | here | what differs |") {
        if row[1] == "none" {
            for name in quoted(&row[0]) {
                assert!(!has(&theirs, &format!("ceph_nvmeof_{name}"), &[]), "{name} is there");
            }
            continue;
        }
        let own = if row[1] == "the same" { quoted(&row[0]) } else { quoted(&row[1]) };
        assert_eq!(own.len(), quoted(&row[0]).len(), "{row:?}");
        for (name, own) in quoted(&row[0]).into_iter().zip(own) {
            assert!(has(&ours, &format!("raceline_{own}"), &[]), "{own}");
            assert!(has(&theirs, &format!("ceph_nvmeof_{name}"), &[]), "{name}");
            named.insert(format!("ceph_nvmeof_{name}"));
        }
    }
    // And nothing else is.
    let served: BTreeSet<String> =
        series(&theirs).iter().map(|series| series.split('{').next().unwrap().to_owned()).collect();
    assert_eq!(served, named);
    let rules = std::fs::read_to_string(crate::metrics::RULES).unwrap();
    let mut found = 0;
    for row in table("| mayastor | here |") {
        for name in quoted(&row[1]) {
            // `up` is Prometheus' own; three dots stand for others of the kind.
            let is_ours = name == "up" || has(&ours, &format!("raceline_{name}"), &[]);
            assert!(is_ours, "{name} of {row:?}");
            found += 1;
        }
        let alerts = row[1].split(|letter: char| !letter.is_ascii_alphanumeric());
        for alert in alerts.filter(|word| word.starts_with("Raceline")) {
            assert!(rules.contains(&format!("- alert: {alert}\n")), "{alert}");
        }
    }
    assert!(found > 15, "{found}");
}

/// The panels of ceph's dashboards that the document names find their metrics, with the labels by which they ask.
#[test]
fn panels_find_what_they_ask_for() {
    let filled = Filled::start();
    let theirs = filled.served.get("/metrics?names=ceph-nvmeof").body;
    let documented: Vec<(String, BTreeSet<String>)> = table("| panel | asks for |")
        .into_iter()
        .map(|row| (row[0].clone(), quoted(&row[1]).into_iter().map(str::to_owned).collect()))
        .collect();
    let known: Vec<(String, BTreeSet<String>)> = PANELS
        .iter()
        .map(|(panel, asks)| {
            ((*panel).to_owned(), asks.iter().map(|(name, _)| (*name).to_owned()).collect())
        })
        .collect();
    assert_eq!(documented, known);
    for (panel, asks) in PANELS {
        for (name, labels) in asks {
            assert!(
                has(&theirs, &format!("ceph_nvmeof_{name}"), labels),
                "{panel}: {name} {labels:?}\n{theirs}"
            );
        }
    }
}
