//! The measured values, as tables for docs/lab and as JSON.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::point::{Ours, Pair, Plan, Point};
use crate::distance;
use crate::origin::Origin;
use crate::quiet::Disturbance;

/// The whole report.
#[derive(Serialize)]
pub(crate) struct Report {
    /// The machine and the programs.
    pub(crate) setting: Setting,
    /// What is compared.
    #[serde(skip)]
    pub(crate) plan: &'static Plan,
    pub(crate) points: Vec<PointReport>,
    pub(crate) idle: Vec<Idle>,
}

/// The machine and the programs of a measurement.
#[derive(Serialize)]
pub(crate) struct Setting {
    #[serde(flatten)]
    pub(crate) origin: Origin,
    /// Which of Raceline's targets.
    pub(crate) target: Ours,
    pub(crate) spdk: String,
    pub(crate) repetitions: usize,
    pub(crate) ramp_seconds: u32,
    pub(crate) measured_seconds: u32,
    /// Whether all connections are encrypted.
    pub(crate) tls: bool,
    /// The shortest round trip of a cache line between the cores of target and host.
    pub(crate) core_round_trip_ns: Option<u64>,
}

/// One run of a host against a target.
#[derive(Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) pair: Pair,
    pub(crate) iops: f64,
    pub(crate) mean_us: f64,
    #[serde(flatten)]
    pub(crate) disturbance: Disturbance,
}

/// The results at one point.
#[derive(Serialize)]
pub(crate) struct PointReport {
    pub(crate) name: String,
    pub(crate) point: Point,
    /// Each with one run of every pair, in the order of the plan.
    pub(crate) repetitions: Vec<Vec<Run>>,
    pub(crate) ratios: Vec<Ratio>,
    /// Runs that were thrown away because they were disturbed.
    pub(crate) repeated: usize,
    /// Runs that count although they were disturbed: all repetitions were, too.
    pub(crate) disturbed: usize,
}

/// How one pair compares with another next to it in time.
#[derive(Serialize)]
pub(crate) struct Ratio {
    pub(crate) title: &'static str,
    #[serde(flatten)]
    pub(crate) spread: Spread,
}

/// The median of some values, and their ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// A target with one host that reads once per second.
#[derive(Serialize)]
pub(crate) struct Idle {
    pub(crate) target: String,
    /// Percent of one core.
    pub(crate) cpu_percent: f64,
    /// Ordinary memory, KiB.
    pub(crate) resident_kib: u64,
    /// Reserved huge pages, KiB.
    pub(crate) huge_kib: u64,
}

impl Spread {
    /// The spread of at least one value.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) && !values.is_empty() {
            f64::midpoint(at(middle - 1), at(middle))
        } else {
            at(middle)
        };
        Self { median, low: at(0), high: at(values.len().saturating_sub(1)) }
    }

    fn map(self, value: impl Fn(f64) -> f64) -> Self {
        let Self { median, low, high } = self;
        Self { median: value(median), low: value(low), high: value(high) }
    }

    /// The same in another unit.
    pub(crate) fn divided_by(self, divisor: f64) -> Self {
        self.map(|value| value / divisor)
    }

    /// The same, with `digits` digits after the point.
    pub(crate) fn rounded(self, digits: i32) -> Self {
        let factor = 10f64.powi(digits);
        self.map(|value| (value * factor).round() / factor)
    }

    /// As a cell of a table: `7.0 (6.0 - 8.0)`, or one value if there is only one.
    pub(crate) fn cell(self, divisor: f64, digits: usize) -> String {
        let Self { median, low, high } = self.divided_by(divisor);
        if self.low.total_cmp(&self.high).is_eq() {
            return format!("{median:.digits$}");
        }
        format!("{median:.digits$} ({low:.digits$} - {high:.digits$})")
    }
}

impl PointReport {
    /// Sums up; every repetition has a run of each pair of the plan.
    pub(crate) fn new(
        plan: &Plan,
        point: Point,
        repetitions: Vec<Vec<Run>>,
        repeated: usize,
    ) -> Self {
        let ratios = plan.ratios.iter().map(|&(title, ours, theirs)| {
            let each = repetitions.iter().map(|runs| runs[ours].iops / runs[theirs].iops);
            Ratio { title, spread: Spread::of(each) }
        });
        let is_disturbed = |run: &&Run| run.disturbance.is_too_much();
        Self {
            name: point.to_string(),
            point,
            ratios: ratios.collect(),
            repeated,
            disturbed: repetitions.iter().flatten().filter(is_disturbed).count(),
            repetitions,
        }
    }

    /// IOPS of one pair, an index of the plan's.
    pub(crate) fn iops(&self, pair: usize) -> Spread {
        Spread::of(self.repetitions.iter().map(|runs| runs[pair].iops))
    }
}

impl Report {
    /// Runs that count although they were disturbed.
    pub(crate) fn disturbed(&self) -> usize {
        self.points.iter().map(|point| point.disturbed).sum()
    }

