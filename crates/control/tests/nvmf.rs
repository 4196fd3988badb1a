//! Hosts find what RPC exports: seen, read, written, and gone when removed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_control::manager::ManagerConfig;
use raceline_host::HostConfig;
use raceline_host::blocking::Host;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_target::ConnectionOptions;
use serde_json::{Value, json};
use support::{Client, Daemon, Kept, eventually};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const HOST: &str = "nqn.2014-08.org.example:host";

/// Makes a transport, a subsystem, a device and a listener; gives the listener's address.
fn export(client: &mut Client) -> SocketAddr {
    let ok = Ok(json!(true));
    assert_eq!(client.call("nvmf_create_transport", json!({ "trtype": "tcp" })), ok);
    export_over(client)
}

/// As [`export`], over the transport that there is.
fn export_over(client: &mut Client) -> SocketAddr {
    let ok = Ok(json!(true));
    let device = json!({ "name": "Malloc0", "num_blocks": 2048, "block_size": 512 });
    assert_eq!(client.call("bdev_malloc_create", device), Ok(json!("Malloc0")));
    let subsystem = json!({ "nqn": NQN, "serial_number": "SPDK1", "allow_any_host": true });
    assert_eq!(client.call("nvmf_create_subsystem", subsystem), ok);
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0" } });
    assert_eq!(client.call("nvmf_subsystem_add_ns", namespace), Ok(json!(1)));
    listen(client, NQN)
}

fn listen(client: &mut Client, nqn: &str) -> SocketAddr {
    let listener = json!({ "nqn": nqn, "listen_address": address("0") });
    assert_eq!(client.call("nvmf_subsystem_add_listener", listener), Ok(json!(true)));
    let listeners = client.call("nvmf_subsystem_get_listeners", json!({ "nqn": nqn })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    format!("127.0.0.1:{port}").parse().unwrap()
}

fn address(port: &str) -> Value {
    json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": port })
}

fn connect(address: SocketAddr) -> Result<Host, raceline_host::HostError> {
    let (subnqn, hostnqn) = (Nqn::new(NQN).unwrap(), Nqn::new(HOST).unwrap());
    let config = HostConfig::new(address, subnqn, hostnqn, HostId([7; 16]));
    Host::connect(config)
}

/// Where the RDMA libraries are missing, the call says what to install. Where they are, an address without an RDMA device is
/// refused.
#[test]
fn rdma_needs_its_transport_its_libraries_and_a_device() {
    let state = tempfile::tempdir().unwrap();
    let daemon = Kept::start(state.path());
    let refused = |method: &str, params: Value| daemon.call(method, params).unwrap_err();
    let rdma = json!({ "trtype": "rdma", "max_srq_depth": 512, "no_srq": true, "zcopy": true });
    daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })).unwrap();
    let subsystem = json!({ "nqn": NQN, "serial_number": "SPDK1", "allow_any_host": true });
    daemon.call("nvmf_create_subsystem", subsystem).unwrap();
    let address = json!({ "trtype": "RDMA", "traddr": "127.0.0.1", "trsvcid": "4420" });
    let listener = json!({ "nqn": NQN, "listen_address": address });
    let add = "nvmf_subsystem_add_listener";
    let missing = refused(add, listener.clone());
    assert!(missing.contains("transport") && missing.contains("RDMA"), "{missing}");
    // Each listener has one device, so no address can stand for all.
    for all in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
        let address = json!({ "trtype": "RDMA", "traddr": all, "trsvcid": "4420" });
        let error = refused(add, json!({ "nqn": NQN, "listen_address": address }));
        assert!(error.contains("stands for all addresses, and a listener for RDMA"), "{error}");
        assert!(error.contains("each RDMA device"), "{error}");
    }
    match daemon.call("nvmf_create_transport", rdma.clone()) {
        Err(error) => {
            assert!(error.contains("install Debian's packages"), "{error}");
            eprintln!("SKIPPED: what follows needs the libraries of RDMA: {error}");
        }
        Ok(_) => {
            let all = daemon.call("nvmf_get_transports", json!({ "trtype": "rdma" })).unwrap();
            assert_eq!(all[0]["trtype"], "RDMA", "{all}");
            assert_eq!((&all[0]["max_srq_depth"], &all[0]["no_srq"]), (&json!(512), &json!(true)));
            assert_eq!(all[0]["zcopy"], true, "{all}");
            for of_tcp in ["sock_priority", "c2h_success"] {
                assert_eq!(all[0][of_tcp], Value::Null, "{all}");
            }
            let stats = daemon.call("nvmf_get_stats", json!({})).unwrap();
            let transports = &stats["poll_groups"][0]["transports"];
            assert_eq!(transports[0]["trtype"], "TCP", "{stats}");
            let rdma = json!({
                "trtype": "RDMA", "pending_data_buffer": 0, "current_admin_qpairs": 0,
                "current_io_qpairs": 0, "devices": [],
            });
            assert_eq!(transports[1], rdma, "{stats}");
            let again = refused("nvmf_create_transport", rdma);
            assert!(again.contains("already exists"), "{again}");
            let error = refused(add, listener.clone());
            assert!(error.contains("RDMA device") || error.contains("rdma_ucm"), "{error}");
            let mut secure = listener.clone();
            secure["security"] = "tls".into();
            refused(add, secure);
        }
    }
    refused("nvmf_subsystem_remove_listener", listener);
    let listed = daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    assert_eq!(listed, json!([]));
}

