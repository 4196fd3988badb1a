//! The work of a run: access pattern, mix of reads and writes, size of a command, addresses.

use std::fmt;
use std::str::FromStr;

/// The order in which addresses are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One after another; after the end of the range from its beginning again.
    Sequential,
    /// Any address, with equal probability.
    Random,
}

/// The named workloads, by fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RwMode {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads and writes.
    ReadWrite,
    /// Random reads and writes.
    RandReadWrite,
}

impl RwMode {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::RandRead,
        Self::RandWrite,
        Self::ReadWrite,
        Self::RandReadWrite,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::ReadWrite => "rw",
            Self::RandReadWrite => "randrw",
        }
    }

    /// The order in which it visits addresses.
    #[must_use]
    pub fn access(self) -> Access {
        match self {
            Self::Read | Self::Write | Self::ReadWrite => Access::Sequential,
            Self::RandRead | Self::RandWrite | Self::RandReadWrite => Access::Random,
        }
    }

    /// Percentage of reads; `mixed` is the percentage for a mixed workload.
    #[must_use]
    pub fn read_percent(self, mixed: u8) -> u8 {
        match self {
            Self::Read | Self::RandRead => 100,
            Self::Write | Self::RandWrite => 0,
            Self::ReadWrite | Self::RandReadWrite => mixed.min(100),
        }
    }

    /// Whether it mixes reads and writes.
    #[must_use]
    pub fn is_mixed(self) -> bool {
        matches!(self, Self::ReadWrite | Self::RandReadWrite)
    }
}

impl fmt::Display for RwMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a workload: use read, write, randread, randwrite, rw or randrw")]
pub struct UnknownRwMode;

impl FromStr for RwMode {
    type Err = UnknownRwMode;

    fn from_str(name: &str) -> Result<Self, UnknownRwMode> {
        // fio has two names for one of them.
        let name = if name == "readwrite" { "rw" } else { name };
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or(UnknownRwMode)
    }
}

/// The common work of all queues of a run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Order and kind of the commands.
    pub mode: RwMode,
    /// Percentage of reads where `mode` is mixed.
    pub mixed_read_percent: u8,
    /// The addresses: commands use these spans in turn.
    pub spans: Vec<Span>,
    /// Random access visits each address once before any a second time; otherwise each command goes to any
    /// address.
    pub random_map: bool,
    /// The same seed gives the same addresses and the same data.
    pub seed: u64,
    /// Writes blocks that can be recognised, and checks the data of reads.
    pub verify: bool,
    /// Commands per second of all queues together (open loop); `None`: as many as possible.
    pub rate_iops: Option<u64>,
}

/// The part of a namespace that a workload uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Logical block size of the namespace in bytes.
    pub block_size: u32,
    /// Blocks per command.
    pub blocks_per_io: u32,
    /// First block that is used.
    pub first_block: u64,
    /// Number of blocks; a remainder that does not fill a command stays unused.
    pub block_count: u64,
}

/// A part of a workload's addresses, in units of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub first_block: u64,
    /// Number of commands that fit.
    pub units: u64,
}

impl Span {
    /// Number of commands that fit.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.block_count / u64::from(self.blocks_per_io.max(1))
    }
}

impl Workload {
    /// Number of commands that fit into all spans.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.spans.iter().fold(0, |sum: u64, span| sum.saturating_add(span.units()))
    }

    /// The addresses of queue `queue` of `queues` in a span. For random access without verification all
    /// queues share all addresses. Otherwise each queue has its own part: sequential streams are then
    /// sequential, and no two queues write the same block at once, which could not be verified.
    #[must_use]
    pub fn extent(&self, span: &Span, queue: u64, queues: u64) -> Extent {
        let units = span.units();
        if self.mode.access() == Access::Random && !self.verify {
            return Extent { first_block: span.first_block, units };
        }
        let part = |queue: u64| {
            let unit = u128::from(units) * u128::from(queue) / u128::from(queues.max(1));
            u64::try_from(unit).unwrap_or(u64::MAX)
        };
        let (first, end) = (part(queue), part(queue + 1));
        let first_block = span.first_block + first * u64::from(span.blocks_per_io);
        Extent { first_block, units: end - first }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// 100 commands of 4 KiB, and a rest.
    pub(crate) const SPAN: Span =
        Span { block_size: 512, blocks_per_io: 8, first_block: 16, block_count: 8 * 100 + 7 };

    pub(crate) fn workload(mode: RwMode) -> Workload {
        Workload {
            mode,
            mixed_read_percent: 50,
            spans: vec![SPAN],
            random_map: false,
            seed: 1,
            verify: false,
            rate_iops: None,
        }
    }

    #[test]
    fn names_round_trip() {
        for mode in RwMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert_eq!("trim".parse::<RwMode>(), Err(UnknownRwMode));
    }

    #[test]
    fn mixes() {
        assert_eq!(RwMode::RandRead.read_percent(70), 100);
        assert_eq!(RwMode::Write.read_percent(70), 0);
        assert_eq!(RwMode::RandReadWrite.read_percent(70), 70);
    }

    #[test]
    fn parts_cover_the_range_once() {
        let workload = Workload { verify: true, ..workload(RwMode::RandWrite) };
        assert_eq!(workload.units(), 100);
        let parts: Vec<Extent> = (0..3).map(|queue| workload.extent(&SPAN, queue, 3)).collect();
        assert_eq!(parts.iter().map(|part| part.units).sum::<u64>(), 100);
        let mut next = 16;
        for part in parts {
            assert_eq!(part.first_block, next);
            next += part.units * 8;
        }
    }

    #[test]
    fn random_access_shares_the_range() {
        let workload = workload(RwMode::RandRead);
        assert_eq!(workload.extent(&SPAN, 2, 3), Extent { first_block: 16, units: 100 });
    }
}
