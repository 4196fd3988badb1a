//! The identities of pre-shared keys in a ClientHello, and their binders (RFC 8446, 4.1.2 and 4.2.11).

/// The type of the extension with them.
const PRE_SHARED_KEY: u16 = 41;

/// The type of a record with handshake messages.
const HANDSHAKE: u8 = 22;

/// Identities that are looked up, of one ClientHello. Hosts offer one or two.
pub(crate) const IDENTITIES_MAX: usize = 8;

/// A reader that gives `None` where bytes are missing.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<usize> {
        Some(usize::from(self.take(1)?[0]))
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// A vector with a length of one byte, or of two.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let len = self.u8()?;
        self.take(len)
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.u16()?);
        self.take(len)
    }
}

/// The identities that a ClientHello offers, the first [`IDENTITIES_MAX`]; `None` if it is malformed. `message` begins
/// behind the header of the handshake message.
pub(crate) fn identities(message: &[u8]) -> Option<Vec<&[u8]>> {
    let mut hello = Reader(message);
    hello.take(2 + 32)?; // legacy_version, random
    hello.vector8()?; // legacy_session_id
    hello.vector16()?; // cipher_suites
    hello.vector8()?; // legacy_compression_methods
    let mut found = Vec::new();
    if hello.0.is_empty() {
        return Some(found);
    }
    let mut extensions = Reader(hello.vector16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector16()?;
        if kind != PRE_SHARED_KEY {
            continue;
        }
        let mut offered = Reader(Reader(data).vector16()?);
        while !offered.0.is_empty() && found.len() < IDENTITIES_MAX {
            found.push(offered.vector16()?);
            offered.take(4)?; // obfuscated_ticket_age, 0 for external keys
        }
    }
    Some(found)
}

/// The handshake message of a ClientHello with its header, from the records with which a connection begins; `None` if
/// they do not hold all of it.
pub(crate) fn first_message(records: &[u8]) -> Option<Vec<u8>> {
    let mut records = Reader(records);
    let mut message = Vec::new();
    loop {
        if let [_, high, middle, low, rest @ ..] = &message[..] {
            let len = u32::from_be_bytes([0, *high, *middle, *low]);
            let len = usize::try_from(len).ok()?;
            if rest.len() >= len {
                message.truncate(4 + len);
                return Some(message);
            }
        }
        if records.take(1)? != [HANDSHAKE] {
            return None;
        }
        records.take(2)?; // legacy_record_version
        message.extend(records.vector16()?);
    }
}

/// The binders of a ClientHello, in the order of its identities, and the length of what they bind: all of the message
/// before them. `message` is what [`first_message`] gives. `None` if there are none where they have to be, at its end.
pub(crate) fn binders(message: &[u8]) -> Option<(usize, Vec<&[u8]>)> {
    let mut hello = Reader(message);
    hello.take(4 + 2 + 32)?; // the header, legacy_version, random
    hello.vector8()?; // legacy_session_id
    hello.vector16()?; // cipher_suites
    hello.vector8()?; // legacy_compression_methods
    let mut extensions = Reader(hello.vector16()?);
    let mut last = (0, &[][..]);
    while !extensions.0.is_empty() {
        last = (extensions.u16()?, extensions.vector16()?);
    }
    let (PRE_SHARED_KEY, data) = last else { return None };
    let mut offered = Reader(data);
    offered.vector16()?; // identities
    let len = offered.0.len();
    let mut list = Reader(offered.vector16()?);
    if !(offered.0.is_empty() && hello.0.is_empty()) {
        return None;
    }
    let mut found = Vec::new();
    while !list.0.is_empty() && found.len() < IDENTITIES_MAX {
        found.push(list.vector8()?);
    }
    Some((message.len() - len, found))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut message = vec![3, 3];
        message.extend([7; 32]);
        message.extend([2, 1, 2, 0, 2, 0x13, 1, 1, 0]);
        message.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        message.extend(extensions);
        message
    }

    /// supported_versions, then pre_shared_key with "abc" and "z".
    const EXTENSIONS: &[u8] = &[
        0, 43, 0, 3, 2, 3, 4, 0, 41, 0, 23, 0, 16, 0, 3, b'a', b'b', b'c', 0, 0, 0, 0, 0, 1, b'z',
        0, 0, 0, 0, 0, 3, 2, 9, 9,
    ];

    #[test]
    fn identities_are_found() {
        assert_eq!(identities(&hello(EXTENSIONS)).unwrap(), [&b"abc"[..], &b"z"[..]]);
        assert_eq!(identities(&hello(&[])).unwrap(), [&b""[..]; 0]);
        let whole = hello(EXTENSIONS);
        let without = whole.len() - EXTENSIONS.len() - 2;
        for cut in (0..whole.len()).filter(|cut| *cut != without) {
            assert_eq!(identities(&whole[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn binders_are_found_behind_what_they_bind() {
        let body = hello(EXTENSIONS);
        let mut message = vec![1, 0, 0, u8::try_from(body.len()).unwrap()];
        message.extend(&body);
        let bound = message.len() - 5;
        assert_eq!(binders(&message), Some((bound, vec![&[9, 9][..]])));
        assert!((0..message.len()).all(|cut| binders(&message[..cut]).is_none()));
        // In records of any size, and with something behind them.
        for size in [1, 7, 50, message.len()] {
            let mut records = Vec::new();
            for piece in message.chunks(size) {
                records.extend([22, 3, 1, 0, u8::try_from(piece.len()).unwrap()]);
                records.extend(piece);
            }
            assert!((0..records.len()).all(|cut| first_message(&records[..cut]).is_none()));
            records.extend([20, 3, 3, 0, 1, 1]);
            assert_eq!(first_message(&records).as_ref(), Some(&message));
        }
        let mut turned = EXTENSIONS.to_vec();
        turned.rotate_left(7);
        message.splice(4.., hello(&turned));
        assert_eq!(binders(&message), None, "pre_shared_key is not the last extension");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(extensions in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = identities(&hello(&extensions));
            let _ = identities(&extensions);
            let _ = first_message(&extensions);
            let _ = binders(&[&[1, 0, 0, 0], &hello(&extensions)[..]].concat());
        }
    }
}
