//! Threads that must not wait, because they hold what others need to answer them.
//!
//! A thread notes that it holds such a lock, and code that waits asks whether it may. In debug builds, and so in all tests,
//! code that waits while its thread must not is a panic, whether somebody needs the lock at that moment or not. Release builds
//! ask nothing.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// How many reasons this thread has not to wait; in debug builds.
    static REASONS: Cell<u32> = const { Cell::new(0) };
}

/// This thread must not wait while this lives. It belongs to its thread.
#[derive(Debug)]
pub struct NoWait(PhantomData<*const ()>);

/// This thread may wait while this lives, whatever reasons it had not to. It belongs to its thread.
#[derive(Debug)]
pub struct MayWait {
    before: u32,
    _thread: PhantomData<*const ()>,
}

impl NoWait {
    /// One more reason.
    #[must_use]
    pub fn begin() -> Self {
        if cfg!(debug_assertions) {
            REASONS.set(REASONS.get() + 1);
        }
        Self(PhantomData)
    }
}

impl Drop for NoWait {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            REASONS.set(REASONS.get().saturating_sub(1));
        }
    }
}

impl MayWait {
    /// Lifts all reasons: the caller knows that those for whom it waits do not want what this thread holds.
    #[must_use]
    pub fn begin() -> Self {
        Self { before: REASONS.replace(0), _thread: PhantomData }
    }
}

impl Drop for MayWait {
    fn drop(&mut self) {
        REASONS.set(self.before);
    }
}

/// Called by code that may wait for another thread.
///
/// # Panics
/// In debug builds, if this thread must not wait.
#[track_caller]
pub fn check() {
    if cfg!(debug_assertions) {
        let reasons = REASONS.get();
        assert!(reasons == 0, "this thread holds what others need, and would wait for them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_reason_may_not_wait() {
        check();
        let (one, two) = (NoWait::begin(), NoWait::begin());
        assert!(std::panic::catch_unwind(check).is_err());
        {
            let _they_do_not_want_it = MayWait::begin();
            check();
        }
        std::thread::spawn(check).join().unwrap();
        drop(one);
        assert!(std::panic::catch_unwind(check).is_err());
        drop(two);
        check();
    }
}
