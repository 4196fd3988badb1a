//! A limit for repeated messages: a noisy place cannot fill the log, and hides neither another place nor another peer.
//!
//! Messages count by the place in the program that logs them, together with whom they are about: the fields that name
//! a peer or a host, or else the names (NQN, IQN) and addresses in the text. The first messages of each such pair in a
//! window are shown. At the end of the window, or of the program, one line says how many more there
//! were. Messages for finding faults
//! (debug, trace) and the audit have no limit.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// How many messages of a pair are shown in a window.
const SHOWN: u32 = 5;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(10);
/// The most pairs that are counted; when there are more, the oldest window is forgotten.
const MOST_PAIRS: usize = 4096;
/// The most bytes of an example.
const EXAMPLE_BYTES: usize = 200;
/// The most names and addresses of a text that count.
const MOST_SUBJECTS: usize = 3;
/// How often the end of the program looks whether the counts are free, and the time between two looks. Whoever has them needs
/// microseconds.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// The target of the summaries.
const SUMMARY: &str = "raceline::log";
/// Fields that say whom a message is about.
const WHOM: [&str; 9] =
    ["peer", "host", "hostnqn", "nqn", "subsystem", "address", "source", "initiator", "controller"];

static LIMITER: LazyLock<Limiter> = LazyLock::new(Limiter::default);
/// Whether the thread of the summaries runs: without them, nothing may be left out.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Starts the thread of the summaries; from then on there is a limit.
pub(super) fn start() {
    let summaries = || {
        loop {
            tell(LIMITER.wait_for_due());
        }
    };
    match std::thread::Builder::new().name("log-summaries".to_owned()).spawn(summaries) {
        Ok(_) => IS_ACTIVE.store(true, Ordering::Relaxed),
        Err(error) => {
            tracing::warn!("repeated messages have no limit: no thread counts them: {error}")
        }
    }
}

/// Says what was left out in windows that have not ended: the program does, before them.
pub(super) fn finish() {
    if let Some(mut windows) = LIMITER.lock_soon() {
        let open = Limiter::open(&mut windows, Instant::now());
        drop(windows);
        tell(open);
    }
}

/// One line for each window that left something out.
fn tell(windows: Vec<(u64, Duration, String)>) {
    for (count, time, example) in windows {
        let seconds = time.as_secs().max(1);
        tracing::warn!(target: SUMMARY, "{count} more in the last {seconds} s: {example}");
    }
}

/// Lets messages of a target through, except repeated ones.
pub(crate) struct Limit {
    /// The target that has another layer.
    pub(crate) without: &'static str,
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.target() != self.without
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let is_limited = *metadata.level() <= Level::INFO && metadata.target() != SUMMARY;
        if !is_limited || !IS_ACTIVE.load(Ordering::Relaxed) {
            return true;
        }
        let mut about = About::default();
        event.record(&mut about);
        LIMITER.admit(metadata.callsite(), about, Instant::now())
    }
}

/// What a message says, and about whom.
#[derive(Default)]
struct About {
    text: String,
    whom: String,
}

impl About {
    fn add(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let name = field.name();
        // Writing to a string does not fail.
        if name == "message" {
            let _ = write!(self.text, "{value:?}");
        } else if WHOM.contains(&name) {
            let value = format!("{value:?}");
            let _ = write!(self.whom, "{} ", subjects(&value).unwrap_or(value));
        }
    }

    /// Whom it is about.
    fn key(&self) -> String {
        if self.whom.is_empty() {
            subjects(&self.text).unwrap_or_default()
        } else {
            self.whom.clone()
        }
    }
}

impl Visit for About {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &format_args!("{value}"));
    }
}

