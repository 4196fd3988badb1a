//! What the connections of a host need: TLS, authentication, both or neither.

use std::fmt;
use std::str::FromStr;

/// What a connection has, or what it has to have before its host may use what it leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Security {
    /// The host has proved who it is (DH-HMAC-CHAP).
    pub authentication: bool,
    /// The connection is TLS 1.3.
    pub tls: bool,
}

impl Security {
    /// Neither.
    pub const PLAIN: Self = Self { authentication: false, tls: false };
    /// Authentication, with or without TLS.
    pub const AUTHENTICATED: Self = Self { authentication: true, tls: false };
    /// TLS, with or without authentication.
    pub const TLS: Self = Self { authentication: false, tls: true };
    /// Authentication over TLS.
    pub const BOTH: Self = Self { authentication: true, tls: true };

    /// All of them, with the words for people and configurations.
    const WORDS: [(&str, Self); 4] = [
        ("plain", Self::PLAIN),
        ("authenticated", Self::AUTHENTICATED),
        ("tls", Self::TLS),
        ("both", Self::BOTH),
    ];

    /// What either of them demands.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            authentication: self.authentication || other.authentication,
            tls: self.tls || other.tls,
        }
    }

    /// Whether a connection that has this has all of what is demanded.
    #[must_use]
    pub fn satisfies(self, demanded: Self) -> bool {
        self.or(demanded) == self
    }
}

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.into_iter().find(|(_, security)| security == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

impl FromStr for Security {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.into_iter().find(|(word, _)| *word == text);
        found.map(|(_, security)| security).ok_or_else(|| {
            let shown = text.escape_debug();
            format!("`{shown}` is no level of security: use plain, authenticated, tls or both")
        })
    }
}

/// What a connection has shown before its Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Nothing: its bytes are in the clear.
    Plain,
    /// It is TLS with a key that people have given to the host.
    Tls,
    /// It is TLS with a key that an authentication of the host has made (secure channel concatenation).
    Concatenated,
}

impl Channel {
    /// What it has.
    #[must_use]
    pub fn security(self) -> Security {
        match self {
            Self::Plain => Security::PLAIN,
            Self::Tls => Security::TLS,
            Self::Concatenated => Security::BOTH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_told_apart_and_compared() {
        for (word, security) in Security::WORDS {
            assert_eq!(word.parse(), Ok(security));
            assert_eq!(security.to_string(), word);
            assert!(security.satisfies(security) && Security::BOTH.satisfies(security));
            assert!(security.satisfies(Security::PLAIN));
        }
        assert!(!Security::TLS.satisfies(Security::AUTHENTICATED));
        assert!(!Security::AUTHENTICATED.satisfies(Security::TLS));
        assert_eq!(Security::TLS.or(Security::AUTHENTICATED), Security::BOTH);
        let error = "TLS".parse::<Security>().unwrap_err();
        assert!(error.contains("`TLS`") && error.contains("authenticated"), "{error}");
        assert_eq!(Channel::Concatenated.security(), Security::BOTH);
    }
}
