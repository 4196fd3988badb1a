//! Discovery services that are followed: the subsystems that they list are attached here, and are detached
//! when they are no longer listed.

mod endpoint;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{
    BackoffConfig, HostConfig, PathId, RemoteController, RemotePath, RemoteState, Transport,
};
use raceline_proto::host::discovery::{DiscoveryLog, DiscoveryRecord};
use raceline_proto::nvme::Nqn;
use raceline_proto::nvme::discovery::SECTYPE_TLS_1_3;
use serde_json::{Value, json};

pub use endpoint::Endpoint;

use super::catalogue::Key;
use super::controllers::Controller;
use super::controllers::link::Link;
use super::nvmf::ListenAddress;
use super::threads::SharedManager;
use super::{Change, Manager, ManagerError, Model, Phase};

/// The largest number of subsystems that one service gives names to: each attached one takes two threads.
pub const MAX_SUBSYSTEMS: usize = 1024;
/// The member of the catalogue's entry with these names: subsystem `k` of the list is controller `NAMEk`.
pub const NAMES_MEMBER: &str = "subsystems";
/// The member of an entry of multicast DNS with the services that have numbers.
pub const SERVICES_MEMBER: &str = "services";

/// How often the thread that follows a service checks whether the service is still followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between attempts to reach a service or a subsystem.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a service or a subsystem may take to answer while others wait.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// TRTYPE, SUBTYPE and TREQ of the log (NVMe over Fabrics 1.1, 5.3).
const TRTYPE_RDMA: u8 = 1;
const TRTYPE_TCP: u8 = 3;
const SUBTYPE_NVM: u8 = 2;
const TREQ_MASK: u8 = 0b11;
const TREQ_REQUIRED: u8 = 1;

/// Followed services by name.
pub type Discoveries = BTreeMap<String, Arc<Discovery>>;

/// Who wants a service followed, and so where the numbers of its subsystems are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client has named it: it has an entry of its own.
    Client,
    /// It has announced itself by multicast DNS.
    Mdns {
        /// The entry of the search that has found it.
        key: Key,
        /// Its number there.
        number: usize,
        /// Under which name it announces itself.
        instance: String,
    },
}

/// A discovery service that is followed.
pub struct Discovery {
    /// Its name; its controllers are called `NAME0`, `NAME1`...
    pub name: String,
    /// Where it is, as was given.
    pub address: Endpoint,
    /// The entry in the catalogue that has its numbers.
    pub key: Key,
    /// Who wants it followed.
    pub origin: Origin,
    /// How its subsystems are connected to; address and name are filled in for each.
    subsystem: HostConfig,
    /// The largest number of a controller's namespaces that become devices.
    max_bdevs: usize,
    stopped: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// What is known of a service now.
#[derive(Clone, Default)]
struct State {
    /// Its other addresses, as far as it has announced them.
    alternates: Vec<Endpoint>,
    /// The discovery controllers that its log has named, including itself.
    referrals: Vec<Endpoint>,
    /// The subsystems that have been found, by number.
    found: Vec<Found>,
    /// All subsystems of its first log have been tried.
    is_attached: bool,
    /// Why it is not connected; `None` if it is.
    problem: Option<String>,
}

/// A subsystem that has been listed; it keeps its number for ever.
#[derive(Clone)]
struct Found {
    nqn: Nqn,
    /// Its addresses; empty if it is not listed now.
    addresses: Vec<Endpoint>,
    controller: Option<Arc<Controller>>,
    /// A client has detached it: it is left alone until it is listed anew.
    dismissed: bool,
    retry_at: Option<Instant>,
    problem: Option<String>,
}

/// A subsystem as clients see it.
pub struct Listed {
    /// Its controller's name.
    pub name: String,
    /// The subsystem.
    pub nqn: String,
    /// Why it is not attached; `None` if it is.
    pub problem: Option<String>,
}

impl Found {
    fn new(nqn: Nqn) -> Self {
        let (addresses, controller, retry_at, problem) = (Vec::new(), None, None, None);
        Self { nqn, addresses, controller, dismissed: false, retry_at, problem }
    }

