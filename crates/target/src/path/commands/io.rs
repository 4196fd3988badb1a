//! An I/O queue's commands: from the parsed command to device requests and back to the host.

use std::ops::Range;
use std::time::Instant;

use raceline_accel::OpCode;
use raceline_bdev::{BdevError, Done, Op, OpKind};
use raceline_proto::controller::{CopyCommand, IoCommand, parse_io, parse_ranges};
use raceline_proto::nvme::authentication::is_authentication;
use raceline_proto::nvme::{Cqe, Sqe, Status, Transfer};
use raceline_proto::reservation::is_reservation_command;
use raceline_proto::tcp::Violation;
use raceline_reactor::stats::Counter;
use raceline_reactor::{Context, IoBuf, Payload};

use super::Commands;
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::path::choice::{HostData, ReadFacts, ReadPath, WritePath, read_path};
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Job, Judged, NoSlot, Phase, Slot, Way};
use crate::records::counters::QueueCounters;
use crate::records::names::SlotKey;
use raceline_proto::tcp::DIGEST_LEN;

/// The status that tells a host the result of a device request.
fn status_of(error: BdevError) -> Status {
    match error {
        BdevError::ReadFault => Status::UNRECOVERED_READ_ERROR,
        BdevError::WriteFault => Status::WRITE_FAULT.dnr(),
        BdevError::NoSpace => Status::CAPACITY_EXCEEDED.dnr(),
        BdevError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        BdevError::Gone => Status::INTERNAL.dnr(),
        BdevError::Unknown => Status::INTERNAL_PATH_ERROR,
        BdevError::Transient => Status::COMMAND_INTERRUPTED,
        BdevError::NotSupported => Status::INVALID_FIELD.dnr(),
        BdevError::Internal => Status::INTERNAL,
        BdevError::Status { sct, sc } => Status::new(sct, sc),
    }
}

impl Commands {
    // ---------------------------------------------------------------------- to the device

    /// A command of an I/O queue has come, with `rest` behind its header. Gives how many bytes of `rest`
    /// belong to it and have been taken.
    ///
    /// # Errors
    /// When the host has more commands outstanding than it may.
    #[inline(always)]
    pub(crate) fn take_io(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        sqe: &Sqe,
        in_capsule: u32,
        rest: &[u8],
    ) -> Result<usize, Violation> {
        let Some(io) = &self.io else { return Ok(0) };
        let subsystem = &io.visible.devices.subsystem;
        let parsed = parse_io(sqe, &subsystem.namespaces, &subsystem.limits);
        if let Some(taken) = self.answer_now(cx, core, sqe, &parsed, (in_capsule, rest)) {
            return Ok(taken);
        }
        match self.take(sqe, in_capsule) {
            Ok(command) => {
                self.slots.get(command.key()).came = Some(cx.now);
                self.begin_io(cx, core, command, parsed, rest);
            }
            Err(NoSlot::Duplicate) => self.refuse_duplicate(core, sqe),
            Err(NoSlot::Overrun) => return Err(Violation::QueueOverrun),
        }
        Ok(0)
    }

    /// A command that is not answered at once.
    pub(super) fn begin_io(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        parsed: Result<(IoCommand, Transfer), Status>,
        rest: &[u8],
    ) {
        let Some(io) = &self.io else { return };
        let (what, transfer) = match parsed {
            Ok(parsed) => parsed,
            Err(_) if is_reservation_command(&self.slots.get(command.key()).sqe) => {
                return self.begin_reservation(cx, core, command);
            }
            Err(_)
                if self.auth.is_some() && is_authentication(&self.slots.get(command.key()).sqe) =>
            {
                if let Some(command) = self.begin_authentication(cx, core, command) {
                    self.authenticate_again(cx, core, command);
                }
                return;
            }
            Err(status) if status.same_code(Status::INVALID_NAMESPACE) => {
                return self.begin_apart(cx, core, command, rest);
            }
            Err(status) => return self.fused_refuse(core, command, status),
        };
        let devices = &io.visible.devices;
        let namespace = what.namespace();
        let block_size = u64::from(devices.subsystem.namespaces[namespace].block_size);
        let device = devices.devices[namespace];
        let Some(command) = self.describe(core, command, (what, transfer), device, block_size)
        else {
            return;
        };
        self.begin_with_data(cx, core, command, device, rest);
    }

