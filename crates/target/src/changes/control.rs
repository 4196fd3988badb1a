//! What a target exports, and how the cores come to know of a change.
//!
//! A change is made on the state, checked, and then shown to every core as a new snapshot; it is
//! over when all cores have seen it. Devices are opened on every core before a snapshot shows them
//! and closed after none does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use raceline_auth::{Algorithms, Keys};
use raceline_bdev::SharedBdev;
use raceline_proto::controller::{
    Ana, DiscoveryFilter, HostAccess, Limits, ListenerInfo, Namespace, Referral, Security,
    Subsystem, TargetSnapshot, Visibility,
};
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_reactor::{StreamProvider, no_wait};

use crate::changes::config::{SubsystemConfig, TargetError};
use crate::changes::iscsi_state::IscsiState;
use crate::changes::message::{Message, Reply};
use crate::changes::pool_map::PoolNamespace;
use crate::changes::pool_state::PoolState;
use crate::changes::reservation_state::{KeptReservations, ProtectionStore};
use crate::changes::snapshot::{DeviceId, Secrets, Snapshot, SubsystemDevices, SubsystemStats};
use crate::records::counters::QueueTotals;
use crate::records::limited::{HostLimit, Limited};
use crate::records::names::{ISCSI_OWNER, Protocol};
use crate::records::placement::PlacementPolicy;
use crate::records::registered::Registered;
use crate::records::registry::Shared;

/// How long a core may take to answer the control thread: it answers within a turn of its loop.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a device may take to have nothing in flight when it is removed, and a core to end when the
/// target stops.
pub(crate) const QUIET_TIMEOUT: Duration = Duration::from_secs(30);
/// Firmware revision (FR): our version, at most 8 characters.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// Where changes are made, one at a time.
pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    state: Mutex<State>,
}

/// What is exported.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) subsystems: BTreeMap<Nqn, Entry>,
    pub(crate) listeners: Vec<ListenerInfo>,
    /// The providers that carry the bytes of a listener's connections, by port id; a listener that is
    /// not here uses the kernel's TCP.
    pub(crate) streams: BTreeMap<u16, Arc<dyn StreamProvider>>,
    pub(crate) discovery_ports: Vec<u16>,
    pub(crate) referrals: Vec<Referral>,
    /// What has registered; `None`: the discovery service is no centralized one.
    pub(crate) registered: Option<Registered>,
    pub(crate) discovery_filter: DiscoveryFilter,
    pub(crate) retry_delays: [u16; 3],
    /// The limits of hosts, in all subsystems.
    pub(crate) host_limits: Arc<[HostLimit]>,
    /// The hash functions and groups with which hosts may authenticate.
    pub(crate) algorithms: Algorithms,
    pub(crate) generation: u64,
    /// What the cores were shown last.
    pub(crate) shown: Option<Arc<TargetSnapshot>>,
    /// What iSCSI exports.
    pub(crate) iscsi: IscsiState,
    /// Another process is told of the reservations: none changes here until this target goes on alone.
    pub(crate) holds_reservations: bool,
    /// Another process has read what hosts make of pools, and what they protect: neither changes here meanwhile.
    pub(crate) holds_namespaces: bool,
    /// The devices that are open, and how many use each: a namespace, and the logical unit of LUNs.
    devices: BTreeMap<DeviceId, usize>,
    last_device: u16,
    last_port_id: u16,
}

/// A subsystem.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) config: SubsystemConfig,
    /// Any host may connect, whatever the list says.
    pub(crate) any_host: bool,
    /// The hosts that may connect otherwise.
    pub(crate) hosts: Vec<Nqn>,
    /// The keys of those hosts that have to authenticate.
    pub(crate) keys: BTreeMap<Nqn, Keys>,
    /// What the connections of every host have to have.
    pub(crate) security: Security,
    /// What those of some hosts have to have besides.
    pub(crate) host_security: BTreeMap<Nqn, Security>,
    /// Its own listeners, by port id.
    pub(crate) ports: Vec<u16>,
    pub(crate) namespaces: BTreeMap<u32, Exported>,
    /// The states of its ANA groups; `None`: it reports no ANA.
    pub(crate) ana: Option<Ana>,
    /// The namespaces that are not in the ANA group of their own number.
    pub(crate) ana_groups: BTreeMap<u32, u32>,
    /// The reservations of its namespaces that have any, or have a place to keep them.
    pub(crate) reservations: BTreeMap<u32, KeptReservations>,
    /// The pool of which its hosts make namespaces.
    pub(crate) pool: Option<PoolState>,
    pub(crate) stats: Arc<SubsystemStats>,
    /// The limits of its namespaces, and its own.
    pub(crate) limits: Limited,
    /// As the cores see it; `None`: the next snapshot has to describe it anew.
    published: Option<Arc<SubsystemDevices>>,
}

