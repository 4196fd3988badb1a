//! The text of a key in a file that only its owner can read.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// The largest file that is read: a key has at most 200 bytes.
pub const MAX_FILE_BYTES: usize = 4096;
/// Rights of other users than the owner.
const OTHERS: u32 = 0o077;

/// Whom a file's protection against other users is left to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The file itself: its owner is the user of this process, and no other user has rights to it.
    File,
    /// Whoever made its folder, as systemd does for credentials: it gives each service a folder that no other user can
    /// look into, with files that may belong to root.
    Folder,
}

/// Why the text of a key cannot be had. No error shows a part of the text.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A path that means another file in another folder.
    #[error("{0}: the path of a key file has to be absolute. Begin it with /")]
    Relative(PathBuf),
    /// The file cannot be found, opened or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something that is no file.
    #[error("{path} is {what}. A key has to stand in a regular file")]
    Kind {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// Other users may read or write it.
    #[error("{path}: other users have rights to it (mode {mode:04o}). Run chmod 600 {path}")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It belongs to another user.
    #[error(
        "{path} belongs to user {owner}, and this process runs as user {user}. Run chown {user} {path}"
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// It is larger than any key.
    #[error(
        "{0} has more than {MAX_FILE_BYTES} bytes, so it is no key. Name the file with the key"
    )]
    Size(PathBuf),
    /// It has bytes that are no text.
    #[error("{0} is no text, so it is no key. Name the file with the key")]
    NotText(PathBuf),
}

impl FileError {
    /// The errno that SPDK gives for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Relative(_) | Self::Mode { .. } | Self::Owner { .. } => libc::EPERM,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Kind { .. } | Self::NotText(_) => libc::EINVAL,
            Self::Size(_) => libc::ENOBUFS,
        }
    }
}

/// Checks that a file can hold a key: its kind, and its protection from other users. Its text is not read.
///
/// # Errors
/// When it cannot.
pub fn check(path: &Path, protection: Protection) -> Result<(), FileError> {
    let info = std::fs::metadata(path)
        .map_err(|source| FileError::Io { path: path.to_owned(), source })?;
    check_info(path, &info, protection)
}

/// The text of a key file.
///
/// # Errors
/// When the file cannot hold a key, cannot be read, or is larger than [`MAX_FILE_BYTES`].
pub fn read(path: &Path, protection: Protection) -> Result<Zeroizing<String>, FileError> {
    // Before it is opened: opening a device can have effects.
    check(path, protection)?;
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    // Never waits, should a FIFO be there by now.
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    check_info(path, &file.metadata().map_err(failed)?, protection)?;
    read_text(path, &mut file)
}

/// The text of a key from a file or a pipe that is open.
///
/// # Errors
/// When it cannot be read, is longer than [`MAX_FILE_BYTES`], or is no text.
pub fn read_text(path: &Path, file: &mut File) -> Result<Zeroizing<String>, FileError> {
    // All of its room at once: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(vec![0; MAX_FILE_BYTES + 1]);
    let mut len = 0;
    while len < bytes.len() {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(FileError::Io { path: path.to_owned(), source }),
        }
    }
    if len > MAX_FILE_BYTES {
        return Err(FileError::Size(path.to_owned()));
    }
    let text = std::str::from_utf8(&bytes[..len]);
    let text = text.map_err(|_| FileError::NotText(path.to_owned()))?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn check_info(path: &Path, info: &Metadata, protection: Protection) -> Result<(), FileError> {
    let path = || path.to_owned();
    if !info.is_file() {
        let what = if info.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
        return Err(FileError::Kind { path: path(), what });
    }
    if info.len() > MAX_FILE_BYTES as u64 {
        return Err(FileError::Size(path()));
    }
    if protection == Protection::Folder {
        return Ok(());
    }
    check_owner(&path(), info)
}

/// Checks that a file or a folder is this user's, and no other's.
pub(super) fn check_owner(path: &Path, info: &Metadata) -> Result<(), FileError> {
    let mode = info.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(FileError::Mode { path: path.to_owned(), mode });
    }
    let (owner, user) = (info.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(FileError::Owner { path: path.to_owned(), owner, user });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_private_regular_small_texts_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "text\n").unwrap();
        set_mode(&path, 0o600);
        assert_eq!(*read(&path, Protection::File).unwrap(), "text\n");
        set_mode(&path, 0o400);
        assert_eq!(*read(&path, Protection::File).unwrap(), "text\n");
        for mode in [0o640, 0o604, 0o610, 0o602] {
            set_mode(&path, mode);
            let error = read(&path, Protection::File).unwrap_err();
            assert_eq!(error.errno(), libc::EPERM);
            assert!(error.to_string().contains("chmod 600"), "{error}");
            assert!(read(&path, Protection::Folder).is_ok());
        }
        set_mode(&path, 0o600);
        for (bytes, errno) in
            [(vec![b'x'; MAX_FILE_BYTES + 1], libc::ENOBUFS), (vec![0xff, 0xfe], libc::EINVAL)]
        {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path, Protection::File).unwrap_err().errno(), errno);
        }
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read(&path, Protection::File), Err(FileError::Size(_))));
        let error = read(folder.path(), Protection::Folder).unwrap_err();
        assert!(error.to_string().contains("is a folder"), "{error}");
        let error = read(&folder.path().join("none"), Protection::File).unwrap_err();
        assert_eq!(error.errno(), libc::ENOENT);
    }

    #[test]
    fn a_pipe_and_a_device_are_refused_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            assert!(matches!(read(path, Protection::Folder), Err(FileError::Kind { .. })));
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        assert!(matches!(check(&link, Protection::File), Err(FileError::Kind { .. })));
    }
}
