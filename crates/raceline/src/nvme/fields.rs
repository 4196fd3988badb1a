//! Data structures as lists of fields with nvme-cli's names, and the two forms in which nvme-cli prints them.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use super::decode::{Bits, lines};
use crate::table::printable;

/// The bytes of a data structure: little endian, and zero beyond their end.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    /// `len` bytes, at most 16, from `at` on, as a number.
    pub(super) fn number(self, at: usize, len: usize) -> u128 {
        let bytes = (at..at + len).rev().map(|place| self.0.get(place).copied().unwrap_or(0));
        bytes.fold(0, |number, byte| number << 8 | u128::from(byte))
    }

    /// A byte.
    pub(super) fn byte(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Text of `len` bytes, to its first zero.
    pub(super) fn text(self, at: usize, len: usize) -> String {
        let bytes: Vec<u8> =
            (at..at + len).map(|place| self.byte(place)).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Bytes as hexadecimal digits.
    pub(super) fn digits(self, at: usize, len: usize) -> String {
        (at..at + len).fold(String::new(), |mut text, place| {
            let _ = write!(text, "{:02x}", self.byte(place));
            text
        })
    }

    /// Sixteen bytes as a UUID, with the first groups as they are.
    pub(super) fn uuid(self, at: usize) -> String {
        let digits = self.digits(at, 16);
        let groups = [0..8, 8..12, 12..16, 16..20, 20..32];
        groups.map(|group| digits[group].to_owned()).join("-")
    }
}

/// How a field is printed for people. Programs get numbers and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Decimal,
    /// As C prints it: `0x10`, and `0`.
    Hex,
    /// Six digits of hexadecimal without a prefix.
    Oui,
}

/// A field.
pub(super) struct Field {
    name: &'static str,
    value: Content,
}

enum Content {
    /// With its bytes.
    Number(u128, usize, Form),
    Text(String),
}

/// The fields of a data structure.
pub(super) struct Fields<'a> {
    pub(super) bytes: Bytes<'a>,
    fields: Vec<Field>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: Bytes(bytes), fields: Vec::new() }
    }

    /// Adds numbers: name, first byte, bytes, form.
    pub(super) fn numbers(&mut self, fields: &[(&'static str, usize, usize, Form)]) {
        for &(name, at, len, form) in fields {
            let value = Content::Number(self.bytes.number(at, len), len, form);
            self.fields.push(Field { name, value });
        }
    }

    pub(super) fn text(&mut self, name: &'static str, text: String) {
        self.fields.push(Field { name, value: Content::Text(text) });
    }

    /// Lines for people: names of `width` letters. Below a number, `meaning` says what its bits mean, if it knows the field.
    pub(super) fn normal(
        &self,
        width: usize,
        meaning: impl Fn(&str) -> Option<&'static [Bits]>,
    ) -> String {
        self.fields.iter().fold(String::new(), |mut text, field| {
            let value = match &field.value {
                Content::Number(number, _, Form::Decimal) => number.to_string(),
                Content::Number(number, _, Form::Hex) => hex(*number),
                Content::Number(number, _, Form::Oui) => format!("{number:06x}"),
                Content::Text(text) => printable(text),
            };
            let name = field.name;
            let _ = writeln!(text, "{name:<width$}: {value}");
            if let (Content::Number(number, len, _), Some(bits)) = (&field.value, meaning(name)) {
                text.push_str(&lines(*number, *len, bits));
            }
            text
        })
    }

    /// An object for programs.
    pub(super) fn document(&self) -> Map<String, Value> {
        let member = |field: &Field| {
            let value = match &field.value {
                Content::Number(value, ..) => number(*value),
                Content::Text(text) => text.as_str().into(),
            };
            (field.name.to_owned(), value)
        };
        self.fields.iter().map(member).collect()
    }
}

/// A number for programs; one that fits no 64 bits is text.
pub(super) fn number(value: u128) -> Value {
    u64::try_from(value)
        .map_or_else(|_| value.to_string().into(), |value| Number::from(value).into())
}

/// `%#x` of C.
pub(super) fn hex(number: u128) -> String {
    if number == 0 { "0".to_owned() } else { format!("{number:#x}") }
}

/// Bytes in lines of 16, as nvme-cli shows pages that it does not know.
pub(super) fn dump(bytes: &[u8]) -> String {
    let mut text = "       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f\n".to_owned();
    for (line, bytes) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "{:04x}:", line * 16);
        let numbers: String = bytes.iter().map(|byte| format!(" {byte:02x}")).collect();
        // A space is a dot as well, and behind the numbers of a line that is not full there is one space more.
        let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
        let letters: String = bytes.iter().map(shown).collect();
        let width = if bytes.len() == 16 { 48 } else { 49 };
        let _ = writeln!(text, "{numbers:<width$} \"{letters}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_end_are_zero() {
        let bytes = Bytes(&[1, 2, b'a']);
        assert_eq!(bytes.number(0, 2), 0x0201);
        assert_eq!(bytes.number(1, 16), 0x6102);
        assert_eq!(bytes.text(2, 9), "a");
        assert_eq!(bytes.digits(1, 3), "026100");
    }

    #[test]
    fn dumps_have_sixteen_bytes_a_line() {
        let text = dump(&(0x2c..0x3d).collect::<Vec<u8>>());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "0000: 2c 2d 2e 2f 30 31 32 33 34 35 36 37 38 39 3a 3b \",-./0123456789:;\""
        );
        assert!(lines[2].starts_with("0010: 3c   ") && lines[2].ends_with("\"<\""), "{text}");
    }
}
