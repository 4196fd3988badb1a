//! I/O commands of the NVM command set, parsed against a snapshot of the namespaces
//! (NVM Command Set 1.0, 3.2).

use zerocopy::FromBytes;

use super::copy::{CopyCommand, parse_copy};
use super::extent::{check_range, refuse_read_only};
use super::sgl::sgl_transfer;
use super::subsystem::{Limits, Namespace, find_namespace};
use crate::nvme::opcode::{fabrics, io};
use crate::nvme::rw::{
    BlockRange, DATASET_DEALLOCATE, DatasetRange, FORCE_UNIT_ACCESS, PROTECTION_INFO,
    WRITE_ZEROES_DEALLOCATE,
};
use crate::nvme::{Direction, Fuse, Sqe, Status, Transfer};

/// An I/O command that can be executed: its namespace exists, its blocks are in range, and if it writes,
/// it may. `namespace` is an index into the slice it was parsed against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCommand {
    /// Reads blocks.
    Read {
        /// Index of the namespace.
        namespace: usize,
        /// First block.
        slba: u64,
        /// How many blocks, 1..=65536.
        block_count: u32,
        /// From stable media.
        fua: bool,
    },
    /// Writes blocks.
    Write {
        /// Index of the namespace.
        namespace: usize,
        /// First block.
        slba: u64,
        /// How many blocks, 1..=65536.
        block_count: u32,
        /// On stable media before it completes.
        fua: bool,
    },
    /// Compares blocks with the data.
    Compare {
        /// Index of the namespace.
        namespace: usize,
        /// First block.
        slba: u64,
        /// How many blocks, 1..=65536.
        block_count: u32,
    },
    /// Reads blocks, and tells only whether that succeeds.
    Verify {
        /// Index of the namespace.
        namespace: usize,
        /// First block.
        slba: u64,
        /// How many blocks, 1..=65536.
        block_count: u32,
    },
    /// Copies the ranges in the data to blocks that follow each other; see [`CopyCommand::check`].
    Copy {
        /// Index of the namespace that is written.
        namespace: usize,
        /// [`CopyCommand::sdlba`].
        sdlba: u64,
        /// [`CopyCommand::ranges`].
        ranges: u16,
        /// [`CopyCommand::across`].
        across: bool,
        /// [`CopyCommand::fua`].
        fua: bool,
    },
    /// Makes blocks unreadable until they are written.
    WriteUncorrectable {
        /// Index of the namespace.
        namespace: usize,
        /// First block.
        slba: u64,
        /// How many blocks, 1..=65536.
        block_count: u32,
    },
    /// Brings everything completed before to stable media.
    Flush {
        /// Index of the namespace.
        namespace: usize,
    },
    /// Zeroes blocks.
    WriteZeroes {
        /// Index of the namespace.
        namespace: usize,
        /// First block.
        slba: u64,
        /// How many blocks, 1..=65536.
        block_count: u32,
        /// The blocks may be deallocated, if they then read zeroes.
        deallocate: bool,
        /// On stable media before it completes.
        fua: bool,
    },
    /// Hints about, or deallocation of, the ranges in the data; see [`parse_ranges`].
    DatasetManagement {
        /// Index of the namespace.
        namespace: usize,
        /// How many ranges, 1..=256.
        ranges: u16,
        /// Deallocate them; otherwise there is nothing to do.
        deallocate: bool,
    },
}

impl IoCommand {
    /// Index of the namespace it is about.
    #[must_use]
    pub fn namespace(&self) -> usize {
        match *self {
            Self::Read { namespace, .. }
            | Self::Write { namespace, .. }
            | Self::Compare { namespace, .. }
            | Self::Verify { namespace, .. }
            | Self::Copy { namespace, .. }
            | Self::WriteUncorrectable { namespace, .. }
            | Self::Flush { namespace }
            | Self::WriteZeroes { namespace, .. }
            | Self::DatasetManagement { namespace, .. } => namespace,
        }
    }
}

