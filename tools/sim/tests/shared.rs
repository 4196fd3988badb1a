//! One device for both protocols: no write is lost, torn or late, and no reservation is disobeyed.
#![allow(clippy::unwrap_used, reason = "a test program")]

use sim::shared::{Counts, run};

/// More on request: `cargo xtask sim --scenario both-protocols --seeds N`.
const SEEDS: u64 = 100;

#[test]
fn both_protocols_work_on_one_device() {
    let mut all = Counts::default();
    for seed in 1..=SEEDS {
        let Counts {
            reads,
            writes,
            swaps,
            miscompares,
            conflicts,
            preempted,
            changes,
            reinstatements,
            lost,
        } = run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}")).counts;
        all.reads += reads;
        all.writes += writes;
        all.swaps += swaps;
        all.miscompares += miscompares;
        all.conflicts += conflicts;
        all.preempted += preempted;
        all.changes += changes;
        all.reinstatements += reinstatements;
        all.lost += lost;
    }
    println!("{all:?}");
    // Without these, nothing would have been judged.
    assert!(all.reads > 500 && all.writes > 500 && all.swaps > 100, "{all:?}");
    assert!(all.miscompares > 100 && all.conflicts > 100, "{all:?}");
    assert!(all.changes > 100 && all.reinstatements > 50 && all.lost > 50, "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..25 {
        assert_eq!(run(seed), run(seed));
    }
}
