//! What exists, as all cores see it: an immutable snapshot, replaced as a whole.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_auth::{Algorithms, Keys};
use raceline_proto::controller::{
    IoCommand, Namespace, Subsystem, TargetSnapshot, find_namespace, parse_io,
};
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{Fuse, NamespaceId, Nqn, Sqe, Status, Transfer};
use raceline_proto::reservation::{
    AccessGroup, Registrant, Reservations, ReservingHost, Rights, access_group,
};

use crate::changes::iscsi_view::IscsiView;
use crate::records::counters::{QueueCounters, QueueTotals};
use crate::records::limited::{Levels, Limited, Weight};

pub(crate) use crate::records::names::DeviceId;

/// What controllers show to hosts, and which device is behind each namespace.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) target: Arc<TargetSnapshot>,
    /// By ascending NQN; the same [`Arc`] as before where nothing has changed.
    pub(crate) subsystems: Vec<Arc<SubsystemDevices>>,
    /// The keys of all hosts, for the discovery service.
    pub(crate) discovery: Arc<Secrets>,
    /// What iSCSI initiators can reach.
    pub(crate) iscsi: Arc<IscsiView>,
    /// At least one host has a weight.
    pub(crate) weighted: bool,
}

impl Snapshot {
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<SubsystemDevices>> {
        let place = self.subsystems.binary_search_by(|s| s.subsystem.nqn.cmp(nqn)).ok()?;
        self.subsystems.get(place)
    }

    /// The keys of the hosts of a subsystem, or of the discovery service.
    pub(crate) fn secrets(&self, nqn: &Nqn) -> Option<&Arc<Secrets>> {
        match nqn.is_discovery() {
            true => Some(&self.discovery),
            false => self.subsystem(nqn).map(|subsystem| &subsystem.secrets),
        }
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
    /// The keys that hosts have for any of several subsystems.
    pub(crate) fn of_all<'a>(
        all: impl Iterator<Item = &'a BTreeMap<Nqn, Keys>>,
        algorithms: Algorithms,
    ) -> Self {
        let mut hosts: BTreeMap<Nqn, Keys> = BTreeMap::new();
        for (host, keys) in all.flatten() {
            let known = &mut hosts.entry(host.clone()).or_default().pairs;
            for pair in &keys.pairs {
                if !known.contains(pair) {
                    known.push(pair.clone());
                }
            }
        }
        Self { hosts, algorithms }
    }

    /// The keys of a host, and what is allowed; `None`: the host need not authenticate.
    pub(crate) fn of(&self, host: &Nqn) -> Option<(Keys, Algorithms)> {
        Some((self.hosts.get(host)?.clone(), self.algorithms.clone()))
    }
}

impl SubsystemDevices {
    /// The part for which all commands of this host run that come by this port: namespaces and their devices, in
    /// the same order. With it, what the host sees besides and cannot use, or can use in part.
    fn usable(&self, host: &ReservingHost, port_id: u16) -> (Self, Apart) {
        let subsystem = self.subsystem.visible_to(&host.name);
        let mut apart = Apart::default();
        let all = self.subsystem.namespaces.iter().zip(self.devices.iter());
        for (ns, device) in all.filter(|(ns, _)| ns.visibility.includes(&host.name)) {
            let reserved = self.reservations(ns.nsid);
            let rights = reserved.map_or(Rights::ALL, |reserved| reserved.rights(host));
            let levels = self.limited.levels(&host.name, ns.nsid);
            if let Some(status) = subsystem.refusal(port_id, ns) {
                apart.refused.push((ns.nsid, status));
            } else if rights != Rights::ALL || !levels.is_empty() {
                let (namespace, device) = (ns.clone(), *device);
                apart.slow.push(Slow { namespace, device, rights, levels });
            }
        }
        if Arc::ptr_eq(&subsystem, &self.subsystem) && apart.is_empty() {
            return (self.clone(), apart);
        }
        let all = self.subsystem.namespaces.iter().zip(self.devices.iter());
        let runs = |nsid| !apart.has(nsid);
        let usable = all.filter(|(ns, _)| ns.visibility.includes(&host.name) && runs(ns.nsid));
        let devices = usable.map(|(_, device)| *device).collect();
        let subsystem = if apart.is_empty() {
            subsystem
        } else {
            let namespaces = subsystem.namespaces.iter().filter(|ns| runs(ns.nsid));
            let namespaces = namespaces.cloned().collect();
            Arc::new(Subsystem { namespaces, ..Subsystem::clone(&subsystem) })
        };
        (Self { subsystem, devices, ..self.clone() }, apart)
    }

