//! Tiny experiments from end to end: measured, broken off, gone on with, and with pieces missing.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::bed::Loopback;
use crate::catalogue::Catalogue;

mod rdma;

fn catalogue() -> Catalogue {
    Catalogue::builtin().unwrap_or_else(|error| panic!("{error}"))
}

/// Runs of tests that run at the same time would starve each other: each has the cores alone.
pub(super) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Options of a run that takes no time worth naming, on the loopback device; changed as a test needs it.
pub(super) fn plain_options<'a>(stop: &'a (dyn Fn() -> bool + Sync)) -> Options<'a> {
    let ms = Duration::from_millis;
    Options {
        effort: Effort::Quick,
        timing: Timing { blocks: 2, ramp: ms(10), time: ms(300), is_stated: false },
        until: 2,
        seed: 7,
        out: None,
        bed: &Loopback,
        spdk: None,
        target: None,
        nvmet: None,
        nvmet_rdma: None,
        rdma: RdmaSource::at(None),
        agent: None,
        engine: None,
        cpus: raceline_reactor::affinity::allowed_cores().unwrap(),
        distances: Distances::with_patience(ms(500)),
        environment: serde_json::Value::Null,
        version: "test".to_owned(),
        stop,
    }
}

fn options<'a>(stop: &'a (dyn Fn() -> bool + Sync), out: Option<&std::path::Path>) -> Options<'a> {
    Options { out: out.map(std::path::Path::to_owned), ..plain_options(stop) }
}

/// Whether other programs left a run no time for a single command: such runs are not in the record. If no run had any, the
/// machine is not the reason.
fn is_overloaded(record: &Record) -> bool {
    let mut missing = record.missing.iter();
    let is_one_missing = missing.any(|missing| missing.why.starts_with("no command ended"));
    let is = is_one_missing && record.points.iter().any(|point| !point.runs.is_empty());
    if is {
        println!("SKIPPED: nothing to test here: {:?}", record.missing);
    }
    is
}

/// Whether this process may use two cores; says what is skipped otherwise.
pub(in crate::run) fn has_two_cores(options: &Options<'_>) -> bool {
    let has = options.cpus.len() >= 2;
    if !has {
        println!("SKIPPED: a run takes two cores");
    }
    has
}

/// An experiment of the catalogue with one column and small memory.
fn tiny(id: &str, columns: usize) -> Experiment {
    let mut experiment = catalogue().find(id).unwrap().clone();
    experiment.axis.columns.truncate(columns);
    experiment.procedure.settings.insert("memory_mib".to_owned(), 16.into());
    experiment
}

#[test]
fn a_tiny_experiment_leaves_a_complete_record() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let experiment = tiny("CH-F2", 1);
    let options = options(&|| false, Some(folder.path()));
    if !has_two_cores(&options) {
        return;
    }
    let mut steps = Vec::new();
    let record = run(&experiment, &options, &mut |progress| steps.push(progress)).unwrap();
    if is_overloaded(&record) {
        return;
    }
    assert!(record.complete);
    let stored = load_record(&record_path(folder.path(), "CH-F2")).unwrap();
    assert_eq!(
        (stored.settings, stored.missing),
        (record.settings.clone(), record.missing.clone())
    );
    for (stored, measured) in stored.points.iter().zip(&record.points) {
        let latencies = |point: &crate::record::Point| -> Vec<_> {
            point.runs.iter().map(|run| run.latencies.clone()).collect()
        };
        assert_eq!(latencies(stored), latencies(measured));
    }
    for series in ["handoff", "interrupt", "adaptive", "poll", "iscsi-poll", "poll-64", "iscsi-64"]
    {
        let point = record.points.iter().find(|point| point.series == series);
        let point = point.unwrap_or_else(|| panic!("{series} was not measured"));
        assert_eq!(point.runs.len(), 2);
        for run in &point.runs {
            let commands: u64 = run.latencies.iter().map(|(_, count)| count).sum();
            assert!(commands > 0 && run.values["iops"] > 0.0, "{series}: {run:?}");
            assert!(run.values["cpu_ns_per_io"] > 0.0, "{series}: {run:?}");
            // Runs this short on a shared machine are far from exact.
            assert!(run.values["little_percent"] > 20.0, "{series}: {run:?}");
        }
    }
    let missing: Vec<&str> = record.missing.iter().map(|missing| missing.what.as_str()).collect();
    assert!(missing.iter().any(|what| what.contains("spdk")), "{missing:?}");
    assert!(record.stand_ins.iter().any(|it| it.of.contains("nvmet")), "{:?}", record.stand_ins);
    // tgt is measured, too, where it is installed.
    let runs = 2 * record.points.len();
    let last = steps.last().unwrap();
    assert_eq!((last.done, last.total), (runs, runs));
}

