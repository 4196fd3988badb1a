//! Any bytes as private data and as capsules of NVMe/RDMA. Input: the bytes; for a capsule the first four are limits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    raceline_fuzz::rdma::private_data(data);
    raceline_fuzz::rdma::capsule(data);
});
