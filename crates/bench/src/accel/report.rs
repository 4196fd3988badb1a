//! The costs of operations: as a table for users, as a JSON list for programs.

use std::fmt::Write as _;

use raceline_accel::CrcPath;
use serde::Serialize;

use super::{HOT, Row, Way};
use crate::limit::report::median;
use crate::report::{binary_bytes, three_digits};

/// All rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The rows in the order of their measurement.
    pub rows: Vec<Row>,
}

/// The figures of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    /// Time per operation: median, least, most.
    ns: [f64; 3],
    gb_per_s: f64,
    /// Speed relative to the compared way, run by run: median, least, most.
    ratio: Option<[f64; 3]>,
    /// Additional time over the compared way, run by run: the median.
    overhead_ns: Option<f64>,
}

impl Figures {
    fn of(row: &Row) -> Self {
        let ns = spread(row.runs_ns.clone());
        let compare = |with: fn(f64, f64) -> f64| {
            let (_, others) = row.against.as_ref()?;
            Some(spread(
                row.runs_ns.iter().zip(others).map(|(&ns, &other)| with(ns, other)).collect(),
            ))
        };
        Self {
            ns,
            gb_per_s: if ns[0] > 0.0 { row.case.size as f64 / ns[0] } else { 0.0 },
            ratio: compare(|ns, other| if ns > 0.0 { other / ns } else { 0.0 }),
            overhead_ns: compare(|ns, other| ns - other).map(|[median, ..]| median),
        }
    }
}

impl Report {
    /// The first line of the table.
    #[must_use]
    pub fn heading() -> String {
        format!(
            "{:<13}{:>9}{:>10}{:>7}  {:<26}{:>9}{:>12}{:>17}{:>8}{:>13}{:>11}  notes\n",
            "operation",
            "size",
            "operands",
            "depth",
            "way",
            "GB/s",
            "ns/op",
            "spread",
            "ratio",
            "spread",
            "more ns"
        )
    }

    /// One line of the table.
    #[must_use]
    pub fn row(row: &Row) -> String {
        let Figures { ns, gb_per_s, ratio, overhead_ns } = Figures::of(row);
        let depth = match row.way {
            Way::Device { depth, .. } => depth.to_string(),
            Way::Direct(_) | Way::Software(_) => "-".to_owned(),
        };
        let [ratio, least, most] = ratio.unwrap_or_default();
        let compared = row.against.is_some();
        let or_none = |text: String| if compared { text } else { "-".to_owned() };
        let mut line = format!(
            "{:<13}{:>9}{:>10}{depth:>7}  {:<26}{:>9}{:>12}{:>17}{:>8}{:>13}{:>11}",
            row.case.operation.name(),
            binary_bytes(row.case.size as u64),
            binary_bytes(row.touched_bytes as u64),
            row.way.to_string(),
            three_digits(gb_per_s),
            nanoseconds(ns[0]),
            format!("{}-{}", nanoseconds(ns[1]), nanoseconds(ns[2])),
            or_none(format!("{ratio:.2}")),
            or_none(format!("{least:.2}-{most:.2}")),
            or_none(format!("{:+.1}", overhead_ns.unwrap_or_default())),
        );
        let notes = notes(row);
        if !notes.is_empty() {
            let _ = write!(line, "  {notes}");
        }
        line.push('\n');
        line
    }

    /// The last lines of the table.
    #[must_use]
    pub fn legend() -> &'static str {
        "\nns/op is the median of the runs, spread the fastest and the slowest. ratio is the speed over that of the way\n\
         in notes, run beside run (median, least-most), and `more ns` the time on top of it. A row that says emulation\n\
         is a thread that plays the device: it shows that things work, and says nothing of a device's speed.\n"
    }

    /// A list of objects, one per row, ended by a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let rows: Vec<RowJson> = self.rows.iter().map(RowJson::new).collect();
        let mut text = serde_json::to_string_pretty(&rows).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn notes(row: &Row) -> String {
    let mut notes = Vec::new();
    if let Some((way, _)) = &row.against {
        notes.push(format!("against {way}"));
    }
    if let Some(core_ns) = row.core_ns {
        notes.push(format!("{} ns of the core's time", nanoseconds(core_ns)));
    }
    if row.fallback_share > 0.0 {
        notes.push(format!("{:.1} % done in software", 100.0 * row.fallback_share));
    }
    notes.join("; ")
}

/// Nanoseconds with a suitable number of digits.
fn nanoseconds(ns: f64) -> String {
    if ns < 999.5 { three_digits(ns) } else { format!("{ns:.0}") }
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let least = values.first().copied().unwrap_or_default();
    let most = values.last().copied().unwrap_or_default();
    [median(&values), least, most]
}

