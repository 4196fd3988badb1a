//! A look at a state directory that changes nothing: whether a daemon could go on with it.
//!
//! It is the code of a real start, on a disk that takes writes and forgets them.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::disk::{Disk, DiskFile, OTHERS_WRITE, reason_of};
use super::error::StateError;

/// A directory of the real file system, which stays as it is. It takes no lock: a daemon may be using the directory.
pub(super) struct Look(PathBuf);

impl Look {
    /// Looks whether the directory is there, and whether this process may read and write it.
    ///
    /// # Errors
    /// When it is not, or others may write it.
    pub(super) fn at(path: &Path) -> Result<Self, StateError> {
        let failed = |action| {
            move |error: io::Error| StateError::Io {
                action,
                file: path.to_owned(),
                reason: reason_of(&error),
            }
        };
        let metadata = path.metadata().map_err(failed("examine the state directory"))?;
        let mode = metadata.mode() & 0o7777;
        if mode & OTHERS_WRITE != 0 {
            return Err(StateError::Permissions { dir: path.to_owned(), mode });
        }
        std::fs::read_dir(path).map_err(failed("open the state directory"))?;
        // A file without a name. Not every file system has those, and a full disk refuses changes, not daemons.
        let nameless = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(path);
        let is_denial = |kind| {
            matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        };
        match nameless {
            Err(error) if is_denial(error.kind()) => {
                Err(failed("write in the state directory")(error))
            }
            _ => Ok(Self(path.to_owned())),
        }
    }
}

impl Disk for Look {
    fn path(&self) -> &Path {
        &self.0
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string()));
        // A name that is not UTF-8 is not one of ours.
        names.filter_map(|name: io::Result<_>| name.map(Result::ok).transpose()).collect()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.0.join(name))
    }

    fn create(&self, _name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Forgets))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        OpenOptions::new().write(true).open(self.0.join(name))?;
        Ok(Box::new(Forgets))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that takes everything and keeps nothing.
struct Forgets;

impl DiskFile for Forgets {
    fn reserve(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
