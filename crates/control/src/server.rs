//! The Unix-socket server: one thread for sockets, others for calls; never a reactor.
//!
//! A connection is served in order, one value at a time. Its calls run on a thread that may block, so that
//! a client that reads slowly, or a call that waits, delays no other connection.

mod connection;
mod disk;
mod socket;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use raceline_reactor::inheritance::{self, Offer};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};

use crate::codec::Bounds;
use crate::manager::{Manager, Phase};
use crate::method::Registry;
use crate::role::Roles;

use socket::Listening;

pub use disk::DiskServer;
pub use socket::ListenError;

/// Connections at a time, as many as in SPDK; further clients are told so and closed.
pub const MAX_CONNECTIONS: usize = 64;

/// What clients may take up of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at a time; further clients are told so and closed.
    pub(crate) connections: usize,
    /// Calls at a time, each with a thread.
    pub(crate) calls: usize,
    /// The bounds of a request.
    pub(crate) request: Bounds,
    /// How long a value may take from its first byte to its last: a client that sends only half of one occupies a place that
    /// others need.
    pub(crate) request_time: Duration,
    /// How long a client may ask for nothing; `None`: for ever.
    pub(crate) quiet_time: Option<Duration>,
    /// How long a client may take to read an answer.
    pub(crate) answer_time: Duration,
}

impl Limits {
    /// Those of a daemon. A connection makes one call at a time, so there is a thread for each.
    const DAEMON: Self = Self {
        connections: MAX_CONNECTIONS,
        calls: MAX_CONNECTIONS,
        request: Bounds::REQUEST,
        request_time: Duration::from_secs(60),
        quiet_time: None,
        answer_time: Duration::from_secs(60),
    };
}

/// How long a server that ends waits for calls in progress.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(500);

/// How often it checks whether there are any.
const LAST_ANSWERS_INTERVAL: Duration = Duration::from_millis(2);

/// How often it checks whether the daemon has started.
const START_INTERVAL: Duration = Duration::from_millis(5);

/// What a server needs.
pub struct ServerConfig {
    /// Where to listen.
    pub path: PathBuf,
    /// The role of each user.
    pub roles: Roles,
}

/// What connections share.
pub(crate) struct Shared {
    pub(crate) registry: Registry,
    pub(crate) manager: Arc<Manager>,
    pub(crate) roles: Roles,
    pub(crate) limits: Limits,
    /// Calls whose answers have not been written.
    pub(crate) answering: AtomicUsize,
}

/// The directory of a socket, which is made if it is missing, as [`Server::start`] does.
///
/// # Errors
/// When it cannot be made.
pub fn socket_directory(path: &Path) -> Result<PathBuf, ListenError> {
    let failed = |error| ListenError::Io { path: path.to_owned(), error };
    socket::make_directory(path).map_err(failed)?;
    Ok(socket::directory(path).to_owned())
}

/// Has the server of a path use this socket, which the service manager has made.
pub fn bring_socket(path: &Path, socket: OwnedFd) {
    inheritance::bring(socket::handed_name(path, true), socket);
}

/// A running server. It ends when dropped.
pub struct Server {
    path: PathBuf,
    /// The service manager goes on to listen.
    is_managed: bool,
    /// Ends before the lock is given back.
    _running: Running,
    _lock: socket::Lock,
    /// A successor gets the listening socket.
    _offer: Option<Offer>,
}

/// The thread of a server. It ends when this is dropped.
struct Running {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to listen. Clients that connect from now on are answered.
    ///
    /// # Errors
    /// When another instance has the path, the path is not safe, or the socket cannot be made.
    pub fn start(config: ServerConfig, manager: Arc<Manager>) -> Result<Self, ListenError> {
        manager.share();
        let lock = socket::Lock::take(&config.path)?;
        let Listening { socket: listener, is_managed } = socket::listen(&config.path)?;
        let name = socket::handed_name(&config.path, is_managed);
        let offer = inheritance::offer(name, &listener);
        let failed = |error| ListenError::Io { path: config.path.clone(), error };
        let shared = Shared {
            registry: Registry::new(),
            manager,
            roles: config.roles,
            limits: Limits::DAEMON,
            answering: AtomicUsize::new(0),
        };
        let running = Running::start(listener, Arc::new(shared), is_managed).map_err(failed)?;
        Ok(Self { path: config.path, is_managed, _running: running, _lock: lock, _offer: offer })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Removed first, so that no client connects to a socket without answers; the lock is still held. Clients of a socket
        // that is the service manager's have it start the daemon anew.
        if !self.is_managed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Running {
    /// Serves the clients of a listening socket. They wait until the manager has started, if `is_managed`.
    fn start(listener: StdListener, shared: Arc<Shared>, is_managed: bool) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(shared.limits.calls)
            .thread_name("rpc-call")
            .build()?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("rpc".to_owned()).spawn(move || {
            runtime.block_on(async move {
                match UnixListener::from_std(listener) {
                    Ok(listener) => {
                        let clients = Arc::clone(&shared);
                        tokio::spawn(async move {
                            // A client whose connection has had this daemon started expects answers, not that it starts.
                            if is_managed {
                                started(&clients.manager).await;
                            }
                            accept(listener, clients).await;
                        });
                        // Its sender is used or dropped: either is the end.
                        let _ = ended.await;
                        last_answers(&shared).await;
                    }
                    Err(error) => tracing::error!("the RPC socket cannot be served: {error}"),
                }
            });
            // Calls that wait for something that will not happen any more are left behind.
            runtime.shutdown_background();
        });
        Ok(Self { end: Some(end), thread: Some(thread?) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until a daemon that starts without a client has started.
async fn started(manager: &Manager) {
    while manager.config().starts_by_itself && manager.phase() != Phase::Runtime {
        tokio::time::sleep(START_INTERVAL).await;
    }
}

/// Waits for the answers of calls that end soon: for instance, of the call that asked for the end.
async fn last_answers(shared: &Shared) {
    let answered = async {
        while shared.answering.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(LAST_ANSWERS_INTERVAL).await;
        }
    };
    // Other calls may wait for events that never come.
    let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, answered).await;
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(shared.limits.connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors: they become free as connections end.
                log_accept(&error);
                tokio::time::sleep(connection::ACCEPT_RETRY).await;
                continue;
            }
        };
        let shared = Arc::clone(&shared);
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                tokio::spawn(async move {
                    connection::serve(stream, shared).await;
                    drop(place);
                });
            }
            Err(_) => {
                tokio::spawn(connection::refuse(stream, shared.limits.connections));
            }
        }
    }
}

fn log_accept(error: &io::Error) {
    tracing::warn!("cannot accept an RPC connection: {error}");
}
