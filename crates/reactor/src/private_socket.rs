//! Sockets in the file system that only some users may connect to: made with the right mode from the first moment, in
//! the place of what a killed process has left, and removed again by whoever made them.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::listening::path_trouble;

/// The owner may connect, and nobody else.
pub const OWNER: u32 = 0o600;
/// The owner and its group may connect.
pub const OWNER_AND_GROUP: u32 = 0o660;

/// Most bytes of a socket's path: `sun_path` of unix(7) less the NUL at its end.
pub const MAX_PATH_BYTES: usize = 107;

/// Why there is no socket at a path; says what to do.
#[derive(Debug)]
pub enum SocketError {
    /// Something else than a socket is in the way.
    NotASocket(PathBuf),
    /// Another process listens there.
    InUse(PathBuf),
    /// The kernel does not take paths of that length.
    TooLong(PathBuf),
    /// The system has refused it.
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl SocketError {
    /// The error number that says most of it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotASocket(_) => libc::EEXIST,
            Self::InUse(_) => libc::EADDRINUSE,
            Self::TooLong(_) => libc::ENAMETOOLONG,
            Self::Refused { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotASocket(path)
        | Self::InUse(path)
        | Self::TooLong(path)
        | Self::Refused { path, .. }) = self;
        write!(f, "cannot listen on {}: ", path.display())?;
        match self {
            Self::NotASocket(_) => f.write_str(
                "there is a file that is no socket; choose another path, or move it away",
            ),
            Self::InUse(_) => {
                f.write_str("another process listens there; choose another path, or stop it")
            }
            Self::TooLong(path) => write!(
                f,
                "the path has {} bytes, and that of a socket has at most {MAX_PATH_BYTES}; choose a shorter one",
                path.as_os_str().len()
            ),
            Self::Refused { path, source } => f.write_str(&path_trouble(path, source, None)),
        }
    }
}

impl std::error::Error for SocketError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The file of a socket that this process has made.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: another socket at the same path has others.
    identity: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless something else is in its place by now, which stays.
    pub fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            // That it is gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Listens at a path, where a process that was killed may have left its socket. Users are let in by `mode`; at most
/// `backlog` clients wait to be accepted.
///
/// # Errors
/// When something else is there, another process listens there, or the system refuses it.
pub fn listen(
    path: &Path,
    mode: u32,
    backlog: i32,
) -> Result<(UnixListener, SocketFile), SocketError> {
    let refused = |source| SocketError::Refused { path: path.to_owned(), source };
    if is_socket(path)? {
        if is_served(path).map_err(refused)? {
            return Err(SocketError::InUse(path.to_owned()));
        }
        fs::remove_file(path).map_err(refused)?;
    }
    bind(path, mode, backlog)
}

/// The same for a process with a lock on the path: nobody can listen at a socket that is there.
///
/// # Errors
/// When something else than a socket is there, or the system refuses it.
pub fn listen_locked(
    path: &Path,
    mode: u32,
    backlog: i32,
) -> Result<(UnixListener, SocketFile), SocketError> {
    if is_socket(path)? {
        fs::remove_file(path)
            .map_err(|source| SocketError::Refused { path: path.to_owned(), source })?;
    }
    bind(path, mode, backlog)
}

/// Whether there is a socket at a path, which may not be anything else.
fn is_socket(path: &Path) -> Result<bool, SocketError> {
    if path.as_os_str().as_bytes().len() > MAX_PATH_BYTES {
        return Err(SocketError::TooLong(path.to_owned()));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(true),
        Ok(_) => Err(SocketError::NotASocket(path.to_owned())),
        // What else is wrong with the path, the kernel says when the socket is bound.
        Err(_) => Ok(false),
    }
}

/// Whether a process listens at a socket. It does not wait for a process that accepts nobody.
fn is_served(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let Err(error) = socket.connect(&SockAddr::unix(path)?) else { return Ok(true) };
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ENOENT) => Ok(false),
        // As many wait there as may, or it is a socket of another type: somebody has it.
        Some(libc::EAGAIN | libc::EPROTOTYPE) => Ok(true),
        _ => Err(error),
    }
}

