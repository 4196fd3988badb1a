//! The journal of a manager on a state directory.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::change_log::ChangeLog;
use super::disk::{Disk, RealDisk};
use super::look::Look;
use super::{Call, Configuration, Permit, Recovered, StateError, Store, SubsystemConfig};
use crate::manager::catalogue::{Catalogue, Entry, Key, Record, Section};
use crate::manager::generation;
use crate::manager::journal::{Journal, JournalError};

/// Room reserved before a change, whose records are not known yet: twice the largest request.
const CHANGE_BYTES: usize = 2 << 20;
/// How often a directory is looked at before an error counts, and what lies between.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// The member of the configuration's identity that holds the keys of its calls.
const KEYS: &str = "keys";
/// The member of the configuration's identity that holds the number of the last start.
const RUN: &str = "run";

/// Keeps a manager's changes in a state directory.
pub struct StateJournal {
    store: Store,
    /// Room for the change in progress; there is one at a time.
    permit: Mutex<Option<Permit>>,
    /// The number of this start, or of the last one.
    run: AtomicU64,
}

fn incomplete(dir: &Path, problem: String) -> StateError {
    let remedy = "Use the version of raceline that wrote it, or a newer one.".to_owned();
    StateError::Incomplete { dir: dir.to_owned(), problem, remedy }
}

/// The state that a directory held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// The configuration, for [`Manager::restore`](crate::manager::Manager::restore).
    pub catalogue: Catalogue,
    /// The number of all changes ever made. It also grows over restarts, so that it can serve as a
    /// generation.
    pub sequence: u64,
    /// How often a daemon has started with this state.
    pub run: u64,
}

impl StateJournal {
    /// Opens, or creates, a state directory.
    ///
    /// # Errors
    /// When another daemon uses it, it is damaged, or the system refuses.
    pub fn open(dir: &Path) -> Result<(Self, Kept), StateError> {
        Self::with_disk(Arc::new(RealDisk::open(dir)?))
    }

    /// Opens the state on a disk of any kind.
    ///
    /// # Errors
    /// As [`StateJournal::open`].
    pub fn with_disk(disk: Arc<dyn Disk>) -> Result<(Self, Kept), StateError> {
        let (store, recovered) = Store::with_disk(disk)?;
        let sequence = recovered.sequence;
        let (catalogue, run) =
            catalogue_of(recovered).map_err(|problem| incomplete(store.dir(), problem))?;
        let journal = Self { store, permit: Mutex::default(), run: AtomicU64::new(run) };
        Ok((journal, Kept { catalogue, sequence, run }))
    }

