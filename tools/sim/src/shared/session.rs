//! The iSCSI end: one session over a simulated socket, by the production initiator.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use raceline_crc32c::Crc32c;
use raceline_iscsi::initiator::{
    Direction, Grant, InitiatorConfig, InitiatorConnection, InitiatorEvent, Request,
};
use raceline_iscsi::names::{Isid, Name};
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Completion, Io as _, IoBuf, Outcome, SendBatch, SimIo, Token, Wait};

/// Bytes that one receive takes.
const STAGING: usize = 16 << 10;
const TOKEN: Token = Token { owner: 0, generation: 0, index: 0 };

/// A command that was answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) id: u64,
    pub(super) status: u8,
    /// Sense key, ASC and ASCQ.
    pub(super) sense: Option<(u8, u8, u8)>,
    pub(super) data: Vec<u8>,
}

/// A command under way.
struct Pending {
    id: u64,
    /// Its data: those to be sent, or those that have come.
    data: Vec<u8>,
}

/// A session.
pub(super) struct Session {
    io: SimIo,
    socket: Option<SocketId>,
    proto: InitiatorConnection,
    input: Vec<u8>,
    out: Vec<u8>,
    sending: bool,
    pending: BTreeMap<u16, Pending>,
    next_slot: u16,
    slots: u16,
    pub(super) answers: Vec<Answer>,
    pub(super) is_ready: bool,
    awake: bool,
}

impl Session {
    /// Begins to log in.
    pub(super) fn start(
        mut io: SimIo,
        address: SocketAddr,
        (initiator, target, number): (&str, &str, u32),
        digests: bool,
    ) -> Result<Self, String> {
        let name = |name: &str| Name::new(name).map_err(|error| format!("{name}: {error:?}"));
        let mut config = InitiatorConfig::new(name(initiator)?, Some(name(target)?), isid(number));
        (config.wishes.header_digest, config.wishes.data_digest) = (digests, digests);
        let slots = config.slots;
        io.connect(address, None, TOKEN);
        Ok(Self {
            io,
            socket: None,
            proto: InitiatorConnection::new(config),
            input: Vec::new(),
            out: Vec::new(),
            sending: false,
            pending: BTreeMap::new(),
            next_slot: 0,
            slots,
            answers: Vec::new(),
            is_ready: false,
            awake: false,
        })
    }

