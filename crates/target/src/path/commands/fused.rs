//! Fused Compare and Write: both halves or neither, nothing in between (Base 2.0, 3.4.2).

use raceline_bdev::{Op, OpKind};
use raceline_proto::controller::IoCommand;
use raceline_proto::nvme::command::Fuse;
use raceline_proto::nvme::{Cqe, Status};
use raceline_reactor::{Context, Payload};

use super::Commands;
use super::io::compare;
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::path::choice::WritePath;
use crate::path::core::Core;
use crate::path::range_lock::LockId;
use crate::path::slots::{CommandSlot, Half, Job, Phase, Way};
use crate::records::names::{CommandPlace, SlotKey};

/// The longest fused operation, far above the one block that is promised (ACWU 0): its second half
/// never waits for a buffer, so a queue may have as many of this size as it has entries.
const MAX_FUSED_BYTES: u32 = 128 << 10;

/// What the queue knows of a fused operation whose second half has not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PendingFuse {
    /// There is none.
    #[default]
    None,
    /// The first half is this command.
    First(SlotKey),
    /// The first half was refused: the second half must be too.
    Refused,
}

impl Commands {
    fn partner(&mut self, key: SlotKey) -> Option<SlotKey> {
        self.slots.get(key).half.and_then(|half| half.partner)
    }

    /// Adds the command to a fused operation, if it is part of one. `None`: it was refused.
    pub(super) fn pair_fused(
        &mut self,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<CommandSlot> {
        let slot = self.slots.get(command.key());
        let fuse = slot.sqe.fuse();
        let pending = std::mem::take(&mut self.pending_fuse);
        if let (PendingFuse::First(first), false) = (pending, fuse == Fuse::Second) {
            self.doom(core, first, Status::ABORTED_MISSING_FUSED);
        }
        let status = match (fuse, pending) {
            (Fuse::Normal, _) => return Some(command),
            (Fuse::First, _) => match self.begin_fused(command.key()) {
                Ok(()) => return Some(command),
                Err(status) => status,
            },
            (Fuse::Second, PendingFuse::First(first)) => {
                return self.join_halves(core, first, command);
            }
            (Fuse::Second, PendingFuse::Refused) => Status::ABORTED_FAILED_FUSED,
            (Fuse::Second, PendingFuse::None) => Status::ABORTED_MISSING_FUSED,
            (Fuse::Reserved, _) => Status::INVALID_FIELD,
        };
        self.refuse(core, command, status.dnr());
        None
    }

    /// A first half has come.
    fn begin_fused(&mut self, key: SlotKey) -> Result<(), Status> {
        let slot = self.slots.get(key);
        let is_compare = matches!(slot.job, Some(Job { command: IoCommand::Compare { .. }, .. }));
        self.pending_fuse = PendingFuse::Refused;
        if !is_compare {
            return Err(Status::INVALID_FIELD);
        }
        if slot.transfer.len > MAX_FUSED_BYTES {
            return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED);
        }
        slot.half = Some(Half::default());
        self.pending_fuse = PendingFuse::First(key);
        Ok(())
    }

    /// The second half has come: both must name the same blocks.
    fn join_halves(
        &mut self,
        core: &mut Core,
        first: SlotKey,
        command: CommandSlot,
    ) -> Option<CommandSlot> {
        let second = command.key();
        let place = |job: &Job| (job.device, job.bytes.clone());
        let one = self.slots.get(first).job.as_ref().map(place);
        let slot = self.slots.get(second);
        if !slot.is_write() || slot.job.as_ref().map(place) != one {
            self.doom(core, first, Status::ABORTED_FAILED_FUSED);
            self.refuse(core, command, Status::INVALID_FIELD.dnr());
            return None;
        }
        for (half, partner) in [(first, second), (second, first)] {
            self.slots.get(half).half = Some(Half { partner: Some(partner), lock: None });
        }
        Some(command)
    }

    /// Refuses a command before it reached its device, and its other half with it.
    pub(super) fn fused_refuse(&mut self, core: &mut Core, command: CommandSlot, status: Status) {
        let key = command.key();
        let fuse = self.slots.get(key).sqe.fuse();
        let partner = self.partner(key);
        match (fuse, self.pending_fuse) {
            (Fuse::First, PendingFuse::First(first)) if first == key => {
                self.pending_fuse = PendingFuse::Refused;
            }
            (Fuse::First, _) if partner.is_none() => {
                if let PendingFuse::First(earlier) = self.pending_fuse {
                    self.doom(core, earlier, Status::ABORTED_MISSING_FUSED);
                }
                self.pending_fuse = PendingFuse::Refused;
            }
            (_, PendingFuse::First(earlier)) if partner.is_none() => {
                self.pending_fuse = PendingFuse::None;
                self.doom(core, earlier, Status::ABORTED_FAILED_FUSED);
            }
            (Fuse::Second, PendingFuse::Refused) => self.pending_fuse = PendingFuse::None,
            _ => {}
        }
        if let Some(partner) = partner {
            self.doom(core, partner, Status::ABORTED_FAILED_FUSED);
        }
        self.refuse(core, command, status);
    }

    /// A reservation or a preemption forbids a fused operation that has not reached its device.
    pub(super) fn forbid_fused(&mut self, core: &mut Core, key: SlotKey, status: Status) {
        if self.pending_fuse == PendingFuse::First(key) {
            self.pending_fuse = PendingFuse::Refused;
        }
        let partner = self.partner(key);
        if self.slots.get(key).phase == Phase::Lock {
            // The answer about the lock will come, and ends both halves.
            for half in [Some(key), partner].into_iter().flatten() {
                self.slots.get(half).status = status;
            }
            return;
        }
        self.doom(core, key, status);
        if let Some(partner) = partner {
            self.doom(core, partner, Status::ABORTED_FAILED_FUSED);
        }
    }

