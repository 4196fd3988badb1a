//! Submission queue entry and its SGL descriptor (Base 2.0, figures 86 and 91); entries of the commands.

mod encode;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::id::{CommandId, NamespaceId};
use super::transfer::Direction;

pub use encode::{
    BlockRange, DEALLOCATE_RANGE_LEN, MAX_DEALLOCATE_RANGES, async_event_request, compare,
    deallocate, deallocate_range, direction, flush, get_features, get_log_page, identify,
    keep_alive, read, set_features, write, write_zeroes,
};

/// Submission queue entry, 64 bytes. Command-specific words are read by the command's own type.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// OPC: opcode.
    pub opc: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// CID: command identifier.
    pub cid: U16,
    /// NSID: namespace identifier; in a Fabrics command byte 4 is FCTYPE.
    pub nsid: U32,
    /// CDW2.
    pub cdw2: U32,
    /// CDW3.
    pub cdw3: U32,
    /// MPTR: metadata pointer.
    pub mptr: U64,
    /// DPTR: data pointer, always an SGL descriptor over fabrics.
    pub sgl1: SglDescriptor,
    /// CDW10.
    pub cdw10: U32,
    /// CDW11.
    pub cdw11: U32,
    /// CDW12.
    pub cdw12: U32,
    /// CDW13.
    pub cdw13: U32,
    /// CDW14.
    pub cdw14: U32,
    /// CDW15.
    pub cdw15: U32,
}

/// FUSE: which half of a fused operation a command is (Base 2.0, 3.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// A normal command.
    Normal,
    /// First of two.
    First,
    /// Second of two.
    Second,
    /// The reserved value.
    Reserved,
}

impl Sqe {
    /// Size on the wire.
    pub const LEN: usize = 64;
    /// PSDT 01b: SGLs, metadata pointer is an address; the only legal one over fabrics.
    pub const PSDT_SGL: u8 = 0b01 << 6;

    /// Command identifier.
    #[must_use]
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// Namespace identifier.
    #[must_use]
    pub fn namespace_id(&self) -> NamespaceId {
        NamespaceId(self.nsid.get())
    }

    /// Which half of a fused operation.
    #[must_use]
    pub fn fuse(&self) -> Fuse {
        match self.flags & 0b11 {
            0 => Fuse::Normal,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Whether PSDT says that DPTR is an SGL.
    #[must_use]
    pub fn uses_sgl(&self) -> bool {
        self.flags & 0b1100_0000 == Self::PSDT_SGL
    }

    /// FCTYPE of a Fabrics command.
    #[must_use]
    pub fn fctype(&self) -> u8 {
        self.nsid.get().to_le_bytes()[0]
    }

    /// Which way the command's data goes: Fabrics commands say it with their FCTYPE.
    #[must_use]
    pub fn direction(&self) -> Option<Direction> {
        let is_fabrics = self.opc == super::opcode::fabrics::OPCODE;
        Direction::of_code(if is_fabrics { self.fctype() } else { self.opc })
    }
}

/// SGL descriptor (Base 2.0, figure 91): address, length, type in the last byte.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address, or offset into the capsule.
    pub address: U64,
    /// Length in bytes.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// SGL Descriptor Type in bits 7:4, Sub Type in bits 3:0.
    pub kind: u8,
}

impl SglDescriptor {
    /// Data Block, Sub Type Offset: data in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport SGL Data Block: data moves by C2HData, or by R2T and H2CData.
    pub const TRANSPORT: u8 = 0x5a;

    /// Data in the capsule, from offset 0.
    #[must_use]
    pub fn in_capsule(length: u32) -> Self {
        Self { length: length.into(), kind: Self::IN_CAPSULE, ..Self::default() }
    }

    /// Data moved by the transport.
    #[must_use]
    pub fn transport(length: u32) -> Self {
        Self { length: length.into(), kind: Self::TRANSPORT, ..Self::default() }
    }
}
