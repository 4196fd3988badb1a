//! What all cores share off the I/O path: controller numbers, pre-Connect caps, placement.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Instant;

use raceline_auth::{Waiting, Work, Worker};
use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_proto::nvme::{ControllerId, HostNqn, Nqn};
use raceline_reactor::Sender;

use crate::changes::config::TargetConfig;
use crate::changes::management::{DeviceRequest, ManagementRequest};
use crate::changes::message::Message;
use crate::records::attempts::Attempts;
use crate::records::controllers::{Controllers, Found, NewController, NoController};
use crate::records::counters::LimitWaits;
use crate::records::early::{Crowded, Early, Source, Ticket};
use crate::records::ledger::Ledger;
use crate::records::names::{CommandPlace, Home, Place};
use crate::records::placement::{Arrival, Placement, Seat};
use crate::records::sessions::Sessions;
use crate::records::statuses::StatusCounts;
use crate::records::throttle::QosClock;

/// Computations of authentications that may wait: for all sources, and for one of them, whose hosts may have as many
/// queues that authenticate at the same time.
const MAX_COMPUTATIONS: Waiting = Waiting { total: 4096, of_one: 1024 };

/// Shared by all cores of a target.
pub(crate) struct Shared {
    pub(crate) config: TargetConfig,
    senders: OnceLock<Vec<Sender<Message>>>,
    cores: usize,
    /// Connections that have left their core for another one.
    departures: AtomicU64,
    pub(crate) qos_clock: QosClock,
    registry: Mutex<Registry>,
    ledger: Mutex<Ledger>,
    /// Computes for authentications. It starts with the first one; `None`: it could not.
    authenticator: OnceLock<Option<Worker>>,
    /// There is no such thread: cores compute themselves.
    computes_here: bool,
    /// The way to the thread that changes namespaces for hosts, once there is a pool.
    manager: Mutex<Option<mpsc::Sender<ManagementRequest>>>,
    /// The way to the thread that changes reservations, once there is a namespace.
    reserver: Mutex<Option<mpsc::Sender<DeviceRequest>>>,
    /// How far that thread is.
    pub(crate) reserver_progress: ReserverProgress,
    /// The sessions of iSCSI.
    sessions: Mutex<Sessions>,
    /// How iSCSI commands have waited for limits, by core.
    pub(crate) iscsi_waits: Box<[LimitWaits]>,
    /// The errors of commands.
    pub(crate) statuses: StatusCounts,
}

struct Registry {
    placement: Placement,
    controllers: Controllers,
    early: Early,
    attempts: Attempts,
}

/// How far the thread that changes reservations is, for drivers of manual cores.
#[derive(Default)]
pub(crate) struct ReserverProgress {
    /// Requests that it was given, and those with which it is done for now.
    pub(crate) asked: AtomicU64,
    pub(crate) done: AtomicU64,
    /// How often all cores were asked something.
    pub(crate) rounds: AtomicU64,
    /// Commands that wait for others to end.
    pub(crate) waiting: AtomicUsize,
    /// What a manual core has asked for in its turn, and how many requests that is.
    held: Mutex<Vec<DeviceRequest>>,
    held_count: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(config: TargetConfig, cores: usize) -> Self {
        let registry = Registry {
            placement: Placement::new(config.placement, &config.cores, cores),
            controllers: Controllers::new(
                config.max_controllers_per_host,
                config.quiesce_time,
                config.run,
            ),
            early: Early::new(&config.pre_connect),
            attempts: Attempts::new(config.pre_connect.failures_per_source),
        };
        let ledger = Mutex::new(Ledger::new(cores));
        let (senders, registry) = (OnceLock::new(), Mutex::new(registry));
        let (manager, reserver) = (Mutex::new(None), Mutex::new(None));
        let authenticator = OnceLock::new();
        let computes_here = false;
        let departures = AtomicU64::new(0);
        let qos_clock = QosClock::default();
        Self {
            config,
            senders,
            cores,
            departures,
            qos_clock,
            registry,
            ledger,
            authenticator,
            computes_here,
            manager,
            reserver,
            reserver_progress: ReserverProgress::default(),
            sessions: Mutex::default(),
            iscsi_waits: (0..cores).map(|_| LimitWaits::default()).collect(),
            statuses: StatusCounts::default(),
        }
    }

    /// Without a thread for authentications: the core that needs a result computes it. Runs can then be repeated.
    pub(crate) fn without_threads(config: TargetConfig, cores: usize) -> Self {
        Self { computes_here: true, ..Self::new(config, cores) }
    }

