//! Keys: hosts that have to prove themselves, controllers that do, and keys that change, vanish and come back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raceline_auth::{Algorithms, DhGroup, DhchapSecret, Hash, IdentityVersion, TlsKey};
use raceline_control::keyring::{KeyFolder, Places};
use raceline_control::manager::ManagerConfig;
use raceline_host::blocking::Host;
use raceline_host::{Credentials, HostConfig};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_tls::{ClientPsk, TlsConnector};
use serde_json::{Value, json};
use support::{Daemon, Kept, eventually, ok};
use tempfile::TempDir;

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const HOST: &str = "nqn.2014-08.org.example:host";

/// A state directory, and files of keys beside it.
struct Field {
    dir: TempDir,
}

impl Field {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn start(&self) -> Kept {
        let key_places = Places { credentials: None, ..Places::of(Some(&self.state())) };
        Kept::start_with(&self.state(), ManagerConfig { key_places, ..ManagerConfig::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        set_mode(&path, 0o600);
        path
    }

    /// A file with a new secret.
    fn secret(&self, name: &str) -> DhchapSecret {
        let secret = DhchapSecret::generate(Some(Hash::Sha256)).unwrap();
        self.write(name, &secret.to_text());
        secret
    }

    /// The same, in the keyring as well.
    fn key(&self, daemon: &Kept, name: &str) -> DhchapSecret {
        let secret = self.secret(name);
        self.add_key(daemon, name);
        secret
    }

    fn add_key(&self, daemon: &Kept, name: &str) {
        let params = json!({ "name": name, "path": self.path(name) });
        ok(daemon.call("keyring_file_add_key", params));
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes a subsystem with a namespace and a listener, and no host.
fn export(daemon: &Kept) -> SocketAddr {
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let device = json!({ "name": "M", "num_blocks": 2048, "block_size": 512 });
    ok(daemon.call("bdev_malloc_create", device));
    ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": NQN })));
    // Not that of the device: the daemon may attach it to itself.
    let uuid = "7f4c1d5e-33b6-4a8f-9a54-6f1f5f8d2f01";
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "M", "uuid": uuid } });
    ok(daemon.call("nvmf_subsystem_add_ns", namespace));
    let at = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    ok(daemon.call("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at })));
    address(daemon)
}

fn address(daemon: &Kept) -> SocketAddr {
    let listeners = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })));
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    format!("127.0.0.1:{port}").parse().unwrap()
}

/// The parameters of a call for the host.
fn host(more: Value) -> Value {
    let mut params = json!({ "nqn": NQN, "host": HOST });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn add_host(daemon: &Kept, keys: Value) {
    ok(daemon.call("nvmf_subsystem_add_host", host(keys)));
}

fn set_keys(daemon: &Kept, keys: Value) {
    ok(daemon.call("nvmf_subsystem_set_keys", host(keys)));
}

/// The host as `nvmf_get_subsystems` shows it.
fn shown(daemon: &Kept) -> Value {
    ok(daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN })))[0]["hosts"][0].clone()
}

fn keys(daemon: &Kept) -> Value {
    ok(daemon.call("keyring_get_keys", Value::Null))
}

fn config(address: SocketAddr) -> HostConfig {
    let (subnqn, hostnqn) = (Nqn::new(NQN).unwrap(), Nqn::new(HOST).unwrap());
    HostConfig::new(address, subnqn, hostnqn, HostId([7; 16]))
}

fn connect(
    address: SocketAddr,
    secret: Option<&DhchapSecret>,
    controller: Option<&DhchapSecret>,
) -> Result<Host, raceline_host::HostError> {
    let mut config = config(address);
    if let Some(secret) = secret {
        config.credentials = Credentials {
            secret: secret.clone(),
            controller_secret: controller.cloned(),
            algorithms: Algorithms::default(),
        }
        .into();
    }
    Host::connect(config)
}

/// Whether a host with this secret can connect.
fn admits(address: SocketAddr, secret: &DhchapSecret) -> bool {
    connect(address, Some(secret), None).map(Host::disconnect).is_ok()
}