    /// Notes what a command is about, and adds it to a fused operation if it is part of one. `None`: it was refused.
    #[inline]
    pub(super) fn describe(
        &mut self,
        core: &mut Core,
        command: CommandSlot,
        (what, transfer): (IoCommand, Transfer),
        device: DeviceId,
        block_size: u64,
    ) -> Option<CommandSlot> {
        let slot = self.slots.get(command.key());
        slot.transfer = transfer;
        slot.job = Some(job(what, device, block_size));
        self.pair_fused(core, command)
    }

    /// A read: answers it if its device has the data at hand, and gets it a buffer or a request otherwise.
    #[inline]
    pub(super) fn begin_read(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        device: DeviceId,
    ) -> Option<CommandSlot> {
        let digest_first = self.out.queue.data_digest() && !cx.io.copies_on_the_way();
        let slot = self.slots.get(command.key());
        let (offset, len) = (slot.job.as_ref()?.bytes.start, slot.transfer.len as usize);
        let at_hand = if digest_first { None } else { core.read_now(device, offset, len) };
        let (in_place, copies_data) = match core.device(device) {
            Some(device) => (device.info.reads_in_place, device.info.copies_data),
            None => (false, false),
        };
        let facts = ReadFacts { at_hand: at_hand.is_some(), in_place, copies_data, digest_first };
        let path = read_path(facts);
        slot.way = Way::Read(path);
        if let Some(payload) = at_hand {
            self.answer_read(cx, core, command, path, payload);
            return None;
        }
        let needs_buffer = matches!(path, ReadPath::Copied | ReadPath::Buffered);
        self.begin_transfer(cx, core, command, needs_buffer)
    }

    /// A write, or another command with data from the host.
    #[inline]
    pub(super) fn begin_write(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        rest: &[u8],
    ) -> Option<CommandSlot> {
        let key = command.key();
        if self.is_staged(key, rest) && self.may_write_now(cx, core, key, rest.len()) {
            self.set_write_path(key, &HostData::Staged);
            self.slots.get(key).phase = Phase::Data;
            return None;
        }
        if self.slots.get(key).in_capsule {
            self.set_write_path(key, &HostData::Capsule);
        }
        self.begin_transfer(cx, core, command, true)
    }

    /// Whether all data of the command are in the staging buffer, right behind its header.
    #[inline]
    fn is_staged(&mut self, key: SlotKey, rest: &[u8]) -> bool {
        let slot = self.slots.get(key);
        slot.in_capsule
            && slot.transfer.len as usize <= rest.len()
            && self.out.queue.payload_wanted().is_some()
    }

    /// Whether the command is a write that can go to the device at once: all its data, with their
    /// digest, are among the `available` bytes, and the digest can be checked immediately. A write whose
    /// data are incomplete, or whose digest may still be wrong, must not go.
    #[inline]
    pub(super) fn may_write_now(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        available: usize,
    ) -> bool {
        let digest = self.out.queue.data_digest();
        let slot = self.slots.get(key);
        let len = slot.transfer.len as usize;
        slot.is_write()
            && slot.half.is_none()
            && slot.status.is_success()
            && available >= len + if digest { DIGEST_LEN } else { 0 }
            && slot.device().is_some_and(|device| core.writes_now(device))
            && (!digest || len.is_multiple_of(4) && cx.io.accelerates_now(OpCode::Crc32c))
    }

    /// Writes all data of a command for which [`Self::may_write_now`] is true.
    #[inline]
    pub(super) fn write_now(&mut self, core: &mut Core, key: SlotKey, now: Instant, data: &[u8]) {
        let slot = self.slots.get(key);
        let Some(job) = &slot.job else { return };
        if core.meters {
            slot.measured = core.measure(job.device, now, OpKind::Write, data.len() as u64);
        }
        slot.judged = Judged::Written(core.write_now(job.device, job.bytes.start, data));
    }

