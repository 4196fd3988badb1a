//! A pool of a subsystem, as the target keeps it: its device, its map, and the changes under way.

use std::ops::Range;
use std::sync::Arc;

use raceline_bdev::SharedBdev;
use raceline_proto::controller::{HostAccess, Pool};
use raceline_proto::nvme::{NamespaceId, Nqn};

use crate::changes::config::TargetError;
use crate::changes::pool_map::{PoolMap, block_sizes};

/// Where the maps of pools are kept.
pub trait PoolStore: Send + Sync {
    /// Keeps the map of a subsystem's pool: when this returns, a crash does not undo it. Only afterwards
    /// do hosts see the change and get their answer. The caller holds the lock on the target's state:
    /// this method must not call the target.
    ///
    /// # Errors
    /// When the map cannot be kept; then the change is not made, and the map before it must still
    /// be there.
    fn save(&self, subsystem: &Nqn, map: &PoolMap) -> std::io::Result<()>;
}

/// A device of which hosts make namespaces.
#[derive(Clone)]
pub struct PoolConfig {
    /// The device; nothing else may use it.
    pub bdev: SharedBdev,
    /// The map as it was saved last; [`PoolMap::new`] for a new pool.
    pub map: PoolMap,
    /// Where the map is kept.
    pub store: Arc<dyn PoolStore>,
    /// Which of the hosts that may connect may also create, attach, delete and format namespaces;
    /// other hosts see no pool.
    pub managers: HostAccess,
}

/// A pool of a subsystem.
#[derive(Clone)]
pub(crate) struct PoolState {
    pub(super) bdev: SharedBdev,
    pub(super) map: PoolMap,
    store: Arc<dyn PoolStore>,
    pub(super) managers: HostAccess,
    /// Namespaces that are being made.
    pub(super) reserved: Vec<(NamespaceId, Range<u64>)>,
    /// Namespaces that are being formatted.
    pub(super) formatting: Vec<NamespaceId>,
}

impl PoolState {
    /// A pool without namespaces that are being made or formatted.
    pub(super) fn new(config: PoolConfig) -> Self {
        let PoolConfig { bdev, map, store, managers } = config;
        Self { bdev, map, store, managers, reserved: Vec::new(), formatting: Vec::new() }
    }

    pub(super) fn device_bytes(&self) -> u64 {
        let info = self.bdev.info();
        info.block_count.saturating_mul(info.block_size.into())
    }

    pub(super) fn total_units(&self) -> u64 {
        self.device_bytes() / self.map.unit_bytes
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_units() * self.map.unit_bytes
    }

    pub(super) fn used(&self) -> Vec<Range<u64>> {
        let namespaces = self.map.namespaces.iter().map(|namespace| namespace.units.clone());
        namespaces.chain(self.reserved.iter().map(|(_, units)| units.clone())).collect()
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let used: u64 = self.used().iter().map(|units| units.end - units.start).sum();
        self.total_units().saturating_sub(used) * self.map.unit_bytes
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.reserved.is_empty() && self.formatting.is_empty()
    }

    /// As controllers show it.
    pub(crate) fn shown(&self) -> Pool {
        Pool {
            total_bytes: self.total_bytes(),
            free_bytes: self.free_bytes(),
            block_sizes: block_sizes(&self.bdev.info()),
            managers: self.managers.clone(),
        }
    }

    /// Saves the map, unless it has not changed.
    pub(super) fn save_unless(&self, nqn: &Nqn, before: &Self) -> Result<(), TargetError> {
        if before.map == self.map {
            return Ok(());
        }
        let failed = |error| TargetError::PoolStore { nqn: nqn.clone(), error };
        self.store.save(nqn, &self.map).map_err(failed)
    }
}
