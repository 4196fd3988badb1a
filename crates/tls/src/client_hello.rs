//! The identities of pre-shared keys in a ClientHello (RFC 8446, 4.1.2 and 4.2.11).

/// The type of the extension with them.
const PRE_SHARED_KEY: u16 = 41;

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

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(extensions in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = identities(&hello(&extensions));
            let _ = identities(&extensions);
        }
    }
}
