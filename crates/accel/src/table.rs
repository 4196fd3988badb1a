//! Which engine does which operation, for the whole process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raceline_crc32c::{CrcPath, CrcPathError};

use crate::channel::{Channel, ChannelConfig};
use crate::engine::{Engine, EngineQueue};
use crate::inject::{Injection, Injections};
use crate::memory::{Source, Target};
use crate::operation::{OpCode, OpSet};
use crate::software::Software;
use crate::stats::{Counters, Statistics};

/// The engine that is always there.
pub const SOFTWARE: &str = "software";

/// Engines that the table knows, with what they can do, but that nothing drives yet.
const WITHOUT_DRIVER: [(&str, OpSet); 2] = [
    ("ioat", OpSet::of(&[OpCode::Copy, OpCode::Fill])),
    ("qat", OpSet::of(&[OpCode::Compress, OpCode::Decompress])),
];

/// One engine, as the table shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Its name.
    pub name: &'static str,
    /// What it can do.
    pub operations: OpSet,
    /// False if nothing drives it: then nothing can be assigned to it.
    pub available: bool,
}

/// Why the table cannot be as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// No engine has this name.
    #[error("no acceleration engine is called {name:?}; there are: {known}")]
    UnknownEngine {
        /// The name.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// The engine cannot do this operation.
    #[error("engine {engine} cannot do {operation}; it can do: {operations}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// The operation.
        operation: OpCode,
        /// What it can do.
        operations: OpSet,
    },
    /// The engine is known but nothing drives it.
    #[error("engine {engine} has no driver in this version; assign {operation} to another one")]
    NoDriver {
        /// The engine.
        engine: &'static str,
        /// The operation.
        operation: OpCode,
    },
    /// Channels are open already.
    #[error("{operation} cannot be assigned any more: the table is in use; assign it before")]
    InUse {
        /// The operation.
        operation: OpCode,
    },
    /// Two engines have one name.
    #[error("two acceleration engines are called {0:?}")]
    Duplicate(&'static str),
    /// An engine gave no queue.
    #[error("engine {engine} gives no queue: {error}")]
    Queue {
        /// The engine.
        engine: &'static str,
        /// What it said.
        #[source]
        error: io::Error,
    },
}

/// The table of operations and engines. A clone is the same table.
#[derive(Clone, Debug)]
pub struct Framework {
    shared: Arc<Shared>,
}

/// What all channels share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Besides software.
    engines: Vec<Arc<dyn Engine>>,
    pub(crate) injections: Injections,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By [`OpCode::index`]: index into the engines, or software.
    routes: [Option<usize>; OpCode::COUNT],
    /// How the software engines of channels opened from now on digest.
    crc_path: CrcPath,
    /// A channel was opened: from then on the routes stay.
    in_use: bool,
    /// Of all channels that are or were open.
    counters: Vec<Arc<Counters>>,
}

impl Default for Framework {
    fn default() -> Framework {
        Framework::software()
    }
}

impl Framework {
    /// A table with the software engine alone.
    #[must_use]
    pub fn software() -> Framework {
        let (injections, table) = (Injections::default(), Mutex::default());
        Framework { shared: Arc::new(Shared { engines: Vec::new(), injections, table }) }
    }

    /// A table with these engines besides software, to which all operations are assigned.
    ///
    /// # Errors
    /// [`TableError::Duplicate`].
    pub fn new(engines: Vec<Arc<dyn Engine>>) -> Result<Framework, TableError> {
        let mut names: Vec<_> = WITHOUT_DRIVER.iter().map(|&(name, _)| name).collect();
        names.push(SOFTWARE);
        for engine in &engines {
            if names.contains(&engine.name()) {
                return Err(TableError::Duplicate(engine.name()));
            }
            names.push(engine.name());
        }
        let (injections, table) = (Injections::default(), Mutex::default());
        Ok(Framework { shared: Arc::new(Shared { engines, injections, table }) })
    }

