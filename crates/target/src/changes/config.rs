//! What a target is told: its cores and limits, subsystems, namespaces and listeners.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use raceline_accel::Framework;
use raceline_auth::GeneratedKeys;
use raceline_bdev::SharedBdev;
use raceline_proto::controller::{
    DISCOVERY_LIMITS, HostAccess, Limits, MAX_NSID, MIN_ADMIN_ENTRIES, Security, SubsystemError,
    Visibility,
};
use raceline_proto::nvme::{ControllerId, NamespaceId, Nqn, QueueId};
use raceline_reactor::flow::policy;
use raceline_reactor::listening::address_trouble;
use raceline_reactor::{Backend, Mode, PoolConfig};

use crate::changes::iscsi_config::IscsiError;
use crate::changes::pool_map::MapError;
use crate::changes::reservation_state::{ProtectionPlace, ReservationPlace};
use crate::path::buffers::pool_config;
use crate::records::placement::PlacementPolicy;
use crate::records::throttle::Throttle;

/// Bytes that a connection moves in a pass by default: some 50 us of a core's time (lab 0042).
pub const DEFAULT_PASS_BYTES: u32 = 256 << 10;

/// Commands that an I/O queue holds by default.
pub const DEFAULT_QUEUE_DEPTH: u16 = 128;

/// How long the commands of a lost association may take to end, by default.
pub const DEFAULT_QUIESCE_TIME: Duration = Duration::from_secs(5);

/// Fewest bytes that a connection may be configured to move in a pass.
pub const MIN_PASS_BYTES: u32 = 4096;

/// Fewest bytes of a read from memory that leaves without a copy, by default.
pub const DEFAULT_ZERO_COPY_BYTES: u32 = 16 << 10;

const _: () = assert!(DEFAULT_ZERO_COPY_BYTES as usize == policy::ZERO_COPY_BYTES_MIN);

/// Fewest bytes of a read that may be configured to leave without a copy: a page.
pub const MIN_ZERO_COPY_BYTES: u32 = 4096;

/// Which connections send reads from memory without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopySend {
    /// None.
    #[default]
    Off,
    /// Those of other machines.
    Auto,
    /// All. If the kernel copies after all, as between sockets of one machine, the connection copies from
    /// then on.
    On,
}

