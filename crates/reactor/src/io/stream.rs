//! The seam for byte streams that the kernel's TCP does not carry as they are: TLS, another TCP stack.
//!
//! A [`StreamProvider`] is chosen per listener and per connection. It turns a fresh [`Socket`] into one
//! whose bytes go through a [`ByteStream`] of its own, or listens and connects itself. A core adopts and
//! uses such a socket as any other. Sockets without a provider do not use this module.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::io::RecvBuffers;
use crate::io::socket::Socket;
use crate::send::SendBatch;
use crate::sim::SimSocket;

/// Whether a controller of this number is there.
pub type IsController = Arc<dyn Fn(u16) -> bool + Send + Sync>;

/// A connected byte stream, driven by the core that has adopted its socket.
///
/// No call blocks. `WouldBlock` means that the call can succeed later, and is only returned when the
/// [`Source`] had nothing to give or to take. Any other error is final: the same call gives it again.
///
/// At each try the core calls [`Self::advance`], then [`Self::receive`] if a receive waits, then
/// [`Self::transmit`] if a send waits. It tries when an operation is started and when the source has
/// news; while it spins, more often. A handshake needs no phases of its own: until it is done, `advance`
/// drives it and the other two give `WouldBlock`. The owner of a socket bounds the time until the first
/// bytes come, so a handshake that stalls ends with its connection.
pub trait ByteStream: Send {
    /// Goes on with what the stream does by itself: its handshake, and output that it has taken over
    /// and still owes. `Ok` when nothing of that is left.
    ///
    /// # Errors
    /// `WouldBlock` while something is left that waits for news; `Interrupted` when it could go on and leaves the core to
    /// others first, as after a long computation: the next poll tries again. Else the connection is lost.
    fn advance(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Puts bytes where the next ones belong, and gives their number, at least 1 and at most
    /// [`RecvBuffers::room`]; 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when there are none; else the connection is lost. An end that may be forged is an
    /// error, too.
    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize>;

    /// Takes bytes from the front of a batch that is not empty, and gives their number, at least 1.
    /// The caller removes them. What the stream takes and cannot pass on at once, it keeps, and owes:
    /// the send completes when [`Self::advance`] gives `Ok`.
    ///
    /// # Errors
    /// `WouldBlock` when it takes none now; else the connection is lost.
    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize>;

    /// The core spins, and the source has told nothing since a try that ended with a wait. Gives whether a try may find
    /// something all the same. A stream of a device in user space looks here, and makes no system call.
    fn spin(&mut self) -> bool {
        true
    }

    /// Bytes that [`Self::receive`] could give at once; 0 if that is not known.
    fn unread(&mut self) -> usize;

    /// What the stream waits for at its source when operations wait to receive (`read`), to send
    /// (`write`), both or neither. A handshake and output that is owed wait without any operation.
    fn interest(&self, waiting: Interest) -> Interest {
        waiting
    }

    /// Where news come from; the same for as long as the stream lives.
    fn source(&self) -> Source<'_>;

    /// The kernel's socket under the stream, for options and for where packets come in.
    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The name that the handshake has proved the peer to have, once it has.
    fn peer_identity(&self) -> Option<&str> {
        None
    }

    /// The owner has closed the socket: operations come back after this call, and the stream is dropped soon.
    /// Nothing may use the memory of a batch any longer that the stream has taken and owes.
    /// Last words, such as an alert, leave now or never. With `reset`, output that is on its way is
    /// discarded.
    fn close(&mut self, reset: bool);
}

/// What a stream waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, the end of the stream, or an error.
    pub read: bool,
    /// Room for output.
    pub write: bool,
}

impl Interest {
    /// Nothing.
    pub const NONE: Interest = Interest { read: false, write: false };
    /// To read.
    pub const READ: Interest = Interest { read: true, write: false };
    /// To write.
    pub const WRITE: Interest = Interest { read: false, write: true };

    /// True if it waits for nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Interest::NONE
    }

    /// True if `other` waits for nothing more.
    pub(crate) fn covers(self, other: Interest) -> bool {
        (self.read || !other.read) && (self.write || !other.write)
    }

    /// As poll(2) takes it.
    pub(crate) fn poll_events(self) -> libc::c_short {
        let read = if self.read { libc::POLLIN | libc::POLLRDHUP } else { 0 };
        let write = if self.write { libc::POLLOUT } else { 0 };
        read | write
    }
}

