//! Identifiers: command, queue, controller and namespace numbers, host identifier, NQN.

use std::fmt;
use std::sync::Arc;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// CID: names a command among those outstanding on its queue (Base 2.0, 3.3.3.1).
    CommandId(u16)
}
number! {
    /// QID: 0 is the admin queue.
    QueueId(u16)
}
number! {
    /// CNTLID: names a controller of a subsystem.
    ControllerId(u16)
}
number! {
    /// NSID: names a namespace of a subsystem; 0 none, FFFFFFFFh all.
    NamespaceId(u32)
}

impl QueueId {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);

    /// Whether this is the admin queue.
    #[must_use]
    pub fn is_admin(self) -> bool {
        self == Self::ADMIN
    }
}

impl ControllerId {
    /// In Connect: the dynamic controller model, the controller picks a number.
    pub const DYNAMIC: Self = Self(0xffff);
}

impl NamespaceId {
    /// All namespaces.
    pub const BROADCAST: Self = Self(u32::MAX);

    /// Whether it can name one namespace (1..=FFFFFFFEh).
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 != 0 && self != Self::BROADCAST
    }
}

/// HOSTID: 128-bit host identifier (Fabrics 1.1, 3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostId(pub [u8; 16]);

/// The name of a host or of a subsystem: UTF-8 of 1 to 223 bytes.
///
/// The specification asks for an NVMe Qualified Name (`nqn.yyyy-mm...`; Base 2.0, 4.5). People also choose
/// other names, and other targets accept them. So this type accepts every such text, and
/// [`Nqn::is_qualified`] says whether it has the form. [`fmt::Display`] writes one printable line:
/// control characters are escaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Arc<str>);

/// Why bytes are not the name of a host or of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// No NUL within the first 224 bytes.
    Unterminated,
    /// No byte before the NUL.
    Empty,
    /// Longer than 223 bytes.
    TooLong,
    /// Not UTF-8, or with a zero byte.
    BadCharacter,
    /// Not of the form of an NVMe Qualified Name, where one is required.
    Unqualified,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unterminated => "a name must end with a zero byte within 224 bytes",
            Self::Empty => "a name has at least 1 byte",
            Self::TooLong => "a name has at most 223 bytes",
            Self::BadCharacter => "a name is UTF-8 without zero bytes",
            Self::Unqualified => {
                "an NQN begins with \"nqn.\", has at least 11 characters (nqn.yyyy-mm) and no \
                 control characters"
            }
        })
    }
}

impl std::error::Error for NqnError {}

impl Nqn {
    /// Longest name in bytes, without its terminator.
    pub const MAX_LEN: usize = 223;
    /// Size of a name's field on the wire.
    pub const FIELD_LEN: usize = 256;
    /// Shortest qualified name: "nqn.yyyy-mm".
    pub const MIN_QUALIFIED_LEN: usize = 11;

    /// Checks a name.
    ///
    /// When the text cannot be the name of a host or subsystem.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        if name.len() > Self::MAX_LEN {
            return Err(NqnError::TooLong);
        }
        if name.contains('\0') {
            return Err(NqnError::BadCharacter);
        }
        Ok(Self(name.into()))
    }

    /// Checks a name that must be an NVMe Qualified Name.
    ///
    /// # Errors
    /// When it is none.
    pub fn qualified(name: &str) -> Result<Self, NqnError> {
        let nqn = Self::new(name)?;
        if nqn.is_qualified() { Ok(nqn) } else { Err(NqnError::Unqualified) }
    }

    /// Whether it has the form of an NVMe Qualified Name.
    #[must_use]
    pub fn is_qualified(&self) -> bool {
        self.0.len() >= Self::MIN_QUALIFIED_LEN
            && self.0.starts_with("nqn.")
            && !self.0.chars().any(char::is_control)
    }

    /// Reads the 256-byte field of a name: NUL-terminated within 224 bytes.
    ///
    /// # Errors
    /// When the field holds no name.
    pub fn from_field(field: &[u8; Self::FIELD_LEN]) -> Result<Self, NqnError> {
        let (head, _) = field.split_at(Self::MAX_LEN + 1);
        let len = head.iter().position(|&b| b == 0).ok_or(NqnError::Unterminated)?;
        let (name, _) = head.split_at(len);
        Self::new(std::str::from_utf8(name).map_err(|_| NqnError::BadCharacter)?)
    }

    /// The name as a 256-byte field, zero padded.
    #[must_use]
    pub fn to_field(&self) -> [u8; Self::FIELD_LEN] {
        let mut field = [0; Self::FIELD_LEN];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The well-known discovery subsystem (Fabrics 1.1, 1.5.5).
    #[must_use]
    pub fn discovery() -> Self {
        Self("nqn.2014-08.org.nvmexpress.discovery".into())
    }

    /// Whether it is the well-known discovery subsystem.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == "nqn.2014-08.org.nvmexpress.discovery"
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Peers choose names, and logs and terminals must not obey them.
        if !self.0.chars().any(is_unprintable) {
            return f.pad(&self.0);
        }
        let escape = |c: char| {
            let escaped = is_unprintable(c).then(|| c.escape_default());
            let plain = escaped.is_none().then_some(c);
            escaped.into_iter().flatten().chain(plain)
        };
        f.pad(&self.0.chars().flat_map(escape).collect::<String>())
    }
}

