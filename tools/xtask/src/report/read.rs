//! Reads the output of the measuring commands: `raceline bench gap`, `cargo xtask spdk` and `bench`.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::figures::{Beside, Fact, Figures, Point, Row, Source, Tail};
use crate::origin::date;
use crate::spdk::Spread;

/// The figures of a file. `build` is for JSON that names no build.
pub(super) fn file(path: &Path, build: Option<&str>) -> Result<Figures> {
    let text = std::fs::read_to_string(path)?;
    let value: Value = serde_json::from_str(&text).context("not JSON")?;
    let modified = std::fs::metadata(path)?.modified()?;
    let written_s = modified.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    figures(&value, build, written_s)
}

fn figures(value: &Value, build: Option<&str>, written_s: u64) -> Result<Figures> {
    let mut found = Figures::default();
    let setting = &value["setting"];
    if value.is_array() {
        gap(&mut found, value, build, written_s)?;
    } else if setting["spdk"].is_string() && value["points"].is_array() {
        beside_spdk(&mut found, value)?;
    } else if setting["spdk"].is_string() && value["tails"].is_array() {
        tails(&mut found, value)?;
    } else if setting["raceline"].is_string() {
        bench(&mut found, value, written_s)?;
    } else {
        bail!("neither the JSON of `raceline bench gap` nor that of `cargo xtask spdk` or `bench`");
    }
    let nothing = found.points.is_empty() && found.tails.is_empty() && found.facts.is_empty();
    ensure!(!nothing, "no figures of the page");
    Ok(found)
}

/// A list of points. Older lists do not name their target: it is `raceline export`.
fn gap(found: &mut Figures, points: &Value, build: Option<&str>, written_s: u64) -> Result<()> {
    for point in list(points)? {
        let shaped = ["null", "staged"].iter().any(|name| point[name] == true);
        if point["memory"] != "ram" || shaped || point["work_ns"].as_u64() != Some(0) {
            continue;
        }
        let case = text(point, "case")?;
        let row = gap_row(found, point, build, written_s).with_context(|| case.clone())?;
        found.points.push(row);
    }
    Ok(())
}

fn gap_row(found: &mut Figures, point: &Value, build: Option<&str>, written_s: u64) -> Result<Row> {
    let (beside, theirs) = match point["reference"].as_str() {
        None | Some("limit") => (Beside::Limit, "limit_iops"),
        Some("export") => (Beside::Export, "export_iops"),
        Some(other) => bail!("an unknown reference {other}"),
    };
    let pairs = list(&point["pairs"])?;
    let version = point["version"].as_str();
    let build = build.or(version).context("the build is not named: give it by --build")?;
    let buffers = if point["buffer_each"] == true { "with" } else { "without" };
    let details = match beside {
        Beside::Limit => format!("{} pairs, {buffers} --buffer-each", pairs.len()),
        Beside::SpdkTuned | Beside::Export => format!("{} pairs", pairs.len()),
    };
    let source = found.source(Source {
        command: "raceline bench gap".to_owned(),
        build: build.to_owned(),
        date: date(point["unix_s"].as_u64().unwrap_or(written_s)),
        target: point["target"].as_str().unwrap_or("export").to_owned(),
        processor: point["processor"].as_str().unwrap_or("unknown").to_owned(),
        congestion_control: text(point, "congestion_control")?,
        details,
    });
    Ok(Row {
        point: Point {
            io_bytes: number(point, "io_bytes")?,
            write: point["rw"] == "write",
            depth: number(point, "depth")?,
            connections: number(point, "connections")?,
        },
        beside,
        ours: spread(pairs, 0, |pair| pair["iops"].as_f64())?,
        theirs: spread(pairs, 0, |pair| pair[theirs].as_f64())?,
        ratio: spread(pairs, 3, |pair| pair["ratio"].as_f64())?,
        disturbed: point["disturbed"].as_u64().context("no disturbed")?,
        source,
    })
}

