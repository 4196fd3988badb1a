//! NVMe/RDMA as a transport of the target: queue pairs that look like byte streams.
//!
//! What the target does with a connection begins with PDUs of NVMe/TCP. [`RdmaStreams`] gives it such a stream for each
//! queue pair ([`raceline_reactor::ByteStream`]), so an RDMA connection is placed, scheduled, limited, fenced and counted
//! by the same code as any other, and the path of TCP connections knows nothing of it. The translation is small, because
//! both transports carry the same capsules:
//!
//! | from the host | to the controller |
//! |---|---|
//! | command capsule | CapsuleCmd, with its in-capsule data, or with a descriptor that asks for a transfer |
//! | the data of an RDMA READ | H2CData |
//!
//! | from the controller | to the host |
//! |---|---|
//! | R2T | RDMA READ |
//! | C2HData | an RDMA WRITE from where the data are, posted before the response; from a copy, where the device does not know that memory |
//! | CapsuleResp | response capsule |
//!
//! A [`hub::Hub`] is what one core has of a listener's device: queue pairs, a completion queue, shared receives, registered
//! memory within a budget, and the [`line::Line`] of each connection. It is shared by what the core waits for and the streams
//! of the core's connections, under a lock that only this core takes, but for statistics. [`ports`] says how a request for a
//! queue comes to the hub of its core, where the connection stays. Nothing is allocated per command.

mod buffers;
mod config;
mod counted;
mod hub;
mod line;
mod listener;
mod patience;
mod pdus;
mod places;
mod ports;
mod sources;
mod streams;
mod works;

pub use config::{OpenDevice, RdmaConfig, SHARED_RECEIVES};
pub use patience::Patience;
pub use raceline_rdma::device::load_libraries as load_rdma_libraries;
pub use streams::{RdmaDeviceStats, RdmaStreams, check_rdma_address};