/// The names and addresses in a text. A port does not count: each connection of a peer has another.
fn subjects(text: &str) -> Option<String> {
    let is_edge = |c: char| matches!(c, ',' | ';' | '"' | '\'' | '`' | '(' | ')');
    let address = |word: &str| {
        let with_port = word.parse::<SocketAddr>().map(|address| address.ip());
        with_port.or_else(|_| word.parse::<IpAddr>()).ok()
    };
    let found = text.split_whitespace().filter_map(|word| {
        let word = word.trim_matches(is_edge);
        // A colon may belong to an address of IPv6.
        let bare = word.trim_end_matches(':').trim_end_matches(is_edge);
        match address(word).or_else(|| address(bare)) {
            Some(ip) => Some(ip.to_string()),
            None => {
                let is_name = bare.starts_with("nqn.") || bare.starts_with("iqn.");
                is_name.then(|| bare.to_owned())
            }
        }
    });
    let found: Vec<String> = found.take(MOST_SUBJECTS).collect();
    (!found.is_empty()).then(|| found.join(" "))
}

#[derive(Default)]
struct Limiter {
    windows: Mutex<HashMap<(Identifier, String), Window>>,
    /// Something has been left out.
    left_out: Condvar,
}

struct Window {
    began: Instant,
    shown: u32,
    left_out: u64,
    example: String,
}

type Windows<'a> = MutexGuard<'a, HashMap<(Identifier, String), Window>>;

