//! What things cost on this machine: measurements of a fraction of a second each, which change nothing.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::getppid;
use serde::Serialize;

use crate::reading::Reading;
use crate::system::System;

/// How often something short is done to find its time: some 10 ms.
const CALLS: u32 = 50_000;
/// Such a loop is done several times, and the fastest counts: the others were interrupted.
const ROUNDS: usize = 5;
/// How often a sleeping thread is woken.
const WAKE_UPS: usize = 150;
/// How long it sleeps before: long enough for the deepest state.
const ASLEEP: Duration = Duration::from_millis(2);
/// For how long other programs are watched.
const WATCH: Duration = Duration::from_millis(500);

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// The shortest system call, in nanoseconds.
    pub system_call_ns: f64,
    /// Reading the clock, in nanoseconds.
    pub clock_ns: f64,
    /// From waking up a thread whose core may have slept until it runs, median in microseconds.
    pub wake_up_us: f64,
    /// The same, as one of a hundred takes.
    pub wake_up_p99_us: f64,
    /// Time in which CPUs worked, in percent of all CPUs, while this program slept.
    pub busy_percent: Reading<f64>,
    /// Time that the hypervisor gave to others meanwhile, in percent of all CPUs.
    pub stolen_percent: Reading<f64>,
}

impl Costs {
    /// Measures this machine. It takes about a second and a half.
    #[must_use]
    pub fn measure() -> Self {
        let system = System::here();
        let before = ticks(&system);
        std::thread::sleep(WATCH);
        let after = ticks(&system);
        let share = |part: fn(&Ticks) -> u64| {
            before.clone().then(|before| after.clone().map(|after| percent(&before, &after, part)))
        };
        let mut wake_ups = wake_ups();
        wake_ups.sort_unstable();
        let at = |share: usize| {
            let place = (wake_ups.len() * share / 100).min(wake_ups.len().saturating_sub(1));
            wake_ups.get(place).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Self {
            busy_percent: share(|ticks| ticks.busy),
            stolen_percent: share(|ticks| ticks.stolen),
            system_call_ns: fastest(|| {
                black_box(getppid());
            }),
            clock_ns: fastest(|| {
                black_box(Instant::now());
            }),
            wake_up_us: at(50),
            wake_up_p99_us: at(99),
        }
    }
}

/// The time of one call in nanoseconds.
fn fastest(call: impl Fn()) -> f64 {
    let round = |_| {
        let started = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// A thread that has slept is woken, and says how long it took.
fn wake_ups() -> Vec<Duration> {
    let (wake, woken) = mpsc::channel::<Instant>();
    let thread = std::thread::spawn(move || {
        woken.iter().map(|sent| sent.elapsed()).collect::<Vec<Duration>>()
    });
    for _ in 0..WAKE_UPS {
        std::thread::sleep(ASLEEP);
        // The thread ends only after the channel.
        let _ = wake.send(Instant::now());
    }
    drop(wake);
    thread.join().unwrap_or_default()
}

/// Time of all CPUs since the start, in ticks.
#[derive(Clone)]
struct Ticks {
    total: u64,
    busy: u64,
    stolen: u64,
}

/// The columns are user, nice, system, idle, iowait, irq, softirq and steal.
fn ticks(system: &System) -> Reading<Ticks> {
    system.text("/proc/stat").then(|text| {
        let line = text.lines().next().unwrap_or_default();
        let columns: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        match *columns.as_slice() {
            [user, nice, kernel, idle, wait, hard, soft, stolen] => {
                let busy = user + nice + kernel + hard + soft;
                Reading::Read(Ticks { total: busy + idle + wait + stolen, busy, stolen })
            }
            _ => Reading::unread("the first line of /proc/stat has no eight numbers"),
        }
    })
}

fn percent(before: &Ticks, after: &Ticks, part: fn(&Ticks) -> u64) -> f64 {
    let difference = |of: fn(&Ticks) -> u64| {
        u32::try_from(of(after).saturating_sub(of(before))).map_or(f64::MAX, f64::from)
    };
    100.0 * difference(part) / difference(|ticks| ticks.total).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_plausible_and_found_in_time() {
        let started = Instant::now();
        let costs = Costs::measure();
        assert!(started.elapsed() < Duration::from_secs(20), "{costs:?}");
        // No system call takes less than the instructions that enter and leave the kernel.
        assert!(costs.system_call_ns > 5.0 && costs.clock_ns > 1.0, "{costs:?}");
        assert!(costs.wake_up_us > 0.0 && costs.wake_up_us <= costs.wake_up_p99_us, "{costs:?}");
        let share = costs.busy_percent.get().unwrap();
        assert!((0.0..=100.0).contains(&share), "{costs:?}");
    }

    #[test]
    fn shares_are_of_all_time() {
        let before = Ticks { total: 1000, busy: 100, stolen: 10 };
        let after = Ticks { total: 1200, busy: 150, stolen: 12 };
        assert!((percent(&before, &after, |ticks| ticks.busy) - 25.0).abs() < 1e-9);
        assert!((percent(&before, &after, |ticks| ticks.stolen) - 1.0).abs() < 1e-9);
    }
}