    /// The command has its data or its buffer: on to the device.
    pub(crate) fn execute_io(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) {
        let local = self.local(command.key());
        let slot = self.slots.get(command.key());
        if !slot.status.is_success() {
            // The other half of a fused operation was refused in the meantime.
            let verdict = slot.status;
            return self.refuse(core, command, verdict);
        }
        if slot.half.is_some() {
            return self.fused_half_ready(core, &command);
        }
        let job = slot.job.as_ref().filter(|job| core.device(job.device).is_some());
        let Some(job) = job else {
            if is_authentication(&slot.sqe) {
                return self.authenticate_again(cx, core, command);
            }
            if is_reservation_command(&slot.sqe) {
                return self.execute_reservation(core, command);
            }
            return self.refuse(core, command, Status::INVALID_NAMESPACE.dnr());
        };
        if slot.changes_data() && core.hold(job.device, &job.bytes, local) {
            slot.phase = Phase::Fence;
            return;
        }
        self.submit_command(cx, core, command);
    }

    /// Executes an authentication command of a queue in use. The connection learns of it with the next turn.
    #[cold]
    fn authenticate_again(&mut self, cx: &mut Context<'_>, core: &mut Core, command: CommandSlot) {
        if let Some(verdict) = self.execute_authentication(cx, core, command) {
            let key = self.key();
            core.send(core.index, Message::Judged { key, verdict });
        }
    }

