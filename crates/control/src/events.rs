//! What has happened in a daemon: a bounded journal of numbered events, for clients that follow it.
//!
//! The journal is filled from the log: the binary feeds every message of level info and above into it,
//! whatever the log itself shows. Changes by operators and all other events are kept in two rings with one
//! numbering: peers that flood the log cannot push out what operators did. A follower that asks from a number
//! on gets everything since, or is told how many events it has missed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};

/// Events of operators that are kept.
const MAX_OPERATOR_EVENTS: usize = 1024;
/// Other events that are kept.
const MAX_OTHER_EVENTS: usize = 4096;
/// The longest message, and the longest text of a field, in bytes.
const MAX_TEXT_BYTES: usize = 512;
/// Fields of an event. With the limits above, the journal takes 26 MiB at most, and about 2 MiB as a rule.
const MAX_FIELDS: usize = 10;
/// The kind of events about changes by RPC: those of operators.
pub const CHANGE: &str = "change";

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something has failed.
    Error,
    /// A sign of a possible failure.
    Warning,
    /// A normal event.
    Info,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Its number. The first is 1.
    pub seq: u64,
    /// When: milliseconds since 1970.
    pub time_ms: u64,
    /// How serious it is.
    pub severity: Severity,
    /// What it is about: connect, disconnect, change, path and so on; `log` if nothing else is known.
    pub kind: String,
    /// The module that reports it.
    pub source: String,
    /// One sentence.
    pub message: String,
    /// Further facts by name.
    pub fields: Map<String, Value>,
}

/// What a follower gets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// Names this journal: another run of the daemon has another one, which counts from 1 again.
    pub journal: u64,
    /// The number to ask from next.
    pub next: u64,
    /// How many events before `next` are no longer kept.
    pub missed: u64,
    /// The events, the oldest first.
    pub events: Vec<Event>,
}

/// The journal of one run of a daemon.
#[derive(Debug)]
pub struct EventJournal {
    id: u64,
    rings: Mutex<Rings>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Rings {
    next: u64,
    operator: VecDeque<Event>,
    other: VecDeque<Event>,
    is_closed: bool,
}

impl Default for EventJournal {
    fn default() -> Self {
        let rings =
            Rings { next: 1, operator: VecDeque::new(), other: VecDeque::new(), is_closed: false };
        Self { id: now_ms(), rings: Mutex::new(rings), arrived: Condvar::new() }
    }
}

impl EventJournal {
    /// Adds an event. Texts that are too long are cut.
    pub fn push(
        &self,
        severity: Severity,
        kind: &str,
        source: &str,
        message: &str,
        fields: Map<String, Value>,
    ) {
        let fields = fields.into_iter().take(MAX_FIELDS).map(|(name, value)| match value {
            Value::String(text) => (name, cut(&text).into()),
            value => (name, value),
        });
        let mut event = Event {
            seq: 0,
            time_ms: now_ms(),
            severity,
            kind: cut(kind),
            source: cut(source),
            message: cut(message),
            fields: fields.collect(),
        };
        let mut rings = self.lock();
        event.seq = rings.next;
        rings.next += 1;
        let (ring, limit) = match kind {
            CHANGE => (&mut rings.operator, MAX_OPERATOR_EVENTS),
            _ => (&mut rings.other, MAX_OTHER_EVENTS),
        };
        // The old one is dropped, and the new one stored, within the capacity.
        if ring.len() == limit {
            ring.pop_front();
        }
        ring.push_back(event);
        drop(rings);
        self.arrived.notify_all();
    }

    /// The number of the next event.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.lock().next
    }

    /// Up to `max` events from number `since` on. If there is none, waits up to `wait` for one.
    #[must_use]
    pub fn since(&self, since: u64, max: usize, wait: Duration) -> Batch {
        let since = since.max(1);
        self.wait_from(since, wait).batch(self.id, since, max)
    }

    /// Waits up to `wait` for event number `since`, and gives whether there is nothing to wait for any more: it has
    /// come, or the daemon ends.
    #[must_use]
    pub fn wait(&self, since: u64, wait: Duration) -> bool {
        let since = since.max(1);
        self.wait_from(since, wait).is_over(since)
    }

