//! Capsules: one message each (NVMe/RDMA 1.0, 2.2).

use std::fmt;

use zerocopy::FromBytes;

use crate::nvme::{Cqe, Sqe, Status};

use super::sgl::{HostData, host_data};

/// Most descriptors of a list in a capsule that this end takes (MSDBD).
pub const MAX_DESCRIPTORS: u8 = 16;

/// Bytes of a capsule that say what it means: the command and its descriptors.
pub const CAPSULE_HEAD_LEN: usize = Sqe::LEN + MAX_DESCRIPTORS as usize * 16;

/// Bytes of a response.
pub const RESPONSE_CAPSULE_LEN: usize = Cqe::LEN;

/// What a controller takes in the commands of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapsuleLimits {
    /// Bytes of data in a capsule, behind the command: (IOCCSZ * 16) - 64.
    pub in_capsule_bytes: u32,
    /// Descriptors of a list in a capsule: MSDBD. 0 on admin queues.
    pub descriptors: u8,
    /// Bytes that a command moves: MDTS.
    pub transfer_bytes: u32,
}

impl CapsuleLimits {
    /// Of an admin queue, beside I/O queues with these limits: its capsules hold as many bytes of data, and no list.
    ///
    /// SPDK's host decides about data in the capsule by IOCCSZ alone, whatever the queue is
    /// (`nvme_rdma_req_init`, `icd_supported`), and SPDK's target takes such capsules.
    #[must_use]
    pub fn admin(io: &Self) -> Self {
        Self { descriptors: 0, ..*io }
    }

    /// The longest capsule.
    #[must_use]
    pub fn capsule_len(&self) -> usize {
        let list = usize::from(self.descriptors) * 16;
        Sqe::LEN + usize::try_from(self.in_capsule_bytes).unwrap_or(usize::MAX - 64).max(list)
    }
}

/// What ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A message that is shorter than a command.
    CommandShort,
    /// A message that is longer than the queue's capsules.
    CommandLong,
    /// A message that is not as long as a response.
    ResponseLength,
    /// A response that names no command that is under way.
    ResponseUnknown,
    /// A response that ended a key that its command did not offer.
    KeyInvalidated,
    /// More commands than the queue has entries.
    QueueOverrun,
}

impl Violation {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::CommandShort => "a command capsule has fewer than 64 bytes",
            Self::CommandLong => "a command capsule is longer than the queue allows",
            Self::ResponseLength => "a response capsule does not have 16 bytes",
            Self::ResponseUnknown => "the response names no outstanding command",
            Self::KeyInvalidated => "the response invalidated a key that its command did not offer",
            Self::QueueOverrun => {
                "the host has more commands outstanding than the queue has entries"
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Violation {}

/// A command as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCapsule {
    /// The command, unchanged.
    pub sqe: Sqe,
    /// Where its data are, or what its response has to say.
    pub data: Result<HostData, Status>,
}

impl CommandCapsule {
    /// Reads a message of as many bytes as were received.
    ///
    /// # Errors
    /// When the message is no capsule: the connection ends.
    pub fn parse(message: &[u8], limits: &CapsuleLimits) -> Result<Self, Violation> {
        Self::parse_head(message, message.len(), limits)
    }

    /// Reads a message of `received` bytes, of which `head` is the first [`CAPSULE_HEAD_LEN`], or all. The data in a
    /// capsule stay where they were received.
    ///
    /// # Errors
    /// When the message is no capsule: the connection ends.
    pub fn parse_head(
        head: &[u8],
        received: usize,
        limits: &CapsuleLimits,
    ) -> Result<Self, Violation> {
        let Ok((sqe, _)) = Sqe::read_from_prefix(head) else {
            return Err(Violation::CommandShort);
        };
        Ok(Self { sqe, data: host_data(&sqe, head, received, limits) })
    }
}

/// Reads a response.
///
/// # Errors
/// When the message is no response: the connection ends.
pub fn parse_response(message: &[u8]) -> Result<Cqe, Violation> {
    match message.try_into() {
        Ok(bytes) => Ok(Cqe::from_bytes(bytes)),
        Err(_) => Err(Violation::ResponseLength),
    }
}
