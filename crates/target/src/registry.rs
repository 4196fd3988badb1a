//! What all cores share off the I/O path: controller numbers, pre-Connect caps, placement.

use std::collections::{HashMap, hash_map};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use raceline_proto::nvme::{ControllerId, HostNqn, Nqn};
use raceline_reactor::Sender;

use crate::config::TargetConfig;
use crate::message::{Home, Message, Place};
use crate::placement::{Arrival, Placement, Seat};

/// Shared by all cores of a target.
pub(crate) struct Shared {
    pub(crate) config: TargetConfig,
    senders: OnceLock<Vec<Sender<Message>>>,
    cores: usize,
    registry: Mutex<Registry>,
}

struct Registry {
    placement: Placement,
    controllers: HashMap<u16, Entry>,
    last_cntlid: u16,
    pre_connect: HashMap<IpAddr, usize>,
    pre_connect_total: usize,
}

struct Entry {
    place: Place,
    subsystem: Nqn,
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
    /// Largest controller number handed out; FFF0h and up are reserved (Fabrics 1.1, 3.3).
    const MAX_CNTLID: u16 = 0xffef;

    pub(crate) fn new(config: TargetConfig, cores: usize) -> Self {
        let registry = Registry {
            placement: Placement::new(config.placement, &config.cores, cores),
            controllers: HashMap::new(),
            last_cntlid: 0,
            pre_connect: HashMap::new(),
            pre_connect_total: 0,
        };
        Self { config, senders: OnceLock::new(), cores, registry: Mutex::new(registry) }
    }

    pub(crate) fn set_senders(&self, senders: Vec<Sender<Message>>) {
        assert!(self.senders.set(senders).is_ok(), "cores start once");
    }

    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// To another core, or to this one: it comes with the next turn of its loop.
    pub(crate) fn send(&self, core: usize, message: Message) {
        if let Some(senders) = self.senders.get() {
            // A core that has ended has no connections left to care.
            let _ = senders[core].send(message);
        }
    }

    /// Chooses a core for a new connection and counts it there.
    pub(crate) fn place(&self, arrival: Arrival) -> Seat {
        self.lock().placement.place(arrival)
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

    /// Hands out a controller number, not reused until it is given back.
    pub(crate) fn add_controller(
        &self,
        place: Place,
        subsystem: &Nqn,
        host: &HostNqn,
    ) -> Result<ControllerId, NoController> {
        let mut registry = self.lock();
        let of_host = registry.controllers.values().filter(|entry| entry.host == *host).count();
        if of_host >= self.config.max_controllers_per_host {
            return Err(NoController::HostLimit);
        }
        let mut id = registry.last_cntlid;
        for _ in 0..Self::MAX_CNTLID {
            id = if id >= Self::MAX_CNTLID { 1 } else { id + 1 };
            if let hash_map::Entry::Vacant(vacant) = registry.controllers.entry(id) {
                let (subsystem, host) = (subsystem.clone(), host.clone());
                vacant.insert(Entry { place, subsystem, host });
                registry.last_cntlid = id;
                return Ok(ControllerId(id));
            }
        }
        Err(NoController::Exhausted)
    }

    /// The association is torn down completely.
    pub(crate) fn remove_controller(&self, id: ControllerId) {
        self.lock().controllers.remove(&id.0);
    }

    /// Where a subsystem's controller lives.
    pub(crate) fn find_controller(&self, id: ControllerId, subsystem: &Nqn) -> Option<Home> {
        let registry = self.lock();
        let entry = registry.controllers.get(&id.0)?;
        (entry.subsystem == *subsystem).then_some(Home { place: entry.place, cntlid: id })
    }

    /// Controllers of the target.
    pub(crate) fn controllers(&self) -> usize {
        self.lock().controllers.len()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ConnKey;

    fn place() -> Place {
        Place { core: 0, key: ConnKey { index: 0, generation: 0 } }
    }

    #[test]
    fn a_controller_number_is_not_reused_before_all_others() {
        let shared = Shared::new(TargetConfig::default(), 1);
        let nqn = Nqn::new("nqn.2026-01.io.raceline:s").unwrap();
        let other = Nqn::new("nqn.2026-01.io.raceline:h").unwrap();
        let host = HostNqn::Named(other.clone());
        let first = shared.add_controller(place(), &nqn, &host).unwrap();
        shared.remove_controller(first);
        let second = shared.add_controller(place(), &nqn, &host).unwrap();
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
        shared.add_controller(place(), &nqn, &host).unwrap();
        shared.add_controller(place(), &nqn, &host).unwrap();
        assert_eq!(shared.add_controller(place(), &nqn, &host), Err(NoController::HostLimit));
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