/// A namespace.
#[derive(Clone)]
pub(crate) struct Exported {
    pub(crate) device: DeviceId,
    pub(crate) namespace: Namespace,
    /// Keeps the device open as long as it is exported.
    pub(crate) bdev: SharedBdev,
    /// Where its write protection is kept; `None`: it ends with the target.
    pub(crate) protection: Option<Arc<dyn ProtectionStore>>,
}

/// Settings that all subsystems have in common: retry delays, how hosts may authenticate, and limits of hosts.
type Common = ([u16; 3], Algorithms, Arc<[HostLimit]>);

impl Control {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let generation = shared.config.first_generation;
        let state = Mutex::new(State { generation, ..State::default() });
        Self { shared, state }
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        no_wait::check();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(
        &self,
        entry: &mut Entry,
        retry_delays: [u16; 3],
    ) -> Result<Subsystem, TargetError> {
        let namespaces: Vec<Namespace> = entry
            .namespaces
            .values()
            .map(|ns| &ns.namespace)
            .map(|ns| Namespace {
                ana_group: entry.ana_group(ns.nsid),
                read_only: ns.read_only || ns.protection != WriteProtection::None,
                ..ns.clone()
            })
            .collect();
        if let Some(ana) = &mut entry.ana {
            ana.set_members(&namespaces);
        }
        let config = &entry.config;
        let hosts =
            if entry.any_host { HostAccess::Any } else { HostAccess::List(entry.hosts.clone()) };
        let subsystem = Subsystem {
            nqn: config.nqn.clone(),
            serial: config.serial.clone(),
            model: config.model.clone(),
            firmware: FIRMWARE.into(),
            hosts,
            security: entry.security,
            host_security: entry.host_security.iter().map(|(host, s)| (host.clone(), *s)).collect(),
            ports: entry.ports.clone(),
            max_nsid: config.max_namespaces,
            namespaces,
            pool: entry.pool.as_ref().map(PoolState::shown),
            limits: Limits { retry_delays, ..self.shared.config.limits() },
            ana: entry.ana.clone(),
            reservations: entry.shown_reservations(),
        };
        let nqn = &config.nqn;
        subsystem.validated().map_err(|error| TargetError::Subsystem { nqn: nqn.clone(), error })
    }

    /// Describes the subsystem anew, for the next snapshot.
    ///
    /// # Errors
    /// When it breaks a rule of the protocol.
    pub(crate) fn prepare(
        &self,
        entry: &mut Entry,
        (retry_delays, algorithms, hosts): Common,
    ) -> Result<(), TargetError> {
        let subsystem = Arc::new(self.describe(entry, retry_delays)?);
        let devices: Vec<DeviceId> = entry.namespaces.values().map(|ns| ns.device).collect();
        entry.published = Some(Arc::new(SubsystemDevices {
            subsystem,
            devices: devices.into(),
            stats: Arc::clone(&entry.stats),
            controller_ids: entry.config.controller_ids.clone(),
            secrets: Arc::new(Secrets { hosts: entry.keys.clone(), algorithms }),
            limited: Arc::new(Limited { hosts, ..entry.limits.clone() }),
        }));
        Ok(())
    }

