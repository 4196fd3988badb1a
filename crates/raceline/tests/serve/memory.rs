//! A daemon whose memory is nearly used: it lets no more hosts in, serves those that it has, and says why.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Scratch, Served, call, configure, run, run_by, start, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:memory";

/// Sets the limit of the address space of a process that runs.
fn limit_space(pid: u32, bytes: &str) {
    let status = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--as={bytes}:unlimited")])
        .status()
        .unwrap();
    assert!(status.success());
}

/// A connection on which nothing comes that a target could take: it ends as soon as it is accepted.
fn stranger(port: &str) -> TcpStream {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = stream.write_all(&[0xff; 128]);
    stream
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Bytes of its address space.
fn space_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn a_daemon_without_memory_lets_no_more_hosts_in() {
    let scratch = Scratch::new();
    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let log = scratch.path("log");
    let logged = || std::fs::read_to_string(&log).unwrap();
    let to_log = format!("exec \"$0\" \"$@\" 2> '{log}'");
    let served = Served::start_by(&["sh", "-c", &to_log], &socket, &["--sandbox", "off"]);
    configure(&socket, NQN, 2048);
    let listeners = call(&socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    let at = ["-a", "127.0.0.1", "-s", port, "-n", NQN];
    let work = ["--rw", "randrw", "--bs", "4k", "--iodepth", "4", "--verify"];
    let time = ["--ramp_time", "0", "--runtime", "3600", "-o", "json"];
    let present = start(&[&["perf"], &at[..], &work[..], &time[..]].concat());
    let reads = || {
        let stats = call(&socket, "bdev_get_iostat", json!({})).unwrap();
        stats["bdevs"][0]["num_read_ops"].as_u64().unwrap()
    };
    wait_for("the load", || reads() > 100);

    limit_space(served.pid(), &(space_of(served.pid()) + (4 << 20)).to_string());
    let controllers = || {
        let all = call(&socket, "nvmf_subsystem_get_controllers", json!({ "nqn": NQN })).unwrap();
        all.as_array().unwrap().len()
    };
    // The kernel may have accepted one before; it is closed. The next one waits.
    let strangers: Vec<TcpStream> = (0..2).map(|_| stranger(port)).collect();
    wait_for("the want of memory", || logged().contains("MiB of memory are left"));
    let why = logged();
    assert!(why.contains("cannot accept a connection") && why.contains("LimitAS="), "{why}");
    // The present host is served, and a client; no other host.
    let before = reads();
    wait_for("reads of the present host", || reads() > before + 100);
    let mut late = stranger(port);
    assert!(is_silent(&mut late), "it is not accepted");
    assert_eq!(controllers(), 1);
    drop(strangers);
    // With memory, there is room for more.
    limit_space(served.pid(), "unlimited");
    wait_for("the end of the stranger", || !is_silent(&mut late));
    wait_for("room", || run(&[&["identify"], &at[..]].concat()).code == Some(0));
    let output = present.interrupt();
    assert_eq!(output.code, Some(130), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report["jobs"][0]["error"], 0, "{report}");
    let output = served.end(Signal::TERM);
    assert_eq!(output.code, Some(0), "{}", logged());
}

#[test]
fn a_start_without_address_space_is_explained() {
    let limit = ["prlimit", "--as=700000000", "--"];
    let output = run_by(&limit, &["export", "ram:1G", "-l", "127.0.0.1:0", "--sandbox", "off"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let last = output.stderr.lines().last().unwrap();
    assert!(last.starts_with("raceline: "), "{last}");
    assert!(last.contains("raise the limit of the address space (ulimit -v, LimitAS="), "{last}");
}
