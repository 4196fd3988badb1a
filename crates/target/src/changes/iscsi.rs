//! What a target exports by iSCSI, and how that changes while initiators are connected.

mod info;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use raceline_bdev::{BdevInfo, DeviceStats, Histogram, HistogramShape, SharedBdev};
use raceline_proto::reservation::Reservations;

use crate::changes::config::TargetError;
use crate::changes::control::{Control, State};
use crate::changes::iscsi_config::{
    ChapPolicy, ChapSecret, InitiatorGroupConfig, IscsiError, IscsiSettings, LunConfig,
    MAX_ISCSI_QUEUE_DEPTH, PortalGroupConfig, PortalMap, TargetNodeConfig, check_name,
};
use crate::changes::iscsi_message::IscsiMessage;
use crate::changes::iscsi_state::{Exported, IscsiState};
use crate::changes::iscsi_view::Lun;
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::changes::target::Target;
use crate::records::names::Protocol;
use crate::records::throttle::Throttle;
use crate::records::unit::Unit;

pub use self::info::{IscsiConnectionInfo, IscsiNodeStats, LunInfo, TargetNodeInfo};

/// The iSCSI side of a [`Target`]: portal groups, initiator groups, secrets, target nodes and their LUNs.
///
/// All calls block until every core works with the change, as those of [`Target`] do. Connected initiators are told
/// what concerns them by unit attentions: LUNs that come or go, and capacities that change.
#[derive(Clone, Copy)]
pub struct Iscsi<'a> {
    target: &'a Target,
}

impl Target {
    /// The iSCSI side: changes what initiators can reach, and lists them.
    #[must_use]
    pub fn iscsi(&self) -> Iscsi<'_> {
        Iscsi { target: self }
    }
}

