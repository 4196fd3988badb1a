//! How an iSCSI connection ends: deadlines, silence, broken protocol, draining, closing.

use std::time::{Duration, Instant};

use raceline_iscsi::FatalError;
use raceline_iscsi::target::TargetConnection;
use raceline_reactor::Context;

use super::{Connection, LifeState};
use crate::changes::iscsi_message::IscsiMessage;
use crate::changes::management::DeviceRequest;
use crate::changes::message::Message;
use crate::path::core::Core;
use crate::path::iscsi::slots::Phase;

/// How long an initiator may take to close after the last answer.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long commands in flight may take when the target stops.
const COMMANDS_TIMEOUT: Duration = Duration::from_secs(5);

impl Connection {
    // ------------------------------------------------------------------------ deadlines

    /// When the connection has to look at its deadlines next.
    fn next_deadline(&self, core: Option<&Core>) -> Option<Instant> {
        let silence = core.and_then(|core| {
            let at = self.next_ping(core)?;
            let settings = &core.snapshot.iscsi.settings;
            let interval = settings.nop_in_interval.unwrap_or(settings.nop_timeout);
            Some(core.iscsi.together(at, interval.min(settings.nop_timeout)))
        });
        [self.deadline, silence, self.throttled.next()].into_iter().flatten().min()
    }

    /// When a silent initiator is pinged, or given up.
    fn next_ping(&self, core: &Core) -> Option<Instant> {
        if self.state != LifeState::Open {
            return None;
        }
        let settings = &core.snapshot.iscsi.settings;
        match self.pinged {
            Some(since) => Some(since + settings.nop_timeout),
            None => Some(self.heard + settings.nop_in_interval?),
        }
    }

    /// Makes sure that a timer is running for the next deadline.
    pub(super) fn arm_timer(&mut self, cx: &mut Context<'_>) {
        self.arm(cx, None);
    }

    pub(super) fn arm_timers(&mut self, cx: &mut Context<'_>, core: &Core) {
        self.arm(cx, Some(core));
    }

    fn arm(&mut self, cx: &mut Context<'_>, core: Option<&Core>) {
        let Some(at) = self.next_deadline(core) else { return };
        if self.timer_armed.is_none_or(|armed| at < armed) {
            self.timer_armed = Some(at);
            cx.io.timer(at, self.token());
        }
    }

    /// A timer has expired; its deadline may no longer apply.
    pub(crate) fn handle_timer(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.timer_armed = None;
        if self.state == LifeState::Closing {
            return;
        }
        if self.deadline.take_if(|deadline| *deadline <= cx.now).is_some() {
            let why = match self.state {
                _ if self.draining => "commands in flight did not finish in time",
                LifeState::Login => "the login did not end in time",
                LifeState::Open => "the initiator did not log out in time",
                LifeState::Ending | LifeState::Closing => "the initiator did not close in time",
            };
            return self.close(cx, core, why);
        }
        self.run_throttled(cx, core);
        if self.next_ping(core).is_some_and(|at| at <= cx.now) {
            if self.pinged.is_some() {
                let peer = self.ends.peer;
                tracing::warn!(%peer, "an initiator does not answer NOP-In; its session ends");
                return self.close(cx, core, "the initiator does not answer NOP-In");
            }
            if self.out.push(core, TargetConnection::ping) {
                self.pinged = Some(cx.now);
            }
        }
        self.arm_timers(cx, core);
    }

    pub(super) fn leave_early(&mut self, core: &Core) {
        if let Some(ticket) = self.early.take() {
            core.shared.leave(ticket);
        }
    }

    /// The initiator has shown who it is, and its session begins.
    pub(super) fn admit(&mut self, core: &Core) {
        self.deadline = None;
        if let Some(ticket) = self.early.take() {
            core.shared.admit(ticket);
            self.admitted = true;
        }
    }

    // -------------------------------------------------------------------------- the end

    /// The initiator broke the protocol: tells it, if there is a way, and closes.
    pub(super) fn fatal(&mut self, cx: &mut Context<'_>, core: &mut Core, error: &FatalError) {
        let peer = self.ends.peer;
        tracing::warn!(%peer, %error, "an initiator broke the protocol; its connection ends");
        self.out.push(core, |proto, out| proto.terminate(error, out));
        self.end(cx, core);
        if self.out.is_idle() {
            self.close(cx, core, "the initiator broke the protocol");
        }
    }

    /// The last answer is in the batch: waits for the initiator to close.
    pub(super) fn end(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.state >= LifeState::Ending {
            return;
        }
        self.state = LifeState::Ending;
        self.out.mute();
        self.paused = None;
        self.drop_waiting(core);
        self.deadline = Some(cx.now + ENDING_TIMEOUT);
        self.arm_timer(cx);
    }

    /// Whether the connection ends without having been in full feature phase.
    pub(super) fn is_refused(&self) -> bool {
        self.session.is_none() || self.early.is_some()
    }

    /// The target is stopping: takes no new commands.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.draining = true;
        self.paused = None;
        self.drop_waiting(core);
        self.deadline = Some(cx.now + COMMANDS_TIMEOUT);
        self.arm_timer(cx);
    }

    /// Whether the connection is draining and all commands that reached a device are answered.
    pub(crate) fn is_drained(&self) -> bool {
        self.draining
            && self.state < LifeState::Closing
            && self.out.is_idle()
            && self.slots.in_use() == 0
    }

    /// The connection is early, and has to make room for another one.
    pub(crate) fn give_way(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.early.is_some() {
            self.close(cx, core, "too many connections have not logged in");
        }
    }

    /// Closes the socket. The connection itself is removed when its operations have finished.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>, core: &mut Core, why: &str) {
        if self.state == LifeState::Closing {
            return;
        }
        tracing::debug!(peer = %self.ends.peer, why, "closing connection");
        self.state = LifeState::Closing;
        self.deadline = None;
        cx.io.close(self.socket, false);
        self.out.close();
        self.leave_early(core);
        if std::mem::take(&mut self.admitted) {
            core.shared.depart(self.ends.peer.ip());
        }
        self.paused = None;
        self.managing.clear();
        self.drop_waiting(core);
    }

    /// Frees the slots of commands that wait for something other than a device, a lock, a fence or the reserver.
    pub(super) fn drop_waiting(&mut self, core: &mut Core) {
        let waits = |phase| matches!(phase, Phase::Throttled | Phase::Buffer | Phase::Data);
        for key in self.slots.those(|slot| waits(slot.phase)) {
            self.drop_command(core, key);
        }
        let own = self.key;
        core.buffer_lines.retain(|waiter| waiter.key != own);
    }

    /// Whether nothing of the connection is in flight any more, so that it can be removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.state == LifeState::Closing
            && self.staging.is_some()
            && !self.out.is_sending()
            && self.slots.in_use() == 0
    }

    /// The connection is removed: its session is gone, which those are told who wait for that.
    pub(crate) fn leave(&mut self, core: &Core) {
        let place = core.place(self.key);
        if let Some(mut session) = self.session.take() {
            for device in session.detach() {
                core.shared.reserve(DeviceRequest::Released(device));
            }
            let peer = self.ends.peer;
            let waiting = core.shared.sessions().release(&session.nexus, place);
            self.successors.extend(waiting);
            let (initiator, target) = (&session.nexus.initiator, &session.nexus.target);
            tracing::info!(event = "disconnect", %peer, initiator, target, "iSCSI session ended");
        }
        self.successors.dedup();
        for to in self.successors.drain(..) {
            let gone = IscsiMessage::PredecessorGone { to: to.key };
            core.send(to.core, Message::Iscsi(gone));
        }
    }
}
