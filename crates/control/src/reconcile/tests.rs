//! Differences do not depend on order or spelling, and plans contain only the calls that are needed.

use serde_json::json;

use super::*;

fn call(method: &str, params: Value) -> Call {
    Call { method: method.to_owned(), params: Some(params) }
}

fn malloc(name: &str, blocks: u64) -> Call {
    call(
        "bdev_malloc_create",
        json!({ "name": name, "num_blocks": blocks, "block_size": 512,
                "uuid": "6b9f2f8c-0d3a-4c55-9a2f-0000000000AA" }),
    )
}

fn subsystem(nqn: &str) -> Call {
    call(
        "nvmf_create_subsystem",
        json!({ "nqn": nqn, "serial_number": "S", "allow_any_host": false }),
    )
}

fn namespace(nqn: &str, nsid: u32, device: &str) -> Call {
    call(
        "nvmf_subsystem_add_ns",
        json!({ "nqn": nqn, "namespace": { "nsid": nsid, "bdev_name": device } }),
    )
}

fn host(nqn: &str, host: &str) -> Call {
    call("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": host }))
}

fn port(nqn: &str, port: &str) -> Call {
    let address =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port });
    call("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address }))
}

fn contents(calls: &[Call]) -> Contents {
    let (bdev, nvmf) = calls.iter().cloned().partition(|call| call.method.starts_with("bdev"));
    let part = |name: &str, config| SubsystemConfig { subsystem: name.to_owned(), config };
    Contents::new(vec![part("bdev", bdev), part("nvmf", nvmf)]).unwrap()
}

fn sample() -> Vec<Call> {
    vec![
        call("nvmf_create_transport", json!({ "trtype": "TCP", "max_queue_depth": 128 })),
        malloc("m0", 64),
        malloc("m1", 64),
        subsystem("a"),
        namespace("a", 1, "m0"),
        host("a", "h"),
        port("a", "4420"),
        subsystem("b"),
        namespace("b", 1, "m1"),
    ]
}

/// The plan as text: each method and the object that it is about.
fn plan(is: &[Call], wanted: &[Call]) -> Vec<String> {
    let steps = contents(is).plan(&contents(wanted));
    let about = |step: Step| {
        let params = step.call.params.unwrap();
        let name = ["bdev_name", "name", "nqn", "trtype"]
            .iter()
            .find_map(|name| params.get(*name).and_then(Value::as_str));
        format!("{} {}", step.call.method, name.unwrap_or_default())
    };
    steps.into_iter().map(about).collect()
}

#[test]
fn order_and_spelling_make_no_difference() {
    let one = sample();
    let mut other = sample();
    other.reverse();
    let lower = json!({ "name": "m0", "num_blocks": 64, "block_size": 512, "md_size": 0,
                        "uuid": "6b9f2f8c-0d3a-4c55-9a2f-0000000000aa" });
    let place = other.iter().position(|call| *call == one[1]).unwrap();
    other[place] = call("bdev_malloc_create", lower);
    let (one, other) = (contents(&one), contents(&other));
    assert_eq!(one.differences(&other), []);
    assert_eq!(other.differences(&one), []);
    assert!(one.plan(&other).is_empty());
}

#[test]
fn differences_say_what_and_where() {
    let is = sample();
    let mut wanted = sample();
    wanted[1] = malloc("m0", 128);
    wanted.remove(5);
    wanted.push(port("b", "4421"));
    let (is, wanted) = (contents(&is), contents(&wanted));
    let text: Vec<String> = is.differences(&wanted).iter().map(ToString::to_string).collect();
    let expected = [
        "~ bdev m0 num_blocks: 64 -> 128",
        "- subsystem a host h",
        "+ subsystem b port 127.0.0.1:4421",
    ];
    assert_eq!(text, expected);
}

/// TCP and RDMA can listen at one address.
#[test]
fn listeners_of_two_transports_are_two_objects() {
    let mut rdma = port("a", "4420");
    rdma.params.as_mut().unwrap()["listen_address"]["trtype"] = "RDMA".into();
    let is = sample();
    let mut wanted = sample();
    wanted.push(rdma);
    let text: Vec<String> =
        contents(&is).differences(&contents(&wanted)).iter().map(ToString::to_string).collect();
    assert_eq!(text, ["+ subsystem a port rdma://127.0.0.1:4420"]);
    assert_eq!(plan(&is, &wanted), ["nvmf_subsystem_add_listener a"]);
    assert_eq!(plan(&wanted, &is), ["nvmf_subsystem_remove_listener a"]);
}

