//! What a program asks caller-driven queues to do, and what becomes of it.

use raceline_proto::host::{BlockRange, command};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Cqe, Direction, NamespaceId, Sqe};

use super::Memory;
use crate::error::CommandFailure;

/// Something to do with blocks. Data of more than the controller takes at once go in several
/// commands: then they are not one atomic write.
#[derive(Debug)]
pub enum Operation {
    /// Reads blocks into all of `memory`.
    Read {
        /// Where.
        nsid: NamespaceId,
        /// First block.
        slba: u64,
        /// Where to: as many bytes as the blocks have.
        memory: Memory,
    },
    /// Writes blocks from all of `memory`.
    Write {
        /// Where.
        nsid: NamespaceId,
        /// First block.
        slba: u64,
        /// Where from.
        memory: Memory,
        /// On stable media when it completes.
        fua: bool,
    },
    /// Compares blocks with all of `memory`; fails with Compare Failure where they differ.
    Compare {
        /// Where.
        nsid: NamespaceId,
        /// First block.
        slba: u64,
        /// What with.
        memory: Memory,
    },
    /// Makes blocks read zeroes.
    WriteZeroes {
        /// Where.
        nsid: NamespaceId,
        /// First block.
        slba: u64,
        /// How many.
        block_count: u32,
        /// The controller may free them.
        deallocate: bool,
        /// On stable media when it completes.
        fua: bool,
    },
    /// Frees blocks.
    Deallocate {
        /// Where.
        nsid: NamespaceId,
        /// Ranges of (first block, number of blocks), up to 256.
        ranges: Vec<(u64, u32)>,
    },
    /// What completed before is on stable media when this completes.
    Flush {
        /// Of which namespace.
        nsid: NamespaceId,
    },
}

/// Why an operation is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Room comes back with [`super::CallerQueues::poll`].
    #[error("the queue is full: take finished operations first")]
    Full,
    /// The controller was given up, or the queues were closed.
    #[error("the queue is closed: its controller was given up, or the program has closed it")]
    Closed,
    /// The group has fewer queues.
    #[error("there is no queue {queue}: the group has {count}, from 0")]
    NoQueue {
        /// Its position.
        queue: usize,
        /// How many there are.
        count: usize,
    },
    /// The controller has no such active namespace.
    #[error("there is no namespace {0}")]
    NoNamespace(NamespaceId),
    /// The memory is not that of whole blocks.
    #[error("{bytes} bytes are not one or more whole blocks of {block_size} bytes")]
    NotWholeBlocks {
        /// What was given.
        bytes: usize,
        /// What the namespace has.
        block_size: u32,
    },
    /// Blocks beyond the end of what a command can name, none at all, or too many ranges.
    #[error("no command can name these blocks: none, beyond 2^64, or more than 256 ranges")]
    BadBlocks,
}

/// An operation that was not taken, given back with its memory.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// Why.
    pub reason: Refusal,
    /// What.
    pub operation: Operation,
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The name that the program gave it.
    pub user: u64,
    /// Position of its queue.
    pub queue: usize,
    /// The completion of its last command, or the first error.
    pub result: Result<Cqe, CommandFailure>,
    /// Its memory; a read that succeeded has filled all of it.
    pub memory: Option<Memory>,
}

/// An operation that is being executed, command after command.
#[derive(Debug)]
pub(super) struct Plan {
    kind: Kind,
    nsid: NamespaceId,
    slba: u64,
    blocks_left: u64,
    /// Blocks of one command at most.
    blocks_per_command: u32,
    block_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write {
        fua: bool,
    },
    Compare,
    WriteZeroes {
        deallocate: bool,
        fua: bool,
    },
    /// One command, whose data are the ranges.
    Deallocate {
        last_range: u8,
    },
    /// One command.
    Flush,
}

/// One command of an operation, and which bytes of its memory it moves.
pub(super) struct Step {
    pub(super) sqe: Sqe,
    pub(super) direction: Direction,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// What a namespace and its controller allow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) block_size: u32,
    pub(super) max_transfer_bytes: u32,
}

impl Limits {
    /// The blocks that so many bytes are, if one command can name them.
    #[inline(always)]
    fn single_range(self, slba: u64, len: usize) -> Option<BlockRange> {
        let len = u32::try_from(len).ok().filter(|&len| len <= self.max_transfer_bytes)?;
        // LBADS is a power of two (NVM Command Set 1.0, 4.1.5.1), so this is the division.
        let block_count = len >> self.block_size.trailing_zeros();
        let is_whole = block_count << self.block_size.trailing_zeros() == len;
        BlockRange::new(slba, block_count).filter(|_| is_whole)
    }
}

