//! Which commands a request is, within what the logical unit takes at once.

use raceline_bdev::{BdevError, Op};
use raceline_reactor::{IoBuf, PartPool, SharedBuf};

use super::memory::Memory;
use crate::cdb;
use crate::facts::UnitInfo;
use crate::task::{Task, TaskData, TaskError};

/// Bytes of one command at most, where the unit allows more.
const MAX_COMMAND_BYTES: u32 = 1 << 20;
/// Blocks of one WRITE SAME, where the unit does not say how many it takes.
const MAX_WRITE_SAME_BLOCKS: u32 = 0xffff;

/// What a logical unit takes.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    block_size: u32,
    /// Blocks of one command that moves data.
    transfer_blocks: u32,
    write_same_blocks: u32,
    unmap_blocks: Option<u32>,
    /// WRITE SAME may unmap: the blocks then read as zeroes.
    zeroes_by_unmap: bool,
    /// Writes have to be made durable, by FUA or by a flush behind them.
    cached: bool,
    has_fua: bool,
    /// One block of zeroes.
    zeroes: SharedBuf,
}

/// What is done to the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write { fua: bool },
    Zero { unmap: bool },
    Unmap,
    Flush,
}

/// A request and its commands.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) tag: u64,
    memory: Memory,
    kind: Kind,
    lba: u64,
    blocks_left: u64,
    /// Where the bytes of the next command begin.
    offset: usize,
    in_flight: u32,
    /// A flush makes durable what was written.
    then_flush: bool,
    error: Option<BdevError>,
}

impl Limits {
    pub(super) fn new(unit: &UnitInfo) -> Self {
        let block_size = unit.block_size;
        let most = MAX_COMMAND_BYTES / block_size;
        let transfer_blocks = match unit.max_transfer_blocks {
            0 => most,
            told => told.min(most),
        };
        let write_same_blocks = match u32::try_from(unit.max_write_same_blocks) {
            Ok(0) => MAX_WRITE_SAME_BLOCKS,
            Ok(told) => told,
            Err(_) => u32::MAX,
        };
        Self {
            block_size,
            transfer_blocks,
            write_same_blocks,
            unmap_blocks: unit.max_unmap_blocks,
            zeroes_by_unmap: unit.write_same_unmaps && unit.unmapped_read_zeroes,
            cached: unit.volatile_write_cache,
            has_fua: unit.has_fua,
            zeroes: IoBuf::from_slice(&vec![0; to_usize(block_size)]).share(),
        }
    }

    fn step(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Read | Kind::Write { .. } => self.transfer_blocks,
            Kind::Zero { .. } => self.write_same_blocks,
            Kind::Unmap => self.unmap_blocks.unwrap_or(1),
            Kind::Flush => 1,
        }
    }
}

impl Operation {
    /// The commands that a request is.
    ///
    /// # Errors
    /// When no commands are; the memory comes back.
    pub(super) fn new(tag: u64, op: Op, limits: &Limits) -> Result<Self, (BdevError, Memory)> {
        let block = u64::from(limits.block_size);
        let (kind, start, bytes, memory, fua) = match op {
            Op::Read { offset, len, buf: Some(buf) } if buf.len() == len => {
                (Kind::Read, offset, len as u64, Memory::Read(buf), false)
            }
            Op::Read { buf, .. } => {
                return Err((BdevError::Internal, buf.map_or(Memory::None, Memory::Read)));
            }
            Op::Write { offset, data, fua } => {
                let len = data.len() as u64;
                let has_fua = limits.has_fua && limits.cached;
                let kind = Kind::Write { fua: fua && has_fua };
                (kind, offset, len, Memory::Write(data), fua && !has_fua)
            }
            Op::Flush => (Kind::Flush, 0, block, Memory::None, false),
            Op::WriteZeroes { offset, len, deallocate, fua } => {
                let unmap = deallocate && limits.zeroes_by_unmap;
                (Kind::Zero { unmap }, offset, len, Memory::None, fua)
            }
            Op::Deallocate { offset, len } if limits.unmap_blocks.is_some() => {
                (Kind::Unmap, offset, len, Memory::None, false)
            }
            Op::Deallocate { .. }
            | Op::ReadPages { .. }
            | Op::WritePages { .. }
            | Op::Copy { .. }
            | Op::Find { .. }
            | Op::WriteUncorrectable { .. } => return Err((BdevError::NotSupported, Memory::None)),
        };
        if bytes == 0 || !bytes.is_multiple_of(block) || !start.is_multiple_of(block) {
            return Err((BdevError::Internal, memory));
        }
        Ok(Self {
            tag,
            memory,
            kind,
            lba: start / block,
            blocks_left: bytes / block,
            offset: 0,
            in_flight: 0,
            then_flush: fua && limits.cached,
            error: None,
        })
    }

