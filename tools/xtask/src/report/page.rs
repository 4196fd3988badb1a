//! The tables of docs/PERFORMANCE.md, between the markers that name them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use super::figures::{Beside, Fact, Figures, Point, Row, Source, Tail};
use crate::spdk::Spread;

/// A marker is a line of its own: `<!-- report: NAME -->`, and the end `<!-- /report -->`.
const BEGIN: &str = "<!-- report: ";
const BEGIN_TAIL: &str = " -->";
const END: &str = "<!-- /report -->";
const NOT_MEASURED: &str = "not measured";

/// The points of the page.
const POINTS: [Point; 12] = [
    Point::new(4, false, 1, 1),
    Point::new(4, false, 32, 1),
    Point::new(4, false, 32, 4),
    Point::new(4, false, 32, 16),
    Point::new(4, false, 8, 64),
    Point::new(4, true, 1, 1),
    Point::new(4, true, 32, 1),
    Point::new(4, true, 32, 16),
    Point::new(16, false, 32, 1),
    Point::new(128, false, 8, 1),
    Point::new(128, false, 32, 1),
    Point::new(128, true, 8, 1),
];

/// Values of `cargo xtask bench`: the name of the value there, and its description.
const FACTS: [(&str, &str); 9] = [
    (
        "ram, memory beside the namespace",
        "memory beside a RAM namespace, 128 connections x 127 commands of 128 KiB, at its peak",
    ),
    ("file, memory beside the namespace", "the same with a file"),
    ("memory of an idle connection", "memory of an idle connection that has been used"),
    (
        "CPU while idle",
        "CPU with 1,000 idle connections of 16 controllers, adaptive mode (the default)",
    ),
    ("memory of an idle session", "memory of an idle iSCSI session that has been used, of 1,000"),
    (
        "CPU with idle sessions",
        "CPU with 1,000 idle iSCSI sessions, each pinged every 30 s, adaptive mode",
    ),
    (
        "start to first read, cold",
        "`export` of a 1 GiB file, from start to the first read completed, cold",
    ),
    ("start to first read, warm", "the same, warm"),
    (
        "restart to ready",
        "a daemon with 1,000 subsystems x 8 namespaces, killed, until it is ready again",
    ),
];

/// The page with the figures between its markers.
pub(super) fn filled(page: &str, figures: &Figures) -> Result<String> {
    let mut text = String::new();
    let mut names = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(BEGIN_TAIL))
        else {
            continue;
        };
        text.push_str(&section(name, figures)?);
        text.push_str(END);
        text.push('\n');
        ensure!(lines.any(|line| line == END), "the section {name} has no end {END}");
        names.push(name);
    }
    for name in ["points", "plots", "daemon", "tails", "facts", "sources"] {
        ensure!(names.contains(&name), "the page has no line {BEGIN}{name}{BEGIN_TAIL}");
    }
    Ok(text)
}

fn section(name: &str, figures: &Figures) -> Result<String> {
    Ok(match name {
        "points" => points(figures),
        "plots" => super::plots(figures).iter().fold(String::new(), |text, plot| {
            format!("{text}![{}](plots/{})\n", plot.title, plot.file)
        }),
        "daemon" => daemon(figures),
        "tails" => tails(figures),
        "facts" => facts(figures),
        "sources" => sources(figures),
        other => bail!("nothing is known of the section {other}"),
    })
}

fn points(figures: &Figures) -> String {
    let titles = [
        "point",
        "Raceline",
        "SPDK tuned",
        "bare pair",
        "Raceline / SPDK tuned",
        "Raceline / bare pair",
        "builds",
    ];
    let mut text = head(&titles);
    for point in POINTS {
        let spdk = figures.row(point, Beside::SpdkTuned);
        let limit = figures.row(point, Beside::Limit);
        let thousands = |value: fn(&Row) -> Spread| move |row: &Row| value(row).cell(1000.0, 1);
        let ratio = |row: &Row| row.ratio.cell(1.0, 2) + &disturbed(row);
        let cells = [
            point.to_string(),
            cell(spdk.or(limit), thousands(|row| row.ours)),
            cell(spdk, thousands(|row| row.theirs)),
            cell(limit, thousands(|row| row.theirs)),
            cell(spdk, ratio),
            cell(limit, ratio),
            builds(figures, &[spdk, limit]),
        ];
        line(&mut text, &cells);
    }
    text
}

fn daemon(figures: &Figures) -> String {
    let rows = figures.points.iter().filter(|row| row.beside == Beside::Export);
    let mut text = head(&["point", "`serve`", "`export`", "`serve` / `export`", "build"]);
    let before = text.len();
    for row in rows {
        let cells = [
            row.point.to_string(),
            row.ours.cell(1000.0, 1),
            row.theirs.cell(1000.0, 1),
            row.ratio.cell(1.0, 2) + &disturbed(row),
            builds(figures, &[Some(row)]),
        ];
        line(&mut text, &cells);
    }
    if text.len() == before { format!("`serve` beside `export`: {NOT_MEASURED}.\n") } else { text }
}

