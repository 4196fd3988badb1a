//! Namespaces through their generic device (`/dev/ng0n1`): what a ring has to know of one, and whether it
//! may be used so.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use raceline_proto::nvme::command::BlockRange;
use raceline_proto::nvme::identify::{
    DLFEAT_READS_ZEROES, DLFEAT_WRITE_ZEROES_DEALLOCATES, IdentifyController, IdentifyNamespace,
    ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES,
};
use raceline_reactor::nvme::{NvmeFormat, check_ring};
use zerocopy::FromBytes;

use super::{DriveNamespace, ioctl, number};
use crate::confined;

/// A namespace that is opened by its generic device.
#[derive(Debug)]
pub(crate) struct Generic {
    pub(crate) file: std::sync::Arc<File>,
    pub(crate) format: NvmeFormat,
}

/// Largest physical block that a page-aligned buffer is sure to be made of.
const PAGE_BYTES: u64 = 4096;
/// DLFEAT: deallocated blocks read zeroes (bits 2:0 = 1), and Write Zeroes may deallocate (bit 3).
const ZEROES_DEALLOCATE: u8 = DLFEAT_READS_ZEROES | DLFEAT_WRITE_ZEROES_DEALLOCATES;

impl Generic {
    /// Opens the node at `path`; `block` is the namespace's block device in sysfs.
    ///
    /// # Errors
    /// When the node is not there, not allowed, or not usable so.
    pub(crate) fn open(
        path: &Path,
        block: &Path,
        namespace: &DriveNamespace,
    ) -> Result<Self, String> {
        let node = path.display();
        check_ring().map_err(|error| {
            format!("it needs io_uring of Linux 5.19 or newer, which cannot be had: {error}")
        })?;
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| match confined::refusal(path, &error) {
            Some(reason) => format!("cannot open {node}: {reason}"),
            None => format!("cannot open {node}: {error}"),
        })?;
        let failed = |what: &str, why: String| format!("{node}: cannot identify {what}: {why}");
        let controller = parsed(ioctl::identify_controller(&file))
            .map_err(|error| failed("its controller", error))?;
        let identified = parsed(ioctl::identify_namespace(&file, namespace.nsid))
            .map_err(|error| failed("the namespace", error))?;
        let format = format(&controller, &identified, namespace, block)?;
        let block_size = 1_usize << format.block_shift;
        ioctl::read_first_block(&file, namespace.nsid, block_size)
            .map_err(|error| format!("{node} refuses a read (CAP_SYS_ADMIN?): {error}"))?;
        Ok(Self { file: std::sync::Arc::new(file), format })
    }
}

/// An Identify data structure of what a drive has answered.
fn parsed<T: FromBytes>(answer: io::Result<Vec<u8>>) -> Result<T, String> {
    let data = answer.map_err(|error| error.to_string())?;
    T::read_from_bytes(&data).map_err(|_| format!("the answer has {} bytes", data.len()))
}

/// The node of the generic device that belongs to a disk: `ng0n1` of `nvme0n1`.
pub(super) fn node_of(dev: &Path, disk: &str) -> PathBuf {
    dev.join(format!("ng{}", disk.trim_start_matches("nvme")))
}

