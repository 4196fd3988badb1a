//! Fused Compare and Write: both halves or neither, nothing in between (Base 2.0, 3.4.2).

use raceline_bdev::Op;
use raceline_proto::controller::IoCommand;
use raceline_proto::nvme::command::Fuse;
use raceline_proto::nvme::{Cqe, Status};
use raceline_reactor::{Context, Payload};

use crate::changes::message::{CommandPlace, Message};
use crate::changes::snapshot::DeviceId;
use crate::path::connection::{Connection, Stage};
use crate::path::core::Core;
use crate::path::io_queue::compare;
use crate::path::range_lock::LockId;
use crate::path::slots::Phase;

/// The longest fused operation, far above the one block that is promised (ACWU 0): its second half
/// never waits for a buffer, so a queue may have as many of this size as it has entries.
const MAX_FUSED_BYTES: u32 = 128 << 10;

/// What the queue knows of a fused operation whose second half has not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PendingFuse {
    /// There is none.
    #[default]
    None,
    /// The first half is in this slot.
    First(u16),
    /// The first half was refused: the second half must be too.
    Refused,
}

impl Connection {
    /// Fits the command into a fused operation, if it is part of one. False: it was refused.
    pub(crate) fn pair_fused(&mut self, core: &mut Core, index: u16) -> bool {
        let fuse = self.slots.get(index).sqe.fuse();
        let pending = std::mem::take(&mut self.pending_fuse);
        if let (PendingFuse::First(first), false) = (pending, fuse == Fuse::Second) {
            self.doom(core, first, Status::ABORTED_MISSING_FUSED);
        }
        match (fuse, pending) {
            (Fuse::Normal, _) => true,
            (Fuse::First, _) => {
                let slot = self.slots.get(index);
                let status = match slot.command {
                    Some(IoCommand::Compare { .. }) if slot.transfer.len <= MAX_FUSED_BYTES => None,
                    Some(IoCommand::Compare { .. }) => Some(Status::ATOMIC_WRITE_UNIT_EXCEEDED),
                    _ => Some(Status::INVALID_FIELD),
                };
                if let Some(status) = status {
                    self.pending_fuse = PendingFuse::Refused;
                    self.refuse(core, index, status.dnr());
                    return false;
                }
                slot.fused = true;
                self.pending_fuse = PendingFuse::First(index);
                true
            }
            (Fuse::Second, PendingFuse::First(first)) => self.join_halves(core, first, index),
            (Fuse::Second, PendingFuse::Refused) => {
                self.refuse(core, index, Status::ABORTED_FAILED_FUSED.dnr());
                false
            }
            (Fuse::Second, PendingFuse::None) => {
                self.refuse(core, index, Status::ABORTED_MISSING_FUSED.dnr());
                false
            }
            (Fuse::Reserved, _) => {
                self.refuse(core, index, Status::INVALID_FIELD.dnr());
                false
            }
        }
    }

    /// The second half has come: both must name the same blocks.
    fn join_halves(&mut self, core: &mut Core, first: u16, second: u16) -> bool {
        let one = self.slots.get(first);
        let (bytes, device) = (one.bytes.clone(), one.device);
        let two = self.slots.get(second);
        let is_write = matches!(two.command, Some(IoCommand::Write { .. }));
        if !is_write || two.bytes != bytes || two.device != device {
            self.doom(core, first, Status::ABORTED_FAILED_FUSED);
            self.refuse(core, second, Status::INVALID_FIELD.dnr());
            return false;
        }
        two.fused = true;
        two.partner = Some(first);
        self.slots.get(first).partner = Some(second);
        true
    }

