//! Whether a machine was quiet: other users' share of its processors (proc(5), /proc/stat).

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use crate::cpu::CpuTime;

/// Largest usage of other processes in a quiet run, in percent of all cores.
const FOREIGN_PERCENT_MAX: f64 = 5.0;
/// Largest time that the hypervisor gives to others in a quiet run, in percent of all cores.
const STOLEN_PERCENT_MAX: f64 = 1.0;

/// Units of /proc/stat.
const TICK: Duration = Duration::from_millis(10);
/// The columns of the line `cpu`, after the name: user, nice, system; and steal.
const BUSY: std::ops::Range<usize> = 0..3;
const STEAL: usize = 7;

/// The disturbances of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Usage of other processes during the run, in percent of all cores.
    pub foreign_percent: f64,
    /// Time that the hypervisor gave to others during the run, in percent of all cores.
    pub stolen_percent: f64,
    /// The cores of the two sides were further apart than at other times ([`crate::distance`]).
    pub apart: bool,
}

impl Disturbance {
    /// Whether the disturbance is large enough to distort the figures.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.apart
            || self.foreign_percent > FOREIGN_PERCENT_MAX
            || self.stolen_percent > STOLEN_PERCENT_MAX
    }

    /// Orders by severity, the worst last: the distance of cores changes figures most.
    fn compare(&self, other: &Self) -> Ordering {
        let percent = |found: &Self| found.foreign_percent + found.stolen_percent;
        self.apart.cmp(&other.apart).then(percent(self).total_cmp(&percent(other)))
    }
}

/// Divides runs into those that count and the others: the quiet ones count, then the least disturbed of the
/// rest, until there are `wanted` of them.
pub(crate) fn choose<T>(
    runs: Vec<T>,
    wanted: usize,
    found: impl Fn(&T) -> Disturbance,
) -> (Vec<T>, Vec<T>) {
    let (mut counted, mut rejected): (Vec<T>, Vec<T>) =
        runs.into_iter().partition(|run| !found(run).is_too_much());
    rejected.sort_by(|a, b| found(a).compare(&found(b)));
    let missing = wanted.saturating_sub(counted.len()).min(rejected.len());
    counted.extend(rejected.drain(..missing));
    (counted, rejected)
}

/// The processor usage of a machine so far.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    at: Instant,
    total: Totals,
    own: CpuTime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    cores: u32,
    /// Time of processes, without soft interrupts; the time of a process excludes them as well.
    busy: Duration,
    stolen: Duration,
}

impl Machine {
    /// Reads the usage now; all values are zero where /proc is not mounted.
    #[must_use]
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self { at: Instant::now(), total: Totals::parse(&stat), own: CpuTime::now() }
    }

    /// Usage of other processes since `earlier`, and stolen time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Disturbance {
        let all = self.total.cores * self.at.duration_since(earlier.at);
        let own = self.own.since(earlier.own);
        let busy = self.total.busy.saturating_sub(earlier.total.busy);
        let foreign = busy.saturating_sub(own.user + own.system);
        let stolen = self.total.stolen.saturating_sub(earlier.total.stolen);
        let percent = |time: Duration| {
            if all.is_zero() { 0.0 } else { 100.0 * time.as_secs_f64() / all.as_secs_f64() }
        };
        Disturbance {
            foreign_percent: percent(foreign),
            stolen_percent: percent(stolen),
            apart: false,
        }
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
        // 1300 ms in total, 1100 of them ours, in 2 s of two cores.
        let found = later.since(&earlier);
        let Disturbance { foreign_percent, stolen_percent, .. } = found;
        assert!((foreign_percent - 10.0).abs() < 0.01, "{found:?}");
        assert!((stolen_percent - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(earlier.since(&earlier), Disturbance::default());
    }

    #[test]
    fn the_quiet_count_and_then_the_least_disturbed() {
        let used = |foreign_percent| Disturbance { foreign_percent, ..Disturbance::default() };
        let apart = Disturbance { apart: true, ..Disturbance::default() };
        let runs = vec![apart, used(40.0), used(1.0), used(9.0)];
        let chosen = |wanted| choose(runs.clone(), wanted, |found| *found);
        assert_eq!(chosen(1), (vec![used(1.0)], vec![used(9.0), used(40.0), apart]));
        assert_eq!(chosen(2), (vec![used(1.0), used(9.0)], vec![used(40.0), apart]));
        assert_eq!(chosen(9).0, [used(1.0), used(9.0), used(40.0), apart]);
    }
}
