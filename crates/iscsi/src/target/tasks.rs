//! The tasks of a connection: slots, tags, and the order of their Data-Out (RFC 7143, 11.2.1.8, 11.7, 11.8).

use crate::pdu::{DataOut, RESERVED_TAG, RejectReason, flags};

use super::DataFault;

/// Most R2Ts that may be outstanding for one command.
pub(super) const MAX_R2TS: usize = 8;
/// The end of a chain of slots.
const NONE: u16 = u16::MAX;

/// A task's slot. It stays the task's until the task ends; a driver can index a table of its own with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub(super) u16);

impl TaskId {
    /// Number of the slot, below [`TargetConnection::task_slots`](super::TargetConnection::task_slots).
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskKind {
    Free,
    Scsi,
    Tmf,
}

/// One R2T that is outstanding.
#[derive(Clone, Copy, Debug, Default)]
struct R2tRange {
    ttt: u32,
    /// Offset behind its last byte.
    end: u32,
}

/// One slot.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) kind: TaskKind,
    pub(super) immediate: bool,
    /// Its data have violated the protocol: what still comes is dropped.
    failed: bool,
    /// The next slot with the same hash.
    chain: u16,
    pub(super) itt: u32,
    pub(super) edtl: u32,
    pub(super) lun: u64,
    /// Data-In or R2T PDUs sent: the next DataSN or R2TSN.
    pub(super) sent: u32,
    /// Offset of the next byte that comes.
    next: u32,
    /// Offset behind the last byte that was announced or asked for.
    asked: u32,
    /// DataSN of the next Data-Out.
    data_sn: u32,
    /// Unsolicited Data-Out is to come: offset behind the last byte.
    unsolicited: Option<u32>,
    r2t_first: u8,
    r2t_count: u8,
    r2ts: [R2tRange; MAX_R2TS],
}

impl Task {
    /// A slot that no task has had.
    const FREE: Self = Self {
        kind: TaskKind::Free,
        immediate: false,
        failed: false,
        chain: NONE,
        itt: RESERVED_TAG,
        edtl: 0,
        lun: 0,
        sent: 0,
        next: 0,
        asked: 0,
        data_sn: 0,
        unsolicited: None,
        r2t_first: 0,
        r2t_count: 0,
        r2ts: [R2tRange { ttt: 0, end: 0 }; MAX_R2TS],
    };
}

/// What becomes of a Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its data belong at this offset of the command's data.
    Take { task: TaskId, offset: u32, sequence_end: bool },
    /// It is late: its task has ended early.
    Drop,
    /// It names nothing.
    Reject(RejectReason),
    /// It contradicts its task, which fails.
    Fault { task: TaskId, fault: DataFault },
}

/// All slots of a connection. One is made when it is first needed, and the one that was freed last is used first: most
/// connections have few tasks at a time.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// With room for all.
    slots: Vec<Task>,
    /// How many there may be.
    count: u16,
    /// Those that were made and are free.
    free: Vec<u16>,
    /// First slot of each chain, by the hash of the ITT.
    heads: Vec<u16>,
    hash_shift: u32,
    slot_bits: u32,
    generation: u32,
    immediates: u16,
    max_immediates: u16,
    /// Tags of tasks that ended while data might still come for them; the newest replaces the oldest.
    late: Vec<u32>,
    late_next: usize,
}

impl Tasks {
    /// Slots for a window of `window` commands and `immediates` more.
    pub(super) fn new(window: u16, immediates: u16) -> Self {
        let count = window.checked_add(immediates).filter(|&count| count < NONE);
        let count = count.expect("a window and its immediate tasks are below 65535");
        let bits = u32::from(count.max(2)).next_power_of_two().ilog2();
        Self {
            slots: Vec::with_capacity(count.into()),
            count,
            free: Vec::with_capacity(count.into()),
            heads: vec![NONE; 2 << bits],
            hash_shift: 31 - bits,
            slot_bits: bits,
            generation: 0,
            immediates: 0,
            max_immediates: immediates,
            late: vec![RESERVED_TAG; usize::from(count)],
            late_next: 0,
        }
    }

    /// How many slots there are.
    pub(super) fn count(&self) -> usize {
        self.count.into()
    }

