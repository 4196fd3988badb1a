//! What a core's loop does with its time, readable from other threads while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Number of buckets of the loop-time histogram. Bucket `n` counts busy turns that took from
/// 2^n up to 2^(n+1) nanoseconds; the last one also counts all longer ones (from 2.1 s).
pub const LOOP_TIME_BUCKETS: usize = 32;

/// A count with one writer and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; by the one writer only, so this needs no locked instruction.
    pub fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
}

/// Defines counters with one writer and any number of readers, and the values that they have at one time.
///
/// The first structure holds a [`Counter`] for each name of `counts`, for this crate to write; it is alone on its cache
/// lines, so that its writer is not slowed down by those of others. The second one holds numbers: those counts, and each
/// name of `sums` as the sum of some of them. Between both may stand `tables`: rows of counts of one length each. A reader
/// reads them before the counts, so that a row never has more than a count that its writer adds to first.
#[macro_export]
macro_rules! counters {
    (
        $(#[$counters_doc:meta])* $counters_vis:vis struct $Counters:ident;
        $(#[$totals_doc:meta])* $totals_vis:vis struct $Totals:ident;
        counts { $( $(#[$doc:meta])* $name:ident, )* }
        $( tables { $( $(#[$table_doc:meta])* $table:ident: $len:expr, )* } )?
        sums { $( $(#[$sum_doc:meta])* $sum:ident = $first:ident $( + $part:ident )*, )* }
    ) => {
        $(#[$counters_doc])*
        #[derive(Debug, Default)]
        #[repr(align(128))]
        $counters_vis struct $Counters {
            $( $(#[$doc])* pub(crate) $name: $crate::stats::Counter, )*
            $( $( $(#[$table_doc])* pub(crate) $table: [$crate::stats::Counter; $len], )* )?
        }

        $(#[$totals_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $totals_vis struct $Totals {
            $( $(#[$doc])* pub $name: u64, )*
            $( $( $(#[$table_doc])* pub $table: [u64; $len], )* )?
            $( $(#[$sum_doc])* pub $sum: u64, )*
        }

        impl $Counters {
            /// The counts as of now.
            #[must_use]
            $counters_vis fn totals(&self) -> $Totals {
                // Without sums, nothing changes it.
                #[allow(unused_mut)]
                let mut totals = $Totals {
                    $( $( $table: ::std::array::from_fn(|row| self.$table[row].get()), )* )?
                    $( $name: self.$name.get(), )*
                    $( $sum: 0, )*
                };
                $( totals.$sum = totals.$first $( + totals.$part )*; )*
                totals
            }
        }

        impl $Totals {
            /// Adds the counts of another one.
            pub fn add(&mut self, other: &Self) {
                $( self.$name += other.$name; )*
                $( $(
                    for (count, more) in self.$table.iter_mut().zip(&other.$table) {
                        *count += more;
                    }
                )* )?
                $( self.$sum += other.$sum; )*
            }

            /// What was counted since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $( $name: self.$name.saturating_sub(earlier.$name), )*
                    $( $(
                        $table: ::std::array::from_fn(|row| {
                            self.$table[row].saturating_sub(earlier.$table[row])
                        }),
                    )* )?
                    $( $sum: self.$sum.saturating_sub(earlier.$sum), )*
                }
            }
        }
    };
}

/// What an [`crate::Io`] has asked of the kernel since it was opened.
///
/// System calls are those that move data, collect completions, wait, and are woken. Setting up
/// sockets and files is not among them, nor is what helper threads do for files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// System calls.
    pub system_calls: u64,
    /// Receives that brought bytes.
    pub receives: u64,
    /// Sends that took bytes; a batch that needs two counts as two.
    pub sends: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Batches that left in shares, as another socket waited for its turn.
    pub shared_sends: u64,
}

impl IoCounts {
    pub(crate) fn received(&mut self, count: usize) {
        self.receives += u64::from(count > 0);
        self.received_bytes += count as u64;
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.sends += u64::from(count > 0);
        self.sent_bytes += count as u64;
    }
}

/// How batches that are not simply copied have left a core. Written by that core alone, and only when such
/// a batch leaves.
#[derive(Debug, Default)]
pub struct DepartureStats {
    pub(crate) zero_copy_sends: Counter,
    pub(crate) zero_copy_bytes: Counter,
    pub(crate) zero_copy_copied: Counter,
    pub(crate) zero_copy_refused: Counter,
    pub(crate) more_sends: Counter,
    pub(crate) eor_sends: Counter,
    pub(crate) uncorks: Counter,
}

/// The values of [`DepartureStats`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepartureCounts {
    /// Batches that left without a copy ([`crate::flow::Departure::ZeroCopy`]).
    pub zero_copy_sends: u64,
    /// Their bytes.
    pub zero_copy_bytes: u64,
    /// How often the kernel told that it has copied after all; the socket then copies by itself.
    pub zero_copy_copied: u64,
    /// How often the kernel refused to send without a copy: the batch was copied.
    pub zero_copy_refused: u64,
    /// System calls of flagged sockets that told that more follows (MSG_MORE).
    pub more_sends: u64,
    /// System calls of flagged sockets that ended a record (MSG_EOR).
    pub eor_sends: u64,
    /// How often what was told to follow did not, and the kernel was told to send.
    pub uncorks: u64,
}

impl DepartureStats {
    /// Reads all counters, each by itself.
    #[must_use]
    pub fn snapshot(&self) -> DepartureCounts {
        DepartureCounts {
            zero_copy_sends: self.zero_copy_sends.get(),
            zero_copy_bytes: self.zero_copy_bytes.get(),
            zero_copy_copied: self.zero_copy_copied.get(),
            zero_copy_refused: self.zero_copy_refused.get(),
            more_sends: self.more_sends.get(),
            eor_sends: self.eor_sends.get(),
            uncorks: self.uncorks.get(),
        }
    }

    /// A flagged system call has taken bytes.
    pub(crate) fn count_flags(&self, flags: libc::c_int) {
        match flags {
            libc::MSG_MORE => self.more_sends.add(1),
            libc::MSG_EOR => self.eor_sends.add(1),
            _ => {}
        }
    }
}

impl DepartureCounts {
    /// Adds the counts of another core.
    pub fn add(&mut self, other: &DepartureCounts) {
        self.zero_copy_sends += other.zero_copy_sends;
        self.zero_copy_bytes += other.zero_copy_bytes;
        self.zero_copy_copied += other.zero_copy_copied;
        self.zero_copy_refused += other.zero_copy_refused;
        self.more_sends += other.more_sends;
        self.eor_sends += other.eor_sends;
        self.uncorks += other.uncorks;
    }
}

/// Counters of one core's loop. Written by that core alone, with plain loads and stores; on cache lines
/// of their own (two, since the prefetcher fetches pairs), so that data of other threads do not slow the
/// core down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopStats {
    turns: Counter,
    busy_turns: Counter,
    waits: Counter,
    busy_ns: Counter,
    longest_ns: Counter,
    system_calls: Counter,
    receives: Counter,
    sends: Counter,
    received_bytes: Counter,
    sent_bytes: Counter,
    shared_sends: Counter,
    /// Written by its [`crate::Io`] itself.
    departures: OnceLock<Arc<DepartureStats>>,
    buckets: [Counter; LOOP_TIME_BUCKETS],
}

/// The values of [`LoopStats`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopSnapshot {
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that had a completion or a message.
    pub busy_turns: u64,
    /// Turns that were allowed to wait in the kernel.
    pub waits: u64,
    /// What its [`crate::Io`] has done.
    pub io: IoCounts,
    /// How its [`crate::Io`] has sent batches that are not simply copied.
    pub departures: DepartureCounts,
    /// Time that went into busy turns, with the polls that found their work but without sleep.
    /// On a core that spins, the rest is time in which it looked for work and found none.
    pub busy: Duration,
    /// The longest time that a busy turn took, without its wait. The core served nothing else during that
    /// time.
    pub longest: Duration,
    /// The times of busy turns, by powers of two: see [`LOOP_TIME_BUCKETS`].
    pub buckets: [u64; LOOP_TIME_BUCKETS],
}

impl LoopStats {
    /// Reads all counters, each by itself.
    pub fn snapshot(&self) -> LoopSnapshot {
        LoopSnapshot {
            turns: self.turns.get(),
            busy_turns: self.busy_turns.get(),
            waits: self.waits.get(),
            io: IoCounts {
                system_calls: self.system_calls.get(),
                receives: self.receives.get(),
                sends: self.sends.get(),
                received_bytes: self.received_bytes.get(),
                sent_bytes: self.sent_bytes.get(),
                shared_sends: self.shared_sends.get(),
            },
            departures: self.departures.get().map(|stats| stats.snapshot()).unwrap_or_default(),
            busy: Duration::from_nanos(self.busy_ns.get()),
            longest: Duration::from_nanos(self.longest_ns.get()),
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].get()),
        }
    }

    /// Where the core's [`crate::Io`] counts how batches leave.
    pub(crate) fn set_departures(&self, stats: Arc<DepartureStats>) {
        // There is one Io to a core.
        let _ = self.departures.set(stats);
    }

    pub(crate) fn record_turn(&self, may_wait: bool, io: IoCounts) {
        self.turns.add(1);
        if may_wait {
            self.waits.add(1);
        }
        self.system_calls.set(io.system_calls);
        self.receives.set(io.receives);
        self.sends.set(io.sends);
        self.received_bytes.set(io.received_bytes);
        self.sent_bytes.set(io.sent_bytes);
        self.shared_sends.set(io.shared_sends);
    }

    /// A busy turn: the time since its poll returned, and the time of the poll that found its work,
    /// zero if that may have slept.
    pub(crate) fn record_busy(&self, time: Duration, poll: Duration) {
        let ns = nanoseconds(time);
        self.busy_turns.add(1);
        self.busy_ns.add(ns.saturating_add(nanoseconds(poll)));
        self.buckets[bucket(ns)].add(1);
        if ns > self.longest_ns.get() {
            self.longest_ns.set(ns);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(ns: u64) -> usize {
    let log2 = ns.max(1).ilog2();
    usize::try_from(log2).map_or(LOOP_TIME_BUCKETS - 1, |log2| log2.min(LOOP_TIME_BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_land_in_their_power_of_two() {
        let stats = LoopStats::default();
        for ns in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            stats.record_turn(ns == 0, IoCounts::default());
            stats.record_busy(Duration::from_nanos(ns), Duration::ZERO);
        }
        let snapshot = stats.snapshot();
        assert_eq!((snapshot.turns, snapshot.busy_turns, snapshot.waits), (8, 8, 1));
        let expected = [(0, 2), (1, 2), (2, 1), (9, 1), (10, 1), (31, 1)];
        for (bucket, count) in expected {
            assert_eq!(snapshot.buckets[bucket], count, "bucket {bucket}");
        }
        assert_eq!(snapshot.longest, Duration::from_nanos(u64::MAX));
        assert_eq!(align_of::<LoopStats>(), 128);
    }

    #[test]
    fn busy_time_has_the_polls_that_found_the_work() {
        let stats = LoopStats::default();
        stats.record_turn(false, IoCounts::default());
        stats.record_busy(Duration::from_nanos(700), Duration::from_nanos(300));
        stats.record_busy(Duration::from_nanos(5), Duration::ZERO);
        let snapshot = stats.snapshot();
        assert_eq!(snapshot.busy, Duration::from_nanos(1005));
        assert_eq!(snapshot.longest, Duration::from_nanos(700));
    }
}
