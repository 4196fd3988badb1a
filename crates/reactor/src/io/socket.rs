//! Connected sockets on their way between cores, and how listening ones are set up.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, TcpKeepalive, Type};

use crate::io::Outcome;
use crate::io::socket_option::{self, BusyPoll};
use crate::io::stream::ByteStream;
use crate::io::transport::Transport;
use crate::sim::SimSocket;

/// Connections that may wait to be accepted (the kernel caps it at net.core.somaxconn).
pub const LISTEN_BACKLOG: i32 = 1024;

/// How long accepting pauses when descriptors or memory have run out: trying again at once
/// would spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Kernel buffer sizes of a socket; `None` leaves them to the kernel's autotuning, which is
/// right unless a test wants small ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferSizes {
    /// SO_SNDBUF in bytes.
    pub send: Option<usize>,
    /// SO_RCVBUF in bytes.
    pub receive: Option<usize>,
}

/// When the kernel asks a peer that has been silent whether it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long a peer may be silent before it is asked (TCP_KEEPIDLE), in whole seconds.
    pub idle: Duration,
    /// How long it waits before it asks again (TCP_KEEPINTVL), in whole seconds.
    pub interval: Duration,
    /// How many questions without an answer end the connection (TCP_KEEPCNT).
    pub probes: u32,
}

/// What a socket of the kernel is told before it listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenOptions<'a> {
    /// The priority of its answers to requests for connections (SO_PRIORITY); 0: the kernel's. Accepted
    /// sockets do not inherit it: [`Socket::set_priority`].
    pub priority: u32,
    /// It is one of a group of listeners on one address (SO_REUSEPORT): the first to listen gets the
    /// requests that the first of these CPUs processes, and so on. Requests that other CPUs process are
    /// spread by a hash. All of a group are closed together.
    pub group: Option<&'a [usize]>,
}

/// What a socket of the kernel is told before it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The address of this machine to connect from; `None`: the kernel chooses it.
    pub source: Option<IpAddr>,
    /// The priority of all that it sends, the request for the connection included (SO_PRIORITY); 0: the
    /// kernel's.
    pub priority: u32,
    /// The type of service of all that it sends (IP_TOS), or its traffic class with IPv6 (IPV6_TCLASS); 0: the
    /// kernel's.
    pub tos: u8,
    /// The interface by which all its packets leave and come (SO_BINDTODEVICE); `None`: the kernel chooses.
    pub interface: Option<Interface>,
}

/// The name of a network interface of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interface {
    name: [u8; Self::NAME_MAX],
    len: usize,
}

impl Interface {
    /// Bytes of the longest name.
    pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

    /// The interface of this name; `None` for what is no name of an interface: it has 1 to 15 letters, without spaces,
    /// slashes and NUL.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_other = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | 0);
        if bytes.is_empty() || bytes.len() > Self::NAME_MAX || bytes.iter().any(is_other) {
            return None;
        }
        let mut name = [0; Self::NAME_MAX];
        name[..bytes.len()].copy_from_slice(bytes);
        Some(Self { name, len: bytes.len() })
    }

    fn bytes(&self) -> &[u8] {
        &self.name[..self.len]
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.bytes()))
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interface({self})")
    }
}

/// A connected socket that belongs to no core yet: the result of an accept or connect. It can
/// be sent to another thread and adopted there. Dropped, it is closed.
pub struct Socket {
    inner: Inner,
    local: SocketAddr,
    peer: SocketAddr,
}

/// What carries its bytes.
pub(crate) enum Inner {
    /// The kernel's TCP.
    Os(OwnedFd),
    /// The simulated network.
    Simulated(SimSocket),
    /// A provider's stream.
    Provided(Box<dyn ByteStream>),
}

