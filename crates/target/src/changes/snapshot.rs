//! What exists, as all cores see it: an immutable snapshot, replaced as a whole.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_auth::{Algorithms, Keys};
use raceline_proto::controller::{Subsystem, TargetSnapshot};
use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn, Status};

use crate::changes::qos::{Limited, LimitedNamespaces};
use crate::records::counters::{QueueCounters, QueueTotals};

/// Names a device of the target; also the owner of its operations on every core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId(pub(crate) u16);

impl DeviceId {
    /// The core that orders the device's range locks.
    pub(crate) fn warden(self, cores: usize) -> usize {
        usize::from(self.0) % cores
    }
}

/// What controllers show to hosts, and which device is behind each namespace.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) target: Arc<TargetSnapshot>,
    /// By ascending NQN; the same [`Arc`] as before where nothing has changed.
    pub(crate) subsystems: Vec<Arc<SubsystemDevices>>,
}

impl Snapshot {
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<SubsystemDevices>> {
        let place = self.subsystems.binary_search_by(|s| s.subsystem.nqn.cmp(nqn)).ok()?;
        self.subsystems.get(place)
    }
}

/// The devices of one subsystem, in the order of its namespaces.
#[derive(Clone, Debug)]
pub(crate) struct SubsystemDevices {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) devices: Arc<[DeviceId]>,
    pub(crate) stats: Arc<SubsystemStats>,
    /// The numbers that its controllers get.
    pub(crate) controller_ids: RangeInclusive<u16>,
    /// The keys of its hosts.
    pub(crate) secrets: Arc<Secrets>,
    /// The limits of rates.
    pub(crate) limited: Arc<Limited>,
}

/// The keys of the hosts of a subsystem.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets {
    /// Only hosts that have to authenticate.
    pub(crate) hosts: BTreeMap<Nqn, Keys>,
    pub(crate) algorithms: Algorithms,
}

impl Secrets {
    /// The keys of a host, and what is allowed; `None`: the host need not authenticate.
    pub(crate) fn of(&self, host: &Nqn) -> Option<(Keys, Algorithms)> {
        Some((self.hosts.get(host)?.clone(), self.algorithms.clone()))
    }
}

impl SubsystemDevices {
    /// The part for which commands of this host run that come by this port: namespaces and their devices, in
    /// the same order. With it, what the host sees besides and cannot use because of the state of its ANA
    /// group.
    fn usable(&self, host: &HostNqn, port_id: u16) -> (Self, Refused) {
        let subsystem = self.subsystem.visible_to(host);
        let refused: Refused = subsystem
            .namespaces
            .iter()
            .filter_map(|ns| Some((ns.nsid, subsystem.refusal(port_id, ns)?)))
            .collect();
        if Arc::ptr_eq(&subsystem, &self.subsystem) && refused.is_empty() {
            return (self.clone(), refused);
        }
        let all = self.subsystem.namespaces.iter().zip(self.devices.iter());
        let runs = |nsid| refused.iter().all(|(refused, _)| *refused != nsid);
        let usable = all.filter(|(ns, _)| ns.visibility.includes(host) && runs(ns.nsid));
        let devices = usable.map(|(_, device)| *device).collect();
        let subsystem = if refused.is_empty() {
            subsystem
        } else {
            let namespaces = subsystem.namespaces.iter().filter(|ns| runs(ns.nsid));
            let namespaces = namespaces.cloned().collect();
            Arc::new(Subsystem { namespaces, ..Subsystem::clone(&subsystem) })
        };
        (Self { subsystem, devices, ..self.clone() }, refused)
    }
}

/// Namespaces that commands cannot use now, and what the commands complete with.
type Refused = Vec<(NamespaceId, Status)>;

/// A queue's copy of its subsystem: the part that its host sees and can use.
///
/// A namespace whose ANA group is not accessible by the queue's port is left out, and one with limits is apart, so that
/// the path of the other commands need not look for either.
#[derive(Debug)]
pub(crate) struct VisibleSubsystem {
    host: HostNqn,
    port_id: u16,
    all: Arc<SubsystemDevices>,
    /// What the host's commands can use without limits.
    pub(crate) devices: SubsystemDevices,
    /// What they can use within limits.
    pub(crate) limited: Option<Box<LimitedNamespaces>>,
    refused: Refused,
}

impl VisibleSubsystem {
    pub(crate) fn new(all: &Arc<SubsystemDevices>, host: &HostNqn, port_id: u16) -> Self {
        let (usable, refused) = all.usable(host, port_id);
        let (devices, limited) = all.limited.split(usable, host);
        Self { host: host.clone(), port_id, all: Arc::clone(all), devices, limited, refused }
    }

    /// Takes the subsystem of a newer snapshot. Gives whether it is another one.
    pub(crate) fn update(&mut self, all: &Arc<SubsystemDevices>) -> bool {
        if Arc::ptr_eq(&self.all, all) {
            return false;
        }
        self.all = Arc::clone(all);
        let (usable, refused) = all.usable(&self.host, self.port_id);
        (self.devices, self.limited) = all.limited.split(usable, &self.host);
        self.refused = refused;
        true
    }

    /// The subsystem as far as it has the namespace of that device, and where the namespace is in it.
    pub(crate) fn namespace_of(&self, device: DeviceId) -> Option<(&Arc<Subsystem>, usize)> {
        let limited = self.limited.as_ref().map(|limited| &limited.devices);
        [Some(&self.devices), limited].into_iter().flatten().find_map(|part| {
            let place = part.devices.iter().position(|id| *id == device)?;
            Some((&part.subsystem, place))
        })
    }

    /// The status of a command for a namespace that is not among [`Self::devices`].
    #[cold]
    pub(crate) fn refusal(&self, nsid: NamespaceId) -> Status {
        let refused = self.refused.iter().find(|(refused, _)| *refused == nsid);
        refused.map_or(Status::INVALID_NAMESPACE.dnr(), |(_, status)| *status)
    }

    pub(crate) fn nqn(&self) -> &Nqn {
        &self.all.subsystem.nqn
    }
}

/// Counts of all queues that a subsystem ever had. Locked when queues come and go and when
/// a caller reads the counts, never per command.
#[derive(Debug, Default)]
pub(crate) struct SubsystemStats {
    inner: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    live: Vec<Arc<QueueCounters>>,
    closed: QueueTotals,
    /// Busy time of the closed queue that was busy longest.
    closed_busy_us: u64,
}

impl SubsystemStats {
    pub(crate) fn attach(&self, counters: Arc<QueueCounters>) {
        self.lock().live.push(counters);
    }

    pub(crate) fn detach(&self, counters: &Arc<QueueCounters>) {
        let mut queues = self.lock();
        if let Some(i) = queues.live.iter().position(|live| Arc::ptr_eq(live, counters)) {
            queues.live.swap_remove(i);
            let totals = counters.totals();
            queues.closed.add(&totals);
            queues.closed_busy_us = queues.closed_busy_us.max(totals.busy_us);
        }
    }

    pub(crate) fn totals(&self) -> QueueTotals {
        let queues = self.lock();
        let mut totals = queues.closed;
        for counters in &queues.live {
            totals.add(&counters.totals());
        }
        totals
    }

    /// Lower bound for the time that the subsystem has been busy: that of the queue that was busy
    /// longest. (Queues are busy at the same time, so the sum would be too high.)
    pub(crate) fn busy(&self) -> Duration {
        let queues = self.lock();
        let live = queues.live.iter().map(|counters| counters.busy_us.get());
        Duration::from_micros(live.max().unwrap_or(0).max(queues.closed_busy_us))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
