//! Why there is no disk, in words for people.

use std::io;

use super::{DEATH_TIME, PATIENCE};

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The configuration cannot be.
    #[error("{0}")]
    Invalid(String),
    /// No io_uring.
    #[error(
        "a ublk disk needs io_uring with entries of 128 bytes, which this process cannot have ({0}): containers and the \
         sysctl kernel.io_uring_disabled forbid it; allow io_uring_setup in the container's system-call filter, or use NBD"
    )]
    NoRing(io::Error),
    /// No driver.
    #[error(
        "this kernel (Linux {0}) has no ublk driver at work: there is no /dev/ublk-control. Load it by `modprobe ublk_drv`, \
         which Linux 6.0 and newer have if they are built with CONFIG_BLK_DEV_UBLK, or use NBD"
    )]
    NoDriver(String),
    /// Not root.
    #[error("/dev/ublk-control cannot be used by this user: only root makes disks of this kind")]
    NotPermitted,
    /// A file cannot be opened.
    #[error("cannot open {0}: {1}")]
    Open(String, io::Error),
    /// The number is in use.
    #[error(
        "/dev/ublkb{0} is there already, and it is no disk of this device without a process; choose another number"
    )]
    InUse(u32),
    /// What is found does not fit to the device.
    #[error(
        "cannot go on with /dev/ublkb{id}, whose process has ended: {why}; end it by `raceline disconnect -d /dev/ublkb{id}`"
    )]
    Other {
        /// Its number.
        id: u32,
        /// What does not fit.
        why: String,
    },
    /// The kernel has not seen the end of the process.
    #[error(
        "to the kernel, process {pid} still serves /dev/ublkb{id}, and has not been seen here for {s} s: if it runs in another \
         container, end it there. If it has ended, the kernel's driver waits for a request that it lost, and only a restart of \
         the machine removes the disk: nothing that was flushed is lost, and `raceline connect --as ublk` with another \
         `--ublk-id` makes another disk of the same device",
        s = DEATH_TIME.as_secs()
    )]
    Unseen {
        /// The number of the disk.
        id: u32,
        /// The process.
        pid: i32,
    },
    /// A command was refused.
    #[error("the kernel refuses {command} for /dev/ublkb{id}: {source}")]
    Command {
        /// The name of the command.
        command: &'static str,
        /// The number of the disk.
        id: u32,
        /// Why.
        source: io::Error,
    },
    /// The kernel ended what had begun.
    #[error(
        "the kernel took back what this process had for requests of /dev/ublkb{0}, because it saw the end of the former process \
         late: begin the disk again, and it goes on"
    )]
    TakenBack(u32),
    /// The kernel does not end a recovery.
    #[error(
        "the kernel has not gone on with /dev/ublkb{0} for {s} s after this process was there for it: begin the disk again, or \
         remove it by `raceline disconnect -d /dev/ublkb{0}`",
        s = PATIENCE.as_secs()
    )]
    Unended(u32),
    /// The recovery has failed, and not all of what it had begun can be ended.
    #[error(
        "{source}. Of the threads that this process had begun for the disk, {count} do not end and have /dev/ublkc{id} open: this \
         process has to end before one can go on with the disk"
    )]
    Stuck {
        /// The number of the disk.
        id: u32,
        /// How many threads.
        count: usize,
        /// Why the recovery has failed.
        source: Box<DiskError>,
    },
    /// A core cannot be started.
    #[error("cannot start a core: {0}")]
    Core(io::Error),
    /// The device has another size, which the kernel cannot give the disk.
    #[error(
        "the device has {now} bytes instead of {before}, and the disk keeps its size: a kernel before Linux 6.15 cannot \
         change it. Disconnect and connect again for the new size"
    )]
    NoResize {
        /// Before.
        before: u64,
        /// Now.
        now: u64,
    },
}
