//! The byte streams of an RDMA listener over a device that does anything ([`wild`](super::wild)), with a controller at the
//! other end that answers in any order. Each command is answered at most once, data stay where they are while the device
//! may read them, a connection to which nothing happens goes on, and at the end nothing is left. The fuzz target
//! `rdma_queues` runs the same with inputs of its own.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, PipeReader};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use raceline_proto::nvme::{Cqe, SglDescriptor, Sqe, Status};
use raceline_proto::rdma::KeyedBlock;
use raceline_proto::tcp::{ControllerQueue, ControllerQueueConfig, DataDest, Event};
use raceline_rdma::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event as DeviceEvent, PairConfig,
    PostError, Provider, ProviderError, RecvWork, Region, SendWork,
};
use raceline_rdma::{Foreign, WaitingDevice};
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{
    BufferPool, ByteStream, Interest, IoBuf, Payload, PoolConfig, SendBatch, StreamListener,
    StreamProvider,
};
use raceline_target::{RdmaConfig, RdmaStreams};
use zerocopy::{FromZeros, IntoBytes};

use super::wild::{Input, Wild};

/// The most that a command moves.
const TRANSFER: u32 = 8192;
/// R2Ts of a connection.
const SLOTS: usize = 32;
/// Commands that one batch answers.
const WORDS: usize = 16;
/// Commands of the connection to which nothing happens, at a time.
const GOOD_COMMANDS: usize = 6;
/// Opcodes of commands that have data for the controller, and for the host.
const WRITE: u8 = 1;
const READ: u8 = 2;
/// Says that nothing goes wrong, however often it is asked.
const WELL: [u8; 8] = [9; 8];
/// Attempts that are enough for whatever goes well.
const ENOUGH: usize = 40;

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4420))
}

// -------------------------------------------------------------------------- device

/// The device, which the target and the sequence have both.
struct Shared {
    wild: Arc<Mutex<Wild>>,
    /// Nobody sleeps here.
    news: PipeReader,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Wild> {
        lock(&self.wild)
    }
}

fn lock(wild: &Mutex<Wild>) -> MutexGuard<'_, Wild> {
    wild.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl WaitingDevice for Shared {
    fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    fn arm(&mut self) {}
}

impl Provider for Shared {
    fn name(&self) -> &str {
        "wild"
    }

    fn capabilities(&self) -> Capabilities {
        self.lock().capabilities()
    }

    fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError> {
        self.lock().register(domain, len, access)
    }

    fn deregister(&mut self, region: Region) {
        self.lock().deregister(region);
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        self.lock().register_foreign(memory)
    }

    fn deregister_foreign(&mut self, lkey: u32) {
        self.lock().deregister_foreign(lkey);
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        self.lock().read(region, offset, into);
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        self.lock().fill(region, offset, len, fill);
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        self.lock().write(region, offset, bytes);
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(), ProviderError> {
        self.lock().listen(address)
    }

    fn stop_listening(&mut self) {
        self.lock().stop_listening();
    }

    fn resolve(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        self.lock().resolve(address, source)
    }

    fn create_pair(
        &mut self,
        id: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        self.lock().create_pair(id, config)
    }

    fn connect(
        &mut self,
        id: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.lock().connect(id, private, reads)
    }

    fn accept(&mut self, id: ConnectionId, private: &[u8], reads: u8) -> Result<(), ProviderError> {
        self.lock().accept(id, private, reads)
    }

    fn reject(&mut self, id: ConnectionId, private: &[u8]) {
        self.lock().reject(id, private);
    }

    fn disconnect(&mut self, id: ConnectionId) {
        self.lock().disconnect(id);
    }

    fn destroy(&mut self, id: ConnectionId) {
        self.lock().destroy(id);
    }

    fn next_event(&mut self) -> Option<DeviceEvent> {
        self.lock().next_event()
    }

    fn post_send(&mut self, id: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        self.lock().post_send(id, work)
    }

    fn post_recv(&mut self, id: ConnectionId, work: &[RecvWork]) -> Result<(), PostError> {
        self.lock().post_recv(id, work)
    }

    fn share_receives(&mut self, entries: u32) -> Result<(), ProviderError> {
        self.lock().share_receives(entries)
    }

    fn unshare_receives(&mut self) {
        self.lock().unshare_receives();
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        self.lock().post_shared(work)
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        self.lock().poll(into);
    }
}

/// Bytes of a capsule: mostly a command whose descriptor means something. DWord 12 says how many bytes of data it has that
/// are not in the capsule.
fn capsule(input: &mut Input<'_>) -> Vec<u8> {
    let mut sqe = Sqe::new_zeroed();
    let kind = input.below(8);
    (sqe.opc, sqe.flags) = (WRITE + input.byte() % 2, Sqe::PSDT_SGL);
    sqe.cid = u16::from(input.byte() % 8).into();
    let mut len = u32::from(input.byte()) * 36;
    let block = KeyedBlock { address: 0x1000, len, key: u32::from(input.byte()) };
    let mut behind = Vec::new();
    match kind {
        0 => return (0..input.below(80)).map(|_| input.byte()).collect(),
        1 => {
            len = 0;
            behind.resize(input.below(200), 0xa5);
            let bytes = u32::try_from(behind.len()).expect("it fits");
            sqe.sgl1 = SglDescriptor::in_capsule(bytes);
        }
        2 => {
            len = 0;
            let count = 1 + input.below(5);
            sqe.sgl1 = KeyedBlock::list_descriptor(count);
            for _ in 0..count {
                let block = KeyedBlock { len: u32::from(input.byte()), ..block };
                len += block.len;
                behind.extend_from_slice(block.descriptor(false).as_bytes());
            }
        }
        kind => sqe.sgl1 = block.descriptor(kind == 3),
    }
    sqe.cdw12 = len.into();
    [sqe.as_bytes(), &behind[..]].concat()
}

/// A capsule with nothing wrong: a write whose data are in the host's memory, and have so many bytes.
fn good_capsule(cid: u16, len: u32) -> Vec<u8> {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opc, sqe.flags, sqe.cid) = (WRITE, Sqe::PSDT_SGL, cid.into());
    sqe.cdw12 = len.into();
    sqe.sgl1 = KeyedBlock { address: 0x1000, len, key: 7 }.descriptor(false);
    sqe.as_bytes().to_vec()
}

