//! Which disks of this user run: a locked file for each, in a folder that only this user can use.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// How often it looks whether a process has ended.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a command waits for another one that uses the folder. Each uses it for as long as it takes to read or write small
/// files.
const TURN_TIME: Duration = Duration::from_secs(10);

/// What the kernel shows of locks on files.
const LOCKS: &str = "/proc/locks";

/// A disk that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) kind: String,
    /// The subsystem; none for a device of this machine.
    pub(super) nqn: Option<String>,
    /// By which the subsystem is reached.
    #[serde(default)]
    pub(super) transport: Option<String>,
    /// Sockets and addresses.
    pub(super) places: Vec<String>,
}

/// The folder.
pub(super) struct Registry {
    dir: PathBuf,
}

/// An entry while its process runs: the file is locked, and removed in the end.
pub(super) struct Noted {
    path: PathBuf,
    _lock: File,
}

impl Drop for Noted {
    fn drop(&mut self) {
        // Another one may have cleaned up; without its lock the file means nothing.
        let _ = fs::remove_file(&self.path);
    }
}

impl Registry {
    /// `/run/raceline-disks` for root (`/run/raceline` is the service's), else `raceline` in the runtime directory of the session, else a folder in /tmp.
    pub(super) fn of_this_user() -> Result<Self, Failure> {
        let uid = rustix::process::geteuid().as_raw();
        let dir = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            _ if uid == 0 => PathBuf::from("/run/raceline-disks"),
            Some(dir) if dir.is_absolute() => dir.join("raceline"),
            _ => PathBuf::from(format!("/tmp/raceline-{uid}")),
        };
        Self::at(dir, uid)
    }

    fn at(dir: PathBuf, uid: u32) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::runtime(format!(
                "cannot use {} for the sockets of disks: {error}",
                dir.display()
            ))
        };
        if !dir.is_dir() {
            DirBuilder::new().recursive(true).mode(0o750).create(&dir).map_err(failed)?;
        }
        let found = fs::symlink_metadata(&dir).map_err(failed)?;
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
            return Err(Failure::runtime(format!(
                "{} is not a folder that only this user can write to: others could take the place of a disk; remove it, \
                 or name the socket by --socket",
                dir.display()
            )));
        }
        Ok(Self { dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Notes down that this process serves a disk.
    pub(super) fn add(&self, entry: &Entry) -> Result<Noted, Failure> {
        let path = self.dir.join(format!("disk-{}.json", entry.pid));
        let file = self.put(&path, entry).map_err(|error| {
            Failure::runtime(format!("cannot note the disk down in {}: {error}", path.display()))
        })?;
        Ok(Noted { path, _lock: file })
    }

    fn put(&self, path: &Path, entry: &Entry) -> io::Result<File> {
        let text = serde_json::to_string(entry)?;
        let _turn = self.take_turn()?;
        // It is of a process of the same number that was killed.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    }

    /// Keeps others from putting files in the folder, and from removing those without a lock, until it is dropped: a
    /// file that is made has no lock at first.
    fn take_turn(&self) -> io::Result<File> {
        self.take_turn_within(TURN_TIME)
    }

    fn take_turn_within(&self, time: Duration) -> io::Result<File> {
        let dir = File::open(&self.dir)?;
        let end = Instant::now() + time;
        loop {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(dir),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                Err(Errno::WOULDBLOCK) => {
                    let who = holder(&dir).map_or_else(
                        || "another process".to_owned(),
                        |pid| format!("process {pid}"),
                    );
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "{who} has locked {} for longer than {} s: it may hang; end it, or see what it is with lsof {}",
                            self.dir.display(),
                            time.as_secs(),
                            self.dir.display()
                        ),
                    ));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The disks that run. Files of processes that were killed are removed.
    pub(super) fn running(&self) -> Result<Vec<Entry>, Failure> {
        let failed = |error: io::Error| {
            Failure::runtime(format!("cannot read {}: {error}", self.dir.display()))
        };
        let mut entries = Vec::new();
        let _turn = self.take_turn().map_err(failed)?;
        for found in fs::read_dir(&self.dir).map_err(failed)? {
            let path = found.map_err(failed)?.path();
            let is_entry = path.file_name().is_some_and(|name| {
                let name = name.to_string_lossy();
                name.starts_with("disk-") && name.ends_with(".json")
            });
            if !is_entry {
                continue;
            }
            // It may end meanwhile.
            let Ok(file) = File::open(&path) else { continue };
            if is_free(&file) {
                let _ = fs::remove_file(&path);
            } else if let Ok(entry) = serde_json::from_reader(&file) {
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry: &Entry| entry.pid);
        Ok(entries)
    }

    /// Asks a process to end, and waits until it has.
    pub(super) fn end(&self, entry: &Entry, time: Duration) -> Result<(), Failure> {
        let path = self.dir.join(format!("disk-{}.json", entry.pid));
        let Ok(file) = File::open(&path) else { return Ok(()) };
        // Its lock shows that the process of this number is the one that has written the file.
        let pid = i32::try_from(entry.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| !is_free(&file)) else { return Ok(()) };
        match kill_process(pid, Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                return Err(Failure::runtime(format!("cannot end process {}: {error}", entry.pid)));
            }
        }
        let end = Instant::now() + time;
        while !is_free(&file) {
            if Instant::now() > end {
                return Err(Failure::runtime(format!(
                    "process {} of disk {} has not ended within {} s; what it has in flight at its device may hang",
                    entry.pid,
                    entry.places.join(" "),
                    time.as_secs()
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

/// The process that has locked a file, if the kernel says so.
fn holder(file: &File) -> Option<u32> {
    let found = file.metadata().ok()?;
    holder_in(&fs::read_to_string(LOCKS).ok()?, found.dev(), found.ino())
}

/// The same from the text of proc_locks(5): `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A line with an arrow is of who waits.
        let [_, "FLOCK", _, _, pid, of, ..] = words[..] else { return None };
        // A process of another namespace has no number here.
        pid.parse().ok().filter(|pid| of == place && *pid > 0)
    })
}

/// Whether nobody holds the lock.
fn is_free(file: &File) -> bool {
    let free = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
    if free {
        let _ = flock(file, FlockOperation::Unlock);
    }
    free
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_disk_that_is_noted_down_while_others_look_is_found() {
        const ROUNDS: usize = 5000;
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let registry = Registry::at(dir.path().join("raceline"), uid).unwrap();
        let entry =
            Entry { pid: 7, kind: "nbd".into(), nqn: None, transport: None, places: Vec::new() };
        let is_over = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    registry.running().unwrap();
                }
            });
            let is_lost = |_: &usize| match registry.add(&entry) {
                Ok(noted) => !noted.path.exists(),
                Err(_) => true,
            };
            let lost = (0..ROUNDS).filter(is_lost).count();
            is_over.store(true, Ordering::Relaxed);
            lost
        });
        assert_eq!(lost, 0, "of {ROUNDS}");
        // What a killed process of the same number has left is no hindrance.
        fs::write(registry.dir().join("disk-7.json"), "left").unwrap();
        let _noted = registry.add(&entry).unwrap();
        assert_eq!(registry.running().unwrap(), [entry]);
    }

    #[test]
    fn a_folder_that_stays_locked_is_named_with_who_has_locked_it() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let registry = Registry::at(dir.path().join("raceline"), uid).unwrap();
        let turn = registry.take_turn().unwrap();
        let began = Instant::now();
        let error = registry.take_turn_within(Duration::from_millis(50)).unwrap_err();
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.contains(&format!("has locked {}", registry.dir().display())), "{text}");
        // Where the folder is on a file system whose numbers stat(2) changes, the process is not known.
        let own = format!("process {} has", std::process::id());
        assert!(text.starts_with(&own) || text.starts_with("another process has"), "{text}");
        // Whoever waits in time has the next turn.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                drop(turn);
            });
            registry.take_turn_within(Duration::from_secs(60)).unwrap();
        });
    }

    #[test]
    fn the_kernel_says_who_has_locked_a_file() {
        let text = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 12 fe:01:78 0 EOF\n\
                    3: FLOCK  ADVISORY  WRITE 13 fe:01:77 0 EOF\n\
                    3: -> FLOCK  ADVISORY  WRITE 14 fe:01:77 0 EOF\n\
                    4: FLOCK  ADVISORY  WRITE 0 fe:02:77 0 EOF\n";
        let device = |minor| rustix::fs::makedev(0xfe, minor);
        assert_eq!(holder_in(text, device(1), 77), Some(13));
        assert_eq!(holder_in(text, device(1), 78), Some(12));
        assert_eq!(holder_in(text, device(2), 77), None);
        assert_eq!(holder_in("", device(1), 77), None);
    }

    #[test]
    fn what_runs_is_listed_and_what_is_gone_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let registry = Registry::at(dir.path().join("raceline"), uid).unwrap();
        let entry = Entry {
            pid: std::process::id(),
            kind: "nbd".into(),
            nqn: None,
            transport: None,
            places: vec!["127.0.0.1:1".into()],
        };
        let noted = registry.add(&entry).unwrap();
        fs::write(registry.dir().join("disk-999.json"), "{}").unwrap();
        fs::write(registry.dir().join("disk-x.sock"), "").unwrap();
        assert_eq!(registry.running().unwrap(), [entry]);
        assert!(!registry.dir().join("disk-999.json").exists());
        drop(noted);
        assert!(registry.running().unwrap().is_empty());
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(registry.dir(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Registry::at(registry.dir().to_owned(), uid);
        assert!(refused.err().unwrap().message.contains("others could take the place"));
    }
}
