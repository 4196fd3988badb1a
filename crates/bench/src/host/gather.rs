//! One connection on one core, sending one PDU at a time, all that is ready, or gathered as i10 does.
//!
//! The wall of a way is the highest rate of 4 KiB reads, in an open loop, at which P99 stays below twice
//! what it is at a low rate. The closed loops say whether gathering costs throughput at any size.

use super::bed::{Bed, Way};
use super::report::{Cell, Row, Section, Unit};
use super::{HostBenchError, Round};
use crate::engine::StageOutcome;
use crate::engine::stage::JobSpec;
use crate::histogram::Latencies;
use crate::limit::report::median;

const IO_BYTES: u32 = 4096;
/// Commands that may be in flight in the open loop: enough that the rate is what limits.
const OPEN_DEPTH: u16 = 127;
/// Commands in flight in the closed loop.
const CLOSED_DEPTH: u16 = 32;
/// Sizes of the closed loop.
const SIZES: [u32; 5] = [512, 4096, 16 << 10, 64 << 10, 128 << 10];
/// The low rate.
const LOW_RATE: u64 = 2000;
/// The first rate that may be a wall, and how much higher each next one is, in percent.
const FIRST_RATE: u64 = 60_000;
const RATE_STEP_PERCENT: u64 = 25;
/// Rates beyond are not tried.
const RATE_MAX: u64 = 2_000_000;
/// A way that fails so many rates in a row has met its wall: one may be the machine's fault.
const FAILURES: usize = 2;
/// P99 may be so many times what it is at the low rate.
const P99_FACTOR: f64 = 2.0;
const NAMES: [&str; 3] = ["one PDU per send", "what is ready", "i10"];

/// Walls, then closed loops.
pub(super) fn measure(bed: &Bed<'_>) -> Result<Section, HostBenchError> {
    let mut rows = walls(bed)?;
    for io_bytes in SIZES {
        rows.push(closed(bed, io_bytes)?);
    }
    let i10 = bed.config.i10;
    Ok(Section {
        case: "i10",
        title: format!(
            "one connection on one core: one PDU per send, what is ready, and i10 ({} requests, {} bytes, {} us)",
            i10.requests,
            i10.bytes,
            i10.delay.as_micros()
        ),
        rows,
    })
}

fn ways(bed: &Bed<'_>, job: &JobSpec) -> [Way; 3] {
    let i10 = bed.config.i10;
    [
        bed.way(NAMES[0], vec![job.clone()], |host| host.send_pdus = 1),
        bed.way(NAMES[1], vec![job.clone()], |_| {}),
        bed.way(NAMES[2], vec![job.clone()], |host| host.i10 = Some(i10)),
    ]
}

/// The walls of all ways, tried side by side at rising rates.
fn walls(bed: &Bed<'_>) -> Result<Vec<Row>, HostBenchError> {
    let at = |rate| JobSpec { rate_iops: Some(rate), ..JobSpec::new(IO_BYTES, OPEN_DEPTH) };
    let low = bed.rounds(&ways(bed, &at(LOW_RATE)))?;
    let low: Vec<(f64, f64)> =
        (0..NAMES.len()).map(|way| (mean(&low, way), p99(&low, way))).collect();
    let mut wall = [0u64; NAMES.len()];
    let mut p99_there = [0.0; NAMES.len()];
    let mut failed = [0; NAMES.len()];
    let mut rate = FIRST_RATE;
    while rate <= RATE_MAX && failed.iter().any(|&failed| failed < FAILURES) {
        let rounds = bed.rounds(&ways(bed, &at(rate)))?;
        for way in 0..NAMES.len() {
            let p99 = p99(&rounds, way);
            let kept = rounds.iter().all(|round| missed(&round.runs[way]) == 0);
            if kept && p99 < P99_FACTOR * low[way].1 && failed[way] < FAILURES {
                (wall[way], p99_there[way], failed[way]) = (rate, p99, 0);
            } else {
                failed[way] += 1;
            }
        }
        rate += rate * RATE_STEP_PERCENT / 100;
    }
    let row = |way: usize| Row {
        label: format!("wall of 4 KiB reads: {}", NAMES[way]),
        cells: vec![
            Cell::new("low mean us", Unit::Micros, [low[way].0]),
            Cell::new("low P99 us", Unit::Micros, [low[way].1]),
            Cell::new("wall IOPS", Unit::Rate, [wall[way] as f64]),
            Cell::new("P99 there us", Unit::Micros, [p99_there[way]]),
            Cell::new("i10 / this", Unit::Ratio, [wall[2] as f64 / wall[way] as f64]),
        ],
    };
    Ok((0..NAMES.len()).map(row).collect())
}

/// Throughput at one size.
fn closed(bed: &Bed<'_>, io_bytes: u32) -> Result<Row, HostBenchError> {
    let rounds = bed.rounds(&ways(bed, &JobSpec::new(io_bytes, CLOSED_DEPTH)))?;
    let iops =
        |way: usize| -> Vec<f64> { rounds.iter().map(|round| iops(&round.runs[way])).collect() };
    let ratio = |way: usize| -> Vec<f64> {
        rounds
            .iter()
            .map(|round| self::iops(&round.runs[2]) / self::iops(&round.runs[way]))
            .collect()
    };
    Ok(Row {
        label: format!("{io_bytes} B reads, depth {CLOSED_DEPTH}"),
        cells: vec![
            Cell::new("one PDU per send, IOPS", Unit::Rate, iops(0)),
            Cell::new("what is ready, IOPS", Unit::Rate, iops(1)),
            Cell::new("i10, IOPS", Unit::Rate, iops(2)),
            Cell::new("i10 / one PDU", Unit::Ratio, ratio(0)),
            Cell::new("i10 / what is ready", Unit::Ratio, ratio(1)),
        ],
    })
}

fn reads(outcome: &StageOutcome) -> Latencies {
    let mut all = Latencies::new();
    outcome.clones.iter().for_each(|clone| all.merge(&clone.read));
    all
}

fn missed(outcome: &StageOutcome) -> u64 {
    outcome.clones.iter().map(|clone| clone.missed).sum()
}

fn iops(outcome: &StageOutcome) -> f64 {
    let of = |clone: &crate::engine::CloneOutcome| {
        clone.read.count() as f64 / clone.measured.as_secs_f64()
    };
    outcome.clones.iter().map(of).sum()
}

/// Median over the rounds.
fn over(rounds: &[Round<StageOutcome>], way: usize, what: fn(&Latencies) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|round| what(&reads(&round.runs[way]))).collect();
    values.sort_by(f64::total_cmp);
    median(&values)
}

fn p99(rounds: &[Round<StageOutcome>], way: usize) -> f64 {
    over(rounds, way, |latencies| latencies.percentile_ns(99.0) as f64)
}

fn mean(rounds: &[Round<StageOutcome>], way: usize) -> f64 {
    over(rounds, way, Latencies::mean_ns)
}
