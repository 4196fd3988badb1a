//! What a running export and a running daemon have given up, and what they say about it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Export, Served, call, run, run_with_input};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
/// A user without rights.
const NOBODY: &str = "65534";
/// CAP_DAC_OVERRIDE, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_IPC_LOCK, CAP_SYS_ADMIN.
const DAEMON_CAPABILITIES: u64 = 1 << 1 | 1 << 10 | 1 << 12 | 1 << 14 | 1 << 21;
/// CAP_IPC_LOCK, CAP_PERFMON: of an export of memory on a high port.
const EXPORT_CAPABILITIES: u64 = 1 << 14 | 1 << 38;

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
}

/// The status of each thread of a process.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    tasks.filter_map(|task| read(task.ok()?)).collect()
}

fn all_threads_are_inside(pid: u32, capabilities: u64) {
    let threads = threads(pid);
    assert!(threads.len() > 1, "{threads:?}");
    for status in threads {
        let name = field(&status, "Name:");
        assert_eq!(field(&status, "NoNewPrivs:"), "1", "{name}");
        assert_eq!(field(&status, "Seccomp:"), "2", "{name}");
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            let has = u64::from_str_radix(field(&status, set), 16).unwrap();
            assert_eq!(has & !capabilities, 0, "{name} {set}");
        }
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let cores = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(cores.split_whitespace().nth(5), Some("0"), "{cores}");
}

/// Whether files are restricted here: the test of the sandbox says so for each kernel.
fn restricts_files() -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rpc.sock");
    fs::write(file.path(), vec![0; 1 << 20]).unwrap();
    let served = Served::start(&socket, &[]);
    let refused = create(&socket, "A", file.path()).is_err();
    served.end(Signal::TERM);
    refused
}