/// The cores of a target have one set of limits, whichever transport comes first.
#[test]
fn rdma_may_be_the_first_transport_or_the_only_one() {
    let state = tempfile::tempdir().unwrap();
    let daemon = Kept::start(state.path());
    let create = "nvmf_create_transport";
    let rdma = json!({
        "trtype": "RDMA", "max_queue_depth": 64, "max_io_size": 131072, "num_cqe": 4096,
        "acceptor_backlog": -1, "no_wr_batching": true, "max_qpairs_per_ctrlr": 9, "no_srq": true,
        "kas": 5, "min_kato": 500, "abort_timeout_sec": 3,
    });
    if let Err(error) = daemon.call(create, rdma) {
        assert!(error.contains("install Debian's packages"), "{error}");
        return eprintln!("SKIPPED: no libraries of RDMA: {error}");
    }
    let all = daemon.call("nvmf_get_transports", json!({})).unwrap();
    assert_eq!((all.as_array().unwrap().len(), &all[0]["trtype"]), (1, &json!("RDMA")), "{all}");
    assert_eq!((&all[0]["max_queue_depth"], &all[0]["max_io_size"]), (&json!(64), &json!(131072)));
    // The members that SPDK shows of RDMA, and none of TCP alone.
    let shown = json!([{
        "trtype": "RDMA", "max_queue_depth": 64, "max_io_qpairs_per_ctrlr": 8,
        "in_capsule_data_size": 4096, "max_io_size": 131072, "max_aq_depth": 128,
        "iobuf_small_cache_size": 0, "iobuf_large_cache_size": 0, "dif_insert_or_strip": false,
        "zcopy": false, "max_srq_depth": 4096, "no_srq": true, "num_cqe": 4096,
        "acceptor_backlog": 100, "no_wr_batching": true, "abort_timeout_sec": 3, "ack_timeout": 0,
        "data_wr_pool_size": 4095, "disable_command_passthru": false, "kas": 5, "min_kato": 500,
    }]);
    assert_eq!(all, shown);
    let subsystem = json!({ "nqn": NQN, "serial_number": "SPDK1", "allow_any_host": true });
    daemon.call("nvmf_create_subsystem", subsystem).unwrap();
    let listener = json!({ "nqn": NQN, "listen_address": address("0") });
    let add = "nvmf_subsystem_add_listener";
    let missing = daemon.call(add, listener.clone()).unwrap_err();
    assert!(missing.contains("TCP"), "{missing}");

    let tcp = |depth: u16| {
        let queues = json!(8);
        json!({
            "trtype": "TCP", "max_queue_depth": depth, "max_io_size": 131072,
            "max_io_qpairs_per_ctrlr": queues, "kas": 5, "min_kato": 500,
        })
    };
    let other = daemon.call(create, tcp(128)).unwrap_err();
    assert!(other.contains("max_queue_depth is 64 for RDMA and 128 for TCP"), "{other}");
    let port = |daemon: &Kept| daemon.call("nvmf_get_transports", json!({})).unwrap();
    assert_eq!(port(&daemon), all, "nothing has changed");
    daemon.call(create, tcp(64)).unwrap();
    daemon.call(add, listener).unwrap();
    assert_eq!(port(&daemon).as_array().unwrap().len(), 2);
    let again = daemon.call(create, tcp(64)).unwrap_err();
    assert!(again.contains("already exists"), "{again}");
    let before = port(&daemon);
    daemon.kill();
    let daemon = Kept::start(state.path());
    assert_eq!(port(&daemon), before, "after a restart");
}

