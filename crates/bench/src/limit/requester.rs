//! The host's side: keeps commands in flight and counts the answers.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use raceline_reactor::HugePages;
use raceline_reactor::buffer::PageBuf;
use raceline_reactor::pages::PagePipe;
use rustix::net::SendFlags;

use crate::random::Random;

use super::digest::Check;
use super::link::{self, Finder, Gather, Link, moved};
use super::tuning::{Landing, Look, Tuning};
use super::wire::{self, COMMAND_BYTES, DIGEST_BYTES, H2C_DATA_BYTES, HEADER_BYTES, Piece, Shape};
use super::work::Work;
use super::{LimitConfig, LimitError, Measured, Side, Window};

/// Number of passes over the connections between two reads of the clock.
const PASSES_PER_CLOCK: u32 = 8;
/// After this time without an answer the pair counts as broken.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// All connections of the host's side.
pub(super) struct Requester {
    connections: Vec<Connection>,
    finder: Finder,
    shared: Shared,
    config: LimitConfig,
}

/// What the connections share.
struct Shared {
    /// The data of writes: one buffer, or one for each command in flight.
    payload: Vec<u8>,
    /// Offset of the next write's buffer.
    source: usize,
    /// Memory for receives.
    landing: Vec<u8>,
    /// Offset of the next receive in it.
    landed: usize,
    /// Buffers for the data of reads, if each command has one.
    buffers: Buffers,
    receive_bytes: usize,
    /// Capsules and headers of one send.
    headers: Vec<u8>,
    /// Sends payloads without a copy.
    pages: PagePipe,
    random: Random,
    /// Number of places for a command in the region.
    places: u64,
    io_bytes: usize,
    shape: Shape,
    tuning: Tuning,
    /// The work for each command.
    work: Work,
    /// Whether new commands follow finished ones.
    running: bool,
    finished: u64,
    received_bytes: u64,
}

struct Connection {
    link: Link,
    /// Type of the PDU that is being received, and the number of its bytes still to come.
    kind: u8,
    left: usize,
    /// Offset of its payload in the buffers, if there are any.
    place: usize,
    check: Check,
    in_flight: usize,
    requests: VecDeque<Request>,
    /// Number of bytes of the first request that have been sent.
    sent: usize,
    /// Whether epoll reports room to send.
    watched: bool,
}

#[derive(Clone, Copy)]
enum Request {
    /// A capsule for this address; in-capsule data, if any, begin at `source` in the data of writes.
    Command { address: usize, source: usize },
    /// An H2CData, with the data that begin at `source`.
    Data { piece: Piece, source: usize },
}

impl Requester {
    pub(super) fn new(config: &LimitConfig, streams: Vec<TcpStream>) -> io::Result<Self> {
        let finder = Finder::new(&streams, config.mode)?;
        let connection = |stream| Connection {
            link: Link::new(stream, config, Side::Host),
            kind: 0,
            left: 0,
            place: 0,
            check: Check::default(),
            in_flight: 0,
            requests: VecDeque::with_capacity(2 * config.depth),
            sent: 0,
            watched: false,
        };
        let mut random = Random::new(config.seed);
        let buffers = match config.fixed.buffer_each {
            _ if !config.write => 0,
            true => config.depth * config.connections,
            false => 1,
        };
        let mut payload = vec![0; buffers * config.io_bytes];
        random.fill(&mut payload);
        let shared = Shared {
            payload,
            source: 0,
            landing: Vec::new(),
            landed: 0,
            buffers: Buffers::new(config)?,
            receive_bytes: 0,
            headers: Vec::with_capacity(2 * config.depth * COMMAND_BYTES),
            pages: PagePipe::default(),
            random,
            places: (config.memory_bytes / config.io_bytes) as u64,
            io_bytes: config.io_bytes,
            shape: config.shape(),
            tuning: Tuning::start(config),
            work: Work::new(config.fixed.work),
            running: false,
            finished: 0,
            received_bytes: 0,
        };
        let connections = streams.into_iter().map(connection).collect();
        Ok(Self { connections, finder, shared, config: config.clone() })
    }

