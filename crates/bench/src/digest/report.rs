//! The costs of digests: as tables for users, with measured, modelled and published figures apart; as a
//! JSON list for programs.

use std::fmt::Write as _;

use raceline_accel::CrcPath;
use serde::Serialize;

use super::{Case, DigestConfig, Point, Run, Who};
use crate::limit::report::{median, size_name, whole};
use crate::model::published::{self, DEPTHS};
use crate::model::{self, Costs, Digest, Engine, Prediction};
use crate::report::grouped;

/// All points of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings of the measurement.
    pub config: DigestConfig,
    /// The name of the pages.
    pub pages: String,
    /// The ways of a round.
    pub ways: Vec<Who>,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}

/// The source of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Measured,
    /// Computed by [`crate::model`] from our measurements.
    Model,
    /// Computed by [`crate::model`] from published figures of the published experiment.
    ModelOfPublished,
    Published,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Model => "model",
            Self::ModelOfPublished => "model at the published costs",
            Self::Published => "published",
        }
    }
}

/// Median, least and most.
type Spread = [f64; 3];

/// One way at one case, from one source.
struct Line {
    source: Source,
    who: Who,
    iops: Option<f64>,
    core_ns: Option<f64>,
    /// Commands per second of busy time, relative to those without digests.
    of_no_digest: Option<Spread>,
    /// The same, relative to those with digests on the usual path of software.
    of_software: Option<Spread>,
    fallback_share: f64,
}

/// The engine of the model.
const MODEL_ENGINE: Engine = Engine::DSA;
const MODEL_WHO: Who = Who::Offload { name: "one DSA", is_emulated: false };

impl Report {
    /// The first line of the table.
    #[must_use]
    pub fn heading(&self) -> String {
        format!(
            "{:<30}{:<38}{:>11}{:>7}{:>11}{:>13}{:>10}{:>12}  notes ({} pages)\n",
            "case",
            "data digest",
            "IOPS",
            "busy",
            "core ns",
            "IOPS/core",
            "of none",
            "spread",
            self.pages
        )
    }

    /// The lines of the table for one point.
    #[must_use]
    pub fn rows(&self, point: &Point) -> String {
        let mut text = String::new();
        let usual = self.usual();
        for (index, line) in self.lines(point).iter().enumerate() {
            let shown = match line.source {
                Source::Measured => true,
                Source::Model => {
                    line.who == MODEL_WHO
                        || usual.is_some_and(|path| line.who == Who::Software(path))
                }
                Source::ModelOfPublished | Source::Published => false,
            };
            if shown {
                let case = if index == 0 { point.case.to_string() } else { String::new() };
                text.push_str(&row(
                    &case,
                    line,
                    if index == 0 { notes(point) } else { String::new() },
                ));
            }
        }
        text
    }