#[test]
fn what_is_equal_is_not_touched() {
    let mut wanted = sample();
    wanted.push(host("b", "h"));
    assert_eq!(plan(&sample(), &wanted), ["nvmf_subsystem_add_host b"]);
    assert_eq!(plan(&wanted, &sample()), ["nvmf_subsystem_remove_host b"]);
}

#[test]
fn what_stands_on_a_changed_device_goes_before_it_and_comes_back() {
    let mut wanted = sample();
    wanted[1] = malloc("m0", 128);
    let expected = [
        "nvmf_subsystem_remove_ns a",
        "bdev_malloc_delete m0",
        "bdev_malloc_create m0",
        "nvmf_subsystem_add_ns a",
    ];
    assert_eq!(plan(&sample(), &wanted), expected);
}

#[test]
fn a_subsystem_that_changes_takes_its_parts_along() {
    let mut wanted = sample();
    wanted[3] = call("nvmf_create_subsystem", json!({ "nqn": "a", "serial_number": "T" }));
    let steps = plan(&sample(), &wanted);
    let expected = [
        "nvmf_subsystem_remove_listener a",
        "nvmf_subsystem_remove_host a",
        "nvmf_subsystem_remove_ns a",
        "nvmf_delete_subsystem a",
        "nvmf_create_subsystem a",
        "nvmf_subsystem_add_ns a",
        "nvmf_subsystem_add_host a",
        "nvmf_subsystem_add_listener a",
    ];
    assert_eq!(steps, expected);
}

#[test]
fn access_is_changed_in_place() {
    let mut wanted = sample();
    wanted
        .push(call("nvmf_subsystem_allow_any_host", json!({ "nqn": "b", "allow_any_host": true })));
    let steps = contents(&sample()).plan(&contents(&wanted));
    assert_eq!(steps.len(), 1);
    let params = json!({ "nqn": "b", "allow_any_host": true });
    assert_eq!(steps[0].call, call("nvmf_subsystem_allow_any_host", params));
}

#[test]
fn levels_of_security_are_changed_in_place() {
    let leveled = |level: Value| {
        let mut made = subsystem("a");
        let members = made.params.as_mut().unwrap().as_object_mut().unwrap();
        members.extend(level.as_object().unwrap().clone());
        made
    };
    for (is, wanted, params) in [
        (json!({}), json!({ "security": "tls" }), json!(["tls", false])),
        (json!({ "security": "tls" }), json!({ "psk_optional": true }), json!(["plain", true])),
    ] {
        let steps = contents(&[leveled(is)]).plan(&contents(&[leveled(wanted)]));
        assert_eq!(steps.len(), 1);
        let [security, psk_optional] = [&params[0], &params[1]];
        let params = json!({ "nqn": "a", "security": security, "psk_optional": psk_optional });
        assert_eq!(steps[0].call, call("nvmf_subsystem_set_security", params));
    }
}

#[test]
fn clearing_leaves_settings() {
    let is = contents(&sample());
    let steps = is.plan(&is.cleared());
    let methods: Vec<&str> = steps.iter().map(|step| step.call.method.as_str()).collect();
    let expected = [
        "nvmf_subsystem_remove_ns",
        "nvmf_delete_subsystem",
        "nvmf_subsystem_remove_listener",
        "nvmf_subsystem_remove_host",
        "nvmf_subsystem_remove_ns",
        "nvmf_delete_subsystem",
        "bdev_malloc_delete",
        "bdev_malloc_delete",
    ];
    assert_eq!(methods, expected);
    let plan = is.cleared().plan(&is);
    assert_eq!(plan.len(), sample().len() - 1);
}

