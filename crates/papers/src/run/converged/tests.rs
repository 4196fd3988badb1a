//! All four protocols at once in one target, NVMe/RDMA over a simulated network; and what is left without it.

use super::super::tests::has_two_cores;
use super::super::{Journal, Timing};
use super::*;
use crate::catalogue::Catalogue;
use crate::record::{Effort, Record};
use crate::subject::fabric::with_fabric;
use crate::subject::{Rdma, RdmaSource};

/// How long runs are. A busy machine may leave a host no time for a single command in a short one, and longer ones follow.
const TIMES: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_secs(2),
    Duration::from_secs(8),
    Duration::from_secs(30),
];

fn timing(time: Duration) -> Timing {
    Timing { blocks: 1, ramp: Duration::from_millis(20), time, is_stated: false }
}

fn options<'a>(stop: &'a (dyn Fn() -> bool + Sync), time: Duration) -> Options<'a> {
    Options { timing: timing(time), until: 1, ..super::super::tests::plain_options(stop) }
}

/// The record of the first runs in all of which commands ended, and reads were checked.
fn measured(mut record: impl FnMut(Duration) -> Option<Record>, series: &[&str]) -> Option<Record> {
    let mut found = None;
    for time in TIMES {
        let record = record(time)?;
        let has = |series: &str, column: &str, metric: &str| {
            value(&record, series, column, metric).is_some_and(|it| it > 0.0)
        };
        let ends = series.iter().all(|series| {
            let mut columns = COLUMNS.iter();
            let both = columns.all(|it| has(series, it, "iops") && has(series, it, "checked"));
            both && has(series, "alone", "iops")
        });
        found = Some(record);
        if ends {
            break;
        }
    }
    found
}

/// The columns in which the protocols run at once.
const COLUMNS: [&str; 3] = ["together", "weights", "limits"];

/// The record of the experiment, with so many limits for a machine that does other things.
fn record(rdma: Result<Rdma, String>, time: Duration) -> Option<Record> {
    let _alone = super::super::tests::alone();
    let catalogue = Catalogue::builtin().unwrap_or_else(|error| panic!("{error}"));
    let mut experiment = catalogue.find("CONVERGED").unwrap().clone();
    experiment.procedure.settings.insert("memory_mib".to_owned(), 16.into());
    for series in &mut experiment.series {
        series.settings.remove("limit_iops");
        series.settings.insert("limit_iops".to_owned(), 200.into());
    }
    let rdma = RdmaSource::of(rdma);
    let options = Options { effort: Effort::Normal, rdma, ..options(&|| false, time) };
    if !has_two_cores(&options) {
        return None;
    }
    let mut report = |_| {};
    let mut journal = Journal::open(&experiment, &options, &mut report).unwrap();
    measure(&experiment, &options, &mut journal).unwrap_or_else(|why| panic!("{why}"));
    Some(journal.record)
}

fn value(record: &Record, series: &str, column: &str, metric: &str) -> Option<f64> {
    let is_it = |point: &&crate::record::Point| point.series == series && point.x == column;
    record.points.iter().find(is_it)?.runs.first()?.values.get(metric).copied()
}

#[test]
fn four_protocols_run_at_once_and_every_byte_is_right() {
    const SERIES: [&str; 4] = ["tcp", "tls", "iscsi", "rdma"];
    let once = |time| with_fabric(|rdma, _| record(Ok(rdma), time));
    let Some(record) = measured(once, &SERIES) else { return };
    assert!(record.missing.is_empty(), "{:?}", record.missing);
    for column in COLUMNS {
        let mut all = 0.0;
        for series in SERIES {
            let of = |metric: &str| value(&record, series, column, metric);
            assert!(of("iops").unwrap() > 0.0 && of("checked").unwrap() > 0.0, "{series} {column}");
            all += of("share_percent").unwrap();
            let limited = column == "limits";
            assert_eq!(of("limit_percent").is_some(), limited, "{series} {column}");
            // What a burst of 10 ms and the end of a run may add in 300 ms.
            let part = of("limit_percent").unwrap_or(0.0);
            assert!(part < 115.0, "{series}, {column}: {part} % of its limit");
        }
        assert!((all - 100.0).abs() < 1e-6, "{column}: {all}");
    }
    assert!(value(&record, "rdma", "alone", "iops").unwrap() > 0.0);
    assert_eq!(value(&record, "rdma", "alone", "share_percent"), None);
}

#[test]
fn without_a_device_the_row_of_rdma_is_missing_by_name() {
    let once = |time| record(RdmaSource::at(None).find(), time);
    let Some(record) = measured(once, &["tcp", "tls", "iscsi"]) else { return };
    let [missing] = &record.missing[..] else { panic!("{:?}", record.missing) };
    assert!(missing.what.contains("series rdma: NVMe/RDMA"), "{missing:?}");
    assert!(missing.why.contains("--rdma ADDR"), "{missing:?}");
    assert!(value(&record, "iscsi", "together", "iops").unwrap() > 0.0);
    assert_eq!(value(&record, "rdma", "together", "iops"), None);
    // An address without a device is named, too.
    let at = "192.0.2.77".parse().unwrap();
    let why = RdmaSource::at(Some(at)).find().err().unwrap();
    assert!(why.contains("192.0.2.77"), "{why}");
}

