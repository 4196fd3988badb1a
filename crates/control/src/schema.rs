//! The methods of SPDK's JSON-RPC and their parameters, as a table that the client, the reference
//! page and the tests read.

use std::fmt;
use std::sync::LazyLock;

use serde_json::Value;

/// The facts; its first lines describe the form.
const TABLE: &str = include_str!("schema/methods.txt");

/// Everything the table says.
#[derive(Debug)]
pub struct Schema {
    methods: Vec<Method>,
    enums: Vec<(&'static str, Vec<&'static str>)>,
    objects: Vec<(&'static str, Vec<Parameter>)>,
}

/// One method.
#[derive(Debug)]
pub struct Method {
    /// Name on the wire.
    pub name: &'static str,
    /// The part of SPDK that it belongs to, as `bdev_malloc`.
    pub group: &'static str,
    /// Its parameters, in SPDK's order.
    pub parameters: Vec<Parameter>,
    /// Their names.
    pub names: Vec<&'static str>,
}

/// One parameter of a method, or one field of an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameter {
    /// Name on the wire.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether SPDK refuses a request without it.
    pub required: bool,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A number from 0 on, of this width in bits.
    Unsigned(u32),
    /// A number with a sign, of this width in bits.
    Signed(u32),
    /// Any text.
    Text,
    /// A UUID as text.
    Uuid,
    /// One word of the enum of this name.
    Enum(&'static str),
    /// A list of words.
    Bitmask(&'static str),
    /// A list.
    Array(&'static str),
    /// An object; [`Schema::object`] may know its fields.
    Object(&'static str),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("bool"),
            Self::Unsigned(bits) => write!(f, "uint{bits}"),
            Self::Signed(bits) => write!(f, "int{bits}"),
            Self::Text => f.write_str("string"),
            Self::Uuid => f.write_str("uuid"),
            Self::Enum(_) => f.write_str("word"),
            Self::Bitmask(_) => f.write_str("words"),
            Self::Array(_) => f.write_str("list"),
            Self::Object(_) => f.write_str("object"),
        }
    }
}

/// The table, read once.
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::read(TABLE));
    &SCHEMA
}

impl Schema {
    /// All methods, in the table's order.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// The method of this name.
    pub fn method(&self, name: &str) -> Option<&Method> {
        self.methods.iter().find(|method| method.name == name)
    }

    /// The fields of an object type, where the table has them.
    pub fn object(&self, name: &str) -> Option<&[Parameter]> {
        let found = self.objects.iter().find(|(known, _)| *known == name);
        found.map(|(_, fields)| fields.as_slice())
    }

    /// The words that an enum allows.
    pub fn words(&self, name: &str) -> Option<&[&'static str]> {
        let found = self.enums.iter().find(|(known, _)| *known == name);
        found.map(|(_, words)| words.as_slice())
    }

    /// Reads the table. It is part of this program, so a line that is wrong is a bug of ours.
    fn read(table: &'static str) -> Self {
        let mut schema = Self { methods: Vec::new(), enums: Vec::new(), objects: Vec::new() };
        let mut group = "";
        for line in table.lines() {
            let mut words = line.split(' ');
            match words.next().unwrap_or("") {
                "" | "#" => {}
                "group" => group = words.next().unwrap_or(""),
                "enum" => schema.enums.push((words.next().unwrap_or(""), words.collect())),
                "object" => {
                    let name = words.next().unwrap_or("");
                    schema.objects.push((name, words.map(Parameter::read).collect()));
                }
                name => {
                    let parameters: Vec<Parameter> = words.map(Parameter::read).collect();
                    let names = parameters.iter().map(|parameter| parameter.name).collect();
                    schema.methods.push(Method { name, group, parameters, names });
                }
            }
        }
        schema
    }
}

impl Method {
    /// The parameter of this name.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The parameter or, written `object.field`, the field of an object that a path names.
    pub fn at(&self, path: &str) -> Option<&Parameter> {
        let Some((name, field)) = path.split_once('.') else { return self.parameter(path) };
        let Kind::Object(object) = self.parameter(name)?.kind else { return None };
        schema().object(object)?.iter().find(|parameter| parameter.name == field)
    }
}

impl Parameter {
    /// Reads `name:type` or, when it is required, `name:type!`.
    fn read(word: &'static str) -> Self {
        let (name, kind) = word.split_once(':').expect("a parameter is name:type");
        let required = kind.ends_with('!');
        Self { name, kind: Kind::read(kind.trim_end_matches('!')), required }
    }
}

