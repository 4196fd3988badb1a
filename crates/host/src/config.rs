//! What a host needs to know to connect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use raceline_auth::{GeneratedPsk, KeyError, Names};
use raceline_proto::host::{BackoffConfig, ControllerInfo, NamespaceInfo};
use raceline_proto::nvme::{ControllerId, HostId, Nqn, QueueId};
use raceline_proto::tcp::ADMIN_IN_CAPSULE_BYTES;
use raceline_reactor::StreamProvider;
use raceline_reactor::socket::Interface;

use crate::credentials::CredentialStore;
use crate::gather::I10Config;
use crate::generated::GeneratedStreams;
use crate::maps::QueueRequest;
use crate::path::{Fence, MultipathConfig, PathAddress, PathAna};
use crate::placement::HostPlacement;
use crate::transport::{RdmaDevices, SystemDevices, Transport};

/// Keep alive timeout by default, as other hosts have it.
pub const DEFAULT_KATO_MS: u32 = 5000;
/// Entries of an I/O queue by default: 127 commands outstanding.
pub const DEFAULT_IO_ENTRIES: u16 = 128;
/// Entries of the admin queue: 31 commands outstanding.
pub const DEFAULT_ADMIN_ENTRIES: u16 = 32;
/// Least entries of a queue: one of them is always empty.
pub const MIN_ENTRIES: u16 = 2;
/// Most entries of a queue that this host asks for (slots of its command table).
pub const MAX_ENTRIES: u16 = 4096;
/// How often a command whose data were spoiled on the way is sent again, as Linux does it.
pub const DEFAULT_DIGEST_RETRIES: u8 = 5;
/// PDUs in one send at most; what does not fit goes with the next.
pub const MAX_SEND_PDUS: u16 = 128;
/// How long the TCP connection, ICResp, and the answer to Connect may take, each.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long at least until a controller is tried again that has refused this host as if for good.
pub const REFUSED_DELAY: Duration = Duration::from_secs(30);

/// Makes what carries connections over TLS with a key that an authentication has made (secure channel concatenation).
///
/// Its errors are those of a name that is in no identity of TLS.
pub type Concatenator = fn(&GeneratedPsk, &Names) -> Result<Arc<dyn StreamProvider>, KeyError>;

