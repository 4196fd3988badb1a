//! Either end of a queue under any bytes, against a model of what it may send and report.

use std::collections::HashMap;

use raceline_crc32c::crc32c;
use raceline_proto::nvme::{CommandId, Cqe, Direction, SglDescriptor, Sqe};
use raceline_proto::tcp::pdu::{MAX_TERM_LEN, PduType, flags};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, DataDest, Event, FatalError, HostEvent, HostQueue,
    HostQueueConfig, R2tGrant, Violation,
};

/// Slots of either queue.
const SLOTS: u16 = 8;
/// Most in-capsule bytes of an I/O command.
const IN_CAPSULE_BYTES: u32 = 4096;
/// MAXH2CDATA of the controller.
const MAX_H2C_DATA: u32 = 4096;
/// Most bytes that the model asks for with one R2T.
const R2T_BYTES: u32 = 16 << 10;

/// Meaning of the setup byte.
pub mod setup {
    /// Header digests are on.
    pub const HDGST: u8 = 1 << 0;
    /// Data digests are on.
    pub const DDGST: u8 = 1 << 1;
    /// The connection is not initialized: the stream begins with ICReq or ICResp.
    pub const RAW: u8 = 1 << 2;
    /// Header digests in the stream are corrected before it is fed.
    pub const REPAIR: u8 = 1 << 3;
    /// Two bits: which HPDA.
    pub const HPDA_SHIFT: u8 = 4;
    /// The controller's queue is an admin queue; the host's allows four R2Ts.
    pub const VARIANT: u8 = 1 << 6;
    /// The host answers R2Ts only at the end.
    pub const LAZY: u8 = 1 << 7;
}

/// HPDA of a setup byte.
#[must_use]
pub fn hpda(setup: u8) -> u8 {
    [0, 1, 9, 31][usize::from(setup >> setup::HPDA_SHIFT & 3)]
}

/// How the stream is cut.
#[derive(Clone, Copy, Debug)]
pub enum Feed {
    /// In one piece.
    Whole,
    /// Byte by byte.
    Bytes,
    /// In pieces from this seed.
    Pieces(u64),
    /// The same, and bytes that `payload_wanted` names do not pass `receive`.
    Direct(u64),
}

impl Feed {
    /// Length of the next piece.
    fn next(&mut self) -> usize {
        match self {
            Self::Whole => usize::MAX,
            Self::Bytes => 1,
            Self::Pieces(state) | Self::Direct(state) => {
                *state ^= 0x9e37_79b9_7f4a_7c15; // 0 is a seed, too
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                // Mostly small, at times larger than any header.
                let [length, class, ..] = state.to_le_bytes();
                1 + usize::from(length) % [4, 30, 80, 256][usize::from(class & 3)]
            }
        }
    }
}

/// Something that happened, data of one PDU joined.
#[derive(Debug, PartialEq, Eq)]
enum Note {
    Event(String),
    Data { dest: u32, offset: u32, bytes: Vec<u8> },
}

/// Everything that a run shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trace {
    notes: Vec<Note>,
    sent: Vec<u8>,
    error: Option<FatalError>,
}

impl Trace {
    /// What ended the connection, if the stream did.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.error.as_ref().map(FatalError::violation)
    }

    fn data(&mut self, dest: u32, offset: u32, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "an event without data");
        if let Some(Note::Data { dest: last, offset: start, bytes: joined }) = self.notes.last_mut()
            && *last == dest
        {
            assert_eq!(offset as usize, *start as usize + joined.len(), "data in order");
            joined.extend(bytes);
        } else {
            self.notes.push(Note::Data { dest, offset, bytes: bytes.to_vec() });
        }
    }

    /// The end of a PDU's data, which must match the data that came before it.
    fn data_end(&mut self, dest: u32, offset: u32, len: u32, event: String) {
        match self.notes.last() {
            Some(Note::Data { dest: last, offset: start, bytes }) => {
                assert_eq!((*last, *start), (dest, offset), "the end of what began");
                assert_eq!(bytes.len(), len as usize, "all data came");
            }
            note => panic!("an end without data: {note:?}"),
        }
        self.notes.push(Note::Event(event));
    }
}

