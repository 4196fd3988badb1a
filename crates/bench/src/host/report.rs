//! Tables of the cases: for people as Markdown, for programs as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::limit::report::median;
use crate::report::grouped;

/// What was found for a case.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Its name.
    pub case: &'static str,
    /// What was compared.
    pub title: String,
    /// One for each comparison; rows with the same columns follow each other.
    pub rows: Vec<Row>,
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it was about.
    pub label: String,
    /// Its figures.
    pub cells: Vec<Cell>,
}

/// A figure of several rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// What it is.
    pub column: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Over all rounds.
    pub median: f64,
    /// Of one round.
    pub lowest: f64,
    /// Of one round.
    pub highest: f64,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Something per second.
    Rate,
    /// One figure over another.
    Ratio,
    /// Time: nanoseconds for programs, microseconds for people.
    #[serde(rename = "ns")]
    Micros,
    /// Something per command.
    PerIo,
}

impl Cell {
    /// Of the values of all rounds.
    #[must_use]
    pub fn new(column: &'static str, unit: Unit, values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let end = |value: Option<&f64>| value.copied().unwrap_or(0.0);
        let (lowest, highest) = (end(values.first()), end(values.last()));
        Self { column, unit, median: median(&values), lowest, highest }
    }

    fn text(&self) -> String {
        let value = |value: f64| match self.unit {
            // Never negative, and far below 2^53.
            Unit::Rate => grouped(format!("{value:.0}").parse().unwrap_or(0)),
            Unit::Ratio => format!("{value:.2}"),
            Unit::Micros => format!("{:.1}", value / 1000.0),
            Unit::PerIo => format!("{value:.4}"),
        };
        if self.lowest.to_bits() == self.highest.to_bits() {
            return value(self.median);
        }
        format!("{} ({} - {})", value(self.median), value(self.lowest), value(self.highest))
    }
}

impl Section {
    /// For people.
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

/// All cases, for programs.
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
}
