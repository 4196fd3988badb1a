//! What a program asks caller-driven queues to do, and what becomes of it.

use raceline_proto::host::command;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Cqe, Direction, NamespaceId, Sqe};

use super::Memory;
use crate::error::CommandFailure;
use crate::split::{Kind, Limits, Plan};

/// An operation on blocks. Data of more than the controller takes at once go in several commands: then they
/// are not one atomic write.
#[derive(Debug)]
pub enum Operation {
    /// Reads blocks into all of `memory`.
    Read {
        /// The namespace.
        nsid: NamespaceId,
        /// First block.
        slba: u64,
        /// Where to: as many bytes as the blocks have.
        memory: Memory,
    },
    /// Writes blocks from all of `memory`.
    Write {
        /// The namespace.
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
        /// The namespace.
        nsid: NamespaceId,
        /// First block.
        slba: u64,
        /// What with.
        memory: Memory,
    },
    /// Makes blocks read zeroes.
    WriteZeroes {
        /// The namespace.
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
        /// The namespace.
        nsid: NamespaceId,
        /// Ranges of (first block, number of blocks), up to 256.
        ranges: Vec<(u64, u32)>,
    },
    /// What completed before is on stable media when this completes.
    Flush {
        /// The namespace.
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

    /// The command that carries the operation out, if one command within these limits does. For any other
    /// operation, [`Self::plan`] gives the commands, or says why it cannot be executed.
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

    /// The commands that carry the operation out, within these limits, and the memory that they move.
    pub(super) fn plan(self, limits: Limits) -> Result<(Plan, Option<Memory>), Refused> {
        match self.try_plan(limits) {
            Ok(plan) => Ok((plan, self.into_memory())),
            Err(reason) => Err(Refused { reason, operation: self }),
        }
    }

    fn try_plan(&self, limits: Limits) -> Result<Plan, Refusal> {
        let blocks_of = |memory: &Memory| {
            let (bytes, block_size) = (memory.len(), limits.block_size);
            limits.blocks_of(bytes).ok_or(Refusal::NotWholeBlocks { bytes, block_size })
        };
        let (kind, slba, block_count) = match *self {
            Self::Read { slba, ref memory, .. } => (Kind::Read, slba, blocks_of(memory)?),
            Self::Write { slba, ref memory, fua, .. } => {
                (Kind::Write { fua }, slba, blocks_of(memory)?)
            }
            Self::Compare { slba, ref memory, .. } => (Kind::Compare, slba, blocks_of(memory)?),
            Self::WriteZeroes { block_count: 0, .. } => return Err(Refusal::BadBlocks),
            Self::WriteZeroes { slba, block_count, deallocate, fua, .. } => {
                (Kind::WriteZeroes { deallocate, fua }, slba, u64::from(block_count))
            }
            Self::Deallocate { ref ranges, .. } => {
                let last = ranges.len().checked_sub(1).and_then(|last| u8::try_from(last).ok());
                (Kind::Deallocate { last_range: last.ok_or(Refusal::BadBlocks)? }, 0, 0)
            }
            Self::Flush { .. } => (Kind::Flush, 0, 0),
        };
        let blocks = (slba, block_count);
        Plan::new(kind, self.nsid(), blocks, limits).ok_or(Refusal::BadBlocks)
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

#[cfg(test)]
mod tests {
    use raceline_proto::host::BlockRange;

    use super::*;

    const LIMITS: Limits = Limits { block_size: 512, max_transfer_bytes: 2048 };

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
