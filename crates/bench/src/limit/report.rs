//! The results: as a table for users, as a JSON list for programs.

use std::fmt::Write as _;
use std::time::Duration;

use raceline_tls::Suite;
use serde::Serialize;

use super::{LimitConfig, Measured, Mode, Tuning};
use crate::congestion::CongestionControl;
use crate::distance::{self, Distance};
use crate::report::{binary_bytes, grouped};

/// All points of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the region's pages.
    pub pages: String,
    /// TCP's congestion control for the pair.
    pub congestion_control: CongestionControl,
    /// The distance between the cores of the two sides, as far as it is known.
    pub distance: Distance,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}

/// One point.
#[derive(Clone, Debug)]
pub struct Point {
    /// What was exchanged.
    pub config: LimitConfig,
    /// The choices for the exchange.
    pub tuning: Tuning,
    /// The repetitions.
    pub windows: Vec<Measured>,
    /// The same with data digests, if they were asked for.
    pub digests: Option<Variant>,
    /// The same over TLS, if it was asked for.
    pub tls: Option<Variant>,
    /// For each repetition, the round trip of a cache line between the two cores: the longer of the times
    /// before and after. `None` if a side floats, or both share a core.
    pub round_trips: Vec<Option<Duration>>,
    /// Repetitions that do not count because the cores were further apart.
    pub repeated: usize,
}

/// The results with something more.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The choices for the exchange.
    pub tuning: Tuning,
    /// The repetitions, each right after the plain one.
    pub windows: Vec<Measured>,
}

impl Point {
    /// The median of the repetitions.
    #[must_use]
    pub fn iops(&self) -> f64 {
        median(&sorted(&self.windows, Measured::iops))
    }

    /// The target's core time of a command without digests relative to that with them, for each repetition,
    /// smallest first; empty if it is unknown.
    #[must_use]
    pub fn digest_ratios(&self) -> Vec<f64> {
        let digests = self.digests.iter().flat_map(|digests| &digests.windows);
        let ratio =
            |(plain, digest): (&Measured, &Measured)| Some(plain.core_ns()? / digest.core_ns()?);
        let mut ratios: Vec<f64> = self.windows.iter().zip(digests).filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Commands per second over TLS relative to plain, for each repetition, smallest first.
    #[must_use]
    pub fn tls_ratios(&self) -> Vec<f64> {
        let tls = self.tls.iter().flat_map(|tls| &tls.windows);
        let ratio = |(plain, tls): (&Measured, &Measured)| {
            (plain.iops() > 0.0).then(|| tls.iops() / plain.iops())
        };
        let mut ratios: Vec<f64> = self.windows.iter().zip(tls).filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }
}

/// A figure of each repetition, smallest first.
fn sorted(windows: &[Measured], figure: impl Fn(&Measured) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = windows.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median of sorted values; 0 if there are none.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The name of a point: `4k read depth 32 x 1`.
#[must_use]
pub fn case_name(io_bytes: usize, write: bool, depth: usize, connections: usize) -> String {
    let rw = if write { "write" } else { "read" };
    format!("{} {rw} depth {depth} x {connections}", size_name(io_bytes))
}

fn case(config: &LimitConfig) -> String {
    case_name(config.io_bytes, config.write, config.depth, config.connections)
}

/// A size in the form of options: `4k`.
pub(crate) fn size_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{}m", bytes >> 20)
    } else if bytes.is_multiple_of(1 << 10) {
        format!("{}k", bytes >> 10)
    } else {
        bytes.to_string()
    }
}

