//! The controller's end of one queue's connection.

use std::ops::ControlFlow;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::nvme::{CommandId, Cqe, SglDescriptor, Sqe, opcode::fabrics};

use serde::{Deserialize, Serialize};

use super::PayloadWanted;
use super::ahead::CommandsAhead;
use super::error::{FatalError, Violation};
use super::pdu::{
    self, ADMIN_IN_CAPSULE_BYTES, C2hDataPdu, CapsuleCmdPdu, CapsuleRespPdu, H2cDataPdu, IcReq,
    IcReqPdu, IcRespPdu, MAX_PDA, MIN_MAXH2CDATA, PduType, R2tPdu, TermReq, flags,
};
use super::receive::{self, Body, QueueState, Receiver, Role, Shape};
use super::send::{self, Framing};

/// CPDA: the target wants no padding. Linux accepts nothing else.
const CPDA: u8 = 0;

/// What a controller offers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerQueueConfig {
    /// MAXH2CDATA: most data bytes per H2CData; a multiple of 4, at least 4096.
    pub max_h2c_data: u32,
    /// In-capsule data bytes of an I/O command: IOCCSZ * 16 - 64. Admin and Fabrics commands may
    /// always carry 8192.
    pub in_capsule_bytes: u32,
    /// Slots for R2Ts: `slot` arguments are below it.
    pub max_r2t_slots: u16,
    /// Header digests are used when a host asks for them.
    pub allow_hdgst: bool,
    /// Data digests are used when a host asks for them.
    pub allow_ddgst: bool,
}

/// The command whose data a PDU carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDest {
    /// The latest command, in its capsule.
    Capsule,
    /// The command that an R2T was sent for from this slot.
    Slot(u16),
}

/// What the host has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A valid ICReq: the driver calls [`ControllerQueue::ic_resp`].
    Connected(IcReq),
    /// A command. With `in_capsule` above 0 that many bytes of its data follow, for
    /// [`DataDest::Capsule`]; a driver without a buffer stops calling `receive` until it has one.
    Command {
        /// The command; its SGL is consistent with the capsule.
        sqe: Sqe,
        /// Bytes of data in the capsule.
        in_capsule: u32,
    },
    /// Data of a command.
    Data {
        /// The command that they belong to.
        dest: DataDest,
        /// Offset in the command's data.
        offset: u32,
        /// The data.
        bytes: &'a [u8],
    },
    /// All data of one PDU have come: `[offset, offset + len)` of the command's data.
    DataEnd {
        /// The command that they belong to.
        dest: DataDest,
        /// Offset in the command's data of the first byte of the PDU.
        offset: u32,
        /// Bytes in the PDU.
        len: u32,
        /// The data digest received, if data digests are on. A wrong one fails the command, not
        /// the connection: the driver goes on receiving, and completes the command with Transient
        /// Transport Error.
        ddgst: Option<u32>,
        /// Whether it was the last PDU of the R2T, whose slot is free again; always for a capsule.
        last_pdu: bool,
    },
    /// The host's H2CTermReq: close at once.
    Terminated(TermReq),
}

/// The controller's end of one queue's connection. The [module](super) says how to drive it.
#[derive(Debug)]
pub struct ControllerQueue {
    receiver: Receiver,
    commands: Commands,
    framing: Framing,
    requested: IcReq,
    /// A TermReq may still be sent.
    may_terminate: bool,
}

/// A queue between two PDUs, with nothing under way, as one process hands it to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerQueueState {
    max_h2c_data: u32,
    in_capsule_bytes: u32,
    max_r2t_slots: u16,
    header_digest: bool,
    data_digest: bool,
    hpda: u8,
    maxr2t: u32,
    /// The first bytes of the next header.
    held: Vec<u8>,
}

/// The state for checking capsules and data; apart from the receiver, which lends the header.
#[derive(Debug)]
struct Commands {
    config: ControllerQueueConfig,
    /// Limit of in-capsule data for commands that are not Fabrics commands.
    in_capsule_limit: u32,
    r2ts: Vec<R2tSlot>,
    /// Bits of a TTAG that are the slot; the generation of the slot is above them.
    slot_bits: u32,
    current: Option<Incoming>,
}

