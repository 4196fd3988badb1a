//! Reports of fixtures: complete, well-formed, harmless whatever the records say, and without panics.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/fixture_records/make.rs"]
mod make;

use std::path::Path;

use raceline_papers::experiment::Experiment;
use raceline_papers::record::{Missing, Record, StandIn};
use raceline_papers::report::{Grade, Report, ReportError};
use raceline_papers::statistics::{median_estimate, ratio};
use tempfile::TempDir;

/// Text that must never become markup.
const EVIL: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&\u{0}\u{1b}]]>--><a href=\"javascript:x\">";

fn put(folder: &Path, record: &Record) {
    let name = make::file_name(&record.experiment);
    std::fs::write(folder.join(name), serde_json::to_vec(record).unwrap()).unwrap();
}

fn with(records: &[Record]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    records.iter().for_each(|record| put(folder.path(), record));
    folder
}

/// Writes the report of a folder and gives the page.
fn page(folder: &Path, experiments: &[Experiment]) -> String {
    let report = Report::of_folder(folder, experiments).unwrap();
    let files = report.write(&folder.join("report/report.html")).unwrap();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "svg")) {
        let text = std::fs::read_to_string(file).unwrap();
        roxmltree::Document::parse(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    let text = std::fs::read_to_string(&files[0]).unwrap();
    assert_harmless(&text);
    text
}

/// The page is well-formed as XML, has unique ids, and can load or run nothing.
fn assert_harmless(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let document = roxmltree::Document::parse(body).unwrap_or_else(|error| panic!("{error}"));
    let mut ids = Vec::new();
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        assert!(
            !["script", "iframe", "object", "embed", "img", "form", "base"].contains(&name),
            "{name}"
        );
        for attribute in node.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            assert!(!key.starts_with("on") && key != "src" && key != "style", "{key}");
            if key == "href" {
                assert!(value.starts_with('#') || value == "data:,", "{value}");
            }
            if key == "id" {
                ids.push(value.to_owned());
            }
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "ids twice");
}

#[test]
fn every_experiment_has_its_row_section_and_figures() {
    let experiments = make::experiments();
    let records: Vec<Record> = experiments.iter().map(make::record).collect();
    let folder = with(&records);
    let text = page(folder.path(), &experiments);
    for experiment in &experiments {
        assert!(
            text.contains(&format!("raceline bench run {}", experiment.id)),
            "{}",
            experiment.id
        );
        assert!(text.contains(&format!(">{}</a>", experiment.id)), "{}", experiment.id);
    }
    let figures: usize = experiments.iter().map(|experiment| experiment.figures.len()).sum();
    assert!(text.matches("<figure>").count() >= figures);
    assert!(!text.contains("NaN") && !text.contains(">inf"));
    for name in [
        "report.md",
        "report.json",
        "report-summary.csv",
        "report-ratios.csv",
        "report-values.csv",
        "report-runs.csv",
    ] {
        assert!(folder.path().join("report").join(name).exists(), "{name}");
    }
}