// -------------------------------------------------------------------------- controller

/// A command that is not answered.
struct Job {
    sqe: Sqe,
    /// Its data are here, or there are none for the controller.
    is_ready: bool,
}

/// What the controller says next: bytes, and data that stay where they are until the stream has them.
#[derive(Default)]
struct Words {
    head: Vec<u8>,
    data: Option<IoBuf>,
    tail: Vec<u8>,
}

/// A connection as a controller has it.
struct Line {
    stream: Box<dyn ByteStream>,
    connection: Option<ConnectionId>,
    queue: ControllerQueue,
    jobs: Vec<Job>,
    in_capsule: Option<Sqe>,
    slots: [Option<Sqe>; SLOTS],
    words: VecDeque<Words>,
    /// What the stream has not taken, or owes.
    batch: Option<Box<SendBatch>>,
    answered: u32,
    is_lost: bool,
}

/// What a sequence has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Commands that came to controllers.
    pub(crate) commands: u32,
    /// Those that controllers have answered.
    pub(crate) successes: u32,
    /// Connections that were lost.
    pub(crate) losses: u32,
    /// Times that a stream has kept a batch until the device had read it.
    pub(crate) kept: u32,
}

impl Line {
    fn new(stream: Box<dyn ByteStream>) -> Self {
        let queue = ControllerQueue::new(ControllerQueueConfig {
            max_h2c_data: 4096,
            in_capsule_bytes: 256,
            max_r2t_slots: u16::try_from(SLOTS).expect("a few"),
            allow_hdgst: false,
            allow_ddgst: false,
        });
        Self {
            stream,
            connection: None,
            queue,
            jobs: Vec::new(),
            in_capsule: None,
            slots: [None; SLOTS],
            words: VecDeque::new(),
            batch: None,
            answered: 0,
            is_lost: false,
        }
    }

