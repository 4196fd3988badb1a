//! The pictures of an experiment, from its record.

use raceline_plot::{
    Axis, Bar, Bars, Cell, Chart, Forest, Heat, Kind, Line, Mark, Picture, Row, Way,
};

use super::model::{Entry, Ratio};
use crate::experiment::{Better, Column, Figure, FigureKind, Metric};
use crate::statistics::{Estimate, Histogram, median_estimate};

/// Columns of which a distribution is drawn, at most.
const DISTRIBUTIONS_MAX: usize = 3;
/// Ratios in one picture, at most.
const ROWS_MAX: usize = 40;
/// Steps of a distribution for each factor of ten of what is left to 100 %, and how many factors.
const STEPS: u32 = 12;
const FACTORS: u32 = 6;

/// A picture of an experiment.
pub(super) struct Drawn {
    /// The name of its file, without the end.
    pub(super) file: String,
    /// Its caption.
    pub(super) title: String,
    /// What the reader has to know about it.
    pub(super) notes: Vec<String>,
    pub(super) picture: Picture,
}

impl Drawn {
    /// The picture as a file.
    pub(super) fn svg(&self) -> String {
        self.picture.file(&self.title, &self.notes)
    }
}

/// All pictures of an experiment; none if nothing was measured.
pub(super) fn of(entry: &Entry) -> Vec<Drawn> {
    let Some(record) = &entry.record else { return Vec::new() };
    let mut drawn = Vec::new();
    for figure in &entry.experiment.figures {
        match figure.kind {
            FigureKind::Lines => by_metric(entry, figure, Way::Lines, &mut drawn),
            FigureKind::Dots => by_metric(entry, figure, Way::Dots, &mut drawn),
            FigureKind::Curve => curves(entry, figure, &mut drawn),
            FigureKind::Distribution => distributions(entry, figure, &mut drawn),
            FigureKind::Forest => forest(entry, figure, &mut drawn),
            FigureKind::Heat => heats(entry, figure, &mut drawn),
            FigureKind::Stack => stack(entry, figure, &mut drawn),
        }
    }
    let has_ratios = |figure: &Figure| matches!(figure.kind, FigureKind::Forest | FigureKind::Heat);
    if !entry.experiment.figures.iter().any(has_ratios) && !entry.ratios.is_empty() {
        let title = "Ratios, ours and published".to_owned();
        let figure = Figure { title, kind: FigureKind::Forest, metrics: Vec::new(), log: false };
        forest(entry, &figure, &mut drawn);
    }
    let bed = format!("{}: {}. Bed: {}.", entry.experiment.id, entry.command(), record.bed.kind);
    let name = file_name(&entry.experiment.id);
    for (at, one) in drawn.iter_mut().enumerate() {
        one.file = format!("{name}-{}", at + 1);
        one.notes.push(bed.clone());
    }
    drawn
}

/// An ID as a part of a file's name or of an address in the page.
pub(super) fn file_name(id: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    id.chars().take(60).map(safe).collect()
}

fn add(drawn: &mut Vec<Drawn>, title: String, notes: Vec<String>, picture: Picture) {
    drawn.push(Drawn { file: String::new(), title, notes, picture });
}

/// A value with its interval; without one, with the range of its runs.
fn mark(entry: &Entry, series: &str, column: &str, metric: &str) -> Option<Mark> {
    let value = entry.value(series, column, metric)?;
    let estimate = &value.estimate;
    let ends = estimate.interval.map_or(value.range, |interval| (interval.low, interval.high));
    let ends = (estimate.runs > 1).then_some(ends);
    Some(Mark { middle: estimate.value, ends })
}

fn mark_of(estimate: &Estimate) -> Mark {
    let ends = estimate.interval.map(|interval| (interval.low, interval.high));
    Mark { middle: estimate.value, ends }
}

/// What the ends of intervals are.
fn ends_note(entry: &Entry) -> String {
    let without = entry.values.iter().any(|value| value.estimate.interval.is_none());
    if without {
        "Medians; ends: 95 % intervals, or the range of the runs where they are too few for an interval.".to_owned()
    } else {
        "Medians with 95 % intervals.".to_owned()
    }
}

