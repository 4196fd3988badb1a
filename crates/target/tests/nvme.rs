//! The suites of the NVMe target over TCP, and what is of RDMA alone beside TCP hosts.

#[macro_use]
mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;
#[path = "common/rates.rs"]
mod rates;
mod rdma;
#[path = "common/reserving.rs"]
mod reserving;
mod suites;
#[path = "common/watched.rs"]
mod watched;
