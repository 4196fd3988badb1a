//! Whatever a configuration contains: nothing panics, comments change nothing, a refused configuration has
//! made nothing, and an accepted one is saved and loaded as the same.
//! Input: a byte that chooses between a text and a generated configuration; then the text, or a byte for
//! each decision about sections, calls, parameters and comments.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    raceline_fuzz::config::run(data);
});