/// Cores, memory and limits of a target. Constant while it runs.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// CPUs to run on, one reactor each; empty: one reactor that is not pinned.
    pub cores: Vec<usize>,
    /// What a reactor does when it is idle.
    pub mode: Mode,
    /// io_uring, epoll, or whichever works.
    pub backend: Backend,
    /// Which core gets a new connection.
    pub placement: PlacementPolicy,
    /// How long a receive that finds nothing polls the network device's queue itself instead of
    /// waiting for an interrupt; `None`: not at all.
    pub busy_poll: Option<Duration>,
    /// The priority of sent packets (SO_PRIORITY), for queueing disciplines: those of listeners and of
    /// connections. Above 6 it needs CAP_NET_ADMIN.
    pub socket_priority: u32,
    /// Which connections send reads from memory without a copy, where io_uring is used. Memory that waits to
    /// be sent may be written meanwhile, as while it is copied.
    pub zero_copy: ZeroCopySend,
    /// Reads of fewer bytes are copied; at least [`MIN_ZERO_COPY_BYTES`].
    pub zero_copy_bytes: u32,
    /// Tell the kernel with each call whether more bytes follow (MSG_MORE, MSG_EOR). It has no effect on
    /// connections that send without a copy.
    pub send_flags: bool,
    /// Acknowledge what is received at once, instead of with what is sent next (TCP_QUICKACK): asked for at
    /// accept, until the kernel sees that requests and answers alternate.
    pub quick_ack: bool,
    /// How long sent bytes may stay without an acknowledgement before the target gives the connection
    /// up (TCP_USER_TIMEOUT); `None`: as long as the kernel tries.
    pub ack_timeout: Option<Duration>,
    /// Which engine computes digests; `None`: the CPU.
    pub accel: Option<Framework>,
    /// First value of the generation counter of the Discovery log: a target that restarts begins above
    /// the values that hosts have seen.
    pub first_generation: u64,
    /// The number of this run of the target, which each start increases: no two of eight successive runs give the same
    /// numbers to controllers, where a subsystem has 1024 or more. `None`: earlier runs are not known.
    pub run: Option<u64>,
    /// Largest data transfer of one command in bytes (MDTS): a power of two, at least 8192.
    pub max_io_bytes: u32,
    /// Largest write data inside a command capsule on I/O queues (IOCCSZ), a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Entries of an I/O queue (CAP.MQES + 1): one more than the commands that it holds.
    pub max_queue_entries: u16,
    /// Entries of an admin queue that a host may ask for (ASQSZ), within [`Self::ADMIN_ENTRIES`].
    pub max_admin_entries: u16,
    /// I/O queues of one controller.
    pub max_io_queues: u16,
    /// Keep alive timeouts are rounded up to multiples of this, in 100 ms (KAS); at least 1.
    pub keep_alive_granularity: u16,
    /// Shortest keep alive timeout in milliseconds; a host that asks for a shorter one gets this one.
    pub min_keep_alive_ms: u32,
    /// The time within which no command of an association executes any more, counted from the moment at which the
    /// target gives the association up: within [`Self::QUIESCE_TIMES`], advertised as CQT. What has not reached a
    /// device then is dropped at once, so this is the time that devices may take for a request.
    pub quiesce_time: Duration,
    /// A C2HData PDU reports the success of its read, where the host permits it; otherwise a response
    /// follows the data of every read.
    pub c2h_success: bool,
    /// Bytes that one connection moves before the others of its core have their turn: in one
    /// receive, in one send while another socket of the core makes small sends, and from or to
    /// devices and through digests for the commands of one receive. The last command may exceed it.
    pub pass_bytes: u32,
    /// I/O buffers of 128 KiB on each core, or of `max_io_bytes` if that is less; a command that finds
    /// none free waits. Each core has two buffers of 16 KiB for each of them. With a larger
    /// `max_io_bytes` half of their memory is in larger buffers, at least 4 of the largest size.
    pub large_buffers_per_core: usize,
    /// I/O buffers of 4 KiB on each core.
    pub small_buffers_per_core: usize,
    /// Bounds on sockets that have not completed Connect.
    pub pre_connect: PreConnectLimits,
    /// Controllers that one host may have at a time; all hosts without a name count as one host.
    pub max_controllers_per_host: usize,
    /// Where the keys go that authentications make for TLS (secure channel concatenation), which the providers of
    /// listeners find there. Such a listener takes connections without TLS as well ([`StreamProvider::takes_plain`]).
    ///
    /// [`StreamProvider::takes_plain`]: raceline_reactor::StreamProvider::takes_plain
    pub generated_keys: Option<Arc<dyn GeneratedKeys>>,
}

/// Bounds on sockets that have not completed Connect: an unauthenticated peer cannot hold more.
#[derive(Clone, Debug)]
pub struct PreConnectLimits {
    /// In total.
    pub total: usize,
    /// From one source address.
    pub per_source: usize,
    /// Time from accept to a complete ICReq.
    pub ic_req: Duration,
    /// Time from accept to a completed Connect.
    pub connect: Duration,
    /// Time from Connect to a completed authentication, for hosts that have to authenticate.
    pub authentication: Duration,
    /// Authentications that may fail at once for one source address; one of them is forgiven every 3 s. A source that
    /// has more is refused at Connect, for hosts that have to authenticate.
    pub failures_per_source: u32,
}