    /// The reservations of a namespace; `None`: it has none.
    fn reservations(&self, nsid: NamespaceId) -> Option<&Arc<Reservations>> {
        self.subsystem.reservations.as_ref()?.get(&nsid.0)
    }
}

/// Namespaces that the path of commands does not find: commands for them take a slower way.
#[derive(Debug, Default)]
struct Apart {
    /// Those that commands cannot use now because of the state of their ANA group, and what the commands complete
    /// with.
    refused: Vec<(NamespaceId, Status)>,
    /// Those of which a reservation leaves the host a part, or that have limits.
    slow: Vec<Slow>,
}

impl Apart {
    fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.slow.is_empty()
    }

    fn has(&self, nsid: NamespaceId) -> bool {
        self.refused.iter().any(|(refused, _)| *refused == nsid)
            || self.slow.iter().any(|slow| slow.namespace.nsid == nsid)
    }
}

/// A namespace that another host has reserved, or whose commands have limits.
#[derive(Debug)]
struct Slow {
    namespace: Namespace,
    device: DeviceId,
    rights: Rights,
    levels: Levels,
}

impl Slow {
    fn check(&self, opcode: u8, fuse: Fuse) -> Result<(), Status> {
        let group = if fuse == Fuse::Normal { access_group(opcode) } else { AccessGroup::Write };
        if self.rights.allow(group) { Ok(()) } else { Err(Status::RESERVATION_CONFLICT.dnr()) }
    }
}

/// An I/O command, and where it goes.
pub(crate) struct Parsed {
    pub(crate) command: IoCommand,
    pub(crate) transfer: Transfer,
    pub(crate) device: DeviceId,
    pub(crate) block_size: u64,
}

/// A queue's copy of its subsystem: the part that its host sees and can use.
///
/// A namespace whose ANA group is not accessible by the queue's port is left out. So are one of which a reservation
/// leaves the host only a part, and one with limits, which take a slower way. So the path of the other commands need not
/// look for any of that.
#[derive(Debug)]
pub(crate) struct VisibleSubsystem {
    host: ReservingHost,
    port_id: u16,
    all: Arc<SubsystemDevices>,
    /// What the host's commands can use without limits.
    pub(crate) devices: SubsystemDevices,
    apart: Apart,
}

impl VisibleSubsystem {
    pub(crate) fn new(all: &Arc<SubsystemDevices>, host: ReservingHost, port_id: u16) -> Self {
        let (devices, apart) = all.usable(&host, port_id);
        Self { host, port_id, all: Arc::clone(all), devices, apart }
    }

    /// Takes the subsystem of a newer snapshot. `None`: it is the same. Otherwise gives whether a reservation leaves the
    /// host only a part of a namespace, or a namespace is write protected: commands that have not reached their device
    /// may have become illegal.
    pub(crate) fn update(&mut self, all: &Arc<SubsystemDevices>) -> Option<bool> {
        if Arc::ptr_eq(&self.all, all) {
            return None;
        }
        self.all = Arc::clone(all);
        (self.devices, self.apart) = all.usable(&self.host, self.port_id);
        let is_protected = |ns: &Namespace| ns.protection != WriteProtection::None;
        let restricts = |slow: &Slow| slow.rights != Rights::ALL || is_protected(&slow.namespace);
        let namespaces = &self.devices.subsystem.namespaces;
        Some(self.apart.slow.iter().any(restricts) || namespaces.iter().any(is_protected))
    }

    /// The status of a command for a namespace that is not among [`Self::devices`].
    #[cold]
    pub(crate) fn refusal(&self, nsid: NamespaceId) -> Status {
        let refused = self.apart.refused.iter().find(|(refused, _)| *refused == nsid);
        refused.map_or(Status::INVALID_NAMESPACE.dnr(), |(_, status)| *status)
    }