/// Pairs of Raceline's host and target, and of SPDK's host and tuned target, repetition by repetition.
fn beside_spdk(found: &mut Figures, value: &Value) -> Result<()> {
    let source = spdk_source(found, &value["setting"], "cargo xtask spdk")?;
    for point in list(&value["points"])? {
        let name = text(point, "name")?;
        if point["point"]["null"] == true || point["point"]["digests"] == true {
            continue;
        }
        let repetitions = list(&point["repetitions"])?;
        let ours = |runs: &Value| iops(runs, "raceline", "raceline");
        let theirs = |runs: &Value| iops(runs, "spdk", "spdk-tuned");
        let ratio = |runs: &Value| ours(runs).zip(theirs(runs)).map(|(a, b)| a / b);
        let row = || {
            anyhow::Ok(Row {
                point: spdk_point(&point["point"])?,
                beside: Beside::SpdkTuned,
                ours: spread(repetitions, 0, ours)?,
                theirs: spread(repetitions, 0, theirs)?,
                ratio: spread(repetitions, 3, ratio)?,
                disturbed: point["disturbed"].as_u64().context("no disturbed")?,
                source: source.clone(),
            })
        };
        found.points.push(row().with_context(|| name.clone())?);
    }
    Ok(())
}

/// IOPS of a pair in a repetition.
fn iops(runs: &Value, host: &str, target: &str) -> Option<f64> {
    let is_it = |run: &&Value| run["pair"]["host"] == host && run["pair"]["target"] == target;
    runs.as_array()?.iter().find(is_it)?["iops"].as_f64()
}

fn tails(found: &mut Figures, value: &Value) -> Result<()> {
    let source = spdk_source(found, &value["setting"], "cargo xtask spdk --tail")?;
    let targets = list(&value["targets"])?;
    let place = |name: &str| {
        targets.iter().position(|target| target == name).with_context(|| format!("no {name}"))
    };
    let (ours, spdk) = (place("raceline")?, place("spdk-tuned")?);
    for point in list(&value["tails"])? {
        let name = text(point, "name")?;
        let repetitions = list(&point["repetitions"])?;
        let row = || {
            let p50 =
                |at: usize| spread(repetitions, 0, |found| found["tails"][at]["p50_us"].as_f64());
            let p999 = |at: usize| spread(repetitions, 0, |found| found["in_windows"][at].as_f64());
            anyhow::Ok(Tail {
                point: spdk_point(&point["point"])?,
                ours_p50_us: p50(ours)?,
                spdk_p50_us: p50(spdk)?,
                ours_p999_us: p999(ours)?,
                spdk_p999_us: p999(spdk)?,
                source: source.clone(),
            })
        };
        found.tails.push(row().with_context(|| name.clone())?);
    }
    Ok(())
}

fn spdk_source(found: &mut Figures, setting: &Value, command: &str) -> Result<String> {
    let repetitions = setting["repetitions"].as_u64().context("no repetitions")?;
    let spdk = text(setting, "spdk")?;
    let mut source = setting_source(setting, command)?;
    source.target = text(setting, "target")?;
    source.details = format!("{repetitions} repetitions, {spdk}");
    Ok(found.source(source))
}

fn setting_source(setting: &Value, command: &str) -> Result<Source> {
    Ok(Source {
        command: command.to_owned(),
        build: text(setting, "raceline")?,
        date: date(setting["unix_s"].as_u64().context("no unix_s")?),
        target: String::new(),
        processor: text(setting, "processor")?,
        congestion_control: text(setting, "congestion_control")?,
        details: String::new(),
    })
}

fn spdk_point(point: &Value) -> Result<Point> {
    Ok(Point {
        io_bytes: number(point, "io_bytes")?,
        write: point["write"] == true,
        depth: number(point, "depth")?,
        connections: number(point, "connections")?,
    })
}

/// The sections of `cargo xtask bench`: the points of its gap, and every value that has a bar.
fn bench(found: &mut Figures, value: &Value, written_s: u64) -> Result<()> {
    let setting = &value["setting"];
    let build = text(setting, "raceline")?;
    for section in ["gap", "daemon"] {
        if value[section].is_array() {
            gap(found, &value[section], Some(&build), written_s)?;
        }
    }
    let source = setting_source(setting, "cargo xtask bench")?;
    let mut facts = Vec::new();
    for section in ["memory", "idle", "sessions", "start", "control"] {
        with_bars(&value[section], None, &source.name(), &mut facts);
    }
    if let Some(bytes) = value["idle"]["bytes_per_connection"].as_f64() {
        let value = Spread::of([bytes / 1024.0].into_iter()).rounded(0);
        let (name, unit) = ("memory of an idle connection".to_owned(), "KiB".to_owned());
        facts.push(Fact { name, value, unit, source: source.name() });
    }
    if !facts.is_empty() {
        found.source(source);
        found.facts.extend(facts);
    }
    Ok(())
}

