//! The socket of a process that serves one disk: few methods for its own user and root, in narrow bounds, beside its cores.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use raceline_reactor::private_socket::{self, SocketFile};

use super::{Limits, ListenError, Running, Shared};
use crate::codec::Bounds;
use crate::logging::Logging;
use crate::manager::{Manager, ManagerConfig};
use crate::method::Registry;
use crate::methods::ServedDisk;
use crate::role::Roles;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 16;

/// Nobody but people and their scripts asks for a disk. One call at a time takes one processor at most from what else runs on the
/// machine, whatever clients do.
const LIMITS: Limits = Limits {
    connections: 8,
    calls: 1,
    request: Bounds { bytes: 64 << 10, depth: 16, values: 4096 },
    request_time: Duration::from_secs(5),
    quiet_time: Some(Duration::from_secs(10)),
    answer_time: Duration::from_secs(5),
};

/// A running server of a disk. It ends when dropped, and removes its socket.
pub struct DiskServer {
    file: SocketFile,
    /// Ends after its socket is gone.
    _running: Running,
}

impl DiskServer {
    /// Listens at a path of a folder that only this user may write to, and which no other process uses: what a killed one has left
    /// there gives way.
    ///
    /// # Errors
    /// When something else than a socket is there, or the system refuses it.
    pub fn start(path: &Path, disk: ServedDisk, logging: Logging) -> Result<Self, ListenError> {
        let (listener, file) = private_socket::listen_locked(path, private_socket::OWNER, BACKLOG)?;
        let registry = Registry::of_disk(move || disk.describe());
        // It manages nothing but the log.
        let config = ManagerConfig { logging, ..ManagerConfig::default() };
        let manager = Arc::new(Manager::new(config, Arc::new(Registry::default())));
        manager.start();
        let shared = Shared {
            registry,
            manager,
            roles: Roles::default(),
            limits: LIMITS,
            answering: AtomicUsize::new(0),
        };
        let running = listener
            .set_nonblocking(true)
            .and_then(|()| Running::start(listener, Arc::new(shared), false));
        match running {
            Ok(running) => Ok(Self { file, _running: running }),
            Err(error) => {
                file.remove();
                Err(ListenError::Io { path: path.to_owned(), error })
            }
        }
    }
}

impl Drop for DiskServer {
    fn drop(&mut self) {
        self.file.remove();
    }
}
