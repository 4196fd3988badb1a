//! Extended Copy: segment after segment, by the device itself where it can, else by reading and writing (SPC-4, 6.4).

use std::ops::Range;
use std::sync::Arc;

use raceline_bdev::{BdevError, Op};
use raceline_proto::reservation::AccessGroup;
use raceline_reactor::{Context, Payload};
use raceline_scsi::copy::{CopyBytes, CopyList, CopyTarget, aborted};
use raceline_scsi::{Refusal, Sense};

use super::Connection;
use super::steps::second_buffer;
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::iscsi::copying::{Copying, Step};
use crate::path::iscsi::execute::{Kind, device_error};
use crate::path::iscsi::session::{LunView, Session};
use crate::path::iscsi::slots::Phase;
use crate::records::names::SlotKey;

/// Most bytes of a piece that is read and written: a copy holds one buffer of this size, whatever its length.
const PIECE_BYTES: u64 = 128 << 10;

/// The LUN that a copy target names, with its number. If two devices have the name, nobody knows which is meant.
fn find<'a>(session: &'a mut Session, target: &CopyTarget) -> Result<(u16, &'a LunView), Sense> {
    let gone = Sense::UNREACHABLE_COPY_TARGET;
    let mut found: Option<(u16, DeviceId)> = None;
    for number in 0..u16::try_from(session.luns.len()).unwrap_or(u16::MAX) {
        let Some(view) = session.lun(number) else { continue };
        if target.names(&view.seen.lun) {
            let device = view.lun.device;
            if found.is_some_and(|(_, other)| other != device) {
                return Err(gone);
            }
            found = found.or(Some((number, device)));
        }
    }
    let (number, _) = found.ok_or(gone)?;
    Ok((number, session.lun_as_seen(number).ok_or(gone)?))
}

/// Whether the session may read or write a LUN now, and it is still that device.
fn check_access(
    session: &Session,
    (number, device): (u16, DeviceId),
    group: AccessGroup,
) -> Result<(), Sense> {
    let view = session.lun_as_seen(number).filter(|view| view.lun.device == device);
    let view = view.ok_or(Sense::UNREACHABLE_COPY_TARGET)?;
    match view.lun.unit.admits(&session.scsi, group) {
        true => Ok(()),
        false => Err(Sense::THIRD_PARTY_DEVICE_FAILURE),
    }
}

impl Connection {
    /// An Extended Copy has its parameters.
    pub(super) fn begin_copy(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let (number, data) = (slot.lun, slot.data.take());
        let list = match CopyList::parse(data.as_deref().unwrap_or_default()) {
            Ok(list) => list,
            Err(sense) => return self.refuse(core, key, &sense.into()),
        };
        let Some(session) = &mut self.session else { return };
        let begun = session.copies.begin(number, list.id);
        let Some(slot) = self.slots.get(key) else { return };
        match begun {
            Ok(copy) => {
                slot.work.kind = Kind::Copy;
                slot.copying = Some(Box::new(Copying::new(list, copy)));
                self.copy_segment(cx, core, key);
            }
            Err(why) => self.refuse(core, key, &why),
        }
    }

    /// Begins the next segment that has bytes, or ends the command.
    fn copy_segment(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        loop {
            match self.resolve_segment(key) {
                Ok(None) => {
                    if let Some(copying) =
                        self.slots.get(key).and_then(|slot| slot.copying.as_ref())
                        && let Some(session) = &mut self.session
                    {
                        session.copies.succeed(copying.key);
                    }
                    return self.finish(core, key);
                }
                Ok(Some(bytes)) if bytes.start == bytes.end => self.count_segment(key),
                Ok(Some(bytes)) => {
                    let local = self.local(key);
                    let Some(slot) = self.slots.get(key) else { return };
                    let Some(device) = slot.device else { return };
                    if core.hold(device, &bytes, local) {
                        slot.phase = Phase::Fence;
                        return;
                    }
                    return self.copy_piece(cx, core, key);
                }
                Err(why) => return self.end_copy(core, key, &why),
            }
        }
    }

    /// Finds out what the current segment copies. Gives the bytes of the destination; `None`: there is no segment left.
    fn resolve_segment(&mut self, key: SlotKey) -> Result<Option<Range<u64>>, Sense> {
        let gone = Sense::UNREACHABLE_COPY_TARGET;
        let (Some(slot), Some(session)) = (self.slots.get(key), &mut self.session) else {
            return Err(gone);
        };
        let copying = slot.copying.as_mut().ok_or(gone)?;
        let Some(segment) = copying.list.segment(copying.segment) else { return Ok(None) };
        let targets = copying.list.targets(segment)?;
        let (from_number, from) = find(session, targets.0)?;
        let (source, from_lun) = (from.lun.device, Arc::clone(&from.seen.lun));
        let (to_number, to) = find(session, targets.1)?;
        let (destination, to_lun) = (to.lun.device, Arc::clone(&to.seen.lun));
        let bytes = segment.resolve(targets, (&from_lun, &to_lun))?;
        check_access(session, (from_number, source), AccessGroup::Read)?;
        check_access(session, (to_number, destination), AccessGroup::Write)?;
        (copying.luns, copying.source) = ((from_number, to_number), Some(source));
        (copying.bytes, copying.done, copying.by_hand) = (bytes, 0, false);
        slot.device = Some(destination);
        slot.bytes = bytes.to..bytes.to + bytes.len;
        slot.work.block_size = to_lun.block_size;
        Ok(Some(slot.bytes.clone()))
    }

