//! The work and the costs of a target in this process, from a moment on.

use raceline_bench::cost::{Cost, Counts, Meter};
use raceline_target::{QueueTotals, Target};

/// Counters from its start on.
pub(crate) struct Tally {
    ios: u64,
    counts: Counts,
    meter: Meter,
}

impl Tally {
    /// Starts to count the work of `target` and the usage of this process; `cores` are the target's cores.
    pub(crate) fn start(target: &Target, cores: &[usize]) -> Self {
        let (ios, counts) = work_of(target);
        Self { ios, counts, meter: Meter::start(cores) }
    }

    /// The cost of the commands since the start.
    pub(crate) fn cost(&mut self, target: &Target) -> Cost {
        let usage = self.meter.usage();
        let (ios, counts) = work_of(target);
        Cost { ios: ios.saturating_sub(self.ios), usage, counts: counts.since(self.counts) }
    }
}

/// The number of commands that have transferred data, and the counts of all work.
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
