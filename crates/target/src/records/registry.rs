//! What all cores share off the I/O path: controller numbers, pre-Connect caps, placement.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

use raceline_auth::{Work, Worker};
use raceline_proto::nvme::{ControllerId, HostNqn, Nqn};
use raceline_reactor::Sender;

use crate::changes::config::TargetConfig;
use crate::changes::management::ManagementRequest;
use crate::changes::message::Message;
use crate::records::ledger::Ledger;
use crate::records::names::{CommandPlace, Home, Place};
use crate::records::placement::{Arrival, Placement, Seat};

/// Computations of authentications that may wait: 1 s of work with the largest group and 5 ms each.
const MAX_AUTHENTICATIONS: usize = 200;

/// Shared by all cores of a target.
pub(crate) struct Shared {
    pub(crate) config: TargetConfig,
    senders: OnceLock<Vec<Sender<Message>>>,
    cores: usize,
    registry: Mutex<Registry>,
    ledger: Mutex<Ledger>,
    /// Computes for authentications. It starts with the first one; `None`: it could not.
    authenticator: OnceLock<Option<Worker>>,
    /// The way to the thread that changes namespaces for hosts, once there is a pool.
    manager: Mutex<Option<mpsc::Sender<ManagementRequest>>>,
}

struct Registry {
    placement: Placement,
    /// The controllers of each subsystem that has any.
    controllers: HashMap<Nqn, Numbers>,
    /// Number of controllers of each host that has any, in all subsystems.
    hosts: HashMap<HostNqn, usize>,
    pre_connect: HashMap<IpAddr, usize>,
    pre_connect_total: usize,
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
}

/// Why there is no controller number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoController {
    /// All numbers are in use.
    Exhausted,
    /// The host has as many controllers as it may.
    HostLimit,
}

/// Why a socket is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// Too many sockets wait for Connect.
    Total,
    /// Too many of them from this address.
    Source,
}