fn create(socket: &Path, name: &str, file: &Path) -> Result<Value, Value> {
    let params = json!({ "name": name, "filename": file, "block_size": 512, "buffered": true });
    call(socket, "bdev_aio_create", params)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn every_thread_of_an_export_is_inside() {
    let export = Export::start(&["ram:8M"]);
    all_threads_are_inside(export.pid(), EXPORT_CAPABILITIES);
    let people = export.terminate();
    assert!(!people.contains("sandbox"), "{people}");
}

#[test]
fn every_thread_of_a_daemon_is_inside() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("run/rpc.sock");
    let state = folder.path().join("state");
    let core = raceline_reactor::affinity::allowed_cores().unwrap()[0];
    let cores = format!("[{core}]");
    let served = Served::start(&socket, &["--state-dir", text(&state), "-m", &cores]);
    support::configure(&socket, NQN, 2048);
    all_threads_are_inside(served.pid(), DAEMON_CAPABILITIES);
    // Its locks of cores are elsewhere.
    if let Err(error) = call(&socket, "framework_enable_cpumask_locks", Value::Null) {
        assert!(error["data"].to_string().contains("another program has it"), "{error}");
    }
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

#[test]
fn it_can_be_off() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let export = Export::start(&["ram:8M", "--sandbox", "off"]);
    for status in threads(export.pid()) {
        for name in ["NoNewPrivs:", "Seccomp:", "CapEff:"] {
            assert_eq!(field(&status, name), field(&own, name));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rpc.sock");
    let served = Served::start(&socket, &["--sandbox", "off"]);
    assert_eq!(field(&threads(served.pid())[0], "Seccomp:"), field(&own, "Seccomp:"));
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

#[test]
fn files_of_an_export_are_read_and_written_inside() {
    let folder = tempfile::tempdir().unwrap();
    let (new, old) = (folder.path().join("new"), folder.path().join("old"));
    fs::write(&old, vec![7; 1 << 20]).unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a file of another user, which only root can make");
    } else {
        // Another user's file, which each core opens again.
        std::os::unix::fs::chown(&old, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o600)).unwrap();
    }
    for io in ["auto", "epoll"] {
        let export = Export::start(&[
            &format!("file:{},size=1M,buffered", new.display()),
            &format!("file:{},buffered", old.display()),
            "--io",
            io,
            "--sandbox",
            if restricts_files() { "on" } else { "off" },
        ]);
        let data = vec![io.as_bytes()[0]; 1 << 20];
        for nsid in ["1", "2"] {
            let words = ["write", "--namespace-id", nsid, "--blocks", "2048"];
            let output = run_with_input(&export.host(&words), &data);
            assert_eq!(output.code, Some(0), "{}", output.stderr);
        }
        export.terminate();
        assert_eq!(fs::read(&new).unwrap(), data);
        assert_eq!(fs::read(&old).unwrap(), data);
    }
}

#[test]
fn a_file_outside_is_refused_with_the_options_that_permit_it() {
    if !restricts_files() {
        eprintln!("SKIPPED: this kernel has no Landlock");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let (inside, outside) = (folder.join("inside"), folder.join("outside"));
    for directory in [&inside, &outside] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("disk"), vec![0; 1 << 20]).unwrap();
    }
    let socket = folder.join("run/rpc.sock");
    let served = Served::start(&socket, &["--confine", text(&inside)]);
    create(&socket, "A", &inside.join("disk")).unwrap();
    let error = create(&socket, "B", &outside.join("disk")).unwrap_err();
    assert_eq!(error["code"], -13, "{error}");
    let expected = format!(
        "restart raceline serve with --confine {} --confine {}",
        inside.display(),
        outside.join("disk").display()
    );
    assert!(error["data"].to_string().contains(&expected), "{error}");
    // What is made later inside is inside, and a name of something outside is not.
    fs::write(inside.join("later"), vec![0; 1 << 20]).unwrap();
    std::os::unix::fs::symlink(outside.join("disk"), inside.join("link")).unwrap();
    create(&socket, "C", &inside.join("later")).unwrap();
    assert!(create(&socket, "D", &inside.join("link")).is_err());
    assert_eq!(served.end(Signal::TERM).code, Some(0));

    let arguments =
        ["--confine", text(&inside), "--confine", &format!("{}/disk", outside.display())];
    let served = Served::start(&socket, &arguments);
    create(&socket, "B", &outside.join("disk")).unwrap();
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

#[test]
fn what_the_configuration_names_is_inside_also_when_it_comes_later() {
    let folder = tempfile::tempdir().unwrap();
    let disks = folder.path().join("disks");
    fs::create_dir(&disks).unwrap();
    let file = folder.path().join("config.json");
    let calls = json!({ "subsystems": [{ "subsystem": "bdev", "config": [
        { "method": "bdev_aio_create",
          "params": { "name": "D", "filename": disks.join("d"), "block_size": 512, "buffered": true } },
    ] }] });
    fs::write(&file, calls.to_string()).unwrap();
    let (socket, state) = (folder.path().join("rpc.sock"), folder.path().join("state"));
    let kept = ["--state-dir", text(&state)];
    let served = Served::start(&socket, &[&["-c", text(&file)], &kept[..]].concat());
    assert_eq!(call(&socket, "bdev_get_bdevs", Value::Null).unwrap(), json!([]));
    fs::write(disks.join("d"), vec![0; 1 << 20]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while call(&socket, "bdev_get_bdevs", Value::Null).unwrap() == json!([]) {
        assert!(Instant::now() < deadline, "the device has not come");
        std::thread::sleep(Duration::from_millis(50));
    }
    served.end(Signal::KILL);
    // The state names it now.
    let served = Served::start(&socket, &kept);
    let bdevs = call(&socket, "bdev_get_bdevs", Value::Null).unwrap();
    assert_eq!(bdevs[0]["name"], "D");
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

#[test]
fn a_configuration_can_come_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, pipe) = (folder.path().join("rpc.sock"), folder.path().join("pipe"));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let calls = json!({ "subsystems": [{ "subsystem": "bdev", "config": [
        { "method": "bdev_malloc_create", "params": { "name": "M", "num_blocks": 8, "block_size": 512 } },
    ] }] });
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, calls.to_string()).unwrap()
    });
    let served = Served::start(&socket, &["-c", text(&pipe)]);
    writer.join().unwrap();
    assert_eq!(call(&socket, "bdev_get_bdevs", Value::Null).unwrap()[0]["name"], "M");
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

#[test]
fn a_daemon_of_another_user_is_inside() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start it as another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    let (socket, state) = (own.join("rpc.sock"), own.join("state"));
    let user = format!("--reuid={NOBODY}");
    let group = format!("--regid={NOBODY}");
    let prefix = ["setpriv", &user, &group, "--clear-groups", "--"];
    // A port that is free now.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let metrics = address.to_string();
    let words = ["--state-dir", text(&state), "--metrics", &metrics];
    let served = Served::start_by(&prefix, &socket, &words);
    support::configure(&socket, NQN, 2048);
    all_threads_are_inside(served.pid(), 0);
    // What it shows needs nothing that it has given up: /proc/self has files that are root's now.
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut shown = String::new();
    stream.read_to_string(&mut shown).unwrap();
    for metric in [
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_max_fds ",
        "state_writable 1\n",
    ] {
        assert!(shown.contains(&format!("\nraceline_{metric}")), "no {metric}: {shown}");
    }
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

#[test]
fn paths_that_are_not_what_they_seem_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().canonicalize().unwrap();
    let (link, missing) = (real.join("link"), real.join("missing"));
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    for (path, expected) in [
        ("volumes", "write the whole path"),
        (text(&missing), "make it first"),
        (text(&link), "write /etc, because a link can lead elsewhere later"),
    ] {
        let output = run(&["serve", "--confine", path]);
        assert_eq!(output.code, Some(2), "{}", output.stderr);
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    }
    let output = run(&["serve", "--sandbox", "off", "--confine", text(&real)]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains("leave one of them out"), "{}", output.stderr);
    let output = run(&["export", "ram:1M", "--sandbox", "maybe"]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
}