    /// Changes a subsystem if the result breaks no rule; the next snapshot shows the change. A changed
    /// map of its pool is saved before.
    ///
    /// When there is no such subsystem, `change` fails, the result would break a rule of the
    /// protocol, or the map cannot be saved; then nothing has changed.
    pub(crate) fn change<T>(
        &self,
        state: &mut State,
        nqn: &Nqn,
        change: impl FnOnce(&mut Entry) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let common = state.common();
        let holds_namespaces = state.holds_namespaces;
        let entry = state.entry(nqn)?;
        let before = entry.clone();
        let changed = change(entry).and_then(|result| {
            self.prepare(entry, common)?;
            if let (Some(before), Some(pool)) = (&before.pool, &entry.pool) {
                if holds_namespaces && pool.map != before.map {
                    return Err(TargetError::HeldBack);
                }
                pool.save_unless(nqn, before)?;
            }
            Ok(result)
        });
        if changed.is_err() {
            *entry = before;
        }
        changed
    }

    /// Shows all cores the current state, and waits until they have seen it.
    pub(crate) fn publish(&self, state: &mut State) -> Result<(), TargetError> {
        let common = state.common();
        let mut subsystems = Vec::with_capacity(state.subsystems.len());
        for entry in state.subsystems.values_mut() {
            if entry.published.is_none() {
                self.prepare(entry, common.clone())?;
            }
            subsystems.extend(entry.published.clone());
        }
        state.generation += 1;
        let target = Arc::new(TargetSnapshot {
            generation: state.generation,
            subsystems: subsystems.iter().map(|s| Arc::clone(&s.subsystem)).collect(),
            listeners: state.listeners.clone(),
            discovery_ports: state.discovery_ports.clone(),
            referrals: state.referrals.clone(),
            registered: state.registered.as_ref().map(Registered::listed),
            discovery_filter: state.discovery_filter,
            discovery_limits: self.shared.config.discovery_limits(),
        });
        state.shown = Some(Arc::clone(&target));
        let discovery =
            Secrets::of_all(state.subsystems.values().map(|entry| &entry.keys), common.1);
        let discovery = Arc::new(discovery);
        let weighted = subsystems.iter().any(|s| !s.limited.weights.is_empty());
        let iscsi = Arc::new(state.iscsi.view.clone());
        let snapshot = Arc::new(Snapshot { target, subsystems, discovery, iscsi, weighted });
        self.ask_all(ANSWER_TIMEOUT, |reply| {
            let snapshot = Arc::clone(&snapshot);
            Message::Snapshot { snapshot, reply }
        })?;
        Ok(())
    }

    /// Opens the device of a namespace: the one of LUNs over the same device, unless another namespace has that, or
    /// one of its own.
    pub(crate) fn open_namespace(
        &self,
        state: &mut State,
        bdev: &SharedBdev,
    ) -> Result<DeviceId, TargetError> {
        let mut namespaces = state.subsystems.values().flat_map(|entry| entry.namespaces.values());
        match state.iscsi.device_of(bdev) {
            Some(device) if namespaces.all(|exported| exported.device != device) => {
                state.share_device(device);
                Ok(device)
            }
            _ => self.open_device(state, bdev),
        }
    }

    /// Opens a device on every core, under a number of its own.
    pub(crate) fn open_device(
        &self,
        state: &mut State,
        bdev: &SharedBdev,
    ) -> Result<DeviceId, TargetError> {
        let id = state.next_device()?;
        let answers = self.ask_all(ANSWER_TIMEOUT, |reply| {
            let bdev = Arc::clone(bdev);
            Message::OpenDevice { id, bdev, reply }
        })?;
        match answers.into_iter().find_map(Result::err) {
            Some(error) => {
                self.close_device(state, id)?;
                Err(error)
            }
            None => Ok(id),
        }
    }

    /// Closes a device that no snapshot shows, once it has nothing in flight. A device that somebody else uses stays.
    pub(crate) fn close_device(&self, state: &mut State, id: DeviceId) -> Result<(), TargetError> {
        let users = state.devices.get_mut(&id).filter(|users| **users > 1);
        if let Some(users) = users {
            *users -= 1;
            return Ok(());
        }
        self.ask_all(QUIET_TIMEOUT, |reply| Message::CloseDevice { id, reply })?;
        // A device that did not become quiet keeps its number.
        state.devices.remove(&id);
        Ok(())
    }

