//! [`Io`] in virtual time: sockets in memory, decided by a seed.
//!
//! A [`SimWorld`] holds the network and the clock; [`SimWorld::io`] gives each simulated core
//! its [`SimIo`]. Nothing happens by itself: the test driver lets cores poll, and calls
//! [`SimWorld::step`] to move the clock to the next event. Bytes arrive in chunks of random
//! size after random delays, so operations of different sockets finish in any order;
//! connections may break at a random byte. The same seed and the same calls give the same run:
//! [`SimWorld::fingerprint`] tells whether two runs were the same.
//!
//! Files are real files, read and written when their event is due.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raceline_accel::OpCode;

use crate::accel::accelerator::{Accelerated, Accelerator, Work};
use crate::flow::{Flight, Machine, SocketClass};
use crate::io::file_op::FileOp;
use crate::io::provided::{Next, Provided, slot_of, socket_of};
use crate::io::socket::{Inner, Socket, not_usable};
use crate::io::staging::CoreStaging;
use crate::io::stream::ByteStream;
use crate::io::timer::TimerQueue;
use crate::io::{
    AllocateMode, Completion, FileCall, FileId, Io, ListenerId, Outcome, RecvBuffers, SocketId,
    Token, Wait,
};
use crate::memory::buffer::{IoBuf, SharedBuf};
use crate::send::SendBatch;
use crate::send::neighbours::Neighbours;
use crate::thread::stats::IoCounts;
use crate::thread::waker::Waker;

mod network;
mod pipe;
mod random;

pub(crate) use pipe::SimSocket;
pub use random::Random;

use network::{Listener, Network};

/// How the simulated world behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The shortest delay of anything.
    pub min_delay: Duration,
    /// The longest delay.
    pub max_delay: Duration,
    /// Bytes that one direction of a connection holds before its sender has to wait.
    pub socket_buffer: usize,
    /// Most bytes that arrive at once; 1 is the hardest test of a parser.
    pub max_chunk: usize,
    /// How many of a thousand connections break at a random byte.
    pub broken_per_thousand: u32,
    /// Breaking connections do so within this many bytes (both directions together).
    pub break_within: u64,
    /// Bytes of the last-level cache of its machine: thresholds of `flow` are parts of it.
    pub llc_bytes: usize,
    /// Operations on data finish later and in any order, as those of an offload engine do.
    pub engines: bool,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            min_delay: Duration::from_micros(1),
            max_delay: Duration::from_micros(200),
            socket_buffer: 64 << 10,
            max_chunk: usize::MAX,
            broken_per_thousand: 0,
            break_within: 1 << 20,
            llc_bytes: Machine::ASSUMED.llc_bytes,
            engines: false,
        }
    }
}

/// The network, the clock and the chance of one simulation. Cloning gives another handle.
#[derive(Clone)]
pub struct SimWorld {
    inner: Rc<RefCell<World>>,
}

impl SimWorld {
    /// A world that is the same for the same seed.
    pub fn new(seed: u64, config: SimConfig) -> SimWorld {
        let epoch = Instant::now();
        let world = World {
            config,
            random: Random::new(seed),
            epoch,
            now: epoch,
            events: TimerQueue::with_capacity(1024),
            cores: Vec::new(),
            network: Network::default(),
            dropped: Arc::default(),
            fingerprint: 0,
        };
        SimWorld { inner: Rc::new(RefCell::new(world)) }
    }

    /// The I/O of one more simulated core.
    pub fn io(&self) -> SimIo {
        let mut world = self.inner.borrow_mut();
        world.cores.push(Core::default());
        let core = world.cores.len() - 1;
        let machine = Machine { llc_bytes: world.config.llc_bytes, ..Machine::ASSUMED };
        SimIo {
            world: self.inner.clone(),
            core,
            accelerator: Accelerator::default(),
            neighbours: Neighbours::default(),
            flight: Flight::new(machine),
            provided: Provided::default(),
            slots: BTreeMap::new(),
        }
    }

    /// Moves the clock to the next event and lets it happen; false if there is none: then
    /// everything waits for something that will not come, or is finished.
    pub fn step(&self) -> bool {
        let mut world = self.inner.borrow_mut();
        world.close_dropped();
        world.step()
    }

