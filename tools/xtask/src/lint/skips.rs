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
/// How a line asks whether this machine, this user or this kernel lets a test do its work.
const ASKS: [&str; 8] = [
    "cpus.len() < 2",
    "available_parallelism()",
    "allowed_cores()",
    "is_root()",
    "ErrorKind::PermissionDenied",
    "ErrorKind::Unsupported",
    "EOPNOTSUPP",
    "a kernel before",
];
/// How many lines after such a question a test may end because of the answer.
const NEAR: usize = 3;
/// How a line ends a test after it has said why.
const ENDS: [&str; 4] = ["return;", "return None;", "None", "return false;"];

/// The lines, from 1, that seem to say that a test is skipped, and are not spelled so that `unit` finds them, and those
/// where a test asks what this machine lets it do, and then ends without a word.
pub(super) fn silent(name: &str, text: &str) -> Vec<usize> {
    let is_test_file = name.contains("/tests/") || name.ends_with("tests.rs");
    let lines: Vec<&str> = text.lines().collect();
    let mut found = spelled_otherwise(is_test_file, &lines);
    found.extend(without_a_word(is_test_file, &lines));
    found.sort_unstable();
    found
}

/// Where a test asks, and ends soon after that or goes on with the next of several, and no line between says why.
fn without_a_word(is_test_file: bool, lines: &[&str]) -> Vec<usize> {
    let first = match is_test_file {
        true => 0,
        false => {
            let begin = lines.iter().position(|line| line.trim() == "#[cfg(test)]");
            begin.unwrap_or(lines.len())
        }
    };
    let ends = |line: &&str| {
        let line = line.trim();
        ENDS.contains(&line)
            || line.starts_with("continue;")
            || line.starts_with("return; //")
            || ["=> return,", "=> continue,", "else { return };", "else { continue };"]
                .iter()
                .any(|end| line.ends_with(end))
    };
    let asks = |at: &usize| {
        let line = lines[*at].trim_start();
        ASKS.iter().any(|ask| line.contains(ask)) && !line.starts_with("//")
    };
    let is_silent = |at: &usize| {
        let near = &lines[*at..lines.len().min(at + 1 + NEAR)];
        let said = near.iter().position(|line| line.contains(SKIPPED));
        let end = near.iter().position(ends);
        end.is_some_and(|end| said.is_none_or(|said| said > end))
    };
    (first..lines.len()).filter(asks).filter(is_silent).map(|at| at + 1).collect()
}

fn spelled_otherwise(is_test_file: bool, lines: &[&str]) -> Vec<usize> {
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
            "if options.cpus.len() < 2 {\n    return;\n}",
            "Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,",
            "if !geteuid().is_root() {\n    // Nobody else can.\n    return None;\n}",
            "let [one, two] = allowed_cores().unwrap()[..] else { return };",
            "if errno == libc::EOPNOTSUPP {\n    continue; // a file system without holes\n}",
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
            "if options.cpus.len() < 2 {\n    return eSAY(\"SKIPPED: it takes two\");\n}",
            "if !getuid().is_root() {\n    eSAY(\"SKIPPED: not root\");\n    return None;\n}",
            "let cores = allowed_cores().unwrap();\nlet core = cores[0];\nuse_it(core);",
            "// EOPNOTSUPP is what others say.\nreturn;",
        ] {
            assert_eq!(at(test, right), [0; 0], "{right}");
        }
    }
}
