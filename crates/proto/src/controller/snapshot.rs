//! Everything a target offers at one moment, as an immutable snapshot.

use std::net::SocketAddr;
use std::sync::Arc;

use super::discovery::DISCOVERY_LIMITS;
use super::security::{Channel, Security};
use super::subsystem::{HostAccess, Limits, Subsystem};
use crate::nvme::discovery::DiscoveryEntry;
use crate::nvme::{HostNqn, Nqn};

/// What carries the connections of a listener, as hosts have to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP, with TLS or without.
    #[default]
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

/// An address where hosts can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerInfo {
    /// The address as bound; an unspecified IP listens on every address.
    pub address: SocketAddr,
    /// PORTID in the Discovery log; no other listener of the snapshot has it.
    pub port_id: u16,
    /// It leads to every subsystem, not only to those that name it in [`Subsystem::ports`].
    pub open: bool,
    /// What its connections have to have, whatever they lead to, as the Discovery log tells hosts.
    pub security: Security,
    /// It takes connections without TLS as well, for an authentication that makes a key for TLS (secure channel
    /// concatenation) and for nothing else.
    pub concatenates: bool,
    /// What carries its connections.
    pub transport: Transport,
}

impl ListenerInfo {
    /// Whether it leads to that subsystem.
    #[must_use]
    pub fn leads_to(&self, subsystem: &Subsystem) -> bool {
        self.open || subsystem.ports.contains(&self.port_id)
    }

    /// Whether the host could have by this listener what is demanded of it: there is no TLS where the listener has none.
    pub(crate) fn can_have(&self, demanded: Security) -> bool {
        self.security.tls || !demanded.tls
    }
}

/// Another place to which the Discovery log points hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP.
    pub trtype: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6.
    pub adrfam: u8,
    /// TRADDR, at most 256 ASCII characters.
    pub traddr: String,
    /// TRSVCID, at most 32 ASCII characters.
    pub trsvcid: String,
    /// SUBNQN: a discovery service, or the one subsystem that is there.
    pub subnqn: Nqn,
    /// TREQ: a secure channel is required there.
    pub secure_channel: bool,
    /// Which hosts see it.
    pub hosts: HostAccess,
}

/// Which listeners the Discovery log shows: those that agree with the connection that reads the log
/// in everything that is set here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryFilter {
    /// The IP address.
    pub address: bool,
    /// The TCP port.
    pub service: bool,
}

/// Everything a target offers at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSnapshot {
    /// Greater than the generation of any earlier snapshot.
    pub generation: u64,
    /// The subsystems, by ascending NQN.
    pub subsystems: Vec<Arc<Subsystem>>,
    /// The listeners.
    pub listeners: Vec<ListenerInfo>,
    /// The listeners, by [`ListenerInfo::port_id`], that the Discovery log names as entrances to
    /// this discovery service; it answers at all listeners.
    pub discovery_ports: Vec<u16>,
    /// The other places that hosts are pointed to.
    pub referrals: Vec<Referral>,
    /// What has registered with this discovery service; `None`: it is no centralized one (TP8010).
    pub registered: Option<Arc<[DiscoveryEntry]>>,
    /// What the Discovery log leaves out.
    pub discovery_filter: DiscoveryFilter,
    /// The limits of its discovery controllers.
    pub discovery_limits: Limits,
}

impl Default for TargetSnapshot {
    /// An empty snapshot.
    fn default() -> Self {
        Self {
            generation: 0,
            subsystems: Vec::new(),
            listeners: Vec::new(),
            discovery_ports: Vec::new(),
            referrals: Vec::new(),
            registered: None,
            discovery_filter: DiscoveryFilter::default(),
            discovery_limits: DISCOVERY_LIMITS,
        }
    }
}

impl TargetSnapshot {
    /// The subsystem of that name.
    #[must_use]
    pub fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        let place = self.subsystems.binary_search_by(|subsystem| subsystem.nqn.cmp(nqn)).ok()?;
        self.subsystems.get(place)
    }

    /// Whether hosts that came by that port can reach the subsystem.
    #[must_use]
    pub fn leads_to(&self, port_id: u16, subsystem: &Subsystem) -> bool {
        self.listener(port_id).is_some_and(|listener| listener.leads_to(subsystem))
    }

    /// What the connections of a host have to have that come by this port to this subsystem; `None`: to the discovery
    /// service.
    #[must_use]
    pub fn demands(&self, port_id: u16, subsystem: Option<&Subsystem>, host: &HostNqn) -> Security {
        let of_subsystem = subsystem.map(|subsystem| subsystem.demands(host)).unwrap_or_default();
        self.listener(port_id).map_or(of_subsystem, |listener| listener.security.or(of_subsystem))
    }

    /// Whether a connection of this kind that came by this port is there only to make a key for TLS.
    #[must_use]
    pub fn must_concatenate(&self, port_id: u16, channel: Channel) -> bool {
        channel == Channel::Plain
            && self.listener(port_id).is_some_and(|listener| listener.concatenates)
    }

    /// The listener of that number.
    #[must_use]
    pub fn listener(&self, port_id: u16) -> Option<&ListenerInfo> {
        self.listeners.iter().find(|listener| listener.port_id == port_id)
    }
}
