//! What the report shows, computed once: estimates, ratios, verdicts. All outputs are made from it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::judge::{self, Grade};
use super::load::Loaded;
use crate::environment;
use crate::experiment::Experiment;
use crate::record::{Effort, Point, Record};
use crate::statistics::{self, Estimate, median_estimate, ratio_of};
use crate::table;

/// The report.
#[derive(Clone, Debug)]
pub struct Report {
    /// An entry for each experiment, measured or not, in the order of the catalogue.
    pub entries: Vec<Entry>,
    /// Files that could not be used, and why.
    pub problems: Vec<String>,
    /// In what the records' environments differ that changes results.
    pub contrasts: Vec<Contrast>,
}

/// A value in which the environments of records differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Contrast {
    /// Where it stands in an environment.
    pub field: String,
    /// The value of the record that the others are compared with, and that record's experiment.
    pub usual: (String, String),
    /// The other value, and the experiments whose records have it.
    pub other: (String, Vec<String>),
}

/// An experiment with what was measured of it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The experiment.
    pub experiment: Experiment,
    /// The record, without values that are not finite.
    pub record: Option<Record>,
    /// The record's file.
    pub file: String,
    /// Estimates of all metrics at all points.
    pub values: Vec<Value>,
    /// Ratios of all comparisons.
    pub ratios: Vec<Ratio>,
    /// The grade of the headline.
    pub grade: Grade,
    /// One sentence.
    pub verdict: String,
    /// Remarks about the record, such as an older one that was not used.
    pub remarks: Vec<String>,
}

/// A metric at a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The series.
    pub series: String,
    /// The column.
    pub column: String,
    /// The metric.
    pub metric: String,
    /// The median with its interval.
    pub estimate: Estimate,
    /// The lowest and the highest run.
    pub range: (f64, f64),
}

/// A comparison at a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// The number of the comparison in the experiment.
    pub comparison: usize,
    /// What it shows.
    pub label: String,
    /// The column.
    pub column: String,
    /// Ours.
    pub ours: Option<Estimate>,
    /// What the source prints.
    pub published: Option<f64>,
    /// Ours beside the published one.
    pub grade: Grade,
    /// Whether the target was the bottleneck in all runs of both series; `None`: not known.
    pub target_bound: Option<bool>,
    /// Why it was not measured.
    pub why_not: String,
}

impl Contrast {
    /// The difference in one sentence.
    pub(super) fn sentence(&self) -> String {
        let (usual, of) = &self.usual;
        let (other, experiments) = &self.other;
        format!("{}: {usual} ({of}); {other} ({}).", self.field, experiments.join(", "))
    }
}

impl Entry {
    /// A value.
    #[must_use]
    pub fn value(&self, series: &str, column: &str, metric: &str) -> Option<&Value> {
        let is_it = |value: &&Value| {
            value.series == series && value.column == column && value.metric == metric
        };
        self.values.iter().find(is_it)
    }

    /// A point of the record.
    #[must_use]
    pub fn point(&self, series: &str, column: &str) -> Option<&Point> {
        self.record.as_ref().and_then(|record| find(record, series, column))
    }

    /// The command that measures it again.
    #[must_use]
    pub fn command(&self) -> String {
        let mut text = format!("raceline bench run {}", self.experiment.id);
        if let Some(record) = &self.record {
            text.push_str(match record.effort {
                Effort::Quick => " --quick",
                Effort::Normal => "",
                Effort::Full => " --full",
            });
            if record.seed != 1 {
                text.push_str(&format!(" --seed {}", record.seed));
            }
        }
        text
    }
}

fn find<'a>(record: &'a Record, series: &str, column: &str) -> Option<&'a Point> {
    record.points.iter().find(|point| point.series == series && point.x == column)
}

/// The report of what was loaded.
pub(super) fn report(experiments: &[Experiment], loaded: Loaded) -> Report {
    let mut problems = loaded.problems;
    let mut by_experiment: BTreeMap<String, Vec<(String, Record)>> = BTreeMap::new();
    for (file, record) in loaded.records {
        by_experiment.entry(record.experiment.clone()).or_default().push((file, record));
    }
    let mut entries = Vec::new();
    for experiment in experiments {
        let mut records = by_experiment.remove(&experiment.id).unwrap_or_default();
        // The newest complete one; without any, the newest.
        records.sort_by_key(|(_, record)| (record.complete, record.started_unix_s));
        let chosen = records.pop();
        let remarks: Vec<String> = records
            .iter()
            .map(|(file, _)| {
                format!("{file} is an older or incomplete record of it and is not shown.")
            })
            .collect();
        entries.push(entry(experiment, chosen, remarks, &mut problems));
    }
    let contrasts = contrasts(&entries);
    Report { entries, problems, contrasts }
}

