//! One thread per core: completion-based socket and file I/O, timers, mailboxes, buffers.
//!
//! A [`Service`] is the work of one core. It is driven by [`Completion`]s and messages, asks
//! for I/O through [`Io`], and never blocks. The same service runs over io_uring, over epoll,
//! and in simulation.
//!
//! | folder | what it holds |
//! |---|---|
//! | [`io`] | the seam: operations and completions; what all back ends share: sockets, timers, file operations; [`io::stream`], the seam below for bytes that another than the kernel's TCP carries |
//! | [`flow`] | facts of machine and core, and the policy: every threshold of how bytes travel |
//! | `uring`, `epoll`, [`sim`] | the three back ends of [`Io`] |
//! | [`send`] | send batches, and how their bytes reach a socket |
//! | `memory` | I/O buffers, pools, regions |
//! | `accel` | the core's channel to the acceleration framework |
//! | [`inheritance`] | descriptors that a process hands to its successor |
//! | [`listening`] | why a program cannot listen somewhere, in words |
//! | [`private_socket`] | sockets in the file system that only some users may connect to |
//! | `thread` | the loop of a core, mailboxes, wakers, counters |

mod accel;
pub mod control_group;
mod epoll;
pub mod flow;
pub mod inheritance;
pub mod io;
pub mod listening;
mod memory;
pub mod no_wait;
pub mod private_socket;
pub mod send;
pub mod sim;
mod sync;
mod thread;
mod uring;

pub use accel::accelerator::{Accelerated, Accelerator, FinishedId, Work, WorkDone};
pub use epoll::{EpollIo, Sleeper};
pub use io::arrival::Arrival;
pub use io::busy_poll::WaitPolling;
pub use io::room;
pub use io::socket::{self, Socket};
pub use io::stream::{ByteStream, Interest, IsController, Source, StreamListener, StreamProvider};
pub use io::transport::Transport;
pub use io::{Completion, Io, Outcome, Token, Wait, nvme, ublk};
pub use memory::buffer::{
    self, BufferPool, HugePages, IoBuf, PageBuf, PoolConfig, Region, RegionHandle, SharedBuf,
};
pub use memory::companions::Companions;
pub use memory::heap::Heap;
pub use memory::lasting::LastingMemory;
pub use memory::parts::{PartPool, PartedBuf};
pub use send::{Payload, SendBatch, UnsentReader, pages};
pub use sim::{SimConfig, SimIo, SimWorld};
pub use thread::core::{
    Backend, Mode, Reactor, ReactorConfig, ReactorError, ReactorHandle, open_io,
};
pub use thread::cores::{CoreLoop, CoreWatch, Cores};
pub use thread::mailbox::{Mailbox, SendError, Sender};
pub use thread::roll::{RunningCore, broken_cores, running_cores};
pub use thread::service::{Context, Service};
pub use thread::stats::{LoopSnapshot, LoopStats};
pub use thread::waker::Waker;
pub use thread::{affinity, core, mailbox, service, stats, waker};
pub use uring::UringIo;
