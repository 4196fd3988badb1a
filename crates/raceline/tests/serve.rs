//! `raceline serve` as operators run it: configured by RPC, killed, restarted, ended.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "serve/activation.rs"]
mod activation;
#[path = "serve/clock.rs"]
mod clock;
#[path = "serve/disks.rs"]
mod disks;
#[path = "serve/logged.rs"]
mod logged;
#[path = "serve/memory.rs"]
mod memory;
#[path = "serve/scarce.rs"]
mod scarce;
#[path = "serve/stuck.rs"]
mod stuck;
mod support;
#[path = "serve/unread.rs"]
mod unread;
#[path = "serve/watch.rs"]
mod watch;

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Served, call, configure};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";

/// Everything that clients can ask for.
fn snapshot(socket: &Path) -> Value {
    let mut all = serde_json::Map::new();
    for method in ["bdev_get_bdevs", "nvmf_get_subsystems", "nvmf_get_transports"] {
        all.insert(method.to_owned(), call(socket, method, Value::Null).unwrap());
    }
    for name in ["bdev", "nvmf"] {
        let config = call(socket, "framework_get_config", json!({ "name": name })).unwrap();
        all.insert(name.to_owned(), config);
    }
    all.into()
}

/// The port of the first listener of a subsystem.
fn port_of(socket: &Path, nqn: &str) -> String {
    let listeners = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": nqn })).unwrap();
    listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned()
}

