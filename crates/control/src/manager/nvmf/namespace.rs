//! Namespaces: added, removed, shown to hosts; and namespaces whose device is missing.

use std::sync::Arc;

use raceline_bdev::SharedBdev;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_target::Target;
use serde_json::{Value, json};
use uuid::Uuid;

use super::change::{entry, hex, key};
use super::live;
use super::reservations::places_of;
use super::{Namespace, NewNamespace};
use crate::manager::bdevs::Claim;
use crate::manager::catalogue::Key;
use crate::manager::{Change, ManagerError};

impl Change<'_> {
    /// Exports a device as a namespace; gives its number. During the start, a namespace whose device is
    /// configured but missing waits for it.
    ///
    /// # Errors
    /// When the subsystem or device is missing, the device is in use, or the number is taken.
    pub fn add_namespace(
        &mut self,
        target: &str,
        nqn: &Nqn,
        new: &NewNamespace,
    ) -> Result<u32, ManagerError> {
        let (cores, nsid, found) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let subsystem = found.subsystem(nqn)?;
            let nsid = match new.nsid {
                None => subsystem.free_nsid()?,
                Some(nsid) => subsystem.check_nsid(nsid).map(|()| nsid)?,
            };
            if new.anagrpid.is_some() {
                subsystem.check_ana_group(new.anagrpid)?;
            }
            let bdev = match model.bdev(&new.bdev_name) {
                Ok(bdev) => Ok((bdev.name.clone(), bdev.uuid, Arc::clone(&bdev.device))),
                Err(ManagerError::Away { reason, .. }) if self.may_wait() => Err(reason),
                Err(error) => return Err(error),
            };
            (found.cores(), nsid, bdev)
        };
        let (bdev_name, uuid) = match &found {
            Ok((name, uuid, _)) => (name.clone(), *uuid),
            // Its identity comes from the device, unless it is given.
            Err(_) => (new.bdev_name.clone(), Uuid::nil()),
        };
        let uuid = new.uuid.unwrap_or(uuid);
        let namespace = Namespace {
            bdev_name,
            uuid,
            nguid: new.nguid.or_else(|| nguid_of(uuid)),
            eui64: new.eui64.unwrap_or_default(),
            hosts: new.no_auto_visible.then(Vec::new),
            anagrpid: new.anagrpid,
            ptpl_file: new.ptpl_file.clone(),
            missing: found.as_ref().err().cloned(),
        };
        let mut namespace = namespace;
        match found {
            Ok((_, _, device)) => {
                match self.show(target, nqn, nsid, (&namespace, device), cores) {
                    // The other namespaces are not to wait for the one whose reservations are lost.
                    Err(ManagerError::Reservations(error)) if self.may_wait() => {
                        tracing::error!("namespace {nsid} of {nqn} is missing: {error}");
                        namespace.missing = Some(error.to_string());
                    }
                    shown => shown?,
                }
            }
            Err(reason) => {
                tracing::warn!("namespace {nsid} of {nqn} waits for its device: {reason}");
            }
        }
        self.put_namespace(target, nqn, nsid, &namespace);
        let mut model = self.model_mut();
        model.nvmf.waits |= namespace.missing.is_some();
        let subsystem = model.nvmf.target_mut(target)?.subsystem_mut(nqn)?;
        subsystem.namespaces.insert(nsid, namespace);
        Ok(nsid)
    }

    pub(super) fn put_namespace(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
        namespace: &Namespace,
    ) {
        let params = json!({ "nqn": nqn.as_str(), "namespace": namespace_params(nsid, namespace) });
        let key = namespace_key(target, nqn, nsid);
        self.put(key, entry(target, "nvmf_subsystem_add_ns", params));
    }

    /// Claims the device of a namespace and gives the namespace to the cores.
    fn show(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
        (namespace, device): (&Namespace, SharedBdev),
        cores: Option<Arc<Target>>,
    ) -> Result<(), ManagerError> {
        let (of, nqn_text) = (target.to_owned(), nqn.as_str().to_owned());
        let name = &namespace.bdev_name;
        self.claim_bdev(name, Claim::Namespace { target: of, nqn: nqn_text, nsid })?;
        let Some(cores) = cores else {
            // Damage is found now, when it concerns this namespace alone, and not when cores get all of them at once.
            let usable = places_of(self.manager(), nqn, namespace).map(drop);
            if usable.is_err() {
                self.release_bdev(name);
            }
            return usable;
        };
        let throttle = self.model().bdevs.throttle(&cores, name);
        let added = throttle.and_then(|throttle| {
            let places = places_of(self.manager(), nqn, namespace)?;
            let config = live::namespace_config(nsid, namespace, device, places, throttle);
            Ok(cores.add_namespace(nqn, config).map(drop)?)
        });
        if added.is_err() {
            self.release_bdev(name);
        }
        added
    }

    /// Shows a namespace whose device has come.
    pub(in crate::manager) fn show_waiting(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<(), ManagerError> {
        let (cores, before, uuid, device) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let namespace = found.subsystem(nqn)?.namespace(nsid)?.clone();
            let bdev = model.bdev(&namespace.bdev_name)?;
            (found.cores(), namespace, bdev.uuid, Arc::clone(&bdev.device))
        };
        let mut namespace = Namespace { missing: None, ..before.clone() };
        if namespace.uuid.is_nil() {
            namespace.uuid = uuid;
        }
        namespace.nguid = namespace.nguid.or_else(|| nguid_of(namespace.uuid));
        let shown = self.show(target, nqn, nsid, (&namespace, device), cores);
        if let Err(error) = &shown {
            namespace = Namespace { missing: Some(error.to_string()), ..before.clone() };
        } else if (namespace.uuid, namespace.nguid) != (before.uuid, before.nguid) {
            self.put_namespace(target, nqn, nsid, &namespace);
        }
        self.with_subsystem(target, nqn, |subsystem| {
            subsystem.namespaces.insert(nsid, namespace);
        })?;
        shown
    }

    /// Takes a namespace from hosts whose device has disappeared by itself; it comes back with the device.
    pub(in crate::manager) fn hide_waiting(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<(), ManagerError> {
        if let Some(cores) = self.cores_of(target, nqn)? {
            cores.remove_namespace(nqn, NamespaceId(nsid))?;
        }
        let mut name = None;
        self.model_mut().nvmf.waits = true;
        self.with_subsystem(target, nqn, |subsystem| {
            if let Some(namespace) = subsystem.namespaces.get_mut(&nsid) {
                namespace.missing = Some("its device has gone".to_owned());
                name = Some(namespace.bdev_name.clone());
            }
        })?;
        if let Some(name) = name {
            tracing::warn!("namespace {nsid} of {nqn} is missing: its device `{name}` has gone");
            self.release_bdev(&name);
        }
        Ok(())
    }

    /// The cores that have a namespace of a pool; `None` if the namespace belongs to no pool.
    fn cores_of_pool(
        &self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<Option<Arc<Target>>, ManagerError> {
        let model = self.model();
        let found = model.nvmf.target(target)?;
        let subsystem = found.subsystem(nqn)?;
        let Some(pool) = subsystem.pool.as_ref().filter(|_| subsystem.pool_has(nsid)) else {
            return Ok(None);
        };
        if let Some(reason) = &pool.missing {
            let text = format!("the pool of namespace {nsid} is missing: {reason}");
            return Err(ManagerError::Invalid(text));
        }
        let missing = || ManagerError::missing("transport", "TCP");
        found.cores().map(Some).ok_or_else(missing)
    }

    /// Removes a namespace; hosts are told, and commands in flight finish. A namespace of a pool is
    /// deleted: its part of the device becomes free again.
    ///
    /// # Errors
    /// When there is none, or its device does not become quiet.
    pub fn remove_namespace(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<(), ManagerError> {
        if let Some(cores) = self.cores_of_pool(target, nqn, nsid)? {
            return Ok(cores.remove_namespace(nqn, NamespaceId(nsid))?);
        }
        let (cores, namespace) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            (found.cores(), found.subsystem(nqn)?.namespace(nsid)?.clone())
        };
        let is_shown = namespace.missing.is_none();
        if let Some(cores) = cores.filter(|_| is_shown) {
            cores.remove_namespace(nqn, NamespaceId(nsid))?;
        }
        self.with_subsystem(target, nqn, |subsystem| drop(subsystem.namespaces.remove(&nsid)))?;
        if is_shown {
            self.release_bdev(&namespace.bdev_name);
        }
        self.remove(namespace_key(target, nqn, nsid));
        Ok(())
    }

    /// Shows a namespace that is not visible by default to a host, or hides it from the host.
    ///
    /// # Errors
    /// When there is no such namespace, or every host sees it.
    pub fn set_visible(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
        host: &Nqn,
        visible: bool,
    ) -> Result<(), ManagerError> {
        if let Some(cores) = self.cores_of_pool(target, nqn, nsid)? {
            // The same as attaching and detaching it; the target writes it down through the pool's store.
            let changed = match visible {
                true => cores.show_namespace(nqn, NamespaceId(nsid), host),
                false => cores.hide_namespace(nqn, NamespaceId(nsid), host),
            };
            return Ok(changed?);
        }
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let subsystem = found.subsystem(nqn)?;
            let namespace = subsystem.namespace(nsid)?;
            if namespace.hosts.is_none() {
                let text = format!(
                    "every host sees namespace {nsid}: add it with no_auto_visible instead"
                );
                return Err(ManagerError::Invalid(text));
            }
            found.cores().filter(|_| namespace.missing.is_none())
        };
        match (cores, visible) {
            (Some(cores), true) => cores.show_namespace(nqn, NamespaceId(nsid), host)?,
            (Some(cores), false) => cores.hide_namespace(nqn, NamespaceId(nsid), host)?,
            (None, _) => {}
        }
        self.with_subsystem(target, nqn, |subsystem| {
            let namespace = subsystem.namespaces.get_mut(&nsid);
            if let Some(hosts) = namespace.and_then(|namespace| namespace.hosts.as_mut()) {
                hosts.retain(|listed| listed != host);
                if visible {
                    hosts.push(host.clone());
                }
            }
        })?;
        let nsid_text = nsid.to_string();
        let parts =
            ["subsystem", nqn.as_str(), "namespace", nsid_text.as_str(), "host", host.as_str()];
        if visible {
            let params = json!({ "nqn": nqn.as_str(), "nsid": nsid, "host": host.as_str() });
            self.put(key(target, &parts), entry(target, "nvmf_ns_add_host", params));
        } else {
            self.remove(key(target, &parts));
        }
        Ok(())
    }
}

