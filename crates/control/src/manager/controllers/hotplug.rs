//! Watching for local drives that are plugged in: each becomes a controller, and goes with its drive.
//!
//! No drive is taken that could be in use. A drive that is there when the watching begins is never taken,
//! whatever happens to it later: the system's own drive is one of them. A drive that appears is taken whole
//! or not at all, exclusively, and not if it holds data in a format that this machine knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use raceline_bdev::{Drive, Drives, IoPath, PciAddress};
use serde::{Deserialize, Serialize};

use super::Controller;
use super::drive::LocalDrive;
use super::link::Link;
use crate::manager::catalogue::{Entry, Key, Section};
use crate::manager::options::option_key;
use crate::manager::threads::SharedManager;
use crate::manager::{Change, Manager, ManagerError, Model, Phase};

/// The method that turns the watching on and off.
pub const METHOD: &str = "bdev_nvme_set_hotplug";
/// SPDK's prefix for the controllers; a number from 0 follows it.
const NAME: &str = "HotInNvme";
/// Namespaces of a drive that become devices, at most.
const MAX_BDEVS: usize = 128;
/// The largest number of drives that get a number.
pub const MAX_DRIVES: usize = 1024;

/// SPDK's period, for which 0 stands, and SPDK's longest period.
const DEFAULT_PERIOD: Duration = Duration::from_millis(100);
const MAX_PERIOD: Duration = Duration::from_secs(10);
/// The shortest period: each look reads about ten small files for each drive.
const MIN_PERIOD: Duration = Duration::from_millis(10);
/// Interval between looks for taken drives while no new drives are wanted.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// How long a drive must have been present unchanged before it is taken: programs that mount a newly
/// plugged drive, or assemble an array from it, come first.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Interval between attempts to take a numbered drive that cannot be opened.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The options, in the form in which the call that makes them again carries them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotplugOptions {
    /// New drives are taken.
    pub enable: bool,
    /// How often the watching looks for drives.
    #[serde(default)]
    pub period_us: u64,
    /// Serial numbers of the drives that have been taken: number `k` is `HotInNvmeK`. So a drive becomes
    /// the same controller when it is plugged in again, and after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// Serial numbers of drives that a client has detached: they are not taken again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub detached: BTreeSet<String>,
}

impl HotplugOptions {
    /// The same options with a possible period, as SPDK reports it.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let wanted = match self.period_us {
            0 => DEFAULT_PERIOD,
            period_us => Duration::from_micros(period_us).clamp(MIN_PERIOD, MAX_PERIOD),
        };
        self.period_us = u64::try_from(wanted.as_micros()).unwrap_or(u64::MAX);
        self
    }

    fn number_of(&self, serial: &str) -> Option<usize> {
        self.drives.iter().position(|known| known == serial)
    }
}

/// The watching, one for each manager.
#[derive(Default)]
pub struct Hotplug {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    options: HotplugOptions,
    /// The controllers of present drives, by number.
    attached: BTreeMap<usize, Arc<Controller>>,
    /// Why numbered drives are not attached, and when they are tried again.
    problems: BTreeMap<usize, (String, Instant)>,
    /// Addresses that had a drive when the watching began, until the drive is pulled out. The drives'
    /// serial numbers may not be known yet.
    occupied: BTreeSet<PciAddress>,
    /// Serial numbers of drives that were present when the watching began.
    found: BTreeSet<String>,
    /// Drives that have appeared and are not taken yet, as they were first seen.
    settling: BTreeMap<PciAddress, (Drive, Instant)>,
    /// Addresses of drives that have appeared and could not be taken, until the drives are pulled out.
    refused: BTreeSet<PciAddress>,
    is_running: bool,
    is_ended: bool,
}

impl Hotplug {
    fn lock(&self) -> MutexGuard<'_, State> {
        crate::manager::lock(&self.state)
    }

    /// Ends the thread.
    pub(in crate::manager) fn end(&self) {
        self.lock().is_ended = true;
        self.changed.notify_all();
    }

    /// Waits for the next look; gives whether there is one.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        let options = &state.options;
        let interval = match options.enable {
            true => Duration::from_micros(options.period_us),
            false => FOLLOW_INTERVAL,
        };
        let before = options.clone();
        let waits = |state: &mut State| !state.is_ended && state.options == before;
        state = match self.changed.wait_timeout_while(state, interval, waits) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        let goes_on = !state.is_ended && (state.options.enable || !state.options.drives.is_empty());
        state.is_running = goes_on;
        goes_on
    }
}

