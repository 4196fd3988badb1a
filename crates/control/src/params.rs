//! Shared helpers for parameters: strict decoding, forms that old clients send, names of fields.
//!
//! A method's parameters are a struct. `#[serde(deny_unknown_fields)]` on it means that SPDK's decoder for
//! it is strict; without it, unknown members are ignored as SPDK's relaxed decoder does, and
//! [`unknown_names`] lists them. `#[serde(alias)]` gives the names that older clients use. A member that
//! occurs twice is an error in both.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cores::parse_cores;
use crate::duplicates::without_duplicates;
use crate::error::RpcError;
use crate::schema::Method;

/// Decodes the parameters of a call; absent parameters count as an empty object, as in SPDK.
///
/// # Errors
/// `Invalid parameters`, with the wrong parameter as detail.
pub fn decode<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, RpcError> {
    let text = params.map_or("{}", RawValue::get);
    // A derived struct would also take an array, by position.
    if !text.starts_with('{') {
        return Err(RpcError::invalid_params("parameters must be an object"));
    }
    serde_json::from_str(text).map_err(|error| RpcError::invalid_params(detail(&error)))
}

/// Decodes the parameters of a method that is only kept, by the schema: parameters that SPDK requires must
/// be there, and parameters that the schema has must be of its kind. Unknown parameters are accepted
/// unchecked: other releases of SPDK have them.
///
/// # Errors
/// `Invalid parameters`, with the wrong parameter as detail.
pub fn decode_known(method: &Method, params: Option<&RawValue>) -> Result<Value, RpcError> {
    let Some(params) = params else {
        return match method.parameters.iter().find(|parameter| parameter.required) {
            Some(missing) => Err(missing_field(missing.name)),
            None => Ok(Value::Null),
        };
    };
    if !params.get().starts_with('{') {
        return Err(RpcError::invalid_params("parameters must be an object"));
    }
    let failed = |error: serde_json::Error| RpcError::invalid_params(detail(&error));
    without_duplicates(params.get().as_bytes()).map_err(failed)?;
    let value: Value = serde_json::from_str(params.get()).map_err(failed)?;
    for parameter in &method.parameters {
        match value.get(parameter.name) {
            Some(value) if !parameter.kind.admits(value) => {
                let detail = format!(
                    "invalid value `{value}` for `{}`, expected {}",
                    parameter.name, parameter.kind
                );
                return Err(RpcError::invalid_params(detail));
            }
            None if parameter.required => return Err(missing_field(parameter.name)),
            _ => {}
        }
    }
    Ok(value)
}

fn missing_field(name: &str) -> RpcError {
    RpcError::invalid_params(format!("missing field `{name}`"))
}

/// Parameters in the form of calls; null stands for none.
///
/// # Errors
/// When they cannot be JSON, which is a bug of this program.
pub fn raw_params(params: Option<&Value>) -> Result<Option<Box<RawValue>>, RpcError> {
    let some = params.filter(|params| !params.is_null());
    let raw = some.map(serde_json::value::to_raw_value).transpose();
    raw.map_err(RpcError::invalid_params)
}

/// Refuses parameters that ask for something that this program does not do. Their defaults are accepted,
/// because clients send those without being asked.
///
/// # Errors
/// For the first such parameter, by name.
pub fn refuse(parameters: &[(&str, bool)]) -> Result<(), RpcError> {
    match parameters.iter().find(|(_, asked)| *asked) {
        Some((name, _)) => Err(RpcError::unsupported(name)),
        None => Ok(()),
    }
}

/// The parser's text without line and column, which mean nothing for parameters.
fn detail(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

/// The CPUs of a parameter `cpumask`; none where it is not given.
pub(crate) fn cores_of(cpumask: Option<&str>) -> Result<Vec<usize>, RpcError> {
    let cores = cpumask.map(parse_cores).transpose();
    let cores = cores.map_err(|text| RpcError::errno(libc::EINVAL).because(text))?;
    Ok(cores.unwrap_or_default())
}

/// The parameters of a method that takes none: SPDK refuses even an empty object.
#[derive(Debug)]
pub struct NoParams;

impl<'de> Deserialize<'de> for NoParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("NoParams", &[], NoParamsVisitor)
    }
}

struct NoParamsVisitor;

impl<'de> Visitor<'de> for NoParamsVisitor {
    type Value = NoParams;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no parameters")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<NoParams, A::Error> {
        match map.next_key::<String>()? {
            None => Ok(NoParams),
            Some(name) => Err(de::Error::unknown_field(&name, &[])),
        }
    }
}

