//! How a disk is taken over from a process that has ended.

use std::io;
use std::time::{Duration, Instant};

use super::{DiskError, ENODEV, LOOK_INTERVAL, is_orphan, refused};
use crate::uapi::{Command, DeviceInfo, state};

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
