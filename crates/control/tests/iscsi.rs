//! iSCSI by SPDK's methods: what is made can be reached, is saved, and is there again after a restart and a kill.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Daemon, Kept, ok};

const NODE: &str = "iqn.2026-01.io.raceline:disk1";
const SECRET: &str = "a-secret-of-some-length";
/// Held while a process begins and while a daemon starts: a process that begins has the lock of another test's state
/// directory for a moment.
static BEGINNING: Mutex<()> = Mutex::new(());
/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(30);

/// The calls that export two devices by one target node at a free port of this machine.
fn calls() -> Vec<(&'static str, Value)> {
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    let secrets =
        json!([{ "user": "u", "secret": SECRET, "muser": "m", "msecret": "another-secret-of-it" }]);
    let luns = json!([{ "bdev_name": "Malloc0", "lun_id": 0 }]);
    let node = json!({
        "name": NODE, "alias_name": "one", "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }], "luns": luns,
        "queue_depth": 32, "disable_chap": true,
    });
    vec![
        ("bdev_malloc_create", json!({ "num_blocks": 2048, "block_size": 512, "name": "Malloc0" })),
        ("bdev_malloc_create", json!({ "num_blocks": 4096, "block_size": 512, "name": "Malloc1" })),
        ("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals })),
        (
            "iscsi_create_initiator_group",
            json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] }),
        ),
        ("iscsi_create_auth_group", json!({ "tag": 1, "secrets": secrets })),
        ("iscsi_create_target_node", node),
        ("iscsi_target_node_add_lun", json!({ "name": NODE, "bdev_name": "Malloc1" })),
    ]
}

fn start(dir: &Path) -> Kept {
    let _alone = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    Kept::start(dir)
}

fn made(dir: &Path) -> Kept {
    let daemon = start(dir);
    for (method, params) in calls() {
        let answer = ok(daemon.call(method, params));
        assert!(answer == true || method.starts_with("bdev_"), "{method}: {answer}");
    }
    daemon
}

/// Everything that a client can see of iSCSI.
fn picture(daemon: &Kept) -> Value {
    let get = |method| ok(daemon.call(method, Value::Null));
    json!({
        "all": daemon.picture(),
        "options": get("iscsi_get_options"),
        "portals": get("iscsi_get_portal_groups"),
        "initiators": get("iscsi_get_initiator_groups"),
        "auth": get("iscsi_get_auth_groups"),
        "nodes": get("iscsi_get_target_nodes"),
    })
}

fn portal(daemon: &Kept) -> String {
    let groups = ok(daemon.call("iscsi_get_portal_groups", Value::Null));
    let portal = &groups[0]["portals"][0];
    format!("{}:{}", portal["host"].as_str().unwrap(), portal["port"].as_str().unwrap())
}

/// What a tool of libiscsi prints; `None` where it is not installed.
fn tool(name: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let mut command = Command::new("timeout");
    command.arg("30").arg(name).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn().unwrap()
    };
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(127) {
        eprintln!("SKIPPED: {name} is not installed");
        return None;
    }
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// Checks that an initiator finds these LUNs.
fn finds(address: &str, luns: &[u16]) {
    let Some((found, text)) = tool("iscsi-ls", &["-s", &format!("iscsi://{address}")]) else {
        return;
    };
    assert!(found && text.contains(&format!("Target:{NODE}")), "{text}");
    for number in [0, 1, 2, 5] {
        assert_eq!(
            text.contains(&format!("Lun:{number} ")),
            luns.contains(&number),
            "{number}: {text}"
        );
    }
}

