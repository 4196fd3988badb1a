//! What the simulation is worth: its seeds meet what they are for, each gives the same run again, and a device that lies
//! is found out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Lie, Plan, Totals, run};

/// Commands of a run here: enough for all faults.
const COMMANDS: u64 = 200;

/// How many seeds each proof has.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Those that must meet everything; fewer than [`FULL`] has must only pass.
    pub covering: u64,
    /// Those with two paths; fewer than [`FULL`] has must only pass.
    pub two_paths: u64,
    /// Those that are run twice.
    pub repeated: u64,
    /// Those of each lie.
    pub lying: u64,
}

/// All that is proven. A release build takes seconds.
pub const FULL: Effort = Effort { covering: 40, two_paths: 20, repeated: 12, lying: 8 };

/// As much as the unit tests prove, whose build is not optimised.
pub const SHORT: Effort = Effort { covering: 6, two_paths: 3, repeated: 2, lying: 4 };

/// What a proof does; an error says why it fails.
pub type Proof = fn(&Effort) -> Result<(), String>;

/// The proofs, by name.
pub const PROOFS: [(&str, Proof); 8] = [
    ("seeds pass and meet what they are for", covers),
    ("two paths lose and repeat nothing", two_paths),
    ("the same seed gives the same run", repeats),
    ("lost writes are found out", |effort| is_found_out(effort, Lie::DropWrite, |_| ())),
    ("torn writes are found out", |effort| is_found_out(effort, Lie::TearWrite, |_| ())),
    ("misplaced writes are found out", |effort| is_found_out(effort, Lie::MisplaceWrite, |_| ())),
    ("stale reads are found out", |effort| is_found_out(effort, Lie::StaleRead, |_| ())),
    ("writes that failed and happened are found out", |effort| {
        let fail = |plan: &mut Plan| plan.faults.device_errors_per_thousand = 100;
        is_found_out(effort, Lie::FailButWrite, fail)
    }),
];

/// Carries out all proofs on so many threads. Tells `each` of every proof that has ended; gives how many failed.
pub fn prove(
    effort: &Effort,
    jobs: usize,
    each: impl Fn(&str, &Result<(), String>) + Sync,
) -> usize {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, PROOFS.len()) {
            scope.spawn(|| {
                while let Some((name, proof)) = PROOFS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = proof(effort);
                    let mut failed = failed.lock().unwrap_or_else(|broken| broken.into_inner());
                    *failed += usize::from(result.is_err());
                    each(name, &result);
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(|broken| broken.into_inner())
}

/// The counts of all seeds up to this one.
fn all(seeds: u64, plan: impl Fn(u64) -> Plan) -> Result<Totals, String> {
    let mut totals = Totals::default();
    for seed in 1..=seeds {
        totals.add(&run(plan(seed)).map_err(|failure| failure.to_string())?);
    }
    Ok(totals)
}

fn covers(effort: &Effort) -> Result<(), String> {
    let totals = all(effort.covering, |seed| Plan::new(seed, COMMANDS))?;
    if effort.covering < FULL.covering {
        return Ok(());
    }
    let covered = [
        ("writes by R2T", totals.r2t_writes),
        ("writes in capsules", totals.in_capsule_writes),
        ("fused pairs", totals.fused),
        ("copies", totals.copies),
        ("copies whose ranges name namespaces", totals.copies_across),
        ("miscompares", totals.miscompares),
        ("unknown fates", totals.unknown_fates),
        ("reconnects", totals.reconnects),
        ("digest errors", totals.digest_errors),
        ("device errors", totals.device_errors_seen),
        ("buffer waits", totals.buffer_waits),
        ("namespace events", totals.namespace_events),
        ("moves between cores", totals.moves),
        ("commands held up by limits", totals.throttled),
    ];
    match covered.iter().find(|(_, count)| *count <= 10) {
        Some((what, count)) => {
            Err(format!("only {count} {what}: the plans do not try hard enough"))
        }
        None => Ok(()),
    }
}

fn two_paths(effort: &Effort) -> Result<(), String> {
    let totals = all(effort.two_paths, |seed| Plan::new(seed, COMMANDS).with_two_paths())?;
    if effort.two_paths >= FULL.two_paths && totals.reconnects <= 50 {
        return Err(format!("only {} reconnects", totals.reconnects));
    }
    Ok(())
}

fn repeats(effort: &Effort) -> Result<(), String> {
    let run = |seed| run(Plan::new(seed, COMMANDS)).map_err(|failure| failure.to_string());
    let mut last = None;
    for seed in (100..).take(usize::try_from(effort.repeated).unwrap_or(usize::MAX)) {
        let once = run(seed)?;
        if once != run(seed)? {
            return Err(format!("seed {seed} does not give the same run again"));
        }
        if last == Some(once.fingerprint) {
            return Err(format!("seed {seed} gives the run of the seed before it"));
        }
        last = Some(once.fingerprint);
    }
    Ok(())
}

/// Most seeds must detect a device that is broken in this way.
fn is_found_out(effort: &Effort, lie: Lie, prepare: impl Fn(&mut Plan)) -> Result<(), String> {
    let mut found = 0;
    for seed in 1..=effort.lying {
        let mut plan = Plan { lie: Some(lie), ..Plan::new(seed, COMMANDS).without_faults() };
        plan.copy_reads = true;
        plan.reauthenticate_after = None;
        plan.limits = None;
        prepare(&mut plan);
        let Err(failure) = run(plan) else { continue };
        let text = failure.to_string();
        if !text.contains(&format!("cargo xtask sim --seed {seed}")) || text.contains("panic") {
            return Err(format!("a failure that does not say what it is:\n{text}"));
        }
        found += 1;
    }
    if found * 4 < effort.lying * 3 {
        return Err(format!("{lie:?} was noticed by {found} of {} seeds only", effort.lying));
    }
    Ok(())
}
