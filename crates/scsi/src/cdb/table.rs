//! The table of all commands.

use raceline_proto::reservation::AccessGroup;

use super::{
    ByteCheck, Cdb, Command, ModeSelect, ModeSense, PageControl, ReportOpcodes, ReserveInAction,
    ReserveOut, ReserveOutAction,
};
use crate::lun::Lun;
use crate::sense::Sense;

/// What a command does, as far as reservations care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// As this group of commands (SPC-5, table 79; SBC-4, table 13).
    Group(AccessGroup),
    /// As [`AccessGroup::Exempt`], and it also runs while another I_T nexus holds the logical unit by Reserve.
    Always,
    /// Start Stop Unit: exempt if it starts the unit and names no power condition, else it writes.
    StartStop,
    /// Prevent Allow Medium Removal: exempt if it allows, else it writes.
    PreventAllow,
}

/// What a logical unit needs for a command to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Nothing.
    Disk,
    /// It can deallocate.
    Deallocate,
    /// It has a limit of Compare and Write other than 0.
    CompareAndWrite,
}

/// A command.
#[derive(Debug)]
pub struct Row {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, if the operation code has any.
    pub service_action: Option<u8>,
    /// Its name.
    pub name: &'static str,
    /// The bits of the CDB that are evaluated (SPC-5, 6.37.3), as long as the CDB.
    pub usage: &'static [u8],
    /// What reservations leave of it.
    pub access: Access,
    /// It runs although a unit attention is pending.
    pub ignores_attentions: bool,
    /// What it needs.
    pub needs: Feature,
    pub(super) parse: fn(Cdb<'_>, usize) -> Result<Command, Sense>,
}

impl Row {
    /// Bytes of its CDB.
    #[must_use]
    pub fn cdb_len(&self) -> usize {
        self.usage.len()
    }

    /// Whether a logical unit has it.
    #[must_use]
    pub fn is_supported_by(&self, lun: &Lun) -> bool {
        match self.needs {
            Feature::Disk => true,
            Feature::Deallocate => lun.deallocate,
            Feature::CompareAndWrite => lun.limits.max_compare_and_write_blocks > 0,
        }
    }

    /// What it does, for reservations; `None`: [`Access::Always`].
    pub(crate) fn group(&self, cdb: &[u8; 16]) -> Option<AccessGroup> {
        let exempt_if = |is_exempt| {
            if is_exempt { AccessGroup::Exempt } else { AccessGroup::Write }
        };
        match self.access {
            Access::Group(group) => Some(group),
            Access::Always => None,
            Access::StartStop => Some(exempt_if(cdb[4] & 0x01 != 0 && cdb[4] >> 4 == 0)),
            Access::PreventAllow => Some(exempt_if(cdb[4] & 0x03 == 0)),
        }
    }
}

/// The commands of an operation code, by ascending service action.
pub fn rows_of(opcode: u8) -> impl Iterator<Item = &'static Row> {
    let first = FIRST_ROW[usize::from(opcode)];
    let rows = COMMANDS.get(usize::from(first)..).unwrap_or_default();
    rows.iter().take_while(move |row| row.opcode == opcode)
}

/// The command of a CDB.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE if there is no such operation code, INVALID FIELD IN CDB if it has no such service
/// action.
pub fn find_row(cdb: &[u8; 16]) -> Result<&'static Row, Sense> {
    let place = usize::from(FIRST_ROW[usize::from(cdb[0])]);
    match COMMANDS.get(place) {
        Some(row) if row.service_action.is_none() => Ok(row),
        Some(_) => find_action(cdb),
        None => Err(Sense::INVALID_OPCODE),
    }
}

fn find_action(cdb: &[u8; 16]) -> Result<&'static Row, Sense> {
    let action = cdb[1] & 0x1f;
    let row = rows_of(cdb[0]).find(|row| row.service_action == Some(action));
    row.ok_or(Sense::bad_cdb_bit(1, 4))
}

/// For each operation code, its first row; where there is none, a number past the end.
static FIRST_ROW: [u8; 256] = {
    let mut first = [u8::MAX; 256];
    let mut row = COMMANDS.len();
    while row > 0 {
        row -= 1;
        assert!(row < 255);
        #[expect(clippy::cast_possible_truncation, reason = "checked above; try_from is not const")]
        let number = row as u8;
        first[COMMANDS[row].opcode as usize] = number;
    }
    first
};

const READ: Access = Access::Group(AccessGroup::Read);
const WRITE: Access = Access::Group(AccessGroup::Write);
const EXEMPT: Access = Access::Group(AccessGroup::Exempt);

