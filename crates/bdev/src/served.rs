//! What a disk that this process serves has done for those who use it: counters of each core, which readers add up.

use std::sync::{Arc, Mutex, PoisonError};

use raceline_reactor::{CoreLoop, CoreWatch};

use crate::OpKind;

raceline_reactor::counters! {
    /// What one core has done for a disk. Only that core writes it; alone on its cache lines.
    pub struct DiskCounters;
    /// A copy of the counts of one core, or the sum over several.
    pub struct DiskTotals;
    counts {
        /// Reads that succeeded.
        reads,
        /// Writes that succeeded.
        writes,
        /// Flushes that succeeded.
        flushes,
        /// Discards (TRIM) that succeeded.
        discards,
        /// Writes of zeroes that succeeded.
        zeroes,
        /// Bytes read.
        read_bytes,
        /// Bytes written.
        written_bytes,
        /// Bytes discarded.
        discarded_bytes,
        /// Bytes zeroed.
        zeroed_bytes,
        /// Reads and writes whose data this process did not copy.
        uncopied,
        /// Requests that failed or were refused.
        errors,
        /// Connections or queues that ever began.
        queues_ever,
        /// Connections or queues that have ended.
        queues_ended,
    }
    sums {}
}

impl DiskCounters {
    /// A request has ended. What is neither read, written, flushed, discarded nor zeroed counts when it fails.
    #[inline]
    pub fn count(&self, kind: OpKind, bytes: u64, succeeded: bool) {
        if !succeeded {
            return self.errors.add(1);
        }
        match kind {
            OpKind::Read => {
                self.reads.add(1);
                self.read_bytes.add(bytes);
            }
            OpKind::Write => {
                self.writes.add(1);
                self.written_bytes.add(bytes);
            }
            OpKind::Flush => self.flushes.add(1),
            OpKind::Deallocate => {
                self.discards.add(1);
                self.discarded_bytes.add(bytes);
            }
            OpKind::WriteZeroes => {
                self.zeroes.add(1);
                self.zeroed_bytes.add(bytes);
            }
            OpKind::Copy | OpKind::Find | OpKind::WriteUncorrectable => {}
        }
    }

    /// A read or write that succeeded was one whose data this process did not copy.
    #[inline]
    pub fn count_uncopied(&self) {
        self.uncopied.add(1);
    }

    /// A connection or a queue begins.
    pub fn queue_began(&self) {
        self.queues_ever.add(1);
    }

    /// A connection or a queue has ended.
    pub fn queue_ended(&self) {
        self.queues_ended.add(1);
    }
}

impl DiskTotals {
    /// Connections or queues that there are now.
    #[must_use]
    pub fn queues(&self) -> u64 {
        self.queues_ever.saturating_sub(self.queues_ended)
    }
}

/// What a disk and its cores have done, for a thread that has not the disk itself. It outlives the disk.
#[derive(Clone, Debug)]
pub struct DiskFigures {
    stats: Arc<DiskStats>,
    cores: CoreWatch,
}

impl DiskFigures {
    /// The figures of a disk with these counts and cores.
    #[must_use]
    pub fn new(stats: &Arc<DiskStats>, cores: CoreWatch) -> Self {
        Self { stats: Arc::clone(stats), cores }
    }

    /// What the disk has done for its users.
    #[must_use]
    pub fn totals(&self) -> DiskTotals {
        self.stats.totals()
    }

    /// What the loops of its cores have done.
    #[must_use]
    pub fn core_loops(&self) -> Vec<CoreLoop> {
        self.cores.loops()
    }
}

/// The counts of a disk. Locked when a core begins and when a caller reads, never for a request.
#[derive(Debug, Default)]
pub struct DiskStats {
    cores: Mutex<Vec<Arc<DiskCounters>>>,
}

impl DiskStats {
    /// One more core that counts.
    #[must_use]
    pub fn core(&self) -> Arc<DiskCounters> {
        let core = Arc::<DiskCounters>::default();
        self.cores.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&core));
        core
    }

    /// What all cores have done since the disk was made.
    #[must_use]
    pub fn totals(&self) -> DiskTotals {
        let mut totals = DiskTotals::default();
        let cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.iter().for_each(|core| totals.add(&core.totals()));
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_cores_are_counted_by_their_kind() {
        let stats = DiskStats::default();
        let cores = [stats.core(), stats.core()];
        for core in &cores {
            core.queue_began();
            for (kind, bytes) in [
                (OpKind::Read, 512),
                (OpKind::Write, 4096),
                (OpKind::Flush, 0),
                (OpKind::Deallocate, 8192),
                (OpKind::WriteZeroes, 1024),
                (OpKind::Find, 77),
            ] {
                core.count(kind, bytes, true);
            }
            core.count_uncopied();
            core.count(OpKind::Read, 512, false);
            core.count(OpKind::Find, 512, false);
        }
        cores[0].queue_ended();
        let totals = stats.totals();
        let DiskTotals { reads, writes, flushes, discards, zeroes, errors, .. } = totals;
        assert_eq!([reads, writes, flushes, discards, zeroes, errors], [2, 2, 2, 2, 2, 4]);
        assert_eq!((totals.read_bytes, totals.written_bytes), (1024, 8192));
        assert_eq!((totals.discarded_bytes, totals.zeroed_bytes), (16_384, 2048));
        assert_eq!(totals.uncopied, 2);
        assert_eq!((totals.queues(), totals.queues_ever), (1, 2));
    }
}
