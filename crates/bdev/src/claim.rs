//! Exclusive use of a file or block device, and what else has it when it cannot be had.
//!
//! Three fences, as none covers all: a table of this process, an flock(2) on files, which other
//! Raceline processes take too, and O_EXCL on block devices, which mounts, device mapper, RAID
//! and swap take. Beyond these, a file is refused that backs a loop device, is swapped to, or
//! carries another program's lock (such as a virtual machine's).

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use raceline_reactor::inheritance::{self, Offer};
use rustix::fs::{major, minor};

/// What is open in this process: the object and the path it was opened by.
static OPEN: Mutex<BTreeMap<Object, PathBuf>> = Mutex::new(BTreeMap::new());

/// What a path leads to, by the numbers of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// A regular file: device and inode.
    File { device: u64, inode: u64 },
    /// A block device: its own number.
    Block { device: u64 },
}

/// An object that this process has to itself, until dropped.
#[derive(Debug)]
pub(crate) struct Claim(Object);

impl Claim {
    /// Claims an object within this process.
    ///
    /// # Errors
    /// The path under which it is open already.
    pub(crate) fn new(object: Object, path: &Path) -> Result<Self, PathBuf> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = open.get(&object) {
            return Err(other.clone());
        }
        open.insert(object, path.to_owned());
        Ok(Self(object))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// An opened file that gives its lock up when dropped. Closing does not always do that: a process that
/// another thread of this one is starting has a copy of the descriptor for a moment.
///
/// A process that takes the place of this one gets the open file, and with it lock or exclusive use.
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
    #[expect(dead_code, reason = "it lasts as long")]
    offer: Option<Offer>,
    /// Given up after the file is closed, as a block device can be opened then, or before (`Drop`).
    claim: Option<Claim>,
}

impl Held {
    pub(crate) fn new(file: File, claim: Claim) -> Self {
        let offer = inheritance::offer(handed_name(claim.0), &file);
        Self { file, offer, claim: Some(claim) }
    }
}

/// The opened file of the process whose place this one takes, if it had this one. It is locked, or used exclusively.
pub(crate) fn take_handed(object: Object) -> Option<File> {
    inheritance::take(&handed_name(object)).map(File::from)
}

fn handed_name(object: Object) -> String {
    match object {
        Object::File { device, inode } => format!("the file {inode} of device {device}"),
        Object::Block { device } => format!("the block device {device}"),
    }
}

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The lock still is that of the other process, which may go on.
        if inheritance::is_sharing() {
            return;
        }
        // Without a lock (a block device) nothing happens; failure leaves it to the closing.
        let _ = self.file.unlock();
        // When the last descriptor of a deleted file is closed, another file may get its number at once.
        drop(self.claim.take_if(|claim| matches!(claim.0, Object::File { .. })));
    }
}

/// Locks a file against other processes: alone, or with other readers if `read_only`.
///
/// # Errors
/// What has the file, as a phrase that completes "is in use: ...".
pub(crate) fn lock_file(
    file: &File,
    object: Object,
    with_others: bool,
) -> io::Result<Result<(), String>> {
    let locked = if with_others { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Err(TryLockError::Error(error)) => return Err(error),
        Err(TryLockError::WouldBlock) => {
            let holder = (0..NAME_TRIES).find_map(|_| listed_lock(object, with_others));
            return Ok(Err(holder.unwrap_or_else(|| "another process has locked it".to_owned())));
        }
        Ok(()) => {}
    }
    Ok(match range_lock(file, object, with_others)?.or_else(|| other_use_of_file(object)) {
        Some(holder) => Err(holder),
        None => Ok(()),
    })
}

/// How often the name of a process is looked for that has a lock: a line of /proc/locks is missed when others come and go
/// between two pages of it.
const NAME_TRIES: u32 = 5;

/// A lock of another process on bytes of the file, which an flock(2) does not see. Readers do not disturb readers.
///
/// # Errors
/// The file system cannot say, and nothing else can.
fn range_lock(file: &File, object: Object, read_only: bool) -> io::Result<Option<String>> {
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    let [kind, start, none] = [kind, libc::SEEK_SET, libc::F_UNLCK].map(short);
    // From the first byte to whatever end.
    let mut lock = libc::flock { l_type: kind, l_whence: start, l_start: 0, l_len: 0, l_pid: 0 };
    match fcntl(file, FcntlArg::F_GETLK(&mut lock)) {
        Ok(_) if lock.l_type == none => Ok(None),
        Ok(_) => Ok(Some(describe_process(&lock.l_pid.to_string()))),
        // File systems without such locks.
        Err(Errno::EINVAL | Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
            Ok(listed_lock(object, read_only))
        }
        Err(error) => Err(error.into()),
    }
}

/// A constant of locks, all of which are below 3.
#[expect(clippy::cast_possible_truncation, reason = "it is below 3")]
const fn short(constant: libc::c_int) -> libc::c_short {
    constant as libc::c_short
}

/// A lock on the file that is not our own, from /proc/locks, whose lines read
/// `1: FLOCK ADVISORY WRITE 1234 fe:00:9981167 0 EOF`. Readers do not disturb readers.
fn listed_lock(object: Object, read_only: bool) -> Option<String> {
    let Object::File { device, inode } = object else { return None };
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1).skip_while(|word| *word == "->");
        let kind = words.next()?;
        let (_, access, pid, at) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let ours = pid == std::process::id().to_string();
        if at != place || ours || kind == "LEASE" || (read_only && access == "READ") {
            return None;
        }
        Some(describe_process(pid))
    })
}

