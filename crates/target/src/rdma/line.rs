//! One RDMA connection: its capsules and data as PDUs of NVMe/TCP, both ways.
//!
//! What each command goes through is `#[inline]`: otherwise any change of this crate decides anew which of it the compiler
//! joins, and a command over RDMA takes up to 150 instructions more or less.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;

use raceline_proto::nvme::fabrics::{CATTR_DISABLE_SQ_FLOW, ConnectWords};
use raceline_proto::nvme::opcode::{admin, fabrics};
use raceline_proto::nvme::{CommandId, Cqe, QueueId, SglDescriptor, Sqe, Status};
use raceline_proto::rdma::HostData;
use raceline_proto::tcp::pdu::{
    C2hDataPdu, CapsuleCmdPdu, CapsuleRespPdu, H2cDataPdu, IcReqPdu, IcRespPdu, MIN_MAXH2CDATA,
    PduType, R2tPdu, flags,
};
use raceline_rdma::verbs::{ConnectionId, Provider as _, Region};
use raceline_rdma::{CommandToken, Loss, Table, TargetEvent};
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{Interest, UnsentReader};
use zerocopy::little_endian::U32;
use zerocopy::{Immutable, IntoBytes};

use super::buffers::Buffers;
use super::pdus::{Broken, LEAST_HEADER, MAX_HEADER, common, parse, unknown_response};
use super::places::Lease;
use super::sources::SourceId;
use super::works::Works;

/// Header bytes that are kept after they were read, before their memory is used again.
const MOST_READ: usize = 16 * 1024;
/// The tag of a response without data.
const NO_DATA: u32 = u32::MAX;
/// In a tag: the device reads the data of the response in place, in the range with this number.
const IN_PLACE: u32 = 1 << 31;
/// Offset of SQSIZE in a Connect (Fabrics 1.1, 3.3).
const IPO_SQSIZE: u32 = 44;
/// Offset of QID there.
const IPO_QID: u32 = 42;

/// Bytes that the controller reads next.
#[derive(Debug)]
enum Piece {
    /// So many bytes of [`Line::headers`].
    Headers(usize),
    /// Data that came in a capsule.
    Capsule { capsules: Region, at: u32, end: u32 },
    /// Data that were fetched; with the last of them, the buffer is free.
    Fetched { region: Region, at: u32, end: u32, last: bool },
}

impl Piece {
    fn len(&self) -> usize {
        match *self {
            Self::Headers(len) => len,
            Self::Capsule { at, end, .. } | Self::Fetched { at, end, .. } => {
                usize::try_from(end - at).unwrap_or(usize::MAX)
            }
        }
    }
}

/// A command that the controller has.
#[derive(Debug, Default)]
struct Command {
    /// `None`: its data are being fetched.
    token: Option<CommandToken>,
    cid: CommandId,
    /// An Asynchronous Event Request.
    is_event: bool,
    /// Bytes in the host's memory.
    len: u32,
    /// TTAG of the R2T.
    ttag: u16,
    /// Its data wait for a buffer.
    waits: bool,
    fetched: Option<Region>,
    given: Option<Region>,
    /// Data for the host that the device reads where they are.
    in_place: Option<Lease>,
    /// Bytes in `given`, or in place.
    received: u32,
    /// The controller has answered before its data were there.
    early: Option<Cqe>,
}

