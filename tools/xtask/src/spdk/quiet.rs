//! Whether the machine was quiet during a run: what strangers and the hypervisor took (proc(5)).

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cli::cpu_ticks;

/// Most that other processes may use, in percent of all cores.
const FOREIGN_PERCENT_MAX: f64 = 5.0;
/// Most that the hypervisor may give to others, in percent of all cores.
const STOLEN_PERCENT_MAX: f64 = 1.0;
/// Clock ticks per second in /proc.
const TICKS_PER_S: f64 = 100.0;
/// Columns of the line `cpu` after its name: user, nice, system; and steal.
const BUSY: std::ops::Range<usize> = 0..3;
const STEAL: usize = 7;
/// Where cutime and cstime, of children that were waited for, stand after the name in a `stat`.
const CHILDREN: std::ops::Range<usize> = 13..15;

/// CPU time at one moment, in ticks.
pub(crate) struct Cpu {
    at: Instant,
    busy: u64,
    stolen: u64,
    own: u64,
}

/// What disturbed a run, in percent of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Disturbance {
    /// Used by other processes.
    pub(crate) foreign_percent: f64,
    /// Given to others by the hypervisor.
    pub(crate) stolen_percent: f64,
}

impl Disturbance {
    /// Whether the run does not count.
    pub(crate) fn is_too_much(&self) -> bool {
        self.foreign_percent > FOREIGN_PERCENT_MAX || self.stolen_percent > STOLEN_PERCENT_MAX
    }

    /// Both together.
    pub(crate) fn sum(&self) -> f64 {
        self.foreign_percent + self.stolen_percent
    }
}

impl Cpu {
    /// Looks now; `targets` are children that run, all others must have been waited for.
    pub(crate) fn now(targets: &[u32]) -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let (busy, stolen) = machine(&stat)?;
        let this = std::process::id();
        let own_stat = std::fs::read_to_string(format!("/proc/{this}/stat"))?;
        let mut own = children(&own_stat)? + cpu_ticks(this)?;
        for &target in targets {
            own += cpu_ticks(target)?;
        }
        Ok(Self { at: Instant::now(), busy, stolen, own })
    }

    /// What disturbed since `before`.
    pub(crate) fn since(&self, before: &Self) -> Result<Disturbance> {
        let cores = u32::try_from(std::thread::available_parallelism()?.get())?;
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let all = seconds * TICKS_PER_S * f64::from(cores);
        let percent = |ticks: u64| anyhow::Ok(f64::from(u32::try_from(ticks)?) * 100.0 / all);
        let own = self.own.saturating_sub(before.own);
        let busy = self.busy.saturating_sub(before.busy);
        Ok(Disturbance {
            foreign_percent: percent(busy.saturating_sub(own))?,
            stolen_percent: percent(self.stolen.saturating_sub(before.stolen))?,
        })
    }
}

/// Ticks of all processes, and stolen ones. Interrupts are nobody's.
fn machine(stat: &str) -> Result<(u64, u64)> {
    let line = stat.lines().next().unwrap_or("");
    let columns = line.split_whitespace().skip(1).map(str::parse);
    let columns: Vec<u64> = columns.collect::<Result<_, _>>().context("/proc/stat")?;
    ensure!(columns.len() > STEAL, "/proc/stat is short");
    Ok((columns[BUSY].iter().sum(), columns[STEAL]))
}

/// Ticks of children that have been waited for.
fn children(stat: &str) -> Result<u64> {
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    ensure!(fields.len() > CHILDREN.end, "/proc/PID/stat is short");
    fields[CHILDREN].iter().map(|field| Ok(field.parse::<u64>()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found() {
        let stat = "cpu  100 10 50 600 8 0 18 4 0 0\ncpu0 1 2 3 4\n";
        assert_eq!(machine(stat).unwrap(), (160, 4));
        assert!(machine("cpu 1 2 3\n").is_err());
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 25 7 8 20 0 1 0 100";
        assert_eq!(children(stat).unwrap(), 15);
    }

    #[test]
    fn what_is_ours_does_not_disturb() {
        let cpu = |at, busy, stolen, own| Cpu { at, busy, stolen, own };
        let start = Instant::now();
        let later = start + std::time::Duration::from_secs(1);
        let found = cpu(later, 1190, 3, 190).since(&cpu(start, 1000, 3, 0)).unwrap();
        assert_eq!(found, Disturbance::default());
        let found = cpu(later, 2000, 900, 0).since(&cpu(start, 1000, 3, 0)).unwrap();
        assert!(found.is_too_much() && found.stolen_percent > found.foreign_percent / 2.0);
    }
}
