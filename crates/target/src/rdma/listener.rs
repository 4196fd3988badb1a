//! A listener over RDMA: on its device it waits for hosts, and while that is gone for a device with its address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use raceline_rdma::device::{NewsSet, Ticks};
use raceline_rdma::verbs::Provider;
use raceline_reactor::{Socket, Source, StreamListener};

use super::config::{OpenDevice, RdmaConfig};
use super::hub::{CHECK_INTERVAL, Hub};
use super::streams::{Stream, lock};

/// The time before the first try to open a device again, which doubles from try to try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two tries.
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// What it takes to open the device of a listener.
pub(super) struct Opener {
    pub(super) config: RdmaConfig,
    open: Box<OpenDevice>,
    /// Where was listened, and what there is of each device. It lives as long as its listener has it, or a connection.
    hubs: Mutex<Vec<(SocketAddr, Weak<Mutex<Hub>>)>>,
}

impl Opener {
    pub(super) fn new(config: RdmaConfig, open: Box<OpenDevice>) -> Self {
        Self { config, open, hubs: Mutex::default() }
    }

    /// Those that are alive.
    pub(super) fn hubs(&self) -> Vec<(SocketAddr, Arc<Mutex<Hub>>)> {
        let mut hubs = self.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|(_, hub)| hub.strong_count() > 0);
        hubs.iter().filter_map(|(address, hub)| Some((*address, hub.upgrade()?))).collect()
    }

    /// Opens the device that has the address, and listens there.
    fn hub(&self, address: SocketAddr) -> io::Result<Arc<Mutex<Hub>>> {
        let mut device = (self.open)(address).map_err(io::Error::other)?;
        device.listen(address).map_err(io::Error::other)?;
        let hub = Arc::new(Mutex::new(Hub::new(device, &self.config)));
        let known = (address, Arc::downgrade(&hub));
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner).push(known);
        Ok(hub)
    }
}

/// What a listener has.
enum State {
    /// A device.
    Listening(Arc<Mutex<Hub>>),
    /// None: a thread looks for one.
    Searching(Search),
    /// None, and no thread could be made. It is over with this listener.
    Ended,
}

/// A listener.
pub(super) struct Listener {
    opener: Arc<Opener>,
    address: SocketAddr,
    state: State,
    /// Of the device, or of the search for one, and the ticks.
    news: NewsSet,
    /// While there are connections: hosts that take nothing are found when nothing else happens.
    ticks: Ticks,
}

impl Listener {
    /// Opens the device that has the address, and listens.
    pub(super) fn open(opener: &Arc<Opener>, address: SocketAddr) -> io::Result<Self> {
        if address.port() == 0 {
            let text = "a listener for RDMA needs a port: 4420 is the usual one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let hub = opener.hub(address)?;
        let news = NewsSet::new()?;
        news.watch(lock(&hub).news())?;
        let ticks = Ticks::new(CHECK_INTERVAL)?;
        news.watch(ticks.as_fd())?;
        let opener = Arc::clone(opener);
        Ok(Self { opener, address, state: State::Listening(hub), news, ticks })
    }

    /// Leaves the device to the connections that it still has, and looks for another one.
    fn lose(&mut self) {
        let State::Listening(hub) = &self.state else { return };
        let mut hub = lock(hub);
        let address = self.address;
        let (name, ..) = hub.counts();
        tracing::warn!(
            %address,
            device = name,
            "the RDMA device of a listener is gone; it listens again as soon as a device has its address"
        );
        // Nobody waits for the device any longer. An error means that nobody did.
        let _ = self.news.forget(hub.news());
        hub.orphan();
        drop(hub);
        self.search();
    }

    fn search(&mut self) {
        let begun = Search::begin(&self.opener, self.address).and_then(|search| {
            self.news.watch(search.bell.as_fd())?;
            Ok(search)
        });
        self.state = match begun {
            Ok(search) => State::Searching(search),
            Err(error) => {
                let address = self.address;
                tracing::error!(%address, %error, "an RDMA listener has ended: remove it and add it again");
                State::Ended
            }
        };
    }

    /// Takes what the search has found. False when it goes on.
    fn take_found(&mut self) -> bool {
        let State::Searching(search) = &self.state else { return false };
        let Some(hub) = take(&search.found) else { return false };
        let address = self.address;
        let watched = self.news.watch(lock(&hub).news());
        match watched {
            Ok(()) => {
                let (name, ..) = lock(&hub).counts();
                // As loud as the loss: whoever has seen that looks for this.
                tracing::warn!(%address, device = name, "an RDMA listener has a device again");
                self.state = State::Listening(hub);
                true
            }
            Err(error) => {
                tracing::warn!(%address, %error, "cannot wait for an RDMA device");
                drop(hub);
                self.search();
                false
            }
        }
    }
}

impl StreamListener for Listener {
    fn accept(&mut self) -> io::Result<Socket> {
        self.ticks.take();
        loop {
            if let State::Listening(hub) = &self.state {
                let (arrival, is_gone, has_lines) = {
                    let mut locked = lock(hub);
                    (locked.accept(), locked.is_device_gone(), locked.has_lines())
                };
                if let Err(error) = self.ticks.want(has_lines && !is_gone) {
                    tracing::warn!(%error, "an RDMA listener has no timer");
                }
                if let Some(arrival) = arrival.filter(|_| !is_gone) {
                    let peer = arrival.peer;
                    let stream = Stream::new(Arc::clone(hub), arrival);
                    return Ok(Socket::provided(Box::new(stream), self.address, peer));
                }
                if !is_gone {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                self.lose();
            }
            if !self.take_found() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
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
        if let State::Listening(hub) = &self.state {
            lock(hub).orphan();
        }
    }
}

/// Where a search puts what it has found.
type Found = Mutex<Option<Arc<Mutex<Hub>>>>;

fn take(found: &Found) -> Option<Arc<Mutex<Hub>>> {
    found.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A thread that tries to open the device of an address, so that no core waits for that. It ends when it has one, or when
/// this value is dropped.
struct Search {
    found: Arc<Found>,
    thread: Thread,
    /// Readable when something was found.
    bell: UnixStream,
}

impl Search {
    fn begin(opener: &Arc<Opener>, address: SocketAddr) -> io::Result<Self> {
        let found = Arc::new(Found::default());
        let (near, bell) = UnixStream::pair()?;
        let (opener, sought) = (Arc::clone(opener), Arc::downgrade(&found));
        let thread = std::thread::Builder::new()
            .name("rdma-search".to_owned())
            .spawn(move || search(&opener, address, &sought, near))?;
        Ok(Self { found, thread: thread.thread().clone(), bell })
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.found = Arc::default();
        self.thread.unpark();
    }
}

/// Tries until there is a device, or nobody looks for it any longer. The bell rings when it is dropped.
fn search(opener: &Opener, address: SocketAddr, sought: &Weak<Found>, bell: UnixStream) {
    let mut pause = FIRST_PAUSE;
    let mut known = String::new();
    loop {
        std::thread::park_timeout(pause);
        if sought.strong_count() == 0 {
            return;
        }
        match opener.hub(address) {
            Ok(hub) => {
                if let Some(found) = sought.upgrade() {
                    *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(hub);
                }
                drop(bell);
                return;
            }
            // Each reason is told once.
            Err(error) => {
                let error = error.to_string();
                if error != known {
                    tracing::warn!(%address, error, "an RDMA listener has no device");
                    known = error;
                }
            }
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