    #[inline]
    fn submit_command(&mut self, cx: &mut Context<'_>, core: &mut Core, command: CommandSlot) {
        let digest = self.out.queue.data_digest();
        let key = command.key();
        let slot = self.slots.get(key);
        let Some(job) = &slot.job else { return };
        let (offset, len) = (job.bytes.start, job.bytes.end - job.bytes.start);
        let op = match job.command {
            IoCommand::Read { .. } => {
                let len = slot.transfer.len as usize;
                let path = if let Way::Read(path) = slot.way { path } else { ReadPath::Buffered };
                if digest && slot.buf.is_some() {
                    self.moved = self.moved.saturating_add(len);
                }
                // A copy is made together with the digest.
                let buf = if path == ReadPath::Copied { None } else { slot.buf.take() };
                Op::Read { offset, len, buf }
            }
            IoCommand::Write { fua, .. } => {
                let buf = slot.buf.take().expect("a write executes once its data has come");
                let on_device = match slot.way {
                    Way::Write(WritePath::Blocks { on_device }) => on_device,
                    _ => 0,
                };
                write_rest(buf, on_device, slot.transfer.len as usize, offset, fua)
            }
            IoCommand::Compare { .. } => {
                slot.expected = slot.buf.take();
                let len = slot.transfer.len as usize;
                let buf = self.take_buffer_or_heap(cx, len);
                Op::Read { offset, len, buf: Some(buf) }
            }
            IoCommand::Flush { .. } => Op::Flush,
            IoCommand::WriteZeroes { deallocate, fua, .. } => {
                Op::WriteZeroes { offset, len, deallocate, fua }
            }
            IoCommand::Verify { .. } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let buf = self.take_buffer_or_heap(cx, len);
                Op::Read { offset, len, buf: Some(buf) }
            }
            IoCommand::Copy { sdlba, ranges, across, fua, .. } => {
                let copy = CopyCommand { sdlba, ranges, across, fua };
                return self.begin_copy(cx, core, command, copy);
            }
            IoCommand::WriteUncorrectable { .. } => Op::WriteUncorrectable { offset, len },
            IoCommand::DatasetManagement { ranges, deallocate, .. } => {
                return self.manage_ranges(cx, core, command, ranges, deallocate);
            }
        };
        self.submit(cx, core, key, op);
    }

    /// Starts a device request of a command.
    pub(super) fn submit(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey, op: Op) {
        let tag = self.local(key).tag();
        let slot = self.slots.get(key);
        slot.phase = Phase::Device;
        slot.pending += 1;
        let Some(device) = slot.device() else { return };
        let bytes = bytes_through_buffer(&op);
        if bytes > 0 && core.device(device).is_some_and(|device| device.info.copies_data) {
            self.out.counters.copied_bytes.add(bytes as u64);
            self.moved = self.moved.saturating_add(bytes);
        }
        if core.meters {
            // A command of several requests counts as one, with the bytes of all.
            let before = slot.measured.map_or(0, |measured| measured.bytes);
            slot.measured = core.measure(device, cx.now, OpKind::of(&op), before + op.bytes());
        }
        core.submit(cx, device, tag, op);
    }

    /// Dataset Management: one device request per range. Attributes other than Deallocate are
    /// hints that we do not use (NVM Command Set 1.0, 3.2.3).
    fn manage_ranges(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        ranges: u16,
        deallocate: bool,
    ) {
        let Some(io) = &self.io else { return };
        let slot = self.slots.get(command.key());
        let (device, block_size) = match &slot.job {
            Some(job) => (job.device, job.block_size),
            None => return,
        };
        // The snapshot may have changed while the data was under way.
        let Some(namespace) = io.visible.on_device(device).cloned() else {
            let status = io.visible.refusal(slot.sqe.namespace_id());
            return self.refuse(core, command, status);
        };
        let Some(data) = slot.buf.take() else { return };
        let ranges = parse_ranges(&data, ranges, &namespace);
        if let Some(Err(status)) = ranges.clone().find(Result::is_err) {
            return self.refuse(core, command, status);
        }
        // One more than there are requests, so that the last of them does not end the command
        // before all are submitted.
        slot.pending = 1;
        slot.phase = Phase::Device;
        if deallocate {
            for (slba, block_count) in ranges.flatten() {
                let (offset, len) = (slba * block_size, u64::from(block_count) * block_size);
                self.submit(cx, core, command.key(), Op::Deallocate { offset, len });
            }
        }
        self.part_done(cx, core, command, Ok(()), None);
    }

    // -------------------------------------------------------------------- from the device

    /// A device request of a command has finished. Gives whether the command was waiting for that.
    #[inline]
    #[must_use]
    pub(crate) fn take_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        done: Done,
    ) -> bool {
        let Some(command) = self.slots.resume(key) else { return false };
        if self.slots.get(key).pending == 0 {
            return false;
        }
        self.part_done(cx, core, command, done.result, done.payload);
        true
    }

    /// One of the device requests that the command waits for is done.
    pub(super) fn part_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        result: Result<(), BdevError>,
        payload: Option<Payload>,
    ) {
        let slot = self.slots.get(command.key());
        slot.pending -= 1;
        if let Err(error) = result
            && slot.status.is_success()
        {
            if slot.copying().is_some_and(|copying| copying.goes_on_by_hand(error)) {
                return self.copy_piece(cx, core, command);
            }
            slot.status = status_of(error);
            if matches!(error, BdevError::ReadFault | BdevError::WriteFault) {
                self.out.counters.media_errors.add(1);
            }
        }
        if slot.pending > 0 {
            if slot.extra.is_some() {
                self.copied_part(cx, core, command, payload);
            }
            return;
        }
        let Some(job) = &slot.job else {
            return self.lba_status_found(core, command, payload.as_ref());
        };
        if core.meters
            && let Some(measured) = slot.measured.take()
        {
            core.count(job.device, measured, cx.now, result);
        }
        // Data that went there straight from the staging buffer were never in flight.
        if slot.phase == Phase::Device && slot.changes_data() {
            core.write_drained(job.device, &job.bytes);
        }
        if slot.half.is_some() {
            self.fused_done(cx, core, command, payload);
        } else {
            self.complete_io(cx, core, command, payload);
        }
    }

    /// A read has succeeded: its data are on their way to the host.
    #[inline(always)]
    fn answer_read(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        path: ReadPath,
        payload: Payload,
    ) {
        let slot = self.slots.get(command.key());
        let (cid, len, came) = (slot.cid(), u64::from(slot.transfer.len), slot.came);
        self.count_read(path, len);
        self.out.counters.count_time(OpKind::Read, came, cx.now);
        if self.out.queue.data_digest() {
            return self.send_with_digest(cx, core, command, payload);
        }
        self.slots.release(command);
        let cqe = Cqe { cid, status: Status::SUCCESS, ..Cqe::default() };
        self.out.push_payload(core, cqe, payload, None);
    }

    /// All requests of the command are done: tells the host.
    fn complete_io(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        payload: Option<Payload>,
    ) {
        let slot = self.slots.get(command.key());
        if slot.expected.is_some() && slot.status.is_success() {
            slot.status = compare(slot, payload.as_ref());
        }
        let cqe = Cqe { cid: slot.cid(), status: slot.status, ..Cqe::default() };
        if self.out.is_muted() || !cqe.status.is_success() {
            // The first range that was not copied (NVM Command Set 1.0, 3.2.2).
            let dw0 = slot.copying().map_or(0, |copying| copying.range.into());
            return self.finish(core, command, Cqe { dw0, ..cqe });
        }
        match (slot.way, payload) {
            (Way::Read(path), Some(payload)) => {
                self.answer_read(cx, core, command, path, payload);
            }
            (Way::Write(path), _) if slot.is_write() => {
                let (len, came) = (u64::from(slot.transfer.len), slot.came);
                self.count_write(path, len);
                self.out.counters.count_time(OpKind::Write, came, cx.now);
                self.finish(core, command, cqe);
            }
            _ => self.finish(core, command, cqe),
        }
    }

    /// A read has succeeded.
    #[inline(always)]
    pub(super) fn count_read(&self, path: ReadPath, len: u64) {
        read_counter(&self.out.counters, path).add(1);
        self.out.counters.read_bytes.add(len);
    }

    /// A write has succeeded.
    #[inline(always)]
    pub(super) fn count_write(&self, path: WritePath, len: u64) {
        write_counter(&self.out.counters, path).add(1);
        self.out.counters.written_bytes.add(len);
    }
}