/// What is named for RDMA has to be what TCP has, since it would have no effect.
#[test]
fn rdma_has_no_other_limits_than_tcp() {
    let state = tempfile::tempdir().unwrap();
    let daemon = Kept::start(state.path());
    let create = |params: Value| daemon.call("nvmf_create_transport", params);
    create(json!({ "trtype": "TCP", "in_capsule_data_size": 8192 })).unwrap();
    for (name, value) in [
        ("max_queue_depth", 64),
        ("max_io_qpairs_per_ctrlr", 64),
        ("in_capsule_data_size", 2048),
        ("max_io_size", 131_072),
        ("max_aq_depth", 64),
        ("kas", 5),
        ("min_kato", 500),
    ] {
        let mut params = json!({ "trtype": "RDMA" });
        params[name] = value.into();
        let error = create(params).unwrap_err();
        assert!(error.contains(&format!("{name} is {value} for RDMA")), "{error}");
    }
    let range = create(json!({ "trtype": "RDMA", "max_aq_depth": 1 })).unwrap_err();
    assert!(range.contains("max_aq_depth must be"), "{range}");
    // A capsule of RDMA holds 4096 bytes at most.
    let same = json!({ "trtype": "RDMA", "in_capsule_data_size": 16384, "max_queue_depth": 128 });
    if let Err(error) = create(same) {
        assert!(error.contains("install Debian's packages"), "{error}");
        eprintln!("SKIPPED: no transport of RDMA was made: {error}");
    }
}

#[test]
fn what_is_made_is_served_and_what_is_removed_is_gone() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let address = export(&mut client);
    let host = connect(address).unwrap();
    assert_eq!(host.controller().serial, "SPDK1");
    let data = vec![0x5a; 4096];
    host.write(NamespaceId(1), 8, &data, false).unwrap();
    let mut read = vec![0; 4096];
    host.read(NamespaceId(1), 8, &mut read).unwrap();
    assert_eq!(read, data);

    let listed = client.call("nvmf_get_subsystems", json!({ "nqn": NQN })).unwrap();
    let namespace = &listed[0]["namespaces"][0];
    let bdev = client.call("bdev_get_bdevs", json!({ "name": "Malloc0" })).unwrap();
    assert_eq!((&namespace["nsid"], &namespace["bdev_name"]), (&json!(1), &json!("Malloc0")));
    assert_eq!(namespace["uuid"], bdev[0]["uuid"]);
    assert_eq!(
        (&bdev[0]["claimed"], &bdev[0]["claimed_by"]),
        (&json!(true), &json!("NVMe-oF Target"))
    );
    let all = client.call("nvmf_get_subsystems", Value::Null).unwrap();
    assert_eq!(all[0]["subtype"], "Discovery");

    // A second namespace appears while the host is connected.
    let device = json!({ "name": "Malloc1", "num_blocks": 8, "block_size": 4096 });
    client.call("bdev_malloc_create", device).unwrap();
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc1", "nsid": 7 } });
    assert_eq!(client.call("nvmf_subsystem_add_ns", namespace), Ok(json!(7)));
    let patience = Instant::now() + Duration::from_secs(30);
    while host.namespace(NamespaceId(7)).is_none() {
        assert!(Instant::now() < patience, "the host is not told of its namespace");
        std::thread::sleep(Duration::from_millis(5));
    }
    host.write(NamespaceId(7), 0, &data, false).unwrap();
    // Its device is deleted, and the namespace with it.
    client.call("bdev_malloc_delete", json!({ "name": "Malloc1" })).unwrap();
    assert!(host.read(NamespaceId(7), 0, &mut read).is_err());
    host.read(NamespaceId(1), 8, &mut read).unwrap();
    let remove = json!({ "nqn": NQN, "nsid": 1 });
    assert_eq!(client.call("nvmf_subsystem_remove_ns", remove.clone()), Ok(json!(true)));
    assert!(host.read(NamespaceId(1), 8, &mut read).is_err());
    assert_eq!(client.call("nvmf_subsystem_remove_ns", remove).unwrap_err().0, -32602);
    host.disconnect();
    assert_eq!(client.call("nvmf_delete_subsystem", json!({ "nqn": NQN })), Ok(json!(true)));
    assert!(connect(address).is_err());
    let saved = client.call("framework_get_config", json!({ "name": "nvmf" })).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 1, "{saved}");
    daemon.manager.shut_down().unwrap();
}

