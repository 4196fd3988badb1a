//! Queue maps and gathered commands of `raceline perf`, against a target of this program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::Value;
use support::{Export, run};

fn export() -> Export {
    Export::start(&["ram:16M"])
}

/// The standard output of a verb that must succeed.
#[track_caller]
fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn perf_proves_what_was_written_over_maps() {
    let export = export();
    let options = ["--verify", "--runtime", "300ms", "--ramp_time", "0", "--size", "4M"];
    for queues in [
        &["-i", "2", "-W", "1"][..],
        &["-i", "1", "-W", "2", "-P", "1", "--hipri"],
        &["-i", "2", "-W", "2", "--i10"],
        &["-i", "2", "--i10=4,16k,200", "--iodepth", "8"],
        &["-i", "1", "-P", "1", "--i10", "--io", "epoll", "--mode", "interrupt"],
    ] {
        let mut arguments = vec!["perf", "--rw", "randrw", "-o", "json"];
        arguments.extend(options);
        arguments.extend(queues);
        let job = &json(&ok(&export.host(&arguments)))["jobs"][0];
        assert!(job["verified_ios"].as_u64().unwrap() > 0, "{queues:?}: {job}");
        assert!(job["read"]["total_ios"].as_u64().unwrap() > 0, "{queues:?}: {job}");
        assert!(job["write"]["total_ios"].as_u64().unwrap() > 0, "{queues:?}: {job}");
    }
    export.terminate();
}

#[test]
fn nobody_is_woken_for_polled_commands() {
    let export = export();
    let polled = ["perf", "--hipri", "-P", "1", "-o", "json", "--runtime", "300ms"];
    let job = &json(&ok(&export.host(&polled)))["jobs"][0];
    assert!(job["read"]["total_ios"].as_u64().unwrap() > 0, "{job}");
    assert_eq!(job["loop"]["waits"], 0, "{job}");
    export.terminate();
}

#[test]
fn maps_are_shown_as_they_were_granted() {
    let export = export();
    let shown = ["perf", "-i", "2", "-W", "1", "-P", "2", "--cores", "0,1", "--show-maps"];
    let table = ok(&export.host(&shown));
    let expected = "\
queue maps: 5 I/O queues in use, 5 asked for

map      queues        takes
default  1             what is neither read nor polled
read     2-3           reads
poll     4-5           polled commands

core     default       read          poll
0        1             2             4
1        1             3             5
";
    assert_eq!(table, expected);
    let document = json(&ok(&export.host(&[&shown[..], &["-o", "json"]].concat())));
    assert_eq!(document["granted"], 5);
    assert_eq!(document["cores"][1]["read"], serde_json::json!([3]));
    // One default queue cannot be used by two cores: the error tells the user what to ask for.
    let run = ["perf", "-i", "2", "-W", "1", "--cores", "0,1", "--runtime", "300ms"];
    let refused = support::run(&export.host(&run));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let reason = "1 default queues, of the 3 that the controller grants";
    assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    export.terminate();
}
