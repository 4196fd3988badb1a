//! Huge pages for SPDK and for Raceline's namespace: counting, reserving, giving back.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};

use crate::child::at_interrupt;

/// The kernel's file with the number of huge pages, for writing.
const COUNT_FILE: &str = "/proc/sys/vm/nr_hugepages";
/// Makes the kernel gather free memory into large pieces.
const COMPACT_FILE: &str = "/proc/sys/vm/compact_memory";
/// The file system for huge pages that SPDK expects, where its processes leave files behind
/// when they are killed.
const MOUNT: &str = "/dev/hugepages";
const RUNTIME_DIR: &str = "/var/run/dpdk";
const SHARED_MEMORY_DIR: &str = "/dev/shm";
/// The page size of the counts below.
const PAGE_KIB: u64 = 2048;

/// Huge pages that were added; dropping gives them back.
pub(crate) struct Reserved {
    before: Option<u64>,
}

impl Reserved {
    /// Makes sure that `pages` are free; with `reserve`, adds the missing ones.
    pub(crate) fn ensure(pages: u64, reserve: bool) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let mounted = |line: &str| line.split(' ').nth(2) == Some("hugetlbfs");
        ensure!(
            mounts.lines().any(mounted),
            "SPDK needs a file system for huge pages: mkdir -p {MOUNT} && mount -t hugetlbfs none {MOUNT}"
        );
        let (total, free) = counts()?;
        if free >= pages {
            return Ok(Self { before: None });
        }
        let wanted = total + pages - free;
        if !reserve {
            bail!(
                "{pages} huge pages of 2 MiB are needed and {free} are free: give --reserve, or run sysctl vm.nr_hugepages={wanted} (and {total} afterwards)"
            );
        }
        let reserved = Self { before: Some(total) };
        at_interrupt(move || drop(Self { before: Some(total) }));
        // Compaction helps a machine with a long uptime, and has no effect elsewhere.
        let _ = fs::write(COMPACT_FILE, "1");
        fs::write(COUNT_FILE, wanted.to_string()).with_context(|| {
            format!("cannot reserve huge pages in {COUNT_FILE}: run this as root")
        })?;
        let (_, free) = counts()?;
        ensure!(
            free >= pages,
            "only {free} of {pages} huge pages could be had: free some memory, or reserve them after a reboot"
        );
        Ok(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && let Err(error) = fs::write(COUNT_FILE, before.to_string())
        {
            eprintln!("cannot give huge pages back ({error}): run sysctl vm.nr_hugepages={before}");
        }
    }
}

/// Files that SPDK's processes leave in the system's folders; dropping removes them.
#[derive(Clone, Default)]
pub(crate) struct Leftovers {
    pids: Arc<Mutex<Vec<u32>>>,
}

impl Leftovers {
    /// Also removes them when xtask is interrupted.
    pub(crate) fn new() -> Self {
        let new = Self::default();
        let copy = new.clone();
        at_interrupt(move || copy.remove());
        new
    }

    /// A process of SPDK's has been started.
    pub(crate) fn add(&self, pid: u32) {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    }

    /// Removes the files that the processes so far have left; these must have ended.
    pub(crate) fn remove(&self) {
        let pids = std::mem::take(&mut *self.pids.lock().unwrap_or_else(PoisonError::into_inner));
        for folder in [MOUNT, RUNTIME_DIR, SHARED_MEMORY_DIR] {
            let Ok(entries) = fs::read_dir(folder) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                if pids.iter().any(|pid| is_of(&name.to_string_lossy(), *pid)) {
                    remove(&entry.path());
                }
            }
        }
    }
}

/// Whether a name is one that SPDK gives to files of this process.
fn is_of(name: &str, pid: u32) -> bool {
    let pid = format!("pid{pid}");
    let Some((before, after)) = name.split_once(&pid) else { return false };
    (before == "spdk_" && (after.is_empty() || after.starts_with("map_")))
        || (before.ends_with("_trace.") && after.is_empty())
}

fn remove(path: &Path) {
    // A file that cannot be removed stays: it is small, and its process is gone.
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// All huge pages, and the free ones that are not reserved.
fn counts() -> Result<(u64, u64)> {
    parse(&fs::read_to_string("/proc/meminfo")?)
}

fn parse(meminfo: &str) -> Result<(u64, u64)> {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.and_then(|word| word.parse::<u64>().ok())
            .with_context(|| format!("/proc/meminfo has no {name}: this kernel has no huge pages"))
    };
    ensure!(value("Hugepagesize")? == PAGE_KIB, "huge pages are not of 2 MiB here");
    let free = value("HugePages_Free")?.saturating_sub(value("HugePages_Rsvd")?);
    Ok((value("HugePages_Total")?, free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_pages_are_not_free() {
        let text = "MemTotal: 5 kB\nHugePages_Total:     700\nHugePages_Free:      600\n\
                    HugePages_Rsvd:       50\nHugepagesize:       2048 kB\n";
        assert_eq!(parse(text).unwrap(), (700, 550));
        assert!(parse(&text.replace("2048", "1048576")).is_err());
        assert!(parse("MemTotal: 5 kB\n").is_err());
    }

    #[test]
    fn only_files_of_the_process_are_its_own() {
        for name in ["spdk_pid12", "spdk_pid12map_0", "nvmf_trace.pid12"] {
            assert!(is_of(name, 12), "{name}");
        }
        for name in ["spdk_pid123", "spdk_pid123map_0", "pid12", "x.pid12", "spdk_pid1"] {
            assert!(!is_of(name, 12), "{name}");
        }
    }
}
