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
        /// Commands sent again on another connection, because theirs was lost or their path refused them.
        resubmitted,
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

raceline_reactor::counters! {
    /// What has become of the connections with a controller. Written by the thread of its admin queue only.
    pub struct LinkCounters;
    /// The values of [`LinkCounters`] at one time.
    pub struct LinkTotals;
    counts {
        /// Associations of paths that were up, and were lost. A reset is a loss.
        losses,
        /// Paths that came up again after a loss.
        reconnects,
        /// Attempts to connect a path that failed, first attempts included.
        failed_connects,
        /// Losses of a path while another one was up, so that commands went on by that one.
        failovers,
        /// Readings of the log that says by which path a namespace is to be reached (ANA), after the first one of an
        /// association.
        ana_changes,
    }
    sums {}
}