/// The NGUID of a namespace for which none is asked for: its UUID, which is unique, stable and as long.
fn nguid_of(uuid: Uuid) -> Option<[u8; 16]> {
    (!uuid.is_nil()).then(|| *uuid.as_bytes())
}

fn namespace_key(target: &str, nqn: &Nqn, nsid: u32) -> Key {
    key(target, &["subsystem", nqn.as_str(), "namespace", &nsid.to_string()])
}

fn namespace_params(nsid: u32, namespace: &Namespace) -> Value {
    let mut params = json!({ "nsid": nsid, "bdev_name": namespace.bdev_name });
    if let Some(members) = params.as_object_mut() {
        // If the device has never been present, its identity is not known.
        if !namespace.uuid.is_nil() {
            members.insert("uuid".to_owned(), namespace.uuid.to_string().into());
        }
        if let Some(nguid) = &namespace.nguid {
            members.insert("nguid".to_owned(), hex(nguid).into());
        }
        if namespace.eui64 != [0; 8] {
            members.insert("eui64".to_owned(), hex(&namespace.eui64).into());
        }
        if namespace.hosts.is_some() {
            members.insert("no_auto_visible".to_owned(), true.into());
        }
        if let Some(file) = &namespace.ptpl_file {
            members.insert("ptpl_file".to_owned(), file.to_string_lossy().into());
        }
        if let Some(group) = namespace.anagrpid {
            members.insert("anagrpid".to_owned(), group.into());
        }
    }
    params
}
