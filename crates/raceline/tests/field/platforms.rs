//! What spdk-csi and Cinder's SPDK driver send for the life of a volume, by HTTP with a user and a password.
//!
//! Both make their volumes by `bdev_lvol_*`, which Raceline does not have. Where they would go on with such a volume, a
//! device in memory takes its place, with the name and the UUID that SPDK would give the volume.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Scratch, Served, call, own_address, run};

const TOKEN: &str = "correct-horse-battery";
/// `spdkcsiuser` and `cinder` with the token as the password, in base64.
const CSI_USER: &str = "c3Bka2NzaXVzZXI6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5";
const CINDER_USER: &str = "Y2luZGVyOmNvcnJlY3QtaG9yc2UtYmF0dGVyeQ==";

const FIRST: &str = "3a5c0f44-0d1b-4c4e-9d0a-6f2f4c6ad001";
const SECOND: &str = "3a5c0f44-0d1b-4c4e-9d0a-6f2f4c6ad002";
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A daemon that takes calls by HTTP.
struct Daemon {
    http: SocketAddr,
    socket: PathBuf,
    _served: Served,
    _scratch: Scratch,
}

impl Daemon {
    fn start() -> Self {
        let scratch = Scratch::new();
        let token = scratch.file("token", format!("{TOKEN}\n").as_bytes());
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let (socket, http) = (PathBuf::from(scratch.path("rpc.sock")), own_address());
        let words = ["--http", &http.to_string(), "--http-token", &token];
        let served = Served::start(&socket, &words);
        Self { http, socket, _served: served, _scratch: scratch }
    }

    /// The device that takes the place of a volume of 16 MiB.
    fn volume(&self, uuid: &str) {
        let params = json!({ "name": uuid, "uuid": uuid, "num_blocks": 4096, "block_size": 4096 });
        assert_eq!(call(&self.socket, "bdev_malloc_create", params), Ok(json!(uuid)));
    }
}

/// A program that calls SPDK through HTTP.
struct Platform {
    http: SocketAddr,
    /// Lines of each request's head besides those that HTTP wants.
    head: String,
    /// The connection, if it keeps one.
    kept: Option<BufReader<TcpStream>>,
    keeps: bool,
    /// The identifier of the last request, if it numbers them; else all have 1.
    id: Option<i64>,
}

impl Platform {
    /// spdk-csi: Go's client, which keeps its connection. Its requests are numbered.
    fn spdk_csi(daemon: &Daemon) -> Self {
        let head = format!(
            "User-Agent: Go-http-client/1.1\r\nAuthorization: Basic {CSI_USER}\r\n\
             Content-Type: application/json\r\nAccept-Encoding: gzip\r\n"
        );
        Self { http: daemon.http, head, kept: None, keeps: true, id: Some(0) }
    }

    /// Cinder: Python's requests, with a connection for each request.
    fn cinder(daemon: &Daemon) -> Self {
        let head = format!(
            "User-Agent: python-requests/2.31.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n\
             Connection: keep-alive\r\nAuthorization: Basic {CINDER_USER}\r\n"
        );
        Self { http: daemon.http, head, kept: None, keeps: false, id: None }
    }

    /// The result of a call, or the code and the text of its error. HTTP's status must be 200 for both.
    fn call(&mut self, method: &str, params: Value) -> Result<Value, (i64, String)> {
        let id = match &mut self.id {
            Some(id) => {
                *id += 1;
                *id
            }
            None => 1,
        };
        let mut request = json!({ "jsonrpc": "2.0", "id": id, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        let (status, answer) = self.post(&request.to_string());
        assert_eq!(status, 200, "{method}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["id"], &answer["jsonrpc"]), (&json!(id), &json!("2.0")), "{method}");
        match (answer.get("result"), answer.get("error")) {
            (Some(result), None) => Ok(result.clone()),
            (None, Some(error)) => {
                let text = error["message"].as_str().unwrap();
                Err((error["code"].as_i64().unwrap(), text.to_owned()))
            }
            _ => panic!("{method}: {answer}"),
        }
    }

    /// The status and the body of the answer.
    fn post(&mut self, body: &str) -> (u16, String) {
        let mut stream = self.kept.take().unwrap_or_else(|| {
            let stream = TcpStream::connect(self.http).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            BufReader::new(stream)
        });
        let (http, head, length) = (self.http, &self.head, body.len());
        let text = format!(
            "POST / HTTP/1.1\r\nHost: {http}\r\nContent-Length: {length}\r\n{head}\r\n{body}"
        );
        stream.get_mut().write_all(text.as_bytes()).unwrap();
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(stream.read_line(&mut line).unwrap(), 0, "closed after {lines:?}");
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_ascii_lowercase()),
            }
        }
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let header = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
        assert_eq!(header("content-encoding:"), None, "{lines:?}");
        let length = header("content-length:").map_or(0, |text| text.trim().parse().unwrap());
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).unwrap();
        if self.keeps {
            self.kept = Some(stream);
        }
        (status, String::from_utf8(answer).unwrap())
    }

    fn ok(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error:?}"))
    }

    /// What SPDK answers to a method that it does not have.
    fn is_unknown(&mut self, method: &str, params: Value) {
        let found = self.call(method, params);
        assert_eq!(found, Err((-32601, "Method not found".to_owned())), "{method}");
    }
}

