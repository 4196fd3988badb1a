//! The engine under files and block devices: reads, writes, flushes and zeroes on an open file.
//!
//! What it promises (and a power cut does not break): a completed durable (FUA) write, and every
//! write that was completed before a flush was submitted, on any core, once that flush completes.
//!
//! * A flush is fdatasync(2). One runs per channel; those that come meanwhile wait together for
//!   the next, because the one that runs may have passed over what they must cover.
//! * After a failed fdatasync the kernel may forget the pages it could not write, and the next
//!   call may succeed without them. So the first failure fails every later flush and durable
//!   write of the device, on all cores, until an operator has acted
//!   ([`crate::Bdev::reset_write_fault`]).
//! * The kernel reports a write-back error once to each open file description. Each channel has
//!   a description of its own, or one core's success could hide another's failure. After an
//!   operator has acted, the channel takes a new description, or it would report the old failure
//!   again.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use raceline_reactor::Context;
use raceline_reactor::io::{AllocateMode, FileId};

use crate::claim::Held;
use crate::disk_channel::DiskChannel;
use crate::drive::generic::Generic;
use crate::fault::{Era, FaultLatch};
use crate::probe;
use crate::{Bdev, BdevError, BdevInfo, Channel};

/// A file or block device.
pub(crate) struct DiskBdev(Arc<Shared>);

/// What the channels of one device have in common.
pub(crate) struct Shared {
    /// As it was when it was opened; see `block_count`.
    pub(crate) info: BdevInfo,
    /// What the last look at its size gave.
    block_count: AtomicU64,
    pub(crate) fault: FaultLatch,
    /// FALLOC_FL_PUNCH_HOLE works, as far as is known.
    pub(crate) punch_hole: AtomicBool,
    /// An NVMe namespace releases what is not needed, as far as is known.
    pub(crate) release: AtomicBool,
    /// FALLOC_FL_ZERO_RANGE works, as far as is known.
    pub(crate) zero_range: AtomicBool,
    /// copy_file_range(2) works, as far as is known.
    pub(crate) copies: AtomicBool,
    /// Through the page cache.
    buffered: bool,
    /// Data may change while they are written.
    bears_changes: bool,
    /// Said that the file has become shorter.
    reported_end: AtomicBool,
    /// Said that the device is gone.
    reported_gone: AtomicBool,
    /// Holds the lock on a file, and the exclusive use of a block device.
    file: Held,
    /// Data go through this one instead.
    pub(crate) generic: Option<Generic>,
}

impl DiskBdev {
    pub(crate) fn new(file: Held, buffered: bool, info: BdevInfo) -> Self {
        Self(Arc::new(Shared {
            fault: FaultLatch::default(),
            punch_hole: AtomicBool::new(info.deallocate),
            release: AtomicBool::new(false),
            zero_range: AtomicBool::new(true),
            copies: AtomicBool::new(info.copies),
            // The page cache has a copy of its own.
            bears_changes: buffered || probe::bears_changes(&file),
            buffered,
            reported_end: AtomicBool::new(false),
            reported_gone: AtomicBool::new(false),
            block_count: AtomicU64::new(info.block_count),
            info,
            file,
            generic: None,
        }))
    }

    /// The same device, whose data go through its generic device. The device has no other owner yet.
    pub(crate) fn through(self, generic: Generic) -> Self {
        let Ok(mut shared) = Arc::try_unwrap(self.0) else {
            unreachable!("a device that has just been opened has one owner");
        };
        let (zeroes, release) =
            (generic.format.zeroes_deallocate, generic.format.dataset_management);
        let writable = !shared.info.read_only;
        shared.punch_hole = AtomicBool::new(zeroes && writable);
        shared.release = AtomicBool::new(release && writable);
        shared.info.deallocate = release && writable;
        // Releasing is advice: a drive need not follow it.
        shared.info.deallocate_zeroes = false;
        shared.generic = Some(generic);
        Self(Arc::new(shared))
    }
}

impl Bdev for DiskBdev {
    fn info(&self) -> BdevInfo {
        BdevInfo { block_count: self.0.block_count(), ..self.0.info.clone() }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(DiskChannel::open(Arc::clone(&self.0), cx, owner)?))
    }

    fn takes_pages(&self) -> bool {
        // The commands of a generic device name memory of this process. And whoever has the pages may change them meanwhile:
        // ublk cannot forbid it.
        self.0.generic.is_none() && self.0.bears_changes
    }

    fn write_fault(&self) -> bool {
        self.0.fault.is_set()
    }

    fn reset_write_fault(&self) {
        if self.0.fault.reset() {
            tracing::warn!("{}: the operator has reset its write fault", self.0.info.name);
        }
    }

    fn rescan(&self) -> io::Result<()> {
        self.0.rescan()
    }
}

impl Shared {
    fn block_count(&self) -> u64 {
        self.block_count.load(Ordering::Relaxed)
    }

