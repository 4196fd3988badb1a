//! What carries the connections of an association by the key that an authentication has made, until another
//! authentication replaces the key.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use raceline_reactor::{Socket, StreamListener, StreamProvider};

/// The provider that goes with the newest key of an association. All of its queues have the same one: a connection that
/// is made after a replacement has the new key, and connections that there are stay as they are.
#[derive(Debug)]
pub struct GeneratedStreams(RwLock<Arc<dyn StreamProvider>>);

impl GeneratedStreams {
    /// With the first key.
    pub(crate) fn new(streams: Arc<dyn StreamProvider>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(streams)))
    }

    /// Goes over to another key.
    pub(crate) fn replace(&self, streams: Arc<dyn StreamProvider>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = streams;
    }

    fn now(&self) -> Arc<dyn StreamProvider> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StreamProvider for GeneratedStreams {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        self.now().accepted(socket)
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        self.now().connected(socket)
    }

    fn is_secure(&self) -> bool {
        self.now().is_secure()
    }

    fn takes_plain(&self) -> bool {
        self.now().takes_plain()
    }

    fn listen(&self, address: SocketAddr) -> Option<io::Result<Box<dyn StreamListener>>> {
        self.now().listen(address)
    }

    fn connect(&self, address: SocketAddr, source: Option<IpAddr>) -> Option<io::Result<Socket>> {
        self.now().connect(address, source)
    }
}
