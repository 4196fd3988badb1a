//! Any bytes from a controller: the host's queue keeps its promises. Input: setup, stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_fuzz::tcp::{Feed, run_host};

fuzz_target!(|data: &[u8]| {
    if let Some((&setup, stream)) = data.split_first() {
        run_host(setup, stream, Feed::Whole);
    }
});
