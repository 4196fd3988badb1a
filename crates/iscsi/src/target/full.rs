//! What a target makes of the PDUs of the full feature phase (RFC 7143, sections 4.2, 11).

use crate::error::{FatalError, Violation};
use crate::pdu::{
    BHS_LEN, Bhs, DataOut, LogoutReason, LogoutRequest, LogoutResponseCode, NopOut, RESERVED_TAG,
    RejectReason, ScsiCommand, Snack, TextRequest, TmfFunction, TmfRequest, flags, opcode,
};
use crate::receive::DataDigest;
use crate::serial;

use super::tasks::{TaskKind, Verdict};
use super::window::Sequence;
use super::{Answer, Ask, DataFault, Due, End, Event, Incoming, Phase, Referenced, TaskManagement};

impl End {
    /// A command without a fault, in full feature phase; anything else is none, and changes nothing.
    #[inline(always)]
    pub(super) fn plain_command<'a>(&mut self, data_len: u32, bhs: &Bhs) -> Option<Event<'a>> {
        if self.phase != Phase::FullFeature || bhs[0] & flags::OPCODE != opcode::SCSI_COMMAND {
            return None;
        }
        let command = ScsiCommand::decode(bhs);
        if command.immediate
            || self.parameters.discovery
            || command_fault(&command).is_some()
            || self.tasks.find(command.itt).is_some()
            || command.itt == RESERVED_TAG
        {
            return None;
        }
        let unsolicited = self.announced(&command, data_len).ok()?;
        if self.window.take(false, command.cmd_sn) == Sequence::Dropped {
            return None;
        }
        self.begin_command(command, data_len, unsolicited).ok()
    }

