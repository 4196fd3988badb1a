//! The results of a run: as a table for users, as JSON in the layout of fio for programs.

mod json;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::acceleration::Acceleration;
use crate::cost::Cost;
use crate::cpu::CpuTime;
use crate::histogram::Latencies;

/// A finished run: jobs that ran at the same time form a stage, and stages follow each other.
#[derive(Clone, Debug)]
pub struct Report {
    /// Writes before the first stage, if they were requested.
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
    /// The jobs, at least one; jobs that are reported together count as one.
    pub jobs: Vec<JobReport>,
    /// Time over which CPU time and loops were measured.
    pub window: Duration,
    /// CPU time of this process during that time.
    pub cpu: CpuTime,
    /// Counts of the cores' loops during that time.
    pub loops: LoopCounters,
    /// Cost of the recorded commands for this process.
    pub cost: Cost,
    /// Work of the acceleration framework in the whole stage.
    pub acceleration: Acceleration,
    /// How often a lost association or session was made again in the whole stage.
    pub reconnects: u64,
}

/// The records of a job, or of a group of jobs.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// A short description of its work.
    pub title: String,
    /// The group that it belongs to.
    pub group: u32,
    /// The options of its run.
    pub options: BTreeMap<String, String>,
    /// The percentiles to report in JSON; the table has its own unless these were requested.
    pub percentiles: Option<Vec<f64>>,
    /// Duration of the recording.
    pub measured: Duration,
    /// Reads.
    pub read: Side,
    /// Writes.
    pub write: Side,
    /// Commands that were due (open loop) and were not issued before the end.
    pub missed: u64,
    /// The longest latency of a command that was under way at the end, and so is not among the latencies
    /// (closed loop).
    pub beyond_end: Duration,
    /// Bytes that were read and found right, and the number of reads; `None` if nothing was verified.
    pub verified: Option<Verified>,
    /// The reason of its failure.
    pub error: Option<String>,
}

/// The amount of verified data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of reads.
    pub ios: u64,
    /// Bytes of these reads.
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
    /// The side of a job with these latencies and commands of this size.
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
    /// Adds a job that ran at the same time.
    pub fn merge(&mut self, other: &Self) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.measured = self.measured.max(other.measured);
        self.missed += other.missed;
        self.beyond_end = self.beyond_end.max(other.beyond_end);
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

/// Counts of the cores' loops: how well commands share turns, and how often cores sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoopCounters {
    /// Turns with work; a turn receives and sends at most once per connection.
    pub busy_turns: u64,
    /// Turns that were allowed to sleep in the kernel.
    pub waits: u64,
}

impl LoopCounters {
    /// Adds the counts of another core.
    pub fn add(&mut self, other: Self) {
        self.busy_turns += other.busy_turns;
        self.waits += other.waits;
    }

    /// The counts since `earlier`.
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

/// A number with separated thousands: `1,234,567`.
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

/// A number of bytes, exact if that is short, otherwise with three digits: `64 MiB`, `1.50 GiB`.
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
