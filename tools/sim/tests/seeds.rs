//! Some seeds pass, are repeatable, and detect a device that lies. The release build proves more: `cargo xtask sim -- --proofs`.
#![allow(clippy::unwrap_used, reason = "a test program")]

use sim::proofs::{PROOFS, SHORT};

/// Carries out the proof of this name.
fn prove(name: &str) {
    let (_, proof) = PROOFS.iter().find(|(known, _)| *known == name).unwrap();
    proof(&SHORT).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn seeds_pass() {
    prove("seeds pass and meet what they are for");
}

#[test]
fn two_paths_lose_and_repeat_nothing() {
    prove("two paths lose and repeat nothing");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    prove("the same seed gives the same run");
}

#[test]
fn lost_writes_are_found_out() {
    prove("lost writes are found out");
}

#[test]
fn torn_writes_are_found_out() {
    prove("torn writes are found out");
}

#[test]
fn misplaced_writes_are_found_out() {
    prove("misplaced writes are found out");
}

#[test]
fn stale_reads_are_found_out() {
    prove("stale reads are found out");
}

#[test]
fn writes_that_failed_and_happened_are_found_out() {
    prove("writes that failed and happened are found out");
}
