//! Changes of namespaces: added, removed, given another device, shown to hosts.

use std::sync::Arc;

use raceline_bdev::{BdevInfo, SharedBdev};
use raceline_proto::controller::{Namespace, Visibility};
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{NamespaceId, Nqn};

use crate::changes::config::{NamespaceConfig, TargetError};
use crate::changes::control::{Entry, Exported, State};
use crate::changes::reservation_state::KeptReservations;
use crate::changes::snapshot::DeviceId;
use crate::changes::target::Target;

impl Target {
    /// Adds a namespace; connected hosts that see it are told (Namespace Attribute Changed).
    ///
    /// # Errors
    /// When the number is taken, the device cannot be a namespace, or a core cannot open it.
    pub fn add_namespace(
        &self,
        nqn: &Nqn,
        config: NamespaceConfig,
    ) -> Result<NamespaceId, TargetError> {
        let mut state = self.control.lock();
        let nsid = state.entry(nqn)?.free_nsid(config.nsid)?;
        let namespace = describe_namespace(nsid, &config);
        let bdev = config.bdev;
        // The rules are checked before any core opens the device; 0 is the number of no device.
        let protection = config.protection.map(|place| place.store);
        let bdev_of = Arc::clone(&bdev);
        let unopened = Exported { device: DeviceId(0), namespace, bdev: bdev_of, protection };
        let (group, throttle) = (config.ana_group, config.throttle);
        let place = config.reservations;
        self.start_reserver()?;
        let insert = |entry: &mut Entry, exported: Exported| {
            if let Some(group) = group {
                entry.ana_groups_named(Some(group))?;
                entry.ana_groups.insert(nsid.0, group);
            }
            if let Some(throttle) = &throttle {
                entry.limits.namespaces.insert(nsid.0, throttle.clone());
            }
            entry.namespaces.insert(nsid.0, exported);
            if let Some(place) = &place {
                entry.reservations.insert(nsid.0, KeptReservations::of(place));
            }
            Ok(())
        };
        self.control.change(&mut state, nqn, |entry| insert(entry, unopened.clone()))?;
        let opened = self.control.open_namespace(&mut state, &bdev);
        match opened {
            Ok(device) => {
                let exported = Exported { device, ..unopened };
                self.control.change(&mut state, nqn, |entry| insert(entry, exported))?;
                let joined = self.control.join_namespace(&mut state, (nqn, nsid), place.as_ref());
                if let Err(error) = joined {
                    self.forget_namespace(&mut state, nqn, nsid)?;
                    self.control.close_device(&mut state, device)?;
                    return Err(error);
                }
                self.control.publish(&mut state)?;
                Ok(nsid)
            }
            Err(error) => {
                self.forget_namespace(&mut state, nqn, nsid)?;
                Err(error)
            }
        }
    }

    /// Takes back a namespace that no snapshot shows.
    fn forget_namespace(
        &self,
        state: &mut State,
        nqn: &Nqn,
        nsid: NamespaceId,
    ) -> Result<(), TargetError> {
        self.control.change(state, nqn, |entry| {
            entry.namespaces.remove(&nsid.0);
            entry.ana_groups.remove(&nsid.0);
            entry.limits.namespaces.remove(&nsid.0);
            entry.reservations.remove(&nsid.0);
            Ok(())
        })
    }

    /// Removes a namespace; connected hosts are told. Commands in flight finish first. A namespace of a
    /// pool is deleted: its part of the device is free again.
    ///
    /// When there is no namespace of that number, it is being formatted, or its device does not become
    /// quiet.
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: NamespaceId) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        if state.entry(nqn)?.namespace(nsid)?.is_of_pool() {
            return self.control.delete_from_pool(&mut state, nqn, nsid);
        }
        let exported = self.control.change(&mut state, nqn, |entry| {
            let removed = entry.namespaces.remove(&nsid.0);
            entry.ana_groups.remove(&nsid.0);
            entry.limits.namespaces.remove(&nsid.0);
            entry.reservations.remove(&nsid.0);
            removed.ok_or_else(|| TargetError::NoNamespace { nqn: nqn.clone(), nsid })
        })?;
        self.control.publish(&mut state)?;
        self.control.close_device(&mut state, exported.device)
    }

    /// Reads the sizes of all devices again, and tells connected hosts and initiators of those that have grown.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn refresh_sizes(&self) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        state.iscsi.refresh_sizes();
        let mut changed = false;
        for entry in state.subsystems.values_mut() {
            let mut resized = false;
            for exported in entry.namespaces.values_mut() {
                let block_count = exported.bdev.info().block_count;
                resized |= exported.namespace.block_count != block_count;
                exported.namespace.block_count = block_count;
            }
            if resized {
                entry.describe_anew();
            }
            changed |= resized;
        }
        if changed { self.control.publish(&mut state) } else { Ok(()) }
    }

    /// Puts another device behind a namespace, for instance the same one after it has grown.
    /// Commands in flight finish on the old one; the identity stays. Hosts are told if the size
    /// or anything else that they see is different.
    ///
    /// # Errors
    /// When there is no such namespace, it is of a pool, the device cannot be one, or a core cannot
    /// open it; then the old device stays.
    pub fn replace_device(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        bdev: SharedBdev,
    ) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        if state.entry(nqn)?.namespace(nsid)?.is_of_pool() {
            let reason = format!("namespace {nsid} of {nqn} is part of a pool");
            return Err(TargetError::Unsuitable { device: bdev.info().name, reason });
        }
        let device = self.control.open_device(&mut state, &bdev)?;
        let changed = self.control.change(&mut state, nqn, |entry| {
            let exported = entry.namespace(nsid)?;
            exported.namespace = with_device(&exported.namespace, &bdev.info());
            exported.bdev = bdev;
            Ok(std::mem::replace(&mut exported.device, device))
        });
        match changed {
            Ok(old) => {
                self.control.publish(&mut state)?;
                self.control.close_device(&mut state, old)
            }
            Err(error) => {
                self.control.close_device(&mut state, device)?;
                Err(error)
            }
        }
    }

    /// Lets a host see a namespace that is not visible to all hosts; a connected host is told.
    /// Does nothing when the host sees it already.
    ///
    /// # Errors
    /// When there is no such namespace, or every host sees it.
    pub fn show_namespace(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        host: &Nqn,
    ) -> Result<(), TargetError> {
        self.change_visibility(nqn, nsid, |hosts| {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        })
    }

    /// Hides a namespace from a host; a connected host is told. Does nothing when the host does not
    /// see it.
    ///
    /// # Errors
    /// When there is no such namespace, or every host sees it.
    pub fn hide_namespace(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        host: &Nqn,
    ) -> Result<(), TargetError> {
        self.change_visibility(nqn, nsid, |hosts| hosts.retain(|listed| listed != host))
    }

    fn change_visibility(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        change: impl FnOnce(&mut Vec<Nqn>),
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            let exported = entry.namespace(nsid)?;
            let Visibility::Hosts(hosts) = &exported.namespace.visibility else {
                return Err(TargetError::AlwaysVisible { nqn: nqn.clone(), nsid });
            };
            let mut hosts = hosts.to_vec();
            change(&mut hosts);
            if exported.is_of_pool() {
                return entry.set_hosts_of(nsid, hosts);
            }
            exported.namespace.visibility = Visibility::Hosts(hosts.into());
            Ok(())
        })
    }
}

