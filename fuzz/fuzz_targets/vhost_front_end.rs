//! Any messages of a vhost-user front end, any rings and memory of its guest: nobody else is harmed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_fuzz::front_end::run;

fuzz_target!(|data: &[u8]| run(data));
