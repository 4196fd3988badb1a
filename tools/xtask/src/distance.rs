//! How far the cores of target and host are apart, by `raceline bench distance` of the release build.
//!
//! A hypervisor may move a guest's core to another physical core. Then all work that two cores do
//! together takes longer or shorter, while no counter in the guest shows it. Only the release build
//! knows which distance is near and how long to wait; this program, which is built without
//! optimisation, asks it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::quiet::Disturbance;
use crate::raceline::Tree;

/// The cores of target and host in all measurements of both.
const CORES: &str = "0,1";
/// How long the shortest distance so far holds for later runs of this program: the virtual machine may
/// have been moved to other hardware since.
const LEAST_HOLDS: Duration = Duration::from_secs(3600);
/// The file that keeps it, below the folder of build results.
const LEAST_FILE: &str = "xtask/core-distance-ns";

/// The cores of target and host. No process of ours may spin on them during a look.
pub(crate) struct Cores<'a> {
    tree: &'a Tree,
    /// Looks, but never waits.
    noisy: bool,
    known: Cell<Known>,
}

/// The state of the known distance.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    least_ns: Option<u64>,
    near_max_ns: Option<u64>,
    /// The last wait ended without near cores, and they have not been near since.
    in_vain: bool,
}

/// The answer of the release build to a look, or to the last look of a wait.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Look {
    round_trip_ns: u64,
    /// The shortest round trip ever seen, also in earlier looks, and the longest that counts as near it.
    least_ns: u64,
    near_max_ns: u64,
    optimised: bool,
}

impl<'a> Cores<'a> {
    /// Starts with the shortest round trip that was seen within the last hour.
    pub(crate) fn new(tree: &'a Tree, noisy: bool) -> Self {
        let known = Known { least_ns: kept_least(&least_file(tree)), ..Known::default() };
        Self { tree, noisy, known: Cell::new(known) }
    }

    /// The shortest round trip of a cache line so far, in nanoseconds.
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
        let core_round_trip_ns = before.max(self.look(false));
        let apart = self.known.get().is_far(core_round_trip_ns);
        Ok((value, Disturbance { core_round_trip_ns, apart, ..found }))
    }

    /// Looks until the cores are near, for as long as the release build waits. After a wait in vain it looks
    /// only once, until the cores have been near again. Gives the last look.
    pub(crate) fn wait(&self) -> Option<u64> {
        let found = self.look(!self.noisy && !self.known.get().in_vain);
        let mut known = self.known.get();
        known.in_vain = known.is_far(found);
        self.known.set(known);
        if let Some(found) = found.filter(|_| known.in_vain && !self.noisy) {
            eprintln!("cores {CORES} are {found} ns apart, and have been nearer");
        }
        found
    }

    /// `None` when the cores do not answer: then other disturbances will show.
    fn look(&self, wait: bool) -> Option<u64> {
        let mut known = self.known.get();
        let look = ask(self.tree, wait, known.least_ns);
        let look = look.inspect_err(|error| eprintln!("no distance: {error:#}")).ok()?;
        if known.note(&look) {
            // A run that cannot keep it only waits once more the next time.
            let _ = keep_least(&least_file(self.tree), look.least_ns);
        }
        self.known.set(known);
        Some(look.round_trip_ns)
    }
}

/// Takes about ten milliseconds with the start of the program, or until the cores are near.
fn ask(tree: &Tree, wait: bool, least_ns: Option<u64>) -> Result<Look> {
    let how = if wait { "--wait" } else { "--once" };
    let mut task = tree.raceline(["bench", "distance", "--cores", CORES, how, "-o", "json"])?;
    if let Some(least_ns) = least_ns {
        task = task.args(["--least", &least_ns.to_string()]);
    }
    Look::parse(&task.check()?.stdout)
}

fn least_file(tree: &Tree) -> PathBuf {
    tree.target.join(LEAST_FILE)
}

/// The shortest round trip that another run of this program has seen within the last hour.
fn kept_least(file: &Path) -> Option<u64> {
    let age = std::fs::metadata(file).ok()?.modified().ok()?.elapsed().ok()?;
    let least_ns: u64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (age <= LEAST_HOLDS && least_ns > 0).then_some(least_ns)
}

fn keep_least(file: &Path, least_ns: u64) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(file, least_ns.to_string())
}

impl Look {
    /// Reads the list of one pair. Refuses results of a build without optimisation.
    fn parse(json: &str) -> Result<Self> {
        let [look]: [Self; 1] = serde_json::from_str(json).context("raceline bench distance")?;
        ensure!(
            look.optimised,
            "this raceline was built without optimisation: its distances are not those of a release build"
        );
        Ok(look)
    }
}

impl Known {
    /// Whether there is a new shortest round trip.
    fn note(&mut self, look: &Look) -> bool {
        self.near_max_ns = Some(look.near_max_ns);
        self.least_ns.replace(look.least_ns) != Some(look.least_ns)
    }

    fn is_far(&self, found_ns: Option<u64>) -> bool {
        self.near_max_ns.zip(found_ns).is_some_and(|(near_max, found)| found > near_max)
    }
}

/// Says how far the cores are apart, for lists of facts.
pub(crate) fn fact(round_trip_ns: u64) -> String {
    format!("the cores {round_trip_ns} ns apart (a cache line there and back)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(round_trip_ns: u64, near_max_ns: u64, optimised: bool) -> Result<Look> {
        let pair = serde_json::json!([{
            "cores": [0, 1], "round_trip_ns": round_trip_ns, "most_ns": round_trip_ns,
            "least_ns": near_max_ns / 2, "near_max_ns": near_max_ns, "optimised": optimised,
        }]);
        Look::parse(&pair.to_string())
    }

    #[test]
    fn only_an_optimised_build_is_believed() {
        assert_eq!(answer(60, 120, true).unwrap().round_trip_ns, 60);
        let error = answer(360, 720, false).unwrap_err().to_string();
        assert!(error.contains("built without optimisation"), "{error}");
        assert!(Look::parse("[]").is_err() && Look::parse("[{\"round_trip_ns\": 60}]").is_err());
    }

    #[test]
    fn what_is_far_the_answer_says() {
        let mut known = Known::default();
        assert!(!known.is_far(Some(900)));
        assert!(known.note(&answer(60, 120, true).unwrap()));
        assert!(!known.note(&answer(310, 120, true).unwrap()));
        assert_eq!(known.least_ns, Some(60));
        assert!(known.is_far(Some(121)) && !known.is_far(Some(120)) && !known.is_far(None));
        assert_eq!(fact(60), "the cores 60 ns apart (a cache line there and back)");
    }

    #[test]
    fn the_least_is_kept_for_an_hour() {
        let file = std::env::temp_dir().join(format!("xtask-distance-{}", std::process::id()));
        assert_eq!(kept_least(&file), None);
        keep_least(&file, 57).unwrap();
        assert_eq!(kept_least(&file), Some(57));
        let old = std::time::SystemTime::now() - 2 * LEAST_HOLDS;
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        assert_eq!(kept_least(&file), None);
        std::fs::write(&file, "near").unwrap();
        assert_eq!(kept_least(&file), None);
        std::fs::remove_file(&file).unwrap();
    }
}