#[test]
fn what_is_made_is_reached_by_initiators_and_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    let address = portal(&daemon);
    finds(&address, &[0, 1]);
    if let Some((_, text)) = tool("iscsi-inq", &[&format!("iscsi://{address}/{NODE}/0")]) {
        assert!(text.contains("Raceline") || text.contains("RACELINE"), "{text}");
    }
    let before = picture(&daemon);
    assert_eq!(before["nodes"][0]["luns"][1], json!({ "bdev_name": "Malloc1", "lun_id": 1 }));
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(picture(&daemon), before);
    assert_eq!(portal(&daemon), address);
    finds(&address, &[0, 1]);
    // In good order, twice: a start from a document without a log.
    for _ in 0..2 {
        daemon.manager.close_journal().unwrap();
    }
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(picture(&daemon), before);
    daemon.kill();
}

#[test]
fn later_changes_are_kept_although_they_need_what_was_made_after_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    let change = |method: &str, params| ok(daemon.call(method, params));
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    change("iscsi_create_portal_group", json!({ "tag": 2, "portals": portals, "private": true }));
    let group = json!({ "tag": 2, "initiators": ["iqn.2026-01.io.raceline:a"], "netmasks": ["127.0.0.0/8"] });
    change("iscsi_create_initiator_group", group);
    let map = json!([{ "pg_tag": 2, "ig_tag": 2 }]);
    change("iscsi_target_node_add_pg_ig_maps", json!({ "name": NODE, "pg_ig_maps": map }));
    let added =
        json!({ "tag": 2, "initiators": ["!iqn.2026-01.io.raceline:b"], "netmasks": ["::1"] });
    change("iscsi_initiator_group_add_initiators", added);
    let removed = json!({ "tag": 2, "initiators": ["iqn.2026-01.io.raceline:a"] });
    change("iscsi_initiator_group_remove_initiators", removed);
    let secret = json!({ "tag": 1, "user": "second", "secret": "secret-of-the-second" });
    change("iscsi_auth_group_add_secret", secret);
    change("iscsi_auth_group_remove_secret", json!({ "tag": 1, "user": "u" }));
    let auth = json!({ "name": NODE, "require_chap": true, "mutual_chap": true, "chap_group": 1 });
    change("iscsi_target_node_set_auth", auth);
    change("iscsi_portal_group_set_auth", json!({ "tag": 1, "disable_chap": true }));
    change("iscsi_set_discovery_auth", json!({ "require_chap": true, "chap_group": 1 }));
    let redirect =
        json!({ "name": NODE, "pg_tag": 1, "redirect_host": "127.0.0.1", "redirect_port": "3261" });
    change("iscsi_target_node_set_redirect", redirect);
    change("iscsi_target_node_request_logout", json!({ "name": NODE, "pg_tag": 1 }));
    let before = picture(&daemon);
    assert_eq!(before["nodes"][0]["mutual_chap"], true);
    assert_eq!(before["options"]["require_chap"], true);
    assert_eq!(before["initiators"][1]["initiators"], json!(["!iqn.2026-01.io.raceline:b"]));
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(picture(&daemon), before);
    // The order of SPDK.
    let config = ok(daemon.call("framework_get_config", json!({ "name": "iscsi" })));
    let methods: Vec<&str> =
        config.as_array().unwrap().iter().map(|call| call["method"].as_str().unwrap()).collect();
    assert_eq!(
        methods[..6],
        [
            "iscsi_set_options",
            "iscsi_create_portal_group",
            "iscsi_create_portal_group",
            "iscsi_create_initiator_group",
            "iscsi_create_initiator_group",
            "iscsi_create_target_node",
        ]
    );
    // Groups go with the maps that name them.
    ok(daemon.call("iscsi_delete_portal_group", json!({ "tag": 2 })));
    ok(daemon.call("iscsi_delete_initiator_group", json!({ "tag": 1 })));
    let nodes = ok(daemon.call("iscsi_get_target_nodes", Value::Null));
    assert_eq!(nodes[0]["pg_ig_maps"], json!([]));
    ok(daemon.call("iscsi_target_node_remove_lun", json!({ "name": NODE, "lun_id": 0 })));
    ok(daemon.call("iscsi_delete_target_node", json!({ "name": NODE })));
    ok(daemon.call("iscsi_delete_auth_group", json!({ "tag": 1 })));
    ok(daemon.call("iscsi_delete_portal_group", json!({ "tag": 1 })));
    ok(daemon.call("iscsi_delete_initiator_group", json!({ "tag": 2 })));
    let config = ok(daemon.call("framework_get_config", json!({ "name": "iscsi" })));
    assert_eq!(config.as_array().unwrap().len(), 1, "only options: {config}");
    daemon.kill();
}

