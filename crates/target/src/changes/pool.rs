//! Pools: devices of which the hosts of a subsystem make namespaces themselves.

mod device;
mod manage;
mod map;

use std::ops::Range;
use std::sync::{Arc, mpsc};

use raceline_bdev::SharedBdev;
use raceline_proto::controller::{HostAccess, ManagementCommand, Namespace, Pool, Visibility};
use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn, Status};

use crate::changes::config::TargetError;
use crate::changes::control::{Control, Entry, Exported, State};
use crate::changes::message::CommandPlace;
use crate::changes::namespaces::{identity, with_device};
use crate::changes::target::Target;

use device::CarvedBdev;

pub use map::{MapError, PoolMap, PoolNamespace};

/// Where the maps of pools are kept.
pub trait PoolStore: Send + Sync {
    /// Keeps the map of a subsystem's pool: when this returns, a crash does not undo it. The
    /// change is visible to hosts, and answered, only afterwards. Called with the target's state
    /// locked: it must not call the target.
    ///
    /// # Errors
    /// When the map cannot be kept; then the change is not made, and the map before it must still
    /// be there.
    fn save(&self, subsystem: &Nqn, map: &PoolMap) -> std::io::Result<()>;
}

/// A device of which hosts make namespaces.
#[derive(Clone)]
pub struct PoolConfig {
    /// The device; nobody else may use it.
    pub bdev: SharedBdev,
    /// What it is divided into, as it was saved last; [`PoolMap::new`] for a new pool.
    pub map: PoolMap,
    /// Where the map is kept.
    pub store: Arc<dyn PoolStore>,
    /// Which of the hosts that may connect may also create, attach, delete and format namespaces;
    /// to others it looks as if there were no pool.
    pub managers: HostAccess,
}

/// A pool as it is now.
#[derive(Clone)]
pub struct PoolInfo {
    /// Its device.
    pub bdev: SharedBdev,
    /// Capacity in bytes.
    pub total_bytes: u64,
    /// What of it belongs to no namespace, in bytes.
    pub free_bytes: u64,
    /// What it is divided into.
    pub map: PoolMap,
    /// Which hosts may manage it.
    pub managers: HostAccess,
}

/// A pool of a subsystem.
#[derive(Clone)]
pub(crate) struct PoolState {
    bdev: SharedBdev,
    map: PoolMap,
    store: Arc<dyn PoolStore>,
    managers: HostAccess,
    /// Namespaces that are being made.
    reserved: Vec<(NamespaceId, Range<u64>)>,
    /// Namespaces that are being formatted.
    formatting: Vec<NamespaceId>,
}

/// A host's wish.
pub(crate) struct ManagementRequest {
    pub(crate) nqn: Nqn,
    pub(crate) host: HostNqn,
    pub(crate) command: ManagementCommand,
    /// The command that is answered.
    pub(crate) from: CommandPlace,
}

impl Target {
    /// Gives a subsystem a pool: its hosts can now make namespaces of the device (Namespace
    /// Management), and those in the map are there. Nothing is written to the device, nor saved.
    ///
    /// # Errors
    /// When there is no such subsystem, it has a pool, the map does not fit the device, a number
    /// in the map is taken, or a core cannot open the device.
    pub fn set_pool(&self, nqn: &Nqn, config: PoolConfig) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        if state.entry(nqn)?.pool.is_some() {
            return Err(TargetError::PoolExists(nqn.clone()));
        }
        let PoolConfig { bdev, map, store, managers } = config;
        let pool =
            PoolState { bdev, map, store, managers, reserved: Vec::new(), formatting: Vec::new() };
        let bad = |error| TargetError::PoolMap { nqn: nqn.clone(), error };
        pool.map.fits(&pool.bdev.info()).map_err(bad)?;
        for namespace in &pool.map.namespaces {
            state.entry(nqn)?.free_nsid(Some(namespace.nsid))?;
        }
        self.start_manager()?;
        let namespaces = pool.map.namespaces.clone();
        let mut exported = Vec::with_capacity(namespaces.len());
        for namespace in &namespaces {
            match self.control.open_carved(&mut state, &pool, namespace) {
                Ok(open) => exported.push(open),
                Err(error) => {
                    self.control.close_all(&mut state, &exported)?;
                    return Err(error);
                }
            }
        }
        let changed = self.control.change(&mut state, nqn, |entry| {
            entry.pool = Some(pool);
            for open in &exported {
                entry.namespaces.insert(open.namespace.nsid.0, open.clone());
            }
            Ok(())
        });
        if let Err(error) = changed {
            self.control.close_all(&mut state, &exported)?;
            return Err(error);
        }
        self.control.publish(&mut state)
    }

    /// Takes the pool and its namespaces from a subsystem; hosts are told. The device and what was
    /// saved stay as they are.
    ///
    /// # Errors
    /// When there is no such subsystem, it has no pool, or a namespace is being made or formatted.
    pub fn remove_pool(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let removed = self.control.change(&mut state, nqn, |entry| {
            let pool = entry.pool.take().ok_or_else(|| TargetError::NoPool(nqn.clone()))?;
            if !pool.is_quiet() {
                return Err(TargetError::PoolBusy(nqn.clone()));
            }
            let of_pool = entry.namespaces.extract_if(.., |_, ns| ns.is_of_pool());
            Ok(of_pool.map(|(_, exported)| exported).collect::<Vec<_>>())
        })?;
        self.control.publish(&mut state)?;
        self.control.close_all(&mut state, &removed)
    }

    /// The pool of a subsystem, if it has one.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn pool(&self, nqn: &Nqn) -> Result<Option<PoolInfo>, TargetError> {
        let mut state = self.control.lock();
        let pool = state.entry(nqn)?.pool.as_ref();
        Ok(pool.map(|pool| PoolInfo {
            bdev: Arc::clone(&pool.bdev),
            total_bytes: pool.total_bytes(),
            free_bytes: pool.free_bytes(),
            map: pool.map.clone(),
            managers: pool.managers.clone(),
        }))
    }

    /// Does what a host could ask for with an admin command, for `host`; gives DW0 of the answer:
    /// for a new namespace its number. It may take as long as zeroing the namespace does.
    ///
    /// # Errors
    /// What the host would be told.
    pub fn manage_namespaces(
        &self,
        nqn: &Nqn,
        host: &HostNqn,
        command: &ManagementCommand,
    ) -> Result<u32, Status> {
        self.control.manage(nqn, host, command)
    }

    /// Starts the thread that does what hosts ask for, unless it runs.
    fn start_manager(&self) -> Result<(), TargetError> {
        let mut manager = self.control.shared.manager();
        if manager.is_some() {
            return Ok(());
        }
        let (sender, requests) = mpsc::channel();
        let control = Arc::clone(&self.control);
        let run = move || manage::run(&control, &requests);
        std::thread::Builder::new()
            .name("target-manager".into())
            .spawn(run)
            .map_err(TargetError::Manager)?;
        *manager = Some(sender);
        Ok(())
    }
}

