//! The steps of commands at their device: requests, locks, and what follows from the answers.

use raceline_bdev::{BdevError, Op, Sought, found_parts};
use raceline_reactor::{Context, IoBuf, Payload, SharedBuf};
use raceline_scsi::capacity::lba_status;
use raceline_scsi::{
    Check, Parameters, Refusal, Request, Sense, reply_lba_status, unmapped_blocks,
};

use super::{Connection, LifeState};
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::iscsi::execute::{Kind, bytes_of, device_error, difference};
use crate::path::iscsi::slots::Phase;
use crate::path::range_lock::LockId;
use crate::records::names::{CommandPlace, SlotKey};

/// Bytes of one write of WRITE SAME.
const PIECE_BYTES: usize = 64 << 10;
/// What a step of WRITE SAME or EXTENDED COPY counts for in a turn of its core: a piece is read and written.
pub(crate) const STEP_BYTES: u64 = 256 << 10;
/// Parts that GET LBA STATUS looks for.
const MOST_PARTS: usize = 256;

impl Connection {
    /// Bytes of the I/O buffer that a command without data from the initiator needs.
    pub(super) fn buffer_needed(&mut self, core: &mut Core, key: SlotKey) -> usize {
        let Some(slot) = self.slots.get(key) else { return 0 };
        let len = usize::try_from(slot.bytes.end - slot.bytes.start).unwrap_or(usize::MAX);
        let in_place = slot
            .device
            .and_then(|device| core.device(device))
            .is_some_and(|device| device.info.reads_in_place);
        match slot.work.kind {
            Kind::Read if !in_place => len,
            Kind::Verify(Check::Readable) => len,
            _ => 0,
        }
    }

    // --------------------------------------------------------------------- to the device

    /// The command has its data or its buffer: on to the device.
    pub(super) fn execute(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let local = self.local(key);
        let here = core.place(self.key);
        let Some(slot) = self.slots.get(key) else { return };
        let Some(device) = slot.device.filter(|device| core.device(*device).is_some()) else {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        };
        if slot.data.is_none() && slot.expected > 0 {
            slot.data = slot.buf.take().map(|mut buf| {
                buf.set_len(slot.expected);
                buf.share()
            });
        }
        if slot.work.needs_lock() && slot.lock.is_none() {
            slot.phase = Phase::Lock;
            let who = CommandPlace { conn: here, slot: key };
            let bytes = slot.bytes.clone();
            let warden = device.warden(core.shared.cores());
            return core.send(warden, Message::LockRange { device, bytes, who });
        }
        if let Kind::Collect(parameters @ (Parameters::ModeSelect(_) | Parameters::ReserveOut(_))) =
            slot.work.kind
        {
            return self.decide(core, key, parameters);
        }
        if self.is_forbidden(key) {
            return self.refuse(core, key, &Refusal::Conflict);
        }
        let Some(slot) = self.slots.get(key) else { return };
        if slot.work.changes_data() && core.hold(device, &slot.bytes, local) {
            slot.phase = Phase::Fence;
            return;
        }
        self.submit_first(cx, core, key);
    }

    fn submit_first(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let offset = slot.bytes.start;
        let len = usize::try_from(slot.bytes.end - slot.bytes.start).unwrap_or(usize::MAX);
        let fua = slot.work.fua;
        let op = match slot.work.kind {
            Kind::Read | Kind::Verify(Check::Readable) => {
                Op::Read { offset, len, buf: slot.buf.take() }
            }
            Kind::Write | Kind::WriteAndVerify(_) => {
                let Some(data) = slot.data.clone() else { return };
                Op::Write { offset, data, fua }
            }
            Kind::Verify(_) | Kind::OrWrite | Kind::CompareAndWrite => {
                Op::Read { offset, len, buf: Some(second_buffer(cx, len)) }
            }
            Kind::WriteSame { has_data, deallocate, .. } => {
                let is_zero = |data: &SharedBuf| data.iter().all(|byte| *byte == 0);
                if has_data && !slot.data.as_ref().is_some_and(is_zero) {
                    return self.write_same_piece(cx, core, key);
                }
                Op::WriteZeroes { offset, len: len as u64, deallocate, fua }
            }
            Kind::Flush => Op::Flush,
            Kind::LbaStatus { lba, .. } => return self.find_parts(cx, core, key, lba),
            Kind::Collect(Parameters::ExtendedCopy) => return self.begin_copy(cx, core, key),
            Kind::Collect(_) => return self.unmap(cx, core, key),
            Kind::Copy => return self.copy_piece(cx, core, key),
            Kind::None | Kind::Changed => return,
        };
        self.submit(cx, core, key, op);
    }

