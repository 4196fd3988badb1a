//! Sockets that the service manager has made: systemd-socket-activate stands for it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::call;

const ACTIVATE: &str = "systemd-socket-activate";
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const DAEMON: &str = env!("CARGO_BIN_EXE_raceline");

/// Whether the program is there, which `cargo xtask setup` installs.
fn is_there() -> bool {
    let there = Command::new(ACTIVATE).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        eprintln!("SKIPPED: there is no {ACTIVATE} (Debian's package systemd)");
    }
    there
}

/// Listens, and becomes a daemon with this RPC socket when the first client comes.
fn activated(directory: &Path, listen: &[&str], socket: &Path) -> Child {
    let mut command = Command::new(ACTIVATE);
    command.args(listen).args([DAEMON, "serve", "-r"]).arg(socket);
    command.arg("--state-dir").arg(directory.join("state"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let (mut look, deadline) = (look, Instant::now() + LIMIT);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn end(mut child: Child) -> (Option<i32>, String) {
    let status = until("it has not ended", || child.try_wait().unwrap());
    let mut said = String::new();
    child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
    (status.code(), said)
}

#[test]
fn the_first_client_starts_the_daemon_and_gets_an_answer() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rpc.sock");
    let first = activated(directory.path(), &["-l", socket.to_str().unwrap()], &socket);
    until("nobody listens", || UnixStream::connect(&socket).ok());
    // The call comes while the daemon starts: it is answered, and not refused.
    assert!(call(&socket, "bdev_get_bdevs", Value::Null).unwrap().as_array().unwrap().is_empty());

    // The socket stays the service manager's after a take-over.
    let mut command = Command::new(DAEMON);
    command.args(["serve", "--take-over", "-r"]).arg(&socket);
    command.arg("--state-dir").arg(directory.path().join("state"));
    let mut second = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(second.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("\"ready\":true"), "{ready}");
    let (code, said) = end(first);
    assert_eq!(code, Some(0), "{said}");
    call(&socket, "bdev_get_bdevs", Value::Null).unwrap();
    kill_process(Pid::from_child(&second), Signal::TERM).unwrap();
    assert_eq!(end(second).0, Some(0));
    assert!(socket.exists(), "the daemon has removed a socket that is not its own");
}

#[test]
fn a_socket_that_nothing_is_for_is_refused() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (passed, own) = (directory.path().join("passed.sock"), directory.path().join("own.sock"));
    let child = activated(directory.path(), &["-l", passed.to_str().unwrap()], &own);
    until("nobody listens", || UnixStream::connect(&passed).ok());
    let (code, said) = end(child);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("passed.sock") && said.contains("ListenStream= and -r"), "{said}");

    std::fs::remove_file(&passed).unwrap();
    let child = activated(directory.path(), &["-d", "-l", passed.to_str().unwrap()], &own);
    let client = UnixDatagram::unbound().unwrap();
    until("nobody listens", || client.send_to(b"x", &passed).ok());
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("socket 1 of those") && said.contains("ListenStream="), "{said}");
}