impl Entry {
    pub(crate) fn namespace(&mut self, nsid: NamespaceId) -> Result<&mut Exported, TargetError> {
        let nqn = &self.config.nqn;
        let missing = || TargetError::NoNamespace { nqn: nqn.clone(), nsid };
        self.namespaces.get_mut(&nsid.0).ok_or_else(missing)
    }

    pub(crate) fn free_nsid(
        &self,
        wanted: Option<NamespaceId>,
    ) -> Result<NamespaceId, TargetError> {
        let (nqn, max) = (&self.config.nqn, self.config.max_namespaces);
        match wanted {
            Some(nsid) if self.namespaces.contains_key(&nsid.0) => {
                Err(TargetError::NamespaceExists { nqn: nqn.clone(), nsid })
            }
            Some(nsid) => Ok(nsid),
            None => (1..=max)
                .find(|nsid| !self.namespaces.contains_key(nsid))
                .map(NamespaceId)
                .ok_or_else(|| TargetError::TooManyNamespaces { nqn: nqn.clone(), max }),
        }
    }
}

fn describe_namespace(nsid: NamespaceId, config: &NamespaceConfig) -> Namespace {
    let info: BdevInfo = config.bdev.info();
    let uuid = config.uuid.unwrap_or(info.uuid);
    let identity = Namespace {
        nguid: config.nguid.unwrap_or(uuid),
        eui64: config.eui64.unwrap_or_default(),
        visibility: config.visibility.clone(),
        protection: match &config.protection {
            Some(place) if place.is_protected => WriteProtection::On,
            _ => WriteProtection::None,
        },
        ..identity(nsid, uuid)
    };
    with_device(&identity, &info)
}

/// A namespace of that number and UUID, not yet described by a device.
pub(crate) fn identity(nsid: NamespaceId, uuid: [u8; 16]) -> Namespace {
    Namespace {
        nsid,
        block_size: 0,
        block_count: 0,
        physical_block_size: 0,
        io_boundary_bytes: 0,
        uuid,
        nguid: uuid,
        eui64: [0; 8],
        visibility: Visibility::All,
        shared: true,
        pool_bytes: None,
        volatile_write_cache: false,
        read_only: false,
        protection: WriteProtection::None,
        deallocate: false,
        deallocate_zeroes: false,
        knows_holes: false,
        uncorrectable: false,
        ana_group: 0,
    }
}

/// The same namespace with this device's capabilities.
pub(crate) fn with_device(namespace: &Namespace, info: &BdevInfo) -> Namespace {
    Namespace {
        block_size: info.block_size,
        block_count: info.block_count,
        physical_block_size: info.physical_block_size.max(info.block_size),
        io_boundary_bytes: info.io_boundary_bytes,
        volatile_write_cache: info.volatile_write_cache,
        read_only: info.read_only,
        deallocate: info.deallocate,
        deallocate_zeroes: info.deallocate_zeroes,
        knows_holes: info.knows_holes,
        uncorrectable: info.uncorrectable,
        ..namespace.clone()
    }
}

#[cfg(test)]
mod hint_tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_hints_of_its_device() {
        let spec: raceline_bdev::DeviceSpec = "ram:1M".parse().unwrap();
        let spec = raceline_bdev::DeviceSpec {
            physical_block_size: Some(8192),
            io_boundary_bytes: 65_536,
            ..spec
        };
        let device = raceline_bdev::open(&spec, &raceline_bdev::Identity::from_seed(b"t")).unwrap();
        let namespace = with_device(&identity(NamespaceId(1), [1; 16]), &device.info());
        assert_eq!((namespace.physical_block_size, namespace.io_boundary_bytes), (8192, 65_536));
    }
}