impl State {
    /// Begins the watching: present drives are left alone, except drives that have a number.
    fn begin(&mut self, snapshot: &Snapshot) {
        self.settling.clear();
        self.occupied = snapshot.addresses.clone();
        self.note_found(&snapshot.drives);
    }

    /// Notes the serial numbers of drives that were present from the beginning.
    fn note_found(&mut self, drives: &[Drive]) {
        for drive in drives.iter().filter(|drive| self.occupied.contains(&drive.address)) {
            if self.options.number_of(&drive.serial).is_none() {
                self.found.insert(drive.serial.clone());
            }
        }
    }

    /// Compares with the last look: which drives were plugged in and which have gone. `others` are drives
    /// that a client has attached, or that are configured.
    fn look(&mut self, snapshot: &Snapshot, others: &BTreeSet<String>, now: Instant) -> Looked {
        let Snapshot { addresses, drives } = snapshot;
        let mut looked = Looked::default();
        self.settling.retain(|address, _| addresses.contains(address));
        self.refused.retain(|address| addresses.contains(address));
        self.occupied.retain(|address| addresses.contains(address));
        self.note_found(drives);
        for (number, controller) in &self.attached {
            let Link::Drive(local) = &controller.link else { continue };
            let stays = drives
                .iter()
                .any(|drive| drive.address == local.address() && drive.serial == local.serial());
            if !stays {
                looked.gone.push(*number);
            }
        }
        for drive in drives {
            let serial = &drive.serial;
            if others.contains(serial) || self.options.detached.contains(serial) {
                self.settling.remove(&drive.address);
                continue;
            }
            match self.options.number_of(serial) {
                Some(number) if self.attached.contains_key(&number) => {}
                Some(number) => {
                    let due = self.problems.get(&number).is_none_or(|(_, again)| *again <= now);
                    if due && drive.state == "live" {
                        looked.come.push((number, drive.clone()));
                    }
                }
                None if self.is_new(drive, now) => looked.new.push(drive.clone()),
                None => {}
            }
        }
        looked
    }

    /// Whether a drive without a number has appeared, and has been present for `SETTLE_TIME`.
    fn is_new(&mut self, drive: &Drive, now: Instant) -> bool {
        let left = !self.options.enable
            || self.found.contains(&drive.serial)
            || self.refused.contains(&drive.address);
        if left {
            return false;
        }
        let first = self.settling.entry(drive.address);
        let (known, since) = first.or_insert_with(|| (drive.clone(), now));
        if known != drive {
            (*known, *since) = (drive.clone(), now);
        }
        drive.state == "live" && now.saturating_duration_since(*since) >= SETTLE_TIME
    }
}

/// The drives at one moment.
struct Snapshot {
    /// Addresses that have a drive.
    addresses: BTreeSet<PciAddress>,
    /// Drives that the kernel's driver has started.
    drives: Vec<Drive>,
}

impl Snapshot {
    fn now(drives: &Drives) -> Self {
        let addresses: BTreeSet<PciAddress> = drives.addresses().into_iter().collect();
        let drives = addresses.iter().filter_map(|address| drives.find(*address).ok()).collect();
        Self { addresses, drives }
    }
}

/// What is to be done after a look.
#[derive(Default)]
struct Looked {
    /// Numbers of controllers whose drives have gone.
    gone: Vec<usize>,
    /// Drives that have appeared and have a number.
    come: Vec<(usize, Drive)>,
    /// Drives that have appeared and have no number yet.
    new: Vec<Drive>,
}

fn name_of(number: usize) -> String {
    format!("{NAME}{number}")
}

fn number_in(controller: &str) -> Option<usize> {
    let digits = controller.strip_prefix(NAME)?;
    digits.parse().ok().filter(|number: &usize| number.to_string() == digits)
}

impl Model {
    /// Why a device is missing whose drive has been taken before.
    pub(in crate::manager) fn why_not_plugged(&self, controller: &str) -> Option<String> {
        let number = number_in(controller)?;
        let state = self.hotplug.lock();
        let serial = state.options.drives.get(number)?;
        Some(match state.problems.get(&number) {
            Some((problem, _)) => problem.clone(),
            None if state.options.detached.contains(serial) => {
                format!("the drive with the serial number `{serial}` was detached")
            }
            None => format!("the drive with the serial number `{serial}` is not plugged in"),
        })
    }