fn tails(figures: &Figures) -> String {
    let titles = [
        "point",
        "Raceline, P50",
        "SPDK tuned, P50",
        "Raceline, P99.9",
        "SPDK tuned, P99.9",
        "build",
    ];
    let mut text = head(&titles);
    for tail in &figures.tails {
        let Tail { ours_p50_us, spdk_p50_us, ours_p999_us, spdk_p999_us, .. } = tail;
        let values = [ours_p50_us, spdk_p50_us, ours_p999_us, spdk_p999_us];
        let [a, b, c, d] = values.map(|value| value.cell(1.0, 0));
        let build = figures.build(&tail.source).to_owned();
        line(&mut text, &[tail.point.to_string(), a, b, c, d, build]);
    }
    if figures.tails.is_empty() { format!("Latency: {NOT_MEASURED}.\n") } else { text }
}

fn facts(figures: &Figures) -> String {
    let mut text = head(&["what", "seen", "build"]);
    for (name, what) in FACTS {
        let fact = figures.facts.iter().find(|fact| fact.name == name);
        let seen = |fact: &Fact| format!("{} {}", fact.value.cell(1.0, digits(fact)), fact.unit);
        let seen = fact.map_or(NOT_MEASURED.to_owned(), seen);
        let build = fact.map_or("", |fact| figures.build(&fact.source));
        line(&mut text, &[what.to_owned(), seen, build.to_owned()]);
    }
    text
}

/// Digits after the point: small values need a second one.
fn digits(fact: &Fact) -> usize {
    match fact.value.median {
        value if value >= 100.0 => 0,
        value if value >= 1.0 => 1,
        _ => 2,
    }
}

/// A line for each way of measuring, with its builds.
fn sources(figures: &Figures) -> String {
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in figures.sources.values() {
        let Source { command, target, congestion_control, details, .. } = source;
        let details = if details.is_empty() { "" } else { &format!("; {details}") };
        let target = if target.is_empty() { "" } else { &format!(" of `{target}`") };
        let how = format!("`{command}`{target}; TCP over {congestion_control}{details}");
        let builds = lines.entry(how).or_default();
        builds.push(format!("{}, {}", source.build, source.date));
    }
    let line = |(how, builds): (String, Vec<String>)| format!("- {how}: {}\n", builds.join("; "));
    lines.into_iter().map(line).collect()
}

fn cell(row: Option<&Row>, value: impl Fn(&Row) -> String) -> String {
    row.map_or(NOT_MEASURED.to_owned(), value)
}

fn disturbed(row: &Row) -> String {
    match row.disturbed {
        0 => String::new(),
        count => format!(", {count} disturbed"),
    }
}

/// The builds of some rows, each once.
fn builds(figures: &Figures, rows: &[Option<&Row>]) -> String {
    let mut builds: Vec<&str> =
        rows.iter().flatten().map(|row| figures.build(&row.source)).collect();
    builds.dedup();
    builds.join(", ")
}

fn head(titles: &[&str]) -> String {
    let mut text = String::new();
    line(&mut text, &titles.iter().map(|&title| title.to_owned()).collect::<Vec<_>>());
    let _ = writeln!(text, "|{}", "---|".repeat(titles.len()));
    text
}

fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// The lines of a page, for its limit.
pub(super) fn check_length(page: &str, most: usize) -> Result<()> {
    let lines = page.lines().count();
    ensure!(lines <= most, "{lines} lines, more than {most}");
    page.find(BEGIN).context("no markers").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        let sections = ["points", "plots", "daemon", "tails", "facts", "sources"];
        let part = |name| format!("Prose of {name}.\n{BEGIN}{name}{BEGIN_TAIL}\nstale\n{END}\n");
        sections.map(part).concat() + "The end.\n"
    }

    fn figures() -> Figures {
        let mut figures = Figures::default();
        let text = |text: &str| text.to_owned();
        let source = figures.source(Source {
            command: text("raceline bench gap"),
            build: text("abc1234"),
            date: text("2026-11-25"),
            target: text("serve"),
            processor: text("2 cores"),
            congestion_control: text("cubic"),
            details: text("5 pairs"),
        });
        let spread = |median: f64| Spread { median, low: median * 0.9, high: median * 1.1 };
        figures.points.push(Row {
            point: POINTS[1],
            beside: Beside::Limit,
            ours: spread(700_000.0),
            theirs: spread(800_000.0),
            ratio: spread(0.875),
            disturbed: 2,
            source,
        });
        figures
    }

    #[test]
    fn figures_stand_between_the_markers_and_prose_stays() {
        let text = filled(&page(), &figures()).unwrap();
        let row = "| 4 KiB read 32x1 | 700.0 (630.0 - 770.0) | not measured | 800.0 (720.0 - 880.0) \
                   | not measured | 0.88 (0.79 - 0.96), 2 disturbed | abc1234 |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("stale") && text.ends_with("The end.\n"), "{text}");
        assert!(text.contains(
            "- `raceline bench gap` of `serve`; TCP over cubic; 5 pairs: abc1234, 2026-11-25\n"
        ));
        // These points have no measurements, and the page says so.
        assert!(
            text.contains("`serve` beside `export`: not measured.")
                && text.contains("Latency: not")
        );
        // Filling the filled page changes nothing.
        assert_eq!(filled(&text, &figures()).unwrap(), text);
    }

    #[test]
    fn pages_without_their_markers_are_refused() {
        let without = page().replace("report: tails", "report: tales");
        assert!(filled(&without, &figures()).unwrap_err().to_string().contains("tales"));
        let endless = page().replacen(END, "", 6);
        assert!(filled(&endless, &figures()).is_err());
        assert!(filled("", &figures()).unwrap_err().to_string().contains("report: points"));
        assert!(check_length(&page(), 10).is_err() && check_length(&page(), 100).is_ok());
    }
}