fn titled(label: &str, unit: &str) -> String {
    if unit.is_empty() { label.to_owned() } else { format!("{label} ({unit})") }
}

/// The metrics that a figure shows; those of the experiment if it names none.
fn metrics<'a>(entry: &'a Entry, figure: &Figure) -> Vec<&'a Metric> {
    let named = |metric: &&Metric| figure.metrics.contains(&metric.id);
    let found: Vec<&Metric> = entry.experiment.metrics.iter().filter(named).collect();
    if found.is_empty() { entry.experiment.metrics.iter().take(1).collect() } else { found }
}

fn caption(figure: &Figure, part: &str) -> String {
    if part.is_empty() { figure.title.clone() } else { format!("{}: {part}", figure.title) }
}

/// A chart over the experiment's axis for each metric.
fn by_metric(entry: &Entry, figure: &Figure, way: Way, drawn: &mut Vec<Drawn>) {
    let all = metrics(entry, figure);
    for metric in &all {
        let (x, columns) = horizontal(entry, way == Way::Dots);
        let line = |series: &crate::experiment::Series| {
            let point = |(place, column): &(f64, &Column)| {
                Some((*place, mark(entry, &series.id, &column.id, &metric.id)?))
            };
            let points = columns.iter().filter_map(point).collect();
            Line { name: series.label.clone(), points }
        };
        let lines: Vec<Line> = entry.experiment.series.iter().map(line).collect();
        let kind = if figure.log { Kind::Log } else { Kind::Linear };
        let y = Axis { title: titled(&metric.label, &metric.unit), kind, ticks: Vec::new() };
        let mut notes = vec![ends_note(entry)];
        notes.extend(absent(entry, &lines));
        let part = if all.len() > 1 { metric.label.as_str() } else { "" };
        let picture = Chart { x, y, way, lines, rules: Vec::new() }.draw();
        add(drawn, caption(figure, part), notes, picture);
    }
}

/// Which series have no points.
fn absent(entry: &Entry, lines: &[Line]) -> Option<String> {
    let without: Vec<&str> =
        lines.iter().filter(|line| line.points.is_empty()).map(|line| line.name.as_str()).collect();
    (!without.is_empty() && !entry.values.is_empty())
        .then(|| format!("Not measured: {}.", without.join("; ")))
}

/// The horizontal axis and the columns with their places. Columns are equally spaced unless all have numbers.
fn horizontal(entry: &Entry, places: bool) -> (Axis, Vec<(f64, &Column)>) {
    let axis = &entry.experiment.axis;
    let title = titled(&axis.label, &axis.unit);
    let measured = |column: &&Column| entry.values.iter().any(|value| value.column == column.id);
    let shown: Vec<&Column> = axis.columns.iter().filter(measured).collect();
    let numbers: Vec<f64> = shown.iter().filter_map(|column| column.value).collect();
    let mut different = numbers.clone();
    different.sort_by(f64::total_cmp);
    different.dedup();
    let numeric = !places && numbers.len() == shown.len() && different.len() == shown.len();
    if !numeric || shown.len() < 2 {
        let names = shown.iter().map(|column| column.id.clone()).collect();
        let columns =
            shown.into_iter().enumerate().map(|(at, column)| (at as f64, column)).collect();
        return (Axis { title, kind: Kind::Places(names), ticks: Vec::new() }, columns);
    }
    let least = different.first().copied().unwrap_or(1.0);
    let most = different.last().copied().unwrap_or(1.0);
    let kind = if least > 0.0 && most / least >= 16.0 { Kind::Log } else { Kind::Near };
    let ticks =
        shown.iter().zip(&numbers).map(|(column, value)| (*value, column.id.clone())).collect();
    let columns = numbers.iter().copied().zip(shown).collect();
    (Axis { title, kind, ticks }, columns)
}

