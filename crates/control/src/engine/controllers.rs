//! Remote NVMe controllers: each of their namespaces is a device here, and comes and goes with it.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use raceline_bdev::Bdev as _;
use raceline_host::{NamespaceInfo, RemoteController, RemoteState};
use raceline_proto::nvme::NamespaceId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bdevs::{Details, Entry};
use super::ledger::Key;
use super::{Change, Engine, EngineError, Model};
use crate::methods;

/// SPDK's name of the module.
pub const MODULE: &str = "nvme";

/// How often the thread that follows a controller looks whether it is still wanted.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Controllers by name.
pub type Controllers = BTreeMap<String, Arc<Controller>>;

/// Where the threads that follow controllers find the engine, once it is shared.
pub(crate) type SharedEngine = OnceLock<Weak<Engine>>;

/// A controller that is attached.
pub struct Controller {
    /// Its name; its devices are `NAMEn1`, `NAMEn2`...
    pub name: String,
    /// The connection.
    pub remote: RemoteController,
    /// Its entry in the ledger.
    pub key: Key,
    /// Most namespaces that become devices.
    pub max_bdevs: usize,
    detached: AtomicBool,
}

impl Controller {
    /// A controller that has just been connected to.
    #[must_use]
    pub fn new(name: String, remote: RemoteController, key: Key, max_bdevs: usize) -> Arc<Self> {
        let detached = AtomicBool::new(false);
        Arc::new(Self { name, remote, key, max_bdevs, detached })
    }

    /// Ends the connection, and the thread that follows it.
    pub(super) fn end(&self) {
        self.detached.store(true, Ordering::Relaxed);
        self.remote.disconnect();
    }

    /// SPDK's word for how it is.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.remote.state() {
            RemoteState::Up => "enabled",
            RemoteState::Reconnecting => "resetting",
            RemoteState::Failed(_) => "failed",
        }
    }

    /// Its transport identifier as SPDK shows it.
    #[must_use]
    pub fn trid(&self) -> Value {
        let config = self.remote.config();
        json!({
            "trtype": "TCP",
            "adrfam": if config.address.is_ipv4() { "IPv4" } else { "IPv6" },
            "traddr": config.address.ip().to_string(),
            "trsvcid": config.address.port().to_string(),
            "subnqn": config.subnqn.as_str(),
        })
    }
}

/// What a device is a namespace of.
struct Attached {
    controller: Arc<Controller>,
    nsid: NamespaceId,
}