impl Default for PreConnectLimits {
    fn default() -> Self {
        Self {
            total: 1024,
            per_source: 128,
            ic_req: Duration::from_secs(5),
            connect: Duration::from_secs(10),
            authentication: Duration::from_secs(30),
            failures_per_source: 20,
        }
    }
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            mode: Mode::default(),
            backend: Backend::default(),
            placement: PlacementPolicy::default(),
            busy_poll: None,
            socket_priority: 0,
            zero_copy: ZeroCopySend::Off,
            zero_copy_bytes: DEFAULT_ZERO_COPY_BYTES,
            send_flags: false,
            quick_ack: false,
            ack_timeout: None,
            accel: None,
            first_generation: 0,
            run: None,
            max_io_bytes: 1 << 20,
            in_capsule_bytes: 8 << 10,
            max_queue_entries: DEFAULT_QUEUE_DEPTH + 1,
            max_admin_entries: 128,
            max_io_queues: 128,
            keep_alive_granularity: Limits::DEFAULT.keep_alive_granularity,
            min_keep_alive_ms: Limits::DEFAULT.min_keep_alive_ms,
            quiesce_time: DEFAULT_QUIESCE_TIME,
            c2h_success: true,
            pass_bytes: DEFAULT_PASS_BYTES,
            large_buffers_per_core: 256,
            small_buffers_per_core: 2048,
            pre_connect: PreConnectLimits::default(),
            max_controllers_per_host: 64,
            generated_keys: None,
        }
    }
}

/// The priority that leads to the queues of one application: the map of traffic classes of `raceline adq`
/// has class 1 there.
const QUEUE_PRIORITY: u32 = 1;
/// How long a receive looks into the queue of one application itself.
const QUEUE_BUSY_POLL: Duration = Duration::from_micros(50);

impl TargetConfig {
    /// Permitted values of [`Self::max_admin_entries`]; the specification sets the least (Fabrics 1.1, 5.3).
    pub const ADMIN_ENTRIES: RangeInclusive<u16> = MIN_ADMIN_ENTRIES..=4096;

    /// Permitted values of [`Self::quiesce_time`]: what 16 bits of milliseconds hold.
    pub const QUIESCE_TIMES: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_millis(0xffff);

    /// Makes connections follow the queues of the network device, where no option says otherwise: placement
    /// by queue, priority 1, and 50 us of busy polling. If the kernel does not permit this process to busy
    /// poll, that stays off, and a warning says why.
    pub fn follow_device_queues(&mut self) {
        if self.placement == PlacementPolicy::Balanced {
            self.placement = PlacementPolicy::Napi;
        }
        if self.socket_priority == 0 {
            self.socket_priority = QUEUE_PRIORITY;
        }
        if self.busy_poll.is_none() {
            match raceline_reactor::socket::check_busy_poll(QUEUE_BUSY_POLL) {
                Ok(()) => self.busy_poll = Some(QUEUE_BUSY_POLL),
                Err(error) => tracing::warn!("no busy polling: {error}"),
            }
        }
    }

    /// The I/O buffers of one core.
    pub(crate) fn buffers(&self) -> PoolConfig {
        pool_config(self.small_buffers_per_core, self.large_buffers_per_core, self.max_io_bytes)
    }

    /// The limits that controllers advertise.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            max_io_bytes: self.max_io_bytes,
            in_capsule_bytes: self.in_capsule_bytes,
            max_queue_entries: self.max_queue_entries,
            max_admin_entries: self.max_admin_entries,
            max_io_queues: self.max_io_queues,
            keep_alive_granularity: self.keep_alive_granularity,
            min_keep_alive_ms: self.min_keep_alive_ms,
            quiesce_ms: u16::try_from(self.quiesce_time.as_millis()).unwrap_or(u16::MAX),
            ..Limits::DEFAULT
        }
    }

    /// The limits that discovery controllers advertise.
    pub(crate) fn discovery_limits(&self) -> Limits {
        Limits {
            max_admin_entries: self.max_admin_entries,
            keep_alive_granularity: self.keep_alive_granularity,
            min_keep_alive_ms: self.min_keep_alive_ms,
            ..DISCOVERY_LIMITS
        }
    }

    pub(crate) fn check(&self) -> Result<(), TargetError> {
        let bad = |what: &'static str, need: &'static str| Err(TargetError::Config { what, need });
        if self.large_buffers_per_core < 4 || self.small_buffers_per_core < 4 {
            return bad("buffers per core", "at least 4 of each size");
        }
        if !Self::ADMIN_ENTRIES.contains(&self.max_admin_entries) {
            return bad("entries of an admin queue", "32 to 4096");
        }
        if self.keep_alive_granularity == 0 {
            return bad("keep alive granularity", "at least 1, in 100 ms");
        }
        if !Self::QUIESCE_TIMES.contains(&self.quiesce_time) {
            return bad("time for the commands of a lost association", "1 ms to 65535 ms");
        }
        if self.pass_bytes < MIN_PASS_BYTES {
            return bad("bytes of a pass", "at least 4096");
        }
        if self.zero_copy_bytes < MIN_ZERO_COPY_BYTES {
            return bad("bytes of a read that is not copied", "at least 4096");
        }
        if self.placement == PlacementPolicy::Listener && self.cores.is_empty() {
            return bad("cores whose listeners are chosen by CPU", "bound to CPUs");
        }
        if let Some(time) = self.busy_poll {
            raceline_reactor::socket::check_busy_poll(time).map_err(TargetError::BusyPoll)?;
        }
        let priority = self.socket_priority;
        if priority != 0 {
            raceline_reactor::socket::check_priority(priority)
                .map_err(TargetError::SocketPriority)?;
        }
        Ok(())
    }
}

