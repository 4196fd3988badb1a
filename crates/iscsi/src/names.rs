//! Names of initiators, targets and ports (RFC 7143, 4.2.7; RFC 7144; SAM-5).

use std::fmt;

/// Most bytes of a name.
pub const MAX_NAME_LEN: usize = 223;

/// The name of an initiator or a target, lower-cased: two names are the same when these are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

/// Why a text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameError {
    /// It is empty or has more than 223 bytes.
    Length,
    /// It begins with neither `iqn.`, `eui.` nor `naa.`.
    Type,
    /// A character that names do not have.
    Character,
    /// `iqn.` without a year and month, and a naming authority.
    Authority,
    /// `eui.` without exactly 16, or `naa.` without exactly 16 or 32 hexadecimal digits.
    Digits,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "an iSCSI name has 1 to 223 bytes",
            Self::Type => "an iSCSI name begins with iqn., eui. or naa.",
            Self::Character => "an iSCSI name has letters, digits, '-', '.' and ':'",
            Self::Authority => "after iqn. come a year, '-', a month, '.' and a naming authority",
            Self::Digits => "eui. has 16 hexadecimal digits, naa. has 16 or 32",
        })
    }
}

impl std::error::Error for NameError {}

impl Name {
    /// Parses and lower-cases a name. Characters beyond ASCII are lower-cased, too; other rules of stringprep are
    /// not applied to them.
    ///
    /// # Errors
    /// When the text is no name.
    ///
    /// ```
    /// use raceline_iscsi::names::Name;
    /// let name = Name::new("iqn.2026-01.Example:Disk1").unwrap();
    /// assert_eq!(name.as_str(), "iqn.2026-01.example:disk1");
    /// assert!(Name::new("disk1").is_err());
    /// ```
    pub fn new(text: &str) -> Result<Self, NameError> {
        let name = text.to_lowercase();
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(NameError::Length);
        }
        let Some((kind, rest)) = name.split_once('.') else { return Err(NameError::Type) };
        match kind {
            "iqn" => check_iqn(rest)?,
            "eui" => check_digits(rest, &[16])?,
            "naa" => check_digits(rest, &[16, 32])?,
            _ => return Err(NameError::Type),
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The initiator port: the name and the ISID (4.2.7.1 and RFC 7143, 3.4).
    #[must_use]
    pub fn initiator_port(&self, isid: Isid) -> String {
        format!("{},i,0x{isid}", self.0)
    }

    /// The target port: the name and the portal group tag.
    #[must_use]
    pub fn target_port(&self, portal_group_tag: u16) -> String {
        format!("{},t,0x{portal_group_tag:04x}", self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `yyyy-mm.authority`, then anything behind a colon.
fn check_iqn(rest: &str) -> Result<(), NameError> {
    // RFC 3722 allows few characters of ASCII; Linux and Windows hosts use '_' as well.
    let allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-.:_".contains(c);
    if !rest.chars().all(allowed) {
        return Err(NameError::Character);
    }
    let digits = |range: std::ops::Range<usize>| {
        rest.get(range).is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let dated = digits(0..4) && rest.get(4..5) == Some("-") && digits(5..7);
    let authority = rest.get(8..).filter(|authority| !authority.is_empty());
    if dated && rest.get(7..8) == Some(".") && authority.is_some() {
        Ok(())
    } else {
        Err(NameError::Authority)
    }
}

fn check_digits(rest: &str, lens: &[usize]) -> Result<(), NameError> {
    let hex = rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex && lens.contains(&rest.len()) { Ok(()) } else { Err(NameError::Digits) }
}

/// ISID: the initiator's part of a session's name (11.12.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// Of type random (T = 10b) with this number and qualifier.
    #[must_use]
    pub const fn random(number: u32, qualifier: u16) -> Self {
        let [_, b, c, d] = number.to_be_bytes();
        let [high, low] = qualifier.to_be_bytes();
        Self([0x80, b, c, d, high, low])
    }
}

impl fmt::Display for Isid {
    /// 12 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_lower_cased() {
        let good = [
            "iqn.2001-04.com.example:storage:disk-1",
            "iqn.1993-08.org.debian:01:abcdef",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "naa.62004567BA64678D0123456789ABCDEF",
        ];
        for name in good {
            assert_eq!(Name::new(name).expect(name).as_str(), name.to_lowercase());
        }
        assert_eq!(Name::new(""), Err(NameError::Length));
        assert_eq!(
            Name::new(&format!("iqn.2001-04.c:{}", "x".repeat(210))),
            Err(NameError::Length)
        );
        assert_eq!(Name::new("disk"), Err(NameError::Type));
        assert_eq!(Name::new("abc.2001-04.com"), Err(NameError::Type));
        assert_eq!(Name::new("iqn.2001-04.com example"), Err(NameError::Character));
        assert_eq!(Name::new("iqn.2001.com.example"), Err(NameError::Authority));
        assert_eq!(Name::new("iqn.2001-04."), Err(NameError::Authority));
        assert_eq!(Name::new("iqn."), Err(NameError::Authority));
        assert_eq!(Name::new("eui.0200"), Err(NameError::Digits));
        assert_eq!(Name::new("naa.5200456g BA64678D"), Err(NameError::Digits));
    }

    #[test]
    fn ports_carry_isid_and_tag() {
        let name = Name::new("iqn.2001-04.com.example:a").expect("a name");
        let isid = Isid([0x00, 0x02, 0x3d, 0, 0, 1]);
        assert_eq!(name.initiator_port(isid), "iqn.2001-04.com.example:a,i,0x00023d000001");
        assert_eq!(name.target_port(1), "iqn.2001-04.com.example:a,t,0x0001");
        assert_eq!(Isid::random(0x0012_3456, 0x789a).0, [0x80, 0x12, 0x34, 0x56, 0x78, 0x9a]);
    }
}
