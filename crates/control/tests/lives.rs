//! Lives of a daemon from seeds: the model that the fuzz target `rpc_methods` drives, without fuzzing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[allow(unreachable_pub, reason = "the crate of the fuzz targets exports it")]
#[path = "../../../fuzz/src/daemon.rs"]
mod daemon;

/// Lives; RACELINE_LIVES asks for more.
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

#[test]
fn refused_calls_change_nothing_and_what_is_left_comes_back() {
    let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, count) = match asked("RACELINE_LIFE") {
        Some(seed) => (seed, 1),
        None => (1, asked("RACELINE_LIVES").unwrap_or(LIVES)),
    };
    for seed in first..first + count {
        // Shown when the test fails.
        println!("RACELINE_LIFE={seed}");
        daemon::run(&input(seed));
    }
}
