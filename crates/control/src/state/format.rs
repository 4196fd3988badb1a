//! The log on disk: segments of groups of changes, every group in blocks of its own.
//!
//! A segment is a header block, then groups. One sync made each group durable: a header, a JSON array of
//! changes, zeros up to the next block. No block of a group is ever written again after its sync, so a torn
//! write can only spoil the group that was being written. Each group is synced before the next one is
//! written, so an invalid group with a valid one behind it was durable once: that is damage, not a torn
//! write.
//!
//! There may be zeroes behind the last group, written ahead so that a group only overwrites blocks. They
//! are neither a group nor a torn write, but the end.

use raceline_crc32c::crc32c;
use serde_json::Value;
use uuid::Uuid;

/// The unit of writing. At least the sector and page size of common disks, so that writing one
/// block never touches another.
pub(super) const BLOCK_BYTES: usize = 4096;
/// The newest format of the log that this program reads, and the one that it writes.
pub(super) const LOG_FORMAT: u32 = 1;
/// The largest encoded change, or list of changes that are recorded all or none.
pub const MAX_CHANGE_BYTES: usize = 4 << 20;
/// Changes are collected in one group up to this size.
pub(super) const GROUP_TARGET_BYTES: usize = 1 << 20;
/// The largest payload of a group: the target, exceeded by at most one change, and brackets.
const MAX_PAYLOAD_BYTES: usize = GROUP_TARGET_BYTES + MAX_CHANGE_BYTES + 2;
/// Bytes before a group's payload.
const GROUP_HEADER_BYTES: usize = 32;

/// Begins a segment. Neither magic is UTF-8, so no payload can contain one.
const SEGMENT_MAGIC: [u8; 8] = *b"\xfeRLSTATE";
/// Begins a group.
const GROUP_MAGIC: [u8; 8] = *b"\xfeRLGROUP";

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The state that it belongs to.
    pub(super) state: Uuid,
    /// The sequence number of its first change.
    pub(super) first_sequence: u64,
}

/// Why a segment's header cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// It is not a header, or is damaged.
    Invalid,
    /// It has this format, which is newer than this program.
    Version(u32),
}

impl SegmentHeader {
    /// The header block: magic, CRC32C of the rest, format, state, first sequence, zeros.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(BLOCK_BYTES);
        rest.extend(LOG_FORMAT.to_le_bytes());
        rest.extend(self.state.as_bytes());
        rest.extend(self.first_sequence.to_le_bytes());
        rest.resize(BLOCK_BYTES - SEGMENT_MAGIC.len() - size_of::<u32>(), 0);
        let mut block = SEGMENT_MAGIC.to_vec();
        block.extend(crc32c(&rest).to_le_bytes());
        block.extend(rest);
        block
    }

    /// Reads the header block at the start of a segment.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let block = bytes.get(..BLOCK_BYTES).ok_or(HeaderError::Invalid)?;
        let mut reader = Reader(block);
        let magic: [u8; 8] = reader.take().ok_or(HeaderError::Invalid)?;
        let sum = u32::from_le_bytes(reader.take().ok_or(HeaderError::Invalid)?);
        if magic != SEGMENT_MAGIC || crc32c(reader.0) != sum {
            return Err(HeaderError::Invalid);
        }
        let format = u32::from_le_bytes(reader.take().ok_or(HeaderError::Invalid)?);
        if format != LOG_FORMAT {
            return Err(HeaderError::Version(format));
        }
        let state = Uuid::from_bytes(reader.take().ok_or(HeaderError::Invalid)?);
        let first_sequence = u64::from_le_bytes(reader.take().ok_or(HeaderError::Invalid)?);
        Ok(Self { state, first_sequence })
    }
}

/// The bytes of the log that one change takes at most: those of a group of its own.
pub(super) fn room_for(change_bytes: usize) -> u64 {
    let whole = (GROUP_HEADER_BYTES + 2 + change_bytes).next_multiple_of(BLOCK_BYTES);
    whole as u64
}

