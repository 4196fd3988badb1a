//! The target's side: answers commands out of, and into, a region of memory.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use raceline_reactor::buffer::PageBuf;

use super::digest::Copies;
use super::link::{self, Finder, Gather, Link};
use super::tuning::{Landing, Prefetch, Tuning};
use super::wire::{self, COMMAND_BYTES, DIGEST_BYTES, HEADER_BYTES, Piece, Shape};
use super::work::Work;
use super::{LimitConfig, LimitError, Mode, Side, Window};

/// A page and a cache line, for prefetching.
const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;
/// Number of prepared responses in a row, which one slice can send.
const RUN: usize = 64;

const DATA: [u8; HEADER_BYTES] = wire::header(wire::C2H_DATA);
const GRANT: [u8; HEADER_BYTES] = wire::header(wire::R2T);
const RESPONSES: [[u8; HEADER_BYTES]; RUN] = [wire::header(wire::CAPSULE_RESP); RUN];

/// All connections of the target's side.
pub(super) struct Responder {
    connections: Vec<Connection>,
    finder: Finder,
    memory: Memory,
    /// Whether it never sleeps, so that all time between two reads of the clock is work.
    polls: bool,
}

/// What the connections share.
struct Memory {
    region: PageBuf,
    /// Payloads with digests; allocated for the first window with digests.
    copies: Option<Copies>,
    /// The largest number of copies.
    in_flight: usize,
    /// Memory for a receive, after the remainder of the last one.
    staging: Vec<u8>,
    /// Parts of it that are still to be copied past the cache, with their destinations.
    to_stream: Vec<(usize, Range<usize>)>,
    io_bytes: usize,
    shape: Shape,
    receive_bytes: usize,
    tuning: Tuning,
    /// The work for each command.
    work: Work,
    /// Commands answered in this window.
    answered: u64,
}

struct Connection {
    link: Link,
    /// The beginning of a header whose end has not been received yet.
    carry: [u8; COMMAND_BYTES],
    carried: usize,
    /// The payload that is being received.
    incoming: Option<Incoming>,
    /// Addresses of the writes whose data were requested, in order.
    granted: VecDeque<usize>,
    replies: VecDeque<Reply>,
    /// Number of bytes of the first reply that have been sent.
    sent: usize,
    /// Whether epoll reports room to send.
    watched: bool,
}

#[derive(Clone, Copy)]
struct Incoming {
    /// Offset of the next byte in the region.
    at: usize,
    left: usize,
    /// Whether the command is complete after this payload.
    last: bool,
}

#[derive(Clone, Copy)]
enum Reply {
    /// C2HData with the payload at this address.
    Data(usize),
    /// C2HData with the copy of the payload and its digest at this place.
    Copied(usize),
    Response,
    Grant,
}

impl Responder {
    pub(super) fn new(
        config: &LimitConfig,
        streams: Vec<TcpStream>,
        region: PageBuf,
    ) -> io::Result<Self> {
        let finder = Finder::new(&streams, config.mode)?;
        let connection = |stream| Connection {
            link: Link::new(stream, config, Side::Target),
            carry: [0; COMMAND_BYTES],
            carried: 0,
            incoming: None,
            granted: VecDeque::with_capacity(config.depth),
            replies: VecDeque::with_capacity(2 * config.depth),
            sent: 0,
            watched: false,
        };
        let memory = Memory {
            region,
            copies: None,
            in_flight: config.depth * config.connections,
            staging: Vec::new(),
            to_stream: Vec::with_capacity(config.depth),
            io_bytes: config.io_bytes,
            shape: config.shape(),
            receive_bytes: 0,
            tuning: Tuning::start(config),
            work: Work::new(config.fixed.work),
            answered: 0,
        };
        let connections = streams.into_iter().map(connection).collect();
        Ok(Self { connections, finder, memory, polls: config.mode == Mode::Polled })
    }

    /// Gives the region back.
    pub(super) fn into_region(self) -> PageBuf {
        self.memory.region
    }

