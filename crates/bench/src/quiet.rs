//! Whether a machine was quiet: what others used of its processors (proc(5), /proc/stat).

use std::time::{Duration, Instant};

use crate::cpu::CpuTime;

/// Other processes may use so much, in percent of all cores.
pub(crate) const FOREIGN_PERCENT_MAX: f64 = 5.0;
/// The hypervisor may give so much to others.
pub(crate) const STOLEN_PERCENT_MAX: f64 = 1.0;

/// Units of /proc/stat.
const TICK: Duration = Duration::from_millis(10);
/// The columns of the line `cpu`, after the name: user, nice, system; and steal.
const BUSY: std::ops::Range<usize> = 0..3;
const STEAL: usize = 7;

/// What has been used of a machine's processors so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    at: Instant,
    total: Totals,
    own: CpuTime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    cores: u32,
    /// Of processes; soft interrupts are not, also not in the time of a process.
    busy: Duration,
    stolen: Duration,
}

impl Machine {
    /// Looks now; everything is zero where /proc is not mounted.
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self { at: Instant::now(), total: Totals::parse(&stat), own: CpuTime::now() }
    }

    /// What other processes used since `earlier`, and what was stolen, in percent of all cores.
    pub(crate) fn since(&self, earlier: &Self) -> (f64, f64) {
        let all = self.total.cores * self.at.duration_since(earlier.at);
        let own = self.own.since(earlier.own);
        let busy = self.total.busy.saturating_sub(earlier.total.busy);
        let foreign = busy.saturating_sub(own.user + own.system);
        let stolen = self.total.stolen.saturating_sub(earlier.total.stolen);
        let percent = |time: Duration| {
            if all.is_zero() { 0.0 } else { 100.0 * time.as_secs_f64() / all.as_secs_f64() }
        };
        (percent(foreign), percent(stolen))
    }
}

impl Totals {
    fn parse(stat: &str) -> Self {
        let mut totals = Self::default();
        for line in stat.lines() {
            let Some(rest) = line.strip_prefix("cpu") else { break };
            let Some(columns) = rest.strip_prefix(' ') else {
                totals.cores += 1;
                continue;
            };
            let ticks = columns.split_ascii_whitespace().map(|ticks| ticks.parse().unwrap_or(0));
            let times: Vec<Duration> = ticks.map(|ticks: u32| ticks * TICK).collect();
            totals.busy = times.get(BUSY).into_iter().flatten().sum();
            totals.stolen = times.get(STEAL).copied().unwrap_or_default();
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 10 50 600 8 0 18 4 0 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 1 2\n";

    #[test]
    fn columns_and_cores_are_found() {
        let totals = Totals::parse(STAT);
        assert_eq!(totals.cores, 2);
        assert_eq!((totals.busy.as_millis(), totals.stolen.as_millis()), (1600, 40));
        assert_eq!(Totals::parse(""), Totals::default());
    }

    #[test]
    fn what_is_ours_is_not_foreign() {
        let own = |ms| CpuTime { user: Duration::from_millis(ms), system: Duration::ZERO };
        let earlier = Machine { at: Instant::now(), total: Totals::parse(STAT), own: own(100) };
        let mut later = earlier;
        later.at += Duration::from_secs(1);
        later.total.busy += Duration::from_millis(1300);
        later.total.stolen += Duration::from_millis(20);
        later.own = own(1200);
        // 1300 ms of all, 1100 of them ours, in 2 s of two cores.
        let (foreign, stolen) = later.since(&earlier);
        assert!((foreign - 10.0).abs() < 0.01 && (stolen - 1.0).abs() < 0.01, "{foreign} {stolen}");
        assert_eq!(earlier.since(&earlier), (0.0, 0.0));
    }
}