    /// Refuses a half now, or once its data have all come.
    fn doom(&mut self, core: &mut Core, key: SlotKey, status: Status) {
        let Some(command) = self.slots.resume(key) else { return };
        let slot = self.slots.get(key);
        slot.half = None;
        if matches!(slot.phase, Phase::Partner | Phase::Lock) {
            self.refuse(core, command, status.dnr());
        } else {
            slot.status = status.dnr();
        }
    }

    /// One half has its data. With both, the range can be locked.
    pub(super) fn fused_half_ready(&mut self, core: &mut Core, command: &CommandSlot) {
        let key = command.key();
        let slot = self.slots.get(key);
        slot.phase = Phase::Partner;
        let is_first = slot.sqe.fuse() == Fuse::First;
        let (device, bytes) = match &slot.job {
            Some(job) => (job.device, job.bytes.clone()),
            None => return,
        };
        let Some(partner) = self.partner(key) else { return };
        if self.slots.get(partner).phase != Phase::Partner {
            return;
        }
        let first = if is_first { key } else { partner };
        for half in [key, partner] {
            self.slots.get(half).phase = Phase::Lock;
        }
        let who = CommandPlace { conn: core.place(self.key), slot: first };
        let warden = device.warden(core.shared.cores());
        core.send(warden, Message::LockRange { device, bytes, who });
    }

    /// The range is locked for the operation: reads what is there. No lock: the device is gone. `closing`:
    /// the connection closes and drops the result.
    pub(crate) fn lock_granted(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        first: SlotKey,
        (device, lock): (DeviceId, Option<LockId>),
        closing: bool,
    ) {
        let waiting = self.slots.resume(first).filter(|_| {
            let slot = self.slots.get(first);
            slot.phase == Phase::Lock && slot.half.is_some_and(|half| half.lock.is_none())
        });
        let Some(command) = waiting else {
            // Otherwise, the lock was for a write that the closed connection has left at the device (`fence_writes`).
            if !closing {
                let peer = self.peer;
                tracing::error!(%peer, ?first, "a lock for a command that does not wait for it");
            }
            return core.unlock(device, lock);
        };
        let slot = self.slots.get(first);
        slot.half = slot.half.map(|half| Half { lock, ..half });
        let verdict = slot.status;
        let present = lock.is_some() && core.device(device).is_some();
        if !verdict.is_success() {
            // A reservation has come in between.
            return self.end_fused(core, command, verdict, None);
        }
        if closing || !present {
            return self.end_fused(core, command, Status::INVALID_NAMESPACE.dnr(), None);
        }
        slot.expected = slot.buf.take();
        let Some(job) = &slot.job else { return };
        let (offset, len) = (job.bytes.start, slot.transfer.len as usize);
        let buf = self.take_buffer_or_heap(cx, len);
        self.submit(cx, core, first, Op::Read { offset, len, buf: Some(buf) });
    }

    /// A device request of one half has finished.
    pub(super) fn fused_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        payload: Option<Payload>,
    ) {
        let key = command.key();
        let Some(partner) = self.partner(key).and_then(|key| self.slots.resume(key)) else {
            return;
        };
        let slot = self.slots.get(key);
        if slot.sqe.fuse() == Fuse::Second {
            let (status, came) = (slot.status, slot.came);
            self.end_fused(core, partner, Status::SUCCESS, Some(status));
            if status.is_success() {
                self.out.counters.count_time(OpKind::Write, came, cx.now);
            }
            return;
        }
        if slot.status.is_success() {
            slot.status = compare(slot, payload.as_ref());
        }
        let status = slot.status;
        if !status.is_success() {
            return self.end_fused(core, command, status, None);
        }
        if slot.device().is_none_or(|id| core.device(id).is_none()) {
            // Removed after the comparison, before the write: neither half has happened.
            return self.end_fused(core, command, Status::INVALID_NAMESPACE.dnr(), None);
        }
        let write = self.slots.get(partner.key());
        let Some(job) = &write.job else { return };
        let offset = job.bytes.start;
        let fua = matches!(job.command, IoCommand::Write { fua: true, .. });
        if let Some(buf) = write.buf.take() {
            let op = Op::Write { offset, data: buf.share(), fua };
            self.submit(cx, core, partner.key(), op);
        }
    }

    /// Both halves are complete: tells the host, gives the range back.
    fn end_fused(
        &mut self,
        core: &mut Core,
        first: CommandSlot,
        status: Status,
        write: Option<Status>,
    ) {
        let slot = self.slots.get(first.key());
        let half = slot.half.unwrap_or_default();
        if let Some(device) = slot.device() {
            core.unlock(device, half.lock);
        }
        let cqe = Cqe { cid: slot.cid(), status, ..Cqe::default() };
        self.finish(core, first, cqe);
        let Some(second) = half.partner.and_then(|key| self.slots.resume(key)) else { return };
        let slot = self.slots.get(second.key());
        let len = u64::from(slot.transfer.len);
        let path = match slot.way {
            Way::Write(path) => path,
            _ => WritePath::Buffered { lands_direct: false },
        };
        let status = write.unwrap_or(Status::ABORTED_FAILED_FUSED.dnr());
        let cqe = Cqe { cid: slot.cid(), status, ..Cqe::default() };
        if status.is_success() {
            self.count_write(path, len);
        }
        self.finish(core, second, cqe);
    }
}
