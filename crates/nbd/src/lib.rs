//! NBD (Network Block Device): block devices for every program that speaks it.
//!
//! [`protocol`] has no I/O: it takes bytes and gives answers and plans. [`Server`] carries it out over
//! the channels of block devices, on cores of [`raceline_reactor`].
//!
//! [`Disk`] is a disk of the kernel's NBD client, `/dev/nbdN`, whose server is in this process.
//!
//! The protocol is that of `doc/proto.md` of the NBD project: fixed newstyle negotiation, structured
//! replies, block sizes, metadata contexts. Sections below are sections of that document.

mod kernel;
pub mod protocol;
mod server;

pub use kernel::{Disk, DiskConfig, DiskError, index_of, path};
pub use server::{
    DEFAULT_HOLD_TIME, DEFAULT_MAX_CONNECTIONS, DEFAULT_PORT, Endpoint, Export, Listening, Server,
    ServerConfig, ServerError, ServerTls,
};