fn identify(socket: &Path) -> String {
    let port = port_of(socket, NQN);
    let output = support::run(&["identify", "-a", "127.0.0.1", "-s", &port, "-n", NQN]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    // Each run of a daemon has controller numbers of its own.
    let lines = output.stdout.lines().filter(|line| !line.starts_with("controller "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/rpc.sock");
    let state = directory.path().join("state");
    let arguments = ["--state-dir", state.to_str().unwrap()];
    let served = Served::start(&socket, &arguments);
    configure(&socket, NQN, 2048);
    let (before, identity) = (snapshot(&socket), identify(&socket));
    served.end(Signal::KILL);
    let served = Served::start(&socket, &arguments);
    assert_eq!(snapshot(&socket), before);
    assert_eq!(identify(&socket), identity);
    assert_eq!(served.end(Signal::TERM).code, Some(0));
    assert!(!socket.exists());
    let served = Served::start(&socket, &arguments);
    assert_eq!(snapshot(&socket), before);
    call(&socket, "spdk_kill_instance", json!({ "sig_name": "SIGTERM" })).unwrap();
    assert_eq!(served.finish().code, Some(0));
}

#[test]
fn a_configuration_is_loaded_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rpc.sock");
    let file = directory.path().join("config.json");
    let arguments = ["-c", file.to_str().unwrap()];
    let config = |method: &str| {
        json!({ "subsystems": [
            { "subsystem": "bdev", "config": [
                { "method": "bdev_malloc_create", "params": { "name": "M", "num_blocks": 8, "block_size": 512 } },
                { "method": method, "params": { "name": "N", "num_blocks": 8, "block_size": 512 } },
            ] },
            { "subsystem": "nvmf", "config": null },
        ] })
    };
    std::fs::write(&file, config("bdev_malloc_create").to_string()).unwrap();
    let served = Served::start(&socket, &arguments);
    let bdevs = call(&socket, "bdev_get_bdevs", Value::Null).unwrap();
    assert_eq!(bdevs.as_array().unwrap().len(), 2);
    assert_eq!(served.end(Signal::INT).code, Some(0));

    std::fs::write(&file, config("bdev_nothing").to_string()).unwrap();
    let output = Served::fail(&socket, &arguments);
    assert_eq!(output.code, Some(1));
    let expected = "bdev config[1] bdev_nothing: Method not found";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    assert!(!socket.exists());
    std::fs::write(&file, "{\"subsystems\": [\n {").unwrap();
    let output = Served::fail(&socket, &arguments);
    assert!(output.stderr.contains("line 2"), "{}", output.stderr);
    let output = Served::fail(&socket, &["-m", "0xz"]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    let output = Served::fail(&socket, &["-m", "[1000]"]);
    assert!(output.stderr.contains("core 1000"), "{}", output.stderr);
}

#[test]
fn a_device_that_is_not_there_is_shown_as_missing() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("rpc.sock"), directory.path().join("disk"));
    let config = directory.path().join("config.json");
    let device = json!({ "name": "D", "filename": file, "block_size": 4096 });
    let calls = json!({ "subsystems": [
        { "subsystem": "bdev", "config": [{ "method": "bdev_uring_create", "params": device }] },
        { "subsystem": "nvmf", "config": [
            { "method": "nvmf_create_subsystem", "params": { "nqn": NQN } },
            { "method": "nvmf_subsystem_add_ns", "params": { "nqn": NQN, "namespace": { "bdev_name": "D" } } },
        ] },
    ] });
    std::fs::write(&config, calls.to_string()).unwrap();
    let served = Served::start(&socket, &["-c", config.to_str().unwrap()]);
    let table = |verb: &str| {
        let output = support::run(&[verb, "ls", "-s", socket.to_str().unwrap()]);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stdout
    };
    let bdevs = table("bdev");
    assert!(
        bdevs.contains("missing bdev") && bdevs.contains("does not exist: bring it back"),
        "{bdevs}"
    );
    // Such advice is for `export`.
    assert!(!bdevs.contains("size=1G"), "{bdevs}");
    assert!(table("ns").contains("missing"), "{}", table("ns"));
    assert!(table("subsys").contains("1 (1 missing)"), "{}", table("subsys"));
    let output = served.end(Signal::TERM);
    assert!(output.stderr.contains("device `D` is missing"), "{}", output.stderr);
}

#[test]
fn the_start_can_wait_for_options() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rpc.sock");
    let served = Served::start(&socket, &["--wait-for-rpc"]);
    let early = call(&socket, "bdev_get_bdevs", Value::Null).unwrap_err();
    assert_eq!(early["code"], -1);
    call(&socket, "framework_start_init", Value::Null).unwrap();
    configure(&socket, NQN, 2048);
    identify(&socket);
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

/// What an HTTP server answers.
fn http(address: std::net::SocketAddr, head: &str, body: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let length = body.len();
    let text = format!(
        "{head}\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn http_takes_calls_and_shows_what_hosts_have_done() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, state) = (directory.path().join("rpc.sock"), directory.path().join("state"));
    let address = support::own_address();
    let at = address.to_string();
    let words = ["--state-dir", state.to_str().unwrap(), "--http", &at, "--metrics", &at];
    let served = Served::start(&socket, &words);
    configure(&socket, NQN, 2048);
    assert!(http(address, "GET /readyz HTTP/1.1", "").starts_with("HTTP/1.1 200 OK"));
    let listeners = call(&socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let target = listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned();
    let words = ["write", "-a", "127.0.0.1", "-s", &target, "-n", NQN, "--blocks", "256"];
    let output = support::run_with_input(&words, &vec![7; 128 << 10]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let metrics = http(address, "GET /metrics HTTP/1.1", "");
    assert!(
        metrics.contains("raceline_bdev_written_bytes_total{bdev_name=\"M\"} 131072\n"),
        "{metrics}"
    );
    let written = format!(
        "raceline_subsystem_written_bytes_total{{target=\"nvmf_tgt\",nqn=\"{NQN}\"}} 131072\n"
    );
    assert!(metrics.contains(&written), "{metrics}");
    // The token that it has made lets a client change things, and nothing else does.
    let token = std::fs::read_to_string(state.join("http.token")).unwrap();
    let request =
        r#"{"jsonrpc":"2.0","id":1,"method":"spdk_kill_instance","params":{"sig_name":"SIGTERM"}}"#;
    let refused = http(address, "POST /rpc HTTP/1.1", request);
    assert!(refused.contains("\"code\":-1,"), "{refused}");
    let head = format!("POST /rpc HTTP/1.1\r\nAuthorization: Bearer {}", token.trim());
    let ended = http(address, &head, request);
    assert!(ended.contains("\"result\":true"), "{ended}");
    let output = served.finish();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(
        output.stdout.contains(&format!("\"http\":[\"http://{address}\"]")),
        "{}",
        output.stdout
    );
    assert!(
        output.stderr.contains("\"via\":\"http\"") || output.stderr.contains("via=\"http\""),
        "{}",
        output.stderr
    );

    let output = Served::fail(&socket, &["--http", "0.0.0.0:0"]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains("--http-token"), "{}", output.stderr);
}