    /// Starts a request of a command at its device.
    fn submit(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey, op: Op) {
        let Some(device) = self.slots.get(key).and_then(|slot| slot.device) else { return };
        self.submit_to(cx, core, (key, device), op);
    }

    /// Starts a request of a command at this device.
    pub(super) fn submit_to(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        (key, device): (SlotKey, DeviceId),
        op: Op,
    ) {
        let tag = self.local(key).tag();
        let Some(slot) = self.slots.get(key) else { return };
        slot.phase = Phase::Device;
        slot.pending += 1;
        let bytes = usize::try_from(op.bytes()).unwrap_or(usize::MAX);
        if core.device(device).is_some_and(|device| device.info.copies_data) {
            self.moved = self.moved.saturating_add(bytes);
        }
        core.submit(cx, device, tag, op);
    }

    /// WRITE SAME with data that are not zeroes: writes the next piece.
    fn write_same_piece(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let Kind::WriteSame { next, .. } = slot.work.kind else { return };
        let left = usize::try_from(slot.bytes.end - next).unwrap_or(usize::MAX);
        let len = left.min(PIECE_BYTES);
        let block = slot.work.block_size as usize;
        let Some(data) = slot.data.take() else { return };
        let piece = if data.len() == len {
            data
        } else {
            let mut piece = second_buffer(cx, len);
            for part in piece.chunks_mut(block) {
                part.copy_from_slice(&data[..part.len()]);
            }
            piece.share()
        };
        slot.data = Some(piece.clone());
        let fua = slot.work.fua;
        self.submit(cx, core, key, Op::Write { offset: next, data: piece, fua });
    }

    /// A piece of WRITE SAME is written: the next one begins at `next`. The range is not left before all are written.
    fn write_same_on(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey, next: u64) {
        let Some(slot) = self.slots.get(key) else { return };
        let Kind::WriteSame { next: at, .. } = &mut slot.work.kind else { return };
        *at = next;
        let has_rested = std::mem::take(&mut slot.work.is_second);
        if !has_rested && self.rest(cx, core, key) {
            let Some(slot) = self.slots.get(key) else { return };
            slot.work.is_second = true;
            return;
        }
        self.write_same_piece(cx, core, key);
    }

    /// Has a command of many steps wait for the next turn of the core, if this one has no share for its next step. It waits
    /// as for a request at its device, which succeeds then.
    pub(super) fn rest(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) -> bool {
        if cx.io.flight().turn.take(cx.now, STEP_BYTES) {
            return false;
        }
        let Some(slot) = self.slots.get(key) else { return false };
        slot.pending += 1;
        core.iscsi.resting.push((self.key, key));
        true
    }

    /// UNMAP: one device request for each part.
    fn unmap(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let (number, block_size) = (slot.lun, u64::from(slot.work.block_size));
        let list = slot.data.take();
        let view = self.session.as_ref().and_then(|session| session.lun_as_seen(number));
        let (Some(list), Some(view)) = (list, view) else {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        };
        let lun = std::sync::Arc::clone(&view.seen.lun);
        let parts: Vec<_> = match unmapped_blocks(&lun, &list) {
            Ok(parts) => parts.collect(),
            Err(sense) => return self.refuse(core, key, &sense.into()),
        };
        let Some(slot) = self.slots.get(key) else { return };
        // One more than there are requests, so that the last of them does not end the command before all are submitted.
        slot.phase = Phase::Device;
        slot.pending = 1;
        for part in parts {
            let (offset, len) = (part.lba * block_size, part.count * block_size);
            self.submit(cx, core, key, Op::Deallocate { offset, len });
        }
        self.part_done(cx, core, key, Ok(()), None);
    }

