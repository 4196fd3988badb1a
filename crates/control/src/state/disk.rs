//! The file operations of the state, on the real file system; tests simulate them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use raceline_reactor::inheritance::{self, Offer};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::error::StateError;
use crate::folders::make_durable;

/// Only the owner may read the state.
const FILE_MODE: u32 = 0o600;
/// Only the owner may enter the directory.
const DIRECTORY_MODE: u32 = 0o700;
/// Write permission of group and others.
pub(super) const OTHERS_WRITE: u32 = 0o022;
/// Zeroes are written in pieces of this size.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
/// The file whose lock says that a daemon uses the directory.
const LOCK_FILE: &str = "lock";

/// One flat directory of files.
///
/// Nothing is certain to survive a crash before it is synced: [`DiskFile::sync`] makes the bytes of a file
/// durable, [`Disk::sync_names`] its names (created, renamed, removed).
pub trait Disk: Send + Sync {
    /// The directory, for messages.
    fn path(&self) -> &Path;
    /// The names of its files.
    ///
    /// # Errors
    /// The system's error; the same holds for the other operations.
    fn list(&self) -> io::Result<Vec<String>>;
    /// The whole content of a file.
    ///
    /// # Errors
    /// As the system gives them.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Creates a file, or empties the one that has this name.
    ///
    /// # Errors
    /// As the system gives them.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for writing.
    ///
    /// # Errors
    /// As the system gives them.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file, in place of any file that has the new name.
    ///
    /// # Errors
    /// As the system gives them.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As the system gives them.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names durable.
    ///
    /// # Errors
    /// As the system gives them.
    fn sync_names(&self) -> io::Result<()>;
}

/// A file that is open for writing.
pub trait DiskFile: Send {
    /// Reserves room for these bytes without changing the file's size.
    ///
    /// If there is no room, or the file system cannot reserve any ([`io::ErrorKind::Unsupported`]).
    fn reserve(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Writes zeroes, so that a later write there changes only blocks and no metadata.
    ///
    /// # Errors
    /// As the system gives them, with part of the zeroes written; [`io::ErrorKind::Unsupported`]
    /// where an overwrite would need new room.
    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Writes all of `bytes` at an offset.
    ///
    /// # Errors
    /// As the system gives them; part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file off, giving back room reserved beyond its end.
    ///
    /// # Errors
    /// As the system gives them.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes bytes and size durable.
    ///
    /// # Errors
    /// The system's error. After an error the content of the disk is unknown: the kernel marks pages clean
    /// that it failed to write, so syncing again proves nothing.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the real file system, locked against other daemons while this value lives.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    directory: File,
    _lock: File,
    /// A successor gets the lock.
    _offer: Option<Offer>,
}

impl RealDisk {
    /// Opens the directory, creating it if it is missing, and locks it.
    ///
    /// # Errors
    /// When another daemon holds it, others may write it, or the system refuses.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |action, file: &Path| {
            let file = file.to_owned();
            move |error: io::Error| StateError::Io { action, file, reason: reason_of(&error) }
        };
        make_durable(path, DIRECTORY_MODE).map_err(failed("create the state directory", path))?;
        let directory = File::open(path).map_err(failed("open the state directory", path))?;
        let metadata = directory.metadata().map_err(failed("examine", path))?;
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & OTHERS_WRITE != 0 {
            return Err(StateError::Permissions { dir: path.to_owned(), mode });
        }
        let lock_path = path.join(LOCK_FILE);
        let lock = lock(path, &lock_path).map_err(|error| match error {
            LockError::Held(holder) => StateError::Locked { dir: path.to_owned(), holder },
            LockError::Io(error) => failed("lock", &lock_path)(error),
        })?;
        let offer = inheritance::offer(handed_name(&lock_path), &lock);
        Ok(Self { path: path.to_owned(), directory, _lock: lock, _offer: offer })
    }
}

