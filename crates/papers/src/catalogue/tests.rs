//! All experiments of the program load, and faults of a user's file are named with file, line and key.

use super::*;

const GOOD: &str = r#"id = "MINE"
title = "t"
question = "q"
source = "s"

[procedure]
name = "load"

[procedure.settings]
io_bytes = 4096

[axis]
label = "Depth"

[[axis.columns]]
id = "1"
settings = { depth = 1 }

[[axis.columns]]
id = "8"
settings = { depth = 8 }

[[series]]
id = "a"
label = "a"

[[series]]
id = "b"
label = "b"
settings = { target_mode = "poll" }

[[metrics]]
id = "iops"
label = "IOPS"
unit = "1/s"
better = "higher"

[[comparisons]]
label = "c"
metric = "iops"
of = "b"
over = "a"
columns = ["8"]
published = { "8" = 1.5 }

[[figures]]
title = "f"
kind = "lines"
metrics = ["iops"]
"#;

fn load(text: &str) -> Result<(), LoadError> {
    Catalogue { experiments: Vec::new() }.add("mine.toml", text).map(|_| ())
}

#[test]
fn every_experiment_of_the_program_loads() {
    let catalogue = Catalogue::builtin().unwrap_or_else(|error| panic!("{error}"));
    let papers = [
        "ADQ-F4",
        "ADQ-F5",
        "ADQ-F6",
        "CH-F1",
        "CH-F2",
        "CH-T2",
        "NT-MIX",
        "NT-AFF",
        "NT-DIRECT",
        "NT-ADQ",
        "NT-BATCH",
        "NT-FLAGS",
        "NT-I10-L",
        "NT-I10-T",
        "NT-ARCH",
        "DSA-T1",
        "DSA-128K-SCALE",
        "DSA-128K-LAT",
        "DSA-16K-SCALE",
        "DSA-16K-LAT",
        "DSA-4K-SCALE",
        "DSA-4K-LAT",
    ];
    for id in papers {
        let experiment = catalogue.find(id).unwrap();
        assert!(!experiment.setup.is_empty() || id.starts_with("NT"), "{id} has no set-up");
        assert!(!experiment.comparisons.is_empty(), "{id} compares nothing");
    }
    assert_eq!(catalogue.find("ch-t1").unwrap().id, "CH-F1");
}

#[test]
fn published_numbers_are_complete() {
    let catalogue = Catalogue::builtin().unwrap();
    let count = |id: &str| catalogue.find(id).unwrap().published.len();
    assert_eq!((count("CH-F1"), count("CH-T2"), count("DSA-T1")), (36, 36, 12));
    let read = |series: &str, metric: &str| {
        let found = catalogue.find("CH-T2").unwrap();
        let number = found
            .published
            .iter()
            .find(|p| p.series == series && p.metric == metric && p.x == "read");
        number.map(|number| number.value)
    };
    assert_eq!(read("SPDK NVMe/TCP offload", "delta latency"), Some(21.56));
}

#[test]
fn unknown_names_suggest_near_ones() {
    let catalogue = Catalogue::builtin().unwrap();
    let error = catalogue.find("ADQ-F7").unwrap_err();
    assert!(error.to_string().contains("ADQ-F"), "{error}");
    let error = catalogue.find("%%").unwrap_err().to_string();
    assert!(error.contains("raceline bench list"), "{error}");
}

#[test]
fn faults_name_file_line_and_key() {
    load(GOOD).unwrap();
    for (from, to, line, key, why) in [
        ("io_bytes = 4096", "io_size = 4096", 10, "io_size", "unknown"),
        ("io_bytes = 4096", "io_bytes = 0", 10, "io_bytes", "512"),
        ("io_bytes = 4096", "io_bytes = \"big\"", 10, "io_bytes", "invalid type"),
        ("depth = 8", "depth = 100000", 21, "depth", "invalid value"),
        ("\"poll\"", "\"sleepy\"", 30, "target_mode", "poll"),
        ("name = \"load\"", "name = \"loud\"", 7, "name", "no procedure `loud`"),
        ("of = \"b\"", "of = \"z\"", 41, "of", "no series `z`"),
        ("metric = \"iops\"", "metric = \"ipos\"", 40, "metric", "no metric `ipos`"),
        ("columns = [\"8\"]", "columns = [\"9\"]", 43, "columns", "no column `9`"),
        ("{ \"8\" = 1.5 }", "{ \"8\" = -1.5 }", 44, "published", "above 0"),
        (
            "published = { \"8\" = 1.5 }",
            "wall = { latency = \"iops\", times = 2.0, missed = \"lost\", missed_percent_max = 1.0 }",
            44,
            "wall",
            "no metric `lost`",
        ),
        (
            "published = { \"8\" = 1.5 }",
            "wall = { latency = \"iops\", times = 2.0, missed = \"iops\", missed_percent_max = 1.0 }",
            44,
            "wall",
            "two or more columns",
        ),
        ("metrics = [\"iops\"]", "metrics = [\"x\"]", 49, "metrics", "no metric `x`"),
        ("id = \"b\"", "id = \"a\"", 24, "id", "two of the series a"),
        ("id = \"iops\"", "id = \"joy\"", 33, "id", "does not measure `joy`"),
        ("question =", "quest =", 3, "quest", "unknown field"),
        ("better = \"higher\"", "better = \"more\"", 36, "better", "unknown variant"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from} is not in the text");
        let error = load(&text).unwrap_err();
        assert_eq!((error.file.as_str(), error.key.as_str()), ("mine.toml", key), "{error}");
        assert_eq!(error.line, Some(line), "{error}");
        assert!(error.why.contains(why), "{error}");
    }
}

#[test]
fn a_name_is_given_once() {
    let mut catalogue = Catalogue::builtin().unwrap();
    let error = catalogue.add("mine.toml", &GOOD.replace("MINE", "ch-t1")).unwrap_err();
    assert!(error.why.contains("another experiment"), "{error}");
    assert_eq!(error.line, Some(1));
    let missing = catalogue.add_file(Path::new("/nowhere/x.toml")).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/x.toml: "), "{missing}");
}
