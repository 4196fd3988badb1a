//! How much memory a RAM device may still take: what the machine and the control groups leave.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use raceline_reactor::control_group::MemoryGroup;

use crate::ByteSize;

/// Bytes promised to RAM devices of this process that are open, whether written to or not.
static PROMISED: Mutex<u64> = Mutex::new(0);

/// A promise of memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Promise(u64);

/// Why memory was not promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotEnough {
    /// What is left for RAM devices.
    pub(crate) available: ByteSize,
    /// What sets the limit.
    pub(crate) limit: &'static str,
}

impl Promise {
    /// Promises `bytes` if they are there besides what was promised before.
    pub(crate) fn new(bytes: u64) -> Result<Self, NotEnough> {
        Self::from_root(bytes, Path::new("/"))
    }

    fn from_root(bytes: u64, root: &Path) -> Result<Self, NotEnough> {
        let mut promised = PROMISED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // What this process has in memory may already be the contents of its RAM devices:
        // counting it as available besides what is promised never counts a page twice.
        let own = own_anonymous(root).min(*promised);
        if let Some((available, limit)) = available(root) {
            let left = available.saturating_add(own).saturating_sub(*promised);
            if bytes > left {
                return Err(NotEnough { available: ByteSize(whole_mebibytes(left)), limit });
            }
        }
        *promised += bytes;
        Ok(Self(bytes))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        *PROMISED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) -= self.0;
    }
}

/// Rounded down, for people.
const fn whole_mebibytes(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

/// The tightest limit and what sets it; `None` where the system tells nothing.
fn available(root: &Path) -> Option<(u64, &'static str)> {
    let machine = kib_field(&root.join("proc/meminfo"), "MemAvailable:")
        .map(|bytes| (bytes, "the machine (MemAvailable)"));
    let group = group_available(root).map(|bytes| (bytes, "the memory limit of the control group"));
    machine.into_iter().chain(group).min()
}

/// A line `NAME   123 kB` of a file in /proc, in bytes.
fn kib_field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn own_anonymous(root: &Path) -> u64 {
    kib_field(&root.join("proc/self/status"), "RssAnon:").unwrap_or(0)
}

/// The least that this process's control group and its ancestors leave.
fn group_available(root: &Path) -> Option<u64> {
    let left = |group: &MemoryGroup| {
        // Pages of files are reclaimed before anything is refused.
        let used = group.used()?.saturating_sub(group.file_pages().inactive);
        Some(group.limit()?.saturating_sub(used))
    };
    MemoryGroup::all(root).iter().filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(available(root), None);
        write(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        assert_eq!(available(root).unwrap().0, 8000 << 10);
        write(root, "proc/self/cgroup", "0::/a/b\n");
        write(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
        write(root, "sys/fs/cgroup/a/b/memory.current", "4096\n");
        assert_eq!(available(root).unwrap().0, 8000 << 10);
        write(root, "sys/fs/cgroup/a/memory.max", "1048576\n");
        write(root, "sys/fs/cgroup/a/memory.current", "500000\n");
        write(root, "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n");
        assert_eq!(available(root).unwrap().0, 1_048_576 - 400_000);
        write(root, "proc/self/cgroup", "4:cpu,memory:/c\n1:cpuset:/\n");
        write(root, "sys/fs/cgroup/memory/c/memory.limit_in_bytes", "70000\n");
        write(root, "sys/fs/cgroup/memory/c/memory.usage_in_bytes", "80000\n");
        assert_eq!(available(root), Some((0, "the memory limit of the control group")));
    }

    #[test]
    fn promises_add_up_and_are_given_back() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proc/meminfo", "MemAvailable: 1048576 kB\n");
        // Half a GiB twice fits a GiB; other tests promise little.
        let half = 400 << 20;
        let one = Promise::from_root(half, root.path()).unwrap();
        let two = Promise::from_root(half, root.path()).unwrap();
        let refused = Promise::from_root(half, root.path()).unwrap_err();
        assert!(refused.available.0 < half);
        drop((one, two));
        drop(Promise::from_root(half, root.path()).unwrap());
    }
}
