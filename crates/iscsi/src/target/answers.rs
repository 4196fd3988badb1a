//! What a target sends: data, R2Ts, responses, messages; counters are stamped when a PDU is appended.

use raceline_crc32c::Crc32c;

use crate::error::FatalError;
use crate::pdu::{
    AsyncEvent, AsyncMessage, Bhs, DataIn, LogoutRequest, LogoutResponse, LogoutResponseCode,
    NopIn, R2t, RESERVED_TAG, Reject, RejectReason, ScsiResponse, TmfResponse, TmfResponseCode,
    flags, opcode,
};

use super::tasks::TaskKind;
use super::{Answer, Ask, Due, End, FIRST_PING, Incoming, Phase, TargetConnection, TaskId};
use crate::error::Violation;

/// SCSI status CHECK CONDITION.
const CHECK_CONDITION: u8 = 2;

/// The difference between the bytes that an initiator expected and those that the command asks for (RFC 7143,
/// 11.4.5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// None.
    #[default]
    None,
    /// U: this many bytes less were transferred than expected.
    Underflow(u32),
    /// O: this many bytes more were to be transferred than expected.
    Overflow(u32),
}

impl Residual {
    /// Of a command that asks for `wanted` bytes, when the initiator expects `edtl`.
    #[inline]
    #[must_use]
    pub fn between(edtl: u32, wanted: u64) -> Self {
        match u64::from(edtl).checked_sub(wanted) {
            Some(0) => Self::None,
            Some(less) => u32::try_from(less).map_or(Self::None, Self::Underflow),
            None => Self::Overflow(u32::try_from(wanted - u64::from(edtl)).unwrap_or(u32::MAX)),
        }
    }

    /// O and U, and the count.
    #[inline]
    pub(crate) const fn to_wire(self) -> (u8, u32) {
        match self {
            Self::None => (0, 0),
            Self::Underflow(count) => (flags::UNDERFLOW, count),
            Self::Overflow(count) => (flags::OVERFLOW, count),
        }
    }

    /// Of flags and a count.
    #[inline]
    pub(crate) const fn from_wire(flags: u8, count: u32) -> Self {
        if flags & flags::UNDERFLOW != 0 {
            Self::Underflow(count)
        } else if flags & flags::OVERFLOW != 0 {
            Self::Overflow(count)
        } else {
            Self::None
        }
    }
}

/// How a read ends in its last Data-In (11.7.3): without sense data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// SCSI status; not CHECK CONDITION.
    pub status: u8,
    /// Residual.
    pub residual: Residual,
}

/// How a command ends in a SCSI Response (11.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status<'a> {
    /// SCSI status.
    pub status: u8,
    /// Residual.
    pub residual: Residual,
    /// Sense data, at most 252 bytes; empty unless the status is CHECK CONDITION.
    pub sense: &'a [u8],
}

/// One Data-In PDU whose header was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInPiece {
    /// Bytes of data that it carries: the driver appends them now.
    pub len: u32,
    /// Bytes of padding and digest that follow the data: the driver appends them with
    /// [`TargetConnection::data_trailer`] unless there are none.
    pub trailer: u32,
    /// Whether the command has ended with it.
    pub ended: bool,
}

/// An Asynchronous Message (11.9). `lun` and `sense` belong to [`AsyncEvent::ScsiEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Async<'a> {
    /// What it says.
    pub event: AsyncEvent,
    /// LUN.
    pub lun: u64,
    /// AsyncVCode, Parameter1, Parameter2, Parameter3.
    pub parameters: (u8, u16, u16, u16),
    /// Sense data; empty for other events.
    pub sense: &'a [u8],
}

impl TargetConnection {
    /// Appends the PDU that [`Event::Answer`](super::Event::Answer) is about.
    ///
    /// # Panics
    /// When there is none.
    pub fn answer(&mut self, out: &mut Vec<u8>) {
        let Due::Answer(answer) = std::mem::replace(&mut self.end.due, Due::Nothing) else {
            panic!("the connection has no answer to send");
        };
        match answer {
            Answer::Login(reply) => self.login_answer(reply, out),
            Answer::NopIn { lun, itt, immediate } => self.end.put_nop_in(lun, itt, immediate, out),
            Answer::Text { lun, itt, immediate } => {
                self.end.put_text_response(lun, itt, immediate, out);
            }
            Answer::Reject { reason, header } => self.end.put_reject(reason, &header, out),
            Answer::Logout(response) => self.end.put_logout_response(response, out),
            Answer::Failed { task, fault } => {
                let sense = fault.sense();
                let status =
                    Status { status: CHECK_CONDITION, residual: Residual::None, sense: &sense };
                self.response(task, &status, out);
            }
        }
    }