    /// Numbers of commands under way.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending.values().map(|pending| pending.id)
    }

    /// Whether it takes one more command.
    pub(super) fn takes(&self) -> bool {
        self.is_ready && self.proto.may_send() && self.pending.len() < usize::from(self.slots) / 2
    }

    /// Sends a command; `read`: bytes that are expected; `solicited`: all data are asked for.
    pub(super) fn send(&mut self, id: u64, cdb: &[u8], read: u32, data: Vec<u8>, solicited: bool) {
        while self.pending.contains_key(&self.next_slot) {
            self.next_slot = (self.next_slot + 1) % self.slots;
        }
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % self.slots;
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let len = u32::try_from(data.len()).unwrap_or(0);
        let (direction, len) = match (read, len) {
            (0, 0) => (Direction::None, 0),
            (0, len) => (Direction::Write, len),
            (read, _) => (Direction::Read, read),
        };
        let request = Request { lun: 0, cdb: whole, direction, len, attribute: 1 };
        let writes = direction == Direction::Write && !solicited;
        let immediate = if writes { self.proto.immediate_limit(len) } else { 0 };
        self.proto.command(slot, &request, immediate, false, &mut self.out);
        let sent = &data[..immediate as usize];
        self.out.extend_from_slice(sent);
        if immediate > 0 {
            self.proto.data_trailer(immediate, crc_of(sent), &mut self.out);
        }
        self.pending.insert(slot, Pending { id, data });
        self.awake = true;
    }

    /// Cuts the connection.
    pub(super) fn cut(mut self) {
        if let Some(socket) = self.socket {
            self.io.close(socket, true);
        }
    }

    /// Lets its socket end what it has begun.
    pub(super) fn close(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.io.close(socket, false);
        }
    }

    /// One turn of its loop. True: it had work.
    pub(super) fn turn(&mut self) -> Result<bool, String> {
        if !self.io.has_completions() && !std::mem::take(&mut self.awake) {
            return Ok(false);
        }
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).map_err(|error| error.to_string())?;
        for Completion { outcome, .. } in completions {
            match outcome {
                Outcome::Connected(socket) => {
                    let socket = socket.and_then(|socket| self.io.adopt(socket));
                    self.socket = Some(socket.map_err(|error| error.to_string())?);
                    self.proto.login(&mut self.out);
                    self.receive(IoBuf::heap(STAGING));
                }
                Outcome::Received(Ok(len), buffers) if len > 0 && self.socket.is_some() => {
                    self.input.extend_from_slice(&buffers.staging[..len]);
                    self.parse()?;
                    self.receive(buffers.staging);
                }
                Outcome::Received(..) if self.socket.is_some() => {
                    return Err("the target has closed a session".into());
                }
                Outcome::Sent(sent, _) => {
                    self.sending = false;
                    if self.socket.is_some() {
                        sent.map_err(|error| error.to_string())?;
                    }
                }
                _ => {}
            }
        }
        self.flush();
        Ok(true)
    }

    fn receive(&mut self, staging: IoBuf) {
        let Some(socket) = self.socket else { return };
        let staging_range = 0..STAGING;
        let buffers = RecvBuffers { payload: None, staging, staging_range };
        self.io.recv(socket, buffers, TOKEN);
    }

    fn flush(&mut self) {
        let Some(socket) = self.socket.filter(|_| !self.sending && !self.out.is_empty()) else {
            return;
        };
        let mut batch = SendBatch::new(self.out.len(), 2);
        batch.push_bytes(&self.out);
        self.out.clear();
        self.io.send(socket, batch, TOKEN);
        self.sending = true;
    }

    fn parse(&mut self) -> Result<(), String> {
        loop {
            let mut input = &self.input[..];
            let mut granted = None;
            let event = self.proto.receive(&mut input).map_err(|error| format!("{error:?}"))?;
            let none = event.is_none();
            match event {
                None => {}
                Some(InitiatorEvent::Answer) => self.proto.answer(&mut self.out),
                Some(InitiatorEvent::LoggedIn) => self.is_ready = true,
                Some(InitiatorEvent::Data { slot, offset, bytes }) => {
                    if let Some(pending) = self.pending.get_mut(&slot) {
                        pending.data.resize(offset as usize, 0);
                        pending.data.extend_from_slice(bytes);
                    }
                }
                Some(InitiatorEvent::DataEnd { slot, offset, len, digest, outcome }) => {
                    if let Some(pending) = self.pending.get(&slot)
                        && let Some(digest) = digest
                        && !digest.is_right(&pending.data[offset as usize..(offset + len) as usize])
                    {
                        return Err(format!("a data digest of command {} is wrong", pending.id));
                    }
                    if let Some(outcome) = outcome
                        && let Some(Pending { id, data }) = self.pending.remove(&slot)
                    {
                        self.answers.push(Answer { id, status: outcome.status, sense: None, data });
                    }
                }
                Some(InitiatorEvent::Response { slot, outcome }) => {
                    let sense = self.proto.data();
                    let sense = (sense.len() >= 14).then(|| (sense[2] & 0xf, sense[12], sense[13]));
                    if let Some(Pending { id, data }) = self.pending.remove(&slot) {
                        self.answers.push(Answer { id, status: outcome.status, sense, data });
                    }
                }
                Some(InitiatorEvent::R2t(grant)) => granted = Some(grant),
                Some(InitiatorEvent::Async(_)) => {}
                Some(other) => return Err(format!("{other:?} comes to a session")),
            }
            let left = input.len();
            self.input.drain(..self.input.len() - left);
            if let Some(grant) = granted {
                self.send_data(grant);
            }
            if none {
                return Ok(());
            }
        }
    }

    fn send_data(&mut self, mut grant: Grant) {
        let Some(pending) = self.pending.get(&grant.slot) else { return };
        while grant.len > 0 {
            let piece = self.proto.data_out(&mut grant, &mut self.out);
            let start = piece.offset as usize;
            let bytes = &pending.data[start..start + piece.len as usize];
            self.out.extend_from_slice(bytes);
            self.proto.data_trailer(piece.len, crc_of(bytes), &mut self.out);
        }
    }
}

/// The ISID of a session.
pub(super) fn isid(number: u32) -> Isid {
    Isid::random(number, 0)
}

fn crc_of(bytes: &[u8]) -> Crc32c {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc
}
