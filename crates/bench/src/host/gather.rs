//! One connection on one core that sends one PDU at a time, all that are ready, or as i10 gathers them.
//!
//! The wall of a way is the highest rate of 4 KiB reads, in an open loop, at which a latency stays below
//! twice its value at a low rate in the same round: P99 in the quietest of the rounds, and P90 in the
//! median of them. A disturbance of the machine only ever adds to a latency. If each stall of a core takes
//! some milliseconds, P99 of most rounds is such a stall at any rate. The closed loops show whether
//! gathering costs throughput at any size.

use super::bed::{Bed, Way};
use super::report::{Cell, Row, Section, Unit};
use super::{HostBenchError, Round};
use crate::histogram::Latencies;
use crate::limit::report::median;
use crate::runner::StageOutcome;
use crate::runner::stage::JobSpec;

const IO_BYTES: u32 = 4096;
/// Most commands in flight in the open loop: enough that the rate is the limit.
const OPEN_DEPTH: u16 = 127;
/// Commands in flight in the closed loop.
const CLOSED_DEPTH: u16 = 32;
/// Sizes of the closed loop.
const SIZES: [u32; 5] = [512, 4096, 16 << 10, 64 << 10, 128 << 10];
/// The low rate: commands are alone, and numerous enough for a percentile.
const LOW_RATE: u64 = 10_000;
/// The first rate that may be a wall, and the increase to each next rate, in percent; below, the distance
/// of the rates between a wall and the next rate, in percent of the wall.
const FIRST_RATE: u64 = 60_000;
const RATE_STEP_PERCENT: u64 = 40;
const FINE_STEP_PERCENT: usize = 10;
/// Higher rates are not tried.
const RATE_MAX: u64 = 2_000_000;
/// Rates in a row, kept by no way in any round, that end the search: one may be the machine's fault.
const UNKEPT_RATES: usize = 2;
/// Bound on a latency, as a multiple of its value at the low rate.
const LATENCY_FACTOR: f64 = 2.0;
/// Commands that were due in a run and not issued before its end, in percent: the last moments of a run
/// always leave some, and a rate that is not kept leaves more all the time.
const MISSED_PERCENT_MAX: u64 = 1;
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

/// The latency that defines a wall.
#[derive(Clone, Copy)]
struct Criterion {
    name: &'static str,
    percentile: f64,
    /// Combines the values of the rounds.
    over: fn(Vec<f64>) -> f64,
}

const CRITERIA: [Criterion; 2] = [
    Criterion { name: "P99, quietest round", percentile: 99.0, over: least },
    Criterion { name: "P90, median", percentile: 90.0, over: middle },
];

/// The highest rate that a way has passed. Rates above and below are tried all the same, because a
/// disturbance can fail a rate but never pass one.
#[derive(Clone, Copy, Default)]
struct Wall {
    rate: u64,
    factor: f64,
}

impl Wall {
    /// `None` if not even the first rate passed.
    fn found(self) -> Option<Self> {
        (self.rate > 0).then_some(self)
    }

    /// `factor` is the latency at this rate relative to that at the low rate.
    fn try_rate(&mut self, rate: u64, factor: f64) {
        if factor < LATENCY_FACTOR && rate > self.rate {
            *self = Self { rate, factor };
        }
    }
}

/// The walls of all ways by each criterion.
type Walls = [[Wall; NAMES.len()]; CRITERIA.len()];

