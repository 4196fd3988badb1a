//! Copy: its words, its source ranges, and the limits that Identify tells (NVM Command Set 1.1, 3.3.2).

use zerocopy::FromBytes;

use super::extent::{check_range, refuse_read_only};
use super::sgl::sgl_transfer;
use super::subsystem::Namespace;
use crate::nvme::rw::{
    BlockRange, COPY_FORMAT, COPY_PROTECTION_INFO_READ, CopyRange, FORCE_UNIT_ACCESS,
    PROTECTION_INFO, SOURCE_FAST_COPY_ONLY,
};
use crate::nvme::{Direction, NamespaceId, Sqe, Status, Transfer};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCommand {
    /// SDLBA: the first block that is written.
    pub sdlba: u64,
    /// How many ranges, 1..=[`COPY_RANGES`].
    pub ranges: u16,
    /// The ranges name their namespaces: source range entries of format 2h, which a host has to enable
    /// ([`Controller::enables_copy_across`](super::Controller::enables_copy_across)). Otherwise, format 0h.
    pub across: bool,
    /// On stable media before it completes.
    pub fua: bool,
}

/// A source range of a Copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// SNSID; `None`: the namespace that is written.
    pub nsid: Option<NamespaceId>,
    /// First block.
    pub slba: u64,
    /// How many blocks, 1..=65536.
    pub block_count: u32,
    /// FCO: the host wants no other than a fast copy.
    fast_only: bool,
}

/// The data may be longer than the ranges take.
pub(super) fn parse_copy(
    sqe: &Sqe,
    info: &Namespace,
    max_bytes: u32,
) -> Result<(CopyCommand, Transfer), Status> {
    const FORMAT_2: u32 = 2 << 8;
    let word = sqe.cdw12.get();
    let across = match word & COPY_FORMAT {
        0 => false,
        FORMAT_2 => true,
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    if word & (COPY_PROTECTION_INFO_READ | PROTECTION_INFO) != 0 {
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
    Ok((CopyCommand { sdlba, ranges, across, fua }, transfer))
}

impl CopyCommand {
    /// A source range, if the data have it.
    #[must_use]
    pub fn source(&self, data: &[u8], place: u16) -> Option<CopySource> {
        let at = usize::from(place) * CopyRange::LEN;
        let (range, _) = CopyRange::read_from_prefix(data.get(at..)?).ok()?;
        Some(CopySource {
            nsid: self.across.then_some(NamespaceId(range.snsid.get())),
            slba: range.slba.get(),
            block_count: u32::from(range.nlb.get()) + 1,
            fast_only: self.across && range.sopt.get() & SOURCE_FAST_COPY_ONLY != 0,
        })
    }

    /// Checks the source ranges before anything is written to `target`. `namespace` finds those that the host may
    /// read.
    ///
    /// # Errors
    /// The place of the first range that is wrong, and the status to complete the command with.
    pub fn check<'a>(
        &self,
        data: &[u8],
        target: &Namespace,
        namespace: impl Fn(NamespaceId) -> Result<&'a Namespace, Status>,
    ) -> Result<(), (u16, Status)> {
        let (range_blocks, total_blocks, _) = copy_limits(target.block_size);
        let mut total: u32 = 0;
        for place in 0..self.ranges {
            let wrong = |status: Status| (place, status.dnr());
            let source = self.source(data, place);
            let source = source.ok_or(wrong(Status::DATA_SGL_LENGTH_INVALID))?;
            total = total.saturating_add(source.block_count);
            if source.block_count > u32::from(range_blocks) || total > total_blocks {
                return Err(wrong(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
            }
            // Whether a copy is faster than reads and writes of the host is never known here.
            if source.fast_only {
                return Err(wrong(Status::FAST_COPY_NOT_POSSIBLE));
            }
            let fits = match source.nsid {
                // Whether the host may retry, the state of an ANA group decides.
                Some(nsid) => {
                    source.check_in(namespace(nsid).map_err(|status| (place, status))?, target)
                }
                None => source.check_in(target, target),
            };
            fits.map_err(wrong)?;
            check_range(self.sdlba, total, target).map_err(wrong)?;
        }
        let written = self.sdlba..self.sdlba + u64::from(total);
        for place in 0..self.ranges {
            let Some(source) = self.source(data, place) else { continue };
            let end = source.slba + u64::from(source.block_count);
            let is_same = source.nsid.is_none_or(|nsid| nsid == target.nsid);
            if is_same && source.slba < written.end && written.start < end {
                return Err((place, Status::OVERLAPPING_IO_RANGE.dnr()));
            }
        }
        Ok(())
    }
}

impl CopySource {
    fn check_in(&self, namespace: &Namespace, target: &Namespace) -> Result<(), Status> {
        if namespace.block_size != target.block_size {
            return Err(Status::INCOMPATIBLE_NAMESPACE);
        }
        check_range(self.slba, self.block_count, namespace)
    }
}
