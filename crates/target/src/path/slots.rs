//! The command slots of one queue: one per command that the host may have outstanding.

use std::time::Instant;

use raceline_bdev::{BdevError, OpKind};
use raceline_proto::controller::IoCommand;
use raceline_proto::nvme::{CommandId, Direction, Sqe, Status, Transfer};
use raceline_reactor::IoBuf;

use crate::changes::snapshot::DeviceId;
use crate::path::digest::DigestUse;
use crate::path::range_lock::LockId;

/// Data of more bytes than this that the host sends when asked are received into the command's
/// buffer at once. Smaller ones often lie whole in the staging buffer, half of it or less.
const LARGE_WRITE_BYTES: u32 = 32 << 10;

/// What a command is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    #[default]
    Free,
    /// An I/O buffer.
    Buffer,
    /// Its data from the host.
    Data,
    /// The other half of the fused operation, or the lock on its range.
    Fuse,
    /// A fence over its range to come down.
    Fence,
    /// The engine that computes the digest of its data.
    Digest,
    /// Its device, or another core.
    Device,
    /// An event (Asynchronous Event Request).
    Event,
}

/// What is counted of a command when its device is done with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) kind: OpKind,
    pub(crate) bytes: u64,
    pub(crate) started: Instant,
}

/// One command.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) phase: Phase,
    pub(crate) cid: CommandId,
    pub(crate) sqe: Sqe,
    /// What an I/O command asks for; `None` for admin and Fabrics commands.
    pub(crate) command: Option<IoCommand>,
    pub(crate) transfer: Transfer,
    /// The device of its namespace, the bytes it is about there, and the block size.
    pub(crate) device: Option<DeviceId>,
    pub(crate) bytes: std::ops::Range<u64>,
    pub(crate) block_size: u64,
    /// The command's I/O buffer; away while a receive lands bytes in it.
    pub(crate) buf: Option<IoBuf>,
    /// A Compare's data from the host while the device's is read into `buf`.
    pub(crate) expected: Option<IoBuf>,
    /// The command's data comes in its capsule.
    pub(crate) in_capsule: bool,
    /// It is counted among the writes whose data should not lie in staging memory first.
    pub(crate) lands_direct: bool,
    /// A data digest did not match: the data must not be used.
    pub(crate) corrupt: bool,
    /// All its data, and their digest, are in the staging buffer, and its device takes them from
    /// there.
    pub(crate) direct: bool,
    /// Its blocks go to the device as they come.
    pub(crate) by_blocks: bool,
    /// So much of its data is there already, in whole blocks.
    pub(crate) on_device: usize,
    /// The digest of its data was checked where they lay: they need not be looked at again.
    pub(crate) checked: bool,
    /// What its digest is for that an engine computes.
    pub(crate) digest: DigestUse,
    /// The outcome of a write that went to its device straight from the staging buffer.
    pub(crate) written: Option<Result<(), BdevError>>,
    /// Device requests in flight.
    pub(crate) pending: u16,
    /// The first failure of those requests, or the verdict on a command whose data is under way.
    pub(crate) status: Status,
    /// What the device's counters will have of those requests, if it has any.
    pub(crate) measured: Option<Measured>,
    /// Half of a fused operation.
    pub(crate) fused: bool,
    /// The other half.
    pub(crate) partner: Option<u16>,
    /// The lock on its range was asked for: an answer will come.
    pub(crate) lock_asked: bool,
    /// The lock held for a fused operation.
    pub(crate) lock: Option<LockId>,
}

impl Slot {
    /// Whether it takes much data, by R2T.
    pub(crate) fn is_large_write(&self) -> bool {
        self.transfer.direction == Direction::HostToController
            && self.transfer.len > LARGE_WRITE_BYTES
            && !self.in_capsule
    }
}

/// All slots of a queue, and the set of command identifiers in use.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// One bit per CID.
    cids: Vec<u64>,
}

/// Why a command has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// The host has more commands outstanding than the queue has entries.
    Overrun,
    /// The host uses this identifier already.
    Duplicate,
}

impl Slots {
    pub(crate) fn new(entries: u16) -> Self {
        Self {
            slots: (0..entries).map(|_| Slot::default()).collect(),
            free: (0..entries).rev().collect(),
            cids: vec![0; (usize::from(u16::MAX) + 1) / 64],
        }
    }

    fn cid_bit(cid: CommandId) -> (usize, u64) {
        (usize::from(cid.0 / 64), 1 << (cid.0 % 64))
    }

    /// Takes a slot for a command that has just come.
    pub(crate) fn take(&mut self, sqe: &Sqe) -> Result<u16, NoSlot> {
        let cid = sqe.command_id();
        let (word, bit) = Self::cid_bit(cid);
        if self.cids[word] & bit != 0 {
            return Err(NoSlot::Duplicate);
        }
        let index = self.free.pop().ok_or(NoSlot::Overrun)?;
        self.cids[word] |= bit;
        let slot = &mut self.slots[usize::from(index)];
        slot.cid = cid;
        slot.sqe = *sqe;
        slot.phase = Phase::Buffer;
        Ok(index)
    }

    /// Whether [`Slots::take`] would take a command with this identifier.
    #[inline]
    pub(crate) fn has_room_for(&self, cid: CommandId) -> bool {
        let (word, bit) = Self::cid_bit(cid);
        self.cids[word] & bit == 0 && !self.free.is_empty()
    }

    /// The command is completed: frees its slot, its identifier and its buffers.
    pub(crate) fn release(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        debug_assert_ne!(slot.phase, Phase::Free, "a command completes once");
        let (word, bit) = Self::cid_bit(slot.cid);
        self.cids[word] &= !bit;
        *slot = Slot::default();
        self.free.push(index);
    }

    pub(crate) fn get(&mut self, index: u16) -> &mut Slot {
        &mut self.slots[usize::from(index)]
    }

    /// Slots in use, with their numbers.
    pub(crate) fn active(&mut self) -> impl Iterator<Item = (u16, &mut Slot)> {
        (0..).zip(self.slots.iter_mut()).filter(|(_, slot)| slot.phase != Phase::Free)
    }

    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The command with this identifier, if it is outstanding.
    pub(crate) fn find(&mut self, cid: CommandId) -> Option<u16> {
        let (word, bit) = Self::cid_bit(cid);
        if self.cids[word] & bit == 0 {
            return None;
        }
        self.active().find(|(_, slot)| slot.cid == cid).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqe(cid: u16) -> Sqe {
        Sqe { cid: cid.into(), ..Sqe::default() }
    }

    #[test]
    fn a_slot_and_its_identifier_are_reused_only_after_release() {
        let mut slots = Slots::new(2);
        let a = slots.take(&sqe(7)).unwrap();
        assert_eq!(slots.take(&sqe(7)), Err(NoSlot::Duplicate));
        slots.take(&sqe(0xffff)).unwrap();
        assert_eq!(slots.take(&sqe(8)), Err(NoSlot::Overrun));
        assert_eq!(slots.find(CommandId(7)), Some(a));
        slots.release(a);
        assert_eq!(slots.in_use(), 1);
        assert_eq!(slots.find(CommandId(7)), None);
        assert_eq!(slots.take(&sqe(7)), Ok(a));
    }
}
