//! However a stream is cut, either end sees and sends the same. Input: end, setup, seed of the
//! cuts (8 bytes), stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_fuzz::tcp::{Feed, run_controller, run_host};

fuzz_target!(|data: &[u8]| {
    let Some((&[end, setup, ref seed @ ..], stream)) = data.split_first_chunk::<10>() else {
        return;
    };
    let seed = u64::from_le_bytes(*seed);
    let run = if end & 1 == 0 { run_controller } else { run_host };
    let whole = run(setup, stream, Feed::Whole);
    for feed in [Feed::Pieces(seed), Feed::Direct(seed), Feed::Bytes] {
        assert_eq!(run(setup, stream, feed), whole, "{feed:?}");
    }
});
