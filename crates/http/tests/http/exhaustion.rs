//! What a daemon runs out of is among its metrics.

use std::fs::File;
use std::process::Command;

use raceline_reactor::room;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::counts::value;
use crate::support::Served;

/// The limit of the process whose descriptors run out. Listeners keep the last 32.
const LIMIT: u64 = 256;

#[test]
fn what_a_process_has_left_is_shown() {
    let served = Served::start();
    room::watch_memory();
    let text = served.get("/metrics").body;
    let plain = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("raceline_{name} ")));
        line.map(|number| number.parse::<f64>().unwrap())
    };
    let (open, most) = (plain("process_open_fds").unwrap(), plain("process_max_fds").unwrap());
    assert!(open > 5.0 && open < most, "{open} of {most}");
    assert_eq!(value(&text, "accept_paused", "reason=\"descriptors\""), Some(0.0));
    assert_eq!(value(&text, "accept_paused", "reason=\"memory\""), Some(0.0));
    assert_eq!(plain("log_messages_lost_total"), Some(0.0));
    // This one keeps nothing; the limit of memory is that of the machine's groups, if there is one.
    assert_eq!(plain("state_writable"), None);
    assert_eq!(plain("memory_limit_bytes").is_some(), room::limited_memory().is_some());
}

/// The limit is one of the process, so that the test has one of its own.
#[test]
fn descriptors_that_run_out_are_shown() {
    let name = "exhaustion::with_few_descriptors";
    let own = std::env::current_exe().unwrap();
    let ended = Command::new(own).args(["--exact", name, "--ignored", "--nocapture"]).output();
    let ended = ended.unwrap();
    let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "changes a limit of the process; the test above runs it"]
fn with_few_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum }).unwrap();
    let served = Served::start();
    let paused = || {
        let text = served.get("/metrics").body;
        assert!(text.contains(&format!("raceline_process_max_fds {LIMIT}\n")), "{text}");
        value(&text, "accept_paused", "reason=\"descriptors\"")
    };
    assert_eq!(paused(), Some(0.0));
    let mut held = Vec::new();
    while (held.len() as u64) < LIMIT && room::lack().is_none() {
        held.push(File::open("/dev/null").unwrap());
    }
    assert_eq!(room::lack(), Some(room::Lack::Descriptors));
    assert_eq!(paused(), Some(1.0));
    drop(held);
    assert_eq!(paused(), Some(0.0));
}
