//! The providers: TLS for a listener, and TLS for a host.

use std::fmt;
use std::io;
use std::sync::Arc;

use raceline_auth::{GeneratedPsk, KeyError, Names};
use raceline_reactor::{Socket, StreamProvider};

use crate::either::EitherStream;
use crate::error::TlsError;
use crate::handshake::{Credentials, Handshake};
use crate::keys::{ClientPsk, ClientPskStore, PskLookup};
use crate::library::{self, Certificates};
use crate::offload::Offload;
use crate::stream::TlsStream;

/// TLS for a listener of a target. A connection that it has accepted gives no byte to its owner before its host has
/// proved to know a key.
///
/// How many handshakes are under way, and for how long, is up to the owner of the sockets: a target bounds sockets
/// before Connect, and has one that is among many give way. A bound of the acceptor's own would let strangers use it up.
pub struct TlsAcceptor {
    credentials: Credentials,
    offload: Offload,
    takes_plain: bool,
}

impl TlsAcceptor {
    /// For hosts whose keys `lookup` finds, at the time of each handshake.
    #[must_use]
    pub fn new(lookup: Arc<dyn PskLookup>) -> TlsAcceptor {
        Self::of(Credentials::Keys(lookup))
    }

    /// For peers that know this end by its certificate: clients of disks. NVMe/TCP has no such way.
    #[must_use]
    pub fn with_certificates(certificates: Certificates) -> TlsAcceptor {
        Self::of(Credentials::Certificates(certificates))
    }

    fn of(credentials: Credentials) -> TlsAcceptor {
        library::prepare();
        TlsAcceptor { credentials, offload: Offload::default(), takes_plain: false }
    }

    /// The same, which hands connections on that do not begin with TLS: their owner lets them make a key for TLS
    /// (secure channel concatenation), and nothing else.
    #[must_use]
    pub fn or_plain(self) -> TlsAcceptor {
        TlsAcceptor { takes_plain: true, ..self }
    }

    /// Says whether the kernel makes the records of its connections; without this, it does not.
    #[must_use]
    pub fn with_offload(self, offload: Offload) -> TlsAcceptor {
        TlsAcceptor { offload, ..self }
    }
}

impl StreamProvider for TlsAcceptor {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        let credentials = self.credentials.clone();
        if self.takes_plain {
            let (local, peer) = (socket.local_address(), socket.peer_address());
            let stream = EitherStream::new(socket.into_transport()?, credentials, self.offload);
            return Ok(Socket::provided(Box::new(stream), local, peer));
        }
        wrap(socket, Handshake::served_by(credentials), self.offload)
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
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}

/// TLS for the connections of a host to one subsystem. Nothing is sent in the clear, and nothing is given to the host,
/// before the controller has proved to know the key.
#[derive(Clone, Debug)]
pub struct TlsConnector {
    psk: ClientPskStore,
    offload: Offload,
}

impl TlsConnector {
    /// With this key, which its owner may take away: connections fail from then on.
    #[must_use]
    pub fn new(psk: impl Into<ClientPskStore>) -> TlsConnector {
        library::prepare();
        TlsConnector { psk: psk.into(), offload: Offload::default() }
    }

    /// Says whether the kernel makes the records of its connections; without this, it does not.
    #[must_use]
    pub fn with_offload(self, offload: Offload) -> TlsConnector {
        TlsConnector { offload, ..self }
    }
}

impl StreamProvider for TlsConnector {
    /// A host accepts nobody.
    fn accepted(&self, _socket: Socket) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        let psk = self.psk.get().ok_or(TlsError::KeyWithdrawn)?;
        wrap(socket, Handshake::client(&psk)?, self.offload)
    }
}

/// TLS with a key that an authentication has made (secure channel concatenation).
///
/// # Errors
/// When a name cannot be a part of an identity.
pub fn concatenate(psk: &GeneratedPsk, names: &Names) -> Result<Arc<dyn StreamProvider>, KeyError> {
    Ok(Arc::new(TlsConnector::new(ClientPsk::generated(psk, names)?)))
}

/// What makes TLS of a key that an authentication has made.
pub type Concatenate = fn(&GeneratedPsk, &Names) -> Result<Arc<dyn StreamProvider>, KeyError>;

/// [`concatenate`], with the random numbers ready: the core that has the key does not wait for them.
#[must_use]
pub fn concatenator() -> Concatenate {
    library::prepare();
    concatenate
}

fn wrap(socket: Socket, handshake: Handshake, offload: Offload) -> io::Result<Socket> {
    let (local, peer) = (socket.local_address(), socket.peer_address());
    let stream = TlsStream::new(socket.into_transport()?, handshake, offload);
    Ok(Socket::provided(Box::new(stream), local, peer))
}
