//! fio's job files: read, checked, and turned into our jobs.
//!
//! The format is fio's (fio(1), "Job file format"): sections, `[global]` for settings that all later jobs
//! share, comments, `${NAME}` from the environment, sizes with suffixes. A key that is not in [`KEYS`] is
//! an error that names file and line: a job that is not run as written must not appear to be.

mod keys;
mod syntax;
mod units;

use std::collections::BTreeMap;
use std::fmt;

use crate::runner::stage::JobSpec;

use self::keys::Draft;
pub use self::keys::{KEYS, Key, REFUSED};
pub use self::units::percentile_list;

/// Most jobs in a file.
pub const JOBS_MAX: usize = 1024;
/// Longest file.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// A job of a file: one section.
#[derive(Clone, Debug)]
pub struct FioJob {
    /// The section's name, or the value of `name`.
    pub name: String,
    /// The lines of the section and of its keys.
    pub lines: Lines,
    /// Whether it begins only when all jobs before it have ended.
    pub stonewall: bool,
    /// Whether it begins a group of its own for reporting.
    pub new_group: bool,
    /// Whether the jobs of its group are reported together.
    pub group_reporting: bool,
    /// Whether the jobs that run beside it end with it.
    pub exit_all: bool,
    /// The percentiles to report, if the job names any.
    pub percentiles: Option<Vec<f64>>,
    /// Whether each run has another seed.
    pub any_seed: bool,
    /// The names in `filename`, in order.
    pub filenames: Vec<FileName>,
    /// The target that the keys of our fio engine name.
    pub remote: RemoteKeys,
    /// The job itself, without its namespaces.
    pub spec: JobSpec,
    /// Bytes of all its namespaces together, to be divided among them.
    pub size_bytes: Option<u64>,
    /// The settings as they were written.
    pub options: BTreeMap<String, String>,
}

/// The lines of a job, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The line of its header.
    section: usize,
    /// The lines of its keys, and of keys in `[global]`: of each key the last.
    keys: BTreeMap<&'static str, usize>,
}

impl Lines {
    /// The last line that sets one of these keys; the line of the header if none does.
    #[must_use]
    pub fn of(&self, keys: &[&str]) -> usize {
        let lines = keys.iter().filter_map(|key| self.keys.get(key));
        lines.max().copied().unwrap_or(self.section)
    }
}

/// One of the names in `filename`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// Its line.
    pub line: usize,
    /// The name.
    pub name: String,
}

/// Keys of our fio engine that say where a namespace is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteKeys {
    /// `traddr`.
    pub address: Option<String>,
    /// `trsvcid`.
    pub port: Option<u16>,
    /// `nqn`.
    pub nqn: Option<String>,
    /// `nsid`.
    pub nsid: Option<u32>,
    /// `hostnqn`.
    pub hostnqn: Option<String>,
    /// `hdr_digest`.
    pub header_digest: Option<bool>,
    /// `data_digest`.
    pub data_digest: Option<bool>,
}

impl RemoteKeys {
    /// Their names.
    pub const KEYS: &[&str] =
        &["traddr", "trsvcid", "nqn", "nsid", "hostnqn", "hdr_digest", "data_digest"];
}

/// An error in a job file, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioError {
    /// The file.
    pub file: String,
    /// The line, from 1; 0: no line in particular.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for FioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for FioError {}

/// Reads a job file. `environment` gives the values of variables.
///
/// # Errors
/// The first line that is not understood.
pub fn parse(
    file: &str,
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<FioJob>, FioError> {
    let error = |(line, message)| FioError { file: file.to_owned(), line, message };
    if text.len() > FILE_BYTES_MAX {
        return Err(error((0, format!("a job file has at most {FILE_BYTES_MAX} bytes"))));
    }
    let sections = syntax::sections(text, environment).map_err(error)?;
    if sections.is_empty() {
        let message = "there is no job: a job begins with its name in brackets, [name]".to_owned();
        return Err(error((0, message)));
    }
    if sections.len() > JOBS_MAX {
        return Err(error((0, format!("a job file has at most {JOBS_MAX} jobs"))));
    }
    sections.into_iter().map(|section| job(section).map_err(error)).collect()
}

/// Line and message.
type Problem = (usize, String);

/// A section as a job.
fn job(section: syntax::Section) -> Result<FioJob, Problem> {
    let mut draft = Draft::new(section.line);
    let mut options = BTreeMap::new();
    for block in &section.blocks {
        // As in fio, `kb_base` counts for all sizes below its header, and for later ones.
        let (first, rest): (Vec<_>, Vec<_>) =
            block.iter().partition(|setting| setting.key == "kb_base");
        for setting in first.into_iter().chain(rest) {
            let key = keys::find(&setting.key).ok_or_else(|| unknown(setting))?;
            draft.line = setting.line;
            (key.apply)(&mut draft, setting.value.as_deref())
                .map_err(|message| (setting.line, format!("{}: {message}", setting.key)))?;
            draft.lines.keys.insert(key.name, setting.line);
            keep(&mut options, key.name, setting);
        }
    }
    draft.finish(section.name, options)
}

/// Adds a setting to the reported ones: the last one counts, but values of `filename` add up.
fn keep(options: &mut BTreeMap<String, String>, key: &str, setting: &syntax::Setting) {
    let value = setting.value.clone().unwrap_or_else(|| "1".to_owned());
    match options.get_mut(key).filter(|_| key == "filename") {
        Some(names) => *names = format!("{names}:{value}"),
        None => drop(options.insert(key.to_owned(), value)),
    }
}

/// An unknown key: the error gives a substitute, if fio has the key, or a similar key.
fn unknown(setting: &syntax::Setting) -> Problem {
    let key = &setting.key;
    let refused = REFUSED.iter().find(|(names, _)| names.contains(&key.as_str()));
    let instead = match refused {
        Some((_, instead)) => format!(", but fio does: {instead}"),
        None => suggestion(key),
    };
    (setting.line, format!("`{key}` is not a key that raceline perf knows{instead}"))
}

/// A similar key, if there is one: with one mistake for three letters, two at most.
fn suggestion(key: &str) -> String {
    let mistakes = ((key.len() + 1) / 3).min(2);
    let names =
        KEYS.iter().flat_map(|known| [known.name].into_iter().chain(known.aliases.iter().copied()));
    let names = names.filter(|name| name.len().abs_diff(key.len()) <= mistakes);
    let near = names.map(|name| (strsim::osa_distance(name, key), name));
    let nearest = near.filter(|(distance, _)| *distance <= mistakes).min();
    nearest.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests;