/// What spdk-csi asks about a volume before it does anything with it.
fn csi_knows(csi: &mut Platform, name: &str) -> bool {
    match csi.call("bdev_get_bdevs", json!({ "name": name })) {
        Ok(found) => {
            let volume = &found[0];
            assert_eq!((&volume["name"], &volume["uuid"]), (&json!(name), &json!(name)));
            assert_eq!(
                (&volume["block_size"], &volume["num_blocks"]),
                (&4096.into(), &4096.into())
            );
            // It is decoded into a structure: an object, if it is there.
            assert!(volume["driver_specific"].is_object(), "{volume}");
            true
        }
        // Any other error ends the program: it then takes the first one of no devices.
        Err(error) => {
            assert_eq!(error, (-19, "No such device".to_owned()));
            false
        }
    }
}

fn csi_nqn(volume: &str) -> String {
    format!("nqn.2020-04.io.spdk.csi:uuid:{volume}")
}

fn csi_address(port: &str) -> Value {
    json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port })
}

/// Whether spdk-csi takes the volume to be exported: the listener has to be there as it has been made.
fn csi_has_exported(csi: &mut Platform, volume: &str, port: &str) -> bool {
    let query = json!({ "nqn": csi_nqn(volume) });
    match csi.call("nvmf_subsystem_get_listeners", query) {
        Ok(listeners) => {
            listeners.as_array().unwrap().iter().any(|it| it["address"] == csi_address(port))
        }
        Err((code, text)) => {
            assert_eq!((code, text.as_str()), (-32602, "Invalid parameters"));
            false
        }
    }
}

/// The number of a namespace, as spdk-csi looks for it.
fn csi_nsid(csi: &mut Platform, volume: &str) -> Option<u64> {
    let subsystems = csi.ok("nvmf_get_subsystems", Value::Null);
    let subsystems = subsystems.as_array().unwrap();
    let own = subsystems.iter().find(|it| it["nqn"] == csi_nqn(volume))?;
    let namespaces = own["namespaces"].as_array().unwrap();
    namespaces.iter().find(|it| it["bdev_name"] == volume)?["nsid"].as_u64()
}

/// The volumes of spdk-csi, before and after their export.
fn csi_makes_no_volume(csi: &mut Platform) {
    csi.is_unknown("bdev_lvol_get_lvstores", Value::Null);
    let found = csi.call("bdev_get_bdevs", json!({ "name": "lvs0/pvc-1" }));
    assert_eq!(found, Err((-19, "No such device".to_owned())));
    let create = json!({
        "lvol_name": "pvc-1", "size": 16 << 20, "lvs_name": "lvs0", "clear_method": "unmap",
        "thin_provision": true,
    });
    csi.is_unknown("bdev_lvol_create", create);
    csi.is_unknown("bdev_lvol_snapshot", json!({ "lvol_name": FIRST, "snapshot_name": "snap-1" }));
    csi.is_unknown("bdev_lvol_clone", json!({ "clone_name": "pvc-2", "snapshot_name": FIRST }));
    csi.is_unknown("bdev_lvol_delete", json!({ "name": FIRST }));
}

