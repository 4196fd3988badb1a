//! NVMe/TCP and iSCSI target: listeners, placement, connections, execution.
//!
//! A [`Target`] runs one reactor per core. A connection lives on one core. A controller lives on the
//! core of its admin connection; its I/O queues, on any core, reach it by message. What
//! exists (subsystems, namespaces, listeners) is an immutable snapshot that every core holds and
//! that is replaced as a whole.
//!
//! # Changing a target
//!
//! All changes are methods of [`Target`] that may be called from any thread while hosts do I/O.
//! A call blocks until every core works with the change, so it must not come from a core. It takes
//! less than a millisecond, except that the removal of a namespace or subsystem waits for the commands
//! in flight at its devices. An error leaves everything as it was, except for
//! [`TargetError::Unresponsive`]. The target makes changes one at a time; callers that record them
//! must record them in the order of the calls.
//!
//! | what | how |
//! |---|---|
//! | subsystems | [`Target::add_subsystem`], [`Target::remove_subsystem`] |
//! | which hosts may connect | [`Target::allow_any_host`], [`Target::add_host`], [`Target::remove_host`] |
//! | which hosts have to authenticate | [`Target::add_host_with`], [`Target::set_host_keys`], [`Target::set_algorithms`] |
//! | what their connections need: TLS, authentication, both | [`Target::set_security`], [`Target::set_host_security`], [`Entrance`] |
//! | where they connect | [`Target::add_subsystem_listener`], [`Target::remove_subsystem_listener`]; for every subsystem at once, [`Target::add_listener`] |
//! | namespaces | [`Target::add_namespace`], [`Target::remove_namespace`], [`Target::replace_device`] |
//! | which hosts see a namespace | [`NamespaceConfig::visibility`], then [`Target::show_namespace`], [`Target::hide_namespace`] |
//! | namespaces that hosts make themselves | [`Target::set_pool`], [`Target::remove_pool`]; for a host, [`Target::manage_namespaces`] |
//! | paths (Asymmetric Namespace Access) | [`Target::set_ana_state`], [`Target::set_ana_group`], [`Target::ana_states`], [`Target::add_subsystem_listener_in`] |
//! | limits of rates | [`Target::set_namespace_limits`], [`Target::set_subsystem_limits`], [`Target::set_host_limits`] |
//! | the parts of a full core that hosts get | [`Target::set_host_weight`] |
//! | discovery | [`Target::add_referral`], [`Target::remove_referral`], [`Target::set_discovery_filter`] |
//! | who registers with this discovery service | [`Target::set_central`], [`Target::registered`], [`Target::deregister`] |
//! | which core has an I/O queue | [`Target::set_balancing`], [`Target::move_queue`] |
//! | retry delays (CRDT) | [`Target::set_retry_delays`] |
//! | all of iSCSI | [`Target::iscsi`] |
//!
//! Hosts are told what concerns them: Namespace Attribute Changed to those that see the namespace,
//! Discovery Log Changed to those that hold a discovery connection with keep alive open. A change
//! that ends a permission disconnects before the call returns: the controllers of a host that
//! was removed, the connections that came by a listener that was removed. A connection that is refused
//! because its listener does not (yet) lead to its subsystem is told that it may try again, so set
//! up namespaces and hosts first and the listener last.
//!
//! # Pools
//!
//! A subsystem with a pool ([`PoolConfig`]) lets its hosts create, attach, detach, delete and
//! format namespaces (`nvme create-ns` and so on) on parts of one device. Such a namespace is
//! attached to hosts, not to controllers, whose numbers change with every connection. The target
//! gives each change to the [`PoolStore`] before any host sees it; after a restart, [`Target::set_pool`]
//! with the map that was saved last brings the same namespaces back. A new or formatted namespace
//! reads zeroes.
//!
//! # Reservations
//!
//! Hosts register with namespaces and reserve them (Base 2.0, 8.19). A registration is that of a host, with the
//! identifier and the name of its Connect, and outlives its connections. With a [`ReservationPlace`] it can
//! outlive the target, too: each change is in the [`ReservationStore`] before any host sees it.
//! [`Target::reservations`] shows them. A subsystem whose controllers have only part of the numbers
//! ([`SubsystemConfig::controller_ids`]) shares them with another target, which does not know of reservations here:
//! its namespaces cannot be reserved, and say so.
//!
//! # iSCSI
//!
//! [`Target::iscsi`] gives the iSCSI side of the same target ([`Iscsi`]). Its model is that of SPDK: a target node has LUNs
//! over devices, and maps that say which initiator group reaches it by which portal group. A device may be a namespace
//! and a LUN at the same time; COMPARE AND WRITE and fused commands then exclude each other. A LUN of several target nodes
//! over the same device is one logical unit. Its reservations are those of the device: initiators and hosts are registered
//! in one registry, and a reservation of either binds both. With a [`ReservationPlace`] ([`LunConfig::reservations`]) they
//! can outlive the target (APTPL).
//!
//! # Listing
//!
//! [`Target::subsystems`], [`Target::listeners`] and [`Target::referrals`] list what exists,
//! [`Target::controllers`] and [`Target::queues`] the hosts that are connected, and
//! [`Target::poll_groups`], [`Target::hosts`], [`Target::queues`] and [`Target::stats`] what was done.
//! All of these read counters that the cores write anyway; they cost the cores nothing.