/// `process 1234 (qemu-system-x86) has locked it`; locks of open files have no process.
fn describe_process(pid: &str) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({}) has locked it", name.trim().escape_default()),
        Err(_) if pid.starts_with('-') || pid == "0" => {
            "another program has locked it (a virtual machine? lsof shows which)".to_owned()
        }
        Err(_) => format!("process {pid} has locked it"),
    }
}

/// Uses of a file that leave no lock: behind a loop device, as swap.
fn other_use_of_file(object: Object) -> Option<String> {
    let is_it = |path: &str| fs::metadata(path).is_ok_and(|m| object_of(&m) == Some(object));
    for name in directory("/sys/class/block").filter(|name| name.starts_with("loop")) {
        let backing = fs::read_to_string(format!("/sys/class/block/{name}/loop/backing_file"));
        if backing.is_ok_and(|path| is_it(&unescape(path.trim_end_matches('\n')))) {
            return Some(format!("it backs /dev/{name} (losetup -d /dev/{name} frees it)"));
        }
    }
    is_swap(is_it).then(|| "it is in use as swap".to_owned())
}

/// True if swap lies on something at a path that `is_it` recognises.
fn is_swap(is_it: impl Fn(&str) -> bool) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps
        .lines()
        .skip(1)
        .any(|line| line.split_ascii_whitespace().next().is_some_and(|path| is_it(&unescape(path))))
}

/// What holds a block device, as a phrase that completes "is in use: ...", if it can be seen.
pub(crate) fn block_holder(device: u64) -> Option<String> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    if let Some(holder) = mounted_or_held(&sys, device) {
        return Some(format!("it is {holder}"));
    }
    let partitions = directory(&sys).filter(|name| sys.join(name).join("partition").exists());
    for name in partitions {
        let number = fs::read_to_string(sys.join(&name).join("dev")).unwrap_or_default();
        let parts = number.trim().split_once(':').and_then(|(major, minor)| {
            Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
        });
        let holder = parts.and_then(|device| mounted_or_held(&sys.join(&name), device));
        if let Some(holder) = holder {
            return Some(format!("its partition {name} is {holder}"));
        }
    }
    None
}

/// `mounted on /srv`, `part of dm-0` or `in use as swap`.
fn mounted_or_held(sys: &Path, device: u64) -> Option<String> {
    if let Some(place) = mount_point(device) {
        return Some(format!("mounted on {place}"));
    }
    if let Some(holder) = directory(sys.join("holders")).next() {
        return Some(format!("part of {holder}"));
    }
    let is_it = |path: &str| {
        fs::metadata(path).is_ok_and(|m| object_of(&m) == Some(Object::Block { device }))
    };
    is_swap(is_it).then(|| "in use as swap".to_owned())
}

/// Where a block device is mounted: by its number, or (btrfs, whose mounts have numbers of
/// their own) by the path of the source.
fn mount_point(device: u64) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let number = format!("{}:{}", major(device), minor(device));
    mounts.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (at, place) = (words.nth(2)?, words.nth(1)?);
        let source = words.skip_while(|word| *word != "-").nth(2)?;
        let same = at == number
            || source.starts_with("/dev/")
                && fs::metadata(unescape(source))
                    .is_ok_and(|m| object_of(&m) == Some(Object::Block { device }));
        same.then(|| unescape(place))
    })
}

/// What metadata describes, if it can be exported.
pub(crate) fn object_of(metadata: &fs::Metadata) -> Option<Object> {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = metadata.file_type();
    if kind.is_file() {
        Some(Object::File { device: metadata.dev(), inode: metadata.ino() })
    } else if kind.is_block_device() {
        Some(Object::Block { device: metadata.rdev() })
    } else {
        None
    }
}

/// The names in a directory; none if it cannot be read.
fn directory(path: impl AsRef<Path>) -> impl Iterator<Item = String> {
    fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
}

/// Undoes the octal escapes (`\040` for a space) of files in /proc.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_at_a_time() {
        let object = Object::File { device: 1, inode: u64::MAX };
        let claim = Claim::new(object, Path::new("/a")).unwrap();
        assert_eq!(Claim::new(object, Path::new("/b")).unwrap_err(), Path::new("/a"));
        drop(claim);
        drop(Claim::new(object, Path::new("/b")).unwrap());
    }

    /// As a child between fork and exec has.
    #[test]
    fn a_copy_of_the_descriptor_keeps_no_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let claim = Claim::new(Object::File { device: 1, inode: 77 }, file.path()).unwrap();
        let held = Held::new(file.reopen().unwrap(), claim);
        held.try_lock().unwrap();
        let copy = held.try_clone().unwrap();
        let other = file.reopen().unwrap();
        assert!(other.try_lock().is_err());
        drop(held);
        other.try_lock().unwrap();
        drop(copy);
    }

    #[test]
    fn mounts_are_found() {
        let root = fs::metadata("/").unwrap().dev();
        // In a container the root may have no device of its own; then another mount has.
        if let Some(place) = mount_point(root) {
            assert!(Path::new(&place).is_absolute());
        }
        assert_eq!(mount_point(rustix::fs::makedev(4000, 77)), None);
    }

    #[test]
    fn escapes_of_proc() {
        assert_eq!(unescape(r"/a\040b\134c\9"), "/a b\\c\\9");
    }
}
