//! What counting a request for metrics costs: `cargo run --release -p raceline-bdev --example count`.
//!
//! It times the two ways in which a core counts a request, and counts allocations meanwhile. The cost of the loop itself is
//! measured in turn with both, and taken away. It ends with 1 if a bar is missed: 3 ns for a request, no allocation.

#[path = "../../reactor/tests/common/counting.rs"]
mod counting;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use counting::ALLOCATIONS;
use raceline_bdev::{DeviceStats, OpKind};

const REQUESTS: u32 = 10_000_000;
const ROUNDS: usize = 7;
const BYTES: u64 = 4096;
const NS_MAX: f64 = 3.0;

/// Nanoseconds of each of many calls.
fn each(mut call: impl FnMut(u32)) -> f64 {
    let began = Instant::now();
    (0..REQUESTS).for_each(|number| call(black_box(number)));
    began.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS)
}

fn main() -> ExitCode {
    let stats = Arc::new(DeviceStats::default());
    let mut meter = stats.meter();
    let started = Instant::now();
    let ended = started + Duration::from_micros(20);
    let kind = |number: u32| if number.is_multiple_of(4) { OpKind::Write } else { OpKind::Read };
    let mut rounds = [const { Vec::new() }; 2];
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let mut own = 0;
    for _ in 0..ROUNDS {
        let empty = each(|number| {
            black_box((kind(number), BYTES));
        });
        let at_once = each(|number| {
            if !meter.is_precise() {
                meter.tick(black_box(kind(number)), black_box(BYTES));
            }
        });
        let later = each(|number| {
            let times = (meter.start(black_box(started)), black_box(ended));
            meter.finish(black_box(kind(number)), black_box(BYTES), times, Ok(()));
        });
        let grown = ALLOCATIONS.load(Ordering::Relaxed);
        for (all, found) in rounds.iter_mut().zip([at_once, later]) {
            all.push(found - empty);
        }
        own += ALLOCATIONS.load(Ordering::Relaxed) - grown;
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before - own;
    let counted: u64 =
        [OpKind::Read, OpKind::Write].iter().map(|kind| stats.ever().of(*kind).operations).sum();
    println!("{counted} requests counted, {allocations} allocations");
    let names = ["complete in the turn in which it came", "complete in a later turn"];
    let mut good = allocations == 0;
    for (name, all) in names.iter().zip(&mut rounds) {
        all.sort_by(f64::total_cmp);
        let (least, median, most) = (all[0], all[ROUNDS / 2], all[ROUNDS - 1]);
        println!("{name}: {median:.2} ({least:.2} - {most:.2}) ns a request (bar: {NS_MAX})");
        good &= median <= NS_MAX;
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
