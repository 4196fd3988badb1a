//! Counts of what queues have done: one writer each, read by others without locks.

use raceline_reactor::stats::Counter;

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

            /// What was counted since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $( $name: self.$name.saturating_sub(earlier.$name), )* }
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
    /// PDUs received, ICReq and TermReq included.
    pdus_received,
    /// PDUs given to sends, ICResp and TermReq included.
    pdus_sent,
    /// Bytes of data that were copied in user space: from where they were received to their I/O
    /// buffer, and between buffers and a device in memory.
    copied_bytes,
    /// I/O buffers taken from the small ones of the core.
    small_buffers,
    /// I/O buffers taken from the large ones of the core.
    large_buffers,
    /// Times a command had to wait for an I/O buffer.
    buffer_waits,
    /// Times among them that a small one would have done.
    small_buffer_waits,
    /// Time with at least one command outstanding in microseconds, up to the last time there was
    /// none.
    busy_us,
}
