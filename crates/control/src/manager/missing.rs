//! What is configured but missing: devices that cannot be opened, controllers that do not answer.
//!
//! A start goes on without missing parts and what stands on them: these stay in the configuration, are
//! shown as missing, and are made when what they need has come. A thread retries until then.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use raceline_proto::nvme::Nqn;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use super::catalogue::{Entry, Key, Section};
use super::nvmf::ListenAddress;
use super::threads::End;
use super::{Change, Manager, ManagerError, Model, Phase, bdevs};
use crate::error::{RpcError, code};

/// Interval between attempts to make missing parts.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a controller may take to answer while others wait for it.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that controllers that do not answer may cost a start in total.
const START_BUDGET: Duration = Duration::from_secs(5);
/// Time limit for a probe of one address.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The method that connects to a controller.
const ATTACH: &str = "bdev_nvme_attach_controller";
/// The method that connects to an iSCSI target.
const LOG_IN: &str = "bdev_iscsi_create";
/// Methods that need something outside of this program, and the prefixes of their entries' keys.
const OUTSIDE: [(&str, &str); 4] = [
    ("bdev_aio_create", "bdev"),
    ("bdev_uring_create", "bdev"),
    (LOG_IN, "bdev"),
    (ATTACH, "bdev-nvme"),
];

/// How many missing devices may stand on each other.
const MAX_LEVELS: usize = 64;

/// The parts that are configured but missing.
pub type MissingParts = BTreeMap<Key, Missing>;

/// One part that is configured but missing.
#[derive(Clone, Debug)]
pub struct Missing {
    /// Its name: that of a device, or of a controller, whose devices have names of their own.
    pub name: String,
    /// The call that would make it.
    pub entry: Entry,
    /// The last reason given for its absence.
    pub reason: String,
}

impl Missing {
    /// Whether it is a controller.
    #[must_use]
    pub fn is_controller(&self) -> bool {
        self.entry.method == ATTACH
    }

    /// Whether this part would bring a device of that name.
    fn makes(&self, name: &str) -> bool {
        match self.is_controller() {
            true => numbered(name, 'n').is_some_and(|controller| controller == self.name),
            false => self.name == name,
        }
    }
}

/// The part before a letter and a number: `Nvme0` of `Nvme0n1`.
pub(crate) fn numbered(name: &str, letter: char) -> Option<&str> {
    let (before, number) = name.rsplit_once(letter)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(before)
}

impl Model {
    /// The device of that name, alias or UUID.
    ///
    /// # Errors
    /// When there is no such device; the error says why, if it is configured and missing.
    pub fn bdev(&self, name: &str) -> Result<&bdevs::Entry, ManagerError> {
        self.bdevs.find(name).ok_or_else(|| match self.why_missing(name) {
            Some(reason) => ManagerError::Away { name: name.to_owned(), reason },
            None => ManagerError::NoBdev(name.to_owned()),
        })
    }

    /// What is missing, and what hosts and initiators lack therefore, with the reasons. The names are the same in every
    /// process with this configuration.
    pub(crate) fn absent(&self) -> BTreeMap<String, String> {
        let part = |(key, missing): (&Key, &Missing)| (format!("{key:?}"), missing.reason.clone());
        let mut absent: BTreeMap<String, String> = self.missing.iter().map(part).collect();
        let mut note = |name: String, missing: &Option<String>| {
            absent.extend(missing.clone().map(|reason| (name, reason)));
        };
        let targets = self.nvmf.targets.iter();
        let subsystems = targets.flat_map(|(target, found)| {
            found.subsystems.iter().map(move |(nqn, subsystem)| (target, nqn, subsystem))
        });
        for (target, nqn, subsystem) in subsystems {
            for (nsid, namespace) in &subsystem.namespaces {
                note(format!("namespace {nsid} of {nqn} of {target}"), &namespace.missing);
            }
            if let Some(pool) = &subsystem.pool {
                note(format!("the pool of {nqn} of {target}"), &pool.missing);
            }
        }
        for (node, found) in &self.iscsi.nodes {
            for (number, lun) in &found.luns {
                note(format!("LUN {number} of {node}"), &lun.missing);
            }
        }
        absent
    }