impl Kind {
    /// Whether SPDK's decoder accepts this value for a parameter of this kind, as far as the kind tells.
    #[must_use]
    pub fn admits(self, value: &Value) -> bool {
        match self {
            Self::Boolean => value.is_boolean(),
            Self::Unsigned(bits) => {
                value.as_u64().is_some_and(|value| u128::from(value) < 1_u128 << bits)
            }
            Self::Signed(bits) => value.as_i64().is_some_and(|value| {
                let half = 1_i128 << (bits - 1);
                (-half..half).contains(&i128::from(value))
            }),
            Self::Text | Self::Uuid | Self::Enum(_) => value.is_string(),
            Self::Bitmask(_) | Self::Array(_) => value.is_array(),
            Self::Object(_) => value.is_object(),
        }
    }

    fn read(word: &'static str) -> Self {
        let bits = |digits: &str| digits.parse().expect("a width in bits");
        match word.split_once('/') {
            Some(("enum", name)) => Self::Enum(name),
            Some(("bitmask", name)) => Self::Bitmask(name),
            Some(("array", name)) => Self::Array(name),
            Some(("object", name)) => Self::Object(name),
            Some((other, _)) => panic!("unknown kind {other}"),
            None => match word {
                "bool" => Self::Boolean,
                "string" => Self::Text,
                "uuid" => Self::Uuid,
                _ => match word.strip_prefix("uint") {
                    Some(digits) => Self::Unsigned(bits(digits)),
                    None => Self::Signed(bits(word.strip_prefix("int").expect("a known kind"))),
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Methods in SPDK's schema at the revision that the table names.
    const METHODS: usize = 296;
    /// The enums and objects that methods of the table use.
    const ENUMS: usize = 31;
    const OBJECTS: usize = 10;

    #[test]
    fn the_table_has_every_method_once() {
        let names: BTreeSet<&str> = schema().methods().iter().map(|method| method.name).collect();
        assert_eq!(names.len(), METHODS);
        assert_eq!(schema().methods().len(), METHODS);
        assert_eq!((schema().enums.len(), schema().objects.len()), (ENUMS, OBJECTS));
        assert!(schema().methods().iter().all(|method| !method.group.is_empty()));
    }

    #[test]
    fn parameters_say_kind_and_need() {
        let method = schema().method("nvmf_subsystem_add_listener").unwrap();
        assert_eq!(method.group, "nvmf");
        assert!(method.parameter("nqn").unwrap().required);
        assert!(!method.parameter("secure_channel").unwrap().required);
        assert_eq!(
            method.parameter("ana_state").unwrap().kind,
            Kind::Enum("nvme_ana_state"),
            "an enum keeps its name"
        );
        assert!(method.at("listen_address.traddr").unwrap().required);
        assert_eq!(method.at("listen_address.nothing"), None);
        assert_eq!(schema().words("nvme_ana_state").unwrap().len(), 3);
        let widths = schema().method("bdev_malloc_create").unwrap();
        assert_eq!(widths.parameter("num_blocks").unwrap().kind, Kind::Unsigned(64));
        assert_eq!(widths.parameter("numa_id").unwrap().kind, Kind::Signed(32));
        assert!(schema().method("no_such_method").is_none());
    }

    #[test]
    fn kinds_admit_what_spdk_decodes() {
        use serde_json::json;
        for (kind, good, bad) in [
            (Kind::Boolean, json!(true), json!(1)),
            (Kind::Unsigned(8), json!(255), json!(256)),
            (Kind::Unsigned(64), json!(u64::MAX), json!(-1)),
            (Kind::Signed(32), json!(-2_147_483_648_i64), json!(2_147_483_648_i64)),
            (Kind::Text, json!(""), json!(null)),
            (Kind::Array("x"), json!([]), json!({})),
            (Kind::Object("x"), json!({}), json!([])),
        ] {
            assert!(kind.admits(&good), "{kind} {good}");
            assert!(!kind.admits(&bad), "{kind} {bad}");
        }
    }

    #[test]
    fn every_enum_that_is_named_has_words() {
        for method in schema().methods() {
            for parameter in &method.parameters {
                if let Kind::Enum(name) = parameter.kind {
                    assert!(schema().words(name).is_some(), "{}: {name}", method.name);
                }
            }
        }
    }
}
