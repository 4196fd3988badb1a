//! Harmless deviations of hosts from the specification: tolerated, and reported once.

use std::fmt;

/// A deviation that is tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// HOSTNQN is no NVMe Qualified Name (Base 2.0, 4.5).
    HostName,
    /// An I/O queue came with another HOSTID than the admin queue (Fabrics 1.1, 3.3). The HOSTID of the
    /// admin queue counts.
    HostIdentifier,
    /// The SGL descriptor of a command without data has a type that is not allowed (NVMe/TCP 3.3).
    DescriptorType,
    /// CC.CSS selects all I/O command sets, which CAP.CSS does not offer (Base 2.0, 3.1.3.5): on a
    /// discovery controller, which has no I/O queues.
    CommandSets,
}

impl Tolerance {
    const ALL: [Self; 4] =
        [Self::HostName, Self::HostIdentifier, Self::DescriptorType, Self::CommandSets];

    fn bit(self) -> u8 {
        match self {
            Self::HostName => 1,
            Self::HostIdentifier => 2,
            Self::DescriptorType => 4,
            Self::CommandSets => 8,
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostName => "the host's name is not an NVMe Qualified Name (nqn.yyyy-mm...)",
            Self::HostIdentifier => {
                "an I/O queue came with another host identifier than the admin queue, whose counts"
            }
            Self::DescriptorType => {
                "a command without data has an SGL descriptor of a type that is not allowed"
            }
            Self::CommandSets => {
                "CC.CSS selects I/O command sets (110b) on a discovery controller, which has none"
            }
        })
    }
}

/// The deviations of a host, and which of them were reported.
#[derive(Debug, Default)]
pub(crate) struct Tolerances {
    pub(super) seen: u8,
    pub(super) told: u8,
}

impl Tolerances {
    pub(crate) fn note(&mut self, tolerance: Tolerance) {
        self.seen |= tolerance.bit();
    }

    /// A deviation that was not reported.
    pub(crate) fn poll(&mut self) -> Option<Tolerance> {
        let new = self.seen & !self.told;
        let tolerance = Tolerance::ALL.into_iter().find(|tolerance| new & tolerance.bit() != 0)?;
        self.told |= tolerance.bit();
        Some(tolerance)
    }
}
