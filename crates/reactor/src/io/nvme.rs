//! Commands of the NVM command set for namespaces that are opened by their generic device
//! (`/dev/ng0n1`), as the kernel's io_uring passthrough takes them.

use std::io;

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

/// Opcodes of the NVM command set.
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;

/// CDW12 of Write: on stable media before it completes.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// CDW12 of Write Zeroes (DEAC): the blocks may be deallocated.
const DEALLOCATE: u32 = 1 << 25;
/// CDW11 of Dataset Management: attribute AD, deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;
/// NLB of Write Zeroes has 16 bits, 0's based.
pub(crate) const MAX_ZEROES_BLOCKS: u32 = 1 << 16;

/// What the kernel takes for NVME_URING_CMD_IO: a command without what it fills in itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    reserved2: u32,
}

const _: () = assert!(size_of::<Command>() == COMMAND_BYTES);

impl Command {
    /// The same with its data at this address.
    pub(crate) fn with_data<T>(self, data: *const T) -> Self {
        Self { address: data.expose_provenance() as u64, ..self }
    }
}

/// Bytes of a command.
pub(crate) const COMMAND_BYTES: usize = 72;

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(crate) const NVME_URING_CMD_IO: u32 = 3 << 30 | 72 << 16 | 0x4e << 8 | 0x80;

/// One range of Dataset Management, as the controller reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    attributes: u32,
    block_count: u32,
    slba: u64,
}

impl NvmeFormat {
    /// A flush.
    pub(crate) fn flush(self) -> Command {
        Command { opcode: FLUSH, nsid: self.nsid, ..Command::default() }
    }

    /// A read of `len` bytes at `offset`; where to is still to be said.
    pub(crate) fn read(self, offset: u64, len: u32) -> io::Result<Command> {
        let cdw12 = self.count(len)?;
        Ok(Command { opcode: READ, cdw12, data_len: len, ..self.at(offset)? })
    }

    /// A write of `len` bytes at `offset`; where from is still to be said.
    pub(crate) fn write(self, offset: u64, len: u32, durable: bool) -> io::Result<Command> {
        let cdw12 = self.count(len)? | if durable { FORCE_UNIT_ACCESS } else { 0 };
        Ok(Command { opcode: WRITE, cdw12, data_len: len, ..self.at(offset)? })
    }

    /// Zeroes in `len` bytes at `offset`. To `deallocate` them is refused where what is
    /// deallocated may read something else.
    pub(crate) fn write_zeroes(
        self,
        offset: u64,
        len: u32,
        deallocate: bool,
    ) -> io::Result<Command> {
        if self.max_zeroes_bytes == 0 || deallocate && !self.zeroes_deallocate {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let cdw12 = self.count(len)? | if deallocate { DEALLOCATE } else { 0 };
        Ok(Command { opcode: WRITE_ZEROES, cdw12, ..self.at(offset)? })
    }

    /// Dataset Management that deallocates one range, and the range, which is its data.
    pub(crate) fn deallocate(self, offset: u64, len: u64) -> io::Result<(Command, Range)> {
        if !self.dataset_management {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let slba = self.blocks(offset)?;
        let block_count = u32::try_from(self.blocks(len)?).map_err(|_| unaligned())?;
        let command = Command {
            opcode: DATASET_MANAGEMENT,
            nsid: self.nsid,
            // CDW10: number of ranges, 0's based.
            cdw11: ATTRIBUTE_DEALLOCATE,
            data_len: 16,
            ..Command::default()
        };
        Ok((command, Range { attributes: 0, block_count, slba }))
    }

    /// How much of `len` bytes one command may move.
    pub(crate) fn piece(self, len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).min(self.max_transfer_bytes)
    }

    /// How much of `len` bytes one Write Zeroes may zero.
    pub(crate) fn zeroes_piece(self, len: u64) -> u32 {
        let most = self.max_zeroes_bytes.min(MAX_ZEROES_BLOCKS << self.block_shift.min(15));
        u32::try_from(len).unwrap_or(u32::MAX).min(most)
    }

    fn at(self, offset: u64) -> io::Result<Command> {
        let slba = self.blocks(offset)?;
        let [low, high] = [slba, slba >> 32].map(|half| half & u64::from(u32::MAX));
        let half = |half: u64| u32::try_from(half).map_err(|_| unaligned());
        Ok(Command { nsid: self.nsid, cdw10: half(low)?, cdw11: half(high)?, ..Command::default() })
    }

    /// NLB, 0's based.
    fn count(self, len: u32) -> io::Result<u32> {
        let blocks = self.blocks(len.into())?;
        let count = blocks.checked_sub(1).and_then(|count| u16::try_from(count).ok());
        count.map(u32::from).ok_or_else(unaligned)
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
        let read = FORMAT.read(5 << 44, 8192).unwrap();
        assert_eq!((read.opcode, read.nsid, read.data_len), (0x02, 7, 8192));
        // 5 * 2^44 bytes are block 5 * 2^32.
        assert_eq!((read.cdw10, read.cdw11, read.cdw12), (0, 5, 1));
        let write = FORMAT.write(4096, 4096, true).unwrap();
        assert_eq!((write.opcode, write.cdw10, write.cdw12), (0x01, 1, 1 << 30));
        assert_eq!(FORMAT.write(4096, 4096, false).unwrap().cdw12, 0);
        let zeroes = FORMAT.write_zeroes(0, 65536 << 12, true).unwrap();
        assert_eq!((zeroes.opcode, zeroes.cdw12, zeroes.data_len), (0x08, 1 << 25 | 0xffff, 0));
        let (command, range) = FORMAT.deallocate(8192, 1 << 30).unwrap();
        assert_eq!((command.opcode, command.cdw10, command.cdw11), (0x09, 0, 4));
        assert_eq!(range, Range { attributes: 0, block_count: 1 << 18, slba: 2 });
        assert_eq!((FORMAT.flush().opcode, FORMAT.flush().nsid), (0x00, 7));
    }

    #[test]
    fn what_a_command_cannot_say_is_refused() {
        let errno = |result: io::Result<Command>| result.unwrap_err().raw_os_error();
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
