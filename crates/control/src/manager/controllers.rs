//! NVMe controllers, remote ones and local drives: each of their namespaces is a device here, which comes
//! and goes with the namespace.

pub mod drive;
pub mod hotplug;
pub mod link;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use super::bdevs::{Details, Entry};
use super::catalogue::Key;
use super::keys::{ChapKeys, HeldPsk};
use super::threads::SharedManager;
use super::{Change, Manager, ManagerError, Model};
use crate::keyring::{Held, KeyRef};
use link::{Link, OpenFailure, Present};

/// SPDK's name of the module.
pub const MODULE: &str = "nvme";

/// How often the thread that follows a controller checks whether it is still attached, and its drive.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Controllers by name.
pub type Controllers = BTreeMap<String, Arc<Controller>>;

/// An attached controller.
pub struct Controller {
    /// Its name; its devices are called `NAMEn1`, `NAMEn2`...
    pub name: String,
    /// The connection or the drive.
    pub link: Link,
    /// Its entry in the catalogue.
    pub key: Key,
    /// The largest number of its namespaces that become devices.
    pub max_bdevs: usize,
    detached: AtomicBool,
    /// The secrets by which this host and the controller prove themselves.
    keys: Mutex<Option<ChapKeys>>,
    /// The key of its connections over TLS.
    psk: Mutex<Option<HeldPsk>>,
    /// Why namespaces are not devices although they exist, by NSID.
    unopened: Mutex<BTreeMap<u32, String>>,
}

impl Controller {
    /// A controller that has just been found.
    #[must_use]
    pub fn new(name: String, link: Link, key: Key, max_bdevs: usize) -> Arc<Self> {
        let (detached, unopened) = (AtomicBool::new(false), Mutex::default());
        let (keys, psk) = (Mutex::default(), Mutex::default());
        Arc::new(Self { name, link, key, max_bdevs, detached, keys, psk, unopened })
    }

    /// Notes which keys its link has.
    pub fn set_keys(&self, keys: Option<ChapKeys>) {
        *super::lock(&self.keys) = keys;
    }

    /// Notes which pre-shared key its connections have.
    pub fn set_psk(&self, psk: Option<HeldPsk>) {
        *super::lock(&self.psk) = psk;
    }

    /// Takes its keys away if this one, which was removed, is among them; gives whether it was. Its connections stay, as
    /// in SPDK, and no other is made.
    pub(super) fn withdraw(&self, key: &KeyRef) -> bool {
        let has = super::lock(&self.keys).as_ref().is_some_and(|keys| keys.has(key));
        if let (true, Link::Remote(remote)) = (has, &self.link) {
            remote.config().credentials.withdraw();
        }
        let psk = super::lock(&self.psk);
        let is_it = |held: &Held<_>| Arc::ptr_eq(held.key(), key);
        let of_key = psk.as_ref().filter(|psk| psk.key.as_ref().is_some_and(is_it));
        of_key.inspect(|psk| psk.store.withdraw()).is_some() || has
    }

    /// Ends the link and the thread that follows the controller.
    pub(super) fn end(&self) {
        self.detached.store(true, Ordering::Relaxed);
        self.link.end();
    }

    /// Why namespaces are not devices although they exist, by NSID.
    #[must_use]
    pub fn unopened(&self) -> BTreeMap<u32, String> {
        super::lock(&self.unopened).clone()
    }

    /// Notes why a namespace is not a device, and logs a reason that is new.
    fn note_unopened(&self, nsid: u32, reason: String) {
        let mut unopened = super::lock(&self.unopened);
        if unopened.get(&nsid) != Some(&reason) {
            tracing::warn!("{}n{nsid}: {reason}", self.name);
            unopened.insert(nsid, reason);
        }
    }
}

/// The namespace that a device stands for.
struct Attached {
    controller: Arc<Controller>,
    namespace: Present,
}

