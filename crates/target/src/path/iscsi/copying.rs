//! How far an Extended Copy has come.

use raceline_scsi::copy::{CopyBytes, CopyList};

use super::copies::CopyKey;
use crate::changes::snapshot::DeviceId;

/// A copy, and how far it has come.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) list: CopyList,
    /// Its place among the copies of its session.
    pub(crate) key: CopyKey,
    /// The segment that is being copied.
    pub(crate) segment: u16,
    /// The LUNs of its source and of its destination.
    pub(crate) luns: (u16, u16),
    pub(crate) source: Option<DeviceId>,
    pub(crate) bytes: CopyBytes,
    /// How many of the bytes are copied.
    pub(crate) done: u64,
    /// The device does not copy this segment itself.
    pub(crate) by_hand: bool,
    /// What is at a device.
    pub(crate) step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Idle,
    /// All that is left is copied by the device.
    Whole,
    /// A piece is read.
    Read,
    /// A piece of so many bytes is written.
    Write(u64),
}

impl Copying {
    pub(crate) fn new(list: CopyList, key: CopyKey) -> Self {
        Self {
            list,
            key,
            segment: 0,
            luns: (0, 0),
            source: None,
            bytes: CopyBytes { from: 0, to: 0, len: 0 },
            done: 0,
            by_hand: false,
            step: Step::Idle,
        }
    }

    /// The next piece, at most this long: where it is read, where it is written. If the destination begins within the
    /// source, pieces go from the end to the beginning: none is overwritten before it was read.
    pub(crate) fn next_piece(&self, is_one_device: bool, most: u64) -> CopyBytes {
        let CopyBytes { from, to, len } = self.bytes;
        let piece = (len - self.done).min(most);
        let is_backwards = is_one_device && to > from && to < from + len;
        let skip = if is_backwards { len - self.done - piece } else { self.done };
        CopyBytes { from: from + skip, to: to + skip, len: piece }
    }

    pub(crate) fn overlaps(&self) -> bool {
        let CopyBytes { from, to, len } = self.bytes;
        from < to + len && to < from + len
    }
}
