//! Tests of what files mean: a whole one as targetcli saves it, and ones that are wrong.

use super::*;
use crate::manage::iscsi::import::saveconfig;

const FILE: &str = include_str!("../../../../../tests/data/saveconfig.json");
const OPEN: &str = "iqn.2003-01.org.linux-iscsi.jbof:open";
const CLOSED: &str = "iqn.2003-01.org.linux-iscsi.jbof:closed";

fn file() -> Value {
    serde_json::from_str(&FILE.replace("@DIR@", "/srv").replace("@PORT@", "3260")).unwrap()
}

fn plan_of(file: &Value, taken: Taken) -> Result<Plan, String> {
    Plan::new(&saveconfig::read(&file.to_string())?, taken)
}

/// The parameters of the only call of a method that `is_meant`.
fn call<'a>(plan: &'a Plan, method: &str, is_meant: impl Fn(&Value) -> bool) -> &'a Value {
    let mut found =
        plan.steps.iter().filter(|step| step.method == method && is_meant(&step.params));
    let first = found.next().unwrap_or_else(|| panic!("no such {method}"));
    assert!(found.next().is_none(), "two of {method}");
    &first.params
}

fn remarked(plan: &Plan, words: &[&str]) -> bool {
    plan.remarks.iter().any(|remark| words.iter().all(|word| remark.contains(word)))
}

#[test]
fn a_file_becomes_calls_and_remarks() {
    let plan = plan_of(&file(), Taken::default()).unwrap();
    let methods: Vec<&str> = plan.steps.iter().map(|step| step.method).collect();
    assert_eq!(
        methods,
        [
            "bdev_uring_create",
            "bdev_malloc_create",
            "iscsi_create_portal_group",
            "iscsi_create_initiator_group",
            "iscsi_create_target_node",
            "iscsi_create_auth_group",
            "iscsi_create_initiator_group",
            "iscsi_create_target_node",
            "iscsi_start_portal_group",
            "iscsi_create_auth_group",
            "iscsi_set_discovery_auth",
        ]
    );
    let disk = call(&plan, "bdev_uring_create", |_| true);
    assert_eq!((&disk["name"], &disk["filename"]), (&json!("disk"), &json!("/srv/disk.img")));
    assert_eq!(disk["uuid"], "5d8f7a3e-0c36-4a55-9d2e-2f3f6d1f9a01");
    assert_eq!(call(&plan, "bdev_malloc_create", |_| true)["num_blocks"], 4096);
    let portals = call(&plan, "iscsi_create_portal_group", |_| true);
    assert_eq!(portals["portals"], json!([{ "host": "127.0.0.1", "port": "3260" }]));
    assert_eq!(portals["wait"], true);

    let open = call(&plan, "iscsi_create_target_node", |params| params["name"] == OPEN);
    assert_eq!((&open["disable_chap"], &open["queue_depth"]), (&json!(true), &json!(128)));
    assert_eq!(open["header_digest"], false, "CRC32C,None leaves it to the initiator");
    assert_eq!(open["pg_ig_maps"], json!([{ "pg_tag": 1, "ig_tag": 1 }]));
    let anyone = call(&plan, "iscsi_create_initiator_group", |params| params["tag"] == 1);
    assert_eq!(anyone["initiators"], json!(["ANY"]));

    let closed = call(&plan, "iscsi_create_target_node", |params| params["name"] == CLOSED);
    assert_eq!((&closed["require_chap"], &closed["mutual_chap"]), (&json!(true), &json!(false)));
    assert_eq!((&closed["chap_group"], &closed["header_digest"]), (&json!(1), &json!(true)));
    let luns = json!([{ "lun_id": 0, "bdev_name": "fast" }, { "lun_id": 3, "bdev_name": "disk" }]);
    assert_eq!(closed["luns"], luns);
    let some = call(&plan, "iscsi_create_initiator_group", |params| params["tag"] == 2);
    let names = json!(["!iqn.2026-01.org.example:reader", "iqn.2026-01.org.example:full"]);
    assert_eq!(some["initiators"], names);
    let secrets = call(&plan, "iscsi_create_auth_group", |params| params["tag"] == 1);
    assert_eq!(
        secrets["secrets"][0],
        json!({ "user": "full", "secret": "secret-of-the-full-one" })
    );
    assert_eq!(call(&plan, "iscsi_set_discovery_auth", |_| true)["chap_group"], 2);

    for words in [
        &["/backstores/pscsi/tape", "no counterpart"][..],
        &["LUN 4", "left out"],
        &["reader", "not let in", "may not write"],
        &["vhost", "left out"],
        &["offload", "127.0.0.1:3260"],
        &["write_back"],
        &["emulate_caw", "max_unmap_lba_count"],
        &["default_erl", "login_timeout"],
        &["MaxBurstLength", "iscsi_set_options"],
        &["any of its CHAP users"],
    ] {
        assert!(remarked(&plan, words), "{words:?} is in none of {:#?}", plan.remarks);
    }
    assert!(!remarked(&plan, &["cache_dynamic_acls"]));
}

