//! The section of an experiment.

use raceline_plot::number::plain;
use raceline_plot::text::escaped;

use super::figures::{Drawn, file_name};
use super::judge;
use super::model::{Entry, Ratio, Value};
use super::page::{badge, date};
use crate::environment;
use crate::experiment::Published;
use crate::record::{Effort, Record};

/// Rows of raw values on the page, at most; the CSV file has all.
const RAW_ROWS_MAX: usize = 600;
/// Lines of an environment on the page, at most, and letters of one of its values.
const ENVIRONMENT_LINES_MAX: usize = 400;
const VALUE_LETTERS_MAX: usize = 400;
/// How deep an environment may be.
const DEPTH_MAX: usize = 6;

/// The whole section.
pub(super) fn html(entry: &Entry, drawn: &[Drawn]) -> String {
    let experiment = &entry.experiment;
    let mut text = format!(
        "<section id=\"{}\">\n<h2>{}: {}</h2>\n<p class=\"faint\">{}</p>\n<p class=\"question\">{}</p>\n\
         <p class=\"verdict\">{} {}</p>\n",
        file_name(&experiment.id),
        escaped(&experiment.id),
        escaped(&experiment.title),
        escaped(&experiment.source),
        escaped(&experiment.question),
        badge(entry.grade),
        escaped(&entry.verdict),
    );
    text.push_str(&format!("<p>Measure it: <code>{}</code></p>\n", escaped(&entry.command())));
    for figure in drawn {
        text.push_str(&picture(figure));
    }
    if let Some(record) = &entry.record {
        text.push_str(&stand_ins(record));
        text.push_str(&titled_list("Limits of this measurement", &experiment.limits));
        text.push_str(&missing(record));
        text.push_str(&titled_list("Remarks", &entry.remarks));
        text.push_str(&ratios(entry));
        text.push_str(&medians(entry));
    } else {
        text.push_str(&titled_list("Limits of this measurement", &experiment.limits));
        text.push_str(&ratios(entry));
    }
    text.push_str(&source(entry));
    if let Some(record) = &entry.record {
        text.push_str(&conditions(entry, record));
        text.push_str(&machine(record));
        text.push_str(&raw(entry, record));
    }
    text + "</section>\n"
}

fn picture(figure: &Drawn) -> String {
    // The last note only matters where the picture stands alone.
    let shown = figure.notes.len().saturating_sub(1);
    format!(
        "<figure>\n<figcaption>{}</figcaption>\n{}<p class=\"faint\">{}</p>\n</figure>\n",
        escaped(&figure.title),
        figure.picture.inline(&figure.title),
        escaped(&figure.notes[..shown].join(" ")),
    )
}

/// A list of sentences.
pub(super) fn list(items: &[String]) -> String {
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
    format!("<ul>\n{items}</ul>\n")
}

fn titled_list(title: &str, items: &[String]) -> String {
    if items.is_empty() { String::new() } else { format!("<h3>{title}</h3>\n{}", list(items)) }
}

/// A table from its head and rows; numbers stand at the right from column `numbers` on.
fn table(head: &[String], rows: &[Vec<String>], numbers: usize) -> String {
    let class = |at: usize| if at >= numbers { " class=\"n\"" } else { "" };
    let cells = |tag: &str, cells: &[String]| -> String {
        let cell = |(at, cell): (usize, &String)| format!("<{tag}{}>{cell}</{tag}>", class(at));
        format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
    };
    let body: String = rows.iter().map(|row| cells("td", row)).collect();
    format!(
        "<div class=\"scroll\"><table class=\"wide\">\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
        cells("th", head)
    )
}

fn words(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| escaped(text)).collect()
}

fn stand_ins(record: &Record) -> String {
    if record.stand_ins.is_empty() {
        return "<h3>Stand-ins</h3>\n<p>Nothing stood in for a piece of the published set-up.</p>\n".to_owned();
    }
    let row = |stand: &crate::record::StandIn| words(&[&stand.of, &stand.by, &stand.effect]);
    let rows: Vec<_> = record.stand_ins.iter().map(row).collect();
    let head = words(&["Piece of the set-up", "Stand-in", "What that changes"]);
    format!("<h3>Stand-ins</h3>\n{}", table(&head, &rows, 3))
}

fn missing(record: &Record) -> String {
    if record.missing.is_empty() {
        return String::new();
    }
    let row = |missing: &crate::record::Missing| words(&[&missing.what, &missing.why]);
    let rows: Vec<_> = record.missing.iter().map(row).collect();
    format!("<h3>Not measured</h3>\n{}", table(&words(&["What", "Why"]), &rows, 2))
}

