//! Counts of what queues have done: one writer, read by others without locks.

raceline_reactor::counters! {
    /// What the queues of one core have done, over all their connections. Written by that core only;
    /// alone on its cache lines.
    pub struct QueueCounters;
    /// The values of [`QueueCounters`] at one time.
    pub struct QueueTotals;
    counts {
        /// Receives that brought bytes.
        receives,
        /// Batches given to sends.
        sends,
        /// PDUs received, ICResp and TermReq included.
        pdus_received,
        /// PDUs given to sends, ICReq and TermReq included.
        pdus_sent,
        /// Bytes of data that were copied from where they were received to their buffer.
        copied_bytes,
        /// Data digests from the controller that did not match.
        digest_errors,
        /// Commands sent again because a data digest, here or at the controller, did not match.
        retries,
        /// Receives that were posted into the buffer of a payload.
        landed_in_place,
        /// Receives that were posted for the core's staging memory while large payloads were awaited.
        landed_in_staging,
        /// Sends whose commands could ask for a limited number of bytes only, because data would leave the
        /// caches before they are used.
        commands_kept_back,
        /// Sends that put commands before data that the controller waited for.
        commands_before_data,
        /// Authentications that succeeded.
        authentications,
    }
    sums {}
}
