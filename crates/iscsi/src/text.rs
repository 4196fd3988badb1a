//! `key=value` text of Login and Text PDUs (RFC 7143, 6.1 and 6.2).

use std::fmt;

/// Most bytes of text that one negotiation may collect over its PDUs.
pub const MAX_TEXT_LEN: usize = 65_536;
/// Most bytes of a key's name (6.1).
pub const MAX_KEY_LEN: usize = 63;

/// Answers with a meaning of their own (6.2).
pub mod answer {
    /// The list has nothing that is acceptable, or nothing is wanted.
    pub const NONE: &str = "None";
    /// The value is not acceptable.
    pub const REJECT: &str = "Reject";
    /// The key has no meaning here.
    pub const IRRELEVANT: &str = "Irrelevant";
    /// The key is unknown.
    pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
    /// True.
    pub const YES: &str = "Yes";
    /// False.
    pub const NO: &str = "No";
}

/// Why text cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextError {
    /// A pair has no `=`.
    NoValue,
    /// A key is empty, longer than 63 bytes, or has a character that keys do not have.
    BadKey,
    /// A value is not UTF-8.
    NotUtf8,
    /// A key came twice in one negotiation.
    Duplicate,
    /// The text exceeds [`MAX_TEXT_LEN`].
    TooLong,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoValue => "a pair without '='",
            Self::BadKey => {
                "a key that is empty, above 63 bytes, or not of letters, digits and .-+@_"
            }
            Self::NotUtf8 => "a value that is not UTF-8",
            Self::Duplicate => "a key that came before",
            Self::TooLong => "more than 65536 bytes of text",
        })
    }
}

impl std::error::Error for TextError {}

/// The pairs of a text, in order.
///
/// ```
/// use raceline_iscsi::text::pairs;
/// let pairs: Vec<_> = pairs(b"HeaderDigest=None\0MaxBurstLength=0x200\0").collect();
/// assert_eq!(pairs, [Ok(("HeaderDigest", "None")), Ok(("MaxBurstLength", "0x200"))]);
/// ```
pub fn pairs(text: &[u8]) -> impl Iterator<Item = Result<(&str, &str), TextError>> {
    // Empty pairs are padding that some initiators count as text.
    text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()).map(pair)
}

fn pair(pair: &[u8]) -> Result<(&str, &str), TextError> {
    let equals = pair.iter().position(|&byte| byte == b'=').ok_or(TextError::NoValue)?;
    let (key, value) = (&pair[..equals], &pair[equals + 1..]);
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+@_".contains(byte);
    if key.is_empty() || key.len() > MAX_KEY_LEN || !key.iter().all(allowed) {
        return Err(TextError::BadKey);
    }
    let key = str::from_utf8(key).map_err(|_| TextError::BadKey)?;
    Ok((key, str::from_utf8(value).map_err(|_| TextError::NotUtf8)?))
}

/// Text that is being made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<u8>);

impl Text {
    /// Appends a pair.
    pub fn push(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// Appends a pair with a number.
    pub fn push_number(&mut self, key: &str, value: u32) {
        self.push(key, &value.to_string());
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, taken out.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `Yes` or `No`.
#[must_use]
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        answer::YES => Some(true),
        answer::NO => Some(false),
        _ => None,
    }
}

/// A boolean as text.
#[must_use]
pub const fn yes_or_no(value: bool) -> &'static str {
    if value { answer::YES } else { answer::NO }
}

/// A number, decimal or hexadecimal behind `0x` (6.1).
///
/// ```
/// use raceline_iscsi::text::number;
/// assert_eq!(number("262144"), Some(262_144));
/// assert_eq!(number("0x40000"), Some(262_144));
/// assert_eq!(number("+1"), None);
/// assert_eq!(number(""), None);
/// ```
#[must_use]
pub fn number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // `from_str_radix` takes a sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// The values of a list.
pub fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

/// Text that is collected over several PDUs (the C bit, 6.2).
#[derive(Clone, Debug, Default)]
pub struct Collected(Vec<u8>);

impl Collected {
    /// Appends the text of one PDU.
    ///
    /// # Errors
    /// When the text exceeds [`MAX_TEXT_LEN`].
    pub fn push(&mut self, text: &[u8]) -> Result<(), TextError> {
        if self.0.len() + text.len() > MAX_TEXT_LEN {
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(text);
        Ok(())
    }

    /// Whether nothing was collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the text out.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Text that leaves in several PDUs.
#[derive(Clone, Debug, Default)]
pub struct Paged {
    text: Vec<u8>,
    sent: usize,
}

impl Paged {
    /// Starts with this text.
    #[must_use]
    pub fn new(text: Vec<u8>) -> Self {
        Self { text, sent: 0 }
    }

    /// The next at most `limit` bytes, and whether more follow.
    pub fn next(&mut self, limit: usize) -> (&[u8], bool) {
        let rest = &self.text[self.sent..];
        let page = &rest[..rest.len().min(limit)];
        self.sent += page.len();
        (page, self.sent < self.text.len())
    }

    /// Whether everything was sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.sent == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_pairs_say_why() {
        let one = |text: &'static [u8]| pairs(text).next();
        assert_eq!(one(b"Key\0"), Some(Err(TextError::NoValue)));
        assert_eq!(one(b"=Value\0"), Some(Err(TextError::BadKey)));
        assert_eq!(one(b"K y=Value\0"), Some(Err(TextError::BadKey)));
        assert_eq!(one(b"Key=\xff\0"), Some(Err(TextError::NotUtf8)));
        assert_eq!(one(b"Key=a=b\0"), Some(Ok(("Key", "a=b"))));
        assert_eq!(one(b"Key="), Some(Ok(("Key", ""))));
        assert_eq!(one(b"\0\0"), None);
        let long = [[b'k'; MAX_KEY_LEN + 1].as_slice(), b"=1\0"].concat();
        assert_eq!(pairs(&long).next(), Some(Err(TextError::BadKey)));
        assert!(pairs(&long[1..]).next().is_some_and(|pair| pair.is_ok()));
    }

    #[test]
    fn collected_text_is_bounded() {
        let mut collected = Collected::default();
        for _ in 0..MAX_TEXT_LEN / 8192 {
            assert_eq!(collected.push(&[0; 8192]), Ok(()));
        }
        assert_eq!(collected.push(&[0]), Err(TextError::TooLong));
    }

    #[test]
    fn pages_say_whether_more_follow() {
        let mut paged = Paged::new(b"abcde".to_vec());
        assert_eq!(paged.next(2), (b"ab".as_slice(), true));
        assert_eq!(paged.next(3), (b"cde".as_slice(), false));
        assert!(paged.is_done());
        assert_eq!(Paged::default().next(8), (b"".as_slice(), false));
    }
}
