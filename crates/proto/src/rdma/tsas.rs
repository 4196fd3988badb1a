//! Transport Specific Address Subtype of RDMA in a discovery log page entry (NVMe/RDMA 1.0, 4.1).

use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use crate::nvme::wire::wire;

/// TRTYPE of RDMA.
pub const TRTYPE_RDMA: u8 = 1;
/// QPTYPE: reliable connected.
const QPTYPE_CONNECTED: u8 = 1;
/// CMS: the RDMA connection manager.
const CMS_RDMA_CM: u8 = 1;
/// PRTYPE: no provider is named. Other targets say this, whatever they have.
pub const PRTYPE_NONE: u8 = 1;
/// PRTYPE: RoCE version 2.
pub const PRTYPE_ROCE_V2: u8 = 4;
/// PRTYPE: iWARP.
pub const PRTYPE_IWARP: u8 = 5;

wire! {
    /// TSAS of an entry for RDMA.
    pub struct Tsas[256] {
        /// QPTYPE: 1 is reliable connected.
        pub qptype: u8,
        /// PRTYPE: 1 none, 2 InfiniBand, 3 RoCE, 4 RoCE version 2, 5 iWARP.
        pub prtype: u8,
        /// CMS: 1 is RDMA_CM.
        pub cms: u8,
        /// Reserved.
        pub reserved_3: [u8; 5],
        /// PKEY: partition key, for AF_IB addresses.
        pub pkey: U16,
        /// Reserved.
        pub reserved_10: [u8; 246],
    }
}

impl Tsas {
    /// Of an IP address that is listened at.
    #[must_use]
    pub fn new(prtype: u8) -> Self {
        Self { qptype: QPTYPE_CONNECTED, prtype, cms: CMS_RDMA_CM, ..Self::default() }
    }

    /// As in the entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }

    /// Whether a host can connect there with a reliable queue pair and RDMA_CM.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.qptype == QPTYPE_CONNECTED && self.cms == CMS_RDMA_CM
    }
}
