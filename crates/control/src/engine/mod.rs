//! The manager: what exists by name, and the one place through which it changes.
//!
//! One change is made at a time, under [`Engine::change`]. Whoever only looks never waits for one:
//! the model is locked for moments, never while a device opens or a core answers.

pub mod bdevs;
pub mod catalogue;
pub mod controllers;
pub mod discovery;
mod error;
pub(crate) mod generation;
pub mod journal;
pub mod missing;
pub mod notify;
pub mod nvmf;
pub mod options;
pub mod restore;
pub mod sampling;

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard,
    RwLockWriteGuard,
};
use std::time::{Duration, Instant};

use raceline_accel::Framework;
use raceline_bdev::{Drives, Identity};

pub use error::EngineError;

use bdevs::{Bdevs, Claim};
use catalogue::{Catalogue, Entry, Key, Record};
use controllers::hotplug::Hotplug;
use controllers::{Controllers, SharedEngine};
use discovery::Discoveries;
use journal::{Journal, JournalError, NoJournal};
use missing::MissingParts;
use notify::{EventKind, Events};
use nvmf::{DEFAULT_MAX_SUBSYSTEMS, Nvmf};
use options::TargetOptions;
use raceline_proto::nvme::Nqn;
use raceline_target::Target;

use crate::logging::Logging;

/// How long a client may wait for a device: a thread waits with it.
const MAX_BDEV_WAIT: Duration = Duration::from_secs(600);

/// How often a client that waits for a device looks.
const BDEV_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where the program is between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Options may be set; nothing exists.
    Startup,
    /// What was kept or configured is being made; clients wait.
    Starting,
    /// After framework_start_init.
    Runtime,
}

/// What an engine is given once.
pub struct EngineConfig {
    /// The CPUs of the target's cores; empty: one core that is not pinned.
    pub cores: Vec<usize>,
    /// Where identities come from when none is given.
    pub identity: Identity,
    /// Where local drives are looked for.
    pub drives: Drives,
    /// Where changes are written down.
    pub journal: Box<dyn Journal>,
    /// What is logged.
    pub logging: Logging,
    /// Which engines compute digests.
    pub accel: Framework,
    /// How many changes there have ever been, this start included: what is numbered goes on from
    /// there.
    pub changes_before: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            identity: Identity::of_this_machine(),
            drives: Drives::default(),
            journal: Box::new(NoJournal),
            logging: Logging::default(),
            accel: Framework::software(),
            changes_before: 0,
        }
    }
}

/// The manager of everything that is configured.
pub struct Engine {
    config: EngineConfig,
    phase: Mutex<Phase>,
    phase_changed: Condvar,
    /// Held for the whole of a change.
    changing: Mutex<()>,
    /// Held while records go to the journal and the catalogue, in the same order to both.
    keeping: Mutex<()>,
    model: RwLock<Model>,
    /// The journal's position after the last change.
    position: AtomicU64,
    /// Changes are being made that have been written down before.
    restoring: AtomicBool,
    /// What is missing is just being made.
    coming: Mutex<Option<Key>>,
    /// What the start has waited for things outside.
    waited_ms: AtomicU64,
    /// It shuts down.
    ending: AtomicBool,
    /// Locks on cores, against other programs.
    core_locks: Mutex<Vec<File>>,
    /// For threads of its own.
    shared: Arc<SharedEngine>,
    /// The highest generation of a target that has ended.
    ended_generation: AtomicU64,
    /// What is still to be made when the startup phase ends.
    at_start: Mutex<Option<AtStart>>,
    /// Why this engine must not go on.
    failure: OnceLock<String>,
    began: Instant,
}

/// What is left to do at the end of the startup phase; its error says why the start has failed.
pub type AtStart = Box<dyn FnOnce(&Engine) -> Result<(), String> + Send>;

/// What exists.
#[derive(Default)]
pub struct Model {
    /// Block devices.
    pub bdevs: Bdevs,
    /// Remote controllers whose namespaces are devices.
    pub controllers: Controllers,
    /// Discovery services that bring such controllers.
    pub discoveries: Discoveries,
    /// Local drives that are taken when they are plugged in.
    pub hotplug: Arc<Hotplug>,
    /// What is configured and not there.
    pub missing: MissingParts,
    /// What is exported.
    pub nvmf: Nvmf,
    /// The calls that make all of it again.
    pub catalogue: Catalogue,
    /// What has happened.
    pub events: Events,
    /// What targets are told that are made later.
    pub target_options: TargetOptions,
}