/// A group being put together.
#[derive(Debug, Default)]
pub(super) struct GroupBuilder {
    /// Encoded changes, joined by commas.
    changes: Vec<u8>,
    count: u32,
}

impl GroupBuilder {
    /// Adds encoded changes, already joined by commas.
    pub(super) fn push(&mut self, encoded: &[u8], count: u32) {
        if !self.changes.is_empty() {
            self.changes.push(b',');
        }
        self.changes.extend(encoded);
        self.count += count;
    }

    /// How many changes there are.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The whole blocks of the group whose first change has this number.
    pub(super) fn encode(&self, first_sequence: u64) -> Vec<u8> {
        let payload_bytes = self.changes.len() + 2;
        let total_bytes = (GROUP_HEADER_BYTES + payload_bytes).next_multiple_of(BLOCK_BYTES);
        let mut body = Vec::with_capacity(total_bytes - GROUP_HEADER_BYTES);
        body.push(b'[');
        body.extend(&self.changes);
        body.push(b']');
        body.resize(total_bytes - GROUP_HEADER_BYTES, 0);

        let mut fields = Vec::with_capacity(GROUP_HEADER_BYTES);
        // The checksum also covers the padding, so that it protects every byte of the file.
        fields.extend(crc32c(&body).to_le_bytes());
        // MAX_PAYLOAD_BYTES fits; a larger payload would not be read back, so it saturates.
        fields.extend(u32::try_from(payload_bytes).unwrap_or(u32::MAX).to_le_bytes());
        fields.extend(self.count.to_le_bytes());
        fields.extend(first_sequence.to_le_bytes());

        let mut group = Vec::with_capacity(total_bytes);
        group.extend(GROUP_MAGIC);
        group.extend(crc32c(&fields).to_le_bytes());
        group.extend(fields);
        group.extend(body);
        group
    }
}

/// The fields of a valid group header.
struct GroupHeader {
    body_sum: u32,
    payload_bytes: usize,
    count: u32,
    first_sequence: u64,
}

impl GroupHeader {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.get(..GROUP_HEADER_BYTES)?);
        let magic: [u8; 8] = reader.take()?;
        let sum = u32::from_le_bytes(reader.take()?);
        if magic != GROUP_MAGIC || crc32c(reader.0) != sum {
            return None;
        }
        let body_sum = u32::from_le_bytes(reader.take()?);
        let payload_bytes = usize::try_from(u32::from_le_bytes(reader.take()?)).ok()?;
        let count = u32::from_le_bytes(reader.take()?);
        let first_sequence = u64::from_le_bytes(reader.take()?);
        let plausible = (2..=MAX_PAYLOAD_BYTES).contains(&payload_bytes) && count > 0;
        plausible.then_some(Self { body_sum, payload_bytes, count, first_sequence })
    }

    fn total_bytes(&self) -> usize {
        (GROUP_HEADER_BYTES + self.payload_bytes).next_multiple_of(BLOCK_BYTES)
    }
}

/// What a segment holds.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// Its changes, in order.
    pub(super) changes: Vec<Value>,
    /// Where its last valid group ends.
    pub(super) end_bytes: usize,
    /// Bytes after that, up to the last that is not zero: a group that was never synced.
    pub(super) torn_bytes: usize,
}

/// Damage in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// Where.
    pub(super) offset: usize,
    /// What is wrong.
    pub(super) problem: String,
}

