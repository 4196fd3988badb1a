//! An NVM subsystem and its namespaces, as an immutable snapshot.
//!
//! A change is a new snapshot; controllers and I/O queues swap an [`Arc`] and compare the old one
//! with the new one.

use std::fmt;
use std::sync::Arc;

use super::ana::Ana;
use super::reservation::ReservedNamespaces;
use super::security::Security;
use crate::nvme::feature::WriteProtection;
use crate::nvme::{HostNqn, NamespaceId, Nqn};

/// The greatest NSID (NN), and the most namespaces of a subsystem (MNAN). Hosts size tables by it.
pub const MAX_NSID: u32 = 1024;

/// The smallest and the largest [`Limits::max_io_bytes`]. 4096 is left out because MDTS 0 means
/// "no limit".
pub const MAX_IO_BYTES_RANGE: (u32, u32) = (8192, 1 << 25);

/// LBA formats that four bits of Format NVM can name.
pub(crate) const MAX_LBA_FORMATS: usize = 16;

/// The fewest entries of the admin queue, which ASQSZ must not go below (Fabrics 1.1, 5.3).
pub const MIN_ADMIN_ENTRIES: u16 = 32;

/// A namespace as hosts see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number in the subsystem, 1..=[`MAX_NSID`].
    pub nsid: NamespaceId,
    /// Logical block size in bytes, a power of two of at least 512.
    pub block_size: u32,
    /// Capacity in logical blocks.
    pub block_count: u64,
    /// Physical block size in bytes, a power of two of at least `block_size`.
    pub physical_block_size: u32,
    /// Commands that do not cross a multiple of this number are faster (NOIOB); 0: there is no boundary.
    pub io_boundary_bytes: u64,
    /// UUID, permanent and the same through every path.
    pub uuid: [u8; 16],
    /// NGUID, permanent and the same through every path; zeroes are none.
    pub nguid: [u8; 16],
    /// EUI64, permanent and the same through every path; zeroes are none.
    pub eui64: [u8; 8],
    /// Which hosts see it.
    pub visibility: Visibility,
    /// Whether the controllers of several hosts may be attached to it (NMIC).
    pub shared: bool,
    /// Bytes that it takes from the pool of its subsystem (NVMCAP); `None`: it is not of the pool,
    /// and no host can change or delete it.
    pub pool_bytes: Option<u64>,
    /// Completed writes may be lost in a power cut until a Flush.
    pub volatile_write_cache: bool,
    /// Writes are refused, by the device or because of `protection`.
    pub read_only: bool,
    /// The write protection that hosts have set.
    pub protection: WriteProtection,
    /// Deallocate has an effect.
    pub deallocate: bool,
    /// Deallocated blocks read zeroes.
    pub deallocate_zeroes: bool,
    /// Which blocks are allocated is known.
    pub knows_holes: bool,
    /// Hosts may make blocks unreadable (Write Uncorrectable).
    pub uncorrectable: bool,
    /// Its ANA group (ANAGRPID), 1 to the greatest NSID of the subsystem; 0 where the subsystem reports no ANA.
    pub ana_group: u32,
}

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAccess {
    /// Any host, also one without a name.
    Any,
    /// These hosts; no host when empty.
    List(Vec<Nqn>),
}

impl HostAccess {
    /// Whether this host may connect.
    #[must_use]
    pub fn admits(&self, host: &HostNqn) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::List(hosts), HostNqn::Named(host)) => hosts.contains(host),
            (Self::List(_), HostNqn::Unnamed) => false,
        }
    }
}

/// Which hosts see a namespace. In NVMe's terms it is attached to the controllers of those hosts, and to
/// no other. Attachment belongs to the host, since a controller that reconnects has a new number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Every host that may connect.
    All,
    /// These hosts; no host when empty.
    Hosts(Arc<[Nqn]>),
}

impl Visibility {
    /// Whether this host sees it.
    #[must_use]
    pub fn includes(&self, host: &HostNqn) -> bool {
        match (self, host) {
            (Self::All, _) => true,
            (Self::Hosts(hosts), HostNqn::Named(host)) => hosts.contains(host),
            (Self::Hosts(_), HostNqn::Unnamed) => false,
        }
    }
}

/// The space of which a subsystem makes namespaces when its hosts ask (Namespace Management).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Capacity in bytes (TNVMCAP).
    pub total_bytes: u64,
    /// Bytes that belong to no namespace (UNVMCAP).
    pub free_bytes: u64,
    /// Block sizes that a namespace can have, 1 to 16 of them, in the order of the LBA formats.
    pub block_sizes: Vec<u32>,
    /// Which hosts may create, attach, delete and format namespaces.
    pub managers: HostAccess,
}

