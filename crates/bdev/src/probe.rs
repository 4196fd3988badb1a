//! What the kernel says about a file or block device: alignment of direct I/O, cache, discard.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, SeekFrom, StatxFlags, major, minor};

/// I/O buffers start at multiples of this; direct I/O that wants more cannot be served.
const BUFFER_ALIGNMENT: usize = raceline_reactor::buffer::BUFFER_ALIGNMENT;

/// The largest alignment that is probed for by trying.
const LARGEST_PROBE: usize = 64 << 10;

/// The smallest unit of direct I/O on an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectIo {
    /// Offsets and lengths must be multiples of this many bytes.
    Aligned(u32),
    /// There is none.
    Unsupported,
}

/// Finds the alignment of direct I/O of a file opened for it: from statx(2), which knows since
/// Linux 6.1 and not for every file system, else by reading the first bytes of it.
pub(crate) fn direct_alignment(file: &File) -> io::Result<DirectIo> {
    let mask = StatxFlags::DIOALIGN;
    if let Ok(statx) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask)
        && StatxFlags::from_bits_retain(statx.stx_mask).contains(mask)
    {
        let memory_fits = usize::try_from(statx.stx_dio_mem_align)
            .is_ok_and(|align| BUFFER_ALIGNMENT.is_multiple_of(align.max(1)));
        return Ok(match statx.stx_dio_offset_align {
            0 => DirectIo::Unsupported,
            _ if !memory_fits => DirectIo::Unsupported,
            align => DirectIo::Aligned(align),
        });
    }
    let mut memory = vec![0; LARGEST_PROBE + BUFFER_ALIGNMENT];
    let start = memory.as_ptr().align_offset(BUFFER_ALIGNMENT);
    let mut size = 512;
    while size <= LARGEST_PROBE {
        match file.read_at(&mut memory[start..start + size], 0) {
            Ok(_) => return Ok(DirectIo::Aligned(u32::try_from(size).map_err(io::Error::other)?)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => size *= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(DirectIo::Unsupported)
}

/// True if holes can be punched into a file: tried just behind its end, where nothing is.
pub(crate) fn punches_holes(file: &File, len: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, len.next_multiple_of(1 << 20), 1 << 20).is_ok()
}

/// True if the file system tells where holes are.
pub(crate) fn knows_holes(file: &File) -> bool {
    rustix::fs::seek(file, SeekFrom::Hole(0)).is_ok()
}

/// Whether data may change while they are on their way into a file or block device that is opened without the page cache.
/// A device that makes sums of data (`stable_writes`: a digest of NVMe/TCP, Ceph's, parity) must not see that. A file system
/// without a block device of its own, such as btrfs, may make sums, too.
pub(crate) fn bears_changes(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let device = match metadata.file_type().is_block_device() {
        true => metadata.rdev(),
        false => metadata.dev(),
    };
    let own = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    fs::canonicalize(own).is_ok_and(|own| are_stable(&own) == Some(false))
}

/// Whether the device of a folder of sysfs asks for data that do not change; `None`: it does not say.
fn are_stable(own: &Path) -> Option<bool> {
    let is_partition = own.join("partition").exists();
    let disk = if is_partition { own.parent().unwrap_or(own) } else { own };
    attribute(&disk.join("queue/stable_writes")).map(|text| text != "0")
}

/// The properties of a block device that sysfs tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockQueue {
    pub(crate) bytes: u64,
    pub(crate) logical_block_size: u32,
    pub(crate) physical_block_size: u32,
    /// The device, or the kernel below it, holds completed writes in memory.
    pub(crate) write_back: bool,
    /// A range can be released such that it reads zeroes.
    pub(crate) zeroing_discard: bool,
    pub(crate) read_only: bool,
    /// A name that the device itself has, wherever it is plugged in.
    pub(crate) wwid: Option<String>,
    /// The NUMA node that the disk is attached to, where the machine says one.
    pub(crate) numa_node: Option<u32>,
}

impl BlockQueue {
    /// The properties of the block device with a number.
    pub(crate) fn of(device: u64) -> io::Result<Self> {
        let sys = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        Self::from_sysfs(&fs::canonicalize(sys)?)
    }

