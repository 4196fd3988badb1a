//! Rates that are kept.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use raceline_target::QosLimits;

/// A limit of commands per second and of nothing else.
pub(crate) fn ios(rate: u64) -> QosLimits {
    QosLimits { rw_ios_per_sec: rate, ..QosLimits::default() }
}

/// For how long a machine may be too busy to reach a rate.
const BUSY: Duration = Duration::from_secs(120);

/// Who measures, or fills a core: two of them in one program would measure each other.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test of this program measures or fills a core.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a rate is kept: never exceeded, and reached. A busy machine stops the program for longer than the burst of a
/// limit, so it has many tries to reach it.
pub(crate) fn keeps(expected: u64, slack: u64, mut measure: impl FnMut() -> u64) {
    let _alone = alone();
    let start = Instant::now();
    let mut all = Vec::new();
    while start.elapsed() < BUSY {
        let answered = measure();
        assert!(answered <= expected + slack, "{answered} of {expected}");
        if answered + slack >= expected {
            return;
        }
        all.push(answered);
    }
    panic!("the rate of {expected} is not reached in {BUSY:?}: {all:?}");
}

/// Whether there is no limit: more commands than one would allow are answered. It has as many tries.
pub(crate) fn exceeds(most: u64, mut measure: impl FnMut() -> u64) {
    let _alone = alone();
    let start = Instant::now();
    let mut all = Vec::new();
    while start.elapsed() < BUSY {
        let answered = measure();
        if answered > most {
            return;
        }
        all.push(answered);
    }
    panic!("no more than {most} within {BUSY:?}, as if a limit were there: {all:?}");
}
