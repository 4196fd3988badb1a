//! Any commands and messages from a host that has no secret. Input: a byte for each act, with a length and bytes for a message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    raceline_fuzz::chap::responder(data);
});
