//! Reads an experiment from its text, and checks that its parts fit each other.

use std::collections::BTreeSet;
use std::ops::Range;

use super::LoadError;
use crate::experiment::{Comparison, Experiment, Wall};
use crate::run::{self, SettingsError};

/// Most columns and most series of an experiment.
const COLUMNS_MAX: usize = 64;
const SERIES_MAX: usize = 32;
/// The longest run of a source.
const RUNTIME_S_MAX: u32 = 24 * 3600;

/// An error at the first place in the text where this key gets a value.
pub(super) fn error_at(file: &str, text: &str, key: &str, why: String) -> LoadError {
    let sets = |line: &str| {
        line.match_indices(key).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + key.len()..].trim_start();
            after.starts_with('=') && before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
        })
    };
    let line = text.lines().position(sets).map(|index| index + 1);
    LoadError { file: file.to_owned(), line, key: key.to_owned(), why }
}

/// An error at the first line that has this value in quotes.
fn error_at_value(file: &str, text: &str, key: &str, value: &str, why: String) -> LoadError {
    let quoted = format!("\"{value}\"");
    let has = |line: &&str| line.contains(&quoted) && line.contains(key);
    let found = text.lines().position(|line| has(&line));
    let found = found.or_else(|| text.lines().position(|line| line.contains(&quoted)));
    let line = found.map(|index| index + 1);
    LoadError { file: file.to_owned(), line, key: key.to_owned(), why }
}

/// The experiment that the text describes.
pub(super) fn parse(file: &str, text: &str) -> Result<Experiment, LoadError> {
    let experiment: Experiment =
        toml::from_str(text).map_err(|error| of_toml(file, text, &error))?;
    let check = Check { file, text, experiment: &experiment };
    check.lists()?;
    check.names()?;
    check.models()?;
    check.comparisons()?;
    check.figures()?;
    check.settings()?;
    Ok(experiment)
}

fn of_toml(file: &str, text: &str, error: &toml::de::Error) -> LoadError {
    let why = error.message().trim().to_owned();
    let span = error.span().unwrap_or_default();
    let line = text.get(..span.start).map(|before| before.matches('\n').count() + 1);
    let key = why.split('`').nth(1).unwrap_or_default().to_owned();
    LoadError { file: file.to_owned(), line, key: key_of(text, &span).unwrap_or(key), why }
}

/// The key whose value is at this place.
fn key_of(text: &str, span: &Range<usize>) -> Option<String> {
    let begin = text.get(..span.start)?.rfind('\n').map_or(0, |at| at + 1);
    let (key, _) = text.get(begin..)?.lines().next()?.split_once('=')?;
    let key = key.trim();
    (!key.is_empty() && !key.contains('[')).then(|| key.to_owned())
}

struct Check<'a> {
    file: &'a str,
    text: &'a str,
    experiment: &'a Experiment,
}

