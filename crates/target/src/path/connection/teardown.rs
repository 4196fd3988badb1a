//! How a connection ends: deadlines, broken protocol, draining, closing.

use std::time::{Duration, Instant};

use raceline_proto::tcp::FatalError;
use raceline_reactor::Context;

use super::{Connection, Role, Stage};
use crate::path::core::Core;
use crate::path::slots::Phase;

/// How long a host may take to close after our TermReq (NVMe/TCP 1.0, 3.5), once connected.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same before Connect: half-dead sockets of strangers are to go sooner.
const EARLY_TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long commands in flight may take when the target stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Connection {
    // ------------------------------------------------------------------------ deadlines

    /// The next time the connection wants to be called, whatever for.
    fn next_timeout(&self) -> Option<Instant> {
        let controller = match &self.role {
            Role::Admin(association) => association.next_timeout(),
            _ => None,
        };
        [self.deadline, controller].into_iter().flatten().min()
    }

    /// Makes sure that a timer is running for the next deadline.
    pub(crate) fn arm_timer(&mut self, cx: &mut Context<'_>) {
        if self.stage == Stage::Closing {
            return;
        }
        let Some(at) = self.next_timeout() else { return };
        if self.timer_armed.is_none_or(|armed| at < armed) {
            self.timer_armed = Some(at);
            cx.io.timer(at, self.token());
        }
    }

    /// A timer has expired; maybe one that matters no more.
    pub(crate) fn handle_timer(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.timer_armed = None;
        if self.deadline.is_some_and(|deadline| deadline <= cx.now) {
            self.deadline = None;
            let why = match self.stage {
                _ if self.draining => "commands in flight did not finish in time",
                Stage::Greeting => "no ICReq in time",
                Stage::Open => "no Connect in time",
                Stage::Terminating | Stage::Closing => "the host did not close after TermReq",
            };
            self.close(cx, core, why);
        }
        if matches!(self.role, Role::Admin(_)) {
            self.handle_controller_timeout(cx, core);
        }
        self.arm_timer(cx);
    }

    /// Connect has completed: the deadline and the caps for strangers end.
    pub(crate) fn admitted(&mut self, core: &Core) {
        self.deadline = None;
        self.leave_early(core);
    }

    fn leave_early(&mut self, core: &Core) {
        if std::mem::take(&mut self.early) {
            core.shared.leave(self.peer.ip());
        }
    }

    // ------------------------------------------------------------------------- the end

    /// The host broke the protocol: says so in a TermReq and waits for it to close.
    pub(crate) fn fatal(&mut self, cx: &mut Context<'_>, core: &mut Core, error: &FatalError) {
        tracing::warn!(peer = %self.peer, %error, "the host broke the protocol; sending C2HTermReq");
        self.push_pdu(core, |queue, out| queue.term_req(error, out));
        self.stage = Stage::Terminating;
        let wait = if self.early { EARLY_TERMINATE_TIMEOUT } else { TERMINATE_TIMEOUT };
        self.deadline = Some(cx.now + wait);
        self.paused = None;
        self.arm_timer(cx);
    }

    /// The target is stopping: takes no new commands.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        self.draining = true;
        self.deadline = Some(cx.now + DRAIN_TIMEOUT);
        self.arm_timer(cx);
    }

    /// Whether the connection is draining and all commands that reached a device are answered.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.draining
            && self.stage < Stage::Closing
            && self.out.is_empty()
            && self.spare.is_some()
            && self.has_no_queues()
            && !self.slots.active().any(|(_, slot)| {
                matches!(slot.phase, Phase::Device | Phase::Digest | Phase::Fuse | Phase::Fence)
            })
    }

    /// Closes the socket. The connection itself goes when its operations have come home.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>, core: &mut Core, why: &str) {
        if self.stage == Stage::Closing {
            return;
        }
        tracing::debug!(peer = %self.peer, why, "closing connection");
        self.stage = Stage::Closing;
        self.deadline = None;
        self.paused = None;
        cx.io.close(self.socket, false);
        self.out.clear();
        self.leave_early(core);
        self.drop_waiting_commands(core);
        self.close_association(core);
    }

    /// Frees the slots of commands that wait for something that will not come any more.
    fn drop_waiting_commands(&mut self, core: &mut Core) {
        let waiting: Vec<u16> = self
            .slots
            .active()
            .filter(|(_, slot)| {
                matches!(slot.phase, Phase::Buffer | Phase::Data | Phase::Event)
                    || (slot.phase == Phase::Fuse && !slot.lock_asked)
            })
            .map(|(index, _)| index)
            .collect();
        for index in waiting {
            self.slots.release(index);
        }
        core.buffer_lines.retain(|waiter| waiter.key != self.key);
    }

    /// A fence over the command's range is down: on it goes, or away with its connection.
    pub(crate) fn fence_lowered(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: u16) {
        if self.stage == Stage::Closing {
            self.slots.release(slot);
        } else {
            self.execute(cx, core, slot);
        }
    }

    /// Whether nothing of the connection is in flight any more, so that it can go.
    pub(crate) fn is_gone(&self) -> bool {
        self.stage == Stage::Closing
            && !self.receiving
            && self.spare.is_some()
            && self.slots.in_use() == 0
            && self.awaiting == 0
            && self.has_no_queues()
    }

    /// Whether no I/O queue depends on the connection.
    fn has_no_queues(&self) -> bool {
        match &self.role {
            Role::Admin(association) => association.is_quiet(),
            _ => true,
        }
    }
}