#[test]
fn only_hosts_that_know_the_key_connect_and_names_are_all_that_is_shown() {
    let field = Field::new();
    let daemon = field.start();
    let address = export(&daemon);
    let [secret, other, controller] = ["key0", "other", "ckey0"].map(|it| field.key(&daemon, it));
    add_host(&daemon, json!({ "dhchap_key": "key0", "dhchap_ctrlr_key": ":ckey0" }));
    assert!(admits(address, &secret));
    assert!(!admits(address, &other));
    assert!(connect(address, None, None).is_err());
    connect(address, Some(&secret), Some(&controller)).unwrap().disconnect();
    assert!(connect(address, Some(&secret), Some(&other)).is_err());
    let expected = json!({ "nqn": HOST, "dhchap_key": "key0", "dhchap_ctrlr_key": "ckey0" });
    assert_eq!(shown(&daemon), expected);
    let key0 = json!({
        "name": "key0", "module": "keyring_file", "removed": false, "probed": false, "refcnt": 2,
        "path": field.path("key0"),
    });
    assert!(keys(&daemon).as_array().unwrap().contains(&key0), "{}", keys(&daemon));
    let before = daemon.picture();
    daemon.kill();
    let daemon = field.start();
    assert_eq!(daemon.picture(), before);
    assert!(admits(self::address(&daemon), &secret));
    assert!(!admits(self::address(&daemon), &other));
    let mut all = format!("{before}{}", keys(&daemon));
    for entry in std::fs::read_dir(field.state()).unwrap() {
        all.push_str(&String::from_utf8_lossy(&std::fs::read(entry.unwrap().path()).unwrap()));
    }
    for secret in [secret, other, controller] {
        assert!(!all.contains(&secret.to_text()[10..40]), "a secret was kept");
    }
    daemon.kill();
}

#[test]
fn keys_change_while_hosts_read_and_write() {
    let field = Field::new();
    let daemon = field.start();
    let address = export(&daemon);
    let [old, new] = ["old", "new"].map(|it| field.key(&daemon, it));
    let [old_controller, new_controller] = ["oldc", "newc"].map(|it| field.key(&daemon, it));
    add_host(&daemon, json!({ "dhchap_key": "old", "dhchap_ctrlr_key": "oldc" }));
    let stop = Arc::new(AtomicBool::new(false));
    let load = {
        let (stop, host) = (Arc::clone(&stop), connect(address, Some(&old), None).unwrap());
        std::thread::spawn(move || {
            let mut rounds = 0_u32;
            while !stop.load(Ordering::Relaxed) || rounds == 0 {
                let data = vec![u8::try_from(rounds % 251).unwrap(); 4096];
                host.write(NamespaceId(1), 8, &data, false).unwrap();
                let mut back = vec![0; 4096];
                host.read(NamespaceId(1), 8, &mut back).unwrap();
                assert_eq!(back, data);
                rounds += 1;
            }
            rounds
        })
    };
    set_keys(&daemon, json!({ "dhchap_key": "new", "dhchap_ctrlr_key": "newc" }));
    // Both hold, each with the controller's key that goes with it; also after a restart, and however often a client
    // says it.
    set_keys(&daemon, json!({ "dhchap_key": "new", "dhchap_ctrlr_key": "newc" }));
    let both = |address| {
        for (own, theirs, proven) in [
            (&old, &old_controller, true),
            (&new, &new_controller, true),
            (&old, &new_controller, false),
            (&new, &old_controller, false),
        ] {
            assert_eq!(connect(address, Some(own), Some(theirs)).is_ok(), proven);
        }
    };
    both(address);
    assert_eq!(shown(&daemon)["previous_dhchap_key"], "old");
    // No overlap: the old key is refused at once, and who is connected stays.
    set_keys(&daemon, json!({ "dhchap_key": "old", "overlap_sec": 0 }));
    assert!(admits(address, &old) && !admits(address, &new));
    set_keys(&daemon, json!({ "dhchap_key": "new", "overlap_sec": 3600 }));
    assert!(admits(address, &old) && admits(address, &new));
    // The same once more with one that ends by itself.
    set_keys(&daemon, json!({ "dhchap_key": "old", "overlap_sec": 0 }));
    set_keys(&daemon, json!({ "dhchap_key": "new", "overlap_sec": 2 }));
    eventually("the overlap is over", || !admits(address, &old));
    assert!(admits(address, &new));
    eventually("it is written down", || shown(&daemon).get("previous_dhchap_key").is_none());
    stop.store(true, Ordering::Relaxed);
    assert!(load.join().unwrap() > 1);
    // Without a key, the host need not prove itself.
    set_keys(&daemon, json!({}));
    connect(address, None, None).unwrap().disconnect();
    set_keys(&daemon, json!({ "dhchap_key": "new" }));
    assert!(connect(address, None, None).is_err());
    daemon.kill();
}

