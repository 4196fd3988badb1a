//! What hosts do is counted where operators look for it.

use std::net::Ipv4Addr;

use raceline_host::HostConfig;
use raceline_host::blocking::Host;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use serde_json::json;

use crate::support::{LIMIT, Served};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const HOST: &str = "nqn.2014-08.org.example:counted";
const NSID: NamespaceId = NamespaceId(1);

/// A host of a subsystem that listens on this port.
pub(crate) fn connect(port: &str, nqn: &str, name: &str) -> Host {
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into();
    let (nqn, name) = (Nqn::new(nqn).unwrap(), Nqn::new(name).unwrap());
    Host::connect(HostConfig::new(address, nqn, name, HostId([9; 16]))).unwrap()
}

/// The value of a metric with these labels, which are as they stand between braces.
pub(crate) fn value(text: &str, metric: &str, labels: &str) -> Option<f64> {
    let start = format!("raceline_{metric}{{{labels}}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.parse().unwrap())
}

/// Scrapes until this holds.
fn wait(served: &Served, what: &str, holds: impl Fn(&str) -> bool) -> String {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        let text = served.get("/metrics").body;
        if holds(&text) {
            return text;
        }
        assert!(std::time::Instant::now() < deadline, "{what}\n{text}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Waits until a device, which is sampled, has a request.
fn wait_for_one_at_device(served: &Served, name: &str) {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        let stat = served.change("bdev_get_iostat", json!({ "name": name }));
        if stat["bdevs"][0]["queue_depth"] == 1 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "nothing comes to the device: {stat}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_listener_counts_what_came_by_it() {
    let served = Served::start();
    let port = served.export(NQN);
    let labels = format!(
        "target=\"nvmf_tgt\",address=\"127.0.0.1:{port}\",security=\"plain\",transport=\"tcp\""
    );
    for round in 1..=2 {
        let host = connect(&port, NQN, HOST);
        let mut block = [0; 512];
        for slba in 0..3 {
            host.write(NSID, slba, &[7; 1024], false).unwrap();
            host.read(NSID, slba, &mut block).unwrap();
        }
        // One that the target refuses.
        assert!(host.read(NSID, 1 << 20, &mut block).is_err());
        drop(host);
        // What is closed still counts.
        let text = wait(&served, "the host is still connected", |text| {
            value(text, "listener_connections", &labels) == Some(0.0)
        });
        for (metric, expected) in [
            ("reads_completed", 3.0),
            ("writes_completed", 3.0),
            ("read_bytes", 1536.0),
            ("written_bytes", 3072.0),
            ("command_errors", 1.0),
            ("digest_errors", 0.0),
        ] {
            let found = value(&text, &format!("listener_{metric}_total"), &labels);
            assert_eq!(found, Some(expected * f64::from(round)), "{metric}\n{text}");
        }
        let queues = value(&text, "listener_queues_connected_total", &labels).unwrap();
        assert!(queues >= 2.0 * f64::from(round), "an admin queue and an I/O queue: {queues}");
    }
}

#[test]
fn commands_are_timed_by_subsystem_and_by_host() {
    let served = Served::start();
    let port = served.export(NQN);
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
    let slow = NamespaceId(2);
    let (host, other) =
        (connect(&port, NQN, HOST), connect(&port, NQN, "nqn.2014-08.org.example:o"));
    let mut block = [0; 512];
    for slba in 0..4 {
        // Memory answers in the turn in which a command comes; the other device does not.
        host.read(NSID, slba, &mut block).unwrap();
        host.read(slow, slba, &mut block).unwrap();
        other.read(slow, slba, &mut block).unwrap();
    }
    // More than a capsule holds: the host is asked for its data.
    host.write(slow, 0, &vec![5; 64 << 10], false).unwrap();
    // A command that fails has no time.
    assert!(host.read(slow, 1 << 20, &mut block).is_err());
    let text = served.get("/metrics").body;
    let of_host = |name: &str| format!("target=\"nvmf_tgt\",nqn=\"{NQN}\",host_nqn=\"{name}\"");
    let of_subsystem = format!("target=\"nvmf_tgt\",nqn=\"{NQN}\"");
    for (kind, labels, operation, fast, late) in [
        ("host", of_host(HOST), "read", 4.0, 4.0),
        ("host", of_host(HOST), "write", 0.0, 1.0),
        ("host", of_host("nqn.2014-08.org.example:o"), "read", 0.0, 4.0),
        ("subsystem", of_subsystem.clone(), "read", 4.0, 8.0),
        ("subsystem", of_subsystem.clone(), "write", 0.0, 1.0),
    ] {
        let labels_of = format!("{labels},operation=\"{operation}\"");
        let metric = format!("{kind}_command_duration_seconds");
        let found = |end: &str, more: &str| {
            let labels = format!("{labels_of}{more}");
            value(&text, &format!("{metric}{end}"), &labels)
                .unwrap_or_else(|| panic!("{metric}{end} {labels}\n{text}"))
        };
        assert_eq!(found("_count", ""), fast + late, "{metric} {labels_of}\n{text}");
        // 20 ms are above 2^-6 s.
        assert_eq!(found("_bucket", ",le=\"0.015625\""), fast, "{metric} {labels_of}\n{text}");
        let sum = found("_sum", "");
        assert!(sum >= late * 0.02 && sum < 60.0, "{metric} {labels_of}: {sum}");
        let seconds = value(&text, &format!("{kind}_{operation}_seconds_total"), &labels);
        assert_eq!(seconds, Some(sum), "{text}");
    }
    let host_that_only_reads = of_host("nqn.2014-08.org.example:o");
    let none = format!("{host_that_only_reads},operation=\"write\"");
    assert_eq!(value(&text, "host_command_duration_seconds_count", &none), None);
}

#[test]
fn a_controller_in_use_counts_its_losses_and_what_was_sent_again() {
    let far = Served::start();
    let port = far.export(NQN);
    far.change(
        "bdev_malloc_create",
        json!({ "name": "M1", "num_blocks": 2048, "block_size": 512 }),
    );
    far.change("bdev_error_create", json!({ "base_name": "M1" }));
    let sampled = json!({ "name": "EE_M1", "period": 1000 });
    far.change("bdev_set_qd_sampling_period", sampled);
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "EE_M1", "nsid": 2 } });
    far.change("nvmf_subsystem_add_ns", namespace);

    // Another daemon uses the devices, and a host uses that one.
    const NEAR: &str = "nqn.2016-06.io.spdk:near";
    let near = Served::start();
    let attached = json!({
        "name": "far", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port, "subnqn": NQN,
        "reconnect_delay_sec": 1, "ctrlr_loss_timeout_sec": 60,
    });
    near.change("bdev_nvme_attach_controller", attached);
    let near_port = near.export(NEAR);
    let namespace = json!({ "nqn": NEAR, "namespace": { "bdev_name": "farn2", "nsid": 2 } });
    near.change("nvmf_subsystem_add_ns", namespace);
    let host = connect(&near_port, NEAR, HOST);
    let labels = "controller=\"far\"";
    let count = |text: &str, name: &str| {
        value(text, &format!("attached_controller_{name}_total"), labels).unwrap()
    };
    let text = near.get("/metrics").body;
    assert_eq!(["losses", "reconnects"].map(|name| count(&text, name)), [0.0, 0.0], "{text}");
    let paths = |text: &str, state: &str| {
        value(text, "attached_controller_paths", &format!("{labels},state=\"{state}\""))
    };
    assert_eq!((paths(&text, "up"), paths(&text, "down")), (Some(1.0), Some(0.0)), "{text}");

    // A read is at the far device, which holds it, when its connection goes: it is sent again, and ends well.
    let held = json!({ "name": "EE_M1", "io_type": "read", "error_type": "pending", "num": 1 });
    far.change("bdev_error_inject_error", held);
    let read = std::thread::spawn(move || {
        let mut block = [1; 512];
        let result = host.read(NamespaceId(2), 0, &mut block);
        (result, block)
    });
    wait_for_one_at_device(&far, "EE_M1");
    near.change("bdev_nvme_reset_controller", json!({ "name": "far" }));
    let (result, block) = read.join().unwrap();
    far.change("bdev_error_resume_pending", json!({ "name": "EE_M1" }));
    assert!(result.is_ok() && block == [0; 512], "{result:?}");
    let text =
        wait(&near, "the controller has not come back", |text| count(text, "reconnects") >= 1.0);
    assert_eq!((count(&text, "losses"), count(&text, "failovers")), (1.0, 0.0), "{text}");
    assert!(count(&text, "commands_resubmitted") >= 1.0, "{text}");

    // While the other daemon is away, attempts fail.
    drop(far);
    let text = wait(&near, "no attempt has failed", |text| count(text, "failed_connects") >= 1.0);
    assert_eq!((count(&text, "losses"), paths(&text, "down")), (2.0, Some(1.0)), "{text}");
}

