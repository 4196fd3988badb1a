//! The catalogue: all experiments of the program, and those of users' own files, checked when loaded.

mod check;
mod files;

use std::fmt;
use std::path::Path;

use crate::experiment::Experiment;

/// Names that are suggested for an unknown one have at least this likeness.
const NEAR: f64 = 0.6;
/// Most names that are suggested.
const SUGGESTIONS_MAX: usize = 3;
/// A file of a user may have at most this size.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// All experiments that can be run, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalogue {
    experiments: Vec<Experiment>,
}

/// Why a file is not an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file.
    pub file: String,
    /// The line, from 1; `None` if the fault has no single place.
    pub line: Option<usize>,
    /// The key at fault, if there is one.
    pub key: String,
    /// What is wrong, and what would be right.
    pub why: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ", `{}`", self.key)?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for LoadError {}

/// There is no experiment of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no experiment `{id}`{}", suggestion(.near))]
pub struct UnknownId {
    /// The name.
    pub id: String,
    /// Experiments whose names are like it.
    pub near: Vec<String>,
}

fn suggestion(near: &[String]) -> String {
    match near {
        [] => ": `raceline bench list` shows all".to_owned(),
        near => format!(": is it {}?", near.join(" or ")),
    }
}

impl Catalogue {
    /// The experiments that are part of the program.
    ///
    /// # Errors
    /// When one of them is wrong: a fault of the program.
    pub fn builtin() -> Result<Self, LoadError> {
        let mut catalogue = Self { experiments: Vec::new() };
        for (name, text) in files::ALL {
            catalogue.add(name, text)?;
        }
        Ok(catalogue)
    }

    /// Adds the experiment of a file.
    ///
    /// # Errors
    /// When the file cannot be read, or is no experiment, or its name is in use.
    pub fn add_file(&mut self, path: &Path) -> Result<&Experiment, LoadError> {
        let file = path.display().to_string();
        let fail =
            |why: String| LoadError { file: file.clone(), line: None, key: String::new(), why };
        let size = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
        if size > FILE_BYTES_MAX {
            return Err(fail(format!("has {size} bytes; an experiment has at most 1 MiB")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        self.add(&file, &text)
    }

    /// Adds an experiment from its text.
    ///
    /// # Errors
    /// When the text is no experiment, or its name is in use.
    pub fn add(&mut self, file: &str, text: &str) -> Result<&Experiment, LoadError> {
        let experiment = check::parse(file, text)?;
        for id in experiment.names() {
            if self.find(id).is_ok() {
                let why = format!("another experiment has the name {id}: choose another one");
                return Err(check::error_at(file, text, "id", why));
            }
        }
        self.experiments.push(experiment);
        Ok(&self.experiments[self.experiments.len() - 1])
    }

    /// All experiments.
    #[must_use]
    pub fn all(&self) -> &[Experiment] {
        &self.experiments
    }

    /// The experiment of this name, in any case of letters.
    ///
    /// # Errors
    /// When there is none: the error names those that are like it.
    pub fn find(&self, id: &str) -> Result<&Experiment, UnknownId> {
        let wanted = id.to_ascii_uppercase();
        let is_it = |experiment: &&Experiment| {
            experiment.names().any(|name| name.to_ascii_uppercase() == wanted)
        };
        self.experiments.iter().find(is_it).ok_or_else(|| self.unknown(id, &wanted))
    }

    fn unknown(&self, id: &str, wanted: &str) -> UnknownId {
        let names = self.experiments.iter().flat_map(Experiment::names);
        let mut near: Vec<(f64, &str)> = names
            .map(|name| (strsim::jaro_winkler(&name.to_ascii_uppercase(), wanted), name))
            .filter(|(likeness, _)| *likeness >= NEAR)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0));
        near.truncate(SUGGESTIONS_MAX);
        let near = near.into_iter().map(|(_, name)| name.to_owned()).collect();
        UnknownId { id: id.to_owned(), near }
    }
}

#[cfg(test)]
mod tests;
