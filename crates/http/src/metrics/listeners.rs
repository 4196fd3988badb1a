//! Listeners: what has come by each of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use raceline_control::manager::nvmf::{ListenAddress, PortLevel};
use raceline_target::AddressStats;

use super::cores::QueueCount;
use super::text::{Kind, Labels, Text, Value};
use super::{Running, transport};

/// A listener of a target.
pub(super) struct Row {
    labels: Labels,
    address: Option<SocketAddr>,
    is_rdma: bool,
}

/// What the queues of a listener have done.
const COUNTS: [QueueCount; 10] = [
    ("listener_commands", "Commands that have come by a listener.", |t| t.commands.into()),
    ("listener_reads_completed", "Reads that have come by a listener.", |t| t.reads.into()),
    ("listener_writes_completed", "Writes that have come by a listener.", |t| t.writes.into()),
    ("listener_read_bytes", "Bytes that hosts have read by a listener.", |t| t.read_bytes.into()),
    ("listener_written_bytes", "Bytes that hosts have written by a listener.", |t| {
        t.written_bytes.into()
    }),
    ("listener_read_seconds", "The sum of the times of the reads by a listener.", |t| {
        Value::Nanoseconds(t.read_ns)
    }),
    ("listener_write_seconds", "The sum of the times of the writes by a listener.", |t| {
        Value::Nanoseconds(t.write_ns)
    }),
    ("listener_command_errors", "Commands by a listener that ended with an error.", |t| {
        t.errors.into()
    }),
    ("listener_digest_errors", "Data digests by a listener that did not match.", |t| {
        t.digest_errors.into()
    }),
    ("listener_throttled", "Commands by a listener that had to wait because of a limit.", |t| {
        t.throttled.into()
    }),
];

pub(super) fn row(of_target: &Labels, address: &ListenAddress, level: PortLevel) -> Row {
    let socket = address.socket().ok();
    let shown = socket.map_or_else(String::new, |socket| socket.to_string());
    let is_rdma = address.is_rdma();
    let labels = of_target.and(&[
        ("address", &shown),
        ("security", &level.to_string()),
        ("transport", transport(is_rdma)),
    ]);
    Row { labels, address: socket, is_rdma }
}

pub(super) fn write(text: &mut Text, listeners: &[Row], running: &[Running]) {
    let mut addresses = BTreeMap::new();
    for running in running {
        addresses.extend(running.target.by_address());
    }
    let rows: Vec<(&Labels, AddressStats)> =
        listeners.iter().map(|listener| (&listener.labels, listener.reached(&addresses))).collect();
    let help = "Queues that have come by a listener.";
    let mut metric = text.metric("listener_connections", Kind::Gauge, help);
    rows.iter().for_each(|(labels, stats)| metric.sample(labels, stats.queues));
    let help = "Queues that have ever connected by a listener.";
    let mut metric = text.metric("listener_queues_connected", Kind::Counter, help);
    rows.iter().for_each(|(labels, stats)| metric.sample(labels, stats.queues_ever));
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        rows.iter().for_each(|(labels, stats)| metric.sample(labels, read(&stats.totals)));
    }
}

impl Row {
    /// What has come by the addresses of this listener: one of all addresses is reached by each of them.
    fn reached(&self, addresses: &BTreeMap<(SocketAddr, bool), AddressStats>) -> AddressStats {
        let mut sum = AddressStats::default();
        let Some(address) = self.address else { return sum };
        let any = address.ip().is_unspecified();
        let reached = addresses.iter().filter(|((local, by_rdma), _)| {
            *by_rdma == self.is_rdma
                && (*local == address || (any && local.port() == address.port()))
        });
        for (_, stats) in reached {
            sum.queues += stats.queues;
            sum.queues_ever += stats.queues_ever;
            sum.totals.add(&stats.totals);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use raceline_target::QueueTotals;

    use super::super::text::{Form, Names};
    use super::*;

    #[test]
    fn a_listener_of_all_addresses_has_what_came_by_each() {
        let stats = |queues, reads| AddressStats {
            queues,
            queues_ever: 2 * queues as u64,
            totals: QueueTotals { reads, read_bytes: 512 * reads, ..QueueTotals::default() },
        };
        let addresses = BTreeMap::from([
            (("10.0.0.1:4420".parse().unwrap(), false), stats(1, 10)),
            (("10.0.0.2:4420".parse().unwrap(), false), stats(2, 20)),
            (("10.0.0.2:4420".parse().unwrap(), true), stats(4, 40)),
            (("10.0.0.2:4421".parse().unwrap(), false), stats(8, 80)),
        ]);
        let reached = |address: &str, is_rdma| {
            let address = Some(address.parse().unwrap());
            let row = Row { labels: Labels::default(), address, is_rdma };
            let sum = row.reached(&addresses);
            (sum.queues, sum.queues_ever, sum.totals.reads, sum.totals.read_bytes)
        };
        assert_eq!(reached("0.0.0.0:4420", false), (3, 6, 30, 15_360));
        assert_eq!(reached("10.0.0.2:4420", true), (4, 8, 40, 20_480));
        assert_eq!(reached("10.0.0.2:4421", false), (8, 16, 80, 40_960));
        assert_eq!(reached("10.0.0.3:4420", false), (0, 0, 0, 0));
    }

    #[test]
    fn every_count_of_a_listener_is_there_without_a_target_that_runs() {
        let mut text = Text::new(Form::Classic, Names::Own);
        let labels = Labels::new(&[("address", "10.0.0.1:4420"), ("transport", "tcp")]);
        write(&mut text, &[Row { labels, address: None, is_rdma: false }], &[]);
        let text = String::from_utf8(text.finish()).unwrap();
        for (name, ..) in COUNTS {
            let line =
                format!("raceline_{name}_total{{address=\"10.0.0.1:4420\",transport=\"tcp\"}} 0");
            // Seconds have a fraction.
            assert!(text.lines().any(|found| found.starts_with(&line)), "{line}\n{text}");
        }
    }
}