#[test]
fn hosts_are_admitted_and_shut_out() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let address = export(&mut client);
    let ok = Ok(json!(true));
    let any = |allow: bool| json!({ "nqn": NQN, "allow_any_host": allow });
    let host = json!({ "nqn": NQN, "host": HOST });
    assert_eq!(client.call("nvmf_subsystem_allow_any_host", any(false)), ok);
    assert!(connect(address).is_err());
    assert_eq!(client.call("nvmf_subsystem_add_host", host.clone()), ok);
    assert_eq!(client.call("nvmf_subsystem_add_host", host.clone()).unwrap_err().0, -32603);
    connect(address).unwrap().disconnect();
    let listed = client.call("nvmf_get_subsystems", json!({ "nqn": NQN })).unwrap();
    assert_eq!(listed[0]["hosts"], json!([{ "nqn": HOST }]));
    assert_eq!(client.call("nvmf_subsystem_remove_host", host.clone()), ok);
    assert!(connect(address).is_err());
    assert_eq!(client.call("nvmf_subsystem_remove_host", host.clone()).unwrap_err().0, -32603);
    let mut keyed = host;
    keyed["psk"] = json!("key");
    let error = client.call("nvmf_subsystem_add_host", keyed).unwrap_err();
    assert_eq!(error, (-32602, "Invalid parameters".to_owned()));
    daemon.manager.shut_down().unwrap();
}

