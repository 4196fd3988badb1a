//! The devices: what they have done and how long it took.

use std::sync::Arc;

use raceline_bdev::{IoTotals, Latencies, OpKind};
use raceline_control::manager::Model;
use raceline_target::QosLimits;

use super::text::{Kind, Labels, Text, Value};
use super::{LeftOut, latencies};

/// One device.
pub(super) struct Row {
    labels: Labels,
    metadata: Labels,
    bytes: u64,
    depth: Option<u64>,
    limits: QosLimits,
    totals: IoTotals,
    latencies: [Latencies; 2],
}

pub(super) fn read(model: &Model, left_out: &mut LeftOut) -> Vec<Row> {
    let bdevs = left_out.bound("bdevs", model.bdevs.iter().collect());
    let read = bdevs.into_iter().map(|bdev| {
        let info = bdev.info();
        let labels = Labels::new(&[("bdev_name", &bdev.name)]);
        let block_size = info.block_size.to_string();
        let uuid = bdev.uuid.to_string();
        let stats = Arc::clone(&bdev.stats);
        Row {
            metadata: labels.and(&[
                ("product_name", bdev.product_name),
                ("block_size", &block_size),
                ("uuid", &uuid),
            ]),
            labels,
            bytes: info.block_count.saturating_mul(u64::from(info.block_size)),
            depth: bdev.sampling.as_ref().map(|sampling| sampling.depth()),
            limits: bdev.limits,
            totals: stats.ever(),
            latencies: stats.latencies(),
        }
    });
    read.collect()
}

pub(super) fn write(text: &mut Text, rows: &[Row]) {
    let mut metric = text.metric("bdev_metadata", Kind::Gauge, "A device.");
    rows.iter().for_each(|row| metric.sample(&row.metadata, 1_u64));
    let mut metric = text.metric("bdev_capacity_bytes", Kind::Gauge, "The size of a device.");
    rows.iter().for_each(|row| metric.sample(&row.labels, row.bytes));
    type Count = (&'static str, &'static str, fn(&IoTotals) -> Value);
    const COUNTS: [Count; 14] = [
        ("bdev_reads_completed", "Reads.", |t| t.of(OpKind::Read).operations.into()),
        ("bdev_writes_completed", "Writes.", |t| t.of(OpKind::Write).operations.into()),
        ("bdev_flushes_completed", "Flushes.", |t| t.of(OpKind::Flush).operations.into()),
        ("bdev_unmaps_completed", "Unmaps.", |t| t.of(OpKind::Deallocate).operations.into()),
        ("bdev_write_zeroes_completed", "Writes of zeroes.", |t| {
            t.of(OpKind::WriteZeroes).operations.into()
        }),
        ("bdev_copies_completed", "Copies.", |t| t.of(OpKind::Copy).operations.into()),
        ("bdev_read_bytes", "Bytes read.", |t| t.of(OpKind::Read).bytes.into()),
        ("bdev_written_bytes", "Bytes written.", |t| t.of(OpKind::Write).bytes.into()),
        ("bdev_unmapped_bytes", "Bytes unmapped.", |t| t.of(OpKind::Deallocate).bytes.into()),
        ("bdev_copied_bytes", "Bytes copied.", |t| t.of(OpKind::Copy).bytes.into()),
        ("bdev_read_seconds", "The sum of the times of all reads.", |t| {
            Value::Nanoseconds(t.of(OpKind::Read).latency_ns)
        }),
        ("bdev_write_seconds", "The sum of the times of all writes.", |t| {
            Value::Nanoseconds(t.of(OpKind::Write).latency_ns)
        }),
        ("bdev_flush_seconds", "The sum of the times of all flushes.", |t| {
            Value::Nanoseconds(t.of(OpKind::Flush).latency_ns)
        }),
        ("bdev_io_errors", "Requests that failed.", |t| t.failures.into()),
    ];
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        rows.iter().for_each(|row| metric.sample(&row.labels, read(&row.totals)));
    }
    let mut metric = text.metric(
        "bdev_queue_depth",
        Kind::Gauge,
        "Requests in flight, where bdev_set_qd_sampling_period has this sampled.",
    );
    for (row, depth) in rows.iter().filter_map(|row| Some((row, row.depth?))) {
        metric.sample(&row.labels, depth);
    }
    latencies(text, rows);
    limits(text, rows);
}

fn latencies(text: &mut Text, rows: &[Row]) {
    let help = "How long requests took, by the clock of the core's turns.";
    let mut metric = text.metric("bdev_duration_seconds", Kind::Histogram, help);
    rows.iter().for_each(|row| latencies::write(&mut metric, &row.labels, &row.latencies));
}

fn limits(text: &mut Text, rows: &[Row]) {
    let limited: Vec<_> = rows.iter().map(|row| (&row.labels, &row.limits)).collect();
    write_limits(text, ("bdev_iops_limit", "bdev_bandwidth_limit_bytes"), &limited);
}

/// The limits of what has some.
pub(super) fn write_limits(
    text: &mut Text,
    (iops, bandwidth): (&'static str, &'static str),
    rows: &[(&Labels, &QosLimits)],
) {
    let mut metric = text.metric(iops, Kind::Gauge, "Reads and writes per second at most.");
    for (labels, limits) in rows.iter().filter(|(_, limits)| limits.rw_ios_per_sec > 0) {
        metric.sample(labels, limits.rw_ios_per_sec);
    }
    let mut metric = text.metric(bandwidth, Kind::Gauge, "Bytes per second at most.");
    for (labels, limits) in rows {
        for (direction, limit) in [
            ("both", limits.rw_bytes_per_sec),
            ("read", limits.r_bytes_per_sec),
            ("write", limits.w_bytes_per_sec),
        ] {
            if limit > 0 {
                metric.sample(&labels.and(&[("direction", direction)]), limit);
            }
        }
    }
}
