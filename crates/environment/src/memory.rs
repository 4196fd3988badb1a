//! Memory: its size, its NUMA nodes, huge pages, and how much of it this process may lock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu::{kib, status};
use crate::reading::Reading;
use crate::system::System;

const NODES: &str = "/sys/devices/system/node";
const HUGE: &str = "/sys/kernel/mm/hugepages";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Its size in KiB.
    pub total_kib: Reading<u64>,
    /// Swap space in KiB.
    pub swap_kib: Reading<u64>,
    /// The NUMA nodes.
    pub nodes: Reading<Vec<Node>>,
    /// Pages in the pools of huge pages, by the size of a page in KiB.
    pub huge_pages: Reading<BTreeMap<u64, u64>>,
    /// When the kernel makes huge pages by itself: `always`, `madvise`, `never`.
    pub transparent_huge_pages: Reading<String>,
    /// How hard it tries.
    pub transparent_defrag: Reading<String>,
    /// Whether the kernel moves pages between nodes by itself.
    pub numa_balancing: Reading<bool>,
    /// How much memory this process may lock, in bytes; `null` for any amount.
    pub lock_limit_bytes: Reading<Option<u64>>,
    /// How many files this process may have open; `null` for any number.
    pub file_limit: Reading<Option<u64>>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its CPUs, e.g. `0-15`.
    pub cpus: Reading<String>,
    /// The size of its memory in KiB.
    pub total_kib: Reading<u64>,
    /// Its distances to all nodes, in order; 10 is near.
    pub distances: Reading<String>,
    /// Pages in its pools of huge pages, by the size of a page in KiB.
    pub huge_pages: Reading<BTreeMap<u64, u64>>,
}

impl Memory {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        let information = |name: &str| {
            let path = "/proc/meminfo";
            system.text(path).then(|text| kib(path, &text, name))
        };
        Self {
            total_kib: information("MemTotal"),
            swap_kib: information("SwapTotal"),
            nodes: nodes(system),
            huge_pages: pools(system, HUGE, "nr_hugepages"),
            transparent_huge_pages: system.chosen(&format!("{THP}/enabled")),
            transparent_defrag: system.chosen(&format!("{THP}/defrag")),
            numa_balancing: system.flag("/proc/sys/kernel/numa_balancing"),
            lock_limit_bytes: lock_limit(system),
            file_limit: limit(system, "Max open files"),
        }
    }
}

fn nodes(system: &System) -> Reading<Vec<Node>> {
    system.numbered(NODES, "node").map(|numbers| {
        let node = |id: u32| {
            let path = |name: &str| format!("{NODES}/node{id}/{name}");
            let information = path("meminfo");
            Node {
                id,
                cpus: system.text(&path("cpulist")),
                total_kib: system
                    .text(&information)
                    .then(|text| kib(&information, &text, "MemTotal")),
                distances: system.text(&path("distance")),
                huge_pages: pools(system, &path("hugepages"), "nr_hugepages"),
            }
        };
        numbers.into_iter().map(node).collect()
    })
}

/// A number of each pool of huge pages, by the size of its pages in KiB.
pub(crate) fn pools(system: &System, folder: &str, name: &str) -> Reading<BTreeMap<u64, u64>> {
    system.names(folder).map(|names| {
        let pool = |pool: &String| {
            let size = pool.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some((size, system.number(&format!("{folder}/{pool}/{name}")).get()?))
        };
        names.iter().filter_map(pool).collect()
    })
}

/// Free huge pages, by the size of a page in KiB.
pub(crate) fn free_pages(system: &System) -> Reading<BTreeMap<u64, u64>> {
    pools(system, HUGE, "free_hugepages")
}

/// The limit on locked memory, which does not hold for processes with CAP_IPC_LOCK.
fn lock_limit(system: &System) -> Reading<Option<u64>> {
    const IPC_LOCK: u64 = 1 << 14;
    let capabilities = status(system, "CapEff");
    let capabilities = capabilities.text().and_then(|text| u64::from_str_radix(text, 16).ok());
    if capabilities.is_some_and(|capabilities| capabilities & IPC_LOCK != 0) {
        return Reading::Read(None);
    }
    limit(system, "Max locked memory")
}

/// A soft limit of this process.
fn limit(system: &System, name: &str) -> Reading<Option<u64>> {
    let path = "/proc/self/limits";
    system.text(path).then(|text| {
        let Some(rest) = text.lines().find_map(|line| line.strip_prefix(name)) else {
            return Reading::unread(format!("{path} has no line {name:?}"));
        };
        match rest.split_whitespace().next() {
            Some("unlimited") => Reading::Read(None),
            Some(word) => crate::system::parse(path, word).map(Some),
            None => Reading::unread(format!("{path} has no limit in the line {name:?}")),
        }
    })
}
