//! What a queue keeps of a command until it ends.

use std::time::Instant;

use raceline_proto::nvme::authentication::is_authentication;
use raceline_proto::nvme::command::Fuse;
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{Direction, Sqe};

use super::digest::EntryDigest;
use super::send::to_usize;
use crate::command::{Command, Data};

/// What became of a command on an earlier connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tried {
    /// Its capsule was never given to a socket.
    #[default]
    Never,
    /// It was sent, and does the same however often it is executed.
    Harmless,
    /// Another path may have executed it.
    Unknown,
}

/// One command of the program.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) user: u64,
    pub(super) sqe: Sqe,
    pub(super) data: Data,
    /// Bytes of data; the buffer may be lent to a receive.
    pub(super) len: u32,
    pub(super) direction: Direction,
    /// Since when its time counts; `None`: it has no time limit.
    pub(super) since: Option<Instant>,
    /// Its capsule was given to the socket of this connection.
    pub(super) sent: bool,
    /// What became of it on an earlier connection.
    pub(super) tried: Tried,
    /// Number of the batch with its last bytes: its buffer is in use until that batch has left.
    pub(super) batch: u64,
    pub(super) digest_failed: bool,
    pub(super) digest: EntryDigest,
    /// How often it was sent again because of a wrong digest.
    pub(super) retries: u8,
    pub(super) timed_out: bool,
}

impl Entry {
    /// Becomes this command: nothing of the command before stays.
    #[inline(always)]
    pub(super) fn fill(&mut self, command: Command, user: u64, len: u32, since: Option<Instant>) {
        // Named one by one, so that a field that is added cannot be forgotten here.
        let Self {
            user: own_user,
            sqe: own_sqe,
            data: own_data,
            len: own_len,
            direction,
            since: own_since,
            sent,
            tried,
            batch,
            digest_failed,
            digest,
            retries,
            timed_out,
        } = self;
        let Command { sqe, data, hints: _ } = command;
        *own_user = user;
        *own_sqe = sqe;
        *direction = data.direction();
        *own_data = data;
        *own_len = len;
        *own_since = since;
        *sent = false;
        *tried = Tried::Never;
        *batch = 0;
        *digest_failed = false;
        *digest = EntryDigest::default();
        *retries = 0;
        *timed_out = false;
    }

    /// Bytes that the controller sends for it.
    #[inline]
    pub(super) fn read_bytes(&self) -> usize {
        if self.direction == Direction::ControllerToHost { to_usize(self.len) } else { 0 }
    }

    /// Whether it is a command of the queue itself, which no program waits for: Connect, or one that authenticates.
    pub(super) fn is_own(&self) -> bool {
        self.sqe.opc == fabrics::OPCODE
            && (self.sqe.fctype() == fabrics::CONNECT || is_authentication(&self.sqe))
    }

    /// Whether it may run on another path of the same namespace instead of this one: what it does depends on nothing
    /// but its own fields, and doing it twice in a row does the same as doing it once.
    pub(super) fn may_move(&self) -> bool {
        use io::{COMPARE, DATASET_MANAGEMENT, FLUSH, READ, WRITE, WRITE_ZEROES};
        self.sqe.fuse() == Fuse::Normal
            && matches!(
                self.sqe.opc,
                READ | WRITE | FLUSH | COMPARE | WRITE_ZEROES | DATASET_MANAGEMENT
            )
    }

    /// Whether a copy of it that executes late does no harm.
    pub(super) fn may_linger(&self) -> bool {
        self.only_reads(false) || self.sqe.opc == io::FLUSH
    }

    /// Whether doing it twice, or late, does no harm: it only reads. This is false for half of a fused
    /// operation, which must not go without its other half.
    pub(super) fn only_reads(&self, admin_queue: bool) -> bool {
        let opcode = self.sqe.opc;
        if opcode == fabrics::OPCODE || self.sqe.fuse() != Fuse::Normal {
            return false;
        }
        if admin_queue {
            matches!(opcode, admin::IDENTIFY | admin::GET_LOG_PAGE | admin::GET_FEATURES)
        } else {
            matches!(opcode, io::READ | io::COMPARE)
        }
    }
}
