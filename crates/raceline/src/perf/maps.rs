//! `raceline perf --show-maps`: the queues that each core uses for each purpose.

use std::fmt::Write as _;

use raceline_host::blocking::Host;
use raceline_host::{CorePlace, HostConfig, QueueKind, QueueMaps};
use serde::Serialize;

use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::{remote, shell};

/// Connects, asks for the queues, and prints how the granted queues are divided; without `cores`, for one
/// thread that is not bound.
pub(super) fn show(host: HostConfig, cores: &[usize], output: OutputFormat) -> Result<(), Failure> {
    let request = host.queue_request();
    let host = Host::connect(host).map_err(|error| remote::failure(&error))?;
    let granted = host.association().io_queues;
    let table = Table::new(request.total(), &request.grant(granted), cores);
    let text = match output {
        OutputFormat::Table => table.to_text(),
        OutputFormat::Json => table.to_json(),
    };
    shell::print(text.as_bytes())
}

/// The maps, for printing.
#[derive(Serialize)]
struct Table {
    asked: u16,
    granted: u16,
    maps: Vec<MapRow>,
    cores: Vec<CoreRow>,
}

/// One map.
#[derive(Serialize)]
struct MapRow {
    map: String,
    /// Identifiers; if reads have no queues of their own, the default ones.
    queues: Vec<u16>,
    /// Whether it has queues of its own.
    own: bool,
}

/// The queues of one core, by map.
#[derive(Serialize)]
struct CoreRow {
    core: Option<usize>,
    default: Vec<u16>,
    read: Vec<u16>,
    poll: Vec<u16>,
}

impl Table {
    fn new(asked: u16, maps: &QueueMaps, cores: &[usize]) -> Self {
        let rows = QueueKind::ALL.map(|kind| {
            let own = maps.count(kind) > 0;
            let from = if kind == QueueKind::Read && !own { QueueKind::Default } else { kind };
            MapRow { map: kind.to_string(), queues: maps.qids(from).collect(), own }
        });
        let count = cores.len().max(1);
        let core = |index| {
            let here = maps.core(CorePlace { index, count });
            let queues = |kind| {
                let kind = match kind {
                    _ if maps.count(kind) > 0 => kind,
                    // Without poll queues, a polled command takes the queue for reads or the default queue.
                    QueueKind::Poll => return Vec::new(),
                    _ => QueueKind::Default,
                };
                match here.qids().get(here.positions(kind)) {
                    Some(own) if !own.is_empty() => own.to_vec(),
                    // Another core has the queue, and both share it.
                    _ => maps.queue_of(kind, index).map(|qid| qid.0).into_iter().collect(),
                }
            };
            CoreRow {
                core: cores.get(index).copied(),
                default: queues(QueueKind::Default),
                read: queues(QueueKind::Read),
                poll: queues(QueueKind::Poll),
            }
        };
        let cores = (0..count).map(core).collect();
        Self { asked, granted: maps.total(), maps: rows.into(), cores }
    }

    fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    fn to_text(&self) -> String {
        let mut out = format!(
            "queue maps: {} I/O queues in use, {} asked for\n\n{:<9}{:<14}{}\n",
            self.granted, self.asked, "map", "queues", "takes"
        );
        let has_reads = self.maps.iter().any(|row| row.own && row.map == "read");
        for row in &self.maps {
            let takes = match (row.map.as_str(), row.own) {
                ("default", _) if has_reads => "what is neither read nor polled",
                ("default", _) => "what is not polled",
                ("read", true) => "reads",
                ("poll", true) => "polled commands",
                ("poll", false) => "(polled commands go where others of their kind do)",
                _ => "(reads share the default queues)",
            };
            let queues = if row.own { list(&row.queues) } else { list(&[]) };
            let _ = writeln!(out, "{:<9}{queues:<14}{takes}", row.map);
        }
        let _ = writeln!(out, "\n{:<9}{:<14}{:<14}poll", "core", "default", "read");
        for row in &self.cores {
            let core = row.core.map_or_else(|| "any".to_owned(), |core| core.to_string());
            let [default, read, poll] = [&row.default, &row.read, &row.poll].map(|qids| list(qids));
            let _ = writeln!(out, "{core:<9}{default:<14}{read:<14}{poll}");
        }
        out
    }
}

/// `1-3,7`, and `-` for none.
fn list(qids: &[u16]) -> String {
    if qids.is_empty() {
        return "-".to_owned();
    }
    let mut out = String::new();
    let mut rest = qids;
    while let [first, ..] = rest {
        let run = rest.iter().zip(*first..).take_while(|(qid, next)| *qid == next).count();
        if !out.is_empty() {
            out.push(',');
        }
        let _ = match rest[run - 1] {
            last if last == *first => write!(out, "{first}"),
            last => write!(out, "{first}-{last}"),
        };
        rest = &rest[run..];
    }
    out
}

#[cfg(test)]
mod tests {
    use raceline_host::QueueRequest;

    use super::*;

    #[test]
    fn the_table_has_maps_and_cores() {
        let request = QueueRequest { io: 4, write: 2, poll: 1 };
        let text = Table::new(7, &request.grant(7), &[0, 3]).to_text();
        let expected = "\
queue maps: 7 I/O queues in use, 7 asked for

map      queues        takes
default  1-2           what is neither read nor polled
read     3-6           reads
poll     7             polled commands

core     default       read          poll
0        1             3,5           7
3        2             4,6           7
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_was_not_granted_is_shared() {
        let request = QueueRequest { io: 2, write: 2, poll: 2 };
        let table = Table::new(6, &request.grant(2), &[]);
        let expected = "\
queue maps: 2 I/O queues in use, 6 asked for

map      queues        takes
default  1-2           what is not polled
read     -             (reads share the default queues)
poll     -             (polled commands go where others of their kind do)

core     default       read          poll
any      1-2           1-2           -
";
        assert_eq!(table.to_text(), expected);
        let json: serde_json::Value = serde_json::from_str(&table.to_json()).unwrap();
        assert_eq!(json["granted"], 2);
        assert_eq!(
            json["maps"][1],
            serde_json::json!({"map": "read", "queues": [1, 2], "own": false})
        );
        assert_eq!(json["cores"][0]["read"], serde_json::json!([1, 2]));
    }

    #[test]
    fn lists_are_short() {
        assert_eq!(list(&[]), "-");
        assert_eq!(list(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
    }
}