    fn from_sysfs(own: &Path) -> io::Result<Self> {
        // A partition has its size and flag, and the queue of the disk above it.
        let partition = attribute(&own.join("partition"));
        let disk = if partition.is_some() { own.parent().unwrap_or(own) } else { own };
        let queue = |name| attribute(&disk.join("queue").join(name));
        let number = |path: PathBuf| -> io::Result<u64> {
            let missing = || io::Error::new(io::ErrorKind::NotFound, path.display().to_string());
            attribute(&path).and_then(|text| text.parse().ok()).ok_or_else(missing)
        };
        let size =
            |name| u32::try_from(number(disk.join("queue").join(name))?).map_err(io::Error::other);
        let nonzero = |name| queue(name).is_some_and(|text| text != "0");
        let wwid = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid"]
            .iter()
            .find_map(|name| attribute(&disk.join(name)));
        Ok(Self {
            // Always in units of 512 bytes, whatever the block size.
            bytes: number(own.join("size"))?.saturating_mul(512),
            logical_block_size: size("logical_block_size")?,
            physical_block_size: size("physical_block_size")?,
            write_back: queue("write_cache").as_deref() != Some("write through"),
            zeroing_discard: nonzero("discard_max_bytes") && nonzero("write_zeroes_max_bytes"),
            read_only: number(own.join("ro"))? != 0,
            wwid: wwid.map(|wwid| match &partition {
                Some(partition) => format!("{wwid} partition {partition}"),
                None => wwid,
            }),
            numa_node: numa_node(&disk.join("device")),
        })
    }
}

/// The node that a device or one above it says. A disk's device may be an NVMe controller, a target of a
/// SCSI bus, or a virtio device; the PCI device that has the node lies some levels above. A device of no
/// node has -1.
fn numa_node(device: &Path) -> Option<u32> {
    let own = fs::canonicalize(device).ok()?;
    own.ancestors().find_map(|place| attribute(&place.join("numa_node")))?.parse().ok()
}

/// One attribute, without white space around it; `None` if it is missing or empty.
fn attribute(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The name of the file system that a path is on, for messages.
pub(crate) fn file_system(path: &Path) -> String {
    let number = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
        .map(|statx| format!("{}:{}", statx.stx_dev_major, statx.stx_dev_minor))
        .unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter(|line| line.split_ascii_whitespace().nth(2) == Some(number.as_str()))
        .find_map(|line| line.split_once(" - ")?.1.split_ascii_whitespace().next())
        .unwrap_or("its file system")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_partition_has_its_size_and_the_queue_of_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("nvme0n1");
        for (name, text) in [
            ("size", "1000\n"),
            ("ro", "0\n"),
            ("wwid", "eui.0025385b21404321\n"),
            ("queue/logical_block_size", "512\n"),
            ("queue/physical_block_size", "4096\n"),
            ("queue/write_cache", "write through\n"),
            ("queue/discard_max_bytes", "2199023255040\n"),
            ("queue/write_zeroes_max_bytes", "131072\n"),
            ("nvme0n1p2/partition", "2\n"),
            ("nvme0n1p2/size", "100\n"),
            ("nvme0n1p2/ro", "1\n"),
        ] {
            write(disk.join(name), text);
        }
        let whole = BlockQueue::from_sysfs(&disk).unwrap();
        let expected = BlockQueue {
            bytes: 512_000,
            logical_block_size: 512,
            physical_block_size: 4096,
            write_back: false,
            zeroing_discard: true,
            read_only: false,
            wwid: Some("eui.0025385b21404321".into()),
            numa_node: None,
        };
        assert_eq!(whole, expected);
        let partition = BlockQueue::from_sysfs(&disk.join("nvme0n1p2")).unwrap();
        let wwid = Some("eui.0025385b21404321 partition 2".into());
        assert_eq!(partition, BlockQueue { bytes: 51_200, read_only: true, wwid, ..expected });

        // The node is that of the PCI device, some levels above the controller; -1 is no node.
        let device = root.path().join("0000:5e:00.0");
        write(device.join("numa_node"), "1\n");
        write(device.join("nvme/nvme0/state"), "live\n");
        std::os::unix::fs::symlink(device.join("nvme/nvme0"), disk.join("device")).unwrap();
        for own in [disk.clone(), disk.join("nvme0n1p2")] {
            assert_eq!(BlockQueue::from_sysfs(&own).unwrap().numa_node, Some(1));
        }
        write(device.join("numa_node"), "-1\n");
        assert_eq!(BlockQueue::from_sysfs(&disk).unwrap().numa_node, None);

        // What is not known to be safe counts as volatile.
        fs::remove_file(disk.join("queue/write_cache")).unwrap();
        assert!(BlockQueue::from_sysfs(&disk).unwrap().write_back);
        fs::remove_file(disk.join("size")).unwrap();
        assert!(BlockQueue::from_sysfs(&disk).is_err());
    }
}
