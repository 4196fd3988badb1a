//! I/O queues that the program's own threads drive: no thread of ours is on the way of a command.
//!
//! A [`CallerHost`] is a connected controller; its admin queue, keep alive and reconnecting are in the
//! background, on a thread that no I/O passes. [`CallerQueues`] are a group of its I/O queues with their
//! sockets, and belong to the program that opens them. The thread that calls [`CallerQueues::flush`] sends,
//! the one that calls [`CallerQueues::poll`] receives. A group is used by one thread at a time, and may
//! move from thread to thread between calls.
//!
//! Lost connections are made again while the program polls. The program has to poll at least as often as
//! the command timeout asks for: an answer that was not polled for in time counts as missing.

mod memory;
mod operation;
mod queues;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raceline_reactor::core::DEFAULT_SPIN;

use crate::admin_link::AdminLink;
use crate::config::HostConfig;
use crate::error::HostError;
use crate::maps::QueueRequest;
pub use memory::Memory;
pub use operation::{Finished, Operation, Refusal, Refused};
pub use queues::CallerQueues;

/// How long a controller may take to see that an earlier connection of the same queue number has ended.
const REUSE_TIME: Duration = Duration::from_secs(1);
const REUSE_PAUSE: Duration = Duration::from_millis(20);

/// A connected controller whose I/O queues are handed out.
#[derive(Clone, Debug)]
pub struct CallerHost {
    shared: Arc<CallerShared>,
}

#[derive(Debug)]
struct CallerShared {
    config: HostConfig,
    admin: AdminLink,
    /// Free queue numbers. The one that was given back longest ago is used first.
    free_qids: Mutex<VecDeque<u16>>,
}

/// What a group of queues is to be like.
#[derive(Clone, Debug)]
pub struct CallerOptions {
    /// Queues for everything, or only for reads when there are `write_queues`.
    pub queues: u16,
    /// More queues, for commands that are not reads; see [`crate::maps`].
    pub write_queues: u16,
    /// More queues, for polled operations.
    pub poll_queues: u16,
    /// How long [`CallerQueues::wait`] looks for completions itself before it sleeps.
    pub spin: Duration,
}

impl Default for CallerOptions {
    fn default() -> Self {
        Self { queues: 1, write_queues: 0, poll_queues: 0, spin: DEFAULT_SPIN }
    }
}

impl CallerOptions {
    fn request(&self) -> QueueRequest {
        QueueRequest { io: self.queues, write: self.write_queues, poll: self.poll_queues }
    }
}

impl CallerHost {
    /// Connects to the controller, and asks it for the I/O queues of `config`, of all kinds, for all
    /// groups together.
    ///
    /// # Errors
    /// When the controller cannot be reached or used.
    pub fn connect(config: HostConfig) -> Result<Self, HostError> {
        let admin = AdminLink::connect(config.clone())?;
        let granted = admin.association().io_queues.min(config.queue_request().total());
        let free_qids = Mutex::new((1..=granted).collect());
        Ok(Self { shared: Arc::new(CallerShared { config, admin, free_qids }) })
    }

    /// The admin queue: namespaces, log pages, admin commands.
    #[must_use]
    pub fn admin(&self) -> &AdminLink {
        &self.shared.admin
    }

    /// The configuration that it was connected with.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// Why it was given up, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        self.shared.admin.failure()
    }

    /// Queues that can still be opened.
    #[must_use]
    pub fn free_queues(&self) -> usize {
        self.shared.qids().len()
    }

    /// Opens I/O queues and waits until commands flow.
    ///
    /// # Errors
    /// When fewer queues are left, or they cannot be connected.
    pub fn open(&self, options: &CallerOptions) -> Result<CallerQueues, HostError> {
        let deadline = Instant::now() + REUSE_TIME;
        loop {
            match self.try_open(options) {
                // The controller may still have the connection of a closed queue with this number.
                Err(HostError::ConnectRefused { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(REUSE_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Shuts the association down in order and waits until that is done. Groups end with it.
    pub fn disconnect(&self) {
        self.shared.admin.disconnect();
    }

    fn try_open(&self, options: &CallerOptions) -> Result<CallerQueues, HostError> {
        let qids = self.shared.take_qids(options.request().total())?;
        let mut queues = CallerQueues::new(Arc::clone(&self.shared), options, qids)?;
        queues.until_ready()?;
        Ok(queues)
    }
}

impl CallerShared {
    fn qids(&self) -> std::sync::MutexGuard<'_, VecDeque<u16>> {
        self.free_qids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_qids(&self, count: u16) -> Result<Vec<u16>, HostError> {
        let mut free = self.qids();
        let wanted = usize::from(count);
        if wanted == 0 || wanted > free.len() {
            let granted = self.admin.association().io_queues;
            return Err(HostError::Invalid(format!(
                "{count} I/O queues cannot be opened: {} are left of {} asked for when connecting \
                 ({granted} granted by the controller)",
                free.len(),
                self.config.queue_request().total(),
            )));
        }
        Ok(free.drain(..wanted).collect())
    }
}
