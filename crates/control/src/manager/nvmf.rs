//! The exports: targets, subsystems, namespaces, hosts, listeners.
//!
//! The model is complete without a transport, as in SPDK: subsystems may be made first. The cores start
//! with the transport, whose options they need, and then receive the whole model. The cores of the default target serve
//! iSCSI as well: they start with the first portal group, if that comes first, and once more with the transport.

mod ana;
mod change;
mod hosts;
mod level;
mod listener;
mod live;
mod namespace;
mod pool;
mod referral;
mod reservations;
mod secure;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use raceline_proto::controller::rdma_in_capsule_bytes;
use raceline_proto::nvme::Nqn;
use raceline_target::{ListenerAna, Patience, QosLimits, RdmaStreams, Security, Target, Weight};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ManagerError;
use super::central::Registrars;
use super::options::FilterOptions;
use super::qos::HostLimits;

pub(crate) use ana::{ana_of_word, ana_states};
pub(crate) use change::hex;
pub(super) use change::{entry, key};
pub use hosts::{AllowedHost, HostKeys, KeyNames, Overlap};
pub use level::PortLevel;
pub use listener::ListenAddress;
pub(crate) use listener::{RDMA, RDMA_SCHEME};
pub(crate) use live::stop;
pub use pool::{Pool, PoolNamespaceParams, PoolParams};
pub use referral::Referral;
pub use secure::SecureChannel;

/// The target of every method call that names none.
pub const DEFAULT_TARGET: &str = "nvmf_tgt";

/// Subsystems of a target by default.
pub const DEFAULT_MAX_SUBSYSTEMS: u32 = 1024;

/// Namespaces of a subsystem by default.
pub const DEFAULT_MAX_NAMESPACES: u32 = 32;

/// Most listeners of a subsystem, as in SPDK.
pub const MAX_LISTENERS: usize = 16;

/// Most hosts on the list of a subsystem.
pub const MAX_HOSTS: usize = 8192;

/// All targets.
#[derive(Default)]
pub struct Nvmf {
    /// The targets by name.
    pub targets: BTreeMap<String, NvmfTarget>,
    /// Parts of an export may wait for their device.
    pub(super) waits: bool,
    /// A thread ends the overlaps of old and new keys.
    pub(super) ends_overlaps: bool,
}

/// A target: its exports, and its cores once there is a transport.
#[derive(Default)]
pub struct NvmfTarget {
    /// The largest number of subsystems.
    pub max_subsystems: u32,
    /// What its Discovery log leaves out; `None`: the filter of nvmf_set_config applies.
    pub filter: Option<FilterOptions>,
    /// Its cores, once something can be reached by them.
    pub running: Option<Running>,
    /// What carries the connections of its RDMA listeners, once that transport is there.
    pub rdma: Option<Arc<RdmaStreams>>,
    /// The subsystems by name.
    pub subsystems: BTreeMap<Nqn, Subsystem>,
    /// The levels of the addresses that have another than plain, whatever they lead to.
    pub levels: BTreeMap<ListenAddress, PortLevel>,
    /// The keys for these addresses.
    pub secure_channel: SecureChannel,
    /// Listeners that the discovery service reports as its own.
    pub discovery_listeners: Vec<ListenAddress>,
    /// Who wants these listeners announced by multicast DNS.
    pub published: Published,
    /// Its discovery service is a centralized one, which others register with.
    pub is_central: bool,
    /// The centralized discovery controllers that it registers with.
    pub registrars: Registrars,
    /// Other places that hosts are referred to.
    pub referrals: Vec<Referral>,
    /// Limits that hosts share, by a name.
    pub host_limits: BTreeMap<String, HostLimits>,
}

/// Who wants the listeners of a discovery service announced by multicast DNS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Published {
    /// Nobody.
    #[default]
    No,
    /// The command line, until a call ends it.
    ByOption,
    /// A call, which is kept.
    ByCall,
}

/// The cores of a target.
#[derive(Clone)]
pub struct Running {
    /// The options of the transports; `None`: there is none, and the cores serve iSCSI alone.
    pub transport: Option<TransportOptions>,
    /// Whether there is the transport TCP; without it, the options are RDMA's.
    pub has_tcp: bool,
    /// The CPUs of the cores; empty: one core that is not pinned.
    pub cpus: Vec<usize>,
    /// The cores.
    pub target: Arc<Target>,
}

