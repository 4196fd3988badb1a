//! Counts of what queues have done: one writer, read by others without locks.

use raceline_reactor::stats::Counter;

/// What the queues of one core have done, over all their connections. Written by that core only;
/// alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueCounters {
    pub(crate) receives: Counter,
    pub(crate) sends: Counter,
    pub(crate) pdus_received: Counter,
    pub(crate) pdus_sent: Counter,
    pub(crate) copied_bytes: Counter,
    pub(crate) digest_errors: Counter,
    pub(crate) retries: Counter,
    pub(crate) landed_in_place: Counter,
    pub(crate) landed_in_staging: Counter,
    pub(crate) commands_kept_back: Counter,
    pub(crate) commands_before_data: Counter,
    pub(crate) authentications: Counter,
}

/// The values of [`QueueCounters`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Receives that brought bytes.
    pub receives: u64,
    /// Batches given to sends.
    pub sends: u64,
    /// PDUs received, ICResp and TermReq included.
    pub pdus_received: u64,
    /// PDUs given to sends, ICReq and TermReq included.
    pub pdus_sent: u64,
    /// Bytes of data that were copied from where they were received to their buffer.
    pub copied_bytes: u64,
    /// Data digests from the controller that did not match.
    pub digest_errors: u64,
    /// Commands sent again because a data digest, here or at the controller, did not match.
    pub retries: u64,
    /// Receives that were posted into the buffer of a payload.
    pub landed_in_place: u64,
    /// Receives that were posted for the core's staging memory while large payloads were awaited.
    pub landed_in_staging: u64,
    /// Sends whose commands could ask for a limited number of bytes only, because data would leave the
    /// caches before they are used.
    pub commands_kept_back: u64,
    /// Sends that put commands before data that the controller waited for.
    pub commands_before_data: u64,
    /// Authentications that succeeded.
    pub authentications: u64,
}

impl QueueCounters {
    /// The counts as of now.
    #[must_use]
    pub fn totals(&self) -> QueueTotals {
        QueueTotals {
            receives: self.receives.get(),
            sends: self.sends.get(),
            pdus_received: self.pdus_received.get(),
            pdus_sent: self.pdus_sent.get(),
            copied_bytes: self.copied_bytes.get(),
            digest_errors: self.digest_errors.get(),
            retries: self.retries.get(),
            landed_in_place: self.landed_in_place.get(),
            landed_in_staging: self.landed_in_staging.get(),
            commands_kept_back: self.commands_kept_back.get(),
            commands_before_data: self.commands_before_data.get(),
            authentications: self.authentications.get(),
        }
    }
}
