//! The target's end of a connection: login, then commands, data and their answers.
//!
//! # How to drive it
//!
//! 1. Make a [`TargetConnection`] for a connection just accepted. Call [`TargetConnection::receive`] with what has
//!    arrived until it gives `None`.
//! 2. Some events ask for a decision: [`Event::Login`], [`Event::Credentials`], [`Event::Establish`],
//!    [`Event::SendTargets`], [`Event::Logout`]. Until the decision is there the connection takes no input, so it may
//!    take its time. After the decision call `receive` again, also without new input.
//! 3. At [`Event::Answer`] call [`TargetConnection::answer`]: it appends a PDU that the connection has made by itself
//!    (a Login Response, a NOP-In, a Text Response, a Reject). The counters in a PDU are stamped when it is
//!    appended, so PDUs must leave in the order in which they were appended.
//! 4. At [`Event::Command`] data of the command may follow at once. They come as [`Event::Data`] and
//!    [`Event::DataEnd`], or land where the driver wants them: [`TargetConnection::payload_wanted`]. A driver without
//!    a buffer stops calling `receive`. Data that did not come with the command are asked for with
//!    [`TargetConnection::r2t`], in order.
//! 5. Answer every command: [`TargetConnection::data_in`] with a finish in the last PDU, or
//!    [`TargetConnection::response`], or [`TargetConnection::abort`] for one that a task management function ended.
//!    That frees the task's slot and moves the window on.
//! 6. On an error call [`TargetConnection::terminate`], send what it appended, and close.
//!
//! Immediate NOP-Outs are outside the window of commands. A driver that has more than a bounded number of bytes to
//! send must therefore stop calling `receive` until they are sent.

mod answers;
mod discovery;
mod full;
mod login;
mod tasks;
mod window;

use crate::error::{FatalError, Violation};
use crate::negotiate::Parameters;
use crate::pdu::{
    BHS_LEN, Bhs, DEFAULT_DATA_SEGMENT_LEN, LogoutReason, LogoutResponseCode, RejectReason,
    ScsiCommand, TmfFunction,
};
use crate::receive::{Body, DataDigest, PayloadWanted, Receiver, Shape};
use crate::send::Framing;

pub use answers::{Async, DataInPiece, Finish, Residual, Status};
pub use discovery::{TargetList, TargetPortal, TargetsWanted};
pub use login::{Admission, Authentication, ChapDemand, Credentials, Identity};
pub use tasks::TaskId;

use login::Login;
use tasks::Tasks;
use window::Window;

/// TTT of a connection's first ping: not 0, which Wireshark takes for a sign that a PDU is none.
const FIRST_PING: u32 = 1;

/// What a target offers on a connection. [`TargetConfig::default`] has the values that Raceline uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// MaxRecvDataSegmentLength that the target declares, in bytes: 512 to 2^24 - 1.
    pub max_recv_data_segment_len: u32,
    /// MaxBurstLength at most, in bytes.
    pub max_burst_len: u32,
    /// FirstBurstLength at most, in bytes.
    pub first_burst_len: u32,
    /// Immediate data are taken when an initiator has them.
    pub immediate_data: bool,
    /// Unsolicited Data-Out is refused: InitialR2T is Yes whatever the initiator offers.
    pub initial_r2t: bool,
    /// MaxOutstandingR2T at most: 1 to 8.
    pub max_outstanding_r2t: u16,
    /// Header digests are used when an initiator asks for them.
    pub allow_header_digest: bool,
    /// Data digests are used when an initiator asks for them.
    pub allow_data_digest: bool,
    /// DefaultTime2Wait at least, in seconds.
    pub time2wait_s: u16,
    /// Slots for immediate commands and task management functions that come when the window is full.
    pub immediate_slots: u16,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            max_recv_data_segment_len: 262_144,
            max_burst_len: 1 << 20,
            first_burst_len: 262_144,
            immediate_data: true,
            initial_r2t: false,
            max_outstanding_r2t: 1,
            allow_header_digest: true,
            allow_data_digest: true,
            time2wait_s: 2,
            immediate_slots: 8,
        }
    }
}

