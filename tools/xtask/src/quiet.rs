//! Whether a run counts: the CPU time of other processes, the time that the hypervisor took (proc(5)), and
//! whether the cores were apart.

use std::cmp::Ordering;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::cli::cpu_ticks;
use crate::distance::Cores;

/// Most CPU time of other processes for a run to count, in percent of one core.
const OTHERS_PERCENT_MAX: f64 = 5.0;
/// Most CPU time that the hypervisor may give to other guests, in percent of one core.
const STOLEN_PERCENT_MAX: f64 = 2.0;
/// How many runs may be rejected before a measurement is given up.
const REJECTED_MAX: u32 = 10;
/// Clock ticks per second in /proc.
const TICKS_PER_S: f64 = 100.0;
/// Columns of the line `cpu` after its name: user, nice, system; and steal. Interrupts are left out: they
/// belong to no process, and include the measured processes' own traffic.
const BUSY: std::ops::Range<usize> = 0..3;
const STEAL: usize = 7;
/// Offsets of cutime and cstime, of children that were waited for, after the name in a `stat`.
const WAITED_FOR: std::ops::Range<usize> = 13..15;

/// CPU time at one moment, in ticks.
pub(crate) struct Machine {
    at: Instant,
    busy: u64,
    stolen: u64,
    own: u64,
}

/// The disturbances of a run; CPU in percent of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Disturbance {
    /// Used by other processes.
    pub(crate) others_percent: f64,
    /// Given to other guests by the hypervisor.
    pub(crate) stolen_percent: f64,
    /// Round trip of a cache line between the cores of target and host: the longer of the
    /// times before and after the run. Absent where it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) core_round_trip_ns: Option<u64>,
    /// Whether that round trip was far longer than at other times.
    pub(crate) apart: bool,
}

impl Machine {
    /// Reads the present times; `running` are children that go on, all others must have been waited for.
    pub(crate) fn now(running: &[u32]) -> Result<Self> {
        let (busy, stolen) = totals(&std::fs::read_to_string("/proc/stat")?)?;
        let this = std::process::id();
        let mut own = cpu_ticks(this)?;
        own += waited_for(&std::fs::read_to_string(format!("/proc/{this}/stat"))?)?;
        for &child in running {
            own += cpu_ticks(child)?;
        }
        Ok(Self { at: Instant::now(), busy, stolen, own })
    }

    /// The disturbances since `before`.
    pub(crate) fn since(&self, before: &Self) -> Result<Disturbance> {
        let time = self.at.duration_since(before.at);
        let own = self.own.saturating_sub(before.own);
        let others = self.busy.saturating_sub(before.busy).saturating_sub(own);
        Ok(Disturbance {
            others_percent: percent(others, time)?,
            stolen_percent: percent(self.stolen.saturating_sub(before.stolen), time)?,
            ..Disturbance::default()
        })
    }
}

impl Disturbance {
    /// Whether the run does not count.
    pub(crate) fn is_too_much(&self) -> bool {
        self.apart
            || self.others_percent > OTHERS_PERCENT_MAX
            || self.stolen_percent > STOLEN_PERCENT_MAX
    }

    /// The worse one is greater. The distance of cores comes first, as it changes figures most.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let percent = |found: &Self| found.others_percent + found.stolen_percent;
        self.apart.cmp(&other.apart).then(percent(self).total_cmp(&percent(other)))
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { others_percent, stolen_percent, .. } = self;
        write!(
            f,
            "others used {others_percent:.1} % of a core, {stolen_percent:.1} % were stolen"
        )?;
        match self.core_round_trip_ns {
            Some(ns) if self.apart => write!(f, ", the cores were {ns} ns apart"),
            _ => Ok(()),
        }
    }
}

/// Ticks in percent of one core.
pub(crate) fn percent(ticks: u64, time: Duration) -> Result<f64> {
    Ok(f64::from(u32::try_from(ticks)?) * 100.0 / (time.as_secs_f64() * TICKS_PER_S))
}

