//! The seam between a core's work and the operating system: operations in, completions out.
//!
//! Every operation owns the memory it touches until its completion hands it back, so a
//! connection may be torn down while operations are in flight: late completions carry a
//! [`Token`] whose generation no longer matches, and are dropped.

pub(crate) mod arrival;
pub(crate) mod busy_poll;
pub(crate) mod file_call;
pub(crate) mod file_op;
pub(crate) mod file_threads;
pub(crate) mod nonblocking;
pub mod nvme;
pub(crate) mod provided;
pub mod room;
pub(crate) mod slab;
pub mod socket;
pub(crate) mod socket_option;
pub(crate) mod staging;
pub mod stream;
pub(crate) mod timer;
pub(crate) mod transport;
pub mod ublk;

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::accel::accelerator::{Accelerated, Accelerator, FinishedId, Work, WorkDone};
use crate::flow::{Flight, SocketClass};
use crate::io::busy_poll::WaitPolling;
pub use crate::io::file_call::FileCall;
use crate::io::nvme::NvmeFormat;
use crate::io::socket::{ConnectOptions, ListenOptions, Socket};
use crate::io::stream::StreamListener;
use crate::io::ublk::{UblkCommand, UblkDescriptor, UblkMove, UblkQueue};
use crate::memory::buffer::{BufferPool, IoBuf, SharedBuf};
use crate::send::SendBatch;
use crate::sim::Random;
use crate::thread::stats::{DepartureStats, IoCounts};
use crate::thread::waker::Waker;

/// Names the receiver of a completion: its `owner`, which of the owner's objects (`index`), and which
/// life of that object (`generation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The component that gets the completion. The service hands these numbers out; 0 is the service itself.
    pub owner: u16,
    /// The life of the object: a completion for an earlier life is stale.
    pub generation: u16,
    /// The owner's object (a connection, an operation slot).
    pub index: u32,
}

/// An adopted socket of this [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId(pub u32);

/// A listening socket of this [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u32);

/// A registered file of this [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub u32);

/// Where one receive puts its bytes: first the rest of a payload, then staging.
#[derive(Debug)]
pub struct RecvBuffers {
    /// The I/O buffer of a payload in progress and the range still missing, if any.
    pub payload: Option<(IoBuf, std::ops::Range<usize>)>,
    /// Staging memory; bytes are put into `staging[staging_range]`.
    pub staging: IoBuf,
    /// The free part of `staging`.
    pub staging_range: std::ops::Range<usize>,
}

impl RecvBuffers {
    /// Free bytes: what one receive takes at most.
    pub fn room(&self) -> usize {
        self.payload.as_ref().map_or(0, |(_, range)| range.len()) + self.staging_range.len()
    }

    /// The free parts as system calls want them, and how many there are.
    ///
    /// # Panics
    /// If a range is not inside its buffer.
    pub(crate) fn iovecs(&mut self) -> ([libc::iovec; 2], usize) {
        fn iovec(buf: &mut IoBuf, range: &std::ops::Range<usize>) -> libc::iovec {
            let bytes = &mut buf[range.clone()];
            libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
        }
        let staging = iovec(&mut self.staging, &self.staging_range);
        match &mut self.payload {
            Some((buf, range)) => ([iovec(buf, range), staging], 2),
            None => ([staging, staging], 1),
        }
    }

    /// Offers the first `bytes` of other staging memory instead; gives what it was before.
    pub(crate) fn swap_staging(&mut self, staging: IoBuf, bytes: usize) -> IoBuf {
        self.staging_range = 0..bytes.min(staging.len());
        std::mem::replace(&mut self.staging, staging)
    }

    /// Where the bytes go that follow `filled` others, in stream order: the rest of the payload, and
    /// staging. Either may be empty.
    ///
    /// # Panics
    /// If there is less than `filled` in all.
    pub fn parts(&mut self, filled: usize) -> [&mut [u8]; 2] {
        let payload = self.payload.as_mut().map(|(buf, range)| &mut buf[range.clone()]);
        let payload = payload.unwrap_or_default();
        let staging = &mut self.staging[self.staging_range.clone()];
        let in_payload = filled.min(payload.len());
        [&mut payload[in_payload..], &mut staging[filled - in_payload..]]
    }

    /// Puts bytes where a receive would put those that follow `filled` others; gives how many fit.
    ///
    /// # Panics
    /// If there is less than `filled` in all.
    pub fn put(&mut self, filled: usize, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for room in self.parts(filled) {
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            rest = later;
        }
        bytes.len() - rest.len()
    }

