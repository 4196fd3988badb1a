//! The wall of a latency curve: the highest rate before the latency rises.
//!
//! Commands are offered at a rate, and the rate rises from column to column. At each column a series has either kept
//! up, or its latency has risen and commands are missed. The wall is what it achieved in the last column before that.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::experiment::{Comparison, Experiment, Wall};
use crate::record::{Point, Record, Run};

/// The name of the place at which walls are compared: no column of an axis has it.
pub const WALL: &str = "wall";

/// The places of a comparison: the wall, or its columns.
#[must_use]
pub fn places<'a>(experiment: &'a Experiment, comparison: &'a Comparison) -> Vec<&'a str> {
    if comparison.wall.is_some() {
        return vec![WALL];
    }
    let wanted = |id: &String| comparison.columns.is_empty() || comparison.columns.contains(id);
    let columns = experiment.axis.columns.iter().map(|column| &column.id);
    columns.filter(|id| wanted(id)).map(String::as_str).collect()
}

/// What a series has at a place of a comparison: the point of a column, or a point whose runs have the wall of each
/// block as the comparison's metric.
#[must_use]
pub fn at_place<'a>(
    record: &'a Record,
    comparison: &Comparison,
    series: &str,
    place: &str,
) -> Option<Cow<'a, Point>> {
    match &comparison.wall {
        Some(wall) => walls(record, comparison, wall, series).map(Cow::Owned),
        None => find(record, series, place).map(Cow::Borrowed),
    }
}

fn find<'a>(record: &'a Record, series: &str, column: &str) -> Option<&'a Point> {
    record.points.iter().find(|point| point.series == series && point.x == column)
}

/// The walls of a series, by block. `None` if no block has one.
fn walls(record: &Record, comparison: &Comparison, wall: &Wall, series: &str) -> Option<Point> {
    let points: Vec<&Point> =
        comparison.columns.iter().filter_map(|column| find(record, series, column)).collect();
    let lowest = points.first()?;
    // Without the lowest column nobody knows the latency at a low rate.
    if comparison.columns.first() != Some(&lowest.x) {
        return None;
    }
    let of_block = |run: &Run| {
        let runs = points.iter().map(|point| point.runs.iter().find(|it| it.block == run.block));
        let achieved = wall_of(runs.map_while(|run| run), &comparison.metric, wall)?;
        let values = BTreeMap::from([(comparison.metric.clone(), achieved)]);
        Some(Run { values, latencies: Vec::new(), ..run.clone() })
    };
    let runs: Vec<Run> = lowest.runs.iter().filter_map(of_block).collect();
    (!runs.is_empty()).then(|| Point { series: series.to_owned(), x: WALL.to_owned(), runs })
}

/// The metric in the last run, of one for each column, before the latency rises or commands are missed.
fn wall_of<'a>(runs: impl Iterator<Item = &'a Run>, metric: &str, wall: &Wall) -> Option<f64> {
    let (mut lowest, mut achieved) = (None, None);
    for run in runs {
        let latency = *run.values.get(&wall.latency)?;
        let most = *lowest.get_or_insert(latency) * wall.times;
        let missed = run.values.get(&wall.missed).copied().unwrap_or(0.0);
        if latency > most || missed > wall.missed_percent_max {
            break;
        }
        achieved = Some(*run.values.get(metric)?);
    }
    achieved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(iops: f64, p99_us: f64, missed_percent: f64) -> Run {
        let values = [("iops", iops), ("p99_us", p99_us), ("missed_percent", missed_percent)];
        Run {
            block: 0,
            values: values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            latencies: Vec::new(),
            target_bound: None,
            foreign_percent: 0.0,
            stolen_percent: 0.0,
        }
    }

    fn wall() -> Wall {
        Wall {
            latency: "p99_us".to_owned(),
            times: 2.0,
            missed: "missed_percent".to_owned(),
            missed_percent_max: 1.0,
        }
    }

    #[test]
    fn walls_are_paired_by_block_and_need_the_lowest_rate() {
        let catalogue = crate::catalogue::Catalogue::builtin().unwrap();
        let experiment = catalogue.find("NT-I10-L").unwrap();
        let comparison = &experiment.comparisons[0];
        assert_eq!(places(experiment, comparison), [WALL]);
        assert_eq!(places(experiment, &experiment.comparisons[2]), ["closed"]);
        let point = |series: &str, x: &str, iops: f64, p99_us: f64| {
            let runs = (0..6).map(|block| Run { block, ..run(iops, p99_us, 0.0) }).collect();
            Point { series: series.to_owned(), x: x.to_owned(), runs }
        };
        let mut points = vec![
            point("single", "10", 10.0, 50.0),
            point("single", "80", 80.0, 70.0),
            point("single", "100", 96.0, 900.0),
            point("i10", "10", 10.0, 60.0),
            point("i10", "80", 80.0, 60.0),
            point("i10", "100", 100.0, 80.0),
            point("i10", "120", 120.0, 110.0),
        ];
        let ratio = |points: &[Point]| {
            let record = crate::statistics::tests::record(points.to_vec());
            let at = |series| at_place(&record, comparison, series, WALL).map(Cow::into_owned);
            crate::statistics::ratio(&at("i10")?, &at("single")?, "iops").map(|ratio| ratio.value)
        };
        assert!((ratio(&points).unwrap() - 1.5).abs() < 1e-9);
        points.remove(0);
        assert_eq!(ratio(&points), None, "the latency at a low rate is not known");
    }

    #[test]
    fn the_wall_is_the_last_rate_before_the_latency_rises() {
        let of = |runs: &[Run]| wall_of(runs.iter(), "iops", &wall());
        let low = run(10.0, 50.0, 0.0);
        let rises =
            [low.clone(), run(50.0, 90.0, 0.0), run(80.0, 101.0, 0.0), run(99.0, 60.0, 0.0)];
        assert_eq!(of(&rises), Some(50.0), "what comes after the rise does not count");
        let misses = [low.clone(), run(50.0, 60.0, 1.0), run(60.0, 60.0, 1.1)];
        assert_eq!(of(&misses), Some(50.0));
        assert_eq!(of(std::slice::from_ref(&low)), Some(10.0));
        assert_eq!(of(&[run(5.0, 50.0, 2.0)]), None);
        assert_eq!(of(&[]), None);
        let mut without = low;
        without.values.remove("p99_us");
        assert_eq!(of(&[without]), None);
    }
}
