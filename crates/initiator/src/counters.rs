//! Counts of what sessions have done: one writer, read by others without locks.

raceline_reactor::counters! {
    /// What the sessions of one core have done, over all their connections. Written by that core only; alone on its cache
    /// lines.
    pub struct SessionCounters;
    /// The values of [`SessionCounters`] at one time.
    pub struct SessionTotals;
    counts {
        /// Receives that brought bytes.
        receives,
        /// Batches given to sends.
        sends,
        /// PDUs received after the login.
        pdus_received,
        /// PDUs of commands and their data given to sends.
        pdus_sent,
        /// Bytes of data that were copied from where they were received to their buffer.
        copied_bytes,
        /// Data digests from the target that did not match; each has ended a session.
        digest_errors,
        /// Commands sent again after a unit attention, BUSY, TASK SET FULL or ABORTED COMMAND.
        retries,
        /// Receives that were posted into the buffer of a task.
        landed_in_place,
    }
    sums {}
}