/// Where a stream or a listener gets its news from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    inner: Inner<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Inner<'a> {
    Descriptor(BorrowedFd<'a>),
    Polled,
    Simulated(&'a SimSocket),
}

impl<'a> Source<'a> {
    /// A descriptor that poll(2) can wait for, which no other stream of the core has as its source.
    #[must_use]
    pub fn descriptor(fd: BorrowedFd<'a>) -> Source<'a> {
        Source { inner: Inner::Descriptor(fd) }
    }

    /// No source: only polling tells what a stack in user space has. Its core never sleeps.
    #[must_use]
    pub fn polled() -> Source<'a> {
        Source { inner: Inner::Polled }
    }

    pub(crate) fn simulated(end: &'a SimSocket) -> Source<'a> {
        Source { inner: Inner::Simulated(end) }
    }

    pub(crate) fn is_polled(self) -> bool {
        matches!(self.inner, Inner::Polled)
    }

    /// The descriptor, `None` if there is none to wait for; `Unsupported` for what is simulated.
    pub(crate) fn real(self) -> io::Result<Option<BorrowedFd<'a>>> {
        match self.inner {
            Inner::Descriptor(fd) => Ok(Some(fd)),
            Inner::Polled => Ok(None),
            Inner::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The simulated end, or `Unsupported` for what is real.
    pub(crate) fn as_simulated(self) -> io::Result<&'a SimSocket> {
        match self.inner {
            Inner::Simulated(end) => Ok(end),
            Inner::Descriptor(_) | Inner::Polled => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// What makes the byte streams of a listener or of a connection.
///
/// Over the kernel's TCP, or the simulated one, [`Self::accepted`] and [`Self::connected`] take a
/// fresh socket apart ([`Socket::into_transport`]) and give one with a stream around it
/// ([`Socket::provided`]). A provider with a stack of its own makes its sockets itself.
pub trait StreamProvider: Send + Sync + fmt::Debug {
    /// Wraps a connection that the kernel has accepted. Does not block, and does no handshake yet.
    ///
    /// # Errors
    /// The connection is closed, unseen by its owner.
    fn accepted(&self, socket: Socket) -> io::Result<Socket>;

    /// Wraps a connection that the kernel has made. Does not block, and does no handshake yet.
    ///
    /// # Errors
    /// The connection is lost, with this error.
    fn connected(&self, socket: Socket) -> io::Result<Socket>;

    /// Whether its connections are TLS 1.3, as listeners tell hosts.
    fn is_secure(&self) -> bool {
        false
    }

    /// Whether it accepts connections without TLS as well. Such a connection is there to make a key for TLS.
    fn takes_plain(&self) -> bool {
        false
    }

    /// Whether its connections are NVMe/RDMA, as listeners tell hosts.
    fn is_rdma(&self) -> bool {
        false
    }

    /// Tells it how to find out whether a controller of this number is there, for listeners of an address. Over RDMA, hosts say
    /// the controller of a queue before they have the queue. It is called before [`Self::listen`].
    fn know_controllers(&self, address: SocketAddr, is_there: IsController) {
        let _ = (address, is_there);
    }

    /// Listens with a stack of its own; `None`: the kernel listens.
    fn listen(&self, address: SocketAddr) -> Option<io::Result<Box<dyn StreamListener>>> {
        let _ = address;
        None
    }

    /// Waits for the news of a listener's connections on another core than the one that listens; `None`: there is nothing to
    /// wait for. It is called on that core, before [`Self::listen`] is called on the other. What it gives accepts no
    /// connection.
    fn attend(
        &self,
        address: SocketAddr,
        core: usize,
    ) -> Option<io::Result<Box<dyn StreamListener>>> {
        let _ = (address, core);
        None
    }

    /// Connects with a stack of its own; `None`: the kernel connects. The socket is there at once, and
    /// connecting is the first part of its handshake.
    fn connect(&self, address: SocketAddr, source: Option<IpAddr>) -> Option<io::Result<Socket>> {
        let _ = (address, source);
        None
    }
}

/// A listener of a stack of its own.
pub trait StreamListener: Send {
    /// The next connection.
    ///
    /// # Errors
    /// `WouldBlock` when there is none. Any other error is reported to the owner, and the next news of
    /// the source start the next try.
    fn accept(&mut self) -> io::Result<Socket>;

    /// [`ByteStream::spin`] of a listener: whether [`Self::accept`] may find something without news of the source.
    fn spin(&mut self) -> bool {
        true
    }

    /// The real address.
    fn local_address(&self) -> SocketAddr;

    /// Where news come from; the same for as long as the listener lives.
    fn source(&self) -> Source<'_>;

    /// Takes no more connections: when this returns, the address is free. The owner has closed the
    /// listener; the value lives on for as long as its source is watched.
    fn stop(&mut self);
}
