//! Any bytes from an initiator: the target's end of an iSCSI connection keeps its promises. Input: setup, stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_fuzz::iscsi::run_target;

fuzz_target!(|data: &[u8]| {
    if let Some((&setup, stream)) = data.split_first() {
        run_target(setup, stream);
    }
});
