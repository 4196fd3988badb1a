//! What ratios say beside the published ones, in one sentence.

use raceline_plot::number::ratio as number;
use serde::Serialize;

use super::model::Ratio;
use crate::experiment::Experiment;
use crate::statistics::{EQUIVALENCE_BAND, Estimate, RUNS_MIN, Verdict, WALL};

/// Our ratio beside the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// The published ratio lies within our interval, or both are 1 for practical purposes.
    AsPublished,
    /// Same direction, another size.
    SameDirection,
    /// Ours is 1 for practical purposes, the published one is not.
    NoDifference,
    /// The other direction.
    Opposite,
    /// Our interval does not tell.
    Undecided,
    /// Too few runs for an interval.
    TooFew,
    /// Measured; the source prints no ratio.
    Ours,
    /// Not measured.
    NotMeasured,
}

impl Grade {
    /// The grade of a ratio.
    #[must_use]
    pub fn of(ours: Option<&Estimate>, published: Option<f64>) -> Self {
        let Some(ours) = ours else { return Self::NotMeasured };
        let Some(interval) = ours.interval else { return Self::TooFew };
        let Some(published) = published.filter(|value| value.is_finite() && *value > 0.0) else {
            return Self::Ours;
        };
        let is_one = (published - 1.0).abs() <= EQUIVALENCE_BAND;
        let up = published > 1.0;
        match Verdict::of(Some(interval)) {
            Verdict::Same if is_one => Self::AsPublished,
            Verdict::Same => Self::NoDifference,
            // An interval that holds 1 and the published value says nothing about either.
            Verdict::Undecided => Self::Undecided,
            Verdict::Higher | Verdict::Lower if interval.has(published) => Self::AsPublished,
            Verdict::Higher if up && !is_one => Self::SameDirection,
            Verdict::Lower if !up && !is_one => Self::SameDirection,
            Verdict::Higher | Verdict::Lower => Self::Opposite,
        }
    }

    /// A word or two for tables.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::AsPublished => "as published",
            Self::SameDirection => "same direction",
            Self::NoDifference => "no difference",
            Self::Opposite => "differs",
            Self::Undecided => "undecided",
            Self::TooFew => "too few runs",
            Self::Ours => "measured",
            Self::NotMeasured => "not measured",
        }
    }

    /// A sign that does not rely on colours.
    pub(super) const fn sign(self) -> &'static str {
        match self {
            Self::AsPublished => "\u{2713}",
            Self::SameDirection => "\u{2192}",
            Self::NoDifference => "=",
            Self::Opposite => "\u{2717}",
            Self::Undecided | Self::TooFew => "?",
            Self::Ours => "\u{2022}",
            Self::NotMeasured => "\u{2013}",
        }
    }

    /// How the sentence ends.
    const fn judgement(self) -> &'static str {
        match self {
            Self::AsPublished => "this is what the source says",
            Self::SameDirection => "the direction is the source's, the size is not",
            Self::NoDifference => "here is no difference",
            Self::Opposite => "this is not what the source says",
            Self::Undecided => "the interval does not tell a difference from none",
            Self::TooFew => "the runs are too few for an interval",
            Self::Ours => "the source prints no ratio for it",
            Self::NotMeasured => "nothing was measured",
        }
    }
}

/// `1.31 (1.27 to 1.35)`.
pub(super) fn estimate(value: &Estimate) -> String {
    value.interval.map_or_else(
        || number(value.value),
        |interval| {
            format!(
                "{} ({} to {})",
                number(value.value),
                number(interval.low),
                number(interval.high)
            )
        },
    )
}

