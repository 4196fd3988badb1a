//! Discovery services that announce themselves by multicast DNS: each is followed like one that a client has named.
//!
//! What is announced is a hint and no order. A service that is announced no more goes only when nothing of it is
//! connected: whoever can send a packet into the network could otherwise take devices away.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use raceline_host::HostConfig;
use raceline_mdns::{Browser, SERVICE_NAME, Service};
use raceline_proto::nvme::Nqn;

use super::catalogue::{Entry, Key};
use super::controllers::Controller;
use super::discovery::{Discovery, Origin};
use super::missing::numbered;
use super::threads::SharedManager;
use super::{Change, Manager, ManagerError, Phase};

/// The largest number of services that one search follows or has numbers for: each takes a thread.
pub const MAX_FOLLOWED: usize = 64;

/// How often the search checks whether it is still wanted.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between attempts at something that has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The end of the name of a followed service, after the search's name and a number, as in SPDK.
const NAME_END: &str = "_nvme";

/// Searches by name.
pub type MdnsDiscoveries = BTreeMap<String, Arc<MdnsDiscovery>>;

/// A search for discovery services.
pub struct MdnsDiscovery {
    /// Its name; the services that it finds are called `NAME0_nvme`, `NAME1_nvme`...
    pub name: String,
    /// Its entry in the catalogue.
    pub key: Key,
    /// How services and subsystems are connected to; addresses and names are filled in for each.
    template: HostConfig,
    /// The largest number of a controller's namespaces that become devices.
    max_bdevs: usize,
    stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The services by their number.
    slots: BTreeMap<usize, Slot>,
    /// Why nothing is searched; `None` if it is.
    problem: Option<String>,
}

/// A service that has a number, and keeps it as long as subsystems of it have names.
struct Slot {
    instance: String,
    nqn: Nqn,
    /// Where it is announced; empty if it is not announced now.
    addresses: Vec<SocketAddr>,
    discovery: Option<Arc<Discovery>>,
    /// Its subsystems that have numbers, while it is not followed.
    names: Vec<Nqn>,
    retry_at: Option<Instant>,
    problem: Option<String>,
}

/// A service that had a number before a restart.
pub struct KnownService {
    /// Its number.
    pub number: usize,
    /// Under which name it announced itself.
    pub instance: String,
    /// The name of its discovery subsystem.
    pub nqn: Nqn,
    /// Its subsystems, in the order of their numbers.
    pub names: Vec<Nqn>,
}

/// A service as clients see it.
pub struct Found {
    /// The name of the discovery service here.
    pub name: String,
    /// Under which name it announces itself.
    pub instance: String,
    /// The name of its discovery subsystem.
    pub nqn: Nqn,
    /// Its first address.
    pub address: SocketAddr,
    /// Why it is not followed; `None` if it is.
    pub problem: Option<String>,
}

impl Slot {
    fn new(instance: String, nqn: Nqn, names: Vec<Nqn>) -> Self {
        let (addresses, discovery, retry_at, problem) = (Vec::new(), None, None, None);
        Self { instance, nqn, addresses, discovery, names, retry_at, problem }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.discovery.is_none()
            && !self.addresses.is_empty()
            && self.retry_at.is_none_or(|at| at <= now)
    }

    /// Whether its number can be given to another service.
    fn is_free(&self) -> bool {
        self.discovery.is_none() && self.addresses.is_empty() && self.names.is_empty()
    }
}

impl MdnsDiscovery {
    /// A search; `template` says how to connect to what it finds, and `known` are the services that have numbers
    /// already.
    #[must_use]
    pub fn new(
        name: &str,
        template: HostConfig,
        max_bdevs: usize,
        known: Vec<KnownService>,
    ) -> Arc<Self> {
        let slot = |it: KnownService| (it.number, Slot::new(it.instance, it.nqn, it.names));
        let slots = known.into_iter().map(slot).collect();
        Arc::new(Self {
            name: name.to_owned(),
            key: Key::new(&["bdev-nvme-mdns", name]),
            template,
            max_bdevs,
            stopped: AtomicBool::new(false),
            state: Mutex::new(State { slots, problem: None }),
        })
    }

    /// Why nothing is searched; `None` if it is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    /// The services that are announced or followed.
    #[must_use]
    pub fn found(&self) -> Vec<Found> {
        let state = self.lock();
        let found = state.slots.iter().filter_map(|(number, slot)| {
            let (problem, followed) = match &slot.discovery {
                Some(discovery) => (discovery.problem(), Some(discovery.address.address)),
                None => (slot.problem.clone(), None),
            };
            let address = followed.or_else(|| slot.addresses.first().copied())?;
            let (instance, nqn) = (slot.instance.clone(), slot.nqn.clone());
            Some(Found { name: self.service_name(*number), instance, nqn, address, problem })
        });
        found.collect()
    }

