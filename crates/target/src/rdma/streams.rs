//! The provider of streams over RDMA: its listener and its connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raceline_rdma::PortCounts;
use raceline_rdma::device::RdmaDevice;
use raceline_rdma::verbs::{ConnectionId, ProviderError};
use raceline_rdma::waiting::WaitingDevice;
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{
    ByteStream, Interest, SendBatch, Socket, Source, StreamListener, StreamProvider,
};

use super::config::RdmaConfig;
use super::hub::{Arrival, Hub};
use super::listener::{Listener, Opener};

/// Carries the connections of NVMe/RDMA listeners ([`crate::Entrance::streams`]). Each listener opens the device that has
/// its address.
pub struct RdmaStreams {
    opener: Arc<Opener>,
}

/// What a listener's device has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDeviceStats {
    /// The listener.
    pub address: SocketAddr,
    /// The device's name.
    pub name: String,
    /// Counts since the listener has opened it.
    pub counts: PortCounts,
    /// Responses whose data the device has read where they were, without a copy.
    pub in_place: u64,
}

impl RdmaStreams {
    /// Over real devices. libibverbs and librdmacm are loaded when the first listener opens.
    #[must_use]
    pub fn new(config: RdmaConfig) -> Self {
        let completions = config.completions;
        Self::over(config, move |address| {
            RdmaDevice::open(address.ip(), completions).map(|device| Box::new(device) as _)
        })
    }

    /// Over other devices.
    pub fn over(
        config: RdmaConfig,
        open: impl Fn(SocketAddr) -> Result<Box<dyn WaitingDevice>, ProviderError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { opener: Arc::new(Opener::new(config, Box::new(open))) }
    }

    /// What the devices have done of listeners that are there, or still have connections.
    #[must_use]
    pub fn devices(&self) -> Vec<RdmaDeviceStats> {
        let stats = |(address, hub): (SocketAddr, Arc<Mutex<Hub>>)| {
            let (name, counts, in_place) = lock(&hub).counts();
            RdmaDeviceStats { address, name, counts, in_place }
        };
        self.opener.hubs().into_iter().map(stats).collect()
    }
}

impl fmt::Debug for RdmaStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStreams").field("config", &self.opener.config).finish_non_exhaustive()
    }
}

impl StreamProvider for RdmaStreams {
    /// The kernel accepts no such connection.
    fn accepted(&self, _socket: Socket) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A listener connects to nobody.
    fn connected(&self, _socket: Socket) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn is_rdma(&self) -> bool {
        true
    }

    fn listen(&self, address: SocketAddr) -> Option<io::Result<Box<dyn StreamListener>>> {
        Some(Listener::open(&self.opener, address).map(|listener| Box::new(listener) as Box<_>))
    }
}

pub(super) fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection.
pub(super) struct Stream {
    hub: Arc<Mutex<Hub>>,
    id: ConnectionId,
    bell: UnixStream,
    is_open: bool,
}

impl Stream {
    pub(super) fn new(hub: Arc<Mutex<Hub>>, arrival: Arrival) -> Self {
        Self { hub, id: arrival.id, bell: arrival.bell, is_open: true }
    }
}

impl ByteStream for Stream {
    fn advance(&mut self) -> io::Result<()> {
        lock(&self.hub).begin(self.id, &mut self.bell)
    }

    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        lock(&self.hub).receive(self.id, into)
    }

    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize> {
        lock(&self.hub).transmit(self.id, batch)
    }

    fn unread(&mut self) -> usize {
        lock(&self.hub).unread(self.id)
    }

    /// All news come by the bell.
    fn interest(&self, waiting: Interest) -> Interest {
        lock(&self.hub).wait(self.id, waiting);
        if waiting.is_none() { Interest::NONE } else { Interest::READ }
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.bell.as_fd())
    }

    fn close(&mut self, reset: bool) {
        if std::mem::take(&mut self.is_open) {
            lock(&self.hub).close(self.id, reset);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close(true);
    }
}