impl Check<'_> {
    fn error(&self, key: &str, why: String) -> LoadError {
        error_at(self.file, self.text, key, why)
    }

    fn error_at_value(&self, key: &str, value: &str, why: String) -> LoadError {
        error_at_value(self.file, self.text, key, value, why)
    }

    /// The error at the line that gives the key this value, or at the first one that gives it any.
    fn setting_error(&self, error: SettingsError) -> LoadError {
        let SettingsError { key, value, why } = error;
        let first = self.error(&key, why);
        let forms = [format!("{key} = {value}"), format!("{key} = \"{value}\"")];
        let sets = |line: &str| {
            forms.iter().any(|form| {
                let after = |at: usize| line[at + form.len()..].chars().next();
                line.find(form.as_str())
                    .is_some_and(|at| after(at).is_none_or(|c| !c.is_alphanumeric()))
            })
        };
        let line = self.text.lines().position(sets).map(|index| index + 1);
        LoadError { line: line.or(first.line), ..first }
    }

    /// Models are computed from a measured series of a load.
    fn models(&self) -> Result<(), LoadError> {
        let Self { experiment, .. } = self;
        for series in &experiment.series {
            let Some(model) = &series.model else { continue };
            if experiment.procedure.name != "load" {
                let why = "only the procedure `load` has series that are models".to_owned();
                return Err(self.error("model", why));
            }
            if !experiment.series.iter().any(|it| it.id == model.of && it.model.is_none()) {
                let why = format!("there is no measured series `{}`", model.of);
                return Err(self.error_at_value("of", &model.of, why));
            }
            if model.without.is_empty() || !series.needs.is_empty() || !series.settings.is_empty() {
                let why =
                    "a model takes something away, needs nothing and has no settings".to_owned();
                return Err(self.error_at_value("id", &series.id, why));
            }
        }
        Ok(())
    }

    fn lists(&self) -> Result<(), LoadError> {
        let Self { experiment, .. } = self;
        let whole = |key: &str, why: &str| LoadError {
            file: self.file.to_owned(),
            line: None,
            key: key.to_owned(),
            why: why.to_owned(),
        };
        if experiment.axis.columns.is_empty() || experiment.axis.columns.len() > COLUMNS_MAX {
            return Err(whole("columns", "an axis has 1 to 64 columns"));
        }
        if experiment.series.is_empty() || experiment.series.len() > SERIES_MAX {
            return Err(whole("series", "an experiment has 1 to 32 series"));
        }
        if let Some(full) = &experiment.full
            && !(1..=RUNTIME_S_MAX).contains(&full.runtime_s)
        {
            let why = format!("a run takes 1 to {RUNTIME_S_MAX} s, and not {} s", full.runtime_s);
            return Err(self.error("runtime_s", why));
        }
        if experiment.metrics.is_empty() {
            return Err(whole("metrics", "an experiment has at least one metric"));
        }
        for id in experiment.names() {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if id.is_empty() || id.len() > 64 || !id.chars().all(fits) {
                let why = "a name has 1 to 64 letters, digits, `-` or `_`".to_owned();
                return Err(self.error("id", why));
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<(), LoadError> {
        let Self { experiment, .. } = self;
        let columns: Vec<&str> = experiment.axis.columns.iter().map(|c| c.id.as_str()).collect();
        let series: Vec<&str> = experiment.series.iter().map(|s| s.id.as_str()).collect();
        let metrics: Vec<&str> = experiment.metrics.iter().map(|m| m.id.as_str()).collect();
        for (what, names) in [("column", &columns), ("series", &series), ("metric", &metrics)] {
            let mut seen = BTreeSet::new();
            for name in names {
                if name.is_empty() {
                    return Err(self.error("id", format!("a {what} has an empty name")));
                }
                if !seen.insert(*name) {
                    let why = format!("there are two of the {what} {name}: give one another name");
                    return Err(self.error_at_value("id", name, why));
                }
            }
        }
        let Some(known) = run::metrics_of(&experiment.procedure.name) else {
            let name = &experiment.procedure.name;
            let why = format!(
                "there is no procedure `{name}`: use {}",
                run::PROCEDURES.map(|(name, _)| name).join(", ")
            );
            return Err(self.error_at_value("name", name, why));
        };
        match metrics.iter().find(|metric| !known.contains(metric)) {
            Some(metric) => {
                let name = &experiment.procedure.name;
                let why = format!(
                    "the procedure {name} does not measure `{metric}`: use {}",
                    known.join(", ")
                );
                Err(self.error_at_value("id", metric, why))
            }
            None => Ok(()),
        }
    }

    fn comparisons(&self) -> Result<(), LoadError> {
        let Self { experiment, .. } = self;
        let column = |id: &str| experiment.axis.columns.iter().any(|column| column.id == id);
        let series = |id: &str| experiment.series.iter().any(|series| series.id == id);
        for comparison in &experiment.comparisons {
            if experiment.metric(&comparison.metric).is_none() {
                let why = format!("the experiment has no metric `{}`", comparison.metric);
                return Err(self.error_at_value("metric", &comparison.metric, why));
            }
            for (key, id) in [("of", &comparison.of), ("over", &comparison.over)] {
                if !series(id) {
                    let why = format!("the experiment has no series `{id}`");
                    return Err(self.error_at_value(key, id, why));
                }
            }
            if let Some(id) = comparison.columns.iter().find(|id| !column(id)) {
                let why = format!("the axis has no column `{id}`");
                return Err(self.error_at_value("columns", id, why));
            }
            if let Some(wall) = &comparison.wall {
                self.wall(comparison, wall)?;
            }
            for (id, ratio) in &comparison.published {
                if id != "*" && !column(id) {
                    let why = format!("the axis has no column `{id}`; `*` stands for any");
                    return Err(self.error_at_value("published", id, why));
                }
                if !ratio.is_finite() || *ratio <= 0.0 {
                    let why = format!("{ratio} is not a ratio: it must be above 0");
                    return Err(self.error("published", why));
                }
            }
        }
        Ok(())
    }

    fn wall(&self, comparison: &Comparison, wall: &Wall) -> Result<(), LoadError> {
        let known = |metric: &String| self.experiment.metric(metric).is_some();
        if let Some(metric) = [&wall.latency, &wall.missed].into_iter().find(|it| !known(it)) {
            let why = format!("the experiment has no metric `{metric}`");
            return Err(self.error_at_value("wall", metric, why));
        }
        if comparison.columns.len() < 2 {
            let why = "a wall is found in two or more columns, from the lowest rate on".to_owned();
            return Err(self.error("wall", why));
        }
        let most = wall.missed_percent_max;
        if wall.times > 1.0 && wall.times.is_finite() && (0.0..100.0).contains(&most) {
            return Ok(());
        }
        let why = "times is above 1, and missed_percent_max is 0 or more and below 100".to_owned();
        Err(self.error("wall", why))
    }

    fn figures(&self) -> Result<(), LoadError> {
        for figure in &self.experiment.figures {
            for metric in &figure.metrics {
                if self.experiment.metric(metric).is_none() {
                    let why = format!("the experiment has no metric `{metric}`");
                    return Err(self.error_at_value("metrics", metric, why));
                }
            }
        }
        Ok(())
    }

    /// The settings of all points can be read and are in range.
    fn settings(&self) -> Result<(), LoadError> {
        for series in &self.experiment.series {
            for column in &self.experiment.axis.columns {
                let checked = run::check_settings(self.experiment, series, column);
                checked.map_err(|error| self.setting_error(error))?;
            }
        }
        Ok(())
    }
}
