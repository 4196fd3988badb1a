//! [`Io`] on io_uring.
//!
//! Sockets are tried with plain system calls first (`direct`). What these cannot finish goes to
//! the ring: every operation there has a slot that owns its memory and has a fixed address;
//! `user_data` names the slot. Starting one only writes a submission entry; [`Io::poll`] enters
//! the kernel once for all of them, and not at all when there is neither a submission nor a
//! completion to fetch.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::accel::accelerator::Accelerator;
use crate::flow::{Flight, SocketClass};
use crate::io::busy_poll::{self, WaitPolling};
use crate::io::file_threads::FileWorkers;
use crate::io::nvme::NvmeFormat;
use crate::io::provided::Provided;
use crate::io::slab::Slab;
use crate::io::socket::{self, ConnectOptions, Inner, ListenOptions, Socket};
use crate::io::staging::CoreStaging;
use crate::io::stream::StreamListener;
use crate::io::timer::{TIMER_CAPACITY, TimerQueue};
use crate::io::ublk::{UblkCommand, UblkMove, UblkQueue};
use crate::io::{
    AllocateMode, Completion, FileCall, FileId, HandsOver, Io, ListenerId, Outcome, RecvBuffers,
    SocketId, Token, Wait,
};
use crate::memory::buffer::{BufferPool, IoBuf, SharedBuf};
use crate::send::SendBatch;
use crate::send::neighbours::Neighbours;
use crate::send::pages::PagePipe;
use crate::thread::stats::{DepartureStats, IoCounts};
use crate::thread::waker::Waker;

mod accept;
mod closing;
mod direct;
mod files;
mod fixed;
mod flagged;
pub(crate) mod nvme;
mod ops;
mod provided;
mod ring;
mod ublk;
mod zero_copy;

use accept::ListenerSlot;
use direct::{RecvAt, SocketSlot};
use fixed::FixedMemory;
use nvme::NvmeRing;
use ops::{Kind, OpSlab, whole};
use ring::open_ring;
use ublk::UblkRing;
use zero_copy::ZeroCopy;

/// Completions taken from the ring at once.
const HARVEST: usize = 64;

/// Most bytes of one read or write: its length field has 32 bits.
const FILE_IO_MAX: u32 = 1 << 30;

/// `user_data` of the poll on the waker's eventfd.
const WAKER_DATA: u64 = u64::MAX;

/// `user_data` of cancellations, whose results are not needed.
const CANCEL_DATA: u64 = u64::MAX - 1;

/// `user_data` of the poll on the ring for NVMe commands.
const NVME_DATA: u64 = u64::MAX - 2;

/// `user_data` of the poll on the ring for a ublk disk.
const UBLK_DATA: u64 = u64::MAX - 3;

/// `IORING_ENTER_GETEVENTS` and `IORING_ENTER_EXT_ARG` of the io_uring ABI.
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;

/// Sockets, files, clock and timers of one core, on one ring.
pub struct UringIo {
    ring: IoUring,
    ops: OpSlab,
    /// Submissions that found the ring full.
    backlog: VecDeque<squeue::Entry>,
    /// Completions that needed no kernel.
    ready: VecDeque<Completion>,
    sockets: Slab<SocketSlot>,
    /// Sockets whose receive is tried at every poll and not in the ring, each once.
    direct: VecDeque<u32>,
    /// Streams and listeners of providers; sockets above are the kernel's.
    provided: Provided,
    staging: CoreStaging,
    pages: PagePipe,
    zero_copy: ZeroCopy,
    departures: Arc<DepartureStats>,
    listeners: Slab<ListenerSlot>,
    files: Slab<FileSlot>,
    fixed: FixedMemory,
    /// For calls on files that no ring can make.
    callers: Option<FileWorkers>,
    /// For files that are generic devices of NVMe namespaces.
    nvme: Option<Box<NvmeRing>>,
    /// For a queue of a ublk disk.
    ublk: Option<Box<UblkRing>>,
    timers: TimerQueue<Timer>,
    waker: Waker,
    woken: bool,
    accelerator: Accelerator,
    now: Instant,
    neighbours: Neighbours,
    flight: Flight,
    counts: IoCounts,
}

struct FileSlot {
    file: Arc<File>,
    nvme: Option<NvmeFormat>,
    in_flight: u32,
    closing: bool,
}

