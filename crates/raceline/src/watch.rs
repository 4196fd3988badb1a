//! Cores that are stuck: found from their turns, named in the log, and kept from systemd's watchdog. All cores of the process are
//! watched, of targets as of disks and of remote controllers.
//!
//! A core that sleeps makes no turns either. So a core without turns is woken, and every core turns once then, unless a device,
//! the kernel or another program holds it.

use std::time::{Duration, Instant};

use raceline_reactor::{RunningCore, running_cores};
use sd_notify::NotifyState;

use crate::serve::tell;

/// How often it is looked whether all is well, and systemd is told.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// How long a core may be without a turn before it is woken.
const QUIET: Duration = Duration::from_secs(5);
/// How long it may take to turn after that.
const PATIENCE: Duration = Duration::from_secs(3);

/// Watches the cores of this process, and gives systemd's watchdog a sign of life as long as they turn.
#[derive(Debug)]
pub(crate) struct Watchdog {
    watch: Watch,
    interval: Duration,
    last_sign: Instant,
}

impl Watchdog {
    /// Begins, with the time that systemd gives.
    pub(crate) fn new() -> Self {
        let limit = sd_notify::watchdog_enabled();
        // Twice as often as systemd requires.
        let interval = limit.map_or(HEALTH_INTERVAL, |limit| (limit / 2).min(HEALTH_INTERVAL));
        Self { watch: Watch::default(), interval, last_sign: Instant::now() }
    }

    /// How long may lie between two looks.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Looks at all cores.
    pub(crate) fn look(&mut self) {
        let running = running_cores();
        let verdict = self.watch.look(running.iter().map(Core::of).collect(), Instant::now());
        if verdict.wants_nudge {
            running.iter().for_each(RunningCore::nudge);
        }
        if verdict.all_turn && self.last_sign.elapsed() >= self.interval / 2 {
            tell(&[NotifyState::Watchdog]);
            self.last_sign = Instant::now();
        }
    }
}

/// One core, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Core {
    id: u64,
    /// Its name for people.
    name: String,
    /// Turns so far.
    turns: u64,
}

impl Core {
    fn of(core: &RunningCore) -> Self {
        let name = format!("core {} (thread {})", core.name(), core.thread());
        Self { id: core.id(), name, turns: core.stats().snapshot().turns }
    }
}

/// What has been seen of the cores.
#[derive(Debug, Default)]
struct Watch {
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    core: Core,
    /// When its turns were first as they are now.
    since: Instant,
    /// When it was woken because of that.
    nudged: Option<Instant>,
    is_stuck: bool,
}

/// What a look at the cores has given.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    /// Whether a core has to be woken.
    wants_nudge: bool,
    /// Whether all cores turn.
    all_turn: bool,
}

impl Watch {
    /// Looks at all cores, and logs which have stopped turning, and which turn again.
    fn look(&mut self, cores: Vec<Core>, now: Instant) -> Verdict {
        let mut verdict = Verdict { wants_nudge: false, all_turn: true };
        let mut before = std::mem::take(&mut self.seen);
        for core in cores {
            let place = before.iter().position(|seen| seen.core.id == core.id);
            let mut seen = match place.map(|place| before.swap_remove(place)) {
                Some(seen) if seen.core.turns == core.turns => seen,
                Some(seen) => {
                    if seen.is_stuck {
                        let time = now.duration_since(seen.since).as_secs();
                        tracing::warn!("{} turns again, after {time} s", core.name);
                    }
                    Seen { core, since: now, nudged: None, is_stuck: false }
                }
                None => Seen { core, since: now, nudged: None, is_stuck: false },
            };
            match seen.nudged {
                None if now.duration_since(seen.since) >= QUIET => {
                    seen.nudged = Some(now);
                    verdict.wants_nudge = true;
                }
                Some(nudged) if now.duration_since(nudged) >= PATIENCE && !seen.is_stuck => {
                    seen.is_stuck = true;
                    tracing::error!(
                        "{} is stuck: it has not turned for {} s and does not answer, so what it serves waits. A \
                         device, the kernel or a program on the same CPU holds it (dmesg, top -H). Until it turns, \
                         systemd's watchdog gets no sign of life, and restarts the service after WatchdogSec",
                        seen.core.name,
                        now.duration_since(seen.since).as_secs()
                    );
                }
                _ => {}
            }
            verdict.all_turn &= !seen.is_stuck;
            self.seen.push(seen);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(turns: [u64; 2]) -> Vec<Core> {
        let core = |(id, turns)| Core { id, name: format!("core {id}"), turns };
        (0..).zip(turns).map(core).collect()
    }

    #[test]
    fn only_a_core_that_does_not_answer_is_stuck() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut look =
            |second: u64, turns| watch.look(cores(turns), start + Duration::from_secs(second));
        let fine = Verdict { wants_nudge: false, all_turn: true };
        assert_eq!(look(0, [1, 1]), fine);
        assert_eq!(look(4, [1, 5]), fine);
        // Core 0 sleeps, and is woken once; it turns.
        assert!(look(5, [1, 6]).wants_nudge);
        assert_eq!(look(6, [2, 7]), fine);
        // The next time it does not.
        assert!(look(11, [2, 8]).wants_nudge);
        assert_eq!(look(12, [2, 9]), fine);
        assert_eq!(look(14, [2, 10]), Verdict { wants_nudge: false, all_turn: false });
        assert!(!look(40, [2, 11]).all_turn);
        assert_eq!(look(41, [3, 12]), fine);
    }

    #[test]
    fn a_target_that_is_made_again_begins_anew() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        watch.look(cores([1, 1]), start);
        assert!(watch.look(Vec::new(), start + QUIET).all_turn);
        assert_eq!(
            watch.look(cores([1, 1]), start + QUIET * 2),
            Verdict { wants_nudge: false, all_turn: true }
        );
    }
}
