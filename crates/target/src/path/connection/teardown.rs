//! How a connection ends: deadlines, broken protocol, draining, closing.

use std::io::ErrorKind;
use std::time::Instant;

use raceline_proto::tcp::FatalError;
use raceline_reactor::Context;

use super::{Connection, Role};
use crate::changes::message::Message;
use crate::path::core::Core;
use crate::path::life::LifeState;

impl Connection {
    // ------------------------------------------------------------------------ deadlines

    /// Makes sure that a timer is running for the next deadline.
    pub(crate) fn arm_timer(&mut self, cx: &mut Context<'_>) {
        let controller = match &self.role {
            Role::Admin(association) => association.next_timeout(),
            _ => None,
        };
        if let Some(at) = self.life.arm(controller) {
            cx.io.timer(at, self.token());
        }
    }

    /// A timer has expired; its deadline may no longer apply.
    pub(crate) fn handle_timer(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.suspended.is_some() && !self.life.draining && self.life.state <= LifeState::Open {
            // Its deadlines are looked at when it goes on.
            return self.life.forget_timer();
        }
        if let Some(why) = self.life.expire(cx.now) {
            self.close(cx, core, why);
        }
        if self.life.is_overdue(cx.now) {
            self.overdue(core);
        }
        if let Role::Admin(association) = &mut self.role {
            association.handle_timeout(cx.now);
            self.run_actions(cx, core);
        }
        self.arm_timer(cx);
    }

    pub(super) fn leave_early(&mut self, core: &Core) {
        if let Some(ticket) = self.life.leave_early() {
            core.shared.leave(ticket);
        }
    }

    /// The host has shown who it is.
    pub(super) fn admit(&mut self, core: &Core) {
        self.life.admit();
        if let Some(ticket) = self.life.leave_early() {
            core.shared.admit(ticket);
            self.admitted = true;
        }
    }

    // ------------------------------------------------------------------------- the end

    /// The host broke the protocol: says so in a TermReq and waits for it to close.
    pub(super) fn fatal(&mut self, cx: &mut Context<'_>, core: &mut Core, error: &FatalError) {
        let peer = self.ends.peer;
        tracing::warn!(%peer, %error, "the host broke the protocol; sending C2HTermReq");
        self.commands.out.push_term_req(core, error);
        self.life.terminate(cx.now);
        self.commands.forget_pause();
        self.arm_timer(cx);
    }

    /// The socket has failed. What the kernel reports happens every day. What a provider of streams reports, such as
    /// TLS without a key, somebody has to do something about.
    pub(super) fn log_broken(&self, error: &std::io::Error) {
        let peer = self.ends.peer;
        match (error.raw_os_error(), error.kind()) {
            (Some(_), _) => tracing::debug!(%peer, %error, "receive failed"),
            (None, ErrorKind::UnexpectedEof) => {
                tracing::info!(%peer, %error, "a connection was cut off")
            }
            (None, _) => tracing::warn!(%peer, %error, "a connection has failed"),
        }
    }

    /// The target is stopping: takes no new commands.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        self.life.drain(cx.now);
        self.arm_timer(cx);
    }

    /// Whether the connection is draining and all commands that reached a device are answered.
    pub(crate) fn is_drained(&self) -> bool {
        self.life.draining
            && self.life.state < LifeState::Closing
            && self.commands.out.is_idle()
            && self.has_no_queues()
            && self.commands.are_drained()
    }

    /// Closes the socket. The connection itself is removed when its operations have finished.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>, core: &mut Core, why: &str) {
        if self.life.state == LifeState::Closing {
            return;
        }
        tracing::debug!(peer = %self.ends.peer, why, "closing connection");
        self.close_unproven(cx, core, why);
        self.life.close();
        cx.io.close(self.socket, false);
        self.commands.out.close();
        self.leave_early(core);
        if std::mem::take(&mut self.admitted) {
            core.shared.depart(self.ends.peer.ip());
        }
        self.commands.drop_waiting(core);
        if let Role::Admin(association) = &self.role {
            association.close_queues(core);
        }
        self.begin_quiesce(cx, core);
    }

    /// Whether nothing of the connection is in flight any more, so that it can be removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.life.state == LifeState::Closing
            && !self.inbox.is_receiving()
            && !self.commands.out.is_sending()
            && self.commands.slots.in_use() == 0
            && self.life.awaiting == 0
            && self.has_no_queues()
    }

    /// Whether no I/O queue depends on the connection.
    pub(super) fn has_no_queues(&self) -> bool {
        match &self.role {
            Role::Admin(association) => association.is_quiet(),
            _ => true,
        }
    }

    /// The connection is removed: tells the controller or the I/O queues that depend on it.
    pub(crate) fn leave(&mut self, core: &Core, now: Instant) {
        core.shared.ledger().detach(core.place(self.key));
        if let Role::Admin(association) = &mut self.role {
            association.end(core, self.commands.counters(), now);
            let cntlid = association.cntlid();
            tracing::info!(event = "disconnect", peer = %self.ends.peer, %cntlid, "association ended");
        }
        let proving = if let Role::Proving(io) = &self.role { Some(&**io) } else { None };
        if let Some(io) = self.commands.io.as_ref().or(proving) {
            let (home, from) = (io.home.place, core.place(self.key));
            core.send(home.core, Message::IoClosed { home: home.key, qid: io.qid, from });
        }
    }
}