/// How a command's data violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataFault {
    /// Data came that were neither negotiated nor asked for.
    Unexpected,
    /// More or fewer data came than were announced or asked for.
    WrongAmount,
    /// DataSN is not the next one.
    DataSn,
    /// Buffer Offset is not the next one.
    Offset,
    /// A data digest was wrong; see [`TargetConnection::data_digest_wrong`].
    Digest,
}

impl DataFault {
    /// ASC and ASCQ of the sense data, whose key is ABORTED COMMAND (RFC 7143, 11.4.7.2).
    #[must_use]
    pub const fn additional_sense(self) -> (u8, u8) {
        match self {
            Self::Unexpected => (0x0c, 0x0c),
            Self::WrongAmount | Self::DataSn | Self::Offset => (0x0c, 0x0d),
            Self::Digest => (0x47, 0x05),
        }
    }

    /// Sense data in fixed format.
    #[must_use]
    pub const fn sense(self) -> [u8; 18] {
        let (asc, ascq) = self.additional_sense();
        let mut sense = [0; 18];
        sense[0] = 0x70;
        sense[2] = 0x0b; // ABORTED COMMAND
        sense[7] = 10;
        sense[12] = asc;
        sense[13] = ascq;
        sense
    }
}

/// The task that a task management function refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referenced {
    /// It refers to none: the function concerns a logical unit or the target.
    None,
    /// This one: end it with [`TargetConnection::abort`] when nothing touches its data any more.
    Task(TaskId),
    /// A command that never came. The connection has counted it as received: answer Complete.
    NeverCame,
    /// There is no such task: answer NoTask.
    Unknown,
}

/// A task management function that an initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// The function; `None` for a code without a meaning: answer Unsupported.
    pub function: Option<TmfFunction>,
    /// LUN.
    pub lun: u64,
    /// The task that it refers to.
    pub referenced: Referenced,
}

/// What the initiator has sent, and what the connection wants of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A PDU is ready to be sent: call [`TargetConnection::answer`].
    Answer,
    /// The initiator has said who it is, see [`TargetConnection::identity`]. Call [`TargetConnection::admit`],
    /// [`TargetConnection::redirect`] or [`TargetConnection::refuse`].
    Login,
    /// The initiator authenticates itself with the name [`TargetConnection::chap_name`]. Call
    /// [`TargetConnection::credentials`].
    Credentials,
    /// The login has succeeded but for its last response. End what [the session rules](crate::session) say, then call
    /// [`TargetConnection::establish`], or [`TargetConnection::refuse`].
    Establish,
    /// A SCSI command.
    Command {
        /// Its slot.
        task: TaskId,
        /// Its fields.
        command: ScsiCommand,
        /// Bytes of immediate data that follow now.
        immediate: u32,
        /// Bytes of unsolicited data that follow in Data-Out PDUs, behind the immediate data.
        unsolicited: u32,
    },
    /// Data of a command.
    Data {
        /// The command that they belong to.
        task: TaskId,
        /// Offset in the command's data.
        offset: u32,
        /// The data.
        bytes: &'a [u8],
    },
    /// All data of one PDU have come: `[offset, offset + len)` of the command's data.
    DataEnd {
        /// The command that they belong to.
        task: TaskId,
        /// Offset in the command's data of the first byte of the PDU.
        offset: u32,
        /// Bytes in the PDU.
        len: u32,
        /// The data digest received, if data digests are on. The driver checks it, and calls
        /// [`TargetConnection::data_digest_wrong`] when it is wrong.
        digest: Option<DataDigest>,
        /// Whether a sequence has ended: the immediate data when nothing unsolicited follows, the unsolicited data,
        /// or the data of one R2T.
        sequence_end: bool,
    },
    /// The data of a command have violated the protocol. The connection drops what still comes for it. The
    /// driver ends the command with CHECK CONDITION and [`DataFault::sense`].
    DataFault {
        /// The command.
        task: TaskId,
        /// What was wrong.
        fault: DataFault,
    },
    /// A task management function. Answer it with [`TargetConnection::tmf_response`].
    TaskManagement {
        /// Its slot.
        task: TaskId,
        /// What is asked for.
        request: TaskManagement,
    },
    /// The initiator wants a list of targets, see [`TargetConnection::targets_wanted`]. Call
    /// [`TargetConnection::send_targets`].
    SendTargets,
    /// The initiator logs out this connection or its session. End all commands, then call [`TargetConnection::logout_response`].
    Logout(LogoutReason),
    /// The initiator has answered [`TargetConnection::ping`].
    Pong,
}