/// The device, bytes and block size of a command.
pub(super) fn job(command: IoCommand, device: DeviceId, block_size: u64) -> Job {
    Job { bytes: byte_range(&command, block_size), command, device, block_size }
}

/// Reads that took a path.
#[inline(always)]
fn read_counter(counters: &QueueCounters, path: ReadPath) -> &Counter {
    match path {
        ReadPath::AtOnce => &counters.reads_at_once,
        ReadPath::AtHand => &counters.reads_at_hand,
        ReadPath::InPlace => &counters.reads_in_place,
        ReadPath::Copied => &counters.reads_copied,
        ReadPath::Buffered => &counters.reads_buffered,
    }
}

/// Writes that took a path.
#[inline(always)]
fn write_counter(counters: &QueueCounters, path: WritePath) -> &Counter {
    match path {
        WritePath::AtOnce => &counters.writes_at_once,
        WritePath::Staged => &counters.writes_staged,
        WritePath::Blocks { .. } => &counters.writes_in_blocks,
        WritePath::Buffered { lands_direct: false } => &counters.writes_buffered,
        WritePath::Buffered { lands_direct: true } => &counters.writes_direct,
    }
}

/// The request for a write whose first bytes may be on the device already: writes were held back when the
/// other bytes came.
fn write_rest(buf: IoBuf, on_device: usize, len: usize, offset: u64, fua: bool) -> Op {
    if on_device == 0 {
        return Op::Write { offset, data: buf.share(), fua };
    }
    let rest = &buf[on_device..len];
    let mut data = IoBuf::heap(rest.len());
    data.copy_from_slice(rest);
    Op::Write { offset: offset + on_device as u64, data: data.share(), fua }
}

/// Bytes that go from a buffer to the device, or from the device to a buffer.
fn bytes_through_buffer(op: &Op) -> usize {
    match op {
        Op::Read { len, buf: Some(_), .. } => *len,
        Op::Write { data, .. } => data.len(),
        _ => 0,
    }
}

/// Whether the data on the device is what the host expects.
pub(super) fn compare(slot: &Slot, payload: Option<&Payload>) -> Status {
    let equal = match (&slot.expected, payload) {
        (Some(expected), Some(Payload::Buf(buf, range))) => expected[..] == buf[range.clone()],
        _ => false,
    };
    if equal { Status::SUCCESS } else { Status::COMPARE_FAILURE.dnr() }
}

fn byte_range(command: &IoCommand, block_size: u64) -> Range<u64> {
    // parse_io has checked the range against the namespace, whose size in bytes fits u64.
    let blocks = |slba: u64, count: u32| slba * block_size..(slba + u64::from(count)) * block_size;
    match *command {
        IoCommand::Read { slba, block_count, .. }
        | IoCommand::Write { slba, block_count, .. }
        | IoCommand::Compare { slba, block_count, .. }
        | IoCommand::Verify { slba, block_count, .. }
        | IoCommand::WriteUncorrectable { slba, block_count, .. }
        | IoCommand::WriteZeroes { slba, block_count, .. } => blocks(slba, block_count),
        // Ranges are known when the data has come; a fence anywhere holds the command.
        IoCommand::DatasetManagement { .. } | IoCommand::Copy { .. } => 0..u64::MAX,
        IoCommand::Flush { .. } => 0..0,
    }
}