impl Iscsi<'_> {
    // ------------------------------------------------------------------- settings, secrets

    /// Changes the common settings. Logins that come after it use them.
    ///
    /// # Errors
    /// When a setting is outside its range.
    pub fn set_settings(&self, settings: IscsiSettings) -> Result<(), TargetError> {
        settings.check()?;
        self.change(|state| {
            state.view.settings = Arc::new(settings);
            Ok(())
        })
    }

    /// The common settings.
    #[must_use]
    pub fn settings(&self) -> IscsiSettings {
        self.target.control.lock().iscsi.view.settings.as_ref().clone()
    }

    /// Sets the secrets of an auth group, which need not exist before.
    ///
    /// # Errors
    /// When the tag is 0, or a core does not answer.
    pub fn set_auth_group(&self, tag: u32, secrets: Vec<ChapSecret>) -> Result<(), TargetError> {
        if tag == 0 {
            return Err(IscsiError::Setting {
                what: "the tag of an auth group",
                need: "at least 1",
            }
            .into());
        }
        self.change(|state| {
            state.view.auth_groups.insert(tag, secrets.into());
            Ok(())
        })
    }

    /// Removes an auth group. Who has to prove who it is with its secrets cannot log in any more.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn remove_auth_group(&self, tag: u32) -> Result<(), TargetError> {
        self.change(|state| {
            let removed = state.view.auth_groups.remove(&tag);
            removed.map(drop).ok_or_else(|| IscsiError::Missing(format!("auth group {tag}")))
        })
    }

    /// The auth groups, by tag.
    #[must_use]
    pub fn auth_groups(&self) -> BTreeMap<u32, Arc<[ChapSecret]>> {
        self.target.control.lock().iscsi.view.auth_groups.clone()
    }

    // ------------------------------------------------------------------- initiator groups

    /// Adds an initiator group, or changes the one that has its tag. Sessions of initiators that the change shuts out are
    /// closed.
    ///
    /// # Errors
    /// When a name is no iSCSI name.
    pub fn set_initiator_group(&self, group: InitiatorGroupConfig) -> Result<(), TargetError> {
        group.check()?;
        self.change(|state| {
            state.view.initiator_groups.insert(group.tag, group);
            Ok(())
        })
    }

    /// Removes an initiator group.
    ///
    /// # Errors
    /// When there is no such group, or a target node's map names it.
    pub fn remove_initiator_group(&self, tag: u32) -> Result<(), TargetError> {
        self.change(|state| {
            state.check_unused(
                |map| map.initiator_group == tag,
                || format!("initiator group {tag}"),
            )?;
            let removed = state.view.initiator_groups.remove(&tag);
            removed.map(drop).ok_or_else(|| IscsiError::Missing(format!("initiator group {tag}")))
        })
    }

    /// The initiator groups, by tag.
    #[must_use]
    pub fn initiator_groups(&self) -> Vec<InitiatorGroupConfig> {
        self.target.control.lock().iscsi.view.initiator_groups.values().cloned().collect()
    }

    // --------------------------------------------------------------------- portal groups

    /// Adds a portal group, and listens at its portals unless it is to wait. Gives the real addresses: port 0 takes any
    /// free one.
    ///
    /// # Errors
    /// When the tag is taken, or a portal cannot be listened on; then the group does not exist.
    pub fn add_portal_group(
        &self,
        config: PortalGroupConfig,
    ) -> Result<Vec<SocketAddr>, TargetError> {
        let (tag, wait) = (config.tag, config.wait);
        self.change(|state| state.add_portal_group(config))?;
        if wait {
            return Ok(self.portals(tag));
        }
        match self.start_portal_group(tag) {
            Ok(portals) => Ok(portals),
            Err(error) => {
                self.change(|state| {
                    state.view.portal_groups.remove(&tag);
                    Ok(())
                })?;
                Err(error)
            }
        }
    }

    /// Listens at the portals of a group that was added to wait. Gives the real addresses.
    ///
    /// # Errors
    /// When there is no such group, or a portal cannot be listened on.
    pub fn start_portal_group(&self, tag: u16) -> Result<Vec<SocketAddr>, TargetError> {
        let mut state = self.target.control.lock();
        let group = state.iscsi.portal_group(tag)?;
        if !group.ports.is_empty() {
            return Ok(group.config.portals.clone());
        }
        let wanted = group.config.portals.clone();
        let mut real = Vec::new();
        // The cores know which ports belong to the group before one of them accepts a connection.
        let ports: Vec<u16> = wanted.iter().map(|_| state.iscsi.next_port_id()).collect();
        state.iscsi.portal_group(tag)?.ports.clone_from(&ports);
        self.target.control.publish(&mut state)?;
        for (address, port_id) in wanted.iter().zip(&ports) {
            match self.target.control.open_portal(*address, *port_id) {
                Ok(address) => real.push(address),
                Err(error) => {
                    for port_id in &ports[..real.len()] {
                        self.target.control.close_listener((Protocol::Iscsi, *port_id))?;
                    }
                    state.iscsi.portal_group(tag)?.ports.clear();
                    self.target.control.publish(&mut state)?;
                    return Err(error);
                }
            }
        }
        state.iscsi.portal_group(tag)?.config.portals.clone_from(&real);
        self.target.control.publish(&mut state)?;
        Ok(real)
    }

    /// Removes a portal group. Connections that came by it close.
    ///
    /// # Errors
    /// When there is no such group, or a target node's map names it.
    pub fn remove_portal_group(&self, tag: u16) -> Result<(), TargetError> {
        let mut state = self.target.control.lock();
        state.iscsi.portal_group(tag)?;
        state
            .iscsi
            .check_unused(|map| map.portal_group == tag, || format!("portal group {tag}"))?;
        let group = state.iscsi.view.portal_groups.remove(&tag);
        for port_id in group.iter().flat_map(|group| &group.ports) {
            self.target.control.close_listener((Protocol::Iscsi, *port_id))?;
        }
        self.target.control.publish(&mut state)
    }

    /// Sets how discovery sessions by the portals of a group authenticate; `None`: as the settings say.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn set_portal_group_auth(
        &self,
        tag: u16,
        auth: Option<ChapPolicy>,
    ) -> Result<(), TargetError> {
        self.change(|state| {
            state.portal_group(tag)?.config.auth = auth;
            Ok(())
        })
    }

    /// The portal groups, by tag, with their real addresses.
    #[must_use]
    pub fn portal_groups(&self) -> Vec<PortalGroupConfig> {
        let state = self.target.control.lock();
        state.iscsi.view.portal_groups.values().map(|group| group.config.clone()).collect()
    }

    fn portals(&self, tag: u16) -> Vec<SocketAddr> {
        let state = self.target.control.lock();
        let group = state.iscsi.view.portal_groups.get(&tag);
        group.map_or_else(Vec::new, |group| group.config.portals.clone())
    }

    // ---------------------------------------------------------------------- target nodes

    /// Adds a target node with its LUNs.
    ///
    /// # Errors
    /// When the name is taken or is no iSCSI name, a map names a group that does not exist, or a LUN cannot be added;
    /// then nothing has changed.
    pub fn add_target_node(&self, config: TargetNodeConfig) -> Result<(), TargetError> {
        check_name(&config.name)?;
        if config.queue_depth == 0 || config.queue_depth > MAX_ISCSI_QUEUE_DEPTH {
            return Err(IscsiError::Setting {
                what: "the queue depth of a target node",
                need: "1 to 1024",
            }
            .into());
        }
        let (name, luns) = (config.name.to_ascii_lowercase(), config.luns.clone());
        self.change(|state| state.add_node(&config))?;
        for lun in luns {
            if let Err(error) = self.add_lun(&name, lun) {
                self.remove_target_node(&name)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes a target node. Its sessions close; commands in flight finish first.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn remove_target_node(&self, name: &str) -> Result<(), TargetError> {
        let mut state = self.target.control.lock();
        let node = state.iscsi.take_node(name)?;
        self.target.control.publish(&mut state)?;
        for lun in node.luns.iter().flatten() {
            self.forget_lun(&mut state, lun)?;
        }
        Ok(())
    }

    /// Adds a LUN to a target node; connected initiators learn of it by a unit attention. Gives its number.
    ///
    /// # Errors
    /// When there is no such node, the number is taken, or a core cannot open the device.
    pub fn add_lun(&self, name: &str, config: LunConfig) -> Result<u16, TargetError> {
        self.target.start_reserver()?;
        let mut state = self.target.control.lock();
        let number = state.iscsi.free_lun(name, config.lun)?;
        state.iscsi.check_device(name, &config.bdev)?;
        let lun = self.target.control.open_unit(&mut state, &config)?;
        state.iscsi.insert_lun(name, number, lun)?;
        self.target.control.publish(&mut state)?;
        Ok(number)
    }

    /// The reservations of a LUN.
    ///
    /// # Errors
    /// When there is no such LUN.
    pub fn reservations(&self, name: &str, number: u16) -> Result<Reservations, TargetError> {
        let mut state = self.target.control.lock();
        let device = state.iscsi.device_of_lun(name, number)?;
        let unit = state.iscsi.units.get(&device).map(|exported| exported.unit.state());
        Ok(unit.map(|unit| unit.reservations.clone()).unwrap_or_default())
    }

    /// Gives a LUN, and the namespace over its device, the reservations that it had in another process. They are not kept
    /// anew.
    ///
    /// # Errors
    /// When there is no such LUN, or a core does not answer.
    pub fn restore_reservations(
        &self,
        name: &str,
        number: u16,
        reservations: Reservations,
    ) -> Result<(), TargetError> {
        let mut state = self.target.control.lock();
        let device = state.iscsi.device_of_lun(name, number)?;
        self.target.control.restore(&mut state, device, reservations)
    }

    /// Removes a LUN. Its commands in flight finish; those that have not reached the device, and those that come later, are
    /// told that there is no such LUN.
    ///
    /// # Errors
    /// When there is no such LUN.
    pub fn remove_lun(&self, name: &str, number: u16) -> Result<(), TargetError> {
        let mut state = self.target.control.lock();
        let lun = state.iscsi.take_lun(name, number)?;
        self.target.control.publish(&mut state)?;
        self.forget_lun(&mut state, &lun)
    }

    /// Sets the limits of a device, for all LUNs over it; `None`: it has none. Commands that wait go by the new limits.
    ///
    /// # Errors
    /// When no LUN is over the device, or a core does not answer.
    pub fn set_device_limits(
        &self,
        bdev: &SharedBdev,
        throttle: Option<Throttle>,
    ) -> Result<(), TargetError> {
        self.change(|state| {
            let device = state.device_of(bdev);
            let name = || IscsiError::Missing(format!("LUN over device {}", bdev.info().name));
            state.limit_unit(device.ok_or_else(name)?, throttle);
            Ok(())
        })
    }

    /// Lets initiator groups reach a target node by portal groups.
    ///
    /// # Errors
    /// When there is no such node or group, or the node has the map already.
    pub fn add_maps(&self, name: &str, maps: &[PortalMap]) -> Result<(), TargetError> {
        self.change(|state| state.add_maps(name, maps))
    }

    /// Removes maps of a target node. Sessions of initiators that reach it no longer close.
    ///
    /// # Errors
    /// When there is no such node or map.
    pub fn remove_maps(&self, name: &str, maps: &[PortalMap]) -> Result<(), TargetError> {
        self.change(|state| state.remove_maps(name, maps))
    }

    /// Sets how initiators authenticate to a target node, from the next login on.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn set_auth(&self, name: &str, auth: ChapPolicy) -> Result<(), TargetError> {
        self.change(|state| {
            state.node_mut(name)?.auth = auth;
            Ok(())
        })
    }

    /// Sends logins to a target node by a portal group to another address (Target moved temporarily); `None`: no longer.
    ///
    /// # Errors
    /// When there is no such node or group.
    pub fn set_redirect(
        &self,
        name: &str,
        portal_group: u16,
        address: Option<SocketAddr>,
    ) -> Result<(), TargetError> {
        self.change(|state| {
            state.portal_group(portal_group)?;
            let redirects = &mut state.node_mut(name)?.redirects;
            match address {
                Some(address) => redirects.insert(portal_group, address),
                None => redirects.remove(&portal_group),
            };
            Ok(())
        })
    }

    /// Starts a histogram of how long the SCSI commands of a target node take, from their header to their end, or ends it.
    /// A histogram that there is goes on when it is started again.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn set_histogram(&self, name: &str, wanted: bool) -> Result<(), TargetError> {
        self.change(|state| {
            let latencies = &mut state.node_mut(name)?.latencies;
            if !wanted {
                *latencies = None;
            } else if latencies.is_none() {
                let stats = Arc::new(DeviceStats::default());
                stats.start_histogram(HistogramShape::default(), None);
                *latencies = Some(stats);
            }
            Ok(())
        })
    }

    /// The histogram of a target node so far; `None`: it was not started.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn histogram(&self, name: &str) -> Result<Option<Histogram>, TargetError> {
        let mut state = self.target.control.lock();
        let node = state.iscsi.node_mut(name)?;
        Ok(node.latencies.as_ref().and_then(|latencies| latencies.histogram()))
    }

    /// Asks the initiators of a target node to log out within 30 s (Async Message 1); `portal_group`: only those that came
    /// by it. Who has not logged out then is disconnected.
    ///
    /// # Errors
    /// When there is no such node, or a core does not answer.
    pub fn request_logout(&self, name: &str, portal_group: Option<u16>) -> Result<(), TargetError> {
        let name = {
            let mut state = self.target.control.lock();
            state.iscsi.node_mut(name)?.name.clone()
        };
        for core in 0..self.target.control.shared.cores() {
            let node = name.clone();
            let message = IscsiMessage::RequestLogout { node, portal_group };
            self.target.control.shared.send(core, Message::Iscsi(message));
        }
        Ok(())
    }

    // -------------------------------------------------------------------------- internals

    /// Changes the state and shows it to all cores; if `change` fails, nothing has changed.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut IscsiState) -> Result<T, IscsiError>,
    ) -> Result<T, TargetError> {
        let mut state = self.target.control.lock();
        let before = state.iscsi.view.clone();
        match change(&mut state.iscsi) {
            Ok(result) => {
                self.target.control.publish(&mut state)?;
                Ok(result)
            }
            Err(error) => {
                state.iscsi.view = before;
                Err(error.into())
            }
        }
    }

    /// Closes the device of a LUN that no snapshot shows, unless another LUN or a namespace uses it.
    fn forget_lun(&self, state: &mut State, lun: &Lun) -> Result<(), TargetError> {
        if state.iscsi.release_unit(lun.device) {
            self.target.control.close_device(state, lun.device)?;
        }
        Ok(())
    }
}