#[test]
fn a_path_that_is_lost_beside_another_is_a_failover() {
    let far = Served::start();
    let port = far.export(NQN);
    let address =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "0" });
    let listen = json!({ "nqn": NQN, "listen_address": address });
    far.change("nvmf_subsystem_add_listener", listen);
    let listeners = far.change("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    let ports = [0, 1].map(|at| listeners[at]["address"]["trsvcid"].as_str().unwrap().to_owned());
    assert!(ports.contains(&port), "{ports:?}");
    let near = Served::start();
    for port in &ports {
        let attached = json!({
            "name": "far", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port, "subnqn": NQN,
            "multipath": "multipath", "reconnect_delay_sec": 1, "ctrlr_loss_timeout_sec": 60,
        });
        near.change("bdev_nvme_attach_controller", attached);
    }
    let controllers = near.change("bdev_nvme_get_controllers", json!({ "name": "far" }));
    let cntlid = &controllers[0]["ctrlrs"][0]["cntlid"];
    assert!(cntlid.is_u64(), "{controllers}");
    near.change("bdev_nvme_reset_controller", json!({ "name": "far", "cntlid": cntlid }));
    let labels = "controller=\"far\"";
    let up = format!("{labels},state=\"up\"");
    let text = wait(&near, "the path has not come back", |text| {
        let reconnects = value(text, "attached_controller_reconnects_total", labels);
        reconnects == Some(1.0) && value(text, "attached_controller_paths", &up) == Some(2.0)
    });
    for (count, expected) in [("losses", 1.0), ("failovers", 1.0), ("failed_connects", 0.0)] {
        let found = value(&text, &format!("attached_controller_{count}_total"), labels);
        assert_eq!(found, Some(expected), "{count}\n{text}");
    }
}

#[test]
fn a_disk_is_listed_with_its_device() {
    let served = Served::start();
    served.change(
        "bdev_malloc_create",
        json!({ "name": "M0", "num_blocks": 2048, "block_size": 512 }),
    );
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("disk.sock");
    let params = json!({ "ctrlr": socket, "dev_name": "M0" });
    served.change("vhost_create_blk_controller", params);
    let labels = format!("disk=\"{}\",kind=\"vhost_blk\",bdev_name=\"M0\"", socket.display());
    let text = served.get("/metrics").body;
    for (metric, expected) in [
        ("disk_metadata", 1.0),
        ("disk_queues", 0.0),
        ("disk_reads_completed_total", 0.0),
        ("disk_errors_total", 0.0),
    ] {
        assert_eq!(value(&text, metric, &labels), Some(expected), "{metric}\n{text}");
    }
    served.change("vhost_delete_controller", json!({ "ctrlr": socket }));
    let text = served.get("/metrics").body;
    assert_eq!(value(&text, "disk_metadata", &labels), None, "{text}");
}
