//! How a run went: for people as a table, for programs as JSON laid out as fio's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::acceleration::Acceleration;
use crate::cost::{Cost, CostPerIo};
use crate::cpu::CpuTime;
use crate::histogram::{Latencies, PERCENTILES};

/// Everything about a finished run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was run, for the title.
    pub name: String,
    /// The options it was run with.
    pub options: BTreeMap<String, String>,
    /// Bytes per command.
    pub io_bytes: u64,
    /// How long was recorded.
    pub measured: Duration,
    /// Latencies of reads.
    pub read: Latencies,
    /// Latencies of writes.
    pub write: Latencies,
    /// CPU time that this process used while it was recorded.
    pub cpu: CpuTime,
    /// What the loops of the cores did while it was recorded.
    pub loops: LoopCounters,
    /// What the commands that were recorded cost this process.
    pub cost: Cost,
    /// What was done by the acceleration framework in the whole run.
    pub acceleration: Acceleration,
    /// Commands that were due (open loop) and were not issued before the end.
    pub missed: u64,
    /// Commands' worth of blocks read and found right; `None` when nothing was verified.
    pub verified: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
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

impl Report {
    /// Commands per second of one side.
    #[must_use]
    pub fn iops(&self, side: &Latencies) -> f64 {
        if self.measured.is_zero() {
            return 0.0;
        }
        side.count() as f64 / self.measured.as_secs_f64()
    }

    /// The report as JSON, ended by a line feed. Latencies count from the submission of a command,
    /// with a rate from when it was due; `lat_ns` and `clat_ns` are therefore the same.
    #[must_use]
    pub fn to_json(&self) -> String {
        let (usr_cpu, sys_cpu) = self.cpu.percent_of(self.measured);
        let job = JobJson {
            jobname: &self.name,
            groupid: 0,
            error: i32::from(self.error.is_some()),
            error_text: self.error.as_deref(),
            elapsed: self.measured.as_secs(),
            job_options: &self.options,
            read: self.side_json(&self.read),
            write: self.side_json(&self.write),
            job_runtime: millis(self.measured),
            usr_cpu,
            sys_cpu,
            missed_ios: self.missed,
            verified_ios: self.verified,
            loops: self.loops,
            cost: self.cost.per_io(),
            acceleration: &self.acceleration,
        };
        let document =
            DocumentJson { version: concat!("raceline-", env!("CARGO_PKG_VERSION")), jobs: [job] };
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The report for people, several lines.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut out = format!("{}\n\n", self.name);
        let _ = writeln!(
            out,
            "{:<7}{:>12}{:>14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "IOPS", "bandwidth", "mean", "p50", "p99", "p99.9", "p99.99", "max"
        );
        for (name, side) in [("read", &self.read), ("write", &self.write)] {
            if side.count() > 0 {
                out.push_str(&self.side_row(name, side));
            }
        }
        if self.read.count() + self.write.count() == 0 {
            out.push_str("nothing completed in the measured time\n");
        }
        let (user, system) = self.cpu.percent_of(self.measured);
        let _ = writeln!(
            out,
            "\nCPU    {user:.1} % user, {system:.1} % system of one core (this process, {:.1} s)",
            self.measured.as_secs_f64()
        );
        self.append_notes(&mut out);
        if self.cost.ios > 0 {
            out.push('\n');
            out.push_str(&self.cost.to_table("this side"));
        }
        if !self.acceleration.is_empty() {
            out.push('\n');
            out.push_str(&self.acceleration.to_table());
        }
        out
    }

    fn append_notes(&self, out: &mut String) {
        let commands = self.read.count() + self.write.count();
        if commands > 0 && self.loops.busy_turns > 0 {
            let _ = writeln!(
                out,
                "loop   {:.2} commands per turn, {:.2} sleeps per command",
                commands as f64 / self.loops.busy_turns as f64,
                self.loops.waits as f64 / commands as f64
            );
        }
        if self.missed > 0 {
            let _ = writeln!(
                out,
                "late   {} commands were due and not issued in time: the rate is more than the target serves",
                grouped(self.missed)
            );
        }
        if let Some(verified) = self.verified {
            let bytes = verified.saturating_mul(self.io_bytes);
            let _ = writeln!(
                out,
                "verify {} in {} reads compared, all as written",
                binary_bytes(bytes),
                grouped(verified)
            );
        }
    }

