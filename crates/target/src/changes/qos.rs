//! Limits of rates: of namespaces, of subsystems, and of hosts alone or in groups; and weights of hosts.

use std::sync::Arc;

use raceline_proto::nvme::{NamespaceId, Nqn};

use crate::changes::config::TargetError;
use crate::changes::iscsi_config::check_name;
use crate::changes::target::Target;
use crate::records::limited::{HostLimit, Weight};
use crate::records::throttle::{MAX_BURST, QosLimits, Throttle};

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

    /// Sets the limits of hosts, in all subsystems and at all iSCSI target nodes: each element is of some hosts, which
    /// share it.
    ///
    /// # Errors
    /// When a core does not answer, or an initiator has no iSCSI name; then nothing has changed.
    pub fn set_host_limits(&self, limits: Vec<HostLimit>) -> Result<(), TargetError> {
        limits.iter().flat_map(|limit| &limit.initiators).try_for_each(|name| check_name(name))?;
        let mut state = self.control.lock();
        let hosts: Arc<[HostLimit]> = limits.into();
        state.host_limits = Arc::clone(&hosts);
        Arc::make_mut(&mut state.iscsi.view.limits).hosts = hosts;
        state.describe_all_anew();
        self.control.publish(&mut state)
    }

    /// Sets the weight of a host in a subsystem; `None`: it has none. While any host of the target has a weight, hosts
    /// whose commands one core cannot keep up with get parts of that core by their weights, as [`Weight::DEFAULT`] where
    /// they have none, whatever their numbers of connections.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_host_weight(
        &self,
        nqn: &Nqn,
        host: &Nqn,
        weight: Option<Weight>,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            match weight {
                Some(weight) => entry.limits.weights.insert(host.clone(), weight),
                None => entry.limits.weights.remove(host),
            };
            Ok(())
        })
    }
}
