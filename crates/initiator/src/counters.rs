//! Counts of what sessions have done: one writer, read by others without locks.

use raceline_reactor::stats::Counter;

/// What the sessions of one core have done, over all their connections. Written by that core only; alone on its cache
/// lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SessionCounters {
    pub(crate) receives: Counter,
    pub(crate) sends: Counter,
    pub(crate) pdus_received: Counter,
    pub(crate) pdus_sent: Counter,
    pub(crate) copied_bytes: Counter,
    pub(crate) digest_errors: Counter,
    pub(crate) retries: Counter,
    pub(crate) landed_in_place: Counter,
}

/// The values of [`SessionCounters`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionTotals {
    /// Receives that brought bytes.
    pub receives: u64,
    /// Batches given to sends.
    pub sends: u64,
    /// PDUs received after the login.
    pub pdus_received: u64,
    /// PDUs of commands and their data given to sends.
    pub pdus_sent: u64,
    /// Bytes of data that were copied from where they were received to their buffer.
    pub copied_bytes: u64,
    /// Data digests from the target that did not match; each has ended a session.
    pub digest_errors: u64,
    /// Commands sent again after a unit attention, BUSY, TASK SET FULL or ABORTED COMMAND.
    pub retries: u64,
    /// Receives that were posted into the buffer of a task.
    pub landed_in_place: u64,
}

impl SessionCounters {
    /// The counts as of now.
    #[must_use]
    pub fn totals(&self) -> SessionTotals {
        SessionTotals {
            receives: self.receives.get(),
            sends: self.sends.get(),
            pdus_received: self.pdus_received.get(),
            pdus_sent: self.pdus_sent.get(),
            copied_bytes: self.copied_bytes.get(),
            digest_errors: self.digest_errors.get(),
            retries: self.retries.get(),
            landed_in_place: self.landed_in_place.get(),
        }
    }
}
