//! `raceline bench list`, `show`, `run` and `compare`: the catalogue of experiments.

mod bed;
mod compare;
mod report;
mod run;

use std::fmt::Write as _;
use std::path::PathBuf;

use raceline_papers::catalogue::Catalogue;
use raceline_papers::experiment::Experiment;
use raceline_papers::table::number;

use crate::cli::bench::papers::{ListArgs, ShowArgs};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;

pub(super) use compare::run as compare;
pub(super) use report::run as report;
pub(super) use run::run;

/// The experiments of the program and of these files; gives the names of the latter, too.
fn catalogue(files: &[PathBuf]) -> Result<(Catalogue, Vec<String>), Failure> {
    let mut catalogue = Catalogue::builtin().map_err(Failure::runtime)?;
    let mut added = Vec::new();
    for file in files {
        added.push(catalogue.add_file(file).map_err(Failure::usage)?.id.clone());
    }
    Ok((catalogue, added))
}

/// The experiments of the catalogue that have what a verb of its own measures, in blocks and with records.
pub(super) const BESIDE: [(&str, &[&str]); 6] = [
    ("host --case maps", &["NT-MIX"]),
    ("host --case i10", &["NT-I10-L", "NT-I10-T"]),
    ("host --case share", &["NT-DIRECT"]),
    ("host --case submit", &["SUBMIT"]),
    ("digest", &["DSA-T1", "DSA-128K-SCALE", "DSA-16K-SCALE", "DSA-4K-SCALE"]),
    ("accel", &["ACCEL"]),
];

/// Says where the catalogue has what a verb has measured.
pub(super) fn name_beside(verb: &str) {
    for (_, ids) in BESIDE.iter().filter(|(known, _)| *known == verb) {
        let ids = ids.join(" ");
        eprintln!(
            "raceline: the catalogue has this as {ids}; `raceline bench run {ids}` keeps records"
        );
    }
}

/// `raceline bench list`.
pub(super) fn list(args: &ListArgs) -> Result<(), Failure> {
    let (catalogue, _) = catalogue(&args.file)?;
    let text = match args.output {
        OutputFormat::Table => {
            let width = catalogue.all().iter().map(|it| it.id.len()).max().unwrap_or(0);
            let mut text = String::new();
            for experiment in catalogue.all() {
                let _ = writeln!(text, "{:width$}  {}", experiment.id, experiment.title);
            }
            text
        }
        OutputFormat::Json => json(&catalogue.all().iter().map(summary).collect::<Vec<_>>())?,
    };
    shell::print(text.as_bytes())
}

fn summary(experiment: &Experiment) -> serde_json::Value {
    serde_json::json!({
        "id": experiment.id,
        "aliases": experiment.aliases,
        "title": experiment.title,
        "question": experiment.question,
        "source": experiment.source,
    })
}

/// `raceline bench show`.
pub(super) fn show(args: &ShowArgs) -> Result<(), Failure> {
    let (catalogue, _) = catalogue(&args.file)?;
    let experiment = catalogue.find(&args.id).map_err(Failure::usage)?;
    let text = match args.output {
        OutputFormat::Table => describe(experiment),
        OutputFormat::Json => json(experiment)?,
    };
    shell::print(text.as_bytes())
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::runtime)?;
    text.push('\n');
    Ok(text)
}

fn describe(experiment: &Experiment) -> String {
    let mut text = format!("{}: {}\n{}\n", experiment.id, experiment.title, experiment.question);
    if !experiment.aliases.is_empty() {
        let _ = writeln!(text, "Other names: {}", experiment.aliases.join(", "));
    }
    let _ = writeln!(text, "Source: {}", experiment.source);
    let columns: Vec<&str> = experiment.axis.columns.iter().map(|it| it.id.as_str()).collect();
    let _ = writeln!(text, "\nVaries: {}: {}", experiment.axis.label, columns.join(", "));
    let _ = writeln!(text, "Ways:");
    for series in &experiment.series {
        let needs = match &series.needs[..] {
            [] => String::new(),
            needs => format!(" (needs {})", needs.join(", ")),
        };
        let _ = writeln!(text, "  {}: {}{needs}", series.id, series.label);
    }
    let _ = writeln!(text, "Measures:");
    for metric in &experiment.metrics {
        let _ = writeln!(text, "  {}: {} ({})", metric.id, metric.label, metric.unit);
    }
    let _ = writeln!(text, "Compares:");
    for comparison in &experiment.comparisons {
        let published: Vec<String> = comparison
            .published
            .iter()
            .map(|(x, ratio)| format!("{x}: {}", number(*ratio)))
            .collect();
        let published = match &published[..] {
            [] => String::new(),
            ratios => format!("; published {}", ratios.join(", ")),
        };
        let (of, over) = (&comparison.of, &comparison.over);
        let _ = writeln!(text, "  {} ({of} over {over}){published}", comparison.label);
    }
    for (title, sentences) in [
        ("Set-up of the source", &experiment.setup),
        ("To know about the numbers", &experiment.caveats),
        ("What a small machine cannot show", &experiment.limits),
    ] {
        if !sentences.is_empty() {
            let _ = writeln!(text, "\n{title}:");
            sentences.iter().for_each(|sentence| {
                let _ = writeln!(text, "  {sentence}");
            });
        }
    }
    if !experiment.published.is_empty() {
        let _ = writeln!(text, "\nPublished:");
    }
    for found in &experiment.published {
        let note = if found.note.is_empty() { "" } else { &format!(" ({})", found.note) };
        let (value, unit) = (number(found.value), &found.unit);
        let _ = writeln!(
            text,
            "  {}, {}: {} {value} {unit}{note}",
            found.series, found.x, found.metric
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_of_their_own_are_in_the_catalogue() {
        let (catalogue, _) = catalogue(&[]).unwrap();
        for id in BESIDE.iter().flat_map(|(_, ids)| ids.iter()) {
            assert!(catalogue.find(id).is_ok(), "{id} is not in the catalogue");
        }
        for case in raceline_bench::host::Case::ALL {
            let verb = format!("host --case {}", case.name());
            assert!(BESIDE.iter().any(|(known, _)| *known == verb), "{verb} has no experiment");
        }
    }
}