/// A controller and how to talk to it.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// What carries the queues to `address`. RDMA has neither TLS nor digests: with these, its queues are refused.
    pub transport: Transport,
    /// Where the devices of RDMA queues come from: usually they are those of this machine.
    pub rdma_devices: Arc<dyn RdmaDevices>,
    /// The address of this machine from which all connections are made, of the same family; `None`: the
    /// kernel chooses one. The kernel chooses the port: a controller has several connections to one
    /// address, and a port serves one of them.
    pub source: Option<IpAddr>,
    /// The provider that carries the bytes of all connections, such as TLS; `None`: the kernel's TCP. A
    /// handshake counts to the time until ICResp.
    pub streams: Option<Arc<dyn StreamProvider>>,
    /// Further addresses of controllers of the same subsystem: paths besides `address`. All else in this
    /// configuration holds for each of them.
    pub more_paths: Vec<PathAddress>,
    /// What several paths have in common. With it, even with one path, commands whose path is lost are executed by
    /// another one, or by the same when it is back; without it, there is one path, and a write whose fate is unknown
    /// when it is lost ends with an error.
    pub multipath: Option<MultipathConfig>,
    /// The subsystem.
    pub subnqn: Nqn,
    /// The subsystem is a discovery subsystem although it has a name of its own.
    pub discovery: bool,
    /// This host's NQN.
    pub hostnqn: Nqn,
    /// This host's identifier.
    pub hostid: HostId,
    /// The secrets with which the queues authenticate; without any, they cannot. With a host's secret only, the queues
    /// authenticate if the controller asks; with a controller's secret, always.
    pub credentials: CredentialStore,
    /// After which time a queue that has authenticated does so again, while it is in use; `None`: only after
    /// [`CredentialStore::renew`].
    pub reauthenticate_after: Option<Duration>,
    /// Each association begins with an authentication in the clear, which makes a key. All that follows is carried by
    /// what this makes of the key; nothing else is ever sent in the clear. `None`: there is no such key. Without a
    /// controller's secret, whoever poses as the controller is believed.
    pub concatenator: Option<Concatenator>,
    /// Keep alive timeout; 0 turns it off.
    pub kato_ms: u32,
    /// Protect PDU headers by CRC32C.
    pub header_digest: bool,
    /// Protect data by CRC32C.
    pub data_digest: bool,
    /// How often an I/O command is sent again when a data digest says that its data were spoiled on
    /// the way: those of a read, or those of a write, which the controller then has not executed.
    pub digest_retries: u8,
    /// I/O queues to ask for, over all cores: for everything, or only for reads when there are
    /// `write_queues`.
    pub io_queues: u16,
    /// More queues, for commands that are not reads; see [`crate::maps`].
    pub write_queues: u16,
    /// More queues, for polled commands.
    pub poll_queues: u16,
    /// Entries of each I/O queue, at most [`MAX_ENTRIES`]; one less commands may be outstanding.
    pub io_entries: u16,
    /// Entries of the admin queue, at least 32 (Fabrics 1.1, 5.1).
    pub admin_entries: u16,
    /// Ask for queues without submission queue flow control: successful reads then need no
    /// CapsuleResp.
    pub disable_sq_flow: bool,
    /// Give the connection up when a command takes longer.
    pub command_timeout: Option<Duration>,
    /// The same for commands of the admin queue; `None`: `command_timeout` holds for them, too.
    pub admin_timeout: Option<Duration>,
    /// Have the kernel give a connection up when data stay unacknowledged for this long
    /// (TCP_USER_TIMEOUT); `None`: its own time.
    pub ack_timeout: Option<Duration>,
    /// What to do when the controller is lost.
    pub backoff: BackoffConfig,
    /// A controller that was up, and now refuses this host as if for good, is tried again after at least this long where
    /// `backoff` has no limit; with a limit it is given up.
    pub refused_delay: Duration,
    /// The TCP connection, ICResp and the answer to Connect may take this long each.
    pub connect_timeout: Duration,
    /// The TCP connection may take this long; `None`: `connect_timeout`.
    pub tcp_connect_timeout: Option<Duration>,
    /// How long a receive that finds nothing looks into the network device's queue itself, rather
    /// than wait for an interrupt; `None`: not at all.
    pub busy_poll: Option<Duration>,
    /// Priority of what is sent, for queueing disciplines (SO_PRIORITY), from the first packet on; `None`:
    /// the kernel's. Above 6 it needs CAP_NET_ADMIN.
    pub priority: Option<u32>,
    /// Type of service, or with IPv6 the traffic class, of what is sent over TCP (IP_TOS); 0: the kernel's.
    pub tos: u8,
    /// The interface by which all packets of TCP leave and come (SO_BINDTODEVICE); `None`: the kernel chooses. A path with
    /// another `source` than `address` has does not use it.
    pub interface: Option<Interface>,
    /// Which connections are good for the I/O queues of a core.
    pub placement: HostPlacement,
    /// Gather commands of I/O queues before they are sent; `None`: what is ready leaves at once.
    pub i10: Option<I10Config>,
    /// PDUs in one send at most: 1 shows what sending them together saves.
    pub send_pdus: u16,
    /// Tell the kernel with each call whether more bytes follow (MSG_MORE, MSG_EOR). Large writes are copied
    /// then.
    pub send_flags: bool,
    /// Large writes are sent out of the program's memory without a copy, over io_uring. Such memory comes
    /// back when the controller has answered. A controller that answers before it has the data may be sent
    /// what the memory holds by then. The same may happen to a controller on the same machine that has not
    /// read the data when a command ends without an answer; if it executes the command so late, it writes
    /// what the memory holds by then.
    pub zero_copy: bool,
}

