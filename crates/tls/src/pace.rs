//! How much of a core's time handshakes may take: half of it, one step at a time.
//!
//! A step of a handshake computes for some hundred microseconds. When many hosts connect at once, the commands of all
//! others go on between two steps, and as much time is left for them.

use std::cell::Cell;
use std::time::Instant;

/// When the next step may begin.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    not_before: Option<Instant>,
}

impl Pace {
    fn allows(self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| now >= time)
    }

    /// A step has taken this time.
    fn after(began: Instant, ended: Instant) -> Pace {
        Pace { not_before: Some(ended + ended.saturating_duration_since(began)) }
    }
}

thread_local! {
    static PACE: Cell<Pace> = const { Cell::new(Pace { not_before: None }) };
}

/// Whether this thread may do a step now.
pub(crate) fn allows() -> bool {
    PACE.get().allows(Instant::now())
}

/// Does a step, and counts its time.
pub(crate) fn step<T>(work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    PACE.set(Pace::after(began, Instant::now()));
    result
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_is_followed_by_as_much_time_for_others() {
        let began = Instant::now();
        assert!(Pace::default().allows(began));
        let ended = began + Duration::from_micros(300);
        let pace = Pace::after(began, ended);
        assert!(!pace.allows(ended));
        assert!(!pace.allows(ended + Duration::from_micros(299)));
        assert!(pace.allows(ended + Duration::from_micros(300)));
    }

    #[test]
    fn threads_have_paces_of_their_own() {
        step(|| std::thread::sleep(Duration::from_millis(200)));
        assert!(!allows());
        assert!(std::thread::spawn(allows).join().unwrap());
    }
}
