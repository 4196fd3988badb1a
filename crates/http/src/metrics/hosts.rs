//! Hosts and initiators that are served, and the controllers that this daemon itself is a host of.

use raceline_control::manager::Model;
use raceline_proto::nvme::HostNqn;
use raceline_target::HostStats;

use super::cores::QueueCount;
use super::text::{Kind, Labels, Text, Value};
use super::{LeftOut, Running};

/// What a host has done with a subsystem.
const COUNTS: [QueueCount; 9] = [
    ("host_commands", "Commands of a host.", |t| t.commands.into()),
    ("host_reads_completed", "Reads of a host.", |t| t.reads.into()),
    ("host_writes_completed", "Writes of a host.", |t| t.writes.into()),
    ("host_read_bytes", "Bytes that a host has read.", |t| t.read_bytes.into()),
    ("host_written_bytes", "Bytes that a host has written.", |t| t.written_bytes.into()),
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

/// Controllers that are attached as devices.
pub(super) struct Attached(Vec<(Labels, &'static str)>);

/// The states of an attached controller.
const STATES: [&str; 3] = ["enabled", "resetting", "failed"];

impl Attached {
    pub(super) fn read(model: &Model, left_out: &mut LeftOut) -> Self {
        let all = model.controllers.values();
        let read = all.map(|controller| {
            (Labels::new(&[("controller", &controller.name)]), controller.link.state())
        });
        Self(left_out.bound("attached_controllers", read.collect()))
    }
}

pub(super) fn write(
    text: &mut Text,
    running: &[Running],
    attached: &Attached,
    left_out: &mut LeftOut,
) {
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
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        rows.iter().for_each(|(labels, host)| metric.sample(labels, read(&host.totals)));
    }
    let initiators = running
        .iter()
        .map(|running| (running.labels.clone(), running.target.iscsi().connections().len().into()));
    text.gauge("iscsi_connections", "Connections by iSCSI.", initiators);
    let mut metric = text.metric(
        "attached_controller_state",
        Kind::Gauge,
        "The state of a controller that this daemon uses: 1 for the one that it is in.",
    );
    for (labels, state) in &attached.0 {
        for known in STATES {
            metric.sample(&labels.and(&[("state", known)]), known == *state);
        }
    }
}

fn labels(running: &Running, host: &HostStats) -> Labels {
    let name = match &host.host {
        HostNqn::Named(name) => name.as_str(),
        HostNqn::Unnamed => "",
    };
    running.labels.and(&[("nqn", host.nqn.as_str()), ("host_nqn", name)])
}
