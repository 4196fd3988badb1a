//! An initiator's part of the I/O buffers of its core, beside those of hosts.

use super::{Connection, LifeState};
use crate::path::core::Core;
use crate::path::shares::Owner;
use crate::records::limited::Weight;

impl Connection {
    /// The session has begun, or the weights of hosts have changed. An initiator counts as a host with the default weight.
    pub(crate) fn update_share(&mut self, core: &mut Core) {
        let before = self.share.take();
        if let Some(session) = &self.session
            && core.snapshot.weighted
            && self.state == LifeState::Open
        {
            let owner = Owner::Initiator {
                initiator: session.nexus.initiator.clone(),
                node: session.node.name.clone(),
            };
            self.share = Some(core.shares.join(owner, Weight::DEFAULT));
        }
        core.change_share(self.key, (before, self.share));
    }

    /// The connection is removed.
    pub(crate) fn leave_share(&mut self, core: &mut Core) {
        if let Some(share) = self.share.take() {
            core.leave_share(share);
        }
    }
}
