//! How often commands have ended with which error.

use std::sync::atomic::{AtomicU64, Ordering};

use raceline_proto::nvme::Status;

/// All that a status type (three bits) and a status code (eight bits) can be.
const KINDS: usize = 1 << 11;

/// Counts of all cores together: errors are rare.
pub(crate) struct StatusCounts(Box<[AtomicU64]>);

impl Default for StatusCounts {
    fn default() -> Self {
        Self((0..KINDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl StatusCounts {
    pub(crate) fn add_one(&self, status: Status) {
        let kind = usize::from(status.sct() & 7) << 8 | usize::from(status.sc());
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that there have been.
    pub(crate) fn all(&self) -> Vec<(Status, u64)> {
        let counts = (0_u16..).zip(&self.0).map(|(kind, count)| {
            let [sct, sc] = kind.to_be_bytes();
            (Status::new(sct, sc), count.load(Ordering::Relaxed))
        });
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_type_and_code() {
        let counts = StatusCounts::default();
        assert!(counts.all().is_empty());
        let odd = Status::new(7, 255);
        for status in [Status::INVALID_FIELD.dnr(), odd, Status::INVALID_FIELD] {
            counts.add_one(status);
        }
        assert_eq!(counts.all(), [(Status::INVALID_FIELD, 2), (odd, 1)]);
    }
}