impl HostConfig {
    /// A controller with the usual settings and one I/O queue.
    #[must_use]
    pub fn new(address: SocketAddr, subnqn: Nqn, hostnqn: Nqn, hostid: HostId) -> Self {
        Self {
            address,
            transport: Transport::Tcp,
            rdma_devices: SystemDevices::shared(),
            source: None,
            streams: None,
            more_paths: Vec::new(),
            multipath: None,
            subnqn,
            discovery: false,
            hostnqn,
            hostid,
            credentials: CredentialStore::default(),
            reauthenticate_after: None,
            concatenator: None,
            kato_ms: DEFAULT_KATO_MS,
            header_digest: false,
            data_digest: false,
            digest_retries: DEFAULT_DIGEST_RETRIES,
            io_queues: 1,
            write_queues: 0,
            poll_queues: 0,
            io_entries: DEFAULT_IO_ENTRIES,
            admin_entries: DEFAULT_ADMIN_ENTRIES,
            disable_sq_flow: true,
            command_timeout: Some(Duration::from_secs(30)),
            admin_timeout: None,
            ack_timeout: None,
            backoff: BackoffConfig::default(),
            refused_delay: REFUSED_DELAY,
            connect_timeout: CONNECT_TIMEOUT,
            tcp_connect_timeout: None,
            busy_poll: None,
            priority: None,
            tos: 0,
            interface: None,
            placement: HostPlacement::Any,
            i10: None,
            send_pdus: MAX_SEND_PDUS,
            send_flags: false,
            zero_copy: true,
        }
    }

    /// Whether the subsystem is a discovery subsystem: it has an admin queue only.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.discovery || self.subnqn.is_discovery()
    }

    /// The same with at most this long for each step of connecting.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self {
            connect_timeout: self.connect_timeout.min(limit),
            tcp_connect_timeout: self.tcp_connect_timeout.map(|time| time.min(limit)),
            ..self
        }
    }

    /// The configuration of each path, the first one first. More than one means multipath.
    #[must_use]
    pub fn paths(&self) -> Vec<Self> {
        let multipath = match (&self.multipath, self.more_paths.is_empty()) {
            (None, false) => Some(MultipathConfig::default()),
            (multipath, _) => multipath.clone(),
        };
        let first =
            PathAddress { address: self.address, source: self.source, transport: self.transport };
        let all = std::iter::once(&first).chain(&self.more_paths);
        let path = |path: &PathAddress| Self {
            address: path.address,
            source: path.source,
            transport: path.transport,
            interface: self.interface.filter(|_| path.source == self.source),
            more_paths: Vec::new(),
            multipath: multipath.clone(),
            ..self.clone()
        };
        all.map(path).collect()
    }

    /// The I/O queues to ask for, by what they are for.
    #[must_use]
    pub fn queue_request(&self) -> QueueRequest {
        QueueRequest { io: self.io_queues, write: self.write_queues, poll: self.poll_queues }
    }

    /// The admin queue of a new association.
    #[must_use]
    pub fn admin_queue(&self) -> QueuePairConfig {
        QueuePairConfig {
            address: self.address,
            rdma: match self.transport {
                Transport::Tcp => None,
                Transport::Rdma => Some(Arc::clone(&self.rdma_devices)),
            },
            source: self.source,
            streams: self.streams.clone(),
            subnqn: self.subnqn.clone(),
            hostnqn: self.hostnqn.clone(),
            hostid: self.hostid,
            credentials: self.credentials.clone(),
            reauthenticate_after: self.reauthenticate_after,
            concatenator: self.concatenator,
            generated: None,
            cntlid: ControllerId::DYNAMIC,
            qid: QueueId::ADMIN,
            entries: self.admin_entries.clamp(MIN_ENTRIES, MAX_ENTRIES),
            kato_ms: self.kato_ms,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            digest_retries: 0,
            disable_sq_flow: self.disable_sq_flow,
            in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES,
            command_timeout: self.admin_timeout.or(self.command_timeout),
            ack_timeout: self.ack_timeout,
            connect_timeout: self.connect_timeout,
            tcp_connect_timeout: self.tcp_connect_timeout.unwrap_or(self.connect_timeout),
            busy_poll: self.busy_poll,
            priority: self.priority,
            tos: self.tos,
            interface: self.interface,
            placement: HostPlacement::Any,
            i10: None,
            send_pdus: self.send_pdus,
            send_flags: self.send_flags,
            zero_copy: self.zero_copy,
            failover: false,
        }
    }

    /// An I/O queue of an association.
    #[must_use]
    pub fn io_queue(&self, association: &Association, qid: QueueId) -> QueuePairConfig {
        QueuePairConfig {
            cntlid: association.cntlid,
            qid,
            command_timeout: self.command_timeout,
            digest_retries: self.digest_retries,
            entries: self.io_entries.min(association.max_entries).clamp(MIN_ENTRIES, MAX_ENTRIES),
            in_capsule_bytes: association.controller.in_capsule_bytes,
            placement: self.placement,
            i10: self.i10,
            failover: self.multipath.is_some(),
            concatenator: None,
            generated: association.generated.clone(),
            ..self.admin_queue()
        }
    }
}