/// The system's text, followed by a remedy where one is known.
pub(super) fn reason_of(error: &io::Error) -> String {
    let user = rustix::process::geteuid().as_raw();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!(
                "{error}; give it to the user of this daemon ({user}), or name another directory"
            )
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            format!("{error}; --state-dir wants a directory")
        }
        _ => error.to_string(),
    }
}

enum LockError {
    Held(String),
    Io(io::Error),
}

/// Takes the lock, and leaves our process id in the file for daemons that find it locked.
fn lock(_dir: &Path, path: &Path) -> Result<File, LockError> {
    // The lock that a daemon has handed over holds already.
    let handed = inheritance::copy(&handed_name(path)).map(File::from);
    let is_handed = handed.is_some();
    let open = || options().read(true).create(true).truncate(false).open(path);
    let mut file = handed.map_or_else(open, Ok).map_err(LockError::Io)?;
    let locked = if is_handed { Ok(()) } else { file.try_lock() };
    match locked {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The process id is only a hint; the lock itself is the kernel's.
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            let known = !holder.is_empty() && holder.bytes().all(|byte| byte.is_ascii_digit());
            return Err(LockError::Held(if known { holder } else { "unknown" }.to_owned()));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(LockError::Io(error)),
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(LockError::Io)?;
    // On a full disk the lock still holds; only the process id is missing.
    let _ = writeln!(file, "{}", std::process::id());
    Ok(file)
}

/// The name under which the lock goes to a successor.
fn handed_name(path: &Path) -> String {
    let canonical = path.canonicalize();
    format!("the lock {}", canonical.as_deref().unwrap_or(path).display())
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(FILE_MODE);
    options
}

impl Disk for RealDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            // A name that is not UTF-8 is not one of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path.join(name))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = options().create(true).truncate(true).open(self.path.join(name))?;
        // Also set for an existing file, whatever its mode was.
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(options().open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

impl DiskFile for File {
    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(self, FallocateFlags::KEEP_SIZE, offset, length) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
            other => Ok(other?),
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        if !overwrites_in_place(self)? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let end = offset + length;
        for offset in (offset..end).step_by(ZEROES.len()) {
            let piece = usize::try_from(end - offset).unwrap_or(usize::MAX).min(ZEROES.len());
            self.write_all_at(&ZEROES[..piece], offset)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Whether overwriting a block of this file is certain to use the same room again. File systems that copy
/// on write (btrfs, bcachefs, F2FS) use up the room that fallocate(2) reserved in the first write, and need
/// more for the second, which may not be available.
fn overwrites_in_place(file: &File) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    // ext2 and ext3 have the same number.
    Ok(kind == libc::EXT4_SUPER_MAGIC || kind == libc::XFS_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let first = RealDisk::open(dir.path()).unwrap();
        let error = RealDisk::open(dir.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        drop(first);
        RealDisk::open(dir.path()).unwrap();
    }

    #[test]
    fn a_directory_that_others_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        drop(RealDisk::open(&path).unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, DIRECTORY_MODE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        let error = RealDisk::open(&path).unwrap_err();
        assert!(matches!(error, StateError::Permissions { mode: 0o770, .. }), "{error}");
    }

    #[test]
    fn files_are_their_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("loose"), "x").unwrap();
        for name in ["new", "loose"] {
            let file = disk.create(name).unwrap();
            file.reserve(0, 8192).unwrap();
            file.write_at(4096, b"abc").unwrap();
            file.sync().unwrap();
            let metadata = dir.path().join(name).metadata().unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, FILE_MODE);
            assert_eq!(metadata.len(), 4099);
        }
    }

    #[test]
    fn zeroes_are_written_where_overwriting_them_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        let file = disk.create("log").unwrap();
        let opened = File::open(dir.path().join("log")).unwrap();
        let written = file.write_zeroes(4096, 200_000);
        if overwrites_in_place(&opened).unwrap() {
            written.unwrap();
            assert_eq!(disk.read("log").unwrap(), [0; 204_096]);
        } else {
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::Unsupported);
            assert_eq!(opened.metadata().unwrap().len(), 0);
        }
    }
}