    /// A hash of the first `count` bytes received, for the fingerprint of a simulation.
    pub(crate) fn checksum(&self, count: usize) -> u64 {
        let payload = self.payload.as_ref().map_or(&[][..], |(buf, range)| &buf[range.clone()]);
        let in_payload = payload.len().min(count);
        let staging = &self.staging[self.staging_range.clone()][..count - in_payload];
        Random::hash(&payload[..in_payload]) ^ Random::mix(Random::hash(staging))
    }
}

/// What an [`Io`] does so that another process can go on with its sockets.
pub trait HandsOver {
    /// Takes a receive that is in flight back, if it has got nothing: it finishes soon, with what has come or with
    /// ECANCELED ([`is_taken_back`]). A receive of a provider's stream stays.
    fn stop_recv(&mut self, socket: SocketId);

    /// A copy of the descriptor of a socket. What waits in the kernel for more bytes is sent. `None`: it is not a socket of
    /// the kernel's TCP alone.
    fn copy_socket(&mut self, socket: SocketId) -> Option<OwnedFd>;

    /// A copy of the descriptor of a listener. `None`: no socket of the kernel listens.
    fn copy_listener(&self, listener: ListenerId) -> Option<OwnedFd>;

    /// Has a listener accept nothing for now, or go on. What it has accepted before still arrives.
    fn pause_listener(&mut self, listener: ListenerId, paused: bool);

    /// Goes on with a listener of another process, which does not accept before [`Self::pause_listener`] lets it. Gives
    /// its address.
    ///
    /// # Errors
    /// The error of getsockname(2), or when it cannot be watched.
    fn adopt_listener(
        &mut self,
        listener: OwnedFd,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)>;
}

/// How the blocks of a range are to be released or zeroed (fallocate(2) modes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Deallocate: the range reads zeroes afterwards (FALLOC_FL_PUNCH_HOLE | KEEP_SIZE).
    PunchHole,
    /// Zero the range, kept allocated (FALLOC_FL_ZERO_RANGE).
    ZeroRange,
    /// Advice: the range is not needed, and may read anything afterwards. As `PunchHole`, but for NVMe
    /// namespaces, which have a command for it (Dataset Management).
    Release,
}

impl AllocateMode {
    /// The mode argument of fallocate(2). The size of the file never changes.
    pub(crate) fn flags(self) -> libc::c_int {
        libc::FALLOC_FL_KEEP_SIZE
            | match self {
                AllocateMode::PunchHole | AllocateMode::Release => libc::FALLOC_FL_PUNCH_HOLE,
                AllocateMode::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            }
    }
}

/// How long [`Io::poll`] may wait for the first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until there is a completion, a timer expires, or the [`Waker`] fires.
    Yes,
}

/// What became of an operation; memory comes back with it.
#[derive(Debug)]
pub enum Outcome {
    /// A listener accepted a connection. Listeners produce these until closed.
    Accepted(io::Result<(Socket, SocketAddr)>),
    /// A connect finished.
    Connected(io::Result<Socket>),
    /// A receive finished with this many bytes; 0 is end of stream.
    Received(io::Result<usize>, RecvBuffers),
    /// The whole batch was sent, or the connection is broken. Partial sends are continued
    /// by the [`Io`] itself.
    Sent(io::Result<()>, Box<SendBatch>),
    /// A file read finished: `buf` was filled completely (short reads are continued; a read
    /// past the end of the file gives `UnexpectedEof`).
    Read(io::Result<()>, IoBuf),
    /// A file write finished, completely.
    Written(io::Result<()>, SharedBuf),
    /// An fsync, fdatasync or fallocate finished, or a whole move ([`Io::move_ublk`]).
    Synced(io::Result<()>),
    /// A call on a file was made ([`Io::call_file`]).
    Called(io::Result<()>, Box<FileCall>),
    /// The kernel asks for something with a tag of a ublk disk ([`Io::ublk`]), or ENODEV: it will never ask again.
    /// The buffer has the data if it asks for a write.
    Ublk(io::Result<UblkDescriptor>, IoBuf),
    /// A timer expired.
    Timer,
    /// An engine has finished an operation on data: [`Io::accelerated`] gives it.
    Accelerated(FinishedId),
}

/// Whether a receive came back because of [`Io::stop_recv`], or because its socket was closed.
#[must_use]
pub fn is_taken_back(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}

/// One finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The token the operation was started with.
    pub token: Token,
    /// What became of it.
    pub outcome: Outcome,
}

/// Sockets, files, clock, timers and offload engines of one core. Used by one thread only.
///
/// No call blocks except [`Io::poll`] with [`Wait::Yes`]; no call fails: errors of an operation
/// are its completion, never delivered from inside the call that started it.
pub trait Io {
    /// The time as of the last [`Io::poll`] (virtual in simulation).
    fn now(&self) -> Instant;

