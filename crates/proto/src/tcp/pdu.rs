//! Layouts of the nine PDU types, their flags, sizes and field offsets (NVMe/TCP 1.0, section 3.6).
//!
//! The `...Pdu` structs are the headers byte for byte. All have alignment 1 and no padding, so
//! that any byte slice of the right length is one. Types of their own hold the checked contents
//! ([`IcReq`], [`IcResp`], [`TermReq`]).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::{Cqe, Sqe};

use super::error::Fes;

/// Length of a header or data digest.
pub const DIGEST_LEN: usize = DIGEST_PLEN as usize;
/// Bytes that a digest adds to PLEN.
pub(super) const DIGEST_PLEN: u32 = 4;
/// Greatest PDO: the greatest alignment, (31 + 1) dwords.
pub const MAX_PDO: u8 = 128;
/// Greatest HPDA and CPDA.
pub const MAX_PDA: u8 = 31;
/// Most bytes of an offending header that a TermReq carries.
pub const MAX_TERM_DATA: usize = 128;
/// Longest TermReq.
pub const MAX_TERM_LEN: usize = TermReqPdu::LEN + MAX_TERM_DATA;
/// Least MAXH2CDATA that a controller may announce.
pub const MIN_MAXH2CDATA: u32 = 4096;
/// In-capsule data allowed to admin commands, and to Fabrics commands on any queue, whatever
/// IOCCSZ says (NVMe/TCP Transport 1.0, 3.3.2.1).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// PDU-Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request, host to controller.
    IcReq = 0x00,
    /// Initialize Connection Response, controller to host.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command capsule, host to controller.
    CapsuleCmd = 0x04,
    /// Response capsule, controller to host.
    CapsuleResp = 0x05,
    /// Host to Controller Data.
    H2cData = 0x06,
    /// Controller to Host Data.
    C2hData = 0x07,
    /// Ready to Transfer, controller to host.
    R2t = 0x09,
}

impl PduType {
    /// From the wire; the reserved 08h and all from 0Ah on are none.
    #[must_use]
    pub const fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// As on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// Whether hosts send it; controllers send the others.
    #[must_use]
    pub const fn is_from_host(self) -> bool {
        matches!(self, Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData)
    }

    /// HLEN: length of the header without its digest.
    #[must_use]
    pub const fn hlen(self) -> u8 {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            Self::H2cTermReq
            | Self::C2hTermReq
            | Self::CapsuleResp
            | Self::H2cData
            | Self::C2hData
            | Self::R2t => 24,
        }
    }
}

/// FLAGS of the common header.
pub mod flags {
    /// HDGSTF: a header digest follows the header.
    pub const HDGSTF: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DDGSTF: u8 = 1 << 1;
    /// LAST_PDU: the last data PDU of a command (C2HData) or of an R2T (H2CData).
    pub const LAST_PDU: u8 = 1 << 2;
    /// SUCCESS: the command has succeeded, no response capsule follows (C2HData).
    pub const SUCCESS: u8 = 1 << 3;
}

/// Byte offsets of fields, as they appear in FEI.
pub mod offset {
    /// PDU-Type.
    pub const PDU_TYPE: u32 = 0;
    /// FLAGS.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HLEN: u32 = 2;
    /// PDO.
    pub const PDO: u32 = 3;
    /// PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of an ICReq or ICResp.
    pub const PFV: u32 = 8;
    /// HPDA of an ICReq, CPDA of an ICResp.
    pub const PDA: u32 = 10;
    /// DGST of an ICReq or ICResp.
    pub const DGST: u32 = 11;
    /// MAXH2CDATA of an ICResp.
    pub const MAXH2CDATA: u32 = 12;
    /// FES of a TermReq.
    pub const FES: u32 = 8;
    /// CCCID of H2CData, C2HData and R2T.
    pub const CCCID: u32 = 8;
    /// TTAG of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// DATAO of H2CData and C2HData, R2TO of R2T.
    pub const DATAO: u32 = 12;
    /// DATAL of H2CData and C2HData, R2TL of R2T.
    pub const DATAL: u32 = 16;
    /// CID of the completion in a CapsuleResp.
    pub const RESPONSE_CID: u32 = 20;
    /// Address of the SGL descriptor in a CapsuleCmd.
    pub const SGL_ADDRESS: u32 = 32;
    /// Type byte of the SGL descriptor in a CapsuleCmd.
    pub const SGL_TYPE: u32 = 47;
}

