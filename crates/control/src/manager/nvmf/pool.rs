//! Pools: devices that hosts themselves divide into namespaces, and the pools' maps in the catalogue.
//!
//! A change by a host is no call of a client: a thread of the target asks for it while the target's own
//! state is locked. Changes of clients ([`Manager::change`]) wait for the target, so a host's change does
//! not wait for its turn among them. It only puts the new map into the one call that makes the pool again,
//! and waits until that is on stable media.

use std::sync::{Arc, Weak};

use raceline_bdev::SharedBdev;
use raceline_proto::controller::HostAccess;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_target::{PoolConfig, PoolMap, PoolNamespace, PoolStore, Target};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::change::{entry, key};
use crate::manager::bdevs::Claim;
use crate::manager::catalogue::{Entry, Key, Record};
use crate::manager::threads::SharedManager;
use crate::manager::{Change, Manager, ManagerError, Model};

/// The call that makes a pool.
const METHOD: &str = "nvmf_subsystem_add_pool";

/// How messages name a pool, before the name of its subsystem.
const POOL: &str = "pool of subsystem";

/// A pool of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The device that is divided.
    pub bdev_name: String,
    /// The hosts that may divide it, among those that may connect; empty: all of them.
    pub managers: Vec<Nqn>,
    /// Its namespaces and their parts of the device.
    pub map: PoolMap,
    /// Why hosts do not have it: its device is missing, or not what it was. `None` if hosts have it.
    pub missing: Option<String>,
}

/// A pool in calls and saved configurations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolParams {
    /// The subsystem.
    pub nqn: String,
    /// Its target.
    #[serde(skip_serializing)]
    pub tgt_name: Option<String>,
    /// The device.
    pub bdev_name: String,
    /// The smallest part in bytes.
    #[serde(default = "PoolParams::default_unit_bytes")]
    pub unit_bytes: u64,
    /// The hosts that may divide it; empty: all that may connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managers: Vec<String>,
    /// Its namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<PoolNamespaceParams>,
}

/// A namespace of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolNamespaceParams {
    /// Its number.
    pub nsid: u32,
    /// The first unit of the device that belongs to it.
    pub first_unit: u64,
    /// The number of its units.
    pub unit_count: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Its size in blocks.
    pub num_blocks: u64,
    /// Whether several hosts may be attached to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Its identity.
    pub uuid: Uuid,
    /// The hosts that are attached to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl PoolParams {
    fn default_unit_bytes() -> u64 {
        PoolMap::DEFAULT_UNIT_BYTES
    }

    /// The pool that these parameters describe.
    ///
    /// # Errors
    /// When a name is invalid, or a number is out of range; the error names it.
    pub fn pool(&self) -> Result<Pool, ManagerError> {
        let namespaces = self.namespaces.iter().map(PoolNamespaceParams::namespace);
        Ok(Pool {
            bdev_name: self.bdev_name.clone(),
            managers: nqns(&self.managers)?,
            map: PoolMap {
                unit_bytes: self.unit_bytes,
                namespaces: namespaces.collect::<Result<_, _>>()?,
            },
            missing: None,
        })
    }

    /// The parameters that describe a pool.
    #[must_use]
    pub fn of(nqn: &Nqn, pool: &Pool) -> Self {
        Self {
            nqn: nqn.as_str().to_owned(),
            tgt_name: None,
            bdev_name: pool.bdev_name.clone(),
            unit_bytes: pool.map.unit_bytes,
            managers: texts(&pool.managers),
            namespaces: pool.map.namespaces.iter().map(PoolNamespaceParams::of).collect(),
        }
    }
}

impl PoolNamespaceParams {
    fn namespace(&self) -> Result<PoolNamespace, ManagerError> {
        let end = self.first_unit.checked_add(self.unit_count).ok_or_else(|| {
            ManagerError::Invalid(format!("namespace {} of the pool has no end", self.nsid))
        })?;
        Ok(PoolNamespace {
            nsid: NamespaceId(self.nsid),
            units: self.first_unit..end,
            block_size: self.block_size,
            block_count: self.num_blocks,
            shared: self.shared,
            uuid: self.uuid.into_bytes(),
            hosts: nqns(&self.hosts)?,
        })
    }

    fn of(namespace: &PoolNamespace) -> Self {
        let PoolNamespace { nsid, units, block_size, block_count, shared, uuid, hosts } = namespace;
        Self {
            nsid: nsid.0,
            first_unit: units.start,
            unit_count: units.end - units.start,
            block_size: *block_size,
            num_blocks: *block_count,
            shared: *shared,
            uuid: Uuid::from_bytes(*uuid),
            hosts: texts(hosts),
        }
    }
}

