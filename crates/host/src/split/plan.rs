//! Which commands an operation on blocks is, within what the controller takes at once.

use raceline_proto::host::{BlockRange, ControllerInfo, command};
use raceline_proto::nvme::{Direction, NamespaceId, Sqe};

/// Bytes of one command at most, where the controller allows more.
const MAX_COMMAND_BYTES: u32 = 1 << 20;

/// What a namespace and its controller allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) block_size: u32,
    /// Bytes that one command may move.
    pub(crate) max_transfer_bytes: u32,
}

/// What is done to the blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
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

/// The commands that are left of an operation, in the order of their blocks.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    kind: Kind,
    nsid: NamespaceId,
    slba: u64,
    blocks_left: u64,
    /// Blocks of one command at most.
    blocks_per_command: u32,
    block_bytes: usize,
    /// Where the bytes of the next command begin.
    offset: usize,
}

/// One command of an operation, and which bytes of its memory it moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) sqe: Sqe,
    pub(crate) direction: Direction,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Bytes of one command at most.
pub(crate) fn max_transfer_bytes(controller: &ControllerInfo) -> u32 {
    controller.max_transfer_bytes.unwrap_or(MAX_COMMAND_BYTES).min(MAX_COMMAND_BYTES)
}

impl Limits {
    /// The blocks that `len` bytes are, if one command can name them.
    #[inline(always)]
    pub(crate) fn single_range(self, slba: u64, len: usize) -> Option<BlockRange> {
        let len = u32::try_from(len).ok().filter(|&len| len <= self.max_transfer_bytes)?;
        // LBADS is a power of two (NVM Command Set 1.0, 4.1.5.1), so this is the division.
        let block_count = len >> self.block_size.trailing_zeros();
        let is_whole = block_count << self.block_size.trailing_zeros() == len;
        BlockRange::new(slba, block_count).filter(|_| is_whole)
    }

    /// How many blocks `len` bytes are; `None` if they are not one or more whole blocks.
    pub(crate) fn blocks_of(self, len: usize) -> Option<u64> {
        let block_size = to_usize(self.block_size);
        let is_whole = len > 0 && len.is_multiple_of(block_size);
        is_whole.then(|| u64::try_from(len / block_size).ok()).flatten()
    }
}

impl Plan {
    /// The commands for `block_count` blocks from `slba`; neither has a meaning for a Deallocate or a
    /// Flush. Zero blocks need no command. `None` for blocks that end beyond 2^64.
    pub(crate) fn new(
        kind: Kind,
        nsid: NamespaceId,
        (slba, block_count): (u64, u64),
        limits: Limits,
    ) -> Option<Self> {
        let (slba, blocks_left) = match kind {
            Kind::Deallocate { .. } | Kind::Flush => (0, 1),
            _ => (slba, block_count),
        };
        slba.checked_add(blocks_left)?;
        // MDTS does not limit a command that moves no data.
        let moves = !matches!(kind, Kind::WriteZeroes { .. });
        let limit = if moves { limits.max_transfer_bytes / limits.block_size } else { u32::MAX };
        Some(Self {
            kind,
            nsid,
            slba,
            blocks_left,
            blocks_per_command: limit.clamp(1, BlockRange::MAX_BLOCKS),
            block_bytes: to_usize(limits.block_size),
            offset: 0,
        })
    }

    /// Whether no command is left.
    pub(crate) fn is_done(&self) -> bool {
        self.blocks_left == 0
    }

    /// Nothing more is sent: a command has failed.
    pub(crate) fn give_up(&mut self) {
        self.blocks_left = 0;
    }
}

impl Iterator for Plan {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.blocks_left == 0 {
            return None;
        }
        let most = u64::from(self.blocks_per_command);
        let count = u32::try_from(self.blocks_left.min(most)).unwrap_or(self.blocks_per_command);
        let range = BlockRange::new(self.slba, count).expect("the blocks end within 2^64");
        self.slba += u64::from(count);
        self.blocks_left -= u64::from(count);
        let nsid = self.nsid;
        let data_len = to_usize(count) * self.block_bytes;
        let (sqe, direction, len) = match self.kind {
            Kind::Read => (command::read(nsid, range), Direction::ControllerToHost, data_len),
            Kind::Write { fua } => {
                (command::write(nsid, range, fua), Direction::HostToController, data_len)
            }
            Kind::Compare => (command::compare(nsid, range), Direction::HostToController, data_len),
            Kind::WriteZeroes { deallocate, fua } => {
                (command::write_zeroes(nsid, range, deallocate, fua), Direction::None, 0)
            }
            Kind::Deallocate { last_range } => {
                let len = (usize::from(last_range) + 1) * command::DEALLOCATE_RANGE_LEN;
                (command::deallocate(nsid, last_range), Direction::HostToController, len)
            }
            Kind::Flush => (command::flush(nsid), Direction::None, 0),
        };
        let part = Part { sqe, direction, offset: self.offset, len };
        self.offset += len;
        Some(part)
    }
}

