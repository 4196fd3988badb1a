//! Results on standard output, in the form that scripts around `rpc.py` read.

use std::fmt::Write as _;

use serde_json::Value;

use crate::spelling::Prints;

/// The text that is printed for a result, without a line end. `None`: nothing is printed.
pub fn render(result: &Value, prints: Prints) -> Option<String> {
    match prints {
        Prints::Nothing => None,
        Prints::Json => Some(pretty(result)),
        Prints::Plain => Some(pretty(result).trim_matches('"').to_owned()),
        Prints::Words => Some(words(result).unwrap_or_else(|| pretty(result))),
    }
}

/// JSON with two spaces of indentation, in ASCII as Python writes it.
pub fn pretty(value: &Value) -> String {
    ascii(&format!("{value:#}"))
}

/// JSON is ASCII outside strings, so every character that is not ASCII can be escaped.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && character != '\x7f' {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

/// The words of a list, quoted as a shell wants them. None for anything else.
fn words(value: &Value) -> Option<String> {
    let words: Option<Vec<&str>> = value.as_array()?.iter().map(Value::as_str).collect();
    Some(words?.into_iter().map(quote).collect::<Vec<_>>().join(" "))
}

fn quote(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r#"'"'"'"#))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_indented_by_two_in_the_order_it_came() {
        let value = json!({"name": "m", "aliases": [], "more": {"x": 1, "a": [1, 2]}});
        let expected = "{\n  \"name\": \"m\",\n  \"aliases\": [],\n  \"more\": {\n    \"x\": 1,\n    \
                        \"a\": [\n      1,\n      2\n    ]\n  }\n}";
        assert_eq!(render(&value, Prints::Json).unwrap(), expected);
        assert_eq!(render(&json!({}), Prints::Json).unwrap(), "{}");
    }

    #[test]
    fn strings_lists_and_nothing() {
        assert_eq!(render(&json!("Malloc0"), Prints::Plain).unwrap(), "Malloc0");
        assert_eq!(render(&json!("Malloc0"), Prints::Json).unwrap(), "\"Malloc0\"");
        assert_eq!(render(&json!(true), Prints::Plain).unwrap(), "true");
        assert_eq!(render(&json!(true), Prints::Nothing), None);
        assert_eq!(
            render(&json!(["a", "b c", "", "d'e"]), Prints::Words).unwrap(),
            r#"a 'b c' '' 'd'"'"'e'"#
        );
        assert_eq!(render(&json!([1]), Prints::Words).unwrap(), "[\n  1\n]");
    }

    #[test]
    fn what_is_not_ascii_is_escaped() {
        assert_eq!(
            pretty(&json!("Grüße \u{1f600}\u{7f}")),
            r#""Gr\u00fc\u00dfe \ud83d\ude00\u007f""#
        );
    }
}
