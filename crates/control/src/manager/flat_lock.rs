//! A lock for readers and writers that a thread holds once at a time.
//!
//! With the lock of the standard library, a thread that reads may not read again before it has let go: when
//! another thread waits to write in between, both wait for ever. That happens rarely, and then the daemon
//! answers nobody. Debug builds, and with them all tests, therefore refuse every second lock of one thread,
//! whether another thread waits or not. Nor may a thread that holds it wait for a target, whose threads may want
//! the lock.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use raceline_reactor::no_wait::NoWait;

thread_local! {
    /// The addresses of the locks that this thread holds; in debug builds.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A value that threads read and write. A panic of a thread that holds the lock does not make it unusable.
#[derive(Default)]
pub(super) struct FlatLock<T>(RwLock<T>);

impl<T> FlatLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Locks it for reading.
    #[track_caller]
    pub(super) fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::note(self);
        ReadGuard { value: self.0.read().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Locks it for writing.
    #[track_caller]
    pub(super) fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::note(self);
        WriteGuard { value: self.0.write().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

/// A value that is locked for reading.
pub struct ReadGuard<'a, T> {
    value: RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A value that is locked for writing.
pub struct WriteGuard<'a, T> {
    value: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// The note that this thread holds a lock. The guards cannot move to another thread, so neither can it.
struct Held {
    address: usize,
    _no_wait: NoWait,
}

impl Held {
    #[track_caller]
    fn note<T>(lock: &FlatLock<T>) -> Self {
        let address = std::ptr::from_ref(lock).addr();
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                let is_second = held.contains(&address);
                assert!(!is_second, "this thread holds the lock already, and could wait for ever");
                held.push(address);
            });
        }
        Self { address, _no_wait: NoWait::begin() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| held.retain(|address| *address != self.address));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn is_refused(second: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(second)).is_err()
    }

    #[test]
    fn a_second_lock_of_one_thread_is_refused() {
        let lock = FlatLock::new(1);
        let first = lock.read();
        assert!(is_refused(|| drop(lock.read())) && is_refused(|| drop(lock.write())));
        drop(first);
        let first = lock.write();
        assert!(is_refused(|| drop(lock.read())) && is_refused(|| drop(lock.write())));
        drop(first);
        *lock.write() += 1;
        assert_eq!(*lock.read(), 2);
    }

    #[test]
    fn locks_of_other_threads_and_other_locks_are_free() {
        let (lock, other) = (FlatLock::new(1), FlatLock::new(2));
        let first = lock.read();
        assert_eq!(*other.write(), 2);
        let there = std::thread::scope(|scope| scope.spawn(|| *lock.read()).join());
        assert_eq!((*first, there.unwrap()), (1, 1));
    }

    #[test]
    fn a_panic_lets_go() {
        let lock = FlatLock::new(1);
        assert!(is_refused(|| {
            let _written = lock.write();
            panic!("as a test");
        }));
        assert_eq!(*lock.write(), 1);
    }
}
