//! Command words of the I/O commands and the Dataset Management range (NVM Command Set 1.0, 3.2).

use zerocopy::little_endian::{U16, U32, U64};

use super::command::Sqe;
use super::wire::wire;

/// CDW12 bit 31, LR: limited retry.
pub const LIMITED_RETRY: u32 = 1 << 31;
/// CDW12 bit 30, FUA: force unit access.
pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// CDW12 bits 29:26, PRINFO: protection information.
pub const PROTECTION_INFO: u32 = 0xf << 26;
/// CDW12 bit 25 of Write Zeroes, DEAC: the blocks may be deallocated.
pub const WRITE_ZEROES_DEALLOCATE: u32 = 1 << 25;
/// CDW11 bit 2 of Dataset Management, AD: deallocate.
pub const DATASET_DEALLOCATE: u32 = 1 << 2;
/// Most ranges of one Dataset Management command.
pub const DATASET_RANGES_MAX: u16 = 256;

/// The blocks that a command is about: SLBA in CDW10 and CDW11, NLB in CDW12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// SLBA: the first block.
    pub slba: u64,
    /// NLB + 1: how many blocks, 1..=65536.
    pub block_count: u32,
}

impl BlockRange {
    /// Reads the words.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        Self {
            slba: u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get()),
            block_count: (sqe.cdw12.get() & 0xffff) + 1,
        }
    }

    /// Sets the words; other bits of CDW12 are kept.
    pub fn write(&self, sqe: &mut Sqe) {
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.slba.to_le_bytes();
        sqe.cdw10 = u32::from_le_bytes([s0, s1, s2, s3]).into();
        sqe.cdw11 = u32::from_le_bytes([s4, s5, s6, s7]).into();
        let nlb = self.block_count.clamp(1, 0x1_0000) - 1;
        sqe.cdw12 = (sqe.cdw12.get() & !0xffff | nlb).into();
    }
}

/// CDW12 bits 11:8 of Copy, DESFMT: the format of the source ranges.
pub const COPY_FORMAT: u32 = 0xf << 8;
/// SOPT bit 15 of a source range, FCO: only if the copy is fast.
pub const SOURCE_FAST_COPY_ONLY: u16 = 1 << 15;
/// CDW12 bits 15:12 of Copy, PRINFOR: protection information of what is read.
pub const COPY_PROTECTION_INFO_READ: u32 = 0xf << 12;

wire! {
    /// Source range of Copy, format 0h or 2h (NVM Command Set 1.1, 3.3.2.1).
    pub struct CopyRange[32] {
        /// SNSID: the namespace that is read. Only in format 2h.
        pub snsid: U32,
        /// Reserved.
        pub reserved_4: [u8; 4],
        /// SLBA.
        pub slba: U64,
        /// NLB: blocks, 0's based.
        pub nlb: U16,
        /// Reserved.
        pub reserved_18: [u8; 4],
        /// SOPT: options. Only in format 2h.
        pub sopt: U16,
        /// ELBT, ELBAT, ELBATM: of protection information.
        pub protection: [u8; 8],
    }
}

wire! {
    /// Dataset Management range.
    pub struct DatasetRange[16] {
        /// Context Attributes: hints.
        pub attributes: U32,
        /// Length in blocks.
        pub length: U32,
        /// SLBA.
        pub slba: U64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_range_words() {
        let mut sqe = Sqe { cdw12: FORCE_UNIT_ACCESS.into(), ..Sqe::default() };
        let range = BlockRange { slba: 0x0102_0304_0506_0708, block_count: 65_536 };
        range.write(&mut sqe);
        assert_eq!(sqe.cdw10.get(), 0x0506_0708);
        assert_eq!(sqe.cdw11.get(), 0x0102_0304);
        assert_eq!(sqe.cdw12.get(), FORCE_UNIT_ACCESS | 0xffff);
        assert_eq!(BlockRange::parse(&sqe), range);
    }
}
