//! What a core waits for over RDMA: the news of its connections, and on the core that listens also hosts, and while the device
//! is gone a device with its address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use raceline_rdma::device::Ticks;
use raceline_reactor::{Socket, Source, StreamListener};

use super::hub::CHECK_INTERVAL;
use super::patience::Pauses;
use super::ports::{Opener, Port, SharedHub, Site};
use super::streams::{Stream, lock};

/// The core that listens, as the target counts them.
const LISTENING_CORE: usize = 0;

/// A core that spins asks the connection manager, the kernel and its timer so often; in between, it asks the device alone.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// What a listener of a core does beside its core's connections.
enum State {
    /// Nothing: another core listens.
    Attending,
    /// It has a device, and listens.
    Listening,
    /// It has none: a thread looks for one.
    Searching(Search),
    /// It has none, and no thread could be made. It is over with this listener.
    Ended,
}

/// What a core waits for: requests, if it listens, and the news of its own connections.
pub(super) struct Listener {
    opener: Arc<Opener>,
    address: SocketAddr,
    state: State,
    port: Arc<Port>,
    /// While there are connections: hosts that take nothing are found when nothing else happens.
    ticks: Ticks,
    /// When it has asked all of them last.
    looked: Instant,
}

impl Listener {
    /// Opens the device that has the address, and listens; or looks for one, as [`super::Patience`] says. It is the first
    /// core that does.
    pub(super) fn open(opener: &Arc<Opener>, address: SocketAddr) -> io::Result<Self> {
        if address.port() == 0 {
            let text = "a listener for RDMA needs a port: 4420 is the usual one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut listener = Self::attend(opener, address, LISTENING_CORE)?;
        let patience = *opener.patience();
        if !patience.listens_at_once() {
            tracing::info!(
                %address,
                "RDMA listeners do not go over: this one listens when the process before is gone, and its hosts connect anew"
            );
            listener.begin_search(false)?;
            return Ok(listener);
        }
        match opener.listen(address, LISTENING_CORE) {
            Ok((site, hub)) => {
                listener.port.put(&site, &hub)?;
                listener.state = State::Listening;
            }
            Err(error) if patience.outlasts(&error) => {
                tracing::warn!(
                    %address,
                    %error,
                    "an RDMA listener has no device yet; it listens as soon as a device has its address"
                );
                listener.begin_search(false)?;
            }
            Err(error) => return Err(error),
        }
        Ok(listener)
    }

    /// Waits for the news of another core's connections.
    pub(super) fn attend(
        opener: &Arc<Opener>,
        address: SocketAddr,
        core: usize,
    ) -> io::Result<Self> {
        let port = Port::open(opener, address, core)?;
        let ticks = Ticks::new(CHECK_INTERVAL)?;
        port.news.watch(ticks.as_fd())?;
        let opener = Arc::clone(opener);
        let looked = Instant::now();
        Ok(Self { opener, address, state: State::Attending, port, ticks, looked })
    }

    /// `at_once`: without a pause before the first try.
    fn begin_search(&mut self, at_once: bool) -> io::Result<()> {
        let pauses = Pauses::new(at_once);
        let search = Search::begin(&self.opener, (self.address, self.port.core()), pauses)?;
        self.port.news.watch(search.bell.as_fd())?;
        self.state = State::Searching(search);
        Ok(())
    }

    /// Leaves the device to the connections that it still has, and looks for another one.
    fn lose(&mut self, hub: &SharedHub) {
        let (address, core) = (self.address, self.port.core());
        let (device, has_moved) = {
            let mut hub = lock(hub);
            (hub.counts().0, hub.has_address_moved())
        };
        self.port.leave();
        if matches!(self.state, State::Attending) {
            tracing::debug!(%address, core, device, "the RDMA device of a core is gone");
            return;
        }
        tracing::warn!(
            %address,
            device,
            "the RDMA device of a listener is gone, or no longer has its address; it listens again as soon as a device has it"
        );
        self.search(has_moved);
    }

    fn search(&mut self, at_once: bool) {
        if let Err(error) = self.begin_search(at_once) {
            let address = self.address;
            tracing::error!(%address, %error, "an RDMA listener has ended: remove it and add it again");
            self.state = State::Ended;
        }
    }

    /// Takes what the search has found. False when it goes on.
    fn take_found(&mut self) -> bool {
        let State::Searching(search) = &self.state else { return false };
        let Some((site, hub)) = take(&search.found) else { return false };
        let address = self.address;
        match self.port.put(&site, &hub) {
            Ok(()) => {
                let (name, ..) = lock(&hub).counts();
                // As loud as the loss: whoever has seen that looks for this.
                tracing::warn!(%address, device = name, "an RDMA listener has a device again");
                self.state = State::Listening;
                true
            }
            Err(error) => {
                tracing::warn!(%address, %error, "cannot wait for an RDMA device");
                drop(hub);
                self.search(false);
                false
            }
        }
    }
}

impl StreamListener for Listener {
    fn accept(&mut self) -> io::Result<Socket> {
        self.looked = Instant::now();
        self.ticks.take();
        loop {
            if let Some((site, hub)) = self.port.hub() {
                let (arrival, is_gone, has_lines) = {
                    let mut locked = lock(&hub);
                    (locked.accept(), locked.is_device_gone(), locked.has_lines())
                };
                if let Err(error) = self.ticks.want(has_lines && !is_gone) {
                    tracing::warn!(%error, "an RDMA listener has no timer");
                }
                if let Some(arrival) = arrival {
                    if is_gone {
                        // It has come before its device was gone, which waits for the end of all connections.
                        lock(&hub).turn_away(arrival);
                        continue;
                    }
                    let peer = arrival.peer;
                    match Stream::new(&hub, site, arrival) {
                        Ok(stream) => {
                            return Ok(Socket::provided(Box::new(stream), self.address, peer));
                        }
                        Err(error) => {
                            tracing::warn!(%peer, %error, "no descriptors for another RDMA connection");
                            continue;
                        }
                    }
                }
                if !is_gone {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                self.lose(&hub);
            }
            if !self.take_found() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    fn spin(&mut self) -> bool {
        if let Some((_, hub)) = self.port.hub() {
            lock(&hub).spin();
        }
        self.looked.elapsed() >= LOOK_INTERVAL
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.port.news.as_fd())
    }

    fn stop(&mut self) {
        self.state = State::Ended;
        self.port.close();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where a search puts what it has found.
type Found = Mutex<Option<(Arc<Site>, SharedHub)>>;

fn take(found: &Found) -> Option<(Arc<Site>, SharedHub)> {
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
    fn begin(opener: &Arc<Opener>, place: (SocketAddr, usize), pauses: Pauses) -> io::Result<Self> {
        let found = Arc::new(Found::default());
        let (near, bell) = UnixStream::pair()?;
        let (opener, sought) = (Arc::clone(opener), Arc::downgrade(&found));
        let thread = std::thread::Builder::new()
            .name("rdma-search".to_owned())
            .spawn(move || search(&opener, place, pauses, (&sought, near)))?;
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
fn search(
    opener: &Arc<Opener>,
    (address, core): (SocketAddr, usize),
    mut pauses: Pauses,
    (sought, bell): (&Weak<Found>, UnixStream),
) {
    let mut known = String::new();
    loop {
        std::thread::park_timeout(pauses.next(*opener.patience()));
        if sought.strong_count() == 0 {
            return;
        }
        if !opener.patience().listens_at_once() {
            continue;
        }
        match opener.listen(address, core) {
            Ok(found) => {
                if let Some(place) = sought.upgrade() {
                    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                }
                drop(bell);
                return;
            }
            // Each reason is told once.
            Err(error) => {
                let (kind, error) = (error.kind(), error.to_string());
                pauses.note(kind);
                if error != known {
                    tracing::warn!(%address, error, "an RDMA listener has no device");
                    known = error;
                }
            }
        }
    }
}