    fn side_row(&self, name: &str, side: &Latencies) -> String {
        let bytes = side.count().saturating_mul(self.io_bytes);
        let bandwidth = per_second(bytes, self.measured);
        let percentile = |percentile| latency_text(side.percentile_ns(percentile) as f64);
        format!(
            "{name:<7}{:>12}{:>14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
            grouped(per_second(side.count(), self.measured)),
            format!("{}/s", binary_bytes(bandwidth)),
            latency_text(side.mean_ns()),
            percentile(50.0),
            percentile(99.0),
            percentile(99.9),
            percentile(99.99),
            latency_text(side.max_ns() as f64)
        )
    }

    fn side_json(&self, side: &Latencies) -> SideJson {
        let io_bytes = side.count().saturating_mul(self.io_bytes);
        let bw_bytes = per_second(io_bytes, self.measured);
        let latency = |percentiles: bool| LatencyJson {
            min: side.min_ns(),
            max: side.max_ns(),
            mean: side.mean_ns(),
            stddev: side.stddev_ns(),
            n: side.count(),
            percentile: (percentiles && side.count() > 0).then(|| {
                let entry = |p: f64| (format!("{p:.6}"), side.percentile_ns(p));
                PERCENTILES.into_iter().map(entry).collect()
            }),
        };
        SideJson {
            io_bytes,
            io_kbytes: io_bytes >> 10,
            bw_bytes,
            bw: bw_bytes >> 10,
            iops: self.iops(side),
            runtime: millis(self.measured),
            total_ios: side.count(),
            lat_ns: latency(false),
            clat_ns: latency(true),
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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

#[derive(Serialize)]
struct DocumentJson<'a> {
    #[serde(rename = "raceline version")]
    version: &'static str,
    jobs: [JobJson<'a>; 1],
}

#[derive(Serialize)]
struct JobJson<'a> {
    jobname: &'a str,
    groupid: u32,
    error: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_text: Option<&'a str>,
    elapsed: u64,
    #[serde(rename = "job options")]
    job_options: &'a BTreeMap<String, String>,
    read: SideJson,
    write: SideJson,
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    missed_ios: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_ios: Option<u64>,
    #[serde(rename = "loop")]
    loops: LoopCounters,
    cost: CostPerIo,
    #[serde(skip_serializing_if = "Acceleration::is_empty")]
    acceleration: &'a Acceleration,
}

#[derive(Serialize)]
struct SideJson {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    lat_ns: LatencyJson,
    clat_ns: LatencyJson,
}

#[derive(Serialize)]
struct LatencyJson {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<BTreeMap<String, u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Counts;

    fn report() -> Report {
        let mut read = Latencies::new();
        (1..=1000u64).for_each(|us| read.record(Duration::from_micros(us)));
        Report {
            name: "randread".to_owned(),
            options: BTreeMap::from([("bs".to_owned(), "4k".to_owned())]),
            io_bytes: 4096,
            measured: Duration::from_secs(2),
            read,
            write: Latencies::new(),
            cpu: CpuTime { user: Duration::from_secs(1), system: Duration::from_millis(500) },
            loops: LoopCounters::default(),
            cost: Cost::default(),
            acceleration: Acceleration::default(),
            missed: 0,
            verified: None,
            error: None,
        }
    }

    fn json(report: &Report) -> serde_json::Value {
        serde_json::from_str(&report.to_json()).unwrap()
    }

    #[test]
    fn json_has_the_fields_that_fio_readers_look_for() {
        let document = json(&report());
        let job = &document["jobs"][0];
        assert_eq!(job["jobname"], "randread");
        assert_eq!(job["error"], 0);
        assert_eq!(job["job options"]["bs"], "4k");
        assert_eq!(job["usr_cpu"], 50.0);
        assert_eq!(job["sys_cpu"], 25.0);
        let read = &job["read"];
        assert_eq!(read["total_ios"], 1000);
        assert_eq!(read["iops"], 500.0);
        assert_eq!(read["bw_bytes"], 2_048_000);
        assert_eq!(read["bw"], 2000);
        assert_eq!(read["io_bytes"], 4_096_000);
        assert_eq!(read["runtime"], 2000);
        assert_eq!(read["lat_ns"]["min"], 1000);
        assert_eq!(read["lat_ns"]["max"], 1_000_000);
        assert_eq!(read["lat_ns"]["mean"], 500_500.0);
        assert!(read["lat_ns"]["stddev"].as_f64().unwrap() > 288_000.0);
        let percentile = &read["clat_ns"]["percentile"];
        assert!(percentile["50.000000"].as_u64().unwrap().abs_diff(500_000) < 1000);
        assert_eq!(percentile["99.990000"], 1_000_000);
        assert_eq!(percentile.as_object().unwrap().len(), PERCENTILES.len());
    }

    #[test]
    fn the_cost_is_in_both_forms() {
        assert!(!report().to_table().contains("cost per I/O"), "nothing was counted");
        let counts = Counts { system_calls: 250, ..Counts::default() };
        let costly = Report { cost: Cost { ios: 1000, counts, ..Cost::default() }, ..report() };
        assert_eq!(json(&costly)["jobs"][0]["cost"]["system_calls"], 0.25);
        let table = costly.to_table();
        assert!(table.contains("\ncost per I/O, this side\n"), "{table}");
        assert!(table.contains("0.250 system calls"), "{table}");
    }

    #[test]
    fn the_idle_side_is_there_and_zero() {
        let document = json(&report());
        let write = &document["jobs"][0]["write"];
        assert_eq!(write["total_ios"], 0);
        assert_eq!(write["iops"], 0.0);
        assert_eq!(write["lat_ns"]["min"], 0);
        assert!(write["clat_ns"].get("percentile").is_none());
    }

    #[test]
    fn a_run_that_measured_nothing_divides_by_nothing() {
        let nothing = Report { measured: Duration::ZERO, read: Latencies::new(), ..report() };
        assert_eq!(json(&nothing)["jobs"][0]["read"]["iops"], 0.0);
        assert!(nothing.to_table().contains("nothing completed"));
    }

    #[test]
    fn failures_are_in_the_json() {
        let failed = Report { error: Some("LBA 7: lost".to_owned()), ..report() };
        let job = &json(&failed)["jobs"][0];
        assert_eq!((&job["error"], &job["error_text"]), (&1.into(), &"LBA 7: lost".into()));
    }

    #[test]
    fn the_table_shows_used_sides_only() {
        let loops = LoopCounters { busy_turns: 250, waits: 100 };
        let table = Report { loops, missed: 3, verified: Some(1000), ..report() }.to_table();
        let row = table.lines().find(|line| line.starts_with("read")).unwrap();
        let cells: Vec<&str> = row.split_ascii_whitespace().collect();
        assert_eq!(cells[1..5], ["500", "1.95", "MiB/s", "500us"]);
        assert!(!table.contains("write  "), "{table}");
        assert!(table.contains("4.00 commands per turn, 0.10 sleeps per command"), "{table}");
        assert!(table.contains("3 commands were due"), "{table}");
        assert!(table.contains("3.91 MiB in 1,000 reads"), "{table}");
        let width = table.lines().nth(2).unwrap().chars().count();
        assert_eq!(row.chars().count(), width);
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let bytes = [0, 1023, 1024, 1536, 1 << 20, (1 << 30) - 1, u64::MAX];
        let texts = ["0 B", "1023 B", "1 KiB", "1.50 KiB", "1 MiB", "1.00 GiB", "16 EiB"];
        assert_eq!(bytes.map(binary_bytes), texts);
        let times = [7.0, 999.4, 1000.0, 12_345.0, 999_600.0, 2_500_000.0, 3e9, 1e13];
        let texts = ["7ns", "999ns", "1.00us", "12.3us", "1.00ms", "2.50ms", "3.00s", "10000s"];
        assert_eq!(times.map(latency_text), texts);
    }
}
