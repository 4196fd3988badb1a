//! The exports by iSCSI: portal groups, initiator groups, auth groups, target nodes and their LUNs.
//!
//! The model is complete without cores, as that of NVMe over Fabrics. The cores of the default target serve both: they
//! start with its transport or with the first portal group that listens. During a start, portals open when everything
//! else has been made: an initiator that does not find its target node gives up for good.

mod groups;
mod live;
mod luns;
mod nodes;
mod options;
mod portals;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use raceline_target::{
    ChapPolicy, ChapSecret, InitiatorGroupConfig, IscsiError, PortalGroupConfig, PortalMap, Target,
    TargetError, check_iscsi_name,
};
use serde_json::{Value, json};

use super::catalogue::{Entry, Key, Section};
use super::nvmf::DEFAULT_TARGET;
use super::{Change, ManagerError, Model};

pub(crate) use groups::{auth_group_params, initiator_group_params};
pub(crate) use live::populate;
pub use nodes::NewNode;
pub(crate) use nodes::node_params;
pub use options::IscsiOptions;
pub(crate) use portals::portal_group_params;

/// Most LUNs of one call, as in SPDK.
pub const MAX_LUNS_OF_CALL: usize = 64;

/// Everything that is exported by iSCSI.
#[derive(Default)]
pub struct Iscsi {
    /// The common options.
    pub options: IscsiOptions,
    /// Portal groups by tag.
    pub portal_groups: BTreeMap<u16, PortalGroup>,
    /// Initiator groups by tag.
    pub initiator_groups: BTreeMap<u32, InitiatorGroupConfig>,
    /// The secrets of auth groups by tag.
    pub auth_groups: BTreeMap<u32, Vec<ChapSecret>>,
    /// Target nodes by name, in lower case.
    pub nodes: BTreeMap<String, Node>,
}

/// A portal group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalGroup {
    /// What it is; `wait` says that it listens only when a client says so.
    pub config: PortalGroupConfig,
    /// It listens when the start has made everything.
    pub opens_later: bool,
}

impl PortalGroup {
    /// Whether its portals are open, as far as it goes by the model.
    fn listens(&self) -> bool {
        !self.config.wait && !self.opens_later
    }
}

/// A target node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// TargetAlias.
    pub alias: String,
    /// Which initiator groups reach it by which portal groups.
    pub maps: Vec<PortalMap>,
    /// Its LUNs by number.
    pub luns: BTreeMap<u16, NodeLun>,
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
    /// It has a latency histogram.
    pub histogram: bool,
}

/// A LUN of a target node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLun {
    /// The device behind it.
    pub bdev_name: String,
    /// Why initiators do not have it: its device is missing. `None` if they have it.
    pub missing: Option<String>,
}

impl Iscsi {
    /// The full name of a target node, in lower case: a name without one of the types of RFC 7143, 4.2.7 belongs to the
    /// base of the options.
    #[must_use]
    pub fn full_name(&self, name: &str) -> String {
        let lower = name.to_ascii_lowercase();
        match ["iqn.", "eui.", "naa."].iter().any(|kind| lower.starts_with(kind)) {
            true => lower,
            false => format!("{}:{lower}", self.options.node_base.to_ascii_lowercase()),
        }
    }

    /// The target node of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> Result<(String, &Node), ManagerError> {
        let full = self.full_name(name);
        match self.nodes.get(&full) {
            Some(node) => Ok((full, node)),
            None => Err(ManagerError::missing("target node", &full)),
        }
    }

    /// The portal group of that tag.
    ///
    /// # Errors
    /// When there is none.
    pub fn portal_group(&self, tag: u16) -> Result<&PortalGroup, ManagerError> {
        let missing = || ManagerError::missing("portal group", &tag.to_string());
        self.portal_groups.get(&tag).ok_or_else(missing)
    }

    fn initiator_group(&self, tag: u32) -> Result<&InitiatorGroupConfig, ManagerError> {
        let missing = || ManagerError::missing("initiator group", &tag.to_string());
        self.initiator_groups.get(&tag).ok_or_else(missing)
    }
}

impl Model {
    /// The cores that serve iSCSI, if they run.
    #[must_use]
    pub fn iscsi_cores(&self) -> Option<Arc<Target>> {
        self.nvmf.targets.get(DEFAULT_TARGET).and_then(super::nvmf::NvmfTarget::cores)
    }
}

impl Change<'_> {
    /// Has the cores change what they export by iSCSI, if they run.
    fn on_iscsi_cores(
        &self,
        change: impl FnOnce(raceline_target::Iscsi<'_>) -> Result<(), TargetError>,
    ) -> Result<(), ManagerError> {
        let cores = self.model().iscsi_cores();
        match cores {
            Some(cores) => Ok(change(cores.iscsi())?),
            None => Ok(()),
        }
    }

    fn with_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.model_mut().iscsi.nodes.get_mut(name) {
            change(node);
        }
    }
}

/// The key of a part of what is exported by iSCSI.
fn key(parts: &[&str]) -> Key {
    let mut all = vec!["iscsi"];
    all.extend_from_slice(parts);
    Key::new(&all)
}

fn entry(method: &str, params: Value) -> Entry {
    Entry { section: Section::Iscsi, method: method.to_owned(), params }
}

/// A policy as SPDK's flags.
#[must_use]
pub(crate) fn policy_params(policy: ChapPolicy) -> Value {
    use raceline_target::ChapDemand::{Disabled, Mutual, Optional, Required};
    let (disable, require, mutual) = match policy.demand {
        Optional => (false, false, false),
        Disabled => (true, false, false),
        Required => (false, true, false),
        Mutual => (false, true, true),
    };
    json!({
        "disable_chap": disable,
        "require_chap": require,
        "mutual_chap": mutual,
        "chap_group": policy.group,
    })
}

/// An object with the members of both.
fn joined(mut first: Value, second: Value) -> Value {
    if let (Some(members), Value::Object(more)) = (first.as_object_mut(), second) {
        members.extend(more);
    }
    first
}

fn check_name(name: &str) -> Result<(), ManagerError> {
    check_iscsi_name(name).map_err(refused)
}

/// What a target would refuse, before there is one.
fn refused(error: IscsiError) -> ManagerError {
    TargetError::from(error).into()
}
