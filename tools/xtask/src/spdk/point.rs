//! The measured points of the grid, and the two programs on either side.

use std::fmt;

use serde::Serialize;

/// One workload, of random addresses aligned to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Point {
    /// Bytes per command.
    pub(crate) io_bytes: u32,
    /// Writes; else reads.
    pub(crate) write: bool,
    /// Commands in flight on each connection.
    pub(crate) depth: u32,
    /// I/O queues, one connection each.
    pub(crate) connections: u32,
    /// On the namespace without storage.
    pub(crate) null: bool,
    /// With header and data digests.
    pub(crate) digests: bool,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.write { "write" } else { "read" };
        let storage = if self.null { ", no storage" } else { "" };
        let digests = if self.digests { ", digests" } else { "" };
        let (size, depth, connections) = (self.io_bytes >> 10, self.depth, self.connections);
        write!(f, "{size}k {kind} {depth}x{connections}{storage}{digests}")
    }
}

/// Points of the namespace in memory: KiB, write, depth, connections, part of --quick. A queue of 128
/// entries, the default of both targets, holds 127 commands.
const MEMORY: [(u32, bool, u32, u32, bool); 17] = [
    (4, false, 1, 1, true),
    (4, false, 8, 1, false),
    (4, false, 32, 1, true),
    (4, false, 127, 1, true),
    (4, false, 8, 4, false),
    (4, false, 32, 4, false),
    (4, false, 2, 16, false),
    (4, false, 32, 16, false),
    (4, false, 8, 64, true),
    (4, true, 1, 1, false),
    (4, true, 32, 1, true),
    (4, true, 127, 1, false),
    (4, true, 32, 16, false),
    (16, false, 32, 1, false),
    (128, false, 8, 1, true),
    (128, false, 32, 1, false),
    (128, true, 8, 1, false),
];
/// Points of the namespace without storage.
const NULL: [(u32, bool, u32, u32, bool); 1] = [(4, false, 32, 1, false)];
/// Points of the namespace in memory, with header and data digests.
const DIGESTS: [(u32, bool, u32, u32, bool); 4] = [
    (4, false, 32, 1, false),
    (4, true, 32, 1, false),
    (128, false, 8, 1, false),
    (128, true, 8, 1, false),
];

/// Points over TLS: KiB, depth, connections, part of --quick. Each is read and written.
const ENCRYPTED: [(u32, u32, u32, bool); 6] = [
    (4, 1, 1, true),
    (4, 32, 1, true),
    (4, 32, 16, false),
    (128, 1, 1, false),
    (128, 32, 1, true),
    (128, 32, 16, false),
];

/// The points over TLS, in the order of the table.
pub(crate) fn grid_over_tls(quick: bool) -> Vec<Point> {
    let rows = ENCRYPTED.into_iter().filter(|(.., in_quick)| *in_quick || !quick);
    let both = rows.flat_map(|(kib, depth, connections, _)| {
        [false, true].map(|write| Point {
            io_bytes: kib << 10,
            write,
            depth,
            connections,
            null: false,
            digests: false,
        })
    });
    both.collect()
}

/// The points in the clear, in the order of the table.
pub(crate) fn grid(quick: bool) -> Vec<Point> {
    let memory = MEMORY.into_iter().map(|row| (row, false, false));
    let null = NULL.into_iter().map(|row| (row, true, false));
    let digests = DIGESTS.into_iter().map(|row| (row, false, true));
    memory
        .chain(null)
        .chain(digests)
        .filter(|((.., in_quick), ..)| *in_quick || !quick)
        .map(|((kib, write, depth, connections, _), null, digests)| Point {
            io_bytes: kib << 10,
            write,
            depth,
            connections,
            null,
            digests,
        })
        .collect()
}

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Host {
    /// `raceline perf`.
    Raceline,
    /// `spdk_nvme_perf`.
    Spdk,
}

/// How Raceline's target runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ours {
    /// `raceline serve` with a configuration file; it sleeps after 50 us without work.
    #[default]
    Serve,
    /// `raceline export`, which polls.
    Export,
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serve => "raceline serve",
            Self::Export => "raceline export",
        })
    }
}

/// A target and how it is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    /// Raceline's, its namespace in transparent huge pages.
    Raceline,
    /// Raceline's, its namespace in reserved huge pages, as SPDK's is.
    RacelineHuge,
    /// `nvmf_tgt` with its defaults.
    Spdk,
    /// `nvmf_tgt` with the options that made it fastest here.
    SpdkTuned,
}

