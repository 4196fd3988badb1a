//! The memory that data lie in: I/O buffers, their pools and parts, the regions of RAM devices, copies.

pub mod buffer;
pub(crate) mod companions;
pub(crate) mod heap;
pub(crate) mod lasting;
pub(crate) mod mapping;
pub(crate) mod parts;
mod region;
pub(crate) mod stream;
