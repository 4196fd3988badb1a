//! Copy: piece after piece, by the device itself where it can, else by reading and writing (NVM Command Set 1.1, 3.3.2).

use raceline_bdev::{BdevError, Op, OpKind};
use raceline_proto::controller::{CopyCommand, CopySource};
use raceline_proto::nvme::{Cqe, Status};
use raceline_reactor::{Context, Payload};

use super::Commands;
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Copying, Extra, Phase};
use crate::records::names::SlotKey;

/// Most bytes of a piece that is read and written: a Copy holds one buffer of this size, whatever its length.
const PIECE_BYTES: u64 = 128 << 10;

/// The blocks that are copied next.
struct Piece {
    source: CopySource,
    /// The first of them, in the source's namespace.
    slba: u64,
    /// How many of the range are left.
    left: u32,
    /// Where the first goes.
    to: u64,
}

impl Copying {
    /// `None`: there is nothing left to copy.
    fn next_piece(&mut self) -> Option<Piece> {
        while self.range < self.command.ranges {
            let source = self.command.source(&self.ranges, self.range)?;
            let left = source.block_count.saturating_sub(self.range_done);
            if left > 0 {
                let slba = source.slba + u64::from(self.range_done);
                return Some(Piece { source, slba, left, to: self.next });
            }
            self.range += 1;
            self.range_done = 0;
        }
        None
    }

    /// Whether the request that has failed was for a device that cannot copy. Then this Copy reads and writes.
    pub(super) fn goes_on_by_hand(&mut self, error: BdevError) -> bool {
        let was_whole = std::mem::take(&mut self.is_whole);
        if !was_whole || error != BdevError::NotSupported {
            return false;
        }
        self.by_hand = true;
        self.writing = 0;
        true
    }
}

impl Commands {
    /// A Copy has its source ranges.
    pub(super) fn begin_copy(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        copy: CopyCommand,
    ) {
        let Some(queue) = &self.io else { return };
        let slot = self.slots.get(command.key());
        let namespace = slot.device().and_then(|device| queue.visible.on_device(device));
        // The snapshot may have changed while the data was under way.
        let Some(namespace) = namespace else {
            let status = queue.visible.refusal(slot.sqe.namespace_id());
            return self.refuse(core, command, status);
        };
        if copy.across && !queue.copies_across.get() {
            return self.refuse(core, command, Status::INVALID_FIELD.dnr());
        }
        let Some(ranges) = slot.buf.take() else { return };
        let source = |nsid| queue.visible.source(nsid).map(|(namespace, _)| namespace);
        if let Err((range, status)) = copy.check(&ranges, namespace, source) {
            let cqe = Cqe { cid: slot.cid(), status, dw0: range.into(), ..Cqe::default() };
            return self.finish(core, command, cqe);
        }
        slot.extra = Some(Box::new(Extra::Copy(Copying {
            ranges,
            command: copy,
            range: 0,
            range_done: 0,
            next: copy.sdlba,
            writing: 0,
            is_whole: false,
            by_hand: false,
            read: None,
        })));
        // One more than there are requests: the command does not end between two of them.
        slot.pending = 1;
        self.copy_piece(cx, core, command);
    }

    /// The device of a source, if the host may still read there.
    fn source_device(&mut self, key: SlotKey, source: CopySource) -> Result<DeviceId, Status> {
        let Some(queue) = &self.io else { return Err(Status::INVALID_NAMESPACE.dnr()) };
        match source.nsid {
            Some(nsid) => queue.visible.source(nsid).map(|(_, device)| device),
            None => self.slots.get(key).device().ok_or(Status::INVALID_NAMESPACE.dnr()),
        }
    }

    /// Copies the next piece or begins to, or ends the command.
    pub(super) fn copy_piece(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) {
        let key = command.key();
        let slot = self.slots.get(key);
        let Some(job) = &slot.job else { return };
        let (target, block_size) = (job.device, job.block_size);
        let Some(copying) = slot.copying() else { return };
        let by_hand = copying.by_hand;
        let Some(piece) = copying.next_piece() else {
            return self.part_done(cx, core, command, Ok(()), None);
        };
        let fua = copying.command.fua;
        let found = self.source_device(key, piece.source).and_then(|source| {
            let is_there = core.device(source).is_some() && core.device(target).is_some();
            if is_there { Ok(source) } else { Err(Status::INVALID_NAMESPACE.dnr()) }
        });
        let source = match found {
            Ok(source) => source,
            Err(status) => {
                self.slots.get(key).status = status;
                return self.part_done(cx, core, command, Ok(()), None);
            }
        };
        let copies = core.device(target).is_some_and(|device| device.info.copies);
        if source == target && copies && !by_hand {
            let (from, to) = (piece.slba * block_size, piece.to * block_size);
            let len = u64::from(piece.left) * block_size;
            if let Some(copying) = self.slots.get(key).copying() {
                (copying.writing, copying.is_whole) = (piece.left, true);
            }
            return self.submit(cx, core, key, Op::Copy { from, to, len, fua });
        }
        let most = u32::try_from((PIECE_BYTES / block_size).max(1)).unwrap_or(u32::MAX);
        let blocks = piece.left.min(most);
        let len = usize::try_from(u64::from(blocks) * block_size).unwrap_or(usize::MAX);
        let buf = self.take_buffer_or_heap(cx, len);
        let op = Op::Read { offset: piece.slba * block_size, len, buf: Some(buf) };
        if source == target {
            self.submit(cx, core, key, op);
        } else {
            self.read_source(cx, core, key, source, op);
        }
    }

    /// Reads from the device of another namespace than the command's.
    fn read_source(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        source: DeviceId,
        op: Op,
    ) {
        let tag = self.local(key).tag();
        let read = core.meters.then(|| core.measure(source, cx.now, OpKind::Read, op.bytes()));
        let slot = self.slots.get(key);
        slot.phase = Phase::Device;
        slot.pending += 1;
        if let Some(copying) = slot.copying() {
            copying.read = read.flatten().map(|measured| (source, measured));
        }
        core.submit(cx, source, tag, op);
    }

    /// A piece of a Copy has been copied, read, or written.
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
        let has_failed = !slot.status.is_success();
        let Some(job) = &slot.job else { return };
        let (target, block_size) = (job.device, job.block_size);
        let Some(copying) = slot.copying() else { return };
        if let Some((source, measured)) = copying.read.take() {
            let result = if has_failed { Err(BdevError::ReadFault) } else { Ok(()) };
            core.count(source, measured, cx.now, result);
        }
        if has_failed {
            return self.part_done(cx, core, command, Ok(()), None);
        }
        if copying.writing > 0 {
            copying.is_whole = false;
            copying.range_done += copying.writing;
            copying.next += u64::from(std::mem::take(&mut copying.writing));
            return self.copy_piece(cx, core, command);
        }
        let fua = copying.command.fua;
        match (copying.next_piece(), payload) {
            (Some(piece), Some(Payload::Buf(buf, range))) if core.device(target).is_some() => {
                let blocks = range.len() as u64 / block_size;
                copying.writing = u32::try_from(blocks).unwrap_or(piece.left).min(piece.left);
                let offset = piece.to * block_size;
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