impl Operation {
    #[inline(always)]
    pub(super) fn nsid(&self) -> NamespaceId {
        match *self {
            Self::Read { nsid, .. }
            | Self::Write { nsid, .. }
            | Self::Compare { nsid, .. }
            | Self::WriteZeroes { nsid, .. }
            | Self::Deallocate { nsid, .. }
            | Self::Flush { nsid } => nsid,
        }
    }

    pub(super) fn opcode(&self) -> u8 {
        match self {
            Self::Read { .. } => io::READ,
            Self::Write { .. } => io::WRITE,
            Self::Compare { .. } => io::COMPARE,
            Self::WriteZeroes { .. } => io::WRITE_ZEROES,
            Self::Deallocate { .. } => io::DATASET_MANAGEMENT,
            Self::Flush { .. } => io::FLUSH,
        }
    }

    /// The command that it is, if it is one within these limits. What is none, or cannot be executed at
    /// all, is for [`Self::plan`] to say.
    #[inline(always)]
    pub(super) fn single(&self, limits: Limits) -> Option<(Sqe, Direction)> {
        let range = |slba, memory: &Memory| limits.single_range(slba, memory.len());
        Some(match *self {
            Self::Read { nsid, slba, ref memory } => {
                (command::read(nsid, range(slba, memory)?), Direction::ControllerToHost)
            }
            Self::Write { nsid, slba, ref memory, fua } => {
                (command::write(nsid, range(slba, memory)?, fua), Direction::HostToController)
            }
            Self::Flush { nsid } => (command::flush(nsid), Direction::None),
            _ => return None,
        })
    }