/// One metric over another: the one of which more is better lies along the bottom.
fn curves(entry: &Entry, figure: &Figure, drawn: &mut Vec<Drawn>) {
    let all = metrics(entry, figure);
    let higher = |metric: &&&Metric| metric.better == Better::Higher;
    let Some(bottom) = all.iter().find(higher).or(all.last()).copied() else { return };
    let columns = &entry.experiment.axis.columns;
    // A column without a number among others that have one is no part of the curve.
    let is_part = |column: &&Column| {
        column.value.is_some() || columns.iter().all(|column| column.value.is_none())
    };
    for metric in all.iter().filter(|metric| metric.id != bottom.id) {
        let line = |series: &crate::experiment::Series| {
            let point = |column: &Column| {
                let x = entry.value(&series.id, &column.id, &bottom.id)?.estimate.value;
                Some((x, mark(entry, &series.id, &column.id, &metric.id)?))
            };
            let points = columns.iter().filter(is_part).filter_map(point).collect();
            Line { name: series.label.clone(), points }
        };
        let lines: Vec<Line> = entry.experiment.series.iter().map(line).collect();
        let kind = if figure.log { Kind::Log } else { Kind::Linear };
        let y = Axis { title: titled(&metric.label, &metric.unit), kind, ticks: Vec::new() };
        let title = titled(&bottom.label, &bottom.unit);
        let x = Axis { title, kind: Kind::Linear, ticks: Vec::new() };
        let axis = titled(&entry.experiment.axis.label, &entry.experiment.axis.unit);
        let mut notes = vec![format!("{} Along each curve: {axis}.", ends_note(entry))];
        notes.extend(absent(entry, &lines));
        let part = if all.len() > 2 { metric.label.as_str() } else { "" };
        add(
            drawn,
            caption(figure, part),
            notes,
            Chart { x, y, way: Way::Lines, lines, rules: Vec::new() }.draw(),
        );
    }
}

/// The distribution of latencies for some columns: those with published ratios first.
fn distributions(entry: &Entry, figure: &Figure, drawn: &mut Vec<Drawn>) {
    let Some(record) = &entry.record else { return };
    let has = |column: &&Column| {
        let mut points = record.points.iter().filter(|point| point.x == column.id);
        points.any(|point| point.runs.iter().any(|run| !run.latencies.is_empty()))
    };
    let mut columns: Vec<&Column> = entry.experiment.axis.columns.iter().filter(has).collect();
    let published = |column: &&Column| {
        entry.ratios.iter().any(|ratio| ratio.column == column.id && ratio.published.is_some())
    };
    columns.sort_by_key(|column| !published(column));
    let left: Vec<&str> =
        columns.iter().skip(DISTRIBUTIONS_MAX).map(|column| column.id.as_str()).collect();
    for column in columns.iter().take(DISTRIBUTIONS_MAX) {
        let line = |series: &crate::experiment::Series| Line {
            name: series.label.clone(),
            points: entry.point(&series.id, &column.id).map_or(Vec::new(), percentiles),
        };
        let lines: Vec<Line> = entry.experiment.series.iter().map(line).collect();
        let mut notes = vec![
            "All runs together; area: the range of the runs. A line ends where fewer than 10 commands are beyond.".to_owned(),
        ];
        if !left.is_empty() {
            notes.push(format!("Not drawn, but measured: {}.", left.join(", ")));
        }
        notes.extend(absent(entry, &lines));
        let x = Axis {
            title: "Commands that are faster (%)".to_owned(),
            kind: Kind::Percentile,
            ticks: Vec::new(),
        };
        let y = Axis { title: "Latency (us)".to_owned(), kind: Kind::Log, ticks: Vec::new() };
        let part = if columns.len() > 1 || entry.experiment.axis.columns.len() > 1 {
            format!("{} {}", entry.experiment.axis.label, column.id)
        } else {
            String::new()
        };
        add(
            drawn,
            caption(figure, &part),
            notes,
            Chart { x, y, way: Way::Bands, lines, rules: Vec::new() }.draw(),
        );
    }
    if columns.is_empty() {
        let empty = Forest { title: String::new(), rows: Vec::new() };
        add(
            drawn,
            figure.title.clone(),
            vec!["The record has no latencies.".to_owned()],
            empty.draw(),
        );
    }
}