    /// Whether its controller should be detached: its address is unlisted, or the host has given up.
    fn is_stale(&self) -> bool {
        let Some(Link::Remote(remote)) = self.controller.as_ref().map(|it| &it.link) else {
            return false;
        };
        let is_listed = |path: RemotePath| self.addresses.contains(&Endpoint::of(&path.config));
        !remote.paths().into_iter().any(is_listed)
            || matches!(remote.state(), RemoteState::Failed(_))
    }

    /// Its paths that are listed no more, while another one is up.
    fn stale_paths(&self, remote: &RemoteController) -> Vec<PathId> {
        let (listed, unlisted): (Vec<_>, Vec<_>) = remote
            .paths()
            .into_iter()
            .partition(|path| self.addresses.contains(&Endpoint::of(&path.config)));
        let is_up = |path: &RemotePath| matches!(path.state, RemoteState::Up);
        if listed.iter().any(is_up) {
            unlisted.iter().map(|path| path.id).collect()
        } else {
            Vec::new()
        }
    }

    /// The addresses by which it is listed and to which there is no path.
    fn missing_paths(&self, remote: &RemoteController) -> Vec<Endpoint> {
        let paths = [remote.paths(), remote.disabled_paths()].concat();
        // A path that was given up is tried again, as one that is new.
        let has = |address: &Endpoint| {
            paths.iter().any(|path| {
                Endpoint::of(&path.config) == *address
                    && !matches!(path.state, RemoteState::Failed(_))
            })
        };
        self.addresses.iter().copied().filter(|address| !has(address)).collect()
    }

    /// Its controller is gone. If a client wished that, the wish holds as long as the subsystem is listed.
    fn leave(&mut self, is_dismissed: bool) {
        self.controller = None;
        self.dismissed = is_dismissed && !self.addresses.is_empty();
    }

