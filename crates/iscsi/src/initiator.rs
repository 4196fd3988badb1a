//! The initiator's end of a connection: login, discovery, then commands and their data.
//!
//! # How to drive it
//!
//! 1. Make an [`InitiatorConnection`] for a connection just made, call [`InitiatorConnection::login`] and send what it
//!    appended. Call [`InitiatorConnection::receive`] with what arrives until it gives `None`.
//! 2. At [`InitiatorEvent::Answer`] call [`InitiatorConnection::answer`]: it appends the next request of a login or
//!    of a text negotiation, or the answer to a ping.
//! 3. After [`InitiatorEvent::LoggedIn`] send commands while [`InitiatorConnection::may_send`]. Behind the header the
//!    driver appends the immediate data and their trailer.
//! 4. Data of reads come as [`InitiatorEvent::Data`] and [`InitiatorEvent::DataEnd`], or land where the driver
//!    wants them: [`InitiatorConnection::payload_wanted`]. A [`Grant`] permits to send data of a write, piece by piece,
//!    with [`InitiatorConnection::data_out`]. It is void when its command has ended.
//! 5. An error ends the connection: close it. At error recovery level 0 the session ends with it.

mod commands;
mod login;
mod requests;

use crate::chap::{Algorithm, CHALLENGE_LEN, Secret};
use crate::error::{FatalError, Violation};
use crate::names::{Isid, Name};
use crate::negotiate::{Parameters, Wishes};
use crate::pdu::{
    AsyncMessage, BHS_LEN, Bhs, DEFAULT_DATA_SEGMENT_LEN, LoginStatus, LogoutResponseCode,
    TmfResponseCode, flags, opcode,
};
use crate::receive::{Body, DataDigest, PayloadWanted, Receiver};
use crate::send::Framing;
use crate::serial;

pub use commands::{Direction, Grant, Outcome, PieceOut, Request};
pub use requests::{DiscoveredTarget, TmfTag};

use commands::Commands;
use login::Login;
use requests::Requests;

/// Who logs in, to what, and what it wants.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// InitiatorName.
    pub initiator_name: Name,
    /// TargetName; none for a discovery session.
    pub target_name: Option<Name>,
    /// ISID, different for each session of this initiator with a target.
    pub isid: Isid,
    /// What is offered.
    pub wishes: Wishes,
    /// Slots of commands, a power of two up to 4096.
    pub slots: u16,
    /// How the initiator authenticates itself, if it can.
    pub credentials: Option<InitiatorCredentials>,
}

impl InitiatorConfig {
    /// What Raceline offers by default: no digests, immediate data, 256 KiB in a PDU.
    #[must_use]
    pub fn new(initiator_name: Name, target_name: Option<Name>, isid: Isid) -> Self {
        let wishes = Wishes {
            header_digest: false,
            data_digest: false,
            no_header_digest: true,
            no_data_digest: true,
            initial_r2t: false,
            immediate_data: true,
            max_data_segment_len: 262_144,
            max_burst_len: 1 << 20,
            first_burst_len: 262_144,
            max_outstanding_r2t: 1,
            time2wait_s: 2,
        };
        Self { initiator_name, target_name, isid, wishes, slots: 128, credentials: None }
    }
}

/// Name and secret of an initiator, and what it demands of the target.
#[derive(Clone, Debug)]
pub struct InitiatorCredentials {
    /// CHAP_N.
    pub name: String,
    /// The secret.
    pub secret: Secret,
    /// The hashes that are offered, in this order.
    pub algorithms: &'static [Algorithm],
    /// The target's name and secret, when it has to authenticate itself.
    pub target: Option<(String, Secret)>,
    /// Random identifier for the target, fresh for this login.
    pub id: u8,
    /// Random challenge for the target, fresh for this login.
    pub challenge: [u8; CHALLENGE_LEN],
}

