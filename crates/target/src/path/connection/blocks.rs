//! Writes whose blocks go to their device as they come, out of the staging buffer.
//!
//! Data would otherwise be received into an I/O buffer and copied from there when they are complete:
//! where much is under way out of memory, as by then the caches hold something else. So there a device
//! that takes bytes from anywhere (RAM) gets each whole block while the caches still have it. A write that breaks off has
//! then changed some of its blocks, as NVMe allows, but none by halves: only single blocks are atomic
//! (NVM Command Set 1.0, 2.1.4; AWUN and AWUPF are 0). Data under a digest wait until it was checked.

use std::time::Instant;

use raceline_bdev::OpKind;
use raceline_proto::controller::IoCommand;
use raceline_reactor::Context;
use raceline_reactor::flow::policy;

use super::Connection;
use crate::path::core::Core;

impl Connection {
    /// Whether the blocks of a command, whose data were not asked for yet, may go to its device one
    /// by one.
    pub(super) fn goes_by_blocks(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
    ) -> bool {
        let digest = self.queue.data_digest();
        let slot = self.slots.get(index);
        let is_write = matches!(slot.command, Some(IoCommand::Write { .. }));
        let takes_now = slot.device.is_some_and(|device| core.may_write_now(device));
        let held = cx.io.flight().regime_of(cx.pool.bytes_in_use());
        is_write && policy::goes_by_blocks(held) && takes_now && !slot.fused && !digest
    }

    /// Whether the data of such a command are next.
    pub(super) fn blocks_are_coming(&mut self) -> bool {
        let wanted = self.queue.payload_wanted();
        let slot = wanted.and_then(|wanted| self.data_slot(wanted.dest));
        slot.is_some_and(|slot| self.slots.get(slot).by_blocks)
    }

    /// Data of such a command, from `offset` on. What is no whole block yet waits in the I/O buffer, as
    /// does all that comes while something holds writes back.
    pub(super) fn write_blocks(
        &mut self,
        core: &mut Core,
        index: u16,
        now: Instant,
        offset: usize,
        bytes: &[u8],
    ) {
        self.moved = self.moved.saturating_add(bytes.len());
        let slot = self.slots.get(index);
        let (Some(device), Some(buf)) = (slot.device, &mut slot.buf) else { return };
        let block = usize::try_from(slot.block_size).unwrap_or(usize::MAX);
        let from = slot.on_device;
        // Of the block that has begun; more if writes were held back, and then the rest waits, too.

        let begun = offset - from;
        if begun >= block || slot.written.is_some() || !core.writes_now(device) {
            buf[offset..offset + bytes.len()].copy_from_slice(bytes);
            return;
        }
        let missing = if begun > 0 { (block - begun).min(bytes.len()) } else { 0 };
        let (head, rest) = bytes.split_at(missing);
        let at = offset + head.len();
        buf[offset..at].copy_from_slice(head);
        if begun > 0 && begun + head.len() < block {
            return;
        }
        let (blocks, tail) = rest.split_at(rest.len() - rest.len() % block);
        let end = at + blocks.len();
        buf[end..end + tail.len()].copy_from_slice(tail);
        let twice = if begun > 0 { at - from } else { 0 };
        self.counters.copied_bytes.add(twice as u64);
        let mut result = Ok(());
        for (at, bytes) in [(from, &buf[from..at]), (at, blocks)] {
            if !bytes.is_empty() && result.is_ok() {
                result = core.write_now(device, slot.bytes.start + at as u64, bytes);
            }
        }
        slot.on_device = end;
        if result.is_err() || slot.on_device == slot.transfer.len as usize {
            if core.meters {
                let len = u64::from(slot.transfer.len);
                slot.measured = core.measure(device, now, OpKind::Write, len);
            }
            slot.written = Some(result);
        }
    }
}