    /// Files and block devices end where a seek to the end leads. A size that a power cut could
    /// take back is not reported.
    fn rescan(&self) -> io::Result<()> {
        let bytes = (&*self.file).seek(SeekFrom::End(0))?;
        let (now, before) = (bytes / u64::from(self.info.block_size), self.block_count());
        if now < before {
            let text = format!("{} has {now} blocks, {before} are in use", self.info.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if now > before {
            self.file.sync_all()?;
            self.block_count.store(now, Ordering::Relaxed);
        }
        Ok(())
    }

    /// How what is not needed is released, if it can be. Of a file or block device its range then
    /// reads zeroes; a namespace has a command that promises less.
    pub(crate) fn release_mode(&self) -> Option<AllocateMode> {
        let (works, mode) = match &self.generic {
            Some(_) => (&self.release, AllocateMode::Release),
            None => (&self.punch_hole, AllocateMode::PunchHole),
        };
        works.load(Ordering::Relaxed).then_some(mode)
    }

    /// Makes the device usable for a core's operations.
    pub(crate) fn register(&self, cx: &mut Context<'_>) -> io::Result<FileId> {
        let Some(Generic { file, format }) = &self.generic else {
            return Ok(cx.io.register_file(Arc::new(self.reopen()?)));
        };
        let registered = cx.io.register_nvme(Arc::clone(file), *format);
        registered.map_err(|error| {
            let name = &self.info.name;
            io::Error::new(error.kind(), format!("{name}: no passthrough on this core: {error}"))
        })
    }

    /// Opens the device once more, with a write-back error cursor of its own.
    fn reopen(&self) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(!self.info.read_only)
            .custom_flags(if self.buffered { 0 } else { libc::O_DIRECT })
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Turns the result of a flush or durable write, started in `era`, into what may be told:
    /// nothing is safe once one of them has failed.
    ///
    /// A durable write that found no space is the exception: nothing that was acknowledged
    /// before depends on it, unless that is still in the page cache.
    pub(crate) fn durable_result(
        &self,
        result: Result<(), BdevError>,
        is_sync: bool,
        era: Era,
    ) -> Result<(), BdevError> {
        match result {
            Ok(()) if self.fault.era() != era => Err(BdevError::WriteFault),
            Ok(()) => Ok(()),
            Err(error @ (BdevError::NoSpace | BdevError::Transient))
                if !is_sync && !self.buffered =>
            {
                Err(error)
            }
            Err(error) => {
                if self.fault.set() {
                    tracing::error!(
                        "{}: a flush or durable write failed ({error:?}); acknowledged data may be lost. \
                         Every flush and durable write fails from now on: check the medium, restore what \
                         is lost, then reset the write fault or restart",
                        self.info.name
                    );
                }
                Err(if error == BdevError::Gone { error } else { BdevError::WriteFault })
            }
        }
    }

    /// The error of an operation in terms of the device; what needs an operator is logged once.
    pub(crate) fn device_error(&self, error: &io::Error, fault: BdevError) -> BdevError {
        let mapped = map_error(error, fault);
        if error.kind() == io::ErrorKind::UnexpectedEof {
            if !self.reported_end.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    "{}: shorter than when it was opened; reads beyond its end fail. Stop the \
                     export, restore the file (truncate -s {} makes the lost part read zeroes), \
                     and start again",
                    self.info.name,
                    self.block_count() * u64::from(self.info.block_size)
                );
            }
        } else if mapped == BdevError::Gone {
            if !self.reported_gone.swap(true, Ordering::Relaxed) {
                tracing::error!("{}: the device is gone: {error}", self.info.name);
            }
        } else {
            tracing::debug!("{}: {fault:?}: {error}", self.info.name);
        }
        mapped
    }
}

/// Maps an errno; `fault` is what a failure of the medium is called.
fn map_error(error: &io::Error, fault: BdevError) -> BdevError {
    let Some(errno) = error.raw_os_error() else {
        return match error.kind() {
            io::ErrorKind::WriteZero | io::ErrorKind::StorageFull => BdevError::NoSpace,
            io::ErrorKind::Unsupported => BdevError::NotSupported,
            _ => fault, // UnexpectedEof: the data is not there
        };
    };
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BdevError::NoSpace,
        libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESTALE | libc::ESHUTDOWN => {
            BdevError::Gone
        }
        libc::EROFS | libc::EPERM | libc::EACCES => BdevError::ReadOnly,
        libc::EOPNOTSUPP | libc::ENOSYS => BdevError::NotSupported,
        libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS => BdevError::Transient,
        libc::ECANCELED if fault == BdevError::ReadFault => BdevError::Transient,
        libc::ECANCELED => BdevError::Unknown,
        libc::EINVAL | libc::EBADF | libc::EFAULT => BdevError::Internal,
        // EIO, and what the block layer reports for media, integrity and transport errors
        _ => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning() {
        for (errno, read, write) in [
            (libc::EIO, BdevError::ReadFault, BdevError::WriteFault),
            (libc::ENODATA, BdevError::ReadFault, BdevError::WriteFault),
            (libc::ENOSPC, BdevError::NoSpace, BdevError::NoSpace),
            (libc::EDQUOT, BdevError::NoSpace, BdevError::NoSpace),
            (libc::EFBIG, BdevError::NoSpace, BdevError::NoSpace),
            (libc::ENODEV, BdevError::Gone, BdevError::Gone),
            (libc::ENXIO, BdevError::Gone, BdevError::Gone),
            (libc::EROFS, BdevError::ReadOnly, BdevError::ReadOnly),
            (libc::EOPNOTSUPP, BdevError::NotSupported, BdevError::NotSupported),
            (libc::EAGAIN, BdevError::Transient, BdevError::Transient),
            (libc::ECANCELED, BdevError::Transient, BdevError::Unknown),
            (libc::EINVAL, BdevError::Internal, BdevError::Internal),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(map_error(&error, BdevError::ReadFault), read, "{error}");
            assert_eq!(map_error(&error, BdevError::WriteFault), write, "{error}");
        }
        let end = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(map_error(&end, BdevError::ReadFault), BdevError::ReadFault);
    }
}
