//! A complete control plane: options, socket, what was kept or configured, then service.
//!
//! Options come first, before any client can connect. The socket answers while the kept or configured state
//! is made, so that clients can ask how far the start is; calls that are not allowed yet are refused. A
//! start that fails leaves nothing behind: the caller ends the process.

mod reach;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use raceline_bdev::Identity;
use raceline_reactor::private_socket::SocketError;
use raceline_target::ConnectionOptions;
use serde_json::Value;

use crate::absent::US;
use crate::configuration::{self, look, summary};
use crate::error::RpcError;
use crate::events::EventJournal;
use crate::hand_over::{LastWords, Predecessor, Successors, TakeOverError, socket_of};
use crate::keyring::Places;
use crate::logging::Logging;
use crate::manager::catalogue::{Catalogue, Key};
use crate::manager::{Manager, ManagerConfig, ManagerError, Phase};
use crate::method::{Registry, States};
use crate::params::raw_params;
use crate::role::Roles;
use crate::server::{ListenError, Server, ServerConfig};
use crate::state::{Call, StateError, StateJournal, SubsystemConfig};

pub use reach::Reach;

/// The largest configuration file.
const MAX_CONFIG_BYTES: u64 = 256 << 20;

/// The folder of the state directory with the reservations of namespaces.
const RESERVATIONS: &str = "reservations";
/// The folder of the state directory with the write protection of namespaces.
const PROTECTED: &str = "protected";

/// The file of the state directory with the list of the last changes.
const HISTORY: &str = "history.json";

/// The settings of a daemon.
#[derive(Default)]
pub struct DaemonConfig {
    /// Where clients connect.
    pub socket: PathBuf,
    /// Users that may change things, besides root and the daemon's own.
    pub admins: Vec<u32>,
    /// CPUs for I/O; empty: one core that is not pinned.
    pub cores: Vec<usize>,
    /// The configuration file to start with, in SPDK's form.
    pub config: Option<PathBuf>,
    /// The calls of that file, if it was read already: a pipe is read once.
    pub calls: Option<Vec<SubsystemConfig>>,
    /// Where changes are kept.
    pub state_dir: Option<PathBuf>,
    /// Wait for framework_start_init.
    pub wait_for_rpc: bool,
    /// What the command line says about connections; it wins over what calls say.
    pub connections: ConnectionOptions,
    /// What is logged.
    pub logging: Logging,
    /// What has happened: the caller feeds it from the log.
    pub events: Arc<EventJournal>,
    /// Announce the listeners of the discovery service by multicast DNS.
    pub mdns: bool,
    /// What is started beside the socket.
    pub beside: Option<Beside>,
}

/// Starts something that serves clients beside the socket: after the socket, and before what is kept or configured is
/// in service. It ends when it is dropped, as the first thing of the daemon's end.
pub type Beside = Box<dyn FnOnce(&Arc<Manager>) -> Result<Box<dyn Send>, String> + Send>;

/// Why a daemon cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Listening on the socket failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The configuration file cannot be read.
    #[error("{path}: {problem}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// The configuration file and the state directory both hold a configuration.
    #[error(
        "{state_dir} holds a configuration, so {config} cannot be loaded: leave out -c, or \
         clear the state with raceline config clear"
    )]
    Both {
        /// The state directory.
        state_dir: PathBuf,
        /// The file.
        config: PathBuf,
    },
    /// A call of the configuration failed.
    #[error("{0}")]
    Load(String),
    /// What serves clients beside the socket cannot start.
    #[error("{0}")]
    Beside(String),
}

/// A running control plane.
pub struct Daemon {
    manager: Arc<Manager>,
    server: Server,
    beside: Option<Box<dyn Send>>,
    successors: Option<Successors>,
}

/// The configuration that is made at the start.
enum Origin {
    Nothing,
    /// From the state directory.
    Kept(Catalogue),
    /// From a file.
    File(PathBuf, Vec<SubsystemConfig>),
}