impl Control {
    /// Opens the device of a namespace in the pool, which no snapshot shows yet.
    fn open_carved(
        &self,
        state: &mut State,
        pool: &PoolState,
        namespace: &PoolNamespace,
    ) -> Result<Exported, TargetError> {
        let bdev = CarvedBdev::open(&pool.bdev, &pool.map, namespace);
        let bdev = bdev.ok_or_else(|| TargetError::Unsuitable {
            device: pool.bdev.info().name,
            reason: format!("it has become too small for namespace {}", namespace.nsid),
        })?;
        let device = self.open_device(state, &bdev)?;
        let namespace = pool.describe(namespace, &bdev);
        Ok(Exported { device, namespace, bdev })
    }

    fn close_all(&self, state: &mut State, exported: &[Exported]) -> Result<(), TargetError> {
        exported.iter().try_for_each(|exported| self.close_device(state, exported.device))
    }
}

impl Exported {
    pub(crate) fn is_of_pool(&self) -> bool {
        self.namespace.pool_bytes.is_some()
    }
}

impl Entry {
    /// Has the map of the pool saved, unless it is as it was.
    pub(crate) fn save_map_unless(&self, before: Option<&PoolState>) -> Result<(), TargetError> {
        let nqn = &self.config.nqn;
        match (before, &self.pool) {
            (Some(before), Some(pool)) if before.map != pool.map => pool
                .store
                .save(nqn, &pool.map)
                .map_err(|error| TargetError::PoolStore { nqn: nqn.clone(), error }),
            _ => Ok(()),
        }
    }

    /// The pool's note of a namespace, and the namespace.
    fn carved(
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

    /// Whether the namespace is being formatted: it must stay as it is.
    pub(crate) fn is_formatting(&self, nsid: NamespaceId) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.formatting.contains(&nsid))
    }
}

impl PoolState {
    fn device_bytes(&self) -> u64 {
        let info = self.bdev.info();
        info.block_count.saturating_mul(info.block_size.into())
    }

    fn total_units(&self) -> u64 {
        self.device_bytes() / self.map.unit_bytes
    }

    fn total_bytes(&self) -> u64 {
        self.total_units() * self.map.unit_bytes
    }

    fn used(&self) -> Vec<Range<u64>> {
        let namespaces = self.map.namespaces.iter().map(|namespace| namespace.units.clone());
        namespaces.chain(self.reserved.iter().map(|(_, units)| units.clone())).collect()
    }

    fn free_bytes(&self) -> u64 {
        let used: u64 = self.used().iter().map(|units| units.end - units.start).sum();
        self.total_units().saturating_sub(used) * self.map.unit_bytes
    }

    fn is_quiet(&self) -> bool {
        self.reserved.is_empty() && self.formatting.is_empty()
    }

    /// As controllers show it.
    pub(crate) fn shown(&self) -> Pool {
        Pool {
            total_bytes: self.total_bytes(),
            free_bytes: self.free_bytes(),
            block_sizes: map::block_sizes(&self.bdev.info()),
            managers: self.managers.clone(),
        }
    }

    fn describe(&self, namespace: &PoolNamespace, bdev: &SharedBdev) -> Namespace {
        let PoolNamespace { nsid, uuid, shared, .. } = *namespace;
        let units = namespace.units.end - namespace.units.start;
        let described = Namespace {
            visibility: Visibility::Hosts(namespace.hosts.as_slice().into()),
            shared,
            pool_bytes: Some(units * self.map.unit_bytes),
            ..identity(nsid, uuid)
        };
        with_device(&described, &bdev.info())
    }
}
