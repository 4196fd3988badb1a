//! Get LBA Status: its actions and the list that it gives (NVM Command Set 1.1, 4.2.1).

use zerocopy::little_endian::{U32, U64};

use super::wire::wire;

/// ATYPE: the blocks that are allocated.
pub const ACTION_ALLOCATED: u8 = 0x02;
/// ATYPE: the blocks that may be unreadable, found by a scan.
pub const ACTION_SCAN: u8 = 0x10;
/// ATYPE: the blocks that may be unreadable, as far as the controller knows of them.
pub const ACTION_TRACKED: u8 = 0x11;

/// CMPC: the list is full. There may be more behind its last block.
pub const FULL: u8 = 1;
/// CMPC: all blocks were looked at.
pub const COMPLETE: u8 = 2;

wire! {
    /// The head of the list.
    pub struct LbaStatusList[8] {
        /// NLSD: descriptors.
        pub nlsd: U32,
        /// CMPC: why the list ends.
        pub cmpc: u8,
        /// Reserved.
        pub reserved_5: [u8; 3],
    }
}

wire! {
    /// Blocks that follow each other.
    pub struct LbaStatusDescriptor[16] {
        /// DSLBA: the first block.
        pub dslba: U64,
        /// NLB: how many blocks.
        pub nlb: U32,
        /// Reserved.
        pub reserved_12: u8,
        /// Status.
        pub status: u8,
        /// Reserved.
        pub reserved_14: [u8; 2],
    }
}
