//! Completion queue entry (Base 2.0, figure 89).

use super::id::{CommandId, QueueId};
use super::status::Status;

/// Completion queue entry, 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// DW0: command specific.
    pub dw0: u32,
    /// DW1: command specific.
    pub dw1: u32,
    /// SQHD: submission queue head pointer.
    pub sqhd: u16,
    /// SQID: submission queue identifier (reserved over fabrics).
    pub sqid: QueueId,
    /// CID of the command it completes.
    pub cid: CommandId,
    /// The command's result.
    pub status: Status,
}

impl Cqe {
    /// Size on the wire.
    pub const LEN: usize = 16;

    /// As on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.dw0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.dw1.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.sqhd.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.sqid.0.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.cid.0.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.status.to_wire().to_le_bytes());
        bytes
    }

    /// From the wire.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [a0, a1, a2, a3, b0, b1, b2, b3, h0, h1, q0, q1, c0, c1, s0, s1] = *bytes;
        Self {
            dw0: u32::from_le_bytes([a0, a1, a2, a3]),
            dw1: u32::from_le_bytes([b0, b1, b2, b3]),
            sqhd: u16::from_le_bytes([h0, h1]),
            sqid: QueueId(u16::from_le_bytes([q0, q1])),
            cid: CommandId(u16::from_le_bytes([c0, c1])),
            status: Status::from_wire(u16::from_le_bytes([s0, s1])),
        }
    }
}
