//! What iSCSI exports: the state behind the view, and its rules.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use raceline_bdev::SharedBdev;

use crate::changes::iscsi_config::{
    IscsiError, MAX_LUN, PortalGroupConfig, PortalMap, TargetNodeConfig,
};
use crate::changes::iscsi_view::{IscsiView, Lun, Node, PortalGroup};
use crate::changes::reservation_state::ReservationStore;
use crate::records::names::DeviceId;
use crate::records::throttle::Throttle;
use crate::records::unit::Unit;

/// What iSCSI exports.
#[derive(Default)]
pub(crate) struct IscsiState {
    /// As the next snapshot shows it.
    pub(crate) view: IscsiView,
    /// The logical units, by device.
    pub(crate) units: BTreeMap<DeviceId, Exported>,
    last_port_id: u16,
    /// The relative target port identifier that was given out last.
    last_port: u16,
}

/// A logical unit, which LUNs of several target nodes may share.
pub(crate) struct Exported {
    pub(crate) bdev: SharedBdev,
    pub(crate) unit: Arc<Unit>,
    /// Where its reservations are kept; `None`: they end with the target, unless a namespace keeps them.
    pub(crate) store: Option<Arc<dyn ReservationStore>>,
    /// How many LUNs it is.
    pub(crate) luns: usize,
}

impl IscsiState {
    pub(crate) fn portal_group(&mut self, tag: u16) -> Result<&mut PortalGroup, IscsiError> {
        let group = self.view.portal_groups.get_mut(&tag);
        group.ok_or_else(|| IscsiError::Missing(format!("portal group {tag}")))
    }

    /// The next port id that no portal has.
    pub(crate) fn next_port_id(&mut self) -> u16 {
        loop {
            self.last_port_id = self.last_port_id.wrapping_add(1);
            if self.view.group_of(self.last_port_id).is_none() {
                return self.last_port_id;
            }
        }
    }

    pub(crate) fn add_portal_group(&mut self, config: PortalGroupConfig) -> Result<(), IscsiError> {
        let tag = config.tag;
        if self.view.portal_groups.contains_key(&tag) {
            return Err(IscsiError::Exists(format!("portal group {tag}")));
        }
        if config.portals.is_empty() {
            return Err(IscsiError::Setting {
                what: "the portals of a group",
                need: "at least one",
            });
        }
        self.view.portal_groups.insert(tag, PortalGroup { config, ports: Vec::new() });
        Ok(())
    }

