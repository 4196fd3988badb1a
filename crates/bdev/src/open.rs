//! Opens devices from their specifications, or says why not and what to do.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raceline_reactor::buffer::HugePages;
use raceline_reactor::inheritance;
use uuid::Uuid;

use crate::limits::Promise;
use crate::ram::PAGE_BYTES;
use crate::{
    Backing, BdevInfo, BlockSize, ByteSize, DelayBdev, DeviceSpec, ErrorBdev, Identity, NullBdev,
    RamBdev, SharedBdev, UncorrectableBdev, block, confined, file,
};

/// Why a device could not be opened; one line with what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such path, and no size to create a file with.
    #[error("`{0}` does not exist; to create it, give it a size: file:{0},size=1G")]
    Missing(PathBuf),
    /// No such path among the device files, where nobody wants a regular file.
    #[error("`{0}`: there is no such device: `lsblk` lists them")]
    NoDevice(PathBuf),
    /// A file was to be created among the device files.
    #[error(
        "`{0}`: there is no such device (`lsblk` lists them), and a regular file is not created among device files: to have a \
         file, name another folder, e.g. /srv or /dev/shm"
    )]
    AmongDevices(PathBuf),
    /// A size in the place of a path.
    #[error(
        "`{0}` is a size, and there is no file of that name: for memory of that size, write ram:{0}"
    )]
    OnlySize(String),
    /// The path leads to something else.
    #[error("`{path}` is {found}: {advice}")]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What to write instead.
        advice: &'static str,
    },
    /// Exclusive use was refused.
    #[error("`{path}` is in use: {holder}")]
    InUse {
        /// The path.
        path: PathBuf,
        /// By what.
        holder: String,
    },
    /// The file exists with another size than was asked for.
    #[error("`{path}` exists with {actual}, not {wanted}: leave out size= to use it as it is, or run truncate -s {} first", wanted.0)]
    OtherSize {
        /// The path.
        path: PathBuf,
        /// What it has.
        actual: ByteSize,
        /// What was asked for.
        wanted: ByteSize,
    },
    /// Nothing to export.
    #[error("`{0}` has no blocks: give the file a size (truncate -s 1G), or insert the medium")]
    Empty(PathBuf),
    /// The size is not a multiple of the block size.
    #[error("`{path}` has {} bytes, which is not a multiple of its block size {block_size}: use {advice}", size.0)]
    PartialBlock {
        /// The path.
        path: PathBuf,
        /// Its size.
        size: ByteSize,
        /// The block size chosen.
        block_size: u32,
        /// A smaller block size or another size.
        advice: String,
    },
    /// The file system cannot do what durability without a page cache needs.
    #[error(
        "`{path}`: {file_system} cannot do direct I/O here; add `,buffered` to go through the page cache, or move the file"
    )]
    NoDirectIo {
        /// The path.
        path: PathBuf,
        /// The name of the file system.
        file_system: String,
    },
    /// The block size asked for is below what direct I/O can address.
    #[error(
        "`{path}` cannot do direct I/O in units of {wanted} bytes: the smallest possible block size is bs={smallest}"
    )]
    BlockSize {
        /// The path.
        path: PathBuf,
        /// What was asked for.
        wanted: u32,
        /// What is possible.
        smallest: u32,
    },
    /// Direct I/O needs larger blocks than NVMe hosts use.
    #[error(
        "`{path}` needs direct I/O in units of {alignment} bytes, more than the largest block size 4096; add `,buffered` if it is a file"
    )]
    Alignment {
        /// The path.
        path: PathBuf,
        /// What it needs.
        alignment: u32,
    },
    /// It can be read but not written.
    #[error("`{0}` is read-only: make it writable, or add `,readonly`")]
    ReadOnly(PathBuf),
    /// It cannot be opened by this user.
    #[error(
        "`{0}` may not be opened: give this user access (owner, group or ACL of the file and its directories)"
    )]
    Permission(PathBuf),
    /// This process has given up the part of the file system where it is.
    #[error("`{path}` may not be opened: {reason}")]
    Outside {
        /// The path.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// A RAM device that would not fit.
    #[error(
        "{wanted} of memory is more than the {available} that {limit} leaves: make it smaller, or use a file"
    )]
    Memory {
        /// What was asked for.
        wanted: ByteSize,
        /// What there is.
        available: ByteSize,
        /// What sets the limit.
        limit: &'static str,
    },
    /// The process whose place this one takes has the contents.
    #[error(
        "`{0}`: its contents cannot be taken over, since the daemon was started without --keep-ram or the device uses \
         reserved huge pages: to go on without them, end the daemon and start it again"
    )]
    NotHandedOver(String),
    /// Reserved huge pages are missing.
    #[error(
        "{wanted} of huge pages cannot be had ({source}): reserve them with sysctl vm.nr_hugepages={pages}, or leave out `hugepages`"
    )]
    HugePages {
        /// What was asked for.
        wanted: ByteSize,
        /// The same in pages of 2 MiB.
        pages: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// Memory of a NUMA node was asked for that cannot be had.
    #[error(
        "memory of NUMA node {node} cannot be had ({source}): /sys/devices/system/node shows the nodes, \
         and a container may need CAP_SYS_NICE"
    )]
    NumaNode {
        /// Which.
        node: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else that the system refused.
    #[error("`{path}`: cannot {action}: {source}")]
    Io {
        /// The path (or the specification of a device without one).
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// Nothing is at a path where no file is to be created.
    #[must_use]
    pub fn missing(path: &Path) -> Self {
        match path.to_str() {
            Some(text) if text.parse::<ByteSize>().is_ok() => Self::OnlySize(text.to_owned()),
            _ if is_among_devices(path) => Self::NoDevice(path.into()),
            _ => Self::Missing(path.into()),
        }
    }
}

/// Whether a path is of the device files, below /dev, and not of the memory that programs share there.
pub(crate) fn is_among_devices(path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    let known = folder.zip(path.file_name()).map(|(folder, name)| folder.join(name));
    let whole = known.or_else(|| std::path::absolute(path).ok());
    whole.is_some_and(|path| path.starts_with("/dev") && !path.starts_with("/dev/shm"))
}

/// Opens a device for exclusive use.
///
/// The block size, if not given, is the smallest that the backing can do: 512 in memory and in
/// files, 4096 where direct I/O needs more than 512 bytes.
///
/// Blocks while it works, so a reactor's thread must not call it.
///
/// # Errors
/// When the device is missing, in use, too large, or cannot be used as asked.
pub fn open(spec: &DeviceSpec, identity: &Identity) -> Result<SharedBdev, OpenError> {
    let mut device = match &spec.backing {
        Backing::Ram { size, huge_pages } => open_ram(spec, *size, *huge_pages, identity)?,
        Backing::Null { size } => {
            let uuid = identity.of_memory("null", size.0);
            Arc::new(NullBdev::new(memory_info(spec, *size, uuid)))
        }
        Backing::File { path, size, buffered } => {
            Arc::new(file::open(spec, path, *size, *buffered, identity)?)
        }
        Backing::Block { path } => Arc::new(block::open(spec, path, identity)?),
        Backing::Path { path } => {
            use std::os::unix::fs::FileTypeExt as _;
            if fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device()) {
                Arc::new(block::open(spec, path, identity)?)
            } else {
                Arc::new(file::open(spec, path, None, false, identity)?)
            }
        }
    };
    if spec.uncorrectable {
        device = Arc::new(UncorrectableBdev::new(device));
    }
    if !spec.errors.is_empty() {
        let (wrapped, _) = ErrorBdev::new(device, spec.errors.clone());
        device = Arc::new(wrapped);
    }
    if let Some(delays) = spec.delay {
        device = Arc::new(DelayBdev::new(device, delays));
    }
    Ok(device)
}