#[test]
fn spdk_csi_exports_volumes_over_nvme_tcp() {
    let daemon = Daemon::start();
    let port = own_address().port().to_string();
    let mut csi = Platform::spdk_csi(&daemon);
    csi_makes_no_volume(&mut csi);
    assert!(!csi_knows(&mut csi, FIRST));
    for (volume, created) in [(FIRST, Ok(json!(true))), (SECOND, Err("already exists"))] {
        daemon.volume(volume);
        assert!(csi_knows(&mut csi, volume));
        assert!(!csi_has_exported(&mut csi, volume, &port));
        // Each start of the program asks for the transport again, and goes by this text.
        match (csi.call("nvmf_create_transport", json!({ "trtype": "TCP" })), created) {
            (Err((code, text)), Err(part)) => {
                assert!(code != 0 && text.contains(part), "{code} {text}");
            }
            (found, created) => assert_eq!(found.map_err(|_| ""), created),
        }
        let nqn = csi_nqn(volume);
        let subsystem = json!({
            "nqn": nqn, "allow_any_host": true, "serial_number": "spdkcsi-sn",
            "model_number": volume,
        });
        assert_eq!(csi.ok("nvmf_create_subsystem", subsystem), true);
        let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": volume } });
        assert_eq!(csi.ok("nvmf_subsystem_add_ns", namespace), 1);
        let listener = json!({ "nqn": nqn, "listen_address": csi_address(&port) });
        assert_eq!(csi.ok("nvmf_subsystem_add_listener", listener), true);
        assert!(csi_has_exported(&mut csi, volume, &port));
    }
    // A node finds the disk by its model.
    for volume in [FIRST, SECOND] {
        let nqn = csi_nqn(volume);
        let seen = ["identify", "-a", "127.0.0.1", "-s", &port, "-n", &nqn, "-o", "json"];
        let seen = run(&seen);
        assert_eq!(seen.code, Some(0), "{}", seen.stderr);
        let seen: Value = serde_json::from_str(&seen.stdout).unwrap();
        let controller = &seen["controller"];
        assert_eq!(
            (&controller["model"], &controller["serial"]),
            (&json!(volume), &json!("spdkcsi-sn"))
        );
        assert_eq!(seen["namespaces"][0]["uuid"], volume);
    }
    // An export whose device has gone, taken back as the program does it.
    let gone = csi_nqn("gone");
    csi.ok("nvmf_create_subsystem", json!({ "nqn": gone, "allow_any_host": true }));
    let absent = json!({ "nqn": gone, "namespace": { "bdev_name": "gone" } });
    let error = csi.call("nvmf_subsystem_add_ns", absent);
    assert_eq!(error, Err((-32602, "Invalid parameters".to_owned())));
    assert_eq!(csi.ok("nvmf_delete_subsystem", json!({ "nqn": gone })), true);
    // The end of an export leaves the other one, and the device.
    let (nqn, nsid) = (csi_nqn(FIRST), csi_nsid(&mut csi, FIRST).unwrap());
    let namespace = json!({ "nqn": nqn, "nsid": nsid });
    assert_eq!(csi.ok("nvmf_subsystem_remove_ns", namespace), true);
    assert_eq!(csi_nsid(&mut csi, FIRST), None);
    assert_eq!(csi.ok("nvmf_delete_subsystem", json!({ "nqn": nqn })), true);
    assert!(!csi_has_exported(&mut csi, FIRST, &port));
    assert!(csi_has_exported(&mut csi, SECOND, &port));
    csi_makes_no_volume(&mut csi);
    assert!(csi_knows(&mut csi, FIRST));
    // The number of the first one is free again.
    assert_eq!(csi_nsid(&mut csi, SECOND), Some(1));
}

