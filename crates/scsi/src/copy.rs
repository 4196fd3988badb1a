//! Extended Copy from blocks to blocks, and what is told about it (SPC-4, 6.4 and 6.18 to 6.20, LID1).
//!
//! [`parse`] takes a parameter list that is well formed. What its segments need of logical units is known when their turn
//! comes, and [`Segment::resolve`] says it. From the first segment on, every failure is COPY ABORTED with the number of the
//! segment: those before it have been copied.

use crate::lun::Lun;
use crate::sense::{Sense, SenseKey};

/// Most descriptors of copy targets in a parameter list.
pub const MAX_COPY_TARGETS: u16 = 8;
/// Most descriptors of segments in a parameter list.
pub const MAX_COPY_SEGMENTS: u16 = 16;
/// Most bytes of all descriptors.
pub const MAX_DESCRIPTOR_BYTES: u32 =
    MAX_COPY_TARGETS as u32 * TARGET_LEN as u32 + MAX_COPY_SEGMENTS as u32 * SEGMENT_LEN as u32;
/// Most bytes that a segment copies.
pub const MAX_SEGMENT_BYTES: u32 = 64 << 20;
/// Most copies of an I_T nexus at the same time.
pub const MAX_CONCURRENT_COPIES: u8 = 16;

/// Bytes of a parameter list before its descriptors.
pub(crate) const HEADER_LEN: u32 = 16;
/// Bytes of an identification descriptor.
const TARGET_LEN: u8 = 32;
/// Bytes of a segment from blocks to blocks.
const SEGMENT_LEN: u8 = 28;
/// Bytes of a segment before its own fields: type, flags, length of the rest.
const SEGMENT_HEADER_LEN: usize = 4;
/// DESCRIPTOR TYPE CODE: from blocks to blocks.
const BLOCKS_TO_BLOCKS: u8 = 0x02;
/// DESCRIPTOR TYPE CODE: a copy target by a designator of the page Device Identification.
const IDENTIFICATION: u8 = 0xe4;
/// The types that are supported, ascending.
const TYPES: [u8; 2] = [BLOCKS_TO_BLOCKS, IDENTIFICATION];
/// DATA SEGMENT GRANULARITY, as a power of two: the smallest block.
const GRANULARITY_EXPONENT: u8 = 9;
/// PERIPHERAL DEVICE TYPE: a disk.
const DISK: u8 = 0x00;

/// A parameter list of Extended Copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// LIST IDENTIFIER; `None`: the copy has none.
    pub id: Option<u8>,
    targets: Vec<CopyTarget>,
    segments: Vec<Segment>,
}

/// A logical unit as a copy names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTarget {
    device_type: u8,
    code_set: u8,
    /// ASSOCIATION and DESIGNATOR TYPE.
    kind: u8,
    designator: [u8; 20],
    len: u8,
    block_size: u32,
}

/// Blocks to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    source: u16,
    destination: u16,
    /// DC: the blocks are counted in those of the destination.
    counts_destination: bool,
    blocks: u16,
    source_lba: u64,
    destination_lba: u64,
}

/// Bytes to copy: `len` may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBytes {
    /// The first byte of the source.
    pub from: u64,
    /// The first byte of the destination.
    pub to: u64,
    /// How many.
    pub len: u64,
}

/// What has become of a copy, for Receive Copy Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// Where it stands.
    pub state: CopyState,
    /// Segments that are copied.
    pub segments: u16,
    /// Bytes that are copied.
    pub bytes: u64,
}

/// COPY MANAGER STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// It goes on.
    InProgress,
    /// All of it is done.
    Done,
    /// It has ended early.
    Failed,
}

impl CopyList {
    /// Reads a parameter list.
    ///
    /// # Errors
    /// ILLEGAL REQUEST: what is wrong. Nothing is copied.
    pub fn parse(list: &[u8]) -> Result<Self, Sense> {
        let header = list.first_chunk::<16>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let targets_len = usize::from(u16_at(header, 2));
        let segments_len = usize::try_from(u32_at(header, 8)).unwrap_or(usize::MAX);
        if u32_at(header, 12) != 0 {
            return Err(Sense::INLINE_DATA_LENGTH_EXCEEDED);
        }
        let descriptors = &list[header.len()..];
        let len = targets_len.checked_add(segments_len).filter(|len| *len <= descriptors.len());
        let most = usize::try_from(MAX_DESCRIPTOR_BYTES).unwrap_or(usize::MAX);
        let len = len.filter(|len| *len <= most).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let id = list_identifier(header)?;
        let (targets, segments) = descriptors[..len].split_at(targets_len);
        Ok(Self { id, targets: parse_targets(targets)?, segments: parse_segments(segments)? })
    }

