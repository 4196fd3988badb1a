//! What iSCSI exports and who is connected, for callers that list it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use raceline_bdev::SharedBdev;

use super::Iscsi;
use crate::changes::iscsi_config::{ChapPolicy, PortalMap};
use crate::records::counters::IscsiTotals;

/// A target node, as it is configured now.
#[derive(Clone)]
pub struct TargetNodeInfo {
    /// Its name, in lower case.
    pub name: String,
    /// TargetAlias; empty: it has none.
    pub alias: String,
    /// Which initiator groups reach it by which portal groups.
    pub maps: Vec<PortalMap>,
    /// Its LUNs, by ascending number.
    pub luns: Vec<LunInfo>,
    /// Commands that a session may have outstanding.
    pub queue_depth: u16,
    /// How initiators authenticate.
    pub auth: ChapPolicy,
    /// Every connection has header digests.
    pub header_digest: bool,
    /// Every connection has data digests.
    pub data_digest: bool,
    /// Where logins by a portal group are sent instead.
    pub redirects: BTreeMap<u16, SocketAddr>,
}

/// A LUN of a target node.
#[derive(Clone)]
pub struct LunInfo {
    /// Its number.
    pub lun: u16,
    /// The device behind it.
    pub bdev: SharedBdev,
}

/// A connection of an initiator in full feature phase. A session has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiConnectionInfo {
    /// InitiatorName, in lower case.
    pub initiator: String,
    /// ISID.
    pub isid: [u8; 6],
    /// The target node.
    pub target: String,
    /// Tag of the portal group that it came by.
    pub portal_group: u16,
    /// The session's handle (TSIH).
    pub tsih: u16,
    /// Connection identifier (CID).
    pub cid: u16,
    /// The initiator's end.
    pub peer: SocketAddr,
    /// The target's end.
    pub local: SocketAddr,
    /// The core that it lives on, by index.
    pub core: usize,
}

/// What the initiators of a target node have done, over all present and past sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiNodeStats {
    /// The target node.
    pub name: String,
    /// Its sessions now.
    pub sessions: usize,
    /// Its sessions, those that are gone included.
    pub sessions_ever: u64,
    /// What these have done.
    pub totals: IscsiTotals,
}

impl Iscsi<'_> {
    /// What the initiators of each target node have done, by name. The target remembers 4096 nodes that have had
    /// sessions.
    #[must_use]
    pub fn stats(&self) -> Vec<IscsiNodeStats> {
        let names: Vec<String> = self
            .target
            .control
            .lock()
            .iscsi
            .view
            .nodes
            .values()
            .map(|node| node.name.clone())
            .collect();
        let mut all = self.target.control.shared.sessions().by_node();
        for name in names {
            all.entry(name).or_default();
        }
        let stats = all.into_iter().map(|(name, node)| IscsiNodeStats {
            name,
            sessions: node.sessions,
            sessions_ever: node.sessions_ever,
            totals: node.totals,
        });
        stats.collect()
    }

    /// The target nodes, by name.
    #[must_use]
    pub fn target_nodes(&self) -> Vec<TargetNodeInfo> {
        let state = self.target.control.lock();
        let nodes = state.iscsi.view.nodes.values();
        let describe = |node: &std::sync::Arc<crate::changes::iscsi_view::Node>| TargetNodeInfo {
            name: node.name.clone(),
            alias: node.alias.clone(),
            maps: node.maps.clone(),
            luns: node
                .numbers()
                .filter_map(|lun| {
                    let bdev = state.iscsi.bdev_of(node.lun(lun)?)?.clone();
                    Some(LunInfo { lun, bdev })
                })
                .collect(),
            queue_depth: node.queue_depth,
            auth: node.auth,
            header_digest: node.header_digest,
            data_digest: node.data_digest,
            redirects: node.redirects.clone(),
        };
        nodes.map(describe).collect()
    }

    /// The connections of initiators, by target, initiator and ISID.
    #[must_use]
    pub fn connections(&self) -> Vec<IscsiConnectionInfo> {
        let sessions = self.target.control.shared.sessions();
        let mut connections: Vec<IscsiConnectionInfo> = sessions
            .list()
            .map(|(nexus, record)| IscsiConnectionInfo {
                initiator: nexus.initiator.clone(),
                isid: nexus.isid,
                target: nexus.target.clone(),
                portal_group: nexus.portal_group,
                tsih: record.tsih,
                cid: record.cid,
                peer: record.peer,
                local: record.local,
                core: record.place.core,
            })
            .collect();
        connections.sort_by(|a, b| {
            (&a.target, &a.initiator, a.isid, a.tsih).cmp(&(
                &b.target,
                &b.initiator,
                b.isid,
                b.tsih,
            ))
        });
        connections
    }
}