    pub(crate) fn set_senders(&self, senders: Vec<Sender<Message>>) {
        assert!(self.senders.set(senders).is_ok(), "cores start once");
    }

    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// Sends a message to another core, or to this one: it comes with the next turn of that core's loop.
    pub(crate) fn send(&self, core: usize, message: Message) {
        if let Some(senders) = self.senders.get() {
            // A core that has ended has no connections that need the message.
            let _ = senders[core].send(message);
        }
    }

    /// Has a thread compute for an Authentication Send. Its core gets [`Message::Authenticated`], unless this
    /// gives `false`: too many wait, or there is no thread.
    pub(crate) fn authenticate(
        self: &Arc<Self>,
        work: Work,
        to: CommandPlace,
        source: IpAddr,
    ) -> bool {
        let start = || match Worker::start(MAX_COMPUTATIONS) {
            Ok(worker) => Some(worker),
            Err(error) => {
                tracing::error!(%error, "cannot start the thread for authentications");
                None
            }
        };
        let shared = Arc::clone(self);
        let done = move |finished| {
            let finished = Box::new(finished);
            shared.send(to.conn.core, Message::Authenticated { to, finished });
        };
        if self.computes_here {
            done(work.run());
            return true;
        }
        let Some(worker) = self.authenticator.get_or_init(start) else { return false };
        worker.submit(Source::of(source).number(), work, done).is_ok()
    }

    /// Chooses a core for a new connection and counts it there.
    pub(crate) fn place(&self, arrival: Arrival, listener: usize) -> Seat {
        self.lock().placement.place(arrival, listener)
    }

    /// A seat on this core, or on another one if the target has fewer.
    pub(crate) fn seat(&self, core: usize) -> Seat {
        self.lock().placement.seat(core % self.cores.max(1))
    }

    /// The connection is gone.
    pub(crate) fn unplace(&self, seat: Seat) {
        self.lock().placement.unplace(seat);
    }

    /// A connection is on its way to another core, which has been told.
    pub(crate) fn note_departure(&self) {
        self.departures.fetch_add(1, Ordering::SeqCst);
    }

    /// Departures so far. Who asks every core about its connections one by one, and sees no departure meanwhile, has
    /// asked about each connection: those that left before are announced to their new core.
    pub(crate) fn departures(&self) -> u64 {
        self.departures.load(Ordering::SeqCst)
    }

    /// Whether connections may move between cores.
    pub(crate) fn may_move(&self) -> bool {
        self.lock().placement.may_move()
    }

    /// A connection moves to another core. Gives its seat there.
    pub(crate) fn reseat(&self, seat: Seat, core: usize) -> Seat {
        self.lock().placement.reseat(seat, core)
    }

    /// Connections on each core.
    pub(crate) fn loads(&self) -> Vec<usize> {
        self.lock().placement.connections()
    }

    /// Counts a socket whose host has not shown who it is, or refuses it. The connection that gives way to it is
    /// closed.
    pub(crate) fn enter(&self, source: IpAddr, now: Instant) -> Result<Ticket, Crowded> {
        let (ticket, displaced) = self.lock().early.enter(source, now)?;
        if let Some(Place { core, key }) = displaced {
            self.send(core, Message::GiveWay { key });
        }
        Ok(ticket)
    }

    /// A core has made the connection of such a socket.
    pub(crate) fn settle(&self, ticket: Ticket, place: Place) {
        self.lock().early.settle(ticket, place);
    }

    /// The socket is gone before its host has shown who it is.
    pub(crate) fn leave(&self, ticket: Ticket) {
        self.lock().early.leave(ticket);
    }

    /// The host has shown who it is. [`Self::depart`] follows when the connection closes.
    pub(crate) fn admit(&self, ticket: Ticket) {
        self.lock().early.admit(ticket);
    }

    /// A connection closes whose host has shown who it is.
    pub(crate) fn depart(&self, source: IpAddr) {
        self.lock().early.depart(source);
    }

