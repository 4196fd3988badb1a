//! What software and an Intel DSA device write to each other: descriptors, completion records.
//!
//! Sections are those of the Intel Data Streaming Accelerator Architecture Specification, order
//! number 341204-006US, revision 3.0; the layout of what is used here is the same since 1.0. All
//! fields are little-endian. What a descriptor does not use is reserved and zero (5.5).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a descriptor (8.1).
pub const DESCRIPTOR_BYTES: usize = 64;
/// The size of a completion record (8.2).
pub const COMPLETION_RECORD_BYTES: usize = 32;
/// In both addresses of a dual cast these bits must be the same (8.3.10).
pub const DUALCAST_SAME_BITS: u64 = 0xFFF;
/// The fewest descriptors of a batch, without the capability Batch1 Support (8.3.2).
pub const BATCH_MIN: usize = 2;

/// Operation, byte 7 (8.1.2, table 8-2): those used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceOperation {
    /// Does nothing but complete (8.3.1).
    Nop = 0x00,
    /// Fetches and processes an array of descriptors (8.3.2).
    Batch = 0x01,
    /// Completes when everything submitted before it has (8.3.3).
    Drain = 0x02,
    /// Copies (8.3.4).
    MemoryMove = 0x03,
    /// Fills with a pattern of eight bytes (8.3.5).
    Fill = 0x04,
    /// Compares two regions (8.3.6).
    Compare = 0x05,
    /// Copies to two places (8.3.10).
    Dualcast = 0x09,
    /// Computes a CRC (8.3.12).
    CrcGeneration = 0x10,
    /// Copies and computes the CRC of what was copied (8.3.13).
    CopyCrc = 0x11,
}

impl DeviceOperation {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 9] = [
        Self::Nop,
        Self::Batch,
        Self::Drain,
        Self::MemoryMove,
        Self::Fill,
        Self::Compare,
        Self::Dualcast,
        Self::CrcGeneration,
        Self::CopyCrc,
    ];

    /// The operation of a code, if it is one of these.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| *operation as u8 == code)
    }
}

/// Flags, bytes 4 to 6 (8.1.3, table 8-3; operation-specific ones in table 8-19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Fence: begin when all earlier descriptors of the batch are done; only inside a batch.
    pub const FENCE: Self = Self(1 << 0);
    /// Block On Fault: wait for a page instead of stopping; reserved unless the WQ allows it.
    pub const BLOCK_ON_FAULT: Self = Self(1 << 1);
    /// Completion Record Address Valid.
    pub const RECORD_ADDRESS_VALID: Self = Self(1 << 2);
    /// Request Completion Record: write it on success, too.
    pub const REQUEST_RECORD: Self = Self(1 << 3);
    /// Request Completion Interrupt.
    pub const REQUEST_INTERRUPT: Self = Self(1 << 4);
    /// Check Result: a comparison that fails is "success with false predicate".
    pub const CHECK_RESULT: Self = Self(1 << 7);
    /// Cache Control 1: write to the cache; reserved unless GENCAP has it (8.1.3.1).
    pub const CACHE_CONTROL: Self = Self(1 << 8);
    /// Strict Ordering of the writes of this descriptor.
    pub const STRICT_ORDERING: Self = Self(1 << 13);
    /// Cache Control 2: with a readback of the destination (8.1.3.1).
    pub const READBACK: Self = Self(1 << 14);
    /// Read CRC Seed from memory (table 8-19).
    pub const CRC_READ_SEED: Self = Self(1 << 16);
    /// Bypass CRC Inversion and Reflection of seed and result (table 8-19).
    pub const CRC_BYPASS_INVERSION: Self = Self(1 << 17);
    /// Bypass Data Reflection (table 8-19).
    pub const CRC_BYPASS_DATA_REFLECTION: Self = Self(1 << 18);

    const RECORD: Self = Self(Self::RECORD_ADDRESS_VALID.0 | Self::REQUEST_RECORD.0);

    /// The flags of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags that are in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The 24 bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Offsets of the fields (8.1, and the figure of each operation in 8.3).
