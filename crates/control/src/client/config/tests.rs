//! Saving and loading against a peer that keeps a tiny state.

use super::*;
use crate::client::connection::tests::{Peer, reply};

/// A daemon that waits for its start; methods with `late` are allowed after it, others before.
fn daemon() -> Peer {
    let mut started = false;
    Peer::start(Box::new(move |request| {
        let result = match request["method"].as_str().unwrap() {
            "rpc_get_methods" if request["params"]["current"] != true => {
                json!(["early", "late", "late_too", "never", START, "rpc_get_methods"])
            }
            "rpc_get_methods" if started => json!(["late", "late_too", "rpc_get_methods"]),
            "rpc_get_methods" => json!(["early", START, "rpc_get_methods"]),
            START => {
                started = true;
                json!(true)
            }
            "framework_get_subsystems" => json!([
                {"subsystem": "sock", "depends_on": []},
                {"subsystem": "bdev", "depends_on": ["sock"]},
                {"subsystem": "nvmf", "depends_on": ["bdev"]},
            ]),
            "framework_get_config" => json!([{"method": request["params"]["name"]}]),
            _ => json!(true),
        };
        Some(reply(request, result))
    }))
}

fn sections(config: &Value) -> Vec<SubsystemConfig> {
    crate::configuration::parse(config.to_string().as_bytes()).unwrap()
}

fn called(requests: &[Value]) -> Vec<&str> {
    let names = requests.iter().map(|request| request["method"].as_str().unwrap());
    names.filter(|name| *name != "rpc_get_methods").collect()
}

#[test]
fn loading_starts_a_daemon_that_waits() {
    let peer = daemon();
    let config = json!({"subsystems": [
        {"subsystem": "nvmf", "config": [{"method": "late", "params": {"a": 1}}]},
        {"subsystem": "sock", "config": null},
        {"subsystem": "bdev", "config": [{"method": "early"}, [{"method": "late_too"}]]},
    ]});
    assert_eq!(load(&mut peer.connect(), &sections(&config)).unwrap(), Loaded::default());
    let requests = peer.requests();
    assert_eq!(called(&requests), ["early", START, "late", "late_too"]);
    let late = requests.iter().find(|request| request["method"] == "late").unwrap();
    assert_eq!(late["params"], json!({"a": 1}));
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let peer = daemon();
    let config = json!({"subsystems": [{"subsystem": "x", "config": [{"method": "never"}]}]});
    let loaded = load(&mut peer.connect(), &sections(&config)).unwrap();
    assert_eq!(loaded.skipped, ["never"]);
    let peer = daemon();
    let config = json!({"subsystems": [{"subsystem": "x", "config": [
        {"method": "early"}, {"method": "unknown"}, {"method": "late", "params": [1]},
        {"method": "vhost_create_scsi_controller"},
    ]}]});
    let error = load(&mut peer.connect(), &sections(&config)).unwrap_err().to_string();
    for part in [
        "nothing was made",
        "x config[1] unknown: this daemon has no such method",
        "x config[2] late: the configuration has parameters that are no object",
        "x config[3] vhost_create_scsi_controller belongs to SPDK's SCSI controllers of the vhost target (vhost), which this daemon does not have",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        called(&peer.requests()).is_empty(),
        "nothing is changed by a configuration with an error"
    );
}

#[test]
fn saving_takes_dependencies_along() {
    let saved = save(&mut daemon().connect(), Some(&["bdev".to_owned()]), false).unwrap();
    let names: Vec<&Value> =
        saved["subsystems"].as_array().unwrap().iter().map(|part| &part["subsystem"]).collect();
    assert_eq!(names, ["sock", "bdev"]);
    assert_eq!(saved["subsystems"][1]["config"], json!([{"method": "bdev"}]));
    let all = save(&mut daemon().connect(), None, false).unwrap();
    assert_eq!(all["subsystems"].as_array().unwrap().len(), 3);
    assert!(save(&mut daemon().connect(), Some(&["lvol".to_owned()]), false).is_err());
}