    /// Takes a slot for a command without a fault.
    #[inline]
    fn begin_command<'a>(
        &mut self,
        command: ScsiCommand,
        immediate: u32,
        unsolicited: u32,
    ) -> Result<Event<'a>, RejectReason> {
        let ScsiCommand { immediate: at_once, itt, lun, edtl, .. } = command;
        let task = self.tasks.begin(TaskKind::Scsi, at_once, itt, lun, edtl)?;
        if immediate + unsolicited > 0 {
            self.tasks.announce(task, immediate, unsolicited);
        }
        if immediate > 0 {
            if self.framing.data_digest {
                self.header = command.encode(immediate);
            }
            let sequence_end = unsolicited == 0;
            self.current = Incoming::Task { task, offset: 0, len: immediate, sequence_end };
        }
        Ok(Event::Command { task, command, immediate, unsolicited })
    }

    /// Bytes of unsolicited Data-Out that follow a command with `immediate` bytes of data (4.2.5.2, 13.10, 13.11,
    /// 13.14).
    #[inline]
    fn announced(&self, command: &ScsiCommand, immediate: u32) -> Result<u32, DataFault> {
        if immediate == 0 && command.is_final() {
            return Ok(0);
        }
        let parameters = &self.parameters;
        let unsolicited = !command.is_final();
        if !command.writes()
            || (immediate > 0 && !parameters.immediate_data)
            || (unsolicited && parameters.initial_r2t)
        {
            return Err(DataFault::Unexpected);
        }
        let first_burst = parameters.first_burst_len.min(command.edtl);
        if immediate > first_burst || (unsolicited && immediate == first_burst) {
            return Err(DataFault::WrongAmount);
        }
        Ok(if unsolicited { first_burst - immediate } else { 0 })
    }

    /// Judges a header, BHS and AHS. No event: its data come next, or are dropped.
    pub(super) fn handle_header<'a>(
        &mut self,
        data_len: u32,
        header: &[u8],
    ) -> Result<Option<Event<'a>>, FatalError> {
        let Some(bhs) = header.first_chunk::<BHS_LEN>() else {
            unreachable!("a header has 48 bytes")
        };
        self.current = Incoming::Dropped;
        match self.phase {
            Phase::Login => return self.handle_login_header(data_len, bhs),
            Phase::FullFeature => {}
            Phase::LoggedOut => return Err(FatalError::in_header(Violation::AfterLogout, bhs)),
            Phase::Closed => unreachable!("a closed connection takes no header"),
        }
        let event = match bhs[0] & flags::OPCODE {
            opcode::SCSI_COMMAND => return Ok(self.handle_command(data_len, header, bhs)),
            opcode::DATA_OUT => return Ok(self.handle_data_out(data_len, bhs)),
            opcode::NOP_OUT => self.handle_nop_out(data_len, bhs),
            opcode::TMF_REQUEST => self.handle_tmf(bhs),
            opcode::TEXT_REQUEST => self.handle_text(data_len, bhs),
            opcode::LOGOUT_REQUEST => self.handle_logout(bhs),
            opcode::LOGIN_REQUEST => {
                return Err(FatalError::in_header(Violation::LoginAgain, bhs));
            }
            Snack::OPCODE => {
                self.reject(RejectReason::Snack, bhs);
                None
            }
            0x20..=0x3f => {
                self.reject(RejectReason::Protocol, bhs);
                None
            }
            _ => {
                self.reject(RejectReason::Unsupported, bhs);
                None
            }
        };
        Ok(event)
    }

    /// A PDU whose data are collected is whole.
    pub(super) fn handle_collected<'a>(
        &mut self,
        digest: Option<DataDigest>,
    ) -> Result<Option<Event<'a>>, FatalError> {
        if digest.is_some_and(|digest| !digest.is_right(&self.collected)) {
            // The CmdSN of the PDU would be a gap, which no initiator closes at this level of recovery.
            return Err(FatalError::in_header(Violation::DataDigest, &self.header));
        }
        match self.header[0] & flags::OPCODE {
            opcode::LOGIN_REQUEST => self.handle_login(),
            opcode::TEXT_REQUEST => self.handle_text_data(),
            opcode::NOP_OUT => {
                let NopOut { lun, itt, immediate, .. } = NopOut::decode(&self.header);
                self.due = Due::Answer(Answer::NopIn { lun, itt, immediate });
            }
            other => unreachable!("data of opcode {other:02x}h are not collected"),
        }
        Ok(None)
    }

    /// A PDU is rejected; its data are dropped.
    #[cold]
    pub(super) fn reject(&mut self, reason: RejectReason, bhs: &Bhs) {
        self.due = Due::Answer(Answer::Reject { reason, header: *bhs });
    }

    /// Whether a request is in order, and its tag free. One that is not in order is dropped, and one whose tag is
    /// in use is rejected. A request that is rejected counts as received: initiators do not repeat its CmdSN, as
    /// RFC 7143, 11.17.1 would have them do.
    fn sequence(&mut self, immediate: bool, cmd_sn: u32, itt: u32, bhs: &Bhs) -> bool {
        if self.window.take(immediate, cmd_sn) == Sequence::Dropped {
            return false;
        }
        if itt != RESERVED_TAG && self.tasks.find(itt).is_some() {
            self.reject_counted(RejectReason::TaskInProgress, immediate, bhs);
            return false;
        }
        true
    }

    /// A request that has been counted is rejected.
    #[cold]
    pub(super) fn reject_counted(&mut self, reason: RejectReason, immediate: bool, bhs: &Bhs) {
        self.window.give_back(immediate);
        self.reject(reason, bhs);
    }

    fn handle_command<'a>(&mut self, data_len: u32, header: &[u8], bhs: &Bhs) -> Option<Event<'a>> {
        let command = ScsiCommand::decode(bhs);
        let ScsiCommand { immediate, cmd_sn, itt, .. } = command;
        if !self.sequence(immediate, cmd_sn, itt, bhs) {
            return None;
        }
        let reason = if self.parameters.discovery {
            Some(RejectReason::Unsupported)
        } else if itt == RESERVED_TAG {
            Some(RejectReason::InvalidField)
        } else if header.len() > BHS_LEN {
            // A CDB of more than 16 bytes, or a bidirectional command: a disk has neither.
            Some(RejectReason::Unsupported)
        } else {
            command_fault(&command)
        };
        if let Some(reason) = reason {
            self.reject_counted(reason, immediate, bhs);
            return None;
        }
        let (unsolicited, fault) = match self.announced(&command, data_len) {
            Ok(unsolicited) => (unsolicited, None),
            Err(fault) => (0, Some(fault)),
        };
        let immediate_len = if fault.is_some() { 0 } else { data_len };
        match self.begin_command(command, immediate_len, unsolicited) {
            Err(reason) => {
                self.reject_counted(reason, immediate, bhs);
                None
            }
            Ok(event) => match (fault, self.tasks.find(itt)) {
                (Some(fault), Some(task)) => {
                    self.tasks.fail(task);
                    self.due = Due::Answer(Answer::Failed { task, fault });
                    None
                }
                _ => Some(event),
            },
        }
    }

    fn handle_data_out<'a>(&mut self, len: u32, bhs: &Bhs) -> Option<Event<'a>> {
        let pdu = DataOut::decode(bhs);
        match self.tasks.data_out(&pdu, len) {
            Verdict::Take { task, offset, sequence_end } => {
                if self.framing.data_digest {
                    self.header = *bhs;
                }
                if len > 0 {
                    self.current = Incoming::Task { task, offset, len, sequence_end };
                }
                None
            }
            Verdict::Drop => None,
            Verdict::Reject(reason) => {
                self.reject(reason, bhs);
                None
            }
            // No Reject: libiscsi closes at one whose task has got its response, and the sense data say more.
            Verdict::Fault { task, fault } => Some(Event::DataFault { task, fault }),
        }
    }

    fn handle_nop_out<'a>(&mut self, data_len: u32, bhs: &Bhs) -> Option<Event<'a>> {
        let pdu = NopOut::decode(bhs);
        if !self.sequence(pdu.immediate, pdu.cmd_sn, pdu.itt, bhs) {
            return None;
        }
        if pdu.itt == RESERVED_TAG {
            self.window.give_back(pdu.immediate);
            // An answer to a ping that has been answered, or to none, means nothing.
            return (pdu.ttt != RESERVED_TAG && self.ping == Some(pdu.ttt)).then(|| {
                self.ping = None;
                Event::Pong
            });
        }
        self.collect(data_len, bhs);
        if data_len == 0 {
            let NopOut { lun, itt, immediate, .. } = pdu;
            self.due = Due::Answer(Answer::NopIn { lun, itt, immediate });
        }
        None
    }

    /// Collects the data of a PDU, if it has any.
    pub(super) fn collect(&mut self, data_len: u32, bhs: &Bhs) {
        self.header = *bhs;
        self.collected.clear();
        self.current = if data_len > 0 { Incoming::Collected } else { Incoming::Dropped };
    }

    fn handle_tmf<'a>(&mut self, bhs: &Bhs) -> Option<Event<'a>> {
        let pdu = TmfRequest::decode(bhs);
        if !self.sequence(pdu.immediate, pdu.cmd_sn, pdu.itt, bhs) {
            return None;
        }
        if pdu.itt == RESERVED_TAG || self.parameters.discovery {
            let reason = if self.parameters.discovery {
                RejectReason::Unsupported
            } else {
                RejectReason::InvalidField
            };
            self.reject_counted(reason, pdu.immediate, bhs);
            return None;
        }
        let function = TmfFunction::from_wire(pdu.flags & 0x7f);
        let referenced = match function {
            Some(TmfFunction::AbortTask | TmfFunction::QueryTask | TmfFunction::TaskReassign) => {
                self.referenced(&pdu, function == Some(TmfFunction::AbortTask))
            }
            _ => Referenced::None,
        };
        match self.tasks.begin(TaskKind::Tmf, pdu.immediate, pdu.itt, pdu.lun, 0) {
            Ok(task) => Some(Event::TaskManagement {
                task,
                request: TaskManagement { function, lun: pdu.lun, referenced },
            }),
            Err(reason) => {
                self.reject_counted(reason, pdu.immediate, bhs);
                None
            }
        }
    }

    /// The task that a function refers to. A command that never came, and that the initiator gives up, counts as
    /// received (11.5.1): later ones are not behind a gap.
    fn referenced(&mut self, pdu: &TmfRequest, aborts: bool) -> Referenced {
        if let Some(task) = self.tasks.find(pdu.rtt)
            && self.tasks.get(task).kind == TaskKind::Scsi
        {
            return Referenced::Task(task);
        }
        let never_came = aborts
            && pdu.ref_cmd_sn == self.window.exp_cmd_sn
            && serial::before(pdu.ref_cmd_sn, pdu.cmd_sn)
            && serial::at_most(pdu.ref_cmd_sn, self.window.max_cmd_sn);
        if never_came {
            self.window.skip();
            return Referenced::NeverCame;
        }
        Referenced::Unknown
    }

    fn handle_text<'a>(&mut self, data_len: u32, bhs: &Bhs) -> Option<Event<'a>> {
        let pdu = TextRequest::decode(bhs);
        if !self.sequence(pdu.immediate, pdu.cmd_sn, pdu.itt, bhs) {
            return None;
        }
        if pdu.itt == RESERVED_TAG {
            self.reject_counted(RejectReason::InvalidField, pdu.immediate, bhs);
            return None;
        }
        self.collect(data_len, bhs);
        if data_len == 0 {
            self.handle_text_data();
        }
        None
    }

    fn handle_logout<'a>(&mut self, bhs: &Bhs) -> Option<Event<'a>> {
        let pdu = LogoutRequest::decode(bhs);
        if !self.sequence(pdu.immediate, pdu.cmd_sn, pdu.itt, bhs) {
            return None;
        }
        let Some(reason) = LogoutReason::from_wire(pdu.flags & 0x7f) else {
            self.reject_counted(RejectReason::InvalidField, pdu.immediate, bhs);
            return None;
        };
        self.header = *bhs;
        let this = self.login.identity().is_some_and(|identity| identity.cid == pdu.cid);
        self.due = match reason {
            LogoutReason::CloseConnection if !this => {
                Due::Answer(Answer::Logout(LogoutResponseCode::NoCid))
            }
            LogoutReason::RemoveForRecovery => {
                Due::Answer(Answer::Logout(LogoutResponseCode::RecoveryUnsupported))
            }
            LogoutReason::CloseSession | LogoutReason::CloseConnection => {
                self.phase = Phase::LoggedOut;
                Due::Ask(Ask::Logout(reason))
            }
        };
        None
    }
}

/// Why a command is rejected whatever was negotiated: it is bidirectional, or has data of no direction.
#[inline]
fn command_fault(command: &ScsiCommand) -> Option<RejectReason> {
    match (command.reads(), command.writes()) {
        (true, true) => Some(RejectReason::Protocol),
        (false, false) if command.edtl > 0 => Some(RejectReason::InvalidField),
        _ => None,
    }
}
