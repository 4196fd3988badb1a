//! Copy: its words, its source ranges, and the limits that Identify tells (NVM Command Set 1.0, 3.2.2).

use zerocopy::FromBytes;

use super::extent::{check_range, refuse_read_only};
use super::sgl::sgl_transfer;
use super::subsystem::Namespace;
use crate::nvme::rw::{
    BlockRange, COPY_FORMAT, COPY_PROTECTION_INFO_READ, CopyRange, FORCE_UNIT_ACCESS,
    PROTECTION_INFO,
};
use crate::nvme::{Direction, Sqe, Status, Transfer};

/// Most ranges of a Copy (MSRC + 1).
pub const COPY_RANGES: u16 = 128;
/// Most bytes of a range (MSSRL).
const RANGE_BYTES: u32 = 1 << 20;
/// Most bytes of a Copy (MCL): it holds nobody up for long.
const TOTAL_BYTES: u32 = 16 << 20;

/// MSSRL, MCL and MSRC of a namespace with blocks of this size: blocks of a range, blocks of all ranges, and
/// ranges, 0's based.
pub(super) fn copy_limits(block_size: u32) -> (u16, u32, u8) {
    let block_size = block_size.max(1);
    let range = u16::try_from(RANGE_BYTES / block_size).unwrap_or(u16::MAX).max(1);
    let last_range = u8::try_from(COPY_RANGES - 1).unwrap_or(u8::MAX);
    (range, (TOTAL_BYTES / block_size).max(1), last_range)
}

/// What the words of a Copy say.
pub(super) struct CopyWords {
    pub(super) sdlba: u64,
    pub(super) ranges: u16,
    pub(super) fua: bool,
}

/// The data may be longer than the ranges take.
pub(super) fn parse_copy(
    sqe: &Sqe,
    info: &Namespace,
    max_bytes: u32,
) -> Result<(CopyWords, Transfer), Status> {
    let word = sqe.cdw12.get();
    if word & (COPY_FORMAT | COPY_PROTECTION_INFO_READ | PROTECTION_INFO) != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let ranges = u16::from(word.to_le_bytes()[0]) + 1;
    if ranges > COPY_RANGES {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr());
    }
    let transfer = sgl_transfer(sqe, Direction::HostToController, max_bytes)?;
    if u64::from(transfer.len) < u64::from(ranges) * CopyRange::LEN as u64 {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    let sdlba = BlockRange::parse(sqe).slba;
    check_range(sdlba, 1, info)?;
    refuse_read_only(info)?;
    let fua = word & FORCE_UNIT_ACCESS != 0;
    Ok((CopyWords { sdlba, ranges, fua }, transfer))
}

/// The first block and the number of blocks of a source range, if the data have it.
#[must_use]
pub fn copy_range(data: &[u8], place: u16) -> Option<(u64, u32)> {
    let at = usize::from(place) * CopyRange::LEN;
    let (range, _) = CopyRange::read_from_prefix(data.get(at..)?).ok()?;
    Some((range.slba.get(), u32::from(range.nlb.get()) + 1))
}

/// Checks the source ranges of a Copy to `sdlba` before anything is written.
///
/// # Errors
/// The place of the first range that is wrong, and the status to complete the command with.
pub fn check_copy(
    data: &[u8],
    ranges: u16,
    sdlba: u64,
    namespace: &Namespace,
) -> Result<(), (u16, Status)> {
    let (range_blocks, total_blocks, _) = copy_limits(namespace.block_size);
    let mut total: u32 = 0;
    for place in 0..ranges {
        let wrong = |status: Status| (place, status.dnr());
        let found = copy_range(data, place);
        let (slba, blocks) = found.ok_or(wrong(Status::DATA_SGL_LENGTH_INVALID))?;
        total = total.saturating_add(blocks);
        if blocks > u32::from(range_blocks) || total > total_blocks {
            return Err(wrong(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
        }
        check_range(slba, blocks, namespace).map_err(wrong)?;
        check_range(sdlba, total, namespace).map_err(wrong)?;
    }
    for place in 0..ranges {
        let Some((slba, blocks)) = copy_range(data, place) else { continue };
        let (end, written) = (slba + u64::from(blocks), sdlba..sdlba + u64::from(total));
        if slba < written.end && written.start < end {
            return Err((place, Status::OVERLAPPING_IO_RANGE.dnr()));
        }
    }
    Ok(())
}
