//! Any text as a secret or a TLS key. Input: the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    raceline_fuzz::chap::keys(data);
});
