//! The start of a manager: its phases, the work at the end of the first phase, and why a start has failed.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::{Manager, lock};

/// The phase of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Options may be set; nothing exists.
    Startup,
    /// The kept or configured state is being made; clients wait.
    Starting,
    /// After framework_start_init.
    Runtime,
}

/// Work at the end of the startup phase; its error says why the start has failed.
pub type AtStart = Box<dyn FnOnce(&Manager) -> Result<(), String> + Send>;

/// The progress of the start.
pub(super) struct Start {
    began: Instant,
    phase: Mutex<Phase>,
    /// Signalled when the phase changes or the start fails.
    changed: Condvar,
    /// The work for the end of the startup phase.
    left: Mutex<Option<AtStart>>,
    /// Why this manager must not go on.
    failure: OnceLock<String>,
}

impl Start {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            phase: Mutex::new(Phase::Startup),
            changed: Condvar::new(),
            left: Mutex::default(),
            failure: OnceLock::new(),
        }
    }

    fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }
}

impl Manager {
    /// When it began.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.start.began
    }

    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *lock(&self.start.phase)
    }

    /// Ends the startup phase.
    pub fn start(&self) {
        self.start.set_phase(Phase::Runtime);
    }

    /// Sets the work for the end of the startup phase.
    pub fn at_start(&self, make: AtStart) {
        *lock(&self.start.left) = Some(make);
    }

    /// Ends the startup phase, and does the work that was set for this moment.
    ///
    /// # Errors
    /// When the work fails: the manager is then half configured, and must not go on.
    pub fn start_all(&self) -> Result<(), String> {
        let left = lock(&self.start.left).take();
        self.start.set_phase(Phase::Starting);
        let made = left.map_or(Ok(()), |make| make(self));
        let made = made.and_then(|()| self.open_portals().map_err(|error| error.to_string()));
        match &made {
            Ok(()) => {
                self.start();
                self.follow_missing();
                self.follow_overlaps();
                self.follow_published();
            }
            Err(error) => {
                // The first failure is the one that counts.
                let _ = self.start.failure.set(error.clone());
                // Who has just looked for a failure waits by now.
                drop(lock(&self.start.phase));
                self.start.changed.notify_all();
            }
        }
        made
    }

    /// Why this manager must not go on, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.start.failure.get().map(String::as_str)
    }

    /// Waits for the end of the startup phase. Blocks.
    pub fn wait_started(&self) {
        let mut phase = lock(&self.start.phase);
        while *phase != Phase::Runtime && self.failure().is_none() {
            phase = self.start.changed.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
