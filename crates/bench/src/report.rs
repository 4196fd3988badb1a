//! How a run went: for people as a table, for programs as JSON laid out as fio's.

mod json;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::acceleration::Acceleration;
use crate::cost::Cost;
use crate::cpu::CpuTime;
use crate::histogram::Latencies;

/// Everything about a finished run: what ran at the same time is a stage, and stages follow each
/// other.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was written before the first stage, if that was asked for.
    pub precondition: Vec<Precondition>,
    /// The stages, in order.
    pub stages: Vec<StageReport>,
}

/// One pass over the namespaces before the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Precondition {
    /// The workload's name.
    pub rw: &'static str,
    /// Bytes per command.
    pub io_bytes: u32,
    /// Bytes written.
    pub bytes: u64,
    /// How long it took.
    pub millis: u64,
}

/// Jobs that ran at the same time.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// The jobs, at least one; those that are reported together are one.
    pub jobs: Vec<JobReport>,
    /// How long CPU time and loops were looked at.
    pub window: Duration,
    /// CPU time that this process used meanwhile.
    pub cpu: CpuTime,
    /// What the loops of the cores did meanwhile.
    pub loops: LoopCounters,
    /// What the commands that were recorded cost this process.
    pub cost: Cost,
    /// What was done by the acceleration framework in the whole stage.
    pub acceleration: Acceleration,
}

/// What a job recorded, or a group of them.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// What it did, in a few words.
    pub title: String,
    /// The group that it belongs to.
    pub group: u32,
    /// The options it was run with.
    pub options: BTreeMap<String, String>,
    /// The percentiles to report in JSON; the table has its own unless they were asked for.
    pub percentiles: Option<Vec<f64>>,
    /// How long was recorded.
    pub measured: Duration,
    /// Reads.
    pub read: Side,
    /// Writes.
    pub write: Side,
    /// Commands that were due (open loop) and were not issued before the end.
    pub missed: u64,
    /// Bytes read and found right, and in how many reads; `None` when nothing was verified.
    pub verified: Option<Verified>,
    /// Why it failed.
    pub error: Option<String>,
}

/// What was read back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Reads.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads or writes of a job.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Latencies.
    pub latencies: Latencies,
    /// Bytes moved.
    pub bytes: u64,
}

impl Side {
    /// So many commands of this size.
    #[must_use]
    pub fn new(latencies: Latencies, io_bytes: u32) -> Self {
        let bytes = latencies.count().saturating_mul(u64::from(io_bytes));
        Self { latencies, bytes }
    }

    fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.bytes += other.bytes;
    }
}

impl JobReport {
    /// Adds a job that ran beside it.
    pub fn merge(&mut self, other: &Self) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.measured = self.measured.max(other.measured);
        self.missed += other.missed;
        if let Some(more) = other.verified {
            let verified = self.verified.get_or_insert_default();
            verified.ios += more.ios;
            verified.bytes += more.bytes;
        }
        if self.error.is_none() {
            self.error.clone_from(&other.error);
        }
    }

    /// Commands per second of one side.
    #[must_use]
    pub fn iops(&self, side: &Side) -> f64 {
        if self.measured.is_zero() {
            return 0.0;
        }
        side.latencies.count() as f64 / self.measured.as_secs_f64()
    }
}

/// What the loops of the cores did: how well commands share turns, and how often cores sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoopCounters {
    /// Turns that found work; one receives and sends at most once per connection.
    pub busy_turns: u64,
    /// Turns that were allowed to sleep in the kernel.
    pub waits: u64,
}

impl LoopCounters {
    /// Adds another core's.
    pub fn add(&mut self, other: Self) {
        self.busy_turns += other.busy_turns;
        self.waits += other.waits;
    }

    /// What happened since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            busy_turns: self.busy_turns.saturating_sub(earlier.busy_turns),
            waits: self.waits.saturating_sub(earlier.waits),
        }
    }
}

/// `count` per second over `time`, rounded to the nearest.
fn per_second(count: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos();
    if nanos == 0 {
        return 0;
    }
    let rounded = (u128::from(count) * 1_000_000_000 + nanos / 2) / nanos;
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

/// A number with its thousands apart: `1,234,567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes, exact if that is short, else with three digits: `64 MiB`, `1.50 GiB`.
#[must_use]
pub fn binary_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let exact = value < 1024.0 && value.fract() == 0.0;
    let number = if exact { format!("{value:.0}") } else { three_digits(value) };
    format!("{number} {}", UNITS[unit])
}

/// A time with three digits: `12.3us`.
#[must_use]
pub fn latency_text(ns: f64) -> String {
    const UNITS: [&str; 3] = ["us", "ms", "s"];
    if ns < 999.5 {
        return format!("{ns:.0}ns");
    }
    let mut value = ns / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{}{}", three_digits(value), UNITS[unit])
}

pub(crate) fn three_digits(value: f64) -> String {
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests;
