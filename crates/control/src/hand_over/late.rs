//! The journal of a successor, which opens it when the daemon has ended to write into it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::manager::catalogue::{Catalogue, Record};
use crate::manager::journal::{Journal, JournalError};
use crate::state::{StateError, StateJournal};

/// A journal that is not open at first; until then it refuses changes. One that could not be opened refuses them for good,
/// and says why.
#[derive(Clone, Default)]
pub(crate) struct LateJournal(Arc<OnceLock<Result<StateJournal, String>>>);

impl LateJournal {
    /// Opens it, and writes down the start. It is opened once.
    ///
    /// # Errors
    /// What clients get from now on: why changes are refused, and what to do.
    pub(super) fn open(&self, dir: &Path) -> Result<(), String> {
        let opened = StateJournal::open(dir).map_err(|error| no_change(&error));
        let opened = opened.map(|(journal, kept)| {
            journal.begin(&kept);
            // What was made again may have more parameters than what is kept.
            journal.rewrite_with_next_change();
            journal
        });
        match self.0.get_or_init(|| opened) {
            Ok(_) => Ok(()),
            Err(why) => Err(why.clone()),
        }
    }

    fn journal(&self) -> Result<&StateJournal, JournalError> {
        let message = "the state directory is not open, since this daemon is just taking the place of another one: \
                       try again in a moment";
        match self.0.get() {
            Some(Ok(journal)) => Ok(journal),
            Some(Err(why)) => Err(JournalError { errno: libc::EROFS, message: why.clone() }),
            None => Err(JournalError { errno: libc::EAGAIN, message: message.to_owned() }),
        }
    }
}

/// What becomes of a daemon that has taken the place of another one, and cannot open its state.
fn no_change(error: &StateError) -> String {
    format!(
        "this daemon has taken the place of another one and cannot open the state directory of that one: {error}. Hosts are \
         served, and all changes are refused until the daemon is restarted: save the configuration by raceline config save \
         FILE, make the directory right, and restart the daemon"
    )
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

    fn is_writable(&self) -> Option<bool> {
        self.journal().map_or(Some(false), Journal::is_writable)
    }

    fn failure(&self) -> Option<String> {
        match self.0.get() {
            Some(Ok(journal)) => journal.failure(),
            Some(Err(why)) => Some(why.clone()),
            None => None,
        }
    }

    fn changed(&self, catalogue: &Catalogue) {
        if let Ok(journal) = self.journal() {
            journal.changed(catalogue);
        }
    }

    fn rewrite_with_next_change(&self) {
        if let Ok(journal) = self.journal() {
            journal.rewrite_with_next_change();
        }
    }

    fn close(&self, catalogue: &Catalogue) -> Result<(), JournalError> {
        self.journal()?.close(catalogue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member of the trait that has a default is easily left out here: each of these once answered for no journal at all.
    #[test]
    fn it_answers_as_the_journal_does() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        let late = LateJournal::default();
        assert_eq!((late.is_writable(), late.failure()), (Some(false), None));
        assert_eq!(late.reserve().unwrap_err().errno, libc::EAGAIN);
        late.open(&dir).unwrap();
        assert_eq!((late.is_writable(), late.failure()), (Some(true), None));
        late.reserve().unwrap();
        late.close(&Catalogue::default()).unwrap();
    }

    #[test]
    fn one_that_cannot_be_opened_says_so_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        std::fs::write(&dir, "no directory").unwrap();
        let late = LateJournal::default();
        let said = late.open(&dir).unwrap_err();
        assert!(said.contains("--state-dir wants a directory"), "{said}");
        assert_eq!((late.is_writable(), late.failure()), (Some(false), Some(said.clone())));
        let refused = late.reserve().unwrap_err();
        assert_eq!((refused.errno, &refused.message), (libc::EROFS, &said));
        assert!(said.contains("restart the daemon") && !said.contains("in a moment"), "{said}");
    }
}
