//! What the target knows of each SCSI command of a session beyond its header: one slot for each task of the protocol.
//!
//! The protocol's end of the connection numbers its tasks; the slot of a task has its number. The slot's generation
//! exposes an answer of a device, of a lock or of a line that comes after the command has ended.

use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Instant;

use raceline_bdev::BdevError;
use raceline_iscsi::target::TaskId;
use raceline_reactor::{IoBuf, SharedBuf};

use super::copying::Copying;
use super::execute::{Kind, Work};
use crate::changes::snapshot::DeviceId;
use crate::path::range_lock::LockId;
use crate::path::slots::Measured;
use crate::records::names::SlotKey;

/// What a command is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    #[default]
    Free,
    /// The time that its limits leave for it.
    Throttled,
    /// An I/O buffer.
    Buffer,
    /// Its data from the initiator.
    Data,
    /// The lock on its range.
    Lock,
    /// A fence over its range to come down.
    Fence,
    /// Its device.
    Device,
    /// The thread that changes reservations.
    Reserver,
}

/// One command.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    generation: Generation,
    pub(crate) phase: Phase,
    /// Number of the LUN that it is for.
    pub(crate) lun: u16,
    /// The device of that, and the bytes there that it changes, or reads under a lock.
    pub(crate) device: Option<DeviceId>,
    pub(crate) bytes: Range<u64>,
    /// What it does, and how far it has come.
    pub(crate) work: Work,
    /// Bytes of data that the initiator sends for it.
    pub(crate) expected: usize,
    /// How many of them have come, and how many more were asked for or announced.
    pub(crate) received: usize,
    /// Bytes that come without being asked for: with the command, and behind it.
    pub(crate) unsolicited: usize,
    /// The I/O buffer; `None` while a receive lands bytes in it.
    pub(crate) buf: Option<IoBuf>,
    /// Data from the initiator that are complete.
    pub(crate) data: Option<SharedBuf>,
    /// Of an Extended Copy, how far it has come.
    pub(crate) copying: Option<Box<Copying>>,
    /// Device requests in flight.
    pub(crate) pending: u16,
    /// The first failure of those requests.
    pub(crate) failure: Option<BdevError>,
    pub(crate) lock: Option<LockId>,
    /// A task management function ended it while it was with a device: it is not answered.
    pub(crate) aborted: bool,
    pub(crate) measured: Option<Measured>,
    /// When it came, if its target node has a histogram.
    pub(crate) started: Option<Instant>,
}

/// Numbers the successive commands of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Generation(NonZeroU16);

impl Default for Generation {
    fn default() -> Self {
        Self(NonZeroU16::MIN)
    }
}

impl Slot {
    /// Where WRITE SAME has to write the next piece, after one that it has written. `None`: nowhere.
    pub(crate) fn next_piece(&self) -> Option<u64> {
        let Kind::WriteSame { has_data: true, next, .. } = self.work.kind else { return None };
        let data = self.data.as_ref()?;
        if self.work.is_second {
            // It has only rested before that one.
            return Some(next);
        }
        let next = next + data.len() as u64;
        // One request for all bytes has zeroed them if the data are zeroes.
        (next < self.bytes.end && data.iter().any(|byte| *byte != 0)).then_some(next)
    }

    /// Whether the command is at this device now, changing something within `bytes`.
    fn is_changing(&self, device: DeviceId, bytes: &Range<u64>) -> bool {
        self.phase == Phase::Device
            && self.device == Some(device)
            && self.work.changes_data()
            && self.bytes.start < bytes.end
            && bytes.start < self.bytes.end
    }
}

/// The slots of a session. A slot is made when its task first begins: most sessions have few commands at a time.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// With room for all.
    slots: Vec<Slot>,
    /// The protocol's names of the tasks, by slot.
    tasks: Vec<Option<TaskId>>,
    in_use: usize,
}

impl Slots {
    /// Slots for this number of tasks.
    pub(crate) fn new(count: usize) -> Self {
        Self { slots: Vec::with_capacity(count), tasks: Vec::with_capacity(count), in_use: 0 }
    }

    /// How many commands there are.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The slot for a task that has begun.
    pub(crate) fn take(&mut self, task: TaskId, lun: u16) -> SlotKey {
        let index = task.index();
        if index >= self.slots.len() {
            self.grow(index + 1);
        }
        let slot = &mut self.slots[index];
        debug_assert_eq!(slot.phase, Phase::Free, "the protocol gives a task's slot out once");
        *slot = Slot { generation: slot.generation, phase: Phase::Data, lun, ..Slot::default() };
        self.tasks[index] = Some(task);
        self.in_use += 1;
        self.key(index)
    }

    /// The protocol uses more of its slots than it did before.
    #[cold]
    fn grow(&mut self, count: usize) {
        self.slots.resize_with(count, Slot::default);
        self.tasks.resize(count, None);
    }

    fn key(&self, index: usize) -> SlotKey {
        let number = u16::try_from(index).expect("the protocol has fewer than 65536 tasks");
        SlotKey::new(number, self.slots[index].generation.0)
    }

    /// The command of this name; `None`: it has ended.
    #[inline]
    pub(crate) fn get(&mut self, key: SlotKey) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(key.index()))?;
        (slot.phase != Phase::Free && slot.generation.0.get() == key.generation()).then_some(slot)
    }

    /// The protocol's name of a command that has not ended.
    #[inline]
    pub(crate) fn task(&self, key: SlotKey) -> Option<TaskId> {
        *self.tasks.get(usize::from(key.index()))?
    }

    /// The command of a task.
    #[inline]
    pub(crate) fn of(&self, task: TaskId) -> Option<SlotKey> {
        let index = task.index();
        let slot = self.slots.get(index)?;
        (slot.phase != Phase::Free).then(|| self.key(index))
    }

    /// The command has ended. Gives the protocol's name, and the lock that it held.
    pub(crate) fn release(&mut self, key: SlotKey) -> Option<(TaskId, Option<(DeviceId, LockId)>)> {
        let slot = self.get(key)?;
        let held = slot.device.zip(slot.lock);
        let next = slot.generation.0.checked_add(1).unwrap_or(NonZeroU16::MIN);
        *slot = Slot { generation: Generation(next), ..Slot::default() };
        self.in_use -= 1;
        let task = self.tasks[usize::from(key.index())].take()?;
        Some((task, held))
    }

    /// All commands that have not ended.
    pub(crate) fn active(&self) -> impl Iterator<Item = (SlotKey, &Slot)> {
        let indexed = self.slots.iter().enumerate();
        let active = indexed.filter(|(_, slot)| slot.phase != Phase::Free);
        active.map(|(index, slot)| (self.key(index), slot))
    }

    /// The names of the commands that `is_meant` chooses.
    pub(crate) fn those(&self, is_meant: impl Fn(&Slot) -> bool) -> Vec<SlotKey> {
        self.active().filter(|(_, slot)| is_meant(slot)).map(|(key, _)| key).collect()
    }

    /// Counts the writes within the range that are at their device now.
    pub(crate) fn changing(&self, device: DeviceId, bytes: &Range<u64>) -> usize {
        self.slots.iter().filter(|slot| slot.is_changing(device, bytes)).count()
    }
}