    /// Answers until the window closes; gives the number of commands, and its busy time.
    pub(super) fn run(
        &mut self,
        tuning: Tuning,
        window: &Window,
    ) -> Result<(u64, Duration), LimitError> {
        let memory = &mut self.memory;
        memory.tuning = tuning;
        memory.answered = 0;
        if tuning.digest && memory.copies.is_none() {
            let copies = Copies::new(memory.io_bytes, memory.in_flight);
            memory.copies = Some(copies.map_err(LimitError::on(Side::Target))?);
        }
        memory.receive_bytes = match memory.shape {
            Shape::Read => memory.other_receive_bytes(&self.connections),
            Shape::InCapsule | Shape::ReadyToTransfer => tuning.receive_bytes,
        };
        memory.staging.resize(COMMAND_BYTES + memory.receive_bytes, 0);
        self.finder.set_look(tuning.look);
        self.connections.iter_mut().for_each(|one| one.link.set_tls(tuning.tls));
        let (mut busy, mut passed) = (Duration::ZERO, Instant::now());
        while window.is_open() {
            let found = self.finder.find().map_err(LimitError::on(Side::Target))?;
            let mut brought = false;
            for position in 0..found {
                let index = self.finder.connection(position);
                let Some(connection) = self.connections.get_mut(index) else { continue };
                brought |= connection.receive(memory)?;
                while connection.link.holds_more() {
                    connection.receive(memory)?;
                }
                connection.watch(index, memory, &self.finder)?;
            }
            let now = if self.polls { Instant::now() } else { passed };
            if brought {
                busy += now - passed;
                link::pause(tuning.target_pause);
            }
            passed = if brought && !tuning.target_pause.is_zero() { Instant::now() } else { now };
        }
        if self.connections.iter().all(Connection::is_quiet) || window.has_failed() {
            return Ok((memory.answered, busy));
        }
        Err(LimitError::Protocol("the target's side still has commands after the last response"))
    }
}

impl Memory {
    /// Copies received payload to its place, past the cache.
    fn stream(&mut self) {
        if !self.to_stream.is_empty() {
            let pieces = self.to_stream.drain(..);
            self.region.stream_in(pieces.map(|(to, from)| (to, &self.staging[from])));
        }
    }

    fn other_receive_bytes(&self, connections: &[Connection]) -> usize {
        let depth = connections.first().map_or(1, |connection| connection.granted.capacity());
        Tuning::other_receive_bytes(depth)
    }

    /// Whether a command's data are inside the region.
    fn holds(&self, address: usize) -> bool {
        address.checked_add(self.io_bytes).is_some_and(|end| end <= self.region.len())
    }

    /// Reads a part of a payload to prefetch what the send needs.
    fn prefetch(&self, payload: &[u8]) {
        let step = match self.tuning.prefetch {
            Prefetch::Off | Prefetch::Ahead => return,
            Prefetch::Pages => PAGE_BYTES,
            Prefetch::Lines => LINE_BYTES,
        };
        let mixed = payload.iter().step_by(step).fold(0, |mixed, &byte| mixed ^ byte);
        std::hint::black_box(mixed);
    }
}

impl Connection {
    fn is_quiet(&self) -> bool {
        self.carried == 0
            && self.incoming.is_none()
            && self.granted.is_empty()
            && self.replies.is_empty()
    }

    /// Receives once, and replies; gives whether bytes were received.
    fn receive(&mut self, memory: &mut Memory) -> Result<bool, LimitError> {
        let broken = LimitError::on(Side::Target);
        let filled = match self.incoming {
            Some(incoming) if memory.tuning.landing == Landing::Direct => {
                self.receive_direct(memory, incoming)
            }
            _ => {
                let from = self.carried;
                memory.staging[..from].copy_from_slice(&self.carry[..from]);
                let into = &mut memory.staging[from..from + memory.receive_bytes];
                self.link.read(into).map(|got| got.map_or(0, |got| from + got))
            }
        };
        let filled = filled.map_err(broken)?;
        if filled > 0 {
            self.carried = 0;
            self.parse(memory, filled)?;
            memory.stream();
        }
        let brought = filled > 0 || !self.replies.is_empty();
        if !self.replies.is_empty() {
            self.flush(memory)?;
        }
        Ok(brought)
    }

