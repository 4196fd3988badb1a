//! The text form of keys: `PREFIX:<hash>:<base64 of key and CRC-32>:`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::secret::SecretBytes;

/// Bytes of the CRC-32 behind a key.
const CRC_LEN: usize = 4;
/// The most bytes of a key with its CRC.
const MAX_LEN: usize = 64 + CRC_LEN;
/// The longest text: the prefix of TLS keys, and base64 of the above.
const MAX_TEXT: usize = 200;

/// Why a text is no key. Nothing here shows a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another form.
    #[error(
        "a key of this kind has the form \"{0}:<two digits>:<base64>:\", with a colon at its end. Copy the whole key"
    )]
    Form(&'static str),
    /// The digits name no hash.
    #[error("the two digits of the key name no hash that keys of this kind can have")]
    UnknownHash,
    /// The part between the last colons is not base64.
    #[error("the part of the key before its last colon is not base64. Copy the whole key")]
    Base64,
    /// The CRC is not that of the key.
    #[error("the key's checksum is wrong: the key is damaged or was cut off. Copy it again")]
    Checksum,
    /// A key of another length.
    #[error("the key has a length that keys of this kind and hash cannot have")]
    Length,
    /// The two names do not fit into one identity.
    #[error(
        "the names of host and subsystem are too long together for a TLS identity of version 0. Use version 1"
    )]
    NamesTooLong,
    /// A name that an identity cannot have.
    #[error(
        "a name of host or subsystem has a space, which no TLS identity can have. Use another name"
    )]
    NameWithSpace,
    /// The operating system gives no random bytes.
    #[error("the operating system gives no random bytes")]
    NoRandomness,
}

/// Reads the hash identifier and the key.
pub(crate) fn parse(text: &str, prefix: &'static str) -> Result<(u8, SecretBytes), KeyError> {
    let form = || KeyError::Form(prefix);
    let text = text.trim();
    let rest =
        text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':')).ok_or_else(form)?;
    if text.len() > MAX_TEXT {
        return Err(KeyError::Length);
    }
    let rest = rest.strip_suffix(':').ok_or_else(form)?;
    let (digits, encoded) = rest.split_once(':').ok_or_else(form)?;
    let &[tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = digits.as_bytes() else { return Err(form()) };
    let mut bytes = Zeroizing::new([0; MAX_TEXT]);
    let len = STANDARD.decode_slice(encoded, bytes.as_mut()).map_err(|_| KeyError::Base64)?;
    let Some(key_len) = len.checked_sub(CRC_LEN).filter(|_| len <= MAX_LEN) else {
        return Err(KeyError::Length);
    };
    let (key, crc) = bytes[..len].split_at(key_len);
    if crc32(key).to_le_bytes() != *crc {
        return Err(KeyError::Checksum);
    }
    Ok(((tens - b'0') * 10 + (ones - b'0'), SecretBytes::new(key)))
}

/// The text of a key.
pub(crate) fn print(prefix: &str, id: u8, key: &SecretBytes) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; MAX_LEN]);
    let len = key.expose().len();
    bytes[..len].copy_from_slice(key.expose());
    bytes[len..len + CRC_LEN].copy_from_slice(&crc32(key.expose()).to_le_bytes());
    // All of its room at once: a string that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_TEXT));
    text.push_str(&format!("{prefix}:{id:02}:"));
    STANDARD.encode_string(&bytes[..len + CRC_LEN], &mut text);
    text.push(':');
    text
}

/// CRC-32 of IEEE 802.3, bit by bit: it reads no table at places that a key chooses.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
