//! SIGKILL ends a daemon after any change of what iSCSI exports; each change that it acknowledged is there again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod killed;

use killed::Daemon;
use raceline_control::manager::ManagerConfig;
use serde_json::{Value, json};

const NODE: &str = "iqn.2026-01.io.raceline:killed";

/// Not a test but the daemon of the test below, which starts this program again.
#[test]
fn a_daemon_to_be_killed() {
    let Some(dir) = killed::directory() else { return };
    killed::serve(&dir, ManagerConfig::default(), |_, _| ());
}

/// Changes of every kind: each stands on those before it.
fn changes() -> Vec<(&'static str, Value)> {
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    let map = json!([{ "pg_tag": 2, "ig_tag": 1 }]);
    let node = json!({
        "name": NODE, "alias_name": "", "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }],
        "luns": [{ "bdev_name": "N0", "lun_id": 7 }], "queue_depth": 32,
    });
    let null = |name: &str| json!({ "name": name, "num_blocks": 64, "block_size": 512 });
    vec![
        ("bdev_null_create", null("N0")),
        ("bdev_null_create", null("N1")),
        ("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals })),
        (
            "iscsi_create_initiator_group",
            json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] }),
        ),
        ("iscsi_create_target_node", node),
        ("iscsi_create_portal_group", json!({ "tag": 2, "portals": portals, "wait": true })),
        ("iscsi_target_node_add_pg_ig_maps", json!({ "name": NODE, "pg_ig_maps": map })),
        ("iscsi_start_portal_group", json!({ "tag": 2 })),
        ("iscsi_create_auth_group", json!({ "tag": 5 })),
        (
            "iscsi_auth_group_add_secret",
            json!({ "tag": 5, "user": "u", "secret": "a-secret-for-a-test" }),
        ),
        (
            "iscsi_target_node_set_auth",
            json!({ "name": NODE, "require_chap": true, "chap_group": 5 }),
        ),
        ("iscsi_set_discovery_auth", json!({ "disable_chap": true })),
        ("iscsi_target_node_add_lun", json!({ "name": NODE, "bdev_name": "N1", "lun_id": -1 })),
        ("nvmf_create_transport", json!({ "trtype": "TCP" })),
        ("bdev_null_delete", json!({ "name": "N0" })),
        ("iscsi_delete_portal_group", json!({ "tag": 1 })),
        ("iscsi_delete_target_node", json!({ "name": NODE })),
    ]
}

/// Everything that a client can see of iSCSI.
fn picture(daemon: &Daemon) -> Value {
    let get = |method| daemon.ok(method, Value::Null);
    json!({
        "config": daemon.ok("framework_get_config", json!({ "name": "iscsi" })),
        "portals": get("iscsi_get_portal_groups"),
        "initiators": get("iscsi_get_initiator_groups"),
        "auth": get("iscsi_get_auth_groups"),
        "nodes": get("iscsi_get_target_nodes"),
    })
}

#[test]
fn what_was_acknowledged_survives_sigkill_after_any_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(dir.path());
    for (method, params) in changes() {
        daemon.ok(method, params);
        let before = picture(&daemon);
        drop(daemon);
        daemon = Daemon::start(dir.path());
        assert_eq!(picture(&daemon), before, "after {method}");
    }
}