/// Reads a size as [`case_name`] writes it.
pub(crate) fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.split_at_checked(text.len().saturating_sub(1))? {
        (digits, "k") => (digits, 1 << 10),
        (digits, "m") => (digits, 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

impl Report {
    /// The first lines of the table.
    #[must_use]
    pub fn heading(&self) -> String {
        let distance = self.distance.cores().zip(self.distance.least());
        let distance =
            distance.map(|(cores, least)| format!("{}\n", distance::sentence(cores, least)));
        format!(
            "{}\n{}{:<28}{:>12}{:>14}{:>10}{:>16}  tuning ({} pages)\n",
            self.congestion_control,
            distance.unwrap_or_default(),
            "case",
            "IOPS",
            "bandwidth",
            "mean",
            "spread",
            self.pages
        )
    }

    /// The lines of the table for a point.
    #[must_use]
    pub fn row(&self, point: &Point) -> String {
        let mut rows = row(&case(&point.config), point, &point.windows, point.tuning);
        if let Some(digests) = &point.digests {
            rows += &row("  with data digests", point, &digests.windows, digests.tuning);
            let ratios = point.digest_ratios();
            if let (Some(least), Some(most)) = (ratios.first(), ratios.last()) {
                let _ = writeln!(
                    rows,
                    "  commands per time of the target's core, with over without: {:.3} \
                     ({least:.3} - {most:.3})",
                    median(&ratios)
                );
            }
        }
        if let (Some(tls), Some(suite)) = (&point.tls, point.config.tls) {
            rows += &row("  over TLS", point, &tls.windows, tls.tuning);
            let ratios = point.tls_ratios();
            if let (Some(least), Some(most)) = (ratios.first(), ratios.last()) {
                let _ = writeln!(
                    rows,
                    "  IOPS over {} relative to plain: {:.3} ({least:.3} - {most:.3})",
                    suite.name(),
                    median(&ratios)
                );
            }
        }
        let far = self.apart(point);
        if far > 0 {
            let of = point.round_trips.len();
            let _ =
                writeln!(rows, "  {far} of {of} repetitions while the cores were further apart");
        }
        rows
    }

    /// Number of repetitions while the cores were further apart than at other times.
    fn apart(&self, point: &Point) -> usize {
        point.round_trips.iter().filter(|found| self.distance.is_far(**found)).count()
    }

    /// A list of objects, one per point, ended by a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let points: Vec<PointJson> =
            self.points.iter().map(|point| PointJson::new(point, self)).collect();
        let mut text = serde_json::to_string_pretty(&points).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// One line with the results of some windows of a point.
fn row(name: &str, point: &Point, windows: &[Measured], tuning: Tuning) -> String {
    let sorted = sorted(windows, Measured::iops);
    let iops = median(&sorted);
    let (least, most) = (sorted.first().unwrap_or(&0.0), sorted.last().unwrap_or(&0.0));
    format!(
        "{name:<28}{:>12}{:>14}{:>10}{:>16}  {tuning}\n",
        grouped(whole(iops)),
        format!("{}/s", binary_bytes(whole(iops * point.config.io_bytes as f64))),
        crate::report::latency_text(mean_ns(point, iops)),
        format!("{:+.1} {:+.1} %", percent(*least, iops), percent(*most, iops)),
    )
}

/// The mean latency by Little's law: the requester records no latency of single commands.
fn mean_ns(point: &Point, iops: f64) -> f64 {
    let in_flight = point.config.depth * point.config.connections;
    if iops > 0.0 { in_flight as f64 * 1e9 / iops } else { 0.0 }
}

fn percent(value: f64, of: f64) -> f64 {
    if of > 0.0 { 100.0 * (value / of - 1.0) } else { 0.0 }
}

/// A rate without its fraction.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; never < 0")]
pub(crate) fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

#[derive(Serialize)]
struct PointJson<'a> {
    case: String,
    rw: &'static str,
    io_bytes: usize,
    depth: usize,
    connections: usize,
    memory_bytes: usize,
    pages: &'a str,
    congestion_control: &'a CongestionControl,
    mode: &'static str,
    buffer_each: bool,
    /// Whether writes come through staging memory.
    staged: bool,
    /// Additional work per command in nanoseconds, on each side.
    work_ns: u128,
    limit_iops: f64,
    mean_us: f64,
    runs: Vec<f64>,
    tuning: String,
    /// Time of the target's core per command, for each run; absent if it sleeps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    core_ns: Vec<f64>,
    /// Median of the runs; absent if the sides do not have two cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    core_round_trip_ns: Option<u64>,
    /// Runs that count although the cores were further apart than at other times.
    apart: usize,
    /// Runs that do not count because the cores were further apart.
    repeated: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    digests: Option<DigestsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<TlsJson>,
}

#[derive(Serialize)]
struct TlsJson {
    suite: &'static str,
    limit_iops: f64,
    runs: Vec<f64>,
    tuning: String,
    core_ns: Vec<f64>,
    /// Commands per second over TLS relative to plain, smallest first.
    ratios: Vec<f64>,
}

#[derive(Serialize)]
struct DigestsJson {
    limit_iops: f64,
    runs: Vec<f64>,
    tuning: String,
    core_ns: Vec<f64>,
    /// Commands per time of the target's core, with digests relative to without, smallest first.
    core_ratios: Vec<f64>,
}

fn core_ns(windows: &[Measured]) -> Vec<f64> {
    windows.iter().filter_map(Measured::core_ns).collect()
}

impl<'a> PointJson<'a> {
    fn new(point: &Point, report: &'a Report) -> Self {
        let config = &point.config;
        Self {
            case: case(config),
            rw: if config.write { "write" } else { "read" },
            io_bytes: config.io_bytes,
            depth: config.depth,
            connections: config.connections,
            memory_bytes: config.memory_bytes,
            pages: &report.pages,
            congestion_control: &report.congestion_control,
            mode: match config.mode {
                Mode::Polled => "polled",
                Mode::Blocking => "blocking",
            },
            buffer_each: config.fixed.buffer_each,
            staged: config.fixed.staged,
            work_ns: config.fixed.work.as_nanos(),
            limit_iops: point.iops(),
            mean_us: mean_ns(point, point.iops()) / 1000.0,
            runs: point.windows.iter().map(Measured::iops).collect(),
            tuning: point.tuning.to_string(),
            core_ns: core_ns(&point.windows),
            core_round_trip_ns: distance::whole_ns(distance::median(
                point.round_trips.iter().copied(),
            )),
            apart: report.apart(point),
            repeated: point.repeated,
            digests: point.digests.as_ref().map(|digests| DigestsJson {
                limit_iops: median(&sorted(&digests.windows, Measured::iops)),
                runs: digests.windows.iter().map(Measured::iops).collect(),
                tuning: digests.tuning.to_string(),
                core_ns: core_ns(&digests.windows),
                core_ratios: point.digest_ratios(),
            }),
            tls: point.tls.as_ref().map(|tls| TlsJson {
                suite: config.tls.map_or("", Suite::name),
                limit_iops: median(&sorted(&tls.windows, Measured::iops)),
                runs: tls.windows.iter().map(Measured::iops).collect(),
                tuning: tls.tuning.to_string(),
                core_ns: core_ns(&tls.windows),
                ratios: point.tls_ratios(),
            }),
        }
    }
}
