//! The control handle of a target: starts its cores, changes what it exports, stops it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use raceline_bdev::{BdevInfo, SharedBdev};
use raceline_proto::controller::{
    HostAccess, ListenerInfo, MAX_NSID, Namespace, Subsystem, TargetView,
};
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_reactor::{LoopSnapshot, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle};

use crate::config::{NamespaceConfig, SubsystemConfig, TargetConfig, TargetError};
use crate::counters::QueueTotals;
use crate::message::{Message, Reply};
use crate::poll_group::PollGroup;
use crate::registry::Shared;
use crate::snapshot::{DeviceId, Snapshot, SubsystemDevices, SubsystemStats};

/// How long a core may take to answer the control thread: it answers within a turn of its loop.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections and devices may take to drain at shutdown or removal.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Small I/O buffers: the blocks of most random I/O.
const SMALL_BUFFER_BYTES: usize = 4 << 10;
/// Firmware revision (FR): our version, at most 8 characters.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// A running NVMe/TCP target. Dropped without [`Target::shutdown`], its cores run on.
pub struct Target {
    shared: Arc<Shared>,
    cores: Vec<ReactorHandle<Message>>,
    /// Changes are made one at a time.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    subsystems: BTreeMap<Nqn, Entry>,
    listeners: Vec<(SocketAddr, ListenerInfo)>,
    generation: u64,
    last_device: u16,
    last_port_id: u16,
}

struct Entry {
    config: SubsystemConfig,
    namespaces: BTreeMap<u32, Exported>,
    stats: Arc<SubsystemStats>,
}

#[derive(Clone)]
struct Exported {
    device: DeviceId,
    namespace: Namespace,
    /// Kept open as long as it is exported.
    bdev: SharedBdev,
}

/// What a target is doing.
#[derive(Clone, Debug, Default)]
pub struct TargetStats {
    /// Connections on each core.
    pub connections: Vec<usize>,
    /// Controllers.
    pub controllers: usize,
    /// Sockets that have not completed Connect.
    pub pre_connect: usize,
    /// What the queues of each subsystem have done so far.
    pub subsystems: Vec<(Nqn, QueueTotals)>,
    /// The loops of the cores.
    pub loops: Vec<LoopSnapshot>,
}

