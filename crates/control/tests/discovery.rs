//! A followed discovery service: its subsystems come, go, and keep their names.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::{Value, json};
use support::discovery::{DISCOVERY, address, export, free_port, ip, nqn, serve_discovery, wait};
use support::{Kept, ok};

fn withdraw(daemon: &Kept, name: &str) {
    ok(daemon.call("nvmf_delete_subsystem", json!({ "nqn": nqn(name) })));
    ok(daemon.call("bdev_malloc_delete", json!({ "name": name })));
}

fn start(name: &str, port: u16, more: &Value) -> Value {
    let mut params = address(port);
    params["name"] = name.into();
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn devices(daemon: &Kept) -> Vec<String> {
    let list = ok(daemon.call("bdev_get_bdevs", Value::Null));
    let mut names: Vec<String> =
        list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn info(daemon: &Kept) -> Value {
    ok(daemon.call("bdev_nvme_get_discovery_info", Value::Null))
}

#[test]
fn what_is_listed_comes_and_goes_and_keeps_its_name() {
    let (dirs, port) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], free_port());
    let back = serve_discovery(dirs[0].path(), port);
    export(&back, "a", true);
    export(&back, "b", true);
    let front = Kept::start(dirs[1].path());
    let wish = start("D", port, &json!({ "wait_for_attach": true }));
    ok(front.call("bdev_nvme_start_discovery", wish));
    assert_eq!(devices(&front), ["D0n1", "D1n1"]);
    let shown = info(&front)[0].take();
    assert_eq!(shown["trid"]["subnqn"], DISCOVERY);
    assert_eq!(shown["referrals"][0]["trid"]["trsvcid"], port.to_string(), "{shown}");
    let names = [&shown["subsystems"][0]["name"], &shown["subsystems"][1]["name"]];
    assert_eq!(names, ["D0", "D1"]);
    assert_eq!(shown["problem"], Value::Null);

    // One more, reported by an event; then one less, under a namespace that is exported again.
    export(&back, "c", true);
    wait("c does not come", || devices(&front).len() == 3);
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("nvmf_create_subsystem", json!({ "nqn": nqn("front") })),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": nqn("front"), "namespace": { "bdev_name": "D2n1" } }),
        ),
    ] {
        ok(front.call(method, params));
    }
    withdraw(&back, "a");
    withdraw(&back, "c");
    wait("a and c do not go", || devices(&front) == ["D1n1"]);
    let namespace = || {
        let listed = ok(front.call("nvmf_get_subsystems", json!({ "nqn": nqn("front") })));
        listed[0]["namespaces"][0].clone()
    };
    assert!(namespace()["missing"].is_string(), "{}", namespace());
    // At first only the namespace is gone: the log without its subsystem comes later.
    wait("the service is not named as the reason", || {
        let error = front.call("bdev_get_bdevs", json!({ "name": "D2n1" })).unwrap_err();
        error.contains(&format!("service D lists no {}", nqn("c")))
    });
    let before = front.picture()["config"].clone();
    front.kill();

    // A restart does not give a device's name to another subsystem.
    let front = Kept::start(dirs[1].path());
    assert_eq!(front.picture()["config"], before);
    export(&back, "c", true);
    wait("c does not come back", || devices(&front) == ["D1n1", "D2n1"]);
    let listed = || ok(front.call("nvmf_get_subsystems", json!({ "nqn": nqn("front") })));
    wait("it is not shown", || listed()[0]["namespaces"][0]["missing"].is_null());
    assert_eq!(front.picture()["config"], before);

    // A controller that a client detaches stays away until it is listed anew.
    ok(front.call("bdev_nvme_detach_controller", json!({ "name": "D1" })));
    export(&back, "d", true);
    wait("d does not come", || devices(&front) == ["D2n1", "D3n1"]);
    assert_eq!(info(&front)[0]["subsystems"][0]["problem"], "it was detached");
    withdraw(&back, "b");
    wait("b is still listed", || info(&front)[0]["subsystems"].as_array().unwrap().len() == 2);
    export(&back, "b", true);
    wait("b does not come", || devices(&front) == ["D1n1", "D2n1", "D3n1"]);

    // The end removes everything, including what stands on it.
    ok(front.call("bdev_nvme_stop_discovery", json!({ "name": "D" })));
    assert!(devices(&front).is_empty());
    assert_eq!(info(&front), json!([]));
    assert_eq!(listed()[0]["namespaces"], json!([]));
    front.kill();
    let front = Kept::start(dirs[1].path());
    assert_eq!(info(&front), json!([]));
    front.kill();
    back.kill();
}

#[test]
fn a_service_that_is_away_is_waited_for() {
    let (dirs, port) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], free_port());
    let front = Kept::start(dirs[1].path());
    let call = |params: &Value| front.call("bdev_nvme_start_discovery", params.clone());
    // With a time limit it fails, and leaves nothing behind.
    let error = call(&start("D", port, &json!({ "attach_timeout_ms": 100 }))).unwrap_err();
    assert!(error.contains("(-110)") && error.contains(&ip().to_string()), "{error}");
    assert_eq!(info(&front), json!([]));
    ok(call(&start("D", port, &json!({}))));
    wait("it does not say why", || {
        info(&front)[0]["problem"].as_str().is_some_and(|text| text.contains(&ip().to_string()))
    });
    for wrong in [
        start("D", free_port(), &json!({})),
        start("E", port, &json!({})),
        start("", free_port(), &json!({})),
        start("F", free_port(), &json!({ "trtype": "fc" })),
        start("F", free_port(), &json!({ "traddr": "somewhere" })),
        start("F", free_port(), &json!({ "fast_io_fail_timeout_sec": 601 })),
        start("F", free_port(), &json!({ "hostnqn": "" })),
        start("F", free_port(), &json!({ "subsystems": ["y".repeat(224)] })),
        start("F", free_port(), &json!({ "reconnect_delay_sec": 1 })),
    ] {
        call(&wrong).unwrap_err();
    }
    assert!(call(&start("D", port, &json!({}))).unwrap_err().contains("(-17)"));
    let none = front.call("bdev_nvme_stop_discovery", json!({ "name": "E" })).unwrap_err();
    assert!(none.contains("(-2)"), "{none}");
    // The service comes, dies, and comes again with another subsystem.
    let back = serve_discovery(dirs[0].path(), port);
    export(&back, "a", true);
    wait("a does not come", || devices(&front) == ["D0n1"]);
    back.kill();
    wait("its end is not seen", || info(&front)[0]["problem"].is_string());
    assert_eq!(devices(&front), ["D0n1"]);
    let back = Kept::start(dirs[0].path());
    export(&back, "b", true);
    wait("b does not come", || devices(&front) == ["D0n1", "D1n1"]);
    ok(front.call("bdev_nvme_stop_discovery", json!({ "name": "D" })));
    front.kill();
    back.kill();
}