    fn wait_from(&self, since: u64, wait: Duration) -> MutexGuard<'_, Rings> {
        let is_waiting = |rings: &mut Rings| !rings.is_over(since);
        let waited = self.arrived.wait_timeout_while(self.lock(), wait, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends all waits, now and later: the daemon ends.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rings {
    /// Whether a wait for the event of a number is over.
    fn is_over(&self, since: u64) -> bool {
        self.next > since || self.is_closed
    }

    fn batch(&self, journal: u64, since: u64, max: usize) -> Batch {
        let from = |ring: &VecDeque<Event>| {
            let at = ring.partition_point(|event| event.seq < since);
            ring.iter().skip(at).take(max).cloned().collect::<Vec<_>>()
        };
        let mut events = from(&self.operator);
        events.extend(from(&self.other));
        events.sort_unstable_by_key(|event| event.seq);
        let is_all = events.len() <= max;
        events.truncate(max);
        // A follower from the future has missed nothing: it is told where the journal is.
        let end = match events.last() {
            Some(last) if !is_all || events.len() == max => last.seq + 1,
            None if max == 0 => since,
            _ => self.next,
        };
        let passed = end.saturating_sub(since);
        let count = u64::try_from(events.len()).unwrap_or(u64::MAX);
        Batch { journal, next: end, missed: passed.saturating_sub(count), events }
    }
}

fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT_BYTES);
    text[..end].to_owned()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn push(journal: &EventJournal, kind: &str, message: &str) {
        journal.push(Severity::Info, kind, "test", message, Map::new());
    }

    #[test]
    fn a_flood_is_counted_and_leaves_what_operators_did() {
        let journal = EventJournal::default();
        push(&journal, CHANGE, "first");
        for number in 0..5000 {
            push(&journal, "connect", &number.to_string());
        }
        let all = journal.since(1, usize::MAX, Duration::ZERO);
        assert_eq!(all.next, 5002);
        assert_eq!(all.events.len(), 1 + MAX_OTHER_EVENTS);
        assert_eq!(all.missed, 5000 - 4096);
        assert_eq!(all.events[0].message, "first");
        assert_eq!(all.events[1].seq, 906);
        assert!(all.events.is_sorted_by_key(|event| event.seq));
    }

    #[test]
    fn pieces_join_without_gap_or_repetition() {
        let journal = EventJournal::default();
        for number in 0..6000 {
            push(&journal, if number % 3 == 0 { CHANGE } else { "log" }, "x");
        }
        let whole = journal.since(0, usize::MAX, Duration::ZERO);
        let (mut since, mut missed, mut pieces) = (1, 0, Vec::new());
        while since < journal.next() {
            let piece = journal.since(since, 7, Duration::ZERO);
            assert!(piece.next > since);
            (since, missed) = (piece.next, missed + piece.missed);
            pieces.extend(piece.events);
        }
        assert_eq!(pieces, whole.events);
        assert_eq!(missed, whole.missed);
        assert_eq!(since, whole.next);
        assert_eq!(missed + u64::try_from(pieces.len()).unwrap(), 6000);
    }

    #[test]
    fn a_number_from_the_future_is_answered_with_the_present_one() {
        let journal = EventJournal::default();
        push(&journal, "log", "x");
        let batch = journal.since(900, 10, Duration::ZERO);
        assert_eq!((batch.next, batch.missed, batch.events.len()), (2, 0, 0));
        assert_eq!(journal.since(1, 0, Duration::ZERO).next, 1);
    }

    #[test]
    fn a_follower_wakes_for_an_event_and_for_the_end() {
        let journal = Arc::new(EventJournal::default());
        let follower = Arc::clone(&journal);
        let wait = Duration::from_secs(60);
        let waiting = std::thread::spawn(move || {
            let first = follower.since(1, 10, wait);
            (first, follower.since(2, 10, wait))
        });
        push(&journal, "log", &"ä".repeat(400));
        while Arc::strong_count(&journal) > 1 {
            std::thread::sleep(Duration::from_millis(1));
            journal.close();
        }
        let (first, second) = waiting.join().unwrap();
        assert_eq!(first.events[0].message.len(), MAX_TEXT_BYTES);
        assert_eq!((second.next, second.events.len()), (2, 0));
    }
}