    /// The current segment is copied.
    fn count_segment(&mut self, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let (Some(copying), Some(session)) = (&mut slot.copying, &mut self.session) else { return };
        copying.segment += 1;
        session.copies.count(copying.key, copying.segment, copying.bytes.len);
    }

    /// Begins to copy the next piece of the current segment, whose range is free.
    pub(super) fn copy_piece(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let (Some(copying), Some(session)) = (&mut slot.copying, &self.session) else { return };
        let (Some(source), Some(destination)) = (copying.source, slot.device) else { return };
        let are_there = core.device(source).is_some() && core.device(destination).is_some();
        let (from, to) = copying.luns;
        let may = check_access(session, (from, source), AccessGroup::Read)
            .and_then(|()| check_access(session, (to, destination), AccessGroup::Write))
            .and(if are_there { Ok(()) } else { Err(Sense::UNREACHABLE_COPY_TARGET) });
        if let Err(why) = may {
            return self.end_segment_early(core, key, &why);
        }
        let is_one_device = source == destination;
        let copies = core.device(destination).is_some_and(|device| device.info.copies);
        if is_one_device && copies && !copying.by_hand && !copying.overlaps() {
            copying.step = Step::Whole;
            let CopyBytes { from, to, len } = copying.bytes;
            return self.submit_to(
                cx,
                core,
                (key, destination),
                Op::Copy { from, to, len, fua: false },
            );
        }
        let piece = copying.next_piece(is_one_device, PIECE_BYTES);
        copying.step = Step::Read;
        let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
        let op = Op::Read { offset: piece.from, len, buf: Some(second_buffer(cx, len)) };
        self.submit_to(cx, core, (key, source), op);
    }

    /// A request of a copy is done.
    #[cold]
    pub(super) fn copied_part(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        result: Result<(), BdevError>,
        payload: Option<Payload>,
    ) {
        let is_muted = self.out.is_muted();
        let Some(slot) = self.slots.get(key) else { return };
        slot.pending -= 1;
        let Some(destination) = slot.device else { return };
        if slot.aborted || is_muted {
            core.write_drained(destination, &slot.bytes);
            return self.drop_command(core, key);
        }
        let Some(copying) = &mut slot.copying else { return };
        let step = std::mem::replace(&mut copying.step, Step::Idle);
        match (step, result, payload) {
            // Nothing says what the destination holds: all of it is written.
            (Step::Whole, Err(BdevError::NotSupported), _) => {
                copying.by_hand = true;
                self.copy_piece(cx, core, key);
            }
            (_, Err(error), _) => {
                let why = match device_error(error).refusal() {
                    Refusal::Check(sense) => sense,
                    Refusal::Conflict | Refusal::Busy => Sense::THIRD_PARTY_DEVICE_FAILURE,
                };
                self.end_segment_early(core, key, &why);
            }
            (Step::Read, Ok(()), Some(Payload::Buf(buf, _))) => {
                let is_one_device = copying.source == Some(destination);
                let piece = copying.next_piece(is_one_device, PIECE_BYTES);
                copying.step = Step::Write(piece.len);
                if core.device(destination).is_none() {
                    return self.end_segment_early(core, key, &Sense::UNREACHABLE_COPY_TARGET);
                }
                let op = Op::Write { offset: piece.to, data: buf.share(), fua: false };
                self.submit_to(cx, core, (key, destination), op);
            }
            (Step::Write(len), Ok(()), _) if copying.done + len < copying.bytes.len => {
                copying.done += len;
                if !self.rest(cx, core, key) {
                    self.copy_piece(cx, core, key);
                }
            }
            (Step::Idle, Ok(()), None) => self.copy_piece(cx, core, key),
            (Step::Whole | Step::Write(_), Ok(()), _) => {
                core.write_drained(destination, &slot.bytes);
                self.count_segment(key);
                self.copy_segment(cx, core, key);
            }
            (Step::Read | Step::Idle, Ok(()), _) => {
                debug_assert!(false, "a read gives its buffer");
                self.end_segment_early(core, key, &Sense::INTERNAL_FAILURE);
            }
        }
    }

    /// Ends a copy within a segment.
    fn end_segment_early(&mut self, core: &mut Core, key: SlotKey, why: &Sense) {
        let Some(slot) = self.slots.get(key) else { return };
        if let Some(device) = slot.device {
            core.write_drained(device, &slot.bytes);
        }
        self.end_copy(core, key, why);
    }

    /// Ends a copy at its current segment.
    fn end_copy(&mut self, core: &mut Core, key: SlotKey, why: &Sense) {
        let Some(slot) = self.slots.get(key) else { return };
        let segment = slot.copying.as_ref().map_or(0, |copying| copying.segment);
        self.refuse(core, key, &aborted(segment, why).into());
    }
}
