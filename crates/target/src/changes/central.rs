//! The discovery service as a centralized one (CDC, TP8010): hosts and discovery controllers register with it, and it
//! lists what they have.
//!
//! A registration stays until it is taken back, whether or not its entity is connected, and ends with the target.

use std::net::IpAddr;

use raceline_proto::nvme::discovery::DiscoveryEntry;
use raceline_proto::nvme::registration::Registration;
use raceline_proto::nvme::{HostNqn, Nqn, Status};

use crate::Target;
use crate::changes::config::TargetError;
use crate::changes::control::Control;
use crate::records::registered::{Registered, RegisteredInfo};

impl Target {
    /// Makes the discovery service a centralized one, or an ordinary one again, which forgets all that has registered.
    ///
    /// # Errors
    /// When a core does not answer, or the thread that executes registrations cannot be started.
    pub fn set_central(&self, is_central: bool) -> Result<(), TargetError> {
        if is_central {
            self.start_manager()?;
        }
        let mut state = self.control.lock();
        if state.registered.is_some() != is_central {
            state.registered = is_central.then(Registered::default);
        }
        self.control.publish(&mut state)
    }

    /// What has registered; `None`: the discovery service is no centralized one.
    #[must_use]
    pub fn registered(&self) -> Option<Vec<RegisteredInfo>> {
        self.control.lock().registered.as_ref().map(Registered::show)
    }

    /// What this target offers to any host, to be registered with a centralized discovery controller that is, or is not,
    /// on this machine (`TargetSnapshot::offered` of the protocol crate).
    #[must_use]
    pub fn offered(&self, to_loopback: bool) -> Vec<DiscoveryEntry> {
        let shown = self.control.lock().shown.clone();
        shown.map(|shown| shown.offered(to_loopback)).unwrap_or_default()
    }

    /// Takes back what has registered under this NQN; gives whether something had.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn deregister(&self, nqn: &Nqn) -> Result<bool, TargetError> {
        let mut state = self.control.lock();
        let Some(registered) = &mut state.registered else { return Ok(false) };
        let has_changed = registered.forget(nqn);
        if has_changed {
            self.control.publish(&mut state)?;
        }
        Ok(has_changed)
    }
}

impl Control {
    /// Executes Discovery Information Management of a host that is connected from this address.
    pub(crate) fn register(
        &self,
        host: &HostNqn,
        peer: IpAddr,
        wish: &Registration,
    ) -> Result<u32, Status> {
        let mut state = self.lock();
        let registered = state.registered.as_mut().ok_or(Status::INVALID_OPCODE.dnr())?;
        let before = registered.clone();
        registered.change(host, peer, wish)?;
        self.publish(&mut state).map_err(|error| {
            tracing::error!(%error, "a registration failed");
            state.registered = Some(before);
            Status::INTERNAL
        })?;
        Ok(0)
    }
}