    /// Appends the header of a Data-In for bytes from `offset` of the command's data, of which `len` are still to be
    /// sent. The PDU carries as many of them as the initiator takes in one PDU: the driver appends these, then the
    /// trailer, and calls again for the rest. With `finish` the last PDU carries the status, and the task ends with
    /// it: no response follows (11.7.3).
    ///
    /// # Panics
    /// When `len` is 0, the task is no live SCSI command, or the finish says CHECK CONDITION.
    #[inline]
    pub fn data_in(
        &mut self,
        task: TaskId,
        offset: u32,
        len: u32,
        finish: Option<Finish>,
        out: &mut Vec<u8>,
    ) -> DataInPiece {
        assert!(len > 0, "Data-In carries data");
        let end = &mut self.end;
        let burst = end.parameters.max_burst_len;
        let left_in_burst = burst - offset % burst;
        let piece = len.min(end.parameters.peer_max_data_segment_len).min(left_in_burst);
        let slot = end.tasks.get(task);
        debug_assert!(slot.kind == TaskKind::Scsi, "data are of a SCSI command");
        let data_sn = slot.sent;
        slot.sent = data_sn.wrapping_add(1);
        let itt = slot.itt;
        let ended = piece == len;
        let mut pdu =
            DataIn { itt, ttt: RESERVED_TAG, data_sn, buffer_offset: offset, ..DataIn::default() };
        if ended || piece == left_in_burst {
            pdu.flags = flags::FINAL;
        }
        let ended = match finish {
            Some(finish) if ended => {
                assert!(finish.status != CHECK_CONDITION, "sense data need a response");
                let (residual_flag, residual) = finish.residual.to_wire();
                pdu.flags |= flags::STATUS | residual_flag;
                pdu.status = finish.status;
                pdu.residual = residual;
                let immediate = end.tasks.end(task);
                end.window.give_back(immediate);
                pdu.stat_sn = end.window.next_stat_sn();
                true
            }
            _ => false,
        };
        pdu.exp_cmd_sn = end.window.exp_cmd_sn;
        pdu.max_cmd_sn = end.window.max_cmd_sn;
        end.framing.put(&pdu.encode(piece), out);
        DataInPiece { len: piece, trailer: end.framing.trailer_len(piece), ended }
    }

    /// Appends what follows the `len` bytes of data of a PDU: padding and, if [`TargetConnection::data_digest`], the
    /// digest. `crc` is that of the data, without padding; it is not used without data digests.
    #[inline]
    pub fn data_trailer(&self, len: u32, crc: Crc32c, out: &mut Vec<u8>) {
        self.end.framing.put_trailer(len, crc, out);
    }

    /// Bytes of a Data-In that are not data: header, digests, padding, at most.
    #[must_use]
    pub fn data_in_overhead(&self) -> usize {
        let framing = self.end.framing;
        48 + if framing.header_digest { 4 } else { 0 } + 3 + if framing.data_digest { 4 } else { 0 }
    }

    /// Appends an R2T for `[offset, offset + len)` of the command's data, at most MaxBurstLength of them. R2Ts of one
    /// command go through its data in order, behind immediate and unsolicited data, which must have ended. The data
    /// come as [`Event::Data`](super::Event::Data).
    ///
    /// # Panics
    /// When the range is empty, above MaxBurstLength, not the next one or beyond EDTL; when MaxOutstandingR2T are
    /// outstanding for the command.
    pub fn r2t(&mut self, task: TaskId, offset: u32, len: u32, out: &mut Vec<u8>) {
        let end = &mut self.end;
        let parameters = &end.parameters;
        assert!(len <= parameters.max_burst_len, "an R2T asks for at most MaxBurstLength");
        let (ttt, r2t_sn) = end.tasks.ask(task, offset, len, parameters.max_outstanding_r2t);
        let slot = end.tasks.get(task);
        let pdu = R2t {
            flags: flags::FINAL,
            lun: slot.lun,
            itt: slot.itt,
            ttt,
            stat_sn: end.window.stat_sn,
            exp_cmd_sn: end.window.exp_cmd_sn,
            max_cmd_sn: end.window.max_cmd_sn,
            r2t_sn,
            buffer_offset: offset,
            desired_len: len,
        };
        end.framing.put(&pdu.encode(0), out);
    }

