//! One thread per core: completion-based socket and file I/O, timers, mailboxes, buffers.
//!
//! A [`Service`] is the work of one core. It is driven by [`Completion`]s and messages, asks
//! for I/O through [`Io`], and never blocks. The same service runs over io_uring, over epoll,
//! and in simulation.

pub mod buffer;
pub mod io;
pub mod send;
pub mod service;

pub use buffer::{BufferPool, IoBuf, PoolConfig, Region, RegionHandle, SharedBuf};
pub use io::{Completion, Io, Outcome, Token, Wait};
pub use service::{Context, Service};
