//! Records of connections and queues off the I/O path: names, counts, places.

pub(crate) mod attempts;
pub(crate) mod controllers;
pub(crate) mod counters;
pub(crate) mod early;
pub(crate) mod ledger;
pub(crate) mod limited;
pub(crate) mod names;
pub(crate) mod placement;
pub(crate) mod registered;
pub(crate) mod registry;
pub(crate) mod sessions;
pub(crate) mod statuses;
pub(crate) mod throttle;
pub(crate) mod unit;