/// Compares each record with the first one on a bed of its kind, and the first ones of other kinds with the first of
/// all in what does not belong to the bed.
fn contrasts(entries: &[Entry]) -> Vec<Contrast> {
    let mut contrasts: Vec<Contrast> = Vec::new();
    let mut firsts: Vec<(&str, &Record)> = Vec::new();
    for (id, record) in entries
        .iter()
        .filter_map(|entry| Some((entry.experiment.id.as_str(), entry.record.as_ref()?)))
    {
        let of_kind = firsts.iter().find(|(_, first)| first.bed.kind == record.bed.kind);
        let Some(&(usual_id, usual)) = of_kind.or(firsts.first()) else {
            firsts.push((id, record));
            continue;
        };
        if of_kind.is_none() {
            firsts.push((id, record));
        }
        let left = (usual.bed.kind.as_str(), &usual.environment);
        let right = (record.bed.kind.as_str(), &record.environment);
        for difference in environment::differences_on_beds(left, right) {
            let shown = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
            let usual = (shown(difference.left), usual_id.to_owned());
            let other = shown(difference.right);
            let known = contrasts.iter_mut().find(|known| {
                (&known.field, &known.usual, &known.other.0) == (&difference.field, &usual, &other)
            });
            match known {
                Some(known) => known.other.1.push(id.to_owned()),
                None => contrasts.push(Contrast {
                    field: difference.field,
                    usual,
                    other: (other, vec![id.to_owned()]),
                }),
            }
        }
    }
    contrasts.sort_by(|a, b| a.field.cmp(&b.field));
    contrasts
}

fn entry(
    experiment: &Experiment,
    chosen: Option<(String, Record)>,
    mut remarks: Vec<String>,
    problems: &mut Vec<String>,
) -> Entry {
    let (file, record) =
        chosen.map_or((String::new(), None), |(file, record)| (file, Some(record)));
    let record = record.map(|record| clean(experiment, &file, record, &mut remarks, problems));
    let values = record.as_ref().map_or(Vec::new(), |record| values(experiment, record));
    let ratios = ratios(experiment, record.as_ref());
    let grade = judge::headline(&ratios).map_or(Grade::NotMeasured, |best| best.grade);
    let why_not = record.as_ref().and_then(|record| {
        let primary = experiment.comparisons.first();
        let about = |missing: &&crate::record::Missing| {
            primary.is_some_and(|one| {
                missing.what.contains(&one.of) || missing.what.contains(&one.over)
            })
        };
        let found = record.missing.iter().find(about).or_else(|| record.missing.first());
        let nothing = record.points.is_empty().then_some("the record has no points");
        found.map(|missing| missing.why.trim_end_matches('.')).or(nothing)
    });
    let fallback = record.is_some().then_some("the record lacks what its comparison needs");
    let mut verdict = judge::sentence(experiment, &ratios, why_not.or(fallback));
    let mut grade = grade;
    if grade == Grade::NotMeasured && experiment.comparisons.is_empty() && !values.is_empty() {
        // An experiment without comparisons shows values only.
        grade = Grade::Ours;
        "Measured; it compares nothing, see its values.".clone_into(&mut verdict);
    }
    if record.as_ref().is_some_and(|record| !record.complete) {
        remarks.push("The run broke off: the same command goes on with it.".to_owned());
    }
    let experiment = experiment.clone();
    Entry { experiment, record, file, values, ratios, grade, verdict, remarks }
}

/// The record without points that the experiment does not have, and without values that are not finite.
fn clean(
    experiment: &Experiment,
    file: &str,
    mut record: Record,
    remarks: &mut Vec<String>,
    problems: &mut Vec<String>,
) -> Record {
    let known = |point: &Point| {
        experiment.series.iter().any(|series| series.id == point.series)
            && experiment.axis.columns.iter().any(|column| column.id == point.x)
    };
    for point in record.points.iter().filter(|point| !known(point)) {
        problems.push(format!(
            "{file}: {} has no series {:?} at {:?}: the point is not shown",
            experiment.id, point.series, point.x
        ));
    }
    record.points.retain(known);
    let mut dropped = 0;
    for run in record.points.iter_mut().flat_map(|point| &mut point.runs) {
        let before = run.values.len();
        run.values.retain(|_, value| value.is_finite());
        dropped += before - run.values.len();
    }
    if dropped > 0 {
        remarks.push(format!("{dropped} values of the record are no numbers and are not shown."));
    }
    record
}