    /// Why a configured device is missing; `None` if the configuration makes no such device.
    #[must_use]
    pub fn why_missing(&self, name: &str) -> Option<String> {
        if self.bdevs.find(name).is_some() {
            return None;
        }
        let (mut bases, mut device) = (Vec::new(), name);
        let reason = loop {
            if let Some(reason) = self.why_missing_itself(device) {
                break reason;
            }
            let base = self.base_of(device)?;
            if bases.len() == MAX_LEVELS {
                return Some(format!("it stands on more than {MAX_LEVELS} others, or on itself"));
            }
            let is_known = self.why_missing_itself(base).is_some() || self.base_of(base).is_some();
            if self.bdevs.find(base).is_some() || !is_known {
                break "it has not been examined, or could not be made: see the log".to_owned();
            }
            bases.push(base);
            device = base;
        };
        let bases: String = bases.iter().map(|base| format!("it stands on `{base}`: ")).collect();
        Some(bases + &reason)
    }

    /// Why a device that stands on no other is missing.
    fn why_missing_itself(&self, name: &str) -> Option<String> {
        if let Some(missing) = self.missing.values().find(|missing| missing.makes(name)) {
            return Some(missing.reason.clone());
        }
        let controller = numbered(name, 'n')?;
        if self.controllers.contains_key(controller) {
            return Some(format!("controller {controller} has no such namespace now"));
        }
        self.why_not_plugged(controller).or_else(|| self.why_not_discovered(controller))
    }

    /// The device on which a configured device stands; an empty name if it stands on none.
    fn base_of(&self, name: &str) -> Option<&str> {
        let split = numbered(name, 'p').map(|base| Key::new(&["bdev", base, "split"]));
        let keys = [Some(Key::new(&["bdev", name])), split];
        let entry = keys.iter().flatten().find_map(|key| self.catalogue.get(key))?;
        Some(entry.base_name().unwrap_or_default())
    }

    /// Whether a device for which `is_it` is true is this one or stands below it, present or waiting.
    #[must_use]
    pub fn is_below(&self, name: &str, is_it: impl Fn(&str) -> bool) -> bool {
        let bases = std::iter::successors(Some(name), |base| self.base_of(base));
        bases.take(MAX_LEVELS).any(is_it)
    }
}

