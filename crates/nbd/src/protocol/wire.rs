//! Numbers of the wire. All of them are big-endian there.

/// The port that IANA has assigned.
pub const PORT: u16 = 10809;

/// First bytes of a server.
pub const NBD_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Begins the newstyle negotiation, and every option.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Begins the reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request before its payload.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an option before its data.
pub const OPTION_LEN: usize = 16;

/// Handshake flag: the server answers unknown options instead of closing the connection.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the 124 zeroes at the end of EXPORT_NAME may be left out.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Options (section "Option types").
pub mod option {
    /// Begins transmission, without a way to refuse.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Begins TLS.
    pub const STARTTLS: u32 = 5;
    /// Asks what an export is.
    pub const INFO: u32 = 6;
    /// Asks what an export is, and begins transmission.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options (section "Option reply types").
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// The client has to begin TLS before.
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The client has to ask for the block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = 1 << 31 | 8;
    /// The option has too many data.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// What INFO and GO tell (section "Option reply types", NBD_REP_INFO).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub mod can {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH.
    pub const FLUSH: u16 = 1 << 2;
    /// The flag FUA.
    pub const FUA: u16 = 1 << 3;
    /// TRIM.
    pub const TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// The flag DF.
    pub const DF: u16 = 1 << 7;
    /// A flush on one connection covers what was completed on others.
    pub const MULTI_CONN: u16 = 1 << 8;
    /// CACHE.
    pub const CACHE: u16 = 1 << 10;
    /// The flag FAST_ZERO.
    pub const FAST_ZERO: u16 = 1 << 11;
}

/// Requests (section "Request types").
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes the payload that follows.
    pub const WRITE: u16 = 1;
    /// Ends the connection.
    pub const DISC: u16 = 2;
    /// Makes completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Releases a range.
    pub const TRIM: u16 = 4;
    /// Says that a range will be read soon.
    pub const CACHE: u16 = 5;
    /// Zeroes a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks what is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests (section "Command flags").
pub mod flag {
    /// Durable before it completes.
    pub const FUA: u16 = 1 << 0;
    /// The range stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer in one piece.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeroes as data.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies (section "Structured reply types").
pub mod chunk {
    /// The last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// Data and their offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error and a text.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The only metadata context, and its number.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number of [`BASE_ALLOCATION`] on each connection.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// State of an extent: not allocated, and reads zeroes.
pub const STATE_HOLE_ZERO: u32 = 1 << 0 | 1 << 1;

/// Why a request failed (section "Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted, as a write to what is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The request is malformed, or outside of the export.
    Inval = 22,
    /// No space is left, or a write is beyond the end.
    NoSpc = 28,
    /// The device cannot do it.
    NotSup = 95,
    /// The server ends.
    Shutdown = 108,
}

impl Errno {
    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The big-endian number at the front, and the rest.
pub(crate) fn split_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u16::from_be_bytes(*number), rest))
}

/// The big-endian number at the front, and the rest.
pub(crate) fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u32::from_be_bytes(*number), rest))
}

/// The big-endian number at the front, and the rest.
pub(crate) fn split_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u64::from_be_bytes(*number), rest))
}
