//! Hosts and initiators that are served.

use raceline_proto::nvme::HostNqn;
use raceline_target::HostStats;

use super::cores::QueueCount;
use super::text::{Kind, Labels, Text, Value};
use super::{LeftOut, MAX_HISTOGRAMS, Running, latencies};

/// What a host has done with a subsystem.
const COUNTS: [QueueCount; 11] = [
    ("host_commands", "Commands of a host.", |t| t.commands.into()),
    ("host_reads_completed", "Reads of a host.", |t| t.reads.into()),
    ("host_writes_completed", "Writes of a host.", |t| t.writes.into()),
    ("host_read_bytes", "Bytes that a host has read.", |t| t.read_bytes.into()),
    ("host_written_bytes", "Bytes that a host has written.", |t| t.written_bytes.into()),
    ("host_read_seconds", "The sum of the times of the reads of a host.", |t| {
        Value::Nanoseconds(t.read_ns)
    }),
    ("host_write_seconds", "The sum of the times of the writes of a host.", |t| {
        Value::Nanoseconds(t.write_ns)
    }),
    ("host_command_errors", "Commands of a host that ended with an error.", |t| t.errors.into()),
    ("host_digest_errors", "Data digests of a host that did not match.", |t| {
        t.digest_errors.into()
    }),
    ("host_throttled", "Commands of a host that had to wait because of a limit.", |t| {
        t.throttled.into()
    }),
    ("host_throttled_seconds", "The sum of the times for which they were to wait.", |t| {
        Value::Nanoseconds(t.throttled_us.saturating_mul(1000))
    }),
];

pub(super) fn write(text: &mut Text, running: &[Running], left_out: &mut LeftOut) {
    let all = running.iter().flat_map(|running| {
        let hosts = running.target.hosts().into_iter();
        hosts.map(|host| (labels(running, &host), host))
    });
    let rows: Vec<(Labels, HostStats)> = left_out.bound("hosts", all.collect());
    let help = "Whether a host is connected to a subsystem.";
    let mut metric = text.metric("host_connection_state", Kind::Gauge, help);
    rows.iter().for_each(|(labels, host)| metric.sample(labels, host.controllers > 0));
    let mut metric = text.metric("host_controllers", Kind::Gauge, "Controllers of a host.");
    rows.iter().for_each(|(labels, host)| metric.sample(labels, host.controllers));
    let mut metric = text.metric("host_connections", Kind::Gauge, "I/O queues of a host.");
    rows.iter().for_each(|(labels, host)| metric.sample(labels, host.io_queues));
    let help =
        "Whether a host has left because its keep alive timer ran out, and has not come back.";
    let mut metric = text.metric("host_keep_alive_timeout", Kind::Gauge, help);
    rows.iter().for_each(|(labels, host)| metric.sample(labels, host.is_timed_out));
    let help = "Controllers of a host given up because its keep alive timer ran out.";
    let mut metric = text.metric("host_keep_alive_timeouts", Kind::Counter, help);
    rows.iter().for_each(|(labels, host)| metric.sample(labels, host.keep_alive_timeouts));
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        rows.iter().for_each(|(labels, host)| metric.sample(labels, read(&host.totals)));
    }
    let help = "How long commands of a host took in the target, by the clock of the core's turns.";
    let mut metric = text.metric("host_command_duration_seconds", Kind::Histogram, help);
    let is_busy = |(_, host): &&(Labels, HostStats)| host.totals.reads + host.totals.writes > 0;
    let busy: Vec<_> = rows.iter().filter(is_busy).collect();
    for (labels, host) in busy.iter().take(MAX_HISTOGRAMS) {
        latencies::write(&mut metric, labels, &host.totals.latencies());
    }
    left_out.note("host_histograms", busy.len(), MAX_HISTOGRAMS);
}

fn labels(running: &Running, host: &HostStats) -> Labels {
    let name = match &host.host {
        HostNqn::Named(name) => name.as_str(),
        HostNqn::Unnamed => "",
    };
    running.labels.and(&[("nqn", host.nqn.as_str()), ("host_nqn", name)])
}
