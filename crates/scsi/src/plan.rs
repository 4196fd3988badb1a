//! What a command means for a logical unit: an answer, a refusal, or work on the medium that is valid
//! (order of checks: SAM-6, 5.3.3).
//!
//! [`plan`] is asked once per command. What it gives cannot be wrong: blocks are on the disk, the medium may be written,
//! reservations allow it, and the transfer is never more than the initiator expects. Reads and writes allocate nothing.

mod medium;

use raceline_proto::reservation::AccessGroup;

use crate::cdb::{Command, Medium, ModeSelect, ReserveOut, Row, find_row};
use crate::copy::{self, CopyStatus};
use crate::lun::{Lun, Port, PortGroupState, TargetFacts};
use crate::reservation::{self, Admission, ReserveOutParameters};
use crate::sense::Sense;
use crate::state::{Change, LunState};
use crate::status::Refusal;
use crate::transfer::{DataDirection, Request, Residual, Transfer};
use crate::unit_attention::Attentions;
use crate::unmap::Blocks;
use crate::{capacity, inquiry, mode, opcodes, vpd};

/// What a command is checked against: the logical unit as one I_T nexus sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The logical unit.
    pub lun: &'a Lun,
    /// Its mode pages and reservations.
    pub state: &'a LunState,
    /// What the I_T nexus may do: [`LunState::admission`], made once per state.
    pub admission: Admission,
    /// The target.
    pub target: &'a TargetFacts,
    /// The port that the command came by.
    pub port: Port,
    /// The state of that port's group.
    pub port_state: PortGroupState,
}

/// An answer that succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The data, cut to the allocation length and to what the initiator expects.
    pub data: Vec<u8>,
    /// Their transfer.
    pub transfer: Transfer,
}

/// A command that is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// What the response says of the data, none of which move.
    pub residual: Residual,
}

/// What Verify, or the second half of Write and Verify, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// The blocks are read; the data of the transfer, if any, are of no interest.
    Readable,
    /// They are compared with the data of the transfer, which are as long.
    Data,
    /// Each of them is compared with the one block of the transfer.
    OneBlock,
}

/// Data that Write Same writes to each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SameData {
    /// Zeroes; there is no transfer.
    Zeroes,
    /// The one block of the transfer. Blocks of zeroes are best written as zeroes.
    Transfer,
}

/// Parameters that have to come before the command can be decided; see [`Parameters::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Of Unmap; [`crate::unmap::unmapped_blocks`] reads them.
    Unmap,
    /// Of Mode Select.
    ModeSelect(ModeSelect),
    /// Of Persistent Reserve Out.
    ReserveOut(ReserveOut),
    /// Of Extended Copy; [`crate::copy::CopyList::parse`] reads them.
    ExtendedCopy,
}

impl Parameters {
    /// The change that the command asks for, now that its parameters are here; `None` for Unmap and Extended Copy, which
    /// change nothing but blocks.
    ///
    /// # Errors
    /// What is wrong with the parameters.
    pub fn decide(
        &self,
        lun: &Lun,
        state: &LunState,
        list: &[u8],
    ) -> Result<Option<Change>, Sense> {
        match self {
            Self::Unmap | Self::ExtendedCopy => Ok(None),
            Self::ModeSelect(command) => {
                let settings = mode::mode_select(lun, &state.mode, command, list)?;
                Ok(Some(Change::Mode(settings)))
            }
            Self::ReserveOut(command) => {
                let parameters = ReserveOutParameters::parse(command, list)?;
                Ok(Some(Change::ReserveOut(*command, parameters)))
            }
        }
    }
}

