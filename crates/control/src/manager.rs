//! The manager: all objects by name, and the one place through which they change.
//!
//! One change is made at a time, under [`Manager::change`]. A reader never waits for a change: the model is
//! locked only briefly, never while a device opens or a core answers. The calls of a configuration are made
//! through [`Replay`], so the manager knows no method.

pub mod bdevs;
pub mod catalogue;
pub mod central;
mod change;
pub mod controllers;
pub mod discovery;
pub mod disks;
mod error;
mod flat_lock;
pub(crate) mod generation;
pub mod history;
pub mod iscsi;
pub mod journal;
pub mod keys;
pub mod mdns;
pub mod missing;
pub mod notify;
pub mod nvmf;
pub mod options;
mod publish;
pub mod qos;
mod replay;
mod reservations;
pub mod restore;
pub mod sampling;
pub(crate) mod scheduler;
mod start;
mod threads;

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raceline_accel::Framework;
use raceline_bdev::{Drives, Identity};
use raceline_reactor::broken_cores;
use raceline_target::{ConnectionOptions, Target};

pub use change::Change;
pub use error::ManagerError;
pub use replay::Replay;
pub use start::{AtStart, Phase};

use bdevs::Bdevs;
use catalogue::Catalogue;
use change::Keeping;
use controllers::Controllers;
use controllers::hotplug::Hotplug;
use discovery::Discoveries;
use disks::Disks;
use flat_lock::{FlatLock, ReadGuard, WriteGuard};
use history::History;
use iscsi::Iscsi;
use journal::{Journal, NoJournal};
use mdns::MdnsDiscoveries;
use missing::MissingParts;
use notify::Events;
use nvmf::{DEFAULT_MAX_SUBSYSTEMS, Nvmf, Published};
use options::TargetOptions;
use replay::Replaying;
use start::Start;
use threads::Threads;

use crate::events::EventJournal;
use crate::keyring::{Keyring, Places};
use crate::logging::Logging;

/// The parameters of a manager.
pub struct ManagerConfig {
    /// The start needs no client: one that comes before its end by a socket of the service manager waits for it.
    pub starts_by_itself: bool,
    /// The CPUs of the target's cores; empty: one core that is not pinned.
    pub cores: Vec<usize>,
    /// Source of identities when none is given.
    pub identity: Identity,
    /// Where local drives are looked for.
    pub drives: Drives,
    /// Where changes are written down.
    pub journal: Box<dyn Journal>,
    /// What is logged.
    pub logging: Logging,
    /// What has happened.
    pub events: Arc<EventJournal>,
    /// What the command line says about connections; it wins over what calls say.
    pub connections: ConnectionOptions,
    /// Which engines compute digests.
    pub accel: Framework,
    /// Where keys are found by their names.
    pub key_places: Places,
    /// Where the reservations of namespaces persist that name no file for them; `None`: they do not.
    pub reservations: Option<PathBuf>,
    /// Where it is noted which namespaces hosts have write protected; `None`: they can only until the daemon ends.
    pub protected: Option<PathBuf>,
    /// The file that keeps the list of the last changes; `None`: it is forgotten at the end.
    pub history: Option<PathBuf>,
    /// The number of all changes ever made, this start included: numbering continues from there.
    pub changes_before: u64,
    /// Whether the listeners of the default target's discovery service are announced by multicast DNS without a call.
    pub mdns: bool,
    /// The folder for sockets of virtual machines whose controllers are not named by a path.
    pub sockets: Option<PathBuf>,
    /// The directory of the journal.
    pub state_dir: Option<PathBuf>,
    /// How often a daemon has started with the kept state, this start included; `None`: nothing is kept.
    pub run: Option<u64>,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            starts_by_itself: false,
            cores: Vec::new(),
            identity: Identity::of_this_machine(),
            drives: Drives::default(),
            journal: Box::new(NoJournal),
            logging: Logging::default(),
            events: Arc::default(),
            connections: ConnectionOptions::default(),
            accel: Framework::software(),
            key_places: Places::default(),
            reservations: None,
            protected: None,
            history: None,
            changes_before: 0,
            mdns: false,
            sockets: None,
            state_dir: None,
            run: None,
        }
    }
}

/// The manager of everything that is configured.
///
/// Each part has the locks that guard it. Locks are taken in this order: the lock of a change, the lock of
/// its records, the model.
pub struct Manager {
    config: ManagerConfig,
    /// The progress of the start.
    start: Start,
    model: FlatLock<Model>,
    /// The order of changes and of their records.
    keeping: Keeping,
    /// The last changes.
    history: Arc<History>,
    /// The replay of the configuration's calls.
    replaying: Replaying,
    /// Threads that watch things outside of the program.
    threads: Threads,
    /// Locks on cores, against other programs.
    core_locks: Mutex<Vec<File>>,
    /// The highest generation of a target that has ended.
    ended_generation: AtomicU64,
}

