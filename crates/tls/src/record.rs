//! Protection of records: keys of one direction, sequence numbers, and the next generation of keys (RFC 8446, 5 and 7).

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use raceline_auth::{Hash, SecretBytes};
use zeroize::Zeroize as _;

use crate::error::TlsError;

/// Bytes before what a record protects.
pub(crate) const HEADER: usize = 5;
/// Bytes of an authentication tag.
pub(crate) const TAG: usize = 16;
/// Most bytes of data in a record.
pub const DATA_MAX: usize = 1 << 14;
/// Most bytes of a record, header included.
pub const RECORD_MAX: usize = HEADER + DATA_MAX + 256;
/// What sealing adds to data: header, type of the content, tag.
pub(crate) const OVERHEAD: usize = HEADER + 1 + TAG;

/// Records that one key protects. AES-GCM allows 2^24.5 (RFC 8446, 5.5); the sender changes the key before.
const RECORDS_PER_KEY: u64 = 1 << 24;

/// Types of content (RFC 8446, 5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// A cipher suite of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256
    Aes128GcmSha256,
    /// TLS_AES_256_GCM_SHA384
    Aes256GcmSha384,
}

impl Suite {
    /// The suite that goes with the hash of a key; `None`: there is none.
    #[must_use]
    pub fn of(hash: Hash) -> Option<Suite> {
        match hash {
            Hash::Sha256 => Some(Suite::Aes128GcmSha256),
            Hash::Sha384 => Some(Suite::Aes256GcmSha384),
            Hash::Sha512 => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Suite::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    fn aead(self) -> &'static aead::Algorithm {
        match self {
            Suite::Aes128GcmSha256 => &aead::AES_128_GCM,
            Suite::Aes256GcmSha384 => &aead::AES_256_GCM,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Suite::Aes128GcmSha256 => hkdf::HKDF_SHA256,
            Suite::Aes256GcmSha384 => hkdf::HKDF_SHA384,
        }
    }

    /// Bytes of a traffic secret.
    pub(crate) fn secret_len(self) -> usize {
        match self {
            Suite::Aes128GcmSha256 => 32,
            Suite::Aes256GcmSha384 => 48,
        }
    }
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446, 7.1).
fn expand(suite: Suite, secret: &SecretBytes, label: &str, out: &mut [u8]) {
    let prk = hkdf::Prk::new_less_safe(suite.hkdf(), secret.expose());
    let len = u16::try_from(out.len()).expect("at most 48 bytes").to_be_bytes();
    let label_len = [u8::try_from(label.len() + 6).expect("a short label")];
    let info: [&[u8]; 5] = [&len, &label_len, b"tls13 ", label.as_bytes(), &[0]];
    let filled = prk.expand(&info, Len(out.len())).and_then(|okm| okm.fill(out));
    filled.expect("fewer bytes than 255 hashes");
}

/// What whoever makes or opens the records of one direction has to know.
pub(crate) struct TrafficKeys {
    pub(crate) suite: Suite,
    key: [u8; 32],
    pub(crate) iv: [u8; aead::NONCE_LEN],
    /// The number of the next record.
    pub(crate) sequence: u64,
}

impl TrafficKeys {
    /// RFC 8446, 7.3.
    fn derive(suite: Suite, secret: &SecretBytes, sequence: u64) -> TrafficKeys {
        assert_eq!(secret.expose().len(), suite.secret_len(), "the secret is one of this suite");
        let (mut key, mut iv) = ([0; 32], [0; aead::NONCE_LEN]);
        expand(suite, secret, "key", &mut key[..suite.aead().key_len()]);
        expand(suite, secret, "iv", &mut iv);
        TrafficKeys { suite, key, iv, sequence }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.suite.aead().key_len()]
    }
}

impl Drop for TrafficKeys {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// The keys of one direction.
struct Keys {
    suite: Suite,
    secret: SecretBytes,
    key: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    /// The number of the next record.
    sequence: u64,
}

impl Keys {
    fn new(suite: Suite, secret: SecretBytes) -> Keys {
        let traffic = TrafficKeys::derive(suite, &secret, 0);
        let key = UnboundKey::new(suite.aead(), traffic.key()).expect("a key of the right length");
        Keys { suite, secret, key: LessSafeKey::new(key), iv: traffic.iv, sequence: 0 }
    }

    /// For somebody else who goes on with the next record.
    fn traffic_keys(&self) -> TrafficKeys {
        TrafficKeys::derive(self.suite, &self.secret, self.sequence)
    }

