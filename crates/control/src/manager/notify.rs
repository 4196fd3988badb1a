//! The last events, for clients that ask what has happened.

use std::collections::VecDeque;

/// How many events are kept; older ones are forgotten, as in SPDK.
const MAX_EVENTS: usize = 1024;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A block device has come.
    BdevRegister,
    /// A block device has gone.
    BdevUnregister,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::BdevRegister, Self::BdevUnregister];

    /// SPDK's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BdevRegister => "bdev_register",
            Self::BdevUnregister => "bdev_unregister",
        }
    }
}

/// The last events, numbered from 0 without gaps.
#[derive(Debug, Default)]
pub struct Events {
    kept: VecDeque<(EventKind, String)>,
    forgotten: u64,
}

impl Events {
    pub(super) fn push(&mut self, kind: EventKind, context: String) {
        if self.kept.len() == MAX_EVENTS {
            self.kept.pop_front();
            self.forgotten += 1;
        }
        self.kept.push_back((kind, context));
    }

    /// The events from a number on.
    pub fn since(&self, first: u64) -> impl Iterator<Item = (u64, EventKind, &str)> {
        let skip = usize::try_from(first.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        let numbered = (self.forgotten..).zip(&self.kept);
        numbered.skip(skip).map(|(id, (kind, context))| (id, *kind, context.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_events_are_forgotten_and_keep_their_numbers() {
        let mut events = Events::default();
        for number in 0..1030 {
            events.push(EventKind::BdevRegister, number.to_string());
        }
        let first = events.since(0).next().unwrap();
        assert_eq!(first, (6, EventKind::BdevRegister, "6"));
        assert_eq!(events.since(1028).count(), 2);
        assert_eq!(events.since(u64::MAX).count(), 0);
    }
}