    /// Ends the thread that searches.
    pub(super) fn end(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Why a device is missing whose name belongs to a service that is not followed now.
    pub(super) fn why_missing(&self, controller: &str) -> Option<String> {
        let state = self.lock();
        let slot = state.slots.get(&self.number_of(controller)?)?;
        let name = &self.name;
        Some(match &slot.problem {
            Some(problem) => format!("multicast DNS search {name}: {}: {problem}", slot.instance),
            None => format!("multicast DNS search {name}: {} is not announced", slot.instance),
        })
    }

    /// Whether a device would be a namespace of a controller of a service that is found here.
    fn makes(&self, device: &str) -> bool {
        let controller = numbered(device, 'n');
        let number = controller.and_then(|controller| self.number_of(controller));
        number.is_some_and(|number| self.lock().slots.contains_key(&number))
    }

    /// The number of the service that has a controller of this name.
    fn number_of(&self, controller: &str) -> Option<usize> {
        let rest = controller.strip_prefix(&*self.name)?;
        let (digits, end) = rest.split_once(NAME_END)?;
        let is_number =
            |text: &str| text.parse().ok().filter(|number: &usize| number.to_string() == *text);
        is_number(end)?;
        is_number(digits)
    }

    fn service_name(&self, number: usize) -> String {
        format!("{}{number}{NAME_END}", self.name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        super::lock(&self.state)
    }

    /// Takes over what is announced now.
    fn take<'a>(&self, announced: impl Iterator<Item = &'a Service>) {
        let mut announced: BTreeMap<&str, &Service> =
            announced.map(|service| (&*service.instance, service)).collect();
        let mut state = self.lock();
        state.problem = None;
        for slot in state.slots.values_mut() {
            // An instance with another subsystem is another service: it gets its number when this one has gone.
            let service = announced.remove(&*slot.instance).filter(|it| it.nqn == slot.nqn);
            let addresses = service.map(|it| it.addresses.clone()).unwrap_or_default();
            if slot.addresses != addresses {
                slot.retry_at = None;
                slot.problem = None;
            }
            if let Some(discovery) = slot.discovery.as_ref().filter(|_| !addresses.is_empty()) {
                discovery.set_alternates(&addresses);
            }
            slot.addresses = addresses;
        }
        state.slots.retain(|_, slot| !slot.is_free());
        for service in announced.into_values() {
            let free = (0..MAX_FOLLOWED).find(|number| !state.slots.contains_key(number));
            let Some(number) = free else {
                state.problem = Some(format!(
                    "more than {MAX_FOLLOWED} services have announced themselves: the others are left out"
                ));
                return;
            };
            let mut slot = Slot::new(service.instance.clone(), service.nqn.clone(), Vec::new());
            slot.addresses = service.addresses.clone();
            state.slots.insert(number, slot);
        }
    }

    /// The services that should be followed and are not, each as it will be followed.
    fn due(&self) -> Vec<(usize, Arc<Discovery>)> {
        let (state, now) = (self.lock(), Instant::now());
        let due = state.slots.iter().filter(|(_, slot)| slot.is_due(now));
        due.map(|(number, slot)| {
            let origin = Origin::Mdns {
                key: self.key.clone(),
                number: *number,
                instance: slot.instance.clone(),
            };
            let config = HostConfig {
                address: slot.addresses[0],
                subnqn: slot.nqn.clone(),
                ..self.template.clone()
            };
            let name = self.service_name(*number);
            let names = slot.names.clone();
            let discovery = Discovery::new(&name, origin, config, self.max_bdevs, names);
            discovery.set_alternates(&slot.addresses);
            (*number, discovery)
        })
        .collect()
    }

    /// The services that are announced no more, and of which nothing is connected.
    fn lost(&self) -> Vec<(usize, Arc<Discovery>)> {
        let state = self.lock();
        let followed = state
            .slots
            .iter()
            .filter(|(_, slot)| slot.addresses.is_empty())
            .filter_map(|(number, slot)| Some((*number, Arc::clone(slot.discovery.as_ref()?))));
        followed.filter(|(_, discovery)| !discovery.is_in_use()).collect()
    }
}

impl Change<'_> {
    /// Begins a search; `entry` is the call that begins it again.
    ///
    /// # Errors
    /// When there is one already: all searches find the same.
    pub fn follow_mdns(
        &mut self,
        mdns: &Arc<MdnsDiscovery>,
        entry: Entry,
    ) -> Result<(), ManagerError> {
        if let Some(other) = self.model().mdns_discoveries.keys().next() {
            return Err(ManagerError::exists("multicast DNS search", other));
        }
        let manager = Arc::downgrade(&self.manager().threads.shared);
        let searching = Arc::clone(mdns);
        let thread = std::thread::Builder::new().name("mdns-search".to_owned());
        let spawned = thread.spawn(move || search(&manager, &searching));
        spawned.map_err(|error| ManagerError::Invalid(format!("no thread: {error}")))?;
        self.model_mut().mdns_discoveries.insert(mdns.name.clone(), Arc::clone(mdns));
        self.put(mdns.key.clone(), entry);
        Ok(())
    }

