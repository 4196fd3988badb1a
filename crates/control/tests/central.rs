//! A centralized discovery controller: daemons that register with one, and one that follows it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use raceline_auth::{DhchapSecret, Hash, TlsKey};
use serde_json::{Value, json};
use support::discovery::{DISCOVERY, address, export, free_port, ip, nqn, serve_discovery, wait};
use support::{Kept, ok};

/// A daemon whose discovery service, on this port, is a centralized one.
fn central(dir: &Path, port: u16) -> Kept {
    let daemon = serve_discovery(dir, port);
    ok(daemon.call("nvmf_discovery_set_central", json!({ "enable": true })));
    daemon
}

fn registrations(daemon: &Kept) -> Value {
    ok(daemon.call("nvmf_discovery_get_registrations", json!({})))
}

/// The subsystems that others have registered.
fn listed(central: &Kept) -> Vec<String> {
    let shown = registrations(central);
    let entities = shown["registered"].as_array().unwrap().iter();
    let entries = entities.flat_map(|entity| entity["entries"].as_array().unwrap());
    entries.map(|entry| entry["subnqn"].as_str().unwrap().to_owned()).collect()
}

fn devices(daemon: &Kept) -> usize {
    ok(daemon.call("bdev_get_bdevs", Value::Null)).as_array().unwrap().len()
}

#[test]
fn what_a_daemon_offers_is_registered_followed_and_taken_back() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let port = free_port();
    let place = json!({ "address": address(port) });
    let shelf = Kept::start(dirs[1].path());
    ok(shelf.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    export(&shelf, "a", true);
    export(&shelf, "secret", false);

    // The other end is away, and is waited for.
    ok(shelf.call("nvmf_discovery_register", place.clone()));
    let twice = shelf.call("nvmf_discovery_register", place.clone()).unwrap_err();
    assert!(twice.contains(&ip().to_string()), "{twice}");
    wait("it does not say why", || {
        registrations(&shelf)["registers_with"][0]["problem"].is_string()
    });
    let hub = central(dirs[0].path(), port);
    wait("a is not registered", || listed(&hub) == [nqn("a")]);
    let own = &registrations(&shelf)["registers_with"][0];
    wait("it says that it is not registered", || {
        registrations(&shelf)["registers_with"][0]["entries"] == 1
    });
    let entity = &registrations(&hub)["registered"][0];
    assert_eq!(entity["nqn"], own["hostnqn"]);
    assert_eq!(
        (&entity["kind"], &entity["name"]),
        (&json!("direct discovery controller"), &json!("Raceline"))
    );

    // Who follows the centralized service has the device, and a new one by its notice.
    let front = Kept::start(dirs[2].path());
    let mut follow = address(port);
    follow["name"] = "D".into();
    ok(front.call("bdev_nvme_start_discovery", follow));
    wait("a does not come", || devices(&front) == 1);
    export(&shelf, "b", true);
    wait("b does not come", || devices(&front) == 2);
    ok(shelf.call("nvmf_delete_subsystem", json!({ "nqn": nqn("a") })));
    wait("a is still registered", || listed(&hub) == [nqn("b")]);

    // The service is killed, and forgets; it is central still, and everything is registered anew.
    hub.kill();
    let hub = Kept::start(dirs[0].path());
    assert_eq!(registrations(&hub)["central"], true);
    wait("b is not registered anew", || listed(&hub) == [nqn("b")]);

    // So is a daemon that registers.
    shelf.kill();
    let shelf = Kept::start(dirs[1].path());
    wait("b is not registered by the next daemon", || {
        registrations(&shelf)["registers_with"][0]["entries"] == 1
    });
    ok(shelf.call("nvmf_discovery_unregister", place.clone()));
    wait("it is not taken back", || listed(&hub).is_empty());
    let none = shelf.call("nvmf_discovery_unregister", place).unwrap_err();
    assert!(none.contains(&ip().to_string()), "{none}");
    assert_eq!(registrations(&shelf)["registers_with"], json!([]));
    ok(hub.call("nvmf_discovery_set_central", json!({ "enable": false })));
    assert_eq!(registrations(&hub)["central"], false);
    for daemon in [front, shelf, hub] {
        daemon.kill();
    }
}