    /// Runs for `ramp`, then measures for `time`, then waits for the commands in flight.
    pub(super) fn run(
        &mut self,
        tuning: Tuning,
        window: &Window,
        ramp: Duration,
        time: Duration,
    ) -> Result<Measured, LimitError> {
        self.prepare(tuning);
        let mut clock = Clock::new(ramp, time);
        for index in 0..self.connections.len() {
            let (connection, shared) = (&mut self.connections[index], &mut self.shared);
            (0..self.config.depth).for_each(|_| connection.issue(shared));
            connection.flush(shared)?;
            connection.watch(index, shared, &self.finder)?;
        }
        let mut passes = 0u32;
        loop {
            let found = self.finder.find().map_err(LimitError::on(Side::Host))?;
            let mut brought = false;
            for position in 0..found {
                let index = self.finder.connection(position);
                let Some(connection) = self.connections.get_mut(index) else { continue };
                brought |= connection.receive(&mut self.shared)?;
                while connection.link.holds_more() {
                    connection.receive(&mut self.shared)?;
                }
                connection.watch(index, &self.shared, &self.finder)?;
            }
            if brought {
                link::pause(tuning.host_pause);
            }
            passes = passes.wrapping_add(1);
            if !passes.is_multiple_of(PASSES_PER_CLOCK) && self.shared.running {
                continue;
            }
            if window.has_failed() {
                return Err(LimitError::Protocol("the target's side has ended"));
            }
            self.shared.running = clock.check(self.shared.finished)?;
            if !self.shared.running && self.connections.iter().all(|one| one.in_flight == 0) {
                break;
            }
        }
        let shared = &self.shared;
        let per_command = shared.shape.bytes_to_host(shared.io_bytes) + shared.digest_bytes();
        if shared.received_bytes != shared.finished * per_command as u64 {
            return Err(LimitError::Protocol("more bytes came back than commands were sent for"));
        }
        Ok(clock.measured(self.shared.finished))
    }

    fn prepare(&mut self, tuning: Tuning) {
        let (config, shared) = (&self.config, &mut self.shared);
        shared.tuning = tuning;
        shared.receive_bytes = match shared.shape {
            Shape::Read => tuning.receive_bytes,
            Shape::InCapsule | Shape::ReadyToTransfer => Tuning::other_receive_bytes(config.depth),
        };
        let landing = match tuning.landing {
            Landing::PerCommand => config.per_command_bytes().max(shared.receive_bytes),
            Landing::Reused | Landing::Placed | Landing::Streamed | Landing::Direct => {
                shared.receive_bytes
            }
        };
        shared.landing.resize(landing, 0);
        (shared.landed, shared.running) = (0, true);
        (shared.finished, shared.received_bytes) = (0, 0);
        self.finder.set_look(tuning.look);
        self.connections.iter_mut().for_each(|one| one.link.set_tls(tuning.tls));
    }
}

impl Connection {
    /// Issues a command at a random place.
    fn issue(&mut self, shared: &mut Shared) {
        let place = usize::try_from(shared.random.below(shared.places)).unwrap_or(0);
        let in_capsule = shared.shape == Shape::InCapsule;
        let source = if in_capsule { shared.next_source() } else { 0 };
        self.requests.push_back(Request::Command { address: place * shared.io_bytes, source });
        self.in_flight += 1;
    }

    /// Receives once, and sends the requests that follow; gives whether bytes were received.
    fn receive(&mut self, shared: &mut Shared) -> Result<bool, LimitError> {
        if shared.tuning.landing == Landing::Placed {
            return self.receive_placed(shared);
        }
        if shared.landed + shared.receive_bytes > shared.landing.len() {
            shared.landed = 0;
        }
        let into = &mut shared.landing[shared.landed..shared.landed + shared.receive_bytes];
        let got = self.link.read(into).map_err(LimitError::on(Side::Host))?;
        if let Some(got) = got {
            self.parse(shared, shared.landed, got)?;
            shared.received_bytes += got as u64;
            if shared.tuning.landing == Landing::PerCommand {
                shared.landed += got;
            }
        }
        if !self.requests.is_empty() {
            self.flush(shared)?;
        }
        Ok(got.is_some())
    }

    /// The same, receiving the rest of a payload directly into its buffer.
    fn receive_placed(&mut self, shared: &mut Shared) -> Result<bool, LimitError> {
        let rest = shared.payload_left(self.left, self.place);
        let staging = &mut shared.landing[..shared.receive_bytes];
        let into = [&mut shared.buffers.0[rest.clone()], staging];
        let got = self.link.read_both(into).map_err(LimitError::on(Side::Host))?;
        if let Some(got) = got {
            let direct = got.min(rest.len());
            if direct > 0 {
                self.take_direct(shared, rest.start..rest.start + direct)?;
            }
            self.parse(shared, 0, got - direct)?;
            shared.received_bytes += got as u64;
        }
        if !self.requests.is_empty() {
            self.flush(shared)?;
        }
        Ok(got.is_some())
    }

