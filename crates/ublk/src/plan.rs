//! What the kernel asks for, checked: a plan, or the number of an error.

use raceline_bdev::{BdevError, BdevInfo, OpKind};
use raceline_reactor::ublk::UblkDescriptor;

use crate::uapi::{SECTOR, op};

/// Numbers of errors, as the kernel takes them.
pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOSPC: i32 = 28;
    pub(crate) const EOPNOTSUPP: i32 = 95;
}

/// What is asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, fua: bool },
    Flush,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, may_release: bool, fua: bool },
}

impl Plan {
    /// What kind of request it is, and its bytes.
    pub(crate) fn measure(self) -> (OpKind, u64) {
        match self {
            Self::Read { len, .. } => (OpKind::Read, len as u64),
            Self::Write { len, .. } => (OpKind::Write, len as u64),
            Self::Flush => (OpKind::Flush, 0),
            Self::Discard { len, .. } => (OpKind::Deallocate, len),
            Self::WriteZeroes { len, .. } => (OpKind::WriteZeroes, len),
        }
    }
}

/// What a plan is made by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) block_bytes: u32,
    pub(crate) bytes: u64,
    pub(crate) max_io_bytes: u32,
    pub(crate) read_only: bool,
    pub(crate) discards: bool,
}

impl Facts {
    pub(crate) fn new(info: &BdevInfo, max_io_bytes: u32, read_only: bool) -> Self {
        Self {
            block_bytes: info.block_size,
            bytes: info.block_count * u64::from(info.block_size),
            max_io_bytes,
            read_only: read_only || info.read_only,
            discards: info.deallocate,
        }
    }
}

/// Checks a request.
///
/// # Errors
/// The number of the error that answers it.
pub(crate) fn plan(facts: &Facts, asked: &UblkDescriptor) -> Result<Plan, i32> {
    let operation = asked.op_flags & op::MASK;
    if operation == op::FLUSH {
        return Ok(Plan::Flush);
    }
    let fua = asked.op_flags & op::FUA != 0;
    let len = u64::from(asked.nr_sectors) * SECTOR;
    let offset = asked.start_sector.checked_mul(SECTOR).ok_or(errno::EINVAL)?;
    let end = offset.checked_add(len).ok_or(errno::EINVAL)?;
    let block = u64::from(facts.block_bytes);
    if len == 0 || end > facts.bytes || !offset.is_multiple_of(block) || !len.is_multiple_of(block)
    {
        return Err(errno::EINVAL);
    }
    if operation != op::READ && facts.read_only {
        return Err(errno::EPERM);
    }
    let data_len = || {
        let fits = len <= u64::from(facts.max_io_bytes);
        usize::try_from(len).ok().filter(|_| fits).ok_or(errno::EINVAL)
    };
    match operation {
        op::READ => Ok(Plan::Read { offset, len: data_len()? }),
        op::WRITE => Ok(Plan::Write { offset, len: data_len()?, fua }),
        op::DISCARD if facts.discards => Ok(Plan::Discard { offset, len }),
        op::WRITE_ZEROES => {
            let may_release = asked.op_flags & op::NOUNMAP == 0;
            Ok(Plan::WriteZeroes { offset, len, may_release, fua })
        }
        _ => Err(errno::EOPNOTSUPP),
    }
}

/// The result of a request that was carried out: bytes, or the negative number of an error.
pub(crate) fn result(plan: Plan, ended: Result<(), BdevError>) -> i32 {
    match (plan, ended) {
        (Plan::Read { len, .. } | Plan::Write { len, .. }, Ok(())) => {
            // At most `max_io_bytes`, which is far below.
            i32::try_from(len).unwrap_or(-errno::EIO)
        }
        (Plan::Flush | Plan::Discard { .. } | Plan::WriteZeroes { .. }, Ok(())) => 0,
        (_, Err(error)) => -number(error),
    }
}

