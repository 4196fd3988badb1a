//! A connection's part of its core, beside those of other hosts.

use raceline_proto::nvme::Sqe;
use raceline_reactor::Context;

use super::{Connection, Role};
use crate::path::commands::Commands;
use crate::path::core::Core;
use crate::path::shares::{Owner, ShareId, charge_of};

impl Connection {
    /// The connection's role, the core or the weights of hosts have changed.
    pub(crate) fn update_share(&mut self, core: &mut Core) {
        let before = self.commands.share.take();
        if let (Role::Io, Some(io)) = (&self.role, &self.commands.io)
            && core.snapshot.weighted
        {
            let visible = &io.visible;
            let owner = Owner::Host(visible.nqn().clone(), visible.host().name.clone());
            self.commands.share = Some(core.shares.join(owner, visible.weight()));
        }
        let after = self.commands.share;
        core.change_share(self.key, (before, after));
        if before.is_some() && after.is_none() && self.inbox.is_deferred() {
            core.deferred.push(self.key);
        }
    }

    /// The connection leaves the core.
    pub(crate) fn leave_share(&mut self, core: &mut Core) {
        if let Some(share) = self.commands.share.take() {
            core.leave_share(share);
        }
    }

    /// The connection has bytes to handle, and waits for the turn of its host.
    #[cold]
    pub(super) fn await_turn(&mut self, cx: &Context<'_>, core: &mut Core, share: ShareId) {
        if self.inbox.defer() {
            core.shares.enqueue(share, self.key, cx.now);
        }
    }

    /// It is the turn of the connection, which is served so many bytes at most. Gives what it was served.
    pub(crate) fn take_turn(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        most: usize,
    ) -> usize {
        self.inbox.resume_for(most);
        self.commands.moved = 0;
        self.parse(cx, core);
        self.commands.moved
    }
}

impl Commands {
    /// Counts a command for its host's part of the core. The descriptor says how long the data are; where it is wrong, the
    /// command fails.
    #[cold]
    pub(super) fn note_served(&mut self, sqe: &Sqe) {
        let bytes = charge_of(sqe.sgl1.length.get());
        self.served = self.served.saturating_add(bytes);
        self.moved = self.moved.saturating_add(bytes);
    }
}