impl Socket {
    /// Takes over a connected TCP socket: makes it non-blocking and turns Nagle's algorithm
    /// off, since whole batches are sent at once.
    ///
    /// # Errors
    /// When it is not connected (any more), or an option is refused.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Socket> {
        let socket = SockRef::from(&fd);
        let peer = ip_address(&socket.peer_addr()?)?;
        let local = ip_address(&socket.local_addr()?)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        Ok(Socket { inner: Inner::Os(fd), local, peer })
    }

    /// Takes over a connected stream socket of the file system: makes it non-blocking. Such a socket has no
    /// address here: both ends are 0.0.0.0 and port 0.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    pub fn from_unix(fd: OwnedFd) -> io::Result<Socket> {
        SockRef::from(&fd).set_nonblocking(true)?;
        let nowhere = SocketAddr::from(([0; 4], 0));
        Ok(Socket { inner: Inner::Os(fd), local: nowhere, peer: nowhere })
    }

    /// A socket of the kernel that a core has given up.
    pub(crate) fn released(fd: OwnedFd, (local, peer): (SocketAddr, SocketAddr)) -> Socket {
        Socket { inner: Inner::Os(fd), local, peer }
    }

    /// A connected TCP socket of another process, which has set its options.
    pub fn of_process(fd: OwnedFd, local: SocketAddr, peer: SocketAddr) -> Socket {
        Self::released(fd, (local, peer))
    }

    pub(crate) fn simulated(socket: SimSocket, local: SocketAddr, peer: SocketAddr) -> Socket {
        Socket { inner: Inner::Simulated(socket), local, peer }
    }

    /// A socket whose bytes a provider's stream carries between these addresses.
    pub fn provided(stream: Box<dyn ByteStream>, local: SocketAddr, peer: SocketAddr) -> Socket {
        Socket { inner: Inner::Provided(stream), local, peer }
    }

    /// Whether a provider's stream carries its bytes.
    pub fn is_provided(&self) -> bool {
        matches!(self.inner, Inner::Provided(_))
    }

    /// The provider's stream that carries its bytes, if one does: for a driver of cores that has no reactor.
    pub fn into_stream(self) -> Option<Box<dyn ByteStream>> {
        match self.inner {
            Inner::Provided(stream) => Some(stream),
            Inner::Os(_) | Inner::Simulated(_) => None,
        }
    }

    /// Takes a socket apart for a provider's stream to go over it.
    ///
    /// # Errors
    /// `Unsupported` when it is a provider's already.
    pub fn into_transport(self) -> io::Result<Transport> {
        match self.inner {
            Inner::Os(fd) => Ok(Transport::of_kernel(fd)),
            Inner::Simulated(end) => Ok(Transport::of_simulation(end)),
            Inner::Provided(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The address of this end.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The address of the other end.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// The kernel's socket that carries the bytes in the end; `None` in simulation, and for a stream
    /// of another stack. Options below are those of this socket, and do nothing without one.
    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.inner {
            Inner::Os(fd) => Some(fd.as_fd()),
            Inner::Simulated(_) => None,
            Inner::Provided(stream) => stream.kernel_socket(),
        }
    }

    /// Fixes the kernel's buffer sizes; does nothing where no socket of the kernel carries the bytes.
    ///
    /// # Errors
    /// The error of setsockopt(2).
    pub fn set_buffer_sizes(&self, sizes: BufferSizes) -> io::Result<()> {
        match self.kernel_socket() {
            Some(fd) => set_buffer_sizes(&SockRef::from(&fd), sizes),
            None => Ok(()),
        }
    }

    /// The receive queue, by its NAPI id, from which the last packet came; `None` when it is not
    /// known, as on loopback, in simulation, and without the kernel's TCP.
    pub fn incoming_napi_id(&self) -> Option<NonZeroU32> {
        socket_option::incoming_napi_id(&self.kernel_socket()?)
    }

    /// The CPU that processed the last packet; `None` when it is not known, as in simulation, and without
    /// the kernel's TCP.
    pub fn incoming_cpu(&self) -> Option<usize> {
        socket_option::incoming_cpu(&self.kernel_socket()?)
    }

    /// The mark that the packet filter has given the connection (SO_MARK); `None` when it has none, in
    /// simulation, and without the kernel's TCP.
    pub fn mark(&self) -> Option<NonZeroU32> {
        socket_option::mark(&self.kernel_socket()?)
    }

    /// Has a receive that finds nothing look into the receive queue itself for at most `time`,
    /// rather than wait for an interrupt; does nothing where no socket of the kernel carries the bytes.
    ///
    /// # Errors
    /// As [`check_busy_poll`].
    pub fn set_busy_poll(&self, time: Duration) -> io::Result<()> {
        match self.kernel_socket() {
            Some(fd) => socket_option::set_busy_poll(&fd, time).map(drop),
            None => Ok(()),
        }
    }

    /// Gives what is sent a priority for queueing disciplines; does nothing where no socket of the
    /// kernel carries the bytes.
    ///
    /// # Errors
    /// As [`check_priority`].
    pub fn set_priority(&self, priority: u32) -> io::Result<()> {
        match self.kernel_socket() {
            Some(fd) => socket_option::set_priority(&fd, priority),
            None => Ok(()),
        }
    }

    /// The priority of what is sent; `None` where no socket of the kernel carries the bytes.
    ///
    /// # Errors
    /// The error of getsockopt(2).
    pub fn priority(&self) -> io::Result<Option<u32>> {
        self.kernel_socket().map(|fd| socket_option::priority(&fd)).transpose()
    }

    /// Has the kernel give the connection up when data stay unacknowledged for this long
    /// (TCP_USER_TIMEOUT); does nothing where no socket of the kernel carries the bytes.
    ///
    /// # Errors
    /// The error of setsockopt(2).
    pub fn set_user_timeout(&self, time: Duration) -> io::Result<()> {
        let Some(fd) = self.kernel_socket() else { return Ok(()) };
        // The kernel takes a number of milliseconds that is not negative as an int.
        let time = time.min(Duration::from_millis(i32::MAX.unsigned_abs().into()));
        SockRef::from(&fd).set_tcp_user_timeout(Some(time))
    }

    /// Has the kernel end the connection of a peer that has vanished (SO_KEEPALIVE); does nothing where no
    /// socket of the kernel carries the bytes.
    ///
    /// # Errors
    /// The error of setsockopt(2).
    pub fn set_keep_alive(&self, keep_alive: KeepAlive) -> io::Result<()> {
        let Some(fd) = self.kernel_socket() else { return Ok(()) };
        let KeepAlive { idle, interval, probes } = keep_alive;
        let times = TcpKeepalive::new().with_time(idle).with_interval(interval);
        SockRef::from(&fd).set_tcp_keepalive(&times.with_retries(probes))
    }

    /// Has the kernel acknowledge what is received at once (TCP_QUICKACK), until it sees that requests and
    /// answers alternate; does nothing where no socket of the kernel carries the bytes.
    ///
    /// # Errors
    /// The error of setsockopt(2).
    pub fn set_quick_ack(&self) -> io::Result<()> {
        let Some(fd) = self.kernel_socket() else { return Ok(()) };
        SockRef::from(&fd).set_tcp_quickack(true)
    }

    /// What carries its bytes, for the back end that adopts it.
    pub(crate) fn into_inner(self) -> Inner {
        self.inner
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({} -> {})", self.local, self.peer)
    }
}

/// Whether this process may give its sockets this priority.
///
/// # Errors
/// `PermissionDenied`, saying what is needed, for a priority above 6 where the kernel wants CAP_NET_ADMIN
/// for that.
pub fn check_priority(priority: u32) -> io::Result<()> {
    let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket_option::set_priority(&socket, priority)
}

/// Whether this process may have its sockets busy poll for `time`. Warns if it may, but may not prefer
/// that to interrupts.
///
/// # Errors
/// `PermissionDenied`, saying what is needed, where the kernel wants CAP_NET_ADMIN for a `time`
/// above `net.core.busy_read` and this process lacks it; `Unsupported` when the kernel is built
/// without it.
pub fn check_busy_poll(time: Duration) -> io::Result<()> {
    let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let time_us = time.as_micros();
    match socket_option::set_busy_poll(&socket, time)? {
        BusyPoll::Preferred => {
            tracing::info!("receives busy poll: {time_us} us, preferred over interrupts");
        }
        BusyPoll::Plain => tracing::warn!(
            "receives busy poll for {time_us} us without preference over interrupts: that needs \
             CAP_NET_ADMIN"
        ),
    }
    Ok(())
}

/// A non-blocking listening socket and its real address.
pub(crate) fn listen(
    address: SocketAddr,
    options: ListenOptions<'_>,
) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = for_listen(address)?;
    socket.set_nonblocking(true)?;
    // Accepted sockets inherit it.
    socket.set_tcp_nodelay(true)?;
    if options.priority != 0 {
        socket_option::set_priority(&socket, options.priority)?;
    }
    if options.group.is_some() {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    if let Some(cpus) = options.group {
        socket_option::steer_by_cpu(&socket, cpus)?;
    }
    let address = ip_address(&socket.local_addr()?)?;
    Ok((socket.into(), address))
}

/// The address of a listening socket that another process has set up.
pub(crate) fn address_of_listener(fd: &OwnedFd) -> io::Result<SocketAddr> {
    ip_address(&SockRef::from(fd).local_addr()?)
}

fn for_listen(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket =
        socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted target must not wait for connections of its former life to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // `[::]:4420` and `0.0.0.0:4420` are two listeners, whichever comes first.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Whether nobody listens on an address. The kernel would let the first listener of a group
/// ([`ListenOptions::group`]) join a group of another process of the same user.
///
/// # Errors
/// `AddrInUse` if somebody does, or another error of bind(2).
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    for_listen(address)?.bind(&address.into())
}

/// A non-blocking socket that is to be connected to `address`.
pub(crate) fn for_connect(address: SocketAddr, options: ConnectOptions) -> io::Result<OwnedFd> {
    let socket =
        socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    let fd = OwnedFd::from(socket);
    if options.priority != 0 {
        socket_option::set_priority(&fd, options.priority)?;
    }
    if options.tos != 0 {
        set_tos(&fd, address, options.tos)?;
    }
    if let Some(interface) = options.interface {
        let bound = SockRef::from(&fd).bind_device(Some(interface.bytes()));
        bound.map_err(|error| interface_error(interface, error))?;
    }
    if let Some(source) = options.source {
        bind_source(&fd, address, source).map_err(|error| source_error(source, error))?;
    }
    Ok(fd)
}

fn set_tos(fd: &OwnedFd, address: SocketAddr, tos: u8) -> io::Result<()> {
    let set = match address {
        SocketAddr::V4(_) => SockRef::from(fd).set_tos_v4(tos.into()),
        SocketAddr::V6(_) => SockRef::from(fd).set_tclass_v6(tos.into()),
    };
    set.map_err(|error| {
        io::Error::new(error.kind(), format!("type of service {tos} cannot be set: {error}"))
    })
}

fn interface_error(interface: Interface, error: io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "before Linux 5.7 it needs CAP_NET_RAW".to_owned(),
        _ if error.raw_os_error() == Some(libc::ENODEV) => {
            "there is none (`ip link` lists those that there are)".to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("cannot use the interface {interface}: {advice}"))
}

/// Binds to an address of this machine. The port is chosen when the socket is connected, so that
/// connections to other places may have the same port.
fn bind_source(fd: &OwnedFd, address: SocketAddr, source: IpAddr) -> io::Result<()> {
    let source = match (address, source) {
        (SocketAddr::V4(_), IpAddr::V4(source)) => SocketAddr::from((source, 0)),
        // A link-local address is complete only with its link.
        (SocketAddr::V6(to), IpAddr::V6(source)) => {
            SocketAddrV6::new(source, 0, 0, to.scope_id()).into()
        }
        _ => {
            let text = format!("it is of another family than {}", address.ip());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    };
    socket_option::bind_address_no_port(fd)?;
    SockRef::from(fd).bind(&source.into())
}

fn source_error(source: IpAddr, error: io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have it (`ip address` lists those it has)".to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("cannot use the source address {source}: {advice}"))
}

/// Makes the coming close(2) discard pending output and reset the connection.
pub(crate) fn reset_on_close(fd: &OwnedFd) {
    // Fails only for what is no socket.
    if let Err(error) = SockRef::from(fd).set_linger(Some(Duration::ZERO)) {
        tracing::debug!("SO_LINGER: {error}");
    }
}

/// Prepares the close of a socket: an orderly end, or a reset of the connection. If the socket has sent
/// by reference, [`reset_on_close`] was called then, and `copied_since` bytes were sent since. Memory
/// that was sent by reference goes back to its owner: unless the peer has acknowledged all of it, all
/// output is dropped now, and the connection reset.
pub(crate) fn prepare_close(fd: &OwnedFd, copied_since: Option<usize>, reset: bool) {
    match copied_since {
        Some(copied) if socket_option::unacknowledged(fd) > copied => {
            if let Err(error) = rustix::net::connect_unspec(fd) {
                tracing::debug!("connect(2) to nothing: {error}");
            }
        }
        _ if reset => reset_on_close(fd),
        Some(_) => {
            if let Err(error) = SockRef::from(fd).set_linger(None) {
                tracing::debug!("SO_LINGER: {error}");
            }
        }
        None => {}
    }
}

/// Has the kernel send what it keeps until more comes (MSG_MORE).
pub(crate) fn uncork(fd: &OwnedFd) {
    // TCP_NODELAY is on already. To set it again sends what waits (tcp(7)).
    if let Err(error) = SockRef::from(fd).set_tcp_nodelay(true) {
        tracing::debug!("TCP_NODELAY: {error}");
    }
}

/// Stops a listening socket at once, even while an operation holds it open.
pub(crate) fn stop_listening(fd: &impl AsFd) {
    if let Err(error) = SockRef::from(fd).shutdown(std::net::Shutdown::Both) {
        tracing::debug!("shutdown of a listener: {error}");
    }
}

/// Bytes that have come and that no receive has taken yet.
pub(crate) fn unread(fd: &impl AsFd) -> usize {
    // Fails only for what is no socket.
    rustix::io::ioctl_fionread(fd).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The error for an owner that uses a socket that it has closed, or starts a second operation on one.
pub(crate) fn not_usable() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// Errors of accept(2) that concern one connection only, and not the listener.
pub(crate) fn is_transient_accept_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::EPROTO | libc::EPERM)
    )
}

