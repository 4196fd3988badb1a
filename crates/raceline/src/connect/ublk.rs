//! `raceline connect --as ublk`: a block device of the kernel, and what is left of one whose process was killed.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use raceline_bdev::SharedBdev;
use raceline_ublk::{Disk, DiskConfig, DiskError, Ended, Mark, User};

use super::registry::{END_TIME, Entry, LOOK_INTERVAL, Noted, Registry};
use super::{End, InUse, Ready, Source, Watched, Way, note, print, wait_with};
use crate::cli::connect::DiskArgs;
use crate::cli::values::IoChoice;
use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;

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
    (source, way): (&Source, Way),
    registry: &Registry,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let device = source.device();
    let info = device.info();
    let mut config = DiskConfig::new(Arc::clone(&device), mark(args, &device));
    config.id = args.ublk_id;
    config.cores = way.cores;
    config.mode = args.mode.into();
    config.depth = args.queue_depth;
    config.max_io_bytes = args.max_io_kib.saturating_mul(1024);
    config.read_only = args.read_only;
    config.zero_copy = !args.no_zero_copy;
    let mut disk = Disk::start(&config).map_err(|error| failure(&error))?;
    let place = disk.path();
    if disk.is_recovered() {
        tracing::info!("{place} goes on: the process that served it had ended");
    }
    let beside = (("ublk", way.transport), disk.figures());
    let noted = note(args, (source, registry), beside, vec![place.clone()]);
    let ready = Ready {
        ready: true,
        kind: "ublk",
        uri: &place,
        device: &place,
        bytes: disk.bytes(),
        block_size: info.block_size,
        read_only: args.read_only || info.read_only,
        recovered: Some(disk.is_recovered()),
        zero_copy: Some(disk.is_zero_copy()),
        rpc: noted.as_ref().and_then(Noted::socket_in_use),
        pid: std::process::id(),
    };
    let copied = if disk.is_zero_copy() { ", to which data go without a copy" } else { "" };
    let uses = format!("it is the block device {place}{copied}");
    let ended = print(&ready, &uses).and_then(|()| wait_with(source, interrupt, &mut disk));
    let stopped = match &ended {
        // Nobody used it at the last look. Who has opened it since gets errors; the I/O of a disk that is left would wait.
        Ok(End::GivenUp(_)) => disk.stop().map(|()| Ended::Removed),
        _ => disk.end(),
    };
    let stopped = match stopped {
        Ok(Ended::Removed) => Ok(()),
        Ok(Ended::Left(user)) => {
            let command: Vec<String> = std::env::args().collect();
            let text = left(&place, user, &command);
            tracing::warn!("{text}");
            shell::note(&text);
            Ok(())
        }
        Err(error) => Err(failure(&error)),
    };
    drop(noted);
    ended.and_then(End::result).and(stopped)
}

/// What people are told of a disk whose users would lose it.
fn left(place: &str, user: User, command: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let command: Vec<String> = command.iter().map(quote).collect();
    format!(
        "{place} is in use by {user}: it stays, and its I/O waits until `{}` goes on with it; `raceline disconnect -d {place}` \
         removes it, and what waits fails",
        command.join(" ")
    )
}

impl Watched for &mut Disk {
    /// The disk gets the size that the device has.
    fn look(&mut self) -> Result<(), Failure> {
        let place = self.path();
        if !self.is_running() {
            return Err(Failure::runtime(format!(
                "{place} has ended, was removed by another program, or the kernel has refused a command of it; the log may \
                 say why"
            )));
        }
        match self.follow_size() {
            Ok(None) => {}
            Ok(Some(bytes)) => tracing::info!("{place} has {bytes} bytes now"),
            Err(error) => tracing::warn!("{place}: {error}"),
        }
        Ok(())
    }

    fn user(&self, at_once: bool) -> Option<InUse> {
        let place = self.path();
        let look = if at_once { raceline_ublk::user_at_once } else { raceline_ublk::user };
        let user = look(&place)?;
        let by = format!("{place} is in use by {user}");
        Some(InUse { by, remedy: "Let go of it (umount, swapoff, the end of the program)" })
    }
}

/// How the kernel keeps in mind what the disk is of.
fn mark(args: &DiskArgs, device: &SharedBdev) -> Mark {
    let info = device.info();
    let uuid: String = info.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    Mark::of(&match &args.bdev {
        None => format!("{} {} {uuid}", args.remote.connect.nqn, args.namespace),
        Some(_) => format!("bdev {} {uuid}", info.name),
    })
}

/// Refuses the end of a disk that is mounted, or otherwise has an exclusive user.
pub(super) fn check_unused(entry: &Entry) -> Result<(), Failure> {
    for place in entry.places.iter().filter(|_| entry.kind == "ublk") {
        if raceline_ublk::is_held(place) {
            return Err(Failure::runtime(format!(
                "{place} is in use, by a mount, swap, RAID or device mapper: let go of it first, or add --force, and what \
                 was not written is lost"
            )));
        }
    }
    Ok(())
}

/// Removes a disk that its process has left to its users: whoever asks for the end has to be obeyed.
pub(super) fn remove_left(entry: &Entry, force: bool) -> Result<(), Failure> {
    if !force {
        // Somebody may have mounted it meanwhile.
        check_unused(entry)?;
    }
    let until = Instant::now() + END_TIME;
    for place in entry.places.iter().filter(|_| entry.kind == "ublk") {
        // Its process has noted its end, and may still be there.
        while Path::new(place).exists() && !remove_orphan(place)? {
            if Instant::now() > until {
                let pid = entry.pid;
                let text = format!("{place} is left over: process {pid} has not ended");
                return Err(Failure::runtime(text));
            }
            std::thread::sleep(LOOK_INTERVAL);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_stays_says_what_goes_on_with_it() {
        let words =
            ["raceline", "connect", "--as", "ublk", "--bdev", "/srv/my disk's.img", "-q", ""];
        let text = left("/dev/ublkb3", User::Process(17), &words.map(str::to_owned));
        let command = r"`raceline connect --as ublk --bdev '/srv/my disk'\''s.img' -q ''` goes on";
        assert!(text.starts_with("/dev/ublkb3 is in use by process 17: it stays"), "{text}");
        assert!(text.contains(command), "{text}");
        assert!(text.contains("`raceline disconnect -d /dev/ublkb3` removes it"), "{text}");
    }
}
