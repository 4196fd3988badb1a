//! Controllers by name, by subsystem and by path: what SPDK's multipath scripts ask of a host.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Kept, ok};

const NQN: &str = "nqn.2026-01.io.raceline:shared";

/// How long a test waits for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with two namespaces behind two ports.
fn target(dir: &Path) -> (Kept, [Value; 2]) {
    let daemon = Kept::start(dir);
    let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    let malloc = |name: &str| json!({ "name": name, "num_blocks": 64, "block_size": 512 });
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
        ("bdev_malloc_create", malloc("a")),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } })),
        ("bdev_malloc_create", malloc("b")),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "b" } })),
        ("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": address })),
        ("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": address })),
    ] {
        ok(daemon.call(method, params));
    }
    let listeners = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })));
    let ports = [0, 1].map(|at| listeners[at]["address"]["trsvcid"].clone());
    (daemon, ports)
}

/// The call that attaches a controller, or adds a path to it.
fn attach(daemon: &Kept, name: &str, port: &Value, more: Value) -> Result<Value, String> {
    let mut params = json!({
        "name": name, "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": port, "subnqn": NQN,
    });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    daemon.call("bdev_nvme_attach_controller", params)
}

/// The policy of each call that the configuration has for a controller.
fn policies(daemon: &Kept, name: &str) -> Vec<Value> {
    let config = ok(daemon.call("framework_get_config", json!({ "name": "bdev" })));
    let of = |call: &&Value| {
        call["method"] == "bdev_nvme_attach_controller" && call["params"]["name"] == name
    };
    let calls = config.as_array().unwrap().iter().filter(of);
    calls.map(|call| call["params"]["multipath_opts"].clone()).collect()
}

#[test]
fn a_namespace_that_two_controllers_show_is_one_device() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (target, ports) = target(dirs[0].path());
    let host = Kept::start(dirs[1].path());
    assert_eq!(attach(&host, "N", &ports[0], json!({})), Ok(json!(["Nn1", "Nn2"])));
    assert_eq!(attach(&host, "M", &ports[1], json!({})), Ok(json!([])));
    let controllers = ok(host.call("bdev_nvme_get_controllers", json!({})));
    assert_eq!(controllers.as_array().unwrap().len(), 2);
    // A namespace that is new is a device of one of them, and the others keep theirs.
    ok(target.call("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 1 })));
    wait_for(&host, &["Nn2"]);
    ok(host.call("bdev_nvme_detach_controller", json!({ "name": "N" })));
    wait_for(&host, &["Mn2"]);
}

fn wait_for(host: &Kept, devices: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    let names = || -> Vec<String> {
        host.manager.model().bdevs.iter().map(|bdev| bdev.name.clone()).collect()
    };
    while names() != devices {
        assert!(Instant::now() < deadline, "{:?} and not {devices:?}", names());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_paths_of_a_controller_have_one_policy() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (_target, ports) = target(dirs[0].path());
    let host = Kept::start(dirs[1].path());
    let active = json!({ "policy": "active_active", "selector": "round_robin", "min_io": 4 });
    ok(attach(&host, "N", &ports[0], json!({ "multipath_opts": active })));
    assert_eq!(policies(&host, "N"), std::slice::from_ref(&active));
    for more in [
        json!({ "multipath_opts": { "policy": "active_passive" } }),
        json!({ "multipath_opts": { "min_io": 5 } }),
        json!({ "multipath": "failover" }),
    ] {
        let refused = attach(&host, "N", &ports[1], more.clone());
        assert!(refused.is_err(), "{more}");
    }
    assert_eq!(policies(&host, "N"), std::slice::from_ref(&active));
    ok(attach(&host, "N", &ports[1], json!({ "multipath_opts": active })));
    assert_eq!(policies(&host, "N"), [active.clone(), active]);
}

#[test]
fn the_policy_of_the_options_is_written_with_each_controller() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (_target, ports) = target(dirs[0].path());
    let host = Kept::start(dirs[1].path());
    let active = json!({ "policy": "active_active", "selector": "round_robin", "min_io": 16 });
    ok(host.call("bdev_nvme_set_options", json!({ "multipath_opts": active })));
    ok(attach(&host, "N", &ports[0], json!({})));
    assert_eq!(policies(&host, "N"), std::slice::from_ref(&active));
    host.kill();
    let host = Kept::start(dirs[1].path());
    assert_eq!(policies(&host, "N"), [active]);
    ok(host.call("bdev_nvme_detach_controller", json!({ "name": "N" })));
    ok(host.call(
        "bdev_nvme_set_options",
        json!({ "multipath_opts": { "policy": "active_passive" } }),
    ));
    ok(attach(&host, "N", &ports[0], json!({})));
    assert_eq!(policies(&host, "N"), [json!({ "policy": "active_passive" })]);
}