    /// Reads what a directory holds, as [`Self::open`] would, and changes nothing. A daemon may be using the directory.
    ///
    /// # Errors
    /// Those of [`Self::open`], but for the lock.
    pub fn look(dir: &Path) -> Result<Kept, StateError> {
        let mut attempts = LOOKS;
        loop {
            attempts -= 1;
            let looked = Look::at(dir).and_then(|disk| ChangeLog::open(Arc::new(disk)));
            let kept = looked.and_then(|(_, recovered)| {
                let sequence = recovered.sequence;
                let (catalogue, run) =
                    catalogue_of(recovered).map_err(|problem| incomplete(dir, problem))?;
                Ok(Kept { catalogue, sequence, run })
            });
            if kept.is_ok() || attempts == 0 {
                return kept;
            }
            // A daemon that writes a checkpoint removes files while this reads them.
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Writes down that a daemon starts, and gives the number of this change: no earlier daemon has had
    /// this number, whatever it has shown to hosts without a change.
    pub fn begin(&self, kept: &Kept) -> u64 {
        let run = kept.run + 1;
        self.run.store(run, Ordering::Relaxed);
        let position = self.keep(&generation::mark_of_start(run));
        let position = position.and_then(|position| self.wait(position).map(|()| position));
        position.unwrap_or_else(|error| {
            tracing::warn!(
                "the start cannot be written down: after the next one, discovery's generation may go \
                 back, and controllers may get numbers that are in use now: {error}"
            );
            kept.sequence + 1
        })
    }

    fn configuration_of(&self, catalogue: &Catalogue) -> Configuration {
        configuration_of(catalogue, self.run.load(Ordering::Relaxed))
    }

    /// The state that it writes.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }
}

impl Journal for StateJournal {
    fn reserve(&self) -> Result<(), JournalError> {
        let permit = self.store.reserve(CHANGE_BYTES)?;
        // Replaces the permit of a change that failed, if there is one.
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
        Ok(())
    }

    fn append(&self, records: &[Record]) -> Result<u64, JournalError> {
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        let permit = permit.map_or_else(|| self.store.reserve(CHANGE_BYTES), Ok)?;
        Ok(self.store.append(permit, records)?)
    }

    fn keep(&self, record: &Record) -> Result<u64, JournalError> {
        // Takes a permit of its own, not that of the change in progress.
        let permit = self.store.reserve(CHANGE_BYTES)?;
        Ok(self.store.append(permit, std::slice::from_ref(record))?)
    }

    fn wait(&self, position: u64) -> Result<(), JournalError> {
        Ok(self.store.wait(position)?)
    }

    fn is_writable(&self) -> Option<bool> {
        Some(self.store.is_writable())
    }

    fn changed(&self, catalogue: &Catalogue) {
        if self.store.checkpoint_due() {
            // The store logs a failure, which loses nothing.
            self.store.checkpoint(self.configuration_of(catalogue), |_| {});
        }
    }

    fn rewrite_with_next_change(&self) {
        self.store.want_checkpoint();
    }

    fn close(&self, catalogue: &Catalogue) -> Result<(), JournalError> {
        Ok(self.store.checkpoint_and_wait(self.configuration_of(catalogue))?)
    }
}

impl From<StateError> for JournalError {
    fn from(error: StateError) -> Self {
        let errno = match &error {
            StateError::Full { .. } | StateError::Behind { .. } => libc::ENOSPC,
            StateError::ReadOnly { .. } => libc::EROFS,
            StateError::TooLarge { .. } => libc::E2BIG,
            _ => libc::EIO,
        };
        Self { errno, message: error.to_string() }
    }
}

/// The calls section by section, as in SPDK; and their keys in the same order.
fn configuration_of(catalogue: &Catalogue, run: u64) -> Configuration {
    let mut subsystems = Vec::new();
    let mut all_keys = Map::new();
    for section in Section::ALL {
        let mut config = Vec::new();
        let mut keys = Vec::new();
        for (key, entry) in catalogue.entries().filter(|(_, entry)| entry.section == section) {
            keys.push(json!(key));
            let params = (!entry.params.is_null()).then(|| entry.params.clone());
            config.push(Call { method: entry.method.clone(), params });
        }
        subsystems.push(SubsystemConfig { subsystem: section.name().to_owned(), config });
        all_keys.insert(section.name().to_owned(), Value::Array(keys));
    }
    let identity = json!({ KEYS: all_keys, RUN: run });
    Configuration { subsystems, identity }
}

/// The catalogue of a configuration and later changes, and the number of the last start; or what this program does not
/// understand.
fn catalogue_of(recovered: Recovered) -> Result<(Catalogue, u64), String> {
    let Recovered { configuration, changes, sequence, .. } = recovered;
    let mut catalogue = Catalogue::default();
    let mut run = configuration.identity[RUN].as_u64().unwrap_or(0);
    for SubsystemConfig { subsystem, config } in configuration.subsystems {
        let section = Section::from_name(&subsystem)
            .ok_or_else(|| format!("the configuration has a part `{subsystem}`"))?;
        let keys = configuration.identity[KEYS][&subsystem].as_array();
        let keys = keys.filter(|keys| keys.len() == config.len());
        let keys = keys.ok_or_else(|| format!("the calls of part `{subsystem}` have no keys"))?;
        for (key, Call { method, params }) in keys.iter().zip(config) {
            let key: Key = serde_json::from_value(key.clone())
                .map_err(|error| format!("{key} in part `{subsystem}` is no key: {error}"))?;
            let entry = Entry { section, method, params: params.unwrap_or(Value::Null) };
            catalogue.apply(Record::Put { key, entry });
        }
    }
    let first = sequence + 1 - changes.len() as u64;
    for (change, number) in changes.into_iter().zip(first..) {
        let record = serde_json::from_value(change)
            .map_err(|error| format!("change {number} is of another kind: {error}"))?;
        run = run.max(generation::start_of(&record).unwrap_or(0));
        catalogue.apply(record);
    }
    Ok((catalogue, run))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::sim::{Random, SimDisk};
    use super::*;
    use crate::error::RpcError;
    use crate::manager::{Manager, ManagerConfig};
    use crate::method::Registry;
    use crate::role::Peer;

    /// How long a test waits for what it expects.
    const LIMIT: Duration = Duration::from_secs(20);

    /// A daemon without a socket.
    struct Daemon {
        manager: Manager,
        registry: Arc<Registry>,
    }

    impl Daemon {
        fn start(disk: &SimDisk) -> Self {
            let (journal, kept) = StateJournal::with_disk(Arc::new(disk.clone())).unwrap();
            let config = ManagerConfig { journal: Box::new(journal), ..ManagerConfig::default() };
            let registry = Arc::new(Registry::new());
            let manager = Manager::new(config, registry.clone());
            manager.restore(&kept.catalogue).unwrap();
            manager.start();
            manager.restore(&kept.catalogue).unwrap();
            Self { manager, registry }
        }

        /// Calls a method and waits until its effect is durable.
        fn call(&self, method: &str, params: &Value) -> Result<Value, RpcError> {
            let raw = serde_json::value::to_raw_value(params).unwrap();
            let peer = Peer::this_process();
            let params = (!params.is_null()).then_some(&*raw);
            let result = self.registry.call(&self.manager, peer, method, params)?;
            let durable = self.manager.wait_durable();
            durable.map_err(|error| RpcError::errno(error.errno).because(error))?;
            Ok(result)
        }

        fn create(&self, name: &str) -> Result<Value, RpcError> {
            let params = json!({ "name": name, "num_blocks": 64, "block_size": 512 });
            self.call("bdev_malloc_create", &params)
        }

        fn bdevs(&self) -> Value {
            self.call("bdev_get_bdevs", &Value::Null).unwrap()
        }
    }

    fn crash(disk: &SimDisk) -> SimDisk {
        SimDisk::new(disk.image().crash(&mut Random(11)))
    }

    #[test]
    fn a_crash_brings_back_the_same_devices() {
        let disk = SimDisk::default();
        let daemon = Daemon::start(&disk);
        for name in ["a", "b", "c"] {
            daemon.create(name).unwrap();
        }
        daemon.call("bdev_malloc_delete", &json!({ "name": "b" })).unwrap();
        let before = daemon.bdevs();
        assert_eq!(before.as_array().unwrap().len(), 2);
        let disk = crash(&disk);
        let daemon = Daemon::start(&disk);
        assert_eq!(daemon.bdevs(), before);
        // After an orderly end as well, and after a crash that follows it.
        daemon.manager.close_journal().unwrap();
        let disk = crash(&disk);
        let daemon = Daemon::start(&disk);
        assert_eq!(daemon.bdevs(), before);
        daemon.create("d").unwrap();
        let before = daemon.bdevs();
        assert_eq!(Daemon::start(&crash(&disk)).bdevs(), before);
    }

    #[test]
    fn what_a_start_has_added_is_kept_with_the_next_change() {
        let disk = SimDisk::default();
        let (journal, _) = StateJournal::with_disk(Arc::new(disk.clone())).unwrap();
        // An earlier release did not record all that there is.
        let params = json!({ "name": "a", "num_blocks": 64, "block_size": 512 });
        let entry = Entry::new(Section::Bdev, "bdev_malloc_create", &params).unwrap();
        let mut catalogue = Catalogue::default();
        catalogue.apply(Record::Put { key: Key::new(&["bdev", "a"]), entry });
        journal.close(&catalogue).unwrap();
        drop(journal);
        let daemon = Daemon::start(&disk);
        daemon.create("b").unwrap();
        let after = daemon.manager.model().catalogue.digest();
        // The checkpoint is written behind the change.
        let began = Instant::now();
        loop {
            let (_, kept) = StateJournal::with_disk(Arc::new(crash(&disk))).unwrap();
            assert_eq!(kept.catalogue.len(), 2);
            if kept.catalogue.digest() == after {
                break;
            }
            assert!(began.elapsed() < LIMIT, "it is not all kept");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn starts_are_counted_over_crashes_and_orderly_ends() {
        let mut disk = SimDisk::default();
        for run in 1..=6 {
            let (journal, kept) = StateJournal::with_disk(Arc::new(disk.clone())).unwrap();
            assert_eq!(kept.run + 1, run);
            journal.begin(&kept);
            if run % 2 == 0 {
                journal.close(&kept.catalogue).unwrap();
            }
            drop(journal);
            disk = crash(&disk);
        }
    }

    #[test]
    fn a_full_disk_refuses_a_change_before_it_has_an_effect() {
        let disk = SimDisk::default();
        let daemon = Daemon::start(&disk);
        daemon.create("first").unwrap();
        disk.image().faults.no_room = true;
        let mut refused = None;
        for number in 0..10_000 {
            refused = daemon.create(&format!("m{number}")).err();
            if refused.is_some() {
                break;
            }
        }
        let refused = refused.expect("a full disk");
        assert_eq!(refused.code, -libc::ENOSPC);
        assert!(refused.to_string().contains("nothing has changed"), "{refused}");
        let before = daemon.bdevs();
        assert_eq!(Daemon::start(&crash(&disk)).bdevs(), before);
        disk.image().faults.no_room = false;
        daemon.create("last").unwrap();
    }

    #[test]
    fn a_failed_change_is_not_kept() {
        let disk = SimDisk::default();
        let daemon = Daemon::start(&disk);
        daemon.create("a").unwrap();
        daemon.create("a").unwrap_err();
        daemon.call("bdev_malloc_delete", &json!({ "name": "b" })).unwrap_err();
        daemon.create("b").unwrap();
        let (_, kept) = StateJournal::with_disk(Arc::new(crash(&disk))).unwrap();
        assert_eq!(kept.sequence, 2);
        assert_eq!(kept.catalogue.len(), 2);
    }
}
