//! SCSI commands: from the header to the device, or to the answer at once.

use std::time::Instant;

use raceline_bdev::OpKind;
use raceline_iscsi::pdu::ScsiCommand;
use raceline_iscsi::target::{Residual, Status, TaskId};
use raceline_reactor::{Context, Payload};
use raceline_scsi::{
    Blocks, Change, DataDirection, Plan, PortGroupState, Refusal, Reply, Request, SameData, Sense,
    SenseKey, Transfer, View, lun_from_wire, plan, plan_without_lun, refuse, reply_copy_status,
};

use super::{Connection, LifeState};
use crate::changes::management::{DeviceRequest, UnitRequest};
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::iscsi::execute::{Kind, Work, device_error, first, residual};
use crate::path::iscsi::outbox::Digests;
use crate::path::iscsi::session::Session;
use crate::path::iscsi::slots::Phase;
use crate::records::names::{CommandPlace, SlotKey};

/// A LUN number that no LUN has, for fields that name none.
const NO_LUN: u16 = u16::MAX;

/// What a command is about, apart from its plan.
struct About {
    task: TaskId,
    request: Request,
    /// Number of the LUN, and what is behind it.
    lun: u16,
    device: DeviceId,
    block_size: u32,
    /// It has limits.
    is_limited: bool,
    /// Bytes that come with the command, and behind it without being asked for.
    immediate: u32,
    unsolicited: u32,
}

/// A device, its block size, and whether commands for it have limits.
type Found = (DeviceId, u32, bool);

impl Session {
    /// What a command means, the device of its LUN, the block size of that, and the limits.
    #[inline]
    fn plan(&mut self, number: u16, request: &Request) -> (Plan, Option<Found>) {
        if self.lun(number).is_none() {
            return (plan_without_lun(&self.facts, request), None);
        }
        let (facts, port) = (&self.facts, self.scsi.port);
        let Some(lun) = self.luns.get_mut(usize::from(number)).and_then(Option::as_mut) else {
            return (plan_without_lun(facts, request), None);
        };
        let view = View {
            lun: &lun.seen.lun,
            state: &lun.seen.state,
            admission: lun.seen.admission,
            target: facts,
            port,
            port_state: PortGroupState::Optimized,
        };
        let planned = plan(&view, &mut lun.attentions, request);
        let block_size = lun.seen.lun.block_size;
        (planned, Some((lun.lun.device, block_size, lun.levels.is_some())))
    }
}

fn request_of(command: &ScsiCommand) -> Option<Request> {
    let direction = match (command.reads(), command.writes()) {
        (false, false) => DataDirection::None,
        (true, false) => DataDirection::In,
        (false, true) => DataDirection::Out,
        (true, true) => return None,
    };
    Some(Request { cdb: command.cdb, edtl: command.edtl, direction })
}