    /// Appends the SCSI Response of a command and ends its task.
    ///
    /// # Panics
    /// When the task is no live SCSI command, or the sense data exceed 252 bytes.
    #[inline]
    pub fn response(&mut self, task: TaskId, status: &Status<'_>, out: &mut Vec<u8>) {
        let end = &mut self.end;
        let slot = end.tasks.get(task);
        assert!(slot.kind == TaskKind::Scsi, "a SCSI Response answers a SCSI command");
        let (itt, exp_data_sn) = (slot.itt, slot.sent);
        end.drop_data(task);
        let immediate = end.tasks.end(task);
        end.window.give_back(immediate);
        let (residual_flag, residual) = status.residual.to_wire();
        let pdu = ScsiResponse {
            flags: flags::FINAL | residual_flag,
            response: 0,
            status: status.status,
            itt,
            snack_tag: 0,
            stat_sn: end.window.next_stat_sn(),
            exp_cmd_sn: end.window.exp_cmd_sn,
            max_cmd_sn: end.window.max_cmd_sn,
            exp_data_sn,
            bidi_residual: 0,
            residual,
        };
        if status.sense.is_empty() {
            end.framing.put(&pdu.encode(0), out);
        } else {
            end.put_sense(&pdu, status.sense, out);
        }
    }

    /// Ends a task without a response: a task management function has ended it. What still comes for it is dropped.
    /// The next PDU tells the initiator that the window has moved on; if none is due, call
    /// [`TargetConnection::window_update`].
    ///
    /// # Panics
    /// When the task has ended.
    pub fn abort(&mut self, task: TaskId) {
        self.end.drop_data(task);
        let immediate = self.end.tasks.end(task);
        self.end.window.give_back(immediate);
    }

    /// The data digest of a command's data was wrong ([`Event::DataEnd`](super::Event::DataEnd)): appends a Reject and
    /// drops what still comes for the command. The driver ends the command with CHECK CONDITION and the sense data
    /// of [`DataFault::Digest`](super::DataFault::Digest) (RFC 7143, 7.8).
    ///
    /// # Errors
    /// When the data were immediate data: the command does not exist then, and its CmdSN is a gap that no initiator
    /// closes at error recovery level 0. Nothing is appended: call [`TargetConnection::terminate`] and close.
    pub fn data_digest_wrong(&mut self, task: TaskId, out: &mut Vec<u8>) -> Result<(), FatalError> {
        let header = self.end.header;
        if header[0] & flags::OPCODE != opcode::DATA_OUT {
            self.end.phase = Phase::Closed;
            return Err(FatalError::in_header(Violation::DataDigest, &header));
        }
        self.end.tasks.fail(task);
        self.end.put_reject(RejectReason::DataDigest, &header, out);
        Ok(())
    }

    /// Appends the response to a task management function and ends its task.
    ///
    /// # Panics
    /// When the task is none.
    pub fn tmf_response(&mut self, task: TaskId, response: TmfResponseCode, out: &mut Vec<u8>) {
        let end = &mut self.end;
        let slot = end.tasks.get(task);
        assert!(slot.kind == TaskKind::Tmf, "a TMF Response answers a task management function");
        let itt = slot.itt;
        let immediate = end.tasks.end(task);
        end.window.give_back(immediate);
        let pdu = TmfResponse {
            flags: flags::FINAL,
            response: response.to_wire(),
            itt,
            stat_sn: end.window.next_stat_sn(),
            exp_cmd_sn: end.window.exp_cmd_sn,
            max_cmd_sn: end.window.max_cmd_sn,
        };
        end.framing.put(&pdu.encode(0), out);
    }

    /// Appends the response to [`Event::Logout`](super::Event::Logout). The driver sends it and closes.
    ///
    /// # Panics
    /// When the initiator has not logged out.
    pub fn logout_response(&mut self, response: LogoutResponseCode, out: &mut Vec<u8>) {
        let end = &mut self.end;
        end.decided(|ask| matches!(ask, Ask::Logout(_)));
        end.put_logout_response(response, out);
        end.phase = Phase::Closed;
    }

    /// Appends a NOP-In that the initiator has to answer ([`Event::Pong`](super::Event::Pong)). Gives whether it did:
    /// a connection has one ping at a time, and none before the login is complete.
    pub fn ping(&mut self, out: &mut Vec<u8>) -> bool {
        let end = &mut self.end;
        if end.phase != Phase::FullFeature || end.ping.is_some() {
            return false;
        }
        let ttt = end.next_ping;
        end.next_ping = if ttt == RESERVED_TAG - 1 { FIRST_PING } else { ttt + 1 };
        end.ping = Some(ttt);
        end.put_unasked_nop_in(ttt, out);
        true
    }

    /// Appends a NOP-In that asks for nothing: it tells the initiator that the window has moved on.
    pub fn window_update(&mut self, out: &mut Vec<u8>) {
        if self.is_full_feature() {
            self.end.put_unasked_nop_in(RESERVED_TAG, out);
        }
    }

