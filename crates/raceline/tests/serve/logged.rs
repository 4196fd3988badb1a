//! What is logged changes while the daemon runs, whatever the environment has said at its beginning.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Scratch, Served, call, wait_for};

#[test]
fn the_level_changes_though_the_environment_has_set_it() {
    let scratch = Scratch::new();
    let (socket, log) = (PathBuf::from(scratch.path("rpc.sock")), scratch.path("log"));
    let begin = format!("export RACELINE_LOG=error; exec \"$0\" \"$@\" 2> '{log}'");
    let served = Served::start_by(&["sh", "-c", &begin], &socket, &[]);
    let said = |name: &str| std::fs::read_to_string(&log).unwrap().contains(name);
    // Each change is a notice.
    let make = |name: &str| {
        let params = json!({ "name": name, "num_blocks": 8, "block_size": 512 });
        call(&socket, "bdev_null_create", params).unwrap();
    };
    let level = |method: &str, level: &str| {
        assert_eq!(call(&socket, method, json!({ "level": level })), Ok(json!(true)));
    };
    make("AtTheBeginning");
    // That is about lines, and not about which.
    assert_eq!(call(&socket, "log_enable_timestamps", json!({ "enabled": true })), Ok(json!(true)));
    make("WithTheTime");
    // What is set to what it is keeps the filter of the environment.
    level("log_set_level", "NOTICE");
    make("AsBefore");
    level("log_set_print_level", "INFO");
    level("log_set_level", "NOTICE");
    make("Shown");
    wait_for("a notice", || said("Shown"));
    assert!(!said("AtTheBeginning") && !said("WithTheTime") && !said("AsBefore"));
    for method in ["log_set_print_level", "log_set_level"] {
        level(method, "ERROR");
    }
    make("Hidden");
    level("log_set_level", "DEBUG");
    make("ShownAgain");
    wait_for("a notice", || said("ShownAgain"));
    assert!(!said("Hidden"));
    served.end(Signal::TERM);
}
