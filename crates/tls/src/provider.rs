//! The providers: TLS for a listener, and TLS for a host.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use raceline_reactor::{Socket, StreamProvider};

use crate::error::TlsError;
use crate::handshake::Handshake;
use crate::keys::{ClientPsk, PskLookup};
use crate::stream::TlsStream;

/// Handshakes of one acceptor that are under way at once. One that waits has about 32 KiB of memory.
pub const HANDSHAKES_MAX: usize = 256;

/// The right to have a handshake under way. It goes back when it is dropped.
pub(crate) struct Permit {
    under_way: Option<Arc<AtomicUsize>>,
}

impl Permit {
    fn unlimited() -> Permit {
        Permit { under_way: None }
    }

    fn one_of(under_way: &Arc<AtomicUsize>) -> Result<Permit, TlsError> {
        let before = under_way.fetch_add(1, Ordering::Relaxed);
        let permit = Permit { under_way: Some(Arc::clone(under_way)) };
        if before < HANDSHAKES_MAX { Ok(permit) } else { Err(TlsError::Busy(before)) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(under_way) = &self.under_way {
            under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// TLS for a listener of a target. A connection that it has accepted gives no byte to its owner before its host has
/// proved to know a key.
pub struct TlsAcceptor {
    lookup: Arc<dyn PskLookup>,
    under_way: Arc<AtomicUsize>,
}

impl TlsAcceptor {
    /// For hosts whose keys `lookup` finds, at the time of each handshake.
    #[must_use]
    pub fn new(lookup: Arc<dyn PskLookup>) -> TlsAcceptor {
        TlsAcceptor { lookup, under_way: Arc::default() }
    }
}

impl StreamProvider for TlsAcceptor {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        let permit = Permit::one_of(&self.under_way)?;
        let handshake = Handshake::server(Arc::clone(&self.lookup))?;
        wrap(socket, handshake, permit)
    }

    fn is_secure(&self) -> bool {
        true
    }

    /// A listener connects to nobody.
    fn connected(&self, _socket: Socket) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsAcceptor({} handshakes)", self.under_way.load(Ordering::Relaxed))
    }
}

/// TLS for the connections of a host to one subsystem. Nothing is sent in the clear, and nothing is given to the host,
/// before the controller has proved to know the key.
#[derive(Clone, Debug)]
pub struct TlsConnector {
    psk: ClientPsk,
}

impl TlsConnector {
    /// With this key.
    #[must_use]
    pub fn new(psk: ClientPsk) -> TlsConnector {
        TlsConnector { psk }
    }
}

impl StreamProvider for TlsConnector {
    /// A host accepts nobody.
    fn accepted(&self, _socket: Socket) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        wrap(socket, Handshake::client(&self.psk)?, Permit::unlimited())
    }
}

fn wrap(socket: Socket, handshake: Handshake, permit: Permit) -> io::Result<Socket> {
    let (local, peer) = (socket.local_address(), socket.peer_address());
    let stream = TlsStream::new(socket.into_transport()?, handshake, permit);
    Ok(Socket::provided(Box::new(stream), local, peer))
}