#[test]
fn the_cores_serve_both_protocols_in_either_order() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    let address = portal(&daemon);
    finds(&address, &[0, 1]);
    // The transport comes later: the same portals are there, from new cores.
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "TCP" })));
    assert_eq!(portal(&daemon), address);
    finds(&address, &[0, 1]);
    let nqn = "nqn.2026-01.io.raceline:both";
    ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })));
    // A namespace and a LUN share a device; what stands on a device does not.
    let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": "Malloc0" } });
    ok(daemon.call("nvmf_subsystem_add_ns", namespace));
    let stacked = json!({ "base_bdev_name": "Malloc1", "name": "P" });
    let error = daemon.call("bdev_passthru_create", stacked).unwrap_err();
    assert!(error.contains(&format!("is used by LUN 1 of {NODE}")), "{error}");
    let error = daemon.call("nvmf_delete_target", json!({ "name": "nvmf_tgt" })).unwrap_err();
    assert!(error.contains("iscsi_delete_portal_group"), "{error}");
    let before = picture(&daemon);
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(picture(&daemon), before);
    finds(&address, &[0, 1]);
    daemon.kill();
}

#[test]
fn a_device_that_goes_takes_its_lun_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    ok(daemon.call("bdev_malloc_delete", json!({ "name": "Malloc0" })));
    let nodes = ok(daemon.call("iscsi_get_target_nodes", Value::Null));
    assert_eq!(nodes[0]["luns"], json!([{ "bdev_name": "Malloc1", "lun_id": 1 }]));
    finds(&portal(&daemon), &[1]);
    daemon.kill();
    let daemon = start(dir.path());
    finds(&portal(&daemon), &[1]);
    daemon.kill();
}

#[test]
fn a_lun_waits_for_a_device_that_is_missing_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let state = dir.path().join("state");
    let daemon = made(&state);
    let aio = json!({ "name": "Aio0", "filename": file, "block_size": 512 });
    ok(daemon.call("bdev_aio_create", aio));
    let lun = json!({ "name": NODE, "bdev_name": "Aio0", "lun_id": 5 });
    ok(daemon.call("iscsi_target_node_add_lun", lun));
    let saved = ok(daemon.call("framework_get_config", json!({ "name": "iscsi" })));
    finds(&portal(&daemon), &[0, 1, 5]);
    daemon.kill();
    let away = dir.path().join("away");
    std::fs::rename(&file, &away).unwrap();
    let daemon = start(&state);
    let nodes = ok(daemon.call("iscsi_get_target_nodes", Value::Null));
    assert!(nodes[0]["luns"][2]["missing"].is_string(), "{nodes}");
    assert_eq!(ok(daemon.call("framework_get_config", json!({ "name": "iscsi" }))), saved);
    finds(&portal(&daemon), &[0, 1]);
    std::fs::rename(&away, &file).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let nodes = ok(daemon.call("iscsi_get_target_nodes", Value::Null));
        if nodes[0]["luns"][2]["missing"].is_null() {
            break;
        }
        assert!(Instant::now() < deadline, "{nodes}");
        std::thread::sleep(Duration::from_millis(50));
    }
    finds(&portal(&daemon), &[0, 1, 5]);
    daemon.kill();
}

