//! A server: acceptors, and cores that carry out the requests of their connections.

mod budget;
mod connection;
mod core;
mod execute;
mod listen;
mod order;
mod pace;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use raceline_bdev::{BdevInfo, DiskFigures, DiskStats, DiskTotals, SharedBdev};
use raceline_reactor::listening::{address_trouble, path_trouble};
use raceline_reactor::private_socket::SocketError;
use raceline_reactor::{
    Backend, Context, CoreLoop, Cores, Mode, PoolConfig, ReactorConfig, Socket, StreamProvider,
};

use self::core::{Core, Message};
use self::listen::{Acceptor, Places, TOO_MANY};
pub use self::listen::{Endpoint, Listening};
use self::order::Peers;
use crate::protocol::{ExportFacts, TlsPolicy, wire};

/// The port where clients look.
pub const DEFAULT_PORT: u16 = wire::PORT;

/// Connections of a server at a time, unless told otherwise.
pub const DEFAULT_MAX_CONNECTIONS: usize = 64;

/// How long a client that is slow may hold others up, unless told otherwise.
pub const DEFAULT_HOLD_TIME: Duration = Duration::from_secs(30);

/// The peer of a connection within this process, for messages.
const WITHIN: &str = "this process";

/// Most exports of a server: each has a channel on each core.
const MAX_EXPORTS: usize = 64;

/// Sizes and numbers of a core's buffers, 37 MiB; what finds none is allocated, within the bounds of `budget`.
const POOL: [(usize, usize); 4] = [(4 << 10, 256), (64 << 10, 64), (256 << 10, 64), (1 << 20, 16)];

/// A device under the name by which clients ask for it.
#[derive(Clone)]
pub struct Export {
    /// The name, at most 4,096 bytes.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// The device.
    pub device: SharedBdev,
    /// Writes are refused, although the device may take them.
    pub read_only: bool,
}

impl Export {
    /// What clients that connect now are told of it.
    pub(crate) fn facts(&self) -> ExportFacts {
        let info: BdevInfo = self.device.info();
        ExportFacts {
            name: self.name.clone(),
            description: self.description.clone(),
            bytes: info.block_count * u64::from(info.block_size),
            block_bytes: info.block_size,
            preferred_bytes: info.physical_block_size.max(4096),
            read_only: self.read_only || info.read_only,
            trims: info.deallocate,
            fast_zero: info.deallocate && info.deallocate_zeroes,
            in_memory: info.reads_in_place,
            knows_holes: info.knows_holes,
        }
    }
}

/// TLS that clients begin by STARTTLS.
#[derive(Clone)]
pub struct ServerTls {
    /// What makes it of a connection.
    pub provider: Arc<dyn StreamProvider>,
    /// Clients without it get nothing.
    pub required: bool,
}

impl ServerTls {
    fn policy(tls: Option<&Self>) -> TlsPolicy {
        match tls {
            None => TlsPolicy::None,
            Some(tls) if tls.required => TlsPolicy::Required,
            Some(_) => TlsPolicy::Allowed,
        }
    }
}

/// How to serve.
#[derive(Clone)]
pub struct ServerConfig {
    /// What is served, one to 64. The first also has the empty name.
    pub exports: Vec<Export>,
    /// Where to listen; nowhere: the only connections are those of [`Server::connect`].
    pub endpoints: Vec<Endpoint>,
    /// The cores: a number to pin the thread to, or none to let it float.
    pub cores: Vec<Option<usize>>,
    /// How eagerly cores look for work.
    pub mode: Mode,
    /// How cores do I/O.
    pub backend: Backend,
    /// Connections at a time; those beyond are closed at once.
    pub max_connections: usize,
    /// TLS; none unless it is given.
    pub tls: Option<ServerTls>,
    /// How long a client that takes its replies or sends its data too slowly may hold the first changes of later connections
    /// up; one that is less slow may do so for four times as long.
    pub hold_time: Duration,
}

impl ServerConfig {
    /// One core that floats, and the defaults.
    #[must_use]
    pub fn new(exports: Vec<Export>, endpoints: Vec<Endpoint>) -> Self {
        Self {
            exports,
            endpoints,
            cores: vec![None],
            mode: Mode::default(),
            backend: Backend::Auto,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            tls: None,
            hold_time: DEFAULT_HOLD_TIME,
        }
    }
}

