//! What a target of this process does and costs, from a moment on.

use raceline_bench::cost::{Cost, Counts, Meter};
use raceline_target::{QueueTotals, Target};

/// Counts from its start on.
pub(crate) struct Tally {
    ios: u64,
    counts: Counts,
    meter: Meter,
}

impl Tally {
    /// Starts to count what `target` does and this process uses; `cores` are those it is bound to.
    pub(crate) fn start(target: &Target, cores: &[usize]) -> Self {
        let (ios, counts) = work_of(target);
        Self { ios, counts, meter: Meter::start(cores) }
    }

    /// What the commands since the start have cost.
    pub(crate) fn cost(&mut self, target: &Target) -> Cost {
        let usage = self.meter.usage();
        let (ios, counts) = work_of(target);
        Cost { ios: ios.saturating_sub(self.ios), usage, counts: counts.since(self.counts) }
    }
}

/// Commands that have transferred data, and all that was done for this and for the rest.
pub(crate) fn work_of(target: &Target) -> (u64, Counts) {
    let stats = target.stats();
    let mut queues = QueueTotals::default();
    stats.subsystems.iter().for_each(|(_, totals)| queues.add(totals));
    let counts = Counts {
        system_calls: stats.loops.iter().map(|core| core.io.system_calls).sum(),
        receives: queues.receives,
        sends: queues.sends,
        pdus_received: queues.pdus_received,
        pdus_sent: queues.pdus_sent,
        copied_bytes: queues.copied_bytes,
        digest_retries: 0,
    };
    (queues.reads + queues.writes, counts)
}