/// Parses a command of an I/O queue. [`Sqe::fuse`] says whether it is half of a fused operation,
/// which only a Compare (first) and a Write (second) can be. The driver has to check that both halves
/// name the same blocks.
///
/// # Errors
/// The status to complete it with.
pub fn parse_io(
    sqe: &Sqe,
    namespaces: &[Namespace],
    limits: &Limits,
) -> Result<(IoCommand, Transfer), Status> {
    check_opcode_and_fuse(sqe)?;
    let index = find_namespace(namespaces, sqe.namespace_id());
    let Some((namespace, info)) = index.and_then(|i| Some((i, namespaces.get(i)?))) else {
        return Err(Status::INVALID_NAMESPACE.dnr());
    };
    let max = limits.max_io_bytes;
    match sqe.opc {
        io::FLUSH => {
            let transfer = sgl_transfer(sqe, Direction::None, max)?;
            Ok((IoCommand::Flush { namespace }, transfer))
        }
        io::DATASET_MANAGEMENT => parse_dataset_management(sqe, namespace, info, max),
        io::COPY => {
            let (copy, transfer) = parse_copy(sqe, info, max)?;
            let CopyCommand { sdlba, ranges, across, fua } = copy;
            Ok((IoCommand::Copy { namespace, sdlba, ranges, across, fua }, transfer))
        }
        io::WRITE_UNCORRECTABLE => {
            if !info.uncorrectable {
                return Err(Status::INVALID_OPCODE.dnr());
            }
            let transfer = sgl_transfer(sqe, Direction::None, max)?;
            let BlockRange { slba, block_count } = BlockRange::parse(sqe);
            check_range(slba, block_count, info)?;
            refuse_read_only(info)?;
            Ok((IoCommand::WriteUncorrectable { namespace, slba, block_count }, transfer))
        }
        io::VERIFY => {
            let transfer = sgl_transfer(sqe, Direction::None, max)?;
            let BlockRange { slba, block_count } = parse_blocks(sqe, info)?;
            // as VSL says
            if u64::from(block_count) * u64::from(info.block_size) > u64::from(max) {
                return Err(Status::INVALID_FIELD.dnr());
            }
            Ok((IoCommand::Verify { namespace, slba, block_count }, transfer))
        }
        io::WRITE_ZEROES => {
            let transfer = sgl_transfer(sqe, Direction::None, max)?;
            let BlockRange { slba, block_count } = parse_blocks(sqe, info)?;
            refuse_read_only(info)?;
            let fua = sqe.cdw12.get() & FORCE_UNIT_ACCESS != 0;
            // as DLFEAT says
            let deallocate = sqe.cdw12.get() & WRITE_ZEROES_DEALLOCATE != 0
                && info.deallocate
                && info.deallocate_zeroes;
            let command = IoCommand::WriteZeroes { namespace, slba, block_count, deallocate, fua };
            Ok((command, transfer))
        }
        opcode => {
            let direction = if opcode == io::READ {
                Direction::ControllerToHost
            } else {
                Direction::HostToController
            };
            let transfer = parse_data(sqe, direction, info, max)?;
            let BlockRange { slba, block_count } = parse_blocks(sqe, info)?;
            let fua = sqe.cdw12.get() & FORCE_UNIT_ACCESS != 0;
            let command = match opcode {
                io::READ => IoCommand::Read { namespace, slba, block_count, fua },
                io::COMPARE => IoCommand::Compare { namespace, slba, block_count },
                _ => {
                    refuse_read_only(info)?;
                    IoCommand::Write { namespace, slba, block_count, fua }
                }
            };
            Ok((command, transfer))
        }
    }
}

/// Only the commands of this file exist on an I/O queue, and only Compare then Write may be
/// fused (Base 2.0, 3.4.2).
fn check_opcode_and_fuse(sqe: &Sqe) -> Result<(), Status> {
    match sqe.opc {
        io::FLUSH
        | io::WRITE
        | io::READ
        | io::COMPARE
        | io::WRITE_ZEROES
        | io::VERIFY
        | io::COPY
        | io::WRITE_UNCORRECTABLE
        | io::DATASET_MANAGEMENT => {}
        fabrics::OPCODE if sqe.fctype() == fabrics::CONNECT => {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    }
    match (sqe.fuse(), sqe.opc) {
        (Fuse::Normal, _) | (Fuse::First, io::COMPARE) | (Fuse::Second, io::WRITE) => Ok(()),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// SLBA and NLB inside the namespace, and no option that needs protection information.
fn parse_blocks(sqe: &Sqe, namespace: &Namespace) -> Result<BlockRange, Status> {
    if sqe.cdw12.get() & PROTECTION_INFO != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let range = BlockRange::parse(sqe);
    check_range(range.slba, range.block_count, namespace)?;
    Ok(range)
}

/// The transfer of Read, Write and Compare: exactly the blocks, at most MDTS.
fn parse_data(
    sqe: &Sqe,
    direction: Direction,
    namespace: &Namespace,
    max_bytes: u32,
) -> Result<Transfer, Status> {
    let block_count = BlockRange::parse(sqe).block_count;
    let bytes = u64::from(block_count) * u64::from(namespace.block_size);
    if bytes > u64::from(max_bytes) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let transfer = sgl_transfer(sqe, direction, max_bytes)?;
    if u64::from(transfer.len) != bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    Ok(transfer)
}

/// Hosts may send more data than the ranges take: Linux always sends a full page.
fn parse_dataset_management(
    sqe: &Sqe,
    namespace: usize,
    info: &Namespace,
    max_bytes: u32,
) -> Result<(IoCommand, Transfer), Status> {
    let transfer = sgl_transfer(sqe, Direction::HostToController, max_bytes)?;
    let ranges = u16::from(sqe.cdw10.get().to_le_bytes()[0]) + 1;
    if u64::from(transfer.len) < u64::from(ranges) * DatasetRange::LEN as u64 {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    let mut deallocate = sqe.cdw11.get() & DATASET_DEALLOCATE != 0;
    if deallocate {
        refuse_read_only(info)?;
        // the command is advice: where it cannot be followed, it succeeds without effect
        deallocate = info.deallocate;
    }
    Ok((IoCommand::DatasetManagement { namespace, ranges, deallocate }, transfer))
}

/// The ranges of a Dataset Management command that have any blocks, as first block and count.
/// A range outside of the namespace is an error: run through all of them before acting on one.
pub fn parse_ranges<'a>(
    data: &'a [u8],
    ranges: u16,
    namespace: &'a Namespace,
) -> impl Iterator<Item = Result<(u64, u32), Status>> + Clone + 'a {
    data.chunks_exact(DatasetRange::LEN)
        .take(ranges.into())
        .filter_map(|bytes| DatasetRange::read_from_bytes(bytes).ok())
        .filter(|range| range.length.get() != 0)
        .map(move |range| {
            let (slba, count) = (range.slba.get(), range.length.get());
            check_range(slba, count, namespace).map(|()| (slba, count))
        })
}
