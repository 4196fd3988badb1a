//! The report: one HTML page about the records of a folder, with its figures and tables beside it.
//!
//! Everything on the page comes from the records and from the files of the experiments. Nothing is fetched and
//! no script runs. Records are data of others: each text is escaped, and what cannot be read is named.

mod figures;
mod judge;
mod load;
mod model;
mod page;
mod section;
mod style;
mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::experiment::Experiment;

pub use judge::Grade;
pub use load::{RECORD_BYTES_MAX, RECORDS_MAX};
pub use model::{Contrast, Entry, Ratio, Report, Value};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder cannot be read.
    #[error("cannot read the folder {}: {error}{}", path.display(), advice(error))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The folder has no record.
    #[error("{} has no records of experiments{}: run `raceline bench run ID` first, or name another folder", path.display(), first(problems))]
    NoRecords {
        /// The folder.
        path: PathBuf,
        /// Files that are no records, with reasons.
        problems: Vec<String>,
    },
    /// A file of the report cannot be written.
    #[error("cannot write {}: {error}; name another place with --out", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The page would replace a record or another file that is no report.
    #[error("{} is not a name for the page: it must end in .html", path.display())]
    Name {
        /// The file.
        path: PathBuf,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            ": `raceline bench run ID` makes it, or name the folder that has the records"
        }
        io::ErrorKind::NotADirectory => ": name the folder that has the records",
        _ => "",
    }
}

fn first(problems: &[String]) -> String {
    problems.first().map_or(String::new(), |problem| format!(" ({problem})"))
}

impl Report {
    /// Reads the records of a folder, beside the experiments that can be run.
    ///
    /// Files that cannot be used are named in the report.
    ///
    /// # Errors
    /// When the folder cannot be read, or has no record.
    pub fn of_folder(folder: &Path, experiments: &[Experiment]) -> Result<Self, ReportError> {
        let loaded = load::folder(folder, experiments)?;
        if loaded.records.is_empty() {
            let problems = loaded.problems;
            return Err(ReportError::NoRecords { path: folder.to_owned(), problems });
        }
        Ok(model::report(experiments, loaded))
    }

    /// Writes the page, and beside it the same tables as Markdown, JSON and CSV and each figure as SVG.
    /// Gives the files, of which the page is the first.
    ///
    /// # Errors
    /// When a file cannot be written, or the page's name does not end in `.html`.
    pub fn write(&self, page: &Path) -> Result<Vec<PathBuf>, ReportError> {
        if page.extension().is_none_or(|end| end != "html") {
            return Err(ReportError::Name { path: page.to_owned() });
        }
        let stem = page.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let stem = stem.unwrap_or_default();
        let beside = |name: String| page.with_file_name(name);
        let folder = format!("{stem}-figures");
        let figures = self.entries.iter().map(figures::of).collect::<Vec<_>>();
        let mut files = vec![(page.to_owned(), page::html(self, &figures))];
        files.push((beside(format!("{stem}.md")), tables::markdown(self)));
        files.push((beside(format!("{stem}.json")), tables::json(self)));
        for (name, text) in tables::csv(self) {
            files.push((beside(format!("{stem}-{name}.csv")), text));
        }
        for figure in figures.iter().flatten() {
            let path = beside(folder.clone()).join(format!("{}.svg", figure.file));
            files.push((path, figure.svg()));
        }
        for (path, text) in &files {
            put(path, text).map_err(|error| ReportError::Write { path: path.clone(), error })?;
        }
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }
}

/// Replaces a file as a whole.
fn put(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // What could not be written is of no use; the old file stays.
        let _ = fs::remove_file(&part);
    }
    written
}