/// The median of values in any order.
pub(crate) fn median_of(values: &[f64]) -> f64 {
    spread(values.to_vec())[0]
}

#[derive(Serialize)]
struct RowJson {
    operation: &'static str,
    /// `direct`, `software`, or an engine's name.
    engine: String,
    emulated: bool,
    /// The path, for CRC32C in software.
    path: Option<&'static str>,
    /// The way, in words.
    way: String,
    size_bytes: usize,
    depth: Option<usize>,
    /// Bytes of the operands that were used.
    operands_bytes: usize,
    hot: bool,
    gb_per_s: f64,
    ns_per_op: f64,
    ns_min: f64,
    ns_max: f64,
    runs_ns: Vec<f64>,
    /// The way that the next figures compare with.
    against: Option<String>,
    ratio: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    overhead_ns: Option<f64>,
    core_ns: Option<f64>,
    fallback_share: f64,
}

impl RowJson {
    fn new(row: &Row) -> Self {
        let Figures { ns, gb_per_s, ratio, overhead_ns } = Figures::of(row);
        let (engine, emulated, path, depth) = match row.way {
            Way::Direct(_) => ("direct", false, None, None),
            Way::Software(path) => ("software", false, path, None),
            Way::Device { name, is_emulated, depth } => (name, is_emulated, None, Some(depth)),
        };
        Self {
            operation: row.case.operation.name(),
            engine: engine.to_owned(),
            emulated,
            path: path.map(CrcPath::name),
            way: row.way.to_string(),
            size_bytes: row.case.size,
            depth,
            operands_bytes: row.touched_bytes,
            hot: row.case.working_set == HOT,
            gb_per_s,
            ns_per_op: ns[0],
            ns_min: ns[1],
            ns_max: ns[2],
            runs_ns: row.runs_ns.clone(),
            against: row.against.as_ref().map(|(way, _)| way.to_string()),
            ratio: ratio.map(|[median, ..]| median),
            ratio_min: ratio.map(|[_, least, _]| least),
            ratio_max: ratio.map(|[.., most]| most),
            overhead_ns,
            core_ns: row.core_ns,
            fallback_share: row.fallback_share,
        }
    }
}

#[cfg(test)]
mod tests {
    use raceline_accel::OpCode;

    use super::super::Case;
    use super::*;

    fn row(way: Way, runs_ns: &[f64]) -> Row {
        Row {
            case: Case { operation: OpCode::Crc32c, size: 4096, working_set: HOT },
            way,
            touched_bytes: 4096,
            runs_ns: runs_ns.to_vec(),
            against: None,
            core_ns: None,
            fallback_share: 0.0,
        }
    }

    #[test]
    fn ratios_are_taken_run_by_run() {
        let direct = Way::Direct("crc-fast called directly");
        let mut software = row(Way::Software(Some(CrcPath::Auto)), &[50.0, 100.0, 60.0]);
        software.against = Some((direct, vec![45.0, 95.0, 30.0]));
        let figures = Figures::of(&software);
        assert_eq!(figures.ns, [60.0, 50.0, 100.0]);
        assert_eq!(figures.ratio, Some([0.9, 0.5, 0.95]));
        assert_eq!(figures.overhead_ns, Some(5.0));
        assert!((figures.gb_per_s - 4096.0 / 60.0).abs() < 1e-9);
        let line = Report::row(&software);
        assert!(line.contains(" 0.90") && line.contains("0.50-0.95"), "{line}");
        assert!(line.contains("against crc-fast called directly"), "{line}");
    }

    #[test]
    fn columns_stand_under_their_headings() {
        let heading = Report::heading();
        let line = Report::row(&row(Way::Software(None), &[1234.4]));
        for (word, text) in [("GB/s", "3.32"), ("ns/op", "1234 ")] {
            let end = heading.find(word).unwrap() + word.len();
            assert_eq!(line.find(text).unwrap() + text.trim_end().len(), end, "{heading}{line}");
        }
    }

    #[test]
    fn emulation_says_so_everywhere() {
        let way = Way::Device { name: "dsa_emulated", is_emulated: true, depth: 32 };
        let mut device = row(way, &[900.0]);
        (device.core_ns, device.fallback_share) = (Some(120.0), 0.25);
        let line = Report::row(&device);
        assert!(line.contains("dsa_emulated (emulation)") && line.contains("25.0 %"), "{line}");
        assert!(line.contains("120 ns of the core's time"), "{line}");
        let report = Report { rows: vec![device] };
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!((&json[0]["emulated"], &json[0]["depth"]), (&true.into(), &32.into()));
        assert_eq!((&json[0]["hot"], &json[0]["ratio"]), (&true.into(), &serde_json::Value::Null));
        assert!(Report::legend().contains("emulation"));
    }
}
