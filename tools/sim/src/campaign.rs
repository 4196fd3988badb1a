//! Many seeds on all cores: who runs which, how far they are, and what failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::fencing::{self, Fence};
use crate::{DEFAULT_COMMANDS, Plan, Totals, run, shared};

/// How often a long campaign says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// What is run with each seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Scenario {
    /// Hosts with one path each, and every fault but silence.
    OnePath,
    /// Hosts with two paths, which are cut, and which fall silent as if their target were dead.
    TwoPaths,
    /// Writes of a path that was lost, and that are late: after a reset, and after the time that the target advertises.
    LateWrites,
    /// A host of NVMe and sessions of iSCSI on one device, which reserve it, and sessions that are cut.
    BothProtocols,
}

impl Scenario {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnePath => "one-path",
            Self::TwoPaths => "two-paths",
            Self::LateWrites => "late-writes",
            Self::BothProtocols => "both-protocols",
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When the run went wrong; says how, and how to repeat it.
    pub fn run(self, seed: u64, commands: u64) -> Result<Totals, String> {
        let plan = Plan::new(seed, commands);
        let ran = match self {
            Self::OnePath => return run(plan).map_err(|failure| failure.to_string()),
            Self::TwoPaths => run(plan.with_two_paths()).map_err(|failure| failure.to_string()),
            Self::LateWrites => [Fence::Reset, Fence::Silence]
                .into_iter()
                .try_for_each(|fence| {
                    fencing::run(seed, fence).map(drop).map_err(|what| format!("{fence:?}: {what}"))
                })
                .map(|()| Totals::default()),
            Self::BothProtocols => shared::run(seed).map(|_| Totals::default()),
        };
        ran.map_err(|what| format!("{what}\n{}", self.repeat(seed, commands)))
    }

    /// The command that runs it again.
    #[must_use]
    pub fn repeat(self, seed: u64, commands: u64) -> String {
        let mut text = format!("to repeat: cargo xtask sim --seed {seed}");
        let mut separator = " --";
        if self != Self::OnePath {
            text += &format!("{separator} --scenario {}", self.name());
            separator = "";
        }
        if commands != DEFAULT_COMMANDS {
            text += &format!("{separator} --commands {commands}");
        }
        text
    }
}

/// Seeds to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// What is run with each.
    pub scenarios: Vec<Scenario>,
    /// Commands of each run.
    pub commands: u64,
    /// Threads.
    pub jobs: usize,
    /// Begins no further run after this time.
    pub time: Option<Duration>,
    /// Goes on after failures.
    pub keep_going: bool,
}

/// What a campaign has found.
#[derive(Debug, Default)]
pub struct Findings {
    /// The counts of all runs that ended well.
    pub totals: Totals,
    /// Seeds of which all scenarios have ended.
    pub seeds: u64,
    /// Runs that have ended.
    pub runs: u64,
    /// The runs that failed, and how.
    pub failed: Vec<(u64, Scenario, String)>,
}

/// A run that has ended.
struct Ended {
    number: u64,
    seed: u64,
    scenario: Scenario,
    result: Result<Totals, String>,
    took: Duration,
}

