//! Room for one more connection: descriptors and memory that a process keeps for those that it has, and for its operator.
//!
//! A listener accepts while there is more than this reserve. So hosts cannot take the last descriptor from a client of the
//! RPC socket or from a file of the state, nor the last memory from the connections that are served.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

use crate::control_group::{FilePages, MemoryGroup, read};

/// Descriptors that connections do not get, where the limit is not small.
const DESCRIPTORS: u64 = 32;
/// Of a small limit, the part that connections do not get.
const PART: u64 = 8;
/// A limit of descriptors that is far above what listeners have waiting.
const VAST: u64 = 65_536;
/// Bytes of memory that have to be left for another connection.
const MEMORY: u64 = 16 << 20;

/// A connection that was accepted, if there is room for it. It is closed otherwise.
pub(crate) fn keep(socket: OwnedFd) -> io::Result<OwnedFd> {
    check(socket.as_fd())?;
    Ok(socket)
}

/// Whether another connection can come.
pub(crate) fn probe(listener: BorrowedFd<'_>) -> io::Result<()> {
    // The copy has the lowest number that is free.
    check(listener.try_clone_to_owned()?.as_fd())
}

/// What a listener waits for before it accepts another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// File descriptors.
    Descriptors,
    /// Memory.
    Memory,
}

/// What listeners of this process lack now; `None`: they accept.
#[must_use]
pub fn lack() -> Option<Lack> {
    let stderr = io::stderr();
    match stderr.as_fd().try_clone_to_owned().and_then(|newest| check(newest.as_fd())) {
        Ok(()) => None,
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Some(Lack::Memory),
        Err(_) => Some(Lack::Descriptors),
    }
}

/// The bytes in use and the most bytes, of that limit of memory of which least is left. `None`: there is no limit, or
/// memory is not watched.
#[must_use]
pub fn limited_memory() -> Option<(u64, u64)> {
    let tight = MEMORY_OF_PROCESS.get()?.tightest()?;
    Some((tight.used, tight.limit))
}

/// Whether the kernel may accept as many connections as come, before this process sees the first of them: they are no
/// more than the backlog of a listener.
pub(crate) fn is_vast() -> bool {
    getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= VAST)
}

/// Looks at the number of the newest descriptor, below which all are in use, and at the memory.
fn check(newest: BorrowedFd<'_>) -> io::Result<()> {
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        let reserve = DESCRIPTORS.min(limit / PART);
        let number = u64::try_from(newest.as_raw_fd()).unwrap_or(0);
        if number >= limit.saturating_sub(reserve) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
    }
    let Some(memory) = MEMORY_OF_PROCESS.get() else { return Ok(()) };
    match memory.tightest() {
        Some(tight) if tight.left() < MEMORY => {
            let left = tight.left() >> 20;
            let text = format!("only {left} MiB of memory are left: {}", tight.advice());
            Err(io::Error::new(io::ErrorKind::OutOfMemory, text))
        }
        _ => Ok(()),
    }
}

// --------------------------------------------------------------------------------- memory

static MEMORY_OF_PROCESS: OnceLock<Memory> = OnceLock::new();

/// Opens what tells how much memory this process has, before a sandbox forbids it. Without this, memory is no reason
/// to accept nothing.
pub fn watch_memory() {
    MEMORY_OF_PROCESS.get_or_init(Memory::open);
}

/// Why an operation that needs much memory may have failed: a limit of which little is left, and what to do. `None`:
/// memory is not scarce, or not watched.
#[must_use]
pub fn scarce_memory(wanted: u64) -> Option<String> {
    let tight = MEMORY_OF_PROCESS.get()?.tightest()?;
    let Tight { used, limit, .. } = tight;
    let text = || {
        let (used, limit) = (used >> 20, limit >> 20);
        format!("of {limit} MiB of memory, {used} MiB are in use: {}", tight.advice())
    };
    (tight.left() < wanted).then(text)
}

