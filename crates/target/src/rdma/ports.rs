//! A listener's device on each core: which hub a core has, and how a request finds it.
//!
//! One core listens. A request for a queue is judged there, and then goes with its stream to the core that the target
//! chooses. There the stream asks for the core's hub at its first try, which opens the device again if the core has none. So
//! each core has a completion queue, shared receives and memory of its own, and no core waits for another one.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use raceline_rdma::device::NewsSet;
use raceline_rdma::verbs::Provider;
use raceline_rdma::waiting::Kin;
use raceline_reactor::IsController;

use super::config::{Device, OpenDevice, RdmaConfig};
use super::counted::{Counted, LastCounts, Stock};
use super::hub::Hub;
use super::patience::Patience;
use super::streams::lock;

/// A hub, as its core's port and the streams of its connections have it. Only its core takes the lock, but for statistics.
pub(super) type SharedHub = Arc<Mutex<Hub>>;

/// What it takes to open the device of a listener.
pub(super) struct Opener {
    pub(super) config: RdmaConfig,
    open: Box<OpenDevice>,
    known: Mutex<Known>,
    patience: Mutex<Patience>,
}

/// What there is, of all listeners.
#[derive(Default)]
struct Known {
    /// Those of the cores, for connections that come.
    ports: Vec<(SocketAddr, Weak<Port>)>,
    /// Each lives as long as its port has it, or a connection.
    hubs: Counted,
    /// How to find out whether a controller is there, by listener.
    controllers: BTreeMap<SocketAddr, IsController>,
    /// Devices that were opened to listen.
    sites: u64,
}

impl Opener {
    pub(super) fn new(config: RdmaConfig, open: Box<OpenDevice>) -> Self {
        Self { config, open, known: Mutex::default(), patience: Mutex::default() }
    }

    /// What a listener does that cannot listen at once.
    pub(super) fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, hubs of this listener find out so whether a controller is there.
    pub(super) fn know_controllers(&self, address: SocketAddr, is_there: IsController) {
        self.known().controllers.insert(address, is_there);
    }

    /// The hubs that are alive, with their listeners and cores.
    pub(super) fn hubs(&self) -> Vec<(SocketAddr, usize, SharedHub)> {
        self.known().hubs.alive()
    }

    /// What is known of all hubs, those that are gone included.
    pub(super) fn take_stock(&self) -> Stock {
        self.known().hubs.take_stock()
    }

    /// Opens the device that has the address, and listens there.
    pub(super) fn listen(
        self: &Arc<Self>,
        address: SocketAddr,
        core: usize,
    ) -> io::Result<(Arc<Site>, SharedHub)> {
        let mut device = (self.open)(address)?;
        self.config.check_requests(device.name(), device.capabilities().work_requests)?;
        device.listen(address)?;
        let kin = device.kin();
        let number = {
            let mut known = self.known();
            known.sites += 1;
            known.sites
        };
        let site = Arc::new(Site { opener: Arc::clone(self), address, number, kin });
        Ok((site, self.hub(device, address, core)))
    }

    fn hub(&self, device: Device, address: SocketAddr, core: usize) -> SharedHub {
        let mut known = self.known();
        known.ports.retain(|(_, port)| port.strong_count() > 0);
        let cores = known.ports.iter().filter(|(at, _)| *at == address).count();
        let controllers = known.controllers.get(&address).cloned();
        let last = LastCounts::default();
        let hub = Hub::new(device, &self.config, cores, controllers, last.clone());
        let hub = Arc::new(Mutex::new(hub));
        known.hubs.add((address, core), &hub, last);
        hub
    }

    /// The port of this thread's core.
    fn port_here(&self, address: SocketAddr) -> Option<Arc<Port>> {
        let thread = std::thread::current().id();
        let known = self.known();
        let ports = known.ports.iter().filter(|(at, _)| *at == address);
        ports.filter_map(|(_, port)| port.upgrade()).find(|port| port.thread == thread)
    }
}

/// A device that listens, for as long as it is there.
pub(super) struct Site {
    opener: Arc<Opener>,
    address: SocketAddr,
    /// Later devices of an address have higher numbers.
    number: u64,
    /// `None`: the device is one for all cores.
    kin: Option<Kin>,
}

impl Site {
    /// The hub of the core that this thread is, for a request that came to this device.
    pub(super) fn hub_here(self: &Arc<Self>) -> io::Result<SharedHub> {
        let gone = || io::Error::new(io::ErrorKind::ConnectionRefused, "the listener is gone");
        let port = self.opener.port_here(self.address).ok_or_else(gone)?;
        port.hub_of(self)
    }
}

/// What one core has of a listener.
pub(super) struct Port {
    opener: Arc<Opener>,
    core: usize,
    thread: ThreadId,
    /// Of the core's hub, and of all else that the core's listener waits for.
    pub(super) news: NewsSet,
    /// Only this core takes it.
    here: Mutex<Option<(Arc<Site>, SharedHub)>>,
}

impl Port {
    /// One of this thread's core.
    pub(super) fn open(
        opener: &Arc<Opener>,
        address: SocketAddr,
        core: usize,
    ) -> io::Result<Arc<Self>> {
        let port = Arc::new(Self {
            opener: Arc::clone(opener),
            core,
            thread: std::thread::current().id(),
            news: NewsSet::new()?,
            here: Mutex::default(),
        });
        opener.known().ports.push((address, Arc::downgrade(&port)));
        Ok(port)
    }

    fn here(&self) -> MutexGuard<'_, Option<(Arc<Site>, SharedHub)>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The core, as the target counts them.
    pub(super) fn core(&self) -> usize {
        self.core
    }

    /// The hub that the core has, and the device that it is of.
    pub(super) fn hub(&self) -> Option<(Arc<Site>, SharedHub)> {
        self.here().clone()
    }

    /// From now on the core has this hub.
    pub(super) fn put(&self, site: &Arc<Site>, hub: &SharedHub) -> io::Result<()> {
        self.leave();
        self.news.watch(lock(hub).news())?;
        *self.here() = Some((Arc::clone(site), Arc::clone(hub)));
        Ok(())
    }

    /// The core has none any longer: connections of the one before end by themselves.
    pub(super) fn leave(&self) {
        let Some((_, hub)) = self.here().take() else { return };
        let mut hub = lock(&hub);
        // Nobody waits for the device any longer. An error means that nobody did.
        let _ = self.news.forget(hub.news());
        hub.orphan();
    }

    /// The core's listener is gone: a later one of the address has a port of its own.
    pub(super) fn close(&self) {
        self.opener.known().ports.retain(|(_, port)| !std::ptr::eq(port.as_ptr(), self));
        self.leave();
    }

    /// The core's hub of a device, which is opened if the core has none.
    fn hub_of(&self, site: &Arc<Site>) -> io::Result<SharedHub> {
        if let Some((known, hub)) = self.hub() {
            if Arc::ptr_eq(&known, site) {
                return Ok(hub);
            }
            if known.number > site.number {
                let why = "the device of the request is gone";
                return Err(io::Error::new(io::ErrorKind::ConnectionRefused, why));
            }
        }
        let kin = site.kin.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let opened = kin().map_err(io::Error::other);
        let hub = opened.map(|device| self.opener.hub(device, site.address, self.core));
        let put = hub.and_then(|hub| self.put(site, &hub).map(|()| hub));
        put.inspect_err(|error| {
            let (address, core) = (site.address, self.core);
            tracing::warn!(%address, core, %error, "a core has no RDMA device: its connections are refused");
        })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.leave();
    }
}
