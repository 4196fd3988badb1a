//! SHA-256, SHA-384 and SHA-512, and the functions made of them: HMAC and HKDF.

use std::fmt;
use std::str::FromStr;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::secret::SecretBytes;

/// A hash function of NVMe's authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hash {
    /// SHA-256: 32 bytes.
    Sha256,
    /// SHA-384: 48 bytes.
    Sha384,
    /// SHA-512: 64 bytes.
    Sha512,
}

/// HMAC with one of the functions.
macro_rules! hmac {
    ($hash:ty, $key:expr, $parts:expr) => {{
        let mut mac = Hmac::<$hash>::new_from_slice($key).expect("HMAC takes keys of every length");
        for part in $parts {
            mac.update(part);
        }
        SecretBytes::new(&mac.finalize().into_bytes())
    }};
}

/// HKDF-Expand(HKDF-Extract(zeroes, `ikm`), `info`).
macro_rules! hkdf {
    ($hash:ty, $ikm:expr, $info:expr, $out:expr) => {
        Hkdf::<$hash>::new(None, $ikm).expand($info, $out)
    };
}

impl Hash {
    /// All of them, the strongest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// By its identifier on the wire.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Its identifier on the wire, and in secrets.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// Bytes of its output: a multiple of 16 up to 64.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of output, not a collection")]
    pub fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The hash of a secret.
    pub(crate) fn digest(self, data: &[u8]) -> SecretBytes {
        match self {
            Self::Sha256 => SecretBytes::new(&Sha256::digest(data)),
            Self::Sha384 => SecretBytes::new(&Sha384::digest(data)),
            Self::Sha512 => SecretBytes::new(&Sha512::digest(data)),
        }
    }

    /// The HMAC of the parts, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> SecretBytes {
        match self {
            Self::Sha256 => hmac!(Sha256, key, parts),
            Self::Sha384 => hmac!(Sha384, key, parts),
            Self::Sha512 => hmac!(Sha512, key, parts),
        }
    }

    /// HKDF-Expand-Label of HKDF-Extract with a salt of zeroes (RFC 8446, 7.1): `len` bytes. `None`: the context
    /// is longer than 255 bytes, which its length byte cannot say.
    pub(crate) fn derive(
        self,
        ikm: &[u8],
        label: &str,
        context: &[u8],
        len: usize,
    ) -> Option<SecretBytes> {
        let mut info = Vec::with_capacity(4 + 6 + label.len() + context.len());
        info.extend(u16::try_from(len).ok()?.to_be_bytes());
        info.push(u8::try_from("tls13 ".len() + label.len()).ok()?);
        info.extend(b"tls13 ");
        info.extend(label.as_bytes());
        info.push(u8::try_from(context.len()).ok()?);
        info.extend(context);
        self.expand(ikm, &info, len)
    }

    /// The same as old versions of libnvme do it: the length has its low byte first, and neither label nor context have
    /// a length of their own.
    pub(crate) fn derive_as_old_libnvme(
        self,
        ikm: &[u8],
        label: &str,
        context: &[u8],
        len: usize,
    ) -> Option<SecretBytes> {
        let len_bytes = u16::try_from(len).ok()?.to_le_bytes();
        let info = [&len_bytes, &b"tls13 "[..], label.as_bytes(), context].concat();
        self.expand(ikm, &info, len)
    }

    fn expand(self, ikm: &[u8], info: &[u8], len: usize) -> Option<SecretBytes> {
        let mut out = SecretBytes::zeroes(len);
        match self {
            Self::Sha256 => hkdf!(Sha256, ikm, info, out.as_mut_bytes()),
            Self::Sha384 => hkdf!(Sha384, ikm, info, out.as_mut_bytes()),
            Self::Sha512 => hkdf!(Sha512, ikm, info, out.as_mut_bytes()),
        }
        .ok()?;
        Some(out)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        })
    }
}

impl FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|hash| hash.to_string() == text)
            .ok_or_else(|| format!("unknown hash {text:?}: use sha256, sha384 or sha512"))
    }
}
