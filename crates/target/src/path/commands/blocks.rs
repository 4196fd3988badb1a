//! Writes whose blocks go to their device as they come, out of the staging buffer.
//!
//! Other data are received into an I/O buffer and copied from there when they are complete. When the
//! I/O buffers in use exceed the caches, that copy would read from memory. Then a device that takes bytes
//! from anywhere (RAM) gets each whole block while the caches still have it. A write that breaks off has
//! then changed some of its blocks, as NVMe allows, but each of them entirely: only single blocks are
//! atomic (NVM Command Set 1.0, 2.1.4; AWUN and AWUPF are 0). Data under a digest wait for its check.

use std::time::Instant;

use raceline_bdev::OpKind;

use super::Commands;
use crate::path::choice::WritePath;
use crate::path::core::Core;
use crate::path::slots::{Judged, Way};
use crate::records::names::SlotKey;

impl Commands {
    /// Whether the next data are those of such a command.
    #[inline]
    pub(super) fn blocks_are_next(&mut self) -> bool {
        let wanted = self.out.queue.payload_wanted();
        let Some(command) = wanted.and_then(|wanted| self.receiver(wanted.dest)) else {
            return false;
        };
        matches!(self.slots.get(command.key()).way, Way::Write(WritePath::Blocks { .. }))
    }

    /// Takes data of such a command, from `offset` on; the device has those up to `from`. A block that is
    /// not whole yet waits in the I/O buffer, as do all data that come while something holds writes back.
    pub(super) fn write_blocks(
        &mut self,
        core: &mut Core,
        key: SlotKey,
        now: Instant,
        from: usize,
        (offset, bytes): (usize, &[u8]),
    ) {
        self.moved = self.moved.saturating_add(bytes.len());
        let slot = self.slots.get(key);
        let (Some(job), Some(buf)) = (&slot.job, &mut slot.buf) else { return };
        let device = job.device;
        let block = usize::try_from(job.block_size).unwrap_or(usize::MAX);
        // Bytes of the block that has begun; more if writes were held back, and then all the rest waits, too.
        let begun = offset - from;
        if begun >= block || slot.judged != Judged::Good || !core.writes_now(device) {
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
        self.out.counters.copied_bytes.add(twice as u64);
        let mut result = Ok(());
        for (at, bytes) in [(from, &buf[from..at]), (at, blocks)] {
            if !bytes.is_empty() && result.is_ok() {
                result = core.write_now(device, job.bytes.start + at as u64, bytes);
            }
        }
        slot.way = Way::Write(WritePath::Blocks { on_device: end });
        if result.is_err() || end == slot.transfer.len as usize {
            if core.meters {
                let len = u64::from(slot.transfer.len);
                slot.measured = core.measure(device, now, OpKind::Write, len);
            }
            slot.judged = Judged::Written(result);
        }
    }
}
