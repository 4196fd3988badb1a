//! Commands that read or write blocks (SBC-4, clause 5).

use super::{Check, Parameters, Plan, Refused, SameData, View, check_range, done};
use crate::capacity;
use crate::cdb::{ByteCheck, Medium};
use crate::lun::Lun;
use crate::sense::Sense;
use crate::status::Refusal;
use crate::transfer::{DataDirection, Request, Transfer};
use crate::unmap::Blocks;

type Planned = Result<Plan, Refusal>;

/// Fails if the medium must not be written.
fn check_writable(view: &View<'_>) -> Result<(), Sense> {
    if view.lun.read_only {
        Err(Sense::WRITE_PROTECTED)
    } else if view.state.mode.software_write_protect {
        Err(Sense::SOFTWARE_WRITE_PROTECTED)
    } else {
        Ok(())
    }
}

/// Fails if a command is for more blocks than the page Block Limits allows.
fn check_length(lun: &Lun, medium: &Medium) -> Result<(), Sense> {
    if medium.blocks <= lun.max_transfer_blocks() {
        Ok(())
    } else {
        Err(Sense::bad_cdb(medium.length_byte.into()))
    }
}

fn byte_count(lun: &Lun, blocks: u32) -> u64 {
    u64::from(blocks) * u64::from(lun.block_size)
}

/// The command needs stable media, or the initiator has turned the cache off.
fn is_durable(view: &View<'_>, medium: &Medium) -> bool {
    view.lun.volatile_write_cache && (medium.fua || !view.state.mode.write_cache)
}

/// What the initiator expects to move is not what the command moves.
fn wrong_length(transfer: Transfer) -> Plan {
    let why = Refusal::Check(Sense::INVALID_TRANSFER_LENGTH);
    Plan::Refuse(Refused { why, residual: transfer.residual })
}

pub(super) fn read(view: &View<'_>, request: &Request, medium: &Medium) -> Planned {
    check_range(view.lun, medium)?;
    check_length(view.lun, medium)?;
    let needed = byte_count(view.lun, medium.blocks);
    let transfer = Transfer::new(request, DataDirection::In, needed);
    let count = u64::from(transfer.bytes.div_ceil(view.lun.block_size));
    let fua = view.lun.volatile_write_cache && medium.fua;
    Ok(Plan::Read { blocks: Blocks { lba: medium.lba, count }, fua, transfer })
}

/// The blocks and the transfer of a command that writes as many blocks as it receives.
///
/// `Err`: the initiator announces a part of a block, which is not written.
fn written(
    view: &View<'_>,
    request: &Request,
    medium: &Medium,
) -> Result<Result<(Blocks, Transfer), Plan>, Refusal> {
    check_range(view.lun, medium)?;
    check_writable(view)?;
    check_length(view.lun, medium)?;
    let needed = byte_count(view.lun, medium.blocks);
    let transfer = Transfer::new(request, DataDirection::Out, needed);
    if !transfer.bytes.is_multiple_of(view.lun.block_size) {
        return Ok(Err(wrong_length(transfer)));
    }
    let count = u64::from(transfer.bytes / view.lun.block_size);
    Ok(Ok((Blocks { lba: medium.lba, count }, transfer)))
}

pub(super) fn write(view: &View<'_>, request: &Request, medium: &Medium) -> Planned {
    let fua = is_durable(view, medium);
    Ok(match written(view, request, medium)? {
        Ok((blocks, transfer)) => Plan::Write { blocks, fua, transfer },
        Err(refused) => refused,
    })
}

pub(super) fn or_write(view: &View<'_>, request: &Request, medium: &Medium) -> Planned {
    let fua = is_durable(view, medium);
    Ok(match written(view, request, medium)? {
        Ok((blocks, transfer)) => Plan::OrWrite { blocks, fua, transfer },
        Err(refused) => refused,
    })
}

pub(super) fn write_and_verify(
    view: &View<'_>,
    request: &Request,
    medium: &Medium,
    check: ByteCheck,
) -> Planned {
    let check = if check == ByteCheck::Readable { Check::Readable } else { Check::Data };
    Ok(match written(view, request, medium)? {
        Ok((blocks, transfer)) => Plan::WriteAndVerify { blocks, check, transfer },
        Err(refused) => refused,
    })
}

