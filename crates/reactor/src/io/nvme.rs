//! Commands of the NVM command set for namespaces that are opened by their generic device
//! (`/dev/ng0n1`), as the kernel's io_uring passthrough takes them.

use std::io;

use raceline_proto::nvme::command::{self, BlockRange, DEALLOCATE_RANGE_LEN};
use raceline_proto::nvme::{NamespaceId, PassthroughCommand, Sqe};

/// What a ring has to know of such a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeFormat {
    /// NSID.
    pub nsid: u32,
    /// The size of a logical block is 2 to the power of this (LBADS). Blocks carry no metadata.
    pub block_shift: u32,
    /// Most bytes of data of one command, a multiple of the block size.
    pub max_transfer_bytes: u32,
    /// Most bytes of one Write Zeroes, a multiple of the block size; 0 if there is no such command.
    pub max_zeroes_bytes: u32,
    /// Write Zeroes may deallocate, and what it has deallocated reads zeroes (DLFEAT bit 3).
    pub zeroes_deallocate: bool,
    /// Dataset Management is there.
    pub dataset_management: bool,
}

/// Tells whether this process can have a ring for such namespaces.
///
/// # Errors
/// When the kernel is older than Linux 5.19, or does not permit io_uring.
pub fn check_ring() -> io::Result<()> {
    crate::uring::nvme::check()
}

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(crate) const NVME_URING_CMD_IO: u32 = 3 << 30 | COMMAND_BYTES << 16 | 0x4e << 8 | 0x80;

/// Bytes of a command, as a request's number contains them.
const COMMAND_BYTES: u32 = 72;
const _: () = assert!(PassthroughCommand::LEN == COMMAND_BYTES as usize);

/// The data of a Dataset Management command: one range, at an address that no drive minds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct Range([u8; DEALLOCATE_RANGE_LEN]);

impl Range {
    /// Its bytes.
    pub(crate) const LEN: u32 = 16;
}

const _: () = assert!(size_of::<Range>() == Range::LEN as usize);

/// Commands by bytes, without the address of their data.
impl NvmeFormat {
    /// A flush.
    pub(crate) fn flush(self) -> Sqe {
        command::flush(self.nsid())
    }

    /// A read of `len` bytes at `offset`.
    pub(crate) fn read(self, offset: u64, len: u32) -> io::Result<Sqe> {
        Ok(command::read(self.nsid(), self.range(offset, len)?))
    }

    /// A write of `len` bytes at `offset`; if `durable`, on stable media before it completes.
    pub(crate) fn write(self, offset: u64, len: u32, durable: bool) -> io::Result<Sqe> {
        Ok(command::write(self.nsid(), self.range(offset, len)?, durable))
    }

