//! Submission queue entries of the commands; the sender fills in CID, PSDT and SGL.

use crate::nvme::opcode::{admin, fabrics, io};
use crate::nvme::{Direction, NamespaceId, Sqe, rw};

/// RAE: bit 15 of CDW10 of Get Log Page (Base 2.0, figure 197).
const RETAIN_ASYNCHRONOUS_EVENT: u32 = 1 << 15;
/// Bytes of one range of Dataset Management (NVM Command Set 1.0, figure 44).
pub const DEALLOCATE_RANGE_LEN: usize = 16;
/// Most ranges in one Dataset Management command.
pub const MAX_DEALLOCATE_RANGES: usize = rw::DATASET_RANGES_MAX as usize;

/// A run of logical blocks that fits one command: 1 to 65536 of them, not past 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    slba: u64,
    /// NLB: number of logical blocks, 0's based.
    nlb: u16,
}

impl BlockRange {
    /// Most blocks of one command.
    pub const MAX_BLOCKS: u32 = 1 << 16;

    /// `block_count` blocks from `slba`; `None` when no command can carry that.
    #[must_use]
    pub fn new(slba: u64, block_count: u32) -> Option<Self> {
        let nlb = u16::try_from(block_count.checked_sub(1)?).ok()?;
        slba.checked_add(u64::from(nlb))?;
        Some(Self { slba, nlb })
    }

    /// First block.
    #[must_use]
    pub fn slba(self) -> u64 {
        self.slba
    }

    /// Number of blocks.
    #[must_use]
    pub fn block_count(self) -> u32 {
        u32::from(self.nlb) + 1
    }

    /// The range of a command that has SLBA and NLB (Read, Write, Compare, Write Zeroes).
    #[must_use]
    pub fn of(sqe: &Sqe) -> Self {
        let [n0, n1, ..] = sqe.cdw12.get().to_le_bytes();
        let slba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
        Self { slba, nlb: u16::from_le_bytes([n0, n1]) }
    }
}

/// Which way a command's data goes: bits 1:0 of the opcode, of FCTYPE for Fabrics commands.
#[must_use]
pub fn direction(sqe: &Sqe) -> Direction {
    let bits = if sqe.opc == fabrics::OPCODE { sqe.fctype() } else { sqe.opc };
    match bits & 0b11 {
        0b01 => Direction::HostToController,
        0b10 => Direction::ControllerToHost,
        _ => Direction::None,
    }
}

fn with_range(opc: u8, nsid: NamespaceId, range: BlockRange) -> Sqe {
    let (low, high) = halves(range.slba);
    Sqe {
        opc,
        nsid: nsid.0.into(),
        cdw10: low.into(),
        cdw11: high.into(),
        cdw12: u32::from(range.nlb).into(),
        ..Sqe::default()
    }
}

/// Low and high double word.
fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// Read.
#[must_use]
pub fn read(nsid: NamespaceId, range: BlockRange) -> Sqe {
    with_range(io::READ, nsid, range)
}

/// Write; with `fua`, on stable media before it completes.
#[must_use]
pub fn write(nsid: NamespaceId, range: BlockRange, fua: bool) -> Sqe {
    let mut sqe = with_range(io::WRITE, nsid, range);
    if fua {
        sqe.cdw12 |= rw::FORCE_UNIT_ACCESS;
    }
    sqe
}

/// Compare.
#[must_use]
pub fn compare(nsid: NamespaceId, range: BlockRange) -> Sqe {
    with_range(io::COMPARE, nsid, range)
}

/// Write Zeroes; with `deallocate` the controller may free the blocks instead.
#[must_use]
pub fn write_zeroes(nsid: NamespaceId, range: BlockRange, deallocate: bool, fua: bool) -> Sqe {
    let mut sqe = with_range(io::WRITE_ZEROES, nsid, range);
    if deallocate {
        sqe.cdw12 |= rw::WRITE_ZEROES_DEALLOCATE;
    }
    if fua {
        sqe.cdw12 |= rw::FORCE_UNIT_ACCESS;
    }
    sqe
}

/// Flush.
#[must_use]
pub fn flush(nsid: NamespaceId) -> Sqe {
    Sqe { opc: io::FLUSH, nsid: nsid.0.into(), ..Sqe::default() }
}

/// Dataset Management with deallocate; `last_range` is the number of ranges, 0's based. The data
/// are that many [`deallocate_range`]s.
#[must_use]
pub fn deallocate(nsid: NamespaceId, last_range: u8) -> Sqe {
    Sqe {
        opc: io::DATASET_MANAGEMENT,
        nsid: nsid.0.into(),
        cdw10: u32::from(last_range).into(),
        cdw11: rw::DATASET_DEALLOCATE.into(),
        ..Sqe::default()
    }
}

