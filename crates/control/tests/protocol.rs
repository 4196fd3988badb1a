//! The socket and JSON-RPC, with good clients and bad ones.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_control::role::Roles;
use raceline_control::server::{ListenError, MAX_CONNECTIONS, Server, ServerConfig};
use raceline_reactor::private_socket::SocketError;
use serde_json::{Value, json};
use support::Daemon;

#[test]
fn says_what_it_is_and_what_it_can() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let methods = client.call("rpc_get_methods", Value::Null).unwrap();
    let methods: Vec<&str> = methods.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(methods.contains(&"spdk_get_version") && methods.contains(&"bdev_malloc_create"));
    assert!(!methods.contains(&"construct_malloc_bdev"));
    let all = client.call("rpc_get_methods", json!({ "include_aliases": true })).unwrap();
    assert!(all.as_array().unwrap().contains(&json!("construct_malloc_bdev")));
    let version = client.call("spdk_get_version", Value::Null).unwrap();
    assert_eq!(version["fields"]["major"], 26);
    // A method without parameters refuses even an empty object.
    let error = client.call("spdk_get_version", json!({})).unwrap_err();
    assert_eq!(error, (-32602, "spdk_get_version method requires no parameters".to_owned()));
}

#[test]
fn requests_may_come_in_any_pieces_and_any_number() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let request = b"{\"method\":\"notify_get_types\",\"id\":\"a b\"}\n\n";
    for byte in request {
        client.send(&[*byte]);
    }
    assert_eq!(
        client.line().unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":\"a b\",\"result\":[\"bdev_register\",\"bdev_unregister\"]}\n"
    );
    client.send(&request.repeat(3));
    for _ in 0..3 {
        assert!(client.line().unwrap().contains("bdev_register"));
    }
}

