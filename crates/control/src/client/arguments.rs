//! From the words of a command line to a request: `rpc.py`'s rules for options, over the table of
//! spellings.
//!
//! The rules are those of Python's argparse, which scripts rely on: options and positional
//! arguments in any order, `--option=value`, `-ovalue`, and long options cut short while they stay
//! unique. A command line library does not fit: some "short" options have several letters.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::schema::schema;
use crate::spelling::{Flag, Form, Pair, Positional, Prints, Spelling, current_name, spelling};

/// Bytes in the unit of sizes on command lines.
const MEBIBYTE: u128 = 1 << 20;
/// Digits that count after the point of a size in MiB; a byte is the 20th.
const FRACTION_DIGITS: usize = 20;

/// One request, and what to print of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Name of the method on the wire.
    pub method: String,
    /// Its parameters; an empty object is not sent.
    pub params: Map<String, Value>,
    /// What to print of its result.
    pub prints: Prints,
}

/// A command line that is wrong, or that asks for help.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum UsageError {
    /// What is wrong with it.
    #[error("{0}")]
    Wrong(String),
    /// The text of help.
    #[error("{0}")]
    Help(String),
}

fn wrong(method: &str, what: impl std::fmt::Display) -> UsageError {
    UsageError::Wrong(format!("{method}: {what} (see raceline rpc {method} --help)"))
}

/// Reads a method's name and the words after it.
pub fn parse(method: &str, words: &[String]) -> Result<Request, UsageError> {
    let method = current_name(method);
    match spelling(method) {
        Some(spelling) => Parser::new(&spelling).run(words),
        None => parse_plain(method, words),
    }
}

/// A method that SPDK does not have: an object, or `parameter=value` with values in JSON or plain.
fn parse_plain(method: &str, words: &[String]) -> Result<Request, UsageError> {
    let mut params = Map::new();
    for word in words {
        if let Ok(Value::Object(object)) = serde_json::from_str(word) {
            params.extend(object);
        } else if let Some((name, value)) = word.split_once('=') {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            params.insert(name.trim_start_matches('-').to_owned(), value);
        } else {
            let what = format!("'{word}' is neither parameter=value nor a JSON object");
            return Err(UsageError::Wrong(format!("{method}: {what}")));
        }
    }
    Ok(Request { method: method.to_owned(), params, prints: Prints::Json })
}

struct Parser<'a> {
    spelling: &'a Spelling,
    params: Map<String, Value>,
    /// A size in MiB and the parameter that it sets, kept until the block size is known.
    size: Option<(&'a str, u128)>,
    positionals: std::slice::Iter<'a, Positional>,
}

impl<'a> Parser<'a> {
    fn new(spelling: &'a Spelling) -> Self {
        Self { spelling, params: Map::new(), size: None, positionals: spelling.positionals.iter() }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> UsageError {
        wrong(self.spelling.method, what)
    }

    fn run(mut self, words: &[String]) -> Result<Request, UsageError> {
        let mut words = words.iter().map(String::as_str);
        let mut options_end = false;
        while let Some(word) = words.next() {
            if options_end || !self.looks_like_option(word) {
                let Some(next) = self.positionals.next() else {
                    return Err(self.wrong(format_args!("'{word}' is one argument too many")));
                };
                self.set(next.name, &next.value.path, next.value.form, word)?;
            } else if word == "--" {
                options_end = true;
            } else if matches!(word, "-h" | "--help") && self.exact(word).is_none() {
                return Err(UsageError::Help(help(self.spelling)));
            } else {
                self.option(word, &mut words)?;
            }
        }
        if let Some(missing) = self.positionals.clone().find(|argument| !argument.optional) {
            return Err(self.wrong(format_args!("{} is missing", missing.name)));
        }
        self.finish()
    }

    /// A word that begins with a dash is an option, unless it is a number or a dash alone.
    fn looks_like_option(&self, word: &str) -> bool {
        word.len() > 1
            && word.starts_with('-')
            && (word.parse::<f64>().is_err() || self.exact(word).is_some())
    }

    fn exact(&self, word: &str) -> Option<&'a Flag> {
        let mut options = self.spelling.options.iter();
        options.find(|option| option.spellings.iter().any(|spelling| spelling == word))
    }

