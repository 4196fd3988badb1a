//! The gap as a table for users, with the bar on each line, and as a JSON list for programs.

use raceline_tls::Suite;
use serde::Serialize;

use super::{GapConfig, Pair, Point, Subject};
use crate::congestion::CongestionControl;
use crate::distance::{self, Distance};
use crate::limit::report::{median, whole};
use crate::machine::Origin;
use crate::report::{grouped, latency_text};

/// The ratio that a RAM namespace must reach against the limit with the same memory.
pub const BAR: f64 = 0.85;
/// The ratio that a namespace without storage must reach against the limit with a hot region.
pub const BAR_NULL: f64 = 0.8;
/// The ratio that the product over TLS must reach against the bare pair over TLS.
pub const BAR_TLS: f64 = 0.9;
/// The ratio that a daemon must reach against `raceline export`.
pub const BAR_BOTH: f64 = 0.97;

/// All points of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings of the measurement.
    pub config: GapConfig,
    /// The name of the pages.
    pub pages: String,
    /// TCP's congestion control for both.
    pub congestion_control: CongestionControl,
    /// Program and machine of the measurement.
    pub origin: Origin,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}

/// The figures of a point.
struct Figures {
    reference_iops: f64,
    iops: f64,
    /// Median, least and most.
    ratio: f64,
    least: f64,
    most: f64,
    /// The same of the product over TLS relative to the product without it.
    plain: Option<PlainRatio>,
    disturbed: usize,
}

/// Raceline over TLS relative to Raceline without TLS: median, least and most of the pairs.
#[derive(Clone, Copy, Serialize)]
struct PlainRatio {
    #[serde(rename = "plain_ratio")]
    ratio: f64,
    #[serde(rename = "plain_ratio_min")]
    least: f64,
    #[serde(rename = "plain_ratio_max")]
    most: f64,
}

impl PlainRatio {
    /// `None` if the product was not measured without TLS.
    fn of(point: &Point) -> Option<Self> {
        let mut ratios: Vec<f64> = point.pairs.iter().filter_map(Pair::plain_ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (*ratios.first()?, *ratios.last()?);
        Some(Self { ratio: median(&ratios), least, most })
    }
}

impl Figures {
    fn of(point: &Point) -> Self {
        let sorted = |value: fn(&Pair) -> f64| {
            let mut values: Vec<f64> = point.pairs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let ratios = sorted(Pair::ratio);
        Self {
            reference_iops: median(&sorted(|pair| pair.reference_iops)),
            iops: median(&sorted(|pair| pair.iops)),
            ratio: median(&ratios),
            least: ratios.first().copied().unwrap_or(0.0),
            most: ratios.last().copied().unwrap_or(0.0),
            plain: PlainRatio::of(point),
            disturbed: point.pairs.iter().filter(|pair| pair.disturbance.is_too_much()).count(),
        }
    }
}

impl Report {
    /// The ratio that each point must reach.
    #[must_use]
    pub fn bar(&self) -> f64 {
        match self.config.subject {
            Subject::Both => BAR_BOTH,
            Subject::Serve | Subject::Export if self.config.tls.is_some() => BAR_TLS,
            Subject::Serve | Subject::Export if self.config.null => BAR_NULL,
            Subject::Serve | Subject::Export => BAR,
        }
    }

    /// The first lines of the table. The columns of IOPS have the names of target and reference.
    #[must_use]
    pub fn heading(&self) -> String {
        format!(
            "{}\n{:<28}{:>12}{:>12}{:>8}{:>15}{:>7}{:>10}{:>10}  notes ({} pages)\n",
            self.congestion_control,
            "case",
            self.config.subject.reference(),
            self.config.subject.name(),
            "ratio",
            "spread",
            "bar",
            "p50",
            "p99",
            self.pages
        )
    }

    /// One line of the table.
    #[must_use]
    pub fn row(&self, point: &Point) -> String {
        let figures = Figures::of(point);
        let reached = figures.ratio >= self.bar();
        let mut notes = match figures.disturbed {
            0 => String::new(),
            count => format!("  {count} of {} pairs disturbed", point.pairs.len()),
        };
        if let Some(PlainRatio { ratio, least, most }) = figures.plain {
            notes += &format!("  {ratio:.2} of plain ({least:.2}-{most:.2})");
        }
        format!(
            "{:<28}{:>12}{:>12}{:>8.2}{:>15}{:>7}{:>10}{:>10}{notes}\n",
            point.case.to_string(),
            grouped(whole(figures.reference_iops)),
            grouped(whole(figures.iops)),
            figures.ratio,
            format!("{:.2}-{:.2}", figures.least, figures.most),
            if reached { "ok" } else { "BELOW" },
            latency_text(point.latencies.percentile_ns(50.0) as f64),
            latency_text(point.latencies.percentile_ns(99.0) as f64),
        )
    }

    /// The last line of the table.
    #[must_use]
    pub fn summary(&self) -> String {
        let figures: Vec<Figures> = self.points.iter().map(Figures::of).collect();
        let below = figures.iter().filter(|point| point.ratio < self.bar()).count();
        let disturbed = figures.iter().filter(|point| point.disturbed > 0).count();
        let worst = self.points.iter().zip(&figures).min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio));
        let worst = worst.map_or(String::new(), |(point, figures)| {
            format!("; the worst is {:.2} ({})", figures.ratio, point.case)
        });
        format!(
            "\n{} points, {below} below {}{worst}; {disturbed} with disturbed pairs\n{}",
            figures.len(),
            self.bar(),
            self.distance()
        )
    }

