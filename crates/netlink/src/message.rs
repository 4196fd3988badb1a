//! Netlink messages: headers and attributes, as bytes in the order of the machine.

/// The length of a message's header: length, kind, flags, sequence number, port.
pub(crate) const HEADER_BYTES: usize = 16;
/// The length of the header of a generic message: command, version, two bytes of nothing.
pub(crate) const GENERIC_BYTES: usize = 4;
/// The length of an attribute's header: length, kind.
const ATTRIBUTE_BYTES: usize = 4;
/// Bits of an attribute's kind that say how it is encoded.
const KIND_MASK: u16 = 0x3fff;
/// Says that an attribute holds attributes.
pub const NESTED: u16 = 0x8000;

/// An attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    /// What it is, without the bits that say how it is encoded.
    pub kind: u16,
    /// Its bytes; those of a nested attribute are attributes.
    pub value: &'a [u8],
}

/// The attributes in a buffer; a damaged one ends them.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)? & KIND_MASK;
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some(Attribute { kind, value })
    })
}

/// Appends an attribute.
pub fn append(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_BYTES + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(padded(bytes.len()), 0);
}

/// The messages in a buffer, as kind and body; a damaged one ends them.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(word(bytes, 0)?).ok()?;
        let kind = half(bytes, 4)?;
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// A value of one, two, four or eight bytes.
#[must_use]
pub fn unsigned(value: &[u8]) -> Option<u64> {
    match *value {
        [byte] => Some(u64::from(byte)),
        [a, b] => Some(u64::from(u16::from_ne_bytes([a, b]))),
        [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
        _ => Some(u64::from_ne_bytes(value.try_into().ok()?)),
    }
}

/// The text before the first zero.
#[must_use]
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back() {
        let mut bytes = Vec::new();
        append(&mut bytes, 1, b"abc\0");
        append(&mut bytes, 2 | NESTED, &[7]);
        assert_eq!(bytes.len(), 16);
        let found: Vec<_> = attributes(&bytes).map(|found| (found.kind, found.value)).collect();
        assert_eq!(found, [(1, &b"abc\0"[..]), (2, &[7][..])]);
        assert_eq!(text(b"abc\0def"), "abc");
    }

    #[test]
    fn damaged_bytes_end_the_list() {
        // An attribute that is longer than the buffer, one that is shorter than its header, and none.
        for bytes in [&[9, 0, 1, 0, 0][..], &[0, 0, 1, 0], &[4], &[]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
        assert_eq!(messages(&[255; 20]).count(), 0);
        assert_eq!(messages(&[0; 32]).count(), 0);
        assert_eq!(unsigned(&[1, 2, 3]), None);
        assert_eq!(unsigned(&[3, 0, 0, 0, 0, 0, 0, 0]), Some(3));
    }
}
