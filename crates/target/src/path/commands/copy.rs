//! Copy: the target reads piece after piece, and writes each before it reads the next (NVM Command Set 1.0, 3.2.2).

use raceline_bdev::Op;
use raceline_proto::controller::{check_copy, copy_range};
use raceline_proto::nvme::{Cqe, Status};
use raceline_reactor::{Context, Payload};

use super::Commands;
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Copying};

/// Most bytes of a piece: a Copy holds one buffer of this size, whatever its length.
const PIECE_BYTES: u64 = 128 << 10;

impl Copying {
    /// The blocks that are copied next: the first, how many, and where they go. `None`: there are none.
    fn next_piece(&mut self, block_size: u64) -> Option<(u64, u32, u64)> {
        let most = u32::try_from((PIECE_BYTES / block_size).max(1)).unwrap_or(u32::MAX);
        while self.range < self.range_count {
            let (slba, blocks) = copy_range(&self.ranges, self.range)?;
            let left = blocks.saturating_sub(self.range_done);
            if left > 0 {
                return Some((slba + u64::from(self.range_done), left.min(most), self.next));
            }
            self.range += 1;
            self.range_done = 0;
        }
        None
    }
}

impl Commands {
    /// A Copy has its source ranges.
    pub(super) fn begin_copy(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        sdlba: u64,
        (range_count, fua): (u16, bool),
    ) {
        let Some(queue) = &self.io else { return };
        let slot = self.slots.get(command.key());
        let namespace = slot.device().and_then(|device| queue.visible.on_device(device));
        // The snapshot may have changed while the data was under way.
        let Some(namespace) = namespace else {
            let status = queue.visible.refusal(slot.sqe.namespace_id());
            return self.refuse(core, command, status);
        };
        let Some(ranges) = slot.buf.take() else { return };
        if let Err((range, status)) = check_copy(&ranges, range_count, sdlba, namespace) {
            let cqe = Cqe { cid: slot.cid(), status, dw0: range.into(), ..Cqe::default() };
            return self.finish(core, command, cqe);
        }
        let copying =
            Copying { ranges, range_count, range: 0, range_done: 0, next: sdlba, writing: 0, fua };
        slot.copying = Some(Box::new(copying));
        // One more than there are requests: the command does not end between two of them.
        slot.pending = 1;
        self.copy_piece(cx, core, command);
    }

    /// Reads the next piece, or ends the command.
    fn copy_piece(&mut self, cx: &mut Context<'_>, core: &mut Core, command: CommandSlot) {
        let key = command.key();
        let slot = self.slots.get(key);
        let (Some(job), Some(copying)) = (&slot.job, &mut slot.copying) else { return };
        let block_size = job.block_size;
        let is_there = core.device(job.device).is_some();
        match copying.next_piece(block_size) {
            Some((slba, blocks, _)) if is_there => {
                let len = usize::try_from(u64::from(blocks) * block_size).unwrap_or(usize::MAX);
                let buf = self.take_buffer_or_heap(cx, len);
                self.submit(
                    cx,
                    core,
                    key,
                    Op::Read { offset: slba * block_size, len, buf: Some(buf) },
                );
            }
            Some(_) => {
                slot.status = Status::INVALID_NAMESPACE.dnr();
                self.part_done(cx, core, command, Ok(()), None);
            }
            None => self.part_done(cx, core, command, Ok(()), None),
        }
    }

    /// A piece of a Copy has been read, or written.
    #[cold]
    pub(super) fn copied_part(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        payload: Option<Payload>,
    ) {
        let key = command.key();
        let slot = self.slots.get(key);
        if !slot.status.is_success() {
            return self.part_done(cx, core, command, Ok(()), None);
        }
        let (Some(job), Some(copying)) = (&slot.job, &mut slot.copying) else { return };
        if copying.writing > 0 {
            copying.range_done += copying.writing;
            copying.next += u64::from(std::mem::take(&mut copying.writing));
            return self.copy_piece(cx, core, command);
        }
        let piece = copying.next_piece(job.block_size);
        match (piece, payload) {
            (Some((_, blocks, to)), Some(Payload::Buf(buf, _)))
                if core.device(job.device).is_some() =>
            {
                copying.writing = blocks;
                let (offset, fua) = (to * job.block_size, copying.fua);
                self.submit(cx, core, key, Op::Write { offset, data: buf.share(), fua });
            }
            (_, payload) => {
                debug_assert!(matches!(payload, Some(Payload::Buf(..))), "a read gives its buffer");
                slot.status = Status::INVALID_NAMESPACE.dnr();
                self.part_done(cx, core, command, Ok(()), None);
            }
        }
    }
}
