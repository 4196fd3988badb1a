//! Asymmetric Namespace Access by RPC: states of listeners, groups of namespaces, and a restart.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::{Value, json};
use support::Kept;

const NQN: &str = "nqn.2026-01.io.raceline:paths";
const PLAIN: &str = "nqn.2026-01.io.raceline:plain";

fn address(port: &Value) -> Value {
    json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": port })
}

/// Two subsystems, one with ANA, a namespace in each of its groups 1 and 5, and two listeners; the ports.
fn two_listeners(daemon: &Kept) -> [Value; 2] {
    let change = |method, params| daemon.call(method, params).unwrap();
    change("nvmf_create_transport", json!({ "trtype": "tcp" }));
    change("nvmf_create_subsystem", json!({ "nqn": PLAIN, "allow_any_host": true }));
    let subsystem = json!({ "nqn": NQN, "allow_any_host": true, "ana_reporting": true });
    change("nvmf_create_subsystem", subsystem);
    for group in [None, Some(5)] {
        let device = json!({ "num_blocks": 64, "block_size": 512 });
        let mut namespace = json!({ "bdev_name": change("bdev_malloc_create", device) });
        if let Some(group) = group {
            namespace["anagrpid"] = group.into();
        }
        change("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": namespace }));
    }
    let any = address(&json!("0"));
    change("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": any }));
    let closed = json!({ "nqn": NQN, "listen_address": any, "ana_state": "inaccessible" });
    change("nvmf_subsystem_add_listener", closed);
    let listeners = listeners(daemon);
    [0, 1].map(|at| listeners[at]["address"]["trsvcid"].clone())
}

fn listeners(daemon: &Kept) -> Value {
    daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap()
}

/// The words for the groups of each listener.
fn states(daemon: &Kept) -> Vec<Vec<(u64, String)>> {
    let listeners = listeners(daemon);
    let state = |state: &Value| {
        (state["ana_group"].as_u64().unwrap(), state["ana_state"].as_str().unwrap().to_owned())
    };
    let of =
        |listener: &Value| listener["ana_states"].as_array().unwrap().iter().map(state).collect();
    listeners.as_array().unwrap().iter().map(of).collect()
}

fn words(words: [[(u64, &str); 2]; 2]) -> Vec<Vec<(u64, String)>> {
    words.map(|listener| listener.map(|(group, word)| (group, word.to_owned())).to_vec()).to_vec()
}

#[test]
fn states_are_set_listed_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    let [first, _second] = two_listeners(&daemon);
    let closed = [(1, "inaccessible"), (5, "inaccessible")];
    assert_eq!(states(&daemon), words([[(1, "optimized"), (5, "optimized")], closed]));
    let set = json!({
        "nqn": NQN, "listen_address": address(&first), "ana_state": "non_optimized", "anagrpid": 5,
    });
    daemon.call("nvmf_subsystem_listener_set_ana_state", set).unwrap();
    let moved = json!({ "nqn": NQN, "nsid": 1, "anagrpid": 2 });
    daemon.call("nvmf_subsystem_set_ns_ana_group", moved).unwrap();
    let expected = words([
        [(2, "optimized"), (5, "non_optimized")],
        [(2, "inaccessible"), (5, "inaccessible")],
    ]);
    assert_eq!(states(&daemon), expected);
    let listed = daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN })).unwrap();
    let groups = [0, 1].map(|at| listed[0]["namespaces"][at]["anagrpid"].clone());
    assert_eq!(groups, [json!(2), json!(5)]);
    let plain = daemon.call("nvmf_get_subsystems", json!({ "nqn": PLAIN })).unwrap();
    assert!(plain[0].get("ana_reporting").is_none());
    let before = daemon.picture();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(states(&daemon), expected);
    assert_eq!(daemon.picture(), before);
    // All groups of a listener at once: states of single groups are forgotten.
    let all = json!({
        "nqn": NQN, "listen_address": address(&first), "ana_state": "persistent_loss",
    });
    daemon.call("nvmf_subsystem_listener_set_ana_state", all).unwrap();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(states(&daemon)[0], [2, 5].map(|group| (group, "persistent_loss".to_owned())));
    daemon.kill();
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    let [first, _] = two_listeners(&daemon);
    let set = |nqn: &str, port: &Value, state: &str, group: u32| {
        let params = json!({
            "nqn": nqn, "listen_address": address(port), "ana_state": state, "anagrpid": group,
        });
        daemon.call("nvmf_subsystem_listener_set_ana_state", params).unwrap_err()
    };
    let nowhere = json!("1");
    for (error, reason) in [
        (set(PLAIN, &first, "optimized", 1), "create the subsystem with ana_reporting"),
        (set(NQN, &first, "change", 1), "none of optimized"),
        (set(NQN, &first, "fine", 1), "`fine` is none of optimized"),
        (set(NQN, &first, "optimized", 33), "anagrpid 33 is not within 1 to max_namespaces 32"),
        (set(NQN, &nowhere, "optimized", 1), "127.0.0.1:1"),
    ] {
        assert!(error.contains(reason), "{error}");
    }
    let group = |nqn: &str, nsid: u32, group: u32| {
        let params = json!({ "nqn": nqn, "nsid": nsid, "anagrpid": group });
        daemon.call("nvmf_subsystem_set_ns_ana_group", params).unwrap_err()
    };
    assert!(group(NQN, 1, 0).contains("anagrpid 0"));
    assert!(group(NQN, 9, 1).contains('9'));
    assert!(group(PLAIN, 1, 1).contains("ana_reporting"));
    let namespace = json!({ "bdev_name": "Malloc0", "anagrpid": 1 });
    let refused =
        daemon.call("nvmf_subsystem_add_ns", json!({ "nqn": PLAIN, "namespace": namespace }));
    assert!(refused.unwrap_err().contains("ana_reporting"));
    daemon.kill();
}