impl Limiter {
    fn lock(&self) -> Windows<'_> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for a thread that may have panicked while it held the lock.
    fn lock_soon(&self) -> Option<Windows<'_>> {
        for _ in 0..LOCK_TRIES {
            match self.windows.try_lock() {
                Ok(windows) => return Some(windows),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
        None
    }

    /// Whether a message is shown.
    fn admit(&self, place: Identifier, about: About, now: Instant) -> bool {
        let mut windows = self.lock();
        let key = (place, about.key());
        if let Some(window) = windows.get_mut(&key) {
            // Those that have been left out are told of first.
            if window.left_out == 0 && now.duration_since(window.began) >= WINDOW {
                (window.began, window.shown) = (now, 0);
            }
            if window.shown < SHOWN {
                window.shown += 1;
                return true;
            }
            window.left_out += 1;
            if window.left_out == 1 {
                let end = about.text.floor_char_boundary(EXAMPLE_BYTES);
                window.example = about.text[..end].to_owned();
                self.left_out.notify_one();
            }
            return false;
        }
        if windows.len() >= MOST_PAIRS {
            make_room(&mut windows, now);
        }
        windows.insert(key, Window { began: now, shown: 1, left_out: 0, example: String::new() });
        true
    }

    /// The windows that have ended since and left something out: how many messages, in which time, and one of them.
    fn due(windows: &mut Windows<'_>, now: Instant) -> Vec<(u64, Duration, String)> {
        let mut due = Vec::new();
        windows.retain(|_, window| {
            let time = now.duration_since(window.began);
            let has_ended = time >= WINDOW;
            if has_ended && window.left_out > 0 {
                due.push((window.left_out, time, std::mem::take(&mut window.example)));
            }
            !has_ended
        });
        due
    }

    /// The windows that have left something out, whether they have ended or not, as [`Limiter::due`] has them. Each is given once.
    fn open(windows: &mut Windows<'_>, now: Instant) -> Vec<(u64, Duration, String)> {
        let left_out = windows.values_mut().filter(|window| window.left_out > 0);
        let take = |window: &mut Window| {
            let time = now.duration_since(window.began);
            (std::mem::take(&mut window.left_out), time, std::mem::take(&mut window.example))
        };
        left_out.map(take).collect()
    }

    /// Waits until a window has ended that left something out.
    fn wait_for_due(&self) -> Vec<(u64, Duration, String)> {
        let mut windows = self.lock();
        loop {
            let now = Instant::now();
            let due = Self::due(&mut windows, now);
            if !due.is_empty() {
                return due;
            }
            let next = windows.values().filter(|window| window.left_out > 0).map(|w| w.began).min();
            windows = match next {
                Some(began) => {
                    let left = (began + WINDOW).saturating_duration_since(now);
                    let waited = self.left_out.wait_timeout(windows, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.left_out.wait(windows).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Forgets windows that have ended, or else the oldest that has left nothing out, or else the oldest.
fn make_room(windows: &mut Windows<'_>, now: Instant) {
    windows.retain(|_, window| window.left_out > 0 || now.duration_since(window.began) < WINDOW);
    if windows.len() < MOST_PAIRS {
        return;
    }
    let oldest = windows.iter().min_by_key(|(_, window)| (window.left_out > 0, window.began));
    if let Some(key) = oldest.map(|(key, _)| key.clone()) {
        windows.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use tracing::Callsite as _;

    use super::*;

    fn place(number: usize) -> Identifier {
        let places = [
            tracing::callsite!(name: "one", kind: tracing::metadata::Kind::EVENT, fields: message)
                .metadata()
                .callsite(),
            tracing::callsite!(name: "two", kind: tracing::metadata::Kind::EVENT, fields: message)
                .metadata()
                .callsite(),
        ];
        places[number].clone()
    }

    fn about(text: &str) -> About {
        About { text: text.to_owned(), whom: String::new() }
    }

    #[test]
    fn a_noisy_place_hides_neither_another_place_nor_another_peer() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        let shown = |text: &str, number| limiter.admit(place(number), about(text), now);
        let noise = (0..1000).filter(|port| shown(&format!("192.0.2.7:{port} is bad"), 0)).count();
        assert_eq!(noise, 5, "the port of a peer does not count");
        assert!(shown("192.0.2.8:9 is bad", 0), "another peer");
        assert!(shown("[2001:db8::1]:9 is bad", 0), "another peer");
        assert!(shown("192.0.2.7:1 is bad", 1), "another place");
        let later = now + WINDOW;
        let due = Limiter::due(&mut limiter.lock(), later);
        assert_eq!(due, [(995, WINDOW, "192.0.2.7:5 is bad".to_owned())]);
        assert!(limiter.admit(place(0), about("192.0.2.7:1 is bad"), later), "a new window");
        assert_eq!(limiter.lock().len(), 1);
    }

    #[test]
    fn what_was_left_out_is_told_at_the_end_of_the_program() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        for peer in ["192.0.2.7", "192.0.2.8"] {
            for port in 1..=8 {
                limiter.admit(place(0), about(&format!("{peer}:{port} is bad")), now);
            }
        }
        limiter.admit(place(0), about("192.0.2.9:1 is bad"), now);
        let end = now + WINDOW / 2;
        assert!(Limiter::due(&mut limiter.lock(), end).is_empty(), "no window has ended");
        let mut told = Limiter::open(&mut limiter.lock_soon().unwrap(), end);
        told.sort();
        let left = |peer: &str| (3, WINDOW / 2, format!("{peer}:6 is bad"));
        assert_eq!(told, [left("192.0.2.7"), left("192.0.2.8")]);
        assert!(Limiter::open(&mut limiter.lock(), end).is_empty(), "told twice");
        // The thread that ends the program may have the lock.
        let _held = limiter.lock();
        assert!(limiter.lock_soon().is_none());
    }

    #[test]
    fn more_peers_than_are_counted_are_all_heard() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        for peer in 0..MOST_PAIRS + 50 {
            let text = format!("nqn.2026-01.io.raceline:h{peer}: gone");
            assert!(limiter.admit(place(0), about(&text), now), "{peer}");
        }
        assert_eq!(limiter.lock().len(), MOST_PAIRS);
    }

    #[test]
    fn names_and_addresses_are_found() {
        for (text, found) in [
            ("host nqn.2014-08.org:h, refused", Some("nqn.2014-08.org:h")),
            ("(192.0.2.1:4420) to ::1", Some("192.0.2.1 ::1")),
            ("`iqn.2026-01.io.raceline:a`", Some("iqn.2026-01.io.raceline:a")),
            ("nothing at 10:30", None),
        ] {
            assert_eq!(subjects(text).as_deref(), found, "{text}");
        }
    }
}