    /// Reads a command for a namespace that is not among [`Self::devices`], against the reservation that may keep it
    /// from there. Also gives the limits that it has to keep.
    ///
    /// # Errors
    /// The status to complete it with.
    #[cold]
    pub(crate) fn parse_apart(&self, sqe: &Sqe) -> Result<(Parsed, Levels), Status> {
        let nsid = sqe.namespace_id();
        let found = self.apart.slow.iter().find(|slow| slow.namespace.nsid == nsid);
        let slow = found.ok_or_else(|| self.refusal(nsid))?;
        slow.check(sqe.opc, sqe.fuse())?;
        let namespaces = std::slice::from_ref(&slow.namespace);
        let (command, transfer) = parse_io(sqe, namespaces, &self.devices.subsystem.limits)?;
        let block_size = u64::from(slow.namespace.block_size);
        let parsed = Parsed { command, transfer, device: slow.device, block_size };
        Ok((parsed, Levels::clone(&slow.levels)))
    }

    /// Checks whether reservation and write protection let the host's command go to a device.
    #[cold]
    pub(crate) fn check(
        &self,
        device: DeviceId,
        sqe: &Sqe,
        changes_data: bool,
    ) -> Result<(), Status> {
        if changes_data && self.on_device(device).is_some_and(|ns| ns.read_only) {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        let found = self.apart.slow.iter().find(|slow| slow.device == device);
        found.map_or(Ok(()), |slow| slow.check(sqe.opc, sqe.fuse()))
    }

    /// A namespace that the host may read, and its device: what a Copy reads from.
    ///
    /// # Errors
    /// The status of a Copy from there.
    pub(crate) fn source(&self, nsid: NamespaceId) -> Result<(&Namespace, DeviceId), Status> {
        let namespaces = &self.devices.subsystem.namespaces;
        if let Some(place) = find_namespace(namespaces, nsid)
            && let (Some(namespace), Some(device)) =
                (namespaces.get(place), self.devices.devices.get(place))
        {
            return Ok((namespace, *device));
        }
        let found = self.apart.slow.iter().find(|slow| slow.namespace.nsid == nsid);
        let slow = found.ok_or_else(|| self.refusal(nsid))?;
        if !slow.rights.allow(AccessGroup::Read) {
            return Err(Status::RESERVATION_CONFLICT.dnr());
        }
        Ok((&slow.namespace, slow.device))
    }

    /// The namespace on a device, if the host can use it at least in part.
    pub(crate) fn on_device(&self, device: DeviceId) -> Option<&Namespace> {
        let apart = || {
            let found = self.apart.slow.iter().find(|slow| slow.device == device);
            found.map(|slow| &slow.namespace)
        };
        let place = self.devices.devices.iter().position(|id| *id == device);
        place.and_then(|i| self.devices.subsystem.namespaces.get(i)).or_else(apart)
    }

    /// The reservations of a namespace that the host sees.
    ///
    /// # Errors
    /// The status of a reservation command: the host sees no such namespace, cannot use it, or it cannot be
    /// reserved.
    pub(crate) fn reservations(&self, nsid: NamespaceId) -> Result<Arc<Reservations>, Status> {
        let Some(reserved) = &self.all.subsystem.reservations else {
            return Err(Status::INVALID_OPCODE.dnr());
        };
        let is_usable = find_namespace(&self.devices.subsystem.namespaces, nsid).is_some()
            || self.apart.slow.iter().any(|slow| slow.namespace.nsid == nsid);
        if !is_usable {
            return Err(self.refusal(nsid));
        }
        Ok(reserved.get(&nsid.0).cloned().unwrap_or_default())
    }

    /// Whose commands these are.
    pub(crate) fn host(&self) -> &ReservingHost {
        &self.host
    }

    /// Whether they are those of one of these registrants.
    pub(crate) fn is_of(&self, registrants: &[Registrant]) -> bool {
        registrants.iter().any(|registrant| registrant.is(&self.host))
    }

    pub(crate) fn nqn(&self) -> &Nqn {
        &self.all.subsystem.nqn
    }

    /// The weight of the host's commands.
    pub(crate) fn weight(&self) -> Weight {
        self.all.limited.weight(&self.host.name)
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