impl Details for Attached {
    fn driver_specific(&self) -> Value {
        let nsid = self.namespace.nsid;
        match &self.controller.link {
            Link::Remote(remote) => {
                let (paths, last) = (remote.paths(), remote.controller());
                let paths: Vec<Value> =
                    paths.iter().map(|path| link::describe_path(path, nsid, &last)).collect();
                let mut text = json!({ "nvme": paths });
                let (policy, selector) = link::policy_names(remote.multipath().policy);
                text["mp_policy"] = policy.into();
                if let Some(selector) = selector {
                    text["selector"] = selector.into();
                }
                text
            }
            Link::Drive(_) => {
                json!({ "nvme": [self.controller.link.describe(nsid)], "mp_policy": "active_passive" })
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Namespaces of a controller that are no devices yet, and devices whose namespace is gone.
#[derive(Default)]
struct Difference {
    come: Vec<Present>,
    gone: Vec<String>,
}

impl Difference {
    fn of(model: &Model, controller: &Arc<Controller>) -> Self {
        // Unknown now: namespaces are compared again when the controller is back.
        let Some(there) = controller.link.namespaces() else { return Self::default() };
        let mut here = Vec::new();
        let mut gone = Vec::new();
        for bdev in model.bdevs.iter() {
            if let Some(attached) = bdev.details.as_any().downcast_ref::<Attached>()
                && Arc::ptr_eq(&attached.controller, controller)
            {
                if there.contains(&attached.namespace) {
                    here.push(attached.namespace);
                } else {
                    gone.push(bdev.name.clone());
                }
            }
        }
        let come = there.into_iter().filter(|namespace| !here.contains(namespace)).collect();
        Self { come, gone }
    }

    fn is_none(&self) -> bool {
        self.come.is_empty() && self.gone.is_empty()
    }
}

impl Manager {
    /// Checks the sizes of the devices of a drive; remote controllers report changes of size themselves.
    fn rescan_devices(&self, controller: &Arc<Controller>) {
        if !matches!(controller.link, Link::Drive(_)) {
            return;
        }
        for name in self.devices_of(controller) {
            let device = self.model().bdevs.find(&name).map(|bdev| Arc::clone(&bdev.device));
            if let Some(Err(error)) = device.map(|device| device.rescan()) {
                tracing::warn!("device `{name}` is not what it was: {error}");
            }
        }
    }

    fn follow(&self, controller: &Arc<Controller>) {
        if Difference::of(&self.model(), controller).is_none() {
            // A namespace may have grown.
            self.rescan_devices(controller);
            if let Err(error) = self.sizes_changed() {
                tracing::warn!("hosts are not told of grown devices: {error}");
            }
            self.keep_generation();
            return;
        }
        let followed = self.change(|change| {
            // The controller may have been detached meanwhile.
            let attached = change.model().controllers.get(&controller.name).cloned();
            if attached.is_some_and(|attached| Arc::ptr_eq(&attached, controller)) {
                change.follow(controller, Opening::Lenient)?;
            }
            Ok::<_, ManagerError>(())
        });
        if let Err(error) = followed {
            tracing::warn!(
                "the devices of controller {} are not up to date: {error}",
                controller.name
            );
        }
    }
}

/// What happens when an existing namespace cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// The call fails: a client that attaches a drive gets all of it, or the reason why not.
    Strict,
    /// The other namespaces are opened, and this one is tried again later.
    Lenient,
}

impl Change<'_> {
    /// Makes the namespaces of a controller devices, and follows them; gives the names of the devices.
    ///
    /// # Errors
    /// When the name is taken, or a device cannot be made.
    pub fn attach(&mut self, controller: &Arc<Controller>) -> Result<Vec<String>, ManagerError> {
        if self.model().controllers.contains_key(&controller.name) {
            return Err(ManagerError::NameTaken(controller.name.clone()));
        }
        self.check_not_missing(&controller.key)?;
        let name = controller.name.clone();
        self.model_mut().controllers.insert(name.clone(), Arc::clone(controller));
        let followed = self.follow(controller, Opening::Strict).and_then(|names| {
            let manager = Arc::downgrade(&self.manager().threads.shared);
            let thread = std::thread::Builder::new().name(format!("nvme-{name}"));
            let watched = Arc::clone(controller);
            let spawned = thread.spawn(move || watch(&manager, &watched));
            spawned.map_err(|error| ManagerError::Invalid(format!("no thread: {error}")))?;
            Ok(names)
        });
        followed.inspect_err(|_| drop(self.detach(&name)))
    }

    /// Removes the devices of a controller and the controller itself; the caller then ends its link.
    ///
    /// # Errors
    /// When there is none of that name, or a device does not become quiet.
    pub fn detach(&mut self, name: &str) -> Result<Arc<Controller>, ManagerError> {
        let controller = self.take_controller(name, Self::remove_bdev)?;
        self.remove(controller.key.clone());
        Ok(controller)
    }

    /// As [`Self::detach`], for a controller that has disappeared by itself and may come back: what stood
    /// on its devices waits for them.
    ///
    /// # Errors
    /// As [`Self::detach`].
    pub(super) fn detach_gone(&mut self, name: &str) -> Result<(), ManagerError> {
        self.take_controller(name, Self::unplug_bdev).map(drop)
    }

    fn take_controller(
        &mut self,
        name: &str,
        take_bdev: impl Fn(&mut Self, &str) -> Result<Entry, ManagerError>,
    ) -> Result<Arc<Controller>, ManagerError> {
        let missing = || ManagerError::missing("controller", name);
        let controller = self.model().controllers.get(name).cloned().ok_or_else(missing)?;
        controller.detached.store(true, Ordering::Relaxed);
        let devices = devices_of(&self.model(), &controller);
        for name in devices {
            take_bdev(self, &name)?;
        }
        self.model_mut().controllers.remove(name);
        Ok(controller)
    }

    /// Brings the devices up to date; gives the names of new devices.
    fn follow(
        &mut self,
        controller: &Arc<Controller>,
        opening: Opening,
    ) -> Result<Vec<String>, ManagerError> {
        let Difference { come, gone } = Difference::of(&self.model(), controller);
        for name in gone {
            tracing::info!("device `{name}` is gone from its controller");
            self.unplug_bdev(&name)?;
        }
        let mut names = Vec::new();
        super::lock(&controller.unopened).retain(|nsid, _| come.iter().any(|it| it.nsid == *nsid));
        for namespace in come {
            let Present { nsid, .. } = namespace;
            let room = devices_of(&self.model(), controller).len() < controller.max_bdevs;
            if !room {
                tracing::warn!(
                    "controller {} has more namespaces than max_bdevs {}",
                    controller.name,
                    controller.max_bdevs
                );
                break;
            }
            match self.plug(controller, namespace) {
                Ok(name) => {
                    super::lock(&controller.unopened).remove(&nsid);
                    names.push(name);
                }
                // A namespace that another controller shows already is a device once: the others of this one
                // are devices nevertheless, as SPDK does it.
                Err(Unplugged::Manager(
                    error @ (ManagerError::NameTaken(_) | ManagerError::UuidTaken { .. }),
                )) if matches!(controller.link, Link::Remote(_)) => {
                    controller.note_unopened(nsid, error.to_string());
                }
                Err(Unplugged::Manager(error)) => return Err(error),
                Err(Unplugged::Open(OpenFailure::Drive(error))) if opening == Opening::Strict => {
                    return Err(error.into());
                }
                Err(Unplugged::Open(error)) => controller.note_unopened(nsid, error.to_string()),
            }
        }
        self.manager().sizes_changed()?;
        Ok(names)
    }

    fn plug(
        &mut self,
        controller: &Arc<Controller>,
        namespace: Present,
    ) -> Result<String, Unplugged> {
        let name = format!("{}n{}", controller.name, namespace.nsid);
        let identity = &self.manager().config().identity;
        let opened = controller.link.open(namespace.nsid, identity);
        let (device, uuid) = opened.map_err(Unplugged::Open)?;
        let details = Attached { controller: Arc::clone(controller), namespace };
        let bdev = Entry::with_uuid(&name, uuid, MODULE, "NVMe disk", device);
        self.add_bdev(bdev.described_by(details), None).map_err(Unplugged::Manager)?;
        self.arrived(&name);
        Ok(name)
    }
}

/// Why a namespace is not a device.
enum Unplugged {
    Open(OpenFailure),
    Manager(ManagerError),
}

/// The controller whose namespace a device is, and the namespace's number.
#[must_use]
pub fn namespace_of(bdev: &Entry) -> Option<(Arc<Controller>, u32)> {
    let attached = bdev.details.as_any().downcast_ref::<Attached>()?;
    Some((Arc::clone(&attached.controller), attached.namespace.nsid))
}

impl Manager {
    /// The names of the devices that are namespaces of a controller.
    #[must_use]
    pub fn devices_of(&self, controller: &Arc<Controller>) -> Vec<String> {
        devices_of(&self.model(), controller)
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

/// Follows a controller until it is detached or the manager is gone.
fn watch(manager: &Weak<SharedManager>, controller: &Arc<Controller>) {
    let (mut version, mut followed) = (0, 0);
    loop {
        version = controller.link.wait_change(version, FOLLOW_INTERVAL);
        let Some(shared) = manager.upgrade() else { return };
        if controller.detached.load(Ordering::Relaxed) {
            return;
        }
        // The manager is not shared yet, so nothing can be followed.
        let Some(weak) = shared.get() else { continue };
        let Some(manager) = weak.upgrade() else { return };
        // A namespace of a drive that another program had may be free now, or a name that was taken.
        let again = !super::lock(&controller.unopened).is_empty();
        if followed != version || again {
            manager.follow(controller);
            followed = version;
        }
    }
}
