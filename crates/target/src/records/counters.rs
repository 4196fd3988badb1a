//! Counts of each queue's work: one writer each, read by others without locks.

use raceline_reactor::stats::Counter;

/// How the iSCSI commands of a core have waited for limits. Only the core writes it.
#[derive(Debug, Default)]
pub(crate) struct LimitWaits {
    /// Times that a command had to wait.
    pub(crate) count: Counter,
    /// The sum of the times in microseconds for which they were to wait.
    pub(crate) us: Counter,
}

raceline_reactor::counters! {
    /// What one queue has done. Only its core writes it; alone on its cache lines.
    pub(crate) struct QueueCounters;
    /// A copy of the counts of one queue, or the sum over several.
    pub struct QueueTotals;
    counts {
        /// Command capsules received.
        commands,
        /// Read commands completed with their header: their data were at hand, and they took no slot.
        reads_at_once,
        /// Read commands completed whose data were at hand, and that took a slot.
        reads_at_hand,
        /// Read commands completed out of the device's own memory, after a request to the device.
        reads_in_place,
        /// Read commands completed out of a copy of the device's memory that an engine made.
        reads_copied,
        /// Read commands completed out of an I/O buffer.
        reads_buffered,
        /// Write commands completed with their header: the device took their data, and they took no slot.
        writes_at_once,
        /// Write commands completed whose data the device took from staging memory, all at once.
        writes_staged,
        /// Write commands completed whose data the device took from staging memory, block by block.
        writes_in_blocks,
        /// Write commands completed whose data went into an I/O buffer by way of staging memory, at least
        /// the data that came with their header.
        writes_buffered,
        /// Write commands completed whose data were kept out of staging memory on their way into an I/O
        /// buffer.
        writes_direct,
        /// Bytes read by the host.
        read_bytes,
        /// Bytes written by the host.
        written_bytes,
        /// Commands completed with an error.
        errors,
        /// Completions with a media error, included in `errors`.
        media_errors,
        /// Data digests that did not match.
        digest_errors,
        /// Receives that brought bytes.
        receives,
        /// Sends.
        sends,
        /// PDUs received, ICReq and TermReq included.
        pdus_received,
        /// PDUs given to sends, ICResp and TermReq included.
        pdus_sent,
        /// Bytes of data that were copied in user space: from where they were received to their I/O
        /// buffer, and between buffers and a device in memory.
        copied_bytes,
        /// I/O buffers taken from the small ones of the core.
        small_buffers,
        /// I/O buffers taken from the large ones of the core.
        large_buffers,
        /// Times a command had to wait for an I/O buffer.
        buffer_waits,
        /// Times a command had to wait for which a small buffer would do.
        small_buffer_waits,
        /// Times a command had to wait because of a limit of its namespace, host or subsystem.
        throttled,
        /// The sum of the times in microseconds for which commands were to wait because of such a limit.
        throttled_us,
        /// Time with at least one command outstanding in microseconds, up to the last time that no
        /// command was outstanding.
        busy_us,
    }
    sums {
        /// Read commands completed.
        reads = reads_at_once + reads_at_hand + reads_in_place + reads_copied + reads_buffered,
        /// Write commands completed.
        writes = writes_at_once + writes_staged + writes_in_blocks + writes_buffered + writes_direct,
    }
}
