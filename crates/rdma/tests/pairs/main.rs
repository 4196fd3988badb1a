//! Both ends of NVMe/RDMA queues against each other over a simulated network: seeds with faults, an end at every step,
//! and peers that keep no rule.
#![allow(clippy::unwrap_used)] // a test

mod bad_input;
mod manager;
mod seeds;
mod steps;
mod support;
