//! Any messages from a controller that has no secret. Input: a length and bytes for each message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    raceline_fuzz::chap::initiator(data);
});