/// One end with its model.
trait End {
    fn receive(&mut self, input: &mut &[u8], trace: &mut Trace) -> Result<bool, FatalError>;
    fn wanted(&self) -> Option<(u32, u32, u32)>;
    fn received(&mut self, len: usize);
    fn finish(&mut self, trace: &mut Trace);
}

fn drain(end: &mut impl End, mut input: &[u8], trace: &mut Trace) -> Result<(), FatalError> {
    loop {
        let before = input.len();
        let more = end.receive(&mut input, trace)?;
        assert!(input.len() <= before, "input goes forward");
        if !more {
            assert!(input.is_empty(), "input is taken");
            return Ok(());
        }
    }
}

fn run(end: &mut impl End, mut stream: &[u8], mut feed: Feed, mut trace: Trace) -> Trace {
    while !stream.is_empty() {
        let (piece, rest) = stream.split_at(feed.next().min(stream.len()));
        stream = rest;
        let mut result = drain(end, piece, &mut trace);
        if let (Ok(()), Feed::Direct(_), Some((dest, offset, len))) = (&result, feed, end.wanted())
        {
            let (bytes, rest) = stream.split_at(stream.len().min(len as usize));
            stream = rest;
            if !bytes.is_empty() {
                trace.data(dest, offset, bytes);
                end.received(bytes.len());
                result = drain(end, &[], &mut trace);
            }
        }
        if let Err(error) = result {
            assert!(!error.header().is_empty() && error.header().len() <= 128);
            trace.error = Some(error);
            break;
        }
    }
    end.finish(&mut trace);
    trace
}

/// Corrects the header digests of a stream, as far as its PLENs tell where PDUs begin.
fn repair(stream: &mut [u8]) {
    let mut rest = stream;
    while let &mut [pdu_type, flags, hlen, _, p0, p1, p2, p3, ..] = rest {
        let digested = !matches!(
            PduType::from_wire(pdu_type),
            Some(PduType::IcReq | PduType::IcResp | PduType::H2cTermReq | PduType::C2hTermReq)
        );
        if digested
            && flags & flags::HDGSTF != 0
            && let Some((header, tail)) = rest.split_at_mut_checked(usize::from(hlen))
            && let Some(digest) = tail.first_chunk_mut()
        {
            *digest = crc32c(header).to_le_bytes();
        }
        let plen = u32::from_le_bytes([p0, p1, p2, p3]) as usize;
        match rest.split_at_mut_checked(plen.max(8)) {
            Some((_, next)) => rest = next,
            None => return,
        }
    }
}

fn repaired(setup: u8, stream: &[u8]) -> Vec<u8> {
    let mut stream = stream.to_vec();
    if setup & setup::REPAIR != 0 {
        repair(&mut stream);
    }
    stream
}

/// Feeds `stream` to a controller queue whose driver answers as the model says.
///
/// # Panics
/// When the queue breaks a promise.
pub fn run_controller(setup: u8, stream: &[u8], feed: Feed) -> Trace {
    let queue = ControllerQueue::new(ControllerQueueConfig {
        max_h2c_data: MAX_H2C_DATA,
        in_capsule_bytes: IN_CAPSULE_BYTES,
        max_r2t_slots: SLOTS,
        allow_hdgst: true,
        allow_ddgst: true,
    });
    let mut end = Controller { queue, r2ts: HashMap::new(), admin: false };
    let mut trace = Trace::default();
    if setup & setup::RAW == 0 {
        let mut request = Vec::new();
        host_queue(setup).ic_req(&mut request);
        drain(&mut end, &request, &mut trace).expect("a good ICReq");
    }
    if setup & setup::VARIANT != 0 {
        end.admin = true;
        end.queue.set_queue_kind(true);
    }
    run(&mut end, &repaired(setup, stream), feed, trace)
}

/// The controller's end, and the data that its R2Ts still ask for.
struct Controller {
    queue: ControllerQueue,
    r2ts: HashMap<u16, (CommandId, u32, u32)>,
    admin: bool,
}

/// Capsule or slot as a number.
fn dest_number(dest: DataDest) -> u32 {
    match dest {
        DataDest::Capsule => u32::MAX,
        DataDest::Slot(slot) => slot.into(),
    }
}

