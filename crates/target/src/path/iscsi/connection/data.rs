//! Data from initiators: where they land, and how a command goes on when all of them have come.

use std::ops::Range;

use raceline_crc32c::Crc32c;
use raceline_iscsi::DataDigest;
use raceline_iscsi::target::{DataFault, TaskId};
use raceline_reactor::{Context, IoBuf};
use raceline_scsi::{Refusal, Sense, SenseKey};

use super::Connection;
use crate::path::core::Core;
use crate::path::iscsi::slots::Phase;
use crate::records::names::SlotKey;

impl Connection {
    /// A command with data from the initiator: gets it an I/O buffer, and the data.
    ///
    /// A new command does not overtake those that wait for such a buffer. Data that come
    /// without being asked for stop the socket while there is no buffer, unless commands that hold buffers wait for data
    /// on the same socket: then they land in memory outside the pool. The window limits how many these are.
    pub(super) fn begin_receiving(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let are_owed = self.are_owed_data(key);
        let (local, share) = (self.local(key), self.share);
        let Some(slot) = self.slots.get(key) else { return };
        let (len, comes_now) = (slot.expected, slot.unsolicited > 0);
        let sizes = core.buffer_lines.open_to(cx.pool, len);
        let pooled = if len > cx.pool.largest() { None } else { cx.pool.take_of(len, sizes) };
        match pooled {
            Some(buf) => self.give_buffer(cx, core, key, buf),
            None if len > cx.pool.largest() || comes_now && are_owed => {
                self.give_buffer(cx, core, key, IoBuf::heap(len));
            }
            None => {
                slot.phase = Phase::Buffer;
                if comes_now {
                    self.paused = Some(key);
                }
                core.buffer_lines.join(cx.pool, len, (local, share));
            }
        }
    }

    /// A command that reads: gets it an I/O buffer if its device does not give its own memory.
    pub(super) fn begin_reading(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let (local, share) = (self.local(key), self.share);
        let len = self.buffer_needed(core, key);
        let Some(slot) = self.slots.get(key) else { return };
        if len == 0 {
            return self.execute(cx, core, key);
        }
        let sizes = core.buffer_lines.open_to(cx.pool, len);
        let pooled = if len > cx.pool.largest() { None } else { cx.pool.take_of(len, sizes) };
        match pooled {
            Some(buf) => self.give_buffer(cx, core, key, buf),
            None if len > cx.pool.largest() => {
                self.give_buffer(cx, core, key, IoBuf::heap(len));
            }
            None => {
                slot.phase = Phase::Buffer;
                core.buffer_lines.join(cx.pool, len, (local, share));
            }
        }
    }

    /// The command heads its line, and a buffer of one of these sizes is there for it.
    pub(crate) fn serve(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        sizes: Range<usize>,
    ) {
        let expected = self.buffer_needed(core, key);
        let Some(slot) = self.slots.get(key).filter(|slot| slot.phase == Phase::Buffer) else {
            return;
        };
        let len = slot.expected.max(expected);
        let buf = cx.pool.take_of(len, sizes);
        let buf = buf.expect("the line is served because there is a buffer");
        let was_paused = self.paused.is_some();
        self.paused.take_if(|paused| *paused == key);
        self.give_buffer(cx, core, key, buf);
        if was_paused && self.paused.is_none() {
            self.parse(cx, core);
        }
    }

    /// The command's I/O buffer is here.
    pub(super) fn give_buffer(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        buf: IoBuf,
    ) {
        let Some(slot) = self.slots.get(key) else { return };
        slot.buf = Some(buf);
        if slot.expected == 0 {
            return self.execute(cx, core, key);
        }
        slot.phase = Phase::Data;
        if slot.unsolicited == 0 {
            self.ask_for_data(cx, core, key);
        }
    }

    /// Asks for the next of the data of a command.
    fn ask_for_data(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let task = self.task(key);
        let Some(slot) = self.slots.get(key) else { return };
        let left = slot.expected - slot.received;
        let offset = u32::try_from(slot.received).unwrap_or(u32::MAX);
        let burst = self.out.proto.parameters().max_burst_len;
        let len = u32::try_from(left).unwrap_or(u32::MAX).min(burst);
        self.out.push(core, |proto, out| proto.r2t(task, offset, len, out));
        self.unpause(cx, core);
    }

