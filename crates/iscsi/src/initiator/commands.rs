//! SCSI commands of an initiator: what is sent for them, and what a target may answer (RFC 7143, 11.3, 11.4, 11.7,
//! 11.8).

use raceline_crc32c::Crc32c;

use crate::error::Violation;
use crate::pdu::{Bhs, DataIn, DataOut, R2t, RESERVED_TAG, ScsiCommand, ScsiResponse, flags};
use crate::serial;
use crate::target::Residual;

use super::{End, Handled, Incoming, InitiatorConnection, InitiatorEvent};

/// Which way a command's data go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// There are none.
    #[default]
    None,
    /// To the initiator.
    Read,
    /// To the target.
    Write,
}

/// A SCSI command to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// LUN.
    pub lun: u64,
    /// CDB.
    pub cdb: [u8; 16],
    /// Which way the data go.
    pub direction: Direction,
    /// Bytes of data: EDTL; 0 without a direction.
    pub len: u32,
    /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue.
    pub attribute: u8,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Response: 0 when the target completed the command; otherwise the status means nothing.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// Residual.
    pub residual: Residual,
    /// Bytes of data that came.
    pub received: u32,
    /// Bytes that the target neither sent nor counted as a residual: more than 0 means that a read that claims success
    /// has failed.
    pub missing: u32,
}

/// Permission to send data of a command: unsolicited, or those of an R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The command's slot.
    pub slot: u16,
    itt: u32,
    lun: u64,
    ttt: u32,
    data_sn: u32,
    /// Offset in the command's data of the next byte.
    pub offset: u32,
    /// Bytes that are left.
    pub len: u32,
}

/// One Data-Out PDU whose header was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceOut {
    /// Offset in the command's data of its first byte.
    pub offset: u32,
    /// Bytes of data that it carries: the driver appends them now.
    pub len: u32,
    /// Bytes of padding and digest that follow, see [`InitiatorConnection::data_trailer`].
    pub trailer: u32,
}

/// One slot.
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    live: bool,
    direction: Direction,
    itt: u32,
    lun: u64,
    len: u32,
    /// Offset of the next byte: received, or granted.
    next: u32,
    /// DataSN or R2TSN that comes next.
    sn: u32,
    r2ts: u16,
    /// Unsolicited data have yet to be sent.
    unsolicited: bool,
}

/// All slots.
#[derive(Debug)]
pub(super) struct Commands {
    slots: Vec<Command>,
    bits: u32,
    generation: u32,
}

impl Commands {
    pub(super) fn new(slots: u16) -> Self {
        let slots = vec![Command::default(); usize::from(slots)];
        Self { bits: slots.len().ilog2(), slots, generation: 0 }
    }

    /// Tags of commands stay below this; others have the uppermost bit.
    const TAGS: u32 = 1 << 31;

    /// The live command with this tag.
    #[inline]
    fn find(&mut self, itt: u32) -> Result<(u16, &mut Command), Violation> {
        let slot = itt & ((1 << self.bits) - 1);
        let command = &mut self.slots[slot as usize];
        if !command.live || command.itt != itt {
            return Err(Violation::IttUnknown);
        }
        Ok((u16::try_from(slot).expect("at most 4096 slots"), command))
    }

    /// Frees a slot.
    #[inline]
    pub(super) fn end(&mut self, slot: u16) {
        self.slots[usize::from(slot)].live = false;
    }

    /// The tag of a live command.
    pub(super) fn tag(&self, slot: u16) -> Option<u32> {
        let command = self.slots.get(usize::from(slot))?;
        command.live.then_some(command.itt)
    }
}

impl InitiatorConnection {
    /// Whether the window has room for a command.
    #[inline]
    #[must_use]
    pub fn may_send(&self) -> bool {
        let numbers = &self.end.numbers;
        self.is_full_feature() && serial::at_most(numbers.cmd_sn, numbers.max_cmd_sn)
    }

    /// Most immediate data of a write of `len` bytes.
    #[inline]
    #[must_use]
    pub fn immediate_limit(&self, len: u32) -> u32 {
        let parameters = &self.end.parameters;
        if parameters.immediate_data {
            len.min(parameters.first_burst_len).min(parameters.peer_max_data_segment_len)
        } else {
            0
        }
    }