/// A file with a key, that only its owner reads.
fn key_file(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
    std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A centralized discovery service that demands TLS and authentication, and one host that has the keys.
fn strict_central(dir: &Path, port: u16, member: &str, add_key: impl Fn(&Kept, &str)) -> Kept {
    let hub = Kept::start(dir);
    ok(hub.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    export(&hub, "members", false);
    for name in ["chap", "ctrlr", "psk"] {
        add_key(&hub, name);
    }
    let host = json!({
        "nqn": nqn("members"), "host": member, "psk": "psk", "dhchap_key": "chap", "dhchap_ctrlr_key": "ctrlr",
    });
    ok(hub.call("nvmf_subsystem_add_host", host));
    let listener = json!({ "nqn": DISCOVERY, "listen_address": address(port), "security": "both" });
    ok(hub.call("nvmf_subsystem_add_listener", listener));
    ok(hub.call("nvmf_discovery_set_central", json!({ "enable": true })));
    hub
}

#[test]
fn a_daemon_registers_over_tls_and_proves_itself() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let keys = dirs[2].path();
    for (name, secret) in [("chap", true), ("ctrlr", true), ("psk", false), ("other", false)] {
        let text = if secret {
            DhchapSecret::generate(Some(Hash::Sha256)).unwrap().to_text()
        } else {
            TlsKey::generate(Hash::Sha256).unwrap().to_text()
        };
        key_file(keys, name, &text);
    }
    let add_key = |daemon: &Kept, name: &str| {
        let params = json!({ "name": name, "path": keys.join(name) });
        ok(daemon.call("keyring_file_add_key", params));
    };
    let (port, shelf_nqn) = (free_port(), nqn("shelf"));
    let hub = strict_central(dirs[0].path(), port, &shelf_nqn, add_key);
    let shelf = Kept::start(dirs[1].path());
    ok(shelf.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    export(&shelf, "a", true);
    for name in ["chap", "ctrlr", "psk", "other"] {
        add_key(&shelf, name);
    }
    let place = json!({ "address": address(port) });
    let register = |keys: Value| {
        let mut params = place.clone();
        params["hostnqn"] = shelf_nqn.as_str().into();
        params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        shelf.call("nvmf_discovery_register", params)
    };
    let problem = || registrations(&shelf)["registers_with"][0]["problem"].take();
    for lacking in [
        json!({}),
        json!({ "psk": "psk" }),
        json!({ "dhchap_key": "chap" }),
        json!({ "psk": "other", "dhchap_key": "chap" }),
        json!({ "psk": "psk", "dhchap_key": "ctrlr" }),
    ] {
        ok(register(lacking.clone()));
        wait(&format!("with {lacking}: no problem"), || problem().is_string());
        assert!(listed(&hub).is_empty(), "registered with {lacking}");
        ok(shelf.call("nvmf_discovery_unregister", place.clone()));
    }
    for wrong in [
        json!({ "psk": "none" }),
        json!({ "psk": "chap" }),
        json!({ "dhchap_key": "psk" }),
        json!({ "dhchap_ctrlr_key": "ctrlr" }),
    ] {
        register(wrong).unwrap_err();
    }
    let all = json!({ "psk": "psk", "dhchap_key": "chap", "dhchap_ctrlr_key": "ctrlr" });
    ok(register(all));
    wait("a is not registered with all keys", || listed(&hub) == [nqn("a")]);

    // The names of the keys are kept, and the keys are taken anew.
    let before = shelf.picture();
    shelf.kill();
    let shelf = Kept::start(dirs[1].path());
    assert_eq!(shelf.picture()["config"], before["config"]);
    wait("a is not registered anew", || {
        registrations(&shelf)["registers_with"][0]["entries"] == 1 && listed(&hub) == [nqn("a")]
    });

    // A key whose file is gone does not end a start.
    shelf.kill();
    std::fs::remove_file(keys.join("psk")).unwrap();
    let shelf = Kept::start(dirs[1].path());
    wait("it does not name the key that is gone", || {
        let problem = registrations(&shelf)["registers_with"][0]["problem"].take();
        problem.as_str().is_some_and(|problem| problem.contains("psk"))
    });
    for daemon in [shelf, hub] {
        daemon.kill();
    }
}

#[test]
fn an_operator_removes_what_is_gone_and_an_ordinary_service_takes_nothing() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let port = free_port();
    let hub = central(dirs[0].path(), port);
    let shelf = Kept::start(dirs[1].path());
    ok(shelf.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    export(&shelf, "a", true);
    let hostnqn = nqn("shelf");
    let place = json!({ "address": address(port), "hostnqn": hostnqn });
    ok(shelf.call("nvmf_discovery_register", place));

    wait("a is not registered", || listed(&hub) == [nqn("a")]);
    let remove = |nqn: &str| hub.call("nvmf_discovery_remove_registration", json!({ "nqn": nqn }));
    let unknown = remove(&nqn("other")).unwrap_err();
    assert!(unknown.contains("(-2)"), "{unknown}");
    ok(remove(&hostnqn));
    assert!(listed(&hub).is_empty());
    shelf.kill();

    ok(hub.call("nvmf_discovery_set_central", json!({ "enable": false })));
    let shelf = Kept::start(dirs[1].path());
    wait("an ordinary service takes a registration", || {
        let problem = registrations(&shelf)["registers_with"][0]["problem"].take();
        problem.as_str().is_some_and(|problem| problem.contains("centralized"))
    });
    for wrong in [
        json!({ "address": { "trtype": "rdma", "traddr": "127.0.0.1", "trsvcid": "8009" } }),
        json!({ "address": address(port), "hostnqn": "" }),
        json!({ "address": address(port), "tgt_name": "none" }),
        json!({}),
    ] {
        shelf.call("nvmf_discovery_register", wrong).unwrap_err();
    }
    for daemon in [shelf, hub] {
        daemon.kill();
    }
}
