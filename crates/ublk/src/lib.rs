//! Block devices as disks of this machine (`/dev/ublkbN`), by the kernel's driver ublk (Documentation/block/ublk.rst).
//!
//! [`Disk`] makes one, serves it on cores of [`raceline_reactor`], one queue on each, and ends it. The kernel keeps a disk
//! whose process was killed, or left it by [`Disk::end`]: the next [`Disk::start`] of the same device goes on with it.

mod control;
mod disk;
mod pages;
mod plan;
mod queue;
mod serve;
mod size;
mod uapi;
mod users;

pub use disk::{
    DEFAULT_DEPTH, DEFAULT_MAX_IO_BYTES, Disk, DiskConfig, DiskError, Ended, MAX_IO_BYTES,
    MAX_MEMORY_BYTES, Mark, be_io_flusher, check, path, remove_orphan,
};
pub use users::{User, is_held, user, user_at_once};