mod changes;
mod path;
mod rdma;
mod records;

pub use changes::ana::ListenerAna;
pub use changes::balance::BALANCE_INTERVAL;
pub use changes::config::{
    DEFAULT_PASS_BYTES, DEFAULT_QUEUE_DEPTH, DEFAULT_QUIESCE_TIME, DEFAULT_ZERO_COPY_BYTES,
    MIN_PASS_BYTES, MIN_ZERO_COPY_BYTES, NamespaceConfig, PreConnectLimits, SubsystemConfig,
    TargetConfig, TargetError, ZeroCopySend,
};
pub use changes::connections::ConnectionOptions;
pub use changes::hand_over::{HandOver, Notice};
pub use changes::info::{
    ControllerInfo, HostStats, NamespaceInfo, PollGroupStats, QueueInfo, RdmaQueues, SubsystemInfo,
};
pub use changes::iscsi::{Iscsi, IscsiConnectionInfo, IscsiNodeStats, LunInfo, TargetNodeInfo};
pub use changes::iscsi_config::check_name as check_iscsi_name;
pub use changes::iscsi_config::{
    ChapDemand, ChapPolicy, ChapSecret, DEFAULT_ISCSI_QUEUE_DEPTH, InitiatorGroupConfig,
    InitiatorPattern, IscsiError, IscsiSettings, LunConfig, MAX_ISCSI_QUEUE_DEPTH, MAX_LUN,
    Netmask, NetmaskError, PortalGroupConfig, PortalMap, TargetNodeConfig,
};
pub use changes::listeners::Entrance;
pub use changes::manual::{ManualCore, ReserverProgress};
pub use changes::pool::PoolInfo;
pub use changes::pool_map::{MapError, PoolMap, PoolNamespace};
pub use changes::pool_state::{PoolConfig, PoolStore};
pub use changes::reservation_state::{
    ProtectionPlace, ProtectionStore, ReservationPlace, ReservationStore,
};
pub use changes::subsystems::HostDemands;
pub use changes::target::{Target, TargetStats};
pub use path::handed::{FORM, HandedTarget};
pub use raceline_auth::{Algorithms, DhGroup, DhchapSecret, GeneratedKeys, Hash, KeyPair, Keys};
pub use raceline_proto::controller::{
    ANA_TRANSITION_SECONDS, DiscoveryFilter, HostAccess, Limits, ManagementCommand, Referral,
    Security, Visibility,
};
pub use raceline_proto::nvme::ana::AnaState;
pub use raceline_proto::reservation::Reservations;
pub use rdma::{
    OpenDevice, Patience, RdmaConfig, RdmaDeviceStats, RdmaStreams, SHARED_RECEIVES,
    check_rdma_address, load_rdma_libraries,
};
pub use records::counters::{IscsiTotals, QueueTotals};
pub use records::ledger::AddressStats;
pub use records::limited::{HostLimit, Weight};
pub use records::names::ListenerAt;
pub use records::placement::PlacementPolicy;
pub use records::registered::{MAX_REGISTERED, MAX_REGISTERED_ENTRIES, RegisteredInfo};
pub use records::throttle::{DEFAULT_BURST, MAX_BURST, QosLimits, Throttle};