/// What the target has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitiatorEvent<'a> {
    /// A PDU is ready to be sent: call [`InitiatorConnection::answer`].
    Answer,
    /// The login is complete.
    LoggedIn,
    /// The target refuses the login, or redirects it to [`InitiatorConnection::redirected_to`]. It closes.
    Refused(LoginStatus),
    /// Data of a command.
    Data {
        /// Its slot.
        slot: u16,
        /// Offset in the command's data.
        offset: u32,
        /// The data.
        bytes: &'a [u8],
    },
    /// All data of one PDU have come: `[offset, offset + len)` of the command's data.
    DataEnd {
        /// Its slot.
        slot: u16,
        /// Offset in the command's data of the first byte of the PDU.
        offset: u32,
        /// Bytes in the PDU.
        len: u32,
        /// The data digest received, if data digests are on. The driver checks it; a wrong one ends the connection.
        digest: Option<DataDigest>,
        /// The end of the command, if it came with the data: no [`InitiatorEvent::Response`] follows.
        outcome: Option<Outcome>,
    },
    /// The end of a command. Its sense data are [`InitiatorConnection::data`].
    Response {
        /// Its slot, which is free again.
        slot: u16,
        /// How it ended.
        outcome: Outcome,
    },
    /// The target wants data of a command.
    R2t(Grant),
    /// The end of a task management function.
    TmfResponse {
        /// The function.
        tag: TmfTag,
        /// How it ended; none for a code without a meaning.
        response: Option<TmfResponseCode>,
    },
    /// The answer to [`InitiatorConnection::send_targets`] is complete: [`InitiatorConnection::targets`].
    Targets,
    /// The target has answered [`InitiatorConnection::ping`].
    Pong,
    /// A message of the target; its sense and event data are [`InitiatorConnection::data`].
    Async(AsyncMessage),
    /// The answer to [`InitiatorConnection::logout`]; none for a code without a meaning. Close the connection.
    LoggedOut(Option<LogoutResponseCode>),
}

/// A PDU that the connection sends by itself.
#[derive(Debug)]
enum Answer {
    /// The next Login Request.
    Login,
    /// The answer to a ping.
    NopOut { lun: u64, ttt: u32 },
    /// The next request of a text negotiation.
    Text { lun: u64, ttt: u32 },
}

/// Whose data come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    /// A command's.
    Command { slot: u16, offset: u32, len: u32, outcome: Option<Outcome> },
    /// Those of the PDU whose header is kept.
    Collected,
}

/// The phase of a connection; it never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Unused,
    Login,
    FullFeature,
    Closed,
}

/// The initiator's end of a connection. The [module](self) says how to drive it.
#[derive(Debug)]
pub struct InitiatorConnection {
    receiver: Receiver,
    end: End,
}

/// All state but the receiver's, which lends the header.
#[derive(Debug)]
struct End {
    phase: Phase,
    due: Option<Answer>,
    current: Incoming,
    numbers: Numbers,
    framing: Framing,
    parameters: Parameters,
    commands: Commands,
    login: Box<Login>,
    requests: Requests,
    /// The header of the PDU whose data are collected.
    header: Bhs,
    collected: Vec<u8>,
}

/// The counters of a connection (RFC 7143, 4.2.2).
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// CmdSN of the next command.
    cmd_sn: u32,
    /// MaxCmdSN.
    max_cmd_sn: u32,
    /// ExpStatSN.
    exp_stat_sn: u32,
}

impl Numbers {
    /// Takes ExpCmdSN and MaxCmdSN of a PDU; values that go back are old (4.2.2.1).
    #[inline]
    fn take_window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        let sane = serial::at_most(exp_cmd_sn.wrapping_sub(1), max_cmd_sn);
        if sane && serial::before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// Takes the StatSN of a PDU with a status.
    #[inline]
    fn take_status(&mut self, stat_sn: u32) -> Result<(), Violation> {
        if stat_sn != self.exp_stat_sn {
            return Err(Violation::StatSnInvalid);
        }
        self.exp_stat_sn = stat_sn.wrapping_add(1);
        Ok(())
    }
}

impl InitiatorConnection {
    /// For a connection just made.
    ///
    /// # Panics
    /// When `slots` is no power of two up to 4096.
    #[must_use]
    pub fn new(config: InitiatorConfig) -> Self {
        let slots = config.slots;
        assert!(slots.is_power_of_two() && slots <= 4096, "a power of two up to 4096 slots");
        Self {
            receiver: Receiver::new(DEFAULT_DATA_SEGMENT_LEN),
            end: End {
                phase: Phase::Unused,
                due: None,
                current: Incoming::Collected,
                numbers: Numbers { cmd_sn: 1, max_cmd_sn: 0, exp_stat_sn: 0 },
                framing: Framing::default(),
                parameters: Parameters::default(),
                commands: Commands::new(slots),
                login: Box::new(Login::new(config)),
                requests: Requests::default(),
                header: [0; BHS_LEN],
                collected: Vec::new(),
            },
        }
    }

