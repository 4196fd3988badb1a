//! How a disk is taken over from a process that has ended.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raceline_reactor::Cores;

use super::{DiskError, EBUSY, ENODEV, LOOK_INTERVAL, SETTLE_TIME, Told, is_orphan, refused};
use crate::serve::Message;
use crate::uapi::{Command, DeviceInfo, state};

/// How long the cores of a recovery that has failed may take to end. What is at the device is waited for.
pub(super) const ABANDON_TIME: Duration = Duration::from_secs(10);

/// What has become of a disk whose process seemed to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The kernel has seen the end of the process, and keeps the disk for the next one.
    Left,
    /// Another process serves it.
    Served,
    /// Somebody has removed it.
    Removed,
}

/// Waits until the kernel has seen that the process of a disk has ended. Meanwhile nothing but the state may be asked for: other
/// commands wait for a lock that the driver keeps, and nothing ends their wait.
///
/// # Errors
/// When the kernel does not see the end in time, or does not tell the state.
pub(super) fn wait_for_end(
    id: u32,
    patience: Duration,
    mut info: impl FnMut() -> io::Result<DeviceInfo>,
) -> Result<Found, DiskError> {
    let until = Instant::now() + patience;
    loop {
        match info() {
            Ok(info) if info.state != state::LIVE => return Ok(Found::Left),
            Ok(info) if !is_orphan(&info) => return Ok(Found::Served),
            Ok(info) if Instant::now() > until => {
                return Err(DiskError::Unseen { id, pid: info.pid });
            }
            Ok(_) => std::thread::sleep(LOOK_INTERVAL),
            Err(error) if error.raw_os_error() == Some(ENODEV) => return Ok(Found::Removed),
            Err(error) => return Err(refused(Command::GetInfo, id, error)),
        }
    }
}

/// Has the kernel begin a recovery by `command`, which it refuses with EBUSY while it still closes what the former process had.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn start(
    id: u32,
    patience: Duration,
    mut command: impl FnMut() -> io::Result<()>,
) -> Result<(), DiskError> {
    // The kernel says that a process has ended before it takes back the places of requests, and may take back those of this
    // process as well.
    std::thread::sleep(SETTLE_TIME);
    let until = Instant::now() + patience;
    while let Err(source) = command() {
        if source.raw_os_error() != Some(EBUSY) || Instant::now() > until {
            return Err(refused(Command::StartRecovery, id, source));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Ends a recovery by `command`, which waits until the cores are there for all requests, and asks what it is given whether the
/// wait is still worth it.
///
/// # Errors
/// When the kernel refuses, takes back what the cores have, or does not go on within `patience`.
pub(super) fn end(
    id: u32,
    told: &Told,
    patience: Duration,
    command: impl FnOnce(&dyn Fn() -> bool) -> io::Result<()>,
) -> Result<(), DiskError> {
    let until = Instant::now() + patience;
    command(&|| told.is_well() && Instant::now() < until).map_err(|source| match source.kind() {
        _ if told.ended.load(Ordering::Acquire) => DiskError::TakenBack(id),
        io::ErrorKind::Interrupted if Instant::now() >= until => DiskError::Unended(id),
        _ => refused(Command::EndRecovery, id, source),
    })
}

/// Goes on with `end` if the cores have `begun`. When one of them fails, the cores end, and with them all that has the character
/// device open: the disk waits for the next process, which may be this one. They have `limit` for it.
///
/// # Errors
/// That of the first that failed.
pub(super) fn finish<T>(
    (id, limit): (u32, Duration),
    (cores, begun): (Cores<Message>, Result<(), DiskError>),
    end: impl FnOnce(&Cores<Message>) -> Result<T, DiskError>,
) -> Result<(Cores<Message>, T), DiskError> {
    let error = match begun.and_then(|()| end(&cores)) {
        Ok(ended) => return Ok((cores, ended)),
        Err(error) => error,
    };
    cores.tell(|| Message::Abandon);
    match cores.join_within(limit) {
        0 => Err(error),
        count => Err(DiskError::Stuck { id, count, source: Box::new(error) }),
    }
}