    /// Receives the rest of a payload into its place, and the bytes after it into the staging memory.
    fn receive_direct(&mut self, memory: &mut Memory, incoming: Incoming) -> io::Result<usize> {
        let Incoming { at, left, last } = incoming;
        let rest = &mut memory.region[at..at + left];
        let staging = &mut memory.staging[..memory.receive_bytes];
        let Some(got) = self.link.read_both([rest, staging])? else { return Ok(0) };
        let direct = got.min(left);
        self.took(memory, Incoming { at: at + direct, left: left - direct, last });
        Ok(got - direct)
    }

    /// Notes how much payload is still to come, or completes its command.
    fn took(&mut self, memory: &mut Memory, incoming: Incoming) {
        self.incoming = (incoming.left > 0).then_some(incoming);
        if incoming.left == 0 && incoming.last {
            self.replies.push_back(Reply::Response);
            memory.answered += 1;
        }
    }

    fn parse(&mut self, memory: &mut Memory, filled: usize) -> Result<(), LimitError> {
        let mut at = 0;
        while at < filled {
            if let Some(Incoming { at: to, left, last }) = self.incoming {
                let len = left.min(filled - at);
                if memory.tuning.landing == Landing::Streamed {
                    memory.to_stream.push((to, at..at + len));
                } else {
                    memory.region[to..to + len].copy_from_slice(&memory.staging[at..at + len]);
                }
                at += len;
                self.took(memory, Incoming { at: to + len, left: left - len, last });
            } else {
                let rest = &memory.staging[at..filled];
                let len = match rest[0] {
                    wire::CAPSULE_CMD => COMMAND_BYTES,
                    wire::H2C_DATA => HEADER_BYTES,
                    _ => return Err(LimitError::Protocol("the target's side lost its place")),
                };
                let Some(header) = rest.get(..len) else {
                    self.carry[..rest.len()].copy_from_slice(rest);
                    self.carried = rest.len();
                    return Ok(());
                };
                let taken = match rest[0] {
                    wire::CAPSULE_CMD => wire::address(header).and_then(|address| {
                        memory.holds(address).then(|| self.take_command(memory, address))
                    }),
                    _ => wire::piece(header).and_then(|piece| self.take_piece(memory, piece)),
                };
                taken.ok_or(LimitError::Protocol("the target's side got data out of range"))?;
                at += len;
            }
            if self.replies.len() >= memory.tuning.target_chunk {
                memory.stream();
                self.flush(memory)?;
            }
        }
        Ok(())
    }

    fn take_command(&mut self, memory: &mut Memory, address: usize) {
        memory.work.run();
        match memory.shape {
            Shape::Read => {
                if memory.tuning.prefetch == Prefetch::Ahead {
                    memory.region.prefetch(address..address + memory.io_bytes);
                }
                self.replies.push_back(Reply::Data(address));
                memory.answered += 1;
            }
            Shape::InCapsule => {
                self.incoming = Some(Incoming { at: address, left: memory.io_bytes, last: true });
            }
            Shape::ReadyToTransfer => {
                self.granted.push_back(address);
                self.replies.push_back(Reply::Grant);
            }
        }
    }

    /// Matches data with the oldest grant: the host answers in order.
    fn take_piece(&mut self, memory: &Memory, piece: Piece) -> Option<()> {
        let (offset, len) = (usize::try_from(piece.offset).ok()?, usize::try_from(piece.len).ok()?);
        let end = offset.checked_add(len).filter(|&end| len > 0 && end <= memory.io_bytes)?;
        let &address = self.granted.front()?;
        let last = end == memory.io_bytes;
        if last {
            self.granted.pop_front();
        }
        self.incoming = Some(Incoming { at: address + offset, left: len, last });
        Some(())
    }

