//! Checks a whole JSON text for members that occur twice in one object; SPDK's decoder refuses them.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Checks that no object in this text has a member twice: otherwise the last one would win silently.
///
/// # Errors
/// At the first object that has one, and where the text is not JSON.
pub(crate) fn without_duplicates(text: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Looked>(text).map(drop)
}

/// Any value, of which only the names of members are checked.
struct Looked;

impl<'de> Deserialize<'de> for Looked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Looked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Looked, A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if names.contains(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            names.insert(name);
            map.next_value::<Looked>()?;
        }
        Ok(Looked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Looked, A::Error> {
        while seq.next_element::<Looked>()?.is_some() {}
        Ok(Looked)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Looked, E> {
        Ok(Looked)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Looked, E> {
        Ok(Looked)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Looked, E> {
        Ok(Looked)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Looked, E> {
        Ok(Looked)
    }

    fn visit_str<E>(self, _: &str) -> Result<Looked, E> {
        Ok(Looked)
    }

    fn visit_unit<E>(self) -> Result<Looked, E> {
        Ok(Looked)
    }
}