impl Manager {
    /// Makes a part of the configuration during the start. A part that needs something outside that is
    /// absent is noted as missing instead.
    ///
    /// # Errors
    /// When it fails for any other reason.
    pub(crate) fn make_or_miss(
        &self,
        method: &str,
        params: Option<&Value>,
    ) -> Result<(), RpcError> {
        let methods = &*self.replaying.methods;
        let name = methods.current_name(method).unwrap_or(method);
        let late = matches!(name, ATTACH | LOG_IN) && self.replaying.waited() >= START_BUDGET;
        let began = Instant::now();
        let failed = if late {
            let detail = "not tried yet: others have taken too long";
            methods.check(method, params)?;
            RpcError::errno(libc::EAGAIN).because(detail)
        } else {
            match methods.call(self, method, params) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            }
        };
        self.replaying.note_waited(began.elapsed());
        let part = OUTSIDE.iter().find(|(outside, _)| *outside == name);
        let named = params.and_then(|params| params["name"].as_str());
        // Wrong parameters are wrong with any device.
        let was_right = self.replaying.is_restoring();
        let is_wrong =
            failed.code == code::INVALID_PARAMS || (failed.code == -libc::EINVAL && !was_right);
        let (Some((_, prefix)), Some(named), false) = (part, named, is_wrong) else {
            return Err(failed);
        };
        let section = Section::Bdev;
        let entry =
            Entry { section, method: name.to_owned(), params: params.cloned().unwrap_or_default() };
        let reason = failed.data.clone().unwrap_or_else(|| failed.to_string());
        let missing = Missing { name: named.to_owned(), entry: entry.clone(), reason };
        let what = if missing.is_controller() { "controller" } else { "device" };
        tracing::warn!(
            "{what} `{named}` is missing, and all that stands on it; the rest is served, and it is \
             tried again: {}",
            missing.reason
        );
        let key = Key::new(&[prefix, named]);
        self.change(|change| {
            change.put(key.clone(), entry);
            change.model_mut().missing.insert(key, missing);
            Ok(())
        })
    }

    /// Retries missing parts until none is left, or the manager ends.
    pub(super) fn follow_missing(&self) {
        let Some(manager) = self.threads.shared.get().cloned() else { return };
        if self.model().missing.is_empty() {
            return;
        }
        let end = Arc::clone(&self.threads.end);
        if let Err(error) = self.threads.spawn("missing", move || follow(&manager, &end)) {
            tracing::error!("what is missing is not tried again: no thread: {error}");
        }
    }

    fn try_again(&self, key: &Key, missing: &Missing) {
        let made = self.try_to_make(key, missing);
        let done = self.change(|change| {
            let mut model = change.model_mut();
            match made {
                Ok(()) => drop(model.missing.remove(key)),
                Err(reason) => {
                    if let Some(missing) = model.missing.get_mut(key) {
                        missing.reason = reason;
                    }
                    return Ok(());
                }
            }
            tracing::info!("`{}` has come", missing.name);
            Ok::<_, ManagerError>(())
        });
        if let Err(error) = done {
            tracing::warn!("`{}`: {error}", missing.name);
        }
    }

    fn try_to_make(&self, key: &Key, missing: &Missing) -> Result<(), String> {
        if let Some(address) = missing.is_controller().then(|| address(&missing.entry)).flatten() {
            // A probe fails sooner than the call would.
            let source = missing.entry.params["hostaddr"].as_str();
            let probe = probe(address, source.and_then(|source| source.parse().ok()));
            probe.map_err(|error| format!("cannot connect to {address}: {error}"))?;
        }
        let Entry { method, params, .. } = &missing.entry;
        let call = || self.replaying.methods.call(self, method, Some(params));
        let called = self.replaying.come(key, call);
        called.map_err(|error| error.data.unwrap_or_else(|| error.message.into_owned()))
    }
}

fn address(entry: &Entry) -> Option<SocketAddr> {
    let text = |name: &str| entry.params[name].as_str();
    let (traddr, trsvcid) = (text("traddr")?, text("trsvcid"));
    ListenAddress::parse(text("trtype")?, None, traddr, trsvcid).ok()?.socket().ok()
}

/// Connects as the controller's host would, and closes the connection.
fn probe(address: SocketAddr, source: Option<IpAddr>) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(source) = source {
        let bound = socket.bind(&SocketAddr::new(source, 0).into());
        bound.map_err(|error| {
            io::Error::new(error.kind(), format!("from the source address {source}: {error}"))
        })?;
    }
    socket.connect_timeout(&address.into(), PROBE_TIMEOUT)
}

fn follow(manager: &Weak<Manager>, end: &End) {
    while !end.wait(RETRY_INTERVAL) {
        let Some(manager) = manager.upgrade() else { return };
        let missing = manager.model().missing.clone();
        if missing.is_empty() {
            return;
        }
        for (key, missing) in &missing {
            if end.has_come() {
                return;
            }
            // The part may have been deleted meanwhile.
            if manager.model().missing.contains_key(key) {
                manager.try_again(key, missing);
            }
        }
    }
}