    /// The last lines: the gain of offload over software, by source.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::from(
            "\nOffload over software, IOPS per core in percent. Only lines that say measured were.\n\n",
        );
        let _ = write!(text, "{:<64}", "commands in flight");
        DEPTHS.iter().for_each(|depth| {
            let _ = write!(text, "{depth:>8}");
        });
        text.push('\n');
        for io_bytes in published::SIZES {
            let published = |depth| published::gain(io_bytes, depth);
            text.push_str(&gain_row(io_bytes, "published: DSA over ISA-L with AVX-512", published));
            let model = |depth| model_of_published(io_bytes, depth).map(|(_, _, gain)| gain);
            text.push_str(&gain_row(io_bytes, "model at the published costs", model));
            for &path in &self.config.paths {
                let name = format!("model at this machine's costs: DSA over {path}");
                let gain = |depth| self.modelled_gain(io_bytes, depth, path);
                text.push_str(&gain_row(io_bytes, &name, gain));
            }
            for &path in &self.config.paths {
                let Some(offload) = self.offload() else { continue };
                let name = format!("measured: {offload} over {path}");
                let gain = |depth| self.measured_gain(io_bytes, depth, path);
                text.push_str(&gain_row(io_bytes, &name, gain));
            }
        }
        text.push_str(LEGEND);
        text
    }

    /// A list of objects, one per case, way and source, ended by a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let lines = self.points.iter().flat_map(|point| {
            self.lines(point).into_iter().map(|line| LineJson::new(self, point, &line))
        });
        let lines: Vec<LineJson> = lines.collect();
        let mut text = serde_json::to_string_pretty(&lines).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The usual path of software.
    fn usual(&self) -> Option<CrcPath> {
        self.config.paths.last().copied()
    }

    fn offload(&self) -> Option<Who> {
        self.ways.iter().copied().find(|who| matches!(who, Who::Offload { .. }))
    }

    fn way(&self, who: Who) -> Option<usize> {
        self.ways.iter().position(|&other| other == who)
    }

    fn lines(&self, point: &Point) -> Vec<Line> {
        let mut lines: Vec<Line> =
            (0..self.ways.len()).map(|way| self.measured(point, way)).collect();
        let case = point.case;
        if case.write {
            return lines;
        }
        lines.extend(self.modelled(point));
        if let Some((offload, software, gain)) = model_of_published(case.io_bytes, case.depth) {
            lines.push(Line {
                of_software: Some([gain; 3]),
                ..Line::predicted(Source::ModelOfPublished, MODEL_WHO, offload, None)
            });
            let usual = Who::Software(CrcPath::Avx512);
            lines.push(Line::predicted(Source::ModelOfPublished, usual, software, None));
        }
        if let Some(gain) = published::gain(case.io_bytes, case.depth) {
            lines.push(Line {
                source: Source::Published,
                who: MODEL_WHO,
                iops: None,
                core_ns: None,
                of_no_digest: None,
                of_software: Some([gain; 3]),
                fallback_share: 0.0,
            });
        }
        lines
    }

    fn measured(&self, point: &Point, way: usize) -> Line {
        let usual = self.usual().and_then(|path| self.way(Who::Software(path)));
        let who = self.ways[way];
        let is_offload = matches!(who, Who::Offload { .. });
        Line {
            source: Source::Measured,
            who,
            iops: Some(point.median(way, |run| run.iops)),
            core_ns: Some(point.median(way, |run| run.core_ns)),
            of_no_digest: (way > 0).then(|| speed_over(point, way, 0)),
            of_software: usual.filter(|_| is_offload).map(|usual| speed_over(point, way, usual)),
            fallback_share: point.median(way, |run| run.fallback_share),
        }
    }

    /// The model's figures for this point, from the measurements without digests and with digests in
    /// software.
    fn modelled(&self, point: &Point) -> Vec<Line> {
        let Some(costs) = self.point_costs(point) else { return Vec::new() };
        let depth = point.case.depth;
        let none = model::predict(&costs, Digest::None, depth);
        let mut lines = Vec::new();
        for &path in &self.config.paths {
            let Some(digest_ns) = self.digest_ns(point, path) else { continue };
            let software = model::predict(&Costs { digest_ns, ..costs }, Digest::Software, depth);
            lines.push(Line::predicted(Source::Model, Who::Software(path), software, Some(none)));
        }
        let offload = model::predict(&costs, Digest::Offload(MODEL_ENGINE), depth);
        let usual =
            self.usual().and_then(|path| self.modelled_gain(point.case.io_bytes, depth, path));
        lines.push(Line {
            of_software: usual.map(|gain| [gain; 3]),
            ..Line::predicted(Source::Model, MODEL_WHO, offload, Some(none))
        });
        lines
    }

    /// The costs at a point except that of a digest.
    fn point_costs(&self, point: &Point) -> Option<Costs> {
        let nobody = self.way(Who::Nobody)?;
        let rest_ns = point.median(nobody, |run| run.core_ns);
        let iops = point.median(nobody, |run| run.iops);
        let (io_bytes, depth) = (point.case.io_bytes, point.case.depth);
        let elsewhere_ns = model::elsewhere_ns(io_bytes, rest_ns, depth, iops);
        Some(Costs { io_bytes, rest_ns, digest_ns: 0.0, elsewhere_ns })
    }

    /// The time that a digest adds to the core's time for a command. A digest by itself would cost more:
    /// the first step that touches uncached data waits for them, and without a digest that is the send.
    fn digest_ns(&self, point: &Point, path: CrcPath) -> Option<f64> {
        let (nobody, software) = (self.way(Who::Nobody)?, self.way(Who::Software(path))?);
        let core_ns = |way| point.median(way, |run| run.core_ns);
        Some((core_ns(software) - core_ns(nobody)).max(0.0))
    }

    fn point(&self, io_bytes: u32, depth: u32) -> Option<&Point> {
        self.points.iter().find(|point| point.case == Case::read(io_bytes, depth))
    }

    /// IOPS per busy core of the model's engine over those of a path of software.
    fn modelled_gain(&self, io_bytes: u32, depth: u32, path: CrcPath) -> Option<f64> {
        let point = self.point(io_bytes, depth)?;
        let costs = self.point_costs(point)?;
        let digest_ns = self.digest_ns(point, path)?;
        let software = model::predict(&Costs { digest_ns, ..costs }, Digest::Software, depth);
        let offload = model::predict(&costs, Digest::Offload(MODEL_ENGINE), depth);
        Some(offload.iops_per_busy_core() / software.iops_per_busy_core())
    }

    fn measured_gain(&self, io_bytes: u32, depth: u32, path: CrcPath) -> Option<f64> {
        let (offload, software) = (self.way(self.offload()?)?, self.way(Who::Software(path))?);
        let [median, ..] = speed_over(self.point(io_bytes, depth)?, offload, software);
        Some(median)
    }
}

