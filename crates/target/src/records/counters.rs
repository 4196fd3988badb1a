//! Counts of each queue's work: one writer each, read by others without locks.

use std::time::Instant;

use raceline_bdev::{LATENCY_BUCKETS, Latencies, OpKind, latency_bucket};
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
        /// The sum of the times in nanoseconds of the read commands completed, from when they came to when their data
        /// were there, by the clock of the core's turns.
        read_ns,
        /// The same of the write commands completed.
        write_ns,
    }
    tables {
        /// Read commands that took longer than the turn in which they came, by their time: see
        /// [`raceline_bdev::LATENCY_BUCKETS`].
        slow_reads: LATENCY_BUCKETS,
        /// The same of write commands.
        slow_writes: LATENCY_BUCKETS,
    }
    sums {
        /// Read commands completed.
        reads = reads_at_once + reads_at_hand + reads_in_place + reads_copied + reads_buffered,
        /// Write commands completed.
        writes = writes_at_once + writes_staged + writes_in_blocks + writes_buffered + writes_direct,
    }
}

raceline_reactor::counters! {
    /// What one iSCSI session has done. Only its core writes it; alone on its cache lines.
    pub(crate) struct SessionCounters;
    /// A copy of the counts of one iSCSI session, or the sum over several.
    pub struct IscsiTotals;
    counts {
        /// SCSI commands received.
        commands,
        /// Commands completed that have read blocks.
        reads,
        /// Commands completed that have written blocks with data of the initiator.
        writes,
        /// Bytes of blocks sent to the initiator.
        read_bytes,
        /// Bytes of blocks that the initiator has sent.
        written_bytes,
        /// Commands that ended with another status than GOOD. Unit attentions are not among them.
        errors,
    }
    sums {}
}

impl SessionCounters {
    /// A command that reads blocks has completed.
    #[inline]
    pub(crate) fn count_read(&self, bytes: u32) {
        self.reads.add(1);
        self.read_bytes.add(bytes.into());
    }

    /// A command that writes blocks has completed.
    #[inline]
    pub(crate) fn count_write(&self, bytes: u32) {
        self.writes.add(1);
        self.written_bytes.add(bytes.into());
    }
}

impl QueueCounters {
    /// A read or a write that was counted as completed had come at `came`; `None`: it was answered at once.
    #[inline]
    pub(crate) fn count_time(&self, kind: OpKind, came: Option<Instant>, now: Instant) {
        let Some(came) = came.filter(|came| *came != now) else { return };
        let time = now.saturating_duration_since(came).as_nanos();
        let ns = u64::try_from(time).unwrap_or(u64::MAX);
        let (sum, rows) = match kind {
            OpKind::Write => (&self.write_ns, &self.slow_writes),
            _ => (&self.read_ns, &self.slow_reads),
        };
        sum.add(ns);
        rows[latency_bucket(ns)].add(1);
    }
}

impl QueueTotals {
    /// How long the read commands completed took, and the write commands.
    #[must_use]
    pub fn latencies(&self) -> [Latencies; 2] {
        [
            Latencies::new(self.slow_reads, self.reads, self.read_ns),
            Latencies::new(self.slow_writes, self.writes, self.write_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn commands_of_the_same_turn_take_no_time() {
        let counters = QueueCounters::default();
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        for (kind, came, us) in [
            (OpKind::Read, Some(start), 0),
            (OpKind::Read, None, 500),
            (OpKind::Read, Some(start), 10),
            (OpKind::Read, Some(at(5)), 10),
            (OpKind::Write, Some(start), 20),
            (OpKind::Write, Some(start), 1000),
        ] {
            match kind {
                OpKind::Read => counters.reads_buffered.add(1),
                _ => counters.writes_direct.add(1),
            }
            counters.count_time(kind, came, at(us));
        }
        let mut totals = counters.totals();
        let [reads, writes] = totals.latencies();
        // The borders are 7.6, 15.3 and 30.5 us, and 0.98 and 1.95 ms.
        assert_eq!((reads.buckets[0], reads.buckets[1], reads.sum_ns), (3, 1, 15_000));
        assert_eq!((writes.buckets[2], writes.buckets[8], writes.sum_ns), (1, 1, 1_020_000));
        assert_eq!(writes.buckets.iter().sum::<u64>(), 2);
        // Queues are added up, and what was before is taken away.
        let before = totals;
        totals.add(&before);
        assert_eq!(totals.latencies()[1].buckets[8], 2);
        assert_eq!(totals.since(&before).latencies(), before.latencies());
    }
}