    /// Takes input up to the next event; `None` when it needs more.
    ///
    /// # Errors
    /// When the target has violated the protocol: close the connection.
    #[inline]
    pub fn receive<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<InitiatorEvent<'a>>, FatalError> {
        loop {
            if self.end.due.is_some() {
                return Ok(Some(InitiatorEvent::Answer));
            }
            if self.receiver.awaits_header() {
                if self.end.phase == Phase::Closed {
                    *input = &[];
                    return Ok(None);
                }
                match self.receive_header(input)? {
                    None => return Ok(None),
                    Some(Some(event)) => return Ok(Some(event)),
                    Some(None) => continue,
                }
            }
            let event = match (self.receiver.body(input), self.end.current) {
                (None, _) => return Ok(None),
                (
                    Some(Body::Bytes { offset: at, bytes }),
                    Incoming::Command { slot, offset, .. },
                ) => InitiatorEvent::Data { slot, offset: offset + at, bytes },
                (Some(Body::End { digest }), Incoming::Command { slot, offset, len, outcome }) => {
                    if outcome.is_some() {
                        self.end.commands.end(slot);
                    }
                    InitiatorEvent::DataEnd { slot, offset, len, digest, outcome }
                }
                (Some(Body::Bytes { bytes, .. }), Incoming::Collected) => {
                    self.end.collected.extend_from_slice(bytes);
                    continue;
                }
                (Some(Body::End { digest }), Incoming::Collected) => {
                    match self.collected(digest)? {
                        Some(event) => event,
                        None => continue,
                    }
                }
            };
            return Ok(Some(event));
        }
    }

    /// Takes a header; none when it is incomplete.
    #[inline]
    fn receive_header<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Option<InitiatorEvent<'a>>>, FatalError> {
        let received = match self.receiver.header(input) {
            Ok(None) => return Ok(None),
            Ok(Some((shape, header))) => match header.first_chunk::<BHS_LEN>() {
                Some(bhs) if header.len() == BHS_LEN => {
                    let event = self.end.handle_header(shape.data_len, bhs);
                    event
                        .map(|event| (shape, event))
                        .map_err(|violation| FatalError::in_header(violation, bhs))
                }
                _ => Err(FatalError::in_header(Violation::AhsUnexpected, header)),
            },
            Err(error) => Err(error),
        };
        let (shape, event) = received.inspect_err(|_| self.end.phase = Phase::Closed)?;
        self.receiver.begin_body(shape);
        if shape.data_len == 0 && matches!(event, Handled::Collect) {
            return self.collected(None).map(Some);
        }
        Ok(Some(match event {
            Handled::Collect | Handled::Data => None,
            Handled::Event(event) => Some(event),
        }))
    }

    /// A PDU is whole whose data were collected.
    fn collected<'a>(
        &mut self,
        digest: Option<DataDigest>,
    ) -> Result<Option<InitiatorEvent<'a>>, FatalError> {
        let handled = if digest.is_some_and(|digest| !digest.is_right(&self.end.collected)) {
            Err(FatalError::in_header(Violation::DataDigestFromTarget, &self.end.header))
        } else if self.end.phase == Phase::Login {
            self.end.handle_login()
        } else {
            let header = self.end.header;
            self.end.handle_collected().map_err(|violation| self.end.describe(violation, &header))
        };
        let event = handled.inspect_err(|_| self.end.phase = Phase::Closed)?;
        if event == Some(InitiatorEvent::LoggedIn) {
            let parameters = &self.end.parameters;
            let Parameters { header_digest, data_digest, max_data_segment_len, .. } = *parameters;
            self.receiver.set(header_digest, data_digest, max_data_segment_len);
        }
        Ok(event)
    }

    /// The data that come next on the wire, when the input has ended amid data of a command.
    #[must_use]
    pub fn payload_wanted(&self) -> Option<PayloadWanted<u16>> {
        let Incoming::Command { slot, offset: start, .. } = self.end.current else { return None };
        let (offset, len) = self.receiver.data_wanted()?;
        Some(PayloadWanted { dest: slot, offset: start + offset, len })
    }

    /// Tells the connection that the first `len` of the wanted bytes went to their place without `receive`, which the
    /// driver must call afterwards.
    ///
    /// # Panics
    /// When fewer were wanted.
    pub fn payload_received(&mut self, len: usize) {
        self.receiver.data_received(len);
    }

    /// Whether the connection is about to end: nothing is received any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.end.phase == Phase::Closed
    }

    /// Whether the login is complete.
    #[must_use]
    pub fn is_full_feature(&self) -> bool {
        self.end.phase == Phase::FullFeature
    }

    /// Whether data are followed by a data digest.
    #[must_use]
    pub fn data_digest(&self) -> bool {
        self.end.framing.data_digest
    }

    /// What was negotiated; the defaults before the login is complete.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.end.parameters
    }

    /// TSIH of the session; 0 before the login is complete.
    #[must_use]
    pub fn tsih(&self) -> u16 {
        self.end.login.tsih()
    }

    /// Where the target sends the initiator: TargetAddress of a login that was redirected.
    #[must_use]
    pub fn redirected_to(&self) -> Option<&str> {
        self.end.login.redirected_to()
    }

    /// Sense data of the [`InitiatorEvent::Response`] or data of the [`InitiatorEvent::Async`] that was given last.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let data = &self.end.collected;
        match self.end.header[0] & flags::OPCODE {
            // Its length was checked.
            opcode::SCSI_RESPONSE => match data.split_first_chunk::<2>() {
                Some((len, sense)) => &sense[..usize::from(u16::from_be_bytes(*len))],
                None => &[],
            },
            _ => data,
        }
    }
}