fn nqns(names: &[String]) -> Result<Vec<Nqn>, ManagerError> {
    let parse = |name: &String| {
        let invalid = |error| ManagerError::Invalid(format!("`{}`: {error}", name.escape_debug()));
        Nqn::new(name).map_err(invalid)
    };
    names.iter().map(parse).collect()
}

fn texts(names: &[Nqn]) -> Vec<String> {
    names.iter().map(|name| name.as_str().to_owned()).collect()
}

fn pool_key(target: &str, nqn: &Nqn) -> Key {
    key(target, &["subsystem", nqn.as_str(), "pool"])
}

fn pool_entry(target: &str, nqn: &Nqn, pool: &Pool) -> Result<Entry, ManagerError> {
    let params = serde_json::to_value(PoolParams::of(nqn, pool))
        .map_err(|error| ManagerError::Invalid(format!("the pool cannot be kept: {error}")))?;
    Ok(entry(target, METHOD, params))
}

/// Writes down the maps of one target's pools.
pub(super) struct CatalogueStore {
    manager: Weak<SharedManager>,
    target: String,
}

impl CatalogueStore {
    pub(super) fn new(manager: &Manager, target: &str) -> Arc<Self> {
        Arc::new(Self {
            manager: Arc::downgrade(&manager.threads.shared),
            target: target.to_owned(),
        })
    }
}

impl PoolStore for CatalogueStore {
    fn save(&self, subsystem: &Nqn, map: &PoolMap) -> std::io::Result<()> {
        let manager = self.manager.upgrade().and_then(|shared| shared.get()?.upgrade());
        let manager = manager.ok_or_else(|| std::io::Error::other("the daemon ends"))?;
        manager.keep_map(&self.target, subsystem, map).map_err(std::io::Error::other)
    }
}

/// The pool's configuration in the form that the cores take.
pub(super) fn pool_config(
    manager: &Manager,
    target: &str,
    pool: &Pool,
    bdev: SharedBdev,
) -> PoolConfig {
    PoolConfig {
        bdev,
        map: pool.map.clone(),
        store: CatalogueStore::new(manager, target),
        managers: match &pool.managers[..] {
            [] => HostAccess::Any,
            managers => HostAccess::List(managers.to_vec()),
        },
    }
}

impl Manager {
    /// Writes down a host's change of a pool. A thread of the target calls it and holds the target's state:
    /// so it must not wait for a change, and a thread that waits for the target must hold none of the locks
    /// taken here.
    fn keep_map(&self, target: &str, nqn: &Nqn, map: &PoolMap) -> Result<(), ManagerError> {
        let key = pool_key(target, nqn);
        let (before, after) = {
            let model = self.model();
            let pool = model.nvmf.target(target)?.subsystem(nqn)?.pool.clone();
            let missing = || ManagerError::missing(POOL, nqn.as_str());
            let pool = pool.filter(|_| model.catalogue.get(&key).is_some()).ok_or_else(missing)?;
            let after = Pool { map: map.clone(), ..pool.clone() };
            (pool, after)
        };
        let record = |pool: &Pool| {
            let entry = pool_entry(target, nqn, pool)?;
            Ok::<_, ManagerError>(Record::Put { key: key.clone(), entry })
        };
        let kept = self.keep(record(&after)?, |model| set_pool(model, target, nqn, after));
        if kept.is_err() {
            // The journal accepts nothing more; the model goes back to the map that hosts have.
            self.unkeep(record(&before)?, |model| set_pool(model, target, nqn, before));
        }
        kept
    }
}

fn set_pool(model: &mut Model, target: &str, nqn: &Nqn, pool: Pool) {
    model.nvmf.waits |= pool.missing.is_some();
    let target = model.nvmf.target_mut(target);
    if let Ok(subsystem) = target.and_then(|target| target.subsystem_mut(nqn)) {
        subsystem.pool = Some(pool);
    }
}

