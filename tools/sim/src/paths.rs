//! Which ways of moving bytes a run has taken: each must be met by some seed.

use raceline_host::QueueTotals as HostTotals;
use raceline_reactor::stats::IoCounts;

/// How often each way was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    counts: [u64; NAMES.len()],
}

/// The ways, in the order of the counts.
const NAMES: [&str; 5] = [
    "host: a payload received into its buffer",
    "host: large payloads received into the core's staging memory",
    "host: commands kept back, as the caches are flooded",
    "host: commands sent before data",
    "a batch sent in shares beside a socket that sends little",
];

/// Seeds within which every way is met: far fewer are needed.
pub const SEEDS_FOR_ALL: u64 = 200;

impl Paths {
    /// Those of queues of one host.
    #[must_use]
    pub fn of_host(totals: &HostTotals) -> Self {
        let counts = [
            totals.landed_in_place,
            totals.landed_in_staging,
            totals.commands_kept_back,
            totals.commands_before_data,
            0,
        ];
        Self { counts }
    }

    /// Those of a core's sockets.
    #[must_use]
    pub fn of_io(counts: &IoCounts) -> Self {
        let mut paths = Self::default();
        paths.counts[4] = counts.shared_sends;
        paths
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }

    /// Ways that were never taken.
    pub fn missed(&self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().zip(self.counts).filter(|(_, count)| *count == 0).map(|(name, _)| name)
    }

    /// Each way and how often it was taken.
    pub fn taken(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.counts)
    }
}
