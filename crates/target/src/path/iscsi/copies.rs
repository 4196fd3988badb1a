//! The copies of a session: those under way, and what has become of the last ones (SPC-4, 6.20).

use raceline_scsi::copy::{CopyState, CopyStatus, MAX_CONCURRENT_COPIES};
use raceline_scsi::{Refusal, Sense};

/// Most results that are kept for Receive Copy Status.
const MOST_RESULTS: usize = 16;

/// The name of a copy of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyKey(u64);

#[derive(Debug)]
struct Entry {
    key: CopyKey,
    /// The LUN to which the command was sent.
    lun: u16,
    /// LIST IDENTIFIER, if it has one.
    id: Option<u8>,
    status: CopyStatus,
}

/// All that is known, in the order in which the copies began.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    entries: Vec<Entry>,
    next: u64,
}

impl Copies {
    /// A copy begins. What was known of an earlier one with its identifier is forgotten.
    ///
    /// # Errors
    /// OPERATION IN PROGRESS if a copy with this identifier goes on, BUSY if there are too many copies.
    pub(crate) fn begin(&mut self, lun: u16, id: Option<u8>) -> Result<CopyKey, Refusal> {
        let goes_on = |entry: &&Entry| entry.status.state == CopyState::InProgress;
        let is_same = |entry: &Entry| id.is_some() && (entry.lun, entry.id) == (lun, id);
        if self.entries.iter().filter(goes_on).any(is_same) {
            return Err(Sense::OPERATION_IN_PROGRESS.into());
        }
        if self.entries.iter().filter(goes_on).count() >= usize::from(MAX_CONCURRENT_COPIES) {
            return Err(Refusal::Busy);
        }
        self.entries.retain(|entry| !is_same(entry));
        let key = CopyKey(self.next);
        self.next += 1;
        let status = CopyStatus { state: CopyState::InProgress, segments: 0, bytes: 0 };
        self.entries.push(Entry { key, lun, id, status });
        Ok(key)
    }

    fn entry(&mut self, key: CopyKey) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    /// So many segments of a copy are copied, and so many more bytes.
    pub(crate) fn count(&mut self, key: CopyKey, segments: u16, bytes: u64) {
        if let Some(entry) = self.entry(key) {
            entry.status.segments = segments;
            entry.status.bytes += bytes;
        }
    }

    /// All of a copy is done.
    pub(crate) fn succeed(&mut self, key: CopyKey) {
        if let Some(entry) = self.entry(key) {
            entry.status.state = CopyState::Done;
        }
    }

    /// The command of a copy has ended; if nothing else was said before, it has failed.
    pub(crate) fn end(&mut self, key: CopyKey) {
        if let Some(entry) = self.entry(key)
            && entry.status.state == CopyState::InProgress
        {
            entry.status.state = CopyState::Failed;
        }
        let has_ended = |entry: &Entry| entry.status.state != CopyState::InProgress;
        self.entries.retain(|entry| entry.id.is_some() || !has_ended(entry));
        let mut extra = self
            .entries
            .iter()
            .filter(|entry| has_ended(entry))
            .count()
            .saturating_sub(MOST_RESULTS);
        self.entries.retain(|entry| {
            let is_extra = extra > 0 && has_ended(entry);
            extra -= usize::from(is_extra);
            !is_extra
        });
    }

    /// What is known of the copy with this identifier. The result of one that has ended is told once.
    pub(crate) fn status(&mut self, lun: u16, id: u8) -> Option<CopyStatus> {
        let is_it = |entry: &Entry| (entry.lun, entry.id) == (lun, Some(id));
        let position = self.entries.iter().position(is_it)?;
        let status = self.entries[position].status;
        if status.state != CopyState::InProgress {
            self.entries.remove(position);
        }
        Some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_once_and_the_oldest_are_forgotten() {
        let mut copies = Copies::default();
        let key = copies.begin(0, Some(1)).unwrap();
        assert_eq!(copies.begin(0, Some(1)), Err(Sense::OPERATION_IN_PROGRESS.into()));
        let other = copies.begin(1, Some(1)).unwrap();
        copies.count(key, 2, 1024);
        let status = copies.status(0, 1).unwrap();
        assert_eq!((status.state, status.segments, status.bytes), (CopyState::InProgress, 2, 1024));
        copies.succeed(key);
        copies.end(key);
        copies.end(other);
        assert_eq!(copies.status(0, 1).map(|status| status.state), Some(CopyState::Done));
        assert_eq!(copies.status(0, 1), None);
        assert_eq!(copies.status(1, 1).map(|status| status.state), Some(CopyState::Failed));
        for id in 0..=u8::try_from(MOST_RESULTS).unwrap() {
            let key = copies.begin(0, Some(id)).unwrap();
            copies.end(key);
        }
        assert_eq!(copies.status(0, 0), None);
        assert!(copies.status(0, 1).is_some());
    }

    #[test]
    fn copies_at_the_same_time_have_a_limit_and_leave_nothing_without_an_identifier() {
        let mut copies = Copies::default();
        let keys: Vec<_> =
            (0..MAX_CONCURRENT_COPIES).map(|_| copies.begin(0, None).unwrap()).collect();
        assert_eq!(copies.begin(0, None), Err(Refusal::Busy));
        keys.into_iter().for_each(|key| copies.end(key));
        assert!(copies.entries.is_empty());
    }
}