impl Controller {
    /// Answers a command: R2T for a write, data for a read.
    fn answer(&mut self, sqe: &Sqe, in_capsule: u32, out: &mut Vec<u8>) {
        let cid = sqe.command_id();
        let cqe = Cqe { cid, ..Cqe::default() };
        let mut len = sqe.sgl1.length.get();
        if in_capsule > 0 {
            let limit = if sqe.opc == 0x7f || self.admin { 8192 } else { IN_CAPSULE_BYTES };
            assert_eq!((sqe.sgl1.kind, len), (SglDescriptor::IN_CAPSULE, in_capsule));
            assert_eq!(sqe.sgl1.address.get(), 0);
            assert!(in_capsule <= limit, "in-capsule limit");
            return self.queue.response(&cqe, out);
        }
        if self.queue.data_digest() {
            len &= !3;
        }
        let slot = cid.0 % SLOTS;
        match sqe.opc & 3 {
            1 if len > 0 && !self.r2ts.contains_key(&slot) => {
                let len = len.min(R2T_BYTES);
                self.r2ts.insert(slot, (cid, 0, len));
                self.queue.r2t(slot, cid, 0, len, out);
            }
            2 if len > 0 => self.queue.c2h_data(cid, 0, len.min(4096), true, false, out),
            _ => self.queue.response(&cqe, out),
        }
    }
}

impl End for Controller {
    fn receive(&mut self, input: &mut &[u8], trace: &mut Trace) -> Result<bool, FatalError> {
        let Some(event) = self.queue.receive(input)? else { return Ok(false) };
        match event {
            Event::Connected(request) => {
                assert!(request.hpda <= 31);
                trace.notes.push(Note::Event(format!("{request:?}")));
                self.queue.ic_resp(&mut trace.sent);
            }
            Event::Command { sqe, in_capsule } => {
                trace.notes.push(Note::Event(format!("{sqe:?} {in_capsule}")));
                self.answer(&sqe, in_capsule, &mut trace.sent);
            }
            Event::Data { dest, offset, bytes } => trace.data(dest_number(dest), offset, bytes),
            Event::DataEnd { dest, offset, len, ddgst, last_pdu } => {
                assert_eq!(ddgst.is_some(), self.queue.data_digest());
                let done = match dest {
                    DataDest::Capsule => true,
                    DataDest::Slot(slot) => {
                        let r2t = self.r2ts.get_mut(&slot).expect("a live R2T");
                        assert_eq!(offset, r2t.1, "in order");
                        assert!(len <= MAX_H2C_DATA && len <= r2t.2 - offset, "in range");
                        r2t.1 += len;
                        r2t.1 == r2t.2
                    }
                };
                assert_eq!(last_pdu, done);
                let text = format!("{ddgst:?} {done}");
                trace.data_end(dest_number(dest), offset, len, text);
                if let (DataDest::Slot(slot), true) = (dest, done) {
                    let (cid, ..) = self.r2ts.remove(&slot).expect("a live R2T");
                    self.queue.response(&Cqe { cid, ..Cqe::default() }, &mut trace.sent);
                }
            }
            Event::Terminated(reason) => {
                assert!(reason.header.len() <= 128 && self.queue.is_closing());
                trace.notes.push(Note::Event(format!("{reason:?}")));
            }
        }
        Ok(true)
    }

    fn wanted(&self) -> Option<(u32, u32, u32)> {
        let wanted = self.queue.payload_wanted()?;
        Some((dest_number(wanted.dest), wanted.offset, wanted.len))
    }

    fn received(&mut self, len: usize) {
        self.queue.payload_received(len);
    }

    fn finish(&mut self, trace: &mut Trace) {
        let Some(error) = &trace.error else { return };
        assert!(self.queue.is_closing());
        assert_eq!(self.queue.receive(&mut &[0; 200][..]), Ok(None));
        let mut out = Vec::new();
        self.queue.term_req(error, &mut out);
        assert!((25..=MAX_TERM_LEN).contains(&out.len()));
        let mut host = host_queue(0);
        host.ic_req(&mut Vec::new());
        let Ok(Some(HostEvent::Terminated(reason))) = host.receive(&mut &out[..]) else {
            panic!("our TermReq is understood");
        };
        assert_eq!((reason.fes, reason.fei), (error.fes(), error.fei()));
        assert_eq!(*reason.header, *error.header());
        self.queue.term_req(error, &mut out);
        self.queue.response(&Cqe::default(), &mut out);
        assert!(out.len() <= MAX_TERM_LEN, "nothing after a TermReq");
    }
}

