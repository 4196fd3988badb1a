//! One thread per core: completion-based socket and file I/O, timers, mailboxes, buffers.
//!
//! A [`Service`] is the work of one core. It is driven by [`Completion`]s and messages, asks
//! for I/O through [`Io`], and never blocks. The same service runs over io_uring, over epoll,
//! and in simulation.

mod accel;
mod accelerator;
pub mod affinity;
pub mod buffer;
pub mod core;
mod epoll;
mod file_op;
mod gate;
pub mod io;
pub mod mailbox;
mod memory;
mod neighbours;
pub mod nvme;
pub mod pages;
mod region;
pub mod send;
pub mod service;
pub mod sim;
mod slab;
pub mod socket;
mod socket_option;
pub mod stats;
mod stream;
pub mod submission;
mod sync;
mod timer;
mod transfer;
mod uring;
mod wake_state;
pub mod waker;

pub use accelerator::{Accelerated, Accelerator, FinishedId, Work, WorkDone};
pub use buffer::{
    BufferPool, HugePages, IoBuf, PageBuf, PoolConfig, Region, RegionHandle, SharedBuf,
};
pub use core::{Backend, Mode, Reactor, ReactorConfig, ReactorError, ReactorHandle, open_io};
pub use epoll::{EpollIo, Sleeper};
pub use gate::Gate;
pub use io::{Completion, Io, Outcome, Token, Wait};
pub use mailbox::{Mailbox, SendError, Sender};
pub use send::{Payload, SendBatch};
pub use service::{Context, Service};
pub use sim::{SimConfig, SimIo, SimWorld};
pub use socket::Socket;
pub use stats::{LoopSnapshot, LoopStats};
pub use uring::UringIo;
pub use waker::Waker;
