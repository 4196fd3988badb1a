//! Whether a device that says so can send with invalidation, as its users find out.

use std::sync::atomic::{AtomicBool, Ordering};

/// What the users of a device have seen of its SENDs that invalidate keys.
///
/// Devices give the errors of an operation that they do not have for other failures, too: cxgb4 refuses a request with EINVAL
/// while the queue pair is in error, and siw ends one with `LOC_QP_OP_ERR` when the transport fails. A peer can cause both. So
/// such an error says something of the device only as long as no such SEND has succeeded.
#[derive(Debug, Default)]
pub(crate) struct Invalidation {
    has_succeeded: AtomicBool,
    fails: AtomicBool,
}

impl Invalidation {
    /// A SEND that invalidates a key has succeeded.
    #[inline]
    pub(crate) fn note_success(&self) {
        // Usually known: all cores read, and none writes.
        if !self.has_succeeded.load(Ordering::Relaxed) {
            self.has_succeeded.store(true, Ordering::Relaxed);
        }
    }

    /// One has failed at this end. True if that is the first news of it: the device is not asked to invalidate any longer.
    pub(crate) fn note_failure(&self) -> bool {
        !self.has_succeeded.load(Ordering::Relaxed) && !self.fails.swap(true, Ordering::Relaxed)
    }

    /// Whether the device is not asked to invalidate.
    #[inline]
    pub(crate) fn fails(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }
}
