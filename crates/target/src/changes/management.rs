//! What a host sends to have namespaces changed.

use raceline_proto::controller::ManagementCommand;
use raceline_proto::nvme::{HostNqn, Nqn};

use crate::records::names::CommandPlace;

/// A host's request.
pub(crate) struct ManagementRequest {
    pub(crate) nqn: Nqn,
    pub(crate) host: HostNqn,
    pub(crate) command: ManagementCommand,
    /// The command that is answered.
    pub(crate) from: CommandPlace,
}
