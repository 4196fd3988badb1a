//! The command slots of one queue: one per command that the host may have outstanding.
//!
//! A [`SlotKey`] names a command for a device, an engine or another core that answers later. A
//! [`CommandSlot`] is the right to go on with the command; completing the command consumes it. The slot's
//! generation exposes a name that outlives its command or is used twice; such a name does nothing.

use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Instant;

use raceline_bdev::{BdevError, OpKind};
use raceline_proto::controller::{CopyCommand, IoCommand, LbaStatusQuery};
use raceline_proto::nvme::{CommandId, Sqe, Status, Transfer};
use raceline_reactor::IoBuf;

use crate::changes::snapshot::DeviceId;
use crate::path::choice::{ReadPath, WritePath};
use crate::path::range_lock::LockId;
use crate::records::names::SlotKey;

/// What a command is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    #[default]
    Free,
    /// An I/O buffer.
    Buffer,
    /// Its connection to be on another core; the host has not been asked for its data.
    Move,
    /// The time at which its limits let it begin.
    Throttled,
    /// Its data from the host.
    Data,
    /// The other half of the fused operation.
    Partner,
    /// The lock on the range of the fused operation: an answer will come.
    Lock,
    /// A fence over its range to come down.
    Fence,
    /// The engine that computes the digest of its data.
    Digest(DigestUse),
    /// Its device, or another core.
    Device,
    /// An event (Asynchronous Event Request).
    Event,
}

/// What an engine's digest of a command's data is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestUse {
    /// Data from the host: to be compared with the digest that came with them.
    Check(u32),
    /// Data for the host: to be sent behind them.
    Send,
}

/// The path of a command's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// It has no data, or its path has not been chosen.
    #[default]
    None,
    /// To the host.
    Read(ReadPath),
    /// From the host.
    Write(WritePath),
}

/// The verdict on the data from the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Nothing.
    #[default]
    Good,
    /// A data digest did not match: they must not be used.
    Corrupt,
    /// They went to the device straight from staging memory, with this outcome.
    Written(Result<(), BdevError>),
}

/// What an I/O command is about.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) command: IoCommand,
    /// The device of its namespace, the bytes it is about there, and the block size.
    pub(crate) device: DeviceId,
    pub(crate) bytes: Range<u64>,
    pub(crate) block_size: u64,
}

/// One half of a fused operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Half {
    /// The other half, once it has come.
    pub(crate) partner: Option<SlotKey>,
    /// The lock held for the operation, by its first half.
    pub(crate) lock: Option<LockId>,
}

/// What only a few kinds of commands have to keep.
#[derive(Debug)]
pub(crate) enum Extra {
    /// It is a Copy under way.
    Copy(Copying),
    /// It is a Get LBA Status whose device has been asked.
    LbaStatus { query: LbaStatusQuery, block_size: u64 },
}

/// A Copy under way: it copies one piece after the other.
#[derive(Debug)]
pub(crate) struct Copying {
    /// The source ranges, as the host sent them.
    pub(crate) ranges: IoBuf,
    pub(crate) command: CopyCommand,
    /// The range that is being copied, and how many of its blocks have been.
    pub(crate) range: u16,
    pub(crate) range_done: u32,
    /// Where its next block goes.
    pub(crate) next: u64,
    /// Blocks of the piece that is being written, or copied by the device; 0: it is being read.
    pub(crate) writing: u32,
    /// The device copies the piece.
    pub(crate) is_whole: bool,
    /// The device has said that it cannot copy.
    pub(crate) by_hand: bool,
    /// What the meter of another namespace's device counts when it has been read.
    pub(crate) read: Option<(DeviceId, Measured)>,
}

/// What the meter of a device counts when the device is done with a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) kind: OpKind,
    pub(crate) bytes: u64,
    pub(crate) started: Instant,
}

/// Numbers the successive commands of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Generation(NonZeroU16);

impl Default for Generation {
    fn default() -> Self {
        Self(NonZeroU16::MIN)
    }
}

impl Generation {
    #[inline]
    fn next(self) -> Self {
        Self(self.0.checked_add(1).unwrap_or(NonZeroU16::MIN))
    }
}