#[test]
fn chap_is_demanded_and_proved() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    let address = portal(&daemon);
    let auth = json!({ "name": NODE, "require_chap": true, "chap_group": 1 });
    ok(daemon.call("iscsi_target_node_set_auth", auth));
    let url = |user: &str| format!("iscsi://{user}{address}/{NODE}/0");
    if let Some((_, text)) = tool("iscsi-inq", &[&url("")]) {
        assert!(!text.contains("Peripheral"), "without a secret: {text}");
        let (_, text) = tool("iscsi-inq", &[&url(&format!("u%{SECRET}@"))]).unwrap();
        assert!(text.contains("Peripheral"), "{text}");
        let (_, text) = tool("iscsi-inq", &[&url("u%another-wrong-one@")]).unwrap();
        assert!(!text.contains("Peripheral"), "with a wrong secret: {text}");
    }
    daemon.kill();
}

#[test]
fn what_is_wrong_is_refused_with_the_reason_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    let before = picture(&daemon);
    let node = |name: &str, device: &str, pg: i32| {
        json!({
            "name": name, "alias_name": "", "pg_ig_maps": [{ "pg_tag": pg, "ig_tag": 1 }],
            "luns": [{ "bdev_name": device, "lun_id": 0 }], "queue_depth": 1,
        })
    };
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    let group = |netmask: &str| json!({ "tag": 9, "initiators": ["ANY"], "netmasks": [netmask] });
    for (method, params, reason) in [
        ("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals }), "portal group `1`"),
        ("iscsi_create_portal_group", json!({ "tag": 0, "portals": portals }), "1 to 65535"),
        ("iscsi_create_portal_group", json!({ "tag": 3, "portals": [] }), "at least one portal"),
        (
            "iscsi_create_portal_group",
            json!({ "tag": 3, "portals": [{ "host": "x", "port": "1" }] }),
            "`x`",
        ),
        ("iscsi_create_portal_group", json!({ "tag": 3 }), "missing field `portals`"),
        ("iscsi_create_initiator_group", group("10.0.0.0/99"), "10.0.0.0/99"),
        (
            "iscsi_create_initiator_group",
            json!({ "tag": 9, "initiators": [], "netmasks": ["ANY"] }),
            "at least one",
        ),
        ("iscsi_create_target_node", node(NODE, "Malloc0", 1), "already"),
        (
            "iscsi_create_target_node",
            node("iqn.2026-01.io raceline:x", "Malloc0", 1),
            "no iSCSI name",
        ),
        ("iscsi_create_target_node", node("disk2", "Malloc7", 1), "Malloc7"),
        ("iscsi_create_target_node", node("disk2", "Malloc0", 7), "portal group `7`"),
        ("iscsi_target_node_add_lun", json!({ "name": NODE, "bdev_name": "Malloc0" }), "already"),
        (
            "iscsi_target_node_add_lun",
            json!({ "name": NODE, "bdev_name": "Malloc0", "lun_id": 256 }),
            "255",
        ),
        (
            "iscsi_target_node_set_auth",
            json!({ "name": NODE, "mutual_chap": true }),
            "mutual_chap needs",
        ),
        (
            "iscsi_target_node_set_redirect",
            json!({ "name": NODE, "pg_tag": 1, "redirect_host": "::1" }),
            "together",
        ),
        (
            "iscsi_auth_group_add_secret",
            json!({ "tag": 1, "user": "x", "secret": 12345 }),
            "must be a string",
        ),
        ("iscsi_delete_target_node", json!({ "name": "disk9" }), "disk9"),
        ("iscsi_enable_histogram", json!({ "name": "disk9", "enable": true }), "disk9"),
        ("iscsi_get_histogram", json!({ "name": "disk9" }), "target not found: disk9"),
        ("iscsi_get_histogram", json!({ "name": NODE }), "not enabled"),
    ] {
        let error = daemon.call(method, params.clone()).unwrap_err();
        assert!(error.contains(reason), "{method} {params}: {error}");
        assert!(!error.contains("12345"), "{error}");
    }
    assert_eq!(picture(&daemon), before);
    daemon.kill();
}