mod at {
    pub(super) const FLAGS: usize = 4;
    pub(super) const OPERATION: usize = 7;
    pub(super) const RECORD: usize = 8;
    /// Source; Source1; Pattern Lower of a fill; Descriptor List Address of a batch.
    pub(super) const SOURCE: usize = 16;
    /// Destination; Destination1; Source2 of a comparison.
    pub(super) const DESTINATION: usize = 24;
    /// Transfer Size; Descriptor Count of a batch.
    pub(super) const TRANSFER_SIZE: usize = 32;
    /// Expected Result of a comparison; Destination2 of a dual cast; CRC Seed.
    pub(super) const SPECIFIC: usize = 40;
    pub(super) const CRC_SEED_ADDRESS: usize = 48;
}

/// One descriptor as the device reads it (8.1). The trusted fields (PASID, Priv) stay zero: for a
/// shared WQ the CPU fills them in, for a dedicated one the device knows them (8.1.1).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor {
    bytes: [u8; DESCRIPTOR_BYTES],
}

impl Descriptor {
    /// A descriptor with a completion record at `record` (32-byte aligned), always written.
    #[must_use]
    fn new(operation: DeviceOperation, record: u64, flags: Flags) -> Self {
        let mut new = Self { bytes: [0; DESCRIPTOR_BYTES] };
        let [a, b, c, _] = flags.union(Flags::RECORD).bits().to_le_bytes();
        new.bytes[at::FLAGS..at::OPERATION].copy_from_slice(&[a, b, c]);
        new.bytes[at::OPERATION] = operation as u8;
        new.with_u64(at::RECORD, record)
    }

    /// A no-op (8.3.1).
    #[must_use]
    pub fn nop(record: u64, flags: Flags) -> Self {
        Self::new(DeviceOperation::Nop, record, flags)
    }

    /// A batch of `count` descriptors at `list`, which is aligned to 64 bytes (8.3.2).
    #[must_use]
    pub fn batch(record: u64, flags: Flags, list: u64, count: u32) -> Self {
        Self::new(DeviceOperation::Batch, record, flags)
            .with_u64(at::SOURCE, list)
            .with_u32(at::TRANSFER_SIZE, count)
    }

    /// A drain without explicit readback (8.3.3).
    #[must_use]
    pub fn drain(record: u64, flags: Flags) -> Self {
        Self::new(DeviceOperation::Drain, record, flags)
    }

    /// A copy (8.3.4).
    #[must_use]
    pub fn memory_move(record: u64, flags: Flags, from: u64, to: u64, bytes: u32) -> Self {
        Self::new(DeviceOperation::MemoryMove, record, flags)
            .with_u64(at::SOURCE, from)
            .with_u64(at::DESTINATION, to)
            .with_u32(at::TRANSFER_SIZE, bytes)
    }

    /// A fill with the eight bytes of `pattern`, first byte first (8.3.5).
    #[must_use]
    pub fn fill(record: u64, flags: Flags, pattern: u64, to: u64, bytes: u32) -> Self {
        Self::new(DeviceOperation::Fill, record, flags)
            .with_u64(at::SOURCE, pattern)
            .with_u64(at::DESTINATION, to)
            .with_u32(at::TRANSFER_SIZE, bytes)
    }

    /// A comparison; Expected Result is 0, "equal" (8.3.6).
    #[must_use]
    pub fn compare(record: u64, flags: Flags, first: u64, second: u64, bytes: u32) -> Self {
        Self::new(DeviceOperation::Compare, record, flags)
            .with_u64(at::SOURCE, first)
            .with_u64(at::DESTINATION, second)
            .with_u32(at::TRANSFER_SIZE, bytes)
    }

