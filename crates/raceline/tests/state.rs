//! `raceline serve` on a state directory that is damaged or in use, or on a full disk.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use raceline_crc32c::crc32c;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Output, Served, call, configure, run};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
/// The unit of the log.
const BLOCK_BYTES: usize = 4096;
/// A user with no rights.
const NOBODY: u32 = 65534;

/// A state directory, and the socket of its daemon.
struct Kept {
    directory: tempfile::TempDir,
}

impl Kept {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A directory with a configuration file and a log after it, both with changes, as SIGKILL leaves it.
    /// Also gives the configured devices.
    fn filled() -> (Self, Value) {
        let kept = Self::new();
        let served = kept.start();
        for number in 0..3 {
            kept.make(number);
        }
        assert_eq!(served.end(Signal::TERM).code, Some(0));
        let served = kept.start();
        for number in 3..9 {
            kept.make(number);
        }
        let bdevs = kept.bdevs();
        served.end(Signal::KILL);
        (kept, bdevs)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/rpc.sock")
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn start(&self) -> Served {
        Served::start(&self.socket(), &["--state-dir", self.state().to_str().unwrap()])
    }

    fn make(&self, number: usize) {
        let params = json!({ "name": format!("m{number}"), "num_blocks": 64, "block_size": 512 });
        call(&self.socket(), "bdev_malloc_create", params).unwrap();
    }

    fn bdevs(&self) -> Value {
        call(&self.socket(), "bdev_get_bdevs", Value::Null).unwrap()
    }

    /// The files with this suffix, the newest last.
    fn files(&self, suffix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state()).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        // The list of changes is no part of the configuration.
        files.retain(|file| {
            file.to_str().unwrap().ends_with(suffix) && !file.ends_with("history.json")
        });
        files.sort();
        files
    }

    fn newest(&self, suffix: &str) -> PathBuf {
        self.files(suffix).pop().unwrap()
    }

    /// The content of all files except the lock.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = self.files(".json");
        files.extend(self.files(".log"));
        files.into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect()
    }

    /// Checks that a start is refused with these words, has opened nothing, and has changed no file.
    fn refuses(&self, words: &[&str]) -> Output {
        let before = self.contents();
        let output = Served::fail(&self.socket(), &["--state-dir", self.state().to_str().unwrap()]);
        check_refusal(&output, words);
        // A socket file that exists is what SIGKILL has left.
        assert!(UnixStream::connect(self.socket()).is_err());
        assert!(self.contents() == before, "files were changed");
        output
    }

    /// Checks that a start brings these devices back.
    fn holds(&self, bdevs: &Value) -> Output {
        let served = self.start();
        assert_eq!(self.bdevs(), *bdevs);
        served.end(Signal::KILL)
    }
}

fn check_refusal(output: &Output, words: &[&str]) {
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert_eq!(output.stdout, "");
    let line = output.stderr.lines().last().unwrap();
    for word in words {
        assert!(line.contains(word), "no `{word}` in: {line}");
    }
}

fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

/// The end of the last block of a log that holds anything but zeroes.
fn filled_bytes(log: &Path) -> usize {
    let bytes = fs::read(log).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    (last + 1).next_multiple_of(BLOCK_BYTES)
}

#[test]
fn a_flipped_bit_in_the_configuration_is_named_and_the_previous_one_serves() {
    let (kept, bdevs) = Kept::filled();
    let newest = kept.newest(".json");
    let name = newest.file_name().unwrap().to_str().unwrap();
    let (good, previous) = (fs::read(&newest).unwrap(), kept.files(".json")[0].clone());
    let previous = previous.file_name().unwrap().to_str().unwrap();
    for offset in [0, good.len() / 3, good.len() - 8] {
        let mut bad = good.clone();
        bad[offset] ^= 0x10;
        fs::write(&newest, bad).unwrap();
        let remedy = format!("Move {name} away and start again: {previous} and the log");
        kept.refuses(&[newest.to_str().unwrap(), "at byte", "nothing was started", &remedy]);
    }
    // Exactly the remedy in the message.
    fs::rename(&newest, kept.directory.path().join("away")).unwrap();
    kept.holds(&bdevs);
}