    /// Handles payload that was received directly into its buffer.
    fn take_direct(&mut self, shared: &mut Shared, range: Range<usize>) -> Result<(), LimitError> {
        let len = range.len();
        if shared.tuning.digest
            && !self.check.take(&shared.buffers.0[range], self.left, shared.io_bytes)
        {
            return Err(LimitError::Protocol("a data digest is wrong"));
        }
        self.left -= len;
        if self.left == 0 {
            self.handle_pdu(shared);
        }
        Ok(())
    }

    /// Handles the PDUs of one receive, header by header.
    fn parse(&mut self, shared: &mut Shared, from: usize, len: usize) -> Result<(), LimitError> {
        let mut at = 0;
        loop {
            let here = self.left.min(len - at);
            if here > 0 && shared.tuning.digest {
                let bytes = &shared.landing[from + at..from + at + here];
                if !self.check.take(bytes, self.left, shared.io_bytes) {
                    return Err(LimitError::Protocol("a data digest is wrong"));
                }
            }
            if here > 0 && shared.tuning.landing == Landing::Placed {
                shared.put(self.left, self.place, from + at..from + at + here);
            }
            if self.left > len - at {
                self.left -= len - at;
                return Ok(());
            }
            if self.left > 0 {
                at += self.left;
                self.left = 0;
                self.handle_pdu(shared);
            }
            if at == len {
                return Ok(());
            }
            self.kind = shared.landing[from + at];
            self.left = match (self.kind, shared.shape) {
                (wire::C2H_DATA, Shape::Read) => {
                    self.place = shared.buffers.next(shared.io_bytes);
                    shared.data_bytes()
                }
                (wire::CAPSULE_RESP, Shape::InCapsule | Shape::ReadyToTransfer)
                | (wire::R2T, Shape::ReadyToTransfer)
                    if self.in_flight > 0 =>
                {
                    HEADER_BYTES
                }
                _ => return Err(LimitError::Protocol("the host's side lost its place")),
            };
        }
    }

    fn handle_pdu(&mut self, shared: &mut Shared) {
        if self.kind != wire::R2T {
            shared.work.run();
            self.in_flight = self.in_flight.saturating_sub(1);
            shared.finished += 1;
            if shared.running {
                self.issue(shared);
            }
            return;
        }
        let source = shared.next_source();
        for offset in (0..shared.io_bytes).step_by(H2C_DATA_BYTES) {
            let len = H2C_DATA_BYTES.min(shared.io_bytes - offset);
            if let (Ok(offset), Ok(len)) = (u32::try_from(offset), u32::try_from(len)) {
                self.requests.push_back(Request::Data { piece: Piece { offset, len }, source });
            }
        }
    }

    /// Sends requests until there are none left or the socket is full.
    fn flush(&mut self, shared: &mut Shared) -> Result<(), LimitError> {
        loop {
            let count = self.requests.len().min(shared.tuning.host_chunk);
            let all = match (count, shared.shape) {
                (0, _) => return Ok(()),
                _ if shared.tuning.by_reference => self.send_by_reference(shared, count),
                (_, Shape::Read) | (1..=4, _) => self.send::<8>(shared, count),
                (5..=32, _) => self.send::<64>(shared, count),
                _ => self.send::<256>(shared, count),
            };
            if !all.map_err(LimitError::on(Side::Host))? {
                return Ok(());
            }
        }
    }

    /// Sends once; false if the socket did not take all of it.
    fn send<const N: usize>(&mut self, shared: &mut Shared, count: usize) -> io::Result<bool> {
        shared.headers.clear();
        for request in self.requests.iter().take(count) {
            match *request {
                Request::Command { address, .. } => {
                    shared.headers.extend_from_slice(&wire::command(address));
                }
                Request::Data { piece, .. } => {
                    shared.headers.extend_from_slice(&wire::h2c_data(piece));
                }
            }
        }
        let mut gather = Gather::<N>::new(self.sent, shared.tuning.send_bytes);
        if shared.shape == Shape::Read {
            gather.push(&shared.headers);
        } else {
            let mut headers = &shared.headers[..];
            for &request in self.requests.iter().take(count) {
                let (len, payload) = shared.parts(request);
                let (header, rest) = headers.split_at(len);
                headers = rest;
                if !(gather.push(header) && gather.push(payload)) {
                    break;
                }
            }
        }
        let sent = gather.send(&mut self.link)?.unwrap_or(0);
        let all = sent == gather.len();
        self.advance(shared, sent);
        Ok(all)
    }

