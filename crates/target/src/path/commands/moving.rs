//! What the commands of a connection do while it moves to another core.
//!
//! Commands with a device, an engine or a buffer end first. A write whose data the host was not asked for needs none of
//! them, so it moves with the connection: else a host with many writes would never have none outstanding.

use raceline_proto::nvme::{Direction, Sqe};
use raceline_proto::tcp::Violation;
use raceline_reactor::Context;

use super::{Commands, PendingFuse};
use crate::path::core::Core;
use crate::path::outbox::Outbox;
use crate::path::slots::{Phase, Slot, Slots};
use crate::path::traveller::PackedCommands;
use crate::records::names::{ConnKey, SlotKey};

impl Commands {
    /// The connection is to move: writes wait from here on, also those that wait for a buffer.
    pub(crate) fn begin_move(&mut self, core: &mut Core) {
        self.holding = true;
        let waits = |slot: &Slot| slot.phase == Phase::Buffer && may_wait(slot);
        let waiting: Vec<SlotKey> =
            self.slots.active().filter(|(_, slot)| waits(slot)).map(|(key, _)| key).collect();
        for &key in &waiting {
            self.slots.get(key).phase = Phase::Move;
        }
        let own = self.key;
        core.buffer_lines.retain(|waiter| waiter.key != own || !waiting.contains(&waiter.slot));
    }

    /// Has a command wait for the move, if it may. True: it waits.
    #[cold]
    pub(super) fn hold(&mut self, key: SlotKey) -> bool {
        let slot = self.slots.get(key);
        let holds = may_wait(slot);
        if holds {
            slot.phase = Phase::Move;
        }
        holds
    }

    /// The move is over, or was given up: the commands go on.
    pub(crate) fn end_move(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.holding = false;
        let waiting = self.slots.active().filter(|(_, slot)| slot.phase == Phase::Move);
        let waiting: Vec<SlotKey> = waiting.map(|(key, _)| key).collect();
        for key in waiting {
            let Some(command) = self.slots.resume(key) else { continue };
            let executable = self.begin_transfer(cx, core, command, true);
            debug_assert_eq!(executable, None, "its data have yet to come");
        }
    }

    /// Whether bytes of commands that are outstanding have yet to come.
    pub(crate) fn await_bytes(&self) -> bool {
        self.slots.active().any(|(_, slot)| matches!(slot.phase, Phase::Data | Phase::Partner))
    }

    /// Whether all commands that are outstanding wait for the move.
    pub(crate) fn may_move(&self) -> bool {
        self.paused.is_none()
            && matches!(self.pending_fuse, PendingFuse::None)
            && self.slots.active().all(|(_, slot)| slot.phase == Phase::Move)
    }

    /// Whether all commands that are outstanding have had no effect, and wait in such a phase; no authentication is under
    /// way either.
    pub(crate) fn rest(&self, waits: impl Fn(Phase) -> bool) -> bool {
        self.paused.is_none()
            && matches!(self.pending_fuse, PendingFuse::None)
            && self.slots.active().all(|(_, slot)| waits(slot.phase))
            && self.auth.as_ref().is_none_or(|auth| auth.rests())
    }

    /// What another core needs to go on: [`Self::may_move`] is true.
    pub(crate) fn pack(self) -> Option<PackedCommands> {
        let waiting = self.slots.active().map(|(_, slot)| slot.sqe).collect();
        Some(PackedCommands {
            peer: self.peer,
            waiting,
            out: self.out.pack(),
            io: self.io?,
            auth: self.auth,
        })
    }

    /// The commands of a connection that has come from another core.
    pub(crate) fn unpack(key: ConnKey, packed: PackedCommands, core: &Core) -> (Self, Vec<Sqe>) {
        let PackedCommands { peer, waiting, out, io, auth } = packed;
        let slots = Slots::new(out.answers.entries);
        let (io, out) = (Some(io), Outbox::unpack(key, out));
        (Self { slots, out, io, auth, ..Self::new(key, peer, core) }, waiting)
    }

    /// Begins the writes that have waited for the move, as if they came now.
    pub(crate) fn take_again(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        waiting: &[Sqe],
    ) -> Result<(), Violation> {
        self.busy_since = (!waiting.is_empty()).then_some(cx.now);
        for sqe in waiting {
            self.take_io(cx, core, sqe, 0, &[])?;
        }
        Ok(())
    }
}

/// Whether a command has nothing of its core yet, and its data can be asked for on another one.
fn may_wait(slot: &Slot) -> bool {
    let is_write = slot.transfer.direction == Direction::HostToController && !slot.in_capsule;
    is_write && slot.half.is_none() && slot.status.is_success()
}