/// The limits that a subsystem grants its controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest transfer of a command in bytes (MDTS): a power of two in [`MAX_IO_BYTES_RANGE`].
    pub max_io_bytes: u32,
    /// Data in a capsule of an I/O queue in bytes, a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Entries of an I/O queue (MQES + 1), at least 2.
    pub max_queue_entries: u16,
    /// Entries of the admin queue, at least [`MIN_ADMIN_ENTRIES`].
    pub max_admin_entries: u16,
    /// I/O queues of a controller, at least 1.
    pub max_io_queues: u16,
    /// KAS: the keep alive timeout is rounded up to a multiple of this, in 100 ms; at least 1.
    pub keep_alive_granularity: u16,
    /// The smallest keep alive timeout in milliseconds that is not 0.
    pub min_keep_alive_ms: u32,
    /// CQT: the time in milliseconds within which nothing of a lost association executes any more, counted from the
    /// moment at which the controller gives it up; 0: not reported.
    pub quiesce_ms: u16,
    /// CRDT1 to 3: after how many units of 100 ms a host may retry a command refused with a retry delay.
    pub retry_delays: [u16; 3],
}

impl Limits {
    /// Largest transfer 128 KiB, 8 KiB in a capsule, 128 entries, 16 queues, keep alive by the second.
    pub const DEFAULT: Self = Self {
        max_io_bytes: 128 * 1024,
        in_capsule_bytes: 8192,
        max_queue_entries: 128,
        max_admin_entries: MIN_ADMIN_ENTRIES,
        max_io_queues: 16,
        keep_alive_granularity: 10,
        min_keep_alive_ms: 1000,
        quiesce_ms: 0,
        retry_delays: [0; 3],
    };

    /// MDTS: log2 of the largest transfer in 4 KiB pages.
    #[must_use]
    pub fn mdts(&self) -> u8 {
        let log2 = (self.max_io_bytes / 4096).max(2).ilog2();
        u8::try_from(log2).unwrap_or(u8::MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// An NVM subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// SUBNQN.
    pub nqn: Nqn,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
    /// Which hosts may connect.
    pub hosts: HostAccess,
    /// What the connections of every host have to have.
    pub security: Security,
    /// What those of some hosts have to have besides.
    pub host_security: Vec<(Nqn, Security)>,
    /// The ports ([`ListenerInfo::port_id`]) that lead to it, besides those open to all.
    ///
    /// [`ListenerInfo::port_id`]: super::ListenerInfo::port_id
    pub ports: Vec<u16>,
    /// The greatest NSID that it can have (NN), at most [`MAX_NSID`].
    pub max_nsid: u32,
    /// Its namespaces, by ascending NSID.
    pub namespaces: Vec<Namespace>,
    /// The space of which its hosts can make namespaces; `None`: they cannot.
    pub pool: Option<Pool>,
    /// Its limits.
    pub limits: Limits,
    /// The states of its groups of namespaces; `None`: it reports no Asymmetric Namespace Access.
    pub ana: Option<Ana>,
    /// The reservations of its namespaces; `None`: hosts cannot reserve them.
    pub reservations: Option<ReservedNamespaces>,
}

/// Why a subsystem cannot be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemError {
    /// The NQN is the one of the discovery service.
    DiscoveryNqn,
    /// An NSID is 0 or above what the subsystem allows.
    NamespaceNumber {
        /// The number.
        nsid: NamespaceId,
        /// The greatest that the subsystem allows.
        max: u32,
    },
    /// NSIDs are not strictly ascending.
    NamespaceOrder(NamespaceId),
    /// A block size is not a power of two, below 512, or above the physical block size.
    BlockSize(NamespaceId),
    /// A namespace has no blocks.
    Empty(NamespaceId),
    /// An ANA group is 0 or above the greatest NSID, or there is one without ANA.
    AnaGroup(NamespaceId),
    /// A limit is outside the range in its documentation.
    Limit(&'static str),
    /// Serial, model or firmware is longer than its field or not printable ASCII.
    Text(&'static str),
}

impl fmt::Display for SubsystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiscoveryNqn => f.write_str("the NQN of the discovery service is reserved"),
            Self::NamespaceNumber { nsid, max } => {
                write!(f, "namespace number {nsid} is outside 1..={max}")
            }
            Self::NamespaceOrder(nsid) => {
                write!(f, "namespace {nsid} is there twice or out of order")
            }
            Self::BlockSize(nsid) => write!(f, "namespace {nsid} has an impossible block size"),
            Self::Empty(nsid) => write!(f, "namespace {nsid} has no blocks"),
            Self::AnaGroup(nsid) => {
                write!(
                    f,
                    "the ANA group of namespace {nsid} is outside 1 to the most namespaces, or ANA is off"
                )
            }
            Self::Limit(name) => write!(f, "the limit {name} is out of range"),
            Self::Text(name) => write!(f, "the {name} is too long or not printable ASCII"),
        }
    }
}

impl std::error::Error for SubsystemError {}