    /// When the next event is due, if there is one.
    pub fn next_event_at(&self) -> Option<Instant> {
        self.inner.borrow().events.next_at()
    }

    /// Changes how the world behaves from now on. What is under way keeps its time, and a
    /// connection that is to break still does.
    pub fn set_config(&self, config: SimConfig) {
        self.inner.borrow_mut().config = config;
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.inner.borrow().now
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        let world = self.inner.borrow();
        world.now.duration_since(world.epoch)
    }

    /// Breaks all connections with this local or remote address at once, as a reboot would.
    pub fn reset_connections(&self, address: SocketAddr) {
        let mut world = self.inner.borrow_mut();
        world.reset_matching(|end| end.local == address || end.peer_address == address);
    }

    /// A random number of this world, for test drivers.
    pub fn random_below(&self, bound: u64) -> u64 {
        self.inner.borrow_mut().random.below(bound)
    }

    /// Connections of which at least one end is open.
    pub fn open_connections(&self) -> usize {
        let mut world = self.inner.borrow_mut();
        world.close_dropped();
        world.network.open_connections()
    }

    /// A hash over everything that has completed, and when.
    pub fn fingerprint(&self) -> u64 {
        self.inner.borrow().fingerprint
    }
}

/// Sockets, files, clock and timers of one simulated core. Dropped, it is a core that has
/// crashed: its connections are reset.
pub struct SimIo {
    world: Rc<RefCell<World>>,
    core: usize,
    accelerator: Accelerator,
    neighbours: Neighbours,
    flight: Flight,
    /// Streams of providers over simulated connections.
    provided: Provided,
    /// Their slots, by end.
    slots: BTreeMap<u32, u32>,
}

struct World {
    config: SimConfig,
    random: Random,
    epoch: Instant,
    now: Instant,
    events: TimerQueue<Event>,
    cores: Vec<Core>,
    network: Network,
    dropped: Arc<Mutex<Vec<u32>>>,
    fingerprint: u64,
}

#[derive(Default)]
struct Core {
    /// Completed, and not yet polled.
    done: VecDeque<Completion>,
    /// Ends of providers' streams for which bytes, or room for them, have come.
    news: Vec<u32>,
    files: Vec<Option<Arc<File>>>,
    staging: CoreStaging,
    /// The core polls no more.
    crashed: bool,
}

enum Event {
    /// Bytes or the end of the stream reach an end.
    Deliver(u32),
    /// An end tries to receive or send.
    Progress(u32),
    /// The core of a provider's stream looks at it.
    News(u32),
    Connect {
        core: usize,
        token: Token,
        address: SocketAddr,
    },
    /// A connection breaks: the end is told.
    Reset(u32),
    File {
        core: usize,
        token: Token,
        file: Arc<File>,
        op: FileOp,
    },
    Complete {
        core: usize,
        completion: Completion,
    },
}

