//! The Unix-socket server: one thread for sockets, others for calls; never a reactor.
//!
//! A connection is served in order, one value at a time; its calls run on a thread that may block,
//! so that one client that reads slowly, or one call that waits, holds up nobody else.

mod connection;
mod socket;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};

use crate::engine::Engine;
use crate::method::Registry;
use crate::role::Roles;

pub use socket::ListenError;

/// Connections at a time; the next one is told so and closed. SPDK has as many.
pub const MAX_CONNECTIONS: usize = 64;

/// What a server needs.
pub struct ServerConfig {
    /// Where to listen.
    pub path: PathBuf,
    /// Who may do what.
    pub roles: Roles,
}

/// What connections share.
pub(crate) struct Shared {
    pub(crate) registry: Registry,
    pub(crate) engine: Arc<Engine>,
    pub(crate) roles: Roles,
}

/// A running server. It ends when dropped.
pub struct Server {
    path: PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _lock: socket::Lock,
}

impl Server {
    /// Starts to listen. Clients that connect from now on are answered.
    ///
    /// # Errors
    /// When another instance has the path, the path is not safe, or the socket cannot be made.
    pub fn start(config: ServerConfig, engine: Arc<Engine>) -> Result<Self, ListenError> {
        engine.share();
        let lock = socket::Lock::take(&config.path)?;
        let listener = socket::listen(&config.path)?;
        let failed = |error| ListenError::Io { path: config.path.clone(), error };
        // One thread per connection at most: a connection makes one call at a time.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_CONNECTIONS)
            .thread_name("rpc-call")
            .build()
            .map_err(failed)?;
        let (end, ended) = oneshot::channel();
        let shared = Arc::new(Shared { registry: Registry::new(), engine, roles: config.roles });
        let thread = std::thread::Builder::new().name("rpc".to_owned()).spawn(move || {
            runtime.block_on(async move {
                match UnixListener::from_std(listener) {
                    Ok(listener) => {
                        tokio::spawn(accept(listener, shared));
                        // Its sender is used or dropped: either is the end.
                        let _ = ended.await;
                    }
                    Err(error) => tracing::error!("the RPC socket cannot be served: {error}"),
                }
            });
            // Calls that wait for something that will not happen any more are left behind.
            runtime.shutdown_background();
        });
        let thread = thread.map_err(failed)?;
        Ok(Self { path: config.path, end: Some(end), thread: Some(thread), _lock: lock })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone first, so that nobody connects to what does not answer; the lock is held still.
        let _ = std::fs::remove_file(&self.path);
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors: they come back as connections end.
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
                tokio::spawn(connection::refuse(stream));
            }
        }
    }
}

fn log_accept(error: &io::Error) {
    tracing::warn!("cannot accept an RPC connection: {error}");
}