/// What all I/O queues of an association have in common. Sent from the core of the admin queue
/// to the others each time the controller has been brought up.
#[derive(Clone, Debug)]
pub struct Association {
    /// CNTLID, new with each association.
    pub cntlid: ControllerId,
    /// Most entries per queue that the controller takes (CAP.MQES).
    pub max_entries: u16,
    /// I/O queues granted.
    pub io_queues: u16,
    /// The controller.
    pub controller: Arc<ControllerInfo>,
    /// Its active namespaces.
    pub namespaces: Arc<[NamespaceInfo]>,
    /// How well it leads to them, if the host follows that and the controller says it.
    pub ana: Option<Arc<PathAna>>,
    /// Says when its commands can execute no more.
    pub fence: Arc<Fence>,
    /// What carries its connections, if an authentication has made a key for that; `None`: what the host has.
    pub generated: Option<Arc<GeneratedStreams>>,
}

impl Association {
    /// Whether the other is the same association, maybe with other namespaces. CNTLID does not tell: a
    /// controller that was started again begins with the same number.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.controller, &other.controller)
    }

    /// Whether the same association leads to the same namespaces in the same way.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.namespaces, &other.namespaces)
            && self.ana.as_ref().map(Arc::as_ptr) == other.ana.as_ref().map(Arc::as_ptr)
    }
}