/// Control characters, and those that break lines or turn the direction of text.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}')
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({:?})", &*self.0)
    }
}

/// HOSTNQN of a Connect: the host's own name (Fabrics 1.1, 3.3).
///
/// Some hosts leave the field empty. No list of hosts can name such a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostNqn {
    /// The field is empty.
    Unnamed,
    /// The host's name.
    Named(Nqn),
}

impl HostNqn {
    /// Reads a 256-byte NQN field.
    ///
    /// # Errors
    /// When the field holds something that is no name.
    pub fn from_field(field: &[u8; Nqn::FIELD_LEN]) -> Result<Self, NqnError> {
        match field {
            [0, ..] => Ok(Self::Unnamed),
            _ => Nqn::from_field(field).map(Self::Named),
        }
    }
}

impl fmt::Display for HostNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed => f.write_str("(unnamed)"),
            Self::Named(nqn) => nqn.fmt(f),
        }
    }
}

impl std::str::FromStr for Nqn {
    type Err = NqnError;

    fn from_str(s: &str) -> Result<Self, NqnError> {
        Self::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(bytes: &[u8]) -> [u8; Nqn::FIELD_LEN] {
        let mut field = [0; Nqn::FIELD_LEN];
        field[..bytes.len()].copy_from_slice(bytes);
        field
    }

    #[test]
    fn any_terminated_text_is_a_name() {
        let longest = "h".repeat(Nqn::MAX_LEN);
        for name in ["h", "host1", "iqn.1993-08.org.debian:01:abc", "nqn.2014-08.org:x", &longest] {
            let nqn = Nqn::from_field(&field(name.as_bytes())).unwrap();
            assert_eq!((nqn.as_str(), nqn.to_string().as_str()), (name, name));
            assert_eq!(nqn.to_field(), field(name.as_bytes()));
        }
        // what lies behind the terminator is not looked at
        assert_eq!(Nqn::from_field(&field(b"host\0\xff\xff")).unwrap().as_str(), "host");
        for (bytes, error) in [
            (&[b'h'; 224][..], NqnError::Unterminated),
            (&[b'h'; 256][..], NqnError::Unterminated),
            (b"", NqnError::Empty),
            (b"\0host", NqnError::Empty),
            (b"\xffhost", NqnError::BadCharacter),
        ] {
            assert_eq!(Nqn::from_field(&field(bytes)), Err(error));
        }
        assert_eq!(Nqn::new(&"h".repeat(224)), Err(NqnError::TooLong));
        assert_eq!(Nqn::new("a\0b"), Err(NqnError::BadCharacter));
    }

    #[test]
    fn a_qualified_name_has_its_form() {
        assert!(Nqn::qualified("nqn.2014-08").is_ok());
        for name in ["host", "nqn.2014-0", "iqn.1993-08.org.debian:01:abc", "nqn.2014-08.x:\x07"] {
            assert_eq!(Nqn::qualified(name), Err(NqnError::Unqualified), "{name:?}");
        }
    }

    #[test]
    fn a_name_is_one_printable_line() {
        let nqn = Nqn::new("evil\n\u{1b}[2J\u{202e}\u{85}é").unwrap();
        assert_eq!(nqn.to_string(), "evil\\n\\u{1b}[2J\\u{202e}\\u{85}é");
        assert_eq!(
            format!("{:>7}|{:<7}|", Nqn::new("host").unwrap(), Nqn::new("h").unwrap()),
            "   host|h      |"
        );
    }
}