/// What of the controller's bytes comes next.
#[derive(Clone, Copy, Debug)]
enum Expects {
    /// The header in [`Line::header`].
    Header,
    /// Data for a command.
    Data { slot: u16, at: u32, left: u32, success: bool },
    /// Bytes that mean nothing.
    Skip(usize),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    id: ConnectionId,
    qid: QueueId,
    /// Whose buffers it has.
    pub(super) source: SourceId,
    /// Commands that the host may have outstanding.
    entries: u16,
    pieces: VecDeque<Piece>,
    /// Headers that the controller reads, from `headers_at` on.
    headers: Vec<u8>,
    headers_at: usize,
    commands: Vec<Command>,
    /// Slots by command identifiers.
    slots: Table<u16>,
    /// Commands whose data wait for a buffer.
    to_fetch: VecDeque<u16>,
    /// Buffers of responses that are under way, by tag.
    sending: Vec<Option<Region>>,
    tags: Vec<u32>,
    header: [u8; MAX_HEADER],
    header_len: usize,
    expects: Expects,
    max_h2c: u32,
    /// Bytes of the buffers that it has.
    held: u64,
    /// Data of batches that were taken, and which the device may still read there.
    pub(super) leases: u32,
    /// The controller's batch waits for the end of all leases.
    pub(super) owes: bool,
    /// A PDU waits for a buffer.
    pub(super) is_stalled: bool,
    /// It is among [`Works::starved`].
    pub(super) is_starved: bool,
    /// The host has used the identifier of an event request again that this end had not answered.
    has_reused: bool,
    pub(super) loss: Option<Loss>,
    /// The stream is gone.
    pub(super) is_dropped: bool,
    /// Nothing is left of the queue pair.
    pub(super) is_over: bool,
    /// What the stream's core waits for.
    pub(super) waiting: Interest,
    bell: UnixStream,
    pub(super) is_rung: bool,
}

impl Line {
    pub(super) fn new(
        (id, source): (ConnectionId, SourceId),
        qid: QueueId,
        entries: u16,
        bell: UnixStream,
    ) -> Self {
        let count = usize::from(entries);
        let mut line = Self {
            id,
            qid,
            source,
            entries,
            pieces: VecDeque::with_capacity(2 * count + 1),
            headers: Vec::with_capacity(count * CapsuleCmdPdu::LEN + MAX_HEADER),
            headers_at: 0,
            commands: (0..entries).map(|_| Command::default()).collect(),
            slots: Table::new(2 * count),
            to_fetch: VecDeque::with_capacity(count),
            sending: Vec::with_capacity(count),
            tags: Vec::with_capacity(count),
            header: [0; MAX_HEADER],
            header_len: 0,
            expects: Expects::Header,
            max_h2c: MIN_MAXH2CDATA,
            held: 0,
            leases: 0,
            owes: false,
            is_stalled: false,
            is_starved: false,
            has_reused: false,
            loss: None,
            is_dropped: false,
            is_over: false,
            waiting: Interest::NONE,
            bell,
            is_rung: false,
        };
        let common = common(PduType::IcReq, 0, 0);
        // One R2T for each command; no digests, and no padding.
        let request = IcReqPdu {
            common,
            pfv: 0.into(),
            hpda: 0,
            dgst: 0,
            maxr2t: 0.into(),
            reserved: [0; 112],
        };
        line.push_header(&request);
        line
    }

    /// A header for the controller. It joins those before it.
    fn push_header(&mut self, pdu: &(impl IntoBytes + Immutable)) {
        if self.headers_at == self.headers.len() {
            self.headers.clear();
            self.headers_at = 0;
        } else if self.headers_at > MOST_READ {
            self.headers.drain(..self.headers_at);
            self.headers_at = 0;
        }
        let pdu = pdu.as_bytes();
        self.headers.extend_from_slice(pdu);
        match self.pieces.back_mut() {
            Some(Piece::Headers(len)) => *len += pdu.len(),
            _ => self.pieces.push_back(Piece::Headers(pdu.len())),
        }
    }

    /// Wakes the stream's core, if that waits for what there is.
    pub(super) fn ring_if_waited_for(&mut self) {
        let reads = self.waiting.read && (self.has_input() || self.loss.is_some());
        let can_write =
            if self.owes { self.leases == 0 } else { !self.is_stalled || self.loss.is_some() };
        let writes = self.waiting.write && can_write;
        if reads || writes {
            self.ring();
        }
    }

    /// Wakes the stream's core.
    pub(super) fn ring(&mut self) {
        // A bell that is full has rung.
        if !std::mem::replace(&mut self.is_rung, true) {
            let _ = self.bell.write(&[1]);
        }
    }

    // ------------------------------------------------------------------- to the controller

