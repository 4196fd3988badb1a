//! Centralized discovery (TP8010): a target that others register with, and targets that register with another one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use raceline_host::blocking::Host;
use raceline_host::{BackoffConfig, HostConfig};
use raceline_proto::nvme::discovery::DiscoveryEntry;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::registration::{EntityKind, MAX_ENTRIES, Registration, RegistrationTask};
use raceline_proto::nvme::{Nqn, Sqe};
use raceline_target::RegisteredInfo;
use serde_json::{Value, json};

use super::nvmf::{ListenAddress, entry, key};
use super::threads::SharedManager;
use super::{Change, Manager, ManagerError, lock};

/// How often what is offered is compared with what is registered.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between attempts to reach the other end.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the other end may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest number of places that a target registers with: each takes two threads.
const MAX_REGISTRARS: usize = 16;

/// The places that a target registers with, by address.
pub type Registrars = BTreeMap<ListenAddress, Arc<Registrar>>;

/// Gives a connection that is about to be made its keys; the error says why one cannot be used.
pub type Secure = Box<dyn Fn(&Manager, &mut HostConfig) -> Result<(), String> + Send + Sync>;

/// A centralized discovery controller that a target registers with.
pub struct Registrar {
    target: String,
    /// How it is connected to, without keys.
    pub host: HostConfig,
    secure: Secure,
    stopped: AtomicBool,
    state: Mutex<Progress>,
    changed: Condvar,
}

/// How a registration is going.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The entries that are registered; `None`: nothing is.
    pub entries: Option<usize>,
    /// Why what is offered is not registered.
    pub problem: Option<String>,
}

impl Registrar {
    /// For a target; `host` says how to connect, and `secure` gives each connection its keys.
    #[must_use]
    pub fn new(target: &str, host: HostConfig, secure: Secure) -> Arc<Self> {
        let host = HostConfig {
            discovery: true,
            // After a loss, everything is registered anew.
            backoff: BackoffConfig::NEVER,
            ..host.within(CONNECT_TIMEOUT)
        };
        let (stopped, state, changed) = (AtomicBool::default(), Mutex::default(), Condvar::new());
        Arc::new(Self { target: target.to_owned(), host, secure, stopped, state, changed })
    }

    /// How it is going.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.lock().clone()
    }

    /// The registration is to be taken back; does not wait for it.
    pub(super) fn end(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.changed.notify_all();
    }

    /// How to connect now, with keys.
    fn config(&self, manager: &Manager) -> Result<HostConfig, String> {
        let mut config = self.host.clone();
        (self.secure)(manager, &mut config)?;
        Ok(config)
    }

    /// Sends one command.
    fn send(
        &self,
        link: &Host,
        task: RegistrationTask,
        entries: &[DiscoveryEntry],
    ) -> Result<(), String> {
        let registration = Registration {
            task,
            kind: EntityKind::Direct,
            entity: self.host.hostnqn.clone(),
            name: "Raceline".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            entries: entries.to_vec(),
        };
        let (cdw10, data) = registration.encode();
        let opc = admin::DISCOVERY_INFORMATION_MANAGEMENT;
        let sqe = Sqe { opc, cdw10: cdw10.into(), ..Sqe::default() };
        link.execute_with(sqe, data).map(|_| ()).map_err(|error| {
            format!("{error} (is it a centralized discovery controller? Its DCTYPE is then 2)")
        })
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        lock(&self.state)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn pause(&self, time: Duration) {
        let is_waiting = |_: &mut Progress| !self.is_stopped();
        drop(self.changed.wait_timeout_while(self.lock(), time, is_waiting));
    }
}

impl Change<'_> {
    /// Makes the discovery service of a target a centralized one, or an ordinary one again.
    ///
    /// # Errors
    /// When there is no such target, or its cores do not take the change.
    pub fn set_central(&mut self, target: &str, is_central: bool) -> Result<(), ManagerError> {
        let cores = self.model().nvmf.target(target)?.cores();
        if let Some(cores) = cores {
            cores.set_central(is_central)?;
        }
        self.model_mut().nvmf.target_mut(target)?.is_central = is_central;
        let key = key(target, &["central"]);
        if is_central {
            let params = json!({ "enable": true });
            self.put(key, entry(target, "nvmf_discovery_set_central", params));
        } else {
            self.remove(key);
        }
        Ok(())
    }

    /// Registers what a target offers with the discovery controller at this address from now on; `keys` are the names
    /// of its keys by parameter.
    ///
    /// # Errors
    /// When there is no such target, it registers there already, or with too many others.
    pub fn add_registrar(
        &mut self,
        address: &ListenAddress,
        registrar: &Arc<Registrar>,
        keys: impl Iterator<Item = (&'static str, String)>,
    ) -> Result<(), ManagerError> {
        let target = &registrar.target;
        {
            let mut model = self.model_mut();
            let registrars = &mut model.nvmf.target_mut(target)?.registrars;
            if registrars.contains_key(address) {
                return Err(ManagerError::exists("registration at", &address.to_string()));
            }
            if registrars.len() >= MAX_REGISTRARS {
                return Err(ManagerError::Invalid(format!(
                    "a target registers with {MAX_REGISTRARS} discovery controllers at most"
                )));
            }
            registrars.insert(address.clone(), Arc::clone(registrar));
        }
        let hostnqn = registrar.host.hostnqn.as_str();
        let mut params = json!({ "address": address, "hostnqn": hostnqn });
        for (what, name) in keys {
            params[what] = name.into();
        }
        self.put(registrar_key(target, address), entry(target, "nvmf_discovery_register", params));
        Ok(())
    }

    /// Takes the registration at this address back.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_registrar(
        &mut self,
        target: &str,
        address: &ListenAddress,
    ) -> Result<(), ManagerError> {
        let removed = self.model_mut().nvmf.target_mut(target)?.registrars.remove(address);
        let missing = || ManagerError::missing("registration at", &address.to_string());
        removed.ok_or_else(missing)?.end();
        self.remove(registrar_key(target, address));
        Ok(())
    }
}

