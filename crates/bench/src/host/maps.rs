//! Synchronous readers beside a writer of large blocks: on shared queues, and on separate queues.
//!
//! A read that is submitted on a connection behind a large write leaves only after all of the write's data.
//! If half of the connections are for reads, it never waits behind a write. The writer also takes processor
//! time from the readers, in both ways alike; with a capped rate it leaves enough.

use super::bed::Bed;
use super::report::{Cell, Row, Section, Unit};
use super::{HostBenchError, Round};
use crate::histogram::Latencies;
use crate::runner::StageOutcome;
use crate::runner::stage::{JobSpec, Route};
use crate::workload::RwMode;

/// Connections of each way, in total.
const CONNECTIONS: u16 = 4;
/// Numbers of readers, with one command in flight each.
const READERS: [u16; 2] = [16, 32];
const READ_BYTES: u32 = 4096;
const WRITE_BYTES: u32 = 1 << 20;
/// Commands of the writer in flight: a part on each of its lanes. It spreads them over all queues for
/// writes, like a thread that the scheduler moves from core to core.
const WRITE_DEPTH: u16 = 16;
/// The jobs of a stage.
const READS: usize = 0;
const WRITES: usize = 1;

/// All combinations of readers, with a capped writer and an uncapped one.
pub(super) fn measure(bed: &Bed<'_>) -> Result<Section, HostBenchError> {
    let mut rows = Vec::new();
    for readers in READERS {
        for rate in [Some(bed.config.writer_bytes / u64::from(WRITE_BYTES)), None] {
            rows.push(row(bed, readers, rate.map(|rate| rate.max(1)))?);
        }
    }
    Ok(Section {
        case: "maps",
        title: format!(
            "{READ_BYTES} B readers at depth 1 beside one {} KiB writer at depth {WRITE_DEPTH}; {CONNECTIONS} connections: all shared, or {} for reads and {} for writes",
            WRITE_BYTES >> 10,
            CONNECTIONS / 2,
            CONNECTIONS / 2
        ),
        rows,
    })
}

fn row(bed: &Bed<'_>, readers: u16, rate: Option<u64>) -> Result<Row, HostBenchError> {
    let route = Route::Maps { polled: false };
    let jobs = || {
        let read = JobSpec { clones: readers, route, ..JobSpec::new(READ_BYTES, 1) };
        let write = JobSpec {
            mode: RwMode::RandWrite,
            queues: CONNECTIONS,
            rate_iops: rate,
            route,
            ..JobSpec::new(WRITE_BYTES, WRITE_DEPTH / CONNECTIONS)
        };
        vec![read, write]
    };
    let half = CONNECTIONS / 2;
    let shared = bed.way("shared", jobs(), |host| host.io_queues = CONNECTIONS);
    let split = bed.way("split", jobs(), |host| {
        (host.io_queues, host.write_queues) = (CONNECTIONS - half, half);
    });
    let rounds = bed.rounds(&[shared, split])?;
    let writer = match rate {
        Some(rate) => format!("writer {} MiB/s", (rate * u64::from(WRITE_BYTES)) >> 20),
        None => "writer not capped".to_owned(),
    };
    Ok(Row { label: format!("{readers} readers, {writer}"), cells: cells(&rounds) })
}

fn cells(rounds: &[Round<StageOutcome>]) -> Vec<Cell> {
    let of = |way: usize, what: fn(&StageOutcome) -> f64| -> Vec<f64> {
        rounds.iter().map(|round| what(&round.runs[way])).collect()
    };
    let ratio = |what: fn(&StageOutcome) -> f64| -> Vec<f64> {
        rounds.iter().map(|round| what(&round.runs[1]) / what(&round.runs[0])).collect()
    };
    // The tail of one short run would consist of a handful of commands.
    let tail = |way: usize| {
        let mut all = Latencies::new();
        for clone in rounds.iter().flat_map(|round| &round.runs[way].clones) {
            if clone.job == READS {
                all.merge(&clone.read);
            }
        }
        all.percentile_ns(99.99) as f64
    };
    vec![
        Cell::new("shared IOPS", Unit::Rate, of(0, read_iops)),
        Cell::new("split IOPS", Unit::Rate, of(1, read_iops)),
        Cell::new("ratio", Unit::Ratio, ratio(read_iops)),
        Cell::new("shared mean us", Unit::Micros, of(0, mean_ns)),
        Cell::new("split mean us", Unit::Micros, of(1, mean_ns)),
        Cell::new("ratio", Unit::Ratio, ratio(mean_ns)),
        Cell::new("shared P99.99 us", Unit::Micros, [tail(0)]),
        Cell::new("split P99.99 us", Unit::Micros, [tail(1)]),
        Cell::new("ratio", Unit::Ratio, [tail(1) / tail(0)]),
        Cell::new("shared MiB/s written", Unit::Rate, of(0, written)),
        Cell::new("split MiB/s written", Unit::Rate, of(1, written)),
    ]
}

fn read_iops(outcome: &StageOutcome) -> f64 {
    let reads = outcome.clones.iter().filter(|clone| clone.job == READS);
    reads.map(|clone| clone.read.count() as f64 / clone.measured.as_secs_f64()).sum()
}

fn mean_ns(outcome: &StageOutcome) -> f64 {
    let mut all = Latencies::new();
    let reads = outcome.clones.iter().filter(|clone| clone.job == READS);
    reads.for_each(|clone| all.merge(&clone.read));
    all.mean_ns()
}

/// MiB per second.
fn written(outcome: &StageOutcome) -> f64 {
    let writes = outcome.clones.iter().filter(|clone| clone.job == WRITES);
    let count: f64 =
        writes.map(|clone| clone.write.count() as f64 / clone.measured.as_secs_f64()).sum();
    count * f64::from(WRITE_BYTES >> 20)
}
