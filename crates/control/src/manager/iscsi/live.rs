//! Gives the cores the whole model when they start.

use std::sync::Arc;

use raceline_target::{LunConfig, Target, TargetNodeConfig};

use super::{Node, PortalGroup};
use crate::manager::{ManagerConfig, ManagerError, Model, reservations};

/// A target node without LUNs, as the cores have it.
pub(super) fn node_config(name: &str, node: &Node) -> TargetNodeConfig {
    TargetNodeConfig {
        alias: node.alias.clone(),
        maps: node.maps.clone(),
        queue_depth: node.queue_depth,
        auth: node.auth,
        header_digest: node.header_digest,
        data_digest: node.data_digest,
        ..TargetNodeConfig::new(name)
    }
}

/// The LUNs of a node that are there.
pub(super) fn lun_configs(
    manager: &ManagerConfig,
    model: &Model,
    node: &Node,
    cores: Option<&Target>,
) -> Result<Vec<LunConfig>, ManagerError> {
    let there = node.luns.iter().filter(|(_, lun)| lun.missing.is_none());
    there
        .map(|(number, lun)| lun_config(manager, model, (*number, &lun.bdev_name), cores))
        .collect()
}

/// A LUN over a device, for these cores.
pub(super) fn lun_config(
    manager: &ManagerConfig,
    model: &Model,
    (number, device): (u16, &str),
    cores: Option<&Target>,
) -> Result<LunConfig, ManagerError> {
    let bdev = model.bdev(device)?;
    let reservations = reservations::place_of_unit(manager, bdev.uuid)?;
    let throttle = match cores {
        Some(cores) => model.bdevs.throttle(cores, &bdev.name)?,
        None => None,
    };
    let device = Arc::clone(&bdev.device);
    Ok(LunConfig { lun: Some(number), reservations, throttle, ..LunConfig::new(device) })
}

/// Gives new cores everything that iSCSI exports; portals open last.
pub(crate) fn populate(
    manager: &ManagerConfig,
    cores: &Target,
    model: &Model,
) -> Result<(), ManagerError> {
    let (iscsi, live) = (&model.iscsi, cores.iscsi());
    live.set_settings(iscsi.options.settings())?;
    for (tag, secrets) in &iscsi.auth_groups {
        live.set_auth_group(*tag, secrets.clone())?;
    }
    for group in iscsi.initiator_groups.values() {
        live.set_initiator_group(group.clone())?;
    }
    for group in iscsi.portal_groups.values() {
        live.add_portal_group(waiting(group))?;
    }
    for (name, node) in &iscsi.nodes {
        let luns = lun_configs(manager, model, node, Some(cores))?;
        live.add_target_node(TargetNodeConfig { luns, ..node_config(name, node) })?;
        for (tag, address) in &node.redirects {
            live.set_redirect(name, *tag, Some(*address))?;
        }
        if node.histogram {
            live.set_histogram(name, true)?;
        }
    }
    for (tag, _) in iscsi.portal_groups.iter().filter(|(_, group)| group.listens()) {
        Target::listen_after_restart(|| live.start_portal_group(*tag))?;
    }
    Ok(())
}

/// A portal group that does not listen yet.
pub(super) fn waiting(group: &PortalGroup) -> raceline_target::PortalGroupConfig {
    raceline_target::PortalGroupConfig { wait: true, ..group.config.clone() }
}
