//! Whether a thread waits, so that waking it costs a system call only if it does.
//!
//! One atomic holds what the thread does: `RUNNING`, `WAITING`, or `NOTIFIED` (it was woken since it last
//! looked). Waking is one exchange to `NOTIFIED`; only when that replaces `WAITING` must the thread be
//! roused. Before it waits, it turns `RUNNING` into `WAITING`; if it finds `NOTIFIED` instead, it looks
//! for work again. Nothing is lost: a waker publishes the work before its exchange, so either the
//! thread's own exchange comes later and sees `NOTIFIED` (and with it the work), or it came before and
//! the waker sees `WAITING`.

use crate::sync::{AtomicU32, Ordering};

const RUNNING: u32 = 0;
const WAITING: u32 = 1;
const NOTIFIED: u32 = 2;

/// What one thread does, as others need to know it.
#[derive(Debug)]
pub(crate) struct WakeState(AtomicU32);

impl WakeState {
    /// A thread that runs.
    pub(crate) fn new() -> WakeState {
        WakeState(AtomicU32::new(RUNNING))
    }

    /// Tells the thread that there is work. True if it waits, and so must be roused.
    pub(crate) fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::AcqRel) == WAITING
    }

    /// Declares that the thread is about to wait. False if it was woken meanwhile: then it must not
    /// wait, but look for work again.
    pub(crate) fn start_wait(&self) -> bool {
        if self.0.swap(WAITING, Ordering::AcqRel) == NOTIFIED {
            self.0.swap(RUNNING, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Declares that the thread runs again.
    pub(crate) fn end_wait(&self) {
        self.0.swap(RUNNING, Ordering::AcqRel);
    }
}
