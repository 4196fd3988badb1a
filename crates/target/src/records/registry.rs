//! What all cores share off the I/O path: controller numbers, pre-Connect caps, placement.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Instant;

use raceline_auth::{Waiting, Work, Worker};
use raceline_proto::nvme::{ControllerId, HostNqn, Nqn};
use raceline_reactor::Sender;

use crate::changes::config::TargetConfig;
use crate::changes::management::ManagementRequest;
use crate::changes::message::Message;
use crate::records::attempts::Attempts;
use crate::records::early::{Crowded, Early, Source, Ticket};
use crate::records::ledger::Ledger;
use crate::records::names::{CommandPlace, Home, Place};
use crate::records::placement::{Arrival, Placement, Seat};

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
    registry: Mutex<Registry>,
    ledger: Mutex<Ledger>,
    /// Computes for authentications. It starts with the first one; `None`: it could not.
    authenticator: OnceLock<Option<Worker>>,
    /// There is no such thread: cores compute themselves.
    computes_here: bool,
    /// The way to the thread that changes namespaces for hosts, once there is a pool.
    manager: Mutex<Option<mpsc::Sender<ManagementRequest>>>,
}

struct Registry {
    placement: Placement,
    /// The controllers of each subsystem that has any.
    controllers: HashMap<Nqn, Numbers>,
    /// Number of controllers of each host that has any, in all subsystems.
    hosts: HashMap<HostNqn, usize>,
    early: Early,
    attempts: Attempts,
}

/// The controllers of one subsystem.
#[derive(Default)]
struct Numbers {
    used: BTreeMap<u16, Entry>,
    /// The number that was given out last.
    last: u16,
    /// The subsystem is gone: forget it with its last controller.
    gone: bool,
}

struct Entry {
    place: Place,
    host: HostNqn,
    /// It counts among those of its host.
    counted: bool,
}

/// Why there is no controller number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoController {
    /// All numbers are in use.
    Exhausted,
    /// The host has as many controllers as it may.
    HostLimit,
}