impl Change<'_> {
    /// Lets hosts of a subsystem divide a device into namespaces. During the start, a pool whose device is
    /// configured but missing waits for it.
    ///
    /// # Errors
    /// When the subsystem or device is missing, the subsystem has a pool, the device is in use, or the map
    /// does not fit the device.
    pub fn add_pool(&mut self, target: &str, nqn: &Nqn, pool: Pool) -> Result<(), ManagerError> {
        let (cores, found) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let subsystem = found.subsystem(nqn)?;
            if subsystem.pool.is_some() {
                return Err(ManagerError::exists(POOL, nqn.as_str()));
            }
            for namespace in &pool.map.namespaces {
                subsystem.check_nsid(namespace.nsid.0)?;
            }
            let bdev = match model.bdev(&pool.bdev_name) {
                Ok(bdev) => Ok((bdev.name.clone(), Arc::clone(&bdev.device))),
                Err(ManagerError::Away { reason, .. }) if self.may_wait() => Err(reason),
                Err(error) => return Err(error),
            };
            (found.cores(), bdev)
        };
        let pool = match found {
            Ok((bdev_name, device)) => {
                let pool = Pool { bdev_name, missing: None, ..pool };
                self.give_pool(target, nqn, (&pool, device), cores)?;
                pool
            }
            Err(reason) => {
                tracing::warn!("the pool of {nqn} waits for its device: {reason}");
                Pool { missing: Some(reason), ..pool }
            }
        };
        let entry = pool_entry(target, nqn, &pool)?;
        self.put(pool_key(target, nqn), entry);
        set_pool(&mut self.model_mut(), target, nqn, pool);
        Ok(())
    }

    /// Claims the device of a pool and gives the pool to the cores.
    fn give_pool(
        &mut self,
        target: &str,
        nqn: &Nqn,
        (pool, device): (&Pool, SharedBdev),
        cores: Option<Arc<Target>>,
    ) -> Result<(), ManagerError> {
        let fits = pool.map.fits(&device.info());
        fits.map_err(|error| {
            ManagerError::Invalid(format!(
                "device `{}` is not that of the pool: {error}",
                pool.bdev_name
            ))
        })?;
        let claim = Claim::Pool { target: target.to_owned(), nqn: nqn.as_str().to_owned() };
        self.claim_bdev(&pool.bdev_name, claim)?;
        let Some(cores) = cores else { return Ok(()) };
        let given = cores.set_pool(nqn, pool_config(self.manager(), target, pool, device));
        if given.is_err() {
            self.release_bdev(&pool.bdev_name);
        }
        Ok(given?)
    }

    /// Gives hosts a pool whose device has come.
    pub(in crate::manager) fn show_waiting_pool(
        &mut self,
        target: &str,
        nqn: &Nqn,
    ) -> Result<(), ManagerError> {
        let (cores, pool, device) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let pool = found.subsystem(nqn)?.pool.clone();
            let pool = pool.ok_or_else(|| ManagerError::missing(POOL, nqn.as_str()))?;
            let device = Arc::clone(&model.bdev(&pool.bdev_name)?.device);
            (found.cores(), pool, device)
        };
        let given = self.give_pool(target, nqn, (&pool, device), cores);
        let missing = given.as_ref().err().map(ToString::to_string);
        set_pool(&mut self.model_mut(), target, nqn, Pool { missing, ..pool });
        given
    }

    /// Takes a pool from hosts whose device has disappeared by itself; it comes back with the device.
    pub(in crate::manager) fn hide_pool(
        &mut self,
        target: &str,
        nqn: &Nqn,
    ) -> Result<(), ManagerError> {
        if let Some(cores) = self.cores_of(target, nqn)? {
            cores.remove_pool(nqn)?;
        }
        let pool = self.model().nvmf.target(target)?.subsystem(nqn)?.pool.clone();
        if let Some(pool) = pool {
            tracing::warn!("the pool of {nqn} is missing: `{}` has gone", pool.bdev_name);
            self.release_bdev(&pool.bdev_name);
            let missing = Some("its device has gone".to_owned());
            set_pool(&mut self.model_mut(), target, nqn, Pool { missing, ..pool });
        }
        Ok(())
    }

    /// Removes the pool of a subsystem and its namespaces; the data on the device stay there.
    ///
    /// # Errors
    /// When it has none, or a namespace of it is being made or formatted.
    pub fn remove_pool(&mut self, target: &str, nqn: &Nqn) -> Result<(), ManagerError> {
        let (cores, pool) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let pool = found.subsystem(nqn)?.pool.clone();
            let missing = || ManagerError::missing(POOL, nqn.as_str());
            (found.cores(), pool.ok_or_else(missing)?)
        };
        if let Some(cores) = cores.filter(|_| pool.missing.is_none()) {
            cores.remove_pool(nqn)?;
        }
        if pool.missing.is_none() {
            self.release_bdev(&pool.bdev_name);
        }
        self.remove(pool_key(target, nqn));
        self.model_mut().nvmf.target_mut(target)?.subsystem_mut(nqn)?.pool = None;
        Ok(())
    }
}
