//! Which limits the commands of a host meet in one subsystem.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn};

use crate::records::throttle::Throttle;

/// The limits that hosts meet in one subsystem.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limited {
    /// Of single namespaces.
    pub(crate) namespaces: BTreeMap<u32, Throttle>,
    /// Of the subsystem.
    pub(crate) whole: Option<Throttle>,
    /// Of hosts, in all subsystems.
    pub(crate) hosts: Arc<[HostLimit]>,
    /// The hosts that have a weight.
    pub(crate) weights: BTreeMap<Nqn, Weight>,
}

/// The part of a core that a host gets in a subsystem, beside other hosts that want more than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// What a host without a weight has, where others have one.
    pub const DEFAULT: Self = Self(NonZeroU16::new(100).unwrap());
    /// The largest weight.
    pub const MAX: u16 = 10_000;

    /// From 1 to [`Self::MAX`], as the weights of Linux's cgroups (`io.weight`); `None` for any other number.
    #[must_use]
    pub fn new(weight: u16) -> Option<Self> {
        NonZeroU16::new(weight).filter(|weight| weight.get() <= Self::MAX).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

/// Limits that some hosts share.
#[derive(Clone, Debug)]
pub struct HostLimit {
    /// NVMe hosts.
    pub hosts: Vec<Nqn>,
    /// iSCSI initiators, by their names (RFC 7143, 4.2.7).
    pub initiators: Vec<String>,
    /// The limits.
    pub throttle: Throttle,
}

impl HostLimit {
    /// Whether an iSCSI initiator is one of them. Names are compared in lower case (RFC 7143, 4.2.7.2).
    pub(crate) fn limits_initiator(&self, name: &str) -> bool {
        self.initiators.iter().any(|one| one.eq_ignore_ascii_case(name))
    }
}

/// All limits that a command has to keep.
pub(crate) type Levels = Arc<[Throttle]>;

impl Limited {
    /// The weight of a host's commands.
    pub(crate) fn weight(&self, host: &HostNqn) -> Weight {
        let known = match host {
            HostNqn::Named(name) => self.weights.get(name),
            HostNqn::Unnamed => None,
        };
        known.copied().unwrap_or(Weight::DEFAULT)
    }

    /// The limits of a host's commands for a namespace.
    pub(crate) fn levels(&self, host: &HostNqn, nsid: NamespaceId) -> Levels {
        let of_host = self.hosts.iter().filter(|limit| match host {
            HostNqn::Named(name) => limit.hosts.contains(name),
            HostNqn::Unnamed => false,
        });
        let all = self.namespaces.get(&nsid.0).into_iter().chain(&self.whole);
        all.chain(of_host.map(|limit| &limit.throttle)).cloned().collect()
    }
}