impl Daemon {
    /// Starts; without `wait_for_rpc`, everything is in service when this returns.
    ///
    /// # Errors
    /// When a resource cannot be had or a call of the configuration fails: the process should end.
    pub fn start(config: DaemonConfig) -> Result<Self, StartError> {
        let mut config = config;
        let mut manager = manager_config(&mut config);
        let file = config.config.map(|path| {
            let calls = config.calls.map_or_else(|| read_config(&path), Ok);
            calls.map(|calls| (path, calls))
        });
        let file = file.transpose()?;
        let mut origin = file.map_or(Origin::Nothing, |(path, calls)| Origin::File(path, calls));
        if let Some(state_dir) = config.state_dir {
            let (journal, kept) = StateJournal::open(&state_dir)?;
            manager.changes_before = journal.begin(&kept);
            manager.run = Some(kept.run + 1);
            manager.journal = Box::new(journal);
            if !kept.catalogue.is_empty() {
                if let Origin::File(config, _) = origin {
                    return Err(StartError::Both { state_dir, config });
                }
                origin = Origin::Kept(kept.catalogue);
            }
        }
        let registry = Arc::new(Registry::new());
        let manager = Arc::new(Manager::new(manager, registry.clone()));
        manager.check_history(origin.kept(), true);
        origin.make(&manager, &registry)?;
        let server = ServerConfig { path: config.socket, roles: Roles::new(config.admins) };
        let server = Server::start(server, Arc::clone(&manager))?;
        let beside = config.beside.map(|start| start(&manager));
        let beside = beside.transpose().map_err(StartError::Beside)?;
        manager.at_start(Box::new(move |manager| {
            origin.make(manager, &registry).map_err(|error| error.to_string())?;
            manager.wait_durable().map_err(|error| error.to_string())
        }));
        if !config.wait_for_rpc {
            manager.start_all().map_err(StartError::Load)?;
        }
        Ok(Self { manager, server, beside, successors: None })
    }

    /// Takes the place of a daemon that runs; everything is in service when this returns. If it fails, that daemon goes
    /// on: the caller ends the process at once, with nothing in good order.
    ///
    /// # Errors
    /// When this process cannot do what the daemon does, or the daemon does not agree.
    pub fn take_over(
        mut config: DaemonConfig,
        predecessor: &Predecessor,
    ) -> Result<Self, TakeOverError> {
        let unable = |error: &dyn ToString| predecessor.give_up(error.to_string());
        let mut manager = manager_config(&mut config);
        predecessor.continue_in(&mut manager);
        let registry = Arc::new(Registry::new());
        let manager = Arc::new(Manager::new(manager, registry.clone()));
        let origin = Origin::Kept(predecessor.catalogue());
        // Earlier releases may hand over before they have written the end of the list.
        manager.check_history(origin.kept(), false);
        origin.make(&manager, &registry).map_err(|error| unable(&error))?;
        manager.share();
        manager.at_start(Box::new(move |manager| {
            origin.make(manager, &registry).map_err(|error| error.to_string())
        }));
        manager.start_all().map_err(|error| unable(&error))?;
        match predecessor.take(&manager) {
            Err(TakeOverError::Unable(why)) => return Err(unable(&why)),
            taken => taken?,
        }
        // There is no way back: the daemon is gone.
        let server = ServerConfig { path: config.socket, roles: Roles::new(config.admins) };
        let server = Server::start(server, Arc::clone(&manager));
        predecessor.settle();
        manager.predecessor_is_gone();
        let server = server.map_err(|error| TakeOverError::Unable(error.to_string()))?;
        let beside = config.beside.map(|start| start(&manager)).transpose();
        // Hosts are served without it.
        let beside = beside.unwrap_or_else(|error| {
            tracing::error!("{error}");
            None
        });
        Ok(Self { manager, server, beside, successors: None })
    }

    /// Lets another process take the place of this one from here on.
    ///
    /// # Errors
    /// When the socket for that cannot be made.
    pub fn await_successor(&mut self, last: LastWords) -> Result<(), SocketError> {
        let path = socket_of(self.server.path());
        let manager = Arc::clone(&self.manager);
        self.successors = Some(Successors::start(path, manager, last)?);
        Ok(())
    }

    /// The manager.
    #[must_use]
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Where clients connect.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.server.path()
    }

    /// Ends in good order: clients first, then what is exported; the state is written last.
    ///
    /// # Errors
    /// When a core does not end in time, or the state cannot be written; nothing acknowledged is
    /// lost.
    pub fn stop(self) -> Result<(), ManagerError> {
        let Self { manager, server, beside, successors } = self;
        drop(successors);
        // Followers are answered at once, so that the servers need not wait for them.
        manager.config().events.close();
        drop(beside);
        drop(server);
        let stopped = manager.shut_down();
        manager.close_journal().map_err(ManagerError::Journal)?;
        stopped
    }
}

/// The part of the settings that is the manager's.
fn manager_config(config: &mut DaemonConfig) -> ManagerConfig {
    ManagerConfig {
        starts_by_itself: !config.wait_for_rpc,
        cores: std::mem::take(&mut config.cores),
        identity: Identity::of_this_machine(),
        logging: std::mem::take(&mut config.logging),
        events: Arc::clone(&config.events),
        connections: config.connections.clone(),
        mdns: config.mdns,
        key_places: Places::of(config.state_dir.as_deref()),
        reservations: config.state_dir.as_ref().map(|dir| dir.join(RESERVATIONS)),
        history: config.state_dir.as_ref().map(|dir| dir.join(HISTORY)),
        protected: config.state_dir.as_ref().map(|dir| dir.join(PROTECTED)),
        sockets: config.socket.parent().map(Path::to_owned),
        state_dir: config.state_dir.clone(),
        ..ManagerConfig::default()
    }
}

