//! How parameters and options configure a connection.

use std::sync::Arc;

use raceline_host::Policy;

use super::*;
use crate::manager::ManagerConfig;
use crate::params::raw_params;
use crate::role::Peer;

fn attach(more: Value) -> Attach {
    let mut params = json!({
        "name": "N", "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "4420",
        "subnqn": "nqn.2026-01.io.x:s",
    });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(params).unwrap()
}

fn config(manager: &Manager, more: Value) -> Result<HostConfig, RpcError> {
    host_config(manager, &attach(more), "nqn.2026-01.io.x:h")
}

fn set_options(manager: &Manager, options: Value) -> Result<(), RpcError> {
    let raw = raw_params(Some(&options)).unwrap();
    let method = "bdev_nvme_set_options";
    Registry::new().call(manager, Peer::this_process(), method, raw.as_deref()).map(drop)
}

#[test]
fn parameters_are_those_of_the_connection() {
    let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
    let plain = config(&manager, json!({})).unwrap();
    assert_eq!((plain.source, plain.priority, plain.ack_timeout), (None, None, None));
    let asked = config(&manager, json!({ "hostaddr": "127.0.0.7", "priority": "5" })).unwrap();
    assert_eq!(asked.source, Some("127.0.0.7".parse().unwrap()));
    assert_eq!(asked.priority, Some(5));
    assert_eq!(config(&manager, json!({ "priority": "0" })).unwrap().priority, None);
    for more in [json!({ "hostaddr": "::1" }), json!({ "priority": "-1" })] {
        assert_eq!(config(&manager, more).unwrap_err().code, -libc::EINVAL);
    }
}

#[test]
fn rdma_is_a_transport_without_digests_and_tls() {
    let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
    assert_eq!(config(&manager, json!({})).unwrap().transport, Transport::Tcp);
    let made = config(&manager, json!({ "trtype": "rdma" })).unwrap();
    assert_eq!(
        (made.transport, made.address),
        (Transport::Rdma, "127.0.0.1:4420".parse().unwrap())
    );
    assert_eq!(trid_of(&made)["trtype"], "RDMA");
    for name in ["hdgst", "ddgst", "psk"] {
        let value = if name == "psk" { json!("key0") } else { json!(true) };
        let error = config(&manager, json!({ "trtype": "RDMA", name: value })).unwrap_err();
        assert!(error.message.contains(name) && error.data.unwrap().contains("RDMA has no"));
    }
    let error = config(&manager, json!({ "trtype": "fc" })).unwrap_err();
    let data = error.data.unwrap();
    assert!(data.contains("trtype `fc`"), "{data}");
}

#[test]
fn options_are_those_of_later_connections() {
    let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
    let options = json!({
        "action_on_timeout": "reset", "timeout_us": 4_000_000, "timeout_admin_us": 5_000_000,
        "transport_ack_timeout": 10, "tcp_connect_timeout_ms": 700, "keep_alive_timeout_ms": 9000,
        "transport_tos": 4, "generate_uuids": true, "multipath_opts": { "policy": "active_passive" },
    });
    set_options(&manager, options).unwrap();
    let made = config(&manager, json!({ "fabrics_connect_timeout_us": 800_000 })).unwrap();
    assert_eq!(made.command_timeout, Some(Duration::from_secs(4)));
    assert_eq!(made.admin_timeout, Some(Duration::from_secs(5)));
    assert_eq!(made.ack_timeout, Some(Duration::from_millis(1024)));
    assert_eq!(made.tcp_connect_timeout, Some(Duration::from_millis(700)));
    assert_eq!((made.connect_timeout, made.kato_ms), (Duration::from_millis(800), 9000));
    set_options(&manager, json!({ "multipath_opts": { "selector": "queue_depth" } })).unwrap();
    let policy = |more: Value| config(&manager, more).unwrap().multipath.unwrap().policy;
    assert_eq!(policy(json!({})), Policy::ActivePassive);
    let active = json!({ "multipath_opts": { "policy": "active_active" } });
    assert_eq!(policy(active), Policy::QueueDepth);
    set_options(&manager, json!({ "multipath_opts": { "policy": "active_active" } })).unwrap();
    assert_eq!(policy(json!({})), Policy::QueueDepth);
    assert_eq!(policy(json!({ "multipath": "failover" })), Policy::ActivePassive);
    let round_robin = json!({ "selector": "round_robin", "min_io": 4 });
    set_options(&manager, json!({ "multipath_opts": round_robin })).unwrap();
    let policy = Policy::RoundRobin { min_io: 4 };
    let more =
        json!({ "multipath_opts": { "policy": "active_active" }, "fast_io_fail_timeout_sec": 7 });
    let made = config(&manager, more).unwrap().multipath.unwrap();
    assert_eq!((made.policy, made.fast_io_fail), (policy, Some(Duration::from_secs(7))));
    assert_eq!(config(&manager, json!({ "multipath": "disable" })).unwrap().multipath, None);
    let failover =
        json!({ "multipath": "failover", "multipath_opts": { "policy": "active_active" } });
    assert_eq!(config(&manager, failover).unwrap_err().code, -libc::EINVAL);
    for (options, named) in [
        (json!({ "action_on_timeout": "abort" }), "parameter action_on_timeout is not supported"),
        (json!({ "fast_io_fail_timeout_sec": 601 }), "Invalid argument"),
        (json!({ "multipath_opts": { "min_io": 0 } }), "Invalid argument"),
        (json!({ "transport_ack_timeout": 32 }), "Invalid argument"),
    ] {
        let error = set_options(&manager, options).unwrap_err();
        assert!(error.message.contains(named) && error.data.is_some(), "{error:?}");
    }
}
