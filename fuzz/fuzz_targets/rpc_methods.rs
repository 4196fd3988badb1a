//! Whatever an admin calls with whatever parameters: nothing panics, a refused call has changed
//! nothing, and what is configured in the end makes the same target again.
//! Input: a byte that chooses whether the daemon has started, then calls: a byte for the method, and
//! for each decision about its parameters another.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| raceline_fuzz::daemon::run(data));