#[test]
fn an_overlap_survives_a_restart_and_ends_while_nothing_runs() {
    let field = Field::new();
    let daemon = field.start();
    export(&daemon);
    let [old, new] = ["old", "new"].map(|it| field.key(&daemon, it));
    add_host(&daemon, json!({ "dhchap_key": "old" }));
    set_keys(&daemon, json!({ "dhchap_key": "new" }));
    let before = daemon.picture();
    daemon.kill();
    let daemon = field.start();
    assert_eq!(daemon.picture(), before);
    assert!(admits(address(&daemon), &old) && admits(address(&daemon), &new));
    set_keys(&daemon, json!({ "dhchap_key": "old", "overlap_sec": 1 }));
    daemon.kill();
    std::thread::sleep(Duration::from_millis(1100));
    let daemon = field.start();
    assert!(admits(address(&daemon), &old) && !admits(address(&daemon), &new));
    eventually("it is written down", || shown(&daemon).get("previous_dhchap_key").is_none());
    daemon.kill();
}

#[test]
fn a_key_that_is_replaced_in_its_file_is_read_again_and_the_old_one_holds_as_well() {
    let field = Field::new();
    let daemon = field.start();
    let address = export(&daemon);
    let folder = KeyFolder::open(&field.state()).unwrap();
    let [one, two, three] = [(); 3].map(|()| DhchapSecret::generate(None).unwrap());
    folder.add("h", &one.to_text()).unwrap();
    // Found by its name in the state directory.
    add_host(&daemon, json!({ "dhchap_key": "h" }));
    assert_eq!(keys(&daemon)[0]["probed"], true);
    folder.replace("h", &two.to_text()).unwrap();
    assert!(admits(address, &one) && !admits(address, &two));
    set_keys(&daemon, json!({ "dhchap_key": "h" }));
    assert!(admits(address, &one) && admits(address, &two));
    // Where the old one is named, it holds also after a restart.
    folder.replace("h", &three.to_text()).unwrap();
    set_keys(&daemon, json!({ "dhchap_key": "h", "previous_dhchap_key": "h.old" }));
    daemon.kill();
    let daemon = field.start();
    let address = self::address(&daemon);
    assert!(!admits(address, &one) && admits(address, &two) && admits(address, &three));
    daemon.kill();
}

#[test]
fn a_key_that_cannot_be_read_after_a_restart_shuts_its_host_out_and_nobody_else() {
    let field = Field::new();
    let daemon = field.start();
    export(&daemon);
    let [secret, friend] = ["key0", "friend"].map(|it| field.key(&daemon, it));
    add_host(&daemon, json!({ "dhchap_key": "key0" }));
    let other = "nqn.2014-08.org.example:friend";
    let params = json!({ "nqn": NQN, "host": other, "dhchap_key": "friend" });
    ok(daemon.call("nvmf_subsystem_add_host", params));
    let before = daemon.picture();
    daemon.kill();
    let damage: [&dyn Fn(); 4] = [
        &|| set_mode(&field.path("key0"), 0o644),
        &|| drop(field.write("key0", &secret.to_text()[..30])),
        &|| drop(field.write("key0", "no key at all")),
        &|| std::fs::remove_file(field.path("key0")).unwrap(),
    ];
    for damage in damage {
        damage();
        let daemon = field.start();
        let address = address(&daemon);
        assert_eq!(daemon.picture(), before);
        assert!(!admits(address, &secret) && connect(address, None, None).is_err());
        let mut config = config(address);
        config.hostnqn = Nqn::new(other).unwrap();
        let (secret, algorithms) = (friend.clone(), Algorithms::default());
        config.credentials = Credentials { secret, controller_secret: None, algorithms }.into();
        Host::connect(config).unwrap().disconnect();
        let failed = daemon.call("nvmf_subsystem_set_keys", host(json!({ "dhchap_key": "key0" })));
        let failed = failed.unwrap_err();
        assert!(failed.contains("Invalid parameters") && failed.contains("key `key0`"), "{failed}");
        daemon.kill();
    }
    field.write("key0", &secret.to_text());
    let daemon = field.start();
    assert!(admits(address(&daemon), &secret));
    daemon.kill();
}

