//! Parts of a device, as the payload of [`crate::Op::Find`].

use std::ops::Range;

use raceline_reactor::{IoBuf, Payload};

/// Bytes of a part in the payload: its first byte and its length, little-endian.
const PART_LEN: usize = 16;

/// What [`crate::Op::Find`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// What is allocated: all other bytes read zeroes and take no space.
    Data,
    /// Blocks that cannot be read since [`crate::Op::WriteUncorrectable`].
    Uncorrectable,
}

/// Puts parts, in bytes, into a payload.
pub(crate) fn encode(parts: &[Range<u64>]) -> Payload {
    let mut bytes = Vec::with_capacity(parts.len() * PART_LEN);
    for part in parts {
        bytes.extend(part.start.to_le_bytes());
        bytes.extend((part.end - part.start).to_le_bytes());
    }
    let buf = IoBuf::from_slice(&bytes);
    let len = buf.len();
    Payload::Buf(buf, 0..len)
}

/// The parts that a device has found, in bytes and in ascending order.
#[must_use]
pub fn found_parts(payload: Option<&Payload>) -> Vec<Range<u64>> {
    let Some(Payload::Buf(buf, range)) = payload else { return Vec::new() };
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let parts = buf[range.clone()].chunks_exact(PART_LEN);
    let parts = parts.map(|part| (number(&part[..8]), number(&part[8..])));
    parts.map(|(start, len)| start..start + len).collect()
}

/// The same parts, moved down by `start` bytes.
pub(crate) fn moved_down(payload: Option<&Payload>, start: u64) -> Payload {
    let parts = found_parts(payload).into_iter();
    let moved = parts.map(|part| part.start.saturating_sub(start)..part.end.saturating_sub(start));
    encode(&moved.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_payload() {
        let parts = [512..1024, 1 << 40..(1 << 40) + 1];
        let payload = encode(&parts);
        assert_eq!(found_parts(Some(&payload)), parts);
        assert_eq!(found_parts(Some(&moved_down(Some(&payload), 512)))[0], 0..512);
        assert!(found_parts(Some(&encode(&[]))).is_empty() && found_parts(None).is_empty());
    }
}
