//! The spellings of `rpc.py`, old and new, and the requests that they become.

use serde_json::json;

use super::*;

fn parse_line(line: &str) -> Result<Request, UsageError> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    parse(&words[0], &words[1..])
}

fn params(line: &str) -> Value {
    Value::Object(parse_line(line).unwrap().params)
}

fn complaint(line: &str) -> String {
    parse_line(line).unwrap_err().to_string()
}

/// The commands of the paper on application device queues, as its table prints them.
#[test]
fn the_papers_commands() {
    assert_eq!(
        params("nvmf_set_config -r 10000 -s transport"),
        json!({"acceptor_poll_rate": 10000})
    );
    assert_eq!(
        params("bdev_nvme_set_options -n 4 -t 0 -a none -p 100000"),
        json!({
            "retry_count": 4, "timeout_us": 0, "action_on_timeout": "none",
            "nvme_adminq_poll_period_us": 100_000
        })
    );
    assert_eq!(
        params("sock_impl_set_options --enable-placement_id -i posix --enable-zerocopy-send"),
        json!({"impl_name": "posix", "enable_placement_id": true, "enable_zerocopy_send": true})
    );
    assert_eq!(params("framework_start_init"), json!({}));
    assert_eq!(
        params(
            "nvmf_create_transport -t tcp -q 128 -m 64 -c 4096 -i 131072 -u 131072 -a 128 -n 4096 \
             -b 32 -y 1"
        ),
        json!({
            "trtype": "tcp", "max_queue_depth": 128, "max_io_qpairs_per_ctrlr": 64,
            "in_capsule_data_size": 4096, "max_io_size": 131_072, "io_unit_size": 131_072,
            "max_aq_depth": 128, "num_shared_buffers": 4096, "buf_cache_size": 32,
            "sock_priority": 1
        })
    );
    assert_eq!(
        params("nvmf_create_subsystem nqn.2021-01.io.spdk:NVMe0 -s SPDK00000000000001 -a"),
        json!({
            "nqn": "nqn.2021-01.io.spdk:NVMe0", "serial_number": "SPDK00000000000001",
            "allow_any_host": true
        })
    );
    assert_eq!(
        params("nvmf_subsystem_allow_any_host nqn.2021-01.io.spdk:NVMe0"),
        json!({"nqn": "nqn.2021-01.io.spdk:NVMe0", "allow_any_host": true})
    );
    assert_eq!(
        params("nvmf_subsystem_add_listener -t tcp -a 127.0.0.1 -s 7777 nqn.2021-01.io.spdk:NVMe0"),
        json!({
            "nqn": "nqn.2021-01.io.spdk:NVMe0",
            "listen_address": {"trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "7777"}
        })
    );
    assert_eq!(
        params("nvmf_subsystem_add_ns nqn.2021-01.io.spdk:NVMe0 Nvme0n1"),
        json!({"nqn": "nqn.2021-01.io.spdk:NVMe0", "namespace": {"bdev_name": "Nvme0n1"}})
    );
    assert_eq!(
        params("bdev_nvme_attach_controller -b Nvme0 -t PCIe -a 0000:5e:00.0"),
        json!({"name": "Nvme0", "trtype": "PCIe", "traddr": "0000:5e:00.0"})
    );
}

#[test]
fn old_and_new_spellings_agree() {
    for (old, new) in [
        (
            "nvmf_subsystem_allow_any_host nqn.a -d",
            "nvmf_subsystem_allow_any_host nqn.a --no-allow-any-host",
        ),
        (
            "nvmf_subsystem_allow_any_host nqn.a -e",
            "nvmf_subsystem_allow_any_host nqn.a --allow-any-host",
        ),
        ("bdev_enable_histogram m -d", "bdev_enable_histogram --no-histogram m"),
        ("log_enable_timestamps -e", "log_enable_timestamps --timestamps"),
        ("get_bdevs -b m", "bdev_get_bdevs --name m"),
        ("nvmf_get_stats --tgt_name t", "nvmf_get_stats --tgt-name t"),
        (
            "sock_impl_set_options -i posix --enable-quickack",
            "sock_impl_set_options -i posix --quickack",
        ),
        ("delete_nvmf_subsystem nqn.a", "nvmf_delete_subsystem nqn.a"),
    ] {
        assert_eq!(parse_line(old), parse_line(new), "{old}");
    }
    assert_eq!(
        params("sock_impl_set_options -i posix --enable-placement-id 2"),
        json!({"impl_name": "posix", "enable_placement_id": 2})
    );
}

#[test]
fn sizes_become_counts_of_blocks() {
    assert_eq!(
        params("bdev_malloc_create -b m 64 512"),
        json!({"name": "m", "block_size": 512, "num_blocks": 131_072})
    );
    assert_eq!(params("bdev_malloc_create 0.5 4096")["num_blocks"], 128);
    assert_eq!(params("bdev_null_create n 1048576 4096")["num_blocks"], 268_435_456);
    assert!(complaint("bdev_malloc_create 64 0").contains("no count"));
    assert!(complaint("bdev_malloc_create 1e3 512").contains("not a size in MiB"));
    assert!(complaint("bdev_malloc_create 99999999999999999999 512").contains("MiB"));
}

#[test]
fn options_follow_argparse() {
    let listener = |line: &str| params(&format!("nvmf_subsystem_add_listener {line}"));
    let expected = listener("nqn.a -t tcp -a ::1 -s 4420");
    assert_eq!(listener("-ttcp -a::1 --trsvcid=4420 nqn.a"), expected);
    assert_eq!(listener("--trty tcp --trad ::1 nqn.a --trs 4420"), expected);
    assert_eq!(listener("-t=tcp -a ::1 -s 4420 -- nqn.a"), expected);
    assert_eq!(params("nvmf_set_crdt -t1 10 -t25"), json!({"crdt1": 10, "crdt2": 5}));
    assert_eq!(params("bdev_nvme_set_options -r -1"), json!({"bdev_retry_count": -1}));
    assert!(complaint("nvmf_subsystem_add_listener --tr tcp").contains("may mean any of"));
    assert!(complaint("nvmf_get_stats --nothing").contains("no option --nothing"));
    assert!(complaint("nvmf_get_stats more").contains("too many"));
    assert!(complaint("nvmf_subsystem_add_ns nqn.a").contains("bdev_name is missing"));
    assert!(
        complaint("bdev_delay_create -b a -d b -r 1 -t 1 -w 1")
            .contains("write-latency is missing")
    );
    assert!(complaint("nvmf_subsystem_remove_ns nqn.a one").contains("not a whole number"));
    assert!(complaint("nvmf_create_subsystem nqn.a -s").contains("value is missing"));
    assert!(complaint("nvmf_create_subsystem nqn.a --allow-any-host=1").contains("no value"));
}

#[test]
fn lists_sets_and_objects() {
    assert_eq!(params("bdev_get_iostat --names a,b"), json!({"names": ["a", "b"]}));
    assert_eq!(params("bdev_get_histogram_borders h --borders 10,20")["borders"], json!([10, 20]));
    assert_eq!(
        params("nvmf_set_config -p identify_ctrlr,nvme_mi"),
        json!({"admin_cmd_passthru": {"identify_ctrlr": true, "nvme_mi": true}})
    );
    let all = params("nvmf_set_config -p all");
    assert_eq!(all["admin_cmd_passthru"].as_object().unwrap().len(), 9);
    assert_eq!(
        params("nvmf_discovery_add_referral -t tcp -a ::1 -s 8009"),
        json!({"address": {"trtype": "tcp", "traddr": "::1", "trsvcid": "8009"}})
    );
}

#[test]
fn other_methods_take_json() {
    let request = parse_line(r#"raceline_thing a=1 b=text {"c":[true]}"#).unwrap();
    assert_eq!(Value::Object(request.params), json!({"a": 1, "b": "text", "c": [true]}));
    assert!(complaint("raceline_thing word").contains("neither"));
}

#[test]
fn parameters_that_no_client_spells_go_by_their_own_name() {
    assert_eq!(
        params("nvmf_create_target -n second --max-subsystems 8"),
        json!({"name": "second", "max_subsystems": 8})
    );
    assert_eq!(params("nvmf_set_crdt --crdt3 7"), json!({"crdt3": 7}));
}

#[test]
fn help_names_what_a_method_takes() {
    let Err(UsageError::Help(text)) = parse_line("nvmf_subsystem_add_listener -h") else {
        unreachable!()
    };
    for word in ["NQN", "-t, --trtype", "required", "optimized, non_optimized", "-s, --trsvcid"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

proptest::proptest! {
    /// Any command line gives a request or an error.
    #[test]
    fn no_words_panic(
        method in 0..schema().methods().len(),
        words in proptest::collection::vec("(-{0,2}[a-z_-]{0,6}=?)?[ -~é]{0,8}", 0..6),
    ) {
        let _ = parse(schema().methods()[method].name, &words);
    }
}

#[test]
fn groups_and_target_nodes_of_iscsi_are_written_with_colons() {
    let words = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words[0], &words[1..])
    };
    let params = |line: &[&str]| Value::Object(words(line).unwrap().params);
    assert_eq!(
        params(&["iscsi_create_portal_group", "1", "192.0.2.1:3260 [2001:db8::1]:3260", "-w"]),
        json!({
            "tag": 1, "wait": true, "portals": [
                { "host": "192.0.2.1", "port": "3260" }, { "host": "[2001:db8::1]", "port": "3260" },
            ],
        })
    );
    assert_eq!(
        params(&["iscsi_create_initiator_group", "2", "ANY", "192.0.2.0/24 ANY"]),
        json!({ "tag": 2, "initiators": ["ANY"], "netmasks": ["192.0.2.0/24", "ANY"] })
    );
    assert_eq!(
        params(&[
            "iscsi_create_target_node",
            "disk1",
            "Disk 1",
            "Malloc0:0 Malloc1:5",
            "1:2",
            "64",
            "-d"
        ]),
        json!({
            "name": "disk1", "alias_name": "Disk 1", "queue_depth": 64, "disable_chap": true,
            "luns": [{ "bdev_name": "Malloc0", "lun_id": 0 }, { "bdev_name": "Malloc1", "lun_id": 5 }],
            "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 2 }],
        })
    );
    assert_eq!(
        params(&[
            "iscsi_create_auth_group",
            "1",
            "-c",
            "user:u secret:s muser:m msecret:t,user:v secret:w"
        ]),
        json!({ "tag": 1, "secrets": [
            { "user": "u", "secret": "s", "muser": "m", "msecret": "t" }, { "user": "v", "secret": "w" },
        ] })
    );
    let wrong = words(&["iscsi_target_node_add_pg_ig_maps", "disk1", "1"]).unwrap_err().to_string();
    assert!(wrong.contains("'1' is not pg_tag:ig_tag"), "{wrong}");
    let wrong =
        words(&["iscsi_create_auth_group", "1", "-c", "user:u,hidden"]).unwrap_err().to_string();
    assert!(wrong.contains("user:USER secret:SECRET") && !wrong.contains("hidden"), "{wrong}");
}