impl Control {
    /// The unit over a device, for one more LUN: the one that is there, or a new one over the device as it may be a
    /// namespace already, or a new one over a device that is opened for it. One device has one number on all cores, so
    /// that COMPARE AND WRITE and fused commands exclude each other.
    pub(super) fn open_unit(
        &self,
        state: &mut State,
        config: &LunConfig,
    ) -> Result<Lun, TargetError> {
        let bdev = &config.bdev;
        if let Some(device) = state.iscsi.device_of(bdev)
            && let Some(exported) = state.iscsi.units.get_mut(&device)
        {
            exported.luns += 1;
            return Ok(Lun { device, unit: Arc::clone(&exported.unit) });
        }
        let device = match state.device_of(bdev) {
            Some(device) => {
                state.share_device(device);
                device
            }
            None => self.open_device(state, bdev)?,
        };
        let place = config.reservations.as_ref();
        let reservations = match self.join_unit(state, device, place) {
            Ok(reservations) => reservations,
            Err(error) => {
                self.close_device(state, device)?;
                return Err(error);
            }
        };
        let limit = self.shared.config.max_io_bytes;
        let info = bdev.info();
        let info = BdevInfo { uuid: config.uuid.unwrap_or(info.uuid), ..info };
        let unit = Arc::new(Unit::new(&info, &config.serial, limit, reservations));
        let store = place.map(|place| Arc::clone(&place.store));
        let exported = Exported { bdev: Arc::clone(bdev), unit: Arc::clone(&unit), store, luns: 1 };
        state.iscsi.units.insert(device, exported);
        state.iscsi.limit_unit(device, config.throttle.clone());
        Ok(Lun { device, unit })
    }
}

impl State {
    /// A device over which there is a namespace or a LUN already: its number.
    pub(crate) fn device_of(&self, bdev: &SharedBdev) -> Option<DeviceId> {
        let namespaces = self.subsystems.values().flat_map(|entry| entry.namespaces.values());
        let mut of_namespaces = namespaces.filter(|exported| Arc::ptr_eq(&exported.bdev, bdev));
        let unit = self.iscsi.device_of(bdev);
        unit.or_else(|| of_namespaces.next().map(|exported| exported.device))
    }
}
