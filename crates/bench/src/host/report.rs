//! Tables of the cases: as Markdown for users, as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use crate::limit::report::median;
use crate::report::grouped;

/// The results of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Its name.
    pub case: &'static str,
    /// The comparison.
    pub title: String,
    /// One row for each comparison; rows with the same columns follow each other.
    pub rows: Vec<Row>,
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is compared.
    pub label: String,
    /// Its figures.
    pub cells: Vec<Cell>,
}

/// A figure of several rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Its name.
    pub column: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The spread over all rounds; none if a round has no value, such as a ratio to a rate of 0.
    #[serde(flatten)]
    pub spread: Option<Spread>,
}

/// The spread of a figure over several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median of all rounds.
    pub median: f64,
    /// The value of the lowest round.
    pub lowest: f64,
    /// The value of the highest round.
    pub highest: f64,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A number per second.
    Rate,
    /// One figure over another.
    Ratio,
    /// Time: nanoseconds for programs, microseconds for users.
    #[serde(rename = "ns")]
    Micros,
    /// A number per command.
    PerIo,
}

impl Cell {
    /// The spread of the values of all rounds. Infinity and NaN are not values.
    #[must_use]
    pub fn new(column: &'static str, unit: Unit, values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let spread = match (values.first(), values.last()) {
            (Some(&lowest), Some(&highest)) if values.iter().all(|value| value.is_finite()) => {
                Some(Spread { median: median(&values), lowest, highest })
            }
            _ => None,
        };
        Self { column, unit, spread }
    }

    fn text(&self) -> String {
        let Some(Spread { median, lowest, highest }) = self.spread else {
            return "none".to_owned();
        };
        let value = |value: f64| match self.unit {
            // Never negative, and far below 2^53.
            Unit::Rate => grouped(format!("{value:.0}").parse().unwrap_or(0)),
            Unit::Ratio => format!("{value:.2}"),
            Unit::Micros => format!("{:.1}", value / 1000.0),
            Unit::PerIo => format!("{value:.4}"),
        };
        if lowest.to_bits() == highest.to_bits() {
            return value(median);
        }
        format!("{} ({} - {})", value(median), value(lowest), value(highest))
    }
}

impl Section {
    /// The section for users.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("{}: {}\n", self.case, self.title);
        let mut columns: Vec<&str> = Vec::new();
        for row in &self.rows {
            let own: Vec<&str> = row.cells.iter().map(|cell| cell.column).collect();
            if own != columns {
                let _ =
                    writeln!(out, "\n| | {} |\n|{}", own.join(" | "), "---|".repeat(own.len() + 1));
                columns = own;
            }
            let cells: Vec<String> = row.cells.iter().map(Cell::text).collect();
            let _ = writeln!(out, "| {} | {} |", row.label, cells.join(" | "));
        }
        out
    }
}

/// All cases, as JSON for programs.
#[must_use]
pub fn to_json(sections: &[Section]) -> String {
    let mut text =
        serde_json::to_string_pretty(&serde_json::json!({ "cases": sections })).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_other_columns_begin_a_table() {
        let rate = Cell::new("IOPS", Unit::Rate, [2000.4, 1000.0, 3000.0]);
        let time = Cell::new("mean us", Unit::Micros, [1500.0]);
        let row = |label: &str, cells| Row { label: label.to_owned(), cells };
        let rows = vec![
            row("a", vec![rate.clone()]),
            row("b", vec![rate.clone()]),
            row("c", vec![rate, time]),
        ];
        let section = Section { case: "maps", title: "title".to_owned(), rows };
        let expected = "\
maps: title

| | IOPS |
|---|---|
| a | 2,000 (1,000 - 3,000) |
| b | 2,000 (1,000 - 3,000) |

| | IOPS | mean us |
|---|---|---|
| c | 2,000 (1,000 - 3,000) | 1.5 |
";
        assert_eq!(section.to_text(), expected);
        let json: serde_json::Value = serde_json::from_str(&to_json(&[section])).unwrap();
        let cell = &json["cases"][0]["rows"][2]["cells"][1];
        assert_eq!((&cell["unit"], &cell["median"]), (&"ns".into(), &1500.0.into()));
    }

    #[test]
    fn a_ratio_to_nothing_is_no_number() {
        for over_nothing in [f64::NAN, f64::INFINITY] {
            let ratio = Cell::new("i10 / this", Unit::Ratio, [1.0, over_nothing]);
            assert_eq!((ratio.spread, ratio.text().as_str()), (None, "none"));
            let json = serde_json::to_value(&ratio).unwrap();
            assert_eq!(json, serde_json::json!({ "column": "i10 / this", "unit": "ratio" }));
        }
        assert_eq!(Cell::new("IOPS", Unit::Rate, []).text(), "none");
    }
}