#[test]
fn an_empty_or_half_written_configuration_is_named_and_kept() {
    let (kept, bdevs) = Kept::filled();
    let [previous, newest] = kept.files(".json").try_into().unwrap();
    let (good, older) = (fs::read(&newest).unwrap(), fs::read(&previous).unwrap());
    let name = newest.file_name().unwrap().to_str().unwrap();
    for length in [0, 1, good.len() / 2, good.len() - 8] {
        fs::write(&newest, &good[..length]).unwrap();
        let remedy = format!("Move {name} away and start again");
        kept.refuses(&[newest.to_str().unwrap(), "is damaged at byte", &remedy]);
    }
    // Where the previous one is damaged as well, the message does not send anybody there.
    for length in [0, older.len() / 2] {
        fs::write(&previous, &older[..length]).unwrap();
        kept.refuses(&[newest.to_str().unwrap(), "nothing was started", "Restore it from a copy"]);
    }
    fs::write(&newest, good).unwrap();
    fs::write(&previous, older).unwrap();
    kept.holds(&bdevs);
}

#[test]
fn a_flipped_byte_in_the_middle_of_the_log_is_named() {
    let (kept, bdevs) = Kept::filled();
    let log = kept.newest(".log");
    let good = fs::read(&log).unwrap();
    for (block, named) in [(0, 0), (1, BLOCK_BYTES), (3, 3 * BLOCK_BYTES)] {
        let mut bad = good.clone();
        bad[block * BLOCK_BYTES + 50] ^= 1;
        fs::write(&log, bad).unwrap();
        let place = format!("{} is damaged at byte {named}", log.display());
        kept.refuses(&[&place, "nothing was started", "Restore the directory from a copy"]);
    }
    // A block that was lost altogether, with valid blocks behind it.
    let mut bad = good.clone();
    bad[2 * BLOCK_BYTES..3 * BLOCK_BYTES].fill(0);
    fs::write(&log, bad).unwrap();
    kept.refuses(&[&format!("at byte {}", 2 * BLOCK_BYTES), "though more follow at byte"]);
    fs::write(&log, good).unwrap();
    kept.holds(&bdevs);
}

#[test]
fn a_log_that_was_cut_off_is_named() {
    let (kept, bdevs) = Kept::filled();
    let log = kept.newest(".log");
    let (good, end) = (fs::read(&log).unwrap(), filled_bytes(&log));
    // Cut within its header, which was durable before anything relied on it.
    for length in [0, 100, BLOCK_BYTES - 1] {
        fs::write(&log, &good[..length]).unwrap();
        kept.refuses(&[log.to_str().unwrap(), "at byte 0", "nothing was started"]);
    }
    // Cut before changes that a configuration needs: without the newest one, this log is in the middle.
    let newest = kept.newest(".json");
    let previous_log = kept.files(".log")[0].clone();
    let previous = fs::read(&previous_log).unwrap();
    fs::write(&log, &good).unwrap();
    fs::rename(&newest, kept.directory.path().join("away")).unwrap();
    fs::write(&previous_log, &previous[..2 * BLOCK_BYTES]).unwrap();
    kept.refuses(&[previous_log.to_str().unwrap(), "are missing, though later ones exist"]);
    fs::write(&previous_log, previous).unwrap();
    fs::rename(kept.directory.path().join("away"), &newest).unwrap();
    kept.holds(&bdevs);
    // Cut within its last group, as by a power cut before its changes were acknowledged: the daemon reports
    // it, and everything before it is there.
    fs::write(&log, &good[..end - 100]).unwrap();
    let served = kept.start();
    let mut fewer = bdevs.as_array().unwrap().clone();
    fewer.retain(|bdev| bdev["name"] != "m8");
    assert_eq!(kept.bdevs(), Value::Array(fewer));
    let output = served.end(Signal::KILL);
    let said = format!("bytes at {} are a write that was interrupted", end - BLOCK_BYTES);
    assert!(output.stderr.contains(&said), "{}", output.stderr);
    assert!(output.stderr.contains(log.to_str().unwrap()), "{}", output.stderr);
}

