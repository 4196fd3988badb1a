//! The JBOF paper's rows over RDMA, over a simulated network: measured where device and target are there, and missing by name
//! where they are not.

use std::path::Path;

use raceline_bench::gap::filled_ram;
use raceline_reactor::HugePages;

use super::*;
use crate::subject::Rdma;
use crate::subject::fabric::{serve, with_fabric};

/// The rows over RDMA of the source.
const ROWS: [&str; 3] = ["rdma-poll", "iwarp", "spdk-iwarp"];

fn has_two_cores() -> bool {
    let has = raceline_reactor::affinity::allowed_cores().unwrap().len() >= 2;
    if !has {
        eprintln!("SKIPPED: a series takes two cores");
    }
    has
}

/// CH-F1 with one column, three connections and these rows.
fn rows(rows: &[&str]) -> Experiment {
    let mut experiment = tiny("CH-F1", 1);
    experiment.series.retain(|series| rows.contains(&series.id.as_str()));
    assert_eq!(experiment.series.len(), rows.len());
    experiment.procedure.settings.insert("connections".to_owned(), 3.into());
    experiment
}

fn over(rdma: Rdma) -> Options<'static> {
    Options { rdma: RdmaSource::of(Ok(rdma)), ..plain_options(&|| false) }
}

/// Both blocks of a row have figures, and the record says over what the row has run.
fn is_measured(record: &Record, series: &str) {
    let point = record.points.iter().find(|point| point.series == series).unwrap();
    assert_eq!(point.runs.len(), 2, "{series}");
    for run in &point.runs {
        let value = |name: &str| run.values[name];
        assert!(value("gbit_per_s") > 0.0 && value("cpu_ns_per_byte") > 0.0, "{run:?}");
    }
    let link = &record.settings[&format!("link/{series}")];
    assert!(link.starts_with("RoCE (simulated) at 127.0.0.1, without hardware"), "{link}");
    let named = format!("iWARP by an adapter, in the series `{series}`");
    let stand_in = record.stand_ins.iter().find(|it| it.of == named).unwrap();
    assert_eq!(stand_in.by, "NVMe/RDMA over RoCE (simulated), where the paper has iWARP");
    assert!(stand_in.effect.contains("no figure of this row is one of iWARP"), "{stand_in:?}");
}

fn why_missing<'a>(record: &'a Record, series: &str) -> &'a str {
    let begin = format!("series {series}");
    let ends = |what: &str| what.is_empty() || what.starts_with([':', ',']);
    let is_it = |missing: &&Missing| missing.what.strip_prefix(&begin).is_some_and(ends);
    assert!(record.points.iter().all(|point| point.series != series), "{series} is measured");
    &record.missing.iter().find(is_it).unwrap_or_else(|| panic!("{:?}", record.missing)).why
}

#[test]
fn without_a_device_all_rows_say_so() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let record = run(&rows(&ROWS), &options(&|| false, None), &mut |_| {}).unwrap();
    for series in ROWS {
        let why = why_missing(&record, series);
        assert!(
            why.contains("an RDMA adapter, or rdma_rxe") && why.contains("--rdma ADDR"),
            "{why}"
        );
    }
    assert!(record.stand_ins.iter().all(|it| !it.of.contains("iWARP")), "{:?}", record.stand_ins);
}

#[test]
fn our_row_is_measured_where_a_device_is_and_the_others_say_what_they_lack() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let record = with_fabric(|rdma, network| {
        let all = [&["poll"][..], &ROWS].concat();
        let record = run(&rows(&all), &over(rdma), &mut |_| {}).unwrap();
        assert!(network.memory_refusals() == 0);
        record
    });
    if is_overloaded(&record) {
        return;
    }
    assert_eq!(record.missing.len(), 2, "{:?}", record.missing);
    let why = why_missing(&record, "iwarp");
    assert!(why.contains("the kernel's NVMe/RDMA target") && why.contains("--nvmet-rdma"), "{why}");
    let why = why_missing(&record, "spdk-iwarp");
    assert!(why.contains("--with-rdma") && why.contains("--spdk DIR"), "{why}");
    is_measured(&record, "rdma-poll");
    let of_poll = record.settings.get("link/poll");
    assert_eq!(of_poll, None, "it runs over TCP");
}

