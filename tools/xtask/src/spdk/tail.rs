//! `cargo xtask spdk --tail`: how long the slowest commands take at a load that both targets bear.
//!
//! Commands fall due at a fixed rate, and their time counts from then (an open loop), so a target
//! that stops for a while is charged with all that waited. Our host asks all of them.

use anyhow::{Context, Result};

use super::point::{Host, Pair, Point, Target};
use super::report::{Setting, Spread, head, row};
use super::{Bench, program::Tail};

/// Our target with either kind of memory, and SPDK's.
const TARGETS: [Target; 3] = [Target::Raceline, Target::RacelineHuge, Target::SpdkTuned];
/// The place of SPDK's in it.
const THEIRS: usize = 2;
/// Part of the highest rate of the slowest target that is asked for, in percent.
const LOAD_PERCENT: f64 = 70.0;

/// One repetition: what was asked for, and what came of it with each of [`TARGETS`].
struct Repetition {
    commands_per_s: u32,
    tails: Vec<Tail>,
}

/// Measures and prints; false when a run was disturbed and no quiet one could be had.
pub(super) fn run(bench: &mut Bench<'_>, setting: &Setting, points: &[Point]) -> Result<bool> {
    let mut text = setting.introduction("targets under our host");
    let names = TARGETS.map(Target::name);
    let medians = names.map(|name| format!("{name}: P50 us"));
    let tails = names.map(|name| format!("{name}: P99.9 us"));
    let ratios = names[..THEIRS].iter().map(|name| format!("P99.9 {name} / {}", names[THEIRS]));
    let titles: Vec<String> = ["thousand commands per s".to_owned()]
        .into_iter()
        .chain(medians)
        .chain(tails)
        .chain(ratios)
        .chain(["disturbed".to_owned()])
        .collect();
    head(&mut text, "open loop", titles.iter().map(String::as_str));
    let mut disturbed = 0;
    for point in points {
        let mut repetitions = Vec::new();
        let before = disturbed;
        for _ in 0..setting.repetitions {
            let found = repetition(bench, *point, &mut disturbed);
            repetitions.push(found.with_context(|| point.to_string())?);
        }
        let cells = cells(&repetitions);
        eprintln!("{point}: {}", cells.join(", "));
        row(
            &mut text,
            &point.to_string(),
            cells.into_iter().chain([(disturbed - before).to_string()]),
        );
    }
    print!("{text}");
    Ok(disturbed == 0)
}

fn repetition(bench: &mut Bench<'_>, point: Point, disturbed: &mut usize) -> Result<Repetition> {
    let mut wall = f64::INFINITY;
    for target in TARGETS {
        let (run, _) = bench.quiet_run(Pair { host: Host::Raceline, target }, point)?;
        *disturbed += usize::from(run.disturbance.is_too_much());
        wall = wall.min(run.iops);
    }
    // A rate is far below 2^32 and above 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let commands_per_s = (wall * LOAD_PERCENT / 100.0).max(1.0) as u32;
    let mut tails = Vec::new();
    for target in TARGETS {
        let (tail, disturbance, _) = bench.quiet(target, |programs, target, seconds| {
            programs.run_paced(target, point, seconds, commands_per_s)
        })?;
        *disturbed += usize::from(disturbance.is_too_much());
        tails.push(tail);
    }
    Ok(Repetition { commands_per_s, tails })
}

/// The cells of a point's line but the last.
fn cells(repetitions: &[Repetition]) -> Vec<String> {
    let cell = |digits: usize, value: &dyn Fn(&Repetition) -> f64| {
        let Spread { median, low, high } = Spread::of(repetitions.iter().map(value));
        format!("{median:.digits$} ({low:.digits$} - {high:.digits$})")
    };
    let mut cells = vec![cell(0, &|repetition| f64::from(repetition.commands_per_s) / 1000.0)];
    let of = 0..TARGETS.len();
    cells.extend(of.clone().map(|at| cell(0, &|repetition| repetition.tails[at].p50_us)));
    cells.extend(of.map(|at| cell(0, &|repetition| repetition.tails[at].p999_us)));
    let ratio =
        |at: usize, found: &Repetition| found.tails[at].p999_us / found.tails[THEIRS].p999_us;
    cells.extend((0..THEIRS).map(|at| cell(2, &|repetition| ratio(at, repetition))));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_our_slowest_over_theirs() {
        let tail = |p999_us| Tail { p50_us: 1.0, p999_us };
        let repetition =
            Repetition { commands_per_s: 7000, tails: vec![tail(30.0), tail(10.0), tail(20.0)] };
        let cells = cells(&[repetition]);
        assert_eq!(cells.len(), 1 + 2 * TARGETS.len() + THEIRS);
        assert_eq!(cells[0], "7 (7 - 7)");
        assert_eq!(
            cells[4..],
            [
                "30 (30 - 30)",
                "10 (10 - 10)",
                "20 (20 - 20)",
                "1.50 (1.50 - 1.50)",
                "0.50 (0.50 - 0.50)"
            ]
        );
    }
}