    /// Whether the controller has bytes to read.
    pub(super) fn has_input(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Bytes that the controller can read.
    pub(super) fn unread(&self) -> usize {
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Puts what the controller reads next where it wants to have it. Gives the number of bytes.
    #[inline]
    pub(super) fn receive(&mut self, works: &mut Works, into: &mut RecvBuffers) -> usize {
        let (room, mut filled) = (into.room(), 0);
        while filled < room
            && let Some(piece) = self.pieces.front_mut()
        {
            match piece {
                Piece::Headers(left) => {
                    let count = into.put(filled, &self.headers[self.headers_at..][..*left]);
                    self.headers_at += count;
                    *left -= count;
                    filled += count;
                }
                Piece::Capsule { capsules: region, at, end }
                | Piece::Fetched { region, at, end, .. } => {
                    for part in into.parts(filled) {
                        let left = usize::try_from(*end - *at).unwrap_or(usize::MAX);
                        let count = left.min(part.len());
                        works.port.provider().read(region, *at, &mut part[..count]);
                        *at += u32::try_from(count).unwrap_or(0);
                        filled += count;
                    }
                }
            }
            if piece.len() == 0 {
                self.end_piece(works);
            }
        }
        filled
    }

    fn end_piece(&mut self, works: &mut Works) {
        match self.pieces.pop_front() {
            Some(Piece::Fetched { region, last: true, .. }) => {
                self.held -= u64::from(region.len);
                works.give_fetched(self.source, region);
            }
            // Some are left only when nobody reads them any longer.
            Some(Piece::Headers(unread)) => self.headers_at += unread,
            _ => {}
        }
    }

    /// Something has happened on the queue.
    #[inline]
    pub(super) fn handle(&mut self, works: &mut Works, event: TargetEvent) {
        match event {
            TargetEvent::Command { token, sqe, data } => self.take_command(works, token, sqe, data),
            TargetEvent::DataHere(token) => self.data_here(works, token),
            TargetEvent::DataLost(slot) => {
                let command = &mut self.commands[usize::from(slot)];
                self.slots.remove(command.cid.0.into());
                if let Some(region) = command.fetched.take() {
                    self.held -= u64::from(region.len);
                    works.give_fetched(self.source, region);
                }
            }
            TargetEvent::Responded(NO_DATA) => {}
            TargetEvent::Responded(tag) if tag & IN_PLACE != 0 => {
                self.end_lease(works, tag & !IN_PLACE);
            }
            TargetEvent::Responded(tag) => {
                let place = self.sending.get_mut(usize::try_from(tag).unwrap_or(usize::MAX));
                if let Some(region) = place.and_then(Option::take) {
                    self.tags.push(tag);
                    self.held -= u64::from(region.len);
                    works.give_given(self.source, region);
                }
            }
            TargetEvent::Lost(loss) => {
                let (connection, qid) = (self.id.0, self.qid);
                match loss {
                    Loss::Closed | Loss::Disconnected => {
                        tracing::debug!(connection, %qid, %loss, "an RDMA queue has ended");
                    }
                    _ => tracing::info!(connection, %qid, %loss, "an RDMA queue has ended"),
                }
                self.loss = Some(loss);
            }
        }
    }

    #[inline]
    fn take_command(
        &mut self,
        works: &mut Works,
        token: CommandToken,
        mut sqe: Sqe,
        data: Result<HostData, Status>,
    ) {
        let cid = sqe.command_id();
        let slot = usize::from(token.slot());
        if self.is_dropped && works.port.queue(self.id).is_some_and(|queue| queue.loss().is_none())
        {
            // Last responses leave. As on a socket that is closed, nobody answers: `abandon` gives the token back.
            self.commands[slot] = Command { token: Some(token), cid, ..Command::default() };
            return;
        }
        let judged = match data {
            Ok(_) if self.is_in_use(works, cid) => Err((Status::CID_CONFLICT.dnr(), 0)),
            Ok(data) => self.check_connect(works, &mut sqe).map(|()| data),
            Err(status) => Err((status, 0)),
        };
        let data = match judged {
            Ok(_) if self.is_dropped => return self.refuse(works, token, cid, ABORTED),
            Ok(data) => data,
            Err(refusal) => return self.refuse(works, token, cid, refusal),
        };
        let is_event = self.qid.is_admin() && sqe.opc == admin::ASYNC_EVENT_REQUEST;
        let capsule = match (&data, works.port.queue(self.id)) {
            (HostData::InCapsule { .. }, Some(queue)) => Some(queue.in_capsule(&token, &data)),
            _ => None,
        };
        let behind = capsule.map_or(0, |(_, _, len)| len);
        if behind > 0 {
            sqe.sgl1 = SglDescriptor::in_capsule(behind);
        }
        let common = common(PduType::CapsuleCmd, 0, behind);
        self.push_header(&CapsuleCmdPdu { common, sqe });
        if let Some((capsules, at, len)) = capsule {
            self.pieces.push_back(Piece::Capsule { capsules, at, end: at + len });
        }
        self.slots.insert(cid.0.into(), token.slot());
        self.commands[slot] =
            Command { token: Some(token), cid, is_event, len: data.len(), ..Command::default() };
    }

    /// Whether an identifier is a command's.
    #[inline]
    fn is_in_use(&mut self, works: &mut Works, cid: CommandId) -> bool {
        let known = self.slots.get(cid.0.into()).copied();
        known.is_some_and(|slot| !self.forgets_event_request(works, slot))
    }

    /// A command takes the place of an event request: the controller forgets the request, too. Gives whether it was one.
    #[cold]
    fn forgets_event_request(&mut self, works: &mut Works, slot: u16) -> bool {
        let command = &mut self.commands[usize::from(slot)];
        if command.is_event
            && let Some(token) = command.token.take()
            && let Some(queue) = works.port.queue(self.id)
        {
            queue.forget(token);
            self.has_reused = true;
            self.slots.remove(command.cid.0.into());
            return true;
        }
        false
    }

    /// Answers a command that the controller does not get to see.
    fn refuse(
        &mut self,
        works: &mut Works,
        token: CommandToken,
        cid: CommandId,
        (status, dw0): (Status, u32),
    ) {
        if let Some(queue) = works.port.queue(self.id) {
            queue.respond(token, Cqe { cid, status, dw0, ..Cqe::default() }, None, NO_DATA);
        }
    }

    /// A Connect has to ask for what the connection manager has granted.
    fn check_connect(&mut self, works: &mut Works, sqe: &mut Sqe) -> Result<(), (Status, u32)> {
        if sqe.opc != fabrics::OPCODE || sqe.fctype() != fabrics::CONNECT {
            return Ok(());
        }
        let words = ConnectWords::parse(sqe);
        let wrong = Status::CONNECT_INVALID_PARAMETERS.dnr();
        if words.qid != self.qid {
            return Err((wrong, IPO_QID));
        }
        if words.sqsize >= self.entries {
            return Err((wrong, IPO_SQSIZE));
        }
        if let Some(queue) = works.port.queue(self.id) {
            queue.set_sq_entries(words.sqsize + 1);
        }
        // The host learns by the response that it was not disabled.
        let [a, b, cattr, c] = sqe.cdw11.get().to_le_bytes();
        sqe.cdw11 = U32::from_bytes([a, b, cattr & !CATTR_DISABLE_SQ_FLOW, c]);
        Ok(())
    }

    /// The data of a command are here.
    fn data_here(&mut self, works: &mut Works, token: CommandToken) {
        let slot = token.slot();
        let command = &mut self.commands[usize::from(slot)];
        let (cid, ttag, len) = (command.cid, command.ttag, command.len);
        let Some(region) = command.fetched.take() else { return };
        if let Some(cqe) = command.early.take() {
            self.held -= u64::from(region.len);
            works.give_fetched(self.source, region);
            return self.respond(works, slot, token, cqe);
        }
        command.token = Some(token);
        let mut at = 0;
        while at < len {
            let count = self.max_h2c.min(len - at);
            let end = at + count;
            let last = end == len;
            let flags = if last { flags::LAST_PDU } else { 0 };
            let header = H2cDataPdu {
                common: common(PduType::H2cData, flags, count),
                cccid: cid.0.into(),
                ttag: ttag.into(),
                datao: at.into(),
                datal: count.into(),
                reserved: [0; 4],
            };
            self.push_header(&header);
            self.pieces.push_back(Piece::Fetched { region, at, end, last });
            at = end;
        }
    }

    // ----------------------------------------------------------------- from the controller

    /// Takes bytes of the controller. Gives how many: fewer when there is no buffer for what follows.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        works: &mut Works,
        input: &mut UnsentReader<'_>,
    ) -> Result<usize, Broken> {
        let mut taken = 0;
        self.is_stalled = false;
        loop {
            match &mut self.expects {
                Expects::Header => {
                    let wanted = self.wanted_header()?;
                    let count = input.copy(&mut self.header[self.header_len..wanted]);
                    self.header_len += count;
                    taken += count;
                    if self.header_len < wanted {
                        break;
                    }
                    if wanted < usize::from(self.header[2]) {
                        continue;
                    }
                    if !self.handle_header(works, input)? {
                        self.is_stalled = true;
                        break;
                    }
                    self.header_len = 0;
                }
                Expects::Skip(left) => {
                    let count = input.skip(*left);
                    taken += count;
                    *left -= count;
                    if *left > 0 {
                        break;
                    }
                    self.expects = Expects::Header;
                }
                Expects::Data { slot, at, left, success } => {
                    let command = &mut self.commands[usize::from(*slot)];
                    let mut count = 0;
                    if command.in_place.is_some() {
                        count = input.skip(usize::try_from(*left).unwrap_or(0));
                    } else {
                        let Some(region) = &command.given else {
                            return Err("data without a buffer");
                        };
                        // From where the data are to where the RDMA WRITE takes them.
                        let mut copy = |place: &mut [u8]| count = input.copy(place);
                        works.port.provider().fill(region, *at, *left, &mut copy);
                    }
                    taken += count;
                    let count = u32::try_from(count).unwrap_or(0);
                    (*at, *left) = (*at + count, *left - count);
                    command.received += count;
                    if *left > 0 {
                        break;
                    }
                    let (cid, success) = (command.cid, *success);
                    self.expects = Expects::Header;
                    if success {
                        self.finish(works, Cqe { cid, ..Cqe::default() })?;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// Bytes of the header that is coming, as far as that is known.
    fn wanted_header(&self) -> Result<usize, Broken> {
        if self.header_len < LEAST_HEADER {
            return Ok(LEAST_HEADER);
        }
        match usize::from(self.header[2]) {
            hlen if (LEAST_HEADER..=MAX_HEADER).contains(&hlen) => Ok(hlen),
            _ => Err("a header of a wrong length"),
        }
    }

    /// Handles a header that is complete. False: there is no buffer for what it announces.
    #[inline]
    fn handle_header(
        &mut self,
        works: &mut Works,
        rest: &UnsentReader<'_>,
    ) -> Result<bool, Broken> {
        let header = &self.header[..self.header_len];
        match PduType::from_wire(header[0]) {
            Some(PduType::IcResp) => {
                let response = parse::<IcRespPdu>(header)?;
                if response.dgst != 0 || response.cpda != 0 {
                    return Err("an ICResp with digests or padding");
                }
                self.max_h2c = response.maxh2cdata.get().max(1);
            }
            Some(PduType::CapsuleResp) => {
                let cqe = Cqe::from_bytes(&parse::<CapsuleRespPdu>(header)?.cqe);
                self.finish(works, cqe)?;
            }
            Some(PduType::C2hData) => {
                let data = *parse::<C2hDataPdu>(header)?;
                return self.begin_data(works, &data, rest);
            }
            Some(PduType::R2t) => {
                let r2t = *parse::<R2tPdu>(header)?;
                self.ask(works, &r2t)?;
            }
            Some(PduType::C2hTermReq) => {
                let plen = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
                let rest = usize::try_from(plen).unwrap_or(0).saturating_sub(header.len());
                self.expects = Expects::Skip(rest);
                self.loss.get_or_insert(Loss::Closed);
            }
            _ => return Err("a PDU that no controller sends"),
        }
        Ok(true)
    }

    /// Whether it may have another buffer of the size for so many bytes.
    fn may_hold(&self, len: u32, share: u64) -> bool {
        self.held == 0 || self.held + Buffers::size_of(len) <= share
    }

    fn starve(&mut self, works: &mut Works) {
        if !std::mem::replace(&mut self.is_starved, true) {
            works.starved.push(self.id);
        }
    }

    #[inline]
    fn begin_data(
        &mut self,
        works: &mut Works,
        data: &C2hDataPdu,
        rest: &UnsentReader<'_>,
    ) -> Result<bool, Broken> {
        let cid = CommandId(data.cccid.get());
        let slot = *self.slots.get(cid.0.into()).ok_or("data of an unknown command")?;
        let (at, left) = (data.datao.get(), data.datal.get());
        let len = self.commands[usize::from(slot)].len;
        let fits = at.checked_add(left).is_some_and(|end| end <= len);
        if !fits || usize::from(data.common.pdo) != C2hDataPdu::LEN || left == 0 {
            return Err("data that the host has no room for");
        }
        let success = data.common.flags & flags::SUCCESS != 0;
        let is_whole =
            left == len && (success || rest.has_more_than(usize::try_from(left).unwrap_or(0)));
        if is_whole && self.lease(works, slot, rest) {
            self.expects = Expects::Data { slot, at, left, success };
            return Ok(true);
        }
        if self.commands[usize::from(slot)].given.is_none() {
            let share = works.given.share();
            let region =
                if self.may_hold(len, share) { works.take_given(self.source, len) } else { None };
            let Some(region) = region else {
                self.starve(works);
                return Ok(false);
            };
            self.held += u64::from(region.len);
            self.commands[usize::from(slot)].given = Some(region);
        }
        self.expects = Expects::Data { slot, at, left, success };
        Ok(true)
    }

    /// Has the device read the data of a command where they are, if it can. They are all of them, and their response is in
    /// the same batch: the batch is kept until the response has left.
    fn lease(&mut self, works: &mut Works, slot: u16, rest: &UnsentReader<'_>) -> bool {
        let command = &mut self.commands[usize::from(slot)];
        if command.in_place.is_some() || command.given.is_some() || command.token.is_none() {
            return false;
        }
        command.in_place = works.places.lease(works.port.provider(), rest, command.len);
        let Some(lease) = command.in_place else { return false };
        self.leases += u32::from(lease.keeps_batch);
        true
    }

    /// The device reads data in a range no longer.
    fn end_lease(&mut self, works: &mut Works, range: u32) {
        if works.places.end(range) {
            self.leases = self.leases.saturating_sub(1);
        }
    }

    /// The controller asks for the data of a command, always for all of them.
    fn ask(&mut self, works: &mut Works, r2t: &R2tPdu) -> Result<(), Broken> {
        let cid = CommandId(r2t.cccid.get());
        let slot = *self.slots.get(cid.0.into()).ok_or("an R2T of an unknown command")?;
        let command = &mut self.commands[usize::from(slot)];
        if r2t.r2to.get() != 0 || r2t.r2tl.get() != command.len || command.waits {
            return Err("an R2T for a part of a command's data");
        }
        command.ttag = r2t.ttag.get();
        command.waits = true;
        self.to_fetch.push_back(slot);
        self.fetch(works);
        Ok(())
    }

    /// Fetches data for which there are buffers.
    pub(super) fn fetch(&mut self, works: &mut Works) {
        while let Some(&slot) = self.to_fetch.front() {
            let command = &self.commands[usize::from(slot)];
            let len = command.len;
            if !command.waits || command.token.is_none() {
                self.to_fetch.pop_front();
                continue;
            }
            let share = works.fetched.share();
            let region =
                if self.may_hold(len, share) { works.take_fetched(self.source, len) } else { None };
            let Some(region) = region else { return self.starve(works) };
            self.to_fetch.pop_front();
            self.held += u64::from(region.len);
            let command = &mut self.commands[usize::from(slot)];
            command.waits = false;
            command.fetched = Some(region);
            if let (Some(token), Some(queue)) = (command.token.take(), works.port.queue(self.id)) {
                queue.read_host_data(token, region.slice(0, len));
            }
        }
    }

    /// The controller has ended a command.
    #[inline]
    fn finish(&mut self, works: &mut Works, cqe: Cqe) -> Result<(), Broken> {
        let slot = self.slots.get(cqe.cid.0.into()).copied();
        let slot = slot.ok_or_else(|| unknown_response(self.has_reused))?;
        let command = &mut self.commands[usize::from(slot)];
        match command.token.take() {
            Some(token) => self.respond(works, slot, token, cqe),
            None => command.early = Some(cqe),
        }
        Ok(())
    }

    fn respond(&mut self, works: &mut Works, slot: u16, token: CommandToken, mut cqe: Cqe) {
        let command = &mut self.commands[usize::from(slot)];
        self.slots.remove(command.cid.0.into());
        command.waits = false;
        let (len, received) = (command.len, command.received);
        let in_place = command.in_place.take();
        let mut data = command.given.take();
        if let Some(lease) = in_place {
            if cqe.status.is_success() && received == len {
                let tag = IN_PLACE | lease.range;
                if let Some(queue) = works.port.queue(self.id) {
                    return queue.respond(token, cqe, Some(lease.data), tag);
                }
            }
            self.end_lease(works, lease.range);
        }
        if let Some(region) = data
            && (!cqe.status.is_success() || received != len)
        {
            if cqe.status.is_success() {
                tracing::error!(received, len, "a command has succeeded without all of its data");
                cqe.status = Status::DATA_TRANSFER_ERROR;
            }
            self.held -= u64::from(region.len);
            works.give_given(self.source, region);
            data = None;
        }
        let tag = data.map_or(NO_DATA, |region| self.tag(region));
        let data = data.map(|region| region.slice(0, len));
        if let Some(queue) = works.port.queue(self.id) {
            queue.respond(token, cqe, data, tag);
        }
    }

    /// A name for the buffer of a response.
    fn tag(&mut self, region: Region) -> u32 {
        let tag = self.tags.pop().unwrap_or_else(|| {
            self.sending.push(None);
            u32::try_from(self.sending.len() - 1).unwrap_or(NO_DATA - 1)
        });
        self.sending[usize::try_from(tag).unwrap_or(0)] = Some(region);
        tag
    }

    // -------------------------------------------------------------------------- the end

    /// The controller reads nothing more.
    pub(super) fn drop_input(&mut self, works: &mut Works) {
        while !self.pieces.is_empty() {
            self.end_piece(works);
        }
        self.to_fetch.clear();
    }

    /// Gives all commands back. The queue has ended.
    pub(super) fn abandon(&mut self, works: &mut Works) {
        self.expects = Expects::Skip(usize::MAX);
        for slot in 0..self.entries {
            let command = &mut self.commands[usize::from(slot)];
            let cid = command.cid;
            command.early = Some(Cqe { cid, status: ABORTED.0, ..Cqe::default() });
            if let Some(token) = command.token.take() {
                let cqe = Cqe { cid, status: ABORTED.0, ..Cqe::default() };
                self.respond(works, slot, token, cqe);
            }
        }
    }

    /// Nothing is left of the queue pair: gives all memory back.
    pub(super) fn end(&mut self, works: &mut Works) {
        self.drop_input(works);
        for command in &mut self.commands {
            command
                .fetched
                .take()
                .into_iter()
                .for_each(|region| works.give_fetched(self.source, region));
            command
                .given
                .take()
                .into_iter()
                .for_each(|region| works.give_given(self.source, region));
            let lease = command.in_place.take();
            lease.into_iter().for_each(|lease| _ = works.places.end(lease.range));
        }
        self.leases = 0;
        for region in self.sending.drain(..).flatten() {
            works.give_given(self.source, region);
        }
        self.held = 0;
    }
}

/// The answer to commands whose connection ends.
const ABORTED: (Status, u32) = (Status::ABORT_REQUESTED, 0);