/// Runs until a run was not disturbed; also gives how many were rejected. `noisy` accepts any run.
pub(crate) fn undisturbed<T>(
    what: &str,
    noisy: bool,
    mut run: impl FnMut() -> Result<(T, Disturbance)>,
) -> Result<(T, u32)> {
    for rejected in 0..=REJECTED_MAX {
        let (value, found) = run()?;
        if noisy || !found.is_too_much() {
            return Ok((value, rejected));
        }
        eprintln!("rejected: {what}: {found}");
    }
    bail!(
        "{what}: this machine is too busy to measure, or its cores move too often: end what else runs, or give --noisy"
    );
}

/// The same for a run in which only `running` and children that it
/// waits for belong to the measurement.
pub(crate) fn watched<T>(
    what: &str,
    noisy: bool,
    running: &[u32],
    mut run: impl FnMut() -> Result<T>,
) -> Result<(T, u32)> {
    undisturbed(what, noisy, || counted(running, &mut run))
}

/// The same for throughput and latencies of target and host, which also need near cores.
pub(crate) fn watched_near<T>(
    what: &str,
    cores: &Cores<'_>,
    noisy: bool,
    running: &[u32],
    mut run: impl FnMut() -> Result<T>,
) -> Result<(T, u32)> {
    undisturbed(what, noisy, || cores.around(|| counted(running, &mut run)))
}

/// Runs once.
fn counted<T>(running: &[u32], run: impl FnOnce() -> Result<T>) -> Result<(T, Disturbance)> {
    let before = Machine::now(running)?;
    let value = run()?;
    Ok((value, Machine::now(running)?.since(&before)?))
}

/// Ticks of all processes, and stolen ones.
fn totals(stat: &str) -> Result<(u64, u64)> {
    let columns = stat.lines().next().unwrap_or("").split_whitespace().skip(1).map(str::parse);
    let columns: Vec<u64> = columns.collect::<Result<_, _>>().context("/proc/stat")?;
    ensure!(columns.len() > STEAL, "/proc/stat is short");
    Ok((columns[BUSY].iter().sum(), columns[STEAL]))
}

/// Ticks of children that have been waited for.
fn waited_for(stat: &str) -> Result<u64> {
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    ensure!(fields.len() > WAITED_FOR.end, "/proc/PID/stat is short");
    fields[WAITED_FOR].iter().map(|field| Ok(field.parse::<u64>()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found() {
        let stat = "cpu  100 10 50 600 8 0 18 4 0 0\ncpu0 1 2 3 4\n";
        assert_eq!(totals(stat).unwrap(), (160, 4));
        assert!(totals("cpu 1 2 3\n").is_err());
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 25 7 8 20 0 1 0 100";
        assert_eq!(waited_for(stat).unwrap(), 15);
    }

    #[test]
    fn only_what_is_not_ours_disturbs() {
        let at = Instant::now();
        let before = Machine { at, busy: 1000, stolen: 3, own: 0 };
        let at = at + Duration::from_secs(1);
        let ours = Machine { at, busy: 1190, stolen: 3, own: 190 };
        assert!(!ours.since(&before).unwrap().is_too_much());
        let theirs = Machine { at, busy: 1190, stolen: 3, own: 180 };
        assert!(theirs.since(&before).unwrap().is_too_much());
        let stolen = Machine { at, busy: 1190, stolen: 6, own: 190 };
        assert!(stolen.since(&before).unwrap().is_too_much());
    }

    #[test]
    fn disturbed_runs_are_repeated_and_given_up_in_the_end() {
        let found = |others_percent| Disturbance { others_percent, ..Disturbance::default() };
        let mut runs = [9.0, 9.0, 1.0].into_iter();
        let good = undisturbed("x", false, || Ok((5, found(runs.next().unwrap())))).unwrap();
        assert_eq!(good, (5, 2));
        assert_eq!(undisturbed("x", true, || Ok((5, found(9.0)))).unwrap(), (5, 0));
        assert!(undisturbed("x", false, || Ok((5, found(9.0)))).is_err());
    }

    #[test]
    fn cores_that_are_apart_are_worse_than_others_that_work() {
        let busy = Disturbance { others_percent: 90.0, ..Disturbance::default() };
        let core_round_trip_ns = Some(310);
        let apart = Disturbance { core_round_trip_ns, apart: true, ..Disturbance::default() };
        assert!(apart.is_too_much() && apart.compare(&busy).is_gt());
        assert!(apart.to_string().ends_with("the cores were 310 ns apart"), "{apart}");
        assert!(!busy.to_string().contains("apart"), "{busy}");
    }
}