/// The files that tell it.
#[derive(Debug)]
struct Memory {
    /// Pages of the address space are its first number.
    statm: Option<File>,
    group: Option<MemoryGroup>,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tight {
    used: u64,
    limit: u64,
    is_group: bool,
}

impl Tight {
    fn left(self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    fn advice(self) -> &'static str {
        if self.is_group {
            "raise the limit of the control group (memory.max, MemoryMax= of the service), or give the daemon less to do"
        } else {
            "raise the limit of the address space (ulimit -v, LimitAS= of the service), or give the daemon less to do"
        }
    }
}

impl Memory {
    fn open() -> Self {
        let statm = File::open("/proc/self/statm").ok();
        let group = nearest(MemoryGroup::all(Path::new("/")));
        Self { statm, group }
    }

    /// The limit of which least is left.
    fn tightest(&self) -> Option<Tight> {
        let space = self.address_space();
        let group = self.group.as_ref().and_then(state);
        space.into_iter().chain(group).min_by_key(|tight| tight.left())
    }

    fn address_space(&self) -> Option<Tight> {
        let limit = getrlimit(Resource::As).current?;
        let text = read(self.statm.as_ref()?)?;
        let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
        Some(Tight { used: pages * page_size() as u64, limit, is_group: false })
    }
}

/// The nearest group with a limit, or the own one: it may get a limit.
fn nearest(mut groups: Vec<MemoryGroup>) -> Option<MemoryGroup> {
    let limited = groups.iter().position(|group| group.limit().is_some());
    (!groups.is_empty()).then(|| groups.swap_remove(limited.unwrap_or(0)))
}

/// What a group has of its limit, if there is one.
fn state(group: &MemoryGroup) -> Option<Tight> {
    let limit = group.limit()?;
    let tight = Tight { used: group.used()?, limit, is_group: true };
    if tight.left() >= 2 * MEMORY {
        return Some(tight);
    }
    // The kernel gives back what it keeps of files when it is wanted.
    let FilePages { inactive, active, dirty } = group.file_pages();
    let dropped = (inactive + active).saturating_sub(dirty);
    Some(Tight { used: tight.used.saturating_sub(dropped), ..tight })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control group as files.
    fn group(root: &Path, path: &str, max: &str, current: u64, stat: &str) {
        let folder = root.join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("memory.max"), max).unwrap();
        std::fs::write(folder.join("memory.current"), format!("{current}\n")).unwrap();
        std::fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn the_nearest_limit_counts_without_what_can_be_dropped() {
        let root = std::env::temp_dir().join(format!("raceline-room-{}", std::process::id()));
        let limit = 100 << 20;
        let stat = "anon 1\ninactive_file 4194304\nactive_file 200\nfile_dirty 100\n";
        group(&root, "system", &format!("{limit}\n"), (90 << 20) + 100, stat);
        group(&root, "system/raceline", "max\n", 80 << 20, "");
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        std::fs::write(root.join("proc/self/cgroup"), "0::/system/raceline\n").unwrap();
        let found = nearest(MemoryGroup::all(&root)).unwrap();
        let tight = state(&found).unwrap();
        assert_eq!(tight, Tight { used: 86 << 20, limit, is_group: true });
        assert_eq!(tight.left(), 14 << 20);
        // The files are those of now.
        group(&root, "system", &format!("{limit}\n"), 10 << 20, "");
        assert_eq!(state(&found).unwrap().left(), 90 << 20);
        group(&root, "system", "max\n", 10 << 20, "");
        assert_eq!(state(&found), None);
        let own = nearest(MemoryGroup::all(&root)).unwrap();
        assert_eq!(state(&own), None, "no limit is no reason");
        assert!(nearest(Vec::new()).is_none());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_process_with_room_has_room() {
        let file = File::open("/dev/null").unwrap();
        probe(file.as_fd()).unwrap();
        watch_memory();
        assert_eq!(scarce_memory(0), None);
        assert_eq!(lack(), None);
    }
}
