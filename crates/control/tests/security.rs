//! Levels of security in a daemon: keys for TLS of several subsystems, who may still come in the clear, and what is kept.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use raceline_auth::{Algorithms, DhchapSecret, Hash, IdentityVersion, TlsKey};
use raceline_control::keyring::Places;
use raceline_control::manager::ManagerConfig;
use raceline_host::blocking::Host;
use raceline_host::{Credentials, HostConfig};
use raceline_proto::nvme::{HostId, Nqn};
use raceline_tls::{ClientPsk, TlsConnector, concatenate};
use serde_json::{Value, json};
use support::{Kept, eventually, ok};
use tempfile::TempDir;

const A: &str = "nqn.2016-06.io.spdk:a";
const B: &str = "nqn.2016-06.io.spdk:b";
const HOST: &str = "nqn.2014-08.org.example:host";

/// A state directory with keys in it.
struct Field {
    dir: TempDir,
}

impl Field {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn start(&self) -> Kept {
        let state = self.dir.path().join("state");
        let key_places = Places { credentials: None, ..Places::of(Some(&state)) };
        Kept::start_with(&state, ManagerConfig { key_places, ..ManagerConfig::default() })
    }

    /// Adds a key of this text to the keyring.
    fn add_key(&self, daemon: &Kept, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        ok(daemon.call("keyring_file_add_key", json!({ "name": name, "path": path })));
    }

    fn psk(&self, daemon: &Kept, name: &str) -> TlsKey {
        let key = TlsKey::generate(Hash::Sha256).unwrap();
        self.add_key(daemon, name, &key.to_text());
        key
    }

    fn secret(&self, daemon: &Kept, name: &str) -> DhchapSecret {
        let secret = DhchapSecret::generate(Some(Hash::Sha256)).unwrap();
        self.add_key(daemon, name, &secret.to_text());
        secret
    }
}

fn with(nqn: &str, more: Value) -> Value {
    let mut params = json!({ "nqn": nqn });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

/// Makes a subsystem without a host.
fn subsystem(daemon: &Kept, nqn: &str, more: Value) {
    ok(daemon.call("nvmf_create_subsystem", with(nqn, more)));
}

/// Adds a listener of a level, and gives its address.
fn listen(daemon: &Kept, nqn: &str, more: Value) -> SocketAddr {
    let at = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    let params = with(nqn, with_address(more, at));
    ok(daemon.call("nvmf_subsystem_add_listener", params));
    let listeners = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": nqn })));
    let last = listeners.as_array().unwrap().last().unwrap().clone();
    let port = last["address"]["trsvcid"].as_str().unwrap().parse().unwrap();
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn with_address(mut more: Value, at: Value) -> Value {
    more["listen_address"] = at;
    more
}

fn add_host(daemon: &Kept, nqn: &str, more: Value) {
    let mut params = with(nqn, more);
    params["host"] = HOST.into();
    ok(daemon.call("nvmf_subsystem_add_host", params));
}

fn remove_host(daemon: &Kept, nqn: &str) {
    ok(daemon.call("nvmf_subsystem_remove_host", json!({ "nqn": nqn, "host": HOST })));
}

fn config(address: SocketAddr, nqn: &str) -> HostConfig {
    let (subnqn, hostnqn) = (Nqn::new(nqn).unwrap(), Nqn::new(HOST).unwrap());
    HostConfig { io_queues: 0, ..HostConfig::new(address, subnqn, hostnqn, HostId([7; 16])) }
}

fn over_tls(mut config: HostConfig, key: &TlsKey, version: IdentityVersion) -> HostConfig {
    let psk = ClientPsk::new(key, version, &config.hostnqn, &config.subnqn).unwrap();
    config.streams = Some(Arc::new(TlsConnector::new(psk)));
    config
}

fn proving(mut config: HostConfig, secret: &DhchapSecret, controller: &DhchapSecret) -> HostConfig {
    config.credentials = Credentials {
        secret: secret.clone(),
        controller_secret: Some(controller.clone()),
        algorithms: Algorithms::default(),
    }
    .into();
    config
}

fn admits(config: HostConfig) -> bool {
    Host::connect(config).map(Host::disconnect).is_ok()
}

#[test]
fn discovery_over_tls_takes_every_key_of_a_host_as_long_as_a_subsystem_has_it() {
    let field = Field::new();
    let daemon = field.start();
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let [one, two] = ["one", "two"].map(|name| field.psk(&daemon, name));
    subsystem(&daemon, A, json!({}));
    subsystem(&daemon, B, json!({}));
    let address = listen(&daemon, A, json!({ "secure_channel": true }));
    add_host(&daemon, A, json!({ "psk": "one" }));
    add_host(&daemon, B, json!({ "psk": "two" }));
    let discovery = Nqn::discovery();
    let takes = |key: &TlsKey| {
        let [zero, one] = [IdentityVersion::Zero, IdentityVersion::One].map(|version| {
            let config = HostConfig { io_queues: 0, ..config(address, discovery.as_str()) };
            admits(over_tls(config, key, version))
        });
        assert_eq!(zero, one, "both versions of the identity say the same");
        one
    };
    assert!(takes(&one) && takes(&two), "a host with two keys");
    add_host_again(&daemon, B, "one");
    assert!(takes(&one) && !takes(&two), "the second key was given up");
    remove_host(&daemon, B);
    assert!(takes(&one), "the first subsystem has it still");
    add_host(&daemon, B, json!({ "psk": "two" }));
    ok(daemon.call("nvmf_delete_subsystem", json!({ "nqn": B })));
    assert!(takes(&one) && !takes(&two));
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "one" })));
    assert!(!takes(&one));
    daemon.kill();
}