/// A host queue that asks for what the setup says.
#[must_use]
pub fn host_queue(setup: u8) -> HostQueue {
    HostQueue::new(HostQueueConfig {
        hpda: hpda(setup),
        hdgst: setup & setup::HDGST != 0,
        ddgst: setup & setup::DDGST != 0,
        maxr2t: if setup & setup::VARIANT != 0 { 3 } else { 0 },
        slots: SLOTS,
    })
}

/// The command of the host in each of its slots: opcode, direction, length, in-capsule.
const COMMANDS: [(u8, Direction, u32, bool); SLOTS as usize] = [
    (0x02, Direction::ControllerToHost, 8192, false),
    (0x02, Direction::ControllerToHost, 64, false),
    (0x01, Direction::HostToController, 8192, false),
    (0x01, Direction::HostToController, 512, true),
    (0x00, Direction::None, 0, false),
    (0x7f, Direction::ControllerToHost, 1024, false),
    (0x01, Direction::HostToController, 64 << 10, false),
    (0x01, Direction::HostToController, 8, false),
];

/// Feeds `stream` to a host queue that has a command in each slot, and a new one for each that
/// ends. Slot and first CID are the same; CIDs go up by the number of slots.
///
/// # Panics
/// When the queue breaks a promise.
pub fn run_host(setup: u8, stream: &[u8], feed: Feed) -> Trace {
    let mut end = Host {
        queue: host_queue(setup),
        commands: [Command::default(); SLOTS as usize],
        grants: Vec::new(),
        lazy: setup & setup::LAZY != 0,
        r2t_limit: if setup & setup::VARIANT != 0 { 4 } else { 1 },
    };
    let mut trace = Trace::default();
    let mut request = Vec::new();
    end.queue.ic_req(&mut request);
    if setup & setup::RAW == 0 {
        let mut controller = ControllerQueue::new(ControllerQueueConfig {
            max_h2c_data: MAX_H2C_DATA,
            in_capsule_bytes: IN_CAPSULE_BYTES,
            max_r2t_slots: SLOTS,
            allow_hdgst: true,
            allow_ddgst: true,
        });
        let mut response = Vec::new();
        controller.receive(&mut &request[..]).expect("a good ICReq");
        controller.ic_resp(&mut response);
        drain(&mut end, &response, &mut trace).expect("a good ICResp");
    }
    run(&mut end, &repaired(setup, stream), feed, trace)
}

/// The host's end and its outstanding commands.
struct Host {
    queue: HostQueue,
    commands: [Command; SLOTS as usize],
    grants: Vec<R2tGrant>,
    lazy: bool,
    r2t_limit: u32,
}

/// Model of a command.
#[derive(Clone, Copy, Default)]
struct Command {
    cid: u16,
    /// Received or granted.
    done: u32,
    open_r2ts: u32,
}

impl Host {
    /// Puts a new command into a slot.
    fn submit(&mut self, slot: u16, cid: u16, out: &mut Vec<u8>) {
        self.commands[usize::from(slot)] = Command { cid, ..Command::default() };
        let (opc, direction, len, in_capsule) = COMMANDS[usize::from(slot)];
        let sqe = Sqe { opc, cid: cid.into(), ..Sqe::default() };
        self.queue.command(&sqe, direction, len, in_capsule, out);
    }

    fn complete(&mut self, cid: CommandId, out: &mut Vec<u8>) {
        assert_eq!(self.command(cid).0.cid, cid.0);
        self.grants.retain(|grant| grant.cid != cid);
        self.submit(cid.0 % SLOTS, cid.0.wrapping_add(SLOTS), out);
    }

    /// An outstanding command, its direction and length.
    fn command(&mut self, cid: CommandId) -> (&mut Command, Direction, u32) {
        let slot = usize::from(cid.0 % SLOTS);
        let command = &mut self.commands[slot];
        assert_eq!(command.cid, cid.0, "an outstanding command");
        let (_, direction, len, in_capsule) = COMMANDS[slot];
        (command, if in_capsule { Direction::None } else { direction }, len)
    }