const LEGEND: &str = "
IOPS/core is IOPS over the part of its time that the target's core was busy, core ns the busy time per command;
`of none` compares it with no digest, round by round: median, and least-most. The published figures, and the model
at the published costs, are IOPS of a core that polls, so at low depth it is idle in part: those two compare with
each other. The model at this machine's costs takes a core's time for the rest of a command, and what a digest
adds to it, from the measurements above; what it says of an engine is computed. An emulation is a thread that plays the
device, on the host's core, and waking it costs the target's core a system call: it shows that offloading works,
not what it brings.
";

impl Line {
    fn predicted(source: Source, who: Who, of: Prediction, none: Option<Prediction>) -> Self {
        let part = none.map(|none| of.iops_per_busy_core() / none.iops_per_busy_core());
        Self {
            source,
            who,
            iops: Some(of.iops),
            core_ns: Some(of.core_ns),
            of_no_digest: part.map(|part| [part; 3]),
            of_software: None,
            fallback_share: 0.0,
        }
    }

    /// The core also works on commands in the ramp, so the product of the two may be above one.
    fn busy_share(&self) -> Option<f64> {
        Some((self.iops? * self.core_ns? / 1e9).min(1.0))
    }

    fn iops_per_core(&self) -> Option<f64> {
        self.core_ns.filter(|&ns| ns > 0.0).map(|ns| 1e9 / ns)
    }
}

/// Offload and software at the published costs, and the ratio of the first to the second in IOPS.
fn model_of_published(io_bytes: u32, depth: u32) -> Option<(Prediction, Prediction, f64)> {
    published::gain(io_bytes, depth)?;
    let costs = published::costs(io_bytes, &MODEL_ENGINE)?;
    let offload = model::predict(&costs, Digest::Offload(MODEL_ENGINE), depth);
    let software = model::predict(&costs, Digest::Software, depth);
    Some((offload, software, offload.iops / software.iops))
}

/// IOPS per busy core of one way relative to another, round by round.
fn speed_over(point: &Point, way: usize, other: usize) -> Spread {
    let ratio = |one: &Run, other: &Run| {
        if one.core_ns > 0.0 { other.core_ns / one.core_ns } else { 0.0 }
    };
    let mut ratios: Vec<f64> =
        point.rounds.iter().map(|round| ratio(&round.runs[way], &round.runs[other])).collect();
    ratios.sort_by(f64::total_cmp);
    let edge = |ratio: Option<&f64>| ratio.copied().unwrap_or_default();
    [median(&ratios), edge(ratios.first()), edge(ratios.last())]
}

fn notes(point: &Point) -> String {
    match point.rounds.iter().filter(|round| round.disturbance.is_too_much()).count() {
        0 => String::new(),
        count => format!("{count} of {} rounds disturbed", point.rounds.len()),
    }
}

fn row(case: &str, line: &Line, mut notes: String) -> String {
    let number =
        |number: Option<f64>| number.map_or("-".to_owned(), |number| grouped(whole(number)));
    let way = match line.source {
        Source::Measured => line.who.to_string(),
        other => format!("  {}: {}", other.name(), line.who),
    };
    let (ratio, spread) = match (line.of_no_digest, line.source) {
        (None, _) => ("-".to_owned(), "-".to_owned()),
        (Some([median, least, most]), Source::Measured) => {
            (format!("{median:.2}"), format!("{least:.2}-{most:.2}"))
        }
        (Some([median, ..]), _) => (format!("{median:.2}"), "-".to_owned()),
    };
    if line.fallback_share > 0.0 {
        let _ = write!(notes, "{:.1} % of digests in software", 100.0 * line.fallback_share);
    }
    let busy = line.busy_share().map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    let text = format!(
        "{case:<30}{way:<38}{:>11}{busy:>7}{:>11}{:>13}{ratio:>10}{spread:>12}  {notes}",
        number(line.iops),
        number(line.core_ns),
        number(line.iops_per_core()),
    );
    format!("{}\n", text.trim_end())
}