    /// A copy to two places, whose low twelve address bits are the same (8.3.10).
    #[must_use]
    pub fn dualcast(record: u64, flags: Flags, from: u64, to: [u64; 2], bytes: u32) -> Self {
        Self::new(DeviceOperation::Dualcast, record, flags)
            .with_u64(at::SOURCE, from)
            .with_u64(at::DESTINATION, to[0])
            .with_u32(at::TRANSFER_SIZE, bytes)
            .with_u64(at::SPECIFIC, to[1])
    }

    /// A CRC32C of memory (8.3.12).
    #[must_use]
    pub fn crc(record: u64, flags: Flags, from: u64, bytes: u32, seed: CrcSeed) -> Self {
        Self::new(DeviceOperation::CrcGeneration, record, flags.union(seed.flags()))
            .with_u64(at::SOURCE, from)
            .with_u32(at::TRANSFER_SIZE, bytes)
            .with_seed(seed)
    }

    /// A copy with the CRC32C of what was copied (8.3.13).
    #[must_use]
    pub fn copy_crc(
        record: u64,
        flags: Flags,
        from: u64,
        to: u64,
        bytes: u32,
        seed: CrcSeed,
    ) -> Self {
        Self::new(DeviceOperation::CopyCrc, record, flags.union(seed.flags()))
            .with_u64(at::SOURCE, from)
            .with_u64(at::DESTINATION, to)
            .with_u32(at::TRANSFER_SIZE, bytes)
            .with_seed(seed)
    }

    /// The 64 bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; DESCRIPTOR_BYTES] {
        &self.bytes
    }

    /// A descriptor of these bytes, whatever they are.
    #[must_use]
    pub fn from_bytes(bytes: [u8; DESCRIPTOR_BYTES]) -> Self {
        Self { bytes }
    }

    /// The code in the operation field, known or not.
    #[must_use]
    pub fn operation_code(&self) -> u8 {
        self.bytes[at::OPERATION]
    }

    /// All 24 flags.
    #[must_use]
    pub fn flags(&self) -> Flags {
        let [a, b, c] = [self.bytes[4], self.bytes[5], self.bytes[6]];
        Flags(u32::from_le_bytes([a, b, c, 0]))
    }

    /// Completion Record Address.
    #[must_use]
    pub fn record_address(&self) -> u64 {
        self.u64_at(at::RECORD)
    }

    /// Source, Source1, the pattern of a fill, or the list of a batch.
    #[must_use]
    pub fn source(&self) -> u64 {
        self.u64_at(at::SOURCE)
    }

    /// Destination, Destination1, or Source2 of a comparison.
    #[must_use]
    pub fn destination(&self) -> u64 {
        self.u64_at(at::DESTINATION)
    }

    /// Destination2 of a dual cast.
    #[must_use]
    pub fn second_destination(&self) -> u64 {
        self.u64_at(at::SPECIFIC)
    }

    /// Transfer Size, or the Descriptor Count of a batch.
    #[must_use]
    pub fn transfer_size(&self) -> u32 {
        self.u32_at(at::TRANSFER_SIZE)
    }

    /// CRC Seed, or where to read it.
    #[must_use]
    pub fn crc_seed(&self) -> CrcSeed {
        if self.flags().contains(Flags::CRC_READ_SEED) {
            CrcSeed::At(self.u64_at(at::CRC_SEED_ADDRESS))
        } else {
            CrcSeed::Value(self.u32_at(at::SPECIFIC))
        }
    }

    fn with_seed(self, seed: CrcSeed) -> Self {
        match seed {
            CrcSeed::Value(value) => self.with_u32(at::SPECIFIC, value),
            CrcSeed::At(address) => self.with_u64(at::CRC_SEED_ADDRESS, address),
        }
    }

    fn with_u64(mut self, offset: usize, value: u64) -> Self {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn with_u32(mut self, offset: usize, value: u32) -> Self {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u64_at(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes[offset..offset + 8]);
        u64::from_le_bytes(bytes)
    }

    fn u32_at(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.bytes[offset..offset + 4]);
        u32::from_le_bytes(bytes)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor")
            .field("operation", &format_args!("{:#04x}", self.operation_code()))
            .field("flags", &format_args!("{:#08x}", self.flags().bits()))
            .field("source", &format_args!("{:#x}", self.source()))
            .field("destination", &format_args!("{:#x}", self.destination()))
            .field("transfer_size", &self.transfer_size())
            .finish_non_exhaustive()
    }
}