#[test]
fn texts_that_are_no_configuration_are_refused() {
    for text in ["", "[]", "{}", r#"{"subsystems":[{"subsystem":"x","config":[{"params":1}]}]}"#] {
        let error = Contents::parse(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("no configuration"), "{error}");
    }
    let twice = vec![SubsystemConfig {
        subsystem: "bdev".to_owned(),
        config: vec![malloc("m", 1), malloc("m", 2)],
    }];
    let error = Contents::new(twice).unwrap_err();
    assert_eq!(error.to_string(), "bdev m is made twice: remove one of the two calls");
    let empty =
        Contents::parse(br#"{"subsystems":[{"subsystem":"x","config":null}],"raceline":1}"#);
    assert_eq!(empty.unwrap(), Contents::default());
}

#[test]
fn what_was_plugged_in_since_is_no_difference() {
    let hotplug = |drives: Value, detached: Value| {
        let params = json!({ "enable": true, "drives": drives, "detached": detached });
        [call("bdev_nvme_set_hotplug", params)]
    };
    let is = hotplug(json!(["A", "B"]), json!(["A"]));
    assert!(plan(&is, &hotplug(Value::Null, Value::Null)).is_empty());
    assert!(plan(&is, &hotplug(json!(["A"]), json!(["A"]))).is_empty());
    assert_eq!(plan(&is, &hotplug(json!(["B"]), json!([]))).len(), 1);
    assert_eq!(plan(&is, &hotplug(json!(["A"]), json!(["B"]))).len(), 1);
}

#[test]
fn what_a_discovery_service_has_found_since_is_no_difference() {
    let service = |subsystems: Value| {
        let params = json!({ "name": "D", "traddr": "127.0.0.1", "subsystems": subsystems });
        [call("bdev_nvme_start_discovery", params)]
    };
    assert!(plan(&service(json!(["a", "b"])), &service(json!(["a"]))).is_empty());
    assert!(plan(&service(json!(["a", "b"])), &service(Value::Null)).is_empty());
    let other = plan(&service(json!(["a", "b"])), &service(json!(["b"])));
    assert_eq!(other, ["bdev_nvme_stop_discovery D", "bdev_nvme_start_discovery D"]);
}

#[test]
fn what_a_search_by_multicast_dns_has_found_since_is_no_difference() {
    let search = |services: Value| {
        [call("bdev_nvme_start_mdns_discovery", json!({ "name": "M", "services": services }))]
    };
    let shelf = |number: u32, names: Value| json!({ "number": number, "instance": "shelf", "subsystems": names });
    let is = search(json!([shelf(0, json!(["a", "b"])), { "number": 1, "instance": "other" }]));
    for same in [Value::Null, json!([]), json!([shelf(0, json!(["a"]))])] {
        assert!(plan(&is, &search(same.clone())).is_empty(), "{same}");
    }
    for other in [json!([shelf(1, json!(["a"]))]), json!([shelf(0, json!(["b"]))])] {
        let plan = plan(&is, &search(other));
        assert_eq!(plan, ["bdev_nvme_stop_mdns_discovery M", "bdev_nvme_start_mdns_discovery M"]);
    }
}

#[test]
fn members_of_the_same_name_in_two_objects_are_no_difference() {
    let params = json!({ "one": { "x": 1 }, "two": { "x": 2 } });
    let is = contents(&[call("bdev_other_set", params)]);
    assert_eq!(is.differences(&is), []);
    let wanted = contents(&[call("bdev_other_set", json!({ "one": { "x": 3 } }))]);
    assert_eq!(is.differences(&wanted).len(), 1);
}

fn key(name: &str, path: &str) -> Call {
    call("keyring_file_add_key", json!({ "name": name, "path": path }))
}

fn keyed(key: &str) -> Call {
    call("nvmf_subsystem_add_host", json!({ "nqn": "a", "host": "h", "dhchap_key": key }))
}

#[test]
fn keys_change_while_hosts_stay() {
    let attach = |key: &str| {
        call(
            "bdev_nvme_attach_controller",
            json!({ "name": "N", "trtype": "TCP", "traddr": "192.0.2.1", "trsvcid": "4420", "dhchap_key": key }),
        )
    };
    let before = contents(&[key("k0", "/0"), attach("k0"), subsystem("a"), keyed("k0")]);
    let calls = |wanted: &[Call]| {
        let steps = before.plan(&contents(wanted));
        let text = |step: &Step| {
            let params = step.call.params.as_ref().unwrap();
            let named = ["path", "dhchap_key"].iter().find_map(|name| params[*name].as_str());
            format!("{} {}", step.call.method, named.unwrap_or_default())
        };
        steps.iter().map(text).collect::<Vec<_>>()
    };
    // Another key: the new one first, the old one last.
    let wanted = [key("k1", "/1"), attach("k1"), subsystem("a"), keyed(":k1")];
    let expected = [
        "keyring_file_add_key /1",
        "bdev_nvme_set_keys k1",
        "nvmf_subsystem_set_keys :k1",
        "keyring_file_remove_key ",
    ];
    assert_eq!(calls(&wanted), expected);
    // The same name with another file: those that have it get it again.
    let wanted = [key("k0", "/1"), attach("k0"), subsystem("a"), keyed("k0")];
    let expected = [
        "keyring_file_remove_key ",
        "keyring_file_add_key /1",
        "bdev_nvme_set_keys k0",
        "nvmf_subsystem_set_keys k0",
    ];
    assert_eq!(calls(&wanted), expected);
    // How long an old key holds as well is no difference.
    let mut wanted = [key("k0", "/0"), attach("k0"), subsystem("a"), keyed("k0")];
    wanted[3].params.as_mut().unwrap()["previous_until"] = json!(1);
    assert!(calls(&wanted).is_empty());
    // No call gives a host another pre-shared key.
    let psk = |path: &str| {
        let host = call("nvmf_subsystem_add_host", json!({ "nqn": "a", "host": "h", "psk": "p" }));
        [key("p", path), subsystem("a"), host]
    };
    assert_eq!(
        plan(&psk("/0"), &psk("/1")),
        [
            "nvmf_subsystem_remove_host a",
            "keyring_file_remove_key p",
            "keyring_file_add_key p",
            "nvmf_subsystem_add_host a",
        ]
    );
    // Everything goes, the key last.
    let cleared = calls(&[]);
    assert_eq!(cleared.last().unwrap(), "keyring_file_remove_key ");
    assert_eq!(cleared.len(), 4);
}

#[test]
fn a_target_node_goes_before_what_it_stands_on_and_secrets_are_not_shown() {
    let portals = |port: &str| {
        let portals = json!([{ "host": "127.0.0.1", "port": port }]);
        call("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals }))
    };
    let group = |secret: &str| {
        let secrets = json!([{ "user": "u", "secret": secret }]);
        call("iscsi_create_auth_group", json!({ "tag": 1, "secrets": secrets }))
    };
    let node = call(
        "iscsi_create_target_node",
        json!({
            "name": "iqn.a", "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }],
            "luns": [{ "bdev_name": "m0", "lun_id": 0 }],
        }),
    );
    let initiators = json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] });
    let initiators = call("iscsi_create_initiator_group", initiators);
    let all = |portals: Call, device: Call, group: Call| {
        vec![device, portals, initiators.clone(), node.clone(), group]
    };
    let is = all(portals("1"), malloc("m0", 64), group("first"));
    assert_eq!(
        plan(&is, &all(portals("2"), malloc("m0", 64), group("first"))),
        [
            "iscsi_delete_target_node iqn.a",
            "iscsi_delete_portal_group ",
            "iscsi_create_portal_group ",
            "iscsi_create_target_node iqn.a",
        ]
    );
    assert_eq!(
        plan(&is, &all(portals("1"), malloc("m0", 128), group("first"))),
        [
            "iscsi_delete_target_node iqn.a",
            "bdev_malloc_delete m0",
            "bdev_malloc_create m0",
            "iscsi_create_target_node iqn.a",
        ]
    );
    // How initiators authenticate changes while they are connected.
    let mut required = is.clone();
    if let Some(Value::Object(params)) = &mut required[3].params {
        params.insert("require_chap".to_owned(), true.into());
    }
    assert_eq!(plan(&is, &required), ["iscsi_target_node_set_auth iqn.a"]);
    let other = contents(&all(portals("1"), malloc("m0", 64), group("second")));
    let is = contents(&is);
    let text: Vec<String> = is.differences(&other).iter().map(ToString::to_string).collect();
    assert_eq!(text.len(), 1);
    assert!(text[0].starts_with("~ auth-group 1 secrets: "), "{text:?}");
    assert!(!text[0].contains("first") && !text[0].contains("second"), "{text:?}");
}
