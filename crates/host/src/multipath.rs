//! Several paths to one subsystem, and one namespace above them.
//!
//! A path is an association with a controller, by one address. It has its own admin queue, I/O queues, reconnecting
//! and ANA log. [`Paths`] are the admin queues of all paths, on one core. A [`PathSet`] has the I/O queues of all paths
//! on one core, and looks like one [`crate::IoQueueSet`]: commands go to the path that the [`Policy`] chooses.
//!
//! # What happens when a path is lost
//!
//! | command | what happens |
//! |---|---|
//! | was never sent, or was refused with a path related status (SCT 3h) | goes to another path at once |
//! | reads, compares or flushes | goes to another path at once |
//! | may have been executed | waits until the [`Fence`] of the lost association is open, then goes to a path |
//! | is half of a fused operation | ends with an error, and so does the other half. A first half waits here for the second one; then both go by one path |
//! | is of another kind | ends with an error, as with a single path |
//!
//! The fence opens at once if another controller of the subsystem can reset the lost one (TP8028), and else
//! after the time in which the lost controller notices the loss and quiesces (TP4129). The path that comes back first
//! may be the lost one itself; it has a new association then, and the fence is that of the old one.
//!
//! Without any usable path, commands wait while one may come back: one that is being connected, for
//! [`MultipathConfig::fast_io_fail`], or one whose ANA state may change. Otherwise they end with
//! [`crate::CommandError::NoPath`].

mod identity;
mod paths;
mod selector;
mod set;

pub use crate::path::{
    Access, DEFAULT_QUIESCE, Fence, MultipathConfig, PathAddress, PathAna, PathId, Policy, Topology,
};
pub use paths::{PathEvent, Paths};
pub use set::{PathCounters, PathSet, PathSetEvent, PathSummary};