    /// The same for the capsules up to the next data, or for data, whose payload is sent without a copy.
    fn send_by_reference(&mut self, shared: &mut Shared, count: usize) -> io::Result<bool> {
        let is_command = |request: &&Request| matches!(request, Request::Command { .. });
        let commands = self.requests.iter().take(count).take_while(is_command).count();
        let Some(&Request::Data { piece, source }) = self.requests.front() else {
            return self.send::<64>(shared, commands.min(32));
        };
        let follows = self.requests.len() > 1;
        let sent = if self.sent < HEADER_BYTES {
            let header = wire::h2c_data(piece);
            let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
            rustix::net::send(self.link.stream(), &header[self.sent..], flags)
                .map_err(io::Error::from)
        } else {
            let Shared { payload, pages, tuning, .. } = shared;
            let start = source + piece.offset as usize;
            let rest = &payload[start..start + piece.len as usize][self.sent - HEADER_BYTES..];
            let rest = &rest[..rest.len().min(tuning.send_bytes)];
            // The memory was written before the first command, and is never written again.
            pages.send(self.link.stream(), rest, follows)
        };
        let sent = moved(sent)?.unwrap_or(0);
        self.advance(shared, sent);
        Ok(sent > 0)
    }

    fn advance(&mut self, shared: &Shared, sent: usize) {
        self.sent += sent;
        while let Some(&request) = self.requests.front() {
            let (header, payload) = shared.parts(request);
            let len = header + payload.len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.requests.pop_front();
        }
    }

    /// Lets epoll report room if there is something left to send.
    fn watch(&mut self, index: usize, shared: &Shared, finder: &Finder) -> Result<(), LimitError> {
        let wanted = !self.requests.is_empty() && shared.tuning.look == Look::Epoll;
        if wanted != self.watched {
            let watched = finder.watch_writing(index, self.link.stream(), wanted);
            watched.map_err(LimitError::on(Side::Host))?;
            self.watched = wanted;
        }
        Ok(())
    }
}

impl Shared {
    /// The next buffer in turn: commands finish roughly in the order in which they began, so this is the
    /// buffer of the finished command that the new one replaces.
    fn next_source(&mut self) -> usize {
        let source = self.source;
        self.source =
            if source + self.io_bytes < self.payload.len() { source + self.io_bytes } else { 0 };
        source
    }

    /// Bytes of a C2HData.
    fn data_bytes(&self) -> usize {
        HEADER_BYTES + self.io_bytes + self.digest_bytes()
    }

    /// Range in the buffers for the payload that is still to come, when `left` bytes of a C2HData are
    /// outstanding and its header has been received; otherwise empty.
    fn payload_left(&self, left: usize, place: usize) -> Range<usize> {
        let came = self.data_bytes() - left;
        if left == 0 || came < HEADER_BYTES {
            return 0..0;
        }
        place + (came - HEADER_BYTES).min(self.io_bytes)..place + self.io_bytes
    }

    /// Copies the payload in a received part to its place; `left` bytes of its PDU were still to come
    /// before that part.
    fn put(&mut self, left: usize, place: usize, part: Range<usize>) {
        let header = HEADER_BYTES.saturating_sub(self.data_bytes() - left);
        if header >= part.len() {
            return;
        }
        let from = part.start + header..part.end;
        let to = self.payload_left(left - header, place);
        let len = to.len().min(from.len());
        let bytes = &self.landing[from.start..from.start + len];
        self.buffers.0[to.start..to.start + len].copy_from_slice(bytes);
    }

    /// Number of digest bytes after each payload.
    fn digest_bytes(&self) -> usize {
        if self.tuning.digest { DIGEST_BYTES } else { 0 }
    }

    /// Length of a request's header, and the payload after it.
    fn parts(&self, request: Request) -> (usize, &[u8]) {
        match request {
            Request::Command { source, .. } if self.shape == Shape::InCapsule => {
                (COMMAND_BYTES, &self.payload[source..source + self.io_bytes])
            }
            Request::Command { .. } => (COMMAND_BYTES, &[]),
            Request::Data { piece: Piece { offset, len }, source } => {
                (HEADER_BYTES, &self.payload[source + offset as usize..][..len as usize])
            }
        }
    }
}

