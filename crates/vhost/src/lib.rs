//! vhost-user-blk: block devices for the guests of QEMU and cloud-hypervisor.
//!
//! A front end, which runs a guest, connects to a socket of the [`Server`] and shares the guest's memory.
//! The guest puts requests into rings in that memory, and cores of [`raceline_reactor`] carry them out over
//! the channels of a block device.
//!
//! The message codec is that of the crate `vhost`, the mapping that of `vm-memory`. What the guest writes is
//! not believed: addresses, lengths, chains and indexes are checked at each use, and data are copied once.
//!
//! Sections below are those of Virtual I/O Device (VIRTIO) 1.2 and of QEMU's `docs/interop/vhost-user.rst`.

mod cache;
mod config;
mod core;
mod devices;
mod eventfd;
mod front_end;
mod guard;
mod inflight;
mod link;
mod memory;
mod queue;
mod request;
mod ring;
mod server;

pub use config::MAX_QUEUES;
pub use server::{DEFAULT_QUEUES, Server, ServerConfig, ServerError};
