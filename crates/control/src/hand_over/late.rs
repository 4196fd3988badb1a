//! The journal of a successor, which opens it when the daemon has ended to write into it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::manager::catalogue::{Catalogue, Record};
use crate::manager::journal::{Journal, JournalError};
use crate::state::{StateError, StateJournal};

/// A journal that is not open at first; until then it refuses changes.
#[derive(Clone, Default)]
pub(crate) struct LateJournal(Arc<OnceLock<StateJournal>>);

impl LateJournal {
    /// Opens it, and writes down the start.
    pub(super) fn open(&self, dir: &Path) -> Result<(), StateError> {
        let (journal, kept) = StateJournal::open(dir)?;
        journal.begin(&kept);
        // What was made again may have more parameters than what is kept.
        journal.rewrite_with_next_change();
        // It is opened once.
        let _ = self.0.set(journal);
        Ok(())
    }

    fn journal(&self) -> Result<&StateJournal, JournalError> {
        let message = "the state directory is not open, since this daemon is just taking the place of another one: \
                       try again in a moment; if this stays, the log says why";
        let error = || JournalError { errno: libc::EAGAIN, message: message.to_owned() };
        self.0.get().ok_or_else(error)
    }
}

impl Journal for LateJournal {
    fn reserve(&self) -> Result<(), JournalError> {
        self.journal()?.reserve()
    }

    fn append(&self, records: &[Record]) -> Result<u64, JournalError> {
        self.journal()?.append(records)
    }

    fn keep(&self, record: &Record) -> Result<u64, JournalError> {
        self.journal()?.keep(record)
    }

    fn wait(&self, position: u64) -> Result<(), JournalError> {
        match position {
            0 => Ok(()),
            _ => self.journal()?.wait(position),
        }
    }

    fn changed(&self, catalogue: &Catalogue) {
        if let Ok(journal) = self.journal() {
            journal.changed(catalogue);
        }
    }

    fn close(&self, catalogue: &Catalogue) -> Result<(), JournalError> {
        self.journal()?.close(catalogue)
    }
}
