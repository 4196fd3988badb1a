//! The lines of a job file: sections, settings, comments, variables.

use super::Problem;

/// A section whose name begins with this has settings that all later jobs share.
const GLOBAL: &str = "global";

/// Words that fio replaces by a number of its machine.
const KEYWORDS: [&str; 3] = ["$ncpus", "$pagesize", "$mb_memory"];

/// A job with all its settings.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) line: usize,
    /// The settings of each `[global]` before the job, then its own.
    pub(super) blocks: Vec<Block>,
}

/// The settings below one header, which fio reads together.
pub(super) type Block = Vec<Setting>;

/// One `key=value` or `key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) value: Option<String>,
}

/// The jobs of a file, in order.
pub(super) fn sections(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Section>, Problem> {
    let mut globals: Vec<Block> = Vec::new();
    let mut jobs: Vec<Section> = Vec::new();
    // Where settings belong: to a job, or to all later jobs.
    let mut current: Option<bool> = None;
    // Some editors write a byte order mark before the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in (1..).zip(text.lines()) {
        let at = |message: String| (number, message);
        let line = without_comment(line);
        if line.is_empty() {
            continue;
        }
        if line.starts_with('[') {
            let name = header(line).map_err(at)?;
            let global = name.starts_with(GLOBAL);
            current = Some(global);
            if global {
                globals.push(Block::new());
            } else {
                let mut blocks = globals.clone();
                blocks.push(Block::new());
                jobs.push(Section { name: name.to_owned(), line: number, blocks });
            }
            continue;
        }
        let setting = setting(number, line, environment).map_err(at)?;
        let block = match current {
            Some(true) => globals.last_mut(),
            Some(false) => jobs.last_mut().and_then(|job| job.blocks.last_mut()),
            None => None,
        };
        let block = block.ok_or_else(|| {
            at(format!("`{line}` stands before any section: put [global] before it"))
        })?;
        block.push(setting);
    }
    Ok(jobs)
}

/// The name in a section's header.
fn header(line: &str) -> Result<&str, String> {
    let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let name = name.filter(|name| !name.is_empty());
    name.ok_or_else(|| format!("`{line}` is not a section: write [name]"))
}

/// Reads a line that is not a header.
fn setting(
    number: usize,
    line: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Setting, String> {
    if line.starts_with("include") {
        return Err("include is not supported: put the lines of that file here".to_owned());
    }
    let (key, value) = match line.split_once('=') {
        Some((key, value)) => (key.trim_end(), Some(value.trim_start())),
        None => (line, None),
    };
    let value = value.map(|value| expand(value, environment)).transpose()?;
    if let Some(word) =
        KEYWORDS.iter().find(|&&word| value.as_ref().is_some_and(|value| value.contains(word)))
    {
        return Err(format!("{key}: fio's keyword {word} is not supported: write the number"));
    }
    Ok(Setting { line: number, key: key.to_ascii_lowercase(), value })
}

/// The line up to `;` or `#`, without space around it.
fn without_comment(line: &str) -> &str {
    line.split([';', '#']).next().unwrap_or_default().trim()
}

/// Puts the values of variables in the place of `${NAME}`.
fn expand(value: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) =
            after.split_once('}').ok_or_else(|| format!("`${{{after}` has no closing brace"))?;
        out.push_str(before);
        let found = environment(name);
        out.push_str(&found.ok_or_else(|| format!("the environment has no variable {name}"))?);
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}