impl World {
    fn delay(&mut self) -> Duration {
        let span = self.config.max_delay.saturating_sub(self.config.min_delay);
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX - 1);
        self.config.min_delay + Duration::from_nanos(self.random.below(span + 1))
    }

    fn schedule(&mut self, event: Event) {
        let at = self.now + self.delay();
        self.events.push(at, event);
    }

    fn step(&mut self) -> bool {
        let Some(at) = self.events.next_at() else { return false };
        self.now = self.now.max(at);
        let Some(event) = self.events.pop_due(self.now) else { return false };
        match event {
            Event::Deliver(end) => self.deliver(end),
            Event::Progress(end) => self.progress(end),
            Event::News(end) => self.tell_news(end),
            Event::Connect { core, token, address } => self.connect(core, token, address),
            Event::Reset(end) => self.break_end(end),
            Event::File { core, token, file, mut op } => {
                let result = op.run(&file);
                self.complete(core, Completion { token, outcome: op.outcome(result) });
            }
            Event::Complete { core, completion } => self.complete(core, completion),
        }
        true
    }

    /// Hands a completion to its core, and takes it into the fingerprint.
    fn complete(&mut self, core: usize, completion: Completion) {
        self.note(core, &completion);
        if let Some(core) = self.cores.get_mut(core).filter(|core| !core.crashed) {
            core.done.push_back(completion);
        }
    }

    /// Takes a completion into the fingerprint.
    fn note(&mut self, core: usize, completion: &Completion) {
        let Completion { token, outcome } = completion;
        let (kind, value) = summary(outcome);
        let time = self.now.duration_since(self.epoch);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let id = u64::from(token.index) << 32
            | u64::from(token.owner) << 16
            | u64::from(token.generation);
        for word in [time, core as u64, id, kind, value] {
            self.fingerprint = Random::mix(self.fingerprint ^ word);
        }
    }

    fn socket(&self, end: u32) -> Socket {
        let (local, peer) = self.network.addresses(end);
        let pipe = self.network.pipe(end);
        let socket = SimSocket { end: Some(end), dropped: self.dropped.clone(), pipe };
        Socket::simulated(socket, local, peer)
    }

    fn connect(&mut self, core: usize, token: Token, address: SocketAddr) {
        let Some(listener) = self.network.listener_at(address) else {
            let error = io::Error::from_raw_os_error(libc::ECONNREFUSED);
            self.complete(core, Completion { token, outcome: Outcome::Connected(Err(error)) });
            return;
        };
        let breaks = self.random.below(1000) < u64::from(self.config.broken_per_thousand);
        let break_after = breaks.then(|| self.random.below(self.config.break_within.max(1)));
        let (one, two) = self.network.add_connection(address, break_after);
        let outcome = Outcome::Connected(Ok(self.socket(one)));
        self.complete(core, Completion { token, outcome });
        let socket = self.socket(two);
        let peer = socket.peer_address();
        let completion =
            Completion { token: listener.token, outcome: Outcome::Accepted(Ok((socket, peer))) };
        self.schedule(Event::Complete { core: listener.core, completion });
    }

    /// Closes ends that were dropped before a core adopted them.
    fn close_dropped(&mut self) {
        let dropped =
            std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for end in dropped {
            let reset = self.network.pipe(end).is_reset();
            self.close_end(end, reset);
        }
    }
}

impl SimIo {
    /// Whether a poll would give something: a core that has nothing sleeps.
    pub fn has_completions(&self) -> bool {
        let core = &self.world.borrow().cores[self.core];
        !core.done.is_empty() || !core.news.is_empty()
    }

    fn adopt_stream(&mut self, stream: Box<dyn ByteStream>) -> io::Result<SocketId> {
        let end = stream.source().as_simulated()?.end.ok_or(io::ErrorKind::NotConnected)?;
        let slot = self.provided.adopt(stream)?;
        self.slots.insert(end, slot);
        self.world.borrow_mut().adopt_piped(end, self.core);
        Ok(socket_of(slot))
    }

    /// Has the core look, after a random delay, at a stream that has something new to do.
    fn nudge(&mut self, slot: u32) {
        if let Some((&end, _)) = self.slots.iter().find(|(_, other)| **other == slot) {
            self.world.borrow_mut().schedule(Event::News(end));
        }
    }

    fn close_stream(&mut self, slot: u32, reset: bool) {
        let mut done = Vec::new();
        if !self.provided.close(slot, reset, &mut done) {
            return;
        }
        self.slots.retain(|_, other| *other != slot);
        // Dropped, it closes its end.
        self.provided.remove_if_idle(slot);
        self.world.borrow_mut().close_dropped();
        done.into_iter().for_each(|Completion { token, outcome }| self.finish(token, outcome));
    }

    /// Lets the streams that have news or operations go on.
    fn try_streams(&mut self, done: &mut Vec<Completion>) {
        let news = std::mem::take(&mut self.world.borrow_mut().cores[self.core].news);
        for end in news {
            if let Some(&slot) = self.slots.get(&end) {
                self.provided.wake(slot);
            }
        }
        for _ in 0..self.provided.trying() {
            let Some(slot) = self.provided.next() else { break };
            let before = done.len();
            if self.provided.attempt(slot, &mut IoCounts::default(), done) == Next::Again {
                self.provided.try_on(slot);
                self.nudge(slot);
            }
            let mut world = self.world.borrow_mut();
            done[before..].iter().for_each(|completion| world.note(self.core, completion));
            if let Some((&end, _)) = self.slots.iter().find(|(_, other)| **other == slot) {
                world.pipe_used(end);
            }
        }
    }

