//! What a listener over RDMA does when it cannot listen at once, and how long it waits between two tries.

use std::io;
use std::time::Duration;

/// The time before the first try to open a device again, which doubles from try to try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two tries.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// The time between two looks at an address that another process is about to let go.
const BRIEF_PAUSE: Duration = Duration::from_millis(50);
/// After so many brief pauses the address is somebody else's: 60 s.
const BRIEF_PAUSES: u32 = 1200;

/// What a listener does when it cannot listen at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// It is an error.
    #[default]
    None,
    /// It looks for a device until there is one. That somebody else has the address is an error.
    ForDevice,
    /// It does not try, since the address is that of a process that this one is about to replace. It listens when that
    /// process is gone, and this has become another value.
    ForPredecessor,
}

impl Patience {
    pub(super) fn listens_at_once(self) -> bool {
        self != Self::ForPredecessor
    }

    /// Whether a listener that has failed so looks for a device.
    pub(super) fn outlasts(self, error: &io::Error) -> bool {
        self == Self::ForDevice && error.kind() != io::ErrorKind::AddrInUse
    }
}

/// The pauses of a search.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// The last one that was not brief.
    last: Option<Duration>,
    /// The last try has found that somebody else has the address.
    is_in_use: bool,
    /// Brief pauses for that.
    brief: u32,
    /// What the search waited for has happened: the next try needs no pause.
    has_waited: bool,
}

impl Pauses {
    /// `at_once`: there is no pause before the first try, because some device has the address.
    pub(super) fn new(at_once: bool) -> Self {
        Self { has_waited: at_once, ..Self::default() }
    }

    /// The pause before the next try.
    pub(super) fn next(&mut self, patience: Patience) -> Duration {
        if !patience.listens_at_once() {
            self.has_waited = true;
            return BRIEF_PAUSE;
        }
        // The process before has just gone.
        if std::mem::take(&mut self.has_waited) {
            return Duration::ZERO;
        }
        if self.is_in_use && self.brief < BRIEF_PAUSES {
            self.brief += 1;
            return BRIEF_PAUSE;
        }
        let pause = self.last.map_or(FIRST_PAUSE, |last| (last * 2).min(LAST_PAUSE));
        self.last = Some(pause);
        pause
    }

    /// A try has failed so.
    pub(super) fn note(&mut self, kind: io::ErrorKind) {
        self.is_in_use = kind == io::ErrorKind::AddrInUse;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_begins_at_once_where_a_device_has_the_address() {
        let mut pauses = Pauses::new(true);
        assert_eq!(pauses.next(Patience::None), Duration::ZERO);
        assert_eq!(pauses.next(Patience::None), FIRST_PAUSE);
        assert_eq!(Pauses::new(false).next(Patience::None), FIRST_PAUSE);
    }

    #[test]
    fn pauses_are_brief_while_an_address_is_about_to_be_free() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.next(Patience::ForPredecessor), BRIEF_PAUSE);
        assert_eq!(pauses.next(Patience::None), Duration::ZERO, "that process is gone");
        pauses.note(io::ErrorKind::AddrInUse);
        for _ in 0..BRIEF_PAUSES {
            assert_eq!(pauses.next(Patience::None), BRIEF_PAUSE);
        }
        assert_eq!(pauses.next(Patience::None), FIRST_PAUSE, "it is somebody else's");
        pauses.note(io::ErrorKind::Other);
        for seconds in [2, 4, 8, 16, 30, 30] {
            assert_eq!(pauses.next(Patience::None), Duration::from_secs(seconds));
        }
    }
}