    /// A line about the distance of the cores, if there are two, and the pairs taken while they were apart.
    fn distance(&self) -> String {
        let pairs = || self.points.iter().flat_map(|point| &point.pairs);
        let mut distance = Distance::between(self.config.target_core, self.config.host_core);
        // By the final least, pairs of the first points may have been apart as well.
        pairs().filter_map(|pair| pair.round_trip).for_each(|found| distance.note(found));
        let Some((cores, least)) = distance.cores().zip(distance.least()) else {
            return String::new();
        };
        let round_trip = distance::median(pairs().map(|pair| pair.round_trip)).unwrap_or(least);
        let mut line = distance::sentence(cores, round_trip);
        let far = |pair: &&Pair| pair.disturbance.apart || distance.is_far(pair.round_trip);
        let counted = pairs().filter(far).count();
        let repeated: usize = self.points.iter().map(|point| point.repeated_apart).sum();
        let were = |count: usize| if count == 1 { "pair was" } else { "pairs were" };
        if repeated > 0 {
            line += &format!("; {repeated} {} repeated because they were not", were(repeated));
        }
        if counted > 0 {
            line += &format!("; {counted} {} taken though they were further apart", were(counted));
        }
        line + "\n"
    }

    /// A list of objects, one per point, ended by a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let points: Vec<PointJson> =
            self.points.iter().map(|point| PointJson::new(self, point)).collect();
        let mut text = serde_json::to_string_pretty(&points).unwrap_or_default();
        text.push('\n');
        text
    }
}

#[derive(Serialize)]
struct PointJson<'a> {
    case: String,
    /// The measured target, `serve` or `export`, and its reference, `limit` or `export`.
    target: &'static str,
    reference: &'static str,
    rw: &'static str,
    io_bytes: u32,
    depth: u16,
    connections: u16,
    memory: &'static str,
    memory_bytes: usize,
    buffer_each: bool,
    /// Whether writes of the limit come through staging memory.
    staged: bool,
    /// Additional work of the limit per command in nanoseconds, on each side.
    work_ns: u128,
    /// The suite of TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
    pages: &'a str,
    congestion_control: &'a CongestionControl,
    #[serde(flatten)]
    origin: &'a Origin,
    #[serde(flatten)]
    reference_iops: ReferenceIops,
    iops: f64,
    /// Median of the pairs' ratios.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    /// `ratio_max` - `ratio_min`.
    spread: f64,
    #[serde(flatten)]
    plain: Option<PlainRatio>,
    bar: f64,
    reached: bool,
    pairs: Vec<PairJson>,
    /// Pairs that count although they were disturbed.
    disturbed: usize,
    /// Pairs that do not count because they were disturbed.
    repeated: usize,
    /// Number of repeated pairs during which the cores were apart.
    repeated_apart: usize,
    /// Median of the pairs; absent if the sides do not have two cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    core_round_trip_ns: Option<u64>,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_tuning: Option<String>,
}

/// Commands per second of the reference, under its name.
#[derive(Serialize)]
enum ReferenceIops {
    #[serde(rename = "limit_iops")]
    Limit(f64),
    #[serde(rename = "export_iops")]
    Export(f64),
}

impl ReferenceIops {
    fn new(subject: Subject, iops: f64) -> Self {
        match subject {
            Subject::Serve | Subject::Export => Self::Limit(iops),
            Subject::Both => Self::Export(iops),
        }
    }
}

#[derive(Serialize)]
struct PairJson {
    #[serde(flatten)]
    reference_iops: ReferenceIops,
    iops: f64,
    ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_iops: Option<f64>,
    foreign_percent: f64,
    stolen_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    core_round_trip_ns: Option<u64>,
    /// Whether the cores were further apart than at other times.
    apart: bool,
}

impl<'a> PointJson<'a> {
    fn new(report: &'a Report, point: &Point) -> Self {
        let figures = Figures::of(point);
        let (case, subject) = (point.case, report.config.subject);
        let micros = |percentile| point.latencies.percentile_ns(percentile) as f64 / 1000.0;
        let pair = |pair: &Pair| PairJson {
            reference_iops: ReferenceIops::new(subject, pair.reference_iops),
            iops: pair.iops,
            ratio: pair.ratio(),
            plain_iops: pair.plain_iops,
            foreign_percent: pair.disturbance.foreign_percent,
            stolen_percent: pair.disturbance.stolen_percent,
            core_round_trip_ns: distance::whole_ns(pair.round_trip),
            apart: pair.disturbance.apart,
        };
        let round_trip = distance::median(point.pairs.iter().map(|pair| pair.round_trip));
        Self {
            case: case.to_string(),
            target: subject.name(),
            reference: subject.reference(),
            rw: if case.write { "write" } else { "read" },
            io_bytes: case.io_bytes,
            depth: case.depth,
            connections: case.connections,
            memory: if report.config.null { "null" } else { "ram" },
            memory_bytes: report.config.memory_bytes,
            buffer_each: report.config.buffer_each,
            staged: report.config.staged,
            work_ns: report.config.work.as_nanos(),
            tls: report.config.tls.map(Suite::name),
            pages: &report.pages,
            congestion_control: &report.congestion_control,
            origin: &report.origin,
            reference_iops: ReferenceIops::new(subject, figures.reference_iops),
            iops: figures.iops,
            ratio: figures.ratio,
            ratio_min: figures.least,
            ratio_max: figures.most,
            spread: figures.most - figures.least,
            plain: figures.plain,
            bar: report.bar(),
            reached: figures.ratio >= report.bar(),
            pairs: point.pairs.iter().map(pair).collect(),
            disturbed: figures.disturbed,
            repeated: point.repeated,
            repeated_apart: point.repeated_apart,
            core_round_trip_ns: distance::whole_ns(round_trip),
            p50_us: micros(50.0),
            p99_us: micros(99.0),
            p999_us: micros(99.9),
            limit_tuning: point.tuning.as_ref().map(ToString::to_string),
        }
    }
}