    /// Serial numbers of drives that a client has attached, or that are configured and missing.
    fn drives_of_clients(&self) -> BTreeSet<String> {
        let is_hot = |controller: &Controller| controller.key == key_of(&controller.name);
        let attached = self.controllers.values().filter(|controller| !is_hot(controller));
        let attached = attached.filter_map(|controller| match &controller.link {
            Link::Drive(drive) => Some(drive.serial().to_owned()),
            Link::Remote(_) => None,
        });
        let serial = |entry: &Entry| Some(entry.params["serial"].as_str()?.to_owned());
        let missing = self.missing.values().filter_map(|missing| serial(&missing.entry));
        attached.chain(missing).collect()
    }

    /// Addresses of drives that are configured, missing, and not known by a serial number.
    fn addresses_of_clients(&self) -> BTreeSet<PciAddress> {
        let address = |entry: &Entry| entry.params["traddr"].as_str()?.parse().ok();
        let unknown =
            self.missing.values().filter(|missing| missing.entry.params["serial"].is_null());
        unknown.filter_map(|missing| address(&missing.entry)).collect()
    }
}

fn key_of(name: &str) -> Key {
    Key::new(&["bdev-nvme-hotplug", name])
}

impl Manager {
    /// How it is configured.
    #[must_use]
    pub fn hotplug_options(&self) -> HotplugOptions {
        self.model().hotplug.lock().options.clone()
    }
}

impl Change<'_> {
    /// Turns the watching on or off. Drives that are present when it is turned on are left alone, except
    /// drives that have a number.
    ///
    /// # Errors
    /// When drives would change their numbers, or no thread can be started.
    pub fn set_hotplug(&mut self, options: HotplugOptions) -> Result<(), ManagerError> {
        let hotplug = Arc::clone(&self.model().hotplug);
        let snapshot = options.enable.then(|| Snapshot::now(&self.manager().config().drives));
        let mut state = hotplug.lock();
        // A drive keeps its number, and a detached drive stays detached, whatever the call says.
        let mut options = options.bounded();
        if state.options.drives.starts_with(&options.drives) {
            options.drives.clone_from(&state.options.drives);
        } else if !options.drives.starts_with(&state.options.drives) {
            let known = state.options.drives.join(", ");
            let text = format!("drives have numbers already, in this order: {known}");
            return Err(ManagerError::Invalid(text));
        }
        options.detached.extend(state.options.detached.iter().cloned());
        let needs_thread = (options.enable || !options.drives.is_empty()) && !state.is_running;
        if needs_thread {
            let threads = &self.manager().threads;
            let (manager, watched) = (Arc::downgrade(&threads.shared), Arc::clone(&hotplug));
            let spawned = threads.spawn("nvme-hotplug", move || watch(&manager, &watched));
            spawned.map_err(|error| ManagerError::Invalid(format!("no thread: {error}")))?;
            state.is_running = true;
        }
        let was_enabled = std::mem::replace(&mut state.options, options).enable;
        if let (Some(snapshot), false) = (snapshot, was_enabled) {
            state.begin(&snapshot);
            let count = state.found.len();
            tracing::info!(
                "drives that are plugged in are attached; {count} that are there are not"
            );
        }
        drop(state);
        hotplug.changed.notify_all();
        self.keep_hotplug()
    }

    /// Notes that a client has detached a controller: if it is a drive, it is not taken again.
    ///
    /// # Errors
    /// Never, except for bugs of this program.
    pub fn dismiss_drive(&mut self, controller: &Controller) -> Result<(), ManagerError> {
        let Link::Drive(drive) = &controller.link else { return Ok(()) };
        let hotplug = Arc::clone(&self.model().hotplug);
        let mut state = hotplug.lock();
        state.attached.retain(|_, attached| !std::ptr::eq(&**attached, controller));
        if !state.options.enable && state.options.number_of(drive.serial()).is_none() {
            return Ok(());
        }
        state.options.detached.insert(drive.serial().to_owned());
        drop(state);
        self.keep_hotplug()
    }

    /// Writes down the options.
    fn keep_hotplug(&mut self) -> Result<(), ManagerError> {
        let options = self.model().hotplug.lock().options.clone();
        self.put(option_key(METHOD), Entry::new(Section::Bdev, METHOD, &options)?);
        Ok(())
    }
}

/// Looks for drives until the watching is turned off, or the manager is gone.
fn watch(manager: &Weak<SharedManager>, hotplug: &Arc<Hotplug>) {
    while hotplug.wait() {
        let Some(shared) = manager.upgrade() else { return };
        // The manager is not shared yet, so nothing can be followed.
        let Some(weak) = shared.get() else { continue };
        let Some(manager) = weak.upgrade() else { return };
        if manager.phase() == Phase::Runtime && !manager.is_ending() {
            manager.look_for_drives(hotplug);
        }
    }
}

