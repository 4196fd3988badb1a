//! Exclusive use of devices: each refusal names the reason and what to do.
#![allow(clippy::unwrap_used, reason = "a test program")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Loop, Mount, open, refused};

const MIB: u64 = 1 << 20;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file of 1 MiB.
fn image(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    File::create(&path).unwrap().set_len(MIB).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn a_file_is_opened_once() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let hard = directory.path().join("hard");
    fs::hard_link(&path, &hard).unwrap();
    let device = open(&format!("file:{path}")).unwrap();
    for same in [path.as_str(), link.to_str().unwrap(), hard.to_str().unwrap()] {
        for options in ["", ",readonly"] {
            let message = refused(&format!("{same}{options}"));
            assert_says(&message, &["is in use: this process has it open already as", "/disk`"]);
        }
    }
    drop(device);
    drop(open(&path).unwrap());
    drop(open(&format!("{path},readonly")).unwrap());
}

/// When a deleted file is closed, a new one may get its number at once: nothing of the old one may be in its way.
#[test]
fn a_new_file_is_not_taken_for_a_deleted_one() {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let directory = directory();
                for round in 0..200 {
                    let path = image(directory.path(), &format!("{thread}-{round}"));
                    let device = open(&format!("file:{path}")).unwrap();
                    fs::remove_file(&path).unwrap();
                    drop(device);
                }
            });
        }
    });
}

/// A process that holds an flock(2) until its input ends, started and ready.
struct Locker(std::process::Child);

