//! The host's end of one queue's connection.

use std::ops::ControlFlow;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::nvme::{CommandId, Cqe, Direction, SglDescriptor, Sqe, Status, opcode::fabrics};

use super::PayloadWanted;
use super::error::{FatalError, Violation};
use super::pdu::{
    self, C2hDataPdu, CapsuleCmdPdu, CapsuleRespPdu, CommonHeader, H2cDataPdu, IcReqPdu, IcResp,
    IcRespPdu, MAX_PDA, MIN_MAXH2CDATA, PduType, R2tPdu, TermReq, flags,
};
use super::receive::{self, Body, QueueState, Receiver, Role, Shape};
use super::send::{self, Framing};

/// What a host asks for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQueueConfig {
    /// HPDA, 0..=31: alignment of the data in C2HData, 0's based dwords.
    pub hpda: u8,
    /// Use header digests; the host refuses a controller that does not.
    pub hdgst: bool,
    /// Use data digests; the host refuses a controller that does not.
    pub ddgst: bool,
    /// MAXR2T as on the wire: R2Ts outstanding per command, 0's based.
    pub maxr2t: u32,
    /// Command slots, a power of two. A command's slot is its CID modulo this; the caller may use the CID's
    /// other bits for generations.
    pub slots: u16,
}

/// Permission to send a piece of a command's data, with H2CData PDUs of at most
/// [`HostQueue::max_h2c_data`] bytes, in order, the last of them marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2tGrant {
    /// The command.
    pub cid: CommandId,
    /// The controller's name for the R2T.
    pub ttag: u16,
    /// First byte, as an offset in the command's data.
    pub offset: u32,
    /// Bytes; at least 1.
    pub len: u32,
}

/// What the controller has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent<'a> {
    /// A valid ICResp: commands may be sent.
    Connected(IcResp),
    /// The end of a command. The queue turns success into Data Transfer Error for a read whose data have
    /// not all come, and for a write whose data have not all been sent. Fabrics commands are excepted: their
    /// data may be shorter than their buffer, see [`HostQueue::bytes_received`].
    Response(Cqe),
    /// Data of a command.
    Data {
        /// The command.
        cid: CommandId,
        /// Offset in the command's data.
        offset: u32,
        /// The data.
        bytes: &'a [u8],
    },
    /// All data of one PDU have come: `[offset, offset + len)` of the command's data.
    DataEnd {
        /// The command.
        cid: CommandId,
        /// Offset in the command's data of the first byte of the PDU.
        offset: u32,
        /// Bytes in the PDU.
        len: u32,
        /// The data digest received, if data digests are on.
        ddgst: Option<u32>,
        /// No more data come.
        last: bool,
        /// The command has succeeded, all of its data are there, and no response follows.
        success: bool,
    },
    /// The controller wants data of a command. Void once the command has ended.
    SendData(R2tGrant),
    /// The controller's C2HTermReq: close at once.
    Terminated(TermReq),
}

/// The host's end of one queue's connection. The [module](super) says how to drive it.
#[derive(Debug)]
pub struct HostQueue {
    receiver: Receiver,
    commands: Commands,
    framing: Framing,
    /// The common header of a capsule without data: all are alike.
    bare_capsule: CommonHeader,
    max_h2c_data: u32,
    /// The ICReq is out.
    requested: bool,
    /// A TermReq may still be sent.
    may_terminate: bool,
}

/// The state for checking what the controller sends; apart from the receiver, which lends the
/// header.
#[derive(Debug)]
struct Commands {
    config: HostQueueConfig,
    slots: Vec<Slot>,
    current: Option<Incoming>,
}

/// One command.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    live: bool,
    cid: CommandId,
    direction: Direction,
    /// Bytes to transfer.
    len: u32,
    /// All of them were in the capsule.
    in_capsule: bool,
    /// Success needs all bytes.
    exact: bool,
    /// Bytes received, or granted by R2Ts.
    done: u32,
    /// R2Ts whose last H2CData has not been sent.
    open_r2ts: u32,
    /// C2HData with LAST_PDU has come.
    last_seen: bool,
}

/// The C2HData whose data are coming.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    cid: CommandId,
    offset: u32,
    len: u32,
    last: bool,
    success: bool,
}