#[test]
fn a_removed_key_is_of_no_use_to_those_who_have_it() {
    let field = Field::new();
    let daemon = field.start();
    let address = export(&daemon);
    let [secret, next] = ["key0", "next"].map(|it| field.key(&daemon, it));
    add_host(&daemon, json!({ "dhchap_key": "key0" }));
    let connected = connect(address, Some(&secret), None).unwrap();
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "key0" })));
    let removed = json!({
        "name": "key0", "module": "keyring_file", "removed": true, "probed": false, "refcnt": 1,
    });
    assert!(keys(&daemon).as_array().unwrap().contains(&removed), "{}", keys(&daemon));
    let mut block = [0; 512];
    connected.read(NamespaceId(1), 0, &mut block).unwrap();
    assert!(!admits(address, &secret) && connect(address, None, None).is_err());
    let failed = daemon.call("keyring_file_remove_key", json!({ "name": "key0" })).unwrap_err();
    assert!(failed.contains("(-126)"), "{failed}");
    // Another key of that name is another key, until the host is given it.
    field.add_key(&daemon, "key0");
    assert!(!admits(address, &secret));
    set_keys(&daemon, json!({ "dhchap_key": "key0" }));
    assert!(admits(address, &secret));
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "key0" })));
    daemon.kill();
    let daemon = field.start();
    let address = self::address(&daemon);
    assert!(!admits(address, &secret) && connect(address, None, None).is_err());
    set_keys(&daemon, json!({ "dhchap_key": "next" }));
    assert!(admits(address, &next) && !admits(address, &secret));
    assert_eq!(keys(&daemon).as_array().unwrap().len(), 1 + 1, "{}", keys(&daemon));
    daemon.kill();
}

#[test]
fn files_that_cannot_hold_a_key_are_refused_with_the_reason() {
    let field = Field::new();
    let daemon = field.start();
    let secret = field.secret("good");
    let fifo = field.path("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    for mode in [0o640, 0o604] {
        let path = field.write(&format!("mode{mode:o}"), &secret.to_text());
        set_mode(&path, mode);
    }
    std::fs::create_dir(field.path("folder")).unwrap();
    field.write("huge", &"x".repeat(1 << 20));
    let add = |name: &str, path: Value| {
        daemon.call("keyring_file_add_key", json!({ "name": name, "path": path }))
    };
    for (path, code, why) in [
        (json!(field.path("mode640")), -1, "chmod 600"),
        (json!(field.path("mode604")), -1, "chmod 600"),
        (json!("good"), -1, "absolute"),
        (json!(field.path("none")), -2, "No such file"),
        (json!(field.path("folder")), -22, "is a folder"),
        (json!(fifo), -22, "a pipe"),
        (json!("/dev/zero"), -22, "a device"),
        (json!(field.path("huge")), -105, "more than 4096 bytes"),
    ] {
        let error = add("bad", path.clone()).unwrap_err();
        assert!(error.contains(&format!("({code})")) && error.contains(why), "{path}: {error}");
    }
    for name in ["", "ring:key", "a\nb"] {
        let error = add(name, json!(field.path("good"))).unwrap_err();
        assert!(error.contains("(-22)"), "{error}");
    }
    assert_eq!(keys(&daemon), json!([]));
    field.add_key(&daemon, "good");
    for name in ["good", ":good"] {
        assert!(add(name, json!(field.path("good"))).unwrap_err().contains("(-17)"));
    }
    daemon.kill();
}

