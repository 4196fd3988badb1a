//! How fast a client has to be: one that is slow is served, and one that stands still holds what others need.

use std::time::{Duration, Instant};

/// How long a client may take for the next [`LEAST_BYTES`] of what it sends or takes.
const TIME: Duration = Duration::from_secs(60);

/// The bytes that renew its time: 17 KiB per second are enough. A request of 32 MiB is over within 32 minutes, whatever its
/// client does.
const LEAST_BYTES: u64 = 1 << 20;

/// The pace of one direction.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until when the next bytes have to come, and how many had come when that was decided; `None` while nothing is due.
    due: Option<(Instant, u64)>,
}

impl Pace {
    /// Something is to come or to go; `bytes` have so far.
    pub(super) fn begin(&mut self, now: Instant, bytes: u64) {
        self.due = Some((now + TIME, bytes));
    }

    /// Whether something is to come or to go.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Nothing is due any more.
    pub(super) fn end(&mut self) {
        self.due = None;
    }

    /// Whether the client is too slow, if `bytes` have come or gone so far.
    pub(super) fn is_late(&mut self, now: Instant, bytes: u64) -> bool {
        let Some((until, before)) = self.due else { return false };
        if bytes.saturating_sub(before) >= LEAST_BYTES {
            self.begin(now, bytes);
            return false;
        }
        until <= now
    }
}

/// The bytes that a client has to move in each [`super::DEFAULT_HOLD_TIME`] while others wait for it: 280 KiB per second.
const NEEDED_BYTES: u64 = 8 << 20;

/// For how many of these times others wait for a client at most.
const MOST_TIMES: u32 = 4;

/// Who is in the way of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Nobody waits for the connection.
    Free,
    /// The device, or what it has not done yet.
    Device,
    /// The client, which has moved so many bytes so far.
    Client(u64),
}

/// How a client goes on that is in the way of others.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// For how long it was in the way of those who wait for it now, and when that was looked at last.
    total: Duration,
    looked: Option<Instant>,
    /// The beginning of a time in which it has to move enough, and the bytes that it had moved then.
    window: Option<(Instant, u64)>,
}

impl Needed {
    /// Whether the others have waited for long enough.
    pub(super) fn is_late(&mut self, now: Instant, way: Way, time: Duration) -> bool {
        let moved = match way {
            Way::Free => {
                *self = Self::default();
                return false;
            }
            Way::Device => {
                (self.looked, self.window) = (None, None);
                return false;
            }
            Way::Client(moved) => moved,
        };
        if let Some(before) = self.looked.replace(now) {
            self.total += now.duration_since(before);
        }
        let (begun, before) = *self.window.get_or_insert((now, moved));
        if moved.saturating_sub(before) >= NEEDED_BYTES {
            self.window = Some((now, moved));
        } else if now.duration_since(begun) >= time {
            return true;
        }
        self.total >= time * MOST_TIMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the bytes that one second brings, and how long the client is served.
    fn served(bytes_per_second: u64, seconds: u64) -> u64 {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.begin(start, 7);
        let late = |&second: &u64| {
            pace.is_late(start + Duration::from_secs(second), 7 + second * bytes_per_second)
        };
        (1..=seconds).find(late).unwrap_or(seconds)
    }

    /// After how many seconds a client that moves so many bytes in each second is too late for those who wait for it.
    fn needed(bytes_per_second: u64, seconds: u64) -> Option<u64> {
        let (mut needed, start) = (Needed::default(), Instant::now());
        let time = Duration::from_secs(30);
        (0..=seconds).find(|&second| {
            let way = Way::Client(7 + second * bytes_per_second);
            needed.is_late(start + Duration::from_secs(second), way, time)
        })
    }

    #[test]
    fn who_is_waited_for_has_to_be_faster_and_is_not_waited_for_for_ever() {
        assert_eq!(needed(0, 3600), Some(30));
        assert_eq!(needed(20 << 10, 3600), Some(30));
        assert_eq!(needed(1 << 20, 3600), Some(120));
        assert_eq!(needed(1 << 20, 119), None);
        // Who was out of the way begins anew.
        let (mut needed, start) = (Needed::default(), Instant::now());
        let mut at = |second, way| {
            needed.is_late(start + Duration::from_secs(second), way, Duration::from_secs(30))
        };
        let stands = Way::Client(0);
        assert!(!at(0, stands) && !at(29, stands) && !at(29, Way::Free));
        assert!(!at(30, stands) && !at(59, stands) && at(60, stands));
        // Who goes on for a moment, again and again, is waited for no longer than others; the device's time does not count.
        let (mut needed, start) = (Needed::default(), Instant::now());
        let end = (0..3600).find(|&second| {
            let way = match second % 30 {
                0 => Way::Device,
                _ => Way::Client(0),
            };
            needed.is_late(start + Duration::from_secs(second), way, Duration::from_secs(30))
        });
        assert!(end.is_some_and(|second| (120..150).contains(&second)), "{end:?}");
    }

    #[test]
    fn who_goes_on_is_served_and_who_stands_still_is_not() {
        assert_eq!(served(0, 3600), 60);
        // What an attacker would send to hold its place.
        assert_eq!(served(1024, 3600), 60);
        assert_eq!(served(20 << 10, 3600), 3600);
        assert_eq!(served(1 << 30, 3600), 3600);
        let mut pace = Pace::default();
        assert!(!pace.is_late(Instant::now() + 10 * TIME, 0), "nothing is due");
        let now = Instant::now();
        pace.begin(now, 0);
        assert!(pace.is_late(now + TIME, LEAST_BYTES - 1));
        pace.end();
        assert!(!pace.is_late(now + TIME, 0));
    }
}