    /// Whether all its commands were submitted.
    pub(super) fn is_submitted(&self) -> bool {
        self.blocks_left == 0
    }

    /// The next command; `None`: its data have no place for now.
    pub(super) fn next_task(&mut self, limits: &Limits, parts: &PartPool) -> Option<Task> {
        let step = u64::from(limits.step(self.kind));
        let blocks = u32::try_from(self.blocks_left.min(step)).unwrap_or(u32::MAX);
        let len = to_usize(blocks).saturating_mul(to_usize(limits.block_size));
        let task = match self.kind {
            Kind::Read => {
                let data = self.memory.give(parts, self.offset, len)?;
                Task { cdb: cdb::read(self.lba, blocks), data, whole: true }
            }
            Kind::Write { fua } => {
                let data = self.memory.give(parts, self.offset, len)?;
                Task { cdb: cdb::write(self.lba, blocks, fua), data, whole: true }
            }
            Kind::Zero { unmap } => {
                Task::send(cdb::write_same(self.lba, blocks, unmap), limits.zeroes.clone())
            }
            Kind::Unmap => {
                let list = cdb::unmap_list(self.lba, blocks);
                let len = u16::try_from(list.len()).unwrap_or(u16::MAX);
                Task::send(cdb::unmap(len), IoBuf::from_slice(&list).share())
            }
            Kind::Flush => Task::plain(cdb::synchronize_cache()),
        };
        self.lba += u64::from(blocks);
        self.offset = self.offset.saturating_add(len);
        self.blocks_left -= u64::from(blocks);
        self.in_flight += 1;
        Some(task)
    }

    /// A command was not taken after all.
    pub(super) fn give_up(&mut self, data: TaskData) {
        self.memory.take_back(data);
        self.in_flight -= 1;
        self.blocks_left = 0;
        self.error.get_or_insert(BdevError::Gone);
    }

    /// A command has ended. Whether a flush is to follow.
    pub(super) fn handle_done(&mut self, result: Result<u32, TaskError>, data: TaskData) -> bool {
        let reads = self.kind == Kind::Read;
        self.memory.take_back(data);
        self.in_flight -= 1;
        if let Err(error) = result {
            self.error.get_or_insert(bdev_error(error, reads));
            self.blocks_left = 0; // the rest is not sent
        }
        let flush = self.has_ended() && self.error.is_none() && self.then_flush;
        if flush {
            self.then_flush = false;
            (self.kind, self.blocks_left) = (Kind::Flush, 1);
        }
        flush
    }

    /// Whether nothing of it is left.
    pub(super) fn has_ended(&self) -> bool {
        self.blocks_left == 0 && self.in_flight == 0
    }

    /// How it ended, and its memory.
    pub(super) fn finish(self) -> (u64, Result<(), BdevError>, Memory) {
        (self.tag, self.error.map_or(Ok(()), Err), self.memory)
    }
}

/// What a failed command means for who has asked for blocks.
fn bdev_error(error: TaskError, reads: bool) -> BdevError {
    let TaskError::Check(check) = error else {
        return match error {
            TaskError::UnknownFate => BdevError::Unknown,
            TaskError::NotSent | TaskError::Timeout => BdevError::Transient,
            TaskError::Disconnected => BdevError::Gone,
            // Reservation conflict, as NVMe has it.
            TaskError::Status { status: 0x18 } => BdevError::Status { sct: 0, sc: 0x83 },
            TaskError::Status { .. } => BdevError::Transient,
            _ => BdevError::Internal,
        };
    };
    let fault = if reads { BdevError::ReadFault } else { BdevError::WriteFault };
    match (check.key, check.asc, check.ascq) {
        (0x3 | 0x4, ..) => fault,
        (0x7, 0x27, 0x07) => BdevError::NoSpace,
        (0x7, ..) => BdevError::ReadOnly,
        (0x5, 0x20 | 0x24, _) => BdevError::NotSupported,
        (0x5, 0x25, _) | (0x2, 0x3a, _) => BdevError::Gone,
        (0x2, ..) => BdevError::Transient,
        // Blocks of a write may have been written.
        (0xb, ..) => {
            if reads {
                BdevError::Transient
            } else {
                BdevError::Unknown
            }
        }
        _ => BdevError::Internal,
    }
}