    /// Sends the data of a grant, which must be possible.
    fn send_data(&mut self, grant: &R2tGrant, out: &mut Vec<u8>) {
        let end = grant.offset + grant.len;
        let mut offset = grant.offset;
        while offset < end {
            let len = self.queue.max_h2c_data().min(end - offset);
            self.queue.h2c_data(grant, offset, len, offset + len == end, out);
            offset += len;
        }
        self.command(grant.cid).0.open_r2ts -= 1;
    }
}

impl End for Host {
    fn receive(&mut self, input: &mut &[u8], trace: &mut Trace) -> Result<bool, FatalError> {
        let Some(event) = self.queue.receive(input)? else { return Ok(false) };
        match event {
            HostEvent::Connected(response) => {
                assert!(response.cpda <= 31 && response.max_h2c_data >= 4096);
                trace.notes.push(Note::Event(format!("{response:?}")));
                for slot in 0..SLOTS {
                    self.submit(slot, slot, &mut trace.sent);
                }
            }
            HostEvent::Response(cqe) => {
                trace.notes.push(Note::Event(format!("{cqe:?}")));
                let (command, direction, len) = self.command(cqe.cid);
                let (done, fabrics) = (command.done, cqe.cid.0 % SLOTS == 5);
                if direction == Direction::ControllerToHost && cqe.status.is_success() {
                    assert!(done == len || fabrics, "success with all data");
                    assert_eq!(self.queue.bytes_received(cqe.cid), done);
                }
                self.complete(cqe.cid, &mut trace.sent);
            }
            HostEvent::Data { cid, offset, bytes } => trace.data(cid.0.into(), offset, bytes),
            HostEvent::DataEnd { cid, offset, len, ddgst, last, success } => {
                assert_eq!(ddgst.is_some(), self.queue.data_digest());
                let (command, direction, total) = self.command(cid);
                assert_eq!(direction, Direction::ControllerToHost);
                assert_eq!(offset, command.done, "in order");
                assert!(len <= total - offset, "in range");
                command.done += len;
                let complete = command.done == total || cid.0 % SLOTS == 5;
                assert!(!success || (last && complete), "success with all data");
                let text = format!("{ddgst:?} {last} {success}");
                trace.data_end(cid.0.into(), offset, len, text);
                if success {
                    self.complete(cid, &mut trace.sent);
                }
            }
            HostEvent::SendData(grant) => {
                trace.notes.push(Note::Event(format!("{grant:?}")));
                let limit = self.r2t_limit;
                let (command, direction, total) = self.command(grant.cid);
                assert_eq!(direction, Direction::HostToController);
                assert_eq!(grant.offset, command.done, "in order");
                assert!(grant.len > 0 && grant.len <= total - grant.offset, "in range");
                assert!(command.open_r2ts < limit, "MAXR2T");
                command.done += grant.len;
                command.open_r2ts += 1;
                if self.lazy {
                    self.grants.push(grant);
                } else {
                    self.send_data(&grant, &mut trace.sent);
                }
            }
            HostEvent::Terminated(reason) => {
                assert!(reason.header.len() <= 128 && self.queue.is_closing());
                trace.notes.push(Note::Event(format!("{reason:?}")));
            }
        }
        Ok(true)
    }

    fn wanted(&self) -> Option<(u32, u32, u32)> {
        let wanted = self.queue.payload_wanted()?;
        Some((wanted.dest.0.into(), wanted.offset, wanted.len))
    }

    fn received(&mut self, len: usize) {
        self.queue.payload_received(len);
    }

    fn finish(&mut self, trace: &mut Trace) {
        for grant in std::mem::take(&mut self.grants) {
            self.send_data(&grant, &mut trace.sent);
        }
        let Some(error) = &trace.error else { return };
        assert!(self.queue.is_closing());
        assert_eq!(self.queue.receive(&mut &[0; 200][..]), Ok(None));
        let mut out = Vec::new();
        self.queue.term_req(error, &mut out);
        assert!((25..=MAX_TERM_LEN).contains(&out.len()));
        self.queue.term_req(error, &mut out);
        assert!(out.len() <= MAX_TERM_LEN, "nothing after a TermReq");
    }
}
