//! What a program asks a queue to do, and what becomes of it.

use raceline_proto::host::command::{self, BlockRange};
use raceline_proto::nvme::{Cqe, Direction, NamespaceId, Sqe};
use raceline_reactor::{IoBuf, SharedBuf};

use crate::error::{CommandError, CommandFailure, RejectedReason};
pub use crate::summary::CommandSummary;

/// The data of a command. The buffer comes back with [`CommandDone`].
#[derive(Debug, Default)]
pub enum Data {
    /// No data.
    #[default]
    None,
    /// The controller sends `len()` bytes into this buffer.
    Read(IoBuf),
    /// The host sends all of this buffer.
    Write(SharedBuf),
}

impl Data {
    /// Bytes to be transferred.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Read(buf) => buf.len(),
            Self::Write(buf) => buf.len(),
        }
    }

    /// Whether there are no bytes to be transferred.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which way the bytes go.
    #[must_use]
    pub fn direction(&self) -> Direction {
        match self {
            Self::None => Direction::None,
            Self::Read(_) => Direction::ControllerToHost,
            Self::Write(_) => Direction::HostToController,
        }
    }

    /// The buffer of a read.
    #[must_use]
    pub fn into_read(self) -> Option<IoBuf> {
        if let Self::Read(buf) = self { Some(buf) } else { None }
    }

    /// The buffer of a write.
    #[must_use]
    pub fn into_write(self) -> Option<SharedBuf> {
        if let Self::Write(buf) = self { Some(buf) } else { None }
    }
}

/// A command to be submitted: the queue fills in CID, PSDT and SGL.
#[derive(Debug)]
pub struct Command {
    /// The submission queue entry.
    pub sqe: Sqe,
    /// Its data.
    pub data: Data,
    /// How urgent it is.
    pub hints: Hints,
}

/// How urgent a command is to be sent. No queue relies on the promise of a hint: a command that waits
/// leaves after a bounded time ([`crate::gather`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// It waits for no other command, and takes waiting commands with it.
    pub high_priority: bool,
    /// Another command follows at once: this is not the last of its batch, and may wait for the next.
    pub more: bool,
}

impl Command {
    /// Reads blocks into `buf`, whose length is that of the blocks.
    #[must_use]
    pub fn read(nsid: NamespaceId, range: BlockRange, buf: IoBuf) -> Self {
        Self::new(command::read(nsid, range), Data::Read(buf))
    }

    /// Writes blocks from `buf`, whose length is that of the blocks; with `fua`, they are on
    /// stable media when the command completes.
    #[must_use]
    pub fn write(nsid: NamespaceId, range: BlockRange, buf: SharedBuf, fua: bool) -> Self {
        Self::new(command::write(nsid, range, fua), Data::Write(buf))
    }

    /// Compares blocks with `buf`.
    #[must_use]
    pub fn compare(nsid: NamespaceId, range: BlockRange, buf: SharedBuf) -> Self {
        Self::new(command::compare(nsid, range), Data::Write(buf))
    }

    /// Zeroes blocks; with `deallocate`, the controller may free them instead.
    #[must_use]
    pub fn write_zeroes(nsid: NamespaceId, range: BlockRange, deallocate: bool, fua: bool) -> Self {
        Self::new(command::write_zeroes(nsid, range, deallocate, fua), Data::None)
    }

    /// Everything that completed before is on stable media when this completes.
    #[must_use]
    pub fn flush(nsid: NamespaceId) -> Self {
        Self::new(command::flush(nsid), Data::None)
    }

    /// Frees up to 256 ranges, of [`command::DEALLOCATE_RANGE_LEN`] bytes each in `ranges`, made
    /// by [`command::deallocate_range`]. `None` when `ranges` is empty, too long or ragged.
    #[must_use]
    pub fn deallocate(nsid: NamespaceId, ranges: SharedBuf) -> Option<Self> {
        if !ranges.len().is_multiple_of(command::DEALLOCATE_RANGE_LEN) {
            return None;
        }
        let last_range = (ranges.len() / command::DEALLOCATE_RANGE_LEN).checked_sub(1)?;
        let sqe = command::deallocate(nsid, u8::try_from(last_range).ok()?);
        Some(Self::new(sqe, Data::Write(ranges)))
    }

    /// Any command without data or with data from the controller (an admin command).
    #[must_use]
    pub fn new(sqe: Sqe, data: Data) -> Self {
        Self { sqe, data, hints: Hints::default() }
    }

    /// The same, with hints.
    #[must_use]
    pub fn with_hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }
}

/// A command that was not taken, given back with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected {
    /// Why.
    pub reason: RejectedReason,
    /// The command.
    pub command: Command,
}

/// A finished command.
#[derive(Debug)]
pub struct CommandDone {
    /// The name that the program gave it.
    pub user: u64,
    /// What it was about.
    pub summary: CommandSummary,
    /// Its completion, always with success as status, or why there is none.
    pub result: Result<Cqe, CommandError>,
    /// Its data come back: filled, for a successful read.
    pub data: Data,
}

impl CommandDone {
    /// The error together with what it happened to.
    #[must_use]
    pub fn failure(&self) -> Option<CommandFailure> {
        let error = self.result.err()?;
        Some(CommandFailure { summary: self.summary, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deallocate_takes_whole_ranges() {
        let ns = NamespaceId(1);
        assert!(Command::deallocate(ns, IoBuf::heap(0).share()).is_none());
        assert!(Command::deallocate(ns, IoBuf::heap(17).share()).is_none());
        assert!(Command::deallocate(ns, IoBuf::heap(257 * 16).share()).is_none());
        let full = Command::deallocate(ns, IoBuf::heap(256 * 16).share()).unwrap();
        assert_eq!(full.sqe.cdw10.get(), 255);
    }
}