pub(super) fn verify(
    view: &View<'_>,
    request: &Request,
    medium: &Medium,
    check: ByteCheck,
) -> Planned {
    let lun = view.lun;
    check_range(lun, medium)?;
    check_length(lun, medium)?;
    let (check, needed) = match check {
        ByteCheck::Readable => (Check::Readable, 0),
        ByteCheck::Data => (Check::Data, medium.blocks),
        ByteCheck::OneBlock => (Check::OneBlock, medium.blocks.min(1)),
    };
    let needed = byte_count(lun, needed);
    let transfer = Transfer::new(request, DataDirection::Out, needed);
    if u64::from(transfer.bytes) < needed {
        return Ok(wrong_length(transfer)); // what did not come was not compared
    }
    if medium.blocks == 0 {
        return Ok(done(request));
    }
    let blocks = Blocks { lba: medium.lba, count: medium.blocks.into() };
    Ok(Plan::Verify { blocks, check, transfer })
}

pub(super) fn compare_and_write(view: &View<'_>, request: &Request, medium: &Medium) -> Planned {
    let lun = view.lun;
    check_range(lun, medium)?;
    check_writable(view)?;
    if medium.blocks > u32::from(lun.limits.max_compare_and_write_blocks) {
        return Err(Sense::bad_cdb(medium.length_byte.into()).into());
    }
    let needed = 2 * byte_count(lun, medium.blocks);
    let transfer = Transfer::new(request, DataDirection::Out, needed);
    if u64::from(request.edtl) > needed && request.direction == DataDirection::Out {
        // the initiator has more blocks than the field says, e.g. 256, for which it has no room
        return Err(Sense::bad_cdb(medium.length_byte.into()).into());
    }
    if !transfer.is_exact() {
        return Ok(wrong_length(transfer));
    }
    if medium.blocks == 0 {
        return Ok(done(request));
    }
    let blocks = Blocks { lba: medium.lba, count: medium.blocks.into() };
    Ok(Plan::CompareAndWrite { blocks, fua: is_durable(view, medium), transfer })
}

/// The blocks of a command for which 0 blocks are all to the end of the disk.
pub(super) fn to_the_end(lun: &Lun, medium: &Medium) -> Result<Blocks, Sense> {
    check_range(lun, medium)?;
    let count = match medium.blocks {
        0 => lun.block_count - medium.lba,
        blocks => blocks.into(),
    };
    Ok(Blocks { lba: medium.lba, count })
}

pub(super) fn write_same(
    view: &View<'_>,
    request: &Request,
    medium: &Medium,
    unmap: bool,
    no_data: bool,
) -> Planned {
    let lun = view.lun;
    if unmap && !lun.deallocate {
        // What must not be written cannot deallocate either, and that is the reason to give.
        check_writable(view)?;
        return Err(Sense::bad_cdb_bit(1, 3).into());
    }
    check_range(lun, medium)?;
    check_writable(view)?;
    let blocks = Blocks { lba: medium.lba, count: medium.blocks.into() };
    let most = lun.limits.max_write_same_blocks;
    if blocks.count == 0 || most != 0 && blocks.count > most {
        return Err(Sense::bad_cdb(medium.length_byte.into()).into());
    }
    let needed = if no_data { 0 } else { byte_count(lun, 1) };
    let transfer = Transfer::new(request, DataDirection::Out, needed);
    if !no_data && !transfer.is_exact() {
        return Ok(wrong_length(transfer));
    }
    let data = if no_data { SameData::Zeroes } else { SameData::Transfer };
    let fua = lun.volatile_write_cache && !view.state.mode.write_cache;
    let deallocate = unmap && lun.deallocate_zeroes;
    Ok(Plan::WriteSame { blocks, data, deallocate, fua, transfer })
}

pub(super) fn unmap(view: &View<'_>, request: &Request, length: u16) -> Planned {
    check_writable(view)?;
    Ok(super::collect(request, Parameters::Unmap, length.into()))
}

/// A disk that does not know its holes is all mapped.
pub(super) fn lba_status(lun: &Lun, request: &Request, lba: u64, allocation: u32) -> Planned {
    if lba >= lun.block_count {
        return Err(Sense::LBA_OUT_OF_RANGE.into());
    }
    if lun.knows_holes {
        return Ok(Plan::LbaStatus { lba, allocation });
    }
    let end = lun.block_count;
    let all = 0..end.saturating_mul(lun.block_size.into());
    let data = capacity::lba_status(lun, lba, end, std::slice::from_ref(&all));
    Ok(Plan::Reply(super::cut(request, allocation, data)))
}