/// A change that is being made.
///
/// The effect comes first, then its record: what was recorded has happened, and is kept even when a
/// later step of the change fails. A step that fails must have undone its own effect.
pub struct Change<'a> {
    engine: &'a Engine,
    records: Vec<Record>,
    events: Vec<(EventKind, String)>,
}

impl Engine {
    /// An engine in its startup phase.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            config,
            phase: Mutex::new(Phase::Startup),
            phase_changed: Condvar::new(),
            changing: Mutex::default(),
            keeping: Mutex::default(),
            model: RwLock::new(Model {
                nvmf: Nvmf::new(DEFAULT_MAX_SUBSYSTEMS),
                ..Model::default()
            }),
            position: AtomicU64::new(0),
            restoring: AtomicBool::new(false),
            coming: Mutex::default(),
            waited_ms: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            core_locks: Mutex::default(),
            shared: Arc::default(),
            ended_generation: AtomicU64::new(0),
            at_start: Mutex::default(),
            failure: OnceLock::new(),
            began: Instant::now(),
        }
    }

    /// Locks on cores, against other programs: as long as they are here, they hold.
    pub(crate) fn core_locks(&self) -> MutexGuard<'_, Vec<File>> {
        lock(&self.core_locks)
    }

    /// When it began.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
    }

    /// What it was given.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Whether it has been started.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    /// Ends the startup phase.
    pub fn start(&self) {
        self.set_phase(Phase::Runtime);
    }

    fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_all();
    }

    /// Gives the engine something to do when the startup phase ends.
    pub fn at_start(&self, make: AtStart) {
        *lock(&self.at_start) = Some(make);
    }

    /// Ends the startup phase, and makes what has been left for this moment.
    ///
    /// # Errors
    /// When that fails: the engine is then half configured, and must not go on.
    pub fn start_all(&self) -> Result<(), String> {
        let left = lock(&self.at_start).take();
        self.set_phase(Phase::Starting);
        let made = left.map_or(Ok(()), |make| make(self));
        match &made {
            Ok(()) => {
                self.start();
                self.follow_missing();
            }
            Err(error) => {
                // The first failure is the one that counts.
                let _ = self.failure.set(error.clone());
                self.phase_changed.notify_all();
            }
        }
        made
    }

    /// Why this engine must not go on, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Waits for the end of the startup phase. Blocks.
    pub fn wait_started(&self) {
        let mut phase = lock(&self.phase);
        while *phase != Phase::Runtime && self.failure.get().is_none() {
            phase = self.phase_changed.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What exists now. The guard keeps others from changing it: not to be held while waiting.
    pub fn model(&self) -> RwLockReadGuard<'_, Model> {
        self.model.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a device, at most this long, and describes it. Blocks.
    pub fn wait_bdev<T>(
        &self,
        name: &str,
        timeout_ms: u64,
        describe: impl Fn(&bdevs::Entry) -> T,
    ) -> Option<T> {
        let timeout = Duration::from_millis(timeout_ms).min(MAX_BDEV_WAIT);
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(bdev) = self.model().bdevs.find(name) {
                return Some(describe(bdev));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(BDEV_POLL_INTERVAL));
        }
    }

    /// Makes a change: the only way. What it recorded goes to the journal and the catalogue together;
    /// [`Engine::wait_durable`] then waits until it is on stable media.
    ///
    /// # Errors
    /// When the change fails, or cannot be written down: then nothing was done.
    pub fn change<T, E: From<EngineError>>(
        &self,
        make: impl FnOnce(&mut Change<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _one_at_a_time = lock(&self.changing);
        let keep = !self.restoring.load(Ordering::Acquire);
        if keep {
            self.config.journal.reserve().map_err(EngineError::Journal)?;
        }
        let mut change = Change { engine: self, records: Vec::new(), events: Vec::new() };
        let made = make(&mut change);
        // A record follows its effect, so what was recorded has happened, also when a later step
        // failed.
        let Change { mut records, events, .. } = change;
        if keep && records.is_empty() && self.generation_needs_change() {
            records.push(generation::mark());
        }
        let has_records = keep && !records.is_empty();
        let _in_order = lock(&self.keeping);
        let kept = if has_records { self.config.journal.append(&records) } else { Ok(0) };
        let mut model = self.model_mut();
        // The effect is there, whatever the journal says.
        records.into_iter().for_each(|record| model.catalogue.apply(record));
        events.into_iter().for_each(|(kind, context)| model.events.push(kind, context));
        drop(model);
        self.position.fetch_max(kept.map_err(EngineError::Journal)?, Ordering::AcqRel);
        if has_records {
            self.config.journal.changed(&self.model().catalogue);
        }
        made
    }

    /// Writes down a record that has no effect yet, and waits until it is on stable media; then the
    /// caller makes the effect. For what is no change of a client: it does not wait for its turn.
    ///
    /// # Errors
    /// When it cannot be written down, at least not for sure.
    fn keep(&self, record: Record, effect: impl FnOnce(&mut Model)) -> Result<(), EngineError> {
        if self.restoring.load(Ordering::Acquire) {
            let text = "the daemon is still starting: try again in a moment";
            return Err(EngineError::Invalid(text.to_owned()));
        }
        let position = {
            let _in_order = lock(&self.keeping);
            let position = self.config.journal.keep(&record).map_err(EngineError::Journal)?;
            let mut model = self.model_mut();
            model.catalogue.apply(record);
            effect(&mut model);
            drop(model);
            self.config.journal.changed(&self.model().catalogue);
            position
        };
        self.position.fetch_max(position, Ordering::AcqRel);
        self.config.journal.wait(position).map_err(EngineError::Journal)
    }

    /// Undoes a record that could not be kept, in memory.
    fn unkeep(&self, record: Record, effect: impl FnOnce(&mut Model)) {
        let _in_order = lock(&self.keeping);
        let mut model = self.model_mut();
        model.catalogue.apply(record);
        effect(&mut model);
    }

    /// Waits until every change made so far is on stable media. Blocks.
    ///
    /// # Errors
    /// When it cannot be made so.
    pub fn wait_durable(&self) -> Result<(), JournalError> {
        self.config.journal.wait(self.position.load(Ordering::Acquire))
    }

    /// Ends what is exported: commands in flight finish, connections close, cores end. What is
    /// configured stays written down.
    ///
    /// # Errors
    /// When a core does not end in time.
    pub fn shut_down(&self) -> Result<(), EngineError> {
        self.ending.store(true, Ordering::Relaxed);
        let _one_at_a_time = lock(&self.changing);
        let targets = std::mem::take(&mut self.model_mut().nvmf.targets);
        for transport in targets.into_values().filter_map(|target| target.transport) {
            nvmf::stop(transport.target)?;
        }
        let discoveries = std::mem::take(&mut self.model_mut().discoveries);
        discoveries.into_values().for_each(|discovery| discovery.end());
        self.model().hotplug.end();
        let controllers = std::mem::take(&mut self.model_mut().controllers);
        controllers.into_values().for_each(|controller| controller.end());
        Ok(())
    }

    /// The cores of all targets, to be asked without holding the model.
    #[must_use]
    pub fn cores(&self) -> Vec<Arc<Target>> {
        self.model().nvmf.targets.values().filter_map(|target| target.cores()).collect()
    }

    /// Whether it shuts down: who waits for something outside waits no longer.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Tells hosts of devices that have grown.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn sizes_changed(&self) -> Result<(), EngineError> {
        let cores = self.cores();
        cores.iter().try_for_each(|cores| Ok(cores.refresh_sizes()?))
    }

    /// Whether the cores of all targets are running.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let model = self.model();
        let mut transports = model.nvmf.targets.values().filter_map(|t| t.transport.as_ref());
        transports.all(|transport| transport.target.is_running())
    }

    /// Lets the journal end in good order; changes are refused from then on, if it refuses them.
    ///
    /// # Errors
    /// When it cannot. Nothing is lost then.
    pub fn close_journal(&self) -> Result<(), JournalError> {
        let _one_at_a_time = lock(&self.changing);
        let _in_order = lock(&self.keeping);
        self.config.journal.close(&self.model().catalogue)
    }

    fn model_mut(&self) -> RwLockWriteGuard<'_, Model> {
        self.model.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Change<'_> {
    /// The engine, for what is constant.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// What exists now.
    pub fn model(&self) -> RwLockReadGuard<'_, Model> {
        self.engine.model()
    }

    /// The same, to be changed: held for moments only.
    pub fn model_mut(&mut self) -> RwLockWriteGuard<'_, Model> {
        self.engine.model_mut()
    }

    /// Records that this call makes a part of the configuration again.
    pub fn put(&mut self, key: Key, entry: Entry) {
        self.records.push(Record::Put { key, entry });
    }

    /// Records that a part of the configuration is gone.
    pub fn remove(&mut self, key: Key) {
        self.records.push(Record::Remove { key });
    }

    /// Tells those who ask for notifications.
    pub fn notify(&mut self, kind: EventKind, context: &str) {
        self.events.push((kind, context.to_owned()));
    }

    /// Adds a device; `entry` is the call that makes it again.
    ///
    /// # Errors
    /// When one of its names is taken or unusable.
    pub fn add_bdev(
        &mut self,
        bdev: bdevs::Entry,
        entry: Option<Entry>,
    ) -> Result<(), EngineError> {
        let (name, key) = (bdev.name.clone(), bdev.key.clone());
        self.check_not_missing(&Key::new(&["bdev", &name]))?;
        if entry.is_some() {
            self.check_not_waiting(&name)?;
        }
        self.model_mut().bdevs.insert(bdev)?;
        if let (Some(key), Some(entry)) = (key, entry) {
            self.put(key, entry);
        }
        self.notify(EventKind::BdevRegister, &name);
        Ok(())
    }

    /// Claims a device, so that nobody else may use it.
    ///
    /// # Errors
    /// When there is none, or somebody has it already.
    pub fn claim_bdev(&mut self, name: &str, claim: Claim) -> Result<(), EngineError> {
        let mut model = self.model_mut();
        let bdev = model.bdev(name)?;
        if let Some(other) = &bdev.claim {
            return Err(EngineError::Claimed { name: name.to_owned(), by: other.to_string() });
        }
        model.bdevs.set_claim(name, Some(claim));
        Ok(())
    }

    /// Gives up a claim.
    pub fn release_bdev(&mut self, name: &str) {
        self.model_mut().bdevs.set_claim(name, None);
    }

    /// Takes a device away, and before it whatever stands on it or shows it to hosts, as SPDK
    /// does: a device may always go.
    ///
    /// # Errors
    /// When there is none, or it does not become quiet.
    pub fn remove_bdev(&mut self, name: &str) -> Result<bdevs::Entry, EngineError> {
        self.take_bdev(name, true)
    }

    /// As [`Self::remove_bdev`] of a device that has gone by itself: the calls that made what
    /// stood on it stay, and make it again when the device comes back.
    ///
    /// # Errors
    /// When there is none, or it does not become quiet.
    pub fn unplug_bdev(&mut self, name: &str) -> Result<bdevs::Entry, EngineError> {
        self.take_bdev(name, false)
    }

    fn take_bdev(&mut self, name: &str, forget: bool) -> Result<bdevs::Entry, EngineError> {
        let (name, above, claim) = {
            let model = self.model();
            let bdev = model.bdev(name)?;
            bdev.details.before_removal();
            let above: Vec<String> =
                model.bdevs.above(&bdev.name).map(|entry| entry.name.clone()).collect();
            (bdev.name.clone(), above, bdev.claim.clone())
        };
        let parse =
            |nqn: &str| Nqn::new(nqn).map_err(|error| EngineError::Invalid(error.to_string()));
        match (claim, forget) {
            (Some(Claim::Namespace { target, nqn, nsid }), true) => {
                self.remove_namespace(&target, &parse(&nqn)?, nsid)?;
            }
            (Some(Claim::Namespace { target, nqn, nsid }), false) => {
                self.hide_waiting(&target, &parse(&nqn)?, nsid)?;
            }
            (Some(Claim::Pool { target, nqn }), true) => {
                self.remove_pool(&target, &parse(&nqn)?)?;
            }
            (Some(Claim::Pool { target, nqn }), false) => {
                self.hide_pool(&target, &parse(&nqn)?)?;
            }
            (Some(Claim::Bdev { .. }) | None, _) => {}
        }
        if forget {
            self.remove_waiting(|waited| waited == name);
        }
        for name in above {
            self.take_bdev(&name, forget)?;
        }
        let removed = self.model_mut().bdevs.remove(&name);
        let bdev = removed.ok_or_else(|| EngineError::NoBdev(name.clone()))?;
        for base in &bdev.bases {
            self.release_bdev(base);
        }
        if let Some(key) = bdev.key.clone().filter(|_| forget) {
            self.remove(key);
        }
        self.notify(EventKind::BdevUnregister, &name);
        Ok(bdev)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