impl Details for Attached {
    fn driver_specific(&self) -> Value {
        let info = self.controller.remote.controller();
        let (major, minor) = (info.version >> 16, info.version >> 8 & 0xff);
        json!({
            "nvme": [{
                "trid": self.controller.trid(),
                "ctrlr_data": {
                    "cntlid": info.cntlid.0,
                    "vendor_id": format!("0x{:04x}", info.raw.vid.get()),
                    "model_number": info.model,
                    "serial_number": info.serial,
                    "firmware_revision": info.firmware,
                    "subnqn": info.subnqn.as_ref().map(|nqn| nqn.as_str()),
                },
                "vs": { "nvme_version": format!("{major}.{minor}") },
                "ns_data": { "id": self.nsid.0 },
            }],
            "mp_policy": "active_passive",
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What a controller has, and what of it is missing here or should not be here any more.
#[derive(Default)]
struct Difference {
    come: Vec<NamespaceInfo>,
    gone: Vec<String>,
}

impl Difference {
    fn of(model: &Model, controller: &Arc<Controller>) -> Self {
        let there = match controller.remote.state() {
            RemoteState::Up => controller.remote.namespaces(),
            // What is there will be seen when the controller is back.
            RemoteState::Reconnecting => return Self::default(),
            RemoteState::Failed(_) => [].into(),
        };
        let mut here = BTreeMap::new();
        for bdev in model.bdevs.iter() {
            if let Some(attached) = bdev.details.as_any().downcast_ref::<Attached>()
                && Arc::ptr_eq(&attached.controller, controller)
            {
                here.insert(attached.nsid.0, bdev);
            }
        }
        let come = there.iter().filter(|info| !here.contains_key(&info.nsid.0)).cloned().collect();
        let is_there = |nsid: &u32| there.iter().any(|info| info.nsid.0 == *nsid);
        let gone = here.iter().filter(|(nsid, _)| !is_there(nsid));
        Self { come, gone: gone.map(|(_, bdev)| bdev.name.clone()).collect() }
    }

    fn is_none(&self) -> bool {
        self.come.is_empty() && self.gone.is_empty()
    }
}

impl Engine {
    /// Lets the engine's own threads find it: they make devices come and go with what is attached.
    pub fn share(self: &Arc<Self>) {
        // A second call says the same.
        let _ = self.shared.set(Arc::downgrade(self));
    }

    fn follow(&self, controller: &Arc<Controller>) {
        if Difference::of(&self.model(), controller).is_none() {
            // One of them may have grown.
            if let Err(error) = self.sizes_changed() {
                tracing::warn!("hosts are not told of grown devices: {error}");
            }
            return;
        }
        let followed = self.change(|change| {
            // Detached meanwhile?
            let attached = change.model().controllers.get(&controller.name).cloned();
            if attached.is_some_and(|attached| Arc::ptr_eq(&attached, controller)) {
                change.follow(controller)?;
            }
            Ok::<_, EngineError>(())
        });
        if let Err(error) = followed {
            tracing::warn!(
                "the devices of controller {} are not up to date: {error}",
                controller.name
            );
        }
    }
}

impl Change<'_> {
    /// Makes the namespaces of a controller devices, and keeps them so; gives their names.
    ///
    /// # Errors
    /// When the name is taken, or a device cannot be made.
    pub fn attach(&mut self, controller: &Arc<Controller>) -> Result<Vec<String>, EngineError> {
        if self.model().controllers.contains_key(&controller.name) {
            return Err(EngineError::NameTaken(controller.name.clone()));
        }
        self.check_not_missing(&controller.key)?;
        let name = controller.name.clone();
        self.model_mut().controllers.insert(name.clone(), Arc::clone(controller));
        let followed = self.follow(controller).and_then(|names| {
            let engine = Arc::downgrade(&self.engine().shared);
            let thread = std::thread::Builder::new().name(format!("nvme-{name}"));
            let watched = Arc::clone(controller);
            let spawned = thread.spawn(move || watch(&engine, &watched));
            spawned.map_err(|error| EngineError::Invalid(format!("no thread: {error}")))?;
            Ok(names)
        });
        followed.inspect_err(|_| drop(self.detach(&name)))
    }

    /// Takes the devices of a controller away, and forgets it; the caller then disconnects it.
    ///
    /// # Errors
    /// When there is none of that name, or a device does not become quiet.
    pub fn detach(&mut self, name: &str) -> Result<Arc<Controller>, EngineError> {
        let missing = || EngineError::missing("controller", name);
        let controller = self.model().controllers.get(name).cloned().ok_or_else(missing)?;
        controller.detached.store(true, Ordering::Relaxed);
        let devices = devices_of(&self.model(), &controller);
        for name in devices {
            self.remove_bdev(&name)?;
        }
        self.model_mut().controllers.remove(name);
        self.remove(controller.key.clone());
        Ok(controller)
    }

    /// Brings the devices up to date; gives the names of those that came.
    fn follow(&mut self, controller: &Arc<Controller>) -> Result<Vec<String>, EngineError> {
        let Difference { come, gone } = Difference::of(&self.model(), controller);
        for name in gone {
            tracing::info!("device `{name}` is gone from its controller");
            self.unplug_bdev(&name)?;
        }
        let mut names = Vec::new();
        for info in come {
            let room = devices_of(&self.model(), controller).len() < controller.max_bdevs;
            if !room {
                tracing::warn!(
                    "controller {} has more namespaces than max_bdevs {}",
                    controller.name,
                    controller.max_bdevs
                );
                break;
            }
            match controller.remote.namespace(info.nsid) {
                Ok(namespace) => names.push(self.plug(controller, &info, namespace)?),
                Err(error) => tracing::warn!("{}n{}: {error}", controller.name, info.nsid),
            }
        }
        self.engine().sizes_changed()?;
        Ok(names)
    }

    fn plug(
        &mut self,
        controller: &Arc<Controller>,
        info: &NamespaceInfo,
        namespace: raceline_host::RemoteNamespace,
    ) -> Result<String, EngineError> {
        let name = format!("{}n{}", controller.name, info.nsid);
        let identity = &self.engine().config().identity;
        let uuid = match Uuid::from_bytes(namespace.info().uuid) {
            uuid if uuid.is_nil() => {
                let place = format!("{} {}", controller.remote.config().subnqn, info.nsid);
                identity.derive("remote namespace", place.as_bytes())
            }
            uuid => uuid,
        };
        let details = Attached { controller: Arc::clone(controller), nsid: info.nsid };
        let bdev = Entry::with_uuid(&name, uuid, MODULE, "NVMe disk", Arc::new(namespace));
        self.add_bdev(bdev.described_by(details), None)?;
        methods::bdev::arrived(self, &name);
        Ok(name)
    }
}

/// The names of the devices that are namespaces of a controller.
fn devices_of(model: &Model, controller: &Arc<Controller>) -> Vec<String> {
    let is_its = |bdev: &&Entry| {
        let attached = bdev.details.as_any().downcast_ref::<Attached>();
        attached.is_some_and(|attached| Arc::ptr_eq(&attached.controller, controller))
    };
    model.bdevs.iter().filter(is_its).map(|bdev| bdev.name.clone()).collect()
}

/// Follows a controller until it is detached or the engine is gone.
fn watch(engine: &Weak<SharedEngine>, controller: &Arc<Controller>) {
    let (mut seen, mut followed) = (0, 0);
    loop {
        seen = controller.remote.wait_change(seen, FOLLOW_INTERVAL);
        let Some(shared) = engine.upgrade() else { return };
        if controller.detached.load(Ordering::Relaxed) {
            return;
        }
        // Nobody shares it yet: nothing is followed until then.
        let Some(weak) = shared.get() else { continue };
        let Some(engine) = weak.upgrade() else { return };
        if followed != seen {
            engine.follow(controller);
            followed = seen;
        }
    }
}
