//! Data from hosts: where they land, and how a command goes on when all of them have come.

use raceline_proto::tcp::DataDest;
use raceline_reactor::flow::policy::Regime;
use raceline_reactor::{Context, IoBuf};

use super::Commands;
use crate::path::choice::{Asked, HostData, Takes, WritePath, write_path};
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Judged, Way};
use crate::records::names::SlotKey;
use raceline_proto::tcp::DIGEST_LEN;

/// The end of a PDU with data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataEnd {
    pub(crate) dest: DataDest,
    /// Offset in the command's data of the first byte of the PDU.
    pub(crate) offset: u32,
    /// Bytes in the PDU.
    pub(crate) len: u32,
    pub(crate) ddgst: Option<u32>,
    /// No other PDU has data for the command.
    pub(crate) last_pdu: bool,
}

impl Commands {
    /// The command that gets data with this destination; `None`: the data are dropped.
    #[inline]
    pub(crate) fn receiver(&self, dest: DataDest) -> Option<CommandSlot> {
        match dest {
            DataDest::Slot(index) => self.slots.resume_at(index),
            DataDest::Capsule => self.capsule.and_then(|key| self.slots.resume(key)),
        }
    }

    /// Asks the host for the data of a command that has its buffer.
    #[inline]
    pub(super) fn ask_for_data(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        let slot = self.slots.get(key);
        let (cid, len) = (slot.cid(), slot.transfer.len);
        let device = slot.device().map_or(Takes::Never, |device| core.takes(device));
        let is_plain_write = slot.is_write() && slot.half.is_none();
        let data = HostData::Asked(Asked {
            len,
            is_plain_write,
            digest: self.out.queue.data_digest(),
            device,
            commands: self.slots.in_use(),
            held: if is_plain_write {
                cx.io.flight().regime_of(cx.pool.bytes_in_use())
            } else {
                Regime::Warm
            },
        });
        self.set_write_path(key, &data);
        self.out.push_pdu(core, |queue, out| queue.r2t(key.index(), cid, 0, len, out));
    }

    /// Chooses the path of a command's data.
    #[inline]
    pub(super) fn set_write_path(&mut self, key: SlotKey, data: &HostData) {
        let path = write_path(data);
        let slot = self.slots.get(key);
        let before = slot.lands_direct();
        slot.way = Way::Write(path);
        self.large_writes = self.large_writes + u16::from(slot.lands_direct()) - u16::from(before);
    }

    /// The I/O buffer of a command, for a receive that lands the next data in it.
    #[inline]
    pub(crate) fn lend_buffer(&mut self, key: SlotKey) -> Option<IoBuf> {
        let slot = self.slots.get(key);
        let by_blocks = matches!(slot.way, Way::Write(WritePath::Blocks { .. }));
        slot.buf.take_if(|_| !by_blocks)
    }

    /// The receive that had the buffer has ended.
    #[inline]
    pub(crate) fn return_buffer(&mut self, key: SlotKey, buf: IoBuf) {
        if self.slots.resume(key).is_some() {
            self.slots.get(key).buf = Some(buf);
        }
    }

    /// Whether the connection awaits data of large writes that are not to lie in staging memory first, and
    /// the next data are not ones that are to lie there.
    #[inline]
    pub(crate) fn large_data_next(&mut self) -> bool {
        self.large_writes > 0 && !self.blocks_are_next()
    }

    /// Takes payload in the staging buffer, with `rest` behind it: to the device if the device takes it from
    /// here, else to the command's I/O buffer.
    #[inline]
    pub(crate) fn take_data(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        dest: DataDest,
        offset: u32,
        (bytes, rest): (&[u8], &[u8]),
    ) {
        let Some(command) = self.receiver(dest) else { return };
        let key = command.key();
        self.out.counters.copied_bytes.add(bytes.len() as u64);
        let digest = self.out.queue.data_digest();
        let ddgst = if digest { self.out.queue.data_digest_ahead(rest) } else { None };
        let available = bytes.len() + if ddgst.is_some() { DIGEST_LEN } else { 0 };
        let known = self.slots.get(key).way == Way::Write(WritePath::Staged);
        if known || offset == 0 && self.may_write_now(cx, core, key, available) {
            if !known {
                self.set_write_path(key, &HostData::Staged);
            }
            let good = ddgst.is_none_or(|ddgst| {
                let found = cx.io.accelerator().crc32c_now(bytes);
                self.judge_data(key, found.ok(), ddgst)
            });
            if good {
                self.moved = self.moved.saturating_add(bytes.len());
                self.write_now(core, key, cx.now, bytes);
            }
            return;
        }
        let slot = self.slots.get(key);
        if let Way::Write(WritePath::Blocks { on_device }) = slot.way {
            return self.write_blocks(core, key, cx.now, on_device, (offset as usize, bytes));
        }
        if let Some(buf) = &mut slot.buf {
            let start = offset as usize;
            buf[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// All data of a PDU have come. Gives the command back when it can be executed.
    #[inline]
    pub(crate) fn end_data(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        end: DataEnd,
    ) -> Option<CommandSlot> {
        let DataEnd { dest, offset, len, ddgst, last_pdu } = end;
        let receiver = self.receiver(dest);
        if dest == DataDest::Capsule {
            self.capsule = None;
        }
        let command = receiver?;
        let key = command.key();
        let start = offset as usize;
        let bytes = start..start + len as usize;
        // A command whose data come in one PDU, as they usually do.
        let all = last_pdu && offset == 0;
        if ddgst.is_some() {
            self.moved = self.moved.saturating_add(len as usize);
        }
        let waits = ddgst.is_some_and(|ddgst| self.check_data(cx, key, bytes, ddgst, all));
        if last_pdu {
            self.large_writes -= u16::from(self.slots.get(key).lands_direct());
        }
        if last_pdu && !waits { self.complete_data(cx, core, command) } else { None }
    }

    /// All data of a command have come, and their digests have been checked. Gives the command back when
    /// it can be executed.
    #[inline]
    pub(super) fn complete_data(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<CommandSlot> {
        let slot = self.slots.get(command.key());
        match slot.judged {
            Judged::Good => return Some(command),
            Judged::Corrupt => self.refuse_corrupt(core, command),
            Judged::Written(result) => {
                slot.pending = 1;
                self.part_done(cx, core, command, result, None);
            }
        }
        None
    }
}