#[test]
fn a_saved_configuration_makes_the_same_target_again() {
    let saved = |client: &mut Client| -> Value {
        let sections = client.call("framework_get_subsystems", Value::Null).unwrap();
        let sections = sections.as_array().unwrap().clone();
        let one = |section: &Value| {
            let name = section["subsystem"].as_str().unwrap();
            let config = client.call("framework_get_config", json!({ "name": name })).unwrap();
            json!({ "subsystem": name, "config": config })
        };
        sections.iter().map(one).collect()
    };
    let first = Daemon::started();
    let mut client = first.client();
    export(&mut client);
    client.call("nvmf_subsystem_add_host", json!({ "nqn": NQN, "host": HOST })).unwrap();
    client.call("nvmf_create_target", json!({ "name": "other", "max_subsystems": 2 })).unwrap();
    let other = "nqn.2016-06.io.spdk:other";
    let subsystem = json!({ "nqn": other, "tgt_name": "other", "min_cntlid": 5 });
    client.call("nvmf_create_subsystem", subsystem).unwrap();
    let before = saved(&mut client);
    first.manager.shut_down().unwrap();

    let second = Daemon::started();
    let mut client = second.client();
    for section in before.as_array().unwrap() {
        for call in section["config"].as_array().unwrap() {
            client.call(call["method"].as_str().unwrap(), call["params"].clone()).unwrap();
        }
    }
    assert_eq!(saved(&mut client), before);
    let there = json!({ "nqn": other, "tgt_name": "other" });
    let listed = client.call("nvmf_get_subsystems", there).unwrap();
    assert_eq!(listed[0]["min_cntlid"], 5);
    assert_eq!(client.call("nvmf_delete_target", json!({ "name": "other" })), Ok(json!(true)));
    second.manager.shut_down().unwrap();
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn what_is_wrong_changes_nothing() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let unlistened = json!({ "nqn": NQN, "listen_address": address("0") });
    assert_eq!(client.call("nvmf_subsystem_add_listener", unlistened).unwrap_err().0, -32602);
    export(&mut client);
    let before = client.call("nvmf_get_subsystems", Value::Null).unwrap();
    let config = client.call("framework_get_config", json!({ "name": "nvmf" })).unwrap();
    for (method, params, code, message) in [
        (
            "nvmf_create_transport",
            json!({ "trtype": "TCP" }),
            -32603,
            "Transport type 'TCP' already exists",
        ),
        (
            "nvmf_create_transport",
            json!({ "trtype": "VFIOUSER" }),
            -32602,
            "Invalid transport type 'VFIOUSER'",
        ),
        ("nvmf_create_subsystem", json!({ "nqn": NQN }), -32603, "Unable to create subsystem"),
        ("nvmf_create_subsystem", json!({ "nqn": "x" }), -32603, "Unable to create subsystem x"),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": format!("{NQN}2"), "passthrough": true }),
            -32602,
            "parameter passthrough is not supported",
        ),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": format!("{NQN}2"), "min_cntlid": 9, "max_cntlid": 8 }),
            -32602,
            "Invalid cntlid range [9-8]",
        ),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": format!("{NQN}2"), "serial_number": "x".repeat(21) }),
            -32603,
            "Unable to create subsystem",
        ),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": format!("{NQN}2"), "tgt_name": "none" }),
            -32603,
            "Unable to find target none",
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0" } }),
            -32602,
            "Invalid parameters",
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "none" } }),
            -32602,
            "Invalid parameters",
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0", "x": 1 } }),
            -32602,
            "Invalid parameters",
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0", "nguid": "00é" } }),
            -32602,
            "Invalid parameters",
        ),
        (
            "nvmf_delete_subsystem",
            json!({ "nqn": "nqn.2016-06.io.spdk:none" }),
            -32602,
            "Invalid parameters",
        ),
        (
            "nvmf_subsystem_remove_listener",
            json!({ "nqn": NQN, "listen_address": address("1") }),
            -32602,
            "Invalid parameters",
        ),
        (
            "nvmf_subsystem_add_listener",
            json!({ "nqn": NQN, "listen_address": address("x") }),
            -32602,
            "Invalid parameters",
        ),
        ("nvmf_get_subsystems", json!({ "nqn": "none" }), -19, "No such device"),
        ("nvmf_get_transports", json!({ "trtype": "rdma" }), -19, "No such device"),
        ("nvmf_create_target", json!({ "name": "nvmf_tgt" }), -32602, "Target already exists."),
    ] {
        let error = client.call(method, params.clone()).unwrap_err();
        assert_eq!(error.0, code, "{method} {params}: {error:?}");
        assert!(error.1.starts_with(message), "{method} {params}: {error:?}");
    }
    assert_eq!(client.call("nvmf_get_subsystems", Value::Null).unwrap(), before);
    assert_eq!(client.call("framework_get_config", json!({ "name": "nvmf" })).unwrap(), config);
    daemon.manager.shut_down().unwrap();
}

