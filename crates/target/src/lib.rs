//! NVMe/TCP target: listeners, placement, connections, execution.
//!
//! A [`Target`] runs one reactor per core. A connection lives on one core; a controller lives
//! where its admin connection does, and its I/O queues, on whatever core, know it by message. What
//! exists (subsystems, namespaces, listeners) is an immutable snapshot that every core holds and
//! that is replaced as a whole.

mod association;
mod config;
mod connection;
mod core;
mod counters;
mod digest;
mod fused;
mod io_queue;
mod manual;
mod message;
mod placement;
mod poll_group;
mod range_lock;
mod registry;
mod slots;
mod snapshot;
mod target;

pub use config::{NamespaceConfig, PreConnectLimits, SubsystemConfig, TargetConfig, TargetError};
pub use counters::QueueTotals;
pub use manual::ManualCore;
pub use placement::PlacementPolicy;
pub use raceline_proto::controller::{HostAccess, Limits};
pub use target::{Target, TargetStats};
