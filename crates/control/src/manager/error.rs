//! Why the manager cannot do what it was asked.

use raceline_bdev::{DriveError, OpenError};
use raceline_target::TargetError;

use super::journal::JournalError;
use crate::error::RpcError;
use crate::keyring::KeyringError;
use crate::ptpl::ReservationFileError;

/// Why the manager cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// A name that no device can have.
    #[error("`{0}` cannot be a name: 1 to 255 bytes without control characters")]
    BadName(String),
    /// A name, alias or UUID that another device has.
    #[error("there is a device `{0}` already: delete it, or choose another name")]
    NameTaken(String),
    /// A UUID that another device has.
    #[error(
        "device `{name}` has the UUID {uuid} already: use `{name}` if both are the same data, or delete it; where the data differ, \
         give one of the two another UUID"
    )]
    UuidTaken {
        /// The UUID.
        uuid: String,
        /// The device that has it.
        name: String,
    },
    /// There is no such device.
    #[error("there is no device `{0}`: bdev_get_bdevs lists them")]
    NoBdev(String),
    /// A device that is configured but missing.
    #[error("device `{name}` is configured, but missing: {reason}")]
    Away {
        /// The device.
        name: String,
        /// Why it is missing.
        reason: String,
    },
    /// A device that has another exclusive user.
    #[error("device `{name}` is used by {by}: remove that first")]
    Claimed {
        /// The device.
        name: String,
        /// Its exclusive user.
        by: String,
    },
    /// The reservations of a namespace cannot be had.
    #[error(transparent)]
    Reservations(#[from] ReservationFileError),
    /// There is no such thing.
    #[error("there is no {what} `{name}`")]
    Missing {
        /// What kind.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is one already.
    #[error("there is a {what} `{name}` already")]
    Exists {
        /// What kind.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A device could not be opened.
    #[error("{}", open_reason(.0))]
    Open(#[from] OpenError),
    /// A local drive, or one of its namespaces, cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The target refused.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A key cannot be had or used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The change could not be written down.
    #[error("the change cannot be kept: {0}")]
    Journal(JournalError),
    /// A disk cannot be made.
    #[error("{text}")]
    Disk {
        /// The errno that SPDK gives for it.
        errno: i32,
        /// Why.
        text: String,
    },
    /// A value out of its range.
    #[error("{0}")]
    Invalid(String),
}

impl ManagerError {
    pub(crate) fn missing(what: &'static str, name: &str) -> Self {
        Self::Missing { what, name: name.escape_debug().to_string() }
    }

    pub(crate) fn exists(what: &'static str, name: &str) -> Self {
        Self::Exists { what, name: name.escape_debug().to_string() }
    }

    /// The errno that SPDK gives for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NameTaken(_) | Self::UuidTaken { .. } | Self::Exists { .. } => libc::EEXIST,
            Self::NoBdev(_) | Self::Away { .. } | Self::Missing { .. } => libc::ENODEV,
            Self::Claimed { .. } => libc::EPERM,
            Self::Disk { errno, .. } => *errno,
            Self::Journal(error) => error.errno,
            Self::Open(error) => open_errno(error),
            Self::Drive(error) => error.errno(),
            Self::Keyring(error) => error.errno(),
            Self::Reservations(ReservationFileError::Io { error, .. }) => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Reservations(ReservationFileError::Damaged { .. })
            | Self::BadName(_)
            | Self::Invalid(_)
            | Self::Target(_) => libc::EINVAL,
        }
    }
}

/// Why it could not be opened; the advice is for callers of methods, not for a command line.
fn open_reason(error: &OpenError) -> String {
    match error {
        OpenError::Missing(path) => {
            let path = path.display();
            format!("`{path}` does not exist: bring it back, or make it (truncate -s SIZE {path})")
        }
        OpenError::NoDirectIo { path, file_system } => format!(
            "`{}`: {file_system} cannot do direct I/O here; set \"buffered\" to true to go through \
             the page cache, or move the file",
            path.display()
        ),
        OpenError::Alignment { path, alignment } => format!(
            "`{}` needs direct I/O in units of {alignment} bytes, more than the largest block size \
             4096; set \"buffered\" to true if it is a file",
            path.display()
        ),
        OpenError::ReadOnly(path) => format!(
            "`{}` is read-only: make it writable, or use bdev_aio_create with \"readonly\" true",
            path.display()
        ),
        other => other.to_string(),
    }
}

fn open_errno(error: &OpenError) -> i32 {
    match error {
        OpenError::Missing(_) | OpenError::NoDevice(_) | OpenError::OnlySize(_) => libc::ENOENT,
        OpenError::InUse { .. } => libc::EBUSY,
        OpenError::ReadOnly(_) => libc::EROFS,
        OpenError::Permission(_) | OpenError::Outside { .. } => libc::EACCES,
        OpenError::Memory { .. } | OpenError::HugePages { .. } => libc::ENOMEM,
        OpenError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

/// What most methods answer: the errno, and the full text as detail.
impl From<ManagerError> for RpcError {
    fn from(error: ManagerError) -> Self {
        Self::errno(error.errno()).because(error)
    }
}
