//! What an authentication means for its connection, and what operators read about it.

use raceline_auth::{Finished, Verdict};
use raceline_proto::controller::ConnectError;
use raceline_proto::nvme::HostNqn;
use raceline_reactor::Context;

use super::{Connection, Role};
use crate::path::authentication::Authentication;
use crate::path::core::Core;
use crate::path::life::LifeState;
use crate::path::slots::CommandSlot;
use crate::records::names::SlotKey;

impl Connection {
    /// Whether a host that has to authenticate may connect now: a source with many failures has to wait.
    pub(super) fn may_authenticate(
        &self,
        cx: &Context<'_>,
        core: &Core,
        host: &HostNqn,
    ) -> Result<(), ConnectError> {
        if core.shared.may_authenticate(self.ends.peer.ip(), cx.now) {
            return Ok(());
        }
        let peer = self.ends.peer;
        tracing::debug!(%peer, %host, "refused: too many authentications from this source have failed");
        Err(ConnectError::BUSY)
    }

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
        self.audit(verdict);
        let only_makes_key = self.keep_generated(core, verdict);
        match verdict {
            Verdict::Authenticated if only_makes_key => {
                self.life.dismiss(cx.now);
                self.commands.forget_pause();
                self.arm_timer(cx);
            }
            Verdict::Authenticated if self.is_allowed_one_more(core) => {
                self.admit(core);
                self.begin_io();
                self.update_share(core);
            }
            Verdict::Authenticated => {
                self.close(cx, core, "its host has as many controllers as it may");
            }
            Verdict::Failed { .. } => {
                core.shared.authentication_failed(self.ends.peer.ip(), cx.now);
                self.life.dismiss(cx.now);
                self.commands.forget_pause();
                self.arm_timer(cx);
            }
        }
    }

    /// Hands on the key for TLS that an authentication has made. Says whether the queue is there for nothing else.
    fn keep_generated(&mut self, core: &Core, verdict: Verdict) -> bool {
        let Some(auth) = &mut self.commands.auth else { return false };
        let generated = auth.take_generated().filter(|_| verdict == Verdict::Authenticated);
        if let (Some(psk), Some(keys)) = (generated, &core.shared.config.generated_keys) {
            let names = auth.names();
            keys.add(&psk, names);
            // REPLACETLSPSK: the association goes on, and its next connections are made by this key.
            if let (Role::Admin(association), false) = (&mut self.role, auth.only_makes_key())
                && let Ok((identity, _)) = psk.for_tls(&names.host, &names.subsystem)
                && let Some(old) = association.has_generated(identity.as_str())
            {
                keys.forget(&old);
            }
        }
        auth.only_makes_key()
    }

    /// Whether the controller of an admin queue may count as one of its host's.
    fn is_allowed_one_more(&self, core: &Core) -> bool {
        match &self.role {
            Role::Admin(association) => {
                core.shared.prove_controller(association.cntlid(), association.nqn())
            }
            _ => true,
        }
    }

    /// One line for operators about an authentication that has ended.
    fn audit(&self, verdict: Verdict) {
        let Some(auth) = &self.commands.auth else { return };
        let (result, why) = match verdict {
            Verdict::Authenticated => ("authenticated", String::new()),
            Verdict::Failed { explanation, by_host: true } => {
                ("refused by the host", format!("{explanation:?}"))
            }
            Verdict::Failed { explanation, by_host: false } => {
                ("refused", format!("{explanation:?}"))
            }
        };
        let key = auth.key_of_proof().filter(|_| verdict == Verdict::Authenticated);
        self.log(auth, key, result, &why);
    }

    /// The connection closes. If its host had to authenticate and has not, that counts as a failure.
    #[cold]
    pub(super) fn close_unproven(&mut self, cx: &Context<'_>, core: &Core, why: &str) {
        if let Some(auth) = &self.commands.auth
            && !auth.is_proven()
            && self.life.state == LifeState::Open
        {
            core.shared.authentication_failed(self.ends.peer.ip(), cx.now);
            self.log(auth, None, "not authenticated", why);
        }
    }

    fn log(&self, auth: &Authentication, key: Option<usize>, result: &str, why: &str) {
        let names = auth.names();
        let proving = if let Role::Proving(io) = &self.role { Some(&**io) } else { None };
        let qid = proving.or(self.commands.io.as_ref()).map_or(0, |io| io.qid.0);
        // Counted from 1, as the keys were given.
        let key = key.map(|place| place + 1);
        tracing::info!(
            target: "raceline::audit",
            event = "authentication",
            host = names.host.as_str(),
            subsystem = names.subsystem.as_str(),
            qid,
            peer = %self.ends.peer,
            key,
            result,
            why,
        );
    }

    /// A new socket needs the place of this one, whose host has not shown who it is.
    pub(crate) fn give_way(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        // Its ticket is not valid any more. A host that has shown who it is meanwhile stays.
        if self.life.leave_early().is_some() {
            self.close(cx, core, "it gives way to a new socket");
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
        if let Some(auth) = &mut self.commands.auth
            && let Some(secrets) = core.snapshot.secrets(&auth.names().subsystem)
        {
            auth.update(secrets);
        }
    }
}