    /// Zeroes in `len` bytes at `offset`. `deallocate` is refused where deallocated blocks may read
    /// something else.
    pub(crate) fn write_zeroes(self, offset: u64, len: u32, deallocate: bool) -> io::Result<Sqe> {
        if self.max_zeroes_bytes == 0 || deallocate && !self.zeroes_deallocate {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(command::write_zeroes(self.nsid(), self.range(offset, len)?, deallocate, false))
    }

    /// Dataset Management that deallocates one range, and the range, which is its data.
    pub(crate) fn deallocate(self, offset: u64, len: u64) -> io::Result<(Sqe, Range)> {
        if !self.dataset_management {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let slba = self.blocks(offset)?;
        let block_count = u32::try_from(self.blocks(len)?).map_err(|_| unaligned())?;
        // The number of ranges is 0's based.
        let sqe = command::deallocate(self.nsid(), 0);
        Ok((sqe, Range(command::deallocate_range(slba, block_count))))
    }

    /// How many of `len` bytes one command may move.
    pub(crate) fn piece(self, len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).min(self.max_transfer_bytes)
    }

    /// How many of `len` bytes one Write Zeroes may zero.
    pub(crate) fn zeroes_piece(self, len: u64) -> u32 {
        let most = self.max_zeroes_bytes.min(BlockRange::MAX_BLOCKS << self.block_shift.min(15));
        u32::try_from(len).unwrap_or(u32::MAX).min(most)
    }

    fn nsid(self) -> NamespaceId {
        NamespaceId(self.nsid)
    }

    /// The blocks of `len` bytes at `offset`, if one command can name them.
    fn range(self, offset: u64, len: u32) -> io::Result<BlockRange> {
        let block_count = u32::try_from(self.blocks(len.into())?).map_err(|_| unaligned())?;
        BlockRange::new(self.blocks(offset)?, block_count).ok_or_else(unaligned)
    }

    fn blocks(self, bytes: u64) -> io::Result<u64> {
        let blocks = bytes >> self.block_shift;
        if blocks << self.block_shift == bytes { Ok(blocks) } else { Err(unaligned()) }
    }
}

fn unaligned() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// The status code type and status code of a completion, without its other bits.
const STATUS_MASK: i32 = 0x7ff;

/// What the result of a passthrough command says: an errno if negative, an NVMe status if positive.
///
/// # Errors
/// The errno that comes nearest to what the kernel's block layer makes of that status.
pub(crate) fn outcome(result: i32) -> io::Result<()> {
    let errno = match result {
        0 => return Ok(()),
        negative if negative < 0 => -negative,
        status => match status & STATUS_MASK {
            // Invalid Command Opcode, Invalid Field in Command
            0x001 | 0x002 => libc::EOPNOTSUPP,
            // Command Abort Requested, Aborted due to SQ Deletion
            0x007 | 0x008 => libc::ECANCELED,
            // Invalid Namespace or Format
            0x00b => libc::ENODEV,
            // Namespace is Write Protected, Attempted Write to Read Only Range
            0x020 | 0x182 => libc::EROFS,
            // Capacity Exceeded
            0x081 => libc::ENOSPC,
            // Namespace Not Ready, Format in Progress, Host Pathing Error
            0x082 | 0x084 | 0x370 => libc::EAGAIN,
            // Command Aborted By Host: a reset; the block layer repeats it as well.
            0x371 => libc::EINTR,
            _ => libc::EIO,
        },
    };
    Err(io::Error::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: NvmeFormat = NvmeFormat {
        nsid: 7,
        block_shift: 12,
        max_transfer_bytes: 128 << 10,
        max_zeroes_bytes: u32::MAX << 12,
        zeroes_deallocate: true,
        dataset_management: true,
    };

    #[test]
    fn commands_name_their_blocks() {
        let blocks = |sqe: Sqe| (sqe.opc, sqe.nsid.get(), BlockRange::of(&sqe));
        let range = |slba, count| BlockRange::new(slba, count).unwrap();
        // 5 * 2^44 bytes are block 5 * 2^32.
        assert_eq!(blocks(FORMAT.read(5 << 44, 8192).unwrap()), (0x02, 7, range(5 << 32, 2)));
        let write = FORMAT.write(4096, 4096, true).unwrap();
        assert_eq!(blocks(write), (0x01, 7, range(1, 1)));
        assert_eq!(write.cdw12.get(), 1 << 30);
        assert_eq!(FORMAT.write(4096, 4096, false).unwrap().cdw12.get(), 0);
        let zeroes = FORMAT.write_zeroes(0, 65536 << 12, true).unwrap();
        assert_eq!((zeroes.opc, zeroes.cdw12.get()), (0x08, 1 << 25 | 0xffff));
        let (command, data) = FORMAT.deallocate(8192, 1 << 30).unwrap();
        assert_eq!((command.opc, command.nsid.get()), (0x09, 7));
        assert_eq!((command.cdw10.get(), command.cdw11.get(), command.cdw12.get()), (0, 4, 0));
        // Attributes, the number of blocks, the first block.
        assert_eq!(data.0, [0, 0, 0, 0, 0, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((FORMAT.flush().opc, FORMAT.flush().nsid.get()), (0x00, 7));
    }

    #[test]
    fn what_a_command_cannot_say_is_refused() {
        let errno = |result: io::Result<Sqe>| result.unwrap_err().raw_os_error();
        for wrong in [FORMAT.read(1, 4096), FORMAT.read(0, 512), FORMAT.write(0, 0, false)] {
            assert_eq!(errno(wrong), Some(libc::EINVAL));
        }
        let none = NvmeFormat { max_zeroes_bytes: 0, dataset_management: false, ..FORMAT };
        assert_eq!(errno(none.write_zeroes(0, 4096, false)), Some(libc::EOPNOTSUPP));
        assert!(none.deallocate(0, 4096).is_err());
        let keeps = NvmeFormat { zeroes_deallocate: false, ..FORMAT };
        assert_eq!(errno(keeps.write_zeroes(0, 4096, true)), Some(libc::EOPNOTSUPP));
        assert!(keeps.write_zeroes(0, 4096, false).is_ok());
        assert!(FORMAT.deallocate(0, 1 << 60).is_err());
    }

    #[test]
    fn pieces_are_what_one_command_can_do() {
        assert_eq!((FORMAT.piece(4096), FORMAT.piece(1 << 20)), (4096, 128 << 10));
        assert_eq!(FORMAT.zeroes_piece(1 << 40), 65536 << 12);
        let small = NvmeFormat { max_zeroes_bytes: 1 << 20, ..FORMAT };
        assert_eq!((small.zeroes_piece(1 << 40), small.zeroes_piece(8192)), (1 << 20, 8192));
    }

    #[test]
    fn statuses_become_errors_with_their_meaning() {
        assert!(outcome(0).is_ok());
        for (result, errno) in [
            (-libc::EINTR, libc::EINTR),
            (-libc::ENODEV, libc::ENODEV),
            // With Do Not Retry (14) and More (13) set.
            (0x6081, libc::ENOSPC),
            (0x4002, libc::EOPNOTSUPP),
            (0x0020, libc::EROFS),
            (0x4182, libc::EROFS),
            // Unrecovered Read Error, LBA Out of Range.
            (0x4281, libc::EIO),
            (0x4080, libc::EIO),
            (0x0371, libc::EINTR),
        ] {
            assert_eq!(outcome(result).unwrap_err().raw_os_error(), Some(errno), "{result:#x}");
        }
    }
}