    fn is_due(&self, now: Instant) -> bool {
        self.controller.is_none()
            && !self.dismissed
            && !self.addresses.is_empty()
            && self.retry_at.is_none_or(|at| at <= now)
    }
}

impl Discovery {
    /// A service at the address and of the name of `config`, whose other members say how to connect to its
    /// subsystems; `names` are the subsystems that have numbers already.
    #[must_use]
    pub fn new(
        name: &str,
        origin: Origin,
        config: HostConfig,
        max_bdevs: usize,
        names: Vec<Nqn>,
    ) -> Arc<Self> {
        let found = names.into_iter().map(Found::new).collect();
        let problem = Some("not connected yet".to_owned());
        let state = State { found, problem, ..State::default() };
        Arc::new(Self {
            name: name.to_owned(),
            address: Endpoint::of(&config),
            key: match &origin {
                Origin::Client => Key::new(&["bdev-nvme-discovery", name]),
                Origin::Mdns { key, .. } => key.clone(),
            },
            origin,
            subsystem: config,
            max_bdevs,
            stopped: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// The discovery controllers that its log names.
    #[must_use]
    pub fn referrals(&self) -> Vec<Endpoint> {
        self.lock().referrals.clone()
    }

    /// The name of its discovery subsystem.
    #[must_use]
    pub fn subnqn(&self) -> &Nqn {
        &self.subsystem.subnqn
    }

    /// Why it is not connected; `None` if it is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    /// Where else it can be reached.
    pub(super) fn set_alternates(&self, addresses: &[SocketAddr]) {
        self.lock().alternates = addresses.iter().copied().map(Endpoint::from).collect();
    }

    /// The subsystems that have numbers, in the order of the numbers.
    pub(super) fn names(&self) -> Vec<Nqn> {
        self.lock().found.iter().map(|found| found.nqn.clone()).collect()
    }

    /// Whether the service or one of its subsystems is connected.
    pub(super) fn is_in_use(&self) -> bool {
        let state = self.lock();
        let is_up = |found: &Found| match found.controller.as_ref().map(|it| &it.link) {
            Some(Link::Remote(remote)) => matches!(remote.state(), RemoteState::Up),
            _ => false,
        };
        state.problem.is_none() || state.found.iter().any(is_up)
    }

    /// The subsystems that it lists.
    #[must_use]
    pub fn listed(&self) -> Vec<Listed> {
        let state = self.lock();
        let listed =
            state.found.iter().enumerate().filter(|(_, found)| !found.addresses.is_empty());
        listed
            .map(|(number, found)| Listed {
                name: self.controller_name(number),
                nqn: found.nqn.as_str().to_owned(),
                problem: match (&found.controller, found.dismissed) {
                    (Some(_), _) => None,
                    (None, true) => Some("it was detached".to_owned()),
                    (None, false) => {
                        Some(found.problem.clone().unwrap_or_else(|| "not tried yet".to_owned()))
                    }
                },
            })
            .collect()
    }

    /// Waits until all subsystems of the first log have been tried, the service is stopped, or the time is
    /// over; gives whether the subsystems have been tried.
    pub fn wait_attached(&self, timeout: Duration) -> bool {
        let is_waiting =
            |state: &mut State| !state.is_attached && !self.stopped.load(Ordering::Relaxed);
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_attached
    }

    /// Ends the thread that follows it.
    pub(super) fn end(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Why a device is missing whose name belongs to a namespace of a controller found here.
    pub(super) fn why_missing(&self, controller: &str) -> Option<String> {
        let number = self.number_of(controller)?;
        let state = self.lock();
        let service = &self.name;
        Some(match (state.found.get(number), &state.problem) {
            (Some(Found { controller: Some(_), .. }), _) => {
                format!("controller {controller} has no such namespace now")
            }
            (Some(Found { problem: Some(problem), addresses, .. }), _) if !addresses.is_empty() => {
                problem.clone()
            }
            (_, Some(problem)) => format!("discovery service {service}: {problem}"),
            (Some(Found { nqn, .. }), None) => {
                format!("discovery service {service} lists no {nqn}")
            }
            (None, None) => format!("discovery service {service} has not found {controller}"),
        })
    }

    /// Writes the numbers of the subsystems into the parameters of the call that is kept.
    fn put_names(&self, params: &mut Value) {
        let names: Vec<String> = self.names().iter().map(|nqn| nqn.as_str().to_owned()).collect();
        let Origin::Mdns { number, instance, .. } = &self.origin else {
            params[NAMES_MEMBER] = json!(names);
            return;
        };
        let service = json!({
            "number": number,
            "instance": instance,
            "subnqn": self.subnqn().as_str(),
            NAMES_MEMBER: names,
        });
        let services = &mut params[SERVICES_MEMBER];
        match services.as_array_mut() {
            None => *services = json!([service]),
            Some(services) => {
                match services.iter_mut().find(|it| it["number"] == service["number"]) {
                    Some(kept) => *kept = service,
                    None => services.push(service),
                }
            }
        }
    }

    /// Whether a device would be a namespace of a controller that is found here.
    fn makes(&self, device: &str) -> bool {
        let controller = super::missing::numbered(device, 'n');
        controller.is_some_and(|controller| self.number_of(controller).is_some())
    }

    fn number_of(&self, controller: &str) -> Option<usize> {
        let digits = controller.strip_prefix(&*self.name)?;
        digits.parse().ok().filter(|number: &usize| number.to_string() == digits)
    }

    fn controller_name(&self, number: usize) -> String {
        format!("{}{number}", self.name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        super::lock(&self.state)
    }

    /// Takes over a log; gives whether subsystems have got numbers.
    fn take(&self, log: &DiscoveryLog) -> bool {
        // Whoever has no RDMA device is not told of it at every change of a log.
        let is_reachable = |record: &&DiscoveryRecord| {
            record.trtype != TRTYPE_RDMA || self.subsystem.rdma_devices.are_there()
        };
        let records = || log.records.iter().filter(is_reachable);
        let mut state = self.lock();
        state.problem = None;
        let services = records().filter(|record| record.subtype != SUBTYPE_NVM);
        state.referrals = services.filter_map(|record| address(record).ok()).collect();
        let mut listed: BTreeMap<Nqn, Vec<Endpoint>> = BTreeMap::new();
        for record in records().filter(|record| record.subtype == SUBTYPE_NVM) {
            match usable(record) {
                Ok((nqn, address)) => listed.entry(nqn).or_default().push(address),
                Err(reason) => tracing::warn!("discovery service {}: {reason}", self.name),
            }
        }
        for found in &mut state.found {
            found.addresses = listed.remove(&found.nqn).unwrap_or_default();
            // A subsystem that was unlisted and is listed again counts as new.
            found.dismissed &= !found.addresses.is_empty();
            found.retry_at = None;
        }
        let room = MAX_SUBSYSTEMS.saturating_sub(state.found.len());
        if listed.len() > room {
            tracing::warn!(
                "discovery service {} has named more than {MAX_SUBSYSTEMS} subsystems: {} are not \
                 attached",
                self.name,
                listed.len() - room
            );
        }
        let is_new = !listed.is_empty() && room > 0;
        // In the order of the log, in which SPDK numbers them.
        let mut come: Vec<(Nqn, Vec<Endpoint>)> = listed.into_iter().collect();
        let place = |nqn: &Nqn| log.records.iter().position(|it| it.subnqn == nqn.as_str());
        come.sort_by_key(|(nqn, _)| place(nqn));
        let come = come.into_iter().take(room);
        state.found.extend(come.map(|(nqn, addresses)| Found { addresses, ..Found::new(nqn) }));
        is_new
    }
}

/// Where a record points to; an error says why it cannot be reached from here.
fn address(record: &DiscoveryRecord) -> Result<Endpoint, String> {
    let DiscoveryRecord { trtype, traddr, trsvcid, .. } = record;
    let transport = match *trtype {
        TRTYPE_TCP => Transport::Tcp,
        TRTYPE_RDMA => Transport::Rdma,
        other => {
            let nqn = record.subnqn.escape_debug();
            return Err(format!(
                "{nqn} is at an address for neither TCP nor RDMA (transport type {other})"
            ));
        }
    };
    // Addresses of RDMA are written as those of TCP.
    let parsed = ListenAddress::parse("tcp", None, traddr, Some(trsvcid));
    parsed
        .and_then(|address| address.socket())
        .map(|address| Endpoint { transport, address })
        .map_err(|error| format!("{}: {error}", record.subnqn.escape_debug()))
}

fn usable(record: &DiscoveryRecord) -> Result<(Nqn, Endpoint), String> {
    // A listener where authentications make keys for TLS does not require it of the first connection.
    if record.treq & TREQ_MASK == TREQ_REQUIRED || record.sectype == SECTYPE_TLS_1_3 {
        let nqn = record.subnqn.escape_debug();
        return Err(format!(
            "{nqn} wants a secure channel: attach it by bdev_nvme_attach_controller with a psk"
        ));
    }
    if let Some(rdma) = record.rdma.filter(|rdma| !rdma.is_usable()) {
        let nqn = record.subnqn.escape_debug();
        return Err(format!(
            "{nqn} takes RDMA connections with queue pairs of type {} and connection manager {}, and this host has \
             reliable connected ones (1) and RDMA_CM (1)",
            rdma.qptype, rdma.cms
        ));
    }
    let nqn = Nqn::new(&record.subnqn).map_err(|error| format!("{:?}: {error}", record.subnqn))?;
    Ok((nqn, address(record)?))
}

impl Model {
    /// Why a device is missing that a discovery service would bring.
    pub(super) fn why_not_discovered(&self, controller: &str) -> Option<String> {
        let discoveries = self.discoveries.values();
        discoveries.clone().find_map(|discovery| discovery.why_missing(controller)).or_else(|| {
            self.mdns_discoveries.values().find_map(|mdns| mdns.why_missing(controller))
        })
    }
}

impl Change<'_> {
    /// Begins to follow a service; the caller keeps the call that wants it.
    ///
    /// # Errors
    /// When its name or its address is followed already.
    pub fn follow_discovery(&mut self, discovery: &Arc<Discovery>) -> Result<(), ManagerError> {
        let taken = self.model().discoveries.values().any(|other| {
            other.name == discovery.name
                || other.address == discovery.address
                || other.referrals().contains(&discovery.address)
        });
        if taken {
            return Err(ManagerError::exists("discovery service", &discovery.name));
        }
        let manager = Arc::downgrade(&self.manager().threads.shared);
        let thread = std::thread::Builder::new().name(format!("disc-{}", discovery.name));
        let followed = Arc::clone(discovery);
        let spawned = thread.spawn(move || Follower::new(manager, followed).run());
        spawned.map_err(|error| ManagerError::Invalid(format!("no thread: {error}")))?;
        let name = discovery.name.clone();
        self.model_mut().discoveries.insert(name, Arc::clone(discovery));
        Ok(())
    }

    /// Stops following a service, and removes the devices that it brought; gives the controllers, which the
    /// caller then disconnects.
    ///
    /// # Errors
    /// When there is none of that name, or a device does not become quiet.
    pub fn forget_discovery(&mut self, name: &str) -> Result<Vec<Arc<Controller>>, ManagerError> {
        let missing = || ManagerError::missing("discovery service", name);
        let discovery = self.model().discoveries.get(name).cloned().ok_or_else(missing)?;
        discovery.end();
        let attached: Vec<Arc<Controller>> =
            discovery.lock().found.iter_mut().filter_map(|found| found.controller.take()).collect();
        for controller in &attached {
            if self.has(controller) {
                self.detach(&controller.name)?;
            }
        }
        self.remove_waiting(|device| discovery.makes(device));
        self.model_mut().discoveries.remove(name);
        if discovery.origin == Origin::Client {
            self.remove(discovery.key.clone());
        }
        Ok(attached)
    }

    /// Stops following a service that has gone by itself and may come back: what stands on the devices that it
    /// brought waits for them.
    ///
    /// # Errors
    /// When a device does not become quiet.
    pub(super) fn lose_discovery(
        &mut self,
        discovery: &Arc<Discovery>,
    ) -> Result<(), ManagerError> {
        discovery.end();
        let attached: Vec<Arc<Controller>> =
            discovery.lock().found.iter_mut().filter_map(|found| found.controller.take()).collect();
        for controller in attached {
            // Ended first: otherwise requests that wait for the controller would never end.
            controller.link.end();
            if self.has(&controller) {
                self.detach_gone(&controller.name)?;
            }
        }
        if self.is_followed(discovery) {
            self.model_mut().discoveries.remove(&discovery.name);
        }
        Ok(())
    }

    /// Whether this very controller is attached, and not another one of its name.
    fn has(&self, controller: &Arc<Controller>) -> bool {
        let model = self.model();
        let attached = model.controllers.get(&controller.name);
        attached.is_some_and(|attached| Arc::ptr_eq(attached, controller))
    }

    fn is_followed(&self, discovery: &Arc<Discovery>) -> bool {
        let model = self.model();
        let followed = model.discoveries.get(&discovery.name);
        followed.is_some_and(|followed| Arc::ptr_eq(followed, discovery))
    }
}

/// The thread that follows one service.
struct Follower {
    manager: Weak<SharedManager>,
    discovery: Arc<Discovery>,
    host: Option<Host>,
    /// The state of the connection that was last handled.
    version: u64,
    /// Index of the service's address that is tried next.
    turn: usize,
}

impl Follower {
    fn new(manager: Weak<SharedManager>, discovery: Arc<Discovery>) -> Self {
        Self { manager, discovery, host: None, version: 0, turn: 0 }
    }

    fn run(mut self) {
        while !self.discovery.stopped.load(Ordering::Relaxed) {
            let Some(shared) = self.manager.upgrade() else { break };
            let Some(manager) = shared.get().map(Weak::upgrade) else {
                // The manager is not shared yet, so nothing can be followed.
                self.pause(FOLLOW_INTERVAL);
                continue;
            };
            let Some(manager) = manager else { break };
            if manager.phase() != Phase::Runtime {
                drop(manager);
                self.pause(Duration::from_millis(20));
                continue;
            }
            drop((manager, shared));
            self.look();
            self.detach_stale();
            self.attach_due();
            self.follow_paths();
        }
        if let Some(host) = self.host.take() {
            host.disconnect();
        }
    }

    /// The manager, for a short use.
    fn manager(&self) -> Option<Arc<Manager>> {
        self.manager.upgrade()?.get()?.upgrade()
    }

    /// Waits for this time, or until the service is stopped.
    fn pause(&self, time: Duration) {
        let discovery = &self.discovery;
        let is_waiting = |_: &mut State| !discovery.stopped.load(Ordering::Relaxed);
        drop(discovery.changed.wait_timeout_while(discovery.lock(), time, is_waiting));
    }

    /// Connects to the service if necessary, waits for a change of its log, and reads the log.
    fn look(&mut self) {
        if self.host.is_none() {
            match self.connect() {
                Ok(host) => (self.host, self.version) = (Some(host), 0),
                Err(error) => {
                    self.discovery.lock().problem = Some(error);
                    return self.pause(RETRY_INTERVAL);
                }
            }
        }
        let Some(host) = &self.host else { return };
        let version = host.wait_change(self.version, FOLLOW_INTERVAL);
        if version == self.version {
            return;
        }
        self.version = version;
        let log = match host.is_up() {
            true => host.discover().map_err(|error| error.to_string()),
            false => Err("the connection is lost".to_owned()),
        };
        match log {
            Ok(log) if self.discovery.take(&log) => self.keep_names(),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("discovery service {}: {error}", self.discovery.name);
                self.discovery.lock().problem = Some(error);
                if let Some(host) = self.host.take() {
                    host.disconnect();
                }
                self.pause(RETRY_INTERVAL);
            }
        }
    }

    /// Connects to the first of the service's addresses, then to those that its log has named.
    fn connect(&mut self) -> Result<Host, String> {
        let discovery = &self.discovery;
        let mut addresses = vec![discovery.address];
        let alternates = discovery.lock().alternates.clone();
        let others = [alternates, discovery.referrals()].concat();
        for other in others {
            if !addresses.contains(&other) {
                addresses.push(other);
            }
        }
        let address = addresses[self.turn % addresses.len()];
        self.turn += 1;
        let config = HostConfig {
            discovery: true,
            // After a loss, the service is looked for at all its addresses, and not only at the last one.
            backoff: BackoffConfig::NEVER,
            ..address.reached_by(discovery.subsystem.clone().within(CONNECT_TIMEOUT))
        };
        let host = Host::connect(config);
        host.inspect(|_| self.turn -= 1).map_err(|error| format!("{address}: {error}"))
    }

    /// Writes down the numbers of the subsystems, before there are devices with these names.
    fn keep_names(&self) {
        let Some(manager) = self.manager() else { return };
        let kept = manager.change(|change| {
            if !change.is_followed(&self.discovery) {
                return Ok(());
            }
            let key = &self.discovery.key;
            let Some(mut entry) = change.model().catalogue.get(key).cloned() else { return Ok(()) };
            self.discovery.put_names(&mut entry.params);
            change.put(key.clone(), entry);
            Ok::<_, ManagerError>(())
        });
        if let Err(error) = kept {
            let name = &self.discovery.name;
            tracing::warn!("the numbers of what {name} has found cannot be kept: {error}");
        }
    }

    /// Detaches subsystems that are no longer listed, and controllers that have been given up.
    fn detach_stale(&self) {
        let found = self.discovery.lock().found.clone();
        for (number, found) in found.iter().enumerate() {
            let (true, Some(controller)) = (found.is_stale(), &found.controller) else { continue };
            // Ended first: otherwise requests that wait for the controller would never end.
            controller.link.end();
            let Some(manager) = self.manager() else { return };
            let detached = manager.change(|change| {
                if !change.is_followed(&self.discovery) {
                    return Ok(());
                }
                let is_here = change.has(controller);
                if is_here {
                    change.detach_gone(&controller.name)?;
                }
                self.discovery.lock().found[number].leave(!is_here);
                Ok::<_, ManagerError>(())
            });
            match detached {
                Ok(()) => tracing::info!("controller {} is gone", controller.name),
                Err(error) => tracing::warn!("controller {} does not go: {error}", controller.name),
            }
        }
    }

    /// Adds paths that are listed, and removes paths that are not, of the subsystems that are attached.
    fn follow_paths(&self) {
        let found = self.discovery.lock().found.clone();
        for (number, found) in found.iter().enumerate() {
            let Some(Link::Remote(remote)) = found.controller.as_ref().map(|it| &it.link) else {
                continue;
            };
            for path in found.stale_paths(remote) {
                remote.remove_path(path);
            }
            let missing = found.missing_paths(remote);
            if missing.is_empty() || found.retry_at.is_some_and(|at| at > Instant::now()) {
                continue;
            }
            for address in missing {
                if self.discovery.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let config = address.reached_by(remote.config().clone()).within(CONNECT_TIMEOUT);
                if let Err(error) = remote.add_path(config) {
                    let name = self.discovery.controller_name(number);
                    tracing::info!("controller {name} has no path to {address}: {error}");
                }
            }
            self.discovery.lock().found[number].retry_at = Some(Instant::now() + RETRY_INTERVAL);
        }
    }

    /// Attaches subsystems that are listed and not attached; the first time, wakes the waiting clients.
    fn attach_due(&self) {
        let found = self.discovery.lock().found.clone();
        for (number, found) in found.into_iter().enumerate() {
            if self.discovery.stopped.load(Ordering::Relaxed) {
                return;
            }
            self.notice_detached(number, &found);
            if !found.is_due(Instant::now()) {
                continue;
            }
            let name = self.discovery.controller_name(number);
            let attached = self.attach(number, &name, &found);
            let mut state = self.discovery.lock();
            let now = &mut state.found[number];
            now.retry_at = Some(Instant::now() + RETRY_INTERVAL);
            if now.problem != attached.clone().err() {
                match &attached {
                    Ok(()) => tracing::info!("controller {name} is attached: {}", found.nqn),
                    Err(error) => tracing::warn!("controller {name} is not attached: {error}"),
                }
            }
            now.problem = attached.err();
        }
        let mut state = self.discovery.lock();
        if state.problem.is_none() && !std::mem::replace(&mut state.is_attached, true) {
            self.discovery.changed.notify_all();
        }
    }

    /// Notices that a client has detached a found controller: it then stays detached.
    fn notice_detached(&self, number: usize, found: &Found) {
        let (Some(controller), Some(manager)) = (&found.controller, self.manager()) else { return };
        let model = manager.model();
        let attached = model.controllers.get(&controller.name);
        if !attached.is_some_and(|attached| Arc::ptr_eq(attached, controller)) {
            self.discovery.lock().found[number].leave(true);
        }
    }

    /// Connects to a subsystem at the first of its addresses that answers.
    fn attach(&self, number: usize, name: &str, found: &Found) -> Result<(), String> {
        let mut connected = Err("it has no address".to_owned());
        for address in &found.addresses {
            let template = &self.discovery.subsystem;
            let config = HostConfig {
                subnqn: found.nqn.clone(),
                ..address.reached_by(template.clone().within(CONNECT_TIMEOUT))
            };
            connected = RemoteController::connect(config)
                .map_err(|error| format!("{} at {address}: {error}", found.nqn));
            if connected.is_ok() {
                break;
            }
        }
        let key = Key::new(&["bdev-nvme-discovered", name]);
        let link = Link::Remote(connected?);
        let controller = Controller::new(name.to_owned(), link, key, self.discovery.max_bdevs);
        let manager = self.manager().ok_or_else(|| "the daemon ends".to_owned())?;
        let attached = manager.change(|change| {
            if !change.is_followed(&self.discovery) {
                return Err(ManagerError::missing("discovery service", &self.discovery.name));
            }
            change.attach(&controller)?;
            self.discovery.lock().found[number].controller = Some(Arc::clone(&controller));
            Ok(())
        });
        attached.map_err(|error| {
            controller.link.end();
            error.to_string()
        })
    }
}

#[cfg(test)]
mod tests;
