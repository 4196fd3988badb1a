//! One end of TLS, whose peer or whose network is hostile. Input: a byte that chooses suite, end and time, then acts.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    raceline_fuzz::tls::door(data);
});