    /// Sends replies until there are none left or the socket is full.
    fn flush(&mut self, memory: &mut Memory) -> Result<(), LimitError> {
        loop {
            let count = self.replies.len().min(memory.tuning.target_chunk);
            if memory.tuning.digest {
                self.copy(memory, count)?;
            }
            let all = match count {
                0 => return Ok(()),
                1..=4 => self.send::<8>(memory, count),
                5..=32 => self.send::<64>(memory, count),
                _ => self.send::<256>(memory, count),
            };
            if !all.map_err(LimitError::on(Side::Target))? {
                return Ok(());
            }
        }
    }

    /// Copies and digests the payloads of the next replies, unless that is done already.
    fn copy(&mut self, memory: &mut Memory, count: usize) -> Result<(), LimitError> {
        let (region, io_bytes) = (&memory.region, memory.io_bytes);
        let payload = |address: usize| &region[address..address + io_bytes];
        let Some(copies) = &mut memory.copies else { return Ok(()) };
        for index in 0..count {
            let Reply::Data(address) = self.replies[index] else { continue };
            let next = self.replies.get(index + 1).and_then(|next| match *next {
                Reply::Data(address) => Some(payload(address)),
                _ => None,
            });
            let place = copies.copy(payload(address), next);
            let place = place.ok_or(LimitError::Protocol("the target's side has no copy left"))?;
            self.replies[index] = Reply::Copied(place);
        }
        Ok(())
    }

    /// Sends once; false if the socket did not take all of it.
    fn send<const N: usize>(&mut self, memory: &mut Memory, count: usize) -> io::Result<bool> {
        let mut gather = Gather::<N>::new(self.sent, memory.tuning.send_bytes);
        let mut run = 0;
        for &reply in self.replies.iter().take(count) {
            if matches!(reply, Reply::Response) && run < RUN {
                run += 1;
                continue;
            }
            if run > 0 && !gather.push(RESPONSES[..run].as_flattened()) {
                run = 0;
                break;
            }
            run = usize::from(matches!(reply, Reply::Response));
            let fits = match reply {
                Reply::Data(address) => {
                    let payload = &memory.region[address..address + memory.io_bytes];
                    memory.prefetch(payload);
                    gather.push(&DATA) && gather.push(payload)
                }
                Reply::Copied(place) => {
                    let copy = memory.copies.as_ref().map_or(&[][..], |copies| copies.bytes(place));
                    gather.push(&DATA) && gather.push(copy)
                }
                Reply::Grant => gather.push(&GRANT),
                Reply::Response => true,
            };
            if !fits {
                break;
            }
        }
        if run > 0 {
            gather.push(RESPONSES[..run].as_flattened());
        }
        let sent = gather.send(&mut self.link)?.unwrap_or(0);
        let all = sent == gather.len();
        self.advance(memory, sent);
        Ok(all)
    }

    fn advance(&mut self, memory: &mut Memory, sent: usize) {
        self.sent += sent;
        while let Some(&reply) = self.replies.front() {
            let len = match reply {
                Reply::Data(_) => HEADER_BYTES + memory.io_bytes,
                Reply::Copied(_) => HEADER_BYTES + memory.io_bytes + DIGEST_BYTES,
                Reply::Response | Reply::Grant => HEADER_BYTES,
            };
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.replies.pop_front();
            if let (Reply::Copied(place), Some(copies)) = (reply, &mut memory.copies) {
                copies.release(place);
            }
        }
    }

    /// Lets epoll report room if there is something left to send.
    fn watch(&mut self, index: usize, memory: &Memory, finder: &Finder) -> Result<(), LimitError> {
        let wanted = !self.replies.is_empty() && memory.tuning.look == super::tuning::Look::Epoll;
        if wanted != self.watched {
            let watched = finder.watch_writing(index, self.link.stream(), wanted);
            watched.map_err(LimitError::on(Side::Target))?;
            self.watched = wanted;
        }
        Ok(())
    }
}