/// Why a server does not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration cannot be.
    #[error("{0}")]
    Invalid(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {endpoint}: {}", trouble(.endpoint, .source))]
    Listen {
        /// The address.
        endpoint: Endpoint,
        /// Why.
        source: io::Error,
    },
    /// There is no socket at a path.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A core cannot be started, or its channels cannot be opened.
    #[error("cannot start a core: {0}")]
    Core(io::Error),
    /// A connection within this process cannot be made.
    #[error("cannot make a connection: {0}")]
    Connect(io::Error),
}

fn trouble(endpoint: &Endpoint, error: &io::Error) -> String {
    match endpoint {
        Endpoint::Tcp(address) => address_trouble(*address, error, None),
        Endpoint::Unix(path) => path_trouble(path, error, None),
    }
}

/// A running server. Dropped without [`Server::stop`], its threads run on.
pub struct Server {
    cores: Cores<Message>,
    acceptors: Vec<Acceptor>,
    places: Places,
    stats: Arc<DiskStats>,
}

impl Server {
    /// Opens the channels on all cores, then listens.
    ///
    /// # Errors
    /// When that is not possible; then nothing of it is left.
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        check(config)?;
        let places = Places::new(Arc::new(AtomicUsize::new(0)), config.max_connections);
        let (cores, acceptors, stats) = (Cores::default(), Vec::new(), Arc::<DiskStats>::default());
        let mut server = Self { cores, acceptors, places, stats };
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
            name: "nbd".to_owned(),
            ..ReactorConfig::default()
        };
        let cores = config.cores.iter().copied();
        let started = self.cores.start(&reactor, cores, |_| {
            let (exports, tls) = (config.exports.clone(), config.tls.clone());
            let counters = self.stats.core();
            let options = (tls, config.hold_time);
            move |cx: &mut Context<'_>| Core::new(cx, exports, options, counters)
        });
        started.map_err(ServerError::Core)?;
        let mut own = 0..;
        self.cores.tell(|| {
            let (cores, own) = (self.cores.senders(), own.next().unwrap_or(0));
            Message::Peers(Peers { cores, own })
        });
        for endpoint in &config.endpoints {
            let (cores, places) = (self.cores.senders(), self.places.clone());
            self.acceptors.push(Acceptor::start(endpoint, cores, places)?);
        }
        Ok(())
    }

    /// The other end of a connection that negotiates nothing: its client knows the first export, and requests may begin.
    /// Replies are simple ones.
    ///
    /// # Errors
    /// When there are as many connections as there may be, or no descriptors.
    pub fn connect(&self) -> Result<OwnedFd, ServerError> {
        let failed = ServerError::Connect;
        let place = self.places.take(WITHIN.to_owned());
        let place = place.ok_or_else(|| failed(io::Error::other(TOO_MANY)))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let ours = Socket::from_unix(ours.into()).map_err(failed)?;
        let core = self.cores.first().ok_or_else(|| failed(io::Error::other("it has no core")))?;
        core.send(Message::Agreed(ours, place))
            .map_err(|_| failed(io::Error::other("its core has ended")))?;
        Ok(theirs.into())
    }

    /// Where it listens, with real ports, in the order of the configuration.
    #[must_use]
    pub fn listening(&self) -> Vec<Listening> {
        self.acceptors.iter().map(|acceptor| acceptor.listening().clone()).collect()
    }

    /// What it has done for its clients, over all exports.
    #[must_use]
    pub fn totals(&self) -> DiskTotals {
        self.stats.totals()
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

    /// Accepts no more connections, lets requests that have come end and be answered within 5 s, and closes the
    /// connections.
    pub fn stop(mut self) {
        for acceptor in self.acceptors.drain(..) {
            acceptor.stop();
        }
        self.cores.tell(|| Message::Stop);
        self.cores.join();
    }
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    const MAX_NAME_BYTES: usize = 4096;
    let invalid = |text: String| Err(ServerError::Invalid(text));
    if config.exports.is_empty() || config.exports.len() > MAX_EXPORTS {
        return invalid(format!("a server has 1 to {MAX_EXPORTS} exports"));
    }
    if config.cores.is_empty() {
        return invalid("a server needs a core".to_owned());
    }
    for (index, export) in config.exports.iter().enumerate() {
        if export.name.len() > MAX_NAME_BYTES || export.description.len() > MAX_NAME_BYTES {
            return invalid(format!("an export's name has at most {MAX_NAME_BYTES} bytes"));
        }
        if config.exports[..index].iter().any(|other| other.name == export.name) {
            return invalid(format!("there are two exports of the name `{}`", export.name));
        }
    }
    Ok(())
}
