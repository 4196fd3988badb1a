//! Checks of memory, NUMA nodes and limits.

use super::{Subject, joined};
use crate::check::{Area, Check, Severity};
use crate::reading::Reading;

/// What Raceline's pools of I/O buffers need, in bytes, if they are to be registered with the kernel.
const LOCKED_BYTES: u64 = 64 << 20;
/// Each connection needs a file; others are listeners, rings and devices.
const FILES: u64 = 4096;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    vec![
        size(subject),
        nodes(subject),
        balancing(subject),
        huge_pages(subject),
        transparent(subject),
        locked(subject),
        files(subject),
    ]
}

fn size(subject: &Subject<'_>) -> Check {
    let memory = &subject.environment.memory;
    let gib = |reading: &Reading<u64>| match reading {
        Reading::Read(kib) => format!("{}.{} GiB", kib >> 20, ((kib & 0xf_ffff) * 10) >> 20),
        Reading::Unread { unread } => unread.clone(),
    };
    let value = format!(
        "{}, {} available",
        gib(&memory.total_kib),
        gib(&subject.environment.now.available_kib)
    );
    let why = "Namespaces of RAM and I/O buffers must fit. Memory that is swapped out costs milliseconds.";
    Check::new(Area::Memory, "memory-size", "size", why).is(Severity::Info, value)
}

fn nodes(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let why = "Memory of another NUMA node takes 0.1 to 0.3 us longer for each access and 10 to 30 % of the \
               throughput. NIC, drives, cores and memory should be of one node.";
    let check = Check::new(Area::Memory, "memory-numa", "NUMA nodes", why);
    let nodes = match &environment.memory.nodes {
        Reading::Read(nodes) => nodes,
        unread => return check.is(Severity::Info, unread.reason().unwrap_or_default()),
    };
    if nodes.len() < 2 {
        return check.is(Severity::Ok, "one node");
    }
    let mut places: Vec<(String, i32)> = Vec::new();
    if let Some(interface) = environment.interface.value()
        && let Some(node) = interface.numa_node.get()
    {
        places.push((interface.name.clone(), node));
    }
    for drive in environment.drives.value().into_iter().flatten() {
        places.extend(drive.numa_node.get().map(|node| (drive.name.clone(), node)));
    }
    places.retain(|(_, node)| *node >= 0);
    let shown = joined(places.iter().map(|(name, node)| format!("{name} on node {node}")));
    let apart = places.windows(2).any(|pair| pair[0].1 != pair[1].1);
    let check = check.is(
        if apart { Severity::Warning } else { Severity::Info },
        format!("{} nodes; {shown}", nodes.len()),
    );
    let first = places.first().and_then(|(_, node)| u32::try_from(*node).ok());
    match nodes.iter().find(|node| Some(node.id) == first) {
        Some(node) => check.hint(format!(
            "numactl --membind={} raceline export --cores {} ...",
            node.id,
            node.cpus.text().unwrap_or("0")
        )),
        None => check,
    }
}

fn balancing(subject: &Subject<'_>) -> Check {
    let memory = &subject.environment.memory;
    let why = "The kernel looks which node uses a page by taking the page away for a moment, and moves pages \
               during a measurement.";
    let check = Check::new(Area::Memory, "memory-balancing", "NUMA balancing", why);
    let several = memory.nodes.value().is_some_and(|nodes| nodes.len() > 1);
    match &memory.numa_balancing {
        Reading::Read(on) => check
            .good_or(!on || !several, Severity::Warning, if *on { "on" } else { "off" })
            .fix("sysctl -w kernel.numa_balancing=0"),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn huge_pages(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let why = "Commands at random places of a large RAM namespace look up page tables that no cache holds: \
               huge pages make that rarer. They are needed only where hugepages= asks for them.";
    let check = Check::new(Area::Memory, "memory-huge-pages", "huge pages", why);
    match &environment.memory.huge_pages {
        Reading::Read(pools) => {
            let free = environment.now.free_huge_pages.value();
            let pool = |(size, count): (&u64, &u64)| {
                let free = free.and_then(|free| free.get(size)).copied().unwrap_or(0);
                format!("{count} of {} MiB ({free} free)", size >> 10)
            };
            check
                .is(Severity::Info, joined(pools.iter().map(pool)))
                .hint("# 1024 pages of 2 MiB, on each node its half where there are two:")
                .hint("sysctl -w vm.nr_hugepages=1024")
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn transparent(subject: &Subject<'_>) -> Check {
    let why = "Huge pages that the kernel makes by itself change throughput from run to run, as memory is \
               more or less in pieces.";
    let value = &subject.environment.memory.transparent_huge_pages;
    let check = Check::new(Area::Memory, "memory-thp", "transparent huge pages", why);
    match value {
        Reading::Read(mode) => check.is(Severity::Info, mode),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn locked(subject: &Subject<'_>) -> Check {
    let why = "Buffers are registered with io_uring once if they may be locked; otherwise file I/O pins and \
               releases their pages for each command.";
    let check = Check::new(Area::Memory, "memory-lock", "memory that may be locked", why);
    match &subject.environment.memory.lock_limit_bytes {
        Reading::Read(None) => check.is(Severity::Ok, "any amount"),
        Reading::Read(Some(bytes)) => check
            .good_or(*bytes >= LOCKED_BYTES, Severity::Warning, format!("{} KiB", bytes >> 10))
            .fix(
                "# In the shell that starts Raceline; a service has LimitMEMLOCK=infinity instead:",
            )
            .fix("ulimit -l unlimited"),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn files(subject: &Subject<'_>) -> Check {
    let why = "Each connection is an open file. A target that has no more of them cannot accept connections.";
    let check = Check::new(Area::Memory, "memory-files", "open files", why);
    match &subject.environment.memory.file_limit {
        Reading::Read(None) => check.is(Severity::Ok, "any number"),
        Reading::Read(Some(count)) => check
            .good_or(*count >= FILES, Severity::Warning, format!("at most {count}"))
            .fix("# In the shell that starts Raceline; a service has LimitNOFILE=65536 instead:")
            .fix("ulimit -n 65536"),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}
