//! Records on disk: one file for each experiment, replaced as a whole, so that it is never half written.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Options;
use crate::environment;
use crate::experiment::Experiment;
use crate::record::{Record, SCHEMA};

/// Why a record cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be written.
    #[error("cannot write {}: {error}{}", path.display(), advice(error))]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// It cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// It is no record.
    #[error("{} is no record of an experiment: {why}", path.display())]
    NotARecord {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// It has another layout.
    #[error(
        "{} has layout {found}, and this program reads layout {SCHEMA}: measure again, or use the program that wrote it",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u64,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, and run the same command again: it goes on from here"
        }
        _ => "; name another folder with --out",
    }
}

/// The file of an experiment's record.
#[must_use]
pub fn record_path(folder: &Path, experiment: &str) -> PathBuf {
    folder.join(format!("{experiment}.json"))
}

/// The record in a file.
///
/// # Errors
/// When the file cannot be read or is no record.
pub fn load_record(path: &Path) -> Result<Record, StoreError> {
    let read = |error| StoreError::Read { path: path.to_owned(), error };
    let text = fs::read_to_string(path).map_err(read)?;
    let wrong = |error: serde_json::Error| StoreError::NotARecord {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(wrong)?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(found) if found == u64::from(SCHEMA) => {}
        Some(found) => return Err(StoreError::Schema { path: path.to_owned(), found }),
        None => {
            let why = "it has no number of its layout (schema)".to_owned();
            return Err(StoreError::NotARecord { path: path.to_owned(), why });
        }
    }
    serde_json::from_value(value).map_err(wrong)
}

/// All records of a folder, by the name of the experiment.
///
/// # Errors
/// When the folder or a record cannot be read, or there is none.
pub fn load_folder(folder: &Path) -> Result<Vec<Record>, StoreError> {
    let read = |error| StoreError::Read { path: folder.to_owned(), error };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let records: Vec<Record> = paths
        .iter()
        .map(|path| load_record(path))
        // A folder may hold other files of JSON, such as those of a report.
        .filter(|record| !matches!(record, Err(StoreError::NotARecord { .. })))
        .collect::<Result<_, _>>()?;
    if records.is_empty() {
        let why = "there is no record in it: run `raceline bench run` first";
        return Err(read(io::Error::new(io::ErrorKind::NotFound, why)));
    }
    Ok(records)
}

/// Replaces the record in a folder; the folder is made if it is missing.
pub(super) fn save(folder: &Path, record: &Record) -> Result<(), StoreError> {
    let path = record_path(folder, &record.experiment);
    let fail = |error| StoreError::Write { path: path.clone(), error };
    fs::create_dir_all(folder).map_err(fail)?;
    let text = serde_json::to_vec(record).map_err(|error| fail(error.into()))?;
    let beside = path.with_extension("json.part");
    let write = || {
        let mut file = fs::File::create(&beside)?;
        file.write_all(&text)?;
        file.sync_data()?;
        fs::rename(&beside, &path)
    };
    write().map_err(|error| {
        // The old record stays; what could not be written is of no use.
        let _ = fs::remove_file(&beside);
        fail(error)
    })
}

/// A record without points.
pub(super) fn fresh(experiment: &Experiment, options: &Options<'_>) -> Record {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timing = options.timing;
    let mut settings = std::collections::BTreeMap::new();
    for (key, value) in &experiment.procedure.settings {
        settings.insert(key.clone(), text_of(value));
    }
    settings.insert("definition".to_owned(), digest_of(experiment));
    settings.insert("procedure".to_owned(), experiment.procedure.name.clone());
    settings.insert("blocks".to_owned(), timing.blocks.to_string());
    settings.insert("ramp_s".to_owned(), timing.ramp.as_secs_f64().to_string());
    settings.insert("runtime_s".to_owned(), timing.time.as_secs_f64().to_string());
    settings.insert("cpus".to_owned(), format!("{:?}", options.cpus));
    Record {
        schema: SCHEMA,
        experiment: experiment.id.clone(),
        version: options.version.clone(),
        started_unix_s: now.as_secs(),
        took_s: 0.0,
        seed: options.seed,
        effort: options.effort,
        bed: options.bed.describe(),
        stand_ins: options.bed.stand_ins(),
        settings,
        environment: options.environment.clone(),
        points: Vec::new(),
        missing: Vec::new(),
        discarded_blocks: 0,
        complete: false,
    }
}

/// A setting as text.
pub(super) fn text_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(yes) => yes.to_string(),
        other => format!("{other:?}"),
    }
}

/// Stands for the experiment as its file describes it: a run with another description does not go on.
fn digest_of(experiment: &Experiment) -> String {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(experiment).unwrap_or_default().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The record in the folder if it broke off and has the settings and the environment of `fresh`; otherwise `fresh`.
pub(super) fn resume(folder: &Path, fresh: Record) -> Result<Record, StoreError> {
    let path = record_path(folder, &fresh.experiment);
    if !path.exists() {
        return Ok(fresh);
    }
    let old = load_record(&path)?;
    let mine = fresh.settings.iter().all(|(key, value)| old.settings.get(key) == Some(value));
    // The description of a bed has numbers that the kernel gives anew each time.
    let same = mine
        && (old.version.as_str(), old.seed, old.effort, &old.bed.kind)
            == (fresh.version.as_str(), fresh.seed, fresh.effort, &fresh.bed.kind);
    if old.complete || !same {
        return Ok(fresh);
    }
    // Blocks of two environments are not comparable: such a run begins anew, and says why.
    let changed = environment::differences_of_versions(&old.environment, &fresh.environment);
    if let Some(first) = changed.first() {
        tracing::warn!(
            "{} is measured anew: its environment has changed in {} values, the first is {}",
            fresh.experiment,
            changed.len(),
            first.field
        );
        return Ok(fresh);
    }
    // The conditions are looked at again: what was missing may be there now.
    Ok(Record { missing: Vec::new(), ..old })
}
