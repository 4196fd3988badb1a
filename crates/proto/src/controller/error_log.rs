//! Error Information, log page 01h: the latest failed commands (Base 2.0, 5.16.1.2).

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use crate::nvme::discovery::TRTYPE_TCP;
use crate::nvme::log::ErrorLogEntry;
use crate::nvme::{CommandId, NamespaceId, QueueId, Status};

/// Entries kept (ELPE + 1).
pub const ERROR_LOG_ENTRIES: usize = 64;

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Its queue.
    pub sqid: QueueId,
    /// Its identifier.
    pub cid: CommandId,
    /// Its status.
    pub status: Status,
    /// Its namespace.
    pub nsid: NamespaceId,
    /// The first block that failed, 0 if that does not apply.
    pub lba: u64,
}

/// The latest errors, and how many there ever were.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    pub(super) entries: VecDeque<ErrorLogEntry>,
    pub(super) count: u64,
}

impl ErrorLog {
    /// Parameter Error Location: not reported.
    const NO_LOCATION: u16 = 0xffff;

    pub(crate) fn record(&mut self, entry: ErrorEntry) {
        self.count = self.count.wrapping_add(1).max(1);
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front(ErrorLogEntry {
            error_count: self.count.into(),
            sqid: entry.sqid.0.into(),
            cid: entry.cid.0.into(),
            status: entry.status.to_wire().into(),
            parameter_location: Self::NO_LOCATION.into(),
            lba: entry.lba.into(),
            nsid: entry.nsid.0.into(),
            trtype: TRTYPE_TCP,
            ..ErrorLogEntry::default()
        });
    }

    /// How many errors there ever were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The page: newest first, empty entries last.
    pub(crate) fn page(&self) -> [u8; ERROR_LOG_ENTRIES * ErrorLogEntry::LEN] {
        let mut page = [0; ERROR_LOG_ENTRIES * ErrorLogEntry::LEN];
        let (places, _) = page.as_chunks_mut::<{ ErrorLogEntry::LEN }>();
        for (place, entry) in places.iter_mut().zip(&self.entries) {
            place.copy_from_slice(entry.as_bytes());
        }
        page
    }
}