fn add_host_again(daemon: &Kept, nqn: &str, psk: &str) {
    remove_host(daemon, nqn);
    add_host(daemon, nqn, json!({ "psk": psk }));
}

#[test]
fn a_host_with_a_psk_comes_by_a_plain_listener_only_where_its_subsystem_leaves_it_to_it() {
    let field = Field::new();
    let daemon = field.start();
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let key = field.psk(&daemon, "psk");
    subsystem(&daemon, A, json!({}));
    let plain = listen(&daemon, A, json!({}));
    let tls = listen(&daemon, A, json!({ "secure_channel": true }));
    add_host(&daemon, A, json!({ "psk": "psk" }));
    let in_the_clear = || admits(config(plain, A));
    let over = |address| admits(over_tls(config(address, A), &key, IdentityVersion::One));
    assert!(over(tls) && !in_the_clear());
    let set = |params: Value| {
        ok(daemon.call("nvmf_subsystem_set_security", with(A, params)));
    };
    set(json!({ "psk_optional": true }));
    assert!(over(tls) && in_the_clear());
    // A controller whose connection is in the clear ends when TLS is demanded.
    let host = Host::connect(config(plain, A)).unwrap();
    set(json!({ "psk_optional": false }));
    assert!(!in_the_clear());
    let controllers = || {
        let listed = ok(daemon.call("nvmf_subsystem_get_controllers", json!({ "nqn": A })));
        listed.as_array().unwrap().len()
    };
    eventually("its controller ends", || controllers() == 0);
    drop(host);
    set(json!({ "psk_optional": true, "security": "tls" }));
    assert!(over(tls) && !in_the_clear(), "the subsystem demands it of every host");
    let before = daemon.picture();
    let shown = ok(daemon.call("nvmf_get_subsystems", json!({ "nqn": A })))[0].clone();
    assert_eq!((&shown["security"], &shown["psk_optional"]), (&json!("tls"), &json!(true)));
    daemon.kill();
    let daemon = field.start();
    assert_eq!(daemon.picture(), before);
    assert!(over(tls) && !in_the_clear());
    for (params, culprit) in [
        (json!({}), "name security, psk_optional or both"),
        (json!({ "security": "TLS" }), "use plain, authenticated, tls or both"),
    ] {
        let error = daemon.call("nvmf_subsystem_set_security", with(A, params)).unwrap_err();
        assert!(error.contains(culprit), "{error}");
    }
    daemon.kill();
}

