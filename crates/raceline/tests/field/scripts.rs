//! RPC calls as guides and platforms make them.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Scratch, Served, call, run};

/// Runs the lines of a script, each with the words after `rpc.py`; gives the output of the last one.
fn script(socket: &Path, lines: &str) -> String {
    let mut last = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words = ["rpc", "-s", socket.to_str().unwrap()];
        let words: Vec<&str> = words.into_iter().chain(line.split_whitespace()).collect();
        let output = run(&words);
        assert_eq!(output.code, Some(0), "{line}: {}", output.stderr);
        last = output.stdout;
    }
    last
}

fn transport(socket: &Path) -> Value {
    call(socket, "nvmf_get_transports", Value::Null).unwrap()[0].take()
}

#[test]
fn an_old_script_says_how_many_queues_with_the_admin_queue() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let socket = Path::new(&socket);
    let _served = Served::start(socket, &[]);
    script(
        socket,
        "nvmf_create_transport -t tcp -u 16384 -p 8 -c 8192 -o
         bdev_malloc_create -b Malloc0 16 512
         nvmf_create_subsystem nqn.2026-01.com.example:store1 -a -s EX00000000000001
         nvmf_subsystem_add_ns nqn.2026-01.com.example:store1 Malloc0
         nvmf_subsystem_add_listener discovery -t tcp -a 127.0.0.1 -s 0
         nvmf_subsystem_add_listener nqn.2026-01.com.example:store1 -t tcp -a 127.0.0.1 -s 0",
    );
    let shown = transport(socket);
    assert_eq!(
        (&shown["max_io_qpairs_per_ctrlr"], &shown["c2h_success"]),
        (&json!(7), &json!(false))
    );
    assert!(shown.get("max_qpairs_per_ctrlr").is_none(), "{shown}");
    // Both names: one must not contradict the other.
    for (queues, all, text) in [
        (json!(7), json!(9), "give one of them"),
        (Value::Null, json!(1), "max_qpairs_per_ctrlr must be at least 2"),
    ] {
        let both = json!({
            "trtype": "TCP", "max_io_qpairs_per_ctrlr": queues, "max_qpairs_per_ctrlr": all,
        });
        let error = call(socket, "nvmf_create_transport", both).unwrap_err();
        assert!(error["data"].as_str().unwrap().contains(text), "{error}");
    }
}

#[test]
fn a_parameter_that_is_passed_over_is_named() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let socket = Path::new(&socket);
    let served = Served::start(socket, &[]);
    let relaxed = json!({
        "trtype": "TCP", "max_io_qpairs_per_ctlr": 4, "colour": "red", "no_srq": false,
        "masked_oncs": ["nvmcmps"],
    });
    assert_eq!(call(socket, "nvmf_create_transport", relaxed).unwrap(), json!(true));
    // The same in the answer of a call that fails, beside the reason of the failure.
    let nqn = "nqn.2026-01.com.example:store1";
    for (method, params) in [
        (
            "nvmf_subsystem_add_listener",
            json!({
                "nqn": nqn, "listen_adress": 1,
                "listen_address": { "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" },
            }),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({
                "nqn": nqn, "listen_adress": 1, "namespace": { "bdev_name": "none" },
            }),
        ),
        ("nvmf_subsystem_add_host", json!({ "nqn": nqn, "listen_adress": 1, "host": "host1" })),
        (
            "nvmf_discovery_add_referral",
            json!({
                "listen_adress": 1,
                "address": { "trtype": "TCP", "traddr": "127.0.0.1" },
            }),
        ),
    ] {
        let error = call(socket, method, params).unwrap_err();
        let data = error["data"].as_str().unwrap();
        assert!(data.contains("ignored: `listen_adress` is no parameter"), "{method}: {error}");
    }
    let log = served.end(Signal::TERM).stderr;
    let line =
        log.lines().find(|line| line.contains("`colour`")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("WARN") && line.contains("nvmf_create_transport"), "{line}");
    for text in [
        "`colour` is no parameter",
        "`max_io_qpairs_per_ctlr` is no parameter (did you mean `max_io_qpairs_per_ctrlr`?)",
        "`masked_oncs` has no effect here",
    ] {
        assert!(line.contains(text), "{text}: {line}");
    }
    // Defaults that SPDK's clients always send are not logged.
    assert!(!line.contains("no_srq"), "{line}");
}

