//! [`Io`] on epoll(7), for systems where io_uring is not permitted.
//!
//! Sockets are watched edge-triggered, once, when they are adopted; what they are ready for is
//! remembered. [`Io::poll`] makes the system calls: starting an operation only notes it. Files
//! have no readiness, so a few threads do their (blocking) calls.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::accel::accelerator::Accelerator;
use crate::flow::{Departure, Flight, SocketClass};
use crate::io::file_op::FileOp;
use crate::io::file_threads::FileWorkers;
use crate::io::nonblocking::{receive, transmit};
use crate::io::provided::Provided;
use crate::io::slab::Slab;
use crate::io::socket::{
    self, ACCEPT_PAUSE, ConnectOptions, ListenOptions, Socket, accept_outcome,
    is_transient_accept_error, not_usable,
};
use crate::io::stream::StreamListener;
use crate::io::timer::{TIMER_CAPACITY, TimerQueue};
use crate::io::{
    AllocateMode, Completion, FileCall, FileId, HandsOver, Io, ListenerId, Outcome, RecvBuffers,
    SocketId, Token, Wait, room,
};
use crate::memory::buffer::{IoBuf, SharedBuf};
use crate::send::neighbours::Neighbours;
use crate::send::{SendBatch, UNCORK_AFTER};
use crate::thread::stats::{DepartureStats, IoCounts};
use crate::thread::waker::Waker;

mod connect;
mod ownership;
mod provided;
mod sleeper;

pub use sleeper::Sleeper;

/// File calls that can be in progress at once, per core. More wait in line.
const FILE_THREADS: usize = 4;

/// Events taken from the kernel per poll.
const EVENTS: usize = 256;

/// Connections accepted per listener and poll, so that a storm does not delay others.
const ACCEPTS_PER_POLL: usize = 64;

/// Most sockets that an eager instance tries at every poll; with more, events say which to try.
const EAGER_SOCKETS: usize = 4;

/// Polls in a row that an eager instance makes without asking for events.
const EAGER_POLLS: u32 = 32;

/// Waits below are not rounded to milliseconds: the owner of such a timer needs the precision.
const SHORT_WAIT: Duration = Duration::from_millis(10);

/// What an event is about: this in the upper half of its data, an id in the lower.
const SOCKET: u64 = 0;
const LISTENER: u64 = 1;
const CONNECT: u64 = 2;
const WAKER: u64 = 3;
const PROVIDED: u64 = 4;

const READABLE: u32 = libc::EPOLLIN.cast_unsigned();
const WRITABLE: u32 = libc::EPOLLOUT.cast_unsigned();
const HUNG_UP: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR).cast_unsigned();
const EDGE: u32 = libc::EPOLLET.cast_unsigned();

/// Sockets, files, clock and timers of one core, on one epoll instance. Timers have the
/// resolution of epoll_wait(2), a millisecond.
///
/// Unlike a ring, it may be used by one thread after another.
pub struct EpollIo {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    sockets: Slab<SocketSlot>,
    /// Sockets whose operations may be able to go on, each at most once.
    attempts: Vec<u32>,
    /// Sockets whose batch goes on with the next poll.
    unfinished: Vec<u32>,
    /// Streams and listeners of providers; sockets above are the kernel's.
    provided: Provided,
    listeners: Slab<ListenerSlot>,
    connects: Slab<ConnectSlot>,
    files: Slab<Arc<File>>,
    /// Started with the first file.
    workers: Option<FileWorkers>,
    /// Completions that are known without a further system call.
    ready: VecDeque<Completion>,
    timers: TimerQueue<Timer>,
    waker: Waker,
    woken: bool,
    accelerator: Accelerator,
    now: Instant,
    neighbours: Neighbours,
    flight: Flight,
    counts: IoCounts,
    departures: Arc<DepartureStats>,
    /// Tries the sockets themselves before it asks which are ready.
    eager: bool,
    /// Polls since events were asked for.
    polls_without_events: u32,
}

struct SocketSlot {
    fd: OwnedFd,
    class: SocketClass,
    recv: Option<(Token, RecvBuffers)>,
    send: Option<(Token, Box<SendBatch>)>,
    readable: bool,
    writable: bool,
    /// The peer has finished or the connection is broken: no further edge will come.
    hung_up: bool,
    /// It is in `attempts`.
    attempting: bool,
    /// The last bytes that were sent wait in the kernel for more.
    corked: bool,
}

struct ListenerSlot {
    fd: OwnedFd,
    token: Token,
    /// It accepts nothing for now.
    paused: bool,
}

struct ConnectSlot {
    fd: OwnedFd,
    token: Token,
}

