//! Tests of scripts: ones as people write them, and ones that are wrong.

use serde_json::json;

use super::*;
use crate::manage::iscsi::import::plan::Taken;
use crate::manage::steps::Plan;

fn plan_of(text: &str) -> Plan {
    Plan::new(&read(text).unwrap().saved, Taken::default()).unwrap()
}

fn calls<'a>(plan: &'a Plan, method: &str) -> Vec<&'a serde_json::Value> {
    plan.steps.iter().filter(|step| step.method == method).map(|step| &step.params).collect()
}

/// What a JBOF serves: disks without authentication, which everybody may write, behind a portal with offload.
fn jbof(count: usize) -> String {
    let mut text = "#!/bin/bash\nset -e\nmodprobe cxgbit\n".to_owned();
    for disk in 0..count {
        let iqn = format!("iqn.2003-01.org.linux-iscsi.jbof:t{disk}");
        text += &format!(
            "targetcli /backstores/block create disk{disk} /dev/nvme0n{n}\n\
             targetcli /iscsi create {iqn}\n\
             targetcli /iscsi/{iqn}/tpg1/luns create /backstores/block/disk{disk}\n\
             targetcli /iscsi/{iqn}/tpg1 set attribute authentication=0 demo_mode_write_protect=0 \\\n\
             \t generate_node_acls=1 cache_dynamic_acls=1\n\
             targetcli /iscsi/{iqn}/tpg1/portals create 127.0.0.1 3260 > /dev/null\n\
             targetcli /iscsi/{iqn}/tpg1/portals/127.0.0.1:3260 enable_offload boolean=True\n",
            n = disk + 1,
        );
    }
    text + "targetcli saveconfig\n"
}

#[test]
fn a_script_of_a_jbof_becomes_target_nodes() {
    let script = read(&jbof(20)).unwrap();
    let remarked = |words: &str| script.remarks.iter().any(|remark| remark.contains(words));
    assert!(remarked("line 3 is no command of targetcli: modprobe"), "{:?}", script.remarks);
    assert!(remarked("0.0.0.0:3260 that comes with a target is left out"));
    let plan = plan_of(&jbof(20));
    let disks = calls(&plan, "bdev_uring_create");
    assert_eq!(disks.len(), 20);
    assert_eq!(
        (&disks[19]["name"], &disks[19]["filename"]),
        (&json!("disk19"), &json!("/dev/nvme0n20"))
    );
    let nodes = calls(&plan, "iscsi_create_target_node");
    assert_eq!(nodes.len(), 20);
    assert_eq!(nodes[3]["disable_chap"], true);
    assert_eq!(nodes[3]["luns"], json!([{ "lun_id": 0, "bdev_name": "disk3" }]));
    let portals = calls(&plan, "iscsi_create_portal_group");
    assert_eq!(portals.len(), 1);
    assert_eq!(portals[0]["portals"], json!([{ "host": "127.0.0.1", "port": "3260" }]));
    let anyone = calls(&plan, "iscsi_create_initiator_group");
    assert_eq!(anyone[0]["initiators"], json!(["ANY"]));
    assert!(plan.remarks.iter().any(|remark| remark.contains("offload")), "{:?}", plan.remarks);
}

#[test]
fn commands_of_targetclis_own_shell_have_places() {
    let text = "\
        /iscsi create iqn.2026-01.org.example:old\n\
        clearconfig confirm=True\n\
        set global auto_add_default_portal=false\n\
        cd /backstores/ramdisk\n\
        create name=fast size=64M wwn=5d8f7a3e-0c36-4a55-9d2e-2f3f6d1f9a01\n\
        /backstores/fileio create slow /srv/slow.img 1G write_back=false\n\
        cd /iscsi\n\
        create iqn.2026-01.org.example:Disk\n\
        cd iqn.2026-01.org.example:disk/tpg1\n\
        luns/ create /backstores/ramdisk/fast lun=3\n\
        acls/ create iqn.2026-01.org.example:client\n\
        luns/ create /backstores/fileio/slow\n\
        portals/ create ip_port=3261 ip_address=127.0.0.1\n\
        acls/iqn.2026-01.org.example:client set auth userid=me password='with $ and #'\n\
        exit\n";
    let plan = plan_of(text);
    let memory = calls(&plan, "bdev_malloc_create");
    assert_eq!((&memory[0]["name"], &memory[0]["num_blocks"]), (&json!("fast"), &json!(131_072)));
    let node = calls(&plan, "iscsi_create_target_node")[0];
    let luns = json!([{ "lun_id": 3, "bdev_name": "fast" }, { "lun_id": 0, "bdev_name": "slow" }]);
    assert_eq!((&node["luns"], &node["require_chap"]), (&luns, &json!(true)));
    assert_eq!(node["name"], "iqn.2026-01.org.example:disk");
    let client = calls(&plan, "iscsi_create_initiator_group");
    assert_eq!(client[0]["initiators"], json!(["iqn.2026-01.org.example:client"]));
    let secrets = &calls(&plan, "iscsi_create_auth_group")[0]["secrets"];
    assert_eq!(*secrets, json!([{ "user": "me", "secret": "with $ and #" }]));
    let portals = calls(&plan, "iscsi_create_portal_group");
    assert_eq!(portals[0]["portals"], json!([{ "host": "127.0.0.1", "port": "3261" }]));
}