    /// Ends a search, and removes the devices of what it has found; gives the controllers, which the caller then
    /// disconnects.
    ///
    /// # Errors
    /// When there is none of that name, or a device does not become quiet.
    pub fn forget_mdns(&mut self, name: &str) -> Result<Vec<Arc<Controller>>, ManagerError> {
        let missing = || ManagerError::missing("multicast DNS search", name);
        let mdns = self.model().mdns_discoveries.get(name).cloned().ok_or_else(missing)?;
        mdns.end();
        let followed: Vec<String> = mdns
            .lock()
            .slots
            .values()
            .filter_map(|slot| Some(slot.discovery.as_ref()?.name.clone()))
            .collect();
        let mut attached = Vec::new();
        for service in followed {
            if self.model().discoveries.contains_key(&service) {
                attached.extend(self.forget_discovery(&service)?);
            }
        }
        self.remove_waiting(|device| mdns.makes(device));
        self.model_mut().mdns_discoveries.remove(name);
        self.remove(mdns.key.clone());
        Ok(attached)
    }

    fn is_searched(&self, mdns: &Arc<MdnsDiscovery>) -> bool {
        let model = self.model();
        let searched = model.mdns_discoveries.get(&mdns.name);
        searched.is_some_and(|searched| Arc::ptr_eq(searched, mdns))
    }
}

/// The thread of a search.
fn search(shared: &Weak<SharedManager>, mdns: &Arc<MdnsDiscovery>) {
    let mut browser = None;
    while !mdns.stopped.load(Ordering::Relaxed) {
        let Some(manager) = shared.upgrade() else { return };
        let manager = match manager.get().map(Weak::upgrade) {
            Some(Some(manager)) => Some(manager).filter(|it| it.phase() == Phase::Runtime),
            Some(None) => return,
            // The manager is not shared yet, so nothing can be followed.
            None => None,
        };
        let Some(manager) = manager else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let own = manager.model().own_instances();
        drop(manager);
        match look(&mut browser) {
            // A daemon does not follow itself.
            Ok(browser) => mdns.take(browser.services().filter(|it| !own.contains(&it.instance))),
            Err(error) => {
                browser = None;
                mdns.lock().problem = Some(error.to_string());
                std::thread::sleep(RETRY_INTERVAL);
                continue;
            }
        }
        let Some(manager) = shared.upgrade().and_then(|it| it.get()?.upgrade()) else { return };
        mdns.lost().iter().for_each(|(number, lost)| lose(&manager, mdns, *number, lost));
        mdns.due().into_iter().for_each(|(number, due)| follow(&manager, mdns, number, due));
    }
}

/// Waits for a change of what is announced.
fn look(browser: &mut Option<Browser>) -> Result<&Browser, raceline_mdns::MdnsError> {
    let browser = match browser {
        Some(browser) => browser,
        None => browser.insert(Browser::start()?),
    };
    browser.wait(LOOK_INTERVAL)?;
    Ok(browser)
}

fn follow(manager: &Manager, mdns: &Arc<MdnsDiscovery>, number: usize, due: Arc<Discovery>) {
    let followed = manager.change(|change| {
        if !change.is_searched(mdns) {
            return Ok(());
        }
        change.follow_discovery(&due)?;
        if let Some(slot) = mdns.lock().slots.get_mut(&number) {
            slot.discovery = Some(Arc::clone(&due));
        }
        tracing::info!("discovery service {} at {} has announced itself", due.name, due.address);
        Ok::<_, ManagerError>(())
    });
    if let Some(slot) = mdns.lock().slots.get_mut(&number) {
        slot.retry_at = Some(Instant::now() + RETRY_INTERVAL);
        // Usually it is followed already, by another of its addresses.
        slot.problem = followed.err().map(|error| error.to_string());
    }
}

fn lose(manager: &Manager, mdns: &Arc<MdnsDiscovery>, number: usize, lost: &Arc<Discovery>) {
    let gone = manager.change(|change| {
        if !change.is_searched(mdns) {
            return Ok(());
        }
        change.lose_discovery(lost)?;
        if let Some(slot) = mdns.lock().slots.get_mut(&number) {
            slot.names = lost.names();
            slot.discovery = None;
        }
        tracing::info!("discovery service {} is gone", lost.name);
        Ok::<_, ManagerError>(())
    });
    if let Err(error) = gone {
        tracing::warn!("discovery service {} does not go: {error}", lost.name);
    }
}

/// Whether this is the service that can be searched for.
#[must_use]
pub fn is_known_service(name: &str) -> bool {
    name.trim_end_matches('.').trim_end_matches(".local").eq_ignore_ascii_case(SERVICE_NAME)
}

#[cfg(test)]
mod tests;
