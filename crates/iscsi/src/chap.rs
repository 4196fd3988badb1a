//! CHAP: responses, their check, and the binary values of its keys (RFC 7143, 12.1.3; RFC 1994).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use sha3::Sha3_256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Most bytes of a challenge (12.1.3).
pub const MAX_CHALLENGE_LEN: usize = 1024;
/// Bytes of the challenges that this crate sends.
pub const CHALLENGE_LEN: usize = 32;
/// A secret of fewer bytes may be used over IPsec only (9.2.1).
pub const MIN_SECRET_LEN: usize = 12;

/// A hash function, by its number in CHAP_A (IANA: PPP authentication algorithms).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// 5: MD5, which every implementation has.
    Md5,
    /// 6: SHA-1.
    Sha1,
    /// 7: SHA-256.
    Sha256,
    /// 8: SHA3-256.
    Sha3,
}

impl Algorithm {
    /// All of them, the strongest first.
    pub const ALL: &[Self] = &[Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// By its number as text.
    #[must_use]
    pub fn from_text(number: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.text() == number)
    }

    /// Its number as text.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha1 => "6",
            Self::Sha256 => "7",
            Self::Sha3 => "8",
        }
    }

    /// Bytes of a response.
    #[must_use]
    pub const fn response_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3 => 32,
        }
    }

    /// The response: the hash of identifier, secret and challenge.
    #[must_use]
    pub fn response(self, id: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        fn hash<D: Digest>(id: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
            let mut hash = D::new();
            hash.update([id]);
            hash.update(&secret.0[..]);
            hash.update(challenge);
            hash.finalize().to_vec()
        }
        match self {
            Self::Md5 => hash::<Md5>(id, secret, challenge),
            Self::Sha1 => hash::<Sha1>(id, secret, challenge),
            Self::Sha256 => hash::<Sha256>(id, secret, challenge),
            Self::Sha3 => hash::<Sha3_256>(id, secret, challenge),
        }
    }

    /// Whether a response is that of the secret; takes as long for a wrong one. Without a secret, because nobody has
    /// the name, it is wrong, and takes as long, too.
    #[must_use]
    pub fn is_right(
        self,
        id: u8,
        secret: Option<&Secret>,
        challenge: &[u8],
        response: &[u8],
    ) -> bool {
        let nobody = Secret::new(vec![0; 16]);
        let expected = self.response(id, secret.unwrap_or(&nobody), challenge);
        let equal = bool::from(expected.ct_eq(response));
        equal & secret.is_some()
    }
}

/// A secret. Its memory is wiped when it is dropped; it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Of bytes: a password is used as it is.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Whether it has fewer bytes than RFC 7143 wants without IPsec.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.len() < MIN_SECRET_LEN
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A binary value (6.1): hexadecimal behind `0x`, or base64 behind `0b`. `None` when it is neither, is empty or
/// exceeds `max` bytes.
///
/// ```
/// use raceline_iscsi::chap::from_text;
/// assert_eq!(from_text("0x0aFF", 2), Some(vec![0x0a, 0xff]));
/// assert_eq!(from_text("0bCv8=", 2), Some(vec![0x0a, 0xff]));
/// assert_eq!(from_text("0x0aFF", 1), None);
/// assert_eq!(from_text("0x0aF", 2), None);
/// ```
#[must_use]
pub fn from_text(value: &str, max: usize) -> Option<Vec<u8>> {
    let bytes = match value.as_bytes() {
        [b'0', b'x' | b'X', digits @ ..] => {
            if !digits.len().is_multiple_of(2) || digits.len() / 2 > max {
                return None;
            }
            digits.chunks_exact(2).map(hex_byte).collect::<Option<Vec<u8>>>()?
        }
        [b'0', b'b' | b'B', digits @ ..] => {
            if digits.len() / 4 > max / 3 + 1 {
                return None;
            }
            STANDARD.decode(digits).ok()?
        }
        _ => return None,
    };
    Some(bytes).filter(|bytes| (1..=max).contains(&bytes.len()))
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(digits[0])? << 4 | digit(digits[1])?)
}

/// A binary value as text, in hexadecimal.
#[must_use]
pub fn to_text(bytes: &[u8]) -> String {
    use fmt::Write;
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's hashlib: H(01 || "secret-secret" || 00 01 .. 0f).
    const RESPONSES: [(Algorithm, &str); 4] = [
        (Algorithm::Md5, "0x41cdd4a71fbf6e597cb74760765d3f8a"),
        (Algorithm::Sha1, "0x7fe93362cb97cd38a3d784d278ffe28022363d08"),
        (Algorithm::Sha256, "0x8702a8c0aaf9cca9efa685f9c14d9d1c3a408bb412cdfbea3aa28127cf0e60fc"),
        (Algorithm::Sha3, "0x510e04a14bcea37da7d70eb6d15aed3a6da6bf3dd1600e4c361db71a50477f6b"),
    ];

    #[test]
    fn responses_are_those_of_another_implementation() {
        let secret = Secret::new(b"secret-secret".to_vec());
        let challenge: Vec<u8> = (0..16).collect();
        for (algorithm, expected) in RESPONSES {
            let response = algorithm.response(1, &secret, &challenge);
            assert_eq!(to_text(&response), expected);
            assert_eq!(response.len(), algorithm.response_len());
            assert!(algorithm.is_right(1, Some(&secret), &challenge, &response));
            assert!(!algorithm.is_right(2, Some(&secret), &challenge, &response), "another id");
            assert!(!algorithm.is_right(1, None, &challenge, &response), "nobody's");
            assert!(!algorithm.is_right(1, Some(&secret), &challenge, &response[1..]), "short");
            let longer = [&response[..], &[0]].concat();
            assert!(!algorithm.is_right(1, Some(&secret), &challenge, &longer), "long");
        }
    }

    #[test]
    fn nobody_has_no_secret_that_can_be_guessed() {
        let zeroes = Secret::new(vec![0; 16]);
        let response = Algorithm::Md5.response(7, &zeroes, b"challenge");
        assert!(!Algorithm::Md5.is_right(7, None, b"challenge", &response));
    }

    #[test]
    fn binary_values_are_exact() {
        assert_eq!(from_text("0x", 4), None);
        assert_eq!(from_text("0b", 4), None);
        assert_eq!(from_text("abcd", 4), None);
        assert_eq!(from_text("0xgg", 4), None);
        assert_eq!(from_text("0b====", 4), None);
        assert_eq!(from_text("0bAAAA", 2), None);
        let longest = to_text(&[7; MAX_CHALLENGE_LEN]);
        assert_eq!(from_text(&longest, MAX_CHALLENGE_LEN), Some(vec![7; MAX_CHALLENGE_LEN]));
        let base64 = format!("0b{}", STANDARD.encode([7; MAX_CHALLENGE_LEN]));
        assert_eq!(from_text(&base64, MAX_CHALLENGE_LEN), Some(vec![7; MAX_CHALLENGE_LEN]));
        let huge = format!("0b{}", STANDARD.encode([7; MAX_CHALLENGE_LEN + 1]));
        assert_eq!(from_text(&huge, MAX_CHALLENGE_LEN), None);
    }

    #[test]
    fn secrets_are_not_printed() {
        let secret = Secret::new(b"short".to_vec());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(secret.is_short());
        assert!(!Secret::new(vec![1; 12]).is_short());
    }
}