    /// The segment of this number.
    #[must_use]
    pub fn segment(&self, number: u16) -> Option<&Segment> {
        self.segments.get(usize::from(number))
    }

    /// Source and destination of a segment.
    ///
    /// # Errors
    /// UNREACHABLE COPY TARGET: there are no such descriptors.
    pub fn targets(&self, segment: &Segment) -> Result<(&CopyTarget, &CopyTarget), Sense> {
        let find = |index: u16| self.targets.get(usize::from(index));
        find(segment.source).zip(find(segment.destination)).ok_or(Sense::UNREACHABLE_COPY_TARGET)
    }
}

/// LIST IDENTIFIER by LIST ID USAGE.
fn list_identifier(header: &[u8; 16]) -> Result<Option<u8>, Sense> {
    match (header[1] >> 3 & 0b11, header[0]) {
        (0b00 | 0b10, id) => Ok(Some(id)),
        (0b11, 0) => Ok(None),
        (0b11, _) => Err(Sense::bad_parameter(0)),
        _ => Err(Sense::bad_parameter(1)),
    }
}

fn parse_targets(bytes: &[u8]) -> Result<Vec<CopyTarget>, Sense> {
    let descriptors = bytes.chunks_exact(TARGET_LEN.into());
    if !descriptors.remainder().is_empty() {
        return Err(Sense::bad_parameter(2));
    }
    if descriptors.len() > usize::from(MAX_COPY_TARGETS) {
        return Err(Sense::TOO_MANY_TARGET_DESCRIPTORS);
    }
    descriptors
        .map(|descriptor| {
            if descriptor[0] != IDENTIFICATION {
                return Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR);
            }
            let mut designator = [0; 20];
            designator.copy_from_slice(&descriptor[8..28]);
            Ok(CopyTarget {
                device_type: descriptor[1] & 0x1f,
                code_set: descriptor[4] & 0x0f,
                kind: descriptor[5] & 0x3f,
                designator,
                len: descriptor[7],
                block_size: u32_at(descriptor, 28) & 0x00ff_ffff,
            })
        })
        .collect()
}

fn parse_segments(mut bytes: &[u8]) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    while !bytes.is_empty() {
        if segments.len() == usize::from(MAX_COPY_SEGMENTS) {
            return Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS);
        }
        if bytes[0] != BLOCKS_TO_BLOCKS {
            return Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR);
        }
        let Some((segment, rest)) = bytes.split_at_checked(SEGMENT_LEN.into()) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        if SEGMENT_HEADER_LEN + usize::from(u16_at(segment, 2)) != segment.len() {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        segments.push(Segment {
            counts_destination: segment[1] & 0x02 != 0,
            source: u16_at(segment, 4),
            destination: u16_at(segment, 6),
            blocks: u16_at(segment, 10),
            source_lba: u64_at(segment, 12),
            destination_lba: u64_at(segment, 20),
        });
        bytes = rest;
    }
    Ok(segments)
}

impl CopyTarget {
    /// Whether it names this logical unit.
    #[must_use]
    pub fn names(&self, lun: &Lun) -> bool {
        let Some(wanted) = self.designator.get(..usize::from(self.len)) else { return false };
        lun.identity.designators().iter().any(|known| {
            (known.code_set, known.kind, &known.id[..]) == (self.code_set, self.kind, wanted)
        })
    }

    /// Checks what else it says of the logical unit that it names.
    fn check(&self, lun: &Lun) -> Result<(), Sense> {
        match (self.device_type == DISK, self.block_size == lun.block_size) {
            (true, true) => Ok(()),
            (false, _) => Err(Sense::INCORRECT_COPY_TARGET_TYPE),
            (true, false) => Err(Sense::INVALID_FIELD_IN_PARAMETERS),
        }
    }
}