/// A boolean, or a number that means the same: old clients send one or the other.
///
/// # Errors
/// When it is neither.
pub fn flag_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    struct Either;
    impl Visitor<'_> for Either {
        type Value = Option<u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a boolean or a number")
        }

        fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
            Ok(Some(u32::from(value)))
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
            let number = u32::try_from(value);
            number.map(Some).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
        }
    }
    deserializer.deserialize_any(Either)
}

/// The names of the members of a parameter struct, aliases included, as its decoder knows them.
#[must_use]
pub fn field_names<P: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // This "decoder" only notes the names that it is asked for, and gives no value.
    let _ = P::deserialize(FieldNames { names: &mut names, _life: PhantomData });
    names
}

/// A member whose name is not that of a parameter.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// Its name.
    pub name: String,
    /// Whether its value differs from that of an absent member, so that it asks for something.
    pub asks: bool,
}

/// The members of an object of parameters that are not among these names.
#[must_use]
pub fn unknown_names(raw: Option<&RawValue>, known: &[&str]) -> Vec<UnknownName> {
    let text = raw.map_or("{}", RawValue::get);
    let Ok(members) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text) else {
        return Vec::new();
    };
    let unknown = members.into_iter().filter(|(name, _)| !known.contains(&&**name));
    let named = unknown.map(|(name, value)| UnknownName {
        name: name.into_owned(),
        asks: !matches!(value.get(), "null" | "false" | "0" | "\"\"" | "[]" | "{}"),
    });
    named.collect()
}

struct FieldNames<'a, 'de> {
    names: &'a mut &'static [&'static str],
    _life: PhantomData<&'de ()>,
}

impl<'de> Deserializer<'de> for FieldNames<'_, 'de> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only structs have members"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.names = fields;
        Err(de::Error::custom("the names were all that was asked for"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        name: String,
        #[serde(default, alias = "old_size")]
        size: Option<u32>,
        #[serde(default, deserialize_with = "flag_or_number")]
        mode: Option<u32>,
    }

    fn strict(text: &str) -> Result<Strict, String> {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        decode(Some(&raw)).map_err(|error| error.data.unwrap_or_default())
    }

    #[test]
    fn the_culprit_is_named() {
        for (text, expected) in [
            ("{}", "missing field `name`"),
            ("[\"x\"]", "parameters must be an object"),
            ("{\"name\":1}", "invalid type: integer `1`, expected a string"),
            ("{\"name\":\"x\",\"nme\":1}", "unknown field `nme`"),
            ("{\"name\":\"x\",\"name\":\"y\"}", "duplicate field `name`"),
            ("{\"name\":\"x\",\"size\":-1}", "invalid value: integer `-1`, expected u32"),
            ("{\"name\":\"x\",\"mode\":\"1\"}", "expected a boolean or a number"),
            ("{\"name\":\"x\",\"mode\":4294967296}", "invalid value"),
        ] {
            let error = strict(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("line"), "{error}");
        }
    }

    #[test]
    fn old_forms_are_taken() {
        let old = strict("{\"name\":\"x\",\"old_size\":3,\"mode\":true}").unwrap();
        assert_eq!((&*old.name, old.size, old.mode), ("x", Some(3), Some(1)));
        assert_eq!(strict("{\"name\":\"x\",\"mode\":2}").unwrap().mode, Some(2));
    }

    #[test]
    fn members_are_known_without_a_value() {
        let names = field_names::<Strict>();
        for name in ["name", "size", "old_size", "mode"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(field_names::<NoParams>().is_empty());
    }

    #[test]
    fn what_no_parameter_is_has_a_name() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let unknown = |text: &str| unknown_names(Some(&raw(text)), &["name", "size"]);
        let of = |name: &str, asks| UnknownName { name: name.to_owned(), asks };
        assert_eq!(unknown(r#"{"name":{"x":1},"size":2}"#), []);
        assert_eq!(
            unknown(r#"{"name":"x","b":false,"a":true,"\u0063":0,"d":[],"e":""}"#),
            [of("a", true), of("b", false), of("c", false), of("d", false), of("e", false)]
        );
        assert_eq!(unknown_names(None, &["name"]), []);
    }

    #[test]
    fn nothing_means_nothing() {
        assert!(decode::<NoParams>(None).is_ok());
        let raw = RawValue::from_string("{\"a\":1}".to_owned()).unwrap();
        assert!(decode::<NoParams>(Some(&raw)).is_err());
    }
}