    /// The stream goes on with what it owes. False: it is lost, or owes still.
    fn advance(&mut self, bed: &mut Bed) -> bool {
        if self.is_lost {
            return false;
        }
        let is_new = self.connection.is_none();
        match self.stream.advance() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => bed.seen.kept += 1,
            Err(_) => {
                self.lose(bed);
                return false;
            }
        }
        if is_new {
            self.connection = lock(&bed.wild).accepted.take();
            assert!(self.connection.is_some(), "a stream of nobody");
        }
        // The end of a batch: whoever has its memory may write there.
        match self.stream.advance() {
            Ok(()) => {
                if self.batch.as_ref().is_some_and(|batch| batch.is_empty()) {
                    self.batch = None;
                    self.memory_is_free(bed);
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(_) => {
                self.lose(bed);
                false
            }
        }
    }

    fn memory_is_free(&self, bed: &Bed) {
        let reads = self.connection.is_some_and(|id| lock(&bed.wild).reads_foreign(id));
        assert!(!reads, "the device reads data that the controller has back");
    }

    fn lose(&mut self, bed: &mut Bed) {
        bed.seen.losses += u32::from(!self.is_lost);
        self.is_lost = true;
    }

    /// Takes what has come.
    fn receive(&mut self, room: usize, bed: &mut Bed) {
        if !self.advance(bed) {
            return;
        }
        let staging = IoBuf::heap(room);
        let mut into = RecvBuffers { payload: None, staging, staging_range: 0..room };
        match self.stream.receive(&mut into) {
            Ok(0) => self.lose(bed),
            Ok(count) => {
                assert!(count <= room, "more than there is room for");
                let mut input = &into.staging[..count];
                while let Some(event) =
                    self.queue.receive(&mut input).expect("the stream keeps to the rules of PDUs")
                {
                    handle(event, self, bed);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.lose(bed),
        }
    }

    /// Says something of a command: asks for its data, or answers it.
    fn execute(&mut self, input: &mut Input<'_>, bed: &mut Bed) {
        if self.jobs.is_empty() {
            return;
        }
        let Job { sqe, is_ready } = self.jobs.swap_remove(input.below(self.jobs.len()));
        let (cid, len) = (sqe.command_id(), sqe.cdw12.get());
        let mut words = Words::default();
        let fails = input.below(8) == 0;
        if !fails && len > 0 && sqe.opc == WRITE && !is_ready {
            let Some(slot) = self.slots.iter().position(Option::is_none) else { return };
            self.slots[slot] = Some(sqe);
            let slot = u16::try_from(slot).expect("a few");
            self.queue.r2t(slot, cid, 0, len, &mut words.head);
            return self.words.push_back(words);
        }
        bed.seen.successes += 1;
        self.answered += 1;
        let status = if fails { Status::INTERNAL } else { Status::SUCCESS };
        let cqe = Cqe { cid, status, ..Cqe::default() };
        if fails || len == 0 || sqe.opc != READ {
            self.queue.response(&cqe, &mut words.head);
            return self.words.push_back(words);
        }
        let kind = input.below(4);
        let bytes = usize::try_from(len).expect("it fits");
        let buffer = if kind < 2 { bed.pool.take(bytes) } else { None };
        match (kind, buffer) {
            (kind, Some(mut buffer)) => {
                buffer.set_len(bytes);
                self.queue.c2h_data(cid, 0, len, true, kind == 0, &mut words.head);
                words.data = Some(buffer);
                if kind == 1 {
                    self.queue.response(&cqe, &mut words.tail);
                }
            }
            (3, None) if len > 1 => {
                let half = len / 2;
                self.queue.c2h_data(cid, 0, half, false, false, &mut words.head);
                words.head.resize(words.head.len() + bytes / 2, 0x11);
                self.queue.c2h_data(cid, half, len - half, true, false, &mut words.head);
                words.head.resize(words.head.len() + bytes - bytes / 2, 0x22);
                self.queue.response(&cqe, &mut words.head);
            }
            (_, None) => {
                self.queue.c2h_data(cid, 0, len, true, true, &mut words.head);
                words.head.resize(words.head.len() + bytes, 0x33);
            }
        }
        self.words.push_back(words);
    }

    /// Sends what there is to say, up to so many words at once.
    fn send(&mut self, most: usize, bed: &mut Bed) {
        if !self.advance(bed) {
            return;
        }
        let batch = match &mut self.batch {
            Some(batch) => batch,
            None if self.words.is_empty() => return,
            empty => {
                let mut batch = SendBatch::new(WORDS * 9000, 3 * WORDS);
                let count = most.clamp(1, WORDS).min(self.words.len());
                for Words { head, data, tail } in self.words.drain(..count) {
                    batch.push_bytes(&head);
                    if let Some(data) = data {
                        let range = 0..data.len();
                        batch.push_payload(Payload::Buf(data, range));
                    }
                    batch.push_bytes(&tail);
                }
                empty.insert(batch)
            }
        };
        match self.stream.transmit(batch) {
            Ok(count) => batch.advance(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.lose(bed),
        }
    }

    /// The controller has done with it.
    fn close(mut self, reset: bool, bed: &Bed) {
        self.stream.close(reset);
        self.memory_is_free(bed);
    }
}

fn handle(event: Event<'_>, line: &mut Line, bed: &mut Bed) {
    match event {
        Event::Connected(_) => {
            let mut words = Words::default();
            line.queue.ic_resp(&mut words.head);
            line.words.push_back(words);
        }
        Event::Command { sqe, in_capsule } => {
            bed.seen.commands += 1;
            if in_capsule > 0 {
                line.in_capsule = Some(sqe);
            } else {
                line.jobs.push(Job { sqe, is_ready: false });
            }
        }
        Event::Data { .. } => {}
        Event::DataEnd { last_pdu: false, .. } => {}
        Event::DataEnd { dest, .. } => {
            let sqe = match dest {
                DataDest::Capsule => line.in_capsule.take(),
                DataDest::Slot(slot) => line.slots[usize::from(slot)].take(),
            };
            line.jobs.push(Job { sqe: sqe.expect("data of a command"), is_ready: true });
        }
        Event::Terminated(why) => panic!("a stream ends by itself: {why:?}"),
    }
}

// -------------------------------------------------------------------------- sequences

/// What all connections have in common.
struct Bed {
    wild: Arc<Mutex<Wild>>,
    pool: BufferPool,
    seen: Seen,
}

struct Sequence {
    bed: Bed,
    listener: Box<dyn StreamListener>,
    lines: Vec<Line>,
    /// The device has done something that all connections notice.
    is_common_harm: bool,
    next_cid: u16,
}

impl Sequence {
    fn new(kind: u8) -> Self {
        let (is_iwarp, shares, in_place) = (kind & 1 != 0, kind & 2 != 0, kind & 4 != 0);
        let mut wild = Wild::new(address(), is_iwarp).vary(kind);
        wild.foreign = in_place.then(Default::default);
        wild.is_of_target = true;
        let wild = Arc::new(Mutex::new(wild));
        let config = RdmaConfig {
            admin_entries: 8,
            io_entries: 8,
            io_queues: 2,
            in_capsule_bytes: 256,
            transfer_bytes: TRANSFER,
            buffer_bytes: 64 << 10,
            shared_receives: if shares { 20 } else { 0 },
            reads_regions: false,
            connections: 4,
            stuck_after: Duration::from_secs(30),
            completions: 1 << 10,
        };
        let device = Mutex::new(Some(Arc::clone(&wild)));
        let streams = RdmaStreams::over(config, move |_| {
            // One that was removed does not come back.
            let device = device.lock().unwrap_or_else(PoisonError::into_inner).take();
            let wild = device.ok_or(ProviderError::new("opening", "there is one only"))?;
            let (news, _) = io::pipe().expect("a pipe");
            Ok(Box::new(Shared { wild, news }) as _)
        });
        let listener = streams.listen(address()).expect("it listens").expect("a listener");
        let size = usize::try_from(TRANSFER).expect("it fits");
        let pool = BufferPool::new(&PoolConfig::new(&[(size, 24)])).expect("memory");
        let bed = Bed { wild, pool, seen: Seen::default() };
        Self { bed, listener, lines: Vec::new(), is_common_harm: false, next_cid: 100 }
    }

    fn wild(&self) -> MutexGuard<'_, Wild> {
        lock(&self.bed.wild)
    }

    /// The connection to which nothing happens.
    fn spared(&self) -> Option<ConnectionId> {
        self.lines.first().and_then(|line| line.connection)
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(socket) => {
                self.lines.push(Line::new(socket.into_stream().expect("a stream of ours")));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }

    /// Two usual connections; the first one is spared from now on.
    fn begin(&mut self) {
        for count in 1..=2 {
            self.wild().ask_well();
            self.accept();
            assert_eq!(self.lines.len(), count);
            self.lines[count - 1].receive(4096, &mut self.bed);
            self.wild().go_on_with_all();
            self.accept();
        }
        let spared = self.spared();
        self.wild().spared = spared;
    }

    fn some_line(&mut self, input: &mut Input<'_>) -> (&mut Line, &mut Bed) {
        let at = input.below(self.lines.len());
        (&mut self.lines[at], &mut self.bed)
    }

    /// A message comes: at times a good one for the connection that is spared.
    fn deliver(&mut self, input: &mut Input<'_>) {
        if input.below(4) > 0 {
            let message = capsule(input);
            return self.wild().end_receive(None, &message, input);
        }
        self.next_cid += 1;
        let message = good_capsule(self.next_cid, 1 + 32 * u32::from(input.byte()));
        // A host sends no more commands than its queue has entries.
        let spared = self.spared();
        let has_room = |id: &ConnectionId| self.wild().unanswered(*id) < GOOD_COMMANDS;
        if let Some(spared) = spared.filter(has_room) {
            self.wild().end_receive(Some(spared), &message, &mut Input(&WELL));
        }
    }

    fn end_send(&mut self, input: &mut Input<'_>) {
        let spared = self.spared().filter(|_| input.below(4) == 0);
        let mut wild = self.wild();
        match spared {
            Some(spared) => drop(wild.end_send_well(spared)),
            None => wild.end_send(input),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(20) {
            0 => self.wild().ask(input),
            1 if input.below(16) == 0 => {
                self.wild().say(input);
                let is_gone = self.wild().says_that_it_is_gone();
                self.is_common_harm |= is_gone;
            }
            1 => self.wild().go_on(input),
            2 if input.below(16) == 0 => {
                self.wild().takes = Some(input.below(6));
                self.is_common_harm = true;
            }
            3 => self.wild().refuses_memory = input.below(4) == 0,
            4 if input.below(128) == 0 => {
                self.wild().remove();
                self.is_common_harm = true;
            }
            2 | 4..7 => self.end_send(input),
            7..10 => self.deliver(input),
            10 => self.accept(),
            11..14 => {
                let room = [24, 100, 4096, 40_000][input.below(4)];
                let (line, bed) = self.some_line(input);
                line.receive(room, bed);
            }
            14..16 => {
                let (line, bed) = self.some_line(input);
                line.execute(input, bed);
            }
            16..18 => {
                let most = input.below(8);
                let (line, bed) = self.some_line(input);
                line.send(most, bed);
            }
            18 if input.below(4) == 0 && self.lines.len() > 1 => {
                let at = 1 + input.below(self.lines.len() - 1);
                let line = self.lines.remove(at);
                line.close(input.below(2) == 0, &self.bed);
            }
            18 => {
                let waiting = Interest { read: input.below(2) == 0, write: input.below(2) == 0 };
                let (line, _) = self.some_line(input);
                line.stream.interest(waiting);
            }
            _ => {
                let (line, bed) = self.some_line(input);
                line.advance(bed);
            }
        }
    }

    /// The connection that was spared does a write from its beginning to its end.
    fn spared_goes_on(&mut self) {
        let spared = self.spared().expect("it is there");
        // First all that it has begun.
        let mut line = self.lines.remove(0);
        let rounds = |wanted: Option<u32>, sequence: &mut Self, line: &mut Line| {
            for _ in 0..ENOUGH {
                line.receive(40_000, &mut sequence.bed);
                line.execute(&mut Input(&WELL), &mut sequence.bed);
                line.send(WORDS, &mut sequence.bed);
                while sequence.wild().end_send_well(spared) {}
                sequence.accept();
                if wanted.is_some_and(|wanted| line.answered >= wanted) {
                    return true;
                }
            }
            false
        };
        rounds(None, self, &mut line);
        assert!(!line.is_lost, "the connection was lost to which nothing has happened");
        let wanted = line.answered + 1;
        self.wild().end_receive(Some(spared), &good_capsule(99, 4096), &mut Input(&WELL));
        // Where memory was refused, the target tries again after a second.
        let is_answered = rounds(Some(wanted), self, &mut line) || {
            std::thread::sleep(Duration::from_millis(1100));
            rounds(Some(wanted), self, &mut line)
        };
        assert!(is_answered, "it is not answered any longer");
        assert!(!line.is_lost && line.batch.as_ref().is_none_or(|batch| batch.is_empty()));
        self.lines.insert(0, line);
    }

    fn finish(mut self, input: &mut Input<'_>) -> Seen {
        {
            let mut wild = self.wild();
            (wild.takes, wild.refuses_memory) = (None, false);
        }
        for line in self.lines.split_off(1) {
            line.close(input.below(2) == 0, &self.bed);
        }
        for _ in 0..4 {
            self.wild().flush_all();
            self.accept();
        }
        // Who has come meanwhile goes, too.
        for line in self.lines.split_off(1) {
            line.close(true, &self.bed);
        }
        if !self.is_common_harm {
            self.spared_goes_on();
        }
        self.wild().spared = None;
        self.lines.clear();
        for _ in 0..4 {
            self.wild().flush_all();
            self.accept();
        }
        self.lines.clear();
        let Self { bed, listener, .. } = self;
        drop(listener);
        let wild = lock(&bed.wild);
        // A device that is gone is not asked any longer.
        assert_eq!(wild.leftovers(), (0, wild.untold()), "registrations and connections");
        let foreign = wild.foreign.as_ref().map_or(0, std::collections::BTreeMap::len);
        assert_eq!(foreign, 0, "registrations of the pool");
        bed.seen
    }
}

/// Runs a sequence. The first byte is what the device is, then come steps.
pub(crate) fn run(data: &[u8]) -> Seen {
    let mut input = Input(data);
    let mut sequence = Sequence::new(input.byte());
    sequence.begin();
    while !input.0.is_empty() {
        sequence.step(&mut input);
    }
    sequence.finish(&mut input)
}