/// What has to happen before more input is taken.
#[derive(Debug)]
enum Due {
    Nothing,
    /// A PDU of the connection's own.
    Answer(Answer),
    /// An event that asks for a decision has yet to be given.
    Ask(Ask),
    /// It was given, and the decision is not there.
    Decision(Ask),
}

/// What a driver has to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Login,
    Credentials,
    Establish,
    SendTargets,
    Logout(LogoutReason),
}

impl Ask {
    fn event<'a>(self) -> Event<'a> {
        match self {
            Self::Login => Event::Login,
            Self::Credentials => Event::Credentials,
            Self::Establish => Event::Establish,
            Self::SendTargets => Event::SendTargets,
            Self::Logout(reason) => Event::Logout(reason),
        }
    }
}

/// A PDU that the connection sends by itself, without the counters.
#[derive(Debug)]
enum Answer {
    /// From the login.
    Login(login::Reply),
    /// To a NOP-Out, whose data are those that were collected.
    NopIn { lun: u64, itt: u32, immediate: bool },
    /// A page of a text response.
    Text { lun: u64, itt: u32, immediate: bool },
    /// The rejection of a PDU, whose header it carries.
    Reject { reason: RejectReason, header: Bhs },
    /// To a Logout Request that ends nothing.
    Logout(LogoutResponseCode),
    /// The end of a command whose unsolicited data were wrong from the start.
    Failed { task: TaskId, fault: DataFault },
}

/// Whose data come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    /// Nobody's: they are dropped.
    Dropped,
    /// A command's.
    Task { task: TaskId, offset: u32, len: u32, sequence_end: bool },
    /// Those of the PDU whose header is kept: text, or a ping.
    Collected,
}

/// The phase of a connection; it never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Login,
    FullFeature,
    /// The initiator has logged out.
    LoggedOut,
    Closed,
}

/// The target's end of a connection. The [module](self) says how to drive it.
#[derive(Debug)]
pub struct TargetConnection {
    receiver: Receiver,
    end: End,
}

/// All state but the receiver's, which lends the header.
#[derive(Debug)]
struct End {
    config: TargetConfig,
    phase: Phase,
    due: Due,
    current: Incoming,
    window: Window,
    framing: Framing,
    tasks: Tasks,
    parameters: Parameters,
    login: Box<Login>,
    text: discovery::Texts,
    /// The header of the PDU whose data are collected, or of the last Data-Out.
    header: Bhs,
    collected: Vec<u8>,
    /// TTT of the ping that is outstanding.
    ping: Option<u32>,
    next_ping: u32,
}

impl TargetConnection {
    /// For a connection just accepted.
    ///
    /// # Panics
    /// When a value of the configuration is outside its range.
    #[must_use]
    pub fn new(config: TargetConfig) -> Self {
        login::check(&config);
        Self {
            receiver: Receiver::new(DEFAULT_DATA_SEGMENT_LEN),
            end: End {
                config,
                phase: Phase::Login,
                due: Due::Nothing,
                current: Incoming::Dropped,
                window: Window::at_login(0),
                framing: Framing::default(),
                tasks: Tasks::default(),
                parameters: Parameters::default(),
                login: Box::new(Login::new(config)),
                text: discovery::Texts::default(),
                header: [0; BHS_LEN],
                collected: Vec::new(),
                ping: None,
                next_ping: FIRST_PING,
            },
        }
    }