/// A buffer for each read in flight, as in programs that keep the data they read: in huge pages, as in
/// `raceline perf`. Empty for other commands.
struct Buffers(PageBuf, usize);

impl Buffers {
    fn new(config: &LimitConfig) -> io::Result<Self> {
        let each = config.fixed.buffer_each && !config.write;
        let count = if each { config.depth * config.connections } else { 0 };
        // A buffer of no bytes cannot be mapped.
        let mut memory = PageBuf::new((count * config.io_bytes).max(1), HugePages::Transparent)?;
        // Touched now: otherwise the first window would wait for each page.
        memory.fill(1);
        Ok(Self(memory, 0))
    }

    /// The next buffer in turn.
    fn next(&mut self, io_bytes: usize) -> usize {
        let place = self.1;
        self.1 = if place + 2 * io_bytes <= self.0.len() { place + io_bytes } else { 0 };
        place
    }
}

/// Begin and end of a window, and the last progress.
struct Clock {
    measure_at: Instant,
    time: Duration,
    /// When measuring began, and the number of commands finished then; below, the same for its end.
    begun: Option<(Instant, u64)>,
    ended: Option<(Instant, u64)>,
    /// When the last command finished, and the number finished.
    moved: (Instant, u64),
}

impl Clock {
    fn new(ramp: Duration, time: Duration) -> Self {
        let now = Instant::now();
        Self { measure_at: now + ramp, time, begun: None, ended: None, moved: (now, 0) }
    }

    /// Checks the time; gives whether the window continues.
    fn check(&mut self, finished: u64) -> Result<bool, LimitError> {
        let now = Instant::now();
        if self.moved.1 != finished {
            self.moved = (now, finished);
        } else if now - self.moved.0 > STALL_LIMIT {
            return Err(LimitError::Stalled(Side::Host));
        }
        if self.begun.is_none() && now >= self.measure_at {
            self.begun = Some((now, finished));
        }
        // A measurement that began late also ends late.
        let over = self.begun.is_some_and(|(begun, _)| now - begun >= self.time);
        if over && self.ended.is_none() {
            self.ended = Some((now, finished));
        }
        Ok(self.ended.is_none())
    }

    fn measured(&self, finished: u64) -> Measured {
        let (begun, from) = self.begun.unwrap_or(self.moved);
        let (ended, to) = self.ended.unwrap_or(self.moved);
        Measured { commands: to - from, time: ended - begun, total: finished, busy: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::{Fixed, Mode};
    use super::*;

    const IO_BYTES: usize = 512;

    /// The bytes that the target's side sends: C2HData PDUs, one for each of these payloads.
    fn stream(payloads: &[Vec<u8>]) -> Vec<u8> {
        let pdu = |payload: &Vec<u8>| [&wire::header(wire::C2H_DATA)[..], payload].concat();
        payloads.iter().flat_map(pdu).collect()
    }

    #[test]
    fn reads_end_in_buffers_of_their_own_wherever_receives_are_cut() {
        for receive_bytes in [1, 7, 23, 24, 25, 100, 536, 537, 4096] {
            let config = LimitConfig {
                io_bytes: IO_BYTES,
                write: false,
                depth: 3,
                connections: 1,
                memory_bytes: 1 << 20,
                pages: HugePages::None,
                mode: Mode::Polled,
                target_core: None,
                host_core: None,
                fixed: Fixed { buffer_each: true, ..Fixed::default() },
                tls: None,
                seed: 1,
            };
            let (mut target, host) = link::connect(1, Mode::Polled).unwrap();
            let mut requester = Requester::new(&config, host).unwrap();
            let tuning = Tuning { receive_bytes, ..Tuning::start(&config) };
            assert_eq!(tuning.landing, Landing::Placed);
            requester.prepare(tuning);
            let payloads: Vec<Vec<u8>> = (1..=5).map(|byte| vec![byte; IO_BYTES]).collect();
            target[0].write_all(&stream(&payloads)).unwrap();
            let (connection, shared) = (&mut requester.connections[0], &mut requester.shared);
            shared.running = false;
            payloads.iter().for_each(|_| connection.issue(shared));
            while connection.in_flight > 0 {
                connection.receive(shared).unwrap();
            }
            // The fourth and the fifth payload reuse the buffers of the first two.
            let expected = [&payloads[3][..], &payloads[4], &payloads[2]].concat();
            assert!(shared.buffers.0[..] == expected, "{receive_bytes} bytes per receive");
        }
    }
}