    /// Starts listening; every connection arrives as [`Outcome::Accepted`] with `token`.
    /// Gives the real address (port 0 asks for any free port).
    ///
    /// # Errors
    /// The error of socket(2), bind(2) or listen(2).
    fn listen(&mut self, address: SocketAddr, token: Token)
    -> io::Result<(ListenerId, SocketAddr)>;

    /// [`Io::listen`] with a socket that is told more before. Where no socket of the kernel listens, the
    /// options have no meaning.
    ///
    /// # Errors
    /// As [`Io::listen`], and that of setsockopt(2).
    fn listen_with(
        &mut self,
        address: SocketAddr,
        options: ListenOptions<'_>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let _ = options;
        self.listen(address, token)
    }

    /// Stops listening; no more completions for it arrive.
    fn close_listener(&mut self, listener: ListenerId);

    /// Starts listening with a listener of a provider ([`stream`]), as [`Io::listen`] does.
    ///
    /// # Errors
    /// When the listener's source cannot be waited for here.
    fn listen_provided(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let _ = (listener, token);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Starts connecting, from an address of this machine if one is named; finishes as
    /// [`Outcome::Connected`]. The kernel chooses the port, and without a name the address, too.
    fn connect(&mut self, address: SocketAddr, source: Option<IpAddr>, token: Token);

    /// [`Io::connect`] with a socket that is told more before. Where no socket of the kernel connects,
    /// options beside the source have no meaning.
    fn connect_with(&mut self, address: SocketAddr, options: ConnectOptions, token: Token) {
        self.connect(address, options.source, token);
    }

    /// Makes a socket (from an accept or connect, maybe on another core) usable here.
    ///
    /// # Errors
    /// When the socket cannot be registered.
    fn adopt(&mut self, socket: Socket) -> io::Result<SocketId>;

    /// Gives a socket up, so that another core can adopt it; bytes that have come wait for that core. `ends` are
    /// its own address and its peer's. `None`: something of the socket is in flight, so it stays here.
    fn release(&mut self, socket: SocketId, ends: (SocketAddr, SocketAddr)) -> Option<Socket>;

    /// What has to do with other processes; `None` in simulation.
    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        None
    }

    /// The name that the peer of a socket has proved to have, once it has. `None` for a socket without a
    /// provider that asks for such a proof.
    fn peer_identity(&self, socket: SocketId) -> Option<&str> {
        let _ = socket;
        None
    }

    /// Says what a socket is for, from its next operation on; before that it counts as
    /// [`SocketClass::ADMIN`].
    ///
    /// With [`SocketClass::core_staging`], receives that offer all of their staging memory may end in
    /// memory of the core instead, which may be larger and is still in the caches. Such a receive
    /// comes back with that memory as its `staging`, filled from its beginning; the next receive of
    /// the socket takes it along in place of its own. A back end may have no such memory.
    fn declare(&mut self, socket: SocketId, class: SocketClass);

    /// What this core has under way.
    fn flight(&mut self) -> &mut Flight;

    /// Starts one receive. At most one is in flight per socket.
    ///
    /// # Panics
    /// If a range is not inside its buffer.
    fn recv(&mut self, socket: SocketId, buffers: RecvBuffers, token: Token);

    /// Bytes that have come for a socket and that no receive has taken yet; 0 if that is not known.
    fn unread(&mut self, socket: SocketId) -> usize {
        let _ = socket;
        0
    }

    /// Starts sending a batch, as few system calls as possible. At most one per socket.
    fn send(&mut self, socket: SocketId, batch: Box<SendBatch>, token: Token);

    /// Closes. Operations in flight complete before the descriptor goes away, with an error unless they
    /// had already succeeded. A send in flight is cut off: an owner that wants its batch to arrive waits
    /// for it first. Pending output is discarded with `reset` (SO_LINGER 0), and if memory that is still
    /// to be read for it goes back to its owner ([`SendBatch::push_kept`]).
    fn close(&mut self, socket: SocketId, reset: bool);

    /// Makes an open file usable for operations.
    fn register_file(&mut self, file: Arc<File>) -> FileId;

