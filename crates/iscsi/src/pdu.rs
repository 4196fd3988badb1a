//! PDUs: every one of both directions as a struct, to and from its 48-byte header (RFC 7143, section 11).
//!
//! All numbers are big-endian. A struct holds the fields of its header that are specific to it; opcode, AHS length and
//! data segment length are put in by the code that frames a PDU. Reserved bytes are sent as 0 and not read.

mod codes;
mod field;
mod request;
mod response;

pub use codes::{
    AsyncEvent, LoginStatus, LogoutReason, LogoutResponseCode, RejectReason, Stage, TmfFunction,
    TmfResponseCode,
};
pub use request::{
    DataOut, LoginRequest, LogoutRequest, NopOut, ScsiCommand, Snack, TextRequest, TmfRequest,
};
pub use response::{
    AsyncMessage, DataIn, LoginResponse, LogoutResponse, NopIn, R2t, Reject, ScsiResponse,
    TextResponse, TmfResponse,
};

/// Bytes of a basic header segment (11.2.1).
pub const BHS_LEN: usize = 48;
/// A basic header segment.
pub type Bhs = [u8; BHS_LEN];
/// Bytes of a header or data digest.
pub const DIGEST_LEN: usize = 4;
/// Most bytes of additional header segments that this crate takes: an extended CDB of 52 bytes. RFC 7143 allows
/// 1020, but no command of a disk has any.
pub const MAX_AHS_LEN: usize = 60;
/// A task tag that names nothing.
pub const RESERVED_TAG: u32 = u32::MAX;
/// Most data bytes of a PDU until something else is declared, and of every PDU of a login (13.12).
pub const DEFAULT_DATA_SEGMENT_LEN: u32 = 8192;
/// Most bytes that a data segment can have: its length has 24 bits.
pub const MAX_DATA_SEGMENT_LEN: u32 = (1 << 24) - 1;

/// Opcodes, the low 6 bits of byte 0 (11.2.1.2).
pub mod opcode {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const SCSI_COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const TMF_REQUEST: u8 = 0x02;
    /// Login Request.
    pub const LOGIN_REQUEST: u8 = 0x03;
    /// Text Request.
    pub const TEXT_REQUEST: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT_REQUEST: u8 = 0x06;
    /// SNACK Request.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const SCSI_RESPONSE: u8 = 0x21;
    /// Task Management Function Response.
    pub const TMF_RESPONSE: u8 = 0x22;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message.
    pub const ASYNC_MESSAGE: u8 = 0x32;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

/// Bits of byte 0 and byte 1.
pub mod flags {
    /// I in byte 0 of a request: immediate delivery.
    pub const IMMEDIATE: u8 = 0x40;
    /// The opcode's bits of byte 0.
    pub const OPCODE: u8 = 0x3f;
    /// F: the last PDU of a sequence.
    pub const FINAL: u8 = 0x80;
    /// C: the text goes on in the next PDU.
    pub const CONTINUE: u8 = 0x40;
    /// T of a login: the stage changes.
    pub const TRANSIT: u8 = 0x80;
    /// R of a SCSI Command: data are read.
    pub const READ: u8 = 0x40;
    /// W of a SCSI Command: data are written.
    pub const WRITE: u8 = 0x20;
    /// Task attribute of a SCSI Command.
    pub const ATTRIBUTE: u8 = 0x07;
    /// A of a Data-In: acknowledge.
    pub const ACKNOWLEDGE: u8 = 0x40;
    /// O: residual overflow.
    pub const OVERFLOW: u8 = 0x04;
    /// U: residual underflow.
    pub const UNDERFLOW: u8 = 0x02;
    /// S of a Data-In: it carries the status.
    pub const STATUS: u8 = 0x01;
}

/// Lengths that the first 8 bytes of a header give (11.2.1.5, 11.2.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// TotalAHSLength in bytes.
    pub ahs: usize,
    /// DataSegmentLength in bytes, without padding.
    pub data: u32,
}

impl Lengths {
    /// Reads them.
    #[inline]
    #[must_use]
    pub const fn of(first: &[u8; 8]) -> Self {
        let word = u32::from_be_bytes([first[4], first[5], first[6], first[7]]);
        Self { ahs: (word >> 24) as usize * 4, data: word & MAX_DATA_SEGMENT_LEN }
    }
}

/// Bytes of padding behind `len` bytes of data (11.1).
#[inline]
#[must_use]
pub const fn pad_len(len: u32) -> u32 {
    len.wrapping_neg() & 3
}

/// Sets DataSegmentLength, and no AHS.
///
/// # Panics
/// When the length needs more than 24 bits.
#[inline]
pub(crate) fn set_data_len(bhs: &mut Bhs, len: u32) {
    assert!(len <= MAX_DATA_SEGMENT_LEN, "a data segment is below 16 MiB");
    bhs[4..8].copy_from_slice(&len.to_be_bytes());
}