/// Alignment in bytes that an HPDA or CPDA (0's based dwords) asks for.
#[must_use]
pub const fn alignment(pda: u8) -> u32 {
    (pda as u32 + 1) * 4
}

/// A struct that is a header on the wire.
macro_rules! layout {
    ($(
        $(#[$doc:meta])*
        $name:ident($len:literal) {
            $( $(#[$field_doc:meta])* $field:ident: $type:ty, )*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name {
                $( $(#[$field_doc])* pub $field: $type, )*
            }

            impl $name {
                /// HLEN.
                pub const LEN: usize = $len;
            }

            const _: () = assert!(size_of::<$name>() == $name::LEN);
        )*
    };
}

layout! {
    /// First 8 bytes of every PDU.
    CommonHeader(8) {
        /// PDU-Type.
        pdu_type: u8,
        /// FLAGS, see [`flags`].
        flags: u8,
        /// HLEN: length of the header without its digest.
        hlen: u8,
        /// PDO: offset of the data from the start of the PDU; reserved without data.
        pdo: u8,
        /// PLEN: length of the PDU: header, HDGST, PAD, data, DDGST.
        plen: U32,
    }

    /// Initialize Connection Request.
    IcReqPdu(128) {
        /// Common header.
        common: CommonHeader,
        /// PFV: PDU format version, 0.
        pfv: U16,
        /// HPDA: alignment of the data in C2HData, 0's based dwords.
        hpda: u8,
        /// DGST: digests asked for; bit 0 header, bit 1 data.
        dgst: u8,
        /// MAXR2T: R2Ts outstanding per command, 0's based.
        maxr2t: U32,
        /// Reserved.
        reserved: [u8; 112],
    }

    /// Initialize Connection Response.
    IcRespPdu(128) {
        /// Common header.
        common: CommonHeader,
        /// PFV: PDU format version, 0.
        pfv: U16,
        /// CPDA: alignment of the data in CapsuleCmd and H2CData, 0's based dwords.
        cpda: u8,
        /// DGST: digests in use; bit 0 header, bit 1 data.
        dgst: u8,
        /// MAXH2CDATA: most data bytes per H2CData.
        maxh2cdata: U32,
        /// Reserved.
        reserved: [u8; 112],
    }

    /// Terminate Connection Request of either direction, before the copy of the bad header.
    TermReqPdu(24) {
        /// Common header.
        common: CommonHeader,
        /// FES: fatal error status.
        fes: U16,
        /// FEI: fatal error information.
        fei: U32,
        /// Reserved.
        reserved: [u8; 10],
    }

    /// Command capsule.
    CapsuleCmdPdu(72) {
        /// Common header.
        common: CommonHeader,
        /// The command.
        sqe: Sqe,
    }

    /// Response capsule.
    CapsuleRespPdu(24) {
        /// Common header.
        common: CommonHeader,
        /// The completion, see [`Cqe`].
        cqe: [u8; Cqe::LEN],
    }

    /// Host to Controller Data.
    H2cDataPdu(24) {
        /// Common header.
        common: CommonHeader,
        /// CCCID: identifier of the command.
        cccid: U16,
        /// TTAG: the R2T that is answered.
        ttag: U16,
        /// DATAO: offset of the data in the command's data.
        datao: U32,
        /// DATAL: length of the data.
        datal: U32,
        /// Reserved.
        reserved: [u8; 4],
    }

    /// Controller to Host Data.
    C2hDataPdu(24) {
        /// Common header.
        common: CommonHeader,
        /// CCCID: identifier of the command.
        cccid: U16,
        /// Reserved.
        reserved1: [u8; 2],
        /// DATAO: offset of the data in the command's data.
        datao: U32,
        /// DATAL: length of the data.
        datal: U32,
        /// Reserved.
        reserved2: [u8; 4],
    }

    /// Ready to Transfer.
    R2tPdu(24) {
        /// Common header.
        common: CommonHeader,
        /// CCCID: identifier of the command.
        cccid: U16,
        /// TTAG: the controller's name of this R2T.
        ttag: U16,
        /// R2TO: offset in the command's data that the host shall send from.
        r2to: U32,
        /// R2TL: how many bytes it shall send.
        r2tl: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}

/// DGST bit: header digest.
pub(super) const DGST_HEADER: u8 = 1 << 0;
/// DGST bit: data digest.
pub(super) const DGST_DATA: u8 = 1 << 1;

/// DGST of two choices.
pub(super) fn dgst(header: bool, data: bool) -> u8 {
    (if header { DGST_HEADER } else { 0 }) | (if data { DGST_DATA } else { 0 })
}

/// What a host asks for, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IcReq {
    /// HPDA, 0..=31: alignment of the data in C2HData, 0's based dwords.
    pub hpda: u8,
    /// Asks for header digests.
    pub header_digest: bool,
    /// Asks for data digests.
    pub data_digest: bool,
    /// MAXR2T as on the wire, 0's based.
    pub maxr2t: u32,
}

impl IcReq {
    /// Most R2Ts outstanding per command.
    #[must_use]
    pub const fn r2t_limit(&self) -> u32 {
        self.maxr2t.saturating_add(1)
    }
}

/// What a controller grants, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IcResp {
    /// CPDA, 0..=31: alignment of the data in CapsuleCmd and H2CData, 0's based dwords.
    pub cpda: u8,
    /// Header digests are in use.
    pub header_digest: bool,
    /// Data digests are in use.
    pub data_digest: bool,
    /// MAXH2CDATA: most data bytes per H2CData; a multiple of 4, at least 4096.
    pub max_h2c_data: u32,
}

/// The peer's reason to end the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// FES: what kind of error.
    pub fes: Fes,
    /// FEI: depends on FES; a byte offset into the header, or the header digest.
    pub fei: u32,
    /// Copy of the header that the peer objects to, at most 128 bytes, may be empty.
    pub header: Box<[u8]>,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::nvme::SglDescriptor;

    #[test]
    fn offsets_are_those_of_the_layouts() {
        let sgl = CapsuleCmdPdu::LEN - Sqe::LEN + offset_of!(Sqe, sgl1);
        for (named, actual) in [
            (offset::PDU_TYPE, offset_of!(CommonHeader, pdu_type)),
            (offset::FLAGS, offset_of!(CommonHeader, flags)),
            (offset::HLEN, offset_of!(CommonHeader, hlen)),
            (offset::PDO, offset_of!(CommonHeader, pdo)),
            (offset::PLEN, offset_of!(CommonHeader, plen)),
            (offset::PFV, offset_of!(IcReqPdu, pfv)),
            (offset::PFV, offset_of!(IcRespPdu, pfv)),
            (offset::PDA, offset_of!(IcReqPdu, hpda)),
            (offset::PDA, offset_of!(IcRespPdu, cpda)),
            (offset::DGST, offset_of!(IcReqPdu, dgst)),
            (offset::DGST, offset_of!(IcRespPdu, dgst)),
            (offset::MAXH2CDATA, offset_of!(IcRespPdu, maxh2cdata)),
            (offset::FES, offset_of!(TermReqPdu, fes)),
            (offset::CCCID, offset_of!(H2cDataPdu, cccid)),
            (offset::CCCID, offset_of!(C2hDataPdu, cccid)),
            (offset::CCCID, offset_of!(R2tPdu, cccid)),
            (offset::TTAG, offset_of!(H2cDataPdu, ttag)),
            (offset::TTAG, offset_of!(R2tPdu, ttag)),
            (offset::DATAO, offset_of!(H2cDataPdu, datao)),
            (offset::DATAO, offset_of!(C2hDataPdu, datao)),
            (offset::DATAO, offset_of!(R2tPdu, r2to)),
            (offset::DATAL, offset_of!(H2cDataPdu, datal)),
            (offset::DATAL, offset_of!(C2hDataPdu, datal)),
            (offset::DATAL, offset_of!(R2tPdu, r2tl)),
            (offset::RESPONSE_CID, offset_of!(CapsuleRespPdu, cqe) + 12),
            (offset::SGL_ADDRESS, sgl + offset_of!(SglDescriptor, address)),
            (offset::SGL_TYPE, sgl + offset_of!(SglDescriptor, kind)),
        ] {
            assert_eq!(usize::try_from(named).unwrap(), actual);
        }
    }

    #[test]
    fn types_survive_the_wire() {
        let known = (0..=u8::MAX).filter_map(PduType::from_wire);
        assert!(known.clone().all(|t| PduType::from_wire(t.to_wire()) == Some(t)));
        assert_eq!(known.count(), 9);
    }

    #[test]
    fn alignments() {
        assert_eq!(alignment(0), 4);
        assert_eq!(alignment(2), 12);
        assert_eq!(alignment(MAX_PDA), u32::from(MAX_PDO));
    }
}
