//! Parts that are configured but missing do not keep others from being served, and are not forgotten.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Kept, ok};

const NQN: &str = "nqn.2026-01.io.raceline:disks";

/// How long a test waits for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file of 8 MiB.
fn disk(path: &Path) -> String {
    std::fs::File::create(path).unwrap().set_len(8 << 20).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A subsystem with a namespace on a file, one on a layer over another file, and one in memory; and
/// a second one that has a pool on a file.
fn export(daemon: &Kept, files: &Path) {
    let buffered = |name: &str| {
        let filename = disk(&files.join(name));
        json!({ "name": name, "filename": filename, "block_size": 4096, "buffered": true })
    };
    let pool = "nqn.2026-01.io.raceline:pool";
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("bdev_aio_create", buffered("a")),
        ("bdev_uring_create", buffered("b")),
        ("bdev_aio_create", buffered("c")),
        ("bdev_passthru_create", json!({ "name": "p", "base_bdev_name": "b" })),
        ("bdev_malloc_create", json!({ "name": "m", "num_blocks": 64, "block_size": 512 })),
        ("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
        ("nvmf_create_subsystem", json!({ "nqn": pool, "allow_any_host": true })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "p" } })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "m" } })),
        ("nvmf_subsystem_add_pool", json!({ "nqn": pool, "bdev_name": "c" })),
    ] {
        ok(daemon.call(method, params));
    }
}

fn namespaces(daemon: &Kept) -> Value {
    ok(daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN })))[0]["namespaces"].take()
}

fn missing(daemon: &Kept) -> Vec<String> {
    let list = ok(daemon.call("bdev_get_missing", Value::Null));
    list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

fn wait_for_all(daemon: &Kept) {
    let deadline = Instant::now() + PATIENCE;
    while !missing(daemon).is_empty() {
        assert!(Instant::now() < deadline, "still missing: {:?}", missing(daemon));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_rest_is_served_and_what_is_missing_comes_back() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Kept::start(dir.path());
    export(&daemon, files.path());
    let before = daemon.picture();
    daemon.kill();
    let away = files.path().join("away");
    std::fs::create_dir(&away).unwrap();
    let hide = |name: &str| std::fs::rename(files.path().join(name), away.join(name)).unwrap();
    let show = |name: &str| std::fs::rename(away.join(name), files.path().join(name)).unwrap();
    ["a", "b", "c"].into_iter().for_each(hide);
    // Several starts without them, after an orderly end and after a kill: nothing is forgotten.
    for _ in 0..2 {
        let daemon = Kept::start(dir.path());
        assert_eq!(missing(&daemon), ["a", "b", "c"]);
        assert_eq!(daemon.picture()["config"], before["config"]);
        let shown = namespaces(&daemon);
        assert!(shown[0]["missing"].as_str().unwrap().contains("does not exist"), "{shown}");
        let stacked = shown[1]["missing"].as_str().unwrap();
        assert!(stacked.contains("it stands on `b`"), "{shown}");
        assert_eq!(shown[2]["missing"], Value::Null, "{shown}");
        let served = daemon.manager.cores()[0].subsystem(&NQN.parse().unwrap()).unwrap();
        assert_eq!(served.namespaces.len(), 1);
        // A client that asks for it is told why it is missing, and its name and number stay reserved.
        let error = daemon.call("bdev_get_bdevs", json!({ "name": "a" })).unwrap_err();
        assert!(error.contains("`a` is configured, but missing"), "{error}");
        let device = json!({ "name": "a", "num_blocks": 64, "block_size": 512 });
        let error = daemon.call("bdev_malloc_create", device).unwrap_err();
        assert!(error.contains("there is a device `a` already"), "{error}");
        let taken = json!({ "nqn": NQN, "namespace": { "bdev_name": "m", "nsid": 1 } });
        daemon.call("nvmf_subsystem_add_ns", taken).unwrap_err();
        daemon.manager.close_journal().unwrap();
        daemon.kill();
    }
    show("b");
    let daemon = Kept::start(dir.path());
    assert_eq!(missing(&daemon), ["a", "c"]);
    show("a");
    show("c");
    wait_for_all(&daemon);
    let after = daemon.picture();
    assert_eq!(after["config"], before["config"]);
    assert_eq!(after["subsystems"], before["subsystems"]);
    // Devices are listed in the order in which they came, which has changed.
    assert_eq!(by_name(&after["bdevs"]), by_name(&before["bdevs"]));
    daemon.kill();
}

fn by_name(bdevs: &Value) -> Vec<Value> {
    let mut bdevs = bdevs.as_array().unwrap().clone();
    bdevs.sort_by_key(|bdev| bdev["name"].to_string());
    bdevs
}

#[test]
fn what_is_missing_can_be_deleted() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Kept::start(dir.path());
    export(&daemon, files.path());
    daemon.kill();
    for name in ["a", "b", "c"] {
        std::fs::remove_file(files.path().join(name)).unwrap();
    }
    let daemon = Kept::start(dir.path());
    ok(daemon.call("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 2 })));
    ok(daemon.call("bdev_aio_delete", json!({ "name": "a" })));
    ok(daemon.call("bdev_passthru_delete", json!({ "name": "p" })));
    ok(daemon.call("bdev_uring_delete", json!({ "name": "b" })));
    ok(daemon.call("bdev_aio_delete", json!({ "name": "c" })));
    assert!(missing(&daemon).is_empty());
    assert_eq!(namespaces(&daemon).as_array().unwrap().len(), 1);
    let before = daemon.picture();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}

#[test]
fn an_unreachable_controller_is_tried_until_it_answers() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let behind = Kept::start(dir.path());
    export(&behind, files.path());
    let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    ok(behind
        .call("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": address })));
    let listeners = ok(behind.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })));
    let port = listeners[0]["address"]["trsvcid"].clone();

    let state = tempfile::tempdir().unwrap();
    let front = Kept::start(state.path());
    let export = "nqn.2026-01.io.raceline:front";
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        (
            "bdev_nvme_attach_controller",
            json!({ "name": "N", "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": port, "subnqn": NQN }),
        ),
        ("nvmf_create_subsystem", json!({ "nqn": export })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": export, "namespace": { "bdev_name": "Nn3" } })),
    ] {
        ok(front.call(method, params));
    }
    let before = front.picture();
    front.kill();
    behind.kill();

    let front = Kept::start(state.path());
    assert_eq!(missing(&front), ["N"]);
    assert_eq!(front.picture()["config"], before["config"]);
    let listed = ok(front.call("nvmf_get_subsystems", json!({ "nqn": export })));
    let reason = listed[0]["namespaces"][0]["missing"].as_str().unwrap();
    assert!(reason.contains("127.0.0.1"), "{reason}");
    let behind = Kept::start(dir.path());
    wait_for_all(&front);
    assert_eq!(front.picture(), before);
    // A namespace that disappears behind is missing here, and its entry is kept.
    ok(behind.call("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 3 })));
    let is_missing = || {
        let listed = ok(front.call("nvmf_get_subsystems", json!({ "nqn": export })));
        listed[0]["namespaces"][0]["missing"].is_string()
    };
    let deadline = Instant::now() + PATIENCE;
    while !is_missing() {
        assert!(Instant::now() < deadline, "the namespace does not go");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(front.picture()["config"], before["config"]);
    let again = json!({ "nqn": NQN, "namespace": { "bdev_name": "m", "nsid": 3 } });
    ok(behind.call("nvmf_subsystem_add_ns", again));
    while is_missing() {
        assert!(Instant::now() < deadline, "the namespace does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    front.kill();
    behind.kill();
}