    /// Takes input up to the next event; `None` when it needs more, or a decision.
    ///
    /// # Errors
    /// When the initiator has violated the protocol: call [`TargetConnection::terminate`] and close.
    #[inline]
    pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, FatalError> {
        loop {
            if !matches!(self.end.due, Due::Nothing) {
                return Ok(self.end.next_due());
            }
            if self.receiver.awaits_header() {
                if let Some(event) = self.receive_familiar(input) {
                    return Ok(Some(event));
                }
                match self.receive_header(input)? {
                    Header::Incomplete => return Ok(None),
                    Header::Event(event) => return Ok(Some(event)),
                    Header::Taken => continue,
                }
            }
            let event = match (self.receiver.body(input), self.end.current) {
                (None, _) => return Ok(None),
                (Some(Body::Bytes { offset: at, bytes }), Incoming::Task { task, offset, .. }) => {
                    Event::Data { task, offset: offset + at, bytes }
                }
                (
                    Some(Body::End { digest }),
                    Incoming::Task { task, offset, len, sequence_end },
                ) => {
                    self.end.current = Incoming::Dropped;
                    Event::DataEnd { task, offset, len, digest, sequence_end }
                }
                (Some(Body::Bytes { bytes, .. }), Incoming::Collected) => {
                    self.end.collected.extend_from_slice(bytes);
                    continue;
                }
                (Some(Body::End { digest }), Incoming::Collected) => {
                    self.end.current = Incoming::Dropped;
                    let whole = self.end.handle_collected(digest);
                    match whole.inspect_err(|_| self.end.phase = Phase::Closed)? {
                        Some(event) => event,
                        None => continue,
                    }
                }
                (Some(Body::Bytes { .. } | Body::End { .. }), Incoming::Dropped) => continue,
            };
            return Ok(Some(event));
        }
    }

    /// Whether data of a task are coming: [`Event::Data`] and [`Event::DataEnd`] of one PDU. `false` also once the task
    /// has ended amid them; then the rest of them has no event.
    #[must_use]
    #[inline]
    pub fn takes_data(&self) -> bool {
        matches!(self.end.current, Incoming::Task { .. })
    }

