//! Subsystems, namespaces and listeners.

use std::collections::BTreeMap;

use raceline_control::manager::Model;
use raceline_control::manager::nvmf::{ListenAddress, PortLevel, Subsystem};
use raceline_target::{QosLimits, QueueTotals};

use super::bdevs::write_limits;
use super::cores::QueueCount;
use super::text::{Kind, Labels, Text, Value};
use super::{LeftOut, MAX_HISTOGRAMS, Running, latencies, listeners};

/// What the model has.
pub(super) struct Rows {
    subsystems: Vec<Row>,
    namespaces: Vec<Namespace>,
    listeners: Vec<listeners::Row>,
    /// By a name that stands for hosts together.
    host_limits: Vec<(Labels, QosLimits)>,
}

struct Row {
    labels: Labels,
    metadata: Labels,
    listeners: usize,
    hosts: usize,
    namespaces: usize,
    namespaces_max: u64,
    missing: usize,
    limits: QosLimits,
}

struct Namespace {
    metadata: Labels,
    is_there: bool,
}

pub(super) fn read(model: &Model, left_out: &mut LeftOut) -> Rows {
    let (mut subsystems, mut namespaces, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
    let mut host_limits = Vec::new();
    for (name, target) in &model.nvmf.targets {
        let of_target = Labels::new(&[("target", name)]);
        let mut addresses: BTreeMap<&ListenAddress, PortLevel> = BTreeMap::new();
        for subsystem in target.subsystems.values() {
            let labels = of_target.and(&[("nqn", &subsystem.options.nqn)]);
            addresses
                .extend(subsystem.listeners.iter().map(|address| (address, target.level(address))));
            namespaces.extend(
                subsystem
                    .namespaces
                    .iter()
                    .map(|(nsid, namespace)| (labels.clone(), *nsid, namespace.clone())),
            );
            subsystems.push(row(labels, subsystem));
        }
        listeners.extend(
            addresses
                .into_iter()
                .map(|(address, level)| listeners::row(&of_target, address, level)),
        );
        host_limits.extend(
            target
                .host_limits
                .iter()
                .map(|(name, group)| (of_target.and(&[("name", name)]), group.limits)),
        );
    }
    let namespaces = left_out.bound("namespaces", namespaces).into_iter();
    let namespaces = namespaces.map(|(labels, nsid, namespace)| {
        let group = namespace.anagrpid.unwrap_or(nsid);
        let (nsid, group, uuid) = (nsid.to_string(), group.to_string(), namespace.uuid.to_string());
        let bdev = &namespace.bdev_name;
        Namespace {
            metadata: labels.and(&[
                ("nsid", &nsid),
                ("bdev_name", bdev),
                ("anagrpid", &group),
                ("uuid", &uuid),
            ]),
            is_there: namespace.missing.is_none(),
        }
    });
    Rows {
        namespaces: namespaces.collect(),
        subsystems: left_out.bound("subsystems", subsystems),
        listeners: left_out.bound("listeners", listeners),
        host_limits: left_out.bound("host_limits", host_limits),
    }
}

fn row(labels: Labels, subsystem: &Subsystem) -> Row {
    let options = &subsystem.options;
    let yes_no = |is| if is { "yes" } else { "no" };
    Row {
        metadata: labels.and(&[
            ("serial_number", &options.serial_number),
            ("model_number", &options.model_number),
            ("allow_any_host", yes_no(options.allow_any_host)),
            ("ha_enabled", yes_no(options.ana_reporting)),
            ("group", "_null_"),
        ]),
        labels,
        listeners: subsystem.listeners.len(),
        hosts: subsystem.hosts.len(),
        namespaces: subsystem.namespaces.len(),
        namespaces_max: options.max_namespaces.into(),
        missing: subsystem
            .namespaces
            .values()
            .filter(|namespace| namespace.missing.is_some())
            .count(),
        limits: subsystem.limits,
    }
}

pub(super) fn write(text: &mut Text, rows: &Rows, running: &[Running], left_out: &mut LeftOut) {
    let mut metric = text.metric("subsystem_metadata", Kind::Gauge, "A subsystem.");
    rows.subsystems.iter().for_each(|row| metric.sample(&row.metadata, 1_u64));
    type Gauge = (&'static str, &'static str, fn(&Row) -> Value);
    const GAUGES: [Gauge; 5] = [
        ("subsystem_listeners", "Listeners of a subsystem.", |row| row.listeners.into()),
        ("subsystem_hosts", "Hosts that are named as allowed.", |row| row.hosts.into()),
        ("subsystem_namespace_limit", "Namespaces that it may have.", |row| {
            row.namespaces_max.into()
        }),
        ("subsystem_namespaces", "Namespaces of a subsystem.", |row| row.namespaces.into()),
        ("subsystem_namespaces_missing", "Namespaces whose device is missing.", |row| {
            row.missing.into()
        }),
    ];
    for (name, help, read) in GAUGES {
        let mut metric = text.metric(name, Kind::Gauge, help);
        rows.subsystems.iter().for_each(|row| metric.sample(&row.labels, read(row)));
    }
    let limits: Vec<_> = rows.subsystems.iter().map(|row| (&row.labels, &row.limits)).collect();
    write_limits(text, ("subsystem_iops_limit", "subsystem_bandwidth_limit_bytes"), &limits);
    let limits: Vec<_> = rows.host_limits.iter().map(|(labels, limits)| (labels, limits)).collect();
    write_limits(text, ("hosts_iops_limit", "hosts_bandwidth_limit_bytes"), &limits);
    let mut metric = text.metric(
        "subsystem_namespace_metadata",
        Kind::Gauge,
        "A namespace and its device: 1, or 0 while the device is missing.",
    );
    rows.namespaces
        .iter()
        .for_each(|namespace| metric.sample(&namespace.metadata, namespace.is_there));
    listeners::write(text, &rows.listeners, running);
    counts(text, running, left_out);
    reservations(text, running);
}

/// What all hosts have done with a subsystem.
const COUNTS: [QueueCount; 12] = [
    ("subsystem_commands", "Commands of all hosts.", |t| t.commands.into()),
    ("subsystem_reads_completed", "Reads of all hosts.", |t| t.reads.into()),
    ("subsystem_writes_completed", "Writes of all hosts.", |t| t.writes.into()),
    ("subsystem_read_bytes", "Bytes that hosts have read.", |t| t.read_bytes.into()),
    ("subsystem_written_bytes", "Bytes that hosts have written.", |t| t.written_bytes.into()),
    ("subsystem_read_seconds", "The sum of the times of all reads.", |t| {
        Value::Nanoseconds(t.read_ns)
    }),
    ("subsystem_write_seconds", "The sum of the times of all writes.", |t| {
        Value::Nanoseconds(t.write_ns)
    }),
    ("subsystem_command_errors", "Commands that ended with an error.", |t| t.errors.into()),
    ("subsystem_media_errors", "Commands that ended with a media error.", |t| {
        t.media_errors.into()
    }),
    ("subsystem_digest_errors", "Data digests that did not match.", |t| t.digest_errors.into()),
    ("subsystem_throttled", "Commands that had to wait because of a limit.", |t| {
        t.throttled.into()
    }),
    ("subsystem_buffer_waits", "Commands that had to wait for a buffer.", |t| {
        t.buffer_waits.into()
    }),
];

fn counts(text: &mut Text, running: &[Running], left_out: &mut LeftOut) {
    let all = running.iter().flat_map(|running| {
        let subsystems = running.target.stats().subsystems.into_iter();
        subsystems.map(|(nqn, totals)| (running.labels.and(&[("nqn", nqn.as_str())]), totals))
    });
    let rows: Vec<(Labels, QueueTotals)> = left_out.bound("subsystem_counts", all.collect());
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        rows.iter().for_each(|(labels, totals)| metric.sample(labels, read(totals)));
    }
    let help =
        "How long commands of all hosts took in the target, by the clock of the core's turns.";
    let mut metric = text.metric("subsystem_command_duration_seconds", Kind::Histogram, help);
    for (labels, totals) in rows.iter().take(MAX_HISTOGRAMS) {
        latencies::write(&mut metric, labels, &totals.latencies());
    }
    left_out.note("subsystem_histograms", rows.len(), MAX_HISTOGRAMS);
    let controllers = running
        .iter()
        .map(|running| (running.labels.clone(), running.target.stats().controllers.into()));
    text.gauge("controllers", "Controllers of all hosts.", controllers);
}

fn reservations(text: &mut Text, running: &[Running]) {
    let mut rows: Vec<(Labels, usize, usize)> = Vec::new();
    for running in running {
        let reserved = running.target.reserved().into_iter();
        rows.extend(reserved.map(|(nqn, registered, held)| {
            (running.labels.and(&[("nqn", nqn.as_str())]), registered, held)
        }));
    }
    let help = "Namespaces with registrants of reservations.";
    let mut metric = text.metric("subsystem_namespaces_registered", Kind::Gauge, help);
    rows.iter().for_each(|(labels, registered, _)| metric.sample(labels, *registered));
    let mut metric =
        text.metric("subsystem_namespaces_reserved", Kind::Gauge, "Namespaces that are reserved.");
    rows.iter().for_each(|(labels, _, held)| metric.sample(labels, *held));
}
