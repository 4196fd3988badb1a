//! What metrics are made of: kinds, labels and values.

use std::borrow::Cow;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Labels as they stand between braces: ready for use with many metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels(String);

impl Labels {
    pub(crate) fn new(labels: &[(&str, &str)]) -> Self {
        Self::default().and(labels)
    }

    /// These labels and more.
    pub(crate) fn and(&self, labels: &[(&str, &str)]) -> Self {
        let mut text = self.0.clone();
        for (name, value) in labels {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(name);
            text.push_str("=\"");
            // Hosts choose their names.
            for letter in value.chars() {
                match letter {
                    '\\' => text.push_str("\\\\"),
                    '"' => text.push_str("\\\""),
                    '\n' => text.push_str("\\n"),
                    _ => text.push(letter),
                }
            }
            text.push('"');
        }
        Self(text)
    }

    /// As they stand between braces.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The names and values.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let mut rest = self.0.as_str();
        std::iter::from_fn(move || {
            let (name, after) = rest.split_once("=\"")?;
            let mut is_escaped = false;
            let end = after.find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            })?;
            let (value, after) = after.split_at(end);
            rest = after.strip_prefix("\",").unwrap_or_default();
            Some((name, unescaped(value)))
        })
    }
}

/// The value of a label as it was before [`Labels::and`].
fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.as_str().starts_with('n') => {
                letters.next();
                text.push('\n');
            }
            '\\' => text.extend(letters.next()),
            _ => text.push(letter),
        }
    }
    Cow::Owned(text)
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Count(u64),
    /// Nanoseconds, which are shown as seconds.
    Nanoseconds(u64),
    Real(f64),
}

impl Value {
    /// The binary form has these alone.
    pub(crate) fn real(self) -> f64 {
        match self {
            Self::Count(count) => count as f64,
            Self::Nanoseconds(ns) => ns as f64 / 1e9,
            Self::Real(real) => real,
        }
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Count(u64::from(is))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_again() {
        let labels = Labels::new(&[("a", "plain"), ("b", "q\"\\\n,c=\"d\\n"), ("c", "")]);
        let pairs: Vec<_> =
            labels.pairs().map(|(name, value)| (name, value.into_owned())).collect();
        let expected = [("a", "plain"), ("b", "q\"\\\n,c=\"d\\n"), ("c", "")];
        assert_eq!(pairs, expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(Labels::default().pairs().count(), 0);
    }
}
