//! Checks of block devices.

use super::{Subject, interface::is_full, joined};
use crate::check::{Area, Check, Role, Severity};
use crate::drives::Drive;
use crate::reading::Reading;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let drives = match &subject.environment.drives {
        Reading::Read(drives) => drives,
        Reading::Unread { unread } => {
            let check =
                new("drives", "drives", "Results of drives depend on their kind and state.");
            return vec![check.is(Severity::Info, unread)];
        }
    };
    if drives.is_empty() {
        let why = "Experiments on drives need one; all others use memory.";
        return vec![new("drives", "drives", why).is(Severity::Info, "none")];
    }
    vec![list(drives), scheduler(drives), throttling(drives), cache(drives), links(drives)]
}

fn new(id: &'static str, title: &'static str, why: &'static str) -> Check {
    Check::new(Area::Drives, id, title, why).only(&[Role::Target])
}

fn list(drives: &[Drive]) -> Check {
    let why = "Reads of blocks that were never written do not reach the flash of an SSD: write all of it once, \
               and wait for its steady state.";
    let shown = drives.iter().map(|drive| {
        let size = drive.size_bytes.get().map_or("?".to_owned(), |bytes| (bytes >> 30).to_string());
        let node = match drive.numa_node.get() {
            Some(node) if node >= 0 => format!(", node {node}"),
            _ => String::new(),
        };
        format!(
            "{} {} ({size} GiB{node})",
            drive.name,
            drive.model.text().unwrap_or("unknown model")
        )
    });
    new("drives", "drives", why).is(Severity::Info, joined(shown))
}

fn scheduler(drives: &[Drive]) -> Check {
    let why = "A scheduler that sorts requests costs CPU time and a lock for each of them, which fast drives do \
               not earn back.";
    let is_sorted = |drive: &&Drive| {
        drive.rotational.get() != Some(true)
            && drive.scheduler.text().is_some_and(|name| name != "none")
    };
    let sorted: Vec<&Drive> = drives.iter().filter(is_sorted).collect();
    let shown = joined(
        drives
            .iter()
            .map(|drive| format!("{} {}", drive.name, drive.scheduler.text().unwrap_or("?"))),
    );
    let check = new("drives-scheduler", "schedulers", why);
    let check = check.good_or(sorted.is_empty(), Severity::Warning, shown);
    sorted.iter().fold(check, |check, drive| {
        check.fix(format!("echo none > /sys/block/{}/queue/scheduler", drive.name))
    })
}

fn throttling(drives: &[Drive]) -> Check {
    let why = "The kernel holds back writes of the page cache when reads take too long. It does not touch \
               direct I/O, which Raceline uses.";
    let on = drives.iter().filter(|drive| drive.write_throttling_us.get().is_some_and(|us| us > 0));
    new("drives-throttling", "throttling of writes", why).is(
        Severity::Info,
        joined(on.map(|drive| format!("{} {} us", drive.name, drive.write_throttling_us))),
    )
}

fn cache(drives: &[Drive]) -> Check {
    let why = "Writes to a drive with a volatile cache are fast until it is full, and a Flush takes \
               milliseconds.";
    let shown = drives
        .iter()
        .map(|drive| format!("{} {}", drive.name, drive.write_cache.text().unwrap_or("not told")));
    new("drives-cache", "write caches", why).is(Severity::Info, joined(shown))
}

fn links(drives: &[Drive]) -> Check {
    let why = "A drive in a slot that is too slow or too narrow cannot deliver what it could.";
    let slow: Vec<String> = drives
        .iter()
        .filter_map(|drive| {
            let link = drive.link.text().filter(|link| !is_full(link))?;
            Some(format!("{} {link}", drive.name))
        })
        .collect();
    let known = drives.iter().any(|drive| drive.link.value().is_some());
    let check = new("drives-links", "PCI Express", why);
    match (known, slow.is_empty()) {
        (false, _) => check.is(Severity::Info, "no drive tells of a link"),
        (true, true) => check.is(Severity::Ok, "as fast as they can be"),
        (true, false) => check
            .is(Severity::Warning, joined(&slow))
            .fix("# Move the drive to a slot with the lanes and the speed that it has"),
    }
}