#[test]
fn hosts_see_what_they_are_shown_and_are_counted() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let address = export(&mut client);
    let ok = Ok(json!(true));
    let device = json!({ "name": "Hidden", "num_blocks": 8, "block_size": 512 });
    client.call("bdev_malloc_create", device).unwrap();
    let namespace =
        json!({ "nqn": NQN, "namespace": { "bdev_name": "Hidden", "no_auto_visible": true } });
    assert_eq!(client.call("nvmf_subsystem_add_ns", namespace), Ok(json!(2)));
    let host = connect(address).unwrap();
    assert!(host.namespace(NamespaceId(2)).is_none());
    host.disconnect();
    let visible = json!({ "nqn": NQN, "nsid": 2, "host": HOST });
    assert_eq!(client.call("nvmf_ns_add_host", visible.clone()), ok);
    let always = json!({ "nqn": NQN, "nsid": 1, "host": HOST });
    assert_eq!(client.call("nvmf_ns_add_host", always).unwrap_err().0, -32602);
    let host = connect(address).unwrap();
    assert!(host.namespace(NamespaceId(2)).is_some());
    host.write(NamespaceId(2), 0, &[1; 512], false).unwrap();

    let nqn = json!({ "nqn": NQN });
    let controllers = client.call("nvmf_subsystem_get_controllers", nqn.clone()).unwrap();
    assert_eq!(
        (&controllers[0]["hostnqn"], &controllers[0]["num_io_qpairs"]),
        (&json!(HOST), &json!(1))
    );
    let queues = client.call("nvmf_subsystem_get_qpairs", nqn).unwrap();
    assert_eq!(queues.as_array().unwrap().len(), 2);
    assert_eq!(queues[1]["statistics"]["num_write_ops"], 1);
    let stats = client.call("nvmf_get_stats", Value::Null).unwrap();
    assert_eq!(stats["poll_groups"][0]["current_io_qpairs"], 1);
    let transports = stats["poll_groups"][0]["transports"].as_array().unwrap();
    assert_eq!((transports.len(), &transports[0]["trtype"]), (1, &json!("TCP")));
    assert_eq!(queues[1]["listen_address"]["trtype"], "TCP");
    let mut hosts = stats["hosts"].as_array().unwrap().iter();
    let counts = hosts.find(|host| host["hostnqn"] == HOST).unwrap();
    assert_eq!(counts["statistics"]["bytes_written"], 512);
    for method in [
        "framework_get_reactors",
        "thread_get_stats",
        "thread_get_pollers",
        "thread_get_io_channels",
        "accel_get_stats",
    ] {
        client.call(method, Value::Null).unwrap();
    }
    // Data in a command capsule took no buffer; data that the target asks for takes one.
    let buffers = client.call("iobuf_get_stats", Value::Null).unwrap();
    assert_eq!((&buffers[0]["module"], used(&buffers)), (&json!("nvmf_TCP"), [0, 0]));
    host.write(NamespaceId(1), 0, &[1; 64 << 10], false).unwrap();
    assert_eq!(used(&client.call("iobuf_get_stats", Value::Null).unwrap()), [0, 1]);
    assert_eq!(client.call("nvmf_ns_remove_host", visible), ok);
    host.disconnect();
    daemon.manager.shut_down().unwrap();
}

#[test]
fn options_of_the_command_line_reach_the_sockets_and_win_over_calls() {
    let connections = ConnectionOptions {
        socket_priority: Some(2),
        send_flags: true,
        ..ConnectionOptions::default()
    };
    let daemon = Daemon::waiting_with(ManagerConfig { connections, ..ManagerConfig::default() });
    let mut client = daemon.client();
    let quick = json!({ "impl_name": "posix", "enable_quickack": true });
    client.call("sock_impl_set_options", quick).unwrap();
    client.call("framework_start_init", Value::Null).unwrap();
    let transport = json!({ "trtype": "TCP", "sock_priority": 7 });
    // A process without CAP_NET_ADMIN may not have 7: only 2 is asked of the kernel.
    client.call("nvmf_create_transport", transport).unwrap();
    let address = export_over(&mut client);
    let host = connect(address).unwrap();
    let mut data = vec![0; 64 << 10];
    host.read(NamespaceId(1), 0, &mut data).unwrap();
    let cores = daemon.manager.cores();
    let departures = || cores[0].stats().loops[0].departures;
    // The core counts at the end of its turn, when the host may have the answer already.
    eventually("the core has counted what it sent", || departures().eor_sends > 0);
    assert_eq!(departures().zero_copy_sends, 0);
    drop(cores);
    host.disconnect();
    daemon.manager.shut_down().unwrap();
}