#[test]
fn secrets_are_in_no_text() {
    let plan = plan_of(&file(), Taken::default()).unwrap();
    let shown = plan.steps.iter().map(|step| &step.what).chain(&plan.remarks);
    for text in shown {
        assert!(!text.contains("secret-of"), "{text}");
    }
    // Nor in errors, wherever a secret stands.
    for place in
        ["/targets/1/tpgs/0/node_acls/0/chap_password", "/targets/1/tpgs/0/enable", "/targets"]
    {
        for secret in [json!("hush-hush"), json!(40_404_040), json!(["hush-hush"])] {
            let mut wrong = file();
            *wrong.pointer_mut(place).unwrap() = secret.clone();
            if let Err(error) = plan_of(&wrong, Taken::default()) {
                assert!(!error.contains("hush") && !error.contains("404040"), "{error}");
            } else {
                assert!(secret.is_string() && place.ends_with("password"), "{place} {secret}");
            }
        }
    }
}

#[test]
fn names_and_tags_that_there_are_stay_free() {
    let taken = Taken {
        devices: vec!["disk".into(), "fileio-disk".into()],
        portal_groups: vec![1, 2],
        initiator_groups: vec![2],
        auth_groups: vec![1],
    };
    let plan = plan_of(&file(), taken).unwrap();
    assert_eq!(call(&plan, "bdev_uring_create", |_| true)["name"], "fileio-disk-1");
    assert_eq!(call(&plan, "iscsi_create_portal_group", |_| true)["tag"], 3);
    let open = call(&plan, "iscsi_create_target_node", |params| params["name"] == OPEN);
    assert_eq!(open["pg_ig_maps"], json!([{ "pg_tag": 3, "ig_tag": 1 }]));
    assert_eq!(open["luns"], json!([{ "lun_id": 0, "bdev_name": "fileio-disk-1" }]));
    let closed = call(&plan, "iscsi_create_target_node", |params| params["name"] == CLOSED);
    assert_eq!((&closed["pg_ig_maps"][0]["ig_tag"], &closed["chap_group"]), (&json!(3), &json!(2)));
}

#[test]
fn nobody_gets_more_than_the_file_gives() {
    let initiators = |change: &dyn Fn(&mut Value)| {
        let mut file = file();
        change(&mut file["targets"][0]["tpgs"][0]);
        let plan = plan_of(&file, Taken::default()).unwrap();
        let node = call(&plan, "iscsi_create_target_node", |params| params["name"] == OPEN);
        let tag = node["pg_ig_maps"][0]["ig_tag"].clone();
        if tag.is_null() {
            return json!("no map");
        }
        call(&plan, "iscsi_create_initiator_group", |params| params["tag"] == tag)["initiators"]
            .clone()
    };
    let acl =
        |luns: Value| json!([{ "node_wwn": "iqn.2026-01.org.example:i", "mapped_luns": luns }]);
    let full = acl(json!([{ "index": 0, "tpg_lun": 0, "write_protect": false }]));
    assert_eq!(initiators(&|_| {}), json!(["ANY"]));
    // Dynamic ACLs that may only read, which is what LIO has unless it is told otherwise.
    assert_eq!(
        initiators(&|tpg| tpg["attributes"]["demo_mode_write_protect"] = json!(1)),
        json!(["!ANY"])
    );
    assert_eq!(
        initiators(
            &|tpg| tpg["attributes"] = json!({ "generate_node_acls": 1, "authentication": 0 })
        ),
        json!(["!ANY"])
    );
    // Without dynamic ACLs.
    assert_eq!(
        initiators(&|tpg| tpg["attributes"] = json!({ "authentication": 0 })),
        json!(["!ANY"])
    );
    assert_eq!(
        initiators(&|tpg| {
            tpg["attributes"] = json!({ "authentication": 0 });
            tpg["node_acls"] = full.clone();
        }),
        json!(["iqn.2026-01.org.example:i"])
    );
    for less in [
        json!([]),
        json!([{ "index": 0, "tpg_lun": 0, "write_protect": true }]),
        json!([{ "index": 0, "tpg_lun": 0, "write_protect": 1 }]),
        json!([{ "index": 1, "tpg_lun": 0, "write_protect": false }]),
    ] {
        let names = initiators(&|tpg| tpg["node_acls"] = acl(less.clone()));
        assert_eq!(names, json!(["!iqn.2026-01.org.example:i", "ANY"]), "{less}");
    }
    assert_eq!(initiators(&|tpg| tpg["enable"] = json!(false)), json!("no map"));
    // CHAP is on unless it is off.
    let mut asks = file();
    asks["targets"][0]["tpgs"][0]["attributes"] = json!({ "generate_node_acls": 1 });
    let plan = plan_of(&asks, Taken::default()).unwrap();
    let node = call(&plan, "iscsi_create_target_node", |params| params["name"] == OPEN);
    assert_eq!(node["require_chap"], true);
    assert!(remarked(&plan, &["no secret is set", "nobody can log in"]));
}