impl Locker {
    fn new(kind: &str, path: &str) -> Option<Self> {
        let child = Command::new("flock")
            .args([kind, path, "sh", "-c", "echo locked; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| eprintln!("SKIPPED: no flock(1): {error}")).ok()?;
        let mut ready = [0; 7];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        Some(Self(child))
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn a_file_locked_by_another_process_is_refused_with_its_name() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let Some(locker) = Locker::new("--exclusive", &path) else { return };
    assert_says(&refused(&path), &["is in use: process ", "(flock", "has locked it"]);
    assert_says(&refused(&format!("{path},readonly")), &["is in use: process "]);
    drop(locker);
    drop(open(&path).unwrap());

    // Readers share, as far as other processes go.
    let Some(_locker) = Locker::new("--shared", &path) else { return };
    assert_says(&refused(&path), &["is in use: process "]);
    drop(open(&format!("{path},readonly")).unwrap());
}

/// Virtual machines lock byte ranges, which an flock does not see.
#[test]
fn a_file_with_another_kind_of_lock_is_refused() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let posix = "fcntl.lockf(f, fcntl.LOCK_EX, 1, 100)";
    let shared = "fcntl.lockf(f, fcntl.LOCK_SH, 1, 100)";
    // As QEMU locks its images: the lock is the open file's, no process's.
    let open_file =
        "fcntl.fcntl(f, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 100, 1, 0))";
    let process = ["is in use: process ", "(python3", "has locked it"];
    for (lock, says, readers) in [
        (posix, process.as_slice(), false),
        (shared, &process, true),
        (open_file, &["is in use: another program has locked it"], false),
    ] {
        let script = format!(
            "import fcntl, struct, sys; f = open(sys.argv[1], 'r+'); {lock}; print('locked', flush=True); sys.stdin.read()"
        );
        let child = Command::new("python3")
            .args(["-c", &script, &path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else { return eprintln!("SKIPPED: no python3") };
        let mut ready = [0; 7];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        // The list of all locks misses one when others change it; this process's and other tests' locks do.
        for _ in 0..200 {
            assert_says(&refused(&path), says);
        }
        let reads = format!("{path},readonly");
        if readers {
            drop(open(&reads).unwrap());
        } else {
            assert_says(&refused(&reads), says);
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        drop(open(&path).unwrap());
    }
}

#[test]
fn a_file_behind_a_loop_device_is_refused() {
    let directory = directory();
    let path = image(directory.path(), "disk image");
    let Some(disk) = Loop::new(Path::new(&path), &[]) else { return };
    assert_says(&refused(&path), &["is in use: it backs ", disk.path(), "losetup -d"]);
    drop(disk);
    // The kernel lets go when the last process that has the loop device open does: other programs
    // look at new devices, too.
    let start = std::time::Instant::now();
    while let Err(error) = open(&path) {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{error}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_block_device_is_opened_once() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let Some(disk) = Loop::new(Path::new(&path), &[]) else { return };
    let device = open(&format!("block:{}", disk.path())).unwrap();
    assert_says(&refused(disk.path()), &["this process has it open already"]);
    // Another process that wants it exclusively is refused by the kernel, as mount(8) is.
    let other = common::command("mkfs.ext4", &["-q", disk.path()]).unwrap_err();
    assert!(other.contains("in use"), "{other}");
    drop(device);
    // A process that another test is starting has a copy of the descriptor for a moment.
    let start = std::time::Instant::now();
    while let Err(error) = common::command("mkfs.ext4", &["-q", "-F", disk.path()]) {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{error}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_mounted_block_device_is_refused_with_its_mount_point() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let at = directory.path().join("mount point");
    fs::create_dir(&at).unwrap();
    let Some(disk) = Loop::new(Path::new(&path), &[]) else { return };
    common::command("mkfs.ext4", &["-q", disk.path()]).unwrap();
    let Some(mount) = Mount::new("ext4", "rw", disk.path(), &at) else { return };
    for options in ["", ",readonly"] {
        let message = refused(&format!("block:{}{options}", disk.path()));
        assert_says(&message, &["is in use: it is mounted on ", "/mount point"]);
    }
    drop(mount);
    drop(open(disk.path()).unwrap());
}

#[test]
fn what_may_only_be_read_needs_readonly() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let Some(disk) = Loop::new(Path::new(&path), &["--read-only"]) else { return };
    assert_says(&refused(disk.path()), &["is read-only: make it writable, or add `,readonly`"]);
    assert!(open(&format!("{},readonly", disk.path())).unwrap().info().read_only);
    drop(disk);

    let at = directory.path().join("mounted");
    fs::create_dir(&at).unwrap();
    let Some(_mount) = Mount::new("tmpfs", "size=2M", "none", &at) else { return };
    let path = image(&at, "disk");
    common::command("mount", &["-o", "remount,ro", at.to_str().unwrap()]).unwrap();
    let message = refused(&format!("file:{path},buffered"));
    assert_says(&message, &["is read-only: make it writable, or add `,readonly`"]);
    drop(open(&format!("file:{path},buffered,readonly")).unwrap());
}

#[test]
fn sizes_are_checked() {
    let directory = directory();
    let path = image(directory.path(), "disk");
    let message = refused(&format!("file:{path},size=2M"));
    assert_says(&message, &["exists with 1M, not 2M: leave out size=", "truncate -s 2097152"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB, "untouched");
    drop(open(&format!("file:{path},size=1M")).unwrap());

    File::options().write(true).open(&path).unwrap().set_len(MIB + 100).unwrap();
    assert_says(&refused(&path), &["has 1048676 bytes", "not a multiple", "truncate -s 1049088"]);
    File::options().write(true).open(&path).unwrap().set_len(MIB + 512).unwrap();
    assert_says(&refused(&format!("{path},bs=4096")), &["1049088 bytes", "4096", "use bs=512"]);
    File::create(&path).unwrap();
    assert_says(&refused(&path), &["has no blocks"]);
}

#[test]
fn what_is_not_there_or_something_else_is_refused() {
    let directory = directory();
    let missing = directory.path().join("missing");
    let text = missing.to_str().unwrap();
    assert_says(&refused(text), &["does not exist; to create it", "size=1G"]);
    assert_says(&refused(&format!("block:{text}")), &["there is no such device", "lsblk"]);
    assert_says(&refused(&format!("file:{text}/x,size=1M")), &["cannot create it"]);
    assert!(!missing.exists());
    let at = directory.path().to_str().unwrap();
    assert_says(&refused(at), &["is a directory: name a file in it"]);
    assert_says(&refused("/dev/null"), &["neither a regular file nor a block device"]);
    assert_says(&refused("block:/dev/null"), &["is not a block device"]);
    let fifo = directory.path().join("fifo");
    common::command("mkfifo", &[fifo.to_str().unwrap()]).unwrap();
    assert_says(&refused(fifo.to_str().unwrap()), &["neither a regular file nor"]); // and no hang
    let file = image(directory.path(), "disk");
    assert_says(&refused(&format!("block:{file}")), &["is not a block device", "file: before"]);
    if let Some(disk) = Loop::new(Path::new(&file), &[]) {
        assert_says(&refused(&format!("file:{}", disk.path())), &["is a block device", "block:"]);
    }
}

/// /proc has regular files without direct I/O; a file made for nothing is removed again.
#[test]
fn no_direct_io_is_an_error_unless_buffered() {
    let message = refused("/proc/self/status,readonly");
    assert_says(&message, &["proc cannot do direct I/O here; add `,buffered`"]);
}

#[test]
fn more_ram_than_there_is_is_refused_with_figures() {
    let message = refused("ram:16000T");
    assert_says(&message, &["16000T of memory is more than the ", " leaves: make it smaller"]);
    let message = refused("ram:4000T,hugepages");
    assert_says(&message, &["huge pages cannot be had", "vm.nr_hugepages=2097152000"]);
}

#[test]
fn memory_devices_have_stable_identities_by_order() {
    let identity = || raceline_bdev::Identity::from_seed(b"machine");
    let uuids = |identity: &raceline_bdev::Identity| {
        ["ram:1M", "ram:1M", "null:1M"]
            .map(|spec| raceline_bdev::open(&spec.parse().unwrap(), identity).unwrap().info().uuid)
    };
    let first = uuids(&identity());
    assert_eq!(first, uuids(&identity()));
    assert!(first[0] != first[1] && first[1] != first[2]);
}