/// The objects that exist.
#[derive(Default)]
pub struct Model {
    /// Block devices.
    pub bdevs: Bdevs,
    /// Remote controllers whose namespaces are devices.
    pub controllers: Controllers,
    /// Discovery services that bring such controllers.
    pub discoveries: Discoveries,
    /// Searches for such services by multicast DNS.
    pub mdns_discoveries: MdnsDiscoveries,
    /// Local drives that are taken when they are plugged in.
    pub hotplug: Arc<Hotplug>,
    /// Keys by name.
    pub keyring: Keyring,
    /// Parts that are configured but missing.
    pub missing: MissingParts,
    /// What is exported by NVMe/TCP, and the cores of all targets.
    pub nvmf: Nvmf,
    /// What is exported by iSCSI.
    pub iscsi: Iscsi,
    /// Disks of this machine and of virtual machines.
    pub disks: Disks,
    /// The calls that make all of it again.
    pub catalogue: Catalogue,
    /// The last events.
    pub events: Events,
    /// Options for targets that are created later.
    pub target_options: TargetOptions,
    /// A thread announces the listeners of targets that want it.
    publishes: bool,
}

impl Manager {
    /// A manager in its startup phase; `methods` make the calls of its configuration.
    #[must_use]
    pub fn new(config: ManagerConfig, methods: Arc<dyn Replay>) -> Self {
        let mut nvmf = Nvmf::new(DEFAULT_MAX_SUBSYSTEMS);
        if config.mdns {
            nvmf.targets.values_mut().for_each(|target| target.published = Published::ByOption);
        }
        let history = Arc::new(History::open(config.history.clone()));
        Self {
            config,
            history,
            start: Start::new(),
            model: FlatLock::new(Model { nvmf, ..Model::default() }),
            keeping: Keeping::default(),
            replaying: Replaying::new(methods),
            threads: Threads::default(),
            core_locks: Mutex::default(),
            ended_generation: AtomicU64::new(0),
        }
    }

    /// Locks on cores, against other programs: they hold as long as their files are in this list.
    pub(crate) fn core_locks(&self) -> MutexGuard<'_, Vec<File>> {
        lock(&self.core_locks)
    }

    /// The manager's parameters.
    #[must_use]
    pub fn config(&self) -> &ManagerConfig {
        &self.config
    }

    /// The current objects. The guard blocks changes: the caller must neither wait nor ask for another one
    /// while it holds it. (The guard of an expression after `for ... in` lives until the end of the loop.)
    #[track_caller]
    pub fn model(&self) -> ReadGuard<'_, Model> {
        self.model.read()
    }

    /// Ends the exports: commands in flight finish, connections close, cores end. The configuration stays
    /// written down. The threads that look for drives and for missing parts end first, so that nothing new
    /// arrives.
    ///
    /// # Errors
    /// When a core does not end in time.
    pub fn shut_down(&self) -> Result<(), ManagerError> {
        for target in self.model().nvmf.targets.values() {
            target.registrars.values().for_each(|registrar| registrar.end());
        }
        self.end_threads();
        let _one_at_a_time = self.keeping.hold_changes();
        let ending = std::mem::take(&mut self.model_mut().disks);
        disks::end_all(ending);
        for (_, target) in self.running_targets() {
            target.announce_end();
        }
        let targets = std::mem::take(&mut self.model_mut().nvmf.targets);
        for running in targets.into_values().filter_map(|target| target.running) {
            nvmf::stop(running.target)?;
        }
        let searches = std::mem::take(&mut self.model_mut().mdns_discoveries);
        searches.into_values().for_each(|mdns| mdns.end());
        let discoveries = std::mem::take(&mut self.model_mut().discoveries);
        discoveries.into_values().for_each(|discovery| discovery.end());
        let controllers = std::mem::take(&mut self.model_mut().controllers);
        controllers.into_values().for_each(|controller| controller.end());
        Ok(())
    }

    /// The cores of all targets; the caller can ask them without holding the model.
    #[must_use]
    pub fn cores(&self) -> Vec<Arc<Target>> {
        self.model().nvmf.targets.values().filter_map(|target| target.cores()).collect()
    }

    /// The cores of all targets, by the names of these.
    pub(crate) fn running_targets(&self) -> Vec<(String, Arc<Target>)> {
        let model = self.model();
        let targets = model.nvmf.targets.iter();
        targets.filter_map(|(name, target)| Some((name.clone(), target.cores()?))).collect()
    }

    /// Blocks every change while the returned guard lives.
    pub(crate) fn hold_changes(&self) -> MutexGuard<'_, ()> {
        self.keeping.hold_changes()
    }

    /// The number of the last change.
    pub(crate) fn changes_so_far(&self) -> u64 {
        self.keeping.position().max(self.config.changes_before)
    }

    /// Tells hosts, and the users of disks, of devices that have grown.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn sizes_changed(&self) -> Result<(), ManagerError> {
        self.model_mut().disks.follow_sizes();
        let cores = self.cores();
        cores.iter().try_for_each(|cores| Ok(cores.refresh_sizes()?))
    }

    /// Whether the cores of all targets are running, and no other core of this process (of a disk, of a remote controller) has
    /// ended by a failure.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        if broken_cores() > 0 {
            return false;
        }
        let model = self.model();
        let mut all = model.nvmf.targets.values().filter_map(|target| target.running.as_ref());
        all.all(|running| running.target.is_running())
    }

    #[track_caller]
    fn model_mut(&self) -> WriteGuard<'_, Model> {
        self.model.write()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