#[test]
fn portals_are_shared_as_target_nodes_use_them() {
    let mut file = file();
    let portal = |address: &str| json!({ "ip_address": address, "port": 3260 });
    let both = json!([portal("192.0.2.1"), portal("[2001:db8::1]")]);
    file["targets"][0]["tpgs"][0]["portals"] = both;
    file["targets"][1]["tpgs"][0]["portals"] = json!([portal("192.0.2.1")]);
    let plan = plan_of(&file, Taken::default()).unwrap();
    let groups: Vec<_> =
        plan.steps.iter().filter(|it| it.method == "iscsi_create_portal_group").collect();
    assert_eq!(groups.len(), 2);
    let maps = |name: &str| {
        let node = call(&plan, "iscsi_create_target_node", |params| params["name"] == name);
        node["pg_ig_maps"].as_array().unwrap().len()
    };
    assert_eq!((maps(OPEN), maps(CLOSED)), (2, 1));
}

#[test]
fn many_luns_are_added_after_the_node() {
    let mut file = file();
    let objects: Vec<Value> = (0..70)
        .map(|n| json!({ "name": format!("r{n}"), "plugin": "ramdisk", "size": 1 << 20 }))
        .collect();
    let luns: Vec<Value> = (0..70)
        .map(|n| json!({ "index": n, "storage_object": format!("/backstores/ramdisk/r{n}") }))
        .collect();
    file["storage_objects"] = objects.into();
    file["targets"] = json!([file["targets"][0]]);
    file["targets"][0]["tpgs"][0]["luns"] = luns.into();
    let plan = plan_of(&file, Taken::default()).unwrap();
    let node = call(&plan, "iscsi_create_target_node", |_| true);
    assert_eq!(node["luns"].as_array().unwrap().len(), 64);
    let last = call(&plan, "iscsi_target_node_add_lun", |params| params["lun_id"] == 69);
    assert_eq!(last, &json!({ "name": OPEN, "lun_id": 69, "bdev_name": "r69" }));
}

#[test]
fn wrong_files_say_where_they_are_wrong() {
    for (place, value, words) in [
        ("/storage_objects/0/dev", json!("disk.img"), &["/backstores/fileio/disk", "absolute"][..]),
        ("/storage_objects/1/size", json!(0), &["/backstores/ramdisk/fast", "size"]),
        ("/storage_objects/1/size", json!(-5), &["line 1", "u64"]),
        ("/storage_objects/1/name", json!(""), &["no name"]),
        ("/storage_objects/0/plugin", json!(["x"]), &["line 1", "string"]),
        ("/targets/0/tpgs/0/portals/0/ip_address", json!("example.org"), &[OPEN, "example.org"]),
        ("/targets/0/tpgs/0/portals/0/port", json!(70_000), &[OPEN, "70000"]),
        ("/targets/0/tpgs/0/portals/0/port", json!(0), &[OPEN, "65535"]),
        ("/targets/0/tpgs/0/luns/0/storage_object", json!("/x"), &[OPEN, "LUN 0", "/x"]),
        ("/targets/1/tpgs/0/luns/1/index", json!(0), &[CLOSED, "LUN 0", "twice"]),
        (
            "/targets/1/tpgs/0/node_acls/0/chap_userid",
            json!(null),
            &[CLOSED, "Full", "only one of"],
        ),
        (
            "/targets/1/tpgs/0/node_acls/1/chap_userid",
            json!("full"),
            &[CLOSED, "full", "two different"],
        ),
        ("/fabric_modules/0/discovery_password", json!(5), &["discovery", "no text"]),
        ("/targets", json!({}), &["line 1", "sequence"]),
    ] {
        let mut wrong = file();
        *wrong.pointer_mut(place).unwrap() = value;
        let error = plan_of(&wrong, Taken::default()).err().unwrap_or_else(|| panic!("{place}"));
        assert!(words.iter().all(|word| error.contains(word)), "{place}: {error}");
    }
    let mut twice = file();
    twice["storage_objects"][1] = twice["storage_objects"][0].clone();
    assert!(plan_of(&twice, Taken::default()).err().unwrap().contains("twice"));
    for (text, words) in [
        ("", "ends too early"),
        ("{\"targets\": [", "ends too early"),
        ("[]", "is a list"),
        ("7", "this has to be"),
        ("nonsense", "not JSON"),
        (&"[".repeat(100_000), "is a list"),
        (&format!("{{\"targets\": {}", "[".repeat(100_000)), "line 1"),
        (&format!("{{\"other\": {}", "[".repeat(100_000)), "line 1"),
    ] {
        let error = saveconfig::read(text).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    // A file may say nothing at all.
    assert!(plan_of(&json!({}), Taken::default()).unwrap().steps.is_empty());
}
