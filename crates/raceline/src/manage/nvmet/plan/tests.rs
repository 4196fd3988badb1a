//! What configurations of the kernel's target become, and what they may not be.

use raceline_auth::DhchapSecret;
use serde_json::json;

use super::*;

fn plan_of(saved: &Value) -> Result<Planned, String> {
    make(saved, Taken { keys_folder: PathBuf::from("/keys"), ..Taken::default() })
}

fn calls<'a>(planned: &'a Planned, method: &str) -> Vec<&'a Value> {
    let steps = planned.plan.steps.iter().filter(|step| step.method == method);
    steps.map(|step| &step.params).collect()
}

#[track_caller]
fn remarked(planned: &Planned, words: &[&str]) {
    let remarks = &planned.plan.remarks;
    let found = remarks.iter().any(|remark| words.iter().all(|word| remark.contains(word)));
    assert!(found, "{words:?}: {remarks:?}");
}

fn tcp(subsystems: &[&str]) -> Value {
    json!({
        "portid": 1,
        "addr": { "trtype": "tcp", "adrfam": "ipv4", "traddr": "0.0.0.0", "trsvcid": "4420", "treq": "not specified" },
        "param": { "inline_data_size": "8192" },
        "subsystems": subsystems,
    })
}

/// The kernel's target of the paper about a box of drives: two drives, a subsystem for each, one port.
fn box_of_drives() -> Value {
    let subsystem = |number: u32| {
        json!({
            "nqn": format!("nvme-ssd{number}"),
            "attr": { "allow_any_host": "1", "serial": format!("S{number}") },
            "allowed_hosts": [],
            "namespaces": [{
                "nsid": 1, "enable": 1, "ana_grpid": 1,
                "device": {
                    "path": format!("/dev/nvme{number}n1"),
                    "nguid": "00000000-0000-0000-0000-000000000000",
                    "uuid": "8a1b2c3d-0000-4000-8000-00000000000a",
                },
            }],
        })
    };
    json!({ "hosts": [], "subsystems": [subsystem(0), subsystem(1)], "ports": [tcp(&["nvme-ssd0", "nvme-ssd1"])] })
}

#[test]
fn the_box_of_drives_moves() {
    let planned = plan_of(&box_of_drives()).unwrap();
    assert_eq!(calls(&planned, "nvmf_create_transport")[0]["in_capsule_data_size"], 8192);
    let devices = calls(&planned, "bdev_uring_create");
    assert_eq!(devices[1]["filename"], "/dev/nvme1n1");
    assert!(devices[1]["block_size"].is_null());
    let subsystems = calls(&planned, "nvmf_create_subsystem");
    assert_eq!(subsystems[0]["nqn"], "nqn.2026-01.io.raceline:nvme-ssd0");
    assert_eq!(subsystems[0]["allow_any_host"], true);
    let namespace = &calls(&planned, "nvmf_subsystem_add_ns")[0]["namespace"];
    assert_eq!(namespace["anagrpid"], 1);
    assert_eq!(namespace["uuid"], "8a1b2c3d-0000-4000-8000-00000000000a");
    assert_eq!(namespace["nguid"], "0".repeat(32));
    let listeners = calls(&planned, "nvmf_subsystem_add_listener");
    assert_eq!(listeners.len(), 2);
    assert_eq!(listeners[1]["listen_address"]["traddr"], "0.0.0.0");
    remarked(
        &planned,
        &["/subsystems/nvme-ssd0", "no NQN", "hosts connect to nqn.2026-01.io.raceline:nvme-ssd0"],
    );
    assert_eq!(planned.plan.remarks.len(), 2);
}

