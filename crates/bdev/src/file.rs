//! Regular files as devices: created sparse or used as they are, with direct I/O unless told.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::claim::{Claim, Held, Object, lock_file, object_of, take_handed};
use crate::disk::DiskBdev;
use crate::open::{choose_block_size, is_among_devices, new_info, open_failed};
use crate::probe::{DirectIo, direct_alignment, file_system, knows_holes, punches_holes};
use crate::{BdevInfo, ByteSize, DeviceSpec, Identity, OpenError};

/// The mode of files created here: namespace data is for this user only.
const NEW_FILE_MODE: u32 = 0o600;

/// File systems hint at larger I/O than this for throughput, not for alignment.
const LARGEST_PHYSICAL_BLOCK: u64 = 64 << 10;

/// Opens a file, creating it if it does not exist and `size` is given.
pub(crate) fn open(
    spec: &DeviceSpec,
    path: &Path,
    size: Option<ByteSize>,
    buffered: bool,
    identity: &Identity,
) -> Result<DiskBdev, OpenError> {
    let created = match (fs::metadata(path), size) {
        (Err(error), Some(size)) if error.kind() == io::ErrorKind::NotFound && !spec.read_only => {
            if is_among_devices(path) {
                return Err(OpenError::AmongDevices(path.into()));
            }
            Some(Created::new(path, size)?)
        }
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::missing(path));
        }
        _ => None,
    };
    let device = open_existing(spec, path, size, buffered, identity)?;
    if let Some(created) = created {
        created.keep();
    }
    Ok(device)
}

fn open_existing(
    spec: &DeviceSpec,
    path: &Path,
    size: Option<ByteSize>,
    buffered: bool,
    identity: &Identity,
) -> Result<DiskBdev, OpenError> {
    let failed = |action| move |source| OpenError::Io { path: path.into(), action, source };
    let canonical = fs::canonicalize(path).map_err(|e| open_failed(path, spec.read_only, e))?;
    let metadata = fs::metadata(&canonical).map_err(|e| open_failed(path, spec.read_only, e))?;
    let object = regular_file(path, &metadata)?;
    let claim = Claim::new(object, &canonical).map_err(|other| OpenError::InUse {
        path: path.into(),
        holder: format!("this process has it open already as `{}`", other.display()),
    })?;

    let handed = take_handed(object);
    let is_handed = handed.is_some();
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(!spec.read_only)
            .custom_flags(if buffered { 0 } else { libc::O_DIRECT })
            .open(&canonical)
    };
    let file = handed.map_or_else(open, Ok).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) if !buffered => no_direct_io(path, &canonical),
        _ => open_failed(path, spec.read_only, error),
    })?;
    let file = Held::new(file, claim);
    let metadata = file.metadata().map_err(failed("look at it"))?;
    if object_of(&metadata) != Some(object) {
        let source = io::Error::other("it was replaced meanwhile; try again");
        return Err(failed("open it")(source));
    }
    let with_others = spec.read_only || spec.shared;
    if !is_handed
        && let Err(holder) = lock_file(&file, object, with_others).map_err(failed("lock it"))?
    {
        return Err(OpenError::InUse { path: path.into(), holder });
    }
    if let Some(wanted) = size.filter(|size| size.0 != metadata.len()) {
        let actual = ByteSize(metadata.len());
        return Err(OpenError::OtherSize { path: path.into(), actual, wanted });
    }

    let alignment = if buffered {
        1
    } else {
        match direct_alignment(&file).map_err(failed("find out its alignment"))? {
            DirectIo::Aligned(bytes) => bytes,
            DirectIo::Unsupported => return Err(no_direct_io(path, &canonical)),
        }
    };
    let block_size = choose_block_size(spec, path, alignment, metadata.len())?;
    let info = describe(spec, &canonical, &file, &metadata, block_size, identity);
    Ok(DiskBdev::new(file, buffered, info))
}

fn describe(
    spec: &DeviceSpec,
    canonical: &Path,
    file: &File,
    metadata: &fs::Metadata,
    block_size: u32,
    identity: &Identity,
) -> BdevInfo {
    let punches = !spec.read_only && punches_holes(file, metadata.len());
    let hint = Some(metadata.blksize())
        .filter(|bytes| bytes.is_power_of_two() && *bytes <= LARGEST_PHYSICAL_BLOCK)
        .and_then(|bytes| u32::try_from(bytes).ok());
    let name = canonical.display().to_string();
    let block_count = metadata.len() / u64::from(block_size);
    BdevInfo {
        physical_block_size: hint.unwrap_or(block_size).max(block_size),
        // Direct I/O goes past the page cache, not past the cache of the disk or the journal.
        volatile_write_cache: true,
        deallocate: punches,
        deallocate_zeroes: punches,
        // A file system says only when asked what it can copy.
        copies: !spec.read_only,
        knows_holes: knows_holes(file),
        ..new_info(spec, name, block_size, block_count, identity.of_file(canonical))
    }
}

/// Anything but a regular file is refused with what to write instead.
fn regular_file(path: &Path, metadata: &fs::Metadata) -> Result<Object, OpenError> {
    match object_of(metadata) {
        Some(object @ Object::File { .. }) => Ok(object),
        Some(Object::Block { .. }) => Err(OpenError::WrongKind {
            path: path.into(),
            found: "a block device",
            advice: "write block: before the path, without size= and buffered",
        }),
        None if metadata.is_dir() => Err(OpenError::WrongKind {
            path: path.into(),
            found: "a directory",
            advice: "name a file in it",
        }),
        None => Err(OpenError::WrongKind {
            path: path.into(),
            found: "neither a regular file nor a block device",
            advice: "name one",
        }),
    }
}

fn no_direct_io(path: &Path, canonical: &Path) -> OpenError {
    OpenError::NoDirectIo { path: path.into(), file_system: file_system(canonical) }
}

/// A file made here, removed again unless kept.
struct Created {
    path: PathBuf,
    keep: bool,
}

impl Created {
    /// Makes a sparse file whose size and name survive a power cut before anyone sees it.
    fn new(path: &Path, size: ByteSize) -> Result<Self, OpenError> {
        let failed = |action| move |source| OpenError::Io { path: path.into(), action, source };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(NEW_FILE_MODE)
            .open(path)
            .map_err(failed("create it"))?;
        let created = Self { path: path.to_owned(), keep: false };
        file.set_len(size.0).map_err(failed("give it its size"))?;
        file.sync_all().map_err(failed("make it durable"))?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(parent)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("make its name durable"))?;
        Ok(created)
    }

    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(
                "{}: created but not used, and not removed: {error}",
                self.path.display()
            );
        }
    }
}