#[test]
fn another_version_is_named() {
    let (kept, bdevs) = Kept::filled();
    let (newest, log) = (kept.newest(".json"), kept.newest(".log"));
    let good = fs::read(&newest).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    fs::write(&newest, text.replace("\"format\":1", "\"format\":7")).unwrap();
    let remedy = "use the version of raceline that wrote it, or a newer one";
    let found = format!("{} has format 7, this program knows format 1", newest.display());
    kept.refuses(&[&found, remedy]);
    fs::write(&newest, good).unwrap();
    let good = fs::read(&log).unwrap();
    change(&log, |bytes| {
        // Magic, checksum of the rest of the block, format.
        bytes[12] = 9;
        let sum = crc32c(&bytes[12..BLOCK_BYTES]).to_le_bytes();
        bytes[8..12].copy_from_slice(&sum);
    });
    kept.refuses(&[&format!("{} has format 9", log.display()), remedy]);
    fs::write(&log, good).unwrap();
    kept.holds(&bdevs);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let (kept, bdevs) = Kept::filled();
    let state = kept.state();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o770)).unwrap();
    kept.refuses(&["may be written by others (mode 770)", "chmod go-w"]);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();

    let file = kept.directory.path().join("file");
    fs::write(&file, "x").unwrap();
    let output = Served::fail(&kept.socket(), &["--state-dir", file.to_str().unwrap()]);
    check_refusal(&output, &[file.to_str().unwrap(), "wants a directory"]);

    // Permissions do not stop root, so the daemon runs as another user.
    let user = rustix::process::geteuid().is_root().then_some(NOBODY);
    let run = tempfile::tempdir().unwrap();
    let locked = run.path().join("locked");
    fs::create_dir(&locked).unwrap();
    if let Some(user) = user {
        std::os::unix::fs::chown(run.path(), Some(user), None).unwrap();
    }
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    let arguments = ["--state-dir", locked.to_str().unwrap()];
    let output = Served::fail_as(user, &run.path().join("rpc.sock"), &arguments);
    check_refusal(&output, &[locked.to_str().unwrap(), "Permission denied", "give it to the user"]);
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o700)).unwrap();
    kept.holds(&bdevs);
}

