//! The suites of the NVMe target over RDMA: the same tests as over TCP, over a simulated network.
//!
//! Stays out what `tcp_only!` holds: R2Ts and data that a host sends late, digests, and what a test does with the bytes or the
//! sockets of a connection. Programs of their own have what is of TCP alone: `digest` (RDMA has none), `bad_input` (bytes by hand; what is bad
//! over RDMA is in `rdma/bad_input.rs`, `rdma/by_hand.rs` and `rdma/attacks.rs`), `placement` (sockets that listen, and are polled), `hand_over`
//! (connections over RDMA are made anew), `zero_copy` (the socket's; over RDMA `rdma/in_place.rs`), and iSCSI.
#![allow(unused_imports, dead_code, reason = "used by what is of TCP only")]

#[macro_use]
#[path = "common/over_rdma.rs"]
mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;
#[path = "common/rates.rs"]
mod rates;
#[path = "common/reserving.rs"]
mod reserving;
mod suites;
#[path = "common/watched.rs"]
mod watched;
