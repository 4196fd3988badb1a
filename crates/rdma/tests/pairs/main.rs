//! Both ends of NVMe/RDMA queues against each other over a simulated network: seeds with faults, an end at every step,
//! and peers that keep no rule.
#![allow(clippy::unwrap_used)] // a test

mod bad_input;
mod kin;
mod lost_receives;
mod manager;
mod overrun;
mod raw;
mod seeds;
mod sequences;
mod sequences_by_seed;
mod steps;
mod support;
mod wild;