    /// Appends an Asynchronous Message.
    ///
    /// # Panics
    /// Before the login is complete.
    pub fn async_message(&mut self, message: &Async<'_>, out: &mut Vec<u8>) {
        assert!(self.is_full_feature(), "messages follow the login");
        let end = &mut self.end;
        let (vcode, parameter1, parameter2, parameter3) = message.parameters;
        let pdu = AsyncMessage {
            flags: flags::FINAL,
            lun: message.lun,
            itt: RESERVED_TAG,
            stat_sn: end.window.next_stat_sn(),
            exp_cmd_sn: end.window.exp_cmd_sn,
            max_cmd_sn: end.window.max_cmd_sn,
            event: message.event.to_wire(),
            vcode,
            parameter1,
            parameter2,
            parameter3,
        };
        let data = if message.sense.is_empty() { Vec::new() } else { sense_data(message.sense) };
        end.framing.put_with_data(&pdu.encode(data_len(&data)), &data, out);
    }

    /// Appends what tells the initiator of an error: a Login Response with a status, a Reject, or nothing. Nothing is
    /// received after it.
    pub fn terminate(&mut self, error: &FatalError, out: &mut Vec<u8>) {
        let end = &mut self.end;
        end.phase = Phase::Closed;
        end.current = Incoming::Dropped;
        match error.violation() {
            Violation::NotLoginInLogin if end.login.has_begun() => {
                end.put_login_refusal(crate::pdu::LoginStatus::INVALID_DURING_LOGIN, out);
            }
            violation => {
                if let (Some(reason), Some(header)) =
                    (violation.reject(), error.header().first_chunk::<48>())
                {
                    end.put_reject(reason, header, out);
                }
            }
        }
    }
}

impl End {
    /// Drops the rest of the data that are coming for a task.
    #[inline]
    fn drop_data(&mut self, task: TaskId) {
        if matches!(self.current, Incoming::Task { task: current, .. } if current == task) {
            self.current = Incoming::Dropped;
        }
    }

    #[cold]
    fn put_sense(&self, pdu: &ScsiResponse, sense: &[u8], out: &mut Vec<u8>) {
        assert!(sense.len() <= 252, "sense data have at most 252 bytes");
        let data = sense_data(sense);
        self.framing.put_with_data(&pdu.encode(data_len(&data)), &data, out);
    }

    fn put_logout_response(&mut self, response: LogoutResponseCode, out: &mut Vec<u8>) {
        let request = LogoutRequest::decode(&self.header);
        self.window.give_back(request.immediate);
        let pdu = LogoutResponse {
            flags: flags::FINAL,
            response: response.to_wire(),
            itt: request.itt,
            stat_sn: self.window.next_stat_sn(),
            exp_cmd_sn: self.window.exp_cmd_sn,
            max_cmd_sn: self.window.max_cmd_sn,
            time2wait: self.parameters.time2wait_s,
            time2retain: 0,
        };
        self.framing.put(&pdu.encode(0), out);
    }

    fn put_nop_in(&mut self, lun: u64, itt: u32, immediate: bool, out: &mut Vec<u8>) {
        self.window.give_back(immediate);
        let pdu = NopIn {
            flags: flags::FINAL,
            lun,
            itt,
            ttt: RESERVED_TAG,
            stat_sn: self.window.next_stat_sn(),
            exp_cmd_sn: self.window.exp_cmd_sn,
            max_cmd_sn: self.window.max_cmd_sn,
        };
        // Data beyond what the initiator takes are left out (11.19).
        let limit = self.parameters.peer_max_data_segment_len as usize;
        let data = &self.collected[..self.collected.len().min(limit)];
        self.framing.put_with_data(&pdu.encode(data_len(data)), data, out);
    }

    fn put_unasked_nop_in(&self, ttt: u32, out: &mut Vec<u8>) {
        let pdu = NopIn {
            flags: flags::FINAL,
            lun: 0,
            itt: RESERVED_TAG,
            ttt,
            stat_sn: self.window.stat_sn,
            exp_cmd_sn: self.window.exp_cmd_sn,
            max_cmd_sn: self.window.max_cmd_sn,
        };
        self.framing.put(&pdu.encode(0), out);
    }

    pub(super) fn put_reject(&mut self, reason: RejectReason, header: &Bhs, out: &mut Vec<u8>) {
        if self.phase == Phase::Login {
            return;
        }
        let pdu = Reject {
            flags: flags::FINAL,
            reason: reason.to_wire(),
            itt: RESERVED_TAG,
            stat_sn: self.window.next_stat_sn(),
            exp_cmd_sn: self.window.exp_cmd_sn,
            max_cmd_sn: self.window.max_cmd_sn,
            data_sn: 0,
        };
        self.framing.put_with_data(&pdu.encode(data_len(header)), header, out);
    }
}

/// Sense data behind their length (11.4.7).
fn sense_data(sense: &[u8]) -> Vec<u8> {
    let len = u16::try_from(sense.len()).expect("sense data have at most 252 bytes");
    let mut data = len.to_be_bytes().to_vec();
    data.extend_from_slice(sense);
    data
}

/// Length of a data segment.
pub(super) fn data_len(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("a data segment is below 16 MiB")
}