    fn find_parts(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey, lba: u64) {
        let Some(slot) = self.slots.get(key) else { return };
        let (number, block_size) = (slot.lun, u64::from(slot.work.block_size));
        let view = self.session.as_ref().and_then(|session| session.lun_as_seen(number));
        let end = view.map_or(lba, |view| view.seen.lun.block_count);
        let (offset, len) = (lba * block_size, end.saturating_sub(lba) * block_size);
        let (sought, most) = (Sought::Data, MOST_PARTS);
        self.submit(cx, core, key, Op::Find { sought, offset, len, most });
    }

    /// MODE SELECT and PERSISTENT RESERVE OUT: their parameters are here.
    fn decide(&mut self, core: &mut Core, key: SlotKey, parameters: Parameters) {
        let Some(slot) = self.slots.get(key) else { return };
        let (number, list) = (slot.lun, slot.data.take());
        let Some(session) = &mut self.session else { return };
        let Some(view) = session.lun(number) else {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        };
        let list = list.as_deref().unwrap_or_default();
        match parameters.decide(&view.seen.lun, &view.seen.state, list) {
            Ok(Some(change)) => self.change(core, key, &change),
            Ok(None) => self.finish(core, key),
            Err(sense) => self.refuse(core, key, &sense.into()),
        }
    }

    // -------------------------------------------------------------------- locks, fences

    /// A fence over the command's range is down: executes the command, or drops it.
    pub(crate) fn handle_unfenced(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        if slot.aborted || self.state >= LifeState::Ending {
            return self.drop_command(core, key);
        }
        self.execute(cx, core, key);
    }

    /// The range of a command is locked for it, or the device is gone.
    pub(crate) fn handle_lock(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        (device, lock): (DeviceId, Option<LockId>),
    ) {
        let slot = self.slots.get(key).filter(|slot| slot.phase == Phase::Lock);
        let Some(slot) = slot else {
            return core.unlock(device, lock);
        };
        slot.lock = lock;
        if slot.aborted || self.state >= LifeState::Ending {
            return self.drop_command(core, key);
        }
        if lock.is_none() {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        }
        self.execute(cx, core, key);
    }

    // -------------------------------------------------------------------- from the device