    /// How many tasks are alive.
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The hash spreads tags that differ in any byte: Linux counts in the first byte on the wire, others in the last.
    #[inline]
    fn hash(&self, itt: u32) -> usize {
        (itt.wrapping_mul(0x9e37_79b1) >> self.hash_shift) as usize
    }

    /// The live task with this tag.
    #[inline]
    pub(super) fn find(&self, itt: u32) -> Option<TaskId> {
        let mut slot = *self.heads.get(self.hash(itt))?;
        while slot != NONE {
            let task = &self.slots[usize::from(slot)];
            if task.itt == itt {
                return Some(TaskId(slot));
            }
            slot = task.chain;
        }
        None
    }

    /// A live task.
    ///
    /// # Panics
    /// When the slot is free: the driver has ended the task before.
    #[inline]
    pub(super) fn get(&mut self, task: TaskId) -> &mut Task {
        let slot = &mut self.slots[task.index()];
        assert!(slot.kind != TaskKind::Free, "task {} has ended", task.0);
        slot
    }

    /// Takes a slot for a new task, whose tag [`Tasks::find`] did not find.
    #[inline]
    pub(super) fn begin(
        &mut self,
        kind: TaskKind,
        immediate: bool,
        itt: u32,
        lun: u64,
        edtl: u32,
    ) -> Result<TaskId, RejectReason> {
        if immediate && self.immediates == self.max_immediates {
            return Err(RejectReason::ImmediateCommand);
        }
        let slot = self.free.pop().unwrap_or_else(|| self.make());
        self.immediates += u16::from(immediate);
        let hash = self.hash(itt);
        let head = std::mem::replace(&mut self.heads[hash], slot);
        let task = &mut self.slots[usize::from(slot)];
        task.kind = kind;
        task.immediate = immediate;
        task.failed = false;
        task.chain = head;
        task.itt = itt;
        task.edtl = edtl;
        task.lun = lun;
        task.sent = 0;
        task.next = 0;
        task.asked = 0;
        task.data_sn = 0;
        task.unsolicited = None;
        task.r2t_count = 0;
        Ok(TaskId(slot))
    }

    /// One more slot.
    ///
    /// # Panics
    /// When all are there and in use, which the window rules out.
    #[cold]
    fn make(&mut self) -> u16 {
        let made = u16::try_from(self.slots.len()).ok().filter(|&made| made < self.count);
        let slot = made.expect("the window is no larger than the slots");
        self.slots.push(Task::FREE);
        slot
    }

    /// Frees a task's slot; gives whether it was an immediate one.
    #[inline]
    pub(super) fn end(&mut self, id: TaskId) -> bool {
        let task = self.get(id);
        let (itt, chain, immediate) = (task.itt, task.chain, task.immediate);
        let late = task.failed || task.r2t_count > 0 || task.unsolicited.is_some();
        task.kind = TaskKind::Free;
        task.itt = RESERVED_TAG;
        if late {
            self.late[self.late_next] = itt;
            self.late_next = (self.late_next + 1) % self.late.len();
        }
        let hash = self.hash(itt);
        let mut at = self.heads[hash];
        if at == id.0 {
            self.heads[hash] = chain;
        } else {
            while self.slots[usize::from(at)].chain != id.0 {
                at = self.slots[usize::from(at)].chain;
            }
            self.slots[usize::from(at)].chain = chain;
        }
        self.immediates -= u16::from(immediate);
        self.free.push(id.0);
        immediate
    }

    /// The command came with `immediate` bytes of data, and `unsolicited` bytes follow in Data-Out.
    #[inline]
    pub(super) fn announce(&mut self, task: TaskId, immediate: u32, unsolicited: u32) {
        let task = self.get(task);
        task.next = immediate;
        task.asked = immediate + unsolicited;
        task.unsolicited = (unsolicited > 0).then_some(task.asked);
    }