/// The options of a transport that have a meaning here, by SPDK's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportOptions {
    /// Entries of an I/O queue.
    pub max_queue_depth: u16,
    /// I/O queues of a controller.
    pub max_io_qpairs_per_ctrlr: u16,
    /// Write data in a command capsule in bytes.
    pub in_capsule_data_size: u32,
    /// Largest transfer of a command in bytes.
    pub max_io_size: u32,
    /// Entries of the admin queue.
    pub max_aq_depth: u16,
    /// SO_PRIORITY of connections.
    pub sock_priority: u32,
    /// TCP_USER_TIMEOUT of connections in milliseconds; 0 is none.
    pub ack_timeout: u32,
    /// The last data of a read also say that it has succeeded, where the host permits it.
    pub c2h_success: bool,
    /// Granularity of keep alive timeouts in 100 ms.
    pub kas: u16,
    /// The least keep alive timeout in milliseconds.
    pub min_kato: u32,
}

/// SPDK's defaults for TCP, except for the largest transfer: hosts that read 256 KiB at once are common, and larger
/// commands need no more memory here.
impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            max_queue_depth: 128,
            max_io_qpairs_per_ctrlr: 127,
            in_capsule_data_size: 4096,
            max_io_size: 1 << 20,
            max_aq_depth: 128,
            sock_priority: 0,
            ack_timeout: 0,
            c2h_success: true,
            kas: 100,
            min_kato: 10_000,
        }
    }
}

/// A subsystem.
pub struct Subsystem {
    /// The options with which it was made, and whether any host may connect now.
    pub options: SubsystemOptions,
    /// The hosts that may connect unless any host may, and their keys.
    pub hosts: Vec<AllowedHost>,
    /// The addresses at which it listens.
    pub listeners: Vec<ListenAddress>,
    /// The states of the ANA groups by listener, where they are not all optimized.
    pub ana: BTreeMap<ListenAddress, ListenerAna>,
    /// The namespaces by number.
    pub namespaces: BTreeMap<u32, Namespace>,
    /// The device that its hosts divide into namespaces.
    pub pool: Option<Pool>,
    /// The limits of all commands for it together.
    pub limits: QosLimits,
    /// The hosts that have a weight.
    pub weights: BTreeMap<Nqn, Weight>,
}

/// The options of a subsystem, by SPDK's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubsystemOptions {
    /// Its name.
    pub nqn: String,
    /// Serial number.
    pub serial_number: String,
    /// Model number.
    pub model_number: String,
    /// The largest number of namespaces, and the greatest number of one.
    pub max_namespaces: u32,
    /// Whether any host may connect.
    pub allow_any_host: bool,
    /// The lowest controller number.
    pub min_cntlid: u16,
    /// The greatest controller number.
    pub max_cntlid: u16,
    /// It reports Asymmetric Namespace Access.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ana_reporting: bool,
    /// What the connections of every host need.
    #[serde(serialize_with = "level::word", skip_serializing_if = "level::is_plain")]
    pub security: Security,
    /// Hosts that have a key for TLS may come without it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub psk_optional: bool,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The device behind it.
    pub bdev_name: String,
    /// UUID.
    pub uuid: Uuid,
    /// NGUID; zeroes are none, and `None` means that it will be the UUID, which is not known yet.
    pub nguid: Option<[u8; 16]>,
    /// EUI64; zeroes are none.
    pub eui64: [u8; 8],
    /// The hosts that see it; `None`: all hosts that may connect.
    pub hosts: Option<Vec<Nqn>>,
    /// Its ANA group; `None`: that of its own number.
    pub anagrpid: Option<u32>,
    /// The file in which its reservations persist; `None`: one of the state directory, if there is one.
    pub ptpl_file: Option<PathBuf>,
    /// Why hosts do not have it: its device is missing. `None` if hosts have it.
    pub missing: Option<String>,
}

