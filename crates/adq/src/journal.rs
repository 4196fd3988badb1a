//! The undo journal: what every setting was before, on disk before anything is changed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::machine::Machine;
use crate::setting::Setting;

/// Where journals are, unless someone says otherwise.
pub const DEFAULT_FOLDER: &str = "/var/lib/raceline/adq";
/// The layout of a journal.
const VERSION: u32 = 1;

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Nothing was done.
    Waiting,
    /// It was begun, and may have been done.
    Begun,
    /// It was done and read back.
    Done,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the step in the plan; absent where other steps clear the setting.
    pub step: Option<usize>,
    /// The setting.
    pub setting: Setting,
    /// Its value before the first step.
    pub before: String,
    /// The value that its step wants.
    pub wanted: Option<String>,
    /// The value after the last step.
    pub after: Option<String>,
    /// How far it is.
    pub progress: Progress,
}

/// All settings of one recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    /// Name of the interface when the recipe was applied.
    pub interface: String,
    /// Its number in the network namespace, which a new name does not change.
    pub ifindex: u32,
    /// The network namespace.
    pub network_namespace: String,
    /// The kernel's name of this boot.
    pub boot: String,
    /// Whether all steps were done.
    pub complete: bool,
    /// The settings in the order of the plan.
    pub entries: Vec<Entry>,
}

/// The kernel's name of this boot.
pub fn boot(machine: &dyn Machine) -> String {
    machine.read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default()
}

impl Journal {
    /// A journal without entries.
    pub fn new(machine: &dyn Machine, facts: &Facts) -> Self {
        Self {
            version: VERSION,
            interface: facts.interface.clone(),
            ifindex: facts.ifindex,
            network_namespace: facts.network_namespace.clone(),
            boot: boot(machine),
            complete: false,
            entries: Vec::new(),
        }
    }
}

/// Where the journal of an interface is kept.
pub trait Store {
    /// The journal's path, for messages.
    fn path(&self) -> &Path;
    /// Makes the journal; refuses if there is one.
    fn create(&mut self, journal: &Journal) -> Result<()>;
    /// Replaces it, at once and as a whole.
    fn save(&mut self, journal: &Journal) -> Result<()>;
    /// The journal, if there is one.
    fn load(&self) -> Result<Option<Journal>>;
    /// Removes it.
    fn remove(&mut self) -> Result<()>;
    /// The journals of other interfaces, with their stores.
    fn others(&self) -> Vec<(Journal, Box<dyn Store>)>;
}

/// A journal in a folder.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    path: PathBuf,
}

/// Holds off other programs that apply or revert, as long as it or a program that was started with it lives.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// The same lock for another process: the lock ends when both have ended.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.0.try_clone()
    }
}

/// How often a lock is tried again.
const LOCK_RETRY: Duration = Duration::from_millis(10);

impl Disk {
    /// The journal of this interface in this folder.
    pub fn new(folder: &Path, interface: &str) -> Self {
        Self { folder: folder.to_owned(), path: folder.join(format!("{interface}.json")) }
    }

    /// Makes the folder, and locks it. Waits for this time at most.
    ///
    /// # Errors
    /// When the folder cannot be made, or another program has it.
    pub fn lock(&self, wait: Duration) -> Result<Lock> {
        fs::create_dir_all(&self.folder).map_err(|error| self.broken("its folder", &error))?;
        let folder = File::open(&self.folder).map_err(|error| self.broken("its folder", &error))?;
        let end = Instant::now() + wait;
        while folder.try_lock().is_err() {
            if Instant::now() >= end {
                return Err(Error::Journal {
                    path: self.path.clone(),
                    reason: "another raceline adq is at work: wait until it has ended".to_owned(),
                });
            }
            std::thread::sleep(LOCK_RETRY);
        }
        Ok(Lock(folder))
    }

    fn broken(&self, what: &str, error: &io::Error) -> Error {
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ": make room, or name another place with --state-dir"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ": name a place that can be written with --state-dir"
            }
            _ => "",
        };
        Error::Journal { path: self.path.clone(), reason: format!("{what}: {error}{advice}") }
    }

    /// Writes the whole text beside the journal, and waits until the disk has it.
    fn beside(&self, journal: &Journal) -> io::Result<PathBuf> {
        let beside = self.path.with_extension("new");
        let mut file = File::create(&beside)?;
        let text = serde_json::to_vec_pretty(journal).map_err(io::Error::other)?;
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.map(|()| beside)
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

impl Store for Disk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn create(&mut self, journal: &Journal) -> Result<()> {
        let create = || {
            let beside = self.beside(journal)?;
            // Unlike a new name, a link does not replace what is there.
            let linked = fs::hard_link(&beside, &self.path);
            fs::remove_file(&beside)?;
            linked?;
            self.sync_folder()
        };
        create().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => already(&self.path),
            _ => self.broken("cannot be written, and nothing was changed", &error),
        })
    }

    fn save(&mut self, journal: &Journal) -> Result<()> {
        let save = || {
            fs::rename(self.beside(journal)?, &self.path)?;
            self.sync_folder()
        };
        save().map_err(|error| self.broken("cannot be written", &error))
    }

    fn load(&self) -> Result<Option<Journal>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.broken("cannot be read", &error)),
        };
        let unreadable = |reason: String| Error::Journal { path: self.path.clone(), reason };
        let journal: Journal = serde_json::from_slice(&text).map_err(|error| {
            unreadable(format!(
                "it is not a journal of raceline adq ({error}): look at it, and give the values back by hand"
            ))
        })?;
        if journal.version != VERSION {
            return Err(unreadable(format!(
                "it has version {}, and this program knows version {VERSION}: revert with the program \
                 that applied it",
                journal.version
            )));
        }
        Ok(Some(journal))
    }

    fn remove(&mut self) -> Result<()> {
        let remove = || {
            fs::remove_file(&self.path)?;
            self.sync_folder()
        };
        remove().map_err(|error| self.broken("cannot be removed", &error))
    }

    fn others(&self) -> Vec<(Journal, Box<dyn Store>)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let journals = paths.filter(|path| {
            *path != self.path && path.extension().is_some_and(|extension| extension == "json")
        });
        journals
            .filter_map(|path| {
                let store = Self { folder: self.folder.clone(), path };
                let journal = store.load().ok()??;
                let store: Box<dyn Store> = Box::new(store);
                Some((journal, store))
            })
            .collect()
    }
}

/// The refusal of a second recipe.
pub fn already(path: &Path) -> Error {
    Error::Refused(format!(
        "a recipe is applied already, or was broken off ({} is there): `raceline adq revert` first",
        path.display()
    ))
}
