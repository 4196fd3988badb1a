//! What devices have done, also those that are gone: none of these counts falls.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use raceline_rdma::PortCounts;

use super::hub::Hub;
use super::ports::SharedHub;
use super::streams::{RdmaDeviceStats, lock};

/// Most series of devices that are gone: of one listener, one core and one name. What more of them have done is forgotten.
const MOST_GONE: usize = 4096;

/// A device's name, what was done with it, and how many data it has read in place.
pub(super) type Done = (String, PortCounts, u64);

/// What a hub has done, which it writes here as it ends.
#[derive(Clone, Default)]
pub(super) struct LastCounts(Arc<Mutex<Option<Done>>>);

impl LastCounts {
    pub(super) fn set(&self, done: Done) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    }

    /// `None`: the hub has not begun to end.
    fn get(&self) -> Option<Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether nothing is added any more: the hub is gone, and nobody reads this now.
    fn is_final(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The hub of a core.
#[derive(Clone)]
struct Known {
    address: SocketAddr,
    core: usize,
    hub: Weak<Mutex<Hub>>,
    last: LastCounts,
}

impl Known {
    fn stats(&self, (name, counts, in_place): Done) -> RdmaDeviceStats {
        RdmaDeviceStats { address: self.address, core: self.core, name, counts, in_place }
    }

    /// What its hub has done so far.
    fn so_far(&self) -> RdmaDeviceStats {
        if let Some(hub) = self.hub.upgrade() {
            let done = lock(&hub).counts();
            return self.stats(done);
        }
        // The hub writes this first of all as it ends, and that has begun.
        loop {
            match self.last.get() {
                Some(done) => return self.stats(done),
                None => std::thread::yield_now(),
            }
        }
    }
}

/// The hubs of all cores and listeners.
#[derive(Default)]
pub(super) struct Counted {
    /// Those that are there, or are ending.
    hubs: Vec<Known>,
    /// The sums of those before, by listener, core and name.
    gone: BTreeMap<(SocketAddr, usize, String), RdmaDeviceStats>,
}

impl Counted {
    /// From now on this hub counts, which has to have `last`.
    pub(super) fn add(
        &mut self,
        (address, core): (SocketAddr, usize),
        hub: &SharedHub,
        last: LastCounts,
    ) {
        self.fold();
        self.hubs.push(Known { address, core, hub: Arc::downgrade(hub), last });
    }

    /// The hubs that are alive.
    pub(super) fn alive(&self) -> Vec<(SocketAddr, usize, SharedHub)> {
        let hubs = self.hubs.iter();
        hubs.filter_map(|known| Some((known.address, known.core, known.hub.upgrade()?))).collect()
    }

    /// Adds what hubs have done that are gone.
    fn fold(&mut self) {
        let Self { hubs, gone } = self;
        hubs.retain(|known| {
            if !known.last.is_final() {
                return true;
            }
            let stats = known.so_far();
            let key = (stats.address, stats.core, stats.name.clone());
            let has_room = gone.len() < MOST_GONE;
            match gone.entry(key) {
                Entry::Occupied(mut sum) => {
                    let sum = sum.get_mut();
                    sum.counts += stats.counts;
                    sum.in_place += stats.in_place;
                }
                Entry::Vacant(place) if has_room => {
                    place.insert(stats);
                }
                Entry::Vacant(place) => {
                    tracing::debug!(key = ?place.key(), "the counts of an RDMA device are forgotten");
                }
            }
            false
        });
    }

    /// What to count: the sums of hubs that are gone, and those to ask. That is done without this value, because it takes
    /// the locks of hubs.
    pub(super) fn take_stock(&mut self) -> Stock {
        self.fold();
        Stock { gone: self.gone.values().cloned().collect(), hubs: self.hubs.clone() }
    }
}

/// What is known of all hubs at one time.
pub(super) struct Stock {
    gone: Vec<RdmaDeviceStats>,
    hubs: Vec<Known>,
}

impl Stock {
    /// What all have done: a listener, core and name may be there several times.
    pub(super) fn count(self) -> Vec<RdmaDeviceStats> {
        let mut all = self.gone;
        all.extend(self.hubs.iter().map(Known::so_far));
        all
    }
}