impl Shared {
    pub(crate) fn new(config: TargetConfig, cores: usize) -> Self {
        let registry = Registry {
            placement: Placement::new(config.placement, &config.cores, cores),
            controllers: HashMap::new(),
            hosts: HashMap::new(),
            pre_connect: HashMap::new(),
            pre_connect_total: 0,
        };
        let ledger = Mutex::new(Ledger::new(cores));
        let (senders, registry) = (OnceLock::new(), Mutex::new(registry));
        let manager = Mutex::new(None);
        let authenticator = OnceLock::new();
        Self { config, senders, cores, registry, ledger, authenticator, manager }
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
    pub(crate) fn authenticate(self: &Arc<Self>, work: Work, to: CommandPlace) -> bool {
        let start = || match Worker::start(MAX_AUTHENTICATIONS) {
            Ok(worker) => Some(worker),
            Err(error) => {
                tracing::error!(%error, "cannot start the thread for authentications");
                None
            }
        };
        let Some(worker) = self.authenticator.get_or_init(start) else { return false };
        let shared = Arc::clone(self);
        let done = move |finished| {
            let finished = Box::new(finished);
            shared.send(to.conn.core, Message::Authenticated { to, finished });
        };
        worker.submit(work, done).is_ok()
    }

    /// Chooses a core for a new connection and counts it there.
    pub(crate) fn place(&self, arrival: Arrival, listener: usize) -> Seat {
        self.lock().placement.place(arrival, listener)
    }

    /// The connection is gone.
    pub(crate) fn unplace(&self, seat: Seat) {
        self.lock().placement.unplace(seat);
    }

    /// Connections on each core.
    pub(crate) fn loads(&self) -> Vec<usize> {
        self.lock().placement.connections()
    }

    /// Counts a socket that has not completed Connect, or refuses it.
    pub(crate) fn enter(&self, source: IpAddr) -> Result<(), Crowded> {
        let limits = &self.config.pre_connect;
        let mut registry = self.lock();
        if registry.pre_connect_total >= limits.total {
            return Err(Crowded::Total);
        }
        let count = registry.pre_connect.entry(source).or_default();
        if *count >= limits.per_source {
            return Err(Crowded::Source);
        }
        *count += 1;
        registry.pre_connect_total += 1;
        Ok(())
    }

    /// The socket has completed Connect or is gone.
    pub(crate) fn leave(&self, source: IpAddr) {
        let mut registry = self.lock();
        if let Some(count) = registry.pre_connect.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                registry.pre_connect.remove(&source);
            }
            registry.pre_connect_total -= 1;
        }
    }

    /// Sockets that have not completed Connect.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().pre_connect_total
    }

    /// Assigns one of the `ids` as controller number of a subsystem. A number is reused only after it was
    /// given back and all higher free ones were used.
    pub(crate) fn add_controller(
        &self,
        place: Place,
        subsystem: &Nqn,
        host: &HostNqn,
        ids: &RangeInclusive<u16>,
    ) -> Result<ControllerId, NoController> {
        let registry = &mut *self.lock();
        let of_host = registry.hosts.get(host).copied().unwrap_or(0);
        if of_host >= self.config.max_controllers_per_host {
            return Err(NoController::HostLimit);
        }
        let numbers = registry.controllers.entry(subsystem.clone()).or_default();
        // An earlier subsystem of that name may have had other numbers.
        let last = numbers.last.clamp(ids.start() - 1, *ids.end());
        let mut next = (last + 1..=*ids.end()).chain(*ids.start()..=last);
        let free = next.find(|id| !numbers.used.contains_key(id));
        let id = free.ok_or(NoController::Exhausted)?;
        numbers.used.insert(id, Entry { place, host: host.clone() });
        numbers.last = id;
        numbers.gone = false;
        registry.hosts.insert(host.clone(), of_host + 1);
        Ok(ControllerId(id))
    }

    /// The association is torn down completely.
    pub(crate) fn remove_controller(&self, id: ControllerId, subsystem: &Nqn) {
        let registry = &mut *self.lock();
        let Some(numbers) = registry.controllers.get_mut(subsystem) else { return };
        let Some(entry) = numbers.used.remove(&id.0) else { return };
        if numbers.gone && numbers.used.is_empty() {
            registry.controllers.remove(subsystem);
        }
        if let hash_map::Entry::Occupied(mut count) = registry.hosts.entry(entry.host) {
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
        self.lock().hosts.values().sum()
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
        let first = shared.add_controller(place(), &nqn, &host, &ALL).unwrap();
        shared.remove_controller(first, &nqn);
        let second = shared.add_controller(place(), &nqn, &host, &ALL).unwrap();
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
        shared.add_controller(place(), &nqn, &host, &ALL).unwrap();
        shared.add_controller(place(), &nqn, &host, &ALL).unwrap();
        assert_eq!(shared.add_controller(place(), &nqn, &host, &ALL), Err(NoController::HostLimit));
    }

    #[test]
    fn controller_numbers_are_those_of_the_subsystem() {
        let shared = Shared::new(TargetConfig::default(), 1);
        let host = HostNqn::Unnamed;
        for name in ["nqn.2026-01.io.raceline:a", "nqn.2026-01.io.raceline:b"] {
            let nqn = Nqn::new(name).unwrap();
            let add = || shared.add_controller(place(), &nqn, &host, &(7..=9)).map(|id| id.0);
            assert_eq!([add(), add(), add()], [Ok(7), Ok(8), Ok(9)]);
            assert_eq!(add(), Err(NoController::Exhausted));
            shared.remove_controller(ControllerId(8), &nqn);
            assert_eq!(add(), Ok(8));
            assert_eq!(shared.controllers_of(&nqn).len(), 3);
        }
        assert_eq!(shared.controllers(), 6);
    }

    #[test]
    fn sockets_before_connect_are_capped_by_source_and_in_total() {
        let mut config = TargetConfig::default();
        config.pre_connect.total = 3;
        config.pre_connect.per_source = 2;
        let shared = Shared::new(config, 1);
        let [a, b] = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])];
        assert_eq!(shared.enter(a), Ok(()));
        assert_eq!(shared.enter(a), Ok(()));
        assert_eq!(shared.enter(a), Err(Crowded::Source));
        assert_eq!(shared.enter(b), Ok(()));
        assert_eq!(shared.enter(b), Err(Crowded::Total));
        shared.leave(a);
        assert_eq!(shared.enter(b), Ok(()));
    }
}