enum Timer {
    Token(Token),
    /// Time to accept again.
    Accept(u32),
    /// Time to look whether what was to follow has.
    Uncork(u32),
}

impl EpollIo {
    /// An epoll instance for the calling thread.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn new() -> io::Result<EpollIo> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and without another owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let waker = Waker::new()?;
        let io = EpollIo {
            epoll,
            events: Vec::with_capacity(EVENTS),
            sockets: Slab::new(),
            attempts: Vec::new(),
            unfinished: Vec::new(),
            provided: Provided::default(),
            listeners: Slab::new(),
            connects: Slab::new(),
            files: Slab::new(),
            workers: None,
            ready: VecDeque::new(),
            timers: TimerQueue::with_capacity(TIMER_CAPACITY),
            waker,
            woken: false,
            accelerator: Accelerator::default(),
            now: Instant::now(),
            neighbours: Neighbours::default(),
            flight: Flight::default(),
            counts: IoCounts::default(),
            departures: Arc::default(),
            eager: false,
            polls_without_events: 0,
        };
        io.control(libc::EPOLL_CTL_ADD, io.waker.fd(), READABLE, WAKER << 32)?;
        Ok(io)
    }

    /// As [`EpollIo::new`], for few sockets whose owner polls often: what is sent leaves at once,
    /// and a poll that does not wait tries to receive before it asks which sockets are ready.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn eager() -> io::Result<EpollIo> {
        let mut io = EpollIo::new()?;
        io.eager = true;
        Ok(io)
    }

    /// Lets a thread wait for this instance while other threads may use it.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn sleeper(&self) -> io::Result<Sleeper> {
        Ok(Sleeper::new(self.epoll.try_clone()?, self.waker.clone()))
    }

    /// Has the next poll ask for events even if this is eager. To be called before a [`Sleeper`] is used:
    /// events that have come and are dealt with must not end its sleep.
    pub fn ask_events(&mut self) {
        self.polls_without_events = EAGER_POLLS;
    }

    /// Whether there is work that no event announces. The thread that drives this must then poll again
    /// and not sleep.
    #[must_use]
    pub fn wants_poll(&self) -> bool {
        let can_go_on = |&socket: &u32| {
            self.sockets.get(socket).is_some_and(|slot| {
                (slot.readable && slot.recv.is_some()) || (slot.writable && slot.send.is_some())
            })
        };
        !self.ready.is_empty()
            || self.attempts.iter().any(can_go_on)
            || self.provided.trying() > 0
            || self.accelerator.is_busy()
    }

    /// When the next timer is due, until which a thread may sleep.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.next_at()
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the event lives across the call.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn finish(&mut self, token: Token, outcome: Outcome) {
        self.ready.push_back(Completion { token, outcome });
    }

    /// Lets the next poll try the operations of a socket.
    fn attempt(&mut self, socket: u32) {
        if let Some(slot) = self.sockets.get_mut(socket)
            && !slot.attempting
        {
            slot.attempting = true;
            self.attempts.push(socket);
        }
    }

    /// Batches that have had their share of the last poll go on.
    fn attempt_unfinished(&mut self) {
        for index in 0..self.unfinished.len() {
            self.attempt(self.unfinished[index]);
        }
        self.unfinished.clear();
    }

    fn run_attempts(&mut self, done: &mut Vec<Completion>) {
        for socket in self.attempts.drain(..) {
            if let Some(slot) = self.sockets.get_mut(socket) {
                slot.attempting = false;
                slot.try_recv(&mut self.counts, done);
                done.extend(slot.try_send(&mut self.counts, &self.departures));
                if slot.has_share_to_come() {
                    self.unfinished.push(socket);
                }
                if slot.corked {
                    self.timers.push(self.now + UNCORK_AFTER, Timer::Uncork(socket));
                }
            }
        }
    }

    /// Tries all receives. True if events have to be asked for as well.
    fn try_sockets(&mut self, done: &mut Vec<Completion>) -> bool {
        if !self.eager || self.sockets.live() + self.provided.live() > EAGER_SOCKETS {
            return true;
        }
        let mut sending = false;
        for slot in self.sockets.iter_mut() {
            if slot.recv.is_some() {
                slot.readable = true;
                slot.try_recv(&mut self.counts, done);
            }
            sending |= slot.send.is_some();
        }
        if self.provided.is_used() {
            self.provided.try_all();
            self.try_provided(done);
        }
        self.polls_without_events += 1;
        sending || self.connects.live() > 0 || self.polls_without_events > EAGER_POLLS
    }

    /// Fetches events, waiting up to `timeout` (`None`: for ever) for the first.
    fn fetch_events(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.counts.system_calls += 1;
        self.polls_without_events = 0;
        // Short waits are those of gathered commands: a whole millisecond is far too long for them.
        let short = timeout.filter(|&time| !time.is_zero() && time < SHORT_WAIT);
        let precise = short.and_then(|time| self.wait_precisely(time));
        let count = precise.unwrap_or_else(|| self.wait_milliseconds(timeout));
        match usize::try_from(count) {
            Ok(count) => {
                // SAFETY: the kernel has written `count` <= capacity events.
                unsafe { self.events.set_len(count) };
                Ok(())
            }
            Err(_) => {
                self.events.clear();
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
            }
        }
    }

    /// epoll_pwait2(2); `None` where the kernel, before 5.11, does not have it.
    fn wait_precisely(&mut self, timeout: Duration) -> Option<libc::c_long> {
        let nanos = libc::c_long::from(timeout.subsec_nanos().cast_signed());
        let timespec = libc::timespec { tv_sec: 0, tv_nsec: nanos };
        // SAFETY: the vector has room for as many events as its capacity says, the time is only
        // read during the call, and there is no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                i32::try_from(self.events.capacity()).unwrap_or(i32::MAX),
                &raw const timespec,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        let missing = count < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS);
        (!missing).then_some(count)
    }

    /// epoll_wait(2), rounded up so as not to wake too early.
    fn wait_milliseconds(&mut self, timeout: Option<Duration>) -> libc::c_long {
        let round_up = |time: Duration| {
            let ms = time.as_nanos().div_ceil(1_000_000);
            i32::try_from(ms).unwrap_or(i32::MAX)
        };
        let timeout_ms = timeout.map_or(-1, round_up);
        let capacity = i32::try_from(self.events.capacity()).unwrap_or(i32::MAX);
        let events = self.events.as_mut_ptr();
        // SAFETY: the vector has room for `capacity` events.
        let count =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events, capacity, timeout_ms) };
        count.into()
    }

    fn handle_events(&mut self, done: &mut Vec<Completion>) {
        for index in 0..self.events.len() {
            let libc::epoll_event { events, u64: data } = self.events[index];
            let Ok(id) = u32::try_from(data % (1 << 32)) else { continue };
            match data >> 32 {
                SOCKET => {
                    if let Some(slot) = self.sockets.get_mut(id) {
                        slot.hung_up |= events & HUNG_UP != 0;
                        slot.readable |= events & READABLE != 0 || slot.hung_up;
                        slot.writable |= events & WRITABLE != 0 || slot.hung_up;
                        self.attempt(id);
                    }
                }
                PROVIDED => self.provided.wake(id),
                LISTENER => self.accept(id, done),
                CONNECT => self.finish_connect(id, done),
                _ => {
                    self.waker.drain();
                    self.counts.system_calls += 1;
                    self.woken = true;
                }
            }
        }
    }

    fn accept(&mut self, listener: u32, done: &mut Vec<Completion>) {
        for _ in 0..ACCEPTS_PER_POLL {
            let Some(slot) = self.listeners.get(listener) else { return };
            let token = slot.token;
            let accepted = SockRef::from(&slot.fd).accept();
            let accepted = accepted.and_then(|(socket, _)| room::keep(OwnedFd::from(socket)));
            match &accepted {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if !is_transient_accept_error(error) => {
                    // Epoll would report it again at once, so the listener is not watched for
                    // [`ACCEPT_PAUSE`].
                    let data = LISTENER << 32 | u64::from(listener);
                    let _ = self.control(libc::EPOLL_CTL_MOD, slot.fd.as_raw_fd(), 0, data);
                    self.timers.push(self.now + ACCEPT_PAUSE, Timer::Accept(listener));
                }
                _ => {}
            }
            let failed = accepted.is_err();
            if let Some(outcome) = accept_outcome(accepted) {
                done.push(Completion { token, outcome });
                if failed {
                    return;
                }
            }
        }
    }

    fn resume_accept(&mut self, listener: u32, done: &mut Vec<Completion>) {
        if let Some(slot) = self.listeners.get(listener).filter(|slot| !slot.paused) {
            if let Err(error) = room::probe(slot.fd.as_fd()) {
                done.push(Completion { token: slot.token, outcome: Outcome::Accepted(Err(error)) });
                return self.timers.push(self.now + ACCEPT_PAUSE, Timer::Accept(listener));
            }
            let data = LISTENER << 32 | u64::from(listener);
            if let Err(error) =
                self.control(libc::EPOLL_CTL_MOD, slot.fd.as_raw_fd(), READABLE, data)
            {
                tracing::error!("a listener cannot be watched any more: {error}");
            }
        }
    }

    /// Gives a file operation to the helper threads, or back if there is no such file.
    fn start_file_op(&mut self, file: FileId, token: Token, op: FileOp) {
        let (result, error) = match (self.files.get(file.0), &mut self.workers) {
            (Some(file), Some(workers)) => {
                (workers.start(file.clone(), token, op), io::ErrorKind::QuotaExceeded.into())
            }
            _ => (Err(op), not_usable()),
        };
        if let Err(op) = result {
            self.finish(token, op.outcome(Err(error)));
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

    /// What should have followed did not: the kernel sends what it has.
    fn uncork(&mut self, socket: u32) {
        if let Some(slot) = self.sockets.get_mut(socket)
            && std::mem::take(&mut slot.corked)
        {
            self.departures.uncorks.add(1);
            socket::uncork(&slot.fd);
        }
    }

    /// Time until the next timer.
    fn timeout(&self) -> Option<Duration> {
        Some(self.timers.next_at()?.saturating_duration_since(Instant::now()))
    }
}

impl SocketSlot {
    /// One receive, if there is one to do and the socket is readable.
    fn try_recv(&mut self, counts: &mut IoCounts, done: &mut Vec<Completion>) {
        if !self.readable {
            return;
        }
        let Some((token, mut buffers)) = self.recv.take() else { return };
        let result = loop {
            counts.system_calls += 1;
            match receive(&self.fd, &mut buffers) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        match &result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                self.recv = Some((token, buffers));
                return;
            }
            // A short receive has emptied the socket; more bytes will be a new edge. The end
            // of the stream may have come with the same edge, though.
            Ok(count) if *count < buffers.room() && !self.hung_up => self.readable = false,
            _ => {}
        }
        counts.received(*result.as_ref().unwrap_or(&0));
        done.push(Completion { token, outcome: Outcome::Received(result, buffers) });
    }

    /// Its batch has had its share of this poll, and the socket is not full.
    fn has_share_to_come(&self) -> bool {
        self.send.is_some() && self.writable
    }

    /// Sends until the batch or its share is gone, or the socket is full.
    fn try_send(
        &mut self,
        counts: &mut IoCounts,
        departures: &DepartureStats,
    ) -> Option<Completion> {
        if !self.writable {
            return None;
        }
        let (token, mut batch) = self.send.take()?;
        let result = loop {
            if batch.is_empty() {
                break Ok(());
            }
            counts.system_calls += 1;
            match transmit(&self.fd, &mut batch) {
                Ok(sent) => {
                    if batch.is_flagged() {
                        departures.count_flags(batch.flags());
                        self.corked = batch.leaves_corked() && sent == batch.len();
                    }
                    counts.sent(sent);
                    batch.advance(sent);
                    if batch.takes_turns() && !batch.is_empty() {
                        self.send = Some((token, batch));
                        return None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    self.send = Some((token, batch));
                    return None;
                }
                Err(error) => break Err(error),
            }
        };
        Some(Completion { token, outcome: Outcome::Sent(result, batch) })
    }
}

impl Io for EpollIo {
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
        let raw = fd.as_raw_fd();
        let slot = ListenerSlot { fd, token, paused: false };
        let id = self.listeners.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        // Level-triggered: what one poll leaves unaccepted, the next one sees.
        let added =
            self.control(libc::EPOLL_CTL_ADD, raw, READABLE, LISTENER << 32 | u64::from(id));
        if let Err(error) = added {
            self.listeners.remove(id);
            return Err(error);
        }
        Ok((ListenerId(id), address))
    }

    fn close_listener(&mut self, listener: ListenerId) {
        if self.listeners.remove(listener.0).is_none() {
            self.close_provided_listener(listener);
        }
    }

    fn listen_provided(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.add_provided_listener(listener, token)
    }

    fn peer_identity(&self, socket: SocketId) -> Option<&str> {
        self.provided.peer_identity(socket)
    }

    fn connect(&mut self, address: SocketAddr, source: Option<IpAddr>, token: Token) {
        self.connect_with(address, ConnectOptions { source, ..Default::default() }, token);
    }

    fn connect_with(&mut self, address: SocketAddr, options: ConnectOptions, token: Token) {
        if let Some(result) = self.try_connect(address, options, token) {
            self.finish(token, Outcome::Connected(result));
        }
    }

    fn adopt(&mut self, socket: Socket) -> io::Result<SocketId> {
        self.adopt_socket(socket)
    }

    fn release(&mut self, socket: SocketId, ends: (SocketAddr, SocketAddr)) -> Option<Socket> {
        self.release_socket(socket, ends)
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        Some(self)
    }

    fn declare(&mut self, socket: SocketId, class: SocketClass) {
        if let Some(slot) = self.sockets.get_mut(socket.0) {
            slot.class = class;
        } else {
            self.provided.declare(socket, class);
        }
    }

    fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }

    fn recv(&mut self, socket: SocketId, mut buffers: RecvBuffers, token: Token) {
        // Panics for a wrong range here, where it was made.
        buffers.iovecs();
        let room = buffers.room() > 0;
        match self.sockets.get_mut(socket.0) {
            Some(slot) if slot.recv.is_none() && room => {
                slot.recv = Some((token, buffers));
                self.attempt(socket.0);
            }
            _ => self.recv_provided(socket, buffers, token),
        }
    }

    fn unread(&mut self, socket: SocketId) -> usize {
        self.counts.system_calls += 1;
        match self.sockets.get(socket.0) {
            Some(slot) => socket::unread(&slot.fd),
            None => self.provided.unread(socket),
        }
    }

    fn send(&mut self, socket: SocketId, mut batch: Box<SendBatch>, token: Token) {
        match self.sockets.get_mut(socket.0) {
            Some(slot) if slot.send.is_none() => {
                self.neighbours.plan(socket, &slot.class, self.now, &mut batch);
                if slot.class.departure == Departure::Flagged {
                    batch.flag();
                    slot.corked = false;
                }
                slot.send = Some((token, batch));
                if self.eager {
                    self.ready.extend(slot.try_send(&mut self.counts, &self.departures));
                    if slot.corked {
                        self.timers.push(self.now + UNCORK_AFTER, Timer::Uncork(socket.0));
                    }
                    if slot.has_share_to_come() {
                        self.unfinished.push(socket.0);
                    }
                } else {
                    self.attempt(socket.0);
                }
            }
            _ => self.send_provided(socket, batch, token),
        }
    }

    fn close(&mut self, socket: SocketId, reset: bool) {
        self.close_socket(socket, reset);
    }

    fn register_file(&mut self, file: Arc<File>) -> FileId {
        if self.workers.is_none() {
            match FileWorkers::new(self.waker.clone(), FILE_THREADS) {
                Ok(workers) => self.workers = Some(workers),
                Err(error) => tracing::error!("no threads for files: {error}"),
            }
        }
        // An id that names nothing makes every operation fail, as for a closed file.
        FileId(self.files.insert(file).unwrap_or(u32::MAX))
    }

    fn close_file(&mut self, file: FileId) {
        // Operations in flight hold the file themselves.
        self.files.remove(file.0);
    }

    fn read(&mut self, file: FileId, buf: IoBuf, offset: u64, token: Token) {
        self.start_file_op(file, token, FileOp::Read { buf, offset });
    }

    fn write(&mut self, file: FileId, buf: SharedBuf, offset: u64, durable: bool, token: Token) {
        self.start_file_op(file, token, FileOp::Write { buf, offset, durable });
    }

    fn sync(&mut self, file: FileId, token: Token) {
        self.start_file_op(file, token, FileOp::Sync);
    }

    fn allocate(&mut self, file: FileId, mode: AllocateMode, offset: u64, len: u64, token: Token) {
        self.start_file_op(file, token, FileOp::Allocate { mode, offset, len });
    }

    fn call_file(&mut self, file: FileId, call: Box<FileCall>, token: Token) {
        self.start_file_op(file, token, FileOp::Call(call));
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
            self.attempt_unfinished();
            self.run_attempts(done);
            if self.provided.is_used() {
                self.try_provided(done);
            }
            done.extend(self.ready.drain(..));
            let ask = self.try_sockets(done);
            let idle = wait == Wait::Yes && done.len() == before && self.unfinished.is_empty();
            // A slot that is to be tried again without news keeps the core awake.
            let sleeps = idle && self.provided.trying() == 0;
            if sleeps && self.waker.start_wait() {
                let timeout = self.timeout();
                let fetched = self.fetch_events(timeout);
                self.waker.end_wait();
                fetched?;
            } else {
                self.woken |= idle;
                if ask {
                    self.fetch_events(Some(Duration::ZERO))?;
                } else {
                    self.events.clear();
                }
            }
            self.handle_events(done);
            self.run_attempts(done);
            if self.provided.is_used() {
                self.try_provided(done);
            }
            if let Some(workers) = &mut self.workers {
                workers.collect(done);
            }
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

    fn busy_poll(&mut self, time: Duration) -> io::Result<crate::WaitPolling> {
        crate::io::busy_poll::set_epoll(&self.epoll, time)
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