#[test]
fn batches_and_notifications() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    client.send(
        br#"[{"method":"bdev_malloc_create","params":{"name":"M","num_blocks":8,"block_size":512},"id":1},
            {"method":"bdev_malloc_create","params":{"name":"N","num_blocks":8,"block_size":512}},
            {"method":"nothing","id":2}, 7, {"method":"nothing"}]"#,
    );
    let line = client.line().unwrap();
    let answers: Vec<Value> = serde_json::from_str(&line).unwrap();
    assert_eq!(answers.len(), 4, "{line}");
    assert_eq!(answers[0]["result"], "M");
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&json!(2), &json!(-32601)));
    assert_eq!((&answers[2]["id"], &answers[2]["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert_eq!(answers[3]["error"]["message"], "Method not found");
    // Only notifications that succeed: no answer at all. Then the next request is answered.
    client.send(br#"[{"method":"notify_get_types"},{"method":"rpc_get_methods","id":null}]"#);
    assert_eq!(client.call("bdev_get_bdevs", json!({ "name": "N" })).unwrap()[0]["name"], "N");
}

#[test]
fn what_is_no_request_is_refused_as_spdk_does() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    for bad in [
        "7",
        "\"x\"",
        "[]",
        "{}",
        r#"{"method":1,"id":1}"#,
        r#"{"jsonrpc":"1.0","method":"m","id":1}"#,
        r#"{"jsonrpc":null,"method":"m","id":1}"#,
        r#"{"method":"m","id":[]}"#,
        r#"{"method":"m","params":3}"#,
        r#"{"method":"m","method":"m","id":1}"#,
        r#"{"method":"m","id":1,"extra":1}"#,
    ] {
        client.send(bad.as_bytes());
        client.send(b" ");
        let line = client.line().unwrap();
        assert!(
            line.contains(r#""id":null,"error":{"code":-32600,"message":"Invalid request""#),
            "{bad}: {line}"
        );
    }
    let refused = |client: &mut support::Client, text: &str| {
        client.send(text.as_bytes());
        client.line().unwrap()
    };
    let line = refused(&mut client, r#"{"method":"bdev_get_bdevs","params":["x"],"id":5}"#);
    assert!(line.contains(r#""id":5,"error":{"code":-32602,"message":"Invalid parameters""#));
}

#[test]
fn a_broken_stream_is_answered_and_closed() {
    let daemon = Daemon::started();
    let deep = "[".repeat(100);
    let long = format!("{{\"method\":\"{}\"", "x".repeat(1 << 20));
    for bad in ["{\"a\" 1", "nonsense", "{\"method\":\"m\",}", &deep, &long, "\u{0}"] {
        let mut client = daemon.client();
        // The server may close while the rest is still being sent.
        let _ = std::io::Write::write_all(&mut client.stream, bad.as_bytes());
        let line = client.line();
        if bad.len() < 1000 {
            assert!(
                line.clone().unwrap().contains("-32700,\"message\":\"Parse error\""),
                "{line:?}"
            );
        }
        assert_eq!(client.line(), None);
    }
    // Invalid UTF-8 in a string passes the splitter, which checks only JSON's outer form.
    let mut client = daemon.client();
    client.send(b"{\"method\":\"\xff\",\"id\":1}");
    assert!(client.line().unwrap().contains("-32700"));
}

#[test]
fn methods_know_their_state() {
    let daemon = Daemon::waiting();
    let mut client = daemon.client();
    let early = client.call("bdev_get_bdevs", Value::Null).unwrap_err();
    assert_eq!(early.0, -1);
    assert!(early.1.starts_with("Method may only be called after framework is initialized"));
    let current = client.call("rpc_get_methods", json!({ "current": true })).unwrap();
    assert!(current.as_array().unwrap().contains(&json!("framework_start_init")));
    assert!(!current.as_array().unwrap().contains(&json!("bdev_get_bdevs")));
    // One client waits while another starts.
    let mut waiting = daemon.client();
    waiting.send(br#"{"method":"framework_wait_init","id":1}"#);
    assert_eq!(client.call("framework_start_init", Value::Null), Ok(json!(true)));
    assert!(waiting.line().unwrap().contains("\"result\":true"));
    let late = client.call("framework_start_init", Value::Null).unwrap_err();
    assert!(late.1.starts_with("Method may only be called before framework is initialized."));
}

#[test]
fn slow_clients_hold_up_nobody() {
    let daemon = Daemon::waiting();
    // One client sends half a request, one waits for the start, one does not read its answers.
    let mut half = daemon.client();
    half.send(b"{\"method\":");
    let mut waiting = daemon.client();
    waiting.send(br#"{"method":"framework_wait_init","id":1}"#);
    let mut deaf = daemon.client();
    deaf.stream.set_nonblocking(true).unwrap();
    let request = br#"{"method":"rpc_get_methods","params":{"include_aliases":true},"id":1}"#;
    while std::io::Write::write(&mut deaf.stream, request).is_ok() {}
    let mut client = daemon.client();
    let begin = Instant::now();
    for _ in 0..100 {
        client.call("spdk_get_version", Value::Null).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn there_are_only_so_many_connections() {
    let daemon = Daemon::started();
    let mut clients: Vec<_> = (0..MAX_CONNECTIONS).map(|_| daemon.client()).collect();
    for client in &mut clients {
        client.call("spdk_get_version", Value::Null).unwrap();
    }
    let mut more = daemon.client();
    assert!(more.line().unwrap().contains("Too many connections"));
    assert_eq!(more.line(), None);
    drop(clients.pop());
    let begin = Instant::now();
    loop {
        let mut client = daemon.client();
        client.send(br#"{"method":"spdk_get_version","id":1}"#);
        if client.line().unwrap().contains("result") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "the place does not come back");
    }
}

#[test]
fn one_instance_and_safe_places_only() {
    let daemon = Daemon::started();
    let start = |path: std::path::PathBuf| {
        let config = ServerConfig { path, roles: Roles::default() };
        Server::start(config, Arc::clone(&daemon.manager)).err()
    };
    assert!(matches!(start(daemon.path()), Some(ListenError::InUse(_))));
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&daemon.path()), 0o660);
    assert_eq!(mode(daemon.path().parent().unwrap()), 0o750);
    let open = daemon.directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(start(open.join("rpc.sock")), Some(ListenError::OpenToAll(_))));
    let file = daemon.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(start(file), Some(ListenError::Socket(SocketError::NotASocket(_)))));
}

#[test]
fn the_socket_goes_with_the_server_and_a_dead_one_is_replaced() {
    let mut daemon = Daemon::started();
    let path = daemon.path();
    daemon.server = None;
    assert!(!path.exists());
    // The socket that a killed instance leaves.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let config = ServerConfig { path, roles: Roles::default() };
    daemon.server = Some(Server::start(config, Arc::clone(&daemon.manager)).unwrap());
    daemon.client().call("spdk_get_version", Value::Null).unwrap();
}