/// A namespace to make; members that are `None` are chosen.
#[derive(Clone, Debug, Default)]
pub struct NewNamespace {
    /// The device behind it.
    pub bdev_name: String,
    /// Its number; `None`: the lowest free.
    pub nsid: Option<u32>,
    /// UUID; `None`: the device's.
    pub uuid: Option<Uuid>,
    /// NGUID; zeroes are none, and `None` means the UUID.
    pub nguid: Option<[u8; 16]>,
    /// EUI64.
    pub eui64: Option<[u8; 8]>,
    /// Hosts see it only when they are attached to it explicitly.
    pub no_auto_visible: bool,
    /// Its ANA group; `None`: that of its own number.
    pub anagrpid: Option<u32>,
    /// The file in which its reservations persist; `None`: one of the state directory, if there is one.
    pub ptpl_file: Option<PathBuf>,
}

/// What the call says that makes the transport RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// The limits that it names. The cores of a target have one set of limits for all its transports.
    pub limits: RdmaLimits,
    /// Receives that all queues of a listener on one core share, at most.
    pub max_srq_depth: u32,
    /// Each queue has receives of its own.
    pub no_srq: bool,
    /// Devices read namespaces in memory where they are, which pins that memory.
    pub zcopy: bool,
    /// What the call says that changes nothing here.
    pub shown: RdmaShown,
}

/// Parameters of SPDK's for the transport RDMA that are kept and shown, and change nothing here. The defaults are SPDK's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RdmaShown {
    /// Completions of a queue that is not shared; shown with `no_srq` only.
    pub num_cqe: i32,
    /// Requests for queues that wait; 0 and less stand for the default.
    pub acceptor_backlog: i32,
    /// Work requests are posted one by one.
    pub no_wr_batching: bool,
    /// The time for an Abort in seconds.
    pub abort_timeout_sec: u32,
    /// The acknowledgement timeout of queue pairs.
    pub ack_timeout: u32,
    /// Work requests for data, of all queues.
    pub data_wr_pool_size: u32,
    /// Small buffers that each core keeps.
    pub iobuf_small_cache_size: u32,
    /// Large buffers that each core keeps.
    pub iobuf_large_cache_size: u32,
}

impl Default for RdmaShown {
    fn default() -> Self {
        Self {
            num_cqe: 4096,
            acceptor_backlog: 100,
            no_wr_batching: false,
            abort_timeout_sec: 1,
            ack_timeout: 0,
            data_wr_pool_size: 4095,
            iobuf_small_cache_size: 0,
            iobuf_large_cache_size: 0,
        }
    }
}

/// Limits that a call names for the transport RDMA; `None`: those of TCP hold, or its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaLimits {
    /// Entries of an I/O queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue_depth: Option<u16>,
    /// I/O queues of a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_io_qpairs_per_ctrlr: Option<u16>,
    /// Write data in a command capsule in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_capsule_data_size: Option<u32>,
    /// Largest transfer of a command in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_io_size: Option<u32>,
    /// Entries of the admin queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_aq_depth: Option<u16>,
    /// Granularity of keep alive timeouts in 100 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kas: Option<u16>,
    /// The least keep alive timeout in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_kato: Option<u32>,
}

impl RdmaLimits {
    /// The options of a target with the transport RDMA alone.
    pub(crate) fn options(&self) -> TransportOptions {
        let usual = TransportOptions::default();
        let max_io_size = self.max_io_size.unwrap_or(usual.max_io_size);
        let in_capsule = self.in_capsule_data_size.unwrap_or(usual.in_capsule_data_size);
        TransportOptions {
            max_queue_depth: self.max_queue_depth.unwrap_or(usual.max_queue_depth),
            max_io_qpairs_per_ctrlr: self
                .max_io_qpairs_per_ctrlr
                .unwrap_or(usual.max_io_qpairs_per_ctrlr),
            in_capsule_data_size: in_capsule.min(max_io_size),
            max_io_size,
            max_aq_depth: self.max_aq_depth.unwrap_or(usual.max_aq_depth),
            kas: self.kas.unwrap_or(usual.kas),
            min_kato: self.min_kato.unwrap_or(usual.min_kato),
            ..usual
        }
    }

