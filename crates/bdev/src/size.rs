//! Sizes as people write them: `4096`, `512k`, `64M`, `1G`, `1GiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Every suffix is a power of 1024, as in fio's default: `k` (or `K`), `M`,
/// `G`, `T`, `P`, each also with `iB`. The ambiguous `kB`, `MB`... are refused.
///
/// ```
/// use raceline_bdev::ByteSize;
/// assert_eq!("64M".parse(), Ok(ByteSize(64 << 20)));
/// assert_eq!(ByteSize(3 << 29).to_string(), "1536M");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not digits followed by a known suffix.
    #[error("`{0}` is not a size: write digits and a suffix, e.g. 4096, 512k, 64M, 1G or 1GiB")]
    Malformed(String),
    /// `MB` is 1000 or 1024 squared, depending on the convention.
    #[error("the suffix of `{0}` is ambiguous: write {1} or {1}iB (powers of 1024)")]
    Ambiguous(String, char),
    /// It does not fit 64 bits.
    #[error("`{0}` is too large: the largest size is below 16384P")]
    TooLarge(String),
}

/// Suffixes by power of 1024, from 1.
const SUFFIXES: [char; 5] = ['k', 'M', 'G', 'T', 'P'];

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let malformed = || SizeError::Malformed(text.to_owned());
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, suffix) = text.split_at(digits);
        if number.is_empty() {
            return Err(malformed());
        }
        let mut letters = suffix.chars();
        let shift = match letters.next() {
            None => 0,
            Some(first) => {
                let power = SUFFIXES
                    .iter()
                    .position(|s| s.eq_ignore_ascii_case(&first))
                    .ok_or_else(malformed)?;
                match letters.as_str() {
                    "" | "iB" | "ib" | "i" => 10 * (power + 1),
                    "B" | "b" => {
                        let unit = SUFFIXES[power];
                        return Err(SizeError::Ambiguous(text.to_owned(), unit));
                    }
                    _ => return Err(malformed()),
                }
            }
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(1 << shift))
            .map(ByteSize)
            .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    /// The shortest exact form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0;
        let mut suffix = None;
        let mut larger = SUFFIXES.iter();
        while value != 0 && value.is_multiple_of(1024) {
            let Some(next) = larger.next() else { break };
            suffix = Some(next);
            value /= 1024;
        }
        match suffix {
            None => write!(f, "{value}"),
            Some(suffix) => write!(f, "{value}{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512k", 512 << 10),
            ("512K", 512 << 10),
            ("64M", 64 << 20),
            ("1g", 1 << 30),
            ("1GiB", 1 << 30),
            ("2Ti", 2 << 40),
            ("15P", 15 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in ["", "k", "-1", "+1", "1.5G", "1 G", "1Z", "1GiBs", "0x10", "1é"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeError::Malformed(text.into())));
        }
        for text in ["18446744073709551616", "16384P", "99999999999999999999999G"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeError::TooLarge(text.into())));
        }
        assert_eq!("1MB".parse::<ByteSize>(), Err(SizeError::Ambiguous("1MB".into(), 'M')));
    }

    proptest::proptest! {
        #[test]
        fn display_parses_back(bytes: u64, shift in 0..64_u32) {
            let size = ByteSize(bytes >> shift << (shift / 2));
            proptest::prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