impl HostQueue {
    /// For a connection just made.
    ///
    /// # Panics
    /// When HPDA is above 31 or `slots` is no power of two.
    #[must_use]
    pub fn new(config: HostQueueConfig) -> Self {
        assert!(config.hpda <= MAX_PDA, "HPDA is at most 31");
        assert!(config.slots.is_power_of_two(), "slots are a power of two");
        Self {
            receiver: Receiver::new(Role::Host, config.hpda),
            commands: Commands {
                config,
                slots: vec![Slot::default(); usize::from(config.slots)],
                current: None,
            },
            framing: Framing::INITIAL,
            bare_capsule: Framing::INITIAL.common(PduType::CapsuleCmd, 0, 0),
            max_h2c_data: MIN_MAXH2CDATA,
            requested: false,
            may_terminate: true,
        }
    }

    /// Takes input up to the next event; `None` when it needs more.
    ///
    /// # Errors
    /// When the controller has violated the protocol: send [`HostQueue::term_req`] and close.
    #[inline]
    pub fn receive<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<HostEvent<'a>>, FatalError> {
        loop {
            if self.is_closing() {
                *input = &[];
                return Ok(None);
            }
            if self.receiver.awaits_header() && !self.receive_familiar_data(input) {
                if let Some(event) = self.receive_familiar_response(input) {
                    return Ok(Some(event));
                }
                match self.receive_header(input)? {
                    ControlFlow::Break(event) => return Ok(event),
                    ControlFlow::Continue(()) => {}
                }
            }
            let event = match (self.receiver.body(input), self.commands.current) {
                (None, _) => return Ok(None),
                (Some(_), None) => continue, // of a forgotten command
                (Some(Body::Bytes { offset, bytes }), Some(incoming)) => {
                    HostEvent::Data { cid: incoming.cid, offset: incoming.offset + offset, bytes }
                }
                (Some(Body::End { ddgst }), Some(incoming)) => {
                    self.commands.current = None;
                    let Incoming { cid, offset, len, last, success } = incoming;
                    if success {
                        self.forget(cid);
                    }
                    HostEvent::DataEnd { cid, offset, len, ddgst, last, success }
                }
            };
            return Ok(Some(event));
        }
    }

    /// Takes the header of data like those before them, and goes on with these data. Takes nothing when
    /// anything in the header is new or wrong: then [`Self::receive_header`] has to judge it.
    #[inline(always)]
    fn receive_familiar_data(&mut self, input: &mut &[u8]) -> bool {
        let Some((shape, header)) = self.receiver.familiar_header(input) else { return false };
        let taken = shape.pdu_type == PduType::C2hData
            && receive::parse::<C2hDataPdu>(header).datal.get() == shape.data_len
            && shape.data_len > 0
            && self.commands.handle_data(shape, header).is_ok();
        if taken {
            *input = &input[header.len()..];
            self.receiver.begin_body(shape);
        }
        taken
    }

    /// The same for a response after another. Nothing follows a response, so the receiver goes on waiting
    /// for a header.
    #[inline]
    fn receive_familiar_response<'a>(&mut self, input: &mut &'a [u8]) -> Option<HostEvent<'a>> {
        let (shape, header) = self.receiver.familiar_header(input)?;
        if shape.pdu_type != PduType::CapsuleResp {
            return None;
        }
        let event = self.commands.handle_response(header).ok()?;
        *input = &input[header.len()..];
        Some(event)
    }

    /// Takes a header, and the data that it announces.
    fn receive_header<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<ControlFlow<Option<HostEvent<'a>>>, FatalError> {
        let received = match self.receiver.header(input) {
            Ok(None) => return Ok(ControlFlow::Break(None)),
            // The most frequent PDU; its event comes with the data.
            Ok(Some((shape, header))) if shape.pdu_type == PduType::C2hData => {
                match self.commands.handle_data(shape, header) {
                    Ok(()) => {
                        self.receiver.begin_body(shape);
                        return Ok(ControlFlow::Continue(()));
                    }
                    Err(violation) => Err(FatalError::in_header(violation, header)),
                }
            }
            Ok(Some((shape, header))) => match self.commands.handle_header(shape, header) {
                Ok(event) => Ok((shape, event)),
                Err(violation) => Err(FatalError::in_header(violation, header)),
            },
            Err(error) => Err(error),
        };
        let (shape, event) = received.inspect_err(|_| self.receiver.advance(QueueState::Closed))?;
        self.receiver.begin_body(shape);
        match &event {
            HostEvent::Connected(response) => {
                let IcResp { cpda, header_digest, data_digest, max_h2c_data } = *response;
                self.framing = Framing::new(header_digest, data_digest, cpda);
                self.bare_capsule = self.framing.common(PduType::CapsuleCmd, 0, 0);
                self.max_h2c_data = max_h2c_data;
                self.receiver.set_digests(header_digest, data_digest);
                self.receiver.advance(QueueState::Ready);
            }
            HostEvent::Terminated(_) => {
                self.receiver.advance(QueueState::Closed);
                self.may_terminate = false;
            }
            _ => {}
        }
        Ok(ControlFlow::Break(Some(event)))
    }

    /// The data that come next on the wire, when the input has ended amid data.
    #[must_use]
    pub fn payload_wanted(&self) -> Option<PayloadWanted<CommandId>> {
        let (offset, len) = self.receiver.data_wanted()?;
        let incoming = self.commands.current?;
        Some(PayloadWanted { dest: incoming.cid, offset: incoming.offset + offset, len })
    }

    /// Tells the queue that the first `len` of the wanted bytes went to their place without `receive`, which
    /// the driver must call afterwards.
    ///
    /// # Panics
    /// When fewer were wanted.
    pub fn payload_received(&mut self, len: usize) {
        self.receiver.data_received(len);
    }

    /// Whether the connection is about to end: nothing is received or sent any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.receiver.state() == QueueState::Closed
    }

    /// Whether PDUs carry header digests.
    #[must_use]
    pub fn header_digest(&self) -> bool {
        self.framing.header_digest
    }

    /// Whether data are followed by a data digest.
    #[must_use]
    pub fn data_digest(&self) -> bool {
        self.framing.data_digest
    }

    /// MAXH2CDATA: most data bytes per H2CData.
    #[must_use]
    pub fn max_h2c_data(&self) -> u32 {
        self.max_h2c_data
    }

    /// Bytes of a CapsuleCmd with in-capsule data that are not data: header, digests, padding.
    #[must_use]
    pub fn capsule_overhead(&self) -> usize {
        self.framing.overhead(PduType::CapsuleCmd) as usize
    }

    /// Bytes of an H2CData that are not data: header, digests, padding.
    #[must_use]
    pub fn h2c_overhead(&self) -> usize {
        self.framing.overhead(PduType::H2cData) as usize
    }

    /// Appends the ICReq, the first thing on a connection.
    ///
    /// # Panics
    /// When it was sent before.
    pub fn ic_req(&mut self, out: &mut Vec<u8>) {
        if self.is_closing() {
            return;
        }
        assert!(!self.requested, "one ICReq per connection");
        self.requested = true;
        let config = self.commands.config;
        let pdu = IcReqPdu {
            common: send::ic_common(PduType::IcReq),
            pfv: U16::ZERO,
            hpda: config.hpda,
            dgst: pdu::dgst(config.hdgst, config.ddgst),
            maxr2t: config.maxr2t.into(),
            reserved: [0; 112],
        };
        out.extend_from_slice(pdu.as_bytes());
    }

    /// Registers a command in the slot of its CID and appends its capsule. PSDT and SGL are filled
    /// in for `len` bytes in the given direction. With `in_capsule` the driver appends the data
    /// and, if [`HostQueue::data_digest`], their digest.
    ///
    /// # Panics
    /// Before the ICResp; when the slot is taken; when in-capsule data are none or do not go to
    /// the controller; when `len` contradicts the direction, or is no multiple of 4 although data
    /// digests are on.
    #[inline]
    pub fn command(
        &mut self,
        sqe: &Sqe,
        direction: Direction,
        len: u32,
        in_capsule: bool,
        out: &mut Vec<u8>,
    ) {
        if self.is_closing() {
            return;
        }
        assert_eq!(self.receiver.state(), QueueState::Ready, "a command follows the ICResp");
        assert_eq!(len == 0, direction == Direction::None, "a direction has data");
        assert!(
            !in_capsule || direction == Direction::HostToController,
            "in-capsule data go to the controller"
        );
        assert!(!self.data_digest() || len.is_multiple_of(4), "digests cover whole dwords");
        let cid = sqe.command_id();
        let slot = self.commands.slot_of(cid);
        assert!(!slot.live, "command slot of {cid} is taken");
        *slot = Slot {
            live: true,
            cid,
            direction,
            len,
            in_capsule,
            exact: sqe.opc != fabrics::OPCODE,
            ..Slot::default()
        };
        let (common, sgl1) = if in_capsule {
            let common = self.framing.common(PduType::CapsuleCmd, 0, len);
            (common, SglDescriptor::in_capsule(len))
        } else {
            (self.bare_capsule, SglDescriptor::transport(len))
        };
        let mut pdu = CapsuleCmdPdu { common, sqe: *sqe };
        pdu.sqe.flags = sqe.flags & 0b11 | Sqe::PSDT_SGL;
        pdu.sqe.sgl1 = sgl1;
        self.framing.put(pdu.as_bytes(), &common, out);
    }

    /// Appends header, digest and padding of an H2CData with `len` bytes from `offset` of the
    /// command's data; the driver appends the bytes, then, if [`HostQueue::data_digest`], their
    /// digest. `last`: the grant's data end here, and the R2T with them.
    ///
    /// # Panics
    /// When `len` is 0, above [`HostQueue::max_h2c_data`], with data digests no multiple of 4, or
    /// goes beyond the grant; when `last` is not exactly at its end.
    pub fn h2c_data(
        &mut self,
        grant: &R2tGrant,
        offset: u32,
        len: u32,
        last: bool,
        out: &mut Vec<u8>,
    ) {
        if self.is_closing() {
            return;
        }
        assert!(len > 0 && len <= self.max_h2c_data, "H2CData of {len} bytes");
        assert!(!self.data_digest() || len.is_multiple_of(4), "digests cover whole dwords");
        assert!(offset >= grant.offset, "H2CData before its grant");
        // Widened: the sums fit, since the grant was checked against the command's length.
        let left = u64::from(grant.offset) + u64::from(grant.len) - u64::from(offset);
        assert!(u64::from(len) <= left, "H2CData beyond its grant");
        assert_eq!(last, u64::from(len) == left, "LAST_PDU is at the end of a grant");
        if last {
            let slot = self.commands.slot_of(grant.cid);
            if slot.live && slot.cid == grant.cid {
                slot.open_r2ts = slot.open_r2ts.saturating_sub(1);
            }
        }
        let common =
            self.framing.common(PduType::H2cData, if last { flags::LAST_PDU } else { 0 }, len);
        let pdu = H2cDataPdu {
            common,
            cccid: grant.cid.0.into(),
            ttag: grant.ttag.into(),
            datao: offset.into(),
            datal: U32::new(len),
            reserved: [0; 4],
        };
        self.framing.put(pdu.as_bytes(), &common, out);
    }

    /// Frees a command's slot. The queue itself forgets a command that has ended; this is for a command
    /// that the driver gives up. A PDU that still comes for it is a violation, so the driver must give up the
    /// connection, too.
    pub fn forget(&mut self, cid: CommandId) {
        let slot = self.commands.slot_of(cid);
        if slot.cid == cid {
            slot.live = false;
        }
        if self.commands.current.is_some_and(|incoming| incoming.cid == cid) {
            self.commands.current = None;
        }
    }

    /// Bytes of data received for a command, also after its end until its slot is used again.
    #[must_use]
    pub fn bytes_received(&self, cid: CommandId) -> u32 {
        self.commands
            .slots
            .get(self.commands.index(cid))
            .filter(|slot| slot.cid == cid && slot.direction == Direction::ControllerToHost)
            .map_or(0, |slot| slot.done)
    }

    /// Appends the H2CTermReq for an error and closes the queue: nothing is received or sent after
    /// it. Appends nothing when a TermReq was sent or received before.
    pub fn term_req(&mut self, error: &FatalError, out: &mut Vec<u8>) {
        if self.may_terminate {
            send::put_term_req(PduType::H2cTermReq, error, out);
        }
        self.may_terminate = false;
        self.receiver.advance(QueueState::Closed);
    }
}