fn open_ram(
    spec: &DeviceSpec,
    size: ByteSize,
    huge_pages: bool,
    identity: &Identity,
) -> Result<SharedBdev, OpenError> {
    /// The usual size of reserved huge pages.
    const HUGE_PAGE_BYTES: u64 = 2 << 20;
    let info = memory_info(spec, size, identity.of_memory("ram", size.0));
    let failed =
        |source| OpenError::Io { path: spec.to_string().into(), action: "map its memory", source };
    if let Some(handed) = RamBdev::handed(&info) {
        return Ok(Arc::new(handed.map_err(failed)?));
    }
    if inheritance::is_sharing() {
        return Err(OpenError::NotHandedOver(info.name));
    }
    let device = if huge_pages {
        RamBdev::new(info, HugePages::Explicit, None).map_err(|source| OpenError::HugePages {
            wanted: size,
            pages: size.0.div_ceil(HUGE_PAGE_BYTES),
            source,
        })?
    } else {
        let promise = Promise::new(size.0).map_err(|refused| OpenError::Memory {
            wanted: size,
            available: refused.available,
            limit: refused.limit,
        })?;
        RamBdev::new(info, HugePages::Transparent, Some(promise)).map_err(failed)?
    };
    if let Some(node) = spec.numa_node {
        device.prefer_node(node).map_err(|source| OpenError::NumaNode { node, source })?;
    }
    device.populate().map_err(failed)?;
    Ok(Arc::new(device))
}

