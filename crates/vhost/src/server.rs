//! A server: a socket for one front end at a time, and the cores that serve its rings.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_bdev::{DiskFigures, DiskStats, DiskTotals, SharedBdev};
use raceline_reactor::private_socket::{self, SocketError, SocketFile};
use raceline_reactor::{Backend, Context, CoreLoop, Cores, Mode, PoolConfig, ReactorConfig};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::config::{Facts, MAX_QUEUES};
use crate::core::{Core, Message};
use crate::front_end::{FrontEnd, Shared};
use crate::link::{Ends, Link};

/// Rings of a device, unless told otherwise; a front end may use fewer.
pub const DEFAULT_QUEUES: u16 = 16;

/// Front ends that may wait to be accepted.
const BACKLOG: i32 = 8;

/// How long the next front end waits for the former one to be gone, which may wait for the device before.
const CHANGE_TIME: Duration = Duration::from_secs(15);

/// How long accepting pauses when descriptors or memory have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Sizes and numbers of a core's buffers, 37 MiB; what finds none is allocated, within the budget of `devices`.
const POOL: [(usize, usize); 4] = [(4 << 10, 256), (64 << 10, 64), (256 << 10, 64), (1 << 20, 16)];

/// How to serve.
#[derive(Clone)]
pub struct ServerConfig {
    /// The disk.
    pub device: SharedBdev,
    /// Where front ends connect.
    pub socket: PathBuf,
    /// Writes are refused, although the device may take them.
    pub read_only: bool,
    /// What guests see as the disk's serial number; 20 bytes of it.
    pub serial: String,
    /// Rings, 1 to 64.
    pub queues: u16,
    /// The cores: a number to pin the thread to, or none to let it float. Rings are dealt to them in turn.
    pub cores: Vec<Option<usize>>,
    /// How eagerly cores look for work.
    pub mode: Mode,
    /// How cores do I/O.
    pub backend: Backend,
}

impl ServerConfig {
    /// One core that floats, and the defaults.
    #[must_use]
    pub fn new(device: SharedBdev, socket: PathBuf) -> Self {
        Self {
            device,
            socket,
            read_only: false,
            serial: "raceline".to_owned(),
            queues: DEFAULT_QUEUES,
            cores: vec![None],
            mode: Mode::default(),
            backend: Backend::Auto,
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration cannot be.
    #[error("{0}")]
    Invalid(String),
    /// There is no socket at the path.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// There is no thread for front ends.
    #[error("cannot accept front ends: {0}")]
    Thread(io::Error),
    /// A core cannot be started, or its channel cannot be opened.
    #[error("cannot start a core: {0}")]
    Core(io::Error),
}

/// A running server. Dropped without [`Server::stop`], its threads run on.
pub struct Server {
    device: SharedBdev,
    facts: Arc<Facts>,
    link: Arc<Link>,
    stats: Arc<DiskStats>,
    cores: Cores<Message>,
    listener: Arc<UnixListener>,
    file: SocketFile,
    stopping: Arc<AtomicBool>,
    /// None until all else has started.
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and opens the channels on all cores. Front ends are served after that.
    ///
    /// # Errors
    /// When that is not possible; then nothing of it is left.
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        if config.cores.is_empty() || !(1..=MAX_QUEUES).contains(&config.queues) {
            let text = format!("a disk has 1 to {MAX_QUEUES} queues, and needs a core");
            return Err(ServerError::Invalid(text));
        }
        let info = config.device.info();
        let facts = Facts::new(&info, config.read_only, config.queues, &config.serial);
        let (facts, link) = (Arc::new(facts), Arc::new(Link::default()));
        // The socket is the key to the disk.
        let (listener, file) =
            private_socket::listen(&config.socket, private_socket::OWNER, BACKLOG)?;
        let mut server = Self {
            device: Arc::clone(&config.device),
            facts,
            link,
            stats: Arc::<DiskStats>::default(),
            cores: Cores::default(),
            listener: Arc::new(listener),
            file,
            stopping: Arc::new(AtomicBool::new(false)),
            acceptor: None,
        };
        match server.begin(config) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop();
                Err(error)
            }
        }
    }

    fn begin(&mut self, config: &ServerConfig) -> Result<(), ServerError> {
        let reactor = ReactorConfig {
            mode: config.mode,
            backend: config.backend,
            pool: PoolConfig::new(&POOL),
            name: "vhost".to_owned(),
            ..ReactorConfig::default()
        };
        let left = Arc::new(AtomicUsize::new(0));
        let started = self.cores.start(&reactor, config.cores.iter().copied(), |_| {
            let device = Arc::clone(&self.device);
            let shared = (Arc::clone(&self.facts), Arc::clone(&self.link));
            let told = (Arc::clone(&left), self.stats.core());
            move |cx: &mut Context<'_>| Core::new(cx, &device, shared, told)
        });
        started.map_err(ServerError::Core)?;
        let shared = Shared {
            facts: Arc::clone(&self.facts),
            cores: self.cores.senders(),
            link: Arc::clone(&self.link),
        };
        let acceptor = std::thread::Builder::new().name("vhost-accept".to_owned()).spawn({
            let (listener, stopping) = (Arc::clone(&self.listener), Arc::clone(&self.stopping));
            move || accept_all(&listener, &stopping, &Arc::new(shared))
        });
        self.acceptor = Some(acceptor.map_err(ServerError::Thread)?);
        Ok(())
    }

    /// Looks how large the device is, and has the guest learn of a change.
    pub fn refresh(&self) {
        if self.facts.resize(&self.device.info()) {
            tracing::info!("the disk has {} bytes now", self.facts.bytes());
            self.link.tell_change();
        }
    }

    /// The size of the disk in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.facts.bytes()
    }

    /// What it has done for guests.
    #[must_use]
    pub fn totals(&self) -> DiskTotals {
        self.stats.totals()
    }

    /// Whether a front end is connected.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.link.ends().front.is_some()
    }

    /// A way for other threads to read the same, and what its cores do.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        DiskFigures::new(&self.stats, self.cores.watch())
    }

    /// What the loops of its cores have done.
    #[must_use]
    pub fn core_loops(&self) -> Vec<CoreLoop> {
        self.cores.loops()
    }

    /// False once a core has ended by itself.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.cores.is_running()
    }

    /// Ends the connection after what is in flight, then all threads.
    pub fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        self.file.remove();
        self.link.cut();
        // Ends the accept(2) that waits.
        if let Err(error) = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both) {
            tracing::debug!("shutdown of a listening socket: {error}");
        }
        if self.acceptor.is_some_and(|acceptor| acceptor.join().is_err()) {
            tracing::error!("the thread that accepts front ends has panicked");
        }
        self.cores.tell(|| Message::End);
        self.cores.join();
    }
}