/// One R2T slot.
#[derive(Clone, Copy, Debug, Default)]
struct R2tSlot {
    /// An R2T is out, and its data have not all been announced.
    live: bool,
    /// TTAG of the R2T sent last. It exposes a host that uses an older one.
    ttag: u16,
    cid: CommandId,
    /// Offset of the next byte.
    next: u32,
    /// Offset behind the last byte.
    end: u32,
}

/// The PDU whose data are coming.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    dest: DataDest,
    offset: u32,
    len: u32,
    last_pdu: bool,
}

impl ControllerQueue {
    /// For a connection just accepted.
    ///
    /// # Panics
    /// When MAXH2CDATA is below 4096 or no multiple of 4.
    #[must_use]
    pub fn new(config: ControllerQueueConfig) -> Self {
        assert!(
            config.max_h2c_data >= MIN_MAXH2CDATA && config.max_h2c_data.is_multiple_of(4),
            "MAXH2CDATA is at least 4096 and a multiple of 4"
        );
        let slots = config.max_r2t_slots;
        let slot_bits = u32::from(slots).next_power_of_two().ilog2();
        let r2ts = (0..slots).map(|slot| R2tSlot { ttag: slot, ..R2tSlot::default() }).collect();
        Self {
            receiver: Receiver::new(Role::Controller, CPDA),
            commands: Commands {
                config,
                in_capsule_limit: config.in_capsule_bytes,
                r2ts,
                slot_bits,
                current: None,
            },
            framing: Framing::INITIAL,
            requested: IcReq::default(),
            may_terminate: true,
        }
    }

    /// Whether the next byte, or the rest of a header, begins a PDU, and no data of a command have yet to come: then
    /// [`Self::hand_over`] gives the queue.
    #[must_use]
    pub fn is_between(&self) -> bool {
        let commands = &self.commands;
        self.receiver.held_header().is_some()
            && commands.current.is_none()
            && !commands.r2ts.iter().any(|r2t| r2t.live)
    }