    fn start_file_op(&mut self, file: FileId, token: Token, op: FileOp) {
        let world = &mut *self.world.borrow_mut();
        let files = &world.cores[self.core].files;
        let found = files.get(file.0 as usize).cloned().flatten();
        let event = match found {
            Some(file) => Event::File { core: self.core, token, file, op },
            None => {
                let completion = Completion { token, outcome: op.outcome(Err(not_usable())) };
                Event::Complete { core: self.core, completion }
            }
        };
        world.schedule(event);
    }

    fn finish(&mut self, token: Token, outcome: Outcome) {
        let completion = Completion { token, outcome };
        self.world.borrow_mut().schedule(Event::Complete { core: self.core, completion });
    }
}

impl Io for SimIo {
    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let mut world = self.world.borrow_mut();
        let (id, address) = world.network.listen(address, Listener { core: self.core, token })?;
        Ok((ListenerId(id), address))
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.world.borrow_mut().network.close_listener(listener.0);
    }

    fn connect(&mut self, address: SocketAddr, _: Option<IpAddr>, token: Token) {
        self.world.borrow_mut().schedule(Event::Connect { core: self.core, token, address });
    }

    fn adopt(&mut self, socket: Socket) -> io::Result<SocketId> {
        match socket.into_inner() {
            Inner::Simulated(mut socket) => {
                let end = socket.end.take().ok_or(io::ErrorKind::NotConnected)?;
                self.world.borrow_mut().network.adopt(end, self.core);
                Ok(SocketId(end))
            }
            Inner::Provided(stream) => self.adopt_stream(stream),
            Inner::Os(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn release(&mut self, socket: SocketId, ends: (SocketAddr, SocketAddr)) -> Option<Socket> {
        let Some(slot) = slot_of(socket) else {
            return self.world.borrow_mut().release(self.core, socket.0);
        };
        let (stream, _) = self.provided.release(slot)?;
        self.slots.retain(|_, other| *other != slot);
        Some(Socket::provided(stream, ends.0, ends.1))
    }

    fn recv(&mut self, socket: SocketId, mut buffers: RecvBuffers, token: Token) {
        // Panics for a wrong range here, where it was made.
        buffers.iovecs();
        let refused = match slot_of(socket) {
            Some(slot) => {
                let refused = self.provided.recv(socket, buffers, token).map(drop);
                self.nudge(slot);
                refused
            }
            None => self.world.borrow_mut().start_recv(self.core, socket.0, token, buffers),
        };
        if let Err(buffers) = refused {
            self.finish(token, Outcome::Received(Err(not_usable()), buffers));
        }
    }

    fn declare(&mut self, socket: SocketId, class: SocketClass) {
        if slot_of(socket).is_some() {
            return self.provided.declare(socket, class);
        }
        let world = &mut *self.world.borrow_mut();
        world.network.declare(socket.0, class);
        world.cores[self.core].staging.expect(class.core_staging);
    }

    fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }

    fn unread(&mut self, socket: SocketId) -> usize {
        match slot_of(socket) {
            Some(_) => self.provided.unread(socket),
            None => self.world.borrow().network.unread(socket.0),
        }
    }

    fn send(&mut self, socket: SocketId, mut batch: Box<SendBatch>, token: Token) {
        let now = self.now();
        let class = match slot_of(socket) {
            Some(_) => self.provided.class(socket).unwrap_or_default(),
            None => self.world.borrow().network.class(socket.0),
        };
        self.neighbours.plan(socket, &class, now, &mut batch);
        let refused = match slot_of(socket) {
            Some(slot) => {
                let refused = self.provided.send(socket, batch, token).map(drop);
                self.nudge(slot);
                refused
            }
            None => self.world.borrow_mut().start_send(self.core, socket.0, token, batch),
        };
        if let Err(batch) = refused {
            self.finish(token, Outcome::Sent(Err(not_usable()), batch));
        }
    }

    fn close(&mut self, socket: SocketId, reset: bool) {
        match slot_of(socket) {
            Some(slot) => self.close_stream(slot, reset),
            None => self.world.borrow_mut().close_end(socket.0, reset),
        }
    }

    fn peer_identity(&self, socket: SocketId) -> Option<&str> {
        self.provided.peer_identity(socket)
    }

    fn register_file(&mut self, file: Arc<File>) -> FileId {
        let files = &mut self.world.borrow_mut().cores[self.core].files;
        files.push(Some(file));
        FileId(u32::try_from(files.len() - 1).unwrap_or(u32::MAX))
    }

    fn close_file(&mut self, file: FileId) {
        let files = &mut self.world.borrow_mut().cores[self.core].files;
        if let Some(slot) = files.get_mut(file.0 as usize) {
            // Operations in flight hold the file themselves.
            *slot = None;
        }
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
        let completion = Completion { token, outcome: Outcome::Timer };
        let mut world = self.world.borrow_mut();
        world.events.push(at, Event::Complete { core: self.core, completion });
    }

    /// Never waits: the test driver steps the world.
    fn poll(&mut self, _wait: Wait, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        world.close_dropped();
        done.extend(world.cores[self.core].done.drain(..));
        drop(world);
        self.try_streams(done);
        Ok(())
    }

    fn accelerator(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }

    fn accelerate(&mut self, work: Work, token: Token) -> Accelerated {
        let started = self.accelerator.start(work, token);
        if !self.world.borrow().config.engines {
            return started;
        }
        if let Accelerated::Now(done) = started
            && let Some(finished) = self.accelerator.keep(done)
        {
            self.finish(token, Outcome::Accelerated(finished));
        }
        Accelerated::Later
    }

    fn accelerates_now(&mut self, _code: OpCode) -> bool {
        !self.world.borrow().config.engines
    }

    fn copies_on_the_way(&mut self) -> bool {
        !self.world.borrow().config.engines && self.accelerator.is_copier()
    }

    fn waker(&self) -> Waker {
        Waker::none()
    }

    fn counts(&self) -> IoCounts {
        IoCounts { shared_sends: self.neighbours.in_shares(), ..IoCounts::default() }
    }
}

impl Drop for SimIo {
    fn drop(&mut self) {
        let core = self.core;
        // Dropped outside the borrow: sockets among them find their own way back.
        let done = {
            let mut world = self.world.borrow_mut();
            world.network.close_listeners_of(core);
            world.reset_matching(|end| end.core == Some(core));
            world.network.forget_core(core);
            std::mem::replace(&mut world.cores[core], Core { crashed: true, ..Core::default() })
        };
        drop(done);
    }
}

/// An outcome in two words.
fn summary(outcome: &Outcome) -> (u64, u64) {
    fn code<T>(result: &io::Result<T>, value: impl Fn(&T) -> u64) -> u64 {
        match result {
            Ok(result) => value(result),
            Err(error) => u64::MAX - u64::from(error.raw_os_error().unwrap_or(0).unsigned_abs()),
        }
    }
    match outcome {
        Outcome::Accepted(result) => (1, code(result, |(_, peer)| u64::from(peer.port()))),
        Outcome::Connected(result) => {
            (2, code(result, |socket| u64::from(socket.local_address().port())))
        }
        Outcome::Received(result, buffers) => (3, code(result, |count| buffers.checksum(*count))),
        Outcome::Sent(result, _) => (4, code(result, |()| 0)),
        Outcome::Read(result, buf) => (5, code(result, |()| Random::hash(buf))),
        Outcome::Written(result, _) => (6, code(result, |()| 0)),
        Outcome::Synced(result) | Outcome::Called(result, _) => (7, code(result, |()| 0)),
        Outcome::Ublk(result, _) => (10, code(result, |descriptor| descriptor.start_sector)),
        Outcome::Timer => (8, 0),
        Outcome::Accelerated(_) => (9, 0),
    }
}