    /// Checks that the transport TCP has the limits that are named here. A capsule of RDMA holds less than one of TCP may.
    ///
    /// # Errors
    /// When one of them is another.
    pub(crate) fn check_against(&self, tcp: &TransportOptions) -> Result<(), super::ManagerError> {
        let own = self.options();
        let capsule = |options: &TransportOptions| {
            rdma_in_capsule_bytes(options.in_capsule_data_size.min(options.max_io_size))
        };
        let pair = |own: u16, tcp: u16| (u32::from(own), u32::from(tcp));
        let queues = pair(own.max_io_qpairs_per_ctrlr, tcp.max_io_qpairs_per_ctrlr);
        let all = [
            (
                "max_queue_depth",
                self.max_queue_depth.is_some(),
                pair(own.max_queue_depth, tcp.max_queue_depth),
            ),
            ("max_io_qpairs_per_ctrlr", self.max_io_qpairs_per_ctrlr.is_some(), queues),
            (
                "in_capsule_data_size",
                self.in_capsule_data_size.is_some(),
                (capsule(&own), capsule(tcp)),
            ),
            ("max_io_size", self.max_io_size.is_some(), (own.max_io_size, tcp.max_io_size)),
            ("max_aq_depth", self.max_aq_depth.is_some(), pair(own.max_aq_depth, tcp.max_aq_depth)),
            ("kas", self.kas.is_some(), pair(own.kas, tcp.kas)),
            ("min_kato", self.min_kato.is_some(), (own.min_kato, tcp.min_kato)),
        ];
        let other = all.into_iter().find(|(_, is_named, (own, tcp))| *is_named && own != tcp);
        let Some((name, _, (own, tcp))) = other else { return Ok(()) };
        Err(super::ManagerError::Invalid(format!(
            "{name} is {own} for RDMA and {tcp} for TCP, and the cores of a target have one limit for both: leave it out \
             for RDMA, or give both the same"
        )))
    }
}

impl super::Manager {
    /// The call that made the transport of a target.
    pub(crate) fn transport_params(&self, target: &str) -> Option<serde_json::Value> {
        let key = super::catalogue::Key::new(&["nvmf", target, "transport"]);
        self.model().catalogue.get(&key).map(|entry| entry.params.clone())
    }

    /// What an RDMA listener does that cannot listen at once. A client can ask again itself; what is restored waits, so
    /// that an adapter that is not up yet keeps no other service from starting.
    pub(in crate::manager) fn rdma_patience(&self) -> Patience {
        match self.phase() {
            super::Phase::Runtime => Patience::None,
            _ if raceline_reactor::inheritance::is_sharing() => Patience::ForPredecessor,
            _ => Patience::ForDevice,
        }
    }

    /// The daemon whose place this one takes is gone: RDMA listeners have waited for that.
    pub(crate) fn predecessor_is_gone(&self) {
        for target in self.model().nvmf.targets.values() {
            target.rdma.iter().for_each(|streams| streams.set_patience(Patience::None));
        }
    }

    /// The transport RDMA of a target, if it has that.
    pub(crate) fn rdma_options(&self, target: &str) -> Option<RdmaOptions> {
        let key = super::catalogue::Key::new(&["nvmf", target, "rdma"]);
        let model = self.model();
        model.nvmf.target(target).ok()?.rdma.as_ref()?;
        let params = &model.catalogue.get(&key)?.params;
        let limits = RdmaLimits::deserialize(params).unwrap_or_default();
        let depth = params["max_srq_depth"].as_u64().and_then(|depth| u32::try_from(depth).ok());
        Some(RdmaOptions {
            limits,
            max_srq_depth: depth.unwrap_or(raceline_target::SHARED_RECEIVES),
            no_srq: params["no_srq"].as_bool().unwrap_or(false),
            zcopy: params["zcopy"].as_bool().unwrap_or(false),
            shown: RdmaShown::deserialize(params).unwrap_or_default(),
        })
    }
}

impl Nvmf {
    /// Holds the default target only.
    #[must_use]
    pub fn new(max_subsystems: u32) -> Self {
        let target = NvmfTarget { max_subsystems, ..NvmfTarget::default() };
        let targets = BTreeMap::from([(DEFAULT_TARGET.to_owned(), target)]);
        Self { targets, waits: false, ends_overlaps: false }
    }

