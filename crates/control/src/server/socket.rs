//! The socket in the file system: one instance, a safe directory, the right mode from the first moment.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use raceline_reactor::inheritance::{self, Offer};
use raceline_reactor::listening::path_trouble;
use raceline_reactor::private_socket::{self, SocketError};
use rustix::fs::{FlockOperation, flock};

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;
/// Owner and group may enter the directory; only the owner may change it.
const DIRECTORY_MODE: u32 = 0o750;
const WORLD_WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Why the server cannot listen; says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another instance has the path.
    #[error("another instance serves {0}: end it, or choose another socket with -r")]
    InUse(PathBuf),
    /// Any user could put another socket in its place.
    #[error("anybody may write to {0}: keep the socket in a directory of mode 0750")]
    OpenToAll(PathBuf),
    /// There is no socket at the path.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Anything else.
    #[error("cannot listen on {path}: {}", path_trouble(.path, .error, Some("-r")))]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The lock that makes this the only instance of its path. The file stays: two instances could both lock a
/// path whose file was unlinked.
pub(super) struct Lock {
    _file: File,
    /// A successor gets it.
    _offer: Option<Offer>,
}

impl Lock {
    pub(super) fn take(path: &Path) -> Result<Self, ListenError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let failed = |error| ListenError::Io { path: path.to_owned(), error };
        make_directory(path).map_err(failed)?;
        check_directory(path)?;
        let handed_name = format!("the lock {}", Path::new(&name).display());
        if let Some(handed) = inheritance::copy(&handed_name) {
            let offer = inheritance::offer(handed_name, &handed);
            return Ok(Self { _file: handed.into(), _offer: offer });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Not through a link that another user has put there.
        options.custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&name).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let offer = inheritance::offer(handed_name, &file);
                Ok(Self { _file: file, _offer: offer })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ListenError::InUse(path.to_owned())),
            Err(error) => Err(failed(error.into())),
        }
    }
}

/// A socket that listens, and whose it is.
pub(super) struct Listening {
    pub(super) socket: UnixListener,
    /// The service manager has made it and has it still: it stays when the daemon ends.
    pub(super) is_managed: bool,
}

/// Listens at a path whose lock is held.
pub(super) fn listen(path: &Path) -> Result<Listening, ListenError> {
    let failed = |error| ListenError::Io { path: path.to_owned(), error };
    for is_managed in [true, false] {
        if let Some(handed) = inheritance::take(&handed_name(path, is_managed)) {
            let socket = UnixListener::from(handed);
            socket.set_nonblocking(true).map_err(failed)?;
            return Ok(Listening { socket, is_managed });
        }
    }
    // A successor may have the socket when this daemon ends: so the server removes its file by the path, under the lock.
    let (socket, _) =
        private_socket::listen_locked(path, private_socket::OWNER_AND_GROUP, BACKLOG)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok(Listening { socket, is_managed: false })
}

/// The name under which a listening socket comes from the service manager, and goes to a successor.
pub(super) fn handed_name(path: &Path, is_managed: bool) -> String {
    match is_managed {
        true => format!("the RPC socket {} of the service manager", path.display()),
        false => format!("the RPC socket {}", path.display()),
    }
}

/// The directory of a socket.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes the directory of a socket if it is missing.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    let directory = directory(path);
    if directory.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)
}

/// A user that may write to the directory may put another socket in the place of ours. In a sticky
/// directory such as /var/tmp, SPDK's default, another user can only take the name first, which is refused.
fn check_directory(path: &Path) -> Result<(), ListenError> {
    let directory = directory(path);
    let failed = |error| ListenError::Io { path: path.to_owned(), error };
    let mode = fs::metadata(directory).map_err(failed)?.mode();
    match (mode & WORLD_WRITABLE != 0, mode & STICKY != 0) {
        (false, _) => Ok(()),
        (true, false) => Err(ListenError::OpenToAll(directory.to_owned())),
        (true, true) => {
            tracing::warn!(
                "anybody may put files into {}: a directory of mode 0750 is safer",
                directory.display()
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_make_the_socket_learns_which_folder_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raceline/rpc.sock");
        let error =
            ListenError::Io { path: path.clone(), error: io::ErrorKind::PermissionDenied.into() };
        let wanted = format!(
            "cannot listen on {}: this process may not make files in {}: run it as a user who may, or choose another path \
             with -r",
            path.display(),
            dir.path().display()
        );
        assert_eq!(error.to_string(), wanted);
    }
}
