//! Where changes are written down before they are acknowledged.

use super::catalogue::{Catalogue, Record};

/// Keeps records for the next start.
///
/// A change is made in the steps `reserve`, effect, `append`, `wait`, acknowledgement. Room is reserved
/// before the effect, so that a full disk refuses the change instead of leaving one that cannot be kept.
pub trait Journal: Send + Sync {
    /// Makes sure that a change can be written down.
    ///
    /// # Errors
    /// When it cannot: no space, or an earlier write has failed.
    fn reserve(&self) -> Result<(), JournalError>;

    /// Appends the records of one change, which are kept together or not at all; gives the position after
    /// them. Does not wait.
    ///
    /// # Errors
    /// When they cannot be appended in spite of [`Journal::reserve`].
    fn append(&self, records: &[Record]) -> Result<u64, JournalError>;

    /// Appends one record whose effect is still to come; reserves room for it first. Gives the position
    /// after it. Does not wait for the record itself.
    ///
    /// # Errors
    /// When it cannot be written down.
    fn keep(&self, record: &Record) -> Result<u64, JournalError>;

    /// Waits until everything before that position is on stable media: one sync serves all waiting callers.
    ///
    /// # Errors
    /// When it cannot be made stable. The journal then refuses every further change.
    fn wait(&self, position: u64) -> Result<(), JournalError>;

    /// Whether the last change could be written down; `None`: nothing is kept.
    fn is_writable(&self) -> Option<bool> {
        None
    }

    /// Why no change can be written down until the daemon is started anew; `None`: changes may be tried.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Receives the sum of all records so far: after each change, before the next one begins. Does not
    /// wait.
    fn changed(&self, _catalogue: &Catalogue) {}

    /// What was made again at the start has more parameters than the records: with the next change, the sum of all
    /// records is written down whole.
    fn rewrite_with_next_change(&self) {}

    /// Closes in good order, so that the next start is fast: there are no more changes.
    ///
    /// # Errors
    /// When it cannot. Nothing is lost then.
    fn close(&self, _catalogue: &Catalogue) -> Result<(), JournalError> {
        Ok(())
    }
}

/// Why something cannot be written down.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct JournalError {
    /// The errno that clients get.
    pub errno: i32,
    /// What was wrong, where, and what to do.
    pub message: String,
}

/// Keeps nothing: for a target whose state ends with its process.
#[derive(Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn reserve(&self) -> Result<(), JournalError> {
        Ok(())
    }

    fn append(&self, _records: &[Record]) -> Result<u64, JournalError> {
        Ok(0)
    }

    fn keep(&self, _record: &Record) -> Result<u64, JournalError> {
        Ok(0)
    }

    fn wait(&self, _position: u64) -> Result<(), JournalError> {
        Ok(())
    }
}
