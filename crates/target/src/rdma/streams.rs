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
    ByteStream, Interest, IsController, SendBatch, Socket, Source, StreamListener, StreamProvider,
};

use super::config::RdmaConfig;
use super::hub::{Arrival, Hub};
use super::listener::Listener;
use super::patience::Patience;
use super::ports::{Opener, SharedHub, Site};

/// Carries the connections of NVMe/RDMA listeners ([`crate::Entrance::streams`]). Each listener opens the device that has
/// its address.
pub struct RdmaStreams {
    opener: Arc<Opener>,
}

/// What a listener's device has done for one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDeviceStats {
    /// The listener.
    pub address: SocketAddr,
    /// The core, as the target counts them.
    pub core: usize,
    /// The device's name.
    pub name: String,
    /// Counts since the core has opened it.
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
            RdmaDevice::open(address, completions).map(|device| Box::new(device) as _)
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

    /// What listeners do from now on that cannot listen at once. Those that wait for the process before listen as soon as
    /// this is anything else than [`Patience::ForPredecessor`].
    pub fn set_patience(&self, patience: Patience) {
        *self.opener.patience() = patience;
    }

    /// What the devices have done of listeners that are there, or still have connections, core by core. A core opens the
    /// device when it gets its first connection.
    #[must_use]
    pub fn devices(&self) -> Vec<RdmaDeviceStats> {
        let stats = |(address, core, hub): (SocketAddr, usize, SharedHub)| {
            let (name, counts, in_place) = lock(&hub).counts();
            RdmaDeviceStats { address, core, name, counts, in_place }
        };
        self.opener.hubs().into_iter().map(stats).collect()
    }

    /// The same, with what devices had done before that are gone: no sum of one listener, core and name falls. There may be
    /// several of them for the three.
    #[must_use]
    pub fn devices_ever(&self) -> Vec<RdmaDeviceStats> {
        self.opener.take_stock().count()
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

    fn know_controllers(&self, address: SocketAddr, is_there: IsController) {
        self.opener.know_controllers(address, is_there);
    }

    fn listen(&self, address: SocketAddr) -> Option<io::Result<Box<dyn StreamListener>>> {
        let listener =
            check_rdma_address(address).and_then(|()| Listener::open(&self.opener, address));
        Some(listener.map(|listener| Box::new(listener) as Box<_>))
    }

    fn attend(
        &self,
        address: SocketAddr,
        core: usize,
    ) -> Option<io::Result<Box<dyn StreamListener>>> {
        let listener = Listener::attend(&self.opener, address, core);
        Some(listener.map(|listener| Box::new(listener) as Box<_>))
    }
}

/// Whether a listener for RDMA can have this address. The addresses that stand for all (`0.0.0.0`, `[::]`) are of no device:
/// a listener has the one device with its address.
///
/// # Errors
/// What is wrong with the address, and what to do ([`io::ErrorKind::InvalidInput`]).
pub fn check_rdma_address(address: SocketAddr) -> io::Result<()> {
    if !address.ip().to_canonical().is_unspecified() {
        return Ok(());
    }
    let ip = address.ip();
    let text = format!(
        "{ip} stands for all addresses, and a listener for RDMA has the one device with its address: add a listener for the \
         address of each RDMA device (rdma link and ip address show them)"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

pub(super) fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that waits for its core.
struct Pending {
    arrival: Arrival,
    site: Arc<Site>,
    /// The connection's end.
    bell: UnixStream,
}

/// One connection. It stays with the hub of the core on which it was first tried.
pub(super) struct Stream {
    /// While the request waits, that of the core that listens.
    hub: SharedHub,
    id: ConnectionId,
    bell: UnixStream,
    is_open: bool,
    pending: Option<Box<Pending>>,
}

impl Stream {
    /// For a request that came to this hub. Without descriptors, the request is refused.
    pub(super) fn new(hub: &SharedHub, site: Arc<Site>, arrival: Arrival) -> io::Result<Self> {
        let pair = UnixStream::pair().and_then(|(near, far)| {
            near.set_nonblocking(true)?;
            far.set_nonblocking(true)?;
            Ok((near, far))
        });
        match pair {
            Ok((near, far)) => Ok(Self {
                hub: Arc::clone(hub),
                id: ConnectionId::NOBODY,
                bell: far,
                is_open: true,
                pending: Some(Box::new(Pending { arrival, site, bell: near })),
            }),
            Err(error) => {
                lock(hub).turn_away(arrival);
                Err(error)
            }
        }
    }

    /// Has the hub of this core answer the request.
    #[cold]
    fn settle(&mut self, pending: Pending) -> io::Result<()> {
        let Pending { arrival, site, bell } = pending;
        if arrival.is_given() {
            // One that finds no hub is refused as it is dropped.
            self.hub = site.hub_here()?;
        }
        self.id = lock(&self.hub).take_in(arrival, bell)?;
        Ok(())
    }
}

impl ByteStream for Stream {
    fn advance(&mut self) -> io::Result<()> {
        if let Some(pending) = self.pending.take() {
            self.settle(*pending)?;
        }
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
        if let Some(pending) = self.pending.take() {
            lock(&self.hub).turn_away(pending.arrival);
        }
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