fn gain_row(io_bytes: u32, name: &str, gain: impl Fn(u32) -> Option<f64>) -> String {
    let gains: Vec<Option<f64>> = DEPTHS.iter().map(|&depth| gain(depth)).collect();
    if gains.iter().all(Option::is_none) {
        return String::new();
    }
    let mut text = format!("{:<6}{name:<58}", size_name(io_bytes as usize));
    for gain in gains {
        let _ = match gain {
            Some(gain) => write!(text, "{:>8.0}", 100.0 * gain),
            None => write!(text, "{:>8}", "-"),
        };
    }
    text.push('\n');
    text
}

#[derive(Serialize)]
struct LineJson<'a> {
    case: String,
    source: &'static str,
    io_bytes: u32,
    depth: u32,
    queues: u16,
    digest: &'static str,
    path: Option<&'static str>,
    engine: Option<&'static str>,
    emulated: bool,
    iops: Option<f64>,
    busy_share: Option<f64>,
    core_ns: Option<f64>,
    iops_per_core: Option<f64>,
    of_no_digest: Option<f64>,
    of_no_digest_min: Option<f64>,
    of_no_digest_max: Option<f64>,
    of_software: Option<f64>,
    of_software_min: Option<f64>,
    of_software_max: Option<f64>,
    fallback_share: f64,
    pages: &'a str,
    /// Number of rounds, if the figures were measured.
    rounds: Option<usize>,
    disturbed: Option<usize>,
    repeated: Option<usize>,
}

impl<'a> LineJson<'a> {
    fn new(report: &'a Report, point: &Point, line: &Line) -> Self {
        let (digest, path, engine, emulated) = match line.who {
            Who::Nobody => ("none", None, None, false),
            Who::Software(path) => ("software", Some(path.name()), None, false),
            Who::Offload { name, is_emulated } => ("offload", None, Some(name), is_emulated),
        };
        let [of_none, of_software] = [line.of_no_digest, line.of_software];
        let pick = |spread: Option<Spread>, index: usize| spread.map(|spread| spread[index]);
        let disturbed = point.rounds.iter().filter(|round| round.disturbance.is_too_much()).count();
        let measured = |count: usize| (line.source == Source::Measured).then_some(count);
        Self {
            case: point.case.to_string(),
            source: line.source.name(),
            io_bytes: point.case.io_bytes,
            depth: point.case.depth,
            queues: point.case.queues().0,
            digest,
            path,
            engine,
            emulated,
            iops: line.iops,
            busy_share: line.busy_share(),
            core_ns: line.core_ns,
            iops_per_core: line.iops_per_core(),
            of_no_digest: pick(of_none, 0),
            of_no_digest_min: pick(of_none, 1),
            of_no_digest_max: pick(of_none, 2),
            of_software: pick(of_software, 0),
            of_software_min: pick(of_software, 1),
            of_software_max: pick(of_software, 2),
            fallback_share: line.fallback_share,
            pages: &report.pages,
            rounds: measured(point.rounds.len()),
            disturbed: measured(disturbed),
            repeated: measured(point.repeated),
        }
    }
}

#[cfg(test)]
mod tests {
    use raceline_reactor::{Backend, HugePages, Mode};

    use super::super::Round;
    use super::*;
    use crate::quiet::Disturbance;

    const OFFLOAD: Who = Who::Offload { name: "dsa_emulated", is_emulated: true };

    fn run(iops: f64, core_ns: f64) -> Run {
        Run { iops, core_ns, fallback_share: 0.0 }
    }

