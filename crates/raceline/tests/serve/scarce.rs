//! A daemon that runs out of something: file descriptors, or room for its state. It goes on, and says what is missing.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getuid};
use serde_json::{Value, json};

use crate::support::{Scratch, Served, call, configure, run, run_by, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:scarce";

fn port(socket: &Path) -> String {
    let listeners = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned()
}

/// Whether a host can use the namespace.
fn is_served(port: &str) -> bool {
    let output = run(&["identify", "-a", "127.0.0.1", "-s", port, "-n", NQN]);
    output.code == Some(0)
}

/// The daemon says that it has none left. The test does not count what is in use: a thread that waits in accept(2)
/// has a number set aside, which /proc does not show.
#[test]
fn a_daemon_without_file_descriptors_waits_for_some() {
    let scratch = Scratch::new();
    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let log = scratch.path("log");
    let logged = || std::fs::read_to_string(&log).unwrap();
    let to_log = format!("exec \"$0\" \"$@\" 2> '{log}'");
    // What has begun stays: the limit of the process is the most that it can raise its own to.
    let limit = ["prlimit", "--nofile=48:48", "--", "sh", "-c", &to_log];
    let served = Served::start_by(&limit, &socket, &["--sandbox", "off"]);
    configure(&socket, NQN, 2048);
    let port = port(&socket);
    let open = format!("/proc/{}/fd", served.pid());
    let open = || std::fs::read_dir(&open).unwrap().count();
    let strangers: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(format!("127.0.0.1:{port}")).unwrap()).collect();
    let why = "cannot accept a connection error=Too many open files";
    wait_for("the want of descriptors", || logged().contains(why));
    drop(strangers);
    wait_for("the end of the strangers", || open() < 40);
    // Hosts and clients are served again.
    assert!(is_served(&port));
    assert_eq!(call(&socket, "bdev_get_bdevs", Value::Null).unwrap()[0]["name"], "M");
    let output = served.end(Signal::TERM);
    assert_eq!(output.code, Some(0), "{}", logged());
    // It does not say so all the time: it looks again every 100 ms.
    assert!(logged().matches(why).count() < 1000, "{}", logged());
}

/// Hosts do not get the last descriptors: clients are answered, and changes are kept.
#[test]
fn a_daemon_keeps_file_descriptors_for_its_operator() {
    let scratch = Scratch::new();
    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let (log, state) = (scratch.path("log"), scratch.path("state"));
    let to_log = format!("exec \"$0\" \"$@\" 2> '{log}'");
    let limit = ["prlimit", "--nofile=96:96", "--", "sh", "-c", &to_log];
    let options = ["--sandbox", "off", "--state-dir", &state];
    let served = Served::start_by(&limit, &socket, &options);
    configure(&socket, NQN, 2048);
    let port = port(&socket);
    let crowd = || -> Vec<TcpStream> {
        (0..120).map(|_| TcpStream::connect(format!("127.0.0.1:{port}")).unwrap()).collect()
    };
    let logged = || std::fs::read_to_string(&log).unwrap();
    let why = "cannot accept a connection error=Too many open files";
    // Strangers come again and again, as the silent ones are ended after 5 s.
    let begin = Instant::now();
    let mut strangers = crowd();
    wait_for("the want of descriptors", || logged().contains(why));
    let mut made = 0;
    while begin.elapsed() < Duration::from_secs(7) {
        strangers.extend(crowd());
        // Each call is another client, and each change another sync of the journal.
        for _ in 0..5 {
            let device = json!({ "name": format!("N{made}"), "num_blocks": 8, "block_size": 512 });
            call(&socket, "bdev_null_create", device).unwrap();
            made += 1;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // What needs descriptors of its own: the configuration goes to a file, and one device is that.
    let image = scratch.path("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let aio = json!({ "name": "A", "filename": image, "block_size": 512 });
    call(&socket, "bdev_aio_create", aio).unwrap();
    drop(strangers);
    assert!(!logged().contains("cannot accept an RPC connection"), "{}", logged());
    served.end(Signal::KILL);
    let again = Served::start(&socket, &options);
    let bdevs = call(&socket, "bdev_get_bdevs", Value::Null).unwrap();
    assert_eq!(bdevs.as_array().unwrap().len(), made + 2, "{bdevs}");
    assert_eq!(again.end(Signal::TERM).code, Some(0));
}

#[test]
fn too_few_file_descriptors_for_a_start_are_named() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let limit = ["prlimit", "--nofile=8:8", "--"];
    let output = run_by(&limit, &["serve", "-r", &socket]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let last = output.stderr.lines().last().unwrap();
    assert!(last.starts_with("raceline: ") && last.contains("Too many open files"), "{last}");
}

/// The state is on a file system of its own, which is full for a while.
#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    if !getuid().is_root() {
        return eprintln!("SKIPPED: only root can mount");
    }
    let scratch = Scratch::new();
    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let disk = scratch.path("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = format!("mount -t tmpfs -o size=4m none '{disk}' && exec \"$0\" \"$@\"");
    let own = ["unshare", "-m", "--", "sh", "-c", &mount];
    let state = format!("{disk}/state");
    let served = Served::start_by(&own, &socket, &["--state-dir", &state, "--sandbox", "off"]);
    configure(&socket, NQN, 2048);
    let port = port(&socket);
    // The disk as the daemon sees it.
    let filler = format!("/proc/{}/root{disk}/filler", served.pid());
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let device = |name: &str| json!({ "name": name, "num_blocks": 8, "block_size": 512 });
    let names = || {
        let bdevs = call(&socket, "bdev_get_bdevs", Value::Null).unwrap();
        let names = bdevs.as_array().unwrap().iter().map(|bdev| bdev["name"].to_string());
        names.collect::<Vec<_>>()
    };
    // There is room for the next changes, which was set aside; not for many.
    let mut made = 0;
    let refused = loop {
        match call(&socket, "bdev_null_create", device(&format!("N{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100_000, "the disk is never full");
    };
    assert_eq!(refused["code"], -28, "{refused}");
    assert!(refused["data"].as_str().unwrap().contains("make room"), "{refused}");
    assert_eq!(names().len(), made + 1, "what was refused is not there");
    let deleted = call(&socket, "bdev_malloc_delete", json!({ "name": "M" }));
    assert_eq!(deleted.unwrap_err()["code"], -28);
    // Hosts notice nothing.
    assert!(is_served(&port));
    std::fs::remove_file(&filler).unwrap();
    drop(file);
    call(&socket, "bdev_null_create", device("after")).unwrap();
    let before = names();
    assert_eq!(before.len(), made + 2);
    let output = served.end(Signal::TERM);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
}
