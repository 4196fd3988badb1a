//! The suites of the host against a target of ours, over RDMA: the same tests as over TCP, on a simulated network. Those
//! with a second path have that over TCP.
//!
//! What becomes of a controller that loses one of its connections is of RDMA alone: a test over TCP cuts sockets
//! (`remote_maps.rs`).
//!
//! Stays out what `tcp_only!` holds: what a test does with the bytes or the sockets of a connection. Programs of their own have what is of
//! TCP alone: digests and flipped bits, priorities of sockets, streams of providers, proxies between sockets, and targets that write
//! PDUs by hand (`queue`, `batching`, `hostile`; over RDMA `common/rdma_target.rs` and `rdma_hostile.rs`, in `blocking`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unused_imports, dead_code, reason = "used by what is of TCP only")]

mod common;
#[path = "common/rdma_lost_queue.rs"]
mod lost_queue;
#[path = "common/rdma_sharing.rs"]
mod rdma_sharing;
#[macro_use]
#[path = "common/served_rdma.rs"]
mod served;
mod suites;
