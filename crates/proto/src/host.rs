//! What a host does: track commands by identifiers with generations, bring a controller up
//! (properties, identify, features), keep it alive, read its namespaces and logs.
//!
//! The state machines here ask for one command at a time: [`AdminRequest`]s come out of
//! `poll_request`, completions go into `handle_completion`. The driver of the machines owns the queue.

pub mod ana;
pub mod backoff;
pub mod bring_up;
pub mod discovery;
pub mod info;
pub mod keep_alive;
pub mod scan;
pub mod table;

use crate::nvme::Sqe;

pub use crate::nvme::command;
pub use ana::{AnaError, AnaGroup, AnaLog, AnaReader};
pub use backoff::{Backoff, BackoffConfig};
pub use bring_up::{BringUp, BringUpConfig, BringUpError, BroughtUp};
pub use command::BlockRange;
pub use discovery::{DiscoveryError, DiscoveryLog, DiscoveryReader, DiscoveryRecord, RdmaSubtype};
pub use info::{ControllerInfo, InfoError, NamespaceInfo};
pub use keep_alive::{KeepAlive, KeepAliveAction};
pub use scan::{NamespaceScan, ScanError};
pub use table::CommandTable;

/// A command that a state machine wants executed on the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminRequest {
    /// The command; the queue fills in CID, PSDT and SGL.
    pub sqe: Sqe,
    /// Bytes that the controller sends, 0 for none.
    pub receive_len: u32,
}
