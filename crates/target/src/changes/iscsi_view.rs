//! What iSCSI initiators can reach, as all cores see it: part of the snapshot.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use raceline_bdev::DeviceStats;
use raceline_scsi::Port;

use crate::changes::iscsi_config::{
    ChapPolicy, ChapSecret, InitiatorGroupConfig, IscsiSettings, PortalGroupConfig, PortalMap,
};
use crate::records::limited::{HostLimit, Levels};
use crate::records::names::DeviceId;
use crate::records::throttle::Throttle;
use crate::records::unit::Unit;

/// What initiators can reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct IscsiView {
    pub(crate) settings: Arc<IscsiSettings>,
    /// By tag.
    pub(crate) portal_groups: BTreeMap<u16, PortalGroup>,
    /// By tag.
    pub(crate) initiator_groups: BTreeMap<u32, InitiatorGroupConfig>,
    /// By tag.
    pub(crate) auth_groups: BTreeMap<u32, Arc<[ChapSecret]>>,
    /// By name; the same [`Arc`] as before where nothing has changed.
    pub(crate) nodes: BTreeMap<String, Arc<Node>>,
    /// The same [`Arc`] as before where nothing has changed.
    pub(crate) limits: Arc<IscsiLimits>,
}

/// The limits that initiators meet.
#[derive(Clone, Debug, Default)]
pub(crate) struct IscsiLimits {
    /// Of the logical units over a device.
    pub(crate) units: BTreeMap<DeviceId, Throttle>,
    /// Of hosts, for all that they do.
    pub(crate) hosts: Arc<[HostLimit]>,
}

impl IscsiLimits {
    /// The limits of an initiator's commands for a device; `None`: there are none.
    pub(crate) fn levels(&self, device: DeviceId, initiator: &str) -> Option<Levels> {
        let of_unit = self.units.get(&device).into_iter();
        let of_host = self.hosts.iter().filter(|limit| limit.limits_initiator(initiator));
        let all: Levels = of_unit.chain(of_host.map(|limit| &limit.throttle)).cloned().collect();
        (!all.is_empty()).then_some(all)
    }
}

/// A portal group.
#[derive(Clone, Debug)]
pub(crate) struct PortalGroup {
    /// With the real addresses of its portals.
    pub(crate) config: PortalGroupConfig,
    /// The port ids of its portals, once it listens.
    pub(crate) ports: Vec<u16>,
}

/// A target node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) alias: String,
    pub(crate) maps: Vec<PortalMap>,
    /// The relative target port identifiers of its portal groups, by tag. They are unique in the target, because target
    /// nodes may share a logical unit.
    pub(crate) ports: BTreeMap<u16, u16>,
    /// By number.
    pub(crate) luns: Vec<Option<Lun>>,
    pub(crate) queue_depth: u16,
    pub(crate) auth: ChapPolicy,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// Where logins by a portal group are sent instead.
    pub(crate) redirects: BTreeMap<u16, SocketAddr>,
    /// Has the latency histogram of its commands, if one was started.
    pub(crate) latencies: Option<Arc<DeviceStats>>,
}

/// A LUN: a logical unit under a number of a target node.
#[derive(Clone)]
pub(crate) struct Lun {
    pub(crate) device: DeviceId,
    pub(crate) unit: Arc<Unit>,
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lun").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Lun {
    /// Whether both are the same logical unit.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.device == other.device && Arc::ptr_eq(&self.unit, &other.unit)
    }
}

impl Node {
    /// The LUN of this number.
    #[inline]
    pub(crate) fn lun(&self, number: u16) -> Option<&Lun> {
        self.luns.get(usize::from(number))?.as_ref()
    }

    /// Its port of a portal group.
    pub(crate) fn port(&self, group: u16) -> Port {
        Port { group, relative: self.ports.get(&group).copied().unwrap_or(1) }
    }

    /// The numbers of its LUNs, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> {
        let numbered = (0..).zip(&self.luns);
        numbered.filter(|(_, lun)| lun.is_some()).map(|(number, _)| number)
    }
}

impl IscsiView {
    /// The portal group of a listener.
    pub(crate) fn group_of(&self, port_id: u16) -> Option<&PortalGroup> {
        self.portal_groups.values().find(|group| group.ports.contains(&port_id))
    }

    /// Whether an initiator reaches a node by a portal group.
    pub(crate) fn admits(
        &self,
        node: &Node,
        portal_group: u16,
        (initiator, address): (&str, IpAddr),
    ) -> bool {
        let maps = node.maps.iter().filter(|map| map.portal_group == portal_group);
        maps.filter_map(|map| self.initiator_groups.get(&map.initiator_group))
            .any(|group| group.includes(initiator, address))
    }

    /// What discovery tells an initiator: the nodes that it reaches, and the portals of each with their group's tag.
    pub(crate) fn reachable<'a>(
        &'a self,
        initiator: &'a str,
        address: IpAddr,
    ) -> impl Iterator<Item = (&'a Node, Vec<(SocketAddr, u16)>)> {
        self.nodes.values().filter_map(move |node| {
            let mut portals = Vec::new();
            let mut is_reached = false;
            for (tag, group) in &self.portal_groups {
                if !self.admits(node, *tag, (initiator, address)) {
                    continue;
                }
                is_reached = true;
                if !group.config.private && !group.ports.is_empty() {
                    portals.extend(group.config.portals.iter().map(|portal| (*portal, *tag)));
                }
            }
            is_reached.then_some((&**node, portals))
        })
    }

    /// The secrets that a policy means.
    pub(crate) fn secrets(&self, policy: ChapPolicy) -> Option<&Arc<[ChapSecret]>> {
        self.auth_groups.get(&policy.group)
    }
}