fn to_usize(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit a usize")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use raceline_proto::nvme::opcode::io;

    use super::*;

    const NSID: NamespaceId = NamespaceId(1);
    const LIMITS: Limits = Limits { block_size: 512, max_transfer_bytes: 2048 };

    fn parts(kind: Kind, blocks: (u64, u64), limits: Limits) -> Vec<(u64, u32, usize, usize)> {
        let plan = Plan::new(kind, NSID, blocks, limits).unwrap();
        plan.map(|part| {
            let range = BlockRange::of(&part.sqe);
            (range.slba(), range.block_count(), part.offset, part.len)
        })
        .collect()
    }

    #[test]
    fn large_operations_are_cut() {
        assert_eq!(
            parts(Kind::Read, (10, 9), LIMITS),
            [(10, 4, 0, 2048), (14, 4, 2048, 2048), (18, 1, 4096, 512)]
        );
        let zero = Kind::WriteZeroes { deallocate: false, fua: false };
        assert_eq!(parts(zero, (0, 65_537), LIMITS), [(0, 65_536, 0, 0), (65_536, 1, 0, 0)]);
        assert!(parts(zero, (7, 0), LIMITS).is_empty());
        assert!(Plan::new(zero, NSID, (u64::MAX, 2), LIMITS).is_none());
    }

    #[test]
    fn some_operations_are_one_command() {
        let one = |kind| {
            let mut plan = Plan::new(kind, NSID, (u64::MAX, u64::MAX), LIMITS).unwrap();
            let part = plan.next().unwrap();
            assert!(plan.is_done() && plan.next().is_none());
            (part.sqe.opc, part.direction, part.len)
        };
        assert_eq!(one(Kind::Flush), (io::FLUSH, Direction::None, 0));
        let free = |last_range| one(Kind::Deallocate { last_range });
        // The list of ranges is never cut, whatever the controller takes at once: a page at most.
        let to_controller = Direction::HostToController;
        assert_eq!(free(0), (io::DATASET_MANAGEMENT, to_controller, 16));
        assert_eq!(free(255), (io::DATASET_MANAGEMENT, to_controller, 4096));
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Read),
            any::<bool>().prop_map(|fua| Kind::Write { fua }),
            Just(Kind::Compare),
            any::<[bool; 2]>().prop_map(|[deallocate, fua]| Kind::WriteZeroes { deallocate, fua }),
        ]
    }

    proptest! {
        #[test]
        fn parts_cover_the_blocks_once_in_order_and_within_limits(
            kind in kind(),
            slba in prop_oneof![0..1u64 << 40, u64::MAX - (1 << 21)..u64::MAX - (1 << 20)],
            block_count in prop_oneof![0..300u64, 0..1u64 << 20],
            block_size in prop_oneof![Just(512u32), Just(4096)],
            max_transfer_bytes in prop_oneof![1..20_000u32, Just(131_072), Just(MAX_COMMAND_BYTES)],
        ) {
            let limits = Limits { block_size, max_transfer_bytes };
            let plan = Plan::new(kind, NSID, (slba, block_count), limits).unwrap();
            let moves = !matches!(kind, Kind::WriteZeroes { .. });
            let (mut next, mut offset) = (slba, 0);
            for part in plan {
                let range = BlockRange::of(&part.sqe);
                prop_assert_eq!((range.slba(), part.offset), (next, offset));
                let len = to_usize(range.block_count()) * to_usize(block_size);
                prop_assert_eq!(part.len, if moves { len } else { 0 });
                // A limit of less than a block cannot be kept: such a controller takes nothing.
                prop_assert!(part.len <= to_usize(max_transfer_bytes.max(block_size)));
                prop_assert!(range.block_count() <= BlockRange::MAX_BLOCKS);
                next += u64::from(range.block_count());
                offset += part.len;
            }
            prop_assert_eq!(next, slba + block_count);
        }

        /// The short way of most operations is the long way of one part.
        #[test]
        fn what_fits_is_one_part(
            slba in 0..1u64 << 40,
            len in 0..40_000usize,
            max_transfer_bytes in 512..40_000u32,
        ) {
            let limits = Limits { block_size: 512, max_transfer_bytes };
            let planned = limits.blocks_of(len).map(|blocks| {
                Plan::new(Kind::Read, NSID, (slba, blocks), limits).unwrap().collect::<Vec<_>>()
            });
            match (limits.single_range(slba, len), planned.as_deref()) {
                (Some(range), Some([part])) => {
                    prop_assert_eq!(BlockRange::of(&part.sqe), range);
                    prop_assert_eq!((part.offset, part.len), (0, len));
                }
                (None, None) => {}
                (None, Some(parts)) => prop_assert!(parts.len() > 1),
                (single, planned) => prop_assert!(false, "{single:?} and {planned:?}"),
            }
        }
    }
}