    /// One of the device requests that the command waits for is done.
    pub(crate) fn part_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        result: Result<(), BdevError>,
        payload: Option<Payload>,
    ) {
        let Some(slot) = self.slots.get(key) else { return };
        if matches!(slot.work.kind, Kind::Copy) {
            return self.copied_part(cx, core, key, result, payload);
        }
        slot.pending -= 1;
        if let Err(error) = result {
            slot.failure.get_or_insert(error);
        }
        if slot.pending > 0 {
            return;
        }
        let goes_on = slot.failure.is_none() && !slot.aborted && !self.out.is_muted();
        if goes_on && let Some(next) = slot.next_piece() {
            if slot.device.is_none_or(|device| core.device(device).is_none()) {
                // Removed between two pieces; its fences are gone with it.
                return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
            }
            return self.write_same_on(cx, core, key, next);
        }
        let Some(slot) = self.slots.get(key) else { return };
        let Some(device) = slot.device else { return };
        if let Some(measured) = slot.measured.take() {
            core.count(device, measured, cx.now, result);
        }
        if slot.work.changes_data() {
            core.write_drained(device, &slot.bytes);
        }
        if slot.aborted || self.out.is_muted() {
            return self.drop_command(core, key);
        }
        if let Some(error) = slot.failure {
            let why = device_error(error).refusal();
            return self.refuse(core, key, &why);
        }
        self.next_step(cx, core, key, payload);
    }

    /// The requests of a step have succeeded.
    fn next_step(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        payload: Option<Payload>,
    ) {
        let Some(slot) = self.slots.get(key) else { return };
        let is_second = slot.work.is_second;
        match slot.work.kind {
            Kind::Read => match payload {
                Some(payload) => self.finish_read(cx, core, key, payload),
                None => self.refuse(core, key, &Sense::INTERNAL_FAILURE.into()),
            },
            Kind::WriteAndVerify(_) if !is_second => {
                if slot.device.is_none_or(|device| core.device(device).is_none()) {
                    // Removed after the write.
                    return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
                }
                let len = slot.bytes.end - slot.bytes.start;
                let (offset, len) = (slot.bytes.start, usize::try_from(len).unwrap_or(usize::MAX));
                slot.work.is_second = true;
                let buf = Some(second_buffer(cx, len));
                self.submit(cx, core, key, Op::Read { offset, len, buf });
            }
            Kind::Verify(check) | Kind::WriteAndVerify(check) => {
                let expected = match (check, &slot.data) {
                    (Check::Data | Check::OneBlock, Some(data)) => &data[..],
                    _ => &[],
                };
                let place = difference(bytes_of(payload.as_ref()), expected);
                self.end_comparison(core, key, place);
            }
            Kind::OrWrite if !is_second => {
                let Some(data) = slot.data.clone() else { return };
                let mut merged = IoBuf::from_slice(bytes_of(payload.as_ref()));
                merged.iter_mut().zip(&data[..]).for_each(|(byte, other)| *byte |= other);
                self.write_second(cx, core, key, merged);
            }
            Kind::CompareAndWrite if !is_second => {
                let Some(data) = slot.data.clone() else { return };
                let (expected, new) = data.split_at(data.len() / 2);
                match difference(bytes_of(payload.as_ref()), expected) {
                    None => self.write_second(cx, core, key, IoBuf::from_slice(new)),
                    place => self.end_comparison(core, key, place),
                }
            }
            Kind::LbaStatus { lba, allocation, request } => {
                self.tell_lba_status(core, key, (lba, allocation), &request, payload.as_ref());
            }
            _ => self.finish(core, key),
        }
    }

    /// The second step of a command under a lock.
    fn write_second(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey, data: IoBuf) {
        let Some(slot) = self.slots.get(key) else { return };
        if slot.device.is_none_or(|device| core.device(device).is_none()) {
            // Removed after the comparison, before the write.
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        }
        slot.work.is_second = true;
        let (offset, fua) = (slot.bytes.start, slot.work.fua);
        self.submit(cx, core, key, Op::Write { offset, data: data.share(), fua });
    }

    fn end_comparison(&mut self, core: &mut Core, key: SlotKey, difference: Option<usize>) {
        match difference {
            None => self.finish(core, key),
            Some(place) => {
                let why = Refusal::Check(Sense::miscompare(place as u64));
                self.refuse(core, key, &why);
            }
        }
    }

    fn tell_lba_status(
        &mut self,
        core: &mut Core,
        key: SlotKey,
        (lba, allocation): (u64, u32),
        request: &Request,
        payload: Option<&Payload>,
    ) {
        let Some(slot) = self.slots.get(key) else { return };
        let number = slot.lun;
        let view = self.session.as_ref().and_then(|session| session.lun_as_seen(number));
        let Some(view) = view else {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        };
        let lun = &view.seen.lun;
        let parts = found_parts(payload);
        let block_size = u64::from(lun.block_size);
        // With as many parts as were asked for, nothing is known of what is behind them.
        let end = match parts.last() {
            Some(last) if parts.len() >= MOST_PARTS => last.end / block_size,
            _ => lun.block_count,
        };
        let data = lba_status(lun, lba, end, &parts);
        let reply = reply_lba_status(request, allocation, data);
        if let Some(task) = self.release(core, key) {
            self.answer_plan(core, (task, number), raceline_scsi::Plan::Reply(reply));
        }
    }

    /// LUNs were removed: their commands that have not reached the device are refused.
    pub(super) fn drop_removed(&mut self, core: &mut Core) {
        let Some(session) = &self.session else { return };
        let is_removed = |slot: &crate::path::iscsi::slots::Slot| {
            let view = session.lun_as_seen(slot.lun);
            matches!(slot.phase, Phase::Throttled | Phase::Buffer | Phase::Data)
                && view.map(|view| view.lun.device) != slot.device
        };
        for key in self.slots.those(is_removed) {
            self.forget_wait(core, key);
            self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        }
    }
}

/// A buffer of the pool if there is one: a command that holds a buffer must not wait for another.
pub(super) fn second_buffer(cx: &Context<'_>, len: usize) -> IoBuf {
    let all = 0..cx.pool.class_count();
    let pooled = if len > cx.pool.largest() { None } else { cx.pool.take_of(len, all) };
    pooled.unwrap_or_else(|| IoBuf::heap(len))
}