/// How many small and large buffers have been taken.
fn used(stats: &Value) -> [u64; 2] {
    ["small_pool", "large_pool"].map(|pool| {
        assert_eq!(stats[0][pool]["retry"], 0);
        stats[0][pool]["main"].as_u64().unwrap()
    })
}

#[test]
fn options_come_before_the_start_and_referrals_are_listed() {
    let daemon = Daemon::waiting();
    let mut client = daemon.client();
    let ok = Ok(json!(true));
    for (method, params) in [
        // As the client of v20.10 sends it, and as present ones do.
        (
            "sock_impl_set_options",
            json!({ "impl_name": "posix", "enable_zerocopy_send": true, "enable_placement_id": true }),
        ),
        (
            "sock_impl_set_options",
            json!({ "impl_name": "uring", "enable_placement_id": 2, "enable_quickack": false }),
        ),
        ("sock_set_default_impl", json!({ "impl_name": "posix" })),
        ("iobuf_set_options", json!({ "small_pool_count": 128, "large_pool_count": 16 })),
        ("nvmf_set_config", Value::Null),
        ("nvmf_set_config", json!({ "discovery_filter": "address,svcid" })),
        ("nvmf_set_crdt", json!({ "crdt1": 5 })),
        ("nvmf_set_max_subsystems", json!({ "max_subsystems": 1 })),
        ("accel_assign_opc", json!({ "opname": "crc32c", "module": "software" })),
        ("log_set_flag", json!({ "flag": "nvmf" })),
        ("framework_set_scheduler", json!({ "name": "static" })),
        ("framework_start_init", Value::Null),
    ] {
        assert_eq!(client.call(method, params.clone()), ok, "{method} {params}");
    }
    let posix = client.call("sock_impl_get_options", json!({ "impl_name": "posix" })).unwrap();
    assert_eq!(
        (&posix["enable_placement_id"], &posix["enable_zerocopy_send_client"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(client.call("log_get_flags", Value::Null).unwrap()["nvmf"], true);
    export(&mut client);
    let second = json!({ "nqn": "nqn.2016-06.io.spdk:second" });
    assert_eq!(client.call("nvmf_create_subsystem", second).unwrap_err().0, -32603);
    let there = json!({ "trtype": "tcp", "traddr": "192.0.2.7", "trsvcid": "8009" });
    let referral = json!({ "address": there });
    assert_eq!(client.call("nvmf_discovery_add_referral", referral.clone()), ok);
    assert_eq!(client.call("nvmf_discovery_add_referral", referral.clone()).unwrap_err().0, -32603);
    let listed = client.call("nvmf_discovery_get_referrals", Value::Null).unwrap();
    assert_eq!(listed[0]["address"]["traddr"], "192.0.2.7");
    assert_eq!(client.call("nvmf_discovery_remove_referral", referral), ok);
    // The same address by RDMA is another place, and nothing encrypts it.
    let there = json!({ "trtype": "RDMA", "traddr": "192.0.2.7", "trsvcid": "8009" });
    let referral = json!({ "address": there, "secure_channel": true });
    assert_eq!(client.call("nvmf_discovery_add_referral", referral).unwrap_err().0, -32602);
    let referral = json!({ "address": there });
    assert_eq!(client.call("nvmf_discovery_add_referral", referral.clone()), ok);
    let listed = client.call("nvmf_discovery_get_referrals", Value::Null).unwrap();
    assert_eq!(listed[0]["address"]["trtype"], "RDMA");
    assert_eq!(client.call("nvmf_discovery_remove_referral", referral), ok);
    for (method, params) in [
        ("sock_impl_get_options", json!({ "impl_name": "none" })),
        ("accel_error_inject_error", json!({ "opcode": "crc32c", "type": "odd" })),
        ("log_set_flag", json!({ "flag": "nothing" })),
        ("log_set_level", json!({ "level": "debug" })),
        ("spdk_kill_instance", json!({ "sig_name": "SIGSTOP" })),
    ] {
        assert_eq!(client.call(method, params).unwrap_err().0, -32602, "{method}");
    }
    daemon.manager.shut_down().unwrap();
}