/// Percentiles of all runs together, in microseconds, with the range of the runs where each run has them.
fn percentiles(point: &crate::record::Point) -> Vec<(f64, Mark)> {
    let all = Histogram::of(&point.runs);
    let each: Vec<Histogram> = point.runs.iter().map(|run| Histogram::of([run])).collect();
    let us = |ns: u64| ns as f64 / 1000.0;
    let mut points = Vec::new();
    for step in 0..=STEPS * FACTORS {
        let percent = 100.0 * (1.0 - 10f64.powf(-f64::from(step) / f64::from(STEPS)));
        let Some(middle) = all.percentile_ns(percent).map(us) else { break };
        let runs: Vec<f64> =
            each.iter().filter_map(|one| one.percentile_ns(percent)).map(us).collect();
        let low = runs.iter().copied().fold(middle, f64::min);
        let high = runs.iter().copied().fold(middle, f64::max);
        let complete = runs.len() == each.len() && runs.len() > 1;
        points.push((percent, Mark { middle, ends: complete.then_some((low, high)) }));
    }
    points
}

/// The ratios with their intervals; those of which nothing is known are left out.
fn forest(entry: &Entry, figure: &Figure, drawn: &mut Vec<Drawn>) {
    let known = |ratio: &&Ratio| ratio.ours.is_some() || ratio.published.is_some();
    let shown: Vec<&Ratio> = entry.ratios.iter().filter(known).collect();
    let one = entry.experiment.axis.columns.len() < 2;
    let unit = &entry.experiment.axis.unit;
    let row = |ratio: &&Ratio| {
        let place = if one { String::new() } else { format!(": {}", ratio.column) };
        Row {
            name: format!("{}{place}", ratio.label),
            ours: ratio.ours.as_ref().map(mark_of),
            published: ratio.published,
        }
    };
    let rows: Vec<Row> = shown.iter().take(ROWS_MAX).map(row).collect();
    let mut notes = vec![
        "Geometric means of the ratios within blocks, with 95 % intervals by bootstrap over blocks.".to_owned(),
    ];
    if shown.len() > ROWS_MAX {
        notes.push(format!("{} more ratios are in the table.", shown.len() - ROWS_MAX));
    }
    let axis = titled(&entry.experiment.axis.label, unit);
    let title = if one { "Ratio".to_owned() } else { format!("Ratio, by {axis}") };
    add(drawn, figure.title.clone(), notes, Forest { title, rows }.draw());
}

/// A map for each comparison whose columns are pairs of two variables (`4K-128`), or one of all comparisons.
fn heats(entry: &Entry, figure: &Figure, drawn: &mut Vec<Drawn>) {
    let columns: Vec<&str> =
        entry.experiment.axis.columns.iter().map(|column| column.id.as_str()).collect();
    let hatched = "hatched: the target was not the bottleneck".to_owned();
    let notes = || {
        vec!["In each cell: the ratio, its 95 % interval, and what the source prints. Blue is above 1, orange below.".to_owned()]
    };
    let axis = titled(&entry.experiment.axis.label, &entry.experiment.axis.unit);
    let Some((rows, seconds)) = product(&columns) else {
        let of = |number: usize| columns.iter().map(|id| cell(entry, number, id)).collect();
        let numbers = 0..entry.experiment.comparisons.len();
        let heat = Heat {
            rows: entry.experiment.comparisons.iter().map(|one| one.label.clone()).collect(),
            columns: columns.iter().map(|&id| id.to_owned()).collect(),
            title: axis,
            hatched,
            cells: numbers.map(of).collect(),
        };
        return add(drawn, figure.title.clone(), notes(), heat.draw());
    };
    for (number, comparison) in entry.experiment.comparisons.iter().enumerate() {
        let of_row = |row: &String| {
            seconds.iter().map(|second| cell(entry, number, &format!("{row}-{second}"))).collect()
        };
        let heat = Heat {
            rows: rows.clone(),
            columns: seconds.clone(),
            title: axis.clone(),
            hatched: hatched.clone(),
            cells: rows.iter().map(of_row).collect(),
        };
        add(drawn, caption(figure, &comparison.label), notes(), heat.draw());
    }
}

