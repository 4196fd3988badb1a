//! What a program asks a session to do, and what becomes of it.

use raceline_iscsi::initiator::Direction;
use raceline_reactor::{IoBuf, SharedBuf};

use crate::cdb::{self, Cdb};
use crate::check::CheckCondition;

/// The data of a task. The buffer comes back with [`TaskDone`].
#[derive(Debug, Default)]
pub enum TaskData {
    /// No data.
    #[default]
    None,
    /// The target sends up to `len()` bytes into this buffer.
    Read(IoBuf),
    /// The initiator sends all of this buffer.
    Write(SharedBuf),
}

impl TaskData {
    /// Most bytes to be transferred.
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

    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::None => Direction::None,
            Self::Read(_) => Direction::Read,
            Self::Write(_) => Direction::Write,
        }
    }
}

/// A SCSI command for the logical unit of a session.
#[derive(Debug)]
pub struct Task {
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Its data.
    pub data: TaskData,
    /// All of the data have to move: a residual is an error.
    pub whole: bool,
}

impl Task {
    /// Reads blocks into `buf`, whose length is that of the blocks.
    #[inline]
    #[must_use]
    pub fn read(lba: u64, blocks: u32, buf: IoBuf) -> Self {
        Self { cdb: cdb::read(lba, blocks), data: TaskData::Read(buf), whole: true }
    }

    /// Writes blocks from `buf`, whose length is that of the blocks; with `fua` they are on stable media when the task
    /// ends.
    #[inline]
    #[must_use]
    pub fn write(lba: u64, blocks: u32, buf: SharedBuf, fua: bool) -> Self {
        Self { cdb: cdb::write(lba, blocks, fua), data: TaskData::Write(buf), whole: true }
    }

    /// A command that answers with up to as many bytes as `buf` has.
    #[must_use]
    pub fn inquire(cdb: Cdb, buf: IoBuf) -> Self {
        Self { cdb, data: TaskData::Read(buf), whole: false }
    }

    /// A command without data.
    #[must_use]
    pub fn plain(cdb: Cdb) -> Self {
        Self { cdb, data: TaskData::None, whole: true }
    }

    /// A command that sends all of `buf`.
    #[must_use]
    pub fn send(cdb: Cdb, buf: SharedBuf) -> Self {
        Self { cdb, data: TaskData::Write(buf), whole: true }
    }
}

/// Why a session does not take a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedReason {
    /// As many tasks as the session has slots are outstanding.
    #[error("the session is full")]
    Full,
    /// The session is closed, or about to be.
    #[error("the session is closed")]
    Closed,
    /// The data have no bytes, or 4 GiB or more.
    #[error("the data of a task have 1 to 2^32 - 1 bytes")]
    BadData,
}

/// A task that was not taken, given back with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected {
    /// Why.
    pub reason: RejectedReason,
    /// The task.
    pub task: Task,
}

/// Why a task has not done what it was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The target reports an error.
    #[error("the target reports {0}")]
    Check(CheckCondition),
    /// Another status than GOOD and CHECK CONDITION (SAM-5, 5.3.1).
    #[error("the target ends the command with status {status:02x}h ({})", status_text(*.status))]
    Status {
        /// The status.
        status: u8,
    },
    /// The target could not complete the command (RFC 7143, 11.4.3).
    #[error("the target could not complete the command: response {0:02x}h")]
    TargetFailure(u8),
    /// Success is claimed, and fewer bytes were transferred than asked for.
    #[error("the target claims success and transferred {moved} of {len} bytes")]
    Short {
        /// Bytes that were transferred.
        moved: u32,
        /// Bytes that were to be transferred.
        len: u32,
    },
    /// The session was lost: the command may or may not have been executed.
    #[error("the session was lost, and whether the command was executed is not known")]
    UnknownFate,
    /// No answer in time; nothing was changed.
    #[error("the target does not answer the command in time")]
    Timeout,
    /// The session was lost for good while a command that only reads was under way.
    #[error("the session was lost while the command was under way")]
    Disconnected,
    /// The session was lost for good before the command was sent.
    #[error("the session was lost before the command was sent")]
    NotSent,
}

fn status_text(status: u8) -> &'static str {
    match status {
        0x04 => "condition met",
        0x08 => "busy",
        0x18 => "reservation conflict: another initiator has reserved the logical unit",
        0x28 => "task set full",
        0x30 => "ACA active",
        0x40 => "task aborted",
        _ => "no status that SAM-5 names",
    }
}

/// A finished task.
#[derive(Debug)]
pub struct TaskDone {
    /// The name that the program gave it.
    pub user: u64,
    /// Its command.
    pub cdb: Cdb,
    /// Bytes that were received, or why it failed.
    pub result: Result<u32, TaskError>,
    /// Its data come back: filled, for a successful read.
    pub data: TaskData,
}
