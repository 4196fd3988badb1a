//! Counts of what queues have done: one writer each, read by others without locks.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($( $(#[$doc:meta])* $name:ident, )*) => {
        /// What one queue has done. Written by its core only; alone on its cache lines.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct QueueCounters {
            $( $(#[$doc])* pub(crate) $name: Counter, )*
        }

        /// A copy of the counts of one queue, or the sum over several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QueueTotals {
            $( $(#[$doc])* pub $name: u64, )*
        }

        impl QueueCounters {
            /// The counts as of now.
            #[must_use]
            pub(crate) fn totals(&self) -> QueueTotals {
                QueueTotals { $( $name: self.$name.get(), )* }
            }
        }

        impl QueueTotals {
            /// Adds the counts of another queue.
            pub fn add(&mut self, other: &Self) {
                $( self.$name += other.$name; )*
            }
        }
    };
}

counters! {
    /// Command capsules received.
    commands,
    /// Read commands completed.
    reads,
    /// Write commands completed.
    writes,
    /// Bytes read by the host.
    read_bytes,
    /// Bytes written by the host.
    written_bytes,
    /// Commands completed with an error.
    errors,
    /// Media errors among them.
    media_errors,
    /// Data digests that did not match.
    digest_errors,
    /// Receives that brought bytes.
    receives,
    /// Sends.
    sends,
    /// Times a command had to wait for an I/O buffer.
    buffer_waits,
    /// Time with at least one command outstanding in microseconds, up to the last time there was
    /// none.
    busy_us,
}

/// A count with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; by the one writer only, so no read-modify-write is needed.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