    /// Two rounds at 16 KiB and 1,024 in flight; the ways are none, table, auto, an engine.
    fn report() -> Report {
        let paths = vec![CrcPath::Table, CrcPath::Auto];
        let ways =
            vec![Who::Nobody, Who::Software(CrcPath::Table), Who::Software(CrcPath::Auto), OFFLOAD];
        let config = DigestConfig {
            memory_bytes: 1 << 20,
            pages: HugePages::None,
            paths: paths.clone(),
            device: None,
            mode: Mode::Poll,
            backend: Backend::Auto,
            target_core: None,
            host_core: None,
            rounds: 2,
            ramp: Default::default(),
            time: Default::default(),
            seed: 1,
        };
        let io_bytes = 16 << 10;
        let round = |slower: f64, foreign_percent| Round {
            runs: vec![
                run(400_000.0, 2000.0),
                run(80_000.0, 12_000.0 * slower),
                run(300_000.0, 3000.0 * slower),
                run(350_000.0, 2500.0 * slower),
            ],
            disturbance: Disturbance { foreign_percent, ..Disturbance::default() },
        };
        let case = Case::read(io_bytes, 1024);
        let point = Point { case, rounds: vec![round(1.0, 0.0), round(1.2, 9.0)], repeated: 1 };
        Report { config, pages: "plain".to_owned(), ways, points: vec![point] }
    }

    #[test]
    fn rows_say_what_was_measured_and_what_was_computed() {
        let report = report();
        let rows = report.rows(&report.points[0]);
        let lines: Vec<&str> = rows.lines().collect();
        assert_eq!(lines.len(), 6, "{rows}");
        assert!(lines[0].starts_with("16k read depth 1024 (64 x 16)"), "{rows}");
        assert!(lines[0].ends_with("1 of 2 rounds disturbed"), "{rows}");
        assert!(lines[0].contains("80 %") && lines[0].contains("500,000"), "{rows}");
        // 3000 ns and 3600 ns against 2000 ns.
        assert!(lines[2].contains("0.61") && lines[2].contains("0.56-0.67"), "{rows}");
        assert!(lines[3].contains("dsa_emulated (emulation)"), "{rows}");
        assert!(lines[4].contains("model: software, auto"), "{rows}");
        assert!(lines[5].contains("model: offload, one DSA"), "{rows}");
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(&report.heading(), "IOPS/core"), end(lines[0], "500,000"));
    }

    #[test]
    fn the_summary_has_each_source_by_name() {
        let report = report();
        let summary = report.summary();
        let line = |start: &str| {
            let found = summary.lines().find(|line| line.starts_with(start));
            found.unwrap_or_else(|| panic!("{start}: {summary}")).to_owned()
        };
        assert!(line("16k   published: DSA over ISA-L").ends_with("107     106     117     134"));
        let computed = line("16k   model at the published costs");
        assert!(computed.ends_with("100     100     105     139"), "{computed}");
        // 12000 and 3000 against 2500, in both rounds.
        assert!(
            line("16k   measured: offload, dsa_emulated (emulation) over table").ends_with("480")
        );
        assert!(
            line("16k   measured: offload, dsa_emulated (emulation) over auto").ends_with("120")
        );
        assert!(
            line("16k   model at this machine's costs: DSA over table")
                .ends_with(|c: char| c.is_ascii_digit())
        );
        // The other sizes were not measured; the published figures stay.
        assert!(line("4k    published").ends_with("106"));
        assert!(!summary.contains("4k    measured"), "{summary}");
    }

    #[test]
    fn json_has_a_line_for_each_way_and_source() {
        let report = report();
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let lines = json.as_array().unwrap();
        let of = |source: &str, digest: &str| {
            let mut found =
                lines.iter().filter(|line| line["source"] == source && line["digest"] == digest);
            found.next().unwrap_or_else(|| panic!("{source}, {digest}: {json}"))
        };
        assert_eq!(of("measured", "none")["iops_per_core"], 500_000.0);
        assert_eq!(of("measured", "none")["of_no_digest"], serde_json::Value::Null);
        let offload = of("measured", "offload");
        assert_eq!(
            (&offload["engine"], &offload["emulated"]),
            (&"dsa_emulated".into(), &true.into())
        );
        assert!((offload["of_software"].as_f64().unwrap() - 1.2).abs() < 1e-9);
        assert_eq!((&offload["disturbed"], &offload["repeated"]), (&1.into(), &1.into()));
        assert_eq!(of("published", "offload")["of_software"], 1.34);
        assert_eq!(of("published", "offload")["iops"], serde_json::Value::Null);
        assert_eq!(of("model", "offload")["rounds"], serde_json::Value::Null);
        for line in lines {
            let part = |name: &str| line[name].as_f64().unwrap_or(0.0);
            assert!(part("busy_share") <= 1.0 && part("of_no_digest") <= 1.0, "{line}");
        }
        assert!(of("model at the published costs", "software")["iops"].as_f64().unwrap() > 0.0);
    }
}