enum Timer {
    Token(Token),
    /// Time to accept again.
    Accept(u32),
    /// Time to look whether what was to follow has.
    Uncork(u32),
}

impl UringIo {
    /// A ring for the calling thread, which alone may use it.
    ///
    /// # Errors
    /// `Unsupported` if the kernel lacks something (Linux 5.19 has all), else the error of
    /// io_uring_setup(2): EPERM, ENOSYS or ENOMEM where it is not permitted.
    pub fn new() -> io::Result<UringIo> {
        let ring = open_ring()?;
        let params = ring.params();
        if !(params.is_feature_ext_arg()
            && params.is_feature_nodrop()
            && params.is_feature_fast_poll())
        {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let zero_copy = ZeroCopy::new(ring::knows_zero_copy(&ring));
        let mut io = UringIo {
            ring,
            ops: OpSlab::new(),
            backlog: VecDeque::new(),
            ready: VecDeque::new(),
            sockets: Slab::new(),
            direct: VecDeque::new(),
            provided: Provided::default(),
            staging: CoreStaging::default(),
            pages: PagePipe::default(),
            zero_copy,
            departures: Arc::default(),
            listeners: Slab::new(),
            files: Slab::new(),
            fixed: FixedMemory::default(),
            callers: None,
            nvme: None,
            ublk: None,
            timers: TimerQueue::with_capacity(TIMER_CAPACITY),
            waker: Waker::new()?,
            woken: false,
            accelerator: Accelerator::default(),
            now: Instant::now(),
            neighbours: Neighbours::default(),
            flight: Flight::default(),
            counts: IoCounts::default(),
        };
        io.watch_waker();
        Ok(io)
    }

    fn watch_waker(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.waker.fd()), POLL_IN).multi(true);
        self.push(poll.build().user_data(WAKER_DATA));
    }

    /// Queues a submission; [`Io::poll`] takes it to the kernel.
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: what the entry points at belongs to an operation slot, which stays where it
        // is until the operation's completion; or the entry points at nothing.
        let pushed =
            self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry).is_ok() };
        if !pushed {
            self.backlog.push_back(entry);
        }
    }

    /// Moves what waits in the backlog to the ring; true if nothing is left.
    fn refill(&mut self) -> bool {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { submission.push(entry).is_err() } {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    /// Puts an operation in its slot and submits it.
    fn start(&mut self, token: Token, kind: Kind) -> u64 {
        let user_data = self.ops.insert(token, kind);
        self.submit_op(user_data);
        user_data
    }

    /// Submits the next system call of an operation that is in its slot.
    fn submit_op(&mut self, user_data: u64) {
        let Some(slot) = self.ops.get_mut(user_data) else { return };
        let fd = match slot.kind() {
            Kind::Connect { fd, .. } => Some(fd.as_raw_fd()),
            Kind::Accept { listener, .. } => {
                self.listeners.get(*listener).map(|slot| slot.fd.as_raw_fd())
            }
            Kind::Recv { socket, .. }
            | Kind::Send { socket, .. }
            | Kind::SendKept { socket, .. } => {
                self.sockets.get(*socket).map(|slot| slot.fd.as_raw_fd())
            }
            Kind::Watch { slot, .. } => self.provided.fd(*slot),
            Kind::Read { file, .. }
            | Kind::Write { file, .. }
            | Kind::Sync { file }
            | Kind::Allocate { file, .. } => {
                let file = self.files.get(*file);
                let fd = file.map(|slot| slot.file.as_raw_fd());
                if let (Some(fd), Some(format), Some(ring)) =
                    (fd, file.and_then(|slot| slot.nvme), &mut self.nvme)
                {
                    ring.push(user_data, fd, slot.prepare_nvme(format));
                    return;
                }
                fd
            }
        };
        // An operation in flight keeps its descriptor's slot, so there always is one.
        let fd = fd.expect("an operation's descriptor outlives it");
        let entry = slot.prepare(Fd(fd), &self.fixed).user_data(user_data);
        self.push(entry);
    }

    fn cancel(&mut self, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build().user_data(CANCEL_DATA);
        self.push(entry);
    }

    fn finish(&mut self, token: Token, outcome: Outcome) {
        self.ready.push_back(Completion { token, outcome });
    }

    /// Enters the kernel if there is a reason to; waits for a completion if told to.
    fn enter(&mut self, wait: bool) -> io::Result<()> {
        let submission = self.ring.submission();
        let to_submit = submission.len();
        let fetch = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if to_submit == 0 && !fetch && !wait {
            return Ok(());
        }
        // With deferred task work, completions are only posted by a call that asks for them.
        let flags = ENTER_GETEVENTS | if wait { ENTER_EXT_ARG } else { 0 };
        let next_timer = self.timers.next_at().filter(|_| wait);
        let timeout = next_timer.map(|at| at.saturating_duration_since(Instant::now()));
        let timespec = timeout.map(Timespec::from).unwrap_or_default();
        let args = SubmitArgs::new();
        let args = if timeout.is_some() { args.timespec(&timespec) } else { args };
        let to_submit = u32::try_from(to_submit).unwrap_or(u32::MAX);
        self.counts.system_calls += 1;
        let submitter = self.ring.submitter();
        // SAFETY: the arguments live across the call, and the submissions' memory is in slots.
        let result = unsafe {
            if wait {
                submitter.enter(to_submit, 1, flags, Some(&args))
            } else {
                submitter.enter::<libc::sigset_t>(to_submit, 0, flags, None)
            }
        };
        match result {
            Ok(_) => Ok(()),
            // A timer is due; a signal came; the kernel wants its completions fetched first, or
            // is short of memory: what was not submitted is submitted the next time.
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes all completions from the ring.
    fn harvest(&mut self, done: &mut Vec<Completion>) {
        loop {
            let mut entries = [const { MaybeUninit::<cqueue::Entry>::uninit() }; HARVEST];
            let count = self.ring.completion().fill(&mut entries).len();
            for entry in &entries[..count] {
                // SAFETY: `fill` initialised the first `count`.
                let entry = unsafe { entry.assume_init_ref() };
                self.handle(entry.user_data(), entry.result(), entry.flags(), done);
            }
            if count < HARVEST {
                return;
            }
        }
    }

    fn handle(&mut self, user_data: u64, result: i32, flags: u32, done: &mut Vec<Completion>) {
        if cqueue::notif(flags) {
            return self.handle_notice(user_data, result);
        }
        let more = cqueue::more(flags);
        match user_data {
            CANCEL_DATA => return,
            NVME_DATA => return self.handle_nvme_news(),
            UBLK_DATA => return self.handle_ublk_news(),
            WAKER_DATA => {
                self.waker.drain();
                self.counts.system_calls += 1;
                self.woken = true;
                if !more {
                    self.watch_waker();
                }
                return;
            }
            _ => {}
        }
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        let Some(slot) = self.ops.get_mut(user_data) else {
            debug_assert!(false, "a completion for no operation");
            return;
        };
        let token = slot.token();
        match slot.kind() {
            Kind::Accept { listener, .. } => {
                let listener = *listener;
                self.handle_accept(user_data, listener, result, more, done);
            }
            Kind::Watch { .. } => self.handle_watch(user_data),
            Kind::SendKept { .. } => self.handle_kept(user_data, token, result, more, done),
            _ => self.settle(user_data, token, result, done),
        }
    }
    /// Goes on with an operation, or ends it.
    fn settle(
        &mut self,
        user_data: u64,
        token: Token,
        result: io::Result<usize>,
        done: &mut Vec<Completion>,
    ) {
        if self.continues(user_data, &result) {
            self.submit_op(user_data);
            return;
        }
        if let Some(kind) = self.ops.remove(user_data) {
            let outcome = self.complete(kind, result);
            done.push(Completion { token, outcome });
        }
    }

    /// Takes note of progress; true if the operation needs another system call.
    fn continues(&mut self, user_data: u64, result: &io::Result<usize>) -> bool {
        let Some(slot) = self.ops.get_mut(user_data) else { return false };
        let closing = |sockets: &Slab<SocketSlot>, socket: &u32| {
            sockets.get(*socket).is_none_or(|slot| slot.closing)
        };
        let again = matches!(
            result.as_ref().map_err(io::Error::raw_os_error),
            Err(Some(libc::EAGAIN | libc::EINTR))
        );
        match (slot.kind_mut(), result) {
            (Kind::Recv { socket, .. }, result) => {
                self.counts.received(*result.as_ref().unwrap_or(&0));
                again && !closing(&self.sockets, socket)
            }
            (Kind::Send { socket, batch }, result) => {
                if let Ok(sent) = result {
                    if batch.is_flagged() {
                        self.departures.count_flags(batch.flags());
                    }
                    self.counts.sent(*sent);
                    batch.advance(*sent);
                }
                (again || result.is_ok()) && !batch.is_empty() && !closing(&self.sockets, socket)
            }
            (Kind::Read { buf, progress, .. }, Ok(count)) => {
                *progress += count;
                *count > 0 && *progress < buf.len()
            }
            (Kind::Write { buf, progress, .. }, Ok(count)) => {
                *progress += count;
                *count > 0 && *progress < buf.len()
            }
            (
                Kind::Read { .. } | Kind::Write { .. } | Kind::Sync { .. } | Kind::Allocate { .. },
                Err(_),
            ) => again,
            (
                Kind::Connect { .. }
                | Kind::Accept { .. }
                | Kind::Watch { .. }
                | Kind::SendKept { .. },
                _,
            ) => false,
            // On a file it is done at once, with result 0.
            (Kind::Allocate { len, progress, .. }, Ok(count)) => {
                *progress += *count as u64;
                *count > 0 && *progress < *len
            }
            (Kind::Sync { .. }, Ok(_)) => false,
        }
    }

    /// Turns a finished operation into what its owner gets.
    fn complete(&mut self, kind: Kind, result: io::Result<usize>) -> Outcome {
        match kind {
            Kind::Accept { .. } | Kind::Watch { .. } | Kind::SendKept { .. } => {
                unreachable!("they are handled apart")
            }
            Kind::Connect { fd, .. } => {
                Outcome::Connected(result.and_then(|_| Socket::from_fd(fd)))
            }
            Kind::Recv { socket, buffers } => {
                if let Some(slot) = self.sockets.get_mut(socket) {
                    slot.recv = None;
                }
                self.close_if_idle(socket);
                Outcome::Received(result, buffers)
            }
            Kind::Send { socket, batch } => {
                if let Some(slot) = self.sockets.get_mut(socket) {
                    slot.send = None;
                }
                self.close_if_idle(socket);
                self.note_corked(socket, &batch);
                Outcome::Sent(sent_whole(result, &batch), batch)
            }
            Kind::Read { file, buf, progress, .. } => {
                self.file_idle(file);
                Outcome::Read(whole(result, progress, buf.len(), io::ErrorKind::UnexpectedEof), buf)
            }
            Kind::Write { file, buf, progress, .. } => {
                self.file_idle(file);
                Outcome::Written(whole(result, progress, buf.len(), io::ErrorKind::WriteZero), buf)
            }
            Kind::Sync { file } | Kind::Allocate { file, .. } => {
                self.file_idle(file);
                Outcome::Synced(result.map(|_| ()))
            }
        }
    }

    fn expire_timers(&mut self, done: &mut Vec<Completion>) {
        while let Some(timer) = self.timers.pop_due(self.now) {
            match timer {
                Timer::Token(token) => done.push(Completion { token, outcome: Outcome::Timer }),
                Timer::Accept(listener) => self.resume_accept(listener, done),
                Timer::Uncork(socket) => self.uncork(socket),
            }
        }
    }
}

impl Io for UringIo {
    fn now(&self) -> Instant {
        self.now
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.listen_with(address, ListenOptions::default(), token)
    }

    fn listen_with(
        &mut self,
        address: SocketAddr,
        options: ListenOptions<'_>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let (fd, address) = socket::listen(address, options)?;
        let slot = ListenerSlot::new(fd, token, false);
        let id = self.listeners.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        self.start_accept(id);
        Ok((ListenerId(id), address))
    }

    fn close_listener(&mut self, listener: ListenerId) {
        let Some(slot) = self.listeners.get_mut(listener.0) else {
            return self.close_provided_listener(listener);
        };
        slot.closing = true;
        socket::stop_listening(&slot.fd);
        match slot.accept {
            Some(accept) => self.cancel(accept),
            None => drop(self.listeners.remove(listener.0)),
        }
    }

    fn connect(&mut self, address: SocketAddr, source: Option<IpAddr>, token: Token) {
        self.connect_with(address, ConnectOptions { source, ..Default::default() }, token);
    }

    fn connect_with(&mut self, address: SocketAddr, options: ConnectOptions, token: Token) {
        match socket::for_connect(address, options) {
            Ok(fd) => {
                let address = Box::new(address.into());
                self.start(token, Kind::Connect { fd, address });
            }
            Err(error) => self.finish(token, Outcome::Connected(Err(error))),
        }
    }

    fn adopt(&mut self, socket: Socket) -> io::Result<SocketId> {
        let slot = match socket.into_inner() {
            Inner::Os(fd) => SocketSlot::new(fd),
            Inner::Provided(stream) => return self.adopt_stream(stream),
            Inner::Simulated(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let id = self.sockets.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        Ok(SocketId(id))
    }

    fn listen_provided(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        // Refuses a source that is not real.
        listener.source().real()?;
        let (_, id, address) = self.provided.listen(listener, token)?;
        Ok((id, address))
    }

    fn peer_identity(&self, socket: SocketId) -> Option<&str> {
        self.provided.peer_identity(socket)
    }

    fn declare(&mut self, socket: SocketId, class: SocketClass) {
        if let Some(slot) = self.sockets.get_mut(socket.0) {
            slot.class = class;
            self.staging.expect(class.core_staging);
        } else {
            self.provided.declare(socket, class);
        }
    }

    fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }

    fn recv(&mut self, socket: SocketId, mut buffers: RecvBuffers, token: Token) {
        // Panics for a wrong range here, where it was made and nothing is in flight yet.
        buffers.iovecs();
        let usable = |slot: &&SocketSlot| !slot.closing && slot.recv.is_none();
        if self.sockets.get(socket.0).filter(usable).is_none() || buffers.room() == 0 {
            return self.recv_provided(socket, buffers, token);
        }
        self.start_recv(socket, buffers, token);
    }

    fn unread(&mut self, socket: SocketId) -> usize {
        self.counts.system_calls += 1;
        match self.sockets.get(socket.0) {
            Some(slot) => socket::unread(&slot.fd),
            None => self.provided.unread(socket),
        }
    }

    fn send(&mut self, socket: SocketId, mut batch: Box<SendBatch>, token: Token) {
        let usable = |slot: &&SocketSlot| !slot.closing && slot.send.is_none();
        let Some(slot) = self.sockets.get(socket.0).filter(usable) else {
            return self.send_provided(socket, batch, token);
        };
        if batch.is_empty() {
            self.finish(token, Outcome::Sent(Ok(()), batch));
            return;
        }
        self.neighbours.plan(socket, &slot.class, self.now, &mut batch);
        self.start_send(socket, batch, token);
    }

    fn release(&mut self, socket: SocketId, ends: (SocketAddr, SocketAddr)) -> Option<Socket> {
        self.release_socket(socket, ends)
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        Some(self)
    }

    fn close(&mut self, socket: SocketId, reset: bool) {
        let Some(slot) = self.sockets.get_mut(socket.0).filter(|slot| !slot.closing) else {
            return self.close_provided(socket, reset);
        };
        slot.closing = true;
        socket::prepare_close(&slot.fd, slot.copied_since, reset);
        let recv = match slot.recv {
            Some(RecvAt::Ring(user_data)) => Some(user_data),
            Some(RecvAt::Direct(_)) | None => None,
        };
        [recv, slot.send].into_iter().flatten().for_each(|user_data| self.cancel(user_data));
        self.cancel_direct(socket.0);
        self.close_if_idle(socket.0);
    }

    fn lend_pool(&mut self, pool: &BufferPool) {
        self.fixed.lend(pool);
    }

    fn register_file(&mut self, file: Arc<File>) -> FileId {
        self.fixed.register(&self.ring);
        let slot = FileSlot { file, nvme: None, in_flight: 0, closing: false };
        // An id that names nothing makes every operation fail, as for a closed file.
        FileId(self.files.insert(slot).unwrap_or(u32::MAX))
    }

    fn register_nvme(&mut self, file: Arc<File>, format: NvmeFormat) -> io::Result<FileId> {
        if self.nvme.is_none() {
            self.nvme = Some(Box::new(NvmeRing::new()?));
        }
        let slot = FileSlot { file, nvme: Some(format), in_flight: 0, closing: false };
        let id = self.files.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        Ok(FileId(id))
    }

    fn open_ublk(&mut self, file: Arc<File>, queue: UblkQueue) -> io::Result<()> {
        self.open_ublk_ring(file, queue)
    }

    fn ublk(&mut self, command: UblkCommand, buf: IoBuf, token: Token) {
        self.push_ublk(command, buf, token);
    }

    fn move_ublk(&mut self, file: FileId, what: UblkMove, token: Token) {
        self.push_ublk_move(file, what, token);
    }

    fn close_file(&mut self, file: FileId) {
        let Some(slot) = self.files.get_mut(file.0) else { return };
        slot.closing = true;
        if slot.in_flight == 0 {
            self.files.remove(file.0);
        }
    }

    fn read(&mut self, file: FileId, buf: IoBuf, offset: u64, token: Token) {
        self.start_file_op(file, token, Kind::Read { file: file.0, buf, offset, progress: 0 });
    }

    fn write(&mut self, file: FileId, buf: SharedBuf, offset: u64, durable: bool, token: Token) {
        let kind = Kind::Write { file: file.0, buf, offset, durable, progress: 0 };
        self.start_file_op(file, token, kind);
    }

    fn sync(&mut self, file: FileId, token: Token) {
        self.start_file_op(file, token, Kind::Sync { file: file.0 });
    }

    fn allocate(&mut self, file: FileId, mode: AllocateMode, offset: u64, len: u64, token: Token) {
        let kind = Kind::Allocate { file: file.0, mode, offset, len, progress: 0 };
        self.start_file_op(file, token, kind);
    }

    fn call_file(&mut self, file: FileId, call: Box<FileCall>, token: Token) {
        self.start_call(file, token, call);
    }

    fn timer(&mut self, at: Instant, token: Token) {
        self.timers.push(at, Timer::Token(token));
    }

    fn poll(&mut self, wait: Wait, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        // Only a poll finds out that an engine has finished.
        let busy = self.accelerator.poll(self.now, done);
        let wait = if busy { Wait::No } else { wait };
        loop {
            done.extend(self.ready.drain(..));
            self.collect_calls(done);
            self.poll_nvme(done)?;
            self.poll_ublk(done)?;
            self.try_direct(done);
            if self.provided.is_used() {
                self.try_provided(done);
            }
            let mut sleeps = wait == Wait::Yes && done.len() == before;
            if sleeps {
                self.all_to_ring();
                self.watch_nvme(done)?;
                self.watch_ublk(done)?;
                sleeps = self.watch_provided();
                self.woken |= !sleeps;
            }
            while !self.refill() {
                self.enter(false)?;
                self.harvest(done);
            }
            // (who wants another turn gets it before a sleep)
            let idle =
                sleeps && !self.woken && done.len() == before && self.ring.completion().is_empty();
            if idle && self.waker.start_wait() {
                let entered = self.enter(true);
                self.waker.end_wait();
                entered?;
            } else {
                self.woken |= idle;
                self.enter(false)?;
            }
            self.harvest(done);
            self.poll_nvme(done)?;
            self.poll_ublk(done)?;
            self.now = Instant::now();
            self.expire_timers(done);
            let woken = std::mem::take(&mut self.woken);
            if wait == Wait::No || woken || done.len() > before {
                return Ok(());
            }
        }
    }

    fn accelerator(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }

    fn busy_poll(&mut self, time: Duration) -> io::Result<WaitPolling> {
        busy_poll::set_ring(&self.ring.submitter(), time)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counts(&self) -> IoCounts {
        IoCounts { shared_sends: self.neighbours.in_shares(), ..self.counts }
    }

    fn departures(&self) -> Arc<DepartureStats> {
        Arc::clone(&self.departures)
    }
}

/// The result of a send. Cut short by a close: the kernel reports what it had taken until then.
fn sent_whole(result: io::Result<usize>, batch: &SendBatch) -> io::Result<()> {
    let cut = || io::Error::from_raw_os_error(libc::ECANCELED);
    result.and_then(|_| if batch.is_empty() { Ok(()) } else { Err(cut()) })
}

/// POLLIN, as the ring takes it.
const POLL_IN: u32 = 1;
