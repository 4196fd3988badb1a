//! An I/O queue's commands: from the parsed command to device requests and back to the host.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use raceline_accel::OpCode;
use raceline_bdev::{BdevError, Done, Op, OpKind};
use raceline_proto::controller::{ErrorEntry, IoCommand, parse_ranges};
use raceline_proto::nvme::{Cqe, Direction, QueueId, Status, Transfer};
use raceline_reactor::{Context, IoBuf, Payload};

use crate::changes::message::{Home, Message};
use crate::changes::snapshot::{DeviceId, Seen};
use crate::path::connection::{Connection, Role, Stage};
use crate::path::core::Core;
use crate::path::digest::DIGEST_LEN;
use crate::path::slots::{Phase, Slot};

/// What an I/O queue knows of its controller.
pub(crate) struct IoQueue {
    pub(crate) qid: QueueId,
    pub(crate) home: Home,
    pub(crate) seen: Seen,
}

/// The status that tells a host what became of a device request.
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

impl Slot {
    /// Notes what the command asks for, and where.
    pub(crate) fn describe(
        &mut self,
        command: IoCommand,
        transfer: Transfer,
        device: DeviceId,
        block_size: u64,
    ) {
        self.transfer = transfer;
        self.device = Some(device);
        self.bytes = byte_range(&command, block_size);
        self.block_size = block_size;
        self.command = Some(command);
    }

    /// Whether the command changes its range of the device.
    fn changes_data(&self) -> bool {
        matches!(
            self.command,
            Some(
                IoCommand::Write { .. }
                    | IoCommand::WriteZeroes { .. }
                    | IoCommand::DatasetManagement { deallocate: true, .. }
            )
        )
    }

    /// Whether the command is at its device now, changing something within `bytes`.
    pub(crate) fn is_changing(&self, bytes: &Range<u64>) -> bool {
        self.phase == Phase::Device
            && self.changes_data()
            && self.bytes.start < bytes.end
            && bytes.start < self.bytes.end
    }
}