#[test]
fn levels_of_listeners_and_of_hosts_are_kept_and_hold() {
    let field = Field::new();
    let daemon = field.start();
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let key = field.psk(&daemon, "psk");
    let [secret, controller] = ["key", "ckey"].map(|name| field.secret(&daemon, name));
    subsystem(&daemon, A, json!({}));
    subsystem(&daemon, B, json!({ "security": "authenticated" }));
    let [authenticated, both, concat] = ["authenticated", "both", "concat"]
        .map(|level| listen(&daemon, A, json!({ "security": level })));
    let open = listen(&daemon, B, json!({}));
    add_host(&daemon, A, json!({ "psk": "psk", "dhchap_key": "key", "dhchap_ctrlr_key": "ckey" }));
    add_host(&daemon, B, json!({}));
    let tls = |address| over_tls(config(address, A), &key, IdentityVersion::One);
    let prove = |config| proving(config, &secret, &controller);
    let judge = || {
        assert!(!admits(prove(config(authenticated, A))), "a host with a psk comes over TLS");
        assert!(admits(prove(tls(both))) && !admits(tls(both)));
        let by_key = HostConfig { concatenator: Some(concatenate), ..prove(config(concat, A)) };
        assert!(admits(by_key), "its key is made by the authentication");
        assert!(!admits(prove(config(concat, A))));
        assert!(admits(prove(tls(concat))));
        assert!(!admits(config(open, B)), "the host has no key, and has to prove itself");
    };
    judge();
    let listeners = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": A })));
    let levels: Vec<&Value> =
        listeners.as_array().unwrap().iter().map(|listener| &listener["security"]).collect();
    assert_eq!(levels, ["authenticated", "both", "concat"]);
    let before = daemon.picture();
    daemon.kill();
    let daemon = field.start();
    assert_eq!(daemon.picture(), before);
    judge();
    // Who loses its secret loses the way to make keys.
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "key" })));
    let by_key = HostConfig { concatenator: Some(concatenate), ..prove(config(concat, A)) };
    assert!(!admits(by_key));
    let at =
        json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": concat.port().to_string() });
    for (more, culprit) in [
        (json!({ "security": "plain" }), "another level of security"),
        (json!({ "security": "plain", "secure_channel": true }), "is without"),
        (json!({ "security": "half" }), "concat"),
    ] {
        let params = with(B, with_address(more, at.clone()));
        let error = daemon.call("nvmf_subsystem_add_listener", params).unwrap_err();
        assert!(error.contains(culprit), "{error}");
    }
    // A host can be told to need more than its subsystem demands.
    remove_host(&daemon, B);
    add_host(&daemon, B, json!({ "security": "tls" }));
    let shown = ok(daemon.call("nvmf_get_subsystems", json!({ "nqn": B })))[0].clone();
    assert_eq!(
        (&shown["security"], &shown["hosts"][0]["security"]),
        (&json!("authenticated"), &json!("tls"))
    );
    daemon.kill();
}

#[test]
fn a_controller_whose_psk_is_removed_stays_connected_and_is_not_connected_anew() {
    let field = Field::new();
    let daemon = field.start();
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let device = json!({ "name": "M", "num_blocks": 2048, "block_size": 512 });
    ok(daemon.call("bdev_malloc_create", device));
    subsystem(&daemon, A, json!({}));
    let uuid = "7f4c1d5e-33b6-4a8f-9a54-6f1f5f8d2f01";
    let namespace = json!({ "nqn": A, "namespace": { "bdev_name": "M", "uuid": uuid } });
    ok(daemon.call("nvmf_subsystem_add_ns", namespace));
    let tls = listen(&daemon, A, json!({ "secure_channel": true }));
    let key = field.psk(&daemon, "psk");
    // The target has the key under another name, and keeps it.
    field.add_key(&daemon, "kept", &key.to_text());
    add_host(&daemon, A, json!({ "psk": "kept" }));
    let attach = json!({
        "name": "R", "trtype": "tcp", "traddr": "127.0.0.1", "subnqn": A, "hostnqn": HOST,
        "trsvcid": tls.port().to_string(), "psk": "psk", "ctrlr_loss_timeout_sec": 60,
        "reconnect_delay_sec": 1,
    });
    assert_eq!(ok(daemon.call("bdev_nvme_attach_controller", attach)), json!(["Rn1"]));
    let state = || {
        let listed = ok(daemon.call("bdev_nvme_get_controllers", json!({ "name": "R" })));
        listed[0]["ctrlrs"][0]["state"].as_str().unwrap().to_owned()
    };
    let reset = || ok(daemon.call("bdev_nvme_reset_controller", json!({ "name": "R" })));
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "psk" })));
    assert_eq!(state(), "enabled");
    reset();
    eventually("it is lost", || state() != "enabled");
    std::thread::sleep(Duration::from_secs(2));
    assert_ne!(state(), "enabled", "it has tried again, and has no key");
    daemon.kill();
}
