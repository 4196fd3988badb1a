//! Texts that are configurations, and texts that are not.

use super::*;
use crate::absent::US;
use crate::method::Registry;
use crate::params::raw_params;
use crate::state::Call;

fn methods(text: &str) -> Vec<String> {
    let sections = parse(text.as_bytes()).unwrap();
    sections.into_iter().flat_map(|section| section.config).map(|call| call.method).collect()
}

fn error(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().to_string()
}

fn look_at(text: &str) -> Looked {
    let registry = Registry::new();
    let check = |call: &Call| {
        let raw = raw_params(call.params.as_ref()).unwrap();
        registry.check(&call.method, raw.as_deref()).map_err(|error| error.to_string())
    };
    let is_kept = |call: &Call| registry.has_no_effect(&call.method, call.params.as_ref());
    look(&parse(text.as_bytes()).unwrap(), US, check, is_kept)
}

#[test]
fn comments_and_batches_are_read() {
    let text = r#"
// A file with every kind of comment and call.
{ /* first */ "subsystems": [
  {"subsystem": "bdev", // devices
   "config": [{"method": "one", "params": {"url": "http://a/*b*/"}}, [{"method": "two"}, {"method": "three"}]]},
  {"subsystem": "scsi", "config": null /* nothing */}
]} // the end"#;
    assert_eq!(methods(text), ["one", "two", "three"]);
    let sections = parse(text.as_bytes()).unwrap();
    assert_eq!(sections[0].config[0].params.as_ref().unwrap()["url"], "http://a/*b*/");
}

#[test]
fn what_is_no_configuration_is_placed() {
    for (text, expected) in [
        ("{\"subsystems\": [\n /* a */ x]}", "line 2 column 10"),
        ("{\"subsystems\": [],}", "trailing comma at line 1"),
        ("{\"subsystems\": []} {}", "trailing characters at line 1 column 20"),
        ("{\"subsystems\": []} /* open", "begins at line 1 column 20 has no end"),
        ("{\"subsystems\": [] / }", "line 1"),
        ("{\"subsystems\": [{\"subsystem\": \"\u{1}\"}]}", "control character"),
        ("{}", "missing field `subsystems`"),
        ("{\"subsystems\": [{\"config\": []}]}", "missing field `subsystem`"),
        ("{\"subsystems\": [{\"subsystem\": \"x\", \"config\": [{}]}]}", "missing field `method`"),
        (
            "{\"subsystems\": [{\"subsystem\": \"x\", \"config\": [1]}]}",
            "expected a call or a list of calls",
        ),
        ("{\"subsystems\": [{\"subsystem\": \"x\", \"config\": [[[]]]}]}", "line 1"),
        (
            "{\"subsystems\": [{\"subsystem\": \"x\", \"config\": [{\"method\": \"m\",\n\"params\": {\"a\": 1, \"a\": 2}}]}]}",
            "duplicate field `a` at line 2",
        ),
        ("", "EOF"),
    ] {
        let found = error(text);
        assert!(found.contains(expected), "{text:?}: {found}");
    }
    assert!(parse(b"{\"subsystems\": [{\"subsystem\": \"\xff\"}]}").is_err());
    assert!(parse(b"{\"subsystems\": []} // \xff").is_ok(), "comments are not looked at");
}

#[test]
fn all_that_cannot_be_made_is_named_at_once() {
    let looked = look_at(
        r#"{"subsystems": [
        {"subsystem": "vfio_user_target", "config": [
            {"method": "vfu_tgt_set_base_path", "params": {"path": "/run"}},
            {"method": "vfu_virtio_create_blk_endpoint", "params": {"name": "e"}}]},
        {"subsystem": "bdev", "config": [
            {"method": "bdev_malloc_create", "params": {"num_blocks": 8}},
            {"method": "bdev_nul_create"},
            {"method": "construct_raid_bdev"}]}]}"#,
    );
    let refused = looked.refused.unwrap();
    for part in [
        "vfio_user_target config[1] vfu_virtio_create_blk_endpoint belongs to SPDK's vfio-user target (vfu_tgt)",
        "bdev config[0] bdev_malloc_create: Invalid parameters (-32602): missing field `block_size`",
        "bdev config[1] bdev_nul_create: Method not found (-32601): did you mean bdev_null_create?",
        "bdev config[2] construct_raid_bdev (now bdev_raid_create) belongs to SPDK's RAID devices",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(looked.kept.as_deref(), Some("vfio_user_target (vfu_tgt_set_base_path)"));
}

#[test]
fn a_long_list_of_refusals_is_cut_and_counted() {
    let calls = vec![r#"{"method": "fsdev_aio_create"}"#; 130].join(",");
    let text = format!(r#"{{"subsystems": [{{"subsystem": "fsdev", "config": [{calls}]}}]}}"#);
    let refused = look_at(&text).refused.unwrap();
    assert_eq!(refused.matches("fsdev_aio_create").count(), 100);
    assert!(refused.ends_with("; and 30 more"), "{refused}");
}

#[test]
fn what_has_no_effect_is_one_line() {
    let looked = look_at(
        r#"{"subsystems": [
        {"subsystem": "vmd", "config": [{"method": "vmd_enable", "params": {}}]},
        {"subsystem": "accel", "config": [
            {"method": "accel_set_options", "params": {"task_count": 8}},
            {"method": "ioat_scan_accel_module"}, {"method": "dsa_scan_accel_module"},
            {"method": "ioat_scan_accel_module"}]},
        {"subsystem": "scheduler", "config": [
            {"method": "framework_set_scheduler", "params": {"name": "static"}}]}]}"#,
    );
    assert!(looked.refused.is_none(), "{looked:?}");
    let kept = looked.kept.unwrap();
    assert_eq!(kept, "vmd (vmd_enable), accel (ioat_scan_accel_module, dsa_scan_accel_module)");
    let looked = look_at(
        r#"{"subsystems": [{"subsystem": "scheduler", "config": [
            {"method": "framework_set_scheduler", "params": {"name": "gscheduler"}}]}]}"#,
    );
    assert_eq!(looked.kept.as_deref(), Some("scheduler (framework_set_scheduler)"));
}
