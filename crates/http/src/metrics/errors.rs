//! Commands that ended with an error, by its status; and what has become of TLS connections.

use raceline_proto::nvme::Status;
use raceline_tls::{TlsTotals, accepted_totals, connected_totals};

use super::Running;
use super::text::{Kind, Labels, Text};

/// What a status type is about.
fn type_of(status: Status) -> &'static str {
    match status.sct() {
        0 => "generic",
        1 => "command",
        2 => "media",
        3 => "path",
        7 => "vendor",
        _ => "reserved",
    }
}

pub(super) fn write(text: &mut Text, running: &[Running]) {
    // A status has eleven bits, so there are so many series at most for each target.
    let help = "Commands of all hosts that ended with an error, by its status.";
    let mut metric = text.metric("command_errors", Kind::Counter, help);
    for target in running {
        for (status, count) in target.target.statuses() {
            let code = format!("{:x}/{:02x}", status.sct(), status.sc());
            let labels = [("type", type_of(status)), ("status", &code), ("name", status.text())];
            metric.sample(&target.labels.and(&labels), count);
        }
    }
    tls(text, &[("target", accepted_totals()), ("host", connected_totals())]);
}

/// Of both ends that this process can be.
fn tls(text: &mut Text, ends: &[(&str, TlsTotals)]) {
    let mut metric =
        text.metric("tls_handshakes", Kind::Counter, "Handshakes of TLS that succeeded.");
    for (end, totals) in ends {
        for (suite, count) in &totals.established {
            metric.sample(&Labels::new(&[("end", end), ("suite", suite)]), *count);
        }
    }
    let help = "Connections that TLS has refused or ended.";
    let mut metric = text.metric("tls_failures", Kind::Counter, help);
    for (end, totals) in ends {
        for (reason, count) in &totals.failures {
            metric.sample(&Labels::new(&[("end", end), ("reason", reason)]), *count);
        }
    }
    let mut metric = text.metric("tls_connections", Kind::Gauge, "Connections with TLS.");
    for (end, totals) in ends {
        metric.sample(&Labels::new(&[("end", end)]), totals.active);
    }
}