/// What a listener's owner gets; nothing for a connection that was gone before it was seen.
pub(crate) fn accept_outcome(accepted: io::Result<OwnedFd>) -> Option<Outcome> {
    match accepted {
        Ok(fd) => {
            let socket = Socket::from_fd(fd).ok()?;
            let peer = socket.peer_address();
            Some(Outcome::Accepted(Ok((socket, peer))))
        }
        Err(error) if is_transient_accept_error(&error) => None,
        Err(error) => Some(Outcome::Accepted(Err(error))),
    }
}

fn set_buffer_sizes(socket: &SockRef<'_>, sizes: BufferSizes) -> io::Result<()> {
    if let Some(size) = sizes.send {
        socket.set_send_buffer_size(size)?;
    }
    if let Some(size) = sizes.receive {
        socket.set_recv_buffer_size(size)?;
    }
    Ok(())
}

fn ip_address(address: &socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::other("not an IP socket"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn listeners_give_their_real_address() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let options = ListenOptions::default();
            let (fd, address) = listen(address.parse().unwrap(), options).unwrap();
            assert_ne!(address.port(), 0);
            let stream = TcpStream::connect(address).unwrap();
            let socket = Socket::from_fd(stream.into()).unwrap();
            assert_eq!(socket.peer_address(), address);
            assert!(SockRef::from(&socket.kernel_socket().unwrap()).tcp_nodelay().unwrap());
            stop_listening(&fd);
            assert!(TcpStream::connect(address).is_err());
        }
    }

    #[test]
    fn unacknowledged_data_may_wait_so_long() {
        let options = ListenOptions::default();
        let (_listener, address) = listen("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let socket = Socket::from_fd(TcpStream::connect(address).unwrap().into()).unwrap();
        socket.set_user_timeout(Duration::from_secs(1 << 30)).unwrap();
        socket.set_user_timeout(Duration::from_millis(1024)).unwrap();
        let fd = socket.kernel_socket().unwrap();
        let time = SockRef::from(&fd).tcp_user_timeout().unwrap();
        assert_eq!(time, Some(Duration::from_millis(1024)));
    }

    #[test]
    fn peers_that_are_silent_are_asked() {
        let options = ListenOptions::default();
        let (_listener, address) = listen("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let socket = Socket::from_fd(TcpStream::connect(address).unwrap().into()).unwrap();
        let [idle, interval] = [17, 5].map(Duration::from_secs);
        socket.set_keep_alive(KeepAlive { idle, interval, probes: 4 }).unwrap();
        let fd = socket.kernel_socket().unwrap();
        let socket = SockRef::from(&fd);
        assert!(socket.keepalive().unwrap());
        let times =
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert_eq!((times, socket.tcp_keepalive_retries().unwrap()), ((idle, interval), 4));
    }

    #[test]
    fn both_families_can_have_the_same_port() {
        let options = ListenOptions::default();
        // A port that the kernel chooses for IPv6 can be in use by another program's IPv4 socket.
        let both = (0..10).any(|_| {
            let (_six, address) = listen("[::]:0".parse().unwrap(), options).unwrap();
            let four = SocketAddr::new("0.0.0.0".parse().unwrap(), address.port());
            listen(four, options).is_ok_and(|(_four, bound)| bound == four)
        });
        assert!(both, "no port of ten is free in both families");
    }

    #[test]
    fn a_socket_that_is_not_connected_is_refused() {
        let options = ConnectOptions::default();
        let fd = for_connect("127.0.0.1:1".parse().unwrap(), options).unwrap();
        assert!(Socket::from_fd(fd).is_err());
    }

    #[test]
    fn a_group_of_listeners_is_chosen_from_by_cpu() {
        let cpus: Vec<usize> = crate::thread::affinity::allowed_cores().unwrap();
        let options = ListenOptions { group: Some(&cpus), ..ListenOptions::default() };
        let (first, address) = listen("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let others = cpus[1..].iter().map(|_| listen(address, options).unwrap().0);
        let group: Vec<OwnedFd> = std::iter::once(first).chain(others).collect();
        assert_eq!(check_free(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(listen(address, ListenOptions::default()).is_err());
        for (index, &cpu) in cpus.iter().enumerate() {
            // On loopback, the sender's CPU processes the packet.
            let connect = move || {
                crate::thread::affinity::pin_to_core(cpu).unwrap();
                TcpStream::connect(address).unwrap()
            };
            let streams: Vec<TcpStream> =
                (0..8).map(|_| std::thread::spawn(connect).join().unwrap()).collect();
            for stream in &streams {
                let (accepted, peer) = SockRef::from(&group[index]).accept().unwrap();
                drop(accepted);
                let mut own = streams.iter().map(|stream| stream.local_addr().unwrap());
                assert!(own.any(|own| Some(own) == peer.as_socket()), "{stream:?}");
            }
        }
        drop(group);
        check_free(address).unwrap();
    }

    #[test]
    fn priority_is_set_before_the_first_packet() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (listener, address) = listen(any, ListenOptions { priority: 4, group: None }).unwrap();
        assert_eq!(socket_option::priority(&listener).unwrap(), 4);
        let fd =
            for_connect(address, ConnectOptions { priority: 5, ..Default::default() }).unwrap();
        assert_eq!(socket_option::priority(&fd).unwrap(), 5);
        let _ = SockRef::from(&fd).connect(&address.into());
        SockRef::from(&listener).set_nonblocking(false).unwrap();
        let (accepted, _) = SockRef::from(&listener).accept().unwrap();
        // This is why an accepted socket is told again.
        assert_eq!(socket_option::priority(&accepted).unwrap(), 0);
        let socket = Socket::from_fd(accepted.into()).unwrap();
        socket.set_priority(6).unwrap();
        assert_eq!(socket.priority().unwrap(), Some(6));
        assert_eq!(Socket::from_fd(fd).unwrap().priority().unwrap(), Some(5));
        assert!(check_priority(6).is_ok());
    }

    #[test]
    fn a_connection_has_the_type_of_service_that_it_was_given() {
        for address in ["127.0.0.1:1", "[::1]:1"] {
            let address: SocketAddr = address.parse().unwrap();
            let fd = for_connect(address, ConnectOptions { tos: 0x28, ..Default::default() });
            let fd = fd.unwrap();
            let socket = SockRef::from(&fd);
            let set = if address.is_ipv4() { socket.tos_v4() } else { socket.tclass_v6() };
            assert_eq!(set.unwrap(), 0x28, "{address}");
        }
    }

    #[test]
    fn a_connection_is_bound_to_the_interface_that_was_named() {
        let address = "127.0.0.1:1".parse().unwrap();
        let by = |name: &str| {
            let interface = Interface::named(name);
            assert!(interface.is_some(), "{name}");
            for_connect(address, ConnectOptions { interface, ..Default::default() })
        };
        match by("lo") {
            Ok(fd) => assert_eq!(SockRef::from(&fd).device().unwrap().as_deref(), Some(&b"lo"[..])),
            Err(error) => {
                assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
                eprintln!("SKIPPED: a kernel before 5.7 binds to no interface: {error}");
            }
        }
        let error = by("no-such-iface").unwrap_err().to_string();
        assert!(error.starts_with("cannot use the interface no-such-iface: "), "{error}");
        for name in ["", "sixteen-letters-", "a b", "a/b", "a\0"] {
            assert_eq!(Interface::named(name), None, "{name:?}");
        }
    }
}
