//! A server: a socket for one front end at a time, and the cores that serve its rings.

use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_reactor::{Backend, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use socket2::{Domain, SockAddr, Type};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::config::{Facts, MAX_QUEUES};
use crate::core::{Core, Message};
use crate::front_end::{FrontEnd, Shared};
use crate::link::{Ends, Link};

/// Rings of a device, unless told otherwise; a front end may use fewer.
pub const DEFAULT_QUEUES: u16 = 16;

/// Front ends that may wait to be accepted.
const BACKLOG: i32 = 8;

/// Who may use the socket, which is the key to the disk: its owner.
const SOCKET_MODE: u32 = 0o600;

/// How long the next front end waits for the former one to be gone.
const CHANGE_TIME: Duration = Duration::from_secs(10);

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
    /// The socket cannot be listened on.
    #[error("cannot listen on {path}: {source}", path = path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else than a socket is in the way.
    #[error(
        "cannot listen on {path}: there is a file that is no socket; choose another path, or move it away",
        path = .0.display()
    )]
    NotASocket(PathBuf),
    /// Another process listens there.
    #[error(
        "cannot listen on {path}: another process listens there; choose another path, or stop it",
        path = .0.display()
    )]
    InUse(PathBuf),
    /// A core cannot be started, or its channel cannot be opened.
    #[error("cannot start a core: {0}")]
    Core(io::Error),
}

/// A running server. Dropped without [`Server::stop`], its threads run on.
pub struct Server {
    config: ServerConfig,
    facts: Arc<Facts>,
    link: Arc<Link>,
    cores: Vec<ReactorHandle<Message>>,
    listener: Arc<UnixListener>,
    stopping: Arc<AtomicBool>,
    acceptor: JoinHandle<()>,
}

impl Server {
    /// Opens the channels on all cores, then listens.
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
        make_way(&config.socket)?;
        let failed = |source| ServerError::Listen { path: config.socket.clone(), source };
        let listener = Arc::new(listen(&config.socket).map_err(failed)?);
        let cores = match start_cores(config, &facts, &link) {
            Ok(cores) => cores,
            Err(error) => {
                // That it is gone already is as good.
                let _ = fs::remove_file(&config.socket);
                return Err(error);
            }
        };
        let senders = cores.iter().map(|core| core.sender().clone()).collect();
        let shared =
            Arc::new(Shared { facts: Arc::clone(&facts), cores: senders, link: Arc::clone(&link) });
        let stopping = Arc::new(AtomicBool::new(false));
        let acceptor = std::thread::Builder::new().name("vhost-accept".to_owned()).spawn({
            let (listener, stopping) = (Arc::clone(&listener), Arc::clone(&stopping));
            move || accept_all(&listener, &stopping, &shared)
        });
        let acceptor = acceptor.map_err(failed)?;
        Ok(Self { config: config.clone(), facts, link, cores, listener, stopping, acceptor })
    }

    /// Looks how large the device is, and has the guest learn of a change.
    pub fn refresh(&self) {
        if self.facts.resize(&self.config.device.info()) {
            tracing::info!("the disk has {} bytes now", self.facts.bytes());
            self.link.tell_change();
        }
    }

    /// The size of the disk in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.facts.bytes()
    }

    /// Whether a front end is connected.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.link.ends().front.is_some()
    }

    /// False once a core has ended by itself.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.cores.iter().all(ReactorHandle::is_running)
    }

    /// Ends the connection after what is in flight, then all threads.
    pub fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // Whoever has put something else there keeps it; that it is gone already is as good.
        let _ = fs::remove_file(&self.config.socket);
        self.link.cut();
        // Ends the accept(2) that waits.
        if let Err(error) = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both) {
            tracing::debug!("shutdown of a listening socket: {error}");
        }
        if self.acceptor.join().is_err() {
            tracing::error!("the thread that accepts front ends has panicked");
        }
        end_cores(self.cores);
    }
}

fn start_cores(
    config: &ServerConfig,
    facts: &Arc<Facts>,
    link: &Arc<Link>,
) -> Result<Vec<ReactorHandle<Message>>, ServerError> {
    let mut cores = Vec::new();
    for (number, core) in config.cores.iter().enumerate() {
        let reactor = ReactorConfig {
            core: *core,
            mode: config.mode,
            backend: config.backend,
            pool: PoolConfig::new(&POOL),
            name: format!("vhost-{number}"),
            ..ReactorConfig::default()
        };
        let device = Arc::clone(&config.device);
        let shared = (Arc::clone(facts), Arc::clone(link));
        match Reactor::spawn(reactor, move |cx| Core::new(cx, &device, shared)) {
            Ok(core) => cores.push(core),
            Err(error) => {
                end_cores(cores);
                return Err(ServerError::Core(error));
            }
        }
    }
    Ok(cores)
}

fn end_cores(cores: Vec<ReactorHandle<Message>>) {
    for core in &cores {
        // A core that has ended by itself has logged why.
        let _ = core.sender().send(Message::End);
    }
    for core in cores {
        if let Err(error) = core.join() {
            tracing::error!("{error}");
        }
    }
}

/// Removes what an instance that was killed has left.
fn make_way(path: &Path) -> Result<(), ServerError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ServerError::NotASocket(path.to_owned()));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(ServerError::InUse(path.to_owned()));
    }
    let failed = |source| ServerError::Listen { path: path.to_owned(), source };
    fs::remove_file(path).map_err(failed)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The socket's own mode is what bind gives the file, less the umask: no moment is open to all.
    let file = fs::File::from(OwnedFd::from(socket));
    file.set_permissions(fs::Permissions::from_mode(SOCKET_MODE))?;
    let socket = socket2::Socket::from(OwnedFd::from(file));
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(BACKLOG)?;
    Ok(UnixListener::from(OwnedFd::from(socket)))
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
        let served = std::thread::Builder::new().name("vhost-front-end".to_owned()).spawn({
            let shared = Arc::clone(shared);
            move || serve(stream, &shared)
        });
        match served {
            Ok(served) => former = Some(served),
            Err(error) => tracing::warn!("a front end was sent away: {error}"),
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
    let (Ok(front), Ok(peeked)) = (stream.try_clone(), stream.try_clone()) else {
        return tracing::warn!("a front end was sent away: there are no descriptors left");
    };
    *shared.link.ends() = Ends { front: Some(front), back: None };
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
