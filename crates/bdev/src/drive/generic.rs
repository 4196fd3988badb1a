//! Namespaces through their generic device (`/dev/ng0n1`): what a ring has to know of one, and whether it
//! may be used so.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use raceline_reactor::nvme::{NvmeFormat, check_ring};

use super::{DriveNamespace, ioctl, number};

/// A namespace that is opened by its generic device.
#[derive(Debug)]
pub(crate) struct Generic {
    pub(crate) file: std::sync::Arc<File>,
    pub(crate) format: NvmeFormat,
}

/// Largest physical block a page-aligned buffer is made of, as far as anybody knows.
const PAGE_BYTES: u64 = 4096;
/// Most bytes of data of one command, whatever the drive takes: NLB has 16 bits.
const MAX_COMMAND_BLOCKS: u64 = 1 << 16;

/// ONCS bits 2 and 3, at byte 520 of Identify Controller (Base 2.0, figure 276).
const ONCS: usize = 520;
const DATASET_MANAGEMENT: u8 = 1 << 2;
const WRITE_ZEROES: u8 = 1 << 3;
/// Fields of Identify Namespace (NVM Command Set 1.0, figure 97): FLBAS, DPS, DLFEAT, LBAF0.
const FLBAS: usize = 26;
const DPS: usize = 29;
const DLFEAT: usize = 33;
const LBAF: usize = 128;
/// DLFEAT: deallocated blocks read zeroes (bits 2:0 = 1), and Write Zeroes may deallocate (bit 3).
const ZEROES_DEALLOCATE: u8 = 0b1001;

impl Generic {
    /// Opens the node at `path`; `block` is the namespace's block device in sysfs.
    ///
    /// # Errors
    /// What is not there, not allowed, or not usable so.
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
        let file = file.map_err(|error| format!("cannot open {node}: {error}"))?;
        let asked = |what: &str, result: io::Result<Vec<u8>>| {
            result.map_err(|error| format!("{node}: cannot identify {what}: {error}"))
        };
        let controller = asked("its controller", ioctl::identify_controller(&file))?;
        let identified = ioctl::identify_namespace(&file, namespace.nsid);
        let identified = asked("the namespace", identified)?;
        let format = format(&controller, &identified, namespace, block)?;
        let block_size = 1_usize << format.block_shift;
        ioctl::read_first_block(&file, namespace.nsid, block_size)
            .map_err(|error| format!("{node} refuses a read (CAP_SYS_ADMIN?): {error}"))?;
        Ok(Self { file: std::sync::Arc::new(file), format })
    }
}

/// The node of the generic device that belongs to a disk: `ng0n1` of `nvme0n1`.
pub(super) fn node_of(dev: &Path, disk: &str) -> PathBuf {
    dev.join(format!("ng{}", disk.trim_start_matches("nvme")))
}

fn format(
    controller: &[u8],
    identified: &[u8],
    namespace: &DriveNamespace,
    block: &Path,
) -> Result<NvmeFormat, String> {
    let byte = |data: &[u8], at: usize| data.get(at).copied().unwrap_or(0);
    let flbas = byte(identified, FLBAS);
    let index = usize::from(flbas & 0xf | (flbas >> 5 & 0b11) << 4);
    let at = LBAF + 4 * index;
    let metadata_bytes = u16::from_le_bytes([byte(identified, at), byte(identified, at + 1)]);
    if metadata_bytes != 0 || byte(identified, DPS) != 0 {
        return Err(format!("its blocks carry {metadata_bytes} bytes of metadata"));
    }
    let block_shift = u32::from(byte(identified, at + 2));
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
        let bytes = bytes.min(MAX_COMMAND_BLOCKS << block_shift).min(1 << 31);
        u32::try_from(bytes >> block_shift << block_shift).unwrap_or(0)
    };
    let max_transfer_bytes = whole_blocks(limit);
    if max_transfer_bytes == 0 {
        return Err(format!("the kernel does not say what a command may move ({limit} bytes)"));
    }
    let commands = byte(controller, ONCS);
    let zeroes = queue("write_zeroes_max_bytes").unwrap_or(0);
    let dlfeat = byte(identified, DLFEAT);
    Ok(NvmeFormat {
        nsid: namespace.nsid,
        block_shift,
        max_transfer_bytes,
        max_zeroes_bytes: if commands & WRITE_ZEROES == 0 { 0 } else { whole_blocks(zeroes) },
        zeroes_deallocate: dlfeat & 0xf == ZEROES_DEALLOCATE,
        dataset_management: commands & DATASET_MANAGEMENT != 0,
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
        let mut controller = vec![0; 4096];
        controller[ONCS] = DATASET_MANAGEMENT | WRITE_ZEROES;
        let mut identified = vec![0; 4096];
        identified[FLBAS] = 2;
        identified[DLFEAT] = 0b1001;
        identified[LBAF + 10] = 12;
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
        let read = |identified: &[u8], controller: &[u8], root: &Path| {
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
        let without = read(&identified, &[0; 4096], root.path()).unwrap();
        assert_eq!((without.max_zeroes_bytes, without.dataset_management), (0, false));
        identified[DLFEAT] = 1;
        assert!(!read(&identified, &controller, root.path()).unwrap().zeroes_deallocate);

        identified[LBAF + 8] = 8;
        let error = read(&identified, &controller, root.path()).unwrap_err();
        assert!(error.contains("8 bytes of metadata"), "{error}");
        identified[LBAF + 8] = 0;
        identified[LBAF + 10] = 9;
        assert!(read(&identified, &controller, root.path()).unwrap_err().contains("ns-rescan"));
        identified[LBAF + 10] = 12;
        let nothing = tempfile::tempdir().unwrap();
        assert!(read(&identified, &controller, nothing.path()).unwrap_err().contains("(0 bytes)"));
    }

    #[test]
    fn the_generic_device_of_a_disk() {
        assert_eq!(node_of(Path::new("/dev"), "nvme10n3"), Path::new("/dev/ng10n3"));
    }
}
