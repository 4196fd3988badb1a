//! The state for the control plane: many callers append changes, and one thread writes them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::change_log::ChangeLog;
use super::committer::Committer;
use super::disk::{Disk, RealDisk};
use super::error::StateError;
use super::format::{MAX_CHANGE_BYTES, room_for};
use super::{Configuration, Recovered};

/// Size of the log from which a checkpoint is due...
const CHECKPOINT_LOG_BYTES: u64 = 16 << 20;
/// ...or this multiple of the configuration file, if that is larger: writing checkpoints then costs at most
/// a quarter of writing the log.
const CHECKPOINT_DOCUMENT_FACTOR: u64 = 4;
/// Pause after a failed checkpoint before the next is due.
const CHECKPOINT_RETRY: Duration = Duration::from_secs(30);

/// Called when a checkpoint is durable, or with the reason why it is not.
pub(super) type Done = Box<dyn FnOnce(Result<(), StateError>) + Send>;

/// Whether changes are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    #[default]
    Good,
    /// Not before the disk has room again; with the system's reason.
    Full(String),
    /// Not before the daemon is restarted; with the reason of the failure.
    ReadOnly(String),
}

/// The state directory of a daemon. Dropping it first writes all appended changes.
pub struct Store {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
}

/// Room in the log for one change. Dropping it without [`Store::append`] gives the room back.
#[must_use = "the room is given back when this is dropped"]
pub struct Permit {
    shared: Arc<Shared>,
    room_bytes: u64,
}

pub(super) struct Shared {
    pub(super) dir: PathBuf,
    queue: Mutex<Queue>,
    /// Signals work for the committer.
    pub(super) work: Condvar,
    /// Signals that a request for room has been answered, or that changes are durable or never will be.
    pub(super) answered: Condvar,
}

/// The data that callers and the committer share.
#[derive(Default)]
pub(super) struct Queue {
    /// Entries that were appended and are not yet written, in order.
    pub(super) entries: VecDeque<Entry>,
    /// The number of the last change appended.
    last_sequence: u64,
    /// The number of the last change that is durable.
    pub(super) durable_sequence: u64,
    /// Room promised to permits and entries; never more than `reserved_bytes`, except while the
    /// disk is full.
    pub(super) promised_bytes: u64,
    /// Room that the log has.
    pub(super) reserved_bytes: u64,
    /// Room that permits wait for.
    pub(super) wanted_bytes: u64,
    /// Number of requests for room, and of those answered.
    pub(super) requests: u64,
    pub(super) answers: u64,
    /// The reason why the last request was refused, if it was.
    pub(super) refusal: Option<String>,
    pub(super) health: Health,
    pub(super) checkpoints: Checkpoints,
    pub(super) stop: bool,
}

/// When the next checkpoint is due.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// Bytes of the log that the newest configuration does not contain.
    pub(super) log_bytes: u64,
    /// The size of the newest configuration.
    pub(super) document_bytes: u64,
    /// Whether one is being written.
    pub(super) running: bool,
    /// The daemon has started from a log: a new checkpoint makes the next start faster, and does not rely
    /// on bytes that a failing disk may have kept only in memory. Or what it has made is not quite what is kept.
    pub(super) after_start: bool,
    /// When the last one failed, if it did.
    pub(super) failed_at: Option<Instant>,
}

/// An item for the committer.
pub(super) enum Entry {
    /// Changes that are recorded all or none.
    Changes {
        /// JSON, joined by commas.
        encoded: Vec<u8>,
        count: u32,
        room_bytes: u64,
    },
    /// The configuration as it is after the entries before this one.
    Checkpoint { configuration: Configuration, done: Done },
}

impl Store {
    /// Opens, or creates, a state directory.
    ///
    /// # Errors
    /// When another daemon uses it, it is damaged, or the system refuses. Nothing that could be needed
    /// later has been changed then.
    pub fn open(dir: &Path) -> Result<(Self, Recovered), StateError> {
        Self::with_disk(Arc::new(RealDisk::open(dir)?))
    }