    /// One option, with its value from the same word or from the next.
    fn option<'w>(
        &mut self,
        word: &'w str,
        rest: &mut impl Iterator<Item = &'w str>,
    ) -> Result<(), UsageError> {
        let (flag, attached) = self.find(word)?;
        let value = match attached {
            Some(value) if flag.value.form.takes_word() => value,
            Some(_) => return Err(self.wrong(format_args!("{word}: this option takes no value"))),
            None if flag.value.form.takes_word() => match rest.next() {
                Some(next) if !self.looks_like_option(next) => next,
                _ => return Err(self.wrong(format_args!("{word}: its value is missing"))),
            },
            None => "",
        };
        self.set(word, &flag.value.path, flag.value.form, value)
    }

    /// The option that a word means, and the value in the same word.
    fn find<'w>(&self, word: &'w str) -> Result<(&'a Flag, Option<&'w str>), UsageError> {
        if let Some(flag) = self.exact(word) {
            return Ok((flag, None));
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if let Some(flag) = self.exact(name) {
            return Ok((flag, value));
        }
        if !word.starts_with("--") {
            // -t5: the longest spelling that the word begins with, so that -t15 is -t1 with 5.
            let spelled = |flag: &'a Flag| {
                let fits = flag.spellings.iter().filter(|s| !s.starts_with("--"));
                fits.filter(|s| word.starts_with(s.as_str())).map(String::len).max()
            };
            let options = self.spelling.options.iter();
            let found = options.filter_map(|flag| Some((spelled(flag)?, flag))).max_by_key(|f| f.0);
            return match found {
                Some((length, flag)) => Ok((flag, Some(&word[length..]))),
                None => Err(self.unknown(word)),
            };
        }
        // Underscores have become dashes, and long options may be abbreviated.
        let dashed = name.replace('_', "-");
        let begins =
            |flag: &&Flag| flag.spellings.iter().any(|s| s.replace('_', "-").starts_with(&dashed));
        let same = |flag: &&Flag| flag.spellings.iter().any(|s| s.replace('_', "-") == dashed);
        if let Some(flag) = self.spelling.options.iter().find(same) {
            return Ok((flag, value));
        }
        let fits: Vec<&Flag> = self.spelling.options.iter().filter(begins).collect();
        match *fits.as_slice() {
            [flag] => Ok((flag, value)),
            [] => Err(self.unknown(word)),
            [..] => {
                let names: Vec<&str> = fits
                    .iter()
                    .flat_map(|flag| flag.spellings.last())
                    .map(String::as_str)
                    .collect();
                Err(self.wrong(format_args!("{word} may mean any of {}", names.join(", "))))
            }
        }
    }

    fn unknown(&self, word: &str) -> UsageError {
        self.wrong(format_args!("there is no option {word}"))
    }

    /// Sets the parameter that an argument stands for.
    fn set(
        &mut self,
        argument: &str,
        path: &'a str,
        form: Form,
        word: &str,
    ) -> Result<(), UsageError> {
        let parts = || word.split([',', ' ']).filter(|part| !part.is_empty());
        let value = match form {
            Form::Text => Value::from(word),
            Form::Integer => integer(word).ok_or_else(|| {
                self.wrong(format_args!("{argument}: '{word}' is not a whole number"))
            })?,
            Form::True => Value::Bool(true),
            Form::False => Value::Bool(false),
            Form::List => parts().map(list_element).collect(),
            Form::Set => Value::Object(self.set_of(path, parts())),
            Form::Pairs(pair) => {
                let wrong = |word: &str| {
                    let (first, second) = (pair.first.0, pair.second.0);
                    self.wrong(format_args!("{argument}: '{word}' is not {first}:{second}"))
                };
                let words = word.split_whitespace();
                words
                    .map(|word| pair_of(pair, word).ok_or_else(|| wrong(word)))
                    .collect::<Result<Value, _>>()?
            }
            Form::Secrets => secrets_of(word).ok_or_else(|| {
                // The words are secrets: the message does not repeat them.
                self.wrong(format_args!(
                    "{argument} takes user:USER secret:SECRET, and the next after a comma"
                ))
            })?,
            Form::Ignored => return Ok(()),
            Form::Mebibytes => {
                let size = mebibytes(word).ok_or_else(|| {
                    self.wrong(format_args!("{argument}: '{word}' is not a size in MiB"))
                })?;
                self.size = Some((path, size));
                return Ok(());
            }
        };
        match path.split_once('.') {
            None => {
                self.params.insert(path.to_owned(), value);
            }
            Some((name, field)) => {
                let entry = self.params.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(object) = entry {
                    object.insert(field.to_owned(), value);
                }
            }
        }
        Ok(())
    }

    /// An object that says `true` of each word; `all` stands for all fields.
    fn set_of<'w>(&self, path: &str, words: impl Iterator<Item = &'w str>) -> Map<String, Value> {
        let method = schema().method(self.spelling.method);
        let kind = method.and_then(|method| method.at(path)).map(|parameter| parameter.kind);
        let fields = match kind {
            Some(crate::schema::Kind::Object(name)) => schema().object(name).unwrap_or(&[]),
            _ => &[],
        };
        let mut set = Map::new();
        for word in words {
            if word == "all" {
                set.extend(fields.iter().map(|field| (field.name.to_owned(), Value::Bool(true))));
            } else {
                set.insert(word.to_owned(), Value::Bool(true));
            }
        }
        set
    }

    fn finish(mut self) -> Result<Request, UsageError> {
        if let Some((path, bytes)) = self.size {
            let block_size = self.params.get("block_size").and_then(Value::as_u64).unwrap_or(0);
            let count = bytes.checked_div(u128::from(block_size));
            let Some(count) = count.and_then(|count| u64::try_from(count).ok()) else {
                return Err(self.wrong("that size has no count of such blocks"));
            };
            self.params.insert(path.to_owned(), Value::from(count));
        }
        for (parameter, value) in &self.spelling.defaults {
            if !self.params.contains_key(*parameter) {
                self.params.insert((*parameter).to_owned(), value.clone());
            }
        }
        let required = schema().method(self.spelling.method).map_or(&[][..], |m| &m.parameters);
        for parameter in required.iter().filter(|parameter| parameter.required) {
            if !self.params.contains_key(parameter.name) {
                let how = spelled(self.spelling, parameter.name);
                return Err(self.wrong(format_args!("{how} is missing")));
            }
        }
        let method = self.spelling.method.to_owned();
        Ok(Request { method, params: self.params, prints: self.spelling.prints })
    }
}