    /// Whether nothing has come at all.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.receiver.state() == QueueState::Uninitialized && self.receiver.at_header()
    }

    /// What another process needs to go on; `None`: something is under way.
    #[must_use]
    pub fn hand_over(&self) -> Option<ControllerQueueState> {
        let held = self.receiver.held_header().filter(|_| self.is_between())?;
        let config = self.commands.config;
        Some(ControllerQueueState {
            max_h2c_data: config.max_h2c_data,
            in_capsule_bytes: config.in_capsule_bytes,
            max_r2t_slots: config.max_r2t_slots,
            header_digest: self.framing.header_digest,
            data_digest: self.framing.data_digest,
            hpda: self.requested.hpda,
            maxr2t: self.requested.maxr2t,
            held: held.to_vec(),
        })
    }

    /// The queue of another process; [`Self::set_queue_kind`] is to follow. `None`: no queue has this state.
    #[must_use]
    pub fn take_over(state: &ControllerQueueState) -> Option<Self> {
        let is_right = state.max_h2c_data >= MIN_MAXH2CDATA
            && state.max_h2c_data.is_multiple_of(4)
            && state.hpda <= MAX_PDA;
        if !is_right {
            return None;
        }
        let (header_digest, data_digest) = (state.header_digest, state.data_digest);
        let mut queue = Self::new(ControllerQueueConfig {
            max_h2c_data: state.max_h2c_data,
            in_capsule_bytes: state.in_capsule_bytes,
            max_r2t_slots: state.max_r2t_slots,
            allow_hdgst: true,
            allow_ddgst: true,
        });
        let (hpda, maxr2t) = (state.hpda, state.maxr2t);
        queue.requested = IcReq { hpda, header_digest, data_digest, maxr2t };
        queue.framing = Framing::new(header_digest, data_digest, hpda);
        queue.receiver.set_digests(header_digest, data_digest);
        queue.receiver.advance(QueueState::Ready);
        let mut held = &state.held[..];
        let waits_on = matches!(queue.receive(&mut held), Ok(None)) && held.is_empty();
        waits_on.then_some(queue)
    }

    /// Sets which kind of queue Connect made: an admin queue takes 8192 in-capsule bytes with
    /// every command.
    pub fn set_queue_kind(&mut self, admin: bool) {
        self.commands.in_capsule_limit =
            if admin { ADMIN_IN_CAPSULE_BYTES } else { self.commands.config.in_capsule_bytes };
    }

    /// Takes input up to the next event; `None` when it needs more.
    ///
    /// # Errors
    /// When the host has violated the protocol: send [`ControllerQueue::term_req`] and close.
    #[inline]
    pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, FatalError> {
        loop {
            if self.receiver.state() == QueueState::Closed {
                *input = &[];
                return Ok(None);
            }
            if self.receiver.awaits_header() {
                if let Some(event) = self.receive_familiar(input) {
                    return Ok(Some(event));
                }
                match self.receive_header(input)? {
                    ControlFlow::Break(event) => return Ok(event),
                    ControlFlow::Continue(()) => {}
                }
            }
            let event = match (self.receiver.body(input), self.commands.current) {
                (None, _) => return Ok(None),
                (Some(_), None) => continue, // of a cancelled R2T
                (Some(Body::Bytes { offset, bytes }), Some(incoming)) => {
                    Event::Data { dest: incoming.dest, offset: incoming.offset + offset, bytes }
                }
                (Some(Body::End { ddgst }), Some(incoming)) => {
                    self.commands.current = None;
                    let Incoming { dest, offset, len, last_pdu } = incoming;
                    Event::DataEnd { dest, offset, len, ddgst, last_pdu }
                }
            };
            return Ok(Some(event));
        }
    }

    /// Takes a command whose header begins like the one before it. Takes nothing when anything else in the
    /// header is new or wrong: then [`Self::receive_header`] has to judge it.
    #[inline(always)]
    fn receive_familiar<'a>(&mut self, input: &mut &'a [u8]) -> Option<Event<'a>> {
        let (shape, header) = self.receiver.familiar_header(input)?;
        if shape.pdu_type != PduType::CapsuleCmd {
            return None;
        }
        let event = self.commands.handle_command(shape, header).ok()?;
        self.receiver.begin_body(shape);
        *input = &input[header.len()..];
        Some(event)
    }

    /// Takes a header, and the data that it announces.
    fn receive_header<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<ControlFlow<Option<Event<'a>>>, FatalError> {
        let received = match self.receiver.header(input) {
            Ok(None) => return Ok(ControlFlow::Break(None)),
            Ok(Some((shape, header))) => match self.commands.handle_header(shape, header) {
                Ok(event) => Ok((shape, event)),
                Err(violation) => Err(FatalError::in_header(violation, header)),
            },
            Err(error) => Err(error),
        };
        let (shape, event) = received.inspect_err(|_| self.receiver.advance(QueueState::Closed))?;
        self.receiver.begin_body(shape);
        match &event {
            Some(Event::Connected(request)) => {
                self.requested = *request;
                self.receiver.advance(QueueState::Answering);
            }
            Some(Event::Terminated(_)) => {
                self.receiver.advance(QueueState::Closed);
                self.may_terminate = false;
            }
            Some(_) => {}
            None => return Ok(ControlFlow::Continue(())),
        }
        Ok(ControlFlow::Break(event))
    }

    /// The data that come next on the wire, when the input has ended amid data.
    #[must_use]
    pub fn payload_wanted(&self) -> Option<PayloadWanted<DataDest>> {
        let (offset, len) = self.receiver.data_wanted()?;
        let incoming = self.commands.current?;
        Some(PayloadWanted { dest: incoming.dest, offset: incoming.offset + offset, len })
    }

    /// Takes the data of the capsule that [`Event::Command`] has just announced, when they are `len` bytes
    /// without a digest and all lie at the front of `input`, which [`ControllerQueue::receive`] has left.
    /// The caller takes as many bytes off `input`; neither [`Event::Data`] nor [`Event::DataEnd`] follows.
    /// `None` takes nothing.
    #[inline]
    pub fn take_capsule_data<'a>(&mut self, input: &'a [u8], len: usize) -> Option<&'a [u8]> {
        self.commands.current.filter(|incoming| incoming.dest == DataDest::Capsule)?;
        let data = self.receiver.whole_data(input, len)?;
        self.commands.current = None;
        Some(data)
    }

    /// The commands in `input`, which [`ControllerQueue::receive`] has left, as far as their PDUs are
    /// whole. A driver that knows what the next commands read can prefetch that memory while it
    /// works on the first. None amid data.
    #[inline]
    #[must_use]
    pub fn commands_ahead<'a>(&self, input: &'a [u8]) -> CommandsAhead<'a> {
        let known = self.receiver.state() == QueueState::Ready && self.receiver.at_header();
        CommandsAhead::new(if known { input } else { &[] })
    }

    /// The data digest of the data just given by [`Event::Data`], when the PDU's data end there
    /// and `input`, which [`ControllerQueue::receive`] has left, begins with the whole digest. The
    /// same value comes with [`Event::DataEnd`]; a driver that reads it here can check data where
    /// they lie.
    #[must_use]
    pub fn data_digest_ahead(&self, input: &[u8]) -> Option<u32> {
        self.receiver.digest_ahead(input)
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

    /// MAXR2T + 1: most R2Ts that may be outstanding for one command, each in a slot of its own.
    #[must_use]
    pub fn r2t_limit(&self) -> u32 {
        self.requested.r2t_limit()
    }

    /// Bytes of a C2HData PDU that are not data: header, digests, padding.
    #[must_use]
    pub fn c2h_overhead(&self) -> usize {
        self.framing.overhead(PduType::C2hData) as usize
    }

    /// Appends the ICResp that answers [`Event::Connected`].
    ///
    /// # Panics
    /// When there is no ICReq to answer.
    pub fn ic_resp(&mut self, out: &mut Vec<u8>) {
        if self.is_closing() {
            return;
        }
        assert_eq!(self.receiver.state(), QueueState::Answering, "an ICResp answers an ICReq");
        let config = self.commands.config;
        let header_digest = self.requested.header_digest && config.allow_hdgst;
        let data_digest = self.requested.data_digest && config.allow_ddgst;
        let pdu = IcRespPdu {
            common: send::ic_common(PduType::IcResp),
            pfv: U16::ZERO,
            cpda: CPDA,
            dgst: pdu::dgst(header_digest, data_digest),
            maxh2cdata: config.max_h2c_data.into(),
            reserved: [0; 112],
        };
        out.extend_from_slice(pdu.as_bytes());
        self.framing = Framing::new(header_digest, data_digest, self.requested.hpda);
        self.receiver.set_digests(header_digest, data_digest);
        self.receiver.advance(QueueState::Ready);
    }

    /// Appends an R2T for `[offset, offset + len)` of the command's data. The slot is taken until
    /// its [`Event::DataEnd`] says `last_pdu`.
    ///
    /// The host must have room for it, see [`ControllerQueue::r2t_limit`], and the R2Ts of one
    /// command go through its data in order. With data digests `len` must be a multiple of 4:
    /// the queue accepts no other answer from the host.
    ///
    /// # Panics
    /// When the slot is taken, or the range is empty or exceeds 4 GiB.
    pub fn r2t(&mut self, slot: u16, cid: CommandId, offset: u32, len: u32, out: &mut Vec<u8>) {
        if self.is_closing() {
            return;
        }
        let slot_bits = self.commands.slot_bits;
        let r2t = &mut self.commands.r2ts[usize::from(slot)];
        assert!(!r2t.live, "R2T slot {slot} is taken");
        assert!(len > 0, "an R2T asks for data");
        let end = offset.checked_add(len).expect("a command's data are below 4 GiB");
        // The next generation of the slot. With 2^16 slots no bit is left for a generation.
        let ttag = r2t.ttag.wrapping_add(1_u16.checked_shl(slot_bits).unwrap_or(0));
        *r2t = R2tSlot { live: true, ttag, cid, next: offset, end };
        let common = self.framing.common(PduType::R2t, 0, 0);
        let pdu = R2tPdu {
            common,
            cccid: cid.0.into(),
            ttag: ttag.into(),
            r2to: offset.into(),
            r2tl: len.into(),
            reserved: [0; 4],
        };
        self.framing.put(pdu.as_bytes(), &common, out);
    }

    /// Forgets the R2T of a command that is being torn down: its data are dropped, and H2CData
    /// PDUs for it that begin later are a violation. If the connection is to live on, the command must
    /// take its data to the end instead.
    pub fn cancel_r2t(&mut self, slot: u16) {
        self.commands.r2ts[usize::from(slot)].live = false;
        if self.commands.current.is_some_and(|incoming| incoming.dest == DataDest::Slot(slot)) {
            self.commands.current = None;
        }
    }

    /// Appends a response capsule.
    #[inline]
    pub fn response(&mut self, cqe: &Cqe, out: &mut Vec<u8>) {
        if self.is_closing() {
            return;
        }
        let common = self.framing.common(PduType::CapsuleResp, 0, 0);
        let pdu = CapsuleRespPdu { common, cqe: cqe.to_bytes() };
        self.framing.put(pdu.as_bytes(), &common, out);
    }

    /// Appends header, digest and padding of a C2HData with `len` bytes from `offset` of the
    /// command's data; the driver appends the bytes, then, if [`ControllerQueue::data_digest`],
    /// their digest. `last`: the command's data end here. `success`: the command ends here, too, without
    /// a response; only for status 0 with DW0 and DW1 0, on a queue without SQ flow control.
    ///
    /// A driver must not send on a queue that [is closing](ControllerQueue::is_closing): this method
    /// would append nothing for the data to follow.
    ///
    /// With data digests `len` should be a multiple of 4: implementations differ in the digest of
    /// other data. A controller should refuse commands that ask for such a length.
    ///
    /// # Panics
    /// When `success` is without `last`, or `len` is 0.
    #[inline(always)]
    pub fn c2h_data(
        &mut self,
        cid: CommandId,
        offset: u32,
        len: u32,
        last: bool,
        success: bool,
        out: &mut Vec<u8>,
    ) {
        if self.is_closing() {
            return;
        }
        assert!(last || !success, "SUCCESS goes with LAST_PDU");
        assert!(len > 0, "C2HData carries data");
        let mut flags = 0;
        if last {
            flags |= flags::LAST_PDU;
        }
        if success {
            flags |= flags::SUCCESS;
        }
        let common = self.framing.common(PduType::C2hData, flags, len);
        let pdu = C2hDataPdu {
            common,
            cccid: cid.0.into(),
            reserved1: [0; 2],
            datao: offset.into(),
            datal: U32::new(len),
            reserved2: [0; 4],
        };
        self.framing.put(pdu.as_bytes(), &common, out);
    }

    /// Appends the C2HTermReq for an error and closes the queue: nothing is received or sent after
    /// it. Appends nothing when a TermReq was sent or received before.
    pub fn term_req(&mut self, error: &FatalError, out: &mut Vec<u8>) {
        if self.may_terminate {
            send::put_term_req(PduType::C2hTermReq, error, out);
        }
        self.may_terminate = false;
        self.receiver.advance(QueueState::Closed);
    }
}

