//! Nothing of a lost path lands after the host was told so, or after the time that the target advertises; and whatever a
//! device does, no write of a lost path overtakes a later one.
#![allow(clippy::unwrap_used, reason = "a test program")]

use sim::fencing::{Fence, Seen, run};

const SEEDS: u64 = 60;

fn runs(fence: Fence) -> Vec<Seen> {
    let one =
        |seed| run(seed, fence).unwrap_or_else(|what| panic!("seed {seed}, {fence:?}: {what}"));
    (1..=SEEDS).map(one).collect()
}

#[test]
fn a_reset_that_succeeds_is_a_fence() {
    let runs = runs(Fence::Reset);
    let count = |holds: fn(&Seen) -> bool| runs.iter().filter(|seen| holds(seen)).count();
    assert!(count(|seen| seen.succeeded) > 10, "devices answer in time in two of three runs");
    assert!(count(|seen| seen.not_done) > 5, "devices hang in one of three runs");
    assert!(count(|seen| seen.outstanding > 0) > 40);
    // Without these, there would have been nothing to fence.
    assert!(count(|seen| seen.succeeded && seen.late > 0) > 5, "{runs:?}");
    assert!(count(|seen| seen.not_done && seen.late > 0) > 3, "{runs:?}");
}

#[test]
fn the_advertised_time_is_a_fence() {
    let runs = runs(Fence::Silence);
    assert!(runs.iter().filter(|seen| seen.late > 0).count() > 20, "{runs:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..5 {
        assert_eq!(run(seed, Fence::Reset), run(seed, Fence::Reset));
    }
}