    /// Appends a SCSI Command in a free slot. With `immediate` the driver appends that many bytes and their trailer
    /// behind it. With `unsolicited` the grant that comes back is for as many further bytes as go without an R2T; none
    /// when there are no such.
    ///
    /// # Panics
    /// When the slot is taken, the window is closed, or more data are immediate than
    /// [`InitiatorConnection::immediate_limit`] says.
    pub fn command(
        &mut self,
        slot: u16,
        request: &Request,
        immediate: u32,
        unsolicited: bool,
        out: &mut Vec<u8>,
    ) -> Option<Grant> {
        assert!(self.may_send(), "the window is closed");
        let writes = request.direction == Direction::Write;
        let limit = if writes { self.immediate_limit(request.len) } else { 0 };
        assert!(immediate <= limit, "{immediate} immediate bytes where {limit} are allowed");
        assert!(request.direction != Direction::None || request.len == 0, "data have a direction");
        let end = &mut self.end;
        let first_burst = end.parameters.first_burst_len.min(request.len);
        let unsolicited = unsolicited && writes && !end.parameters.initial_r2t;
        let unsolicited_len = if unsolicited { first_burst - immediate } else { 0 };
        let commands = &mut end.commands;
        commands.generation = commands.generation.wrapping_add(1);
        let itt = (commands.generation << commands.bits | u32::from(slot)) & !Commands::TAGS;
        let command = &mut commands.slots[usize::from(slot)];
        assert!(!command.live, "slot {slot} is taken");
        *command = Command {
            live: true,
            direction: request.direction,
            itt,
            lun: request.lun,
            len: request.len,
            next: immediate + unsolicited_len,
            sn: 0,
            r2ts: 0,
            unsolicited: unsolicited_len > 0,
        };
        if !writes {
            command.next = 0;
        }
        let pdu = ScsiCommand {
            immediate: false,
            flags: request.attribute & flags::ATTRIBUTE
                | match request.direction {
                    Direction::None => 0,
                    Direction::Read => flags::READ,
                    Direction::Write => flags::WRITE,
                }
                | if unsolicited_len > 0 { 0 } else { flags::FINAL },
            lun: request.lun,
            itt,
            edtl: request.len,
            cmd_sn: end.numbers.cmd_sn,
            exp_stat_sn: end.numbers.exp_stat_sn,
            cdb: request.cdb,
        };
        end.numbers.cmd_sn = end.numbers.cmd_sn.wrapping_add(1);
        end.framing.put(&pdu.encode(immediate), out);
        (unsolicited_len > 0).then_some(Grant {
            slot,
            itt,
            lun: request.lun,
            ttt: RESERVED_TAG,
            data_sn: 0,
            offset: immediate,
            len: unsolicited_len,
        })
    }

    /// Appends the header of the next Data-Out of a grant, which has bytes left: it carries as many as the target takes
    /// in one PDU. The driver appends the data and their trailer.
    ///
    /// # Panics
    /// When the grant has no byte left.
    pub fn data_out(&mut self, grant: &mut Grant, out: &mut Vec<u8>) -> PieceOut {
        assert!(grant.len > 0, "the grant is used up");
        let end = &mut self.end;
        let len = grant.len.min(end.parameters.peer_max_data_segment_len);
        let last = len == grant.len;
        let pdu = DataOut {
            flags: if last { flags::FINAL } else { 0 },
            lun: if grant.ttt == RESERVED_TAG { 0 } else { grant.lun },
            itt: grant.itt,
            ttt: grant.ttt,
            exp_stat_sn: end.numbers.exp_stat_sn,
            data_sn: grant.data_sn,
            buffer_offset: grant.offset,
        };
        end.framing.put(&pdu.encode(len), out);
        let piece = PieceOut { offset: grant.offset, len, trailer: end.framing.trailer_len(len) };
        grant.data_sn += 1;
        grant.offset += len;
        grant.len -= len;
        if last && let Ok((_, command)) = end.commands.find(grant.itt) {
            if grant.ttt == RESERVED_TAG {
                command.unsolicited = false;
            } else {
                command.r2ts = command.r2ts.saturating_sub(1);
            }
        }
        piece
    }

    /// Appends what follows `len` bytes of data: padding and, if [`InitiatorConnection::data_digest`], the digest. `crc`
    /// is that of the data, without padding; it is not used without data digests.
    pub fn data_trailer(&self, len: u32, crc: Crc32c, out: &mut Vec<u8>) {
        self.end.framing.put_trailer(len, crc, out);
    }

    /// Bytes that follow `len` bytes of data: padding and digest.
    #[must_use]
    pub fn trailer_len(&self, len: u32) -> u32 {
        self.end.framing.trailer_len(len)
    }

    /// Frees the slot of a command that a task management function has ended. A PDU that still comes for it is a
    /// violation: call this after the answer to the function.
    pub fn forget(&mut self, slot: u16) {
        self.end.commands.end(slot);
    }
}

