//! Runs of a daemon, and configurations, from seeds: the models that the fuzz targets `rpc_methods` and
//! `config` drive, without fuzzing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[allow(unreachable_pub, reason = "the crate of the fuzz targets exports it")]
#[path = "../../../fuzz/src/config.rs"]
mod config;
use std::collections::BTreeMap;

#[allow(unreachable_pub, reason = "the crate of the fuzz targets exports it")]
#[path = "../../../fuzz/src/daemon.rs"]
mod daemon;

/// Runs; RACELINE_LIVES sets another number.
const LIVES: u64 = 60;
/// Bytes of an input: some forty calls.
const INPUT_BYTES: usize = 600;

/// Bytes of a linear congruential generator (Knuth, MMIX).
fn input(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..INPUT_BYTES).map(|_| next()).collect()
}

/// The first seed, and how many.
fn seeds() -> (u64, u64) {
    let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match asked("RACELINE_LIFE") {
        Some(seed) => (seed, 1),
        None => (1, asked("RACELINE_LIVES").unwrap_or(LIVES)),
    }
}

#[test]
fn refused_calls_change_nothing_and_what_is_left_comes_back() {
    let (first, count) = seeds();
    for seed in first..first + count {
        // Shown when the test fails.
        println!("RACELINE_LIFE={seed}");
        daemon::run(&input(seed));
    }
}

#[test]
fn a_configuration_is_refused_whole_or_comes_back() {
    let (first, count) = seeds();
    let mut outcomes: BTreeMap<config::Outcome, u64> = BTreeMap::new();
    for seed in first..first + count {
        println!("RACELINE_LIFE={seed}");
        // A first byte of 1 asks for a generated configuration.
        let input = [&[1], &input(seed)[..]].concat();
        *outcomes.entry(config::run(&input)).or_default() += 1;
    }
    println!("{outcomes:?}");
    let all = [config::Outcome::Refused, config::Outcome::Failed, config::Outcome::Accepted];
    assert!(count == 1 || all.iter().all(|outcome| outcomes.contains_key(outcome)), "{outcomes:?}");
}
