//! Which limits the commands of a host meet in one subsystem.

use std::collections::BTreeMap;
use std::sync::Arc;

use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn};

use crate::records::throttle::Throttle;

/// The limits that hosts meet in one subsystem.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limited {
    /// Of single namespaces.
    pub(crate) namespaces: BTreeMap<u32, Throttle>,
    /// Of the subsystem.
    pub(crate) whole: Option<Throttle>,
    /// Of hosts, in all subsystems.
    pub(crate) hosts: Arc<[HostLimit]>,
}

/// Limits that some hosts share.
#[derive(Clone, Debug)]
pub(crate) struct HostLimit {
    pub(crate) hosts: Vec<Nqn>,
    pub(crate) throttle: Throttle,
}

/// All limits that a command has to keep.
pub(crate) type Levels = Arc<[Throttle]>;

impl Limited {
    /// The limits of a host's commands for a namespace.
    pub(crate) fn levels(&self, host: &HostNqn, nsid: NamespaceId) -> Levels {
        let of_host = self.hosts.iter().filter(|limit| match host {
            HostNqn::Named(name) => limit.hosts.contains(name),
            HostNqn::Unnamed => false,
        });
        let all = self.namespaces.get(&nsid.0).into_iter().chain(&self.whole);
        all.chain(of_host.map(|limit| &limit.throttle)).cloned().collect()
    }
}