/// What is common to devices without a path. The specification guarantees whole blocks; a
/// program that builds one by hand gets the blocks that fit.
fn memory_info(spec: &DeviceSpec, size: ByteSize, derived: Uuid) -> BdevInfo {
    let block_size = spec.block_size.unwrap_or(BlockSize::B512).bytes();
    let name = spec.backing.to_string();
    BdevInfo {
        physical_block_size: spec.physical_block_size.unwrap_or(PAGE_BYTES).max(block_size),
        io_boundary_bytes: spec.io_boundary_bytes,
        numa_node: spec.numa_node.and_then(|node| u32::try_from(node).ok()),
        ..new_info(spec, name, block_size, size.0 / u64::from(block_size), derived)
    }
}

/// A description with everything that the kind of device does not decide.
pub(crate) fn new_info(
    spec: &DeviceSpec,
    name: String,
    block_size: u32,
    block_count: u64,
    derived: Uuid,
) -> BdevInfo {
    BdevInfo {
        name,
        block_size,
        block_count,
        physical_block_size: block_size,
        io_boundary_bytes: 0,
        volatile_write_cache: true,
        read_only: spec.read_only,
        deallocate: false,
        deallocate_zeroes: false,
        copies: false,
        knows_holes: false,
        uncorrectable: false,
        reads_in_place: false,
        copies_data: false,
        numa_node: None,
        uuid: spec.uuid.unwrap_or(derived).into_bytes(),
    }
}

/// Chooses the block size for something whose direct I/O has this alignment (1 if buffered),
/// and checks that the size is whole blocks.
pub(crate) fn choose_block_size(
    spec: &DeviceSpec,
    path: &std::path::Path,
    alignment: u32,
    size: u64,
) -> Result<u32, OpenError> {
    let possible = [BlockSize::B512, BlockSize::B4096].map(BlockSize::bytes);
    let smallest = possible
        .into_iter()
        .find(|bytes| bytes.is_multiple_of(alignment))
        .ok_or_else(|| OpenError::Alignment { path: path.into(), alignment })?;
    let block_size = spec.block_size.map_or(smallest, BlockSize::bytes);
    if block_size < smallest {
        return Err(OpenError::BlockSize { path: path.into(), wanted: block_size, smallest });
    }
    if size == 0 {
        return Err(OpenError::Empty(path.into()));
    }
    if !size.is_multiple_of(block_size.into()) {
        let advice = if size.is_multiple_of(smallest.into()) {
            format!("bs={smallest}")
        } else {
            format!("truncate -s {}", size.next_multiple_of(block_size.into()))
        };
        return Err(OpenError::PartialBlock {
            path: path.into(),
            size: ByteSize(size),
            block_size,
            advice,
        });
    }
    Ok(block_size)
}

