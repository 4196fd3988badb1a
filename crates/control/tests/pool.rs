//! Pools through RPC: what hosts make of them is kept, comes back, and blocks no client.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn};
use raceline_target::{ManagementCommand, Target};
use serde_json::{Value, json};
use support::{Kept, ok};

const NQN: &str = "nqn.2026-01.io.raceline:pool";
const HOST: &str = "nqn.2014-08.org.example:host";

fn export(daemon: &Kept) {
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("bdev_malloc_create", json!({ "name": "M", "num_blocks": 65536, "block_size": 512 })),
        ("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
        ("nvmf_subsystem_add_pool", json!({ "nqn": NQN, "bdev_name": "M" })),
    ] {
        ok(daemon.call(method, params));
    }
}

fn target(daemon: &Kept) -> Arc<Target> {
    daemon.manager.cores().remove(0)
}

/// A management command, as the manager's thread executes it for a host.
fn manage(target: &Target, command: &ManagementCommand) -> u32 {
    let host = HostNqn::Named(Nqn::new(HOST).unwrap());
    target.manage_namespaces(&Nqn::new(NQN).unwrap(), &host, command).unwrap()
}

fn create(target: &Target, mib: u64) -> u32 {
    let block_count = mib << 11;
    manage(target, &ManagementCommand::Create { block_count, block_size: 512, shared: false })
}

fn pool(daemon: &Kept) -> Value {
    ok(daemon.call("nvmf_subsystem_get_pool", json!({ "nqn": NQN })))[0].take()
}

#[test]
fn what_hosts_make_of_a_pool_survives() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    export(&daemon);
    assert_eq!(pool(&daemon)["free_bytes"], 32 << 20);
    let cores = target(&daemon);
    assert_eq!((create(&cores, 3), create(&cores, 4), create(&cores, 5)), (1, 2, 3));
    manage(&cores, &ManagementCommand::Delete { nsid: NamespaceId(2) });
    manage(&cores, &ManagementCommand::Format { nsid: NamespaceId(3), block_size: 4096 });
    // The same through the operator.
    let seen = json!({ "nqn": NQN, "nsid": 1, "host": HOST });
    ok(daemon.call("nvmf_ns_add_host", seen));
    let shown = pool(&daemon);
    assert_eq!(shown["free_bytes"], 24 << 20, "{shown}");
    assert_eq!(shown["namespaces"][0]["hosts"], json!([HOST]));
    assert_eq!(shown["namespaces"][1]["block_size"], 4096);
    let listed = ok(daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN })));
    let namespaces = listed[0]["namespaces"].as_array().unwrap();
    assert_eq!(namespaces.len(), 2);
    assert_eq!((&namespaces[1]["nsid"], &namespaces[1]["of_pool"]), (&json!(3), &json!(true)));
    drop(cores);
    // After a kill, and after an orderly end.
    for orderly in [false, true] {
        let before = daemon_picture(dir.path(), orderly);
        assert_eq!(before, shown);
    }
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(pool(&daemon), shown);
    let cores = target(&daemon);
    // The number and the place of the deleted namespace are free again.
    assert_eq!(create(&cores, 4), 2);
    ok(daemon.call("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 3 })));
    assert_eq!(pool(&daemon)["free_bytes"], 25 << 20);
    drop(cores);
    daemon.manager.close_journal().unwrap();
    let shown = pool(&daemon);
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(pool(&daemon), shown);
    daemon.kill();
}

/// The state on disk while the daemon lives: a copy of its directory is restarted.
fn daemon_picture(dir: &std::path::Path, orderly: bool) -> Value {
    let copy = tempfile::tempdir().unwrap();
    for file in dir.read_dir().unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let daemon = Kept::start(copy.path());
    if orderly {
        daemon.manager.close_journal().unwrap();
    }
    let shown = pool(&daemon);
    daemon.kill();
    shown
}

#[test]
fn a_pool_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    export(&daemon);
    let refused = |method: &str, params: Value| daemon.call(method, params).unwrap_err();
    let add = |params: Value| refused("nvmf_subsystem_add_pool", params);
    let again = add(json!({ "nqn": NQN, "bdev_name": "M" }));
    assert!(again.contains("there is a pool of subsystem"), "{again}");
    ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": "nqn.2026-01.io.raceline:two" })));
    let two = |params: Value| {
        let mut all = json!({ "nqn": "nqn.2026-01.io.raceline:two", "bdev_name": "M" });
        all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        add(all)
    };
    let claimed = two(json!({}));
    assert!(claimed.contains(&format!("used by the pool of {NQN}")), "{claimed}");
    ok(daemon.call("nvmf_subsystem_remove_pool", json!({ "nqn": NQN })));
    let none = refused("nvmf_subsystem_remove_pool", json!({ "nqn": NQN }));
    assert!(none.contains("there is no pool of subsystem"), "{none}");
    for (params, reason) in [
        (json!({ "unit_bytes": 1000 }), "units of 1000 bytes"),
        (json!({ "bdev_name": "N" }), "no device `N`"),
        (json!({ "managers": [""] }), "``: a name has at least 1 byte"),
        (json!({ "namespaces": [namespace(1, u64::MAX, 2)] }), "has no end"),
        (json!({ "namespaces": [namespace(1, 31, 2)] }), "not lie within the device"),
        (json!({ "namespaces": [namespace(1, 0, 2), namespace(2, 1, 2)] }), "overlap"),
        (json!({ "namespaces": [namespace(33, 0, 2)] }), "nsid 33 is not within 1 to"),
        (json!({ "namespaces": [namespace(0, 0, 2)] }), "nsid 0 is not within 1 to"),
    ] {
        let error = two(params.clone());
        assert!(error.contains(reason), "{params}: {error}");
    }
    // No failed attempt has claimed the device.
    let ns = json!({ "nqn": NQN, "namespace": { "bdev_name": "M" } });
    ok(daemon.call("nvmf_subsystem_add_ns", ns));
    daemon.kill();
}

