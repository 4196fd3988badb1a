//! What an authentication means for its connection.

use raceline_auth::{Finished, Verdict};
use raceline_proto::nvme::HostNqn;
use raceline_reactor::Context;

use super::{Connection, Role};
use crate::path::core::Core;
use crate::path::life::LifeState;
use crate::path::slots::CommandSlot;
use crate::records::names::SlotKey;

impl Connection {
    /// Executes an authentication command.
    #[cold]
    pub(super) fn authenticate(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) {
        if let Some(verdict) = self.commands.execute_authentication(cx, core, command) {
            self.judge(cx, core, verdict);
        }
    }

    /// A computation for an Authentication Send is done.
    pub(crate) fn computed(&mut self, core: &mut Core, slot: SlotKey, finished: Finished) {
        self.commands.finish_authentication(core, slot, finished);
    }

    /// The host has proved itself, or has not.
    #[cold]
    pub(crate) fn judge(&mut self, cx: &mut Context<'_>, core: &mut Core, verdict: Verdict) {
        if self.life.state != LifeState::Open {
            return;
        }
        let peer = self.ends.peer;
        match verdict {
            Verdict::Authenticated => {
                tracing::info!(%peer, "the host has authenticated");
                self.life.admit();
                self.leave_early(core);
                self.begin_io();
            }
            Verdict::Failed { explanation, by_host } => {
                let who = if by_host { "the host" } else { "the controller" };
                tracing::warn!(%peer, ?explanation, "{who} ended the authentication: closing");
                self.life.dismiss(cx.now);
                self.commands.forget_pause();
                self.arm_timer(cx);
            }
        }
    }

    /// An I/O queue takes commands from here on.
    pub(super) fn begin_io(&mut self) {
        match std::mem::replace(&mut self.role, Role::Io) {
            Role::Proving(io) => self.commands.io = Some(*io),
            other => self.role = other,
        }
    }

    /// A new snapshot may have other keys.
    pub(super) fn update_keys(&mut self, core: &Core) {
        let io = match &self.role {
            Role::Proving(io) => Some(&**io),
            _ => self.commands.io.as_ref(),
        };
        let (nqn, host) = match (&self.role, io) {
            (Role::Admin(association), _) => (association.nqn(), association.host()),
            (_, Some(io)) => (io.visible.nqn(), io.visible.host()),
            _ => return,
        };
        if let Some(auth) = &mut self.commands.auth
            && let Some(subsystem) = core.snapshot.subsystem(nqn)
            && let HostNqn::Named(host) = host
        {
            auth.update(subsystem, host);
        }
    }
}