/// A subsystem to create; [`SubsystemConfig::new`] fills in the defaults.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Which hosts may connect.
    pub hosts: HostAccess,
    /// Most namespaces, and the greatest namespace number: 1..=[`Self::MAX_NAMESPACES`].
    pub max_namespaces: u32,
    /// The numbers that its controllers get, within [`Self::CONTROLLER_IDS`].
    pub controller_ids: RangeInclusive<u16>,
    /// It reports Asymmetric Namespace Access: listeners can lead to its namespaces differently well.
    pub ana_reporting: bool,
    /// What the connections of every host have to have.
    pub security: Security,
}

impl SubsystemConfig {
    /// The greatest [`Self::max_namespaces`].
    pub const MAX_NAMESPACES: u32 = MAX_NSID;
    /// All numbers that a controller can have; FFF0h and up are reserved (Fabrics 1.1, 3.3).
    pub const CONTROLLER_IDS: RangeInclusive<u16> = 1..=0xffef;

    /// A subsystem of that name with serial number "00000000000000000000" that accepts any host.
    #[must_use]
    pub fn new(nqn: Nqn) -> Self {
        Self {
            nqn,
            serial: "0".repeat(20),
            model: "Raceline".to_owned(),
            hosts: HostAccess::Any,
            max_namespaces: Self::MAX_NAMESPACES,
            controller_ids: Self::CONTROLLER_IDS,
            ana_reporting: false,
            security: Security::PLAIN,
        }
    }

    pub(crate) fn check(&self) -> Result<(), TargetError> {
        let (ids, all) = (&self.controller_ids, Self::CONTROLLER_IDS);
        if ids.is_empty() || ids.start() < all.start() || ids.end() > all.end() {
            let need = "a range within 1..=65519 that is not empty";
            return Err(TargetError::Config { what: "controller numbers", need });
        }
        Ok(())
    }
}

/// A namespace to add to a subsystem; [`NamespaceConfig::new`] fills in the defaults.
#[derive(Clone)]
pub struct NamespaceConfig {
    /// Its number; `None`: the lowest free.
    pub nsid: Option<NamespaceId>,
    /// The device behind it.
    pub bdev: SharedBdev,
    /// Its UUID; `None`: the device's.
    pub uuid: Option<[u8; 16]>,
    /// Its NGUID; `None`: the target derives it from the UUID.
    pub nguid: Option<[u8; 16]>,
    /// Its EUI64; `None`: it has none.
    pub eui64: Option<[u8; 8]>,
    /// Which of the hosts that may connect see it.
    pub visibility: Visibility,
    /// Its ANA group; `None`: that of its own number, where the subsystem reports ANA.
    pub ana_group: Option<u32>,
    /// Its limits ([`Target::throttle`](crate::Target::throttle)); `None`: it has none.
    pub throttle: Option<Throttle>,
    /// Where its reservations are kept so that they persist through a power loss; `None`: they cannot.
    pub reservations: Option<ReservationPlace>,
    /// Where hosts' write protection is kept so that it outlives the target; `None`: they can protect the namespace
    /// only until then.
    pub protection: Option<ProtectionPlace>,
}

impl NamespaceConfig {
    /// The lowest free number, the identity of the device, visible to every host.
    #[must_use]
    pub fn new(bdev: SharedBdev) -> Self {
        let visibility = Visibility::All;
        Self {
            nsid: None,
            bdev,
            uuid: None,
            nguid: None,
            eui64: None,
            visibility,
            ana_group: None,
            throttle: None,
            reservations: None,
            protection: None,
        }
    }
}