/// The number of an error of a device. ENODEV, which would fit some, means to the kernel that nobody serves the disk.
fn number(error: BdevError) -> i32 {
    match error {
        BdevError::NoSpace => errno::ENOSPC,
        BdevError::ReadOnly => errno::EPERM,
        BdevError::NotSupported => errno::EOPNOTSUPP,
        BdevError::ReadFault
        | BdevError::WriteFault
        | BdevError::Gone
        | BdevError::Unknown
        | BdevError::Transient
        | BdevError::Internal
        | BdevError::Status { .. } => errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        block_bytes: 4096,
        bytes: 1 << 20,
        max_io_bytes: 64 << 10,
        read_only: false,
        discards: true,
    };

    fn asked(op_flags: u32, start_sector: u64, nr_sectors: u32) -> UblkDescriptor {
        UblkDescriptor { op_flags, nr_sectors, start_sector }
    }

    #[test]
    fn requests_become_plans() {
        let read = plan(&FACTS, &asked(op::READ, 8, 16));
        assert_eq!(read, Ok(Plan::Read { offset: 4096, len: 8192 }));
        // Flags that are not of interest: fail fast, metadata, swap.
        let write = plan(&FACTS, &asked(op::WRITE | op::FUA | 0x1_0f00, 2040, 8));
        assert_eq!(write, Ok(Plan::Write { offset: (1 << 20) - 4096, len: 4096, fua: true }));
        assert_eq!(plan(&FACTS, &asked(op::FLUSH, u64::MAX, u32::MAX)), Ok(Plan::Flush));
        let discard = plan(&FACTS, &asked(op::DISCARD, 0, 2048));
        assert_eq!(discard, Ok(Plan::Discard { offset: 0, len: 1 << 20 }));
        let (offset, len) = (0, 1 << 20);
        for (flags, may_release, fua) in [(0, true, false), (op::NOUNMAP | op::FUA, false, true)] {
            let zeroes = plan(&FACTS, &asked(op::WRITE_ZEROES | flags, 0, 2048));
            assert_eq!(zeroes, Ok(Plan::WriteZeroes { offset, len, may_release, fua }));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (flags, start, count, number) in [
            (op::READ, 0, 0, errno::EINVAL),
            (op::READ, 1, 8, errno::EINVAL),
            (op::READ, 0, 7, errno::EINVAL),
            (op::READ, 2048, 8, errno::EINVAL),
            (op::WRITE, u64::MAX, 8, errno::EINVAL),
            (op::WRITE, u64::MAX / 512, 8, errno::EINVAL),
            (op::WRITE, 0, 136, errno::EINVAL),
            (op::DISCARD, 0, u32::MAX - 7, errno::EINVAL),
            // WRITE_SAME, zones, and what nobody knows.
            (4, 0, 8, errno::EOPNOTSUPP),
            (13, 0, 8, errno::EOPNOTSUPP),
            (255, 0, 8, errno::EOPNOTSUPP),
        ] {
            assert_eq!(plan(&FACTS, &asked(flags, start, count)), Err(number), "{flags} {start}");
        }
        let no_discard = Facts { discards: false, ..FACTS };
        let discard = asked(op::DISCARD, 0, 8);
        assert_eq!(plan(&no_discard, &discard), Err(errno::EOPNOTSUPP));
        let read_only = Facts { read_only: true, ..FACTS };
        for operation in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
            assert_eq!(plan(&read_only, &asked(operation, 0, 8)), Err(errno::EPERM));
        }
        assert!(plan(&read_only, &asked(op::READ, 0, 8)).is_ok());
    }

    #[test]
    fn results_are_bytes_or_errors() {
        let read = Plan::Read { offset: 0, len: 512 };
        assert_eq!(result(read, Ok(())), 512);
        assert_eq!(result(Plan::Flush, Ok(())), 0);
        assert_eq!(result(read, Err(BdevError::Gone)), -errno::EIO);
        assert_eq!(result(Plan::Flush, Err(BdevError::NoSpace)), -errno::ENOSPC);
    }
}