impl Change<'_> {
    /// Checks whether an object may be made under this key: not if it is configured and missing, unless it
    /// is the missing part that is being made now.
    ///
    /// # Errors
    /// When it is missing.
    pub fn check_not_missing(&self, key: &Key) -> Result<(), ManagerError> {
        let comes = self.manager().replaying.is_coming(key);
        match self.model().missing.get(key) {
            Some(missing) if !comes => Err(ManagerError::NameTaken(missing.name.clone())),
            _ => Ok(()),
        }
    }

    /// Checks whether a new device may have this name: not if a configured device of this name waits for
    /// another one, as it would lose its place in the configuration.
    ///
    /// # Errors
    /// When such a device waits.
    pub(super) fn check_not_waiting(&self, name: &str) -> Result<(), ManagerError> {
        let model = self.model();
        match model.catalogue.get(&Key::new(&["bdev", name])).and_then(Entry::base_name) {
            Some(_) => Err(ManagerError::NameTaken(name.to_owned())),
            None => Ok(()),
        }
    }

    /// Whether an object may be made before the device on which it stands is there.
    #[must_use]
    pub(super) fn may_wait(&self) -> bool {
        self.manager().replaying.is_restoring() || self.manager().phase() != Phase::Runtime
    }

    /// Forgets a missing part, and what would be shown of it to hosts; gives whether it was missing.
    pub fn forget_missing(&mut self, key: &Key) -> bool {
        let Some(missing) = self.model_mut().missing.remove(key) else { return false };
        self.remove(key.clone());
        self.remove_waiting(|name| missing.makes(name));
        self.remove_luns_waiting(|name| missing.makes(name));
        self.remove_disks_waiting(|name| missing.makes(name));
        true
    }

    /// Removes namespaces and pools that wait for a device.
    pub(super) fn remove_waiting(&mut self, is_gone: impl Fn(&str) -> bool) {
        for (target, nqn, part) in self.waiting(&is_gone) {
            let removed = match part {
                Waiting::Namespace(nsid) => self.remove_namespace(&target, &nqn, nsid),
                Waiting::Pool => self.remove_pool(&target, &nqn),
            };
            // The target has nothing of it.
            debug_assert!(removed.is_ok());
        }
    }

    /// A device has come: shows to hosts what has waited for it, and makes the devices that stand on it.
    pub fn arrived(&mut self, name: &str) {
        self.show_arrived(name);
        self.show_waiting_luns(name);
        self.show_waiting_disks(name);
        let methods = Arc::clone(&self.manager().replaying.methods);
        methods.examine(self, name);
    }

    fn show_arrived(&mut self, name: &str) {
        if self.waiting(|_| true).is_empty() {
            // Every device that comes asks this: the flag spares the next one the search.
            self.model_mut().nvmf.waits = false;
            return;
        }
        for (target, nqn, part) in self.waiting(|waited| waited == name) {
            let made = match part {
                Waiting::Namespace(nsid) => self.show_waiting(&target, &nqn, nsid),
                Waiting::Pool => self.show_waiting_pool(&target, &nqn),
            };
            match made {
                Ok(()) => tracing::info!("{part} of {nqn} is there: `{name}` has come"),
                Err(error) => tracing::warn!("{part} of {nqn} cannot be made: {error}"),
            }
        }
    }

    fn waiting(&self, is_it: impl Fn(&str) -> bool) -> Vec<(String, Nqn, Waiting)> {
        let model = self.model();
        if !model.nvmf.waits {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (target, exported) in &model.nvmf.targets {
            for (nqn, subsystem) in &exported.subsystems {
                let namespaces = subsystem.namespaces.iter();
                let waiting =
                    namespaces.filter(|(_, ns)| ns.missing.is_some() && is_it(&ns.bdev_name));
                found.extend(waiting.map(|(nsid, _)| (target, nqn, Waiting::Namespace(*nsid))));
                let pool = subsystem.pool.iter();
                let waiting = pool.filter(|pool| pool.missing.is_some() && is_it(&pool.bdev_name));
                found.extend(waiting.map(|_| (target, nqn, Waiting::Pool)));
            }
        }
        found.into_iter().map(|(target, nqn, part)| (target.clone(), nqn.clone(), part)).collect()
    }
}

/// A part that waits for a device.
#[derive(Clone, Copy)]
enum Waiting {
    Namespace(u32),
    Pool,
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Namespace(nsid) => write!(f, "namespace {nsid}"),
            Self::Pool => f.write_str("the pool"),
        }
    }
}
