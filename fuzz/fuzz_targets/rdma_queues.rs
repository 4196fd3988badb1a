//! Queues of NVMe/RDMA over a device that does anything: a target's end, a host's, or the byte streams of a target's listener.
//! Input: which of them, what the device is, then steps of the device and of the queues' user.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The same is run by seeds in the tests of the crates.
#[path = "../../crates/target/tests/rdma/lines.rs"]
#[allow(dead_code, reason = "the tests use the rest of it")]
mod lines;
#[path = "../../crates/rdma/tests/pairs/sequences.rs"]
#[allow(dead_code, reason = "the tests use the rest of it")]
mod sequences;
#[path = "../../crates/rdma/tests/pairs/wild.rs"]
mod wild;

fuzz_target!(|data: &[u8]| {
    let Some((&end, rest)) = data.split_first() else { return };
    let run = match end % 3 {
        0 => sequences::run_target,
        1 => sequences::run_host,
        _ => {
            let seen = lines::run(rest);
            assert!(seen.successes <= seen.commands);
            return;
        }
    };
    let seen = run(rest);
    assert!(seen.successes + seen.losses <= seen.commands);
});
