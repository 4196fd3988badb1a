//! A daemon whose messages nobody reads. It serves all the same, and loses none of those that it has room for.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Scratch, Served, call, configure, run, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:unread";
/// A pipe holds 64 KiB, and the audit of each change has more than 100 bytes.
const CHANGES: usize = 1000;

#[test]
fn a_daemon_whose_messages_nobody_reads_serves_all_the_same() {
    let scratch = Scratch::new();
    let (socket, pipe) = (PathBuf::from(scratch.path("rpc.sock")), scratch.path("messages"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    // Opened for both, so that neither end waits for the other.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    let mut messages =
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(&pipe).unwrap();
    let to_pipe = format!("exec \"$0\" \"$@\" 2> '{pipe}'");
    let served = Served::start_by(&["sh", "-c", &to_pipe], &socket, &[]);
    configure(&socket, NQN, 2048);
    let listeners = call(&socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();

    // Without room in the pipe, one of these calls would not be answered.
    for number in 0..CHANGES {
        let device = json!({ "name": format!("N{number}"), "num_blocks": 8, "block_size": 512 });
        call(&socket, "bdev_null_create", device).unwrap();
    }
    assert_eq!(run(&["identify", "-a", "127.0.0.1", "-s", port, "-n", NQN]).code, Some(0));

    // Who reads late misses nothing.
    let mut text = Vec::new();
    let mut changes = || {
        // It ends where nothing is there yet.
        let _ = messages.read_to_end(&mut text);
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter(|line| String::from_utf8_lossy(line).contains("bdev_null_create")).count()
    };
    wait_for("the message of the last change", || changes() >= CHANGES);
    assert_eq!(changes(), CHANGES);

    // And nobody waits for a reader at the end.
    for number in 0..CHANGES {
        call(&socket, "bdev_null_delete", json!({ "name": format!("N{number}") })).unwrap();
    }
    assert_eq!(call(&socket, "bdev_get_bdevs", Value::Null).unwrap().as_array().unwrap().len(), 1);
    let begin = Instant::now();
    assert_eq!(served.end(Signal::TERM).code, Some(0));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}