    /// Assigns an operation to an engine, before the first channel is opened.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn assign(&self, operation: OpCode, engine: &str) -> Result<(), TableError> {
        let route = self.find(operation, engine)?;
        let mut table = self.shared.table();
        if table.in_use {
            return Err(TableError::InUse { operation });
        }
        table.routes[operation.index()] = route;
        Ok(())
    }

    fn find(&self, operation: OpCode, name: &str) -> Result<Option<usize>, TableError> {
        if name == SOFTWARE {
            return Ok(None);
        }
        let modules = self.modules();
        let Some(module) = modules.iter().find(|module| module.name == name) else {
            let known: Vec<_> = modules.iter().map(|module| module.name).collect();
            let (name, known) = (name.to_owned(), known.join(", "));
            return Err(TableError::UnknownEngine { name, known });
        };
        let (engine, operations) = (module.name, module.operations);
        if !operations.contains(operation) {
            return Err(TableError::Unsupported { engine, operation, operations });
        }
        let at = self.shared.engines.iter().position(|other| other.name() == engine);
        at.map(Some).ok_or(TableError::NoDriver { engine, operation })
    }

    /// The engine of each operation.
    #[must_use]
    pub fn assignments(&self) -> [(OpCode, &'static str); OpCode::COUNT] {
        let routes = self.shared.table().routes;
        OpCode::ALL.map(|code| {
            let engine = routes[code.index()].map(|at| self.shared.engines[at].name());
            (code, engine.unwrap_or(SOFTWARE))
        })
    }

    /// All engines.
    #[must_use]
    pub fn modules(&self) -> Vec<ModuleInfo> {
        let software = ModuleInfo { name: SOFTWARE, operations: OpSet::ALL, available: true };
        let engines = self.shared.engines.iter().map(|engine| {
            let (name, operations) = (engine.name(), engine.operations());
            ModuleInfo { name, operations, available: true }
        });
        let others = WITHOUT_DRIVER.into_iter();
        let others =
            others.map(|(name, operations)| ModuleInfo { name, operations, available: false });
        std::iter::once(software).chain(engines).chain(others).collect()
    }

    /// Makes the software engines of channels that are opened from now on digest by this path: to
    /// test and to compare. [`CrcPath::Auto`] is what they do otherwise.
    ///
    /// # Errors
    /// [`CrcPathError::Unavailable`].
    pub fn force_crc_path(&self, path: CrcPath) -> Result<(), CrcPathError> {
        self.shared.table().crc_path = path.checked()?;
        Ok(())
    }

    /// How they digest.
    #[must_use]
    pub fn crc_path(&self) -> CrcPath {
        self.shared.table().crc_path
    }

    /// Replaces the error injection of an operation; `None` ends it.
    pub fn inject(&self, operation: OpCode, injection: Option<Injection>) {
        self.shared.injections.set(operation, injection);
    }

    /// The counts of all channels, also of those that are gone.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        self.shared.table().counters.iter().for_each(|counters| counters.add_to(&mut sum));
        sum
    }

    /// One core's channel. It stays on the thread that opens it.
    ///
    /// # Errors
    /// [`TableError::Queue`].
    pub fn open_channel<S: Source, T: Target>(
        &self,
        config: &ChannelConfig,
    ) -> Result<Channel<S, T>, TableError> {
        // From here on the assignments stay as they are.
        let mut table = self.shared.table();
        table.in_use = true;
        let mut queues: Vec<(&'static str, Box<dyn EngineQueue>)> = Vec::new();
        let mut routes = [None; OpCode::COUNT];
        for (code, route) in OpCode::ALL.into_iter().zip(&mut routes) {
            let Some(at) = table.routes[code.index()] else { continue };
            let engine = self.shared.engines[at].name();
            let open = queues.iter().position(|&(name, _)| name == engine);
            *route = Some(match open {
                Some(index) => index,
                None => {
                    let queue = self.shared.engines[at]
                        .open_queue(config.cpu)
                        .map_err(|error| TableError::Queue { engine, error })?;
                    queues.push((engine, queue));
                    queues.len() - 1
                }
            });
        }
        let counters = Arc::new(Counters::default());
        table.counters.push(Arc::clone(&counters));
        let crc_path = table.crc_path;
        drop(table);
        let shared = Arc::clone(&self.shared);
        Ok(Channel::new(shared, counters, Software::new(crc_path), routes, queues, config))
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while it is held; if something did, the table is still whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