impl End {
    /// Data-In is taken for a read only, in order, within its length. Where sequences end is not checked: tgt sets F
    /// in the last PDU of a command only, whatever MaxBurstLength is.
    #[inline]
    pub(super) fn handle_data_in<'a>(
        &mut self,
        len: u32,
        bhs: &Bhs,
    ) -> Result<Handled<'a>, Violation> {
        let pdu = DataIn::decode(bhs);
        let (slot, command) = self.commands.find(pdu.itt)?;
        if command.direction != Direction::Read {
            return Err(Violation::DataInUnexpected);
        }
        if pdu.data_sn != command.sn {
            return Err(Violation::DataSnInvalid);
        }
        if pdu.buffer_offset != command.next {
            return Err(Violation::DataInOffset);
        }
        let next = command.next.checked_add(len).filter(|&next| next <= command.len);
        let next = next.ok_or(Violation::DataInOutOfRange)?;
        if pdu.flags & flags::ACKNOWLEDGE != 0 {
            return Err(Violation::AckRequested);
        }
        let (is_final, ends) = (pdu.flags & flags::FINAL != 0, pdu.flags & flags::STATUS != 0);
        if ends && !is_final {
            return Err(Violation::StatusWithoutFinal);
        }
        let offset = command.next;
        command.next = next;
        command.sn = command.sn.wrapping_add(1);
        let outcome = if ends {
            let residual = Residual::from_wire(pdu.flags, pdu.residual);
            let outcome = command.outcome(0, pdu.status, residual);
            self.numbers.take_status(pdu.stat_sn)?;
            Some(outcome)
        } else {
            None
        };
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        if len > 0 {
            self.current = Incoming::Command { slot, offset, len, outcome };
            return Ok(Handled::Data);
        }
        Ok(Handled::Event(match outcome {
            Some(outcome) => {
                self.commands.end(slot);
                self.header = *bhs;
                self.collected.clear();
                InitiatorEvent::Response { slot, outcome }
            }
            None => InitiatorEvent::DataEnd { slot, offset, len, digest: None, outcome: None },
        }))
    }

    /// An R2T is taken for a write only, in order, within its length, and no more of them than negotiated.
    pub(super) fn handle_r2t<'a>(&mut self, bhs: &Bhs) -> Result<Handled<'a>, Violation> {
        let pdu = R2t::decode(bhs);
        let parameters = &self.parameters;
        let (slot, command) = self.commands.find(pdu.itt)?;
        if command.direction != Direction::Write || pdu.ttt == RESERVED_TAG {
            return Err(Violation::R2tUnexpected);
        }
        if command.unsolicited {
            return Err(Violation::R2tBeforeUnsolicited);
        }
        if pdu.r2t_sn != command.sn {
            return Err(Violation::DataSnInvalid);
        }
        if pdu.buffer_offset != command.next {
            return Err(Violation::R2tOffset);
        }
        if pdu.desired_len == 0 {
            return Err(Violation::R2tLenZero);
        }
        if pdu.desired_len > parameters.max_burst_len {
            return Err(Violation::R2tTooLong);
        }
        let next = command.next.checked_add(pdu.desired_len);
        let next = next.filter(|&next| next <= command.len).ok_or(Violation::R2tOutOfRange)?;
        if command.r2ts == parameters.max_outstanding_r2t {
            return Err(Violation::R2tTooMany);
        }
        command.r2ts += 1;
        command.next = next;
        command.sn = command.sn.wrapping_add(1);
        let grant = Grant {
            slot,
            itt: pdu.itt,
            lun: command.lun,
            ttt: pdu.ttt,
            data_sn: 0,
            offset: pdu.buffer_offset,
            len: pdu.desired_len,
        };
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        Ok(Handled::Event(InitiatorEvent::R2t(grant)))
    }

    pub(super) fn handle_response<'a>(&mut self) -> Result<InitiatorEvent<'a>, Violation> {
        let pdu = ScsiResponse::decode(&self.header);
        let sense_fits = match self.collected.split_first_chunk::<2>() {
            Some((len, sense)) => usize::from(u16::from_be_bytes(*len)) <= sense.len(),
            None => self.collected.is_empty(),
        };
        if !sense_fits {
            return Err(Violation::SenseInvalid);
        }
        let (slot, command) = self.commands.find(pdu.itt)?;
        let residual = Residual::from_wire(pdu.flags, pdu.residual);
        let outcome = command.outcome(pdu.response, pdu.status, residual);
        self.commands.end(slot);
        self.numbers.take_status(pdu.stat_sn)?;
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        Ok(InitiatorEvent::Response { slot, outcome })
    }
}

impl Command {
    fn outcome(&self, response: u8, status: u8, residual: Residual) -> Outcome {
        let (received, missing) = if self.direction == Direction::Read {
            let left = self.len - self.next;
            let counted = match residual {
                Residual::Underflow(count) => count,
                Residual::None | Residual::Overflow(_) => 0,
            };
            (self.next, left.saturating_sub(counted))
        } else {
            (0, 0)
        };
        Outcome { response, status, residual, received, missing }
    }
}