/// A length that is a buffer's, so it fits.
fn to_usize(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit a usize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckCondition;

    fn unit() -> UnitInfo {
        UnitInfo {
            block_size: 512,
            max_transfer_blocks: 4,
            max_unmap_blocks: Some(10),
            max_write_same_blocks: 100,
            volatile_write_cache: true,
            ..UnitInfo::default()
        }
    }

    fn tasks(op: Op, limits: &Limits) -> Vec<Task> {
        let parts = PartPool::new(64);
        let mut operation = Operation::new(1, op, limits).expect("commands");
        let mut tasks = Vec::new();
        while !operation.is_submitted() {
            tasks.push(operation.next_task(limits, &parts).expect("a place"));
        }
        tasks
    }

    #[test]
    fn requests_are_cut_to_what_the_unit_takes() {
        let limits = Limits::new(&unit());
        let buf = || Some(IoBuf::heap(10 * 512));
        let read = tasks(Op::Read { offset: 512, len: 5120, buf: buf() }, &limits);
        let lens: Vec<usize> = read.iter().map(|task| task.data.len()).collect();
        assert_eq!(lens, [2048, 2048, 1024]);
        assert_eq!(read[2].cdb, cdb::read(9, 2));
        let zero = Op::WriteZeroes { offset: 0, len: 512 * 250, deallocate: true, fua: false };
        let zero = tasks(zero, &limits);
        assert_eq!((zero.len(), zero[2].cdb), (3, cdb::write_same(200, 50, false)));
        assert_eq!(tasks(Op::Deallocate { offset: 0, len: 512 * 11 }, &limits).len(), 2);
        let whole = tasks(Op::Read { offset: 0, len: 2048, buf: Some(IoBuf::heap(2048)) }, &limits);
        assert_eq!(whole.len(), 1);
    }

    #[test]
    fn durable_writes_are_flushed_where_there_is_no_fua() {
        let limits = Limits::new(&unit());
        let parts = PartPool::new(4);
        let data = IoBuf::heap(512).share();
        let write = |fua| Op::Write { offset: 0, data: data.clone(), fua };
        let mut operation = Operation::new(1, write(true), &limits).expect("commands");
        let task = operation.next_task(&limits, &parts).expect("a place");
        assert_eq!(task.cdb, cdb::write(0, 1, false));
        assert!(operation.handle_done(Ok(0), task.data) && !operation.has_ended());
        let flush = operation.next_task(&limits, &parts).expect("no data");
        assert_eq!(flush.cdb, cdb::synchronize_cache());
        assert!(!operation.handle_done(Ok(0), flush.data) && operation.has_ended());
        assert_eq!(operation.finish().1, Ok(()));
        let durable = Limits::new(&UnitInfo { has_fua: true, ..unit() });
        assert_eq!(tasks(write(true), &durable)[0].cdb, cdb::write(0, 1, true));
        let uncached = Limits::new(&UnitInfo { volatile_write_cache: false, ..unit() });
        let mut operation = Operation::new(1, write(true), &uncached).expect("commands");
        let task = operation.next_task(&uncached, &parts).expect("a place");
        assert!(!operation.handle_done(Ok(0), task.data));
    }

    #[test]
    fn what_failed_ends_the_request_and_the_first_error_counts() {
        let limits = Limits::new(&unit());
        let parts = PartPool::new(8);
        let op = Op::Read { offset: 0, len: 6144, buf: Some(IoBuf::heap(6144)) };
        let mut operation = Operation::new(7, op, &limits).expect("commands");
        let first = operation.next_task(&limits, &parts).expect("a place");
        let second = operation.next_task(&limits, &parts).expect("a place");
        let check = CheckCondition { key: 3, asc: 0x11, ascq: 0, information: None };
        operation.handle_done(Err(TaskError::Check(check)), first.data);
        assert!(operation.is_submitted() && !operation.has_ended());
        operation.handle_done(Err(TaskError::Timeout), second.data);
        let (tag, result, memory) = operation.finish();
        assert_eq!((tag, result), (7, Err(BdevError::ReadFault)));
        assert_eq!(memory.into_payload().expect("all parts").map(|it| it.len()), Some(6144));
    }

    #[test]
    fn what_is_no_command_is_refused_with_its_memory() {
        let limits = Limits::new(&UnitInfo { max_unmap_blocks: None, ..unit() });
        let error = |op| Operation::new(1, op, &limits).expect_err("refused").0;
        assert_eq!(error(Op::Deallocate { offset: 0, len: 512 }), BdevError::NotSupported);
        let odd = Op::Read { offset: 0, len: 100, buf: Some(IoBuf::heap(100)) };
        assert_eq!(error(odd), BdevError::Internal);
        assert_eq!(bdev_error(TaskError::UnknownFate, false), BdevError::Unknown);
    }
}