#[test]
fn texts_that_are_no_key_are_refused_and_not_shown() {
    let field = Field::new();
    let daemon = field.start();
    let address = export(&daemon);
    let secret = field.key(&daemon, "good");
    let psk = TlsKey::generate(Hash::Sha256).unwrap();
    let text = secret.to_text();
    let damaged = text.replace(&text[12..14], if &text[12..14] == "AA" { "BB" } else { "AA" });
    for (name, text) in [
        ("crc", &*damaged),
        ("cut", &text[..40]),
        ("uncoloned", &text[..text.len() - 1]),
        ("empty", ""),
        ("foreign", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"),
        ("psk", &psk.to_text()),
    ] {
        field.write(name, text);
        field.add_key(&daemon, name);
        let attach = json!({
            "name": "N", "trtype": "tcp", "traddr": "127.0.0.1", "subnqn": NQN,
            "trsvcid": address.port().to_string(), "dhchap_key": name,
        });
        for (method, params) in [
            ("nvmf_subsystem_add_host", host(json!({ "dhchap_key": name }))),
            ("bdev_nvme_attach_controller", attach),
        ] {
            let error = daemon.call(method, params).unwrap_err();
            assert!(error.contains(&format!("key `{name}` in ")), "{error}");
            assert!(text.len() < 30 || !error.contains(&text[12..30]), "{error}");
        }
    }
    let refused = |keys: Value| daemon.call("nvmf_subsystem_add_host", host(keys)).unwrap_err();
    assert!(refused(json!({ "dhchap_key": "nobody" })).contains("there is no key `nobody`"));
    assert!(refused(json!({ "psk": "good" })).contains("NVMeTLSkey-1"));
    assert!(refused(json!({ "dhchap_ctrlr_key": "good" })).contains("host's key as well"));
    assert_eq!(shown(&daemon), Value::Null, "nothing was added");
    add_host(&daemon, json!({}));
    for (keys, why) in [
        (json!({ "dhchap_ctrlr_key": "good" }), "(-22)"),
        (json!({ "dhchap_key": "nobody" }), "(-32602)"),
        (json!({ "dhchap_key": "good", "overlap_sec": 604_801 }), "0 to 604800"),
    ] {
        let error = daemon.call("nvmf_subsystem_set_keys", host(keys)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let stranger = json!({ "nqn": NQN, "host": "nqn.2014-08.org.example:x", "dhchap_key": "good" });
    let error = daemon.call("nvmf_subsystem_set_keys", stranger).unwrap_err();
    assert!(error.contains("(-22)") && error.contains("is not on the list"), "{error}");
    daemon.kill();
}

/// Whether a host with this pre-shared key can connect over TLS; `None`: without TLS.
fn admits_over_tls(address: SocketAddr, key: Option<(&TlsKey, IdentityVersion)>) -> bool {
    let mut config = config(address);
    if let Some((key, version)) = key {
        let psk = ClientPsk::new(key, version, &config.hostnqn, &config.subnqn).unwrap();
        config.streams = Some(Arc::new(TlsConnector::new(psk)));
    }
    Host::connect(config).map(Host::disconnect).is_ok()
}

#[test]
fn a_controller_is_attached_over_tls_by_the_name_of_a_key() {
    let field = Field::new();
    let daemon = field.start();
    export(&daemon);
    let psk = TlsKey::generate(Hash::Sha256).unwrap();
    field.write("psk", &psk.to_text());
    field.add_key(&daemon, "psk");
    add_host(&daemon, json!({ "psk": "psk" }));
    let at = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    let secure = json!({ "nqn": NQN, "listen_address": at, "secure_channel": true });
    ok(daemon.call("nvmf_subsystem_add_listener", secure));
    let listed = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })));
    let attach = |psk: Value| {
        let mut params = json!({
            "name": "R", "trtype": "tcp", "traddr": "127.0.0.1", "subnqn": NQN, "hostnqn": HOST,
            "trsvcid": listed[1]["address"]["trsvcid"], "adrfam": "ipv4",
        });
        params.as_object_mut().unwrap().extend(psk.as_object().unwrap().clone());
        daemon.call("bdev_nvme_attach_controller", params)
    };
    assert!(attach(json!({})).unwrap_err().contains("--tls-psk"));
    assert_eq!(attach(json!({ "psk": "psk" })), Ok(json!(["Rn1"])));
    let before = daemon.picture();
    daemon.kill();
    let daemon = field.start();
    assert_eq!(daemon.picture()["config"], before["config"], "the name of the key is kept");
    daemon.kill();
}

