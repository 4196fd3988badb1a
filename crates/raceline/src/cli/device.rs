//! A device of `export` and `bdev add`: one of this machine, or a logical unit of an iSCSI target.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use raceline_bdev::{Backing, DeviceSpec};
use raceline_initiator::IscsiUrl;

use crate::failure::Failure;

const SCHEME: &str = "iscsi://";

/// A device as a command line names it.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// Memory, a file or a block device.
    Local(DeviceSpec),
    /// A logical unit, by a URL without a password.
    Lun(IscsiUrl),
    /// A URL that cannot be used, for this reason. Parsing succeeds all the same: the message of a command line that does
    /// not parse repeats the text, and with it a password.
    Refused(String),
}

impl Device {
    /// Its path, if it is a file or a block device.
    pub(crate) fn path(&self) -> Option<&Path> {
        let Self::Local(spec) = self else { return None };
        match &spec.backing {
            Backing::File { path, .. } | Backing::Block { path } | Backing::Path { path } => {
                Some(path)
            }
            Backing::Ram { .. } | Backing::Null { .. } => None,
        }
    }

    /// Its URL, if it is a logical unit.
    pub(crate) fn url(&self) -> Option<&IscsiUrl> {
        match self {
            Self::Local(_) | Self::Refused(_) => None,
            Self::Lun(url) => Some(url),
        }
    }

    /// Whether it can be used.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Local(_) | Self::Lun(_) => Ok(()),
            Self::Refused(reason) => Err(Failure::usage(reason)),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with(SCHEME) {
            let spec = text.parse::<DeviceSpec>().map_err(|error| error.to_string())?;
            return Ok(Self::Local(spec));
        }
        Ok(match text.parse::<IscsiUrl>() {
            Err(error) => Self::Refused(format!("device {SCHEME}...: {error}")),
            Ok(url) if url.password.is_some() => Self::Refused(format!(
                "device {url}: every user can read the password on a command line: leave %PASSWORD out of the URL, and \
                 name a file or a key with the secret by an option (see --help)"
            )),
            Ok(url) => Self::Lun(url),
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(spec) => spec.fmt(f),
            Self::Lun(url) => url.fmt(f),
            Self::Refused(reason) => reason.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_logical_unit_and_all_else_is_local() {
        let url = "iscsi://me@192.0.2.1/iqn.2026-01.io.raceline:x/3";
        let device: Device = url.parse().unwrap();
        assert_eq!(device.to_string(), "iscsi://me@192.0.2.1:3260/iqn.2026-01.io.raceline:x/3");
        assert!(device.path().is_none() && device.url().is_some());
        let device: Device = "/srv/disk.img".parse().unwrap();
        assert_eq!(device.path(), Some(Path::new("/srv/disk.img")));
        assert!(device.url().is_none());
        assert!("iscsi:1M".parse::<Device>().unwrap_err().contains("unknown kind"));
        let device: Device = "iscsi://192.0.2.1/disk/0".parse().unwrap();
        let message = device.check().unwrap_err().message;
        assert!(message.contains("the name of the target"), "{message}");
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in ["iscsi://me%hidden@h/iqn.2026-01.io.raceline:x/3", "iscsi://me%hidden@h/x/y"] {
            let device: Device = text.parse().unwrap();
            let message = device.check().unwrap_err().message;
            assert!(!message.contains("hidden") && device.url().is_none(), "{message}");
        }
        let device: Device = "iscsi://me%hidden@h/iqn.2026-01.io.raceline:x/3".parse().unwrap();
        assert!(device.check().unwrap_err().message.contains("every user can read"));
    }
}