fn format(
    controller: &IdentifyController,
    identified: &IdentifyNamespace,
    namespace: &DriveNamespace,
    block: &Path,
) -> Result<NvmeFormat, String> {
    let in_use = identified.format();
    let metadata_bytes = in_use.ms.get();
    if metadata_bytes != 0 || identified.dps != 0 {
        return Err(format!("its blocks carry {metadata_bytes} bytes of metadata"));
    }
    let block_shift = u32::from(in_use.lbads);
    if block_shift >= u32::BITS || 1 << block_shift != namespace.block_size {
        let text = "its format is not the one that the kernel knows: rescan it (nvme ns-rescan)";
        return Err(text.to_owned());
    }
    let queue = |name: &str| number::<u64>(&block.join("queue"), name);
    let limit = queue("max_hw_sectors_kb").map_or(0, |kib| kib << 10);
    // A buffer that begins inside a page touches one more.
    let segments = queue("max_segments").map_or(1, |count| count.saturating_sub(1).max(1));
    let limit = limit.min(segments.saturating_mul(PAGE_BYTES));
    let whole_blocks = |bytes: u64| {
        let bytes = bytes.min(u64::from(BlockRange::MAX_BLOCKS) << block_shift).min(1 << 31);
        u32::try_from(bytes >> block_shift << block_shift).unwrap_or(0)
    };
    let max_transfer_bytes = whole_blocks(limit);
    if max_transfer_bytes == 0 {
        return Err(format!("the kernel does not say what a command may move ({limit} bytes)"));
    }
    let commands = controller.oncs.get();
    let zeroes = queue("write_zeroes_max_bytes").unwrap_or(0);
    Ok(NvmeFormat {
        nsid: namespace.nsid,
        block_shift,
        max_transfer_bytes,
        max_zeroes_bytes: if commands & ONCS_WRITE_ZEROES == 0 { 0 } else { whole_blocks(zeroes) },
        zeroes_deallocate: identified.dlfeat & 0xf == ZEROES_DEALLOCATE,
        dataset_management: commands & ONCS_DATASET_MANAGEMENT != 0,
    })
}

/// Whether the kernel has a generic device for a disk.
pub(super) fn is_there(sys: &Path, disk: &str) -> bool {
    fs::exists(node_of(&sys.join("class/nvme-generic"), disk)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(root: &Path, pairs: &[(&str, &str)]) {
        fs::create_dir_all(root.join("queue")).unwrap();
        for (name, text) in pairs {
            fs::write(root.join("queue").join(name), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn a_format_is_read_and_limited() {
        let root = tempfile::tempdir().unwrap();
        attributes(
            root.path(),
            &[
                ("max_hw_sectors_kb", "512"),
                ("max_segments", "128"),
                ("write_zeroes_max_bytes", "8192"),
            ],
        );
        let controller = IdentifyController { oncs: 0b1100.into(), ..Default::default() };
        let mut identified =
            IdentifyNamespace { flbas: 2, dlfeat: 0b1001, ..IdentifyNamespace::default() };
        identified.lbaf[2].lbads = 12;
        let namespace = DriveNamespace {
            nsid: 3,
            block: Some("nvme0n3".into()),
            generic: true,
            sectors: 2048,
            block_size: 4096,
            uuid: None,
            read_only: false,
            instance: 1,
        };
        let read =
            |identified: &IdentifyNamespace, controller: &IdentifyController, root: &Path| {
                format(controller, identified, &namespace, root)
            };
        let expected = NvmeFormat {
            nsid: 3,
            block_shift: 12,
            max_transfer_bytes: 127 * 4096,
            max_zeroes_bytes: 8192,
            zeroes_deallocate: true,
            dataset_management: true,
        };
        assert_eq!(read(&identified, &controller, root.path()), Ok(expected));
        // Without the commands nothing is zeroed or released by them.
        let without = read(&identified, &IdentifyController::default(), root.path()).unwrap();
        assert_eq!((without.max_zeroes_bytes, without.dataset_management), (0, false));
        identified.dlfeat = 1;
        assert!(!read(&identified, &controller, root.path()).unwrap().zeroes_deallocate);

        identified.lbaf[2].ms = 8.into();
        let error = read(&identified, &controller, root.path()).unwrap_err();
        assert!(error.contains("8 bytes of metadata"), "{error}");
        identified.lbaf[2].ms = 0.into();
        identified.lbaf[2].lbads = 9;
        assert!(read(&identified, &controller, root.path()).unwrap_err().contains("ns-rescan"));
        identified.lbaf[2].lbads = 12;
        let nothing = tempfile::tempdir().unwrap();
        assert!(read(&identified, &controller, nothing.path()).unwrap_err().contains("(0 bytes)"));
    }

    #[test]
    fn the_generic_device_of_a_disk() {
        assert_eq!(node_of(Path::new("/dev"), "nvme10n3"), Path::new("/dev/ng10n3"));
    }
}