    /// The next generation (RFC 8446, 7.2).
    fn next(&self) -> Keys {
        let mut bytes = [0; 48];
        let secret = &mut bytes[..self.suite.secret_len()];
        expand(self.suite, &self.secret, "traffic upd", secret);
        let next = Keys::new(self.suite, SecretBytes::new(secret));
        bytes.zeroize();
        next
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Makes records.
pub(crate) struct Sealer {
    keys: Keys,
}

impl Sealer {
    pub(crate) fn new(suite: Suite, secret: SecretBytes) -> Sealer {
        Sealer { keys: Keys::new(suite, secret) }
    }

    /// Whether the key has to change before the next record but one.
    pub(crate) fn is_worn(&self) -> bool {
        self.keys.sequence + 1 >= RECORDS_PER_KEY
    }

    /// Turns to the next key.
    pub(crate) fn change_key(&mut self) {
        self.keys = self.keys.next();
    }

    /// What the kernel needs to make the next record.
    pub(crate) fn traffic_keys(&self) -> TrafficKeys {
        self.keys.traffic_keys()
    }

    /// The kernel has made as many records.
    pub(crate) fn skip(&mut self, records: u64) {
        self.keys.sequence = self.keys.sequence.saturating_add(records);
    }

    /// Makes a record at the front of `out` that protects content of the type `kind`. `fill` writes the content into
    /// the memory that it gets, at most [`DATA_MAX`] bytes, and gives its length. Gives the length of the record.
    ///
    /// # Panics
    /// If there is no room for a record of one byte.
    pub(crate) fn seal(
        &mut self,
        kind: u8,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> usize {
        let room = (out.len() - OVERHEAD).min(DATA_MAX);
        let len = fill(&mut out[HEADER..HEADER + room]);
        assert!(len <= room, "{len} bytes in {room}");
        out[HEADER + len] = kind;
        let protected = u16::try_from(len + 1 + TAG).expect("at most 2^14 and 17");
        let [high, low] = protected.to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let nonce = self.keys.nonce();
        let inner = &mut out[HEADER..=HEADER + len];
        let tag = self.keys.key.seal_in_place_separate_tag(nonce, Aad::from(header), inner);
        // The library refuses lengths only that no record has.
        let tag = tag.expect("a record is short enough to be sealed");
        out[..HEADER].copy_from_slice(&header);
        out[HEADER + len + 1..][..TAG].copy_from_slice(tag.as_ref());
        len + OVERHEAD
    }
}

/// Opens records.
pub(crate) struct Opener {
    keys: Keys,
}

impl Opener {
    pub(crate) fn new(suite: Suite, secret: SecretBytes) -> Opener {
        Opener { keys: Keys::new(suite, secret) }
    }

    /// Turns to the next key.
    pub(crate) fn change_key(&mut self) {
        self.keys = self.keys.next();
    }

    /// What the kernel needs to open the next record.
    pub(crate) fn traffic_keys(&self) -> TrafficKeys {
        self.keys.traffic_keys()
    }

    /// Opens a whole record, header included, where it lies. Gives the type and the length of its content, which then
    /// begins behind the header.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<(u8, usize), TlsError> {
        let (header, body) = record.split_at_mut(HEADER);
        let (nonce, aad) = (self.keys.nonce(), Aad::from(&*header));
        let opened = self.keys.key.open_in_place(nonce, aad, body);
        content(opened.map_err(|_| TlsError::NotAuthentic)?)
    }

    /// Opens a whole record into the front of `out`, which has [`opened_max`] bytes or more. Gives the type and the length
    /// of its content. After an error, these bytes mean nothing.
    pub(crate) fn open_into(
        &mut self,
        record: &[u8],
        out: &mut [u8],
    ) -> Result<(u8, usize), TlsError> {
        let (header, body) = record.split_at(HEADER);
        let (sealed, tag) = body.split_at(body.len() - TAG);
        let inner = &mut out[..sealed.len()];
        let (nonce, aad) = (self.keys.nonce(), Aad::from(header));
        let opened = self.keys.key.open_separate_gather(nonce, aad, sealed, tag, inner);
        opened.map_err(|_| TlsError::NotAuthentic)?;
        content(inner)
    }
}

/// Bytes into which a record of `len` bytes may be opened.
pub(crate) fn opened_max(len: usize) -> usize {
    len - HEADER - TAG
}

/// The type and the length of the content of a record that is authentic: zeroes behind the type are padding.
fn content(inner: &[u8]) -> Result<(u8, usize), TlsError> {
    let end = inner.iter().rposition(|byte| *byte != 0);
    let end = end.ok_or(TlsError::UnexpectedRecord(0))?;
    if end > DATA_MAX {
        return Err(TlsError::TooLong(end));
    }
    Ok((inner[end], end))
}

/// How long the record is that begins with these bytes; `None`: the header is not whole yet.
///
/// After the handshake only protected records come.
pub(crate) fn record_len(bytes: &[u8]) -> Result<Option<usize>, TlsError> {
    let Some(&kind) = bytes.first() else { return Ok(None) };
    if kind != APPLICATION_DATA {
        return Err(TlsError::UnexpectedRecord(kind));
    }
    let &[_, _, _, high, low, ..] = bytes else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    match len {
        0..=TAG => Err(TlsError::Malformed("record")),
        _ if len > DATA_MAX + 256 => Err(TlsError::TooLong(len)),
        _ => Ok(Some(HEADER + len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
    const RECORD: &str = "17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc \
        ab 3f 2b 98 19 a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97 70 14 bd 1e 3d ea e6 3a ee \
        bb 21 69 49 15 e4";

    /// RFC 8448, 3: the keys of the client, and its first record of application data.
    #[test]
    fn the_record_of_rfc_8448() {
        let secret = || SecretBytes::new(&bytes(CLIENT_SECRET));
        let suite = Suite::Aes128GcmSha256;
        let mut key = [0; 16];
        expand(suite, &secret(), "key", &mut key);
        assert_eq!(key[..], bytes("17422dda596ed5d9acd890e3c63f5051"));
        let data: Vec<u8> = (0..50).collect();
        let mut out = [0; 100];
        let sealed = Sealer::new(suite, secret()).seal(APPLICATION_DATA, &mut out, |room| {
            room[..50].copy_from_slice(&data);
            50
        });
        assert_eq!(out[..sealed], bytes(RECORD));
        let mut record = bytes(RECORD);
        assert_eq!(record_len(&record), Ok(Some(record.len())));
        let mut out = [0; 51];
        let opened = Opener::new(suite, secret()).open_into(&record, &mut out);
        assert_eq!((opened, &out[..50]), (Ok((APPLICATION_DATA, 50)), &data[..]));
        let opened = Opener::new(suite, secret()).open(&mut record);
        assert_eq!((opened, &record[5..55]), (Ok((APPLICATION_DATA, 50)), &data[..]));
    }

    #[test]
    fn headers_are_checked() {
        for (header, wanted) in [
            (&[][..], Ok(None)),
            (&[23, 3, 3, 0], Ok(None)),
            (&[23, 3, 3, 0, 17], Ok(Some(22))),
            (&[23, 3, 3, 0x41, 0], Ok(Some(RECORD_MAX))),
            (&[23, 3, 3, 0x41, 1], Err(TlsError::TooLong(16641))),
            (&[23, 3, 3, 0, 16], Err(TlsError::Malformed("record"))),
            (&[20, 3, 3, 0, 1], Err(TlsError::UnexpectedRecord(20))),
            (&[21, 3, 3, 0, 2], Err(TlsError::UnexpectedRecord(21))),
            (&[0], Err(TlsError::UnexpectedRecord(0))),
        ] {
            assert_eq!(record_len(header), wanted, "{header:?}");
        }
    }

    #[test]
    fn every_key_is_another() {
        for (suite, len) in [(Suite::Aes128GcmSha256, 32), (Suite::Aes256GcmSha384, 48)] {
            let secret = SecretBytes::new(&[7; 48][..len]);
            let mut sealer = Sealer::new(suite, secret.clone());
            let mut records = Vec::new();
            for _ in 0..2 {
                for _ in 0..2 {
                    let mut out = vec![0; 4 + OVERHEAD];
                    assert_eq!(sealer.seal(APPLICATION_DATA, &mut out, |room| room.len()), 26);
                    assert!(!records.contains(&out));
                    records.push(out);
                }
                sealer.change_key();
            }
            let mut opener = Opener::new(suite, secret);
            for (i, record) in records.iter_mut().enumerate() {
                if i == 2 {
                    opener.change_key();
                }
                assert_eq!(opener.open(record), Ok((APPLICATION_DATA, 4)));
            }
        }
    }

    #[test]
    fn a_key_wears_out() {
        let mut sealer = Sealer::new(Suite::Aes128GcmSha256, SecretBytes::new(&[1; 32]));
        assert!(!sealer.is_worn());
        sealer.keys.sequence = RECORDS_PER_KEY - 1;
        assert!(sealer.is_worn());
        sealer.change_key();
        assert!(!sealer.is_worn());
    }
}