/// What a CRC continues from (8.3.12, appendix A).
///
/// Without the bypass flags DSA's CRC is that of iSCSI: seed and result are inverted and have the
/// standard bit order, so a seed is the finished CRC32C of what came before, 0 for nothing, and
/// the result is the finished CRC32C of everything so far: what [`raceline_crc32c::crc32c`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcSeed {
    /// This value.
    Value(u32),
    /// The four bytes at this address, a multiple of four; for instance the CRC Value of an
    /// earlier descriptor's completion record, behind a fence.
    At(u64),
}

impl CrcSeed {
    fn flags(self) -> Flags {
        match self {
            Self::Value(_) => Flags::NONE,
            Self::At(_) => Flags::CRC_READ_SEED,
        }
    }
}

/// A descriptor in memory that the device reads: an entry of a batch's list (8.3.2).
///
/// Atomic words, so that neither side needs an exclusive reference. The submission of the batch orders
/// the accesses.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DescriptorSlot {
    words: [AtomicU64; DESCRIPTOR_BYTES / 8],
}

impl DescriptorSlot {
    /// Writes it; to be read after a later submission.
    pub fn store(&self, descriptor: &Descriptor) {
        for (word, bytes) in self.words.iter().zip(descriptor.bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Reads it.
    #[must_use]
    pub fn load(&self) -> Descriptor {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Descriptor { bytes }
    }
}

/// Operation Status (5.8.1, table 5-6): those that software treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 01h.
    Success,
    /// 02h, success with false predicate.
    FalsePredicate,
    /// 03h, partial completion because of a page fault.
    PageFault,
    /// 04h, partial completion because the page was not made available.
    PageRequestFailed,
    /// 05h, at least one descriptor of the batch did not succeed.
    BatchFailed,
    /// 06h, page fault on the list of a batch.
    BatchPageFault,
    /// Any other: the operation was not done.
    Error(u8),
}

impl Status {
    /// Unsupported operation code.
    pub const BAD_OPERATION: u8 = 0x10;
    /// Invalid flags.
    pub const BAD_FLAGS: u8 = 0x11;
    /// Non-zero reserved field.
    pub const RESERVED_NOT_ZERO: u8 = 0x12;
    /// Invalid transfer size.
    pub const BAD_TRANSFER_SIZE: u8 = 0x13;
    /// Descriptor Count out of range.
    pub const BAD_DESCRIPTOR_COUNT: u8 = 0x14;
    /// Overlapping buffers.
    pub const OVERLAP: u8 = 0x16;
    /// The destinations of a dual cast differ in their low bits.
    pub const DUALCAST_MISALIGNED: u8 = 0x17;
    /// Misaligned Descriptor List Address.
    pub const LIST_MISALIGNED: u8 = 0x18;
    /// Misaligned address, for instance of a CRC seed.
    pub const ADDRESS_MISALIGNED: u8 = 0x1C;
    /// Hardware error on a read.
    pub const HARDWARE_READ: u8 = 0x20;

