//! iSCSI connections on a core: beside those of NVMe/TCP, over the same devices and I/O buffers.

pub(crate) mod connection;
mod copies;
mod copying;
mod execute;
pub(crate) mod group;
mod outbox;
mod session;
mod slots;
