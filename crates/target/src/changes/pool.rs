//! Pools: devices of which the hosts of a subsystem make namespaces themselves.

mod device;
mod manage;

use std::sync::{Arc, mpsc};

use raceline_bdev::SharedBdev;
use raceline_proto::controller::{HostAccess, ManagementCommand, Namespace, Visibility};
use raceline_proto::nvme::{HostNqn, Nqn, Status};

use crate::changes::config::TargetError;
use crate::changes::control::{Control, Exported, State};
use crate::changes::namespaces::{identity, with_device};
use crate::changes::pool_map::{PoolMap, PoolNamespace};
use crate::changes::pool_state::{PoolConfig, PoolState};
use crate::changes::target::Target;

use device::CarvedBdev;

/// A pool as it is now.
#[derive(Clone)]
pub struct PoolInfo {
    /// Its device.
    pub bdev: SharedBdev,
    /// Capacity in bytes.
    pub total_bytes: u64,
    /// Bytes that belong to no namespace.
    pub free_bytes: u64,
    /// The namespaces that it is divided into.
    pub map: PoolMap,
    /// Which hosts may manage it.
    pub managers: HostAccess,
}

impl Target {
    /// Gives a subsystem a pool: its hosts can now make namespaces of the device (Namespace
    /// Management), and the namespaces in the map exist. Writes nothing to the device, and saves nothing.
    ///
    /// # Errors
    /// When there is no such subsystem, it has a pool, the map does not fit the device, a number
    /// in the map is taken, or a core cannot open the device.
    pub fn set_pool(&self, nqn: &Nqn, config: PoolConfig) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        if state.entry(nqn)?.pool.is_some() {
            return Err(TargetError::PoolExists(nqn.clone()));
        }
        let pool = PoolState::new(config);
        let bad = |error| TargetError::PoolMap { nqn: nqn.clone(), error };
        pool.map.fits(&pool.bdev.info()).map_err(bad)?;
        for namespace in &pool.map.namespaces {
            state.entry(nqn)?.free_nsid(Some(namespace.nsid))?;
        }
        self.start_manager()?;
        self.start_reserver()?;
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

    /// Takes the pool and its namespaces from a subsystem; hosts are told. The device and the saved map
    /// stay as they are.
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
            let removed = of_pool.map(|(_, exported)| exported).collect::<Vec<_>>();
            let left = &entry.namespaces;
            entry.reservations.retain(|nsid, _| left.contains_key(nsid));
            Ok(removed)
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

    /// Executes for `host` what that host could ask for with an admin command, and gives DW0 of the
    /// answer: for a new namespace its number. The call may last until the namespace is zeroed.
    ///
    /// # Errors
    /// The status that the host would get.
    pub fn manage_namespaces(
        &self,
        nqn: &Nqn,
        host: &HostNqn,
        command: &ManagementCommand,
    ) -> Result<u32, Status> {
        self.control.manage(nqn, host, command)
    }

    /// Starts the thread that executes hosts' requests, unless it runs.
    pub(crate) fn start_manager(&self) -> Result<(), TargetError> {
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
        let namespace = describe(pool, namespace, &bdev);
        Ok(Exported { device, namespace, bdev, protection: None })
    }

    fn close_all(&self, state: &mut State, exported: &[Exported]) -> Result<(), TargetError> {
        exported.iter().try_for_each(|exported| self.close_device(state, exported.device))
    }
}

/// Describes the namespace that is made of a part of a pool, on its device.
fn describe(pool: &PoolState, namespace: &PoolNamespace, bdev: &SharedBdev) -> Namespace {
    let PoolNamespace { nsid, uuid, shared, .. } = *namespace;
    let units = namespace.units.end - namespace.units.start;
    let described = Namespace {
        visibility: Visibility::Hosts(namespace.hosts.as_slice().into()),
        shared,
        pool_bytes: Some(units * pool.map.unit_bytes),
        ..identity(nsid, uuid)
    };
    with_device(&described, &bdev.info())
}
