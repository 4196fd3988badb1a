//! Block devices by name: aliases, UUIDs, claims, and which device stands on which.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raceline_bdev::{Bdev as _, BdevInfo, DeviceStats, NamedBdev, SharedBdev};
use raceline_proto::nvme::Nqn;
use raceline_target::{QosLimits, Target, Throttle};
use serde_json::Value;
use uuid::Uuid;

use super::catalogue::{self, Key};
use super::notify::EventKind;
use super::sampling::Sampling;
use super::{Change, Manager, ManagerError};

/// The longest name of a device in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// How often a waiting client checks whether the device is there.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The exclusive user of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A namespace uses it.
    Namespace {
        /// Target of the namespace.
        target: String,
        /// Subsystem of the namespace.
        nqn: String,
        /// Number of the namespace.
        nsid: u32,
    },
    /// Hosts of a subsystem divide it into namespaces.
    Pool {
        /// Target of the subsystem.
        target: String,
        /// The subsystem.
        nqn: String,
    },
    /// It is a disk of this machine or of a virtual machine.
    Disk {
        /// SPDK's name of the module.
        module: &'static str,
        /// The controller, or the number of the disk.
        name: String,
    },
    /// Another device stands on it.
    Bdev {
        /// The module of the upper device.
        module: &'static str,
        /// The name of the upper device.
        name: String,
    },
}

impl Claim {
    /// SPDK's name of the module that holds the claim.
    #[must_use]
    pub fn module(&self) -> &'static str {
        match self {
            Self::Namespace { .. } | Self::Pool { .. } => "NVMe-oF Target",
            Self::Bdev { module, .. } | Self::Disk { module, .. } => module,
        }
    }

    /// Whether LUNs may show the device at the same time.
    fn shares(&self) -> bool {
        matches!(self, Self::Namespace { .. })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace { nqn, nsid, .. } => write!(f, "namespace {nsid} of {nqn}"),
            Self::Pool { nqn, .. } => write!(f, "the pool of {nqn}"),
            Self::Bdev { name, .. } => write!(f, "device `{name}`"),
            Self::Disk { module, name } => write!(f, "disk `{name}` ({module})"),
        }
    }
}

/// The part of a device's description that is specific to its kind.
pub trait Details: Send + Sync {
    /// `driver_specific` of bdev_get_bdevs.
    fn driver_specific(&self) -> Value;

    /// Before the removal of the device: requests that it holds back must go, or it never becomes quiet.
    fn before_removal(&self) {}

    /// Lets the module that owns the device find its own type again.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A description that never changes.
pub struct Plain(pub Value);

impl Details for Plain {
    fn driver_specific(&self) -> Value {
        self.0.clone()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// A device and what is known of it.
#[derive(Clone)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Other names; the UUID is one without being listed.
    pub aliases: Vec<String>,
    /// Its identity.
    pub uuid: Uuid,
    /// Which module made it, e.g. `malloc`.
    pub module: &'static str,
    /// What SPDK calls this kind, e.g. `Malloc disk`.
    pub product_name: &'static str,
    /// The device, under its name.
    pub device: SharedBdev,
    /// Its I/O counters.
    pub stats: Arc<DeviceStats>,
    /// Samples its queue depth, if a client has asked for that.
    pub sampling: Option<Arc<Sampling>>,
    /// What its kind adds to its description.
    pub details: Arc<dyn Details>,
    /// The devices that it stands on.
    pub bases: Vec<String>,
    /// Its entry in the catalogue; `None` if the entry of another object made it as well.
    pub key: Option<Key>,
    /// Its exclusive user.
    pub claim: Option<Claim>,
    /// The LUNs that show it by iSCSI: target node and number. They share it with each other and with a namespace, as
    /// in SPDK, but with nothing that stands on it.
    pub luns: Vec<(String, u16)>,
    /// The limits of what hosts do with it.
    pub limits: QosLimits,
}

impl Entry {
    /// A device with the UUID that `device` reports.
    #[must_use]
    pub fn new(
        name: &str,
        module: &'static str,
        product_name: &'static str,
        device: SharedBdev,
    ) -> Self {
        let uuid = Uuid::from_bytes(device.info().uuid);
        Self::with_uuid(name, uuid, module, product_name, device)
    }

