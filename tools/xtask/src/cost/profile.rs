//! Reads callgrind's output: instructions by function, and by source file.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

/// Words of a path at which the part that is shown begins.
const PATH_STARTS: [&str; 3] = ["crates", "tools", "library"];

/// Beginnings of the C library's names of functions that copy, fill and compare memory.
const MEMORY_FUNCTIONS: [&str; 3] = ["mem", "__mem", "bcmp"];

/// Instructions per I/O of one run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Profile {
    pub(super) total: f64,
    /// Of each function, without the functions that it calls. Inlined functions count for their callers;
    /// memory functions are listed separately for each caller.
    pub(super) functions: BTreeMap<String, f64>,
    /// Of the lines of each source file, wherever they were inlined.
    files: BTreeMap<String, f64>,
}

/// Names that callgrind writes out only once: `(12) name`, later `(12)`.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn resolve(&mut self, text: &str) -> Result<String> {
        let Some((id, name)) = text.split_once(')') else { return Ok(text.to_owned()) };
        if !name.is_empty() {
            self.0.insert(id.to_owned(), name.trim_start().to_owned());
        }
        self.0.get(id).cloned().with_context(|| format!("a name that was not introduced: {text}"))
    }
}

impl Profile {
    /// Reads a file in callgrind's format, of a run of `ios` I/Os.
    pub(super) fn parse(text: &str, ios: u32) -> Result<Self> {
        let (mut functions, mut files) = (Names::default(), Names::default());
        let mut profile = Self::default();
        let (mut function, mut file, mut callee) = (String::new(), String::new(), String::new());
        let mut is_call = false;
        for line in text.lines() {
            if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                let cost = line.split(' ').nth(1).unwrap_or("0");
                let cost: f64 = cost.parse().with_context(|| format!("not a cost line: {line}"))?;
                let cost = cost / f64::from(ios);
                // The line after `calls=` is the callee's cost, which also appears in the callee's own lines.
                if std::mem::take(&mut is_call) {
                    if is_memory(&callee) && !is_memory(&function) {
                        let name = format!("{} in {function}", bare(&callee));
                        *profile.functions.entry(name).or_default() += cost;
                    }
                    continue;
                }
                profile.total += cost;
                if !is_memory(&function) {
                    *profile.functions.entry(function.clone()).or_default() += cost;
                }
                *profile.files.entry(file.clone()).or_default() += cost;
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            match key {
                "fn" => function = short_function(&functions.resolve(value)?),
                "cfn" => callee = short_function(&functions.resolve(value)?),
                "fl" | "fi" | "fe" => file = short_file(&files.resolve(value)?),
                "cfi" | "cfl" => drop(files.resolve(value)?),
                "calls" => is_call = true,
                _ => {}
            }
        }
        ensure!(profile.total > 0.0, "nothing was counted: the counted function was not found");
        Ok(profile)
    }

    /// The functions and the files that cost most.
    pub(super) fn describe(&self, count: usize) -> String {
        let mut text = String::new();
        for (title, costs) in [("function", &self.functions), ("source file", &self.files)] {
            let mut costs: Vec<_> = costs.iter().collect();
            costs.sort_by(|a, b| b.1.total_cmp(a.1));
            for (name, cost) in costs.into_iter().take(count) {
                let share = cost / self.total * 100.0;
                // Writing to a string cannot fail.
                let _ = writeln!(text, "    {cost:>9.1} {share:>5.1} %  {title} {name}");
            }
        }
        text
    }
}

fn is_memory(function: &str) -> bool {
    MEMORY_FUNCTIONS.iter().any(|start| function.starts_with(start))
}

/// A symbol of the C library without its version.
fn bare(function: &str) -> &str {
    function.split('@').next().unwrap_or(function)
}

/// A function's name without the compiler's hash.
fn short_function(name: &str) -> String {
    let end = name.rfind("::h").filter(|&at| {
        let hash = &name[at + 3..];
        hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    name[..end.unwrap_or(name.len())].to_owned()
}

/// A path from the folder on that is the same on every machine.
fn short_file(path: &str) -> String {
    let words: Vec<&str> = path.split('/').collect();
    let start = words.iter().rposition(|word| PATH_STARTS.contains(word));
    words[start.unwrap_or(words.len().saturating_sub(2))..].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
version: 1
positions: line
events: Ir
fl=(1) /home/me/raceline/crates/proto/src/tcp/receive.rs
fn=(1) proto::receive::h0123456789abcdef
10 100
+2 50
fi=(2) /rustc/1234/library/core/src/result.rs
7 30
fe=(1)
cfi=(3) ./string/memmove.S
cfn=(2) memcpy@GLIBC_2.2.5
calls=3 0
* 500
fl=(3)
fn=(2)
1 500
totals: 680
";

    #[test]
    fn costs_are_attributed_once() {
        let profile = Profile::parse(SAMPLE, 10).unwrap();
        assert!((profile.total - 68.0).abs() < 1e-9);
        let functions = [("memcpy in proto::receive", 50.0), ("proto::receive", 18.0)];
        assert_eq!(profile.functions, functions.map(|(n, c)| (n.to_owned(), c)).into());
        let files = [
            ("crates/proto/src/tcp/receive.rs", 15.0),
            ("library/core/src/result.rs", 3.0),
            ("string/memmove.S", 50.0),
        ];
        assert_eq!(profile.files, files.map(|(n, c)| (n.to_owned(), c)).into());
        assert!(
            profile
                .describe(1)
                .starts_with("         50.0  73.5 %  function memcpy in proto::receive\n")
        );
    }

    #[test]
    fn nothing_counted_is_an_error() {
        assert!(Profile::parse("events: Ir\ntotals: 0\n", 1).is_err());
        assert!(Profile::parse("fn=(7)\n1 1\n", 1).is_err());
    }
}
