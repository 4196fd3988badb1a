//! How far the cores of target and host are apart, as `raceline bench distance` finds.
//!
//! A hypervisor may move what the guest takes for a core, and then everything that two cores do
//! together takes longer or shorter, while nothing that is counted in the guest shows it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::quiet::Disturbance;
use crate::raceline::Tree;

/// Those of target and host, wherever both are measured together.
const CORES: &str = "0,1";
/// Far is more than so many times the least that was seen.
const FAR_FACTOR: u64 = 2;
/// What is above at the first look may get shorter, and is waited for once.
const SURELY_NEAR_NS: u64 = 150;
/// How long to wait for near cores, and how long between two looks.
const PATIENCE: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(200);

/// The cores of target and host, on which nothing of ours may spin during a look.
pub(crate) struct Cores<'a> {
    tree: &'a Tree,
    /// Looks, but never waits.
    noisy: bool,
    known: Cell<Known>,
}

/// What is known of a distance.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    least_ns: Option<u64>,
    /// Whether the first looks are over, so that the least is worth something.
    settled: bool,
    /// The last wait ended without near cores, and they have not been near since.
    in_vain: bool,
}

impl<'a> Cores<'a> {
    /// Nothing is known yet.
    pub(crate) fn new(tree: &'a Tree, noisy: bool) -> Self {
        Self { tree, noisy, known: Cell::default() }
    }

    /// The least round trip of a cache line that was seen so far, in nanoseconds.
    pub(crate) fn least_ns(&self) -> Option<u64> {
        self.known.get().least_ns
    }

    /// Runs when the cores are near, and says how far apart they were at either end.
    pub(crate) fn around<T>(
        &self,
        run: impl FnOnce() -> Result<(T, Disturbance)>,
    ) -> Result<(T, Disturbance)> {
        let before = self.wait();
        let (value, found) = run()?;
        let core_round_trip_ns = before.max(self.look());
        let apart = self.known.get().is_far(core_round_trip_ns);
        Ok((value, Disturbance { core_round_trip_ns, apart, ..found }))
    }

    /// Looks until the cores are near, for at most a minute; after a wait in vain only once, until
    /// they have been near again. The last look.
    pub(crate) fn wait(&self) -> Option<u64> {
        let in_vain = self.known.get().in_vain;
        let patience = if self.noisy || in_vain { Duration::ZERO } else { PATIENCE };
        let deadline = Instant::now() + patience;
        let mut said = false;
        loop {
            let found = self.look()?;
            let mut known = self.known.get();
            let done = known.settles(found, Instant::now() >= deadline);
            self.known.set(known);
            if done {
                return Some(found);
            }
            if !said {
                eprintln!("cores {CORES} are {found} ns apart: waiting for them to be nearer");
                said = true;
            }
            std::thread::sleep(NAP);
        }
    }

    /// Nothing when the cores do not answer: then other disturbances will show.
    fn look(&self) -> Option<u64> {
        let found = ask(self.tree).inspect_err(|error| eprintln!("no distance: {error:#}")).ok()?;
        let mut known = self.known.get();
        known.note(found);
        self.known.set(known);
        Some(found)
    }
}

/// One look, some ten milliseconds with the start of the program.
fn ask(tree: &Tree) -> Result<u64> {
    let words = ["bench", "distance", "--cores", CORES, "--once", "-o", "json"];
    let ended = tree.raceline(words)?.check()?;
    let pairs: Value = serde_json::from_str(&ended.stdout).context("raceline bench distance")?;
    pairs[0]["round_trip_ns"].as_u64().context("no round_trip_ns")
}

impl Known {
    fn note(&mut self, found_ns: u64) {
        self.least_ns = Some(self.least_ns.map_or(found_ns, |least| least.min(found_ns)));
    }

    fn is_far(&self, found_ns: Option<u64>) -> bool {
        let least_and = self.least_ns.zip(found_ns);
        least_and.is_some_and(|(least, found)| found > least * FAR_FACTOR)
    }

    /// Whether a wait is over after this look: near, or the `last` one.
    fn settles(&mut self, found_ns: u64, last: bool) -> bool {
        let usual = self.settled || found_ns <= SURELY_NEAR_NS;
        let far = self.is_far(Some(found_ns));
        let over = last || (usual && !far);
        if over {
            (self.settled, self.in_vain) = (true, far);
        }
        over
    }
}

/// Says how far the cores are apart, for lists of facts.
pub(crate) fn fact(round_trip_ns: u64) -> String {
    format!("the cores {round_trip_ns} ns apart (a cache line there and back)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_near_or_at_their_last_look() {
        let mut known = Known::default();
        let mut look = |found_ns, last| {
            known.note(found_ns);
            (known.settles(found_ns, last), known.in_vain)
        };
        // Who knows whether this is usual?
        assert_eq!(look(300, false), (false, false));
        assert_eq!(look(60, false), (true, false));
        assert_eq!(look(121, false), (false, false));
        assert_eq!(look(300, true), (true, true));
        assert_eq!(look(120, false), (true, false));
        assert!(known.is_far(Some(121)) && !known.is_far(Some(120)) && !known.is_far(None));
    }

    #[test]
    fn what_stays_long_is_usual() {
        let mut known = Known::default();
        known.note(300);
        assert!(known.settles(300, true) && !known.in_vain);
        known.note(310);
        assert!(known.settles(310, false));
        assert_eq!(fact(60), "the cores 60 ns apart (a cache line there and back)");
    }
}
