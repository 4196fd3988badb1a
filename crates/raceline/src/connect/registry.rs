//! Which disks of this user run: a locked file for each, in a folder that only this user can use.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use raceline_control::server::DiskServer;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::units;
use crate::failure::Failure;
use crate::table::printable;

/// How often it looks whether a process has ended.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a command waits for another one that uses the folder. Each uses it for as long as it takes to read or write small
/// files.
const TURN_TIME: Duration = Duration::from_secs(10);

/// The same for the folder of a unit, whose user may hold others up.
const UNIT_TURN_TIME: Duration = Duration::from_secs(1);

/// Most notes of the folder of a unit that are read.
const MAX_UNIT_NOTES: usize = 64;

/// Most entries of the folder of a unit that are looked at, notes or not: its user could put millions there.
const MAX_UNIT_ENTRIES: usize = 256;

/// Most disks of the folder of a unit that count: a unit has one, and its user could note down others to hold root up.
const MAX_UNIT_DISKS: usize = 2;

/// How long `disconnect` waits for a process to end.
pub(super) const END_TIME: Duration = Duration::from_secs(30);

/// When the disks of a unit's folder have to have ended.
pub(super) type Ends = HashMap<PathBuf, Instant>;

/// The end of the name of a disk's socket, beside that of its file.
const SOCKET: &str = "rpc";

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

/// What stands in the file of a disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Note {
    #[serde(flatten)]
    pub(super) entry: Entry,
    /// What `raceline_get_disk` gave at the beginning, without figures.
    #[serde(default)]
    pub(super) facts: Value,
}

/// An entry of a disk that runs, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) entry: Entry,
    /// What the disk was at its beginning; null if that is not known.
    pub(super) facts: Value,
    path: PathBuf,
    /// Who has noted it down.
    owner: u32,
}

/// The folder of this user, or of the unit that this process runs in; and the folders of other units.
pub(super) struct Registry {
    dir: PathBuf,
    uid: u32,
    /// Where the folders of units are.
    run: PathBuf,
}

/// An entry while its process runs: the file is locked, and removed in the end.
pub(super) struct Noted {
    path: PathBuf,
    /// Its socket beside the file.
    pub(super) control: Option<DiskServer>,
    _lock: File,
}

impl Noted {
    /// Where the socket belongs at which the process of the disk answers.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.with_extension(SOCKET)
    }

    /// The same if the process answers there.
    pub(super) fn socket_in_use(&self) -> Option<PathBuf> {
        self.control.as_ref().map(|_| self.socket())
    }
}

impl Found {
    /// The socket at which its process answers, and its user.
    pub(super) fn socket(&self) -> (PathBuf, u32) {
        (self.path.with_extension(SOCKET), self.owner)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // Another one may have cleaned up; without its lock the file means nothing.
        let _ = fs::remove_file(&self.path);
    }
}

impl Registry {
    /// The folder of the unit if this process runs in one of raceline-disk@.service, whose /tmp nobody else sees. Else
    /// `/run/raceline-disks` for root (`/run/raceline` is the service's), else `raceline` in the runtime directory of the
    /// session, else a folder in /tmp.
    pub(super) fn of_this_user() -> Result<Self, Failure> {
        let (dir, uid) = Self::place();
        Self::at(dir, uid, PathBuf::from(units::RUN))
    }

    /// The disks that run, for somebody who only looks: no folder is made for that.
    pub(super) fn look() -> Result<Vec<Found>, Failure> {
        let (dir, uid) = Self::place();
        let run = PathBuf::from(units::RUN);
        if fs::symlink_metadata(&dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(Self { dir, uid, run }.running_in_units());
        }
        Self::at(dir, uid, run)?.running()
    }

