//! Block devices as disks of this machine (`/dev/ublkbN`), by the kernel's driver ublk (Documentation/block/ublk.rst).
//!
//! [`Disk`] makes one, serves it on cores of [`raceline_reactor`], one queue on each, and ends it. The kernel keeps a disk
//! whose process was killed: the next [`Disk::start`] of the same device goes on with it.

mod control;
mod disk;
mod plan;
mod queue;
mod serve;
mod uapi;

pub use disk::{
    DEFAULT_DEPTH, DEFAULT_MAX_IO_BYTES, Disk, DiskConfig, DiskError, MAX_IO_BYTES,
    MAX_MEMORY_BYTES, Mark, be_io_flusher, check, path, remove_orphan,
};
