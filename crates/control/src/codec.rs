//! Splits a byte stream into JSON values: incremental, validating, bounded, and without recursion.
//!
//! JSON-RPC over SPDK's socket is unframed: values follow each other, and only the grammar (RFC 8259) says
//! where a value ends. A broken value is noticed at its first wrong byte, not when its brackets close:
//! otherwise a client that waits for the answer would wait for ever.

/// Bounds of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Its bytes.
    pub bytes: usize,
    /// Its deepest nesting, at most [`Bounds::MAX_DEPTH`].
    pub depth: u32,
    /// The number of values in it, including the value itself and the names of members.
    pub values: u32,
}

impl Bounds {
    /// The deepest nesting that the scanner can follow: one bit for each level.
    pub const MAX_DEPTH: u32 = 64;

    /// The bounds of the server. SPDK accepts 256 KiB and 8,192 values.
    pub const REQUEST: Self = Self { bytes: 1 << 20, depth: Self::MAX_DEPTH, values: 1 << 16 };
}

/// Why a stream cannot be read any further: there is no point at which reading could resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A byte that the grammar does not allow.
    #[error("byte {offset} of the request is not JSON")]
    Syntax {
        /// Where in the value it is, from 0.
        offset: usize,
    },
    /// More bytes than one value may have.
    #[error("the request has more than {0} bytes")]
    Bytes(usize),
    /// Deeper than a value may be.
    #[error("the request is nested more than {0} deep")]
    Depth(u32),
    /// More values than one may hold.
    #[error("the request holds more than {0} values")]
    Values(u32),
}

/// Splits a stream into values.
#[derive(Debug)]
pub struct Splitter {
    bounds: Bounds,
    buffer: Vec<u8>,
    /// Bytes of the buffer that the scanner has seen; the value begins at 0.
    scanned: usize,
    scanner: Scanner,
}

