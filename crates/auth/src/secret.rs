//! Bytes that are secret, and the secrets of DH-HMAC-CHAP.

use std::fmt;
use std::str::FromStr;

use raceline_proto::nvme::Nqn;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::hash::Hash;
use crate::interchange::{self, KeyError};
use crate::memory::{SLOT_BYTES, Slot};

/// The most bytes of a secret: the output of SHA-512.
const MAX_LEN: usize = SLOT_BYTES;

/// At most 64 secret bytes, in memory that is not swapped out where the limit of locked memory allows that. Dropping
/// overwrites them, `==` takes the same time whatever they are, and `Debug` shows only their number.
pub struct SecretBytes {
    slot: Slot,
    len: usize,
}

impl SecretBytes {
    /// A copy of these bytes.
    ///
    /// # Panics
    /// When there are more than 64.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut secret = Self::zeroes(bytes.len());
        secret.as_mut_bytes().copy_from_slice(bytes);
        secret
    }

    /// `len` zeroes, to be overwritten.
    pub(crate) fn zeroes(len: usize) -> Self {
        assert!(len <= MAX_LEN, "a secret of {len} bytes");
        Self { slot: Slot::take(), len }
    }

    /// `len` random bytes.
    ///
    /// # Errors
    /// When the operating system gives none.
    pub(crate) fn random(len: usize) -> Result<Self, KeyError> {
        let mut secret = Self::zeroes(len);
        getrandom::fill(secret.as_mut_bytes()).map_err(|_| KeyError::NoRandomness)?;
        Ok(secret)
    }

    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.slot.bytes_mut()[..self.len]
    }

    /// The bytes. Whoever copies them has to overwrite the copy.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.slot.bytes()[..self.len]
    }

    /// Whether these are the same bytes, in a time that depends on their number only.
    #[must_use]
    pub fn equals(&self, other: &[u8]) -> bool {
        self.expose().ct_eq(other).into()
    }
}

impl Clone for SecretBytes {
    fn clone(&self) -> Self {
        Self::new(self.expose())
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other.expose())
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.len)
    }
}

/// What comes before the hash identifier in the text of a secret.
const PREFIX: &str = "DHHC-1";
/// What the transformation of a secret appends to the name of its owner.
const TRANSFORM_SUFFIX: &[u8] = b"NVMe-over-Fabrics";

/// A secret of DH-HMAC-CHAP: `DHHC-1:<hash>:<base64 of key and CRC-32>:`.
///
/// The hash says how the key is transformed with the name of its owner before it is used: 00 not at all, 01 to 03 by
/// HMAC with SHA-256, SHA-384 or SHA-512.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhchapSecret {
    key: SecretBytes,
    transform: Option<Hash>,
}

impl DhchapSecret {
    /// Makes a new secret of 32, 48 or 64 bytes: as many as the output of `transform`, and 32 without it.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn generate(transform: Option<Hash>) -> Result<Self, KeyError> {
        let len = transform.map_or(Hash::Sha256.len(), Hash::len);
        Ok(Self { key: SecretBytes::random(len)?, transform })
    }

    /// Reads a secret. Space around it is ignored.
    ///
    /// # Errors
    /// When the text is no secret; the error never shows a part of it.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (id, key) = interchange::parse(text, PREFIX)?;
        let transform = match id {
            0 => None,
            id => Some(Hash::from_id(id).ok_or(KeyError::UnknownHash)?),
        };
        match (transform, key.expose().len()) {
            (_, 32 | 48 | 64) => Ok(Self { key, transform }),
            _ => Err(KeyError::Length),
        }
    }

    /// The secret as text. The text is overwritten when it is dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        interchange::print(PREFIX, self.transform.map_or(0, Hash::id), &self.key)
    }

    /// The key that proves `owner`: the host's for a host's secret, the subsystem's for a controller's.
    pub(crate) fn key_of(&self, owner: &Nqn) -> SecretBytes {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => {
                hash.hmac(self.key.expose(), &[owner.as_str().as_bytes(), TRANSFORM_SUFFIX])
            }
        }
    }
}

impl FromStr for DhchapSecret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_samples_are_read_and_printed() {
        for (text, transform, len) in [
            ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", None, 32),
            ("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", None, 32),
        ] {
            let secret = DhchapSecret::parse(&format!(" {text}\n")).unwrap();
            assert_eq!(secret.key.expose().len(), len);
            assert_eq!(secret.transform, transform);
            assert_eq!(*secret.to_text(), text);
        }
    }

    #[test]
    fn generated_secrets_differ_and_come_back() {
        for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
            let secret = DhchapSecret::generate(transform).unwrap();
            assert_eq!(DhchapSecret::parse(&secret.to_text()), Ok(secret.clone()));
            assert_ne!(DhchapSecret::generate(transform), Ok(secret));
        }
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let good = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
        assert!(DhchapSecret::parse(good).is_ok());
        for (text, error) in [
            ("", KeyError::Form("DHHC-1")),
            ("DHHC-2:01:AAEC:", KeyError::Form("DHHC-1")),
            (&good[..good.len() - 1], KeyError::Form("DHHC-1")),
            (&good.replace(":01:", ":1:"), KeyError::Form("DHHC-1")),
            (&good.replace(":01:", ":04:"), KeyError::UnknownHash),
            (&good.replace(":01:", ":xx:"), KeyError::Form("DHHC-1")),
            (&good.replace("AAEC", "AAED"), KeyError::Checksum),
            (&good.replace("AAEC", "A!EC"), KeyError::Base64),
            (&good.replace("AAEC", ""), KeyError::Checksum),
            ("DHHC-1:00:AAAAAA==:", KeyError::Length),
        ] {
            assert_eq!(DhchapSecret::parse(text), Err(error), "{text:?}");
        }
        let long = format!("DHHC-1:00:{}:", "A".repeat(10_000));
        assert_eq!(DhchapSecret::parse(&long), Err(KeyError::Length));
    }

    #[test]
    fn nothing_shows_a_secret() {
        let secret = DhchapSecret::generate(None).unwrap();
        let text = secret.to_text();
        let shown = format!("{secret:?}");
        assert!(shown.contains("32 bytes"), "{shown}");
        assert!(!shown.contains(&text[10..30]), "{shown}");
    }
}
