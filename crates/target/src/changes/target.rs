//! The handle of a target: starts its cores, reports what they do, stops them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::nvme::Nqn;
use raceline_reactor::{LoopSnapshot, Mode, Reactor, ReactorConfig, ReactorHandle};

use crate::changes::balance::BalancerSlot;
use crate::changes::config::{TargetConfig, TargetError};
use crate::changes::control::{Control, QUIET_TIMEOUT};
use crate::changes::message::Message;
use crate::path::poll_group::PollGroup;
use crate::records::counters::QueueTotals;
use crate::records::registry::Shared;

/// A running NVMe/TCP target. If it is dropped without [`Target::shutdown`], its cores run on.
pub struct Target {
    pub(crate) control: Arc<Control>,
    pub(crate) cores: Vec<ReactorHandle<Message>>,
    pub(crate) balancer: BalancerSlot,
}

/// What a target is doing.
#[derive(Clone, Debug, Default)]
pub struct TargetStats {
    /// Connections on each core.
    pub connections: Vec<usize>,
    /// Controllers.
    pub controllers: usize,
    /// I/O queues that have moved to another core so far.
    pub moves: u64,
    /// Sockets that have not completed Connect.
    pub pre_connect: usize,
    /// What the queues of each subsystem have done so far.
    pub subsystems: Vec<(Nqn, QueueTotals)>,
    /// The loops of the cores.
    pub loops: Vec<LoopSnapshot>,
}

impl Target {
    /// Starts the cores. Nothing is exported and no host can connect yet.
    ///
    /// # Errors
    /// When a setting is out of range or a core cannot be started.
    pub fn start(config: TargetConfig) -> Result<Self, TargetError> {
        config.check()?;
        let cores: Vec<Option<usize>> = match &config.cores[..] {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let shared = Arc::new(Shared::new(config, cores.len()));
        let mut handles: Vec<ReactorHandle<Message>> = Vec::new();
        for (index, core) in cores.into_iter().enumerate() {
            match spawn(index, core, &shared) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    for handle in &handles {
                        let _ = handle.sender().send(Message::Shutdown);
                    }
                    return Err(TargetError::Reactor { core: core.unwrap_or(index), error });
                }
            }
        }
        shared.set_senders(handles.iter().map(|handle| handle.sender().clone()).collect());
        Ok(Self::with_cores(shared, handles))
    }

    pub(crate) fn with_cores(shared: Arc<Shared>, cores: Vec<ReactorHandle<Message>>) -> Self {
        let balancer = BalancerSlot::default();
        Self { control: Arc::new(Control::new(shared)), cores, balancer }
    }

    /// What the target is doing now.
    #[must_use]
    pub fn stats(&self) -> TargetStats {
        let shared = &self.control.shared;
        // Within the literal, the lock would be held to its end: the state is locked before the ledger elsewhere.
        let moves = shared.ledger().moves;
        TargetStats {
            connections: shared.loads(),
            controllers: shared.controllers(),
            moves,
            pre_connect: shared.waiting(),
            subsystems: self.control.lock().totals(),
            loops: self.cores.iter().map(|core| core.stats().snapshot()).collect(),
        }
    }

    /// Changes what the cores do when they are idle; a sleeping core notices when it next wakes.
    pub fn set_mode(&self, mode: Mode) {
        self.cores.iter().for_each(|core| core.set_mode(mode));
    }

    /// Whether all cores are running. A core that has ended by itself has logged why.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.cores.iter().all(ReactorHandle::is_running)
    }

    /// Stops: no new connections, commands in flight finish, connections close, cores end.
    ///
    /// # Errors
    /// When a core does not end in time, or has ended by a failure.
    pub fn shutdown(self) -> Result<(), TargetError> {
        let shared = &self.control.shared;
        drop(self.balancer);
        drop(shared.manager().take());
        drop(shared.reserver().take());
        for core in 0..shared.cores() {
            shared.send(core, Message::Shutdown);
        }
        let deadline = Instant::now() + QUIET_TIMEOUT;
        for (index, core) in self.cores.into_iter().enumerate() {
            while core.is_running() {
                if Instant::now() >= deadline {
                    return Err(TargetError::Unresponsive(index));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            core.join().map_err(|error| TargetError::Reactor {
                core: index,
                error: std::io::Error::other(error),
            })?;
        }
        Ok(())
    }
}

fn spawn(
    index: usize,
    core: Option<usize>,
    shared: &Arc<Shared>,
) -> std::io::Result<ReactorHandle<Message>> {
    let config = &shared.config;
    let reactor = ReactorConfig {
        core,
        mode: config.mode,
        backend: config.backend,
        busy_poll: config.busy_poll,
        pool: config.buffers(),
        accel: config.accel.clone(),
        name: format!("target-{index}"),
    };
    let shared = Arc::clone(shared);
    Reactor::spawn(reactor, move |_| Ok(PollGroup::new(index, shared)))
}