    /// A command is refused before it reached its device; its other half goes with it.
    pub(crate) fn fused_refuse(&mut self, core: &mut Core, index: u16, status: Status) {
        let fuse = self.slots.get(index).sqe.fuse();
        let partner = self.slots.get(index).partner;
        match (fuse, self.pending_fuse) {
            (Fuse::First, PendingFuse::First(first)) if first == index => {
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
            self.slots.get(partner).partner = None;
            self.doom(core, partner, Status::ABORTED_FAILED_FUSED);
        }
        self.refuse(core, index, status);
    }

    /// Refuses a half now, or once its data, which is under way, has come.
    fn doom(&mut self, core: &mut Core, index: u16, status: Status) {
        let slot = self.slots.get(index);
        slot.fused = false;
        slot.partner = None;
        if slot.phase == Phase::Fuse {
            self.refuse(core, index, status.dnr());
        } else {
            slot.status = status.dnr();
        }
    }

    /// One half has its data. With both, the range can be locked.
    pub(crate) fn fused_half_ready(&mut self, core: &mut Core, index: u16) {
        let slot = self.slots.get(index);
        slot.phase = Phase::Fuse;
        let (Some(partner), Some(device)) = (slot.partner, slot.device) else { return };
        let bytes = slot.bytes.clone();
        if self.slots.get(partner).phase != Phase::Fuse {
            return;
        }
        let first = if self.slots.get(index).sqe.fuse() == Fuse::First { index } else { partner };
        for half in [index, partner] {
            self.slots.get(half).lock_asked = true;
        }
        let who = CommandPlace { conn: core.place(self.key), slot: first };
        let warden = Core::warden_of(device, core.shared.cores());
        core.send(warden, Message::LockRange { device, bytes, who });
    }

    /// The range is ours: reads what is there. `None`: the device is gone.
    pub(crate) fn lock_granted(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        first: u16,
        device: DeviceId,
        lock: Option<LockId>,
    ) {
        let slot = self.slots.get(first);
        slot.lock = lock;
        let present = lock.is_some() && core.device(device).is_some();
        if self.stage == Stage::Closing || !present {
            return self.end_fused(core, first, Status::INVALID_NAMESPACE.dnr(), None);
        }
        slot.expected = slot.buf.take();
        let (offset, len) = (slot.bytes.start, slot.transfer.len as usize);
        let buf = self.take_buffer_or_heap(cx, len);
        self.submit(cx, core, first, Op::Read { offset, len, buf: Some(buf) });
    }

    /// A device request of one half has finished.
    pub(crate) fn fused_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        payload: Option<Payload>,
    ) {
        let slot = self.slots.get(index);
        let Some(partner) = slot.partner else { return };
        if slot.sqe.fuse() == Fuse::Second {
            let status = slot.status;
            return self.end_fused(core, partner, Status::SUCCESS, Some(status));
        }
        if slot.status.is_success() {
            slot.status = compare(slot, payload.as_ref());
        }
        let status = slot.status;
        if !status.is_success() {
            return self.end_fused(core, index, status, None);
        }
        let device = self.slots.get(index).device;
        if device.is_none_or(|id| core.device(id).is_none()) {
            // Removed after the comparison, before the write: neither half has happened.
            return self.end_fused(core, index, Status::INVALID_NAMESPACE.dnr(), None);
        }
        let write = self.slots.get(partner);
        let offset = write.bytes.start;
        let fua = matches!(write.command, Some(IoCommand::Write { fua: true, .. }));
        if let Some(buf) = write.buf.take() {
            self.submit(cx, core, partner, Op::Write { offset, data: buf.share(), fua });
        }
    }

    /// Both halves are over: tells the host, gives the range back.
    fn end_fused(&mut self, core: &mut Core, first: u16, status: Status, write: Option<Status>) {
        let slot = self.slots.get(first);
        let (lock, device, partner) = (slot.lock.take(), slot.device, slot.partner);
        if let (Some(lock), Some(device)) = (lock, device) {
            let warden = Core::warden_of(device, core.shared.cores());
            core.send(warden, Message::UnlockRange { device, lock });
        }
        let cid = slot.cid;
        let written = u64::from(slot.transfer.len);
        self.finish(core, first, Cqe { cid, status, ..Cqe::default() });
        let Some(second) = partner else { return };
        let cid = self.slots.get(second).cid;
        let status = write.unwrap_or(Status::ABORTED_FAILED_FUSED.dnr());
        if status.is_success() {
            self.counters.writes.add(1);
            self.counters.written_bytes.add(written);
        }
        self.finish(core, second, Cqe { cid, status, ..Cqe::default() });
    }
}