#[test]
fn a_histogram_is_started_kept_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = made(dir.path());
    let enable = |daemon: &Kept, enable: bool| {
        let params = json!({ "name": NODE, "enable": enable });
        assert_eq!(ok(daemon.call("iscsi_enable_histogram", params)), true);
    };
    let get = |daemon: &Kept| daemon.call("iscsi_get_histogram", json!({ "name": NODE }));
    enable(&daemon, true);
    let histogram = ok(get(&daemon));
    assert_eq!(histogram["granularity"], 7);
    assert_eq!(histogram["tsc_rate"], 1_000_000_000);
    // In base64, 8 bytes for each bucket of each range.
    let ranges =
        histogram["max_range"].as_u64().unwrap() - histogram["min_range"].as_u64().unwrap();
    let bytes = usize::try_from((ranges + 1) * 128 * 8).unwrap();
    assert_eq!(histogram["histogram"].as_str().unwrap().len(), bytes.div_ceil(3) * 4);
    let address = portal(&daemon);
    if tool("iscsi-inq", &[&format!("iscsi://{address}/{NODE}/0")]).is_some() {
        assert_ne!(ok(get(&daemon))["histogram"], histogram["histogram"], "commands count");
    }
    // The histogram is there after a restart, with no counts.
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(ok(get(&daemon)), histogram);
    enable(&daemon, false);
    assert!(get(&daemon).unwrap_err().contains("not enabled"));
    daemon.kill();
    let daemon = start(dir.path());
    assert!(get(&daemon).unwrap_err().contains("not enabled"));
    daemon.kill();
}

#[test]
fn options_are_for_the_start_and_name_what_comes_later() {
    let daemon = Daemon::waiting();
    let mut client = daemon.client();
    let options = json!({ "node_base": "iqn.2026-01.io.raceline", "max_queue_depth": 8, "pdu_pool_size": 1000 });
    client.call("iscsi_set_options", options).unwrap();
    for wrong in [
        json!({ "max_queue_depth": 0 }),
        json!({ "first_burst_length": 5 }),
        json!({ "auth_file": "/x" }),
    ] {
        assert_eq!(
            client.call("iscsi_set_options", wrong.clone()).unwrap_err().0,
            -32602,
            "{wrong}"
        );
    }
    client.call("framework_start_init", Value::Null).unwrap();
    assert_eq!(client.call("iscsi_set_options", json!({})).unwrap_err().0, -1);
    let options = client.call("iscsi_get_options", Value::Null).unwrap();
    assert_eq!((&options["max_queue_depth"], &options["pdu_pool_size"]), (&json!(8), &json!(1000)));
    client
        .call("bdev_null_create", json!({ "name": "N", "num_blocks": 64, "block_size": 512 }))
        .unwrap();
    let node = json!({
        "name": "Disk", "alias_name": "d", "pg_ig_maps": [], "luns": [{ "bdev_name": "N", "lun_id": 3 }], "queue_depth": 64,
    });
    client.call("iscsi_create_target_node", node).unwrap();
    let nodes = client.call("iscsi_get_target_nodes", Value::Null).unwrap();
    assert_eq!(
        nodes,
        json!([{
            "name": "iqn.2026-01.io.raceline:disk", "alias_name": "d", "pg_ig_maps": [],
            "luns": [{ "bdev_name": "N", "lun_id": 3 }], "queue_depth": 8, "disable_chap": false,
            "require_chap": false, "mutual_chap": false, "chap_group": 0, "header_digest": false,
            "data_digest": false,
        }])
    );
    let devices = client.call("scsi_get_devices", Value::Null).unwrap();
    assert_eq!(devices, json!([{ "id": 0, "device_name": "iqn.2026-01.io.raceline:disk" }]));
    assert_eq!(client.call("iscsi_get_connections", Value::Null).unwrap(), json!([]));
    let none = json!({ "invalid": 0, "running": 0, "exiting": 0, "exited": 0 });
    assert_eq!(client.call("iscsi_get_stats", Value::Null).unwrap(), none);
}
