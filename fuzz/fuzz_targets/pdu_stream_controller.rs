//! Any bytes from a host: the controller's queue keeps its promises. Input: setup, stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_fuzz::tcp::{Feed, run_controller};

fuzz_target!(|data: &[u8]| {
    if let Some((&setup, stream)) = data.split_first() {
        run_controller(setup, stream, Feed::Whole);
    }
});