/// Finds values with a bar, at any depth. The median and the ends may stand beside the bar.
fn with_bars(value: &Value, beside: Option<Spread>, source: &str, facts: &mut Vec<Fact>) {
    match value {
        Value::Array(values) => {
            values.iter().for_each(|value| with_bars(value, None, source, facts))
        }
        Value::Object(members) => {
            let [name, unit] = ["name", "unit"].map(|name| value[name].as_str());
            if let (Some(name), Some(unit), Some(found)) = (name, unit, value["value"].as_f64()) {
                let value = beside.unwrap_or(Spread::of([found].into_iter())).rounded(2);
                let (name, unit) = (name.to_owned(), unit.to_owned());
                facts.push(Fact { name, value, unit, source: source.to_owned() });
                return;
            }
            let ends = members.values().find_map(|member| {
                let [median, low, high] =
                    ["median", "least", "most"].map(|name| member[name].as_f64());
                Some(Spread { median: median?, low: low?, high: high? })
            });
            members.values().for_each(|member| with_bars(member, ends, source, facts));
        }
        _ => {}
    }
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("a list is missing")
}

fn text(value: &Value, name: &str) -> Result<String> {
    Ok(value[name].as_str().with_context(|| format!("no {name}"))?.to_owned())
}

fn number(value: &Value, name: &str) -> Result<u32> {
    let number = value[name].as_u64().with_context(|| format!("no {name}"))?;
    u32::try_from(number).with_context(|| format!("{name} {number}"))
}

