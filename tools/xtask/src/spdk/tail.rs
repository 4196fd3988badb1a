//! `cargo xtask spdk --tail`: latencies of the slowest commands at a load that both targets bear.
//!
//! Commands fall due at a fixed rate, and their time counts from then (an open loop), so a target
//! that pauses is charged for all commands that waited. Raceline's host sends all of them.
//!
//! On a machine that takes a core away for milliseconds, a few times per second, these pauses decide the
//! P99.9 of every long run. Short windows, one target after the other many times, avoid that: the median
//! of their P99.9 shows a target without such pauses. Pauses of a target that are rarer
//! than one in every second window show only in the long runs.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::point::{Host, Pair, Point, Target};
use super::report::{Setting, Spread, head, row};
use super::{Bench, Format, program::Tail};

/// Raceline's target with either kind of memory, and SPDK's.
const TARGETS: [Target; 3] = [Target::Raceline, Target::RacelineHuge, Target::SpdkTuned];
/// The index of SPDK's target in it.
const THEIRS: usize = 2;
/// The offered load, in percent of the highest rate of the slowest target.
const LOAD_PERCENT: f64 = 70.0;
/// Windows of one repetition, per target.
const WINDOWS: usize = 21;
/// Ramp and length of each.
const WINDOW: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(100));

/// The whole report, for `-o json`.
#[derive(Serialize)]
struct Report {
    setting: Setting,
    /// The order of the lists in a repetition.
    targets: [Target; 3],
    tails: Vec<PointTails>,
}

/// The results at one point.
#[derive(Serialize)]
struct PointTails {
    name: String,
    point: Point,
    repetitions: Vec<Repetition>,
    /// Runs that count although they were disturbed.
    disturbed: usize,
}

/// One repetition: the offered load, and the results of each of [`TARGETS`].
#[derive(Serialize)]
struct Repetition {
    commands_per_s: u32,
    tails: Vec<Tail>,
    /// The medians of P99.9 in the windows, in us.
    in_windows: Vec<f64>,
}

/// Measures and prints; false when a run was disturbed and all its repetitions were, too.
pub(super) fn run(
    bench: &mut Bench<'_>,
    setting: Setting,
    points: &[Point],
    format: Format,
) -> Result<bool> {
    let mut tails = Vec::new();
    for &point in points {
        let (mut repetitions, mut disturbed) = (Vec::new(), 0);
        for _ in 0..setting.repetitions {
            let found = repetition(bench, point, &mut disturbed);
            repetitions.push(found.with_context(|| point.to_string())?);
        }
        eprintln!("{point}: {}", cells(&repetitions).join(", "));
        tails.push(PointTails { name: point.to_string(), point, repetitions, disturbed });
    }
    let report = Report { setting, targets: TARGETS, tails };
    match format {
        Format::Markdown => print!("{}", report.markdown()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(report.tails.iter().all(|point| point.disturbed == 0))
}

impl Report {
    /// The table.
    fn markdown(&self) -> String {
        let mut text = self.setting.introduction("targets under our host");
        let names = TARGETS.map(Target::name);
        let medians = names.map(|name| format!("{name}: P50 us"));
        let tails = |prefix: &str| {
            let prefix = prefix.to_owned();
            let own = names.map(|name| format!("{prefix}{name}: P99.9 us")).into_iter();
            let ratio = |&name: &&str| format!("{prefix}P99.9 {name} / {}", names[THEIRS]);
            own.chain(names[..THEIRS].iter().map(ratio).collect::<Vec<_>>())
        };
        let titles: Vec<String> = ["thousand commands per s".to_owned()]
            .into_iter()
            .chain(medians)
            .chain(tails(""))
            .chain(tails("windows: "))
            .chain(["disturbed".to_owned()])
            .collect();
        head(&mut text, "open loop", titles.iter().map(String::as_str));
        for point in &self.tails {
            let disturbed = point.disturbed.to_string();
            row(&mut text, &point.name, cells(&point.repetitions).into_iter().chain([disturbed]));
        }
        text
    }
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
    let mut paced = |target: Target, window: Option<(Duration, Duration)>| {
        let (tail, disturbance, _) = bench.quiet(target, |programs, target, seconds| {
            let long = Duration::from_secs(seconds.into());
            programs.run_paced(target, point, window.unwrap_or((long, long)), commands_per_s)
        })?;
        *disturbed += usize::from(disturbance.is_too_much());
        anyhow::Ok(tail)
    };
    let tails: Vec<Tail> =
        TARGETS.iter().map(|&target| paced(target, None)).collect::<Result<_>>()?;
    let mut windows = TARGETS.map(|_| Vec::with_capacity(WINDOWS));
    for window in 0..WINDOWS {
        // Each target comes first, second and last equally often.
        for place in 0..TARGETS.len() {
            let at = (window + place) % TARGETS.len();
            windows[at].push(paced(TARGETS[at], Some(WINDOW))?.p999_us);
        }
    }
    let in_windows = windows.map(|found| Spread::of(found.into_iter()).median).into();
    Ok(Repetition { commands_per_s, tails, in_windows })
}

/// The cells of a point's line, except the last.
fn cells(repetitions: &[Repetition]) -> Vec<String> {
    let cell = |digits: usize, value: &dyn Fn(&Repetition) -> f64| {
        let Spread { median, low, high } = Spread::of(repetitions.iter().map(value));
        format!("{median:.digits$} ({low:.digits$} - {high:.digits$})")
    };
    let mut cells = vec![cell(0, &|repetition| f64::from(repetition.commands_per_s) / 1000.0)];
    let of = 0..TARGETS.len();
    cells.extend(of.clone().map(|at| cell(0, &|repetition| repetition.tails[at].p50_us)));
    let long = |found: &Repetition, at: usize| found.tails[at].p999_us;
    let windows = |found: &Repetition, at: usize| found.in_windows[at];
    for p999_us in [&long as &dyn Fn(&Repetition, usize) -> f64, &windows] {
        cells.extend(of.clone().map(|at| cell(0, &|found| p999_us(found, at))));
        let ratio = |at: usize, found: &Repetition| p999_us(found, at) / p999_us(found, THEIRS);
        cells.extend((0..THEIRS).map(|at| cell(2, &|found| ratio(at, found))));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_our_slowest_over_theirs() {
        let tail = |p999_us| Tail { p50_us: 1.0, p999_us };
        let repetition = Repetition {
            commands_per_s: 7000,
            tails: vec![tail(30.0), tail(10.0), tail(20.0)],
            in_windows: vec![6.0, 5.0, 4.0],
        };
        let cells = cells(&[repetition]);
        assert_eq!(cells.len(), 1 + TARGETS.len() + 2 * (TARGETS.len() + THEIRS));
        assert_eq!(cells[0], "7 (7 - 7)");
        assert_eq!(
            cells[4..9],
            [
                "30 (30 - 30)",
                "10 (10 - 10)",
                "20 (20 - 20)",
                "1.50 (1.50 - 1.50)",
                "0.50 (0.50 - 0.50)"
            ]
        );
        assert_eq!(cells[9], "6 (6 - 6)");
        assert_eq!(cells[12..], ["1.50 (1.50 - 1.50)", "1.25 (1.25 - 1.25)"]);
    }
}
