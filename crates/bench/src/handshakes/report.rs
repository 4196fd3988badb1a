//! Handshakes beside I/O as a table for users, and as a JSON list for programs.

use serde::Serialize;

use super::{HandshakesConfig, Point, Round};
use crate::histogram::Latencies;
use crate::limit::report::{median, size_name};
use crate::machine::Origin;
use crate::report::latency_text;

/// The most that P99 with handshakes may be, relative to P99 without.
pub const BAR: f64 = 2.0;
/// The part of the rate that has to be reached.
pub const RATE_PART: f64 = 0.98;

/// All points of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings of the measurement.
    pub config: HandshakesConfig,
    /// Program and machine of the measurement.
    pub origin: Origin,
    /// The points.
    pub points: Vec<Point>,
}

/// The figures of a point: medians of its rounds, and the least and the most.
struct Figures {
    rate: f64,
    ratio: f64,
    least: f64,
    most: f64,
    alone: Latencies,
    beside: Latencies,
    handshakes: Latencies,
    failed: u64,
}

impl Figures {
    fn of(point: &Point) -> Self {
        let sorted = |value: fn(&Round) -> f64| {
            let mut values: Vec<f64> = point.rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let merged = |of: fn(&Round) -> &Latencies| {
            let mut all = Latencies::new();
            point.rounds.iter().for_each(|round| all.merge(of(round)));
            all
        };
        let ratios = sorted(Round::ratio);
        Self {
            rate: median(&sorted(|round| round.storms.rate())),
            ratio: median(&ratios),
            least: ratios.first().copied().unwrap_or(0.0),
            most: ratios.last().copied().unwrap_or(0.0),
            alone: merged(|round| &round.alone),
            beside: merged(|round| &round.beside),
            handshakes: merged(|round| &round.storms.latencies),
            failed: point.rounds.iter().map(|round| round.storms.failed).sum(),
        }
    }

    fn reached(&self, rate: u32) -> bool {
        self.ratio <= BAR && self.rate >= f64::from(rate) * RATE_PART && self.failed == 0
    }
}

impl Report {
    /// The first line of the table.
    #[must_use]
    pub fn heading(&self) -> String {
        format!(
            "{:<22}{:>12}{:>11}{:>11}{:>11}{:>11}{:>8}{:>13}{:>7}{:>15}  notes ({})\n",
            "case",
            "handshakes/s",
            "p50 alone",
            "p99 alone",
            "p50 beside",
            "p99 beside",
            "ratio",
            "spread",
            "bar",
            "handshake p99",
            self.config.suite.name()
        )
    }

    /// One line of the table.
    #[must_use]
    pub fn row(&self, point: &Point) -> String {
        let figures = Figures::of(point);
        let time = |latencies: &Latencies, percentile| {
            latency_text(latencies.percentile_ns(percentile) as f64)
        };
        let mut notes = String::new();
        let disturbed = disturbed(point);
        if disturbed > 0 {
            notes += &format!("  {disturbed} of {} rounds disturbed", point.rounds.len());
        }
        let why = point.rounds.iter().find_map(|round| round.storms.why.as_deref());
        if let Some(why) = why {
            notes += &format!("  {} handshakes failed: {why}", figures.failed);
        }
        format!(
            "{:<22}{:>12.0}{:>11}{:>11}{:>11}{:>11}{:>8.2}{:>13}{:>7}{:>15}{notes}\n",
            self.case(point),
            figures.rate,
            time(&figures.alone, 50.0),
            time(&figures.alone, 99.0),
            time(&figures.beside, 50.0),
            time(&figures.beside, 99.0),
            figures.ratio,
            format!("{:.2}-{:.2}", figures.least, figures.most),
            if figures.reached(self.config.rate) { "ok" } else { "BELOW" },
            time(&figures.handshakes, 99.0),
        )
    }

    fn case(&self, point: &Point) -> String {
        format!("{} read depth {}", size_name(self.config.io_bytes as usize), point.depth)
    }

    /// A list of objects, one per point, ended by a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let points: Vec<PointJson<'_>> =
            self.points.iter().map(|point| PointJson::new(self, point)).collect();
        let mut text = serde_json::to_string_pretty(&points).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn disturbed(point: &Point) -> usize {
    point.rounds.iter().filter(|round| round.disturbance.is_too_much()).count()
}

#[derive(Serialize)]
struct PointJson<'a> {
    case: String,
    suite: &'static str,
    io_bytes: u32,
    depth: u16,
    /// Handshakes per second that were asked for, and that were finished (median of the rounds).
    rate: u32,
    handshakes_per_s: f64,
    handshakes_failed: u64,
    handshake_p50_us: f64,
    handshake_p99_us: f64,
    /// Latencies of the host's commands, all rounds together.
    alone_p50_us: f64,
    alone_p99_us: f64,
    beside_p50_us: f64,
    beside_p99_us: f64,
    /// P99 beside handshakes over P99 alone: median, least and most of the rounds.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    ratios: Vec<f64>,
    bar: f64,
    reached: bool,
    /// Rounds that count although they were disturbed, and rounds that do not count.
    disturbed: usize,
    repeated: usize,
    #[serde(flatten)]
    origin: &'a Origin,
}

impl<'a> PointJson<'a> {
    fn new(report: &'a Report, point: &Point) -> Self {
        let figures = Figures::of(point);
        let micros =
            |latencies: &Latencies, percentile| latencies.percentile_ns(percentile) as f64 / 1000.0;
        Self {
            case: report.case(point),
            suite: report.config.suite.name(),
            io_bytes: report.config.io_bytes,
            depth: point.depth,
            rate: report.config.rate,
            handshakes_per_s: figures.rate,
            handshakes_failed: figures.failed,
            handshake_p50_us: micros(&figures.handshakes, 50.0),
            handshake_p99_us: micros(&figures.handshakes, 99.0),
            alone_p50_us: micros(&figures.alone, 50.0),
            alone_p99_us: micros(&figures.alone, 99.0),
            beside_p50_us: micros(&figures.beside, 50.0),
            beside_p99_us: micros(&figures.beside, 99.0),
            ratio: figures.ratio,
            ratio_min: figures.least,
            ratio_max: figures.most,
            ratios: point.rounds.iter().map(Round::ratio).collect(),
            bar: BAR,
            reached: figures.reached(report.config.rate),
            disturbed: disturbed(point),
            repeated: point.repeated,
            origin: &report.origin,
        }
    }
}
