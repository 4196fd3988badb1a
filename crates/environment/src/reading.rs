//! A value that was read, or the reason why it could not be read.

use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A value, or why there is none. In JSON: the value itself, or `{"unread": "the reason"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Reading<T> {
    /// It could not be read.
    Unread {
        /// What was tried, and what stood in the way.
        unread: String,
    },
    /// It was read.
    Read(T),
}

impl<T> Reading<T> {
    /// No value, for this reason.
    pub fn unread(reason: impl Into<String>) -> Self {
        Self::Unread { unread: reason.into() }
    }

    /// The value, if it was read.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Read(value) => Some(value),
            Self::Unread { .. } => None,
        }
    }

    /// The reason, if it could not be read.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Read(_) => None,
            Self::Unread { unread } => Some(unread),
        }
    }

    /// Another value made of this one.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Reading<U> {
        self.then(|value| Reading::Read(make(value)))
    }

    /// Another reading made of this value.
    pub fn then<U>(self, make: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Read(value) => make(value),
            Self::Unread { unread } => Reading::Unread { unread },
        }
    }

    /// This reading, or if there is no value, the other one. If neither has one, the first reason stays.
    pub fn or(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Read(_) => self,
            Self::Unread { .. } => match other() {
                Self::Unread { .. } => self,
                found @ Self::Read(_) => found,
            },
        }
    }
}

/// By way of a JSON value: serde's own way for values of several forms does not read maps by numbers.
impl<'de, T: DeserializeOwned> Deserialize<'de> for Reading<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let reason = value.as_object().filter(|object| object.len() == 1);
        if let Some(reason) = reason.and_then(|object| object.get("unread")?.as_str()) {
            return Ok(Self::unread(reason));
        }
        serde_json::from_value(value).map(Self::Read).map_err(D::Error::custom)
    }
}

impl<T: AsRef<str>> Reading<T> {
    /// The text, if it was read.
    pub fn text(&self) -> Option<&str> {
        self.value().map(AsRef::as_ref)
    }
}

impl<T: Copy> Reading<T> {
    /// A copy of the value, if it was read.
    pub fn get(&self) -> Option<T> {
        self.value().copied()
    }
}

impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(value) => value.fmt(f),
            Self::Unread { unread } => write!(f, "not read: {unread}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_value_or_the_reason() {
        let read = serde_json::to_value(Reading::Read(7_u32)).unwrap();
        assert_eq!(read, serde_json::json!(7));
        let unread = serde_json::to_value(Reading::<u32>::unread("needs root")).unwrap();
        assert_eq!(unread, serde_json::json!({ "unread": "needs root" }));
        let back: Reading<u32> = serde_json::from_value(unread).unwrap();
        assert_eq!(back.reason(), Some("needs root"));
        assert_eq!(serde_json::from_value::<Reading<u32>>(read).unwrap().get(), Some(7));
    }

    #[test]
    fn the_first_reason_stays() {
        let none = Reading::<u32>::unread("a").or(|| Reading::unread("b"));
        assert_eq!(none.reason(), Some("a"));
        assert_eq!(Reading::unread("a").or(|| Reading::Read(1)).get(), Some(1));
        assert_eq!(Reading::Read(1).or(|| Reading::Read(2)).get(), Some(1));
    }
}