/// One queue and its connection.
#[derive(Clone, Debug)]
pub struct QueuePairConfig {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// Where the RDMA devices come from; `None`: the transport is TCP.
    pub rdma: Option<Arc<dyn RdmaDevices>>,
    /// The address of this machine to connect from.
    pub source: Option<IpAddr>,
    /// The provider that carries the bytes; `None`: the kernel's TCP.
    pub streams: Option<Arc<dyn StreamProvider>>,
    /// SUBNQN.
    pub subnqn: Nqn,
    /// HOSTNQN.
    pub hostnqn: Nqn,
    /// HOSTID.
    pub hostid: HostId,
    /// The secrets with which it authenticates; without any, it cannot.
    pub credentials: CredentialStore,
    /// After which time it authenticates again; `None`: only with renewed secrets.
    pub reauthenticate_after: Option<Duration>,
    /// For an admin queue that makes a key before it is used; `None`: it does not.
    pub concatenator: Option<Concatenator>,
    /// What carries its bytes because an authentication has made a key for that; it takes the place of `streams`.
    pub generated: Option<Arc<GeneratedStreams>>,
    /// CNTLID: the association of an I/O queue; [`ControllerId::DYNAMIC`] for an admin queue.
    pub cntlid: ControllerId,
    /// QID.
    pub qid: QueueId,
    /// Entries: SQSIZE + 1.
    pub entries: u16,
    /// KATO, for the admin queue.
    pub kato_ms: u32,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// How often a command is sent again when a data digest was wrong.
    pub digest_retries: u8,
    /// Ask for no submission queue flow control.
    pub disable_sq_flow: bool,
    /// Writes up to this many bytes go in the capsule.
    pub in_capsule_bytes: u32,
    /// Give the connection up when a command takes longer.
    pub command_timeout: Option<Duration>,
    /// The kernel's limit for data that stay unacknowledged.
    pub ack_timeout: Option<Duration>,
    /// ICResp and the answer to Connect may take this long each.
    pub connect_timeout: Duration,
    /// The TCP connection may take this long.
    pub tcp_connect_timeout: Duration,
    /// How long a receive that finds nothing busy polls.
    pub busy_poll: Option<Duration>,
    /// SO_PRIORITY.
    pub priority: Option<u32>,
    /// IP_TOS.
    pub tos: u8,
    /// SO_BINDTODEVICE.
    pub interface: Option<Interface>,
    /// Which connections are good for the core.
    pub placement: HostPlacement,
    /// Gather commands before they are sent.
    pub i10: Option<I10Config>,
    /// PDUs in one send at most, 1..=[`MAX_SEND_PDUS`].
    pub send_pdus: u16,
    /// Tell the kernel whether more bytes follow.
    pub send_flags: bool,
    /// Large writes are sent without a copy.
    pub zero_copy: bool,
    /// Commands that a connection does not complete are given back for another path.
    pub failover: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_queue() {
        let nqn = |name: &str| Nqn::new(name).unwrap();
        let address = "127.0.0.1:4420".parse().unwrap();
        let (subnqn, hostnqn) = (nqn("nqn.2026-01.io.x:s"), nqn("nqn.2026-01.io.x:h"));
        let config = HostConfig::new(address, subnqn, hostnqn, HostId([1; 16]));
        let [one, two, three] = [1, 2, 3].map(Duration::from_secs);
        let admin = config.admin_queue();
        assert_eq!(admin.command_timeout, config.command_timeout);
        assert_eq!(admin.tcp_connect_timeout, CONNECT_TIMEOUT);
        let config = HostConfig {
            source: Some("127.0.0.2".parse().unwrap()),
            command_timeout: Some(one),
            admin_timeout: Some(two),
            tcp_connect_timeout: Some(three),
            tos: 8,
            interface: Interface::named("eth0"),
            ..config
        };
        let admin = config.admin_queue();
        assert_eq!((admin.command_timeout, admin.tcp_connect_timeout), (Some(two), three));
        assert_eq!((admin.connect_timeout, admin.source), (CONNECT_TIMEOUT, config.source));
        let address_3 = "127.0.0.3:4420".parse().unwrap();
        let more = PathAddress { address: address_3, source: None, transport: Transport::Rdma };
        let several = HostConfig { more_paths: vec![more], ..config.clone() }.paths();
        assert!(several[0].admin_queue().rdma.is_none() && several[1].admin_queue().rdma.is_some());
        let sources: Vec<_> = several.iter().map(|path| (path.address, path.source)).collect();
        assert_eq!(sources, [(address, config.source), (more.address, None)]);
        let links: Vec<_> = several.iter().map(|path| (path.tos, path.interface)).collect();
        assert_eq!(links, [(8, config.interface), (8, None)]);
        assert!(several.iter().all(|path| path.multipath == Some(MultipathConfig::default())));
        assert_eq!(config.paths()[0].multipath, None);
        let limited = config.within(one).admin_queue();
        assert_eq!((limited.connect_timeout, limited.tcp_connect_timeout), (one, one));
    }
}