/// What became of a header.
enum Handled<'a> {
    /// Its data are collected; then it is handled.
    Collect,
    /// Data of a command follow.
    Data,
    /// It is complete.
    Event(InitiatorEvent<'a>),
}

impl End {
    /// Judges a header.
    #[inline]
    fn handle_header<'a>(&mut self, data_len: u32, bhs: &Bhs) -> Result<Handled<'a>, Violation> {
        let opcode = bhs[0];
        if self.phase != Phase::FullFeature {
            if self.phase != Phase::Login || opcode != opcode::LOGIN_RESPONSE {
                return Err(Violation::OpcodeInvalid);
            }
            return Ok(self.collect(bhs));
        }
        match opcode {
            opcode::DATA_IN => self.handle_data_in(data_len, bhs),
            opcode::R2T if data_len == 0 => self.handle_r2t(bhs),
            opcode::R2T => Err(Violation::DataUnexpected),
            opcode::SCSI_RESPONSE
            | opcode::NOP_IN
            | opcode::TEXT_RESPONSE
            | opcode::ASYNC_MESSAGE
            | opcode::REJECT => Ok(self.collect(bhs)),
            opcode::TMF_RESPONSE | opcode::LOGOUT_RESPONSE if data_len > 0 => {
                Err(Violation::DataUnexpected)
            }
            opcode::TMF_RESPONSE | opcode::LOGOUT_RESPONSE => Ok(self.collect(bhs)),
            _ => Err(Violation::OpcodeInvalid),
        }
    }

    fn collect<'a>(&mut self, bhs: &Bhs) -> Handled<'a> {
        self.header = *bhs;
        self.collected.clear();
        self.current = Incoming::Collected;
        Handled::Collect
    }

    fn handle_collected<'a>(&mut self) -> Result<Option<InitiatorEvent<'a>>, Violation> {
        match self.header[0] {
            opcode::SCSI_RESPONSE => self.handle_response().map(Some),
            opcode::NOP_IN => self.handle_nop_in(),
            opcode::TEXT_RESPONSE => self.handle_text_response(),
            opcode::TMF_RESPONSE => self.handle_tmf_response().map(Some),
            opcode::LOGOUT_RESPONSE => self.handle_logout_response().map(Some),
            opcode::ASYNC_MESSAGE => self.handle_async().map(Some),
            opcode::REJECT => Err(Violation::Rejected),
            other => unreachable!("data of opcode {other:02x}h are not collected"),
        }
    }

    /// A violation in a header that was collected, with what the target said about it.
    fn describe(&self, violation: Violation, header: &Bhs) -> FatalError {
        let error = FatalError::in_header(violation, header);
        if violation != Violation::Rejected {
            return error;
        }
        let reason = crate::pdu::RejectReason::from_wire(header[2]);
        let reason = reason.map_or("a reason without a meaning", crate::pdu::RejectReason::text);
        let opcode = self.collected.first().map_or(0, |first| first & flags::OPCODE);
        error.with_detail(format!("{reason}; its opcode is {opcode:02x}h"))
    }
}
