//! The provider of streams over RDMA: its listener and its connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use raceline_rdma::PortCounts;
use raceline_rdma::device::RdmaDevice;
use raceline_rdma::verbs::{ConnectionId, Provider, ProviderError};
use raceline_rdma::waiting::WaitingDevice;
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{
    ByteStream, Interest, SendBatch, Socket, Source, StreamListener, StreamProvider,
};

use super::config::{OpenDevice, RdmaConfig};
use super::hub::Hub;

/// Carries the connections of NVMe/RDMA listeners ([`crate::Entrance::streams`]). Each listener opens the device that has
/// its address.
pub struct RdmaStreams {
    config: RdmaConfig,
    open: Box<OpenDevice>,
    /// Where it listens, and what there is of each listener. It lives as long as the listener or a connection.
    hubs: Mutex<Vec<(SocketAddr, Weak<Mutex<Hub>>)>>,
}

/// What a listener's device has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDeviceStats {
    /// The listener.
    pub address: SocketAddr,
    /// The device's name.
    pub name: String,
    /// Counts since the listener was made.
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
        Self { config, open: Box::new(open), hubs: Mutex::default() }
    }

    /// What the devices have done of listeners that are there, or still have connections.
    #[must_use]
    pub fn devices(&self) -> Vec<RdmaDeviceStats> {
        let mut hubs = self.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|(_, hub)| hub.strong_count() > 0);
        let alive = hubs.iter().filter_map(|(address, hub)| Some((*address, hub.upgrade()?)));
        let stats = |(address, hub): (SocketAddr, Arc<Mutex<Hub>>)| {
            let (name, counts, in_place) = lock(&hub).counts();
            RdmaDeviceStats { address, name, counts, in_place }
        };
        alive.map(stats).collect()
    }

    fn open(&self, address: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        if address.port() == 0 {
            let text = "a listener for RDMA needs a port: 4420 is the usual one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut device = (self.open)(address).map_err(io::Error::other)?;
        let news = device.news().try_clone_to_owned()?;
        device.listen(address).map_err(io::Error::other)?;
        let hub = Arc::new(Mutex::new(Hub::new(device, &self.config)));
        let known = (address, Arc::downgrade(&hub));
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner).push(known);
        Ok(Box::new(Listener { hub, address, news }))
    }
}

impl fmt::Debug for RdmaStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStreams").field("config", &self.config).finish_non_exhaustive()
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
        Some(self.open(address))
    }
}

fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Listener {
    hub: Arc<Mutex<Hub>>,
    address: SocketAddr,
    news: OwnedFd,
}

impl StreamListener for Listener {
    fn accept(&mut self) -> io::Result<Socket> {
        let Some(arrival) = lock(&self.hub).accept() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let hub = Arc::clone(&self.hub);
        let stream = Stream { hub, id: arrival.id, bell: arrival.bell, is_open: true };
        Ok(Socket::provided(Box::new(stream), self.address, arrival.peer))
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.news.as_fd())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        lock(&self.hub).orphan();
    }
}

/// One connection.
struct Stream {
    hub: Arc<Mutex<Hub>>,
    id: ConnectionId,
    bell: UnixStream,
    is_open: bool,
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
