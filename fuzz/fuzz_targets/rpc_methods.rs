//! Whatever an admin calls with whatever parameters: nothing panics, a refused call has changed
//! nothing, and the final configuration makes the same target again.
//! Input: a byte that chooses whether the daemon has started, then calls: a byte for the method, and
//! another for each decision about its parameters.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| raceline_fuzz::daemon::run(data));