/// Makes a row: operation code, service action, name, usage, access, parser.
macro_rules! row {
    ($name:literal, $usage:expr, $access:expr, $parse:expr $(, $field:ident = $value:expr)*) => {
        Row {
            name: $name,
            access: $access,
            parse: $parse,
            $($field: $value,)*
            ..Row { opcode: $usage[0], usage: $usage, ..PLAIN }
        }
    };
}

const PLAIN: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[0],
    access: EXEMPT,
    ignores_attentions: false,
    needs: Feature::Disk,
    parse: |_, _| Err(Sense::INVALID_OPCODE),
};

const F: u8 = 0xff;

/// All commands, by ascending operation code and service action.
pub static COMMANDS: &[Row] = ROWS;

const ROWS: &[Row] = &[
    row!("TEST UNIT READY", &[0x00, 0, 0, 0, 0, 0], EXEMPT, |_, _| Ok(Command::TestUnitReady)),
    row!(
        "REQUEST SENSE",
        &[0x03, 0x01, 0, 0, F, 0],
        Access::Always,
        request_sense,
        ignores_attentions = true
    ),
    row!("READ (6)", &[0x08, 0x1f, F, F, F, 0], READ, |cdb, _| Ok(Command::Read(cdb.medium_6()))),
    row!("WRITE (6)", &[0x0a, 0x1f, F, F, F, 0], WRITE, |cdb, _| Ok(Command::Write(
        cdb.medium_6()
    ))),
    row!("INQUIRY", &[0x12, 0x01, F, F, F, 0], Access::Always, inquiry, ignores_attentions = true),
    row!("MODE SELECT (6)", &[0x15, 0x11, 0, 0, F, 0], WRITE, mode_select),
    row!("RESERVE (6)", &[0x16, 0, 0, 0, 0, 0], EXEMPT, reserve),
    row!("RELEASE (6)", &[0x17, 0, 0, 0, 0, 0], Access::Always, release),
    row!("MODE SENSE (6)", &[0x1a, 0x08, F, F, F, 0], READ, mode_sense),
    row!("START STOP UNIT", &[0x1b, 0x01, 0, 0x0f, 0xf7, 0], Access::StartStop, start_stop),
    row!(
        "PREVENT ALLOW MEDIUM REMOVAL",
        &[0x1e, 0, 0, 0, 0x03, 0],
        Access::PreventAllow,
        |_, _| Ok(Command::PreventAllowMediumRemoval)
    ),
    row!("READ CAPACITY (10)", &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], EXEMPT, |_, _| Ok(
        Command::ReadCapacity10
    )),
    row!("READ (10)", &[0x28, 0x18, F, F, F, F, 0, F, F, 0], READ, read),
    row!("WRITE (10)", &[0x2a, 0x18, F, F, F, F, 0, F, F, 0], WRITE, write),
    row!("WRITE AND VERIFY (10)", &[0x2e, 0x16, F, F, F, F, 0, F, F, 0], WRITE, write_and_verify),
    row!("VERIFY (10)", &[0x2f, 0x16, F, F, F, F, 0, F, F, 0], READ, verify),
    row!("PRE-FETCH (10)", &[0x34, 0x02, F, F, F, F, 0, F, F, 0], READ, pre_fetch),
    row!("SYNCHRONIZE CACHE (10)", &[0x35, 0x02, F, F, F, F, 0, F, F, 0], WRITE, synchronize),
    row!("READ DEFECT DATA (10)", &[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, 0], READ, defects_10),
    row!("WRITE SAME (10)", &[0x41, 0x08, F, F, F, F, 0, F, F, 0], WRITE, write_same),
    row!("UNMAP", &[0x42, 0, 0, 0, 0, 0, 0, F, F, 0], WRITE, unmap, needs = Feature::Deallocate),
    row!("MODE SELECT (10)", &[0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0], WRITE, mode_select),
    row!("RESERVE (10)", &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], EXEMPT, reserve),
    row!("RELEASE (10)", &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], Access::Always, release),
    row!("MODE SENSE (10)", &[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0], READ, mode_sense),
    row!(
        "PERSISTENT RESERVE IN, READ KEYS",
        &[0x5e, 0x00, 0, 0, 0, 0, 0, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_in(cdb, ReserveInAction::Keys),
        service_action = Some(0)
    ),
    row!(
        "PERSISTENT RESERVE IN, READ RESERVATION",
        &[0x5e, 0x01, 0, 0, 0, 0, 0, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_in(cdb, ReserveInAction::Reservation),
        service_action = Some(1)
    ),
    row!(
        "PERSISTENT RESERVE IN, REPORT CAPABILITIES",
        &[0x5e, 0x02, 0, 0, 0, 0, 0, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_in(cdb, ReserveInAction::Capabilities),
        service_action = Some(2)
    ),
    row!(
        "PERSISTENT RESERVE IN, READ FULL STATUS",
        &[0x5e, 0x03, 0, 0, 0, 0, 0, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_in(cdb, ReserveInAction::FullStatus),
        service_action = Some(3)
    ),
    row!(
        "PERSISTENT RESERVE OUT, REGISTER",
        &[0x5f, 0x00, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::Register),
        service_action = Some(0)
    ),
    row!(
        "PERSISTENT RESERVE OUT, RESERVE",
        &[0x5f, 0x01, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::Reserve),
        service_action = Some(1)
    ),
    row!(
        "PERSISTENT RESERVE OUT, RELEASE",
        &[0x5f, 0x02, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::Release),
        service_action = Some(2)
    ),
    row!(
        "PERSISTENT RESERVE OUT, CLEAR",
        &[0x5f, 0x03, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::Clear),
        service_action = Some(3)
    ),
    row!(
        "PERSISTENT RESERVE OUT, PREEMPT",
        &[0x5f, 0x04, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::Preempt),
        service_action = Some(4)
    ),
    row!(
        "PERSISTENT RESERVE OUT, PREEMPT AND ABORT",
        &[0x5f, 0x05, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::PreemptAndAbort),
        service_action = Some(5)
    ),
    row!(
        "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        &[0x5f, 0x06, F, 0, 0, F, F, F, F, 0],
        EXEMPT,
        |cdb, _| reserve_out(cdb, ReserveOutAction::RegisterAndIgnore),
        service_action = Some(6)
    ),
    row!(
        "EXTENDED COPY (LID1)",
        &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0],
        WRITE,
        |cdb, _| Ok(Command::ExtendedCopy { length: cdb.u32(10) }),
        service_action = Some(0)
    ),
    row!(
        "RECEIVE COPY STATUS (LID1)",
        &[0x84, 0x00, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0],
        WRITE,
        |cdb, _| Ok(Command::ReceiveCopyStatus { id: cdb.0[2], allocation: cdb.u32(10) }),
        service_action = Some(0)
    ),
    row!(
        "RECEIVE COPY OPERATING PARAMETERS",
        &[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0],
        WRITE,
        |cdb, _| Ok(Command::CopyOperatingParameters { allocation: cdb.u32(10) }),
        service_action = Some(3)
    ),
    row!("READ (16)", &[0x88, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], READ, read),
    row!(
        "COMPARE AND WRITE",
        &[0x89, 0x18, F, F, F, F, F, F, F, F, 0, 0, 0, F, 0, 0],
        WRITE,
        compare_and_write,
        needs = Feature::CompareAndWrite
    ),
    row!("WRITE (16)", &[0x8a, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], WRITE, write),
    row!("ORWRITE (16)", &[0x8b, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], WRITE, or_write),
    row!(
        "WRITE AND VERIFY (16)",
        &[0x8e, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
        WRITE,
        write_and_verify
    ),
    row!("VERIFY (16)", &[0x8f, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], READ, verify),
    row!(
        "PRE-FETCH (16)",
        &[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
        READ,
        pre_fetch
    ),
    row!(
        "SYNCHRONIZE CACHE (16)",
        &[0x91, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
        WRITE,
        synchronize
    ),
    row!(
        "WRITE SAME (16)",
        &[0x93, 0x09, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
        WRITE,
        write_same
    ),
    row!(
        "READ CAPACITY (16)",
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0],
        EXEMPT,
        |cdb, _| Ok(Command::ReadCapacity16 { allocation: cdb.u32(10) }),
        service_action = Some(0x10)
    ),
    row!(
        "GET LBA STATUS (16)",
        &[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
        READ,
        |cdb, _| Ok(Command::GetLbaStatus { lba: cdb.u64(2), allocation: cdb.u32(10) }),
        service_action = Some(0x12)
    ),
    row!(
        "REPORT LUNS",
        &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0],
        Access::Always,
        report_luns,
        ignores_attentions = true
    ),
    row!(
        "REPORT TARGET PORT GROUPS",
        &[0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, 0],
        EXEMPT,
        report_groups,
        service_action = Some(0x0a)
    ),
    row!(
        "REPORT SUPPORTED OPERATION CODES",
        &[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, 0],
        READ,
        report_opcodes,
        service_action = Some(0x0c)
    ),
    row!(
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        &[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, 0],
        READ,
        |cdb, _| Ok(Command::ReportTaskManagement {
            extended: cdb.bit(2, 7),
            allocation: cdb.u32(6),
        }),
        service_action = Some(0x0d)
    ),
    row!("READ (12)", &[0xa8, 0x18, F, F, F, F, F, F, F, F, 0, 0], READ, read),
    row!("WRITE (12)", &[0xaa, 0x18, F, F, F, F, F, F, F, F, 0, 0], WRITE, write),
    row!(
        "WRITE AND VERIFY (12)",
        &[0xae, 0x16, F, F, F, F, F, F, F, F, 0, 0],
        WRITE,
        write_and_verify
    ),
    row!("VERIFY (12)", &[0xaf, 0x16, F, F, F, F, F, F, F, F, 0, 0], READ, verify),
    row!("READ DEFECT DATA (12)", &[0xb7, 0x1f, F, F, F, F, F, F, F, F, 0, 0], READ, defects_12),
];

type Parsed = Result<Command, Sense>;

fn request_sense(cdb: Cdb<'_>, _: usize) -> Parsed {
    Ok(Command::RequestSense { descriptors: cdb.bit(1, 0), allocation: cdb.0[4].into() })
}

fn inquiry(cdb: Cdb<'_>, _: usize) -> Parsed {
    let (evpd, page) = (cdb.bit(1, 0), cdb.0[2]);
    if !evpd && page != 0 {
        return Err(Sense::bad_cdb(2));
    }
    if cdb.bit(1, 1) {
        return Err(Sense::bad_cdb_bit(1, 1)); // CMDDT, of SPC-2
    }
    Ok(Command::Inquiry { page: evpd.then_some(page), allocation: cdb.u16(3).into() })
}

fn mode_sense(cdb: Cdb<'_>, len: usize) -> Parsed {
    let ten = len == 10;
    let control = match cdb.0[2] >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => PageControl::Saved,
    };
    Ok(Command::ModeSense(ModeSense {
        ten,
        no_block_descriptors: cdb.bit(1, 3),
        long_lba: ten && cdb.bit(1, 4),
        control,
        page: cdb.0[2] & 0x3f,
        subpage: cdb.0[3],
        allocation: if ten { cdb.u16(7).into() } else { cdb.0[4].into() },
    }))
}

fn mode_select(cdb: Cdb<'_>, len: usize) -> Parsed {
    let ten = len == 10;
    if !cdb.bit(1, 4) {
        return Err(Sense::bad_cdb_bit(1, 4)); // PF: pages as in the standards
    }
    if cdb.bit(1, 0) {
        return Err(Sense::bad_cdb_bit(1, 0)); // SP: nothing can be saved
    }
    if cdb.bit(1, 1) {
        return Err(Sense::bad_cdb_bit(1, 1)); // RTD
    }
    let length = if ten { cdb.u16(7) } else { cdb.0[4].into() };
    Ok(Command::ModeSelect(ModeSelect { ten, length }))
}

/// Reserve: for the I_T nexus itself, and the whole logical unit (SPC-2, 7.21).
fn reserve(cdb: Cdb<'_>, len: usize) -> Parsed {
    refuse_third_party(cdb, len)?;
    Ok(Command::Reserve)
}

fn release(cdb: Cdb<'_>, len: usize) -> Parsed {
    refuse_third_party(cdb, len)?;
    Ok(Command::Release)
}

/// 3RDPTY, and what SCSI-2 had for extents.
fn refuse_third_party(cdb: Cdb<'_>, len: usize) -> Result<(), Sense> {
    let bits: &[u8] = if len == 10 { &[4, 1, 0] } else { &[4, 0] };
    match bits.iter().find(|bit| cdb.bit(1, **bit)) {
        Some(bit) => Err(Sense::bad_cdb_bit(1, *bit)),
        None => Ok(()),
    }
}

/// LOEJ without a medium that can be removed is refused; power conditions are taken and have no effect.
fn start_stop(cdb: Cdb<'_>, _: usize) -> Parsed {
    let power_condition = cdb.0[4] >> 4;
    if power_condition == 0 && cdb.bit(4, 1) {
        return Err(Sense::bad_cdb_bit(4, 1));
    }
    let stops = power_condition == 0 && !cdb.bit(4, 0);
    Ok(Command::StartStopUnit { flush: stops && !cdb.bit(4, 2) })
}

fn read(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    Ok(Command::Read(cdb.medium(len)))
}

fn write(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    Ok(Command::Write(cdb.medium(len)))
}

fn or_write(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    Ok(Command::OrWrite(cdb.medium(len)))
}

fn write_and_verify(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    match cdb.byte_check()? {
        ByteCheck::OneBlock => Err(Sense::bad_cdb_bit(1, 2)),
        check => Ok(Command::WriteAndVerify(cdb.medium(len), check)),
    }
}

fn verify(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    Ok(Command::Verify(cdb.medium(len), cdb.byte_check()?))
}

fn pre_fetch(cdb: Cdb<'_>, len: usize) -> Parsed {
    Ok(Command::PreFetch(cdb.medium(len)))
}

fn synchronize(cdb: Cdb<'_>, len: usize) -> Parsed {
    Ok(Command::SynchronizeCache(cdb.medium(len)))
}

fn compare_and_write(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    let mut medium = cdb.medium(len);
    (medium.blocks, medium.length_byte) = (cdb.0[13].into(), 13);
    Ok(Command::CompareAndWrite(medium))
}

fn write_same(cdb: Cdb<'_>, len: usize) -> Parsed {
    cdb.refuse_protection()?;
    if cdb.bit(1, 4) {
        return Err(Sense::bad_cdb_bit(1, 4)); // ANCHOR (ANC_SUP is 0)
    }
    if cdb.0[1] & 0x06 != 0 {
        return Err(Sense::bad_cdb_bit(1, 2)); // PBDATA and LBDATA, of SBC-2
    }
    let no_data = len == 16 && cdb.bit(1, 0);
    Ok(Command::WriteSame { medium: cdb.medium(len), unmap: cdb.bit(1, 3), no_data })
}

fn unmap(cdb: Cdb<'_>, _: usize) -> Parsed {
    if cdb.bit(1, 0) {
        return Err(Sense::bad_cdb_bit(1, 0)); // ANCHOR (ANC_SUP is 0)
    }
    Ok(Command::Unmap { length: cdb.u16(7) })
}

fn defects_10(cdb: Cdb<'_>, _: usize) -> Parsed {
    let lists_and_format = cdb.0[2] & 0x1f;
    let allocation = cdb.u16(7).into();
    Ok(Command::ReadDefectData { twelve: false, lists_and_format, allocation })
}

fn defects_12(cdb: Cdb<'_>, _: usize) -> Parsed {
    let lists_and_format = cdb.0[1] & 0x1f;
    Ok(Command::ReadDefectData { twelve: true, lists_and_format, allocation: cdb.u32(6) })
}

fn report_luns(cdb: Cdb<'_>, _: usize) -> Parsed {
    let (select, allocation) = (cdb.0[2], cdb.u32(6));
    if select > 2 {
        return Err(Sense::bad_cdb(2));
    }
    if allocation < 16 {
        return Err(Sense::bad_cdb(6));
    }
    Ok(Command::ReportLuns { select, allocation })
}

fn report_groups(cdb: Cdb<'_>, _: usize) -> Parsed {
    let extended = match cdb.0[1] >> 5 {
        0 => false,
        1 => true,
        _ => return Err(Sense::bad_cdb_bit(1, 7)),
    };
    Ok(Command::ReportTargetPortGroups { extended, allocation: cdb.u32(6) })
}

fn report_opcodes(cdb: Cdb<'_>, _: usize) -> Parsed {
    let (opcode, action) = (cdb.0[3], cdb.u16(4));
    let which = match cdb.0[2] & 0x07 {
        0 => ReportOpcodes::All,
        1 => ReportOpcodes::Opcode(opcode),
        2 => ReportOpcodes::ServiceAction(opcode, action),
        3 => ReportOpcodes::Either(opcode, action),
        _ => return Err(Sense::bad_cdb_bit(2, 2)),
    };
    Ok(Command::ReportOpcodes { which, timeouts: cdb.bit(2, 7), allocation: cdb.u32(6) })
}

fn reserve_in(cdb: Cdb<'_>, action: ReserveInAction) -> Parsed {
    Ok(Command::PersistentReserveIn { action, allocation: cdb.u16(7).into() })
}

fn reserve_out(cdb: Cdb<'_>, action: ReserveOutAction) -> Parsed {
    let out = ReserveOut { action, scope_and_type: cdb.0[2], length: cdb.u32(5) };
    Ok(Command::PersistentReserveOut(out))
}
