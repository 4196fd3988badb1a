//! The paths of bytes that a run has taken: some seed must take each of them.

use raceline_host::QueueTotals as HostTotals;
use raceline_reactor::stats::IoCounts;
use raceline_target::QueueTotals as TargetTotals;

/// How many times each path was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    counts: [u64; NAMES.len()],
}

/// The paths, in the order of the counts.
const NAMES: [&str; 17] = [
    "host: a payload received into its buffer",
    "host: large payloads received into the core's staging memory",
    "host: commands kept back, as the caches are flooded",
    "host: commands sent before data",
    "host: an authentication",
    "a batch sent in shares beside a socket that sends little",
    "target: a read answered with its header",
    "target: a read with a slot, of data at hand",
    "target: a read in place, by a request",
    "target: a read in place, copied by an engine",
    "target: a read into an I/O buffer",
    "target: a write done with its header",
    "target: a write with a slot, from staging memory",
    "target: a write in blocks, as they came",
    "target: a write by way of staging memory into an I/O buffer",
    "target: a write kept out of staging memory",
    "target: a command in line for a buffer while a host has a weight",
];

/// Seeds within which every path must be taken; far fewer suffice.
pub const SEEDS_FOR_ALL: u64 = 200;

impl Paths {
    /// The paths of the queues of one host.
    #[must_use]
    pub fn of_host(totals: &HostTotals) -> Self {
        Self::from(
            0,
            &[
                totals.landed_in_place,
                totals.landed_in_staging,
                totals.commands_kept_back,
                totals.commands_before_data,
                totals.authentications,
            ],
        )
    }

    /// The paths of a core's sockets.
    #[must_use]
    pub fn of_io(counts: &IoCounts) -> Self {
        Self::from(5, &[counts.shared_sends])
    }

    /// The paths of the commands of a target.
    #[must_use]
    pub fn of_target(totals: &TargetTotals) -> Self {
        Self::from(
            6,
            &[
                totals.reads_at_once,
                totals.reads_at_hand,
                totals.reads_in_place,
                totals.reads_copied,
                totals.reads_buffered,
                totals.writes_at_once,
                totals.writes_staged,
                totals.writes_in_blocks,
                totals.writes_buffered,
                totals.writes_direct,
            ],
        )
    }

    /// Commands of a target that waited for a buffer by the weights of hosts.
    #[must_use]
    pub fn of_weights(buffer_waits: u64) -> Self {
        Self::from(16, &[buffer_waits])
    }

    /// These counts, from the path with index `first` on.
    fn from(first: usize, some: &[u64]) -> Self {
        let mut paths = Self::default();
        paths.counts[first..first + some.len()].copy_from_slice(some);
        paths
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }

    /// Paths that were never taken.
    pub fn missed(&self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().zip(self.counts).filter(|(_, count)| *count == 0).map(|(name, _)| name)
    }

    /// Each path and how many times it was taken.
    pub fn taken(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.counts)
    }
}
