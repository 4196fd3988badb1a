//! The map of a pool: which part of the device belongs to which namespace.

use std::ops::Range;

use raceline_bdev::BdevInfo;
use raceline_proto::nvme::{NamespaceId, Nqn};

/// Which part of a pool's device belongs to which namespace, and the other properties of those
/// namespaces that must survive a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMap {
    /// Bytes of one unit of the device; the rest at its end is not used.
    pub unit_bytes: u64,
    /// The namespaces, by ascending number.
    pub namespaces: Vec<PoolNamespace>,
}

/// A namespace of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNamespace {
    /// Its number.
    pub nsid: NamespaceId,
    /// Its units of the device.
    pub units: Range<u64>,
    /// Its block size in bytes.
    pub block_size: u32,
    /// Its size in blocks.
    pub block_count: u64,
    /// Several hosts may be attached to it.
    pub shared: bool,
    /// Its UUID and NGUID.
    pub uuid: [u8; 16],
    /// The hosts whose controllers are attached to it.
    pub hosts: Vec<Nqn>,
}

/// Why a map does not fit a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The unit is not a multiple of 4096 bytes, or larger than the device.
    #[error("units of {0} bytes are not a multiple of 4096, or larger than the device")]
    Unit(u64),
    /// The namespaces are not in order.
    #[error("namespace {0} is there twice or out of order")]
    Order(NamespaceId),
    /// A namespace has no units, or lies beyond the end of the device.
    #[error("namespace {0} does not lie within the device")]
    Outside(NamespaceId),
    /// Two namespaces have a unit in common.
    #[error("namespaces {0} and {1} overlap")]
    Overlap(NamespaceId, NamespaceId),
    /// The blocks of a namespace need more than its units, or have a size that is not allowed.
    #[error("the blocks of namespace {0} do not fit its units")]
    Blocks(NamespaceId),
}

/// The block sizes that a namespace may have; the device's must not be larger.
const BLOCK_SIZES: [u32; 2] = [512, 4096];

/// Every block size divides a unit.
const UNIT_MULTIPLE: u64 = 4096;

impl PoolMap {
    /// Units of 1 MiB.
    pub const DEFAULT_UNIT_BYTES: u64 = 1 << 20;

    /// A pool without namespaces.
    #[must_use]
    pub fn new(unit_bytes: u64) -> Self {
        Self { unit_bytes, namespaces: Vec::new() }
    }

    /// Whether it can be the map of this device.
    ///
    /// # Errors
    /// When it cannot; names the namespace that is in the way.
    pub fn fits(&self, device: &BdevInfo) -> Result<(), MapError> {
        let device_bytes = device.block_count.saturating_mul(device.block_size.into());
        self.check(device_bytes, &block_sizes(device))
    }

    /// Checks whether it can be the map of a device of that size, with these block sizes.
    fn check(&self, device_bytes: u64, block_sizes: &[u32]) -> Result<(), MapError> {
        let unit = self.unit_bytes;
        if unit == 0 || !unit.is_multiple_of(UNIT_MULTIPLE) || unit > device_bytes {
            return Err(MapError::Unit(unit));
        }
        for pair in self.namespaces.windows(2) {
            if pair[0].nsid >= pair[1].nsid {
                return Err(MapError::Order(pair[1].nsid));
            }
        }
        for namespace in &self.namespaces {
            let PoolNamespace { nsid, ref units, block_size, block_count, .. } = *namespace;
            if units.is_empty() || units.end > device_bytes / unit {
                return Err(MapError::Outside(nsid));
            }
            let bytes = block_count.checked_mul(block_size.into());
            let fits = bytes.is_some_and(|bytes| bytes <= (units.end - units.start) * unit);
            if block_count == 0 || !fits || !block_sizes.contains(&block_size) {
                return Err(MapError::Blocks(nsid));
            }
        }
        let mut by_place: Vec<&PoolNamespace> = self.namespaces.iter().collect();
        by_place.sort_by_key(|namespace| namespace.units.start);
        match by_place.windows(2).find(|pair| pair[0].units.end > pair[1].units.start) {
            Some(pair) => Err(MapError::Overlap(pair[0].nsid, pair[1].nsid)),
            None => Ok(()),
        }
    }