/// Names the reason why an open(2) for reading, and unless `read_only` for writing, failed.
pub(crate) fn open_failed(path: &std::path::Path, read_only: bool, source: io::Error) -> OpenError {
    if let Some(reason) = confined::refusal(path, &source) {
        return OpenError::Outside { path: path.into(), reason };
    }
    match source.raw_os_error() {
        Some(libc::EROFS) if !read_only => OpenError::ReadOnly(path.into()),
        Some(libc::EACCES | libc::EPERM) if !read_only && fs::File::open(path).is_ok() => {
            OpenError::ReadOnly(path.into())
        }
        Some(libc::EACCES | libc::EPERM) => OpenError::Permission(path.into()),
        Some(libc::ETXTBSY) => OpenError::InUse {
            path: path.into(),
            holder: "it is in use as swap, or is a program that runs".to_owned(),
        },
        _ => OpenError::Io { path: path.into(), action: "open it", source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_named_by_what_helps() {
        let errno = io::Error::from_raw_os_error;
        let readable = Path::new("/proc/self/status");
        for code in [libc::EACCES, libc::EPERM, libc::EROFS] {
            let error = open_failed(readable, false, errno(code));
            assert!(matches!(error, OpenError::ReadOnly(_)), "{error}");
        }
        let unreadable = Path::new("/nonexistent");
        for (path, read_only) in [(readable, true), (unreadable, false)] {
            let error = open_failed(path, read_only, errno(libc::EACCES));
            assert!(matches!(error, OpenError::Permission(_)), "{error}");
        }
        let error = open_failed(readable, false, errno(libc::ETXTBSY));
        assert!(error.to_string().contains("in use as swap"), "{error}");
        let error = open_failed(readable, false, errno(libc::EIO));
        assert!(error.to_string().contains("cannot open it: Input/output error"), "{error}");
    }

    #[test]
    fn nothing_is_created_among_device_files() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev", &link).unwrap();
        let identity = Identity::from_seed(b"here");
        let devices = ["/dev/nosuch", "/dev/disk/by-id/nosuch", "/dev/../dev/nosuch"];
        let linked = link.join("nosuch").to_str().unwrap().to_owned();
        for path in devices.into_iter().chain([linked.as_str()]) {
            for (text, expected) in [
                (path.to_owned(), "there is no such device: `lsblk` lists them"),
                (format!("block:{path}"), "there is no such device: `lsblk` lists them"),
                (format!("file:{path}"), "there is no such device: `lsblk` lists them"),
                (format!("file:{path},size=1M"), "not created among device files"),
            ] {
                let message = open(&text.parse().unwrap(), &identity).err().unwrap().to_string();
                assert!(message.contains(expected), "{message}");
                assert!(!message.contains("create it") && !Path::new(path).exists(), "{message}");
            }
        }
        for path in ["/dev/shm/nosuch", "/srv/nosuch", "nosuch", "/devices/nosuch"] {
            assert!(matches!(OpenError::missing(Path::new(path)), OpenError::Missing(_)), "{path}");
        }
    }

    #[test]
    fn a_size_alone_is_taken_for_memory() {
        let message = OpenError::missing(Path::new("1G")).to_string();
        assert!(message.contains("write ram:1G") && !message.contains("file:"), "{message}");
    }

    #[test]
    fn the_smallest_possible_block_size_is_chosen_or_named() {
        let spec = |text: &str| text.parse::<DeviceSpec>().unwrap();
        let choose = |text, alignment, size| {
            choose_block_size(&spec(text), Path::new("/x"), alignment, size)
                .map_err(|error| error.to_string())
        };
        assert_eq!(choose("/x", 1, 1024), Ok(512));
        assert_eq!(choose("/x", 512, 1024), Ok(512));
        assert_eq!(choose("/x", 1024, 8192), Ok(4096));
        assert_eq!(choose("/x", 4096, 8192), Ok(4096));
        assert_eq!(choose("/x,bs=4096", 512, 8192), Ok(4096));
        for (text, alignment, size, expected) in [
            ("/x,bs=512", 4096, 8192, "the smallest possible block size is bs=4096"),
            ("/x", 16384, 1 << 20, "in units of 16384 bytes, more than the largest block size"),
            ("/x", 512, 0, "has no blocks"),
            ("/x", 512, 1000, "use truncate -s 1024"),
            ("/x", 4096, 5120, "use truncate -s 8192"),
            ("/x,bs=4096", 512, 5120, "use bs=512"),
        ] {
            let message = choose(text, alignment, size).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