impl Target {
    /// Starts the cores. Nothing is exported and nobody can connect yet.
    ///
    /// # Errors
    /// When a setting is out of range or a core cannot be started.
    pub fn start(config: TargetConfig) -> Result<Self, TargetError> {
        config.check()?;
        let cores: Vec<Option<usize>> = match &config.cores[..] {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let shared = Arc::new(Shared::new(config, cores.len()));
        let mut handles: Vec<ReactorHandle<Message>> = Vec::new();
        for (index, core) in cores.into_iter().enumerate() {
            match spawn(index, core, &shared) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    for handle in &handles {
                        let _ = handle.sender().send(Message::Shutdown);
                    }
                    return Err(TargetError::Reactor { core: core.unwrap_or(index), error });
                }
            }
        }
        shared.set_senders(handles.iter().map(|handle| handle.sender().clone()).collect());
        Ok(Self::with_cores(shared, handles))
    }

    pub(crate) fn with_cores(shared: Arc<Shared>, cores: Vec<ReactorHandle<Message>>) -> Self {
        Self { shared, cores, state: Mutex::default() }
    }

    /// Creates a subsystem without namespaces.
    ///
    /// # Errors
    /// When it exists, or its texts break a rule.
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        let mut state = self.lock();
        if state.subsystems.contains_key(&config.nqn) {
            return Err(TargetError::SubsystemExists(config.nqn));
        }
        let nqn = config.nqn.clone();
        let entry = Entry { config, namespaces: BTreeMap::new(), stats: Arc::default() };
        self.describe(&entry)?;
        state.subsystems.insert(nqn, entry);
        self.publish(&mut state)
    }

    /// Removes a subsystem: its controllers are closed, then its devices.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let mut state = self.lock();
        let entry =
            state.subsystems.remove(nqn).ok_or_else(|| TargetError::NoSubsystem(nqn.clone()))?;
        self.publish(&mut state)?;
        for exported in entry.namespaces.values() {
            self.close_device(exported.device)?;
        }
        Ok(())
    }

    /// Says which hosts may connect. Controllers of hosts that may not any more are closed.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_hosts(&self, nqn: &Nqn, hosts: HostAccess) -> Result<(), TargetError> {
        let mut state = self.lock();
        state.entry(nqn)?.config.hosts = hosts;
        self.publish(&mut state)
    }

    /// Adds a namespace; connected hosts are told (Namespace Attribute Changed).
    ///
    /// # Errors
    /// When the number is taken, the device cannot be a namespace, or a core cannot open it.
    pub fn add_namespace(
        &self,
        nqn: &Nqn,
        config: NamespaceConfig,
    ) -> Result<NamespaceId, TargetError> {
        let mut state = self.lock();
        let entry = state.entry(nqn)?;
        let nsid = entry.free_nsid(nqn, config.nsid)?;
        let namespace = describe_namespace(nsid, &config);
        // The rules are checked on a copy, before any core opens the device.
        let device = state.next_device();
        let exported = Exported { device, namespace, bdev: Arc::clone(&config.bdev) };
        let entry = state.entry(nqn)?;
        entry.namespaces.insert(nsid.0, exported);
        let opened = self.describe(entry).and_then(|_| self.open_device(device, &config.bdev));
        if let Err(error) = opened {
            entry.namespaces.remove(&nsid.0);
            return Err(error);
        }
        self.publish(&mut state)?;
        Ok(nsid)
    }

    /// Removes a namespace; connected hosts are told. Commands in flight finish first.
    ///
    /// # Errors
    /// When there is none of that number, or its device does not become quiet.
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: NamespaceId) -> Result<(), TargetError> {
        let mut state = self.lock();
        let exported = state
            .entry(nqn)?
            .namespaces
            .remove(&nsid.0)
            .ok_or_else(|| TargetError::NoNamespace { nqn: nqn.clone(), nsid })?;
        self.publish(&mut state)?;
        self.close_device(exported.device)
    }

    /// Looks again how large the devices are, and tells connected hosts of those that have grown.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn refresh_sizes(&self) -> Result<(), TargetError> {
        let mut state = self.lock();
        let mut changed = false;
        for exported in
            state.subsystems.values_mut().flat_map(|entry| entry.namespaces.values_mut())
        {
            let block_count = exported.bdev.info().block_count;
            changed |= exported.namespace.block_count != block_count;
            exported.namespace.block_count = block_count;
        }
        if changed { self.publish(&mut state) } else { Ok(()) }
    }

    /// Listens on an address, for every subsystem and for discovery. Gives the real address:
    /// port 0 takes any free one.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn add_listener(&self, address: SocketAddr) -> Result<SocketAddr, TargetError> {
        let mut state = self.lock();
        let (reply, answers) = mpsc::channel();
        self.shared.send(0, Message::Listen { address, reply });
        let real = self.answer(&answers)??;
        state.last_port_id = state.last_port_id.wrapping_add(1);
        let info = ListenerInfo { address: real, port_id: state.last_port_id };
        state.listeners.push((real, info));
        self.publish(&mut state)?;
        Ok(real)
    }

    /// Stops listening on an address; connections that it has accepted stay.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn remove_listener(&self, address: SocketAddr) -> Result<(), TargetError> {
        let mut state = self.lock();
        let position = state
            .listeners
            .iter()
            .position(|(real, _)| *real == address)
            .ok_or(TargetError::NoListener(address))?;
        state.listeners.remove(position);
        let (reply, answers) = mpsc::channel();
        self.shared.send(0, Message::CloseListener { address, reply });
        self.answer(&answers)?;
        self.publish(&mut state)
    }

    /// What the target is doing now.
    #[must_use]
    pub fn stats(&self) -> TargetStats {
        let state = self.lock();
        TargetStats {
            connections: self.shared.loads(),
            controllers: self.shared.controllers(),
            pre_connect: self.shared.waiting(),
            subsystems: state
                .subsystems
                .iter()
                .map(|(nqn, entry)| (nqn.clone(), entry.stats.totals()))
                .collect(),
            loops: self.cores.iter().map(|core| core.stats().snapshot()).collect(),
        }
    }

    /// Changes what the cores do when they are idle: at once, or when they next wake.
    pub fn set_mode(&self, mode: Mode) {
        self.cores.iter().for_each(|core| core.set_mode(mode));
    }

    /// Whether all cores are running. A core that has ended by itself has logged why.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.cores.iter().all(ReactorHandle::is_running)
    }

    /// Stops: no new connections, commands in flight finish, connections close, cores end.
    ///
    /// # Errors
    /// When a core does not end in time, or has ended by a failure.
    pub fn shutdown(self) -> Result<(), TargetError> {
        for core in 0..self.shared.cores() {
            self.shared.send(core, Message::Shutdown);
        }
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        for (index, core) in self.cores.into_iter().enumerate() {
            while core.is_running() {
                if Instant::now() >= deadline {
                    return Err(TargetError::Unresponsive(index));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            core.join().map_err(|error| TargetError::Reactor {
                core: index,
                error: std::io::Error::other(error),
            })?;
        }
        Ok(())
    }

    // ------------------------------------------------------------------------ internals

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, entry: &Entry) -> Result<Arc<Subsystem>, TargetError> {
        let config = &entry.config;
        let subsystem = Subsystem {
            nqn: config.nqn.clone(),
            serial: config.serial.clone(),
            model: config.model.clone(),
            firmware: FIRMWARE.into(),
            hosts: config.hosts.clone(),
            namespaces: entry.namespaces.values().map(|ns| ns.namespace.clone()).collect(),
            limits: self.shared.config.limits(),
        };
        let checked = subsystem.validated();
        checked
            .map(Arc::new)
            .map_err(|error| TargetError::Subsystem { nqn: config.nqn.clone(), error })
    }

    /// Shows all cores what exists now, and waits until they have seen it.
    fn publish(&self, state: &mut State) -> Result<(), TargetError> {
        state.generation += 1;
        let mut subsystems = Vec::new();
        for entry in state.subsystems.values() {
            let devices: Vec<DeviceId> = entry.namespaces.values().map(|ns| ns.device).collect();
            subsystems.push(SubsystemDevices {
                subsystem: self.describe(entry)?,
                devices: devices.into(),
                stats: Arc::clone(&entry.stats),
            });
        }
        let view = Arc::new(TargetView {
            generation: state.generation,
            subsystems: subsystems.iter().map(|s| Arc::clone(&s.subsystem)).collect(),
            listeners: state.listeners.iter().map(|(_, info)| *info).collect(),
        });
        let snapshot = Arc::new(Snapshot { view, subsystems });
        self.ask_all(ANSWER_TIMEOUT, |reply| {
            let snapshot = Arc::clone(&snapshot);
            Message::View { snapshot, reply }
        })?;
        Ok(())
    }

    fn open_device(&self, id: DeviceId, bdev: &SharedBdev) -> Result<(), TargetError> {
        let answers = self.ask_all(ANSWER_TIMEOUT, |reply| {
            let bdev = Arc::clone(bdev);
            Message::OpenDevice { id, bdev, reply }
        })?;
        let failed = answers.into_iter().find_map(Result::err);
        match failed {
            Some(error) => {
                self.close_device(id)?;
                Err(error)
            }
            None => Ok(()),
        }
    }

    fn close_device(&self, id: DeviceId) -> Result<(), TargetError> {
        self.ask_all(DRAIN_TIMEOUT, |reply| Message::CloseDevice { id, reply })?;
        Ok(())
    }

    /// Sends a message to every core and collects the answers.
    fn ask_all<T>(
        &self,
        timeout: Duration,
        message: impl Fn(Reply<T>) -> Message,
    ) -> Result<Vec<T>, TargetError> {
        let (reply, answers) = mpsc::channel();
        for core in 0..self.shared.cores() {
            self.shared.send(core, message(reply.clone()));
        }
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

    fn answer<T>(&self, answers: &Receiver<(usize, T)>) -> Result<T, TargetError> {
        match answers.recv_timeout(ANSWER_TIMEOUT) {
            Ok((_, result)) => Ok(result),
            Err(_) => Err(TargetError::Unresponsive(0)),
        }
    }
}

impl State {
    fn entry(&mut self, nqn: &Nqn) -> Result<&mut Entry, TargetError> {
        self.subsystems.get_mut(nqn).ok_or_else(|| TargetError::NoSubsystem(nqn.clone()))
    }

    /// The next device number that is not in use; 0 is the connections' own.
    fn next_device(&mut self) -> DeviceId {
        let used = |id| {
            let mut all = self.subsystems.values().flat_map(|entry| entry.namespaces.values());
            all.any(|exported| exported.device == DeviceId(id))
        };
        let mut id = self.last_device;
        loop {
            id = id.wrapping_add(1).max(1);
            if !used(id) {
                self.last_device = id;
                return DeviceId(id);
            }
        }
    }
}

impl Entry {
    fn free_nsid(
        &self,
        nqn: &Nqn,
        wanted: Option<NamespaceId>,
    ) -> Result<NamespaceId, TargetError> {
        match wanted {
            Some(nsid) if self.namespaces.contains_key(&nsid.0) => {
                Err(TargetError::NamespaceExists { nqn: nqn.clone(), nsid })
            }
            Some(nsid) => Ok(nsid),
            None => (1..=MAX_NSID)
                .find(|nsid| !self.namespaces.contains_key(nsid))
                .map(NamespaceId)
                .ok_or_else(|| TargetError::TooManyNamespaces { nqn: nqn.clone(), max: MAX_NSID }),
        }
    }
}

fn describe_namespace(nsid: NamespaceId, config: &NamespaceConfig) -> Namespace {
    let info: BdevInfo = config.bdev.info();
    let uuid = config.uuid.unwrap_or(info.uuid);
    Namespace {
        nsid,
        block_size: info.block_size,
        block_count: info.block_count,
        physical_block_size: info.physical_block_size.max(info.block_size),
        uuid,
        // The UUID is unique, stable and as long as an NGUID.
        nguid: config.nguid.unwrap_or(uuid),
        volatile_write_cache: info.volatile_write_cache,
        read_only: info.read_only,
        deallocate: info.deallocate,
        deallocate_zeroes: info.deallocate_zeroes,
    }
}

fn spawn(
    index: usize,
    core: Option<usize>,
    shared: &Arc<Shared>,
) -> std::io::Result<ReactorHandle<Message>> {
    let config = &shared.config;
    let reactor = ReactorConfig {
        core,
        mode: config.mode,
        backend: config.backend,
        pool: pool_config(config),
        accel: config.accel.clone(),
        name: format!("target-{index}"),
    };
    let shared = Arc::clone(shared);
    Reactor::spawn(reactor, move |_| Ok(PollGroup::new(index, shared)))
}

/// The I/O buffers of one core.
pub(crate) fn pool_config(config: &TargetConfig) -> PoolConfig {
    PoolConfig::new(&[
        (SMALL_BUFFER_BYTES, config.small_buffers_per_core),
        (config.max_io_bytes as usize, config.large_buffers_per_core),
    ])
}