/// One command.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    generation: Generation,
    pub(crate) phase: Phase,
    pub(crate) sqe: Sqe,
    /// When a command of an I/O queue came, by the clock of the core's turns.
    pub(crate) came: Option<Instant>,
    /// `None` for admin and Fabrics commands, and for I/O commands that are invalid.
    pub(crate) job: Option<Job>,
    pub(crate) transfer: Transfer,
    /// The command's data come in its capsule.
    pub(crate) in_capsule: bool,
    pub(crate) way: Way,
    pub(crate) judged: Judged,
    /// The command's I/O buffer; `None` while a receive lands bytes in it.
    pub(crate) buf: Option<IoBuf>,
    /// A Compare's data from the host, while the device's data are read into `buf`.
    pub(crate) expected: Option<IoBuf>,
    /// Device requests in flight.
    pub(crate) pending: u16,
    /// The first failure of those requests, or the verdict on a command whose data have not all come.
    pub(crate) status: Status,
    /// What the meters of the devices will count of those requests, if there are any.
    pub(crate) measured: Option<Measured>,
    /// It is half of a fused operation.
    pub(crate) half: Option<Half>,
    /// What only a few kinds of commands have.
    pub(crate) extra: Option<Box<Extra>>,
}

impl Slot {
    #[inline]
    fn key(&self, index: u16) -> SlotKey {
        SlotKey::new(index, self.generation.0)
    }

    /// Whether the key names the command that is in this slot.
    #[inline]
    fn is_named(&self, key: SlotKey) -> bool {
        self.phase != Phase::Free && self.generation.0.get() == key.generation()
    }

    /// The command is completed.
    fn clear(&mut self) {
        let Self {
            generation,
            phase,
            sqe: _, // The next command overwrites it.
            came,
            job,
            transfer,
            in_capsule,
            way,
            judged,
            buf,
            expected,
            pending,
            status,
            measured,
            half,
            extra,
        } = self;
        *generation = generation.next();
        *phase = Phase::Free;
        *came = None;
        *job = None;
        *transfer = Transfer::default();
        *in_capsule = false;
        *way = Way::None;
        *judged = Judged::Good;
        (*buf, *expected) = (None, None);
        *pending = 0;
        *status = Status::SUCCESS;
        *measured = None;
        *half = None;
        *extra = None;
    }

    #[inline]
    pub(crate) fn cid(&self) -> CommandId {
        self.sqe.command_id()
    }

    /// The Copy under way.
    pub(crate) fn copying(&mut self) -> Option<&mut Copying> {
        match self.extra.as_deref_mut() {
            Some(Extra::Copy(copying)) => Some(copying),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.job.as_ref().map(|job| job.device)
    }

    /// Whether the command is a Write.
    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.job, Some(Job { command: IoCommand::Write { .. }, .. }))
    }

    /// Whether it is one of the large writes whose data are not to lie in staging memory first.
    #[inline]
    pub(crate) fn lands_direct(&self) -> bool {
        self.way == Way::Write(WritePath::Buffered { lands_direct: true })
    }

    /// Whether the command changes its range of the device.
    #[inline]
    pub(crate) fn changes_data(&self) -> bool {
        matches!(
            self.job.as_ref().map(|job| job.command),
            Some(
                IoCommand::Write { .. }
                    | IoCommand::Copy { .. }
                    | IoCommand::WriteUncorrectable { .. }
                    | IoCommand::WriteZeroes { .. }
                    | IoCommand::DatasetManagement { deallocate: true, .. }
            )
        )
    }

    /// Whether the command can still be kept from its device.
    pub(crate) fn is_recallable(&self) -> bool {
        let waits = match self.phase {
            Phase::Buffer
            | Phase::Throttled
            | Phase::Move
            | Phase::Data
            | Phase::Partner
            | Phase::Lock
            | Phase::Fence => true,
            Phase::Digest(digest) => digest != DigestUse::Send,
            Phase::Device | Phase::Event | Phase::Free => false,
        };
        // Its data may have gone to the device with their arrival.
        waits && !matches!(self.judged, Judged::Written(_)) && self.status.is_success()
    }

    /// Whether the command is at this device now, changing something within `bytes`.
    pub(crate) fn is_changing(&self, device: DeviceId, bytes: &Range<u64>) -> bool {
        self.phase == Phase::Device
            && self.changes_data()
            && self.job.as_ref().is_some_and(|job| {
                job.device == device && job.bytes.start < bytes.end && bytes.start < job.bytes.end
            })
    }
}

/// The right to go on with a command that has a slot. Completing the command consumes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandSlot(SlotKey);