/// Why a target cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A setting is outside its range.
    #[error("{what} must be {need}")]
    Config {
        /// The setting.
        what: &'static str,
        /// Its range.
        need: &'static str,
    },
    /// Another process is about to take the place of this one, and would not learn of the change.
    #[error("another process is about to take the place of this one: try again in a moment")]
    HeldBack,
    /// What another process has handed over cannot be taken over.
    #[error("a connection cannot be taken over: {0}")]
    HandOver(String),
    /// The kernel refuses busy polling.
    #[error("{0}")]
    BusyPoll(std::io::Error),
    /// The kernel refuses this socket priority.
    #[error("{0}")]
    SocketPriority(std::io::Error),
    /// A reactor thread could not start.
    #[error("cannot start the reactor on core {core}: {error}")]
    Reactor {
        /// The CPU, or the ordinal when not pinned.
        core: usize,
        /// Why.
        error: std::io::Error,
    },
    /// Connections are where the placement policy says, so none may move.
    #[error(
        "queues move between cores only with balanced placement: this target places connections by what their packets say"
    )]
    PlacedByPolicy,
    /// There is no thread that looks at the cores.
    #[error("cannot start the thread that moves queues between cores: {0}")]
    Balancer(std::io::Error),
    /// A queue or a core does not exist.
    #[error("there is no I/O queue {qid} of controller {cntlid}, or no core {core}")]
    NoQueue {
        /// The controller.
        cntlid: ControllerId,
        /// The queue.
        qid: QueueId,
        /// The core, by its index.
        core: usize,
    },
    /// A queue pair belongs to the completion queue of its core.
    #[error(
        "I/O queue {qid} of controller {cntlid} is over RDMA, and stays on the core where it was placed"
    )]
    StaysOnCore {
        /// The controller.
        cntlid: ControllerId,
        /// The queue.
        qid: QueueId,
    },
    /// Listening failed.
    #[error("cannot listen on {address}: {}", address_trouble(*.address, .error, None))]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// There is no such listener.
    #[error("nothing listens on {0}")]
    NoListener(SocketAddr),
    /// An address has two listeners, and the call does not say which one it means.
    #[error("{0} has a listener for TCP and one for RDMA: name the transport")]
    TwoListeners(SocketAddr),
    /// The subsystem reports no Asymmetric Namespace Access.
    #[error(
        "{0} reports no ANA: only a subsystem that was created with ANA reporting has ANA groups"
    )]
    NoAna(Nqn),
    /// An ANA group is out of range.
    #[error("{nqn} has the ANA groups 1 to {max}, and not {group}")]
    AnaGroup {
        /// Subsystem.
        nqn: Nqn,
        /// The group.
        group: u32,
        /// The greatest group.
        max: u32,
    },
    /// Commands did not end while their path was closed.
    #[error(
        "{commands} commands for {nqn} are still in flight by this listener; \
         its ANA groups stay in the state change: set the state again when they have ended"
    )]
    InFlight {
        /// Subsystem.
        nqn: Nqn,
        /// How many.
        commands: usize,
    },
    /// The subsystem has that listener already.
    #[error("{nqn} has a listener on {address} already")]
    ListenerExists {
        /// Subsystem.
        nqn: Nqn,
        /// Where.
        address: SocketAddr,
    },
    /// A device could not be opened on a core.
    #[error("cannot use {device} on a core: {error}")]
    Device {
        /// The device's name.
        device: String,
        /// Why.
        error: std::io::Error,
    },
    /// A device cannot be a namespace.
    #[error("{device} cannot be a namespace: {reason}")]
    Unsuitable {
        /// The device's name.
        device: String,
        /// Why.
        reason: String,
    },
    /// The subsystem exists already.
    #[error("subsystem {0} exists already")]
    SubsystemExists(Nqn),
    /// There is no such subsystem.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Nqn),
    /// The namespace exists already.
    #[error("namespace {nsid} of {nqn} exists already")]
    NamespaceExists {
        /// Subsystem.
        nqn: Nqn,
        /// Namespace.
        nsid: NamespaceId,
    },
    /// There is no such namespace.
    #[error("there is no namespace {nsid} in {nqn}")]
    NoNamespace {
        /// Subsystem.
        nqn: Nqn,
        /// Namespace.
        nsid: NamespaceId,
    },
    /// Every host sees the namespace: there is no list of its hosts.
    #[error(
        "every host sees namespace {nsid} of {nqn}: add it as one that hosts do not see of themselves"
    )]
    AlwaysVisible {
        /// Subsystem.
        nqn: Nqn,
        /// Namespace.
        nsid: NamespaceId,
    },
    /// The host is on the list already.
    #[error("{host} is allowed in {nqn} already")]
    HostExists {
        /// Subsystem.
        nqn: Nqn,
        /// Host.
        host: Nqn,
    },
    /// The host is not on the list.
    #[error("{host} is not a host of {nqn}")]
    NoHost {
        /// Subsystem.
        nqn: Nqn,
        /// Host.
        host: Nqn,
    },
    /// The referral exists already.
    #[error("the referral to {subnqn} at {traddr}:{trsvcid} exists already")]
    ReferralExists {
        /// Where.
        traddr: String,
        /// Where.
        trsvcid: String,
        /// What is there.
        subnqn: Nqn,
    },
    /// There is no such referral.
    #[error("there is no referral to {subnqn} at {traddr}:{trsvcid}")]
    NoReferral {
        /// Where.
        traddr: String,
        /// Where.
        trsvcid: String,
        /// What is there.
        subnqn: Nqn,
    },
    /// All namespace numbers are in use.
    #[error("{nqn} is full: at most {max} namespaces")]
    TooManyNamespaces {
        /// Subsystem.
        nqn: Nqn,
        /// The limit.
        max: u32,
    },
    /// A subsystem or one of its namespaces breaks a rule of the protocol.
    #[error("{nqn}: {error}")]
    Subsystem {
        /// Which.
        nqn: Nqn,
        /// The rule.
        error: SubsystemError,
    },
    /// The subsystem has a pool.
    #[error("{0} has a pool already")]
    PoolExists(Nqn),
    /// The subsystem has no pool.
    #[error("{0} has no pool")]
    NoPool(Nqn),
    /// A namespace of the pool is being made or formatted.
    #[error("a namespace of {0} is being made or formatted: wait until that is done")]
    PoolBusy(Nqn),
    /// The map is not that of the pool's device.
    #[error("the map of the pool of {nqn} does not fit its device: {error}")]
    PoolMap {
        /// Subsystem.
        nqn: Nqn,
        /// Why.
        error: MapError,
    },
    /// The map of the pool could not be kept.
    #[error("cannot save the map of the pool of {nqn}: {error}")]
    PoolStore {
        /// Subsystem.
        nqn: Nqn,
        /// Why.
        error: std::io::Error,
    },
    /// A change of what iSCSI exports is refused.
    #[error(transparent)]
    Iscsi(#[from] IscsiError),
    /// The thread that changes namespaces as hosts ask could not start.
    #[error("cannot start the thread that manages namespaces: {0}")]
    Manager(std::io::Error),
    /// A reactor does not answer.
    #[error("core {0} does not answer: it is stuck or has stopped")]
    Unresponsive(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_device_queues_unless_an_option_says_otherwise() {
        let mut config = TargetConfig::default();
        config.follow_device_queues();
        assert_eq!((config.placement, config.socket_priority), (PlacementPolicy::Napi, 1));
        let allowed = raceline_reactor::socket::check_busy_poll(QUEUE_BUSY_POLL).is_ok();
        assert_eq!(config.busy_poll, allowed.then_some(QUEUE_BUSY_POLL));
        let chosen = Duration::from_micros(7);
        let mut config = TargetConfig {
            placement: PlacementPolicy::Cpu,
            socket_priority: 3,
            busy_poll: Some(chosen),
            ..TargetConfig::default()
        };
        config.follow_device_queues();
        assert_eq!((config.placement, config.socket_priority), (PlacementPolicy::Cpu, 3));
        assert_eq!(config.busy_poll, Some(chosen));
    }
}
