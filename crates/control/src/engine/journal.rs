//! Where changes are written down before they are acknowledged.

use super::ledger::Record;

/// Keeps records for the next start.
///
/// A change goes `reserve`, effect, `append`, acknowledge after `wait`. Space is asked for before
/// the effect, so that a full disk refuses the change instead of leaving one that cannot be kept.
pub trait Journal: Send + Sync {
    /// Makes sure that a change can be written down.
    ///
    /// # Errors
    /// When it cannot: no space, or an earlier write has failed.
    fn reserve(&self) -> Result<(), JournalError>;

    /// Takes the records of one change, which are kept together or not at all; gives the position
    /// after them. Does not wait.
    ///
    /// # Errors
    /// When they cannot be taken in spite of [`Journal::reserve`].
    fn append(&self, records: &[Record]) -> Result<u64, JournalError>;

    /// Waits until everything before that position is on stable media: one sync serves all who
    /// wait.
    ///
    /// # Errors
    /// When it cannot be made stable. The journal then refuses every further change.
    fn wait(&self, position: u64) -> Result<(), JournalError>;
}

/// Why something cannot be written down; says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct JournalError(pub String);

/// Keeps nothing: for a target that ends with its process.
#[derive(Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn reserve(&self) -> Result<(), JournalError> {
        Ok(())
    }

    fn append(&self, _records: &[Record]) -> Result<u64, JournalError> {
        Ok(0)
    }

    fn wait(&self, _position: u64) -> Result<(), JournalError> {
        Ok(())
    }
}