    /// Whether other commands, which hold buffers, wait for data on this socket.
    fn are_owed_data(&self, key: SlotKey) -> bool {
        self.slots.active().any(|(other, slot)| other != key && slot.phase == Phase::Data)
    }

    /// The data that the initiator was just asked for are behind those of the command that waits for a buffer. That
    /// command gets memory outside the pool, since the holders of the pool's buffers may wait for those data.
    fn unpause(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some(key) = self.paused.take() else { return };
        let waiting = self.local(key);
        core.buffer_lines.retain(|waiter| waiter != waiting);
        let Some(slot) = self.slots.get(key) else { return };
        let buf = IoBuf::heap(slot.expected);
        self.give_buffer(cx, core, key, buf);
    }

    /// The command does not wait for a buffer or its time any more, because it ends: its data are dropped when they come.
    pub(super) fn forget_wait(&mut self, core: &mut Core, key: SlotKey) {
        let waiting = self.local(key);
        core.buffer_lines.retain(|waiter| waiter != waiting);
        self.throttled.forget(key);
        if self.paused.take_if(|paused| *paused == key).is_some() {
            self.defer(core);
        }
    }

    /// The receive that had the buffer of a command has ended.
    pub(super) fn return_buffer(&mut self, key: SlotKey, (buf, range): (IoBuf, Range<usize>)) {
        if self.out.proto.data_digest() {
            self.crc.update(&buf[range]);
        }
        // Otherwise the command has ended meanwhile.
        if let Some(slot) = self.slots.get(key) {
            slot.buf = Some(buf);
        }
    }

    /// Takes data in the staging memory.
    #[inline]
    pub(super) fn take_data(&mut self, task: TaskId, offset: usize, bytes: &[u8]) {
        if self.out.proto.data_digest() {
            self.crc.update(bytes);
        }
        self.moved = self.moved.saturating_add(bytes.len());
        let Some(key) = self.slots.of(task) else { return };
        let Some(slot) = self.slots.get(key) else { return };
        // Data beyond what the command takes are dropped.
        let end = (offset + bytes.len()).min(slot.expected);
        if let Some(buf) = &mut slot.buf
            && offset < end
        {
            buf[offset..end].copy_from_slice(&bytes[..end - offset]);
        }
    }

    /// All data of a PDU have come.
    #[inline]
    pub(super) fn end_data(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        (task, bytes): (TaskId, Range<usize>),
        digest: Option<&DataDigest>,
        sequence_end: bool,
    ) {
        let crc = std::mem::replace(&mut self.crc, Crc32c::new());
        let Some(key) = self.slots.of(task) else { return };
        if digest.is_some_and(|digest| !digest.is_right_after(crc)) {
            let peer = self.ends.peer;
            tracing::warn!(%peer, "the data digest of a command's data is wrong; the command fails");
            let judged = self.out.push(core, |proto, out| proto.data_digest_wrong(task, out));
            if let Err(error) = judged {
                return self.fatal(cx, core, &error);
            }
            return self.data_fault(core, task, DataFault::Digest);
        }
        let Some(slot) = self.slots.get(key) else { return };
        slot.received = bytes.end;
        if slot.received < slot.expected && !sequence_end {
            return;
        }
        if self.throttled.holds(key) {
            slot.phase = Phase::Throttled;
            return;
        }
        self.data_here(cx, core, key);
    }

    /// The data are here that were on their way: executes the command, or asks for the next of its data.
    #[inline]
    pub(super) fn data_here(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let Some(slot) = self.slots.get(key) else { return };
        if slot.received >= slot.expected {
            self.execute(cx, core, key);
        } else {
            self.ask_for_data(cx, core, key);
        }
    }

    /// The data of a command have violated the protocol.
    pub(super) fn data_fault(&mut self, core: &mut Core, task: TaskId, fault: DataFault) {
        let Some(key) = self.slots.of(task) else { return };
        let (asc, ascq) = fault.additional_sense();
        let sense = Sense::new(SenseKey::AbortedCommand, u16::from_be_bytes([asc, ascq]));
        self.forget_wait(core, key);
        self.refuse(core, key, &Refusal::Check(sense));
    }
}