impl Host {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raceline => "raceline",
            Self::Spdk => "SPDK",
        }
    }
}

impl Target {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raceline => "raceline",
            Self::RacelineHuge => "raceline, huge pages",
            Self::Spdk => "SPDK",
            Self::SpdkTuned => "SPDK tuned",
        }
    }

    /// Whether it is SPDK's.
    pub(crate) fn is_spdk(self) -> bool {
        matches!(self, Self::Spdk | Self::SpdkTuned)
    }
}

/// A host and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Pair {
    pub(crate) host: Host,
    pub(crate) target: Target,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.host.name(), self.target.name())
    }
}

/// What a measurement compares.
pub(crate) struct Plan {
    /// The targets, in the order in which they are started.
    pub(crate) targets: &'static [Target],
    /// The pairs, in the order in which a repetition runs them and the table shows them.
    pub(crate) pairs: &'static [Pair],
    /// The ratios that are shown: title, numerator, denominator, as indices of the pairs.
    pub(crate) ratios: &'static [(&'static str, usize, usize)],
}

/// In the clear.
pub(crate) const PLAIN: Plan = Plan {
    targets: &[Target::Raceline, Target::RacelineHuge, Target::Spdk, Target::SpdkTuned],
    pairs: &PAIRS,
    ratios: &RATIOS,
};

/// Over TLS.
pub(crate) const OVER_TLS: Plan = Plan {
    targets: &[Target::Raceline, Target::Spdk, Target::SpdkTuned],
    pairs: &[
        Pair { host: Host::Raceline, target: Target::Raceline },
        Pair { host: Host::Spdk, target: Target::Spdk },
        Pair { host: Host::Spdk, target: Target::SpdkTuned },
    ],
    ratios: &[("both / both SPDK", 0, 1), ("both / both SPDK tuned", 0, 2)],
};

const PAIRS: [Pair; 8] = {
    use Host::{Raceline as H, Spdk as S};
    use Target::{Raceline, RacelineHuge, Spdk, SpdkTuned};
    [
        Pair { host: H, target: Raceline },
        Pair { host: S, target: Spdk },
        Pair { host: H, target: RacelineHuge },
        Pair { host: S, target: SpdkTuned },
        Pair { host: H, target: Spdk },
        Pair { host: H, target: SpdkTuned },
        Pair { host: S, target: Raceline },
        Pair { host: S, target: RacelineHuge },
    ]
};

const RATIOS: [(&str, usize, usize); 6] = [
    ("both / both SPDK", 0, 1),
    ("both / both SPDK tuned", 0, 3),
    ("both, huge pages / both SPDK", 2, 1),
    ("both, huge pages / both SPDK tuned", 2, 3),
    ("target, huge pages / SPDK tuned, under SPDK's host", 7, 3),
    ("host / SPDK's, over SPDK tuned", 5, 3),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_the_points_that_are_reported() {
        let full = grid(false);
        assert_eq!((full.len(), grid(true).len()), (22, 6));
        assert!(grid(true).iter().all(|point| full.contains(point)));
        assert_eq!(full[0].to_string(), "4k read 1x1");
        assert_eq!(full[17].to_string(), "4k read 32x1, no storage");
        assert_eq!(full[18].to_string(), "4k read 32x1, digests");
        let encrypted = grid_over_tls(false);
        assert_eq!((encrypted.len(), grid_over_tls(true).len()), (12, 6));
        assert_eq!(encrypted[11].to_string(), "128k write 32x16");
    }

    #[test]
    fn ratios_compare_what_their_titles_say() {
        for Plan { targets, pairs, ratios } in [PLAIN, OVER_TLS] {
            assert!(pairs.iter().all(|pair| targets.contains(&pair.target)));
            let name = |at: usize| pairs[at].to_string();
            for &(title, ours, theirs) in ratios {
                let huge = title.contains("huge pages");
                assert_eq!(name(ours).contains("huge pages"), huge, "{title}");
                let pair = pairs[theirs];
                assert!(pair.host == Host::Spdk && pair.target.is_spdk(), "{title}");
                assert_eq!(name(theirs).contains("tuned"), title.contains("tuned"), "{title}");
            }
        }
    }
}