impl Splitter {
    /// A splitter at the beginning of a stream.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let depth = bounds.depth.min(Bounds::MAX_DEPTH);
        Self {
            bounds: Bounds { depth, ..bounds },
            buffer: Vec::new(),
            scanned: 0,
            scanner: Scanner::default(),
        }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether a value has begun and not ended.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.buffer.iter().any(|byte| !is_space(*byte))
    }

    /// The next value whose last byte has come.
    ///
    /// # Errors
    /// When the stream is broken or a bound is passed; the stream is then useless.
    pub fn next_value(&mut self) -> Result<Option<Vec<u8>>, SplitError> {
        if self.scanned == 0 {
            let space = self.buffer.iter().take_while(|byte| is_space(**byte)).count();
            self.buffer.drain(..space);
        }
        while let Some(&byte) = self.buffer.get(self.scanned) {
            match self.scanner.step(byte, &self.bounds) {
                Ok(Step::More) => self.scanned += 1,
                Ok(Step::Last) => return Ok(Some(self.take(self.scanned + 1))),
                Ok(Step::Before) => return Ok(Some(self.take(self.scanned))),
                Err(Refusal::Syntax) => return Err(SplitError::Syntax { offset: self.scanned }),
                Err(Refusal::Depth) => return Err(SplitError::Depth(self.bounds.depth)),
                Err(Refusal::Values) => return Err(SplitError::Values(self.bounds.values)),
            }
            if self.scanned > self.bounds.bytes {
                return Err(SplitError::Bytes(self.bounds.bytes));
            }
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        self.scanned = 0;
        self.scanner = Scanner::default();
        let rest = self.buffer.split_off(len);
        std::mem::replace(&mut self.buffer, rest)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// What a byte means for the value.
enum Step {
    /// It belongs to the value, which goes on.
    More,
    /// It is the value's last.
    Last,
    /// The value ended before it (a number has no end of its own).
    Before,
}

enum Refusal {
    Syntax,
    Depth,
    Values,
}

/// What may come next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Value,
    /// A value, or the end of an array that has just begun.
    ValueOrEnd,
    /// A name, or the end of an object that has just begun.
    NameOrEnd,
    Name,
    Colon,
    CommaOrEnd,
    Text(Text),
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

/// Inside a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Plain,
    Escape,
    /// The number of hexadecimal digits that are still missing.
    Unicode(u8),
}

/// The state inside a number: the kind of its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// The grammar as a machine whose stack is the bits of a word.
#[derive(Debug, Default)]
struct Scanner {
    expect: Expect,
    /// The string is a member's name.
    in_name: bool,
    /// One bit for each enclosing container, the innermost lowest: 1 is an object, 0 an array.
    objects: u64,
    depth: u32,
    values: u32,
}

impl Scanner {
    fn step(&mut self, byte: u8, bounds: &Bounds) -> Result<Step, Refusal> {
        match self.expect {
            Expect::Text(text) => return self.in_text(text, byte),
            Expect::Number(number) => match number.after(byte) {
                Some(next) => {
                    self.expect = Expect::Number(next);
                    return Ok(Step::More);
                }
                None if !number.may_end() => return Err(Refusal::Syntax),
                None if self.depth == 0 => return Ok(Step::Before),
                None => self.expect = Expect::CommaOrEnd,
            },
            Expect::Word(rest) => {
                let [first, rest @ ..] = rest else { return Err(Refusal::Syntax) };
                if byte != *first {
                    return Err(Refusal::Syntax);
                }
                self.expect = Expect::Word(rest);
                return Ok(if rest.is_empty() { self.value_ended() } else { Step::More });
            }
            _ => {}
        }
        if is_space(byte) {
            return Ok(Step::More);
        }
        self.between(byte, bounds)
    }

    /// A byte that is neither space nor inside a string, number or word.
    fn between(&mut self, byte: u8, bounds: &Bounds) -> Result<Step, Refusal> {
        let in_object = self.objects & 1 == 1;
        match (self.expect, byte) {
            (Expect::Colon, b':') => self.expect = Expect::Value,
            (Expect::CommaOrEnd, b',') => {
                self.expect = if in_object { Expect::Name } else { Expect::Value };
            }
            (Expect::NameOrEnd, b'}') => return Ok(self.leave()),
            (Expect::CommaOrEnd, b'}') if in_object => return Ok(self.leave()),
            (Expect::ValueOrEnd, b']') => return Ok(self.leave()),
            (Expect::CommaOrEnd, b']') if !in_object => return Ok(self.leave()),
            (Expect::Name | Expect::NameOrEnd, b'"') => {
                self.count(bounds)?;
                self.in_name = true;
                self.expect = Expect::Text(Text::Plain);
            }
            (Expect::Value | Expect::ValueOrEnd, _) => {
                self.count(bounds)?;
                self.begin(byte, bounds)?;
            }
            _ => return Err(Refusal::Syntax),
        }
        Ok(Step::More)
    }

    /// The first byte of a value.
    fn begin(&mut self, byte: u8, bounds: &Bounds) -> Result<(), Refusal> {
        self.expect = match byte {
            b'{' | b'[' => {
                if self.depth >= bounds.depth {
                    return Err(Refusal::Depth);
                }
                self.depth += 1;
                self.objects = self.objects << 1 | u64::from(byte == b'{');
                if byte == b'{' { Expect::NameOrEnd } else { Expect::ValueOrEnd }
            }
            b'"' => {
                self.in_name = false;
                Expect::Text(Text::Plain)
            }
            b'-' => Expect::Number(Number::Minus),
            b'0' => Expect::Number(Number::Zero),
            b'1'..=b'9' => Expect::Number(Number::Digits),
            b't' => Expect::Word(b"rue"),
            b'f' => Expect::Word(b"alse"),
            b'n' => Expect::Word(b"ull"),
            _ => return Err(Refusal::Syntax),
        };
        Ok(())
    }

    fn in_text(&mut self, text: Text, byte: u8) -> Result<Step, Refusal> {
        self.expect = Expect::Text(match (text, byte) {
            (Text::Plain, b'"') if self.in_name => {
                self.expect = Expect::Colon;
                return Ok(Step::More);
            }
            (Text::Plain, b'"') => return Ok(self.value_ended()),
            (Text::Plain, b'\\') => Text::Escape,
            (Text::Plain, 0x20..) => Text::Plain,
            (Text::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Text::Plain,
            (Text::Escape, b'u') => Text::Unicode(4),
            (Text::Unicode(1), byte) if byte.is_ascii_hexdigit() => Text::Plain,
            (Text::Unicode(missing), byte) if byte.is_ascii_hexdigit() => {
                Text::Unicode(missing - 1)
            }
            _ => return Err(Refusal::Syntax),
        });
        Ok(Step::More)
    }

    fn leave(&mut self) -> Step {
        self.depth -= 1;
        self.objects >>= 1;
        self.value_ended()
    }

    fn value_ended(&mut self) -> Step {
        self.expect = Expect::CommaOrEnd;
        if self.depth == 0 { Step::Last } else { Step::More }
    }

    fn count(&mut self, bounds: &Bounds) -> Result<(), Refusal> {
        self.values += 1;
        if self.values > bounds.values { Err(Refusal::Values) } else { Ok(()) }
    }
}

impl Number {
    /// Where the number is after one more byte; `None` if the byte does not belong to it.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Self::Digits,
            (Self::Zero | Self::Digits, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::ExponentDigits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(text: &str) -> Result<Vec<String>, SplitError> {
        let mut splitter = Splitter::new(Bounds::REQUEST);
        splitter.push(text.as_bytes());
        let mut values = Vec::new();
        while let Some(value) = splitter.next_value()? {
            values.push(String::from_utf8(value).unwrap());
        }
        Ok(values)
    }

    #[test]
    fn values_follow_each_other_with_or_without_space() {
        assert_eq!(split("{}[]{\"a\":[1,2]}\n 12 ").unwrap(), ["{}", "[]", "{\"a\":[1,2]}", "12"]);
        assert_eq!(split("\"}\\\"{\"null true").unwrap(), ["\"}\\\"{\"", "null", "true"]);
        assert_eq!(split("{\"a\"").unwrap(), Vec::<String>::new());
        assert_eq!(split("1{}").unwrap(), ["1", "{}"]);
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        for (text, offset) in [
            ("x", 0),
            ("{]", 1),
            ("[}", 1),
            ("{\"a\" 1", 5),
            ("{\"a\":1,}", 7),
            ("[1,]", 3),
            ("[01]", 2),
            ("[1.]", 3),
            ("[-]", 2),
            ("[1e]", 3),
            ("{\"a\\x", 4),
            ("[\"\\u12g", 6),
            ("[\"\n", 2),
            ("[nul]", 4),
            ("}", 0),
            ("{1:2}", 1),
        ] {
            assert_eq!(split(text), Err(SplitError::Syntax { offset }), "{text}");
        }
    }

    #[test]
    fn depth_size_and_number_are_bounded() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(split(&deep(64)).unwrap().len(), 1);
        assert_eq!(split(&deep(65)), Err(SplitError::Depth(64)));
        assert_eq!(split(&"[".repeat(1 << 20)), Err(SplitError::Depth(64)));
        let many = format!("[{}1]", "1,".repeat(1 << 16));
        assert_eq!(split(&many), Err(SplitError::Values(1 << 16)));
        let long = format!("[\"{}\"]", "x".repeat(1 << 20));
        assert_eq!(split(&long), Err(SplitError::Bytes(1 << 20)));
        // A value of exactly the largest size is accepted.
        let fits = format!("\"{}\"", "x".repeat((1 << 20) - 2));
        assert_eq!(split(&fits).unwrap().len(), 1);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::vec((".*", inner), 0..8)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// The splitter takes what serde_json writes, whole or in pieces; serde_json reads what it takes.
        #[test]
        fn any_value_in_any_pieces(value in json(), pretty: bool, cuts in prop::collection::vec(1usize..40, 1..20)) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let stream = format!("{} ", text.unwrap());
            let mut splitter = Splitter::new(Bounds::REQUEST);
            let (mut rest, mut got) = (stream.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                splitter.push(head);
                got.extend(splitter.next_value().unwrap());
                rest = tail;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(got.len(), 1);
            let back: serde_json::Value = serde_json::from_slice(&got[0]).unwrap();
            // The last digit of a float may change in its text.
            prop_assert_eq!(back.to_string().len(), serde_json::from_str::<serde_json::Value>(stream.trim()).unwrap().to_string().len());
        }

        /// Any bytes: no panic, and agreement with serde_json about what is JSON.
        #[test]
        fn agrees_with_another_parser(text in "[\\[\\]{}\",:0-9eE.+truefalsn\\\\ -]{0,24}") {
            let ours = split(&format!("{text} ")).is_ok_and(|values| values.len() == 1)
                && !{ let mut s = Splitter::new(Bounds::REQUEST); s.push(format!("{text} ").as_bytes()); let _ = s.next_value(); s.is_inside() };
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert_eq!(ours, theirs, "{}", text);
        }
    }
}