/// A target of ours plays the kernel's.
#[test]
fn the_kernels_row_is_measured_where_its_user_names_it() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let nqn = Nqn::new("nqn.2014-08.org.example:kernel").unwrap();
    let (record, refused) = with_fabric(|rdma, _| {
        let address = rdma.free_address().unwrap();
        let device = filled_ram(16 << 20, HugePages::Transparent, 1).unwrap();
        let target = serve(&rdma, address, &nqn, device);
        let options = Options { nvmet_rdma: Some((address, nqn.clone())), ..over(rdma) };
        let record = run(&rows(&["iwarp"]), &options, &mut |_| {}).unwrap();
        let other = Nqn::new("nqn.2014-08.org.example:other").unwrap();
        let options = Options { nvmet_rdma: Some((address, other)), ..options };
        let refused = run(&rows(&["iwarp"]), &options, &mut |_| {}).unwrap();
        target.shutdown().unwrap();
        (record, (refused, address))
    });
    let (refused, address) = refused;
    let why = why_missing(&refused, "iwarp");
    assert!(why.contains(&address.to_string()), "{why}");
    if is_overloaded(&record) {
        return;
    }
    assert!(record.missing.is_empty(), "{:?}", record.missing);
    is_measured(&record, "iwarp");
    let link = &record.settings["link/iwarp"];
    assert!(link.ends_with(&format!("; the kernel's target is at {address}")), "{link}");
}

/// A folder of SPDK whose nvmf_tgt is this script. `$config` is the file that it is given.
fn fake_spdk(script: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("build/bin")).unwrap();
    let program = folder.path().join("build/bin/nvmf_tgt");
    let find = "while [ \"$1\" != -c ]; do shift; done\nconfig=$2";
    std::fs::write(&program, format!("#!/bin/sh\n{find}\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// What SPDK's target was told, once it was.
fn told(file: &Path) -> serde_json::Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match std::fs::read(file) {
            Ok(text) => return serde_json::from_slice(&text).unwrap(),
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A program that does nothing plays SPDK's target, and a target of ours does what that program was told.
#[test]
fn spdks_row_is_measured_at_the_listener_of_its_configuration() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let (part, whole) = (folder.path().join("part"), file.display());
    let part = part.display();
    let script = format!("cp \"$config\" {part} && mv {part} {whole}\nexec sleep 120");
    let spdk = fake_spdk(&script);
    let record = with_fabric(|rdma, _| {
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                let value = told(&file);
                let nvmf = value["subsystems"][1]["config"].as_array().unwrap();
                let params = |method: &str| {
                    let call = nvmf.iter().find(|call| call["method"] == method).unwrap();
                    call["params"].clone()
                };
                assert_eq!(params("nvmf_create_transport")["trtype"], "RDMA");
                let listener = params("nvmf_subsystem_add_listener");
                let place = &listener["listen_address"];
                assert_eq!(place["trtype"], "RDMA");
                let [ip, port] =
                    ["traddr", "trsvcid"].map(|key| place[key].as_str().unwrap().to_owned());
                let address = format!("{ip}:{port}").parse().unwrap();
                let nqn = Nqn::new(listener["nqn"].as_str().unwrap()).unwrap();
                let device = filled_ram(16 << 20, HugePages::Transparent, 1).unwrap();
                serve(&rdma, address, &nqn, device)
            });
            let options = Options { spdk: Some(spdk.path().to_owned()), ..over(rdma.clone()) };
            let record = run(&rows(&["spdk-iwarp"]), &options, &mut |_| {}).unwrap();
            served.join().unwrap().shutdown().unwrap();
            record
        })
    });
    if is_overloaded(&record) {
        return;
    }
    assert!(record.missing.is_empty(), "{:?}", record.missing);
    is_measured(&record, "spdk-iwarp");
}

#[test]
fn a_target_of_spdk_that_ends_says_why() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let log = "nvmf_transport_create: *ERROR*: Transport type 'RDMA' unavailable.";
    let without = format!("echo \"{log}\"; for n in 1 2 3 4 5 6; do echo more; done; exit 1");
    for (script, parts) in [
        (
            without.as_str(),
            ["says \"Transport type 'RDMA' unavailable\"", "build SPDK --with-rdma"],
        ),
        ("echo no such device; exit 3", ["has ended with exit status: 3", "no such device"]),
    ] {
        let spdk = fake_spdk(script);
        let record = with_fabric(|rdma, _| {
            let options = Options { spdk: Some(spdk.path().to_owned()), ..over(rdma) };
            run(&rows(&["spdk-iwarp"]), &options, &mut |_| {}).unwrap()
        });
        let why = why_missing(&record, "spdk-iwarp");
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
}

#[test]
fn targets_that_have_no_rdma_are_refused_over_it() {
    let mut experiment = rows(&["iwarp"]);
    let settings = &mut experiment.series[0].settings;
    settings.insert("subject".to_owned(), "handoff".into());
    let error = check_settings(&experiment, &experiment.series[0], &experiment.axis.columns[0]);
    let error = error.unwrap_err();
    assert_eq!(error.key, "subject");
    assert!(error.why.contains("raceline, spdk, nvmet"), "{}", error.why);
}