impl Campaign {
    /// Runs all. Tells `each` of every run, in the order in which they end, and `say` how far they are.
    ///
    /// The counts are those of one thread, whatever the number of threads.
    pub fn run(
        &self,
        mut each: impl FnMut(u64, Scenario, &Result<Totals, String>, Duration),
        say: impl Fn(&str),
    ) -> Findings {
        let begun = Instant::now();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let scenarios = self.scenarios.len().max(1) as u64;
        let all = self.seeds.saturating_mul(scenarios);
        let is_late = || self.time.is_some_and(|time| begun.elapsed() >= time);
        let mut findings = Findings::default();
        std::thread::scope(|scope| {
            let (sender, ended) = channel();
            for _ in 0..self.jobs.max(1) {
                let sender = sender.clone();
                let (next, stop) = (&next, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) && !is_late() {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(ended) = self.run_one(number, all) else { return };
                        if sender.send(ended).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut said = begun;
            // Counts are added in the order of the runs, as a fingerprint depends on it.
            let (mut waiting, mut added) = (BTreeMap::new(), 0);
            loop {
                let ended = ended.recv_timeout(PROGRESS);
                if let Err(RecvTimeoutError::Disconnected) = ended {
                    break;
                }
                if let Ok(Ended { number, seed, scenario, result, took }) = ended {
                    each(seed, scenario, &result, took);
                    findings.runs += 1;
                    waiting.insert(number, result.as_ref().ok().copied());
                    while let Some(totals) = waiting.remove(&added) {
                        added += 1;
                        totals.iter().for_each(|totals| findings.totals.add(totals));
                    }
                    findings.seeds = added / scenarios;
                    if let Err(what) = result {
                        findings.failed.push((seed, scenario, what));
                        stop.store(!self.keep_going, Ordering::Relaxed);
                    }
                }
                if said.elapsed() >= PROGRESS {
                    said = Instant::now();
                    say(&progress(&findings, all, begun.elapsed()));
                }
            }
        });
        findings
    }

    fn run_one(&self, number: u64, all: u64) -> Option<Ended> {
        if number >= all {
            return None;
        }
        let scenarios = self.scenarios.len() as u64;
        let place = usize::try_from(number.checked_rem(scenarios)?).ok()?;
        let scenario = *self.scenarios.get(place)?;
        let seed = self.first.saturating_add(number / scenarios);
        let begun = Instant::now();
        let result = scenario.run(seed, self.commands);
        Some(Ended { number, seed, scenario, result, took: begun.elapsed() })
    }
}

fn progress(findings: &Findings, all: u64, elapsed: Duration) -> String {
    let Findings { runs, failed, .. } = findings;
    let seconds = elapsed.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "numbers of runs")]
    let rate = *runs as f64 / seconds.max(0.001);
    #[expect(clippy::cast_precision_loss, reason = "numbers of runs")]
    let left = all.saturating_sub(*runs) as f64 / rate.max(0.001);
    format!(
        "sim: {runs} of {all} runs in {seconds:.0} s, {rate:.1} a second, {} failed, about {left:.0} s left",
        failed.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(jobs: usize) -> Campaign {
        Campaign {
            first: 1,
            seeds: 4,
            scenarios: vec![Scenario::OnePath, Scenario::TwoPaths, Scenario::LateWrites],
            commands: 60,
            jobs,
            time: None,
            keep_going: false,
        }
    }

    #[test]
    fn threads_find_what_one_thread_finds() {
        let mut runs = Vec::new();
        let one = campaign(1).run(|seed, scenario, _, _| runs.push((seed, scenario)), |_| ());
        assert_eq!((one.runs, one.seeds, one.failed.len()), (12, 4, 0));
        assert_eq!(
            runs[..3],
            [Scenario::OnePath, Scenario::TwoPaths, Scenario::LateWrites].map(|it| (1, it))
        );
        let many = campaign(5).run(|_, _, _, _| (), |_| ());
        assert_eq!(many.totals, one.totals);
    }

    #[test]
    fn no_run_begins_when_the_time_is_over() {
        let late = Campaign { time: Some(Duration::ZERO), ..campaign(2) };
        assert_eq!(late.run(|_, _, _, _| (), |_| ()).runs, 0);
    }

    #[test]
    fn a_failure_says_how_to_repeat_it() {
        let text = Scenario::TwoPaths.repeat(17, DEFAULT_COMMANDS);
        assert_eq!(text, "to repeat: cargo xtask sim --seed 17 -- --scenario two-paths");
        let text = Scenario::OnePath.repeat(17, 9);
        assert_eq!(text, "to repeat: cargo xtask sim --seed 17 -- --commands 9");
        let text = Scenario::LateWrites.repeat(17, 9);
        assert_eq!(
            text,
            "to repeat: cargo xtask sim --seed 17 -- --scenario late-writes --commands 9"
        );
    }
}