impl Origin {
    /// What the daemon has kept.
    fn kept(&self) -> &Catalogue {
        static NOTHING: LazyLock<Catalogue> = LazyLock::new(Catalogue::default);
        match self {
            Self::Nothing | Self::File(..) => &NOTHING,
            Self::Kept(catalogue) => catalogue,
        }
    }

    /// Makes what the current phase allows.
    fn make(&self, manager: &Manager, registry: &Registry) -> Result<(), StartError> {
        match self {
            Self::Nothing => Ok(()),
            Self::Kept(catalogue) => {
                if manager.phase() == Phase::Startup {
                    tell_kept_without_effect(
                        "the state directory",
                        kept_without_effect(registry, catalogue),
                    );
                }
                let restored = manager.restore(catalogue);
                restored.map_err(|error| StartError::Load(error.to_string()))
            }
            Self::File(path, calls) => {
                load(manager, registry, path, calls).inspect_err(|_| forget(manager))
            }
        }
    }
}

/// Makes the calls of a file that this phase allows. As in SPDK, calls that are allowed before the start
/// are made before it, all others after it. All calls are checked before the first is made. A daemon calls
/// this function before the start and again at the start.
///
/// # Errors
/// When calls cannot be made here: the error names all of them, and none is made. Or when a call fails.
pub fn load(
    manager: &Manager,
    registry: &Registry,
    path: &Path,
    sections: &[SubsystemConfig],
) -> Result<(), StartError> {
    let is_startup = manager.phase() == Phase::Startup;
    if is_startup {
        let check = |call: &Call| {
            let checked = raw_params(call.params.as_ref())
                .and_then(|raw| registry.check(&call.method, raw.as_deref()));
            checked.map_err(|error| error.to_string())
        };
        let is_kept = |call: &Call| registry.has_no_effect(&call.method, call.params.as_ref());
        let looked = look(sections, US, check, is_kept);
        if let Some(refused) = looked.refused {
            return Err(StartError::Load(format!("{}: {refused}", path.display())));
        }
        tell_kept_without_effect(&path.display().to_string(), looked.kept);
    }
    each_call(path, sections, |method, params| {
        let is_early = registry.get(method).is_some_and(|m| m.states != States::Runtime);
        if is_early != is_startup {
            return Ok(());
        }
        manager.make_or_miss(method, params)
    })
}

/// Takes back the records of a file of which a call has failed: otherwise the state directory would hold
/// half a configuration, and the next start would serve it.
fn forget(manager: &Manager) {
    let keys: Vec<Key> = manager.model().catalogue.entries().map(|(key, _)| key.clone()).collect();
    if keys.is_empty() {
        return;
    }
    let removed = manager.change(|change| {
        keys.into_iter().for_each(|key| change.remove(key));
        Ok::<_, ManagerError>(())
    });
    let durable = removed.and_then(|()| manager.wait_durable().map_err(ManagerError::Journal));
    if let Err(error) = durable {
        tracing::error!("the state directory holds a part of what the file says: {error}");
    }
}

/// The calls of a state that have no effect, in one line.
fn kept_without_effect(registry: &Registry, catalogue: &Catalogue) -> Option<String> {
    let entries = catalogue.entries().map(|(_, entry)| entry);
    let kept = entries.filter(|entry| registry.has_no_effect(&entry.method, Some(&entry.params)));
    summary(kept.map(|entry| (entry.section.name(), entry.method.as_str())))
}

/// Logs one line for a start, whatever the number of calls.
fn tell_kept_without_effect(from: &str, kept: Option<String>) {
    if let Some(kept) = kept {
        tracing::warn!("{from}: kept without effect, as Raceline has no such parts: {kept}");
    }
}

/// Calls a function with each call; an error names the call.
fn each_call(
    path: &Path,
    sections: &[SubsystemConfig],
    work: impl Fn(&str, Option<&Value>) -> Result<(), RpcError>,
) -> Result<(), StartError> {
    for SubsystemConfig { subsystem, config } in sections {
        for (index, call) in config.iter().enumerate() {
            work(&call.method, call.params.as_ref()).map_err(|error| {
                let (path, method) = (path.display(), &call.method);
                StartError::Load(format!("{path}: {subsystem} config[{index}] {method}: {error}"))
            })?;
        }
    }
    Ok(())
}

fn read_config(path: &Path) -> Result<Vec<SubsystemConfig>, StartError> {
    let failed = |problem: String| StartError::Config { path: path.to_owned(), problem };
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > MAX_CONFIG_BYTES {
        return Err(failed(format!("{size} bytes are more than {MAX_CONFIG_BYTES}")));
    }
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    configuration::parse(&text).map_err(|error| failed(error.to_string()))
}