    /// The tables.
    pub(crate) fn markdown(&self) -> String {
        let mut text = self.setting.introduction("pairs");
        let Plan { pairs, ratios, .. } = self.plan;
        let titles: Vec<String> = pairs.iter().map(Pair::to_string).collect();
        head(&mut text, "thousand IOPS, host -> target", titles.iter().map(String::as_str));
        for point in &self.points {
            let cells = (0..pairs.len()).map(|pair| {
                let Spread { median, low, high } = point.iops(pair);
                let [median, low, high] = [median, low, high].map(|iops| iops / 1000.0);
                format!("{median:.1} ({low:.1} - {high:.1})")
            });
            row(&mut text, &point.name, cells);
        }
        text.push('\n');
        let titles = ratios.iter().map(|(title, ..)| *title).chain(["repeated", "disturbed"]);
        head(&mut text, "ratio", titles);
        for point in &self.points {
            let ratio =
                |Spread { median, low, high }| format!("{median:.2} ({low:.2} - {high:.2})");
            let ratios = point.ratios.iter().map(|found| ratio(found.spread));
            let counts = [point.repeated, point.disturbed].map(|count| count.to_string());
            row(&mut text, &point.name, ratios.chain(counts));
        }
        if self.idle.is_empty() {
            return text;
        }
        text.push('\n');
        let titles = ["CPU % of a core", "resident MiB", "huge pages MiB", "together MiB"];
        head(&mut text, "idle target, one host connected", titles.into_iter());
        for idle in &self.idle {
            let memory = [idle.resident_kib, idle.huge_kib, idle.resident_kib + idle.huge_kib];
            let memory = memory.map(|kib| (kib >> 10).to_string());
            let cpu = format!("{:.1}", idle.cpu_percent);
            row(&mut text, &idle.target, [cpu].into_iter().chain(memory));
        }
        text
    }
}

impl Setting {
    /// The paragraph above the tables; `what` describes the runs.
    pub(crate) fn introduction(&self, what: &str) -> String {
        let Self { origin, target, spdk, repetitions, .. } = self;
        let Origin { raceline, kernel, congestion_control, processor, .. } = origin;
        let waiting = match target {
            Ours::Serve => "target on core 0 (SPDK's polls, ours sleeps after 50 us without work)",
            Ours::Export => "target polling on core 0",
        };
        let apart = self.core_round_trip_ns.map(|ns| format!(", {}", distance::fact(ns)));
        let apart = apart.unwrap_or_default();
        let channel = if self.tls { "TLS 1.3 (TLS_AES_128_GCM_SHA256), " } else { "" };
        let (ramp, time) = (self.ramp_seconds, self.measured_seconds);
        format!(
            "Raceline {raceline} ({target}) and {spdk}, Linux {kernel}, {processor}; {waiting}, host polling on core 1{apart}, \
             loopback, {channel}TCP's congestion control {congestion_control}, namespaces of 512 MiB, filled. {repetitions} repetitions, all {what} in turn, each \
             {time} s after a ramp of {ramp} s: median (lowest - highest), ratios repetition by repetition. \
             A point is size, direction, depth x connections, at random addresses.\n\n"
        )
    }
}

/// The first two lines of a table.
pub(crate) fn head<'a>(text: &mut String, first: &str, titles: impl Iterator<Item = &'a str>) {
    let titles: Vec<String> = titles.map(str::to_owned).collect();
    let rule = vec!["---".to_owned(); titles.len()];
    row(text, first, titles.into_iter());
    row(text, "---", rule.into_iter());
}

/// A line of a table.
pub(crate) fn row(text: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    // Writing into a String cannot fail.
    let _ = writeln!(text, "| {first} | {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::super::point::{PLAIN, grid};
    use super::*;

    fn repetition(factor: f64) -> Vec<Run> {
        let disturbance = Disturbance::default();
        let run = |(at, pair): (u32, Pair)| {
            let iops = factor * f64::from(at + 1) * 1000.0;
            Run { pair, iops, mean_us: 1.0, disturbance }
        };
        (0u32..).zip(PLAIN.pairs.iter().copied()).map(run).collect()
    }

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(spread(&[4.0, 1.0]), Spread { median: 2.5, low: 1.0, high: 4.0 });
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        let mut repetitions = vec![repetition(1.0), repetition(7.0), repetition(0.1)];
        repetitions[1][0].disturbance.stolen_percent = 50.0;
        let report = PointReport::new(&PLAIN, grid(true)[0], repetitions, 4);
        // Pair 0 has half the IOPS of pair 1, however fast the machine was.
        let first = report.ratios[0].spread;
        assert!((first.median - 0.5).abs() < 1e-9 && (first.high - first.low).abs() < 1e-9);
        assert_eq!((report.repeated, report.disturbed), (4, 1));
        assert!((report.iops(0).high - 7000.0).abs() < 1e-6);
    }

    #[test]
    fn rows_have_as_many_cells_as_heads() {
        let setting = Setting {
            origin: Origin {
                raceline: "abc".to_owned(),
                unix_s: 0,
                kernel: "6".to_owned(),
                congestion_control: "cubic".to_owned(),
                processor: "P".to_owned(),
            },
            target: Ours::Serve,
            spdk: "SPDK".to_owned(),
            repetitions: 1,
            ramp_seconds: 1,
            measured_seconds: 1,
            tls: false,
            core_round_trip_ns: Some(57),
        };
        let points = vec![PointReport::new(&PLAIN, grid(true)[0], vec![repetition(1.0)], 0)];
        let (target, cpu_percent) = ("t".to_owned(), 100.0);
        let idle = vec![Idle { target, cpu_percent, resident_kib: 2048, huge_kib: 4096 }];
        let text = Report { setting, plan: &PLAIN, points, idle }.markdown();
        let bars = |line: &str| line.matches('|').count();
        for table in text.split("\n\n").skip(1) {
            let lines: Vec<&str> = table.lines().collect();
            assert_eq!(lines.len(), 3, "{table}");
            assert!(lines.iter().all(|line| bars(line) == bars(lines[0])), "{table}");
        }
        assert!(text.contains("| t | 100.0 | 2 | 4 | 6 |"), "{text}");
        assert!(text.starts_with("Raceline abc (raceline serve) and SPDK, "), "{text}");
        assert!(text.contains("on core 1, the cores 57 ns apart (a cache line"), "{text}");
    }
}
