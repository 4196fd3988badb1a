//! Attaching controllers as guides do: source addresses, hotplug, controllers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Scratch, Served, call, configure, run};

const NQN: &str = "nqn.2026-01.io.example:shelf";

/// How long a test waits for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that exports, and one that attaches.
struct Pair {
    _daemons: [Served; 2],
    target: PathBuf,
    host: PathBuf,
    port: String,
    scratch: Scratch,
}

impl Pair {
    fn start() -> Self {
        let scratch = Scratch::new();
        let path = |name: &str| PathBuf::from(scratch.path(name));
        let (target, host) = (path("target.sock"), path("host.sock"));
        let daemons = [&target, &host].map(|socket| Served::start(socket, &["-m", "0x1"]));
        configure(&target, NQN, 2048);
        let subsystems = call(&target, "nvmf_get_subsystems", json!({ "nqn": NQN })).unwrap();
        let port = subsystems[0]["listen_addresses"][0]["trsvcid"].as_str().unwrap().to_owned();
        Self { _daemons: daemons, target, host, port, scratch }
    }

    /// Listens on `::1` as well.
    fn listen_six(&self) -> String {
        let address = json!({ "trtype": "TCP", "traddr": "::1", "trsvcid": "0" });
        let listener = json!({ "nqn": NQN, "listen_address": address });
        call(&self.target, "nvmf_subsystem_add_listener", listener).unwrap();
        let listeners =
            call(&self.target, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
        let six = listeners.as_array().unwrap().iter().find(|it| it["address"]["traddr"] == "::1");
        six.unwrap()["address"]["trsvcid"].as_str().unwrap().to_owned()
    }

    fn attach(&self, more: Value) -> Result<Value, Value> {
        let mut params = json!({
            "name": "Shelf", "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": self.port,
            "adrfam": "ipv4", "subnqn": NQN, "num_io_queues": 2, "ctrlr_loss_timeout_sec": 30,
            "reconnect_delay_sec": 1,
        });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call(&self.host, "bdev_nvme_attach_controller", params)
    }

    fn detach(&self, more: Value) -> Result<Value, Value> {
        let mut params = json!({ "name": "Shelf" });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call(&self.host, "bdev_nvme_detach_controller", params)
    }

    /// Each queue of the target, with the address and the port that it comes from.
    fn queues(&self) -> BTreeSet<(u64, String, String)> {
        let queues =
            call(&self.target, "nvmf_subsystem_get_qpairs", json!({ "nqn": NQN })).unwrap();
        let queue = |queue: &Value| {
            let part = |name: &str| queue["peer_address"][name].as_str().unwrap().to_owned();
            (queue["qid"].as_u64().unwrap(), part("traddr"), part("trsvcid"))
        };
        queues.as_array().unwrap().iter().map(queue).collect()
    }

    /// Whether there is an admin queue from this address.
    fn has_admin_from(&self, address: &str) -> bool {
        self.queues().iter().any(|(qid, from, _)| *qid == 0 && from == address)
    }

    fn saved(&self, socket: &Path) -> String {
        let config = call(socket, "framework_get_config", json!({ "name": "bdev" })).unwrap();
        config.to_string()
    }
}

fn text(error: &Value) -> String {
    format!("{} {}", error["message"].as_str().unwrap(), error["data"].as_str().unwrap_or_default())
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All connections of a controller come from the named address: admin and I/O queues, also after a
/// reconnect.
#[test]
fn a_controller_is_attached_from_a_source_address() {
    let pair = Pair::start();
    assert_eq!(pair.attach(json!({ "hostaddr": "127.0.0.9" })).unwrap(), json!(["Shelfn1"]));
    // Queues of namespaces are connected when the namespaces are opened: here, by an export of one.
    call(&pair.host, "nvmf_create_transport", json!({ "trtype": "TCP" })).unwrap();
    let nqn = "nqn.2026-01.io.example:again";
    call(&pair.host, "nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true }))
        .unwrap();
    let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": "Shelfn1" } });
    call(&pair.host, "nvmf_subsystem_add_ns", namespace).unwrap();
    let all_from = |address: &str| {
        let queues = pair.queues();
        queues.len() >= 2 && queues.iter().all(|(_, from, _)| from == address)
    };
    eventually("an admin and an I/O queue from 127.0.0.9", || all_from("127.0.0.9"));

    let listed = call(&pair.host, "bdev_nvme_get_controllers", Value::Null).unwrap();
    let host = &listed[0]["ctrlrs"][0]["host"];
    assert_eq!((&host["addr"], &host["svcid"]), (&json!("127.0.0.9"), &json!("")));
    assert!(pair.saved(&pair.host).contains(r#""hostaddr":"127.0.0.9""#));

    let before = pair.queues();
    call(&pair.host, "bdev_nvme_reset_controller", json!({ "name": "Shelf" })).unwrap();
    eventually("others from there after a reset", || {
        all_from("127.0.0.9") && pair.queues().is_disjoint(&before)
    });

    // The same path again, and other paths.
    let error = pair.attach(json!({ "hostaddr": "127.0.0.9" })).unwrap_err();
    assert!(text(&error).contains("with the specified network path"), "{error}");
    let error = pair.attach(json!({ "multipath": "disable" })).unwrap_err();
    assert!(text(&error).contains("already exists and multipath is disabled"), "{error}");
    let error = pair.detach(json!({ "hostaddr": "127.0.0.8" })).unwrap_err();
    assert!(text(&error).contains("no such controller `Shelf`"), "{error}");
    assert_eq!(pair.detach(json!({ "hostaddr": "127.0.0.9", "hostsvcid": "" })).unwrap(), true);
    eventually("no queue is left", || pair.queues().is_empty());

    let port = pair.listen_six();
    let six = json!({ "traddr": "::1", "trsvcid": port, "adrfam": "ipv6", "hostaddr": "::1" });
    pair.attach(six).unwrap();
    eventually("an admin queue from ::1", || pair.has_admin_from("::1"));
    drop(pair.scratch);
}

#[test]
fn a_source_that_cannot_be_had_is_named() {
    let pair = Pair::start();
    for (more, code, expected) in [
        (json!({ "hostaddr": "shelf" }), -22, "hostaddr `shelf` is not an IPv4 or IPv6 address"),
        (
            json!({ "hostaddr": "::1" }),
            -22,
            "hostaddr ::1 and traddr 127.0.0.1 are of two families",
        ),
        (
            // An address for documentation (RFC 5737).
            json!({ "hostaddr": "192.0.2.7" }),
            -5,
            "cannot use the source address 192.0.2.7: this machine does not have it",
        ),
        (
            json!({ "hostaddr": "127.0.0.9", "hostsvcid": "4000" }),
            -32602,
            "a source port serves one connection to one address, and a controller has at least two",
        ),
        (json!({ "hostsvcid": "4000" }), -32602, "parameter hostsvcid is not supported"),
    ] {
        let error = pair.attach(more).unwrap_err();
        assert_eq!(error["code"], code, "{error}");
        assert!(text(&error).contains(expected), "{error}");
    }
    assert!(pair.queues().is_empty());
    // Port 0 and an empty address count as absent.
    pair.attach(json!({ "hostaddr": "", "hostsvcid": "0" })).unwrap();
    assert!(pair.has_admin_from("127.0.0.1"));
}

/// The parameters that the guides' commands have beside the address.
#[test]
fn a_controller_is_attached_with_what_guides_write() {
    let pair = Pair::start();
    let more = json!({
        "priority": "3", "multipath": "disable", "hdgst": true, "ddgst": true,
        "fast_io_fail_timeout_sec": 0, "allow_unrecognized_csi": false,
        "multipath_opts": { "policy": "active_passive" }, "prchk_reftag": false,
    });
    pair.attach(more).unwrap();
    assert!(pair.saved(&pair.host).contains(r#""priority":"3""#));
    pair.detach(json!({ "trtype": "tcp", "traddr": "127.0.0.1" })).unwrap();
    for (more, expected) in [
        (json!({ "priority": "high" }), "priority `high` is no number"),
        (json!({ "fast_io_fail_timeout_sec": 601 }), "not be more than ctrlr_loss_timeout_sec"),
        (json!({ "allow_unrecognized_csi": true }), "only namespaces of the NVM command set"),
        (
            json!({ "multipath_opts": { "selector": "queue_depth" } }),
            "need the policy active_active",
        ),
        (json!({ "psk": "key0" }), "there is no key `key0`"),
        (json!({ "dhchap_key": "key0" }), "there is no key `key0`"),
        (json!({ "prchk_guard": true }), "namespaces with metadata are not used"),
    ] {
        let error = pair.attach(more).unwrap_err();
        assert!(text(&error).contains(expected), "{error}");
    }
}

/// Hosts see the properties given to a device in memory, and the saved configuration has them.
#[test]
fn a_malloc_device_has_the_properties_it_was_given() {
    let pair = Pair::start();
    let make = |more: Value| {
        let mut params = json!({ "name": "P", "num_blocks": 16384, "block_size": 512 });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call(&pair.target, "bdev_malloc_create", params)
    };
    make(json!({ "physical_block_size": 16384, "optimal_io_boundary": 64, "numa_id": -1 }))
        .unwrap();
    let shown = call(&pair.target, "bdev_get_bdevs", json!({ "name": "P" })).unwrap();
    assert_eq!(shown[0]["numa_id"], -1);
    make(json!({ "name": "R", "numa_id": 0 })).unwrap();
    let on_a_node = call(&pair.target, "bdev_get_bdevs", json!({ "name": "R" })).unwrap();
    assert_eq!(on_a_node[0]["numa_id"], 0);
    let malloc = json!({ "physical_block_size": 16384, "optimal_io_boundary": 64 });
    assert_eq!(shown[0]["driver_specific"], json!({ "malloc": malloc }));
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "P", "nsid": 9 } });
    call(&pair.target, "nvmf_subsystem_add_ns", namespace).unwrap();
    let verb = ["identify", "-a", "127.0.0.1", "-s", &pair.port, "-n", NQN, "-o", "json"];
    let output = run(&verb);
    let identified: Value = serde_json::from_str(&output.stdout).unwrap();
    let namespaces = identified["namespaces"].as_array().unwrap();
    let ninth = namespaces.iter().find(|it| it["nsid"] == 9).unwrap();
    assert_eq!(ninth["physical_block_size"], 16384, "{}", output.stderr);
    let saved = pair.saved(&pair.target);
    assert!(saved.contains(r#""physical_block_size":16384"#), "{saved}");
    assert!(saved.contains(r#""optimal_io_boundary":64"#), "{saved}");

    for (more, expected) in [
        (json!({ "physical_block_size": 1000 }), "use a power of two of 512 to 16777216"),
        (json!({ "numa_id": 1000 }), "memory of NUMA node 1000 cannot be had"),
        (json!({ "numa_id": -7 }), "numa_id -7 is no NUMA node"),
    ] {
        let mut more = more;
        more["name"] = json!("Q");
        let error = make(more).unwrap_err();
        assert!(text(&error).contains(expected), "{error}");
    }
    // Made in reserved huge pages, or refused with the way to reserve them.
    match make(json!({ "name": "Q", "hugepages": true })) {
        Ok(_) => assert!(pair.saved(&pair.target).contains(r#""hugepages":true"#)),
        Err(error) => assert!(text(&error).contains("sysctl vm.nr_hugepages=4"), "{error}"),
    }
}

/// Turned on as in guides. Drives of this machine were there before, and are left alone.
#[test]
fn hotplug_is_turned_on_and_saved() {
    let pair = Pair::start();
    let set = |params: Value| call(&pair.host, "bdev_nvme_set_hotplug", params);
    assert_eq!(set(json!({ "enable": true, "period_us": 99_000_000 })).unwrap(), true);
    let kept = r#""params":{"enable":true,"period_us":10000000}"#;
    assert!(pair.saved(&pair.host).contains(kept), "{}", pair.saved(&pair.host));
    assert_eq!(call(&pair.host, "bdev_nvme_get_controllers", Value::Null).unwrap(), json!([]));
    assert_eq!(set(json!({ "enable": false })).unwrap(), true);
    let kept = r#""params":{"enable":false,"period_us":100000}"#;
    assert!(pair.saved(&pair.host).contains(kept));
}