    /// Registers an R2T for the next `len` bytes; gives its TTT, R2TSN and offset.
    pub(super) fn ask(&mut self, id: TaskId, offset: u32, len: u32, limit: u16) -> (u32, u32) {
        self.generation = self.generation.wrapping_add(1);
        let mut ttt = (self.generation << self.slot_bits) | u32::from(id.0);
        if ttt == RESERVED_TAG {
            self.generation = self.generation.wrapping_add(1);
            ttt = (self.generation << self.slot_bits) | u32::from(id.0);
        }
        let task = self.get(id);
        assert!(task.kind == TaskKind::Scsi, "an R2T is for a SCSI command");
        assert!(len > 0, "an R2T asks for data");
        assert!(task.unsolicited.is_none(), "an R2T waits for the end of the unsolicited data");
        assert!(offset == task.asked, "R2Ts go through a command's data in order");
        let end = offset.checked_add(len).filter(|&end| end <= task.edtl);
        let end = end.expect("an R2T stays within the expected data transfer length");
        assert!(u16::from(task.r2t_count) < limit, "MaxOutstandingR2T allows no further R2T");
        let at = usize::from(task.r2t_first + task.r2t_count) % MAX_R2TS;
        task.r2ts[at] = R2tRange { ttt, end };
        if task.r2t_count == 0 {
            task.data_sn = 0;
        }
        task.r2t_count += 1;
        task.asked = end;
        let r2t_sn = task.sent;
        task.sent = r2t_sn.wrapping_add(1);
        (ttt, r2t_sn)
    }

    /// Forgets what a task has asked for: its data are dropped from now on.
    pub(super) fn fail(&mut self, task: TaskId) {
        let task = self.get(task);
        task.failed = true;
        task.r2t_count = 0;
        task.unsolicited = None;
    }

    /// Judges a Data-Out with `len` bytes, and counts it.
    pub(super) fn data_out(&mut self, pdu: &DataOut, len: u32) -> Verdict {
        let slot = if pdu.ttt == RESERVED_TAG {
            self.find(pdu.itt)
        } else {
            let slot = pdu.ttt & ((1 << self.slot_bits) - 1);
            let slot = u16::try_from(slot).expect("slots have at most 16 bits");
            let task = self.slots.get(usize::from(slot));
            task.filter(|task| task.itt == pdu.itt).map(|_| TaskId(slot))
        };
        let Some(id) = slot.filter(|id| self.slots[id.index()].kind == TaskKind::Scsi) else {
            return self.unknown(pdu.itt);
        };
        let task = &mut self.slots[id.index()];
        if task.failed {
            return Verdict::Drop;
        }
        let unsolicited = pdu.ttt == RESERVED_TAG;
        let range = if unsolicited {
            task.unsolicited
        } else {
            let r2t = &task.r2ts[usize::from(task.r2t_first)];
            (task.r2t_count > 0 && r2t.ttt == pdu.ttt).then_some(r2t.end)
        };
        let Some(sequence_end) = range else {
            if unsolicited {
                self.fail(id);
                return Verdict::Fault { task: id, fault: DataFault::Unexpected };
            }
            return self.unknown(pdu.itt);
        };
        let end = pdu.buffer_offset.checked_add(len).filter(|&end| end <= sequence_end);
        let last = pdu.flags & flags::FINAL != 0;
        let fault = if pdu.data_sn != task.data_sn {
            Some(DataFault::DataSn)
        } else if pdu.buffer_offset != task.next {
            Some(DataFault::Offset)
        } else if end.is_none_or(|end| last != (end == sequence_end)) {
            Some(DataFault::WrongAmount)
        } else {
            None
        };
        if let Some(fault) = fault {
            self.fail(id);
            return Verdict::Fault { task: id, fault };
        }
        let offset = task.next;
        task.next = offset + len;
        task.data_sn = task.data_sn.wrapping_add(1);
        if last {
            task.data_sn = 0;
            if unsolicited {
                task.unsolicited = None;
            } else {
                task.r2t_first = (task.r2t_first + 1) % 8;
                task.r2t_count -= 1;
            }
        }
        Verdict::Take { task: id, offset, sequence_end: last }
    }

    /// A Data-Out that names no live task or R2T.
    fn unknown(&self, itt: u32) -> Verdict {
        if itt != RESERVED_TAG && self.late.contains(&itt) {
            Verdict::Drop
        } else {
            Verdict::Reject(RejectReason::InvalidField)
        }
    }
}