fn accept_all(listener: &UnixListener, stopping: &AtomicBool, shared: &Arc<Shared>) {
    let mut former: Option<JoinHandle<()>> = None;
    while !stopping.load(Ordering::Acquire) {
        let stream = match listener.accept() {
            _ if stopping.load(Ordering::Acquire) => break,
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("accepting front ends pauses: {error}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        if former.as_ref().is_some_and(|former| !has_ended(former, stopping)) {
            tracing::warn!("a front end was sent away: another one uses the disk");
            continue;
        }
        let Ok(front) = stream.try_clone() else {
            tracing::warn!("a front end was sent away: there are no descriptors left");
            continue;
        };
        // Before its thread begins, so that the end of the server finds it.
        *shared.link.ends() = Ends { front: Some(front), back: None };
        let served = std::thread::Builder::new().name("vhost-front-end".to_owned()).spawn({
            let shared = Arc::clone(shared);
            move || serve(stream, &shared)
        });
        match served {
            Ok(served) => former = Some(served),
            Err(error) => {
                *shared.link.ends() = Ends::default();
                tracing::warn!("a front end was sent away: {error}");
            }
        }
    }
    if let Some(former) = former {
        // It may have been accepted after the server had cut the link.
        shared.link.cut();
        if former.join().is_err() {
            tracing::error!("the thread of a front end has panicked");
        }
    }
}

/// Waits for a thread for as long as another front end may wait.
fn has_ended(thread: &JoinHandle<()>, stopping: &AtomicBool) -> bool {
    let end = Instant::now() + CHANGE_TIME;
    while !thread.is_finished() {
        if Instant::now() > end || stopping.load(Ordering::Acquire) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Serves a front end until it goes.
fn serve(stream: UnixStream, shared: &Arc<Shared>) {
    let Ok(peeked) = stream.try_clone() else {
        *shared.link.ends() = Ends::default();
        return tracing::warn!("a front end was sent away: there are no descriptors left");
    };
    let front_end = Arc::new(Mutex::new(FrontEnd::new(Arc::clone(shared))));
    let mut requests = BackendReqHandler::from_stream(stream, Arc::clone(&front_end));
    loop {
        if let Some(back) = peek_back_end_channel(&peeked) {
            shared.link.ends().back = Some(back);
        }
        match requests.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected) => break tracing::debug!("a front end has gone"),
            Err(error) => break tracing::warn!("a front end was sent away: {error}"),
        }
    }
    *shared.link.ends() = Ends::default();
    // Until then nobody else may use the disk: what is in flight must not end after what comes later.
    front_end.lock().unwrap_or_else(PoisonError::into_inner).end();
}

/// Waits for the next message; gives the socket of SET_BACKEND_REQ_FD, if it is that. The crate that handles the
/// message does not let this socket be used for changes of the configuration.
fn peek_back_end_channel(stream: &UnixStream) -> Option<UnixStream> {
    const SET_BACKEND_REQ_FD: u32 = 21;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut header = [0; 12];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut ancillary, flags).ok()?;
    let files = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let [c0, c1, c2, c3, ..] = header;
    let code = u32::from_ne_bytes([c0, c1, c2, c3]);
    let back = files.filter(|_| got.bytes == header.len() && code == SET_BACKEND_REQ_FD)?;
    let back = UnixStream::from(back);
    // A front end that does not read must not hold a thread.
    back.set_nonblocking(true).ok()?;
    Some(back)
}