#[test]
fn spdk_csi_exports_a_volume_over_iscsi() {
    let daemon = Daemon::start();
    let port = own_address().port().to_string();
    let mut csi = Platform::spdk_csi(&daemon);
    csi_makes_no_volume(&mut csi);
    daemon.volume(FIRST);
    let has_exported = |csi: &mut Platform| {
        let targets = csi.ok("iscsi_get_target_nodes", Value::Null);
        targets.as_array().unwrap().iter().any(|it| it["alias_name"] == FIRST)
    };
    let has_tag = |csi: &mut Platform, method: &str| {
        let groups = csi.ok(method, Value::Null);
        groups.as_array().unwrap().iter().any(|it| it["tag"] == 1)
    };
    assert!(csi_knows(&mut csi, FIRST) && !has_exported(&mut csi));
    let portals = json!({ "portals": [{ "host": "127.0.0.1", "port": port }], "tag": 1 });
    let initiators = json!({ "initiators": ["ANY"], "tag": 1, "netmasks": ["ANY"] });
    for (get, create, params) in [
        ("iscsi_get_portal_groups", "iscsi_create_portal_group", portals),
        ("iscsi_get_initiator_groups", "iscsi_create_initiator_group", initiators),
    ] {
        assert!(!has_tag(&mut csi, get), "{get}");
        assert_eq!(csi.ok(create, params.clone()), true);
        // Two calls of the program at once make the group twice: one of them fails, and looks again.
        assert_ne!(csi.call(create, params).unwrap_err().0, 0, "{create}");
        assert!(has_tag(&mut csi, get), "{get}");
    }
    let target = json!({
        "luns": [{ "lun_id": 0, "bdev_name": FIRST }], "name": FIRST, "alias_name": FIRST,
        "pg_ig_maps": [{ "ig_tag": 1, "pg_tag": 1 }], "disable_chap": true, "queue_depth": 64,
    });
    assert_eq!(csi.ok("iscsi_create_target_node", target), true);
    assert!(has_exported(&mut csi));
    let iqn = format!("iqn.2016-06.io.spdk:{FIRST}");
    let words = ["identify", "--iscsi", "-a", "127.0.0.1", "-s", &port, "-n", &iqn, "-o", "json"];
    let seen = run(&words);
    assert_eq!(seen.code, Some(0), "{}", seen.stderr);
    let seen: Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!(
        (&seen["units"][0]["lun"], &seen["units"][0]["size_bytes"]),
        (&0.into(), &(16 << 20).into())
    );
    assert_eq!(csi.ok("iscsi_delete_target_node", json!({ "name": iqn })), true);
    assert!(!has_exported(&mut csi) && csi_knows(&mut csi, FIRST));
    csi_makes_no_volume(&mut csi);
}

/// The name of a volume by a part of an alias: each device has to have aliases.
fn cinder_name(cinder: &mut Platform, volume: &str) -> Option<String> {
    let bdevs = cinder.ok("bdev_get_bdevs", Value::Null);
    let has = |bdev: &&Value| {
        let aliases = bdev["aliases"].as_array().unwrap();
        aliases.iter().any(|alias| alias.as_str().unwrap().contains(volume))
    };
    let found = bdevs.as_array().unwrap().iter().find(has)?;
    Some(found["name"].as_str().unwrap().to_owned())
}

/// The subsystems without the first one, which has to be the discovery service.
fn cinder_subsystems(cinder: &mut Platform) -> Vec<Value> {
    let found = cinder.ok("nvmf_get_subsystems", Value::Null);
    let (first, others) = found.as_array().unwrap().split_first().unwrap();
    assert_eq!((&first["nqn"], &first["subtype"]), (&json!(DISCOVERY), &json!("Discovery")));
    others.to_vec()
}

/// The subsystem that has a volume.
fn cinder_nqn(cinder: &mut Platform, volume: &str) -> Option<String> {
    let subsystems = cinder_subsystems(cinder);
    let name = cinder_name(cinder, volume)?;
    let has = |subsystem: &&Value| {
        let namespaces = subsystem["namespaces"].as_array().unwrap();
        namespaces.iter().any(|it| it["bdev_name"].as_str().unwrap().contains(&name))
    };
    Some(subsystems.iter().find(has)?["nqn"].as_str().unwrap().to_owned())
}

/// The least number above 0 that no subsystem has.
fn cinder_free_node(cinder: &mut Platform) -> u32 {
    let subsystems = cinder_subsystems(cinder);
    let number = |subsystem: &Value| -> u32 {
        subsystem["nqn"].as_str().unwrap().split("cnode").nth(1).unwrap().parse().unwrap()
    };
    let taken: Vec<u32> = subsystems.iter().map(number).collect();
    (1..).find(|number| !taken.contains(number)).unwrap()
}

/// `create_export` of a volume, which gives the subsystem's name.
fn cinder_exports(cinder: &mut Platform, volume: &str, port: &str) -> String {
    if let Some(nqn) = cinder_nqn(cinder, volume) {
        return nqn;
    }
    let nqn = format!("nqn.2014-08.org.spdk:cnode{}", cinder_free_node(cinder));
    let subsystem = json!({ "nqn": nqn, "allow_any_host": true, "serial_number": "A7KQ2M9X0B4Z" });
    assert_eq!(cinder.ok("nvmf_create_subsystem", subsystem), true);
    // Without the family of the address.
    let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": port });
    let listener = json!({ "nqn": nqn, "listen_address": address });
    assert_eq!(cinder.ok("nvmf_subsystem_add_listener", listener), true);
    let name = cinder_name(cinder, volume);
    let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": name, "nsid": 10 } });
    assert_eq!(cinder.ok("nvmf_subsystem_add_ns", namespace), 10);
    nqn
}