/// The spread of the runs' values, all of which must be there.
fn spread(runs: &[Value], digits: i32, value: impl Fn(&Value) -> Option<f64>) -> Result<Spread> {
    ensure!(!runs.is_empty(), "no runs");
    let values: Option<Vec<f64>> = runs.iter().map(value).collect();
    Ok(Spread::of(values.context("a run without its value")?.into_iter()).rounded(digits))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gap_point(reference: Option<&str>) -> Value {
        let mut point = json!({
            "case": "4k read depth 8 x 4", "rw": "read", "io_bytes": 4096, "depth": 8,
            "connections": 4, "memory": "ram", "work_ns": 0, "congestion_control": "cubic",
            "disturbed": 1, "pairs": [
                {"limit_iops": 200.0, "export_iops": 100.0, "iops": 100.0, "ratio": 0.5},
                {"limit_iops": 300.0, "export_iops": 200.0, "iops": 300.0, "ratio": 1.0},
            ],
        });
        if let Some(reference) = reference {
            let facts = json!({"reference": reference, "target": "serve", "version": "0.1.0",
                "unix_s": 1_795_564_800, "processor": "2 cores of X"});
            point.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
        }
        point
    }

    #[test]
    fn a_list_of_the_gap_says_what_it_is_of() {
        let found = figures(&json!([gap_point(Some("limit"))]), None, 0).unwrap();
        let row = &found.points[0];
        assert_eq!((row.point, row.beside), (Point::new(4, false, 8, 4), Beside::Limit));
        assert_eq!(row.theirs, Spread { median: 250.0, low: 200.0, high: 300.0 });
        assert_eq!((row.ratio.median, row.disturbed), (0.75, 1));
        let source = &found.sources[&row.source];
        assert_eq!((source.build.as_str(), source.target.as_str()), ("0.1.0", "serve"));
        assert_eq!(
            (source.date.as_str(), source.details.as_str()),
            ("2026-11-25", "2 pairs, without --buffer-each")
        );
        let found = figures(&json!([gap_point(Some("export"))]), Some("abc"), 0).unwrap();
        assert_eq!((found.points[0].beside, found.points[0].theirs.high), (Beside::Export, 200.0));
        assert_eq!(found.build(&found.points[0].source), "abc");
    }

    #[test]
    fn an_old_list_is_of_export_and_needs_a_build() {
        let old = json!([gap_point(None)]);
        let error = figures(&old, None, 0).unwrap_err();
        assert!(format!("{error:#}").contains("--build"), "{error:#}");
        let found = figures(&old, Some("abc"), 86_400).unwrap();
        let source = &found.sources[&found.points[0].source];
        assert_eq!((source.target.as_str(), source.date.as_str()), ("export", "1970-01-02"));
        let mut without = old;
        without[0]["memory"] = "null".into();
        assert!(figures(&without, Some("abc"), 0).is_err());
    }

    fn setting() -> Value {
        json!({"raceline": "abc", "target": "serve", "unix_s": 1_795_564_800, "spdk": "SPDK v26.05",
            "processor": "2 cores of X", "congestion_control": "cubic", "repetitions": 2})
    }

    fn spdk_point_json() -> Value {
        json!({"io_bytes": 4096, "write": true, "depth": 32, "connections": 1, "null": false,
            "digests": false})
    }

    #[test]
    fn pairs_of_both_hosts_are_compared_repetition_by_repetition() {
        let run = |host: &str, target: &str, iops: f64| json!({"pair": {"host": host, "target": target}, "iops": iops});
        let runs = |factor: f64| {
            json!([
                run("raceline", "raceline", 300.0 * factor),
                run("spdk", "spdk", 1.0),
                run("spdk", "spdk-tuned", 200.0 * factor),
                run("raceline", "spdk-tuned", 7.0)
            ])
        };
        let value = json!({"setting": setting(), "points": [{"name": "4k write 32x1",
            "point": spdk_point_json(), "repetitions": [runs(1.0), runs(3.0)], "disturbed": 0}]});
        let found = figures(&value, None, 0).unwrap();
        let row = &found.points[0];
        assert_eq!((row.ratio.low, row.ratio.high), (1.5, 1.5));
        assert_eq!(row.theirs, Spread { median: 400.0, low: 200.0, high: 600.0 });
        let details = &found.sources[&row.source].details;
        assert_eq!(details, "2 repetitions, SPDK v26.05");
    }

    #[test]
    fn tails_are_those_of_our_target_and_of_spdk_tuned() {
        let tail = |us: f64| json!({"p50_us": us, "p999_us": 1.0});
        let repetition =
            json!({"tails": [tail(12.0), tail(1.0), tail(20.0)], "in_windows": [30.0, 1.0, 40.0]});
        let value = json!({"setting": setting(), "targets": ["raceline", "raceline-huge", "spdk-tuned"],
            "tails": [{"name": "4k write 32x1", "point": spdk_point_json(), "repetitions": [repetition]}]});
        let row = &figures(&value, None, 0).unwrap().tails[0];
        let medians = [row.ours_p50_us, row.spdk_p50_us, row.ours_p999_us, row.spdk_p999_us];
        assert_eq!(medians.map(|found| found.median), [12.0, 20.0, 30.0, 40.0]);
    }

    #[test]
    fn values_with_bars_are_facts_of_the_page() {
        let bar = |name: &str| json!({"name": name, "value": 4.0, "bar": 9, "unit": "ms", "reached": true});
        let value = json!({"setting": setting_of_bench(), "start": [
            {"ms": {"median": 4.0, "least": 3.0, "most": 5.0}, "rejected": 0, "bar": bar("cold")}],
            "idle": {"bytes_per_connection": 2048, "bars": [bar("CPU")]}, "gap": [gap_point(Some("limit"))]});
        let found = figures(&value, None, 0).unwrap();
        let names: Vec<&str> = found.facts.iter().map(|fact| fact.name.as_str()).collect();
        assert_eq!(names, ["CPU", "cold", "memory of an idle connection"]);
        assert_eq!(found.facts[1].value, Spread { median: 4.0, low: 3.0, high: 5.0 });
        assert_eq!((found.facts[0].value.high, found.facts[2].value.median), (4.0, 2.0));
        assert_eq!(found.build(&found.points[0].source), "abc");
    }

    fn setting_of_bench() -> Value {
        let mut setting = setting();
        setting.as_object_mut().unwrap().remove("spdk");
        setting
    }

    #[test]
    fn other_files_are_refused() {
        for value in
            [json!({}), json!({"setting": {"raceline": "a"}}), json!([]), json!([{"a": 1}])]
        {
            assert!(figures(&value, Some("abc"), 0).is_err(), "{value}");
        }
    }
}
