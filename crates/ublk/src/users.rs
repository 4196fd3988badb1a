//! Who uses a block device: a mount or the like, or a program that has it open.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::{fmt, process, thread};

use rustix::fs::OFlags;

use crate::disk::LOOK_INTERVAL;

/// How often a program is looked for: those that only look at a new disk (udev) close it at once.
const LOOKS: usize = 25;

/// A user of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A mount, swap, RAID or device mapper: what has it for itself.
    Exclusive,
    /// A process of this number has it open.
    Process(u32),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("a mount, swap, RAID or device mapper"),
            Self::Process(pid) => write!(f, "process {pid}"),
        }
    }
}

/// Whether a mount, swap, RAID or device mapper has the block device at this path, or a partition of it.
#[must_use]
pub fn is_held(path: &str) -> bool {
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(path);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// Who uses the block device at this path, or a partition of it. A program counts that has it open for half a second.
#[must_use]
pub fn user(path: &str) -> Option<User> {
    let mut user = None;
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(LOOK_INTERVAL);
        }
        user = user_at_once(path);
        if user == Some(User::Exclusive) {
            break;
        }
        if user.is_none() {
            break;
        }
    }
    user
}

/// As [`user`], but a program that has it open for a moment counts, too.
#[must_use]
pub fn user_at_once(path: &str) -> Option<User> {
    if is_held(path) {
        return Some(User::Exclusive);
    }
    opener(&numbers(path), Path::new("/proc")).map(User::Process)
}

/// The numbers of a block device and of its partitions.
fn numbers(path: &str) -> Vec<u64> {
    let Ok(whole) = fs::metadata(path) else { return Vec::new() };
    let name = path.rsplit('/').next().unwrap_or(path);
    let folder = fs::read_dir(Path::new("/sys/class/block").join(name));
    let parts = folder.into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let is_part = entry.path().join("partition").exists();
        let part = is_part.then(|| Path::new("/dev").join(entry.file_name()))?;
        Some(fs::metadata(part).ok()?.rdev())
    });
    parts.chain([whole.rdev()]).collect()
}

/// A process other than this one that has a device of these numbers open.
fn opener(numbers: &[u64], processes: &Path) -> Option<u32> {
    let found = fs::read_dir(processes).into_iter().flatten();
    let mut pids = found.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        // A process that has ended meanwhile has nothing open.
        let files = fs::read_dir(processes.join(pid.to_string()).join("fd"));
        let mut files = files.into_iter().flatten().filter_map(Result::ok);
        // Whoever asks for a file of a network whose server is away waits for it: only devices are asked for.
        let is_device = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|it| it.starts_with("/dev"))
        };
        let is_it = |entry: fs::DirEntry| {
            is_device(&entry)
                && fs::metadata(entry.path()).is_ok_and(|file| numbers.contains(&file.rdev()))
        };
        *pid != process::id() && files.any(is_it)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_device_open_is_found() {
        let name = format!("raceline-ublk-users-{}", process::id());
        let processes = std::env::temp_dir().join(name);
        for (pid, file) in [("17", "/dev/zero"), ("18", "/dev/null"), ("self", "/dev/null")] {
            let folder = processes.join(pid).join("fd");
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(file, folder.join("3")).unwrap();
            std::os::unix::fs::symlink("/nowhere", folder.join("4")).unwrap();
        }
        let null = numbers("/dev/null");
        assert_eq!(null.len(), 1);
        assert_eq!(opener(&null, &processes), Some(18));
        assert_eq!(opener(&numbers("/dev/full"), &processes), None);
        assert_eq!(opener(&null, Path::new("/nowhere")), None);
        fs::remove_dir_all(&processes).unwrap();
        assert_eq!(user("/dev/no-such-disk"), None);
    }
}