    /// Sockets whose hosts have not shown who they are.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().early.total()
    }

    /// Whether a host of this source may try to authenticate.
    pub(crate) fn may_authenticate(&self, source: IpAddr, now: Instant) -> bool {
        self.lock().attempts.may_try(source, now)
    }

    /// An authentication has failed, or was begun and left.
    pub(crate) fn authentication_failed(&self, source: IpAddr, now: Instant) {
        self.lock().attempts.failed(source, now);
    }

    /// A controller with one of the `ids` as its number ([`Controllers::add`]).
    pub(crate) fn add_controller(
        &self,
        new: &NewController<'_>,
        now: Instant,
    ) -> Result<ControllerInstance, NoController> {
        // Simulated runs have to be the same each time.
        let random = if self.computes_here {
            None
        } else {
            // Without it, no other controller can reset this one.
            let number = getrandom::u64();
            number.inspect_err(|error| tracing::error!(%error, "no random number")).ok().or(Some(0))
        };
        self.lock().controllers.add(new, random, now)
    }

    /// A controller of another process ([`Controllers::restore`]).
    pub(crate) fn restore_controller(
        &self,
        new: &NewController<'_>,
        instance: ControllerInstance,
    ) -> bool {
        self.lock().controllers.restore(new, instance)
    }

    /// The host of a controller has proved who it is: the controller counts as one of its own from here on, unless
    /// (`false`) the host has as many as it may.
    pub(crate) fn prove_controller(&self, id: ControllerId, subsystem: &Nqn) -> bool {
        self.lock().controllers.prove(id, subsystem)
    }

    /// The association is torn down completely; `lost`: now, when its host has not shut the controller down.
    pub(crate) fn remove_controller(
        &self,
        id: ControllerId,
        subsystem: &Nqn,
        lost: Option<Instant>,
    ) {
        self.lock().controllers.remove(id, subsystem, lost);
    }

    /// The subsystem is gone; its remaining controllers are closing.
    pub(crate) fn forget_numbers(&self, subsystem: &Nqn) {
        self.lock().controllers.forget(subsystem);
    }

    /// Whether any subsystem has a controller of this number.
    pub(crate) fn has_controller(&self, id: ControllerId) -> bool {
        self.lock().controllers.has_any(id)
    }

    /// Where a subsystem's controller lives.
    pub(crate) fn find_controller(&self, id: ControllerId, subsystem: &Nqn) -> Option<Home> {
        let place = self.lock().controllers.place(id, subsystem)?;
        Some(Home { place, cntlid: id })
    }

    /// What is known of a controller that a host names.
    pub(crate) fn find_instance(
        &self,
        subsystem: &Nqn,
        host: &HostNqn,
        instance: ControllerInstance,
    ) -> Found {
        self.lock().controllers.find(subsystem, host, instance)
    }

    /// A subsystem's controllers and their hosts, by ascending number.
    pub(crate) fn controllers_of(&self, subsystem: &Nqn) -> Vec<(ControllerId, HostNqn)> {
        self.lock().controllers.of(subsystem)
    }

    /// Controllers of the target.
    pub(crate) fn controllers(&self) -> usize {
        self.lock().controllers.len()
    }

    /// Hands a host's request to the thread that executes it; false: there is no such thread.
    pub(crate) fn manage(&self, request: ManagementRequest) -> bool {
        self.manager().as_ref().is_some_and(|manager| manager.send(request).is_ok())
    }

    /// The way to the thread that changes namespaces; without it, the thread ends.
    pub(crate) fn manager(&self) -> MutexGuard<'_, Option<mpsc::Sender<ManagementRequest>>> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request of a core to the thread that changes reservations; false: there is no such thread. Of a manual core,
    /// it gets it at the end of the core's turn: what it answers meanwhile would depend on its speed.
    pub(crate) fn reserve(&self, request: DeviceRequest) -> bool {
        if !self.is_manual() {
            return self.reserve_at_once(request);
        }
        let is_there = self.reserver().is_some();
        if is_there {
            self.held_requests().push(request);
            self.reserver_progress.held_count.fetch_add(1, Ordering::Relaxed);
        }
        is_there
    }

    /// The turn of a manual core has ended.
    pub(crate) fn release_requests(&self) {
        // The same thread has counted them.
        if self.reserver_progress.held_count.load(Ordering::Relaxed) > 0 {
            self.release_held();
        }
    }

    #[cold]
    fn release_held(&self) {
        self.reserver_progress.held_count.store(0, Ordering::Relaxed);
        let held = std::mem::take(&mut *self.held_requests());
        for request in held {
            self.reserve_at_once(request);
        }
    }

    fn held_requests(&self) -> MutexGuard<'_, Vec<DeviceRequest>> {
        self.reserver_progress.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reserve_at_once(&self, request: DeviceRequest) -> bool {
        self.reserver_progress.asked.fetch_add(1, Ordering::SeqCst);
        let sent = self.reserver().as_ref().is_some_and(|reserver| reserver.send(request).is_ok());
        if !sent {
            self.reserver_progress.done.fetch_add(1, Ordering::SeqCst);
        }
        sent
    }

    /// Whether cores are driven by a caller, for simulation: then nothing may depend on the time of threads.
    pub(crate) fn is_manual(&self) -> bool {
        self.computes_here
    }

    /// The way to the thread that changes reservations; without it, the thread ends.
    pub(crate) fn reserver(&self) -> MutexGuard<'_, Option<mpsc::Sender<DeviceRequest>>> {
        self.reserver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sessions of iSCSI.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of all queues.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
