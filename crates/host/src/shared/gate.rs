//! One thread at a time drives a value; other threads leave their work to it, and no work is forgotten.
//!
//! A thread that has work puts it where the driver looks for it, then tries the lock. If the thread gets
//! the lock, it drives. If another thread has the lock, that thread looks for work again after it has given
//! the lock back. Each side has a fence between its own write and its look at the other side's, so that at
//! least one of the two sees what the other did.

use crate::sync::{Mutex, Ordering, TryLockError, fence};

/// A value that is driven by one thread at a time, whichever calls.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    inside: Mutex<T>,
}

impl<T> Gate<T> {
    /// Starts with no thread that drives `value`.
    pub(crate) fn new(value: T) -> Gate<T> {
        Gate { inside: Mutex::new(value) }
    }

    /// Drives, unless another thread does: calls `turn` once, and again for as long as `has_work` then says
    /// that another thread has left work behind. Returns how often it called `turn`; 0 means that another
    /// thread drives, and will look for work after this call. Never blocks.
    pub(crate) fn drive(&self, has_work: impl Fn() -> bool, mut turn: impl FnMut(&mut T)) -> u32 {
        let mut turns = 0;
        // The thread that has the lock, and looks after this fence, sees the work that the caller has left.
        fence(Ordering::SeqCst);
        loop {
            let mut inside = match self.inside.try_lock() {
                Ok(inside) => inside,
                Err(TryLockError::WouldBlock) => return turns,
                // The thread whose turn panicked knows of it; the others must not hang.
                Err(TryLockError::Poisoned(inside)) => inside.into_inner(),
            };
            turn(&mut inside);
            drop(inside);
            turns += 1;
            fence(Ordering::SeqCst);
            if !has_work() {
                return turns;
            }
        }
    }
}