    /// Sends a message to every core and collects the answers.
    #[track_caller]
    pub(crate) fn ask_all<T>(
        &self,
        timeout: Duration,
        message: impl Fn(Reply<T>) -> Message,
    ) -> Result<Vec<T>, TargetError> {
        no_wait::check();
        let (reply, answers) = mpsc::channel();
        for core in 0..self.shared.cores() {
            self.shared.send(core, message(reply.clone()));
        }
        self.shared.reserver_progress.rounds.fetch_add(1, Ordering::SeqCst);
        drop(reply);
        let deadline = Instant::now() + timeout;
        let mut pending: Vec<bool> = vec![true; self.shared.cores()];
        let mut results = Vec::new();
        while results.len() < pending.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match answers.recv_timeout(left) {
                Ok((core, result)) => {
                    pending[core] = false;
                    results.push(result);
                }
                Err(_) => {
                    let stuck = pending.iter().position(|pending| *pending).unwrap_or(0);
                    return Err(TargetError::Unresponsive(stuck));
                }
            }
        }
        Ok(results)
    }

    /// The cores that listen: the first, or all.
    fn listening_cores(&self) -> Range<usize> {
        match self.shared.config.placement {
            PlacementPolicy::Listener => 0..self.shared.cores(),
            _ => 0..1,
        }
    }

    /// Opens the listener, on each core that listens. Gives the real address.
    pub(crate) fn open_listener(
        &self,
        address: SocketAddr,
        (protocol, port_id): (Protocol, u16),
        streams: Option<&Arc<dyn StreamProvider>>,
    ) -> Result<SocketAddr, TargetError> {
        if streams.is_some() && self.listening_cores().len() > 1 {
            let what = "the placement of connections with byte streams of a provider";
            return Err(TargetError::Config { what, need: "another than by listener" });
        }
        let mut real = address;
        if let Some(streams) = streams {
            for core in self.listening_cores().end..self.shared.cores() {
                let streams = Arc::clone(streams);
                let port = (protocol, port_id);
                let message = |reply| Message::Attend { address, port, streams, reply };
                if let Err(error) = self.ask(core, message)? {
                    self.close_listener((protocol, port_id))?;
                    return Err(error);
                }
            }
        }
        // One after the other: the group of listeners is in the order of the cores.
        for core in self.listening_cores() {
            let streams = streams.cloned();
            let opened = self.ask(core, |reply| {
                let port = (protocol, port_id);
                Message::Listen { address: real, port, streams, reply }
            })?;
            match opened {
                Ok(address) => real = address,
                Err(error) => {
                    self.close_listener((protocol, port_id))?;
                    return Err(error);
                }
            }
        }
        Ok(real)
    }

    /// Opens a portal of iSCSI. Gives the real address.
    pub(crate) fn open_portal(
        &self,
        address: SocketAddr,
        port_id: u16,
    ) -> Result<SocketAddr, TargetError> {
        self.open_listener(address, (Protocol::Iscsi, port_id), None)
    }

    /// Closes the listener, first on the cores that listen, then on those that attend to its connections.
    pub(crate) fn close_listener(&self, port: (Protocol, u16)) -> Result<(), TargetError> {
        for core in 0..self.shared.cores() {
            self.ask(core, |reply| Message::CloseListener { port, reply })?;
        }
        Ok(())
    }

    /// Sends a message to a core, and waits for the answer.
    #[track_caller]
    pub(crate) fn ask<T>(
        &self,
        core: usize,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> Result<T, TargetError> {
        no_wait::check();
        let (reply, answers): (_, Receiver<(usize, T)>) = mpsc::channel();
        self.shared.send(core, message(reply));
        match answers.recv_timeout(ANSWER_TIMEOUT) {
            Ok((_, result)) => Ok(result),
            Err(_) => Err(TargetError::Unresponsive(core)),
        }
    }

    /// Tells all cores to close a host's controllers of a subsystem.
    pub(crate) fn disconnect_host(&self, nqn: &Nqn, host: &Nqn) -> Result<(), TargetError> {
        self.ask_all(ANSWER_TIMEOUT, |reply| {
            let (nqn, host) = (nqn.clone(), host.clone());
            Message::DisconnectHost { nqn, host, reply }
        })?;
        Ok(())
    }
}

impl State {
    pub(crate) fn entry(&mut self, nqn: &Nqn) -> Result<&mut Entry, TargetError> {
        self.subsystems.get_mut(nqn).ok_or_else(|| TargetError::NoSubsystem(nqn.clone()))
    }

