//! Disks of `raceline connect` in `list`, and the sockets of their processes: what these tell, the level of the log, and clients who
//! want to disturb.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::connect::target_of;
use super::wait_for;

/// Bytes of a block.
const BLOCK: usize = 512;

/// A disk by NBD, whose process is killed with its test.
struct Disk {
    child: Child,
    /// Where clients of the disk find it.
    place: String,
    /// Where its process takes calls.
    rpc: String,
    directory: TempDir,
}

impl Disk {
    fn start(words: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("disk.sock").to_str().unwrap().to_owned();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
        command.args(["connect", "--as", "nbd", "--socket", &place]).args(words);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let rpc = ready["rpc"].as_str().unwrap_or_default().to_owned();
        Self { child, place, rpc, directory }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Makes a call of its process.
    fn call(&self, words: &[&str]) -> Value {
        let said = run(&[&["rpc", "-s", &self.rpc], words].concat());
        serde_json::from_str(&said).unwrap_or_default()
    }

    /// What its process tells of it.
    fn tells(&self) -> Value {
        self.call(&["raceline_get_disk"])
    }

    /// Whether its process answers now.
    fn answers(&self) -> bool {
        let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
        let output = command.args(["rpc", "-s", &self.rpc, "raceline_get_disk"]).output().unwrap();
        output.status.success()
    }

    fn client(&self) -> Client {
        Client::connect(Path::new(&self.place))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Standard output of the program without a daemon, which has to succeed.
#[track_caller]
fn run(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
    let output = command.env_remove("RACELINE_RPC_SOCKET").args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// A client of NBD that reads and writes blocks of the first export.
struct Client(UnixStream);

impl Client {
    fn connect(place: &Path) -> Self {
        let mut stream = UnixStream::connect(place).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle without zeroes; then the export of the empty name.
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    fn request(&mut self, kind: u16, block: u64, data: &[u8]) {
        let mut head = 0x2560_9513_u32.to_be_bytes().to_vec();
        head.extend(0_u16.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(block.to_be_bytes());
        head.extend((block * BLOCK as u64).to_be_bytes());
        head.extend(u32::try_from(BLOCK).unwrap().to_be_bytes());
        self.0.write_all(&head).unwrap();
        self.0.write_all(data).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], *b"\x67\x44\x66\x98\0\0\0\0");
        assert_eq!(reply[8..], block.to_be_bytes());
    }

    fn write(&mut self, block: u64, byte: u8) {
        self.request(1, block, &[byte; BLOCK]);
    }

    fn read(&mut self, block: u64) -> [u8; BLOCK] {
        self.request(0, block, &[]);
        let mut data = [0; BLOCK];
        self.0.read_exact(&mut data).unwrap();
        data
    }
}

fn nqn(what: &str) -> String {
    format!("nqn.2026-01.io.raceline:{what}-{}", std::process::id())
}

/// The disk in what `list -o json` prints.
fn listed(text: &str, place: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(text).unwrap();
    all["Devices"].as_array().unwrap().iter().find(|it| it["DevicePath"] == place).cloned()
}

#[test]
fn a_disk_is_listed_with_and_without_a_daemon_until_it_is_disconnected() {
    let nqn = nqn("listed");
    let (daemon, port) = target_of(&nqn);
    let mut disk = Disk::start(&["-a", "127.0.0.1", "-s", &port, "-n", &nqn]);
    let place = disk.place.clone();
    for text in [run(&["list", "-o", "json"]), daemon.ok(&["list", "-o", "json"])] {
        let listed = listed(&text, &place).unwrap_or_else(|| panic!("no {place} in {text}"));
        assert_eq!((&listed["NameSpace"], &listed["SectorSize"]), (&1.into(), &512.into()));
        assert_eq!(
            (&listed["PhysicalSize"], &listed["UsedBytes"]),
            (&16_777_216.into(), &16_777_216.into())
        );
        assert_eq!(listed["ModelNumber"], "SPDK bdev Controller");
    }
    let table = run(&["list"]);
    let row = table.lines().find(|line| line.starts_with(&place)).unwrap();
    assert!(row.contains(" 0x1 ") && row.contains(" 16.78  MB /  16.78  MB    512   B +  0 B "));
    let shown = run(&["list-subsys"]);
    let path = format!(" +- {place} tcp traddr=127.0.0.1,trsvcid={port} ");
    assert!(shown.contains(&format!("NQN={nqn}\n")), "{shown}");
    // (a process that gets no time to answer is listed with an unknown state)
    wait_for(|| run(&["list-subsys"]).contains(&format!("{path}live\n")));
    let verbose: Value = serde_json::from_str(&run(&["list", "-v", "-o", "json"])).unwrap();
    let hosts = verbose["Devices"].as_array().unwrap().iter();
    let mut subsystems = hosts.flat_map(|host| host["Subsystems"].as_array().unwrap());
    let own = subsystems.find(|it| it["SubsystemNQN"] == *nqn).unwrap();
    assert_eq!(own["Controllers"][0]["Address"], format!("traddr=127.0.0.1,trsvcid={port}"));
    assert_eq!(own["Namespaces"][0]["NameSpace"], *place);
    // A device of this machine is a disk, and no subsystem.
    let local = Disk::start(&["--bdev", "ram:1M,bs=4096"]);
    let found = listed(&run(&["list", "-o", "json"]), &local.place).unwrap();
    assert_eq!((&found["NameSpace"], &found["SectorSize"]), (&0.into(), &4096.into()));
    assert!(!run(&["list-subsys"]).contains(&local.place));
    // A path that is lost is not live, and a disk whose process stands still is still there.
    drop(daemon);
    wait_for(|| run(&["list-subsys"]).contains(&format!("{path}resetting\n")));
    let pid = disk.child.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    assert!(run(&["list-subsys"]).contains(&format!("{path}unknown\n")));
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
    let said = run(&["disconnect", "-d", &place]);
    assert_eq!(said, format!("disconnected {place}\n"));
    disk.child.wait().unwrap();
    assert!(!Path::new(&disk.rpc).exists(), "its socket is left");
    // A daemon that is named has to be there, whatever disks there are.
    let mut named = Command::new(env!("CARGO_BIN_EXE_raceline"));
    let output = named.args(["list", "--socket", "/nowhere/rpc.sock"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// Another user has no disks here. The test is for root, who can be that user.
#[test]
fn without_a_disk_and_a_daemon_the_error_names_both() {
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    // Where it could make one.
    let given = std::os::unix::fs::chown(directory.path(), Some(NOBODY), None);
    let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
    command.arg("list").env_remove("RACELINE_RPC_SOCKET").current_dir("/");
    command.env("XDG_RUNTIME_DIR", directory.path()).uid(NOBODY);
    let (Ok(()), Ok(output)) = (given, command.output()) else {
        println!("SKIPPED: this user cannot run the program as user {NOBODY}");
        return;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains("no disk of raceline connect runs, and there is no daemon at "),
        "{error}"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "who looks makes no folder");
}

#[test]
fn what_a_killed_process_has_left_disturbs_nobody() {
    let mut disk = Disk::start(&["--bdev", "ram:1M"]);
    let other = Disk::start(&["--bdev", "ram:1M"]);
    let rpc = PathBuf::from(&disk.rpc);
    assert_eq!(fs::metadata(&rpc).unwrap().permissions().mode() & 0o777, 0o600);
    disk.child.kill().unwrap();
    disk.child.wait().unwrap();
    let text = run(&["list", "-o", "json"]);
    assert!(listed(&text, &disk.place).is_none() && listed(&text, &other.place).is_some());
    assert!(!rpc.exists(), "whoever looks removes it");
    // A disk whose socket somebody has removed goes on, and is listed.
    fs::remove_file(&other.rpc).unwrap();
    other.client().write(7, 9);
    let found = listed(&run(&["list", "-o", "json"]), &other.place).unwrap();
    assert_eq!(found["PhysicalSize"], 1 << 20);
    run(&["disconnect", "-d", &other.place]);
}

/// Clients of NBD that speak another protocol; the disk says so at the level of information.
fn speak_wrongly(disk: &Disk, times: usize) {
    for _ in 0..times {
        let mut stream = UnixStream::connect(&disk.place).unwrap();
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        // Until it is closed.
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

#[test]
fn the_level_of_the_log_changes_while_the_disk_goes_on() {
    const REFUSED: &str = "refused an NBD client";
    let disk = Disk::start(&["--bdev", "ram:1M"]);
    let mut client = disk.client();
    client.write(3, 0x5a);
    assert_eq!(disk.call(&["log_get_level"]), "NOTICE");
    speak_wrongly(&disk, 2);
    run(&["rpc", "-s", &disk.rpc, "log_set_level", "INFO"]);
    assert_eq!(disk.call(&["log_get_level"]), "INFO");
    // What is repeated has a limit at the new level, too.
    speak_wrongly(&disk, 20);
    wait_for(|| disk.log().matches(REFUSED).count() >= 5);
    wait_for(|| disk.log().contains("15 more in the last "));
    let log = disk.log();
    assert_eq!(log.matches(&format!("INFO {REFUSED}")).count(), 5, "{log}");
    assert!(log.contains("\"method\":\"log_set_level\""), "the change is in the audit: {log}");
    assert!(!log.contains("DEBUG"), "{log}");
    run(&["rpc", "-s", &disk.rpc, "log_set_level", "DEBUG"]);
    UnixStream::connect(&disk.rpc).unwrap().write_all(b"[").unwrap();
    wait_for(|| disk.log().contains("DEBUG"));
    run(&["rpc", "-s", &disk.rpc, "log_set_level", "ERROR"]);
    run(&["rpc", "-s", &disk.rpc, "log_set_print_level", "ERROR"]);
    let before = disk.log().len();
    speak_wrongly(&disk, 2);
    assert_eq!(client.read(3), [0x5a; BLOCK], "the connection is the same");
    assert_eq!(disk.log().len(), before, "{}", disk.log());
}

#[test]
fn a_disk_tells_what_it_is_and_what_it_has_done() {
    let nqn = nqn("tells");
    let (_daemon, port) = target_of(&nqn);
    let words = ["-a", "127.0.0.1", "-s", &port, "-n", &nqn, "-i", "2", "--read-only"];
    let disk = Disk::start(&words);
    let told = disk.tells();
    assert_eq!((&told["kind"], &told["read_only"]), (&"nbd".into(), &true.into()));
    assert_eq!((&told["num_blocks"], &told["block_size"]), (&32768.into(), &512.into()));
    assert_eq!(told["places"], serde_json::json!([disk.place]));
    let controller = &told["controller"];
    assert_eq!((&controller["subnqn"], &controller["nsid"]), (&(*nqn).into(), &1.into()));
    let path = &controller["ctrlrs"][0];
    assert_eq!((&path["state"], &path["trid"]["trsvcid"]), (&"enabled".into(), &(*port).into()));
    let names: Vec<&Value> =
        told["cores"].as_array().unwrap().iter().map(|core| &core["name"]).collect();
    assert_eq!(names, ["nbd-0", "nbd-1"]);
    assert_eq!((&told["counts"]["reads"], &told["counts"]["queues"]), (&0.into(), &0.into()));
    let mut client = disk.client();
    for block in 0..5 {
        client.read(block);
    }
    let counts = disk.tells()["counts"].clone();
    for (name, count) in [("reads", 5), ("read_bytes", 5 * 512), ("writes", 0), ("queues", 1)] {
        assert_eq!(counts[name], count, "{name}: {counts}");
    }
    let busy = |told: &Value| told["cores"][0]["busy_us"].as_u64().unwrap();
    assert!(busy(&disk.tells()) > 0);
    // It has no methods of a daemon, and says where it is.
    let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
    let output = command.args(["rpc", "-s", &disk.rpc, "bdev_get_bdevs"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("-32601") && error.contains("serves one disk"), "{error}");
}

/// What a socket that is connected to answers until it is closed or nothing comes for this time.
fn answers(stream: &mut UnixStream, time: Duration) -> String {
    stream.set_read_timeout(Some(time)).unwrap();
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Says that it is over when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn clients_who_want_to_disturb_disturb_neither_the_disk_nor_others_for_long() {
    let disk = Disk::start(&["--bdev", "ram:1M"]);
    let is_over = AtomicBool::new(false);
    let connect = || UnixStream::connect(&disk.rpc).unwrap();
    let done = std::thread::scope(|scope| {
        // The user ends with the test, however that ends.
        let end = End(&is_over);
        // A user of the disk, who sees each block as he has written it.
        let user = scope.spawn(|| {
            let (mut client, mut done, mut slowest) = (disk.client(), 0_u64, Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) {
                let (block, byte, began) = (done % 2048, (done % 251) as u8, Instant::now());
                client.write(block, byte);
                assert_eq!(client.read(block), [byte; BLOCK]);
                slowest = slowest.max(began.elapsed());
                done += 1;
            }
            (done, slowest)
        });
        // Garbage, and bytes that are no text.
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0xff; 4096], b"}{"] {
            let mut stream = connect();
            let _ = stream.write_all(bytes);
            let said = answers(&mut stream, Duration::from_secs(10));
            assert!(said.contains("-32700"), "{said}");
        }
        // A request of 1 MiB that has no end.
        let mut stream = connect();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(format!("[\"{}", "a".repeat(1 << 20)).as_bytes());
        let said = answers(&mut stream, Duration::from_secs(10));
        assert!(said.is_empty() || said.contains("more than 65536 bytes"), "{said}");
        // 200 connections, of which those beyond the eighth are told to go; then the places are free again, although clients
        // send a byte at a time.
        let mut crowd: Vec<UnixStream> = (0..200).map(|_| connect()).collect();
        let said = answers(crowd.last_mut().unwrap(), Duration::from_secs(10));
        assert!(said.contains("8 clients are connected already"), "{said}");
        crowd.iter_mut().take(8).for_each(|stream| drop(stream.write_all(b"[\"")));
        let began = Instant::now();
        while !disk.answers() {
            crowd.iter_mut().take(8).for_each(|stream| drop(stream.write_all(b"a")));
            assert!(began.elapsed() < Duration::from_secs(30), "the places are taken for ever");
            std::thread::sleep(Duration::from_millis(200));
        }
        drop(crowd);
        // One who asks and does not read.
        let mut stream = connect();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let request = br#"{"jsonrpc":"2.0","method":"raceline_get_disk","id":1}"#;
        for _ in 0..20_000 {
            if stream.write_all(request).is_err() {
                break;
            }
        }
        assert_eq!(disk.tells()["kind"], "nbd");
        drop(end);
        user.join().unwrap()
    });
    let (done, slowest) = done;
    println!("{done} writes and reads, of which the slowest pair took {slowest:?}");
    assert!(done > 100 && slowest < Duration::from_secs(5), "{done} in {slowest:?} at most");
    let counts = disk.tells()["counts"].clone();
    assert_eq!((&counts["writes"], &counts["errors"]), (&done.into(), &0.into()), "{counts}");
}