/// Estimates by series, column and metric, in the order of the experiment.
fn values(experiment: &Experiment, record: &Record) -> Vec<Value> {
    let mut values = Vec::new();
    for series in &experiment.series {
        for column in &experiment.axis.columns {
            let Some(point) = find(record, &series.id, &column.id) else { continue };
            for metric in &experiment.metrics {
                let of_run = |run: &crate::record::Run| run.values.get(&metric.id).copied();
                let runs: Vec<f64> = point.runs.iter().filter_map(of_run).collect();
                let Some(estimate) = median_estimate(&runs) else { continue };
                let low = runs.iter().copied().fold(f64::INFINITY, f64::min);
                let high = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                values.push(Value {
                    series: series.id.clone(),
                    column: column.id.clone(),
                    metric: metric.id.clone(),
                    estimate,
                    range: (low, high),
                });
            }
        }
    }
    values
}

fn ratios(experiment: &Experiment, record: Option<&Record>) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for (number, comparison) in experiment.comparisons.iter().enumerate() {
        for place in statistics::places(experiment, comparison) {
            let published = table::published(comparison, place);
            let points = record.and_then(|record| {
                let point = |series| statistics::at_place(record, comparison, series, place);
                Some((point(&comparison.of)?, point(&comparison.over)?))
            });
            let points = points.as_ref();
            let ours = points.and_then(|(of, over)| paired(of, over, &comparison.metric));
            let full_only =
                experiment.axis.columns.iter().any(|column| column.id == place && column.full_only);
            let left_out = full_only && record.is_some_and(|record| record.effort == Effort::Quick);
            let why_not = match (&ours, record) {
                (Some(_), _) => String::new(),
                (None, None) => "no record".to_owned(),
                (None, Some(_)) if left_out => "not part of quick runs".to_owned(),
                (None, Some(record)) => reason(record, &comparison.of, &comparison.over, place),
            };
            ratios.push(Ratio {
                comparison: number,
                label: comparison.label.clone(),
                column: place.to_owned(),
                published,
                grade: Grade::of(ours.as_ref(), published),
                ours,
                target_bound: points.and_then(|(of, over)| bound(of, over)),
                why_not,
            });
        }
    }
    ratios
}

/// The ratio over the blocks that both points have. Values that are not above 0 have none.
fn paired(of: &Point, over: &Point, metric: &str) -> Option<Estimate> {
    let value = |point: &Point, block: u32| {
        let run = point.runs.iter().find(|run| run.block == block)?;
        run.values.get(metric).copied().filter(|value| value.is_finite() && *value > 0.0)
    };
    let pair = |run: &crate::record::Run| Some((value(of, run.block)?, value(over, run.block)?));
    let pairs: Vec<(f64, f64)> = of.runs.iter().filter_map(pair).collect();
    ratio_of(&pairs).filter(|estimate| estimate.value.is_finite())
}

fn bound(of: &Point, over: &Point) -> Option<bool> {
    let known: Vec<bool> =
        of.runs.iter().chain(&over.runs).filter_map(|run| run.target_bound).collect();
    (!known.is_empty()).then(|| known.iter().all(|bound| *bound))
}

/// What the record says about the points that are not there.
fn reason(record: &Record, of: &str, over: &str, column: &str) -> String {
    let absent: Vec<&str> =
        [of, over].into_iter().filter(|series| find(record, series, column).is_none()).collect();
    let mentions = |what: &str, word: &str| {
        what.split(|c: char| c.is_whitespace() || ",:()".contains(c)).any(|part| part == word)
    };
    let about = |missing: &&crate::record::Missing| {
        mentions(&missing.what, column)
            || absent.iter().any(|series| mentions(&missing.what, series))
    };
    record.missing.iter().find(about).map_or_else(
        || {
            if absent.is_empty() {
                "no block has both values above 0".to_owned()
            } else {
                format!("no runs of {}", absent.join(" and "))
            }
        },
        |missing| missing.why.clone(),
    )
}