    pub(crate) fn find(&mut self, nsid: NamespaceId) -> Option<&mut PoolNamespace> {
        self.namespaces.iter_mut().find(|namespace| namespace.nsid == nsid)
    }

    /// Adds a namespace at its place.
    pub(crate) fn insert(&mut self, namespace: PoolNamespace) {
        let place = self.namespaces.partition_point(|other| other.nsid < namespace.nsid);
        self.namespaces.insert(place, namespace);
    }
}

/// The block sizes that a namespace on this device can have.
pub(crate) fn block_sizes(device: &BdevInfo) -> Vec<u32> {
    BLOCK_SIZES.into_iter().filter(|size| *size >= device.block_size).collect()
}

/// The smallest gap of `total` units between the `used` ones that has room for `count`, so that large
/// gaps stay large. Of equal gaps the first.
pub(crate) fn best_fit(total: u64, used: &[Range<u64>], count: u64) -> Option<Range<u64>> {
    let mut used: Vec<&Range<u64>> = used.iter().collect();
    used.sort_by_key(|range| range.start);
    let mut best: Option<Range<u64>> = None;
    let mut start = 0;
    let end = total..total;
    for range in used.into_iter().chain([&end]) {
        let gap = range.start.saturating_sub(start);
        if gap >= count && best.as_ref().is_none_or(|best| gap < best.end - best.start) {
            best = Some(start..range.start);
        }
        start = start.max(range.end);
    }
    best.map(|gap| gap.start..gap.start + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(nsid: u32, units: Range<u64>) -> PoolNamespace {
        PoolNamespace {
            nsid: NamespaceId(nsid),
            block_size: 512,
            block_count: (units.end - units.start) * 8,
            units,
            shared: false,
            uuid: [0; 16],
            hosts: Vec::new(),
        }
    }

    #[test]
    fn the_smallest_gap_that_is_large_enough_is_taken() {
        assert_eq!(best_fit(10, &[], 10), Some(0..10));
        assert_eq!(best_fit(10, &[], 11), None);
        let used = [8..9, 0..1, 4..6];
        assert_eq!(best_fit(10, &used, 1), Some(9..10));
        assert_eq!(best_fit(10, &used, 2), Some(6..8));
        assert_eq!(best_fit(10, &used, 3), Some(1..4));
        assert_eq!(best_fit(10, &used, 4), None);
        assert_eq!(best_fit(4, &[0..2, 2..4], 1), None);
    }

    #[test]
    fn a_map_that_is_not_of_the_device_is_refused() {
        let check = |namespaces| {
            let map = PoolMap { unit_bytes: 4096, namespaces };
            map.check(10 * 4096 + 512, &[512, 4096])
        };
        assert_eq!(check(vec![namespace(1, 0..4), namespace(2, 4..10)]), Ok(()));
        let (one, two) = (NamespaceId(1), NamespaceId(2));
        let wrong = [
            (vec![namespace(2, 0..4), namespace(1, 4..10)], MapError::Order(one)),
            (vec![namespace(1, 0..4), namespace(1, 4..10)], MapError::Order(one)),
            (vec![namespace(1, 0..11)], MapError::Outside(one)),
            (vec![namespace(1, 3..3)], MapError::Outside(one)),
            (vec![namespace(1, 0..u64::MAX / 8)], MapError::Outside(one)),
            (vec![namespace(1, 4..6), namespace(2, 0..5)], MapError::Overlap(two, one)),
        ];
        for (namespaces, error) in wrong {
            assert_eq!(check(namespaces), Err(error));
        }
        let blocks = |block_size, block_count| {
            check(vec![PoolNamespace { block_size, block_count, ..namespace(1, 0..2) }])
        };
        assert_eq!(blocks(4096, 2), Ok(()));
        for (size, count) in [(4096, 3), (512, 0), (1024, 1), (512, u64::MAX)] {
            assert_eq!(blocks(size, count), Err(MapError::Blocks(one)));
        }
        for unit in [0, 512, 1 << 20] {
            assert_eq!(PoolMap::new(unit).check(8192, &[512]), Err(MapError::Unit(unit)));
        }
    }
}