/// Reads the groups of a segment, beginning with `sequence`, up to the change before `stop`
/// where the next segment takes over.
pub(super) fn scan(bytes: &[u8], mut sequence: u64, stop: Option<u64>) -> Result<Scanned, Damage> {
    let mut scanned = Scanned { end_bytes: BLOCK_BYTES, ..Scanned::default() };
    while Some(sequence) != stop {
        let rest = bytes.get(scanned.end_bytes..).unwrap_or_default();
        if rest.is_empty() {
            break;
        }
        match read_group(rest, sequence) {
            Ok((changes, group_bytes)) => {
                sequence += changes.len() as u64;
                scanned.changes.extend(changes);
                scanned.end_bytes += group_bytes;
            }
            Err(problem) => match next_group(rest) {
                Some(later) => {
                    let later = scanned.end_bytes + later;
                    let problem = format!(
                        "change {sequence} cannot be read ({problem}), though more follow at byte {later}"
                    );
                    return Err(Damage { offset: scanned.end_bytes, problem });
                }
                None => {
                    let last = rest.iter().rposition(|byte| *byte != 0);
                    scanned.torn_bytes = last.map_or(0, |last| last + 1);
                    break;
                }
            },
        }
    }
    if let Some(stop) = stop
        && sequence != stop
    {
        let problem =
            format!("changes {sequence} to {} are missing, though later ones exist", stop - 1);
        return Err(Damage { offset: scanned.end_bytes, problem });
    }
    Ok(scanned)
}

/// The changes of the group at the start of `bytes`, and its size.
fn read_group(bytes: &[u8], sequence: u64) -> Result<(Vec<Value>, usize), String> {
    let header = GroupHeader::decode(bytes).ok_or("no valid header")?;
    let body = bytes.get(GROUP_HEADER_BYTES..header.total_bytes()).ok_or("it is cut off")?;
    if crc32c(body) != header.body_sum {
        return Err("its checksum does not match".into());
    }
    if header.first_sequence != sequence {
        return Err(format!("change {} stands there", header.first_sequence));
    }
    let payload = &body[..header.payload_bytes];
    let changes: Vec<Value> =
        serde_json::from_slice(payload).map_err(|error| format!("it is no list: {error}"))?;
    if changes.len() as u64 != u64::from(header.count) {
        return Err(format!("it has {} changes, not {}", changes.len(), header.count));
    }
    Ok((changes, header.total_bytes()))
}

/// The offset of a later block that begins a group.
fn next_group(bytes: &[u8]) -> Option<usize> {
    // A whole group at the start counts as well: then only its number or its text is wrong.
    let whole = |offset: usize| {
        let rest = bytes.get(offset..)?;
        let header = GroupHeader::decode(rest)?;
        if offset > 0 {
            return Some(offset);
        }
        let body = rest.get(GROUP_HEADER_BYTES..header.total_bytes())?;
        (crc32c(body) == header.body_sum).then_some(offset)
    };
    (0..bytes.len()).step_by(BLOCK_BYTES).find_map(whole)
}

/// Whether any block of a segment begins a group.
pub(super) fn has_groups(bytes: &[u8]) -> bool {
    next_group(bytes).is_some()
}