fn bind(path: &Path, mode: u32, backlog: i32) -> Result<(UnixListener, SocketFile), SocketError> {
    let bound = || {
        // The socket's own mode is what bind gives the file, less the umask: no moment is open to all.
        let file = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
        file.set_permissions(Permissions::from_mode(mode))?;
        let socket = Socket::from(OwnedFd::from(file));
        socket.bind(&SockAddr::unix(path)?)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let identity = identity(&fs::symlink_metadata(path)?);
        socket.listen(backlog)?;
        Ok((UnixListener::from(OwnedFd::from(socket)), identity))
    };
    let (listener, identity) = bound().map_err(|source: io::Error| match source.kind() {
        // It has come after this process has looked.
        io::ErrorKind::AddrInUse => SocketError::InUse(path.to_owned()),
        _ => SocketError::Refused { path: path.to_owned(), source },
    })?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn text(error: &SocketError) -> String {
        error.to_string()
    }

    #[test]
    fn a_socket_has_its_mode_and_takes_the_place_of_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        drop(UnixListener::bind(&path).unwrap());
        for mode in [OWNER, OWNER_AND_GROUP] {
            let (listener, file) = listen(&path, mode, 8).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
            UnixStream::connect(file.path()).unwrap();
            listener.accept().unwrap();
            // Dropped, its file stays, and the next one finds it.
        }
        let (_listener, file) = listen(&path, OWNER, 8).unwrap();
        file.remove();
        assert!(!path.exists());
        file.remove();
    }

    #[test]
    fn a_socket_that_is_served_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let (listener, file) = listen(&path, OWNER, 0).unwrap();
        let in_use = listen(&path, OWNER, 8).unwrap_err();
        assert!(matches!(in_use, SocketError::InUse(_)), "{in_use}");
        assert!(
            text(&in_use)
                .ends_with("another process listens there; choose another path, or stop it")
        );
        assert_eq!(in_use.errno(), libc::EADDRINUSE);
        // Its queue is full now, and whoever asks does not wait for that.
        assert!(matches!(listen(&path, OWNER, 8), Err(SocketError::InUse(_))));
        assert!(matches!(listen(&path, OWNER, 8), Err(SocketError::InUse(_))));
        let datagrams = dir.path().join("datagrams");
        let _receiver = UnixDatagram::bind(&datagrams).unwrap();
        assert!(matches!(listen(&datagrams, OWNER, 8), Err(SocketError::InUse(_))));
        // With a lock there is nobody to ask for; then the file is another one, and its former owner leaves it.
        let (_second, second_file) = listen_locked(&path, OWNER, 8).unwrap();
        file.remove();
        assert!(path.exists(), "a file of another socket was removed");
        second_file.remove();
        assert!(!path.exists());
        drop(listener);
    }

    #[test]
    fn what_is_in_the_way_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "a text").unwrap();
        for error in
            [listen(&path, OWNER, 8), listen_locked(&path, OWNER, 8)].map(Result::unwrap_err)
        {
            assert_eq!(
                text(&error),
                format!(
                    "cannot listen on {}: there is a file that is no socket; choose another path, or move it away",
                    path.display()
                )
            );
            assert_eq!(error.errno(), libc::EEXIST);
        }
        assert_eq!(fs::read(&path).unwrap(), b"a text");
        let missing = listen(&dir.path().join("no/sock"), OWNER, 8).unwrap_err();
        assert_eq!(missing.errno(), libc::ENOENT);
        let wanted = format!("no/sock: there is no folder {}/no: make it", dir.path().display());
        assert!(text(&missing).contains(&wanted), "{missing}");
    }

    #[test]
    fn the_longest_path_is_taken_and_no_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().as_os_str().len() + 1;
        let longest = dir.path().join("s".repeat(MAX_PATH_BYTES - own));
        listen(&longest, OWNER, 8).unwrap().1.remove();
        let longer = dir.path().join("s".repeat(MAX_PATH_BYTES + 1 - own));
        let error = listen(&longer, OWNER, 8).unwrap_err();
        assert!(
            text(&error).ends_with(
                "the path has 108 bytes, and that of a socket has at most 107; choose a shorter one"
            ),
            "{error}"
        );
        assert_eq!(error.errno(), libc::ENAMETOOLONG);
        assert!(!longer.exists());
    }
}