#[test]
fn a_secure_listener_takes_hosts_with_their_pre_shared_key_and_no_others() {
    let field = Field::new();
    let daemon = field.start();
    let plain = export(&daemon);
    let [psk, other] = [Hash::Sha384, Hash::Sha256].map(|hash| TlsKey::generate(hash).unwrap());
    field.write("psk", &psk.to_text());
    field.add_key(&daemon, "psk");
    add_host(&daemon, json!({ "psk": "psk" }));
    let at = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    let secure = json!({ "nqn": NQN, "listen_address": at, "secure_channel": true });
    ok(daemon.call("nvmf_subsystem_add_listener", secure.clone()));
    let listeners =
        |daemon: &Kept| ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })));
    let listed = listeners(&daemon);
    assert_eq!(
        (&listed[0]["secure_channel"], &listed[1]["secure_channel"]),
        (&Value::Null, &json!(true))
    );
    let port = listed[1]["address"]["trsvcid"].as_str().unwrap().parse().unwrap();
    let address = SocketAddr::new(plain.ip(), port);
    let judge = || {
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            assert!(admits_over_tls(address, Some((&psk, version))));
            assert!(!admits_over_tls(address, Some((&other, version))));
            assert!(!admits_over_tls(plain, Some((&psk, version))));
        }
        assert!(!admits_over_tls(address, None));
        // A host that has a key does not come without it.
        assert!(!admits_over_tls(plain, None));
    };
    judge();
    let before = daemon.picture();
    daemon.kill();
    let daemon = field.start();
    assert_eq!(daemon.picture(), before);
    assert_eq!(shown(&daemon)["psk"], "psk");
    assert_eq!(listeners(&daemon), listed);
    judge();
    // A key that is taken away shuts its host out, and so does a host that is taken from the list.
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "psk" })));
    let knows = || admits_over_tls(address, Some((&psk, IdentityVersion::One)));
    assert!(!knows());
    ok(daemon.call("nvmf_subsystem_remove_host", host(json!({}))));
    field.add_key(&daemon, "psk");
    add_host(&daemon, json!({ "psk": "psk" }));
    assert!(knows());
    ok(daemon.call("nvmf_subsystem_remove_host", host(json!({}))));
    assert!(!knows());
    let any = json!({ "nqn": NQN, "allow_any_host": true });
    ok(daemon.call("nvmf_subsystem_allow_any_host", any));
    let error = daemon.call("nvmf_subsystem_add_listener", secure).unwrap_err();
    assert!(error.contains("Cannot establish secure channel"), "{error}");
    daemon.kill();
}

#[test]
fn a_controller_is_attached_with_keys_that_can_change() {
    let field = Field::new();
    let daemon = field.start();
    let address = export(&daemon);
    for name in ["key0", "key1", "ckey0", "wrong"] {
        field.key(&daemon, name);
    }
    let attach = |keys: Value| {
        let mut params = json!({
            "name": "N", "trtype": "tcp", "traddr": "127.0.0.1", "subnqn": NQN, "hostnqn": HOST,
            "trsvcid": address.port().to_string(), "ctrlr_loss_timeout_sec": 60, "reconnect_delay_sec": 1,
        });
        params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        daemon.call("bdev_nvme_attach_controller", params)
    };
    add_host(&daemon, json!({ "dhchap_key": "key0", "dhchap_ctrlr_key": "ckey0" }));
    for keys in [
        json!({}),
        json!({ "dhchap_key": "wrong" }),
        json!({ "dhchap_key": "key0", "dhchap_ctrlr_key": "wrong" }),
    ] {
        assert!(attach(keys).unwrap_err().contains("(-5)"));
    }
    assert!(attach(json!({ "dhchap_key": "none" })).unwrap_err().contains("(-126)"));
    assert!(attach(json!({ "psk": "key0" })).unwrap_err().contains("NVMeTLSkey-1"));
    let both = json!({ "dhchap_key": "key0", "dhchap_ctrlr_key": "ckey0" });
    assert_eq!(ok(attach(both.clone())), json!(["Nn1"]));
    let entry = || {
        let config = ok(daemon.call("framework_get_config", json!({ "name": "bdev" })));
        let all = config.as_array().unwrap().clone();
        let attached = |entry: &&Value| entry["method"] == "bdev_nvme_attach_controller";
        all.iter().find(attached).unwrap()["params"].clone()
    };
    assert_eq!(entry()["dhchap_key"], "key0");
    let set = |keys: Value| {
        let mut params = json!({ "name": "N" });
        params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        daemon.call("bdev_nvme_set_keys", params)
    };
    let state = || {
        let listed = ok(daemon.call("bdev_nvme_get_controllers", json!({ "name": "N" })));
        listed[0]["ctrlrs"][0]["state"].as_str().unwrap().to_owned()
    };
    let reset = || ok(daemon.call("bdev_nvme_reset_controller", json!({ "name": "N" })));
    let error = set(json!({ "dhchap_key": "wrong" })).unwrap_err();
    assert!(error.contains("(-13)") && error.contains("The keys are as before"), "{error}");
    assert_eq!(entry()["dhchap_key"], "key0");
    // The target's key changes first; the controller is not connected anew for it.
    set_keys(&daemon, json!({ "dhchap_key": "key1" }));
    assert_eq!(state(), "enabled");
    ok(set(json!({ "dhchap_key": "key1" })));
    assert_eq!(
        (entry()["dhchap_key"].as_str(), entry().get("dhchap_ctrlr_key")),
        (Some("key1"), None)
    );
    set_keys(&daemon, json!({ "dhchap_key": "key1", "overlap_sec": 0 }));
    reset();
    eventually("it is connected by the new key", || state() == "enabled");
    assert!(set(json!({ "dhchap_key": "none" })).unwrap_err().contains("(-126)"));
    // A controller whose key is removed stays connected, and is not connected anew before it has another one.
    ok(daemon.call("keyring_file_remove_key", json!({ "name": "key1" })));
    assert_eq!(state(), "enabled");
    reset();
    eventually("it is lost", || state() != "enabled");
    set_keys(&daemon, json!({ "dhchap_key": "key0" }));
    ok(set(json!({ "dhchap_key": "key0" })));
    eventually("it is connected by another key", || state() == "enabled");
    daemon.kill();
    let daemon = field.start();
    // The controller is this daemon: it answers once the start is over.
    eventually("it comes back with its key", || {
        let listed = ok(daemon.call("bdev_nvme_get_controllers", Value::Null));
        listed[0]["ctrlrs"][0]["state"] == "enabled"
    });
    daemon.kill();
}

