//! Scripts of targetcli: its commands, one on a line, with or without the shell around them.
//!
//! The commands build what targetcli would save, and the rest of the import works on that. Nothing is run: a script whose
//! commands depend on the shell is refused.

mod tree;

use super::saveconfig::{self, Saved};
use tree::Tree;

/// Words with which a line of a shell changes the meaning of others.
const SHELL_WORDS: [&str; 13] = [
    "case", "do", "done", "elif", "else", "esac", "eval", "fi", "for", "function", "if", "until",
    "while",
];
/// What to do with a script that cannot be read.
const INSTEAD: &str = "run it where LIO is, have targetcli saveconfig, and import that file";

/// What a script leaves behind.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) saved: Saved,
    /// What was passed over.
    pub(super) remarks: Vec<String>,
}

/// Reads a script.
///
/// # Errors
/// When a command is not understood, or depends on the shell; names the line, and shows nothing of its secrets.
pub(super) fn read(text: &str) -> Result<Script, String> {
    let lines = whole_lines(text);
    let in_shell = lines.iter().any(|(_, line)| after_targetcli(line).is_some());
    let mut tree = Tree::default();
    let mut remarks = Vec::new();
    let mut document: Option<String> = None;
    for (number, line) in &lines {
        let wrong = |error: String| format!("line {number}: {error}");
        if let Some(end) = &document {
            if line.trim() == end {
                document = None;
            } else {
                tree.carry_out(&words(line).map_err(wrong)?).map_err(wrong)?;
            }
            continue;
        }
        if !in_shell {
            tree.carry_out(&words(line).map_err(wrong)?).map_err(wrong)?;
            continue;
        }
        let Some(command) = after_targetcli(line) else {
            remarks.extend(passed_over(*number, line)?);
            continue;
        };
        match here_document(command) {
            Some(end) => document = Some(end),
            None => tree.carry_out(&words(command).map_err(wrong)?).map_err(wrong)?,
        }
    }
    if let Some(end) = document {
        return Err(format!("the file ends before the line `{end}`"));
    }
    let (saved, of_tree) = tree.into_saved();
    remarks.extend(of_tree);
    Ok(Script { saved: saveconfig::from_value(saved)?, remarks })
}

/// The lines with their numbers, without comments and empty ones; a backslash at the end continues a line.
fn whole_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (index, line) in text.lines().enumerate() {
        let (rest, goes_on) = match line.strip_suffix('\\') {
            Some(rest) => (rest, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| continues) {
            Some((_, before)) => before.push_str(rest),
            None => lines.push((index + 1, rest.to_owned())),
        }
        continues = goes_on;
    }
    lines.retain(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    lines
}

/// What a line of the shell has targetcli do.
fn after_targetcli(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("sudo ").unwrap_or(line).trim_start();
    let (program, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    (name == "targetcli").then(|| rest.trim())
}

/// A line that is no command of targetcli: what to say of it.
fn passed_over(number: usize, line: &str) -> Result<Option<String>, String> {
    let word = line.split_whitespace().next().unwrap_or_default();
    let word = word.trim_end_matches(';');
    if SHELL_WORDS.contains(&word) || line.contains("targetcli") {
        return Err(format!("line {number}: what `{word}` does is up to the shell; {INSTEAD}"));
    }
    let is_quiet = matches!(word, "set" | "echo" | "sleep" | "exit");
    Ok((!is_quiet).then(|| format!("line {number} is no command of targetcli: {word} ...")))
}

/// The line that ends the commands for `targetcli <<END`.
fn here_document(command: &str) -> Option<String> {
    let end = command.strip_prefix("<<")?.trim_start_matches('-').trim();
    Some(end.trim_matches(['\'', '"']).to_owned())
}

/// Whether a shell would put something else in place of a part of this line.
fn is_expanded(line: &str) -> bool {
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.chars().any(|c| {
        let was_escaped = is_escaped;
        is_escaped = c == '\\' && !was_escaped && !is_quoted;
        is_quoted ^= c == '\'' && !was_escaped;
        matches!(c, '$' | '`') && !is_quoted && !was_escaped
    })
}

/// The words of a command.
fn words(line: &str) -> Result<Vec<String>, String> {
    let line = line.trim();
    if is_expanded(line) {
        return Err(format!("a value is up to the shell; {INSTEAD}"));
    }
    let mut words = shlex::split(line).ok_or("a quotation mark is not closed")?;
    let is_redirection = |word: &String| [">", "2>", "&>"].iter().any(|it| word.starts_with(it));
    if let Some(end) = words.iter().position(is_redirection) {
        words.truncate(end);
    }
    let joins = |word: &String| matches!(word.as_str(), "&&" | "||" | "|") || word.ends_with(';');
    if words.iter().any(joins) {
        return Err("there are several commands on this line: give each its own".into());
    }
    Ok(words)
}

#[cfg(test)]
mod tests;
