//! The providers: TLS for a listener, and TLS for a host.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use raceline_auth::{GeneratedPsk, KeyError, Names};
use raceline_reactor::{Socket, StreamProvider};

use crate::either::EitherStream;
use crate::error::TlsError;
use crate::handshake::Handshake;
use crate::keys::{ClientPsk, ClientPskStore, PskLookup};
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
    takes_plain: bool,
}

impl TlsAcceptor {
    /// For hosts whose keys `lookup` finds, at the time of each handshake.
    #[must_use]
    pub fn new(lookup: Arc<dyn PskLookup>) -> TlsAcceptor {
        TlsAcceptor { lookup, under_way: Arc::default(), takes_plain: false }
    }

    /// The same, which hands connections on that do not begin with TLS: their owner lets them make a key for TLS
    /// (secure channel concatenation), and nothing else.
    #[must_use]
    pub fn or_plain(self) -> TlsAcceptor {
        TlsAcceptor { takes_plain: true, ..self }
    }
}

impl StreamProvider for TlsAcceptor {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        let permit = Permit::one_of(&self.under_way)?;
        if self.takes_plain {
            let (local, peer) = (socket.local_address(), socket.peer_address());
            let lookup = Arc::clone(&self.lookup);
            let stream = EitherStream::new(socket.into_transport()?, lookup, permit);
            return Ok(Socket::provided(Box::new(stream), local, peer));
        }
        let handshake = Handshake::server(Arc::clone(&self.lookup))?;
        wrap(socket, handshake, permit)
    }

    fn is_secure(&self) -> bool {
        true
    }

    fn takes_plain(&self) -> bool {
        self.takes_plain
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
    psk: ClientPskStore,
}

impl TlsConnector {
    /// With this key, which its owner may take away: connections fail from then on.
    #[must_use]
    pub fn new(psk: impl Into<ClientPskStore>) -> TlsConnector {
        TlsConnector { psk: psk.into() }
    }
}

impl StreamProvider for TlsConnector {
    /// A host accepts nobody.
    fn accepted(&self, _socket: Socket) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        let psk = self.psk.get().ok_or(TlsError::KeyWithdrawn)?;
        wrap(socket, Handshake::client(&psk)?, Permit::unlimited())
    }
}

/// TLS with a key that an authentication has made (secure channel concatenation).
///
/// # Errors
/// When a name cannot be a part of an identity.
pub fn concatenate(psk: &GeneratedPsk, names: &Names) -> Result<Arc<dyn StreamProvider>, KeyError> {
    Ok(Arc::new(TlsConnector::new(ClientPsk::generated(psk, names)?)))
}

fn wrap(socket: Socket, handshake: Handshake, permit: Permit) -> io::Result<Socket> {
    let (local, peer) = (socket.local_address(), socket.peer_address());
    let stream = TlsStream::new(socket.into_transport()?, handshake, permit);
    Ok(Socket::provided(Box::new(stream), local, peer))
}