impl Segment {
    /// The bytes that it copies from one logical unit to the other, which `targets` name.
    ///
    /// # Errors
    /// Why it cannot: of the sense the code counts, see [`aborted`].
    pub fn resolve(
        &self,
        targets: (&CopyTarget, &CopyTarget),
        (source, destination): (&Lun, &Lun),
    ) -> Result<CopyBytes, Sense> {
        targets.0.check(source)?;
        targets.1.check(destination)?;
        let counted = if self.counts_destination { destination } else { source };
        let len = u64::from(self.blocks) * u64::from(counted.block_size);
        let is_whole = |lun: &Lun| len.is_multiple_of(lun.block_size.into());
        if !is_whole(source) || !is_whole(destination) {
            return Err(Sense::UNEXPECTED_INEXACT_SEGMENT);
        }
        if len > MAX_SEGMENT_BYTES.into() {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        let from = first_byte(source, self.source_lba, len)?;
        let to = first_byte(destination, self.destination_lba, len)?;
        if destination.read_only {
            return Err(Sense::WRITE_PROTECTED);
        }
        Ok(CopyBytes { from, to, len })
    }
}

/// The first byte of blocks that are on the disk. Libraries know no code for blocks beyond the end; NO ADDITIONAL SENSE is the
/// one that claims nothing.
fn first_byte(lun: &Lun, lba: u64, len: u64) -> Result<u64, Sense> {
    let end = lba.checked_add(len / u64::from(lun.block_size));
    match end {
        Some(end) if lba < lun.block_count && end <= lun.block_count => {
            Ok(lba * u64::from(lun.block_size))
        }
        _ => Err(Sense::NONE),
    }
}

/// The sense of a copy that has ended at this segment for that reason (SPC-4, 6.4.3).
#[must_use]
pub fn aborted(segment: u16, why: &Sense) -> Sense {
    Sense::new(SenseKey::CopyAborted, why.code).in_segment(segment)
}

impl CopyStatus {
    /// Parameter data of Receive Copy Status.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            CopyState::InProgress => 0x00,
            CopyState::Done => 0x01,
            CopyState::Failed => 0x02,
        };
        // TRANSFER COUNT UNITS: bytes, or KiB where they do not fit
        let (units, count) = match u32::try_from(self.bytes) {
            Ok(bytes) => (0, bytes),
            Err(_) => (1, u32::try_from(self.bytes >> 10).unwrap_or(u32::MAX)),
        };
        let mut data = vec![0, 0, 0, 8, state];
        data.extend(self.segments.to_be_bytes());
        data.push(units);
        data.extend(count.to_be_bytes());
        data
    }
}

/// Parameter data of Receive Copy Operating Parameters.
#[must_use]
pub fn operating_parameters() -> Vec<u8> {
    let mut data = vec![0; 44];
    data[4] = 0x01; // SNLID: a copy may have no list identifier
    data[8..10].copy_from_slice(&MAX_COPY_TARGETS.to_be_bytes());
    data[10..12].copy_from_slice(&MAX_COPY_SEGMENTS.to_be_bytes());
    data[12..16].copy_from_slice(&MAX_DESCRIPTOR_BYTES.to_be_bytes());
    data[16..20].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    data[34..36].copy_from_slice(&u16::from(MAX_CONCURRENT_COPIES).to_be_bytes());
    data[36] = MAX_CONCURRENT_COPIES;
    data[37] = GRANULARITY_EXPONENT;
    data[43] = u8::try_from(TYPES.len()).expect("two");
    data.extend(TYPES);
    let available = u32::try_from(data.len() - 4).expect("short");
    data[..4].copy_from_slice(&available.to_be_bytes());
    data
}

/// The page Third Party Copy (SPC-4, 7.8.17) without its header: commands, limits, descriptors.
pub(crate) fn third_party_copy_page() -> Vec<u8> {
    let mut page = Vec::with_capacity(128);
    // Supported Commands: operation code, number of service actions, service actions
    put_descriptor(&mut page, 0x0001, &[7, 0x83, 1, 0x00, 0x84, 2, 0x00, 0x03]);
    let mut parameters = vec![0; 28];
    parameters[4..6].copy_from_slice(&MAX_COPY_TARGETS.to_be_bytes());
    parameters[6..8].copy_from_slice(&MAX_COPY_SEGMENTS.to_be_bytes());
    parameters[8..12].copy_from_slice(&MAX_DESCRIPTOR_BYTES.to_be_bytes());
    put_descriptor(&mut page, 0x0004, &parameters);
    put_descriptor(&mut page, 0x0008, &[2, BLOCKS_TO_BLOCKS, IDENTIFICATION]);
    let mut general = vec![0; 32];
    general[..4].copy_from_slice(&u32::from(MAX_CONCURRENT_COPIES).to_be_bytes());
    general[4..8].copy_from_slice(&u32::from(MAX_CONCURRENT_COPIES).to_be_bytes());
    general[8..12].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    general[12] = GRANULARITY_EXPONENT;
    put_descriptor(&mut page, 0x8001, &general);
    page
}

/// A third-party copy descriptor; its length is a multiple of 4.
fn put_descriptor(page: &mut Vec<u8>, kind: u16, fields: &[u8]) {
    let len = (4 + fields.len()).next_multiple_of(4) - 4;
    page.extend(kind.to_be_bytes());
    page.extend(u16::try_from(len).expect("short").to_be_bytes());
    page.extend(fields);
    page.resize(page.len() + len - fields.len(), 0);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}
