//! Some seeds pass, all are repeatable, and a device that lies is detected.
#![allow(clippy::unwrap_used, reason = "a test program")]

use sim::{Lie, Plan, Totals, run};

/// Commands of a run here: enough for all faults, few enough for a debug build.
const COMMANDS: u64 = 200;

#[test]
fn seeds_pass_and_cover_what_they_are_for() {
    let mut totals = Totals::default();
    for seed in 1..=40 {
        match run(Plan::new(seed, COMMANDS)) {
            Ok(run) => totals.add(&run),
            Err(failure) => panic!("{failure}"),
        }
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
    for (what, count) in covered {
        assert!(count > 10, "only {count} {what}: the plans do not try hard enough");
    }
}

#[test]
fn two_paths_lose_and_repeat_nothing() {
    let mut totals = Totals::default();
    for seed in 1..=20 {
        match run(Plan::new(seed, COMMANDS).with_two_paths()) {
            Ok(run) => totals.add(&run),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(totals.reconnects > 50, "only {} reconnects", totals.reconnects);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 100..112 {
        let once = run(Plan::new(seed, COMMANDS)).unwrap();
        let again = run(Plan::new(seed, COMMANDS)).unwrap();
        assert_eq!(once, again, "seed {seed}");
    }
    let one = run(Plan::new(1, COMMANDS)).unwrap();
    let two = run(Plan::new(2, COMMANDS)).unwrap();
    assert_ne!(one.fingerprint, two.fingerprint);
}

/// Most seeds must detect a device that is broken in this way.
fn is_found_out(lie: Lie, prepare: impl Fn(&mut Plan)) {
    const SEEDS: u64 = 8;
    let found = (1..=SEEDS).filter(|&seed| {
        let mut plan = Plan { lie: Some(lie), ..Plan::new(seed, COMMANDS).without_faults() };
        plan.copy_reads = true;
        plan.reauthenticate_after = None;
        plan.limits = None;
        prepare(&mut plan);
        match run(plan) {
            Ok(_) => false,
            Err(failure) => {
                let text = failure.to_string();
                assert!(text.contains(&format!("cargo xtask sim --seed {seed}")), "{text}");
                assert!(!text.contains("panic"), "{text}");
                true
            }
        }
    });
    let found = found.count() as u64;
    assert!(found * 4 >= SEEDS * 3, "{lie:?} was noticed by {found} of {SEEDS} seeds only");
}

#[test]
fn lost_writes_are_found_out() {
    is_found_out(Lie::DropWrite, |_| ());
}

#[test]
fn torn_writes_are_found_out() {
    is_found_out(Lie::TearWrite, |_| ());
}

#[test]
fn misplaced_writes_are_found_out() {
    is_found_out(Lie::MisplaceWrite, |_| ());
}

#[test]
fn stale_reads_are_found_out() {
    is_found_out(Lie::StaleRead, |_| ());
}

#[test]
fn writes_that_failed_and_happened_are_found_out() {
    is_found_out(Lie::FailButWrite, |plan| plan.faults.device_errors_per_thousand = 100);
}
