//! Report Supported Operation Codes and Task Management Functions (SPC-5, 6.37 and 6.38).

use crate::cdb::{COMMANDS, ReportOpcodes, Row, rows_of};
use crate::lun::Lun;
use crate::sense::Sense;

/// SUPPORT: the command does not exist.
const NOT_SUPPORTED: u8 = 1;
/// SUPPORT: the command is as in the standard.
const SUPPORTED: u8 = 3;

/// The parameter data of Report Supported Operation Codes.
///
/// # Errors
/// INVALID FIELD IN CDB if the command asked for has service actions and none is named, or the other way round.
pub fn report(lun: &Lun, which: ReportOpcodes, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let (opcode, action) = match which {
        ReportOpcodes::All => return Ok(report_all(lun, timeouts)),
        ReportOpcodes::Opcode(opcode) => {
            if rows_of(opcode).any(|row| row.service_action.is_some()) {
                return Err(Sense::bad_cdb_bit(2, 2));
            }
            (opcode, None)
        }
        ReportOpcodes::ServiceAction(opcode, action) => {
            if rows_of(opcode).any(|row| row.service_action.is_none()) {
                return Err(Sense::bad_cdb_bit(2, 2));
            }
            (opcode, Some(action))
        }
        ReportOpcodes::Either(opcode, action) => {
            let has_actions = rows_of(opcode).any(|row| row.service_action.is_some());
            (opcode, (has_actions || action != 0).then_some(action))
        }
    };
    let mut rows = rows_of(opcode).filter(|row| row.is_supported_by(lun));
    let found = rows.find(|row| row.service_action.map(u16::from) == action);
    Ok(report_one(found, timeouts))
}

/// The length of all descriptors, then one for each command.
fn report_all(lun: &Lun, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for row in COMMANDS.iter().filter(|row| row.is_supported_by(lun)) {
        data.extend([row.opcode, 0]);
        data.extend(u16::from(row.service_action.unwrap_or(0)).to_be_bytes());
        let has_action = u8::from(row.service_action.is_some()); // SERVACTV
        data.extend([0, has_action | u8::from(timeouts) << 1]); // CTDP
        data.extend(cdb_len(row).to_be_bytes());
        if timeouts {
            put_timeouts(&mut data);
        }
    }
    let len = u32::try_from(data.len() - 4).expect("one table");
    data[..4].copy_from_slice(&len.to_be_bytes());
    data
}

/// Whether the command is supported, and its usage data.
fn report_one(row: Option<&Row>, timeouts: bool) -> Vec<u8> {
    let Some(row) = row else { return vec![0, NOT_SUPPORTED, 0, 0] };
    let mut data = vec![0, SUPPORTED | u8::from(timeouts) << 7]; // CTDP
    data.extend(cdb_len(row).to_be_bytes());
    data.extend(row.usage);
    if timeouts {
        put_timeouts(&mut data);
    }
    data
}

fn cdb_len(row: &Row) -> u16 {
    u16::try_from(row.cdb_len()).expect("at most 16")
}

/// The command timeouts descriptor: its length, and zeroes, which say that nothing is known.
fn put_timeouts(data: &mut Vec<u8>) {
    data.extend([0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// Report Supported Task Management Functions: ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET and TARGET
/// RESET; with `extended`, also the 12 bytes of the long form, which has no timeouts.
#[must_use]
pub fn report_task_management(extended: bool) -> Vec<u8> {
    // byte 0: ATS 7, ATSS 6, CACAS 5, CTSS 4, LURS 3, QTS 2, TRS 1, WAKES 0; byte 1: QAES 2, QTSS 1, ITNRS 0
    let functions = [0xda, 0x00, 0, 0];
    let mut data = functions.to_vec();
    if extended {
        data[3] = 0x0c; // ADDITIONAL DATA LENGTH
        data.extend([0; 12]);
    }
    data
}