#[test]
fn numbers_are_those_of_the_statistics() {
    let experiments = make::experiments();
    let experiment = experiments.iter().find(|one| one.id == "ADQ-F6").unwrap();
    let record = make::record(experiment);
    let folder = with(std::slice::from_ref(&record));
    let report = Report::of_folder(folder.path(), &experiments).unwrap();
    let entry = report.entries.iter().find(|entry| entry.experiment.id == "ADQ-F6").unwrap();
    let find = |series: &str, x: &str| {
        record.points.iter().find(|point| point.series == series && point.x == x).unwrap()
    };
    let (of, over) = (find("both", "5"), find("baseline", "5"));
    let expected = ratio(of, over, "iops").unwrap();
    let found =
        entry.ratios.iter().find(|ratio| ratio.comparison == 0 && ratio.column == "5").unwrap();
    assert_eq!(found.ours, Some(expected));
    assert_eq!(found.published, Some(1.36));
    let runs: Vec<f64> = of.runs.iter().map(|run| run.values["iops"]).collect();
    let value = entry.value("both", "5", "iops").unwrap();
    assert_eq!(value.estimate, median_estimate(&runs).unwrap());
    report.write(&folder.path().join("r.html")).unwrap();
    let json = std::fs::read_to_string(folder.path().join("r.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let mut rows = json["experiments"].as_array().unwrap().iter();
    let one = rows.find(|one| one["id"] == "ADQ-F6").unwrap();
    let row = one["ratios"].as_array().unwrap().iter().find(|row| row["column"] == "5").unwrap();
    // What reads JSON may round the last digit.
    assert!((row["ours"].as_f64().unwrap() / expected.value - 1.0).abs() < 1e-12);
    let csv = std::fs::read_to_string(folder.path().join("r-values.csv")).unwrap();
    assert!(csv.contains(&format!("ADQ-F6,both,5,iops,{}", value.estimate.value)));
    let words = format!(
        "{:.2} ({:.2} to {:.2})",
        expected.value,
        expected.interval.unwrap().low,
        expected.interval.unwrap().high
    );
    let page = std::fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.contains(&words), "{words}");
    // The report in JSON lies among the records, and is none.
    let again = Report::of_folder(folder.path(), &experiments).unwrap();
    assert!(again.problems.is_empty(), "{:?}", again.problems);
}

#[test]
fn what_has_no_record_is_in_the_summary() {
    let experiments = make::experiments();
    let folder = with(&[make::record(&experiments[0])]);
    let report = Report::of_folder(folder.path(), &experiments).unwrap();
    assert_eq!(report.entries.len(), experiments.len());
    let without: Vec<_> = report.entries.iter().filter(|entry| entry.record.is_none()).collect();
    assert_eq!(without.len(), experiments.len() - 1);
    for entry in without {
        assert_eq!(entry.grade, Grade::NotMeasured);
        assert_eq!(entry.verdict, "Not measured: there is no record of it.");
    }
    page(folder.path(), &experiments);
}

#[test]
fn records_cannot_put_markup_into_the_page() {
    let mut experiments = make::experiments();
    let evil = || EVIL.to_owned();
    let experiment = &mut experiments[0];
    experiment.title = evil();
    experiment.question = evil();
    experiment.series[0].label = evil();
    experiment.metrics[0].unit = evil();
    experiment.comparisons[0].label = evil();
    experiment.axis.label = evil();
    experiment.caveats.push(evil());
    experiment.setup.push(evil());
    experiment.figures[0].title = evil();
    let mut record = make::record(experiment);
    record.version = evil();
    record.bed.description = evil();
    record.stand_ins.push(StandIn { of: evil(), by: evil(), effect: evil() });
    record.missing.push(Missing { what: evil(), why: evil() });
    record.settings.insert(evil(), evil());
    record.environment = serde_json::json!({ EVIL: [EVIL, { EVIL: EVIL }] });
    let folder = with(&[record.clone()]);
    // An unknown experiment, and a point of an unknown series.
    record.points[0].series = evil();
    std::fs::write(folder.path().join("z.json"), serde_json::to_vec(&record).unwrap()).unwrap();
    record.experiment = evil();
    std::fs::write(folder.path().join("unknown.json"), serde_json::to_vec(&record).unwrap())
        .unwrap();
    let text = page(folder.path(), &experiments);
    assert!(!text.contains("<script") && !text.contains("<img") && text.contains("&lt;script&gt;"));
    assert!(text.contains("is not one that this program knows"));
    let markdown = std::fs::read_to_string(folder.path().join("report/report.md")).unwrap();
    assert!(!markdown.contains("<script"));
}

#[test]
fn environments_that_differ_are_named() {
    let experiments = make::experiments();
    let machine = |governor: &str, mtu: u32| {
        serde_json::json!({
            "schema": 1, "read_unix_s": mtu, "cpu": { "governors": [governor] },
            "interface": { "mtu": mtu }, "idle": { "driver": { "unread": "needs <root>" } },
        })
    };
    let of = |number: usize, kind: &str, environment| {
        let mut record = make::record(&experiments[number]);
        record.bed.kind = kind.to_owned();
        record.environment = environment;
        record
    };
    let records = [
        of(0, "veth", machine("performance", 1500)),
        of(1, "veth", machine("powersave", 9000)),
        // Another bed has another interface, which is no difference of the machine.
        of(2, "loopback", machine("powersave", 65536)),
    ];
    let folder = with(&records);
    let report = Report::of_folder(folder.path(), &experiments).unwrap();
    let found: Vec<_> =
        report.contrasts.iter().map(|one| (one.field.as_str(), one.other.1.len())).collect();
    assert_eq!(found, [("cpu.governors", 2), ("interface.mtu", 1)]);
    let text = page(folder.path(), &experiments);
    assert!(text.contains("environments differ in 2 values") && text.contains("9000"));
    assert!(text.contains("could not be read: needs &lt;root&gt;"));
    assert!(text.contains("5 values, of which 1 could not be read"), "{text}");
    let json = std::fs::read_to_string(folder.path().join("report/report.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["environments"][1]["field"], "interface.mtu");
    // Records of the same machine are not contrasted.
    let same = with(&[records[0].clone(), of(1, "veth", machine("performance", 1500))]);
    assert!(!page(same.path(), &experiments).contains("environments differ"));
}

#[test]
fn files_that_are_no_records_are_named_with_reasons() {
    let experiments = make::experiments();
    let folder = with(&[make::record(&experiments[0])]);
    let record = serde_json::to_string(&make::record(&experiments[1])).unwrap();
    let files = [
        ("broken.json", "{\"schema\": 1,".to_owned(), "broken JSON"),
        ("foreign.json", "[1, 2]".to_owned(), "no number `schema`"),
        ("newer.json", record.replacen("\"schema\":1", "\"schema\":99", 1), "has layout 99"),
        ("key.json", record.replacen("\"seed\"", "\"seeed\"", 1), "no record"),
        ("null.json", record.replacen("\"took_s\":41.5", "\"took_s\":null", 1), "no record"),
        ("empty.json", String::new(), "broken JSON"),
        ("deep.json", "[".repeat(100_000), "broken JSON"),
    ];
    for (name, text, _) in &files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    std::fs::write(folder.path().join("bytes.json"), [0xff, 0xfe, 0x00]).unwrap();
    let report = Report::of_folder(folder.path(), &experiments).unwrap();
    for (name, _, why) in &files {
        let found = report.problems.iter().find(|problem| problem.starts_with(name));
        assert!(
            found.is_some_and(|problem| problem.contains(why)),
            "{name}: {:?}",
            report.problems
        );
    }
    assert!(
        report.problems.iter().any(|problem| problem.starts_with("bytes.json: cannot be read"))
    );
    let text = page(folder.path(), &experiments);
    assert!(text.contains("What could not be used") && text.contains("has layout 99"));
}

#[test]
fn folders_without_records_are_errors_that_say_what_to_do() {
    let experiments = make::experiments();
    let folder = tempfile::tempdir().unwrap();
    let missing = Report::of_folder(&folder.path().join("not-there"), &experiments).unwrap_err();
    assert!(matches!(missing, ReportError::Folder { .. }));
    assert!(missing.to_string().contains("raceline bench run"), "{missing}");
    let empty = Report::of_folder(folder.path(), &experiments).unwrap_err();
    assert!(empty.to_string().contains("no records of experiments"), "{empty}");
    std::fs::write(folder.path().join("a.json"), "{").unwrap();
    let broken = Report::of_folder(folder.path(), &experiments).unwrap_err().to_string();
    assert!(broken.contains("a.json: broken JSON"), "{broken}");
    let file = Report::of_folder(&folder.path().join("a.json"), &experiments).unwrap_err();
    assert!(file.to_string().contains("name the folder"), "{file}");
}

#[test]
fn pages_that_cannot_be_written_are_errors() {
    let experiments = make::experiments();
    let folder = with(&[make::record(&experiments[0])]);
    let report = Report::of_folder(folder.path(), &experiments).unwrap();
    let name = make::file_name(&experiments[0].id);
    assert!(matches!(report.write(&folder.path().join(&name)), Err(ReportError::Name { .. })));
    std::fs::write(folder.path().join("file"), "x").unwrap();
    let below = report.write(&folder.path().join("file/report.html")).unwrap_err();
    assert!(below.to_string().contains("--out"), "{below}");
    // The record is still one.
    assert!(Report::of_folder(folder.path(), &experiments).unwrap().problems.is_empty());
}

#[test]
fn odd_records_give_rows_that_say_so() {
    // One of each kind of figure.
    let named = ["ADQ-F4", "CH-T2", "DSA-T1", "NT-I10-L", "NT-ARCH"];
    let experiments = make::experiments();
    for experiment in experiments.iter().filter(|one| named.contains(&one.id.as_str())) {
        let record = make::record(experiment);
        let mut variants = vec![record.clone(); 6];
        variants[0].points.clear();
        variants[1].points.iter_mut().for_each(|point| point.runs.clear());
        variants[2].points.iter_mut().for_each(|point| point.runs.truncate(3));
        let runs = |record: &mut Record, change: fn(&mut f64)| {
            let runs = record.points.iter_mut().flat_map(|point| &mut point.runs);
            runs.for_each(|run| run.values.values_mut().for_each(change));
        };
        runs(&mut variants[3], |value| *value = 0.0);
        runs(&mut variants[4], |value| *value = -1e300);
        variants[5].points.iter_mut().flat_map(|point| &mut point.runs).for_each(|run| {
            run.latencies = vec![(1, u64::MAX), (u64::MAX, u64::MAX)];
            run.values.values_mut().for_each(|value| *value = f64::MAX);
            run.block = 0;
        });
        variants[5].started_unix_s = u64::MAX;
        for (number, variant) in variants.into_iter().enumerate() {
            let folder = with(&[variant]);
            let text = page(folder.path(), std::slice::from_ref(experiment));
            assert!(!text.contains("NaN"), "{} {number}", experiment.id);
            if number < 2 {
                assert!(text.contains("not measured"), "{} {number}", experiment.id);
            }
            if number == 2 {
                assert!(text.contains("too few"), "{}", experiment.id);
            }
        }
    }
}

#[test]
fn the_newest_complete_record_counts() {
    let experiments = make::experiments();
    let mut record = make::record(&experiments[0]);
    let folder = with(&[record.clone()]);
    record.complete = false;
    record.started_unix_s += 100;
    std::fs::write(folder.path().join("broken-off.json"), serde_json::to_vec(&record).unwrap())
        .unwrap();
    let report = Report::of_folder(folder.path(), &experiments).unwrap();
    let entry = &report.entries[0];
    assert_eq!(entry.file, make::file_name(&experiments[0].id));
    assert!(entry.remarks.iter().any(|remark| remark.contains("broken-off.json")));
    let alone = with(&[record]);
    let report = Report::of_folder(alone.path(), &experiments).unwrap();
    assert!(report.entries[0].remarks.iter().any(|remark| remark.contains("broke off")));
}