/// One range of Dataset Management: context attributes, length in blocks, starting LBA.
#[must_use]
pub fn deallocate_range(slba: u64, block_count: u32) -> [u8; DEALLOCATE_RANGE_LEN] {
    let mut range = [0; DEALLOCATE_RANGE_LEN];
    range[4..8].copy_from_slice(&block_count.to_le_bytes());
    range[8..].copy_from_slice(&slba.to_le_bytes());
    range
}

/// Identify with a Controller or Namespace Structure value and a namespace.
#[must_use]
pub fn identify(cns: u8, nsid: NamespaceId) -> Sqe {
    Sqe {
        opc: admin::IDENTIFY,
        nsid: nsid.0.into(),
        cdw10: u32::from(cns).into(),
        ..Sqe::default()
    }
}

/// Get Log Page: `len` bytes (a multiple of 4, not 0) from `offset`. With `retain` the
/// asynchronous event of the page stays masked.
#[must_use]
pub fn get_log_page(lid: u8, nsid: NamespaceId, offset: u64, len: u32, retain: bool) -> Sqe {
    let [n0, n1, n2, n3] = (len / 4).saturating_sub(1).to_le_bytes();
    let numdl = u32::from(u16::from_le_bytes([n0, n1])) << 16;
    let rae = if retain { RETAIN_ASYNCHRONOUS_EVENT } else { 0 };
    let (lpol, lpou) = halves(offset);
    Sqe {
        opc: admin::GET_LOG_PAGE,
        nsid: nsid.0.into(),
        cdw10: (numdl | rae | u32::from(lid)).into(),
        cdw11: u32::from(u16::from_le_bytes([n2, n3])).into(),
        cdw12: lpol.into(),
        cdw13: lpou.into(),
        ..Sqe::default()
    }
}

/// Set Features without data.
#[must_use]
pub fn set_features(fid: u8, value: u32) -> Sqe {
    Sqe {
        opc: admin::SET_FEATURES,
        cdw10: u32::from(fid).into(),
        cdw11: value.into(),
        ..Sqe::default()
    }
}

/// Get Features, the current value.
#[must_use]
pub fn get_features(fid: u8) -> Sqe {
    Sqe { opc: admin::GET_FEATURES, cdw10: u32::from(fid).into(), ..Sqe::default() }
}

/// Keep Alive.
#[must_use]
pub fn keep_alive() -> Sqe {
    Sqe { opc: admin::KEEP_ALIVE, ..Sqe::default() }
}

/// Asynchronous Event Request.
#[must_use]
pub fn async_event_request() -> Sqe {
    Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::nvme::fabrics::ConnectWords;
    use crate::nvme::property::{PropertyAccess, PropertySize};

    #[test]
    fn ranges_that_no_command_can_carry() {
        assert_eq!(BlockRange::new(0, 0), None);
        assert_eq!(BlockRange::new(0, BlockRange::MAX_BLOCKS + 1), None);
        assert_eq!(BlockRange::new(u64::MAX, 2), None);
        let last = BlockRange::new(u64::MAX, 1).unwrap();
        assert_eq!((last.slba(), last.block_count()), (u64::MAX, 1));
        assert_eq!(BlockRange::new(5, BlockRange::MAX_BLOCKS).unwrap().block_count(), 65536);
    }

    #[test]
    fn write_on_the_wire() {
        let range = BlockRange::new(0x0102_0304_0506_0708, 8).unwrap();
        let sqe = write(NamespaceId(9), range, true);
        let bytes = sqe.as_bytes();
        assert_eq!((bytes[0], bytes[4]), (0x01, 9));
        assert_eq!(bytes[40..48], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[48..52], [7, 0, 0, 0x40]);
        assert_eq!(BlockRange::of(&sqe), range);
    }

    #[test]
    fn log_page_on_the_wire() {
        let sqe = get_log_page(0x70, NamespaceId(0), 1 << 33, 1024, true);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[40..44], [0x70, 0x80, 255, 0]);
        assert_eq!(bytes[48..56], (1u64 << 33).to_le_bytes());
    }

    #[test]
    fn directions() {
        let range = BlockRange::new(0, 1).unwrap();
        let ns = NamespaceId(1);
        for (sqe, expected) in [
            (read(ns, range), Direction::ControllerToHost),
            (write(ns, range, false), Direction::HostToController),
            (compare(ns, range), Direction::HostToController),
            (write_zeroes(ns, range, true, true), Direction::None),
            (flush(ns), Direction::None),
            (deallocate(ns, 0), Direction::HostToController),
            (identify(1, ns), Direction::ControllerToHost),
            (ConnectWords::default().to_sqe(), Direction::HostToController),
            (PropertyAccess::get(0, PropertySize::Four), Direction::None),
            (PropertyAccess::set(0, 0), Direction::None),
            (keep_alive(), Direction::None),
        ] {
            assert_eq!(direction(&sqe), expected, "{sqe:?}");
        }
    }
}