/// Finds the walls of all ways, side by side at rising rates, each beside the low rate: a change of the
/// machine's speed affects both. Then tries the rates above each wall by P99, up to the highest one tried.
fn walls(bed: &Bed<'_>) -> Result<Vec<Row>, HostBenchError> {
    let mut walls = Walls::default();
    let mut rate = FIRST_RATE;
    let mut unkept = 0;
    while rate <= RATE_MAX && unkept < UNKEPT_RATES {
        unkept = if try_rate(bed, rate, &mut walls)? { 0 } else { unkept + 1 };
        rate += rate * RATE_STEP_PERCENT / 100;
    }
    let mut between: Vec<u64> = walls[0].iter().flat_map(|wall| rates_above(wall.rate)).collect();
    between.sort_unstable();
    between.dedup();
    for rate in between {
        try_rate(bed, rate, &mut walls)?;
    }
    let rows = CRITERIA.iter().zip(&walls).flat_map(|(criterion, walls)| {
        walls.iter().zip(NAMES).map(|(wall, way)| Row {
            label: format!("wall of 4 KiB reads by {}: {way}", criterion.name),
            cells: vec![
                Cell::new("wall IOPS", Unit::Rate, wall.found().map(|wall| wall.rate as f64)),
                Cell::new(
                    "latency there / at a low rate",
                    Unit::Ratio,
                    wall.found().map(|wall| wall.factor),
                ),
                Cell::new("i10 / this", Unit::Ratio, [walls[2].rate as f64 / wall.rate as f64]),
            ],
        })
    });
    Ok(rows.collect())
}

/// Tries a rate with all ways; gives whether any of them kept it.
fn try_rate(bed: &Bed<'_>, rate: u64, walls: &mut Walls) -> Result<bool, HostBenchError> {
    let at = |rate| JobSpec { rate_iops: Some(rate), ..JobSpec::new(IO_BYTES, OPEN_DEPTH) };
    let [low, high] = [LOW_RATE, rate].map(|rate| ways(bed, &at(rate)));
    let both: Vec<Way> = low.into_iter().chain(high).collect();
    let rounds = bed.rounds(&both)?;
    for (criterion, walls) in CRITERIA.into_iter().zip(walls) {
        for (way, wall) in walls.iter_mut().enumerate() {
            wall.try_rate(rate, factor(&rounds, way, criterion));
        }
    }
    Ok(rounds.iter().flat_map(|round| &round.runs[NAMES.len()..]).any(keeps))
}

/// The rates between a wall and the next rate that was tried; rates below the first one if there is no wall
/// yet.
fn rates_above(wall: u64) -> impl Iterator<Item = u64> {
    let low = if wall == 0 { FIRST_RATE * 100 / (100 + RATE_STEP_PERCENT) } else { wall };
    let percents = (0..RATE_STEP_PERCENT).step_by(FINE_STEP_PERCENT).skip(1);
    percents.map(move |percent| low + low * percent / 100)
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

/// Whether a run kept its rate.
fn keeps(outcome: &StageOutcome) -> bool {
    let missed: u64 = outcome.clones.iter().map(|clone| clone.missed).sum();
    missed * 100 <= reads(outcome).count() * MISSED_PERCENT_MAX
}

fn iops(outcome: &StageOutcome) -> f64 {
    let of = |clone: &crate::runner::CloneOutcome| {
        clone.read.count() as f64 / clone.measured.as_secs_f64()
    };
    outcome.clones.iter().map(of).sum()
}

/// A latency of a way relative to that at the low rate, over the rounds; infinite if the rate was not kept.
fn factor(rounds: &[Round<StageOutcome>], way: usize, criterion: Criterion) -> f64 {
    let of = |round: &Round<StageOutcome>| {
        let (low, high) = (&round.runs[way], &round.runs[NAMES.len() + way]);
        let latency = |run| reads(run).percentile_ns(criterion.percentile) as f64;
        if keeps(high) { latency(high) / latency(low) } else { f64::INFINITY }
    };
    (criterion.over)(rounds.iter().map(of).collect())
}

fn least(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    median(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_rate_that_passes_is_the_wall() {
        let mut wall = Wall::default();
        assert!(wall.found().is_none());
        for (rate, factor) in [(1, 1.5), (2, f64::INFINITY), (3, 1.9), (4, 2.0)] {
            wall.try_rate(rate, factor);
        }
        assert_eq!(wall.rate, 3);
        assert!(wall.factor == 1.9);
    }

    #[test]
    fn a_wall_is_narrowed_down() {
        let above: Vec<u64> = rates_above(100_000).collect();
        assert_eq!(above, [110_000, 120_000, 130_000]);
        let none: Vec<u64> = rates_above(0).collect();
        assert!(none.iter().all(|&rate| rate > FIRST_RATE * 7 / 10 && rate < FIRST_RATE));
    }
}