#[test]
fn blocks_of_an_experiment_can_be_measured_in_two_calls() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    // One whose commands come at a part of a ceiling, and one of another procedure.
    let mut affinity = catalogue().find("NT-AFF").unwrap().clone();
    affinity.axis.columns.truncate(1);
    for experiment in [tiny("NT-I10-L", 1), affinity] {
        let all = options(&|| false, Some(folder.path()));
        if !has_two_cores(&all) {
            return;
        }
        let half = Options { until: 1, ..options(&|| false, Some(folder.path())) };
        let first = run(&experiment, &half, &mut |_| {}).unwrap();
        assert!(!first.complete);
        assert!(first.points.iter().all(|point| point.runs.len() == 1), "{:?}", first.points);
        let second = run(&experiment, &all, &mut |_| {}).unwrap();
        if is_overloaded(&first) || is_overloaded(&second) {
            return;
        }
        assert!(second.complete);
        assert_eq!(second.settings, first.settings, "also the rate that was found");
        for (whole, part) in second.points.iter().zip(&first.points) {
            assert_eq!(whole.runs[0].latencies, part.runs[0].latencies, "the first block is kept");
            assert_eq!(whole.runs.iter().map(|run| run.block).collect::<Vec<_>>(), [0, 1]);
        }
    }
}