impl Connection {
    /// A command has come, with `rest` behind its header. Gives how many bytes of `rest` belong to it and have been
    /// taken.
    #[inline]
    pub(super) fn take_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        (task, command): (TaskId, &ScsiCommand),
        unasked: (u32, u32),
        rest: &[u8],
    ) -> usize {
        self.counters.commands.add(1);
        let started = self.session.as_mut().and_then(|session| session.started(cx.now));
        let taken = self.begin_command(cx, core, (task, command), unasked, rest);
        if let Some(started) = started {
            self.note_start(task, started);
        }
        taken
    }

    /// A command that began then has a slot, or has ended already.
    #[cold]
    fn note_start(&mut self, task: TaskId, started: Instant) {
        let slot = self.slots.of(task).and_then(|key| self.slots.get(key));
        match (slot, &self.session) {
            (Some(slot), _) => slot.started = Some(started),
            (None, Some(session)) => session.ended(started),
            (None, None) => {}
        }
    }

    #[inline]
    fn begin_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        (task, command): (TaskId, &ScsiCommand),
        (immediate, unsolicited): (u32, u32),
        rest: &[u8],
    ) -> usize {
        let Some(session) = &mut self.session else { return 0 };
        let Some(request) = request_of(command) else {
            let request = Request { cdb: command.cdb, edtl: 0, direction: DataDirection::None };
            self.answer_plan(
                core,
                (task, NO_LUN),
                refuse(&request, Sense::INVALID_FIELD_IN_CDB.into()),
            );
            return 0;
        };
        let lun = lun_from_wire(command.lun.to_be_bytes()).unwrap_or(NO_LUN);
        let (plan, found) = session.plan(lun, &request);
        let Some((device, block_size, is_limited)) = found else {
            self.answer_plan(core, (task, lun), plan);
            return 0;
        };
        let about =
            About { task, request, lun, device, block_size, is_limited, immediate, unsolicited };
        match plan {
            Plan::Read { blocks, transfer, .. } => {
                self.begin_read(cx, core, &about, blocks, transfer);
            }
            Plan::Write { blocks, fua, transfer } => {
                let taken = self.write_at_once(core, &about, blocks, transfer, rest);
                if let Some(taken) = taken {
                    return taken;
                }
                self.begin(cx, core, &about, (Kind::Write, fua), blocks, transfer);
            }
            plan => self.begin_other(cx, core, &about, plan),
        }
        0
    }

    /// How the data of reads are digested.
    #[inline]
    pub(super) fn digests(&self, cx: &mut Context<'_>, bytes: usize) -> Digests {
        if !self.out.proto.data_digest() {
            return Digests::Off;
        }
        cx.io.accelerator().copier(bytes).map_or(Digests::Before, Digests::OnTheWay)
    }

    #[inline]
    fn begin_read(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        about: &About,
        blocks: Blocks,
        transfer: Transfer,
    ) {
        if transfer.bytes == 0 {
            return self.answer_good(core, about.task, residual(transfer.residual));
        }
        let offset = blocks.lba * u64::from(about.block_size);
        let bytes = transfer.bytes as usize;
        let whole = usize::try_from(blocks.count * u64::from(about.block_size)).unwrap_or(bytes);
        if !about.is_limited
            && let Some(payload) = core.read_now(about.device, offset, whole)
        {
            let payload = if whole == bytes { payload } else { first(payload, bytes) };
            let digests = self.digests(cx, bytes);
            let answer = (payload, residual(transfer.residual));
            self.counters.count_read(transfer.bytes);
            return self.out.push_read(core, about.task, answer, &digests);
        }
        self.begin(cx, core, about, (Kind::Read, false), blocks, transfer);
    }

    /// Writes what has come with its command, if all of it is here and the device takes it at once. Gives how many bytes
    /// of `rest` that were.
    #[inline]
    fn write_at_once(
        &mut self,
        core: &mut Core,
        about: &About,
        blocks: Blocks,
        transfer: Transfer,
        rest: &[u8],
    ) -> Option<usize> {
        let is_whole = about.immediate == transfer.bytes && about.unsolicited == 0;
        if !is_whole
            || about.is_limited
            || transfer.bytes == 0
            || !core.writes_at_once(about.device)
        {
            return None;
        }
        let len = transfer.bytes as usize;
        let data = self.out.proto.take_immediate_data(rest, len)?;
        self.moved = self.moved.saturating_add(len);
        let offset = blocks.lba * u64::from(about.block_size);
        match core.write_at_once(about.device, offset, data) {
            Ok(()) => {
                self.counters.count_write(transfer.bytes);
                self.answer_good(core, about.task, residual(transfer.residual));
            }
            Err(error) => {
                let why = device_error(error).refusal();
                self.answer_refusal(core, about.task, (about.lun, Residual::None), &why);
            }
        }
        Some(len)
    }

    /// All commands but plain reads and writes.
    #[inline(never)]
    fn begin_other(&mut self, cx: &mut Context<'_>, core: &mut Core, about: &About, plan: Plan) {
        let no_blocks = Blocks { lba: 0, count: 0 };
        let (kind, fua, blocks, transfer) = match plan {
            Plan::WriteAndVerify { blocks, check, transfer } => {
                (Kind::WriteAndVerify(check), true, blocks, transfer)
            }
            Plan::OrWrite { blocks, fua, transfer } => (Kind::OrWrite, fua, blocks, transfer),
            Plan::CompareAndWrite { blocks, fua, transfer } => {
                (Kind::CompareAndWrite, fua, blocks, transfer)
            }
            Plan::Verify { blocks, check, transfer } => {
                (Kind::Verify(check), false, blocks, transfer)
            }
            Plan::WriteSame { blocks, data, deallocate, fua, transfer } => {
                let has_data = data == SameData::Transfer;
                let next = blocks.lba * u64::from(about.block_size);
                (Kind::WriteSame { has_data, deallocate, next }, fua, blocks, transfer)
            }
            Plan::Flush { transfer } => (Kind::Flush, false, no_blocks, transfer),
            Plan::Collect { parameters, transfer } => {
                (Kind::Collect(parameters), false, no_blocks, transfer)
            }
            Plan::LbaStatus { lba, allocation } => {
                let kind = Kind::LbaStatus { lba, allocation, request: about.request };
                (kind, false, no_blocks, Transfer::none(&about.request))
            }
            Plan::Change { change, transfer } => {
                let key = self.slots.take(about.task, about.lun);
                self.describe(key, about, (Kind::Changed, false), no_blocks, transfer);
                return self.change(core, key, &change);
            }
            Plan::CopyStatus { id, allocation } => {
                let status =
                    self.session.as_mut().and_then(|session| session.copies.status(about.lun, id));
                let answer = reply_copy_status(&about.request, allocation, status);
                return self.answer_plan(core, (about.task, about.lun), answer);
            }
            Plan::PreFetch { transfer, .. } => {
                return self.answer_good(core, about.task, residual(transfer.residual));
            }
            plan => {
                if about.request.cdb[0] == 0xa0
                    && let Some(session) = &mut self.session
                {
                    session.luns_are_known();
                }
                return self.answer_plan(core, (about.task, about.lun), plan);
            }
        };
        if transfer.bytes == 0
            && blocks.count == 0
            && !matches!(kind, Kind::Flush | Kind::LbaStatus { .. })
        {
            // Nothing to do.
            return self.answer_good(core, about.task, residual(transfer.residual));
        }
        self.begin(cx, core, about, (kind, fua), blocks, transfer);
    }

    /// Gives a command a slot, and gets its data or its buffer.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        about: &About,
        (kind, fua): (Kind, bool),
        blocks: Blocks,
        transfer: Transfer,
    ) {
        if matches!(kind, Kind::Write) && transfer.bytes == 0 {
            return self.answer_good(core, about.task, residual(transfer.residual));
        }
        let key = self.slots.take(about.task, about.lun);
        self.describe(key, about, (kind, fua), blocks, transfer);
        if core.device(about.device).is_none() {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        }
        if about.is_limited && self.waits(cx, core, key) {
            return;
        }
        self.begin_with_data(cx, core, key);
    }

    /// Gets a command that is described its data or its buffer.
    pub(super) fn begin_with_data(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        self.measure(core, cx.now, key);
        let Some(slot) = self.slots.get(key) else { return };
        if slot.expected > 0 {
            self.begin_receiving(cx, core, key);
        } else {
            self.begin_reading(cx, core, key);
        }
    }

    /// Begins to measure a command, if its device is measured.
    #[inline]
    pub(super) fn measure(&mut self, core: &mut Core, now: Instant, key: SlotKey) {
        if !core.meters {
            return;
        }
        let Some(slot) = self.slots.get(key) else { return };
        let op = match slot.work.kind {
            Kind::Read => Some(OpKind::Read),
            Kind::Write => Some(OpKind::Write),
            _ => None,
        };
        let bytes = u64::from(slot.work.bytes);
        let device = op.zip(slot.device);
        slot.measured = device.and_then(|(op, device)| core.measure(device, now, op, bytes));
    }

    /// Notes in a slot what its command is about.
    fn describe(
        &mut self,
        key: SlotKey,
        about: &About,
        (kind, fua): (Kind, bool),
        blocks: Blocks,
        transfer: Transfer,
    ) {
        let Some(slot) = self.slots.get(key) else { return };
        let block_size = u64::from(about.block_size);
        slot.device = Some(about.device);
        slot.bytes = match kind {
            // Ranges are known when the parameters have come; a fence anywhere holds the command.
            Kind::Collect(raceline_scsi::Parameters::Unmap) => 0..u64::MAX,
            _ => blocks.lba * block_size..(blocks.lba + blocks.count) * block_size,
        };
        let none = Transfer::none(&about.request);
        let failed_residual = match about.request.direction {
            DataDirection::In => residual(none.residual),
            _ => Residual::None,
        };
        slot.work = Work {
            kind,
            bytes: transfer.bytes,
            residual: residual(transfer.residual),
            failed_residual,
            fua,
            block_size: about.block_size,
            is_second: false,
        };
        if transfer.direction == DataDirection::Out {
            slot.expected = transfer.bytes as usize;
            slot.unsolicited = (about.immediate + about.unsolicited) as usize;
        }
    }

    // ------------------------------------------------------------------------ answers

    /// Answers a command without data that has succeeded.
    #[inline]
    pub(super) fn answer_good(&mut self, core: &mut Core, task: TaskId, residual: Residual) {
        let status = Status { status: 0, residual, sense: &[] };
        self.out.push_response(core, task, &status);
    }

    /// Answers a command that needs no device.
    pub(super) fn answer_plan(&mut self, core: &mut Core, (task, lun): (TaskId, u16), plan: Plan) {
        match plan {
            Plan::Reply(Reply { data, transfer }) => {
                self.out.push_data(core, task, &data, residual(transfer.residual));
            }
            Plan::Refuse(refused) => {
                let rest = residual(refused.residual);
                self.answer_refusal(core, task, (lun, rest), &refused.why);
            }
            plan => {
                tracing::error!(?plan, "a command without a device has work for one");
                let why = Sense::INTERNAL_FAILURE.into();
                self.answer_refusal(core, task, (lun, Residual::None), &why);
            }
        }
    }

    /// Answers a command that is not executed, or has failed.
    #[cold]
    pub(super) fn answer_refusal(
        &mut self,
        core: &mut Core,
        task: TaskId,
        (lun, residual): (u16, Residual),
        why: &Refusal,
    ) {
        // An attention is news for the initiator, and no error.
        if why.sense().is_none_or(|sense| sense.key != SenseKey::UnitAttention) {
            self.counters.errors.add(1);
        }
        let view = self.session.as_ref().and_then(|session| session.lun_as_seen(lun));
        let in_descriptors = view.is_some_and(|view| view.seen.state.mode.descriptor_sense);
        let sense = why.sense().map(|sense| sense.encode(in_descriptors));
        let sense = sense.as_ref().map_or(&[][..], |sense| sense.as_bytes());
        let status = Status { status: why.status().to_wire(), residual, sense };
        self.out.push_response(core, task, &status);
    }

    // ------------------------------------------------------------------ ends of commands

    /// Frees the slot of a command that is answered now. Gives the protocol's name of it.
    pub(super) fn release(&mut self, core: &mut Core, key: SlotKey) -> Option<TaskId> {
        let slot = self.slots.get(key)?;
        let (started, copying) = (slot.started, slot.copying.take());
        if let (Some(copying), Some(session)) = (copying, &mut self.session) {
            session.copies.end(copying.key);
        }
        let (task, held) = self.slots.release(key)?;
        if let (Some(started), Some(session)) = (started, &self.session) {
            session.ended(started);
        }
        if let Some((device, lock)) = held {
            core.unlock(device, Some(lock));
        }
        Some(task)
    }

    /// Ends a command that has succeeded and has no data to send.
    pub(super) fn finish(&mut self, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        let rest = slot.work.residual;
        if slot.work.writes_blocks() {
            self.counters.count_write(slot.work.bytes);
        }
        if let Some(task) = self.release(core, key) {
            self.answer_good(core, task, rest);
        }
    }

    /// Ends a command that has succeeded, with its data.
    pub(super) fn finish_read(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        payload: Payload,
    ) {
        let Some(slot) = self.slots.get(key) else { return };
        let (bytes, rest) = (slot.work.bytes as usize, slot.work.residual);
        if matches!(slot.work.kind, Kind::Read) {
            self.counters.count_read(slot.work.bytes);
        }
        let payload = if payload.len() == bytes { payload } else { first(payload, bytes) };
        if let Some(task) = self.release(core, key) {
            let digests = self.digests(cx, bytes);
            self.out.push_read(core, task, (payload, rest), &digests);
        }
    }

    /// Ends a command that is not executed, or has failed.
    #[cold]
    pub(super) fn refuse(&mut self, core: &mut Core, key: SlotKey, why: &Refusal) {
        let Some(slot) = self.slots.get(key) else { return };
        let about = (slot.lun, slot.work.failed_residual);
        if let Some(task) = self.release(core, key) {
            self.answer_refusal(core, task, about, why);
        }
    }

    /// Ends a command without an answer.
    pub(super) fn drop_command(&mut self, core: &mut Core, key: SlotKey) {
        self.forget_wait(core, key);
        core.iscsi.ended = true;
        if let Some(task) = self.release(core, key) {
            self.out.abort(core, task);
        }
    }

    /// Changes the state of the logical unit, as a command asks for. Reservations are those of the device: the thread
    /// that changes them answers by [`Self::reserved`].
    pub(super) fn change(&mut self, core: &mut Core, key: SlotKey, change: &Change) {
        let here = core.place(self.key);
        let Some(slot) = self.slots.get(key) else { return };
        let (number, device) = (slot.lun, slot.device);
        let Some(session) = &self.session else { return };
        let view = session.lun_as_seen(number);
        let Some(view) = view.filter(|view| Some(view.lun.device) == device) else {
            return self.refuse(core, key, &Sense::NO_SUCH_LUN.into());
        };
        if !matches!(change, Change::ReserveOut(..) | Change::Reserve | Change::Release) {
            view.lun.unit.change(&session.scsi, change);
            return self.finish(core, key);
        }
        slot.phase = Phase::Reserver;
        let (device, nexus) = (view.lun.device, session.scsi.clone());
        let from = CommandPlace { conn: here, slot: key };
        let request = UnitRequest { device, nexus, change: *change, from };
        if !core.shared.reserve(DeviceRequest::Unit(request)) {
            self.refuse(core, key, &Sense::INTERNAL_FAILURE.into());
        }
    }

    /// The result of a change of reservations.
    #[cold]
    pub(crate) fn reserved(&mut self, core: &mut Core, key: SlotKey, result: &Result<(), Refusal>) {
        let Some(slot) = self.slots.get(key).filter(|slot| slot.phase == Phase::Reserver) else {
            tracing::error!(peer = %self.ends.peer, ?key, "an answer to a command that has ended");
            return;
        };
        if slot.aborted || self.state >= LifeState::Ending {
            return self.drop_command(core, key);
        }
        match result {
            Ok(()) => self.finish(core, key),
            Err(why) => self.refuse(core, key, why),
        }
    }

    /// Whether a reservation that has come after the command keeps it from its device.
    #[inline]
    pub(super) fn is_forbidden(&mut self, key: SlotKey) -> bool {
        let Some(slot) = self.slots.get(key) else { return false };
        let (number, group) = (slot.lun, slot.work.group());
        let session = self.session.as_ref();
        session.and_then(|session| Some((session, session.lun_as_seen(number)?))).is_some_and(
            |(session, view)| {
                let unit = &view.lun.unit;
                view.seen.is_stale(unit) && !unit.admits(&session.scsi, group)
            },
        )
    }
}