#[test]
fn a_wrong_setting_names_its_key() {
    for (settings, key, why) in [
        (ConvergedSettings { weight: 0, ..ConvergedSettings::default() }, "weight", "1 to"),
        (
            ConvergedSettings { rw: "randread".to_owned(), ..ConvergedSettings::default() },
            "rw",
            "nothing to verify",
        ),
        (
            ConvergedSettings { memory_mib: 16, io_bytes: 1 << 20, ..ConvergedSettings::default() },
            "memory_mib",
            "does not hold 16",
        ),
    ] {
        let error = settings.check().unwrap_err();
        assert_eq!(error.key, key);
        assert!(error.why.contains(why), "{error:?}");
    }
}

/// The four protocols, each with this depth and these bytes but for the one that differs.
fn lanes_but(other: Wire, depth: u16, io_bytes: u32) -> Vec<ConvergedSettings> {
    [Wire::NvmeTcp, Wire::NvmeTls, Wire::Iscsi, Wire::NvmeRdma]
        .map(|protocol| match protocol == other {
            true => ConvergedSettings { protocol, depth, io_bytes, ..ConvergedSettings::default() },
            false => ConvergedSettings { protocol, depth: 4, ..ConvergedSettings::default() },
        })
        .to_vec()
}

fn hosts_of(
    served: &Served,
    lanes: &[ConvergedSettings],
    options: &Options<'_>,
    time: Duration,
) -> Vec<Host> {
    let host = |lane| Host::new(served, lane, &timing(time), options.cpus[1], options.seed);
    lanes.iter().map(host).collect::<Result<_, _>>().unwrap()
}

/// Runs hosts, none of which may fail, until each has checked reads.
fn all_check(beside: &str, mut run: impl FnMut(Duration) -> Result<Vec<Measured>, String>) {
    let mut found = Vec::new();
    for time in TIMES {
        found = run(time).unwrap_or_else(|why| panic!("beside {beside}: {why}"));
        if found.iter().all(|of| of.checked > 0) {
            return;
        }
    }
    panic!("beside {beside}: {found:?}");
}

/// Runs with a target of all protocols, on a machine that has two CPUs.
fn with_target(rdma: &Rdma, depth: u16, work: impl FnOnce(&Served, &Options<'_>)) {
    let options = options(&|| false, TIMES[0]);
    if !has_two_cores(&options) {
        return;
    }
    let lanes = lanes_but(Wire::NvmeTcp, depth, 4096);
    let lanes: Vec<&ConvergedSettings> = lanes.iter().collect();
    let served = Served::start(&lanes, &options, Some(rdma)).unwrap();
    work(&served, &options);
    served.stop().unwrap();
}

#[test]
fn an_overload_of_one_protocol_leaves_the_data_of_the_others_right() {
    let _alone = super::super::tests::alone();
    with_fabric(|rdma, _| {
        with_target(&rdma, 64, |served, options| {
            for loud in [Wire::NvmeTcp, Wire::NvmeTls, Wire::Iscsi, Wire::NvmeRdma] {
                let lanes = lanes_but(loud, 64, 128 << 10);
                all_check(loud.name(), |time| {
                    let hosts = hosts_of(served, &lanes, options, time);
                    hosts::run(options.bed, &hosts, options.stop)
                });
            }
        });
    });
}

#[test]
fn broken_connections_of_one_protocol_leave_the_others_right() {
    let _alone = super::super::tests::alone();
    with_fabric(|rdma, network| {
        with_target(&rdma, 4, |served, options| {
            let all = lanes_but(Wire::NvmeTcp, 4, 4096);
            for broken in [Wire::NvmeTcp, Wire::NvmeTls, Wire::Iscsi] {
                let address = served.address(broken).unwrap();
                all_check(broken.name(), |time| {
                    let hosts = hosts_of(served, &all, options, time);
                    let (found, count) = beside(
                        || hosts::run(options.bed, &hosts, options.stop),
                        |turn| {
                            let mut stream = std::net::TcpStream::connect(address).unwrap();
                            // Zeroes are a PDU of every protocol that is too short; others are of no known kind.
                            let byte = u8::try_from(turn % 255).unwrap();
                            let _ = std::io::Write::write_all(&mut stream, &[byte; 128]);
                        },
                    );
                    assert!(count > 0);
                    found
                });
            }
            // Every connection of RDMA is cut, again and again, while its host makes them anew.
            let (rdma, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|lane| lane.protocol == Wire::NvmeRdma);
            all_check("RDMA", |time| {
                let rdma = hosts_of(served, &rdma, options, time);
                let others = hosts_of(served, &others, options, time);
                let (found, count) = beside(
                    || hosts::run(options.bed, &others, options.stop),
                    |_| {
                        let victim = || hosts::run(options.bed, &rdma, options.stop);
                        let (ended, _) = beside(victim, |_| network.cut_all());
                        assert!(ended.is_err(), "a host whose connections are cut has no result");
                    },
                );
                assert!(count > 0);
                found
            });
            // And it can be reached as before.
            let rdma = hosts_of(served, &rdma, options, TIMES[0]);
            hosts::run(options.bed, &rdma, options.stop).unwrap_or_else(|why| panic!("{why}"));
        });
    });
}

/// Does something, and something else again and again beside it, at least once; gives the result and how often.
fn beside<T: Send>(work: impl FnOnce() -> T + Send, mut other: impl FnMut(u32)) -> (T, u32) {
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        let mut count = 0;
        while count == 0 || !work.is_finished() {
            other(count);
            count += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        (work.join().unwrap(), count)
    })
}
