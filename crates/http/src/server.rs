//! The thread of the server, its listeners and its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use raceline_control::manager::Manager;
use raceline_control::method::Registry;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

pub(crate) use crate::counts::Counts;
use crate::guard::Guard;
use crate::{HttpConfig, Listener, MAX_CONNECTIONS, Page, connection};

/// Pause before the next attempt to accept after an error.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long a server that ends waits for answers in progress.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(500);
/// How often it checks whether there are any.
const LAST_ANSWERS_INTERVAL: Duration = Duration::from_millis(2);

/// What connections share.
pub(crate) struct Shared {
    pub(crate) manager: Arc<Manager>,
    pub(crate) registry: Registry,
    pub(crate) guard: Guard,
    pub(crate) pages: Vec<Page>,
    pub(crate) patience: Duration,
    pub(crate) counts: Counts,
    /// One scrape at a time: each reads everything.
    pub(crate) scraping: Arc<Semaphore>,
    /// Places for what may block, one for each thread.
    pub(crate) calling: Arc<Semaphore>,
    /// Requests that have not been answered.
    pub(crate) answering: AtomicUsize,
}

/// A running server. It ends when dropped.
pub struct HttpServer {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts to serve.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(config: HttpConfig, manager: Arc<Manager>) -> io::Result<Self> {
        // A connection makes one call at a time. Where clients go, their calls may be left over, so these have places of
        // their own: none waits for a thread.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_CONNECTIONS)
            .thread_name("http-call")
            .build()?;
        let shared = Arc::new(Shared {
            manager,
            registry: Registry::new(),
            guard: Guard::new(config.token, config.read_token, config.names),
            pages: config.pages,
            patience: config.patience,
            counts: Counts::default(),
            scraping: Arc::new(Semaphore::new(1)),
            calling: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            answering: AtomicUsize::new(0),
        });
        let (end, ended) = oneshot::channel();
        let listeners = config.listeners;
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async move {
                for listener in listeners {
                    tokio::spawn(accept(listener, Arc::clone(&shared)));
                }
                // Its sender is used or dropped: either is the end.
                let _ = ended.await;
                last_answers(&shared).await;
            });
            // Calls that wait for something that will not happen any more are left behind.
            runtime.shutdown_background();
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for answers that come soon: for instance, to the call that asked for the end.
async fn last_answers(shared: &Shared) {
    let answered = async {
        while shared.answering.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(LAST_ANSWERS_INTERVAL).await;
        }
        // The connections still have to send them.
        tokio::time::sleep(LAST_ANSWERS_INTERVAL).await;
    };
    let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, answered).await;
}

async fn accept(listener: Listener, shared: Arc<Shared>) {
    let Listener { socket, address, parts, offer: _offer } = listener;
    let listener = match TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("{address} cannot be served by HTTP: {error}");
            return;
        }
    };
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors: they become free as connections end.
                tracing::warn!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            match shared.counts.places.take(peer.ip()) {
                Some(taken) => {
                    let served = connection::serve(stream, &shared, &taken.place, parts, address);
                    if taken.place.hold(served).await.is_none() {
                        tracing::debug!("an idle HTTP connection has given way to another one");
                    }
                }
                None => {
                    shared.counts.refused.add_one();
                    connection::refuse(stream).await;
                }
            }
        });
    }
}