#[test]
fn local_and_remote_give_the_added_latency() {
    let _alone = alone();
    let experiment = tiny("CH-T2", 2);
    let options = options(&|| false, None);
    if !has_two_cores(&options) {
        return;
    }
    let record = run(&experiment, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    let find = |series: &str, x: &str| {
        record.points.iter().find(|point| point.series == series && point.x == x).cloned()
    };
    for x in ["read", "write"] {
        let (local, poll) = (find("local", x).unwrap(), find("poll", x).unwrap());
        for (local, poll) in local.runs.iter().zip(&poll.runs) {
            let delta = poll.values["mean_us"] - local.values["mean_us"];
            assert!((poll.values["delta_us"] - delta).abs() < 1e-9);
            assert!(!local.values.contains_key("delta_us"));
        }
        // Other programs may have taken the time of a local run, but hardly of all.
        let is_slower = |run: &crate::record::Run| run.values["delta_us"] > 0.0;
        assert!(poll.runs.iter().any(is_slower), "the network is not free: {:?}", poll.runs);
    }
}

#[test]
fn initiators_have_a_session_with_each_node() {
    let _alone = alone();
    let mut experiment = tiny("CH-F1", 1);
    experiment.series.retain(|series| series.id == "iscsi-poll" || series.id == "tgt");
    let settings = &mut experiment.procedure.settings;
    settings.insert("nodes".to_owned(), 3.into());
    settings.insert("connections".to_owned(), 7.into());
    settings.insert("depth".to_owned(), 4.into());
    let options = options(&|| false, None);
    if !has_two_cores(&options) {
        return;
    }
    let record = run(&experiment, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    let is_tgt_here = crate::subject::missing::why("tgt", &options).is_none();
    let ids: Vec<&str> = record.points.iter().map(|point| point.series.as_str()).collect();
    assert_eq!(ids, if is_tgt_here { vec!["iscsi-poll", "tgt"] } else { vec!["iscsi-poll"] });
    for run in record.points.iter().flat_map(|point| &point.runs) {
        assert!(run.values["iops"] > 0.0 && run.values["cpu_ns_per_byte"] > 0.0, "{run:?}");
        // Little's law says that all 7 sessions had 4 commands under way.
        assert!(run.values["little_percent"] > 20.0, "{run:?}");
    }
    // A target that runs already is one of NVMe/TCP.
    let running = ("127.0.0.1:1".parse().unwrap(), Nqn::new("nqn.2014-08.org.example:x").unwrap());
    experiment.series.truncate(1);
    let options = Options { target: Some(running), ..options };
    let record = run(&experiment, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    assert!(record.points.is_empty());
    assert!(
        record.missing[0].why.contains("--target names one of NVMe/TCP"),
        "{:?}",
        record.missing
    );
}

#[test]
fn a_model_has_a_run_for_each_run_of_its_series_and_costs_less() {
    let _alone = alone();
    let mut experiment = tiny("CH-F1", 1);
    experiment.series.retain(|series| ["poll", "poll-toe"].contains(&series.id.as_str()));
    experiment.procedure.settings.insert("connections".to_owned(), 2.into());
    let folder = tempfile::tempdir().unwrap();
    let options = options(&|| false, Some(folder.path()));
    if !has_two_cores(&options) {
        return;
    }
    let record = run(&experiment, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    let ids: Vec<&str> = record.points.iter().map(|point| point.series.as_str()).collect();
    assert_eq!(ids, ["poll", "poll-toe"]);
    let [poll, model] = &record.points[..] else { unreachable!() };
    assert_eq!(poll.runs.len(), model.runs.len());
    for (measured, run) in poll.runs.iter().zip(&model.runs) {
        let metric = |run: &crate::record::Run| run.values["cpu_ns_per_byte"];
        assert_eq!(measured.block, run.block);
        assert!(metric(run) < metric(measured), "{measured:?}, {run:?}");
        assert!(!run.values.contains_key("iops"), "{run:?}");
    }
    assert!(record.settings.contains_key("model costs/8K"), "{:?}", record.settings);
    assert!(record.stand_ins.iter().any(|it| it.by.starts_with("a model")));
}

#[test]
fn a_protocol_is_not_asked_for_what_it_does_not_have() {
    let check = |text: &str| {
        let settings: LoadSettings = read(text.parse().unwrap()).unwrap();
        settings.check().and_then(|()| settings.check_agents()).map_err(|error| error.key)
    };
    assert_eq!(check(""), Ok(()));
    for (text, key) in [
        ("protocol = 'iscsi'", "protocol"),
        ("protocol = 'iscsi'\nrate_percent = 70", "rate_percent"),
        ("protocol = 'iscsi'\ni10 = true", "i10"),
        ("protocol = 'iscsi'\ndigest = 'engine'", "digest"),
        ("protocol = 'iscsi'\nsubject = 'nvmet'", "subject"),
        ("protocol = 'iscsi'\nnodes = 0", "nodes"),
        ("subject = 'tgt'", "subject"),
    ] {
        assert_eq!(check(text), Err(key.to_owned()), "{text}");
    }
}

#[test]
fn series_with_links_of_their_own_are_measured_on_them() {
    let _alone = alone();
    let here = options(&|| false, None);
    if !has_two_cores(&here) {
        return;
    }
    for (id, of, over) in [("GRO", "GRO on", "GRO off"), ("MTU", "MTU 9000", "MTU 1500")] {
        let experiment = tiny(id, 1);
        // On the loopback there is no link to set.
        let record = run(&experiment, &options(&|| false, None), &mut |_| {}).unwrap();
        if is_overloaded(&record) {
            return;
        }
        assert!(record.points.is_empty() && record.missing.len() >= 2, "{:?}", record.missing);
        let bed = crate::bed::veth::Veth::make(&crate::bed::link::LinkOptions::default());
        let bed = match bed {
            Ok(bed) => bed,
            Err(error) => {
                println!("SKIPPED: {id} on a link of its own: {error}");
                continue;
            }
        };
        let options = Options { bed: &bed, ..options(&|| false, None) };
        let record = run(&experiment, &options, &mut |_| {}).unwrap();
        if is_overloaded(&record) {
            return;
        }
        assert_eq!(record.points.len(), 2, "{:?}", record.missing);
        assert!(record.points.iter().all(|point| point.runs[0].values["iops"] > 0.0));
        for (series, text) in [(&experiment.series[1], of), (&experiment.series[0], over)] {
            let link = &record.settings[&format!("link/{}", series.id)];
            assert!(link.contains(text), "{link}");
        }
    }
}

#[test]
fn a_run_that_broke_off_goes_on() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut experiment = tiny("CONNECTIONS", 2);
    experiment.series.truncate(2);
    let runs = AtomicUsize::new(0);
    let stop = || runs.load(Ordering::Relaxed) >= 2;
    let first = options(&stop, Some(folder.path()));
    if !has_two_cores(&first) {
        return;
    }
    let mut count = |_| {
        runs.fetch_add(1, Ordering::Relaxed);
    };
    let error = run(&experiment, &first, &mut count).unwrap_err();
    assert!(matches!(error, RunError::Stopped), "{error}");
    let kept = load_record(&record_path(folder.path(), "CONNECTIONS")).unwrap();
    assert!(!kept.complete && !kept.points.is_empty());
    let record = run(&experiment, &options(&|| false, Some(folder.path())), &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    assert!(record.complete);
    assert_eq!(record.started_unix_s, kept.started_unix_s);
    for old in &kept.points {
        let new = record.points.iter().find(|new| (&new.series, &new.x) == (&old.series, &old.x));
        assert_eq!(new.unwrap().runs[..old.runs.len()], old.runs[..], "blocks are kept");
    }
    assert!(record.points.iter().all(|point| point.runs.len() == 2), "{record:?}");
    // Another seed or another machine begins anew.
    let stopped = || Options { seed: 9, ..options(&|| true, Some(folder.path())) };
    assert!(matches!(run(&experiment, &stopped(), &mut |_| {}), Err(RunError::Stopped)));
    let mut of_seed_9 = load_record(&record_path(folder.path(), "CONNECTIONS")).unwrap();
    of_seed_9.started_unix_s = 1;
    let of_machine = |name: &str| serde_json::json!({ "schema": 1, "cpu": { "model": name } });
    for (name, begun) in [("A", true), ("B", false)] {
        of_seed_9.environment = of_machine("A");
        store::save(folder.path(), &of_seed_9).unwrap();
        let again = Options { environment: of_machine(name), ..stopped() };
        assert!(matches!(run(&experiment, &again, &mut |_| {}), Err(RunError::Stopped)));
        let stored = load_record(&record_path(folder.path(), "CONNECTIONS")).unwrap();
        assert_eq!(stored.started_unix_s == 1, begun, "machine {name}");
    }
    let other = Options { seed: 8, ..options(&|| true, Some(folder.path())) };
    assert!(matches!(run(&experiment, &other, &mut |_| {}), Err(RunError::Stopped)));
    let fresh = load_record(&record_path(folder.path(), "CONNECTIONS")).unwrap();
    assert!(fresh.points.is_empty() && fresh.seed == 8);
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let _alone = alone();
    let mut experiment = tiny("LATENCY", 1);
    experiment.series.truncate(1);
    let mut options = options(&|| false, None);
    if !has_two_cores(&options) {
        return;
    }
    options.timing.time = Duration::from_millis(400);
    let record = run(&experiment, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    let rate: f64 = record.settings["rate_iops/10"].parse().unwrap();
    for run in &record.points[0].runs {
        let ratio = run.values["iops"] / rate;
        assert!((0.5..1.5).contains(&ratio), "{ratio} of the rate");
    }
}

#[test]
fn full_runs_take_as_long_as_those_of_the_source() {
    let catalogue = catalogue();
    let seconds = |id: &str, effort| {
        let experiment = catalogue.find(id).unwrap();
        let timing = Timing::of_experiment(effort, experiment);
        let settings = merged(experiment, &experiment.series[0], &experiment.axis.columns[0]);
        let settings: LoadSettings = read(settings).unwrap();
        (timing.ramp.as_secs_f64(), settings.time(&timing).as_secs_f64())
    };
    assert_eq!(seconds("ADQ-F4", Effort::Full), (10.0, 90.0));
    assert_eq!(seconds("CH-F1", Effort::Full), (2.0, 60.0));
    // The talk states no times; readers beside a writer run twice as long.
    assert_eq!(seconds("NT-MIX", Effort::Full), (10.0, 120.0));
    assert_eq!(seconds("ADQ-F4", Effort::Quick), (0.04, 0.6));
    // What the file says of the source's set-up is what its times are.
    for experiment in catalogue.all() {
        let says = |word: &str| {
            let begins = format!("Workload, {word}: ");
            let text = experiment.setup.iter().find_map(|text| text.strip_prefix(&begins))?;
            text.split(' ').next()?.parse::<u32>().ok()
        };
        let full = experiment.full.map(|full| (full.ramp_s, full.runtime_s));
        assert_eq!(says("ramp").zip(says("runtime")), full, "{}", experiment.id);
    }
}

/// Ramps and runs of all experiments, with all blocks that may be thrown away, on two cores. Targets that options name are
/// measured besides, and take a minute more at most.
#[test]
fn quick_runs_leave_a_fifth_of_15_minutes_for_what_is_no_run() {
    let catalogue = catalogue();
    let timing = Timing::of(Effort::Quick);
    let (mut usual, mut named) = (Duration::ZERO, Duration::ZERO);
    for experiment in catalogue.all() {
        for column in experiment.axis.columns.iter().filter(|column| !column.full_only) {
            for series in experiment.series.iter().filter(|series| series.model.is_none()) {
                let table = merged(experiment, series, column);
                let is_load = matches!(experiment.procedure.name.as_str(), "load" | "fleet");
                let (mut ramp, mut time) = (timing.ramp, timing.time);
                if is_load {
                    let settings: LoadSettings = read(table).unwrap();
                    if settings.target_cores + settings.host_cores > 2 {
                        continue;
                    }
                    ramp = ramp.max(Duration::from_millis(settings.total_connections().into()));
                    time = settings.time(&timing);
                }
                let needs =
                    |of: &[&str]| series.needs.iter().any(|need| of.contains(&need.as_str()));
                if needs(&["toe", "iscsi-offload", "rdma"]) {
                    continue;
                }
                // Its series run at the same time, but for those that run alone.
                if experiment.procedure.name == "converged"
                    && series.id != experiment.series[0].id
                    && column.id != "alone"
                {
                    continue;
                }
                let sum = match needs(&["spdk", "spdk-iscsi", "nvmet"]) {
                    true => &mut named,
                    false => &mut usual,
                };
                *sum += (ramp + time) * (timing.blocks + timing.blocks / 3);
            }
        }
    }
    assert!(usual < Duration::from_secs(720), "{usual:?} of ramps and runs");
    assert!(named < Duration::from_secs(60), "{named:?} of targets that options name");
}

#[test]
fn cores_that_the_machine_lacks_are_missing() {
    let experiment = tiny("ADQ-F6", 7);
    let options = Options { cpus: vec![0], ..options(&|| false, None) };
    let record = run(&experiment, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    assert!(record.complete && record.points.is_empty());
    assert_eq!(record.missing.len(), 7, "{:?}", record.missing);
    assert!(record.missing[6].why.contains("8 cores of the target"), "{:?}", record.missing[6]);
    assert!(record.stand_ins.iter().any(|it| it.of.contains("NAPI")));
}

#[test]
fn threads_and_a_worker_leave_records() {
    let _alone = alone();
    let options = options(&|| false, None);
    if !has_two_cores(&options) {
        return;
    }
    for id in ["NT-AFF", "NT-DIRECT"] {
        let mut experiment = catalogue().find(id).unwrap().clone();
        experiment.axis.columns.truncate(1);
        let record = run(&experiment, &options, &mut |_| {}).unwrap();
        if is_overloaded(&record) {
            return;
        }
        assert_eq!(record.points.len(), experiment.series.len(), "{id}");
        let mean = |point: &crate::record::Point| point.runs[0].values["mean_us"];
        assert!(record.points.iter().all(|point| mean(point) > 0.0), "{id}");
    }
    let mut deep = catalogue().find("NT-DIRECT").unwrap().clone();
    deep.axis.columns.remove(0);
    let record = run(&deep, &options, &mut |_| {}).unwrap();
    if is_overloaded(&record) {
        return;
    }
    assert_eq!(record.points.len(), deep.series.len() - 1, "{:?}", record.missing);
    assert_eq!(record.missing[0].what, "series blocking, column QD32");
    for run in record.points.iter().flat_map(|point| &point.runs) {
        // Little's law: 32 commands are under way, give or take those of a busy machine at the ends of the run.
        let under_way = run.values["iops"] * run.values["mean_us"] / 1e6;
        assert!((8.0..128.0).contains(&under_way), "{under_way}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let _alone = alone();
    let experiment = tiny("MESSAGES", 1);
    let out = std::path::Path::new("/proc/no-such-folder");
    let error = run(&experiment, &options(&|| false, Some(out)), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("/proc/no-such-folder/MESSAGES.json"), "{error}");
    assert!(error.to_string().contains("--out"), "{error}");
}

#[test]
fn a_file_that_is_no_record_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("X.json");
    for (text, why) in [("{", "no record"), ("{\"schema\": 9}", "layout 9"), ("{}", "schema")] {
        std::fs::write(&path, text).unwrap();
        let error = load_record(&path).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("X.json"), "{error}");
    }
    let error = load_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("raceline bench run"), "{error}");
}