#[test]
fn the_discovery_service_has_a_short_name() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let socket = Path::new(&socket);
    let _served = Served::start(socket, &[]);
    call(socket, "nvmf_create_transport", json!({ "trtype": "TCP" })).unwrap();
    let address = |port: &str| json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": port });
    let listener = |port: &str| json!({ "nqn": "discovery", "listen_address": address(port) });
    call(socket, "nvmf_subsystem_add_listener", listener("0")).unwrap();
    let short =
        call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": "discovery" })).unwrap();
    let long = "nqn.2014-08.org.nvmexpress.discovery";
    let full = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": long })).unwrap();
    assert_eq!(short, full);
    let port = short[0]["address"]["trsvcid"].as_str().unwrap();
    let listed = run(&["discover", "-a", "127.0.0.1", "-s", port, "-o", "json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let shown = call(socket, "nvmf_get_subsystems", json!({ "nqn": "discovery" })).unwrap();
    assert_eq!(shown[0]["nqn"], long);
    // A saved configuration has the name in full.
    let saved = call(socket, "framework_get_config", json!({ "name": "nvmf" })).unwrap();
    assert!(saved.to_string().contains(long) && !saved.to_string().contains("\"discovery\""));
    let referral = json!({ "address": address("8009"), "subnqn": "discovery" });
    call(socket, "nvmf_discovery_add_referral", referral.clone()).unwrap();
    let referrals = call(socket, "nvmf_discovery_get_referrals", Value::Null).unwrap();
    assert_eq!(referrals[0]["subnqn"], long);
    call(socket, "nvmf_discovery_remove_referral", referral).unwrap();
    call(socket, "nvmf_subsystem_remove_listener", listener(port)).unwrap();
    // The same by the verbs of this program.
    for verb in ["add", "rm"] {
        let at = format!("127.0.0.1:{port}");
        let output = run(&["port", verb, "discovery", &at, "-s", socket.to_str().unwrap()]);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
    }
    let left = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": "discovery" })).unwrap();
    assert_eq!(left, json!([]));
}

#[test]
fn a_transport_is_what_its_parameters_say() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let socket = Path::new(&socket);
    let _served = Served::start(socket, &[]);
    for (wrong, text) in [
        (json!({ "max_aq_depth": 31 }), "max_aq_depth must be 32 to 4096"),
        (json!({ "max_aq_depth": 4097 }), "max_aq_depth must be 32 to 4096"),
        (json!({ "kas": 0 }), "kas must be at least 1"),
        (json!({ "min_kato": 0 }), "min_kato must be at least 1"),
        (json!({ "sock_priority": 17 }), "sock_priority must be 0 to 16"),
    ] {
        let mut params = json!({ "trtype": "TCP" });
        params.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        let error = call(socket, "nvmf_create_transport", params).unwrap_err();
        assert_eq!(error["code"], -32602);
        assert!(error["data"].as_str().unwrap().contains(text), "{error}");
    }
    script(
        socket,
        "nvmf_create_transport -t TCP -a 512 --kas 20 --min-kato 3000 --ack-timeout 2000 -y 3
         bdev_malloc_create -b Malloc0 16 512
         nvmf_create_subsystem nqn.2026-01.com.example:store1 -a
         nvmf_subsystem_add_ns nqn.2026-01.com.example:store1 Malloc0
         nvmf_subsystem_add_listener nqn.2026-01.com.example:store1 -t tcp -a 127.0.0.1 -s 0",
    );
    let shown = transport(socket);
    for (name, value) in
        [("max_aq_depth", 512), ("kas", 20), ("min_kato", 3000), ("ack_timeout", 2000)]
    {
        assert_eq!(shown[name], value);
    }
    let nqn = "nqn.2026-01.com.example:store1";
    let listeners = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": nqn })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    // The Discovery log gives the depth of an admin queue.
    let listed = run(&["discover", "-a", "127.0.0.1", "-s", port, "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["records"][0]["asqsz"], 512, "{listed}");
    // SPDK saves all of these parameters, and accepts them again.
    let saved = call(socket, "framework_get_config", json!({ "name": "nvmf" })).unwrap();
    let saved = &saved.as_array().unwrap()[0]["params"];
    assert_eq!((&saved["kas"], &saved["min_kato"]), (&json!(20), &json!(3000)), "{saved}");
}