/// How a user spells a parameter on the command line.
fn spelled(spelling: &Spelling, parameter: &str) -> String {
    let of = |path: &str| path.split('.').next() == Some(parameter);
    let options: Vec<&str> = spelling
        .options
        .iter()
        .filter(|option| of(&option.value.path))
        .filter_map(|option| option.spellings.last().map(String::as_str))
        .collect();
    if options.is_empty() { parameter.to_owned() } else { options.join(" or ") }
}

/// `FIRST:SECOND` as an object.
fn pair_of(pair: &Pair, word: &str) -> Option<Value> {
    let (first, second) = word.rsplit_once(':')?;
    let member = |(name, is_number): (&str, bool), word: &str| {
        let value = if is_number { integer(word)? } else { Value::from(word) };
        Some((name.to_owned(), value))
    };
    let members = [member(pair.first, first)?, member(pair.second, second)?];
    Some(Value::Object(members.into_iter().collect()))
}

/// Secrets of CHAP, each an object of the members that are named.
fn secrets_of(text: &str) -> Option<Value> {
    let member = |word: &str| {
        let (name, value) = word.split_once(':')?;
        let is_known = ["user", "secret", "muser", "msecret"].contains(&name);
        is_known.then(|| (name.to_owned(), Value::from(value)))
    };
    let secret = |text: &str| {
        let members: Option<Map<String, Value>> = text.split_whitespace().map(member).collect();
        members.map(Value::Object)
    };
    text.split(',').map(secret).collect()
}

/// An element of a list: numbers are numbers.
fn list_element(word: &str) -> Value {
    integer(word).unwrap_or_else(|| Value::from(word))
}

/// A whole number, decimal or after 0x hexadecimal.
fn integer(word: &str) -> Option<Value> {
    if let Some(digits) = word.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(Value::from);
    }
    match word.parse::<u64>() {
        Ok(number) => Some(Value::from(number)),
        Err(_) => word.parse::<i64>().ok().map(Value::from),
    }
}

/// Bytes of a size in MiB, which may have a fraction. Parts of a byte are dropped.
fn mebibytes(word: &str) -> Option<u128> {
    let (whole, fraction) = word.split_once('.').unwrap_or((word, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(u128::from(whole) * MEBIBYTE + part * MEBIBYTE / scale)
}

/// What a method takes.
fn help(spelling: &Spelling) -> String {
    let mut text = format!("usage: raceline rpc {}", spelling.method);
    for argument in &spelling.positionals {
        let name = argument.name.to_uppercase();
        // Writing to a String does not fail.
        let _ = if argument.optional { write!(text, " [{name}]") } else { write!(text, " {name}") };
    }
    if !spelling.options.is_empty() {
        text.push_str(" [options]\n");
    }
    let method = schema().method(spelling.method);
    for option in &spelling.options {
        let known = method.and_then(|method| method.at(&option.value.path));
        let mut about = match (known, option.value.form) {
            (_, Form::Ignored) => "ignored".to_owned(),
            (_, Form::False) => format!("{} is false", option.value.path),
            (Some(parameter), Form::True) => format!("{} is true", parameter.name),
            (Some(parameter), _) => match parameter.kind {
                crate::schema::Kind::Enum(name) => schema().words(name).unwrap_or(&[]).join(", "),
                kind => kind.to_string(),
            },
            (None, _) => format!("{}, of older releases", option.value.path),
        };
        if known.is_some_and(|parameter| parameter.required) {
            about.push_str(", required");
        }
        let _ = write!(text, "\n  {:<44} {about}", option.spellings.join(", "));
    }
    text
}

#[cfg(test)]
mod tests;