#[test]
fn what_has_no_counterpart_is_named_by_its_path() {
    let nqn = "nqn.2014-08.org.example:1";
    let mut port = tcp(&[nqn]);
    port["ana_groups"] = json!([
        { "grpid": 1, "ana": { "state": "non-optimized" } }, { "grpid": 2, "ana": { "state": "change" } },
    ]);
    port["addr"]["tsas"] = "tls1.3".into();
    port["addr"]["treq"] = "not required".into();
    port["addr"]["novelty"] = "1".into();
    port["referrals"] = json!([{ "name": "r", "enable": "0", "addr": { "trtype": "tcp", "new": "1" }, "more": "1" }]);
    let planned = plan_of(&json!({
        "surprise": 1,
        "subsystems": [{
            "nqn": nqn,
            "attr": { "allow_any_host": "0", "ieee_oui": "0x123", "pi_enable": "1", "qid_max": "4" },
            "allowed_hosts": ["nqn.2014-08.org.example:stranger"],
            "passthru": [{ "device": { "path": "/dev/nvme7" }, "enable": 1 }],
            "namespaces": [
                { "nsid": 1, "enable": 0, "device": { "path": "/dev/a" } },
                { "nsid": 2, "enable": 1, "device": { "path": "/srv/b", "odd": "1" }, "buffered_io": "1", "resv": { "enable": "0" } },
                { "nsid": 3, "enable": 1, "device": { "path": "/srv/b" } },
            ],
        }],
        "ports": [
            port,
            { "portid": 2, "addr": { "trtype": "rdma" }, "subsystems": [nqn] },
            { "portid": 3, "addr": { "trtype": "fc" }, "subsystems": [] },
        ],
    }))
    .unwrap();
    for words in [
        ["/surprise", "nothing like it"],
        ["/subsystems/nqn.2014-08.org.example:1", "ieee_oui"],
        ["attr_pi_enable", "protection"],
        ["attr_qid_max", "4 queues"],
        ["passthru[0]", "/dev/nvme7"],
        ["namespaces/1", "disabled"],
        ["namespaces/2/buffered_io", "not cached"],
        ["namespaces/2/resv_enable", "may make reservations"],
        ["namespaces[1]/device/odd", "nothing like it"],
        ["namespaces/3", "namespaces/2 already"],
        ["allowed_hosts/nqn.2014-08.org.example:stranger", "let in all the same"],
        ["/ports/1", "it is for TLS"],
        ["/ports/1/addr_treq", "without TLS here too"],
        ["/ports[0]/addr/novelty", "nothing like it"],
        ["/ports[0]/referrals[0]/more", "nothing like it"],
        ["/ports[0]/referrals[0]/addr/new", "nothing like it"],
        ["/ports/1/ana_groups/2", "does not last"],
        ["/ports/2", "rdma"],
        ["/ports/3", "fc"],
    ] {
        remarked(&planned, &words);
    }
    assert_eq!(calls(&planned, "bdev_uring_create")[0]["block_size"], 4096);
    assert_eq!(
        calls(&planned, "nvmf_subsystem_listener_set_ana_state")[0]["ana_state"],
        "non_optimized"
    );
}

#[test]
fn what_is_the_same_has_no_remark() {
    let nqn = "nqn.2014-08.org.example:1";
    for (treq, tsas) in [("required", "tls1.3"), ("not specified", "none")] {
        let mut port = tcp(&[nqn]);
        (port["addr"]["treq"], port["addr"]["tsas"]) = (treq.into(), tsas.into());
        let namespace = json!({
            "nsid": 1, "enable": 1, "device": { "path": "/srv/a" }, "resv": { "enable": "1" },
        });
        let saved = json!({
            "subsystems": [{ "nqn": nqn, "attr": {}, "namespaces": [namespace] }], "ports": [port],
        });
        let remarks = plan_of(&saved).unwrap().plan.remarks;
        let others = remarks.iter().filter(|remark| !remark.contains("it is for TLS"));
        assert_eq!(others.count(), 0, "{remarks:?}");
    }
}

#[test]
fn a_port_by_rdma_moves_where_the_transport_is() {
    let nqn = "nqn.2014-08.org.example:1";
    let mut rdma = tcp(&[nqn]);
    rdma["portid"] = 2.into();
    rdma["addr"]["trtype"] = "rdma".into();
    let saved = json!({ "subsystems": [{ "nqn": nqn, "attr": {} }], "ports": [tcp(&[nqn]), rdma] });
    let ways = |transports: &[&str]| {
        let transports = transports.iter().map(|&name| name.to_owned()).collect();
        let planned = make(&saved, Taken { transports, ..Taken::default() }).unwrap();
        let listeners = calls(&planned, "nvmf_subsystem_add_listener");
        let kinds = listeners.iter().map(|call| call["listen_address"]["trtype"].clone());
        (kinds.collect::<Vec<_>>(), planned.plan.remarks.join("\n"))
    };
    let (kinds, remarks) = ways(&["tcp", "rdma"]);
    assert_eq!(kinds, ["TCP", "RDMA"]);
    assert!(!remarks.contains("rdma"), "{remarks}");
    let (kinds, remarks) = ways(&[]);
    assert_eq!(kinds, ["TCP"]);
    assert!(remarks.contains("/ports/2: transport rdma is not there"), "{remarks}");
    assert!(remarks.contains(nqn), "{remarks}");
}

