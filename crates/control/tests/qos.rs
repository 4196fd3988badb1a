//! Limits of rates by calls: what they are over, what is refused, and that they survive.
#![allow(clippy::unwrap_used)] // a test

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use raceline_initiator::{BlockingSession, Name, SessionConfig, cdb};
use serde_json::{Value, json};
use support::Kept;

const NQN: &str = "nqn.2026-01.io.raceline:one";
const HOST: &str = "nqn.2014-08.org.nvmexpress:host";
const NODE: &str = "iqn.2026-01.io.raceline:disk";
const INITIATOR: &str = "iqn.2026-01.io.raceline:me";

fn export(kept: &Kept) {
    for (method, params) in [
        ("bdev_malloc_create", json!({ "name": "m", "num_blocks": 2048, "block_size": 512 })),
        ("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "m" } })),
    ] {
        kept.call(method, params).unwrap();
    }
}

/// Starts the cores, which get what is there.
fn serve(kept: &Kept) {
    kept.call("nvmf_create_transport", json!({ "trtype": "TCP" })).unwrap();
}

fn assigned(kept: &Kept) -> [u64; 4] {
    let bdevs = kept.call("bdev_get_bdevs", json!({ "name": "m" })).unwrap();
    let limits = &bdevs[0]["assigned_rate_limits"];
    ["rw_ios_per_sec", "rw_mbytes_per_sec", "r_mbytes_per_sec", "w_mbytes_per_sec"]
        .map(|name| limits[name].as_u64().unwrap())
}

fn all(kept: &Kept) -> Vec<Value> {
    kept.call("nvmf_get_qos_limits", Value::Null).unwrap().as_array().unwrap().clone()
}

fn start(dir: &Path) -> Kept {
    Kept::start(dir)
}

#[test]
fn what_is_left_out_stays_and_zero_is_no_limit() {
    let dir = tempfile::tempdir().unwrap();
    let kept = start(dir.path());
    serve(&kept);
    export(&kept);
    assert_eq!(assigned(&kept), [0; 4]);
    let set = |params: Value| {
        let mut all = json!({ "name": "m" });
        all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        kept.call("bdev_set_qos_limit", all)
    };
    set(json!({ "rw_ios_per_sec": 1500, "w_mbytes_per_sec": 20 })).unwrap();
    assert_eq!(assigned(&kept), [1500, 0, 0, 20]);
    set(json!({ "r_mbytes_per_sec": 7 })).unwrap();
    assert_eq!(assigned(&kept), [1500, 0, 7, 20]);
    set(json!({ "rw_ios_per_sec": 0, "rw_mbytes_per_sec": 3 })).unwrap();
    assert_eq!(assigned(&kept), [0, 3, 7, 20]);
    for (wrong, why) in [
        (json!({}), "no limit is given"),
        (json!({ "rw_mbytes_per_sec": u64::MAX }), "rw_mbytes_per_sec is above"),
        (json!({ "rw_ios_per_sec": 1, "burst_ms": 60_001 }), "burst_ms is above 60000"),
        (json!({ "rw_ios_per_sec": 1, "typo": 1 }), "typo"),
    ] {
        let refused = set(wrong.clone()).unwrap_err();
        assert!(refused.contains(why), "{wrong}: {refused}");
    }
    let other = json!({ "name": "nobody", "rw_ios_per_sec": 1 });
    assert!(kept.call("bdev_set_qos_limit", other).unwrap_err().contains("No such device"));
    assert_eq!(assigned(&kept), [0, 3, 7, 20], "what was refused has changed nothing");
    set(json!({ "rw_mbytes_per_sec": 0, "r_mbytes_per_sec": 0, "w_mbytes_per_sec": 0 })).unwrap();
    assert!(all(&kept).is_empty());
    kept.manager.shut_down().unwrap();
}

#[test]
fn limits_survive_and_go_with_what_they_are_of() {
    let dir = tempfile::tempdir().unwrap();
    let kept = start(dir.path());
    export(&kept);
    let of_bdev = json!({ "name": "m", "rw_ios_per_sec": 900, "burst_ms": 500 });
    kept.call("bdev_set_qos_limit", of_bdev).unwrap();
    let of_subsystem = json!({ "nqn": NQN, "rw_mbytes_per_sec": 100 });
    kept.call("nvmf_subsystem_set_qos_limit", of_subsystem).unwrap();
    let of_hosts = json!({ "name": "tenants", "hosts": [HOST], "w_mbytes_per_sec": 5 });
    kept.call("nvmf_host_set_qos_limit", of_hosts).unwrap();
    let nobody = json!({ "name": "empty", "rw_ios_per_sec": 5 });
    let refused = kept.call("nvmf_host_set_qos_limit", nobody).unwrap_err();
    assert!(refused.contains("hosts is empty"), "{refused}");
    let before = all(&kept);
    let names: Vec<&str> = before.iter().map(|limits| limits["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["m", NQN, "tenants"]);
    assert_eq!((&before[0]["burst_ms"], &before[2]["hosts"]), (&json!(500), &json!([HOST])));
    // As after a kill.
    drop(kept);
    let kept = start(dir.path());
    assert_eq!(all(&kept), before);
    assert_eq!(assigned(&kept), [900, 0, 0, 0]);
    serve(&kept);
    kept.call("bdev_malloc_delete", json!({ "name": "m" })).unwrap();
    kept.call("nvmf_delete_subsystem", json!({ "nqn": NQN })).unwrap();
    let gone = json!({ "name": "tenants", "w_mbytes_per_sec": 0 });
    kept.call("nvmf_host_set_qos_limit", gone).unwrap();
    assert!(all(&kept).is_empty());
    // A new device of that name begins without.
    let again = json!({ "name": "m", "num_blocks": 64, "block_size": 512 });
    kept.call("bdev_malloc_create", again).unwrap();
    assert_eq!(assigned(&kept), [0; 4]);
    kept.manager.shut_down().unwrap();
    drop(kept);
    let kept = start(dir.path());
    assert!(all(&kept).is_empty());
    kept.manager.shut_down().unwrap();
}

#[test]
fn weights_survive_and_go_with_their_subsystem() {
    let dir = tempfile::tempdir().unwrap();
    let kept = start(dir.path());
    export(&kept);
    let weight = |host: &str, weight: Value| json!({ "nqn": NQN, "host": host, "weight": weight });
    let other = "nqn.2014-08.org.nvmexpress:other";
    let set = |kept: &Kept, params| kept.call("nvmf_subsystem_set_host_weight", params);
    set(&kept, weight(HOST, json!(300))).unwrap();
    set(&kept, weight(other, json!(1))).unwrap();
    for wrong in [json!(0), json!(10_001), json!(u64::MAX)] {
        let refused = set(&kept, weight(HOST, wrong.clone())).unwrap_err();
        assert!(refused.contains("from 1 to 10000"), "{wrong}: {refused}");
    }
    let nowhere = json!({ "nqn": "nqn.2026-01.io.raceline:none", "host": HOST, "weight": 5 });
    assert!(set(&kept, nowhere).unwrap_err().contains("nqn.2026-01.io.raceline:none"));
    let before = all(&kept);
    let listed: Vec<_> = before
        .iter()
        .map(|w| [&w["type"], &w["name"], &w["nqn"], &w["weight"]].map(Value::clone))
        .collect();
    let row = |host: &str, weight: u64| [json!("weight"), json!(host), json!(NQN), json!(weight)];
    assert_eq!(listed, [row(HOST, 300), row(other, 1)]);
    // As after a kill.
    drop(kept);
    let kept = start(dir.path());
    assert_eq!(all(&kept), before);
    serve(&kept);
    set(&kept, json!({ "nqn": NQN, "host": other })).unwrap();
    assert_eq!(all(&kept), before[..1]);
    kept.call("nvmf_delete_subsystem", json!({ "nqn": NQN })).unwrap();
    assert!(all(&kept).is_empty());
    kept.call("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })).unwrap();
    assert!(all(&kept).is_empty(), "a new subsystem of that name begins without");
    kept.manager.shut_down().unwrap();
    drop(kept);
    let kept = start(dir.path());
    assert!(all(&kept).is_empty());
    kept.manager.shut_down().unwrap();
}

/// A session of an initiator with the target node of `export_lun`.
fn login(kept: &Kept) -> BlockingSession {
    let groups = kept.call("iscsi_get_portal_groups", Value::Null).unwrap();
    let port: u16 = groups[0]["portals"][0]["port"].as_str().unwrap().parse().unwrap();
    let (own, node) = (Name::new(INITIATOR).unwrap(), Name::new(NODE).unwrap());
    let config = SessionConfig::new(([127, 0, 0, 1], port).into(), own, Some(node));
    BlockingSession::connect(config).unwrap()
}

/// How long some reads take, one after the other.
fn reads(session: &BlockingSession, count: u32) -> Duration {
    let begun = Instant::now();
    for _ in 0..count {
        session.receive(cdb::read(0, 1), 512).unwrap();
    }
    begun.elapsed()
}

#[test]
fn limits_of_a_device_and_of_an_initiator_hold_over_iscsi() {
    let dir = tempfile::tempdir().unwrap();
    let kept = start(dir.path());
    export(&kept);
    serve(&kept);
    let portals = json!([{ "host": "127.0.0.1", "port": "0" }]);
    let any = json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] });
    let node = json!({
        "name": NODE, "alias_name": "", "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }],
        "luns": [{ "bdev_name": "m", "lun_id": 0 }], "queue_depth": 32, "disable_chap": true,
    });
    // Twenty reads at 40 per second take 475 ms, less the burst; at 1 per second they would take 19 s.
    let least = Duration::from_millis(460);
    let limit = |rate: u64| json!({ "name": "m", "rw_ios_per_sec": rate });
    kept.call("bdev_set_qos_limit", limit(40)).unwrap();
    for (method, params) in [
        ("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals })),
        ("iscsi_create_initiator_group", any),
        ("iscsi_create_target_node", node),
    ] {
        kept.call(method, params).unwrap();
    }
    let session = login(&kept);
    // What the session is told first counts as no read.
    while session.receive(cdb::read(0, 1), 512).is_err() {}
    assert!(reads(&session, 20) >= least, "the limit was there before the LUN");
    kept.call("bdev_set_qos_limit", limit(1)).unwrap();
    kept.call("bdev_set_qos_limit", limit(0)).unwrap();
    assert!(reads(&session, 20) < Duration::from_secs(19), "it was taken away");

    let of_hosts = json!({ "name": "tenant", "hosts": [HOST, INITIATOR], "rw_ios_per_sec": 40 });
    kept.call("nvmf_host_set_qos_limit", of_hosts).unwrap();
    assert_eq!(all(&kept)[0]["hosts"], json!([HOST, INITIATOR]));
    assert!(reads(&session, 20) >= least, "the limit of the initiator");
    for wrong in ["eui.12", "iqn."] {
        let of_hosts = json!({ "name": "tenant", "hosts": [wrong], "rw_ios_per_sec": 1 });
        let refused = kept.call("nvmf_host_set_qos_limit", of_hosts).unwrap_err();
        assert!(refused.contains(wrong) && refused.contains("iSCSI name"), "{refused}");
    }
    drop(session);
    let before = all(&kept);
    kept.kill();
    let kept = start(dir.path());
    assert_eq!(all(&kept), before);
    let session = login(&kept);
    while session.receive(cdb::read(0, 1), 512).is_err() {}
    assert!(reads(&session, 20) >= least, "after a kill, too");
    drop(session);
    kept.manager.shut_down().unwrap();
}
