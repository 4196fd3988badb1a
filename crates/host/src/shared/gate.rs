//! One thread at a time drives something; others leave their work to it, and none is forgotten.
//!
//! A thread that has work puts it where the driver looks for it, then tries the lock. Either it gets
//! the lock and drives; or somebody else has it, and that one looks for work again after it has given
//! the lock back. A fence on both sides, between the thread's own write and its look at the other's,
//! makes sure that at least one of the two sees what the other did.

use crate::sync::{Mutex, Ordering, TryLockError, fence};

/// Something that is driven by whichever thread comes by.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    inside: Mutex<T>,
}

impl<T> Gate<T> {
    /// Nobody drives it yet.
    pub(crate) fn new(value: T) -> Gate<T> {
        Gate { inside: Mutex::new(value) }
    }

    /// Drives, unless another thread does: `turn` once, and again for as long as `has_work` then
    /// says that somebody has left work behind. Gives how often; 0 means that another thread drives,
    /// and will look for work after this call. Never blocks.
    pub(crate) fn drive(&self, has_work: impl Fn() -> bool, mut turn: impl FnMut(&mut T)) -> u32 {
        let mut turns = 0;
        // The work that the caller has put somewhere is seen by whoever has the lock and looks
        // after us.
        fence(Ordering::SeqCst);
        loop {
            let mut inside = match self.inside.try_lock() {
                Ok(inside) => inside,
                Err(TryLockError::WouldBlock) => return turns,
                // A turn that panicked. Its thread knows; the others must not hang.
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
