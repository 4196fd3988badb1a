//! Block devices: opened exclusively, described by what the kernel says of their queue.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::claim::{Claim, Held, Object, block_holder, object_of, take_handed};
use crate::disk::DiskBdev;
use crate::open::{choose_block_size, new_info, open_failed};
use crate::probe::BlockQueue;
use crate::{BdevInfo, DeviceSpec, Identity, OpenError};

/// Opens a block device that nothing else uses, unless it is to be shared: the kernel refuses O_EXCL for one that is
/// mounted, part of another device, swapped to, or opened so by another program.
pub(crate) fn open(
    spec: &DeviceSpec,
    path: &Path,
    identity: &Identity,
) -> Result<DiskBdev, OpenError> {
    let failed = |action| move |source| OpenError::Io { path: path.into(), action, source };
    let not_found = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => OpenError::NoDevice(path.into()),
        _ => open_failed(path, spec.read_only, error),
    };
    let canonical = fs::canonicalize(path).map_err(not_found)?;
    let metadata = fs::metadata(&canonical).map_err(not_found)?;
    let Some(object @ Object::Block { device }) = object_of(&metadata) else {
        return Err(OpenError::WrongKind {
            path: path.into(),
            found: "not a block device",
            advice: "write file: before the path if it is a file",
        });
    };
    let claim = Claim::new(object, &canonical).map_err(|other| OpenError::InUse {
        path: path.into(),
        holder: format!("this process has it open already as `{}`", other.display()),
    })?;
    let queue = BlockQueue::of(device).map_err(failed("read its properties in /sys"))?;
    if queue.bytes == 0 {
        return Err(OpenError::Empty(path.into()));
    }
    if queue.read_only && !spec.read_only {
        return Err(OpenError::ReadOnly(path.into()));
    }

    let open = || {
        OpenOptions::new()
            .read(true)
            .write(!spec.read_only)
            .custom_flags(libc::O_DIRECT | if spec.shared { 0 } else { libc::O_EXCL })
            .open(&canonical)
    };
    let file = take_handed(object)
        .map_or_else(open, Ok)
        .map_err(|error| open_refused(path, spec.read_only, device, error))?;
    let still_it = file.metadata().is_ok_and(|metadata| object_of(&metadata) == Some(object));
    if !still_it {
        return Err(failed("open it")(io::Error::other("it was replaced meanwhile; try again")));
    }
    let logical = rustix::fs::ioctl_blksszget(&file).unwrap_or(queue.logical_block_size);
    let block_size = choose_block_size(spec, path, logical, queue.bytes)?;

    let uuid = identity.of_block(&canonical, queue.wwid.as_deref());
    let name = canonical.display().to_string();
    let releases = queue.zeroing_discard && !spec.read_only;
    let info = BdevInfo {
        physical_block_size: queue.physical_block_size.max(block_size),
        // Direct I/O passes the page cache, so a write-through queue holds nothing back.
        volatile_write_cache: queue.write_back,
        deallocate: releases,
        deallocate_zeroes: releases,
        numa_node: queue.numa_node,
        ..new_info(spec, name, block_size, queue.bytes / u64::from(block_size), uuid)
    };
    Ok(DiskBdev::new(Held::new(file, claim), false, info))
}

/// Names what has the device, if anything does; the kernel sometimes refuses a mounted one as forbidden.
fn open_refused(path: &Path, read_only: bool, device: u64, error: io::Error) -> OpenError {
    let holder = match error.raw_os_error() {
        Some(libc::EBUSY) => Some(block_holder(device).unwrap_or_else(|| {
            "another program (or another part of the disk) has it exclusively; lsof shows which"
                .to_owned()
        })),
        Some(libc::EACCES | libc::EPERM) => block_holder(device),
        _ => None,
    };
    match holder {
        Some(holder) => OpenError::InUse { path: path.into(), holder },
        None => open_failed(path, read_only, error),
    }
}
