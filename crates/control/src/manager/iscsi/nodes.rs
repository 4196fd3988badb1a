//! Target nodes: made, changed, removed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use raceline_target::{ChapPolicy, PortalMap, TargetNodeConfig};
use serde_json::{Value, json};

use super::{MAX_LUNS_OF_CALL, Node, NodeLun, check_name, entry, joined, key, live, policy_params};
use crate::manager::{Change, ManagerError};

/// A target node to make.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// Its name, with or without a type.
    pub name: String,
    /// TargetAlias.
    pub alias: String,
    /// Which initiator groups reach it by which portal groups.
    pub maps: Vec<PortalMap>,
    /// Its LUNs: number and device.
    pub luns: Vec<(u16, String)>,
    /// Commands that a session may have outstanding; what is out of range is the most that the options allow.
    pub queue_depth: i32,
    /// How initiators authenticate.
    pub auth: ChapPolicy,
    /// Every connection has header digests.
    pub header_digest: bool,
    /// Every connection has data digests.
    pub data_digest: bool,
}

impl Change<'_> {
    /// Makes a target node with its LUNs.
    ///
    /// # Errors
    /// When the name is taken or none, a map names a group that is not there, or a device is missing or has a user that
    /// does not share it; then nothing has changed.
    pub fn create_target_node(&mut self, new: NewNode) -> Result<(), ManagerError> {
        let (name, mut node) = self.check_new_node(&new)?;
        for (number, device) in new.luns {
            let lun = match self.take_lun_device(&device, (&name, number)) {
                Ok(lun) => lun,
                Err(error) => {
                    self.leave_devices(&name, &node);
                    return Err(error);
                }
            };
            node.luns.insert(number, lun);
        }
        self.set_damaged_aside(&name, &mut node);
        let cores = self.model().iscsi_cores();
        let manager = self.manager().config();
        let luns = live::lun_configs(manager, &self.model(), &node, cores.as_deref());
        let made = luns.and_then(|luns| {
            let config = TargetNodeConfig { luns, ..live::node_config(&name, &node) };
            self.on_iscsi_cores(|cores| cores.add_target_node(config))
        });
        if let Err(error) = made {
            self.leave_devices(&name, &node);
            return Err(error);
        }
        self.model_mut().iscsi.nodes.insert(name.clone(), node);
        self.put_node(&name)
    }

    /// During the start, the other LUNs of a node are not to wait for those whose reservations are lost.
    fn set_damaged_aside(&mut self, name: &str, node: &mut Node) {
        if !self.may_wait() {
            return;
        }
        for (number, lun) in node.luns.iter_mut().filter(|(_, lun)| lun.missing.is_none()) {
            let about = (*number, lun.bdev_name.as_str());
            let found = live::lun_config(self.manager().config(), &self.model(), about, None);
            if let Err(ManagerError::Reservations(error)) = found {
                tracing::error!("LUN {number} of {name} is missing: {error}");
                self.leave_bdev(&lun.bdev_name, &(name.to_owned(), *number));
                lun.missing = Some(error.to_string());
            }
        }
    }

    fn check_new_node(&self, new: &NewNode) -> Result<(String, Node), ManagerError> {
        let model = self.model();
        let iscsi = &model.iscsi;
        let name = iscsi.full_name(&new.name);
        check_name(&name)?;
        if iscsi.nodes.contains_key(&name) {
            return Err(ManagerError::exists("target node", &name));
        }
        for (place, map) in new.maps.iter().enumerate() {
            iscsi.portal_group(map.portal_group)?;
            iscsi.initiator_group(map.initiator_group)?;
            if new.maps[..place].contains(map) {
                return Err(map_exists(map));
            }
        }
        if new.luns.is_empty() || new.luns.len() > MAX_LUNS_OF_CALL {
            let text = format!("a target node is made with 1 to {MAX_LUNS_OF_CALL} LUNs");
            return Err(ManagerError::Invalid(text));
        }
        for (place, (number, device)) in new.luns.iter().enumerate() {
            let before = &new.luns[..place];
            if before.iter().any(|(other, name)| other == number || name == device) {
                let text =
                    format!("LUN {number} or its device `{}` stands twice", device.escape_debug());
                return Err(ManagerError::Invalid(text));
            }
        }
        let node = Node {
            alias: new.alias.clone(),
            maps: new.maps.clone(),
            luns: BTreeMap::new(),
            queue_depth: iscsi.queue_depth(new.queue_depth),
            auth: new.auth,
            header_digest: new.header_digest,
            data_digest: new.data_digest,
            redirects: BTreeMap::new(),
            histogram: false,
        };
        Ok((name, node))
    }

    fn leave_devices(&mut self, name: &str, node: &Node) {
        for (number, NodeLun { bdev_name, .. }) in &node.luns {
            self.leave_bdev(bdev_name, &(name.to_owned(), *number));
        }
    }

    /// Removes a target node; its sessions close, and commands in flight finish first.
    ///
    /// # Errors
    /// When there is no such node, or a device does not become quiet.
    pub fn delete_target_node(&mut self, name: &str) -> Result<(), ManagerError> {
        let (name, node) = self.node(name)?;
        self.on_iscsi_cores(|cores| cores.remove_target_node(&name))?;
        self.leave_devices(&name, &node);
        self.model_mut().iscsi.nodes.remove(&name);
        self.remove(key(&["node", &name]));
        Ok(())
    }

    /// The full name of a target node, and the node.
    pub(super) fn node(&self, name: &str) -> Result<(String, Node), ManagerError> {
        let model = self.model();
        let (name, node) = model.iscsi.node(name)?;
        Ok((name, node.clone()))
    }

    /// Lets initiator groups reach a target node by portal groups.
    ///
    /// # Errors
    /// When there is no such node or group, or the node has the map already.
    pub fn add_maps(&mut self, name: &str, maps: &[PortalMap]) -> Result<(), ManagerError> {
        let (name, mut node) = self.node(name)?;
        for map in maps {
            self.model().iscsi.portal_group(map.portal_group)?;
            self.model().iscsi.initiator_group(map.initiator_group)?;
            if node.maps.contains(map) {
                return Err(map_exists(map));
            }
            node.maps.push(*map);
        }
        self.on_iscsi_cores(|cores| cores.add_maps(&name, maps))?;
        self.with_node(&name, |there| there.maps = node.maps);
        self.put_node(&name)
    }

    /// Removes maps of a target node. Sessions of initiators that reach it no longer close.
    ///
    /// # Errors
    /// When there is no such node or map.
    pub fn remove_maps(&mut self, name: &str, maps: &[PortalMap]) -> Result<(), ManagerError> {
        let (name, mut node) = self.node(name)?;
        for map in maps {
            let missing = || ManagerError::missing("map", &map_text(map));
            let place = node.maps.iter().position(|other| other == map);
            node.maps.remove(place.ok_or_else(missing)?);
        }
        self.on_iscsi_cores(|cores| cores.remove_maps(&name, maps))?;
        self.with_node(&name, |there| there.maps = node.maps);
        self.put_node(&name)
    }

    /// Sets how initiators authenticate to a target node, from the next login on.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn set_node_auth(&mut self, name: &str, policy: ChapPolicy) -> Result<(), ManagerError> {
        let (name, _) = self.node(name)?;
        self.on_iscsi_cores(|cores| cores.set_auth(&name, policy))?;
        self.with_node(&name, |node| node.auth = policy);
        self.put_node(&name)
    }

    /// Sends logins to a target node by a portal group to another address; `None`: no longer.
    ///
    /// # Errors
    /// When there is no such node or group.
    pub fn set_redirect(
        &mut self,
        name: &str,
        portal_group: u16,
        address: Option<SocketAddr>,
    ) -> Result<(), ManagerError> {
        let (name, _) = self.node(name)?;
        self.model().iscsi.portal_group(portal_group)?;
        self.on_iscsi_cores(|cores| cores.set_redirect(&name, portal_group, address))?;
        let key = key(&["node", &name, "redirect", &portal_group.to_string()]);
        match address {
            Some(address) => {
                self.with_node(&name, |node| {
                    node.redirects.insert(portal_group, address);
                });
                let params = json!({
                    "name": name,
                    "pg_tag": portal_group,
                    "redirect_host": address.ip().to_string(),
                    "redirect_port": address.port().to_string(),
                });
                self.put(key, entry("iscsi_target_node_set_redirect", params));
            }
            None => {
                self.with_node(&name, |node| {
                    node.redirects.remove(&portal_group);
                });
                self.remove(key);
            }
        }
        Ok(())
    }

    /// Starts or ends the latency histogram of a target node.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn set_histogram(&mut self, name: &str, enable: bool) -> Result<(), ManagerError> {
        let (name, _) = self.node(name)?;
        self.on_iscsi_cores(|cores| cores.set_histogram(&name, enable))?;
        self.with_node(&name, |node| node.histogram = enable);
        let key = key(&["node", &name, "histogram"]);
        if enable {
            let params = json!({ "name": name, "enable": true });
            self.put(key, entry("iscsi_enable_histogram", params));
        } else {
            self.remove(key);
        }
        Ok(())
    }

    pub(super) fn put_node(&mut self, name: &str) -> Result<(), ManagerError> {
        let (name, node) = self.node(name)?;
        let made = entry("iscsi_create_target_node", node_params(&name, &node));
        self.put(key(&["node", &name]), made);
        Ok(())
    }
}

fn map_text(map: &PortalMap) -> String {
    format!("portal group {}, initiator group {}", map.portal_group, map.initiator_group)
}

fn map_exists(map: &PortalMap) -> ManagerError {
    ManagerError::exists("map", &map_text(map))
}

/// A target node as SPDK has it.
#[must_use]
pub(crate) fn node_params(name: &str, node: &Node) -> Value {
    let map =
        |map: &PortalMap| json!({ "ig_tag": map.initiator_group, "pg_tag": map.portal_group });
    let lun =
        |(number, lun): (&u16, &NodeLun)| json!({ "bdev_name": lun.bdev_name, "lun_id": number });
    let params = json!({
        "name": name,
        "alias_name": node.alias,
        "pg_ig_maps": node.maps.iter().map(map).collect::<Vec<_>>(),
        "luns": node.luns.iter().map(lun).collect::<Vec<_>>(),
        "queue_depth": node.queue_depth,
    });
    let digests = json!({ "header_digest": node.header_digest, "data_digest": node.data_digest });
    joined(joined(params, policy_params(node.auth)), digests)
}
