//! How each method's arguments are spelled on a command line: `rpc.py`'s names from SPDK v20.10 to 26.9, as
//! a table, and the parameters' own names for all others.

use std::sync::LazyLock;

use serde_json::Value;

use crate::schema::{Kind, Method, schema};

/// The facts; its first lines describe the form.
const TABLE: &str = include_str!("spelling.txt");

/// How one method is spelled.
#[derive(Clone, Debug)]
pub struct Spelling {
    /// Name of the method.
    pub method: &'static str,
    /// The part of its result that is printed.
    pub prints: Prints,
    /// Arguments without a name, in their order.
    pub positionals: Vec<Positional>,
    /// Arguments with a name, in any order.
    pub options: Vec<Flag>,
    /// Parameters that are sent with this value by default.
    pub defaults: Vec<(&'static str, Value)>,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Prints {
    /// Nothing: success is enough.
    Nothing,
    /// JSON with two spaces of indentation.
    Json,
    /// The same, but a string without its quotes.
    Plain,
    /// A list of words on one line, quoted for a shell.
    Words,
}

/// An argument without a name.
#[derive(Clone, Debug)]
pub struct Positional {
    /// Its name in help.
    pub name: &'static str,
    /// Whether it may be left out.
    pub optional: bool,
    /// Its value, and the parameter that it sets.
    pub value: ValueOf,
}

/// An argument with a name.
#[derive(Clone, Debug)]
pub struct Flag {
    /// All spellings, `-b` and `--name`.
    pub spellings: Vec<String>,
    /// Its value, and the parameter that it sets.
    pub value: ValueOf,
}

/// The value of an argument, and the parameter that it sets.
#[derive(Clone, Debug)]
pub struct ValueOf {
    /// How its word becomes JSON.
    pub form: Form,
    /// The parameter, or `object.field`.
    pub path: String,
}

/// How a word becomes JSON.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    /// As it is.
    Text,
    /// A whole number, decimal or after 0x hexadecimal.
    Integer,
    /// No word follows: `true`.
    True,
    /// No word follows: `false`.
    False,
    /// Words between commas: a list.
    List,
    /// Words between commas: an object that says `true` of each.
    Set,
    /// Mebibytes, sent as a count of blocks of `block_size` bytes.
    Mebibytes,
    /// Words between spaces, each `FIRST:SECOND`: a list of objects with two members.
    Pairs(&'static Pair),
    /// The secrets of CHAP: `user:USER secret:SECRET muser:USER msecret:SECRET`, and the next after a comma.
    Secrets,
    /// Accepted and not sent: old clients have it, no daemon does.
    Ignored,
}

/// The members of an object that is written `FIRST:SECOND`, and whether they are numbers.
#[derive(Debug, Eq, PartialEq)]
pub struct Pair {
    /// Its kind in the table.
    kind: &'static str,
    /// The member before the last colon.
    pub first: (&'static str, bool),
    /// The member after it.
    pub second: (&'static str, bool),
}

/// The objects that are written so.
static PAIRS: [Pair; 3] = [
    Pair { kind: "portals", first: ("host", false), second: ("port", false) },
    Pair { kind: "luns", first: ("bdev_name", false), second: ("lun_id", true) },
    Pair { kind: "maps", first: ("pg_tag", true), second: ("ig_tag", true) },
];

impl Form {
    /// Whether a word follows the option.
    pub fn takes_word(self) -> bool {
        !matches!(self, Self::True | Self::False)
    }
}

struct Table {
    spellings: Vec<Spelling>,
    aliases: Vec<(&'static str, &'static str)>,
}

static SPELLINGS: LazyLock<Table> = LazyLock::new(|| Table::read(TABLE));

/// The present name of a method: `name` itself, or the name that replaced the one of v20.10 or v21.01.
pub fn current_name(name: &str) -> &str {
    let alias = SPELLINGS.aliases.iter().find(|(old, _)| *old == name);
    alias.map_or(name, |(_, new)| new)
}

/// The names that v20.10 and v21.01 had for a method.
pub fn old_names(method: &str) -> impl Iterator<Item = &'static str> {
    let aliases = SPELLINGS.aliases.iter().filter(move |(_, new)| *new == method);
    aliases.map(|(old, _)| *old)
}

/// How a method of SPDK is spelled. `None` for a method that SPDK does not have.
pub fn spelling(method: &str) -> Option<Spelling> {
    let method = schema().method(method)?;
    let known = SPELLINGS.spellings.iter().find(|spelling| spelling.method == method.name);
    let mut spelling = known.cloned().unwrap_or(Spelling {
        method: method.name,
        prints: Prints::Json,
        positionals: Vec::new(),
        options: Vec::new(),
        defaults: Vec::new(),
    });
    spelling.add_own_names(method);
    Some(spelling)
}

impl Spelling {
    /// Lets each parameter that no argument sets be set by its own name.
    fn add_own_names(&mut self, method: &Method) {
        let mut paths = Vec::new();
        for parameter in &method.parameters {
            match parameter.kind {
                Kind::Object(object) => {
                    let fields = schema().object(object).unwrap_or(&[]);
                    paths.extend(fields.iter().map(|f| format!("{}.{}", parameter.name, f.name)));
                }
                _ => paths.push(parameter.name.to_owned()),
            }
        }
        for path in paths {
            let last = path.rsplit('.').next().unwrap_or(&path);
            let name = format!("--{}", last.replace('_', "-"));
            let taken = self.positionals.iter().any(|known| known.value.path == path)
                || self
                    .options
                    .iter()
                    .any(|known| known.value.path == path || known.spellings.contains(&name));
            if !taken {
                let form = form_of(method, &path);
                let value = ValueOf { form, path };
                self.options.push(Flag { spellings: vec![name], value });
            }
        }
    }
}

/// The form that a parameter's type implies.
fn form_of(method: &Method, path: &str) -> Form {
    match method.at(path).map(|parameter| parameter.kind) {
        Some(Kind::Boolean) => Form::True,
        Some(Kind::Unsigned(_) | Kind::Signed(_)) => Form::Integer,
        Some(Kind::Bitmask(_) | Kind::Array(_)) => Form::List,
        _ => Form::Text,
    }
}

impl Table {
    /// Reads the table. It is part of this program, so a line that is wrong is a bug of ours.
    fn read(text: &'static str) -> Self {
        let mut table = Self { spellings: Vec::new(), aliases: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match *line.split(' ').collect::<Vec<_>>().as_slice() {
                ["alias", old, new] => table.aliases.push((old, new)),
                [method, prints, ref arguments @ ..] => {
                    table.spellings.push(Spelling::read(method, prints, arguments));
                }
                _ => panic!("spelling: {line}"),
            }
        }
        table
    }
}

impl Spelling {
    fn read(method: &'static str, prints: &str, arguments: &[&'static str]) -> Self {
        let known = schema().method(method).expect("a method of the schema");
        let prints = match prints {
            "none" => Prints::Nothing,
            "json" => Prints::Json,
            "plain" => Prints::Plain,
            "words" => Prints::Words,
            other => panic!("{method} prints {other}"),
        };
        let mut spelling = Self {
            method: known.name,
            prints,
            positionals: Vec::new(),
            options: Vec::new(),
            defaults: Vec::new(),
        };
        for &argument in arguments {
            if let Some((parameter, value)) = argument.split_once(":=") {
                let value = value.parse().expect("a default is JSON");
                spelling.defaults.push((parameter, value));
                continue;
            }
            let (argument, path) = match argument.split_once('=') {
                Some((argument, path)) => (argument, Some(path)),
                None => (argument, None),
            };
            let (names, form) = match argument.split_once(':') {
                Some((names, form)) => (names, Some(form)),
                None => (argument, None),
            };
            let path = path.map_or_else(|| implied_path(names), str::to_owned);
            let form = form.map_or_else(|| form_of(known, &path), named_form);
            let value = ValueOf { form, path };
            if names.starts_with('-') {
                let spellings = names.split(',').map(str::to_owned).collect();
                spelling.options.push(Flag { spellings, value });
            } else {
                let name = names.trim_end_matches('?');
                let optional = names.ends_with('?');
                spelling.positionals.push(Positional { name, optional, value });
            }
        }
        spelling
    }
}

/// The parameter of an argument whose line in the table names none.
fn implied_path(names: &str) -> String {
    let longest = names.split(',').max_by_key(|name| name.len()).unwrap_or(names);
    longest.trim_start_matches('-').trim_end_matches('?').replace('-', "_")
}

fn named_form(word: &str) -> Form {
    match word {
        "str" => Form::Text,
        "int" => Form::Integer,
        "true" => Form::True,
        "false" => Form::False,
        "list" => Form::List,
        "set" => Form::Set,
        "mib" => Form::Mebibytes,
        "ignored" => Form::Ignored,
        "secrets" => Form::Secrets,
        other => match PAIRS.iter().find(|pair| pair.kind == other) {
            Some(pair) => Form::Pairs(pair),
            None => panic!("unknown form {other}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_spelling_sets_a_parameter_once() {
        for method in schema().methods() {
            let spelling = spelling(method.name).unwrap();
            let mut seen = HashSet::new();
            for option in &spelling.options {
                assert!(!option.value.path.is_empty(), "{}", method.name);
                for word in &option.spellings {
                    assert!(word.starts_with('-'), "{}: {word}", method.name);
                    assert!(seen.insert(word.clone()), "{}: {word} twice", method.name);
                }
            }
            let optional = spelling.positionals.iter().skip_while(|argument| !argument.optional);
            assert!(optional.into_iter().all(|argument| argument.optional), "{}", method.name);
        }
    }

    #[test]
    fn what_spdk_requires_can_be_said() {
        for method in schema().methods() {
            let spelling = spelling(method.name).unwrap();
            let sets = |name: &str| {
                let of = |path: &str| path.split('.').next() == Some(name);
                spelling.positionals.iter().any(|argument| of(&argument.value.path))
                    || spelling.options.iter().any(|option| of(&option.value.path))
            };
            for parameter in method.parameters.iter().filter(|parameter| parameter.required) {
                assert!(sets(parameter.name), "{}: {}", method.name, parameter.name);
            }
        }
    }

    #[test]
    fn old_names_lead_to_methods() {
        assert_eq!(current_name("get_bdevs"), "bdev_get_bdevs");
        assert_eq!(current_name("bdev_get_bdevs"), "bdev_get_bdevs");
        for (old, new) in &SPELLINGS.aliases {
            assert!(schema().method(new).is_some(), "{old} -> {new}");
        }
    }
}
