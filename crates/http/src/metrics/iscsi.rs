//! iSCSI: what the initiators of each target node have done.

use raceline_target::{IscsiNodeStats, IscsiTotals};

use super::text::{Kind, Labels, Text};
use super::{LeftOut, Running};

/// A count of a target node: its name, what it is, and where it is.
type Count = (&'static str, &'static str, fn(&IscsiTotals) -> u64);

const COUNTS: [Count; 6] = [
    ("iscsi_commands", "SCSI commands of all initiators.", |t| t.commands),
    ("iscsi_reads_completed", "Reads of all initiators.", |t| t.reads),
    ("iscsi_writes_completed", "Writes of all initiators.", |t| t.writes),
    ("iscsi_read_bytes", "Bytes that initiators have read.", |t| t.read_bytes),
    ("iscsi_written_bytes", "Bytes that initiators have written.", |t| t.written_bytes),
    ("iscsi_command_errors", "Commands that ended with an error.", |t| t.errors),
];

pub(super) fn write(text: &mut Text, running: &[Running], left_out: &mut LeftOut) {
    let initiators = running
        .iter()
        .map(|running| (running.labels.clone(), running.target.iscsi().connections().len().into()));
    text.gauge("iscsi_connections", "Connections by iSCSI.", initiators);
    let all = running.iter().flat_map(|running| {
        let nodes = running.target.iscsi().stats().into_iter();
        nodes.map(|node| (running.labels.and(&[("iqn", &node.name)]), node))
    });
    let rows: Vec<(Labels, IscsiNodeStats)> = left_out.bound("iscsi_nodes", all.collect());
    let mut metric = text.metric("iscsi_sessions", Kind::Gauge, "Sessions with a target node.");
    rows.iter().for_each(|(labels, node)| metric.sample(labels, node.sessions));
    let help = "Sessions with a target node that ever began.";
    let mut metric = text.metric("iscsi_sessions_began", Kind::Counter, help);
    rows.iter().for_each(|(labels, node)| metric.sample(labels, node.sessions_ever));
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        rows.iter().for_each(|(labels, node)| metric.sample(labels, read(&node.totals)));
    }
}