fn ratios(entry: &Entry) -> String {
    if entry.ratios.is_empty() {
        return String::new();
    }
    let axis = unit(&entry.experiment.axis.label, &entry.experiment.axis.unit);
    let head =
        words(&["Comparison", &axis, "Result", "Published", "Ours (95 % interval)", "Blocks"]);
    let row = |ratio: &Ratio| {
        let ours = match &ratio.ours {
            Some(ours) => escaped(&judge::estimate(ours)),
            None => format!("<small class=\"why\">{}</small>", escaped(&ratio.why_not)),
        };
        let result = match ratio.target_bound {
            Some(false) if ratio.ours.is_some() => {
                format!("{} <small>target not the bottleneck</small>", badge(ratio.grade))
            }
            _ => badge(ratio.grade),
        };
        vec![
            escaped(&ratio.label),
            escaped(&ratio.column),
            result,
            ratio.published.map_or("\u{2013}".to_owned(), raceline_plot::number::ratio),
            ours,
            ratio.ours.as_ref().map_or("\u{2013}".to_owned(), |ours| ours.runs.to_string()),
        ]
    };
    let rows: Vec<_> = entry.ratios.iter().map(row).collect();
    format!("<h3>Ratios</h3>\n{}", table(&head, &rows, 3))
}

fn unit(label: &str, unit: &str) -> String {
    if unit.is_empty() { label.to_owned() } else { format!("{label} ({unit})") }
}

/// Medians of all metrics that were measured.
fn medians(entry: &Entry) -> String {
    let experiment = &entry.experiment;
    let has = |id: &str| entry.values.iter().any(|value| value.metric == id);
    let metrics: Vec<_> = experiment.metrics.iter().filter(|metric| has(&metric.id)).collect();
    if metrics.is_empty() {
        return "<h3>Ours</h3>\n<p>Nothing was measured.</p>\n".to_owned();
    }
    let axis = unit(&experiment.axis.label, &experiment.axis.unit);
    let mut head = words(&["Series", &axis, "Runs"]);
    head.extend(metrics.iter().map(|metric| escaped(&unit(&metric.label, &metric.unit))));
    let mut rows = Vec::new();
    for series in &experiment.series {
        for column in &experiment.axis.columns {
            let of = |metric: &str| entry.value(&series.id, &column.id, metric);
            let values: Vec<Option<&Value>> = metrics.iter().map(|metric| of(&metric.id)).collect();
            let Some(runs) = values.iter().flatten().map(|value| value.estimate.runs).max() else {
                continue;
            };
            let mut row = words(&[&series.label, &column.id, &runs.to_string()]);
            row.extend(values.into_iter().map(|value| value.map_or("\u{2013}".to_owned(), median)));
            rows.push(row);
        }
    }
    format!(
        "<h3>Ours, on this machine</h3>\n<p class=\"faint\">Median, and below it the 95 % interval, or [lowest and highest run] \
         where the runs are too few for one.</p>\n{}",
        table(&head, &rows, 2)
    )
}

fn median(value: &Value) -> String {
    let ends = match value.estimate.interval {
        Some(interval) => format!("{} \u{2013} {}", plain(interval.low), plain(interval.high)),
        None => format!("[{} \u{2013} {}]", plain(value.range.0), plain(value.range.1)),
    };
    format!("{}<small>{ends}</small>", plain(value.estimate.value))
}

/// The numbers of the source, with the set-up that gave them.
fn source(entry: &Entry) -> String {
    let experiment = &entry.experiment;
    if experiment.published.is_empty()
        && experiment.setup.is_empty()
        && experiment.caveats.is_empty()
    {
        return String::new();
    }
    let mut text = String::from("<h3>What the source prints</h3>\n");
    if !experiment.published.is_empty() {
        text.push_str("<p class=\"faint\">On the source's hardware, described below: not comparable with ours as absolute numbers.</p>\n");
        let row = |one: &Published| {
            let value = format!("{} {}", plain(one.value), one.unit);
            words(&[&one.series, &one.x, &one.metric, &value, &one.note])
        };
        let rows: Vec<_> = experiment.published.iter().map(row).collect();
        text.push_str(&table(&words(&["Series", "Where", "What", "Value", "Note"]), &rows, 5));
    }
    if !experiment.caveats.is_empty() {
        text.push_str(&titled_list("Caveats", &experiment.caveats));
    }
    if !experiment.setup.is_empty() {
        text.push_str(&format!(
            "<details><summary>The source's hardware, software and workload</summary>\n{}</details>\n",
            list(&experiment.setup)
        ));
    }
    text
}