#[test]
fn a_here_document_is_a_script() {
    let text = "\
        targetcli <<'END'\n\
        /backstores/ramdisk create r 1MB\n\
        /iscsi create iqn.2026-01.org.example:r\n\
        /iscsi/iqn.2026-01.org.example:r/tpg1/luns create /backstores/ramdisk/r\n\
        END\n\
        systemctl enable target\n";
    let script = read(text).unwrap();
    assert_eq!(script.remarks, ["line 6 is no command of targetcli: systemctl ..."]);
    assert_eq!(script.saved.targets.len(), 1);
    assert_eq!(script.saved.storage_objects[0].size, Some(1 << 20));
}

#[test]
fn who_could_only_read_or_saw_less_is_not_let_in() {
    let text = "\
        /backstores/ramdisk create a 1M\n\
        /iscsi create iqn.2026-01.org.example:r\n\
        /iscsi/iqn.2026-01.org.example:r/tpg1/luns create /backstores/ramdisk/a\n\
        /iscsi/iqn.2026-01.org.example:r/tpg1/acls create iqn.2026-01.org.example:reader add_mapped_luns=false\n\
        /iscsi/iqn.2026-01.org.example:r/tpg1/acls/iqn.2026-01.org.example:reader create 0 0 true\n";
    let plan = plan_of(text);
    let groups = calls(&plan, "iscsi_create_initiator_group");
    assert_eq!(groups[0]["initiators"], json!(["!ANY"]));
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_without_secrets() {
    let target = "/iscsi create iqn.2026-01.org.example:r\n";
    let group = "/iscsi/iqn.2026-01.org.example:r/tpg1";
    let cases: &[(&str, &str)] = &[
        ("/backstores/tape create t", "line 1: there is no backstore of plugin tape"),
        ("/backstores/ramdisk create r 1X", "line 1: `1X` is no size, as 512M or 10G are"),
        ("/backstores/ramdisk create r 99999999999999999999T", "line 1"),
        ("/backstores/ramdisk create size=1M", "line 1: `name` is missing"),
        (
            "/backstores/block create a /dev/a true wwn x y",
            "line 1: there are 2 arguments too many",
        ),
        ("/backstores/block create a path=/dev/a", "line 1: `path` is no argument of this command"),
        ("/iscsi create", "line 1: the name of the target is missing"),
        (
            "/iscsi/iqn.x/tpg1/luns create /backstores/block/a",
            "line 1: no command before this one has made target iqn.x",
        ),
        ("/backstores/block delete a", "line 1: `delete` in /backstores/block is no command"),
        ("ls \"", "line 1: a quotation mark is not closed"),
        ("# nothing\n\nfrobnicate", "line 3: `frobnicate` in / is no command of targetcli"),
        ("targetcli <<END\nls", "the file ends before the line `END`"),
        (
            "for i in 1 2; do\ntargetcli /iscsi create iqn.x:$i\ndone",
            "line 1: what `for` does is up to the shell",
        ),
        ("targetcli /iscsi create iqn.x:$I", "line 1: a value is up to the shell"),
        ("targetcli ls && reboot", "line 1: there are several commands on this line"),
        ("true && targetcli ls\ntargetcli ls", "line 1: what `true` does is up to the shell"),
    ];
    for (text, expected) in cases {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let of_group: &[(&str, &str)] = &[
        ("set auth hunter2hunter2", "line 2: a value has no name"),
        ("set auth word=hunter2hunter2", "line 2: `word` is nothing that auth has"),
        ("set secret password=hunter2hunter2", "line 2: only `set auth`"),
        ("luns create /backstores/block/a", "line 2: no command before"),
        ("luns create lun=x storage_object=a", "line 2"),
        ("portals create 127.0.0.1 port", "line 2: `ip_port` has to be a number"),
        ("portals delete 127.0.0.1 1", "line 2: there is no portal 127.0.0.1:1"),
        (
            "acls/iqn.x set auth password=hunter2hunter2",
            "line 2: no command before this one has made an ACL",
        ),
        (
            "portals/0.0.0.0:3260 enable_iser boolean=maybe",
            "line 2: `boolean` has to be true or false",
        ),
    ];
    for (command, expected) in of_group {
        let path =
            if command.starts_with("set") { format!("{group} ") } else { format!("{group}/") };
        let error = read(&format!("{target}{path}{command}")).unwrap_err();
        assert!(error.starts_with(expected), "{command}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