impl Connection {
    /// An I/O command that is not answered at once has come, and `rest` behind its header.
    pub(crate) fn handle_io_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        parsed: Result<(IoCommand, Transfer), Status>,
        rest: &[u8],
    ) {
        let Role::Io(io) = &self.role else { return };
        let subsystem = &io.seen.devices.subsystem;
        let (command, transfer) = match parsed {
            Ok(parsed) => parsed,
            Err(status) => return self.fused_refuse(core, index, status),
        };
        let namespace = command.namespace();
        let block_size = u64::from(subsystem.namespaces[namespace].block_size);
        let device = io.seen.devices.devices[namespace];
        let is_read = matches!(command, IoCommand::Read { .. });
        self.slots.get(index).describe(command, transfer, device, block_size);
        if !self.pair_fused(core, index) {
            return;
        }
        if is_read && self.read_now(cx, core, index) {
            return;
        }
        if self.is_staged(index, rest) && self.writes_now(cx, core, index, rest.len()) {
            let slot = self.slots.get(index);
            slot.phase = Phase::Data;
            slot.direct = true;
            return;
        }
        let buffer = self.needs_buffer(cx, core, index);
        self.begin_transfer(cx, core, index, buffer);
    }

    /// Answers a read if its device has the data at hand; gives whether it did.
    fn read_now(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16) -> bool {
        let slot = self.slots.get(index);
        let copied_before = self.queue.data_digest() && !cx.io.copies_on_the_way();
        if copied_before || !slot.status.is_success() {
            return false;
        }
        let (offset, len) = (slot.bytes.start, slot.transfer.len as usize);
        let payload = slot.device.and_then(|device| core.read_now(device, offset, len));
        payload.map(|payload| self.answer_read(cx, core, index, payload)).is_some()
    }

    /// Whether all data of the command are in the staging buffer, right behind its header.
    fn is_staged(&mut self, index: u16, rest: &[u8]) -> bool {
        let slot = self.slots.get(index);
        slot.in_capsule
            && slot.transfer.len as usize <= rest.len()
            && self.queue.payload_wanted().is_some()
    }

    /// Whether the command is a write that can go to the device at once: all its data, with their
    /// digest, are among the `available` bytes, and the digest can be checked here and now. Half
    /// a write, or one that a digest may still forbid, must not.
    pub(crate) fn writes_now(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        available: usize,
    ) -> bool {
        let digest = self.queue.data_digest();
        let slot = self.slots.get(index);
        let len = slot.transfer.len as usize;
        matches!(slot.command, Some(IoCommand::Write { .. }))
            && !slot.fused
            && slot.status.is_success()
            && available >= len + if digest { DIGEST_LEN } else { 0 }
            && slot.device.is_some_and(|device| core.writes_now(device))
            && (!digest || len.is_multiple_of(4) && cx.io.accelerates_now(OpCode::Crc32c))
    }

    /// Writes all data of a command for which [`Self::writes_now`] is true.
    pub(crate) fn write_now(&mut self, core: &mut Core, index: u16, now: Instant, data: &[u8]) {
        let slot = self.slots.get(index);
        if let Some(device) = slot.device {
            if core.meters {
                slot.measured = core.measure(device, now, OpKind::Write, data.len() as u64);
            }
            slot.written = Some(core.write_now(device, slot.bytes.start, data));
        }
    }

    fn needs_buffer(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16) -> bool {
        let copies = self.queue.data_digest() && !cx.io.copies_on_the_way();
        let slot = self.slots.get(index);
        match slot.transfer.direction {
            Direction::None => false,
            Direction::HostToController => true,
            Direction::ControllerToHost => {
                let device = slot.device.and_then(|id| core.device(id));
                // Memory that others may write is copied for its digest, by an engine beforehand.
                !device.is_some_and(|device| {
                    device.info.reads_in_place && !(copies && device.info.copies_data)
                })
            }
        }
    }

    /// The command has its data or its buffer: on to the device.
    pub(crate) fn execute_io(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16) {
        let command = self.command(index);
        let slot = self.slots.get(index);
        if !slot.status.is_success() {
            // The other half of a fused operation has been refused meanwhile.
            let verdict = slot.status;
            return self.refuse(core, index, verdict);
        }
        if slot.fused {
            return self.fused_half_ready(core, index);
        }
        let Some(device) = slot.device.filter(|device| core.device(*device).is_some()) else {
            return self.refuse(core, index, Status::INVALID_NAMESPACE.dnr());
        };
        if slot.changes_data() && core.hold(device, &slot.bytes, command) {
            slot.phase = Phase::Fence;
            return;
        }
        self.submit_command(cx, core, index);
    }

    fn submit_command(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16) {
        let digest = self.queue.data_digest();
        let slot = self.slots.get(index);
        let (offset, len) = (slot.bytes.start, slot.bytes.end - slot.bytes.start);
        let Some(command) = slot.command else { return };
        let op = match command {
            IoCommand::Read { .. } => {
                let in_place = |id| core.device(id).is_some_and(|it| it.info.reads_in_place);
                // Then the copy is made together with the digest.
                let keeps = digest && slot.device.is_some_and(in_place);
                if digest && slot.buf.is_some() {
                    self.moved = self.moved.saturating_add(slot.transfer.len as usize);
                }
                let buf = if keeps { None } else { slot.buf.take() };
                Op::Read { offset, len: slot.transfer.len as usize, buf }
            }
            IoCommand::Write { fua, .. } => match slot.buf.take() {
                Some(buf) if slot.on_device > 0 => {
                    // The first blocks are there; writes were held back when the others came.
                    let rest = &buf[slot.on_device..slot.transfer.len as usize];
                    let mut data = IoBuf::heap(rest.len());
                    data.copy_from_slice(rest);
                    let offset = offset + slot.on_device as u64;
                    Op::Write { offset, data: data.share(), fua }
                }
                Some(buf) => Op::Write { offset, data: buf.share(), fua },
                None => unreachable!("a write executes once its data has come"),
            },
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
            IoCommand::DatasetManagement { ranges, deallocate, .. } => {
                return self.manage_ranges(cx, core, index, ranges, deallocate);
            }
        };
        self.submit(cx, core, index, op);
    }

    pub(crate) fn submit(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16, op: Op) {
        let tag = self.command(index).tag();
        let slot = self.slots.get(index);
        slot.phase = Phase::Device;
        slot.pending += 1;
        if let Some(device) = slot.device {
            let bytes = bytes_through_buffer(&op);
            if bytes > 0 && core.device(device).is_some_and(|device| device.info.copies_data) {
                self.counters.copied_bytes.add(bytes as u64);
                self.moved = self.moved.saturating_add(bytes);
            }
            if core.meters {
                // A command of several requests counts as one, with the bytes of all.
                let before = slot.measured.map_or(0, |measured| measured.bytes);
                slot.measured = core.measure(device, cx.now, OpKind::of(&op), before + op.bytes());
            }
            core.submit(cx, device, tag, op);
        }
    }

    /// Dataset Management: one device request per range. Attributes other than Deallocate are
    /// hints that we do not use (NVM Command Set 1.0, 3.2.3).
    fn manage_ranges(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        ranges: u16,
        deallocate: bool,
    ) {
        let Role::Io(io) = &self.role else { return };
        let slot = self.slots.get(index);
        let position = io.seen.devices.devices.iter().position(|id| Some(*id) == slot.device);
        // The view may have changed while the data was under way.
        let subsystem = Arc::clone(&io.seen.devices.subsystem);
        let Some(namespace) = position.and_then(|i| subsystem.namespaces.get(i)) else {
            return self.refuse(core, index, Status::INVALID_NAMESPACE.dnr());
        };
        let Some(data) = slot.buf.take() else { return };
        let ranges = parse_ranges(&data, ranges, namespace);
        if let Some(Err(status)) = ranges.clone().find(Result::is_err) {
            return self.refuse(core, index, status);
        }
        let block_size = slot.block_size;
        // One more than there are requests, so that the last of them does not end the command
        // before all are submitted.
        slot.pending = 1;
        slot.phase = Phase::Device;
        if deallocate {
            for (slba, block_count) in ranges.flatten() {
                let (offset, len) = (slba * block_size, u64::from(block_count) * block_size);
                self.submit(cx, core, index, Op::Deallocate { offset, len });
            }
        }
        self.part_done(cx, core, index, Ok(()), None);
    }

    /// A device request of the command has finished.
    pub(crate) fn handle_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        done: Done,
    ) {
        self.part_done(cx, core, index, done.result, done.payload);
    }

    pub(crate) fn part_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        result: Result<(), BdevError>,
        payload: Option<Payload>,
    ) {
        let slot = self.slots.get(index);
        slot.pending -= 1;
        if let Err(error) = result
            && slot.status.is_success()
        {
            slot.status = status_of(error);
            if matches!(error, BdevError::ReadFault | BdevError::WriteFault) {
                self.counters.media_errors.add(1);
            }
        }
        if slot.pending > 0 {
            return;
        }
        if core.meters
            && let (Some(measured), Some(device)) = (slot.measured.take(), slot.device)
        {
            core.count(device, measured, cx.now, result);
        }
        // What went there straight from the staging buffer was never in flight.
        let was_in_flight = slot.phase == Phase::Device && slot.changes_data();
        if let (true, Some(device)) = (was_in_flight, slot.device) {
            let bytes = slot.bytes.clone();
            core.write_drained(device, &bytes);
        }
        if self.slots.get(index).fused {
            self.fused_done(cx, core, index, payload);
        } else {
            self.complete_io(cx, core, index, payload);
        }
    }

    /// A read has succeeded: its data are on their way to the host.
    #[inline(always)]
    fn answer_read(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16, payload: Payload) {
        let slot = self.slots.get(index);
        let (cid, len) = (slot.cid, u64::from(slot.transfer.len));
        self.counters.reads.add(1);
        self.counters.read_bytes.add(len);
        if self.queue.data_digest() {
            return self.send_with_digest(cx, core, index, payload);
        }
        self.slots.release(index);
        let cqe = Cqe { cid, status: Status::SUCCESS, ..Cqe::default() };
        self.push_payload(core, cqe, payload, None);
    }

    /// All of the command is done: tells the host.
    fn complete_io(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        payload: Option<Payload>,
    ) {
        let slot = self.slots.get(index);
        if matches!(slot.command, Some(IoCommand::Compare { .. })) && slot.status.is_success() {
            slot.status = compare(slot, payload.as_ref());
        }
        let (cid, status, len) = (slot.cid, slot.status, u64::from(slot.transfer.len));
        let cqe = Cqe { cid, status, ..Cqe::default() };
        if self.stage >= Stage::Terminating || !status.is_success() {
            return self.finish(core, index, cqe);
        }
        match (slot.command, payload) {
            (Some(IoCommand::Read { .. }), Some(payload)) => {
                self.answer_read(cx, core, index, payload);
            }
            (Some(IoCommand::Write { .. }), _) => {
                self.counters.writes.add(1);
                self.counters.written_bytes.add(len);
                self.finish(core, index, cqe);
            }
            _ => self.finish(core, index, cqe),
        }
    }

    /// Puts a failed I/O command into the controller's error log; the controller records failed
    /// admin commands itself.
    pub(crate) fn log_failure(&mut self, core: &Core, index: u16, status: Status) {
        let Role::Io(io) = &self.role else { return };
        let slot = self.slots.get(index);
        let entry = ErrorEntry {
            sqid: io.qid,
            cid: slot.cid,
            status,
            nsid: slot.sqe.namespace_id(),
            lba: slot.bytes.start.checked_div(slot.block_size).unwrap_or(0),
        };
        let home = io.home.place;
        core.send(home.core, Message::CommandFailed { home: home.key, entry });
    }
}

/// Bytes that go from a buffer to the device, or the other way.
fn bytes_through_buffer(op: &Op) -> usize {
    match op {
        Op::Read { len, buf: Some(_), .. } => *len,
        Op::Write { data, .. } => data.len(),
        _ => 0,
    }
}

/// Whether the data on the device is what the host expects.
pub(crate) fn compare(slot: &Slot, payload: Option<&Payload>) -> Status {
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
        | IoCommand::WriteZeroes { slba, block_count, .. } => blocks(slba, block_count),
        // Ranges are known when the data has come; a fence anywhere holds the command.
        IoCommand::DatasetManagement { .. } => 0..u64::MAX,
        IoCommand::Flush { .. } => 0..0,
    }
}
