//! `raceline connect --as ublk`: a block device of the kernel, and what is left of one whose process was killed.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use raceline_bdev::SharedBdev;
use raceline_ublk::{Disk, DiskConfig, DiskError, Mark};
use rustix::fs::OFlags;

use super::registry::{Entry, Registry};
use super::{HEALTH_INTERVAL, Ready, note, print};
use crate::cli::connect::DiskArgs;
use crate::cli::values::IoChoice;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::sizes::Sizes;

/// What has to be so before the device is opened.
pub(super) fn prepare(args: &DiskArgs) -> Result<(), Failure> {
    if args.io == IoChoice::Epoll {
        return Err(Failure::usage("--as ublk --io epoll: the kernel's ublk speaks io_uring only"));
    }
    if args.socket.is_some() || args.listen.is_some() {
        return Err(Failure::usage(
            "--as ublk: --socket and --listen are for NBD; the disk is a block device",
        ));
    }
    raceline_ublk::check().map_err(|error| failure(&error))?;
    // Threads that start from here on are the same.
    raceline_ublk::be_io_flusher();
    Ok(())
}

/// Serves the disk until a signal.
pub(super) fn serve(
    args: &DiskArgs,
    device: &SharedBdev,
    registry: &Registry,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let info = device.info();
    let mut config = DiskConfig::new(Arc::clone(device), mark(args, device));
    config.id = args.ublk_id;
    if let Some(cores) = &args.cores {
        config.cores = cores.0.iter().copied().map(Some).collect();
    }
    config.mode = args.mode.into();
    config.depth = args.queue_depth;
    config.max_io_bytes = args.max_io_kib.saturating_mul(1024);
    config.read_only = args.read_only;
    let mut disk = Disk::start(&config).map_err(|error| failure(&error))?;
    let place = disk.path();
    if disk.is_recovered() {
        tracing::info!("{place} goes on: the process that served it had ended");
    }
    let noted = note(args, registry, "ublk", vec![place.clone()]);
    let ready = Ready {
        ready: true,
        kind: "ublk",
        uri: &place,
        device: &place,
        bytes: disk.bytes(),
        block_size: info.block_size,
        read_only: args.read_only || info.read_only,
        recovered: Some(disk.is_recovered()),
        pid: std::process::id(),
    };
    let uses = format!("it is the block device {place}");
    let ended = print(&ready, &uses).and_then(|()| wait(device, &mut disk, interrupt));
    let stopped = disk.stop().map_err(|error| failure(&error));
    drop(noted);
    ended.and(stopped)
}

/// Waits for a signal that requests the end, and follows the size of the device.
fn wait(device: &SharedBdev, disk: &mut Disk, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut sizes = Sizes::follow([Arc::clone(device)]);
    let place = disk.path();
    while interrupt.wait(HEALTH_INTERVAL).is_none() {
        if !disk.is_running() {
            return Err(Failure::runtime(format!(
                "{place} has ended, or was removed by another program; the log may say why"
            )));
        }
        sizes.look();
        match disk.follow_size() {
            Ok(None) => {}
            Ok(Some(bytes)) => tracing::info!("{place} has {bytes} bytes now"),
            Err(error) => tracing::warn!("{place}: {error}"),
        }
    }
    Ok(())
}

/// How the kernel keeps in mind what the disk is of.
fn mark(args: &DiskArgs, device: &SharedBdev) -> Mark {
    let info = device.info();
    let uuid: String = info.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    Mark::of(&match &args.bdev {
        None => format!("{} {} {uuid}", args.remote.0.nqn, args.namespace),
        Some(_) => format!("bdev {} {uuid}", info.name),
    })
}

/// Refuses the end of a disk that is mounted, or otherwise has an exclusive user.
pub(super) fn check_unused(entry: &Entry) -> Result<(), Failure> {
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
    for place in entry.places.iter().filter(|_| entry.kind == "ublk") {
        let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(place);
        if opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy) {
            return Err(Failure::runtime(format!(
                "{place} is in use, by a mount, swap, RAID or device mapper: let go of it first, or add --force, and what \
                 was not written is lost"
            )));
        }
    }
    Ok(())
}

/// Removes a disk whose process has ended; false if there is none.
pub(super) fn remove_orphan(place: &str) -> Result<bool, Failure> {
    raceline_ublk::remove_orphan(place).map_err(|error| failure(&error))
}

fn failure(error: &DiskError) -> Failure {
    match error {
        DiskError::Invalid(text) => Failure::usage(text),
        error => Failure::runtime(error),
    }
}
