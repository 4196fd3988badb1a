//! Records from a folder. What is no record is named, with the reason.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use super::ReportError;
use super::tables::MARK;
use crate::experiment::Experiment;
use crate::record::{Record, SCHEMA};

/// Bytes of a record, at most.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Files of a folder that are looked at.
pub const RECORDS_MAX: usize = 1000;

/// What a folder has.
pub(super) struct Loaded {
    /// Records of known experiments, each with its file's name.
    pub(super) records: Vec<(String, Record)>,
    /// What could not be used, and why.
    pub(super) problems: Vec<String>,
}

/// The records of a folder; the folders in it are not looked at.
pub(super) fn folder(folder: &Path, experiments: &[Experiment]) -> Result<Loaded, ReportError> {
    let fail = |error| ReportError::Folder { path: folder.to_owned(), error };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|end| end == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut loaded = Loaded { records: Vec::new(), problems: Vec::new() };
    if paths.len() > RECORDS_MAX {
        let left = paths.len() - RECORDS_MAX;
        loaded.problems.push(format!(
            "{left} files were not looked at: a report takes at most {RECORDS_MAX} files *.json"
        ));
        paths.truncate(RECORDS_MAX);
    }
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match record(&path) {
            Ok(Some(record)) if experiments.iter().any(|one| one.id == record.experiment) => {
                loaded.records.push((name, record));
            }
            Ok(Some(record)) => loaded.problems.push(format!(
                "{name}: its experiment {:?} is not one that this program knows",
                record.experiment
            )),
            Ok(None) => {}
            Err(why) => loaded.problems.push(format!("{name}: {why}")),
        }
    }
    Ok(loaded)
}

/// A record; `None` if the file is a report of this program.
fn record(path: &Path) -> Result<Option<Record>, String> {
    let file = fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut text = String::new();
    let read = file.take(RECORD_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > RECORD_BYTES_MAX {
        return Err(format!("larger than {} MiB, which no record is", RECORD_BYTES_MAX >> 20));
    }
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("broken JSON: {error}"))?;
    if value.get(MARK).is_some() {
        return Ok(None);
    }
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(found) if found == u64::from(SCHEMA) => {}
        Some(found) => {
            return Err(format!(
                "has layout {found}, and this program reads layout {SCHEMA}: measure again, or use the program that wrote it"
            ));
        }
        None => return Err("JSON, but no record: it has no number `schema`".to_owned()),
    }
    // From the text again: errors name line and column.
    serde_json::from_str(&text).map(Some).map_err(|error| format!("no record: {error}"))
}