impl Subsystem {
    /// Checks every rule that the fields' documentation states.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validated(self) -> Result<Self, SubsystemError> {
        if self.nqn.is_discovery() {
            return Err(SubsystemError::DiscoveryNqn);
        }
        for (name, text, len) in [
            ("serial number", &self.serial, 20),
            ("model number", &self.model, 40),
            ("firmware revision", &self.firmware, 8),
        ] {
            if text.len() > len || !text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
                return Err(SubsystemError::Text(name));
            }
        }
        self.check_limits()?;
        let mut last = 0;
        for namespace in &self.namespaces {
            let nsid = namespace.nsid;
            if nsid.0 == 0 || nsid.0 > self.max_nsid {
                return Err(SubsystemError::NamespaceNumber { nsid, max: self.max_nsid });
            }
            if nsid.0 <= last {
                return Err(SubsystemError::NamespaceOrder(nsid));
            }
            last = nsid.0;
            let (logical, physical) = (namespace.block_size, namespace.physical_block_size);
            if !logical.is_power_of_two()
                || !physical.is_power_of_two()
                || logical < 512
                || logical > physical
                || logical > self.limits.max_io_bytes
            {
                return Err(SubsystemError::BlockSize(nsid));
            }
            if namespace.block_count == 0 {
                return Err(SubsystemError::Empty(nsid));
            }
            let groups = if self.ana.is_some() { 1..=self.max_nsid } else { 0..=0 };
            if !groups.contains(&namespace.ana_group) {
                return Err(SubsystemError::AnaGroup(nsid));
            }
        }
        Ok(self)
    }

    fn check_limits(&self) -> Result<(), SubsystemError> {
        let limits = &self.limits;
        let (least, most) = MAX_IO_BYTES_RANGE;
        if !(1..=MAX_NSID).contains(&self.max_nsid) {
            return Err(SubsystemError::Limit("max_nsid"));
        }
        let formats = self.pool.as_ref().map_or(1, |pool| pool.block_sizes.len());
        if !(1..=MAX_LBA_FORMATS).contains(&formats) {
            return Err(SubsystemError::Limit("block_sizes"));
        }
        if !limits.max_io_bytes.is_power_of_two() || !(least..=most).contains(&limits.max_io_bytes)
        {
            return Err(SubsystemError::Limit("max_io_bytes"));
        }
        if !limits.in_capsule_bytes.is_multiple_of(16)
            || limits.in_capsule_bytes > limits.max_io_bytes
        {
            return Err(SubsystemError::Limit("in_capsule_bytes"));
        }
        if limits.max_queue_entries < 2 {
            return Err(SubsystemError::Limit("max_queue_entries"));
        }
        if limits.max_admin_entries < MIN_ADMIN_ENTRIES {
            return Err(SubsystemError::Limit("max_admin_entries"));
        }
        if limits.max_io_queues == 0 {
            return Err(SubsystemError::Limit("max_io_queues"));
        }
        if limits.keep_alive_granularity == 0 {
            return Err(SubsystemError::Limit("keep_alive_granularity"));
        }
        Ok(())
    }

    /// What the connections of a host have to have, by whatever listener they come.
    #[must_use]
    pub fn demands(&self, host: &HostNqn) -> Security {
        let HostNqn::Named(host) = host else { return self.security };
        let own = self.host_security.iter().find(|(name, _)| name == host);
        own.map_or(self.security, |(_, own)| self.security.or(*own))
    }

    /// The namespace of that number.
    #[must_use]
    pub fn namespace(&self, nsid: NamespaceId) -> Option<&Namespace> {
        find_namespace(&self.namespaces, nsid).and_then(|index| self.namespaces.get(index))
    }

    /// The subsystem with only the namespaces that this host sees, all of them visible; the
    /// subsystem itself when the host sees all.
    #[must_use]
    pub fn visible_to(self: &Arc<Self>, host: &HostNqn) -> Arc<Self> {
        if self.namespaces.iter().all(|namespace| namespace.visibility == Visibility::All) {
            return Arc::clone(self);
        }
        let visible =
            self.namespaces.iter().filter(|namespace| namespace.visibility.includes(host));
        let namespaces =
            visible.map(|namespace| Namespace { visibility: Visibility::All, ..namespace.clone() });
        Arc::new(Self { namespaces: namespaces.collect(), ..Self::clone(self) })
    }

    /// Whether hosts may make blocks of any namespace unreadable.
    #[must_use]
    pub fn takes_uncorrectable(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.uncorrectable)
    }

    /// Whether any namespace may lose completed writes in a power cut.
    #[must_use]
    pub fn has_volatile_write_cache(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.volatile_write_cache)
    }
}

/// Where a namespace is in a slice sorted by NSID: at NSID - 1 when no number is skipped, which
/// is the usual case, else by binary search.
#[must_use]
pub fn find_namespace(namespaces: &[Namespace], nsid: NamespaceId) -> Option<usize> {
    let guess = usize::try_from(nsid.0.checked_sub(1)?).ok()?;
    if namespaces.get(guess).is_some_and(|namespace| namespace.nsid == nsid) {
        return Some(guess);
    }
    namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()
}