    /// The target of that name, or the default one.
    ///
    /// # Errors
    /// When there is none.
    pub fn target(&self, name: &str) -> Result<&NvmfTarget, ManagerError> {
        self.targets.get(name).ok_or_else(|| ManagerError::missing("target", name))
    }

    pub(super) fn target_mut(&mut self, name: &str) -> Result<&mut NvmfTarget, ManagerError> {
        self.targets.get_mut(name).ok_or_else(|| ManagerError::missing("target", name))
    }
}

impl NvmfTarget {
    /// The subsystem of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn subsystem(&self, nqn: &Nqn) -> Result<&Subsystem, ManagerError> {
        self.subsystems.get(nqn).ok_or_else(|| ManagerError::missing("subsystem", nqn.as_str()))
    }

    pub(super) fn subsystem_mut(&mut self, nqn: &Nqn) -> Result<&mut Subsystem, ManagerError> {
        let missing = || ManagerError::missing("subsystem", nqn.as_str());
        self.subsystems.get_mut(nqn).ok_or_else(missing)
    }

    /// Forgets the levels of addresses that nothing listens on any more.
    fn forget_unused_addresses(&mut self) {
        let subsystems = self.subsystems.values().flat_map(|subsystem| &subsystem.listeners);
        let used: BTreeSet<&ListenAddress> = subsystems.chain(&self.discovery_listeners).collect();
        self.levels.retain(|address, _| used.contains(address));
    }

    /// What the connections need that come by this address.
    #[must_use]
    pub fn level(&self, address: &ListenAddress) -> PortLevel {
        self.levels.get(address).copied().unwrap_or_default()
    }

    /// The cores, if they run.
    #[must_use]
    pub fn cores(&self) -> Option<Arc<Target>> {
        self.running.as_ref().map(|running| Arc::clone(&running.target))
    }

    /// Whether NVMe/TCP hosts can be served.
    #[must_use]
    pub fn has_tcp(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.has_tcp)
    }

    /// The options of its transports, once there is one.
    pub(crate) fn transport(&self) -> Option<&TransportOptions> {
        self.running.as_ref()?.transport.as_ref()
    }

    /// Whether it listens anywhere.
    fn listens(&self) -> bool {
        let mut subsystems = self.subsystems.values();
        !self.discovery_listeners.is_empty()
            || subsystems.any(|subsystem| !subsystem.listeners.is_empty())
    }
}

impl Subsystem {
    /// The namespace of that number.
    ///
    /// # Errors
    /// When there is none.
    pub fn namespace(&self, nsid: u32) -> Result<&Namespace, ManagerError> {
        let missing = || ManagerError::missing("namespace", &nsid.to_string());
        self.namespaces.get(&nsid).ok_or_else(missing)
    }

    /// The lowest free namespace number.
    fn free_nsid(&self) -> Result<u32, ManagerError> {
        let max = self.options.max_namespaces;
        (1..=max).find(|nsid| !self.has_nsid(*nsid)).ok_or_else(|| {
            ManagerError::Invalid(format!("{} has {max} namespaces already", self.options.nqn))
        })
    }

    fn has_nsid(&self, nsid: u32) -> bool {
        self.namespaces.contains_key(&nsid) || self.pool_has(nsid)
    }

    /// Whether hosts have made a namespace of this number.
    fn pool_has(&self, nsid: u32) -> bool {
        let mut of_pool = self.pool.iter().flat_map(|pool| &pool.map.namespaces);
        of_pool.any(|namespace| namespace.nsid.0 == nsid)
    }

    /// Checks whether a new namespace can have this number.
    fn check_nsid(&self, nsid: u32) -> Result<(), ManagerError> {
        if self.has_nsid(nsid) {
            return Err(ManagerError::exists("namespace", &nsid.to_string()));
        }
        let max = self.options.max_namespaces;
        if nsid == 0 || nsid > max {
            let text = format!("nsid {nsid} is not within 1 to max_namespaces {max}");
            return Err(ManagerError::Invalid(text));
        }
        Ok(())
    }
}