impl CommandSlot {
    /// The name of the command, for a component that answers later.
    #[inline]
    pub(crate) fn key(&self) -> SlotKey {
        self.0
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
    /// The host uses this identifier for another command.
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

    #[inline]
    fn cid_bit(cid: CommandId) -> (usize, u64) {
        (usize::from(cid.0 / 64), 1 << (cid.0 % 64))
    }

    /// Takes a slot for a command that has just come.
    #[inline]
    pub(crate) fn take(&mut self, sqe: &Sqe) -> Result<CommandSlot, NoSlot> {
        let (word, bit) = Self::cid_bit(sqe.command_id());
        if self.cids[word] & bit != 0 {
            return Err(NoSlot::Duplicate);
        }
        let index = self.free.pop().ok_or(NoSlot::Overrun)?;
        self.cids[word] |= bit;
        let slot = &mut self.slots[usize::from(index)];
        slot.sqe = *sqe;
        slot.phase = Phase::Buffer;
        Ok(CommandSlot(slot.key(index)))
    }

    /// Whether [`Slots::take`] would take a command with this identifier.
    #[inline]
    pub(crate) fn has_room_for(&self, cid: CommandId) -> bool {
        let (word, bit) = Self::cid_bit(cid);
        self.cids[word] & bit == 0 && !self.free.is_empty()
    }

    /// The command is completed: frees its slot, its identifier and its buffers. A command that is
    /// completed already stays so.
    pub(crate) fn release(&mut self, command: CommandSlot) {
        let CommandSlot(key) = command;
        let slot = &mut self.slots[usize::from(key.index())];
        if !slot.is_named(key) {
            return report_twice(key);
        }
        let (word, bit) = Self::cid_bit(slot.cid());
        slot.clear();
        self.cids[word] &= !bit;
        self.free.push(key.index());
    }

    /// The command with this name, unless it is completed.
    #[inline]
    pub(crate) fn resume(&self, key: SlotKey) -> Option<CommandSlot> {
        let slot = self.slots.get(usize::from(key.index()))?;
        slot.is_named(key).then_some(CommandSlot(key))
    }

    /// The command in the slot with this number.
    #[inline]
    pub(crate) fn resume_at(&self, index: u16) -> Option<CommandSlot> {
        let slot = self.slots.get(usize::from(index))?;
        (slot.phase != Phase::Free).then(|| CommandSlot(slot.key(index)))
    }

    /// The command with this identifier, if it is outstanding.
    pub(crate) fn find(&self, cid: CommandId) -> Option<CommandSlot> {
        let (word, bit) = Self::cid_bit(cid);
        if self.cids[word] & bit == 0 {
            return None;
        }
        self.active().find(|(_, slot)| slot.cid() == cid).map(|(key, _)| CommandSlot(key))
    }

    /// What is known of a command that is not completed.
    #[inline]
    pub(crate) fn get(&mut self, key: SlotKey) -> &mut Slot {
        let slot = &mut self.slots[usize::from(key.index())];
        debug_assert!(slot.is_named(key), "the command is completed");
        slot
    }

    /// Slots in use, with the names of their commands.
    pub(crate) fn active(&self) -> impl Iterator<Item = (SlotKey, &Slot)> {
        let named = (0..).zip(&self.slots).filter(|(_, slot)| slot.phase != Phase::Free);
        named.map(|(index, slot)| (slot.key(index), slot))
    }

    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cold]
fn report_twice(key: SlotKey) {
    tracing::error!(?key, "a command was completed twice; the second time is ignored");
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
        assert_eq!(slots.find(CommandId(7)), Some(CommandSlot(a.key())));
        let key = a.key();
        slots.release(a);
        assert_eq!(slots.in_use(), 1);
        assert_eq!(slots.find(CommandId(7)), None);
        let again = slots.take(&sqe(7)).unwrap().key();
        assert_eq!(again.index(), key.index());
        assert_ne!(again, key);
    }

    #[test]
    fn a_second_completion_frees_nothing() {
        let mut slots = Slots::new(2);
        let key = slots.take(&sqe(1)).unwrap().key();
        let twice = [slots.resume(key).unwrap(), slots.resume(key).unwrap()];
        twice.into_iter().for_each(|command| slots.release(command));
        assert_eq!((slots.in_use(), slots.free.len()), (0, 2));
        assert_eq!(slots.resume(key), None, "it is stale");

        // Nor does it when the slot has its next command.
        let stale = CommandSlot(key);
        let next = slots.take(&sqe(2)).unwrap().key();
        assert_eq!(next.index(), key.index());
        slots.release(stale);
        assert_eq!((slots.in_use(), slots.free.len()), (1, 1));
        assert!(slots.resume(next).is_some() && slots.find(CommandId(2)).is_some());
        let other = slots.take(&sqe(3)).unwrap();
        assert_ne!(other.key().index(), next.index(), "two commands never share a slot");
        assert_eq!(slots.take(&sqe(4)), Err(NoSlot::Overrun));
    }
}