    /// A device with the given UUID.
    #[must_use]
    pub fn with_uuid(
        name: &str,
        uuid: Uuid,
        module: &'static str,
        product_name: &'static str,
        device: SharedBdev,
    ) -> Self {
        let device = NamedBdev::new(device, name.to_owned(), Some(uuid.into_bytes()));
        Self {
            name: name.to_owned(),
            aliases: Vec::new(),
            uuid,
            module,
            product_name,
            stats: device.stats().cloned().unwrap_or_default(),
            sampling: None,
            device: Arc::new(device),
            details: Arc::new(Plain(Value::Object(serde_json::Map::new()))),
            bases: Vec::new(),
            key: None,
            claim: None,
            luns: Vec::new(),
            limits: QosLimits::default(),
        }
    }

    /// The same entry with a description of its kind.
    #[must_use]
    pub fn described_by(self, details: impl Details + 'static) -> Self {
        Self { details: Arc::new(details), ..self }
    }

    /// The same entry, standing on another device.
    #[must_use]
    pub fn standing_on(mut self, base: &str) -> Self {
        self.bases.push(base.to_owned());
        self
    }

    /// The same entry with its key in the catalogue.
    #[must_use]
    pub fn kept_as(self, key: Key) -> Self {
        Self { key: Some(key), ..self }
    }

    /// The current properties of the device.
    #[must_use]
    pub fn info(&self) -> BdevInfo {
        self.device.info()
    }
}

/// All devices.
#[derive(Default)]
pub struct Bdevs {
    /// In the order in which they came.
    entries: BTreeMap<u64, Entry>,
    /// Names, aliases and UUIDs.
    names: HashMap<String, u64>,
    last: u64,
    /// The limits of devices that have any, also of those that are away.
    limits: BTreeMap<String, QosLimits>,
    /// What enforces them: one for all namespaces and LUNs over a device.
    throttles: Mutex<BTreeMap<String, Throttle>>,
}

impl Bdevs {
    /// The device of that name, alias or UUID.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.get(self.names.get(name)?)
    }

    /// All devices in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The devices that stand on this one.
    pub fn above<'a>(&'a self, base: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.iter().filter(move |entry| entry.bases.iter().any(|name| name == base))
    }