    /// Takes a command whose header begins like the one before it, and that has no fault. Takes nothing otherwise:
    /// then [`Self::receive_header`] has to judge it.
    #[inline(always)]
    fn receive_familiar<'a>(&mut self, input: &mut &'a [u8]) -> Option<Event<'a>> {
        let (shape, bhs) = self.receiver.familiar_header(input)?;
        let event = self.end.plain_command(shape.data_len, bhs)?;
        self.receiver.begin_body(shape);
        *input = &input[BHS_LEN..];
        Some(event)
    }

    /// Takes a header.
    fn receive_header<'a>(&mut self, input: &mut &'a [u8]) -> Result<Header<'a>, FatalError> {
        if self.end.phase == Phase::Closed {
            *input = &[];
            return Ok(Header::Incomplete);
        }
        let received = match self.receiver.header(input) {
            Ok(None) => return Ok(Header::Incomplete),
            Ok(Some((shape, header))) => {
                self.end.handle_header(shape.data_len, header).map(|event| (shape, event))
            }
            Err(error) => Err(self.end.framing_error(error)),
        };
        let (shape, event): (Shape, _) =
            received.inspect_err(|_| self.end.phase = Phase::Closed)?;
        self.receiver.begin_body(shape);
        Ok(event.map_or(Header::Taken, Header::Event))
    }

    /// The data that come next on the wire, when the input has ended amid data of a command.
    #[must_use]
    pub fn payload_wanted(&self) -> Option<PayloadWanted<TaskId>> {
        let Incoming::Task { task, offset: start, .. } = self.end.current else { return None };
        let (offset, len) = self.receiver.data_wanted()?;
        Some(PayloadWanted { dest: task, offset: start + offset, len })
    }

    /// Tells the connection that the first `len` of the wanted bytes went to their place without `receive`, which the
    /// driver must call afterwards.
    ///
    /// # Panics
    /// When fewer were wanted.
    pub fn payload_received(&mut self, len: usize) {
        self.receiver.data_received(len);
    }

    /// Takes the immediate data of the command that [`Event::Command`] has just announced, when they are `len` bytes
    /// without padding or digest and all lie at the front of `input`, which [`TargetConnection::receive`] has left.
    /// The caller takes as many bytes off `input`; neither [`Event::Data`] nor [`Event::DataEnd`] follows.
    /// `None` takes nothing.
    #[inline]
    pub fn take_immediate_data<'a>(&mut self, input: &'a [u8], len: usize) -> Option<&'a [u8]> {
        let Incoming::Task { offset: 0, .. } = self.end.current else { return None };
        let data = self.receiver.whole_data(input, len)?;
        self.end.current = Incoming::Dropped;
        Some(data)
    }

    /// The data digest of the data just given by [`Event::Data`], when the PDU's data end there and `input`, which
    /// [`TargetConnection::receive`] has left, begins with the padding and the whole digest. The same value comes with
    /// [`Event::DataEnd`]; a driver that reads it here can check data where they lie.
    #[must_use]
    pub fn data_digest_ahead(&self, input: &[u8]) -> Option<DataDigest> {
        self.receiver.digest_ahead(input)
    }

    /// Whether a PDU begins with the next byte of the input.
    #[must_use]
    pub fn at_header(&self) -> bool {
        self.receiver.at_header()
    }

    /// Whether the connection is about to end: nothing is received any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.end.phase == Phase::Closed
    }

    /// Whether the login is complete: commands flow, or the initiator has logged out.
    #[must_use]
    pub fn is_full_feature(&self) -> bool {
        matches!(self.end.phase, Phase::FullFeature | Phase::LoggedOut)
    }

    /// Whether PDUs carry header digests.
    #[must_use]
    pub fn header_digest(&self) -> bool {
        self.end.framing.header_digest
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

    /// Who the initiator says it is; known from [`Event::Login`] on.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.end.login.identity()
    }

    /// The name that the initiator authenticates itself with; known from [`Event::Credentials`] on.
    #[must_use]
    pub fn chap_name(&self) -> Option<&str> {
        self.end.login.chap_name()
    }

    /// How many tasks there can be: the window and the immediate slots. 0 before the login is complete.
    #[must_use]
    pub fn task_slots(&self) -> usize {
        self.end.tasks.count()
    }

    /// How many tasks have not ended.
    #[must_use]
    pub fn live_tasks(&self) -> usize {
        self.end.tasks.live()
    }
}

/// What became of a header.
enum Header<'a> {
    Incomplete,
    Taken,
    Event(Event<'a>),
}

impl End {
    /// What is due, as an event.
    #[cold]
    fn next_due<'a>(&mut self) -> Option<Event<'a>> {
        match self.due {
            Due::Nothing | Due::Decision(_) => None,
            Due::Answer(_) => Some(Event::Answer),
            Due::Ask(ask) => {
                self.due = Due::Decision(ask);
                Some(ask.event())
            }
        }
    }

    /// Takes back the question that a driver's decision answers.
    ///
    /// # Panics
    /// When that question is not open.
    fn decided(&mut self, wanted: impl FnOnce(Ask) -> bool) -> Ask {
        match std::mem::replace(&mut self.due, Due::Nothing) {
            Due::Decision(ask) if wanted(ask) => ask,
            other => panic!("a decision that the connection has not asked for: {other:?}"),
        }
    }

    /// The first bytes of a connection that are no Login Request have a violation of their own.
    fn framing_error(&self, error: FatalError) -> FatalError {
        let login = crate::pdu::opcode::LOGIN_REQUEST;
        let other = error.header().first().is_some_and(|first| first & 0x3f != login);
        if self.phase == Phase::Login && !self.login.has_begun() && other {
            FatalError::in_header(Violation::NotLogin, error.header())
        } else {
            error
        }
    }
}