    /// Refuses if a node's map is one of those that are asked for.
    pub(crate) fn check_unused(
        &self,
        is_meant: impl Fn(&PortalMap) -> bool,
        what: impl Fn() -> String,
    ) -> Result<(), IscsiError> {
        match self.view.nodes.values().find(|node| node.maps.iter().any(&is_meant)) {
            Some(node) => Err(IscsiError::InUse { what: what(), node: node.name.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn add_node(&mut self, config: &TargetNodeConfig) -> Result<(), IscsiError> {
        // Names are compared in lower case (RFC 7143, 4.2.7.2).
        let name = config.name.to_ascii_lowercase();
        if self.view.nodes.contains_key(&name) {
            return Err(IscsiError::Exists(format!("target node {name}")));
        }
        let node = Node {
            name: name.clone(),
            alias: config.alias.clone(),
            maps: Vec::new(),
            ports: BTreeMap::new(),
            luns: Vec::new(),
            queue_depth: config.queue_depth,
            auth: config.auth,
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            redirects: BTreeMap::new(),
            latencies: None,
        };
        self.view.nodes.insert(name.clone(), Arc::new(node));
        self.add_maps(&name, &config.maps)
    }

    /// A node, to be changed: the cores keep the one that they have until the next snapshot.
    pub(crate) fn node_mut(&mut self, name: &str) -> Result<&mut Node, IscsiError> {
        let node = self.view.nodes.get_mut(&name.to_ascii_lowercase());
        node.map(Arc::make_mut).ok_or_else(|| IscsiError::Missing(format!("target node {name}")))
    }

    pub(crate) fn take_node(&mut self, name: &str) -> Result<Arc<Node>, IscsiError> {
        let node = self.view.nodes.remove(&name.to_ascii_lowercase());
        node.ok_or_else(|| IscsiError::Missing(format!("target node {name}")))
    }

    pub(crate) fn add_maps(&mut self, name: &str, maps: &[PortalMap]) -> Result<(), IscsiError> {
        for map in maps {
            self.portal_group(map.portal_group)?;
            let group = map.initiator_group;
            if !self.view.initiator_groups.contains_key(&group) {
                return Err(IscsiError::Missing(format!("initiator group {group}")));
            }
            let port = self.last_port.wrapping_add(1).max(1);
            let node = self.node_mut(name)?;
            if node.maps.contains(map) {
                let text = format!(
                    "the map of portal group {} and initiator group {group} of target node {name}",
                    map.portal_group
                );
                return Err(IscsiError::Exists(text));
            }
            node.maps.push(*map);
            if let Entry::Vacant(vacant) = node.ports.entry(map.portal_group) {
                vacant.insert(port);
                self.last_port = port;
            }
        }
        Ok(())
    }

    pub(crate) fn remove_maps(&mut self, name: &str, maps: &[PortalMap]) -> Result<(), IscsiError> {
        let node = self.node_mut(name)?;
        for map in maps {
            let place = node.maps.iter().position(|other| other == map);
            let place = place.ok_or_else(|| {
                let PortalMap { portal_group, initiator_group } = map;
                IscsiError::Missing(format!(
                    "map of portal group {portal_group} and initiator group {initiator_group} of target node {name}"
                ))
            })?;
            node.maps.remove(place);
        }
        Ok(())
    }

    /// The number of a LUN that is to be added.
    pub(crate) fn free_lun(&mut self, name: &str, wanted: Option<u16>) -> Result<u16, IscsiError> {
        let node = self.node_mut(name)?;
        match wanted {
            Some(number) if number > MAX_LUN => {
                Err(IscsiError::Setting { what: "the number of a LUN", need: "at most 255" })
            }
            Some(number) if node.lun(number).is_some() => {
                Err(IscsiError::Exists(format!("LUN {number} of target node {name}")))
            }
            Some(number) => Ok(number),
            None => (0..=MAX_LUN)
                .find(|number| node.lun(*number).is_none())
                .ok_or_else(|| IscsiError::Full(name.into())),
        }
    }

    /// Refuses a device that is a LUN of the node already: an initiator would have two ways to one disk without a sign
    /// of it.
    pub(crate) fn check_device(&mut self, name: &str, bdev: &SharedBdev) -> Result<(), IscsiError> {
        let Some(device) = self.device_of(bdev) else { return Ok(()) };
        let node = self.node_mut(name)?;
        if node.luns.iter().flatten().any(|lun| lun.device == device) {
            let device = bdev.info().name;
            return Err(IscsiError::Exists(format!("a LUN over {device} of target node {name}")));
        }
        Ok(())
    }

    pub(crate) fn insert_lun(
        &mut self,
        name: &str,
        number: u16,
        lun: Lun,
    ) -> Result<(), IscsiError> {
        let node = self.node_mut(name)?;
        let index = usize::from(number);
        if node.luns.len() <= index {
            node.luns.resize(index + 1, None);
        }
        node.luns[index] = Some(lun);
        Ok(())
    }

    pub(crate) fn take_lun(&mut self, name: &str, number: u16) -> Result<Lun, IscsiError> {
        let node = self.node_mut(name)?;
        let lun = node.luns.get_mut(usize::from(number)).and_then(Option::take);
        lun.ok_or_else(|| IscsiError::Missing(format!("LUN {number} of target node {name}")))
    }

    /// The device of a LUN.
    pub(crate) fn device_of_lun(
        &mut self,
        name: &str,
        number: u16,
    ) -> Result<DeviceId, IscsiError> {
        let lun = self.node_mut(name)?.lun(number).map(|lun| lun.device);
        lun.ok_or_else(|| IscsiError::Missing(format!("LUN {number} of target node {name}")))
    }

    /// One LUN less is this unit. Gives whether it was the last, so that the unit is gone.
    pub(crate) fn release_unit(&mut self, device: DeviceId) -> bool {
        let Some(exported) = self.units.get_mut(&device) else { return false };
        exported.luns -= 1;
        if exported.luns > 0 {
            return false;
        }
        self.units.remove(&device);
        self.limit_unit(device, None);
        true
    }

    /// Sets the limits of the unit over a device.
    pub(crate) fn limit_unit(&mut self, device: DeviceId, throttle: Option<Throttle>) {
        if throttle.is_none() && !self.view.limits.units.contains_key(&device) {
            return;
        }
        let units = &mut Arc::make_mut(&mut self.view.limits).units;
        match throttle {
            Some(throttle) => units.insert(device, throttle),
            None => units.remove(&device),
        };
    }

    /// The device of the unit over a block device.
    pub(crate) fn device_of(&self, bdev: &SharedBdev) -> Option<DeviceId> {
        let mut units = self.units.iter();
        units.find(|(_, exported)| Arc::ptr_eq(&exported.bdev, bdev)).map(|(device, _)| *device)
    }

    /// Has the units look how large their devices are.
    pub(crate) fn refresh_sizes(&self) {
        for exported in self.units.values() {
            exported.unit.set_device(&exported.bdev.info());
        }
    }

    /// The block device of a LUN.
    pub(crate) fn bdev_of(&self, lun: &Lun) -> Option<&SharedBdev> {
        self.units.get(&lun.device).map(|exported| &exported.bdev)
    }
}