/// Takes arrays off the front of a slice.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn change(number: usize) -> Value {
        json!({ "number": number, "text": "x".repeat(number * 700 % 9000) })
    }

    /// A segment of groups of these sizes, and where each group begins.
    fn segment(groups: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let header = SegmentHeader { state: Uuid::nil(), first_sequence: 1 };
        let (mut bytes, mut offsets, mut number) = (header.encode(), Vec::new(), 0);
        for size in groups {
            let mut builder = GroupBuilder::default();
            let first = number as u64 + 1;
            for _ in 0..*size {
                number += 1;
                builder.push(&serde_json::to_vec(&change(number)).unwrap(), 1);
            }
            offsets.push(bytes.len());
            bytes.extend(builder.encode(first));
        }
        (bytes, offsets)
    }

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        let (bytes, _) = segment(&[1, 3, 2]);
        assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let header = SegmentHeader::decode(&bytes).unwrap();
        assert_eq!(header, SegmentHeader { state: Uuid::nil(), first_sequence: 1 });
        let scanned = scan(&bytes, 1, None).unwrap();
        assert_eq!(scanned.changes, (1..=6).map(change).collect::<Vec<_>>());
        assert_eq!((scanned.end_bytes, scanned.torn_bytes), (bytes.len(), 0));
    }

    #[test]
    fn every_flipped_byte_before_the_last_group_is_damage() {
        let (bytes, offsets) = segment(&[1, 2, 1]);
        for offset in BLOCK_BYTES..offsets[2] {
            let mut bytes = bytes.clone();
            bytes[offset] ^= 0x41;
            let damage = scan(&bytes, 1, None).unwrap_err();
            assert!(damage.offset <= offset && offset < damage.offset + 5 * BLOCK_BYTES);
        }
        for offset in 0..BLOCK_BYTES {
            let mut bytes = bytes.clone();
            bytes[offset] ^= 0x41;
            assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Invalid));
        }
    }

    #[test]
    fn a_torn_last_group_is_cut_off_wherever_it_was_torn() {
        let (bytes, offsets) = segment(&[2, 9]);
        for length in (offsets[1] + 1..bytes.len()).step_by(61) {
            let scanned = scan(&bytes[..length], 1, None).unwrap();
            assert_eq!(scanned.changes.len(), 2);
            assert_eq!(scanned.end_bytes, offsets[1]);
            let torn = &bytes[offsets[1]..length];
            let zeroes = torn.iter().rev().take_while(|byte| **byte == 0).count();
            assert_eq!(scanned.torn_bytes, torn.len() - zeroes);
            assert!(scanned.torn_bytes > 0);
        }
    }

    #[test]
    fn zeroes_are_the_end_and_hide_nothing() {
        let (bytes, offsets) = segment(&[2, 1, 3]);
        let zeroes = vec![0; 3 * BLOCK_BYTES];
        let ahead = [&bytes[..], &zeroes].concat();
        let scanned = scan(&ahead, 1, None).unwrap();
        assert_eq!(scanned.changes.len(), 6);
        assert_eq!((scanned.end_bytes, scanned.torn_bytes), (bytes.len(), 0));
        // A torn write into the zeroes: either its first block is missing, or all others are.
        for kept in [1, 2] {
            let mut torn = ahead.clone();
            torn[offsets[2]..bytes.len()].fill(0);
            let block = offsets[2] + (kept - 1) * BLOCK_BYTES;
            torn[block..block + BLOCK_BYTES].copy_from_slice(&bytes[block..block + BLOCK_BYTES]);
            let scanned = scan(&torn, 1, None).unwrap();
            assert_eq!((scanned.changes.len(), scanned.end_bytes), (3, offsets[2]));
            assert_eq!(scanned.torn_bytes.div_ceil(BLOCK_BYTES), kept);
        }
        // A group in the middle was overwritten with zeroes: that is damage.
        let mut lost = ahead;
        lost[offsets[1]..offsets[2]].fill(0);
        let damage = scan(&lost, 1, None).unwrap_err();
        assert_eq!(damage.offset, offsets[1]);
        assert!(damage.problem.contains("change 3 cannot be read"), "{}", damage.problem);
    }

    #[test]
    fn missing_and_repeated_changes_are_damage() {
        let (bytes, offsets) = segment(&[2, 2, 2]);
        let missing = [&bytes[..offsets[1]], &bytes[offsets[2]..]].concat();
        let damage = scan(&missing, 1, None).unwrap_err();
        assert!(damage.problem.contains("change 5 stands there"), "{}", damage.problem);
        let damage = scan(&bytes, 1, Some(8)).unwrap_err();
        assert!(damage.problem.contains("changes 7 to 7 are missing"), "{}", damage.problem);
    }

    #[test]
    fn a_newer_format_says_so() {
        let mut block = SegmentHeader { state: Uuid::nil(), first_sequence: 1 }.encode();
        block[12] = 9;
        let sum = crc32c(&block[12..]).to_le_bytes();
        block[8..12].copy_from_slice(&sum);
        assert_eq!(SegmentHeader::decode(&block), Err(HeaderError::Version(9)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_scanned_without_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
            at in 0usize..4,
        ) {
            let (good, _) = segment(&[1]);
            let at = at * BLOCK_BYTES;
            if bytes.len() >= at + good.len() {
                bytes[at..at + good.len()].copy_from_slice(&good);
            }
            let _ = scan(&bytes, 1, None);
            let _ = SegmentHeader::decode(&bytes);
        }
    }
}