#[test]
fn root_starts_nothing_in_folders_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: only root may write in folders of another user");
    }
    let kept = Kept::new();
    let run = kept.directory.path().join("run");
    for (theirs, others) in [(kept.state(), run.clone()), (run.clone(), kept.state())] {
        for (folder, user) in [(&others, 0), (&theirs, NOBODY)] {
            let _ = fs::create_dir(folder);
            std::os::unix::fs::chown(folder, Some(user), Some(user)).unwrap();
        }
        // As another user's daemon may take its place: none is there.
        for more in [&[][..], &["--detach"], &["--take-over"]] {
            let state = kept.state();
            let arguments = [&["--state-dir", state.to_str().unwrap()], more].concat();
            let output = Served::fail(&kept.socket(), &arguments);
            check_refusal(&output, &[theirs.to_str().unwrap(), "belongs to user", "run this as"]);
            for folder in [&theirs, &others] {
                assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "{}", folder.display());
            }
        }
    }
    // A daemon of root's that is there may be replaced, and a sticky folder is everybody's.
    fs::write(kept.socket(), "").unwrap();
    let state = kept.state();
    let output =
        Served::fail(&kept.socket(), &["--state-dir", state.to_str().unwrap(), "--take-over"]);
    assert!(!output.stderr.contains("belongs to user"), "{}", output.stderr);
    fs::remove_file(kept.socket()).unwrap();
    fs::remove_dir_all(&state).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o1777)).unwrap();
    std::os::unix::fs::chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
    let served = Served::start(&kept.socket(), &["--state-dir", state.to_str().unwrap()]);
    assert_eq!(served.end(Signal::TERM).code, Some(0));
    // Both that user's folders and root's serve their own.
    fs::set_permissions(kept.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for user in [NOBODY, 0] {
        for folder in [kept.state(), run.clone()] {
            fs::remove_dir_all(&folder).unwrap();
            fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, Some(user), Some(user)).unwrap();
        }
        let (reuid, regid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let prefix = ["setpriv", &reuid, &regid, "--clear-groups", "--"];
        let state = kept.state();
        let arguments = ["--state-dir", state.to_str().unwrap()];
        let served = Served::start_by(&prefix, &kept.socket(), &arguments);
        assert_eq!(served.end(Signal::TERM).code, Some(0));
    }
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let (kept, bdevs) = Kept::filled();
    let served = kept.start();
    let before = kept.contents();
    let other = kept.directory.path().join("other.sock");
    let state = kept.state();
    let arguments = ["--state-dir", state.to_str().unwrap()];
    let output = Served::fail(&other, &arguments);
    let holder = format!("process {}", served.pid());
    check_refusal(&output, &["is in use by another raceline", &holder, "--state-dir of its own"]);
    assert!(!other.exists() && kept.contents() == before);
    assert_eq!(kept.bdevs(), bdevs);
    kept.make(9);
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

/// The generation of the discovery log that hosts see.
fn generation(socket: &Path) -> u64 {
    let listeners = call(socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    let output = run(&["discover", "-a", "127.0.0.1", "-s", port, "-o", "json"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let log: Value = serde_json::from_str(&output.stdout).unwrap();
    log["genctr"].as_u64().unwrap()
}

#[test]
fn the_generation_of_discovery_grows_over_kills() {
    let kept = Kept::new();
    let mut served = kept.start();
    configure(&kept.socket(), NQN, 16384);
    let mut last = generation(&kept.socket());
    for round in 0..4 {
        let nqn = format!("nqn.2016-06.io.spdk:more{round}");
        call(&kept.socket(), "nvmf_create_subsystem", json!({ "nqn": nqn })).unwrap();
        let changed = generation(&kept.socket());
        assert!(changed > last, "{changed} after {last}");
        if round == 2 {
            assert_eq!(served.end(Signal::TERM).code, Some(0));
        } else {
            served.end(Signal::KILL);
        }
        served = kept.start();
        last = generation(&kept.socket());
        assert!(last >= changed, "{last} after a restart, {changed} before");
    }
    served.end(Signal::KILL);
}

/// A small file system in a mount namespace of its own, which this process keeps alive.
struct SmallDisk {
    keeper: Child,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl SmallDisk {
    /// `None`, with a message, if it cannot be mounted.
    fn mount(kind: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: mounting a small {kind} wants root");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        fs::create_dir(&path).unwrap();
        let (image, disk) = (directory.path().join("image"), path.display());
        let mount = match kind {
            "tmpfs" => format!("mount -t tmpfs -o size=12m none {disk}"),
            _ => {
                fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
                let image = image.display();
                format!("mkfs.{kind} -q -F {image} && mount -o loop {image} {disk}")
            }
        };
        let script = format!("{mount} && echo mounted && read line");
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let mut keeper = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        let _ = BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line);
        let disk = Self { keeper, path, _directory: directory };
        if line.trim() == "mounted" {
            return Some(disk);
        }
        println!("SKIPPED: no {kind} can be mounted here");
        None
    }

    /// The path of the file for this process.
    fn outside(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.path.strip_prefix("/").unwrap()).join(name)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.outside("filler")).unwrap();
        for bytes in [1 << 20, BLOCK_BYTES, 512] {
            let piece = vec![1; bytes];
            while file.write_all(&piece).and_then(|()| file.sync_data()).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.outside("filler")).unwrap();
    }

    fn start(&self, socket: &Path) -> Served {
        let keeper = self.keeper.id().to_string();
        let state = self.path.join("state");
        let prefix = ["nsenter", "--mount", "--target", &keeper, "--"];
        Served::start_by(&prefix, socket, &["--state-dir", state.to_str().unwrap()])
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Closing its input ends the keeper, and its mounts with it.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Makes devices until one is refused; gives the number made and the refusal.
fn make_until_refused(socket: &Path, prefix: &str) -> (usize, Value) {
    for number in 0..10_000 {
        let name = format!("{prefix}{number}");
        let params = json!({ "name": name, "num_blocks": 2048, "block_size": 512 });
        if let Err(error) = call(socket, "bdev_null_create", params) {
            return (number, error);
        }
    }
    panic!("the disk is not full");
}

/// Everything that clients can ask for.
fn snapshot(socket: &Path) -> Value {
    let ask = |method: &str| call(socket, method, Value::Null).unwrap();
    json!([ask("bdev_get_bdevs"), ask("nvmf_get_subsystems"), ask("nvmf_get_transports")])
}

fn check_full(error: &Value) {
    let text = error.to_string();
    assert_eq!(error["code"], -rustix::io::Errno::NOSPC.raw_os_error(), "{text}");
    for word in ["no room in", "nothing has changed", "make room and try again"] {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}

fn survive_a_full_disk(kind: &str) {
    let Some(disk) = SmallDisk::mount(kind) else { return };
    let run = tempfile::tempdir().unwrap();
    let socket = run.path().join("rpc.sock");
    let served = disk.start(&socket);
    configure(&socket, NQN, 16384);
    let listeners = call(&socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned();
    let io = ["perf", "-a", "127.0.0.1", "-s", &port, "-n", NQN, "--rw", "randrw", "--verify"];
    let io = std::thread::spawn({
        let io: Vec<String> = io.iter().map(|word| (*word).to_owned()).collect();
        move || {
            let mut words: Vec<&str> = io.iter().map(String::as_str).collect();
            words.extend(["--runtime", "3s", "-o", "json"]);
            run_io(&words)
        }
    });
    disk.fill();
    // Room reserved earlier is used up first; after that nothing changes any more.
    let (made, error) = make_until_refused(&socket, "n");
    check_full(&error);
    let before = snapshot(&socket);
    assert_eq!(before[0].as_array().unwrap().len(), made + 1);
    for (method, params) in [
        ("bdev_null_create", json!({ "name": "x", "num_blocks": 8, "block_size": 512 })),
        ("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 1 })),
        ("nvmf_delete_subsystem", json!({ "nqn": NQN })),
        ("bdev_malloc_delete", json!({ "name": "M" })),
    ] {
        check_full(&call(&socket, method, params).unwrap_err());
        assert_eq!(snapshot(&socket), before, "{method}");
    }
    io.join().unwrap();
    // A kill and a start while the disk is full bring back exactly that.
    served.end(Signal::KILL);
    let served = disk.start(&socket);
    assert_eq!(snapshot(&socket), before);
    check_full(&make_until_refused(&socket, "more").1);
    let before = snapshot(&socket);
    disk.make_room();
    let params = json!({ "name": "after", "num_blocks": 8, "block_size": 512 });
    call(&socket, "bdev_null_create", params).unwrap();
    call(&socket, "bdev_null_delete", json!({ "name": "after" })).unwrap();
    assert_eq!(snapshot(&socket), before);
    served.end(Signal::KILL);
    let served = disk.start(&socket);
    assert_eq!(snapshot(&socket), before);
    // The daemon ends in good order, and a checkpoint without room loses nothing.
    disk.fill();
    let output = served.end(Signal::TERM);
    assert!(matches!(output.code, Some(0 | 1)), "{}", output.stderr);
    let served = disk.start(&socket);
    assert_eq!(snapshot(&socket), before);
    served.end(Signal::KILL);
}

fn run_io(words: &[&str]) {
    let output = run(words);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
}

#[test]
fn a_full_tmpfs_refuses_changes_and_loses_none() {
    survive_a_full_disk("tmpfs");
}

#[test]
fn a_full_ext4_refuses_changes_and_loses_none() {
    survive_a_full_disk("ext4");
}
