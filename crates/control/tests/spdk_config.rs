//! A configuration that SPDK's nvmf_tgt 26.05 has saved makes the same target here, unchanged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::Path;

use raceline_control::daemon::{Daemon, DaemonConfig};
use raceline_control::method::Registry;
use raceline_control::role::Peer;
use serde_json::{Value, json};

/// A listener at port 0 replaces the one of the other machine.
const SAVED: &str = include_str!("data/saved_by_nvmf_tgt.json");

/// Calls that are orders, and are not saved.
const ORDERS: [&str; 1] = ["bdev_wait_for_examine"];

fn start(dir: &Path, config: &Value) -> Daemon {
    let path = dir.join("config.json");
    std::fs::write(&path, serde_json::to_vec_pretty(config).unwrap()).unwrap();
    let config = DaemonConfig {
        socket: dir.join("run/rpc.sock"),
        config: Some(path),
        ..DaemonConfig::default()
    };
    Daemon::start(config).unwrap()
}

fn call(daemon: &Daemon, method: &str, params: &Value) -> Value {
    let raw = serde_json::value::to_raw_value(params).unwrap();
    let params = (!params.is_null()).then_some(&*raw);
    Registry::new().call(daemon.manager(), Peer::this_process(), method, params).unwrap()
}

fn save(daemon: &Daemon) -> Value {
    let sections = call(daemon, "framework_get_subsystems", &Value::Null);
    let save = |section: &Value| {
        let name = &section["subsystem"];
        json!({ "subsystem": name, "config": call(daemon, "framework_get_config", &json!({ "name": name })) })
    };
    json!({ "subsystems": sections.as_array().unwrap().iter().map(save).collect::<Vec<_>>() })
}

fn methods(config: &Value) -> BTreeSet<String> {
    let sections = config["subsystems"].as_array().unwrap().iter();
    let calls = sections.flat_map(|section| section["config"].as_array().into_iter().flatten());
    calls.map(|call| call["method"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_nvmf_tgt_has_saved_is_a_target_here() {
    let dir = tempfile::tempdir().unwrap();
    let saved: Value = serde_json::from_str(SAVED).unwrap();
    let daemon = start(dir.path(), &saved);
    let bdevs = call(&daemon, "bdev_get_bdevs", &Value::Null);
    let names: BTreeSet<&str> =
        bdevs.as_array().unwrap().iter().map(|bdev| bdev["name"].as_str().unwrap()).collect();
    let all = ["D0", "Malloc0", "Malloc1", "Malloc1p0", "Malloc1p1", "Malloc2", "Null0", "P0"];
    assert_eq!(names, BTreeSet::from(all), "also those that were saved before what they stand on");
    let nqn = json!({ "nqn": "nqn.2026-01.io.raceline:moved" });
    let subsystem = call(&daemon, "nvmf_get_subsystems", &nqn)[0].take();
    let namespaces = subsystem["namespaces"].as_array().unwrap();
    assert_eq!(namespaces.len(), 3, "{subsystem}");
    assert_eq!(namespaces[0]["nguid"], "B10678EB79D746B0AA771C1B613DF890");
    assert_eq!(namespaces[1]["uuid"], "27fd5d24-ac4c-53ba-8a8f-8c8b3f2a10d1");
    assert_eq!(subsystem["listen_addresses"].as_array().unwrap().len(), 1);
    // The saved configuration has everything that was loaded, and makes the same target again.
    let ours = save(&daemon);
    let lost: Vec<String> = methods(&saved).difference(&methods(&ours)).cloned().collect();
    assert!(lost.iter().all(|method| ORDERS.contains(&method.as_str())), "{lost:?}");
    daemon.stop().unwrap();
    let daemon = start(dir.path(), &ours);
    assert_eq!(save(&daemon), ours);
    daemon.stop().unwrap();
}

#[test]
fn what_iscsi_tgt_saves_is_a_target_here() {
    let dir = tempfile::tempdir().unwrap();
    let saved: Value = serde_json::from_str(include_str!("data/as_iscsi_tgt_saves.json")).unwrap();
    let daemon = start(dir.path(), &saved);
    let nodes = call(&daemon, "iscsi_get_target_nodes", &Value::Null);
    let section = saved["subsystems"].as_array().unwrap().iter();
    let section = section.clone().find(|section| section["subsystem"] == "iscsi").unwrap();
    let before = section["config"].as_array().unwrap();
    assert_eq!(nodes[0], before[3]["params"]);
    let options = call(&daemon, "iscsi_get_options", &Value::Null);
    assert_eq!(options, before[0]["params"]);
    let groups = call(&daemon, "iscsi_get_portal_groups", &Value::Null);
    assert_ne!(groups[0]["portals"][0]["port"], "0", "it listens");
    let ours = save(&daemon);
    let lost: Vec<String> = methods(&saved).difference(&methods(&ours)).cloned().collect();
    assert!(lost.iter().all(|method| ORDERS.contains(&method.as_str())), "{lost:?}");
    daemon.stop().unwrap();
    let daemon = start(dir.path(), &ours);
    assert_eq!(save(&daemon), ours);
    daemon.stop().unwrap();
}

/// SPDK may have saved RDMA alone, and an adapter that is not up yet keeps nothing from starting.
#[test]
fn a_target_of_rdma_alone_starts_before_its_adapter() {
    if let Err(error) = raceline_target::load_rdma_libraries() {
        return println!("SKIPPED: not started: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let nqn = "nqn.2016-06.io.spdk:cnode1";
    let address =
        json!({ "trtype": "RDMA", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "4420" });
    let transport = json!({
        "trtype": "RDMA", "max_queue_depth": 128, "max_io_qpairs_per_ctrlr": 127, "in_capsule_data_size": 4096,
        "max_io_size": 131_072, "io_unit_size": 8192, "max_aq_depth": 128, "num_shared_buffers": 4095,
        "buf_cache_size": 32, "num_cqe": 4096, "max_srq_depth": 4096, "no_srq": false, "acceptor_backlog": 100,
        "no_wr_batching": false, "abort_timeout_sec": 1,
    });
    let subsystem = json!({ "nqn": nqn, "serial_number": "SPDK1", "allow_any_host": true });
    let listener = json!({ "nqn": nqn, "listen_address": address });
    let calls = [
        ("nvmf_create_transport", transport),
        ("nvmf_create_subsystem", subsystem),
        ("nvmf_subsystem_add_listener", listener),
    ];
    let calls = calls.map(|(method, params)| json!({ "method": method, "params": params }));
    let saved = json!({ "subsystems": [{ "subsystem": "nvmf", "config": calls }] });
    let daemon = start(dir.path(), &saved);
    let listens = |daemon: &Daemon| {
        call(daemon, "nvmf_subsystem_get_listeners", &json!({ "nqn": nqn }))[0]["address"].take()
    };
    assert_eq!(listens(&daemon), address);
    // TCP may come later, with the same limits.
    let tcp = json!({ "trtype": "TCP", "max_io_size": 131_072 });
    assert_eq!(call(&daemon, "nvmf_create_transport", &tcp), true);
    let over_tcp =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "0" });
    let over_tcp = json!({ "nqn": nqn, "listen_address": over_tcp });
    assert_eq!(call(&daemon, "nvmf_subsystem_add_listener", &over_tcp), true);
    let ours = save(&daemon);
    daemon.stop().unwrap();
    let daemon = start(dir.path(), &ours);
    assert_eq!((listens(&daemon), save(&daemon)), (address, ours));
    daemon.stop().unwrap();
}
