//! `bdev_iscsi_*`: logical units of another target as devices, which are saved, restored, and waited for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use raceline_target::{
    ChapDemand, ChapPolicy, ChapSecret, InitiatorGroupConfig, LunConfig, PortalGroupConfig,
    PortalMap, Target, TargetConfig, TargetNodeConfig,
};
use serde_json::{Value, json};
use support::discovery::wait;
use support::{Kept, ok};

const NODE: &str = "iqn.2026-01.io.raceline:far";
const ME: &str = "iqn.2026-01.io.raceline:me";
const SECRET: &str = "a-secret-of-some-length";

/// A target with one disk of 8 MiB at `address`, and where it listens. Initiators have to prove who they are.
fn serve(address: SocketAddr) -> (Target, SocketAddr) {
    let config = TargetConfig {
        cores: vec![0],
        mode: raceline_reactor::Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    };
    let target = Target::start(config).unwrap();
    let identity = raceline_bdev::Identity::of_this_machine();
    let disk = raceline_bdev::open(&"ram:8M".parse().unwrap(), &identity).unwrap();
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    let secret = ChapSecret { user: "u".into(), secret: SECRET.into(), mutual: None };
    iscsi.set_auth_group(1, vec![secret]).unwrap();
    let group = PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, vec![address]) };
    iscsi.add_portal_group(group).unwrap();
    let node = TargetNodeConfig {
        maps: vec![PortalMap { portal_group: 1, initiator_group: 1 }],
        luns: vec![LunConfig::new(disk)],
        auth: ChapPolicy { demand: ChapDemand::Required, group: 1 },
        ..TargetNodeConfig::new(NODE)
    };
    iscsi.add_target_node(node).unwrap();
    let portals = Target::listen_after_restart(|| iscsi.start_portal_group(1)).unwrap();
    (target, portals[0])
}

/// An address of the caller's own: nobody else takes its port while nobody listens there.
fn loopback() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    assert!(count > 0, "a process has 255 of them");
    SocketAddr::from(([127, count, high, low.max(1)], 0))
}

fn key_file(dir: &Path) -> String {
    let path = dir.join("far.secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    std::io::Write::write_all(&mut file, format!("{SECRET}\n").as_bytes()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn bdev(daemon: &Kept, name: &str) -> Value {
    ok(daemon.call("bdev_get_bdevs", json!({ "name": name })))[0].clone()
}

#[test]
fn a_unit_is_a_device_with_a_key_and_is_there_after_a_restart() {
    let (target, address) = serve(loopback());
    let (state, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Kept::start(state.path());
    let key = json!({ "name": "far", "path": key_file(keys.path()) });
    ok(daemon.call("keyring_file_add_key", key));
    ok(daemon.call("bdev_iscsi_set_options", json!({ "timeout_sec": 7 })));
    let url = format!("iscsi://u@{address}/{NODE}/0");
    let create = json!({ "name": "Far0", "initiator_iqn": ME, "url": url, "chap_key": "far" });
    assert_eq!(ok(daemon.call("bdev_iscsi_create", create.clone())), "Far0");
    let made = bdev(&daemon, "Far0");
    assert_eq!((&made["product_name"], &made["num_blocks"]), (&"iSCSI LUN".into(), &16_384.into()));
    assert_eq!(made["driver_specific"]["iscsi"]["url"], url);
    daemon.call("bdev_iscsi_create", create.clone()).unwrap_err();
    // Killed, and the target is away at the next start: the device is missed, and comes with it.
    daemon.kill();
    target.shutdown().unwrap();
    let daemon = Kept::start(state.path());
    let missing = ok(daemon.call("bdev_get_missing", Value::Null));
    assert_eq!(
        (&missing[0]["name"], &missing[0]["params"]),
        (&"Far0".into(), &create),
        "{missing}"
    );
    let (target, _) = serve(address);
    wait("the device", || daemon.call("bdev_get_bdevs", json!({ "name": "Far0" })).is_ok());
    assert_eq!(bdev(&daemon, "Far0")["uuid"], made["uuid"]);
    let config = ok(daemon.call("framework_get_config", json!({ "name": "bdev" })));
    let saved = |method: &str| {
        let calls = config.as_array().unwrap();
        calls.iter().find(|call| call["method"] == method).map(|call| call["params"].clone())
    };
    assert_eq!(saved("bdev_iscsi_create"), Some(create));
    assert_eq!(saved("bdev_iscsi_set_options"), Some(json!({ "timeout_sec": 7 })));
    assert!(!config.to_string().contains(SECRET), "{config}");
    ok(daemon.call("bdev_iscsi_delete", json!({ "name": "Far0" })));
    daemon.call("bdev_iscsi_delete", json!({ "name": "Far0" })).unwrap_err();
    daemon.kill();
    target.shutdown().unwrap();
}

#[test]
fn a_password_of_spdks_url_works_and_is_not_shown() {
    let (target, address) = serve(loopback());
    let state = tempfile::tempdir().unwrap();
    let daemon = Kept::start(state.path());
    let create = |url: String| {
        daemon.call("bdev_iscsi_create", json!({ "name": "F", "initiator_iqn": ME, "url": url }))
    };
    let refused = create(format!("iscsi://u%another-secret-entirely@{address}/{NODE}/0"));
    let text = refused.unwrap_err();
    assert!(text.contains("authentication failed") && !text.contains("another-secret"), "{text}");
    ok(create(format!("iscsi://u%{SECRET}@{address}/{NODE}/0")));
    let shown = bdev(&daemon, "F").to_string();
    assert!(shown.contains("iscsi://u@") && !shown.contains(SECRET), "{shown}");
    daemon.kill();
    target.shutdown().unwrap();
}

#[test]
fn wrong_parameters_are_named() {
    let state = tempfile::tempdir().unwrap();
    let daemon = Kept::start(state.path());
    let error = |params: Value| daemon.call("bdev_iscsi_create", params).unwrap_err();
    let with = |url: &str, more: Value| {
        let mut params = json!({ "name": "F", "initiator_iqn": ME, "url": url });
        let more = more.as_object().unwrap().clone();
        params.as_object_mut().unwrap().extend(more);
        error(params)
    };
    let url = format!("iscsi://127.0.0.1:1/{NODE}/0");
    assert!(with("http://h", json!({})).contains("begin with iscsi://"));
    assert!(with(&url, json!({ "initiator_iqn": "me" })).contains("initiator_iqn"));
    assert!(with(&url, json!({ "chap_key": "k" })).contains('k'));
    let user = format!("iscsi://u@127.0.0.1:1/{NODE}/0");
    assert!(with(&user, json!({})).contains("chap_key"));
    assert!(with(&user, json!({ "chap_target_user": "t" })).contains("come together"));
    assert!(with(&url, json!({})).contains("is an iSCSI target listening there?"));
    let answer = daemon.call("bdev_iscsi_set_options", json!({ "timeout_sec": 0 })).unwrap_err();
    assert!(answer.contains("timeout_sec is a number"), "{answer}");
    daemon.kill();
}
