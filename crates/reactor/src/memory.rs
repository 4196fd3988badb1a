//! The memory that data lie in: I/O buffers and their pools, the regions of RAM devices, copies.

pub mod buffer;
pub(crate) mod mapping;
mod region;
pub(crate) mod stream;
