//! Text in pictures: escaping, and room that it needs.

/// The height of a line of text, in parts of its size.
pub(crate) const LINE: f64 = 1.25;

/// Text for XML and HTML, in elements and in attributes.
///
/// Characters that XML does not allow become U+FFFD.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' | '\r' => safe.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The width of a text in the widest of the usual sans-serif fonts, at this size.
#[must_use]
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '\'' | '|' => 0.30,
        ' ' | '.' | ',' | ':' | ';' | '!' | 'I' | '/' | '-' => 0.38,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' => 0.42,
        'm' | 'M' | 'w' | 'W' | '%' | '@' | '\u{2014}' => 1.0,
        '+' | '=' | '<' | '>' | '~' | '#' | '&' | '\u{d7}' | '\u{b1}' | '\u{2192}' => 0.85,
        'A'..='Z' => 0.76,
        c if c.is_ascii() => 0.645,
        c if u32::from(c) < 0x0250 => 0.76,
        _ => 1.05,
    }
}

/// The lines of a text that must not be wider than this; long words are cut.
#[must_use]
pub fn wrapped(text: &str, size: f64, most: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace().flat_map(|word| pieces(word, size, most)) {
        let longer = if line.is_empty() { word.clone() } else { format!("{line} {word}") };
        if width(&longer, size) <= most || line.is_empty() {
            line = longer;
        } else {
            lines.push(std::mem::replace(&mut line, word));
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// The same in at most `count` lines; what is left out shows as an ellipsis.
pub(crate) fn lines(text: &str, size: f64, most: f64, count: usize) -> Vec<String> {
    let mut lines = wrapped(text, size, most);
    if lines.len() > count {
        lines.truncate(count);
        if let Some(last) = lines.last_mut() {
            while !last.is_empty() && width(last, size) + size > most {
                last.pop();
            }
            last.push('\u{2026}');
        }
    }
    lines
}

/// A word in pieces that fit.
fn pieces(word: &str, size: f64, most: f64) -> Vec<String> {
    if width(word, size) <= most {
        return vec![word.to_owned()];
    }
    let mut pieces = vec![String::new()];
    for c in word.chars() {
        if let Some(last) = pieces.last_mut() {
            if last.is_empty() || width(last, size) + advance(c) * size <= most {
                last.push(c);
            } else {
                pieces.push(c.to_string());
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_markup_survives() {
        assert_eq!(
            escaped("<b a=\"x\" c='y'>&\u{0}\u{1b}\n"),
            "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;\u{fffd}\u{fffd} "
        );
    }

    #[test]
    fn lines_fit_and_lose_nothing() {
        let text = "Placement and busy polling, averylongwordwithoutanyplacetobreakitatall";
        let lines = wrapped(text, 12.0, 90.0);
        assert!(lines.iter().all(|line| width(line, 12.0) <= 90.0), "{lines:?}");
        let bare = |text: &str| text.replace(' ', "");
        assert_eq!(bare(&lines.concat()), bare(text));
        let two = super::lines(text, 12.0, 90.0, 2);
        assert!(two.len() == 2 && two[1].ends_with('\u{2026}') && width(&two[1], 12.0) <= 91.0);
        assert!(wrapped(" ", 12.0, 90.0).is_empty());
    }
}