/// What to do with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Answer it: GOOD.
    Reply(Reply),
    /// Refuse it.
    Refuse(Refused),
    /// Read blocks and send [`Transfer::bytes`] of them, which may end within the last block. `count` may be 0.
    Read {
        /// The blocks; no more than the transfer takes.
        blocks: Blocks,
        /// From stable media.
        fua: bool,
        /// The data.
        transfer: Transfer,
    },
    /// Write blocks: exactly the transfer. `count` may be 0.
    Write {
        /// The blocks.
        blocks: Blocks,
        /// On stable media before the answer.
        fua: bool,
        /// The data.
        transfer: Transfer,
    },
    /// Write blocks to stable media, and then check them. `count` may be 0.
    WriteAndVerify {
        /// The blocks.
        blocks: Blocks,
        /// [`Check::Readable`] or [`Check::Data`].
        check: Check,
        /// The data.
        transfer: Transfer,
    },
    /// Read blocks, and write them with the transfer's bits added, so that no other write comes between. `count` may
    /// be 0.
    OrWrite {
        /// The blocks.
        blocks: Blocks,
        /// On stable media before the answer.
        fua: bool,
        /// The data.
        transfer: Transfer,
    },
    /// Compare blocks with the first half of the transfer, and if they are equal write the second half, so that no
    /// other write comes between. If they are not: [`Sense::miscompare`] with the offset of the first byte that
    /// differs.
    CompareAndWrite {
        /// The blocks: half of the transfer, 1 to 255.
        blocks: Blocks,
        /// On stable media before the answer.
        fua: bool,
        /// The data.
        transfer: Transfer,
    },
    /// Check blocks. `count` is at least 1. A difference is [`Sense::miscompare`] with its offset.
    Verify {
        /// The blocks.
        blocks: Blocks,
        /// With what.
        check: Check,
        /// The data.
        transfer: Transfer,
    },
    /// Write one block's data to all blocks. `count` is at least 1.
    WriteSame {
        /// The blocks.
        blocks: Blocks,
        /// What is written.
        data: SameData,
        /// If that are zeroes, the blocks may be deallocated so that they read zeroes.
        deallocate: bool,
        /// On stable media before the answer (WCE is 0).
        fua: bool,
        /// The data: one block, or none.
        transfer: Transfer,
    },
    /// Blocks will be read soon. `count` may be 0.
    PreFetch {
        /// The blocks.
        blocks: Blocks,
        /// No data.
        transfer: Transfer,
    },
    /// What was written before goes to stable media.
    Flush {
        /// No data.
        transfer: Transfer,
    },
    /// Look which blocks from `lba` on are allocated, and answer with [`reply_lba_status`].
    LbaStatus {
        /// The first block.
        lba: u64,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Look what is known of this I_T nexus' copy at this logical unit, and answer with [`reply_copy_status`].
    CopyStatus {
        /// LIST IDENTIFIER.
        id: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Receive the transfer, then decide.
    Collect {
        /// What it is.
        parameters: Parameters,
        /// The data.
        transfer: Transfer,
    },
    /// Change the state of the logical unit: [`LunState::apply`].
    Change {
        /// How.
        change: Change,
        /// No data.
        transfer: Transfer,
    },
}

/// Says what a command means.
///
/// A unit attention that is reported is taken from `attentions`.
#[must_use]
pub fn plan(view: &View<'_>, attentions: &mut Attentions, request: &Request) -> Plan {
    match try_plan(view, attentions, request) {
        Ok(plan) => plan,
        Err(why) => refuse(request, why),
    }
}

/// What a command means for a LUN that no logical unit has.
#[must_use]
pub fn plan_without_lun(target: &TargetFacts, request: &Request) -> Plan {
    let planned = find_row(&request.cdb).and_then(|row| Command::parse(row, &request.cdb));
    match planned {
        Ok(Command::Inquiry { page: None, allocation }) => {
            reply(request, allocation, inquiry::standard(None))
        }
        Ok(Command::ReportLuns { select, allocation }) => {
            reply(request, allocation, capacity::report_luns(target, select))
        }
        Ok(Command::RequestSense { descriptors, allocation }) => {
            let sense = Sense::NO_SUCH_LUN.encode(descriptors);
            reply(request, allocation, sense.as_bytes().to_vec())
        }
        Err(sense) if sense.code == Sense::INVALID_FIELD_IN_CDB.code && request.cdb[0] == 0xa0 => {
            refuse(request, sense.into())
        }
        _ => refuse(request, Sense::NO_SUCH_LUN.into()),
    }
}

/// A refusal: none of the data move.
#[must_use]
pub fn refuse(request: &Request, why: Refusal) -> Plan {
    Plan::Refuse(Refused { why, residual: Transfer::none(request).residual })
}

/// The answer to [`Plan::LbaStatus`], from what [`capacity::lba_status`] makes of what the device has found.
#[must_use]
pub fn reply_lba_status(request: &Request, allocation: u32, data: Vec<u8>) -> Reply {
    cut(request, allocation, data)
}

/// The answer to [`Plan::CopyStatus`]; `None`: there is no such copy.
#[must_use]
pub fn reply_copy_status(request: &Request, allocation: u32, status: Option<CopyStatus>) -> Plan {
    match status {
        Some(status) => reply(request, allocation, status.encode()),
        None => refuse(request, Sense::bad_cdb(2).into()),
    }
}

fn cut(request: &Request, allocation: u32, mut data: Vec<u8>) -> Reply {
    let allocation = usize::try_from(allocation).unwrap_or(usize::MAX);
    data.truncate(allocation);
    let transfer = Transfer::new(request, DataDirection::In, data.len() as u64);
    data.truncate(usize::try_from(transfer.bytes).unwrap_or(usize::MAX));
    Reply { data, transfer }
}

fn reply(request: &Request, allocation: u32, data: Vec<u8>) -> Plan {
    Plan::Reply(cut(request, allocation, data))
}

fn done(request: &Request) -> Plan {
    Plan::Reply(Reply { data: Vec::new(), transfer: Transfer::none(request) })
}

fn try_plan(
    view: &View<'_>,
    attentions: &mut Attentions,
    request: &Request,
) -> Result<Plan, Refusal> {
    let row = find_row(&request.cdb)?;
    if !row.is_supported_by(view.lun) {
        return Err(Sense::INVALID_OPCODE.into());
    }
    let group = row.group(&request.cdb);
    if !view.admission.admits(group) {
        return Err(Refusal::Conflict);
    }
    if !row.ignores_attentions
        && let Some(attention) = attentions.take()
    {
        return Err(attention.sense().into());
    }
    check_port(view, row, group)?;
    match Command::parse(row, &request.cdb)? {
        Command::Read(medium) => medium::read(view, request, &medium),
        Command::Write(medium) => medium::write(view, request, &medium),
        Command::RequestSense { descriptors, allocation } => {
            let sense = attentions.take().map_or(Sense::NONE, |attention| attention.sense());
            let data = sense.encode(descriptors).as_bytes().to_vec();
            Ok(reply(request, allocation, data))
        }
        Command::ReportLuns { select, allocation } => {
            attentions.luns_are_known();
            Ok(reply(request, allocation, capacity::report_luns(view.target, select)))
        }
        command => plan_other(view, request, &command),
    }
}

/// Commands that look at the medium do not run by a port whose group does not let them.
fn check_port(view: &View<'_>, row: &Row, group: Option<AccessGroup>) -> Result<(), Refusal> {
    let sense = match view.port_state {
        PortGroupState::Optimized | PortGroupState::NonOptimized => return Ok(()),
        PortGroupState::Standby => Sense::PORT_STANDBY,
        PortGroupState::Unavailable => Sense::PORT_UNAVAILABLE,
        PortGroupState::Transitioning => Sense::PORT_TRANSITION,
    };
    // mode pages, reports and what runs always tell or change nothing of the medium
    let spares_medium = matches!(row.opcode, 0x15 | 0x55 | 0x1a | 0x5a | 0x5e | 0x5f | 0xa3);
    if spares_medium || group.is_none() { Ok(()) } else { Err(sense.into()) }
}

/// Everything but Read and Write, and what looks at unit attentions.
fn plan_other(view: &View<'_>, request: &Request, command: &Command) -> Result<Plan, Refusal> {
    let lun = view.lun;
    match *command {
        Command::WriteAndVerify(medium, check) => {
            medium::write_and_verify(view, request, &medium, check)
        }
        Command::Verify(medium, check) => medium::verify(view, request, &medium, check),
        Command::OrWrite(medium) => medium::or_write(view, request, &medium),
        Command::CompareAndWrite(medium) => medium::compare_and_write(view, request, &medium),
        Command::WriteSame { medium, unmap, no_data } => {
            medium::write_same(view, request, &medium, unmap, no_data)
        }
        Command::PreFetch(medium) => {
            let blocks = medium::to_the_end(lun, &medium)?;
            Ok(Plan::PreFetch { blocks, transfer: Transfer::none(request) })
        }
        Command::SynchronizeCache(medium) => {
            medium::to_the_end(lun, &medium)?;
            Ok(flush(view, request))
        }
        Command::Unmap { length } => medium::unmap(view, request, length),
        Command::GetLbaStatus { lba, allocation } => {
            medium::lba_status(lun, request, lba, allocation)
        }
        Command::StartStopUnit { flush: true } => Ok(flush(view, request)),
        Command::TestUnitReady
        | Command::StartStopUnit { flush: false }
        | Command::PreventAllowMediumRemoval => Ok(done(request)),
        Command::ModeSelect(command) => {
            Ok(collect(request, Parameters::ModeSelect(command), command.length.into()))
        }
        Command::PersistentReserveOut(command) => {
            if view.admission.reserved {
                return Err(Refusal::Conflict);
            }
            if command.length != 24 {
                return Err(Sense::PARAMETER_LIST_LENGTH.into());
            }
            Ok(collect(request, Parameters::ReserveOut(command), 24))
        }
        Command::ExtendedCopy { length } => {
            if length > copy::HEADER_LEN + copy::MAX_DESCRIPTOR_BYTES {
                return Err(Sense::PARAMETER_LIST_LENGTH.into());
            }
            Ok(collect(request, Parameters::ExtendedCopy, length.into()))
        }
        Command::ReceiveCopyStatus { id, allocation } => Ok(Plan::CopyStatus { id, allocation }),
        Command::Reserve => {
            Ok(Plan::Change { change: Change::Reserve, transfer: Transfer::none(request) })
        }
        Command::Release => {
            Ok(Plan::Change { change: Change::Release, transfer: Transfer::none(request) })
        }
        _ => report(view, request, command),
    }
}

/// Commands that only tell something.
fn report(view: &View<'_>, request: &Request, command: &Command) -> Result<Plan, Refusal> {
    let lun = view.lun;
    let (allocation, data) = match *command {
        Command::Inquiry { page: None, allocation } => (allocation, inquiry::standard(Some(lun))),
        Command::Inquiry { page: Some(code), allocation } => {
            let page = vpd::page(code, lun, view.target, view.port).ok_or(Sense::bad_cdb(2))?;
            (allocation, page)
        }
        Command::ModeSense(command) => {
            (command.allocation, mode::mode_sense(lun, &view.state.mode, &command)?)
        }
        Command::ReadCapacity10 => (8, capacity::read_capacity_10(lun).to_vec()),
        Command::ReadCapacity16 { allocation } => {
            (allocation, capacity::read_capacity_16(lun).to_vec())
        }
        Command::ReadDefectData { twelve, lists_and_format, allocation } => {
            (allocation, capacity::read_defect_data(twelve, lists_and_format))
        }
        Command::ReportTargetPortGroups { extended, allocation } => {
            (allocation, capacity::report_port_groups(view.target, extended))
        }
        Command::ReportOpcodes { which, timeouts, allocation } => {
            (allocation, opcodes::report(lun, which, timeouts)?)
        }
        Command::ReportTaskManagement { extended, allocation } => {
            (allocation, opcodes::report_task_management(extended))
        }
        Command::CopyOperatingParameters { allocation } => {
            (allocation, copy::operating_parameters())
        }
        Command::PersistentReserveIn { action, allocation } => {
            if view.admission.reserved {
                return Err(Refusal::Conflict);
            }
            (allocation, reservation::report(&view.state.reservations, action))
        }
        _ => return Err(Sense::INVALID_OPCODE.into()),
    };
    Ok(reply(request, allocation, data))
}

/// Nothing is to be done where nothing can be lost.
fn flush(view: &View<'_>, request: &Request) -> Plan {
    let is_needed = view.lun.volatile_write_cache && !view.lun.read_only;
    if is_needed { Plan::Flush { transfer: Transfer::none(request) } } else { done(request) }
}

/// Parameters of this many bytes; none are no parameters, and change nothing.
fn collect(request: &Request, parameters: Parameters, length: u64) -> Plan {
    if length == 0 {
        return done(request);
    }
    let transfer = Transfer::new(request, DataDirection::Out, length);
    Plan::Collect { parameters, transfer }
}

/// Checks that blocks are on the disk. Also no blocks have to be at a place that is.
fn check_range(lun: &Lun, medium: &Medium) -> Result<(), Sense> {
    let end = medium.lba.checked_add(medium.blocks.into());
    if medium.lba < lun.block_count && end.is_some_and(|end| end <= lun.block_count) {
        Ok(())
    } else {
        Err(Sense::LBA_OUT_OF_RANGE.at(crate::sense::FieldPointer {
            in_cdb: true,
            bit: None,
            byte: medium.lba_byte.into(),
        }))
    }
}