impl Commands {
    /// Checks the bytes behind the common header. No event: data of a live R2T begin.
    fn handle_header<'a>(
        &mut self,
        shape: Shape,
        header: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        match shape.pdu_type {
            PduType::CapsuleCmd => self.handle_command(shape, header).map(Some),
            PduType::H2cData => self.handle_data(shape, header).map(|()| None),
            PduType::IcReq => handle_ic_req(header).map(|request| Some(Event::Connected(request))),
            PduType::H2cTermReq => {
                receive::parse_term_req(header).map(|reason| Some(Event::Terminated(reason)))
            }
            PduType::IcResp
            | PduType::C2hTermReq
            | PduType::CapsuleResp
            | PduType::C2hData
            | PduType::R2t => unreachable!("the receiver refuses PDUs of the other direction"),
        }
    }

    #[inline]
    fn handle_command<'a>(&mut self, shape: Shape, header: &[u8]) -> Result<Event<'a>, Violation> {
        let sqe = receive::parse::<CapsuleCmdPdu>(header).sqe;
        let in_capsule = shape.data_len;
        if sqe.sgl1.kind == SglDescriptor::IN_CAPSULE {
            if sqe.sgl1.address.get() != 0 {
                return Err(Violation::SglOffsetInvalid);
            }
            let length = sqe.sgl1.length.get();
            if length > self.in_capsule_limit(&sqe) {
                return Err(Violation::InCapsuleTooLong);
            }
            if length != in_capsule {
                return Err(Violation::SglLengthMismatch);
            }
        } else if in_capsule > 0 {
            return Err(Violation::SglNotInCapsule);
        }
        self.current = (in_capsule > 0).then_some(Incoming {
            dest: DataDest::Capsule,
            offset: 0,
            len: in_capsule,
            last_pdu: true,
        });
        Ok(Event::Command { sqe, in_capsule })
    }

    fn in_capsule_limit(&self, sqe: &Sqe) -> u32 {
        if sqe.opc == fabrics::OPCODE { ADMIN_IN_CAPSULE_BYTES } else { self.in_capsule_limit }
    }

    /// H2CData is taken against a live R2T only, in order, within its range.
    fn handle_data(&mut self, shape: Shape, header: &[u8]) -> Result<(), Violation> {
        let pdu: H2cDataPdu = receive::parse(header);
        let ttag = pdu.ttag.get();
        let slot = u32::from(ttag) & ((1 << self.slot_bits) - 1);
        let r2t = self.r2ts.get_mut(slot as usize).filter(|r2t| r2t.ttag == ttag);
        let r2t = r2t.ok_or(Violation::TtagUnknown)?;
        if !r2t.live {
            return Err(Violation::TtagNotWaiting);
        }
        if pdu.cccid.get() != r2t.cid.0 {
            return Err(Violation::CccidMismatch);
        }
        let (offset, len) = (pdu.datao.get(), shape.data_len);
        if offset != r2t.next {
            return Err(Violation::H2cDataoNotNext);
        }
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= r2t.end)
            .ok_or(Violation::H2cDataOutOfRange)?;
        if len > self.config.max_h2c_data {
            return Err(Violation::H2cDataTooLong);
        }
        let last_pdu = end == r2t.end;
        if last_pdu != (shape.flags & flags::LAST_PDU != 0) {
            return Err(Violation::H2cLastInvalid);
        }
        r2t.next = end;
        r2t.live = !last_pdu;
        let [low, high, ..] = slot.to_le_bytes();
        let dest = DataDest::Slot(u16::from_le_bytes([low, high]));
        self.current = Some(Incoming { dest, offset, len, last_pdu });
        Ok(())
    }
}

fn handle_ic_req(header: &[u8]) -> Result<IcReq, Violation> {
    let pdu: IcReqPdu = receive::parse(header);
    if pdu.pfv.get() != 0 {
        return Err(Violation::PfvInvalid);
    }
    if pdu.hpda > MAX_PDA {
        return Err(Violation::PdaInvalid);
    }
    Ok(IcReq {
        hpda: pdu.hpda,
        header_digest: pdu.dgst & pdu::DGST_HEADER != 0,
        data_digest: pdu.dgst & pdu::DGST_DATA != 0,
        maxr2t: pdu.maxr2t.get(),
    })
}