fn conditions(entry: &Entry, record: &Record) -> String {
    let effort = match record.effort {
        Effort::Quick => "quick",
        Effort::Normal => "normal",
        Effort::Full => "full",
    };
    let most = |pick: fn(&crate::record::Run) -> f64| {
        let runs = record.points.iter().flat_map(|point| &point.runs);
        runs.map(pick).filter(|value| value.is_finite()).fold(0.0, f64::max)
    };
    let mut facts = vec![
        ("Record".to_owned(), entry.file.clone()),
        ("Version".to_owned(), record.version.clone()),
        ("Date".to_owned(), date(record.started_unix_s)),
        ("Took".to_owned(), format!("{} s", plain(record.took_s))),
        ("Effort".to_owned(), effort.to_owned()),
        ("Seed".to_owned(), record.seed.to_string()),
        ("Test bed".to_owned(), format!("{}: {}", record.bed.kind, record.bed.description)),
        ("Discarded blocks".to_owned(), record.discarded_blocks.to_string()),
        (
            "Use by others, at most".to_owned(),
            format!("{} % of all cores", plain(most(|run| run.foreign_percent))),
        ),
        (
            "Stolen by the hypervisor, at most".to_owned(),
            format!("{} % of all cores", plain(most(|run| run.stolen_percent))),
        ),
    ];
    facts.extend(record.settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    format!("<h3>Settings and conditions</h3>\n{}", pairs(&facts))
}

fn pairs(facts: &[(String, String)]) -> String {
    let one = |(name, value): &(String, String)| {
        format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value))
    };
    format!("<dl>\n{}</dl>\n", facts.iter().map(one).collect::<String>())
}

/// All of the environment, by path.
fn machine(record: &Record) -> String {
    let mut facts = Vec::new();
    flat("", &record.environment, 0, &mut facts);
    if facts.is_empty() {
        return "<h3>Environment</h3>\n<p>The record has none.</p>\n".to_owned();
    }
    let (values, unread) = environment::coverage(&record.environment);
    let left = facts.len().saturating_sub(ENVIRONMENT_LINES_MAX);
    facts.truncate(ENVIRONMENT_LINES_MAX);
    if left > 0 {
        facts.push(("more".to_owned(), format!("{left} values are in the record only")));
    }
    format!(
        "<details><summary>Environment: the machine and its system. {values} values, of which {unread} could not be \
         read</summary>\n{}</details>\n",
        pairs(&facts)
    )
}

fn flat(path: &str, value: &serde_json::Value, depth: usize, facts: &mut Vec<(String, String)>) {
    let under =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let plain_list =
        |list: &[serde_json::Value]| list.iter().all(|one| !one.is_object() && !one.is_array());
    if let Some(reason) = environment::reason(value) {
        let text = format!("could not be read: {reason}");
        facts.push((path.to_owned(), text.chars().take(VALUE_LETTERS_MAX).collect()));
        return;
    }
    match value {
        serde_json::Value::Object(map) if depth < DEPTH_MAX => {
            for (name, value) in map {
                flat(&under(name), value, depth + 1, facts);
            }
        }
        serde_json::Value::Array(list) if depth < DEPTH_MAX && !plain_list(list) => {
            for (at, value) in list.iter().enumerate() {
                flat(&under(&at.to_string()), value, depth + 1, facts);
            }
        }
        serde_json::Value::Null if path.is_empty() => {}
        serde_json::Value::Null => facts.push((path.to_owned(), "could not be read".to_owned())),
        value => {
            let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            facts.push((path.to_owned(), text.chars().take(VALUE_LETTERS_MAX).collect()));
        }
    }
}

/// Every run.
fn raw(entry: &Entry, record: &Record) -> String {
    let experiment = &entry.experiment;
    let mut head =
        words(&["Series", &experiment.axis.label, "Block", "Others %", "Stolen %", "Bottleneck"]);
    head.extend(experiment.metrics.iter().map(|metric| escaped(&metric.id)));
    let mut rows = Vec::new();
    for point in &record.points {
        for run in &point.runs {
            let bound = match run.target_bound {
                Some(true) => "target",
                Some(false) => "not the target",
                None => "unknown",
            };
            let mut row = words(&[
                &point.series,
                &point.x,
                &run.block.to_string(),
                &plain(run.foreign_percent),
                &plain(run.stolen_percent),
                bound,
            ]);
            let value = |id: &String| {
                run.values.get(id).map_or("\u{2013}".to_owned(), |value| plain(*value))
            };
            row.extend(experiment.metrics.iter().map(|metric| value(&metric.id)));
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let left = rows.len().saturating_sub(RAW_ROWS_MAX);
    rows.truncate(RAW_ROWS_MAX);
    let more = if left > 0 {
        format!("<p>{left} more runs are in the CSV file beside this page.</p>\n")
    } else {
        String::new()
    };
    format!(
        "<details><summary>Raw values: every run</summary>\n{}{more}</details>\n",
        table(&head, &rows, 2)
    )
}
