//! `raceline_get_activity`: all counters that a live display needs, in one small answer.
//!
//! An answer for a thousand idle devices is short: devices that have done nothing are left out.

use raceline_bdev::{Histogram, IoTotals, OpKind};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::RpcError;
use crate::method::{Call, Registry, States};

/// Ends of the ranges in which latencies are counted: each is 33 % above the one before, from 1 us to
/// 10 s.
const BORDERS: usize = 57;
/// Ranges in one power of ten.
const BORDERS_PER_DECADE: i32 = 8;
const FIRST_BORDER_NS: f64 = 1000.0;

pub(super) fn register(registry: &mut Registry) {
    registry.read("raceline_get_activity", States::Runtime, get);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    /// Also the latencies of every device that has a histogram; otherwise only those of all together.
    #[serde(default)]
    latencies: bool,
}

/// All borders, in nanoseconds, ascending.
fn borders() -> Vec<u64> {
    let border = |step: i32| {
        let exponent = f64::from(step) / f64::from(BORDERS_PER_DECADE);
        let ns = (FIRST_BORDER_NS * 10f64.powf(exponent)).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1e3 to 1e10")]
        let ns = ns as u64;
        ns
    };
    (0..).take(BORDERS).map(border).collect()
}

fn get(call: &Call<'_>, Get { latencies }: Get) -> Result<Value, RpcError> {
    let manager = call.manager;
    let borders = borders();
    let mut all = vec![0; BORDERS + 1];
    let (mut bdevs, mut with_histogram) = (Map::new(), 0u64);
    let devices: Vec<_> = {
        let model = manager.model();
        model.bdevs.iter().map(|bdev| (bdev.name.clone(), bdev.stats.clone())).collect()
    };
    for (name, stats) in &devices {
        let totals = stats.totals();
        let histogram = stats.histogram();
        with_histogram += u64::from(histogram.is_some());
        let counts = histogram.map(|histogram| counts(&histogram, &borders));
        for (sum, part) in all.iter_mut().zip(counts.iter().flatten()) {
            *sum += part;
        }
        if let Some(mut shown) = describe(&totals) {
            if let (true, Some(counts)) = (latencies, counts) {
                shown.push(counts.into());
            }
            bdevs.insert(name.clone(), shown.into());
        }
    }
    let threads = super::thread::threads(manager);
    let cores: Vec<Value> = threads.iter().map(describe_core).collect();
    let hosts = manager.cores().iter().flat_map(|cores| cores.hosts()).collect::<Vec<_>>();
    let hosts: Vec<Value> = hosts.iter().map(super::nvmf::describe_host).collect();
    let elapsed = manager.began().elapsed();
    Ok(json!({
        "time_ns": u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        "next_event": manager.config().events.next(),
        "cpu_ns": cpu_ns(),
        "device_count": devices.len(),
        "cores": cores,
        "hosts": hosts,
        "bdev_columns": [
            "reads", "writes", "others", "read_bytes", "written_bytes", "read_ns", "write_ns",
            "failures", "latencies",
        ],
        "bdevs": bdevs,
        "latency": { "borders_ns": borders, "counts": all, "devices": with_histogram },
    }))
}

/// The numbers of a device, in the order of `bdev_columns`; `None`: it has done nothing.
fn describe(totals: &IoTotals) -> Option<Vec<Value>> {
    let (reads, writes) = (totals.of(OpKind::Read), totals.of(OpKind::Write));
    let all: u64 = OpKind::ALL.iter().map(|kind| totals.of(*kind).operations).sum();
    if all == 0 && totals.failures == 0 {
        return None;
    }
    let numbers = [
        reads.operations,
        writes.operations,
        all.saturating_sub(reads.operations).saturating_sub(writes.operations),
        reads.bytes,
        writes.bytes,
        reads.latency_ns,
        writes.latency_ns,
        totals.failures,
    ];
    Some(numbers.into_iter().map(Value::from).collect())
}

/// How many requests took as long as each range says; the last range has no end.
fn counts(histogram: &Histogram, borders: &[u64]) -> Vec<u64> {
    let mut ranges = vec![0; borders.len() + 1];
    // Buckets and borders both ascend. A bucket counts for the first border that is not below its start.
    let (mut at, mut start) = (0, 0);
    for (bucket, count) in histogram.counts.iter().enumerate() {
        while borders.get(at).is_some_and(|border| *border < start) {
            at += 1;
        }
        ranges[at] += count;
        start = histogram.shape.bucket_end(bucket);
    }
    ranges
}

fn describe_core(thread: &super::thread::Thread) -> Value {
    let counts = thread.counts();
    json!({
        "core": thread.core(),
        "name": thread.name,
        "busy_ns": u64::try_from(counts.busy.as_nanos()).unwrap_or(u64::MAX),
        "turns": counts.turns,
        "busy_turns": counts.busy_turns,
        "waits": counts.waits,
        "longest_ns": u64::try_from(counts.longest.as_nanos()).unwrap_or(u64::MAX),
        "received_bytes": counts.io.received_bytes,
        "sent_bytes": counts.io.sent_bytes,
    })
}

/// CPU time of this process: with threads that spin it is more than the useful part.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_ascend_by_a_third_from_a_microsecond_to_ten_seconds() {
        let borders = borders();
        assert_eq!((borders[0], borders[8], borders[56]), (1_000, 10_000, 10_000_000_000));
        assert!(borders.windows(2).all(|pair| pair[1] * 100 / pair[0] < 135));
    }
}
