//! Block devices: what they are, where they are attached, and how the kernel queues for them.

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::System;

const BLOCK: &str = "/sys/block";
/// Devices of memory or of files, which no measurement has for a drive.
const NOT_DRIVES: [&str; 4] = ["loop", "ram", "zram", "sr"];

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// Its name, e.g. `nvme0n1`.
    pub name: String,
    /// The model that it says it is.
    pub model: Reading<String>,
    /// The revision of its firmware.
    pub firmware: Reading<String>,
    /// Its size in bytes.
    pub size_bytes: Reading<u64>,
    /// The size of its blocks in bytes.
    pub block_bytes: Reading<u64>,
    /// The NUMA node that it is attached to; -1 where the machine does not say.
    pub numa_node: Reading<i32>,
    /// The scheduler of its queues.
    pub scheduler: Reading<String>,
    /// Requests that each of its queues holds.
    pub requests: Reading<u32>,
    /// Whether it has a volatile cache: `write back` or `write through`.
    pub write_cache: Reading<String>,
    /// The latency that throttling of writes aims at, in microseconds; 0 is off.
    pub write_throttling_us: Reading<u64>,
    /// Whether it has moving parts.
    pub rotational: Reading<bool>,
    /// The link to it: speed, width, and what it could be, e.g. `8.0 GT/s PCIe x4 of 16.0 GT/s PCIe x4`.
    pub link: Reading<String>,
}

/// Reads all of them.
#[must_use]
pub fn read(system: &System) -> Reading<Vec<Drive>> {
    system.names(BLOCK).map(|names| {
        let is_drive = |name: &&String| {
            let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
            !NOT_DRIVES.contains(&letters)
        };
        names.iter().filter(is_drive).map(|name| drive(system, name)).collect()
    })
}

fn drive(system: &System, name: &str) -> Drive {
    let path = |part: &str| format!("{BLOCK}/{name}/{part}");
    let text = |part: &str| system.text(&path(part));
    Drive {
        name: name.to_owned(),
        model: text("device/model"),
        firmware: text("device/firmware_rev").or(|| text("device/rev")),
        // The kernel counts sectors of 512 bytes, whatever the blocks are.
        size_bytes: system.number(&path("size")).map(|sectors: u64| sectors.saturating_mul(512)),
        block_bytes: system.number(&path("queue/logical_block_size")),
        numa_node: attached(system, &path("device")),
        scheduler: system.chosen(&path("queue/scheduler")),
        requests: system.number(&path("queue/nr_requests")),
        write_cache: text("queue/write_cache"),
        write_throttling_us: system.number(&path("queue/wbt_lat_usec")),
        rotational: system.flag(&path("queue/rotational")),
        link: link(system, &path("device/device")).or(|| link(system, &path("device"))),
    }
}

/// The NUMA node that a device or one above it says. The PCI device that has it lies some levels above
/// devices of NVMe, of virtio and of SCSI buses.
pub(crate) fn attached(system: &System, device: &str) -> Reading<i32> {
    /// Virtual disks below an expander and its host are seven levels below their PCI device.
    const LEVELS: usize = 8;
    let mut place = device.to_owned();
    for _ in 0..LEVELS {
        if let node @ Reading::Read(_) = system.number(&format!("{place}/numa_node")) {
            return node;
        }
        place.push_str("/..");
    }
    Reading::unread(format!("neither {device} nor what it is attached to has a NUMA node"))
}

/// Speed and width of a PCI Express link, and what they could be.
pub(crate) fn link(system: &System, device: &str) -> Reading<String> {
    let text = |name: &str| system.text(&format!("{device}/{name}"));
    text("current_link_speed").then(|speed| {
        text("current_link_width").map(|width| {
            match (text("max_link_speed").text(), text("max_link_width").text()) {
                (Some(most), Some(widest)) => format!("{speed} x{width} of {most} x{widest}"),
                _ => format!("{speed} x{width}"),
            }
        })
    })
}