    /// Checks whether a device could have this name.
    ///
    /// # Errors
    /// When the name is taken or unusable.
    pub fn check_name(&self, name: &str) -> Result<(), ManagerError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(ManagerError::BadName(name.escape_debug().to_string()));
        }
        if self.names.contains_key(name) {
            return Err(ManagerError::NameTaken(name.to_owned()));
        }
        Ok(())
    }

    /// The first free name of `PREFIX0`, `PREFIX1`...: how SPDK names devices that are given no name.
    #[must_use]
    pub fn free_name(&self, prefix: &str) -> String {
        let mut names = (0u64..).map(|number| format!("{prefix}{number}"));
        names.find(|name| !self.names.contains_key(name)).unwrap_or_default()
    }

    /// The limits of the device of that name.
    #[must_use]
    pub fn limits(&self, name: &str) -> QosLimits {
        self.limits.get(name).copied().unwrap_or_default()
    }

    /// What enforces the limits of the device of that name; `None`: it has none.
    pub(super) fn throttle(
        &self,
        cores: &Target,
        name: &str,
    ) -> Result<Option<Throttle>, ManagerError> {
        let limits = self.limits(name);
        if limits.is_unlimited() {
            return Ok(None);
        }
        let mut throttles = self.throttles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = throttles.get(name) {
            return Ok(Some(known.clone()));
        }
        let throttle = cores.throttle(limits)?;
        throttles.insert(name.to_owned(), throttle.clone());
        Ok(Some(throttle))
    }

    /// The devices with limits, by name.
    pub fn all_limits(&self) -> impl Iterator<Item = (&String, &QosLimits)> {
        self.limits.iter()
    }

    pub(super) fn set_limits(&mut self, name: &str, limits: QosLimits) {
        self.throttles.get_mut().unwrap_or_else(PoisonError::into_inner).remove(name);
        if limits.is_unlimited() {
            self.limits.remove(name);
        } else {
            self.limits.insert(name.to_owned(), limits);
        }
        if let Some(entry) = self.names.get(name).and_then(|number| self.entries.get_mut(number)) {
            entry.limits = limits;
        }
    }

    pub(super) fn insert(&mut self, mut entry: Entry) -> Result<(), ManagerError> {
        entry.limits = self.limits(&entry.name);
        self.check_name(&entry.name)?;
        let uuid = entry.uuid.to_string();
        if let Some(other) = self.find(&uuid).filter(|other| other.uuid == entry.uuid) {
            return Err(ManagerError::UuidTaken { uuid, name: other.name.clone() });
        }
        for name in entry.aliases.iter().chain([&uuid]) {
            if self.names.contains_key(name) {
                return Err(ManagerError::NameTaken(name.clone()));
            }
        }
        self.last += 1;
        for name in entry.aliases.iter().chain([&entry.name, &uuid]) {
            self.names.insert(name.clone(), self.last);
        }
        self.entries.insert(self.last, entry);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(self.names.get(name)?)?;
        for name in entry.aliases.iter().chain([&entry.name, &entry.uuid.to_string()]) {
            self.names.remove(name);
        }
        Some(entry)
    }

    pub(crate) fn set_sampling(&mut self, name: &str, sampling: Option<Arc<Sampling>>) {
        if let Some(entry) = self.names.get(name).and_then(|number| self.entries.get_mut(number)) {
            entry.sampling = sampling;
        }
    }

    fn with_luns(&mut self, name: &str, change: impl FnOnce(&mut Vec<(String, u16)>)) {
        if let Some(entry) = self.names.get(name).and_then(|number| self.entries.get_mut(number)) {
            change(&mut entry.luns);
        }
    }

    pub(super) fn set_claim(&mut self, name: &str, claim: Option<Claim>) {
        if let Some(entry) = self.names.get(name).and_then(|number| self.entries.get_mut(number)) {
            entry.claim = claim;
        }
    }
}

impl Manager {
    /// Waits for a device for `timeout` at most, and describes it. Blocks.
    pub fn wait_bdev<T>(
        &self,
        name: &str,
        timeout: Duration,
        describe: impl Fn(&Entry) -> T,
    ) -> Option<T> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(bdev) = self.model().bdevs.find(name) {
                return Some(describe(bdev));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }
}