    /// What all subsystems have in common.
    pub(crate) fn common(&self) -> Common {
        (self.retry_delays, self.algorithms.clone(), Arc::clone(&self.host_limits))
    }

    /// What the queues of each subsystem have done so far.
    pub(crate) fn totals(&self) -> Vec<(Nqn, QueueTotals)> {
        let entries = self.subsystems.iter();
        entries.map(|(nqn, entry)| (nqn.clone(), entry.stats.totals())).collect()
    }

    /// Marks every subsystem to be described anew in the next snapshot.
    pub(crate) fn describe_all_anew(&mut self) {
        self.subsystems.values_mut().for_each(Entry::describe_anew);
    }

    /// Takes the next device number that is not in use; 0 names the connections' own operations.
    fn next_device(&mut self) -> Result<DeviceId, TargetError> {
        for _ in 0..u16::MAX {
            self.last_device = self.last_device.wrapping_add(1).max(1);
            let id = DeviceId(self.last_device);
            if id.0 != ISCSI_OWNER && !self.devices.contains_key(&id) {
                self.devices.insert(id, 1);
                return Ok(id);
            }
        }
        Err(TargetError::Config { what: "devices of a target", need: "at most 65534" })
    }

    /// One more uses a device that is open.
    pub(crate) fn share_device(&mut self, id: DeviceId) {
        *self.devices.entry(id).or_default() += 1;
    }

    /// The next port id that no listener has.
    pub(crate) fn next_port_id(&mut self) -> u16 {
        loop {
            self.last_port_id = self.last_port_id.wrapping_add(1);
            if self.listeners.iter().all(|listener| listener.port_id != self.last_port_id) {
                return self.last_port_id;
            }
        }
    }
}

impl Entry {
    pub(crate) fn new(config: SubsystemConfig) -> Self {
        let (any_host, hosts) = match &config.hosts {
            HostAccess::Any => (true, Vec::new()),
            HostAccess::List(hosts) => (false, hosts.clone()),
        };
        let ana = config.ana_reporting.then(Ana::default);
        let security = config.security;
        Self {
            config,
            any_host,
            hosts,
            keys: BTreeMap::new(),
            security,
            host_security: BTreeMap::new(),
            ports: Vec::new(),
            namespaces: BTreeMap::new(),
            ana,
            ana_groups: BTreeMap::new(),
            reservations: BTreeMap::new(),
            pool: None,
            stats: Arc::default(),
            limits: Limited::default(),
            published: None,
        }
    }

    /// Notes what the connections of a host have to have.
    pub(crate) fn set_host_security(&mut self, host: &Nqn, security: Security) {
        match security {
            Security::PLAIN => self.host_security.remove(host),
            demanded => self.host_security.insert(host.clone(), demanded),
        };
    }

    /// Marks the subsystem to be described anew in the next snapshot.
    pub(crate) fn describe_anew(&mut self) {
        self.published = None;
    }

    /// The pool's note of a namespace, and the namespace.
    pub(super) fn carved(
        &mut self,
        nsid: NamespaceId,
    ) -> Result<(&mut PoolNamespace, &mut Exported), TargetError> {
        let nqn = &self.config.nqn;
        let noted = self.pool.as_mut().and_then(|pool| pool.map.find(nsid));
        let missing = || TargetError::NoNamespace { nqn: nqn.clone(), nsid };
        noted.zip(self.namespaces.get_mut(&nsid.0)).ok_or_else(missing)
    }

    /// Notes which hosts a namespace of the pool is attached to.
    pub(crate) fn set_hosts_of(
        &mut self,
        nsid: NamespaceId,
        hosts: Vec<Nqn>,
    ) -> Result<(), TargetError> {
        let (noted, exported) = self.carved(nsid)?;
        exported.namespace.visibility = Visibility::Hosts(hosts.as_slice().into());
        noted.hosts = hosts;
        Ok(())
    }

    /// Whether the namespace is being formatted; if so, nothing else may change it.
    pub(crate) fn is_formatting(&self, nsid: NamespaceId) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.formatting.contains(&nsid))
    }
}

impl Exported {
    pub(crate) fn is_of_pool(&self) -> bool {
        self.namespace.pool_bytes.is_some()
    }
}
