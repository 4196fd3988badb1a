//! The HTTP server of a daemon: calls, metrics, health and a page.
//!
//! It is off until asked for. One thread serves all connections; what may block runs on threads of its own, and none
//! of it on a reactor. [`guard`] decides who may do what before a route sees a request. The bytes of HTTP are hyper's.

mod answer;
mod attempts;
mod connection;
mod counts;
mod guard;
mod health;
mod metrics;
mod page;
mod places;
mod rpc;
mod server;
mod token;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

use raceline_reactor::inheritance::{self, Offer};

pub use page::pages;
pub use server::HttpServer;
pub use token::{MIN_TOKEN_BYTES, Token, TokenError};

/// Connections at a time. A further one has the place of one that is idle, or is told that there are too many and closed.
pub const MAX_CONNECTIONS: usize = 64;
/// The most of them from one address: an IPv4 address, or the first 64 bits of an IPv6 address.
pub const MAX_CONNECTIONS_OF_ADDRESS: usize = MAX_CONNECTIONS / 2;

/// How long the server waits for a client.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a listener serves besides health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// `POST /` and `POST /rpc`: calls.
    pub rpc: bool,
    /// `GET /metrics`.
    pub metrics: bool,
    /// The pages.
    pub page: bool,
}

impl Parts {
    /// What one of both has.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            rpc: self.rpc || other.rpc,
            metrics: self.metrics || other.metrics,
            page: self.page || other.page,
        }
    }
}

/// A file that is served as it is.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Its path, which begins with `/`.
    pub path: &'static str,
    /// Its Content-Type.
    pub content_type: &'static str,
    /// Its Content-Security-Policy.
    pub policy: &'static str,
    /// Its bytes.
    pub body: &'static [u8],
}

/// A socket that listens, and what is served on it.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    parts: Parts,
    /// A process that takes the place of this one gets the socket.
    offer: Option<Offer>,
}

/// Has the listener of an address use this socket, which the service manager has made.
pub fn bring_socket(address: SocketAddr, socket: OwnedFd) {
    inheritance::bring(handed_name(address), socket);
}

fn handed_name(address: SocketAddr) -> String {
    format!("the HTTP listener at {address}")
}

impl Listener {
    /// Listens; port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn bind(address: SocketAddr, parts: Parts) -> std::io::Result<Self> {
        let socket = match inheritance::take(&handed_name(address)) {
            Some(handed) => TcpListener::from(handed),
            None => TcpListener::bind(address)?,
        };
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let offer = inheritance::offer(handed_name(address), &socket);
        Ok(Self { socket, address, parts, offer })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What a server needs.
#[derive(Debug)]
pub struct HttpConfig {
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// Whoever has this one may change things.
    pub token: Option<Token>,
    /// Whoever has this one may look, also from elsewhere.
    pub read_token: Option<Token>,
    /// Names of this machine that clients may use beside its addresses and `localhost`.
    pub names: Vec<String>,
    /// What listeners with [`Parts::page`] serve.
    pub pages: Vec<Page>,
    /// How long a client may take for the head of a request, for its body, and for nothing of an answer; and how long a
    /// connection may do nothing.
    pub patience: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            token: None,
            read_token: None,
            names: Vec::new(),
            pages: Vec::new(),
            patience: PATIENCE,
        }
    }
}
