//! Portal groups: made, opened, removed.

use std::net::SocketAddr;

use raceline_target::{ChapPolicy, PortalGroupConfig, PortalMap, Target};
use serde_json::{Value, json};

use super::{PortalGroup, entry, joined, key, live, policy_params};
use crate::manager::{Change, Manager, ManagerError};

impl Manager {
    /// Opens the portals that the start has made.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub(in crate::manager) fn open_portals(&self) -> Result<(), ManagerError> {
        let later: Vec<u16> = {
            let model = self.model();
            let later = model.iscsi.portal_groups.iter().filter(|(_, group)| group.opens_later);
            later.map(|(tag, _)| *tag).collect()
        };
        if later.is_empty() {
            return Ok(());
        }
        self.change(|change| later.into_iter().try_for_each(|tag| change.open_portal_group(tag)))
    }
}

impl Change<'_> {
    /// Makes a portal group, which listens at once unless it is to wait.
    ///
    /// # Errors
    /// When there is one of that tag, it has no portal, another group has one of its portals, or a portal cannot be
    /// opened.
    pub fn create_portal_group(&mut self, config: PortalGroupConfig) -> Result<(), ManagerError> {
        let tag = config.tag;
        self.check_portals(&config)?;
        // The order in which a start makes things says nothing about when initiators may come.
        let opens_later = !config.wait && self.may_wait();
        let opens_now = !config.wait && !opens_later;
        let group =
            PortalGroup { config: PortalGroupConfig { wait: !opens_later, ..config }, opens_later };
        let made = live::waiting(&group);
        self.on_iscsi_cores(|cores| cores.add_portal_group(made).map(drop))?;
        self.model_mut().iscsi.portal_groups.insert(tag, group);
        if opens_now && let Err(error) = self.open_portal_group(tag) {
            self.model_mut().iscsi.portal_groups.remove(&tag);
            self.on_iscsi_cores(|cores| cores.remove_portal_group(tag))?;
            return Err(error);
        }
        self.put_portal_group(tag)
    }

    fn check_portals(&self, config: &PortalGroupConfig) -> Result<(), ManagerError> {
        let model = self.model();
        let groups = &model.iscsi.portal_groups;
        if groups.contains_key(&config.tag) {
            return Err(ManagerError::exists("portal group", &config.tag.to_string()));
        }
        if config.portals.is_empty() {
            return Err(ManagerError::Invalid(
                "a portal group needs at least one portal".to_owned(),
            ));
        }
        let others = groups.values().flat_map(|group| &group.config.portals);
        let mut taken: Vec<SocketAddr> = others.copied().collect();
        for portal in &config.portals {
            if portal.port() != 0 && taken.contains(portal) {
                return Err(ManagerError::exists("portal", &portal.to_string()));
            }
            taken.push(*portal);
        }
        Ok(())
    }

    /// Opens the portals of a group that waits.
    ///
    /// # Errors
    /// When there is no such group, or a portal cannot be opened.
    pub fn start_portal_group(&mut self, tag: u16) -> Result<(), ManagerError> {
        if self.model().iscsi.portal_group(tag)?.listens() {
            return Ok(());
        }
        self.open_portal_group(tag)
    }

    fn open_portal_group(&mut self, tag: u16) -> Result<(), ManagerError> {
        let cores = self.start_cores_for_iscsi()?;
        let open = || cores.iscsi().start_portal_group(tag);
        // A portal that is restored waits for its address to become free; a client can ask again itself.
        let real = match self.may_wait() {
            true => Target::listen_after_restart(open),
            false => open(),
        }?;
        if let Some(group) = self.model_mut().iscsi.portal_groups.get_mut(&tag) {
            group.config = PortalGroupConfig { portals: real, wait: false, ..group.config.clone() };
            group.opens_later = false;
        }
        self.put_portal_group(tag)
    }

    fn put_portal_group(&mut self, tag: u16) -> Result<(), ManagerError> {
        let params = portal_group_params(self.model().iscsi.portal_group(tag)?);
        let (key, made) = (portal_key(tag, &[]), entry("iscsi_create_portal_group", params));
        // What a start opens is as it was, and is not written down again.
        if self.model().catalogue.get(&key) != Some(&made) {
            self.put(key, made);
        }
        Ok(())
    }

    /// Removes a portal group and the maps that name it. Connections that came by it close.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn delete_portal_group(&mut self, tag: u16) -> Result<(), ManagerError> {
        self.model().iscsi.portal_group(tag)?;
        self.forget_maps(|map| map.portal_group == tag)?;
        self.on_iscsi_cores(|cores| cores.remove_portal_group(tag))?;
        self.model_mut().iscsi.portal_groups.remove(&tag);
        self.remove(portal_key(tag, &[]));
        Ok(())
    }

    /// Removes the maps of all target nodes that are meant.
    pub(super) fn forget_maps(
        &mut self,
        is_meant: impl Fn(&PortalMap) -> bool,
    ) -> Result<(), ManagerError> {
        let found: Vec<(String, Vec<PortalMap>)> = {
            let model = self.model();
            let nodes = model.iscsi.nodes.iter();
            let of_node = nodes.map(|(name, node)| {
                let maps = node.maps.iter().filter(|map| is_meant(map)).copied().collect();
                (name.clone(), maps)
            });
            of_node.filter(|(_, maps): &(_, Vec<_>)| !maps.is_empty()).collect()
        };
        found.into_iter().try_for_each(|(name, maps)| self.remove_maps(&name, &maps))
    }

    /// Sets how discovery sessions by the portals of a group authenticate.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn set_portal_group_auth(
        &mut self,
        tag: u16,
        policy: ChapPolicy,
    ) -> Result<(), ManagerError> {
        self.model().iscsi.portal_group(tag)?;
        self.on_iscsi_cores(|cores| cores.set_portal_group_auth(tag, Some(policy)))?;
        if let Some(group) = self.model_mut().iscsi.portal_groups.get_mut(&tag) {
            group.config.auth = Some(policy);
        }
        let params = joined(json!({ "tag": tag }), policy_params(policy));
        self.put(portal_key(tag, &["auth"]), entry("iscsi_portal_group_set_auth", params));
        Ok(())
    }
}

fn portal_key(tag: u16, parts: &[&str]) -> crate::manager::catalogue::Key {
    let tag = tag.to_string();
    let mut all = vec!["portals", tag.as_str()];
    all.extend_from_slice(parts);
    key(&all)
}

/// A portal group as SPDK has it; one that waits for a client says so.
#[must_use]
pub(crate) fn portal_group_params(group: &PortalGroup) -> Value {
    let portal = |address: &SocketAddr| {
        let host = match address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        };
        json!({ "host": host, "port": address.port().to_string() })
    };
    let config = &group.config;
    let portals: Vec<Value> = config.portals.iter().map(portal).collect();
    let mut params = json!({ "tag": config.tag, "portals": portals, "private": config.private });
    if config.wait && !group.opens_later {
        params["wait"] = true.into();
    }
    params
}
