//! What a SCSI command does at its device, as its slot keeps it.

use raceline_bdev::BdevError;
use raceline_iscsi::target::Residual as ProtocolResidual;
use raceline_proto::reservation::AccessGroup;
use raceline_reactor::Payload;
use raceline_scsi::{Check, DeviceError, Parameters, Request, Residual};

/// What a command does, and how far it has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) kind: Kind,
    /// Bytes that move to or from the initiator.
    pub(crate) bytes: u32,
    /// What the answer says of the rest if it succeeds, and if it does not.
    pub(crate) residual: ProtocolResidual,
    pub(crate) failed_residual: ProtocolResidual,
    /// On stable media before the answer.
    pub(crate) fua: bool,
    pub(crate) block_size: u32,
    /// The second step has begun: a command that reads first writes. Of WRITE SAME: it rests before its next piece.
    pub(crate) is_second: bool,
}

/// The kind of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Kind {
    /// Its slot is free.
    #[default]
    None,
    Read,
    Write,
    WriteAndVerify(Check),
    OrWrite,
    CompareAndWrite,
    Verify(Check),
    /// `next`: the byte of the device that is written next.
    WriteSame {
        has_data: bool,
        deallocate: bool,
        next: u64,
    },
    Flush,
    LbaStatus {
        lba: u64,
        allocation: u32,
        request: Request,
    },
    Collect(Parameters),
    /// An Extended Copy that has its parameters.
    Copy,
    /// A change of the logical unit, without blocks.
    Changed,
}

impl Work {
    /// Whether the command is changing its bytes of the device.
    pub(crate) fn changes_data(&self) -> bool {
        match self.kind {
            Kind::Write
            | Kind::WriteSame { .. }
            | Kind::Collect(Parameters::Unmap)
            | Kind::Copy => true,
            Kind::WriteAndVerify(_) => !self.is_second,
            Kind::OrWrite | Kind::CompareAndWrite => self.is_second,
            _ => false,
        }
    }

    /// Whether it has written blocks with data of the initiator when it succeeds.
    #[inline]
    pub(crate) fn writes_blocks(&self) -> bool {
        matches!(
            self.kind,
            Kind::Write | Kind::WriteAndVerify(_) | Kind::OrWrite | Kind::CompareAndWrite
        )
    }

    /// What reservations have to allow for it when it goes to its device.
    pub(crate) fn group(&self) -> AccessGroup {
        match self.kind {
            Kind::Read | Kind::Verify(_) => AccessGroup::Read,
            Kind::Write
            | Kind::WriteAndVerify(_)
            | Kind::OrWrite
            | Kind::CompareAndWrite
            | Kind::WriteSame { .. }
            | Kind::Collect(Parameters::Unmap | Parameters::ExtendedCopy) => AccessGroup::Write,
            // They touch no data, or check reservations themselves.
            Kind::None
            | Kind::Flush
            | Kind::LbaStatus { .. }
            | Kind::Collect(_)
            | Kind::Copy
            | Kind::Changed => AccessGroup::Exempt,
        }
    }

    /// Whether no other write may come between its steps.
    pub(crate) fn needs_lock(&self) -> bool {
        matches!(self.kind, Kind::OrWrite | Kind::CompareAndWrite)
    }
}

/// In the terms of the protocol.
#[inline]
pub(crate) fn residual(residual: Residual) -> ProtocolResidual {
    match residual {
        Residual::None => ProtocolResidual::None,
        Residual::Underflow(count) => ProtocolResidual::Underflow(count),
        Residual::Overflow(count) => ProtocolResidual::Overflow(count),
    }
}

/// In the terms of SCSI.
pub(crate) fn device_error(error: BdevError) -> DeviceError {
    match error {
        BdevError::ReadFault => DeviceError::ReadFault,
        BdevError::WriteFault => DeviceError::WriteFault,
        BdevError::NoSpace => DeviceError::NoSpace,
        BdevError::ReadOnly => DeviceError::ReadOnly,
        BdevError::Gone => DeviceError::Gone,
        BdevError::Unknown => DeviceError::Unknown,
        BdevError::Transient => DeviceError::Transient,
        BdevError::NotSupported => DeviceError::NotSupported,
        BdevError::Internal => DeviceError::Internal,
        BdevError::Status { sct, sc } => DeviceError::Nvme { sct, sc },
    }
}

/// The first `len` bytes of a payload.
pub(crate) fn first(payload: Payload, len: usize) -> Payload {
    match payload {
        Payload::Buf(buf, range) => Payload::Buf(buf, range.start..range.start + len),
        Payload::Shared(buf, range) => Payload::Shared(buf, range.start..range.start + len),
        Payload::Region(region, range) => {
            Payload::Region(region, range.start..range.start + len as u64)
        }
        Payload::Zeroes(_) => Payload::Zeroes(len),
    }
}

/// The bytes of a read that went into a buffer.
pub(crate) fn bytes_of(payload: Option<&Payload>) -> &[u8] {
    match payload {
        Some(Payload::Buf(buf, range)) => &buf[range.clone()],
        Some(Payload::Shared(buf, range)) => &buf[range.clone()],
        _ => &[],
    }
}

/// The offset of the first byte that is different, where `expected` is repeated if it is shorter.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<usize> {
    if expected.is_empty() {
        return None;
    }
    let parts = found.chunks(expected.len());
    parts.enumerate().find_map(|(index, part)| {
        if part == &expected[..part.len()] {
            return None;
        }
        let within = part.iter().zip(expected).position(|(a, b)| a != b)?;
        Some(index * expected.len() + within)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(difference(&[1, 2, 3, 4], &[1, 2, 3, 4]), None);
        assert_eq!(difference(&[1, 2, 3, 5], &[1, 2, 3, 4]), Some(3));
        assert_eq!(difference(&[1, 2, 1, 2, 1, 3], &[1, 2]), Some(5), "repeated");
        assert_eq!(difference(&[1], &[]), None);
    }
}