/// Everything that Cinder asks of logical volumes.
fn cinder_makes_no_volume(cinder: &mut Platform) {
    cinder.is_unknown("bdev_lvol_get_lvstores", Value::Null);
    let store = "3a5c0f44-0d1b-4c4e-9d0a-6f2f4c6ad0ff";
    for (method, params) in [
        ("create", json!({ "lvol_name": "volume-1", "size": 1 << 30, "uuid": store })),
        ("snapshot", json!({ "lvol_name": FIRST, "snapshot_name": "snapshot-1" })),
        ("clone", json!({ "clone_name": "volume-2", "snapshot_name": FIRST })),
        ("inflate", json!({ "name": FIRST })),
        ("resize", json!({ "name": FIRST, "size": 2_u64 << 30 })),
        ("delete", json!({ "name": FIRST })),
    ] {
        cinder.is_unknown(&format!("bdev_lvol_{method}"), params);
    }
}

#[test]
fn cinder_exports_volumes_over_nvme_tcp() {
    let daemon = Daemon::start();
    let port = own_address().port().to_string();
    // Cinder makes a transport for RDMA only; the administrator has made the one for TCP.
    call(&daemon.socket, "nvmf_create_transport", json!({ "trtype": "TCP" })).unwrap();
    let mut cinder = Platform::cinder(&daemon);
    assert_eq!(cinder.ok("bdev_get_bdevs", Value::Null), json!([]));
    // Each start asks for it, and its failure does not matter: there may be no library of RDMA, or it is there already.
    let rdma = json!({ "trtype": "rdma", "max_queue_depth": 64 });
    let text = match cinder.call("nvmf_create_transport", rdma.clone()) {
        Ok(made) => {
            assert_eq!(made, true);
            "Transport type 'rdma' already exists"
        }
        Err((code, text)) => {
            assert_eq!((code, text.as_str()), (-32603, "Failed to create transport."));
            eprintln!("SKIPPED: what follows a transport of RDMA: none was made");
            "Failed to create transport."
        }
    };
    let again = cinder.call("nvmf_create_transport", rdma);
    assert_eq!(again, Err((-32603, text.to_owned())));
    cinder_makes_no_volume(&mut cinder);
    daemon.volume(FIRST);
    daemon.volume(SECOND);
    let first = cinder_exports(&mut cinder, FIRST, &port);
    assert_eq!(first, "nqn.2014-08.org.spdk:cnode1");
    assert_eq!(cinder_exports(&mut cinder, FIRST, &port), first);
    let second = cinder_exports(&mut cinder, SECOND, &port);
    assert_eq!(second, "nqn.2014-08.org.spdk:cnode2");
    for (nqn, volume) in [(&first, FIRST), (&second, SECOND)] {
        let words = ["identify", "-a", "127.0.0.1", "-s", &port, "-n", nqn, "-o", "json"];
        let seen = run(&words);
        assert_eq!(seen.code, Some(0), "{}", seen.stderr);
        let seen: Value = serde_json::from_str(&seen.stdout).unwrap();
        let namespace = &seen["namespaces"][0];
        assert_eq!((&namespace["nsid"], &namespace["uuid"]), (&10.into(), &json!(volume)));
    }
    cinder_makes_no_volume(&mut cinder);
    // `remove_export` deletes the subsystem with all that it has; the number is taken again.
    let nqn = cinder_nqn(&mut cinder, FIRST).unwrap();
    assert_eq!(cinder.ok("nvmf_delete_subsystem", json!({ "nqn": nqn })), true);
    assert_eq!(cinder_nqn(&mut cinder, FIRST), None);
    assert_eq!(cinder_nqn(&mut cinder, SECOND), Some(second));
    assert_eq!(cinder_exports(&mut cinder, FIRST, &port), first);
    // Another password is HTTP's matter.
    cinder.head = cinder.head.replace(CINDER_USER, "Y2luZGVyOndyb25n");
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"bdev_get_bdevs"}"#;
    assert_eq!(cinder.post(request).0, 401);
}