    /// Makes the generic device of an NVMe namespace usable for the same operations, which then are
    /// NVMe commands.
    ///
    /// # Errors
    /// `Unsupported` where there is no io_uring, or it is too old for that.
    fn register_nvme(&mut self, file: Arc<File>, format: NvmeFormat) -> io::Result<FileId> {
        let _ = (file, format);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the queue of a ublk disk usable that is this core's, the only one: the kernel binds it to this thread.
    ///
    /// # Errors
    /// `Unsupported` where there is no io_uring; that of mmap(2) or io_uring_setup(2).
    fn open_ublk(&mut self, file: Arc<File>, queue: UblkQueue) -> io::Result<()> {
        let _ = (file, queue);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Asks for the next request of a tag of that queue, which finishes as [`Outcome::Ublk`] when there is one. With a
    /// commit, the buffer first gives the data of a read.
    fn ublk(&mut self, command: UblkCommand, buf: IoBuf, token: Token) {
        // No back end without a way to open a queue has a caller for this.
        let _ = (command, buf, token);
        debug_assert!(false, "no queue of a ublk disk was opened");
    }

    /// Moves data between a file and the pages of a request of that queue, which is not committed before the end of the
    /// move; finishes as [`Outcome::Synced`]. The kernel refuses what the file cannot take in this way (EINVAL), and a
    /// request whose pages it could not register (EFAULT).
    fn move_ublk(&mut self, file: FileId, what: UblkMove, token: Token) {
        let _ = (file, what, token);
        debug_assert!(false, "no queue of a ublk disk was opened");
    }

    /// Says where the memory of file operations usually comes from, before the first file: a ring
    /// may have the kernel keep it mapped, and lives no longer than the pool.
    fn lend_pool(&mut self, pool: &BufferPool) {
        let _ = pool;
    }

    /// Drops a file once operations in flight have completed.
    fn close_file(&mut self, file: FileId);

    /// Reads `buf.len()` bytes at `offset`.
    fn read(&mut self, file: FileId, buf: IoBuf, offset: u64, token: Token);

    /// Writes all of `buf` at `offset`; with `durable`, on stable media before it completes
    /// (RWF_DSYNC).
    fn write(&mut self, file: FileId, buf: SharedBuf, offset: u64, durable: bool, token: Token);

    /// Makes everything written so far durable (fdatasync).
    fn sync(&mut self, file: FileId, token: Token);

    /// Releases or zeroes a range.
    fn allocate(&mut self, file: FileId, mode: AllocateMode, offset: u64, len: u64, token: Token);

    /// Has another thread make a call that may block for long, and that a file system need not know:
    /// then its error is `Unsupported`.
    fn call_file(&mut self, file: FileId, call: Box<FileCall>, token: Token);

    /// Asks for one [`Outcome::Timer`] at `at` or soon after. Timers cannot be cancelled:
    /// the owner checks the token.
    fn timer(&mut self, at: Instant, token: Token);

    /// The way to the engines that [`Io::accelerate`] uses.
    fn accelerator(&mut self) -> &mut Accelerator;

    /// Starts an operation on data. If the CPU does it, it is done at once and comes back. If an engine
    /// does it, it finishes as [`Outcome::Accelerated`] with `token`.
    fn accelerate(&mut self, work: Work, token: Token) -> Accelerated {
        self.accelerator().start(work, token)
    }

    /// True if [`Io::accelerate`] does operations of this kind at once.
    fn accelerates_now(&mut self, code: raceline_accel::OpCode) -> bool {
        self.accelerator().is_immediate(code)
    }

    /// True if payloads are copied and digested while they are sent ([`SendBatch::push_digested`]): only
    /// the CPU would do it.
    fn copies_on_the_way(&mut self) -> bool {
        self.accelerator().is_copier()
    }

    /// Takes an operation that an engine has finished, once.
    fn accelerated(&mut self, finished: FinishedId) -> Option<WorkDone> {
        self.accelerator().take(finished)
    }

    /// Submits what was started, collects what has finished into `done` (which grows: the
    /// caller empties it). A waiting poll that was woken may have nothing to give.
    ///
    /// # Errors
    /// Only when the ring itself is broken; the core cannot go on.
    fn poll(&mut self, wait: Wait, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Has the kernel look into the receive queues of this core's sockets for at most `time` before each wait
    /// sleeps, and prefer that to interrupts. Gives what the kernel then says that it does.
    ///
    /// # Errors
    /// `Unsupported` where the kernel has no such setting (Linux 6.9 has), and in simulation.
    fn busy_poll(&mut self, time: Duration) -> io::Result<WaitPolling> {
        let _ = time;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A handle by which other threads end a waiting [`Io::poll`].
    fn waker(&self) -> Waker;

    /// What it has asked of the kernel so far (in simulation, nothing), and what it has decided.
    fn counts(&self) -> IoCounts {
        IoCounts::default()
    }

    /// Where it counts how batches leave that are not simply copied.
    fn departures(&self) -> Arc<DepartureStats> {
        Arc::default()
    }
}
