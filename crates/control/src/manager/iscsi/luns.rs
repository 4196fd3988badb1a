//! LUNs: added, removed, and those whose device is missing.

use raceline_target::MAX_LUN;

use super::{Node, NodeLun, live};
use crate::manager::{Change, ManagerError};

impl Change<'_> {
    /// Shows a device to the initiators of a target node; gives its number, the lowest free one if none is given. During
    /// the start, a LUN whose device is configured but missing waits for it.
    ///
    /// # Errors
    /// When there is no such node or device, the number is taken, or the device is in use.
    pub fn add_lun(
        &mut self,
        name: &str,
        device: &str,
        number: Option<u16>,
    ) -> Result<u16, ManagerError> {
        let (name, node) = self.node(name)?;
        let number = match number {
            Some(number) if node.luns.contains_key(&number) => {
                return Err(ManagerError::exists("LUN", &number.to_string()));
            }
            Some(number) => number,
            None => free_number(&node)?,
        };
        let mut lun = self.take_lun_device(device, (&name, number))?;
        if node.luns.values().any(|other| other.bdev_name == lun.bdev_name) {
            self.leave_bdev(&lun.bdev_name, &(name.clone(), number));
            return Err(ManagerError::exists("LUN over device", &lun.bdev_name));
        }
        if lun.missing.is_none()
            && let Err(error) = self.show_lun(&name, number, &lun.bdev_name)
        {
            self.leave_bdev(&lun.bdev_name, &(name.clone(), number));
            let ManagerError::Reservations(error) = error else { return Err(error) };
            if !self.may_wait() {
                return Err(error.into());
            }
            tracing::error!("LUN {number} of {name} is missing: {error}");
            lun.missing = Some(error.to_string());
        }
        self.with_node(&name, |node| drop(node.luns.insert(number, lun)));
        self.put_node(&name)?;
        Ok(number)
    }

    /// Notes that a LUN shows a device, if it is there.
    pub(super) fn take_lun_device(
        &mut self,
        device: &str,
        (name, number): (&str, u16),
    ) -> Result<NodeLun, ManagerError> {
        if number > MAX_LUN {
            return Err(ManagerError::Invalid(format!(
                "LUN {number} is not within 0 to {MAX_LUN}"
            )));
        }
        let found = self.model().bdev(device).map(|bdev| bdev.name.clone());
        match found {
            Ok(bdev_name) => {
                self.use_bdev(&bdev_name, (name.to_owned(), number))?;
                Ok(NodeLun { bdev_name, missing: None })
            }
            Err(ManagerError::Away { reason, .. }) if self.may_wait() => {
                tracing::warn!("LUN {number} of {name} waits for its device: {reason}");
                Ok(NodeLun { bdev_name: device.to_owned(), missing: Some(reason) })
            }
            Err(error) => Err(error),
        }
    }

    fn show_lun(&mut self, name: &str, number: u16, device: &str) -> Result<(), ManagerError> {
        let manager = self.manager().config();
        let cores = self.model().iscsi_cores();
        let about = (number, device);
        let config = live::lun_config(manager, &self.model(), about, cores.as_deref())?;
        self.on_iscsi_cores(|cores| cores.add_lun(name, config).map(drop))
    }

    /// Takes a LUN away: initiators are told, and commands in flight finish.
    ///
    /// # Errors
    /// When there is no such LUN, or its device does not become quiet.
    pub fn remove_lun(&mut self, name: &str, number: u16) -> Result<(), ManagerError> {
        let (name, node) = self.node(name)?;
        let missing = || ManagerError::missing("LUN", &number.to_string());
        let lun = node.luns.get(&number).ok_or_else(missing)?;
        if lun.missing.is_none() {
            self.on_iscsi_cores(|cores| cores.remove_lun(&name, number))?;
            self.leave_bdev(&lun.bdev_name, &(name.clone(), number));
        }
        self.with_node(&name, |node| drop(node.luns.remove(&number)));
        self.put_node(&name)
    }

    /// Takes a LUN from initiators whose device has disappeared by itself; it comes back with the device.
    pub(in crate::manager) fn hide_lun(
        &mut self,
        name: &str,
        number: u16,
    ) -> Result<(), ManagerError> {
        self.on_iscsi_cores(|cores| cores.remove_lun(name, number))?;
        let mut gone = None;
        self.with_node(name, |node| {
            if let Some(lun) = node.luns.get_mut(&number) {
                lun.missing = Some("its device has gone".to_owned());
                gone = Some(lun.bdev_name.clone());
            }
        });
        if let Some(device) = gone {
            tracing::warn!("LUN {number} of {name} is missing: its device `{device}` has gone");
            self.leave_bdev(&device, &(name.to_owned(), number));
        }
        Ok(())
    }

    /// Shows the LUNs that have waited for a device.
    pub(in crate::manager) fn show_waiting_luns(&mut self, device: &str) {
        for (name, number) in self.luns_waiting(|waited| waited == device) {
            let used = self.use_bdev(device, (name.clone(), number));
            let shown = used.and_then(|()| {
                let shown = self.show_lun(&name, number, device);
                if shown.is_err() {
                    self.leave_bdev(device, &(name.clone(), number));
                }
                shown
            });
            match &shown {
                Ok(()) => tracing::info!("LUN {number} of {name} is there: `{device}` has come"),
                Err(error) => tracing::warn!("LUN {number} of {name} cannot be made: {error}"),
            }
            let missing = shown.err().map(|error| error.to_string());
            self.with_node(&name, |node| {
                if let Some(lun) = node.luns.get_mut(&number) {
                    lun.missing = missing;
                }
            });
        }
    }

    /// Removes LUNs that wait for a device.
    pub(in crate::manager) fn remove_luns_waiting(&mut self, is_gone: impl Fn(&str) -> bool) {
        for (name, number) in self.luns_waiting(&is_gone) {
            let removed = self.remove_lun(&name, number);
            // The cores have nothing of it.
            debug_assert!(removed.is_ok());
        }
    }

    fn luns_waiting(&self, is_it: impl Fn(&str) -> bool) -> Vec<(String, u16)> {
        let model = self.model();
        let all = model.iscsi.nodes.iter();
        let luns = all.flat_map(|(name, node)| node.luns.iter().map(move |lun| (name, lun)));
        luns.filter(|(_, (_, lun))| lun.missing.is_some() && is_it(&lun.bdev_name))
            .map(|(name, (number, _))| (name.clone(), *number))
            .collect()
    }
}

fn free_number(node: &Node) -> Result<u16, ManagerError> {
    let free = (0..=MAX_LUN).find(|number| !node.luns.contains_key(number));
    let all = || ManagerError::Invalid(format!("it has all LUNs from 0 to {MAX_LUN}"));
    free.ok_or_else(all)
}