#[test]
fn hash_functions_and_groups_are_those_that_were_set() {
    let daemon = Daemon::waiting();
    let mut client = daemon.client();
    let mut call = |method: &str, params: Value| client.call(method, params);
    for wrong in [json!({ "dhchap_digests": ["md5"] }), json!({ "dhchap_dhgroups": [] })] {
        assert_eq!(call("nvmf_set_config", wrong.clone()).unwrap_err().0, -32602);
        assert_eq!(call("bdev_nvme_set_options", wrong).unwrap_err().0, -32602);
    }
    let only = json!({ "dhchap_digests": ["sha384"], "dhchap_dhgroups": ["null", "ffdhe2048"] });
    call("nvmf_set_config", only).unwrap();
    call("framework_start_init", Value::Null).unwrap();
    let field = Field::new();
    let secret = field.secret("key0");
    let key = json!({ "name": "key0", "path": field.path("key0") });
    let at = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("nvmf_create_subsystem", json!({ "nqn": NQN })),
        ("keyring_file_add_key", key),
        ("nvmf_subsystem_add_host", host(json!({ "dhchap_key": "key0" }))),
        ("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at })),
    ] {
        call(method, params).unwrap();
    }
    let listeners = call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    for (hash, group, taken) in [
        (Hash::Sha384, DhGroup::Ffdhe2048, true),
        (Hash::Sha384, DhGroup::Null, true),
        (Hash::Sha256, DhGroup::Ffdhe2048, false),
        (Hash::Sha384, DhGroup::Ffdhe3072, false),
    ] {
        let algorithms = Algorithms { hashes: vec![hash], groups: vec![group] };
        let credentials =
            Credentials { secret: secret.clone(), controller_secret: None, algorithms };
        let config = HostConfig { credentials: credentials.into(), ..config(address) };
        assert_eq!(Host::connect(config).is_ok(), taken, "{hash} {group}");
    }
    // A controller of this daemon offers only what its own options allow.
    let attach = |name: &str| {
        json!({
            "name": name, "trtype": "tcp", "traddr": "127.0.0.1", "subnqn": NQN, "hostnqn": HOST,
            "trsvcid": port, "dhchap_key": "key0",
        })
    };
    call("bdev_nvme_attach_controller", attach("A")).unwrap();
    call("bdev_nvme_detach_controller", json!({ "name": "A" })).unwrap();
    call("bdev_nvme_set_options", json!({ "dhchap_dhgroups": ["ffdhe3072"] })).unwrap();
    assert_eq!(call("bdev_nvme_attach_controller", attach("B")).unwrap_err().0, -5);
    daemon.manager.shut_down().unwrap();
}
