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

/// NVMe Qualified Name: valid UTF-8, 1..=223 bytes (Base 2.0, 4.5).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Arc<str>);

/// Why bytes are not an NQN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// No NUL within the first 224 bytes.
    Unterminated,
    /// Shorter than "nqn.yyyy-mm" (11 bytes).
    TooShort,
    /// Longer than 223 bytes.
    TooLong,
    /// Not UTF-8, or has control characters.
    BadCharacter,
    /// Does not begin with "nqn.".
    BadPrefix,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unterminated => "an NQN must end with a zero byte within 224 bytes",
            Self::TooShort => "an NQN has at least 11 characters: nqn.yyyy-mm",
            Self::TooLong => "an NQN has at most 223 bytes",
            Self::BadCharacter => "an NQN is UTF-8 without control characters",
            Self::BadPrefix => "an NQN begins with \"nqn.\"",
        })
    }
}

impl std::error::Error for NqnError {}

impl Nqn {
    /// Longest NQN in bytes, without its terminator.
    pub const MAX_LEN: usize = 223;
    /// Size of an NQN field on the wire.
    pub const FIELD_LEN: usize = 256;
    /// Shortest: "nqn.yyyy-mm".
    pub const MIN_LEN: usize = 11;

    /// Checks a name.
    ///
    /// # Errors
    /// When it is not an NQN.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.len() > Self::MAX_LEN {
            return Err(NqnError::TooLong);
        }
        if name.len() < Self::MIN_LEN {
            return Err(NqnError::TooShort);
        }
        if !name.starts_with("nqn.") {
            return Err(NqnError::BadPrefix);
        }
        if name.chars().any(char::is_control) {
            return Err(NqnError::BadCharacter);
        }
        Ok(Self(name.into()))
    }

    /// Reads a 256-byte NQN field: NUL-terminated within 224 bytes.
    ///
    /// # Errors
    /// When the field holds no NQN.
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
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({:?})", &*self.0)
    }
}

/// HOSTNQN of a Connect: who the host says that it is (Fabrics 1.1, 3.3).
///
/// Hosts exist that leave the field empty. That is a host which no list of hosts can name.
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
    /// When the field holds something that is no NQN.
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