fn namespace(nsid: u32, first_unit: u64, unit_count: u64) -> Value {
    let uuid = format!("6b9f2f8c-0d3a-4c55-9a2f-00000000{nsid:04}");
    json!({
        "nsid": nsid, "first_unit": first_unit, "unit_count": unit_count,
        "block_size": 512, "num_blocks": 64, "uuid": uuid,
    })
}

#[test]
fn a_device_that_goes_takes_its_pool_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    export(&daemon);
    create(&target(&daemon), 1);
    ok(daemon.call("bdev_malloc_delete", json!({ "name": "M" })));
    assert_eq!(ok(daemon.call("nvmf_subsystem_get_pool", json!({ "nqn": NQN }))), json!([]));
    let before = daemon.picture();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}

/// Hosts change the pool while clients change the same target and others look: no deadlock, and every
/// change is kept in its order.
#[test]
fn hosts_and_clients_change_a_target_at_the_same_time() {
    const ROUNDS: u32 = 60;
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    export(&daemon);
    let cores = target(&daemon);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let nsid = NamespaceId(create(&cores, 1));
                manage(&cores, &ManagementCommand::Format { nsid, block_size: 4096 });
                manage(&cores, &ManagementCommand::Delete { nsid });
            }
            create(&cores, 2);
            ended.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for method in ["nvmf_get_subsystems", "iobuf_get_stats", "thread_get_stats"] {
                    ok(daemon.call(method, Value::Null));
                }
            }
        });
        let mut round = 0;
        while !ended.load(Ordering::Relaxed) {
            round += 1;
            let name = format!("m{round}");
            let device = json!({ "name": name, "num_blocks": 64, "block_size": 512 });
            ok(daemon.call("bdev_malloc_create", device));
            let namespace = json!({ "bdev_name": name, "nsid": 20 });
            let params = json!({ "nqn": NQN, "namespace": namespace });
            ok(daemon.call("nvmf_subsystem_add_ns", params));
            ok(daemon.call("bdev_malloc_delete", json!({ "name": name })));
        }
    });
    let before = daemon.picture();
    assert_eq!(pool(&daemon)["namespaces"][0]["num_blocks"], 4096);
    drop(cores);
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}
