//! A daemon whose clock of the day jumps: nothing that takes time notices.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Scratch, Served, call, configure, start, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:clock";
const DAY: i64 = 86_400;
/// How far the clock may be from where it was set.
const SLACK: i64 = 120;

/// libfaketime, which has clock_gettime(2) read the clock of the day off a file.
fn library() -> Option<PathBuf> {
    let places = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let mut found = places.map(|place| place.join("faketime/libfaketimeMT.so.1"));
    found.find(|file| file.exists())
}

/// A daemon and the file that says by how much its clock is wrong.
struct Place {
    scratch: Scratch,
    socket: PathBuf,
    library: PathBuf,
}

impl Place {
    fn serve(&self) -> Served {
        let names = [
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.scratch.path("offset")),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        let mut by = vec!["env"];
        by.extend(names.iter().map(String::as_str));
        let state = self.scratch.path("state");
        Served::start_by(&by, &self.socket, &["--sandbox", "off", "--state-dir", &state])
    }

    /// Its clock jumps to this many seconds from the right time.
    fn jump(&self, seconds: i64) {
        let (file, new) = (self.scratch.path("offset"), self.scratch.path("offset.new"));
        std::fs::write(&new, format!("{seconds:+}s\n")).unwrap();
        std::fs::rename(new, file).unwrap();
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Number and time of the last change.
fn last_change(socket: &Path) -> (u64, i64) {
    let changes = call(socket, "raceline_get_changes", json!({})).unwrap();
    let last = changes.as_array().unwrap();
    let last = last.iter().max_by_key(|change| change["number"].as_u64()).unwrap();
    (last["number"].as_u64().unwrap(), last["time"].as_i64().unwrap())
}

/// Reads, and the ticks of the statistics in nanoseconds.
fn statistics(socket: &Path) -> (u64, u64) {
    let stats = call(socket, "bdev_get_iostat", json!({ "name": "M" })).unwrap();
    (stats["bdevs"][0]["num_read_ops"].as_u64().unwrap(), stats["ticks"].as_u64().unwrap())
}

#[test]
fn a_clock_that_jumps_ends_nothing() {
    let Some(library) = library() else {
        return eprintln!("SKIPPED: libfaketime is not there (cargo xtask setup)");
    };
    let scratch = Scratch::new();
    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let place = Place { scratch, socket: socket.clone(), library };
    place.jump(0);
    let served = place.serve();
    configure(&socket, NQN, 2048);
    let (first, time) = last_change(&socket);
    assert!((time - now()).abs() < SLACK, "{time}");
    let listeners = call(&socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    let at = ["-a", "127.0.0.1", "-s", port, "-n", NQN];
    let work = ["--rw", "randrw", "--bs", "4k", "--iodepth", "4", "--verify"];
    let time = ["--ramp_time", "0", "--runtime", "3600", "-o", "json"];
    let load = start(&[&["perf"], &at[..], &work[..], &time[..]].concat());
    wait_for("the load", || statistics(&socket).0 > 100);
    let controllers =
        || call(&socket, "nvmf_subsystem_get_controllers", json!({ "nqn": NQN })).unwrap();
    let before = controllers();
    let mut changes = first;
    for (step, offset) in [DAY, -DAY, 0].into_iter().enumerate() {
        let (since, (reads, ticks)) = (Instant::now(), statistics(&socket));
        place.jump(offset);
        // Longer than the timers of a loop and a second of limits.
        std::thread::sleep(Duration::from_secs(2));
        wait_for("reads after the jump", || statistics(&socket).0 > reads + 100);
        let (_, later) = statistics(&socket);
        let passed = u64::try_from(since.elapsed().as_nanos()).unwrap();
        assert!(later > ticks && later - ticks <= passed + 1_000_000_000, "{ticks} to {later}");
        assert_eq!(controllers(), before, "no host had to connect anew");
        let device = json!({ "name": format!("N{step}"), "num_blocks": 8, "block_size": 512 });
        call(&socket, "bdev_null_create", device).unwrap();
        // The time is that of the day, and the order that of the changes.
        let (number, time) = last_change(&socket);
        assert_eq!(number, changes + 1);
        assert!((time - now() - offset).abs() < SLACK, "{time} with {offset}");
        changes = number;
        let events = call(&socket, "raceline_get_events", json!({ "max": 10_000 })).unwrap();
        let events = events["events"].as_array().unwrap();
        let numbers: Vec<u64> = events.iter().map(|it| it["seq"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        let made = events.iter().rfind(|it| it["kind"] == "change").unwrap();
        let time = made["time_ms"].as_i64().unwrap() / 1000;
        assert!((time - now() - offset).abs() < SLACK, "{made} with {offset}");
    }
    let output = load.interrupt();
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&report["jobs"][0]["error"], output.code), (&json!(0), Some(130)), "{report}");
    // A restart with an earlier clock keeps the order.
    assert_eq!(served.end(Signal::TERM).code, Some(0));
    place.jump(-DAY);
    let again = place.serve();
    assert_eq!(last_change(&socket).0, changes);
    assert_eq!(again.end(Signal::TERM).code, Some(0));
}