    /// The status of a code, bits 5:0 of the field.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code {
            0x01 => Self::Success,
            0x02 => Self::FalsePredicate,
            0x03 => Self::PageFault,
            0x04 => Self::PageRequestFailed,
            0x05 => Self::BatchFailed,
            0x06 => Self::BatchPageFault,
            other => Self::Error(other),
        }
    }

    /// Its code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0x01,
            Self::FalsePredicate => 0x02,
            Self::PageFault => 0x03,
            Self::PageRequestFailed => 0x04,
            Self::BatchFailed => 0x05,
            Self::BatchPageFault => 0x06,
            Self::Error(code) => code,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.code() {
            0x01 => "success",
            0x02 => "success with false predicate",
            0x03 => "page fault",
            0x04 => "page request failed",
            0x05 => "a descriptor of the batch failed",
            0x06 => "page fault on the descriptor list",
            Self::BAD_OPERATION => "unsupported operation",
            Self::BAD_FLAGS => "invalid flags",
            Self::RESERVED_NOT_ZERO => "reserved field not zero",
            Self::BAD_TRANSFER_SIZE => "invalid transfer size",
            Self::BAD_DESCRIPTOR_COUNT => "descriptor count out of range",
            Self::OVERLAP => "overlapping buffers",
            Self::DUALCAST_MISALIGNED => "dual cast destinations differ in their low 12 bits",
            Self::LIST_MISALIGNED => "misaligned descriptor list",
            Self::ADDRESS_MISALIGNED => "misaligned address",
            0x20 | 0x21 => "hardware error",
            0x22 => "address translation error",
            _ => "error",
        };
        write!(f, "{text} ({:02X}h)", self.code())
    }
}

/// A completion record's contents (8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Operation Status.
    pub status: Status,
    /// For a page fault: the access was a write (table 8-10).
    pub fault_on_write: bool,
    /// Result: of a comparison 1 for "differs"; of a partial copy 1 for "from the end" (8.3.4).
    pub result: u8,
    /// Bytes Completed; of a batch, Descriptors Completed. 0 when everything is done (8.2.4).
    pub bytes_completed: u32,
    /// Fault Address.
    pub fault_address: u64,
    /// CRC Value, the low 32 bits (8.3.12).
    pub crc: u32,
}

/// Bits 5:0 of the status field are the Operation Status (table 8-10).
const STATUS_MASK: u8 = 0x3F;
/// Bit 7 of the status field: the faulting access was a write (table 8-10).
const STATUS_WRITE: u8 = 0x80;

/// A completion record in memory (8.2): the device writes it, software polls it.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct CompletionRecord {
    /// Status, Result and Bytes Completed are in the first word, so one load has all three.
    words: [AtomicU64; COMPLETION_RECORD_BYTES / 8],
}

impl CompletionRecord {
    /// Where in the record the CRC Value is: a seed for a later descriptor (8.3.12).
    pub const CRC_OFFSET: u64 = 16;

    /// Makes it one that the device has not written; before submission (8.2.1).
    pub fn clear(&self) {
        for word in &self.words {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// What the device has written, if it has.
    #[must_use]
    pub fn poll(&self) -> Option<Completion> {
        let first = self.words[0].load(Ordering::Acquire).to_ne_bytes();
        if first[0] == 0 {
            return None;
        }
        let [status, result, _, _, rest @ ..] = first;
        let crc = self.words[2].load(Ordering::Relaxed).to_ne_bytes();
        Some(Completion {
            status: Status::from_code(status & STATUS_MASK),
            fault_on_write: status & STATUS_WRITE != 0,
            result,
            bytes_completed: u32::from_le_bytes(rest),
            fault_address: u64::from_le(self.words[1].load(Ordering::Relaxed)),
            crc: u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]),
        })
    }

    /// Writes it as a device does: a reader that sees the status sees what was in memory before it.
    pub fn write(&self, completion: &Completion) {
        let write = if completion.fault_on_write { STATUS_WRITE } else { 0 };
        let status = completion.status.code() | write;
        let [a, b, c, d] = completion.bytes_completed.to_le_bytes();
        self.words[1].store(completion.fault_address.to_le(), Ordering::Relaxed);
        self.words[2].store(u64::from(completion.crc).to_le(), Ordering::Relaxed);
        let first = u64::from_ne_bytes([status, completion.result, 0, 0, a, b, c, d]);
        self.words[0].store(first, Ordering::Release);
    }

    /// The 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; COMPLETION_RECORD_BYTES] {
        let mut bytes = [0; COMPLETION_RECORD_BYTES];
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    }
}