impl Change<'_> {
    /// Adds a device; `entry` is the call that makes it again.
    ///
    /// # Errors
    /// When one of its names is taken or unusable.
    pub fn add_bdev(
        &mut self,
        bdev: Entry,
        entry: Option<catalogue::Entry>,
    ) -> Result<(), ManagerError> {
        let (name, key) = (bdev.name.clone(), bdev.key.clone());
        self.check_not_missing(&Key::new(&["bdev", &name]))?;
        if entry.is_some() {
            self.check_not_waiting(&name)?;
        }
        self.model_mut().bdevs.insert(bdev)?;
        if let (Some(key), Some(entry)) = (key, entry) {
            self.put(key, entry);
        }
        self.notify(EventKind::BdevRegister, &name);
        Ok(())
    }

    /// Claims a device for exclusive use.
    ///
    /// # Errors
    /// When there is no such device, or it is claimed already.
    pub fn claim_bdev(&mut self, name: &str, claim: Claim) -> Result<(), ManagerError> {
        let mut model = self.model_mut();
        let bdev = model.bdev(name)?;
        if let Some(other) = &bdev.claim {
            return Err(ManagerError::Claimed { name: name.to_owned(), by: other.to_string() });
        }
        if let (false, Some((node, lun))) = (claim.shares(), bdev.luns.first()) {
            let by = format!("LUN {lun} of {node}");
            return Err(ManagerError::Claimed { name: name.to_owned(), by });
        }
        model.bdevs.set_claim(name, Some(claim));
        Ok(())
    }

    /// Notes that a LUN shows a device.
    ///
    /// # Errors
    /// When there is no such device, or it has a user that does not share it.
    pub(super) fn use_bdev(&mut self, name: &str, lun: (String, u16)) -> Result<(), ManagerError> {
        let mut model = self.model_mut();
        let bdev = model.bdev(name)?;
        if let Some(other) = bdev.claim.as_ref().filter(|claim| !claim.shares()) {
            return Err(ManagerError::Claimed { name: name.to_owned(), by: other.to_string() });
        }
        model.bdevs.with_luns(name, |luns| luns.push(lun));
        Ok(())
    }

    /// Notes that a LUN does not show a device any more.
    pub(super) fn leave_bdev(&mut self, name: &str, lun: &(String, u16)) {
        self.model_mut().bdevs.with_luns(name, |luns| luns.retain(|other| other != lun));
    }

    /// Gives up a claim.
    pub fn release_bdev(&mut self, name: &str) {
        self.model_mut().bdevs.set_claim(name, None);
    }

    /// Removes a device, and before it everything that stands on it or shows it to hosts. As in SPDK, a
    /// device may always be removed.
    ///
    /// # Errors
    /// When there is none, or it does not become quiet.
    pub fn remove_bdev(&mut self, name: &str) -> Result<Entry, ManagerError> {
        self.take_bdev(name, true)
    }

    /// As [`Self::remove_bdev`], for a device that has disappeared by itself: the calls that made what
    /// stood on it are kept, and are made again when the device comes back.
    ///
    /// # Errors
    /// When there is none, or it does not become quiet.
    pub fn unplug_bdev(&mut self, name: &str) -> Result<Entry, ManagerError> {
        self.take_bdev(name, false)
    }

    fn take_bdev(&mut self, name: &str, forget: bool) -> Result<Entry, ManagerError> {
        let (name, above, claim, luns) = {
            let model = self.model();
            let bdev = model.bdev(name)?;
            bdev.details.before_removal();
            let above: Vec<String> =
                model.bdevs.above(&bdev.name).map(|entry| entry.name.clone()).collect();
            (bdev.name.clone(), above, bdev.claim.clone(), bdev.luns.clone())
        };
        let parse =
            |nqn: &str| Nqn::new(nqn).map_err(|error| ManagerError::Invalid(error.to_string()));
        match (claim, forget) {
            (Some(Claim::Namespace { target, nqn, nsid }), true) => {
                self.remove_namespace(&target, &parse(&nqn)?, nsid)?;
            }
            (Some(Claim::Namespace { target, nqn, nsid }), false) => {
                self.hide_waiting(&target, &parse(&nqn)?, nsid)?;
            }
            (Some(Claim::Pool { target, nqn }), true) => {
                self.remove_pool(&target, &parse(&nqn)?)?;
            }
            (Some(Claim::Pool { target, nqn }), false) => {
                self.hide_pool(&target, &parse(&nqn)?)?;
            }
            (Some(Claim::Disk { module, name }), forget) => self.end_disk(module, &name, forget)?,
            (Some(Claim::Bdev { .. }) | None, _) => {}
        }
        for (node, lun) in luns {
            match forget {
                true => self.remove_lun(&node, lun)?,
                false => self.hide_lun(&node, lun)?,
            }
        }
        if forget {
            self.remove_luns_waiting(|waited| waited == name);
            self.remove_waiting(|waited| waited == name);
            self.remove_disks_waiting(|waited| waited == name);
            self.forget_bdev_limits(&name);
        }
        for name in above {
            self.take_bdev(&name, forget)?;
        }
        let removed = self.model_mut().bdevs.remove(&name);
        let bdev = removed.ok_or_else(|| ManagerError::NoBdev(name.clone()))?;
        for base in &bdev.bases {
            self.release_bdev(base);
        }
        if let Some(key) = bdev.key.clone().filter(|_| forget) {
            self.remove(key);
        }
        self.notify(EventKind::BdevUnregister, &name);
        Ok(bdev)
    }
}