    /// The folder of this process, and its user.
    fn place() -> (PathBuf, u32) {
        let uid = rustix::process::geteuid().as_raw();
        let of_session = || match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            _ if uid == 0 => PathBuf::from("/run/raceline-disks"),
            Some(dir) if dir.is_absolute() => dir.join("raceline"),
            _ => PathBuf::from(format!("/tmp/raceline-{uid}")),
        };
        (units::own_folder().unwrap_or_else(of_session), uid)
    }

    fn at(dir: PathBuf, uid: u32, run: PathBuf) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::runtime(format!(
                "cannot use {} for the sockets of disks: {error}",
                shown(&dir)
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
                shown(&dir)
            )));
        }
        Ok(Self { dir, uid, run })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Notes down that this process serves a disk.
    pub(super) fn add(&self, note: &Note) -> Result<Noted, Failure> {
        let path = self.dir.join(format!("disk-{}.json", note.entry.pid));
        let file = self.put(&path, note).map_err(|error| {
            Failure::runtime(format!("cannot note the disk down in {}: {error}", shown(&path)))
        })?;
        Ok(Noted { path, control: None, _lock: file })
    }

    fn put(&self, path: &Path, note: &Note) -> io::Result<File> {
        let text = serde_json::to_string(note)?;
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
                            shown(&self.dir),
                            time.as_secs(),
                            shown(&self.dir)
                        ),
                    ));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The disks that run, those of units included. Files of processes that were killed are removed from the folder of this user.
    pub(super) fn running(&self) -> Result<Vec<Found>, Failure> {
        let failed = |error: io::Error| {
            Failure::runtime(format!("cannot read {}: {error}", shown(&self.dir)))
        };
        let mut all = self.running_here().map_err(failed)?;
        all.extend(self.running_in_units());
        all.sort_by_key(|found| found.entry.pid);
        Ok(all)
    }

    /// Those of the folders of units.
    fn running_in_units(&self) -> Vec<Found> {
        let mut all = Vec::new();
        for (dir, owner) in units::folders(&self.run, self.uid) {
            if dir == self.dir {
                continue;
            }
            let folder = Self { dir, uid: owner, run: self.run.clone() };
            match folder.running_in_unit() {
                Ok(more) => all.extend(more),
                Err(error) => {
                    tracing::warn!("disks of {} are passed over: {error}", shown(&folder.dir));
                }
            }
        }
        all
    }

    /// What the folder has in it.
    fn paths(&self) -> io::Result<impl Iterator<Item = io::Result<PathBuf>> + use<>> {
        Ok(fs::read_dir(&self.dir)?.map(|found| found.map(|found| found.path())))
    }

    /// Those of the folder of this user.
    fn running_here(&self) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        let _turn = self.take_turn()?;
        for path in self.paths()?.filter(is_note) {
            let path = path?;
            // It may end meanwhile.
            let Ok(file) = File::open(&path) else { continue };
            if is_free(&file) {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(path.with_extension(SOCKET));
            } else if let Ok(Note { entry, facts }) = serde_json::from_reader(&file) {
                all.push(Found { entry, facts, path, owner: self.uid });
            }
        }
        Ok(all)
    }

    /// Those of the folder of a unit. Nothing is changed there.
    fn running_in_unit(&self) -> io::Result<Vec<Found>> {
        let owner = self.uid;
        let _turn = self.take_turn_within(UNIT_TURN_TIME)?;
        let found = |path: PathBuf| {
            let file = units::open_note(&path, owner).ok().filter(|file| !is_free(file))?;
            let Note { entry, facts } = units::read_note(&file, &path, owner)?;
            Some(Found { entry, facts, path, owner })
        };
        let notes = unit_notes(self.paths()?)?;
        Ok(notes.into_iter().filter_map(found).take(MAX_UNIT_DISKS).collect())
    }

    /// How long to wait for the end of a disk. Those of a unit's folder share [`END_TIME`], whose ends are in `ends`: its user could
    /// note down several that do not end.
    pub(super) fn time_to_end(&self, found: &Found, ends: &mut Ends, now: Instant) -> Duration {
        let folder = found.path.parent().filter(|folder| *folder != self.dir);
        let Some(folder) = folder else { return END_TIME };
        let end = ends.entry(folder.to_owned()).or_insert(now + END_TIME);
        end.saturating_duration_since(now)
    }

    /// Asks a process to end, and waits until it has.
    pub(super) fn end(&self, found: &Found, time: Duration) -> Result<(), Failure> {
        let Found { entry, path, owner, .. } = found;
        let Ok(file) = units::open_note(path, *owner) else { return Ok(()) };
        // Its lock shows that the process of this number is the one that has written the file, unless another user lies.
        let pid = i32::try_from(entry.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| !is_free(&file)) else { return Ok(()) };
        let asked = match *owner == self.uid {
            true => kill_process(pid, Signal::TERM).map_err(io::Error::from),
            false => units::terminate(pid, *owner),
        };
        if let Err(error) = asked
            && error.raw_os_error() != Some(Errno::SRCH.raw_os_error())
        {
            return Err(Failure::runtime(format!("cannot end process {}: {error}", entry.pid)));
        }
        let end = Instant::now() + time;
        while !is_free(&file) {
            if Instant::now() > end {
                return Err(Failure::runtime(format!(
                    "process {} of disk {} has not ended within {} s; what it has in flight at its device may hang",
                    entry.pid,
                    printable(&entry.places.join(" ")),
                    time.as_secs()
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

/// Whether a file is a note by its name. An error is kept for whoever reads on.
fn is_note(path: &io::Result<PathBuf>) -> bool {
    let Ok(path) = path else { return true };
    path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with("disk-") && name.ends_with(".json")
    })
}

/// The notes among what the folder of a unit has in it, which is read no further than the limits say.
fn unit_notes(paths: impl Iterator<Item = io::Result<PathBuf>>) -> io::Result<Vec<PathBuf>> {
    paths.take(MAX_UNIT_ENTRIES).filter(is_note).take(MAX_UNIT_NOTES).collect()
}

/// A path for people.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
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

    /// A user that is not root.
    const OTHER: u32 = 65_534;

    /// A folder in this one, which is where the folders of units are, too.
    fn registry(dir: &Path) -> Registry {
        let uid = rustix::process::geteuid().as_raw();
        Registry::at(dir.join("raceline"), uid, dir.to_owned()).unwrap()
    }

    fn entries(registry: &Registry) -> Vec<Entry> {
        registry.running().unwrap().into_iter().map(|found| found.entry).collect()
    }

    fn entry_of(pid: u32, place: &str) -> Entry {
        let places = vec![place.to_owned()];
        Entry { pid, kind: "nbd".into(), nqn: None, transport: None, places }
    }

    fn noted(entry: &Entry) -> Note {
        Note { entry: entry.clone(), facts: Value::Null }
    }

    /// The folder of a unit of this user.
    fn unit(dir: &Path, owner: u32) -> Registry {
        let path = dir.join(format!("raceline-disk-{owner}"));
        DirBuilder::new().mode(0o750).create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
        Registry::at(path, owner, dir.to_owned()).unwrap()
    }

    fn note(unit: &Registry, entry: &Entry) -> Noted {
        let noted = unit.add(&noted(entry)).unwrap();
        std::os::unix::fs::chown(&noted.path, Some(unit.uid), None).unwrap();
        noted
    }

    fn sleeper(user: u32) -> std::process::Child {
        use std::os::unix::process::CommandExt as _;
        std::process::Command::new("sleep").arg("600").uid(user).spawn().unwrap()
    }

    #[test]
    fn disks_of_units_are_found_where_units_note_them() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let unit = unit(dir.path(), registry.uid);
        let mut child = sleeper(registry.uid);
        let entry = entry_of(child.id(), "/run/raceline-disk-a/disk.sock");
        let _noted = note(&unit, &entry);
        fs::write(unit.dir().join("disk-7.json"), "left over, without a lock").unwrap();
        let found = registry.running().unwrap();
        assert_eq!(found.iter().map(|it| &it.entry).collect::<Vec<_>>(), [&entry]);
        assert!(unit.dir().join("disk-7.json").exists(), "nothing is changed there");
        assert_eq!(entries(&unit), [entry], "it sees its own folder once");
        // This test has the lock and goes on.
        let error = registry.end(&found[0], Duration::from_millis(50)).unwrap_err();
        assert!(error.message.contains("has not ended"), "{}", error.message);
        use std::os::unix::process::ExitStatusExt as _;
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn the_user_of_a_unit_neither_holds_root_up_nor_writes_to_its_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let unit = unit(dir.path(), registry.uid);
        let mut child = sleeper(registry.uid);
        let text = "/a\x1b[2Jb\n";
        let _noted = note(&unit, &entry_of(child.id(), text));
        let found = registry.running().unwrap();
        let error = registry.end(&found[0], Duration::from_millis(50)).unwrap_err().message;
        assert!(error.contains("of disk /a\u{fffd}[2Jb\u{fffd} has not ended"), "{error:?}");
        child.wait().unwrap();
        let _more = [1_000_001, 1_000_002, 1_000_003].map(|pid| note(&unit, &entry_of(pid, text)));
        let found = registry.running().unwrap();
        assert_eq!(found.len(), MAX_UNIT_DISKS);
        let (mut ends, now) = (Ends::new(), Instant::now());
        for (index, passed, left) in [(0, 0, 30), (1, 20, 10), (1, 40, 0)] {
            let now = now + Duration::from_secs(passed);
            let time = registry.time_to_end(&found[index], &mut ends, now);
            assert_eq!(time, Duration::from_secs(left), "disk {index} after {passed} s");
        }
        // Each disk of one's own has all the time.
        let _own = registry.add(&noted(&entry_of(7, "/d"))).unwrap();
        let own = registry.running().unwrap().into_iter().find(|it| it.entry.pid == 7).unwrap();
        for passed in [0, 40] {
            let now = now + Duration::from_secs(passed);
            assert_eq!(registry.time_to_end(&own, &mut ends, now), END_TIME);
        }
    }

    #[test]
    fn the_folder_of_a_unit_is_read_no_further_than_the_limits() {
        let pulled = |name: &str| {
            let mut pulled = 0;
            let endless = (0..100_000).map(|number| {
                pulled += 1;
                Ok(PathBuf::from(format!("/run/raceline-disk-a/{name}-{number}.json")))
            });
            let notes = unit_notes(endless).unwrap().len();
            (notes, pulled)
        };
        assert_eq!(pulled("disk"), (MAX_UNIT_NOTES, MAX_UNIT_NOTES));
        assert_eq!(pulled("other"), (0, MAX_UNIT_ENTRIES));
        let failing = [Ok(PathBuf::from("/a")), Err(io::ErrorKind::Other.into())];
        assert!(unit_notes(failing.into_iter()).is_err());
    }

    #[test]
    fn root_believes_no_user_what_that_user_could_not_do_itself() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        if registry.uid != 0 {
            println!("SKIPPED: only root can be another user");
            return;
        }
        let unit = unit(dir.path(), OTHER);
        let (mut own, mut roots) = (sleeper(OTHER), sleeper(0));
        let _noted = [own.id(), roots.id()].map(|pid| note(&unit, &entry_of(pid, "/a")));
        // No other user has disks below /dev, or speaks for the note of another process.
        let _device = note(&unit, &entry_of(1_000_001, "/dev/ublkb3"));
        let _ublk = note(&unit, &Entry { kind: "ublk".into(), ..entry_of(1_000_002, "/b") });
        let other = note(&unit, &entry_of(1_000_003, "/c"));
        fs::rename(&other.path, unit.dir().join("disk-1.json")).unwrap();
        // Neither a link nor a pipe is opened.
        std::os::unix::fs::symlink("disk-1.json", unit.dir().join("disk-2.json")).unwrap();
        let pipe = unit.dir().join("disk-3.json");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();

        let found = registry.running().unwrap();
        let mut pids = [own.id(), roots.id()];
        pids.sort_unstable();
        assert_eq!(found.iter().map(|it| it.entry.pid).collect::<Vec<_>>(), pids);
        for found in &found {
            let error = registry.end(found, Duration::from_millis(50)).unwrap_err().message;
            let is_own = found.entry.pid == own.id();
            assert_eq!(error.contains("does not belong to user 65534"), !is_own, "{error}");
        }
        use std::os::unix::process::ExitStatusExt as _;
        assert_eq!(own.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        assert!(roots.try_wait().unwrap().is_none(), "the process of root was ended");
        roots.kill().unwrap();
        roots.wait().unwrap();
        // A user that holds the folder keeps nobody from the other disks.
        let _turn = unit.take_turn().unwrap();
        let own = registry.add(&noted(&entry_of(7, "/d"))).unwrap();
        assert_eq!(entries(&registry), [entry_of(7, "/d")]);
        drop(own);
    }

    #[test]
    fn a_disk_that_is_noted_down_while_others_look_is_found() {
        const ROUNDS: usize = 5000;
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let entry =
            Entry { pid: 7, kind: "nbd".into(), nqn: None, transport: None, places: Vec::new() };
        let is_over = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    registry.running().unwrap();
                }
            });
            let is_lost = |_: &usize| match registry.add(&noted(&entry)) {
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
        let _noted = registry.add(&noted(&entry)).unwrap();
        assert_eq!(entries(&registry), [entry]);
    }

    #[test]
    fn a_folder_that_stays_locked_is_named_with_who_has_locked_it() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
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
        let registry = registry(dir.path());
        let entry = Entry {
            pid: std::process::id(),
            kind: "nbd".into(),
            nqn: None,
            transport: None,
            places: vec!["127.0.0.1:1".into()],
        };
        let noted = registry.add(&noted(&entry)).unwrap();
        fs::write(registry.dir().join("disk-999.json"), "{}").unwrap();
        fs::write(registry.dir().join("disk-999.rpc"), "").unwrap();
        fs::write(registry.dir().join("disk-x.sock"), "").unwrap();
        fs::write(noted.socket(), "").unwrap();
        assert_eq!(entries(&registry), [entry]);
        for gone in ["disk-999.json", "disk-999.rpc"] {
            assert!(!registry.dir().join(gone).exists(), "{gone}");
        }
        assert!(noted.socket().exists() && noted.socket_in_use().is_none());
        drop(noted);
        assert!(registry.running().unwrap().is_empty());
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(registry.dir(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Registry::at(registry.dir().to_owned(), registry.uid, registry.run.clone());
        assert!(refused.err().unwrap().message.contains("others could take the place"));
    }
}