    /// Opens the state on a disk of any kind.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn with_disk(disk: Arc<dyn Disk>) -> Result<(Self, Recovered), StateError> {
        let dir = disk.path().to_owned();
        let (log, recovered) = ChangeLog::open(disk)?;
        for note in &recovered.notes {
            tracing::warn!("{note}");
        }
        let queue = Queue {
            last_sequence: recovered.sequence,
            durable_sequence: recovered.sequence,
            checkpoints: Checkpoints {
                log_bytes: log.segment_bytes(),
                after_start: !recovered.changes.is_empty(),
                ..Checkpoints::default()
            },
            ..Queue::default()
        };
        let (work, answered) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { dir, queue: Mutex::new(queue), work, answered });
        let committer = Committer::new(Arc::clone(&shared), log);
        let thread = std::thread::Builder::new().name("raceline-state".into());
        let thread = thread.spawn(move || committer.run()).map_err(|error| StateError::Io {
            action: "start the thread that writes",
            file: shared.dir.clone(),
            reason: error.to_string(),
        })?;
        Ok((Self { shared, committer: Some(thread) }, recovered))
    }

    /// Reserves room for a change of at most `change_bytes` of JSON (or for several that are recorded all
    /// or none). To be called before the change is applied; may wait for the disk.
    ///
    /// # Errors
    /// When there is no room, the state is read-only, or the change is too large.
    pub fn reserve(&self, change_bytes: usize) -> Result<Permit, StateError> {
        if change_bytes > MAX_CHANGE_BYTES {
            return Err(StateError::TooLarge { bytes: change_bytes, limit: MAX_CHANGE_BYTES });
        }
        let room_bytes = room_for(change_bytes);
        let mut queue = self.shared.lock();
        let mut asked = false;
        loop {
            if let Health::ReadOnly(reason) = &queue.health {
                return Err(self.shared.read_only(reason));
            }
            let fits = queue.promised_bytes + room_bytes <= queue.reserved_bytes;
            match (&queue.health, &queue.refusal) {
                (Health::Good, _) if fits => {
                    queue.promised_bytes += room_bytes;
                    let shared = Arc::clone(&self.shared);
                    return Ok(Permit { shared, room_bytes });
                }
                (Health::Full(reason), _) | (_, Some(reason)) if asked => {
                    return Err(self.shared.full(reason));
                }
                _ => {}
            }
            let wanted_bytes = queue.promised_bytes + room_bytes;
            queue.wanted_bytes = queue.wanted_bytes.max(wanted_bytes);
            queue.requests += 1;
            asked = true;
            let request = queue.requests;
            self.shared.work.notify_one();
            while queue.answers < request && !matches!(queue.health, Health::ReadOnly(_)) {
                queue = self.shared.wait(queue, &self.shared.answered);
            }
        }
    }

    /// Appends changes that have been applied, in the order in which they were applied; they are recorded
    /// all or none. Does not wait. Gives the number of the last, for [`Store::wait`].
    ///
    /// # Errors
    /// When the state has become read-only.
    pub fn append(&self, permit: Permit, changes: &[impl Serialize]) -> Result<u64, StateError> {
        let encoded = encode(changes);
        let count = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        // A change larger than its permit has been applied and must be recorded: it may find the disk full.
        let room_bytes = room_for(encoded.len()).max(permit.room_bytes);
        let mut queue = self.shared.lock();
        if let Health::ReadOnly(reason) = &queue.health {
            return Err(self.shared.read_only(reason));
        }
        if count > 0 {
            queue.promised_bytes += room_bytes;
            queue.last_sequence += u64::from(count);
            queue.entries.push_back(Entry::Changes { encoded, count, room_bytes });
            self.shared.work.notify_one();
        }
        let last = queue.last_sequence;
        // The permit gives back its room after the entry has taken it, so that the room was never free.
        drop(queue);
        drop(permit);
        Ok(last)
    }

    /// Waits until the change of this number, and all before it, are durable.
    ///
    /// # Errors
    /// When they cannot be made durable, at least for now.
    pub fn wait(&self, sequence: u64) -> Result<(), StateError> {
        let mut queue = self.shared.lock();
        loop {
            if queue.durable_sequence >= sequence {
                return Ok(());
            }
            match &queue.health {
                Health::Good => queue = self.shared.wait(queue, &self.shared.answered),
                Health::Full(reason) => {
                    let (dir, reason) = (self.shared.dir.clone(), reason.clone());
                    return Err(StateError::Behind { dir, reason });
                }
                Health::ReadOnly(reason) => return Err(self.shared.read_only(reason)),
            }
        }
    }

    /// Whether the log has grown enough that a checkpoint should be written now.
    #[must_use]
    pub fn checkpoint_due(&self) -> bool {
        let queue = self.shared.lock();
        let checkpoints = &queue.checkpoints;
        let limit = checkpoints.document_bytes.saturating_mul(CHECKPOINT_DOCUMENT_FACTOR);
        let grown = checkpoints.log_bytes >= limit.max(CHECKPOINT_LOG_BYTES);
        let waiting = checkpoints.failed_at.is_some_and(|at| at.elapsed() < CHECKPOINT_RETRY);
        (grown || checkpoints.after_start)
            && !checkpoints.running
            && !waiting
            && queue.health == Health::Good
    }

    /// Has a checkpoint be due as soon as it can be: what the daemon has made again at its start is not quite what is
    /// kept, so that the log alone does not lead to its configuration.
    pub fn want_checkpoint(&self) {
        self.shared.lock().checkpoints.after_start = true;
    }

    /// Writes the configuration as it is after all changes appended so far, so that the log can be cut.
    /// Meanwhile the caller must prevent further changes from being applied. Does not wait; `done` is called
    /// when the file is durable or could not be written. A failure loses nothing: the log goes on.
    pub fn checkpoint(
        &self,
        configuration: Configuration,
        done: impl FnOnce(Result<(), StateError>) + Send + 'static,
    ) {
        let mut queue = self.shared.lock();
        if let Health::ReadOnly(reason) = &queue.health {
            let error = self.shared.read_only(reason);
            drop(queue);
            return done(Err(error));
        }
        queue.checkpoints.running = true;
        queue.entries.push_back(Entry::Checkpoint { configuration, done: Box::new(done) });
        drop(queue);
        self.shared.work.notify_one();
    }

    /// Writes a checkpoint and waits for it, for the end of a daemon.
    ///
    /// # Errors
    /// When it cannot be written. The log still holds everything.
    pub fn checkpoint_and_wait(&self, configuration: Configuration) -> Result<(), StateError> {
        let (sender, receiver) = mpsc::channel();
        self.checkpoint(configuration, move |answer| {
            // The receiver waits below.
            let _ = sender.send(answer);
        });
        receiver.recv().unwrap_or_else(|_| Err(self.shared.read_only(ENDED)))
    }

    /// Whether changes are accepted.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.lock().health.clone()
    }

    /// Whether the last change found room, and no write has failed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let queue = self.shared.lock();
        queue.health == Health::Good && queue.refusal.is_none()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }
}

/// The reason for refusals once the committer is gone.
pub(super) const ENDED: &str = "the thread that writes has ended";

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.committer.take() {
            // If the thread has panicked, all waiting callers have been told.
            let _ = thread.join();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.lock().promised_bytes -= self.room_bytes;
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(
        &self,
        queue: MutexGuard<'a, Queue>,
        condition: &Condvar,
    ) -> MutexGuard<'a, Queue> {
        condition.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read_only(&self, reason: &str) -> StateError {
        StateError::ReadOnly { dir: self.dir.clone(), reason: reason.to_owned() }
    }

    fn full(&self, reason: &str) -> StateError {
        StateError::Full { dir: self.dir.clone(), reason: reason.to_owned() }
    }
}

/// The changes as JSON, joined by commas. Serialising a change cannot fail: its keys are strings.
fn encode(changes: &[impl Serialize]) -> Vec<u8> {
    let encoded: Vec<Vec<u8>> =
        changes.iter().map(|change| serde_json::to_vec(change).unwrap_or_default()).collect();
    encoded.join(&b',')
}