impl Commands {
    fn index(&self, cid: CommandId) -> usize {
        usize::from(cid.0 & (self.config.slots - 1))
    }

    fn slot_of(&mut self, cid: CommandId) -> &mut Slot {
        let index = self.index(cid);
        &mut self.slots[index]
    }

    /// The outstanding command of this CID, generation included.
    #[inline(always)]
    fn live(&mut self, cid: CommandId) -> Option<&mut Slot> {
        Some(self.slot_of(cid)).filter(|slot| slot.live && slot.cid == cid)
    }

    /// Checks the bytes behind the common header of a PDU other than C2HData.
    fn handle_header<'a>(
        &mut self,
        shape: Shape,
        header: &[u8],
    ) -> Result<HostEvent<'a>, Violation> {
        match shape.pdu_type {
            PduType::CapsuleResp => self.handle_response(header),
            PduType::R2t => self.handle_r2t(header),
            PduType::IcResp => self.handle_ic_resp(header),
            PduType::C2hTermReq => receive::parse_term_req(header).map(HostEvent::Terminated),
            PduType::C2hData
            | PduType::IcReq
            | PduType::H2cTermReq
            | PduType::CapsuleCmd
            | PduType::H2cData => {
                unreachable!("data are handled apart; the receiver refuses the other direction")
            }
        }
    }

    fn handle_ic_resp<'a>(&self, header: &[u8]) -> Result<HostEvent<'a>, Violation> {
        let pdu: IcRespPdu = receive::parse(header);
        if pdu.pfv.get() != 0 {
            return Err(Violation::PfvInvalid);
        }
        if pdu.cpda > MAX_PDA {
            return Err(Violation::PdaInvalid);
        }
        let header_digest = pdu.dgst & pdu::DGST_HEADER != 0;
        let data_digest = pdu.dgst & pdu::DGST_DATA != 0;
        // A controller may not switch on a digest that the host did not ask for. One that declines a digest
        // would leave data unprotected that the user wanted protected.
        if (header_digest, data_digest) != (self.config.hdgst, self.config.ddgst) {
            return Err(Violation::DgstUnexpected);
        }
        let max_h2c_data = pdu.maxh2cdata.get();
        if max_h2c_data < MIN_MAXH2CDATA || !max_h2c_data.is_multiple_of(4) {
            return Err(Violation::Maxh2cdataInvalid);
        }
        Ok(HostEvent::Connected(IcResp {
            cpda: pdu.cpda,
            header_digest,
            data_digest,
            max_h2c_data,
        }))
    }

    #[inline]
    fn handle_response<'a>(&mut self, header: &[u8]) -> Result<HostEvent<'a>, Violation> {
        let mut cqe = Cqe::from_bytes(&receive::parse::<CapsuleRespPdu>(header).cqe);
        let slot = self.live(cqe.cid).ok_or(Violation::ResponseCidUnknown)?;
        slot.live = false;
        let short = match slot.direction {
            Direction::ControllerToHost => slot.done < slot.len,
            // Data that were not asked for, or not sent, cannot have been written.
            Direction::HostToController => {
                !slot.in_capsule && (slot.done < slot.len || slot.open_r2ts > 0)
            }
            Direction::None => false,
        };
        if short && slot.exact && cqe.status.is_success() {
            cqe.status = Status::DATA_TRANSFER_ERROR;
        }
        Ok(HostEvent::Response(cqe))
    }

    /// C2HData is taken for a read only, in order, within its length. A PDU that is not taken changes
    /// nothing.
    #[inline(always)]
    fn handle_data(&mut self, shape: Shape, header: &[u8]) -> Result<(), Violation> {
        let pdu: C2hDataPdu = receive::parse(header);
        let cid = CommandId(pdu.cccid.get());
        let slot = self.live(cid).ok_or(Violation::CccidUnknown)?;
        if slot.direction != Direction::ControllerToHost {
            return Err(Violation::C2hDataUnexpected);
        }
        if slot.last_seen {
            return Err(Violation::C2hDataAfterLast);
        }
        let (offset, len) = (pdu.datao.get(), shape.data_len);
        if offset != slot.done {
            return Err(Violation::C2hDataoNotNext);
        }
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= slot.len)
            .ok_or(Violation::C2hDataOutOfRange)?;
        let last = shape.flags & flags::LAST_PDU != 0;
        let success = shape.flags & flags::SUCCESS != 0;
        if success && !last {
            return Err(Violation::SuccessWithoutLast);
        }
        if success && slot.exact && end < slot.len {
            return Err(Violation::SuccessShort);
        }
        slot.done = end;
        slot.last_seen = last;
        self.current = Some(Incoming { cid, offset, len, last, success });
        Ok(())
    }

    /// An R2T is taken for a write without in-capsule data only, in order, within its length.
    fn handle_r2t<'a>(&mut self, header: &[u8]) -> Result<HostEvent<'a>, Violation> {
        let pdu: R2tPdu = receive::parse(header);
        let HostQueueConfig { maxr2t, ddgst, .. } = self.config;
        let cid = CommandId(pdu.cccid.get());
        let slot = self.live(cid).ok_or(Violation::CccidUnknown)?;
        if slot.direction != Direction::HostToController || slot.in_capsule {
            return Err(Violation::R2tUnexpected);
        }
        let (offset, len) = (pdu.r2to.get(), pdu.r2tl.get());
        if offset != slot.done {
            return Err(Violation::R2toNotNext);
        }
        if len == 0 {
            return Err(Violation::R2tlZero);
        }
        if ddgst && !len.is_multiple_of(4) {
            return Err(Violation::R2tlUnaligned);
        }
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= slot.len)
            .ok_or(Violation::R2tOutOfRange)?;
        if slot.open_r2ts > maxr2t {
            return Err(Violation::TooManyR2ts);
        }
        slot.open_r2ts += 1;
        slot.done = end;
        Ok(HostEvent::SendData(R2tGrant { cid, ttag: pdu.ttag.get(), offset, len }))
    }
}
