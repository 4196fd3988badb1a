//! The first command after silence: Raceline's and the blocking limit's, in turn.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::blocking::Blocking;
use super::{Host, MEMORY_BYTES};
use crate::bench::simple::{BLOCK_BYTES, Queue, READ_BYTES};

/// Pause before each command.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// How many times each of the four is measured.
pub(super) const ROUNDS: usize = 100;

/// Latencies of one kind of command, in microseconds, each beside one of the limit.
pub(super) struct Pairs {
    pub(super) ours_us: Vec<f64>,
    pub(super) limit_us: Vec<f64>,
}

/// Pairs of a connection that is used repeatedly, and of a different connection each time, which has
/// been silent since it connected.
pub(super) struct Firsts {
    pub(super) same: Pairs,
    pub(super) other: Pairs,
}

/// The quartiles of some values.
pub(super) struct Quartiles {
    lower: f64,
    pub(super) median: f64,
    upper: f64,
}

impl Quartiles {
    /// The quartiles of at least one value.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarters: usize| values[(values.len() - 1) * quarters / 4];
        Self { lower: at(1), median: at(2), upper: at(3) }
    }

    /// For `--json`.
    pub(super) fn json(&self) -> Value {
        json!({ "lower": self.lower, "median": self.median, "upper": self.upper })
    }
}

impl fmt::Display for Quartiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ({:.1} - {:.1})", self.median, self.lower, self.upper)
    }
}

impl Pairs {
    fn new() -> Self {
        Self { ours_us: Vec::with_capacity(ROUNDS), limit_us: Vec::with_capacity(ROUNDS) }
    }

    /// How much later Raceline answers than the limit beside it.
    pub(super) fn later_us(&self) -> Quartiles {
        let pairs = self.ours_us.iter().zip(&self.limit_us);
        Quartiles::of(pairs.map(|(ours, limit)| ours - limit).collect())
    }
}

/// Measures all in turn: each comes once in a round, and in the opposite order in the next round,
/// so that none gains by the one before it.
pub(super) fn measure(host: &mut Host, limit: &mut Blocking) -> Result<Firsts> {
    let mut places = Places(1);
    let mut firsts = Firsts { same: Pairs::new(), other: Pairs::new() };
    let spacing = (host.queues.len() - 1) / ROUNDS;
    for round in 0..ROUNDS {
        let mut kinds = [0, 1, 2, 3];
        if round % 2 == 1 {
            kinds.reverse();
        }
        for kind in kinds {
            host.keep_alive()?;
            let (queue, times) = match kind {
                0 => (&mut host.queues[0], &mut firsts.same.ours_us),
                1 => (&mut limit.queues[0], &mut firsts.same.limit_us),
                2 => (&mut host.queues[1 + round * spacing], &mut firsts.other.ours_us),
                _ => (&mut limit.queues[1 + round], &mut firsts.other.limit_us),
            };
            times.push(first_us(queue, places.next())?);
        }
    }
    Ok(firsts)
}

/// The latency of a read after a pause.
fn first_us(queue: &mut Queue, block: u64) -> Result<f64> {
    thread::sleep(PAUSE);
    let started = Instant::now();
    queue.read(block)?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

/// Random places to read: the first block of some 4 KiB.
struct Places(u64);

impl Places {
    fn next(&mut self) -> u64 {
        // Knuth's multiplier (MMIX); the upper bits are the random ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let reads = MEMORY_BYTES as u64 / u64::from(READ_BYTES);
        (self.0 >> 33) % reads * u64::from(READ_BYTES / BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_subtracted_before_they_are_sorted() {
        let pairs = Pairs { ours_us: vec![10.0, 200.0, 35.0], limit_us: vec![9.0, 198.0, 30.0] };
        let later = pairs.later_us();
        assert_eq!((later.lower, later.median, later.upper), (1.0, 2.0, 2.0));
    }

    #[test]
    fn places_are_within_the_namespace() {
        let mut places = Places(1);
        let end = MEMORY_BYTES as u64 / u64::from(BLOCK_BYTES);
        let all: Vec<u64> = (0..1000).map(|_| places.next()).collect();
        assert!(all.iter().all(|block| block % 8 == 0 && block + 8 <= end));
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
