//! The page: summary first, then a section for each experiment.

use std::collections::BTreeSet;

use raceline_plot::STYLE;
use raceline_plot::number::ratio as number;
use raceline_plot::text::escaped;

use super::figures::{Drawn, file_name};
use super::judge::{self, Grade};
use super::model::{Contrast, Entry, Report};
use super::{section, style};
use crate::record::Record;

/// Differences of environments on the page, at most.
const CONTRASTS_MAX: usize = 100;

/// The whole file. `figures` has the pictures of each entry.
pub(super) fn html(report: &Report, figures: &[Vec<Drawn>]) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"/>\n\
         <meta name=\"generator\" content=\"raceline bench report\"/>\n\
         <link rel=\"icon\" href=\"data:,\"/>\n\
         <title>Raceline: published experiments, measured again</title>\n<style>\n{}{STYLE}\n</style>\n</head>\n<body>\n",
        style::PAGE
    );
    text.push_str(&head(report));
    text.push_str(&summary(report));
    text.push_str(&problems(report));
    text.push_str(&contrasts(report));
    for (entry, drawn) in report.entries.iter().zip(figures) {
        text.push_str(&section::html(entry, drawn));
    }
    text.push_str("</body>\n</html>\n");
    text
}

fn head(report: &Report) -> String {
    let records: Vec<&Record> =
        report.entries.iter().filter_map(|entry| entry.record.as_ref()).collect();
    let starts = || records.iter().map(|record| record.started_unix_s);
    let (first, last) = (starts().min().unwrap_or(0), starts().max().unwrap_or(0));
    let (first, last) = (date(first), date(last));
    let when = if first == last { first } else { format!("{first} to {last}") };
    let versions: BTreeSet<&str> = records.iter().map(|record| record.version.as_str()).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    let mut text = format!(
        "<header>\n<h1>Published experiments, measured again</h1>\n\
         <p class=\"faint\">{} of {} experiments have a record. Measured {}, by {}.</p>\n",
        records.len(),
        report.entries.len(),
        escaped(&when),
        escaped(&versions.join("; "))
    );
    if versions.len() > 1 {
        text.push_str("<p><strong>The records are of different versions of the program: do not compare sections.</strong></p>\n");
    }
    if !report.contrasts.is_empty() {
        text.push_str(&format!(
            "<p><strong>The records' environments differ in {} values that change results</strong>, see \
             <a href=\"#environments\">below</a>: do not compare sections that differ in one.</p>\n",
            report.contrasts.len()
        ));
    }
    text.push_str(
        "<p>Absolute numbers belong to the machine that gave them. What is compared with a source is a ratio of two \
         ways of doing the same work, taken within blocks of runs that were made one after the other. Each section \
         says what stood in for which piece of the published set-up, and what that changes. The first comparison of \
         an experiment gives its verdict; all others describe.</p>\n</header>\n",
    );
    text
}

fn summary(report: &Report) -> String {
    let mut text = String::from(
        "<h2 id=\"summary\">Summary</h2>\n<div class=\"scroll\"><table class=\"summary\">\n<thead><tr><th>Experiment</th>\
         <th class=\"n\">Published</th><th class=\"n\">Ours</th><th>Stand-in</th><th>Verdict</th></tr></thead>\n<tbody>\n",
    );
    for entry in &report.entries {
        let (published, ours) = headline(entry);
        text.push_str(&format!(
            "<tr><td><a class=\"id\" href=\"#{}\">{}</a><small>{}</small></td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td>{}</td><td>{}<small>{}</small></td></tr>\n",
            file_name(&entry.experiment.id),
            escaped(&entry.experiment.id),
            escaped(&entry.experiment.title),
            escaped(&published),
            ours.map_or("\u{2013}".to_owned(), |(value, ends)| format!("{value}<small>{ends}</small>")),
            escaped(&stand_in(entry)),
            badge(entry.grade),
            escaped(&entry.verdict),
        ));
    }
    text + "</tbody>\n</table></div>\n"
}

/// The published and our ratio of the headline, the latter with its interval.
pub(super) fn headline(entry: &Entry) -> (String, Option<(String, String)>) {
    let best = judge::headline(&entry.ratios);
    // Of what was not measured, the source's number still stands there.
    let farthest = entry.ratios.iter().filter(|ratio| ratio.comparison == 0).max_by(|a, b| {
        let far =
            |value: Option<f64>| value.map_or(0.0, |value| value.max(f64::MIN_POSITIVE).ln().abs());
        far(a.published).total_cmp(&far(b.published))
    });
    let published = best.or(farthest).and_then(|ratio| ratio.published);
    let ours = best.and_then(|ratio| ratio.ours.as_ref());
    let ends = |interval: crate::statistics::Interval| {
        format!("{} \u{2013} {}", number(interval.low), number(interval.high))
    };
    let ours = ours.map(|ours| {
        (
            format!("{}\u{d7}", number(ours.value)),
            ours.interval.map_or("no interval".to_owned(), ends),
        )
    });
    (published.map_or("\u{2013}".to_owned(), |value| format!("{}\u{d7}", number(value))), ours)
}

/// What stood in for what, in one line.
pub(super) fn stand_in(entry: &Entry) -> String {
    let Some(record) = &entry.record else { return "\u{2013}".to_owned() };
    if record.stand_ins.is_empty() {
        return "nothing".to_owned();
    }
    let one = |stand: &crate::record::StandIn| format!("{} for {}", stand.by, stand.of);
    record.stand_ins.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The grade in a word, with a sign and a colour.
pub(super) fn badge(grade: Grade) -> String {
    let class = match grade {
        Grade::AsPublished => "good",
        Grade::SameDirection | Grade::NoDifference | Grade::Undecided | Grade::TooFew => "mid",
        Grade::Opposite => "bad",
        Grade::Ours | Grade::NotMeasured => "none",
    };
    format!("<span class=\"grade {class}\">{} {}</span>", grade.sign(), grade.words())
}

fn problems(report: &Report) -> String {
    if report.problems.is_empty() {
        return String::new();
    }
    format!("<h3>What could not be used</h3>\n{}", section::list(&report.problems))
}

/// In what the records' environments differ.
fn contrasts(report: &Report) -> String {
    if report.contrasts.is_empty() {
        return String::new();
    }
    let left = report.contrasts.len().saturating_sub(CONTRASTS_MAX);
    let mut lines: Vec<String> =
        report.contrasts.iter().take(CONTRASTS_MAX).map(Contrast::sentence).collect();
    if left > 0 {
        lines.push(format!("{left} more are in the JSON file beside this page."));
    }
    format!("<h3 id=\"environments\">Environments that differ</h3>\n{}", section::list(&lines))
}

/// Year, month and day of a time in seconds since 1970, UTC.
pub(super) fn date(unix_s: u64) -> String {
    // Days to a civil date: eras of 400 years that begin in March.
    let days = (unix_s / 86_400).min(4_000_000) + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        let cases = [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (1_606_176_000, "2020-11-24"),
            (1_795_564_800, "2026-11-25"),
        ];
        for (seconds, text) in cases {
            assert_eq!(date(seconds), text);
        }
        // A time that no clock shows gives some date, and no panic.
        assert!(!date(u64::MAX).is_empty());
    }
}
