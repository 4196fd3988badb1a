//! What a process used and its loops counted between two times.

use std::time::{Duration, Instant};

use super::{CloneOutcome, StageOutcome};
use crate::cost::{Cost, Counts, Meter, Usage};
use crate::cpu::CpuTime;
use crate::report::LoopCounters;

/// Usage and counts at one time.
#[derive(Clone, Copy, Default)]
pub(super) struct Sample {
    pub(super) cpu: CpuTime,
    pub(super) loops: LoopCounters,
    pub(super) counts: Counts,
}

/// The time in which commands are recorded.
pub(super) struct Window {
    since: Instant,
    begun: Sample,
    meter: Meter,
}

/// Usage and counts of a window.
pub(super) struct Used {
    window: Duration,
    cpu: CpuTime,
    loops: LoopCounters,
    counts: Counts,
    usage: Usage,
}

impl Window {
    pub(super) fn begin(cores: &[usize], begun: Sample) -> Self {
        Self { since: Instant::now(), begun, meter: Meter::start(cores) }
    }

    pub(super) fn end(&mut self, ended: Sample) -> Used {
        Used {
            window: self.since.elapsed(),
            cpu: ended.cpu.since(self.begun.cpu),
            loops: ended.loops.since(self.begun.loops),
            counts: ended.counts.since(self.begun.counts),
            usage: self.meter.usage(),
        }
    }
}

impl Used {
    pub(super) fn outcome(self, clones: Vec<CloneOutcome>) -> StageOutcome {
        let ios = clones.iter().map(|clone| clone.read.count() + clone.write.count()).sum();
        let cost = Cost { ios, usage: self.usage, counts: self.counts };
        StageOutcome {
            clones,
            cpu: self.cpu,
            loops: self.loops,
            cost,
            window: self.window,
            reconnects: 0,
        }
    }
}
