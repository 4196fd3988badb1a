//! Limits of rates: of namespaces, of subsystems, and of hosts alone or in groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use raceline_proto::controller::Subsystem;
use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn};

use crate::changes::config::TargetError;
use crate::changes::snapshot::SubsystemDevices;
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

/// The namespaces of a queue whose commands have limits: they are not among those that the path of other commands
/// knows.
#[derive(Debug)]
pub(crate) struct LimitedNamespaces {
    pub(crate) devices: SubsystemDevices,
    /// In the order of the namespaces.
    pub(crate) levels: Vec<Levels>,
}

impl Limited {
    /// The limits of a host's commands for a namespace.
    fn levels(&self, host: &HostNqn, nsid: NamespaceId) -> Vec<Throttle> {
        let of_host = self.hosts.iter().filter(|limit| match host {
            HostNqn::Named(name) => limit.hosts.contains(name),
            HostNqn::Unnamed => false,
        });
        let all = self.namespaces.get(&nsid.0).into_iter().chain(&self.whole);
        all.chain(of_host.map(|limit| &limit.throttle)).cloned().collect()
    }

    fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.whole.is_none() && self.hosts.is_empty()
    }

    /// Takes the namespaces with limits out of what a host can use.
    pub(crate) fn split(
        &self,
        usable: SubsystemDevices,
        host: &HostNqn,
    ) -> (SubsystemDevices, Option<Box<LimitedNamespaces>>) {
        if self.is_empty() {
            return (usable, None);
        }
        let namespaces = &usable.subsystem.namespaces;
        let levels: Vec<Levels> =
            namespaces.iter().map(|ns| self.levels(host, ns.nsid).into()).collect();
        if levels.iter().all(|levels| levels.is_empty()) {
            return (usable, None);
        }
        let part = |limited: bool| {
            let of_part = |levels: &Levels| levels.is_empty() != limited;
            let all = namespaces.iter().zip(usable.devices.iter()).zip(&levels);
            let (namespaces, devices): (Vec<_>, Vec<_>) = all
                .filter(|(_, levels)| of_part(levels))
                .map(|((namespace, device), _)| (namespace.clone(), *device))
                .unzip();
            let subsystem = Arc::new(Subsystem { namespaces, ..(*usable.subsystem).clone() });
            SubsystemDevices { subsystem, devices: devices.into(), ..usable.clone() }
        };
        let (free, limited) = (part(false), part(true));
        let levels = levels.into_iter().filter(|levels| !levels.is_empty()).collect();
        (free, Some(Box::new(LimitedNamespaces { devices: limited, levels })))
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
