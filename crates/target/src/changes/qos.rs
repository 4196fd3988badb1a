//! Limits of rates: of namespaces, of subsystems, and of hosts alone or in groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn};

use crate::changes::config::TargetError;
use crate::changes::target::Target;
use crate::records::throttle::{MAX_BURST, QosLimits, Throttle};

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

impl Target {
    /// Limits that are to be enforced: namespaces that are given the same share them.
    ///
    /// # Errors
    /// When the burst is longer than [`MAX_BURST`].
    pub fn throttle(&self, limits: QosLimits) -> Result<Throttle, TargetError> {
        if limits.burst > MAX_BURST {
            return Err(TargetError::Config { what: "burst of a limit", need: "at most 60 s" });
        }
        Ok(Throttle::new(limits, self.control.shared.cores()))
    }

    /// Sets the limits of a namespace; `None`: it has none. Commands that wait go by the new limits.
    ///
    /// # Errors
    /// When there is no such subsystem or namespace.
    pub fn set_namespace_limits(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        throttle: Option<Throttle>,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            entry.namespace(nsid)?;
            match throttle {
                Some(throttle) => entry.limits.namespaces.insert(nsid.0, throttle),
                None => entry.limits.namespaces.remove(&nsid.0),
            };
            Ok(())
        })
    }

    /// Sets the limits of all commands for a subsystem together; `None`: there are none.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_subsystem_limits(
        &self,
        nqn: &Nqn,
        throttle: Option<Throttle>,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            entry.limits.whole = throttle;
            Ok(())
        })
    }

    /// Sets the limits of hosts, in all subsystems: each element is of some hosts, which share it.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn set_host_limits(&self, limits: &[(Vec<Nqn>, Throttle)]) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let limit = |(hosts, throttle): &(Vec<Nqn>, Throttle)| HostLimit {
            hosts: hosts.clone(),
            throttle: throttle.clone(),
        };
        state.host_limits = limits.iter().map(limit).collect();
        state.describe_all_anew();
        self.control.publish(&mut state)
    }
}
