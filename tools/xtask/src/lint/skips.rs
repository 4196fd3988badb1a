//! Tests that lack a program or a right pass, and have to say so by one spelling, which the step `unit` prints.

/// How such a line begins.
pub(crate) const SKIPPED: &str = "SKIPPED: ";
/// How a remark begins that is no skipped test.
const REMARK: &str = "# ";
/// Words of those who skip.
const WORDS: [&str; 7] = [
    "not installed",
    "there is no {",
    "nothing to test",
    "nothing was tested",
    "not permitted",
    "not started",
    "not compared",
];
/// How a line ends a test after it has said why.
const ENDS: [&str; 4] = ["return;", "return None;", "None", "return false;"];

/// The lines, from 1, that seem to say that a test is skipped, and are not spelled so that `unit` finds them.
pub(super) fn silent(name: &str, text: &str) -> Vec<usize> {
    let is_test_file = name.contains("/tests/") || name.ends_with("tests.rs");
    let lines: Vec<&str> = text.lines().collect();
    let mut is_test = is_test_file;
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        is_test |= line.trim() == "#[cfg(test)]";
        let Some((before, rest)) = line.split_once("println!(") else { continue };
        // A long text stands on the next line.
        let literal = if rest.is_empty() { lines.get(at + 1).copied().unwrap_or("") } else { rest };
        let Some(literal) = literal.trim_start().strip_prefix('"') else { continue };
        if literal.starts_with(SKIPPED) || literal.starts_with(REMARK) {
            continue;
        }
        let ends_here = before.trim_end_matches('e').ends_with("return ")
            || ["inspect_err(|", "map_err(|"].iter().any(|call| before.contains(call));
        let after = lines[at + 1..]
            .iter()
            .skip_while(|line| !lines[at].ends_with(';') && !line.ends_with(");"));
        let mut after = after.skip(usize::from(!line.ends_with(';')));
        let ends_next = after.next().is_some_and(|next| ENDS.contains(&next.trim()));
        let says_so = WORDS.iter().any(|word| literal.contains(word));
        let is_other_spelling = literal.to_ascii_lowercase().starts_with("skip");
        if is_test && (is_other_spelling || ends_here || ends_next || says_so) {
            found.push(at + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text with each print spelled in two parts, so that this file passes.
    fn at(name: &str, text: &str) -> Vec<usize> {
        silent(name, &text.replace("SAY(", "println!("))
    }

    #[test]
    fn a_test_that_is_skipped_says_so_by_one_spelling() {
        let test = "crates/x/tests/a.rs";
        for wrong in [
            "return eSAY(\"no loop device\");",
            "SAY(\"skipped: no root\");",
            "eSAY(\"{name} is not installed\");",
            "eSAY(\"no fio 3 here\");\n    return;",
            "eSAY(\n    \"a long reason\"\n);\nreturn None;",
            "let ring = ring.inspect_err(|error| eSAY(\"no keyrings ({error})\")).ok()?;",
        ] {
            assert_eq!(at(test, wrong), [1], "{wrong}");
            // What a program prints is its own.
            assert_eq!(at("crates/x/src/a.rs", wrong), [0; 0], "{wrong}");
            assert_eq!(at("crates/x/src/a.rs", &format!("#[cfg(test)]\n{wrong}")), [2], "{wrong}");
        }
        for right in [
            "return eSAY(\"SKIPPED: no loop device\");",
            "eSAY(\"SKIPPED: {name} is not installed\");\nreturn;",
            "eSAY(\"# {} stays mounted\");\nreturn;",
            "SAY(\"seed {seed}\");",
            "SAY(\n    \"{count} reads\",\n);\nlet next = 1;",
        ] {
            assert_eq!(at(test, right), [0; 0], "{right}");
        }
    }
}
