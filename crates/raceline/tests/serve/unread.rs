//! A daemon whose messages nobody reads. It serves all the same, and loses none of those that it has room for.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::support::{Export, Scratch, Served, call, configure, run, run_by, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:unread";
/// A pipe holds 64 KiB and a terminal less, and the audit of each change has more than 100 bytes.
const CHANGES: usize = 1000;

/// A pipe with a name, and both of its ends, so that neither waits for the other.
fn pipe(scratch: &Scratch) -> (File, String) {
    let path = scratch.path("messages");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    let pipe = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    (pipe, path)
}

/// The end of a terminal where a person would sit, and the name of the other one.
fn terminal() -> (File, String) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    rustix::fs::fcntl_setfl(&person, OFlags::NONBLOCK).unwrap();
    let path = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
    (person.into(), path)
}

#[test]
fn a_daemon_whose_messages_nobody_reads_serves_all_the_same() {
    let scratch = Scratch::new();
    serves_unread(&scratch, pipe(&scratch));
}

#[test]
fn a_daemon_on_a_terminal_that_is_stuck_serves_all_the_same() {
    serves_unread(&Scratch::new(), terminal());
}

/// The reason of a failure finds no reader either.
#[test]
fn a_daemon_that_fails_ends_though_nobody_reads_why() {
    let scratch = Scratch::new();
    let (mut messages, pipe) = pipe(&scratch);
    let full = std::iter::repeat_with(|| messages.write_all(&[b'x'; 4096])).find_map(Result::err);
    assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
    // One that serves says so, and what it has done, to a reader who is not there.
    let to_pipe = format!("exec \"$0\" \"$@\" 2> '{pipe}'");
    let quietly = ["env", "RACELINE_LOG=error", "sh", "-c", &to_pipe];
    let export = Export::start_by(&quietly, &["ram:1M"]);
    assert_eq!(run(&export.host(&["identify"])).code, Some(0));
    export.terminate();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run_by(&["sh", "-c", &to_pipe], &["--quiet", "export", "ram:1M", "-l", &address]);
    assert_eq!(output.code, Some(1));
}

fn serves_unread(scratch: &Scratch, (mut messages, path): (File, String)) {
    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let to_path = format!("exec \"$0\" \"$@\" 2> '{path}'");
    let served = Served::start_by(&["sh", "-c", &to_path], &socket, &[]);
    configure(&socket, NQN, 2048);
    let listeners = call(&socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();

    // Without room there, one of these calls would not be answered.
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