impl Shared {
    pub(crate) fn new(config: TargetConfig, cores: usize) -> Self {
        let registry = Registry {
            placement: Placement::new(config.placement, &config.cores, cores),
            controllers: HashMap::new(),
            hosts: HashMap::new(),
            early: Early::new(&config.pre_connect),
            attempts: Attempts::new(config.pre_connect.failures_per_source),
        };
        let ledger = Mutex::new(Ledger::new(cores));
        let (senders, registry) = (OnceLock::new(), Mutex::new(registry));
        let manager = Mutex::new(None);
        let authenticator = OnceLock::new();
        let computes_here = false;
        let departures = AtomicU64::new(0);
        Self {
            config,
            senders,
            cores,
            departures,
            registry,
            ledger,
            authenticator,
            computes_here,
            manager,
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

    /// The host has shown who it is, or the socket is gone.
    pub(crate) fn leave(&self, ticket: Ticket) {
        self.lock().early.leave(ticket);
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

    /// Assigns one of the `ids` as controller number of a subsystem. A number is reused only after it was
    /// given back and all higher free ones were used. While the host has not proved who it is (`is_proven`), the
    /// controller does not count as one of its own: strangers must not use up what a host may have.
    pub(crate) fn add_controller(
        &self,
        place: Place,
        subsystem: &Nqn,
        host: &HostNqn,
        ids: &RangeInclusive<u16>,
        is_proven: bool,
    ) -> Result<ControllerId, NoController> {
        let registry = &mut *self.lock();
        if registry.has_most(host, &self.config) {
            return Err(NoController::HostLimit);
        }
        let numbers = registry.controllers.entry(subsystem.clone()).or_default();
        // An earlier subsystem of that name may have had other numbers.
        let last = numbers.last.clamp(ids.start() - 1, *ids.end());
        let mut next = (last + 1..=*ids.end()).chain(*ids.start()..=last);
        let free = next.find(|id| !numbers.used.contains_key(id));
        let id = free.ok_or(NoController::Exhausted)?;
        numbers.used.insert(id, Entry { place, host: host.clone(), counted: is_proven });
        numbers.last = id;
        numbers.gone = false;
        if is_proven {
            *registry.hosts.entry(host.clone()).or_default() += 1;
        }
        Ok(ControllerId(id))
    }

    /// The host of a controller has proved who it is: the controller counts as one of its own from here on, unless
    /// (`false`) the host has as many as it may.
    pub(crate) fn prove_controller(&self, id: ControllerId, subsystem: &Nqn) -> bool {
        let registry = &mut *self.lock();
        let numbers = registry.controllers.get(subsystem);
        let Some(entry) = numbers.and_then(|numbers| numbers.used.get(&id.0)) else { return false };
        if entry.counted {
            return true;
        }
        let host = entry.host.clone();
        if registry.has_most(&host, &self.config) {
            return false;
        }
        *registry.hosts.entry(host).or_default() += 1;
        let numbers = registry.controllers.get_mut(subsystem);
        if let Some(entry) = numbers.and_then(|numbers| numbers.used.get_mut(&id.0)) {
            entry.counted = true;
        }
        true
    }

    /// The association is torn down completely.
    pub(crate) fn remove_controller(&self, id: ControllerId, subsystem: &Nqn) {
        let registry = &mut *self.lock();
        let Some(numbers) = registry.controllers.get_mut(subsystem) else { return };
        let Some(entry) = numbers.used.remove(&id.0) else { return };
        if numbers.gone && numbers.used.is_empty() {
            registry.controllers.remove(subsystem);
        }
        if entry.counted
            && let hash_map::Entry::Occupied(mut count) = registry.hosts.entry(entry.host)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The subsystem is gone; its remaining controllers are closing.
    pub(crate) fn forget_numbers(&self, subsystem: &Nqn) {
        let mut registry = self.lock();
        if let hash_map::Entry::Occupied(mut numbers) =
            registry.controllers.entry(subsystem.clone())
        {
            numbers.get_mut().gone = true;
            if numbers.get().used.is_empty() {
                numbers.remove();
            }
        }
    }

    /// Where a subsystem's controller lives.
    pub(crate) fn find_controller(&self, id: ControllerId, subsystem: &Nqn) -> Option<Home> {
        let registry = self.lock();
        let entry = registry.controllers.get(subsystem)?.used.get(&id.0)?;
        Some(Home { place: entry.place, cntlid: id })
    }

    /// A subsystem's controllers and their hosts, by ascending number.
    pub(crate) fn controllers_of(&self, subsystem: &Nqn) -> Vec<(ControllerId, HostNqn)> {
        let registry = self.lock();
        let numbers = registry.controllers.get(subsystem).into_iter();
        let entries = numbers.flat_map(|numbers| &numbers.used);
        entries.map(|(&id, entry)| (ControllerId(id), entry.host.clone())).collect()
    }

    /// Controllers of the target.
    pub(crate) fn controllers(&self) -> usize {
        self.lock().controllers.values().map(|numbers| numbers.used.len()).sum()
    }

    /// Hands a host's request to the thread that executes it; false: there is no such thread.
    pub(crate) fn manage(&self, request: ManagementRequest) -> bool {
        self.manager().as_ref().is_some_and(|manager| manager.send(request).is_ok())
    }

    /// The way to the thread that changes namespaces; without it, the thread ends.
    pub(crate) fn manager(&self) -> MutexGuard<'_, Option<mpsc::Sender<ManagementRequest>>> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of all queues.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Whether a host has as many controllers as it may.
    fn has_most(&self, host: &HostNqn, config: &TargetConfig) -> bool {
        self.hosts.get(host).is_some_and(|count| *count >= config.max_controllers_per_host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::names::ConnKey;

    fn place() -> Place {
        Place { core: 0, key: ConnKey { index: 0, generation: 0 } }
    }

    const ALL: RangeInclusive<u16> = 1..=0xffef;

    #[test]
    fn a_controller_number_is_not_reused_before_all_others() {
        let shared = Shared::new(TargetConfig::default(), 1);
        let nqn = Nqn::new("nqn.2026-01.io.raceline:s").unwrap();
        let other = Nqn::new("nqn.2026-01.io.raceline:h").unwrap();
        let host = HostNqn::Named(other.clone());
        let first = shared.add_controller(place(), &nqn, &host, &ALL, true).unwrap();
        shared.remove_controller(first, &nqn);
        let second = shared.add_controller(place(), &nqn, &host, &ALL, true).unwrap();
        assert_ne!(first, second);
        assert!(shared.find_controller(second, &nqn).is_some());
        assert!(shared.find_controller(second, &other).is_none());
    }

    #[test]
    fn one_host_has_at_most_its_share_of_controllers() {
        let config = TargetConfig { max_controllers_per_host: 2, ..TargetConfig::default() };
        let shared = Shared::new(config, 1);
        let nqn = Nqn::new("nqn.2026-01.io.raceline:s").unwrap();
        let host = HostNqn::Named(Nqn::new("nqn.2026-01.io.raceline:h").unwrap());
        let add = |is_proven| shared.add_controller(place(), &nqn, &host, &ALL, is_proven);
        // Strangers who use its name take nothing from it.
        let strangers = [(); 5].map(|()| add(false).unwrap());
        let own = add(true).unwrap();
        assert!(shared.prove_controller(strangers[0], &nqn));
        assert!(shared.prove_controller(strangers[0], &nqn), "it counts once");
        assert!(!shared.prove_controller(strangers[1], &nqn));
        assert_eq!(add(true), Err(NoController::HostLimit));
        strangers[1..].iter().for_each(|id| shared.remove_controller(*id, &nqn));
        assert_eq!(add(true), Err(NoController::HostLimit));
        shared.remove_controller(own, &nqn);
        add(true).unwrap();
    }

    #[test]
    fn controller_numbers_are_those_of_the_subsystem() {
        let shared = Shared::new(TargetConfig::default(), 1);
        let host = HostNqn::Unnamed;
        for name in ["nqn.2026-01.io.raceline:a", "nqn.2026-01.io.raceline:b"] {
            let nqn = Nqn::new(name).unwrap();
            let ids = 7..=9;
            let add = || shared.add_controller(place(), &nqn, &host, &ids, true).map(|id| id.0);
            assert_eq!([add(), add(), add()], [Ok(7), Ok(8), Ok(9)]);
            assert_eq!(add(), Err(NoController::Exhausted));
            shared.remove_controller(ControllerId(8), &nqn);
            assert_eq!(add(), Ok(8));
            assert_eq!(shared.controllers_of(&nqn).len(), 3);
        }
        assert_eq!(shared.controllers(), 6);
    }
}