    /// The memory of an operation that [`Self::single`] has found to be one command.
    #[inline(always)]
    pub(super) fn into_data(self) -> Option<Memory> {
        match self {
            Self::Read { memory, .. } | Self::Write { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// How it is executed, within these limits, and the memory that it moves.
    pub(super) fn plan(self, limits: Limits) -> Result<(Plan, Option<Memory>), Refused> {
        let nsid = self.nsid();
        let (kind, slba, block_count) = match self.shape(limits) {
            Ok(shape) => shape,
            Err(reason) => return Err(Refused { reason, operation: self }),
        };
        let block_bytes = to_usize(limits.block_size);
        let moves = !matches!(kind, Kind::WriteZeroes { .. });
        let limit = if moves { limits.max_transfer_bytes / limits.block_size } else { u32::MAX };
        let plan = Plan {
            kind,
            nsid,
            slba,
            blocks_left: block_count,
            blocks_per_command: limit.clamp(1, BlockRange::MAX_BLOCKS),
            block_bytes,
        };
        Ok((plan, self.into_memory()))
    }

    /// What is done to which blocks.
    fn shape(&self, limits: Limits) -> Result<(Kind, u64, u64), Refusal> {
        let (kind, slba, block_count) = match *self {
            Self::Read { slba, ref memory, .. } => (Kind::Read, slba, blocks(memory, limits)?),
            Self::Write { slba, ref memory, fua, .. } => {
                (Kind::Write { fua }, slba, blocks(memory, limits)?)
            }
            Self::Compare { slba, ref memory, .. } => {
                (Kind::Compare, slba, blocks(memory, limits)?)
            }
            Self::WriteZeroes { slba, block_count, deallocate, fua, .. } => {
                (Kind::WriteZeroes { deallocate, fua }, slba, u64::from(block_count))
            }
            Self::Deallocate { ref ranges, .. } => {
                let last = ranges.len().checked_sub(1).and_then(|last| u8::try_from(last).ok());
                (Kind::Deallocate { last_range: last.ok_or(Refusal::BadBlocks)? }, 0, 1)
            }
            Self::Flush { .. } => (Kind::Flush, 0, 1),
        };
        let end = slba.checked_add(block_count);
        if block_count == 0 || end.is_none() {
            Err(Refusal::BadBlocks)
        } else {
            Ok((kind, slba, block_count))
        }
    }

    fn into_memory(self) -> Option<Memory> {
        match self {
            Self::Read { memory, .. }
            | Self::Write { memory, .. }
            | Self::Compare { memory, .. } => Some(memory),
            Self::WriteZeroes { .. } | Self::Flush { .. } => None,
            Self::Deallocate { ranges, .. } => {
                let bytes =
                    ranges.iter().flat_map(|&(slba, count)| command::deallocate_range(slba, count));
                Some(Memory::from(bytes.collect::<Vec<u8>>()))
            }
        }
    }
}

impl Plan {
    /// Whether commands are left.
    pub(super) fn is_done(&self) -> bool {
        self.blocks_left == 0
    }

    /// The next command; `offset` is where its bytes begin, which is where those of the one before
    /// end.
    pub(super) fn next(&mut self, offset: usize, memory_len: usize) -> Option<Step> {
        if self.blocks_left == 0 {
            return None;
        }
        let most = u64::from(self.blocks_per_command);
        let count = u32::try_from(self.blocks_left.min(most)).unwrap_or(self.blocks_per_command);
        let range = BlockRange::new(self.slba, count)?;
        self.slba = self.slba.wrapping_add(u64::from(count)); // checked as a whole
        self.blocks_left -= u64::from(count);
        let len = to_usize(count) * self.block_bytes;
        let nsid = self.nsid;
        let (sqe, direction, len) = match self.kind {
            Kind::Read => (command::read(nsid, range), Direction::ControllerToHost, len),
            Kind::Write { fua } => {
                (command::write(nsid, range, fua), Direction::HostToController, len)
            }
            Kind::Compare => (command::compare(nsid, range), Direction::HostToController, len),
            Kind::WriteZeroes { deallocate, fua } => {
                (command::write_zeroes(nsid, range, deallocate, fua), Direction::None, 0)
            }
            Kind::Deallocate { last_range } => {
                let sqe = command::deallocate(nsid, last_range);
                (sqe, Direction::HostToController, memory_len)
            }
            Kind::Flush => (command::flush(nsid), Direction::None, 0),
        };
        Some(Step { sqe, direction, offset, len })
    }

    /// Nothing more is sent: a command has failed.
    pub(super) fn give_up(&mut self) {
        self.blocks_left = 0;
    }
}

fn blocks(memory: &Memory, limits: Limits) -> Result<u64, Refusal> {
    let (bytes, block_size) = (memory.len(), limits.block_size);
    if bytes == 0 || !bytes.is_multiple_of(to_usize(block_size)) {
        return Err(Refusal::NotWholeBlocks { bytes, block_size });
    }
    u64::try_from(bytes / to_usize(block_size)).map_err(|_| Refusal::BadBlocks)
}

fn to_usize(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { block_size: 512, max_transfer_bytes: 2048 };

    fn steps(operation: Operation, limits: Limits) -> Vec<(u64, u32, usize, usize)> {
        let (mut plan, memory) = operation.plan(limits).unwrap();
        let len = memory.map_or(0, |memory| memory.len());
        let mut offset = 0;
        let mut all = Vec::new();
        while let Some(step) = plan.next(offset, len) {
            let range = BlockRange::of(&step.sqe);
            all.push((range.slba(), range.block_count(), step.offset, step.len));
            offset += step.len;
        }
        assert!(plan.is_done());
        all
    }

    #[test]
    fn large_operations_are_cut() {
        let nsid = NamespaceId(1);
        let read = Operation::Read { nsid, slba: 10, memory: vec![0; 9 * 512].into() };
        assert_eq!(
            steps(read, LIMITS),
            [(10, 4, 0, 2048), (14, 4, 2048, 2048), (18, 1, 4096, 512)]
        );
        let zero = Operation::WriteZeroes {
            nsid,
            slba: 0,
            block_count: 65_537,
            deallocate: false,
            fua: false,
        };
        assert_eq!(steps(zero, LIMITS), [(0, 65_536, 0, 0), (65_536, 1, 0, 0)]);
    }

    #[test]
    fn what_fits_is_one_command() {
        let nsid = NamespaceId(1);
        let read = |slba, len: usize| Operation::Read { nsid, slba, memory: vec![0; len].into() };
        let (sqe, direction) = read(10, 2048).single(LIMITS).unwrap();
        let range = BlockRange::of(&sqe);
        assert_eq!((range.slba(), range.block_count()), (10, 4));
        assert_eq!(direction, Direction::ControllerToHost);
        assert!(read(u64::MAX, 512).single(LIMITS).is_some(), "the last block of all");
        for (slba, len) in [(10, 2560), (10, 0), (10, 513), (10, 100), (u64::MAX, 1024)] {
            assert!(read(slba, len).single(LIMITS).is_none(), "{len} bytes from {slba}");
        }
    }

    #[test]
    fn what_no_command_can_carry_is_refused_with_its_memory() {
        let nsid = NamespaceId(1);
        let refuse = |operation: Operation| operation.plan(LIMITS).map(|_| ()).unwrap_err();
        let ragged = refuse(Operation::Read { nsid, slba: 0, memory: vec![0; 513].into() });
        let why = Refusal::NotWholeBlocks { bytes: 513, block_size: 512 };
        assert_eq!((ragged.reason, ragged.operation.into_memory().unwrap().len()), (why, 513));
        let beyond = Operation::Compare { nsid, slba: u64::MAX, memory: vec![0; 1024].into() };
        assert_eq!(refuse(beyond).reason, Refusal::BadBlocks);
        for count in [0, 257] {
            let ranges = vec![(0, 1); count];
            assert_eq!(refuse(Operation::Deallocate { nsid, ranges }).reason, Refusal::BadBlocks);
        }
        let (_, memory) =
            Operation::Deallocate { nsid, ranges: vec![(1, 2); 256] }.plan(LIMITS).unwrap();
        assert_eq!(memory.unwrap().len(), 4096);
    }
}
