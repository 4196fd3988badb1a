//! Comments of a configuration, replaced by spaces so that every other byte stays where it is.

use std::borrow::Cow;

use thiserror::Error;

/// The mark that some editors put before the text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A comment that begins with `/*` and does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the comment that begins at line {line} column {column} has no end: */ is missing")]
pub struct UnfinishedComment {
    /// Its line, from 1.
    pub line: usize,
    /// Its first byte in that line, from 1.
    pub column: usize,
}

/// The text with spaces in place of comments: `//` to the end of the line, `/*` to `*/`. Line ends and
/// quoted strings stay. A slash that begins no comment stays, and the parser refuses it.
///
/// # Errors
/// When a comment does not end.
pub fn blank_comments(text: &[u8]) -> Result<Cow<'_, [u8]>, UnfinishedComment> {
    if !text.contains(&b'/') && !text.starts_with(BYTE_ORDER_MARK) {
        return Ok(Cow::Borrowed(text));
    }
    let mut blanked = text.to_vec();
    let mut at = 0;
    if text.starts_with(BYTE_ORDER_MARK) {
        at = BYTE_ORDER_MARK.len();
        blanked[..at].fill(b' ');
    }
    while at < text.len() {
        let end = match (text[at], text.get(at + 1)) {
            (b'"', _) => {
                at = end_of_string(text, at);
                continue;
            }
            (b'/', Some(b'/')) => {
                let rest = text[at..].iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                rest.map_or(text.len(), |length| at + length)
            }
            (b'/', Some(b'*')) => {
                let body = at + 2;
                let rest = text[body..].windows(2).position(|pair| pair == b"*/");
                body + 2 + rest.ok_or_else(|| unfinished(text, at))?
            }
            _ => {
                at += 1;
                continue;
            }
        };
        let comment = blanked[at..end].iter_mut();
        comment.filter(|byte| !matches!(**byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
        at = end;
    }
    Ok(Cow::Owned(blanked))
}

/// The byte behind a text that begins with a quote here.
fn end_of_string(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn unfinished(text: &[u8], at: usize) -> UnfinishedComment {
    let before = &text[..at];
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    UnfinishedComment { line, column: at - begin + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blanked(text: &str) -> String {
        String::from_utf8(blank_comments(text.as_bytes()).unwrap().into_owned()).unwrap()
    }

    #[test]
    fn comments_become_spaces_and_texts_stay() {
        for (text, expected) in [
            ("{} // end", "{}       "),
            ("{// a\r\n}", "{    \r\n}"),
            ("[1,/* two\nlines */2]", "[1,      \n        2]"),
            (
                r#"["//no", "/*no*/", "a\"//b", "\\"] //yes"#,
                r#"["//no", "/*no*/", "a\"//b", "\\"]      "#,
            ),
            ("/**/1/***/", "    1     "),
            ("// \u{e4}\n1", "     \n1"),
            ("\u{feff}1", "   1"),
            ("1/2", "1/2"),
            ("1/", "1/"),
            ("\"// a text without end", "\"// a text without end"),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(blanked(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_text_without_comments_is_not_copied() {
        assert!(matches!(blank_comments(b"{\"a\": 1}").unwrap(), Cow::Borrowed(_)));
    }

    #[test]
    fn a_comment_without_end_is_placed() {
        for (text, line, column) in [
            ("/*", 1, 1),
            ("/*/", 1, 1),
            ("1\n  /* * /", 2, 3),
            ("// /*\n/*", 2, 1),
            ("\"/*\" /*", 1, 6),
        ] {
            assert_eq!(
                blank_comments(text.as_bytes()),
                Err(UnfinishedComment { line, column }),
                "{text:?}"
            );
        }
    }
}
