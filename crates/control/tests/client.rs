//! Our client against our server: command lines in, printed lines out, configurations saved and loaded.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use raceline_control::allowance::MOST_CALLS;
use raceline_control::client::output::render;
use raceline_control::client::{Address, ClientError, Connection, arguments, config};
use raceline_control::configuration;
use support::Daemon;

const PATIENCE: Duration = Duration::from_secs(60);
const NQN: &str = "nqn.2021-01.io.spdk:NVMe0";

fn connect(daemon: &Daemon) -> Connection {
    Connection::open(&Address::Unix(daemon.path()), PATIENCE, 0).unwrap()
}

/// Runs a command line; gives what is printed.
fn run(connection: &mut Connection, line: &str) -> Result<Option<String>, ClientError> {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let request = arguments::parse(&words[0], &words[1..]).unwrap();
    let result = connection.call(&request.method, &request.params)?;
    Ok(render(&result, request.prints))
}

/// A target as the command lines of a paper make it, with the names of its devices.
fn make(connection: &mut Connection) {
    for (line, printed) in [
        (
            "nvmf_create_transport -t tcp -q 128 -m 64 -c 4096 -i 131072 -u 131072 -a 128 -n 4096 -b 32 -y 1",
            None,
        ),
        ("bdev_malloc_create -b Nvme0n1 16 512", Some("Nvme0n1")),
        ("bdev_malloc_create -b Nvme1n1 16 4096", Some("Nvme1n1")),
        ("nvmf_create_subsystem nqn.2021-01.io.spdk:NVMe0 -s SPDK00000000000000 -a", None),
        ("nvmf_subsystem_allow_any_host nqn.2021-01.io.spdk:NVMe0", None),
        ("nvmf_subsystem_add_listener -t tcp -a 127.0.0.1 -s 0 nqn.2021-01.io.spdk:NVMe0", None),
        ("nvmf_subsystem_add_ns nqn.2021-01.io.spdk:NVMe0 Nvme0n1", None),
        ("nvmf_subsystem_add_ns nqn.2021-01.io.spdk:NVMe0 Nvme1n1", None),
    ] {
        let found = run(connection, line).unwrap();
        assert_eq!(found.as_deref(), printed, "{line}");
    }
}

#[test]
fn command_lines_make_a_target() {
    let daemon = Daemon::started();
    let mut connection = connect(&daemon);
    make(&mut connection);
    let printed = run(&mut connection, "nvmf_get_subsystems").unwrap().unwrap();
    let listed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let subsystem = listed.as_array().unwrap().iter().find(|one| one["nqn"] == NQN).unwrap();
    assert_eq!(subsystem["namespaces"].as_array().unwrap().len(), 2);
    assert_eq!(subsystem["serial_number"], "SPDK00000000000000");
    assert!(printed.starts_with("[\n  {\n    \"nqn\": "), "as rpc.py prints: {printed}");
}

#[test]
fn refusals_say_code_text_and_culprit() {
    let daemon = Daemon::started();
    let mut connection = connect(&daemon);
    for (line, expected) in [
        (
            "nvmf_delete_subsystem nqn.2016-06.io.spdk:none",
            "Invalid parameters (JSON-RPC error -32602)",
        ),
        ("no_such_method a=1", "Method not found (JSON-RPC error -32601)"),
        ("bdev_malloc_delete none", "No such device (JSON-RPC error -19)"),
        ("framework_start_init", "(JSON-RPC error -1)"),
    ] {
        let error = run(&mut connection, line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    // The connection remains usable.
    run(&mut connection, "framework_wait_init").unwrap();
}

#[test]
fn a_batch_reports_each_of_its_calls() {
    let daemon = Daemon::started();
    let mut connection = connect(&daemon);
    let request = |line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        arguments::parse(&words[0], &words[1..]).unwrap()
    };
    let batch =
        ["bdev_malloc_create -b A 1 512", "bdev_malloc_create -b A 1 512", "bdev_malloc_delete A"];
    let results = connection.call_batch(&batch.map(request)).unwrap();
    assert_eq!(results[0].as_ref().unwrap(), "A");
    assert_eq!(results[1].as_ref().unwrap_err().code, -17);
    assert!(results[2].is_ok());
    // One answer to all of them.
    let version = |_| arguments::parse("spdk_get_version", &[]).unwrap();
    let many: Vec<_> = (0..=MOST_CALLS).map(version).collect();
    let refused = connection.call_batch(&many).unwrap_err().to_string();
    assert!(refused.contains("the batch of 1025 calls") && refused.contains("1024"), "{refused}");
    assert_eq!(connection.call_batch(&many[1..]).unwrap().len(), MOST_CALLS);
}

#[test]
fn a_saved_configuration_makes_the_same_target() {
    let first = Daemon::started();
    let mut connection = connect(&first);
    make(&mut connection);
    // Port 0 became a free port; the saved configuration must name it, and the second daemon needs it free.
    let saved = config::save(&mut connection, None, false).unwrap();
    let listed = run(&mut connection, "nvmf_get_subsystems").unwrap();
    first.manager.shut_down().unwrap();
    let second = Daemon::waiting();
    let mut connection = connect(&second);
    let sections = configuration::parse(saved.to_string().as_bytes()).unwrap();
    assert_eq!(config::load(&mut connection, &sections).unwrap().skipped, Vec::<String>::new());
    assert_eq!(config::save(&mut connection, None, false).unwrap(), saved);
    assert_eq!(run(&mut connection, "nvmf_get_subsystems").unwrap(), listed);
    second.manager.shut_down().unwrap();
}
