//! Disks of this machine and of its virtual machines: what they have done for those who use them.

use raceline_bdev::DiskTotals;
use raceline_control::manager::disks::DiskCounts;

use super::text::{Kind, Labels, Text};

/// A disk.
struct Row {
    labels: Labels,
    totals: Option<DiskTotals>,
}

/// A count of a disk: its name, what it is, and where it is.
type Count = (&'static str, &'static str, fn(&DiskTotals) -> u64);

const COUNTS: [Count; 12] = [
    ("disk_queues_began", "Connections or queues of a disk that ever began.", |t| t.queues_ever),
    ("disk_reads_completed", "Reads of a disk.", |t| t.reads),
    ("disk_writes_completed", "Writes of a disk.", |t| t.writes),
    ("disk_flushes_completed", "Flushes of a disk.", |t| t.flushes),
    ("disk_discards_completed", "Discards of a disk.", |t| t.discards),
    ("disk_write_zeroes_completed", "Writes of zeroes of a disk.", |t| t.zeroes),
    ("disk_read_bytes", "Bytes read from a disk.", |t| t.read_bytes),
    ("disk_written_bytes", "Bytes written to a disk.", |t| t.written_bytes),
    ("disk_discarded_bytes", "Bytes of a disk that were discarded.", |t| t.discarded_bytes),
    ("disk_zeroed_bytes", "Bytes of a disk that were zeroed.", |t| t.zeroed_bytes),
    (
        "disk_uncopied_completed",
        "Reads and writes of a disk whose data the daemon did not copy (ublk).",
        |t| t.uncopied,
    ),
    ("disk_errors", "Requests to a disk that failed or were refused.", |t| t.errors),
];

fn row(disk: &DiskCounts) -> Row {
    let DiskCounts { kind, name, bdev_name, totals, .. } = disk;
    let labels = [("disk", name.as_str()), ("kind", kind), ("bdev_name", bdev_name)];
    Row { labels: Labels::new(&labels), totals: *totals }
}

pub(super) fn write(text: &mut Text, disks: &[DiskCounts]) {
    let rows: Vec<Row> = disks.iter().map(row).collect();
    let help = "A disk that is served: 1, or 0 while its device is missing.";
    let mut metric = text.metric("disk_metadata", Kind::Gauge, help);
    rows.iter().for_each(|row| metric.sample(&row.labels, row.totals.is_some()));
    let there: Vec<_> = rows.iter().filter_map(|row| Some((&row.labels, row.totals?))).collect();
    let help = "Connections or queues by which a disk is used.";
    let mut metric = text.metric("disk_queues", Kind::Gauge, help);
    there.iter().for_each(|(labels, totals)| metric.sample(labels, totals.queues()));
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        there.iter().for_each(|(labels, totals)| metric.sample(labels, read(totals)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::{Form, Names};
    use super::*;

    #[test]
    fn a_disk_that_waits_for_its_device_has_no_counts() {
        let disk = |name: &str, totals| DiskCounts {
            kind: "nbd",
            name: name.to_owned(),
            bdev_name: "M0".to_owned(),
            totals,
            cores: Vec::new(),
        };
        let mut totals = DiskTotals { errors: 3, reads: 9, ..DiskTotals::default() };
        (totals.queues_ever, totals.queues_ended) = (5, 4);
        let disks = [disk("/dev/nbd0", Some(totals)), disk("/dev/nbd1", None)];
        let mut text = Text::new(Form::Classic, Names::Own);
        write(&mut text, &disks);
        let text = String::from_utf8(text.finish()).unwrap();
        let labels = "disk=\"/dev/nbd0\",kind=\"nbd\",bdev_name=\"M0\"";
        for expected in [
            format!("raceline_disk_metadata{{{labels}}} 1\n"),
            format!("raceline_disk_queues{{{labels}}} 1\n"),
            format!("raceline_disk_errors_total{{{labels}}} 3\n"),
            format!("raceline_disk_reads_completed_total{{{labels}}} 9\n"),
        ] {
            assert!(text.contains(&expected), "{expected}\n{text}");
        }
        let of_other: Vec<&str> = text.lines().filter(|line| line.contains("nbd1")).collect();
        assert_eq!(of_other.len(), 1, "{of_other:?}");
        assert!(of_other[0].starts_with("raceline_disk_metadata{") && of_other[0].ends_with(" 0"));
    }
}