impl Manager {
    fn look_for_drives(&self, hotplug: &Hotplug) {
        let mut snapshot = Snapshot::now(&self.config().drives);
        let (others, addresses) = {
            let model = self.model();
            (model.drives_of_clients(), model.addresses_of_clients())
        };
        snapshot.drives.retain(|drive| !addresses.contains(&drive.address));
        let Looked { gone, come, new } = hotplug.lock().look(&snapshot, &others, Instant::now());
        gone.into_iter().for_each(|number| self.let_go(hotplug, number));
        for (number, drive) in come {
            if self.is_ending() {
                return;
            }
            let taken = self.take_drive(hotplug, number, &drive);
            let mut state = hotplug.lock();
            let Err(problem) = taken else { continue };
            let again = Instant::now() + RETRY_INTERVAL;
            let before = state.problems.insert(number, (problem.clone(), again));
            if before.is_none_or(|(before, _)| before != problem) {
                tracing::warn!("controller {} is not attached: {problem}", name_of(number));
            }
        }
        for drive in new {
            if self.is_ending() {
                return;
            }
            if let Err(reason) = self.take_new_drive(hotplug, &drive) {
                tracing::warn!(
                    "the drive at {} (serial number `{}`) was plugged in, and is left alone: {reason}; \
                     bdev_nvme_attach_controller attaches it",
                    drive.address,
                    drive.serial
                );
                hotplug.lock().refused.insert(drive.address);
            }
        }
    }

    /// The drive of a controller has gone: removes the controller; what stands on its devices waits.
    fn let_go(&self, hotplug: &Hotplug, number: usize) {
        let Some(controller) = hotplug.lock().attached.get(&number).cloned() else { return };
        controller.link.end();
        let gone = self.change(|change| {
            let attached = change.model().controllers.get(&controller.name).cloned();
            if attached.is_some_and(|attached| Arc::ptr_eq(&attached, &controller)) {
                change.detach_gone(&controller.name)?;
            }
            hotplug.lock().attached.remove(&number);
            Ok::<_, ManagerError>(())
        });
        match gone {
            Ok(()) => tracing::info!("controller {} is gone with its drive", controller.name),
            Err(error) => tracing::warn!("controller {} does not go: {error}", controller.name),
        }
    }

    /// Gives a drive that has just appeared a number, if there is no reason against it.
    fn take_new_drive(&self, hotplug: &Hotplug, drive: &Drive) -> Result<(), String> {
        if drive.serial.is_empty() {
            return Err("it has no serial number".to_owned());
        }
        if drive.namespaces.iter().all(|namespace| namespace.block.is_none()) {
            return Err("it has no namespace that can be used".to_owned());
        }
        if let Some(contents) = self.config().drives.contents(drive) {
            return Err(contents);
        }
        let number = hotplug.lock().options.drives.len();
        if number >= MAX_DRIVES {
            return Err(format!("{MAX_DRIVES} drives have been attached so"));
        }
        self.take_drive(hotplug, number, drive)
    }

    /// Attaches a drive under its number; a new number is written down as well.
    fn take_drive(&self, hotplug: &Hotplug, number: usize, drive: &Drive) -> Result<(), String> {
        let drives = &self.config().drives;
        let local = LocalDrive::find(drives, drive.address, Some(&drive.serial), IoPath::Block);
        let link = Link::Drive(Box::new(local.map_err(|error| error.to_string())?));
        let name = name_of(number);
        let controller = Controller::new(name.clone(), link, key_of(&name), MAX_BDEVS);
        let taken = self.change(|change| {
            // The watching may have been turned off, or the drive detached, meanwhile.
            let wanted = {
                let state = hotplug.lock();
                let known = state.options.number_of(&drive.serial) == Some(number);
                let is_next = state.options.enable && state.options.drives.len() == number;
                (known || is_next) && !state.options.detached.contains(&drive.serial)
            };
            if !wanted {
                return Err(ManagerError::Invalid("it is not wanted any more".to_owned()));
            }
            let names = change.attach(&controller)?;
            let mut state = hotplug.lock();
            state.attached.insert(number, Arc::clone(&controller));
            state.problems.remove(&number);
            state.settling.remove(&drive.address);
            let is_new = state.options.drives.len() == number;
            if is_new {
                state.options.drives.push(drive.serial.clone());
            }
            drop(state);
            if is_new {
                change.keep_hotplug()?;
            }
            let (address, names) = (drive.address, names.join(", "));
            tracing::info!("the drive at {address} was plugged in: controller {name}, {names}");
            Ok(())
        });
        taken.map_err(|error: ManagerError| {
            controller.link.end();
            error.to_string()
        })
    }
}

#[cfg(test)]
mod tests;
