//! Changes, one at a time, and their records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::catalogue::{Entry, Key, Record};
use super::flat_lock::{ReadGuard, WriteGuard};
use super::journal::JournalError;
use super::notify::EventKind;
use super::{Manager, ManagerError, Model, generation, lock};

/// The locks and the position that keep records in order.
#[derive(Default)]
pub(super) struct Keeping {
    /// Held for the whole of a change.
    changing: Mutex<()>,
    /// Held while records are added to the journal and the catalogue, in the same order to both.
    in_order: Mutex<()>,
    /// The journal's position after the last change.
    position: AtomicU64,
}

impl Keeping {
    /// Blocks every change while the returned guard lives.
    pub(super) fn hold_changes(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    /// Keeps records from being added while the returned guard lives.
    pub(super) fn hold_order(&self) -> MutexGuard<'_, ()> {
        lock(&self.in_order)
    }

    /// The journal's position after the last change.
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Notes that the journal has reached this position.
    fn advance(&self, position: u64) {
        self.position.fetch_max(position, Ordering::AcqRel);
    }
}

/// A change in progress.
///
/// The effect comes first, then its record: what was recorded has happened, and is kept even when a
/// later step of the change fails. A step that fails must have undone its own effect.
pub struct Change<'a> {
    manager: &'a Manager,
    records: Vec<Record>,
    events: Vec<(EventKind, String)>,
}

impl Manager {
    /// Makes a change: there is no other way. Its records are added to the journal and the catalogue
    /// together; [`Manager::wait_durable`] then waits until they are on stable media.
    ///
    /// # Errors
    /// When the change fails, or cannot be written down: in the latter case nothing was done.
    pub fn change<T, E: From<ManagerError>>(
        &self,
        make: impl FnOnce(&mut Change<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _one_at_a_time = self.keeping.hold_changes();
        let keep = !self.replaying.is_restoring();
        if keep {
            self.config.journal.reserve().map_err(ManagerError::Journal)?;
        }
        let mut change = Change { manager: self, records: Vec::new(), events: Vec::new() };
        let made = make(&mut change);
        // A record follows its effect, so what was recorded has happened, also when a later step
        // failed.
        let Change { mut records, events, .. } = change;
        if keep && records.is_empty() && self.generation_needs_change() {
            records.push(generation::mark());
        }
        let has_records = keep && !records.is_empty();
        let _in_order = lock(&self.keeping.in_order);
        let kept = if has_records { self.config.journal.append(&records) } else { Ok(0) };
        let looked_back = if keep { self.look_back(&records) } else { None };
        let mut model = self.model_mut();
        // The effect has happened, whatever the journal says.
        records.into_iter().for_each(|record| model.catalogue.apply(record));
        events.into_iter().for_each(|(kind, context)| model.events.push(kind, context));
        drop(model);
        self.note_change(looked_back);
        self.keeping.advance(kept.map_err(ManagerError::Journal)?);
        if has_records {
            self.config.journal.changed(&self.model().catalogue);
        }
        made
    }

    /// Writes down a record whose effect is still to come, and waits until it is on stable media; then the
    /// caller makes the effect. For changes that no client has asked for: they do not wait for their turn.
    ///
    /// # Errors
    /// When it cannot be written down, or it is not certain that it was.
    pub(super) fn keep(
        &self,
        record: Record,
        effect: impl FnOnce(&mut Model),
    ) -> Result<(), ManagerError> {
        if self.replaying.is_restoring() {
            let text = "the daemon is still starting: try again in a moment";
            return Err(ManagerError::Invalid(text.to_owned()));
        }
        let position = {
            let _in_order = lock(&self.keeping.in_order);
            let position = self.config.journal.keep(&record).map_err(ManagerError::Journal)?;
            let looked_back = self.look_back(std::slice::from_ref(&record));
            let mut model = self.model_mut();
            model.catalogue.apply(record);
            effect(&mut model);
            drop(model);
            self.note_change(looked_back);
            self.config.journal.changed(&self.model().catalogue);
            position
        };
        self.keeping.advance(position);
        self.config.journal.wait(position).map_err(ManagerError::Journal)
    }

    /// Undoes a record that could not be kept, in memory.
    pub(super) fn unkeep(&self, record: Record, effect: impl FnOnce(&mut Model)) {
        let _in_order = lock(&self.keeping.in_order);
        let mut model = self.model_mut();
        model.catalogue.apply(record);
        effect(&mut model);
    }

    /// Waits until every change made so far is on stable media. Blocks.
    ///
    /// # Errors
    /// When it cannot be made so.
    pub fn wait_durable(&self) -> Result<(), JournalError> {
        self.config.journal.wait(self.keeping.position())
    }

    /// Closes the journal in good order. Later changes are refused if the journal refuses them.
    ///
    /// # Errors
    /// When it cannot. Nothing is lost then.
    pub fn close_journal(&self) -> Result<(), JournalError> {
        let _one_at_a_time = self.keeping.hold_changes();
        let _in_order = lock(&self.keeping.in_order);
        self.save_history();
        self.config.journal.close(&self.model().catalogue)
    }
}

impl Change<'_> {
    /// The manager, for its constant parts.
    #[must_use]
    pub fn manager(&self) -> &Manager {
        self.manager
    }

    /// What exists now.
    #[track_caller]
    pub fn model(&self) -> ReadGuard<'_, Model> {
        self.manager.model()
    }

    /// The current objects, for changes; the lock is held only briefly.
    #[track_caller]
    pub fn model_mut(&mut self) -> WriteGuard<'_, Model> {
        self.manager.model_mut()
    }

    /// Records that this call makes the part of the configuration under `key`.
    pub fn put(&mut self, key: Key, entry: Entry) {
        self.records.push(Record::Put { key, entry });
    }

    /// Records that the part of the configuration under `key` is removed.
    pub fn remove(&mut self, key: Key) {
        self.records.push(Record::Remove { key });
    }

    /// Adds an event for clients that ask for notifications.
    pub fn notify(&mut self, kind: EventKind, context: &str) {
        let name = context;
        match kind {
            EventKind::BdevRegister => tracing::info!(event = "device", name, "a device has come"),
            EventKind::BdevUnregister => {
                tracing::info!(event = "device", name, "a device has gone");
            }
        }
        self.events.push((kind, context.to_owned()));
    }
}