fn cell(entry: &Entry, comparison: usize, column: &str) -> Cell {
    let is_it = |ratio: &&Ratio| ratio.comparison == comparison && ratio.column == column;
    entry.ratios.iter().find(is_it).map_or(Cell::default(), |ratio| Cell {
        ours: ratio.ours.as_ref().map(mark_of),
        published: ratio.published,
        hatched: ratio.ours.is_some() && ratio.target_bound == Some(false),
    })
}

/// The two variables of names such as `4K-128`, if each value of one is with each value of the other.
fn product(names: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let (mut rows, mut seconds) = (Vec::<String>::new(), Vec::<String>::new());
    for name in names {
        let (row, second) = name.split_once('-')?;
        for (list, part) in [(&mut rows, row), (&mut seconds, second)] {
            if !list.iter().any(|known| known == part) {
                list.push(part.to_owned());
            }
        }
    }
    (rows.len() > 1 && seconds.len() > 1 && rows.len() * seconds.len() == names.len())
        .then_some((rows, seconds))
}

/// Parts of the first metric: what the second adds, on top of the rest.
fn stack(entry: &Entry, figure: &Figure, drawn: &mut Vec<Drawn>) {
    let named: Vec<&Metric> =
        figure.metrics.iter().filter_map(|id| entry.experiment.metric(id)).collect();
    let [whole, added] = named[..] else {
        return by_metric(entry, figure, Way::Dots, drawn);
    };
    let mut bars = Vec::new();
    for column in &entry.experiment.axis.columns {
        for series in &entry.experiment.series {
            let Some(point) = entry.point(&series.id, &column.id) else { continue };
            let name = if entry.experiment.axis.columns.len() > 1 {
                format!("{}: {}", column.id, series.label)
            } else {
                series.label.clone()
            };
            let top = mark(entry, &series.id, &column.id, &added.id);
            let rest = |run: &crate::record::Run| {
                let of = |metric: &Metric| run.values.get(&metric.id).copied();
                Some(of(whole)? - of(added).unwrap_or(0.0))
            };
            let rest: Vec<f64> = point.runs.iter().filter_map(rest).collect();
            let low = median_estimate(&rest).map(|estimate| match top {
                Some(_) => Mark::alone(estimate.value),
                None => mark_of(&estimate),
            });
            bars.push(Bar { name, parts: vec![low, top] });
        }
    }
    let mut notes = vec![
        "Medians; the interval is that of what is added, or of the whole where nothing is."
            .to_owned(),
    ];
    let is_absent = |series: &&crate::experiment::Series| {
        !entry.values.iter().any(|value| value.series == series.id)
    };
    let without: Vec<&str> = entry
        .experiment
        .series
        .iter()
        .filter(is_absent)
        .map(|series| series.label.as_str())
        .collect();
    if !without.is_empty() {
        notes.push(format!("Not measured: {}.", without.join("; ")));
    }
    let parts = vec!["local".to_owned(), added.label.clone()];
    let title = titled(&whole.label, &whole.unit);
    add(drawn, figure.title.clone(), notes, Bars { title, parts, bars }.draw());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_two_variables_are_told_from_others() {
        let (rows, columns) = product(&["4K-128", "4K-1024", "16K-128", "16K-1024"]).unwrap();
        assert_eq!(
            (rows.join(" "), columns.join(" ")),
            ("4K 16K".to_owned(), "128 1024".to_owned())
        );
        assert!(product(&["16", "16-capped", "32", "32-capped"]).is_none());
        assert!(product(&["4K-1", "4K-2", "8K-1"]).is_none());
    }

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(file_name("CH-F1/T1"), "CH-F1_T1");
        assert_eq!(file_name("../a\"<b>"), "___a__b_");
        assert_eq!(file_name(&"x".repeat(500)).len(), 60);
    }
}
