//! Listening sockets: a thread for each accepts connections, and deals them to the cores in turn.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use raceline_reactor::private_socket::{self, SocketFile};
use raceline_reactor::socket::KeepAlive;
use raceline_reactor::{Sender, Socket};
use socket2::{Domain, Protocol, Type};

use super::ServerError;
use super::core::Message;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why there is no place for a client.
pub(super) const TOO_MANY: &str = "the server has as many connections as it may have";

/// How long accepting pauses when descriptors or memory have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// When a client that has been silent is asked whether it is still there.
const KEEP_ALIVE: KeepAlive =
    KeepAlive { idle: Duration::from_secs(30), interval: Duration::from_secs(10), probes: 3 };

/// How long data may stay unacknowledged. A client that has vanished holds its place and its memory for that long.
const ACK_TIME: Duration = Duration::from_secs(60);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address; port 0 is any that is free.
    Tcp(SocketAddr),
    /// A socket in the file system, for the user who runs this process.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Where a server listens, with the real port.
pub type Listening = Endpoint;

/// Room for connections, over all acceptors.
#[derive(Clone, Debug)]
pub(super) struct Places {
    used: Arc<AtomicUsize>,
    most: usize,
    taken: Arc<AtomicU64>,
}

/// The place of one connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    used: Arc<AtomicUsize>,
    peer: String,
    number: u64,
}

impl Place {
    /// Whose connection it is, for messages.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Which of all connections it is, in the order in which they were accepted.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Places {
    pub(super) fn new(used: Arc<AtomicUsize>, most: usize) -> Self {
        Self { used, most, taken: Arc::default() }
    }

    /// Room for a connection of this peer.
    pub(super) fn take(&self, peer: String) -> Option<Place> {
        let more = |used: usize| (used < self.most).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Place { used: Arc::clone(&self.used), peer, number })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A listening socket and its thread.
pub(super) struct Acceptor {
    listener: Arc<socket2::Socket>,
    listening: Listening,
    /// The file of a socket that has one.
    file: Option<SocketFile>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    pub(super) fn start(
        endpoint: &Endpoint,
        cores: Vec<Sender<Message>>,
        places: Places,
    ) -> Result<Self, ServerError> {
        let failed = |source: io::Error| ServerError::Listen { endpoint: endpoint.clone(), source };
        let (listener, listening, file) = match endpoint {
            Endpoint::Tcp(address) => {
                let (listener, listening) = listen_tcp(*address).map_err(failed)?;
                (listener, listening, None)
            }
            Endpoint::Unix(path) => {
                let (listener, file) =
                    private_socket::listen(path, private_socket::OWNER, BACKLOG)?;
                (OwnedFd::from(listener).into(), endpoint.clone(), Some(file))
            }
        };
        let listener = Arc::new(listener);
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("nbd-accept".to_owned()).spawn({
            let (listener, stopping) = (Arc::clone(&listener), Arc::clone(&stopping));
            let listening = listening.clone();
            move || accept_all(&listener, &listening, &stopping, &cores, &places)
        });
        let thread = thread.map_err(|error| {
            if let Some(file) = &file {
                file.remove();
            }
            failed(error)
        })?;
        Ok(Self { listener, listening, file, stopping, thread })
    }

    pub(super) fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Closes the socket, and removes its file.
    pub(super) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(file) = &self.file {
            file.remove();
        }
        // Ends the accept(2) that waits.
        if let Err(error) = self.listener.shutdown(Shutdown::Both) {
            tracing::debug!("shutdown of a listening socket: {error}");
        }
        if self.thread.join().is_err() {
            tracing::error!("the thread that accepts NBD connections has panicked");
        }
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<(socket2::Socket, Listening)> {
    let socket =
        socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let real = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, Endpoint::Tcp(real)))
}

fn accept_all(
    listener: &socket2::Socket,
    listening: &Listening,
    stopping: &AtomicBool,
    cores: &[Sender<Message>],
    places: &Places,
) {
    let mut cores = cores.iter().cycle();
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::warn!("accepting NBD connections pauses: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let peer = match address.as_socket() {
            Some(address) => address.to_string(),
            // Clients of a socket in the file system have no names.
            None => listening.to_string(),
        };
        let Some(place) = places.take(peer.clone()) else {
            let max = places.most;
            tracing::warn!(event = "refused", peer, max, "refused an NBD client: {TOO_MANY}");
            continue;
        };
        let socket = match take_over(socket.into(), listening) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(peer, "an NBD client was gone before it was served: {error}");
                continue;
            }
        };
        let Some(core) = cores.next() else { continue };
        if core.send(Message::Connection(socket, place)).is_err() {
            tracing::error!("an NBD connection was closed: its core has ended");
        }
    }
}

/// Takes over a connection. The kernel ends one of TCP when its client has vanished.
fn take_over(socket: OwnedFd, listening: &Listening) -> io::Result<Socket> {
    if matches!(listening, Endpoint::Unix(_)) {
        return Socket::from_unix(socket);
    }
    let socket = Socket::from_fd(socket)?;
    socket.set_keep_alive(KEEP_ALIVE)?;
    socket.set_user_timeout(ACK_TIME)?;
    Ok(socket)
}

/// Whether it is the error of a connection that has gone before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::SockRef;

    use super::*;

    #[test]
    fn the_kernel_ends_connections_whose_client_has_vanished() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let same = accepted.try_clone().unwrap();
        let _socket = take_over(accepted.into(), &Endpoint::Tcp(address)).unwrap();
        let same = SockRef::from(&same);
        assert!(same.keepalive().unwrap());
        assert_eq!(same.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(same.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
        assert_eq!(same.tcp_keepalive_retries().unwrap(), 3);
        assert_eq!(same.tcp_user_timeout().unwrap(), Some(Duration::from_secs(60)));
    }
}