/// The ratio that stands for the experiment: of the first comparison, where the published one is farthest from 1.
pub(super) fn headline(ratios: &[Ratio]) -> Option<&Ratio> {
    let primary = || ratios.iter().filter(|ratio| ratio.comparison == 0 && ratio.ours.is_some());
    let far = |value: f64| value.max(f64::MIN_POSITIVE).ln().abs();
    let published = |ratio: &&Ratio| ratio.published.is_some();
    let by_published = primary()
        .filter(published)
        .max_by(|a, b| far(a.published.unwrap_or(1.0)).total_cmp(&far(b.published.unwrap_or(1.0))));
    let ours = |ratio: &Ratio| ratio.ours.as_ref().map_or(1.0, |ours| ours.value);
    by_published.or_else(|| primary().max_by(|a, b| far(ours(a)).total_cmp(&far(ours(b)))))
}

/// One sentence about the experiment.
pub(super) fn sentence(experiment: &Experiment, ratios: &[Ratio], why_not: Option<&str>) -> String {
    let Some(best) = headline(ratios) else {
        let why = why_not.unwrap_or("there is no record of it");
        return format!("Not measured: {why}.");
    };
    let Some(ours) = &best.ours else { return String::new() };
    let place = place(experiment, &best.column);
    let mut text = format!("{}{place}: {} times", best.label, estimate(ours));
    if let Some(published) = best.published {
        text.push_str(&format!(", published {}", number(published)));
    }
    text.push_str(&format!("; {}", best.grade.judgement()));
    if best.grade == Grade::TooFew {
        text.push_str(&format!(" ({} of {RUNS_MIN})", ours.runs));
    }
    let judged = ratios.iter().filter(|ratio| ratio.comparison == 0 && ratio.ours.is_some());
    let judged: Vec<_> = judged.filter(|ratio| ratio.published.is_some()).collect();
    if judged.len() > 1 {
        let agree =
            |ratio: &&&Ratio| matches!(ratio.grade, Grade::AsPublished | Grade::SameDirection);
        let count = judged.iter().filter(agree).count();
        text.push_str(&format!(
            "; {count} of {} published places agree in direction",
            judged.len()
        ));
    }
    text.push('.');
    text
}

/// `, Target cores 5`, unless the axis has only one place.
fn place(experiment: &Experiment, column: &str) -> String {
    if experiment.axis.columns.len() < 2 || column == WALL {
        return String::new();
    }
    // Names such as `64K` have a unit of their own.
    let bare = experiment.axis.unit.is_empty() || column.parse::<f64>().is_err();
    let unit = if bare { "" } else { &format!(" {}", experiment.axis.unit) };
    format!(", {} {column}{unit}", experiment.axis.label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Interval;

    #[test]
    fn grades_follow_the_interval() {
        let ours =
            |low, value, high| Estimate { value, interval: Some(Interval { low, high }), runs: 12 };
        let grade = |ours: Estimate, published| Grade::of(Some(&ours), published);
        assert_eq!(grade(ours(1.2, 1.3, 1.4), Some(1.36)), Grade::AsPublished);
        assert_eq!(grade(ours(1.05, 1.1, 1.2), Some(1.36)), Grade::SameDirection);
        assert_eq!(grade(ours(0.99, 1.0, 1.01), Some(1.36)), Grade::NoDifference);
        assert_eq!(grade(ours(0.99, 1.0, 1.01), Some(1.01)), Grade::AsPublished);
        assert_eq!(grade(ours(0.7, 0.8, 0.9), Some(1.36)), Grade::Opposite);
        assert_eq!(grade(ours(1.2, 1.3, 1.4), Some(1.01)), Grade::Opposite);
        assert_eq!(grade(ours(0.8, 1.1, 1.4), Some(1.36)), Grade::Undecided);
        assert_eq!(grade(ours(0.4, 0.5, 0.6), Some(0.67)), Grade::SameDirection);
        assert_eq!(grade(ours(1.2, 1.3, 1.4), None), Grade::Ours);
        assert_eq!(grade(ours(1.2, 1.3, 1.4), Some(f64::NAN)), Grade::Ours);
        let few = Estimate { value: 1.3, interval: None, runs: 3 };
        assert_eq!(Grade::of(Some(&few), Some(1.36)), Grade::TooFew);
        assert_eq!(Grade::of(None, Some(1.36)), Grade::NotMeasured);
    }
}