#[test]
fn parameters_of_ports_are_set_for_all_or_named() {
    let port = |id: u32, entries: &str| {
        let mut port = tcp(&[]);
        port["portid"] = id.into();
        port["param"] = json!({ "max_queue_size": entries, "mdts": "5", "inline_data_size": "-1" });
        port
    };
    let saved = json!({ "ports": [port(1, "64"), port(2, "256")] });
    let planned = plan_of(&saved).unwrap();
    let transport = calls(&planned, "nvmf_create_transport")[0];
    assert_eq!(transport["max_queue_depth"], 256);
    assert!(transport["in_capsule_data_size"].is_null());
    remarked(&planned, &["/ports", "largest max_queue_size, 256"]);
    remarked(&planned, &["/ports/2/param_mdts", "max_io_size"]);
    let taken = Taken { transports: vec!["tcp".to_owned()], ..Taken::default() };
    let planned = make(&saved, taken).unwrap();
    assert!(calls(&planned, "nvmf_create_transport").is_empty());
    remarked(&planned, &["/ports", "max_queue_size 256 is not set"]);
    // A transport that has the value already is as it should be.
    let taken = Taken {
        transports: vec!["tcp".to_owned()],
        sizes: BTreeMap::from([("max_queue_size", 256)]),
        ..Taken::default()
    };
    let remarks = make(&saved, taken).unwrap().plan.remarks;
    assert!(remarks.iter().all(|remark| !remark.contains("max_queue_size")), "{remarks:?}");
}

#[test]
fn secrets_become_keys_and_are_in_no_text() {
    let secret = DhchapSecret::generate(None).unwrap().to_text();
    let host = "nqn.2014-08.org.example:host";
    let saved = json!({
        "hosts": [{ "nqn": host, "dhchap": { "key": *secret, "ctrl_key": "", "hash": "hmac(sha256)", "dhgroup": "ffdhe2048" } }],
        "subsystems": [{ "nqn": "nqn.2014-08.org.example:1", "attr": {}, "allowed_hosts": [host] }],
    });
    let planned = plan_of(&saved).unwrap();
    let name = "nvmet-nqn.2014-08.org.example-host";
    assert_eq!(planned.keys.len(), 1);
    assert_eq!((planned.keys[0].0.as_str(), &*planned.keys[0].1), (name, &*secret));
    assert_eq!(calls(&planned, "keyring_file_add_key")[0]["path"], format!("/keys/{name}"));
    assert_eq!(calls(&planned, "nvmf_subsystem_add_host")[0]["dhchap_key"], name);
    let plan = &planned.plan;
    let texts = plan.steps.iter().map(|step| format!("{} {}", step.what, step.params));
    assert!(texts.chain(plan.remarks.clone()).all(|text| !text.contains(&secret[10..])));
    remarked(&planned, &["dhchap_dhgroup", "ffdhe2048"]);
    let wrong = json!({ "hosts": [{ "nqn": host, "dhchap": { "key": "DHHC-1:00:c2VjcmV0:" } }] });
    let error = plan_of(&wrong).err().unwrap();
    assert!(error.starts_with("/hosts/nqn") && !error.contains("c2VjcmV0"), "{error}");
}

#[test]
fn values_of_other_kinds_are_refused_by_their_place() {
    let subsystem = |value: Value| json!({ "subsystems": [value] });
    for (saved, place) in [
        (json!([]), "the configuration has to be an object"),
        (json!({ "ports": 7 }), "/ports has to be a list"),
        (json!({ "hosts": ["a"] }), "/hosts[0] has to be an object"),
        (json!({ "ports": [{}] }), "/ports[0] has no portid"),
        (json!({ "ports": [{ "portid": "x" }] }), "/ports[0]/portid has to be a number"),
        (subsystem(json!({})), "/subsystems[0] has no nqn"),
        (subsystem(json!({ "nqn": {} })), "/subsystems[0]/nqn has to be text or a number"),
        (
            subsystem(json!({ "nqn": "nqn.a", "namespaces": [{ "nsid": 0 }] })),
            "has no nsid from 1 on",
        ),
        (
            subsystem(
                json!({ "nqn": "nqn.a", "namespaces": [{ "nsid": 1, "enable": 1, "device": { "path": "x" } }] }),
            ),
            "/subsystems/nqn.a/namespaces/1/device_path has to be an absolute path",
        ),
        (json!({ "ports": [tcp(&["nqn.missing"])] }), "there is no such subsystem"),
        (
            json!({ "ports": [{ "portid": 1, "addr": { "trtype": "tcp", "traddr": "x" }, "subsystems": [] }] }),
            "IP address",
        ),
    ] {
        let error = plan_of(&saved).err().unwrap_or_default();
        assert!(error.contains(place), "{saved}: {error}");
    }
    let twice = json!({ "subsystems": [{ "nqn": "nqn.a" }, { "nqn": "nqn.a" }] });
    assert!(plan_of(&twice).err().unwrap_or_default().contains("stands twice"));
}
