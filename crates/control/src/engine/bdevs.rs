//! Block devices by name: aliases, UUIDs, claims, and what stands on what.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use raceline_bdev::{Bdev as _, BdevInfo, DeviceStats, NamedBdev, SharedBdev};
use serde_json::Value;
use uuid::Uuid;

use super::EngineError;
use super::catalogue::Key;
use super::sampling::Sampling;

/// The longest name of a device in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Who uses a device so that nobody else may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A namespace.
    Namespace {
        /// Of this target,
        target: String,
        /// this subsystem,
        nqn: String,
        /// this number.
        nsid: u32,
    },
    /// Hosts of a subsystem make namespaces of it.
    Pool {
        /// Of this target,
        target: String,
        /// this subsystem.
        nqn: String,
    },
    /// Another device stands on it.
    Bdev {
        /// The module of that device.
        module: &'static str,
        /// Its name.
        name: String,
    },
}

impl Claim {
    /// Who claims, by SPDK's name of the module.
    #[must_use]
    pub fn module(&self) -> &'static str {
        match self {
            Self::Namespace { .. } | Self::Pool { .. } => "NVMe-oF Target",
            Self::Bdev { module, .. } => module,
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace { nqn, nsid, .. } => write!(f, "namespace {nsid} of {nqn}"),
            Self::Pool { nqn, .. } => write!(f, "the pool of {nqn}"),
            Self::Bdev { name, .. } => write!(f, "device `{name}`"),
        }
    }
}

/// What only devices of one kind have to say of themselves.
pub trait Details: Send + Sync {
    /// `driver_specific` of bdev_get_bdevs.
    fn driver_specific(&self) -> Value;

    /// The device is about to go: whatever it holds back must be let go, or it never is quiet.
    fn before_removal(&self) {}

    /// For the module that owns the device, to find its own type again.
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
    /// What it counts.
    pub stats: Arc<DeviceStats>,
    /// Looks at its queue depth, if somebody has asked for that.
    pub sampling: Option<Arc<Sampling>>,
    /// What its kind adds.
    pub details: Arc<dyn Details>,
    /// The devices that it stands on.
    pub bases: Vec<String>,
    /// Its entry in the catalogue; none if the entry of something else made it too.
    pub key: Option<Key>,
    /// Who uses it.
    pub claim: Option<Claim>,
}

impl Entry {
    /// A device with the identity that it has.
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

    /// A device with an identity of its own.
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
        }
    }

    /// The same with what its kind adds.
    #[must_use]
    pub fn described_by(self, details: impl Details + 'static) -> Self {
        Self { details: Arc::new(details), ..self }
    }

    /// The same on top of another device.
    #[must_use]
    pub fn standing_on(mut self, base: &str) -> Self {
        self.bases.push(base.to_owned());
        self
    }

    /// The same with its entry in the catalogue.
    #[must_use]
    pub fn kept_as(self, key: Key) -> Self {
        Self { key: Some(key), ..self }
    }

    /// What the device is and can do now.
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

    /// Whether a device could have this name.
    ///
    /// # Errors
    /// When the name is taken or unusable.
    pub fn check_name(&self, name: &str) -> Result<(), EngineError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(EngineError::BadName(name.escape_debug().to_string()));
        }
        if self.names.contains_key(name) {
            return Err(EngineError::NameTaken(name.to_owned()));
        }
        Ok(())
    }

    /// The first of `PREFIX0`, `PREFIX1`... that is free: SPDK's names for what has none.
    #[must_use]
    pub fn free_name(&self, prefix: &str) -> String {
        let mut names = (0u64..).map(|number| format!("{prefix}{number}"));
        names.find(|name| !self.names.contains_key(name)).unwrap_or_default()
    }

    pub(super) fn insert(&mut self, entry: Entry) -> Result<(), EngineError> {
        self.check_name(&entry.name)?;
        let uuid = entry.uuid.to_string();
        for name in entry.aliases.iter().chain([&uuid]) {
            if self.names.contains_key(name) {
                return Err(EngineError::NameTaken(name.clone()));
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

    pub(super) fn set_claim(&mut self, name: &str, claim: Option<Claim>) {
        if let Some(entry) = self.names.get(name).and_then(|number| self.entries.get_mut(number)) {
            entry.claim = claim;
        }
    }
}