fn registrar_key(target: &str, address: &ListenAddress) -> super::catalogue::Key {
    key(target, &["register", &address.to_string()])
}

impl Manager {
    /// Starts the thread of a registration.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn follow_registrar(&self, registrar: &Arc<Registrar>) -> Result<(), ManagerError> {
        let manager = Arc::clone(&self.threads.shared);
        let registrar = Arc::clone(registrar);
        let run = move || Follower { manager, registrar, host: None, sent: None }.run();
        self.threads.spawn("nvmf-register", run).map_err(|error| {
            ManagerError::Invalid(format!("nothing is registered: no thread: {error}"))
        })
    }

    /// What has registered with a target; `None`: its discovery service is no centralized one.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn registered(&self, target: &str) -> Result<Option<Vec<RegisteredInfo>>, ManagerError> {
        let (is_central, cores) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            (found.is_central, found.cores())
        };
        let registered = cores.and_then(|cores| cores.registered());
        Ok(registered.or_else(|| is_central.then(Vec::new)))
    }
}

/// The thread of a registration.
struct Follower {
    manager: Arc<SharedManager>,
    registrar: Arc<Registrar>,
    host: Option<Host>,
    /// What is registered over this connection.
    sent: Option<Vec<DiscoveryEntry>>,
}

impl Follower {
    fn run(mut self) {
        while !self.registrar.is_stopped() {
            // The manager is not shared yet: nothing can be registered.
            let Some(manager) = self.manager.get() else {
                self.registrar.pause(LOOK_INTERVAL);
                continue;
            };
            // Neither it nor the cores are held meanwhile: the end of both waits for those who do.
            let Some(manager) = manager.upgrade() else { break };
            let cores =
                manager.model().nvmf.target(&self.registrar.target).ok().and_then(|it| it.cores());
            let is_local = self.registrar.host.address.ip().is_loopback();
            let offered = cores.map(|cores| cores.offered(is_local)).unwrap_or_default();
            if manager.is_ending() {
                break;
            }
            let is_connected = self.host.as_ref().is_some_and(|host| host.is_up());
            let config = (!is_connected).then(|| self.registrar.config(&manager));
            drop(manager);
            let result = self.register(offered, config);
            let pause = if result.is_ok() { LOOK_INTERVAL } else { RETRY_INTERVAL };
            self.note(result.err());
            self.registrar.pause(pause);
        }
        if let (Some(host), Some(_)) = (&self.host, self.sent.take()) {
            let gone = self.registrar.send(host, RegistrationTask::Deregister, &[]);
            if let Err(error) = gone {
                tracing::warn!("a registration is not taken back: {error}");
            }
        }
        if let Some(host) = self.host.take() {
            host.disconnect();
        }
    }

    /// Registers what is offered, unless it is registered. `config` is for a connection, if there is none.
    fn register(
        &mut self,
        offered: Vec<DiscoveryEntry>,
        config: Option<Result<HostConfig, String>>,
    ) -> Result<(), String> {
        let lost = || "the connection is lost".to_owned();
        if let Some(host) = self.host.take_if(|host| !host.is_up()) {
            self.sent = None;
            host.disconnect();
            return Err(lost());
        }
        let host = match &self.host {
            Some(host) => host,
            None => {
                self.sent = None;
                let host = Host::connect(config.ok_or_else(lost)??);
                self.host.insert(host.map_err(|error| error.to_string())?)
            }
        };
        if self.sent.as_ref() == Some(&offered) {
            return Ok(());
        }
        self.sent = None;
        let mut parts = offered.chunks(MAX_ENTRIES);
        let registrar = &self.registrar;
        registrar.send(host, RegistrationTask::Register, parts.next().unwrap_or_default())?;
        for part in parts {
            registrar.send(host, RegistrationTask::Update, part)?;
        }
        self.sent = Some(offered);
        Ok(())
    }

    /// Notes how it is going, and logs what is new.
    fn note(&self, problem: Option<String>) {
        let mut state = self.registrar.lock();
        let address = self.registrar.host.address;
        if state.problem != problem {
            match &problem {
                Some(problem) => tracing::warn!("not registered with {address}: {problem}"),
                None => tracing::info!("registered with {address}"),
            }
        }
        *state = Progress { entries: self.sent.as_ref().map(Vec::len), problem };
    }
}

/// An entry as clients see it.
#[must_use]
pub fn show(entry: &DiscoveryEntry) -> Value {
    let (traddr, trsvcid) = entry.address().unwrap_or_default();
    let subnqn = Nqn::from_field(&entry.subnqn).map(|nqn| nqn.as_str().to_owned());
    json!({
        "subtype": entry.subtype,
        "trtype": entry.trtype,
        "traddr": traddr,
        "trsvcid": trsvcid,
        "subnqn": subnqn.unwrap_or_default(),
    })
}
