//! The lines of a job file: sections, settings, comments, variables.

use super::Problem;

/// The section whose settings all later jobs share.
const GLOBAL: &str = "global";

/// A job with all its settings, those of `[global]` first.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) settings: Vec<Setting>,
}

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
    let mut global: Vec<Setting> = Vec::new();
    let mut jobs: Vec<Section> = Vec::new();
    // Where settings go: to a job, or to all later jobs.
    let mut current: Option<bool> = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let at = |message: String| (number, message);
        let line = without_comment(line);
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').filter(|name| !name.is_empty());
            let name =
                name.ok_or_else(|| at(format!("`{line}` is not a section: write [name]")))?;
            current = Some(name == GLOBAL);
            if name != GLOBAL {
                let settings = global.clone();
                jobs.push(Section { name: name.to_owned(), line: number, settings });
            }
            continue;
        }
        if line == "include" || line.starts_with("include ") {
            return Err(at("include is not supported: put the lines of that file here".to_owned()));
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key.trim_end(), Some(value.trim_start())),
            None => (line, None),
        };
        let value = value.map(|value| expand(value, environment)).transpose().map_err(at)?;
        let setting = Setting { line: number, key: key.to_ascii_lowercase(), value };
        match (current, jobs.last_mut()) {
            (Some(true), _) => global.push(setting),
            (Some(false), Some(job)) => job.settings.push(setting),
            _ => {
                return Err(at(format!(
                    "`{line}` stands before any section: put [global] before it"
                )));
            }
        }
    }
    Ok(jobs)
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
